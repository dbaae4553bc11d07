"""The configuration: one frozen value with all defaults.

A flag goes before the environment (`POSTHOUSE_*`), that before the file (YAML), that before the
default; for each value it is known where it came from. What is not known, or makes no sense, is an
error that names it and its origin.
"""

import ipaddress
import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from posthouse.broker.access import KEY_CHARS_MAX
from posthouse.broker.declared import KEY_CHARS_MIN
from posthouse.core.errors import InvalidArgument
from posthouse.core.recurrence import parse
from posthouse.dialects.settings import (
    as_flag,
    as_path,
    as_seconds,
    as_size,
    as_text,
    count,
    one_of,
    secret,
    setting,
    settings_of,
    several,
    some_seconds,
    some_size,
)
from posthouse.server.declared import Declared, read_declared, read_emulator, read_permissions

PORTS = (5672, 5671, 5300, 5555, 2925, 7071, 4566)  # what clients dial
# Dialects whose paths over HTTP collide with others: each has ports that are declared for it.
DOORS = ("pyqueue-http", "vibemq-http")
DEFAULT_NAMESPACE = "default"


class BadConfig(Exception):
    """Something in the configuration is unknown or makes no sense; the text names it."""


# How a value is read that the server alone has. Each raises ValueError.


def _zone(value: object) -> str:
    try:
        parse("every 1 hour", as_text(value))
    except InvalidArgument:
        raise ValueError("must be a time zone such as Europe/Berlin") from None
    return as_text(value)


def _host_name(value: object) -> str:
    try:
        return as_text(value).encode("idna").decode().lower()
    except UnicodeError:
        raise ValueError("must be a host name or an address") from None


class Port(NamedTuple):
    """A port to listen on. It takes every dialect; `door` says who answers HTTP there."""

    number: int
    door: str = ""


def _port(value: object) -> Port:
    number, declared, door = str(value).partition("=")
    if isinstance(value, bool) or (declared and door not in DOORS):
        raise ValueError(f"must be a number, or a number and one of {', '.join(DOORS)}, as in"
                         f" 8080={DOORS[0]}")  # fmt: skip
    return Port(count(0, 65_535)(number), door)


def _network(value: object) -> str:
    try:
        return str(ipaddress.ip_network(as_text(value), strict=False))
    except ValueError:
        raise ValueError("must be an address or a network, as in 172.17.0.0/16") from None


@dataclass(frozen=True)
class Config:
    """Everything that can be set, with its default."""

    data: Path = setting(Path("posthouse-data"), as_path, "the folder that holds everything", "DIR")
    memory: bool = setting(False, as_flag, "keep nothing on disk: all is gone with the process")
    host: tuple[str, ...] = setting(
        ("127.0.0.1", "::1"), several(as_text), "an address to listen on", "ADDRESS..."
    )
    port: tuple[Port, ...] = setting(
        tuple(map(Port, PORTS)), several(_port), "a port to listen on; 0 picks one; with a name,"
        " as in 8080=pyqueue-http or 12925=vibemq-http, HTTP there is that API", "N[=NAME]...",
    )  # fmt: skip
    durability: str = setting(
        "fsync", one_of("fsync", "interval", "memory"), "what an acknowledgement means", "WORD"
    )
    interval_ms: int = setting(
        100, count(1, 60_000), "how far behind the disk may be where durability is interval", "MS"
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
    servicebus_message_size: int = setting(
        1 << 20, some_size, "of one message that a Service Bus client sends, unless the queue says"
        " otherwise", "SIZE",
    )  # fmt: skip
    servicebus_header_size: int = setting(
        16 << 10, some_size, "of all headers of an HTTP answer that tells of a Service Bus message;"
        " one with more properties is received over AMQP", "SIZE",
    )  # fmt: skip
    servicebus_strict: bool = setting(
        False, as_flag, "answer Service Bus clients as the cloud does where we would do otherwise"
    )
    servicebus_namespace: str = setting(
        "default", one_of("default", "host", "key"), "what names the namespace of a Service Bus"
        " client: nothing, the first label of the host, or the key's name", "WORD",
    )  # fmt: skip
    localzure_message_size: int = setting(
        256 << 10, some_size, "of one message that is sent over LocalZure's API", "SIZE"
    )
    localzure_entities: int = setting(
        1_000, count(1, 1_000_000), "queues, and as many topics, that its API makes", "N"
    )
    jwt_secret: str | None = setting(
        None, secret(32, 4_096), "what tokens (JWT) are signed with, by HS256", secret=True
    )
    jwt_public_key: Path | None = setting(
        None, as_path, "the public key of who signs tokens (JWT) by RS256, in PEM", "FILE"
    )
    jwt_audience: str | None = setting(
        None,
        as_text,
        "whom tokens (JWT) must be for (aud); without it they must name nobody",
        "NAME",
    )
    jwt_issuer: str | None = setting(
        None, as_text, "whose tokens (JWT) they must be (iss); without it anybody's", "NAME"
    )
    pyqueue_security: bool | None = setting(
        None, as_flag, "PyQueue clients must say who they are, also with --dev; without it they"
        " always must",
    )  # fmt: skip
    pyqueue_api_key: str | None = setting(
        None, secret(KEY_CHARS_MIN, KEY_CHARS_MAX), "a key that makes a PyQueue client the"
        " principal api_key_user", secret=True,
    )  # fmt: skip
    pyqueue_lock: int = setting(
        10, some_seconds, "how long a pulled task is hidden from others, in queues that PyQueue"
        " clients make", "TIME",
    )  # fmt: skip
    pyqueue_retries: int = setting(
        3, count(1, 1_000), "how often a task may fail there before it is a dead letter", "N"
    )
    pyqueue_depth: int = setting(10_000, count(1), "how many tasks such a queue holds", "N")
    pyqueue_ttl: int | None = setting(
        None, some_seconds, "how long tasks live there; default: for ever", "TIME"
    )
    pyqueue_deduplicate: bool = setting(
        False, as_flag, "tasks without an idempotency key are duplicates where their payloads are"
        " equal",
    )  # fmt: skip
    pyqueue_rate: int | None = setting(
        None, count(0, 1_000_000_000), "tasks that one address may push in a second; 0: any"
        " number; default: 10, with --dev any number", "N",
    )  # fmt: skip
    pyqueue_burst: int = setting(20, count(1, 1_000_000_000), "that it may push at once", "N")
    pyqueue_connections: int = setting(
        1_000,
        count(1, 1_000_000),
        "connections of PyQueue clients that have shown who they are, at a time",
        "N",
    )
    pyqueue_zone: str = setting(
        "UTC", _zone, "the time zone of schedules that PyQueue clients make", "NAME"
    )
    vibemq_message_size: int = setting(
        16 << 20, some_size, "of one payload that a VibeMQ client publishes, not compressed", "SIZE"
    )
    vibemq_window: int = setting(
        100, count(1, 10_000), "messages that a VibeMQ subscriber is given before it acknowledges",
        "N",
    )  # fmt: skip
    vibemq_keep_alive: int = setting(
        30, count(1, 86_400), "how often a VibeMQ client is to be heard of; after three times as"
        " long it is closed", "SECONDS",
    )  # fmt: skip
    vibemq_connection_rate: int = setting(
        0, count(0, 1_000_000), "VibeMQ connections from one address in a minute; 0: any number",
        "N",
    )  # fmt: skip
    vibemq_message_rate: int = setting(
        0, count(0, 1_000_000), "requests on one VibeMQ connection in a second; 0: any number", "N"
    )
    vibemq_token: str | None = setting(
        None, as_text, "what VibeMQ clients before 1.8 may all come with", secret=True
    )
    vibemq_superuser: str | None = setting(
        None, as_text, "a VibeMQ user that is made at the start where there is none of that name",
        "NAME",
    )  # fmt: skip
    vibemq_superuser_password: str | None = setting(None, as_text, "its password", secret=True)
    stop_limit: int = setting(30, count(0, 3_600), "what a clean stop may take", "SECONDS")
    log: str = setting(
        "auto", one_of("auto", "text", "json"), "how the log looks; auto: text on a terminal",
        "WORD",
    )  # fmt: skip
    log_level: str = setting(
        "info", one_of("debug", "info", "warning", "error"), "what is logged", "WORD"
    )
    config: Path | None = setting(None, as_path, "a configuration file", "FILE")
    declared: Declared = field(default_factory=Declared)  # what is to exist at start; file only
    origins: Mapping[str, str] = field(default_factory=dict)  # of what is not a default


SETTINGS = settings_of(Config)
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
        path = as_path(file)
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
