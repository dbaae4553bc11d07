"""`--json` gives JSON, on a terminal and into a pipe, whatever the command."""

import argparse
import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from posthouse.cli.parser import make_parser
from tests.cli.terminal import COMMAND, surroundings
from tests.server.running import Running, running

# What each command is given; DATA is the folder of a broker that has stopped.
GIVEN = """\
send q x
receive q --keep
peek q
message show m1
scheduled ls later
scheduled cancel later NUMBER
queue ls
queue create NEW
queue show q
queue update q --set lock_ms=5000
queue delete doomed-NEW
queue purge q --state deferred
queue pause paused --sending
queue resume paused
transaction begin
transaction commit TRANSACTION
transaction rollback TRANSACTION
session ls trips
topic ls
topic create made-NEW
topic show news
topic update news --set ttl_ms=5000
topic delete topic-NEW
subscription ls news
subscription create news NEW
subscription show news all
subscription update news all --set ttl_ms=5000
subscription delete news doomed-NEW
rule ls news all
rule add news all NEW
rule remove news all rule-NEW
schedule ls
schedule create NEW q x --when 'every hour'
schedule pause hourly
schedule resume hourly
schedule cancel schedule-NEW
dlq ls
dlq show letters 1
dlq resubmit q
dlq purge q
job start q
job ls
job cancel slow-NEW/$dead JOB
top --once
feed tail --after 0 -n 3
clock
quiet --namespace still
access ls
access add NEW --rights send
access rotate web
access revoke principal-NEW
store verify --data DATA
store repair --data DATA
store stats --data DATA
store snapshot --data DATA
store state --data DATA
store trace --data DATA --namespace default --id m1
store resend --data DATA --namespace default --first 1 --last 9 --into q
pipeline status
config show
tls env --data DATA"""
# These have tests of their own, as they need Spark or a lake, a worker, or a clock that is ahead.
SPARK = "archive backfill verify compact publish report reconcile triage replay run"
# So do those that need a store that is empty.
ELSEWHERE: set[tuple[str, ...]] = {("worker",)}
ELSEWHERE |= {("pipeline", name) for name in SPARK.split()}
STORE = "set-clock export import copy backup restore"
ELSEWHERE |= {("store", name) for name in STORE.split()}
# And those on a cluster (test_cluster.py).
CLUSTER = "init up try permissions status step-down forget hold verify found secret"
ELSEWHERE |= {("cluster", name) for name in CLUSTER.split()}
# And those of a bridge between services (tests/bridge/test_cli.py).
BRIDGE = "run relay consume plan provision permissions schema health bench"
ELSEWHERE |= {("bridge", name) for name in BRIDGE.split()}
ELSEWHERE |= {("bridge", "outbox", name) for name in ("ls", "retry", "drop")}
ELSEWHERE |= {("bridge", "dlq", name) for name in ("ls", "show", "replay", "drop")}
ELSEWHERE |= {("bridge", "inbox", "ls")}
# A program would not read these: a broker, whose log is JSON, and what is for a shell.
FOR_SHELLS = {("serve",), ("completion",), ("complete",)}
API = "/api/v1/namespaces/default"


def commands(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    rooms = [each.choices for each in parser._actions if isinstance(each.choices, dict)]
    if not rooms:
        yield words
    for choices in rooms:
        for name, inner in choices.items():
            yield from commands(inner, (*words, name))


def named(line: str) -> tuple[str, ...]:
    """The command of a line: its first word, or its first two."""
    known = set(commands(make_parser(["complete"])))
    words = tuple(line.split())
    return words[:1] if words[:1] in known else words[:2]


def test_every_command_is_looked_at() -> None:
    known = set(commands(make_parser(["complete"])))
    assert {named(line) for line in GIVEN.splitlines()} | ELSEWHERE | FOR_SHELLS == known
    for words in known - FOR_SHELLS:
        parser = make_parser(["complete"])
        for word in words:
            [rooms] = [each for each in parser._actions if isinstance(each.choices, dict)]
            assert isinstance(rooms.choices, dict)
            parser = rooms.choices[word]
        assert "--json" in parser.format_help(), words


def prepare(broker: Running, new: str) -> dict[str, str]:
    """What the commands name; what each stands for that is made only here."""
    for queue in ("q", "later", "paused", f"doomed-{new}"):
        broker.queue("PUT", queue, {})
    broker.call("PUT", "/api/v1/namespaces/still")
    broker.queue("PUT", "trips", {"grouping": "session"})
    broker.send("q", "a", id="m1")
    broker.send("q", "b", "c")
    number, _ = broker.send("later", "x", "y", delay_ms=3_600_000)  # one is cancelled, one listed
    broker.send("letters", "x")
    [message] = broker.receive("letters")
    broker.queue("POST", "letters/dead-letter", {"locks": [message["token"]]})
    for topic in ("news", f"topic-{new}"):
        broker.call("PUT", f"{API}/topics/{topic}", {})
    for subscription in ("all", f"doomed-{new}"):
        broker.call("PUT", f"{API}/topics/news/subscriptions/{subscription}", {})
    broker.call("PUT", f"{API}/topics/news/subscriptions/all/rules/rule-{new}", {})
    form = {"when": "every hour", "zone": "UTC", "queue": "q", "message": {"body": "x"}}
    for schedule in ("hourly", f"schedule-{new}"):
        broker.call("PUT", f"{API}/schedules/{schedule}", form)
    grant = {"namespace": "*", "entity": "*", "rights": ["send"]}
    for name in ("web", f"principal-{new}"):
        broker.call("POST", "/api/v1/principals", {"name": name, "grants": [grant]})
    slow = f"slow-{new}"
    broker.send(slow, *map(str, range(50)))
    locks = [message["token"] for message in broker.receive(slow, 50)]
    broker.queue("POST", f"{slow}/dead-letter", {"locks": locks})
    job = broker.queue("POST", f"{slow}%2F$dead/jobs", {"rate": 1}).json["job"]
    return {"NUMBER": str(number), "NEW": new, "JOB": str(job)}


def printed(broker: Running, words: list[str], *, on_terminal: bool) -> tuple[int, str]:
    """The exit code, and all of the standard output."""
    main, other = os.openpty() if on_terminal else os.pipe()
    with subprocess.Popen(
        [*COMMAND, *words, "--json"], env=surroundings(broker), stdout=other,
        stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        os.close(other)
        said = b""
        try:
            while chunk := os.read(main, 65_536):
                said += chunk
        except OSError:  # how a terminal ends
            pass
        finally:
            os.close(main)
    return process.returncode, said.decode()


def test_every_command_prints_json_on_a_terminal_and_into_a_pipe(
    broker: Running, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with running("--data", str(data), "--dev", "--auto-create") as stopped:
        stopped.send("q", "x", id="m1")
        stopped.call("GET", "/health")
    (data / "tls").mkdir(exist_ok=True)
    (data / "tls" / "ca.pem").touch()
    for on_terminal in (False, True):
        made = prepare(broker, f"n{int(on_terminal)}") | {"DATA": str(data)}

        def look(line: str, made: dict[str, str] = made, on: bool = on_terminal) -> None:
            if "TRANSACTION" in line:
                begun = broker.call("POST", f"{API}/transactions", {"timeout_ms": 60_000}).json
                line = line.replace("TRANSACTION", begun["transaction"])
            for name, text in made.items():
                line = line.replace(name, text)
            words = shlex.split(line)
            code, said = printed(broker, words, on_terminal=on)
            assert code == 0, (words, code, said)
            lines = said.replace("\r\n", "\n").splitlines()
            assert lines, words
            for each in lines:
                json.loads(each)

        lines = GIVEN.splitlines()
        stores = [line for line in lines if line.startswith("store")]
        with ThreadPoolExecutor(3) as several:
            list(several.map(look, [line for line in lines if line not in stores]))
        for line in stores:  # one after the other has the folder
            look(line)
