"""The bytes on the wire, made by hand, in all three generations, against a real process."""

import gzip
import itertools
import json
import socket
import struct

import pytest

from tests.dialects.vibemq.broker import Vibe
from tests.dialects.vibemq.client import (
    CONNECT,
    CONNECT_ACK,
    DISCONNECT,
    ERROR,
    FLAGGED,
    GENERATIONS,
    JSON,
    LIST,
    PING,
    PLAIN,
    PONG,
    PUBLISH,
    PUBLISH_ACK,
    SUBSCRIBE,
    Client,
    Said,
    binary,
    written,
)

# One conversation, byte for byte: Connect, Publish and Subscribe; what is answered to each, and the
# delivery of what was published. In the generations that are binary, without their flag.
BINARY = [
    ("01 00 0002 6331 0000 00000000 0000", "01 01 0002 6331 0000 00000000 0000"),
    (
        "01 14 0002 6d31 0001 71 00000007 7b2261223a317d 0001 0001 6b 0001 76",
        "01 15 0002 6d31 0001 71 00000000 0000",
    ),
    ("01 16 0002 7331 0001 71 00000000 0000", "01 17 0002 7331 0001 71 00000000 0000"),
]
DELIVERED = "01 1a 0002 6d31 0001 71 00000007 7b2261223a317d 0001 0001 6b 0001 76"
ACKNOWLEDGED = "01 1e 0002 6d31 0000 00000000 0000"


def framed(text: str, flag: bytes) -> bytes:
    body = bytes.fromhex(text)
    return struct.pack(">I", len(body)) + flag + body


@pytest.mark.parametrize("flag", [b"\0", b""])
def test_a_conversation_in_binary(vibe: Vibe, flag: bytes) -> None:
    queue = "q" if flag else "p"

    def named(text: str) -> str:
        return text.replace("0001 71", f"0001 {queue.encode().hex()}")

    address = ("127.0.0.1", vibe.port)
    with (
        socket.create_connection(address, timeout=20) as peer,
        peer.makefile("rb") as stream,
    ):
        for said, answered in BINARY:
            peer.sendall(framed(named(said), flag))
            wanted = framed(named(answered), flag)
            assert stream.read(len(wanted)).hex() == wanted.hex()
        wanted = framed(named(DELIVERED), flag)
        assert stream.read(len(wanted)).hex() == wanted.hex()
        peer.sendall(framed(ACKNOWLEDGED, flag))
        ping = bytes.fromhex("0000000E 00 01 0A 0002 6331 0000 00000000 0000")
        peer.sendall(ping if flag else ping[:4] + ping[5:])
        pong = ping.replace(b"\x01\x0a", b"\x01\x0b")
        assert stream.read(len(pong) - 1 + len(flag)) == (pong if flag else pong[:4] + pong[5:])


@pytest.mark.parametrize(("connect", "pascal"), [("Connect", True), ("connect", False)])
def test_a_conversation_in_json(vibe: Vibe, connect: str, pascal: bool) -> None:
    def name(pascal_name: str) -> str:
        return pascal_name if pascal else pascal_name[0].lower() + pascal_name[1:]

    queue = f"json.{pascal}"
    message = {
        "id": "msg_123", "type": name("Publish"), "queue": queue, "schemaVersion": "1.0",
        "payload": {"title": "Hello", "body": "World"},
        "headers": {"priority": "high", "correlationId": "corr_456"},
    }  # fmt: skip
    address = ("127.0.0.1", vibe.port)
    with (
        socket.create_connection(address, timeout=20) as peer,
        peer.makefile("rb") as stream,
    ):

        def say(form: object) -> None:
            data = json.dumps(form).encode()
            peer.sendall(struct.pack(">I", len(data)) + data)

        def hear() -> object:
            (size,) = struct.unpack(">I", stream.read(4))
            return json.loads(stream.read(size))

        say({"id": "c", "type": connect, "headers": None, "payload": None})
        assert hear() == {"id": "c", "type": name("ConnectAck"), "schemaVersion": "1.0"}
        say({"id": "s", "type": name("Subscribe"), "queue": queue})
        assert hear() == {
            "id": "s", "type": name("SubscribeAck"), "queue": queue, "schemaVersion": "1.0",
        }  # fmt: skip
        say(message)
        told = [hear(), hear()]
        acknowledged = {
            "id": "msg_123", "type": name("PublishAck"), "queue": queue, "schemaVersion": "1.0",
        }  # fmt: skip
        assert acknowledged in told
        assert message | {"type": name("Deliver")} in told
        say({"id": "x", "type": "nonsense"})
        error = hear()
        assert isinstance(error, dict)
        assert (error["id"], error["errorCode"]) == ("x", "UNKNOWN_COMMAND")
        assert error["errorMessage"] == "There is no command of that name."


@pytest.mark.parametrize("generation", GENERATIONS)
def test_frames_do_not_depend_on_how_they_are_cut(vibe: Vibe, generation: str) -> None:
    data = b"".join(
        written(each, generation)
        for each in (Said(CONNECT, "c"), Said(PUBLISH, "m", "cut", b'"x"', {"a": "b"}),
                     Said(PING, "p"))
    )  # fmt: skip
    client = vibe.bare(generation)
    for byte in data:
        client.socket.sendall(bytes([byte]))
    assert sorted(client.next().type for _ in range(3)) == [CONNECT_ACK, PONG, PUBLISH_ACK]
    client.close()


@pytest.mark.parametrize("generation", GENERATIONS)
def test_what_comes_behind_a_connect_is_looked_at_after_it(vibe: Vibe, generation: str) -> None:
    """Also where it takes time to see whether the password fits."""
    client = vibe.bare(generation)
    user = {"authUsername": "RootManageSharedAccessKey", "authPassword": "SAS_KEY_VALUE"}
    client.socket.sendall(
        written(Said(CONNECT, "c", headers=user), generation)
        + b"".join(written(Said(PING, f"p{n}"), generation) for n in range(50))
    )
    assert [client.next().id for _ in range(51)] == ["c", *(f"p{n}" for n in range(50))]
    client.close()


CONNECTED = written(Said(CONNECT, "c"))
PLAINLY = written(Said(CONNECT, "c"), PLAIN)
IN_JSON = written(Said(CONNECT, "c"), JSON)
TOO_LARGE = struct.pack(">I", (1 << 20) + 1)


@pytest.mark.parametrize(
    "data",
    [
        CONNECTED + TOO_LARGE + b"\0",
        CONNECTED + b"\0\0\0\x01\0\x01",
        CONNECTED + b"\0\0\0\0\0\0",
        CONNECTED + b"\0\0\0\x02\0\x01\x0a",
        CONNECTED + b"\0\0\0\x02\0\x02\x0a",
        CONNECTED + b"\0\0\0\x02\x03\x01\x0a",
        CONNECTED + written(Said(PING, "p"), squeeze=True),  # it was not agreed on
        CONNECTED + written(Said(PING, "p"))[:-1] + b"\1",
        CONNECTED + written(Said(PING, "c1")).replace(b"c1", b"\xff\xff"),
        PLAINLY + TOO_LARGE + b"\0",
        PLAINLY + b"\0\0\0\x0e" + b"\xff" * 14,
        IN_JSON + b"\0\0\0\x02{]",
        IN_JSON + b"\0\0\0\x02[]",
        IN_JSON + b'\0\0\0\x0b{"type":"\xff"',
        IN_JSON + struct.pack(">I", 9_000) + b'{"type":' + b"[" * 8_992,
        IN_JSON + struct.pack(">I", 29) + b'{"type":"Ping","headers":[1]}',
    ],
    ids=itertools.count(),
)  # fmt: skip
def test_who_breaks_the_framing_is_told_and_closed(vibe: Vibe, data: bytes) -> None:
    generation = (
        JSON if data.startswith(IN_JSON) else PLAIN if data.startswith(PLAINLY) else FLAGGED
    )
    client = Client(vibe.port, generation)
    client.socket.sendall(data)
    assert client.next().type == CONNECT_ACK
    said = client.next()
    assert (said.type, said.code) == (ERROR, "INVALID_MESSAGE")
    assert said.id
    assert client.is_closed()
    with vibe.client() as other:
        assert other.ask(PING).type == PONG


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", 65_537) + b"\0",  # too large for somebody who is not known
        b"\0\xff\xff\xff\0",
        b"\0\0\0\x10\x02abc",
        b"\0\0\0\x10\x20abc",
    ],
    ids=itertools.count(),
)
def test_who_begins_with_nonsense_is_closed(vibe: Vibe, data: bytes) -> None:
    client = vibe.bare()
    client.socket.sendall(data)
    assert client.is_closed()


@pytest.mark.parametrize("generation", GENERATIONS)
def test_what_is_not_valid_is_told_under_its_id_and_the_client_goes_on(
    vibe: Vibe, generation: str
) -> None:
    with vibe.client(generation) as client:
        for said, code in [
            (Said(PUBLISH, "1", "", b"1"), "INVALID_QUEUE"),
            (Said(PUBLISH, "2", "no spaces", b"1"), "INVALID_QUEUE"),
            (Said(PUBLISH, "3", "..", b"1"), "INVALID_QUEUE"),
            (Said(PUBLISH, "3", "a/../b", b"1"), "INVALID_QUEUE"),
            (Said(PUBLISH, "4", "x" * 257, b"1"), "INVALID_QUEUE"),
            (Said(SUBSCRIBE, "5", "a/$dead"), "INVALID_QUEUE"),
            (Said(PUBLISH, "6", "q", b"1", {f"h{n}": "x" for n in range(51)}), "INVALID_MESSAGE"),
            (Said(PUBLISH, "7", "q", b"1", {"h": "x" * 4_097}), "INVALID_MESSAGE"),
            (Said(CONNECT, "8"), "INVALID_MESSAGE"),
            (Said(40, "9", "q", b'{"mode": 7}'), "INVALID_PAYLOAD"),
            (Said(40, "10", "q", b'{"messageTtl": "soon"}'), "INVALID_PAYLOAD"),
            (Said(40, "11", "q", b'{"maxQueueSize": 0}'), "INVALID_PAYLOAD"),
            (Said(41, "12", "not.there"), "QUEUE_NOT_FOUND"),
            (Said(50, "13", "", b'{"username": 5}'), "INVALID_PAYLOAD"),
            (Said(PONG, "14"), "UNKNOWN_COMMAND"),
            (Said(PUBLISH, "x" * 257, "q", b"1"), "INVALID_MESSAGE"),
        ]:
            client.send(said)
            answer = client.next()
            assert (answer.type, answer.id, answer.code) == (ERROR, said.id, code)
            assert answer.text
        if generation != JSON:
            for payload in (b"{", b"\xff", b'"\xff"', b"1 2", b"[" * 5_000 + b"]" * 5_000):
                client.send(Said(PUBLISH, "j", "q", payload))
                assert client.next().code == "INVALID_PAYLOAD"
            client.send(Said(44, "u"))
            assert client.next().code == "UNKNOWN_COMMAND"
        client.send(Said(PUBLISH, "", "q", b"1"))  # without an id there is one all the same
        answer = client.next()
        assert answer.code == "INVALID_MESSAGE"
        assert answer.id
        assert client.ask(PING).type == PONG


def test_names_may_have_letters_digits_dots_dashes_and_underscores(vibe: Vibe) -> None:
    with vibe.client() as client:
        for name in ("a", "A.b-c_9", "x" * 256, "-", "health"):
            assert client.publish(name, 1).type == PUBLISH_ACK
            assert name in client.ask(LIST).json


def test_nothing_but_connect_and_ping_is_for_who_is_not_known(vibe: Vibe) -> None:
    client = vibe.bare()
    assert client.ask(PING).type == PONG
    for kind in (PUBLISH, SUBSCRIBE, LIST, 55):
        said = client.ask(kind, "q")
        assert (said.type, said.code) == (ERROR, "NOT_AUTHENTICATED")
    assert client.connect().type == CONNECT_ACK
    client.send(Said(DISCONNECT, "d"))
    assert client.is_closed()


def test_who_asks_too_often_without_being_known_is_closed(vibe: Vibe) -> None:
    client = vibe.bare()
    client.socket.sendall(written(Said(LIST, "x")) * 200)
    assert client.is_closed()


def test_gzip_is_agreed_on_and_used_both_ways(vibe: Vibe) -> None:
    with vibe.client() as plain, vibe.client() as _:
        client = vibe.bare()
        said = client.connect(**{"supported-compression": "zstd, GZIP"})
        assert said.headers == {"negotiated-compression": "gzip"}
        text = "".join(
            f"{n:09}" for n in range(300_000)
        )  # more than a frame holds, if it were not compressed
        client.subscribe("squeezed")
        client.send(Said(PUBLISH, "m", "squeezed", json.dumps(text).encode()), squeeze=True)
        got = client.delivery()
        assert got.json == text
        client.ack(got)
        client.send(Said(PING, "p"), squeeze=True)
        assert client.until(lambda said: said.id == "p").type == PONG
        plain.publish("squeezed", "y" * 2_000)
        data = client.socket.recv(1 << 16)
        assert data[4] == 1
        assert len(data) < 200
        assert b"y" * 2_000 in gzip.decompress(data[5:])
        client.close()
        assert not plain.connect().headers


def test_without_agreement_nothing_is_compressed(vibe: Vibe) -> None:
    with vibe.client(**{"supported-compression": "zstd"}) as client:
        client.subscribe("unsqueezed")
        client.publish("unsqueezed", "z" * 2_000)
        assert client.delivery().json == "z" * 2_000


def test_a_bomb_is_not_unpacked(vibe: Vibe) -> None:
    bomb = gzip.compress(bytes(65 << 20))
    with vibe.client(**{"supported-compression": "gzip"}) as client:
        client.socket.sendall(struct.pack(">I", len(bomb)) + b"\x01" + bomb)
        assert client.next().code == "INVALID_MESSAGE"
        assert client.is_closed()
    with vibe.client(**{"supported-compression": "gzip"}) as client:
        cut = gzip.compress(binary(Said(PING, "p")))[:-4]
        client.socket.sendall(struct.pack(">I", len(cut)) + b"\x01" + cut)
        assert client.next().code == "INVALID_MESSAGE"


def test_options_are_told_again_to_the_letter(vibe: Vibe) -> None:
    declared = {
        "mode": 3, "maxQueueSize": 77, "messageTtl": "1.02:03:04.0050000", "overflowStrategy": 2,
        "enableDeadLetterQueue": True, "maxRetryAttempts": 5,
    }  # fmt: skip
    with vibe.client() as client:
        queue = vibe.queue(client, **declared)
        info = client.ask(42, queue)
        created = info.json.pop("createdAt")
        found = info.json
        del found["createdAt"]
        assert created.endswith("Z")
        assert found == {
            "name": queue, "messageCount": 0, "subscriberCount": 0, "deliveryMode": 3,
            "maxSize": 77, "messageTtl": "1.02:03:04.0050000", "overflowStrategy": 2,
            "enableDeadLetterQueue": True, "maxRetryAttempts": 5,
        }  # fmt: skip
        assert client.ask(40, queue, declared).type == 40  # the same again
        assert client.ask(40, queue).type == 40
        said = client.ask(40, queue, declared | {"maxQueueSize": 78})
        assert (said.type, said.code) == (ERROR, "QUEUE_EXISTS")
        named = vibe.queue(client, deadLetterQueueName="unused", mode="FanOutWithAck")
        told = client.ask(42, named).json
        assert (told["deadLetterQueueName"], told["deliveryMode"]) == ("unused", 1)
        assert (
            client.ask(40, "by-headers", deliveryMode="PriorityBased", maxQueueSize="9").type == 40
        )
        told = client.ask(42, "by-headers").json
        assert (told["deliveryMode"], told["maxSize"]) == (3, 9)
        assert client.ask(42, "nowhere").payload == b""
        assert client.ask(41, queue).type == 41
        assert queue not in client.ask(LIST).json
