"""PyQueue's protocol from outside: every request, its answer word, keys and texts."""

import socket
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from uuid import UUID

import pytest

from tests.dialects.blackbox import vibemq
from tests.dialects.blackbox.pyqueue import Answer, Client, Json, fixed_frame, frame
from tests.dialects.servicebus.bus import eventually
from tests.server.running import Running, development, running

MESSAGE_MAX = 10 * 1024 * 1024
_numbers = count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("pyqueue") / "data"
    with running("--data", str(folder), "--dev") as made:
        clock(made, frozen=True)  # a machine that is busy does not end what a test holds
        yield made


@pytest.fixture
def client(broker: Running) -> Iterator[Client]:
    with Client(broker) as made:
        yield made


@pytest.fixture
def queue() -> str:
    return f"jobs{next(_numbers)}"


def clock(broker: Running, **form: Json) -> None:
    reply = broker.call("POST", "/api/v1/namespaces/default/clock", form)
    assert reply.status == 200, reply


def advance(broker: Running, seconds: float) -> None:
    clock(broker, advance_ms=int(seconds * 1000))


def counts(client: Client, queue: str) -> tuple[int, int]:
    found = client.stats()["queues"][queue]
    return found["depth"], found["processing"]


# Pushing and pulling.


def test_a_task_goes_from_push_to_pull_to_ack(client: Client, queue: str) -> None:
    form = {"payload": "häuser", "priority": "HIGH", "queue": queue}
    word, task = client.ask("PUSH", form)
    assert word == "OK"
    assert UUID(task.decode()).version == 4  # bare, not JSON
    answer = client.ask("PULL", {"queue": queue})
    assert answer.word == "JOB"
    assert answer.json == {
        "task_id": task.decode(), "payload": "häuser", "queue": queue, "priority": 0,
    }  # fmt: skip
    assert client.ask("ACK", task) == Answer("OK", b"Task acknowledged")
    assert client.ask("ACK", task) == Answer("ERROR", b"Task not found")
    assert client.ask("PULL", {"queue": queue}) == Answer("NO_JOB", b"")


def test_what_is_not_json_is_the_task_itself(client: Client) -> None:
    client.drain()
    task = client.ok("PUSH", "resize picture 7").text
    answer = client.ask("PULL")  # of the default queue
    assert answer.json == {
        "task_id": task, "payload": "resize picture 7", "queue": "default", "priority": 1,
    }  # fmt: skip
    assert client.ok("ACK", {"task_id": task}).text == "Task acknowledged"


def test_the_smallest_frame_has_its_second_space(client: Client) -> None:
    client.write(b"PULL 0 ")
    assert client.read().word in {"JOB", "NO_JOB"}


def test_priorities_go_first_and_each_is_first_in_first_out(client: Client, queue: str) -> None:
    for at, priority in enumerate(["LOW", "NORMAL", "HIGH"] * 3):
        client.push(f"{priority} {at}", queue, priority)
    assert client.drain(queue) == [
        "HIGH 2", "HIGH 5", "HIGH 8", "NORMAL 1", "NORMAL 4", "NORMAL 7", "LOW 0", "LOW 3", "LOW 6",
    ]  # fmt: skip


def test_a_batch_is_taken_in_order_with_priorities(client: Client, queue: str) -> None:
    tasks = [{"payload": f"n{at}", "queue": queue} for at in range(3)]
    tasks.append({"payload": "first", "queue": queue, "priority": "HIGH"})
    answer = client.ok("PUSH_BATCH", {"tasks": tasks}).json
    assert set(answer) == {"task_ids", "count"}
    assert answer["count"] == len(set(answer["task_ids"])) == 4
    assert client.drain(queue) == ["first", "n0", "n1", "n2"]


def test_a_batch_leaves_duplicates_out(client: Client, queue: str) -> None:
    client.push("a", queue, idempotency_key="one")
    tasks = [
        {"payload": "again", "queue": queue, "idempotency_key": "one"},
        {"payload": "b", "queue": queue, "idempotency_key": "two"},
        {"payload": "b again", "queue": queue, "idempotency_key": "two"},
    ]
    answer = client.ok("PUSH_BATCH", {"tasks": tasks}).json
    assert (answer["count"], len(answer["task_ids"])) == (1, 1)
    assert client.drain(queue) == ["a", "b"]


@pytest.mark.parametrize("wrong", ["no JSON", {}, {"tasks": "x"}, {"tasks": [{"queue": "q"}]}])
def test_a_batch_that_is_none_is_refused(client: Client, wrong: Json) -> None:
    assert client.error("PUSH_BATCH", wrong).startswith("Failed to add batch: ")


def test_a_batch_is_taken_as_a_whole_or_not_at_all(client: Client, queue: str) -> None:
    client.ok("ADMIN_SET_QUEUE_LIMIT", {"queue": queue, "max_depth": 1})
    tasks = [{"payload": "elsewhere", "queue": f"{queue}b"}]
    tasks += [{"payload": f"{at}", "queue": queue} for at in range(2)]
    for some in (tasks, tasks[1:]):
        said = client.error("PUSH_BATCH", {"tasks": some})
        assert said == f"Failed to add batch: Queue '{queue}' is at capacity (0/1)"
    assert client.pull(queue) is None
    assert client.pull(f"{queue}b") is None


@pytest.mark.parametrize("count", [0, -1])
def test_none_are_pulled_where_none_are_asked_for(client: Client, queue: str, count: int) -> None:
    client.push("x", queue)
    form = {"queue": queue, "count": count}
    assert client.ask("PULL_BATCH", form) == Answer("NO_JOB", b"")
    assert counts(client, queue) == (1, 0)


def test_one_is_pulled_where_no_count_is_given(client: Client, queue: str) -> None:
    client.ok("PUSH_BATCH", {"tasks": [{"payload": f"{at}", "queue": queue} for at in range(3)]})
    assert client.ask("PULL_BATCH", {"queue": queue}).json["count"] == 1
    assert counts(client, queue) == (2, 1)


def test_at_most_ten_are_pulled_at_a_time(client: Client, queue: str) -> None:
    client.ok("PUSH_BATCH", {"tasks": [{"payload": f"{at}", "queue": queue} for at in range(12)]})
    answer = client.ask("PULL_BATCH", {"queue": queue, "count": 50})
    assert answer.word == "JOB_BATCH"
    assert set(answer.json) == {"jobs", "count"}
    assert answer.json["count"] == 10
    assert [each["payload"] for each in answer.json["jobs"]] == [f"{at}" for at in range(10)]
    assert set(answer.json["jobs"][0]) == {"task_id", "payload", "queue", "priority"}
    assert client.ask("PULL_BATCH", {"queue": queue, "count": 1}).json["count"] == 1
    assert client.ask("PULL_BATCH", {"queue": queue, "count": 5}).json["count"] == 1
    assert client.ask("PULL_BATCH", {"queue": queue, "count": 5}) == Answer("NO_JOB", b"")


# Failing.


def test_the_third_nack_is_the_last(client: Client, queue: str) -> None:
    task = client.push("sour", queue)
    for said in ("Task retry scheduled", "Task retry scheduled", "Task moved to DLQ"):
        assert client.pull(queue)["task_id"] == task  # at once
        assert client.nack(task) == said
    assert client.pull(queue) is None
    assert client.error("NACK", {"task_id": task, "error": "again"}) == "Task not found"
    answer = client.ok("ADMIN_GET_DLQ").json
    assert set(answer) == {"tasks", "count"}
    [found] = [each for each in answer["tasks"] if each["queue"] == queue]
    assert set(found) >= {"task_id", "payload", "queue", "retry_count", "created_at"}
    assert (found["task_id"], found["payload"], found["retry_count"]) == (task, "sour", 3)
    assert answer["count"] == client.stats()["dlq"] == client.stats()["dlq_count"]


def test_what_is_not_acknowledged_comes_back_after_ten_seconds(
    broker: Running, client: Client, queue: str
) -> None:
    task = client.push("slow", queue)
    for _ in range(4):  # more often than it may fail: this is no failure
        assert client.pull(queue)["task_id"] == task
        advance(broker, 9)
        assert client.pull(queue) is None
        assert counts(client, queue) == (0, 1)
        advance(broker, 2)
        eventually(lambda: counts(client, queue) == (1, 0))
    assert client.ok("ADMIN_GET_TASK", task).json["retry_count"] == 0
    assert client.error("ACK", task) == "Task not found"  # nobody has it
    assert client.drain(queue) == ["slow"]


def test_a_task_is_settled_over_another_connection(
    broker: Running, client: Client, queue: str
) -> None:
    task = client.push("errand", queue)
    client.pull(queue)
    with Client(broker) as other:
        assert other.ok("ACK", task).text == "Task acknowledged"
    assert counts(client, queue) == (0, 0)


def test_who_leaves_without_being_a_worker_keeps_his_task(
    broker: Running, client: Client, queue: str
) -> None:
    task = client.push("errand", queue)
    with Client(broker) as worker:
        worker.pull(queue)
    with Client(broker) as worker:  # as a client that uses a connection a request
        assert worker.ok("ACK", task).text == "Task acknowledged"


def test_a_worker_that_leaves_gives_its_tasks_back(
    broker: Running, client: Client, queue: str
) -> None:
    client.push("first", queue)
    client.push("second", queue)
    with Client(broker) as worker:
        worker.ok("HEARTBEAT", {"worker_id": f"worker of {queue}"})
        assert worker.pull(queue)["payload"] == "first"
        assert counts(client, queue) == (1, 1)
    eventually(lambda: counts(client, queue) == (2, 0))
    assert client.drain(queue) == ["first", "second"]


def test_workers_are_listed(client: Client) -> None:
    assert client.ask("HEARTBEAT", {"worker_id": "w7"}) == Answer("OK", b"Heartbeat received")
    answer = client.ok("ADMIN_LIST_WORKERS").json
    assert set(answer) == {"workers", "count"}
    [found] = [each for each in answer["workers"] if each["worker_id"] == "w7"]
    assert set(found) == {"worker_id", "last_heartbeat", "status"}
    assert answer["count"] == len(answer["workers"]) == client.stats()["active_workers"]


# Keys, schedules, topics.


def test_an_idempotency_key_is_good_for_one_task_an_hour(
    broker: Running, client: Client, queue: str
) -> None:
    client.push("paid", queue, idempotency_key="invoice 7")
    again = {"payload": "paid twice", "queue": queue, "idempotency_key": "invoice 7"}
    assert client.error("PUSH", again) == "Duplicate task detected"
    assert client.drain(queue) == ["paid"]
    advance(broker, 3_590)
    assert client.error("PUSH", again) == "Duplicate task detected"  # though it is done
    advance(broker, 20)
    client.ok("PUSH", again)
    assert client.drain(queue) == ["paid twice"]


def test_an_interval_sends_again_and_again(broker: Running, client: Client) -> None:
    client.drain()
    answer = client.ok("SCHEDULE", {"payload": "tick", "schedule": "every 30 seconds"}).json
    assert set(answer) == {"task_id", "next_run"}
    assert isinstance(answer["next_run"], float)
    assert client.status(answer["task_id"]) == "scheduled"
    assert client.ok("ADMIN_GET_TASK", answer["task_id"]).json["scheduled_at"] == answer["next_run"]
    assert client.pull() is None
    seen = set()
    for _ in range(3):
        advance(broker, 31)
        eventually(lambda: counts(client, "default")[0] == 1)
        job = client.pull()
        assert (job["payload"], job["queue"]) == ("tick", "default")
        seen.add(job["task_id"])
        client.ok("ACK", job["task_id"])
    assert len(seen) == 3  # each a task of its own
    scheduled = client.ok("ADMIN_LIST_TASKS", {"status": "scheduled"}).json["tasks"]
    [left] = [each for each in scheduled if each["payload"] == "tick"]
    assert client.ok("ADMIN_CANCEL_TASK", left["task_id"]).json == {"cancelled": left["task_id"]}
    advance(broker, 61)
    assert client.pull() is None


@pytest.mark.parametrize(
    "when",
    ["every 2 minutes", "every 1 hours", "at 14:30", "cron: 0 9 * * 1-5", "cron: */5 1,2 * * *"],
)
def test_a_schedule_tells_when_it_is_due(broker: Running, client: Client, when: str) -> None:
    now = broker.call("GET", "/api/v1/namespaces/default/clock").json["now_ms"] / 1000
    answer = client.ok("SCHEDULE", {"payload": when, "schedule": when}).json
    assert now < answer["next_run"] <= now + 4 * 86_400
    if when == "at 14:30":
        assert time.localtime(answer["next_run"])[3:5] == (14, 30)
    client.ok("ADMIN_CANCEL_TASK", answer["task_id"])


@pytest.mark.parametrize("when", ["sometimes", "every 0 seconds", "at 25:00", "cron: 61 * * * *"])
def test_a_schedule_that_makes_no_sense_is_refused(client: Client, when: str) -> None:
    said = client.error("SCHEDULE", {"payload": "x", "schedule": when})
    assert said.startswith("Invalid schedule format: ")


def test_a_schedule_is_json(client: Client) -> None:
    assert client.error("SCHEDULE", "every 5 seconds") == "Invalid JSON payload"


def test_a_topic_copies_to_every_queue_that_is_subscribed(client: Client, queue: str) -> None:
    topic = f"{queue}.made"
    assert client.ok("SUBSCRIBE", {"topic": topic, "queue": queue}).json == {
        "topic": topic, "queue": queue,
    }  # fmt: skip
    named = client.ok("SUBSCRIBE", {"topic": topic}).json["queue"]
    assert named.startswith(f"sub_{topic}_")
    assert len(bytes.fromhex(named.rpartition("_")[2])) == 4
    answer = client.ok("PUBLISH", {"topic": topic, "message": "a chair"}).json
    assert set(answer) == {"topic", "published", "task_ids"}
    assert (answer["topic"], answer["published"], len(answer["task_ids"])) == (topic, 2, 2)
    got = [client.pull(queue), client.pull(named)]
    assert {each["task_id"] for each in got} == set(answer["task_ids"])
    assert [each["payload"] for each in got] == ["a chair"] * 2

    assert client.ok("UNSUBSCRIBE", {"topic": topic, "queue": queue}).json == {
        "unsubscribed": queue, "topic": topic,
    }  # fmt: skip
    said = client.error("UNSUBSCRIBE", {"topic": topic, "queue": queue})
    assert said == f"Queue '{queue}' not subscribed to topic '{topic}'"
    assert client.ok("PUBLISH", {"topic": topic, "message": "a table"}).json["published"] == 1
    assert client.ok("UNSUBSCRIBE", {"topic": topic}).json == {"unsubscribed": 1, "topic": topic}
    assert client.error("UNSUBSCRIBE", {"topic": topic}) == f"Topic '{topic}' not found"
    said = client.error("PUBLISH", {"topic": topic, "message": "a bed"})
    assert said == f"No subscribers for topic '{topic}'"


@pytest.mark.parametrize(
    ("pattern", "wanted", "not_wanted"),
    [
        ("events.*", ["events.user"], ["events.user.login", "events", "eventsfoo", "other.user"]),
        ("events.#", ["events.user", "events.user.login"], ["eventsfoo", "other.events"]),
        ("*.user.#", ["events.user.login", "e.user.a.b"], ["user.a", "events.other.login"]),
    ],
)
def test_wildcards_stand_for_levels(
    client: Client, queue: str, pattern: str, wanted: list[str], not_wanted: list[str]
) -> None:
    client.ok("SUBSCRIBE", {"topic": pattern, "queue": queue})
    for each in wanted:
        assert client.ok("PUBLISH", {"topic": each, "message": each}).json["published"] == 1
    for each in not_wanted:
        said = client.error("PUBLISH", {"topic": each, "message": each})
        assert said == f"No subscribers for topic '{each}'"
    assert client.drain(queue) == wanted
    assert client.ok("UNSUBSCRIBE", {"topic": pattern, "queue": queue})


def test_a_queue_gets_one_copy_however_many_patterns_want_it(client: Client, queue: str) -> None:
    for pattern in (f"{queue}.*", f"{queue}.#", f"{queue}.a"):
        client.ok("SUBSCRIBE", {"topic": pattern, "queue": queue})
    assert client.ok("PUBLISH", {"topic": f"{queue}.a", "message": "m"}).json["published"] == 1
    assert client.drain(queue) == ["m"]


@pytest.mark.parametrize("pattern", ["a#", "a.b#", "a.**"])
def test_a_pattern_that_makes_no_sense_is_refused(client: Client, pattern: str) -> None:
    said = client.error("SUBSCRIBE", {"topic": pattern, "queue": "any"})
    assert said.startswith("Invalid topic pattern: ")


def test_a_topic_has_a_name(client: Client) -> None:
    assert client.error("PUBLISH", {"topic": "", "message": "m"}) == "Topic name required"
    assert client.error("PUBLISH", {"message": "m"}) == "Topic name required"


# Transactions.


def begin(client: Client) -> str:
    answer = client.ok("BEGIN_TX").json
    assert set(answer) == {"transaction_id"}
    made: str = answer["transaction_id"]
    return made


def test_a_commit_pushes_and_acknowledges_together(client: Client, queue: str) -> None:
    done = client.push("order", queue)
    client.pull(queue)
    at = begin(client)
    client.push("invoice", f"{queue}b", transaction_id=at)
    answer = client.ok("ACK", {"task_id": done, "transaction_id": at})
    assert answer.text == "Task added to transaction"
    assert counts(client, queue) == (0, 1)
    assert client.pull(f"{queue}b") is None
    assert client.ok("COMMIT_TX", {"transaction_id": at}).json == {
        "transaction_id": at, "operations": 2,
    }  # fmt: skip
    assert counts(client, queue) == (0, 0)
    assert client.drain(f"{queue}b") == ["invoice"]
    said = client.error("COMMIT_TX", {"transaction_id": at})
    assert said == f"Transaction {at} is not active (status: committed)"


def test_a_rollback_leaves_everything_as_it_was(client: Client, queue: str) -> None:
    held = client.push("order", queue)
    client.pull(queue)
    at = begin(client)
    client.push("invoice", queue, transaction_id=at, idempotency_key="i1")
    client.ok("ACK", {"task_id": held, "transaction_id": at})
    assert client.ok("ROLLBACK_TX", {"transaction_id": at}).json == {
        "transaction_id": at, "status": "rolled_back",
    }  # fmt: skip
    assert counts(client, queue) == (0, 1)
    assert client.ok("ACK", held).text == "Task acknowledged"
    client.push("invoice", queue, idempotency_key="i1")  # its key was not used up
    assert client.drain(queue) == ["invoice"]
    said = client.error("COMMIT_TX", {"transaction_id": at})
    assert said.startswith(f"Transaction {at} is not active (status: ")


def test_a_commit_that_cannot_be_does_nothing(client: Client, queue: str) -> None:
    client.ok("ADMIN_SET_QUEUE_LIMIT", {"queue": queue, "max_depth": 1})
    at = begin(client)
    client.push("elsewhere", f"{queue}b", transaction_id=at)
    client.push("first", queue, transaction_id=at)
    client.push("too many", queue, transaction_id=at)
    client.error("COMMIT_TX", {"transaction_id": at})
    assert client.pull(queue) is None
    assert client.pull(f"{queue}b") is None


def test_a_commit_leaves_out_what_is_there_already(client: Client, queue: str) -> None:
    done = client.push("order", queue)
    client.pull(queue)
    at = begin(client)
    for payload, key in (("first", "i1"), ("again", "i1"), ("late", "i2")):
        client.push(payload, queue, transaction_id=at, idempotency_key=key)
    client.push("other", queue, transaction_id=at)
    client.ok("ACK", {"task_id": done, "transaction_id": at})
    client.push("sooner", queue, idempotency_key="i2")
    known = {"payload": "x", "queue": queue, "transaction_id": at, "idempotency_key": "i2"}
    assert client.error("PUSH", known) == "Duplicate task detected"
    assert client.ok("COMMIT_TX", {"transaction_id": at}).json["operations"] == 3
    assert client.drain(queue) == ["sooner", "first", "other"]
    assert counts(client, queue) == (0, 0)


def test_a_nack_is_part_of_a_transaction(client: Client, queue: str) -> None:
    task = client.push("order", queue)
    client.pull(queue)
    at = begin(client)
    client.ok("NACK", {"task_id": task, "error": "no paper", "transaction_id": at})
    assert counts(client, queue) == (0, 1)
    client.ok("COMMIT_TX", {"transaction_id": at})
    assert counts(client, queue) == (1, 0)
    assert client.ok("ADMIN_GET_TASK", task).json["retry_count"] == 1


def test_a_transaction_lasts_a_minute(broker: Running, client: Client, queue: str) -> None:
    at = begin(client)
    client.push("late", queue, transaction_id=at)
    advance(broker, 61)
    said = client.error("COMMIT_TX", {"transaction_id": at})
    assert said == f"Transaction {at} has expired"
    assert client.pull(queue) is None


@pytest.mark.parametrize("word", ["COMMIT_TX", "ROLLBACK_TX"])
def test_a_transaction_that_never_was_cannot_end(client: Client, word: str) -> None:
    assert client.error(word, {"transaction_id": "x"}) == "Invalid transaction ID"


# Administration.

STATS = {
    "queues", "processing", "scheduled", "dlq", "workers", "uptime_seconds", "tasks_pushed",
    "tasks_completed", "tasks_expired", "tasks_failed", "ready_queue_depth",
    "processing_queue_depth", "avg_processing_time_seconds", "tasks_per_second", "scheduled_tasks",
    "dlq_count", "active_workers", "queue_count",
}  # fmt: skip


def test_figures_count_what_happens(client: Client, queue: str) -> None:
    before = client.stats()
    assert set(before) == STATS
    tasks = [client.push(each, queue) for each in "abc"]
    client.pull(queue)
    client.pull(queue)
    now = client.stats()
    assert now["queues"][queue] == {"depth": 1, "processing": 2}
    assert now["tasks_pushed"] == before["tasks_pushed"] + 3
    assert now["ready_queue_depth"] == sum(each["depth"] for each in now["queues"].values())
    assert now["processing_queue_depth"] == now["processing"] == before["processing"] + 2
    client.ok("ACK", tasks[0])
    after = client.stats()
    assert after["tasks_completed"] == before["tasks_completed"] + 1
    assert after["queues"][queue] == {"depth": 1, "processing": 1}
    assert after["queue_count"] == len(after["queues"])


def test_a_queue_is_looked_at(client: Client, queue: str) -> None:
    tasks = [client.push(f"{at}", queue, "LOW") for at in range(12)]
    first = client.push("now", queue, "HIGH")
    client.pull(queue)
    info = client.ok("ADMIN_QUEUE_INFO", queue).json
    shown = info.pop("tasks")
    assert info == {"name": queue, "depth": 12, "processing": 1, "scheduled": 0}
    assert len(shown) == 10
    assert shown[0] == {"id": tasks[0], "payload": "0", "priority": 2}
    listed = client.ok("ADMIN_LIST_QUEUES").json
    assert listed["queues"][queue] == {"depth": 12, "processing": 1, "scheduled": 0}
    assert "default" in listed["queues"]
    metrics = client.ok("ADMIN_QUEUE_METRICS", queue).json
    assert set(metrics) == {
        "queue", "depth", "processing", "backpressure_level", "ttl", "max_depth",
    }  # fmt: skip
    assert (metrics["queue"], metrics["depth"], metrics["max_depth"]) == (queue, 12, 10_000)
    assert 0 < metrics["backpressure_level"] < 0.01
    assert client.status(first) == "processing"


def test_a_task_is_looked_at_and_cancelled(client: Client, queue: str) -> None:
    task = client.push("p" * 80, queue, "LOW")
    found = client.ok("ADMIN_GET_TASK", task).json
    created = found.pop("created_at")
    assert isinstance(created, float)
    assert found == {
        "task_id": task, "payload": "p" * 80, "priority": 2, "queue": queue, "retry_count": 0,
        "scheduled_at": None,
    }  # fmt: skip
    listed = client.ok("ADMIN_LIST_TASKS", {"queue": queue, "status": "ready"}).json
    assert listed["count"] == 1
    assert (listed["tasks"][0]["payload"], listed["tasks"][0]["status"]) == ("p" * 50, "ready")
    assert client.ok("ADMIN_CANCEL_TASK", task).json == {"cancelled": task}
    assert client.error("ADMIN_GET_TASK", task) == f"Task '{task}' not found"
    said = client.error("ADMIN_CANCEL_TASK", task)
    assert said == f"Task '{task}' not found or cannot be cancelled"


def test_tasks_are_listed_by_how_they_stand(client: Client, queue: str) -> None:
    for at in range(3):
        client.push(f"{at}", queue)
    for _ in range(3):
        client.nack(client.pull(queue)["task_id"])
    client.pull(queue)  # another
    for status, number in (("ready", 1), ("processing", 1), ("dlq", 1), ("scheduled", 0)):
        listed = client.ok("ADMIN_LIST_TASKS", {"queue": queue, "status": status}).json
        assert [each["status"] for each in listed["tasks"]] == [status] * number
        assert listed["count"] == number
    assert client.ok("ADMIN_LIST_TASKS", {"queue": queue, "status": "all"}).json["count"] == 3
    client.ok("PUSH_BATCH", {"tasks": [{"payload": "x", "queue": queue}] * 120})
    assert len(client.ok("ADMIN_LIST_TASKS", {"queue": queue}).json["tasks"]) == 100


def test_a_queue_is_purged_and_deleted(client: Client, queue: str) -> None:
    client.push("a", queue)
    client.push("b", queue)
    assert client.error("ADMIN_DELETE_QUEUE", queue) == f"Queue '{queue}' is not empty"
    assert client.ok("ADMIN_PURGE_QUEUE", queue).json == {"purged": 2, "queue": queue}
    assert client.ok("ADMIN_DELETE_QUEUE", queue).json == {"deleted": queue}
    assert client.error("ADMIN_QUEUE_INFO", queue) == f"Queue '{queue}' not found"
    assert client.error("ADMIN_DELETE_QUEUE", "default") == "Cannot delete default queue"


def test_a_full_queue_says_so_and_takes_again_when_there_is_room(
    client: Client, queue: str
) -> None:
    client.push("a", queue)
    limit = {"queue": queue, "max_depth": 2}
    assert client.ok("ADMIN_SET_QUEUE_LIMIT", limit).json == limit
    client.push("b", queue)
    said = client.error("PUSH", {"payload": "c", "queue": queue})
    assert said == f"Queue '{queue}' is at capacity (2/2)"
    assert client.ok("ADMIN_QUEUE_METRICS", queue).json["backpressure_level"] == 1
    client.ok("ACK", client.pull(queue)["task_id"])
    client.push("c", queue)
    assert client.drain(queue) == ["b", "c"]
    said = client.error("ADMIN_SET_QUEUE_LIMIT", {"queue": queue})
    assert said == "Queue name and max_depth required"


def test_old_tasks_of_a_queue_with_a_time_to_live_are_not_pulled(
    broker: Running, client: Client, queue: str
) -> None:
    form = {"queue": queue, "ttl": 5}
    assert client.ok("ADMIN_SET_QUEUE_TTL", form).json == form
    assert client.error("ADMIN_SET_QUEUE_TTL", {"ttl": 5}) == "Queue name required"
    client.push("old", queue)
    advance(broker, 6)
    assert client.pull(queue) is None
    client.push("new", queue)
    assert client.drain(queue) == ["new"]
    assert client.ok("ADMIN_QUEUE_METRICS", queue).json["ttl"] == 5


def test_health_has_its_figures(client: Client) -> None:
    found = client.ok("ADMIN_HEALTH").json
    assert set(found) == {
        "status", "queues", "ready_tasks", "processing_tasks", "active_workers", "uptime_seconds",
    }  # fmt: skip
    assert found["status"] == "healthy"
    assert found["queues"] == client.stats()["queue_count"]


def test_what_is_done_is_replayed(client: Client, queue: str) -> None:
    tasks = [client.push(each, queue) for each in "abc"]
    client.drain(queue)
    answer = client.ok("ADMIN_REPLAY", {"task_ids": tasks[1:2]}).json
    assert set(answer) == {"replayed", "task_ids"}
    assert answer["replayed"] == len(answer["task_ids"]) == 1
    assert client.drain(queue) == ["b"]
    assert client.ok("ADMIN_REPLAY", {"queue_name": queue}).json["replayed"] >= 3
    assert set(client.drain(queue)) == {"a", "b", "c"}
    none = {"queue_name": queue, "to_timestamp": 1_000.0}
    assert client.ok("ADMIN_REPLAY", none).json["replayed"] == 0


def test_strangers_and_clusters_are_refused(client: Client) -> None:
    assert client.error("DANCE") == "Invalid command"
    assert client.error("ADMIN_DANCE") == "Unknown admin command: ADMIN_DANCE"
    for word in ("RAFT_VOTE", "RAFT_HEARTBEAT", "RAFT_APPEND_ENTRIES"):
        assert client.error(word, {"type": "vote", "term": 1}) == "Clustering not enabled"
    assert client.ask("STATS").word == "STATS"  # the connection goes on


# Who comes.


def test_with_a_key_the_first_word_is_auth(tmp_path: Path) -> None:
    secrets = {"SECURITY_ENABLED": "true", "API_KEY": "a long enough secret"}
    with running("--data", str(tmp_path / "data"), environment=secrets) as broker:
        with Client(broker) as client:
            said = client.error("PUSH", "x")
            assert said == "Authentication required. Send AUTH command first."
            assert client.is_ended()
        with Client(broker) as client:
            assert client.error("AUTH") == "AUTH command requires payload"
        for wrong, said in [
            ({"type": "apikey", "value": "wrong"}, "Authentication failed"),
            ({"type": "jwt", "value": "a.b.c"}, "Authentication failed"),
            ({"type": "smile", "value": ":)"}, "Invalid auth type"),
            ("nonsense", "Invalid auth payload"),
        ]:
            with Client(broker) as client:
                assert client.error("AUTH", wrong) == said
        with Client(broker) as client:
            answer = client.ok("AUTH", {"type": "apikey", "value": "a long enough secret"})
            assert answer.json == {"authenticated": True, "principal": "api_key_user"}
            client.push("x", "jobs")
            assert client.drain("jobs") == ["x"]
            answers = [client.ask("PUSH", {"payload": "x", "queue": "jobs"}) for _ in range(19)]
            assert {each.word for each in answers} == {"OK"}  # twenty at once
            client.write(frame("PUSH", {"payload": "x", "queue": "jobs"}) * 200)
            refused = [each for each in (client.read() for _ in range(200)) if each.word != "OK"]
            assert set(refused) == {Answer("ERROR", b"Rate limit exceeded")}


def test_its_api_is_on_a_port_of_its_own() -> None:
    with running("--dev", "--memory", "--port", "0=pyqueue-http") as broker:
        ports = broker.events("broker.ready")[0]["ports"]
        for port in ports:
            broker.port = port
            health = broker.call("GET", "/health").json
            if set(health) == {"status", "broker_running"}:
                break
        else:
            raise AssertionError("it is on none")
        form = {"payload": "x", "priority": "HIGH", "queue": "jobs", "idempotency_key": "k"}
        made = broker.call("POST", "/api/tasks", form).json
        assert made["status"] == "created"
        tasks = [{"payload": "y", "queue": "jobs"}]
        assert broker.call("POST", "/api/tasks/batch", {"tasks": tasks}).json["count"] == 1
        with Client(broker) as client:  # it takes the protocol too
            assert client.pull("jobs")["task_id"] == made["task_id"]
            assert broker.call("GET", "/api/queues/jobs").json["processing"] == 1
            listed = client.ok("ADMIN_LIST_QUEUES").json
            assert broker.call("GET", "/api/queues").json == listed
        assert broker.call("GET", "/api/queues/none").status == 404
        assert broker.call("GET", "/api/workers").json == {"workers": [], "count": 0}
        assert broker.call("GET", "/api/dlq").json == {"tasks": [], "count": 0}
        assert broker.call("GET", "/api/metrics").json["tasks_pushed"] == 2
        assert b"html" in broker.call("GET", "/").body


# Bytes.


def test_requests_are_answered_in_order_however_many_come_at_once(
    client: Client, queue: str
) -> None:
    pushes = [frame("PUSH", {"payload": f"{at}", "queue": queue}) for at in range(500)]
    client.write(b"".join(pushes) + frame("PULL", {"queue": queue}) * 500)
    tasks = [client.read().text for _ in range(500)]
    jobs = [client.read() for _ in range(500)]
    assert {each.word for each in jobs} == {"JOB"}
    assert [each.json["task_id"] for each in jobs] == tasks
    client.write(b"".join(frame("ACK", each) for each in tasks))
    assert {client.read() for _ in tasks} == {Answer("OK", b"Task acknowledged")}
    assert counts(client, queue) == (0, 0)


def test_a_frame_may_be_cut_anywhere(broker: Running, queue: str) -> None:
    whole = frame("PUSH", {"payload": "cut", "queue": queue}) + frame("PULL", {"queue": queue})
    with Client(broker) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(1, len(whole)):
            client.write(whole[:at])
            client.write(whole[at:])
            task = client.read().text
            assert client.read().json["task_id"] == task
            client.ok("ACK", task)
        for at in range(len(whole)):
            client.write(whole[at : at + 1])
        assert client.read().text == client.read().json["task_id"]


@pytest.mark.parametrize(
    "lie",
    [
        b"PUSH %d " % (MESSAGE_MAX + 1), b"PUSH 99999999999999999999 ", b"PUSH -1 ", b"PUSH 1e3 x",
        b"PUSH  5 hello", b"PUSH +5 hello",
    ],
)  # fmt: skip
def test_a_length_that_cannot_be_is_told_and_ends_the_connection(
    broker: Running, client: Client, lie: bytes
) -> None:
    with Client(broker) as liar:
        liar.ask("STATS")
        liar.write(lie)
        assert liar.read() == Answer("ERROR", b"Invalid message or message too large")
        assert liar.is_ended()
    assert client.ask("STATS").word == "STATS"  # nobody else's


def test_a_frame_that_stays_short_pushes_nothing(
    broker: Running, client: Client, queue: str
) -> None:
    with Client(broker) as liar:
        liar.ask("STATS")
        liar.write(frame("PUSH", {"payload": "x", "queue": queue})[:-1])
    assert client.ask("PULL", {"queue": queue}) == Answer("NO_JOB", b"")
    assert queue not in client.stats()["queues"]


def test_megabytes_go_through(client: Client, queue: str) -> None:
    large = "x" * 8_000_000
    client.push(large, queue)
    assert client.pull(queue)["payload"] == large


def test_the_length_may_be_four_bytes(broker: Running, queue: str) -> None:
    """As the design document has it; the answer is written likewise."""
    with Client(broker) as client:
        form = {"payload": "drawn", "queue": queue}
        client.write(fixed_frame("PUSH", form) + fixed_frame("PULL", {"queue": queue}))
        task = client.read_fixed()
        assert task.word == "OK"
        job = client.read_fixed()
        assert (job.word, job.json["task_id"], job.json["payload"]) == ("JOB", task.text, "drawn")
        assert client.ok("ACK", task.payload).text == "Task acknowledged"  # and in decimal again


# Restarting.


def test_what_was_answered_is_there_after_a_kill(tmp_path: Path) -> None:
    with development(tmp_path / "data") as broker, Client(broker) as client:
        for priority in ("LOW", "NORMAL", "HIGH"):
            client.push(f"{priority} 1", "jobs", priority)
            client.push(f"{priority} 2", "jobs", priority)
        batch = [{"payload": "batch", "queue": "jobs", "priority": "HIGH"}]
        client.ok("PUSH_BATCH", {"tasks": batch})
        client.ok("ACK", client.pull("jobs")["task_id"])
        failed = client.push("failed", "sour")
        for _ in range(3):
            client.pull("sour")
            client.nack(failed)
        client.nack(client.pull("jobs")["task_id"])
        client.ok("SUBSCRIBE", {"topic": "news.#", "queue": "news"})
        client.ok("SCHEDULE", {"payload": "tick", "schedule": "every 1 hours"})
        client.ok("ADMIN_CANCEL_TASK", client.push("cancelled", "jobs"))
        client.push("once", "jobs", "LOW", idempotency_key="k")
        open_transaction = begin(client)
        client.push("in no queue", "jobs", transaction_id=open_transaction)
        broker.kill()
    with development(tmp_path / "data") as broker, Client(broker) as client:
        again = {"payload": "twice", "queue": "jobs", "idempotency_key": "k"}
        assert client.error("PUSH", again) == "Duplicate task detected"
        [dead] = client.ok("ADMIN_GET_DLQ").json["tasks"]
        assert (dead["task_id"], dead["retry_count"]) == (failed, 3)
        scheduled = client.ok("ADMIN_LIST_TASKS", {"status": "scheduled"}).json
        assert [each["payload"] for each in scheduled["tasks"]] == ["tick"]
        assert client.ok("PUBLISH", {"topic": "news.a", "message": "m"}).json["published"] == 1
        job = client.pull("jobs")
        assert (job["payload"], job["priority"]) == ("HIGH 2", 0)
        assert client.ok("ADMIN_GET_TASK", job["task_id"]).json["retry_count"] == 1
        client.ok("ACK", job["task_id"])
        assert client.drain("jobs") == [
            "batch", "NORMAL 1", "NORMAL 2", "LOW 1", "LOW 2", "once",
        ]  # fmt: skip


def test_what_was_replayed_and_is_in_its_queue_is_left_out(client: Client, queue: str) -> None:
    task = client.push("a", queue)
    client.drain(queue)
    assert client.ok("ADMIN_REPLAY", {"task_ids": [task]}).json["replayed"] == 1
    assert client.ok("ADMIN_REPLAY", {"task_ids": [task]}).json["replayed"] == 0
    assert counts(client, queue) == (1, 0)
    client.drain(queue)  # and what was done again can be replayed again, once
    assert client.ok("ADMIN_REPLAY", {"task_ids": [task]}).json["replayed"] == 1
    assert counts(client, queue) == (1, 0)


def test_a_task_that_is_held_back_is_listed(broker: Running, client: Client, queue: str) -> None:
    with vibemq.Client(broker) as frames:  # its queues hold back what has failed
        task = frames.publish(queue, 1)
    client.pull(queue)
    client.nack(task)
    assert counts(client, queue) == (1, 0)
    [listed] = client.ok("ADMIN_LIST_TASKS", {"queue": queue}).json["tasks"]
    assert listed["status"] == "ready"
