"""The lake: every position of the feed, once, as Parquet, with manifests that are the truth.

    LAKE/data/date=2026-11-16/range=000000000001-000000250001/*.parquet
    LAKE/manifests/000000000001-000000250001.json

A range goes from its first position to before its end. A file counts if a manifest names it; what
none names was left behind by somebody who was stopped, and is swept away. A manifest is written as
a whole when all of its range is there, so the lake never holds a part of one.

It can be anywhere that PyArrow and Spark can both reach.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pyarrow.fs as fs
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = 1
_DIGITS = 12


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

    def read(self, spark: "SparkSession", first: int = 0, end: int | None = None) -> "DataFrame":
        """The rows of these positions, as the view `events` has them. Raises LakeError."""
        files = [
            f"{self.where}/{file.path}"
            for each in self.manifests()
            if each.end > first and (end is None or each.first < end)
            for file in each.files
        ]
        if not files:
            raise LakeError(
                f"There is nothing of that in {self.where}; run: posthouse pipeline archive"
            )
        rows = spark.read.option("basePath", self.data).parquet(*files)
        rows = rows.where(f"position >= {int(first)}")
        return rows if end is None else rows.where(f"position < {int(end)}")

    # Writing.

    def add(self, first: int, end: int) -> Manifest:
        """Says that this range is there, after it has been counted. Raises LakeError."""
        name = range_name(first, end)
        files = tuple(self._counted(f"/range={name}/"))
        rows = sum(each.rows for each in files)
        if rows != end - first:
            raise LakeError(f"The range {name} has {rows} rows in {self.where}, not {end - first}.")
        if isinstance(self._files, fs.LocalFileSystem):
            self._sync(files)
        manifest = Manifest(first, end, files, datetime.now(UTC).isoformat(timespec="seconds"))
        content = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1).encode()
        self._write(f"{self._root}/manifests/{name}.json", content)
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
                found = self._file(f"{self._root}/{file.path}")
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

    # Files.

    def _list(self, folder: str, ending: str) -> Iterator[str]:
        selector = fs.FileSelector(folder, allow_not_found=True, recursive=True)
        for each in self._files.get_file_info(selector):
            if each.type == fs.FileType.File and each.path.endswith(ending):
                yield each.path

    def _inside(self, path: str) -> str:
        return path.removeprefix(self._root).lstrip("/")

    def _counted(self, within: str) -> Iterator[File]:
        for path in sorted(self._list(f"{self._root}/data", ".parquet")):
            if within in path:
                yield self._file(path)

    def _file(self, path: str) -> File:
        with self._files.open_input_file(path) as file:
            return File(self._inside(path), pq.ParquetFile(file).metadata.num_rows, file.size())

    def _read(self, path: str) -> Manifest:
        with self._files.open_input_stream(path) as file:
            content = file.read()
        try:
            said: dict[str, Any] = json.loads(content)
            if said["format"] > FORMAT:
                raise LakeError(f"{path} was written by a newer version; use that one.")
            files = tuple(File(**each) for each in said["files"])
            return Manifest(int(said["first"]), int(said["end"]), files, str(said["written"]))
        except (ValueError, KeyError, TypeError) as error:
            raise LakeError(f"{path} is not a manifest: {error!r}.") from None

    def _write(self, path: str, content: bytes) -> None:
        """Writes a file as a whole or not at all."""
        self._files.create_dir(f"{self._root}/manifests")
        unfinished = f"{path}-new"
        with self._files.open_output_stream(unfinished) as file:
            file.write(content)
        self._files.move(unfinished, path)
        if isinstance(self._files, fs.LocalFileSystem):
            self._sync([File(self._inside(path), 0, 0)])
