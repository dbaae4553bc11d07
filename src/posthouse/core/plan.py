"""Planning what a command does to messages and to those who wait for them.

A `Plan` holds the records so far and, for each queue touched, the few things that will be different
once they have been made so. The state itself is neither changed nor copied.

Two facts carry the planning. Unless a queue is in `state.hungry`, no message is ready while a
receiver that could have it waits; so what a command makes available is all there is to hand out.
And a message is in one state only, so that nothing falls due twice in one tick, but for a delayed
message that expires as it wakes.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from hashlib import blake2b
from heapq import heappop, heappush, merge
from itertools import islice, repeat
from typing import Any, Protocol, TypeAlias, cast

import msgspec

from posthouse.core.commands import (
    HAND_ON_BYTES_MAX,
    HAND_ON_MAX,
    HOPS_MAX,
    KEY_CHARS_MAX,
    LAST_MS,
    LOOK_MAX,
    SPARE_MAX,
    STEPS_MAX,
    Admitted,
    Answer,
    Delivery,
    Granted,
    Notice,
)
from posthouse.core.errors import QuotaExceeded
from posthouse.core.filters.problems import TooManyLooks
from posthouse.core.filters.view import Amendment, View
from posthouse.core.heaps import walk
from posthouse.core.index import CHUNK
from posthouse.core.message import (
    ACTIVE,
    DELAYED,
    LOCKED,
    NO_NOTE,
    NO_PROPERTIES,
    SCHEDULED,
    Message,
    NewMessage,
    Note,
    Properties,
    group_of,
    message_id,
    size_bytes,
)
from posthouse.core.model import Group, Lock, Queue, QueueProperties, Receiver, State
from posthouse.core.records import (
    Copies,
    DeadLettered,
    Dropped,
    Expired,
    Hungry,
    Locked,
    Record,
    Returned,
    Routed,
    Sent,
    SessionAccepted,
    SessionReleased,
    SessionRenewed,
    Taken,
    Touched,
    epitaph,
)
from posthouse.core.room import Fit, Used, is_limited, make_room, used
from posthouse.core.routing import Hit, Router, router_of

Delivered: TypeAlias = Delivery | Granted | Admitted | Notice

# Effort is counted in about microseconds.
_LOOKS_OF_EFFORT = 256
_FIRST_EFFORT = 12  # for the first copy that a queue gets, beside what each takes
_ROUNDS_MAX = 2 * HOPS_MAX + 2  # of handing on, with topics between the hops


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What a command does: records to evolve, the caller's answer, and what receivers get."""

    records: list[Record]
    answer: Answer = None
    deliveries: Sequence[Delivered] = ()


# The plan.


class Side:
    """One queue as it will be, as far as this command changes it."""

    __slots__ = (
        "added",
        "added_bytes",
        "arrived",
        "counted",
        "keys",
        "next_sequence",
        "notes",
        "oldest",
        "queue",
        "ready",
        "released",
        "removed",
        "undelayed",
        "unlocked",
        "used",
    )

    def __init__(self, queue: Queue, *, counted: bool) -> None:
        self.queue = queue
        self.counted = counted  # it or its topic is limited
        self.next_sequence = queue.next_sequence
        self.ready: list[Message] = []  # as they will be, with their final numbers and counts
        self.removed: set[int] = set()  # sequences that will be gone
        self.unlocked: dict[str, int] = {}  # groups to look at again: how many of their locks end
        self.undelayed: dict[str, int] = {}  # and how many of their delays
        self.released: set[str] = set()  # sessions whose lock ends
        self.used = False  # by what this command does, as far as idleness goes
        self.notes: dict[int, Note] = {}
        # Where it counts: messages that come, less those that go; and the sizes of such copies.
        self.added = self.added_bytes = 0
        self.arrived: dict[int, int] = {}
        self.oldest = 0  # what is before that and could give way to new messages does so
        self.keys: dict[str, int] = {}  # of duplicate detection, with their sequences

    def remove(self, messages: Sequence[Message]) -> None:
        """These will be gone, and leave the room they take up."""
        self.removed.update(sequences_of(messages))
        if self.counted:
            self.added -= len(messages)
            self.added_bytes -= sum(map(size_bytes, messages))
            for message in messages:
                self.arrived.pop(message.sequence, None)

    def give_up(self, sequences: Sequence[int]) -> None:
        """Copies that have come with this command are not to stay."""
        for sequence in sequences:
            self.added -= 1
            self.added_bytes -= self.arrived.pop(sequence)
        gone, first = set(sequences), 0
        for message in self.ready:  # mostly they are the first, and few of many
            if message.sequence not in gone:
                break
            gone.remove(message.sequence)
            first += 1
        del self.ready[:first]
        if gone:
            self.ready = [message for message in self.ready if message.sequence not in gone]

    def numbers(self, count: int) -> int:
        """The first of `count` new sequence numbers."""
        first = self.next_sequence
        self.next_sequence += count
        return first

    def delayed(self, group: Group) -> bool:
        """Whether the group will still be held back by a delayed message."""
        return group.delayed > self.undelayed.get(group.key, 0)

    def note(self, sequence: int) -> Note | None:
        return self.notes.get(sequence) or self.queue.notes.get(sequence)


class Plan:
    """What one command will do."""

    __slots__ = (
        "deliveries",
        "effort",
        "ending",
        "leaving",
        "may_refuse",
        "next_lock",
        "noted_bytes",
        "now_ms",
        "put_back",
        "records",
        "relayed",
        "sated",
        "sides",
        "stalled",
        "state",
    )

    def __init__(self, state: State, now_ms: int) -> None:
        self.state = state
        self.now_ms = now_ms
        self.records: list[Record] = []
        self.deliveries: list[Delivered] = []
        self.next_lock = state.next_lock
        self.leaving: set[int] = set()  # receivers that are not there any more
        self.ending: set[str] = set()  # temporary subscriptions that end
        self.sides: dict[str, Side] = {}
        self.sated: set[str] = set()  # queues with which ticks will not go on,
        self.put_back: set[str] = set()  # and with which they will, because this command does not
        self.stalled: list[str] = []  # of those, who hands on no more before something changes
        self.relayed = False  # what came into topics and queues that forward was handed on
        self.may_refuse = False  # a copy for which there is no room refuses the whole command
        self.effort = self.noted_bytes = 0  # of handing on so far

    def side(self, queue: Queue) -> Side:
        side = self.sides.get(queue.name)
        if side is None:
            topic = None if queue.topic is None else self.state.queues[queue.topic]
            counted = is_limited(queue) or (topic is not None and is_limited(topic))
            side = self.sides[queue.name] = Side(queue, counted=counted)
        return side

    def occupied(self, queue: Queue) -> Used:
        """How much of a queue is, with what this command adds and takes."""
        messages, size = used(queue)
        for name in (queue.name, *(queue.subscriptions.keys() & self.sides.keys())):
            side = self.sides.get(name)
            if side is not None:
                messages, size = messages + side.added, size + side.added_bytes
        for name in queue.subscriptions.keys() & self.ending:
            ending = used(queue.subscriptions[name])
            messages, size = messages - ending.messages, size - ending.size_bytes
        return Used(messages, size)

    def make_room(self, queue: Queue, sizes: Sequence[int]) -> Fit:
        """Raises QuotaExceeded."""
        side, now = self.side(queue), self.occupied(queue)
        fit = make_room(queue, now, sizes, side.removed, side.arrived, side.oldest)
        if fit.dropped:
            side.oldest = fit.dropped[-1].sequence + 1
        return fit

    def is_hungry(self, queue: Queue) -> bool:
        """Whether a later tick goes on with what is ready in this queue."""
        name = queue.name
        return name in self.put_back or (name in self.state.hungry and name not in self.sated)

    @property
    def is_spent(self) -> bool:
        """Whether this command has handed on as much as one may."""
        return self.effort >= HAND_ON_MAX or self.noted_bytes >= HAND_ON_BYTES_MAX // 8

    def put_off(self, queue: Queue) -> None:
        """A later tick goes on with what is ready in this queue."""
        self.records.append(Hungry(queue.name, more=True))
        self.put_back.add(queue.name)

    def outcome(self, answer: Answer = None) -> Outcome:
        """Hands out what has become available, and closes the plan."""
        if not self.relayed:
            relay(self)
        for side in list(self.sides.values()):
            queue = side.queue
            if (queue.waiting or queue.accepting) and not self.is_hungry(queue):
                _hand_out(self, side)
        return Outcome(self.records, answer, self.deliveries)

    def touch(self, queue: Queue) -> None:
        """Settling and renewing is use of a queue, where that matters."""
        matters = queue.origin is not None or queue.topic is not None
        if matters or queue.properties.idle_delete_ms is not None:
            self.side(queue).used = True
            self.records.append(Touched(queue.name, self.now_ms))

    def deliver(self, queue: Queue, to: Receiver, messages: list[Message]) -> None:
        """Hands these messages to a receiver that waits or has got credit."""
        side = self.side(queue)
        note_of = side.note if side.notes or queue.notes else None
        record, deliveries = deliver(
            self.state, queue, to, messages, note_of, self.next_lock, self.now_ms
        )
        self.records.append(record)
        self.deliveries += deliveries
        self.next_lock += len(messages)


class Taker(Protocol):
    """What a delivery has to know of who gets it: a receiver, or a command that asks once."""

    @property
    def receiver(self) -> int: ...
    @property
    def delete(self) -> bool: ...
    @property
    def lock_ms(self) -> int: ...
    @property
    def bound(self) -> int: ...
    @property
    def by_id(self) -> bool: ...
    @property
    def session(self) -> int: ...


def deliver(
    state: State,
    queue: Queue,
    to: Taker,
    messages: list[Message],
    note_of: Callable[[int], Note | None] | None,
    first_lock: int,
    now_ms: int,
) -> tuple[Locked | Taken, list[Delivery]]:
    """Locks these messages, or takes them out where that was asked for."""
    receiver = to.receiver
    until_ms = 0
    tokens: Iterable[int] = repeat(0)
    if not to.delete:
        tokens = state.tokens.several(first_lock, len(messages))
        if to.session:
            until_ms = state.sessions[to.session][1].until_ms
        else:
            until_ms = now_ms + (to.lock_ms or queue.properties.lock_ms)
    sequences = [message.sequence for message in messages]
    counts = [message.count + 1 for message in messages]
    waited_ms = [now_ms - message.enqueued_ms for message in messages]
    notes = repeat(None) if note_of is None else map(note_of, sequences)
    deliveries = [
        Delivery(receiver, token, until_ms, each, message, note)
        for token, each, message, note in zip(tokens, counts, messages, notes, strict=False)
    ]
    if counts.count(1) == len(counts):
        counts = []
    if to.delete:
        return Taken(queue.name, now_ms, sequences, receiver, waited_ms, counts), deliveries
    ids = [_short_id(message) for message in messages] if to.by_id else None
    record = Locked(
        queue.name, now_ms, sequences, first_lock, until_ms, receiver, to.bound, ids, waited_ms,
        counts,
    )  # fmt: skip
    return record, deliveries


def counts_of(messages: list[Message]) -> list[int]:
    """How often each was delivered; nothing where each was once."""
    counts = [message.count for message in messages]
    return [] if counts.count(1) == len(counts) else counts


def settled_ms_of(state: State, messages: list[Message], now_ms: int) -> list[int | None]:
    """How long each has been with its receiver; None where that is not known, or it is not."""
    locks = state.locks
    return [
        now_ms - lock.since_ms
        if message.state == LOCKED and (lock := locks[message.lock]).since_ms
        else None
        for message in messages
    ]


def _short_id(message: Message) -> str:
    """The id by which a lock can be settled; one that is too long cannot serve."""
    id = message_id(message.envelope)
    return id if len(id) <= KEY_CHARS_MAX else ""


def _hand_out(plan: Plan, side: Side) -> None:
    """Gives what this plan makes available in a queue to those who wait there."""
    queue = side.queue
    if not can_receive(queue.properties):
        return
    grouping = queue.properties.grouping
    if grouping == "session":
        _hand_out_sessions(plan, side)
        return
    runs = [iter((m,)) for m in side.ready if m.group is None or grouping == "none"]
    if grouping == "group":
        in_groups = _by_group(m for m in side.ready if m.group is not None)
        for key in side.unlocked | dict.fromkeys(in_groups, 0):
            group, added = queue.groups.get(key), in_groups.get(key, [])
            if group is None:
                runs.append(_run(side, None, added))
            elif len(group.locks) == side.unlocked.get(key, 0) and not side.delayed(group):
                runs.append(_run(side, group, added))
    deal(plan, queue, runs)


def deal(plan: Plan, queue: Queue, runs: Iterable[Iterator[Message]]) -> None:
    """One message each to the waiting receivers in turn, while they have credit.

    A run is what a group has, in order: its next message is free once one is taken out for good.
    """
    heap: list[tuple[int, int, Message, Iterator[Message]]] = []

    def offer(run: Iterator[Message]) -> None:
        message = next(run, None)
        if message is not None and not is_expired(message, plan.now_ms):
            heappush(heap, (queue.level(message), message.sequence, message, run))

    for run in runs:
        offer(run)
    waiting = (r for r in queue.waiting.values() if r.receiver not in plan.leaving)
    again: deque[tuple[Receiver, int]] = deque()  # those served in this round, with credit left
    given: dict[int, tuple[Receiver, list[Message]]] = {}
    while heap:
        receiver = next(waiting, None)
        if receiver is not None:
            credit = receiver.credit
        elif again:
            receiver, credit = again.popleft()
        else:
            break
        _, _, message, run = heappop(heap)
        _, hand = given.pop(receiver.receiver, (receiver, []))
        hand.append(message)
        given[receiver.receiver] = (receiver, hand)  # last served, last in the next turn
        if credit > 1:
            again.append((receiver, credit - 1))
        if receiver.delete:
            offer(run)
    for receiver, hand in given.values():
        plan.deliver(queue, receiver, hand)


def _run(side: Side, group: Group | None, added: list[Message]) -> Iterator[Message]:
    """What is ready in a group as this plan leaves it, in order."""
    left = () if group is None else (s for s in group.ready.walk() if s not in side.removed)
    there = (side.queue.messages[sequence] for sequence in left)
    return merge(sorted(added, key=_sequence), there, key=_sequence)


def _hand_out_sessions(plan: Plan, side: Side) -> None:
    """To the holders of sessions what is new in them; to waiting accepts the sessions set free."""
    queue = side.queue
    by_group = _by_group(side.ready)
    free = []
    for key in side.unlocked | dict.fromkeys(by_group, 0):
        group = queue.groups.get(key)
        run = _run(side, group, by_group.get(key, []))
        if group is not None and side.delayed(group):
            continue
        if group is not None and group.token and key not in side.released:
            if group.until_ms > plan.now_ms:
                deal_in_session(plan, queue, group, run)
            continue
        head = next(run, None)
        if head is not None and not is_expired(head, plan.now_ms):
            free.append((queue.level(head), head.sequence, key))
    accepting = (r for r in queue.accepting.values() if r.receiver not in plan.leaving)
    for (_, _, key), receiver in zip(sorted(free), accepting, strict=False):
        plan.deliveries.append(grant(plan, queue, key, receiver))


def deal_in_session(plan: Plan, queue: Queue, group: Group, run: Iterator[Message]) -> None:
    """What is ready in a session to those who read it."""
    fresh = (message for message in run if not is_expired(message, plan.now_ms))
    for reader in group.readers:
        receiver = queue.waiting.get(reader)
        if receiver is not None and reader not in plan.leaving:
            hand = list(islice(fresh, receiver.credit))
            if hand:
                plan.deliver(queue, receiver, hand)


def grant(plan: Plan, queue: Queue, session: str, to: Receiver) -> Granted:
    until_ms = plan.now_ms + (to.lock_ms or queue.properties.lock_ms)
    lock = plan.next_lock
    plan.next_lock += 1
    plan.records.append(
        SessionAccepted(
            queue.name, plan.now_ms, session, lock, until_ms, to.receiver, to.bound_session
        )
    )
    return Granted(to.receiver, session, plan.state.tokens.one(lock), until_ms)


def _by_group(messages: Iterable[Message]) -> dict[str, list[Message]]:
    groups: dict[str, list[Message]] = {}
    for message in messages:
        assert message.group is not None
        groups.setdefault(message.group, []).append(message)
    return groups


def _sequence(message: Message) -> int:
    return message.sequence


# Picking.


def can_receive(properties: QueueProperties) -> bool:
    return properties.status in ("active", "send-disabled")


def can_send(properties: QueueProperties) -> bool:
    return properties.status in ("active", "receive-disabled")


def is_expired(message: Message, now_ms: int) -> bool:
    return message.expires_ms != 0 and message.expires_ms <= now_ms


def pick(queue: Queue, sequences: Iterable[int], limit: int, now_ms: int) -> list[Message]:
    """The first `limit` of these messages that are not expired; those wait for the next tick."""
    messages, picked = queue.messages, []
    for sequence in islice(sequences, LOOK_MAX):
        message = messages[sequence]
        if message.expires_ms == 0 or message.expires_ms > now_ms:
            picked.append(message)
            if len(picked) == limit:
                break
    return picked


def pick_ready(queue: Queue, limit: int, now_ms: int, *, delete: bool = False) -> list[Message]:
    """The next `limit` messages for a receiver of any kind."""
    if not queue.groups:
        chunks: dict[int, dict[int, Message]] = queue.messages.chunks
        picked: list[Message] = []
        for lane in queue.lanes:
            for sequence in lane.head(limit - len(picked)):
                message = chunks[sequence // CHUNK][sequence]
                if message.expires_ms and message.expires_ms <= now_ms:
                    every = (s for each in queue.lanes for s in each.walk())
                    return pick(queue, every, limit, now_ms)
                picked.append(message)
            if len(picked) == limit:
                break
        return picked
    in_lanes = ((level, s) for level, lane in enumerate(queue.lanes) for s in lane.walk())
    in_order = merge(in_lanes, ((level, s) for level, s, _ in free_heads(queue)))
    if delete and queue.groups:
        return pick(queue, _whole_groups(queue, in_order, now_ms), limit, now_ms)
    return pick(queue, (sequence for _, sequence in in_order), limit, now_ms)


def pick_all(queue: Queue, limit: int, now_ms: int) -> list[Message]:
    """The next `limit` messages to be handed on, for which no group waits."""
    if not queue.groups:
        return pick_ready(queue, limit, now_ms)
    ready = (m for m in queue.messages.walk(0) if m.state == ACTIVE and not is_expired(m, now_ms))
    return list(islice(ready, limit))


def _whole_groups(queue: Queue, in_order: Iterator[tuple[int, int]], now_ms: int) -> Iterator[int]:
    """What can be taken out for good: behind the head of a group comes the rest of it."""
    runs: list[tuple[int, int, Iterator[int]]] = []  # a heap: what follows in groups begun

    def follow(run: Iterator[int]) -> None:
        sequence = next(run, None)
        if sequence is not None and not is_expired(queue.messages[sequence], now_ms):
            heappush(runs, (queue.level(queue.messages[sequence]), sequence, run))

    head = next(in_order, None)
    while head is not None or runs:
        if head is not None and (not runs or head < runs[0][:2]):
            message = queue.messages[head[1]]
            head = next(in_order, None)
            group = queue.group(message)
            if group is None:
                yield message.sequence
            else:
                follow(group.ready.walk())
        else:
            _, sequence, run = heappop(runs)
            yield sequence
            follow(run)


def pick_in_session(queue: Queue, group: Group, limit: int, now_ms: int) -> list[Message]:
    """The next `limit` messages for who holds a session."""
    return [] if group.delayed else pick(queue, group.ready.walk(), limit, now_ms)


def free_heads(queue: Queue) -> Iterator[tuple[int, int, str]]:
    """The heads of groups that may be taken, in order."""
    last = None
    for head in walk(queue.heads):
        group = queue.groups.get(head[2])
        if head == last or group is None or queue.busy(group):
            continue
        if group.ready.first() == head[1]:
            yield head
        last = head


def free_sessions(queue: Queue, now_ms: int) -> Iterator[str]:
    """The sessions that can be accepted, in order."""
    for _, sequence, key in free_heads(queue):
        if not is_expired(queue.messages[sequence], now_ms):
            yield key


# Handing on.


class _Into:
    """The copies that one queue gets."""

    __slots__ = ("expires_ms", "first", "notes", "sequences", "side")

    def __init__(self, side: Side) -> None:
        self.side = side
        self.first = side.next_sequence
        self.sequences: list[int] = []
        self.expires_ms: list[int] = []
        self.notes: list[Note | None] = []

    def record(self) -> Copies:
        return Copies(
            self.side.queue.name, self.first, self.sequences,
            self.expires_ms if any(self.expires_ms) else None,
            self.notes if any(note is not None for note in self.notes) else None,
        )  # fmt: skip


class _Relay:
    """What one queue hands on, in one record."""

    def __init__(self, plan: Plan, source: Side) -> None:
        self.plan = plan
        self.source = source
        self._into: dict[str, _Into] = {}
        self._late: dict[str, list[int]] = {}  # copies that there is no room for, or not any more
        self.partly: dict[int, int] = {}  # as in the record

    def copy(self, message: Message, target: Queue, note: Note | None, ttl_ms: int | None) -> None:
        """One copy, where there is room for it or something gives way. Raises QuotaExceeded."""
        plan, side, late = self.plan, self.plan.side(target), False
        size = size_bytes(message) if side.counted else 0
        if is_limited(target):
            fit = plan.make_room(target, [size])
            if fit.dropped:
                drop(plan, target, fit.dropped)
            if fit.arrived:
                side.give_up(fit.arrived)
                self._late.setdefault(target.name, []).extend(fit.arrived)
            if fit.taken:
                side.arrived[side.next_sequence] = size
            elif target.properties.overflow == "to-dead-letter":
                self.bury(message, target, note, "QueueFull", "There was no room in the queue.")
                return
            else:
                late = True
                self._late.setdefault(target.name, []).append(side.next_sequence)
        if side.counted and not late:
            side.added += 1
            side.added_bytes += size
        expires_ms = _expiry(message, target, ttl_ms, plan.now_ms)
        self._put(message, side, note, expires_ms, late=late)

    def bury(
        self, message: Message, target: Queue, note: Note | None, reason: str, text: str
    ) -> None:
        """A copy among the dead letters of the queue it was meant for."""
        assert target.dead is not None
        self._put_apart(message, target.dead, note, reason, text)

    def turn_back(self, message: Message, note: Note | None, reason: str, text: str) -> bool:
        """What could not be handed on; False where it has to stay where it is."""
        queue = self.source.queue
        if queue.transfer is None:
            return False
        self._put_apart(message, queue.transfer, note, reason, text)
        return True

    def _put_apart(
        self, message: Message, where: Queue, note: Note | None, reason: str, text: str
    ) -> None:
        """Among dead letters, or what could not be forwarded."""
        note = msgspec.structs.replace(
            note or NO_NOTE, reason=reason, description=text, source=where.origin,
            source_sequence=message.sequence, dead_ms=self.plan.now_ms,
        )  # fmt: skip
        self._put(message, self.plan.side(where), note, 0)

    def _put(
        self,
        message: Message,
        side: Side,
        note: Note | None,
        expires_ms: int,
        *,
        late: bool = False,
    ) -> None:
        queue = side.queue
        into = self._into.get(queue.name)
        if into is None:
            into = self._into[queue.name] = _Into(side)
            side.used = True
            self.plan.effort += _FIRST_EFFORT
        self.plan.effort += 1
        if note is not None:
            self.plan.noted_bytes += _noted_bytes(note)
        sequence = side.numbers(1)
        into.sequences.append(message.sequence)
        into.expires_ms.append(expires_ms)
        into.notes.append(note)
        if (queue.waiting or queue.accepting or queue.relays) and not late:
            if note is not None:
                side.notes[sequence] = note
            group = group_of(message, note)
            side.ready.append(
                as_active(
                    message, sequence=sequence, count=0, enqueued_ms=self.plan.now_ms,
                    expires_ms=expires_ms, group=group,
                )
            )  # fmt: skip

    def close(self, leaving: list[Message]) -> None:
        side, copies = self.source, [into.record() for into in self._into.values()]
        if leaving or copies or self.partly:
            side.remove(leaving)
            routed = Routed(
                side.queue.name, self.plan.now_ms, sequences_of(leaving), copies, {}, self.partly
            )
            self.plan.records.append(routed)
        self.plan.records += [Dropped(name, late) for name, late in self._late.items()]


def _noted_bytes(note: Note) -> int:
    """What a note takes where it is written down, with what goes around it."""
    return 64 + len(msgspec.msgpack.encode(note))


def _expiry(message: Message, target: Queue, ttl_ms: int | None, now_ms: int) -> int:
    """When a copy expires: as the message does, or earlier where the queue has it so."""
    expires_ms = message.expires_ms if ttl_ms is None else now_ms + ttl_ms
    least = target.properties.ttl_ms
    if least is not None:
        expires_ms = min(expires_ms or now_ms + least, now_ms + least)
    return min(expires_ms, LAST_MS)


def relay(plan: Plan) -> None:
    """Hands on what has come into topics and into queues that forward, as far as it goes."""
    plan.relayed = True
    staying: list[tuple[Side, list[Message]]] = []
    rounds = 0
    while sides := _with_more(plan):
        rounds += 1
        assert rounds <= _ROUNDS_MAX, "it is forwarded for ever"
        staying += [(side, hand_on(plan, side)) for side in sides]
    for side, messages in staying:
        side.ready += messages


def _with_more(plan: Plan) -> list[Side]:
    """Topics and queues that forward in which something is ready."""
    return [
        side
        for side in plan.sides.values()
        if side.ready and side.queue.relays and not plan.is_hungry(side.queue)
    ]


def hand_on(plan: Plan, side: Side) -> list[Message]:
    """What is ready in one of them, as much as one command may. Returns what has to stay."""
    messages, side.ready = side.ready, []
    queue = side.queue
    if queue.properties.delivery not in ("competing", "topic") and not has_takers(plan, queue):
        return messages  # it keeps what comes while nobody is there
    handed = _Relay(plan, side)
    leaving: list[Message] = []
    staying: list[Message] = []
    spares = plan.state.copying != "free"
    for message in messages:
        if plan.is_spent:
            plan.put_off(queue)
            break
        if spares and not _has_place(plan, side, message):
            plan.put_off(queue)
            plan.stalled.append(queue.name)
            break
        if queue.properties.delivery != "competing":
            if not _publish(handed, message):
                plan.put_off(queue)
                break
            leaving.append(message)
        else:
            (leaving if _forward(handed, message) else staying).append(message)
    handed.close(leaving)
    return staying


def has_takers(plan: Plan, queue: Queue) -> bool:
    """Whether anybody is attached to a fan-out queue, and stays."""
    return any(name not in plan.ending for name in queue.subscriptions)


def _has_place(plan: Plan, side: Side, message: Message) -> bool:
    """Where copies are to be few: whether nobody who would get one has many messages.

    So what is held back in the middle of a chain goes on as its end is received, though that makes
    no room; and of copies there are never more than a few for each queue.
    """
    state, queue = plan.state, side.queue
    if queue.origin is not None and state.queues[queue.origin].temporary:
        return True  # it ends with its receiver, and so would the dead letters in it
    if state.copying == "none":
        return False
    if queue.properties.delivery != "competing":
        hits = _hits(plan, side, message)
        if hits is None:
            return True  # that is looked at for each of them
        targets = [hit.queue for hit in hits if hit.queue.number > message.lock]
    else:
        target = state.queues.get(queue.properties.forward_to or "")
        targets = [] if target is None else [target]
    return all(_filled(plan, each) < SPARE_MAX for each in targets)


def _filled(plan: Plan, queue: Queue) -> int:
    """What is in a queue and what belongs to it, and is not to come later by itself."""
    count, parts = 0, [queue, queue.dead, queue.transfer]
    if queue.temporary and queue.topic is not None:
        parts.append(plan.state.queues[queue.topic].dead)  # its dead letters are there at once
    for each in parts:
        if each is not None:
            count += sum(each.counts) - each.counts[SCHEDULED]
            if each.name in plan.sides:
                count += plan.sides[each.name].next_sequence - each.next_sequence
    return count


def _hits(plan: Plan, source: Side, message: Message) -> list[Hit] | None:
    """The copies that subscriptions of a topic are to get; None: they have to be asked in parts."""
    router = router_of(source.queue)
    hits = router.all
    if router.asks:
        if router.effort > HAND_ON_MAX:
            return None
        plan.effort += router.effort
        view = _view(plan, source.queue, message, source.note(message.sequence))
        try:
            hits = router.match(view)
        except TooManyLooks:
            return None
        finally:
            plan.effort += view.looks // _LOOKS_OF_EFFORT
    else:
        plan.effort += router.effort
    return [hit for hit in hits if _can_have(plan, hit)]


def _can_have(plan: Plan, hit: Hit) -> bool:
    return can_send(hit.queue.properties) and hit.queue.name not in plan.ending


def _publish(handed: _Relay, message: Message) -> bool:
    """Gives the subscriptions of a topic their copies; False: part of them, as many as it may."""
    plan, source = handed.plan, handed.source
    hits = _hits(plan, source, message)
    if hits is None:
        return _publish_in_parts(handed, message, _ask_each(plan, source, message))
    note = source.note(message.sequence)
    is_much = len(hits) > HAND_ON_MAX // _FIRST_EFFORT
    if message.lock or is_much or note is not None or any(hit.amendment for hit in hits):
        return _publish_in_parts(handed, message, _in_order(hits, message.lock))
    for hit in hits:
        _give_copy(handed, message, hit, None)
    return True


_Part: TypeAlias = tuple[Queue, list[Hit] | None]


def _publish_in_parts(handed: _Relay, message: Message, parts: Iterable[_Part]) -> bool:
    """Subscription by subscription, one at least, until this command has done what one may."""
    plan, number = handed.plan, message.lock
    note, spares = handed.source.note(message.sequence), plan.state.copying != "free"
    for queue, hits in parts:
        if hits is None:
            break
        if spares and hits and _filled(plan, queue) >= SPARE_MAX:
            if number == message.lock:  # nothing was done for it
                plan.stalled.append(handed.source.queue.name)
            break
        for hit in hits:
            _give_copy(handed, message, hit, note)
        number = queue.number
        if plan.is_spent:
            break
    else:
        return True
    if number != message.lock:
        handed.partly[message.sequence] = number
    return False


def _in_order(hits: list[Hit], after: int) -> Iterator[_Part]:
    """Those of subscriptions with a higher number."""
    found: dict[int, list[Hit]] = {}
    for hit in hits:
        if hit.queue.number > after:
            found.setdefault(hit.queue.number, []).append(hit)
    for number in sorted(found):
        yield found[number][0].queue, found[number]


def _ask_each(plan: Plan, source: Side, message: Message) -> Iterator[_Part]:
    """What the rules of one subscription after the other say of a message."""
    view = _view(plan, source.queue, message, source.note(message.sequence))
    for queue, effort, hits in router_of(source.queue).match_each(view, message.lock):
        plan.effort += effort + view.looks // _LOOKS_OF_EFFORT
        view.looks = 0
        yield queue, hits and [hit for hit in hits if _can_have(plan, hit)]


_NONE: dict[str, list[int]] = {}


def publish_plainly(state: State, topic: Queue, record: Sent) -> list[Record] | None:
    """What is sent to a topic whose subscriptions take it as it is, and where nobody waits.

    The way of most. None: it has to be planned.
    """
    messages, first, count = record.messages, record.first_sequence, len(record.messages)
    for new in messages:
        if new.due_ms or new.expires_ms:
            return None
    router, some = router_of(topic), _NONE
    hits = router.all
    if len(hits) > HAND_ON_MAX or router.effort > HAND_ON_MAX:
        return None
    if router.asks:
        try:
            hits, some, count = _matched(state, topic, router, record)
        except TooManyLooks:
            return None
    elif count * len(hits) > HAND_ON_MAX:
        count = -(-HAND_ON_MAX // len(hits))
    alike = {}
    for queue, amendment, problem in hits:
        if (
            amendment is not None
            or problem
            or not queue.is_plain
            or queue.waiting
            or queue.accepting
        ):
            return None
        alike[queue.name] = queue.next_sequence
    copies = [Copies(name, alike.pop(name), each) for name, each in some.items()]
    leaving = list(range(first, first + count))
    routed = Routed(topic.name, record.time_ms, leaving, copies, alike)
    if count < len(messages):
        return [routed, Hungry(topic.name, more=True)]
    return [routed]


def _matched(
    state: State, topic: Queue, router: Router, record: Sent
) -> tuple[list[Hit], dict[str, list[int]], int]:
    """Who gets something; what that is, by name, for who does not get all that was looked at.

    And how many of the messages that is. Raises TooManyLooks.
    """
    hits: list[Hit] = []
    some: dict[str, list[int]] = {}
    count = len(record.messages)
    effort = looked = 0
    for sequence, new in enumerate(record.messages, record.first_sequence):
        if effort >= HAND_ON_MAX:
            break
        view = _view_of(state, topic, new, sequence, record.time_ms)
        found = router.match(view)
        effort += router.effort + len(found) + view.looks // _LOOKS_OF_EFFORT
        looked += 1
        hits += found
        if count > 1:
            for hit in found:
                some.setdefault(hit.queue.name, []).append(sequence)
    return hits, {name: each for name, each in some.items() if len(each) < looked}, looked


def _view_of(state: State, topic: Queue, new: NewMessage, sequence: int, now_ms: int) -> View:
    """Of a message that does not expire."""
    return View(
        new.envelope, new_id=_NewIds(state.era, topic.number, sequence), sequence=sequence,
        enqueued_sequence=sequence, enqueued_ms=now_ms, size=size_bytes(new),
    )  # fmt: skip


def _give_copy(handed: _Relay, message: Message, hit: Hit, note: Note | None) -> None:
    queue, ttl_ms = hit.queue, None
    if hit.problem:
        if queue.properties.dead_letter_filter_errors:
            handed.bury(message, queue, note, "FilterException", hit.problem)
        return
    if hit.amendment is not None:
        properties, removed, changed = hit.amendment
        fields = {name: cast("str | None", changed[name]) for name in changed if name != "ttl_ms"}
        ttl_ms = cast("int | None", changed.get("ttl_ms"))
        note = (note or NO_NOTE).amended(properties, removed, fields)
    if note is not None and handed.plan.noted_bytes >= HAND_ON_BYTES_MAX:
        text = "The actions of its topic's rules write too much of one message."
        handed.bury(message, queue, None, "FilterException", text)
        return
    most = queue.properties.max_message_bytes
    if most is not None and size_bytes(message) > most:
        text = f"The subscription takes messages of at most {most} bytes."
        handed.bury(message, queue, note, "MessageTooLarge", text)
        return
    if queue.properties.requires_session and group_of(message, note) is None:
        handed.bury(message, queue, note, "Session id is null.", "The subscription has sessions.")
        return
    try:
        handed.copy(message, queue, note, ttl_ms)
    except QuotaExceeded as full:
        if handed.plan.may_refuse:
            raise
        handed.bury(message, queue, note, "QuotaExceeded", str(full))


def _view(plan: Plan, topic: Queue, message: Message, note: Note | None) -> View:
    amendment = None
    if note is not None:
        amendment = Amendment(note.properties, note.removed, dict(note.fields))
    return View(
        message.envelope, new_id=_NewIds(plan.state.era, topic.number, message.sequence),
        amendment=amendment, sequence=message.sequence, enqueued_sequence=message.sequence,
        enqueued_ms=plan.now_ms, expires_ms=message.expires_ms, size=size_bytes(message),
        ttl_ms=message.expires_ms - plan.now_ms if message.expires_ms else None,
    )  # fmt: skip


class _NewIds:
    """Ids that no other message gets, without chance: they come of where it stands."""

    __slots__ = ("_count", "_seed")

    def __init__(self, *seed: int) -> None:
        self._seed = seed
        self._count = 0

    def __call__(self) -> bytes:
        self._count += 1
        return blake2b(repr((*self._seed, self._count)).encode(), digest_size=16).digest()


def _forward(handed: _Relay, message: Message) -> bool:
    """Whether it leaves: to where its queue forwards, or to what could not be forwarded."""
    plan, source = handed.plan, handed.source
    note = source.note(message.sequence)
    name = source.queue.properties.forward_to
    assert name is not None
    target = plan.state.queues.get(name)
    if target is None:
        return handed.turn_back(message, note, "TargetNotFound", f"There is no entity {name!r}.")
    properties, size = target.properties, size_bytes(message)
    if not can_send(properties):
        return handed.turn_back(message, note, "TargetDisabled", f"{name!r} is disabled.")
    if properties.requires_session and group_of(message, note) is None:
        text = f"{name!r} has sessions, and the message is of none."
        return handed.turn_back(message, note, "Session id is null.", text)
    if properties.max_message_bytes is not None and size > properties.max_message_bytes:
        return handed.turn_back(message, note, "MessageTooLarge", f"{name!r} takes smaller ones.")
    try:
        handed.copy(message, target, note, None)
    except QuotaExceeded as full:
        return handed.turn_back(message, note, "QuotaExceeded", str(full))
    return True


def drop(plan: Plan, queue: Queue, messages: Sequence[Message]) -> None:
    """Out of a full queue."""
    side = plan.side(queue)
    leave_groups(side, messages)
    side.remove(messages)
    plan.records.append(Dropped(queue.name, sequences_of(messages)))


# How a delivery ends.


def sequences_of(messages: Iterable[Message]) -> list[int]:
    return [message.sequence for message in messages]


def as_active(message: Message, **changes: Any) -> Message:
    """A message as it will be: active, and otherwise changed."""
    changed = copy(message)
    changed.state, changed.lock = ACTIVE, 0
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


def by_queue(state: State, locks: Iterable[Lock]) -> list[tuple[Queue, list[Message]]]:
    """The locked messages of each queue, those of deleted queues left out."""
    found: dict[str, tuple[Queue, list[Message]]] = {}
    for lock in locks:
        if state.queues.get(lock.queue.name) is lock.queue:
            _, messages = found.setdefault(lock.queue.name, (lock.queue, []))
            messages.append(lock.message)
    return list(found.values())


def leave_groups(side: Side, messages: Iterable[Message]) -> None:
    """These leave the states in which they may hold the rest of their groups back."""
    if side.queue.groups:
        for message in messages:
            key = message.group
            if key is not None:
                locked, delayed = message.state == LOCKED, message.state == DELAYED
                side.unlocked[key] = side.unlocked.get(key, 0) + locked
                side.undelayed[key] = side.undelayed.get(key, 0) + delayed


def end(
    plan: Plan,
    queue: Queue,
    messages: list[Message],
    *,
    counted: bool,
    properties: Properties = NO_PROPERTIES,
    delay_ms: int = 0,
) -> None:
    """Deliveries end unsettled: back to their places, or out where they may not come back."""
    side, now_ms = plan.side(queue), plan.now_ms
    plan.touch(queue)
    leave_groups(side, messages)
    properties_of = queue.properties
    most = properties_of.max_delivery if counted and queue.origin is None else 0
    worn = [m for m in messages if most and m.count >= most]
    rest = [m for m in messages if not most or m.count < most]
    back = [m for m in rest if not is_expired(m, now_ms)]
    stale = [m for m in rest if is_expired(m, now_ms)]
    backoff_ms = properties_of.backoff_ms if counted and not delay_ms else []
    for wait_ms, some in _by_attempt(back, backoff_ms) if backoff_ms else [(delay_ms, back)]:
        if some:
            until_ms = now_ms + wait_ms if wait_ms else 0
            record = Returned(
                queue.name, sequences_of(some), not counted, until_ms, properties,
                settled_ms_of(plan.state, some, now_ms), counts_of(some),
            )  # fmt: skip
            plan.records.append(record)
            for message in some:
                _give_back(plan, side, message, record)
    if worn:
        text = f"Message could not be consumed after {most} delivery attempts."
        bury(plan, queue, worn, "MaxDeliveryCountExceeded", text, properties)
    if stale:
        _drop(plan, queue, stale)


def _by_attempt(
    messages: list[Message], backoff_ms: list[int]
) -> Iterable[tuple[int, list[Message]]]:
    """With how long each is held back: the longer, the more often it was delivered."""
    found: dict[int, list[Message]] = {}
    for message in messages:
        attempt = max(1, min(message.count, len(backoff_ms)))
        found.setdefault(backoff_ms[attempt - 1], []).append(message)
    return found.items()


def _give_back(plan: Plan, side: Side, message: Message, record: Returned) -> None:
    if record.properties:
        note = side.note(message.sequence) or NO_NOTE
        side.notes[message.sequence] = note.amended(record.properties)
    if plan.state.locks[message.lock].deferred:
        return
    if not record.until_ms:
        side.ready.append(as_active(message, count=message.count - record.uncounted))
    elif message.group is not None:
        side.undelayed[message.group] = side.undelayed.get(message.group, 0) - 1


def expire(plan: Plan, queue: Queue, messages: list[Message]) -> None:
    """Messages whose time to live is over."""
    leave_groups(plan.side(queue), messages)
    _drop(plan, queue, messages)


def _drop(plan: Plan, queue: Queue, messages: list[Message]) -> None:
    if queue.properties.dead_letter_expired:
        text = "The message expired and was dead lettered."
        bury(plan, queue, messages, "TTLExpiredException", text, NO_PROPERTIES)
    else:
        plan.side(queue).remove(messages)
        plan.records.append(Expired(queue.name, sequences_of(messages)))


def bury(
    plan: Plan,
    queue: Queue,
    messages: list[Message],
    reason: str | None,
    description: str | None,
    properties: Properties,
) -> None:
    """Into the dead-letter queue. The caller has seen to the groups they leave."""
    assert queue.dead is not None
    side, dead = plan.side(queue), plan.side(queue.dead)
    first = dead.numbers(len(messages))
    side.remove(messages)
    record = DeadLettered(
        queue.name, plan.now_ms, sequences_of(messages), first, reason, description, properties,
        settled_ms_of(plan.state, messages, plan.now_ms), counts_of(messages),
    )  # fmt: skip
    plan.records.append(record)
    if queue.dead.waiting or queue.dead.relays:
        for sequence, message in enumerate(messages, first):
            old = message.sequence
            dead.notes[sequence] = epitaph(
                queue.name, old, side.note(old), queue.lives.get(old), record
            )
            dead.ready.append(as_active(message, sequence=sequence, expires_ms=0))


def release(plan: Plan, queue: Queue, group: Group, *, expired: bool = False) -> None:
    """A session lock ends, and with it the locks on the session's messages and its readers."""
    side = plan.side(queue)
    if len(group.locks) > STEPS_MAX:  # too much for one command: it expires now, and ticks end it
        plan.records.append(SessionRenewed(queue.name, group.key, plan.now_ms))
        return
    messages = [plan.state.locks[token].message for token in group.locks]
    side.released.add(group.key)
    side.unlocked.setdefault(group.key, 0)
    if messages:
        end(plan, queue, messages, counted=queue.properties.counting == "all")
    plan.records.append(SessionReleased(queue.name, group.key, expired))
    readers = [number for number in group.readers if number not in plan.leaving]
    plan.leaving.update(readers)
    plan.deliveries += [Notice(number, "session-lost") for number in readers]
    if group.readers:
        plan.records.append(Touched(queue.name, plan.now_ms))
