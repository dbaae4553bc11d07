"""The effects of a handler on an SQLite database, for the test kit."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from posthouse.bridge.errors import ConfigurationError

if TYPE_CHECKING:
    from posthouse.bridge.bridge import Bridge


@dataclass(frozen=True)
class Effects:
    """The effects of a handler: by name how often each happened, and the rows of each table."""

    counted: Counter[str]
    rows: Mapping[str, list[Mapping[str, Any]]]


class Snapshot:
    """The tables of a service, without the bridge's own; "" for a service without a database."""

    def __init__(self, path: str, prefix: str) -> None:
        self._path = path
        self._prefix = prefix

    @classmethod
    def of(cls, bridge: "Bridge") -> "Snapshot":
        """Raises ConfigurationError for a database that is no file of SQLite's."""
        if not bridge.has_storage:
            return cls("", "")
        url = bridge.storage.engine.url
        if not url.drivername.startswith("sqlite") or not url.database:
            raise ConfigurationError(
                "prove needs an SQLite database in a file, which it can put back; give the bridge"
                " one in the test."
            )
        return cls(url.database, bridge.settings.prefix)

    def take(self) -> bytes | None:
        """Returns the whole database."""
        if not self._path:
            return None
        with closing(sqlite3.connect(":memory:")) as copy:
            with closing(sqlite3.connect(self._path)) as there:
                there.backup(copy)
            return copy.serialize()

    def restore(self, content: bytes | None) -> None:
        """Puts a database back as it was."""
        if content is None:
            return
        with closing(sqlite3.connect(":memory:")) as copy:
            copy.deserialize(content)
            with closing(sqlite3.connect(self._path)) as there:
                copy.backup(there)

    def rows(self) -> dict[str, list[Mapping[str, Any]]]:
        """Returns the rows of each table of the service."""
        if not self._path:
            return {}
        with closing(sqlite3.connect(self._path)) as there:
            there.row_factory = sqlite3.Row
            names = there.execute("select name from sqlite_master where type = 'table'").fetchall()
            found: dict[str, list[Mapping[str, Any]]] = {}
            for (name,) in names:
                if name.startswith((self._prefix, "sqlite_")):
                    continue
                quoted = '"' + name.replace('"', '""') + '"'
                rows = there.execute(f"select * from {quoted}").fetchall()  # noqa: S608 (quoted)
                found[name] = [dict(row) for row in rows]
            return found


def without_chance(first: Effects, second: Effects) -> Callable[[Effects], Counter[str]]:
    """Returns what counts effects without the columns in which two equal runs differ.

    Such are times, random ids, and numbers that the database gives.
    """
    steady = {
        table: {
            column
            for column in (rows[0] if rows else ())
            if Counter(_text(row[column]) for row in rows)
            == Counter(_text(row.get(column)) for row in second.rows.get(table, ()))
        }
        for table, rows in first.rows.items()
    }

    def count(effects: Effects) -> Counter[str]:
        found = Counter(effects.counted)
        for table, rows in effects.rows.items():
            columns = steady.get(table)
            for row in rows:
                shown = ", ".join(
                    f"{name}={value!r}" for name, value in row.items()
                    if not columns or name in columns
                )  # fmt: skip
                found[f"the row of {table} ({shown})"] += 1
        return found

    return count


def _text(value: Any) -> str:
    return repr(value)
