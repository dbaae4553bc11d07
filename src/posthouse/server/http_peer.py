"""One connection that speaks HTTP: uvicorn's protocol, within bounds of size and time."""

import asyncio
import fcntl
import logging
import os
import select
import socket
import sys
import termios
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

import httptools
from uvicorn.config import Config as UvicornConfig
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from posthouse.broker.throttle import Login
from posthouse.server.listener import Connection
from posthouse.server.websocket import WebSocketPeer, WebSocketRoute

_log = logging.getLogger(__name__)

HEAD_BYTES_MAX = 32 << 10
HEADERS_MAX = 100
OVERHEAD = 8  # bytes that may come with each byte of a body, for chunks
PIPELINE_MAX = 16
KNOWN_HEADS_MAX, KNOWN_HEAD_BYTES_MAX = 1_000, 2 << 10  # that are remembered, and of one
UNTAKEN_BYTES_MAX = 32 << 10  # of answers, before the next is not written; with or without TLS
FILE_BYTES = 16 << 20  # that the kernel is given in one go; it takes what the socket has room for
FILE_SLICES = 16  # tries, before others get their turn
FILE_WAIT_MS = 20  # for a peer that reads on; for a slow one the loop waits
FILE_THREADS = 4

# Headers that may come only once: a proxy in front might use the other one (RFC 9110, 5.3).
ONLY_ONCE = frozenset((b"host", b"content-length", b"transfer-encoding", b"authorization"))

Header: TypeAlias = tuple[bytes, bytes]
CLOSE = (b"connection", b"close")


class FileRange(NamedTuple):
    """Bytes of a file, to be sent as they lie there."""

    path: str
    offset: int
    length: int


class Head:
    """The head of a request: everything before its body, and what can be told from it alone.

    Nobody changes it: it may be the head of many requests.
    """

    __slots__ = (
        "destination", "fields", "headers", "method", "parts", "query", "raw_path", "spelled",
    )  # fmt: skip

    def __init__(
        self,
        method: str,
        raw_path: bytes,
        query: bytes,
        headers: list[Header],
        spelled: list[Header],
    ) -> None:
        self.method = method
        self.raw_path = raw_path
        self.query = query
        self.headers = headers
        self.spelled = spelled  # with their names as they were written
        self.fields = dict(headers)
        self.parts = raw_path.split(b"/")[1:] or [b""]
        self.destination: Any = None  # the application's, once it has found it


class KnownHeads:
    """Heads that have come before: clients send the same one again and again.

    The same bytes mean the same, so they are not read again. A head is kept when it comes for the
    second time: many have an id or a token in them, and come once. When there are too many, all
    are forgotten.
    """

    def __init__(self) -> None:
        self._found: dict[bytes, tuple[Head, int] | None] = {}  # None: it has come once

    def find(self, raw: bytes) -> tuple[Head, int] | None:
        """The head of these bytes, and the length of the body that it tells of, if it is known."""
        return self._found.get(raw)

    def note(self, data: bytes, head: Head, body_bytes: int) -> None:
        """Notes the head of a request of which all came in this data, and nothing else.

        It must end with the first empty line in the data, as `find` is asked for it.
        """
        end = data.find(b"\r\n\r\n") + 4
        raw = data[:end]
        if (
            end + body_bytes != len(data) or end > KNOWN_HEAD_BYTES_MAX
            or raw.count(b"\n") != raw.count(b"\r\n")
            or not raw.startswith(head.method.encode() + b" ")
        ):  # fmt: skip
            return
        if raw in self._found:
            self._found[raw] = head, body_bytes
        else:
            if len(self._found) >= KNOWN_HEADS_MAX:
                self._found.clear()
            self._found[raw] = None


class _Exchange:
    """The part of uvicorn's request cycle that is needed for a request that came whole."""

    __slots__ = ("disconnected", "keep_alive", "method", "response_complete")

    more_body = response_started = waiting_for_100_continue = False

    def __init__(self, method: str, keep_alive: bool) -> None:
        self.method = method
        self.keep_alive = keep_alive
        self.response_complete = self.disconnected = False


class HttpPeer(HttpToolsProtocol):
    """One connection that speaks HTTP, within bounds of size and time.

    A request that is there as a whole is told to the application by a call. For others, and for
    answers that are sent as they come, there is a cycle of uvicorn's.

    At every moment something ends it: while a head is awaited the handshake limit, while it is
    idle the keep-alive limit, while a request is answered the limits of that, and while it does not
    take what it asked for, that nothing moves. A request that was begun has a task; where that
    ends without a whole answer, whatever the reason, the connection ends.
    """

    def __init__(
        self,
        config: UvicornConfig,
        state: ServerState,
        connection: Connection,
        websockets: Sequence[WebSocketRoute] = (),
    ) -> None:
        super().__init__(config, state, {"connection": connection})
        self.connection = connection
        self.login: Login | None = None  # the login of its client, once asked for
        self._websockets = websockets
        self._limits = connection.limits
        self._in_message = self._in_head = False  # of a request that has begun
        self._raw_bytes = self._body_bytes = 0  # of it
        self._head_bytes = self._head_count = 0
        self._spelled: list[Header] = []  # headers with their names as they were written
        self._target = (b"/", b"")  # the path and the query that it is for
        self._named_once: set[bytes] = set()  # headers of it that may not come again
        self._gathered: list[bytes] | None = None  # of the body, while it may come whole
        self._whole: tuple[Head, int] | None = None  # the last that did, and its body's length
        self._running: RequestResponseCycle | _Exchange | None = None
        self._task: asyncio.Task[None] | None = None  # of what is running
        self._due: float | None = connection.deadline  # when it ends, unless something comes
        self._awaits_head = True  # the deadline is for a head; else for the next request
        self._alarm: asyncio.TimerHandle | None = None  # then, or before
        self._stall: asyncio.TimerHandle | None = None
        self._untaken_bytes = self._held_bytes = 0
        self._held_of = self.app.answers.of(connection)  # the allowance that it is held of

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.connection.is_relayed:  # the socket is another node's
            self.client = self.connection.address, 0
        self.connection.ends_with_input = True
        transport.set_write_buffer_limits(UNTAKEN_BYTES_MAX)
        self._alarm = self.loop.call_at(self.connection.deadline, self._look_at_the_time)

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in (self._running, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                if isinstance(cycle, RequestResponseCycle):
                    cycle.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)
        self._hold(0)
        for timer in (self._alarm, self._stall):
            if timer is not None:
                timer.cancel()
        self.connection.gone()

    def eof_received(self) -> None:
        """The transport closes when what is to be sent is taken, which must not take for ever."""
        self._watch()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        try:
            self._take(data)
        except Exception:  # noqa: BLE001 (here a connection's bytes come in)
            _log.exception("A connection has failed.", extra={"event": "http.failed"})
            self.transport.abort()

    def _take(self, data: bytes) -> None:
        goes_on = self._in_message
        if not goes_on and self._take_known(data):
            return
        self._parse(data)
        if self.connection.peer is not self or self.transport.is_closing():  # or is a WebSocket
            return
        if self._gathered is not None and not self._in_head:  # the rest comes later
            self._begin_cycle()
        if goes_on and self._in_message:
            self._raw_bytes += len(data)
            if self._raw_bytes > HEAD_BYTES_MAX + OVERHEAD * self._body_bytes:
                self.send_400_response("There is too much around the body of the request.")
                return
        elif self._whole is not None and not goes_on and self.connection.principal is not None:
            self.app.heads.note(data, *self._whole)
        self._set_deadline()

    def _take_known(self, data: bytes) -> bool:
        """Takes a request that came whole, with a head that is known; returns whether it did."""
        if self.connection.principal is None or self._is_busy() or self.flow.write_paused:
            return False
        end = data.find(b"\r\n\r\n") + 4
        known = self.app.heads.find(data[:end])
        if known is None:
            return False
        head, body_bytes = known
        if len(data) != end + body_bytes:
            return False
        self._due = None
        self._answer_whole(head, data[end:], keep_alive=True)
        return True

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            elif rest := data[upgrade.args[0] :]:  # it goes on as it was (RFC 9110, 7.8)
                self._parse(rest)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    # Time.

    def _set_deadline(self) -> None:
        """A later one costs nothing: the alarm looks again when it goes off."""
        if self._is_busy():
            self._due = None
        elif self._due is None or self._awaits_head != self._in_head:
            self._awaits_head = self._in_head
            limits = self._limits
            limit = limits.handshake_seconds if self._in_head else limits.keep_alive_seconds
            due = self._due = self.loop.time() + limit
            if self._alarm is None or due < self._alarm.when():
                if self._alarm is not None:
                    self._alarm.cancel()
                self._alarm = self.loop.call_at(due, self._look_at_the_time)

    def _look_at_the_time(self) -> None:
        self._alarm = None
        if self._due is None:
            return
        if self._due <= self.loop.time():
            self._end()
        else:
            self._alarm = self.loop.call_at(self._due, self._look_at_the_time)

    @property
    def has_unread_body(self) -> bool:
        """Whether a part of the running request's body is still to come."""
        return self._running is not None and self._running.more_body

    def take_whole_body(self) -> bytes | None:
        """Takes the body of the running request, if all of it has come; else returns None."""
        cycle = self._running
        if not isinstance(cycle, RequestResponseCycle) or cycle.more_body:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    def _is_busy(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def _end(self) -> None:
        """Closes it; where what is still to be sent is not taken, cuts it off."""
        self.transport.close()
        self.loop.call_later(self._limits.end_seconds, self.transport.abort)

    # Callbacks of the parser. An exception in one is answered as a bad request.

    def on_message_begin(self) -> None:
        """The scope is made when there is to be a cycle."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._spelled = []
        self._named_once = set()
        self._gathered = self._whole = None
        self._in_message = self._in_head = True
        self._raw_bytes = self._body_bytes = self._head_bytes = self._head_count = 0

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > HEAD_BYTES_MAX:
            raise ValueError("the address is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_count += 1
        self._head_bytes += len(name) + len(value)
        if self._head_count > HEADERS_MAX or self._head_bytes > HEAD_BYTES_MAX:
            raise ValueError("the head of the request is too large")
        if self._in_head:
            self._spelled.append((name, value))
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            elif name in ONLY_ONCE:
                if name in self._named_once:
                    raise ValueError(f"there are two headers {name.decode()}")
                self._named_once.add(name)
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self.pipeline) >= PIPELINE_MAX:
            raise ValueError("too many requests at a time")
        self._check_head()
        path, query = self._target
        self.url = path + b"?" + query if query else path
        self._gathered = []
        if (
            self._is_busy()
            or self.flow.write_paused
            or self.expect_100_continue
            or self.parser.should_upgrade()
            or self.parser.get_http_version() != "1.1"
        ):
            self._begin_cycle()

    def _check_head(self) -> None:
        """Finds out what the request is for. Raises ValueError or httptools.HttpParserError."""
        version = self.parser.get_http_version()
        if version == "1.1" and b"host" not in self._named_once:
            raise ValueError("there is no header host")  # RFC 9112, 3.2
        if version == "1.0" and b"transfer-encoding" in self._named_once:
            raise ValueError("HTTP 1.0 has no chunks")  # RFC 9112, 6.1
        path, query, authority = _target_in(self.parser.get_method(), self.url)
        self._target = path, query
        if authority:  # which goes before the host (RFC 9112, 3.2.2)
            for headers in (self.headers, self._spelled):
                headers[:] = [each for each in headers if each[0].lower() != b"host"]
                headers.append((b"host", authority))

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._gathered is None:
            super().on_body(body)
        else:
            self._gathered.append(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        if self._gathered is None:
            super().on_message_complete()
            return
        method = self.parser.get_method().decode("ascii")
        head = Head(method, *self._target, self.headers, self._spelled)
        body, self._gathered = b"".join(self._gathered), None
        keep_alive = self.parser.should_keep_alive()
        if keep_alive and b"transfer-encoding" not in self._named_once:
            self._whole = head, len(body)
        self._answer_whole(head, body, keep_alive=keep_alive)

    def _answer_whole(self, head: Head, body: bytes, *, keep_alive: bool) -> None:
        exchange = _Exchange(head.method, keep_alive)
        self._run(exchange, self.app.answer_whole(self, head, body))

    def _run(
        self, exchange: RequestResponseCycle | _Exchange, work: Coroutine[Any, Any, None]
    ) -> None:
        """Runs a request in a task of its own, whose end is always looked at."""
        task = self.loop.create_task(work)
        self._running, self._task = exchange, task
        task.add_done_callback(self._is_done)

    def _is_done(self, task: "asyncio.Task[None]") -> None:
        """Ends the connection if the task ended without a complete answer."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error(
                "A request has failed.", exc_info=error, extra={"event": "http.failed"}
            )  # fmt: skip
        if task is self._task and self._is_busy():
            self.cut_off()

    def _begin_cycle(self) -> None:
        """Begins uvicorn's cycle for a request whose head, and perhaps more, has come."""
        url, headers, body = self.url, self.headers, self._gathered
        expects, self._gathered = self.expect_100_continue, None
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers  # the scope has the same list
        self.scope["spelled"] = self._spelled  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()
        for each in body or ():
            super().on_body(each)

    def cycle_of(self, scope: Any) -> RequestResponseCycle:
        """The uvicorn cycle of the running request; it is made now if the request came whole."""
        running = self._running
        assert running is not None
        if not isinstance(running, _Exchange):
            return running
        made = self._running = RequestResponseCycle(
            scope, self.transport, self.flow, self.logger, self.access_logger, self.access_log,
            self.server_state.default_headers, asyncio.Event(), False, running.keep_alive,
            self.on_response_complete,
        )  # fmt: skip
        made.more_body = False
        made.disconnected = running.disconnected
        return made

    def send_400_response(self, msg: str) -> None:
        """Answers that a request is malformed, after the requests before it are answered."""
        running = self._running
        if running is None or running.response_complete or running.more_body:
            if running is not None and running.response_started and not running.response_complete:
                self.transport.close()
            else:
                super().send_400_response(msg)
            self._watch()
            return
        last = running
        if self.pipeline:
            last = self.pipeline[0][0]
            if last.more_body:  # it will never be whole
                self.pipeline[0] = (last, _answer_that_it_is_bad)
        last.keep_alive = False
        self.flow.pause_reading()

    def _should_upgrade(self) -> bool:
        return self._get_upgrade() == b"websocket" and self._websocket() is not None

    def _websocket(self) -> WebSocketRoute | None:
        if self.connection.lacks_tls:
            return None
        path = unquote(self.url.partition(b"?")[0].decode("latin-1")).rstrip("/").casefold()
        for route in self._websockets:
            if route.path == path and not self._is_busy() and route.admits(dict(self.headers)):
                return route
        return None

    def handle_websocket_upgrade(self) -> None:
        """Hands the connection to a WebSocket peer, with the request's head once more."""
        route = self._websocket()
        assert route is not None
        self.connections.discard(self)
        self.connection.ends_with_input = False
        for timer in (self._alarm, self._stall):
            if timer is not None:
                timer.cancel()
        head = [self.parser.get_method(), b" ", self.url, b" HTTP/1.1\r\n"]
        for name, value in self.headers:
            head += [name, b": ", value, b"\r\n"]
        peer = self.connection.peer = WebSocketPeer(route, self.connection)
        self.transport.set_protocol(peer)
        peer.begin(self.transport, b"".join((*head, b"\r\n")))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self._is_busy():
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, app))
            return
        self._run(cycle, cycle.run_asgi(app))

    def shutdown(self) -> None:
        if not self._is_busy():
            self.transport.close()
            return
        last = self.pipeline[0][0] if self.pipeline else self._running
        assert last is not None
        last.keep_alive = False

    def cut_off(self) -> None:
        """Closes the connection because an answer cannot be completed."""
        if self._running is not None:
            self._running.disconnected = True
        self._end()

    def on_response_complete(self) -> None:
        """Replaces uvicorn's, whose limit on idle connections is here `_set_deadline`."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():  # when it has taken what is still to be sent
            self._watch()
        elif self._running is not None and self._running.more_body:
            self._end()  # nobody is going to read the rest of it
        else:
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
            self._set_deadline()

    async def answer(self, status: int, headers: Sequence[Header], body: bytes) -> bool:
        """Writes a whole answer to the running request; returns False where the peer has gone."""
        if self.flow.write_paused:
            await self.flow.drain()
        cycle = self._running
        assert cycle is not None
        if cycle.disconnected:
            return False
        is_there = not self.transport.is_closing()
        content = [STATUS_LINE[status]]
        for name, value in headers:
            content += (name, b": ", value, b"\r\n")
        if CLOSE in headers:
            cycle.keep_alive = False
        elif not cycle.keep_alive:
            content.append(b"connection: close\r\n")
        content.append(b"\r\n")
        method = cycle.method if isinstance(cycle, _Exchange) else cycle.scope["method"]
        if method != "HEAD":
            content.append(body)
        cycle.response_complete = True
        self.transport.write(b"".join(content))
        if isinstance(cycle, RequestResponseCycle):
            cycle.response_started = True
            cycle.waiting_for_100_continue = False
            cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()
        return is_there

    async def send_file(self, piece: FileRange) -> None:
        """Sends a file range as one chunk of the running answer, by the kernel: it may be large.

        Threads do the copying, after the bytes that were written before. Raises OSError.
        """
        cycle = self._running
        assert cycle is not None
        self.transport.set_write_buffer_limits(0)  # so that it is told when nothing is left
        self.transport.write(b"%x\r\n" % piece.length)
        await self.flow.drain()
        if cycle.disconnected or self.transport.is_closing():
            return
        # A socket of our own: its number cannot become somebody else's meanwhile.
        through = socket.socket(fileno=os.dup(self.transport.get_extra_info("socket").fileno()))
        try:
            with through, open(piece.path, "rb") as file:  # noqa: ASYNC230, PTH123 (of a moment)
                await self._send_through(through, file.fileno(), piece)
        except BaseException:
            self.transport.abort()  # half of a chunk is out
            raise
        if self.transport.is_closing():
            return
        self.transport.set_write_buffer_limits(UNTAKEN_BYTES_MAX)
        self.transport.write(b"\r\n")

    async def _send_through(self, through: socket.socket, file: int, piece: FileRange) -> None:
        at, end = piece.offset, piece.offset + piece.length
        while at < end:
            if self.transport.is_closing():
                raise ConnectionResetError("the peer has gone")
            begun, others = self.loop.time(), self.server_state.total_requests
            sent = self.loop.run_in_executor(_files(), _send_some, through.fileno(), file, at, end)
            try:
                new = await asyncio.shield(sent)
            except asyncio.CancelledError:
                await asyncio.wait([sent])  # the thread has the socket's number
                raise
            if new == at:
                await self._until_writable(through)
            elif self.server_state.total_requests > others:  # they are to have half of the time
                await asyncio.sleep(self.loop.time() - begun)
            at = new

    async def _until_writable(self, through: socket.socket) -> None:
        """Raises TimeoutError where nothing moves."""
        writable = asyncio.Event()
        self.loop.add_writer(through, writable.set)
        try:
            unsent = _unsent(through)
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._limits.stalled_seconds):
                        await writable.wait()
                        return
                if _unsent(through) >= unsent:
                    raise TimeoutError("a peer does not read what it asked for")
                unsent = _unsent(through)
        finally:
            self.loop.remove_writer(through)

    # Flow.

    def pause_writing(self) -> None:
        super().pause_writing()
        self._hold(self.transport.get_write_buffer_size())
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._hold(0)
        if self._stall is not None and not self.transport.is_closing():
            self._stall.cancel()
            self._stall = None

    def _hold(self, size: int) -> None:
        """Counts the bytes that the other side has not taken against its allowance."""
        allowance, holder = self._held_of
        allowance.change(holder, -self._held_bytes)
        allowance, holder = self._held_of = self.app.answers.of(self.connection)
        allowance.change(holder, size)
        self._held_bytes = size

    def _watch(self) -> None:
        if self._stall is None:
            self._untaken_bytes = self._untaken()
            self._stall = self.loop.call_later(self._limits.stalled_seconds, self._look_for_a_stall)

    def _untaken(self) -> int:
        """The bytes that the other side has not taken. The kernel asks for more in large steps."""
        through = self.transport.get_extra_info("socket")
        in_kernel = 0 if through is None else _unsent(through)  # None: TLS that is just gone
        return self.transport.get_write_buffer_size() + in_kernel

    def _look_for_a_stall(self) -> None:
        untaken = self._untaken()
        if untaken >= self._untaken_bytes:
            self.transport.abort()
            return
        self._untaken_bytes = untaken
        self._stall = self.loop.call_later(self._limits.stalled_seconds, self._look_for_a_stall)


def _target_in(method: bytes, target: bytes) -> tuple[bytes, bytes, bytes]:
    """The path, the query and, where it is named, the authority of a target (RFC 9112, 3.2).

    Raises ValueError or httptools.HttpParserError.
    """
    if method == b"CONNECT":
        raise ValueError("this is no proxy")
    url: Any = httptools.parse_url(target)  # a part that is not named is None
    if target == b"*" and method != b"OPTIONS":
        raise ValueError("a path is missing")
    schema: bytes | None = url.schema
    if schema is None:
        return url.path, url.query or b"", b""
    if schema.lower() not in (b"http", b"https") or url.userinfo is not None:
        raise ValueError("this is not the address of a resource here")
    authority = b"[%s]" % url.host if b":" in url.host else url.host
    if url.port is not None:
        authority += b":%d" % url.port
    return url.path or b"/", url.query or b"", authority


async def _answer_that_it_is_bad(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application that answers 400."""
    text = b"Invalid HTTP request received."
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(text)), CLOSE]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": text})


@cache
def _files() -> ThreadPoolExecutor:
    """Threads that send files. They come behind who writes."""
    return ThreadPoolExecutor(FILE_THREADS, "posthouse-files", _come_behind)


def _come_behind() -> None:
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


def _send_some(through: int, file: int, at: int, end: int) -> int:
    """Sends a part of a file without waiting long; returns the offset reached. Raises OSError."""
    poll = select.poll()
    poll.register(through, select.POLLOUT)
    for _ in range(FILE_SLICES):
        try:
            sent = os.sendfile(through, file, at, min(end - at, FILE_BYTES))
        except BlockingIOError:
            if not poll.poll(FILE_WAIT_MS):
                break
            continue
        if not sent:
            raise OSError("the file is shorter than it was")
        at += sent
        if at == end:
            break
    return at


def _unsent(through: socket.socket) -> int:
    """Bytes that the kernel has, and the other side has not acknowledged."""
    found = fcntl.ioctl(through, termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(found, sys.byteorder)
