"""Clients of a node that does not lead: their connections are handed to the leader.

A node ends TLS, tells by the first bytes what is spoken, and opens a node link to the leader for
the connection (`node_link.py`). From then on bytes go both ways as they come; neither side is read
from while the other does not take what there is. Requests over HTTP for what every node answers
itself (health, metrics, the cluster) are answered here, one on a connection.

While nobody is known to lead, or the leader does not answer, a connection waits. Connections that
were handed to a leader are ended when another leads: the old one may not know yet, and clients come
again at once.
"""

import asyncio
import logging
import secrets
import ssl
from collections.abc import Callable
from functools import partial
from typing import Protocol, cast
from urllib.parse import urlsplit

from posthouse.broker.standby import Beat
from posthouse.dialects.connections import Peer, hang_up
from posthouse.server.cluster_secret import derive, read_cluster_secret
from posthouse.server.config import Config
from posthouse.server.host import BrokerHost
from posthouse.server.linked import Links
from posthouse.server.listener import Connection, PortProtocol
from posthouse.server.node_link import (
    END_OF_INPUT,
    NONCE_BYTES,
    BadLink,
    NodeEnd,
    RelayedClient,
    Verdict,
    frame,
)
from posthouse.server.tls import LinkTrust

_log = logging.getLogger(__name__)

WAIT_SECONDS = 10.0  # that a connection waits for a leader to be handed to
LINK_SECONDS = 3.0  # to open one link
RETRY_SECONDS = 0.1  # after a link could not be opened
BUFFER_BYTES = 128 << 10  # that one side has not taken, before the other is not read from
HELD_BYTES_MAX = 64 << 20  # of all clients that wait
REQUEST_LINE_BYTES_MAX = 16 << 10  # that is looked at; a longer one is the leader's
ASK_SECONDS = 2.0  # that a question to the leader may take
ANSWER_BYTES_MAX = 64 << 10
ANSWER_SECONDS = 0.5  # for which its answer is told again
WARN_SECONDS = 60.0  # between two warnings about links
HTTP = "http"

_LOCAL = frozenset((b"health", b"metrics", b"cluster", b"docs"))


class Sink(Protocol):
    """Takes what comes over a link."""

    def take(self, data: bytes) -> None: ...

    def pause(self) -> None:
        """The link does not take more for now."""

    def resume(self) -> None: ...

    def lost(self) -> None: ...


class NoLink(Exception):
    """A link could not be opened. `is_final`: trying again would not help."""

    def __init__(self, text: str, *, is_final: bool = False) -> None:
        super().__init__(text)
        self.is_final = is_final


class Relay:
    """All connections that this node hands to the leader."""

    def __init__(
        self,
        node: str,
        key: bytes,
        trust: LinkTrust,
        address: Callable[[], str],
        *,
        follower_reads: bool,
    ) -> None:
        """`address`: where the others reach this node."""
        self._node = node
        self._key = key
        self._trust = trust
        self._address = address
        self._follower_reads = follower_reads
        self.links = Links(key, self._leads_at)  # of clients of other nodes
        self._leader: Beat | None = None
        self.leads = False  # this node does, and serves its clients itself
        self.changed: asyncio.Event = asyncio.Event()  # set, and another one made, at each change
        self.relayed: set[RelayedPeer] = set()  # those with a link
        self.held_bytes = 0  # of those that wait
        self._asked: dict[str, tuple[float, asyncio.Task[tuple[int, bytes]]]] = {}  # by path
        self._warned = -WARN_SECONDS

    def _leads_at(self, address: str) -> bool:
        return self.leads and address == self._address()

    # Where connections go.

    def wrap(self, protocol: PortProtocol) -> PortProtocol:
        """The protocol, whose connections go to the leader while that is another node."""
        return protocol._replace(make=partial(self._make, protocol))

    def _make(self, protocol: PortProtocol, connection: Connection) -> Peer:
        if self.leads:
            return protocol.make(connection)
        return RelayedPeer(self, protocol, connection)

    def note_leader(self, leader: Beat | None) -> None:
        """Another node or epoch leads; None while nobody is known to."""
        if leader is not None and leader.role != "leader":
            leader = None
        before, self._leader = self._leader, leader
        self.leads = leader is not None and leader.node == self._node
        if _term(before) == _term(leader):
            return
        if leader is not None:
            for peer in [each for each in self.relayed if each.term != _term(leader)]:
                peer.cut()
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    @property
    def leader(self) -> Beat | None:
        """The last beat of who leads, which may be this node; None while nobody is known to."""
        return self._leader

    def is_local(self, connection: Connection, data: bytes) -> bool | None:
        """Whether an HTTP request that begins so is answered here; None: not known yet."""
        if connection.http_profile:
            return False
        found = _target(data)
        if found is None:
            return None
        method, parts = found
        if parts[0] in _LOCAL:
            return True
        if not self._follower_reads or method not in (b"GET", b"HEAD"):
            return False
        is_life = parts[:3] == [b"api", b"v1", b"namespaces"] and parts[-1] == b"life"
        return parts[0] == b"feed" or is_life

    # Links.

    async def open(self, leader: Beat, client: RelayedClient, sink: Sink) -> "Link":
        """Raises NoLink."""
        loop = asyncio.get_running_loop()
        host, port = split_address(leader.url)
        end = NodeEnd(self._key, client, secrets.token_bytes(NONCE_BYTES))
        try:
            context = await self._trust.context()
            async with asyncio.timeout(LINK_SECONDS):
                _, link = await loop.create_connection(
                    lambda: Link(end, sink), host, port, ssl=context, server_hostname=host
                )
                try:
                    verdict = await link.verdict
                except BaseException:
                    link.abort()
                    raise
        except TimeoutError:
            raise NoLink(f"{leader.url} has not answered within {LINK_SECONDS:g} s") from None
        except (OSError, ssl.SSLError, BadLink, ValueError) as error:
            self._warn(leader, error)
            raise NoLink(f"{leader.url}: {error}") from error
        if verdict == Verdict.WELCOME:
            return link
        link.abort()
        if verdict == Verdict.FULL:
            raise NoLink(f"{leader.url} has no room for this client", is_final=True)
        raise NoLink(f"{leader.url} does not lead")

    def client(self, leader: Beat, connection: Connection) -> RelayedClient:
        return RelayedClient(
            connection.address, connection.is_tls, leader.url, self._node, connection.http_profile
        )

    @property
    def trust(self) -> LinkTrust:
        """Whom this node trusts to be another node."""
        return self._trust

    async def ask(self, path: str) -> tuple[int, bytes]:
        """Asks the leader for a path that is open to everybody; its status and body.

        Who asks for the same at the same time, or a moment later, gets the same answer.
        """
        loop = asyncio.get_running_loop()
        at, asking = self._asked.get(path, (0.0, None))
        if asking is None or (asking.done() and loop.time() - at > ANSWER_SECONDS):
            asking = loop.create_task(self._ask(path))
            self._asked[path] = loop.time(), asking
        return await asyncio.shield(asking)

    async def _ask(self, path: str) -> tuple[int, bytes]:
        leader = self._leader
        if leader is None:
            return 503, b"no node is known to lead"
        answer = _AnswerSink()
        try:
            async with asyncio.timeout(ASK_SECONDS):
                client = RelayedClient("127.0.0.1", False, leader.url, self._node)
                link = await self.open(leader, client, answer)
                try:
                    head = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
                    link.send(head.encode())
                    return answer.read(await answer.whole)
                finally:
                    link.abort()
        except TimeoutError:
            return 503, f"{leader.url} has not answered within {ASK_SECONDS:g} s".encode()
        except NoLink as error:
            return 503, str(error).encode()

    def _warn(self, leader: Beat, error: Exception) -> None:
        now = asyncio.get_running_loop().time()
        is_refused = isinstance(error, ssl.SSLCertVerificationError | BadLink)
        if is_refused and now - self._warned >= WARN_SECONDS:
            self._warned = now
            _log.error(
                "Clients cannot be handed to %s at %s: %s. All nodes must have the same"
                " cluster_secret; certificates of your own must be for the advertised name, and"
                " trusted (cluster_ca).", leader.node, leader.url, error,
                extra={"event": "cluster.link", "leader": leader.node},
            )  # fmt: skip


class RelayedPeer(asyncio.Protocol):
    """One connection of a client, which waits for a link, and then has one."""

    def __init__(self, relay: Relay, protocol: PortProtocol, connection: Connection) -> None:
        self._relay = relay
        self._protocol = protocol
        self._connection = connection
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)  # once it is made
        self._held = b""  # what came before there was a link
        self._link: Link | None = None
        self._finding: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None  # while it is to say what it wants
        self._is_over = False  # the client says no more
        self.term: tuple[str, int] | None = None  # of the leader that it was handed to

    # As asyncio has it.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(BUFFER_BYTES)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(self._connection.deadline, self._too_late)

    def data_received(self, data: bytes) -> None:
        if self._link is not None:
            self._link.send(data)
            return
        self._held += data
        self._relay.held_bytes += len(data)
        if self._relay.held_bytes > HELD_BYTES_MAX:
            self._refuse("full")
        elif self._finding is None and not self._transport.is_closing():
            self._decide()

    def _decide(self) -> None:
        """A request over HTTP may be for this node itself; everything else is the leader's."""
        is_local: bool | None = False
        if self._protocol.name == HTTP:
            is_local = self._relay.is_local(self._connection, self._held)
        if is_local is None:
            return
        self._stop_waiting()
        if is_local:
            self._connection.answers_once = True
            self._serve_here()
            return
        self._transport.pause_reading()
        self._finding = asyncio.get_running_loop().create_task(self._find())

    def eof_received(self) -> bool:
        """Without TLS the other direction stays open: the leader knows what its protocol wants."""
        if self._link is None:
            return False
        self._is_over = True
        self._link.end()
        return not self._connection.is_tls

    def pause_writing(self) -> None:
        if self._link is not None:
            self._link.pause()

    def resume_writing(self) -> None:
        if self._link is not None:
            self._link.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._let_go()
        self._relay.relayed.discard(self)
        if self._finding is not None:
            self._finding.cancel()
        if self._link is not None:
            self._link.close()
        self._connection.gone()

    def shutdown(self) -> None:
        hang_up(self._transport)

    # Finding the leader.

    async def _find(self) -> None:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while not await self._try():
                    pass
        except TimeoutError:
            self._give_up()
        except NoLink:
            self._refuse("leader")

    async def _try(self) -> bool:
        """Whether the connection has found who serves it. Raises NoLink where nobody will."""
        relay = self._relay
        leader, changed = relay.leader, relay.changed
        if leader is None:
            await changed.wait()
            return False
        if relay.leads:
            self._serve_here()
            return True
        client = relay.client(leader, self._connection)
        opening = asyncio.ensure_future(relay.open(leader, client, self))
        changing = asyncio.ensure_future(changed.wait())
        try:
            await asyncio.wait((opening, changing), return_when=asyncio.FIRST_COMPLETED)
            if changing.done():
                return False
            self._begin(leader, opening.result())
        except NoLink as error:
            if error.is_final:
                raise
            await asyncio.wait([changing], timeout=RETRY_SECONDS)
            return False
        finally:
            changing.cancel()
            if not opening.cancel() and not opening.exception() and self._link is None:
                opening.result().abort()
        return True

    def _begin(self, leader: Beat, link: "Link") -> None:
        self._link = link
        self.term = _term(leader)
        self._relay.relayed.add(self)
        self._connection.handed_on()
        held = self._held
        self._let_go()
        link.send(held)
        if link.has_room:
            self._transport.resume_reading()

    def _serve_here(self) -> None:
        """Hands the connection to the protocol's own peer."""
        held, transport, connection = self._held, self._transport, self._connection
        self._let_go()
        if transport.is_closing():
            return
        connection.begin_handshake()
        peer = connection.peer = self._protocol.make(connection)
        transport.set_protocol(peer)  # type: ignore[arg-type]  # it is one, by its methods
        peer.connection_made(transport)
        transport.resume_reading()
        peer.data_received(held)

    def _give_up(self) -> None:
        """Nobody leads. A request is told so in HTTP; another protocol's client comes again."""
        if self._protocol.name == HTTP:
            self._connection.answers_once = True
            self._serve_here()
        else:
            self._refuse("leader")

    def _refuse(self, why: str) -> None:
        self._connection.refused(why)
        hang_up(self._transport)

    def _too_late(self) -> None:
        self._refuse("silent")

    def _let_go(self) -> None:
        self._relay.held_bytes -= len(self._held)
        self._held = b""

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # What comes over the link.

    def take(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def pause(self) -> None:
        if not self._is_over and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if not self._is_over and not self._transport.is_closing():
            self._transport.resume_reading()

    def lost(self) -> None:
        self._relay.relayed.discard(self)
        self._transport.close()

    def cut(self) -> None:
        """Another node leads: what the old one still says does not count."""
        self._relay.relayed.discard(self)
        if self._link is not None:
            self._link.abort()
        hang_up(self._transport)


class Link(asyncio.Protocol):
    """The node's end of one link, as asyncio wants it."""

    def __init__(self, end: NodeEnd, sink: Sink) -> None:
        self._end = end
        self._sink = sink
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)  # once it is made
        self.verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._is_open = self._is_given_up = False
        self.has_room = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(BUFFER_BYTES)
        self._transport.write(self._end.begin())

    def data_received(self, data: bytes) -> None:
        if self._is_open:
            self._sink.take(data)
            return
        try:
            self._transport.write(self._end.receive(data))
        except BadLink as error:
            if not self.verdict.done():
                self._fail(error)
            self._transport.abort()
            return
        verdict = self._end.verdict
        if verdict is None or self.verdict.done():
            return
        self._is_open = verdict == Verdict.WELCOME
        self.verdict.set_result(verdict)
        if self._is_open and self._end.rest:
            self._sink.take(self._end.rest)

    def pause_writing(self) -> None:
        self.has_room = False
        self._sink.pause()

    def resume_writing(self) -> None:
        self.has_room = True
        self._sink.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_open and not self._is_given_up:
            self._sink.lost()
        elif not self.verdict.done():
            self._fail(ConnectionResetError("the link was closed"))

    def _fail(self, error: Exception) -> None:
        self.verdict.set_exception(error)
        self.verdict.exception()  # who has waited for it may have gone

    # For who has it.

    def send(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(frame(data))

    def end(self) -> None:
        """The client says no more."""
        if not self._transport.is_closing():
            self._transport.write(END_OF_INPUT)

    def pause(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Closes it when all that was sent is taken."""
        self._transport.close()

    def abort(self) -> None:
        """Gives it up: its sink is told nothing any more."""
        self._is_given_up = True
        self._transport.abort()


class _AnswerSink:
    """Collects the answer to one request."""

    def __init__(self) -> None:
        self._come = b""
        self.whole: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def take(self, data: bytes) -> None:
        self._come += data
        if len(self._come) > ANSWER_BYTES_MAX:
            self.lost()

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def lost(self) -> None:
        if not self.whole.done():
            self.whole.set_result(self._come)

    @staticmethod
    def read(answer: bytes) -> tuple[int, bytes]:
        """The status and the body of an answer. Raises NoLink."""
        head, _, body = answer.partition(b"\r\n\r\n")
        status = head[9:12]
        if not head.startswith(b"HTTP/1.1 ") or not status.isdigit():
            raise NoLink("the leader's answer cannot be read")
        return int(status), body


def _term(leader: Beat | None) -> tuple[str, int] | None:
    return None if leader is None else (leader.node, leader.epoch)


def _target(data: bytes) -> tuple[bytes, list[bytes]] | None:
    """The method and the parts of the path of a request; None while its first line is not there."""
    line, end, _ = data.partition(b"\n")
    if not end and len(data) <= REQUEST_LINE_BYTES_MAX:
        return None
    method, _, rest = line.partition(b" ")
    target = rest.partition(b" ")[0]
    scheme, absolute, behind = target.partition(b"://")
    if absolute and scheme.lower() in (b"http", b"https"):  # RFC 9112, 3.2.2
        target = b"/" + behind.partition(b"/")[2]
    return method, target.partition(b"?")[0].split(b"/")[1:] or [b""]


def split_address(address: str) -> tuple[str, int]:
    """A host and its port. Raises ValueError."""
    parts = urlsplit(f"//{address}")
    if not parts.hostname or not parts.port:
        raise ValueError(f"{address} is not the address of a node, as in HOST:PORT")
    return parts.hostname, parts.port


def new_relay(config: Config, broker: BrokerHost, trust: LinkTrust) -> Relay:
    """The relay of a node, which is told who leads. Raises OSError."""
    assert config.node is not None
    key = derive(read_cluster_secret(config), "node link")
    reads = config.follower_reads
    relay = Relay(config.node, key, trust, lambda: broker.advertised, follower_reads=reads)
    broker.on_leader(relay.note_leader)
    return relay
