"""The command line.

Exit codes: 0 it went well; 1 it did not, and the text says why; 2 the command line is wrong; 3 what
was named is not there; 4 it is not allowed; 5 there was nothing, or it took too long; 74 the
journal could not be written, and what was not acknowledged is open.
"""

import io
import sys
from collections.abc import Sequence
from importlib import import_module

from posthouse.cli.parser import make_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name need not be text that can be shown
            stream.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if arguments is None else arguments
    options = make_parser(words).parse_args(words)
    module, _, name = options.run.partition(":")
    try:
        code = getattr(import_module(f"posthouse.cli.{module}"), name)(options)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # who was reading has seen enough
        sys.stderr.close()
        return 0
    assert isinstance(code, int)
    return code
