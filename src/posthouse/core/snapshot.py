"""The whole of a broker's state as bytes, and back again.

A snapshot says what the journal up to a position has made of the world, so that a start need not
read it all. It holds messages without their bodies: those are in the journal, at the positions that
the messages know. What can be worked out from the rest (ready lists, heads, timers) is not in it,
nor what concerns connections.

It is a run of parts, MessagePack arrays that begin with their kind:

    0 Space      one namespace; what follows belongs to it
    1 Contents   one queue or dead-letter queue; what follows belongs to it
    2 Groups     sessions and groups, in their order
    3 Messages   by rising sequence number, as arrays; a body is its length, a lock 0
    4 Extras     notes, times to live, first deliveries and duplicate-detection keys
    5 Locks      of the whole namespace, behind its queues
    6 Beside     accounts and readers of the feed, which are of no namespace
    7 Schedules  of the whole namespace, behind its queues
    8 Turns      of groups, where a queue gives runs
"""

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from typing import TypeAlias, TypeVar

import msgspec

from posthouse.core.commands import PROPERTIES_BYTES_MAX
from posthouse.core.evolve import (
    count_queue,
    hold_back,
    is_plain,
    rebuild_heads,
    relays,
    watch_idleness,
)
from posthouse.core.index import CHUNK
from posthouse.core.message import ACTIVE, DELAYED, LOCKED, SCHEDULED, Message, Note, size_bytes
from posthouse.core.model import (
    PRIORITIES,
    TRANSFER,
    Account,
    Group,
    Lock,
    Queue,
    QueueProperties,
    Reader,
    Schedule,
    State,
    message_key,
)
from posthouse.core.namespaces import Namespaces, add_account, count_all
from posthouse.core.ready_list import ReadyList
from posthouse.core.rules import Rule, bytes_of
from posthouse.core.shares import SCHEDULES, count
from posthouse.core.tokens import Tokens

_PART = 4096  # messages, or whatever else there is many of, in one part
_PART_BYTES = 1 << 20  # and what is large in them

T = TypeVar("T")
_Parts: TypeAlias = (
    "Space | Contents | Groups | Messages | Extras | Locks | Beside | Schedules | Turns"
)


class _Part(msgspec.Struct, array_like=True, frozen=True):
    pass


class Space(_Part, frozen=True, tag=0):
    name: str
    number: int
    era: int  # its upper 64 bits
    started_ms: int
    clock_ms: int
    broker_ms: int
    next_lock: int
    key: bytes = b""  # of its tokens
    turned_back: int = 0
    by: str = ""


class Contents(_Part, frozen=True, tag=1):
    name: str
    number: int
    origin: str | None
    properties: QueueProperties
    created_ms: int
    updated_ms: int
    accessed_ms: int
    next_sequence: int
    counts: list[int]
    size_bytes: int
    body_bytes: int
    topic: str | None = None
    rules: list[Rule] = []
    temporary: bool = False
    by: str = ""


class GroupPart(msgspec.Struct, array_like=True, frozen=True):
    key: str
    token: bytes  # of the session lock, or none
    until_ms: int
    bound: bool
    state: bytes | None
    state_ms: int


class Groups(_Part, frozen=True, tag=2):
    groups: list[GroupPart]


class Turns(_Part, frozen=True, tag=8):
    turns: int  # of the queue
    groups: list[tuple[str, int, int]]  # key, since, turn


class Messages(_Part, frozen=True, tag=3):
    messages: list[Message]


class Extras(_Part, frozen=True, tag=4):
    notes: list[tuple[int, Note]] = []
    lives: list[tuple[int, int]] = []
    seen: list[tuple[str, int, int]] = []  # key, until when, sequence; 0: it was sent again since
    firsts: list[tuple[int, int]] = []
    seen_ids: list[tuple[str, str]] = []


class LockPart(msgspec.Struct, array_like=True, frozen=True):
    token: bytes
    queue: int
    sequence: int
    until_ms: int
    bound: int
    deferred: bool
    id: str | None
    since_ms: int = 0


class Locks(_Part, frozen=True, tag=5):
    locks: list[LockPart]


class Schedules(_Part, frozen=True, tag=7):
    schedules: list[Schedule]


class Beside(_Part, frozen=True, tag=6):
    accounts: list[Account] = []
    readers: list[Reader] = []


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[_Parts] = msgspec.msgpack.Decoder(
    Space | Contents | Groups | Messages | Extras | Locks | Beside | Schedules | Turns
)


# Taking one.


def take(world: Namespaces) -> Iterator[bytes]:
    """The parts, one by one: all of them together may be larger than fits in memory twice."""
    return map(_encoder.encode, _take(world))


def _take(world: Namespaces) -> Iterator[_Parts]:
    for state in world.states.values():
        yield Space(
            state.name, state.number, state.era >> 64, state.started_ms, state.clock_ms,
            state.broker_ms, state.next_lock, state.tokens.key, state.turned_back,
            state.by,
        )  # fmt: skip
        for queue in state.queues.values():
            yield from _take_queue(queue)
        locks = (
            LockPart(
                token.to_bytes(16, "big"), lock.queue.number, lock.message.sequence,
                lock.until_ms, lock.bound, lock.deferred, lock.id, lock.since_ms,
            )
            for token, lock in state.locks.items()
            if state.queues.get(lock.queue.name) is lock.queue
        )  # fmt: skip
        yield from map(Locks, _batches(locks))
        weigh = lambda each: size_bytes(each.message)  # noqa: E731
        yield from map(Schedules, _batches(state.schedules.values(), weigh))
    for accounts in _batches(world.accounts.values()):
        yield Beside(accounts=accounts)
    if world.readers:
        yield Beside(readers=list(world.readers.values()))


def _take_queue(queue: Queue) -> Iterator[_Parts]:
    yield Contents(
        queue.name, queue.number, queue.origin, queue.properties, queue.created_ms,
        queue.updated_ms, queue.accessed_ms, queue.next_sequence, queue.counts, queue.size_bytes,
        queue.body_bytes, queue.topic, list(queue.rules.values()), queue.temporary,
        queue.by,
    )  # fmt: skip
    groups = (
        GroupPart(
            group.key, group.token.to_bytes(16, "big") if group.token else b"", group.until_ms,
            group.bound, group.state, group.state_ms,
        )
        for group in queue.groups.values()
    )  # fmt: skip
    yield from map(Groups, _batches(groups, lambda group: len(group.state or b"")))
    if queue.gives_runs:
        yield Turns(queue.turns, [])
        turns = ((group.key, group.since, group.turn) for group in queue.groups.values())
        for part in _batches(turns):
            yield Turns(queue.turns, part)
    messages = map(_as_kept, queue.messages.walk(0))
    yield from map(Messages, _batches(messages, _weight))
    for notes in _batches(sorted(queue.notes.items()), lambda _: PROPERTIES_BYTES_MAX):
        yield Extras(notes=notes)
    for lives in _batches(sorted(queue.lives.items())):
        yield Extras(lives=lives)
    for firsts in _batches(sorted(queue.firsts.items())):
        yield Extras(firsts=firsts)
    seen = (
        (key, until_ms, sequence if last_ms == until_ms else 0)
        for key, until_ms in queue.seen_order
        for last_ms, sequence in (queue.seen[key],)
    )
    for some in _batches(seen):
        yield Extras(seen=some)
    for ids in _batches(sorted(queue.seen_ids.items())):
        yield Extras(seen_ids=ids)


def _as_kept(message: Message) -> Message:
    if type(message.body) is int and message.state != LOCKED:
        return message
    kept = copy(message)
    if isinstance(kept.body, bytes):
        kept.body = len(kept.body)
    if kept.state == LOCKED:
        kept.lock = 0  # 128 bits; it is among the locks
    return kept


def _weight(message: Message) -> int:
    return len(message.envelope) + len(message.native or b"")


def _batches(items: Iterable[T], weight: Callable[[T], int] = lambda _: 0) -> Iterator[list[T]]:
    """Splits items into parts that are limited in count and in bytes."""
    some: list[T] = []
    size = 0
    for item in items:
        some.append(item)
        size += weight(item)
        if len(some) >= _PART or size >= _PART_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


# Restoring one.


def restore(parts: Iterable[bytes]) -> Namespaces:
    """The world as it was. Raises msgspec.DecodeError for what this version does not know."""
    world = Namespaces()
    state, queue = State(""), None
    for data in parts:
        part = _decoder.decode(data)
        if isinstance(part, Space):
            _finish(state)
            state, queue = _state(part), None
            world.states[state.name] = state
        elif isinstance(part, Contents):
            queue = _queue(state, part)
        elif isinstance(part, Locks):
            for lock in part.locks:
                _lock(state, lock)
        elif isinstance(part, Schedules):
            for schedule in part.schedules:
                _schedule(state, schedule)
        elif isinstance(part, Beside):
            for account in part.accounts:
                add_account(world, account)
            world.readers.update((each.name, each) for each in part.readers)
        else:
            assert queue is not None
            _fill(state, queue, part)
    _finish(state)
    world.names = sorted(world.states)
    count_all(world)
    return world


def _state(part: Space) -> State:
    era = part.era << 64
    return State(
        part.name, part.number, era, Tokens(era, part.key, part.number), part.started_ms,
        part.clock_ms, part.broker_ms, part.next_lock, part.turned_back,
        part.by,
    )  # fmt: skip


def _queue(state: State, part: Contents) -> Queue:
    levels = PRIORITIES if part.properties.order == "priority" else 1
    ready_lists = [ReadyList() for _ in range(levels)]
    queue = Queue(
        part.name, part.number, part.origin, part.properties, part.created_ms, part.updated_ms,
        part.accessed_ms, ready_lists, next_sequence=part.next_sequence, counts=part.counts,
        size_bytes=part.size_bytes, body_bytes=part.body_bytes, evicted_bytes=part.body_bytes,
        topic=part.topic, rules={rule.name: rule for rule in part.rules}, temporary=part.temporary,
        by=part.by,
    )  # fmt: skip
    queue.relays, queue.is_plain = relays(queue), is_plain(queue)
    queue.rule_bytes = bytes_of(part.rules)
    state.queues[queue.name] = state.numbered[queue.number] = queue
    if queue.origin is None:
        count_queue(state, queue, 1)
        state.folded[queue.name.casefold()] = queue.name
        watch_idleness(state, queue)
        if queue.topic is None:
            state.names.append(queue.name)
        else:
            state.queues[queue.topic].subscriptions[queue.name] = queue
    elif queue.name.endswith(TRANSFER):
        state.queues[queue.origin].transfer = queue
    else:
        state.queues[queue.origin].dead = queue
    return queue


def _fill(state: State, queue: Queue, part: Groups | Turns | Messages | Extras) -> None:
    if isinstance(part, Messages):
        _put(state, queue, part.messages)
    elif isinstance(part, Groups):
        for each in part.groups:
            token = int.from_bytes(each.token, "big")
            group = queue.groups[each.key] = Group(
                each.key, ReadyList(), token=token, until_ms=each.until_ms, bound=each.bound,
                state=each.state, state_ms=each.state_ms,
            )  # fmt: skip
            queue.state_bytes += len(each.state or b"")
            if token:
                state.sessions[token] = (queue, group)
                state.session_timers.add(group.until_ms, token)
    elif isinstance(part, Turns):
        queue.turns = part.turns
        for key, since, turn in part.groups:
            group = queue.groups[key]
            group.since, group.turn = since, turn
    else:
        for sequence, note in part.notes:
            queue.notes[sequence] = note
        queue.lives.update(part.lives)
        queue.firsts.update(part.firsts)
        queue.seen_ids.update(part.seen_ids)
        for key, until_ms, sequence in part.seen:
            if not queue.seen_order:
                state.forget_timers.add(until_ms, queue.number)
            queue.seen_order.append((key, until_ms))
            if sequence:
                queue.seen[key] = (until_ms, sequence)


def _put(state: State, queue: Queue, messages: list[Message]) -> None:
    chunks, ready = queue.messages.chunks, queue.ready_lists[0]
    plain = len(queue.ready_lists) == 1 and not queue.groups
    for message in messages:
        sequence = message.sequence
        chunk = chunks.get(sequence // CHUNK)
        if chunk is None:
            chunk = chunks[sequence // CHUNK] = {}
        chunk[sequence] = message
        if not message.body:
            message.body = b""
        if message.state == ACTIVE and plain:
            ready.append(sequence)
            if message.expires_ms:
                state.expiry_timers.add(message.expires_ms, message_key(queue, sequence))
        else:
            _place(state, queue, message)


def _place(state: State, queue: Queue, message: Message) -> None:
    """Sets up what belongs to the state of a message, but for a lock."""
    group = queue.group(message)
    key = message_key(queue, message.sequence)
    if group is not None:
        message.group = group.key  # one string for all
        group.messages += 1
        if message.state == DELAYED:
            group.delayed += 1
            if queue.gives_runs:
                hold_back(queue, group, message.sequence)
    if message.state == ACTIVE:
        ready = queue.ready_lists[queue.level(message)] if group is None else group.ready
        ready.append(message.sequence)
    elif message.state == SCHEDULED:
        state.due_timers.add(message.enqueued_ms, key)
    elif message.state == DELAYED:
        state.due_timers.add(message.lock, key)
    if message.expires_ms and message.state not in (LOCKED, SCHEDULED):
        state.expiry_timers.add(message.expires_ms, key)


def _lock(state: State, part: LockPart) -> None:
    queue, token = state.numbered[part.queue], int.from_bytes(part.token, "big")
    message = queue.messages[part.sequence]
    message.lock = token
    lock = state.locks[token] = Lock(
        message, queue, part.until_ms, part.bound, part.deferred, None, part.id, part.since_ms
    )
    group = queue.group(message)
    if group is not None:
        group.locks[token] = None
        if queue.properties.grouping == "session":
            lock.session = group
        elif queue.gives_runs:
            hold_back(queue, group, message.sequence)
    if lock.session is None:
        state.lock_timers.add(lock.until_ms, token)
    if lock.id is not None:
        state.ids.setdefault(lock.id, {})[token] = None


def _schedule(state: State, schedule: Schedule) -> None:
    state.schedules[schedule.name] = state.scheduled[schedule.number] = schedule
    count(state.held, SCHEDULES, "", schedule.by, 1)
    state.schedule_bytes += size_bytes(schedule.message)
    if schedule.next_ms:
        state.schedule_timers.add(schedule.next_ms, schedule.number)


def _finish(state: State) -> None:
    """When all of a namespace is there."""
    state.names.sort()
    for queue in state.queues.values():
        if queue.groups:
            rebuild_heads(queue)
