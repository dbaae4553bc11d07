"""Repair: a sound journal made of all that can still be read of a damaged one.

Frames that can be read are kept, with their positions; what lies between them becomes `Missing`.
Records behind a gap that speak of what was in it are fitted (posthouse.core.fit_record). Messages
whose content is gone are removed, and named. The state as of the newest whole snapshot is taken as
it is.

The old files are not touched until the new ones are complete; then they are moved into a folder of
their own beside them, and the new ones into their place. If that is interrupted, a start refuses,
and running the repair again goes on with it.
"""

import asyncio
import re
import shutil
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec

from posthouse.broker import payload
from posthouse.broker.fold import LOCK as FOLD_LOCK
from posthouse.broker.fold import SCRUBBED
from posthouse.broker.payload import Entry
from posthouse.broker.replay import END, evict_sent, fitting, make_so, unfold
from posthouse.core.message import message_id
from posthouse.core.model import QueueProperties, topic_of
from posthouse.core.namespaces import Namespaces
from posthouse.core.records import (
    MessagesRestored,
    Missing,
    NamespaceCreated,
    NamespaceDeleted,
    OfNamespaces,
    Purged,
    QueueCreated,
    QueueDeleted,
    Sent,
    SubscriptionCreated,
    span,
)
from posthouse.core.snapshot import take
from posthouse.store import Snapshot
from posthouse.store.disk import Disk
from posthouse.store.errors import NotThere, Unknown
from posthouse.store.file import LOCK, SEGMENT_BYTES, FileStore
from posthouse.store.frames import CLOSING, Frame
from posthouse.store.look import REPAIRED, Hole, closed_at, holds_journal, is_part, salvage
from posthouse.store.snapshots import FileSnapshots

WORKSHOP = "repairing"
OLD = "damaged-"
_OLD_FOLDER = re.compile(rf"{OLD}\d{{1,9}}", re.ASCII)
_SYNC_BYTES = 16 << 20


class Report(msgspec.Struct):
    """The result of a repair: the content it has kept, and the content that is lost."""

    frames: int = 0  # kept
    missing: int = 0  # positions whose records could not be kept
    holes: list[str] = []  # where in the files something could not be read
    queues: list[str] = []  # made again with default properties, because their creation is missing
    messages: list[str] = []  # whose content is gone
    old_files: str = ""  # the folder in which the files are as they were


class _Plan(msgspec.Struct):
    """The file REPAIRED: the moves of files that are left to do when the new ones are complete."""

    report: Report
    old: list[str]
    new: list[str]


def repair(folder: Path, segment_bytes: int = SEGMENT_BYTES, disk: Disk | None = None) -> Report:
    """Raises InUse, NotThere or OSError; then nothing has changed, or running it again goes on."""
    disk = disk or Disk()
    if not holds_journal(disk, folder):
        raise NotThere(f"{folder} holds no journal; check the name.")
    locks = [disk.lock(folder / name) for name in (LOCK, FOLD_LOCK)]
    try:
        if not (folder / REPAIRED).exists():
            _prepare(folder, disk, segment_bytes)
        return _put_in_place(folder, disk)
    finally:
        for lock in locks:
            disk.close(lock)


def _prepare(folder: Path, disk: Disk, segment_bytes: int) -> None:
    workshop = folder / WORKSHOP
    if workshop.is_symlink():
        workshop.unlink()
    shutil.rmtree(workshop, ignore_errors=True)
    report = asyncio.run(_Repair(folder, workshop, disk, segment_bytes).run())
    old = [name for name in disk.names(folder) if is_part(name) or name == SCRUBBED]
    new = [name for name in disk.names(workshop) if name != LOCK]
    taken = disk.names(folder)
    number = next(n for n in count(1) if f"{OLD}{n}" not in taken)
    report.old_files = f"{OLD}{number}"
    (folder / report.old_files).mkdir(mode=0o700)
    disk.sync_folder(workshop)
    unfinished = workshop / REPAIRED
    file = disk.create(unfinished)
    disk.write(file, 0, [msgspec.json.encode(_Plan(report, old, new))])
    disk.sync(file)
    disk.close(file)
    disk.rename(unfinished, folder / REPAIRED)
    disk.sync_folder(folder)


def _put_in_place(folder: Path, disk: Disk) -> Report:
    try:
        plan = msgspec.json.decode((folder / REPAIRED).read_bytes(), type=_Plan)
    except msgspec.DecodeError as error:
        raise Unknown(str(folder / REPAIRED), str(error)) from error
    _check_plan(folder, plan)
    workshop, beside = folder / WORKSHOP, folder / plan.report.old_files
    for name in plan.old:
        replaced = name in plan.new and not (workshop / name).exists()
        if (folder / name).exists() and not replaced:
            (folder / name).rename(beside / name)
    disk.sync_folder(beside)
    for name in plan.new:
        if (workshop / name).exists():
            (workshop / name).rename(folder / name)
    disk.sync_folder(folder)
    disk.remove(folder / REPAIRED)
    disk.sync_folder(folder)
    shutil.rmtree(workshop, ignore_errors=True)
    return plan.report


def _check_plan(folder: Path, plan: _Plan) -> None:
    """Checks that only files of this folder are moved, and within it. Raises Unknown."""
    old_files = plan.report.old_files
    if not _OLD_FOLDER.fullmatch(old_files) or (folder / old_files).is_symlink():
        raise Unknown(str(folder / REPAIRED), f"{old_files!r} is not a folder for old files")
    for name in (*plan.old, *plan.new):
        if not is_part(name) and name != SCRUBBED:
            raise Unknown(str(folder / REPAIRED), f"{name!r} is not part of a journal")


class _Repair:
    """Reads the old files and writes the new."""

    def __init__(self, folder: Path, workshop: Path, disk: Disk, segment_bytes: int) -> None:
        self._folder = folder
        self._disk = disk
        self._store = FileStore(workshop, segment_bytes=segment_bytes)
        self._unsynced = 0
        self._report = Report()
        self._world = Namespaces()
        self._last = Frame(0, 0, 1, 0, 1, 0, b"")  # of the new journal
        self._gaps: list[range] = []  # in order
        self._time_ms = 0

    async def run(self) -> Report:
        held = await FileSnapshots(self._folder, self._disk).load(END)
        begin = 1 if held is None else held.last.end  # from here on the state is worked out
        lost = self._lost_creations(begin, held)
        first = next((f for f in self._frames() if f.kind != CLOSING), None)
        if held is not None:
            start = min(begin, begin if first is None else first.first)
            self._last = msgspec.structs.replace(self._last, first=start, durable=start)
            self._gaps.append(range(1, start))  # trimmed; or gone, with what may still be needed
        for item in salvage(self._disk, self._folder):
            if isinstance(item, Hole):
                where = item.path.relative_to(self._folder)
                self._report.holes.append(f"{where} at byte {item.offset}: {item.what}")
                continue
            self._time_ms = item.time_ms
            if item.kind == CLOSING:
                continue
            if held is not None and item.end > begin:
                await self._take_up(held)
                held = None
            await self._fill(item, lost)
            await self._keep(item, as_it_is=held is not None)
        if held is not None:
            await self._take_up(held)
        end = closed_at(self._disk, self._folder) or 0
        if self._last.end < end < self._last.end + (1 << 32):  # more cannot be, so it is spoiled
            await self._write([("", self._missing(end - self._last.end))], self._last)
        await self._remove_what_has_no_content()
        await self._finish()
        return self._report

    def _frames(self) -> Iterator[Frame]:
        return (f for f in salvage(self._disk, self._folder) if isinstance(f, Frame))

    async def _take_up(self, held: Snapshot) -> None:
        """Continues from a snapshot: all before it is written, and its state replaces ours."""
        if self._last.end < held.last.end:
            missing = self._missing(held.last.end - self._last.end)
            await self._write([("", missing)], held.last)
        self._world = unfold(held)
        epoch = max(self._last.epoch, held.last.epoch)  # there may be no frame left that says so
        self._last = msgspec.structs.replace(self._last, epoch=epoch)
        await self._store.sync()
        await self._store.snapshots.save(Snapshot(self._last, held.parts))

    def _missing(self, count: int) -> Missing:
        self._report.missing += count
        self._gaps.append(range(self._last.end, self._last.end + count))
        return Missing(count)

    # Gaps.

    def _lost_creations(self, begin: int, held: Snapshot | None) -> dict[int, list[Entry]]:
        """The changes to entities that must have been in each gap, by the position behind it.

        A queue that is sent to was created; one that is created again was deleted.
        """
        world = Namespaces() if held is None else unfold(held)
        known = {name: set(state.queues) for name, state in world.states.items()}
        lost: dict[int, list[Entry]] = defaultdict(list)
        rooms: dict[int, int] = {}  # for each gap, how many more may be from it
        end = begin

        def note(namespace: str, record: payload.Record) -> None:
            """Adds a record to the last gap that has room."""
            for gap in reversed(rooms):
                if rooms[gap] > len(lost[gap]):
                    lost[gap].append((namespace, record))
                    return

        for frame in self._frames():
            if frame.end <= begin or frame.kind == CLOSING:
                continue
            if frame.first > end:
                rooms[frame.first] = frame.first - end
            end = frame.end
            for _, namespace, record in payload.entries(frame):
                if isinstance(record, NamespaceCreated):
                    if record.name in known:
                        note("", NamespaceDeleted(record.name))
                    known[record.name] = set()
                elif isinstance(record, NamespaceDeleted):
                    known.pop(record.name, None)
                elif isinstance(record, OfNamespaces):
                    continue
                elif namespace not in known:
                    known[namespace] = set()
                    note("", NamespaceCreated(namespace, frame.time_ms, frame.epoch, 0))
                if isinstance(record, QueueCreated):
                    if record.queue in known[namespace]:
                        note(namespace, QueueDeleted(record.queue, record.time_ms))
                    known[namespace].add(record.queue)
                elif isinstance(record, QueueDeleted):
                    known[namespace].discard(record.queue)
                elif isinstance(record, SubscriptionCreated):
                    topic = topic_of(record.queue)
                    if topic not in known[namespace]:
                        known[namespace].add(topic)
                        properties = QueueProperties(delivery="topic")
                        note(namespace, QueueCreated(topic, record.time_ms, properties))
                elif isinstance(record, Sent) and record.queue not in known[namespace]:
                    known[namespace].add(record.queue)
                    note(namespace, QueueCreated(record.queue, record.time_ms, QueueProperties()))
        return lost

    async def _fill(self, frame: Frame, lost: dict[int, list[Entry]]) -> None:
        """Puts something in the place of what is missing before a frame."""
        room = frame.first - self._last.end
        if room <= 0:
            return
        position = self._last.end
        entries: list[Entry] = []
        for namespace, record in lost.get(frame.first, []):
            entries += self._made_so(position + len(entries), namespace, record)
            if isinstance(record, QueueCreated):
                self._report.queues.append(f"{namespace}/{record.queue}")
        if room > len(entries):
            entries.append(("", Missing(room - len(entries))))
        self._missing(room)
        await self._write(entries, frame)

    # Frames.

    async def _keep(self, frame: Frame, *, as_it_is: bool) -> None:
        self._report.frames += 1
        if as_it_is:
            await self._append(frame)
            return
        kept: list[Entry] = []
        for position, namespace, record in payload.entries(frame):
            kept += self._made_so(position, namespace, record)
        await self._write(kept, frame)

    def _made_so(self, position: int, namespace: str, record: payload.Record) -> Iterator[Entry]:
        """Fits a record to the state and evolves it. Yields the records that are kept of it."""
        for part in fitting(self._world, namespace, record):
            make_so(self._world, namespace, part, position)
            if isinstance(part, Sent | MessagesRestored):
                evict_sent(self._world, namespace, part)
            if isinstance(part, Missing) and not isinstance(record, Missing):
                self._report.missing += part.count
            yield "" if isinstance(part, Missing) else namespace, part
            position += span(part)

    async def _remove_what_has_no_content(self) -> None:
        entries: list[Entry] = []
        for name, state in self._world.states.items():
            for queue in state.queues.values():
                gone = [m for m in queue.messages.walk(0) if self._is_in_a_gap(m.position)]
                for message in gone:
                    id = message_id(message.envelope)
                    self._report.messages.append(
                        f"{name}/{queue.name}, message {message.sequence}, id {id!r}"
                    )
                if gone:
                    entries.append((name, Purged(queue.name, [m.sequence for m in gone])))
        position = self._last.end
        for namespace, record in entries:
            make_so(self._world, namespace, record, position)
            position += span(record)
        if entries:
            await self._write(entries, self._last)

    def _is_in_a_gap(self, position: int) -> bool:
        at = bisect_right(self._gaps, position, key=lambda gap: gap.start) - 1
        return at >= 0 and position in self._gaps[at]

    # Writing.

    async def _write(self, entries: list[Entry], like: Frame) -> None:
        """A frame of these records behind the last one, of the epoch and time of another."""
        length = sum(span(record) for _, record in entries)
        epoch, time_ms = max(like.epoch, self._last.epoch), like.time_ms
        end = self._last.end
        await self._append(Frame(epoch, 0, end, length, 0, time_ms, payload.encode(entries)))

    async def _append(self, frame: Frame) -> None:
        number, durable = self._last.number + 1, self._store.durable
        frame = msgspec.structs.replace(frame, number=number, durable=durable)
        self._store.append(frame)
        self._last = frame.without_payload()
        self._unsynced += frame.size_bytes
        if self._unsynced > _SYNC_BYTES:
            await self._store.sync()
            self._unsynced = 0

    async def _finish(self) -> None:
        last = self._last
        await self._append(Frame(last.epoch, 0, last.end, 0, 0, self._time_ms, b"", CLOSING))
        await self._store.sync()
        await self._store.snapshots.save(Snapshot(last, take(self._world)))
        await self._store.close()
