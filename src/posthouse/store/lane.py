"""A lane: a journal's frames as messages of a replicated log that compares before it appends.

The log numbers its messages, and takes one only if the number before it is the one its writer
expects. Several brokers may write to a lane, and messages of theirs may be late, lost, or answered
never; still all who read it find the same frames in the same order. This module decides which, and
does no I/O: what is to be published or looked at comes out, and what came of it goes in.

    0   4  magic, "PHL1"
    4   4  checksum: CRC-32 of all that follows
    8   1  kind: 0 part, 1 fence, 2 mark
    9   3  zero
   12   4  epoch
   16   8  claim
   24   4  run
   28   4  ordinal
   32   8  number of the frame; of a fence or mark, of the last frame before it
   40   2  part
   42   2  parts
   44      bytes: of a part, that much of the encoded frame; of a mark, nothing

All numbers are unsigned and big-endian.

A **claim** is drawn at random for each attempt to lead, so that nobody takes the fence of a former
life for their own. A **fence** of an epoch and a claim begins a leadership: it stands right behind
all that its writer had read, or was not taken. A **run** is what a writer publishes without having
looked at the lane in between, and `ordinal` counts in it. A **mark** is part of a run; reading may
begin there, because whoever leads purges up to a mark that counts, or to a fence. What counts:

    fence   always
    part    if its epoch and claim are those of the last fence, and it is the first of its run,
            or the message just before it counts and is the one before it in its run

Without the second half a late message of a former run could take a place, the next one be refused,
and the one behind that fit again: frames with a hole. What does not count is void for everybody.
"""

import zlib
from collections import deque
from collections.abc import Iterable
from math import inf
from struct import Struct
from typing import NamedTuple

from posthouse.store.errors import Spoilt
from posthouse.store.frames import HEADER_BYTES as FRAME_HEADER_BYTES
from posthouse.store.frames import PAYLOAD_BYTES_MAX, Frame
from posthouse.store.frames import decode as decode_frame
from posthouse.store.frames import encode as encode_frame

MAGIC = b"PHL1"
PART, FENCE, MARK = 0, 1, 2
PART_BYTES = 256 << 10
PARTS_MAX = (PAYLOAD_BYTES_MAX + FRAME_HEADER_BYTES) // PART_BYTES + 1
UNDER_WAY_MAX = 8  # messages that are published and not acknowledged; more only wait longer
SILENCE_SECONDS = 0.5  # after which a message is taken to have had no answer
MARKS_MAX = 1_000
RUN_MESSAGES_MAX = 1 << 24  # of one run; `ordinal` has room for more
LOOK_SECONDS = 0.05  # between two looks at a lane that has not changed

_PREFIX = Struct(">4sI")
_REST = Struct(">B3xIQIIQHH")
HEADER_BYTES = _PREFIX.size + _REST.size
MESSAGE_BYTES_MAX = HEADER_BYTES + PART_BYTES


class Entry(NamedTuple):
    """One message of a lane."""

    kind: int
    epoch: int
    claim: int
    run: int
    ordinal: int  # its place in the run
    number: int
    part: int = 0
    parts: int = 1
    data: bytes = b""


def encode(entry: Entry) -> bytes:
    *numbers, data = entry
    rest = _REST.pack(*numbers) + data
    return _PREFIX.pack(MAGIC, zlib.crc32(rest)) + rest


def decode(data: bytes) -> Entry | None:
    """The entry in a message of the log, or None if it holds none that is whole."""
    if len(data) < HEADER_BYTES:
        return None
    magic, checksum = _PREFIX.unpack_from(data)
    if magic != MAGIC or zlib.crc32(memoryview(data)[_PREFIX.size :]) != checksum:
        return None
    entry = Entry._make((*_REST.unpack_from(data, _PREFIX.size), data[HEADER_BYTES:]))
    is_sound = entry.kind <= MARK and entry.part < entry.parts <= PARTS_MAX
    return entry if is_sound else None


class Place(NamedTuple):
    """The place that reading has come to: all that has to be known to go on behind it."""

    sequence: int = 0  # of the last message that was read
    epoch: int = 0  # of the last fence
    claim: int = 0
    number: int = 0  # of the last frame
    run: int | None = None  # of the last message, if it counts
    ordinal: int = 0


BEGINNING = Place()


class Reading:
    """Reads the messages of a lane in order, and says which frames count.

    It may begin in the middle only at a fence or a mark, whose `number` is of the last frame
    before; or at a place where a reading stood.
    """

    def __init__(self, place: Place = BEGINNING) -> None:
        self.sequence, self.epoch, self.claim, self.number = place[:4]
        self.void = 0  # messages that did not count
        # Fences, and marks that count: the sequence of each, and the number of the frame before.
        self.marks: deque[tuple[int, int]] = deque(maxlen=MARKS_MAX)
        # The last message's run and index, if it counts.
        self._place = None if place.run is None else (place.run, place.ordinal)
        self._parts: list[bytes] = []  # of a frame of which there is more to come
        self.place = place  # behind the last message that leaves no frame incomplete

    def take(self, sequence: int, data: bytes) -> Frame | None:
        """Reads the next message; returns the frame that it completes. Raises Spoilt."""
        if sequence <= self.sequence:
            return None
        entry = decode(data)
        if sequence != self.sequence + 1 and (entry is None or entry.kind == PART):
            raise Spoilt(
                f"the lane goes on at message {sequence}, and the last that was read is"
                f" {self.sequence}"
            )
        is_next, is_first = sequence == self.sequence + 1, self.sequence == 0
        self.sequence = sequence
        frame = None
        if entry is None or not (self._counts(entry) or not is_next):
            self.void += 1
            self._place = None
            self._parts = []
        else:
            # Where there was a journal before there was a lane, its first fence has a number, too.
            if not is_next or (is_first and entry.kind == FENCE):
                self.number = entry.number
            self._place = entry.run, entry.ordinal
            if entry.kind == PART:
                frame = self._completed(entry)
            else:
                self._take_mark(entry)
        self._note_place()
        return frame

    def _take_mark(self, entry: Entry) -> None:
        """Takes a fence, or a mark that counts."""
        self.epoch, self.claim = entry.epoch, entry.claim
        self._parts = []
        self.marks.append((self.sequence, self.number))

    def _note_place(self) -> None:
        if not self._parts:
            run, ordinal = self._place or (None, 0)
            self.place = Place(self.sequence, self.epoch, self.claim, self.number, run, ordinal)

    def _counts(self, entry: Entry) -> bool:
        if entry.kind == FENCE:
            return True
        is_leaders = entry.epoch == self.epoch and entry.claim == self.claim
        return is_leaders and (entry.ordinal == 0 or self._place == (entry.run, entry.ordinal - 1))

    def _completed(self, entry: Entry) -> Frame | None:
        if entry.part == 0:
            self._parts = []
        if entry.part != len(self._parts):  # its first parts were published in another run
            return None
        self._parts.append(entry.data)
        if len(self._parts) < entry.parts:
            return None
        frame = decode_frame(b"".join(self._parts))
        self._parts = []
        if frame is None or frame.number != entry.number:
            raise Spoilt(f"message {self.sequence} of the lane ends a frame that cannot be read")
        if frame.number <= self.number:  # there it is already
            return None
        if frame.number != self.number + 1:
            raise Spoilt(f"frame {self.number + 1} is missing before frame {frame.number}")
        self.number = frame.number
        return frame

    def is_at(self, entry: Entry) -> bool:
        """Whether this message of who leads is the last one that was read, and counts."""
        return self._place == (entry.run, entry.ordinal)

    def note(self, entry: Entry) -> None:
        """Takes a message of one's own as read, which is known to be the next and to count."""
        self.sequence += 1
        self._place = entry.run, entry.ordinal
        if entry.kind != PART:
            self._take_mark(entry)
        else:
            if entry.part == 0:
                self._parts = []
            self._parts.append(entry.data)  # the rest may come to be read
            if len(self._parts) == entry.parts:
                self.number = entry.number
                self._parts = []
        self._note_place()


class Publish(NamedTuple):
    """A message that is to be taken if `expected` is the sequence of the last one."""

    run: int
    ordinal: int  # its place in the run
    expected: int
    data: bytes


class Look(NamedTuple):
    """What is behind this sequence is to be read, in order, as far as is known."""

    after: int


class _Sent:
    """A message that was published in the present run."""

    __slots__ = ("at", "entry", "is_acknowledged")

    def __init__(self, entry: Entry, at: float) -> None:
        self.entry = entry
        self.at = at
        self.is_acknowledged = False


class Writing:
    """Wins a lane by a fence, publishes frames on it, and says which are confirmed.

    A message is good when it and all before it in its run were acknowledged with the sequence that
    was foreseen, or when a look at the lane shows that it counts. A frame is confirmed when all its
    messages are good, and all frames before it are confirmed.

    After a refusal, or silence, it looks at the lane. Where the fence of another stands there, it
    is over. Else it goes on in a new run behind what is there, with what is not good yet.
    """

    def __init__(
        self,
        reading: Reading,
        epoch: int,
        claim: int,
        part_bytes: int = PART_BYTES,
        run_messages: int = RUN_MESSAGES_MAX,
    ) -> None:
        self._reading = reading
        self._part_bytes = part_bytes
        self._run_messages = run_messages
        self.epoch = epoch
        self.claim = claim
        self._run = 0
        self._index = 0  # of the next message
        self._frames: deque[Frame] = deque()  # that are not confirmed
        self._unsent: deque[Entry] = deque([self._fence()])  # of the present run
        self._sent: deque[_Sent] = deque()
        self._is_in_doubt = False  # the lane has to be looked at
        self._looks_since: float | None = None  # a look is under way
        self._look_at = 0.0  # not before then
        self.confirmed = reading.number  # the number of the last frame that certainly counts
        # When the newest message was published that certainly counts: nobody else led then. When
        # that became known says nothing: acknowledgements and looks may be of a while ago.
        self.led_at = -inf
        self.is_over = False

    @property
    def is_won(self) -> bool:
        """Whether the fence stands on the lane, and no other behind it as far as is known."""
        return (self._reading.epoch, self._reading.claim) == (self.epoch, self.claim)

    @property
    def is_idle(self) -> bool:
        return not (self._frames or self._unsent or self._sent)

    def append(self, frame: Frame) -> None:
        """A frame of this epoch, to be confirmed behind those before it."""
        assert self.is_won
        assert frame.epoch == self.epoch
        self._frames.append(frame)
        self._unsent += self._entries(frame)

    def mark(self) -> None:
        """Publishes a mark, behind which a lane can be read from when all before it is purged."""
        last = self._frames[-1].number if self._frames else self._reading.number
        self._unsent.append(self._entry(MARK, last))

    def poll(self, now: float) -> list[Publish | Look]:
        """Returns what is to be done now. It is to be asked after each event, and in time."""
        if self.is_over:
            return []
        if self._sent and now - self._sent[0].at >= SILENCE_SECONDS:
            self._is_in_doubt = True
        if self._is_in_doubt:
            return self._look(now)
        actions: list[Publish | Look] = []
        while self._unsent and len(self._sent) < UNDER_WAY_MAX:
            if self._index >= self._run_messages:
                if self._sent:  # a run begins behind a message that is known to be the last
                    break
                self._run += 1
                self._index = 0
            entry = self._unsent.popleft()._replace(run=self._run, ordinal=self._index)
            expected = self._reading.sequence + len(self._sent)
            self._index += 1
            self._sent.append(_Sent(entry, now))
            actions.append(Publish(self._run, entry.ordinal, expected, encode(entry)))
        return actions

    def _look(self, now: float) -> list[Publish | Look]:
        is_under_way = self._looks_since is not None and now - self._looks_since < SILENCE_SECONDS
        if is_under_way or now < self._look_at:
            return []
        self._looks_since = now
        self._look_at = now + LOOK_SECONDS
        return [Look(self._reading.sequence)]

    def acknowledged(self, run: int, index: int, sequence: int) -> None:
        """The log has taken a message, as this one."""
        sent = self._find(run, index)
        if sent is None:  # of a run before
            return
        if sequence != self._reading.sequence + 1 + self._sent.index(sent):
            self._is_in_doubt = True
            return
        sent.is_acknowledged = True
        while self._sent and self._sent[0].is_acknowledged:
            good = self._sent.popleft()
            self._reading.note(good.entry)
            self.led_at = good.at
        self._confirm()

    def unseen(self) -> None:
        """A look had no answer."""
        self._looks_since = None

    def refused(self, run: int, index: int) -> None:
        """The log has not taken it, or has not said that it did."""
        if self._find(run, index) is not None:
            self._is_in_doubt = True

    def looked(self, messages: Iterable[tuple[int, bytes]]) -> list[Frame]:
        """Takes the messages that were found; returns the frames of others among them.

        Where another leads, it `is_over`. Raises Spoilt.
        """
        self._looks_since = None
        frames: list[Frame] = []
        for sequence, data in messages:
            frame = self._reading.take(sequence, data)
            if self.is_won:  # it is one's own
                self._confirm()
                good = next((sent for sent in self._sent if self._reading.is_at(sent.entry)), None)
                if good is not None:
                    self.led_at = max(self.led_at, good.at)
            elif frame is not None:
                frames.append(frame)
        if not self.is_won and self._reading.epoch >= self.epoch:
            self.is_over = True
            self._sent.clear()
        else:
            self._begin_run()
        return frames

    def _begin_run(self) -> None:
        # A mark is published again though nobody needs it: who writes nothing finds out by its
        # marks that another leads.
        entries = (*(sent.entry for sent in self._sent), *self._unsent)
        is_marked = any(entry.kind == MARK for entry in entries)
        self._is_in_doubt = False
        self._run += 1
        self._index = 0
        self._sent.clear()
        self._unsent.clear()
        if not self.is_won:
            self._unsent.append(self._fence())
        for frame in self._frames:
            self._unsent += self._entries(frame)
        if is_marked:
            self.mark()

    def _confirm(self) -> None:
        self.confirmed = self._reading.number
        while self._frames and self._frames[0].number <= self._reading.number:
            self._frames.popleft()

    def _find(self, run: int, index: int) -> _Sent | None:
        if run != self._run:
            return None
        return next((sent for sent in self._sent if sent.entry.ordinal == index), None)

    def _fence(self) -> Entry:
        return self._entry(FENCE, self._reading.number)

    def _entry(self, kind: int, number: int) -> Entry:
        return Entry(kind, self.epoch, self.claim, 0, 0, number)

    def _entries(self, frame: Frame) -> list[Entry]:
        data = encode_frame(frame)
        size = self._part_bytes
        chunks = [data[at : at + size] for at in range(0, len(data), size)]
        return [
            Entry(PART, self.epoch, self.claim, 0, 0, frame.number, part, len(chunks), chunk)
            for part, chunk in enumerate(chunks)
        ]
