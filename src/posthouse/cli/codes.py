"""Exit codes, and the two ways to say something."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

OK, FAILED, USAGE, NOT_FOUND, NOT_ALLOWED, EMPTY, LOST, INTERRUPTED = 0, 1, 2, 3, 4, 5, 74, 130


class NotWritten(Exception):
    """The output cannot be written, as where the disk is full; the text says why."""


def say(text: str) -> None:
    """Raises BrokenPipeError, NotWritten."""
    with _written():
        sys.stdout.write(text + "\n")


def flush() -> None:
    """Raises BrokenPipeError, NotWritten."""
    with _written():
        sys.stdout.flush()


@contextmanager
def _written() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise NotWritten(f"The output cannot be written: {error.strerror}.") from None


def fail(text: str, code: int) -> int:
    sys.stderr.write(text + "\n")
    return code
