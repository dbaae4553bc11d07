"""Planning what a command does to messages and to those who wait for them.

A `Plan` holds the records so far and, for each queue touched, the few things that will be different
once they have been made so. The state itself is neither changed nor copied.

Two facts carry the planning. Unless a queue is in `state.dispatch_pending`, no message is ready
while a receiver that could have it waits; so what a command makes available is all there is to hand
out. And a message is in one state only, so that nothing falls due twice in one tick, but for a
delayed message that expires as it wakes.

The modules around it plan on it: `endings` (how deliveries end), `relaying` (topics and queues that
forward) and `dispatch` (who gets what), which also closes it.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any, TypeAlias

import msgspec

from posthouse.core.commands import (
    HAND_ON_BYTES_MAX,
    HAND_ON_MAX,
    Admitted,
    Answer,
    Delivery,
    Granted,
    Notice,
)
from posthouse.core.delivering import deliver
from posthouse.core.heaps import walk
from posthouse.core.message import ACTIVE, LOCKED, Message, Note, size_bytes
from posthouse.core.model import Group, Queue, Receiver, State
from posthouse.core.records import DispatchPending, Record, Touched
from posthouse.core.room import Fit, Used, is_limited, make_room, used

Delivered: TypeAlias = Delivery | Granted | Admitted | Notice


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a command: records to evolve, the answer, and what receivers get."""

    records: list[Record]
    answer: Answer = None
    deliveries: Sequence[Delivered] = ()


class QueueOverlay:
    """One queue as it will be, as far as this command changes it."""

    __slots__ = (
        "added",
        "added_bytes",
        "arrived",
        "counted",
        "firsts",
        "freed",
        "holding",
        "key_ids",
        "keys",
        "locked",
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
        self.counted = counted  # it or its topic is limited, or how many are locked
        self.next_sequence = queue.next_sequence
        self.ready: list[Message] = []  # as they will be, with their final numbers and counts
        self.removed: set[int] = set()  # sequences that will be gone
        self.unlocked: dict[str, int] = {}  # groups to look at again: how many of their locks end
        self.undelayed: dict[str, int] = {}  # and how many of their delays
        # Where it gives runs: messages that hold nothing back any more, and the first of each group
        # that will do so.
        self.freed: set[int] = set()
        self.holding: dict[str, int] = {}
        self.released: set[str] = set()  # sessions whose lock ends
        self.used = False  # by what this command does, as far as idleness goes
        self.notes: dict[int, Note] = {}
        self.firsts: dict[int, int] = {}  # when those were first delivered that have come back
        # Where it counts: messages that come, less those that go; and the sizes of such copies.
        self.added = self.added_bytes = 0
        self.locked = 0  # messages that will be locked, less those that will not be any more
        self.arrived: dict[int, int] = {}
        self.oldest = 0  # what is before that and could give way to new messages does so
        self.keys: dict[str, int] = {}  # of duplicate detection, with their sequences
        self.key_ids: dict[str, str] = {}  # and with the ids of their messages

    def remove(self, messages: Sequence[Message]) -> None:
        """Notes that these messages will be gone, and the room they took up free."""
        self.removed.update(sequences_of(messages))
        if self.counted:
            self.added -= len(messages)
            self.added_bytes -= sum(map(size_bytes, messages))
            self.locked -= sum(message.state == LOCKED for message in messages)
            for message in messages:
                self.arrived.pop(message.sequence, None)

    def give_up(self, sequences: Sequence[int]) -> None:
        """Takes back copies that have come with this command."""
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

    def first_ms(self, sequence: int) -> int:
        """When a message was first delivered; 0 where that is not known."""
        return self.firsts.get(sequence, 0) or self.queue.firsts.get(sequence, 0)

    def hold(self, message: Message) -> None:
        """Notes that a message will be delayed in its place."""
        key = message.group
        if key is not None:
            self.holding[key] = min(message.sequence, self.holding.get(key, message.sequence))

    def end_of_run(self, key: str) -> int | None:
        """The first message of a group that will hold back those behind it."""
        group = self.queue.groups.get(key)
        ends = [self.holding[key]] if key in self.holding else []
        for sequence in walk(group.held) if group is not None else ():
            if sequence not in self.freed and self.queue.holds_back(sequence):
                ends.append(sequence)
                break
        return min(ends, default=None)

    def note(self, sequence: int) -> Note | None:
        return self.notes.get(sequence) or self.queue.notes.get(sequence)


class Plan:
    """The plan of one command: its records so far, and each queue as it will be."""

    __slots__ = (
        "deliveries",
        "dispatch_blocked",
        "dispatched",
        "effort",
        "ending",
        "leaving",
        "may_refuse",
        "next_lock",
        "noted_bytes",
        "now_ms",
        "overlays",
        "postponed",
        "records",
        "relayed",
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
        self.overlays: dict[str, QueueOverlay] = {}
        self.dispatched: set[str] = set()  # queues with which ticks will not go on,
        self.postponed: set[str] = set()  # and with which they will, because this command does not
        self.dispatch_blocked: list[str] = []  # those that hand on no more before something changes
        self.relayed = False  # what came into topics and queues that forward was handed on
        self.may_refuse = False  # a copy for which there is no room refuses the whole command
        self.effort = self.noted_bytes = 0  # of handing on so far

    def overlay(self, queue: Queue) -> QueueOverlay:
        overlay = self.overlays.get(queue.name)
        if overlay is None:
            topic = None if queue.topic is None else self.state.queues[queue.topic]
            counted = is_limited(queue) or (topic is not None and is_limited(topic))
            counted = counted or queue.properties.max_locked is not None
            overlay = self.overlays[queue.name] = QueueOverlay(queue, counted=counted)
        return overlay

    def occupied(self, queue: Queue) -> Used:
        """How much of a queue is used, with what this command adds and takes."""
        counts = queue.properties.limit_counts
        messages, size = used(queue)
        for name in (queue.name, *(queue.subscriptions.keys() & self.overlays.keys())):
            overlay = self.overlays.get(name)
            if overlay is not None:
                messages, size = messages + overlay.added, size + overlay.added_bytes
                if counts == "waiting":
                    messages -= overlay.locked
        for name in queue.subscriptions.keys() & self.ending:
            ending = used(queue.subscriptions[name], counts)
            messages, size = messages - ending.messages, size - ending.size_bytes
        return Used(messages, size)

    def make_room(self, queue: Queue, sizes: Sequence[int]) -> Fit:
        """Raises QuotaExceeded."""
        overlay, now = self.overlay(queue), self.occupied(queue)
        fit = make_room(queue, now, sizes, overlay.removed, overlay.arrived, overlay.oldest)
        if fit.dropped:
            overlay.oldest = fit.dropped[-1].sequence + 1
        return fit

    def is_dispatch_pending(self, queue: Queue) -> bool:
        """Whether a later tick goes on with what is ready in this queue."""
        name = queue.name
        return name in self.postponed or (
            name in self.state.dispatch_pending and name not in self.dispatched
        )

    def hold_back(self, queue: Queue) -> None:
        """Leaves what is ready to later ticks, because too much is locked."""
        if queue.name not in self.postponed:
            self.postpone(queue)

    @property
    def is_spent(self) -> bool:
        """Whether this command has handed on as much as one may."""
        return self.effort >= HAND_ON_MAX or self.noted_bytes >= HAND_ON_BYTES_MAX // 8

    def postpone(self, queue: Queue) -> None:
        """Leaves what is ready in this queue to a later tick."""
        self.records.append(DispatchPending(queue.name, more=True))
        self.postponed.add(queue.name)

    def lock_room(self, queue: Queue) -> int | None:
        """How many more messages may be locked behind this plan; None: there is no limit."""
        if queue.properties.max_locked is None:
            return None
        return queue.lock_room(self.overlay(queue).locked)

    def touch(self, queue: Queue) -> None:
        """Notes that a queue is used, where that matters: settling and renewing is use."""
        if use_matters(queue):
            self.overlay(queue).used = True
            self.records.append(Touched(queue.name, self.now_ms))

    def deliver(self, queue: Queue, to: Receiver, messages: list[Message]) -> None:
        """Hands these messages to a receiver that waits or has got credit."""
        overlay = self.overlay(queue)
        record, deliveries = deliver(
            self.state, queue, to, messages, overlay.note, self.next_lock, self.now_ms,
            queue.firsts | overlay.firsts if overlay.firsts else queue.firsts,
        )  # fmt: skip
        if not to.delete:
            overlay.locked += len(messages)
        self.records.append(record)
        self.deliveries += deliveries
        self.next_lock += len(messages)


def use_matters(queue: Queue) -> bool:
    """Whether a queue, or what it belongs to, may be deleted when nobody uses it."""
    belongs = queue.origin is not None or queue.topic is not None
    return belongs or queue.properties.idle_delete_ms is not None


def sequences_of(messages: Iterable[Message]) -> list[int]:
    return [message.sequence for message in messages]


def as_active(message: Message, **changes: Any) -> Message:
    """A message as it will be: active, and otherwise changed."""
    changed = copy(message)
    changed.state, changed.lock = ACTIVE, 0
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed
