"""Machines that are network namespaces, joined by a bridge: each can be cut off, one way or both.

Every name holds the process id of who made it. What a dead process has left behind, its processes
too, is removed when the next network is made.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Literal

import pytest

Fault = Literal["cut", "deaf", "mute"]
_NAME = re.compile(r"ph(\d+)(br|[a-z])")  # at most 15 characters, as the kernel has it
_ETC = Path("/etc/netns")  # whose files `ip netns exec` puts in the place of those of /etc
# All that would leave by this interface is dropped, as by a cable with one wire broken.
_DROP_ALL = ("root", "pfifo", "limit", "0")


def why_not() -> str:
    """Why there can be no namespaces here; empty where there can be."""
    missing = [tool for tool in ("ip", "tc", "strace") if shutil.which(tool) is None]
    if missing:
        return f"there is no {' and no '.join(missing)}"
    if os.geteuid() != 0:
        return "network namespaces need root"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else f"no namespace can be made: {tried.stderr.decode()}"


def need_namespaces() -> None:
    """Skips where there are none; in CI they have to be there."""
    reason = why_not()
    if reason:
        assert "CI" not in os.environ, reason
        pytest.skip(reason)


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done.stdout


class Network:
    """A bridge with an address of its own, from which clients connect."""

    def __init__(self) -> None:
        _sweep()
        self._owner = f"ph{os.getpid()}"
        self._bridge = f"{self._owner}br"
        self._third = _free_net()
        self._machines: dict[str, str] = {}
        run("ip", "link", "add", self._bridge, "type", "bridge")
        run("ip", "address", "add", f"10.{self._third}.1/24", "dev", self._bridge)
        run("ip", "link", "set", self._bridge, "up")

    @property
    def range(self) -> str:
        return f"10.{self._third}.0/24"

    def add(self, name: str) -> str:
        """Adds a machine, named with one letter; returns its address."""
        space = self._space(name)
        address = f"10.{self._third}.{len(self._machines) + 11}"
        self._machines[name] = address
        run("ip", "netns", "add", space)
        run("ip", "link", "add", space, "type", "veth", "peer", "name", "eth0", "netns", space)
        run("ip", "link", "set", space, "master", self._bridge, "up")
        for setting in (
            ("link", "set", "lo", "up"),
            ("address", "add", f"{address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
        ):
            run("ip", "-n", space, *setting)
        return address

    def name_all(self, name: str, host: str) -> None:
        """Adds a machine for clients, to which a name stands for the addresses of all others."""
        hosts = "".join(f"{address} {host}\n" for address in self._machines.values())
        folder = _ETC / self._space(name)
        folder.mkdir(parents=True)
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        self.add(name)

    def within(self, name: str) -> tuple[str, ...]:
        """The command that runs another one on a machine. It is replaced by it."""
        return ("ip", "netns", "exec", self._space(name))

    def fail(self, name: str, fault: Fault) -> None:
        """Cut: nothing gets through. Deaf: nothing arrives. Mute: nothing leaves."""
        space = self._space(name)
        if fault == "cut":
            run("ip", "link", "set", space, "down")
        elif fault == "deaf":
            run("tc", "qdisc", "add", "dev", space, *_DROP_ALL)
        else:
            run(*self.within(name), "tc", "qdisc", "add", "dev", "eth0", *_DROP_ALL)

    def heal(self, name: str, fault: Fault) -> None:
        space = self._space(name)
        if fault == "cut":
            run("ip", "link", "set", space, "up")
        elif fault == "deaf":
            run("tc", "qdisc", "del", "dev", space, "root")
        else:
            run(*self.within(name), "tc", "qdisc", "del", "dev", "eth0", "root")

    def close(self) -> None:
        _remove(self._owner)

    def _space(self, name: str) -> str:
        return f"{self._owner}{name}"


def _free_net() -> str:
    """The second and third number of a range of addresses that no interface has."""
    taken = run("ip", "-oneline", "address")
    numbers = ((os.getpid() + more) % (128 << 8) for more in range(128 << 8))
    nets = (f"{128 + (number >> 8)}.{number & 255}" for number in numbers)
    return next(net for net in nets if f" 10.{net}." not in taken)


def _names() -> set[str]:
    found = [line.split()[0] for line in run("ip", "netns", "list").splitlines() if line]
    links = run("ip", "-oneline", "link", "show", "type", "bridge").splitlines()
    return {*found, *(line.split(":")[1].strip() for line in links)}


def _sweep() -> None:
    for name in _names():
        owned = _NAME.fullmatch(name)
        if owned is not None and not Path(f"/proc/{owned[1]}").exists():
            _remove(f"ph{owned[1]}")


def _remove(owner: str) -> None:
    """Ends all processes on the machines of an owner, and removes the machines."""
    for name in _names():
        owned = _NAME.fullmatch(name)
        if owned is None or f"ph{owned[1]}" != owner:
            continue
        if owned[2] == "br":
            run("ip", "link", "del", name)
            continue
        for process in run("ip", "netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        # The interface first: with its namespace it would go some time later, and keep its name.
        subprocess.run(["ip", "link", "del", name], capture_output=True, check=False)
        run("ip", "netns", "del", name)
        shutil.rmtree(_ETC / name, ignore_errors=True)
