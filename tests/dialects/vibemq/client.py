"""A VibeMQ client made by hand, for tests: it writes and reads the bytes itself."""

import contextlib
import gzip
import json
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

FLAGGED, PLAIN, JSON = "flagged", "plain", "json"
GENERATIONS = (FLAGGED, PLAIN, JSON)
NAMES = {
    0: "Connect", 1: "ConnectAck", 2: "Disconnect", 10: "Ping", 11: "Pong", 20: "Publish",
    21: "PublishAck", 22: "Subscribe", 23: "SubscribeAck", 24: "Unsubscribe",
    25: "UnsubscribeAck", 26: "Deliver", 30: "Ack", 40: "CreateQueue", 41: "DeleteQueue",
    42: "QueueInfo", 43: "ListQueues", 50: "AdminCreateUser", 51: "AdminDeleteUser",
    52: "AdminChangePassword", 53: "AdminGrantPermission", 54: "AdminRevokePermission",
    55: "AdminListUsers", 56: "AdminGetUserPermissions", 99: "Error",
}  # fmt: skip
NUMBERS = {name.lower(): number for number, name in NAMES.items()}
(CONNECT, CONNECT_ACK, DISCONNECT, PING, PONG, PUBLISH, PUBLISH_ACK, SUBSCRIBE, SUBSCRIBE_ACK,
 UNSUBSCRIBE, UNSUBSCRIBE_ACK, DELIVER, ACK, CREATE, DELETE, INFO, LIST,
 ) = list(NAMES)[:17]  # fmt: skip
ERROR = 99


class Said(NamedTuple):
    type: int
    id: str = ""
    queue: str = ""
    payload: bytes = b""
    headers: Mapping[str, str] = {}
    code: str = ""
    text: str = ""

    @property
    def json(self) -> Any:
        return json.loads(self.payload)


def str16(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">H", len(data)) + data


def binary(said: Said) -> bytes:
    body = bytes([1, said.type]) + str16(said.id) + str16(said.queue)
    body += struct.pack(">I", len(said.payload)) + said.payload
    body += struct.pack(">H", len(said.headers))
    for name, value in said.headers.items():
        body += str16(name) + str16(value)
    return body + (str16(said.code) + str16(said.text) if said.type == ERROR else b"")


def as_json(said: Said) -> bytes:
    form: dict[str, Any] = {"id": said.id, "type": NAMES[said.type], "schemaVersion": "1.0"}
    if said.queue:
        form["queue"] = said.queue
    if said.payload:
        form["payload"] = json.loads(said.payload)
    if said.headers:
        form["headers"] = said.headers
    return json.dumps(form).encode()


def written(said: Said, generation: str = FLAGGED, squeeze: bool = False) -> bytes:
    body = as_json(said) if generation == JSON else binary(said)
    flag = b"" if generation != FLAGGED else b"\x01" if squeeze else b"\0"
    if squeeze:
        body = gzip.compress(body)
    return struct.pack(">I", len(body)) + flag + body


def read(body: bytes, generation: str = FLAGGED) -> Said:
    if generation == JSON:
        form = json.loads(body)
        payload = json.dumps(form["payload"]).encode() if "payload" in form else b""
        return Said(
            NUMBERS[form["type"].lower()], form["id"], form.get("queue", ""), payload,
            form.get("headers", {}), form.get("errorCode", ""), form.get("errorMessage", ""),
        )  # fmt: skip
    at = 2
    assert body[0] == 1

    def text() -> str:
        nonlocal at
        (size,) = struct.unpack_from(">H", body, at)
        at += 2 + size
        return body[at - size : at].decode()

    id, queue = text(), text()
    (size,) = struct.unpack_from(">I", body, at)
    at += 4 + size
    payload = body[at - size : at]
    (count,) = struct.unpack_from(">H", body, at)
    at += 2
    headers = {text(): text() for _ in range(count)}
    code, words = (text(), text()) if body[1] == ERROR else ("", "")
    assert at == len(body)
    return Said(body[1], id, queue, payload, headers, code, words)


def cut(data: bytes, generation: str = FLAGGED) -> tuple[list[Said], bytes]:
    """The frames in what has come, and the rest of it."""
    found, head = [], 5 if generation == FLAGGED else 4
    while len(data) >= head:
        (size,) = struct.unpack_from(">I", data)
        if len(data) < head + size:
            break
        body, flag = data[head : head + size], data[4] if generation == FLAGGED else 0
        data = data[head + size :]
        found.append(read(gzip.decompress(body) if flag == 1 else body, generation))
    return found, data


class Client:
    """One connection, whose every word is asked for."""

    def __init__(self, port: int, generation: str = FLAGGED, seconds: float = 20) -> None:
        self.generation = generation
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=seconds)
        self._data = b""
        self._ids = 0
        self.heard: list[Said] = []  # that was not asked for yet

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, said: Said, *, squeeze: bool = False) -> None:
        self.socket.sendall(written(said, self.generation, squeeze))

    def next(self) -> Said:
        """The next frame. Raises EOFError where the other side has closed."""
        while not self.heard:
            more = self.socket.recv(1 << 16)
            if not more:
                raise EOFError
            found, self._data = cut(self._data + more, self.generation)
            self.heard += found
        return self.heard.pop(0)

    def until(self, wanted: Callable[[Said], bool]) -> Said:
        """The first such; the others are kept for later."""
        kept: list[Said] = []
        while not wanted(said := self.next()):
            kept.append(said)
        self.heard = kept + self.heard
        return said

    def ask(self, type: int, queue: str = "", payload: Any = None, **headers: str) -> Said:
        self._ids += 1
        id = f"r{self._ids}"
        data = b"" if payload is None else json.dumps(payload).encode()
        self.send(Said(type, id, queue, data, headers))
        return self.until(lambda said: said.id == id and said.type != DELIVER)

    def connect(self, **headers: str) -> Said:
        return self.ask(CONNECT, **headers)

    def log_in(self, name: str, password: str) -> Said:
        return self.connect(authUsername=name, authPassword=password)

    def publish(self, queue: str, payload: Any, id: str = "", **headers: str) -> Said:
        self._ids += 1
        id = id or f"m{self._ids}"
        self.send(Said(PUBLISH, id, queue, json.dumps(payload).encode(), headers))
        return self.until(lambda said: said.id == id and said.type in (PUBLISH_ACK, ERROR))

    def subscribe(self, queue: str) -> Said:
        return self.ask(SUBSCRIBE, queue)

    def delivery(self) -> Said:
        return self.until(lambda said: said.type == DELIVER)

    def ack(self, said: Said) -> None:
        self.send(Said(ACK, said.id))

    def take(self) -> Any:
        """The payload of the next delivery, which is acknowledged."""
        said = self.delivery()
        self.ack(said)
        return said.json

    def has_nothing(self) -> bool:
        """Whether no delivery comes before the answer to a ping, twice."""
        for _ in range(2):
            assert self.ask(PING).type == PONG
        return not any(each.type == DELIVER for each in self.heard)

    def is_closed(self) -> bool:
        try:
            while True:
                self.next()
        except (EOFError, ConnectionError):
            self.close()
            return True


@contextlib.contextmanager
def connected(port: int, generation: str = FLAGGED, **headers: str) -> Iterator[Client]:
    with Client(port, generation) as client:
        said = client.connect(**headers)
        assert said.type == CONNECT_ACK, said
        yield client
