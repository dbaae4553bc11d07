"""The way of a message: the files that one call passes through in a broker that runs."""

import http.client
import json
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from posthouse.server.metrics import IDLE_LAG_SECONDS
from tests.dialects.pyqueue.client import Client, frame
from tests.house.traced import LOOP, SOCKET
from tests.house.tree import ROOT
from tests.server.running import Running, running
from tests.waiting import until

ROUNDS = 7
WARM = 3  # calls before those that count: what is done once has been done
QUIET_SECONDS = 1.2 * IDLE_LAG_SECONDS
QUEUE = "way"
DOCUMENT = ROOT / "docs" / "architecture.md"
BEGIN = "<!-- the way of a message: written by `python -m tests.house --write` -->"
END = "<!-- end of the way of a message -->"

Call = Callable[[], None]
Told = dict[str, list[tuple[str, str]]]  # by thread: callbacks, and files that these called


class Way(NamedTuple):
    loop: list[str]  # in the thread with the event loop, in the order of the first call
    beside: list[str]  # in other threads


class Tracer:
    """A broker that is asked which of its files were run."""

    def __init__(self, broker: Running, path: str) -> None:
        self.broker = broker
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._lines = self._socket.makefile("rw")

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def _ask(self) -> Told:
        self.broker.until_idle()
        self._lines.write("\n")
        self._lines.flush()
        told: Told = json.loads(self._lines.readline())
        return told

    def way(self, call: Call) -> Way:
        """Of a call: what is done each time, and not by the clock."""
        for _ in range(WARM):
            call()
        self._ask()
        time.sleep(QUIET_SECONDS)  # slept: what is done by the clock is to be seen
        quiet, rounds = [self._ask()], []
        for _ in range(ROUNDS):
            quiet.append(self._ask())
            call()
            rounds.append(self._ask())
        ticking = {made_by for told in quiet for made_by, _ in told.get(LOOP, [])}
        loop = [_files(told.get(LOOP, []), ticking) for told in rounds]
        beside = [
            _files([pair for name in told if name != LOOP for pair in told[name]], set())
            for told in rounds
        ]
        return Way(_common(loop), sorted(_common(beside)))


def _files(pairs: list[tuple[str, str]], ticking: set[str]) -> list[str]:
    """In their order, without what happens also where nothing is called."""
    return list(dict.fromkeys(file for made_by, file in pairs if made_by not in ticking))


def _common(rounds: list[list[str]]) -> list[str]:
    """The files of every round, in the order that most rounds have."""
    files = set(rounds[0]).intersection(*rounds)
    kept = [[file for file in each if file in files] for each in rounds]
    return sorted(files, key=lambda file: (median(each.index(file) for each in kept), file))


@contextmanager
def traced() -> Iterator[Tracer]:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "socket")
        with running(
            "--data", str(Path(folder) / "data"), "--dev", "--auto-create",
            module=("tests.house.traced", "serve"),
            environment={SOCKET: path, "PYTHONPATH": str(ROOT)},
        ) as broker:  # fmt: skip
            until(Path(path).exists, "it can be asked")
            with closing(Tracer(broker, path)) as tracer:
                yield tracer


def ways() -> dict[str, Way]:
    """By what is called."""
    with traced() as tracer:
        return {
            "An AMQP send, by the Service Bus SDK": by_amqp(tracer),
            "An HTTP send, to `/api/v1`": by_http(tracer),
            "A PyQueue `PULL`": by_pyqueue(tracer),
        }


def by_amqp(tracer: Tracer) -> Way:
    endpoint = f"Endpoint=sb://localhost:{tracer.broker.port};"
    key = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;"
    text = f"{endpoint}{key}UseDevelopmentEmulator=true;"
    with (
        ServiceBusClient.from_connection_string(text) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        return tracer.way(lambda: sender.send_messages(ServiceBusMessage(b"x")))


def by_http(tracer: Tracer) -> Way:
    with closing(http.client.HTTPConnection("127.0.0.1", tracer.broker.port)) as connection:

        def send() -> None:
            path = f"/api/v1/namespaces/default/queues/{QUEUE}/messages"
            body = '{"messages": [{"body": "x"}]}'
            connection.request("POST", path, body, {"content-type": "application/json"})
            response = connection.getresponse()
            response.read()
            assert response.status == 201

        return tracer.way(send)


def by_pyqueue(tracer: Tracer) -> Way:
    with Client(tracer.broker.port) as client:
        for _ in range(WARM + ROUNDS):
            client.send(frame("PUSH", {"payload": "x", "queue": QUEUE + "-pull"}))
            assert client.read().word == "OK"

        def pull() -> None:
            client.send(frame("PULL", {"queue": QUEUE + "-pull"}))
            assert client.read().word == "JOB"

        return tracer.way(pull)


def told(found: dict[str, Way]) -> str:
    """As it stands in the document."""
    parts = []
    for call, way in found.items():
        lines = [f"{call}:", "", *(f"{at}. `{file}`" for at, file in enumerate(way.loop, 1))]
        if way.beside:
            lines += ["", f"Beside the event loop: {', '.join(f'`{f}`' for f in way.beside)}."]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def written() -> str:
    """What the document has between the marks."""
    text = DOCUMENT.read_text()
    return text.partition(BEGIN)[2].partition(END)[0].strip()


def write(text: str) -> None:
    before, begin, rest = DOCUMENT.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    assert all((begin, end)), f"there are no marks in {DOCUMENT}"
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
