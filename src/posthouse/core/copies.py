"""Copies: what one topic or forwarding queue hands on in one command, written as one record."""

import msgspec

from posthouse.core.commands import LAST_MS
from posthouse.core.endings import drop
from posthouse.core.message import NO_NOTE, SCHEDULED, Message, Note, group_of, size_bytes
from posthouse.core.model import Queue
from posthouse.core.plan import Plan, QueueOverlay, as_active, sequences_of
from posthouse.core.records import Copies, Dropped, Routed
from posthouse.core.room import is_limited

FIRST_EFFORT = 12  # for the first copy that a queue gets, beside what each takes


class _Into:
    """The copies that one queue gets."""

    __slots__ = ("expires_ms", "first", "notes", "overlay", "same", "sequences")

    def __init__(self, overlay: QueueOverlay, *, same: bool) -> None:
        self.overlay = overlay
        self.same = same
        self.first = overlay.next_sequence
        self.sequences: list[int] = []
        self.expires_ms: list[int] = []
        self.notes: list[Note | None] = []

    def record(self) -> Copies:
        return Copies(
            self.overlay.queue.name, self.first, self.sequences,
            self.expires_ms if any(self.expires_ms) else None,
            self.notes if any(note is not None for note in self.notes) else None,
            self.same,
        )  # fmt: skip


class Relay:
    """The copies that one queue hands on, in one record.

    `same`: they are no new messages, but keep their delivery counts and times.
    """

    def __init__(self, plan: Plan, source: QueueOverlay, *, same: bool = False) -> None:
        self.plan = plan
        self.source = source
        self.same = same
        self._into: dict[str, _Into] = {}
        self._late: dict[str, list[int]] = {}  # copies that there is no room for, or not any more
        self.partly: dict[int, int] = {}  # as in the record

    def copy(self, message: Message, target: Queue, note: Note | None, ttl_ms: int | None) -> None:
        """One copy, where there is room for it or something gives way. Raises QuotaExceeded."""
        plan, overlay, late = self.plan, self.plan.overlay(target), False
        size = size_bytes(message) if overlay.counted else 0
        if is_limited(target):
            fit = plan.make_room(target, [size])
            if fit.dropped:
                drop(plan, target, fit.dropped)
            if fit.arrived:
                overlay.give_up(fit.arrived)
                self._late.setdefault(target.name, []).extend(fit.arrived)
            if fit.taken:
                overlay.arrived[overlay.next_sequence] = size
            elif target.properties.overflow == "to-dead-letter":
                self.bury(message, target, note, "QueueFull", "There was no room in the queue.")
                return
            else:
                late = True
                self._late.setdefault(target.name, []).append(overlay.next_sequence)
        if overlay.counted and not late:
            overlay.added += 1
            overlay.added_bytes += size
        from_ms = message.enqueued_ms if self.same else plan.now_ms
        expires_ms = _expiry(message, target, ttl_ms, from_ms)
        self._put(message, overlay, note, expires_ms, late=late)

    def bury(
        self, message: Message, target: Queue, note: Note | None, reason: str, text: str
    ) -> None:
        """A copy among the dead letters of the queue it was meant for."""
        assert target.dead is not None
        self._put_apart(message, target.dead, note, reason, text)

    def turn_back(self, message: Message, note: Note | None, reason: str, text: str) -> bool:
        """Keeps what could not be handed on; False where it has to stay where it is."""
        queue = self.source.queue
        if queue.transfer is None:
            return False
        self._put_apart(message, queue.transfer, note, reason, text)
        return True

    def _put_apart(
        self, message: Message, where: Queue, note: Note | None, reason: str, text: str
    ) -> None:
        """Puts a copy among dead letters, or among what could not be forwarded."""
        note = msgspec.structs.replace(
            note or NO_NOTE, reason=reason, description=text, source=where.origin,
            source_sequence=message.sequence, dead_ms=self.plan.now_ms,
        )  # fmt: skip
        self._put(message, self.plan.overlay(where), note, 0)

    def _put(
        self,
        message: Message,
        overlay: QueueOverlay,
        note: Note | None,
        expires_ms: int,
        *,
        late: bool = False,
    ) -> None:
        queue = overlay.queue
        into = self._into.get(queue.name)
        if into is None:
            into = self._into[queue.name] = _Into(overlay, same=self.same)
            overlay.used = True
            self.plan.effort += FIRST_EFFORT
        self.plan.effort += 1
        if note is not None:
            self.plan.noted_bytes += _noted_bytes(note)
        sequence = overlay.numbers(1)
        into.sequences.append(message.sequence)
        into.expires_ms.append(expires_ms)
        into.notes.append(note)
        if (queue.waiting or queue.accepting or queue.relays) and not late:
            if note is not None:
                overlay.notes[sequence] = note
            copy = as_active(
                message, sequence=sequence, expires_ms=expires_ms, group=group_of(message, note)
            )
            if not self.same:
                copy.count, copy.enqueued_ms = 0, self.plan.now_ms
            elif first_ms := self.source.first_ms(message.sequence):
                overlay.firsts[sequence] = first_ms
            overlay.ready.append(copy)

    def close(self, leaving: list[Message]) -> None:
        overlay, copies = self.source, [into.record() for into in self._into.values()]
        if leaving or copies or self.partly:
            overlay.remove([m for m in leaving if m.sequence not in overlay.removed])
            routed = Routed(
                overlay.queue.name, self.plan.now_ms, sequences_of(leaving), copies, {}, self.partly
            )
            self.plan.records.append(routed)
        self.plan.records += [Dropped(name, late) for name, late in self._late.items()]


def counted(note: Note | None, hops: int, target: Queue) -> Note | None:
    """The note of a copy, which counts its hops where it may be forwarded once more."""
    dead = target.dead
    if not target.relays and (dead is None or not dead.relays):
        hops = 0
    if hops == hops_of(note):
        return note
    note = msgspec.structs.replace(note or NO_NOTE, hops=hops)
    return None if note == NO_NOTE else note


def hops_of(note: Note | None) -> int:
    return 0 if note is None else note.hops


def _noted_bytes(note: Note) -> int:
    """The bytes of a note in a record, with what goes around it."""
    return 64 + len(msgspec.msgpack.encode(note))


def _expiry(message: Message, target: Queue, ttl_ms: int | None, from_ms: int) -> int:
    """When a copy expires: as the message does, or earlier where the queue has it so."""
    expires_ms = message.expires_ms if ttl_ms is None else from_ms + ttl_ms
    least = target.properties.ttl_ms
    if least is not None:
        expires_ms = min(expires_ms or from_ms + least, from_ms + least)
    return min(expires_ms, LAST_MS)


def filled(plan: Plan, queue: Queue) -> int:
    """Counts the messages of a queue and of what belongs to it, but for scheduled ones."""
    count, parts = 0, [queue, queue.dead, queue.transfer]
    if queue.temporary and queue.topic is not None:
        parts.append(plan.state.queues[queue.topic].dead)  # its dead letters are there at once
    for each in parts:
        if each is not None:
            count += sum(each.counts) - each.counts[SCHEDULED]
            if each.name in plan.overlays:
                count += plan.overlays[each.name].next_sequence - each.next_sequence
    return count
