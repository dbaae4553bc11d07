"""PyQueue's settings, and its own names for settings in the environment and in files."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from posthouse.broker.access import KEY_CHARS_MAX, ROOT
from posthouse.broker.declared import KEY_CHARS_MIN, PrincipalDeclared, every_right
from posthouse.core.errors import InvalidArgument
from posthouse.core.recurrence import parse
from posthouse.dialects.dialect import FromFile, Named
from posthouse.dialects.settings import (
    BadSetting,
    as_flag,
    as_path,
    as_text,
    count,
    secret,
    setting,
    some_seconds,
)

API_USER = "api_key_user"
_NAMES = {
    "BROKER_HOST": "host", "BROKER_PORT": "port", "VISIBILITY_TIMEOUT": "pyqueue_lock",
    "MAX_RETRIES": "pyqueue_retries", "TLS_CERT_FILE": "tls_cert", "TLS_KEY_FILE": "tls_key",
    "QUEUE_MAX_DEPTH": "pyqueue_depth", "QUEUE_TTL": "pyqueue_ttl",
    "COMPRESSION_MIN_SIZE": "compress_from", "COMPRESSION_ENABLED": "compress",
    "SECURITY_ENABLED": "pyqueue_security", "API_KEY": "pyqueue_api_key",
    "JWT_SECRET": "jwt_secret",
}  # fmt: skip
# Sections of PyQueue's own file, beside `security`, which is read.
_SECTIONS = frozenset((
    "broker", "cluster", "compression", "journal", "metrics", "monitoring", "persistence",
    "prometheus", "queue", "queues", "raft", "rate_limit", "server", "tls", "worker",
))  # fmt: skip
# Names of PyQueue that no setting stands for, and what there is instead.
_INSTEAD = {
    "JOURNAL_FILE": "the journal is in the folder `data`",
    "TLS_ENABLED": "every port takes TLS; `tls_cert` and `tls_key` name a certificate of yours",
    "PROMETHEUS_ENABLED": "metrics are at /metrics on every port",
    "PROMETHEUS_PORT": "metrics are at /metrics on every port",
    "CLUSTER_NODES": "docs/cluster.md says how to run several nodes",
}
# Others use these names too. They are PyQueue's only beside the one that says so.
_GUARDED = frozenset(("API_KEY", "JWT_SECRET"))
_IN_SECURITY = {"enabled": "pyqueue_security", "api_key": "pyqueue_api_key",
                "jwt_secret": "jwt_secret"}  # fmt: skip


def _zone(value: object) -> str:
    try:
        parse("every 1 hour", as_text(value))
    except InvalidArgument:
        raise ValueError("must be a time zone such as Europe/Berlin") from None
    return as_text(value)


@dataclass(frozen=True)
class PyQueueSettings:
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


def check(settings: PyQueueSettings, dev: bool) -> None:
    """Raises BadSetting."""
    if settings.pyqueue_security is False and not dev:
        raise BadSetting(
            "without --dev every client has to say who it is; leave it out, or give --dev.",
            "pyqueue_security",
        )


def read_environment(environment: Mapping[str, str]) -> Iterator[Named]:
    """The settings that PyQueue's own names stand for."""
    secured = environment.get("SECURITY_ENABLED", "").lower() in ("true", "yes", "1")
    for name, ours in _NAMES.items():
        value = environment.get(name)
        if value and (secured or name not in _GUARDED):
            if ours == "compress":
                value = {"true": "gzip", "false": "none"}.get(value.lower(), value)
            yield Named(name, ours, value)


def read_file(content: Mapping[str, object], namespace: str) -> FromFile:
    """The section `security` becomes settings of ours, and principals. Raises ValueError."""
    for name, value in content.items():
        ours = _NAMES.get(name.upper())
        if ours not in (None, name):
            raise ValueError(f"{name} is PyQueue's name of a setting; write {ours}")
        if (instead := _INSTEAD.get(name.upper())) is not None:
            raise ValueError(f"{name} is PyQueue's name of a setting; leave it out: {instead}")
        if name in _SECTIONS and isinstance(value, dict):
            raise ValueError(
                f"{name} is a section of PyQueue's own file; write its settings without it, by our"
                " names, as in `pyqueue_lock: 10`, or set PyQueue's variables, as in"
                " VISIBILITY_TIMEOUT=10. docs/dialects/pyqueue.md lists both"
            )
    if "security" not in content:
        return FromFile(content)
    rest = dict(content)
    section = rest.pop("security")
    if not isinstance(section, dict):
        raise ValueError("security must hold settings by name")  # noqa: TRY004
    unknown = section.keys() - _IN_SECURITY.keys() - {"permissions"}
    if unknown:
        raise ValueError(f"security: there is no {min(map(str, unknown))!r}")
    for name, ours in _IN_SECURITY.items():
        if section.get(name) is not None:
            rest.setdefault(ours, section[name])
    permissions = _permissions(section.get("permissions", {}))
    principals = [PrincipalDeclared(n, None, every_right(namespace, p)) for n, p in permissions]
    return FromFile(rest, principals=tuple(principals))


def _permissions(given: object) -> list[tuple[str, list[str]]]:
    """Names of queues, or their beginnings and *, by principal. Raises ValueError."""
    try:
        found = msgspec.convert(given or {}, dict[str, list[str]])
    except msgspec.ValidationError as error:
        raise ValueError(f"permissions: {error}") from None
    for name, patterns in found.items():
        if name == ROOT or ":" in name or not patterns:
            raise ValueError(f"security.permissions of {name!r}: it must list queues, and have a"
                             " name without a colon that is not the root's")  # fmt: skip
    return list(found.items())


def principals(
    settings: PyQueueSettings, declared: Sequence[PrincipalDeclared], namespace: str
) -> Sequence[PrincipalDeclared]:
    """The one with the API key, who may do everything where nothing is said of anybody.

    Raises BadSetting.
    """
    if settings.pyqueue_api_key is None:
        return ()
    grants = next((each.grants for each in declared if each.name == API_USER), None)
    if grants is None and any(each.key is None for each in declared):
        raise BadSetting(f"security.permissions must say what {API_USER} may do.",
                         "pyqueue_api_key")  # fmt: skip
    grants = grants or every_right(namespace, ["*"])
    return (PrincipalDeclared(API_USER, settings.pyqueue_api_key, grants),)
