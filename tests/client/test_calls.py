"""What the client does around a provider: batches in part, what cannot be read, settings."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import pytest

from posthouse import (
    BatchTooLarge,
    ConnectionFailed,
    Encryption,
    FixedRetry,
    InMemoryConfig,
    Message,
    MessageId,
    MessageTooLarge,
    PartialFailure,
    PlaintextRefused,
    QueueClient,
    QueueConfig,
    QueueError,
    QueueName,
    Unsupported,
    ValidationError,
)
from posthouse.client.memory import InMemoryProvider
from posthouse.client.wrapping import Wrapping

MEMORY = InMemoryConfig(auto_create=True)
LOST = ConnectionFailed("gone")
TRY_AGAIN = FixedRetry(3, 0.0)


class Partly(InMemoryProvider):
    """Of every batch it takes the first, and fails with the others as it is told."""

    def __init__(self, *errors: QueueError | None) -> None:
        super().__init__(MEMORY)
        self._errors = list(errors)
        self.asked: list[list[bytes]] = []

    async def send(self, queue: QueueName, messages: Sequence[Message]) -> list[MessageId]:
        self.asked.append([each.body for each in messages])
        error = self._errors.pop(0) if self._errors else None
        if error is None:
            return await super().send(queue, messages)
        if isinstance(error, ConnectionFailed) and len(self.asked) > 2:
            raise error
        [first] = await super().send(queue, messages[:1])
        raise PartialFailure(dict.fromkeys(range(1, len(messages)), error), {0: first})


def run(
    work: Callable[[QueueClient], Awaitable[None]],
    provider: InMemoryProvider | None = None,
    config: QueueConfig | None = None,
    wrapping: Wrapping | None = None,
) -> None:
    async def main() -> None:
        used = config or QueueConfig(MEMORY, default_timeout=0.0, breaker_failures=0)
        client = QueueClient(
            provider or InMemoryProvider(MEMORY), used, retry=TRY_AGAIN,
            wrapping=wrapping or Wrapping(),
        )  # fmt: skip
        async with client:
            await work(client)

    asyncio.run(main())


def bodies(text: str) -> list[Message]:
    return [Message(each.encode()) for each in text]


def test_of_a_batch_of_which_some_went_only_the_others_are_sent_again() -> None:
    provider = Partly(LOST, LOST)

    async def work(client: QueueClient) -> None:
        ids = await client.send_messages("orders", bodies("abcd"))
        assert provider.asked == [[b"a", b"b", b"c", b"d"], [b"b", b"c", b"d"], [b"c", b"d"]]
        received = await client.receive_messages("orders", 9)
        assert [each.body for each in received] == [b"a", b"b", b"c", b"d"]
        assert [each.message_id for each in received] == ids

    run(work, provider)


def test_what_cannot_go_at_all_is_told_by_its_place() -> None:
    provider = Partly(LOST, MessageTooLarge(2, 1))

    async def work(client: QueueClient) -> None:
        with pytest.raises(PartialFailure) as caught:
            await client.send_messages("orders", bodies("abcd"))
        assert caught.value.failures.keys() == {2, 3}
        assert caught.value.ids.keys() == {0, 1}
        assert len(provider.asked) == 2

    run(work, provider)


def test_an_outage_after_some_went_tells_which() -> None:
    provider = Partly(*[LOST] * 99)
    config = QueueConfig(MEMORY, operation_timeout=0.3)

    async def work(client: QueueClient) -> None:
        with pytest.raises(PartialFailure) as caught:
            await client.send_messages("orders", bodies("abcd"))
        assert caught.value.failures == {2: LOST, 3: LOST}
        assert f"To send was tried {len(provider.asked)} times" in str(caught.value)

    run(work, provider, config)


class Forgetful(InMemoryProvider):
    """It settles nothing, but for those who hold a session."""

    async def settle(self, receipts: object, how: object) -> None:
        raise LOST


def test_a_session_gives_back_what_cannot_be_read() -> None:
    keys = Encryption({"k": bytes(32)})

    async def work(client: QueueClient) -> None:
        encrypted = client._wrapping.wrap(Message(b"good").with_session_id("s"))
        plain = Message(b"plain").with_session_id("s")
        await client._provider.send(QueueName("orders"), [_with_id(plain), encrypted])
        session = await client.accept_session("orders", "s")
        assert session is not None
        [received] = await session.receive_messages(2)
        assert received.body == b"good"
        with pytest.raises(PlaintextRefused):  # there again, since it was given back
            await session.receive_message()
        assert client.figures.messages["rejected"] == 2

    run(work, Forgetful(MEMORY), wrapping=Wrapping(encryption=keys))


def test_what_cannot_be_given_back_does_not_lose_the_others() -> None:
    keys = Encryption({"k": bytes(32)})

    async def work(client: QueueClient) -> None:
        encrypted = client._wrapping.wrap(Message(b"good"))
        await client._provider.send(QueueName("orders"), [_with_id(Message(b"plain")), encrypted])
        [received] = await client.receive_messages("orders", 2)
        assert received.body == b"good"

    run(work, Forgetful(MEMORY), wrapping=Wrapping(encryption=keys))


def _with_id(message: Message) -> Message:
    return message.with_message_id("m")


def test_dead_letters_can_be_off_everywhere() -> None:
    async def work(client: QueueClient) -> None:
        await client.send_message("orders", Message(b"x"))
        await client.send_message("sessions", Message(b"x").with_session_id("s"))
        received = await client.receive_message("orders")
        session = await client.accept_session("sessions", "s")
        assert received is not None
        assert session is not None
        other = await session.receive_message()
        assert other is not None
        with pytest.raises(Unsupported):
            await client.dead_letter_message(received, "bad")
        with pytest.raises(Unsupported):
            await session.dead_letter_message(other, "bad")
        with pytest.raises(Unsupported):
            async with client.transaction() as together:
                await together.dead_letter_message(received, "bad")
        await client.complete_message(received)

    run(work, config=QueueConfig(MEMORY, default_timeout=0.0, enable_dead_letter=False))


def test_numbers_of_messages_are_checked_before_anything_is_asked() -> None:
    async def work(client: QueueClient) -> None:
        await client.send_message("sessions", Message(b"x").with_session_id("s"))
        session = await client.accept_session("sessions", "s")
        assert session is not None
        for asking in (
            client.receive_messages("orders", 0),
            client.peek_messages("orders", 0),
            session.receive_messages(0),
        ):
            with pytest.raises(ValidationError, match="number of messages"):
                await asking
        with pytest.raises(BatchTooLarge):
            await client.send_messages("orders", [Message(b"x")] * 10_001)
        assert await client.send_messages("orders", []) == []

    run(work)


def test_logs_name_queue_and_operation_and_show_no_body(caplog: pytest.LogCaptureFixture) -> None:
    provider = Partly(LOST)

    async def work(client: QueueClient) -> None:
        await client.send_messages("orders", [Message(b"canary"), Message(b"canary")])

    with caplog.at_level(logging.DEBUG, "posthouse.client"):
        run(work, provider)
    [record] = caplog.records
    assert (vars(record)["queue"], vars(record)["operation"]) == ("orders", "send")
    assert "canary" not in caplog.text
