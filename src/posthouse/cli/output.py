"""The output of a command: whether its reader is there, and how much of it was taken."""

import fcntl
import os
import select
import stat
import struct
import sys
import termios

from posthouse.cli.codes import flush

_QUICK_LOOKS = 200  # before it is waited between two looks: most readers are there at once
_LOOK_MS = 5


def until_taken() -> None:
    """Waits until the reader of a pipe has taken everything. Raises BrokenPipeError, NotWritten.

    A file or a terminal takes it at once.
    """
    flush()
    pipe = _pipe()
    if pipe is None:
        return
    looks = 0
    while _unread(pipe):
        is_closed = _is_closed(pipe, 0 if looks < _QUICK_LOOKS else _LOOK_MS)
        if is_closed and _unread(pipe):  # it may have taken all of it, and then ended
            raise BrokenPipeError
        looks += 1


def check_reader() -> None:
    """Raises BrokenPipeError where nobody reads the pipe any more."""
    pipe = _pipe()
    if pipe is not None and _is_closed(pipe, 0):
        raise BrokenPipeError


def discard() -> None:
    """What is still to be written goes nowhere, so that the end of the process does not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _pipe() -> int | None:
    number = sys.stdout.fileno()
    return number if stat.S_ISFIFO(os.fstat(number).st_mode) else None


def _unread(pipe: int) -> int:
    """Bytes in it. Linux tells it at either end; where a system does not, there are none."""
    try:
        answer = fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))
    except OSError:
        return 0
    return int(struct.unpack("i", answer)[0])


def _is_closed(pipe: int, wait_ms: int) -> bool:
    """Whether nobody has the other end, after waiting for that."""
    looking = select.poll()
    looking.register(pipe, 0)  # of errors alone, which this is
    return bool(looking.poll(wait_ms))
