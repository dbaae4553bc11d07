"""A broker as a process of its own, started as its users start it."""

import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.waiting import until

Json = Any
START_SECONDS = 120  # it takes one or two; on a machine that others use fully, many times that
EVENT_SECONDS = 30
LOOKS = 5  # in a row, at which nothing goes on in a broker that is idle


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Json:
        return json.loads(self.body)


class Running:
    """`posthouse serve` on a port of its own. Its log is kept line by line."""

    def __init__(
        self,
        *flags: str,
        environment: Mapping[str, str] | None = None,
        module: Sequence[str] = ("posthouse.cli", "serve"),
        files_max: int | None = None,
        host: str = "127.0.0.1",
        within: Sequence[str] = (),
    ) -> None:
        """`within`: a command that runs another one, in a place of its own."""
        self.host = host
        command = [*within, sys.executable, "-m", *module, "--port", "0", "--log", "json"]
        if files_max is not None:
            command = ["sh", "-c", f'ulimit -n {files_max} && exec "$@"', "sh", *command]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("POSTHOUSE_")}
        self.process = subprocess.Popen(
            [*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**clean, **(environment or {})},
        )  # fmt: skip
        self.log: list[dict[str, Json]] = []
        self.port = 0
        self._ready = threading.Event()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        if not self._ready.wait(START_SECONDS) or not self.port:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"it did not start: {self.log}")

    @property
    def cpu_seconds(self) -> float:
        """That it has used since it was started."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                event = json.loads(line)
            except ValueError:
                event = {"event": "not JSON", "message": line}
            self.log.append(event)
            if event["event"] == "broker.ready":
                self.port = event["ports"][0]
                self._ready.set()
        self._ready.set()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def events(self, name: str, after: int = 0) -> list[dict[str, Json]]:
        """In the log, behind so many. A first one is waited for, while the process runs.

        That something was not logged is to be asked when it has ended: then the log is complete.
        """
        deadline = time.monotonic() + EVENT_SECONDS
        while True:
            is_complete = not self._reading.is_alive()
            found = [each for each in self.log[after:] if each["event"] == name]
            if found or is_complete or time.monotonic() > deadline:
                return found
            time.sleep(0.01)  # slept: between two looks

    def until_idle(self) -> None:
        """Until all that was sent to it is dealt with: at each of some looks all threads sleep.

        Bytes that were written to a socket before have woken the thread that reads them, and one
        that waits for the processor does not sleep. What a broker does now and then takes no time.
        """
        asleep = 0

        def has_rested() -> bool:
            nonlocal asleep
            asleep = asleep + 1 if self._is_asleep() else 0
            return asleep >= LOOKS

        until(has_rested, "the broker has nothing to do")

    def _is_asleep(self) -> bool:
        """No thread runs, wants to run, or waits for the disk."""
        for folder in Path(f"/proc/{self.process.pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread may have ended
                if (folder / "stat").read_text().rpartition(")")[2].split()[0] != "S":
                    return False
        return True

    def call(
        self,
        method: str,
        path: str,
        body: Json = None,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
        tls: ssl.SSLContext | None = None,
        seconds: float = 90,
    ) -> Reply:
        if tls is None:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=seconds)
        else:
            connection = http.client.HTTPSConnection(
                "localhost", self.port, timeout=seconds, context=tls
            )
        all_headers = dict(headers or {})
        if key is not None:
            all_headers["authorization"] = "Basic " + b64encode(key.encode()).decode()
        data = raw
        if body is not None:
            data = json.dumps(body).encode()
            all_headers.setdefault("content-type", "application/json")
        try:
            connection.request(method, path, data, all_headers)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, found, response.read())
        finally:
            connection.close()

    def queue(self, method: str, path: str, body: Json = None, **more: Any) -> Reply:
        """Of the default namespace."""
        return self.call(method, f"/api/v1/namespaces/default/queues/{path}", body, **more)

    def send(self, queue: str, *bodies: str, **fields: Json) -> list[int]:
        messages = [{"body": body, **fields} for body in bodies]
        reply = self.queue("POST", f"{queue}/messages", {"messages": messages})
        assert reply.status == 201, reply
        sequences: list[int] = reply.json["sequences"]
        return sequences

    def receive(self, queue: str, limit: int = 1, **form: Json) -> list[dict[str, Json]]:
        reply = self.queue("POST", f"{queue}/receive", {"limit": limit, **form})
        assert reply.status == 200, reply
        messages: list[dict[str, Json]] = reply.json["messages"]
        return messages

    def complete(self, queue: str, *messages: dict[str, Json]) -> Reply:
        locks = [each["token"] for each in messages]
        return self.queue("POST", f"{queue}/complete", {"locks": locks})

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(60)
        self._reading.join(10)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return code

    def kill(self) -> None:
        self.stop(signal.SIGKILL)


@contextmanager
def running(*flags: str, **options: Any) -> Iterator[Running]:
    broker = Running(*flags, **options)
    try:
        yield broker
    finally:
        broker.stop()


@contextmanager
def development(folder: Path, *flags: str, **options: Any) -> Iterator[Running]:
    """As `make run` starts it."""
    with running("--data", str(folder), "--dev", "--auto-create", *flags, **options) as broker:
        yield broker
