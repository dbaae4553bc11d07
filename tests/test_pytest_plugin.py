"""The fixtures, in a pytest of their own."""

from importlib.metadata import entry_points

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import asyncio
from posthouse.client.messages import Message

def test_a_client_in_memory(posthouse_memory):
    async def use():
        async with posthouse_memory as client:
            await client.send_message("orders", Message(b"x"))
            found = await client.receive_message("orders", 1)
            assert found.body == b"x"
    asyncio.run(use())

def test_a_namespace_and_its_clock(posthouse_namespace, posthouse_clock):
    ask = posthouse_namespace.ask
    ask("PUT", "queues/orders", {"lock_ms": 5000})
    ask("POST", "queues/orders/messages", {"messages": [{"body": "x"}]})
    assert len(ask("POST", "queues/orders/receive", {"limit": 1})["messages"]) == 1
    assert ask("POST", "queues/orders/receive", {"limit": 1})["messages"] == []
    posthouse_clock(6)
    assert len(ask("POST", "queues/orders/receive", {"limit": 1})["messages"]) == 1

def test_another_namespace_is_empty(posthouse_namespace):
    assert posthouse_namespace.ask("GET", "queues")["queues"] == []

def test_the_broker_takes_an_azure_client(posthouse_broker):
    from azure.servicebus import ServiceBusClient, ServiceBusMessage
    posthouse_broker.ask("PUT", "queues/orders", {})
    text = posthouse_broker.azure_connection_string
    with ServiceBusClient.from_connection_string(text) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("x"))
    assert posthouse_broker.ask("GET", "queues/orders")["counts"]["active"] == 1
    assert posthouse_broker.client_url.startswith("posthouse://")
"""


def test_the_fixtures_are_there(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    # An installation that is older than the plugin does not know of it yet.
    known = entry_points(group="pytest11", name="posthouse")
    named = () if known else ("-p", "posthouse.pytest_plugin")
    result = pytester.runpytest_subprocess(*named, "-W", "error")
    result.assert_outcomes(passed=4)
