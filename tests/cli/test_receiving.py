"""`posthouse receive` completes what it has printed, and nothing else."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.terminal import COMMAND, INTERRUPTIBLE, run, surroundings, terminal
from tests.server.running import Running
from tests.waiting import until

MESSAGES = 500
POSTHOUSE = f"{sys.executable} -m posthouse.cli"


def fill(broker: Running, queue: str, count: int = MESSAGES, body: str = "message") -> None:
    broker.send(queue, *(f"{body} {number}" for number in range(1, count + 1)))


def left(broker: Running, queue: str) -> int:
    """Messages that are there for the next receiver."""
    counts = broker.queue("GET", queue).json["counts"]
    assert counts["locked"] == 0, counts
    assert counts["dead"] == 0, counts
    active: int = counts["active"]
    return active


def delivered_before(broker: Running, queue: str) -> set[int]:
    """How often the messages that are left were delivered."""
    page = broker.queue("GET", f"{queue}/messages?limit=1000").json["messages"]
    return {message.get("deliveries", 0) for message in page}


@contextmanager
def following(broker: Running, queue: str, *words: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [*COMMAND, "receive", queue, "--follow", *words], env=surroundings(broker),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def test_following_ends_after_the_number_that_was_asked_for(broker: Running) -> None:
    fill(broker, "numbered")
    done = run(broker, "receive", "numbered", "--follow", "-n", "2")
    assert (done.returncode, done.stdout) == (0, "message 1\nmessage 2\n")
    assert left(broker, "numbered") == MESSAGES - 2
    assert delivered_before(broker, "numbered") == {0}


def test_following_with_delete_deletes_the_number_that_was_asked_for(broker: Running) -> None:
    fill(broker, "deleted")
    done = run(broker, "receive", "deleted", "--follow", "-n", "2", "--delete")
    assert (done.returncode, done.stdout) == (0, "message 1\nmessage 2\n")
    assert left(broker, "deleted") == MESSAGES - 2


def test_following_waits_for_those_that_are_still_to_come(broker: Running) -> None:
    fill(broker, "to-come", 1)
    with following(broker, "to-come", "-n", "2") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "message 1\n"
        broker.send("to-come", "later")
        assert process.stdout.readline() == "later\n"
        assert process.wait(30) == 0


def test_following_a_fan_out_queue_ends_after_the_number_that_was_asked_for(
    broker: Running,
) -> None:
    broker.queue("PUT", "told", {"delivery": "fan-out"})
    with following(broker, "told", "-n", "2") as process:
        until(lambda: broker.queue("GET", "told").json["subscriptions"] == 1, "it is attached")
        broker.send("told", "a", "b", "c")
        assert process.communicate(timeout=30)[0] == "a\nb\n"
        assert process.returncode == 0


@pytest.mark.parametrize("follow", [(), ("--follow",)], ids=["receive", "follow"])
@pytest.mark.parametrize("delete", [(), ("--delete",)], ids=["complete", "delete"])
def test_a_reader_that_ends_after_a_line_has_taken_one_message(
    broker: Running, follow: tuple[str, ...], delete: tuple[str, ...]
) -> None:
    queue = f"head{len(follow)}{len(delete)}"
    fill(broker, queue)
    words = " ".join((queue, "-n", str(MESSAGES), *follow, *delete))
    done = subprocess.run(
        ["bash", "-c", f"{POSTHOUSE} receive {words} | head -1; exit ${{PIPESTATUS[0]}}"],
        env=surroundings(broker), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "message 1\n", "")
    # What was deleted before it could be printed is gone: one message, not all of them.
    assert left(broker, queue) in ((MESSAGES - 1,) if not delete else (MESSAGES - 1, MESSAGES - 2))


@pytest.mark.parametrize("follow", [(), ("--follow",)], ids=["receive", "follow"])
def test_ctrl_c_leaves_what_was_not_read(broker: Running, follow: tuple[str, ...]) -> None:
    """The pipe is not read, so that the command waits in the middle of its messages."""
    queue = f"interrupted{len(follow)}"
    fill(broker, queue)
    with subprocess.Popen(
        [*INTERRUPTIBLE, *COMMAND, "receive", queue, "-n", str(MESSAGES), *follow],
        env=surroundings(broker), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        bufsize=1,
    ) as process:  # fmt: skip
        until(lambda: broker.queue("GET", queue).json["counts"]["locked"] > 0, "some are locked")
        process.send_signal(signal.SIGINT)
        said, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (130, "Interrupted.\n")
    assert left(broker, queue) >= MESSAGES - said.count("\n")
    assert left(broker, queue) >= MESSAGES - 1
    assert delivered_before(broker, queue) <= {0, 1}


def test_ctrl_c_on_a_terminal_leaves_nothing_locked(broker: Running) -> None:
    fill(broker, "watched", 2)
    with terminal(broker, "receive", "watched", "--follow") as screen:
        screen.wait_for("message 2\n")
        until(lambda: left_or_none(broker) == 0, "both are completed")
        screen.interrupt()
        assert screen.end() == 130
        assert screen.said.endswith("Interrupted.\n")
        assert "Traceback" not in screen.said


def left_or_none(broker: Running) -> int:
    counts = broker.queue("GET", "watched").json["counts"]
    return int(counts["active"] + counts["locked"])


def test_a_slow_reader_gets_each_message_once(broker: Running) -> None:
    """Reading takes longer than a lock lasts, and no message is held for that long."""
    broker.queue("PUT", "slow", {"lock_ms": 3_000})
    fill(broker, "slow", 8)
    line = f"{POSTHOUSE} receive slow -n 8 | while read line; do echo $line; sleep 0.6; done"
    done = subprocess.run(
        ["bash", "-c", line], env=surroundings(broker), capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.splitlines() == [f"message {number}" for number in range(1, 9)]
    assert left(broker, "slow") == 0


def test_an_output_that_is_full_leaves_the_messages(broker: Running) -> None:
    fill(broker, "full", 3)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "receive", "full", "-n", "3"], env=surroundings(broker), stdout=full,
            stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "The output cannot be written: No space left on device.\n"
    assert left(broker, "full") == 3


def test_keeping_leaves_locked_what_was_printed_and_no_more(broker: Running) -> None:
    fill(broker, "kept", 5)
    done = run(broker, "receive", "kept", "--follow", "-n", "2", "--keep", "--json")
    assert len([json.loads(line)["token"] for line in done.stdout.splitlines()]) == 2
    counts = broker.queue("GET", "kept").json["counts"]
    assert (counts["active"], counts["locked"]) == (3, 2)


def test_a_session_is_released_when_the_reader_ends(broker: Running) -> None:
    broker.queue("PUT", "trips", {"grouping": "session"})
    broker.send("trips", "a", "b", session_id="ann")
    line = f"{POSTHOUSE} receive trips --session ann -n 2 | head -1"
    subprocess.run(["bash", "-c", line], env=surroundings(broker), check=True, timeout=60)
    assert run(broker, "receive", "trips", "--session", "ann").stdout == "b\n"
    done = run(broker, "receive", "trips", "--session", "ann", "--follow")
    assert (done.returncode, "exclude each other" in done.stderr) == (2, True)
