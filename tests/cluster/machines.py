"""Three machines, each with a NATS server and a node of one cluster, as processes of their own."""

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import urlopen

from posthouse.store.log import Unanswered
from posthouse.store.nats import Nats, Servers
from tests.cluster.network import Fault, Network, run
from tests.crash.killing import FLAGS
from tests.server.running import Reply, Running
from tests.waiting import until

T = TypeVar("T")
NAMES = "abc"
CLUSTER = "shop"
STREAM = f"PHJ_{CLUSTER}_0"
PORT, NATS_PORT, ROUTE_PORT, MONITOR_PORT = 5672, 4222, 6222, 8222
ANSWER_SECONDS = 1.0  # for a question to one node; one that hangs is passed over
DISK_BYTES = 96 << 20
KEEP_FLAGS = "--keep", "1d", "--keep-size", "16G"
FILL_BYTES = 4 << 10
FILL_SECONDS = 0.005  # before it is looked again for room
SERVER = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which(
    "nats-server"
)


def together(work: Iterable[Callable[[], T]]) -> list[T]:
    """Does all of it at the same time; raises the first of what they raise."""
    with ThreadPoolExecutor() as pool:
        return [each.result() for each in [pool.submit(each) for each in work]]


class Machine:
    """A namespace with a NATS server and a node, each of which can be killed, stopped, started."""

    def __init__(self, name: str, folder: Path, network: Network, *flags: str) -> None:
        self.name = name
        self.address = network.add(name)
        self.folder = folder
        self.data = folder / "data"
        self.flags = flags
        self.nats: subprocess.Popen[bytes] | None = None
        self.broker: Running | None = None
        self._network = network
        self._faults: set[Fault] = set()
        self._disk = False
        self.data.mkdir(parents=True)

    # Its processes.

    def configure(self, addresses: Iterable[str]) -> None:
        """Writes the settings of its NATS server, which has routes to those of all machines."""
        routes = ", ".join(f"nats://{address}:{ROUTE_PORT}" for address in addresses)
        (self.folder / "nats.conf").write_text(
            f"server_name: {self.name}\n"
            f"listen: {self.address}:{NATS_PORT}\n"
            f"http: {self.address}:{MONITOR_PORT}\n"
            f"jetstream {{ store_dir: {json.dumps(str(self.folder / 'nats'))},"
            " sync_interval: always }\n"
            f"cluster {{ name: {CLUSTER}, listen: {self.address}:{ROUTE_PORT},"
            f" routes: [{routes}], ping_interval: 500ms, ping_max: 2 }}\n"
        )

    def start_nats(self) -> None:
        assert SERVER is not None
        assert self.nats is None
        with (self.folder / "nats.log").open("ab") as log:
            self.nats = subprocess.Popen(
                [*self._network.within(self.name), SERVER, "-c", str(self.folder / "nats.conf")],
                stdout=log, stderr=log,
            )  # fmt: skip

    def start_broker(self) -> None:
        assert self.broker is None
        self.broker = Running(
            *self.flags, host=self.address, within=self._network.within(self.name)
        )

    def kill_nats(self) -> None:
        self.end_nats(signal.SIGKILL)

    def end_nats(self, number: int = signal.SIGTERM) -> None:
        assert self.nats is not None
        self.nats.send_signal(number)
        self.nats.wait(60)
        self.nats = None

    def kill_broker(self) -> None:
        assert self.broker is not None
        self.broker.kill()
        self.broker = None

    def stop_broker(self) -> int:
        """Tells it to end, and waits for that; returns its exit code."""
        assert self.broker is not None
        code = self.broker.stop()
        self.broker = None
        return code

    def kill(self) -> None:
        """The machine has lost its power: both processes end at the same moment."""
        assert self.nats is not None
        assert self.broker is not None
        self.nats.kill()
        self.broker.process.kill()
        self.kill_nats()
        self.kill_broker()

    def processes(self, *kinds: str) -> list[int]:
        found = {
            "nats": None if self.nats is None else self.nats.pid,
            "broker": None if self.broker is None else self.broker.process.pid,
        }
        return [number for kind in kinds if (number := found[kind]) is not None]

    # Its cable and its disk.

    def fail(self, fault: Fault) -> None:
        self._network.fail(self.name, fault)
        self._faults.add(fault)

    def heal(self) -> None:
        while self._faults:
            self._network.heal(self.name, self._faults.pop())

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Takes all room of its small disk, also what is freed, until the end of the block."""
        assert self._disk
        rest, over = self.data / "of others", threading.Event()

        def fill() -> None:
            with rest.open("wb", buffering=0) as file:
                while not over.is_set():
                    try:
                        file.write(bytes(FILL_BYTES))
                    except OSError:
                        over.wait(FILL_SECONDS)

        filling = threading.Thread(target=fill)
        filling.start()
        try:
            yield
        finally:
            over.set()
            filling.join()
            rest.unlink()

    def mount(self) -> None:
        """Gives the node's folder a disk of its own, a small one."""
        run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self.data))
        self._disk = True

    def close(self) -> None:
        if self.nats is not None:
            self.kill_nats()
        if self.broker is not None:
            self.kill_broker()
        if self._disk:
            run("umount", "--lazy", str(self.data))

    # What it says.

    def ask(self, method: str, path: str, body: object = None) -> Reply:
        """Its node's answer; where it has none, 503."""
        if self.broker is None:
            return Reply(503, {}, b"{}")
        try:
            return self.broker.call(method, path, body, seconds=ANSWER_SECONDS)
        except (OSError, HTTPException):
            return Reply(503, {}, b"{}")

    def leads(self) -> bool:
        return self.ask("GET", "/health/leader").status == 200

    def is_ready(self) -> bool:
        """Whether its node leads, or hands clients to the one that does."""
        return self.ask("GET", "/health/ready").status == 200

    def stream(self) -> dict[str, Any]:
        """The stream's group of servers as this machine's knows it; empty where it does not."""
        group: dict[str, Any] = self._stream_detail().get("cluster", {})
        return group

    def stream_begin(self) -> int:
        """The sequence of the first message that the stream has."""
        return int(self._stream_detail().get("state", {}).get("first_seq", 0))

    def _stream_detail(self) -> dict[str, Any]:
        try:
            with urlopen(
                f"http://{self.address}:{MONITOR_PORT}/jsz?streams=1", timeout=ANSWER_SECONDS
            ) as answer:
                found: dict[str, Any] = json.loads(answer.read())
        except (OSError, ValueError, HTTPException):
            return {}
        streams = [
            stream
            for account in found.get("account_details", ())
            for stream in account.get("stream_detail", ())
            if stream["name"] == STREAM
        ]
        return streams[0] if streams else {}


class Machines:
    """A cluster of three machines that know each other."""

    def __init__(self, folder: Path, *flags: str, keep: bool = False) -> None:
        """`keep`: nodes keep their whole journals, but for the one that has a small disk."""
        self.network = Network()
        self._flags = flags
        self._keep = keep
        self._by_name: dict[str, Machine] = {}
        try:
            for name in NAMES:
                self._by_name[name] = Machine(name, folder / name, self.network)
            addresses = [machine.address for machine in self]
            for machine in self:
                machine.configure(addresses)
                machine.flags = self._flags_of(machine)
                machine.start_nats()
            self.small.mount()
            together([machine.start_broker for machine in self])
        except BaseException:
            self.close()
            raise

    def _flags_of(self, machine: Machine) -> tuple[str, ...]:
        nearest = sorted(self, key=lambda other: other is not machine)
        return (
            *FLAGS, *self._flags, "--dev-allow", self.network.range, "--host", "0.0.0.0",
            "--port", str(PORT), "--advertise", f"{machine.address}:{PORT}",
            "--data", str(machine.data),
            "--store", "nats://" + ",".join(f"{each.address}:{NATS_PORT}" for each in nearest),
            *(f"--nats-monitor=http://{each.address}:{MONITOR_PORT}" for each in nearest),
            "--cluster", CLUSTER, "--node", machine.name,
            *(KEEP_FLAGS if self._keep and machine is not self.small else ()),
        )  # fmt: skip

    def __iter__(self) -> Iterator[Machine]:
        return iter(self._by_name.values())

    def __getitem__(self, name: str) -> Machine:
        return self._by_name[name]

    @property
    def small(self) -> Machine:
        """The machine whose node has a small disk of its own."""
        return self[NAMES[-1]]

    def others(self, *but: Machine) -> list[Machine]:
        return [machine for machine in self if machine not in but]

    @property
    def leading(self) -> Machine | None:
        found = together([machine.leads for machine in self])
        return next((each for each, leads in zip(self, found, strict=True) if leads), None)

    def leader(self, *but: Machine) -> Machine:
        """The machine whose node leads, which is waited for."""

        def found() -> Machine | None:
            leading = self.leading
            return None if leading in but else leading

        machine = until(found, "a node leads", look_seconds=0.05)
        assert machine is not None
        return machine

    def stream_leader(self) -> Machine:
        """The machine whose NATS server leads the stream, as most of them say."""

        def found() -> str:
            names = [each.stream().get("leader", "") for each in self if each.nats is not None]
            return next((name for name in names if name and names.count(name) >= 2), "")

        return self[until(found, "the stream has a leader", look_seconds=0.05)]

    def place_stream(self, machine: Machine) -> None:
        """Has a machine's NATS server lead the stream."""
        while self.stream_leader() is not machine:
            with contextlib.suppress(Unanswered):
                asyncio.run(_place(f"nats://{machine.address}:{NATS_PORT}", machine.name))

    def until_settled(self) -> None:
        """Waits until every server has all of the stream, and every node follows or leads."""

        def has_all() -> bool:
            group = self.stream_leader().stream()
            replicas = group.get("replicas", ())
            return len(replicas) == len(NAMES) - 1 and all(
                each.get("current") and not each.get("offline") for each in replicas
            )

        until(has_all, "every server has all of the stream", look_seconds=0.05)
        for machine in self:
            until(machine.is_ready, f"{machine.name} hands clients to the leader")

    def close(self) -> None:
        for machine in self._by_name.values():
            machine.heal()
            machine.close()
        self.network.close()


async def _place(url: str, server: str) -> None:
    nats = await Nats.connect(Servers((url,)))
    try:
        log = await nats.log(STREAM, f"phj.{CLUSTER}.0", len(NAMES), 2 << 30)
        await log.place(server)
    finally:
        await nats.close()
