"""The machines of a cluster: `cluster.yaml`, or the peers that the environment names.

    cluster: shop
    secret: cluster.secret                  a file; beside this one, unless its path is absolute
    nodes:
      a: {host: host1, port: 5672, nats: 4222, routes: 6222, monitor: 8222}
      b: {host: host2}                      ports are these unless they are given
      c: {host: host3}
    settings: {keep: 7d}                    of `posthouse serve`, on every node

Every machine has the same file. Each runs a NATS server and a node of the broker.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from posthouse.server.cluster_secret import SECRET_BYTES_MIN
from posthouse.server.config import SETTINGS, BadConfig

NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")
PORT, NATS_PORT, ROUTES_PORT, MONITOR_PORT = 5672, 4222, 6222, 8222
SIZES = (1, 3, 5)  # of a cluster: with an even number a majority is no cheaper to lose
FILE_BYTES_MAX = 1 << 20
# The settings that follow from the plan, or are told to `cluster up` itself.
_DERIVED = frozenset((
    "advertise", "cluster", "cluster_secret", "config", "memory", "nats_ca", "nats_creds",
    "nats_monitor", "node", "store",
))  # fmt: skip
_DECLARED = frozenset(("namespaces", "queues", "topics", "schedules", "principals"))


@dataclass(frozen=True)
class Machine:
    """A machine of a cluster, with a node of the broker and a NATS server."""

    node: str
    host: str
    port: int = PORT  # of the broker
    nats: int = NATS_PORT  # of its NATS server, for brokers;
    routes: int = ROUTES_PORT  # for the other servers;
    monitor: int = MONITOR_PORT  # for its own broker: on this machine alone

    @property
    def url(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether it is named by an address that no other machine can reach."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass(frozen=True)
class Plan:
    """The settings that all machines of a cluster share."""

    cluster: str
    machines: tuple[Machine, ...]
    secret: Path
    settings: Mapping[str, object] = field(default_factory=dict)

    def machine(self, node: str) -> Machine:
        """Raises BadConfig."""
        for machine in self.machines:
            if machine.node == node:
                return machine
        names = ", ".join(machine.node for machine in self.machines)
        raise BadConfig(f"There is no node {node!r} in the cluster {self.cluster}; it has {names}.")

    def read_secret(self) -> bytes:
        """Raises BadConfig."""
        try:
            secret = self.secret.read_bytes().strip()
        except OSError as error:
            raise BadConfig(
                f"The secret {self.secret} cannot be read: {error.strerror}; copy it from the"
                " machine where `posthouse cluster init` has made it."
            ) from None
        if len(secret) < SECRET_BYTES_MIN:
            raise BadConfig(f"The secret {self.secret} holds fewer than {SECRET_BYTES_MIN} bytes.")
        return secret


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def parse_machines(words: Sequence[str]) -> tuple[Machine, ...]:
    """Reads `a=host1` or `a=host1:5672` of each machine. Raises BadConfig.

    Machines that share a host get ports of their own, one up from those before.
    """
    machines: list[Machine] = []
    for word in words:
        node, equals, where = word.partition("=")
        host, port = _host_and_port(where)
        if not equals or not node or not host:
            raise BadConfig(f"{word!r} must be NODE=HOST or NODE=HOST:PORT, as in a=host1.")
        beside = sum(machine.host == host for machine in machines)
        machines.append(_machine(node, {
            "host": host, "port": PORT + beside if port is None else port,
            "nats": NATS_PORT + beside, "routes": ROUTES_PORT + beside,
            "monitor": MONITOR_PORT + beside,
        }))  # fmt: skip
    return _checked(machines)


def _host_and_port(where: str) -> tuple[str, object]:
    if where.startswith("["):
        host, _, rest = where[1:].partition("]")
        return host, rest.removeprefix(":") or None
    if where.count(":") > 1:
        return where, None
    host, _, port = where.partition(":")
    return host, port or None


def _machine(node: object, given: object) -> Machine:
    """Raises BadConfig."""
    if not isinstance(node, str) or NAME.fullmatch(node) is None:
        raise BadConfig(f"The node {node!r} must be 1 to 32 letters, digits, - or _.")
    if isinstance(given, str):
        given = {"host": given}
    if not isinstance(given, Mapping) or not {"host"} <= given.keys() <= _FIELDS:
        fields = ", ".join(sorted(_FIELDS))
        raise BadConfig(f"The node {node} must have a host, and may have {fields}.")
    host = given["host"]
    if not isinstance(host, str) or not _is_host(host):
        raise BadConfig(f"The host of the node {node} must be a host name or an address.")
    ports = {name: _port(node, name, value) for name, value in given.items() if name != "host"}
    return Machine(node, host, **ports)


_FIELDS = frozenset(("host", "port", "nats", "routes", "monitor"))


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return HOST.fullmatch(text) is not None
    return True


def _port(node: str, name: str, value: object) -> int:
    text = str(value)
    if not re.fullmatch(r"\d{1,5}", text, re.ASCII) or not 1 <= int(text) <= 65_535:
        raise BadConfig(f"The {name} of the node {node} must be a number from 1 to 65535.")
    return int(text)


def _checked(machines: Sequence[Machine]) -> tuple[Machine, ...]:
    if len(machines) not in SIZES:
        sizes = ", ".join(map(str, SIZES[:-1]))
        raise BadConfig(f"A cluster has {sizes} or {SIZES[-1]} nodes, not {len(machines)}.")
    taken: dict[tuple[str, object], str] = {}
    for machine in machines:
        ports = (machine.port, machine.nats, machine.routes, machine.monitor)
        for place in (("node", machine.node), *((machine.host, port) for port in ports)):
            if place in taken:
                what = f"{place[0]} {place[1]}" if place[0] == "node" else f"{place[0]}:{place[1]}"
                raise BadConfig(f"The nodes {taken[place]} and {machine.node} both have {what}.")
            taken[place] = machine.node
    return tuple(machines)


def read_plan(path: Path) -> Plan:
    """Reads cluster.yaml. Raises BadConfig."""
    import yaml  # not needed where the environment names the peers

    try:
        with path.open("rb") as file:
            content = yaml.safe_load(file.read(FILE_BYTES_MAX))
    except OSError as error:
        raise BadConfig(f"{path} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        raise BadConfig(f"{path} is not YAML; `posthouse cluster init` writes one.") from None
    if not isinstance(content, dict) or not content.keys() <= _KEYS:
        raise BadConfig(f"{path} may hold {', '.join(sorted(_KEYS))}, and nothing else.")
    cluster, nodes, secret = (content.get(name) for name in ("cluster", "nodes", "secret"))
    settings = content.get("settings") or {}
    if not isinstance(cluster, str) or NAME.fullmatch(cluster) is None:
        raise BadConfig(f"{path}: cluster must be 1 to 32 letters, digits, - or _.")
    if not isinstance(nodes, dict):
        raise BadConfig(f"{path}: nodes must be machines by name, as in a: {{host: host1}}.")
    if not isinstance(secret, str) or not secret:
        raise BadConfig(f"{path}: secret must name the file that holds it.")
    if not isinstance(settings, dict):
        raise BadConfig(f"{path}: settings must be settings of `posthouse serve` by name.")
    for name in settings:
        if name in _DERIVED or name not in SETTINGS.keys() | _DECLARED:
            raise BadConfig(f"{path}: settings cannot have {name!r}; `posthouse serve --help` lists"
                            " settings, and those of the cluster follow from nodes.")  # fmt: skip
    machines = _checked([_machine(node, given) for node, given in nodes.items()])
    return Plan(cluster, machines, path.parent.absolute() / secret, settings)


_KEYS = frozenset(("cluster", "nodes", "secret", "settings"))


def plan_of(environment: Mapping[str, str]) -> Plan | None:
    """The plan that the environment names, as in a container; None where it names no peers.

    Raises BadConfig.
    """
    peers = environment.get("POSTHOUSE_PEERS", "")
    if not peers.strip():
        return None
    secret = environment.get("POSTHOUSE_CLUSTER_SECRET_FILE")
    if not secret:
        raise BadConfig("POSTHOUSE_PEERS needs the secret of the cluster; name its file by"
                        " POSTHOUSE_CLUSTER_SECRET_FILE.")  # fmt: skip
    cluster = environment.get("POSTHOUSE_CLUSTER") or "posthouse"
    if NAME.fullmatch(cluster) is None:
        raise BadConfig("POSTHOUSE_CLUSTER must be 1 to 32 letters, digits, - or _.")
    machines = parse_machines([word.strip() for word in peers.split(",")])
    return Plan(cluster, machines, Path(secret).absolute())


def written(plan: Plan, secret: str) -> str:
    """The text of cluster.yaml."""
    lines = [
        "# The machines of a cluster. Every machine has this file and the secret beside it.",
        f"cluster: {plan.cluster}",
        f"secret: {secret}",
        "nodes:",
    ]
    for each in plan.machines:
        host = f'"{each.host}"' if ":" in each.host else each.host
        lines.append(
            f"  {each.node}: {{host: {host}, port: {each.port}, nats: {each.nats},"
            f" routes: {each.routes}, monitor: {each.monitor}}}"
        )
    lines += [
        "# Settings of `posthouse serve` for every node, as in keep: 7d.",
        "settings: {}",
        "",
    ]
    return "\n".join(lines)
