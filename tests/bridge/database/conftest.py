"""A database of its own for each test: of SQLite, PostgreSQL and MariaDB."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bridge.database.places import Place
from tests.bridge.database_servers import DatabaseServer, a_server


@pytest.fixture(scope="session")
def postgresql() -> Iterator[DatabaseServer]:
    with a_server("postgresql") as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[DatabaseServer]:
    with a_server("mariadb") as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A database with the tables of a bridge."""
    with _place(request, request.param, tmp_path) as made:
        yield made


@pytest.fixture
def sqlite(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """The same, for what does not differ between databases."""
    with _place(request, "sqlite", tmp_path) as made:
        yield made


def _place(request: pytest.FixtureRequest, kind: str, folder: Path) -> Place:
    server = None if kind == "sqlite" else request.getfixturevalue(kind)
    return Place(kind, server, folder)
