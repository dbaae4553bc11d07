"""Commands on the store of a broker."""

import argparse
import json
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

from posthouse.cli.codes import FAILED, LOST, NOT_FOUND, OK, USAGE, fail, say

if TYPE_CHECKING:
    from posthouse.cli.show import Progress
    from posthouse.store import Store
    from posthouse.store.copying import Copied
    from posthouse.store.disk import Disk
    from posthouse.store.opening import StoreUrl

_T = TypeVar("_T")
Run = Callable[[argparse.Namespace], int]


def told(run: Run) -> Run:
    """A command on stores: what can go wrong with any of them is told."""

    @wraps(run)
    def guarded(options: argparse.Namespace) -> int:
        from posthouse.core.errors import NotFound, Refused
        from posthouse.store.errors import Lost, NotThere, StoreError

        try:
            return run(options)
        except (NotFound, NotThere) as error:
            return fail(str(error), NOT_FOUND)
        except Lost as error:
            return fail(str(error), LOST)
        except (Refused, StoreError, OSError) as error:
            return fail(str(error), FAILED)

    return guarded


def on_store(run: Run) -> Run:
    """A command on a store that exists, which is `options.url` then."""

    @wraps(run)
    @told
    def guarded(options: argparse.Namespace) -> int:
        from posthouse.store.opening import is_there

        options.url = _url_of(options)
        if options.data is not None and not options.data.is_dir():
            return fail(f"There is no folder {options.data}; check the name.", NOT_FOUND)
        if not is_there(options.url):
            return fail(f"{options.data or options.url} holds no journal; check the name.",
                        NOT_FOUND)  # fmt: skip
        return run(options)

    return guarded


def _url_of(options: argparse.Namespace) -> "StoreUrl":
    from posthouse.store.opening import StoreUrl

    found: StoreUrl | None = options.store
    return found or StoreUrl("file", str(options.data))


def _is_folder(options: argparse.Namespace) -> bool:
    """Whether the store is a folder of segments, which is then `options.data`."""
    if options.url.kind != "file":
        return False
    options.data = options.url.path
    return True


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


@on_store
def verify(options: argparse.Namespace) -> int:
    if not _is_folder(options):
        return _verify_store(options)
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


@on_store
def repair(options: argparse.Namespace) -> int:
    if not _is_folder(options):
        return fail(
            f"A repair puts segments of a folder together; {options.url} has none. Restore it from"
            " a copy.", USAGE,
        )  # fmt: skip
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


@on_store
def stats(options: argparse.Namespace) -> int:
    if not _is_folder(options):
        return _store_stats(options)
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


@on_store
def snapshot(options: argparse.Namespace) -> int:
    import asyncio

    from posthouse.broker import fold as folding

    if _is_folder(options):
        folded = folding.fold(options.data)
    else:
        folded = asyncio.run(_with_store(options.url, folding.fold_store, read_only=True))
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


@on_store
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

    return _reading(options.url, look)


@on_store
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

    return _reading(options.url, look)


def _reading(url: "StoreUrl", look: Callable[["Store"], Coroutine[None, None, int]]) -> int:
    import asyncio

    return asyncio.run(_with_store(url, look, read_only=True))


async def _with_store(
    url: "StoreUrl", work: Callable[["Store"], Awaitable[_T]], *, read_only: bool
) -> _T:
    from posthouse.store.opening import Opening, open_store

    store = open_store(url, Opening(read_only=read_only))
    try:
        return await work(store)
    finally:
        await store.close()


def _verify_store(options: argparse.Namespace) -> int:
    """Reads every frame and snapshot of a store without segments."""
    import asyncio

    from posthouse.cli.show import Progress
    from posthouse.store.errors import Damaged
    from posthouse.store.opening import Opening, open_verifiable

    progress = Progress("verified frames")

    async def look() -> dict[str, object]:
        store = open_verifiable(options.url, Opening(read_only=True))
        try:
            frames = await store.verify(progress.show)
            ends, whole = store.snapshots.positions(), store.snapshots.whole()
            if bad := sorted(set(ends) - set(whole)):
                raise Damaged(str(options.url), bad[0], "it is not what was written",
                              unit="the snapshot up to")  # fmt: skip
            return {"sound": True, "segments": len(store.extents()), "frames": frames,
                    "snapshots": len(whole), "end": store.durable}  # fmt: skip
        finally:
            progress.end()
            await store.close()

    try:
        found = asyncio.run(look())
    except Damaged as error:
        if not options.json:
            raise
        say(json.dumps({"sound": False, "error": str(error)}))
        return FAILED
    if options.json:
        say(json.dumps(found))
    else:
        say(f"{options.url} is sound: {found['frames']} frames in {found['segments']} extents, up"
            f" to position {found['end']}; {found['snapshots']} snapshots.")  # fmt: skip
    return OK


def _store_stats(options: argparse.Namespace) -> int:
    from posthouse.cli.show import size

    async def look(store: "Store") -> int:
        extents, snapshots = store.extents(), store.snapshots.positions()
        first = extents[0].first if extents else 1
        journal_bytes = sum(extent.size_bytes for extent in extents)
        if options.json:
            say(json.dumps({"store": str(options.url), "segments": len(extents), "first": first,
                            "journal_bytes": journal_bytes, "snapshots": snapshots}))  # fmt: skip
            return OK
        say(f"{options.url}:")
        say(f"  journal    {len(extents)} extents, {size(journal_bytes)}, from position {first} on")
        say(f"  snapshots  {', '.join(f'up to {each}' for each in snapshots) or 'none'}")
        return OK

    return _reading(options.url, look)


@on_store
def resend(options: argparse.Namespace) -> int:
    import asyncio
    import secrets

    from posthouse.broker.access import BROKER
    from posthouse.broker.clock import SystemClock
    from posthouse.broker.engine import Engine
    from posthouse.broker.past import Range
    from posthouse.broker.past import resend as send_again
    from posthouse.store.opening import open_store

    async def run() -> int:
        store = open_store(options.url)
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


@on_store
def set_clock(options: argparse.Namespace) -> int:
    import asyncio
    import secrets

    from posthouse.broker.clock import SystemClock
    from posthouse.broker.engine import Engine
    from posthouse.broker.past import moment
    from posthouse.store.opening import open_store

    async def run() -> dict[str, int]:
        store = open_store(options.url)
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


# Copies.


@contextmanager
def _shown_progress(what: str) -> "Iterator[Progress]":
    from posthouse.cli.show import Progress

    progress = Progress(what)
    try:
        yield progress
    finally:
        progress.end()


@contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    """A file for its owner alone: it holds all messages. It goes where it is not completed."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            path.unlink()
            raise


def _work(
    url: "StoreUrl", work: Callable[["Store"], Awaitable[_T]], *, read_only: bool = True
) -> _T:
    import asyncio

    return asyncio.run(_with_store(url, work, read_only=read_only))


def _say_copied(options: argparse.Namespace, copied: "Copied", done: str) -> int:
    if options.json:
        say(json.dumps(copied._asdict()))
    else:
        say(f"{copied.frames} frames, up to position {copied.end}, and {copied.snapshots} snapshots"
            f" were {done}.")  # fmt: skip
    return OK


@on_store
def export(options: argparse.Namespace) -> int:
    from posthouse.store.copying import Copied, export

    if options.file.exists():
        return fail(f"There is a file {options.file} already; name another.", FAILED)
    with _new_file(options.file) as file, _shown_progress("exported bytes") as progress:

        async def work(store: "Store") -> Copied:
            return await export(store, file, progress.show)

        copied = _work(options.url, work)
    return _say_copied(options, copied, "exported")


@told
def import_(options: argparse.Namespace) -> int:
    from posthouse.store.copying import Copied, import_lines

    url = _url_of(options)
    if not options.file.is_file():
        return fail(f"There is no file {options.file}; check the name.", NOT_FOUND)
    with options.file.open("rb") as file, _shown_progress("imported bytes") as progress:

        async def work(store: "Store") -> Copied:
            return await import_lines(file, str(options.file), store, str(url), progress.show)

        copied = _work(url, work, read_only=False)
    return _say_copied(options, copied, "imported")


@told
def copy(options: argparse.Namespace) -> int:
    from posthouse.store.copying import Copied, copy
    from posthouse.store.opening import is_there

    source, target = options.source, options.target
    if not is_there(source):
        return fail(f"{source} holds no journal; check the name.", NOT_FOUND)
    if source == target:
        return fail("A store cannot be copied into itself.", USAGE)
    if options.namespace is not None:
        return _copy_namespace(options)
    if options.move:
        return fail("Name what is to be moved: --namespace NAME.", USAGE)
    with _shown_progress("copied bytes") as progress:

        async def work(store: "Store") -> Copied:
            async def into(other: "Store") -> Copied:
                return await copy(store, other, str(target), progress.show)

            return await _with_store(target, into, read_only=False)

        copied = _work(source, work)
    return _say_copied(options, copied, "copied")


def _copy_namespace(options: argparse.Namespace) -> int:
    from posthouse.broker.clock import SystemClock
    from posthouse.broker.namespace_copy import CopiedNamespace, copy_namespace

    name, source, target = options.namespace, options.source, options.target
    with _shown_progress("copied messages") as progress:

        async def work(store: "Store") -> CopiedNamespace:
            async def into(other: "Store") -> CopiedNamespace:
                now_ms = SystemClock().now_ms()
                return await copy_namespace(
                    name, store, other, now_ms, progress.show, moves=options.move
                )

            return await _with_store(target, into, read_only=False)

        copied = _work(source, work, read_only=not options.move)
    if options.json:
        say(json.dumps(copied._asdict()))
        return OK
    say(f"The namespace {name!r} was {'moved' if options.move else 'copied'} into {target}:"
        f" {copied.messages} messages, {copied.entities} queues, topics and subscriptions,"
        f" {copied.schedules} schedules.")  # fmt: skip
    if copied.accounts:
        say(f"Accounts are not copied. These have rights in it alone: {', '.join(copied.accounts)}."
            " Make them at the other broker.")  # fmt: skip
    return OK
