"""Finding tasks: by their ids wherever they are, and some of a queue by what state they are in."""

from collections.abc import AsyncIterator, Collection, Iterator
from itertools import islice
from typing import Literal, NamedTuple, get_args

from posthouse.core.commands import Peek, Peeked, Seen
from posthouse.core.message import ACTIVE, DELAYED, LOCKED, SCHEDULED, Message, message_id
from posthouse.core.model import Queue, State
from posthouse.core.picking import pick_ready
from posthouse.dialects.pyqueue.orders import Call
from posthouse.dialects.pyqueue.refusals import Failed
from posthouse.dialects.pyqueue.tasks import envelope_of, text_of, token_in

LOOK_MAX = 20_000  # messages of a queue that are passed over for those in some state
_STEP = 1_000  # that are looked at in one go

Status = Literal["all", "ready", "processing", "scheduled", "dlq"]
STATUSES: tuple[str, ...] = get_args(Status)


class Place(NamedTuple):
    queue: str  # a dead-letter queue too
    sequence: int
    status: str


class Task(NamedTuple):
    """As it can be told."""

    id: str
    payload: str
    priority: int  # ours
    queue: str
    retries: int  # how often it has failed
    created_ms: int
    scheduled_ms: int
    status: str
    error: str


def queues_of(state: State) -> Iterator[Queue]:
    """Those that hold tasks, by their names."""
    for name in state.names:
        queue = state.queues[name]
        if queue.properties.delivery != "topic":
            yield queue


def depth_of(queue: Queue) -> int:
    return queue.counts[ACTIVE] + queue.counts[DELAYED]


def dead_in(queue: Queue) -> int:
    return 0 if queue.dead is None else sum(queue.dead.counts)


def scheduled_in(state: State, queue: Queue) -> int:
    """Tasks that are to come, and schedules that will send some."""
    recurring = sum(1 for each in state.schedules.values() if each.queue == queue.name)
    return queue.counts[SCHEDULED] + recurring


async def places(call: Call, queue: Queue, status: str, limit: int) -> list[Place]:
    """Some tasks in a state; those that are ready as they would be pulled."""
    found: list[Place] = []
    if status in ("all", "ready"):
        ready = pick_ready(queue, limit, call.desk.now_ms)
        found += [Place(queue.name, each.sequence, "ready") for each in ready]
    for state, name in ((DELAYED, "ready"), (LOCKED, "processing"), (SCHEDULED, "scheduled")):
        if status in ("all", name) and len(found) < limit:
            some = await _in_state(call, queue, state, limit - len(found))
            found += [Place(queue.name, sequence, name) for sequence in some]
    if status in ("all", "dlq") and queue.dead is not None:
        dead = islice(queue.dead.messages.walk(0), limit)
        found += [Place(queue.dead.name, m.sequence, "dlq") for m in dead]
    return found[:limit]


async def _in_state(call: Call, queue: Queue, state: int, limit: int) -> list[int]:
    """The numbers of the oldest messages in a state, as far as LOOK_MAX goes."""
    found: list[int] = []
    looked = 0
    async for messages in _steps(call, queue.name):
        if not queue.counts[state] or looked >= LOOK_MAX or len(found) >= limit:
            break
        looked += len(messages)
        found += [each.sequence for each in messages if each.state == state]
    return found[:limit]


async def _steps(call: Call, name: str) -> AsyncIterator[list[Message]]:
    """The messages of a queue, some at a time; others have their turn in between.

    Raises ConnectionResetError where the client has gone.
    """
    first: int | None = 0
    while first is not None:
        queue = call.desk.state.queues.get(name)
        if queue is None:
            return
        messages = list(islice(queue.messages.walk(first), _STEP))
        yield messages
        first = messages[-1].sequence + 1 if len(messages) == _STEP else None
        await call.give_way()


async def look(call: Call, place: Place) -> Task | None:
    """With its payload, which may be on disk only. Raises Refused or StoreError."""
    answer = await call.ask(Peek(place.queue, place.sequence))
    assert isinstance(answer, Peeked)
    if not answer.messages or answer.messages[0].message.sequence != place.sequence:
        return None  # it is gone meanwhile
    return _told(answer.messages[0], place)


def _told(seen: Seen, place: Place) -> Task:
    message = seen.message
    envelope = envelope_of(message)
    assert isinstance(message.body, bytes)
    payload, _ = text_of(message.body, envelope.form)
    note = seen.note
    error = "" if note is None else str(note.properties.get("error") or note.description or "")
    queue = place.queue.removesuffix("/$dead")
    due_ms = message.enqueued_ms if message.state == SCHEDULED else 0
    retries = message.count - (message.state == LOCKED)
    return Task(
        envelope.id, payload, message.priority, queue, retries, message.enqueued_ms, due_ms,
        place.status, error,
    )  # fmt: skip


_STATUS = {ACTIVE: "ready", LOCKED: "processing", SCHEDULED: "scheduled", DELAYED: "ready"}


async def find(call: Call, task: str) -> Place | None:
    """A task by its id, wherever the caller may see it.

    One that is worked on is known by its id; for others all queues are looked through, in steps.
    """
    desk = call.desk
    state = desk.state
    token = token_in(task) or next(iter(state.ids.get(task, ())), 0)
    lock = state.locks.get(token)
    if lock is not None:
        return Place(lock.queue.name, lock.message.sequence, "processing")
    wanted = task.encode(errors="replace")
    for name in list(state.names):
        for queue in (name, f"{name}/$dead"):
            if queue not in state.queues or not desk.knows(call.principal, queue):
                continue
            async for messages in _steps(call, queue):
                for message in messages:
                    if wanted in message.envelope and message_id(message.envelope) == task:
                        status = _STATUS.get(message.state, "ready")
                        return Place(queue, message.sequence, "dlq" if queue != name else status)
    return None


async def numbers_of(call: Call, queue: str, ids: Collection[str]) -> list[int]:
    """The numbers of the tasks of a queue that have these ids, all found in one pass."""
    wanted = frozenset(ids)
    return [
        message.sequence
        async for messages in _steps(call, queue)
        for message in messages
        if message_id(message.envelope) in wanted
    ]


def check_status(status: str | None) -> str:
    """Raises Failed."""
    if status not in (None, *STATUSES):
        raise Failed(f"status must be one of {', '.join(STATUSES)}")
    return status or "all"
