"""The command line.

Exit codes: 0 it went well; 1 it did not, and the text says why; 2 the command line is wrong; 3 what
was named is not there; 4 it is not allowed; 5 there was nothing, or it took too long; 74 the
journal could not be written, and what was not acknowledged is open.
"""

import io
import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib import import_module

from posthouse.cli.parser import make_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name need not be text that can be shown
            stream.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if arguments is None else arguments
    parser = make_parser(words)
    options, rest = parser.parse_known_args(words)
    if rest and not _take_late(options, rest):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    module, _, name = options.run.partition(":")
    try:
        code = getattr(import_module(f"posthouse.cli.{module}"), name)(options)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the pipe has seen enough
        sys.stderr.close()
        return 0
    assert isinstance(code, int)
    return code


def _take_late(options: Namespace, rest: list[str]) -> bool:
    """Arguments behind options, which argparse does not find: whether they could be taken."""
    late = getattr(options, "late", None)
    if late == "body" and options.body is None and len(rest) == 1 and rest[0][:1] != "-":
        options.body = rest[0]
    elif late == "numbers" and not options.numbers and all(each.isdigit() for each in rest):
        options.numbers = [int(each) for each in rest]
    else:
        return False
    return True
