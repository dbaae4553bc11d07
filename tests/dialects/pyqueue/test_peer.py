"""One connection: order of answers, limits, time, workers. With an engine in memory."""

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.broker.access import BROKER
from posthouse.broker.throttle import Buckets
from posthouse.core.commands import CreateQueue, Peek, Peeked, Send
from posthouse.core.errors import REFUSALS
from posthouse.core.message import Envelope, NewMessage, decode_envelope, encode_envelope
from posthouse.core.model import QueueProperties
from posthouse.dialects.pyqueue import peer as peers
from posthouse.dialects.pyqueue.codec import FRAME_BYTES_MAX, Frame, encode
from posthouse.dialects.pyqueue.refusals import CODES
from tests.dialects.pyqueue.client import frame
from tests.dialects.pyqueue.rig import START_MS, Client, Rig
from tests.inside import state_of


def with_rig(work: Callable[[Rig], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with await Rig.open(**settings) as rig:
            await work(rig)

    asyncio.run(run())


def test_every_refusal_has_words() -> None:
    assert set(CODES) == set(REFUSALS)


# The order of answers.


def test_pipelined_requests_are_answered_in_their_order() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        asked = [
            frame("PUSH", {"payload": "1", "queue": "q"}), frame("PING"), frame("BEGIN_TX"),
            frame("PULL", {"queue": "q"}), frame("FOO"), frame("STATS"), frame("PULL"),
        ]  # fmt: skip
        answers = await client.say(b"".join(asked))
        said = [each.word for each in answers]
        assert said == [b"OK", b"OK", b"OK", b"JOB", b"ERROR", b"STATS", b"NO_JOB"]

    with_rig(work)


def test_frames_that_are_left_when_a_connection_is_lost_are_not_looked_at() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        client.peer._backpressure.turn.seconds = 0  # has room for one frame
        client.peer.data_received(frame("PING") + frame("PUSH", {"payload": "1", "queue": "q"}))
        client.peer.connection_lost(None)
        await rig.settle()
        assert "q" not in state_of(rig.context.engine, "default").queues
        assert not rig.context._clients

    with_rig(work)


def test_pipelined_answers_are_one_write() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        client.peer._backpressure.turn.seconds = 60  # all of it, also on a busy machine
        client.peer.data_received(frame("PUSH", b"task") * 50)
        await rig.settle()
        assert len(client.transport.written) == 1
        assert len(client.heard()) == 50

    with_rig(work)


def test_a_request_sees_what_the_one_before_did_also_where_that_took_steps() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        tasks = [{"payload": "1", "queue": "a"}, {"payload": "2", "queue": "b"}]
        both = frame("PUSH_BATCH", {"tasks": tasks}) + frame("PULL", {"queue": "b"})
        answers = await client.say(both)
        assert [each.word for each in answers] == [b"OK", b"JOB"]

    with_rig(work)


def test_much_that_comes_at_once_is_dealt_with_bit_by_bit() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        count = 3 * peers.COMMANDS_MAX + 7
        answers = await client.say(frame("PING") * count)
        assert len(answers) == count

    with_rig(work)


def test_nothing_is_read_from_who_does_not_read() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        client.peer.pause_writing()
        assert not client.transport.is_reading()
        assert await client.say(frame("PUSH", b"task")) == []
        client.peer.resume_writing()
        await rig.settle()
        assert client.transport.is_reading()
        assert [each.word for each in client.heard()] == [b"OK"]

    with_rig(work)


def test_too_much_under_way_is_not_read_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "COMMANDS_MAX", 3)

    async def work(rig: Rig) -> None:
        client = rig.connect()
        client.peer.data_received(frame("PUSH", b"task") * 10)
        assert not client.transport.is_reading()
        await rig.settle()
        await rig.settle()
        assert client.transport.is_reading()
        assert len(client.heard()) == 10

    with_rig(work)


def test_who_has_said_all_gets_his_answers_and_is_closed() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        client.peer.data_received(frame("PUSH", b"task") * 3)
        assert client.peer.eof_received()
        await rig.settle()
        assert len(client.heard()) == 3
        assert client.transport.closed

    with_rig(work)


def test_a_stop_answers_what_was_asked_first() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        client.peer.data_received(frame("PUSH", b"task"))
        client.peer.shutdown()
        assert not client.transport.closed
        await rig.settle()
        assert [each.word for each in client.heard()] == [b"OK"]
        assert client.transport.closed

    with_rig(work)


def test_an_answer_has_the_form_of_what_it_answers() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        [first, second] = await client.say(encode(b"PING", binary=True) + frame("PING"))
        assert (first.binary, second.binary) == (True, False)

    with_rig(work)


def words(answers: list[Frame]) -> list[str]:
    return [each.word.decode() for each in answers]


def test_a_pipelined_pull_sees_the_push_before_it_and_an_acknowledgement_the_pull() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        id = await client.push("1", queue="q")
        pull, push = frame("PULL", {"queue": "q"}), frame("PUSH", {"payload": "2", "queue": "q"})
        asked = [pull, frame("ACK", id), pull, push, pull, pull, frame("ACK", id), frame("ACK", id)]
        answers = await client.say(b"".join(asked))
        assert words(answers) == ["JOB", "OK", "NO_JOB", "OK", "JOB", "NO_JOB", "ERROR", "ERROR"]

    with_rig(work)


def test_what_is_gathered_is_answered_one_by_one() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        ids = [await client.push(str(n), queue="ab"[n % 2]) for n in range(8)]
        pulls = frame("PULL", {"queue": "a"}) * 3 + frame("PULL_BATCH", {"queue": "a", "count": 3})
        answers = await client.say(pulls + frame("PULL", {"queue": "b"}) * 4)
        assert words(answers) == ["JOB"] * 3 + ["JOB_BATCH"] + ["JOB"] * 4
        jobs = [json.loads(each.payload) for each in answers]
        assert [each["payload"] for each in jobs[:3]] == ["0", "2", "4"]
        assert [each["payload"] for each in jobs[3]["jobs"]] == ["6"]
        assert [each["payload"] for each in jobs[4:]] == ["1", "3", "5", "7"]
        acks = [frame("ACK", id) for id in (ids[0], "none", ids[2], ids[0], ids[1], ids[4])]
        mixed = b"".join(ack + frame("PULL", {"queue": "a"}) for ack in acks)
        said = words(await client.say(mixed))
        assert said[::2] == ["OK", "ERROR", "OK", "ERROR", "OK", "OK"]
        assert set(said[1::2]) == {"NO_JOB"}
        assert (await client.ok("STATS"))["processing"] == 4

    with_rig(work)


def asked_by_chance() -> st.SearchStrategy[list[tuple[str, Any]]]:
    acks = st.tuples(st.sampled_from(["bare", "bare", "json", "odd"]), st.integers(0, 9))
    pulls = st.tuples(st.just("pull"), st.sampled_from(["a", "a", "b", "none"]))
    batches = st.tuples(st.just("batch"), st.integers(0, 3))
    return st.lists(acks | pulls | batches, max_size=30)


@given(asked_by_chance(), st.integers(1, 200))
def test_what_a_worker_asks_is_answered_alike_however_it_comes(
    asked: list[tuple[str, Any]], cut: int
) -> None:
    """One by one, together, and cut anywhere. An odd id has 36 characters, and is none of ours."""

    async def answers(*, together: bool) -> list[tuple[bytes, list[str]]]:
        async with await Rig.open() as rig:
            client = rig.connect()
            ids = [await client.push(str(n), queue="ab"[n > 7]) for n in range(12)]
            await client.say(frame("PULL", {"queue": "a"}) * 4 + frame("PULL", {"queue": "b"}))
            said = [request(ids, *each) for each in asked]
            if together:
                data = b"".join(said)
                said = [data[at : at + cut] for at in range(0, len(data), cut)]
            told = [each for some in said for each in await client.say(some)]
            return [
                (each.word, re.findall(r'"payload":"(\d+)"', each.payload.decode()))
                for each in told
            ]

    def request(ids: list[str], how: str, what: Any) -> bytes:
        if how == "pull":
            return frame("PULL", {"queue": what})
        if how == "batch":
            return frame("PULL_BATCH", {"queue": "a", "count": what})
        if how == "odd":
            return frame("ACK", ["\xe9" * 18, "{" * 36, ids[what][:35] + "!"][what % 3])
        return frame("ACK", ids[what] if how == "bare" else {"task_id": ids[what]})

    assert asyncio.run(answers(together=True)) == asyncio.run(answers(together=False))


def test_of_pipelined_pushes_those_are_taken_for_which_there_is_room() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        push = frame("PUSH", {"payload": "x", "queue": "q"})
        answers = await client.say(push * 5 + frame("PULL", {"queue": "q"}) + push * 2)
        assert words(answers) == ["OK"] * 3 + ["ERROR"] * 2 + ["JOB", "OK", "ERROR"]
        assert answers[3].payload == b"Queue 'q' is at capacity (3/3)"

    with_rig(work, depth=3)


def test_pushes_of_every_kind_keep_their_order_in_a_pipeline() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        more: list[dict[str, Any]] = [
            {}, {"idempotency_key": "k"}, {}, {"ttl": 60}, {}, {"idempotency_key": "k"}, {},
            {"priority": "URGENT"}, {},
        ]  # fmt: skip
        asked = [frame("PUSH", {"payload": str(n), **each}) for n, each in enumerate(more)]
        said = words(await client.say(b"".join(asked)))
        assert said == ["OK"] * 5 + ["ERROR", "OK", "ERROR", "OK"]
        found = [(await client.pull())["payload"] for _ in range(7)]
        assert found == ["0", "1", "2", "3", "4", "6", "8"]

    with_rig(work)


def test_large_tasks_that_are_pulled_in_a_pipeline_all_come() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        for number in range(8):
            await client.push(str(number) * (5 << 20))
        answers = await client.say(frame("PULL") * 9)
        while len(answers) < 9:
            await rig.settle()
            answers += client.heard()
        assert words(answers) == ["JOB"] * 8 + ["NO_JOB"]

    with_rig(work)


# Bad bytes.


def test_what_is_no_frame_is_told_behind_what_was_asked_before() -> None:
    async def work(rig: Rig) -> None:
        client, other = rig.connect(), rig.connect()
        answers = await client.say(frame("PUSH", b"task") + b"PUSH x" + frame("PING"))
        assert [each.word for each in answers] == [b"OK", b"ERROR"]
        assert answers[1].payload == b"Invalid message or message too large"
        assert client.transport.closed
        assert await other.ok("PING") == "PONG"

    with_rig(work)


@pytest.mark.parametrize("payload", [
    b'{"payload":' + b"[" * 100_000, b'{"payload": "\\ud800"}', b'{"payload": 1e999}', b"{}",
    b'{"payload": "x", "queue": 5}', b'{"payload": "x", "priority": "URGENT"}', b"\xff\xfe",
    b'{"payload": "x", "ttl": -1}', b'{"payload": "x", "queue": "a/$dead"}',
    b'{"payload": "x", "queue": "../x"}', b'{"payload": "x", "partition_key": "%s"}' % (b"x" * 200),
])  # fmt: skip
def test_a_push_that_makes_no_sense_is_an_error_and_the_connection_goes_on(payload: bytes) -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        assert (await client.error("PUSH", payload)).startswith("Failed to add task: ")
        assert await client.ok("PING") == "PONG"

    with_rig(work)


@pytest.mark.parametrize("payload", [b"hello", b"{not json", b"[1, 2]", b"", "grün".encode()])
def test_what_is_no_json_object_is_the_task_itself(payload: bytes) -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        await client.ok("PUSH", payload)
        assert (await client.pull())["payload"] == payload.decode()

    with_rig(work)


@pytest.mark.parametrize("word", [
    "SCHEDULE", "PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE", "COMMIT_TX", "PULL_BATCH", "HEARTBEAT",
    "PUSH_BATCH", "ADMIN_LIST_TASKS", "ADMIN_REPLAY", "ADMIN_SET_QUEUE_TTL", "ADMIN_GET_DLQ",
    "ADMIN_SET_QUEUE_LIMIT", "ADMIN_REQUEUE_DLQ", "PULL", "NACK", "ACK",
])  # fmt: skip
def test_bad_json_is_told_as_such(word: str) -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        begin = "Failed to add batch: " if word == "PUSH_BATCH" else ""
        assert await client.error(word, b"{nonsense") == f"{begin}Invalid JSON payload"

    with_rig(work)


def test_a_task_that_could_not_be_pulled_is_not_taken() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        text = await client.error("PUSH", b"\x01" * (FRAME_BYTES_MAX // 5))
        assert "at most" in text
        assert await client.pull() is None

    with_rig(work)


def test_a_task_of_others_that_is_too_large_goes_to_the_dead_letters() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        assert rig.engine is not None
        big = [NewMessage(encode_envelope(Envelope(id="big")), b"x" * FRAME_BYTES_MAX)]
        small = [NewMessage(encode_envelope(Envelope(id="small")), b"x")]
        for each in (big, small):
            await rig.engine.ask(BROKER, "default", Send("default", each))
        assert "too large" in await client.error("PULL")
        assert (await client.pull())["task_id"] == "small"
        assert (await client.ok("ADMIN_LIST_TASKS", {"status": "dlq"}))["count"] == 1

    with_rig(work)


def test_frames_that_come_in_part_are_bounded_for_all_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "HELD_BYTES_MAX", 300_000)

    async def work(rig: Rig) -> None:
        first, second = rig.connect(), rig.connect()
        assert await first.say(b"PUSH 500000 " + bytes(200_000)) == []
        [told] = await second.say(b"PUSH 500000 " + bytes(200_000))
        assert told.word == b"ERROR"
        assert second.transport.closed
        second.leave()
        assert rig.context.held_bytes < 300_000
        assert not first.transport.closed

    with_rig(work)


def test_a_frame_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        await client.say(b"PUSH 50 ab")
        client.peer.check(time.time())
        assert not client.transport.closed
        monkeypatch.setattr(peers, "REQUEST_SECONDS", 0.0)
        await client.say(b"c")  # a byte now and then does not help
        client.peer.check(time.time())
        assert [each.payload for each in client.heard()] == [b"Request timeout"]
        assert client.transport.closed

    with_rig(work)


def test_there_is_a_limit_on_connections() -> None:
    async def work(rig: Rig) -> None:
        first, second = rig.connect(), rig.connect()
        [told] = second.heard()
        assert told.payload == b"Server connection limit reached"
        assert second.transport.closed
        first.leave()
        assert await rig.connect().ok("PING") == "PONG"

    with_rig(work, connections=1)


# Priorities, time, retries.


def test_high_goes_before_normal_before_low_and_first_in_is_first_out_inside() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        for name in ("LOW", "NORMAL", "HIGH"):
            for number in (1, 2):
                await client.push(f"{name}{number}", priority=name)
        found = [await client.pull() for _ in range(6)]
        assert [each["payload"] for each in found] == [
            "HIGH1", "HIGH2", "NORMAL1", "NORMAL2", "LOW1", "LOW2",
        ]  # fmt: skip
        assert [each["priority"] for each in found] == [0, 0, 1, 1, 2, 2]

    with_rig(work)


def test_a_task_that_is_not_settled_comes_back_after_ten_seconds_uncounted() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        id = await client.push("x")
        for _ in range(7):  # more often than it may fail
            assert (await client.pull())["task_id"] == id
            assert await client.pull() is None
            await rig.advance(9.9)
            assert await client.pull() is None
            await rig.advance(0.1)
        assert (await client.ok("ADMIN_GET_TASK", id.encode()))["retry_count"] == 0
        await client.pull()
        await rig.advance(10)
        assert await client.error("ACK", id) == "Task not found"

    with_rig(work)


def test_the_third_failure_makes_a_dead_letter_with_its_error() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        id = await client.push("x")
        said = []
        for number in range(3):
            await client.pull()
            said.append(await client.ok("NACK", {"task_id": id, "error": f"boom {number}"}))
        assert said == ["Task retry scheduled", "Task retry scheduled", "Task moved to DLQ"]
        assert await client.pull() is None
        [dead] = (await client.ok("ADMIN_GET_DLQ"))["tasks"]
        assert (dead["task_id"], dead["retry_count"], dead["error"]) == (id, 3, "boom 2")
        assert await client.ok("ADMIN_REQUEUE_DLQ", {"task_ids": ["other"]}) == {"requeued": 0}
        assert await client.ok("ADMIN_REQUEUE_DLQ", {"task_ids": [id]}) == {"requeued": 1}
        assert (await client.pull())["task_id"] == id

    with_rig(work)


def test_dead_letters_can_be_purged() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        for _ in range(2):
            await client.push("x", queue="q")
            await client.ok("NACK", {"task_id": (await client.pull("q"))["task_id"]})
        assert await client.ok("ADMIN_PURGE_DLQ", {"queue": "q"}) == {"purged": 2}
        assert await client.ok("ADMIN_GET_DLQ") == {"tasks": [], "count": 0}

    with_rig(work, retries=1)


def test_settings_are_those_of_new_queues() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        await client.push("x", queue="q")
        assert "capacity (1/1)" in await client.error("PUSH", {"payload": "y", "queue": "q"})
        await client.pull("q")
        await rig.advance(3)
        assert await client.ok("NACK", {"task_id": (await client.pull("q"))["task_id"]}) == (
            "Task moved to DLQ"
        )

    with_rig(work, depth=1, lock_ms=3_000, retries=1)


def test_tasks_expire_by_their_own_time_or_the_queue_s() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        await client.push("short", ttl=1.5)
        await client.push("long")
        await rig.advance(2)
        assert (await client.pull())["payload"] == "long"
        await client.ok("ADMIN_SET_QUEUE_TTL", {"queue": "q", "ttl": 5})
        await client.push("x", queue="q")
        await rig.advance(5)
        assert await client.pull("q") is None
        stats = await client.ok("STATS")
        assert stats["tasks_expired"] == 2

    with_rig(work)


def test_a_partition_s_tasks_are_worked_on_one_after_the_other() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        for payload, key in (("a1", "a"), ("a2", "a"), ("b1", "b")):
            await client.push(payload, partition_key=key)
        first, second = await client.pull(), await client.pull()
        assert [first["payload"], second["payload"]] == ["a1", "b1"]
        assert await client.pull() is None
        await client.ok("ACK", first["task_id"])
        assert (await client.pull())["payload"] == "a2"

    with_rig(work)


# Duplicates.


def test_a_key_is_taken_once_an_hour() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        await client.push("x", idempotency_key="k")
        again = {"payload": "y", "idempotency_key": "k"}
        assert await client.error("PUSH", again) == "Duplicate task detected"
        await rig.advance(3_599)
        assert await client.error("PUSH", again) == "Duplicate task detected"
        await rig.advance(1)
        await client.ok("PUSH", again)
        long = {"payload": "y", "idempotency_key": "k" * 1_000}
        await client.ok("PUSH", long)
        assert await client.error("PUSH", long) == "Duplicate task detected"

    with_rig(work)


def test_equal_payloads_are_different_tasks_unless_it_is_set() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        await client.push("x")
        await client.push("x")
        assert rig.engine is not None
        state = state_of(rig.engine, "default")
        assert not state.queues["default"].seen  # what has no key costs no memory

    async def strict(rig: Rig) -> None:
        client = rig.connect()
        await client.push("x")
        assert await client.error("PUSH", {"payload": "x"}) == "Duplicate task detected"
        await client.push("x", idempotency_key="k")

    with_rig(work)
    with_rig(strict, deduplicate=True)


def test_a_batch_leaves_duplicates_out_and_lists_what_it_took() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        await client.push("0", idempotency_key="k0")
        keys, took = ["k0", None, "k1", "k1", None, "k0"], {}
        for others in ([], [{"payload": "other", "queue": "other"}]):
            tasks = [
                {"payload": str(n), "idempotency_key": key and key + str(len(others))}
                for n, key in enumerate(keys)
            ]
            if not others:
                tasks[0]["idempotency_key"] = tasks[5]["idempotency_key"] = "k0"
            took = await client.ok("PUSH_BATCH", {"tasks": [*tasks, *others]})
            count = 3 if not others else 5
            assert took["count"] == len(took["task_ids"]) == count
        pulled = [await client.pull() for _ in range(8)]
        assert [each["payload"] for each in pulled] == ["0", "1", "2", "4", "0", "1", "2", "4"]
        assert set(took["task_ids"]) >= {each["task_id"] for each in pulled[4:]}

    with_rig(work)


# Rates.


def test_an_address_may_push_twenty_at_once_and_ten_a_second() -> None:
    async def work(rig: Rig) -> None:
        client, other = rig.connect("10.0.0.1"), rig.connect("10.0.0.2")
        now = 0.0
        rig.context.rate = Buckets(10, lambda: now, burst=20)
        answers = await client.say(frame("PUSH", b"task") * 25)
        assert [each.word for each in answers] == [b"OK"] * 20 + [b"ERROR"] * 5
        assert answers[-1].payload == b"Rate limit exceeded"
        assert await client.error("SCHEDULE", {"payload": "x", "schedule": "every 5 seconds"}) == (
            "Rate limit exceeded"
        )
        batch = {"tasks": [{"payload": "x"}]}
        assert await client.error("PUSH_BATCH", batch) == "Rate limit exceeded"
        assert await client.pull() is not None
        await other.push("x")
        now = 1.0
        answers = await client.say(frame("PUSH", b"task") * 12)
        assert [each.word for each in answers] == [b"OK"] * 10 + [b"ERROR"] * 2

    with_rig(work, rate=10)


# Workers.


def test_what_a_worker_has_pulled_is_released_when_its_connection_ends() -> None:
    async def work(rig: Rig) -> None:
        worker, other = rig.connect(), rig.connect()
        ids = [await other.push(str(number), queue="q") for number in range(2)]
        await worker.ok("HEARTBEAT", {"worker_id": "w"})
        await worker.pull("q")
        assert (await other.pull("q"))["task_id"] == ids[1]
        worker.leave()
        await rig.settle()
        assert (await other.pull("q"))["task_id"] == ids[0]
        assert (await other.ok("ADMIN_GET_TASK", ids[0].encode()))["retry_count"] == 0

    with_rig(work)


def test_a_worker_goes_on_when_its_queue_was_deleted_and_made_again() -> None:
    async def work(rig: Rig) -> None:
        worker, other = rig.connect(), rig.connect()
        await worker.ok("HEARTBEAT", {"worker_id": "w"})
        for _ in range(2):
            id = await other.push("x", queue="q")
            assert (await worker.pull("q"))["task_id"] == id
            await worker.ok("ACK", id)
            await other.ok("ADMIN_DELETE_QUEUE", b"q")
        await other.push("y", queue="q")
        await worker.pull("q")
        worker.leave()
        await rig.settle()
        assert (await other.pull("q"))["payload"] == "y"

    with_rig(work)


def test_who_comes_before_the_broker_is_open_is_told_so() -> None:
    async def work(rig: Rig) -> None:
        engine, rig.engine = rig.engine, None
        client = rig.connect()
        [told] = client.heard()
        assert told.payload.startswith(b"The broker is starting")
        assert client.transport.closed
        rig.engine = engine

    with_rig(work)


def test_without_a_heartbeat_a_task_may_be_settled_elsewhere_later() -> None:
    async def work(rig: Rig) -> None:
        first, second = rig.connect(), rig.connect()
        id = await first.push("x")
        await first.pull()
        first.leave()
        await rig.settle()
        assert await second.pull() is None
        assert await second.ok("ACK", {"task_id": id}) == "Task acknowledged"

    with_rig(work)


def test_a_worker_that_falls_silent_loses_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(rig: Rig) -> None:
        worker, other = rig.connect(), rig.connect()
        await other.push("x")
        await worker.ok("HEARTBEAT", {"worker_id": "w"})
        await worker.pull()
        worker.peer.check(time.time() + 29)
        await rig.settle()
        assert await other.pull() is None
        worker.peer.check(time.time() + 31)
        await rig.settle()
        assert await other.pull() is not None

    with_rig(work, lock_ms=600_000)


def test_workers_are_listed_until_they_are_long_dead() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        await client.ok("HEARTBEAT", {"worker_id": "w"})
        [told] = (await client.ok("ADMIN_LIST_WORKERS"))["workers"]
        assert (told["worker_id"], told["status"]) == ("w", "active")
        assert abs(told["last_heartbeat"] - time.time()) < 60
        rig.context.workers.heard("w", time.time() - 31, "", 50)
        [told] = (await client.ok("ADMIN_LIST_WORKERS"))["workers"]
        assert told["status"] == "dead"
        rig.context.workers.forget(time.time() + 300)
        assert await client.ok("ADMIN_LIST_WORKERS") == {"workers": [], "count": 0}

    with_rig(work)


def test_a_pull_whose_client_is_gone_gives_the_task_back() -> None:
    async def work(rig: Rig) -> None:
        first, second = rig.connect(), rig.connect()
        await first.push("x")
        first.peer.data_received(frame("PULL"))
        first.leave()
        await rig.settle()
        assert await second.pull() is not None

    with_rig(work)


# With other dialects.


def test_others_see_a_sensible_message_and_theirs_can_be_pulled() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        assert rig.engine is not None
        id = await client.push("text", queue="q", priority="HIGH", idempotency_key="k")
        seen = await rig.engine.ask(BROKER, "default", Peek("q", limit=10))
        assert isinstance(seen, Peeked)
        message = seen.messages[0].message
        envelope = decode_envelope(message.envelope)
        assert (message.body, message.priority, envelope.id) == (b"text", 9, id)
        assert envelope.properties == {"idempotency_key": "k"}
        theirs = [
            NewMessage(encode_envelope(Envelope(id="t1")), b"plain"),
            NewMessage(encode_envelope(Envelope(id="t2")), b"\xff\x00"),
            NewMessage(encode_envelope(Envelope()), b"nameless"),
            NewMessage(encode_envelope(Envelope(id="x" * 300)), b"long"),
        ]
        await rig.engine.ask(BROKER, "default", CreateQueue("theirs", QueueProperties()))
        await rig.engine.ask(BROKER, "default", Send("theirs", theirs))
        jobs = [await client.pull("theirs") for _ in theirs]
        assert [each["payload"] for each in jobs] == ["plain", "/wA=", "nameless", "long"]
        assert [each.get("encoding") for each in jobs] == [None, "base64", None, None]
        assert all(each["priority"] == 1 for each in jobs)
        for each in jobs:
            assert await client.ok("ACK", each["task_id"]) == "Task acknowledged"
            assert await client.error("ACK", each["task_id"]) == "Task not found"

    with_rig(work)


def test_a_worker_is_answered_in_the_form_of_each_request() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        ids = [await client.push(str(at), queue="q") for at in range(4)]
        pull, both = b'{"queue":"q"}', (True, False)
        asked = [encode(b"PULL", pull, binary=binary) for binary in both * 2]
        said = await client.say(b"".join(asked))
        assert [(each.word, each.binary) for each in said] == [(b"JOB", way) for way in both * 2]
        assert [json.loads(each.payload)["task_id"] for each in said] == ids
        first = encode(b"ACK", ids[0].encode(), binary=True)
        said = await client.say(first + first + b"".join(frame("ACK", id) for id in ids))
        told = [(each.word, each.binary) for each in said]
        assert told[:3] == [(b"OK", True), (b"ERROR", True), (b"ERROR", False)]
        assert told[3:] == [(b"OK", False)] * 3
        assert rig.context.processed == 4
        batch = encode(b"PULL_BATCH", pull, binary=True)
        assert await client.say(batch) == [Frame(b"NO_JOB", b"", binary=True)]

    with_rig(work)


def test_the_beginning_of_an_id_is_not_taken_for_a_shorter_one() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        await client.push("1", queue="q")
        messages = [NewMessage(encode_envelope(Envelope(id=id)), b"x") for id in ("0", "0123")]
        await rig.context.ask(BROKER, Send("q", messages))
        pull = frame("PULL", {"queue": "q"})
        assert words(await client.say(pull * 3)) == ["JOB"] * 3
        said = await client.say(frame("ACK", "0") + b"ACK 36 0123")
        assert words(said) == ["OK"]
        assert words(await client.say(b"?" * 32)) == ["ERROR"]
        assert (await client.ok("STATS"))["processing"] == 2

    with_rig(work)


def test_tasks_that_share_an_id_are_settled_each_by_itself() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        assert rig.engine is not None
        for queue in ("a", "b"):
            await rig.engine.ask(BROKER, "default", CreateQueue(queue, QueueProperties()))
            copy = [NewMessage(encode_envelope(Envelope(id="same")), queue.encode())]
            await rig.engine.ask(BROKER, "default", Send(queue, copy))
        first, second = await client.pull("a"), await client.pull("b")
        await client.ok("NACK", second["task_id"])
        assert await client.pull("a") is None
        assert (await client.pull("b"))["payload"] == "b"
        await client.ok("ACK", first["task_id"])
        assert (await client.ok("STATS"))["queues"]["a"] == {"depth": 0, "processing": 0}

    with_rig(work)


def test_a_queue_of_others_is_used_as_it_is() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        assert rig.engine is not None
        await rig.engine.ask(BROKER, "default", CreateQueue("Orders", QueueProperties()))
        await client.push("low", queue="Orders", priority="LOW")
        await client.push("high", queue="Orders", priority="HIGH")
        assert (await client.pull("Orders"))["payload"] == "low"
        assert "'Orders'" in await client.error("PUSH", {"payload": "x", "queue": "orders"})

    with_rig(work)


# Schedules.


def test_schedules_send_into_their_queue_are_listed_and_cancelled() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        form = {"payload": "s", "schedule": "every 30 seconds", "queue": "q", "priority": "HIGH"}
        made = await client.ok("SCHEDULE", form)
        assert made["next_run"] == START_MS / 1_000 + 30
        cron = {"payload": "c", "schedule": "cron: 0,30 */6 * * 1-5", "timezone": "Europe/Berlin"}
        other = await client.ok("SCHEDULE", cron)
        daily = await client.ok("SCHEDULE", {"payload": "d", "schedule": "at 14:30"})
        assert daily["next_run"] % 86_400 == 14.5 * 3_600
        listed = await client.ok("ADMIN_LIST_TASKS", {"status": "scheduled"})
        ids = {made["task_id"], other["task_id"], daily["task_id"]}
        assert {each["task_id"] for each in listed["tasks"]} == ids
        assert (await client.ok("ADMIN_GET_TASK", made["task_id"].encode()))["queue"] == "q"
        assert (await client.ok("STATS"))["scheduled"] == 3
        for moment in (30, 60):
            await rig.advance(30)
            job = await client.pull("q")
            assert (job["payload"], job["priority"]) == ("s", 0)
            assert job["task_id"] == f"{made['task_id']}@{START_MS + moment * 1_000}"
            await client.ok("ACK", job["task_id"])
        assert await client.ok("ADMIN_CANCEL_TASK", made["task_id"].encode()) == {
            "cancelled": made["task_id"]
        }
        await rig.advance(120)
        assert await client.pull("q") is None

    with_rig(work)


def test_a_schedule_with_a_key_is_made_once() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        form = {"payload": "s", "schedule": "every 30 seconds", "idempotency_key": "k"}
        await client.ok("SCHEDULE", form)
        assert await client.error("SCHEDULE", form) == "Duplicate task detected"
        assert (
            await client.error("SCHEDULE", {**form, "schedule": "cron: 99 * * * *"})
        ).startswith("Duplicate")
        for wrong in ("cron: 99 * * * *", "at 25:00", "every 0 seconds", "sometimes"):
            text = await client.error("SCHEDULE", {"payload": "s", "schedule": wrong})
            assert text.startswith("Invalid schedule format: ")

    with_rig(work)


# Transactions.


async def begun(client: Client) -> str:
    id: str = (await client.ok("BEGIN_TX"))["transaction_id"]
    return id


def test_a_transaction_is_all_or_nothing() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        for number in range(3):
            await client.push(str(number), queue="in")
        jobs = [await client.pull("in") for _ in range(3)]
        tx = await begun(client)
        id = await client.push("out", queue="out", transaction_id=tx)
        added = "Task added to transaction"
        assert (
            await client.ok("ACK", {"task_id": jobs[0]["task_id"], "transaction_id": tx}) == added
        )
        nack = {"task_id": jobs[1]["task_id"], "transaction_id": tx}
        assert await client.ok("NACK", nack) == added
        assert await client.pull("out") is None
        assert await client.error("ACK", jobs[0]["task_id"]) == "Task not found"
        assert await client.ok("COMMIT_TX", {"transaction_id": tx}) == {
            "transaction_id": tx, "operations": 3,
        }  # fmt: skip
        assert (await client.pull("out"))["task_id"] == id
        assert (await client.pull("in"))["task_id"] == jobs[1]["task_id"]
        assert await client.error("COMMIT_TX", {"transaction_id": tx}) == (
            f"Transaction {tx} is not active (status: committed)"
        )

    with_rig(work)


def test_a_transaction_that_is_rolled_back_or_late_leaves_nothing() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        tx = await begun(client)
        await client.push("x", transaction_id=tx, idempotency_key="k")
        assert await client.ok("ROLLBACK_TX", {"transaction_id": tx}) == {
            "transaction_id": tx, "status": "rolled_back",
        }  # fmt: skip
        await client.push("x", idempotency_key="k")  # the key was not used up
        late = await begun(client)
        again = {"payload": "x", "transaction_id": late, "idempotency_key": "k"}
        assert await client.error("PUSH", again) == "Duplicate task detected"
        await client.push("y", transaction_id=late)
        await rig.advance(60)
        for word in ("COMMIT_TX", "ROLLBACK_TX"):
            assert await client.error(word, {"transaction_id": late}) == (
                f"Transaction {late} has expired"
            )
        push = {"payload": "z", "transaction_id": late}
        assert await client.error("PUSH", push) == f"Transaction {late} has expired"
        for nonsense in ("x", "00000000-0000-0000-0000-000000000000"):
            text = await client.error("COMMIT_TX", {"transaction_id": nonsense})
            assert text == "Invalid transaction ID"
        assert (await client.ok("STATS"))["ready_queue_depth"] == 1

    with_rig(work)


def test_a_commit_for_which_there_is_no_room_is_undone() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        tx = await begun(client)
        await client.push("a", queue="a", transaction_id=tx)
        for _ in range(2):
            await client.push("b", queue="b", transaction_id=tx)
        assert "could not be committed" in await client.error("COMMIT_TX", {"transaction_id": tx})
        assert (await client.ok("STATS"))["ready_queue_depth"] == 0
        tasks = [{"payload": "x", "queue": queue} for queue in ("a", "b", "b")]
        text = await client.error("PUSH_BATCH", {"tasks": tasks})
        assert text == "Failed to add batch: Queue 'b' is at capacity (0/1)"
        assert (await client.ok("STATS"))["ready_queue_depth"] == 0

    with_rig(work, depth=1)


# Topics.


def test_a_published_message_goes_to_every_queue_that_is_bound() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        bound = {"one": "events.*", "all": "events.#", "exact": "events.user", "mixed": "*.user.#"}
        for queue, pattern in bound.items():
            told = await client.ok("SUBSCRIBE", {"topic": pattern, "queue": queue})
            assert told == {"topic": pattern, "queue": queue}
            await client.ok("SUBSCRIBE", {"topic": pattern, "queue": queue})  # changes nothing
        cases = {
            "events.user": {"one", "all", "exact", "mixed"},
            "events.user.login": {"all", "mixed"},
            "events.order": {"one", "all"},
            "eventsfoo": set(),
            "a.user": {"mixed"},
        }
        for topic, queues in cases.items():
            form = {"topic": topic, "message": topic}
            if not queues:
                assert await client.error("PUBLISH", form) == f"No subscribers for topic '{topic}'"
                continue
            told = await client.ok("PUBLISH", form)
            assert told["published"] == len(queues) == len(set(told["task_ids"]))
            jobs = {queue: await client.pull(queue) for queue in bound}
            assert {queue for queue, job in jobs.items() if job is not None} == queues
            found = [job for job in jobs.values() if job is not None]
            assert {job["task_id"] for job in found} == set(told["task_ids"])
            for job in found:
                assert job["payload"] == topic
                await client.ok("ACK", job["task_id"])

    with_rig(work)


def test_a_subscription_ends_for_one_queue_or_all() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        made = await client.ok("SUBSCRIBE", {"topic": "a.*"})
        assert made["queue"].startswith("sub_a.*_")
        assert len(made["queue"]) == len("sub_a.*_") + 8
        for queue in ("x", "y"):
            await client.ok("SUBSCRIBE", {"topic": "a.*", "queue": queue})
        assert await client.error("UNSUBSCRIBE", {"topic": "b"}) == "Topic 'b' not found"
        assert await client.error("UNSUBSCRIBE", {"topic": "a.*", "queue": "z"}) == (
            "Queue 'z' not subscribed to topic 'a.*'"
        )
        assert await client.ok("UNSUBSCRIBE", {"topic": "a.*", "queue": "x"}) == {
            "unsubscribed": "x", "topic": "a.*",
        }  # fmt: skip
        assert (await client.ok("PUBLISH", {"topic": "a.b", "message": "m"}))["published"] == 2
        assert await client.ok("UNSUBSCRIBE", {"topic": "a.*"}) == {
            "unsubscribed": 2, "topic": "a.*",
        }  # fmt: skip
        assert await client.error("PUBLISH", {"message": "m"}) == "Topic name required"
        assert await client.error("SUBSCRIBE", {"queue": "q"}) == "Topic name required"
        for wrong in ("a..b", "ev*nts", "a.#x", "x" * 201):
            text = await client.error("SUBSCRIBE", {"topic": wrong})
            assert text.startswith("Invalid topic pattern: ")

    with_rig(work)


def test_publishing_is_all_or_nothing() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        for queue in ("x", "y"):
            await client.ok("SUBSCRIBE", {"topic": "t", "queue": queue})
        await client.push("full", queue="y")
        text = await client.error("PUBLISH", {"topic": "t", "message": "m"})
        assert text == "Queue 'y' is at capacity (1/1)"
        assert await client.pull("x") is None

    with_rig(work, depth=1)


def test_a_deleted_queue_is_bound_no_more() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        await client.ok("SUBSCRIBE", {"topic": "t", "queue": "q"})
        assert await client.ok("ADMIN_DELETE_QUEUE", b"q") == {"deleted": "q"}
        assert await client.error("PUBLISH", {"topic": "t", "message": "m"}) == (
            "No subscribers for topic 't'"
        )
        assert await client.error("UNSUBSCRIBE", {"topic": "t"}) == "Topic 't' not found"

    with_rig(work)


# Replay.


def test_tasks_come_back_from_the_journal_by_time_id_and_queue() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        ids = []
        for number in range(4):
            ids.append(await client.push(f"{number}", queue="ab"[number % 2], priority="HIGH"))
            await rig.advance(10)
        done = 0
        for queue in ("a", "b"):
            while (job := await client.pull(queue)) is not None:
                if job["task_id"] != ids[3]:  # that one is still there, and not sent again
                    await client.ok("ACK", job["task_id"])
                    done += 1
        assert done == 3
        at = START_MS / 1_000
        form = {"from_timestamp": at + 5, "to_timestamp": at + 25}
        told = await client.ok("ADMIN_REPLAY", form)
        assert told == {"replayed": 2, "task_ids": [ids[1], ids[2]]}
        found = {(await client.pull(q))["payload"] for q in ("a", "b")}
        assert found == {"1", "2"}
        assert await client.ok("ADMIN_REPLAY", {"task_ids": [ids[0], "other"]}) == {
            "replayed": 1, "task_ids": [ids[0]],
        }  # fmt: skip
        job = await client.pull("a")
        assert (job["task_id"], job["payload"], job["priority"]) == (ids[0], "0", 0)
        assert (await client.ok("ADMIN_REPLAY", {"queue_name": "nowhere"}))["replayed"] == 0

    with_rig(work)


# Administration.


def test_a_task_is_found_wherever_it_is() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        id = await client.push("x" * 100, queue="q", priority="LOW")
        task = await client.ok("ADMIN_GET_TASK", id.encode())
        assert task == {
            "task_id": id, "payload": "x" * 100, "priority": 2, "queue": "q", "retry_count": 0,
            "created_at": START_MS / 1_000, "scheduled_at": None,
        }  # fmt: skip
        [listed] = (await client.ok("ADMIN_LIST_TASKS", {"queue": "q"}))["tasks"]
        assert listed == {
            "task_id": id, "payload": "x" * 50, "priority": 2, "queue": "q", "status": "ready",
        }  # fmt: skip
        await client.pull("q")
        text = f"Task '{id}' not found or cannot be cancelled"
        assert await client.error("ADMIN_CANCEL_TASK", id.encode()) == text
        counts = {}
        for status in ("all", "ready", "processing", "scheduled", "dlq"):
            counts[status] = (await client.ok("ADMIN_LIST_TASKS", {"status": status}))["count"]
        assert counts == {"all": 1, "ready": 0, "processing": 1, "scheduled": 0, "dlq": 0}
        await client.ok("NACK", {"task_id": id, "error": "no"})
        assert (await client.ok("ADMIN_GET_TASK", id.encode()))["retry_count"] == 1
        assert await client.ok("ADMIN_CANCEL_TASK", id.encode()) == {"cancelled": id}
        assert await client.error("ADMIN_GET_TASK", id.encode()) == f"Task '{id}' not found"

    with_rig(work)


def test_a_purge_takes_what_is_ready_and_a_deletion_wants_a_queue_empty() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        for number in range(5):
            await client.push(str(number), queue="q")
        await client.pull("q")
        assert await client.error("ADMIN_DELETE_QUEUE", b"q") == "Queue 'q' is not empty"
        assert await client.ok("ADMIN_PURGE_QUEUE", b"q") == {"purged": 4, "queue": "q"}
        assert await client.error("ADMIN_PURGE_QUEUE", b"z") == "Queue 'z' not found"
        assert await client.error("ADMIN_DELETE_QUEUE", b"default") == "Cannot delete default queue"
        assert await client.error("ADMIN_QUEUE_INFO", b"z") == "Queue 'z' not found"

    with_rig(work)


def test_figures_are_of_what_happened() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        for number in range(4):
            await client.push(str(number), queue="q")
        job = await client.pull("q")
        await rig.advance(2)
        await client.ok("ACK", job["task_id"])
        await client.pull("q")
        stats = await client.ok("STATS")
        assert stats["queues"] == {
            "default": {"depth": 0, "processing": 0}, "q": {"depth": 2, "processing": 1},
        }  # fmt: skip
        assert (stats["tasks_pushed"], stats["tasks_completed"]) == (4, 1)
        assert stats["avg_processing_time_seconds"] == 2.0
        assert set(stats) == {
            "queues", "processing", "scheduled", "dlq", "workers", "uptime_seconds", "tasks_pushed",
            "tasks_completed", "tasks_expired", "tasks_failed", "ready_queue_depth",
            "processing_queue_depth", "avg_processing_time_seconds", "tasks_per_second",
            "scheduled_tasks", "dlq_count", "active_workers", "queue_count",
        }  # fmt: skip
        health = await client.ok("ADMIN_HEALTH")
        assert (health["status"], health["ready_tasks"], health["processing_tasks"]) == (
            "healthy", 2, 1,
        )  # fmt: skip
        await client.ok("ADMIN_SET_QUEUE_LIMIT", {"queue": "q", "max_depth": 4})
        assert await client.ok("ADMIN_QUEUE_METRICS", b"q") == {
            "queue": "q", "depth": 2, "processing": 1, "backpressure_level": 0.5, "ttl": None,
            "max_depth": 4,
        }  # fmt: skip
        assert await client.error("ADMIN_SET_QUEUE_TTL", {"ttl": 4}) == "Queue name required"
        assert await client.error("ADMIN_SET_QUEUE_LIMIT", {"queue": "q"}) == (
            "Queue name and max_depth required"
        )

    with_rig(work)


def test_room_comes_back_with_every_task_that_is_done() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        for _ in range(30):  # more than there is room for, at a time
            await client.push("x", queue="q")
            await client.ok("ACK", (await client.pull("q"))["task_id"])

    with_rig(work, depth=2)


def test_a_depth_limit_counts_tasks_that_wait_not_those_being_processed() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        for payload in ("a", "b"):
            await client.push(payload, queue="q")
        full = {"payload": "no", "queue": "q"}
        assert await client.error("PUSH", full) == "Queue 'q' is at capacity (2/2)"
        first = await client.pull("q")
        await client.push("c", queue="q")
        assert await client.error("PUSH", full) == "Queue 'q' is at capacity (2/2)"
        facts = await client.ok("ADMIN_QUEUE_METRICS", b"q")
        assert (facts["depth"], facts["processing"], facts["backpressure_level"]) == (2, 1, 1.0)
        await client.ok("NACK", {"task_id": first["task_id"]})  # back, and above the limit
        assert (await client.ok("ADMIN_QUEUE_METRICS", b"q"))["depth"] == 3
        assert await client.error("PUSH", full) == "Queue 'q' is at capacity (3/2)"
        pulled = [await client.pull("q") for _ in range(3)]
        assert sorted(task["payload"] for task in pulled) == ["a", "b", "c"]
        assert await client.ok("ADMIN_GET_DLQ") == {"tasks": [], "count": 0}

    with_rig(work, depth=2)


def test_a_queue_counts_as_it_did_until_a_depth_limit_is_set() -> None:
    async def work(rig: Rig) -> None:
        old = QueueProperties(max_messages=2)  # as another client has made it
        assert rig.engine is not None
        await rig.engine.ask(BROKER, "default", CreateQueue("q", old))
        client = rig.connect()
        for payload in ("a", "b"):
            await client.push(payload, queue="q")
        await client.pull("q")
        full = {"payload": "c", "queue": "q"}
        assert await client.error("PUSH", full) == "Queue 'q' is at capacity (2/2)"
        await client.ok("ADMIN_SET_QUEUE_LIMIT", {"queue": "q", "max_depth": 2})
        await client.push("c", queue="q")

    with_rig(work)


def test_json_of_an_answer_can_be_read_by_anybody() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        text = 'a "quoted" \\ line\nand \x00 ünïcode 🚲'
        await client.push(text)
        answer = await client.call("PULL")
        assert json.loads(answer.payload)["payload"] == text
        await client.ok("PUSH", {"payload": {"a": [1, None]}})
        assert json.loads((await client.pull())["payload"]) == {"a": [1, None]}

    with_rig(work)
