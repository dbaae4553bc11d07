"""Finding tasks: by their ids wherever they are, and some of a queue by what state they are in."""

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Literal, NamedTuple, get_args

from posthouse.core.commands import Peek, Peeked, Seen
from posthouse.core.message import ACTIVE, DELAYED, LOCKED, SCHEDULED, Message, message_id
from posthouse.core.model import Queue, State
from posthouse.core.plan import pick_ready
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


def places(state: State, queue: Queue, status: str, limit: int, now_ms: int) -> list[Place]:
    """Some tasks in a state; those that are ready as they would be pulled."""
    found: list[Place] = []
    if status in ("all", "ready"):
        ready = pick_ready(queue, limit, now_ms)
        found += [Place(queue.name, each.sequence, "ready") for each in ready]
        if queue.counts[DELAYED]:  # held back for a while after an attempt
            near = islice(queue.messages.walk(0), LOOK_MAX)
            back = (m for m in near if m.state == DELAYED)
            found += [Place(queue.name, m.sequence, "ready") for m in islice(back, limit)]
    if status in ("all", "processing"):
        held = (lock.message for lock in state.locks.values() if lock.queue is queue)
        found += [Place(queue.name, m.sequence, "processing") for m in islice(held, limit)]
    if status in ("all", "scheduled") and queue.counts[SCHEDULED]:
        near = islice(queue.messages.walk(0), LOOK_MAX)
        due = (m for m in near if m.state == SCHEDULED)
        found += [Place(queue.name, m.sequence, "scheduled") for m in islice(due, limit)]
    if status in ("all", "dlq") and queue.dead is not None:
        dead = islice(queue.dead.messages.walk(0), limit)
        found += [Place(queue.dead.name, m.sequence, "dlq") for m in dead]
    return found[:limit]


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
            first: int | None = 0
            while first is not None:
                found, first = _step(state, queue, task, wanted, first)
                if found is not None:
                    return found
                await asyncio.sleep(0)  # others have their turn
    return None


def _step(
    state: State, name: str, task: str, wanted: bytes, first: int
) -> tuple[Place | None, int | None]:
    """Looks at some messages of a queue; where it was not among them, from where to go on."""
    queue = state.queues.get(name)
    looked: list[Message] = [] if queue is None else list(islice(queue.messages.walk(first), _STEP))
    for message in looked:
        if wanted in message.envelope and message_id(message.envelope) == task:
            dead = queue is not None and queue.origin is not None
            status = "dlq" if dead else _STATUS.get(message.state, "ready")
            return Place(name, message.sequence, status), None
    return None, looked[-1].sequence + 1 if len(looked) == _STEP else None


def check_status(status: str | None) -> str:
    """Raises Failed."""
    if status not in (None, *STATUSES):
        raise Failed(f"status must be one of {', '.join(STATUSES)}")
    return status or "all"
