"""A lake as an Iceberg table, by PyIceberg: the Parquet files are registered where they are.

The files have no field ids. The table's schema has them, and its name mapping
(`schema.name-mapping.default`) tells which column is which, as for any table that was migrated.
Rows are partitioned by the day of their time, which the lake's folders are too.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa

from posthouse.pipeline.lake import Lake, LakeError, Manifest

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction

CATALOG, TABLE = "posthouse", "posthouse.events"
SNAPSHOTS_KEPT = 100  # twice as many are there before the older ones are removed
PROPERTIES = {
    # An archive commits every few seconds: without these its metadata would only ever grow.
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
_RANGE = re.compile(r"/range=(\d+)-(\d+)/")


def settings(lake: Lake, catalog: str | None, table: str | None) -> dict[str, str]:
    """The settings of a table: its name, and where its catalog is. Raises LakeError.

    A catalog is sqlite:///PATH, the URL of a REST catalog, or the name of one that PyIceberg's
    configuration describes. Secrets are not among them: PyIceberg has them in its own.
    """
    name = table or TABLE
    if len(name.split(".")) < 2 or not all(name.split(".")):
        raise LakeError(f"A table is named NAMESPACE.TABLE, like {TABLE}, not {name!r}.")
    if catalog is None:
        if "://" in lake.where:
            raise LakeError(
                f"{lake.where} is not on this machine: name the catalog that its readers use, like"
                " --catalog https://catalog.example"
            )
        catalog = f"sqlite:///{lake.where}/iceberg/catalog.db"
    if "://" not in catalog:
        return {"catalog": catalog, "table": name}
    if urlsplit(catalog).password is not None:
        raise LakeError(
            "A catalog's password would be kept with the lake. Leave it out of --catalog, and set"
            " PYICEBERG_CATALOG__POSTHOUSE__CREDENTIAL or PYICEBERG_CATALOG__POSTHOUSE__TOKEN."
        )
    return {"catalog": CATALOG, "uri": catalog, "table": name}


class IcebergTable:
    """The table of a lake. It is created with the first range. Raises LakeError."""

    def __init__(self, lake: Lake, said: Mapping[str, str]) -> None:
        self._lake, self.said = lake, said
        self.name = said["table"]
        with self._errors():
            self._catalog: Catalog = self._load()
            exists = self._catalog.table_exists(self.name)
            self._table = self._catalog.load_table(self.name) if exists else None

    def files(self) -> set[str]:
        if self._table is None:
            return set()
        with self._errors():
            paths = [task.file.file_path for task in self._table.scan().plan_files()]
        others = [path for path in paths if not path.startswith(f"{self._lake.uri}/")]
        if others:
            raise LakeError(
                f"The table {self.name} has files that are not in {self._lake.where}, such as"
                f" {others[0]}. Give this lake another table: --table NAMESPACE.TABLE"
            )
        return {path.removeprefix(f"{self._lake.uri}/") for path in paths}

    def commit(self, added: Sequence[Manifest], removed: set[str]) -> None:
        with self._errors():
            schema = self._lake.schema(added[-1]) if added else None
            if self._table is None:
                assert schema is not None
                self._table = self._create(schema)
            with self._table.transaction() as change:
                if schema is not None:
                    change.update_schema().union_by_name(schema).commit()
                self._remove(change, removed)
                paths = [f"{self._lake.uri}/{file.path}" for each in added for file in each.files]
                if paths:
                    ends = str(max(each.end for each in added))
                    change.add_files(
                        paths, snapshot_properties={"posthouse.end": ends},
                        check_duplicate_files=False,
                    )  # fmt: skip
            if removed:
                self._expire(1)  # earlier ones have files that are about to be removed
            elif len(self._table.metadata.snapshots) > 2 * SNAPSHOTS_KEPT:
                self._expire(SNAPSHOTS_KEPT)

    def _create(self, schema: pa.Schema) -> "Table":
        from pyiceberg.transforms import DayTransform

        namespace = self.name.rpartition(".")[0]
        self._catalog.create_namespace_if_not_exists(namespace)
        with self._catalog.create_table_transaction(
            self.name, schema, properties=PROPERTIES
        ) as change, change.update_spec() as spec:  # fmt: skip
            spec.add_field("time", DayTransform(), "day")
        return self._catalog.load_table(self.name)

    def _remove(self, change: "Transaction", paths: set[str]) -> None:
        """Removes ranges. Their files have no other rows, so nothing is rewritten."""
        ranges = {found.groups() for path in paths if (found := _RANGE.search(path))}
        each = (f"(position >= {int(a)} and position < {int(b)})" for a, b in sorted(ranges))
        if ranges:
            change.delete(" or ".join(each))

    def _expire(self, kept: int) -> None:
        """Removes all but the newest snapshots, and the metadata files that only they have."""
        assert self._table is not None
        io = self._table.io
        snapshots = sorted(self._table.metadata.snapshots, key=lambda each: each.timestamp_ms)
        gone, left = snapshots[:-kept], snapshots[-kept:]
        used = {each.manifest_path for some in left for each in some.manifests(io)}
        unused = {each.manifest_path for some in gone for each in some.manifests(io)} - used
        self._table.maintenance.expire_snapshots().by_ids([e.snapshot_id for e in gone]).commit()
        for path in (*unused, *(each.manifest_list for each in gone)):
            io.delete(path)

    def _load(self) -> "Catalog":
        from pyiceberg.catalog import load_catalog

        uri = self.said.get("uri")
        if uri is None:
            return load_catalog(self.said["catalog"])
        given = {"uri": uri}
        if uri.startswith("sqlite:///"):
            path = Path(uri.removeprefix("sqlite:///"))
            path.parent.mkdir(parents=True, exist_ok=True)
            given |= {"type": "sql", "warehouse": f"file://{path.parent}"}
        elif uri.startswith(("http://", "https://")):
            given["type"] = "rest"
        return load_catalog(self.said["catalog"], **given)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turns the errors of PyIceberg and of what it asks into sentences."""
        where = self.said.get("uri", self.said["catalog"])
        try:
            yield
        except _Expected.kinds as error:
            said = str(error).strip().partition("\n")[0] or type(error).__name__
            raise LakeError(f"The catalog {where} says: {said}") from error


class _Kinds:
    """The exceptions that PyIceberg, SQLAlchemy and Requests raise."""

    @cached_property
    def kinds(self) -> tuple[type[Exception], ...]:
        try:
            import requests
            import sqlalchemy.exc
            from pyiceberg import exceptions
        except ImportError:
            raise LakeError(
                "To publish a lake as Iceberg takes PyIceberg. Install it with:"
                " pip install 'posthouse[iceberg]'"
            ) from None
        named: list[Any] = [each for each in vars(exceptions).values() if isinstance(each, type)]
        mine = [each for each in named if issubclass(each, Exception)]
        return (*mine, sqlalchemy.exc.SQLAlchemyError, requests.RequestException, ValueError)


_Expected = _Kinds()
