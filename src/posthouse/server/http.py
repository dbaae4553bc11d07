"""HTTP: who answers a request, and what every answer has in common.

`App` is the application behind every HTTP connection (`http_peer.py`). What is a dialect's
is told by its marks, and goes before the paths that are ours: health, metrics, the
feed, and of `/api/v1` the hot routes (send, receive, settle) are plain functions; the rest of it
and `/docs` are in api.py, which is imported when it is first asked for.
"""

import asyncio
import ipaddress
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, unquote, unquote_to_bytes

import msgspec
from uvicorn.config import Config as UvicornConfig

from posthouse.broker.access import ANYBODY, KEY_CHARS_MAX, Principal
from posthouse.broker.throttle import Login
from posthouse.core.errors import Busy, Refused, Unauthenticated
from posthouse.dialects.http import (
    CORRELATION,
    JSON,
    correlation_id,
    name_and_secret,
    retry_after,
    unknown,
)
from posthouse.dialects.http import Answer as DialectAnswer
from posthouse.dialects.json_bounds import bounded
from posthouse.server.allowance import Allowances
from posthouse.server.expected import sentence
from posthouse.server.host import BrokerHost
from posthouse.server.http_peer import CLOSE, FileRange, Head, Header, HttpPeer, KnownHeads
from posthouse.server.listener import Connection, Limits
from posthouse.server.log import correlation
from posthouse.server.problems import STATUS, HttpProblem, problem
from posthouse.server.shapes import Problem
from posthouse.store.errors import StoreError

_log = logging.getLogger(__name__)

SLICE_BYTES = 256 << 10  # of an answer that is sent in one go
SHARED_SLICE_BYTES = 32 << 10  # of one that is the same for all
DRAIN_BYTES, DRAIN_SECONDS = 64 << 10, 1.0  # of a request that was refused before it was read
QUERY_FIELDS_MAX = 1_000  # that a query string may have; its head bounds it too
FILES_MAX = 16  # that the kernel sends at a time; each takes two open files

Scope: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]

PROBLEM = (b"content-type", b"application/problem+json")
_NO_SNIFF = (b"x-content-type-options", b"nosniff")

Piece: TypeAlias = bytes | FileRange


class Shared(NamedTuple):
    """A body that is the same for all, of which there is one, whoever it is being sent to."""

    data: bytes


class Answer(NamedTuple):
    """A whole answer; or, where `body` is an iterator, one that is sent as it comes."""

    body: "bytes | Shared | AsyncIterator[Piece]"
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = (JSON,)


_file_slots = asyncio.Semaphore(FILES_MAX)


class Request:
    """One request, with what every route asks of it."""

    __slots__ = (
        "_app", "_body", "_scope", "head", "headers", "method", "parts", "peer", "principal",
        "query",
    )  # fmt: skip

    def __init__(
        self, app: "App", peer: HttpPeer, head: Head, body: bytes | None, scope: Scope | None = None
    ) -> None:
        """Takes a request. Without `body`, that is still to come, and there is a scope."""
        self._app = app
        self._body = body
        self._scope = scope
        self.peer = peer
        self.head = head
        self.method = head.method
        self.headers: dict[bytes, bytes] = head.fields
        self.parts = head.parts
        self.query: dict[str, str] = {}
        self.principal: Principal = ANYBODY

    @property
    def address(self) -> str:
        """The address of the client."""
        client = self.peer.client
        return client[0] if client else "?"

    @property
    def scheme(self) -> str:
        return self.peer.scheme or "http"

    @property
    def raw_path(self) -> bytes:
        return self.head.raw_path

    @property
    def raw_query(self) -> bytes:
        return self.head.query

    @property
    def spelled(self) -> list[Header]:
        """The headers in their order, with their names as they were written."""
        return self.head.spelled

    @property
    def connection(self) -> Connection:
        return self.peer.connection

    @property
    def login(self) -> Login:
        """The login state of its connection. The broker must be open."""
        found = self.peer.login
        if found is None:
            engine = self._app.broker.engine
            assert engine is not None
            found = self.peer.login = engine.throttle.failures.login(self.address)
        return found

    @property
    def version(self) -> str:
        """The version of HTTP."""
        return "1.1" if self._scope is None else str(self._scope["http_version"])

    @property
    def scope(self) -> Scope:
        """The ASGI scope of the request."""
        if self._scope is None:
            peer, head = self.peer, self.head
            self._scope = {
                "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"},
                "http_version": "1.1", "server": peer.server, "client": peer.client,
                "scheme": peer.scheme, "root_path": "", "headers": head.headers, "state": {},
                "method": head.method, "path": unquote(head.raw_path.decode("ascii")),
                "raw_path": head.raw_path, "query_string": head.query,
            }  # fmt: skip
        return self._scope

    @property
    def send(self) -> Send:
        """The ASGI `send`, for an answer that is streamed."""
        send: Send = self.peer.cycle_of(self.scope).send  # type: ignore[assignment]
        return send

    @property
    def _receive(self) -> Receive:
        receive: Receive = self.peer.cycle_of(self.scope).receive  # type: ignore[assignment]
        return receive

    async def body(self) -> bytes:
        """Returns the whole body. Raises HttpProblem."""
        body = self._body
        if body is None:
            length = self.headers.get(b"content-length", b"0")
            most = self._app.request_bytes_max
            if not length.isdigit() or len(length) > 15 or int(length) > most:
                raise _too_large(most)
            body = self.peer.take_whole_body()
        if body is not None:
            if len(body) > self._app.request_bytes_max:
                raise _too_large(self._app.request_bytes_max)
            return body
        seconds = self.connection.limits.body_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._rest()
        except TimeoutError:
            raise HttpProblem(
                408, "too-slow", f"The body did not come within {seconds:g} s.", close=True
            ) from None

    async def _rest(self) -> bytes:
        app, size = self._app, 0
        allowance, holder = app.bodies.of(self.connection)
        chunks: list[bytes] = []
        receive = self._receive
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ConnectionResetError
                chunk = message.get("body", b"")
                chunks.append(chunk)
                size += len(chunk)
                allowance.change(holder, len(chunk))
                if size > app.request_bytes_max:
                    raise _too_large(app.request_bytes_max)
                if not allowance.has_room(holder, 0):
                    raise HttpProblem(
                        503, "busy", "Too much is being sent at a time; try again shortly.",
                        close=True,
                    )  # fmt: skip
                if not message.get("more_body"):
                    return b"".join(chunks)
        finally:
            allowance.change(holder, -size)

    async def drain(self) -> None:
        """Takes a small body that nobody has read: else the answer may be lost on its way."""
        length = self.headers.get(b"content-length", b"")
        if not self.peer.has_unread_body or not length.isdigit():
            return
        if len(length) < 9 and int(length) <= DRAIN_BYTES:
            receive = self._receive
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    while (await receive()).get("more_body"):
                        pass

    def identified(self, principal: Principal) -> None:
        """Notes that the client has authenticated. Raises Busy if it has too many connections."""
        if not self.connection.identified(principal.name):
            raise Busy("this principal has too many connections; close some, and try again")

    async def gone(self) -> None:
        """Returns when the client has gone, or has been answered."""
        receive = self._receive
        while (await receive())["type"] != "http.disconnect":
            pass


Route: TypeAlias = Callable[[Request], Awaitable[Answer]]


class HttpDialect(NamedTuple):
    """A protocol on HTTP that is not ours, recognised by its marks."""

    name: str
    recognise: Callable[[Request], bool]
    answer: Callable[[Request], Awaitable[DialectAnswer]]


class HttpDialects(NamedTuple):
    """The dialects that answer HTTP beside our own API, in the order in which they are asked."""

    marked: Sequence[HttpDialect]  # asked before a path is ours
    rest: Sequence[HttpDialect]  # asked where it is not
    # Not asked: they answer all on ports declared for them.
    http_profiles: Mapping[str, HttpDialect]


class Destination(NamedTuple):
    """Who answers a request, as its head alone tells."""

    query: dict[str, str]
    answerer: HttpDialect | Route
    is_open: bool  # to whom it is not asked who he is; a dialect asks by itself


class App:
    """The ASGI application. Routes are by the first part of the path."""

    def __init__(
        self,
        broker: BrokerHost,
        dialects: HttpDialects,
        limits: Limits,
    ) -> None:
        self.broker = broker
        self.request_bytes_max = broker.config.request_size
        self.bodies = Allowances(limits.bodies_bytes, limits.strangers_bytes)
        self.answers = Allowances(limits.answers_bytes, limits.strangers_bytes)
        self.heads = KnownHeads()
        self.refusals: Counter[str] = Counter()
        self.requests = 0
        self._dialects = dialects
        self._routes: dict[bytes, Route] = {}
        self._open: set[bytes] = set()

    def serve(self, part: bytes, route: Route, *, open: bool = False) -> None:
        """Answers paths that begin with this part. `open`: without credentials."""
        self._routes[part] = route
        if open:
            self._open.add(part)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry point, for a request whose body is still to come."""
        assert scope["type"] == "http"
        head = Head(
            scope["method"], scope["raw_path"], scope["query_string"], scope["headers"],
            scope["spelled"],
        )  # fmt: skip
        peer: HttpPeer = scope["state"]["connection"].peer
        await self._respond(peer, head, None, scope)

    def answer_whole(self, peer: HttpPeer, head: Head, body: bytes) -> Coroutine[Any, Any, None]:
        """Answers a request that came with its body. Nothing is done before it is awaited."""
        return self._respond(peer, head, body)

    async def _respond(
        self, peer: HttpPeer, head: Head, body: bytes | None, scope: Scope | None = None
    ) -> None:
        self.requests += 1
        request = Request(self, peer, head, body, scope)
        name = correlation_id(request.headers, CORRELATION)
        correlation.set(name)
        answer: Answer | DialectAnswer
        try:
            answer = await self._answer(request)
        except ConnectionResetError:
            return  # nobody is there to be told
        except Refused as refused:
            answer = self._refused(refused, name)
        except HttpProblem as error:
            self.refusals[error.name] += 1
            answer = _problem(error.status, error.name, error.detail, name, close=error.close)
        except StoreError as error:
            answer = _problem(503, "journal-lost", f"{error}", name, close=True)
        except Exception:  # noqa: BLE001 (here a connection's requests come in)
            _log.exception(
                "A request failed: %s %s", request.method, request.scope["path"],
                extra={"event": "http.failed"},
            )  # fmt: skip
            answer = _problem(500, "failed", "Something went wrong; the log says what.", name)
        if answer.status >= 400:
            await request.drain()
        written = False
        try:
            written = await self._send(request, answer, name)
        except Exception as error:  # noqa: BLE001 (the other side can tell that there is more)
            _log.warning(
                "An answer was cut off: %s", error, exc_info=not isinstance(error, OSError),
                extra={"event": "http.cut_off"},
            )  # fmt: skip
            request.peer.cut_off()
        if not written and isinstance(answer, DialectAnswer) and answer.unsent is not None:
            answer.unsent()

    async def _send(
        self, request: Request, answer: Answer | DialectAnswer, correlation_id: str
    ) -> bool:
        """Sends an answer; returns False where the client has gone before all was written."""
        status, headers, body = answer.status, [*answer.headers, _NO_SNIFF], answer.body
        connection = request.connection
        if correlation_id and not any(name == CORRELATION for name, _ in headers):
            headers.append((CORRELATION, correlation_id.encode()))
        if connection.answers_once:
            headers.append(CLOSE)
        if isinstance(body, bytes):
            large = len(body) > SLICE_BYTES and request.method == "GET"
            if large and not self._has_room(connection, len(body)):
                status, body, headers = 503, _BUSY, [PROBLEM, (b"retry-after", b"1")]
            if status != 204:  # RFC 9110, 8.6
                headers.append((b"content-length", b"%d" % len(body)))
            if len(body) <= SLICE_BYTES:
                return await request.peer.answer(status, headers, body)
            send = request.send
            await send({"type": "http.response.start", "status": status, "headers": headers})
            return await self._send_slices(body, connection, send)
        if isinstance(body, Shared):
            headers.append((b"content-length", b"%d" % len(body.data)))
            send = request.send
            await send({"type": "http.response.start", "status": status, "headers": headers})
            return await _slices(memoryview(body.data), SHARED_SLICE_BYTES, connection, send)
        if request.version == "1.0":
            headers = [PROBLEM, CLOSE, (b"content-length", b"%d" % len(_OLD))]
            return await request.peer.answer(505, headers, _OLD)
        send = request.send
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await _stream(body, connection, send)
        return not connection.is_closing

    def _has_room(self, connection: Connection, size: int) -> bool:
        """Whether the client may be sent so many bytes more, beside those it has not taken yet."""
        allowance, holder = self.answers.of(connection)
        return allowance.has_room(holder, size)

    async def _send_slices(self, body: bytes, connection: Connection, send: Send) -> bool:
        """Sends a large answer slice by slice, so that it is seen whether it is taken."""
        allowance, holder = self.answers.of(connection)
        allowance.change(holder, len(body))
        try:
            return await _slices(memoryview(body), SLICE_BYTES, connection, send)
        finally:
            allowance.change(holder, -len(body))

    async def _answer(self, request: Request) -> Answer | DialectAnswer:
        head, connection = request.head, request.connection
        destination: Destination | None = head.destination
        if destination is None:
            _check_protocol(request)
        if head.raw_path == b"*":  # RFC 9110, 9.3.7: whether somebody is there
            return Answer(b"", 204, ((b"allow", b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"),))
        if connection.lacks_tls and head.parts[0] != b"health":
            connection.demand_tls()
            raise HttpProblem(
                403, "tls-required", "Keys are not taken in clear text from other machines; come"
                " with https.", close=True,
            )  # fmt: skip
        if http_profile := connection.http_profile:
            request.query = _query(head.query)
            return await self._of(self._dialects.http_profiles[http_profile], request)
        if destination is None:
            destination = head.destination = self._find(request)
        request.query = destination.query
        answerer = destination.answerer
        if isinstance(answerer, HttpDialect):
            return await self._of(answerer, request)
        if not destination.is_open:
            self._check_open()
            request.principal = self._identify(request)
            request.identified(request.principal)
            if not self._has_room(connection, 0):
                raise Busy("too much is being read at a time")
        return await answerer(request)

    def _find(self, request: Request) -> Destination:
        """Raises HttpProblem."""
        query = request.query = _query(request.head.query)
        first = request.parts[0]
        route = self._routes.get(first)
        if route is not None and first in self._open:
            return Destination(query, route, is_open=True)
        for dialect in self._dialects.marked:
            if dialect.recognise(request):
                return Destination(query, dialect, is_open=True)
        if route is not None:
            return Destination(query, route, is_open=False)
        for dialect in self._dialects.rest:
            if dialect.recognise(request):
                return Destination(query, dialect, is_open=True)
        raise HttpProblem(404, "not-found", "There is nothing here; /docs tells what there is.")

    async def _of(self, dialect: HttpDialect, request: Request) -> DialectAnswer:
        """The answer of a dialect, which checks credentials and reports errors in its own way."""
        self._check_open()
        if self.broker.config.dev:
            _check_from_here(request, self.broker.config.tls_name)
        if not self._has_room(request.connection, 0):
            raise Busy("too much is being read at a time")
        answer = await dialect.answer(request)
        if answer.status >= 400:
            self.refusals[f"{dialect.name}: {answer.status}"] += 1
        return answer

    def _check_open(self) -> None:
        """Raises HttpProblem."""
        if self.broker.engine is None:
            raise HttpProblem(503, "starting", "The broker is starting; /health/startup tells how"
                              " far it is.")  # fmt: skip

    def _refused(self, refused: Refused, name: str) -> Answer:
        status = STATUS[type(refused)]
        self.refusals[refused.code] += 1
        headers = retry_after(refused)
        if status == 401:
            headers = ((b"www-authenticate", b'Basic realm="Posthouse"'),)
        document = problem(status, refused.code, refused.detail, name, refused.facts)
        return _answered(document, headers, close=status == 401)

    def _identify(self, request: Request) -> Principal:
        """Raises Unauthenticated."""
        config = self.broker.config
        from_here = not config.dev or is_from_here(request.headers, config.tls_name)
        given = request.headers.get(b"authorization")
        if given is not None and from_here:
            with request.login:
                return self.broker.identify(*_credentials(given))
        if config.dev and from_here and request.scheme == "http":
            return ANYBODY
        raise unknown(request)


def _credentials(given: bytes) -> tuple[str, str]:
    """A name and a key. Raises Unauthenticated."""
    name, key = name_and_secret(given, bearer=True)
    name, key = name.lstrip(), key.rstrip()
    if len(key) > KEY_CHARS_MAX:
        raise Unauthenticated
    return name, key


def _check_from_here(request: Request, names: tuple[str, ...]) -> None:
    """Checks that no web page elsewhere uses a browser here: with --dev everybody knows the key.

    Such a page has an origin that is not ours, or reaches us by a name that is not. Raises
    Unauthenticated.
    """
    if not is_from_here(request.headers, names):
        raise Unauthenticated


def is_from_here(headers: dict[bytes, bytes], names: tuple[str, ...]) -> bool:
    host, origin = headers.get(b"host", b""), headers.get(b"origin", b"")
    return headers.get(b"sec-fetch-site") != b"cross-site" and _is_ours(host, origin, names)


@lru_cache(1_000)
def _is_ours(given_host: bytes, given_origin: bytes, names: tuple[str, ...]) -> bool:
    host, origin = (each.decode("latin-1").lower() for each in (given_host, given_origin))
    if origin and origin.partition("://")[2] != host:
        return False
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return "." not in name or name.endswith((".localhost", ".internal")) or name in names
    return True


def _check_protocol(request: Request) -> None:
    """Raises HttpProblem."""
    if request.version not in ("1.0", "1.1"):
        raise HttpProblem(505, "unknown-version", "HTTP 1.1 is spoken here.", close=True)
    if request.headers.get(b"transfer-encoding", b"chunked").strip().lower() != b"chunked":
        raise HttpProblem(501, "unknown-encoding", "Bodies may be chunked, no more.", close=True)


def _too_large(most: int) -> HttpProblem:
    return HttpProblem(
        413, "too-large", f"The body must be at most {most} bytes; send in parts.", close=True
    )


def _query(given: bytes) -> dict[str, str]:
    """Raises HttpProblem."""
    if not given:
        return {}
    try:
        pairs = parse_qsl(
            given.decode(), keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX, errors="strict"
        )
    except ValueError:
        raise HttpProblem(400, "bad-query", "The query cannot be read.") from None
    return dict(pairs)


def name_in(part: bytes) -> str:
    """Raises HttpProblem."""
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise HttpProblem(400, "bad-path", "The path must be UTF-8.") from None


def _problem(
    status: int, name: str, detail: str, correlation_id: str, *, close: bool = False
) -> Answer:
    return _answered(problem(status, name, detail, correlation_id), (), close=close)


def _answered(document: Problem, headers: tuple[Header, ...], *, close: bool) -> Answer:
    more = (*headers, CLOSE) if close else headers
    return Answer(msgspec.json.encode(document), document.status, (PROBLEM, *more))


_BUSY = msgspec.json.encode(problem(503, "busy", "Too much is being read; try again shortly."))
_OLD = msgspec.json.encode(problem(505, "unknown-version", "This takes HTTP 1.1."))


async def _slices(body: memoryview, size: int, connection: Connection, send: Send) -> bool:
    """The next when most of those before it are taken; nothing is copied.

    Returns False where the client has gone before all was written.
    """
    for at in range(0, len(body), size):
        if connection.is_closing:
            return False
        chunk = body[at : at + size]
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    is_there = not connection.is_closing  # with the last one it may be closed by ourselves
    await send({"type": "http.response.body", "body": b""})
    return is_there


async def _stream(chunks: AsyncIterator[Piece], connection: Connection, send: Send) -> None:
    """Sends the chunks of an answer as they come."""
    async with aclosing(chunks):  # type: ignore[type-var]  # all of them are generators
        async for chunk in chunks:
            if connection.is_closing:
                return
            if isinstance(chunk, bytes):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            elif connection.is_tls or connection.is_relayed or _file_slots.locked():
                await _send_slices_of(chunk, connection, send)
            else:
                assert isinstance(connection.peer, HttpPeer)
                async with _file_slots:
                    await connection.peer.send_file(chunk)
    await send({"type": "http.response.body", "body": b""})


async def _send_slices_of(piece: FileRange, connection: Connection, send: Send) -> None:
    """Sends a file range in slices, where it is encrypted or too many files are open already."""
    end = piece.offset + piece.length
    for at in range(piece.offset, end, SLICE_BYTES):
        if connection.is_closing:
            return
        data = await asyncio.to_thread(_read, piece.path, at, min(SLICE_BYTES, end - at))
        await send({"type": "http.response.body", "body": data, "more_body": True})


def _read(path: str, offset: int, length: int) -> bytes:
    """Raises OSError."""
    with open(path, "rb") as file:  # noqa: PTH123 (it is a name)
        data = os.pread(file.fileno(), length, offset)
    if len(data) < length:
        raise OSError(f"{path} is shorter than it was")
    return data


def decoded(kind: type[Any], body: bytes) -> Any:
    """A request's JSON. Raises HttpProblem."""
    try:
        return msgspec.json.decode(bounded(body or b"{}"), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpProblem(400, "bad-json", sentence(error, kind)) from None


def make_config(app: App) -> UvicornConfig:
    config = UvicornConfig(
        app, loop="none", http="httptools", ws="none", lifespan="off", interface="asgi3",
        log_config=None, access_log=False, proxy_headers=False, server_header=False,
        date_header=False,
    )  # fmt: skip
    config.load()
    return config
