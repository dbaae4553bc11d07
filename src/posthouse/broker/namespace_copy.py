"""Copying one namespace from a journal into another, which may hold other namespaces.

The namespace is recovered as it was last, and its deliveries end as if their locks had expired.
Then records that make it again are written behind the end of the other journal: entities, messages
with their numbers and delivery counts, states of sessions, keys of duplicate detection, schedules.
Positions, and the tokens of locks, are the other journal's own. Accounts are not copied: their
keys are sealed with a key of their broker.

A copy of many messages takes several frames. One that fails deletes what it has written. One that
is killed leaves a part, which is to be deleted before the next.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import msgspec

from posthouse.broker.figures import Figures
from posthouse.broker.journal import Journal
from posthouse.broker.payload import Entry
from posthouse.broker.replay import bodies_of, make_so, recover
from posthouse.core import namespaces as spaces
from posthouse.core.endings import let_go
from posthouse.core.errors import NotFound
from posthouse.core.message import ACTIVE, Message, NewMessage, size_bytes
from posthouse.core.model import Account, Queue, Schedule, State
from posthouse.core.namespaces import CreateNamespace, DeleteNamespace, Namespaces
from posthouse.core.records import (
    ClockSet,
    Kept,
    MessagesRestored,
    NamespaceCreated,
    NamespaceDeleted,
    OfNamespaces,
    QueueCreated,
    QueueRestored,
    ScheduleSet,
    SubscriptionCreated,
    is_kept,
    span,
)
from posthouse.core.tokens import KEY_BYTES
from posthouse.store import Store
from posthouse.store.frames import Frame

PART_BYTES = 1 << 20  # of one record, and of what is read at a time
PART = 1_000  # messages, groups or keys in it
FRAME_BYTES = 4 << 20
SYNC_BYTES = 16 << 20

T = TypeVar("T")
Progress = Callable[[int, int], None]  # messages done, of so many


class CopiedNamespace(NamedTuple):
    entities: int  # queues, topics and subscriptions
    messages: int
    schedules: int
    first: int  # the positions that it has in the other journal
    end: int
    accounts: list[str]  # that have rights in this namespace alone; they are not copied


async def copy_namespace(
    name: str, source: Store, target: Store, now_ms: int, progress: Progress, *, moves: bool = False
) -> CopiedNamespace:
    """Copies a namespace; `moves`: it is deleted in the source once it is durable in the target.

    Raises NotFound, AlreadyExists or another refusal, and StoreError.
    """
    world = await recover(source, source.snapshots, keep_bytes=0)
    state = world.states.get(name)
    if state is None:
        raise NotFound("namespace", name)
    for record in let_go(state, state.clock_ms or now_ms):
        if is_kept(record):
            make_so(world, name, record, 0)
    there = await recover(target, target.snapshots, keep_bytes=0)
    writing = _Writing(target, there, now_ms)
    first = writing.position
    writing.create(name, state.by)
    try:
        await writing.fill(state, source, progress)
    except BaseException:
        writing.add("", NamespaceDeleted(name))
        await writing.end()
        raise
    await writing.end()
    accounts = sorted(each.name for each in world.accounts.values() if _is_of(each, name))
    if moves:
        await _delete(name, world, source, now_ms)
    return CopiedNamespace(
        sum(queue.origin is None for queue in state.queues.values()), _count(state),
        len(state.schedules), first, writing.position, accounts,
    )  # fmt: skip


async def _delete(name: str, world: Namespaces, source: Store, now_ms: int) -> None:
    writing = _Writing(source, world, now_ms)
    for record in spaces.decide(world, DeleteNamespace(name), now_ms).records:
        writing.add("", record)
    await writing.end()


def _is_of(account: Account, name: str) -> bool:
    """Whether an account has rights in this namespace and in no other."""
    return {grant.namespace for grant in account.grants} == {name}


def _count(state: State) -> int:
    return sum(sum(queue.counts) for queue in state.queues.values())


class _Writing:
    """The end of a journal, where records are written and made so in its world."""

    def __init__(self, store: Store, world: Namespaces, now_ms: int) -> None:
        last = store.last or Frame(1, 0, 1, 0, 1, 0, b"")
        self._journal = Journal(store, last, Figures(), None)
        self._world = world
        self._time_ms = max(now_ms, last.time_ms)
        self._entries: list[Entry] = []
        self._gathered = self._unsynced = 0

    @property
    def position(self) -> int:
        return self._journal.position

    def add(self, namespace: str, record: Kept | OfNamespaces, size: int = 1_000) -> None:
        """`size`: the bytes of the record, about."""
        self._entries.append((namespace, record))
        self._gathered += size
        if not isinstance(record, MessagesRestored):  # they would only take memory
            make_so(self._world, namespace, record, self._journal.position)
        self._journal.position += span(record)

    def create(self, name: str, by: str) -> None:
        """Raises AlreadyExists or QuotaExceeded."""
        command = CreateNamespace(
            name, self._journal.epoch, secrets.randbits(32), secrets.token_bytes(KEY_BYTES)
        )
        for record in spaces.decide(self._world, command, self._time_ms).records:
            assert isinstance(record, NamespaceCreated)
            self.add("", msgspec.structs.replace(record, by=by))

    async def fill(self, state: State, source: Store, progress: Progress) -> None:
        """Makes the namespace what it is in the source. Raises StoreError."""
        name = state.name
        if state.clock_ms:
            self.add(name, ClockSet(state.clock_ms, state.broker_ms))
        for queue in _entities(state):
            self.add(name, _created(queue))
            await self._write_some()
        for schedule in state.schedules.values():
            self.add(name, _scheduled(schedule), size_bytes(schedule.message))
            await self._write_some()
        done, whole = 0, _count(state)
        for queue in state.queues.values():
            for restored in _restored(queue):
                self.add(
                    name,
                    restored,
                    PART_BYTES if restored.groups or restored.keys or restored.ids else 1_000,
                )
                await self._write_some()
            marks = self._marks(name, queue)
            for messages in _parts(queue.messages.walk(0), size_bytes):
                bodies = await bodies_of(source, messages)
                size = sum(map(size_bytes, messages))
                self.add(name, _messages(queue, messages, bodies, marks), size)
                await self._write_some()
                done += len(messages)
                progress(done, whole)

    def _marks(self, name: str, topic: Queue) -> list[tuple[int, int]]:
        """The numbers of a topic's subscriptions, in the source and here, in their order."""
        here = self._world.states[name].queues
        return sorted((old.number, here[each].number) for each, old in topic.subscriptions.items())

    async def _write_some(self) -> None:
        """Writes a frame where enough has gathered. Raises StoreError."""
        if self._gathered < FRAME_BYTES:
            return
        self._append()
        if self._unsynced >= SYNC_BYTES:
            await self._journal.sync()
            self._unsynced = 0

    def _append(self) -> None:
        self._journal.append(self._entries, self._time_ms)
        self._unsynced += self._gathered
        self._entries, self._gathered = [], 0

    async def end(self) -> None:
        """Writes what is left, and then what a clean stop writes. Raises StoreError."""
        if self._entries:
            self._append()
        await self._journal.sync()
        await self._journal.end(self._time_ms)


# The records of a namespace.


def _entities(state: State) -> list[Queue]:
    """Queues, topics and subscriptions, in the order in which they came into being."""
    entities = [queue for queue in state.queues.values() if queue.origin is None]
    return sorted(entities, key=lambda queue: queue.number)


def _created(queue: Queue) -> QueueCreated | SubscriptionCreated:
    if queue.topic is None:
        return QueueCreated(queue.name, queue.created_ms, queue.properties, queue.by)
    rules = list(queue.rules.values())
    return SubscriptionCreated(
        queue.name, queue.created_ms, queue.properties, rules, by=queue.by
    )  # fmt: skip


def _scheduled(schedule: Schedule) -> ScheduleSet:
    return ScheduleSet(
        schedule.name, schedule.created_ms, schedule.queue, schedule.when, schedule.message,
        schedule.next_ms, schedule.by, schedule.fired, schedule.last_ms, schedule.problem,
        schedule.paused,
    )  # fmt: skip


def _restored(queue: Queue) -> Iterator[QueueRestored]:
    """Yields what belongs to no message of a queue: once, and again for many groups or keys."""
    bare = QueueRestored(
        queue.name, queue.created_ms, queue.updated_ms, queue.accessed_ms, queue.next_sequence,
        queue.transfer is not None,
    )  # fmt: skip
    yield bare
    for groups in _parts(queue.groups.values(), lambda group: len(group.state or b"")):
        yield msgspec.structs.replace(
            bare,
            groups=[(group.key, group.state, group.state_ms) for group in groups],
            turns=[(group.since, group.turn) for group in groups] if queue.gives_runs else [],
        )
    keys = (
        (key, until_ms, sequence if last_ms == until_ms else 0)
        for key, until_ms in queue.seen_order
        for last_ms, sequence in (queue.seen[key],)
    )
    for each in _parts(keys, lambda key: len(key[0])):
        yield msgspec.structs.replace(bare, keys=each)
    for ids in _parts(queue.seen_ids.items(), lambda pair: len(pair[0]) + len(pair[1])):
        yield msgspec.structs.replace(bare, ids=ids)


def _messages(
    queue: Queue, messages: list[Message], bodies: list[bytes], marks: list[tuple[int, int]]
) -> MessagesRestored:
    contents = [
        NewMessage(
            message.envelope, body, message.native, message.group, message.priority,
            queue.lives.get(message.sequence), 0, message.expires_ms,
        )
        for message, body in zip(messages, bodies, strict=True)
    ]  # fmt: skip
    return MessagesRestored(
        queue.name,
        [message.sequence for message in messages],
        contents,
        [message.state for message in messages],
        [message.enqueued_ms for message in messages],
        [message.count for message in messages],
        [_mark(message, marks) for message in messages],
        [queue.notes.get(message.sequence) for message in messages],
        [queue.firsts.get(message.sequence, 0) for message in messages] if queue.firsts else None,
    )


def _mark(message: Message, marks: list[tuple[int, int]]) -> int:
    """When it wakes, or the last subscription that has a copy, by its number in the target."""
    if message.state != ACTIVE or not message.lock:
        return message.lock
    return max((new for old, new in marks if old <= message.lock), default=0)


def _parts(items: Iterable[T], weight: Callable[[T], int]) -> Iterator[list[T]]:
    """Splits items into lists that are limited in count and in bytes."""
    part: list[T] = []
    size = 0
    for item in items:
        part.append(item)
        size += weight(item)
        if len(part) >= PART or size >= PART_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part
