"""What hostile clients do to a running broker, by name. None may hold its event loop for long."""

import gzip
import json
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module

from websockets.client import ClientProtocol
from websockets.uri import parse_uri

from posthouse.amqp.connection import AMQP, SASL
from posthouse.amqp.encode import described, encode
from posthouse.amqp.performatives import (
    RECEIVER,
    Begin,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslInit,
    Transfer,
    write,
)
from posthouse.amqp.types import Described, Symbol, ULong, Value
from tests.dialects.vibemq.client import CONNECT, LIST, PING, PUBLISH, SUBSCRIBE, Said, written
from tests.security.test_decoding import array32, colliding, list32, map32, number_map
from tests.security.wire import (
    BEGIN,
    KNOWN,
    OPEN,
    STRANGER,
    Flood,
    attach,
    frame,
    in_parts,
    request,
    transfer,
)
from tests.server.running import Running

Row = Callable[[Running], None]
MOST = 0xFFFFFFFF
ACCEPTED = Described(ULong(0x24), [])


def _body(size: int = 10) -> bytes:
    return described(0x75, encode(b"x" * size))


def _properties(encoded: bytes) -> bytes:
    """A message with these application properties."""
    return described(0x74, encoded) + _body()


def _deep(levels: int) -> bytes:
    value = b"\x45"
    for _ in range(levels):
        value = list32(1, value)
    return value


# AMQP.

ECHO = frame(Flow(0, 1_000, 0, 1_000, echo=True))
EMPTY = b"\0\0\0\x08\x02\0\0\0"
TO_QUEUE = attach(0, "stalls", sends=True)
TO_TOKENS = attach(0, "$cbs", sends=True) + attach(1, "$cbs", sends=False)
TO_MANAGEMENT = attach(0, "stalls/$management", sends=True) + attach(
    1, "stalls/$management", sends=False
)
CREDIT = frame(Flow(0, 1 << 30, 0, 1 << 30, 1, 0, 1 << 20))
TOKEN = "SharedAccessSignature sr=http%3A%2F%2Fx%2Fq&sig=" + "x" * 40 + "&se=9999999999&skn="
PUT_TOKEN = transfer(
    described(0x73, encode(["id", None, None, None, "replies"]))
    + described(
        0x74,
        encode({"operation": "put-token", "name": "q", "type": "servicebus.windows.net:sastoken"}),
    )
    + described(0x77, encode(TOKEN + "RootManageSharedAccessKey")),
    settled=True,
)  # fmt: skip
BEGIN_END = frame(Begin(None, 0, 1 << 30, 1 << 30, 1_023), 1) + frame(End(), 1)
ATTACH_DETACH = attach(5, "stalls", sends=True) + frame(Detach(5, True))
RECEIVE_DETACH = attach(5, "stalls", sends=False) + frame(Detach(5, True))
REFUSED = attach(5, "no/such/place/$management", sends=True) + frame(Detach(5, True))
ALL_DISPOSED = frame(Disposition(RECEIVER, 0, MOST, True, ACCEPTED))
DRAIN = frame(Flow(0, MOST, 0, MOST, 0, 0, 10, drain=True))
LONG_TAG = transfer(described(0x75, encode(b"x")), settled=True).replace(
    b"\xa0\x01t", b"\xa0\xff" + b"t" * 255
)
TO_AND_FROM = TO_QUEUE + attach(1, "stalls", sends=False)


def _wrong_heads(broker: Running) -> None:
    heads = [
        struct.pack(">IBBH", size, offset, kind, 0)
        for size, offset, kind in (
            (7, 2, 0), (8, 0, 0), (8, 1, 0), (16, 255, 0), (MOST, 2, 0), (0, 2, 0), (8, 2, 9),
        )
    ]  # fmt: skip
    for first in (STRANGER, KNOWN):
        for head in heads:
            Flood(first + head + bytes(100))(broker, 0.05)


def _out_of_turn(broker: Running) -> None:
    sasl = write(SaslInit("ANONYMOUS", b"", None))
    again = struct.pack(">IBBH", 8 + len(sasl), 2, 1, 0) + sasl
    tricks = [
        b"\0\0",
        b"\0" * 1_000,
        b"\0a\0b\0c",
        b"\0" + b"x" * 7_000 + b"\0y",
        b"\xff\0\xff\0\xff",
    ]
    said = [
        SASL + again + again, SASL + again + SASL + again, SASL + again + AMQP + SASL,
        SASL + again + AMQP + BEGIN, SASL + again + AMQP + attach(0, "q", sends=True),
        KNOWN + OPEN, KNOWN + again, KNOWN + frame(Begin(None, 0, 1, 1), 65_535),
        KNOWN + attach(MOST, "q", sends=True), KNOWN + frame(Flow(0, 1, 0, 1, MOST, 0, MOST)),
    ]  # fmt: skip
    for trick in tricks:
        content = write(SaslInit("PLAIN", trick, None))
        said.append(SASL + struct.pack(">IBBH", 8 + len(content), 2, 1, 0) + content)
    for each in said:
        Flood(each)(broker, 0.05)


def _many_channels(broker: Running) -> None:
    begin = [frame(Begin(None, 0, 1 << 30, 1 << 30), channel) for channel in range(1, 65_535)]
    Flood(KNOWN + b"".join(begin))(broker)


def _many_handles(broker: Running) -> None:
    Flood(KNOWN + b"".join(attach(n, "stalls", sends=n % 2 == 0) for n in range(2_000)))(broker)


def _settles_much(broker: Running) -> None:
    """20,000 messages are sent, received, and settled by one frame."""
    sent = b"".join(transfer(_body(), 0, n, settled=True) for n in range(20_000))
    asked = frame(Flow(0, 1 << 30, 0, 1 << 30, 1, 0, MOST))
    connected = socket.create_connection(("127.0.0.1", broker.port), timeout=20)
    with suppress(ConnectionError), connected as made:  # it may be ended for that
        made.sendall(KNOWN + TO_AND_FROM)
        for at in range(0, len(sent), 1 << 16):
            made.sendall(sent[at : at + (1 << 16)])
        made.sendall(asked)
        taken = 0
        with suppress(TimeoutError):
            made.settimeout(0.7)
            while taken < 20_000 * 60:
                taken += len(made.recv(1 << 18))
        for _ in range(5):
            made.sendall(ALL_DISPOSED * 20)
        with suppress(TimeoutError):
            while made.recv(1 << 18):
                pass


def _batch(message: bytes) -> bytes:
    payload = described(0x75, encode(message)) * 10_000
    return frame(Transfer(0, 0, b"t", 0x80013700, True), payload=payload)


def _later(make: Callable[[], Flood]) -> Row:
    """What takes a while to make is made when its turn comes."""
    return lambda broker: make()(broker)


def _hostile_message(make: Callable[[], bytes]) -> Row:
    """Its properties. Sent again and again, each in as many frames as it takes."""
    return _later(lambda: Flood(KNOWN + TO_QUEUE, in_parts(_properties(make()))))


def _management(operation: str, make: Callable[[], bytes]) -> Row:
    return _later(lambda: Flood(KNOWN + TO_MANAGEMENT + CREDIT, request(operation, make())))


def _tokens() -> bytes:
    """Locks whose numbers have the same hash."""
    same = [(n * ((1 << 61) - 1)).to_bytes(16, "big") for n in range(1, 10_000)]
    items = b"\x98" + b"".join(same)
    return encode_map({"lock-tokens": array32(len(same), items)})


def encode_map(given: dict[str, bytes]) -> bytes:
    return map32(2 * len(given), b"".join(encode(name) + value for name, value in given.items()))


def _sequences(numbers: list[int]) -> bytes:
    items = b"\x81" + b"".join(struct.pack(">q", n) for n in numbers)
    settles: bytes = encode(Symbol("x")) and b"\x52\x01"
    return encode_map(
        {"sequence-numbers": array32(len(numbers), items), "receiver-settle-mode": settles}
    )


SOME_PROPERTIES: dict[Value, Value] = {"a": 1, "b": "text", "c": 2.5}
BIG_OPEN: dict[Value, Value] = {Symbol(f"property-{n}"): "x" * 50 for n in range(900)}


def amqp() -> Iterator[tuple[str, Row]]:
    yield "a stranger's flows that want an answer", Flood(STRANGER, ECHO)
    yield "the same, who does not read", Flood(STRANGER, ECHO, reads=False)
    yield "a stranger's empty frames", Flood(STRANGER, EMPTY)
    yield "a stranger's sessions", Flood(STRANGER, BEGIN_END)
    yield "a stranger's links", Flood(STRANGER, ATTACH_DETACH)
    yield "a stranger's tokens", Flood(STRANGER + TO_TOKENS + CREDIT, PUT_TOKEN)
    yield "a client's flows that want an answer", Flood(KNOWN, ECHO)
    yield "the same, which does not read", Flood(KNOWN, ECHO, reads=False)
    yield "a client's empty frames", Flood(KNOWN, EMPTY)
    yield "a client's sessions", Flood(KNOWN, BEGIN_END)
    yield "a client's links to a queue", Flood(KNOWN, ATTACH_DETACH)
    yield "a client's links from a queue", Flood(KNOWN, RECEIVE_DETACH)
    yield "a client's links to nowhere", Flood(KNOWN, REFUSED)
    yield "a client's tokens", Flood(KNOWN + TO_TOKENS + CREDIT, PUT_TOKEN)
    yield (
        "tokens of a megabyte",
        Flood(
            KNOWN + TO_TOKENS + CREDIT,
            transfer(described(0x77, encode("x" * 1_000_000)), settled=True),
        ),
    )
    yield "dispositions of everything", Flood(KNOWN + TO_AND_FROM, ALL_DISPOSED)
    yield "settling 20,000 messages at once", _settles_much
    yield (
        "a delivery without end",
        Flood(KNOWN + TO_QUEUE, transfer(b"x", number=0, more=True, settled=True)),
    )
    yield (
        "a delivery of nothing without end",
        Flood(KNOWN + TO_QUEUE, transfer(b"", number=0, more=True, settled=True)),
    )
    yield (
        "all the credit there is",
        Flood(KNOWN + attach(0, "stalls", sends=False), frame(Flow(0, MOST, 0, MOST, 0, 0, MOST))),
    )
    yield "credit that is drained at once", Flood(KNOWN + attach(0, "stalls", sends=False), DRAIN)
    yield "65,535 channels", _many_channels
    yield "2,000 handles", _many_handles
    yield "long delivery tags", Flood(KNOWN + TO_QUEUE, LONG_TAG)
    yield (
        "an open with many properties",
        Flood(STRANGER.replace(OPEN + BEGIN, frame(Open("x", "localhost", properties=BIG_OPEN)))),
    )
    yield "heads of frames that are wrong", _wrong_heads
    yield "frames out of turn", _out_of_turn
    yield "small messages", Flood(KNOWN + TO_QUEUE, transfer(_body(), settled=True))
    yield "small messages that are to be answered", Flood(KNOWN + TO_QUEUE, transfer(_body()))
    yield "batches of 10,000 messages", _later(lambda: Flood(KNOWN + TO_QUEUE, _batch(_body())))
    yield (
        "batches of 10,000 messages with properties",
        _later(lambda: Flood(KNOWN + TO_QUEUE, _batch(_properties(encode(SOME_PROPERTIES))))),
    )
    yield "messages that cannot be read", Flood(KNOWN + TO_QUEUE, transfer(b"\0\x53\x99\x40"))
    yield "keys that collide", _hostile_message(lambda: number_map(colliding()))
    yield (
        "maps of keys that collide",
        _hostile_message(lambda: list32(1_000, number_map(colliding()[-64:]) * 1_000)),
    )
    yield (
        "a million equal keys",
        _hostile_message(lambda: map32(2_000_000, b"\xa1\x01k\x40" * 200_000)),
    )
    yield "a million nulls", _hostile_message(lambda: list32(900_000, b"\x40" * 900_000))
    yield "values nested deeply", _hostile_message(lambda: _deep(5_000))
    yield (
        "arrays of nothing",
        _hostile_message(lambda: list32(10_000, array32(10_000, b"\x40") * 10_000)),
    )
    yield (
        "four million nulls for $management",
        _management("peek-message", lambda: list32(4_000_000, b"\x40" * 4_000_000)),
    )
    yield "unknown operations", _management("make-coffee", lambda: encode({}))
    yield "locks of one hash", _management("renew-lock", lambda: _tokens())
    yield (
        "sequence numbers that collide",
        _management("receive-by-sequence-number", lambda: _sequences(colliding()[-10_000:])),
    )
    yield (
        "sequence numbers to be cancelled",
        _management("cancel-scheduled-message", lambda: _sequences(colliding()[-10_000:])),
    )


# AMQP in WebSocket.


def _websocket(make: Callable[[ClientProtocol], None]) -> Row:
    def run(broker: Running) -> None:
        client = ClientProtocol(
            parse_uri(f"ws://localhost:{broker.port}/$servicebus/websocket"),
            subprotocols=["AMQPWSB10"],  # type: ignore[list-item]
        )
        client.send_request(client.connect())
        head = b"".join(client.data_to_send())
        other = ClientProtocol(parse_uri("ws://localhost/"))
        other.state = other.state.OPEN
        make(other)
        first, *again = other.data_to_send()
        Flood(first, b"".join(again), hello=head)(broker)

    return run


def _pings(client: ClientProtocol) -> None:
    client.send_binary(STRANGER)
    for _ in range(100):
        client.send_ping(b"1234")


def _known_pings(client: ClientProtocol) -> None:
    client.send_binary(KNOWN)
    for _ in range(100):
        client.send_ping(b"1234")


def _nothing(client: ClientProtocol) -> None:
    client.send_binary(KNOWN, fin=False)
    for _ in range(100):
        client.send_continuation(b"", fin=False)


def _flows(client: ClientProtocol) -> None:
    client.send_binary(KNOWN)
    for _ in range(100):
        client.send_binary(ECHO)


def websocket() -> Iterator[tuple[str, Row]]:
    yield "a stranger's pings in WebSocket", _websocket(_pings)
    yield "a client's pings in WebSocket", _websocket(_known_pings)
    yield "fragments of nothing", _websocket(_nothing)
    yield "flows in WebSocket", _websocket(_flows)


# VibeMQ.

HELLO = written(Said(CONNECT, "c", headers={"supported-compression": "gzip"}))
BROTLI_HELLO = written(Said(CONNECT, "c", headers={"supported-compression": "brotli"}))


def _flagged(body: bytes, flag: int) -> bytes:
    return struct.pack(">IB", len(body), flag) + body


def _publish(payload: bytes) -> bytes:
    return written(Said(PUBLISH, "m", "vibe-stalls", payload))


def _large() -> bytes:
    """A message of 12 MB that is packed as well as is allowed."""
    text = b'"' + b"".join((b"%09d" % n) * 16 for n in range(80_000)) + b'"'
    packed = gzip.compress(written(Said(PUBLISH, "m", "vibe-large", text))[5:], 6)
    assert 20 < len(text) / len(packed) < 100
    assert len(packed) < 1 << 20
    return _flagged(packed, 1)


def vibemq() -> Iterator[tuple[str, Row]]:
    yield "a stranger's pings", Flood(b"", written(Said(PING, "p")))
    yield "a stranger's acknowledgements", Flood(b"", written(Said(30, "p")))
    yield "a client's pings", Flood(HELLO, written(Said(PING, "p")))
    yield "pings of one that does not read", Flood(HELLO, written(Said(PING, "p")), reads=False)
    yield (
        "64 MB in a frame of gzip",
        _later(lambda: Flood(HELLO, _flagged(gzip.compress(bytes(64 << 20)), 1))),
    )
    yield (
        "64 MB in a small frame of brotli",
        _later(
            lambda: Flood(
                BROTLI_HELLO,
                _flagged(import_module("brotli").compress(bytes(64 << 20), quality=3), 2),
            )
        ),
    )
    yield "12 MB in a frame, as there may be", _later(lambda: Flood(HELLO, _large()))
    yield (
        "small messages in gzip",
        Flood(
            HELLO,
            written(Said(PUBLISH, "m", "vibe-stalls", b'"' + b"x" * 2_000 + b'"'), squeeze=True),
        ),
    )
    yield "VibeMQ messages", Flood(HELLO, _publish(b"1"))
    yield "JSON that is nested", Flood(HELLO, _publish(b"[" * 500_000))
    yield "queues that are listed", Flood(HELLO, written(Said(LIST, "l")))
    yield (
        "subscriptions",
        Flood(HELLO, written(Said(SUBSCRIBE, "s", "vibe-s")) + written(Said(24, "u", "vibe-s"))),
    )
    yield "acknowledgements of nothing", Flood(HELLO, written(Said(30, "nothing")))


# PyQueue.


def _said(word: str, payload: bytes = b"") -> bytes:
    return b"%b %d %b" % (word.encode(), len(payload), payload)


def pyqueue() -> Iterator[tuple[str, Row]]:
    push = json.dumps({"queue": "py-stalls", "payload": "x"}).encode()
    tasks = json.dumps({"tasks": [{"queue": "py-stalls", "payload": "x"}] * 10_000}).encode()
    yield "PING", Flood(b"", _said("PING"))
    yield "PING of one that does not read", Flood(b"", _said("PING"), reads=False)
    yield "PUSH", Flood(b"", _said("PUSH", push))
    yield "PUSH of what is no JSON", Flood(b"", _said("PUSH", b"{" * 50))
    yield "PUSH_BATCH of 10,000", Flood(b"", _said("PUSH_BATCH", tasks))
    yield (
        "PUSH_BATCH of tasks that are none",
        Flood(b"", _said("PUSH_BATCH", b'{"tasks":[' + b"{}," * 100_000 + b"{}]}")),
    )
    yield "PULL", Flood(b"", _said("PULL", b'{"queue":"py-stalls"}'))
    yield "PULL of nothing", Flood(b"", _said("PULL", b'{"queue":"py-none"}'))
    yield "ACK of nothing", Flood(b"", _said("ACK", b"0f4c9a51-0000-4000-8000-000000000000"))
    yield "AUTH", Flood(b"", _said("AUTH", b'{"type":"apikey","value":"wrong"}'))
    yield "words that are none", Flood(b"", _said("NONSENSE"))
    yield "JSON nested in a PUSH", Flood(b"", _said("PUSH", b'{"payload":' + b"[" * 100_000))
    yield "STATS", Flood(b"", _said("STATS"))


# HTTP.


def http() -> Iterator[tuple[str, Row]]:
    host = b"Host: localhost\r\n"
    get = b"GET /health/live HTTP/1.1\r\n" + host + b"\r\n"
    yield "requests one behind the other", Flood(b"", get)
    yield "requests of one that does not read", Flood(b"", get, reads=False)
    yield "a head without end", Flood(b"GET / HTTP/1.1\r\n" + host, b"X-Header: 1\r\n")
    yield "a header of a megabyte", Flood(b"GET / HTTP/1.1\r\nX: ", b"x" * 1_000)
    yield "chunks of one byte", Flood(
        b"POST /api/v1/namespaces/default/queues/q/messages HTTP/1.1\r\n" + host
        + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n",
    )  # fmt: skip
    nested = b'{"messages":[{"body":' + b"[" * 200_000
    yield "JSON nested in a request", Flood(
        b"POST /api/v1/namespaces/default/queues/q/messages HTTP/1.1\r\n" + host
        + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(nested) + nested
    )  # fmt: skip


def _names(broker: Running) -> None:
    names = (
        "..", "%2e%2e%2f", "a%2Fb%2F..%2F..%2Fc", "$cbs", "$management", "con", "%00", "x" * 5_000,
        "%EF%BC%8F", "%C4%B0", "%E2%80%8F", "a%2F$DeadLetterQueue%2F$DeadLetterQueue",
    )  # fmt: skip
    for name in names:
        broker.queue("GET", name)
        broker.queue("PUT", name, {})


def _filters(broker: Running) -> None:
    texts = (
        "(" * 1_000 + "1=1" + ")" * 1_000, "a LIKE '" + "%a" * 500 + "b'",
        "a IN (" + ",".join(map(str, range(10_000))) + ")", "NOT " * 300 + "1=1", "'unterminated",
        "1/0 = 1", "-9223372036854775808 = -(-9223372036854775808)", "sys." + "x" * 900 + " = 1",
        " AND ".join(["a = 1"] * 150),
    )  # fmt: skip
    topic = "/api/v1/namespaces/default/topics/stalls-t"
    broker.call("PUT", topic, {})
    broker.call("PUT", f"{topic}/subscriptions/s", {})
    for number, text in enumerate(texts):
        for _ in range(5):
            reply = broker.call(
                "PUT",
                f"{topic}/subscriptions/s/rules/{number}",
                {"filter": {"kind": "sql", "expression": text}},
            )
            assert reply.status in (204, 400, 409), reply
            assert b"bad-json" not in reply.body


_RULES = "/api/v1/namespaces/default/topics/stall-rules"


def _like(broker: Running) -> None:
    """A message of 16 KB against 1,000 rules with LIKE."""
    assert broker.call("PUT", _RULES, {}).status in (201, 409)
    for sub in range(10):
        rules = [
            {"name": f"r{n}", "filter": {"kind": "sql", "expression": f"a LIKE '%a%b%a{n}%c'"}}
            for n in range(100)
        ]
        reply = broker.call("PUT", f"{_RULES}/subscriptions/s{sub}", {"rules": rules})
        assert reply.status in (201, 409), reply
    text = "ab" * 8_192
    path = f"{_RULES}/messages"
    reply = broker.call("POST", path, {"messages": [{"body": "", "properties": {"a": text}}]})
    assert reply.status == 201, reply


def _purge_dead(broker: Running) -> None:
    """ADMIN_PURGE_DLQ with 1,000 ids that are not there, over 9,000 messages."""
    push = json.dumps({"queue": "stall-dead", "payload": "x"}).encode()
    with socket.create_connection(("127.0.0.1", broker.port), timeout=60) as made:
        for _ in range(9):
            made.sendall(_said("PUSH", push) * 1_000)
            got = b""
            while got.count(b"OK ") < 1_000:  # an answer may come in two pieces
                got += made.recv(1 << 16)
        ids = [f"0f4c9a51-0000-4000-8000-{n:012}" for n in range(1_000)]
        made.sendall(_said("ADMIN_PURGE_DLQ", json.dumps({"task_ids": ids}).encode()))
        made.recv(1 << 16)


def others() -> Iterator[tuple[str, Row]]:
    yield "names", _names
    yield "SQL filters", _filters
    yield "LIKE in 1,000 rules", _like
    yield "dead letters that are not there", _purge_dead
    # One call of the JSON decoder, which no turn can divide.
    yield (
        "3,000,000 values in a PUSH",
        Flood(b"", _said("PUSH", b'{"payload":[' + b"{}," * 3_000_000 + b"1]}")),
    )
    yield (
        "700,000 tasks in a PUSH_BATCH",
        Flood(
            b"",
            _said("PUSH_BATCH", b'{"tasks":[' + b'{"payload":1},' * 700_000 + b'{"payload":1}]}'),
        ),
    )
    many = b'{"messages":[' + b'{"body":""},' * 700_000 + b'{"body":""}]}'
    yield (
        "700,000 messages in a request",
        Flood(
            b"POST /api/v1/namespaces/default/queues/q/messages HTTP/1.1\r\nHost: x\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(many) + many
        ),
    )
    some = b'{"messages":[' + b'{"body":"","properties":{"a":1}},' * 9_999 + b'{"body":""}]}'
    yield (
        "10,000 messages in a request",
        Flood(
            b"POST /api/v1/namespaces/default/queues/q/messages HTTP/1.1\r\nHost: x\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(some) + some
        ),
    )


ROWS: dict[str, Row] = dict((*amqp(), *websocket(), *vibemq(), *pyqueue(), *http(), *others()))
