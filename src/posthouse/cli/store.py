"""The command line.

Exit codes: 0 it went well; 1 it did not, and the text says why; 2 the command line is wrong; 3 what
was named is not there; 74 the journal could not be written, and what was not acknowledged is open.
"""

import argparse
import io
import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posthouse.store.file import FileStore

Add = Callable[..., argparse.Action]

OK, FAILED, NOT_FOUND, LOST = 0, 1, 3, 74  # argparse has 2 for a command line that is wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name need not be text that can be shown
            stream.reconfigure(errors="backslashreplace")
    options = _parser().parse_args(arguments)
    from posthouse.core.errors import NotFound, Refused
    from posthouse.store.disk import Disk
    from posthouse.store.errors import Lost, NotThere, StoreError
    from posthouse.store.look import holds_journal

    run: Callable[[argparse.Namespace], int] = options.run
    if not options.data.is_dir():
        return _fail(f"There is no folder {options.data}; check the name.", NOT_FOUND)
    try:
        if not holds_journal(Disk(), options.data):
            return _fail(f"{options.data} holds no journal; check the name.", NOT_FOUND)
        return run(options)
    except (NotFound, NotThere) as error:
        return _fail(str(error), NOT_FOUND)
    except Lost as error:
        return _fail(str(error), LOST)
    except (Refused, StoreError, OSError) as error:
        return _fail(str(error), FAILED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="posthouse", description="One message broker that every queue client knows."
    )
    rooms = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    store = rooms.add_parser("store", help="look after a data folder")
    actions = store.add_subparsers(title="actions", required=True, metavar="ACTION")

    def action(name: str, run: Callable[[argparse.Namespace], int], help: str) -> Add:
        made = actions.add_parser(name, help=help, description=help)
        made.add_argument("--data", type=Path, required=True, metavar="DIR", help="the data folder")
        made.add_argument("--json", action="store_true", help="for programs")
        made.set_defaults(run=run)
        return made.add_argument

    action("verify", _verify, "check every frame and snapshot; changes nothing")
    action("repair", _repair, "keep what can be read of a damaged journal, and say what is lost")
    action("fold", _fold, "write a snapshot, so that the next start is quick")
    add = action("state", _state, "the queues as they were at a position; changes nothing")
    add("--at", type=int, metavar="POSITION", help="the last one if not given")
    add = action("trace", _trace, "everything that happened to a message; changes nothing")
    add("--namespace", required=True)
    add("--id", metavar="MESSAGE-ID")
    add("--queue")
    add("--sequence", type=int, metavar="NUMBER", help="in that queue")
    add = action("resend", _resend, "send what was sent at some positions once more")
    add("--namespace", required=True)
    add("--first", type=int, required=True, metavar="POSITION")
    add("--last", type=int, required=True, metavar="POSITION")
    add("--from", dest="source", metavar="QUEUE", help="only what was sent to it")
    add("--into", required=True, metavar="QUEUE")
    return parser


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _fail(text: str, code: int) -> int:
    sys.stderr.write(text + "\n")
    return code


# The journal.


def _verify(options: argparse.Namespace) -> int:
    from posthouse.store.disk import Disk
    from posthouse.store.errors import StoreError
    from posthouse.store.file import LOCK
    from posthouse.store.look import look
    from posthouse.store.snapshots import FileSnapshots

    disk, folder = Disk(), options.data
    try:
        lock = disk.lock(folder / LOCK)
        try:
            found = look(disk, folder)
            snapshots = FileSnapshots(folder).verify()
        finally:
            disk.close(lock)
    except StoreError as error:
        if options.json:
            _say(json.dumps({"sound": False, "error": str(error)}))
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
        _say(json.dumps(report))
        return OK
    _say(
        f"{folder} is sound: {found.frames} frames in {len(found.segments)} segments, up to"
        f" position {found.end}; {snapshots} snapshots."
    )
    if found.closed:
        _say("The last stop was clean.")
    elif found.tail:
        _say("Behind the last frame is a tail that was never synced; the next start cuts it.")
    return OK


def _repair(options: argparse.Namespace) -> int:
    import msgspec

    from posthouse.broker.repair import repair

    report = repair(options.data)
    if options.json:
        _say(msgspec.json.encode(report).decode())
        return OK
    for hole in report.holes:
        _say(f"Not readable: {hole}.")
    for queue in report.queues:
        _say(f"Made again with default properties, because its creation is lost: {queue}.")
    for message in report.messages:
        _say(f"Content lost: {message}.")
    _say(
        f"{options.data} is sound: {report.frames} frames kept, {report.missing} positions missing."
        f" The files as they were are in {options.data / report.old_files}; remove that folder"
        " when nothing is missed."
    )
    return OK


def _fold(options: argparse.Namespace) -> int:
    from posthouse.broker.fold import fold

    folded = fold(options.data)
    if options.json:
        _say(json.dumps(folded._asdict()))
    elif folded.frames:
        _say(
            f"A snapshot holds all up to position {folded.position}, {folded.frames} frames more"
            f" than before; {folded.scrubbed} old segments were read again and are sound."
        )
    else:
        _say(f"There is nothing more to fold; {folded.scrubbed} old segments are sound.")
    return OK


# The past.


def _state(options: argparse.Namespace) -> int:
    from posthouse.broker.past import state_at
    from posthouse.core.message import STATES

    async def look(store: "FileStore") -> int:
        last = store.durable - 1 if options.at is None else options.at
        world = await state_at(store, store.snapshots, last)
        queues = [
            {
                "namespace": state.name,
                "queue": queue.name,
                **dict(zip(STATES, queue.counts, strict=True)),
                "bytes": queue.size_bytes,
            }
            for state in world.states.values()
            for queue in state.queues.values()
        ]
        if options.json:
            _say(json.dumps({"position": last, "queues": queues}))
            return OK
        _say(f"At position {last}:")
        for each in queues:
            counts = ", ".join(f"{each[word]} {word}" for word in STATES if each[word])
            _say(f"  {each['namespace']}/{each['queue']}: {counts or 'empty'}")
        return OK

    return _reading(options.data, look)


def _trace(options: argparse.Namespace) -> int:
    from posthouse.broker.past import Place, find, life

    if options.id is None and (options.queue is None or options.sequence is None):
        return _fail("Name a message: --id, or --queue and --sequence.", 2)

    async def look(store: "FileStore") -> int:
        places: list[Place]
        if options.id is None:
            places = [Place(options.queue, options.sequence)]
        else:
            places = await find(store, options.namespace, options.id)
            if not places:
                return _fail(f"No message with id {options.id!r} was sent.", NOT_FOUND)
        lives = [await life(store, options.namespace, place) for place in places]
        if options.json:
            _say(json.dumps([[event._asdict() for event in events] for events in lives]))
            return OK
        for place, events in zip(places, lives, strict=True):
            _say(f"{options.namespace}/{place.queue}, message {place.sequence}:")
            for event in events:
                _say(f"  {event.position:>12}  {_time(event.time_ms)}  {event.text}")
        return OK

    return _reading(options.data, look)


def _time(unix_ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _reading(folder: Path, look: Callable[["FileStore"], Coroutine[None, None, int]]) -> int:
    import asyncio

    from posthouse.store.file import FileStore

    async def run() -> int:
        store = FileStore(folder, read_only=True)
        try:
            return await look(store)
        finally:
            await store.close()

    return asyncio.run(run())


def _resend(options: argparse.Namespace) -> int:
    import asyncio
    import secrets

    from posthouse.broker.access import BROKER
    from posthouse.broker.clock import SystemClock
    from posthouse.broker.engine import Engine
    from posthouse.broker.past import Range, resend
    from posthouse.store.file import FileStore

    async def run() -> int:
        store = FileStore(options.data)
        engine = await Engine.open(
            store, SystemClock(), secrets.randbits(32), snapshots=store.snapshots
        )
        what = Range(options.first, options.last + 1, options.source)
        try:
            return await resend(engine, BROKER, options.namespace, what, options.into)
        finally:
            await engine.close()

    sent = asyncio.run(run())
    _say(json.dumps({"sent": sent}) if options.json else f"{sent} messages were sent again.")
    return OK


if __name__ == "__main__":
    sys.exit(main())
