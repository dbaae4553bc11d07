"""The fixtures, in a pytest of their own."""

from importlib.metadata import entry_points

import pytest

from tests.server.clustered import needs_nats

pytest_plugins = ["pytester"]

TESTS = """
import asyncio
import pytest
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

def test_it_is_quiet_when_all_is_settled(posthouse_namespace):
    ask = posthouse_namespace.ask
    ask("PUT", "queues/orders", {"lock_ms": 5000})
    ask("POST", "queues/orders/messages", {"messages": [{"body": "x"}]})
    [held] = ask("POST", "queues/orders/receive", {"limit": 1})["messages"]
    with pytest.raises(AssertionError, match="orders 1: locked"):
        posthouse_namespace.quiet(0.1)
    posthouse_namespace.quiet(locks=False)
    ask("POST", "queues/orders/complete", {"locks": [held["token"]]})
    posthouse_namespace.quiet()

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

NATS = """
import asyncio

def test_a_nats_server_keeps_what_was_published_when_it_is_killed(posthouse_nats):
    import nats
    async def use():
        client = await nats.connect(posthouse_nats.url)
        stream = client.jetstream()
        await stream.add_stream(name="shop", subjects=["orders"])
        await stream.publish("orders", b"x")
        await client.close()
        posthouse_nats.restart()
        client = await nats.connect(posthouse_nats.url)
        assert (await client.jetstream().stream_info("shop")).state.messages == 1
        await client.close()
    asyncio.run(use())

def test_another_test_has_streams_of_its_own(posthouse_nats):
    import nats
    async def use():
        client = await nats.connect(posthouse_nats.url)
        assert (await client.jetstream().account_info()).streams == 0
        await client.close()
    posthouse_nats.kill()
    posthouse_nats.start()
    asyncio.run(use())
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

CLOCKS = """
from datetime import timedelta
import pytest

def counts(ns, queue="orders"):
    return ns.ask("GET", f"queues/{queue}")["counts"]

def told(fired):
    return [(each.kind, each.queue, each.count) for each in fired]

def send(ns, *delays_ms):
    messages = [{"body": "x", "delay_ms": each} for each in delays_ms]
    ns.ask("POST", "queues/orders/messages", {"messages": messages})

@pytest.fixture
def ns(posthouse_namespace):
    posthouse_namespace.ask("PUT", "queues/orders", {"lock_ms": 5000})
    posthouse_namespace.clock.freeze()
    return posthouse_namespace

@pytest.mark.parametrize("by", [10, 10.0, "10s", "10000ms", timedelta(seconds=10)])
def test_a_clock_is_advanced(ns, by):
    begun = ns.clock.now
    send(ns, 10_000)
    assert told(ns.clock.advance(by)) == [("activated", "orders", 1)]
    assert ns.clock.now - begun == timedelta(seconds=10)

def test_what_is_no_duration_or_moment_is_told(ns):
    with pytest.raises(ValueError, match="500ms, 30s"):
        ns.clock.advance("soon")
    with pytest.raises(ValueError, match="no time zone"):
        ns.clock.to("2056-01-01T00:00")
    with pytest.raises(AssertionError, match="must not go back"):
        ns.clock.to("2001-01-01T00:00Z")

def test_a_clock_goes_from_one_event_to_the_next(ns, posthouse_clock):
    send(ns, 3_600_000, 7_200_000)
    assert told(posthouse_clock.next()) == [("activated", "orders", 1)]
    assert told(posthouse_clock.next(quiet=True)) == [("activated", "orders", 1)]
    assert posthouse_clock.next() == []

def test_a_clock_runs_until_a_condition_is_true(ns):
    send(ns, 1_000, 2_000, 3_600_000)
    fired = ns.clock.run_until(lambda: counts(ns)["active"] == 2)
    assert sum(each.count for each in fired) == 2
    with pytest.raises(AssertionError, match="nothing more is due"):
        ns.clock.run_until(lambda: False, timeout=0.1)

def test_what_does_not_happen_is_told(ns):
    with pytest.raises(AssertionError, match="completed in orders has happened 0 times of 1"):
        ns.clock.until("completed", "orders", timeout=0.1)

def test_a_clock_moves_by_itself_in_a_block(ns):
    send(ns, 3_600_000)
    with ns.clock.auto():
        ns.quiet()
    assert counts(ns)["active"] == 1
    assert ns.ask("GET", "clock")["auto"] is False

def test_who_does_not_come_is_told(ns):
    with pytest.raises(AssertionError, match="0 receivers of orders wait for messages, not 1"):
        ns.wait_for_receiver("orders", timeout=0.05)
"""

HANDLED = """
import threading, time
from datetime import timedelta
from azure.servicebus import ServiceBusClient, ServiceBusMessage

HOUR = timedelta(hours=1)

class Shop:
    \"\"\"Handles orders, fails, and tries again an hour later, three times in all.\"\"\"

    def __init__(self, connection_string):
        self.client = ServiceBusClient.from_connection_string(connection_string)
        self.handled, self.errors = [], []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        sender = self.client.get_queue_sender("orders")
        with self.client, sender, self.client.get_queue_receiver("orders") as receiver:
            while not self.over.is_set():
                for message in receiver.receive_messages(1, max_wait_time=0.2):
                    try:
                        self.handle(sender, receiver, message)
                    except Exception as error:
                        self.errors.append(error)

    def handle(self, sender, receiver, message):
        time.sleep(0.1)  # longer than an idle clock waits
        tries = int(message.application_properties[b"tries"])
        self.handled.append((str(message), tries))
        if tries == 3:
            receiver.dead_letter_message(message, reason="ValueError")
            return
        copy = ServiceBusMessage(str(message), application_properties={"tries": tries + 1})
        sender.schedule_messages(copy, message.enqueued_time_utc + HOUR)
        receiver.complete_message(message)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

def test_a_handler_that_fails_three_times_with_back_off(posthouse_namespace):
    ns = posthouse_namespace
    ns.ask("PUT", "queues/orders", {"lock_ms": 5_000})
    begun = ns.clock.now
    order = {"body": "7", "properties": {"tries": 1}}
    with ns.clock.auto(), Shop(ns.azure_connection_string) as shop:
        ns.wait_for_receiver("orders")
        ns.ask("POST", "queues/orders/messages", {"messages": [order]})
        ns.quiet(30)
        assert shop.handled == [("7", 1), ("7", 2), ("7", 3)]
        assert shop.errors == []
        assert 2 * HOUR <= ns.clock.now - begun < 3 * HOUR
    assert ns.ask("GET", "queues/orders")["counts"]["dead"] == 1

def test_a_handler_that_is_waited_for_as_the_clock_is_moved(posthouse_namespace, posthouse_clock):
    ns = posthouse_namespace
    ns.ask("PUT", "queues/orders", {"lock_ms": 5_000})
    order = {"body": "7", "properties": {"tries": 1}}
    with Shop(ns.azure_connection_string) as shop:
        ns.ask("POST", "queues/orders/messages", {"messages": [order]})
        posthouse_clock.until("dead-lettered", "orders", timeout=30)
        assert [tries for _, tries in shop.handled] == [1, 2, 3]
        assert shop.errors == []
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
    run(pytester, TESTS).assert_outcomes(passed=5)


@needs_nats
def test_a_nats_server_is_one_tests_alone_and_keeps_its_files(pytester: pytest.Pytester) -> None:
    run(pytester, NATS).assert_outcomes(passed=2)


def test_clients_reach_a_namespace_from_its_connection_string_alone(
    pytester: pytest.Pytester,
) -> None:
    run(pytester, NAMES).assert_outcomes(passed=2)


def test_a_namespace_is_removed_after_its_test(pytester: pytest.Pytester) -> None:
    run(pytester, REMOVED).assert_outcomes(passed=3, failed=1)


def test_the_first_namespace_imports_nothing(pytester: pytest.Pytester) -> None:
    run(pytester, IMPORTED).assert_outcomes(passed=1)


def test_the_clock_of_a_namespace_is_moved(pytester: pytest.Pytester) -> None:
    run(pytester, CLOCKS).assert_outcomes(passed=11)


def test_a_handler_of_the_azure_sdk_needs_no_sleep(pytester: pytest.Pytester) -> None:
    run(pytester, HANDLED).assert_outcomes(passed=2)


def test_freezegun_and_time_machine_do_not_reach_the_broker(pytester: pytest.Pytester) -> None:
    run(pytester, FROZEN).assert_outcomes(passed=4)
