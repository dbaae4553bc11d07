"""What the clients of a cluster take for an answer, and what for the end of a leader."""

import asyncio
import json

import pytest

from tests.cluster.load import HttpClient
from tests.crash.history import History
from tests.crash.killing import Killed, Streams

Answers = list[tuple[int, object]]


def asked(answers: Answers) -> tuple[int, object]:
    """What a client is told by a server that gives these answers, one to each request."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while answers:
            await reader.readuntil(b"\r\n\r\n{}")
            status, body = answers.pop(0)
            content = json.dumps(body).encode()
            head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(content)}\r\n\r\n"
            writer.write(head.encode() + content)
        writer.close()

    async def main() -> tuple[int, object]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()

        async def connect() -> Streams:
            return await asyncio.open_connection(host, port)

        client = HttpClient(connect, History())
        try:
            return await client.ask("q/receive", {})
        finally:
            client.close()
            server.close()

    return asyncio.run(main())


def test_what_was_refused_for_now_is_asked_again() -> None:
    answers: Answers = [(503, {"code": "busy"}), (429, {"code": "quota-exceeded"}), (200, ["x"])]
    assert asked(answers) == (200, ["x"])
    assert not answers


@pytest.mark.parametrize("code", ["not-leader", "journal-lost"])
def test_a_leader_that_was_deposed_has_done_what_was_asked_or_not(code: str) -> None:
    with pytest.raises(Killed):
        asked([(503, {"code": code})])
