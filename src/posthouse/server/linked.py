"""The leader's end of node links: clients that have connected to another node of the cluster.

When a node has proved that it is one, its link is sniffed and served as the client's own connection
would be, with the client's address. To the peer of the dialect, `LinkTransport` is the transport.
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import Any, cast

from posthouse.dialects.connections import hang_up
from posthouse.server.config import HTTP_PROFILES
from posthouse.server.listener import Connection
from posthouse.server.node_link import (
    NONCE_BYTES,
    BadLink,
    LeaderEnd,
    RelayedClient,
    Unframer,
    Verdict,
)


class Links:
    """All links to this node, which takes them while it leads."""

    def __init__(self, key: bytes, leads_at: Callable[[str], bool]) -> None:
        """`leads_at`: whether this node leads, and is reached at this address."""
        self.key = key
        self.leads_at = leads_at
        self.open = 0  # that carry a client's connection

    def make(self, connection: Connection) -> "LinkedPeer":
        return LinkedPeer(self, connection)


class LinkedPeer(asyncio.Protocol):
    """One link, as asyncio wants it. `inner` is the protocol of the client's bytes."""

    def __init__(self, links: Links, connection: Connection) -> None:
        self._links = links
        self._connection = connection
        self._end = LeaderEnd(links.key, secrets.token_bytes(NONCE_BYTES))
        self._unframer = Unframer()
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)  # once it is made
        self._timer: asyncio.TimerHandle | None = None
        self.inner: asyncio.Protocol | None = None  # once the client was let in

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(self._connection.deadline, self._too_late)

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        try:
            if self.inner is None:
                self._shake_hands(data)
            else:
                self._take(self.inner, data)
        except BadLink as bad:
            self._connection.refuse_link(f"{bad}")
            self._transport.abort()

    def _shake_hands(self, data: bytes) -> None:
        """Raises BadLink."""
        if not self._connection.is_tls or self._connection.is_relayed:
            raise BadLink("it has no TLS of its own")
        self._transport.write(self._end.receive(data))
        client = self._end.client
        if client is None:
            return
        if client.http_profile and client.http_profile not in HTTP_PROFILES:
            raise BadLink("the HTTP profile that it names is unknown here")
        self._stop_waiting()
        verdict = Verdict.WELCOME
        if not self._links.leads_at(client.to):
            verdict = Verdict.NOT_LEADER
        elif not self._connection.relay(client.address, client.http_profile):
            verdict = Verdict.FULL
        self._transport.write(self._end.answer(verdict))
        if verdict != Verdict.WELCOME:
            hang_up(self._transport)
            return
        self._links.open += 1
        self.inner = self._connection.new_sniffer()
        self.inner.connection_made(LinkTransport(self, self._transport, client))

    def _take(self, inner: asyncio.Protocol, data: bytes) -> None:
        """Raises BadLink."""
        of_client = self._unframer.feed(data)
        if of_client:
            inner.data_received(of_client)
        if self._unframer.is_over and self.inner is not None:
            stays_open = self.inner.eof_received()
            if not stays_open:
                self._transport.close()

    def pause_writing(self) -> None:
        if self.inner is not None:
            self.inner.pause_writing()

    def resume_writing(self) -> None:
        if self.inner is not None:
            self.inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self.inner is None:
            self._connection.gone()
        else:
            self._links.open -= 1
            self.inner.connection_lost(exc)

    def shutdown(self) -> None:
        self._transport.close()

    def _too_late(self) -> None:
        self._connection.refuse_link("it says nothing")
        self._transport.abort()

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class LinkTransport(asyncio.Transport):
    """A link as the transport of the client's connection, which tells of that what it is asked."""

    def __init__(
        self, peer: LinkedPeer, transport: asyncio.Transport, client: RelayedClient
    ) -> None:
        super().__init__()
        self._peer = peer
        self._link = transport
        self._client = client
        # Called with every message, and the link's own.
        self.write = transport.write  # type: ignore[method-assign]
        self.is_closing = transport.is_closing  # type: ignore[method-assign]

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self._client.address, 0
        if name in ("sslcontext", "ssl_object", "cipher", "peercert") and not self._client.tls:
            return default
        return self._link.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._peer.inner = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._peer.inner is not None
        return self._peer.inner

    def close(self) -> None:
        self._link.close()

    def abort(self) -> None:
        self._link.abort()

    def is_reading(self) -> bool:
        return self._link.is_reading()

    def pause_reading(self) -> None:
        self._link.pause_reading()

    def resume_reading(self) -> None:
        self._link.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._link.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._link.get_write_buffer_size()

    def can_write_eof(self) -> bool:
        return False
