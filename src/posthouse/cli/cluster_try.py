"""`posthouse cluster try`: three nodes with NATS servers on this machine, to watch one die."""

import argparse
import json
import secrets
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from socket import create_server
from tempfile import TemporaryDirectory
from typing import Any

from posthouse.cli.children import Child, Signals
from posthouse.cli.client import Client, Failure
from posthouse.cli.cluster_up import NODE, programs_of
from posthouse.cli.codes import FAILED, INTERRUPTED, OK, USAGE, fail, flush, say
from posthouse.cli.show import is_rich, table
from posthouse.server.cluster_plan import PORT, Machine, Plan
from posthouse.server.config import BadConfig
from posthouse.server.files import read_secret

NODES = ("a", "b", "c")
HOST = "127.0.0.1"
SETTINGS: dict[str, object] = {"dev": True, "auto_create": True, "log_window": "256M"}
AGAIN_SECONDS = (5.0,)  # before one that was killed is started again: it is to be seen
LOOK_SECONDS = 0.25
_ASK_SECONDS = 1.0


def try_(options: argparse.Namespace) -> int:
    with ExitStack() as stack:
        folder = options.data
        if folder is None:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="posthouse-try-")))
        folder = folder.absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            read_secret(folder / "cluster.secret", secrets.token_hex(32).encode() + b"\n")
            plan = Plan("try", _machines(), folder / "cluster.secret", SETTINGS)
            children = {machine.node: _children(plan, machine, folder) for machine in plan.machines}
        except BadConfig as error:
            return fail(str(error), USAGE)
        except OSError as error:
            return fail(f"The files of the nodes cannot be written: {error}.", FAILED)
        return _Try(plan, children, as_json=options.json).run(folder)


def _machines() -> tuple[Machine, ...]:
    """Three on this machine: on the usual ports where these are free, the rest where there is room.

    Raises OSError.
    """
    with ExitStack() as stack:  # all are open until all are found, so that they differ

        def free(port: int) -> int:
            made = stack.enter_context(create_server((HOST, port)))
            return int(made.getsockname()[1])

        def wanted(port: int) -> int:
            try:
                return free(port)
            except OSError:
                return free(0)

        return tuple(
            Machine(node, HOST, wanted(PORT + at), free(0), free(0), free(0))
            for at, node in enumerate(NODES)
        )


def _children(plan: Plan, machine: Machine, folder: Path) -> list[Child]:
    """The server and the broker of a node, each with a log beside its data."""
    data = folder / machine.node
    made = programs_of(plan, machine, data, None)
    programs = [replace(each, output=data / f"{each.name}.log") for each in made]
    return [Child(program, AGAIN_SECONDS) for program in programs]


class _Try:
    """The cluster while it runs, and what is told of it."""

    def __init__(self, plan: Plan, children: dict[str, list[Child]], *, as_json: bool) -> None:
        self._plan = plan
        self._children = children
        self._as_json = as_json
        self._leader: str | None = None
        self._position = 0  # the highest that was seen
        self._lost_at: float | None = None  # when the leader was last seen to be gone
        self._told: object = None  # the table that was shown last

    def run(self, folder: Path) -> int:
        every = [child for pair in self._children.values() for child in pair]
        with Signals() as signals:
            try:
                self._begin(folder)
                while signals.stopped_by is None:
                    for node, pair in self._children.items():
                        for child in pair:
                            self._look(node, child)
                    self._show(self._ask())
                    signals.wait(LOOK_SECONDS)
                for pair in self._children.values():  # brokers first: each hands over
                    pair[-1].stop()
            except KeyboardInterrupt:
                return INTERRUPTED
            finally:
                for child in reversed(every):
                    child.stop()
        self._say("stopped", "All have stopped.")
        return INTERRUPTED if signals.stopped_by == signal.SIGINT else OK

    def _begin(self, folder: Path) -> None:
        urls = ", ".join(f"http://{machine.url}" for machine in self._plan.machines)
        self._say(
            "begun",
            f"Three nodes are starting: {urls}\n"
            f"Their data and logs are in {folder}; Ctrl-C ends everything.\n"
            f"Send to any of them, as in: posthouse send --url http://{self._plan.machines[0].url}"
            " orders 'a book'",
            folder=str(folder),
            urls={machine.node: f"http://{machine.url}" for machine in self._plan.machines},
        )

    def _look(self, node: str, child: Child) -> None:
        if not child.look(time.monotonic()):
            return
        if child.program.name == NODE and node == self._leader:
            self._lost_at = time.monotonic()
        self._say(
            "ended",
            f"The {child.program.name} of {node} has ended with code {child.code}; it is started"
            f" again in {child.seconds_to_start:.0f} s.",
            node=node, program=child.program.name, code=child.code,
        )  # fmt: skip

    def _ask(self) -> dict[str, Any] | None:
        """The cluster, as the first node tells it that answers and knows a leader."""
        found: dict[str, Any] | None = None
        for machine in self._plan.machines:
            if self._children[machine.node][-1].pid is None:
                continue
            client = Client(f"http://{machine.url}", None, "default", None, _ASK_SECONDS)
            try:
                answer: dict[str, Any] = client.ask("GET", "/cluster")
            except Failure:
                continue
            found = answer if found is None or answer["epoch"] > found["epoch"] else found
            if found["leader"] is not None and found["leader"] != self._gone():
                return found
        return found

    def _gone(self) -> str | None:
        """The leader that was known, where its broker does not run."""
        leader = self._leader
        return leader if leader and self._children[leader][-1].pid is None else None

    def _show(self, found: dict[str, Any] | None) -> None:
        if found is None:
            return
        self._tell_of_leader(found)
        known = {node["node"]: node for node in found["nodes"]}
        rows = [self._row(machine, known.get(machine.node)) for machine in self._plan.machines]
        shape = [(*row[:2], *row[4:]) for row in rows]  # without what changes all the time
        if self._as_json:
            if shape != self._told:
                pids = {
                    node: {child.program.name: child.pid for child in pair}
                    for node, pair in self._children.items()
                }
                self._say("status", "", status=found, processes=pids)
        elif shape != self._told or is_rich():
            self._draw(rows)
        self._told = shape

    def _row(self, machine: Machine, known: dict[str, Any] | None) -> tuple[object, ...]:
        server, broker = self._children[machine.node]
        if broker.pid is None:
            role, position, behind = "stopped", "-", "-"
        elif known is None:
            role, position, behind = "starting", "-", "-"
        else:
            role, position = known["role"], f"{known['position']:,}"
            behind = "-" if known["behind_ms"] is None else f"{known['behind_ms']} ms"
        return (
            machine.node, role, position, behind, f"http://{machine.url}",
            broker.pid or "-", server.pid or "-",
        )  # fmt: skip

    def _draw(self, rows: list[tuple[object, ...]]) -> None:
        """The table; on a terminal over the one before, where nothing was said in between."""
        text = table(rows, ("node", "role", "position", "behind", "address", "broker", "nats"))
        text += "\nTo watch one die: kill -9 and a number of the column broker or nats."
        if is_rich():
            if self._told is not None:
                sys.stdout.write(f"\033[{len(rows) + 2}F\033[J")
            say(text)
        else:
            say(text)
        flush()

    def _tell_of_leader(self, found: dict[str, Any]) -> None:
        leader = found["leader"]
        if leader is None or leader == self._gone():
            self._lost_at = self._lost_at or time.monotonic()
            return
        before = self._position
        self._position = max(before, found["position"])
        if leader == self._leader and self._lost_at is None:
            return
        if self._leader is not None:
            took = 0.0 if self._lost_at is None else time.monotonic() - self._lost_at
            lost = before - found["position"]
            kept = "nothing lost" if lost <= 0 else f"{lost} positions are missing"
            self._say(
                "leader", f"{leader} leads since {took:.1f} s, {kept}.", leader=leader,
                seconds=round(took, 2), lost=max(0, lost), position=found["position"],
            )  # fmt: skip
        self._leader, self._lost_at = leader, None

    def _say(self, event: str, text: str, **facts: object) -> None:
        if self._as_json:
            say(json.dumps({"event": event, **facts}))
        else:
            if is_rich() and self._told is not None:  # over the table, which is drawn again below
                sys.stdout.write(f"\033[{len(NODES) + 2}F\033[J")
                self._told = None
            say(text)
        flush()
