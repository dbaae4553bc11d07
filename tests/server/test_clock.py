"""The clock of a namespace over HTTP, as tests in any language use it."""

import threading
import time
from collections.abc import Iterator

import pytest

from tests.server.running import Running, running
from tests.waiting import until

DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
    with running("--memory", "--dev") as broker:
        yield broker


class Space:
    """A namespace with the queues `q` and `later`."""

    def __init__(self, broker: Running, name: str, **properties: object) -> None:
        self.broker = broker
        self.where = f"/api/v1/namespaces/{name}"
        self.ok("PUT", "")
        self.ok("PUT", "/queues/q", properties)
        self.ok("PUT", "/queues/later", {})

    def ok(self, method: str, path: str, form: object = None) -> dict[str, object]:
        reply = self.broker.call(method, self.where + path, form)
        assert reply.status < 300, reply
        found: dict[str, object] = reply.json if reply.body else {}
        return found

    def send(self, queue: str = "q", **fields: object) -> None:
        self.ok("POST", f"/queues/{queue}/messages", {"messages": [{"body": "x", **fields}]})

    def receive(self, wait_ms: int = 0) -> list[dict[str, str]]:
        found = self.ok("POST", "/queues/q/receive", {"limit": 1, "wait_ms": wait_ms})["messages"]
        assert isinstance(found, list)
        return found

    def active(self, queue: str) -> int:
        counts = self.ok("GET", f"/queues/{queue}")["counts"]
        assert isinstance(counts, dict)
        return int(counts["active"])

    def now_ms(self) -> int:
        now_ms = self.ok("GET", "/clock")["now_ms"]
        assert isinstance(now_ms, int)
        return now_ms


def test_with_auto_a_slow_handler_keeps_its_lock_and_a_long_poll_its_time(broker: Running) -> None:
    space = Space(broker, "slow", lock_ms=30_000)
    space.ok("POST", "/clock", {"auto": True})
    space.send()
    [held] = space.receive()
    space.send("later", due_ms=space.now_ms() + DAY_MS)
    time.sleep(0.2)  # slept: a handler that takes this long
    assert space.active("later") == 0
    space.ok("POST", "/queues/q/complete", {"locks": [held["token"]]})
    received: list[dict[str, str]] = []
    polling = threading.Thread(target=lambda: received.extend(space.receive(20_000)))
    polling.start()
    until(lambda: space.active("later") == 1, "the clock has moved a day on")
    assert polling.is_alive()
    space.send()
    polling.join(30)
    assert len(received) == 1


def test_auto_may_let_locks_run_out(broker: Running) -> None:
    space = Space(broker, "locks", lock_ms=30_000)
    assert space.ok("POST", "/clock", {"auto": "locks"})["auto"] == "locks"
    space.send()
    assert len(space.receive()) == 1
    until(lambda: space.active("q") == 1, "the lock has run out")
    assert broker.call("POST", space.where + "/clock", {"auto": "never"}).status == 400
