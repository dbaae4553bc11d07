"""The places in a bridge where the test kit takes part. Outside of a test they do nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from posthouse.bridge.transport import Transport


class SimulatedCrash(BaseException):
    """Raised by the test kit where a process is to die: no error handling may notice it."""


def _as_it_is(near: Transport) -> Transport:
    return near


def _go_on(where: str) -> None:
    """The process goes on."""


def _in_time(delay: float) -> float:
    return delay


@dataclass(frozen=True)
class Hooks:
    """The test kit's wrapper of a transport, its points of death, and its waiting."""

    wrap: Callable[[Transport], Transport] = _as_it_is
    crash_point: Callable[[str], None] = _go_on
    pace: Callable[[float], float] = _in_time
    memory: str = ""  # the address of a broker in memory that several bridges share
