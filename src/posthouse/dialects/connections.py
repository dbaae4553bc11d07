"""Connections of every dialect: what is known of one, its end, and who there are."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

END_SECONDS = 2.0  # what a client has to take our last words
_Peer = TypeVar("_Peer")
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class ConnectionInfo(Protocol):
    """The listener's information about a connection."""

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


class Peer(Protocol):
    """One connection's protocol state, as asyncio wants it, and a way to end it politely."""

    def connection_made(self, transport: Any) -> None: ...

    def data_received(self, data: bytes) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def shutdown(self) -> None:
        """Tells the other side in its protocol that this one is going, when it is a good moment."""


class WrappedPeer(Peer, Protocol):
    """A peer whose bytes come in the frames of another protocol."""

    is_trusted: bool  # its client has shown who it is

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class PeerRegistry(Generic[_Peer]):
    """The peers of one dialect. As long as there are some they are looked at now and then."""

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


def guarded(callback: Callable[[_T], None], end: Callable[[], None]) -> Callable[[_T], None]:
    """Wraps a callback for the engine. If the callback fails, its connection is ended.

    Otherwise the client would wait for ever, and hold messages that nobody knows of.
    """

    def guard(told: _T) -> None:
        try:
            callback(told)
        except Exception:  # noqa: BLE001 (a connection's own code must not concern others)
            _log.exception("An answer could not be told.", extra={"event": "connection.failed"})
            end()

    return guard


def hang_up(transport: asyncio.Transport) -> None:
    """Closes when what was said is taken, which must not take long."""
    transport.close()
    asyncio.get_running_loop().call_later(END_SECONDS, transport.abort)
