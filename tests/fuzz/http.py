"""Hostile HTTP for a running broker: requests that are changed a little, one on each connection.

Whatever comes, the broker answers in HTTP or hangs up, goes on, and logs no failure of its own.
"""

import random
import socket
import sys
import time
from contextlib import suppress

from tests.fuzz.changes import LARGE, changed
from tests.server.running import Running, running

ANSWER_SECONDS = 20
ANSWER_BYTES_MAX = 16 << 20
_HOST = b"Host: localhost\r\nConnection: close\r\n"
_JSON = b"Content-Type: application/json\r\n"
_QUEUE = b"/api/v1/namespaces/default/queues/fuzz"
_SEND = b'{"messages":[{"body":"hello","properties":{"a":1,"b":"x"}}]}'


def _post(path: bytes, body: bytes, more: bytes = b"") -> bytes:
    head = b"POST %b HTTP/1.1\r\n%b%b%bContent-Length: %d\r\n\r\n"
    return head % (path, _HOST, _JSON, more, len(body)) + body


REQUESTS = (
    b"GET /health/live HTTP/1.1\r\n" + _HOST + b"\r\n",
    b"GET /metrics?entities=1 HTTP/1.1\r\n" + _HOST + b"Accept: text/plain\r\n\r\n",
    b"GET /feed?after=0&limit=10&kinds=sent HTTP/1.1\r\n" + _HOST + b"\r\n",
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
_WORDS = (
    b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Content-Length: 9223372036854775807\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"\r", b"\n",
    b"\r\n\r\n", b"7fffffffffffffff\r\n", b"ffffffffffffffffff\r\n", b"Expect: 100-continue\r\n",
    b"HTTP/0.9", b"HTTP/2.0", b"http://other/", b"%", b"%2e%2e%2f", b"%00", b";a=b", b"?" * 50,
    b"X: " + b"y" * 9_000 + b"\r\n", b"X: y\r\n" * 300, b"\0", b"[" * 3_000, b"1e400", b'"\\ud800"',
    b"Connection: upgrade\r\n", b"Content-Encoding: gzip\r\n", *LARGE,
)  # fmt: skip


def play(broker: Running, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", broker.port), timeout=ANSWER_SECONDS) as made:
        answer = b""
        with suppress(ConnectionError):  # it may hang up before it has all
            made.sendall(data)
            made.shutdown(socket.SHUT_WR)
            while (part := made.recv(1 << 16)) and len(answer) < ANSWER_BYTES_MAX:
                answer += part
    assert len(answer) < ANSWER_BYTES_MAX, "the answer is too large"
    assert answer.count(b"HTTP/1.1 500") == 0, answer[:500]


def run(seed: int, cases: int, seconds: float) -> int:
    """How many cases were played. Raises AssertionError, with the case's number."""
    end, number = time.monotonic() + seconds, 0
    with running("--memory", "--dev", "--auto-create") as broker:
        while number < cases and time.monotonic() < end:
            number += 1
            chance = random.Random(f"http-{seed}-{number}")
            data = changed(chance.choice(REQUESTS), chance, _WORDS)
            try:
                play(broker, data)
                if number % 100 == 0:
                    assert broker.call("GET", "/health/live").status == 200
                    errors = [each for each in broker.log if each.get("level") == "error"]
                    assert not errors, errors[0]
            except BaseException:
                sys.stderr.write(f"HTTP: case {number} of seed {seed}: {data[:2_000]!r}\n")
                raise
    return number
