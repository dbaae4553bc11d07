"""Folders of nodes, with real processes: founded, copied by newcomers, backed up, served alone."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from posthouse.broker.access import ROOT
from posthouse.server.exported_keys import keys_in
from posthouse.store.lane import MARK, decode
from posthouse.store.nats import Nats as Client
from posthouse.store.nats import Servers
from tests.server.clustered import QUEUE, Nats, a_free_port, active, call, nats, needs_nats, send
from tests.server.running import Running
from tests.waiting import until, until_async

__all__ = ["nats"]
pytestmark = needs_nats
COMMAND = (sys.executable, "-m", "posthouse.cli")


class Nodes:
    """Nodes of one cluster, each on a port of its own, which the others are told."""

    def __init__(self, nats: Nats, folder: Path) -> None:
        self._nats, self.folder = nats, folder
        self._all: list[Running] = []

    def command(self, name: str, *more: str) -> list[str]:
        port = str(a_free_port())
        return [*self._nats.flags(name, self.folder / name), "--port", port, "--advertise",
                f"localhost:{port}", *more]  # fmt: skip

    def start(self, name: str, *more: str) -> Running:
        made = Running(*self.command(name, *more))
        self._all.append(made)
        return made

    def secret_flags(self, name: str, secret: str) -> list[str]:
        flags = [flag for flag in self.command(name) if flag != "--dev"]
        return [*flags, "--cluster-secret", secret]

    def start_secret(self, name: str, secret: str, *more: str) -> Running:
        made = Running(*self.secret_flags(name, secret), *more)
        self._all.append(made)
        return made

    def alone(self, name: str, *more: str) -> Running:
        made = Running("--data", str(self.folder / name), *more)
        self._all.append(made)
        return made

    def close(self) -> None:
        for node in self._all:
            node.kill()


@pytest.fixture
def nodes(nats: Nats, tmp_path: Path) -> Iterator[Nodes]:
    with ExitStack() as stack:
        made = Nodes(nats, tmp_path)
        stack.callback(made.close)
        yield made


def leads(node: Running) -> None:
    until(lambda: call(node, "GET", "/health/leader").status == 200, "it leads")


def leading(nodes: list[Running]) -> Running | None:
    found = (node for node in nodes if call(node, "GET", "/health/leader").status == 200)
    return next(found, None)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("POSTHOUSE_")}
    return subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, timeout=120, check=False, env=clean
    )


def a_single_broker(nodes: Nodes, count: int) -> None:
    """Leaves the folder `a` of a broker that was stopped, with so many messages."""
    broker = nodes.alone("a", "--dev", "--segment-size", "64K")
    assert call(broker, "PUT", QUEUE, {}).status == 201
    send(broker, count)
    assert broker.stop() == 0


def one_exists(paths: list[Path]) -> bool:
    return any(path.exists() for path in paths)


def follows(node: Running) -> None:
    node.events("cluster.leader")


def test_a_broker_becomes_a_cluster_and_new_nodes_copy_its_folder(nodes: Nodes) -> None:
    a_single_broker(nodes, 40)
    first = nodes.start("a", "--found")
    assert first.events("cluster.founded")
    leads(first)
    assert active(first) == 40
    send(first, 10)

    second = nodes.start("b")  # the log does not hold what it lacks
    [arrived] = second.events("cluster.arrived")
    assert arrived["number"] > 0
    follows(second)
    assert not (nodes.folder / "b" / "arriving").exists()
    third = nodes.start("c")
    assert third.events("cluster.arrival")[0]["peer"] == "b"  # not of who leads
    follows(third)
    send(first, 10)

    first.kill()
    leader = until(partial(leading, [second, third]), "another leads")
    assert leader is not None
    assert active(leader) == 60
    send(leader, 5)

    again = nodes.start("a", "--found")  # as a service file has it
    assert again.events("cluster.founded_before")
    follows(again)
    for node in (second, third, again):
        node.stop()
    for name in "abc":
        verified = run("store", "verify", "--json", "--data", str(nodes.folder / name))
        assert json.loads(verified.stdout)["sound"], verified.stdout


def test_a_newcomer_that_is_killed_while_it_copies_goes_on(nodes: Nodes) -> None:
    a_single_broker(nodes, 200)
    first = nodes.start("a", "--found")
    leads(first)
    folder = nodes.folder / "b"
    done = [folder / "arrived-done", folder / f"{1:020}.journal"]
    for name in ("arriving", "arrived", "arrived/cleared"):
        process = subprocess.Popen(
            [*COMMAND, "serve", *nodes.command("b")],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wanted = [folder / name, *done]
        until(partial(one_exists, wanted), "it copies", look_seconds=0.0005)
        process.kill()
        process.wait()
    second = nodes.start("b")
    follows(second)
    first.kill()
    leads(second)
    assert active(second) == 200


def test_a_node_that_the_log_has_gone_on_without_copies_a_folder_by_itself(
    nodes: Nodes, nats: Nats
) -> None:
    first = nodes.start("a")
    leads(first)
    assert call(first, "PUT", QUEUE, {}).status == 201
    second = nodes.start("b")
    follows(second)
    second.process.send_signal(signal.SIGSTOP)
    send(first, 20)
    asyncio.run(purge_to_a_mark(nats, frames=20))
    second.process.send_signal(signal.SIGCONT)
    assert second.events("cluster.behind")
    assert second.events("cluster.arrived")
    until(lambda: sum(e["event"] == "broker.ready" for e in second.log) == 2, "it starts anew")
    send(first, 5)
    first.kill()
    leads(second)
    assert active(second) == 25


async def purge_to_a_mark(nats: Nats, frames: int) -> None:
    """Removes all up to a mark with so many frames before it, as if nobody had lacked them."""
    client = await Client.connect(Servers((f"nats://127.0.0.1:{nats.port}",)))
    log = await client.log("PHJ_shop_0", "phj.shop.0", 1, 2 << 30)

    async def the_mark() -> int:
        for sequence, data in await log.read(0):
            entry = decode(data)
            if entry is not None and entry.kind == MARK and entry.number > frames:
                return sequence
        return 0

    await log.purge(await until_async(the_mark, "there is a mark"))
    await client.close()


def test_a_log_that_is_not_empty_is_not_founded_but_replaced_on_demand(
    nodes: Nodes, nats: Nats
) -> None:
    other = nodes.start("x")
    leads(other)
    a_single_broker(nodes, 3)
    refused = run("serve", "--log", "json", *nodes.command("a", "--found"))
    assert refused.returncode == 1
    assert "the log is not empty" in refused.stderr
    found = ["cluster", "found", "--store", f"nats://127.0.0.1:{nats.port}", "--cluster", "shop",
             "--replicas", "1", "--data", str(nodes.folder / "a")]  # fmt: skip
    refused = run(*found)
    assert refused.returncode == 1
    assert "give --replace-log" in refused.stderr
    refused = run(*found, "--replace-log")
    assert "x is running" in refused.stderr
    other.kill()
    done = run(*found, "--replace-log", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["frame"] > 0
    first = nodes.start("a")
    leads(first)
    assert active(first) == 3
    # What followed the log that was replaced, and has less, follows the new one.
    other = nodes.start("x")
    assert other.events("cluster.arrived")
    follows(other)


def test_a_folder_that_the_cluster_does_not_know_is_never_replaced(nodes: Nodes) -> None:
    a_single_broker(nodes, 30)
    shutil.move(nodes.folder / "a", nodes.folder / "old")
    a_single_broker(nodes, 60)
    first = nodes.start("a", "--found")
    leads(first)
    before = sorted(path.name for path in (nodes.folder / "old").glob("*.journal"))
    refused = run("serve", "--log", "json", *nodes.command("old"))
    assert refused.returncode == 1
    assert "not known to be of this cluster" in refused.stderr
    assert sorted(path.name for path in (nodes.folder / "old").glob("*.journal")) == before


def test_a_nodes_folder_is_served_alone_and_does_not_come_back(
    nodes: Nodes, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret of the cluster that nobody can guess")
    first = nodes.start("b")
    leads(first)
    assert call(first, "PUT", QUEUE, {}).status == 201
    send(first, 7)
    assert first.stop() == 0
    refused = run("serve", "--log", "json", "--port", "0", "--data", str(tmp_path / "b"))
    assert "give --cluster-secret" in refused.stderr
    alone = nodes.alone("b", "--dev", "--cluster-secret", str(secret))
    assert active(alone) == 7
    send(alone, 1)
    assert alone.stop() == 0
    refused = run("serve", "--log", "json", *nodes.command("b"))
    assert refused.returncode == 1
    assert "gone its own way" in refused.stderr


def test_a_secret_carries_the_keys_of_a_folder(nodes: Nodes, tmp_path: Path) -> None:
    broker = nodes.alone("a")
    assert broker.stop() == 0
    made = run("cluster", "secret", "--data", str(tmp_path / "a"), str(tmp_path / "secret"))
    assert made.returncode == 0, made.stderr
    keys = keys_in((tmp_path / "secret").read_bytes())
    assert keys is not None
    assert keys.root == (tmp_path / "a" / "root-key").read_text().strip()
    assert keys.seal == (tmp_path / "a" / "seal-key").read_bytes()
    assert (tmp_path / "secret").stat().st_mode & 0o77 == 0
    again = run("cluster", "secret", "--data", str(tmp_path / "a"), str(tmp_path / "secret"))
    assert "is there already" in again.stderr
    served = nodes.alone("a", "--cluster-secret", str(tmp_path / "secret"))
    assert served.stop() == 0
    other = tmp_path / "other"
    other.write_text("another secret, which is long enough to be one")
    refused = run("serve", "--port", "0", "--log", "json", "--data", str(tmp_path / "a"),
                  "--cluster-secret", str(other))  # fmt: skip
    assert "has keys of its own" in refused.stderr


def test_a_broker_with_keys_becomes_a_cluster_whose_nodes_trust_each_other(
    nodes: Nodes, tmp_path: Path
) -> None:
    broker = nodes.alone("a")
    key = f"{ROOT}:{(tmp_path / 'a' / 'root-key').read_text().strip()}"
    assert broker.call("PUT", QUEUE, {}, key=key).status == 201
    message = {"messages": [{"body": "kept"}]}
    assert broker.call("POST", f"{QUEUE}/messages", message, key=key).status == 201
    web = {"name": "web", "grants": [{"rights": ["send"]}]}
    sealed = broker.call("POST", "/api/v1/principals", web, key=key).json["key"]
    assert broker.stop() == 0
    secret = str(tmp_path / "secret")
    assert run("cluster", "secret", "--data", str(tmp_path / "a"), secret).returncode == 0
    first = nodes.start_secret("a", secret, "--found")
    leads(first)
    second = nodes.start_secret("b", secret)  # copies over TLS, with the root's key
    assert second.events("cluster.arrived")
    follows(second)
    first.kill()
    leads(second)
    counts = second.call("GET", QUEUE, key=key).json["counts"]
    assert counts["active"] == 1
    # Its key was sealed by the broker that was there before.
    sent = second.call("POST", f"{QUEUE}/messages", message, key=f"web:{sealed}")
    assert sent.status == 201
    # One that does not know the secret gets nothing.
    other = tmp_path / "other"
    other.write_text("another secret, which is long enough to be one")
    process = subprocess.Popen(
        [*COMMAND, "serve", "--log", "json", *nodes.secret_flags("c", str(other))],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    with process.stderr as lines:
        failed = next(line for line in lines if "cluster.arrival_failed" in line)
        process.kill()
        process.wait()
    assert "certificate" in failed.lower()
    assert not list((tmp_path / "c").glob("*.journal"))


def test_a_broker_is_backed_up_while_it_runs_and_restored(nodes: Nodes, tmp_path: Path) -> None:
    broker = nodes.alone("a", "--dev", "--segment-size", "64K")
    assert call(broker, "PUT", QUEUE, {}).status == 201
    send(broker, 60)
    done = run("store", "backup", "--data", str(tmp_path / "a"), str(tmp_path / "monday"))
    assert done.returncode == 0, done.stderr
    assert "keep it like a key" in done.stdout
    over = run("store", "backup", "--url", broker.url, "--json", str(tmp_path / "tuesday"))
    assert over.returncode == 0, over.stderr
    assert json.loads(over.stdout)["keys"] == []
    send(broker, 5)
    assert not list((tmp_path / "a").glob("held-*/*.snapshot"))
    assert broker.stop() == 0
    again = run("store", "backup", "--data", str(tmp_path / "a"), str(tmp_path / "monday"))
    assert "is not empty" in again.stderr
    for day in ("monday", "tuesday"):
        target = tmp_path / f"of {day}"
        restored = run("store", "restore", str(tmp_path / day), "--data", str(target))
        assert restored.returncode == 0, restored.stderr
        refused = run("store", "restore", str(tmp_path / day), "--data", str(target))
        assert "holds a journal already" in refused.stderr
        served = nodes.alone(target.name, "--dev")
        assert active(served) == 60
        assert served.stop() == 0
    spoilt = next((tmp_path / "monday").glob("*.journal"))
    data = bytearray(spoilt.read_bytes())
    data[500] ^= 1
    spoilt.write_bytes(data)
    refused = run("store", "restore", str(tmp_path / "monday"), "--data", str(tmp_path / "no"))
    assert refused.returncode == 1
    assert not list((tmp_path / "no").glob("*.journal"))


def test_the_folder_is_handed_out_to_who_manages_and_by_its_list_alone(
    nodes: Nodes, tmp_path: Path
) -> None:
    broker = nodes.alone("a", "--dev")
    assert call(broker, "PUT", QUEUE, {}).status == 201
    listed = call(broker, "GET", "/cluster/folder")
    lines = [json.loads(line) for line in listed.body.splitlines()]
    assert lines[-1] == {"files": len(lines) - 2}
    hold, name = lines[0]["hold"], lines[1]["name"]
    assert call(broker, "GET", f"/cluster/folder/{name}?hold={hold}").status == 200
    for path in ("seal-key", "..%2Fseal-key", "../seal-key", "lock"):
        assert call(broker, "GET", f"/cluster/folder/{path}?hold={hold}").status == 404
    assert call(broker, "GET", f"/cluster/folder/{name}?hold=x").json["code"] == "gone"
    assert call(broker, "GET", f"/cluster/folder/{name}/x?hold={hold}").status == 404
    assert call(broker, "POST", "/cluster/folder").status == 405
    assert call(broker, "GET", "/cluster/nothing").status == 404
    for _ in range(3):
        assert call(broker, "GET", "/cluster/folder").status == 200
    assert call(broker, "GET", "/cluster/folder").json["code"] == "busy"
    assert call(broker, "DELETE", f"/cluster/folder?hold={hold}").status == 204
    assert call(broker, "DELETE", f"/cluster/folder?hold={hold}").status == 204
    assert call(broker, "GET", f"/cluster/folder/{name}?hold={hold}").status == 410
    assert call(broker, "GET", "/cluster/folder").status == 200
    broker.kill()
    assert list((tmp_path / "a").glob("held-*"))
    again = nodes.alone("a", "--dev")
    assert not list((tmp_path / "a").glob("held-*"))
    assert again.stop() == 0
