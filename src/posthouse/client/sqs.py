"""Amazon SQS, over aiobotocore.

A lock is the visibility time-out of the queue. Sessions are groups of FIFO queues; SQS gives nobody
the messages of a chosen group, so a session is looked for among what it gives, and is held by the
messages of it that are under way.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from posthouse.client.asking import Asking
from posthouse.client.config import AwsSqsConfig
from posthouse.client.errors import (
    ConfigurationError,
    MessageNotFound,
    QueueError,
    QueueNotFound,
    SessionLocked,
    Unsupported,
    check_went,
    client_closed,
)
from posthouse.client.held import Held
from posthouse.client.messages import Message, ReceiptHandle, ReceivedMessage, utc_now
from posthouse.client.names import MessageId, QueueName, SessionId
from posthouse.client.provider import ProviderType, Settlement, Source, Transacting
from posthouse.client.secret import reveal
from posthouse.client.sqs_session import SqsSession
from posthouse.client.sqs_words import (
    RAISED,
    TYPE,
    Doing,
    Entry,
    entry_of,
    error_by_code,
    error_of,
    incoming,
    size_of,
)
from posthouse.client.under_way import UnderWay

if TYPE_CHECKING:
    from posthouse.client.sqs_admin import SqsAdmin

BATCH_MAX = 10
BATCH_BYTES_MAX = 256 << 10
LONG_POLL_S = 20
SHORT_POLL_S = 0.25  # between questions, where less than a second is left: SQS waits whole ones
CONNECTIONS_MAX = 50
QUEUES_MAX = 1_000  # that are remembered
KNOWN_S = 60.0  # for so long, as their properties may be changed
CLOSE_S = 5.0  # for what is still under way
REASON_CHARS_MAX = 4_096


class SqsQueue(NamedTuple):
    """A queue of SQS and its properties."""

    name: str
    url: str
    lock_s: int
    dead: str | None  # where its dead letters go
    asked: QueueName  # as the client calls it

    @property
    def fifo(self) -> bool:
        return self.name.endswith(".fifo")


class Taken(NamedTuple):
    """A message that was received, as it came and as it was told."""

    queue: SqsQueue
    raw: dict[str, Any]
    message: ReceivedMessage


class SqsProvider:
    """The whole of `Provider` as far as SQS goes."""

    def __init__(self, config: AwsSqsConfig) -> None:
        self._config = config
        self.held: Held[Taken] = Held(TYPE)
        self.sessions: dict[tuple[str, str], SqsSession] = {}  # held here, by queue and id
        self._under_way = UnderWay()
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._client: Any = None
        self._queues: dict[str, tuple[float, SqsQueue]] = {}
        self._closed = False

    @property
    def type(self) -> ProviderType:
        return TYPE

    async def open(self) -> None:
        await self._open()

    async def _open(self) -> Any:
        async with self._opening:
            if self._closed:
                raise client_closed()
            if self._client is None:
                config = self._config
                # What fails is tried again for every provider alike, not here.
                told = AioConfig(
                    retries={"total_max_attempts": 1}, max_pool_connections=CONNECTIONS_MAX,
                    connect_timeout=30, read_timeout=LONG_POLL_S + 10,
                )  # fmt: skip
                made = get_session().create_client(
                    "sqs", region_name=config.region, config=told,
                    aws_access_key_id=config.access_key_id or None,
                    aws_secret_access_key=reveal(config.secret_access_key) or None,
                    aws_session_token=reveal(config.session_token) or None,
                    endpoint_url=config.endpoint_url or None,
                )  # fmt: skip
                try:
                    self._client = await self._stack.enter_async_context(made)
                except RAISED as error:
                    raise error_of(error, Doing("connect")) from error
            return self._client

    async def close(self) -> None:
        self._closed = True
        for each in list(self.sessions.values()):
            await each.close()
        await self._under_way.settle_down(CLOSE_S)
        await self._stack.aclose()

    async def _ask(self, operation: str, doing: Doing, **form: Any) -> Any:
        """Raises QueueError."""
        client = self._client or await self._open()
        try:
            return await getattr(client, operation)(**form)
        except RAISED as error:
            found = error_of(error, doing)
            if isinstance(found, QueueNotFound):
                self._queues.clear()  # it may have been there until now
            raise found from error

    # Queues.

    async def _queue(self, queue: QueueName) -> SqsQueue:
        if queue.topic is not None:
            raise Unsupported(TYPE.value, "have subscriptions: it has no topics")
        name = f"{queue}.fifo" if self._config.use_fifo_queues else str(queue)
        return await self._named(name, queue)

    def forget_queues(self) -> None:
        """Their properties were changed."""
        self._queues.clear()

    async def _source(self, source: Source) -> SqsQueue:
        queue = await self._queue(source.queue)
        return await self._dead(queue) if source.dead_letter else queue

    async def _dead(self, queue: SqsQueue) -> SqsQueue:
        if queue.dead is None:
            raise ConfigurationError(
                "RedrivePolicy", f"of {queue.name} names no queue for dead letters"
            )
        return await self._named(queue.dead, queue.asked)

    async def _named(self, name: str, asked: QueueName) -> SqsQueue:
        now = time.monotonic()
        known = self._queues.get(name)
        if known is not None and now - known[0] < KNOWN_S:
            return known[1]
        doing = Doing("find the queue", str(asked))
        url = (await self._ask("get_queue_url", doing, QueueName=name))["QueueUrl"]
        wanted = ["VisibilityTimeout", "RedrivePolicy"]
        answer = await self._ask("get_queue_attributes", doing, QueueUrl=url, AttributeNames=wanted)
        given = answer.get("Attributes", {})
        policy = json.loads(given.get("RedrivePolicy") or "{}")
        dead = policy.get("deadLetterTargetArn", "").rpartition(":")[2] or None
        found = SqsQueue(name, url, int(given.get("VisibilityTimeout", 30)), dead, asked)
        if len(self._queues) >= QUEUES_MAX:
            self._queues.clear()
        self._queues[name] = now, found
        return found

    # Sending.

    async def send(self, queue: QueueName, messages: Sequence[Message]) -> list[MessageId]:
        to = await self._queue(queue)
        entries = [entry_of(each, fifo=to.fifo) for each in messages]
        ids = [each.message_id or MessageId() for each in messages]
        failures: dict[int, QueueError] = {}
        for places in _batches(entries):
            try:
                failures |= await self._send(to, {place: entries[place] for place in places})
            except QueueError as error:
                failures |= dict.fromkeys(places, error)
        check_went(failures, ids)
        return ids

    async def _send(self, to: SqsQueue, entries: dict[int, Entry]) -> dict[int, QueueError]:
        """Sends the entries and returns the errors of those that failed, by their places."""
        doing = Doing("send", to.asked)
        if len(entries) == 1:
            await self._ask("send_message", doing, QueueUrl=to.url, **next(iter(entries.values())))
            return {}
        form = [{"Id": str(place), **entry} for place, entry in entries.items()]
        answer = await self._ask("send_message_batch", doing, QueueUrl=to.url, Entries=form)
        return _failures(answer, doing)

    # Receiving.

    async def receive(self, source: Source, most: int, timeout: float) -> list[ReceivedMessage]:
        end = time.monotonic() + timeout
        queue = await self._source(source)
        while True:
            wait = min(LONG_POLL_S, max(0, int(end - time.monotonic())))
            asked = self._under_way.start(self._take(queue, most, wait, source.dead_letter))
            try:
                found = await asyncio.shield(asked)
            except asyncio.CancelledError:
                self._under_way.start(self._give_back(asked))
                raise
            left = end - time.monotonic()
            if found or left <= 0:
                return found
            if left < 1:
                await asyncio.sleep(min(left, SHORT_POLL_S))

    async def _take(
        self, queue: SqsQueue, most: int, wait: int, dead: bool
    ) -> list[ReceivedMessage]:
        answer = await self._ask(
            "receive_message", Doing("receive", queue.asked), QueueUrl=queue.url,
            MaxNumberOfMessages=self.held.room(min(most, BATCH_MAX)), WaitTimeSeconds=wait,
            AttributeNames=["All"], MessageAttributeNames=["All"],
        )  # fmt: skip
        until = utc_now() + timedelta(seconds=queue.lock_s)
        received: list[ReceivedMessage] = []
        for raw in answer.get("Messages", []):
            handle = f"{queue.name} {raw['ReceiptHandle']}"
            message = incoming(raw, handle, until, dead)
            self.held.put(handle, Taken(queue, raw, message), until)
            received.append(message)
        return received

    async def _give_back(self, asked: "asyncio.Future[list[ReceivedMessage]]") -> None:
        await asyncio.wait([asked])
        if not asked.cancelled() and asked.exception() is None:
            await self.give_back(asked.result())

    async def give_back(self, messages: Sequence[ReceivedMessage]) -> None:
        if messages:
            receipts = [each.receipt_handle for each in messages]
            await self.settle(receipts, Settlement("release"))

    def deliveries(self, source: Source, prefetch: int) -> Asking:
        """Nothing is fetched ahead: its time would run while nobody has it."""

        async def receive(most: int, timeout: float) -> list[ReceivedMessage]:
            return await self.receive(source, most, timeout)

        async def close() -> None:
            pass  # there is nothing that is not handed out

        return Asking(receive, close)

    # Settling.

    async def settle(self, receipts: Sequence[ReceiptHandle], how: Settlement) -> None:
        if how.ending == "defer":
            raise Unsupported(TYPE.value, "put messages aside")
        gone: QueueError | None = None
        by_queue: dict[SqsQueue, list[tuple[str, Taken]]] = {}
        left: dict[str, tuple[Taken, datetime]] = {}  # not settled, if it ends early
        for each in receipts:
            try:
                left[each.handle] = self.held.take(each.handle)
            except MessageNotFound as missing:
                gone = gone or missing
                continue
            taken = left[each.handle][0]
            by_queue.setdefault(taken.queue, []).append((each.handle, taken))
        try:
            for queue, found in by_queue.items():
                for first in range(0, len(found), BATCH_MAX):
                    some = found[first : first + BATCH_MAX]
                    if how.ending == "dead-letter":
                        await self._dead_letter(queue, some, how)
                    failures = await self._end(queue, some, how)
                    for place, (handle, _) in enumerate(some):
                        error = failures.get(place)
                        if error is None or not error.is_transient:
                            del left[handle]
                        gone = gone or error
        finally:
            for handle, (taken, until) in left.items():
                self.held.put(handle, taken, until)
        if gone is not None:
            raise gone

    async def _end(
        self, queue: SqsQueue, taken: Sequence[tuple[str, Taken]], how: Settlement
    ) -> dict[int, QueueError]:
        """Deleted, or visible at once; what failed by its place."""
        doing = Doing(how.ending, queue.asked, taken[0][0])
        form: list[Entry] = [
            {"Id": str(place), "ReceiptHandle": each.raw["ReceiptHandle"]}
            for place, (_, each) in enumerate(taken)
        ]
        operation = "delete_message_batch"
        if how.ending in ("abandon", "release"):
            operation = "change_message_visibility_batch"
            form = [{**each, "VisibilityTimeout": 0} for each in form]
        answer = await self._ask(operation, doing, QueueUrl=queue.url, Entries=form)
        return _failures(answer, doing)

    async def _dead_letter(
        self, queue: SqsQueue, taken: Sequence[tuple[str, Taken]], how: Settlement
    ) -> None:
        """They are in the other queue before they are deleted here: what fails leaves them here."""
        dead = await self._dead(queue)
        more = {"reason": how.reason or "", "from": queue.name}
        if how.description is not None:
            more["description"] = how.description
        more = {name: text[:REASON_CHARS_MAX] for name, text in more.items()}
        entries = {place: _copy(each, dead, more) for place, (_, each) in enumerate(taken)}
        for places in _batches(list(entries.values())):
            failures = await self._send(dead, {place: entries[place] for place in places})
            if failures:
                raise next(iter(failures.values()))

    async def renew(self, receipt: ReceiptHandle) -> datetime:
        taken = self.held.get(receipt.handle)
        queue = taken.queue
        await self._ask(
            "change_message_visibility", Doing("renew", queue.asked, receipt.handle),
            QueueUrl=queue.url, ReceiptHandle=taken.raw["ReceiptHandle"],
            VisibilityTimeout=queue.lock_s,
        )  # fmt: skip
        until = utc_now() + timedelta(seconds=queue.lock_s)
        self.held.extend(receipt.handle, until)
        return until

    async def resubmit(
        self, queue: QueueName, receipts: Sequence[ReceiptHandle], target: QueueName | None
    ) -> None:
        """First sent, then deleted: after a failure between them it is there twice, not lost."""
        dead = await self._dead(await self._queue(queue))
        to = await self._queue(target or queue)
        for each in receipts:
            taken = self.held.get(each.handle)
            if taken.queue.name != dead.name:
                raise MessageNotFound(each.handle)
            await self._send(to, {0: _copy(taken, to, {})})
            await self.settle([each], Settlement("complete"))

    # Sessions.

    async def accept_session(
        self, queue: QueueName, session_id: SessionId | None, timeout: float
    ) -> SqsSession | None:
        """One of which a message has come within the time."""
        if not self._config.use_fifo_queues:
            raise Unsupported(TYPE.value, "hold sessions without use_fifo_queues")
        found = await self._queue(queue)
        if session_id is not None:
            other = self.sessions.get((found.name, session_id))
            if other is not None and other.is_held():
                raise SessionLocked(session_id, other.expires_at)
        return await SqsSession.find(self, found, session_id, timeout)

    def admin(self) -> "SqsAdmin":
        from posthouse.client.sqs_admin import SqsAdmin

        return SqsAdmin(self, fifo=self._config.use_fifo_queues)

    # What SQS has not.

    async def schedule(
        self, queue: QueueName, messages: Sequence[Message], at: datetime
    ) -> list[int]:
        raise Unsupported(TYPE.value, "send at a moment, and take it back")

    async def cancel_scheduled(self, queue: QueueName, numbers: Sequence[int]) -> None:
        raise Unsupported(TYPE.value, "send at a moment, and take it back")

    async def receive_deferred(
        self, source: Source, numbers: Sequence[int]
    ) -> list[ReceivedMessage]:
        raise Unsupported(TYPE.value, "put messages aside")

    async def peek(self, source: Source, most: int, first: int) -> list[ReceivedMessage]:
        raise Unsupported(TYPE.value, "show messages without delivering them")

    def transaction(self) -> AbstractAsyncContextManager[Transacting]:
        raise Unsupported(TYPE.value, "do several things in one transaction")


def _batches(entries: Sequence[Entry]) -> list[list[int]]:
    """Places, so many together as one request takes."""
    batches: list[list[int]] = []
    size = 0
    for place, entry in enumerate(entries):
        more = size_of(entry)
        if not batches or len(batches[-1]) == BATCH_MAX or size + more > BATCH_BYTES_MAX:
            batches.append([])
            size = 0
        batches[-1].append(place)
        size += more
    return batches


def _failures(answer: Any, doing: Doing) -> dict[int, QueueError]:
    return {
        int(each["Id"]): error_by_code(
            each["Code"], each.get("Message", ""), not each.get("SenderFault"), doing
        )
        for each in answer.get("Failed", [])
    }


def _copy(taken: Taken, to: SqsQueue, more: dict[str, str]) -> Entry:
    """Returns a copy for another queue. FIFO queues deduplicate it by its original id."""
    entry = entry_of(taken.message.message(), fifo=to.fifo, more=more)
    if to.fifo:
        entry["MessageDeduplicationId"] = taken.raw["MessageId"]
    return entry
