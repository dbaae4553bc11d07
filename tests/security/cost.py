"""Processor time, told in steps of plain Python.

A processor that is shared, hot or old takes longer for everything. So what an input costs is not
told in seconds, but in how many steps of a plain loop would have taken as long, just then.
"""

import gc
import time
from collections.abc import Callable
from typing import TypeVar

_STEPS = 100_000  # of the loop that is measured; they take some milliseconds
T = TypeVar("T")


def steps_of(work: Callable[[], T]) -> tuple[float, T]:
    """How many steps it costs, and what it returns. Garbage is not collected meanwhile."""
    gc.disable()  # what other tests left behind is not this one's
    try:
        before = _step_seconds()
        begun = time.process_time()
        found = work()
        used = time.process_time() - begun
        return used / max(before, _step_seconds()), found
    finally:
        gc.enable()


def _step_seconds() -> float:
    begun = time.process_time()
    number = 0
    for each in range(_STEPS):
        number = number + each & 0xFF
    return (time.process_time() - begun) / _STEPS
