"""Queues: their lives, their properties, and what is known about them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from posthouse.core.commands import (
    NAME_CHARS_MAX,
    PAGE_MAX,
    QUEUE_EXTRAS_BYTES_MAX,
    Abandon,
    Attach,
    Command,
    Complete,
    Counts,
    CreateQueue,
    Defer,
    DeleteQueue,
    GetQueue,
    ListQueues,
    Pause,
    Peek,
    Receive,
    Renew,
    Resume,
    Send,
    UpdateQueue,
)
from posthouse.core.errors import AlreadyExists, Disabled, InvalidArgument, NotAllowed, NotFound
from posthouse.core.model import Queue, QueueProperties, dead_letter_queue, find
from tests.core.world import World, a_message, bodies, given

if TYPE_CHECKING:
    from _collections_abc import dict_values


def names(world: World, **options: object) -> list[str]:
    answer = world.do(ListQueues(**options)).answer  # type: ignore[arg-type]
    assert isinstance(answer, list)
    return [each if isinstance(each, str) else each.name for each in answer]


def test_a_new_queue_has_the_documented_properties() -> None:
    world = World()
    properties = world.info(world.queue()).properties
    assert (properties.lock_ms, properties.max_delivery) == (60_000, 10)
    assert (properties.ttl_ms, properties.max_bytes, properties.max_messages) == (None, None, None)
    assert (properties.duplicate_detection, properties.duplicate_window_ms) == (False, 600_000)
    assert (properties.status, properties.order, properties.grouping) == (
        "active",
        "arrival",
        "none",
    )


class Watched(dict[str, Queue]):
    """Counts the queues that are looked at."""

    looks = 0

    def __getitem__(self, name: str) -> Queue:
        self.looks += 1
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        self.looks += len(self)
        return super().__iter__()

    def values(self) -> "dict_values[str, Queue]":
        self.looks += len(self)
        return super().values()


@pytest.mark.parametrize("properties", [{}, {"forward_to": "target"}], ids=["plain", "forwarding"])
def test_making_a_queue_among_many_looks_at_few_of_them(properties: dict[str, str]) -> None:
    world = World()
    world.queue("target")
    for number in range(1_000):
        world.queue(f"queue{number}", **properties)
    watched = world.state.queues = Watched(world.state.queues)
    world.do(CreateQueue("another", QueueProperties(**properties)))  # type: ignore[arg-type]
    assert watched.looks < 10


def test_a_queue_keeps_the_properties_it_was_given() -> None:
    world = World()
    queue = world.queue(lock_ms=5, metadata="owner: ann", order="priority", counting="abandon")
    properties = world.info(queue).properties
    assert (properties.lock_ms, properties.metadata) == (5, "owner: ann")
    assert (properties.order, properties.counting) == ("priority", "abandon")


def test_grouping_by_session_requires_sessions_and_the_reverse() -> None:
    world = World()
    assert world.info(world.queue("a", grouping="session")).properties.requires_session
    assert world.info(world.queue("b", requires_session=True)).properties.grouping == "session"
    assert world.info(
        world.queue("c", grouping="group", requires_session=True)
    ).properties == QueueProperties(grouping="group", requires_session=True)


def test_a_name_is_taken_once_whatever_its_case() -> None:
    world = World()
    world.queue("Straße")
    with pytest.raises(AlreadyExists) as refusal:
        world.queue("STRASSE")
    assert refusal.value.name == "Straße"


def test_names_are_exact() -> None:
    world = World()
    world.queue("Orders")
    with pytest.raises(NotFound):
        world.do(GetQueue("orders"))


def test_a_queue_can_be_found_by_folded_case() -> None:
    world = World()
    world.queue("Orders")
    assert find(world.state, "Orders") == "Orders"
    assert find(world.state, "oRDERS") == "Orders"
    assert find(world.state, dead_letter_queue("orders")) == dead_letter_queue("Orders")
    assert find(world.state, "others") is None


@pytest.mark.parametrize(
    "name",
    [
        "", " a", "a ", "a\nb", "$a", "a/$dead", "a" * (NAME_CHARS_MAX + 1), "a\ud800", "a//b",
        "/a", "a/", "..", "a/../b", ".", "a\\b",
    ],
)  # fmt: skip
def test_some_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument):
        World().queue(name)


def test_a_name_may_have_parts_and_letters_of_any_script() -> None:
    world = World()
    assert names(world) == []
    for name in ("a/b", "größe", "注文", "a" * NAME_CHARS_MAX):
        world.queue(name)
    assert len(names(world)) == 4


@pytest.mark.parametrize(
    "properties",
    [
        {"lock_ms": -1},
        {"max_delivery": 0},
        {"ttl_ms": 0},
        {"max_bytes": -1},
        {"max_messages": 1 << 60},
        {"max_message_bytes": 0},
        {"duplicate_window_ms": 0},
        {"idle_delete_ms": 0},
        {"metadata": "x" * 5_000},
        {"metadata": "\ud800"},
        {"status": "asleep"},
        {"order": "random"},
        {"limit_counts": "locked"},
        {"lock_ms": 1.5},
    ],
)
def test_properties_that_make_no_sense_are_refused(properties: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        World().do(CreateQueue("orders", QueueProperties(**properties)))  # type: ignore[arg-type]


def test_a_queue_can_be_updated() -> None:
    world = World()
    queue = world.queue()
    world.now_ms += 5
    world.do(UpdateQueue(queue, QueueProperties(lock_ms=7)))
    info = world.info(queue)
    assert info.properties.lock_ms == 7
    assert (info.created_ms, info.updated_ms, info.accessed_ms) == (1_000, 1_005, 1_005)
    assert world.info(dead_letter_queue(queue)).properties.lock_ms == 7


@pytest.mark.parametrize(
    "properties",
    [
        QueueProperties(requires_session=True),
        QueueProperties(duplicate_detection=True),
        QueueProperties(order="priority"),
        QueueProperties(grouping="group"),
    ],
)
def test_what_shapes_a_queue_cannot_be_changed(properties: QueueProperties) -> None:
    world = World()
    queue = world.queue()
    with pytest.raises(InvalidArgument):
        world.do(UpdateQueue(queue, properties))


def test_a_deleted_queue_is_gone_with_its_messages() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    world.do(DeleteQueue(queue))
    for name in (queue, dead_letter_queue(queue)):
        with pytest.raises(NotFound):
            world.do(GetQueue(name))
    world.queue(queue)
    assert world.peek(queue) == []


def test_the_receivers_of_a_deleted_queue_are_told() -> None:
    world = World()
    queue = world.queue()
    one = world.attach(queue, 1)
    two = world.attach(dead_letter_queue(queue), 1)
    three = world.wait(queue)
    world.do(DeleteQueue(queue))
    assert given(world.deliveries) == [(one, "deleted"), (three, "deleted"), (two, "deleted")]
    assert world.advance(10_000) == []


@pytest.mark.parametrize(
    "command",
    [
        UpdateQueue("orders/$dead", QueueProperties()),
        DeleteQueue("orders/$dead"),
        Pause("orders/$dead", sending=True),
        Resume("orders/$dead", sending=True),
        Send("orders/$dead", [a_message()]),
    ],
    ids=lambda command: type(command).__name__,
)
def test_a_dead_letter_queue_has_no_life_of_its_own(command: Command) -> None:
    world = World()
    world.queue()
    with pytest.raises(NotAllowed):
        world.do(command)


@pytest.mark.parametrize(
    "command",
    [
        GetQueue("none"),
        UpdateQueue("none", QueueProperties()),
        DeleteQueue("none"),
        Send("none", [a_message()]),
        Receive("none", 1),
        Attach("none", 1),
        Peek("none"),
    ],
    ids=lambda command: type(command).__name__,
)
def test_a_queue_that_is_not_there_is_not_found(command: Command) -> None:
    with pytest.raises(NotFound):
        World().do(command)


def test_queues_are_listed_by_name_page_by_page() -> None:
    world = World()
    for name in ("c", "a", "d", "b"):
        world.queue(name)
    assert names(world, limit=3) == ["a", "b", "c"]
    assert names(world, after="c", limit=3) == ["d"]
    assert names(world, after="d") == []


@pytest.mark.parametrize("limit", [0, PAGE_MAX + 1])
def test_a_page_has_a_size(limit: int) -> None:
    with pytest.raises(InvalidArgument):
        World().do(ListQueues(limit=limit))


def test_messages_are_counted_by_state() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a", "b", "c", "d", a_message(due_ms=9_000))
    one, two, _ = world.receive(queue, 3)
    world.do(Abandon(queue, [one.token], delay_ms=500))
    world.do(Defer(queue, [two.token]))
    assert world.counts(queue) == Counts(1, 1, 1, 1, 1, 0)


def test_dead_letters_are_counted_whatever_their_state() -> None:
    world = World()
    queue = world.queue(ttl_ms=10, dead_letter_expired=True)
    world.send(queue, "a", "b")
    world.advance(10)
    world.receive(dead_letter_queue(queue))
    assert world.counts(queue) == Counts(0, 0, 0, 0, 0, 2)
    assert world.counts(dead_letter_queue(queue)) == Counts(1, 1, 0, 0, 0, 0)
    assert world.info(queue).dead_size_bytes == world.info(dead_letter_queue(queue)).size_bytes > 0


def test_sizes_are_those_of_envelope_body_and_native_form() -> None:
    world = World()
    queue = world.queue()
    message = a_message("12345", native=b"123")
    world.send(queue, message)
    assert world.info(queue).size_bytes == len(message.envelope) + 5 + 3


def test_sending_and_receiving_are_access() -> None:
    world = World()
    queue = world.queue()
    world.now_ms = 2_000
    world.send(queue, "a")
    assert world.info(queue).accessed_ms == 2_000
    world.now_ms = 3_000
    world.receive(queue)
    assert world.info(queue).accessed_ms == 3_000
    world.now_ms = 4_000
    world.receive(queue)
    assert world.info(queue).accessed_ms == 4_000
    assert world.info(queue).updated_ms == 1_000


def test_looking_is_not_access() -> None:
    world = World()
    queue = world.queue()
    world.now_ms = 2_000
    world.peek(queue)
    assert world.info(queue).accessed_ms == 1_000


def test_receivers_are_counted() -> None:
    world = World()
    queue = world.queue()
    world.attach(queue)
    world.wait(queue)
    assert world.info(queue).receivers == 2


# Pausing.


def test_sending_can_be_paused_and_resumed() -> None:
    world = World()
    queue = world.queue()
    world.do(Pause(queue, sending=True))
    with pytest.raises(Disabled) as refusal:
        world.send(queue, "a")
    assert refusal.value.status == "send-disabled"
    world.do(Resume(queue, sending=True))
    world.send(queue, "a")


def test_receiving_can_be_paused_while_sending_goes_on() -> None:
    world = World()
    queue = world.queue()
    world.do(Pause(queue, receiving=True))
    world.send(queue, "a")
    for command in (Receive(queue, 1), Attach(queue, 2, 1)):
        with pytest.raises(Disabled):
            world.do(command)
    world.do(Resume(queue, receiving=True))
    assert bodies(world.receive(queue)) == ["a"]


def test_both_can_be_paused_and_resumed_one_by_one() -> None:
    world = World()
    queue = world.queue()
    world.do(Pause(queue, sending=True, receiving=True))
    assert world.info(queue).properties.status == "disabled"
    world.do(Resume(queue, sending=True))
    assert world.info(queue).properties.status == "receive-disabled"
    world.do(Resume(queue, receiving=True))
    assert world.info(queue).properties.status == "active"


def test_waiting_receivers_are_told_of_a_pause_and_fed_after_it() -> None:
    world = World()
    queue = world.queue()
    receiver = world.attach(queue, 2)
    world.do(Pause(queue, receiving=True))
    assert given(world.deliveries) == [(receiver, "paused")]
    world.send(queue, "a", "b", "c")
    assert world.deliveries == []
    world.do(Resume(queue, receiving=True))
    assert bodies(world.advance(0)) == ["a", "b"]


def test_a_queue_that_is_paused_again_at_once_gives_to_nobody() -> None:
    world = World()
    queue = world.queue()
    world.attach(queue, 2)
    world.do(Pause(queue, receiving=True))
    world.send(queue, "a")
    world.do(Resume(queue, receiving=True))
    world.do(Pause(queue, receiving=True))
    assert world.advance(0) == []
    world.do(Resume(queue, receiving=True))
    assert bodies(world.advance(0)) == ["a"]


def test_a_queue_without_messages_resumes_quietly() -> None:
    world = World()
    queue = world.queue()
    world.attach(queue, 2)
    world.do(Pause(queue, receiving=True))
    world.do(Resume(queue, receiving=True))
    assert world.advance(0) == []
    world.send(queue, "a")
    assert bodies(world.deliveries) == ["a"]


def test_who_asks_before_the_ticks_after_a_pause_is_told_the_truth() -> None:
    world = World()
    queue = world.queue()
    first = world.attach(queue, 1)
    world.do(Pause(queue, receiving=True))
    world.send(queue, "a", "b")
    world.do(Resume(queue, receiving=True))
    second = world.attach(queue, 1)
    assert given(world.deliveries) == [(second, "a")]
    assert given(world.advance(0)) == [(first, "b")]


def test_status_is_also_a_property() -> None:
    world = World()
    queue = world.queue(status="disabled")
    with pytest.raises(Disabled):
        world.send(queue, "a")
    world.do(UpdateQueue(queue, QueueProperties()))
    world.send(queue, "a")


def test_creating_says_nothing() -> None:
    world = World()
    assert world.do(CreateQueue("a")).answer is None


# Idleness.


def test_an_idle_queue_is_deleted() -> None:
    world = World()
    queue = world.queue(idle_delete_ms=1_000)
    world.advance(999)
    world.info(queue)
    world.advance(1)
    with pytest.raises(NotFound):
        world.info(queue)


def test_use_keeps_a_queue() -> None:
    world = World()
    queue = world.queue(idle_delete_ms=1_000, lock_ms=500)
    for use in (
        lambda: world.send(queue, "a"),
        lambda: world.receive(queue),
        lambda: world.receive(queue),
        lambda: world.receive(dead_letter_queue(queue)),
    ):
        world.advance(900)
        use()
    world.advance(999)
    world.info(queue)
    world.advance(1)
    with pytest.raises(NotFound):
        world.info(queue)


def test_a_queue_with_a_lock_that_is_renewed_is_not_idle() -> None:
    world = World()
    queue = world.queue(idle_delete_ms=1_000, lock_ms=800)
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    for _ in range(5):
        world.advance(700)
        world.do(Renew(queue, [delivery.token]))
    world.do(Complete(queue, [delivery.token]))
    world.advance(999)
    world.info(queue)
    world.advance(1)
    with pytest.raises(NotFound):
        world.info(queue)


def test_a_queue_is_not_idle_when_its_scheduled_message_comes_due() -> None:
    world = World()
    queue = world.queue(idle_delete_ms=1_000)
    world.send(queue, a_message("a", due_ms=world.now_ms + 1_000))
    world.advance(1_000)
    assert world.peek(queue) == [(2, "active")]


def test_something_must_be_named_to_pause_or_resume() -> None:
    world = World()
    queue = world.queue()
    for command in (Pause(queue), Resume(queue)):
        with pytest.raises(InvalidArgument):
            world.do(command)


def test_a_queue_with_a_receiver_is_not_idle() -> None:
    world = World()
    queue = world.queue(idle_delete_ms=1_000)
    world.attach(dead_letter_queue(queue))
    world.advance(5_000)
    world.info(queue)


def test_idleness_can_be_switched_off() -> None:
    world = World()
    queue = world.queue(idle_delete_ms=1_000)
    world.do(UpdateQueue(queue, QueueProperties()))
    world.advance(5_000)
    world.info(queue)


def test_a_deleted_queue_is_not_looked_at_for_idleness() -> None:
    world = World()
    queue = world.queue(idle_delete_ms=1_000, duplicate_detection=True)
    world.send(queue, a_message(id="a"))
    world.do(DeleteQueue(queue))
    world.queue(queue)
    world.advance(1_000_000)
    world.info(queue)


def test_a_status_must_be_one_of_the_words_there_are() -> None:
    world = World()
    for word in ("asleep", "\ud800"):
        with pytest.raises(InvalidArgument):
            world.queue("q", status=word)


def test_what_a_dialect_keeps_with_a_queue_is_told_again() -> None:
    world = World()
    world.queue(extras={"express": "true"})
    assert world.state.queues["orders"].properties.extras == {"express": "true"}
    most = {"long": "x" * (QUEUE_EXTRAS_BYTES_MAX - 6), "ü": ""}
    world.queue("much", extras=most)
    with pytest.raises(InvalidArgument, match="65536 bytes in all"):
        world.queue("other", extras=most | {"o": ""})
    with pytest.raises(InvalidArgument, match="extras"):
        world.queue("other", extras={"x": "y" * (QUEUE_EXTRAS_BYTES_MAX + 1)})
