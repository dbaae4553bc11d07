"""The settings of a bridge, with presets. A wrong value is refused with its name."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args, get_origin
from urllib.parse import urlsplit

from posthouse.bridge.errors import ConfigurationError
from posthouse.client.secret import Secret, reveal

PREFIX = "POSTHOUSE_BRIDGE_"  # of variables of the environment
_NATS = ("nats://", "nats+tls://", "tls://")
NAME_CHARS_MAX = 100  # so that a subject of three of them has at most 255 with `sync` or `dlq`
LANES_MAX = 1_024
BATCH_MAX = 1_000

Mode = Literal["pull", "push"]
InboxMode = Literal["transactional", "marked", "off"]
EnvelopeStyle = Literal["bridge", "cloudevents"]
Wake = Literal["transport", "poll"]


@dataclass(frozen=True)
class Settings:
    """The settings of a bridge. Times are in seconds."""

    url: str | Secret[str] = "nats://localhost:4222"  # or posthouse://, sb://, sqs://, memory://
    app: str = ""  # the name of this service, without that of an environment
    destination: tuple[str, ...] = ()  # the services it exchanges events with
    stream: str = ""  # "": the names of both services, in alphabetical order
    # Connecting.
    connect: bool = False  # at the start; else at the first use
    connect_attempts: int = 3
    connect_delay: float = 2.0  # between two attempts
    auto_provision: bool = True  # streams and consumers are created at the first use
    replicas: int = 0  # of the stream; 0: as many as the transport recommends
    duplicate_window: float = 600.0  # in which the transport stores one id once
    # NATS alone.
    user: str = ""
    password: str | Secret[str] = ""
    credentials: str = ""  # a .creds file, or one with the seed of an nkey
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    inbox_prefix: str = "_INBOX"  # of the subjects on which answers come
    monitor: str = ""  # the URL of the server's monitoring port, which says how it syncs
    # Queues alone.
    sessions: bool | None = None  # keys stay in order by sessions; None: where there are some
    # Publishing.
    envelope: EnvelopeStyle = "bridge"
    topics: bool = False  # a subject for each type of event, for more than two services
    publish_attempts: int = 3  # of a publish without an outbox
    payload_bytes_max: int = 1_000_000  # until the transport has told its own limit
    # Consuming.
    mode: Mode = "pull"
    ack_wait: float = 30.0  # after which an event that nobody settled is delivered again
    max_deliver: int = 5  # deliveries, after which an event goes to the dead letters
    delays: tuple[float, ...] = (1.0, 5.0, 15.0, 30.0, 60.0)  # before a retry, by the delivery
    drain_seconds: float = 30.0  # that handlers have when the bridge stops
    # Outbox.
    outbox: bool = True  # where the bridge has a database
    lanes: int = 16  # in which rows are sent side by side
    relay_batch: int = 500  # rows that the relay reads at a time
    wake: Wake = "transport"
    poll_seconds: float = 1.0  # between two looks of an idle relay, at most
    outbox_attempts: int = 10  # of a row that the transport refuses
    strict_order: bool = False  # a failed row holds up the later rows of its key
    keep_sent: float = 3 * 86_400.0  # after which sent rows are removed
    delete_sent: bool = False  # sent rows are removed at once
    # Inbox.
    inbox: InboxMode = "transactional"  # where the bridge has a database
    keep_seen: float = 7 * 86_400.0  # after which rows of the inbox are removed
    keep_payload: bool = False  # the inbox keeps the envelope and the headers
    # Tables.
    prefix: str = "posthouse_"
    schema: str = ""
    # Health.
    health_seconds: float = 30.0  # that a health report is kept
    relay_overdue: float = 60.0  # an older pending row that no relay works at is unhealthy

    def __post_init__(self) -> None:
        for name in ("destination", "delays"):
            given: object = getattr(self, name)
            if isinstance(given, str | list):
                made = (given,) if isinstance(given, str) else tuple(given)
                object.__setattr__(self, name, made)
        _check(isinstance(self.url, str | Secret), "url", "must be a text")
        object.__setattr__(self, "url", Secret(reveal(self.url)))
        object.__setattr__(self, "password", Secret(reveal(self.password)))
        for field in fields(self):
            _check_kind(field.name, field.type, getattr(self, field.name))
        self._check_names()
        is_nats = self.address.startswith(_NATS)
        for name in () if is_nats else _OF_NATS:
            _check(getattr(self, name) == _DEFAULTS[name], name, "is a setting of NATS alone")
        _check(not is_nats or self.sessions is None, "sessions", "is a setting of queues alone")
        for name in _POSITIVE:
            _check(getattr(self, name) > 0, name, "must be more than 0")
        _check(0 <= self.replicas <= 5, "replicas", "must be from 0 to 5")
        _check(self.connect_delay >= 0, "connect_delay", "must not be negative")
        _check(self.ack_wait >= 0.1, "ack_wait", "must be 0.1 or more")
        _check(self.lanes <= LANES_MAX, "lanes", f"must be at most {LANES_MAX}")
        _check(bool(self.delays), "delays", "must have a delay or more")
        _check(all(each >= 0 for each in self.delays), "delays", "must not be negative")
        _check(self.drain_seconds >= 0, "drain_seconds", "must not be negative")
        _check(self.health_seconds >= 0, "health_seconds", "must not be negative")

    def _check_names(self) -> None:
        address = reveal(self.url)
        _check("://" in address, "url", "must be a URL, as in"
               " nats://localhost:4222, posthouse://NAME:KEY@HOST or memory://")  # fmt: skip
        _check_name("app", self.app)
        some = bool(self.destination) or self.topics
        _check(some, "destination", "must name a service or more; only with topics it need not")
        for each in self.destination:
            _check_name("destination", each)
        distinct = len(set(self.destination)) == len(self.destination)
        _check(distinct, "destination", "must not name a service twice")
        if self.stream:
            _check_name("stream", self.stream)

    @property
    def stream_name(self) -> str:
        """The name of the stream: both sides of a pair find the same one."""
        return self.stream or "-".join(sorted({self.app, *self.destination}))

    @property
    def address(self) -> str:
        """The URL with its credentials."""
        return reveal(self.url)

    @property
    def transport_options(self) -> dict[str, Any]:
        """The settings that only one kind of transport has, where they are given."""
        told: dict[str, Any] = {
            "user": self.user, "password": reveal(self.password), "credentials": self.credentials,
            "ca_file": self.ca_file, "cert_file": self.cert_file, "key_file": self.key_file,
            "monitor": self.monitor,
        }  # fmt: skip
        found = {name: value for name, value in told.items() if value}
        if self.inbox_prefix != "_INBOX":
            found["inbox"] = self.inbox_prefix
        if self.address.startswith(_NATS):
            found |= {"restricted": not self.auto_provision, "client_name": self.app}
        return found | ({} if self.sessions is None else {"sessions": self.sessions})

    def shown(self) -> dict[str, object]:
        """The settings for people and programs, without secrets."""
        hidden = {"url": hide(self.address), "password": "***" if self.password else ""}
        return {**asdict(self), **hidden, "stream": self.stream_name}


_DEFAULTS = {field.name: field.default for field in fields(Settings)}
_DEFAULTS["password"] = Secret("")
_OF_NATS = (
    "user", "password", "credentials", "ca_file", "cert_file", "key_file", "inbox_prefix",
    "monitor",
)  # fmt: skip
_POSITIVE = (
    "connect_attempts", "duplicate_window", "publish_attempts", "payload_bytes_max", "max_deliver",
    "lanes", "relay_batch", "poll_seconds", "outbox_attempts", "keep_sent", "keep_seen",
    "relay_overdue",
)  # fmt: skip

# As JetStream Bridge has them, where it has them.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "development": {
        "max_deliver": 3, "ack_wait": 10.0, "delays": (1.0, 2.0, 5.0), "health_seconds": 1.0,
    },
    "test": {
        "connect_attempts": 2, "connect_delay": 0.1, "ack_wait": 5.0, "max_deliver": 2,
        "delays": (0.1, 0.2), "health_seconds": 0.0, "poll_seconds": 0.05,
    },
    "staging": {
        "max_deliver": 3, "ack_wait": 15.0, "delays": (1.0, 5.0, 15.0),
    },
    "production": {"connect_attempts": 5},
    "high_throughput": {
        "connect_attempts": 5, "relay_batch": 1_000, "delete_sent": True, "keep_sent": 3_600.0,
        "poll_seconds": 0.25,
    },
    "maximum_reliability": {
        "connect_attempts": 10, "connect_delay": 5.0, "max_deliver": 10, "ack_wait": 60.0,
        "delays": (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_200.0, 1_800.0),
        "strict_order": True, "keep_seen": 30 * 86_400.0, "keep_payload": True,
    },
}  # fmt: skip


def make_settings(preset: str = "", **given: Any) -> Settings:
    """Makes settings from a preset and what differs from it. Raises ConfigurationError."""
    if preset and preset not in PRESETS:
        raise ConfigurationError(f"There is no preset {preset!r}; there are {', '.join(PRESETS)}.")
    known = {field.name for field in fields(Settings)}
    for name in given:
        if name not in known:
            raise ConfigurationError(f"{name} is no setting of a bridge; check its spelling.")
    return Settings(**{**PRESETS.get(preset, {}), **given})


def read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns the settings, and `preset` and `database`, of the variables POSTHOUSE_BRIDGE_*.

    Raises ConfigurationError.
    """
    kinds = {field.name: field.type for field in fields(Settings)}
    found: dict[str, Any] = {}
    for variable, text in environment.items():
        if not variable.startswith(PREFIX) or not text:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name in ("preset", "database"):
            found[name] = text
        elif name not in kinds:
            raise ConfigurationError(f"{variable} is no setting of a bridge; check its spelling.")
        else:
            found[name] = _read(variable, kinds[name], text)
    return found


def _read(variable: str, kind: Any, text: str) -> Any:
    """Returns a text as what its field holds."""
    try:
        if kind is bool:
            return _SWITCHES[text.lower()]
        if kind is int:
            return int(text)
        if kind is float:
            return float(text)
        if get_origin(kind) is tuple:
            inner = get_args(kind)[0]
            return tuple(inner(part.strip()) for part in text.split(",") if part.strip())
    except (KeyError, ValueError):
        raise ConfigurationError(f"{variable} cannot be {text!r}.") from None
    return text


_SWITCHES = {
    "true": True, "1": True, "yes": True, "on": True,
    "false": False, "0": False, "no": False, "off": False,
}  # fmt: skip


def hide(url: str) -> str:
    """Returns a URL without its credentials and its query."""
    parts = urlsplit(url)
    hosts = ",".join(host.rpartition("@")[2] for host in parts.netloc.split(","))
    return f"{parts.scheme}://{hosts}{parts.path}" if parts.scheme else "***"


def _check_kind(name: str, kind: Any, value: object) -> None:
    """Checks that a field holds what it is for. The value is not told: it may be secret."""
    origin = get_origin(kind)
    if origin is Literal:
        known = get_args(kind)
        _check(value in known, name, f"must be one of {', '.join(known)}")
    elif origin is tuple:
        inner = get_args(kind)[0]
        right = isinstance(value, tuple)
        right = right and all(_is_number(each, inner) for each in value)  # type: ignore[attr-defined]
        _check(right, name, f"must be a list of {'names' if inner is str else 'finite numbers'}")
    elif kind is float:
        _check(_is_number(value, float), name, "must be a finite number")
    elif kind is int:
        _check(type(value) is int, name, "must be a whole number")
    elif isinstance(kind, type):
        _check(isinstance(value, kind), name, f"must be of the type {kind.__name__}")


def _is_number(value: object, kind: type) -> bool:
    if kind is str:
        return isinstance(value, str)
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _check_name(field: str, name: str) -> None:
    _check(bool(name), field, "must be given: the name of a service, such as api")
    bad = any(sign in ".*>" or sign.isspace() or not sign.isprintable() for sign in name)
    _check(not bad, field, "must have no . * > blank or control character")
    _check(len(name) <= NAME_CHARS_MAX, field, f"must have at most {NAME_CHARS_MAX} characters")


def _check(right: bool, field: str, rule: str) -> None:
    if not right:
        raise ConfigurationError(f"{field} {rule}.")
