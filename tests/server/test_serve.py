"""The life of the process: starting, stopping, and what is in between."""

import http.client
import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from base64 import b64encode
from pathlib import Path

import pytest

from tests.server.running import Running, development, running
from tests.server.wire import connect
from tests.waiting import until

pytestmark = pytest.mark.long

DEV = ("--dev", "--auto-create")
QUEUES = "/api/v1/namespaces/default/queues"
JSON = {"content-type": "application/json"}


def serve(*flags: str) -> "subprocess.CompletedProcess[str]":
    """One that is expected to end by itself."""
    command = [sys.executable, "-m", "posthouse.cli", "serve", "--log", "json", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    with development(tmp_path / "data") as broker:
        broker.queue("PUT", "trips", {"grouping": "session", "lock_ms": 300_000})
        broker.send("q", "active", "locked")
        broker.send("q", "later", delay_ms=3_600_000)
        broker.send("trips", "x", session_id="ann")
        broker.call("PUT", "/api/v1/namespaces/shop")
        [held] = broker.receive("q")
        session = broker.queue("POST", "trips/sessions/accept", {}).json
        assert broker.stop() == 0
    with development(tmp_path / "data") as broker:
        counts = broker.queue("GET", "q").json["counts"]
        assert (counts["active"], counts["locked"], counts["scheduled"]) == (1, 1, 1)
        assert broker.complete("q", held).status == 200
        assert len(broker.receive("trips", 5, session=session["token"])) == 1
        assert broker.call("GET", "/api/v1/namespaces").json["names"] == ["default", "shop"]
        broker.kill()
    with development(tmp_path / "data") as broker:
        assert broker.queue("GET", "q").json["counts"]["locked"] == 0
        assert broker.stop(signal.SIGINT) == 130


def test_a_stop_answers_who_waits_and_writes_a_closing_frame(tmp_path: Path) -> None:
    with development(tmp_path / "data") as broker:
        broker.queue("PUT", "q", {})
        got: list[object] = []
        waiting = threading.Thread(target=lambda: got.append(broker.receive("q", wait_ms=60_000)))
        waiting.start()
        until(lambda: broker.queue("GET", "q").json["receivers"], "somebody waits")
        begun = time.monotonic()
        assert broker.stop() == 0
        waiting.join(10)
        assert got == [[]]
        assert time.monotonic() - begun < 20  # not the minute it would have waited
    command = [sys.executable, "-m", "posthouse.cli", "store", "verify", "--json", "--data"]
    found = subprocess.run([*command, str(tmp_path / "data")], capture_output=True, check=True)
    assert json.loads(found.stdout)["closed"] is True


def test_a_stop_under_load_loses_nothing_and_raises_no_count(tmp_path: Path) -> None:
    acknowledged: set[str] = set()
    completed: set[str] = set()
    with development(tmp_path / "data") as broker:
        broker.queue("PUT", "q", {})

        def sender(number: int) -> None:
            for at in range(100_000):
                try:
                    broker.send("q", body := f"{number}-{at}")
                except (OSError, AssertionError):
                    return
                acknowledged.add(body)

        def receiver() -> None:
            while True:
                try:
                    some = broker.receive("q", 5, wait_ms=5_000)
                    if some and broker.complete("q", *some).status != 200:
                        return
                except (OSError, AssertionError):
                    return
                completed.update(each["body"] for each in some)

        threads = [threading.Thread(target=sender, args=(n,)) for n in range(4)]
        threads += [threading.Thread(target=receiver) for _ in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: len(completed) >= 300, "much was completed")
        assert broker.stop() == 0
        for thread in threads:
            thread.join(30)
    with development(tmp_path / "data") as broker:
        left: dict[str, int] = {}
        page = broker.queue("GET", "q/messages?limit=1000").json
        while True:
            left |= {each["body"]: each.get("deliveries", 0) for each in page["messages"]}
            if page["next"] is None:
                break
            page = broker.queue("GET", f"q/messages?limit=1000&first={page['next']}").json
    assert acknowledged <= set(left) | completed
    assert not completed & set(left)
    assert sum(left.values()) <= 10  # only what a receiver held when it was told of the stop


def test_a_second_signal_ends_it_at_once_without_loss(tmp_path: Path) -> None:
    with development(tmp_path / "data") as broker:
        broker.send("q", "x")
        with socket.create_connection(("127.0.0.1", broker.port)) as slow:
            slow.sendall(
                b"POST /api/v1/namespaces/default/queues/q/messages HTTP/1.1\r\nhost: localhost\r\n"
                b"content-type: text/plain\r\ncontent-length: 100\r\n\r\nhalf"
            )
            broker.until_idle()
            broker.process.send_signal(signal.SIGTERM)
            assert broker.events("broker.stopping")
            time.sleep(0.3)  # slept: within which it would end if it did not wait
            assert broker.process.poll() is None  # it waits for the request to be finished
            broker.process.send_signal(signal.SIGTERM)
            assert broker.process.wait(10) == 128 + signal.SIGTERM
    with development(tmp_path / "data") as broker:
        assert [each["body"] for each in broker.receive("q", 5)] == ["x"]


def test_a_stop_does_not_wait_for_ever(tmp_path: Path) -> None:
    with development(tmp_path / "data", "--stop-limit", "1") as broker:
        with socket.create_connection(("127.0.0.1", broker.port)) as slow:
            slow.sendall(
                b"POST /api/v1/namespaces/default/queues/q/messages HTTP/1.1\r\nhost: localhost\r\n"
                b"content-type: text/plain\r\ncontent-length: 100\r\n\r\nhalf"
            )
            broker.until_idle()
            assert broker.stop() == 0
        assert broker.events("broker.cut")


def test_a_port_in_use_is_warned_of_and_the_others_serve(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        only = ("--host", "127.0.0.1", "--data", str(tmp_path / "data"))
        with running(*only, "--port", str(port), *DEV) as broker:
            assert broker.call("GET", "/health/live").status == 200
            [warning] = broker.events("listener.port")
            assert warning["port"] == port
        none = serve(*only, "--port", str(port))
        assert none.returncode == 1
        assert "no port to listen on" in none.stderr


def test_a_folder_has_one_broker(tmp_path: Path) -> None:
    with development(tmp_path / "data"):
        second = serve("--data", str(tmp_path / "data"), "--port", "0", *DEV)
        assert second.returncode == 1
        assert "another process" in second.stderr or "in use" in second.stderr, second.stderr


def test_damage_is_named_and_nothing_is_served(tmp_path: Path) -> None:
    with development(tmp_path / "data") as broker:
        broker.send("q", *"abc")
        broker.send("q", *"def")
    journal = next((tmp_path / "data").glob("*.journal"))
    data = bytearray(journal.read_bytes())
    data[300] ^= 1
    journal.write_bytes(data)
    failed = serve("--data", str(tmp_path / "data"), "--port", "0", *DEV)
    assert failed.returncode == 1
    assert journal.name in failed.stderr


def test_a_broker_in_memory_keeps_nothing(tmp_path: Path) -> None:
    with running("--memory", *DEV) as broker:
        broker.send("q", "x")
        assert [each["body"] for each in broker.receive("q")] == ["x"]
        assert broker.call("POST", "/api/v1/store/snapshot").status == 409
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        assert broker.call("GET", "/health/live", tls=context).status == 200
    with running("--memory", *DEV) as broker:
        assert broker.receive("q") == []


def test_startup_tells_how_far_it_is_and_ready_waits_for_it(tmp_path: Path) -> None:
    """A large journal is being read while health is asked for."""
    with development(tmp_path / "data") as broker:
        for _ in range(60):
            broker.send("q", *("x" * 10 for _ in range(5_000)))
        broker.kill()
    seen: list[tuple[int, dict[str, object]]] = []
    refused: list[int] = []
    port = a_free_port()
    flags = ("--data", str(tmp_path / "data"), "--host", "127.0.0.1", "--port", str(port))

    def look() -> None:
        while not seen or seen[-1][0] != 200:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            try:
                connection.request("GET", "/health/startup")
                response = connection.getresponse()
                seen.append((response.status, json.loads(response.read())))
                if response.status != 200:
                    connection.request("GET", "/metrics")
                    refused.append(connection.getresponse().status)
            except (OSError, http.client.HTTPException):
                pass
            finally:
                connection.close()
            time.sleep(0.02)  # slept: between two looks of one who looks on

    looking = threading.Thread(target=look)
    looking.start()
    process = subprocess.Popen(
        [sys.executable, "-m", "posthouse.cli", "serve", *flags, "--log", "json", *DEV],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        looking.join(60)
        assert seen[-1][0] == 200
        during = [facts for status, facts in seen if status == 503]
        assert any(0 < facts["position"] < facts["end"] for facts in during)  # type: ignore[operator]
        assert refused[0] == 503
    finally:
        process.terminate()
        process.wait(30)


def test_a_key_is_not_doubted_while_the_journal_is_read(tmp_path: Path) -> None:
    with running("--data", str(tmp_path / "data")) as broker:
        key = f"RootManageSharedAccessKey:{(tmp_path / 'data' / 'root-key').read_text().strip()}"
        where = "/api/v1/namespaces/default/queues/q"
        broker.call("PUT", where, {}, key=key)
        messages = {"messages": [{"body": "x"}] * 5_000}
        for _ in range(40):
            broker.call("POST", f"{where}/messages", messages, key=key)
        broker.kill()
    port = a_free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "posthouse.cli", "serve", "--data", str(tmp_path / "data"),
         "--host", "127.0.0.1", "--port", str(port), "--log", "json"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    statuses: list[int] = []
    try:
        while 200 not in statuses:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            authorization = "Basic " + b64encode(key.encode()).decode()
            try:
                connection.request("GET", "/metrics", headers={"authorization": authorization})
                statuses.append(connection.getresponse().status)
            except OSError:
                time.sleep(0.01)  # slept: the broker does not listen yet, or no more
            finally:
                connection.close()
        assert set(statuses) <= {200, 503}
    finally:
        process.terminate()
        process.wait(30)


def a_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_journal_that_cannot_be_written_ends_the_process(tmp_path: Path) -> None:
    """The disk is taken away under a running broker: its files cannot grow."""
    import resource

    with development(tmp_path / "data", "--segment-size", "1M") as broker:
        broker.send("q", "before")
        resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (4_096, 4_096))
        refused: list[int] = []
        for _ in range(20):
            try:
                reply = broker.queue("POST", "q/messages", {"messages": [{"body": "x" * 1_000}]})
            except OSError:
                break
            refused.append(reply.status)
            if reply.status == 503:
                break
        assert broker.process.wait(20) == 74
        assert broker.events("journal.lost")
    with development(tmp_path / "data") as broker:
        assert broker.receive("q")[0]["body"] == "before"


def test_connections_leave_the_journal_the_files_it_needs(tmp_path: Path) -> None:
    """More clients than the process may have files, while segments are begun."""
    flags = ("--segment-size", "64k", "--handshake-limit", "60")
    with development(tmp_path / "data", *flags, files_max=200) as broker:
        [warning] = broker.events("listener.files")
        assert warning["message"].startswith("There can be 100 connections")
        sender = http.client.HTTPConnection("127.0.0.1", broker.port, timeout=60)
        sender.connect()
        others = [connect(broker) for _ in range(300)]
        sent = {"messages": [{"body": "x" * 10_000}]}
        for _ in range(40):
            sender.request("POST", f"{QUEUES}/q/messages", json.dumps(sent), JSON)
            response = sender.getresponse()
            assert response.status == 201, response.read()
            response.read()
        assert len(list((tmp_path / "data").glob("*.journal"))) > 5
        for each in others:
            each.close()
        sender.request("GET", f"{QUEUES}/q")
        assert json.loads(sender.getresponse().read())["counts"]["active"] == 40
        sender.close()
    assert len(broker.events("listener.files")) == 1  # it never was out of files


@pytest.mark.parametrize("flags", [("--colour", "red"), ("--port", "x"), ("--durability", "odd")])
def test_a_wrong_command_line_is_told(flags: tuple[str, ...]) -> None:
    assert serve(*flags).returncode == 2


def test_it_says_what_listens_where(tmp_path: Path) -> None:
    broker = Running("--data", str(tmp_path / "data"), *DEV)
    broker.process.terminate()
    assert broker.process.stdout is not None
    said = broker.process.stdout.read()
    assert str(broker.port) in said
    assert str(tmp_path / "data") in said
    assert f"http://localhost:{broker.port}/api/v1" in said
    assert f"Endpoint=sb://localhost:{broker.port};" in said
    assert "SharedAccessKey=SAS_KEY_VALUE;" in said
    assert broker.stop() == 0


def test_starts_at_the_same_time_agree_on_the_keys(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "posthouse.cli", "serve", "--data", str(tmp_path / "data"),
               "--port", "0", "--log", "json"]  # fmt: skip
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    until(lambda: sum(each.poll() is None for each in started) == 1, "one is left")
    [survivor] = [each for each in started if each.poll() is None]
    assert survivor.stderr is not None
    assert any('"broker.ready"' in line for line in survivor.stderr)
    survivor.terminate()
    said = "".join(each.communicate(timeout=30)[0] for each in started)
    key = (tmp_path / "data" / "root-key").read_text().strip()
    assert key in said
    assert [each.returncode for each in started].count(0) == 1


def test_a_first_start_that_fails_has_shown_nothing_and_the_next_does(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        failed = serve("--data", str(tmp_path), "--host", "127.0.0.1", "--port", port)
        assert failed.returncode == 1
    broker = Running("--data", str(tmp_path))
    broker.process.terminate()
    assert broker.process.stdout is not None
    assert (tmp_path / "root-key").read_text().strip() in broker.process.stdout.read()
    broker.stop()
