"""PyQueue, as the server knows it."""

from collections.abc import Awaitable
from functools import cached_property
from typing import TYPE_CHECKING

from posthouse.dialects.dialect import (
    TLS_TEXT,
    Dialect,
    Host,
    HttpProfile,
    Reached,
    Wire,
    after_word,
)
from posthouse.dialects.pyqueue import settings
from posthouse.dialects.pyqueue.settings import PyQueueSettings

if TYPE_CHECKING:
    from posthouse.dialects.connections import ConnectionInfo
    from posthouse.dialects.http import Answer, Request
    from posthouse.dialects.pyqueue.context import PyQueueContext
    from posthouse.dialects.pyqueue.peer import Peer
    from posthouse.dialects.pyqueue.web import Web

PORT = 5555
RATE = 10  # tasks that one address may push in a second, unless it is set


class PyQueue:
    """The state that all connections and requests share. Each part is made on first use."""

    def __init__(self, host: Host, settings: PyQueueSettings) -> None:
        """Raises OSError: a start without the key that tokens are checked with fails at once."""
        self._host = host
        self._settings = settings
        path = settings.jwt_public_key
        self._public_key = None if path is None else path.read_text()

    @cached_property
    def _context(self) -> "PyQueueContext":
        from posthouse.dialects.pyqueue.context import PyQueueContext, Settings
        from posthouse.dialects.pyqueue.credentials import Signing

        host, given = self._host, self._settings
        rate = 0 if host.dev else RATE
        signing = Signing(
            given.jwt_secret, self._public_key, given.jwt_audience, given.jwt_issuer
        )  # fmt: skip
        settings = Settings(
            namespace=host.namespace,
            is_open=host.dev and not given.pyqueue_security,
            signing=signing,
            lock_ms=given.pyqueue_lock * 1_000,
            retries=given.pyqueue_retries,
            depth=given.pyqueue_depth,
            ttl_ms=None if given.pyqueue_ttl is None else given.pyqueue_ttl * 1_000,
            deduplicate=given.pyqueue_deduplicate,
            rate=rate if given.pyqueue_rate is None else given.pyqueue_rate,
            burst=given.pyqueue_burst,
            connections=given.pyqueue_connections,
            zone=given.pyqueue_zone,
        )
        return PyQueueContext(host, host.guard, settings)

    def answer(self, request: "Request") -> "Awaitable[Answer]":
        return self._web.answer(request)

    @cached_property
    def _web(self) -> "Web":
        from posthouse.dialects.pyqueue.web import Web

        return Web(self._context)

    def make_peer(self, info: "ConnectionInfo") -> "Peer":
        from posthouse.dialects.pyqueue.peer import Peer

        return Peer(self._context, info)


def is_pyqueue(data: bytes) -> bool | None:
    """A word, a space, and a length: digits, or binary with a zero in front."""
    after = after_word(data)
    return None if after is None else after.isdigit() or after == b"\0"


def _demand_tls(_: bytes) -> bytes:
    from posthouse.dialects.pyqueue.codec import encode

    return encode(b"ERROR", TLS_TEXT.encode())


def _welcome(reached: Reached) -> tuple[str, str]:
    return "PyQueue", f"{reached.host}:{reached.port(PORT)}"


declaration = Dialect(
    "pyqueue",
    PyQueueSettings,
    PyQueue,
    Wire("pyqueue", is_pyqueue, PyQueue.make_peer, _demand_tls),
    profile=HttpProfile("pyqueue-http", 8080, "PyQueue's API over HTTP", PyQueue.answer),
    ports=(PORT,),
    welcome=_welcome,
    warm=("posthouse.dialects.pyqueue.peer",),
    check=settings.check,
    read_environment=settings.read_environment,
    read_file=settings.read_file,
    principals=settings.principals,
)
