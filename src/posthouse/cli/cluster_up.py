"""`posthouse cluster up`: a NATS server and a broker on one machine, each a process of its own."""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from posthouse.cli.children import Child, Program, Signals, clean_environment
from posthouse.cli.codes import FAILED, INTERRUPTED, OK, USAGE, fail, flush, say
from posthouse.server.cluster_plan import Machine, Plan, bracketed, plan_of, read_plan
from posthouse.server.config import BadConfig, load
from posthouse.server.files import keep_secret
from posthouse.server.nats_files import FOLDER, NODE_KEY, find_server, write_files
from posthouse.server.tls import CA

SERVER, NODE = "nats-server", "broker"
BROKER_CONFIG = "broker.yaml"
DATA = "posthouse-data"
REPLICAS = 3
STOP_SECONDS = 30.0  # that a broker takes for a clean stop, unless its settings say otherwise
OURS = ("POSTHOUSE_PEERS", "POSTHOUSE_CLUSTER_SECRET_FILE", "POSTHOUSE_CONFIG")
_LOOK_SECONDS = 5.0  # between two looks at the children, where none has ended


def up(options: argparse.Namespace) -> int:
    try:
        plan = _plan(options.config, os.environ)
        machine = plan.machine(_node(options.node, plan))
        data = data_folder(options.data, plan, os.environ)
        programs = programs_of(plan, machine, data, options.only)
    except BadConfig as error:
        return fail(str(error), USAGE)
    except OSError as error:
        return fail(f"The files of the node cannot be written: {error}.", FAILED)
    if options.only is not None:  # whoever has started this looks after it
        os.execve(programs[0].words[0], list(programs[0].words), dict(programs[0].environment))  # noqa: S606
    return _run(programs, as_json=options.json)


def _plan(config: Path | None, environment: Mapping[str, str]) -> Plan:
    """Raises BadConfig."""
    if config is None:
        found = plan_of(environment)
        if found is not None:
            return found
        config = Path("cluster.yaml")
        if not config.exists():
            raise BadConfig("There is no cluster.yaml here; name it by --config, or make one with"
                            " `posthouse cluster init`.")  # fmt: skip
    return read_plan(config)


def _node(given: str | None, plan: Plan) -> str:
    node = given or os.environ.get("POSTHOUSE_NODE")
    if node:
        return node
    if len(plan.machines) == 1:
        return plan.machines[0].node
    names = ", ".join(machine.node for machine in plan.machines)
    raise BadConfig(f"Which node is this machine? Give --node with one of {names}.")


def data_folder(given: Path | None, plan: Plan, environment: Mapping[str, str]) -> Path:
    named = plan.settings.get("data", DATA)
    return Path(given or environment.get("POSTHOUSE_DATA") or str(named)).expanduser().absolute()


def programs_of(plan: Plan, machine: Machine, data: Path, only: str | None) -> list[Program]:
    """The programs of a machine, in the order in which they start; their files are written.

    Raises BadConfig or OSError.
    """
    server = find_server() if only != "broker" else ""
    settings = broker_settings(plan, machine, data)
    config = data / BROKER_CONFIG
    environment = clean_environment(*OURS)
    environment["POSTHOUSE_DATA"] = str(data)
    nats_config = write_files(plan, machine, data)
    keep_secret(config, json.dumps(settings, indent=2).encode() + b"\n")
    checked = load({"config": str(config)}, environment)
    made = [
        Program(SERVER, (server, "-c", str(nats_config)), environment),
        Program(
            NODE, (sys.executable, "-m", "posthouse.cli", "serve", "--config", str(config)),
            environment, stop_seconds=checked.stop_limit,
        ),
    ]  # fmt: skip
    names = {None: (SERVER, NODE), "nats": (SERVER,), "broker": (NODE,)}[only]
    return [program for program in made if program.name in names]


def broker_settings(plan: Plan, machine: Machine, data: Path) -> dict[str, object]:
    """The settings of a machine's broker: the plan's, and those that follow from it."""
    own = machine.host if machine.is_local else "127.0.0.1"
    servers = [f"{bracketed(own)}:{machine.nats}"]
    servers += [
        f"{bracketed(each.host)}:{each.nats}" for each in plan.machines if each is not machine
    ]
    given = dict(plan.settings)
    names = given.pop("tls_name", [])
    names = [*names] if isinstance(names, list) else [names]
    everywhere = [machine.host] if machine.is_local else ["0.0.0.0", "::"]  # noqa: S104 (it takes TLS)
    return {
        "host": everywhere,
        "port": [machine.port],
        "replicas": min(REPLICAS, len(plan.machines)),
        **given,
        "data": str(data),
        "store": f"nats://{','.join(servers)}",
        "cluster": plan.cluster,
        "node": machine.node,
        "cluster_secret": str(plan.secret),
        "advertise": machine.url,
        "tls_name": list(dict.fromkeys((machine.host, *names))),
        "nats_monitor": [f"http://127.0.0.1:{machine.monitor}"],
        "nats_creds": str(data / FOLDER / NODE_KEY),
        "nats_ca": str(data / FOLDER / CA),
    }


def _run(programs: list[Program], *, as_json: bool) -> int:
    """Keeps the programs running until it is told to stop; then stops the last one first."""
    children = [Child(program) for program in programs]
    with Signals() as signals:
        try:
            while signals.stopped_by is None:
                now = time.monotonic()
                for child in children:
                    _look(child, now, as_json=as_json)
                dues = [child.due for child in children if child.due is not None]
                signals.wait(min(dues, default=now + _LOOK_SECONDS) - now)
            for child in reversed(children):
                code = child.stop()
                _tell(as_json, "stopped", child.program.name, f"with code {code}", code=code)
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            for child in reversed(children):
                child.kill()
    return INTERRUPTED if signals.stopped_by == signal.SIGINT else OK


def _look(child: Child, now: float, *, as_json: bool) -> None:
    before = child.pid
    if child.look(now):
        seconds = child.seconds_to_start
        _tell(as_json, "ended", child.program.name,
              f"with code {child.code}; it is started again in {seconds:.0f} s",
              code=child.code, again_seconds=round(seconds, 1))  # fmt: skip
    elif before is None and child.pid is not None:
        _tell(as_json, "started", child.program.name, f"as process {child.pid}", pid=child.pid)


def _tell(as_json: bool, event: str, program: str, text: str, **facts: object) -> None:
    if as_json:
        say(json.dumps({"event": event, "program": program, **facts}))
    else:
        say(f"{program} {event} {text}.")
    flush()
