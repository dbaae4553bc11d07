"""`posthouse worker` as a process of its own: signals, exit codes, reloading.

Most run on a broker in memory that lives in the worker's process; the last need a broker of their
own and a client that speaks to it.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.server.running import development

pytestmark = pytest.mark.long

WAIT_SECONDS = 30
IN_MEMORY = 'posthouse.Worker("memory://?auto_create=true", drain_seconds=20)'
HEAD = """
import asyncio, json, pathlib, threading, time
import posthouse
from posthouse import Message, ReceivedMessage

def say(text):
    print(text, flush=True)

may_end = pathlib.Path("may-end")

async def end():
    while not may_end.exists():
        await asyncio.sleep(0.01)

"""
SENDING = """
@app.on_start
async def send():
    await app.client.send_messages("orders", [Message(str(n).encode()) for n in range(4)])

@app.on_stop
async def look():
    left = await app.client.peek_messages("orders", 10)
    say("left " + json.dumps([[each.body.decode(), each.delivery_count] for each in left]))
"""


class Process:
    """A worker, and what it says."""

    def __init__(self, folder: Path, *words: str) -> None:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("POSTHOUSE_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "posthouse.cli", "worker", *words], cwd=folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean,
        )  # fmt: skip
        self.said: list[str] = []
        self.errors: list[str] = []
        self._changed = threading.Condition()
        self._reading = [
            threading.Thread(target=self._read, args=(stream, lines))
            for stream, lines in (
                (self.process.stdout, self.said), (self.process.stderr, self.errors),
            )
        ]  # fmt: skip
        for each in self._reading:
            each.start()

    def _read(self, stream: Any, lines: list[str]) -> None:
        with stream:
            for line in stream:
                with self._changed:
                    lines.append(line.rstrip("\n"))
                    self._changed.notify_all()

    def until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, WAIT_SECONDS), (self.said, self.errors)

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        code = self.process.wait(WAIT_SECONDS)
        for each in self._reading:
            each.join(WAIT_SECONDS)
        return code


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A worker of this code; it is in a file of its own."""
    begun: list[Process] = []

    def make(code: str, *words: str, target: str = "shop:app") -> Process:
        (tmp_path / "shop.py").write_text(HEAD + code)
        begun.append(Process(tmp_path, target, *words))
        return begun[-1]

    yield make
    for each in begun:
        if each.process.poll() is None:
            each.process.kill()
        each.end()


def test_sigterm_lets_handlers_end_and_gives_back_the_others(start: Start, tmp_path: Path) -> None:
    worker = start(f"""
app = {IN_MEMORY}
{SENDING}
@app.handler("orders", concurrency=1, prefetch=3)
async def on_order(message: ReceivedMessage):
    say("begun " + message.body.decode())
    await end()
    say("ended " + message.body.decode())
""")
    worker.until(lambda: "begun 0" in worker.said)
    worker.signal()
    (tmp_path / "may-end").touch()
    assert worker.end() == 0, worker.errors
    left = json.dumps([[str(n), 0] for n in (1, 2, 3)])
    assert worker.said == ["begun 0", "ended 0", f"left {left}"]


@pytest.mark.parametrize("kind", ["async def", "def"])
def test_sigterm_is_noticed_while_a_handler_computes(start: Start, kind: str) -> None:
    """It goes on computing until it sees that nothing more is fetched."""
    worker = start(f"""
app = {IN_MEMORY}
{SENDING}
@app.handler("orders", concurrency=1, prefetch=3)
{kind} on_order(message: ReceivedMessage):
    say("begun")
    released = lambda: [e.count for e in app.client.figures.all() if e.operation == "release"]
    while released() != [3]:
        sum(range(1000))
    say("ended")
""")
    worker.until(lambda: "begun" in worker.said)
    worker.signal(signal.SIGINT)
    assert worker.end() == 0, worker.errors
    left = json.dumps([[str(n), 0] for n in (1, 2, 3)])
    assert worker.said == ["begun", "ended", f"left {left}"]


def test_a_second_signal_ends_it_at_once(start: Start) -> None:
    worker = start(f"""
app = {IN_MEMORY}
{SENDING}
@app.handler("orders")
def on_order(message: ReceivedMessage):
    say("begun")
    threading.Event().wait()

@app.middleware
async def stopping(context, call_next):
    asyncio.create_task(tell())
    await call_next(context)

async def tell():
    while not app._run.stop.is_set():
        await asyncio.sleep(0.01)
    say("stopping")
""")
    worker.until(lambda: "begun" in worker.said)
    worker.signal()
    worker.until(lambda: "stopping" in worker.said)
    worker.signal()
    assert worker.end() == 128 + signal.SIGTERM


def test_it_says_when_a_handler_did_not_come_to_its_end(start: Start) -> None:
    worker = start(f"""
app = posthouse.Worker("memory://?auto_create=true", drain_seconds=0.05)
{SENDING}
@app.handler("orders", concurrency=1)
def on_order(message: ReceivedMessage):
    say("begun")
    threading.Event().wait()
""", "--json")  # fmt: skip
    worker.until(lambda: "begun" in worker.said)
    worker.signal()
    assert worker.end() == 1
    assert json.loads(worker.said[-1]) == {"drained": False, "queues": {"orders": {}}}
    events = [json.loads(line) for line in worker.errors]
    assert [each["drained"] for each in events if each["event"] == "worker.stopped"] == [False]


def test_json_has_the_figures_of_each_queue(start: Start) -> None:
    worker = start(f"""
app = {IN_MEMORY}
{SENDING}
@app.handler("orders")
async def on_order(message: ReceivedMessage):
    if message.body == b"3":
        raise posthouse.Reject("enough")

@app.middleware
async def last(context, call_next):
    try:
        await call_next(context)
    finally:
        say("one")
""", "--json", "--concurrency", "1")  # fmt: skip
    worker.until(lambda: worker.said.count("one") == 4)
    worker.signal()
    assert worker.end() == 0
    told = json.loads(worker.said[-1])
    assert told["drained"] is True
    counts = {name: each["count"] for name, each in told["queues"]["orders"].items()}
    assert counts == {"ok": 3, "dead-lettered": 1}


GOOD = f"""
app = {IN_MEMORY}
@app.handler("orders")
async def on_order(message: ReceivedMessage): ...
number = 7
nowhere = posthouse.Worker()
nowhere.handler("orders")(on_order)
empty = posthouse.Worker("memory://")
without = posthouse.Worker("memory://")
without.handler("orders")(on_order)
"""


@pytest.mark.parametrize(
    ("target", "words", "code", "text"),
    [
        ("market:app", (), 3, "There is no module market;"),
        ("market:app", ("--reload",), 3, "There is no module market;"),
        ("shop.inner:app", (), 3, "There is no module shop.inner;"),
        ("shop:nothing", (), 3, "There is no nothing in shop. There is shop:app."),
        ("shop:number", (), 2, "shop:number is no posthouse.Worker but int. There is shop:app."),
        ("shop:a-b", (), 2, "must be MODULE:NAME"),
        ("shop:nowhere", (), 2, "or sqs://REGION for Amazon SQS"),
        ("shop:app", ("--url", "http://x"), 2, "url must begin with"),
        ("shop:app", ("--concurrency", "9999"), 2, "concurrency must be from 1"),
        ("shop:empty", (), 2, "has no handler"),
        ("shop:without", (), 3, "There is no queue 'orders' in the namespace 'default';"),
    ],
)
def test_what_cannot_be_run_is_said(
    start: Start, target: str, words: tuple[str, ...], code: int, text: str
) -> None:
    worker = start(GOOD, *words, target=target)
    assert worker.end() == code
    assert text in worker.errors[-1]
    assert not any("Traceback" in line for line in worker.errors)


def test_what_is_wrong_inside_of_the_module_is_shown_where_it_is(start: Start) -> None:
    worker = start("import nothing_like_that\n")
    assert worker.end() == 1
    assert "No module named 'nothing_like_that'" in worker.errors[-1]
    assert any("shop.py" in line for line in worker.errors)


def test_reload_starts_it_again_when_its_code_changes(start: Start, tmp_path: Path) -> None:
    def code(version: int) -> str:
        return f"""
app = {IN_MEMORY}
@app.on_start
def tell():
    say("version {version}")

@app.on_stop
def drained():
    say("drained {version}")

@app.handler("orders")
async def on_order(message: ReceivedMessage): ...
"""

    worker = start(code(1), "--reload")
    worker.until(lambda: "version 1" in worker.said)
    (tmp_path / "shop.py").write_text("this is no Python")
    worker.until(lambda: any("SyntaxError" in line for line in worker.errors))
    (tmp_path / "shop.py").write_text(HEAD + code(2))
    worker.until(lambda: "version 2" in worker.said)
    worker.until(lambda: sum("worker.ready" in line for line in worker.errors) == 2)
    worker.signal()
    assert worker.end() == 0, worker.errors
    assert worker.said == ["version 1", "drained 1", "version 2", "drained 2"]


# On a broker of its own.

ON_A_BROKER = """
app = posthouse.Worker(drain_seconds=20)

@app.handler("orders", concurrency=2, prefetch=2)
async def on_order(message: ReceivedMessage):
    say("begun " + message.body.decode())
    await end()
    say("ended " + message.body.decode())
"""


def url(port: int) -> str:
    return f"posthouse://RootManageSharedAccessKey:SAS_KEY_VALUE@127.0.0.1:{port}"


def test_who_is_not_allowed_is_told_with_a_code_of_its_own(start: Start, tmp_path: Path) -> None:
    with development(tmp_path / "data") as broker:
        broker.queue("PUT", "orders", {})
        grants = [{"rights": ["send"], "namespace": "default", "entity": "orders"}]
        sender = {"name": "sender", "grants": grants}
        key = quote(broker.call("POST", "/api/v1/principals", sender).json["key"], safe="")
        for user, text in (
            (f"sender:{key}", "'Listen'"),
            ("RootManageSharedAccessKey:canary", "does not know this key name and key"),
        ):
            worker = start(ON_A_BROKER, "--url", f"posthouse://{user}@127.0.0.1:{broker.port}")
            assert worker.end() == 4, worker.errors
            assert text in worker.errors[-1]
            assert not any("Traceback" in line or "canary" in line for line in worker.errors)


def test_nothing_is_delivered_twice_when_a_worker_is_stopped(start: Start, tmp_path: Path) -> None:
    with development(tmp_path / "data") as broker:
        broker.send("orders", *map(str, range(6)))
        worker = start(ON_A_BROKER, "--url", url(broker.port))
        worker.until(lambda: len(worker.said) == 2)
        worker.signal()
        (tmp_path / "may-end").touch()
        assert worker.end() == 0, worker.errors
        handled = {line.split()[1] for line in worker.said}
        assert sorted(worker.said) == sorted(
            f"{what} {each}" for each in handled for what in ("begun", "ended")
        )
        left = broker.receive("orders", 10)
        assert {each["body"] for each in left} == set(map(str, range(6))) - handled
        assert {each["deliveries"] for each in left} == {1}  # this one


def test_what_a_killed_worker_had_is_handled_by_another(start: Start, tmp_path: Path) -> None:
    with development(tmp_path / "data") as broker:
        broker.queue("PUT", "orders", {"lock_ms": 5_000})
        broker.send("orders", "a", "b")
        first = start(ON_A_BROKER, "--url", url(broker.port))
        first.until(lambda: len(first.said) == 2)
        first.signal(signal.SIGKILL)
        assert first.end() == -signal.SIGKILL
        (tmp_path / "may-end").touch()
        second = start(ON_A_BROKER, "--url", url(broker.port))
        second.until(lambda: {"ended a", "ended b"} <= set(second.said))
        second.signal()
        assert second.end() == 0, second.errors
        assert broker.receive("orders", 10) == []


IN_SESSIONS = ON_A_BROKER.replace("concurrency=2, prefetch=2", "sessions=True, max_sessions=1")
# Sending fails while the broker is away, and with the first failure the breaker opens for good.
SENDING_TOO = """
@app.middleware
async def tell(context, call_next):
    await call_next(context)
    await context.client.send_message("told", Message(b"told"))
"""


@pytest.mark.parametrize("code", [ON_A_BROKER, IN_SESSIONS, ON_A_BROKER + SENDING_TOO])
def test_it_goes_on_when_the_broker_was_away(start: Start, tmp_path: Path, code: str) -> None:
    """Though the breaker would stay open for longer than the test lasts."""
    fields = {"session_id": "s"} if code is IN_SESSIONS else {}
    with development(tmp_path / "data") as broker:
        port = broker.port
        form = {"requires_session": True, "grouping": "session"} if fields else {}
        assert broker.queue("PUT", "orders", form).status == 201
        closed = f"{url(port)}?breaker_failures=1&breaker_seconds=3600&max_retry_attempts=0"
        worker = start(code, "--url", closed, "--json")
        broker.send("orders", "before", **fields)
        worker.until(lambda: "begun before" in worker.said)
    (tmp_path / "may-end").touch()  # what it handles now cannot be settled
    worker.until(lambda: sum("worker.waiting" in line for line in worker.errors) >= 3)
    with development(tmp_path / "data", "--port", str(port)) as broker:
        broker.send("orders", "after", **fields)
        worker.until(lambda: "ended after" in worker.said)
        worker.signal()
        assert worker.end() == 0, worker.errors
        left = broker.queue("GET", "orders").json["counts"]
        assert left["active"] == 0, left  # what was handled is settled, too


def test_the_example_runs_as_it_is() -> None:
    worker = Process(Path(__file__).parents[2], "examples.worker:app", "--json")
    try:
        for text in ("Invoice for a fault.", "Nobody can handle"):
            worker.until(lambda text=text: any(text in line for line in worker.errors))  # type: ignore[misc]
        worker.signal()
        assert worker.end() == 0, worker.errors
    finally:
        worker.process.kill()
        worker.end()
    counts = json.loads(worker.said[-1])["queues"]["invoices"]
    assert counts["ok"]["count"] == 3
