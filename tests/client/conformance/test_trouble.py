"""Connections that are lost, keys that are wrong, servers that are not there."""

import asyncio
import gc

import pytest

from posthouse.client.errors import (
    AuthenticationFailed,
    CircuitOpen,
    ConnectionFailed,
    PermissionDenied,
    Timeout,
)
from posthouse.client.messages import Message
from posthouse.client.retry import FixedRetry
from tests.client.conformance.rigs import NOBODY, Rig, ServedRig, proxied

# Azure's SDK leaves a socket that was cut to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


async def test_a_connection_that_is_lost_is_made_again(rig: Rig) -> None:
    if not rig.remote:
        return
    queue = await rig.queue()
    async with proxied(rig) as proxy:
        client = rig.made(rig.config(port=proxy.port), FixedRetry(attempts=5, wait=0.2))
        await client.send_message(queue, Message(b"before"))
        found = await client.receive_message(queue, 5.0)
        assert found is not None
        proxy.cut()
        await client.send_message(queue, Message(b"after"))
        next_one = await client.receive_message(queue, 10.0)
        assert next_one is not None
        assert next_one.body in (b"before", b"after")  # as the lock of the first was lost or not
        await client.complete_message(next_one)
        await client.close()
    gc.collect()


async def test_connections_are_used_again(rig: Rig) -> None:
    if not isinstance(rig, ServedRig):
        return  # Moto's server ends each of them itself
    queue = await rig.queue()
    async with proxied(rig) as proxy:
        client = rig.made(rig.config(port=proxy.port))
        await client.send_message(queue, Message(b"x"))
        first = proxy.accepted
        for _ in range(20):
            await client.send_message(queue, Message(b"x"))
        assert proxy.accepted == first
        await asyncio.gather(*(client.send_message(queue, Message(b"x")) for _ in range(100)))
        assert proxy.accepted == first
        await client.close()


async def test_where_nobody_is_calls_fail_and_then_fail_at_once(rig: Rig) -> None:
    if not rig.remote:
        return
    client = rig.made(rig.config(port=NOBODY), breaker_failures=2, breaker_seconds=60)
    for _ in range(2):
        with pytest.raises((ConnectionFailed, Timeout)) as caught:
            await client.send_message("any", Message(b"x"))
        assert caught.value.is_transient
        assert caught.value.__cause__ is not None
    with pytest.raises(CircuitOpen):
        await client.send_message("any", Message(b"x"))


async def test_a_wrong_key_is_told(rig: Rig) -> None:
    if not rig.secured:
        return
    queue = await rig.queue()
    client = rig.made(rig.config(key="d3Jvbmc="))
    with pytest.raises(AuthenticationFailed) as caught:
        await client.send_message(queue, Message(b"x"))
    assert "d3Jvbmc" not in f"{caught.value!r} {caught.value.__cause__!r}"


async def test_only_what_is_not_allowed_is_refused(rig: Rig) -> None:
    if not isinstance(rig, ServedRig):
        return
    queue = await rig.queue()
    key = rig.principal(f"only-{queue}", queue, "send")
    client = rig.made(rig.config(key_name=f"only-{queue}", key=key))
    await client.send_message(queue, Message(b"x"))
    with pytest.raises(PermissionDenied):
        await client.receive_message(queue, 1.0)
    await client.send_message(queue, Message(b"y"))
