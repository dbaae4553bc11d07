"""Administration, on every provider alike, as far as it has it."""

from datetime import timedelta

import pytest

from posthouse.client.admin import Rule
from posthouse.client.client import QueueClient
from posthouse.client.errors import QueueError, QueueNotFound, Unsupported, ValidationError
from posthouse.client.messages import Message
from posthouse.client.names import SubscriptionName
from tests.client.conformance.rigs import Rig, unused
from tests.client.conformance.table import AZURE, SQS, can

pytestmark = [
    pytest.mark.filterwarnings("ignore:Testing an element:DeprecationWarning"),
    pytest.mark.long,
]


async def sent(client: QueueClient, queue: str, *bodies: bytes) -> None:
    for body in bodies:
        await client.send_message(queue, Message(body))


async def test_a_queue_is_there_once_it_is_ensured_and_gone_once_it_is_deleted(rig: Rig) -> None:
    name, admin = f"made-{unused()}", rig.client.admin
    assert await admin.ensure_queue(name) is True
    assert await admin.ensure_queue(name) is False
    assert name in await admin.queues()
    await sent(rig.client, name, b"x")
    found = await rig.client.receive_message(name, 5)
    assert found is not None
    await rig.client.dead_letter_message(found, "wrong")
    dead = await rig.client.receive_message(name, 5, dead_letter=True)
    assert dead is not None
    await rig.client.complete_message(dead)
    await admin.delete_queue(name)
    assert name not in await admin.queues()
    for work in (admin.delete_queue(name), admin.update_queue(name, max_delivery_count=2)):
        with pytest.raises(QueueNotFound) as caught:
            await work
        assert caught.value.queue_name == name


async def test_settings_hold_when_they_are_ensured_and_when_they_are_changed(rig: Rig) -> None:
    name, admin = f"made-{unused()}", rig.client.admin
    await admin.ensure_queue(name, max_delivery_count=5, lock_duration=timedelta(seconds=30))
    for most, change in ((1, admin.ensure_queue), (2, admin.update_queue)):
        await change(name, max_delivery_count=most)
        await sent(rig.client, name, b"x")
        for _ in range(most):
            found = await rig.client.receive_message(name, 5)
            assert found is not None
            assert 25 < found.receipt_handle.time_until_expiry().total_seconds() <= 31
            await rig.client.abandon_message(found)
        assert await rig.client.receive_message(name, 0.5) is None
        dead = await rig.client.receive_message(name, 5, dead_letter=True)
        assert dead is not None
        await rig.client.complete_message(dead)


async def test_a_queue_with_sessions(rig: Rig) -> None:
    name = f"made-{unused()}"
    assert await rig.sessions.admin.ensure_queue(name, sessions=True)
    await rig.sessions.send_message(name, Message(b"x", session_id="s"))
    session = await rig.sessions.accept_session(name, timeout=5)
    assert session is not None
    async with session:
        found = await session.receive_message(5)
        assert found is not None
        await session.complete_message(found)
    with pytest.raises(QueueError):  # that cannot be changed
        await rig.sessions.admin.update_queue(name, sessions=False)


async def test_what_cannot_be_a_setting_is_refused(rig: Rig) -> None:
    admin = rig.client.admin
    for given in (
        {"lock": 5}, {"lock_duration": "long"}, {"lock_duration": 0}, {"max_delivery_count": True},
        {"sessions": 1}, {"lock_duration": float("nan")},
    ):  # fmt: skip
        with pytest.raises(ValidationError):
            await admin.ensure_queue("any", **given)
    with pytest.raises(ValidationError):
        await admin.update_queue("any")
    with pytest.raises(ValidationError, match="SubscriptionName"):
        await admin.ensure_subscription("any")
    if rig.type is SQS:
        for setting in ({"sessions": True}, {"forward_to": "x"}, {"dead_letter_expired": True}):
            with pytest.raises(Unsupported):
                await admin.ensure_queue("any", **setting)
        assert "any" not in await admin.queues()


async def test_a_name_that_the_provider_does_not_take_is_named_in_one_sentence(rig: Rig) -> None:
    if rig.type not in (AZURE, SQS):  # the others take every name
        return
    with pytest.raises(ValidationError) as caught:
        await rig.client.admin.ensure_queue("a:b")
    assert str(caught.value).startswith("The request to create 'a:b' is refused")
    assert "Content:" not in str(caught.value)


async def test_counts_and_purging(rig: Rig) -> None:
    name, admin = f"made-{unused()}", rig.client.admin
    await admin.ensure_queue(name)
    if rig.type is not SQS:  # which purges a queue once a minute
        assert await admin.purge(name) == 0
    await sent(rig.client, name, b"1", b"2", b"3", b"4")
    found = [await rig.client.receive_message(name, 5) for _ in "12"]
    assert found[0] is not None
    assert found[1] is not None
    await rig.client.dead_letter_message(found[0], "wrong")
    counts = await admin.counts(name)
    assert counts.dead_letter == 1
    if rig.type is not AZURE:  # where locked messages are active too
        assert (counts.active, counts.locked) == (2, 1)
    await rig.client.abandon_message(found[1])
    assert (await admin.counts(name)).active == 3
    if rig.type is SQS:
        assert await admin.purge(name) == 3
    else:
        await rig.client.send_message(name, Message(b"later", delay=3_600))
        assert (await admin.counts(name)).scheduled == 1
        assert await admin.purge(name) == 3
        assert (await admin.counts(name)).scheduled == 1
    assert (await admin.counts(name))[:2] == (0, 1)
    assert await admin.purge(name, dead_letter=True) == 1
    assert (await admin.counts(name)).dead_letter == 0
    for work in (admin.counts("nobody"), admin.purge("nobody")):
        with pytest.raises(QueueNotFound):
            await work


async def test_purging_reaches_all_sessions(rig: Rig) -> None:
    if rig.type is SQS:
        return
    name = f"made-{unused()}"
    await rig.client.admin.ensure_queue(name, sessions=True)
    for session in "abb":
        await rig.client.send_message(name, Message(b"x", session_id=session))
    assert await rig.client.admin.purge(name) == 3
    assert (await rig.client.admin.counts(name)).active == 0


async def test_topics_subscriptions_and_rules(rig: Rig) -> None:
    if not can(rig.type, "Topics and subscriptions"):
        return
    name, admin = f"team/{unused()}", rig.client.admin
    assert await admin.ensure_topic(name, time_to_live=3_600) is True
    assert await admin.ensure_topic(name, time_to_live=7_200) is False
    assert name in await admin.topics()
    assert name not in await admin.queues()
    dear = SubscriptionName(name, "dear")
    rules = [Rule("amount", "amount > 100", action="SET dear = 'yes'")]
    assert await admin.ensure_subscription(dear, rules=rules, max_delivery_count=4) is True
    assert await admin.rules(dear) == rules
    everything = SubscriptionName(name, "all")
    assert await admin.ensure_subscription(everything)
    assert await admin.subscriptions(name) == ["all", "dear"]
    for amount in (1, 1_000):
        await rig.client.send_message(name, Message(b"x", {"amount": amount}, subject="a.b"))
    found = await rig.client.receive_message(dear, 5)
    assert found is not None
    assert found.attributes == {"amount": 1_000, "dear": "yes", "RuleName": "amount"}
    await rig.client.complete_message(found)
    assert (await admin.counts(everything)).active == 2
    assert await admin.purge(everything) == 2
    await admin.update_topic(name, time_to_live=60)
    await admin.update_subscription(dear, max_delivery_count=7)
    for work in (
        admin.ensure_subscription(SubscriptionName("nobody", "x")), admin.rules("nobody/$sub/x"),
        admin.update_topic("nobody", time_to_live=5), admin.delete_subscription(f"{name}/$sub/no"),
        admin.subscriptions("nobody"), admin.delete_topic("nobody"),
    ):  # fmt: skip
        with pytest.raises(QueueNotFound):
            await work
    await admin.delete_subscription(dear)
    assert await admin.subscriptions(name) == ["all"]
    await admin.delete_topic(name)
    assert name not in await admin.topics()


async def test_rules_are_those_that_were_ensured_last(rig: Rig) -> None:
    if not can(rig.type, "Topics and subscriptions"):
        return
    name, admin = unused(), rig.client.admin
    await admin.ensure_topic(name)
    subscription = SubscriptionName(name, "s")
    await admin.ensure_subscription(subscription)
    assert [each.name for each in await admin.rules(subscription)] == ["$Default"]
    equal = Rule("equal", fields={"subject": "a", "message_id": "m"}, attributes={"n": 1, "b": "x"})
    await admin.ensure_rule(subscription, equal)
    assert equal in await admin.rules(subscription)
    changed = Rule("equal", "n = 2")
    await admin.ensure_rule(subscription, changed)
    assert changed in await admin.rules(subscription)
    await admin.ensure_subscription(subscription, rules=[changed, Rule("new", "n = 3")])
    assert sorted(each.name for each in await admin.rules(subscription)) == ["equal", "new"]
    await admin.delete_rule(subscription, "new")
    assert await admin.rules(subscription) == [changed]
    with pytest.raises(QueueError):
        await admin.ensure_rule(subscription, Rule("wrong", "n = = 1"))
    pattern = Rule("pattern", pattern="orders.*.created")
    if rig.type is AZURE:
        with pytest.raises(Unsupported, match="LIKE"):
            await admin.ensure_rule(subscription, pattern)
    else:
        await admin.ensure_rule(subscription, pattern)
        assert pattern in await admin.rules(subscription)


async def test_a_topic_is_no_queue_and_a_queue_is_no_topic(rig: Rig) -> None:
    if not can(rig.type, "Topics and subscriptions"):
        return
    topic, queue, admin = unused(), unused(), rig.client.admin
    await admin.ensure_topic(topic)
    await admin.ensure_queue(queue)
    for work in (
        admin.delete_queue(topic), admin.delete_topic(queue), admin.ensure_queue(topic),
        admin.update_topic(queue, time_to_live=5),
    ):  # fmt: skip
        with pytest.raises(QueueError):
            await work
    assert topic in await admin.topics()
    assert queue in await admin.queues()


def test_a_rule_has_one_kind_of_condition() -> None:
    for given in (
        {"sql": "a", "fields": {"to": "x"}}, {"sql": "a", "pattern": "x"}, {"name": ""},
        {"fields": {"size": "x"}},
    ):  # fmt: skip
        with pytest.raises(ValidationError):
            Rule(**({"name": "r"} | given))
