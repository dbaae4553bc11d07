"""The configuration: one frozen value with all defaults.

A flag goes before the environment (`POSTHOUSE_*`), that before the file (YAML), that before the
default; for each value it is known where it came from. What is not known, or makes no sense, is an
error that names it and its origin.
"""

import ipaddress
import json
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from posthouse.dialects.dialect import FromFile
from posthouse.dialects.known import DIALECTS
from posthouse.dialects.settings import (
    BadSetting,
    Reader,
    Setting,
    as_flag,
    as_path,
    as_seconds,
    as_size,
    as_text,
    count,
    one_of,
    setting,
    settings_of,
    several,
    some_size,
)
from posthouse.server.declared import Declared, read_declared
from posthouse.store.opening import KINDS, StoreUrl, parse_url

HTTP_PORT = 5300  # of our own API
PORTS = tuple(dict.fromkeys((*(port for each in DIALECTS for port in each.ports), HTTP_PORT)))
# APIs over HTTP that ports can be declared for, and a port for each.
HTTP_PROFILES = {
    each.profile.word: each.profile.port for each in DIALECTS if each.profile is not None
}
_EXAMPLES = [f"{port}={word}" for word, port in HTTP_PROFILES.items()]
DEFAULT_NAMESPACE = "default"
_ANY = [("0.0.0.0",), ("::",)]  # addresses to listen on, which nobody can dial  # noqa: S104


class BadConfig(Exception):
    """Something in the configuration is unknown or makes no sense; the text names it."""


# How a value is read that the server alone has. Each raises ValueError.


def _host_name(value: object) -> str:
    try:
        return as_text(value).encode("idna").decode().lower()
    except UnicodeError:
        raise ValueError("must be a host name or an address") from None


class Port(NamedTuple):
    """A port to listen on. It takes every dialect; `http_profile` says who answers HTTP there."""

    number: int
    http_profile: str = ""

    def __str__(self) -> str:
        return f"{self.number}={self.http_profile}" if self.http_profile else str(self.number)


def _port(value: object) -> Port:
    number, declared, http_profile = str(value).partition("=")
    if isinstance(value, bool) or (declared and http_profile not in HTTP_PROFILES):
        words = ", ".join(HTTP_PROFILES)
        raise ValueError(f"must be a number, or a number and one of {words}, as in {_EXAMPLES[0]}")
    return Port(count(0, 65_535)(number), http_profile)


_as_store = Reader(
    parse_url, ", ".join(kind.form for kind in KINDS.values() if not kind.is_address),
    has_secrets=True,
)  # fmt: skip


def _name(value: object) -> str:
    name = as_text(value)
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", name):
        raise ValueError("must be 1 to 32 letters, digits, - or _")
    return name


def _address(value: object) -> str:
    """A host and a port, as others dial it."""
    text = as_text(value)
    try:
        parts = urlsplit(f"//{text}")
        is_good = bool(parts.hostname and parts.port) and text == parts.netloc and "@" not in text
    except ValueError:
        is_good = False
    if not is_good:
        raise ValueError("must be a host and a port, as in h1.example.com:5671 or [::1]:5671")
    return text


def _failover(value: object) -> float:
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = 0
    if not 0.2 <= seconds <= 60:
        raise ValueError("must be 0.2 to 60 seconds")
    return seconds


def _network(value: object) -> str:
    try:
        return str(ipaddress.ip_network(as_text(value), strict=False))
    except ValueError:
        raise ValueError("must be an address or a network, as in 172.17.0.0/16") from None


def _defaults() -> Mapping[str, Any]:
    return {dialect.name: dialect.settings() for dialect in DIALECTS}


@dataclass(frozen=True)
class Config:
    """The configuration: every setting with its default."""

    data: Path = setting(Path("posthouse-data"), as_path, "the folder that holds everything", "DIR")
    store: StoreUrl | None = setting(
        None, _as_store, "where the journal is kept, if not as segments in the data folder; also an"
        " address, as in redis://HOST; keys and certificates stay in the data folder", "URL",
    )  # fmt: skip
    cluster: str | None = setting(
        None, _name, "the cluster that this broker is a node of; its journal is a store nats:...",
        "NAME",
    )  # fmt: skip
    node: str | None = setting(None, _name, "this node's name in its cluster", "NAME")
    advertise: str | None = setting(
        None, _address, "where the other nodes and clients reach this node", "HOST:PORT"
    )
    cluster_secret: Path | None = setting(
        None, as_path, "a file with the secret that all nodes of the cluster share", "FILE"
    )
    cluster_ca: Path | None = setting(
        None, as_path, "who has signed the certificates of the nodes, where they have their own;"
        " default: whom the machine trusts", "FILE",
    )  # fmt: skip
    follower_reads: bool = setting(
        False, as_flag, "a node that follows serves the feed and the lives of messages from its own"
        " folder",
    )  # fmt: skip
    replicas: int = setting(
        3, count(1, 5), "servers of NATS that hold the journal of the cluster each", "N"
    )
    failover_after: float = setting(
        1.0, _failover, "seconds without a word of the leader, after which another takes over",
        "SECONDS",
    )  # fmt: skip
    prefer: int = setting(
        0, count(0, 100), "nodes with a lower number take over rather than others", "N"
    )
    nats_monitor: tuple[str, ...] = setting(
        (), several(as_text), "the monitoring address of each NATS server, as in"
        " http://HOST:8222; asked at the start whether it syncs every message", "URL...",
    )  # fmt: skip
    nats_creds: Path | None = setting(
        None, as_path, "credentials for NATS: a .creds file, or the seed of an nkey", "FILE"
    )
    nats_ca: Path | None = setting(None, as_path, "who has signed NATS' certificates", "FILE")
    found: bool = setting(
        False, as_flag, "begin the log of the cluster, which is empty, with the data folder, which"
        " is a single broker's or a backup",
    )  # fmt: skip
    log_window: int = setting(
        2 << 30, some_size, "what the stream of the cluster may hold before it is purged", "SIZE"
    )
    memory: bool = setting(False, as_flag, "keep nothing on disk: all is gone with the process")
    host: tuple[str, ...] = setting(
        ("127.0.0.1", "::1"), several(as_text), "an address to listen on", "ADDRESS..."
    )
    port: tuple[Port, ...] = setting(
        tuple(map(Port, PORTS)), several(_port), "a port to listen on; 0 picks one; with a name,"
        f" as in {' or '.join(_EXAMPLES)}, HTTP there is that API", "N[=NAME]...",
    )  # fmt: skip
    durability: str = setting(
        "fsync", one_of("fsync", "interval", "memory"), "what an acknowledgement means", "WORD"
    )
    interval_ms: int = setting(
        100, count(1, 60_000), "how far behind the disk may be where durability is interval", "MS"
    )
    lock_sync_ms: int = setting(
        5, count(0, 1_000), "how long a lock may wait to be written with what comes next", "MS"
    )
    dev: bool = setting(
        False, as_flag, "for development: the well-known key works, plain HTTP from this machine"
        " needs none, clocks can be moved; only peers on this machine are let in",
    )  # fmt: skip
    dev_allow: tuple[str, ...] = setting(
        (), several(_network), "with --dev, let these peers in too", "CIDR..."
    )
    auto_create: bool = setting(False, as_flag, "queues come into being when they are first used")
    memory_limit: int | None = setting(
        None, some_size, "what messages may take of memory before senders are refused; default:"
        " half of what there is", "SIZE",
    )  # fmt: skip
    bodies_limit: int | None = setting(
        None, some_size, "what bodies may take of memory before they stay on disk; default: a"
        " quarter", "SIZE",
    )  # fmt: skip
    segment_size: int = setting(64 << 20, some_size, "of one file of the journal", "SIZE")
    compress: str = setting(
        "none", one_of("none", "gzip", "zstd"), "how the journal is compressed from now on", "WORD"
    )
    compress_from: int = setting(
        1 << 10, as_size, "what is written at a time is compressed from this size on", "SIZE"
    )
    keep: int = setting(7 * 86_400, as_seconds, "how long the journal is kept for the feed", "TIME")
    keep_size: int = setting(
        16 << 30, as_size, "how much of the journal is kept for the feed", "SIZE"
    )
    keep_share: int = setting(
        50, count(1, 100), "percent of the disk that the journal and its Arrow segments may take,"
        " of what others leave free; more than that is kept for no reader", "PERCENT",
    )  # fmt: skip
    fold_size: int = setting(256 << 20, as_size, "how much is written between snapshots", "SIZE")
    reader_hold: int = setting(
        32 << 30, as_size, "how much of the journal is kept at most for readers that lag", "SIZE"
    )
    tls_name: tuple[str, ...] = setting(
        (), several(_host_name), "a host name for the certificate, beside localhost", "NAME..."
    )
    tls_cert: Path | None = setting(
        None, as_path, "a certificate of your own, with its chain", "FILE"
    )
    tls_key: Path | None = setting(None, as_path, "its key", "FILE")
    insecure: bool = setting(
        False, as_flag, "take keys in clear text from other machines too; without it TLS is"
        " required of them",
    )  # fmt: skip
    handshake_limit: int = setting(10, count(1, 600), "what a peer has to say who it is", "SECONDS")
    connections_max: int = setting(10_000, count(1, 1_000_000), "open at a time", "N")
    strangers_max: int = setting(
        2_000, count(1, 1_000_000), "connections whose clients have not shown who they are; for"
        " one more the oldest of the address that has most is closed", "N",
    )  # fmt: skip
    strangers_per_address: int = setting(
        500, count(1, 1_000_000), "of them from one address, or one /64 network of IPv6; more are"
        " closed at once", "N",
    )  # fmt: skip
    connections_per_principal: int | None = setting(
        None, count(1, 1_000_000), "connections of one principal; default: half of"
        " connections-max", "N",
    )  # fmt: skip
    rate_principal: int = setting(
        0, count(0, 1_000_000_000), "messages and requests that a principal may make in a second;"
        " 0: any number", "N",
    )  # fmt: skip
    rate_address: int = setting(
        0, count(0, 1_000_000_000), "that one address may", "N",
    )  # fmt: skip
    rate_entity: int = setting(
        0, count(0, 1_000_000_000), "that may be made of one queue, topic or subscription", "N",
    )  # fmt: skip
    auth_failures_max: int = setting(
        100, count(0, 1_000_000_000), "credentials that are not valid, from one address in a"
        " minute, before none from there are looked at until it is over; 0: any number", "N",
    )  # fmt: skip
    principal_share: int = setting(
        50, count(1, 100), "per cent of what is limited in number that one principal may hold",
        "PERCENT",
    )  # fmt: skip
    request_size: int = setting(48 << 20, some_size, "of one HTTP request", "SIZE")
    # Each dialect's settings, by its name; among the others they are shown in this place.
    dialects: Mapping[str, Any] = field(default_factory=_defaults)
    stop_limit: int = setting(30, count(0, 3_600), "what a clean stop may take", "SECONDS")
    log: str = setting(
        "auto", one_of("auto", "text", "json"), "how the log looks; auto: text on a terminal",
        "WORD",
    )  # fmt: skip
    log_level: str = setting(
        "info", one_of("debug", "info", "warning", "error"), "what is logged", "WORD"
    )
    config: Path | None = setting(None, as_path, "a configuration file", "FILE")
    declared: Declared = field(default_factory=Declared)  # entities to exist at start; file only
    origins: Mapping[str, str] = field(default_factory=dict)  # of what is not a default

    @property
    def journal(self) -> StoreUrl:
        """The store of the journal, unless it is in memory only."""
        return self.store or StoreUrl("file", str(self.data))

    def value(self, name: str) -> object:
        """The value of a setting, the server's or a dialect's."""
        owner = _OWNERS.get(name)
        return getattr(self if owner is None else self.dialects[owner], name)


_OWNERS = {name: each.name for each in DIALECTS for name in settings_of(each.settings)}


def _settings() -> dict[str, Setting]:
    """The server's settings and the dialects', in the order in which they are shown."""
    ours = settings_of(Config)
    found: dict[str, Setting] = {}
    for each in fields(Config):
        if each.name == "dialects":
            for dialect in DIALECTS:
                found |= settings_of(dialect.settings)
        elif each.name in ours:
            found[each.name] = ours[each.name]
    return found


SETTINGS = _settings()
_DECLARED = frozenset(("namespaces", "queues", "topics", "schedules", "principals"))


def load(flags: Mapping[str, object], environment: Mapping[str, str]) -> Config:
    """Raises BadConfig."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    given = {name.removeprefix("POSTHOUSE_").lower(): value for name, value in
             environment.items() if name.startswith("POSTHOUSE_") and value}  # fmt: skip

    def take(name: str, value: object, origin: str) -> None:
        if name not in SETTINGS:
            raise BadConfig(f"{origin}: there is no setting {name!r}; `posthouse serve --help`"
                            " lists them.")  # fmt: skip
        try:
            values[name] = SETTINGS[name].read(value)
        except ValueError as error:
            setting = SETTINGS[name]
            is_told = not setting.secret and not getattr(setting.read, "has_secrets", False)
            given = f", not {reprlib.repr(value)}" if is_told else ""
            raise BadConfig(f"{origin}: {name} {error}{given}.") from None
        origins[name] = origin

    file = flags.get("config") or given.get("config")
    declared = Declared()
    if file is not None:
        path = as_path(file)
        content, declared = _read_file(path)
        if "config" in content:
            raise BadConfig(f"{path}: a file cannot name another; give that one instead.")
        for name, value in content.items():
            take(name, value, str(path))
    for dialect in DIALECTS:
        if dialect.read_environment is not None:
            for named in dialect.read_environment(environment):
                take(named.name, named.value, named.origin)
    for name, value in given.items():
        if name not in _FOR_CLIENTS and not name.startswith(_OF_THE_CLIENT):
            take(name, value, f"POSTHOUSE_{name.upper()}")
    for name, value in flags.items():
        if value is not None:
            take(name, value, f"--{name.replace('_', '-')}")
    config = Config(**_by_owner(values), declared=declared, origins=origins)
    _check(config)
    try:
        return _check_dialects(config)
    except BadSetting as error:
        origin = f"{origins[error.name]}: " if error.name in origins else ""
        raise BadConfig(f"{origin}{error}") from None


def _by_owner(values: dict[str, Any]) -> dict[str, Any]:
    """The values of the server's fields: those of dialects are in `dialects`."""
    ours = {name: value for name, value in values.items() if name not in _OWNERS}
    dialects = {}
    for dialect in DIALECTS:
        given = settings_of(dialect.settings).keys() & values.keys()
        dialects[dialect.name] = dialect.settings(**{name: values[name] for name in given})
    return {**ours, "dialects": dialects}


def _check_dialects(config: Config) -> Config:
    """Adds the principals that settings of dialects make. Raises BadSetting."""
    declared = config.declared.principals
    for dialect in DIALECTS:
        settings = config.dialects[dialect.name]
        if dialect.check is not None:
            dialect.check(settings, config.dev)
        if dialect.principals is not None:
            made = tuple(dialect.principals(settings, declared, DEFAULT_NAMESPACE))
            names = {each.name for each in made}
            declared = (*(each for each in declared if each.name not in names), *made)
    return replace(config, declared=replace(config.declared, principals=declared))


_FOR_CLIENTS = frozenset(("url", "key", "namespace", "ca"))  # the command line reads these
_OF_THE_CLIENT = "client_"  # those with it belong to `posthouse.create_client`


def _check(config: Config) -> None:
    if (config.tls_cert is None) != (config.tls_key is None):
        raise BadConfig("tls_cert and tls_key belong together; give both or neither.")
    if config.dev_allow and not config.dev:
        raise BadConfig("dev_allow goes with dev; without it every peer may come, with a key.")
    if config.insecure and config.dev:
        raise BadConfig("insecure goes without dev, with which TLS is required of nobody.")
    if "memory" in config.origins and config.memory and "data" in config.origins:
        raise BadConfig("data and memory exclude each other; give one of them.")
    if config.memory and config.store is not None:
        raise BadConfig("store and memory exclude each other; give one of them.")
    _check_cluster(config)
    if not config.port or not config.host:
        raise BadConfig("port and host must not be empty.")


def _check_cluster(config: Config) -> None:
    is_nats = config.store is not None and config.store.kind == "nats"
    if is_nats and None in (config.cluster, config.node):
        raise BadConfig("a journal on NATS is a cluster's; give cluster and node.")
    if config.cluster is not None and not is_nats:
        raise BadConfig("a cluster has its journal on NATS; give store, as in nats://h1,h2,h3.")
    if config.found and not is_nats:
        raise BadConfig("found begins the log of a cluster; give store, cluster and node.")
    if config.cluster is not None and config.cluster_secret is None and not config.dev:
        raise BadConfig("the nodes of a cluster share a secret; give the file as cluster_secret.")
    if config.cluster is not None and config.advertise is None and config.host[:1] in _ANY:
        raise BadConfig(
            "the other nodes must reach this one by a name; give advertise, as in"
            " h1.example.com:5671."
        )
    if config.cluster is None and (config.cluster_ca or config.follower_reads):
        raise BadConfig("cluster_ca and follower_reads are for nodes of a cluster; give cluster.")
    if is_nats and config.durability == "fsync" and not config.nats_monitor:
        raise BadConfig(
            "durability fsync on NATS needs sync_interval: always on every server, which"
            " nats_monitor is asked for; give it, or durability interval."
        )


def _read_file(path: Path) -> tuple[Mapping[str, object], Declared]:
    import yaml  # not needed by a start without a file

    try:
        text = path.read_text(encoding="utf-8-sig")
        content = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text)
    except json.JSONDecodeError as error:
        raise BadConfig(
            f"{path} is not JSON in line {error.lineno}, column {error.colno}; it must look like"
            ' {"port": [5672]}.'
        ) from None
    except OSError as error:
        raise BadConfig(f"{path} cannot be read: {error.strerror}.") from None
    except yaml.MarkedYAMLError as error:  # without what stands there, which may be a secret
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 0
        raise BadConfig(
            f"{path} is not YAML in line {line}; a setting looks like `keep: 7d`."
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        raise BadConfig(f"{path} is not YAML.") from None
    content = {} if content is None else content
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise BadConfig(f"{path} must hold settings by name.")
    try:
        return _understood(content)
    except ValueError as error:
        raise BadConfig(f"{path}: {error}") from None


def _understood(content: Mapping[str, object]) -> tuple[Mapping[str, object], Declared]:
    """The settings in a file, and what it declares. Raises ValueError."""
    found: list[FromFile] = []
    for dialect in DIALECTS:
        if dialect.read_file is not None:
            found.append(dialect.read_file(content, DEFAULT_NAMESPACE))
            content = found[-1].content
    declared = read_declared(content, DEFAULT_NAMESPACE)
    for part in found:
        twice = {each.name for each in declared.principals} & {
            each.name for each in part.principals
        }
        if twice:
            raise ValueError(f"the principal {min(twice)!r} is declared twice")
        declared = replace(
            declared,
            queues=(*declared.queues, *part.queues),
            topics=(*declared.topics, *part.topics),
            principals=(*declared.principals, *part.principals),
        )
    return {name: each for name, each in content.items() if name not in _DECLARED}, declared
