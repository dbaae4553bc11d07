"""Commands on a data folder."""

import argparse
import json
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

from posthouse.cli.codes import FAILED, LOST, NOT_FOUND, OK, USAGE, fail, say

if TYPE_CHECKING:
    from posthouse.store import Store
    from posthouse.store.disk import Disk

Run = Callable[[argparse.Namespace], int]


def on_folder(run: Run) -> Run:
    """A command on a data folder: what can go wrong with any of them is told."""

    @wraps(run)
    def guarded(options: argparse.Namespace) -> int:
        from posthouse.core.errors import NotFound, Refused
        from posthouse.store.disk import Disk
        from posthouse.store.errors import Lost, NotThere, StoreError
        from posthouse.store.look import holds_journal

        if not options.data.is_dir():
            return fail(f"There is no folder {options.data}; check the name.", NOT_FOUND)
        try:
            if not holds_journal(Disk(), options.data):
                return fail(f"{options.data} holds no journal; check the name.", NOT_FOUND)
            return run(options)
        except (NotFound, NotThere) as error:
            return fail(str(error), NOT_FOUND)
        except Lost as error:
            return fail(str(error), LOST)
        except (Refused, StoreError, OSError) as error:
            return fail(str(error), FAILED)

    return guarded


def _watched(what: str, folder: Path) -> "Disk":
    """A disk that shows how much of the journal was read."""
    from posthouse.cli.show import Progress
    from posthouse.store.disk import Disk

    progress, whole = Progress(what), sum(each.stat().st_size for each in folder.glob("*.journal"))

    class Watched(Disk):
        done = 0

        def read(self, path: Path, offset: int, length: int) -> bytes:
            data = super().read(path, offset, length)
            Watched.done += len(data)
            progress.show(Watched.done, max(whole, Watched.done))
            if Watched.done >= whole:
                progress.end()
            return data

    return Watched()


# The journal.


@on_folder
def verify(options: argparse.Namespace) -> int:
    from posthouse.store.errors import InUse, StoreError
    from posthouse.store.file import LOCK
    from posthouse.store.look import look
    from posthouse.store.snapshots import FileSnapshots

    disk, folder = _watched("verified bytes", options.data), options.data
    try:
        lock = disk.lock(folder / LOCK)
        try:
            found = look(disk, folder)
            snapshots = FileSnapshots(folder).verify()
        finally:
            disk.close(lock)
    except InUse:
        raise
    except StoreError as error:
        if options.json:
            say(json.dumps({"sound": False, "error": str(error)}))
            return FAILED
        raise
    if options.json:
        report = {
            "sound": True,
            "segments": len(found.segments),
            "frames": found.frames,
            "snapshots": snapshots,
            "end": found.end,
            "closed": found.closed,
            "tail": found.tail > 0,
        }
        say(json.dumps(report))
        return OK
    say(
        f"{folder} is sound: {found.frames} frames in {len(found.segments)} segments, up to"
        f" position {found.end}; {snapshots} snapshots."
    )
    if found.closed:
        say("The last stop was clean.")
    elif found.tail:
        say("Behind the last frame is a tail that was never synced; the next start cuts it.")
    return OK


@on_folder
def repair(options: argparse.Namespace) -> int:
    import msgspec

    from posthouse.broker import repair as repairing

    report = repairing.repair(options.data, disk=_watched("read bytes", options.data))
    if options.json:
        say(msgspec.json.encode(report).decode())
        return OK
    for hole in report.holes:
        say(f"Not readable: {hole}.")
    for queue in report.queues:
        say(f"Made again with default properties, because its creation is lost: {queue}.")
    for message in report.messages:
        say(f"Content lost: {message}.")
    say(
        f"{options.data} is sound: {report.frames} frames kept, {report.missing} positions missing."
        f" The files as they were are in {options.data / report.old_files}; remove that folder"
        " when nothing is missed."
    )
    return OK


@on_folder
def stats(options: argparse.Namespace) -> int:
    from posthouse.cli.show import size
    from posthouse.store.disk import Disk
    from posthouse.store.look import ARROW_NAME
    from posthouse.store.reading import Reading
    from posthouse.store.snapshots import FileSnapshots

    folder = options.data
    segments = Reading(folder).segments()
    arrow_segments = [each for each in folder.iterdir() if ARROW_NAME.fullmatch(each.name)]
    found = {
        "folder": str(folder.absolute()),
        "segments": len(segments),
        "first": segments[0].first if segments else 1,
        "journal_bytes": sum(each.size for each in segments),
        "snapshots": list(FileSnapshots(folder, Disk()).positions()),
        "arrow_segments": len(arrow_segments),
        "arrow_bytes": sum(each.stat().st_size for each in arrow_segments),
    }
    if options.json:
        say(json.dumps(found))
        return OK
    say(f"{found['folder']}:")
    say(f"  journal    {len(segments)} segments, {size(found['journal_bytes'])}, from position"
        f" {found['first']} on")  # fmt: skip
    say(f"  snapshots  {', '.join(f'up to {each}' for each in found['snapshots']) or 'none'}")
    say(f"  arrow      {found['arrow_segments']}, {size(found['arrow_bytes'])}")
    return OK


@on_folder
def snapshot(options: argparse.Namespace) -> int:
    from posthouse.broker import fold as folding

    folded = folding.fold(options.data)
    if options.json:
        say(json.dumps(folded._asdict()))
    elif folded.frames:
        say(
            f"A snapshot holds all up to position {folded.position}, {folded.frames} frames more"
            f" than before; {folded.scrubbed} old segments were read again and are sound."
        )
    else:
        say(f"There is nothing more to fold; {folded.scrubbed} old segments are sound.")
    return OK


# The past.


@on_folder
def state(options: argparse.Namespace) -> int:
    from posthouse.broker.past import state_at
    from posthouse.broker.view import View
    from posthouse.core.message import STATES

    async def look(store: "Store") -> int:
        last = store.durable - 1 if options.at is None else options.at
        view = View(await state_at(store, store.snapshots, last))
        queues = []
        for entity in view.entities():
            counts = view.counts(entity.namespace, entity.name)
            queues.append({
                "namespace": entity.namespace,
                "queue": entity.name,
                **{word: getattr(counts, word) for word in STATES},
                "bytes": view.size(entity.namespace, entity.name).size_bytes,
            })  # fmt: skip
        if options.json:
            say(json.dumps({"position": last, "queues": queues}))
            return OK
        say(f"At position {last}:")
        for each in queues:
            said = ", ".join(f"{each[word]} {word}" for word in STATES if each[word])
            say(f"  {each['namespace']}/{each['queue']}: {said or 'empty'}")
        return OK

    return _reading(options.data, look)


@on_folder
def trace(options: argparse.Namespace) -> int:
    from posthouse.broker.past import Place, find, life, moment

    if options.id is None and (options.queue is None or options.sequence is None):
        return fail("Name a message: --id, or --queue and --sequence.", USAGE)

    async def look(store: "Store") -> int:
        places: list[Place]
        if options.id is None:
            places = [Place(options.queue, options.sequence)]
        else:
            places = await find(store, options.namespace, options.id)
            if not places:
                return fail(f"No message with id {options.id!r} was sent.", NOT_FOUND)
        lives = [await life(store, options.namespace, place) for place in places]
        if options.json:
            say(json.dumps([[event._asdict() for event in events] for events in lives]))
            return OK
        for place, events in zip(places, lives, strict=True):
            say(f"{options.namespace}/{place.queue}, message {place.sequence}:")
            for event in events:
                say(f"  {event.position:>12}  {moment(event.time_ms)}  {event.text}")
        return OK

    return _reading(options.data, look)


def _reading(folder: Path, look: Callable[["Store"], Coroutine[None, None, int]]) -> int:
    import asyncio

    from posthouse.store.file import FileStore

    async def run() -> int:
        store = FileStore(folder, read_only=True)
        try:
            return await look(store)
        finally:
            await store.close()

    return asyncio.run(run())


@on_folder
def resend(options: argparse.Namespace) -> int:
    import asyncio
    import secrets

    from posthouse.broker.access import BROKER
    from posthouse.broker.clock import SystemClock
    from posthouse.broker.engine import Engine
    from posthouse.broker.past import Range
    from posthouse.broker.past import resend as send_again
    from posthouse.store.file import FileStore

    async def run() -> int:
        store = FileStore(options.data)
        engine = await Engine.open(
            store, SystemClock(), secrets.randbits(32), snapshots=store.snapshots
        )
        what = Range(options.first, options.last + 1, options.source)
        try:
            return await send_again(engine, BROKER, options.namespace, what, options.into)
        finally:
            await engine.close()

    sent = asyncio.run(run())
    say(json.dumps({"sent": sent}) if options.json else f"{sent} messages were sent again.")
    return OK


@on_folder
def set_clock(options: argparse.Namespace) -> int:
    import asyncio
    import secrets

    from posthouse.broker.clock import SystemClock
    from posthouse.broker.engine import Engine
    from posthouse.broker.past import moment
    from posthouse.store.file import FileStore

    async def run() -> dict[str, int]:
        store = FileStore(options.data)
        engine = await Engine.open(
            store, SystemClock(), secrets.randbits(32), snapshots=store.snapshots
        )
        try:
            before_ms = engine.time_ms()
            step_ms = await engine.turn_back(scheduled=options.scheduled)
            there = await engine.view.overview()
            return {
                "before_ms": before_ms,
                "now_ms": before_ms - step_ms,
                "messages": there.messages,
                "scheduled": there.counts.scheduled + there.dead_counts.scheduled,
                "locks": there.locks,
            }
        finally:
            await engine.close()

    found = asyncio.run(run())
    if options.json:
        say(json.dumps(found))
        return OK
    say(f"The broker's time was {moment(found['before_ms'])}, and is {moment(found['now_ms'])}.")
    say(f"There are {found['messages']} messages as before, and {found['locks']} locks, which last"
        " as long as they would have.")  # fmt: skip
    if found["scheduled"] and not options.scheduled:
        say(f"{found['scheduled']} scheduled messages keep their moments. If those were given by"
            " the clock that was ahead, they come late: cancel and send them again.")  # fmt: skip
    return OK
