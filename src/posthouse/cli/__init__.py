"""The command line.

Exit codes: 0 it went well; 1 it did not, and the text says why; 2 the command line is wrong; 3 what
was named is not there; 4 it is not allowed; 5 there was nothing, or it took too long; 74 the
journal could not be written, and what was not acknowledged is open; 130 Ctrl-C ended it.
"""

import io
import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib import import_module

from posthouse.cli.codes import FAILED, INTERRUPTED, OK, NotWritten, fail, flush
from posthouse.cli.output import discard


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name need not be text that can be shown
            stream.reconfigure(errors="backslashreplace")
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        # On a terminal over the ^C, and over what was told of the progress.
        return fail("\r\033[KInterrupted." if sys.stderr.isatty() else "Interrupted.", INTERRUPTED)
    except BrokenPipeError:  # who was reading has seen enough
        discard()
        return OK
    except NotWritten as error:
        discard()
        return fail(str(error), FAILED)


def _run(words: Sequence[str]) -> int:
    from posthouse.cli.parser import make_parser  # here, where Ctrl-C is told in one line

    parser = make_parser(words)
    options, rest = parser.parse_known_args(words)
    if rest and not _take_late(options, rest):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    module, _, name = options.run.partition(":")
    code = getattr(import_module(f"posthouse.cli.{module}"), name)(options)
    assert isinstance(code, int)
    flush()  # here, where it is known what to do if that fails
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
