"""`posthouse cluster`, as people set one up, try it, and watch a node die."""

import json
import os
import re
import signal
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import create_server
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from posthouse.broker.access import ROOT
from posthouse.server.nats_files import find_server
from tests.cli.terminal import COMMAND, run, surroundings
from tests.cli.test_cluster_examples import DOCS, alert_metrics
from tests.server.clustered import SERVER
from tests.waiting import until

needs_server = pytest.mark.skipif(SERVER is None, reason="there is no nats-server here")
Event = dict[str, Any]


class Lines:
    """A command with --json that goes on; its lines are kept as they come."""

    def __init__(self, *words: str, log: Path, **environment: str) -> None:
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [*COMMAND, *words, "--json"], env=surroundings(None, **environment), text=True,
                stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self.events: list[Event] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def wait(self, fits: Callable[[Event], Any], what: str, after: int = 0) -> Event:
        def found() -> Event | None:
            assert self.process.poll() is None, self.events
            return next((event for event in self.events[after:] if fits(event)), None)

        event = until(found, what)
        assert event is not None
        return event

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(60)
        self._reading.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"


def asked(url: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "cluster", *words, "--url", url], env=surroundings(None, **environment),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


# Setting one up.


def test_init_writes_the_machines_and_a_secret_and_says_what_to_run(tmp_path: Path) -> None:
    words = ("cluster", "init", "a=host1", "b=host2:6000", "c=host3", "--name", "shop")
    done = run(None, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "host3" in done.stdout
    assert "posthouse cluster up --config cluster.yaml --node b" in done.stdout
    secret = tmp_path / "cluster.secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert len(bytes.fromhex(secret.read_text().strip())) == 32
    content = yaml.safe_load((tmp_path / "cluster.yaml").read_text())
    assert content["cluster"] == "shop"
    assert content["nodes"]["b"] == {
        "host": "host2", "port": 6000, "nats": 4222, "routes": 6222, "monitor": 8222
    }  # fmt: skip
    again = run(None, *words, cwd=tmp_path)
    assert (again.returncode, again.stdout) == (1, "")
    assert "is there already" in again.stderr
    assert secret.read_text() not in done.stdout


def test_init_has_json_and_names_mistakes(tmp_path: Path) -> None:
    words = ("cluster", "init", "a=host1", "--to", str(tmp_path / "new"), "--json")
    told = json.loads(run(None, *words).stdout)
    assert told["run"] == {"a": "posthouse cluster up --config cluster.yaml --node a"}
    assert Path(told["secret"]).exists()
    for wrong in (("a=h1", "b=h2"), ("a=h1", "--name", "a.b"), ("host1",)):
        done = run(None, "cluster", "init", *wrong, "--to", str(tmp_path))
        assert done.returncode == 2, done
        assert done.stderr.strip()


def test_permissions_are_those_of_one_node() -> None:
    told = json.loads(run(None, "cluster", "permissions", "--name", "shop", "--json").stdout)
    assert "phj.shop.*" in told["publish"]["allow"]
    assert told["subscribe"]["allow"] == ["ph.shop.>", "_INBOX_shop-a.>"]
    text = run(None, "cluster", "permissions", "--name", "shop", "--node", "b").stdout
    assert '"_INBOX_shop-b.>"' in text
    assert run(None, "cluster", "permissions", "--name", "a b").returncode == 2


def test_up_says_what_is_missing(tmp_path: Path) -> None:
    done = run(None, "cluster", "up", "--node", "a", cwd=tmp_path)
    assert done.returncode == 2
    assert "posthouse cluster init" in done.stderr
    run(None, "cluster", "init", "a=localhost", "b=localhost", "c=localhost", cwd=tmp_path)
    assert "Give --node with one of a, b, c" in run(None, "cluster", "up", cwd=tmp_path).stderr
    (tmp_path / "cluster.secret").unlink()
    done = run(None, "cluster", "up", "--node", "a", cwd=tmp_path)
    assert done.returncode == 2
    assert "copy it from the machine" in done.stderr


# Running one.


def use_free_ports(config: Path) -> None:
    content = yaml.safe_load(config.read_text())
    servers = [create_server(("127.0.0.1", 0)) for _ in range(12)]
    ports = [int(server.getsockname()[1]) for server in servers]
    for server in servers:
        server.close()
    for node in content["nodes"].values():
        node |= {name: ports.pop() for name in ("port", "nats", "routes", "monitor")}
    content["settings"] = {"log_window": "64M", "auto_create": True}
    config.write_text(yaml.safe_dump(content))


@pytest.fixture
def three(tmp_path: Path) -> Iterator[dict[str, Lines]]:
    """Three machines on this one, each run by its own `cluster up`."""
    words = ("a=127.0.0.1", "b=127.0.0.1", "c=127.0.0.1", "--name", "shop")
    assert run(None, "cluster", "init", *words, cwd=tmp_path).returncode == 0
    config = tmp_path / "cluster.yaml"
    use_free_ports(config)
    nodes = {
        name: Lines("cluster", "up", "--config", str(config), "--node", name,
                    "--data", str(tmp_path / name), log=tmp_path / f"{name}.log")
        for name in "abc"
    }  # fmt: skip
    try:
        yield nodes
    finally:
        for lines in nodes.values():
            lines.end()


def url_of(tmp_path: Path, node: str) -> str:
    content = yaml.safe_load((tmp_path / "cluster.yaml").read_text())
    return f"http://127.0.0.1:{content['nodes'][node]['port']}"


def status(tmp_path: Path, node: str) -> tuple[int, Event]:
    key = tmp_path / node / "root-key"
    done = asked(url_of(tmp_path, node), "status", "--json", "--key-file", str(key))
    return done.returncode, json.loads(done.stdout or "{}")


def until_well(tmp_path: Path, node: str) -> Event:
    def well() -> Event | None:
        code, found = status(tmp_path, node)
        is_whole = code == 0 and len(found["nodes"]) == 3
        return found if is_whole else None

    found = until(well, "all is well", look_seconds=0.3)
    assert found is not None
    return found


def check_metrics(tmp_path: Path) -> None:
    """Alerts go by metrics that a node has, and all that it has of the cluster are explained."""
    key = (tmp_path / "a" / "root-key").read_text().strip()
    request = Request(url_of(tmp_path, "a") + "/metrics")
    request.add_header("authorization", f"Bearer {ROOT}:{key}")
    with urlopen(request, timeout=60) as answer:
        text = answer.read().decode()
    families = {family.name for family in text_string_to_metric_families(text)}
    assert alert_metrics() <= families
    of_cluster = {name for name in families if name.startswith("posthouse_cluster_")}
    named = set(re.findall(r"`(posthouse_cluster_\w+)`", DOCS.read_text()))
    assert of_cluster == {name.removesuffix("_total") for name in named}


def check_that_folders_agree(tmp_path: Path) -> None:
    """Any node can be asked for the comparison of all."""
    for node in "ab":
        key = tmp_path / node / "root-key"
        done = asked(url_of(tmp_path, node), "verify", "--json", "--key-file", str(key))
        assert done.returncode == 0, done
        told = json.loads(done.stdout)
        assert told["agree"] is True
        assert told["nodes"] == ["a", "b", "c"]
        assert told["frames"] > 0


def pid_of(lines: Lines, program: str, after: int = 0) -> int:
    event = lines.wait(
        lambda event: event["event"] == "started" and event["program"] == program,
        f"{program} is started", after,
    )  # fmt: skip
    return int(event["pid"])


@needs_server
def test_three_machines_form_a_cluster_and_the_death_of_one_program_leaves_the_other(
    three: dict[str, Lines], tmp_path: Path
) -> None:
    found = until_well(tmp_path, "a")
    assert [node["node"] for node in found["nodes"]] == ["a", "b", "c"]
    stream = found["stream"]
    assert (stream["replicas"], stream["current"], stream["synced"]) == (3, 3, "always")
    shown = asked(url_of(tmp_path, "b"), "status", "--key-file", str(tmp_path / "b" / "root-key"))
    assert shown.stdout.startswith("cluster shop, epoch 1, leader ")
    assert "synced: always" in shown.stdout
    refused = asked(url_of(tmp_path, "a"), "status")
    assert refused.returncode == 4, refused
    check_metrics(tmp_path)
    check_that_folders_agree(tmp_path)

    follower = next(node for node in "abc" if node != found["leader"])
    lines = three[follower]
    server, broker = (pid_of(lines, program) for program in ("nats-server", "broker"))
    seen = len(lines.events)
    os.kill(server, signal.SIGKILL)
    lines.wait(lambda event: event == {
        "event": "ended", "program": "nats-server", "code": -9, "again_seconds": 1.0
    }, "its end is told")  # fmt: skip
    assert pid_of(lines, "nats-server", seen) != server
    assert is_running(broker)
    until_well(tmp_path, follower)

    assert three[found["leader"]].end() == 0
    assert [event["program"] for event in three[found["leader"]].events[-2:]] == [
        "broker", "nats-server"
    ]  # fmt: skip

    def another_leads() -> bool:
        code, now = status(tmp_path, follower)
        return code == 1 and now["leader"] not in (None, found["leader"])

    until(another_leads, "another leads, and the one that stopped is missed", look_seconds=0.3)
    code, now = status(tmp_path, follower)
    assert code == 1
    assert any(found["leader"] in trouble["what"] for trouble in now["troubles"])


@needs_server
def test_operators_hand_over_hold_and_forget_from_any_node(
    three: dict[str, Lines], tmp_path: Path
) -> None:
    found = until_well(tmp_path, "a")
    first = found["leader"]
    second, third = (node for node in "abc" if node != first)

    def told(*words: str, at: str = third) -> tuple[int, Event]:
        key = tmp_path / at / "root-key"
        done = asked(url_of(tmp_path, at), *words, "--json", "--key-file", str(key))
        return done.returncode, json.loads(done.stdout) if done.stdout else {"told": done.stderr}

    code, answer = told("step-down", "--to", "x")
    assert (code, "x is not there" in answer["told"]) == (2, True), answer
    assert told("step-down", "--to", second) == (0, {"from": first, "to": second})

    def has_taken_over() -> bool:
        code, now = status(tmp_path, third)
        return code == 0 and now["leader"] == second and len(now["nodes"]) == 3

    until(has_taken_over, "the one that was named leads, and the other is back", look_seconds=0.3)

    code, answer = told("hold", "--for", "5m")
    assert (code, answer["held"], answer["confirmed"]) == (0, True, True)
    code, answer = told("status", at=second)
    assert code == 1
    assert any("writing is held" in trouble["what"] for trouble in answer["troubles"])
    assert told("hold", "--release") == (0, {"held": False})
    until_well(tmp_path, second)

    code, answer = told("forget", first)
    assert (code, "is there; stop it first" in answer["told"]) == (2, True), answer
    three[first].end()

    def is_missed() -> bool:
        _, now = status(tmp_path, third)
        return any(f"the node {first} has been silent" in t["what"] for t in now["troubles"])

    until(is_missed, "it is missed", look_seconds=0.3)
    assert told("forget", first)[0] == 0
    for node in (second, third):
        assert [each["node"] for each in status(tmp_path, node)[1]["nodes"]] == sorted(
            (second, third)
        )
    assert told("forget", "x")[0] == 3
    # The least permissions are enough for all of that.
    assert not any("iolation" in (tmp_path / f"{node}.log").read_text() for node in "abc")


@needs_server
def test_when_up_is_killed_its_programs_stop(three: dict[str, Lines], tmp_path: Path) -> None:
    lines = three["a"]
    pids = [pid_of(lines, program) for program in ("nats-server", "broker")]
    lines.end(signal.SIGKILL)
    until(lambda: not any(map(is_running, pids)), "they have stopped")


@needs_server
def test_status_of_a_node_without_most_servers_tells_that_nobody_leads(tmp_path: Path) -> None:
    words = ("a=127.0.0.1", "b=127.0.0.1", "c=127.0.0.1", "--name", "shop")
    assert run(None, "cluster", "init", *words, cwd=tmp_path).returncode == 0
    use_free_ports(tmp_path / "cluster.yaml")
    lines = Lines("cluster", "up", "--config", str(tmp_path / "cluster.yaml"), "--node", "a",
                  "--data", str(tmp_path / "a"), log=tmp_path / "a.log")  # fmt: skip
    try:
        found = until(
            lambda: (told := status(tmp_path, "a"))[0] == 2 and told[1],
            "it says that nobody leads", look_seconds=0.3,
        )  # fmt: skip
        assert found
        assert found["level"] == "no leader"
        assert "start the NATS servers" in found["troubles"][0]["do"]
    finally:
        assert lines.end() == 0


@needs_server
def test_a_supervisor_runs_either_program_by_itself(tmp_path: Path) -> None:
    assert run(None, "cluster", "init", "a=127.0.0.1", cwd=tmp_path).returncode == 0
    done = subprocess.Popen(
        [*COMMAND, "cluster", "up", "--only", "nats"], cwd=tmp_path, env=surroundings(None),
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        executable = Path(f"/proc/{done.pid}/exe")
        until(lambda: executable.resolve() == Path(find_server()).resolve(), "it is nats-server")
    finally:
        done.terminate()
        done.communicate(timeout=60)


# Trying one.


@needs_server
def test_one_of_three_is_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    lines = Lines("cluster", "try", "--data", str(tmp_path / "try"), log=tmp_path / "log")
    try:
        begun = lines.wait(lambda event: event["event"] == "begun", "it has begun")

        def is_whole(event: Event) -> bool:
            roles = [node["role"] for node in event.get("status", {}).get("nodes", ())]
            return sorted(roles) == ["leader", "standby", "standby"]

        whole = lines.wait(is_whole, "one leads, and the others follow")
        leader = whole["status"]["leader"]
        other = next(node for node in "abc" if node != leader)
        sent = subprocess.run(
            [*COMMAND, "send", "q", "x", "--url", begun["urls"][leader]], env=surroundings(None),
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert sent.returncode == 0, sent.stderr
        pids = [pid for pair in whole["processes"].values() for pid in pair.values()]
        seen = len(lines.events)
        os.kill(whole["processes"][leader]["broker"], signal.SIGKILL)
        lines.wait(lambda event: event["event"] == "ended" and event["node"] == leader,
                   "its end is told", seen)  # fmt: skip
        told = lines.wait(lambda event: event["event"] == "leader", "another leads", seen)
        assert told["leader"] != leader
        assert told["lost"] == 0
        shown = asked(begun["urls"][other], "status")
        assert shown.returncode in (0, 1), shown
        assert f"leader {told['leader']}" in shown.stdout
        seen = len(lines.events)
        lines.wait(is_whole, "the one that was killed is back", seen)
    finally:
        code = lines.end(signal.SIGINT)
    assert code == 130
    assert not any(map(is_running, pids))
