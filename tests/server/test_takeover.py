"""A server whose journal another broker takes over."""

import asyncio
import json
import logging
from pathlib import Path

import pytest

from posthouse.broker.clock import VirtualClock
from posthouse.broker.engine import Engine
from posthouse.server.config import Config, Port
from posthouse.server.serve import Server
from posthouse.store.memory import MemoryStore


async def _asked(port: int, method: str, path: str, body: object = None) -> tuple[int, str]:
    """Status and body of an answer; the connection is closed behind it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
    writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    await writer.wait_closed()
    start, _, content = answer.partition(b"\r\n\r\n")
    return int(start.split()[1]), content.decode()


def test_a_server_that_is_deposed_tells_who_waits_and_stops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        ready = asyncio.Event()
        config = Config(
            memory=True, dev=True, auto_create=True, host=("127.0.0.1",), port=(Port(0),)
        )
        server = Server(config, tmp_path, lambda _: ready.set())
        serving = asyncio.create_task(server.run())
        await asyncio.wait_for(ready.wait(), 20)
        [port] = server.ports
        queue, message = "/api/v1/namespaces/default/queues/q", {"messages": [{"body": "one"}]}
        status, _ = await _asked(port, "POST", f"{queue}/messages", message)
        assert status < 300
        waiting = asyncio.create_task(
            _asked(port, "POST", f"{queue}%2F$dead/receive", {"wait_ms": 20_000})
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PING 2 {}")
        await reader.readexactly(4)
        await asyncio.sleep(0.1)  # slept: the receive waits by then
        store = server._broker.store
        assert isinstance(store, MemoryStore)
        other = await Engine.open(MemoryStore(journal=store.journal), VirtualClock(), 7)
        task = json.dumps({"queue_name": "q", "payload": {"n": 1}}).encode()
        writer.write(b"PUSH %d " % len(task) + task)
        status, text = await waiting
        assert status == 503
        assert "another broker has taken over" in text
        told = await asyncio.wait_for(reader.read(), 20)
        assert b"ERROR" in told
        assert b"Another broker has taken over" in told
        writer.close()
        assert await asyncio.wait_for(serving, 30) == 74
        assert other.view.messages.ready("default", "q", 10, 0) == [1]
        await other.close()

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    lines = [each.message for each in caplog.records if "another broker" in each.message]
    assert lines == [
        "This broker writes no more: another broker has taken over this journal, with epoch 2.",
        "The broker stops: another broker has taken over this journal, with epoch 2. What was not"
        " acknowledged may be done or not; clients go on with the other broker.",
    ]
