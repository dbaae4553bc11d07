"""The journal on a replicated log, and a folder on each machine with the frames that are confirmed.

The log decides what counts (`lane.py`). The folder holds confirmed frames and nothing else, so it
is always a beginning of the truth, and nothing in it has ever to be taken back. All that reads the
journal reads the folder.

A store follows the log until it is told to lead. Who leads is the one writer until another's fence
stands on the log; then it is Deposed. While the log does not answer, a sync waits: nobody knows yet
what is durable, and nothing is lost.
"""

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from time import monotonic
from typing import NamedTuple

from msgspec.structs import replace

from posthouse.store import Extent
from posthouse.store.disk import Disk
from posthouse.store.errors import Behind, Deposed, Lost, NotThere, Spoilt, StoreError
from posthouse.store.file import FileStore
from posthouse.store.frames import CLOSING, Frame
from posthouse.store.lane import (
    BEGINNING,
    FENCE,
    LOOK_SECONDS,
    SILENCE_SECONDS,
    Entry,
    Look,
    Place,
    Publish,
    Reading,
    Writing,
    decode,
    encode,
)
from posthouse.store.log import Log, Unanswered
from posthouse.store.place_note import read_place, write_place
from posthouse.store.snapshots import FileSnapshots

FRESH_SECONDS = 0.5  # after a confirmation, in which deliveries may leave before their locks are
STALLED_SECONDS = 2.0  # without an answer, after which commands are refused at once
NOTE_SECONDS = 1.0  # between two notes of where reading stands
# What the log may hold: from here on nobody who is silent keeps it from being purged,
PRESSED_SHARE = 0.8
FULL_SHARE = 0.9  # and from here on sends are refused, so that there is room for settling


class LeaderEvents(NamedTuple):
    """Callbacks for what happens to the store of a leader, called as soon as it does."""

    confirmed: Callable[[], None] = lambda: None  # something is, and is in the folder
    stalled: Callable[[bool], None] = lambda _: None  # whether it is
    failed: Callable[[StoreError], None] = lambda _: None  # also where nobody waits for a sync
    took: Callable[[float], None] = lambda _: None  # the seconds that a confirmation has taken


class _Stall:
    """How long something has waited to be confirmed; tells when that is too long, and no longer."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_stalled = False  # as it was told
        self.tell: Callable[[bool], None] = lambda _: None

    @property
    def seconds(self) -> float:
        """For how long something has waited; 0 where nothing does."""
        if self._since is None:
            return 0.0
        return asyncio.get_running_loop().time() - self._since

    def begin(self) -> None:
        """Something waits from now on, if nothing did."""
        if self._since is None:
            self._since = asyncio.get_running_loop().time()
            self._arm()

    def confirm(self, *, waits: bool) -> None:
        """Something was confirmed; `waits`: something else is not."""
        self._since = asyncio.get_running_loop().time() if waits else None
        if self.is_stalled:
            self.is_stalled = False
            self.tell(False)
            self._arm()

    def _arm(self) -> None:
        """One timer serves many syncs: when it is due something else may be waiting than then."""
        if self._timer is None and not self.is_stalled and self._since is not None:
            due = self._since + STALLED_SECONDS
            self._timer = asyncio.get_running_loop().call_at(due, self._look, self._since)

    def _look(self, since: float) -> None:
        # Times are not compared: what is left of them could be too little to pass.
        self._timer = None
        if self._since == since:
            self.is_stalled = True
            self.tell(True)
        self._arm()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class ReplicatedStore:
    """`local` is opened by the caller, with durability `interval`, and closed with this."""

    def __init__(self, local: FileStore, log: Log, now: Callable[[], float] = monotonic) -> None:
        """`now` is a clock that goes on while the process is asleep."""
        self._local = local
        self._now = now
        self._log = log
        self._disk = Disk()
        number = 0 if local.last is None else local.last.number
        self._reading = Reading(read_place(self._disk, local.folder, log, number))
        self._noted = self._reading.place
        # Whether the folder is known to hold what this log does; before, nothing is noted in it.
        self._is_known = not number or self._noted != BEGINNING
        self._note_due = 0.0  # by the loop's clock
        self._writing: Writing | None = None
        self._pending: list[Frame] = []
        self._unkept: deque[Frame] = deque()  # given to the log, and not yet in the folder
        self._last = local.last
        self._kept: deque[tuple[int, int]] = deque()  # numbers and ends that the disk may not have
        self._synced = number
        self._stall = _Stall()
        self._events = LeaderEvents()
        self._failure: StoreError | None = None
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None  # then what is under way is looked after
        self._keeping = asyncio.Lock()
        self._doing: set[asyncio.Task[None]] = set()
        self._closed = False

    # What others look at.

    @property
    def last(self) -> Frame | None:
        return self._local.last

    @property
    def full(self) -> bool:
        return self._local.full or (self._writing is not None and self.log_share >= FULL_SHARE)

    @property
    def log_share(self) -> float:
        """The share that is used of what the log may hold."""
        return 1.0 if self._log.is_full else self._log.size_bytes / self._log.bytes_max

    @property
    def pressed(self) -> bool:
        return self._local.pressed or (
            self._writing is not None and self.log_share >= PRESSED_SHARE
        )

    @property
    def spare_bytes(self) -> int:
        return min(self._local.spare_bytes, max(0, self._log.bytes_max - self._log.size_bytes))

    @property
    def durable(self) -> int:
        return self._local.readable  # only what is confirmed comes into the folder

    @property
    def readable(self) -> int:
        return self._local.readable

    @property
    def segments(self) -> FileStore:
        return self._local

    @property
    def snapshots(self) -> FileSnapshots:
        return self._local.snapshots

    @property
    def epoch(self) -> int:
        """The highest epoch that the log was seen to have."""
        return self._reading.epoch

    @property
    def number(self) -> int:
        """The number of the last frame in the folder."""
        return 0 if self._last is None else self._last.number

    @property
    def synced(self) -> int:
        """The number of the last frame that is on this machine's disk for sure."""
        while self._kept and self._kept[0][1] <= self._local.durable:
            self._synced = self._kept.popleft()[0]
        return self._synced

    @property
    def void(self) -> int:
        """The messages of the log that did not count."""
        return self._reading.void

    @property
    def is_fresh(self) -> bool:
        """Whether something that was published just now counts, so that nobody else led then.

        By the clock itself: the loop's time may be that of before the process was asleep.
        """
        return self._writing is not None and self._now() - self._writing.led_at < FRESH_SECONDS

    @property
    def is_stalled(self) -> bool:
        """Whether the log has not answered for so long that there is no use in waiting."""
        return self._stall.is_stalled

    def watch(self, events: LeaderEvents) -> None:
        """Tells these from now on, while it leads."""
        self._events = events
        self._stall.tell = events.stalled

    @property
    def failure(self) -> StoreError | None:
        """Why it cannot lead any more, whether or not a sync was told."""
        return self._failure

    @property
    def waits_seconds(self) -> float:
        """For how long something has waited for the log to confirm it; 0 where nothing does."""
        return self._stall.seconds

    # Following.

    async def read_on(self) -> list[Frame]:
        """Returns the frames behind what was read, some at a time; the folder has them then.

        Raises Behind where the next ones are no longer in the log, Unanswered, or Spoilt.
        """
        assert self._writing is None
        frames: list[Frame] = []
        while not frames and (messages := await self._log.read(self._reading.sequence)):
            found = (self._reading.take(sequence, data) for sequence, data in messages)
            # None are new where the folder has them all.
            frames = await self._new([frame for frame in found if frame is not None])
        await self._keep(frames)
        self._note_place()
        return frames

    async def check_reach(self) -> None:
        """Checks that the log holds what comes next here, and reads nothing of it.

        Raises Behind, or Unanswered.
        """
        after = self._reading.sequence
        messages = await self._log.read(after)
        if not messages:
            return
        sequence, data = messages[0]
        entry = decode(data)
        if entry is None or entry.number <= self.number:
            return
        if sequence != after + 1 or (not after and entry.kind == FENCE):  # reading begins there
            raise Behind(self.number, entry.number + 1)

    async def found(self, claim: int) -> bool:
        """Begins an empty log behind the frames of the folder; False where it is not empty.

        Where it was this claim that has begun it, that is so, too. Raises Unanswered.
        """
        epoch = 1 if self._last is None else self._last.epoch + 1
        fence = Entry(FENCE, epoch, claim, 0, 0, self.number)
        if await self._log.publish(0, encode(fence)) is None:
            messages = await self._log.read(0)
            first = decode(messages[0][1]) if messages else None
            if first is None or (first.kind, first.claim) != (FENCE, claim):
                return False
        self._is_known = True
        return True

    def _note_place(self) -> None:
        """Writes down where reading stands, beside everything else."""
        loop, place = asyncio.get_running_loop(), self._reading.place
        if place == self._noted or loop.time() < self._note_due or not self._is_known:
            return
        self._noted, self._note_due = place, loop.time() + NOTE_SECONDS
        self._do_beside(self._write_note(place))

    async def _write_note(self, place: Place) -> None:
        folder, identity = self._local.folder, self._log.identity
        await asyncio.to_thread(write_place, self._disk, folder, identity, place)

    def _do_beside(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._doing.add(task)
        task.add_done_callback(self._doing.discard)

    async def _new(self, frames: Sequence[Frame]) -> list[Frame]:
        """The frames that the folder lacks. Raises Behind, or Spoilt.

        The log may be purged meanwhile.
        """
        last, here = self._last, self.number
        number, new = here, []
        for frame in frames:
            if frame.number > number + 1:
                raise Behind(number, frame.number)
            if frame.number == number + 1:
                new.append(frame)
                number += 1
        if self._reading.number > number:
            raise Behind(number, self._reading.number + 1)
        if last is not None and new and not new[0].follows(last):
            raise self._strange(new[0])
        await self._check_known([frame for frame in frames if frame.number <= here])
        self._is_known = self._is_known or bool(new)
        return new

    async def _check_known(self, frames: Sequence[Frame]) -> None:
        """Compares frames of the log with those of the folder: with its last, and with one more.

        Raises Spoilt.
        """
        last = self._last
        for frame in frames:
            if last is not None and frame.number == last.number and _differ(frame, last):
                raise self._strange(frame)
        compared = next((frame for frame in frames if frame.count), None)
        if not self._is_known and compared is not None:
            with contextlib.suppress(NotThere):  # it was trimmed
                [here] = await self._local.get([compared.first])
                if here.number != compared.number or _differ(here, compared):
                    raise self._strange(compared)
                self._is_known = True

    def _strange(self, frame: Frame) -> Spoilt:
        self._is_known = False
        return Spoilt(
            f"frame {frame.number} of the log, of epoch {frame.epoch}, is not what"
            f" {self._local.folder} has or ends with: the folder is of another cluster, or was"
            " served alone. Start with an empty folder, or begin a new log with this one: posthouse"
            " cluster found"
        )

    async def _keep(self, frames: Sequence[Frame]) -> None:
        """Puts confirmed frames into the folder, with what this disk has of those before them."""
        local = self._local
        for frame in frames:
            local.append(replace(frame, durable=min(frame.durable, local.durable)))
        if frames:
            await local.sync()
            self._last = frames[-1].without_payload()
            self._kept.append((self._last.number, self._last.end))
            self._note_place()

    # Leading.

    async def lead(
        self,
        epoch: int,
        apply: Callable[[Frame], None],
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> None:
        """Wins the log for an epoch; what others wrote before is in the folder, and applied.

        Raises Deposed where another has won this epoch or a later one, or where it may not go on
        any more; Behind, or Spoilt.
        """
        assert self._writing is None
        writing = Writing(self._reading, epoch, secrets.randbits(64))
        while not writing.is_won:
            actions = writing.poll(self._now())
            for action in actions:
                frames = await self._new(await self._do(writing, action))
                await self._keep(frames)
                for frame in frames:
                    apply(frame)
            if writing.is_over or not may_go_on():
                raise Deposed(self._reading.epoch)
            if not actions:
                await asyncio.sleep(LOOK_SECONDS / 2)
        if self._reading.number < self.number:
            raise Spoilt(
                f"the log ends at frame {self._reading.number}, and frame {self.number} was"
                f" confirmed and is in {self._local.folder}: the log has lost frames. Stop all"
                " nodes, and begin a new log from the folder that has most of them: posthouse"
                " cluster found --replace-log"
            )
        self._writing = writing
        self._do_beside(self._measure())  # it has only counted what it has published itself

    async def _measure(self) -> None:
        with contextlib.suppress(Unanswered):
            await self._log.measure()

    async def _do(self, writing: Writing, action: Publish | Look) -> list[Frame]:
        """Does it, and tells the lane what came of it; returns frames of others."""
        try:
            if isinstance(action, Look):
                return writing.looked(await self._log.read(action.after))
            sequence = await self._log.publish(action.expected, action.data)
        except Unanswered:
            if isinstance(action, Publish):
                writing.refused(action.run, action.ordinal)
            else:
                writing.unseen()
            return []
        if sequence is None:
            writing.refused(action.run, action.ordinal)
        else:
            writing.acknowledged(action.run, action.ordinal, sequence)
        return []

    def append(self, frame: Frame) -> None:
        self._pending.append(frame)

    def begin_sync(self) -> None:
        """There is nothing that could be begun before somebody waits for it."""

    def sync_at_once(self) -> bool:
        return False

    async def sync(self) -> None:
        # A clean stop is a hand-over: a closing frame would end the journal for everybody.
        frames = [frame for frame in self._pending if frame.kind != CLOSING]
        is_closing = bool(self._pending) and not frames
        self._pending = []
        if is_closing:  # others may have taken over since all was confirmed
            return
        self._raise_failure()
        if not frames and self._local.full:  # perhaps there is room again
            await self._local.sync()
        writing = self._writing
        assert writing is not None
        for frame in frames:
            writing.append(frame)
            self._unkept.append(frame)
        if not self._unkept:
            async with self._keeping:  # another may be at it
                return
        number = self._unkept[-1].number
        self._stall.begin()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        self._pump(writing)
        while writing.confirmed < number:
            self._raise_failure()
            self._changed.clear()
            await self._changed.wait()
        self._events.took(loop.time() - begun)
        await self._keep_confirmed(writing)

    def give_up(self) -> None:
        """Waits no longer for what is not confirmed: the process ends."""
        self._failure = Lost("the replicated log has not confirmed what was written last")
        self._changed.set()

    def mark(self) -> None:
        """Publishes a mark, from which the log can be read when all before it was purged."""
        assert self._writing is not None
        self._writing.mark()
        self._pump(self._writing)

    async def purge(self, number: int) -> None:
        """The log may forget frames up to this number, which enough nodes have on their disks.

        Raises Unanswered.
        """
        marks = self._reading.marks
        before = 0
        for sequence, last in marks:
            if last > number:
                break
            before = sequence
        if not before:
            return
        await self._log.purge(before)
        while marks and marks[0][0] <= before:
            marks.popleft()
        await self._log.measure()

    async def measure_log(self) -> None:
        """Asks the log for its size. Raises Unanswered."""
        await self._log.measure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _pump(self, writing: Writing) -> None:
        """Does what is to be done now, and is called again in time while something is under way."""
        loop = asyncio.get_running_loop()
        for action in writing.poll(self._now()):
            self._do_beside(self._act(writing, action))
        if self._timer is None and not writing.is_idle:
            self._timer = loop.call_later(SILENCE_SECONDS / 4, self._look_after, writing)

    def _look_after(self, writing: Writing) -> None:
        self._timer = None
        if self._failure is None:
            self._pump(writing)

    async def _act(self, writing: Writing, action: Publish | Look) -> None:
        before = writing.confirmed
        try:
            await self._do(writing, action)
        except StoreError as error:
            self._failure = error
        if writing.confirmed > before:
            last = self._unkept[-1].number if self._unkept else 0
            self._stall.confirm(waits=last > writing.confirmed)
        if writing.is_over:
            self._failure = Deposed(self._reading.epoch)
        if self._failure is None:
            self._pump(writing)
        else:
            self._events.failed(self._failure)
        self._changed.set()

    async def _keep_confirmed(self, writing: Writing) -> None:
        """Puts what is confirmed into the folder, in order, whoever has waited for it."""
        async with self._keeping:
            frames: list[Frame] = []
            while self._unkept and self._unkept[0].number <= writing.confirmed:
                frames.append(self._unkept.popleft())
            await self._keep(frames)
            if frames:
                self._events.confirmed()

    # Reading.

    def read(self, first: int, end: int) -> AsyncIterator[Frame]:
        return self._local.read(first, end)

    async def get(self, positions: Sequence[int]) -> list[Frame]:
        return await self._local.get(positions)

    def extents(self) -> list[Extent]:
        return self._local.extents()

    async def trim(self, before: int) -> None:
        await self._local.trim(before)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._events = LeaderEvents()
        self._stall.close()
        for task in self._doing:
            task.cancel()
        if self._doing:
            await asyncio.wait(self._doing)
        if self._is_known and self._reading.place != BEGINNING:
            await self._write_note(self._reading.place)
        await self._log.close()
        await self._local.close()


def _differ(frame: Frame, other: Frame) -> bool:
    """Whether two frames of one number are not the same."""
    return (frame.epoch, frame.end, frame.time_ms) != (other.epoch, other.end, other.time_ms)
