"""The journal in one file of SQLite: `sqlite:FILE`.

    frames      number, first, count, epoch, kind, durable, time_ms, checksum, payload
    extents     number, first, begun_ms, before_bytes: the frame that begins each extent
    snapshots   position, header (see parts.py)
    parts       position, number, content

A sync is one transaction in SQLite's write-ahead log. With durability `fsync` SQLite syncs that log
at each commit (synchronous=FULL); else it does so at checkpoints (NORMAL), and `sync` does in
between. The checksum is that of the frame as it would be in a segment, begun from salt 0.

A file beside it, `FILE-lock`, keeps a second writer away for as long as this process lives. Others
may read meanwhile; they never hold a transaction for longer than a chunk takes, else the log could
not be begun anew and would grow.
"""

import os
import sqlite3
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from posthouse.store.backend import Extents, Mark
from posthouse.store.disk import Disk
from posthouse.store.errors import Damaged, Deposed, InUse, StoreError, TooNew
from posthouse.store.file import SEGMENT_BYTES, Durability
from posthouse.store.frames import HEADER_BYTES, PAYLOAD_BYTES_MAX, Frame, checksum_of
from posthouse.store.parts import PartSnapshots
from posthouse.store.snapshots import PART_BYTES_MAX

APPLICATION = 0x50484A4C  # "PHJL"
VERSION = 1
BUSY_SECONDS = 60.0  # for which a writer waits for another transaction
REMOVE_FRAMES = 64  # in one transaction
VACUUM_PAGES = 1_000  # given back in one transaction
_CELL_BYTES_MAX = max(PAYLOAD_BYTES_MAX, PART_BYTES_MAX) + (1 << 16)

_SCHEMA = """
create table frames (
    number integer primary key, first integer not null, count integer not null,
    epoch integer not null, kind integer not null, durable integer not null,
    time_ms integer not null, checksum integer not null, payload blob not null
) strict;
create table extents (
    number integer primary key, first integer not null, begun_ms integer not null,
    before_bytes integer not null
) strict;
create table snapshots (position integer primary key, header blob not null) strict;
create table parts (
    position integer not null, number integer not null, content blob not null,
    primary key (position, number)
) strict;
"""
_FIELDS = "epoch, number, first, count, durable, time_ms, payload, kind, checksum"


class NotOurs(StoreError):
    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is not a journal of Posthouse; name another file.")


class SqliteBackend:
    """Opens a file, or makes one. Raises InUse, NotOurs, TooNew, Damaged or OSError.

    With `read_only` the frames are left as they are; snapshots can be saved.
    """

    is_shared = False

    def __init__(
        self,
        path: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        durability: Durability = "fsync",
        read_only: bool = False,
        disk: Disk | None = None,
    ) -> None:
        self._path = path
        self._disk = disk or Disk()
        self._segment_bytes = segment_bytes
        self._log: int | None = None  # the write-ahead log, to be synced
        self._lock: int | None = None
        if not read_only:
            self._disk.make_folder(path.parent)
            self._lock = _locked(self._disk, path)
        self._syncs_itself = durability == "fsync"
        self._connections: list[sqlite3.Connection] = []
        try:
            if not read_only:
                self._make()
            self._writing = self._connect()
            self._reading = self._connect()
            self.extents = self.find()
            self.snapshots = PartSnapshots(self.name, _Parts(self.name, self._connect()))
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        return f"sqlite:{self._path}"

    def _make(self) -> None:
        """Makes the file for its owner alone; SQLite gives its own files the same rights."""
        flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW
        os.close(os.open(self._path, flags, 0o600))
        self._disk.sync_folder(self._path.parent)

    def _connect(self) -> sqlite3.Connection:
        with _damage_named(self.name):
            connection = sqlite3.connect(
                f"{self._path.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY_SECONDS,
                isolation_level=None, check_same_thread=False,
            )  # fmt: skip
            self._connections.append(connection)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _CELL_BYTES_MAX)
            connection.execute("pragma trusted_schema = off")
            self._check_version(connection)
            connection.execute(f"pragma synchronous = {'full' if self._syncs_itself else 'normal'}")
        return connection

    def _check_version(self, connection: sqlite3.Connection) -> None:
        [[application]] = connection.execute("pragma application_id")
        [[version]] = connection.execute("pragma user_version")
        [[tables]] = connection.execute("select count(*) from sqlite_schema")
        if (application, version, tables) == (0, 0, 0) and self._lock is not None:
            connection.execute("pragma auto_vacuum = incremental")
            connection.execute("pragma journal_mode = wal")
            connection.executescript(
                f"begin immediate; {_SCHEMA} pragma application_id = {APPLICATION};"
                f"pragma user_version = {VERSION}; commit"
            )
        elif application != APPLICATION:
            raise NotOurs(self._path)
        elif version > VERSION:
            raise TooNew(self.name, version, VERSION)

    def find(self) -> Extents:
        with _damage_named(self.name):
            connection = self._reading
            connection.execute("begin")  # all of it as it is at one moment
            try:
                marks = [Mark(*row) for row in connection.execute(
                    "select number, first, begun_ms, before_bytes from extents order by number"
                )]  # fmt: skip
                rows = connection.execute(
                    f"select {_FIELDS} from frames order by number desc limit 1"
                ).fetchall()
                if not rows:
                    return Extents(self._segment_bytes)
                begun = marks[-1] if marks else Mark(0, 0, 0, 0)
                [[size]] = connection.execute(
                    f"select sum({HEADER_BYTES} + length(payload)) from frames where number >= ?",
                    [begun.number],
                )
            finally:
                connection.execute("commit")
        last = self._frame(rows[0])
        if not begun.number or size is None:
            raise Damaged(self.name, last.number, "no extent begins before it", unit="frame")
        return Extents(
            self._segment_bytes, marks, last.without_payload(), begun.before_bytes + size
        )

    # Writing.

    def write(self, frames: Sequence[Frame]) -> None:
        if not frames:
            return
        sizes = [frame.size_bytes for frame in frames]
        marks = self.extents.begun_by(frames, sizes)
        with _failure_named(), self._transaction(self._writing) as connection:
            self._check_first(connection)
            connection.executemany(
                f"insert into frames ({_FIELDS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(f.epoch, f.number, f.first, f.count, f.durable, f.time_ms, f.payload, f.kind,
                  checksum_of(f)) for f in frames],
            )  # fmt: skip
            connection.executemany("insert into extents values (?, ?, ?, ?)", marks)
        self.extents.grow(marks, frames, sum(sizes))

    def _check_first(self, connection: sqlite3.Connection) -> None:
        """Raises Deposed where somebody else has written: the lock did not keep him away."""
        last = self.extents.last
        for number, epoch in connection.execute(
            "select number, epoch from frames order by number desc limit 1"
        ):
            if last is None or number != last.number or epoch != last.epoch:
                raise Deposed(epoch)

    def sync(self) -> None:
        if self._syncs_itself:
            return
        if self._log is None:
            self._log = os.open(f"{self._path}-wal", os.O_RDONLY | os.O_NOFOLLOW)
        self._disk.sync(self._log)

    def remove(self, before: int) -> bool:
        with _failure_named(), self._transaction(self._writing) as connection:
            connection.execute("delete from extents where number < ?", [before])
            removed = connection.execute(
                "delete from frames where number in"
                " (select number from frames where number < ? order by number limit ?)",
                [before, REMOVE_FRAMES],
            ).rowcount  # fmt: skip
        if removed == REMOVE_FRAMES:
            return True
        with _failure_named():
            if self._unused_bytes(self._writing) <= self._segment_bytes:  # to be used again
                return False
            self._writing.execute(f"pragma incremental_vacuum({VACUUM_PAGES})").fetchall()
        return True

    def _unused_bytes(self, connection: sqlite3.Connection) -> int:
        """The bytes of the file that hold nothing."""
        [[pages]] = connection.execute("pragma freelist_count")
        [[size]] = connection.execute("pragma page_size")
        return int(pages) * int(size)

    def free_bytes(self) -> int:
        """Half of what is free: all that is written stands in the log before it is in the file."""
        with _failure_named():
            unused = self._unused_bytes(self._writing)
        return self._disk.free(self._path.parent) // 2 + unused

    @contextmanager
    def _transaction(self, connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
        connection.execute("begin immediate")
        try:
            yield connection
            connection.execute("commit")
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback")
            raise

    # Reading.

    def first_of(self, number: int) -> int | None:
        with _damage_named(self.name):
            row = self._reading.execute("select first from frames where number = ?", [number])
            found: list[tuple[int]] = row.fetchall()
        return found[0][0] if found else None

    def frames(self, number: int, size_bytes: int) -> list[Frame]:
        found: list[Frame] = []
        with _damage_named(self.name):
            rows = self._reading.execute(
                f"select {_FIELDS} from frames where number >= ? order by number", [number]
            )
            for row in rows:
                found.append(self._frame(row))
                size_bytes -= found[-1].size_bytes
                if size_bytes <= 0:
                    break
            rows.close()
        return found

    def _frame(self, row: tuple[int, int, int, int, int, int, bytes, int, int]) -> Frame:
        """Raises Damaged."""
        frame = Frame(*row[:-1])
        try:
            is_sound = checksum_of(frame) == row[-1]
        except struct.error:
            is_sound = False
        if not is_sound:
            raise Damaged(self.name, frame.number, "it is not what was written", unit="frame")
        return frame

    def check(self) -> None:
        with _damage_named(self.name):
            [first, *_] = self._reading.execute("pragma quick_check(1)").fetchall()
        if first != ("ok",):
            raise Damaged(self.name, 0, f"SQLite finds {first[0]!r}", unit="")

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        for file in (self._log, self._lock):
            if file is not None:
                self._disk.close(file)
        self._log = self._lock = None


class _Parts:
    """Snapshots in their tables. Each part is a transaction, so that frames come in between."""

    def __init__(self, name: str, connection: sqlite3.Connection) -> None:
        self._name, self._connection = name, connection
        self._one = threading.Lock()  # threads use the connection in turn

    def _rows(self, words: str, *values: object) -> list[tuple[int, bytes]]:
        with self._one, _damage_named(self._name):
            return self._connection.execute(words, values).fetchall()

    def headers(self) -> dict[int, bytes]:
        return dict(self._rows("select position, header from snapshots"))

    def put_header(self, end: int, header: bytes) -> None:
        with self._one, _failure_named():
            self._connection.execute(
                "insert or replace into snapshots values (?, ?)", [end, header]
            )

    def part(self, end: int, number: int) -> bytes | None:
        found = self._rows(
            "select number, content from parts where position = ? and number = ?", end, number
        )
        return found[0][1] if found else None

    def put_part(self, end: int, number: int, part: bytes) -> None:
        with self._one, _failure_named():
            self._connection.execute("insert into parts values (?, ?, ?)", [end, number, part])

    def remove(self, keep: set[int]) -> None:
        with self._one, _failure_named():
            for table in ("snapshots", "parts"):
                found = self._connection.execute(f"select distinct position from {table}")
                for [end] in found.fetchall():
                    if end not in keep:
                        self._connection.execute(f"delete from {table} where position = ?", [end])


def _locked(disk: Disk, path: Path) -> int:
    try:
        return disk.lock(path.with_name(f"{path.name}-lock"))
    except InUse:
        raise InUse(path) from None


@contextmanager
def _damage_named(name: str) -> Iterator[None]:
    """What SQLite cannot read is damaged."""
    try:
        yield
    except sqlite3.Error as error:
        raise Damaged(name, 0, f"SQLite cannot read it ({error})", unit="") from error


@contextmanager
def _failure_named() -> Iterator[None]:
    """What SQLite cannot write has failed as a file's write does."""
    try:
        yield
    except sqlite3.Error as error:
        raise OSError(f"SQLite: {error}") from error
