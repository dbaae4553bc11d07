"""The kinds of stores there are, each with the word that names it.

    file:DIR        segments in a folder, as in the data folder (file.py)
    sqlite:FILE     a file of SQLite (sqlite.py)
    jsonl:DIR       lines of JSON in a folder (jsonl.py)
    redis://HOST    a stream in Redis (redis.py)
    nats://HOSTS    a stream in NATS JetStream, for the nodes of a cluster (replicated.py)

A kind is imported when it is used. Who adds one adds it to `KINDS`, and nothing else.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from posthouse.store import Store
from posthouse.store.alone import check_of_no_node, note_alone
from posthouse.store.backend import Backend, BackendReading, BackendStore
from posthouse.store.file import INTERVAL_MS, SEGMENT_BYTES, Durability, FileStore
from posthouse.store.frames import Frame


@dataclass(frozen=True)
class StoreUrl:
    """The word that names a store. Its text has no secrets, and no query, which may be one."""

    kind: str
    rest: str = field(repr=False)  # behind the colon

    def __str__(self) -> str:
        if not self.rest.startswith("//"):
            return f"{self.kind}:{self.rest}"
        parts = urlsplit(self.rest)
        return f"{self.kind}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def full(self) -> str:
        """With its secrets."""
        return f"{self.kind}:{self.rest}"

    @property
    def path(self) -> Path:
        return Path(self.rest).expanduser()


def parse_url(value: object) -> StoreUrl:
    """Raises ValueError, which does not repeat the value."""
    kind, colon, rest = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not colon or not rest or kind not in KINDS or "\0" in rest:
        forms = ", ".join(known.form for known in KINDS.values())
        raise ValueError(f"must be one of {forms}")
    if KINDS[kind].is_address:
        try:
            parts = urlsplit(rest)
            is_good = bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_good = False
        if not is_good:
            raise ValueError(f"must have the form {KINDS[kind].form}")
    return StoreUrl(kind, rest)


@dataclass(frozen=True)
class Opening:
    """How a store is to be opened."""

    segment_bytes: int = SEGMENT_BYTES
    durability: Durability = "fsync"
    interval_ms: int = INTERVAL_MS
    read_only: bool = False
    alone: bool = False  # also where it is a node's folder, which can be none any more then


class Kind(NamedTuple):
    """One kind of store."""

    form: str  # how it is named
    open: Callable[[StoreUrl, Opening], Store]
    is_there: Callable[[StoreUrl], bool]
    backend: Callable[[StoreUrl, Opening], Backend] | None = None  # where it is one
    is_address: bool = False  # a host and a port, not a path


def _file(url: StoreUrl, how: Opening) -> Store:
    if not how.read_only and not how.alone:
        check_of_no_node(url.path)
    store = FileStore(
        url.path, segment_bytes=how.segment_bytes, durability=how.durability,
        interval_ms=how.interval_ms, read_only=how.read_only,
    )  # fmt: skip
    if how.alone:
        note_alone(url.path)
    return store


def _holds_journal(url: StoreUrl) -> bool:
    from posthouse.store.disk import Disk
    from posthouse.store.look import holds_journal

    return url.path.is_dir() and holds_journal(Disk(), url.path)


def _sqlite(url: StoreUrl, how: Opening) -> Backend:
    from posthouse.store.sqlite import SqliteBackend

    return SqliteBackend(
        url.path, segment_bytes=how.segment_bytes, durability=how.durability,
        read_only=how.read_only,
    )  # fmt: skip


def _has_lines(url: StoreUrl) -> bool:
    from posthouse.store.jsonl import is_there

    return is_there(url.path)


def _jsonl(url: StoreUrl, how: Opening) -> Backend:
    from posthouse.store.jsonl import JsonlBackend

    return JsonlBackend(url.path, segment_bytes=how.segment_bytes, read_only=how.read_only)


def _redis(url: StoreUrl, how: Opening) -> Backend:
    from posthouse.store.redis import RedisBackend

    return RedisBackend(
        url.full, str(url), segment_bytes=how.segment_bytes, durability=how.durability,
        interval_ms=how.interval_ms, read_only=how.read_only,
    )  # fmt: skip


def _is_in_redis(url: StoreUrl) -> bool:
    from posthouse.store.redis import is_there

    return is_there(url.full, str(url))


def _in_a_cluster(url: StoreUrl, _: Opening) -> Store:
    raise OSError(
        f"{url} is the journal of a cluster, and opened by its nodes alone; use the data folder of"
        " one of them, which holds all that is confirmed"
    )


def _on_backend(url: StoreUrl, how: Opening) -> BackendStore:
    make = KINDS[url.kind].backend
    assert make is not None
    backend = make(url, how)
    try:
        return BackendStore(
            backend, segment_bytes=how.segment_bytes, durability=how.durability,
            interval_ms=how.interval_ms, read_only=how.read_only,
        )  # fmt: skip
    except BaseException:
        backend.close()
        raise


_REDIS = "redis://[USER:PASSWORD@]HOST[:PORT][/DB][?journal=NAME]"
KINDS: dict[str, Kind] = {
    "file": Kind("file:DIR", _file, _holds_journal),
    "sqlite": Kind("sqlite:FILE", _on_backend, lambda url: url.path.is_file(), _sqlite),
    "jsonl": Kind("jsonl:DIR", _on_backend, _has_lines, _jsonl),
    "redis": Kind(_REDIS, _on_backend, _is_in_redis, _redis, is_address=True),
    "rediss": Kind(_REDIS.replace("redis", "rediss"), _on_backend, _is_in_redis, _redis,
                   is_address=True),
    "nats": Kind("nats://HOST[:PORT],...", _in_a_cluster, lambda _: False),
}  # fmt: skip


def open_store(url: StoreUrl, how: Opening | None = None) -> Store:
    """Opens a store, or makes one. Raises StoreError or OSError. It may block."""
    return KINDS[url.kind].open(url, how or Opening())


def is_there(url: StoreUrl) -> bool:
    """Whether there is such a store already. Raises StoreError or OSError."""
    return KINDS[url.kind].is_there(url)


def open_verifiable(url: StoreUrl, how: Opening) -> BackendStore:
    """Opens a store that is not a folder of segments. Raises StoreError or OSError."""
    return _on_backend(url, how)


class Frames(Protocol):
    """The frames of a journal, for a process that does nothing else."""

    def all_frames(self, first: int, end: int) -> Iterator[Frame]:
        """The frames that hold positions from `first` up to `end`. Raises NotThere or Damaged."""


def open_frames(url: StoreUrl) -> Frames:
    """The frames of a store that is not a folder of segments, while another process writes it."""
    make = KINDS[url.kind].backend
    assert make is not None
    return BackendReading(make(url, Opening(read_only=True)))
