"""Finding tasks: by their ids wherever they are, and some of a queue by what state they are in."""

from collections.abc import AsyncIterator, Collection
from typing import Literal, NamedTuple, get_args

from posthouse.broker.view_messages import MessageHead
from posthouse.core.commands import Counts, Peek, Peeked, Seen
from posthouse.core.message import ACTIVE, DELAYED, LOCKED, SCHEDULED, STATES, message_id
from posthouse.core.model import dead_letter_queue
from posthouse.dialects.pyqueue.context import PyQueueContext
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
    """A task with the fields that clients are told."""

    id: str
    payload: str
    priority: int  # ours
    queue: str
    retries: int  # how often it has failed
    created_ms: int
    scheduled_ms: int
    status: str
    error: str


def queues_of(context: PyQueueContext) -> list[str]:
    """The names of those that hold tasks, in order."""
    return context.view.names(context.namespace, "queue")


def counts_of(context: PyQueueContext, queue: str) -> Counts:
    return context.view.counts(context.namespace, queue)


def depth_of(counts: Counts) -> int:
    return counts.active + counts.delayed


async def places(call: Call, queue: str, status: str, limit: int) -> list[Place]:
    """Some tasks in a state; those that are ready as they would be pulled."""
    found: list[Place] = []
    messages, namespace = call.context.view.messages, call.context.namespace
    if status in ("all", "ready"):
        ready = messages.ready(namespace, queue, limit, call.context.now_ms)
        found += [Place(queue, sequence, "ready") for sequence in ready]
    for state, name in ((DELAYED, "ready"), (LOCKED, "processing"), (SCHEDULED, "scheduled")):
        if status in ("all", name) and len(found) < limit:
            some = await _in_state(call, queue, state, limit - len(found))
            found += [Place(queue, sequence, name) for sequence in some]
    if status in ("all", "dlq"):
        dead = dead_letter_queue(queue)
        letters = messages.page(namespace, dead, 0, limit)
        found += [Place(dead, letter.sequence, "dlq") for letter in letters]
    return found[:limit]


async def _in_state(call: Call, queue: str, state: int, limit: int) -> list[int]:
    """The numbers of the oldest messages in a state, as far as LOOK_MAX goes."""
    found: list[int] = []
    looked = 0
    async for messages in _steps(call, queue):
        there = getattr(counts_of(call.context, queue), STATES[state])
        if not there or looked >= LOOK_MAX or len(found) >= limit:
            break
        looked += len(messages)
        found += [each.sequence for each in messages if each.state == state]
    return found[:limit]


async def _steps(call: Call, queue: str) -> AsyncIterator[list[MessageHead]]:
    """The messages of a queue, some at a time; others have their turn in between.

    Raises ConnectionResetError where the client has gone.
    """
    first: int | None = 0
    while first is not None:
        messages = call.context.view.messages.page(call.context.namespace, queue, first, _STEP)
        yield messages
        first = messages[-1].sequence + 1 if len(messages) == _STEP else None
        await call.give_way()


async def look(call: Call, place: Place) -> Task | None:
    """Returns a task with its payload, which may have to be read from disk; None if it is gone.

    Raises Refused or StoreError.
    """
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
    context = call.context
    view, namespace = context.view, context.namespace
    token = token_in(task) or next(iter(view.messages.tokens(namespace, task)), 0)
    lock = view.messages.lock(namespace, token)
    if lock is not None:
        return Place(lock.queue, lock.message.sequence, "processing")
    wanted = task.encode(errors="replace")
    for name in view.names(namespace):
        for queue in (name, dead_letter_queue(name)):
            if not view.exists(namespace, queue) or not context.knows(call.principal, queue):
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
