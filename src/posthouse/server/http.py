"""HTTP: who answers a request, and what every answer has in common.

`HttpPeer` is uvicorn's protocol with bounds on what it takes before it believes it. `App` is the
ASGI application behind it. What AWS or Azure clients send is told by its marks, and goes before the
paths that are ours: health, metrics, the feed, and of `/api/v1` the hot routes (send, receive,
settle) are plain functions; the rest of it and `/docs` are FastAPI's, which is imported when it is
first asked for.
"""

import asyncio
import ipaddress
import logging
from base64 import b64decode
from binascii import Error as Base64Error
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from uvicorn.config import Config as UvicornConfig
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from posthouse.broker.access import ANYBODY, KEY_CHARS_MAX, Principal
from posthouse.core.errors import Refused, Unauthenticated
from posthouse.server.broker import Broker
from posthouse.server.listener import Connection
from posthouse.server.log import correlation
from posthouse.server.problems import CODES, HttpProblem, problem
from posthouse.store.errors import StoreError

_log = logging.getLogger(__name__)
_audit = logging.getLogger("posthouse.audit")

HEAD_BYTES_MAX = 32 << 10
HEADERS_MAX = 100
PIPELINE_MAX = 16
KEEP_ALIVE_SECONDS = 75
BODY_SECONDS = 60  # for the whole of a request's body
STALLED_SECONDS = 60  # how long a peer may not read what it asked for
BODIES_BYTES_MAX = 256 << 20  # of requests that are being read, all together
CORRELATION_CHARS_MAX = 128

Scope: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]

JSON = (b"content-type", b"application/json")
PROBLEM = (b"content-type", b"application/problem+json")
TEXT = (b"content-type", b"text/plain; charset=utf-8")
_NO_SNIFF = (b"x-content-type-options", b"nosniff")
_CLOSE = (b"connection", b"close")


class Answer(NamedTuple):
    """A whole answer; or, where `body` is an iterator, one that is sent as it comes."""

    body: "bytes | AsyncIterator[bytes]"
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = (JSON,)


class HttpPeer(HttpToolsProtocol):
    """One connection that speaks HTTP. The head of a request is bounded in size and time."""

    def __init__(self, config: UvicornConfig, state: ServerState, connection: Connection) -> None:
        super().__init__(config, state, {"connection": connection})
        self._connection = connection
        self._in_head = False  # the head of a request has begun, and is not complete
        self._head_bytes = self._head_count = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_at(self._connection.deadline, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timers()
        self._connection.gone()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        goes_on = self._in_head
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data) if goes_on else 0
            if self._head_bytes > HEAD_BYTES_MAX:
                self.send_400_response("The head of the request is too large.")
            elif self._head_timer is None:
                seconds = self._connection.handshake_seconds
                self._head_timer = self.loop.call_later(seconds, self.transport.close)

    # What the parser tells. An exception here is told to the client as a bad request.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes, self._head_count = True, 0, 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > HEAD_BYTES_MAX:
            raise ValueError("the address is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_count += 1
        if self._head_count > HEADERS_MAX or len(value) > HEAD_BYTES_MAX:
            raise ValueError("there are too many headers, or one is too long")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        if len(self.pipeline) >= PIPELINE_MAX:
            raise ValueError("too many requests at a time")
        super().on_headers_complete()

    # Flow.

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(STALLED_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _stop_timers(self) -> None:
        for timer in (self._head_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._stall_timer = None


class Request:
    """One request, with what every route asks of it."""

    __slots__ = ("_app", "_receive", "headers", "method", "parts", "principal", "query", "scope")

    def __init__(self, app: "App", scope: Scope, receive: Receive) -> None:
        self._app = app
        self._receive = receive
        self.scope = scope
        self.method: str = scope["method"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.parts = scope["raw_path"].split(b"/")[1:] or [b""]
        self.query: dict[str, str] = {}
        self.principal: Principal = ANYBODY

    @property
    def connection(self) -> Connection:
        found: Connection = self.scope["state"]["connection"]
        return found

    async def body(self) -> bytes:
        """All of it. Raises HttpProblem."""
        length = self.headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 15 or int(length) > self._app.request_bytes_max:
            raise _too_large(self._app.request_bytes_max)
        first = await self._receive()
        if first["type"] == "http.disconnect":
            raise ConnectionResetError
        if not first.get("more_body"):
            return bytes(first["body"])
        try:
            async with asyncio.timeout(BODY_SECONDS):
                return await self._rest(first["body"])
        except TimeoutError:
            raise HttpProblem(
                408, "too-slow", f"The body did not come within {BODY_SECONDS} s.", close=True
            ) from None

    async def _rest(self, first: bytes) -> bytes:
        app, chunks, size = self._app, [first], len(first)
        app.bodies_bytes += size
        try:
            while True:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise ConnectionResetError
                chunk = message.get("body", b"")
                chunks.append(chunk)
                size += len(chunk)
                app.bodies_bytes += len(chunk)
                if size > app.request_bytes_max:
                    raise _too_large(app.request_bytes_max)
                if app.bodies_bytes > BODIES_BYTES_MAX:
                    raise HttpProblem(
                        503, "busy", "Too much is being sent at a time; try again shortly.",
                        close=True,
                    )  # fmt: skip
                if not message.get("more_body"):
                    return b"".join(chunks)
        finally:
            app.bodies_bytes -= size

    async def gone(self) -> None:
        """Returns when the client has gone, or has been answered."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


Route: TypeAlias = Callable[[Request], Awaitable[Answer]]


class HttpDialect(NamedTuple):
    """A protocol on HTTP that is not ours, recognised by its marks."""

    name: str
    recognise: Callable[[Request], bool]
    answer: Route | None  # None: known, but not served


class App:
    """The ASGI application. Routes are by the first part of the path, or the first two."""

    def __init__(self, broker: Broker, dialects: tuple[HttpDialect, ...]) -> None:
        self.broker = broker
        self.request_bytes_max = broker.config.request_size
        self.bodies_bytes = 0
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
        assert scope["type"] == "http"
        self.requests += 1
        request = Request(self, scope, receive)
        given = request.headers.get(b"x-correlation-id", b"")[:CORRELATION_CHARS_MAX]
        name = "".join(c for c in given.decode("latin-1") if c.isprintable() and c.isascii())
        if name:
            correlation.set(name)
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
                "A request failed: %s %s", request.method, scope["path"],
                extra={"event": "http.failed"},
            )  # fmt: skip
            answer = _problem(500, "failed", "Something went wrong; the log says what.", name)
        headers = list(answer.headers)
        headers.append(_NO_SNIFF)
        if name:
            headers.append((b"x-correlation-id", name.encode()))
        body = answer.body
        if isinstance(body, bytes):
            headers.append((b"content-length", b"%d" % len(body)))
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            await send({"type": "http.response.body", "body": body})
        else:
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            await _stream(body, request.connection, send)

    async def _answer(self, request: Request) -> Answer:
        request.query = _query(request.scope["query_string"])
        first = request.parts[0]
        route = self._routes.get(first)
        if route is None or first not in self._open:
            for dialect in self._dialects:
                if dialect.recognise(request):
                    return await _of(dialect)(request)
            if route is None:
                raise HttpProblem(
                    404, "not-found", "There is nothing here; /docs tells what there is.",
                )  # fmt: skip
            request.principal = self._identify(request)
        if self.broker.engine is None and first not in self._open:
            raise HttpProblem(503, "starting", "The broker is starting; /health/startup tells how"
                              " far it is.")  # fmt: skip
        return await route(request)

    def _refused(self, refused: Refused, name: str) -> Answer:
        status, slug = CODES[type(refused)]
        self.refusals[slug] += 1
        headers: tuple[tuple[bytes, bytes], ...] = ()
        if status == 401:
            headers = ((b"www-authenticate", b'Basic realm="Posthouse"'),)
        elif status == 503:
            headers = ((b"retry-after", b"1"),)
        return _problem(status, slug, str(refused), name, headers, close=status == 401)

    def _identify(self, request: Request) -> Principal:
        """Raises Unauthenticated."""
        given = request.headers.get(b"authorization")
        if given is None:
            if self.broker.config.dev and _is_plain(request) and _is_from_here(request):
                return ANYBODY
            raise Unauthenticated
        try:
            name, key = _credentials(given)
            return self.broker.identify(name, key)
        except Unauthenticated:
            _audit.warning(
                "Somebody at %s came with credentials that are not valid.", _address(request),
                extra={"event": "access.unknown", "address": _address(request)},
            )  # fmt: skip
            raise


def _credentials(given: bytes) -> tuple[str, str]:
    """A name and a key. Raises Unauthenticated."""
    scheme, _, rest = given.partition(b" ")
    try:
        if scheme.lower() == b"basic":
            rest = b64decode(rest.strip(), validate=True)
        elif scheme.lower() != b"bearer":
            raise Unauthenticated
        name, colon, key = rest.decode().strip().partition(":")
    except (Base64Error, ValueError):
        raise Unauthenticated from None
    if not colon or len(key) > KEY_CHARS_MAX:
        raise Unauthenticated
    return name, key


def _is_plain(request: Request) -> bool:
    return bool(request.scope["scheme"] == "http")


def _is_from_here(request: Request) -> bool:
    """Not from a web page elsewhere that makes a browser on this machine ask.

    Such a page has an origin that is not ours, or reaches us by a name that is not.
    """
    host = request.headers.get(b"host", b"").decode("latin-1").lower()
    origin = request.headers.get(b"origin", b"").decode("latin-1").lower()
    if origin and origin != f"http://{host}":
        return False
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return "." not in name or name.endswith(".localhost")
    return True


def _address(request: Request) -> str:
    client = request.scope.get("client")
    return str(client[0]) if client else "?"


def _of(dialect: HttpDialect) -> Route:
    if dialect.answer is None:
        raise HttpProblem(501, "not-served", f"This version does not speak {dialect.name}.")
    return dialect.answer


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
            given.decode(), keep_blank_values=True, max_num_fields=50, errors="strict"
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
    status: int,
    name: str,
    detail: str,
    correlation_id: str,
    headers: tuple[tuple[bytes, bytes], ...] = (),
    *,
    close: bool = False,
) -> Answer:
    body = msgspec.json.encode(problem(status, name, detail, correlation_id))
    return Answer(body, status, (PROBLEM, *headers, *((_CLOSE,) if close else ())))


async def _stream(chunks: AsyncIterator[bytes], connection: Connection, send: Send) -> None:
    """As it comes. A failure on the way cuts it off, which the other side can tell."""
    async with aclosing(chunks):  # type: ignore[type-var]  # all of them are generators
        async for chunk in chunks:
            if connection.transport is None or connection.transport.is_closing():
                return
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def decoded(kind: type[Any], body: bytes) -> Any:
    """A request's JSON. Raises HttpProblem."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpProblem(400, "bad-json", f"The body is not as it should be: {error}.") from None


def make_config(app: App) -> UvicornConfig:
    config = UvicornConfig(
        app, loop="none", http="httptools", ws="none", lifespan="off", interface="asgi3",
        log_config=None, access_log=False, proxy_headers=False, server_header=False,
        date_header=False, timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )  # fmt: skip
    config.load()
    return config
