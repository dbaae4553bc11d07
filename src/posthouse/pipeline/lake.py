"""The lake: every position of the feed, once, as Parquet, with manifests that are the truth.

    LAKE/data/date=2026-11-16/range=000000000001-000000250001/*.parquet
    LAKE/manifests/000000000001-000000250001.json
    LAKE/tables/iceberg.json                             where it is published, if it is

A range goes from its first position to before its end. A file counts if a manifest names it; what
none names was left behind by somebody who was stopped, and is swept away. A manifest is written as
a whole when all of its range is there, so the lake never holds a part of one.

It can be anywhere that PyArrow and Spark can both reach.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = 1
_DIGITS = 12
_TIMES = "spark.sql.parquet.outputTimestampType"
_DAY = re.compile(r"(?:^|/)date=(\d{4}-\d\d-\d\d)/")


class LakeError(Exception):
    """A problem with a lake, and what to do about it."""


@dataclass(frozen=True)
class File:
    """A Parquet file; its path is relative to the lake."""

    path: str
    rows: int
    size_bytes: int


@dataclass(frozen=True)
class Manifest:
    """A range that is there as a whole."""

    first: int
    end: int
    files: tuple[File, ...]
    written: str = ""  # when
    first_time: str | None = None  # of its rows; None where the files have no statistics of it
    last_time: str | None = None

    @property
    def is_old(self) -> bool:
        """Whether an earlier version wrote it, with times as INT96, which have no statistics."""
        return self.first_time is None

    @property
    def name(self) -> str:
        return range_name(self.first, self.end)

    @property
    def rows(self) -> int:
        return self.end - self.first

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.files)


def range_name(first: int, end: int) -> str:
    return f"{first:0{_DIGITS}}-{end:0{_DIGITS}}"


def day_of(path: str) -> str | None:
    """The day that the folder of a file is named for."""
    named = _DAY.search(path)
    return None if named is None else named[1]


@dataclass(frozen=True)
class Span:
    """A part of the feed, by positions and times: the lower bounds are inclusive, the upper not."""

    first: int | None = None
    end: int | None = None
    since: datetime | None = None
    until: datetime | None = None

    def meets(self, manifest: Manifest) -> bool:
        """Whether a range can have rows of this span."""
        last = None if manifest.last_time is None else datetime.fromisoformat(manifest.last_time)
        begin = None if manifest.first_time is None else datetime.fromisoformat(manifest.first_time)
        return not (
            (self.first is not None and manifest.end <= self.first)
            or (self.end is not None and manifest.first >= self.end)
            or (self.since is not None and last is not None and last < self.since)
            or (self.until is not None and begin is not None and begin >= self.until)
        )

    def meets_day(self, path: str) -> bool:
        """Whether a file can have rows of this span, by the day that its folder is named for."""
        named = day_of(path)
        if named is None:
            return True
        day = datetime.fromisoformat(named).replace(tzinfo=UTC)
        return not (
            (self.since is not None and day + timedelta(days=1) <= self.since)
            or (self.until is not None and day >= self.until)
        )

    def conditions(self) -> Iterator[str]:
        """Yields SQL conditions for the rows of this span."""
        for symbol, position in ((">=", self.first), ("<", self.end)):
            if position is not None:
                yield f"position {symbol} {int(position)}"
        for symbol, moment in ((">=", self.since), ("<", self.until)):
            if moment is not None:
                yield f"time {symbol} timestamp '{moment.astimezone(UTC).isoformat()}'"


WHOLE = Span()


@contextmanager
def int64_times(spark: "SparkSession") -> Iterator[None]:
    """Has Spark write times as INT64 with a zone, which other readers and statistics know.

    By default it writes INT96. It is a setting of the session, which may be somebody else's.
    """
    before = spark.conf.get(_TIMES)
    spark.conf.set(_TIMES, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        spark.conf.set(_TIMES, str(before))


class Lake:
    """Raises LakeError where it is not what it should be, and OSError."""

    def __init__(self, where: str) -> None:
        if "://" in where:
            self._files, self._root = fs.FileSystem.from_uri(where)
            self.where = where.rstrip("/")
        else:
            self._files = fs.LocalFileSystem()
            self._root = self.where = str(Path(where).expanduser().absolute())

    @property
    def data(self) -> str:
        """The path of the data, as it is given to Spark."""
        return f"{self.where}/data"

    @property
    def uri(self) -> str:
        """The address of the lake, with a scheme."""
        return self.where if "://" in self.where else f"file://{self.where}"

    # The content of the lake.

    def manifests(self) -> list[Manifest]:
        """The manifests in order. One that lies within another was replaced by it."""
        found = [self._read(each) for each in self._list(f"{self._root}/manifests", ".json")]
        kept: list[Manifest] = []
        for each in sorted(found, key=lambda m: (m.first, -m.end)):
            if kept and each.end <= kept[-1].end:
                continue
            if kept and each.first < kept[-1].end:
                raise LakeError(
                    f"The ranges {kept[-1].name} and {each.name} of {self.where} overlap: two have"
                    " written to it at a time. Remove the manifest of the later one, and archive"
                    " again."
                )
            kept.append(each)
        return kept

    def gaps(self) -> list[tuple[int, int]]:
        """The gaps between the archived ranges."""
        there = self.manifests()
        return [(a.end, b.first) for a, b in pairwise(there) if a.end < b.first]

    def end(self) -> int | None:
        """The position behind the last; None where there is nothing."""
        there = self.manifests()
        return there[-1].end if there else None

    def files(self, span: Span = WHOLE) -> list[File]:
        """The files that can have rows of a span, by manifests and folders alone."""
        return [
            file
            for each in self.manifests()
            if span.meets(each)
            for file in each.files
            if span.meets_day(file.path)
        ]

    def read(self, spark: "SparkSession", span: Span = WHOLE) -> "DataFrame":
        """The rows of a span, as the view `events` has them. Raises LakeError where it is empty."""
        files = self.files(span) or self.files()[:1]  # of which no row is taken, but the schema
        if not files:
            raise LakeError(f"There is nothing in {self.where}; run: posthouse pipeline archive")
        paths = [f"{self.where}/{file.path}" for file in files]
        rows = spark.read.option("basePath", self.data).parquet(*paths)
        for condition in span.conditions():
            rows = rows.where(condition)
        return rows

    # Writing.

    def add(self, first: int, end: int) -> Manifest:
        """Says that this range is there, after it has been counted. Raises LakeError.

        Where it was there before, files that are new replace those of its manifest.
        """
        name = range_name(first, end)
        path = f"{self._root}/manifests/{name}.json"
        is_there = self._files.get_file_info(path).type == fs.FileType.File
        before = {file.path for file in self._read(path).files} if is_there else set()
        found = [
            self._footer(each)
            for each in sorted(self._list(f"{self._root}/data", ".parquet"))
            if f"/range={name}/" in each and self._inside(each) not in before
        ]
        files = tuple(file for file, _ in found)
        rows = sum(each.rows for each in files)
        if rows != end - first:
            raise LakeError(f"The range {name} has {rows} rows in {self.where}, not {end - first}.")
        if isinstance(self._files, fs.LocalFileSystem):
            self._sync(files)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        times = [each for _, each in found if each is not None]
        known = len(times) == len(found)
        manifest = Manifest(
            first, end, files, now,
            min(each[0] for each in times).isoformat() if known else None,
            max(each[1] for each in times).isoformat() if known else None,
        )  # fmt: skip
        content = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1).encode()
        self._write(path, content)
        return manifest

    def sweep(self) -> int:
        """Removes what no manifest names; how many files that was."""
        there = self.manifests()
        named = {file.path for each in there for file in each.files}
        swept = 0
        for path in list(self._list(f"{self._root}/manifests", "")):
            if PurePosixPath(path).name not in {f"{each.name}.json" for each in there}:
                self._files.delete_file(path)
                swept += 1
        for path in list(self._list(f"{self._root}/data", "")):
            if self._inside(path) not in named:
                self._files.delete_file(path)
                swept += 1
        self._drop_empty(f"{self._root}/data")
        return swept

    def _drop_empty(self, folder: str) -> None:
        selector = fs.FileSelector(folder, allow_not_found=True)
        for each in self._files.get_file_info(selector):
            if each.type == fs.FileType.Directory:
                self._drop_empty(each.path)
                if not self._files.get_file_info(fs.FileSelector(each.path)):
                    self._files.delete_dir(each.path)

    def check(self, manifest: Manifest) -> list[str]:
        """Checks a range's files; returns a sentence for each problem."""
        wrong = []
        for file in manifest.files:
            try:
                found, _ = self._footer(f"{self._root}/{file.path}")
            except (OSError, ValueError) as error:
                wrong.append(f"{file.path} cannot be read: {error}")
                continue
            if found != file:
                wrong.append(f"{file.path} has {found.rows} rows and {found.size_bytes} bytes, not"
                             f" {file.rows} and {file.size_bytes}")  # fmt: skip
        return wrong

    def unnamed(self) -> list[str]:
        """Files that no manifest names."""
        named = {file.path for each in self.manifests() for file in each.files}
        paths = map(self._inside, self._list(f"{self._root}/data", ".parquet"))
        return sorted(path for path in paths if path not in named)

    def _sync(self, files: Sequence[File]) -> None:
        """Syncs files: once the manifest is there, the broker may forget their content."""
        paths = [Path(self._root) / each.path for each in files]
        folders = {folder for path in paths for folder in path.parents}
        inside = [each for each in folders if each.is_relative_to(self._root)]
        for path in (*paths, *inside):
            opened = os.open(path, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)

    # Tables that the lake is published as.

    def setting(self, name: str) -> dict[str, str] | None:
        """What was set under a name; None where nothing was."""
        path = f"{self._root}/tables/{name}.json"
        if self._files.get_file_info(path).type != fs.FileType.File:
            return None
        with self._files.open_input_stream(path) as file:
            content = file.read()
        try:
            return {str(key): str(value) for key, value in json.loads(content).items()}
        except (ValueError, AttributeError):
            raise LakeError(f"{path} is not a setting; remove it and publish again.") from None

    def set(self, name: str, said: Mapping[str, str]) -> None:
        self._write(f"{self._root}/tables/{name}.json", json.dumps(dict(said), indent=1).encode())

    def schema(self, manifest: Manifest) -> pa.Schema:
        """The columns of a range's files, each nullable: releases differ in what is never null."""
        with self._files.open_input_file(f"{self._root}/{manifest.files[0].path}") as file:
            return pa.schema([field.with_nullable(True) for field in pq.read_schema(file)])

    # Files.

    def _list(self, folder: str, ending: str) -> Iterator[str]:
        selector = fs.FileSelector(folder, allow_not_found=True, recursive=True)
        for each in self._files.get_file_info(selector):
            if each.type == fs.FileType.File and each.path.endswith(ending):
                yield each.path

    def _inside(self, path: str) -> str:
        return path.removeprefix(self._root).lstrip("/")

    def _footer(self, path: str) -> tuple[File, tuple[datetime, datetime] | None]:
        """A file, and its first and last time, by its footer alone."""
        with self._files.open_input_file(path) as file:
            metadata = pq.ParquetFile(file).metadata
            return File(self._inside(path), metadata.num_rows, file.size()), _times(metadata)

    def _read(self, path: str) -> Manifest:
        with self._files.open_input_stream(path) as file:
            content = file.read()
        try:
            said: dict[str, Any] = json.loads(content)
            if said["format"] > FORMAT:
                raise LakeError(f"{path} was written by a newer version; use that one.")
            files = tuple(File(**each) for each in said["files"])
            times = (said.get("first_time"), said.get("last_time"))
            return Manifest(int(said["first"]), int(said["end"]), files, said["written"], *times)
        except (ValueError, KeyError, TypeError) as error:
            raise LakeError(f"{path} is not a manifest: {error!r}.") from None

    def _write(self, path: str, content: bytes) -> None:
        """Writes a file as a whole or not at all."""
        self._files.create_dir(path.rpartition("/")[0])
        unfinished = f"{path}-new"
        with self._files.open_output_stream(unfinished) as file:
            file.write(content)
        self._files.move(unfinished, path)
        if isinstance(self._files, fs.LocalFileSystem):
            self._sync([File(self._inside(path), 0, 0)])


def _times(metadata: pq.FileMetaData) -> tuple[datetime, datetime] | None:
    """The first and last time in a file; None where it has no statistics of them."""
    names = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    if "time" not in names:
        return None
    groups = (metadata.row_group(at) for at in range(metadata.num_row_groups))
    columns = [group.column(names.index("time")) for group in groups]
    if not columns or not all(
        each.is_stats_set and each.statistics.has_min_max for each in columns
    ):
        return None
    moments = [m for each in columns for m in (each.statistics.min, each.statistics.max)]
    return min(moments).astimezone(UTC), max(moments).astimezone(UTC)
