"""A session of SQS: a group of a FIFO queue, whose messages are with one who receives them.

While a message of a group is under way, SQS gives nobody the next ones. So long a session is held,
and no longer: between the last message that was settled and the next that is received, another
client may have the group. Inside one client a session has one holder, for the queue's visibility
time-out since it last received or renewed.

What comes of other groups while one is looked for is kept until the call ends, and then given back;
SQS counts that as a delivery.
"""

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from posthouse.client.errors import MessageNotFound, SessionLockLost, Unsupported
from posthouse.client.messages import ReceiptHandle, ReceivedMessage, utc_now
from posthouse.client.names import SessionId
from posthouse.client.provider import Settlement, Source

if TYPE_CHECKING:
    from posthouse.client.sqs import SqsProvider, SqsQueue

FOREIGN_MAX = 100  # messages of other groups that are kept at a time
_MOST = 10  # in one answer


class SqsSession:
    def __init__(
        self,
        provider: "SqsProvider",
        queue: "SqsQueue",
        session_id: SessionId,
        first: list[ReceivedMessage],
    ) -> None:
        self._provider = provider
        self._queue = queue
        self._id = session_id
        self._ahead = first  # received, and not handed out
        self._open: dict[str, ReceivedMessage] = {}  # handed out, and not settled
        self._settled = asyncio.Event()
        self._until = self._from_now()
        provider.sessions[queue.name, session_id] = self

    @classmethod
    async def find(
        cls,
        provider: "SqsProvider",
        queue: "SqsQueue",
        session_id: SessionId | None,
        timeout: float,
    ) -> "SqsSession | None":
        found = await _look(provider, queue, session_id, timeout)
        if not found:
            return None
        id = found[0].session_id
        assert id is not None
        return cls(provider, queue, id, found)

    @property
    def session_id(self) -> SessionId:
        return self._id

    @property
    def expires_at(self) -> datetime:
        return self._until

    def is_held(self) -> bool:
        mine = self._provider.sessions.get((self._queue.name, self._id)) is self
        return mine and utc_now() < self._until

    def _from_now(self) -> datetime:
        return utc_now() + timedelta(seconds=self._queue.lock_s)

    def _check(self) -> None:
        if not self.is_held():
            raise SessionLockLost(self._id)

    def add(self, messages: Sequence[ReceivedMessage]) -> None:
        """Adds messages that arrived while another session was looked for."""
        self._ahead += messages

    async def receive(self, most: int, timeout: float) -> list[ReceivedMessage]:
        self._check()
        end = time.monotonic() + timeout
        while self._open and not self._ahead:  # SQS gives the next when these are settled
            self._settled.clear()
            try:
                async with asyncio.timeout_at(
                    asyncio.get_running_loop().time() + end - time.monotonic()
                ):
                    await self._settled.wait()
            except TimeoutError:
                return []
        if not self._ahead:
            left = max(0.0, end - time.monotonic())
            self._ahead += await _look(self._provider, self._queue, self._id, left)
            if self._ahead:
                self._until = self._from_now()
        some, self._ahead = self._ahead[:most], self._ahead[most:]
        self._open |= {each.receipt_handle.handle: each for each in some}
        return some

    async def settle(self, receipts: Sequence[ReceiptHandle], how: Settlement) -> None:
        self._check()
        try:
            await self._provider.settle(receipts, how)
        finally:
            for each in receipts:
                if not self._provider.held.knows(each.handle):
                    self._open.pop(each.handle, None)
            self._settled.set()

    async def renew(self) -> datetime:
        self._check()
        under_way = [*self._open.values(), *self._ahead]
        try:
            for each in under_way:
                await self._provider.renew(each.receipt_handle)
        except MessageNotFound as lost:
            raise SessionLockLost(self._id) from lost
        self._until = self._from_now()
        return self._until

    async def get_state(self) -> bytes | None:
        raise Unsupported(self._provider.type.value, "keep a state with a session")

    async def set_state(self, state: bytes | None) -> None:
        raise Unsupported(self._provider.type.value, "keep a state with a session")

    async def close(self) -> None:
        """Closes the session, and makes its unsettled messages visible again."""
        key = self._queue.name, self._id
        if self._provider.sessions.get(key) is self:
            del self._provider.sessions[key]
        back = [*self._open.values(), *self._ahead]
        self._open, self._ahead = {}, []
        await self._provider.give_back(
            [each for each in back if self._provider.held.knows(each.receipt_handle.handle)]
        )


async def _look(
    provider: "SqsProvider", queue: "SqsQueue", wanted: SessionId | None, timeout: float
) -> list[ReceivedMessage]:
    """Messages of that session, or of one that nobody here has."""
    end = time.monotonic() + timeout
    foreign: list[ReceivedMessage] = []
    try:
        while True:
            left = max(0.0, end - time.monotonic())
            came = await provider.receive(Source(queue.asked), _MOST, left)
            mine: list[ReceivedMessage] = []
            chosen = wanted
            for each in came:
                id = each.session_id
                other = None if id is None else provider.sessions.get((queue.name, id))
                if id is not None and id == chosen:
                    mine.append(each)
                elif other is not None and other.is_held():
                    other.add([each])
                elif id is not None and chosen is None:
                    chosen = id
                    mine.append(each)
                else:
                    foreign.append(each)
            if mine or not came or len(foreign) >= FOREIGN_MAX:
                return mine
    finally:
        if foreign:
            await asyncio.shield(provider.give_back(foreign))
