"""One connection of a Service Bus client: SASL, $cbs, and links to nodes.

A client says who it is by SASL PLAIN, or by tokens that it puts on $cbs; each link is attached on
behalf of the principal whose token covers its entity. When the last such token has lapsed, or its
principal may not any more, the link is detached.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

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
)
from posthouse.amqp.performatives import error
from posthouse.amqp.session import Link
from posthouse.amqp.types import Described, Int, Symbol, ULong, Value
from posthouse.broker.access import BROKER, ROOT, Guard, Principal, key_is
from posthouse.broker.engine import Engine
from posthouse.core.commands import (
    AcceptSession,
    Answer,
    Command,
    Detach,
    Granted,
    Release,
    ReleaseSession,
)
from posthouse.core.errors import Refused, Unauthenticated, Unauthorized
from posthouse.core.model import Queue, Right, find
from posthouse.core.namespaces import CreateNamespace
from posthouse.dialects.servicebus import conditions, sas
from posthouse.dialects.servicebus.address import (
    ADDRESS_CHARS_MAX,
    Address,
    parse,
    path_of,
    queue_of,
)
from posthouse.dialects.servicebus.links import Inlet, Outlet, Place
from posthouse.dialects.servicebus.management import Desk, Told, reply_properties
from posthouse.dialects.servicebus.requests import (
    ReplyLink,
    Request,
    RequestLink,
    address_in,
    is_coordinator,
)
from posthouse.store.errors import StoreError

_log = logging.getLogger(__name__)
_audit = logging.getLogger("posthouse.audit")

IDLE_MS = 120_000  # how often we want to hear of a client; it is dropped after twice as long
AUTHENTICATE_SECONDS = 30  # what a client has to show who it is, after it has said hello
IDLE_SECONDS_MIN = 0.4  # that a client may want to hear of us, at least
CHECK_SECONDS = 2.0  # how often it is looked whether tokens have lapsed
WAIT_MS = 60_000  # for a session to become free, where the client does not say
WAIT_MS_MAX = 3_600_000
IDLE_LINK_SECONDS = 600  # where it is to be as in the cloud: a link without any traffic,
IDLE_CONNECTION_SECONDS = 300  # and a connection without links to entities
OUTLETS_BYTES = 16 << 20  # of messages that are asked of queues at a time for one client,
OUTLET_BYTES_MAX, OUTLET_BYTES_MIN = 4 << 20, 16 << 10  # and for one of its links
UNANSWERED_BYTES_MAX = 8 << 20  # of messages sent by one client, before it is not read from
COMMANDS_MAX = 500  # of one client under way, likewise
REFUSALS_MAX = 100  # of a client that has not shown who it is
REFUSALS_LOGGED = 10  # of one connection
CLAIMS_MAX = 1_000  # tokens of one connection
END_SECONDS = 2  # what a client has to take our goodbye
MECHANISMS = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
_REQUEST_BYTES_MIN = 4 << 20  # that $management takes, unless messages may be larger
_TOKEN_BYTES_MAX = 64 << 10  # that $cbs takes

_SESSION_FILTER = "com.microsoft:session-filter"
_TIMEOUT = "com.microsoft:timeout"
_LOCKED_UNTIL = "com.microsoft:locked-until-utc"
_BATCH_SIZE = Symbol("com.microsoft:max-message-batch-size")
_TICKS_1970 = 621_355_968_000_000_000  # of 100 ns, since the year 1

Context: TypeAlias = Inlet | Outlet | RequestLink | ReplyLink
Reply = Callable[[Answer | Refused | StoreError], None]


class Line(Protocol):
    """What the listener knows of a connection."""

    @property
    def handshake_seconds(self) -> float: ...

    def gone(self) -> None:
        """It is over."""


class Settings(NamedTuple):
    namespace: str  # where a connection says nothing of it
    message_bytes: int = 1 << 20
    strict: bool = False  # answer as the cloud does where we would do otherwise
    namespace_from: str = "default"  # or "host", its first label, or "key", the key's name
    auto_create: bool = False
    dev: bool = False  # where namespaces go by key, any name may come with the root key


class Claim(NamedTuple):
    """What a token allows."""

    principal: Principal
    fits: Callable[[str], bool]  # whether a key is the one it was signed with
    scope: tuple[str, ...]
    expires: float  # unix seconds


class Peers:
    """All connections of Service Bus clients."""

    def __init__(self, broker: "Broker", guard: Guard, settings: Settings) -> None:
        self._broker = broker
        self.guard = guard
        self.settings = settings
        self._peers: set[Peer] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def engine(self) -> Engine | None:
        return self._broker.engine

    def make(self, line: Line) -> "Peer":
        return Peer(self, line)

    def add(self, peer: "Peer") -> None:
        self._peers.add(peer)
        self._arm()
        engine = self.engine
        if engine is not None and self._look_again not in engine.access_watchers:
            engine.access_watchers.append(self._look_again)

    def _look_again(self) -> None:
        """What somebody may do has changed."""
        asyncio.get_running_loop().call_soon(self._check, True)

    def remove(self, peer: "Peer") -> None:
        self._peers.discard(peer)
        if not self._peers and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(CHECK_SECONDS, self._check)

    def _check(self, changed: bool = False) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = time.time()
        for peer in list(self._peers):
            peer.check(now, changed=changed)
        if self._peers:
            self._arm()


class Broker(Protocol):
    """Until it is open there is no engine."""

    engine: Engine | None


class Peer:
    """One connection, as asyncio wants it."""

    def __init__(self, peers: Peers, line: Line) -> None:
        self._peers = peers
        self._line = line
        self._loop = asyncio.get_running_loop()
        self._amqp = Connection(
            "posthouse", authenticate=self._authenticate, mechanisms=MECHANISMS, idle_ms=IDLE_MS
        )
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)  # once it is made
        self._plain: Principal | None = None  # who it is by SASL
        self._plain_key: Callable[[str], bool] = _never
        self._refusals = 0
        self._replies: dict[Address, list[ReplyLink]] = {}
        self._claims: dict[tuple[str, ...], Claim] = {}  # by audience
        self._contexts: dict[Link, Context] = {}
        self._accepting: dict[Link, tuple[Place, int]] = {}  # who waits for a session
        self._gathered: dict[Inlet | Outlet, None] = {}
        self._flushing = False
        self._deadline: asyncio.TimerHandle | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._heard = self._linked = self._loop.time()
        self._spoken = False  # since the last beat
        self._closing = False
        self._stopping: asyncio.Task[None] | None = None
        self.is_paused = False  # the client does not read
        self.is_trusted = False  # it has shown who it is
        self.reply_bytes = 0  # of replies that wait to be taken
        self._unanswered_bytes = self._under_way = 0
        self._reading = True
        self._working = False  # on somebody's request
        self._id_prefix, self._ids = secrets.token_hex(12), 0

    # As asyncio sees it.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._peers.add(self)
        self._deadline = self._loop.call_later(self._line.handshake_seconds, self._too_late)

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        try:
            for event in self._amqp.receive(data):
                _ON[type(event)](self, event)
            for each in list(self._gathered):
                each.flush()
            self._gathered.clear()
        except Exception:  # noqa: BLE001 (here a connection's bytes come in)
            _log.exception("A connection has failed.", extra={"event": "amqp.failed"})
            self._transport.abort()
            return
        self._flush()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """Who does not read is not read from, and is given nothing more."""
        self.is_paused = True
        self._read_or_not()

    def _read_or_not(self) -> None:
        """Nothing is read that could not be dealt with."""
        wanted = (
            not self.is_paused and self._unanswered_bytes < UNANSWERED_BYTES_MAX
            and self._under_way < COMMANDS_MAX and not self._stopping
        )  # fmt: skip
        if wanted != self._reading and not self._transport.is_closing():
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def count_unanswered(self, change: int) -> None:
        """Bytes of messages that were sent and are not answered yet."""
        self._unanswered_bytes += change
        self._read_or_not()

    def resume_writing(self) -> None:
        self.is_paused = False
        self._read_or_not()
        for each in list(self._contexts.values()):
            if isinstance(each, Outlet | RequestLink):
                each.on_flowed()
        self.flush_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._deadline, self._beat):
            if timer is not None:
                timer.cancel()
        self._closing = True
        for event in self._amqp.lose():
            _ON[type(event)](self, event)
        self._peers.remove(self)
        self._line.gone()

    def shutdown(self) -> None:
        """The broker is going: what has come is answered first. Clients come back to the next."""
        if self._stopping is None and not self._closing:
            self._stopping = self._loop.create_task(self._stop())
            self._read_or_not()

    async def _stop(self) -> None:
        if self._peers.engine is not None:
            with contextlib.suppress(Refused, StoreError):
                await self._peers.engine.flush()  # whoever asked before has his answer
        for context in list(self._contexts.values()):
            self.turn_away(context, conditions.DETACH_FORCED, "The broker is being stopped.")
        self._close(conditions.FORCED, "The broker is being stopped. Connect again.")
        if not self._transport.is_closing() and not self._reading:
            self._transport.resume_reading()  # for the client's goodbye

    # Writing.

    def flush_soon(self) -> None:
        """After what is going on now: what is said in one go is written in one go."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._amqp.has_output and not self._transport.is_closing():
            self._spoken = True
            self._transport.write(self._amqp.take())
        if self._amqp.closed:
            self._transport.close()
            self._loop.call_later(END_SECONDS, self._transport.abort)

    def _close(self, condition: str, text: str) -> None:
        self._closing = True
        self._amqp.close(error(condition, text))
        self._flush()
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
            self._flush()
        self._spoken = False
        self._beat = self._loop.call_later(seconds / 2, self._keep_alive)

    def check(self, now: float, *, changed: bool = False) -> None:
        """Now and then: whether it may go on. `changed`: somebody's rights or keys are new."""
        if changed:
            self._identify_again()
        if self._loop.time() - self._heard > 2 * IDLE_MS / 1000:
            self._close("amqp:resource-limit-exceeded", "Nothing was heard for too long.")
            return
        if self._peers.settings.strict:
            self._drop_what_is_idle()
        self._claims = {path: each for path, each in self._claims.items() if each.expires > now}
        scopes: dict[Principal, set[tuple[str, ...]]] = {}
        for claim in self._claims.values():
            scopes.setdefault(claim.principal, set()).add(claim.scope)
        for context in list(self._contexts.values()):
            place = context.place
            if place is None:
                continue
            if isinstance(context, Inlet) and self._is_gone(place):
                self.turn_away(context, conditions.NOT_FOUND, conditions.missing(place.entity))
            elif not self._may(place, scopes.get(place.principal, ())):
                self.turn_away(
                    context,
                    conditions.UNAUTHORIZED,
                    "The token has expired, or may not be used for this any more. Put a new one.",
                )
        self._flush()

    def _is_gone(self, place: Place) -> bool:
        """The queue of an outlet tells it; who sends has to be told."""
        return self._queue(place) is None and not self._peers.settings.auto_create

    def _drop_what_is_idle(self) -> None:
        """As the cloud does it, which clients know to come back from."""
        now = self._loop.time()
        for context in list(self._contexts.values()):
            if context.place is None:
                continue
            self._linked = now
            if not context.is_idle:
                context.is_idle, context.idle_since = True, now
            elif now - context.idle_since > IDLE_LINK_SECONDS:
                self.turn_away(context, conditions.DETACH_FORCED, "The link was idle for too long.")
        if now - self._linked > IDLE_CONNECTION_SECONDS:
            self._close(conditions.FORCED, "The connection had no links for too long.")

    # Who it is.

    def _authenticate(self, mechanism: str, response: bytes) -> bool:
        if mechanism != "PLAIN":
            return True
        _, name, key = (*response.split(b"\0"), b"", b"")[:3]
        engine = self._peers.engine
        if engine is None or response.count(b"\0") != 2:
            return False
        try:
            self._plain_key = key_is(key.decode())
            self._plain = self._identify(name.decode(), self._plain_key)
        except (Unauthenticated, UnicodeDecodeError):
            self._note_refusal(name.decode(errors="replace"))
            return False
        self._trust()
        return True

    def _identify_again(self) -> None:
        """Keys that were taken back are good for nothing any more."""
        if self._plain is not None and not self._is_still(self._plain, self._plain_key):
            self._plain = None
        self._claims = {
            path: each for path, each in self._claims.items()
            if self._is_still(each.principal, each.fits)
        }  # fmt: skip

    def _is_still(self, principal: Principal, fits: Callable[[str], bool]) -> bool:
        try:
            return self._identify(principal.name, fits) == principal
        except Unauthenticated:
            return False

    def _identify(self, name: str, fits: Callable[[str], bool]) -> Principal:
        """Raises Unauthenticated."""
        accounts, guard = self.engine.namespaces.accounts, self._peers.guard
        settings = self._peers.settings
        if settings.dev and settings.namespace_from == "key" and name not in accounts:
            guard.identify_by(accounts, ROOT, fits)
            return Principal(name, everything=True)
        return guard.identify_by(accounts, name, fits)

    def _namespace(self, principal: Principal) -> str:
        """The namespace that the connection speaks of; it may have to be made yet."""
        settings, spaces = self._peers.settings, self.engine.namespaces
        name = settings.namespace
        if settings.namespace_from == "host":
            name = first_label(self._amqp.hostname or "") or name
        elif settings.namespace_from == "key" and principal.name != ROOT:
            name = principal.name
        if name in spaces.states:
            return name
        folded = name.casefold()
        return next((each for each in spaces.states if each.casefold() == folded), name)

    def _note_refusal(self, name: str) -> None:
        if not self._is_refused_once_more():
            return
        _audit.warning(
            "A client came with credentials that are not valid: %.100r", name,
            extra={"event": "access.unauthenticated"},
        )  # fmt: skip

    def _is_refused_once_more(self) -> bool:
        """Whether that is worth a line in the log. Who is refused too often is cut off."""
        self._refusals += 1
        if self._refusals == REFUSALS_MAX and not self.is_trusted:
            self._close(conditions.UNAUTHORIZED, "The client was refused too often.")
        return self._refusals <= REFUSALS_LOGGED

    def _trust(self) -> None:
        self.is_trusted = True
        self._amqp.trust()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def put_token(self, request: Request) -> tuple[int, str]:
        """A token on $cbs; returns status and text."""
        audience, text = request.text("name"), request.body
        if request.text("operation") != "put-token" or not isinstance(text, str):
            return 400, "The request is not a put-token with a token."
        engine = self._peers.engine
        if engine is None:
            return 503, "The broker is starting."
        if not text.strip().startswith(sas.PREFIX):
            return 401, "The token is not a shared access signature; others are not taken."
        try:
            token = sas.parse(text)
        except ValueError as problem:
            return 400, f"The token cannot be read: {problem}."
        try:
            principal = self._identify(token.key_name, token.fits)
        except Unauthenticated:
            self._note_refusal(token.key_name)
            return 401, "The token's key name or signature is not valid."
        _, path = sas.resource_of(audience)
        if token.expires <= time.time():
            return 401, "The token has expired."
        if len(audience) > ADDRESS_CHARS_MAX:
            return 400, "The token's name is too long."
        if not sas.covers(token.scope, path) or not self._is_for_here(token.host):
            return 401, f"The token is not for {audience!r}."
        if len(self._claims) >= CLAIMS_MAX and path not in self._claims:
            return 403, f"A connection has at most {CLAIMS_MAX} tokens."
        if self._peers.settings.strict and not self._is_there(principal, path):
            return 404, conditions.missing("/".join(path))
        self._claims[path] = Claim(principal, token.fits, token.scope, token.expires)
        self._trust()
        return 202, "Accepted"

    def _is_for_here(self, host: str) -> bool:
        """Where the host names a namespace a token is for that one alone."""
        if self._peers.settings.namespace_from != "host":
            return True
        mine = first_label(self._amqp.hostname or "")
        return first_label(host).casefold() == mine.casefold()

    def _is_there(self, principal: Principal, path: tuple[str, ...]) -> bool:
        state = self.engine.namespaces.states.get(self._namespace(principal))
        return not path or (state is not None and find(state, "/".join(path)) is not None)

    def _principals(self, path: tuple[str, ...], now: float) -> Iterable[Principal]:
        """On whose behalf an entity may be used, those first whose tokens are made out to it."""
        if self._plain is not None:
            yield self._plain
        fit = [e for e in self._claims.values() if e.expires > now and sas.covers(e.scope, path)]
        for claim in sorted(fit, key=lambda each: -len(each.scope)):
            yield claim.principal

    def _may(self, place: Place, scopes: Collection[tuple[str, ...]]) -> bool:
        """Whether a link may stay, where its principal's tokens are for these."""
        path = place.path
        known = place.principal == self._plain or any(
            path[:size] in scopes for size in range(len(path) + 1)
        )
        return known and self._has_right(place.principal, place)

    def _has_right(self, principal: Principal, place: Place) -> bool:
        accounts = self.engine.namespaces.accounts
        rights: tuple[Right, ...] = ("send", "listen", "manage")
        if place.right != "any":
            rights = (cast(Right, place.right),)
        for right in rights:
            try:
                self._peers.guard.check_right(
                    accounts, principal, right, place.namespace, place.entity
                )
            except Unauthorized:
                continue
            return True
        return False

    # For links.

    @property
    def engine(self) -> Engine:
        engine = self._peers.engine
        assert engine is not None  # there is no link before it is open
        return engine

    def new_id(self) -> str:
        """For a message that has none."""
        self._ids += 1
        return f"{self._id_prefix}{self._ids:08x}"

    def submit(self, place: Place, command: Command, reply: Reply) -> None:
        """Where too much is under way already, nothing more is read meanwhile."""

        def answered(answer: Answer | Refused | StoreError) -> None:
            self._under_way -= 1
            if not self._reading:
                self._read_or_not()
            reply(answer)

        self._under_way += 1
        if self._under_way >= COMMANDS_MAX:
            self._read_or_not()
        self.engine.submit(place.principal, place.namespace, command, answered)

    def leave(self, place: Place, command: Detach | Release | ReleaseSession) -> None:
        """Gives back what a client had; that needs no right, which it may have lost meanwhile."""
        self.engine.submit(BROKER, place.namespace, command, _ignore)

    def gathered(self, context: Inlet | Outlet) -> None:
        """It has something to be sent on when all that has come was looked at."""
        self._gathered[context] = None

    def turn_away(self, context: Context, condition: str, text: str) -> None:
        """Detaches a link from this side, of which nothing more is told."""
        context.link.detach(error(condition, text))
        self._contexts.pop(context.link, None)
        context.on_detached()

    def _queue(self, place: Place) -> Queue | None:
        state = self.engine.namespaces.states.get(place.namespace)
        return None if state is None else state.queues.get(place.queue)

    def queue_size(self, place: Place) -> tuple[int, int]:
        """How many messages there are in a queue, and their bytes."""
        queue = self._queue(place)
        return (0, 0) if queue is None else (sum(queue.counts), queue.size_bytes)

    @property
    def outlet_bytes(self) -> int:
        """What may be asked for at a time for one link."""
        share = OUTLETS_BYTES // max(1, len(self._contexts))
        return max(OUTLET_BYTES_MIN, min(OUTLET_BYTES_MAX, share))

    def message_bytes(self, place: Place) -> int:
        """The size that a message may have."""
        queue = self._queue(place)
        most = None if queue is None else queue.properties.max_message_bytes
        return self._peers.settings.message_bytes if most is None else most

    def session_token(self, place: Place, session: str) -> int:
        """Of a session that this connection holds; 0 where it does not."""
        for each in self._contexts.values():
            if (
                isinstance(each, Outlet)
                and each.session is not None
                and each.session.session == session
                and each.place.queue == place.queue
                and each.place.namespace == place.namespace
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
        if self._plain is not None:
            self._trust()
        seconds = self._amqp.idle_seconds
        if seconds is not None and seconds < IDLE_SECONDS_MIN / 2:  # 2.4.5: it may be refused
            self._close(conditions.ARGUMENT, f"An idle time-out is {IDLE_SECONDS_MIN} s at least.")
        elif seconds is not None:
            self._keep_alive()

    def _on_nothing(self, event: Event) -> None:
        pass

    def _on_flowed(self, event: Flowed) -> None:
        context = self._contexts.get(event.link)
        if context is not None:
            context.on_flowed()

    def _on_arrived(self, event: Arrived) -> None:
        context = self._contexts.get(event.link)
        if context is not None:
            context.on_arrived(event)

    def _on_disposed(self, event: Disposed) -> None:
        context = self._contexts.get(event.link)
        if context is not None:
            context.on_disposed(event)

    def _on_detached(self, event: Detached) -> None:
        waiting = self._accepting.pop(event.link, None)
        if waiting is not None:
            place, number = waiting
            self.leave(place, Detach(number))
        context = self._contexts.pop(event.link, None)
        if context is not None:
            context.on_detached()

    def _on_closed(self, event: Closed) -> None:
        self._closing = True

    def _on_attached(self, event: Attached) -> None:
        link = event.link
        attach = link.attach
        assert attach is not None
        if self._closing:
            return
        if is_coordinator(attach.target):
            link.refuse(error(conditions.NOT_IMPLEMENTED, "Transactions are not served yet."))
            return
        text = address_in(attach.source if link.sends else attach.target)
        try:
            address = parse(text or "")
        except ValueError as problem:
            link.refuse(error(conditions.NOT_FOUND, f"There is no such address: {problem}."))
            return
        if address.kind == "cbs":
            self._attach_pair(link, address, None, self._on_token, _TOKEN_BYTES_MAX)
            return
        place = self._place(link, address, path_of(text or ""))
        if place is None:
            return
        if address.kind == "management":
            answer = partial(self._on_request, Desk(self, place))
            most = max(_REQUEST_BYTES_MIN, 2 * self.message_bytes(place))
            self._attach_pair(link, address, place, answer, most)
        elif link.sends:
            self._attach_outlet(link, address, place)
        else:
            self._attach_inlet(link, address, place)

    def _place(self, link: Link, address: Address, text: str) -> Place | None:
        """Where a link leads, if its client may go there; else it is refused."""
        right = "any" if address.kind == "management" else "listen" if link.sends else "send"
        entity, exact = None, address.entity
        for principal in self._principals(address.path, time.time()):
            namespace = self._namespace(principal)
            state = self.engine.namespaces.states.get(namespace)
            entity = None if state is None else find(state, address.entity)
            exact = address.entity if entity is None else entity
            place = Place(
                principal, namespace, exact, queue_of(exact, address), address.path, right
            )
            if self._has_right(principal, place):
                if state is None and self._peers.settings.auto_create:
                    self.engine.submit(BROKER, "", CreateNamespace(namespace), _ignore)
                break
        else:
            claim = {"any": "Listen", "listen": "Listen", "send": "Send"}[right]
            if self._is_refused_once_more():
                _audit.warning(
                    "A client was refused: %s on %s", right, exact,
                    extra={"event": "access.refused", "right": right, "subject": exact},
                )  # fmt: skip
            link.refuse(
                error(
                    conditions.UNAUTHORIZED,
                    f"Unauthorized access. '{claim}' claim(s) are required to perform this"
                    f" operation on '{address.entity}'.",
                )
            )
            return None
        if address.transfer or (entity is None and not self._peers.settings.auto_create):
            link.refuse(error(conditions.NOT_FOUND, conditions.missing(text)))
            return None
        return place

    # $cbs and $management.

    def _attach_pair(
        self,
        link: Link,
        address: Address,
        place: Place | None,
        answer: Callable[[Request], None],
        most_bytes: int,
    ) -> None:
        attach = link.attach
        assert attach is not None
        context: RequestLink | ReplyLink
        if link.sends:
            context = ReplyLink(self, link, address, place)
            self._replies.setdefault(address, []).append(context)
        else:
            context = RequestLink(self, link, address, place, answer)
        self._contexts[link] = context
        link.accept(source=attach.source, target=attach.target, max_message_size=most_bytes)
        if isinstance(context, RequestLink):
            context.start()

    def _reply_link(self, request: Request) -> ReplyLink | None:
        asked = self._contexts.get(request.link)
        if not isinstance(asked, RequestLink):
            return None
        links = self._replies.get(asked.address, [])
        named = [each for each in links if request.reply_to in each.names]
        return (named or links)[-1] if links else None

    def forget_replies(self, link: ReplyLink) -> None:
        links = self._replies.get(link.address, [])
        if link in links:
            links.remove(link)
        if not links:
            self._replies.pop(link.address, None)

    def begin_request(self) -> bool:
        """One at a time on a connection, as the replies are taken: a reply may be large."""
        if self._working or self.is_paused:
            return False
        self._working = True
        return True

    def _replied(self) -> None:
        self._working = False
        self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        for each in list(self._contexts.values()):
            if isinstance(each, RequestLink):
                each.on_flowed()
        self.flush_soon()

    def _on_token(self, request: Request) -> None:
        status, text = self.put_token(request)
        replies = self._reply_link(request)
        if replies is not None:
            properties: dict[Value, Value] = {
                "status-code": Int(status), "status-description": text,
            }  # fmt: skip
            replies.reply(request, properties, None)
        self._replied()

    def _on_request(self, desk: Desk, request: Request) -> None:
        def tell(told: Told) -> None:
            replies = self._reply_link(request)
            if replies is not None:
                replies.reply(request, reply_properties(told), told.body)
            self._replied()

        desk.answer(request, tell)

    # Queues.

    def _attach_inlet(self, link: Link, address: Address, place: Place) -> None:
        attach = link.attach
        assert attach is not None
        if address.dead:
            link.refuse(error(conditions.NOT_ALLOWED, "A dead-letter queue cannot be sent to."))
            return
        most = self.message_bytes(place)
        queue = self._queue(place)
        if queue is not None and queue.properties.status in ("disabled", "send-disabled"):
            link.refuse(
                error(
                    conditions.DISABLED,
                    f"The messaging entity '{place.entity}' is disabled for sending.",
                )
            )
            return
        inlet = self._contexts[link] = Inlet(self, link, place, most)
        link.accept(
            source=attach.source, target=attach.target, max_message_size=most,
            properties={_BATCH_SIZE: ULong(most)},
        )  # fmt: skip
        inlet.start()

    def _attach_outlet(self, link: Link, address: Address, place: Place) -> None:
        attach = link.attach
        assert attach is not None
        delete = attach.snd_settle_mode == 1
        wanted, session = _session_filter(attach.source)
        if not wanted:
            outlet = Outlet(self, link, place, delete=delete, session=None)
            outlet.start(partial(self._outlet_attached, link, outlet))
        elif session is not None and type(session) is not str:
            link.refuse(error(conditions.ARGUMENT, "A session id must be text."))
        elif address.dead:
            link.refuse(error(conditions.NOT_ALLOWED, "A dead-letter queue has no sessions."))
        else:
            self._accept_session(link, place, session, delete=delete)

    def _outlet_attached(self, link: Link, outlet: Outlet, answer: object) -> None:
        attach = link.attach
        assert attach is not None
        if link.is_gone or self._closing:
            outlet.on_detached()
        elif isinstance(answer, Refused | StoreError):
            condition, text = conditions.INTERNAL, "The journal was lost."
            if isinstance(answer, Refused):
                condition, text, _ = conditions.told(answer)
            link.refuse(error(condition, text))
            if outlet.session is not None:
                self.leave(outlet.place, ReleaseSession(outlet.place.queue, outlet.session.token))
        else:
            self._contexts[link] = outlet
            source, properties = attach.source, {}
            if outlet.session is not None:
                source = _with_session(attach.source, outlet.session.session)
                ticks = outlet.session.until_ms * 10_000 + _TICKS_1970
                properties = {Symbol(_LOCKED_UNTIL): ticks}
            link.accept(
                source=source, target=attach.target,
                max_message_size=self._peers.settings.message_bytes, properties=properties,
            )  # fmt: skip
            outlet.on_flowed()  # credit may have come before
        self.flush_soon()

    def _accept_session(
        self, link: Link, place: Place, session: str | None, *, delete: bool
    ) -> None:
        attach = link.attach
        assert attach is not None
        number = self.engine.new_receiver()
        given = (attach.properties or {}).get(Symbol(_TIMEOUT))
        wait_ms = WAIT_MS
        if isinstance(given, int | float) and given >= 0:  # of any type, and it may be infinite
            wait_ms = int(min(given, WAIT_MS_MAX))
        if session is not None:
            wait_ms = 0
        deadline_ms = self.engine.clock_ms(place.namespace) + wait_ms if wait_ms else 0
        command = AcceptSession(place.queue, number, session, deadline_ms=deadline_ms, bound=True)
        # A namespace's clock may stand still; the client does not wait for ever.
        timer = self._loop.call_later(wait_ms / 1000 + 1, self.engine.give_up, number)
        self._accepting[link] = (place, number)

        def reply(answer: Answer | Refused | StoreError) -> None:
            timer.cancel()
            self._accepting.pop(link, None)
            if isinstance(answer, Granted):
                if link.is_gone or self._closing:
                    self.leave(place, ReleaseSession(place.queue, answer.token))
                    return
                outlet = Outlet(self, link, place, delete=delete, session=answer)
                outlet.start(partial(self._outlet_attached, link, outlet))
                return
            if link.is_gone or self._closing:
                return
            if isinstance(answer, Refused):
                condition, text, _ = conditions.told(answer)
            elif isinstance(answer, StoreError):
                condition, text = conditions.INTERNAL, "The journal was lost."
            else:
                condition, text = conditions.TIMEOUT, "No session became free in time."
            link.refuse(error(condition, text))
            self.flush_soon()

        # It may wait for long, so it does not count among what is under way.
        self.engine.submit(place.principal, place.namespace, command, reply)


def _never(_: str) -> bool:
    return False


def first_label(host: str) -> str:
    """Of a host name that has several; nothing of others, and of addresses."""
    name = host.partition(":")[0]
    label, dot, _ = name.partition(".")
    return label if dot and not name.replace(".", "").isdigit() else ""


def _session_filter(source: Described | None) -> tuple[bool, Value]:
    """Whether a session is wanted, and which; None stands for the next that is free."""
    fields = source.value if source is not None and isinstance(source.value, list) else []
    filters = fields[7] if len(fields) > 7 else None
    if not isinstance(filters, dict) or _SESSION_FILTER not in filters:
        return False, None
    found = filters[Symbol(_SESSION_FILTER)]
    return True, found.value if isinstance(found, Described) else found


def _with_session(source: Described | None, session: str) -> Described:
    """The source as it was asked for, with the session that was given."""
    assert source is not None
    fields = list(source.value)
    fields[7] = {**fields[7], Symbol(_SESSION_FILTER): session}
    return Described(source.descriptor, fields)


def _ignore(_: object) -> None:
    """Nobody waits for this answer."""


_ON: dict[type[Event], Callable[[Peer, Any], None]] = {
    Opened: Peer._on_opened,
    Begun: Peer._on_nothing,
    Attached: Peer._on_attached,
    Flowed: Peer._on_flowed,
    Arrived: Peer._on_arrived,
    Disposed: Peer._on_disposed,
    Detached: Peer._on_detached,
    Ended: Peer._on_nothing,
    Closed: Peer._on_closed,
}
