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
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from posthouse.store import Extent
from posthouse.store.errors import Behind, Deposed, Lost, Spoilt, StoreError
from posthouse.store.file import FileStore
from posthouse.store.frames import CLOSING, Frame
from posthouse.store.lane import LOOK_SECONDS, SILENCE_SECONDS, Look, Publish, Reading, Writing
from posthouse.store.log import Log, Unanswered
from posthouse.store.snapshots import FileSnapshots

FRESH_SECONDS = 0.5  # after a confirmation, in which deliveries may leave before their locks are
STALLED_SECONDS = 2.0  # without an answer, after which commands are refused at once


class LeaderEvents(NamedTuple):
    """What the store of a leader tells, as soon as it is so."""

    confirmed: Callable[[], None] = lambda: None  # something is, and is in the folder
    stalled: Callable[[bool], None] = lambda _: None  # whether it is
    failed: Callable[[StoreError], None] = lambda _: None  # also where nobody waits for a sync


class _Stall:
    """How long something has waited to be confirmed; tells when that is too long, and no longer."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_stalled = False  # as it was told
        self.tell: Callable[[bool], None] = lambda _: None

    def _left(self) -> float:
        if self._since is None:
            return STALLED_SECONDS
        return self._since + STALLED_SECONDS - asyncio.get_running_loop().time()

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
        """One timer serves many syncs: it looks how long the present one waits when it is due."""
        if self._timer is None and not self.is_stalled and self._since is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, self._left()), self._look)

    def _look(self) -> None:
        self._timer = None
        if self._left() <= 0:
            self.is_stalled = True
            self.tell(True)
        self._arm()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class ReplicatedStore:
    """`local` is opened by the caller, with durability `interval`, and closed with this."""

    def __init__(self, local: FileStore, log: Log) -> None:
        self._local = local
        self._log = log
        self._reading = Reading()
        self._writing: Writing | None = None
        self._pending: list[Frame] = []
        self._unkept: deque[Frame] = deque()  # given to the log, and not yet in the folder
        self._last = local.last
        self._kept: deque[tuple[int, int]] = deque()  # numbers and ends that the disk may not have
        self._synced = 0 if local.last is None else local.last.number
        self._confirmed_at = 0.0  # when something was last confirmed, by the loop's clock
        self._stall = _Stall()
        self._events = LeaderEvents()
        self._failure: StoreError | None = None
        self._changed = asyncio.Event()
        self._keeping = asyncio.Lock()
        self._doing: set[asyncio.Task[None]] = set()
        self._closed = False

    # What others look at.

    @property
    def last(self) -> Frame | None:
        return self._local.last

    @property
    def full(self) -> bool:
        return self._local.full

    @property
    def pressed(self) -> bool:
        return self._local.pressed

    @property
    def spare_bytes(self) -> int:
        return self._local.spare_bytes

    @property
    def durable(self) -> int:
        return 1 if self._last is None else self._last.end

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
        """Whether the log has confirmed something just now, so that nobody else leads yet."""
        now = asyncio.get_running_loop().time()
        return now - self._confirmed_at < FRESH_SECONDS

    @property
    def is_stalled(self) -> bool:
        """Whether the log has not answered for so long that there is no use in waiting."""
        return self._stall.is_stalled

    def watch(self, events: LeaderEvents) -> None:
        """Tells these from now on, while it leads."""
        self._events = events
        self._stall.tell = events.stalled

    # Following.

    async def read_on(self) -> list[Frame]:
        """Returns the frames behind what was read, some at a time; the folder has them then.

        Raises Behind where the next ones are no longer in the log, Unanswered, or Spoilt.
        """
        assert self._writing is None
        frames = self._take(await self._log.read(self._reading.sequence))
        await self._keep(frames)
        return frames

    def _take(self, messages: Sequence[tuple[int, bytes]]) -> list[Frame]:
        found = (self._reading.take(sequence, data) for sequence, data in messages)
        frames = [frame for frame in found if frame is not None]
        return self._new(frames)

    def _new(self, frames: Sequence[Frame]) -> list[Frame]:
        """The frames that the folder lacks. Raises Behind."""
        number = self.number
        new = [frame for frame in frames if frame.number > number]
        first = new[0].number if new else self._reading.number + 1
        if first > number + 1:
            raise Behind(number, first)
        return new

    async def _keep(self, frames: Sequence[Frame]) -> None:
        """Puts confirmed frames into the folder, with what this disk has of those before them."""
        local = self._local
        for frame in frames:
            local.append(replace(frame, durable=min(frame.durable, local.durable)))
        if frames:
            await local.sync()
            self._last = frames[-1].without_payload()
            self._kept.append((self._last.number, self._last.end))

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
        loop = asyncio.get_running_loop()
        writing = Writing(self._reading, epoch, secrets.randbits(64))
        while not writing.is_won:
            actions = writing.poll(loop.time())
            for action in actions:
                frames = self._new(await self._do(writing, action))
                await self._keep(frames)
                for frame in frames:
                    apply(frame)
            if writing.is_over or not may_go_on():
                raise Deposed(self._reading.epoch)
            if not actions:
                await asyncio.sleep(LOOK_SECONDS / 2)
        if self._reading.number < self.number:
            raise Spoilt(
                f"the log ends at frame {self._reading.number}, and frame {self.number}"
                " was confirmed"
            )
        self._writing = writing
        self._confirmed_at = loop.time()

    async def _do(self, writing: Writing, action: Publish | Look) -> list[Frame]:
        """Does it, and tells the lane what came of it; returns frames of others."""
        try:
            if isinstance(action, Look):
                return writing.looked(await self._log.read(action.after))
            sequence = await self._log.publish(action.expected, action.data)
        except Unanswered:
            if isinstance(action, Publish):
                writing.refused(action.run, action.ordinal)
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
        if not frames:
            if self._local.full:  # perhaps there is room again
                await self._local.sync()
            return
        writing = self._writing
        assert writing is not None
        for frame in frames:
            writing.append(frame)
            self._unkept.append(frame)
        number = frames[-1].number
        self._stall.begin()
        while writing.confirmed < number:
            self._raise_failure()
            self._pump(writing)
            self._changed.clear()
            with contextlib.suppress(TimeoutError):  # a look may be due then
                async with asyncio.timeout(SILENCE_SECONDS / 4):
                    await self._changed.wait()
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
        while marks and marks[0][1] <= number:
            before = marks.popleft()[0]
        if before:
            await self._log.purge(before)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _pump(self, writing: Writing) -> None:
        loop = asyncio.get_running_loop()
        for action in writing.poll(loop.time()):
            task = loop.create_task(self._act(writing, action))
            self._doing.add(task)
            task.add_done_callback(self._doing.discard)

    async def _act(self, writing: Writing, action: Publish | Look) -> None:
        before = writing.confirmed
        try:
            await self._do(writing, action)
        except StoreError as error:
            self._failure = error
        if writing.confirmed > before:
            self._confirmed_at = asyncio.get_running_loop().time()
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
        self._events = LeaderEvents()
        self._stall.close()
        for task in self._doing:
            task.cancel()
        if self._doing:
            await asyncio.wait(self._doing)
        await self._log.close()
        await self._local.close()
