"""A client of PyQueue as its users would write one: WORD SP LENGTH SP PAYLOAD, both ways."""

import json
import socket
import struct
from types import TracebackType
from typing import Any, NamedTuple

from tests.server.running import Running

Json = Any
PATIENCE = 20  # seconds


class Answer(NamedTuple):
    word: str
    payload: bytes

    @property
    def text(self) -> str:
        return self.payload.decode()

    @property
    def json(self) -> Json:
        return json.loads(self.payload)


def frame(word: str, payload: bytes | str | Json = b"") -> bytes:
    data = _bytes(payload)
    return b"%s %d %s" % (word.encode(), len(data), data)


def fixed_frame(word: str, payload: bytes | str | Json = b"") -> bytes:
    """As the design document has it: the length is four bytes in network order."""
    data = _bytes(payload)
    return b"%s %s%s" % (word.encode(), struct.pack(">I", len(data)), data)


def _bytes(payload: Json) -> bytes:
    if isinstance(payload, bytes):
        return payload
    return (payload if isinstance(payload, str) else json.dumps(payload)).encode()


class Client:
    """One connection. Bytes that came behind an answer are kept for the next one."""

    def __init__(self, broker: Running) -> None:
        self.socket = socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE)
        self._come = b""

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

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self) -> Answer:
        word = self._until_space()
        length = self._until_space()
        assert length.isdigit(), (word, length)
        return Answer(word.decode("ascii"), self._take(int(length)))

    def read_fixed(self) -> Answer:
        word = self._until_space()
        (length,) = struct.unpack(">I", self._take(4))
        return Answer(word.decode("ascii"), self._take(length))

    def is_ended(self) -> bool:
        """The broker has closed, and has said nothing more."""
        try:
            return not self._come and self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _until_space(self) -> bytes:
        while b" " not in self._come:
            self._more()
        found, _, self._come = self._come.partition(b" ")
        return found

    def _take(self, count: int) -> bytes:
        while len(self._come) < count:
            self._more()
        found, self._come = self._come[:count], self._come[count:]
        return found

    def _more(self) -> None:
        data = self.socket.recv(65_536)
        if not data:
            raise EOFError(self._come)
        self._come += data

    # Requests.

    def ask(self, word: str, payload: bytes | str | Json = b"") -> Answer:
        self.write(frame(word, payload))
        return self.read()

    def ok(self, word: str, payload: bytes | str | Json = b"") -> Answer:
        answer = self.ask(word, payload)
        assert answer.word == "OK", answer
        return answer

    def error(self, word: str, payload: bytes | str | Json = b"") -> str:
        answer = self.ask(word, payload)
        assert answer.word == "ERROR", answer
        return answer.text

    def push(
        self, payload: str, queue: str = "default", priority: str = "NORMAL", **more: Json
    ) -> str:
        form = {"payload": payload, "priority": priority, "queue": queue, **more}
        return self.ok("PUSH", form).text

    def pull(self, queue: str = "default") -> Json:
        """A job, or nothing."""
        answer = self.ask("PULL", {"queue": queue})
        if answer == ("NO_JOB", b""):
            return None
        assert answer.word == "JOB", answer
        return answer.json

    def drain(self, queue: str = "default") -> list[str]:
        """What is there, in order, acknowledged."""
        found = []
        while job := self.pull(queue):
            assert self.ok("ACK", job["task_id"]).text == "Task acknowledged"
            found.append(job["payload"])
        return found

    def nack(self, task: str, error: str = "it failed") -> str:
        return self.ok("NACK", {"task_id": task, "error": error}).text

    def stats(self) -> Json:
        answer = self.ask("STATS")
        assert answer.word == "STATS", answer
        return answer.json

    def status(self, task: str) -> str | None:
        """As the list of tasks has it; nothing where it is not in it."""
        tasks = self.ok("ADMIN_LIST_TASKS", {"status": "all"}).json["tasks"]
        found: dict[str, str] = {
            each.get("task_id") or each["id"]: each["status"] for each in tasks
        }
        return found.get(task)
