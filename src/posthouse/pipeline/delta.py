"""A lake as a Delta table, by delta-rs: the log in LAKE/_delta_log names the Parquet files."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from posthouse.pipeline.lake import Lake, LakeError, Manifest, day_of

if TYPE_CHECKING:
    from deltalake.transaction import AddAction, RemoveAction

DAY = "date"  # the column that only folders have


class LakeDeltaTable:
    """The table of a lake. It is created with the first range. Raises LakeError."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self.name = lake.where
        try:
            from deltalake import DeltaTable
        except ImportError:
            raise LakeError(
                "To publish a lake as Delta takes the package deltalake. Install it with:"
                " pip install 'posthouse[delta]'"
            ) from None
        with self._errors():
            exists = DeltaTable.is_deltatable(lake.where)
            self._table: DeltaTable | None = DeltaTable(lake.where) if exists else None

    def files(self) -> set[str]:
        if self._table is None:
            return set()
        with self._errors():
            return {uri.removeprefix(f"{self._lake.where}/") for uri in self._table.file_uris()}

    def commit(self, added: Sequence[Manifest], removed: set[str]) -> None:
        from deltalake import DeltaTable, Schema

        with self._errors():
            if self._table is None:
                schema = self._lake.schema(added[-1]).append(pa.field(DAY, pa.date32()))
                self._table = DeltaTable.create(self._lake.where, schema, partition_by=[DAY])
            elif added:
                known = {field.name for field in self._table.schema().fields}
                found = Schema.from_arrow(self._lake.schema(added[-1])).fields
                if new := [field for field in found if field.name not in known]:
                    self._table.alter.add_columns(new)
            actions: list[AddAction | RemoveAction] = [*self._adds(added), *self._removes(removed)]
            self._table.create_write_transaction(actions, "append", self._table.schema(), [DAY])

    def _adds(self, manifests: Sequence[Manifest]) -> "Iterator[AddAction]":
        from deltalake.transaction import AddAction

        now = int(time.time() * 1000)
        for manifest in manifests:
            for file in manifest.files:
                stats = json.dumps({"numRecords": file.rows})
                yield AddAction(file.path, file.size_bytes, _values(file.path), now, True, stats)

    def _removes(self, paths: set[str]) -> "Iterator[RemoveAction]":
        from deltalake.transaction import RemoveAction

        now = int(time.time() * 1000)
        for path in sorted(paths):
            yield RemoveAction(path, True, now, None, _values(path))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from deltalake.exceptions import DeltaError

        try:
            yield
        except DeltaError as error:
            raise LakeError(f"The Delta table {self.name} says: {error}") from error


def _values(path: str) -> dict[str, str | None]:
    return {DAY: day_of(path)}
