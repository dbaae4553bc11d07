"""Topics and subscriptions: sent to, received from, with sessions and dead letters; by workers."""

import asyncio

import pytest

from posthouse.client.admin import Rule
from posthouse.client.errors import QueueNotFound, Unsupported, ValidationError
from posthouse.client.messages import Message, ReceivedMessage
from posthouse.client.names import SubscriptionName
from posthouse.client.retry import NoRetry
from posthouse.client.worker import Worker
from tests.client.conformance.rigs import Rig, unused
from tests.client.conformance.table import AZURE, can

# From Python 3.12 on Azure's SDK is told off for asking elements whether they are true.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Testing an element:DeprecationWarning"),
    pytest.mark.long,
]


async def topic(rig: Rig, *, sessions: bool = False) -> tuple[str, SubscriptionName]:
    """A topic whose name has a slash, and its subscription."""
    name = f"team/{unused()}"
    await rig.client.admin.ensure_topic(name)
    subscription = SubscriptionName(name, "bills")
    await rig.client.admin.ensure_subscription(subscription, sessions=sessions)
    return name, subscription


async def test_a_provider_without_topics_says_so(rig: Rig) -> None:
    if can(rig.type, "Topics and subscriptions"):
        return
    name, admin = "events/$sub/bills", rig.client.admin
    for work in (
        rig.client.receive_message(name, 0.1), rig.client.peek_messages(name),
        rig.sessions.accept_session(name, timeout=0.1), admin.ensure_topic("events"),
        admin.ensure_subscription(name), admin.rules(name), admin.subscriptions("events"),
        admin.ensure_rule(name, Rule("all")), admin.delete_rule(name, "all"), admin.topics(),
        admin.counts(name),
    ):  # fmt: skip
        with pytest.raises(Unsupported):
            await work


async def test_each_subscription_gets_what_is_sent_to_its_topic(rig: Rig) -> None:
    if not can(rig.type, "Topics and subscriptions"):
        return
    name, first = await topic(rig)
    second = f"{name}/$sub/stock"  # as text
    await rig.client.admin.ensure_subscription(second)
    id = await rig.client.send_message(name, Message(b"x", {"n": 1}, subject="s"))
    for each in (first, second):
        found = await rig.client.receive_message(each, 5)
        assert found is not None
        assert (found.message_id, found.body, found.attributes) == (id, b"x", {"n": 1})
        assert await rig.client.renew_message_lock(found) is not None
        await rig.client.complete_message(found)
        assert await rig.client.receive_message(each, 0.2) is None


async def test_dead_letters_of_a_subscription(rig: Rig) -> None:
    if not can(rig.type, "Topics and subscriptions"):
        return
    name, subscription = await topic(rig)
    await rig.client.send_message(name, Message(b"x"))
    found = await rig.client.receive_message(subscription, 5)
    assert found is not None
    await rig.client.dead_letter_message(found, "wrong", "very")
    dead = await rig.client.receive_message(subscription, 5, dead_letter=True)
    assert dead is not None
    assert (dead.body, dead.dead_letter_reason, dead.dead_letter_description) == (
        b"x", "wrong", "very",
    )  # fmt: skip
    if rig.type is AZURE:
        with pytest.raises(Unsupported, match="target="):
            await rig.client.resubmit_messages(subscription, [dead])
        await rig.client.resubmit_messages(subscription, [dead], target=name)
    else:
        await rig.client.resubmit_messages(subscription, [dead])
    back = await rig.client.receive_message(subscription, 5)
    assert back is not None
    assert (back.body, back.dead_letter_reason) == (b"x", None)
    await rig.client.complete_message(back)
    assert await rig.client.receive_message(subscription, 0.2, dead_letter=True) is None


async def test_sessions_of_a_subscription(rig: Rig) -> None:
    if not can(rig.type, "Topics and subscriptions"):
        return
    name, subscription = await topic(rig, sessions=True)
    for body in (b"1", b"2"):
        await rig.client.send_message(name, Message(body, session_id="s"))
    session = await rig.client.accept_session(subscription, "s")
    assert session is not None
    async with session:
        await session.set_state(b"half")
        for body in (b"1", b"2"):
            found = await session.receive_message(5)
            assert found is not None
            assert found.body == body
            await session.complete_message(found)
        assert await session.get_state() == b"half"


async def test_a_subscription_is_peeked_deferred_and_iterated(rig: Rig) -> None:
    if not can(rig.type, "Topics and subscriptions"):
        return
    name, subscription = await topic(rig)
    await rig.client.send_message(name, Message(b"x"))
    async with rig.client.receiver(subscription) as receiver:
        found = await anext(receiver)
        await rig.client.defer_message(found)
    [seen] = await rig.client.peek_messages(subscription)
    assert seen.sequence_number == found.sequence_number
    [back] = await rig.client.receive_deferred_messages(subscription, [seen.sequence_number])
    await rig.client.complete_message(back)
    assert await rig.client.peek_messages(subscription) == []


async def test_a_subscription_cannot_be_sent_to(rig: Rig) -> None:
    for work in (
        rig.client.send_message("events/$sub/bills", Message(b"x")),
        rig.client.resubmit_messages("events", [], target="events/$sub/bills"),
    ):
        with pytest.raises(ValidationError, match="topic 'events'"):
            await work


async def test_a_missing_subscription_is_named(rig: Rig) -> None:
    if not can(rig.type, "Topics and subscriptions"):
        return
    name, _ = await topic(rig)
    with pytest.raises(QueueNotFound) as caught:
        await rig.client.receive_message(f"{name}/$sub/nobody", 0.2)
    assert caught.value.queue_name == f"{name}/$sub/nobody"


@pytest.mark.parametrize("sessions", [False, True], ids=["plain", "sessions"])
async def test_a_worker_handles_a_subscription_and_its_dead_letters(
    rig: Rig, sessions: bool
) -> None:
    if not can(rig.type, "Topics and subscriptions"):
        return
    name, subscription = await topic(rig, sessions=sessions)
    app, dead = Worker(rig.client, retry=NoRetry()), asyncio.Event()
    seen: list[tuple[str, bytes]] = []

    @app.handler(subscription, sessions=sessions)
    async def handle(message: ReceivedMessage) -> None:
        seen.append(("handled", message.body))
        raise LookupError

    @app.handler(subscription, dead_letter=True)
    async def bury(message: ReceivedMessage) -> None:
        seen.append(("buried", message.body))
        dead.set()

    async with app.running():
        await rig.client.send_message(name, Message(b"x", session_id="s" if sessions else None))
        await asyncio.wait_for(dead.wait(), 30)
    assert seen == [("handled", b"x"), ("buried", b"x")]
