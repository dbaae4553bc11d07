"""Every command of the command line against a real broker."""

import argparse
import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posthouse.cli.completion import candidates
from posthouse.cli.parser import make_parser
from tests.server.running import Running, development, running
from tests.waiting import until

COMMAND = [sys.executable, "-m", "posthouse.cli"]


class Shell:
    """Runs commands against one broker."""

    def __init__(self, broker: Running, **environment: str) -> None:
        self.broker = broker
        self.environment = {**os.environ, "POSTHOUSE_URL": broker.url, **environment}

    def run(self, *words: str, code: int = 0, given: str = "") -> str:
        done = subprocess.run(
            [*COMMAND, *words], env=self.environment, capture_output=True, text=True, input=given,
            timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def json(self, *words: str) -> object:
        return json.loads(self.run(*words, "--json"))


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with development(tmp_path_factory.mktemp("cli") / "data") as broker:
        yield Shell(broker)


def test_sending_and_receiving(shell: Shell, tmp_path: Path) -> None:
    assert shell.run("send", "orders", "a book", "--id", "b1") == "Sent to orders as 1.\n"
    shell.run("send", "orders", given="from the input")
    (tmp_path / "body").write_bytes(b"\x00\xff")
    shell.run("send", "orders", "--file", str(tmp_path / "body"), "--priority", "9")
    said = shell.run("send", "orders", "--lines", given="x\ny\n")
    assert said == "Sent 2 messages to orders.\n"
    assert shell.run("receive", "orders", "-n", "2") == "a book\nfrom the input\n"
    [rest] = [shell.run("receive", "orders", "--json", "--keep")]
    message = json.loads(rest)
    assert (message["body_base64"], message["priority"]) == ("AP8=", 9)
    assert message["token"]
    assert shell.run("receive", "orders", "-n", "9", "--delete") == "x\ny\n"
    assert "nothing" in shell.run("receive", "orders", code=5)
    assert "nothing" in shell.run("receive", "orders", "--wait", "50ms", code=5)


def test_fields_of_a_message(shell: Shell) -> None:
    shell.run(
        "send", "fields", "x", "--subject", "s", "--content-type", "text/plain", "--property",
        "colour=red", "--property", "size=5", "--ttl", "1h", "--correlation-id", "c",
    )  # fmt: skip
    message = json.loads(shell.run("peek", "fields", "--json"))[0]
    assert message["subject"] == "s"
    assert message["properties"] == {"colour": "red", "size": "5"}
    assert message["expires_ms"] > time.time() * 1000
    table = shell.run("peek", "fields")
    assert table.splitlines()[0].split() == [
        "NUMBER", "STATE", "ID", "TIME", "DELIVERIES", "REASON", "BODY"
    ]  # fmt: skip
    assert "\033" not in table


def test_queues(shell: Shell) -> None:
    shell.run("queue", "create", "made", "--set", "lock_ms=5000", "--set", "order=priority")
    assert "exists already" in shell.run("queue", "create", "made", code=1)
    info = shell.json("queue", "show", "made")
    assert isinstance(info, dict)
    assert (info["properties"]["lock_ms"], info["properties"]["order"]) == (5_000, "priority")
    shell.run("queue", "update", "made", "--set", "lock_ms=6000")
    assert "lock_ms              6000" in shell.run("queue", "show", "made")
    assert "made" in shell.run("queue", "ls")
    assert "must be" in shell.run("queue", "update", "made", "--set", "lock_ms=-1", code=2)
    shell.run("queue", "update", "made", code=2)
    shell.run("send", "made", "--lines", given="x\n" * 1_200)
    shell.run("queue", "pause", "made", "--sending")
    assert "send-disabled" in shell.run("send", "made", "x", code=1)
    shell.run("queue", "resume", "made")
    assert shell.run("queue", "purge", "made") == "Removed 1200 messages from made.\n"
    shell.run("queue", "delete", "made")
    shell.run("queue", "delete", "made", code=3)
    shell.run("queue", "show", "made", code=3)


def test_dead_letters(shell: Shell) -> None:
    for word in ("one", "two", "three"):
        shell.broker.send("letters", word)
        [message] = shell.broker.receive("letters")
        form = {"locks": [message["token"]], "reason": "bad", "description": "no good"}
        shell.broker.queue("POST", "letters/dead-letter", form)
    assert re.search(r"letters +3", shell.run("dlq", "ls"))
    assert "bad" in shell.run("dlq", "ls", "letters")
    assert "no good" in shell.run("dlq", "show", "letters", "1")
    shell.run("dlq", "show", "letters", "99", code=3)
    assert shell.run("dlq", "resubmit", "letters", "2") == "Sent 1 dead letters again.\n"
    assert shell.run("receive", "letters") == "two\n"
    assert shell.run("receive", "letters", "--dead") == "one\n"
    assert shell.run("dlq", "resubmit", "letters") == "Sent 1 dead letters again.\n"
    shell.run("dlq", "purge", "letters")
    assert shell.run("receive", "letters") == "three\n"


def test_sessions_and_schedules(shell: Shell) -> None:
    shell.run("queue", "create", "trips", "--set", "grouping=session")
    shell.run("send", "trips", "x", "--session", "ann")
    shell.run("send", "trips", "y", "--session", "bob")
    assert shell.json("session", "ls", "trips") == ["ann", "bob"]
    assert shell.run("receive", "trips", "--session", "bob") == "y\n"
    assert shell.run("receive", "trips", "--session") == "x\n"
    shell.run("send", "later", "x", "--delay", "1h")
    shell.run("send", "later", "y", "--delay", "2h")
    assert "scheduled" in shell.run("scheduled", "ls", "later")
    shell.run("scheduled", "cancel", "later", "1")
    shell.run("scheduled", "cancel", "later", "1", code=3)


def test_the_clock_and_the_life_of_a_message(shell: Shell) -> None:
    shell.broker.call("PUT", "/api/v1/namespaces/timely")
    mine = ("--namespace", "timely")
    shell.run("send", "q", "x", "--id", "m1", "--delay", "1h", *mine)
    assert "activated q" in shell.run("clock", "--advance", "2h", "--freeze", *mine)
    before = shell.run("clock", *mine)
    assert "frozen" in before
    assert shell.run("clock", *mine) == before
    shell.run("clock", "--set", "2100-01-01T00:00:00Z", "--auto", "off", "--resume", *mine)
    assert "2100-01-01" in shell.run("clock", *mine)
    shell.run("receive", "q", *mine)
    said = shell.run("message", "show", "m1", *mine)
    words = ("sent to 'q'", "active as 2", "delivered", "completed")
    assert [next(i for i, line in enumerate(said.splitlines()) if w in line) for w in words] == [
        1, 2, 3, 4
    ]  # fmt: skip
    by_number = shell.run("message", "show", "2", "--queue", "q", *mine)
    assert by_number.splitlines()[1:] == said.splitlines()[1:]
    shell.run("message", "show", "nobody", *mine, code=3)


def test_top_and_the_feed(shell: Shell) -> None:
    shell.run("send", "watched", "x", "--id", "w1")
    assert "watched" in shell.run("top", "--once")
    assert "watched" in shell.run("top")
    lines = shell.run("feed", "tail", "--after", "0", "-n", "3", "--json").splitlines()
    assert [json.loads(line)["position"] for line in lines] == [1, 2, 3]
    said = shell.run("feed", "tail", "--after", "0", "--entity", "watched", "--namespace",
                     "default", "--kinds", "sent", "--wait", "10ms")  # fmt: skip
    assert "message_id=w1" in said


def test_following_goes_on_when_nothing_happens(shell: Shell) -> None:
    command = [*COMMAND, "feed", "tail", "--follow", "--wait", "50ms", "--json"]
    with subprocess.Popen(
        command, env=shell.environment, stdout=subprocess.PIPE, text=True
    ) as tail:
        assert tail.stdout is not None
        with pytest.raises(subprocess.TimeoutExpired):
            tail.wait(2)
        shell.run("send", "followed", "x")
        assert json.loads(tail.stdout.readline())["entity"] == "followed"
        tail.terminate()


def test_options_may_come_before_the_body(shell: Shell) -> None:
    shell.run("send", "early", "--id", "b1", "a book")
    assert shell.run("receive", "early") == "a book\n"
    for words in (("x", "--lines"), ("x", "--file", "y"), ("--id", "b", "x", "y")):
        shell.run("send", "early", *words, code=2)
    for command in ("show", "create", "delete"):
        assert "empty" in shell.run("queue", command, "", code=2)


def test_the_store(shell: Shell) -> None:
    folder = str(shell.broker.call("GET", "/api/v1/store").json["folder"])
    assert "1 segments" in shell.run("store", "stats", "--data", folder)
    found = shell.json("store", "stats", "--data", folder)
    assert isinstance(found, dict)
    assert found["first"] == 1
    shell.run("store", "snapshot", "--data", folder)
    assert "in use" in shell.run("store", "verify", "--data", folder, code=1).lower()


def test_principals_and_keys(tmp_path: Path) -> None:
    with running("--data", str(tmp_path / "data")) as broker:
        nobody = Shell(broker)
        assert "POSTHOUSE_KEY" in nobody.run("queue", "ls", code=4)
        root = ("--key-file", str(tmp_path / "data" / "root-key"))
        made = json.loads(nobody.run("access", "add", "web", "--rights", "send", "--json", *root))
        web = Shell(broker, POSTHOUSE_KEY=f"web:{made['key']}")
        nobody.run("queue", "create", "q", *root)
        web.run("send", "q", "x")
        assert "no right" in web.run("receive", "q", code=4)
        assert re.search(r"web +\* +\* +send", nobody.run("access", "ls", *root))
        said = nobody.run("access", "rotate", "web", *root)
        [key] = re.findall(r"POSTHOUSE_KEY=(\S+)", said)
        Shell(broker, POSTHOUSE_KEY=key).run("send", "q", "y")
        nobody.run("access", "revoke", "web", *root)
        web.run("send", "q", "z", code=4)
        nobody.run("access", "revoke", "web", *root, code=3)
        nobody.run("access", "add", "web", "--rights", "fly", *root, code=2)


def test_a_broker_that_is_not_there(shell: Shell) -> None:
    assert "no broker at" in shell.run("queue", "ls", "--url", "http://127.0.0.1:1", code=1)
    shell.run("queue", "ls", "--url", "nonsense", code=2)
    shell.run("queue", "ls", "--key-file", "/nowhere", code=3)
    assert "https" not in shell.run("queue", "ls")


def test_usage(shell: Shell) -> None:
    for words in (("send",), ("receive", "q", "-n", "0"), ("send", "q", "x", "--ttl", "soon"),
                  ("clock", "--set", "tomorrow"), ("odd",), ()):  # fmt: skip
        shell.run(*words, code=2)
    assert "posthouse 0" in shell.run("--version")


def test_completion(shell: Shell) -> None:
    shell.run("queue", "create", "completed")
    assert "queue" in shell.run("complete", "--", "q").split()
    assert shell.run("complete", "--", "queue", "sh").split() == ["show"]
    assert "completed" in shell.run("complete", "--", "queue", "show", "comp").split()
    assert "--lines" in shell.run("complete", "--", "send", "--").split()
    script = shell.run("completion", "bash")
    asked = f"""
posthouse() {{ {sys.executable} -m posthouse.cli "$@"; }}
{script}
COMP_WORDS=(posthouse queue sh); COMP_CWORD=2; _posthouse; echo "${{COMPREPLY[@]}}"
"""
    bash = subprocess.run(
        ["bash", "-c", asked], env=shell.environment, capture_output=True, text=True, check=True
    )
    assert bash.stdout == "show\n"
    shell.run("queue", "create", "evil$(touch /tmp/posthouse-evil)`id`")
    asked = asked.replace("queue sh", "queue show evil").replace("CWORD=2", "CWORD=3")
    bash = subprocess.run(
        ["bash", "-c", asked], env=shell.environment, capture_output=True, text=True, check=True
    )
    assert bash.stdout.startswith("evil")
    assert "uid=" not in bash.stdout
    assert not Path("/tmp/posthouse-evil").exists()
    for name in ("zsh", "fish"):
        assert "posthouse complete" in shell.run("completion", name)


def test_every_command_has_help_and_what_is_for_programs() -> None:
    parser = make_parser(["complete"])
    commands = list(_commands(parser, ()))
    assert len(commands) > 30
    for words, each in commands:
        assert each.description, words
        assert f"example:\n  {'posthouse ' + ' '.join(words)}" in each.format_help() or (
            "eval" in each.format_help()
        ), each.format_help()
        flags = candidates(parser, [*words, "--"])
        assert "--json" in flags or words[0] in ("serve", "completion", "complete"), words


def _commands(
    parser: argparse.ArgumentParser, words: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    rooms = [each for each in parser._actions if isinstance(each.choices, dict)]
    if not rooms:
        yield words, parser
    for room in rooms:
        assert isinstance(room.choices, dict)
        for name, inner in room.choices.items():
            yield from _commands(inner, (*words, name))


def test_output_into_a_pipe_that_closes_is_no_error(shell: Shell) -> None:
    shell.run("send", "pipe", "--lines", given="x\n" * 3_000)
    line = f"{sys.executable} -m posthouse.cli peek pipe -n 3000 | head -1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"], env=shell.environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("NUMBER")
    assert "Traceback" not in done.stderr


def test_what_a_message_holds_cannot_touch_the_terminal(shell: Shell) -> None:
    shell.broker.send("odd", "\033[2Jboo", id="\033[31mred")
    main, other = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "peek", "odd"], env=shell.environment, stdout=other, stderr=other
    ) as process:
        os.close(other)
        said = b""
        while True:
            try:
                chunk = os.read(main, 4096)
            except OSError:
                break
            if not chunk:
                break
            said += chunk
        process.wait(20)
    os.close(main)
    assert b"boo" in said
    assert b"\033[2J" not in said
    assert b"\033[31m" not in said


def test_topics_subscriptions_and_rules(shell: Shell) -> None:
    shell.run("topic", "create", "news", "--set", "ttl_ms=60000")
    assert "news" in shell.run("topic", "ls")
    assert "60000" in shell.run("topic", "show", "news")
    shell.run("topic", "update", "news", "--set", "ttl_ms=90000")
    shell.run("subscription", "create", "news", "all")
    said = shell.run("subscription", "create", "news", "red", "--sql", "colour = 'red'")
    assert said == "Subscription red of news is there.\n"
    shell.run("rule", "add", "news", "red", "big", "--equal", "size=5", "--field", "subject=s")
    shell.run("rule", "add", "news", "red", "events", "--pattern", "events.#")
    shell.run("rule", "add", "news", "red", "events", "--pattern", "events.>", "--style", "nats",
              "--action", "SET seen = TRUE", "--replace")  # fmt: skip
    listed = shell.run("rule", "ls", "news", "red")
    for text in ("colour = 'red'", "subject=s, size=5", "events.> (nats)", "SET seen = TRUE"):
        assert text in listed
    assert "is not well-formed" in shell.run(
        "rule", "add", "news", "red", "bad", "--sql", "colour =", code=2
    )
    shell.run("send", "news", "a", "--property", "colour=red")
    shell.run("send", "news", "b", "--subject", "events.x")
    shell.run("send", "news", "c")
    assert shell.run("receive", "news", "-s", "all", "-n", "9") == "a\nb\nc\n"
    assert "red" in shell.run("subscription", "ls", "news")
    assert "active" in shell.run("subscription", "show", "news", "red")
    assert "news/$sub/red" in shell.run("top", "--once")
    peeked = shell.json("peek", "news", "-s", "red")
    assert [each["body"] for each in peeked] == ["a", "b"]  # type: ignore[attr-defined]
    assert "handed on to" in shell.run("message", "show", "2", "--queue", "news/$sub/red")
    shell.run("rule", "remove", "news", "red", "big")
    shell.run("subscription", "update", "news", "red", "--set", "max_delivery=1")
    shell.run("receive", "news", "-s", "red", "--keep")
    shell.run("clock", "--advance", "2m")
    assert "news/$sub/red" in shell.run("dlq", "ls")
    assert "a" in shell.run("dlq", "ls", "news", "-s", "red")
    assert "Sent 1 dead letters" in shell.run("dlq", "resubmit", "news", "-s", "red")
    shell.run("subscription", "delete", "news", "red")
    shell.run("topic", "delete", "news")
    assert "no topic" in shell.run("topic", "show", "news", code=3)


def test_a_transaction(shell: Shell) -> None:
    number = shell.run("transaction", "begin").strip()
    for body in "ab":
        shell.run("send", "together", body, "--transaction", number)
    assert shell.run("receive", "together", code=5)
    assert "2 sends" in shell.run("transaction", "commit", number)
    assert shell.run("receive", "together", "-n", "2") == "a\nb\n"
    number = shell.run("transaction", "begin", "--timeout", "5s").strip()
    shell.run("send", "together", "c", "--transaction", number)
    assert shell.run("transaction", "rollback", number) == "Rolled back.\n"
    shell.run("transaction", "commit", number, code=1)


def bury(broker: Running, queue: str, count: int) -> None:
    broker.send(queue, *map(str, range(count)))
    form = {"locks": [message["token"] for message in broker.receive(queue, count)]}
    assert broker.queue("POST", f"{queue}/dead-letter", form | {"reason": "bad"}).status < 300


def jobs(broker: Running) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = broker.queue("GET", "old%2F$dead/jobs").json["jobs"]
    return found


def test_jobs(shell: Shell) -> None:
    shell.run("queue", "create", "old")
    bury(shell.broker, "old", 20)
    assert "20 messages" in shell.run("job", "start", "old", "--rate", "1")
    [listed] = json.loads(shell.run("job", "ls", "--json"))
    assert (listed["queue"], listed["status"], listed["rate"]) == ("old/$dead", "running", 1)
    assert "its source" in shell.run("job", "ls")
    assert "job is at work" in shell.run("job", "start", "old", code=1)
    said = shell.run("job", "cancel", "old/$dead", str(listed["job"]))
    assert said.startswith(f"Job {listed['job']} is cancelled; it has moved ")
    shell.run("queue", "create", "new")
    shell.run("job", "start", "old", "--to", "new")
    until(
        lambda: json.loads(shell.run("job", "ls", "--json"))[0]["status"] == "completed", "the job"
    )
    job = json.loads(shell.run("job", "ls", "-n", "1", "--json"))[0]
    shell.run("job", "start", "none", code=3)
    shell.run("job", "cancel", "new", "77", code=3)
    shell.run("job", "start", "new", "--here", "--to", "old")
    until(
        lambda: json.loads(shell.run("job", "ls", "--json"))[0]["moved"] == job["moved"], "the job"
    )


def test_a_job_goes_on_after_a_kill_and_moves_each_message_once(tmp_path: Path) -> None:
    flags = ("--data", str(tmp_path), "--dev")
    with running(*flags) as broker:
        assert broker.queue("PUT", "old", {}).status < 300
        bury(broker, "old", 600)
        started = broker.queue("POST", "old%2F$dead/jobs", {"rate": 300}).json
        assert (started["total"], started["moved"]) == (600, 0)
        until(
            lambda: broker.queue("GET", "old%2F$dead/jobs").json["jobs"][0]["moved"] > 0, "a start"
        )
        broker.kill()
    with running(*flags) as broker:
        until(
            lambda: broker.queue("GET", "old%2F$dead/jobs").json["jobs"][0]["ended_ms"], "the end"
        )
        [job] = jobs(broker)
        assert (job["status"], job["moved"], job["left"]) == ("completed", 600, 0)
        bodies = [message["body"] for message in broker.receive("old", 1_000)]
        assert sorted(map(int, bodies)) == list(range(600))


def test_schedules(shell: Shell) -> None:
    shell.run("queue", "create", "beats")
    shell.run("schedule", "create", "beat", "beats", "tick", "--when", "every 10 seconds",
              "--property", "colour=red", "--subject", "s")  # fmt: skip
    shell.run("clock", "--advance", "25s")
    assert shell.run("receive", "beats", "-n", "9") == "tick\ntick\n"
    [listed] = json.loads(shell.run("schedule", "ls", "--json"))
    assert (listed["when"], listed["fired"], listed["problem"]) == ("every 10 seconds", 2, "")
    assert shell.run("schedule", "pause", "beat") == "Schedule beat is paused.\n"
    assert "paused" in shell.run("schedule", "ls")
    shell.run("schedule", "resume", "beat")
    shell.run("schedule", "create", "beat", "beats", "tock", "--when", "30 14 * * MON-FRI",
              "--zone", "Europe/Berlin", "--replace")  # fmt: skip
    assert "Europe/Berlin" in shell.run("schedule", "ls")
    assert "must be" in shell.run(
        "schedule", "create", "bad", "beats", "x", "--when", "often", code=2
    )
    assert shell.run("schedule", "cancel", "beat") == "Schedule beat is gone.\n"
    assert shell.json("schedule", "ls") == []
