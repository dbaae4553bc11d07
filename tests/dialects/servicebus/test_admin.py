"""Entities through the official administration client, over HTTPS."""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.aio.management import (
    ServiceBusAdministrationClient as AsyncAdministrationClient,
)
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from azure.servicebus.management import (
    AccessRights,
    ApiVersion,
    AuthorizationRule,
    CorrelationRuleFilter,
    FalseRuleFilter,
    QueueProperties,
    QueueRuntimeProperties,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    SubscriptionRuntimeProperties,
    TrueRuleFilter,
)

from posthouse import Message, MessageTooLarge, create_sync_client
from tests.dialects.servicebus.bus import (
    DELETE,
    KEY,
    NOTHING,
    ROOT,
    WAIT,
    Bus,
    take,
    texts,
    together,
)
from tests.dialects.servicebus.rest import ATOM, CONNECT, INSTANCE, Rest, entry
from tests.dialects.servicebus.sas import token
from tests.dialects.servicebus.test_topics import locked
from tests.dialects.servicebus.trust import trusting
from tests.server.running import running

# From Python 3.12 on the SDK is told off for asking elements whether they are true.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Testing an element:DeprecationWarning"),
    pytest.mark.long,
]

Admin = ServiceBusAdministrationClient
FOREVER = timedelta(days=10_675_199, seconds=10_085, microseconds=477_581)  # as the SDK rounds it
WHEN = datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)
LOCAL = datetime(2020, 7, 5, 11, 12, 13)  # noqa: DTZ001 - without a zone is what it is for
REFUSED = (ServiceBusAuthenticationError, ServiceBusAuthorizationError)
SEND, LISTEN, MANAGE = AccessRights.SEND, AccessRights.LISTEN, AccessRights.MANAGE
VALUES: dict[str, Any] = {
    "text": "ü <&>", "int": 5, "negative": -7, "long": 1 << 40, "double": 1.5, "true": True,
    "false": False, "when": WHEN, "local": LOCAL,
    "span": timedelta(days=40, hours=5, microseconds=7),
}  # fmt: skip

_numbers = count(1)


def fresh(kind: str = "made") -> str:
    """A name that nobody has had."""
    return f"{kind}{next(_numbers)}"


@pytest.fixture(scope="module", autouse=True)
def environment(bus: Bus) -> Iterator[None]:
    """As `posthouse tls env` prints it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in trusting(bus.broker).items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def admin(bus: Bus, environment: None) -> Iterator[Admin]:
    with client(bus) as made:
        yield made


@pytest.fixture(scope="module")
def rest(bus: Bus, environment: None) -> Rest:
    context = ssl.create_default_context(cafile=os.environ["REQUESTS_CA_BUNDLE"])
    return Rest(bus.broker.port, context)


def client(bus: Bus, name: str = ROOT, key: str = KEY, **options: Any) -> Admin:
    return Admin.from_connection_string(
        f"Endpoint=sb://localhost:{bus.broker.port};SharedAccessKeyName={name};"
        f"SharedAccessKey={key}",
        retry_total=0, **options,
    )  # fmt: skip


def with_token(bus: Bus, text: str) -> Admin:
    """The SDK says `Bearer` before it."""
    return Admin.from_connection_string(
        f"Endpoint=sb://localhost:{bus.broker.port};SharedAccessSignature={text}", retry_total=0
    )


def refused(status: int, work: Callable[[], Any]) -> str:
    """That it is turned down so; what is said."""
    with pytest.raises(HttpResponseError) as caught:
        work()
    assert caught.value.status_code == status, caught.value
    return str(caught.value)


def picked(properties: Any, names: Any) -> dict[str, Any]:
    return {name: properties[name] for name in names}


def target(text: str | None) -> str | None:
    """The entity that a forward names, which may be the whole of an address."""
    return text and urlsplit(text).path.strip("/")


def counts(found: QueueRuntimeProperties | SubscriptionRuntimeProperties) -> dict[str, int | None]:
    names = ["active", "dead_letter", "transfer", "transfer_dead_letter"]
    if isinstance(found, QueueRuntimeProperties):
        names.append("scheduled")
    return {name: getattr(found, f"{name}_message_count") for name in names}


def publish(bus: Bus, topic: str, *messages: ServiceBusMessage) -> None:
    sender = bus.closing(bus.client().get_topic_sender(topic)).__enter__()
    sender.send_messages(list(messages))


def topic_with(admin: Admin, *subscriptions: str, **properties: Any) -> str:
    name = fresh("topic")
    admin.create_topic(name, **properties)
    for each in subscriptions:
        admin.create_subscription(name, each)
    return name


def active(admin: Admin, topic: str) -> dict[str, int | None]:
    """How many messages each subscription has."""
    found = admin.list_subscriptions_runtime_properties(topic)
    return {each.name: each.active_message_count for each in found}


# Queues.

QUEUE: dict[str, Any] = {
    "auto_delete_on_idle": timedelta(minutes=10),
    "dead_lettering_on_message_expiration": True,
    "default_message_time_to_live": timedelta(minutes=11),
    "duplicate_detection_history_time_window": timedelta(minutes=12),
    "enable_batched_operations": False,
    "enable_express": True,
    "enable_partitioning": False,
    "lock_duration": timedelta(seconds=13),
    "max_delivery_count": 14,
    "max_size_in_megabytes": 3072,
    "requires_duplicate_detection": True,
    "requires_session": True,
    "user_metadata": "told by <me> & you",
    "status": "SendDisabled",
}


def test_a_queue_has_the_usual_properties_when_none_are_given(admin: Admin) -> None:
    name = fresh()
    made = admin.create_queue(name)
    usual = {
        "name": name, "authorization_rules": None, "auto_delete_on_idle": FOREVER,
        "dead_lettering_on_message_expiration": False, "default_message_time_to_live": FOREVER,
        "duplicate_detection_history_time_window": timedelta(minutes=10),
        "availability_status": "Available", "enable_batched_operations": True,
        "enable_express": False, "enable_partitioning": False,
        "lock_duration": timedelta(minutes=1), "max_delivery_count": 10,
        "max_size_in_megabytes": 1024, "requires_duplicate_detection": False,
        "requires_session": False, "status": "Active", "forward_to": None, "user_metadata": None,
        "forward_dead_lettered_messages_to": None,
    }  # fmt: skip
    assert picked(made, usual) == usual
    assert picked(admin.get_queue(name), usual) == usual


def test_a_queue_is_made_with_every_property(admin: Admin) -> None:
    name = fresh()
    made = admin.create_queue(name, **QUEUE)
    assert picked(made, QUEUE) == QUEUE
    assert picked(admin.get_queue(name), QUEUE) == QUEUE
    [listed] = [each for each in admin.list_queues() if each.name == name]
    assert picked(listed, QUEUE) == QUEUE


def test_durations_can_be_given_as_text(admin: Admin) -> None:
    name = fresh()
    admin.create_queue(
        name, lock_duration="PT13S", auto_delete_on_idle="PT10M",
        default_message_time_to_live="P1DT2H3M4.5S",
    )  # fmt: skip
    found = admin.get_queue(name)
    assert found.lock_duration == timedelta(seconds=13)
    assert found.auto_delete_on_idle == timedelta(minutes=10)
    ttl = timedelta(days=1, hours=2, minutes=3, seconds=4.5)
    assert found.default_message_time_to_live == ttl


def test_a_partitioned_queue_says_so(admin: Admin) -> None:
    made = admin.create_queue(fresh(), enable_partitioning=True, max_size_in_megabytes=2048)
    assert made.enable_partitioning is True
    assert made.max_size_in_megabytes is not None
    assert made.max_size_in_megabytes % 2048 == 0  # Azure counts all its partitions


def test_the_properties_of_a_queue_are_what_it_does(bus: Bus, admin: Admin) -> None:
    queue = fresh()
    admin.create_queue(
        queue, max_delivery_count=1, lock_duration=timedelta(seconds=20),
        requires_duplicate_detection=True, default_message_time_to_live=timedelta(minutes=5),
        dead_lettering_on_message_expiration=True,
    )  # fmt: skip
    sender, receiver = bus.pair(queue)
    sender.send_messages([ServiceBusMessage("once", message_id="same") for _ in range(3)])
    [got] = receiver.receive_messages(max_wait_time=WAIT)
    assert got.locked_until_utc is not None
    left = got.locked_until_utc.timestamp() * 1000 - bus.clock()
    assert 5_000 < left <= 20_000
    receiver.abandon_message(got)
    sender.send_messages(ServiceBusMessage("expires", message_id="other"))
    bus.advance(301)
    found = admin.get_queue_runtime_properties(queue)
    assert (found.active_message_count, found.dead_letter_message_count) == (0, 2)


def test_queues_are_listed_past_a_hundred(bus: Bus, admin: Admin) -> None:
    names = {fresh("many/Queue") for _ in range(105)}
    for each in names:
        admin.create_queue(each)
    found = [each.name for each in admin.list_queues()]
    assert len(found) == len(set(found))
    assert names <= set(found)
    assert [each.name for each in admin.list_queues_runtime_properties()] == found
    pages = [[each.name for each in page] for page in admin.list_queues(max_page_size=50).by_page()]
    assert [len(page) for page in pages[:2]] == [50, 50]
    assert [each for page in pages for each in page] == found
    assert [each.name for each in admin.list_queues(start_index=100)] == found[100:]
    for each in names:
        admin.delete_queue(each)
    assert not names & {each.name for each in admin.list_queues()}


def test_a_queue_is_updated(admin: Admin) -> None:
    name = fresh()
    queue = admin.create_queue(name, user_metadata="before")
    changes: dict[str, Any] = {
        "auto_delete_on_idle": timedelta(minutes=20),
        "dead_lettering_on_message_expiration": True,
        "default_message_time_to_live": timedelta(minutes=21),
        "duplicate_detection_history_time_window": timedelta(minutes=22),
        "enable_batched_operations": False, "lock_duration": timedelta(seconds=23),
        "max_delivery_count": 24, "max_size_in_megabytes": 2048, "user_metadata": "after",
        "status": "ReceiveDisabled",
    }  # fmt: skip
    for each, value in changes.items():
        queue[each] = value
    admin.update_queue(queue)
    assert picked(admin.get_queue(name), changes) == changes
    admin.update_queue(admin.get_queue(name), max_delivery_count=5, status="Active")
    found = admin.get_queue(name)
    assert (found.max_delivery_count, found.status, found.user_metadata) == (5, "Active", "after")


def test_a_queue_is_updated_with_a_mapping(admin: Admin) -> None:
    queue = admin.create_queue(fresh())
    admin.update_queue({**dict(queue.items()), "lock_duration": timedelta(seconds=31)})
    assert admin.get_queue(queue.name).lock_duration == timedelta(seconds=31)


def test_what_an_update_leaves_out_is_taken_away(admin: Admin) -> None:
    """The SDK says nothing of what is None."""
    other, name = fresh(), fresh()
    admin.create_queue(other)
    queue = admin.create_queue(
        name, forward_to=other, forward_dead_lettered_messages_to=other, user_metadata="note"
    )
    queue.forward_to = queue.forward_dead_lettered_messages_to = queue.user_metadata = None
    admin.update_queue(queue)
    found = admin.get_queue(name)
    assert found.forward_to is None
    assert found.forward_dead_lettered_messages_to is None
    assert found.user_metadata is None


def test_forever_stays_forever_when_it_is_written_back(admin: Admin) -> None:
    queue = admin.create_queue(fresh())
    admin.update_queue(admin.get_queue(queue.name))
    found = admin.get_queue(queue.name)
    assert (found.default_message_time_to_live, found.auto_delete_on_idle) == (FOREVER, FOREVER)


def test_an_update_does_not_write_counts_back(bus: Bus, admin: Admin) -> None:
    """What the SDK has read it sends again, with counts and times."""
    name = fresh()
    admin.create_queue(name)
    before = admin.get_queue(name)
    created = admin.get_queue_runtime_properties(name)
    bus.sender(name).send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
    admin.update_queue(before, max_delivery_count=3)
    found = admin.get_queue_runtime_properties(name)
    assert (found.active_message_count, found.total_message_count) == (2, 2)
    assert found.created_at_utc == created.created_at_utc


@pytest.mark.parametrize(
    "name", ["requires_session", "requires_duplicate_detection", "enable_partitioning"]
)
def test_what_a_queue_is_made_as_it_stays(admin: Admin, name: str) -> None:
    queue = admin.create_queue(fresh())
    refused(400, lambda: admin.update_queue(queue, **{name: True}))
    assert admin.get_queue(queue.name)[name] is False


@pytest.mark.parametrize("status", ["Disabled", "SendDisabled", "ReceiveDisabled", "Active"])
def test_a_status_says_what_may_be_done(bus: Bus, admin: Admin, status: str) -> None:
    queue = admin.create_queue(fresh())
    bus.sender(queue.name).send_messages(ServiceBusMessage("x"))
    admin.update_queue(queue, status=status)
    assert admin.get_queue(queue.name).status == status
    made = bus.client(retry_total=0)

    def sends() -> bool:
        try:
            sender = bus.closing(made.get_queue_sender(queue.name)).__enter__()
            sender.send_messages(ServiceBusMessage("y"))
        except ServiceBusError:
            return False
        return True

    def receives() -> bool:
        try:
            receiver = bus.closing(made.get_queue_receiver(queue.name)).__enter__()
            return bool(receiver.receive_messages(max_wait_time=WAIT))
        except ServiceBusError:
            return False

    may = [status in ("Active", "ReceiveDisabled"), status in ("Active", "SendDisabled")]
    assert together(sends, receives) == may


def test_a_deleted_queue_is_gone(bus: Bus, admin: Admin) -> None:
    name = fresh()
    admin.create_queue(name)
    bus.sender(name).send_messages(ServiceBusMessage("x"))
    admin.delete_queue(name)
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue(name)
    admin.create_queue(name)
    assert admin.get_queue_runtime_properties(name).total_message_count == 0


# What is counted.


def test_messages_of_a_queue_are_counted_in_every_state(bus: Bus, admin: Admin) -> None:
    name = fresh()
    admin.create_queue(name)
    empty = admin.get_queue_runtime_properties(name)
    assert set(counts(empty).values()) == {0}
    assert (empty.total_message_count, empty.size_in_bytes) == (0, 0)
    sender, receiver = bus.pair(name)
    sender.send_messages([ServiceBusMessage(f"{n}" * 100) for n in range(6)])
    later = datetime.fromtimestamp(bus.clock() / 1000, UTC) + timedelta(hours=1)
    sender.schedule_messages([ServiceBusMessage("later"), ServiceBusMessage("later")], later)
    bad, deferred, held = locked(receiver, 3)
    receiver.dead_letter_message(bad, reason="bad")
    receiver.defer_message(deferred)
    found = admin.get_queue_runtime_properties(name)
    assert counts(found) == {
        "active": 5, "dead_letter": 1, "scheduled": 2, "transfer": 0, "transfer_dead_letter": 0,
    }  # fmt: skip
    assert found.total_message_count == 8
    assert found.size_in_bytes is not None
    assert found.size_in_bytes > 600
    [listed] = [each for each in admin.list_queues_runtime_properties() if each.name == name]
    assert counts(listed) == counts(found)
    receiver.complete_message(held)
    assert admin.get_queue_runtime_properties(name).total_message_count == 7


def test_times_of_a_queue_are_told(bus: Bus, admin: Admin) -> None:
    name = fresh()
    before = datetime.fromtimestamp(bus.clock() / 1000 - 1, UTC)
    queue = admin.create_queue(name)
    found = admin.get_queue_runtime_properties(name)
    assert found.created_at_utc is not None
    assert found.updated_at_utc is not None
    assert before < found.created_at_utc <= found.updated_at_utc
    bus.advance(10)
    admin.update_queue(queue, max_delivery_count=3)
    bus.advance(10)
    bus.sender(name).send_messages(ServiceBusMessage("x"))
    after = admin.get_queue_runtime_properties(name)
    assert after.created_at_utc == found.created_at_utc
    assert after.updated_at_utc is not None
    assert after.updated_at_utc >= found.updated_at_utc + timedelta(seconds=9)
    assert after.accessed_at_utc is not None
    assert after.accessed_at_utc >= after.updated_at_utc + timedelta(seconds=9)


def test_what_could_not_be_forwarded_is_counted(bus: Bus, admin: Admin) -> None:
    end, source = fresh(), fresh()
    disabled = admin.create_queue(end)
    admin.create_queue(source, forward_to=end)
    admin.update_queue(disabled, status="Disabled")
    bus.sender(source).send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
    found = admin.get_queue_runtime_properties(source)
    assert (found.transfer_dead_letter_message_count, found.transfer_message_count) == (2, 0)
    assert found.active_message_count == 0


def test_messages_of_a_subscription_are_counted(bus: Bus, admin: Admin) -> None:
    topic = topic_with(admin, "s", "other")
    publish(bus, topic, *(ServiceBusMessage(f"{n}") for n in range(4)))
    made = bus.client().get_subscription_receiver(topic, "s")
    receiver = bus.closing(made).__enter__()
    [bad] = receiver.receive_messages(max_wait_time=WAIT)
    receiver.dead_letter_message(bad)
    found = admin.get_subscription_runtime_properties(topic, "s")
    assert counts(found) == {
        "active": 3, "dead_letter": 1, "transfer": 0, "transfer_dead_letter": 0,
    }  # fmt: skip
    assert found.total_message_count == 4
    assert found.created_at_utc is not None
    assert active(admin, topic) == {"s": 3, "other": 4}


def test_a_topic_counts_its_subscriptions_and_what_is_scheduled(bus: Bus, admin: Admin) -> None:
    topic = topic_with(admin, "a", "b")
    later = datetime.fromtimestamp(bus.clock() / 1000, UTC) + timedelta(hours=1)
    with bus.client() as made, made.get_topic_sender(topic) as sender:
        sender.schedule_messages([ServiceBusMessage(f"{n}") for n in range(3)], later)
    found = admin.get_topic_runtime_properties(topic)
    assert (found.subscription_count, found.scheduled_message_count) == (2, 3)
    assert found.created_at_utc is not None
    [listed] = [each for each in admin.list_topics_runtime_properties() if each.name == topic]
    assert (listed.subscription_count, listed.scheduled_message_count) == (2, 3)


def test_filters_of_a_topic_are_counted_for_those_who_know_of_it(bus: Bus, admin: Admin) -> None:
    topic = topic_with(admin, "a", "b")
    before = admin.get_topic_runtime_properties(topic)
    assert before.sql_filter_count == 2  # each begins with 1=1
    admin.create_rule(topic, "a", "one", filter=SqlRuleFilter("n = 1"))
    admin.create_rule(topic, "a", "two", filter=CorrelationRuleFilter(label="x"))
    admin.create_rule(topic, "b", "two", filter=CorrelationRuleFilter(label="x"))
    found = admin.get_topic_runtime_properties(topic)
    assert found.sql_filter_count == 3
    assert found.correlation_filter_count == 2
    with client(bus, api_version=ApiVersion.V2021_05) as older:
        assert older.get_topic_runtime_properties(topic).sql_filter_count is None
    with client(bus, api_version=ApiVersion.V2017_04) as oldest:
        assert oldest.get_topic(topic).max_message_size_in_kilobytes is None


# Topics and subscriptions.

TOPIC: dict[str, Any] = {
    "default_message_time_to_live": timedelta(minutes=11),
    "max_size_in_megabytes": 3072,
    "requires_duplicate_detection": True,
    "duplicate_detection_history_time_window": timedelta(minutes=12),
    "enable_batched_operations": False,
    "support_ordering": True,
    "auto_delete_on_idle": timedelta(minutes=10),
    "enable_partitioning": False,
    "enable_express": True,
    "user_metadata": "a note",
    "status": "SendDisabled",
}
SUBSCRIPTION: dict[str, Any] = {
    "lock_duration": timedelta(seconds=13),
    "requires_session": True,
    "default_message_time_to_live": timedelta(minutes=11),
    "dead_lettering_on_message_expiration": True,
    "dead_lettering_on_filter_evaluation_exceptions": False,
    "max_delivery_count": 14,
    "enable_batched_operations": False,
    "user_metadata": "a note",
    "auto_delete_on_idle": timedelta(minutes=10),
    "status": "ReceiveDisabled",
}


def test_a_topic_has_the_usual_properties_when_none_are_given(admin: Admin) -> None:
    name = fresh()
    made = admin.create_topic(name)
    usual = {
        "name": name, "default_message_time_to_live": FOREVER, "max_size_in_megabytes": 1024,
        "requires_duplicate_detection": False,
        "duplicate_detection_history_time_window": timedelta(minutes=10),
        "enable_batched_operations": True, "size_in_bytes": 0,
        "filtering_messages_before_publishing": False, "authorization_rules": None,
        "status": "Active", "auto_delete_on_idle": FOREVER, "enable_partitioning": False,
        "availability_status": "Available", "enable_express": False, "user_metadata": None,
    }  # fmt: skip
    assert picked(made, usual) == usual
    assert picked(admin.get_topic(name), usual) == usual


def test_a_topic_is_made_with_every_property(admin: Admin) -> None:
    name = fresh()
    assert picked(admin.create_topic(name, **TOPIC), TOPIC) == TOPIC
    assert picked(admin.get_topic(name), TOPIC) == TOPIC
    [listed] = [each for each in admin.list_topics() if each.name == name]
    assert picked(listed, TOPIC) == TOPIC


def test_a_topic_is_updated(admin: Admin) -> None:
    topic = admin.create_topic(fresh())
    changes: dict[str, Any] = {
        "auto_delete_on_idle": timedelta(minutes=20),
        "default_message_time_to_live": timedelta(minutes=21),
        "duplicate_detection_history_time_window": timedelta(minutes=22),
        "enable_batched_operations": False, "max_size_in_megabytes": 2048,
        "user_metadata": "after", "status": "Disabled",
    }  # fmt: skip
    admin.update_topic(topic, **changes)
    assert picked(admin.get_topic(topic.name), changes) == changes


@pytest.mark.parametrize("name", ["requires_duplicate_detection", "enable_partitioning"])
def test_what_a_topic_is_made_as_it_stays(admin: Admin, name: str) -> None:
    topic = admin.create_topic(fresh())
    refused(400, lambda: admin.update_topic(topic, **{name: True}))


def test_a_subscription_has_the_usual_properties_when_none_are_given(admin: Admin) -> None:
    topic = topic_with(admin)
    made = admin.create_subscription(topic, "s")
    usual = {
        "name": "s", "lock_duration": timedelta(minutes=1), "requires_session": False,
        "default_message_time_to_live": FOREVER, "dead_lettering_on_message_expiration": False,
        "dead_lettering_on_filter_evaluation_exceptions": True, "max_delivery_count": 10,
        "enable_batched_operations": True, "status": "Active", "forward_to": None,
        "user_metadata": None, "forward_dead_lettered_messages_to": None,
        "auto_delete_on_idle": FOREVER, "availability_status": "Available",
    }  # fmt: skip
    assert picked(made, usual) == usual
    assert picked(admin.get_subscription(topic, "s"), usual) == usual


def test_a_subscription_is_made_with_every_property(admin: Admin) -> None:
    topic = topic_with(admin)
    made = admin.create_subscription(topic, "s", **SUBSCRIPTION)
    assert picked(made, SUBSCRIPTION) == SUBSCRIPTION
    assert picked(admin.get_subscription(topic, "s"), SUBSCRIPTION) == SUBSCRIPTION
    [listed] = admin.list_subscriptions(topic)
    assert picked(listed, SUBSCRIPTION) == SUBSCRIPTION


def test_a_subscription_is_updated_but_not_its_sessions(admin: Admin) -> None:
    topic = topic_with(admin, "s")
    subscription = admin.get_subscription(topic, "s")
    changes = {name: value for name, value in SUBSCRIPTION.items() if name != "requires_session"}
    admin.update_subscription(topic, subscription, **changes)
    assert picked(admin.get_subscription(topic, "s"), changes) == changes
    refused(
        400, lambda: admin.update_subscription(topic, subscription, requires_session=True)
    )  # fmt: skip


def test_topics_and_subscriptions_are_listed_past_a_hundred(admin: Admin) -> None:
    names = [fresh("topic") for _ in range(101)]
    for each in names:
        admin.create_topic(each)
    found = [each.name for each in admin.list_topics()]
    assert len(found) == len(set(found))
    assert set(names) <= set(found)
    assert [each.name for each in admin.list_topics_runtime_properties()] == found
    topic = names[0]
    for n in range(100):
        admin.create_subscription(topic, f"s{n}")
    expected = {f"s{n}" for n in range(100)}
    assert {each.name for each in admin.list_subscriptions(topic)} == expected
    pages = list(admin.list_subscriptions(topic).by_page())
    assert [len(list(page)) for page in pages] == [100]  # and no empty one behind it
    admin.create_subscription(topic, "last")
    listed = [each.name for each in admin.list_subscriptions_runtime_properties(topic)]
    assert sorted(listed) == sorted({*expected, "last"})
    assert list(admin.list_subscriptions(names[1])) == []


def test_a_topic_goes_with_its_subscriptions(bus: Bus, admin: Admin) -> None:
    topic = topic_with(admin, "s", "other")
    admin.delete_subscription(topic, "other")
    with pytest.raises(ResourceNotFoundError):
        admin.get_subscription(topic, "other")
    admin.delete_topic(topic)
    with pytest.raises(ResourceNotFoundError):
        admin.get_topic(topic)
    with pytest.raises(ResourceNotFoundError):
        admin.get_subscription(topic, "s")
    admin.create_topic(topic)
    assert list(admin.list_subscriptions(topic)) == []


def test_queues_and_topics_are_listed_apart(admin: Admin) -> None:
    queue, topic = fresh(), fresh()
    admin.create_queue(queue)
    admin.create_topic(topic)
    queues = {each.name for each in admin.list_queues()}
    topics = {each.name for each in admin.list_topics()}
    assert (queue in queues, queue in topics) == (True, False)
    assert (topic in queues, topic in topics) == (False, True)


# Rules.


def test_a_new_subscription_takes_everything(admin: Admin) -> None:
    topic = topic_with(admin, "s")
    [rule] = admin.list_rules(topic, "s")
    assert (rule.name, type(rule.filter), rule.action) == ("$Default", TrueRuleFilter, None)
    found = admin.get_rule(topic, "s", "$Default")
    assert isinstance(found.filter, TrueRuleFilter)
    assert found.filter.sql_expression == "1=1"
    assert found.created_at_utc is not None


def test_true_and_false_filters_keep_their_kinds(bus: Bus, admin: Admin) -> None:
    topic = topic_with(admin, "all", "none")
    for subscription, kind in (("all", TrueRuleFilter()), ("none", FalseRuleFilter())):
        admin.delete_rule(topic, subscription, "$Default")
        made = admin.create_rule(topic, subscription, "r", filter=kind)
        found = admin.get_rule(topic, subscription, "r")
        assert {type(made.filter), type(found.filter)} == {type(kind)}
        assert found.action is None
    publish(bus, topic, ServiceBusMessage("x"))
    assert active(admin, topic) == {"all": 1, "none": 0}


def test_parameters_of_every_type_come_back_as_they_were(admin: Admin) -> None:
    topic = topic_with(admin, "s")
    parameters = {f"@{name}": value for name, value in VALUES.items()}
    expression = " OR ".join(f"n = {name}" for name in parameters)
    made = admin.create_rule(
        topic, "s", "r", filter=SqlRuleFilter(expression, parameters),
        action=SqlRuleAction("SET text = @text; SET n = @double", parameters),
    )  # fmt: skip
    listed = {each.name: each for each in admin.list_rules(topic, "s")}
    for rule in (made, admin.get_rule(topic, "s", "r"), listed["r"]):
        assert isinstance(rule.filter, SqlRuleFilter)
        assert rule.filter.sql_expression == expression
        assert rule.action is not None
        assert rule.action.sql_expression == "SET text = @text; SET n = @double"
        for found in (rule.filter.parameters, rule.action.parameters):
            assert found is not None
            assert dict(found) == parameters
            assert [type(each) for each in found.values()] == [
                type(each) for each in parameters.values()
            ]


def test_typed_properties_of_a_correlation_filter_come_back_as_they_were(admin: Admin) -> None:
    topic = topic_with(admin, "s")
    fields = {
        "correlation_id": "c", "message_id": "m", "to": "t", "reply_to": "r", "label": "l",
        "session_id": "s", "reply_to_session_id": "rs", "content_type": "text/plain",
    }  # fmt: skip
    given = CorrelationRuleFilter(**fields, properties=VALUES)
    made = admin.create_rule(topic, "s", "r", filter=given)
    listed = {each.name: each for each in admin.list_rules(topic, "s")}
    for rule in (made, admin.get_rule(topic, "s", "r"), listed["r"]):
        assert isinstance(rule.filter, CorrelationRuleFilter)
        assert {name: getattr(rule.filter, name) for name in fields} == fields
        assert rule.filter.properties is not None
        assert dict(rule.filter.properties) == VALUES
        assert [type(each) for each in rule.filter.properties.values()] == [
            type(each) for each in VALUES.values()
        ]


def test_a_rule_is_found_as_soon_as_it_is_made(bus: Bus, admin: Admin) -> None:
    topic = topic_with(admin, "s")
    with client(bus) as another:
        for number in range(5):
            admin.create_rule(topic, "s", f"r{number}", filter=SqlRuleFilter(f"n = {number}"))
            assert another.get_rule(topic, "s", f"r{number}").name == f"r{number}"
    names = [each.name for each in admin.list_rules(topic, "s")]
    assert names == ["$Default", "r0", "r1", "r2", "r3", "r4"]


def test_rules_choose_by_typed_values(bus: Bus, admin: Admin) -> None:
    topic = topic_with(admin)
    sent: dict[str, Any] = dict(VALUES)
    for name, value in sent.items():
        for kind, chosen in (
            ("sql", SqlRuleFilter("v = @v", {"@v": value})),
            ("exact", CorrelationRuleFilter(properties={"v": value})),
        ):
            admin.create_subscription(topic, f"{kind}-{name}")
            admin.delete_rule(topic, f"{kind}-{name}", "$Default")
            admin.create_rule(topic, f"{kind}-{name}", "r", filter=chosen)
    sent["long"] = {"TYPE": "LONG", "VALUE": sent["long"]}  # the SDK makes an int of an int
    symbol = {"TYPE": "SYMBOL", "VALUE": b"com.microsoft:timespan"}  # as .NET's says it
    sent["span"] = symbol, {"TYPE": "LONG", "VALUE": sent["span"] // timedelta(microseconds=1) * 10}
    publish(
        bus, topic,
        *(ServiceBusMessage(name, application_properties={"v": v}) for name, v in sent.items()),
        ServiceBusMessage("no", application_properties={"v": "other"}),
        ServiceBusMessage("none"),
    )  # fmt: skip
    found = active(admin, topic)
    assert found == dict.fromkeys(found, 1)
    assert len(found) == 2 * len(sent)


def test_fields_of_a_correlation_filter_are_all_needed(bus: Bus, admin: Admin) -> None:
    topic = topic_with(admin, "s")
    chosen = CorrelationRuleFilter(label="l", correlation_id="c", properties={"n": 1})
    admin.create_rule(topic, "s", "r", filter=chosen)
    admin.delete_rule(topic, "s", "$Default")
    publish(
        bus, topic,
        ServiceBusMessage("1", subject="l", correlation_id="c", application_properties={"n": 1}),
        ServiceBusMessage("2", subject="L", correlation_id="c", application_properties={"n": 1}),
        ServiceBusMessage("3", subject="l", correlation_id="c", application_properties={"n": "1"}),
        ServiceBusMessage("4", subject="l", application_properties={"n": 1}),
    )  # fmt: skip
    assert active(admin, topic) == {"s": 1}


def test_an_action_with_parameters_changes_its_copy(bus: Bus, admin: Admin) -> None:
    topic = topic_with(admin, "s")
    admin.delete_rule(topic, "s", "$Default")
    admin.create_rule(
        topic, "s", "mark", filter=SqlRuleFilter("n > @least", {"@least": 2}),
        action=SqlRuleAction("SET sys.Label = @label; SET n = n + @more; REMOVE gone",
                             {"@label": "marked", "@more": 10}),
    )  # fmt: skip
    publish(
        bus, topic,
        *(ServiceBusMessage(f"{n}", application_properties={"n": n, "gone": 1}) for n in (2, 3)),
    )  # fmt: skip
    made = bus.client().get_subscription_receiver(topic, "s", receive_mode=DELETE)
    [got] = take(bus.closing(made).__enter__(), 1)
    assert (str(got), got.subject) == ("3", "marked")
    assert got.application_properties == {b"n": 13, b"RuleName": b"mark"}


def test_a_rule_is_updated(bus: Bus, admin: Admin) -> None:
    topic = topic_with(admin, "s")
    rule = admin.get_rule(topic, "s", "$Default")
    rule.filter = SqlRuleFilter("n = @n", {"@n": 1})
    rule.action = SqlRuleAction("SET seen = @seen", {"@seen": True})
    admin.update_rule(topic, "s", rule)
    [found] = admin.list_rules(topic, "s")
    assert found.name == "$Default"
    assert isinstance(found.filter, SqlRuleFilter)
    assert found.filter.parameters == {"@n": 1}
    assert found.action is not None
    assert found.action.parameters == {"@seen": True}
    messages = [ServiceBusMessage("x", application_properties={"n": n}) for n in (1, 2)]
    publish(bus, topic, *messages)
    assert active(admin, topic) == {"s": 1}
    found.filter, found.action = CorrelationRuleFilter(properties={"n": 2}), None
    admin.update_rule(topic, "s", found)
    after = admin.get_rule(topic, "s", "$Default")
    assert isinstance(after.filter, CorrelationRuleFilter)
    assert after.action is None
    publish(bus, topic, *messages, messages[1])
    assert active(admin, topic) == {"s": 3}


def test_a_subscription_without_rules_gets_nothing(bus: Bus, admin: Admin) -> None:
    topic = topic_with(admin, "s")
    admin.delete_rule(topic, "s", "$Default")
    assert list(admin.list_rules(topic, "s")) == []
    publish(bus, topic, ServiceBusMessage("x"))
    assert active(admin, topic) == {"s": 0}
    admin.create_rule(topic, "s", "$Default")
    publish(bus, topic, ServiceBusMessage("x"))
    assert active(admin, topic) == {"s": 1}


def test_rules_are_listed_past_a_hundred(admin: Admin) -> None:
    topic = topic_with(admin, "s")
    names = [f"r{n}" for n in range(103)]
    for n, name in enumerate(names):
        chosen = CorrelationRuleFilter(properties={"n": n}) if n % 2 else SqlRuleFilter(f"n = {n}")
        admin.create_rule(topic, "s", name, filter=chosen)
    found = list(admin.list_rules(topic, "s"))
    assert sorted(each.name for each in found) == sorted(["$Default", *names])
    exact = {each.name: each.filter for each in found}["r101"]
    assert isinstance(exact, CorrelationRuleFilter)
    assert exact.properties == {"n": 101}


@pytest.mark.parametrize("when", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_moment_at_the_end_of_time_can_be_told_again(admin: Admin, rest: Rest, when: str) -> None:
    """It made the list of all rules unreadable."""
    topic = topic_with(admin, "s")
    inside = (
        '<Filter i:type="CorrelationFilter"><Properties><KeyValueOfstringanyType><Key>when</Key>'
        f'<Value i:type="d6p1:dateTime" xmlns:d6p1="x">{when}</Value></KeyValueOfstringanyType>'
        "</Properties></Filter>"
    )
    made = rest("PUT", f"/{topic}/subscriptions/s/rules/r", entry("RuleDescription", inside))
    assert made.status == 201
    assert {each.name for each in admin.list_rules(topic, "s")} == {"$Default", "r"}


def test_a_rule_that_cannot_be_is_refused(admin: Admin) -> None:
    topic = topic_with(admin, "s")

    def make(**rule: Any) -> Callable[[], Any]:
        return lambda: admin.create_rule(topic, "s", fresh("r"), **rule)

    refused(400, make(filter=SqlRuleFilter("colour = = 1")))
    refused(400, make(filter=SqlRuleFilter("n = " + "1" * 1024)))
    refused(400, make(action=SqlRuleAction("SET = 1")))
    refused(400, lambda: admin.create_rule(topic, "s", "r" * 51))
    rule = admin.get_rule(topic, "s", "$Default")
    rule.filter = SqlRuleFilter("colour LIKE")
    refused(400, lambda: admin.update_rule(topic, "s", rule))
    assert [each.name for each in admin.list_rules(topic, "s")] == ["$Default"]


def test_a_subscription_is_made_with_a_rule_of_its_own(admin: Admin, rest: Rest) -> None:
    """.NET and JavaScript can say so, Python cannot."""
    topic = topic_with(admin)
    rule = (
        '<DefaultRuleDescription><Filter i:type="SqlFilter"><SqlExpression>n = 1</SqlExpression>'
        '</Filter><Action i:type="EmptyRuleAction" /><Name>mine</Name></DefaultRuleDescription>'
    )
    path = f"/{topic}/Subscriptions/s?api-version=2021-05"
    made = rest("PUT", path, entry("SubscriptionDescription", rule), headers={"Content-Type": ATOM})
    assert made.status == 201, made
    [found] = admin.list_rules(topic, "s")
    assert found.name == "mine"
    assert isinstance(found.filter, SqlRuleFilter)
    assert found.filter.sql_expression == "n = 1"


# Forwarding.


def test_a_queue_forwards_what_comes_and_what_dies(bus: Bus, admin: Admin) -> None:
    end, graves, queue, source = (fresh() for _ in range(4))
    for each in (end, graves):
        admin.create_queue(each)
    made = admin.create_queue(source, forward_to=end)
    assert target(made.forward_to) == end
    made = admin.create_queue(queue, forward_dead_lettered_messages_to=graves)
    assert target(made.forward_dead_lettered_messages_to) == graves
    admin.update_queue(admin.get_queue(source), max_delivery_count=3)
    assert target(admin.get_queue(source).forward_to) == end
    bus.sender(source).send_messages(ServiceBusMessage("far"))
    sender, receiver = bus.pair(queue)
    sender.send_messages(ServiceBusMessage("bad"))
    [bad] = receiver.receive_messages(max_wait_time=WAIT)
    receiver.dead_letter_message(bad, reason="why")
    far, dead = together(lambda: bus.receiver(end), lambda: bus.receiver(graves))
    assert texts(take(far, 1)) == ["far"]
    [letter] = dead.receive_messages(max_wait_time=WAIT)
    assert (str(letter), letter.dead_letter_reason) == ("bad", "why")
    assert letter.dead_letter_source == queue


def test_a_subscription_forwards(bus: Bus, admin: Admin) -> None:
    end, topic = fresh(), topic_with(admin)
    admin.create_queue(end)
    made = admin.create_subscription(
        topic, "s", forward_to=end, forward_dead_lettered_messages_to=end
    )
    found = admin.get_subscription(topic, "s")
    for each in (made, found):
        assert target(each.forward_to) == end
        assert target(each.forward_dead_lettered_messages_to) == end
    publish(bus, topic, ServiceBusMessage("far"))
    assert admin.get_queue_runtime_properties(end).active_message_count == 1
    found.forward_to = None
    admin.update_subscription(topic, found)
    publish(bus, topic, ServiceBusMessage("near"))
    assert admin.get_queue_runtime_properties(end).active_message_count == 1
    assert admin.get_subscription_runtime_properties(topic, "s").active_message_count == 1


def test_a_queue_forwards_to_a_name_with_a_slash(bus: Bus, admin: Admin) -> None:
    end, source = f"deep/{fresh()}", fresh()
    admin.create_queue(end)
    admin.create_queue(source, forward_to=end)
    assert target(admin.get_queue(source).forward_to) == end
    bus.sender(source).send_messages(ServiceBusMessage("far"))
    assert admin.get_queue_runtime_properties(end).active_message_count == 1


def test_forwarding_needs_a_target_that_is_there(admin: Admin) -> None:
    name, topic = fresh(), topic_with(admin)
    for properties in ({"forward_to": "gone"}, {"forward_dead_lettered_messages_to": "gone"}):
        for make in (
            lambda given=properties: admin.create_queue(name, **given),
            lambda given=properties: admin.create_subscription(topic, "s", **given),
        ):
            with pytest.raises(HttpResponseError) as caught:
                make()
            assert caught.value.status_code in (400, 404)
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue(name)
    with pytest.raises(HttpResponseError):
        admin.create_queue(name, forward_to=name)


def test_what_is_forwarded_to_itself_is_a_dead_letter_after_the_last_hop(
    bus: Bus, admin: Admin
) -> None:
    name = fresh()
    queue = admin.create_queue(name)
    admin.update_queue(queue, forward_to=name, forward_dead_lettered_messages_to=name)
    assert target(admin.get_queue(name).forward_to) == name
    bus.sender(name).send_messages(ServiceBusMessage("round"))
    counts = admin.get_queue_runtime_properties(name)
    assert (counts.active_message_count, counts.transfer_dead_letter_message_count) == (0, 1)
    kind = ServiceBusSubQueue.TRANSFER_DEAD_LETTER
    with bus.client() as made, made.get_queue_receiver(name, sub_queue=kind) as receiver:
        [message] = receiver.receive_messages(max_wait_time=5)
        assert message.dead_letter_reason == "MaxTransferHopCountExceeded"
        receiver.complete_message(message)


def test_a_circle_of_queues_can_be_made(bus: Bus, admin: Admin) -> None:
    first, second = fresh(), fresh()
    queue = admin.create_queue(first)
    admin.create_queue(second, forward_to=first)
    admin.update_queue(queue, forward_to=second)
    bus.sender(second).send_messages(ServiceBusMessage("round"))
    told = [admin.get_queue_runtime_properties(name) for name in (first, second)]
    assert [each.active_message_count for each in told] == [0, 0]
    assert [each.transfer_dead_letter_message_count for each in told] == [0, 1]


# Names, and what is there or not.


@pytest.mark.parametrize(
    "name", ["txt/.-_123", "a", "A.b-C_d/E/f", "9", "q~1", "x" * 260, "Ends.With.CAPS"]
)
def test_names_that_can_be(bus: Bus, admin: Admin, name: str) -> None:
    for make, get, listed, delete in (
        (admin.create_queue, admin.get_queue, admin.list_queues, admin.delete_queue),
        (admin.create_topic, admin.get_topic, admin.list_topics, admin.delete_topic),
    ):
        assert make(name).name == name
        assert get(name).name == name
        assert name in {each.name for each in listed()}
        delete(name)
        with pytest.raises(ResourceNotFoundError):
            get(name)


def test_a_name_with_a_slash_is_one_entity_for_every_client(
    bus: Bus, admin: Admin, rest: Rest
) -> None:
    name = f"txt/.-_{fresh()}"
    admin.create_queue(name, max_delivery_count=7)
    plain = rest("GET", f"/{name}?api-version=2021-05")
    escaped = rest("GET", f"/{name.replace('/', '%2F')}?api-version=2021-05")
    assert (plain.status, escaped.status) == (200, 200)
    assert b"<MaxDeliveryCount>7</MaxDeliveryCount>" in plain.body
    assert plain.body == escaped.body
    bus.sender(name).send_messages(ServiceBusMessage("x"))
    assert admin.get_queue_runtime_properties(name).active_message_count == 1
    topic = f"deep/{fresh()}"
    admin.create_topic(topic)
    admin.create_subscription(topic, "s.1-2_3")
    admin.create_rule(topic, "s.1-2_3", "r.1-2_3", filter=SqlRuleFilter("n = 1"))
    assert [each.name for each in admin.list_subscriptions(topic)] == ["s.1-2_3"]
    assert admin.get_rule(topic, "s.1-2_3", "r.1-2_3").name == "r.1-2_3"


def test_upper_and_lower_case_name_the_same(bus: Bus, admin: Admin) -> None:
    name = fresh("MixedCase")
    admin.create_queue(name, max_delivery_count=7)
    assert admin.get_queue(name.upper()).max_delivery_count == 7
    with pytest.raises(ResourceExistsError):
        admin.create_queue(name.lower())
    [listed] = [each.name for each in admin.list_queues() if each.name.lower() == name.lower()]
    assert listed == name
    bus.sender(name.upper()).send_messages(ServiceBusMessage("x"))
    assert admin.get_queue_runtime_properties(name.lower()).active_message_count == 1
    admin.delete_queue(name.upper())
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue(name)


@pytest.mark.parametrize("name", ["x" * 261, "a*b", "a@b", "a b", "-a", "a-", "a?b", "a#b", "\\"])
def test_names_that_cannot_be_are_refused(admin: Admin, name: str) -> None:
    refused(400, lambda: admin.create_queue(name))
    refused(400, lambda: admin.create_topic(name))


def test_an_empty_name_is_refused(admin: Admin) -> None:
    for make in (admin.create_queue, admin.create_topic, admin.get_queue):
        with pytest.raises(HttpResponseError) as caught:
            make("")
        assert caught.value.status_code in (400, 404, 405)
    with pytest.raises(ValueError, match="empty"):
        admin.delete_queue("")


def test_names_of_subscriptions_are_shorter(admin: Admin) -> None:
    topic = topic_with(admin, "s" * 50)
    refused(400, lambda: admin.create_subscription(topic, "s" * 51))
    refused(400, lambda: admin.create_subscription(topic, "a/b"))


def test_what_is_there_is_not_made_again(admin: Admin) -> None:
    queue, topic = fresh(), topic_with(admin, "s")
    admin.create_queue(queue, max_delivery_count=7)
    admin.create_rule(topic, "s", "r")
    for make in (
        lambda: admin.create_queue(queue),
        lambda: admin.create_topic(topic),
        lambda: admin.create_topic(queue),
        lambda: admin.create_queue(topic),
        lambda: admin.create_subscription(topic, "s"),
        lambda: admin.create_rule(topic, "s", "r"),
        lambda: admin.create_rule(topic, "s", "$Default"),
    ):
        with pytest.raises(ResourceExistsError) as caught:
            make()
        assert "SubCode=40900" in str(caught.value)
    assert admin.get_queue(queue).max_delivery_count == 7


def test_what_is_not_there_is_not_found(admin: Admin) -> None:
    topic = topic_with(admin, "s")
    queue = admin.create_queue(fresh())
    subscription = admin.get_subscription(topic, "s")
    rule = admin.get_rule(topic, "s", "$Default")
    other = admin.get_topic(topic)
    for each in (queue, subscription, rule, other):
        each.name = "gone"
    for look in (
        lambda: admin.get_queue("gone"),
        lambda: admin.get_topic("gone"),
        lambda: admin.get_queue_runtime_properties("gone"),
        lambda: admin.get_topic_runtime_properties("gone"),
        lambda: admin.get_subscription(topic, "gone"),
        lambda: admin.get_subscription("gone", "s"),
        lambda: admin.get_subscription_runtime_properties(topic, "gone"),
        lambda: admin.get_rule(topic, "s", "gone"),
        lambda: admin.get_rule(topic, "gone", "$Default"),
        lambda: admin.create_subscription("gone", "s"),
        lambda: admin.create_rule(topic, "gone", "r"),
        lambda: admin.update_queue(queue),
        lambda: admin.update_topic(other),
        lambda: admin.update_subscription(topic, subscription),
        lambda: admin.update_rule(topic, "s", rule),
        lambda: admin.delete_queue("gone"),
        lambda: admin.delete_topic("gone"),
        lambda: admin.delete_subscription(topic, "gone"),
        lambda: admin.delete_rule(topic, "s", "gone"),
        lambda: list(admin.list_subscriptions("gone")),
    ):
        with pytest.raises(ResourceNotFoundError):
            look()


# What may be, and what is said where it may not.


@pytest.mark.parametrize(
    "properties",
    [
        {"lock_duration": timedelta(minutes=5, seconds=1)},
        {"lock_duration": timedelta(0)},
        {"duplicate_detection_history_time_window": timedelta(days=7, seconds=1)},
        {"duplicate_detection_history_time_window": timedelta(seconds=1)},
        {"default_message_time_to_live": timedelta(0)},
        {"auto_delete_on_idle": timedelta(minutes=4)},
        {"max_delivery_count": 0},
        {"max_delivery_count": -1},
        {"max_size_in_megabytes": -1},
        {"max_message_size_in_kilobytes": 1023},
        {"max_message_size_in_kilobytes": 102_401},
        {"user_metadata": "x" * 1025},
        {"status": "Sleeping"},
    ],
    ids=str,
)
def test_values_that_cannot_be_are_refused(admin: Admin, properties: dict[str, Any]) -> None:
    name = fresh()
    text = refused(400, lambda: admin.create_queue(name, **properties))
    assert "SubCode=40000" in text
    queue = admin.create_queue(name)  # so it was not made
    refused(400, lambda: admin.update_queue(queue, **properties))
    after = admin.get_queue(name)
    assert picked(after, properties) == picked(queue, properties)


@pytest.mark.parametrize(
    "properties",
    [
        {"duplicate_detection_history_time_window": timedelta(days=7, seconds=1)},
        {"default_message_time_to_live": timedelta(0)},
        {"auto_delete_on_idle": timedelta(minutes=4)},
    ],
    ids=str,
)
def test_a_topic_refuses_such_values_too(admin: Admin, properties: dict[str, Any]) -> None:
    refused(400, lambda: admin.create_topic(fresh(), **properties))


@pytest.mark.parametrize(
    "properties",
    [
        {"lock_duration": timedelta(minutes=5, seconds=1)},
        {"auto_delete_on_idle": timedelta(minutes=4)},
        {"max_delivery_count": 0},
    ],
    ids=str,
)
def test_a_subscription_refuses_such_values_too(admin: Admin, properties: dict[str, Any]) -> None:
    topic = topic_with(admin)
    refused(400, lambda: admin.create_subscription(topic, "s", **properties))


def test_a_size_for_messages_is_of_premium_namespaces(admin: Admin) -> None:
    name, premium = fresh(), admin.get_namespace_properties().messaging_sku == "Premium"
    if premium:
        made = admin.create_queue(name, max_message_size_in_kilobytes=2048)
        assert made.max_message_size_in_kilobytes == 2048
        assert admin.get_queue(name).max_message_size_in_kilobytes == 2048
    else:
        refused(400, lambda: admin.create_queue(name, max_message_size_in_kilobytes=2048))


def test_the_namespace_tells_of_itself(admin: Admin) -> None:
    found = admin.get_namespace_properties()
    assert found.name
    assert found.messaging_sku in ("Standard", "Premium")
    assert (found.messaging_units is not None) == (found.messaging_sku == "Premium")
    assert found.namespace_type == "Messaging"
    assert found.created_at_utc is not None
    assert found.modified_at_utc is not None
    assert found.created_at_utc <= found.modified_at_utc


@pytest.mark.parametrize(
    "body",
    [
        "",
        "not XML",
        "<entry",
        '<entry xmlns="http://www.w3.org/2005/Atom"></entry>',
        entry("SomethingElse"),
        entry("QueueDescription", "<LockDuration>soon</LockDuration>"),
        entry("QueueDescription", "<MaxDeliveryCount>many</MaxDeliveryCount>"),
        entry("QueueDescription", "<RequiresSession>perhaps</RequiresSession>"),
        '<!DOCTYPE e [<!ENTITY a "b">]>' + entry("QueueDescription", "<Status>&a;</Status>"),
    ],
    ids=range(9),
)
def test_a_description_that_cannot_be_read_is_refused(rest: Rest, body: str) -> None:
    name = fresh()
    answer = rest("PUT", f"/{name}?api-version=2021-05", body, headers={"Content-Type": ATOM})
    assert answer.status == 400
    assert "xml" in (answer.header("Content-Type") or "")
    assert b"<Code>400</Code>" in answer.body
    assert b"<Detail>" in answer.body
    assert rest("GET", f"/{name}?api-version=2021-05").status in (200, 404)
    assert b"QueueDescription" not in rest("GET", f"/{name}?api-version=2021-05").body


def test_elements_in_another_order_and_with_other_prefixes_are_read(
    admin: Admin, rest: Rest
) -> None:
    name = fresh()
    body = (
        f'<a:entry xmlns:a="http://www.w3.org/2005/Atom" xmlns:s="{CONNECT}" xmlns:t="{INSTANCE}">'
        '<a:content type="application/xml">\n <s:QueueDescription>\n'
        "  <s:UserMetadata>mine</s:UserMetadata>\n"
        '  <s:AuthorizationRules><s:AuthorizationRule t:type="SharedAccessAuthorizationRule">'
        "<s:ClaimType>SharedAccessKey</s:ClaimType><s:ClaimValue>None</s:ClaimValue>"
        "<s:Rights><s:AccessRights>Send</s:AccessRights></s:Rights><s:KeyName>k</s:KeyName>"
        "<s:PrimaryKey>p</s:PrimaryKey><s:SecondaryKey>s</s:SecondaryKey>"
        "</s:AuthorizationRule></s:AuthorizationRules>\n"
        "  <s:MaxDeliveryCount>7</s:MaxDeliveryCount>\n"
        "  <s:LockDuration>PT30S</s:LockDuration>\n"
        " </s:QueueDescription></a:content></a:entry>"
    )
    made = rest("PUT", f"/{name}/?api-version=2021-05", body, headers={"Content-Type": ATOM})
    assert made.status == 201
    found = admin.get_queue(name)
    assert (found.max_delivery_count, found.user_metadata) == (7, "mine")
    assert found.lock_duration == timedelta(seconds=30)
    assert found.authorization_rules is not None
    assert [each.key_name for each in found.authorization_rules] == ["k"]


def test_addresses_are_the_same_in_upper_and_lower_case(admin: Admin, rest: Rest) -> None:
    topic = topic_with(admin, "s")
    for path in (
        "$resources/TOPICS", "$Resources/Queues", "$NamespaceInfo", f"{topic}/SUBSCRIPTIONS/S",
        f"{topic}/Subscriptions/s/Rules/$default", f"{topic}/subscriptions/s/RULES/", f"{topic}/",
    ):  # fmt: skip
        answer = rest("GET", f"/{path}?api-version=2021-05")
        assert answer.status == 200, path


# Who may.


def rule(name: str, *rights: AccessRights, secondary: str = "second") -> AuthorizationRule:
    return AuthorizationRule(
        type="SharedAccessAuthorizationRule", claim_type="SharedAccessKey", claim_value="None",
        rights=list(rights), key_name=name, primary_key=f"first-{name}",
        secondary_key=f"{secondary}-{name}",
    )  # fmt: skip


def shown(rules: list[AuthorizationRule] | None) -> list[Any]:
    return [
        (each.key_name, sorted(map(str, each.rights or [])), each.primary_key, each.secondary_key)
        for each in rules or []
    ]


def opens(*opening: Callable[[], Any]) -> list[bool]:
    """Which of these a client may open."""

    def may(each: Callable[[], Any]) -> bool:
        try:
            with each():
                return True
        except REFUSED:
            return False

    return together(*(lambda each=each: may(each) for each in opening))


def test_authorization_rules_come_back_as_they_were(admin: Admin) -> None:
    rules = [rule("send", SEND), rule("all", MANAGE, SEND, LISTEN)]
    expected = [
        ("send", ["Send"], "first-send", "second-send"),
        ("all", ["Listen", "Manage", "Send"], "first-all", "second-all"),
    ]
    queue, topic = fresh(), fresh()
    admin.create_queue(queue, authorization_rules=rules)
    admin.create_topic(topic, authorization_rules=rules)
    for found in (admin.get_queue(queue), admin.get_topic(topic)):
        assert shown(found.authorization_rules) == expected
        assert found.authorization_rules is not None
        for each in found.authorization_rules:
            assert (each.claim_type, each.claim_value) == ("SharedAccessKey", "None")
            assert each.type == "SharedAccessAuthorizationRule"
            assert each.created_at_utc is not None


def test_keys_of_an_entity_open_it_as_far_as_they_go(bus: Bus, admin: Admin) -> None:
    queue, other = fresh(), fresh()
    rules = [rule("sends", SEND), rule("listens", LISTEN), rule("manages", MANAGE, SEND, LISTEN)]
    admin.create_queue(queue, authorization_rules=rules)
    admin.create_queue(other)

    def keyed(name: str, key: str) -> ServiceBusClient:
        return bus.client(name, key, retry_total=0)

    assert opens(
        lambda: keyed("sends", "first-sends").get_queue_sender(queue),
        lambda: keyed("sends", "second-sends").get_queue_sender(queue),
        lambda: keyed("sends", "first-sends").get_queue_receiver(queue),
        lambda: keyed("listens", "first-listens").get_queue_sender(queue),
        lambda: keyed("listens", "first-listens").get_queue_receiver(queue),
        lambda: keyed("manages", "second-manages").get_queue_sender(queue),
        lambda: keyed("manages", "first-manages").get_queue_receiver(queue),
        lambda: keyed("sends", "first-listens").get_queue_sender(queue),
        lambda: keyed("sends", "first-sends").get_queue_sender(other),
        lambda: keyed("manages", "first-manages").get_queue_receiver(other),
    ) == [True, True, False, False, True, True, True, False, False, False]


def test_keys_of_a_topic_open_its_subscriptions(bus: Bus, admin: Admin) -> None:
    topic = topic_with(admin, "s", authorization_rules=[rule("in", SEND), rule("out", LISTEN)])
    assert opens(
        lambda: bus.client("in", "first-in", retry_total=0).get_topic_sender(topic),
        lambda: bus.client("out", "first-out", retry_total=0).get_topic_sender(topic),
        lambda: bus.client("in", "first-in", retry_total=0).get_subscription_receiver(topic, "s"),
        lambda: bus.client("out", "first-out", retry_total=0).get_subscription_receiver(topic, "s"),
    ) == [True, False, False, True]


def test_keys_of_an_entity_are_good_for_rest(admin: Admin, rest: Rest) -> None:
    queue, other = fresh(), fresh()
    admin.create_queue(queue, authorization_rules=[rule("in", SEND), rule("out", LISTEN)])
    admin.create_queue(other)

    def status(method: str, path: str, scope: str, name: str, key: str) -> int:
        signed = token(f"{rest.url}/{scope}", name, key)
        return rest(method, path, b"x", token=signed).status

    send, head = f"/{queue}/messages", f"/{queue}/messages/head?timeout=0"
    assert status("POST", send, queue, "in", "first-in") == 201
    assert status("POST", send, queue, "in", "second-in") == 201
    assert status("POST", send, queue, "out", "first-out") == 401
    assert status("POST", send, queue, "in", "first-out") == 401
    assert status("DELETE", head, queue, "in", "first-in") == 401
    assert status("DELETE", head, queue, "out", "first-out") == 200
    assert status("POST", f"/{other}/messages", other, "in", "first-in") == 401
    assert status("POST", f"/{other}/messages", "", "in", "first-in") == 401


def test_a_key_does_not_outlive_its_entity(bus: Bus, admin: Admin, rest: Rest) -> None:
    """Whichever way it was deleted, and though there is one of that name again."""
    name = fresh()
    admin.create_queue(name, authorization_rules=[rule("in", SEND)])
    signed = token(f"{rest.url}/{name}", "in", "first-in")

    def status() -> int:
        return rest("POST", f"/{name}/messages", b"x", token=signed).status

    assert status() == 201
    path = f"/api/v1/namespaces/default/queues/{name}"
    assert bus.broker.call("DELETE", path).status in (200, 204)
    assert status() == 401
    assert bus.broker.call("PUT", path, {}).status == 201
    assert status() == 401
    assert not admin.get_queue(name).authorization_rules
    admin.update_queue(admin.get_queue(name), authorization_rules=[rule("in", SEND)])
    assert status() == 201


def test_a_rule_that_is_taken_away_opens_nothing(bus: Bus, admin: Admin, rest: Rest) -> None:
    name = fresh()
    queue = admin.create_queue(name, authorization_rules=[rule("old", SEND)])

    def sends(key_name: str, key: str) -> int:
        signed = token(f"{rest.url}/{name}", key_name, key)
        return rest("POST", f"/{name}/messages", b"x", token=signed).status

    assert sends("old", "first-old") == 201
    admin.update_queue(queue, authorization_rules=[rule("new", SEND)])
    assert (sends("old", "first-old"), sends("new", "first-new")) == (401, 201)
    admin.update_queue(admin.get_queue(name), max_delivery_count=3)
    assert sends("new", "first-new") == 201
    admin.delete_queue(name)
    admin.create_queue(name)
    assert sends("new", "first-new") == 401


def test_keys_are_gone_with_an_entity_that_was_deleted_through_localzure(
    admin: Admin, rest: Rest
) -> None:
    name = fresh()
    admin.create_queue(name, authorization_rules=[rule("old", SEND)])
    path = f"/servicebus/queues/{name}"
    assert (rest("DELETE", path).status, rest("PUT", path).status) == (200, 201)
    signed = token(f"{rest.url}/{name}", "old", "first-old")
    assert rest("POST", f"/{name}/messages", b"x", token=signed).status == 401


@pytest.mark.parametrize("name", ["a:b", "../x", "$x", "a" * 260, "\\", "\u202e"])
def test_nothing_is_made_with_a_rule_that_cannot_be(admin: Admin, name: str) -> None:
    queue = fresh()
    refused(400, lambda: admin.create_queue(queue, authorization_rules=[rule(name, SEND)]))
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue(queue)


def test_a_rule_does_not_take_the_place_of_somebody_else(bus: Bus, admin: Admin) -> None:
    """Who happens to be called as a key of the entity would be."""
    queue = fresh()
    somebody = f"bob@default/{queue}"
    grants = [{"namespace": "*", "entity": "*", "rights": ["listen"]}]
    made = bus.broker.call("POST", "/api/v1/principals", {"name": somebody, "grants": grants})
    assert made.status == 201, made
    refused(409, lambda: admin.create_queue(queue, authorization_rules=[rule("bob", SEND)]))
    admin.create_queue(queue)
    assert shown(admin.get_queue(queue).authorization_rules) == []
    admin.delete_queue(queue)
    assert (
        bus.broker.call("GET", "/api/v1/namespaces", key=f"{somebody}:{made.json['key']}").status
        == 403
    )


def test_who_manages_an_entity_manages_only_that(bus: Bus, admin: Admin) -> None:
    name, other = fresh(), fresh()
    admin.create_queue(name, authorization_rules=[rule("boss", MANAGE, SEND, LISTEN)])
    admin.create_queue(other)
    scope = f"https://localhost:{bus.broker.port}/{name}"
    with with_token(bus, token(scope, "boss", "first-boss")) as boss:
        boss.update_queue(boss.get_queue(name), max_delivery_count=3)
        with pytest.raises(ClientAuthenticationError):
            boss.get_queue(other)
        with pytest.raises(ClientAuthenticationError):
            list(boss.list_queues())
    assert admin.get_queue(name).max_delivery_count == 3


def test_an_entity_has_twelve_rules_at_most(admin: Admin) -> None:
    rules = [rule(f"k{n}", SEND) for n in range(13)]
    admin.create_queue(fresh(), authorization_rules=rules[:12])
    refused(400, lambda: admin.create_queue(fresh(), authorization_rules=rules))


def test_keys_that_are_not_right_manage_nothing(bus: Bus) -> None:
    for name, key in ((ROOT, "WRONG_KEY"), ("NobodyHere", KEY), ("NobodyHere", "WRONG_KEY")):
        with client(bus, name, key) as made:
            for work in (
                lambda made=made: made.create_queue("never"),
                lambda made=made: made.get_queue("never"),
                lambda made=made: list(made.list_queues()),
                lambda made=made: made.get_namespace_properties(),
                lambda made=made: made.delete_queue("never"),
            ):
                with pytest.raises(ClientAuthenticationError) as caught:
                    work()
                assert caught.value.status_code == 401


def test_who_may_only_send_or_listen_manages_nothing(bus: Bus, admin: Admin) -> None:
    name = fresh()
    queue = admin.create_queue(name)
    for right in ("send", "listen"):
        key = bus.principal(f"only-{right}s", right)
        with client(bus, f"only-{right}s", key) as made:
            with pytest.raises(ClientAuthenticationError):
                made.create_queue(fresh())
            with pytest.raises(ClientAuthenticationError):
                made.update_queue(queue)
            with pytest.raises(ClientAuthenticationError):
                made.delete_queue(name)
    assert isinstance(admin.get_queue(name), QueueProperties)


def test_tokens_that_were_made_elsewhere_are_good_while_they_last(bus: Bus, admin: Admin) -> None:
    name, other = fresh(), fresh()
    for each in (name, other, f"{name}0"):
        admin.create_queue(each)
    host = f"localhost:{bus.broker.port}"
    for scope in ("sb://localhost/", f"https://{host}", host, f"https://{host}/{name}?x=1"):
        with with_token(bus, token(scope)) as made:
            assert made.get_queue(name).name == name
    for text in (
        token("sb://localhost/", seconds=-10),
        token("sb://localhost/", key="WRONG_KEY"),
        token("sb://localhost/", name="NobodyHere"),
        token(f"https://{host}/{other}"),
        token(f"https://{host}/{name[:-1]}"),
        token("sb://localhost/").replace("se=", "se=9"),
        "SharedAccessSignature nonsense",
    ):
        with with_token(bus, text) as made, pytest.raises(ClientAuthenticationError):
            made.get_queue(name)
    narrow = with_token(bus, token(f"https://{host}/{name}"))
    with narrow, pytest.raises(ClientAuthenticationError):
        narrow.get_queue(f"{name}0")


def test_a_request_without_a_token_is_refused(rest: Rest, admin: Admin) -> None:
    name = fresh()
    admin.create_queue(name)
    for method, path in (("GET", name), ("DELETE", name), ("GET", "$Resources/queues")):
        answer = rest(method, f"/{path}?api-version=2021-05", token=None)
        assert answer.status == 401
        assert b"<Code>401</Code>" in answer.body
    assert admin.get_queue(name).name == name


# The asynchronous half.


def asynchronously(bus: Bus, work: Callable[[AsyncAdministrationClient], Awaitable[None]]) -> None:
    async def run() -> None:
        text = bus.connection_string().replace("UseDevelopmentEmulator=true;", "")
        authority = os.environ["SSL_CERT_FILE"]
        async with AsyncAdministrationClient.from_connection_string(
            text, retry_total=0, connection_verify=authority
        ) as made:
            await work(made)

    asyncio.run(run())


def test_queues_are_managed_asynchronously(bus: Bus) -> None:
    async def work(admin: AsyncAdministrationClient) -> None:
        name = f"txt/{fresh()}"
        made = await admin.create_queue(name, **QUEUE)
        assert picked(made, QUEUE) == QUEUE
        queue = await admin.get_queue(name)
        await admin.update_queue(queue, max_delivery_count=3)
        assert (await admin.get_queue(name)).max_delivery_count == 3
        assert (await admin.get_queue_runtime_properties(name)).total_message_count == 0
        assert name in [each.name async for each in admin.list_queues(max_page_size=2)]
        with pytest.raises(ResourceExistsError):
            await admin.create_queue(name)
        await admin.delete_queue(name)
        with pytest.raises(ResourceNotFoundError):
            await admin.get_queue(name)

    asynchronously(bus, work)


def test_topics_and_rules_are_managed_asynchronously(bus: Bus) -> None:
    async def work(admin: AsyncAdministrationClient) -> None:
        topic = fresh()
        await admin.create_topic(topic, **TOPIC)
        await admin.create_subscription(topic, "s", **SUBSCRIPTION)
        await admin.delete_rule(topic, "s", "$Default")
        await admin.create_rule(topic, "s", "r", filter=SqlRuleFilter("n = @n", {"@n": 1 << 40}))
        [found] = [each async for each in admin.list_rules(topic, "s")]
        assert isinstance(found.filter, SqlRuleFilter)
        assert found.filter.parameters == {"@n": 1 << 40}
        found.filter = CorrelationRuleFilter(properties={"when": WHEN})
        await admin.update_rule(topic, "s", found)
        after = await admin.get_rule(topic, "s", "r")
        assert isinstance(after.filter, CorrelationRuleFilter)
        assert after.filter.properties == {"when": WHEN}
        assert (await admin.get_topic_runtime_properties(topic)).subscription_count == 1
        await admin.delete_topic(topic)

    asynchronously(bus, work)


def test_a_dead_letter_queue_is_no_entity_of_its_own(bus: Bus, admin: Admin) -> None:
    name = fresh()
    admin.create_queue(name)
    dead = bus.client().get_queue_receiver(name, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    assert bus.closing(dead).__enter__().receive_messages(max_wait_time=NOTHING) == []
    assert not [each.name for each in admin.list_queues() if "$" in each.name]
    with pytest.raises(HttpResponseError):
        admin.create_queue(f"{name}/$DeadLetterQueue")


# Rules that are made one right after the other.


def test_a_rule_is_found_as_soon_as_it_was_made(bus: Bus, admin: Admin) -> None:
    """Whoever makes others at the same time, on whichever connection it is asked for."""
    topic = topic_with(admin, *(f"s{number}" for number in range(6)))

    def work(number: int) -> list[str]:
        name = f"s{number}"
        with client(bus) as first, client(bus) as second:
            for at in range(12):
                rule = f"Rule.{number}-{at}_x"
                first.create_rule(topic, name, rule, filter=SqlRuleFilter(f"n = {at}"))
                for asked in (first, second):
                    for spelled in (rule, rule.upper()):
                        kept = asked.get_rule(topic, name, spelled).filter
                        assert isinstance(kept, SqlRuleFilter)
                        assert kept.sql_expression == f"n = {at}"
                    assert isinstance(
                        asked.get_rule(topic, name, "$Default").filter, TrueRuleFilter
                    )
                first.create_rule(topic, name, f"{rule}2")
                assert second.get_rule(topic, name, f"{rule}2").name == f"{rule}2"
                second.delete_rule(topic, name, f"{rule}2")
        return [rule.name for rule in admin.list_rules(topic, name)]

    listed = together(*(partial(work, number) for number in range(6)))
    for number, names in enumerate(listed):
        assert set(names) == {f"Rule.{number}-{at}_x" for at in range(12)} | {"$Default"}


# Tiers.


@contextmanager
def tiered(folder: Path, *flags: str) -> Iterator[tuple[Bus, Admin]]:
    with running("--data", str(folder), "--dev", *flags) as broker:
        bus = Bus(broker)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in trusting(broker).items():
                patch.setenv(name, value)
            with client(bus) as made:
                yield bus, made
        bus.close()


def test_a_broker_for_development_is_of_the_standard_tier(tmp_path: Path) -> None:
    with tiered(tmp_path) as (bus, admin):
        space = admin.get_namespace_properties()
        assert (space.messaging_sku, space.messaging_units) == ("Standard", None)
        made = admin.create_queue("q", enable_express=True, enable_partitioning=True)
        assert made.max_message_size_in_kilobytes == 256
        admin.update_queue(made, max_delivery_count=3)  # which says 256 again
        for size in (1_024, 2_048):
            for create in (admin.create_queue, admin.create_topic):
                refused(400, partial(create, "large", max_message_size_in_kilobytes=size))
        with bus.client() as connected, connected.get_queue_sender("q") as sender:
            assert sender.create_message_batch().max_size_in_bytes == 256 << 10
            sender.send_messages(ServiceBusMessage(b"x" * (255 << 10)))
            with pytest.raises(MessageSizeExceededError):
                sender.send_messages(ServiceBusMessage(b"x" * (256 << 10)))
        assert bus.counts("q")["active"] == 1
        assert Rest(bus.broker.port)("POST", "/q/messages", b"x" * (257 << 10)).status == 403


def test_our_own_client_sends_large_messages_in_every_tier(tmp_path: Path) -> None:
    with tiered(tmp_path) as (bus, admin):
        admin.create_queue("q")
        url = f"posthouse://{ROOT}:{KEY}@127.0.0.1:{bus.broker.port}"
        with create_sync_client(url) as ours:
            ours.send_message("q", Message(b"x" * (900 << 10)))
            with pytest.raises(MessageTooLarge) as caught:
                ours.send_message("q", Message(b"x" * (1 << 20)))
            assert caught.value.max_size == 1 << 20
        [message] = bus.receiver("q").receive_messages(max_wait_time=5)
        assert len(b"".join(message.body)) == 900 << 10


def test_the_premium_tier_has_large_messages_and_no_express_entities(tmp_path: Path) -> None:
    with tiered(tmp_path, "--servicebus-tier", "premium") as (bus, admin):
        space = admin.get_namespace_properties()
        assert (space.messaging_sku, space.messaging_units) == ("Premium", 1)
        for create in (admin.create_queue, admin.create_topic):
            refused(400, partial(create, "express", enable_express=True))
            refused(400, partial(create, "parted", enable_partitioning=True))
            refused(400, partial(create, "small", max_message_size_in_kilobytes=256))
        made = admin.create_queue("q", max_message_size_in_kilobytes=2_048)
        assert made.max_message_size_in_kilobytes == 2_048
        bus.sender("q").send_messages(ServiceBusMessage(b"x" * (1_500 << 10)))
        assert bus.counts("q")["active"] == 1
