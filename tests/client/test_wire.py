"""What goes over the wire to a real broker, and what is given back."""

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

import posthouse
from posthouse import Message, MessageId, QueueClient, SessionId
from posthouse.amqp.runs import Alike
from posthouse.amqp.types import Malformed
from posthouse.client.wire.messages import Messages, Place, read, write
from tests.client.proxy import Proxy
from tests.server.running import Running, development
from tests.waiting import turn

KEY = "RootManageSharedAccessKey:SAS_KEY_VALUE"
PLACE = Place("qorders", False)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with development(tmp_path_factory.mktemp("wire") / "data") as running:
        yield running


def with_client(broker: Running, work: Callable[[QueueClient], Awaitable[None]]) -> None:
    async def run() -> None:
        async with posthouse.create_client(f"posthouse://{KEY}@127.0.0.1:{broker.port}") as client:
            await work(client)

    asyncio.run(run())


def test_what_a_receiver_has_fetched_ahead_goes_back_uncounted(broker: Running) -> None:
    async def work(client: QueueClient) -> None:
        await client.send_messages("ahead", [Message(b"%d" % n) for n in range(20)])
        async with client.receiver("ahead", prefetch=20) as receiver:
            [first] = await receiver.next_batch(1)
            await client.complete_message(first)
        left = await client.receive_messages("ahead", 100, 2)
        assert [each.body for each in left] == [b"%d" % n for n in range(1, 20)]
        assert {each.delivery_count for each in left} == {1}

    with_client(broker, work)


def test_what_comes_to_who_has_stopped_waiting_goes_back(broker: Running) -> None:
    async def work(client: QueueClient) -> None:
        await client.send_message("left", Message(b"first"))
        got = await client.receive_message("left", 2)
        assert got is not None
        await client.complete_message(got)
        for number in range(10):
            waiting = asyncio.create_task(client.receive_message("left", 30))
            sending = asyncio.create_task(client.send_message("left", Message(b"%d" % number)))
            await turn()  # both have begun
            waiting.cancel()
            await sending
            with pytest.raises(asyncio.CancelledError):
                await waiting
            got = await client.receive_message("left", 2)
            assert got is not None
            assert (got.body, got.delivery_count) == (b"%d" % number, 1)
            await client.complete_message(got)

    with_client(broker, work)


def test_many_wait_at_the_same_queue_and_each_gets_one(broker: Running) -> None:
    async def work(client: QueueClient) -> None:
        waiting = [asyncio.create_task(client.receive_message("many", 10)) for _ in range(50)]
        await asyncio.to_thread(broker.until_idle)
        await client.send_messages("many", [Message(b"%d" % n) for n in range(50)])
        got = [each for each in await asyncio.gather(*waiting) if each is not None]
        assert sorted(int(each.body) for each in got) == list(range(50))
        await client.complete_messages(got)
        assert await client.receive_messages("many", 10, 0.05) == []

    with_client(broker, work)


def test_more_than_there_is_credit_for_goes_in_the_end(broker: Running) -> None:
    async def work(client: QueueClient) -> None:
        batches = [[Message(b"x" * 100)] * 2_000 for _ in range(5)]
        sent = await asyncio.gather(*(client.send_messages("lots", each) for each in batches))
        assert sum(map(len, sent)) == 10_000
        got = 0
        async with client.receiver("lots", prefetch=500) as receiver:
            while got < 10_000:
                batch = await receiver.next_batch(500)
                got += len(batch)
                await client.complete_messages(batch)

    with_client(broker, work)


def test_a_receipt_of_another_connection_can_be_settled(broker: Running) -> None:
    async def work(client: QueueClient) -> None:
        await client.send_messages("other", [Message(b"1"), Message(b"2")])
        first, second = await client.receive_messages("other", 2, 2)

        async def elsewhere(other: QueueClient) -> None:
            assert await other.renew_message_lock(first) > datetime.now(UTC)
            await other.complete_message(first)
            await other.dead_letter_message(second, "why", "because")
            with pytest.raises(posthouse.MessageNotFound):
                await other.complete_message(first)

        async with posthouse.create_client(f"posthouse://{KEY}@127.0.0.1:{broker.port}") as other:
            await elsewhere(other)
        [dead] = await client.receive_messages("other", 2, 1, dead_letter=True)
        assert (dead.dead_letter_reason, dead.dead_letter_description) == ("why", "because")
        await client.complete_message(dead)

    with_client(broker, work)


def test_a_message_that_is_too_large_says_both_sizes(broker: Running) -> None:
    async def work(client: QueueClient) -> None:
        with pytest.raises(posthouse.MessageTooLarge) as refused:
            await client.send_message("large", Message(bytes(2 << 20)))
        assert refused.value.size > 2 << 20
        assert refused.value.max_size == 1 << 20

    with_client(broker, work)


def test_a_namespace_is_named_by_the_url(broker: Running) -> None:
    async def run() -> None:
        url = f"posthouse://{KEY}@127.0.0.1:{broker.port}"
        async with (
            posthouse.create_client(f"{url}/one") as one,
            posthouse.create_client(f"{url}/two") as two,
        ):
            await one.send_message("same", Message(b"1"))
            assert await two.receive_message("same", 0.05) is None
            got = await one.receive_message("same", 2)
            assert got is not None

    asyncio.run(run())


def test_a_queue_that_is_not_there_is_named(tmp_path: Path) -> None:
    from tests.server.running import running

    async def run(port: int) -> None:
        async with posthouse.create_client(f"posthouse://{KEY}@127.0.0.1:{port}") as client:
            for asked in (
                client.send_message("nowhere", Message(b"")),
                client.receive_message("nowhere", 1),
                client.peek_messages("nowhere"),
            ):
                with pytest.raises(posthouse.QueueNotFound) as refused:
                    await asked
                assert refused.value.queue_name == "nowhere"

    with running("--dev", "--memory") as broker:
        asyncio.run(run(broker.port))


# Reading.

TEXT = st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1, max_size=20)


@st.composite
def deliveries(draw: st.DrawFn) -> list[tuple[bytes, bytes]]:
    """As the broker writes them: some alike, some not."""
    found = []
    for number in range(draw(st.integers(1, 6))):
        message = Message(
            draw(st.sampled_from([b"", b"a", b"b" * 255, b"c" * 256, b"d" * 70_000])),
            draw(st.sampled_from([{}, {"a": "b"}, {"a": "c", "DeadLetterReason": "r"}])),
            draw(st.sampled_from([None, SessionId("s")])),
            draw(st.none() | TEXT),
            message_id=MessageId(draw(st.sampled_from(["x" * 36, "y" * 36, "z"]))),
        )
        sections = write(message)
        count = draw(st.sampled_from([0, 1]))
        found.append((_delivered(sections, count, number), number.to_bytes(16, "big")))
    return found


def _delivered(payload: bytes, count: int, number: int) -> bytes:
    from posthouse.amqp.encode import described, encode, encode_list, encode_map
    from posthouse.amqp.types import Symbol, Timestamp, UInt
    from posthouse.client.wire.messages import ANNOTATIONS, DELIVERY_ANNOTATIONS, HEADER

    null = b"\x40"
    header = described(HEADER, encode_list((null, null, null, null, encode(UInt(count)))))
    marks = {
        "x-opt-enqueued-time": b"\x83" + (1_700_000_000_000 + number).to_bytes(8, "big"),
        "x-opt-sequence-number": b"\x81" + (300 + number).to_bytes(8, "big"),
        "x-opt-locked-until": encode(Timestamp(1_700_000_060_000 + number)),
    }
    pairs = b"".join(encode(Symbol(name)) + value for name, value in marks.items())
    lock = {Symbol("x-opt-lock-token"): UUID(int=number)}
    return b"".join(
        (
            header, described(DELIVERY_ANNOTATIONS, encode(lock)),
            described(ANNOTATIONS, encode_map(6, pairs)), payload,
        )
    )  # fmt: skip


@given(deliveries())
def test_messages_that_are_read_alike_are_as_if_read_one_by_one(
    given: list[tuple[bytes, bytes]],
) -> None:
    payloads, tags = [each for each, _ in given], [tag for _, tag in given]
    alike = Messages(PLACE, 7).read_all(payloads, tags, range(len(tags)))
    now = alike[0].delivered_at
    assert alike == [read(payload, tag, now, PLACE) for payload, tag in given]


@given(deliveries(), st.integers(2, 9), st.lists(st.tuples(st.integers(0, 1 << 20), st.binary(
    min_size=1, max_size=1)), max_size=1))  # fmt: skip
def test_messages_of_one_size_are_as_if_read_one_by_one(
    given: list[tuple[bytes, bytes]], count: int, changed: list[tuple[int, bytes]]
) -> None:
    """As they come out of one read, also where one differs from the rest in any byte."""
    [(first, tag), *_] = given
    whole = bytearray(first * count)
    for at, value in changed:
        whole[at % len(whole)] = value[0]
    payloads, tags = Alike(memoryview(bytes(whole)), 0, len(first)), [tag] * count
    messages = Messages(PLACE, 7)
    messages.read_all([first], [tag], [0])
    try:
        found = messages.read_all(payloads, tags, range(1, count + 1))
    except Malformed:
        with pytest.raises(Malformed):
            [read(each, tag, datetime.now(UTC), PLACE) for each in payloads]
    else:
        now = found[0].delivered_at
        assert found == [read(each, tag, now, PLACE) for each in payloads]


@given(deliveries())
def test_what_is_alike_is_seldom_read_in_full(given: list[tuple[bytes, bytes]]) -> None:
    [(payload, tag), *_] = given
    messages = Messages(PLACE, 7)
    first = messages.read_all([payload], [tag], [0])[0]
    if first.dead_letter_reason is None and first.body:
        now = first.delivered_at + timedelta(seconds=1)
        assert messages._read_alike(payload, tag, 1, now) is not None


def test_of_a_brokers_deliveries_only_the_first_is_read_in_full(
    broker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the broker adds to a message, as its lock token, must not make each one uncommon."""
    in_full: list[bytes] = []

    def reading(payload: bytes, *more: Any) -> posthouse.ReceivedMessage:
        in_full.append(payload)
        return read(payload, *more)

    monkeypatch.setattr("posthouse.client.wire.messages.read", reading)

    async def work(client: QueueClient) -> None:
        await client.send_messages("alike", [Message(b"x" * 1_000) for _ in range(100)])
        async with client.receiver("alike", prefetch=100) as receiver:
            count = 0
            while count < 100:
                count += len(await receiver.next_batch(100))
        assert len(in_full) < 5

    with_client(broker, work)


def test_a_receipt_serves_in_another_process_too(broker: Running) -> None:
    async def work(client: QueueClient) -> None:
        await client.send_messages("pickled", [Message(b"a"), Message(b"b")])
        found: list[posthouse.ReceivedMessage] = []
        while len(found) < 2:
            found += await client.receive_messages("pickled", 2, 5)
        one, other = (pickle.loads(pickle.dumps(each)) for each in found)
        assert one == found[0]
        await client.complete_messages([one.receipt_handle, other])
        with pytest.raises(posthouse.MessageNotFound):
            await client.complete_message(found[0])

    with_client(broker, work)


def test_a_session_that_was_closed_is_free(broker: Running) -> None:
    async def work(client: QueueClient) -> None:
        proxy = await Proxy.open(broker.port)
        url = f"posthouse://{KEY}@127.0.0.1:{proxy.port}"
        async with posthouse.create_client(url) as far:
            await far.send_message("closed", Message(b"x").with_session_id("s"))
            session = await far.accept_session("closed", "s", 5)
            assert session is not None
            proxy.late_s = 0.1
            await session.close_session()
            other = await client.accept_session("closed", "s", 5)
            assert other is not None
            await other.close_session()
            proxy.late_s = 0.0
        await proxy.close()

    with_client(broker, work)
