"""Keeping the journal small: folding when enough has been written, trimming what nobody needs.

Frames are kept for the feed and for looking back, by age and size. What is past that and held by
snapshots goes, segment by segment from the oldest; contents of messages that are still there are
written again first. Where more than half of it is still there little would be gained, and it stays.

In a cluster every node folds and trims its own folder. Who leads writes contents again; a follower
trims by its own retention what the leader has trimmed, once it has applied what was written again.

What is kept for readers gives way before a send is refused. It never takes more than a share of the
disk, which shrinks as others fill the disk. Where the disk is short of room all the same, Arrow
segments go first, then what the snapshots hold, also what a named reader has not acknowledged.
"""

import asyncio
import json
import logging
import sys
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from posthouse.broker.access import BROKER
from posthouse.broker.engine import Engine
from posthouse.broker.replay import bodies_of
from posthouse.core.commands import Content, Move
from posthouse.core.errors import Busy, NotFound
from posthouse.core.message import Message, NewMessage, size_bytes
from posthouse.core.model import Queue
from posthouse.store import Extent, Room, Segments, Snapshots
from posthouse.store.errors import StoreError
from posthouse.store.file import MARK_SEGMENTS
from posthouse.store.opening import StoreUrl

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_SLICE = 2_000  # messages that are looked at in one go
_MOVE_BYTES = 64 << 10  # of contents in one command
_MOVE_MESSAGES = 1_000
_BUSY_SECONDS = 0.05
PATIENCE_SECONDS = 10.0  # for which Arrow segments wait for a processor that nobody else wants
_FOLDS = 4  # snapshots that are made while as much is written as may be kept
LOOK_SECONDS = 1.0  # between looks at a store without segments, while it is written
FULL_SECONDS = 5.0  # before a full disk, on which nothing could give way, is looked at again


@dataclass(frozen=True)
class Retention:
    """The settings of retention: how much is kept, and how often the journal is folded."""

    keep_ms: int = 7 * 24 * 3_600_000
    keep_bytes: int = 16 << 30
    fold_bytes: int = 256 << 20  # written since the last snapshot
    reader_bytes: int = 32 << 30  # kept at most for readers of the feed that lag
    share: int = 50  # percent that all of it may take of what others leave free of the disk


def fitted(retention: Retention, room: Room, segment_bytes: int) -> Retention:
    """The part of a retention that the disk has room for, Arrow segments counted.

    Snapshots are made so often that what is too much can be trimmed: a start must be possible from
    the older of two.
    """
    whole = room.free + room.journal + room.arrow
    most = min(whole * retention.share // 100, whole - MARK_SEGMENTS * segment_bytes)
    journal = max(0, most) * room.journal // max(1, room.journal + room.arrow)
    return replace(
        retention,
        keep_bytes=min(retention.keep_bytes, journal),
        reader_bytes=min(retention.reader_bytes, journal),
        fold_bytes=min(retention.fold_bytes, journal // _FOLDS),
    )


async def retain(
    engine: Engine,
    segments: Segments,
    retention: Retention,
    folding: asyncio.Lock | None = None,
    trim_limit: Callable[[], int] = lambda: 0,
) -> None:
    """Folds in a process of its own, and trims, until it is cancelled.

    A segment that is complete gets its Arrow segment; a snapshot is taken when enough was written.
    `folding` is held meanwhile, where others fold too. `trim_limit`: the position before which a
    follower may trim.
    """
    folding = folding or asyncio.Lock()
    if segments.sealed():  # an Arrow segment may be missing since the last stop
        segments.rolled.set()
    while True:
        await segments.rolled.wait()
        segments.rolled.clear()
        try:
            short = await _give_arrow_segments(segments)
            room = await asyncio.to_thread(segments.room)
            fits = fitted(retention, room, segments.segment_bytes)
            async with folding:
                is_due = partial(_is_due, segments, engine.store.snapshots, fits)
                if not short and not is_due():
                    await _make_arrow_segments(segments, is_due)
                    continue
                kept = await _fold(segments, now=short)
            await _trim_to(engine, kept, fits, trim_limit)
            segments.note_trimmed()
            if engine.store.full:  # nothing more could give way
                await asyncio.sleep(FULL_SECONDS)
        except Busy as busy:
            _log.warning("The journal was not trimmed, but will be: %s", busy,
                         extra={"event": "journal.not_trimmed"})  # fmt: skip
        except (OSError, StoreError) as error:
            _log.error("The journal was not trimmed, but will be: %s", error,
                       extra={"event": "journal.not_trimmed"})  # fmt: skip


async def retain_extents(
    engine: Engine,
    fold: Callable[[], Awaitable[list[int] | None]],
    retention: Retention,
    segment_bytes: int,
    folding: asyncio.Lock | None = None,
) -> None:
    """Does the same for a store without segments: by extents, and without Arrow segments.

    It looks when something was written, once in LOOK_SECONDS at most.
    """
    folding, store = folding or asyncio.Lock(), engine.store
    while not engine.is_over:
        try:
            extents = store.extents()
            size = sum(extent.size_bytes for extent in extents)
            fits = fitted(retention, Room(store.spare_bytes, size, 0), segment_bytes)
            newest = next(iter(store.snapshots.positions()), 0)
            unfolded = sum(each.size_bytes for each in extents[:-1] if each.end > newest)
            if unfolded and (unfolded >= fits.fold_bytes or store.full):
                async with folding:
                    kept = await fold()
                    await asyncio.to_thread(store.snapshots.whole)
                await _trim_to(engine, kept, fits)
            elif store.full:
                await _trim_to(engine, None, fits)
        except Busy as busy:
            _log.warning("The journal was not trimmed, but will be: %s", busy,
                         extra={"event": "journal.not_trimmed"})  # fmt: skip
        except (OSError, StoreError) as error:
            _log.error("The journal was not trimmed, but will be: %s", error,
                       extra={"event": "journal.not_trimmed"})  # fmt: skip
        await asyncio.sleep(FULL_SECONDS if store.full else LOOK_SECONDS)
        if not store.full:
            await engine.beyond(engine.now().position - 1)


async def run_store_fold(url: StoreUrl) -> list[int] | None:
    """Runs the folding process on a store that is not a folder of segments.

    The process reads the store's name from its input: others can see the words of a command.
    """
    output = await _run_fold_process("-", hurry="soon", given=url.full.encode() + b"\n")
    kept: list[int] | None = None if output is None else json.loads(output)["kept"]
    return kept


async def _give_arrow_segments(segments: Segments) -> bool:
    """Whether the disk is short of room. Then Arrow segments go until it is not."""
    short = segments.is_short
    if short:
        await segments.drop_arrow_segments(MARK_SEGMENTS * segments.segment_bytes)
    return short


async def _trim_to(
    engine: Engine,
    kept: list[int] | None,
    retention: Retention,
    trim_limit: Callable[[], int] = lambda: 0,
) -> None:
    """Trims up to the snapshots.

    `kept` has the positions at which they end, the newest first; it is None where folding has
    failed.
    """
    store = engine.store
    if kept is None and store.full:  # perhaps because there was no room for one
        kept = await asyncio.to_thread(store.snapshots.whole)
    if kept and engine.follows:
        await trim_follower(engine, kept, retention, trim_limit())
    elif kept:
        await trim(engine, kept, retention)
        if store.full:  # segments that only the older snapshot needs go, too
            await trim(engine, kept[:1], retention)


def _is_due(segments: Segments, snapshots: Snapshots, retention: Retention) -> bool:
    """Whether enough was written since the last snapshot."""
    newest = next(iter(snapshots.positions()), 0)
    unfolded = [segment for segment in segments.sealed() if segment.end > newest]
    return sum(segment.size for segment in unfolded) >= retention.fold_bytes


async def _make_arrow_segments(segments: Segments, is_due: Callable[[], bool]) -> None:
    """Makes Arrow segments of sealed segments, until a snapshot falls due or room is short."""
    making = run_arrow_segments(segments)
    await _unless(segments, making, lambda: segments.is_short or is_due())


async def _fold(segments: Segments, *, now: bool) -> list[int] | None:
    """Runs a fold. Where the disk becomes short of room meanwhile, it begins again with `now`."""
    if not now:
        kept = await _unless(segments, run_fold(segments), lambda: segments.is_short)
        if not isinstance(kept, _Interrupted):
            return kept
    return await run_fold(segments, now=True)


class _Interrupted:
    """The result of work that was ended for something that cannot wait."""


async def _unless(
    segments: Segments, work: Coroutine[Any, Any, _T], is_urgent: Callable[[], bool]
) -> _T | _Interrupted:
    """Does it, unless it is found to be urgent to do something else when a segment was complete."""
    working = asyncio.ensure_future(work)
    rolling = asyncio.ensure_future(segments.rolled.wait())
    more = False
    try:
        while not working.done():
            await asyncio.wait([working, rolling], return_when=asyncio.FIRST_COMPLETED)
            if rolling.done():
                more = True
                if is_urgent():
                    break
                segments.rolled.clear()
                rolling = asyncio.ensure_future(segments.rolled.wait())
    finally:
        rolling.cancel()
        working.cancel()
        await asyncio.wait([working])
    if more:
        segments.rolled.set()  # a wait for it ends at once
    return _Interrupted() if working.cancelled() else working.result()


async def run_fold(segments: Segments, *, now: bool = False) -> list[int] | None:
    """Runs the folding process; up to where the snapshots go that are whole, None if it failed."""
    output = await _run_fold_process(str(segments.folder), hurry="now" if now else "soon")
    kept: list[int] | None = None if output is None else json.loads(output)["kept"]
    return kept


async def run_arrow_segments(segments: Segments) -> None:
    """Runs the folding process, but for Arrow segments alone, which can wait."""
    await _run_fold_process(str(segments.folder), "arrow")


async def _run_fold_process(*words: str, hurry: str = "", given: bytes = b"") -> bytes | None:
    command = (sys.executable, "-m", "posthouse.broker.fold_process", *words, hurry)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(None if hurry else PATIENCE_SECONDS):
            output, errors = await process.communicate(given)
    except (asyncio.CancelledError, TimeoutError) as ended:
        with suppress(ProcessLookupError):  # it has just ended
            process.kill()
        await process.wait()
        if isinstance(ended, asyncio.CancelledError):
            raise
        return await _run_fold_process(*words, hurry="soon")
    if process.returncode:
        _log.error("The journal was not folded: %s", errors.decode().strip(),
                   extra={"event": "journal.not_folded"})  # fmt: skip
        return None
    return output


async def trim(engine: Engine, snapshots: Sequence[int], retention: Retention) -> int:
    """Returns the position before which the journal was trimmed; 0 where nothing was.

    `snapshots`: up to where each goes of those that are whole. From the oldest of them a start
    must be possible.
    """
    extents = engine.store.extents()
    old = _past_retention(extents, retention, engine.time_ms())
    held = min(min(snapshots, default=0), _awaited(engine, extents, retention))
    old = [extent for extent in old if extent.end <= held]
    live = await _live_bytes(engine, old)
    end, size, kept = 0, 0, 0
    for extent, still in zip(old, live, strict=True):
        size, kept = size + extent.size_bytes, kept + still
        most = size // 2  # bytes that would be written again
        if engine.store.full:  # into what is left for settling
            most = min(most, engine.store.spare_bytes // 2)
        if kept <= most:
            end = extent.end
    if end:
        _tell_readers_lost(engine, extents[0].first, end)
        await _move_out(engine, end)
        await engine.flush()  # also what was taken out of a queue before, and is being read
        await engine.store.trim(end)
    return end


async def trim_follower(
    engine: Engine, snapshots: Sequence[int], retention: Retention, limit: int
) -> int:
    """Trims a follower's journal, never beyond `limit`; returns as `trim` does.

    It writes nothing: who leads has written again what is still there of the contents before the
    limit, and this node has applied that.
    """
    extents = engine.store.extents()
    held = min(min(snapshots, default=0), _awaited(engine, extents, retention), limit)
    old = _past_retention(extents, retention, engine.time_ms())
    end = max((extent.end for extent in old if extent.end <= held), default=0)
    if end:
        await engine.store.trim(end)
    return end


def _past_retention(extents: list[Extent], retention: Retention, now_ms: int) -> list[Extent]:
    """The extents that are too old, or beyond the size to keep, the oldest first."""
    size = sum(extent.size_bytes for extent in extents)
    begun, least_ms = [], now_ms
    for extent in reversed(extents):  # by a clock that was ahead, one began after the next
        least_ms = min(least_ms, extent.begun_ms)
        begun.append(least_ms)
    old = []
    for extent, end_ms in zip(extents, reversed(begun[:-1]), strict=False):
        if end_ms > now_ms - retention.keep_ms and size <= retention.keep_bytes:
            break
        size -= extent.size_bytes
        old.append(extent)
    return old


def _awaited(engine: Engine, extents: list[Extent], retention: Retention) -> int:
    """The position from which on readers of the feed still want the journal.

    Up to a limit: a reader that is further behind has lost what is trimmed, and is told when it
    comes.
    """
    readers = engine.view.readers()
    wanted = min((each.position + 1 for each in readers), default=1 << 63)
    size = 0
    for extent in reversed(extents):
        size += extent.size_bytes
        if size > retention.reader_bytes:
            return max(wanted, extent.end)
    return wanted


def _tell_readers_lost(engine: Engine, first: int, end: int) -> None:
    """Logs the readers of the feed whose place in it is trimmed now."""
    for reader in engine.view.readers():
        if first <= reader.position + 1 < end:
            _log.error(
                "Reader %s of the feed lags so far behind that the journal is not kept for it: it"
                " has read up to position %d, and the feed begins at %d now. It is told when it"
                " comes.", reader.name, reader.position, end,
                extra={"event": "feed.reader_lost", "reader": reader.name},
            )  # fmt: skip


def _queues(engine: Engine) -> list[tuple[str, Queue]]:
    states = engine.world.states
    return [(name, queue) for name, state in states.items() for queue in state.queues.values()]


async def _live_bytes(engine: Engine, extents: list[Extent]) -> list[int]:
    """The bytes in each extent of the contents of messages that still exist."""
    live = [0] * len(extents)
    firsts = [extent.first for extent in extents]
    end = extents[-1].end if extents else 0
    for _, queue in _queues(engine):
        first = 0
        while messages := list(islice(queue.messages.walk(first), _SLICE)):
            for message in messages:
                if message.position < end:
                    live[bisect_right(firsts, message.position) - 1] += size_bytes(message)
            first = messages[-1].sequence + 1
            await asyncio.sleep(0)
    return live


async def _move_out(engine: Engine, end: int) -> None:
    """Writes all contents from before a position again. When it returns there are none left.

    A message may go from a queue that was not looked at yet to one that was; it has a new sequence
    number there, so each further round looks at what is new, and the last finds nothing without
    having let anybody else in between.
    """
    looked: dict[int, int] = {}  # queue number: the sequence up to which it was looked at
    while True:
        found = [
            (namespace, queue, messages)
            for namespace, queue in _queues(engine)
            if (messages := _before(queue, looked, end))
        ]
        if not found and all(_is_looked_at(q, looked) for _, q in _queues(engine)):
            return
        for namespace, queue, messages in found:
            await _move(engine, namespace, queue, messages)
        await asyncio.sleep(0)


def _is_looked_at(queue: Queue, looked: dict[int, int]) -> bool:
    return looked.get(queue.number, 0) >= queue.next_sequence


def _before(queue: Queue, looked: dict[int, int], end: int) -> list[Message]:
    """Goes through the next slice of a queue."""
    messages = list(islice(queue.messages.walk(looked.get(queue.number, 0)), _SLICE))
    whole = len(messages) < _SLICE
    looked[queue.number] = queue.next_sequence if whole else messages[-1].sequence + 1
    return [message for message in messages if message.position < end]


async def _move(engine: Engine, namespace: str, queue: Queue, messages: list[Message]) -> None:
    contents: list[Content] = []
    size = 0
    bodies = await bodies_of(engine.store, messages)
    for message, body in zip(messages, bodies, strict=True):
        new = NewMessage(message.envelope, body, message.native, message.group, message.priority)
        contents.append(Content(message.sequence, message.position, new))
        size += size_bytes(new)
        if size >= _MOVE_BYTES or len(contents) >= _MOVE_MESSAGES:
            await _ask_to_move(engine, namespace, queue, contents)
            contents, size = [], 0
    if contents:
        await _ask_to_move(engine, namespace, queue, contents)


async def _ask_to_move(
    engine: Engine, namespace: str, queue: Queue, contents: list[Content]
) -> None:
    while True:
        try:
            await engine.ask(BROKER, namespace, Move(queue.name, contents))
        except NotFound:
            return  # deleted meanwhile
        except Busy:
            if engine.is_closing:
                raise
            await asyncio.sleep(_BUSY_SECONDS)
        else:
            return
