"""A listener that is closed while somebody comes: nobody is forgotten, and nobody waited for."""

import asyncio
import gc
import socket
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from posthouse.dialects.connections import Peer
from posthouse.server.config import Config, Port
from posthouse.server.listener import Connection, Limits, Listener, PortProtocol
from posthouse.server.serve import Server
from tests.waiting import turn

TURNS = 12  # of the loop; it takes fewer from accepting to an answer
LIMIT_SECONDS = 10


class Slow(asyncio.Protocol):
    """Answers a little after it was asked, and ends when that is done if it was told to."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._busy = self._told = False

    def data_received(self, data: bytes) -> None:
        self._busy = True
        asyncio.get_running_loop().call_later(0.02, self._answer)

    def _answer(self) -> None:
        assert self._connection.transport is not None
        self._busy = False
        self._connection.transport.write(b"answer")
        if self._told:
            self._connection.transport.close()

    def shutdown(self) -> None:
        assert self._connection.transport is not None
        self._told = True
        if not self._busy:
            self._connection.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.gone()


def make(connection: Connection) -> Peer:
    return cast(Peer, Slow(connection))


@pytest.mark.parametrize("turns", range(TURNS))
def test_who_comes_at_the_moment_of_a_stop_is_answered_or_sent_away(turns: int) -> None:
    async def main() -> None:
        listener = Listener([PortProtocol("slow", lambda _: True, make)], Limits())
        [(_, port, _)] = listener.open(["127.0.0.1"], [(0, "")])
        with socket.create_connection(("127.0.0.1", port)) as made:
            made.sendall(b"question")
            while not listener.accepted:
                await turn()
            for _ in range(turns):
                await turn()
            assert await listener.close(LIMIT_SECONDS)
            made.settimeout(LIMIT_SECONDS)
            with suppress(ConnectionResetError):
                assert made.recv(100) in (b"", b"answer")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_what_was_to_be_made_later_is_not_made_after_a_stop(tmp_path: Path) -> None:
    failed: list[Any] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failed.append(context))
        config = Config(memory=True, dev=True, host=("127.0.0.1",), port=(Port(0),), stop_limit=1)
        server = Server(config, tmp_path, lambda _: server.stop())
        assert await server.run() == 0
        await loop.shutdown_default_executor()  # as the process does at its end
        await asyncio.sleep(1.2)  # slept: the moment at which it was to be made has to pass

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    assert not failed
    assert not list(tmp_path.iterdir())


def test_nothing_keeps_a_server_that_was_stopped(tmp_path: Path) -> None:
    async def main() -> bool:
        config = Config(memory=True, dev=True, host=("127.0.0.1",), port=(Port(0),), stop_limit=1)
        server: Server | None = None

        def stop(_: str) -> None:
            assert server is not None
            server.stop()

        server = Server(config, tmp_path, stop)
        assert await server.run() == 0
        kept = weakref.ref(server)
        server = None
        await turn()  # what was cancelled ends
        gc.unfreeze()  # a server freezes what is there at its start
        gc.collect()
        return kept() is None

    def run() -> bool:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())

    with ThreadPoolExecutor(1) as thread:  # the main thread's loop knows it by its signals
        assert thread.submit(run).result()
