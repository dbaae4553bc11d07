"""What can be looked at without a command: values, of what there is at that moment."""

import asyncio
import copy
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest

from posthouse.broker.access import BROKER, Principal
from posthouse.broker.slices import SLICE_STEPS
from posthouse.broker.view import Overview, View
from posthouse.broker.view_messages import MessagesView
from posthouse.core.commands import (
    AcceptSession,
    Attach,
    Begin,
    Begun,
    Complete,
    Counts,
    CreateQueue,
    CreateSubscription,
    DeadLetter,
    DeleteQueue,
    Granted,
    Receive,
    RemoveRule,
    Send,
    SetRule,
    SetSchedule,
    UpdateQueue,
    Work,
)
from posthouse.core.errors import QuotaExceeded
from posthouse.core.message import ACTIVE, LOCKED, Envelope, NewMessage, encode_envelope
from posthouse.core.model import (
    Account,
    Blocked,
    Grant,
    Group,
    Lock,
    Queue,
    QueueProperties,
    Reader,
    Receiver,
    Right,
    State,
    Transaction,
    dead_letter_queue,
    subscription_queue,
)
from posthouse.core.namespaces import (
    CreateNamespace,
    DeleteNamespace,
    RemoveReader,
    RevokeAccount,
    SetAccount,
    SetReader,
    entity_key,
)
from posthouse.core.rules import PatternFilter, Rule
from posthouse.core.shares import QUEUES, Holder
from posthouse.store.memory import MemoryStore
from tests.broker.desk import NS, Desk
from tests.turns import Turns

ID = "4f0c"
KEY = entity_key(NS, "q", "sender")
ONE = subscription_queue("t", "one")
EVERY_RIGHT: list[Right] = ["manage", "send", "listen"]


def on(test: Callable[[Desk], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(await full())

    asyncio.run(main())


async def full() -> Desk:
    """A namespace with something of everything."""
    desk = await Desk.open(MemoryStore(), max_messages=100, duplicate_detection=True)
    envelope = encode_envelope(Envelope(id=ID, subject="a.b"))
    await desk.do(Send("q", [NewMessage(envelope, b"body")], ["key"]))
    await desk.send("two", "three")
    await desk.do(CreateQueue("t", QueueProperties(delivery="topic")))
    await desk.do(CreateSubscription(ONE, rules=[Rule("r", PatternFilter("a.*"))]))
    await desk.do(CreateQueue("s", QueueProperties(requires_session=True, grouping="session")))
    await desk.do(Send("s", [NewMessage(b"\x80", b"grouped", group="g")]))
    message = NewMessage(b"\x80", b"again")
    await desk.do(SetSchedule("q", "nightly", "0 3 * * *", message))
    await desk.engine.ask(BROKER, "", SetReader("lake", 3))
    grants = [Grant(NS, "q", EVERY_RIGHT)]
    await desk.engine.ask(BROKER, "", SetAccount(KEY, grants, [b"sealed"], new=True))
    return desk


async def held(desk: Desk) -> int:
    """The token of a lock on the first message, by whose id it can be settled."""
    [delivery] = await desk.receive(by_id=True)
    return delivery.token


# Values.

CALLS: dict[str, Callable[[View, int], object]] = {
    "namespaces": lambda view, _: view.namespaces(),
    "has_namespace": lambda view, _: view.has_namespace(NS),
    "find_namespace": lambda view, _: view.find_namespace(NS.upper()),
    "overview": lambda view, _: view.overview(),
    "oldest_ms": lambda view, _: view.oldest_ms(NS, "q"),
    "oldest_ms_by_namespace": lambda view, _: view.oldest_ms_by_namespace(),
    "turned_back": lambda view, _: view.turned_back(),
    "find": lambda view, _: view.find(NS, "Q"),
    "exists": lambda view, _: view.exists(NS, "q"),
    "names": lambda view, _: (view.names(NS), view.names(NS, "topic")),
    "count": lambda view, _: (view.count(NS, "queue"), view.count(NS, "topic")),
    "entity": lambda view, _: view.entity(NS, "q"),
    "entities": lambda view, _: view.entities(),
    "properties": lambda view, _: view.properties(NS, "q"),
    "counts": lambda view, _: view.counts(NS, "q"),
    "size": lambda view, _: view.size(NS, "q"),
    "used": lambda view, _: view.used(NS, "t"),
    "counted": lambda view, _: view.counted(NS, "q"),
    "check_room": lambda view, _: view.check_room(NS, "q", 1),
    "check_share": lambda view, _: view.check_share(NS, Holder("ann"), QUEUES, "", 10),
    "subscriptions": lambda view, _: view.subscriptions(NS, "t"),
    "rules": lambda view, _: view.rules(NS, ONE),
    "matches": lambda view, _: view.matches(NS, "t", encode_envelope(Envelope(subject="a.b"))),
    "match_effort": lambda view, _: view.match_effort(NS, "t"),
    "schedule": lambda view, _: view.schedule(NS, "nightly"),
    "schedules": lambda view, _: view.schedules(NS, ["q"]),
    "jobs": lambda view, _: view.jobs(NS, "q"),
    "entity_keys": lambda view, _: view.entity_keys(NS, "Q"),
    "reader": lambda view, _: view.reader("lake"),
    "readers": lambda view, _: view.readers(),
    "messages.get": lambda view, _: view.messages.get(NS, "q", 1),
    "messages.page": lambda view, _: view.messages.page(NS, "q", 0, 10),
    "messages.ready": lambda view, _: view.messages.ready(NS, "q", 10, 2_000),
    "messages.oldest": lambda view, _: view.messages.oldest(NS, "q", ACTIVE, 10),
    "messages.repeated": lambda view, _: view.messages.repeated(NS, "q", "key", 2_000),
    "messages.lock": lambda view, token: view.messages.lock(NS, token),
    "messages.tokens": lambda view, _: view.messages.tokens(NS, ID),
    "messages.sole_lock": lambda view, _: view.messages.sole_lock(NS, ID),
    "messages.sole_locks": lambda view, _: view.messages.sole_locks(NS, "q", [ID]),
    "messages.is_shared": lambda view, _: view.messages.is_shared(NS, ID),
    "messages.session_token": lambda view, _: view.messages.session_token(NS, "s", "g"),
    "messages.has_receiver": lambda view, _: view.messages.has_receiver(NS, 77),
    "messages.receivers": lambda view, _: view.messages.receivers(NS, "q"),
}
PARTS = (Account, Reader, Rule, QueueProperties)  # of the state; they are replaced, not changed
LIVE = (State, Queue, Group, Receiver, Blocked, Lock, Transaction)


def test_every_method_of_the_view_is_tried_here() -> None:
    methods = {name for name in vars(View) if not name.startswith("_")}
    methods |= {f"messages.{name}" for name in vars(MessagesView) if not name.startswith("_")}
    assert methods == set(CALLS)


async def called(name: str, desk: Desk, token: int) -> object:
    found = CALLS[name](desk.engine.view, token)
    return await found if isinstance(found, Awaitable) else found


def inside(value: Any) -> Iterator[object]:
    """A value and all that is in it, but for what is in those parts of a state."""
    yield value
    if isinstance(value, PARTS):
        return
    parts: list[Any] = []
    if isinstance(value, msgspec.Struct):
        parts = [getattr(value, name) for name in value.__struct_fields__]
    elif isinstance(value, dict | OrderedDict):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset | deque):
        parts = [*value]
    for part in parts:
        yield from inside(part)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_returned_has_no_part_of_the_state_that_could_be_changed(name: str) -> None:
    async def test(desk: Desk) -> None:
        token = await held(desk)
        found = list(inside(await called(name, desk, token)))
        assert not [each for each in found if isinstance(each, LIVE)]
        mine = {id(each) for each in found if isinstance(each, dict | list | set | deque)}
        world = desk.engine.world
        containers = [world.states, world.names, world.accounts, world.readers, world.held]
        for state in world.states.values():
            for live in (state, *state.queues.values(), *state.locks.values()):
                values = [getattr(live, field) for field in live.__struct_fields__]
                containers += [v for v in values if isinstance(v, dict | list | set | deque)]
        assert not mine & set(map(id, containers))

    on(test)


@pytest.mark.parametrize("name", CALLS)
def test_what_was_returned_stays_as_it_was_when_everything_changes(name: str) -> None:
    async def test(desk: Desk) -> None:
        token = await held(desk)
        found = await called(name, desk, token)
        as_it_was = copy.deepcopy(found)
        await desk.do(Complete("q", [token]))
        await desk.send("another")
        await desk.do(UpdateQueue("q", QueueProperties(duplicate_detection=True, max_bytes=1)))
        await desk.do(SetRule(ONE, Rule("second")))
        await desk.do(RemoveRule(ONE, "r"))
        await desk.engine.advance(24 * 3_600_000)
        await desk.do(DeleteQueue("q"))
        await desk.engine.ask(BROKER, "", SetReader("lake", 4))
        await desk.engine.ask(BROKER, "", RemoveReader("lake"))
        await desk.engine.ask(BROKER, "", DeleteNamespace(NS))
        assert found == as_it_was

    on(test)


def test_nobody_can_write_through_the_accounts() -> None:
    async def test(desk: Desk) -> None:
        accounts: Any = desk.engine.view.accounts
        with pytest.raises(TypeError):
            accounts["eve"] = accounts[KEY]
        with pytest.raises(AttributeError):
            accounts[KEY].name = "eve"

    on(test)


def test_a_revoked_account_is_gone_from_the_accounts_at_once() -> None:
    async def test(desk: Desk) -> None:
        accounts = desk.engine.view.accounts
        assert desk.engine.view.entity_keys(NS, "Q") == [KEY]
        await desk.engine.ask(BROKER, "", RevokeAccount(KEY))
        assert KEY not in accounts
        assert desk.engine.view.entity_keys(NS, "Q") == []

    on(test)


# What is not there.


@pytest.mark.parametrize(("namespace", "queue"), [(NS, "nowhere"), ("nowhere", "q")])
def test_an_entity_that_is_not_there_has_no_properties_and_holds_nothing(
    namespace: str, queue: str
) -> None:
    async def test(desk: Desk) -> None:
        view, messages = desk.engine.view, desk.engine.view.messages
        assert not view.exists(namespace, queue)
        assert view.entity(namespace, queue) is None
        assert view.properties(namespace, queue) is None
        assert view.find(namespace, queue) is None
        assert view.oldest_ms(namespace, queue) is None
        assert view.counts(namespace, queue) == Counts(0, 0, 0, 0, 0, 0)
        assert view.size(namespace, queue) == view.used(namespace, queue) == (0, 0)
        assert view.subscriptions(namespace, queue) == []
        assert view.rules(namespace, queue) == ()
        assert view.matches(namespace, queue, b"\x80") == []
        assert view.match_effort(namespace, queue) == 0
        assert view.schedule(namespace, queue) is None
        assert messages.get(namespace, queue, 1) is None
        assert messages.page(namespace, queue, 0, 10) == []
        assert messages.ready(namespace, queue, 10, 0) == []
        assert messages.oldest(namespace, queue, ACTIVE, 10) == []
        assert messages.repeated(namespace, queue, "key", 0) is None
        assert messages.session_token(namespace, queue, "g") == 0
        assert messages.receivers(namespace, queue) == 0
        view.check_room(namespace, queue, 1 << 40)

    on(test)


def test_there_is_nothing_in_a_namespace_that_is_not_there() -> None:
    async def test(desk: Desk) -> None:
        view, messages = desk.engine.view, desk.engine.view.messages
        assert not view.has_namespace("nowhere")
        assert view.find_namespace("nowhere") is None
        assert await view.overview("nowhere") == Overview()
        assert view.names("nowhere") == []
        assert view.count("nowhere", "queue") == view.count("nowhere", "topic") == 0
        assert view.schedules("nowhere", ["q"]) == []
        assert messages.lock("nowhere", 1) is None
        assert messages.lock(NS, 1) is None
        assert messages.tokens("nowhere", ID) == ()
        assert messages.sole_lock("nowhere", ID) is None
        assert messages.sole_locks("nowhere", "q", [ID]) == {}
        assert not messages.is_shared("nowhere", ID)
        assert not messages.has_receiver("nowhere", 77)
        assert view.reader("nowhere") is None

    on(test)


# Entities.


def test_names_are_in_order_and_by_kind() -> None:
    async def test(desk: Desk) -> None:
        view = desk.engine.view
        assert view.names(NS) == ["q", "s", "t"]
        assert view.names(NS, "queue") == ["q", "s"]
        assert view.names(NS, "topic") == ["t"]

    on(test)


def test_a_name_is_found_whatever_the_case_of_its_letters() -> None:
    async def test(desk: Desk) -> None:
        view = desk.engine.view
        assert view.find(NS, "Q") == "q"
        assert view.find(NS, dead_letter_queue("Q")) == dead_letter_queue("q")
        assert view.find_namespace(NS.upper()) == NS
        assert not view.exists(NS, "Q")

    on(test)


def test_every_entity_says_what_kind_it_is() -> None:
    async def test(desk: Desk) -> None:
        await desk.do(CreateQueue("f", QueueProperties(forward_to="q")))
        view = desk.engine.view
        kinds = {each.name: each.kind for each in view.entities()}
        assert kinds["q"] == "queue"
        assert kinds["t"] == "topic"
        assert kinds[ONE] == "subscription"
        assert kinds[dead_letter_queue("q")] == kinds[dead_letter_queue(ONE)] == "dead-letter"
        assert kinds["f/$transfer"] == "transfer"
        assert view.entities(1) == [view.entity(NS, "q")]

    on(test)


def test_dead_letters_are_counted_with_their_queue_and_in_their_own() -> None:
    async def test(desk: Desk) -> None:
        await desk.do(DeadLetter("q", [await held(desk)]))
        view, dead = desk.engine.view, dead_letter_queue("q")
        assert view.counts(NS, "q") == Counts(2, 0, 0, 0, 0, 1)
        assert view.counts(NS, dead) == Counts(1, 0, 0, 0, 0, 0)
        assert view.size(NS, dead).messages == 1

    on(test)


def test_a_topic_uses_the_room_of_its_subscriptions() -> None:
    async def test(desk: Desk) -> None:
        envelope = encode_envelope(Envelope(subject="a.b"))
        await desk.do(Send("t", [NewMessage(envelope, b"body")]))
        view = desk.engine.view
        assert view.subscriptions(NS, "t") == [ONE]
        assert (view.size(NS, "t").messages, view.used(NS, "t").messages) == (0, 1)
        assert view.used(NS, "t") == view.size(NS, ONE)

    on(test)


def test_an_overview_counts_entities_messages_and_locks() -> None:
    async def test(desk: Desk) -> None:
        await desk.do(DeadLetter("q", [await held(desk)]))
        await held(desk)
        await desk.engine.ask(BROKER, "", CreateNamespace("other"))
        view = desk.engine.view
        found = await view.overview(NS)
        assert (found.queues, found.topics, found.subscriptions, found.locks) == (2, 1, 1, 1)
        assert (view.count(NS, "queue"), view.count(NS, "topic")) == (2, 1)
        assert (found.attached, found.messages) == (4, 4)
        assert found.counts == Counts(2, 1, 0, 0, 0, 1)
        assert found.dead_counts == Counts(1, 0, 0, 0, 0, 0)
        assert found.created_ms == found.updated_ms == 1_000
        assert await view.overview() == found
        assert await view.overview("other") == Overview()

    on(test)


def test_the_oldest_message_of_a_queue_and_of_a_namespace() -> None:
    async def test(desk: Desk) -> None:
        await desk.engine.advance(500)
        await desk.send("late", queue="q")
        view = desk.engine.view
        assert view.oldest_ms(NS, "q") == 1_000
        assert view.oldest_ms(NS, "t") is None
        assert await view.oldest_ms_by_namespace() == {NS: 1_000}

    on(test)


def test_the_oldest_message_is_found_behind_any_number_of_locked_ones() -> None:
    async def test(desk: Desk) -> None:
        await desk.do(CreateQueue("many", QueueProperties(order="priority")))
        await desk.send(*["locked"] * 1_500, queue="many", priority=3)
        assert len(await desk.receive(1_500, "many")) == 1_500
        await desk.engine.advance(500)
        await desk.send("low", queue="many", priority=0)
        await desk.engine.advance(500)
        await desk.send("high", queue="many", priority=9)
        assert desk.engine.view.oldest_ms(NS, "many") == 1_500

    on(test)


def test_the_oldest_message_may_be_of_a_group() -> None:
    async def test(desk: Desk) -> None:
        await desk.do(CreateQueue("groups", QueueProperties(grouping="group")))
        await desk.send("first", queue="groups", group="g")
        await desk.engine.advance(500)
        await desk.send("second", queue="groups")
        assert desk.engine.view.oldest_ms(NS, "groups") == 1_000

    on(test)


def test_others_have_their_turns_while_many_queues_are_counted() -> None:
    async def test(desk: Desk) -> None:
        for number in range(1_000):
            await desk.do(CreateQueue(f"queue{number}", QueueProperties()))
        for count in (desk.engine.view.overview, desk.engine.view.oldest_ms_by_namespace):
            with Turns() as turns:
                await count()
            assert turns.count >= 2_000 // SLICE_STEPS  # with their dead-letter queues

    on(test)


def test_room_and_shares_are_checked_as_the_core_does() -> None:
    async def test(desk: Desk) -> None:
        view = desk.engine.view
        view.check_room(NS, "q", 97)
        with pytest.raises(QuotaExceeded):
            view.check_room(NS, "q", 98)
        ann = Holder("ann", 10)
        view.check_share(NS, ann, QUEUES, "", 10)
        view.check_share("nowhere", ann, QUEUES, "", 10)
        await desk.engine.ask(Principal("ann", 1), NS, CreateQueue("hers"))
        with pytest.raises(QuotaExceeded):
            view.check_share(NS, ann, QUEUES, "", 10)

    on(test)


def test_subscriptions_have_rules_and_take_what_those_say() -> None:
    async def test(desk: Desk) -> None:
        view = desk.engine.view
        assert [each.name for each in view.rules(NS, ONE)] == ["r"]
        assert view.matches(NS, "t", encode_envelope(Envelope(subject="a.b"))) == [ONE]
        assert view.matches(NS, "t", encode_envelope(Envelope(subject="b.a"))) == []

    on(test)


def test_schedules_are_found_by_name_and_by_queue() -> None:
    async def test(desk: Desk) -> None:
        view = desk.engine.view
        schedule = view.schedule(NS, "nightly")
        assert schedule is not None
        assert view.schedules(NS, ["q", "s"]) == [schedule]
        assert view.schedules(NS, ["s"]) == []
        schedule.next_ms = 1
        assert view.schedule(NS, "nightly") != schedule

    on(test)


def test_readers_are_in_order() -> None:
    async def test(desk: Desk) -> None:
        await desk.engine.ask(BROKER, "", SetReader("archive", 2))
        view = desk.engine.view
        assert [each.name for each in view.readers()] == ["archive", "lake"]
        assert view.reader("lake") == view.readers()[1]

    on(test)


# Messages.


def test_messages_are_read_page_by_page() -> None:
    async def test(desk: Desk) -> None:
        await held(desk)
        messages = desk.engine.view.messages
        first = messages.page(NS, "q", 0, 2)
        assert [(each.sequence, each.state) for each in first] == [(1, LOCKED), (2, ACTIVE)]
        assert [each.sequence for each in messages.page(NS, "q", 3, 2)] == [3]
        assert [each.sequence for each in messages.page(NS, "q", 0, 1, skip=2)] == [3]
        assert messages.get(NS, "q", 1) == first[0]
        assert messages.ready(NS, "q", 10, 1_000) == [2, 3]
        assert messages.oldest(NS, "q", LOCKED, 10) == [1]

    on(test)


def test_a_key_is_repeated_as_long_as_its_window_lasts() -> None:
    async def test(desk: Desk) -> None:
        messages = desk.engine.view.messages
        assert messages.repeated(NS, "q", "key", 1_000) == 1
        assert messages.repeated(NS, "q", "key", 1_000 + 600_000) is None
        assert messages.repeated(NS, "q", "other", 1_000) is None

    on(test)


def test_a_lock_is_found_by_its_token_and_by_the_id_of_its_message() -> None:
    async def test(desk: Desk) -> None:
        token, messages = await held(desk), desk.engine.view.messages
        lock = messages.lock(NS, token)
        assert lock is not None
        assert (lock.queue, lock.message.sequence, lock.count) == ("q", 1, 1)
        assert (lock.until_ms, lock.session, lock.enlisted) == (61_000, 0, False)
        assert messages.tokens(NS, ID) == (token,)
        assert messages.sole_lock(NS, ID) == (token, "q", 61_000)
        assert not messages.is_shared(NS, ID)

    on(test)


def test_an_id_that_several_locks_have_names_none_of_them() -> None:
    async def test(desk: Desk) -> None:
        first, messages = await held(desk), desk.engine.view.messages
        await desk.do(CreateQueue("r"))
        await desk.do(Send("r", [NewMessage(encode_envelope(Envelope(id=ID)), b"body")]))
        [second] = await desk.receive(queue="r", by_id=True)
        assert messages.tokens(NS, ID) == (first, second.token)
        assert messages.sole_lock(NS, ID) is None
        assert messages.sole_locks(NS, "q", [ID]) == {}
        assert messages.is_shared(NS, ID)

    on(test)


def test_locks_are_found_by_ids_up_to_the_first_that_names_none_in_that_queue() -> None:
    async def test(desk: Desk) -> None:
        messages = desk.engine.view.messages
        await desk.do(CreateQueue("r"))
        for id, queue in (("a", "r"), ("b", "r"), ("c", "q"), ("d", "r")):
            await desk.do(Send(queue, [NewMessage(encode_envelope(Envelope(id=id)), b"body")]))
        a, b, d = [each.token for each in await desk.receive(3, queue="r", by_id=True)]
        await desk.receive(10, by_id=True)
        until_ms = 61_000
        assert messages.sole_locks(NS, "r", ["a", "b", "c", "d"]) == {a: until_ms, b: until_ms}
        assert messages.sole_locks(NS, "r", ["d", "a", "d", "b"]) == {d: until_ms, a: until_ms}
        assert messages.sole_locks(NS, "r", ["e", "a"]) == {}

    on(test)


def test_a_lock_that_a_transaction_settles_says_so() -> None:
    async def test(desk: Desk) -> None:
        token = await held(desk)
        begun = await desk.do(Begin())
        assert isinstance(begun, Begun)
        await desk.do(Work(begun.transaction, Complete("q", [token])))
        lock = desk.engine.view.messages.lock(NS, token)
        assert lock is not None
        assert lock.enlisted

    on(test)


def test_a_lock_of_a_session_lasts_as_long_as_the_session() -> None:
    async def test(desk: Desk) -> None:
        messages = desk.engine.view.messages
        assert messages.session_token(NS, "s", "g") == 0
        granted = await desk.do(AcceptSession("s", desk.engine.new_receiver(), "g"))
        assert isinstance(granted, Granted)
        assert messages.session_token(NS, "s", "g") == granted.token
        [delivery] = await desk.receive(queue="s", session=granted.token)
        lock = messages.lock(NS, delivery.token)
        assert lock is not None
        assert (lock.session, lock.until_ms) == (granted.token, granted.until_ms)

    on(test)


def test_receivers_of_a_queue_are_counted_with_those_of_its_subscriptions() -> None:
    async def test(desk: Desk) -> None:
        messages = desk.engine.view.messages
        number = desk.engine.new_receiver(lambda _: None)
        await desk.do(Attach(ONE, number))
        assert messages.has_receiver(NS, number)
        assert not messages.has_receiver(NS, number + 1)
        assert messages.receivers(NS, ONE) == messages.receivers(NS, "t") == 1
        assert messages.receivers(NS, "q") == 0

    on(test)


def test_what_a_limit_counts_is_told_apart_from_what_there_is() -> None:
    async def test(desk: Desk) -> None:
        view, some = desk.engine.view, [NewMessage(b"\x80", b"x")] * 3
        await desk.do(CreateQueue("w", QueueProperties(max_messages=9, limit_counts="waiting")))
        await desk.do(Send("w", some))
        await desk.do(Receive("w", desk.engine.new_receiver(), 2))
        assert (view.counted(NS, "w"), view.used(NS, "w").messages) == (1, 3)
        await held(desk)
        assert (view.counted(NS, "q"), view.used(NS, "q").messages) == (3, 3)
        assert view.counted(NS, "none") == 0

    on(test)
