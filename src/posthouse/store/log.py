"""A replicated log, as a journal needs it: it numbers messages, and compares before it appends."""

import secrets
from typing import Protocol

Message = tuple[int, bytes]  # its sequence, and what it holds


class Unanswered(Exception):
    """The log has not answered in time, or cannot be reached. It may have done it all the same."""


class Log(Protocol):
    """A log on several machines. Messages are numbered from 1 on, without gaps but at the front."""

    @property
    def identity(self) -> str:
        """Tells this log from one of the same name that was made anew."""

    @property
    def end(self) -> int:
        """The sequence of the last message when the log was opened."""

    @property
    def size_bytes(self) -> int:
        """The bytes that it holds, about; known to who publishes or has asked for `measure`."""

    @property
    def bytes_max(self) -> int:
        """The bytes that it may hold."""

    @property
    def is_full(self) -> bool:
        """Whether it has refused a message because it holds as much as it may."""

    async def measure(self) -> None:
        """Asks for its size. Raises Unanswered."""

    async def publish(self, expected: int, data: bytes) -> int | None:
        """Appends a message if the last one is `expected`; returns its sequence, or None.

        When it returns, the message is on the disks of most machines. Raises Unanswered.
        """

    async def read(self, after: int) -> list[Message]:
        """Some messages behind a sequence, in order; none where no more are known.

        It may be of a while ago. Where the next ones were purged, before or meanwhile, it goes on
        at the first that is there; nothing else is left out. Raises Unanswered.
        """

    async def purge(self, before: int) -> None:
        """Messages before a sequence may go. Raises Unanswered."""

    async def close(self) -> None: ...


class MemoryLog:
    """A log in this process, for tests: of one machine, and as durable as the object."""

    def __init__(self, bytes_max: int = 1 << 40) -> None:
        self.first = 1
        self.messages: list[bytes] = []
        self.identity = secrets.token_hex(8)
        self.bytes_max = bytes_max
        self.is_full = False

    @property
    def end(self) -> int:
        return self.first + len(self.messages) - 1

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.messages))

    async def measure(self) -> None: ...

    async def publish(self, expected: int, data: bytes) -> int | None:
        if expected != self.end:
            return None
        self.is_full = self.size_bytes + len(data) > self.bytes_max
        if self.is_full:
            raise Unanswered("it holds as much as it may")
        self.messages.append(data)
        return expected + 1

    async def read(self, after: int) -> list[Message]:
        begin = max(after + 1, self.first)
        return list(enumerate(self.messages[begin - self.first :], begin))

    async def purge(self, before: int) -> None:
        count = min(max(0, before - self.first), len(self.messages))
        self.messages = self.messages[count:]
        self.first += count

    async def close(self) -> None: ...
