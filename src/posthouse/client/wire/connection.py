"""One connection to a broker: it is opened, it is alive, and then it is lost, for good."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from ssl import SSLCertVerificationError, SSLContext, create_default_context
from typing import Protocol, cast

from posthouse.amqp.connection import Connection
from posthouse.amqp.events import (
    Arrived,
    Attached,
    Closed,
    Detached,
    Disposed,
    Ended,
    Event,
    Flowed,
    Opened,
    Run,
)
from posthouse.amqp.performatives import Problem
from posthouse.amqp.session import Link, Session
from posthouse.amqp.types import Described, Symbol, ULong, Value
from posthouse.client.addresses import Address, Turns
from posthouse.client.config import PosthouseConfig
from posthouse.client.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    PermissionDenied,
    QueueError,
    lasting,
)
from posthouse.client.secret import reveal
from posthouse.client.wire.problems import error_of

_log = logging.getLogger("posthouse.client")

IDLE_MS = 10_000  # how often the broker is to be heard of, at least
CONNECT_SECONDS = 10.0
NODE_CONNECT_SECONDS = 3.0  # to one of several nodes, before the next is tried
CLOSE_SECONDS = 2.0
# Properties with which a connection opens. By the product the broker knows its own client.
NAMESPACE, PRODUCT = Symbol("posthouse:namespace"), Symbol("product")
LEADER = "posthouse:leader"  # among those with which the broker opens


class End(Protocol):
    """Our end of a link: what is told to it."""

    link: Link
    what: str  # the queue or session that it is about

    def on_attached(self) -> None: ...

    def on_flowed(self) -> None: ...

    def on_arrived(self, event: Arrived | Run) -> None: ...

    def on_disposed(self, event: Disposed) -> None: ...

    def on_lost(self, error: QueueError) -> None:
        """It is over: refused, ended by the broker, or the connection is."""

    def settle_down(self) -> None:
        """Everything that came together was told."""


class Eager(Protocol):
    """Somebody who has something to send."""

    def go_on(self) -> None: ...


class Wire(asyncio.Protocol):
    """Made by `connect`. Nothing of it is used again once it is lost."""

    def __init__(self, config: PosthouseConfig, address: Address) -> None:
        self._config = config
        self.address = address
        response = f"\0{config.key_name}\0{reveal(config.key)}".encode()
        self._amqp = Connection(
            f"posthouse-client-{secrets.token_hex(8)}", hostname=address.host, idle_ms=IDLE_MS,
            sasl=("PLAIN", response) if config.key else ("ANONYMOUS", b""),
            properties={PRODUCT: "posthouse"}
            | ({NAMESPACE: config.namespace} if config.namespace else {}),
        )  # fmt: skip
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ends: dict[Link, End] = {}
        self._ending: dict[Session, asyncio.Future[None]] = {}
        self._touched: set[End] = set()
        self._eager: dict[Eager, None] = {}
        self._flushing = False
        self._heard = self._loop.time()
        self._watch: asyncio.TimerHandle | None = None
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._problem: QueueError | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def is_lost(self) -> bool:
        return self._problem is not None

    @property
    def leader(self) -> str:
        """The address of the cluster's leader, as the broker has told it; else empty."""
        told = self._amqp.open
        found = (told.properties or {}).get(LEADER) if told is not None else None
        return found if isinstance(found, str) else ""

    # For ends of links.

    def attach(
        self,
        make: Callable[[Link], End],
        *,
        sends: bool,
        source: Value = None,
        target: Value = None,
        properties: dict[Value, Value] | None = None,
    ) -> End:
        """Each link has a session of its own, so that ids of deliveries are the link's.

        Raises QueueError.
        """
        if self._problem is not None:
            raise ConnectionFailed("The connection to the broker was lost.")
        link = self._amqp.begin().attach(
            secrets.token_hex(8), sends=sends, source=source, target=target, settled=False,
            properties=properties,
        )  # fmt: skip
        link.takes_runs = not sends
        end = self._ends[link] = make(link)
        self.flush_soon()
        return end

    def detach(self, end: End) -> "asyncio.Future[None]":
        """Detaches a link, with its session. The link is told nothing any more.

        Done when the broker has ended it too, and has given its messages to others.
        """
        over: asyncio.Future[None] = self._loop.create_future()
        if self._ends.pop(end.link, None) is not None and not self.is_lost:
            end.link.detach()
            end.link.session.end()
            self._ending[end.link.session] = over
            self.flush_soon()
        else:
            over.set_result(None)
        return over

    def flush_soon(self, eager: "Eager | None" = None) -> None:
        """Schedules a flush: frames of one turn of the loop are written together.

        At the flush, an eager sender is asked for its messages.
        """
        if eager is not None:
            self._eager[eager] = None
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flushing = False
        if self._eager:
            eager, self._eager = self._eager, {}
            for each in eager:
                each.go_on()
        if self._transport is not None and self._amqp.has_output and not self.is_lost:
            self._transport.write(self._amqp.take())

    @property
    def has_room(self) -> bool:
        """Not more is to be sent than the broker takes."""
        return self._writable.is_set()

    async def room(self) -> None:
        await self._writable.wait()

    async def opened(self) -> None:
        """Raises QueueError."""
        await asyncio.shield(self._opened)

    async def close(self) -> None:
        if not self.is_lost:
            self._amqp.close()
            self.flush()
        if self._transport is not None:
            done, _ = await asyncio.wait([self._gone], timeout=CLOSE_SECONDS)
            if not done:
                self._transport.abort()

    # As asyncio has it.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._watch = self._loop.call_later(IDLE_MS / 2_000, self._look)
        self.flush()

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        for event in self._amqp.receive(data):
            self._on(event)
        touched, self._touched = self._touched, set()
        for end in touched:
            end.settle_down()
        self.flush()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(ConnectionFailed(f"The connection to the broker was lost: {exc or 'it ended'}."))
        if not self._gone.done():
            self._gone.set_result(None)

    def _look(self) -> None:
        """Now and then: the broker hears of us, and we have heard of it."""
        if self.is_lost:
            return
        if self._loop.time() - self._heard > 2 * IDLE_MS / 1_000:
            assert self._transport is not None
            self._transport.abort()
            self._lose(ConnectionFailed("The broker has not been heard of for too long."))
            return
        self._amqp.keep_alive()
        self.flush()
        seconds = min(IDLE_MS / 2_000, self._amqp.idle_seconds or IDLE_MS)
        self._watch = self._loop.call_later(seconds, self._look)

    # What the broker says.

    def _on(self, event: Event) -> None:
        match event:
            case Opened():
                if not self._opened.done():
                    self._opened.set_result(None)
            case Closed(problem=problem):
                self._closed(problem)
            case Ended(session=session):  # its link was told
                over = self._ending.pop(session, None)
                if over is not None and not over.done():
                    over.set_result(None)
            case Detached(link=link, problem=problem):
                end = self._ends.pop(link, None)
                if end is not None:
                    end.on_lost(self._refusal(problem, end.what))
                if not link.session.ended:
                    link.session.end()
            case Attached(link=link):
                if link in self._ends and _is_accepted(link):
                    self._ends[link].on_attached()
            case Flowed(link=link):
                if link in self._ends:
                    self._ends[link].on_flowed()
            case Arrived(link=link) | Run(link=link):
                end = self._ends.get(link)
                if end is not None:
                    end.on_arrived(event)
                    self._touched.add(end)
            case Disposed(link=link):
                if link in self._ends:
                    self._ends[link].on_disposed(event)
            case _:
                pass

    def _refusal(self, problem: Problem | None, what: str) -> QueueError:
        error, config = error_of(problem, what), self._config
        if config.key or not isinstance(error, PermissionDenied):
            return error
        return AuthenticationFailed(missing_key(self.address))

    def _closed(self, problem: Problem | None) -> None:
        error = error_of(problem) if problem is not None else None
        unknown = problem is not None and problem.condition == "amqp:unauthorized-access"
        if unknown and not self._opened.done():
            error = AuthenticationFailed("The broker does not know this key name and key.")
        self._lose(error or ConnectionFailed("The broker has ended the connection."))
        if self._transport is not None:
            self.flush()
            self._transport.close()

    def _lose(self, error: QueueError) -> None:
        if self._problem is not None:
            return
        self._problem = error
        self._writable.set()
        if self._watch is not None:
            self._watch.cancel()
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # somebody may have stopped waiting for it
        self._amqp.lose()
        for over in self._ending.values():
            if not over.done():
                over.set_result(None)
        self._ending.clear()
        ends, self._ends = list(self._ends.values()), {}
        for end in ends:
            lost = error if isinstance(error, ConnectionFailed) else ConnectionFailed(str(error))
            end.on_lost(lost)


def _is_accepted(link: Link) -> bool:
    """2.6.3: an attach without a terminus is refused, and a detach follows."""
    attach = link.attach
    return attach is not None and (attach.target if link.sends else attach.source) is not None


def node(address: str, filters: Value = None, *, sends: bool) -> Described:
    """A terminus (3.5)."""
    address = str(address)  # what AMQP knows is text, not a kind of it
    if sends:
        return Described(ULong(0x29), [address])
    fields: list[Value] = [address, *[None] * 6, filters] if filters is not None else [address]
    return Described(ULong(0x28), fields)


async def connect(config: PosthouseConfig, turns: Turns) -> Wire:
    """Connects to the first address that answers. Raises ConnectionFailed, AuthenticationFailed."""
    failure: ConnectionFailed | None = None
    for address in turns:
        seconds = CONNECT_SECONDS if len(turns) == 1 else NODE_CONNECT_SECONDS
        try:
            wire = await _connect(config, address, seconds)
        except ConnectionFailed as error:
            failure = error
            turns.lose(address)
        else:
            turns.prefer(wire.leader)
            return wire
    assert failure is not None
    raise failure


async def _connect(config: PosthouseConfig, address: Address, seconds: float) -> Wire:
    """Raises ConnectionFailed or AuthenticationFailed."""
    loop = asyncio.get_running_loop()
    try:
        context = tls_context(config) if config.tls else None
        async with asyncio.timeout(seconds):
            _, wire = await loop.create_connection(
                lambda: Wire(config, address), address.host, address.port, ssl=context
            )
            try:
                await wire.opened()
            except BaseException:
                await asyncio.shield(wire.close())
                raise
    except QueueError:
        raise
    except TimeoutError as error:
        raise ConnectionFailed(
            f"No broker has answered at {address} within {seconds:g} s."
        ) from error
    except SSLCertVerificationError as error:
        raise untrusted(error) from error
    except OSError as error:
        raise ConnectionFailed(
            f"There is no broker at {address}: {error.strerror or error}."
        ) from error
    return wire


def untrusted(error: SSLCertVerificationError) -> ConnectionFailed:
    return lasting(ConnectionFailed(f"There is no trust in the broker's certificate: {error}."))


def missing_key(address: Address) -> str:
    """Says that a broker wants a key, and where to get one."""
    return (
        f"The broker at {address} wants a key, and none was given: put it into the URL, as"
        f" posthouse://NAME:KEY@{address}. The broker keeps its root key in the file root-key of"
        " its data folder; `posthouse access add NAME` makes another."
        " /, + and = in a key are written %2F, %2B and %3D in a URL."
    )


def tls_context(config: PosthouseConfig) -> SSLContext:
    return create_default_context(cafile=config.ca_file or None)
