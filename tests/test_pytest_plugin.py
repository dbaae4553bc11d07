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

NAMES = """
import asyncio
from urllib.parse import urlsplit

def test_an_azure_client_reaches_the_namespace_by_a_name_that_resolves(posthouse_namespace):
    from azure.servicebus import ServiceBusClient, ServiceBusMessage
    posthouse_namespace.ask("PUT", "queues/orders", {})
    text = posthouse_namespace.azure_connection_string
    parts = dict(part.split("=", 1) for part in text.split(";"))
    assert urlsplit(parts["Endpoint"]).hostname == "localhost"
    with ServiceBusClient.from_connection_string(text) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("x"))
    assert posthouse_namespace.ask("GET", "queues/orders")["counts"]["active"] == 1

def test_the_client_reaches_the_namespace(posthouse_namespace):
    from posthouse import Message, create_client
    posthouse_namespace.ask("PUT", "queues/orders", {})
    async def use():
        async with create_client(posthouse_namespace.client_url) as client:
            await client.send_message("orders", Message(b"x"))
    asyncio.run(use())
    assert posthouse_namespace.ask("GET", "queues/orders")["counts"]["active"] == 1
"""

REMOVED = """
import json
from urllib.request import urlopen

def names(broker):
    with urlopen(f"http://127.0.0.1:{broker.port}/api/v1/namespaces") as answer:
        return json.load(answer)["names"]

def test_a_namespace_with_messages_in_it(posthouse_namespace):
    posthouse_namespace.ask("PUT", "queues/orders", {})
    posthouse_namespace.ask("POST", "queues/orders/messages", {"messages": [{"body": "x"}]})

def test_a_namespace_that_fails(posthouse_namespace):
    raise ValueError

def test_a_namespace_that_the_test_removes(posthouse_namespace):
    posthouse_namespace.ask("DELETE")

def test_nothing_is_left_of_them(posthouse_broker):
    assert names(posthouse_broker) == ["default"]
"""

IMPORTED = """
import sys

def test_the_first_namespace_has_nothing_left_to_import(posthouse_broker, request):
    before = set(sys.modules)
    request.getfixturevalue("posthouse_namespace")
    assert {name for name in set(sys.modules) - before if "." in name} == set()
"""

FROZEN = """
import time
from contextlib import contextmanager
from datetime import datetime, timezone
import freezegun, pytest, time_machine

@contextmanager
def frozen(kind, moment):
    if kind == "freezegun":
        with freezegun.freeze_time(moment):
            yield
    else:
        with time_machine.travel(datetime.fromisoformat(moment + "+00:00"), tick=False):
            yield

@pytest.mark.parametrize("moment", ["2056-01-01T00:00:00", "2001-01-01T00:00:00"])
@pytest.mark.parametrize("kind", ["freezegun", "time-machine"])
def test_the_broker_s_time_goes_on(posthouse_namespace, posthouse_broker, kind, moment):
    ns, before_s = posthouse_namespace, time.time()
    ns.ask("PUT", "queues/orders", {})
    with frozen(kind, moment):
        assert abs(time.time() - before_s) > 1e8
        assert abs(posthouse_broker.ask("GET", "clock")["now_ms"] / 1000 - before_s) < 3600
        ns.ask("POST", "queues/orders/messages", {"messages": [{"body": "x", "delay_ms": 50}]})
        form = {"limit": 1, "wait_ms": 10_000}
        assert len(ns.ask("POST", "queues/orders/receive", form)["messages"]) == 1
        form["wait_ms"] = 50
        assert ns.ask("POST", "queues/orders/receive", form)["messages"] == []
    assert abs(posthouse_broker.ask("GET", "clock")["now_ms"] / 1000 - time.time()) < 3600
"""


def run(pytester: pytest.Pytester, tests: str) -> pytest.RunResult:
    pytester.makepyfile(tests)
    # An installation that is older than the plugin does not know of it yet.
    known = entry_points(group="pytest11", name="posthouse")
    named = () if known else ("-p", "posthouse.pytest_plugin")
    return pytester.runpytest_subprocess(*named, "-W", "error")


def test_the_fixtures_are_there(pytester: pytest.Pytester) -> None:
    run(pytester, TESTS).assert_outcomes(passed=4)


def test_clients_reach_a_namespace_from_its_connection_string_alone(
    pytester: pytest.Pytester,
) -> None:
    run(pytester, NAMES).assert_outcomes(passed=2)


def test_a_namespace_is_removed_after_its_test(pytester: pytest.Pytester) -> None:
    run(pytester, REMOVED).assert_outcomes(passed=3, failed=1)


def test_the_first_namespace_imports_nothing(pytester: pytest.Pytester) -> None:
    run(pytester, IMPORTED).assert_outcomes(passed=1)


def test_freezegun_and_time_machine_do_not_reach_the_broker(pytester: pytest.Pytester) -> None:
    run(pytester, FROZEN).assert_outcomes(passed=4)
