"""The configuration of a client. An invalid value is refused with its name."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from posthouse.client.addresses import Address, parse_addresses
from posthouse.client.errors import ConfigurationError
from posthouse.client.provider import ProviderType
from posthouse.client.secret import Secret, reveal

PREFIX = "POSTHOUSE_CLIENT_"  # of variables of the environment
_NO_URL = (
    "is none: a host and a port are missing or wrong, or a key has / or @ that is not %2F, %40"
)
_NO_PROVIDER = (
    "is not set, and no URL was given: say where the queues are with posthouse://NAME:KEY@HOST for"
    " a Posthouse broker, sb://NAME:KEY@HOST for Azure Service Bus or sqs://REGION for Amazon SQS;"
    " in a test, memory:// is a broker in this process"
)


# A field of these is given as it is, and kept as a Secret.
SecretText: TypeAlias = str | Secret[str]
_SECRETS: dict[Any, type] = {SecretText: str, object: object}


@dataclass(frozen=True)
class PosthouseConfig:
    """A Posthouse broker, over AMQP 1.0.

    `host` and `port` are its address; of a cluster, `host` names the nodes, as in `h1,h2:5673,h3`,
    and `port` is that of those without one. `key_name` and `key` are the credentials; `namespace`
    is the namespace, the broker's own if it is empty. `tls` encrypts the connection, and `ca_file`
    names the certificates to trust instead of the machine's. `prefetch` is how many messages a
    receiver fetches ahead. `map` names a file that says which broker has which namespace; address
    and credentials are then those of `namespace` there, whenever the client connects.

    Example:
        config = PosthouseConfig("broker.example.com", 5671, "web", "secret", tls=True)
    """

    host: str = "localhost"  # or several, with commas between them
    port: int = 5672
    key_name: str = "RootManageSharedAccessKey"
    key: SecretText = ""
    namespace: str = ""  # the broker's own, unless its namespaces go by hosts
    tls: bool = False
    ca_file: str = ""  # whom to trust; the machine's, unless said
    prefetch: int = 256  # messages that a receiver fetches ahead
    map: str = ""  # a file of brokers by namespace, which says where this one is
    provider = ProviderType.POSTHOUSE

    def __post_init__(self) -> None:
        _check_kinds(self)
        _check(bool(self.host), "host", "must not be empty")
        _check(0 < self.port < 65_536, "port", "must be from 1 to 65535")
        _check(1 <= self.prefetch <= 5_000, "prefetch", "must be from 1 to 5000")
        alone = self.host == "localhost" and not self.key and not self.ca_file
        _check(alone or not self.map, "map", "goes without host, key and ca_file, which it gives")
        try:
            addresses = self.addresses
        except ValueError:
            raise ConfigurationError(
                "host", "must be a host, or several as in h1,h2:5673"
            ) from None
        _check(all(each.port for each in addresses), "host", "must have ports from 1 to 65535")
        _check(len(set(addresses)) == len(addresses), "host", "must not name a node twice")

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The address of the broker, or of each node of a cluster.

        Example:
            assert PosthouseConfig("h1,h2:5673").addresses == (("h1", 5672), ("h2", 5673))
        """
        return parse_addresses(self.host, self.port)


@dataclass(frozen=True)
class AzureServiceBusConfig:
    """Azure Service Bus, through its official SDK (`pip install 'posthouse[azure]'`).

    Give `connection_string`, or `namespace` (a host) and `credential` (one of azure.identity's).
    `use_sessions` off refuses sessions; `session_timeout` is how long a session in use is kept at
    most, in seconds. `prefetch` is how many messages a receiver fetches ahead. `websocket` uses
    AMQP over WebSockets. `ca_file` names the certificates to trust instead of the machine's.

    Example:
        config = AzureServiceBusConfig("Endpoint=sb://shop.servicebus.windows.net/;...")
    """

    connection_string: SecretText = ""
    namespace: str = ""  # host, where a credential is used in the place of a connection string
    use_sessions: bool = True
    session_timeout: float = 300.0  # how long a session that is in use is kept at most
    prefetch: int = 100
    websocket: bool = False
    credential: object = None  # one of azure.identity's
    ca_file: str = ""  # whom to trust; the machine's, unless said
    provider = ProviderType.AZURE_SERVICE_BUS

    def __post_init__(self) -> None:
        _check_kinds(self)
        given = bool(self.connection_string) or bool(self.namespace and self.credential)
        _check(given, "connection_string", "must be given, or namespace and credential")
        _check(self.session_timeout > 0, "session_timeout", "must be more than 0")


@dataclass(frozen=True)
class AwsSqsConfig:
    """Amazon SQS (`pip install 'posthouse[aws]'`).

    `region` is the AWS region. `access_key_id`, `secret_access_key` and `session_token` are the
    credentials; without them the machine's own are used. `endpoint_url` names another endpoint.
    With `use_fifo_queues`, the queue `orders` is `orders.fifo`.

    Example:
        config = AwsSqsConfig("eu-central-1", use_fifo_queues=True)
    """

    region: str = "us-east-1"
    access_key_id: str = ""  # without, the machine's own credentials are used
    secret_access_key: SecretText = ""
    session_token: SecretText = ""
    endpoint_url: str = ""
    use_fifo_queues: bool = False  # a queue `orders` is `orders.fifo`
    provider = ProviderType.AWS_SQS

    def __post_init__(self) -> None:
        _check_kinds(self)
        _check(bool(self.region), "region", "must not be empty")
        both = bool(self.access_key_id) == bool(self.secret_access_key)
        _check(both, "secret_access_key", "goes with access_key_id; give both or neither")


@dataclass(frozen=True)
class InMemoryConfig:
    """A broker of its own inside this process, which is gone with it.

    `max_queue_size` is the most messages of a queue, `max_delivery_count` the deliveries after
    which a message is dead-lettered; `lock_duration` and `session_lock_duration` are in seconds.
    With `auto_create`, queues are created when they are first used. `duplicate_detection` makes
    equal ids one message. With `virtual_clock`, time stands still until it is moved.

    Example:
        config = InMemoryConfig(auto_create=True)
    """

    max_queue_size: int = 10_000
    max_delivery_count: int = 3
    lock_duration: float = 30.0
    session_lock_duration: float = 300.0
    auto_create: bool = False  # queues come into being when they are first used
    duplicate_detection: bool = False
    virtual_clock: bool = False  # time stands still until it is moved
    provider = ProviderType.IN_MEMORY

    def __post_init__(self) -> None:
        _check_kinds(self)
        _check(self.max_queue_size > 0, "max_queue_size", "must be more than 0")
        _check(self.max_delivery_count > 0, "max_delivery_count", "must be more than 0")
        _check(self.lock_duration > 0, "lock_duration", "must be more than 0")
        _check(self.session_lock_duration > 0, "session_lock_duration", "must be more than 0")


ProviderConfig: TypeAlias = PosthouseConfig | AzureServiceBusConfig | AwsSqsConfig | InMemoryConfig
_SCHEMES: dict[str, type[Any]] = {
    "posthouse": PosthouseConfig,
    "posthouses": PosthouseConfig,
    "sb": AzureServiceBusConfig,
    "sqs": AwsSqsConfig,
    "memory": InMemoryConfig,
}


@dataclass(frozen=True)
class QueueConfig:
    """A provider, and what the client does beside it. To change it, make another client.

    `provider` says where the queues are. `default_timeout` is how long a receive waits, and
    `operation_timeout` how long any other call may take, with all its tries. `max_retry_attempts`
    is the number of retries after failures that the provider has answered with (0: nothing is tried
    again); while the provider is not available, a call is tried until its time is over.
    `retry_base_delay` and `retry_max_delay` are the first and the longest delay. `breaker_failures`
    in a row open the circuit breaker (0: never); every `breaker_seconds` one call is let through.
    `enable_dead_letter` off refuses to dead-letter. Times are in seconds. Raises
    ConfigurationError.

    Example:
        config = QueueConfig(PosthouseConfig("localhost"), default_timeout=5.0)
    """

    provider: ProviderConfig
    default_timeout: float = 30.0  # of a receive, where none is given
    operation_timeout: float = 60.0  # of anything else, with all its tries
    max_retry_attempts: int = 3  # of what the provider answers; 0: nothing is tried again
    retry_base_delay: float = 1.0
    retry_max_delay: float = 60.0
    breaker_failures: int = 5  # in a row, until calls fail at once; 0: never
    breaker_seconds: float = 1.0  # until one call is let through, to see
    enable_dead_letter: bool = True

    def __post_init__(self) -> None:
        _check_kinds(self)
        _check(self.default_timeout >= 0, "default_timeout", "must not be negative")
        _check(self.operation_timeout > 0, "operation_timeout", "must be more than 0")
        _check(0 <= self.max_retry_attempts <= 100, "max_retry_attempts", "must be from 0 to 100")
        _check(self.retry_base_delay >= 0, "retry_base_delay", "must not be negative")
        _check(self.retry_max_delay >= 0, "retry_max_delay", "must not be negative")
        _check(self.breaker_failures >= 0, "breaker_failures", "must not be negative")
        _check(self.breaker_seconds > 0, "breaker_seconds", "must be more than 0")

    @classmethod
    def from_url(cls, url: str) -> "QueueConfig":
        """Reads a configuration from a `url`.

        It is `posthouse://name:key@host/namespace?prefetch=100`, with several hosts for the nodes
        of a cluster (`posthouse://name:key@h1,h2,h3`), `posthouse:///namespace?map=FILE`, `sb://`,
        `sqs://region`, `memory://`, or a connection string of Azure's. Settings of both parts
        follow as a query. Raises ConfigurationError.

        Example:
            config = QueueConfig.from_url("posthouse://localhost?max_retry_attempts=5")
        """
        if url.startswith("Endpoint="):
            return cls(AzureServiceBusConfig(connection_string=url))
        try:
            url, hosts = _take_hosts(url)
            parts = urlsplit(url)
            port = parts.port
        except ValueError:  # whose text may show a part of the key
            raise ConfigurationError("url", _NO_URL) from None
        if "@" in parts.path:
            raise ConfigurationError("url", _NO_URL)
        kind = _SCHEMES.get(parts.scheme)
        if kind is None:
            raise ConfigurationError(
                "url", f"must begin with one of {', '.join(f'{each}://' for each in _SCHEMES)}"
            )
        values = dict(parse_qsl(parts.query, keep_blank_values=True))
        mine = {each.name for each in fields(cls)} - {"provider"}
        general = {name: values.pop(name) for name in list(values) if name in mine}
        given = _of_url(parts, port) | hosts
        return cls(_read(kind, given | values), **_typed(cls, general))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "QueueConfig":
        """Reads a configuration from the variables of an `environment`.

        `POSTHOUSE_CLIENT_URL` is the URL; settings have their names, as in
        `POSTHOUSE_CLIENT_MAX_RETRY_ATTEMPTS`. Raises ConfigurationError.

        Example:
            config = QueueConfig.from_environment(os.environ)
        """
        given = {
            name.removeprefix(PREFIX).lower(): value
            for name, value in environment.items()
            if name.startswith(PREFIX) and value
        }
        if "url" not in given:
            raise ConfigurationError(f"{PREFIX}URL", _NO_PROVIDER)
        config = cls.from_url(given.pop("url"))
        mine = {each.name for each in fields(cls)} - {"provider"}
        general = {name: given.pop(name) for name in list(given) if name in mine}
        known = {each.name for each in fields(config.provider)}
        for name in given:
            if name not in known:
                raise ConfigurationError(f"{PREFIX}{name.upper()}", "is no setting")
        provider = replace(config.provider, **_typed(type(config.provider), given))
        return replace(config, provider=provider, **_typed(cls, general))


def _take_hosts(url: str) -> tuple[str, dict[str, str]]:
    """Takes several hosts out of the URL of a cluster, of which it leaves the first."""
    scheme, mark, rest = url.partition("://")
    if scheme not in ("posthouse", "posthouses") or not mark:
        return url, {}
    found = [rest.find(each) for each in "/?#"]
    end = min((position for position in found if position >= 0), default=len(rest))
    credentials, at, hosts = rest[:end].rpartition("@")
    if "," not in hosts:
        return url, {}
    first = hosts.partition(",")[0]
    default = "5671" if scheme == "posthouses" else "5672"
    left = f"{scheme}://{credentials}{at}{first}{rest[end:]}"
    return left, {"host": hosts.lower(), "port": default}


def _of_url(parts: SplitResult, port: int | None) -> dict[str, str]:
    """Returns the settings that a URL gives, as its scheme defines them."""
    name, key = unquote(parts.username or ""), unquote(parts.password or "")
    host = parts.hostname or ""
    found: dict[str, str] = {}
    match parts.scheme:
        case "posthouse" | "posthouses":
            tls = parts.scheme == "posthouses"
            found = {
                "host": host or "localhost", "port": str(port or (5671 if tls else 5672)),
                "key_name": name, "key": key, "namespace": parts.path.strip("/"),
                "tls": "true" if tls else "",
            }  # fmt: skip
        case "sb":
            _check(bool(host), "url", "must name a host")
            where = f"{host}:{port}" if port else host
            found["connection_string"] = (
                f"Endpoint=sb://{where};SharedAccessKeyName={name};SharedAccessKey={key}"
            )
            if host in ("localhost", "127.0.0.1"):
                found["connection_string"] += ";UseDevelopmentEmulator=true"
        case "sqs":
            found = {"region": host, "access_key_id": name, "secret_access_key": key}
        case _:
            pass
    return {field: value for field, value in found.items() if value}


def _read(kind: type[Any], values: dict[str, str]) -> Any:
    known = {each.name for each in fields(kind)}
    for name in values:
        if name not in known:
            raise ConfigurationError(name, f"is no setting of {kind.__name__}")
    return kind(**_typed(kind, values))


def _typed(kind: type[Any], values: Mapping[str, str]) -> dict[str, Any]:
    """Texts as what their fields hold. Raises ConfigurationError."""
    kinds = {each.name: each.type for each in fields(kind)}
    found: dict[str, Any] = {}
    for name, value in values.items():
        try:
            if kinds[name] in (bool, "bool"):
                found[name] = {"true": True, "1": True, "yes": True, "false": False, "0": False,
                               "no": False}[value.lower()]  # fmt: skip
            elif kinds[name] in (int, "int"):
                found[name] = int(value)
            elif kinds[name] in (float, "float"):
                found[name] = float(value)
            else:
                found[name] = value
        except (KeyError, ValueError):
            raise ConfigurationError(name, f"cannot be {value!r}") from None
    return found


def _check_kinds(config: Any) -> None:
    """Every field holds what it is for. Raises ConfigurationError, without the value."""
    for each in fields(config):
        value, kind = getattr(config, each.name), each.type
        if kind in _SECRETS:
            value, kind = reveal(value), _SECRETS[kind]
            object.__setattr__(config, each.name, Secret(value))
        if kind is float:
            right = type(value) in (int, float) and math.isfinite(value)
            _check(right, each.name, "must be a finite number")
        elif kind is int:
            _check(type(value) is int, each.name, "must be a whole number")
        elif kind is ProviderConfig:
            _check(isinstance(value, ProviderConfig), each.name, "must be a provider's settings")
        elif isinstance(kind, type):
            _check(isinstance(value, kind), each.name, f"must be of the type {kind.__name__}")


def _check(right: bool, field: str, rule: str) -> None:
    if not right:
        raise ConfigurationError(field, rule)
