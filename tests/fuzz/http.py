"""Hostile HTTP: requests that are changed a little, one on each connection.

Whatever comes, the broker answers in HTTP or hangs up, and no answer is a 500.
"""

import asyncio
import gc
import logging
import random
import tempfile
from pathlib import Path
from typing import Any

from posthouse.broker.engine import Engine
from posthouse.server.config import Config, Port
from posthouse.server.listener import Connection
from posthouse.server.serve import Server
from tests.dialects.rig import Failures
from tests.fuzz.changes import LARGE, changed
from tests.fuzz.playing import run as play

_HOST = b"Host: localhost\r\nConnection: close\r\n"
_JSON = b"Content-Type: application/json\r\n"
_QUEUE = b"/api/v1/namespaces/default/queues/fuzz"
_SEND = b'{"messages":[{"body":"hello","properties":{"a":1,"b":"x"}}]}'


def _post(path: bytes, body: bytes, more: bytes = b"") -> bytes:
    head = b"POST %b HTTP/1.1\r\n%b%b%bContent-Length: %d\r\n\r\n"
    return head % (path, _HOST, _JSON, more, len(body)) + body


_FORM = b"Content-Type: application/x-www-form-urlencoded\r\n"


def _aws(action: bytes, body: bytes) -> bytes:
    return _post(b"/", body, b"X-Amz-Target: AmazonSQS." + action + b"\r\n")


_ENTRY = b"SendMessageBatchRequestEntry.1."
_SQS = (
    _aws(
        b"SendMessage",
        b'{"QueueUrl":"fuzz-aws","MessageBody":"hello","DelaySeconds":0,'
        b'"MessageAttributes":{"a":{"DataType":"Number.x","StringValue":"1.5e3"}}}',
    ),
    _aws(b"ReceiveMessage", b'{"QueueUrl":"fuzz-aws","MessageAttributeNames":["All"]}'),
    _aws(b"CreateQueue", b'{"QueueName":"fuzz-aws","Attributes":{"DelaySeconds":"0"}}'),
    _aws(b"DeleteMessage", b'{"QueueUrl":"fuzz-aws","ReceiptHandle":"AQAAAAAAAAAJ"}'),
    _post(
        b"/000000000000/fuzz-aws",
        b"Action=SendMessageBatch&%bId=a&%bMessageBody=%%C3%%A4&%bMessageAttribute.1.Name=x"
        % (_ENTRY, _ENTRY, _ENTRY),
        _FORM,
    ),
    b"GET /000000000000/fuzz-aws?Action=ReceiveMessage&AttributeName.1=All HTTP/1.1\r\n" + _HOST
    + b"Authorization: AWS4-HMAC-SHA256 Credential=x/20300101/r/sqs/aws4_request,"
    b" SignedHeaders=host, Signature=0\r\n\r\n",
)  # fmt: skip
REQUESTS = (
    *_SQS,
    b"GET /health/live HTTP/1.1\r\n" + _HOST + b"\r\n",
    b"GET /metrics?entities=1 HTTP/1.1\r\n" + _HOST + b"Accept: text/plain\r\n\r\n",
    b"GET " + _QUEUE + b" HTTP/1.1\r\n" + _HOST + b"Authorization: Basic eDp5\r\n\r\n",
    _post(_QUEUE + b"/messages", _SEND),
    _post(_QUEUE + b"/receive", b'{"limit":5,"wait_ms":0}'),
    _post(_QUEUE + b"/complete", b'{"locks":["0000000000000000000000000000000a"],"partial":true}'),
    b"POST " + _QUEUE + b"/messages HTTP/1.1\r\n" + _HOST + _JSON
    + b"Transfer-Encoding: chunked\r\n\r\n3c\r\n" + _SEND + b"\r\n0\r\n\r\n",
    _post(b"/fuzz/messages", b"hello", b'BrokerProperties: {"Label":"x","TimeToLive":5}\r\n'),
    b"PUT /fuzz-atom?api-version=2021-05 HTTP/1.1\r\n" + _HOST + b"Content-Length: 0\r\n"
    b"Authorization: SharedAccessSignature sr=x&sig=eA%3d%3d&se=9999999999&skn=y\r\n\r\n",
    b"GET /$servicebus/websocket HTTP/1.1\r\n" + _HOST + b"Upgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n",
)  # fmt: skip
# Another process reads the feed, which takes milliseconds, or begins anew for who goes meanwhile.
_FEED = b"GET /feed?after=0&limit=10&kinds=sent HTTP/1.1\r\n" + _HOST + b"\r\n"
FEED = 0.001  # of the cases
_WORDS = (
    b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Content-Length: 9223372036854775807\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"\r", b"\n",
    b"\r\n\r\n", b"7fffffffffffffff\r\n", b"ffffffffffffffffff\r\n", b"Expect: 100-continue\r\n",
    b"HTTP/0.9", b"HTTP/2.0", b"http://other/", b"%", b"%2e%2e%2f", b"%00", b";a=b", b"?" * 50,
    b"X: " + b"y" * 9_000 + b"\r\n", b"X: y\r\n" * 300, b"\0", b"[" * 3_000, b"1e400", b'"\\ud800"',
    b"Connection: upgrade\r\n", b"Content-Encoding: gzip\r\n", *LARGE,
)  # fmt: skip


class Transport:
    """What a peer writes goes to a list. When it is closed the peer is told, as a loop does."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = self.lost = False
        self._protocol: Any = None

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def write(self, data: bytes) -> None:
        assert b"HTTP/1.1 500" not in data, data[:500]
        self.written.append(bytes(data))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self._lose)

    abort = close

    def _lose(self) -> None:
        self.lost = True
        protocol, self._protocol = self._protocol, None
        protocol.connection_lost(None)

    def data_received(self, data: bytes) -> None:
        """To whoever has the connection by now: a request may have made a WebSocket of it."""
        if not self.closed:
            self._protocol.data_received(data)

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 40_000) if name in ("peername", "sockname") else default

    def nothing(self, *_: object) -> None:
        pass

    pause_reading = resume_reading = set_write_buffer_limits = nothing

    def is_reading(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0


class Http:
    """A whole server, whose listener is passed by."""

    name = "http"
    anew_every = 5_000
    keeps_transactions = True

    def __init__(self) -> None:
        self._server: Server | None = None
        self._serving: asyncio.Task[int] | None = None
        self._failures = Failures()

    async def open(self, number: int) -> None:
        folder = Path(tempfile.gettempdir()) / "there-is-no-tls"
        config = Config(
            memory=True, dev=True, auto_create=True, host=("127.0.0.1",), port=(Port(0),)
        )
        ready = asyncio.Event()
        self._server = Server(config, folder, lambda _: ready.set())
        self._serving = asyncio.create_task(self._server.run())
        await ready.wait()
        self._failures.found.clear()
        logging.getLogger("posthouse").addHandler(self._failures)

    async def close(self) -> None:
        logging.getLogger("posthouse").removeHandler(self._failures)
        assert self._server is not None
        assert self._serving is not None
        self._server.stop()
        await self._serving
        gc.unfreeze()  # a server freezes what is there at its start

    @property
    def engine(self) -> Engine:
        assert self._server is not None
        engine = self._server._broker.engine
        assert engine is not None
        return engine

    @property
    def failures(self) -> list[Any]:
        return self._failures.found

    def connect(self) -> tuple[Any, Any]:
        assert self._server is not None
        listener = self._server._listener
        (http,) = (each for each in listener.protocols if each.name == "http")
        connection, transport = Connection(listener, "127.0.0.1"), Transport()
        peer = http.make(connection)
        connection.peer, connection.transport = peer, transport  # type: ignore[assignment]
        transport.set_protocol(peer)
        peer.connection_made(transport)
        return peer, transport

    def data(self, chance: random.Random) -> bytes:
        request = _FEED if chance.random() < FEED else chance.choice(REQUESTS)
        return changed(request, chance, _WORDS)

    def kept(self) -> dict[str, int]:
        return {}


def run(seed: int, cases: int, seconds: float) -> int:
    """How many cases were played. Raises AssertionError, with the case's number."""
    return play(Http(), seed, cases, seconds)
