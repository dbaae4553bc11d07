"""A Redis on a port of its own, for tests of the store in one."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import until

UNPACKED = Path(sys.executable).parent.parent / "redis-server"  # by `make .venv/redis`


def program() -> str:
    """The server; where there is none the test is skipped, but not in CI."""
    found = shutil.which("redis-server", path=f"{UNPACKED}/usr/bin:{os.environ['PATH']}:/usr/sbin")
    if found is None:
        assert not os.environ.get("CI"), "redis-server is not installed"
        pytest.skip("redis-server is not installed: make .venv/redis")
    return found


class RedisServer:
    """A server that can be killed, and started again with what it has kept."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self._program, self._folder, self._flags = program(), folder, flags
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        libraries = ":".join(map(str, (UNPACKED / "usr/lib").glob("*-linux-gnu*")))
        self._process = subprocess.Popen(
            [self._program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
             "--appendonly", "yes", "--appendfsync", "always", "--dir", str(self._folder),
             *self._flags],
            stdout=subprocess.DEVNULL, env={**os.environ, "LD_LIBRARY_PATH": libraries},
        )  # fmt: skip
        until(self._answers, "Redis answers")

    def _answers(self) -> bool:
        assert self._process.poll() is None, "it has ended"
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(5) in (b"+PONG", b"-NOAU")
        except OSError:
            return False

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def a_server(folder: Path, *flags: str) -> Iterator[RedisServer]:
    server = RedisServer(folder, *flags)
    try:
        yield server
    finally:
        server.kill()
