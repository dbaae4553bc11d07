"""A PostgreSQL and a MariaDB on ports of their own, for tests of the bridge's tables.

One server serves all tests of a process; each test has a database of its own.
"""

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sql

from tests.waiting import until

HOME = Path(sys.executable).parent.parent  # .venv, with what `make` has unpacked
USER = "nobody"  # who runs a server where the tests are root's: neither server runs as root
PATIENCE_SECONDS = 60.0


def _program(name: str, folders: list[str], target: str) -> str:
    """A program of a server; where there is none the test is skipped, but not in CI."""
    found = shutil.which(name, path=os.pathsep.join([*folders, os.environ["PATH"], "/usr/sbin"]))
    if found is None:
        assert not os.environ.get("CI"), f"{name} is not installed"
        pytest.skip(f"{name} is not installed: make .venv/{target}")
    return found


def _as_user() -> list[str]:
    """The words before a command that is not to run as root."""
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam(USER)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def _given_to_user(folder: Path) -> None:
    """Lets the server's user write in a folder, and reach it."""
    if os.geteuid() == 0:
        user = pwd.getpwnam(USER)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid)


class DatabaseServer:
    """A server that can be killed, and started again with what it has kept."""

    kind = ""
    sync_driver, async_driver = "", ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._databases = 0
        self._install()
        self.start()

    def _install(self) -> None:
        raise NotImplementedError

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _environment(self) -> dict[str, str]:
        return dict(os.environ)

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_as_user(), *self._command()],
                stdout=subprocess.DEVNULL, stderr=log, env=self._environment(), cwd="/",
            )  # fmt: skip
        until(self._answers, f"{self.kind} answers", PATIENCE_SECONDS)

    def _answers(self) -> bool:
        log = (self.folder / "log").read_text(errors="replace")
        assert self._process.poll() is None, f"it has ended: {log[-2000:]}"
        engine = sql.create_engine(self.url(self.sync_driver), poolclass=sql.NullPool)
        try:
            with engine.connect():
                return True
        except sql.exc.DBAPIError:
            return False

    def url(self, driver: str, database: str = "") -> str:
        raise NotImplementedError

    def new_database(self) -> str:
        """Creates a database; returns its name."""
        self._databases += 1
        name = f"posthouse_{os.getpid()}_{self._databases}"
        self.execute(f"CREATE DATABASE {name}")
        return name

    def drop_database(self, name: str) -> None:
        raise NotImplementedError

    def execute(self, *statements: str) -> None:
        engine = sql.create_engine(
            self.url(self.sync_driver), poolclass=sql.NullPool, isolation_level="AUTOCOMMIT"
        )
        with engine.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def cut_connections(self, database: str) -> None:
        """Ends all connections to a database, at the server."""
        raise NotImplementedError

    def kill(self) -> None:
        """Kills the server, as a crash does."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()


class PostgreSQL(DatabaseServer):
    kind = "PostgreSQL"
    sync_driver, async_driver = "psycopg", "asyncpg"

    def _program(self, name: str) -> str:
        unpacked = sorted((HOME / "postgres-server").glob("usr/lib/postgresql/*/bin"))
        installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        return _program(name, [str(path) for path in (*installed, *unpacked)], "postgres")

    def _environment(self) -> dict[str, str]:
        libraries = ":".join(map(str, (HOME / "postgres-server/usr/lib").glob("*-linux-gnu*")))
        return {**os.environ, "LD_LIBRARY_PATH": libraries} if libraries else dict(os.environ)

    def _install(self) -> None:
        _given_to_user(self.folder)
        subprocess.run(
            [*_as_user(), self._program("initdb"), "-D", str(self.folder / "data"), "-U", "test",
             "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"],
            check=True, stdout=subprocess.DEVNULL, env=self._environment(), cwd="/",
        )  # fmt: skip

    def _command(self) -> list[str]:
        return [
            self._program("postgres"), "-D", str(self.folder / "data"), "-p", str(self.port),
            "-h", "127.0.0.1", "-k", "", "-c", "fsync=on", "-c", "max_connections=100",
        ]  # fmt: skip

    def url(self, driver: str, database: str = "postgres") -> str:
        return f"postgresql+{driver}://test@127.0.0.1:{self.port}/{database or 'postgres'}"

    def drop_database(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def cut_connections(self, database: str) -> None:
        self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE datname = '{database}' AND pid <> pg_backend_pid()"
        )

    def kill(self) -> None:
        """Kills the server and its backends, which would go on for a moment without it."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        backends = [int(pid) for pid in children.read_text().split()]
        super().kill()
        for pid in backends:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in backends), "they end")


class MariaDB(DatabaseServer):
    kind = "MariaDB"
    sync_driver, async_driver = "pymysql", "asyncmy"
    _unpacked = HOME / "mariadb-server"

    def _program(self, name: str) -> str:
        folders = [str(self._unpacked / "usr/bin"), str(self._unpacked / "usr/sbin")]
        return _program(name, folders, "mariadb")

    @property
    def _base(self) -> Path:
        return Path(self._program("mariadbd")).parent.parent

    def _environment(self) -> dict[str, str]:
        libraries = ":".join(map(str, (self._unpacked / "usr/lib").glob("*-linux-gnu*")))
        return {**os.environ, "LD_LIBRARY_PATH": libraries} if libraries else dict(os.environ)

    def _settings(self) -> list[str]:
        return [
            "--no-defaults", f"--basedir={self._base}", f"--datadir={self.folder / 'data'}",
            f"--lc-messages-dir={self._base / 'share/mysql'}",
            f"--plugin-dir={self._base / 'lib/mysql/plugin'}",
        ]  # fmt: skip

    def _install(self) -> None:
        (self.folder / "data").mkdir()
        _given_to_user(self.folder)
        made = subprocess.run(
            [*_as_user(), self._program("mariadb-install-db"), *self._settings(),
             "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"],
            check=False, capture_output=True, env=self._environment(), cwd="/",
        )  # fmt: skip
        assert made.returncode == 0, made.stdout.decode() + made.stderr.decode()

    def _command(self) -> list[str]:
        return [
            self._program("mariadbd"), *self._settings(), f"--port={self.port}",
            "--bind-address=127.0.0.1", f"--socket={self.folder / 's'}", "--skip-name-resolve",
            f"--pid-file={self.folder / 'pid'}",
        ]  # fmt: skip

    def url(self, driver: str, database: str = "") -> str:
        return f"mariadb+{driver}://root@127.0.0.1:{self.port}/{database}"

    def drop_database(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {name}")

    def cut_connections(self, database: str) -> None:
        engine = sql.create_engine(self.url(self.sync_driver), poolclass=sql.NullPool)
        with engine.connect() as connection:
            asked = "SELECT id FROM information_schema.processlist WHERE db = %s"
            for (number,) in connection.exec_driver_sql(asked, (database,)).all():
                try:
                    connection.exec_driver_sql(f"KILL {number}")
                except sql.exc.DBAPIError:  # it has ended
                    continue


KINDS = {"postgresql": PostgreSQL, "mariadb": MariaDB}


@contextmanager
def a_server(kind: str) -> Iterator[DatabaseServer]:
    """A server in a folder of its own, which its user can reach."""
    folder = Path(tempfile.mkdtemp(prefix=f"posthouse-{kind}-"))
    folder.chmod(0o755)
    try:
        server = KINDS[kind](folder)
        try:
            yield server
        finally:
            server.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
