"""The command line."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

OK, FAILED, NOT_FOUND = 0, 1, 3  # exit codes; argparse has 2 for a command line that is wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="posthouse", description="One message broker that every queue client knows."
    )
    rooms = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    store = rooms.add_parser("store", help="look after a data folder")
    actions = store.add_subparsers(title="actions", required=True, metavar="ACTION")
    verify = actions.add_parser("verify", help="check every frame of the journal; changes nothing")
    verify.add_argument("--data", type=Path, required=True, metavar="DIR", help="the data folder")
    verify.add_argument("--json", action="store_true", help="for programs")
    verify.set_defaults(run=_verify)
    options = parser.parse_args(arguments)
    code: int = options.run(options)
    return code


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _verify(options: argparse.Namespace) -> int:
    from posthouse.store.disk import Disk
    from posthouse.store.errors import StoreError
    from posthouse.store.file import LOCK
    from posthouse.store.look import look

    folder: Path = options.data
    if not folder.is_dir():
        sys.stderr.write(f"There is no folder {folder}; check the name.\n")
        return NOT_FOUND
    disk = Disk()
    try:
        lock = disk.lock(folder / LOCK)
        try:
            found = look(disk, folder)
        finally:
            disk.close(lock)
    except StoreError as error:
        if options.json:
            _say(json.dumps({"sound": False, "error": str(error)}))
        else:
            sys.stderr.write(f"{error}\n")
        return FAILED
    if options.json:
        report = {
            "sound": True,
            "segments": len(found.segments),
            "frames": found.frames,
            "end": found.end,
            "closed": found.closed,
            "tail": found.tail,
        }
        _say(json.dumps(report))
        return OK
    _say(
        f"{folder} is sound: {found.frames} frames in {len(found.segments)} segments,"
        f" up to position {found.end}."
    )
    if found.closed:
        _say("The last stop was clean.")
    elif found.tail:
        _say("Behind the last frame is a tail that was never synced; the next start cuts it.")
    return OK


if __name__ == "__main__":
    sys.exit(main())
