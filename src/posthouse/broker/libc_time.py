"""The machine's time for a broker in the process of a test, which may have frozen its own.

freezegun puts other functions into the modules of a program, and time-machine changes those of the
interpreter. Neither reaches the C library.
"""

import ctypes
import time

from posthouse.broker.clock import Machine


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class LibcTime:
    """Raises AttributeError or OSError where the C library has no `clock_gettime`."""

    def __init__(self) -> None:
        self._read = ctypes.CDLL(None, use_errno=True).clock_gettime
        self._read.argtypes = (ctypes.c_int, ctypes.POINTER(_Timespec))
        self.time_ns()

    def time_ns(self) -> int:
        return self._now_ns(time.CLOCK_REALTIME)

    def monotonic_ns(self) -> int:
        return self._now_ns(time.CLOCK_MONOTONIC)

    def _now_ns(self, clock: int) -> int:
        now = _Timespec()
        if self._read(clock, ctypes.byref(now)):
            raise OSError(ctypes.get_errno(), "clock_gettime failed")
        return int(now.seconds) * 1_000_000_000 + int(now.nanoseconds)


def unfrozen() -> Machine:
    """The C library's time; where that cannot be read, as on Windows, the interpreter's."""
    try:
        return LibcTime()
    except (AttributeError, OSError, TypeError):
        return time
