"""The listener: every port speaks every dialect.

One byte is peeked at, once: 0x16 begins TLS. Then a small protocol collects bytes until a dialect
recognises them, at most 64, and hands the connection over to that dialect's peer. Who says nothing
past the handshake limit is closed; until then it costs a socket, a timer, and no CPU.

A connection whose client has not shown who it is is a stranger's. Strangers have limits of their
own, per address and in total, so that they cannot keep clients out.

Who comes from another machine without TLS is told that he needs it, before he can say his key where
the protocol allows that, and is closed.
"""

import asyncio
import errno
import ipaddress
import logging
import select
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from posthouse.broker.access import ANYBODY
from posthouse.dialects.connections import Peer, hang_up
from posthouse.dialects.dialect import after_word

if TYPE_CHECKING:
    import ssl

_log = logging.getLogger(__name__)

SNIFF_BYTES = 64
BACKLOG = 1_024
ACCEPT_MAX = 64  # in one go, so that those who are in get their turn
OUT_OF_FILES_SECONDS = 1.0
TLS_CLOSE_SECONDS = 2.0
WARN_SECONDS = 60.0  # between two warnings of one kind
_PREFIX_BITS = 64  # of an IPv6 address: who has one address of a network has all of them
_TLS = 0x16
_NEW, _UNKNOWN = "new", "unknown"
# The other side says no more. That it was reset, or that both say no more, is always told.
_LEFT = getattr(select, "POLLRDHUP", 0)

Networks: TypeAlias = Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]
LOOPBACK: Networks = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))
MakeContext: TypeAlias = Callable[[], "asyncio.Future[ssl.SSLContext]"]


class PortProtocol(NamedTuple):
    """A protocol that a port can be spoken to in."""

    name: str
    # From the first bytes: True, False, or None where more of them are needed to tell.
    recognise: Callable[[bytes], bool | None]
    # A peer for a connection, which says so when it is gone.
    make: "Callable[[Connection], Peer]"
    # The answer that TLS is required, to a client that began with these bytes. None: its peer sees
    # to it.
    demand_tls: Callable[[bytes], bytes] | None = None


class Connection:
    """One connection as the listener knows it. Its peer calls `gone` when it is over."""

    __slots__ = (
        "_listener", "address", "answers_once", "closed_at", "deadline", "dialect",
        "ends_with_input", "http_profile", "is_far", "is_opening", "is_relayed", "peer",
        "principal", "source", "transport",
    )  # fmt: skip

    def __init__(self, listener: "Listener", address: str, http_profile: str = "") -> None:
        self._listener = listener
        self._come_from(address)
        self.principal: str | None = None  # who its client is; None: a stranger
        # The dialect that answers all HTTP on its port; empty: the one that a request is for.
        self.http_profile = http_profile
        self.dialect = _NEW
        self.is_opening = False  # its transport is being made, which takes but a moment
        self.is_relayed = False  # its client has connected to another node of the cluster
        self.answers_once = False  # it is closed behind the first answer over HTTP
        self.ends_with_input = False  # at the end of input, requests are not answered any more
        self.closed_at: float | None = None  # when it was first seen that it is being closed
        self.peer: Peer | None = None
        self.transport: asyncio.Transport | None = None
        self.begin_handshake()

    def begin_handshake(self) -> None:
        """From now on its client has the whole handshake limit."""
        self.deadline = asyncio.get_running_loop().time() + self.handshake_seconds

    def _come_from(self, address: str) -> None:
        self.address = address  # of the other side
        self.source = _source(address)  # the key by which strangers are counted
        limits = self._listener.limits
        self.is_far = not is_among(address, limits.local_networks)  # not this machine's

    @property
    def limits(self) -> "Limits":
        return self._listener.limits

    @property
    def handshake_seconds(self) -> float:
        return self._listener.limits.handshake_seconds

    @property
    def is_tls(self) -> bool:
        return self.transport is not None and bool(self.transport.get_extra_info("sslcontext"))

    @property
    def lacks_tls(self) -> bool:
        """Whether it is not encrypted, and has to be."""
        return self.is_far and self._listener.limits.requires_tls and not self.is_tls

    @property
    def is_closing(self) -> bool:
        return self.transport is None or self.transport.is_closing()

    def identified(self, principal: str) -> bool:
        """Notes that the client has authenticated; returns whether it may have this connection."""
        return self.principal == principal or self._listener.identified(self, principal)

    def demand_tls(self) -> None:
        """Counts a client that came without TLS, and logs it now and then."""
        self._listener.demand_tls(self)

    def known_as(self, dialect: str) -> None:
        self._listener.moved(self, dialect)

    def refused(self, why: str) -> None:
        """Counts that it is turned away."""
        self._listener.refused[why] += 1

    # Between the nodes of a cluster.

    def handed_on(self) -> None:
        """The leader has it from now on, and counts it among its own strangers."""
        self._listener.is_no_stranger(self)

    def relay(self, address: str, http_profile: str) -> bool:
        """A node has shown that it is one, and tells whose connection it hands on.

        Returns whether that client may come in.
        """
        self._listener.is_no_stranger(self)  # of the node's address
        self._come_from(address)
        self.http_profile = http_profile
        self.is_relayed = True
        self.begin_handshake()
        return self._listener.admits(self)

    def new_sniffer(self) -> asyncio.Protocol:
        """The protocol that tells the dialect, once more from the first byte on."""
        self.peer = None
        self.known_as(_NEW)
        return _Sniffer(self._listener, self)

    def refuse_link(self, why: str) -> None:
        """Counts who began as a node and is none, and logs it now and then."""
        self._listener.refuse_link(self, why)

    def gone(self) -> None:
        self._listener.forget(self)


class Limits(NamedTuple):
    handshake_seconds: float = 10
    connections: int = 10_000
    strangers: int = 2_000  # connections whose clients have not shown who they are,
    strangers_per_address: int = 500  # and those of one address
    per_principal: int = 5_000  # connections of one principal
    networks: Networks | None = None  # from where peers are let in; None: from anywhere
    local_networks: Networks = LOOPBACK  # clients from there are on this machine
    requires_tls: bool = False  # of who is not
    keep_alive_seconds: float = 75  # between requests
    body_seconds: float = 60  # for the whole of a request's body
    stalled_seconds: float = 60  # how long a peer may not read what it asked for
    end_seconds: float = 5  # for a closed connection to take the rest
    closing_seconds: float = 120  # the same for one that takes some of it all the time
    look_seconds: float = 5  # how often it is looked whether those not read from are still there
    answers_bytes: int = 256 << 20  # of answers that are being sent, before more is refused,
    bodies_bytes: int = 256 << 20  # and of requests that are being read,
    strangers_bytes: int = 32 << 20  # and of either for who has not shown who he is


class Listening(NamedTuple):
    """A port that is listened on, and the HTTP profile it is declared for."""

    host: str
    port: int
    http_profile: str


class Listener:
    """The listener of all ports. Connections it has accepted live until their peers end."""

    def __init__(
        self, protocols: Sequence[PortProtocol], limits: Limits, tls: MakeContext | None = None
    ) -> None:
        self.protocols = protocols
        self.limits = limits
        self._tls = tls
        self._sockets: dict[socket.socket, str] = {}  # and the HTTP profile of each
        self._connections: set[Connection] = set()
        self._tasks: dict[Connection, asyncio.Task[None]] = {}  # of those without a transport
        self.by_dialect: Counter[str] = Counter()  # open now
        self.accepted = 0
        # Why: full, address, silent, unknown, strangers, principal, tls; in a cluster also link
        # (it claims to be a node, and is none) and leader (no node was found that leads).
        self.refused: Counter[str] = Counter()
        self._strangers: dict[str, dict[Connection, None]] = {}  # by source, the oldest first
        self.strangers = 0  # all of them
        self._by_principal: Counter[str] = Counter()
        self._warned: dict[str, float] = {}  # of what, and when
        self._emptied = asyncio.Event()
        self._closing = False
        self._looking: asyncio.TimerHandle | None = None

    # Opening and closing.

    def open(self, hosts: Sequence[str], ports: Sequence[tuple[int, str]]) -> list[Listening]:
        """Opens each port with its HTTP profile. Raises OSError where it can open none at all."""
        listening: list[Listening] = []
        failure: OSError | None = None
        for wanted, http_profile in ports:
            port = wanted
            for host in hosts:
                try:
                    made = _listening(host, port)
                except OSError as error:
                    failure = self._not_open(host, port, error)
                    continue
                port = made.getsockname()[1]  # where one was picked, the other hosts have it too
                self._sockets[made] = http_profile
                listening.append(Listening(host, port, http_profile))
        if not listening:
            raise failure or OSError(errno.EINVAL, "there is nothing to listen on")
        for each in self._sockets:
            asyncio.get_running_loop().add_reader(each, self._accept, each)
        return listening

    def _not_open(self, host: str, port: int, error: OSError) -> OSError:
        if error.errno == errno.EADDRNOTAVAIL and ":" in host:
            _log.debug("There is no IPv6 here: %s.", host)
        else:
            _log.warning(
                "Cannot listen on %s port %d: %s.", host, port, error.strerror,
                extra={"event": "listener.port", "host": host, "port": port},
            )  # fmt: skip
        return error

    def stop_accepting(self) -> None:
        loop = asyncio.get_running_loop()
        for each in self._sockets:
            loop.remove_reader(each)
            each.close()
        self._sockets.clear()

    async def close(self, seconds: float) -> bool:
        """Tells every peer, and waits for them that long; whether all have gone."""
        self.stop_accepting()
        self._closing = True
        for connection, task in list(self._tasks.items()):
            # Else what it has asked for may be under way. And uvloop tells nobody that a connection
            # is lost which it was about to make.
            if connection.transport is None and not connection.is_opening:
                task.cancel()
        for connection in list(self._connections):
            self._tell(connection)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._connections:
                    self._emptied.clear()
                    await self._emptied.wait()
        all_gone = not self._connections
        for connection in list(self._connections):
            if connection.transport is not None:
                connection.transport.abort()
        return all_gone

    def _tell(self, connection: Connection) -> None:
        if connection.peer is not None:
            connection.peer.shutdown()
        elif connection.transport is not None:
            connection.transport.close()

    # Accepting.

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPT_MAX):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                self._pause(listening, error)
                return
            self._admit(accepted, address, self._sockets[listening])

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Stops accepting for a while, as no file is left: trying again at once would burn CPU."""
        _log.error(
            "Cannot accept connections: %s. Raise the limit on open files.", error.strerror,
            extra={"event": "listener.files"},
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)

        def resume() -> None:
            if listening in self._sockets:
                loop.add_reader(listening, self._accept, listening)

        loop.call_later(OUT_OF_FILES_SECONDS, resume)

    def _admit(self, accepted: socket.socket, address: tuple[Any, ...], http_profile: str) -> None:
        host = str(address[0])
        self.accepted += 1
        if len(self._connections) >= self.limits.connections:
            self.refused["full"] += 1
            accepted.close()
            return
        connection = Connection(self, host, http_profile)
        if not self.admits(connection):
            accepted.close()
            return
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # notices vanished clients
        self._connections.add(connection)
        self.by_dialect[_NEW] += 1
        self._look_later()
        loop = asyncio.get_running_loop()
        task = self._tasks[connection] = loop.create_task(self._hand_on(accepted, connection))
        task.add_done_callback(lambda _: self._handed_on(accepted, connection))

    def admits(self, connection: Connection) -> bool:
        """Whether a stranger may come in, by its address; if so, it is counted as one."""
        host, networks = connection.address, self.limits.networks
        if networks is not None and not is_among(host, networks):
            self.refused["address"] += 1
            self._warn(
                "access.address", host, "A peer at %s was turned away: with --dev only this"
                " machine is let in; --dev-allow lets others in.",
            )  # fmt: skip
            return False
        if not self._make_room(connection):
            return False
        self._strangers.setdefault(connection.source, {})[connection] = None
        self.strangers += 1
        return True

    def refuse_link(self, connection: Connection, why: str) -> None:
        """Counts who began as a node and is none, and logs it now and then."""
        self.refused["link"] += 1
        self._warn(
            "cluster.link", connection.address, "A connection from %s claimed to be a node of this"
            f" cluster, and was closed: {why}.",
        )  # fmt: skip

    def demand_tls(self, connection: Connection) -> None:
        """Counts a client that came without TLS, and logs it now and then."""
        self.refused["tls"] += 1
        self._warn(
            "listener.tls", connection.address, "A client at %s came without TLS, which is"
            " required of other machines: give it the address with TLS, and the certificate that"
            " `posthouse tls env` tells of. --insecure lets it come as it is.",
        )  # fmt: skip

    async def _hand_on(self, accepted: socket.socket, connection: Connection) -> None:
        """Makes a transport of a bare socket, with the sniffing protocol on it."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(connection.deadline):
                first = await _first_byte(accepted)
                if first is None:
                    raise ConnectionResetError  # it has gone without a word
                context = None
                if first == _TLS and self._tls is not None:
                    context = await self._tls()
                left = max(0.1, connection.deadline - loop.time())
                connection.is_opening = context is None
                await loop.connect_accepted_socket(
                    lambda: _Sniffer(self, connection), accepted, ssl=context,
                    ssl_handshake_timeout=left if context is not None else None,
                    ssl_shutdown_timeout=TLS_CLOSE_SECONDS if context is not None else None,
                )  # fmt: skip
                if self._closing:  # which could not be told before
                    self._tell(connection)
        except TimeoutError:
            self.refused["silent"] += 1
        except asyncio.CancelledError:
            pass  # the broker stops, or there was no room for it any more, which is counted
        except (OSError, ValueError):
            self.refused[_UNKNOWN] += 1

    def _handed_on(self, accepted: socket.socket, connection: Connection) -> None:
        """Cleans up after `_hand_on`, which a stop may have ended before it began."""
        del self._tasks[connection]
        if connection.transport is None:  # else its protocol sees to it
            accepted.close()
            connection.gone()

    # Strangers.

    def _make_room(self, connection: Connection) -> bool:
        """Makes room for one more stranger; returns whether it may come in."""
        host = connection.address
        if len(self._strangers.get(connection.source, ())) >= self.limits.strangers_per_address:
            self.refused["strangers"] += 1
            self._warn(
                "listener.strangers", host, "Too many connections from %s have not shown who they"
                " are; more of them are turned away. Look at what runs there, or raise"
                " strangers_per_address.",
            )  # fmt: skip
            return False
        if self.strangers >= self.limits.strangers:
            self._warn(
                "listener.strangers", host, "Too many connections have not shown who they are;"
                " the oldest are closed for new ones, the last of which came from %s. Raise"
                " strangers_max if clients are meant.",
            )  # fmt: skip
            most = max(self._strangers.values(), key=len)
            oldest = next((each for each in most if each.transport or not each.is_opening), None)
            if oldest is None:
                self.refused["strangers"] += 1
                return False
            self._turn_out(oldest)
        return True

    def _turn_out(self, connection: Connection) -> None:
        self.refused["strangers"] += 1
        self.is_no_stranger(connection)
        if connection.transport is not None:
            connection.transport.abort()
        else:
            self._tasks[connection].cancel()

    def is_no_stranger(self, connection: Connection) -> None:
        """Removes a connection from the strangers, if it was one."""
        strangers = self._strangers.get(connection.source, {})
        if connection in strangers:
            del strangers[connection]
            self.strangers -= 1
            if not strangers:
                del self._strangers[connection.source]

    def identified(self, connection: Connection, principal: str) -> bool:
        """Notes that the client has authenticated; returns whether it may have this connection."""
        if connection not in self._connections:
            return True
        most = self.limits.per_principal
        if self._by_principal[principal] >= most and principal != ANYBODY.name:
            self.refused["principal"] += 1
            self._warn(
                "listener.principal", principal, "The principal %s has too many connections; more"
                " of them are refused. Close some, or raise connections_per_principal.",
            )  # fmt: skip
            return False
        self.is_no_stranger(connection)
        self._is_no_more(connection.principal)
        self._by_principal[principal] += 1
        connection.principal = principal
        return True

    def _is_no_more(self, principal: str | None) -> None:
        if principal is not None:
            self._by_principal[principal] -= 1
            if not self._by_principal[principal]:
                del self._by_principal[principal]

    def _warn(self, event: str, about: str, text: str) -> None:
        """Logs a warning once in a while, however often it happens."""
        now = asyncio.get_running_loop().time()
        if now - self._warned.get(event, -WARN_SECONDS) >= WARN_SECONDS:
            self._warned[event] = now
            _log.warning(text, about, extra={"event": event, "address": about})

    # Looking whether they are still there.

    def _look_later(self) -> None:
        if self._looking is None and self._connections:
            loop = asyncio.get_running_loop()
            self._looking = loop.call_later(self.limits.look_seconds, self._look)

    def _look(self) -> None:
        """The loop does not tell that somebody has gone whom nothing is read from."""
        self._looking = None
        now = asyncio.get_running_loop().time()
        unread: dict[int, Connection] = {}
        poll = select.poll()
        for connection in list(self._connections):
            transport = connection.transport
            if transport is None:
                continue  # its task has a time limit
            if transport.is_closing():
                self._end_closing(connection, transport, now)
            elif not transport.is_reading():
                made = transport.get_extra_info("socket")
                if made is not None and (number := made.fileno()) >= 0:
                    unread[number] = connection
                    poll.register(number, _LEFT if connection.ends_with_input else 0)
        for number, _ in poll.poll(0) if unread else ():
            transport = unread[number].transport
            assert transport is not None
            transport.abort()
        self._look_later()

    def _end_closing(
        self, connection: Connection, transport: asyncio.Transport, now: float
    ) -> None:
        if connection.closed_at is None:
            connection.closed_at = now
        elif now - connection.closed_at > self.limits.closing_seconds:
            transport.abort()

    # Keeping count.

    def moved(self, connection: Connection, dialect: str) -> None:
        if connection in self._connections:
            self.by_dialect[connection.dialect] -= 1
            self.by_dialect[dialect] += 1
            connection.dialect = dialect

    def forget(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self.by_dialect[connection.dialect] -= 1
            self.is_no_stranger(connection)
            self._is_no_more(connection.principal)
            if not self._connections:
                self._emptied.set()


def is_among(host: str, networks: Networks) -> bool:
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)


def _source(host: str) -> str:
    """The address by which strangers are counted."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _PREFIX_BITS), strict=False))


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((host, port))
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


async def _first_byte(accepted: socket.socket) -> int | None:
    """Peeks at the first byte, waiting for it; None where the other side has gone."""
    loop = asyncio.get_running_loop()
    try:
        first = accepted.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        readable = asyncio.Event()
        loop.add_reader(accepted, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(accepted)
        try:
            first = accepted.recv(1, socket.MSG_PEEK)
        except BlockingIOError:  # a false alarm, which the kernel may give
            return await _first_byte(accepted)
    return first[0] if first else None


class _Sniffer(asyncio.Protocol):
    """Collects what it takes to tell the dialect, and hands the connection over."""

    def __init__(self, listener: Listener, connection: Connection) -> None:
        self._listener = listener
        self._connection = connection
        self._data = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connection.transport = cast(asyncio.Transport, transport)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(self._connection.deadline, self._too_late)

    def data_received(self, data: bytes) -> None:
        transport = self._connection.transport
        if transport is None or transport.is_closing():
            return
        self._data += data
        unsure = False
        for protocol in self._listener.protocols:
            known = protocol.recognise(self._data[:SNIFF_BYTES])
            if known:
                self._hand_over(protocol)
                return
            unsure = unsure or known is None
        if not unsure or len(self._data) >= SNIFF_BYTES:
            self._give_up(_UNKNOWN)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._connection.gone()

    def _hand_over(self, protocol: PortProtocol) -> None:
        self._stop_waiting()
        transport = self._connection.transport
        assert transport is not None
        self._connection.known_as(protocol.name)
        if self._connection.lacks_tls and protocol.demand_tls is not None:
            self._listener.demand_tls(self._connection)
            transport.write(protocol.demand_tls(self._data))
            hang_up(transport)
            return
        peer = self._connection.peer = protocol.make(self._connection)
        transport.set_protocol(peer)  # type: ignore[arg-type]  # it is one, by its methods
        peer.connection_made(transport)
        peer.data_received(self._data)

    def _too_late(self) -> None:
        self._give_up("silent")

    def _give_up(self, why: str) -> None:
        self._listener.refused[why] += 1
        transport = self._connection.transport
        assert transport is not None
        hang_up(transport)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def is_http(data: bytes) -> bool | None:
    """A word, a space, and what is not the length of a frame."""
    after = after_word(data)
    return None if after is None else bool(after) and not after.isdigit() and after != b"\0"
