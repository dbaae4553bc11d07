"""The clock of a namespace over HTTP, as tests in any language use it."""

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient

from posthouse.broker.access import ROOT
from tests.server.running import Reply, Running, running
from tests.waiting import until

DAY_MS = 86_400_000
CONNECTION = (
    "Endpoint=sb://localhost:{};SharedAccessKeyName={};"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true"
)


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
    with running("--memory", "--dev", "--servicebus-namespace", "key") as broker:
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
    time.sleep(0.2)  # slept: as long as the handler takes
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


def quiet(space: Space, **options: object) -> Reply:
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return space.broker.call("GET", f"{space.where}/quiet?{query}")


def test_quiet_waits_until_the_last_lock_is_settled(broker: Running) -> None:
    space = Space(broker, "quiet", lock_ms=30_000)
    assert quiet(space).status == 200
    space.send()
    assert quiet(space).status == 200, "nobody waits for the message"
    [held] = space.receive()
    busy = quiet(space, timeout_ms=100)
    assert busy.status == 408
    assert busy.json["code"] == "not-quiet"
    assert re.fullmatch(r"q 1: locked by \$anybody#\d+ for \d+\.\d s\.", busy.json["detail"])
    assert quiet(space, timeout_ms=100, locks="ignore").status == 200
    settled: list[float] = []

    def settle() -> None:
        settled.append(time.monotonic())
        space.ok("POST", "/queues/q/complete", {"locks": [held["token"]]})

    settling = threading.Timer(0.2, settle)
    settling.start()
    assert quiet(space).status == 200
    assert settled
    settling.join()
    assert quiet(space, locks="perhaps").status == 400
    assert broker.call("GET", "/api/v1/namespaces/nowhere/quiet").status == 404


def test_quiet_waits_for_open_transactions_and_for_a_clock_that_moves(broker: Running) -> None:
    space = Space(broker, "work")
    begun = space.ok("POST", "/transactions", {})["transaction"]
    assert "a transaction is open" in quiet(space, timeout_ms=50).json["detail"]
    space.ok("POST", f"/transactions/{begun}/rollback")
    assert quiet(space).status == 200
    space.send("later", due_ms=space.now_ms() + DAY_MS)
    assert quiet(space).status == 200, "what is due tomorrow is nobody's work today"
    space.ok("POST", "/clock", {"auto": True})
    assert quiet(space).status == 200
    assert space.active("later") == 1


def test_there_is_no_quiet_while_commands_come(broker: Running) -> None:
    space = Space(broker, "busy")
    over = threading.Event()

    def send_on() -> None:
        while not over.is_set():
            space.send()

    sending = threading.Thread(target=send_on)
    sending.start()
    busy = quiet(space, timeout_ms=1_500, quiet_ms=1_000)
    over.set()
    sending.join()
    assert busy.status == 408
    assert "commands still come" in busy.json["detail"]


def fired(answer: dict[str, object]) -> dict[str, int]:
    events = answer["fired"]
    assert isinstance(events, list)
    return {each["kind"]: each["count"] for each in events}


def test_a_long_poll_ends_in_real_time_while_the_clock_stands_still(broker: Running) -> None:
    space = Space(broker, "frozen")
    polled: list[list[dict[str, str]]] = []
    polling = threading.Thread(target=lambda: polled.append(space.receive(300)))
    polling.start()  # before the namespace has a clock of its own, and is to go on after that
    space.ok("POST", "/clock", {"frozen": True, "advance_ms": DAY_MS})
    polling.join(30)
    assert polled == [[]]
    begun = time.monotonic()
    assert space.receive(100) == []
    assert time.monotonic() - begun >= 0.1


def test_who_waited_before_the_namespace_had_a_clock_is_given_what_comes(broker: Running) -> None:
    space = Space(broker, "early")
    received: list[dict[str, str]] = []
    polling = threading.Thread(target=lambda: received.extend(space.receive(30_000)))
    polling.start()
    until(lambda: space.ok("GET", "/queues/q")["receivers"] == 1, "it waits")
    space.ok("POST", "/clock", {"advance_ms": DAY_MS})
    space.send()
    polling.join(30)
    assert len(received) == 1


def test_a_clock_can_be_moved_to_what_is_due_next(broker: Running) -> None:
    space = Space(broker, "next", lock_ms=30_000)
    space.ok("POST", "/clock", {"frozen": True})
    assert fired(space.ok("POST", "/clock", {"to": "next"})) == {}
    space.send("later", due_ms=space.now_ms() + DAY_MS)
    space.send()
    space.receive()
    assert fired(space.ok("POST", "/clock", {"to": "next"})) == {"abandoned": 1}
    assert fired(space.ok("POST", "/clock", {"to": "next"})) == {"activated": 1}
    assert space.active("later") == 1
    assert broker.call("POST", space.where + "/clock", {"to": "last"}).status == 400


def handle(space: Space, over: threading.Event, *, delay_ms: int) -> None:
    """A consumer whose handler fails each time, and backs off."""
    while not over.is_set():
        for message in space.receive(50):
            form = {"locks": [message["token"]], "delay_ms": delay_ms}
            space.ok("POST", "/queues/q/abandon", form)


def test_a_clock_can_be_moved_until_something_has_happened(broker: Running) -> None:
    space = Space(broker, "until", lock_ms=30_000, max_delivery=4)
    begun_ms, over = space.now_ms(), threading.Event()
    handling = threading.Thread(target=handle, args=(space, over), kwargs={"delay_ms": DAY_MS})
    handling.start()
    space.send()
    try:
        until_dead = {"until": {"kind": "dead-lettered", "queue": "q"}, "timeout_ms": 30_000}
        assert fired(space.ok("POST", "/clock", until_dead))["woken"] == 3
        assert 3 * DAY_MS <= space.now_ms() - begun_ms < 4 * DAY_MS
        form = until_dead | {"at_most_ms": DAY_MS, "timeout_ms": 200}
        vain = broker.call("POST", space.where + "/clock", form)
        assert (vain.status, vain.json["code"]) == (408, "not-happened")
        assert "dead-lettered in q has happened 0 times of 1" in vain.json["detail"]
        assert space.now_ms() - begun_ms < 4 * DAY_MS, "the clock stays where it was"
    finally:
        over.set()
        handling.join()
    unknown = broker.call("POST", space.where + "/clock", {"until": {"kind": "dead"}})
    assert unknown.status == 400
    assert "dead-lettered" in unknown.json["detail"]


def test_clients_do_their_part_after_each_step_of_a_clock(broker: Running) -> None:
    space = Space(broker, "steps", lock_ms=30_000, max_delivery=10)
    over = threading.Event()
    handling = threading.Thread(target=handle, args=(space, over), kwargs={"delay_ms": 60_000})
    handling.start()
    space.send()
    try:
        form = {"advance_ms": 5 * 60_000 + 1_000, "quiet_ms": 20, "timeout_ms": 30_000}
        assert fired(space.ok("POST", "/clock", form))["woken"] == 5
    finally:
        over.set()
        handling.join()


def test_a_step_that_a_client_is_busy_with_says_who(broker: Running) -> None:
    space = Space(broker, "stuck", lock_ms=30_000)
    space.ok("POST", "/clock", {"frozen": True})
    space.send()
    space.receive()
    form = {"advance_ms": 60_000, "quiet_ms": 20, "timeout_ms": 100}
    busy = broker.call("POST", space.where + "/clock", form)
    assert (busy.status, busy.json["code"]) == (408, "not-quiet")
    assert busy.json["detail"].startswith("q 1: locked by ")


def test_quiet_says_which_client_library_holds_a_message(broker: Running) -> None:
    space = Space(broker, "held", lock_ms=30_000)
    space.ok("POST", "/clock", {})
    space.send()
    with ServiceBusClient.from_connection_string(CONNECTION.format(broker.port, "held")) as client:
        receiver = client.get_queue_receiver("q", prefetch_count=0)
        [message] = receiver.receive_messages(1, max_wait_time=10)
        text = quiet(space, timeout_ms=50).json["detail"]
        assert re.fullmatch(r"q 1: locked by \S+#\d+ \(\S*servicebus\S* [\d.]+\) for .*", text), (
            text
        )
        receiver.complete_message(message)
        assert quiet(space).status == 200


def test_a_lock_of_a_client_that_has_left_is_no_work(broker: Running) -> None:
    space = Space(broker, "left", lock_ms=30_000)
    space.ok("POST", "/clock", {})
    space.send()
    with ServiceBusClient.from_connection_string(CONNECTION.format(broker.port, "left")) as client:
        receiver = client.get_queue_receiver("q", prefetch_count=0)
        assert len(receiver.receive_messages(1, max_wait_time=10)) == 1
    assert quiet(space).status == 200
    space.ok("POST", "/clock", {"auto": True})
    until(lambda: space.active("q") == 1, "its lock has run out")
    space.ok("POST", "/clock", {"auto": False})


def test_clocks_and_quiet_are_for_development_alone(tmp_path: Path) -> None:
    with running("--data", str(tmp_path)) as broker:
        key = f"{ROOT}:{(tmp_path / 'root-key').read_text().strip()}"
        where = "/api/v1/namespaces/default"
        for method, path in (("POST", "/clock"), ("GET", "/quiet")):
            form: object = {} if method == "POST" else None
            refused = broker.call(method, where + path, form, key=key)
            assert (refused.status, refused.json["code"]) == (409, "not-allowed")
            assert "--dev" in refused.json["detail"]
