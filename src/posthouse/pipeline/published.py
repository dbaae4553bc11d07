"""A lake published as tables that other engines know: Iceberg and Delta, over the same files.

    LAKE/tables/iceberg.json      which catalog and table
    LAKE/tables/delta.json

A table has the Parquet files that the lake's manifests name, and no others. It is brought in line
after each range, before the broker is told that the range is archived, and before files that were
replaced are removed. A job that is stopped between a manifest and the table's commit leaves a table
without that range; the next job adds it. A commit has whole ranges only, so a reader of the table
never sees a part of one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from posthouse.pipeline.lake import Lake, LakeError, Manifest

FORMATS = ("iceberg", "delta")


class Table(Protocol):
    """A table over the files of a lake, whose paths are relative to the lake."""

    name: str

    def files(self) -> set[str]: ...

    def commit(self, added: Sequence[Manifest], removed: set[str]) -> None:
        """Adds the files of these ranges and removes others, both at once. Raises LakeError."""


class Tables:
    """The tables that a lake is published as. Raises LakeError."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        settings = {form: lake.setting(form) for form in FORMATS}
        self.settings = {form: each for form, each in settings.items() if each is not None}
        self._tables = [open_table(lake, form, said) for form, said in self.settings.items()]

    def sync(self) -> None:
        """Brings all tables in line with the manifests."""
        if self._tables:
            there = self._lake.manifests()
            for table in self._tables:
                sync(table, there)

    def add(self, manifest: Manifest) -> None:
        """Adds a range that follows those that the tables have."""
        for table in self._tables:
            table.commit([manifest], set())

    def check(self, there: Sequence[Manifest]) -> Iterator[str]:
        """Yields a sentence for each table that has other files than the manifests name."""
        wanted = {file.path for each in there for file in each.files}
        for table in self._tables:
            found = table.files()
            if found != wanted:
                yield (
                    f"{table.name} lacks {len(wanted - found)} of the lake's files and has"
                    f" {len(found - wanted)} others; archive brings it in line"
                )


def publish(lake: Lake, form: str, said: Mapping[str, str]) -> Table:
    """Publishes a lake as a table, and has the lake remember it. Raises LakeError."""
    there = lake.manifests()
    old = [each for each in there if each.is_old]
    if old and form == "iceberg":
        raise LakeError(
            f"{len(old)} ranges of {lake.where} were written by an earlier version, with times that"
            " Iceberg does not know. Rewrite them: posthouse pipeline compact"
        )
    table = open_table(lake, form, said)
    sync(table, there)
    lake.set(form, said)
    return table


def open_table(lake: Lake, form: str, said: Mapping[str, str]) -> Table:
    if form == "iceberg":
        from posthouse.pipeline.iceberg import IcebergTable

        return IcebergTable(lake, said)
    from posthouse.pipeline.delta import LakeDeltaTable

    return LakeDeltaTable(lake)


def sync(table: Table, there: Sequence[Manifest]) -> None:
    """Commits what the manifests name and the table has not, and the reverse."""
    found = table.files()
    wanted = {file.path for each in there for file in each.files}
    added = [each for each in there if any(file.path not in found for file in each.files)]
    if added or found - wanted:
        table.commit(added, found - wanted)
