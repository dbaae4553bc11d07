"""What removes something asks on a terminal, and acts at once without one."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cli.terminal import run, terminal
from tests.server.running import Running

API = "/api/v1/namespaces/default"
DELETED = {
    "queue": (("queue", "delete", "doomed"), "Delete the queue doomed with all its messages?"),
    "topic": (("topic", "delete", "news"), "Delete the topic news with all its subscriptions?"),
    "subscription": (
        ("subscription", "delete", "news", "all"),
        "Delete the subscription all of news with all its messages?",
    ),
    "principal": (
        ("access", "revoke", "web"),
        "Remove the principal web? Its key stops working at once.",
    ),
    "messages": (("queue", "purge", "doomed"), "Remove the active messages of doomed?"),
    "dead letters": (
        ("dlq", "purge", "doomed"),
        "Remove the active and deferred messages of doomed/$dead?",
    ),
}


def is_there(broker: Running, what: str) -> bool:
    match what:
        case "queue":
            return broker.queue("GET", "doomed").status == 200
        case "topic":
            return broker.call("GET", f"{API}/topics/news").status == 200
        case "subscription":
            return broker.call("GET", f"{API}/topics/news/subscriptions/all").status == 200
        case "principal":
            names = broker.call("GET", "/api/v1/principals").json["principals"]
            return any(principal["name"] == "web" for principal in names)
        case _:
            counts = broker.queue("GET", "doomed").json["counts"]
            return bool(counts["active" if what == "messages" else "dead"])


def make(broker: Running) -> None:
    """Everything that is to be deleted, where it is not there."""
    broker.queue("PUT", "doomed", {})
    broker.call("PUT", f"{API}/topics/news", {})
    broker.call("PUT", f"{API}/topics/news/subscriptions/all", {})
    grant = {"namespace": "*", "entity": "*", "rights": ["send"]}
    broker.call("POST", "/api/v1/principals", {"name": "web", "grants": [grant]})
    if not is_there(broker, "dead letters"):
        broker.send("doomed", "x")
        [message] = broker.receive("doomed")
        broker.queue("POST", "doomed/dead-letter", {"locks": [message["token"]]})
    if not is_there(broker, "messages"):
        broker.send("doomed", "x")


@pytest.mark.parametrize("what", DELETED)
def test_a_command_that_removes_something_asks_on_a_terminal(broker: Running, what: str) -> None:
    make(broker)
    words, question = DELETED[what]
    for answer in ("n\n", "\x04"):  # no, the end of the input
        with terminal(broker, *words) as screen:
            screen.wait_for(f"{question} [y/N] ")
            assert is_there(broker, what)
            screen.type(answer)
            assert screen.end() == 1
            assert screen.said.endswith("Nothing was changed.\n")
        assert is_there(broker, what)
    with terminal(broker, *words) as screen:
        screen.wait_for("[y/N] ")
        screen.interrupt()
        assert screen.end() == 130
    assert is_there(broker, what)
    with terminal(broker, *words) as screen:
        screen.wait_for("[y/N] ")
        screen.type("y\n")
        assert screen.end() == 0
    assert not is_there(broker, what)


@pytest.mark.parametrize("what", DELETED)
def test_yes_and_a_pipe_are_not_asked(broker: Running, what: str) -> None:
    words, _ = DELETED[what]
    make(broker)
    with terminal(broker, *words, "--yes") as screen:
        assert screen.end() == 0
        assert "[y/N]" not in screen.said
    assert not is_there(broker, what)
    make(broker)
    done = run(broker, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert not is_there(broker, what)


def test_to_delete_a_topic_does_not_delete_a_queue_of_that_name(broker: Running) -> None:
    broker.queue("PUT", "no-topic", {})
    assert run(broker, "topic", "delete", "no-topic").returncode == 3
    assert broker.queue("GET", "no-topic").status == 200


# The name of a subscription.


def test_a_subscription_is_named_behind_its_topic(broker: Running) -> None:
    broker.call("PUT", f"{API}/topics/events", {})
    broker.call("PUT", f"{API}/topics/events/subscriptions/eu", {})
    broker.send("events", "a", "b", "c")
    assert run(broker, "peek", "events/eu").stdout.count("active") == 3
    assert run(broker, "receive", "events/eu").stdout == "a\n"
    assert run(broker, "receive", "events/eu", "--follow", "-n", "1").stdout == "b\n"
    assert run(broker, "receive", "events", "-s", "eu").stdout == "c\n"
    assert run(broker, "receive", "events/eu").returncode == 5
    assert broker.queue("GET", "events%2Feu").status == 404


def test_a_topic_without_that_subscription_gets_no_queue_of_that_name(broker: Running) -> None:
    broker.call("PUT", f"{API}/topics/events", {})
    for words in (("receive", "events/none"), ("receive", "events/none", "--follow"),
                  ("peek", "events/none"), ("dlq", "ls", "events/none"),
                  ("session", "ls", "events/none")):  # fmt: skip
        done = run(broker, *words)
        assert (done.returncode, done.stderr) == (
            3,
            "The topic events has no subscription none; `posthouse subscription ls events` lists"
            " them.\n",
        )
    assert broker.queue("GET", "events%2Fnone").status == 404


def test_a_queue_whose_name_has_a_slash_is_still_a_queue(broker: Running) -> None:
    broker.send("eu%2Forders", "x", "y")
    assert run(broker, "receive", "eu/orders").stdout == "x\n"
    broker.call("PUT", f"{API}/topics/eu", {})
    broker.call("PUT", f"{API}/topics/eu/subscriptions/orders", {})
    done = run(broker, "receive", "eu/orders")
    assert done.stdout == "y\n"
    assert "eu -s orders" in done.stderr


# What is not there.

NOT_THERE = """\
queue show none            queue delete none           queue purge none
queue pause none           queue resume none           queue update none --set lock_ms=5000
peek none                  peek none --dead            dlq ls none
dlq show none 1            dlq resubmit none           dlq resubmit there 7
dlq purge none             scheduled ls none           scheduled cancel there 7
session ls none            message show none           message show 7 --queue there
message show 7 --queue none                            topic show none
topic update none --set ttl_ms=5000                    topic delete none
topic delete there         subscription ls none        subscription show none s
subscription delete topic none                         rule ls topic none
rule remove topic none r   schedule pause none         schedule resume none
schedule cancel none       access rotate none          access revoke none
queue ls --namespace none  receive q --namespace none  send q x --namespace none
top --once --namespace none                            clock --namespace none
feed tail --wait 10ms --namespace none                 quiet --namespace none
send there --file FILE
queue ls --key-file FILE   queue ls --url https://localhost:1 --ca FILE
serve --config FILE        config show --config FILE   serve --memory --tls-cert FILE --tls-key FILE
serve --memory --jwt-public-key FILE                   tls env --data FILE
store verify --data FILE   store stats --data FILE     store state --data FILE
worker none:app --url posthouse://localhost            pipeline run FILE
pipeline verify --lake FILE                            pipeline compact --lake FILE
pipeline report --lake FILE                            pipeline triage --lake FILE
pipeline replay --lake FILE                            pipeline reconcile --outbox FILE"""


def test_what_is_not_there_has_its_exit_code(broker: Running, tmp_path: Path) -> None:
    """Also with --auto-create, which makes a queue for who sends or receives."""
    broker.queue("PUT", "there", {})
    broker.call("PUT", f"{API}/topics/topic", {})
    given = [part for line in NOT_THERE.splitlines() for part in line.split("  ") if part]
    commands = [each.replace("FILE", str(tmp_path / "none")).split() for each in given]
    with ThreadPoolExecutor(4) as several:
        ended = list(several.map(lambda words: run(broker, *words, cwd=tmp_path), commands))
    for words, done in zip(commands, ended, strict=True):
        assert done.returncode == 3, (words, done)
        assert done.stdout == "", words
        assert len(done.stderr.splitlines()) == 1, (words, done.stderr)
    assert broker.queue("GET", "none").status == 404
