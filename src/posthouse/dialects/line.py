"""What the connections of every dialect have in common: the line they are on, and their ends."""

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

END_SECONDS = 2.0  # what a client has to take our last words
_Peer = TypeVar("_Peer")


class Line(Protocol):
    """What the listener knows of a connection."""

    @property
    def handshake_seconds(self) -> float: ...

    @property
    def address(self) -> str: ...

    @property
    def is_tls(self) -> bool: ...

    def identified(self, principal: str) -> bool:
        """Its client has shown who it is; whether that one may have one more connection."""

    def gone(self) -> None:
        """It is over."""


class Circle(Generic[_Peer]):
    """The connections of one dialect. As long as there are some they are looked at now and then."""

    def __init__(self, seconds: float, look: Callable[[], None]) -> None:
        self.peers: set[_Peer] = set()
        self._seconds = seconds
        self._look = look
        self._timer: asyncio.TimerHandle | None = None

    def add(self, peer: _Peer) -> None:
        self.peers.add(peer)
        self._arm()

    def remove(self, peer: _Peer) -> None:
        self.peers.discard(peer)
        if not self.peers and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is None and self.peers:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._due)

    def _due(self) -> None:
        self._timer = None
        self._look()
        self._arm()


def read_or_not(transport: asyncio.Transport, *, now: bool, wanted: bool) -> bool:
    """Whether a connection is read from, when it is seen to that it is as wanted."""
    if wanted == now or transport.is_closing():
        return now
    if wanted:
        transport.resume_reading()
    else:
        transport.pause_reading()
    return wanted


def hang_up(transport: asyncio.Transport) -> None:
    """Closes when what was said is taken, which must not take long."""
    transport.close()
    asyncio.get_running_loop().call_later(END_SECONDS, transport.abort)
