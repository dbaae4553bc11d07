"""One connection of a VibeMQ client: what comes in and goes out, and when it has to go."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from posthouse.broker.access import BROKER, Principal, vouched
from posthouse.broker.engine import Engine
from posthouse.broker.throttle import Buckets, Login, cost_of
from posthouse.broker.view import View
from posthouse.core.commands import Answer, Command, Delivery
from posthouse.core.errors import Refused, Throttled, Unauthorized
from posthouse.dialects.backpressure import TURN_SECONDS, Backpressure, Turn
from posthouse.dialects.connections import ConnectionInfo, PeerRegistry, hang_up
from posthouse.dialects.vibemq import answers, requests
from posthouse.dialects.vibemq.answers import Wrong, told
from posthouse.dialects.vibemq.codec import (
    FRAME_BYTES_MAX,
    NO_HEADERS,
    UNKNOWN,
    Decoder,
    Encoder,
    Frame,
    Type,
    Unsqueezed,
    decode,
)
from posthouse.dialects.vibemq.malformed import Malformed
from posthouse.dialects.vibemq.message import check_frame
from posthouse.dialects.vibemq.queues import owner, resolve
from posthouse.dialects.vibemq.squeezing import Squeezed
from posthouse.dialects.vibemq.subscription import Subscription
from posthouse.dialects.vibemq.users import NOTHING, PUBLISH, SUBSCRIBE, Rights, Users
from posthouse.store.errors import StoreError

_log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0  # how often it is looked whether something is late
MISSED_MAX = 3  # intervals of keep-alive in which nothing is heard
AUTHENTICATE_SECONDS = 30  # what it may take to look at a password, others before it included
HELD_BYTES_MAX = 256 << 10  # that are kept meanwhile
UNANSWERED_BYTES_MAX = 8 << 20  # of messages sent by one client, before it is not read from
COMMANDS_MAX = 500  # of one client under way, likewise
REFUSALS_MAX = 100  # of a client that has not shown who it is
STRANGER_FRAMES_MAX = 200  # of such a one, in all: a Connect is enough
ENVELOPE_BYTES = 256 << 10  # that a frame may have beside its payload, when it is unpacked
GRACE_SECONDS = 10  # and to acknowledge what it has, where the broker is stopping
_ACK = int(Type.ACK)
Reply = Callable[[Answer | Refused | StoreError], None]


class Peers:
    """All connections of VibeMQ clients, and what is counted about them."""

    def __init__(self, users: Users) -> None:
        self.users = users
        self.settings = users.settings
        self._registry: PeerRegistry[Peer] = PeerRegistry(CHECK_SECONDS, self._check)
        self.peers = self._registry.peers
        rate = self.settings.connection_rate
        self.addresses = Buckets(rate, lambda: time.monotonic() / 60)  # in a minute
        self.requests = Buckets(self.settings.message_rate)
        self.accepted = self.rejected = self.errors = self.retries = 0
        self.delivered = self.latency_ms = 0

    @property
    def engine(self) -> Engine | None:
        return self.users.engine

    def make(self, info: ConnectionInfo) -> "Peer":
        return Peer(self, info)

    def count_deliveries(self, deliveries: Sequence[Delivery], now_ms: int) -> None:
        for each in deliveries:
            if each.count > 1:
                self.retries += 1
            else:
                self.delivered += 1
                self.latency_ms += max(0, now_ms - each.message.enqueued_ms)

    def add(self, peer: "Peer") -> None:
        self._registry.add(peer)
        if self.engine is not None:
            self.engine.access_watchers.add(self._look_again)

    def remove(self, peer: "Peer") -> None:
        self._registry.remove(peer)

    def _look_again(self, names: Collection[str]) -> None:
        """Has the peers of these principals check their rights, which have changed."""
        for peer in list(self.peers):
            if peer.principal is not None and peer.principal.name in names:
                peer.check_rights()

    def _check(self) -> None:
        for peer in list(self.peers):
            peer.check()


class _Late(NamedTuple):
    """A frame that is compressed when its turn to be written comes."""

    said: Unsqueezed
    too_large: Callable[[], None]


class Peer:
    """One connection, as asyncio wants it."""

    def __init__(self, peers: Peers, info: ConnectionInfo) -> None:
        self.peers = peers
        self.info = info
        self.users = peers.users
        self.settings = peers.settings
        self.namespace = peers.settings.namespace
        self.decoder = Decoder(self.settings.message_bytes + ENVELOPE_BYTES)
        self.encoder = Encoder(self.decoder)
        self.principal: Principal | None = None
        self._engine: Engine | None = None
        self._login: Login | None = None
        self._voucher = BROKER  # its name, and what was looked at before a command is given
        self.subscriptions: dict[str, Subscription] = {}  # by the queues' names, as they are here
        self._stopped: set[Subscription] = set()  # with something to be acknowledged
        self._unacknowledged: dict[str, deque[tuple[Subscription, int]]] = {}
        self._gathered: dict[Subscription, None] = {}
        self.blocked: dict[int, str] = {}  # sends that may wait for room, and their queues
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)  # once it is made
        self._backpressure = Backpressure(
            self._go_on, commands_max=COMMANDS_MAX, bytes_max=UNANSWERED_BYTES_MAX
        )
        self.count_unanswered = self._backpressure.count_unanswered
        self._is_unpacking = False  # a frame, in a thread
        self._is_packing = False  # likewise; what was said behind it waits for it
        self._out: deque[bytes | _Late] = deque()
        self._flushing = False
        self._deadline: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._heard = self._loop.time()
        self._refusals = self._strange_frames = 0
        self.is_over = False
        self._stopping = False
        self._empty: asyncio.Event | None = None  # where it is waited for: all is acknowledged
        self._limited = f"{id(self):x}"  # what it is called among the rates

    # As asyncio sees it.

    def connection_made(self, transport: Any) -> None:
        self._transport = self._backpressure.transport = transport
        self.peers.add(self)
        self._deadline = self._loop.call_later(self.info.handshake_seconds, self._too_late)

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        if self.is_over:
            return
        self.decoder.feed(data)
        if self._backpressure.is_held and self.decoder.held_bytes > HELD_BYTES_MAX:
            text = "Too much has come before it is known from whom."
            self.close(answers.INVALID_MESSAGE, text)
        elif self._backpressure.may_look:
            self._go_on()

    def _go_on(self) -> None:
        """Looks at frames until the turn is over; what is said meanwhile is written then.

        Who does not read that is not looked at either, so it cannot make us keep more of it.
        """
        if not self._may_look:
            return
        turn = self._backpressure.turn
        is_behind = False
        turn.begin()
        try:
            is_behind = self._look(turn)
            self._flush_gathered()
            if self._empty is not None and not self._unacknowledged:
                self._empty.set()
        except Malformed as malformed:
            self._close_malformed(malformed)
        except Exception:  # noqa: BLE001 (here a connection's bytes come in)
            _log.exception("A connection has failed.", extra={"event": "vibemq.failed"})
            self._transport.abort()
            return
        turn.end()
        self._flush()
        self._backpressure.end_turn(is_behind=is_behind)

    @property
    def _may_look(self) -> bool:
        """Whether the next frame may be handled. No frame is overtaken by a later one."""
        pressure = self._backpressure
        return not (self.is_over or pressure.is_held or pressure.is_paused or self._is_unpacking)

    @property
    def is_paused(self) -> bool:
        """The client does not read, and is given nothing more."""
        return self._backpressure.is_paused

    def _look(self, turn: Turn) -> bool:
        """Whether there may be more. Raises Malformed."""
        while (frame := self.decoder.take()) is not None:
            if isinstance(frame, Squeezed):
                self._is_unpacking = True
                self.spawn(self._unpack(frame))
                return True
            if not self._take(frame) or turn.is_over():
                return True
        return False

    async def _unpack(self, squeezed: Squeezed) -> None:
        """Decompresses a large frame in a thread, while other connections have their turns."""
        try:
            body = await asyncio.to_thread(squeezed.open)
            if not self.is_over:
                self._take(decode(body))
        except Malformed as malformed:
            self._close_malformed(malformed)
        finally:
            self._is_unpacking = False
        self._backpressure.turn.wait()

    def _close_malformed(self, malformed: Malformed) -> None:
        self.close(answers.INVALID_MESSAGE, f"The frame cannot be read: {malformed}.")

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """Stops reading from a client that does not read, and delivers nothing more to it."""
        self._backpressure.pause()

    def resume_writing(self) -> None:
        self._backpressure.resume()
        for each in list(self.subscriptions.values()):
            each.fill()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._leave()
        for task in self._tasks:
            task.cancel()
        self.peers.remove(self)
        self.info.gone()

    def _leave(self) -> None:
        """Returns the client's messages to their places, and gives up its waits."""
        self.is_over = True
        for each in (*self.subscriptions.values(), *self._stopped):
            each.end()
        self.subscriptions.clear()
        engine = self.peers.engine
        for number in list(self.blocked):
            if engine is not None:
                engine.give_up(number)

    def shutdown(self) -> None:
        """The broker is going: what has come is answered, and what is held may be acknowledged."""
        if not self._stopping and not self.is_over:
            self._stopping = True
            self.spawn(self._stop())

    async def _stop(self) -> None:
        for each in list(self.subscriptions.values()):
            each.stop()
        if self.peers.engine is not None:
            with contextlib.suppress(Refused, StoreError):
                await self.peers.engine.flush()  # whoever asked before has his answer
        if self.decoder.generation is not None:
            self._say_goodbye("server_shutdown")
            self._empty = asyncio.Event()
            if self._unacknowledged:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GRACE_SECONDS):
                        await self._empty.wait()
        self._end()

    # Reading.

    def _take(self, frame: Frame) -> bool:
        """Whether what comes behind it can be looked at now."""
        if self.principal is None:
            self._strange_frames += 1
            if self._strange_frames > STRANGER_FRAMES_MAX:
                text = f"A client has to show who it is within {STRANGER_FRAMES_MAX} frames."
                self.close(answers.AUTH_REQUIRED, text)
                return False
        if frame.type == _ACK:
            self._acknowledge(frame)
            return True
        if self._gathered:  # what comes behind an acknowledgement is done behind it
            self._flush_gathered()
        try:
            self._route(frame)(self, frame)
        except (Wrong, Refused) as wrong:
            self.refuse(frame.id, *told(wrong))
            if self.principal is None:
                self._refusals += 1
                if self._refusals >= REFUSALS_MAX:
                    self.close(answers.AUTH_REQUIRED, "The client was refused too often.")
        return not self._backpressure.is_held and not self.is_over

    def _route(self, frame: Frame) -> requests.Route:
        """Returns the handler of a frame. Raises Wrong or Throttled."""
        check_frame(frame)
        route = requests.ROUTES.get(frame.type)
        if route is None:
            which = "of that name" if frame.type == UNKNOWN else frame.type
            raise Wrong(answers.UNKNOWN_COMMAND, f"There is no command {which}.")
        if self.principal is None and frame.type not in requests.BEFORE:
            raise Wrong(answers.NOT_AUTHENTICATED, "Connect first.")
        if frame.type not in requests.FREE:
            if self._stopping:
                raise Wrong(answers.SERVER_BUSY, "The broker is being stopped.")
            self.peers.requests.check(self._limited)
            self.peers.requests.take(self._limited, 1)
        return route

    # Who it is.

    @property
    def login(self) -> Login:
        """The login of the connection: the credentials tried so far. The broker must be open."""
        if self._login is None:
            assert self.peers.engine is not None
            self._login = self.peers.engine.throttle.failures.login(self.info.address)
        return self._login

    def trust(self, principal: Principal) -> None:
        self.principal = principal
        self._engine = self.peers.engine
        self._voucher = vouched(principal)
        self._backpressure.turn.seconds = TURN_SECONDS
        self.decoder.frame_bytes_max = FRAME_BYTES_MAX
        self.stop_waiting()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def wait(self) -> None:
        """Handles no more frames until the client is authenticated."""
        self._backpressure.hold()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = self._loop.call_later(AUTHENTICATE_SECONDS, self._too_late)

    def stop_waiting(self) -> None:
        if self._backpressure.is_held:
            self._backpressure.release()
            self._backpressure.turn.wait()

    @property
    def rights(self) -> Rights:
        if self.principal is None:
            return NOTHING
        return self.users.rights(self.principal) or NOTHING

    def check_right(self, operation: str, queue: str) -> None:
        """Raises Wrong."""
        rights = self.rights
        if not (rights.is_superuser or rights.allows(operation, self._owner(queue))):
            raise Wrong(
                answers.NOT_AUTHORIZED, f"This user may not do that ({operation}) with {queue!r}."
            )

    def check_rights(self) -> None:
        """Its rights have changed, or its key or password."""
        if self.principal is None or self.is_over:
            return
        rights = self.users.rights(self.principal)
        if rights is None:
            text = "This user is no more, or has another key or password. Connect again."
            self.close(answers.NOT_AUTHENTICATED, text)
            return
        for number, queue in list(self.blocked.items()):
            if not rights.allows(PUBLISH, self._owner(queue)):
                refused = Unauthorized(self.principal.name, "send", self.namespace)
                self.engine.give_up(number, refused)
        for name, each in list(self.subscriptions.items()):
            if not rights.allows(SUBSCRIBE, self._owner(each.name)):
                del self.subscriptions[name]
                each.end()
                text = f"This user may not subscribe to {each.name!r} any more."
                self.refuse(each.id, answers.NOT_AUTHORIZED, text)
        self._flush()

    # Commands.

    @property
    def engine(self) -> Engine:
        assert self._engine is not None  # nobody is let in before it is open
        return self._engine

    @property
    def view(self) -> View:
        assert self._engine is not None  # as above; this is asked several times a message
        return self._engine.view

    def resolve(self, name: str) -> str:
        """Returns the broker's name of a queue."""
        return resolve(self.view, self.namespace, name)

    def _owner(self, name: str) -> str:
        return owner(self.view, self.namespace, name)

    def submit(self, command: Command, reply: Reply) -> None:
        """Submits a command that has been allowed. Reading stops while too many are under way."""
        engine = self.engine
        self._backpressure.command_begun()
        if engine.throttle.is_on:
            try:
                engine.throttle.check_address(self.info.address, cost_of(command))
            except Throttled as throttled:
                self._answered(reply, throttled)
                return
        engine.submit(self._voucher, self.namespace, command, partial(self._answered, reply))

    def _answered(self, reply: Reply, answer: Answer | Refused | StoreError) -> None:
        """Where the answer cannot be told, the connection ends: its client would wait for ever."""
        self._backpressure.command_done()
        if isinstance(answer, StoreError):
            self.close(answers.SERVER_ERROR, answer.for_clients)
        try:
            reply(answer)
        except Exception:  # noqa: BLE001 (a connection's own code must not concern others)
            _log.exception("An answer could not be told.", extra={"event": "connection.failed"})
            self.abort()

    def abort(self) -> None:
        """Aborts the connection. The client's messages go back when the connection is lost."""
        self._transport.abort()

    def leave(self, command: Command, reply: Reply | None = None) -> None:
        """Gives back what a client had; that needs no right."""
        if self.peers.engine is not None:
            self.peers.engine.submit(BROKER, self.namespace, command, reply or _ignore)

    async def ask(self, command: Command) -> Answer:
        """Raises Refused or StoreError."""
        return await self.engine.ask(self._voucher, self.namespace, command)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts a task for rare, long work. The task ends with the connection."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("A request has failed.", exc_info=error, extra={"event": "vibemq.failed"})
            self._transport.abort()

    # Acknowledgement.

    def hold(self, id: str, subscription: Subscription, token: int) -> None:
        """A client acknowledges by id, which another message may have as well."""
        held = self._unacknowledged.get(id)
        if held is None:
            held = self._unacknowledged[id] = deque()
        held.append((subscription, token))

    def let_go(self, id: str, subscription: Subscription, token: int) -> None:
        held = self._unacknowledged.get(id)
        if held is not None:
            if (subscription, token) in held:
                held.remove((subscription, token))
            if not held:
                del self._unacknowledged[id]

    def _acknowledge(self, frame: Frame) -> None:
        """The oldest of that id; there is no answer."""
        id = frame.id
        held = self._unacknowledged.get(id)
        if held is None:
            id = frame.headers.get("messageId", "")
            held = self._unacknowledged.get(id)
            if held is None:
                return
        subscription, token = held[0] if len(held) == 1 else self._meant(held, frame.queue)
        self.let_go(id, subscription, token)
        subscription.acknowledge(token)

    def _meant(self, held: deque[tuple[Subscription, int]], queue: str) -> tuple[Subscription, int]:
        """Chooses among deliveries of one id: the oldest that can still be acknowledged."""
        now_ms = self.engine.clock_ms(self.namespace)
        fresh = [each for each in held if each[0].held[each[1]][1] > now_ms]
        mine = [each for each in fresh if each[0].name == queue]
        return (mine or fresh or held)[0]

    def gather(self, subscription: Subscription) -> None:
        """It has something to be sent on when all that has come was looked at."""
        self._gathered[subscription] = None

    def _flush_gathered(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for each in gathered:
            each.flush()

    def unsubscribe(self, queue: str, then: Callable[[object], None]) -> None:
        """Calls back when the queue has lost the subscriber."""
        subscription = self.subscriptions.pop(queue, None)
        if subscription is None:
            then(None)
        else:
            self._stopped.add(subscription)
            subscription.stop(then)

    def ended(self, subscription: Subscription) -> None:
        self._stopped.discard(subscription)

    # Writing.

    def say(self, data: bytes | Unsqueezed, too_large: Callable[[], None]) -> None:
        """Queues a frame for writing. Frames of one turn of the loop are written together.

        Where it takes long to compress, it may turn out only then that it is too large.
        """
        self._out.append(data if isinstance(data, bytes) else _Late(data, too_large))
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def answer(self, frame: Frame) -> None:
        def too_large() -> None:
            self.refuse(frame.id, answers.SERVER_ERROR, "The answer does not fit into a frame.")

        data = self.encoder.frame(frame)
        if data is None:
            too_large()
        else:
            self.say(data, too_large)

    def refuse(self, id: str, code: str, text: str) -> None:
        self.peers.errors += 1
        self.answer(Frame(Type.ERROR, id or secrets.token_hex(16), "", b"", NO_HEADERS, code, text))

    def _flush(self) -> None:
        self._flushing = False
        if self._is_packing:
            return
        out: list[bytes] = []
        while self._out:
            said = self._out.popleft()
            if isinstance(said, _Late):
                self._is_packing = True
                self.spawn(self._pack(said))
                break
            out.append(said)
        if out and not self._transport.is_closing():
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    async def _pack(self, late: "_Late") -> None:
        """Compresses a large frame in a thread, while other connections have their turns."""
        data = await asyncio.to_thread(late.said.write)
        self._is_packing = False
        if data is None:
            late.too_large()
        elif not self.is_over:
            self._out.appendleft(data)
        self._flush()

    # The end.

    def check(self) -> None:
        """Now and then: what is late."""
        silence = self._loop.time() - self._heard
        if self.principal is None or self.is_over:
            return
        missed = silence / self.settings.keep_alive_seconds
        if missed > MISSED_MAX and self._backpressure.is_reading:
            self._say_goodbye("keep_alive_timeout")
            self._end()
            return
        now_ms = self.engine.clock_ms(self.namespace)
        for each in (*self.subscriptions.values(), *self._stopped):
            each.expire(now_ms)
            if each.is_over and not each.held:
                each.end()
        for queue, each in self.subscriptions.items():
            if not each.is_attached and self.view.exists(self.namespace, queue):
                each.start(queue, lambda _, one=each: one.fill())  # type: ignore[misc]

    def close(self, code: str, text: str, id: str = "") -> None:
        """Closes the connection with an error that says why."""
        if not self.is_over:
            if self.decoder.generation is not None:
                self.refuse(id, code, text)
            self._end()

    def _say_goodbye(self, reason: str) -> None:
        id = secrets.token_hex(16)
        self.answer(Frame(Type.DISCONNECT, id, headers={"reason": reason}))
        self._flush()

    def _end(self) -> None:
        if not self.is_over:
            self._leave()
        # The last words wait for nothing: what is not compressed yet goes back where it came from.
        self._out = deque(each for each in self._out if isinstance(each, bytes))
        self._is_packing = False
        self._flush()
        hang_up(self._transport)

    def disconnect(self) -> None:
        """The client has said goodbye."""
        self._end()

    def _too_late(self) -> None:
        self.close(answers.AUTH_REQUIRED, "The client has not shown in time who it is.")


def _ignore(_: object) -> None:
    """Nobody waits for this answer."""
