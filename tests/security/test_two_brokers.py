"""Two brokers in one process: what one has, knows and counts, the other has nothing of."""

import asyncio
import json
from base64 import b64encode
from pathlib import Path

from posthouse.broker.access import ROOT
from tests.dialects.pyqueue.client import frame
from tests.server.inside import Inside, inside

QUEUES = "/api/v1/namespaces/default/queues"


def root_key(broker: Inside) -> str:
    key = (broker.folder / "root-key").read_text().strip()
    return b64encode(f"{ROOT}:{key}".encode()).decode()


async def ask(
    broker: Inside, method: str, path: str, form: object = None, *, key: str
) -> tuple[int, bytes]:
    body = b"" if form is None else json.dumps(form).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Authorization: Basic {key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    answer = await broker.say(head.encode() + body)
    return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2]


async def metrics(broker: Inside) -> dict[str, float]:
    _, text = await ask(broker, "GET", "/metrics?entities=1", key=root_key(broker))
    lines = (line.rpartition(" ") for line in text.decode().splitlines() if line[:1] != "#")
    return {name: float(value) for name, _, value in lines if name}


def test_neither_of_two_brokers_in_one_process_sees_what_is_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with inside(tmp_path / "a", rate_address=20) as one, inside(tmp_path / "b") as two:
            ones, twos = root_key(one), root_key(two)
            assert ones != twos

            # Queues and messages.
            assert (await ask(one, "PUT", f"{QUEUES}/mine", {}, key=ones))[0] == 201
            sent = {"messages": [{"body": "x"}]}
            assert (await ask(one, "POST", f"{QUEUES}/mine/messages", sent, key=ones))[0] == 201
            assert (await ask(two, "GET", f"{QUEUES}/mine", key=twos))[0] == 404
            _, listed = await ask(two, "GET", QUEUES, key=twos)
            assert json.loads(listed)["queues"] == []

            # Keys, in three protocols.
            assert (await ask(two, "GET", QUEUES, key=ones))[0] == 401
            assert (await ask(one, "GET", QUEUES, key=twos))[0] == 401
            grants = [{"entity": "*", "rights": ["send"]}]
            form = {"name": "web", "grants": grants}
            status, made = await ask(one, "POST", "/api/v1/principals", form, key=ones)
            assert status == 201
            _, listed = await ask(two, "GET", "/api/v1/principals", key=twos)
            assert json.loads(listed)["principals"] == []
            auth = frame("AUTH", {"type": "apikey", "value": json.loads(made)["key"]})
            assert await say_and_hear(one, auth) == b"OK"
            assert await say_and_hear(two, auth) == b"ERROR"

            # Counts.
            first, second = await metrics(one), await metrics(two)
            assert any('"mine"' in name for name in first)
            assert not any('"mine"' in name for name in second)
            # With its dead-letter queue.
            assert (first["posthouse_queues"], second["posthouse_queues"]) == (2, 0)
            assert first["posthouse_position"] > second["posthouse_position"]

            # Limits: who asks one for too much may ask the other.
            statuses = [
                (await ask(one, "POST", f"{QUEUES}/mine/messages", sent, key=ones))[0]
                for _ in range(60)
            ]
            assert 429 in statuses
            assert (await ask(two, "PUT", f"{QUEUES}/theirs", {}, key=twos))[0] == 201

    asyncio.run(main())


async def say_and_hear(broker: Inside, data: bytes) -> bytes:
    """The first word of the answer, on a connection that would stay open."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    writer.write(data)
    word = await reader.readuntil(b" ")
    writer.close()
    return word.strip()


def test_who_guesses_keys_of_one_is_still_listened_to_by_the_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            inside(tmp_path / "a", auth_failures_max=3) as one,
            inside(tmp_path / "b", auth_failures_max=3) as two,
        ):
            wrong = b64encode(f"{ROOT}:wrong".encode()).decode()
            for _ in range(5):
                assert (await ask(one, "GET", QUEUES, key=wrong))[0] == 401
            assert (await ask(one, "GET", QUEUES, key=root_key(one)))[0] == 401
            assert (await ask(two, "GET", QUEUES, key=root_key(two)))[0] == 200

    asyncio.run(main())


def test_to_stop_one_leaves_the_other_serving(tmp_path: Path) -> None:
    async def main() -> None:
        async with inside(tmp_path / "b") as two:
            async with inside(tmp_path / "a") as one:
                assert (await ask(one, "GET", QUEUES, key=root_key(one)))[0] == 200
            assert (await ask(two, "GET", QUEUES, key=root_key(two)))[0] == 200

    asyncio.run(main())
