"""Every command and its options. Light: what a command needs is imported when it runs."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

EXAMPLES = """\
examples:
  posthouse serve --dev --auto-create      a broker for development, in ./posthouse-data
  posthouse send orders 'a book'           send a message
  posthouse receive orders                 receive it, and be done with it
  posthouse top                            queues, as they change
"""


def make_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """`words` are those of the command line: settings are there where they can be meant."""
    parser = argparse.ArgumentParser(
        prog="posthouse",
        description="One message broker that every queue client knows.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    rooms = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    settings = bool({"serve", "config"} & set(words))
    _add_serve(rooms, settings=settings)
    _add_store(rooms)
    return parser


Rooms: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _room(rooms: Rooms, name: str, help: str) -> Rooms:
    made = rooms.add_parser(name, help=help, description=help)
    return made.add_subparsers(title="actions", required=True, metavar="ACTION")


def _action(
    rooms: Rooms, name: str, run: str, help: str, example: str = ""
) -> argparse.ArgumentParser:
    made = rooms.add_parser(
        name, help=help, description=help[0].upper() + help[1:] + ".",
        epilog=f"example:\n  {example}" if example else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.set_defaults(run=run)
    return made


def _add_serve(rooms: Rooms, *, settings: bool) -> None:
    made = _action(
        rooms, "serve", "serve:serve", "run the broker", "posthouse serve --data /var/lib/posthouse"
    )
    if settings:
        _add_settings(made)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """A flag for every setting. Each may also be in the environment, or in a file."""
    from posthouse.server.config import SETTINGS

    for name, (_, help, metavar) in SETTINGS.items():
        flag = "--" + name.replace("_", "-")
        if not metavar:
            parser.add_argument(flag, dest=name, action="store_const", const="true", help=help)
        elif metavar.endswith("..."):
            metavar = metavar.removesuffix("...")
            parser.add_argument(
                flag, dest=name, action="append", metavar=metavar, help=f"{help}; may be repeated"
            )
        else:
            parser.add_argument(flag, dest=name, metavar=metavar, help=help)


def _add_store(rooms: Rooms) -> None:
    store = _room(rooms, "store", "look after a data folder")

    def action(name: str, help: str) -> argparse.ArgumentParser:
        made = _action(store, name, f"store:{name}", help)
        made.add_argument("--data", type=Path, required=True, metavar="DIR", help="the data folder")
        made.add_argument("--json", action="store_true", help="for programs")
        return made

    action("verify", "check every frame and snapshot; changes nothing")
    action("repair", "keep what can be read of a damaged journal, and say what is lost")
    action("fold", "write a snapshot, so that the next start is quick")
    made = action("state", "the queues as they were at a position; changes nothing")
    made.add_argument("--at", type=int, metavar="POSITION", help="the last one if not given")
    made = action("trace", "everything that happened to a message; changes nothing")
    made.add_argument("--namespace", required=True)
    made.add_argument("--id", metavar="MESSAGE-ID")
    made.add_argument("--queue")
    made.add_argument("--sequence", type=int, metavar="NUMBER", help="in that queue")
    made = action("resend", "send what was sent at some positions once more")
    made.add_argument("--namespace", required=True)
    made.add_argument("--first", type=int, required=True, metavar="POSITION")
    made.add_argument("--last", type=int, required=True, metavar="POSITION")
    made.add_argument("--from", dest="source", metavar="QUEUE", help="only what was sent to it")
    made.add_argument("--into", required=True, metavar="QUEUE")
