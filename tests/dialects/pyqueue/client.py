"""A PyQueue client of our own, which builds its bytes by hand."""

import json
import socket
import ssl
from typing import Any, NamedTuple

Json = Any


class Reply(NamedTuple):
    word: str
    payload: bytes

    @property
    def text(self) -> str:
        return self.payload.decode()

    @property
    def json(self) -> Json:
        return json.loads(self.payload)


def frame(word: str, payload: Json = b"") -> bytes:
    data = payload if isinstance(payload, bytes) else str(payload).encode()
    if isinstance(payload, dict):
        data = json.dumps(payload).encode()
    return b"%s %d %s" % (word.encode(), len(data), data)


def binary_frame(word: str, payload: bytes = b"") -> bytes:
    return word.encode() + b" " + len(payload).to_bytes(4, "big") + payload


class Client:
    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.socket: socket.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self._data = b""

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def _until(self, count: int) -> None:
        while len(self._data) < count:
            more = self.socket.recv(1 << 16)
            if not more:
                raise EOFError(self._data)
            self._data += more

    def read(self) -> Reply:
        """The next frame, whose length is in decimal. Raises EOFError."""
        while self._data.count(b" ") < 2:
            self._until(len(self._data) + 1)
        word, length, _ = self._data.split(b" ", 2)
        begin = len(word) + len(length) + 2
        end = begin + int(length)
        self._until(end)
        payload, self._data = self._data[begin:end], self._data[end:]
        return Reply(word.decode(), payload)

    def read_binary(self) -> Reply:
        while b" " not in self._data:
            self._until(len(self._data) + 1)
        begin = self._data.index(b" ") + 1
        self._until(begin + 4)
        end = begin + 4 + int.from_bytes(self._data[begin : begin + 4], "big")
        self._until(end)
        word, payload = self._data[: begin - 1], self._data[begin + 4 : end]
        self._data = self._data[end:]
        return Reply(word.decode(), payload)

    def is_closed(self) -> bool:
        """By the other side, and nothing more was said."""
        if self._data:
            return False
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def call(self, word: str, payload: Json = b"") -> Reply:
        self.send(frame(word, payload))
        return self.read()

    def ok(self, word: str, payload: Json = b"") -> Json:
        """What it is told, in JSON or as it is."""
        reply = self.call(word, payload)
        assert reply.word in ("OK", "STATS"), reply
        return reply.json if reply.payload[:1] == b"{" else reply.text

    def error(self, word: str, payload: Json = b"") -> str:
        reply = self.call(word, payload)
        assert reply.word == "ERROR", reply
        return reply.text

    def push(self, payload: str, **fields: Json) -> str:
        id: str = self.ok("PUSH", {"payload": payload, **fields})
        return id

    def pull(self, queue: str = "default") -> Json:
        """A job; None where there is none."""
        reply = self.call("PULL", {"queue": queue})
        assert reply.word in ("JOB", "NO_JOB"), reply
        return reply.json if reply.word == "JOB" else None

    def work_off(self, queue: str = "default") -> list[str]:
        """Pulls and acknowledges everything; the payloads in their order."""
        found = []
        while (job := self.pull(queue)) is not None:
            found.append(job["payload"])
            assert self.ok("ACK", job["task_id"]) == "Task acknowledged"
        return found
