"""One connection of a Service Bus client: SASL, $cbs, and links to nodes.

A client says who it is by SASL PLAIN, or by tokens that it puts on $cbs; each link is attached on
behalf of the principal whose token covers its entity. When the last such token has lapsed, or its
principal may not any more, the link is detached.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeAlias, cast

from posthouse.amqp.connection import Connection
from posthouse.amqp.events import (
    Arrived,
    Attached,
    Begun,
    Closed,
    Detached,
    Disposed,
    Ended,
    Event,
    Flowed,
    Opened,
    Run,
)
from posthouse.amqp.performatives import error
from posthouse.amqp.session import Link
from posthouse.amqp.types import Symbol
from posthouse.broker.access import Principal
from posthouse.broker.engine import Engine
from posthouse.core.errors import Refused
from posthouse.dialects.backpressure import TURN_SECONDS, Backpressure, Turn
from posthouse.dialects.connections import END_SECONDS, ConnectionInfo, PeerRegistry, hang_up
from posthouse.dialects.servicebus import conditions
from posthouse.dialects.servicebus.attaching import Attaching
from posthouse.dialects.servicebus.commands import Commands
from posthouse.dialects.servicebus.credentials import Credentials
from posthouse.dialects.servicebus.identity import Identity
from posthouse.dialects.servicebus.links import IncomingLink, OutgoingLink
from posthouse.dialects.servicebus.requests import ReplyLink, RequestLink, Requests
from posthouse.dialects.servicebus.target import Target
from posthouse.dialects.servicebus.transactions import Coordinator
from posthouse.store.errors import StoreError

_log = logging.getLogger(__name__)

IDLE_MS = 120_000  # how often we want to hear of a client; it is dropped after twice as long
AUTHENTICATE_SECONDS = 30  # what a client has to show who it is, after it has said hello
IDLE_SECONDS_MIN = 0.4  # that a client may want to hear of us, at least
CHECK_SECONDS = 2.0  # how often it is looked whether tokens have lapsed
IDLE_LINK_SECONDS = 600  # where it is to be as in the cloud: a link without any traffic,
IDLE_CONNECTION_SECONDS = 300  # and a connection without links to entities
OUTGOING_BYTES = 16 << 20  # of messages that are asked of queues at a time for one client,
LINK_BYTES_MAX, LINK_BYTES_MIN = 4 << 20, 16 << 10  # and for one of its links
UNANSWERED_BYTES_MAX = 8 << 20  # of messages sent by one client, before it is not read from
COMMANDS_MAX = 500  # of one client under way, likewise
REFUSALS_MAX = 100  # of a client that has not shown who it is
REFUSALS_LOGGED = 10  # of one connection
PRODUCT_CHARS_MAX = 40  # of the name of a client library, and of its version
# Among the properties with which a client opens.
NAMESPACE, PRODUCT = "posthouse:namespace", "product"
OWN_PRODUCT = "posthouse"  # our own client
LEADER = Symbol("posthouse:leader")  # among ours: the address of the cluster's leader
MECHANISMS = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")

Context: TypeAlias = IncomingLink | OutgoingLink | RequestLink | ReplyLink | Coordinator


class Peers:
    """All connections of Service Bus clients."""

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        self._registry: PeerRegistry[Peer] = PeerRegistry(CHECK_SECONDS, self._check)

    @property
    def engine(self) -> Engine | None:
        return self.credentials.engine if self.credentials.is_open else None

    def make(self, info: ConnectionInfo) -> "Peer":
        return Peer(self, info)

    def add(self, peer: "Peer") -> None:
        self._registry.add(peer)
        if self.engine is not None:
            self.engine.access_watchers.add(self._look_again)

    def _look_again(self, _: Collection[str]) -> None:
        """Checks all peers after somebody's rights have changed."""
        self._check(changed=True)

    def remove(self, peer: "Peer") -> None:
        self._registry.remove(peer)

    def _check(self, *, changed: bool = False) -> None:
        now = time.time()
        for peer in list(self._registry.peers):
            peer.check(now, changed=changed)


class Peer:
    """One connection, as asyncio wants it."""

    def __init__(self, peers: Peers, info: ConnectionInfo) -> None:
        self._peers = peers
        self._info = info
        self._settings = peers.credentials.settings
        self._identity = Identity(self, peers.credentials)
        self._loop = asyncio.get_running_loop()
        self._amqp = Connection(
            "posthouse",
            authenticate=self._identity.authenticate,
            mechanisms=MECHANISMS,
            idle_ms=IDLE_MS,
            properties={LEADER: leader} if (leader := self._settings.leader) else None,
        )
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)  # once it is made
        self._backpressure = Backpressure(
            self._go_on, commands_max=COMMANDS_MAX, bytes_max=UNANSWERED_BYTES_MAX
        )
        self._commands = Commands(
            peers.credentials, self._identity.acting, info.address, self._backpressure, self.abort,
            self._message_bytes_max,
        )  # fmt: skip
        self._attaching = Attaching(self, self._commands, self._identity, Requests(self))
        self._looking: Iterator[Event | None] | None = None  # at what has come, frame by frame
        self._come: deque[bytes] = deque()  # behind that
        self._steps: Iterator[None] | None = None  # of what takes long, with the last frame
        self._refusals = 0
        self.contexts: dict[Link, Context] = {}
        self._gathered: dict[IncomingLink | OutgoingLink, None] = {}
        self._flushing = False
        self._deadline: asyncio.TimerHandle | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._heard = self._linked = self._loop.time()
        self._spoken = False  # since the last beat
        self.is_closing = False
        self._stopping: asyncio.Task[None] | None = None
        self.is_trusted = False  # it has shown who it is

    # As asyncio sees it.

    def connection_made(self, transport: Any) -> None:
        self._transport = self._backpressure.transport = transport
        self._peers.add(self)
        self._deadline = self._loop.call_later(self._info.handshake_seconds, self._too_late)

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        if self._looking is None:
            self._looking = self._amqp.look(data)
        else:
            self._come.append(data)
        if self._backpressure.may_look:
            self._go_on()

    def _go_on(self) -> None:
        """Looks at frames until the turn is over; what is said meanwhile is written then.

        Who does not read that is not looked at either, so it cannot make us keep more of it.
        """
        if self._looking is None or self._backpressure.is_paused:
            return
        turn = self._backpressure.turn
        turn.begin()
        try:
            self._look(turn)
            for each in list(self._gathered):
                each.flush()
            self._gathered.clear()
        except Exception:  # noqa: BLE001 (here a connection's bytes come in)
            _log.exception("A connection has failed.", extra={"event": "amqp.failed"})
            self._looking = None
            self._transport.abort()
            return
        turn.end()
        self.flush()
        self._backpressure.end_turn(is_behind=self._looking is not None)

    def take_steps(self, steps: Iterator[None]) -> None:
        """Takes the steps that one frame needs; no other frame is read before they are done."""
        assert self._steps is None
        self._steps = steps

    def _look(self, turn: Turn) -> None:
        while self._looking is not None:
            for _ in self._steps or ():
                if turn.is_over():
                    return
            self._steps = None
            if not self._take_frames(self._looking, turn):
                return
            if self._steps is None:
                come = self._come
                self._looking = self._amqp.look(come.popleft()) if come else None

    def _take_frames(self, frames: Iterator[Event | None], turn: Turn) -> bool:
        """Until all are taken, or one takes steps of its own; False: the turn is over."""
        for event in frames:
            if event is not None:
                _ON[type(event)](self, event)
            if turn.is_over():
                return False
            if self._steps is not None:
                break
        return True

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """Stops reading from a client that does not read, and gives it nothing more."""
        self._backpressure.pause()

    def resume_writing(self) -> None:
        self._backpressure.resume()
        for each in list(self.contexts.values()):
            if isinstance(each, OutgoingLink | RequestLink):
                each.on_flowed()
        self.flush_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._deadline, self._beat):
            if timer is not None:
                timer.cancel()
        self.is_closing = True
        self._looking = self._steps = None
        for event in self._amqp.lose():
            _ON[type(event)](self, event)
        self._peers.remove(self)
        self._info.gone()

    def shutdown(self) -> None:
        """The broker is going: what has come is answered first. Clients come back to the next."""
        if self._stopping is None and not self.is_closing:
            self._stopping = self._loop.create_task(self._stop())
            self._backpressure.hold()

    async def _stop(self) -> None:
        if self._peers.engine is not None:
            with contextlib.suppress(Refused, StoreError):
                await self._peers.engine.flush()  # whoever asked before has his answer
        for context in list(self.contexts.values()):
            self.turn_away(context, conditions.DETACH_FORCED, "The broker is being stopped.")
        self._close(conditions.FORCED, "The broker is being stopped. Connect again.")
        self._backpressure.release()  # for the client's goodbye

    # Writing.

    def flush_soon(self) -> None:
        """After what is going on now: what is said in one go is written in one go."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flushing = False
        if self._amqp.has_output and not self._transport.is_closing():
            self._spoken = True
            self._transport.write(self._amqp.take())
        if self._amqp.closed:
            hang_up(self._transport)

    def _close(self, condition: str, text: str) -> None:
        self.is_closing = True
        self._amqp.close(error(condition, text))
        self.flush()
        self._loop.call_later(END_SECONDS, self._transport.abort)

    def _too_late(self) -> None:
        self._close(conditions.UNAUTHORIZED, "The client has not shown in time who it is.")

    def _keep_alive(self) -> None:
        """2.4.5: the other side wants to hear of us."""
        seconds = self._amqp.idle_seconds
        if seconds is None or self._transport.is_closing():
            return
        if not self._spoken:
            self._amqp.keep_alive()
            self.flush()
        self._spoken = False
        self._beat = self._loop.call_later(seconds / 2, self._keep_alive)

    def check(self, now: float, *, changed: bool = False) -> None:
        """Now and then: whether it may go on. `changed`: somebody's rights or keys are new."""
        if changed:
            self._identity.identify_again()
        if self._loop.time() - self._heard > 2 * IDLE_MS / 1000:
            self._close("amqp:resource-limit-exceeded", "Nothing was heard for too long.")
            return
        if self._settings.strict:
            self._drop_what_is_idle()
        scopes = self._identity.scopes(now)
        for context in list(self.contexts.values()):
            target = context.target
            if isinstance(context, Coordinator):
                if not context.may_stay(now):
                    self.turn_away(context, conditions.UNAUTHORIZED, conditions.LAPSED)
            elif target is None:
                continue
            elif isinstance(context, IncomingLink) and self._is_gone(target):
                self.turn_away_for(context, target.missing)
            elif not self._identity.may(target, scopes.get(target.principal, ())):
                self.turn_away(context, conditions.UNAUTHORIZED, conditions.LAPSED)
        self._attaching.check(scopes)
        if self.is_trusted and not self._identity.is_anybody:  # it may show again who it is
            self.is_trusted = False
            self._deadline = self._loop.call_later(AUTHENTICATE_SECONDS, self._too_late)
        self.flush()

    def _is_gone(self, target: Target) -> bool:
        """The queue tells an OutgoingLink that it is gone; an IncomingLink has to be told."""
        return self._commands.properties(target) is None and not self._settings.auto_create

    def _drop_what_is_idle(self) -> None:
        """Drops idle links and connections as the cloud does; clients reconnect."""
        now = self._loop.time()
        for context in list(self.contexts.values()):
            if context.target is None:
                continue
            self._linked = now
            if not context.is_idle:
                context.is_idle, context.idle_since = True, now
            elif now - context.idle_since > IDLE_LINK_SECONDS:
                self.turn_away(context, conditions.DETACH_FORCED, "The link was idle for too long.")
        if now - self._linked > IDLE_CONNECTION_SECONDS:
            self._close(conditions.FORCED, "The connection had no links for too long.")

    # Who it is.

    @property
    def address(self) -> str:
        return self._info.address

    def is_refused_once_more(self) -> bool:
        """Whether that is worth a line in the log. Who is refused too often is cut off."""
        self._refusals += 1
        if self._refusals == REFUSALS_MAX and not self.is_trusted:
            self._close(conditions.UNAUTHORIZED, "The client was refused too often.")
        return self._refusals <= REFUSALS_LOGGED

    def trust(self, principal: Principal) -> bool:
        """Trusts the client as this principal; False where it has too many connections."""
        if not self._info.identified(principal.name):
            return False
        self.is_trusted = True
        self._backpressure.turn.seconds = TURN_SECONDS
        self._amqp.trust()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        return True

    # For links.

    @property
    def namespace(self) -> str:
        """The one that a client has asked for, as ours do; nothing where it has not."""
        return self._opening_property(NAMESPACE)

    def _message_bytes_max(self) -> int:
        """The size of a message whose queue says nothing of it: tiers are for Service Bus alone."""
        is_ours = self._opening_property(PRODUCT) == OWN_PRODUCT
        return self._settings.own_message_bytes if is_ours else self._settings.message_bytes

    def _opening_property(self, name: str) -> str:
        """A text among the properties with which the client has opened; else an empty one."""
        told = self._amqp.open
        found = (told.properties or {}).get(name) if told is not None else None
        return str(found) if isinstance(found, str) else ""

    @property
    def product(self) -> str:
        """The client library, as ` (azure-servicebus 7.14.2)`; empty where it has not said."""
        told = (self._amqp.open.properties or {}) if self._amqp.open is not None else {}
        words = [told.get(name) for name in ("product", "version")]
        text = " ".join(word[:PRODUCT_CHARS_MAX] for word in words if isinstance(word, str))
        return f" ({text})" if text.isprintable() and text else ""

    @property
    def host(self) -> str:
        """The host that the client thinks it has connected to."""
        return self._amqp.hostname or ""

    @property
    def is_paused(self) -> bool:
        """The client does not read, and is given nothing more."""
        return self._backpressure.is_paused

    def abort(self) -> None:
        """Cuts the connection; the messages that the client had go back."""
        self._transport.abort()

    def add(self, context: Context) -> None:
        """A link that is attached."""
        self.contexts[context.link] = context

    def is_shown(self, principal: Principal, now: float) -> bool:
        """Whether the client has shown to be this one, and what it has shown is still good."""
        return principal in self._identity.everybody(now)

    def gathered(self, context: IncomingLink | OutgoingLink) -> None:
        """Registers a link to be flushed when all frames that have come were read."""
        self._gathered[context] = None

    def turn_away(self, context: Context, condition: str, text: str) -> None:
        """Detaches a link from this side, of which nothing more is told."""
        self._turn_away(context, error(condition, text))

    def turn_away_for(
        self, context: Context, refused: Refused | StoreError, text: str | None = None
    ) -> None:
        """Does as `turn_away`, with the refusal's code and facts."""
        self._turn_away(context, self.error_of(refused, text))

    def error_of(self, refused: Refused | StoreError, text: str | None = None) -> bytes:
        """A refusal as this client is told it; `text` stands for the refusal's own."""
        return conditions.error_of(refused, self._amqp.remote_frame_max, text)

    def rejection_of(self, refused: Refused | StoreError, text: str | None = None) -> bytes:
        return conditions.rejection_of(refused, self._amqp.remote_frame_max, text)

    def _turn_away(self, context: Context, problem: bytes) -> None:
        context.link.detach(problem)
        self.contexts.pop(context.link, None)
        context.on_detached()

    @property
    def link_bytes(self) -> int:
        """The bytes of messages that may be asked for at a time for one link."""
        share = OUTGOING_BYTES // max(1, len(self.contexts))
        return max(LINK_BYTES_MIN, min(LINK_BYTES_MAX, share))

    def session_token(self, target: Target, session: str) -> int:
        """Returns the token of a session that this connection holds; 0 where it does not."""
        for each in self.contexts.values():
            if (
                isinstance(each, OutgoingLink)
                and each.session is not None
                and each.session.session == session
                and each.target.queue == target.queue
                and each.target.namespace == target.namespace
            ):
                return each.session.token
        return 0

    # Events.

    def _on_opened(self, event: Opened) -> None:
        if self._peers.engine is None:
            self._close(conditions.FORCED, "The broker is starting. Connect again shortly.")
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = self._loop.call_later(AUTHENTICATE_SECONDS, self._too_late)
        if self._identity.plain is not None:
            self.trust(self._identity.plain)
        seconds = self._amqp.idle_seconds
        if seconds is not None and seconds < IDLE_SECONDS_MIN / 2:  # 2.4.5: it may be refused
            self._close(conditions.ARGUMENT, f"An idle time-out is {IDLE_SECONDS_MIN} s at least.")
        elif seconds is not None:
            self._keep_alive()

    def _on_nothing(self, event: Event) -> None:
        pass

    def _on_flowed(self, event: Flowed) -> None:
        context = self.contexts.get(event.link)
        if context is not None:
            context.on_flowed()

    def _on_arrived(self, event: Arrived) -> None:
        context = self.contexts.get(event.link)
        if context is not None:
            context.on_arrived(event)

    def _on_run(self, event: Run) -> None:
        context = self.contexts.get(event.link)
        if context is not None:
            assert isinstance(context, IncomingLink)  # who asked for them
            context.on_run(event)

    def _on_disposed(self, event: Disposed) -> None:
        context = self.contexts.get(event.link)
        if context is not None:
            context.on_disposed(event)

    def _on_detached(self, event: Detached) -> None:
        self._attaching.give_up(event.link)
        context = self.contexts.pop(event.link, None)
        if context is not None:
            context.on_detached()

    def _on_attached(self, event: Attached) -> None:
        if not self.is_closing:
            self._attaching.attach(event.link)

    def _on_closed(self, event: Closed) -> None:
        self.is_closing = True


_ON: dict[type[Event], Callable[[Peer, Any], None]] = {
    Opened: Peer._on_opened,
    Begun: Peer._on_nothing,
    Attached: Peer._on_attached,
    Flowed: Peer._on_flowed,
    Arrived: Peer._on_arrived,
    Run: Peer._on_run,
    Disposed: Peer._on_disposed,
    Detached: Peer._on_detached,
    Ended: Peer._on_nothing,
    Closed: Peer._on_closed,
}
