"""What can go wrong with a machine of a cluster, one thing at a time, while clients are at work."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from random import Random

from tests.cluster.machines import Machine, Machines
from tests.cluster.network import Fault
from tests.waiting import until

FLOW_SECONDS = 1.0  # for which work goes on without a pause, so that it is taken to go on
PAUSE_SECONDS = 0.5  # between two acknowledgements, more than which is a pause
SLOW_SYNC_US = 50_000
FILL_BYTES = 1 << 20


class Round:
    """One scenario that is played."""

    def __init__(
        self,
        machines: Machines,
        random: Random,
        acknowledged: list[float],
        check: Callable[[], None],
    ) -> None:
        """`check` raises what has gone wrong with the clients."""
        self.machines = machines
        self.random = random
        self._acknowledged = acknowledged
        self._check = check
        self._began: float | None = None

    def begin(self) -> None:
        """From here on the longest time without an acknowledgement counts."""
        self.flow()
        self._began = time.monotonic()

    def gap_seconds(self) -> float:
        """The longest time without an acknowledgement since the scenario began."""
        assert self._began is not None
        times = [at for at in self._acknowledged if at >= self._began]
        return max((b - a for a, b in pairwise([self._began, *times])), default=0.0)

    def flow(self) -> None:
        """Waits until acknowledgements have come for a while without a pause, from now on."""
        asked = time.monotonic()

        def flows() -> bool:
            self._check()
            now = time.monotonic()
            if now - asked < FLOW_SECONDS:
                return False
            recent = [at for at in self._acknowledged[-10_000:] if at >= now - FLOW_SECONDS]
            return all(
                b - a < PAUSE_SECONDS for a, b in pairwise([now - FLOW_SECONDS, *recent, now])
            )

        until(flows, "work goes on", look_seconds=0.05)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)  # slept: for as long as a fault is to last

    def leader(self) -> Machine:
        return self.machines.leader()

    def apart(self) -> Machine:
        """The broker's leader, when the stream is led on another machine."""
        leader = self.leader()
        if self.machines.stream_leader() is leader:
            self.machines.place_stream(self.random.choice(self.machines.others(leader)))
        return leader


def kill_broker(play: Round) -> None:
    leader = play.apart()
    play.begin()
    leader.kill_broker()
    play.flow()
    leader.start_broker()


def kill_stream_leader(play: Round) -> None:
    play.apart()
    machine = play.machines.stream_leader()
    play.begin()
    machine.kill_nats()
    play.flow()
    machine.start_nats()


def kill_machine(play: Round) -> None:
    leader = play.apart()
    play.begin()
    leader.kill()
    play.flow()
    leader.start_nats()
    leader.start_broker()


def kill_both_leaders(play: Round) -> None:
    """The machine is lost that leads the stream as well, before the stream's leader was moved."""
    leader = play.leader()
    play.flow()
    play.machines.place_stream(leader)
    play.begin()
    leader.kill()
    play.flow()
    leader.start_nats()
    leader.start_broker()


def two_faults(play: Round) -> None:
    """Another broker is killed while the one before it is not yet back."""
    first = play.leader()
    play.begin()
    first.kill_broker()
    second = play.machines.leader(first)
    second.kill_broker()
    play.flow()
    for machine in (first, second):
        machine.start_broker()


def stop(play: Round) -> None:
    """Processes that stand still for a while, and then go on as if nothing had happened."""
    leader = play.apart()
    machine, kinds = play.random.choice([
        (leader, ("broker",)), (leader, ("broker",)), (leader, ("broker", "nats")),
        (play.machines.stream_leader(), ("nats",)),
    ])  # fmt: skip
    seconds = play.random.choice([1.0, 3.0, 6.0, 12.0])
    play.begin()
    processes = machine.processes(*kinds)
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        play.wait(seconds)
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)
    play.flow()


def _disconnect(play: Round, fault: Fault) -> None:
    leader = play.apart()
    play.begin()
    leader.fail(fault)
    play.wait(play.random.uniform(3, 6))
    play.flow()
    leader.heal()
    play.flow()


def cut(play: Round) -> None:
    _disconnect(play, "cut")


def deaf(play: Round) -> None:
    _disconnect(play, "deaf")


def mute(play: Round) -> None:
    _disconnect(play, "mute")


def slow_disk(play: Round) -> None:
    """Every sync of the server that leads the stream takes 50 ms more."""
    play.apart()
    machine = play.machines.stream_leader()
    play.begin()
    with slow_syncs(*machine.processes("nats")):
        play.wait(play.random.uniform(2, 5))
        play.flow()
    play.flow()


@contextmanager
def slow_syncs(process: int) -> Iterator[None]:
    syncs = "fsync,fdatasync"
    tracer = subprocess.Popen(
        ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={syncs}",
         "-e", f"inject={syncs}:delay_exit={SLOW_SYNC_US}", "-p", str(process)],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait(60)


def disk_full(play: Round) -> None:
    """The leader's folder is on a disk that others fill."""
    machine = play.machines.small
    if play.leader() is not machine:
        _hand_over(play.leader(), machine.name)
        until(lambda: play.leader() is machine, "it leads")
    play.apart()
    play.begin()
    with machine.full_disk():
        until(lambda: b"is full" in machine.ask("GET", "/health/ready").body, "the disk is full")
        play.wait(2)
    play.flow()


def newcomer(play: Round) -> None:
    """A node comes with an empty folder, as on a machine that was bought just now."""
    machine = play.random.choice(play.machines.others(play.leader()))
    play.begin()
    machine.stop_broker()
    for path in machine.data.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    machine.start_broker()
    play.flow()


def step_down(play: Round) -> None:
    leader = play.apart()
    play.begin()
    _hand_over(leader)
    play.flow()


def forget(play: Round) -> None:
    """A node is away, and forgotten, until the stream no longer has what it lacks."""
    leader = play.leader()
    machine = play.random.choice(play.machines.others(leader))
    play.begin()
    machine.stop_broker()
    form = {"node": machine.name}
    until(  # it counts as being there for some seconds more
        lambda: leader.ask("POST", "/cluster/forget", form).status == 204, "it is forgotten"
    )
    first = leader.stream_begin()
    until(lambda: leader.stream_begin() > first, "the stream is purged", look_seconds=0.5)
    machine.start_broker()
    play.flow()


def rolling_restart(play: Round) -> None:
    """All servers and nodes are stopped and started one after the other, the leader last."""
    leader = play.leader()
    play.begin()
    for machine in (*play.machines.others(leader), leader):
        code = machine.stop_broker()
        assert code == 0, code
        machine.end_nats()
        machine.start_nats()
        machine.start_broker()
        play.machines.until_settled()
        play.flow()


def _hand_over(leader: Machine, to: str = "") -> None:
    """Has the leader step down. It is started anew in the same process, and follows."""
    reply = leader.ask("POST", "/cluster/step-down", {"to": to} if to else {})
    assert reply.status == 200, reply


Scenario = Callable[[Round], None]


def _named(*scenarios: Scenario) -> dict[str, Scenario]:
    return {scenario.__name__.replace("_", "-"): scenario for scenario in scenarios}


SCENARIOS = _named(
    kill_broker, kill_stream_leader, kill_machine, stop, cut, deaf, mute, slow_disk, disk_full,
    newcomer, step_down, rolling_restart,
)  # fmt: skip
# Played with the others by `make torture-cluster`, and not by every run of the tests.
RARE = _named(kill_both_leaders, two_faults, forget)
ALL = {**SCENARIOS, **RARE}
