"""The configuration: one frozen value with all defaults.

A flag goes before the environment (`POSTHOUSE_*`), that before the file (YAML), that before the
default; for each value it is known where it came from. What is not known, or makes no sense, is an
error that names it and its origin.
"""

import ipaddress
import json
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from posthouse.broker.access import KEY_CHARS_MAX
from posthouse.core.errors import InvalidArgument
from posthouse.core.recurrence import parse
from posthouse.server.declared import (
    KEY_CHARS_MIN,
    Declared,
    read_declared,
    read_emulator,
    read_permissions,
)

PORTS = (5672, 5671, 5300, 5555, 2925, 7071, 4566)  # what clients dial
# Dialects whose paths over HTTP collide with others: each has ports that are declared for it.
DOORS = ("pyqueue-http", "vibemq-http")
DEFAULT_NAMESPACE = "default"
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


class BadConfig(Exception):
    """Something in the configuration is unknown or makes no sense; the text names it."""


# How a value is read, whether it comes as text or from YAML. Each raises ValueError.


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be text")
    return value


def _path(value: object) -> Path:
    return Path(_text(value)).expanduser()


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if not isinstance(value, str) or value.lower() not in words:
        raise ValueError("must be true or false")
    return words[value.lower()]


def _count(least: int, most: int = 1 << 53) -> Callable[[object], int]:
    def read(value: object) -> int:
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return value

    return read


def _scaled(units: Mapping[str, int], example: str, least: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        found = re.fullmatch(r"(\d{1,12})([a-z]?)", str(value).lower().strip())
        if isinstance(value, bool) or found is None or found[2] not in units:
            raise ValueError(f"must be a number with a unit, as in {example}")
        if (scaled := int(found[1]) * units[found[2]]) < least:
            raise ValueError(f"must be {least} or more")
        return scaled

    return read


_size = _scaled(_UNITS, "512M or 4G", 0)
_some = _scaled(_UNITS, "512M or 4G", 4_096)
_seconds = _scaled(_SECONDS, "30s, 12h or 7d", 0)
_some_seconds = _scaled(_SECONDS, "30s, 12h or 7d", 1)


def _secret(least: int, most: int) -> Callable[[object], str]:
    def read(value: object) -> str:
        if not isinstance(value, str) or not least <= len(value) <= most or value != value.strip():
            raise ValueError(f"must have {least} to {most} characters, and none around it is blank")
        return value

    return read


def _zone(value: object) -> str:
    try:
        parse("every 1 hour", _text(value))
    except InvalidArgument:
        raise ValueError("must be a time zone such as Europe/Berlin") from None
    return _text(value)


def _host_name(value: object) -> str:
    try:
        return _text(value).encode("idna").decode().lower()
    except UnicodeError:
        raise ValueError("must be a host name or an address") from None


def _one_of(*words: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return str(value)

    return read


def _several(read: Callable[[object], Any]) -> Callable[[object], tuple[Any, ...]]:
    def read_all(value: object) -> tuple[Any, ...]:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, list | tuple):
            items = [items]
        return tuple(read(item.strip() if isinstance(item, str) else item) for item in items)

    return read_all


class Port(NamedTuple):
    """A port to listen on. It takes every dialect; `door` says who answers HTTP there."""

    number: int
    door: str = ""


def _port(value: object) -> Port:
    number, declared, door = str(value).partition("=")
    if isinstance(value, bool) or (declared and door not in DOORS):
        raise ValueError(f"must be a number, or a number and one of {', '.join(DOORS)}, as in"
                         f" 8080={DOORS[0]}")  # fmt: skip
    return Port(_count(0, 65_535)(number), door)


def _network(value: object) -> str:
    try:
        return str(ipaddress.ip_network(_text(value), strict=False))
    except ValueError:
        raise ValueError("must be an address or a network, as in 172.17.0.0/16") from None


class Setting(NamedTuple):
    """How one field of the configuration is read, and what it is for."""

    read: Callable[[object], Any]
    help: str
    metavar: str = ""  # what a flag takes, if anything; with ... it may be repeated
    secret: bool = False  # it has no flag, which others could see, and is not shown


def _set(
    default: Any, read: Callable[[object], Any], help: str, metavar: str = "", *,
    secret: bool = False,
) -> Any:  # fmt: skip
    return field(default=default, metadata={"setting": Setting(read, help, metavar, secret)})


@dataclass(frozen=True)
class Config:
    """Everything that can be set, with its default."""

    data: Path = _set(Path("posthouse-data"), _path, "the folder that holds everything", "DIR")
    memory: bool = _set(False, _flag, "keep nothing on disk: all is gone with the process")
    host: tuple[str, ...] = _set(
        ("127.0.0.1", "::1"), _several(_text), "an address to listen on", "ADDRESS..."
    )
    port: tuple[Port, ...] = _set(
        tuple(map(Port, PORTS)), _several(_port), "a port to listen on; 0 picks one; with a name,"
        " as in 8080=pyqueue-http or 12925=vibemq-http, HTTP there is that API", "N[=NAME]...",
    )  # fmt: skip
    durability: str = _set(
        "fsync", _one_of("fsync", "interval", "memory"), "what an acknowledgement means", "WORD"
    )
    interval_ms: int = _set(
        100, _count(1, 60_000), "how far behind the disk may be where durability is interval", "MS"
    )
    dev: bool = _set(
        False, _flag, "for development: the well-known key works, plain HTTP from this machine"
        " needs none, clocks can be moved; only peers on this machine are let in",
    )  # fmt: skip
    dev_allow: tuple[str, ...] = _set(
        (), _several(_network), "with --dev, let these peers in too", "CIDR..."
    )
    auto_create: bool = _set(False, _flag, "queues come into being when they are first used")
    memory_limit: int | None = _set(
        None, _some, "what messages may take of memory before senders are refused; default: half of"
        " what there is", "SIZE",
    )  # fmt: skip
    bodies_limit: int | None = _set(
        None, _some, "what bodies may take of memory before they stay on disk; default: a quarter",
        "SIZE",
    )  # fmt: skip
    segment_size: int = _set(64 << 20, _some, "of one file of the journal", "SIZE")
    compress: str = _set(
        "none", _one_of("none", "gzip", "zstd"), "how the journal is compressed from now on", "WORD"
    )
    compress_from: int = _set(
        1 << 10, _size, "what is written at a time is compressed from this size on", "SIZE"
    )
    keep: int = _set(7 * 86_400, _seconds, "how long the journal is kept for the feed", "TIME")
    keep_size: int = _set(16 << 30, _size, "how much of the journal is kept for the feed", "SIZE")
    keep_share: int = _set(
        50, _count(1, 100), "percent of the disk that the journal and its Arrow segments may take,"
        " of what others leave free; more than that is kept for no reader", "PERCENT",
    )  # fmt: skip
    fold_size: int = _set(256 << 20, _size, "how much is written between snapshots", "SIZE")
    reader_hold: int = _set(
        32 << 30, _size, "how much of the journal is kept at most for readers that lag", "SIZE"
    )
    tls_name: tuple[str, ...] = _set(
        (), _several(_host_name), "a host name for the certificate, beside localhost", "NAME..."
    )
    tls_cert: Path | None = _set(None, _path, "a certificate of your own, with its chain", "FILE")
    tls_key: Path | None = _set(None, _path, "its key", "FILE")
    insecure: bool = _set(
        False, _flag, "take keys in clear text from other machines too; without it TLS is required"
        " of them",
    )  # fmt: skip
    handshake_limit: int = _set(10, _count(1, 600), "what a peer has to say who it is", "SECONDS")
    connections_max: int = _set(10_000, _count(1, 1_000_000), "open at a time", "N")
    strangers_max: int = _set(
        2_000, _count(1, 1_000_000), "connections whose clients have not shown who they are; for"
        " one more the oldest of the address that has most is closed", "N",
    )  # fmt: skip
    strangers_per_address: int = _set(
        500, _count(1, 1_000_000), "of them from one address, or one /64 network of IPv6; more are"
        " closed at once", "N",
    )  # fmt: skip
    connections_per_principal: int | None = _set(
        None, _count(1, 1_000_000), "connections of one principal; default: half of"
        " connections-max", "N",
    )  # fmt: skip
    rate_principal: int = _set(
        0, _count(0, 1_000_000_000), "messages and requests that a principal may make in a second;"
        " 0: any number", "N",
    )  # fmt: skip
    rate_address: int = _set(
        0, _count(0, 1_000_000_000), "that one address may", "N",
    )  # fmt: skip
    rate_entity: int = _set(
        0, _count(0, 1_000_000_000), "that may be made of one queue, topic or subscription", "N",
    )  # fmt: skip
    auth_failures_max: int = _set(
        100, _count(0, 1_000_000_000), "credentials that are not valid, from one address in a"
        " minute, before none from there are looked at until it is over; 0: any number", "N",
    )  # fmt: skip
    principal_share: int = _set(
        50, _count(1, 100), "per cent of what is limited in number that one principal may hold",
        "PERCENT",
    )  # fmt: skip
    request_size: int = _set(48 << 20, _some, "of one HTTP request", "SIZE")
    servicebus_message_size: int = _set(
        1 << 20, _some, "of one message that a Service Bus client sends, unless the queue says"
        " otherwise", "SIZE",
    )  # fmt: skip
    servicebus_header_size: int = _set(
        16 << 10, _some, "of all headers of an HTTP answer that tells of a Service Bus message; one"
        " with more properties is received over AMQP", "SIZE",
    )  # fmt: skip
    servicebus_strict: bool = _set(
        False, _flag, "answer Service Bus clients as the cloud does where we would do otherwise"
    )
    servicebus_namespace: str = _set(
        "default", _one_of("default", "host", "key"), "what names the namespace of a Service Bus"
        " client: nothing, the first label of the host, or the key's name", "WORD",
    )  # fmt: skip
    localzure_message_size: int = _set(
        256 << 10, _some, "of one message that is sent over LocalZure's API", "SIZE"
    )
    localzure_entities: int = _set(
        1_000, _count(1, 1_000_000), "queues, and as many topics, that its API makes", "N"
    )
    jwt_secret: str | None = _set(
        None, _secret(32, 4_096), "what tokens (JWT) are signed with, by HS256", secret=True
    )
    jwt_public_key: Path | None = _set(
        None, _path, "the public key of who signs tokens (JWT) by RS256, in PEM", "FILE"
    )
    jwt_audience: str | None = _set(
        None, _text, "whom tokens (JWT) must be for (aud); without it they must name nobody", "NAME"
    )
    jwt_issuer: str | None = _set(
        None, _text, "whose tokens (JWT) they must be (iss); without it anybody's", "NAME"
    )
    pyqueue_security: bool | None = _set(
        None, _flag, "PyQueue clients must say who they are, also with --dev; without it they"
        " always must",
    )  # fmt: skip
    pyqueue_api_key: str | None = _set(
        None, _secret(KEY_CHARS_MIN, KEY_CHARS_MAX), "a key that makes a PyQueue client the"
        " principal api_key_user", secret=True,
    )  # fmt: skip
    pyqueue_lock: int = _set(
        10, _some_seconds, "how long a pulled task is hidden from others, in queues that PyQueue"
        " clients make", "TIME",
    )  # fmt: skip
    pyqueue_retries: int = _set(
        3, _count(1, 1_000), "how often a task may fail there before it is a dead letter", "N"
    )
    pyqueue_depth: int = _set(10_000, _count(1), "how many tasks such a queue holds", "N")
    pyqueue_ttl: int | None = _set(
        None, _some_seconds, "how long tasks live there; default: for ever", "TIME"
    )
    pyqueue_deduplicate: bool = _set(
        False, _flag, "tasks without an idempotency key are duplicates where their payloads are"
        " equal",
    )  # fmt: skip
    pyqueue_rate: int | None = _set(
        None, _count(0, 1_000_000_000), "tasks that one address may push in a second; 0: any"
        " number; default: 10, with --dev any number", "N",
    )  # fmt: skip
    pyqueue_burst: int = _set(20, _count(1, 1_000_000_000), "that it may push at once", "N")
    pyqueue_connections: int = _set(
        1_000,
        _count(1, 1_000_000),
        "connections of PyQueue clients that have shown who they are, at a time",
        "N",
    )
    pyqueue_zone: str = _set(
        "UTC", _zone, "the time zone of schedules that PyQueue clients make", "NAME"
    )
    vibemq_message_size: int = _set(
        16 << 20, _some, "of one payload that a VibeMQ client publishes, not compressed", "SIZE"
    )
    vibemq_window: int = _set(
        100, _count(1, 10_000), "messages that a VibeMQ subscriber is given before it acknowledges",
        "N",
    )  # fmt: skip
    vibemq_keep_alive: int = _set(
        30, _count(1, 86_400), "how often a VibeMQ client is to be heard of; after three times as"
        " long it is closed", "SECONDS",
    )  # fmt: skip
    vibemq_connection_rate: int = _set(
        0, _count(0, 1_000_000), "VibeMQ connections from one address in a minute; 0: any number",
        "N",
    )  # fmt: skip
    vibemq_message_rate: int = _set(
        0, _count(0, 1_000_000), "requests on one VibeMQ connection in a second; 0: any number", "N"
    )
    vibemq_token: str | None = _set(
        None, _text, "what VibeMQ clients before 1.8 may all come with", secret=True
    )
    vibemq_superuser: str | None = _set(
        None, _text, "a VibeMQ user that is made at the start where there is none of that name",
        "NAME",
    )  # fmt: skip
    vibemq_superuser_password: str | None = _set(None, _text, "its password", secret=True)
    stop_limit: int = _set(30, _count(0, 3_600), "what a clean stop may take", "SECONDS")
    log: str = _set(
        "auto", _one_of("auto", "text", "json"), "how the log looks; auto: text on a terminal",
        "WORD",
    )  # fmt: skip
    log_level: str = _set(
        "info", _one_of("debug", "info", "warning", "error"), "what is logged", "WORD"
    )
    config: Path | None = _set(None, _path, "a configuration file", "FILE")
    declared: Declared = field(default_factory=Declared)  # what is to exist at start; file only
    origins: Mapping[str, str] = field(default_factory=dict)  # of what is not a default


SETTINGS: dict[str, Setting] = {
    each.name: each.metadata["setting"] for each in fields(Config) if "setting" in each.metadata
}
_DECLARED = frozenset(("namespaces", "queues", "topics", "schedules", "principals"))
# What PyQueue's own settings are called here, in the environment; those of ours go before them.
ALIASES = {
    "BROKER_HOST": "host", "BROKER_PORT": "port", "VISIBILITY_TIMEOUT": "pyqueue_lock",
    "MAX_RETRIES": "pyqueue_retries", "TLS_CERT_FILE": "tls_cert", "TLS_KEY_FILE": "tls_key",
    "QUEUE_MAX_DEPTH": "pyqueue_depth", "QUEUE_TTL": "pyqueue_ttl",
    "COMPRESSION_MIN_SIZE": "compress_from", "COMPRESSION_ENABLED": "compress",
    "SECURITY_ENABLED": "pyqueue_security", "API_KEY": "pyqueue_api_key",
    "JWT_SECRET": "jwt_secret",
}  # fmt: skip
# Others use these names too. They are ours only beside the one that says so.
_GUARDED = frozenset(("API_KEY", "JWT_SECRET"))
_API_USER = "api_key_user"


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
            given = "" if SETTINGS[name].secret else f", not {reprlib.repr(value)}"
            raise BadConfig(f"{origin}: {name} {error}{given}.") from None
        origins[name] = origin

    file = flags.get("config") or given.get("config")
    declared = Declared()
    if file is not None:
        path = _path(file)
        content, declared = _read_file(path)
        if "config" in content:
            raise BadConfig(f"{path}: a file cannot name another; give that one instead.")
        for name, value in content.items():
            take(name, value, str(path))
    secured = environment.get("SECURITY_ENABLED", "").lower() in ("true", "yes", "1")
    for name, ours in ALIASES.items():
        if environment.get(name) and (secured or name not in _GUARDED):
            value = environment[name]
            if ours == "compress":
                value = {"true": "gzip", "false": "none"}.get(value.lower(), value)
            take(ours, value, name)
    for name, value in given.items():
        if name not in _FOR_CLIENTS and not name.startswith(_OF_THE_CLIENT):
            take(name, value, f"POSTHOUSE_{name.upper()}")
    for name, value in flags.items():
        if value is not None:
            take(name, value, f"--{name.replace('_', '-')}")
    config = Config(**values, declared=declared, origins=origins)
    _check(config)
    if config.pyqueue_api_key is not None:
        try:
            declared = declared.with_key(_API_USER, config.pyqueue_api_key, DEFAULT_NAMESPACE)
        except ValueError as error:
            raise BadConfig(f"{origins['pyqueue_api_key']}: {error}.") from None
    return replace(config, declared=declared)


_FOR_CLIENTS = frozenset(("url", "key", "namespace", "ca"))  # the command line reads these
_OF_THE_CLIENT = "client_"  # those with it belong to `posthouse.create_client`


def _check(config: Config) -> None:
    if (config.tls_cert is None) != (config.tls_key is None):
        raise BadConfig("tls_cert and tls_key belong together; give both or neither.")
    if config.dev_allow and not config.dev:
        raise BadConfig("dev_allow goes with dev; without it every peer may come, with a key.")
    if config.insecure and config.dev:
        raise BadConfig("insecure goes without dev, with which TLS is required of nobody.")
    if config.pyqueue_security is False and not config.dev:
        raise BadConfig(f"{config.origins['pyqueue_security']}: without --dev every client has to"
                        " say who it is; leave it out, or give --dev.")  # fmt: skip
    if "memory" in config.origins and config.memory and "data" in config.origins:
        raise BadConfig("data and memory exclude each other; give one of them.")
    if (config.vibemq_superuser is None) != (config.vibemq_superuser_password is None):
        raise BadConfig("vibemq_superuser and vibemq_superuser_password belong together.")
    if not config.port or not config.host:
        raise BadConfig("port and host must not be empty.")


def _security(content: dict[str, object]) -> object:
    """PyQueue's section of that name becomes settings of ours; returns its permissions.

    Raises ValueError.
    """
    section = content.pop("security", {})
    if not isinstance(section, dict):
        raise ValueError("security must hold settings by name")  # noqa: TRY004
    named = {"enabled": "pyqueue_security", "api_key": "pyqueue_api_key",
             "jwt_secret": "jwt_secret"}  # fmt: skip
    unknown = section.keys() - named.keys() - {"permissions"}
    if unknown:
        raise ValueError(f"security: there is no {min(map(str, unknown))!r}")
    for name, ours in named.items():
        if section.get(name) is not None:
            content.setdefault(ours, section[name])
    return section.get("permissions", {})


def _read_file(path: Path) -> tuple[dict[str, object], Declared]:
    import yaml  # not needed by a start without a file

    try:
        text = path.read_text(encoding="utf-8-sig")
        content = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text)
    except json.JSONDecodeError as error:
        raise BadConfig(f"{path} is not JSON in line {error.lineno}: {error.msg}.") from None
    except OSError as error:
        raise BadConfig(f"{path} cannot be read: {error.strerror}.") from None
    except yaml.MarkedYAMLError as error:  # without what stands there, which may be a secret
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 0
        raise BadConfig(f"{path} is not YAML in line {line}: {error.problem}.") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        raise BadConfig(f"{path} is not YAML.") from None
    content = {} if content is None else content
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise BadConfig(f"{path} must hold settings by name.")
    try:
        if "UserConfig" in content:
            return {}, read_emulator(content, DEFAULT_NAMESPACE)
        mine = {name: content.pop(name) for name in list(content) if name in _DECLARED}
        security = _security(content)
        declared = read_declared(mine, DEFAULT_NAMESPACE)
        return content, read_permissions(declared, security, DEFAULT_NAMESPACE)
    except ValueError as error:
        raise BadConfig(f"{path}: {error}") from None
