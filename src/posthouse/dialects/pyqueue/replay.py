"""Tasks from the journal once more: by when they were pushed, by their ids, by their queue.

What is still in its queue is not sent again. The rest keeps its id and its priority, and is new in
every other way.
"""

from typing import Any

import msgspec

from posthouse.broker import payload
from posthouse.broker.payload import Content
from posthouse.core.commands import Send
from posthouse.core.errors import Refused
from posthouse.core.message import NewMessage, message_id, size_bytes
from posthouse.dialects.pyqueue.orders import Call
from posthouse.dialects.pyqueue.refusals import told

REPLAY_MAX = 10_000  # tasks in one go
_SEND_MESSAGES, _SEND_BYTES = 1_000, 4 << 20


class _ReplayForm(msgspec.Struct):
    from_timestamp: int | float | None = None
    to_timestamp: int | float | None = None
    task_ids: list[str] | None = None
    queue_name: str | None = None


async def replay(call: Call) -> dict[str, Any]:
    form: _ReplayForm = call.form(_ReplayForm)
    call.check("manage", form.queue_name or "*")
    call.check("send", form.queue_name or "*")
    found, is_all = await _found(call, form)
    error = "" if is_all else f"There are more; {REPLAY_MAX} are replayed at a time"
    ids: list[str] = []
    for queue, messages in _parts(found):
        try:
            await call.ask(Send(queue, messages, [""] * len(messages)))
        except Refused as refused:
            error = told(refused, call.op, queue)
            break
        ids += [message_id(each.envelope) for each in messages]
    if error:
        return {"replayed": len(ids), "task_ids": ids, "error": error}
    return {"replayed": len(ids), "task_ids": ids}


async def _found(call: Call, form: _ReplayForm) -> tuple[list[Content], bool]:
    """Finds the tasks to replay in the journal. Returns them, and whether they are all."""
    engine, namespace = call.context.engine, call.context.settings.namespace
    from_ms = (form.from_timestamp or 0) * 1_000
    to_ms = float("inf") if form.to_timestamp is None else form.to_timestamp * 1_000
    wanted = None if form.task_ids is None else set(form.task_ids)
    found: dict[tuple[str, str], Content] = {}  # a task that was replayed is in the journal twice
    there: set[tuple[str, str]] = set()
    is_all = True
    async for frame in engine.store.read(0, engine.store.durable):
        fits = from_ms <= frame.time_ms <= to_ms
        for each in payload.contents(payload.entries(frame), moved=False):
            if each.namespace != namespace or form.queue_name not in (None, each.queue):
                continue
            id = message_id(each.message.envelope)
            if not id or (wanted is not None and id not in wanted):
                continue
            task = each.queue, id
            if _is_there(call, each, id):
                there.add(task)
                found.pop(task, None)
            elif fits and task not in there and task not in found:
                if len(found) < REPLAY_MAX:
                    found[task] = each
                else:
                    is_all = False
    return list(found.values()), is_all


def _is_there(call: Call, content: Content, id: str) -> bool:
    """Whether it need not be sent again, or cannot be because its queue is gone."""
    context = call.context
    if context.properties_of(content.queue) is None:
        return True
    message = context.view.messages.get(context.namespace, content.queue, content.sequence)
    return message is not None and message_id(message.envelope) == id


def _parts(found: list[Content]) -> list[tuple[str, list[NewMessage]]]:
    """Splits the tasks by queue, in their order, into parts that fit into one send."""
    parts: list[tuple[str, list[NewMessage]]] = []
    sizes: list[int] = []
    open_: dict[str, int] = {}
    for each in found:
        new = msgspec.structs.replace(each.message, due_ms=0, expires_ms=0)
        at, size = open_.get(each.queue, -1), size_bytes(new)
        full = at >= 0 and len(parts[at][1]) >= _SEND_MESSAGES
        if at < 0 or full or sizes[at] + size > _SEND_BYTES:
            at = open_[each.queue] = len(parts)
            parts.append((each.queue, []))
            sizes.append(0)
        parts[at][1].append(new)
        sizes[at] += size
    return parts
