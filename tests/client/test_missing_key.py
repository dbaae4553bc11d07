"""A client without a key, at a broker that wants one."""

import asyncio
from pathlib import Path

import pytest

import posthouse
from posthouse import AuthenticationFailed, Message
from tests.server.running import running


def test_the_error_says_that_the_key_is_missing_and_where_to_get_it(tmp_path: Path) -> None:
    async def main(port: int) -> None:
        async with posthouse.create_client(
            f"posthouse://127.0.0.1:{port}", retry=posthouse.NoRetry()
        ) as client:
            for work in (
                client.send_message("orders", Message(b"x")), client.receive_message("orders", 1),
                client.accept_session("orders", timeout=1), client.peek_messages("orders"),
                client.admin.ensure_queue("orders"),
            ):  # fmt: skip
                with pytest.raises(AuthenticationFailed) as caught:
                    await work
                for said in ("none was given", f"NAME:KEY@127.0.0.1:{port}", "root-key"):
                    assert said in str(caught.value)

    with running("--data", str(tmp_path)) as broker:
        asyncio.run(main(broker.port))


def test_a_wrong_key_is_another_error(tmp_path: Path) -> None:
    async def main(port: int) -> None:
        url = f"posthouse://RootManageSharedAccessKey:wrong@127.0.0.1:{port}"
        client = posthouse.create_client(url, retry=posthouse.NoRetry())
        for work in (client.send_message("orders", Message(b"x")), client.admin.queues()):
            with pytest.raises(AuthenticationFailed) as caught:
                await work
            assert "none was given" not in str(caught.value)
        await client.close()

    with running("--data", str(tmp_path)) as broker:
        asyncio.run(main(broker.port))
