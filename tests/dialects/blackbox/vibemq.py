"""A client of VibeMQ as its users would write one, for each of its three ways to write frames.

    1.4 to 1.8      u32 length | u8 flag: 0 as it is, 1 gzip, 2 brotli | body
    1.0 to 1.3      u32 length | body
    before 1.0      u32 length | JSON

A body is: u8 version | u8 type | str16 id | str16 queue | u32 length, JSON | u16 headers, each
str16 key, str16 value | of an error only: str16 code, str16 text. A str16 is u16 length | UTF-8.
"""

import gzip
import json
import socket
import ssl
import struct
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from types import TracebackType
from typing import Any, Literal
from uuid import uuid4

from tests.server.running import Running

Json = Any
Generation = Literal["flagged", "bare", "json"]
GENERATIONS: tuple[Generation, ...] = ("flagged", "bare", "json")
PATIENCE = 20  # seconds for what will come
NOTHING = 0.15  # seconds for what will not


class Type(IntEnum):
    Connect = 0
    ConnectAck = 1
    Disconnect = 2
    Ping = 10
    Pong = 11
    Publish = 20
    PublishAck = 21
    Subscribe = 22
    SubscribeAck = 23
    Unsubscribe = 24
    UnsubscribeAck = 25
    Deliver = 26
    Ack = 30
    CreateQueue = 40
    DeleteQueue = 41
    QueueInfo = 42
    ListQueues = 43
    AdminCreateUser = 50
    AdminDeleteUser = 51
    AdminChangePassword = 52
    AdminGrantPermission = 53
    AdminRevokePermission = 54
    AdminListUsers = 55
    AdminGetUserPermissions = 56
    Error = 99


@dataclass
class Frame:
    type: Type
    id: str | None = None
    queue: str | None = None
    payload: Json = None
    headers: dict[str, str] = field(default_factory=dict)
    code: str | None = None
    text: str | None = None


# Bodies.


def _text(value: str | None) -> bytes:
    data = (value or "").encode()
    return struct.pack(">H", len(data)) + data


def binary(frame: Frame) -> bytes:
    payload = b"" if frame.payload is None else json.dumps(frame.payload).encode()
    parts = [struct.pack(">BB", 1, frame.type), _text(frame.id), _text(frame.queue)]
    parts += [struct.pack(">I", len(payload)), payload, struct.pack(">H", len(frame.headers))]
    for key, value in frame.headers.items():
        parts += [_text(key), _text(value)]
    if frame.type is Type.Error:
        parts += [_text(frame.code), _text(frame.text)]
    return b"".join(parts)


class _Reading:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        found = self.data[self.at : self.at + count]
        assert len(found) == count, "the frame is too short"
        self.at += count
        return found

    def number(self, form: str) -> int:
        (found,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return int(found)

    def text(self) -> str | None:
        return self.take(self.number(">H")).decode() or None


def from_binary(data: bytes) -> Frame:
    reading = _Reading(data)
    assert reading.number(">B") == 1
    frame = Frame(Type(reading.number(">B")), reading.text(), reading.text())
    payload = reading.take(reading.number(">I"))
    frame.payload = json.loads(payload) if payload else None
    for _ in range(reading.number(">H")):
        key, value = reading.text(), reading.text()
        assert key is not None
        assert value is not None
        frame.headers[key] = value
    if frame.type is Type.Error:
        frame.code, frame.text = reading.text(), reading.text()
    assert reading.at == len(data), "there is more in the frame"
    return frame


def as_json(frame: Frame) -> bytes:
    form: Json = {"id": frame.id, "type": frame.type.name, "schemaVersion": "1.0"}
    optional = {"queue": frame.queue, "payload": frame.payload, "headers": frame.headers or None}
    form |= {key: value for key, value in optional.items() if value is not None}
    return json.dumps(form).encode()


_BY_NAME = {each.name.lower(): each for each in Type}


def from_json(data: bytes) -> Frame:
    form = json.loads(data)
    return Frame(
        _BY_NAME[form["type"].lower()], form.get("id"), form.get("queue"), form.get("payload"),
        form.get("headers") or {}, form.get("errorCode"), form.get("errorMessage"),
    )  # fmt: skip


class Refused(Exception):
    def __init__(self, frame: Frame) -> None:
        super().__init__(frame)
        self.code = frame.code


class Client:
    """One connection. What is delivered while it waits for an answer is kept for `deliver`."""

    def __init__(
        self,
        broker: Running,
        generation: Generation = "flagged",
        *,
        connect: bool = True,
        headers: dict[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.generation = generation
        self.compress = False
        self.flags: list[int] = []  # of the frames that came
        self.socket = socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self._come = b""
        self._delivered: deque[Frame] = deque()
        if connect:
            try:
                self.connected = self.connect(headers or {})
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # Bytes.

    def bytes_of(self, frame: Frame) -> bytes:
        body = as_json(frame) if self.generation == "json" else binary(frame)
        if self.generation != "flagged":
            return struct.pack(">I", len(body)) + body
        flag = int(self.compress and len(body) >= 1024)
        body = gzip.compress(body) if flag else body
        return struct.pack(">IB", len(body), flag) + body

    def write(self, *frames: Frame) -> None:
        self.socket.sendall(b"".join(map(self.bytes_of, frames)))

    def read(self, seconds: float = PATIENCE) -> Frame:
        self.socket.settimeout(seconds)
        (length,) = struct.unpack(">I", self._take(4))
        flag = 0
        if self.generation == "flagged":
            (flag,) = self._take(1)
            self.flags.append(flag)
        body = self._take(length)
        if flag == 1:
            body = gzip.decompress(body)
        return from_json(body) if self.generation == "json" else from_binary(body)

    def _take(self, count: int) -> bytes:
        while len(self._come) < count:
            data = self.socket.recv(65_536)
            if not data:
                raise EOFError(self._come)
            self._come += data
        found, self._come = self._come[:count], self._come[count:]
        return found

    def is_ended(self) -> bool:
        """The broker has closed, whatever error it told before."""
        try:
            while self.read().type is Type.Error:
                pass
        except (EOFError, ConnectionResetError):
            return True
        return False

    # Requests.

    def connect(self, headers: dict[str, str]) -> Frame:
        self.write(Frame(Type.Connect, uuid4().hex, headers=headers))
        frame = self.read()
        if frame.type is Type.Error:
            raise Refused(frame)
        assert frame.type is Type.ConnectAck, frame
        return frame

    def answer(self, id: str) -> Frame:
        while True:
            frame = self.read()
            if frame.type is Type.Deliver:
                self._delivered.append(frame)
                continue
            assert frame.id == id, frame
            if frame.type is Type.Error:
                raise Refused(frame)
            return frame

    def ask(
        self, kind: Type, queue: str | None = None, payload: Json = None, **headers: str
    ) -> Frame:
        frame = Frame(kind, uuid4().hex, queue, payload, headers)
        self.write(frame)
        assert frame.id is not None
        return self.answer(frame.id)

    def publish(self, queue: str, payload: Json, **headers: str) -> str:
        """The message's id."""
        frame = self.ask(Type.Publish, queue, payload, **headers)
        assert (frame.type, frame.queue) == (Type.PublishAck, queue)
        assert frame.id is not None
        return frame.id

    def subscribe(self, queue: str) -> None:
        frame = self.ask(Type.Subscribe, queue)
        assert (frame.type, frame.queue) == (Type.SubscribeAck, queue)

    def unsubscribe(self, queue: str) -> None:
        frame = self.ask(Type.Unsubscribe, queue)
        assert (frame.type, frame.queue) == (Type.UnsubscribeAck, queue)

    def create(self, queue: str, **options: Json) -> None:
        frame = self.ask(Type.CreateQueue, queue, options or None)
        assert (frame.type, frame.queue) == (Type.CreateQueue, queue)

    def info(self, queue: str) -> Json:
        frame = self.ask(Type.QueueInfo, queue)
        assert (frame.type, frame.queue) == (Type.QueueInfo, queue)
        return frame.payload

    def deliver(self, seconds: float = PATIENCE) -> Frame:
        """The next that is delivered. It is not acknowledged."""
        frame = self._delivered.popleft() if self._delivered else self.read(seconds)
        assert frame.type is Type.Deliver, frame
        return frame

    def ack(self, frame: Frame) -> None:
        self.write(Frame(Type.Ack, frame.id))

    def take(self, count: int) -> list[Json]:
        """So many payloads, acknowledged."""
        found = []
        for _ in range(count):
            frame = self.deliver()
            self.ack(frame)
            found.append(frame.payload)
        return found

    def gets_nothing(self) -> bool:
        try:
            self._delivered.append(self.deliver(NOTHING))
        except TimeoutError:
            return True
        return False
