"""One connection to NATS, which comes back by itself, whatever ended it.

nats-py connects anew after some failures, and closes itself for good after others. So it is told to
do neither: here each connection is made by the same few lines, and everything that was subscribed
is subscribed again. What was under way when a connection was lost is told at once, as unanswered.
"""

import asyncio
import contextlib
import itertools
import logging
import random
import secrets
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from posthouse.bridge.errors import BridgeError, ConfigurationError, NotPermitted
from posthouse.bridge.jetstream.words import (
    Reply,
    Unanswered,
    headers_of,
    not_permitted,
    read_denied,
)
from posthouse.bridge.transport import State

_log = logging.getLogger("posthouse.bridge")

PORT = 4222
DIAL_SECONDS = 3.0  # for one server
OPEN_SECONDS = 10.0  # until one of them is reached
ANSWER_SECONDS = 5.0
PAUSE_SECONDS = (0.05, 2.0)  # between two rounds of all servers, the first and the longest
REFUSED_SECONDS = 5.0  # after a server that does not accept the credentials
PING_SECONDS = 5
PONG_SECONDS = 5
PINGS_MAX = 2  # unanswered: the connection is dead
CLOSE_SECONDS = 2.0
SERVERS_MAX = 32  # that are known: those of the URLs, then those that a server has told
_SCHEMES = ("nats", "tls", "nats+tls")
_FAILURES = (OSError, TimeoutError, nats.errors.Error, ValueError)


@dataclass(frozen=True, slots=True)
class Login:
    """How to be let in. No field is shown in a log."""

    user: str = ""
    password: str = ""
    token: str = ""
    credentials: str = ""  # a .creds file, or a file with the seed of an nkey
    ca_file: str = ""  # whom to trust; the machine's, unless given
    cert_file: str = ""
    key_file: str = ""

    def __repr__(self) -> str:
        return "Login(...)"


@dataclass(frozen=True, slots=True)
class Servers:
    """Addresses of servers: `host:port` each, by TLS or not."""

    hosts: tuple[str, ...]
    tls: bool
    login: Login


def read_urls(urls: Sequence[str], login: Login) -> Servers:
    """Reads `nats://user:password@n1:4222,n2,n3`, or several. Raises ConfigurationError.

    A user that one URL names is everybody's.
    """
    hosts: list[str] = []
    schemes = set()
    for url in urls:
        scheme, mark, rest = url.strip().partition("://")
        scheme = scheme.lower()
        if not mark or scheme not in _SCHEMES:
            raise ConfigurationError("A NATS URL begins with nats://, nats+tls:// or tls://.")
        schemes.add(scheme != "nats")
        rest = rest.replace(f",{scheme}://", ",")  # each with the scheme, in one text
        given, at, places = rest.rstrip("/").rpartition("@")
        if at:
            user, colon, password = given.partition(":")
            if colon:
                login = _with(login, user=unquote(user), password=unquote(password))
            else:
                login = _with(login, token=unquote(user))
        hosts += [_host(place) for place in places.split(",")]
    if not hosts or len(schemes) > 1:
        raise ConfigurationError("All NATS URLs must begin alike: all of them with TLS, or none.")
    return Servers(tuple(dict.fromkeys(hosts)), schemes.pop() or bool(login.ca_file), login)


def _with(login: Login, **changes: str) -> Login:
    values = {name: getattr(login, name) for name in Login.__slots__}
    return Login(**(values | changes))


def _host(place: str) -> str:
    place = place.strip()
    try:
        parts = urlsplit(f"//{place}")
        port = PORT if parts.port is None else parts.port
    except ValueError:
        port = 0
        parts = urlsplit("//")
    wrong = not parts.hostname or parts.path or parts.query or parts.username is not None
    if wrong or not port or any(sign.isspace() for sign in place):
        raise ConfigurationError(
            "A NATS URL must name hosts, as in nats://n1:4222,n2:4222; one of them is no host."
        )
    host = str(parts.hostname)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


Heard = Callable[[str, str, Reply], None]  # subject, reply subject, and what was said


class Listener:
    """A subscription that outlives connections."""

    def __init__(self, subject: str, queue: str, heard: Heard) -> None:
        self.subject, self.queue = subject, queue
        self.denied: NotPermitted | None = None
        self._heard = heard
        self._now: Subscription | None = None

    async def begin(self, client: Client) -> None:
        before, self._now = self._now, None
        self._now = await client.subscribe(
            self.subject, queue=self.queue, cb=self._hear,
            pending_msgs_limit=0, pending_bytes_limit=0,
        )  # fmt: skip
        if before is not None and client is before._conn:
            await before.unsubscribe()

    async def _hear(self, message: Msg) -> None:
        reply = Reply(message.data, headers_of(message.headers))
        self._heard(message.subject, message.reply, reply)

    async def end(self) -> None:
        now, self._now = self._now, None
        if now is not None:
            with contextlib.suppress(*_FAILURES):  # the connection has ended it
                async with asyncio.timeout(CLOSE_SECONDS):
                    await now.drain()  # type: ignore[no-untyped-call]


@dataclass(slots=True)
class _Waiting:
    """A request that waits for its reply."""

    subject: str
    reply: "asyncio.Future[Reply]"


class Connection:
    """Requests and subscriptions, on whichever connection there is."""

    def __init__(self, servers: Servers, *, name: str, inbox: str) -> None:
        self.state: State = "disconnected"
        self.since = time.time()
        self.server = ""
        self.problem = ""
        self.generation = 0  # rises with each connection
        self.body_bytes_max = 1 << 20  # of a message with its headers; known once it is connected
        self._servers = servers
        self._hosts = list(servers.hosts)
        self._name = name
        self._inbox = f"{inbox}.{secrets.token_hex(11)}"
        self._numbers = itertools.count(1)
        self._waiting: dict[str, _Waiting] = {}
        self._denied: dict[str, tuple[str, Callable[[NotPermitted], None]]] = {}
        # The first is that of replies.
        self._listeners = [Listener(f"{self._inbox}.*", "", self._take)]
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._watchers: set[asyncio.Event] = set()  # set with every change of the state
        self._lost = asyncio.Event()
        self._refusal: BridgeError | None = None  # trying again does not mend it

    # Connecting.

    async def open(self) -> None:
        """Connects. Raises BridgeError where nobody lets it in; it goes on trying then."""
        if self._task is None:
            self._become("connecting", "")
            self._task = asyncio.create_task(self._stay_connected())
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await self._until_connected(is_opening=True)
        except TimeoutError:
            raise BridgeError(self._nobody()) from None

    def _nobody(self) -> str:
        return (
            f"No NATS server answers at {', '.join(self._servers.hosts)}: {self.problem or 'none'}."
            " Start one, or name another."
        )

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        client, self._client = self._client, None
        self._become("disconnected", "It is closed.")
        self._fail_all("the connection was closed")
        if client is not None:
            await _end(client)

    def _become(self, state: State, problem: str) -> None:
        if state != self.state:
            self.state, self.since = state, time.time()
        self.problem = problem
        for watcher in self._watchers:
            watcher.set()

    @contextlib.contextmanager
    def watching(self, watcher: asyncio.Event) -> Iterator[None]:
        """Sets an event with every change of the state, for as long as a block lasts."""
        self._watchers.add(watcher)
        try:
            yield
        finally:
            self._watchers.discard(watcher)

    async def connected(self, seconds: float) -> bool:
        """Waits for a connection; says whether there is one."""
        try:
            async with asyncio.timeout(seconds):
                await self._until_connected()
        except TimeoutError:
            return False
        return True

    async def _until_connected(self, *, is_opening: bool = False) -> None:
        """Raises BridgeError while it is opened and the server does not let it in."""
        changed = asyncio.Event()
        with self.watching(changed):
            while self.state != "connected":
                if is_opening and self._refusal is not None:
                    raise self._refusal
                changed.clear()
                await changed.wait()

    async def _stay_connected(self) -> None:
        pause = PAUSE_SECONDS[0]
        while True:
            self._lost = asyncio.Event()
            try:
                client = await self._dial_one()
                await self._take_over(client)
            except (BridgeError, *_FAILURES) as error:
                is_refused = isinstance(error, NotPermitted | ConfigurationError)
                is_first = not self.problem
                self._refusal = error if isinstance(error, BridgeError) and is_refused else None
                state: State = "reconnecting" if self.generation else "connecting"
                self._become("failed" if is_refused else state, str(error) or type(error).__name__)
                if is_first:
                    _log.warning("NATS: %s", error, extra={"event": "bridge.nats-unreached"})
                wait = REFUSED_SECONDS if is_refused else pause * (0.5 + random.random())  # noqa: S311
                pause = min(pause * 2, PAUSE_SECONDS[1])
                await asyncio.sleep(wait)
                continue
            pause, self._refusal = PAUSE_SECONDS[0], None
            await self._lost.wait()
            self._client = None
            self._become("reconnecting", self.problem or f"{self.server} was lost")
            _log.warning(
                "NATS: the connection to %s was lost; it is made again.", self.server,
                extra={"event": "bridge.nats-lost", "server": self.server},
            )  # fmt: skip
            self._fail_all(f"the connection to {self.server} was lost")
            await _end(client)

    async def _dial_one(self) -> Client:
        """Connects to the first server that lets it in. Raises BridgeError."""
        last: BridgeError | None = None
        for host in list(self._hosts):
            try:
                return await self._dial(host)
            except NotPermitted as refused:
                last = refused
            except _FAILURES as error:
                if not isinstance(last, NotPermitted):
                    last = BridgeError(f"{host}: {str(error) or type(error).__name__}")
            self._hosts.remove(host)  # its turn is last
            self._hosts.append(host)
        raise last or BridgeError("There are no servers.")

    async def _dial(self, host: str) -> Client:
        client, login = Client(), self._servers.login
        options: dict[str, Any] = {}
        if login.credentials:
            options[_kind_of(login.credentials)] = login.credentials
        if login.token:
            options["token"] = login.token
        elif login.user:
            options |= {"user": login.user, "password": login.password}
        if self._servers.tls:
            options["tls"] = self._ssl_context()
        lost = self._lost

        async def end() -> None:
            lost.set()

        scheme = "tls" if self._servers.tls else "nats"
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                await client.connect(
                    [f"{scheme}://{host}"], name=self._name, allow_reconnect=False,
                    max_reconnect_attempts=1, reconnect_time_wait=0, connect_timeout=2,
                    ping_interval=PING_SECONDS, max_outstanding_pings=PINGS_MAX,
                    error_cb=self._note_error, closed_cb=end, disconnected_cb=end, **options,
                )  # fmt: skip
        except BaseException as error:
            await _end(client)
            if isinstance(error, nats.errors.Error) and "authorization" in str(error).lower():
                raise NotPermitted(
                    f"The NATS server {host} does not accept the credentials; look at user,"
                    " password, token or credentials file."
                ) from None
            raise
        return client

    def _ssl_context(self) -> ssl.SSLContext:
        login = self._servers.login
        context = ssl.create_default_context(cafile=login.ca_file or None)
        if login.cert_file:
            context.load_cert_chain(login.cert_file, login.key_file or None)
        return context

    async def _take_over(self, client: Client) -> None:
        """Subscribes on a new connection, and makes it the one that is used. Raises BridgeError."""
        for listener in self._listeners:
            listener.denied = None
            await listener.begin(client)
        await client.flush(PONG_SECONDS)  # what is not allowed has been told before the answer
        denied = self._listeners[0].denied
        if denied is not None:
            await _end(client)
            raise denied
        again = self.generation > 0
        self._client = client
        self.generation += 1
        self.body_bytes_max = client.max_payload
        url = client.connected_url
        self.server = url.netloc.rpartition("@")[2] if url is not None else ""
        self._learn(client)
        self._become("connected", "")
        if again:
            _log.info(
                "NATS: connected again, to %s.", self.server,
                extra={"event": "bridge.nats-connected", "server": self.server},
            )  # fmt: skip

    def _learn(self, client: Client) -> None:
        """Notes the other servers of the cluster, as this one tells them."""
        for url in client.discovered_servers:
            host = url.netloc.rpartition("@")[2]
            if host not in self._hosts and len(self._hosts) < SERVERS_MAX:
                self._hosts.append(host)

    @property
    def server_info(self) -> Mapping[str, Any]:
        """The server's description of itself."""
        return {} if self._client is None else dict(self._client._server_info)

    # What is not allowed.

    async def _note_error(self, error: Exception) -> None:
        operation, subject = read_denied(str(error))
        if not subject:
            if self.state == "connected":
                self.problem = str(error) or type(error).__name__
            return
        if operation == "subscribe to":
            for listener in self._listeners:
                if listener.subject.lower() == subject:
                    listener.denied = not_permitted(operation, listener.subject)
                    self._tell_denied(subject, operation)
            return
        for token, waiting in list(self._waiting.items()):
            if waiting.subject.lower() == subject and not waiting.reply.done():
                waiting.reply.set_exception(not_permitted(operation, waiting.subject))
                del self._waiting[token]
        self._tell_denied(subject, operation)

    def _tell_denied(self, subject: str, operation: str) -> None:
        """The server tells a subject in lower case; it is told as it was given."""
        if subject in self._denied:
            given, told = self._denied[subject]
            told(not_permitted(operation, given))

    def when_denied(self, subject: str, told: Callable[[NotPermitted], None]) -> None:
        """Calls `told` when the server denies a subject, until it is forgotten."""
        self._denied[subject.lower()] = subject, told

    def forget_denied(self, subject: str) -> None:
        self._denied.pop(subject.lower(), None)

    # Requests.

    def _take(self, subject: str, reply_to: str, reply: Reply) -> None:
        token = subject.rpartition(".")[2]
        waiting = self._waiting.pop(token, None)
        if waiting is not None and not waiting.reply.done():
            waiting.reply.set_result(reply)

    def _fail_all(self, why: str) -> None:
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.reply.done():
                each.reply.set_exception(
                    Unanswered(f"There was no answer for {each.subject!r}: {why}.")
                )

    def _live(self) -> Client:
        if self._client is None:
            raise Unanswered(f"There is no connection to NATS: {self.problem}.")
        return self._client

    async def send(
        self, subject: str, body: bytes = b"", headers: dict[str, str] | None = None,
        reply: str = "",
    ) -> None:  # fmt: skip
        """Publishes without an answer. Raises Unanswered."""
        client = self._live()
        try:
            await client.publish(subject, body, reply, headers)
        except _FAILURES as error:
            raise Unanswered(f"{subject!r} could not be sent: {error}") from error

    async def begin_request(
        self, subject: str, body: bytes, headers: dict[str, str] | None = None
    ) -> "tuple[str, asyncio.Future[Reply]]":
        """Publishes, and returns the future reply with its token. Raises Unanswered.

        Who does not wait for it any longer calls `give_up`.
        """
        client = self._live()
        token = f"r{next(self._numbers):x}"
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[token] = _Waiting(subject, reply)
        try:
            await client.publish(subject, body, f"{self._inbox}.{token}", headers)
        except BaseException as error:
            self._waiting.pop(token, None)
            if isinstance(error, _FAILURES):
                raise Unanswered(f"{subject!r} could not be sent: {error}") from error
            raise
        return token, reply

    def give_up(self, token: str) -> None:
        self._waiting.pop(token, None)

    async def request(
        self, subject: str, body: bytes, headers: dict[str, str] | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> Reply:  # fmt: skip
        """Publishes, and returns the reply. Raises Unanswered, NotPermitted."""
        if self._client is None:
            await self.connected(seconds)
        token, reply = await self.begin_request(subject, body, headers)
        try:
            async with asyncio.timeout(seconds):
                return await reply
        except TimeoutError:
            raise Unanswered(f"{subject!r} was not answered within {seconds:g} s.") from None
        finally:
            self.give_up(token)

    def new_inbox(self) -> str:
        """Returns a subject below the inbox of this connection, for replies that are many."""
        return f"{self._inbox}.p{next(self._numbers):x}"

    # Subscriptions.

    async def listen(self, subject: str, heard: Heard, queue: str = "") -> Listener:
        """Subscribes now, if there is a connection, and on each that follows."""
        listener = Listener(subject, queue, heard)
        self._listeners.append(listener)
        await self.listen_again(listener)
        return listener

    async def listen_again(self, listener: Listener) -> None:
        if self._client is not None:
            with contextlib.suppress(*_FAILURES):  # the next connection does it
                await listener.begin(self._client)

    async def unlisten(self, listener: Listener) -> None:
        """Ends a subscription; what the server has sent until then is heard before it returns."""
        self._listeners.remove(listener)
        await listener.end()

    async def round_trip(self) -> float:
        """Returns the seconds that a ping takes. Raises Unanswered."""
        client, begun = self._live(), time.monotonic()
        try:
            await client.flush(PONG_SECONDS)
        except _FAILURES as error:
            raise Unanswered(f"{self.server} does not answer a ping: {error}") from error
        return time.monotonic() - begun


def _kind_of(credentials: str) -> str:
    """Returns nats-py's option for a file of credentials. Raises ConfigurationError."""
    try:
        with open(credentials, "rb") as file:  # noqa: PTH123
            head = file.read(2)
    except OSError as error:
        raise ConfigurationError(
            f"The credentials {credentials} cannot be read: {error.strerror}."
        ) from None
    return "nkeys_seed" if head == b"SU" else "user_credentials"


async def _end(client: Client) -> None:
    """Closes a client, however it is; whatever it says to that does not matter."""
    with contextlib.suppress(*_FAILURES):
        async with asyncio.timeout(CLOSE_SECONDS):
            await client.close()
    if client._transport is not None:  # which a connection that has half failed leaves open
        client._transport.close()  # type: ignore[no-untyped-call]
