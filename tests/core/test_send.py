"""Sending: batches, limits, duplicates and schedules."""

import pytest

from posthouse.core import next_deadline_ms
from posthouse.core.commands import (
    BATCH_MAX,
    GROUP_CHARS_MAX,
    KEY_CHARS_MAX,
    SEND_BYTES_MAX,
    STEPS_MAX,
    TIME_MS_MAX,
    Cancel,
    Complete,
    Counts,
    DeleteQueue,
    Enqueued,
    Send,
    UpdateQueue,
)
from posthouse.core.errors import (
    Duplicate,
    InvalidArgument,
    MessageNotFound,
    MessageTooLarge,
    QuotaExceeded,
)
from posthouse.core.message import (
    Envelope,
    NewMessage,
    decode_envelope,
    encode_envelope,
    has_session,
    timestamp,
    uuid,
)
from posthouse.core.model import QueueProperties
from tests.core.world import World, a_message, bodies, text


def test_each_queue_numbers_its_messages() -> None:
    world = World()
    one, two = world.queue("one"), world.queue("two")
    assert list(world.send(one, "a", "b")) == [1, 2]
    assert list(world.send(two, "c")) == [1]
    assert list(world.send(one, "d")) == [3]


def test_a_message_arrives_as_it_was_sent() -> None:
    world = World()
    queue = world.queue()
    envelope = Envelope(
        id="m", subject="s", properties={"n": 1, "at": timestamp(5), "u": uuid(b"u" * 16)}
    )
    world.send(queue, NewMessage(encode_envelope(envelope), b"body", b"native", "g", 7))
    [delivery] = world.receive(queue)
    message = delivery.message
    assert decode_envelope(message.envelope) == envelope
    assert (message.body, message.native) == (b"body", b"native")
    assert (message.group, message.priority, message.enqueued_ms) == ("g", 7, 1_000)


def test_nothing_can_be_sent_too() -> None:
    world = World()
    queue = world.queue()
    outcome = world.do(Send(queue, []))
    assert (outcome.answer, outcome.records) == (Enqueued(()), [])


def test_a_batch_is_sent_whole_or_not_at_all() -> None:
    world = World()
    queue = world.queue(max_message_bytes=100)
    with pytest.raises(MessageTooLarge) as refusal:
        world.send(queue, "a", "b" * 200)
    assert refusal.value.maximum == 100
    assert world.peek(queue) == []


def test_the_native_form_counts_for_the_size() -> None:
    world = World()
    queue = world.queue(max_message_bytes=100)
    with pytest.raises(MessageTooLarge):
        world.send(queue, a_message(native=b"n" * 100))


def test_a_batch_has_a_limit() -> None:
    world = World()
    queue = world.queue()
    with pytest.raises(InvalidArgument):
        world.do(Send(queue, [a_message()] * (BATCH_MAX + 1)))


def test_a_queue_that_is_full_says_which_limit_was_reached() -> None:
    world = World()
    queue = world.queue(max_messages=2)
    world.send(queue, "a")
    with pytest.raises(QuotaExceeded) as refusal:
        world.send(queue, "b", "c")
    assert (refusal.value.limit, refusal.value.maximum) == ("max_messages", 2)
    assert refusal.value.current == 1
    world.send(queue, "b")


def test_a_queue_can_be_full_of_bytes() -> None:
    world = World()
    queue = world.queue(max_bytes=100)
    world.send(queue, "a" * 60)
    with pytest.raises(QuotaExceeded) as refusal:
        world.send(queue, "b" * 60)
    assert (refusal.value.limit, refusal.value.maximum) == ("max_bytes", 100)
    [delivery] = world.receive(queue)
    world.do(Complete(queue, [delivery.token]))
    world.send(queue, "b" * 60)


@pytest.mark.parametrize(
    "message",
    [
        a_message(priority=10),
        a_message(priority=-1),
        a_message(group="g" * (GROUP_CHARS_MAX + 1)),
        a_message(group="\ud800"),
        a_message(ttl_ms=-1),
        a_message(ttl_ms=TIME_MS_MAX + 1),
        a_message(due_ms=-1),
        a_message(due_ms=TIME_MS_MAX + 1),
    ],
)
def test_a_message_that_makes_no_sense_is_refused(message: NewMessage) -> None:
    world = World()
    queue = world.queue()
    with pytest.raises(InvalidArgument):
        world.send(queue, message)


# Duplicates.


def test_a_duplicate_is_accepted_silently_and_dropped() -> None:
    world = World()
    queue = world.queue(duplicate_detection=True)
    world.send(queue, a_message("a", id="1"))
    answer = world.do(Send(queue, [a_message("b", id="2"), a_message("again", id="1")])).answer
    assert answer == Enqueued([2, 1], duplicates=1, first_ids={1: "1"})
    assert bodies(world.receive(queue, 5)) == ["a", "b"]


def test_a_batch_of_duplicates_does_nothing() -> None:
    world = World()
    queue = world.queue(duplicate_detection=True)
    world.send(queue, a_message(id="1"))
    assert world.do(Send(queue, [a_message(id="1")])).records == []


def test_a_duplicate_is_refused_where_the_sender_asks_for_that() -> None:
    world = World()
    queue = world.queue(duplicate_detection=True)
    world.send(queue, a_message(id="1"))
    command = Send(queue, [a_message(id="2"), a_message(id="1")], refuse_duplicates=True)
    with pytest.raises(Duplicate) as refusal:
        world.do(command)
    assert (refusal.value.key, refusal.value.sequence) == ("1", 1)
    assert world.peek(queue) == [(1, "active")]


def test_duplicates_inside_one_batch_are_found() -> None:
    world = World()
    queue = world.queue(duplicate_detection=True)
    answer = world.do(Send(queue, [a_message(id="1"), a_message(id="1")])).answer
    assert answer == Enqueued([1, 1], duplicates=1, first_ids={1: "1"})


def test_an_explicit_key_goes_before_the_id() -> None:
    world = World()
    queue = world.queue(duplicate_detection=True)
    messages = [a_message(id="1"), a_message(id="1"), a_message(id="2")]
    answer = world.do(Send(queue, messages, keys=["x", "y", "x"])).answer
    assert answer == Enqueued([1, 2, 1], duplicates=1, first_ids={2: "1"})
    assert world.do(Send(queue, messages[:1], keys=[None])).answer == Enqueued([3])


def test_messages_without_id_and_key_are_never_duplicates() -> None:
    world = World()
    queue = world.queue(duplicate_detection=True)
    assert list(world.send(queue, "a", "a")) == [1, 2]


def test_a_queue_without_detection_takes_duplicates() -> None:
    world = World()
    queue = world.queue()
    assert list(world.send(queue, a_message(id="1"), a_message(id="1"))) == [1, 2]


def test_a_key_is_forgotten_when_it_leaves_the_window() -> None:
    world = World()
    queue = world.queue(duplicate_detection=True, duplicate_window_ms=100)
    world.send(queue, a_message(id="1"))
    world.advance(99)
    assert list(world.send(queue, a_message(id="1"))) == [1]
    world.advance(1)
    assert list(world.send(queue, a_message(id="1"))) == [2]


def test_a_key_can_be_used_again_before_the_tick_that_forgets_it() -> None:
    world = World()
    queue = world.queue(duplicate_detection=True, duplicate_window_ms=100)
    world.send(queue, a_message(id="1"), a_message(id="2"))
    world.now_ms += 100
    assert list(world.send(queue, a_message(id="2"), a_message(id="1"))) == [3, 4]
    world.advance(99)
    assert list(world.send(queue, a_message(id="1"), a_message(id="2"))) == [4, 3]
    world.advance(1)
    assert list(world.send(queue, a_message(id="1"))) == [5]


def test_keys_are_forgotten_each_in_its_time() -> None:
    world = World()
    queue = world.queue(duplicate_detection=True, duplicate_window_ms=100)
    world.send(queue, a_message(id="1"))
    world.advance(50)
    world.send(queue, a_message(id="2"))
    world.advance(50)
    assert list(world.send(queue, a_message(id="1"), a_message(id="2"))) == [3, 2]
    world.advance(50)
    assert list(world.send(queue, a_message(id="1"), a_message(id="2"))) == [3, 4]


def test_a_key_used_again_late_is_forgotten_though_a_tick_ends_before_it() -> None:
    world = World()
    queue = world.queue(duplicate_detection=True, duplicate_window_ms=100)
    world.send(queue, *[a_message(id=str(number)) for number in range(STEPS_MAX)])
    world.now_ms += 100
    world.send(queue, a_message(id="0"))
    world.now_ms += 100
    world.advance(0)
    assert next_deadline_ms(world.state) is None
    assert list(world.send(queue, a_message(id="0"))) == [STEPS_MAX + 2]


def test_each_key_has_the_window_it_was_sent_under() -> None:
    world = World()
    queue = world.queue(duplicate_detection=True, duplicate_window_ms=1_000)
    world.send(queue, a_message(id="1"))
    properties = QueueProperties(duplicate_detection=True, duplicate_window_ms=100)
    world.do(UpdateQueue(queue, properties))
    world.send(queue, a_message(id="2"))
    world.advance(100)
    assert list(world.send(queue, a_message(id="1"), a_message(id="2"))) == [1, 3]
    world.advance(10_000)
    assert list(world.send(queue, a_message(id="1"), a_message(id="2"))) == [4, 5]


def test_keys_are_one_for_each_message_and_of_a_certain_length() -> None:
    world = World()
    queue = world.queue(duplicate_detection=True)
    for keys in ([], ["a", "b"], ["k" * (KEY_CHARS_MAX + 1)]):
        with pytest.raises(InvalidArgument):
            world.do(Send(queue, [a_message()], keys=keys))


def test_a_duplicate_needs_no_room() -> None:
    world = World()
    queue = world.queue(duplicate_detection=True, max_messages=1)
    world.send(queue, a_message(id="1"))
    assert list(world.send(queue, a_message(id="1"))) == [1]
    with pytest.raises(QuotaExceeded):
        world.send(queue, a_message(id="2"))


def test_a_new_queue_of_an_old_name_knows_no_duplicates() -> None:
    world = World()
    queue = world.queue(duplicate_detection=True)
    world.send(queue, a_message(id="1"))
    world.do(DeleteQueue(queue))
    world.queue(queue, duplicate_detection=True)
    assert world.do(Send(queue, [a_message(id="1")])).answer == Enqueued([1])


# Schedules.


def test_a_scheduled_message_comes_when_it_is_due() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, a_message("later", due_ms=2_000), "now")
    assert world.peek(queue) == [(1, "scheduled"), (2, "active")]
    assert bodies(world.receive(queue, 2)) == ["now"]
    world.advance(999)
    assert world.receive(queue) == []
    world.advance(1)
    [delivery] = world.receive(queue)
    assert text(delivery) == "later"
    assert delivery.message.enqueued_ms == 2_000


def test_a_scheduled_message_goes_to_the_end_of_its_queue() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, a_message("later", due_ms=2_000), "now")
    world.advance(1_000)
    assert bodies(world.receive(queue, 2)) == ["now", "later"]


def test_a_schedule_that_has_passed_is_none() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, a_message("a", due_ms=1_000))
    assert bodies(world.receive(queue)) == ["a"]


def test_a_scheduled_message_can_be_cancelled() -> None:
    world = World()
    queue = world.queue()
    first, second = world.send(queue, a_message("a", due_ms=2_000), a_message("b", due_ms=2_000))
    world.do(Cancel(queue, [first]))
    assert world.counts(queue) == Counts(0, 0, 1, 0, 0, 0)
    world.advance(1_000)
    assert bodies(world.receive(queue, 2)) == ["b"]
    with pytest.raises(MessageNotFound):
        world.do(Cancel(queue, [second]))


def test_all_schedules_are_cancelled_or_none() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, a_message(due_ms=2_000), "active")
    for sequences in ([1, 2], [1, 9], [1, 1]):
        with pytest.raises(MessageNotFound):
            world.do(Cancel(queue, sequences))
    assert world.peek(queue) == [(1, "scheduled"), (2, "active")]
    with pytest.raises(InvalidArgument):
        world.do(Cancel(queue, []))


def test_a_send_has_a_largest_size() -> None:
    world = World()
    queue = world.queue()
    quarter = NewMessage(b"", bytes(SEND_BYTES_MAX // 4))
    world.do(Send(queue, [quarter] * 4))
    with pytest.raises(InvalidArgument):
        world.do(Send(queue, [quarter] * 4 + [NewMessage(b"", b"x")]))


def test_a_key_that_is_used_again_after_its_window_is_not_forgotten_with_the_old_use() -> None:
    world = World()
    queue = world.queue(duplicate_detection=True, duplicate_window_ms=100)
    world.send(queue, a_message(id="a"))
    world.now_ms += 100
    world.send(queue, a_message(id="a"))
    world.advance(50)
    assert world.send(queue, a_message(id="a")) == [2]


def test_an_id_that_is_not_text_or_too_long_serves_nobody() -> None:
    world = World()
    world.queue(duplicate_detection=True)
    broken = NewMessage(b"\x81\xa2id\xa1\xff", b"x")
    assert len(world.send("orders", broken, broken)) == 2
    world.queue("other")
    world.send("other", broken, a_message("y", id="z" * (KEY_CHARS_MAX + 1)))
    held = world.receive("other", 2, by_id=True)
    assert not world.state.ids
    world.do(Complete("other", [each.token for each in held]))


def test_a_group_is_a_session_s_if_the_envelope_says_so() -> None:
    session = encode_envelope(Envelope(session_id="g"))
    assert has_session(NewMessage(session, b"", group="g"))
    assert not has_session(NewMessage(session, b""))
    assert not has_session(NewMessage(encode_envelope(Envelope()), b"", group="g"))
    assert not has_session(NewMessage(b"?", b"", group="g"))


def test_what_has_no_key_is_no_duplicate_and_is_not_remembered() -> None:
    world = World()
    queue = world.queue(duplicate_detection=True, max_messages=4)
    same = [a_message("a", id="x"), a_message("b", id="x")]
    assert world.do(Send(queue, same, keys=["", ""])).answer == Enqueued(range(1, 3))
    assert world.do(
        Send(
            queue,
            same[:1],
            keys=[
                "",
            ][:1],
            refuse_duplicates=True,
        )
    ).answer == Enqueued(range(3, 4))
    assert not world.state.queues[queue].seen
    with pytest.raises(QuotaExceeded):
        world.do(Send(queue, same, keys=["", ""]))
    world.do(Send(queue, same[:1], keys=["k"]))
    assert list(world.state.queues[queue].seen) == ["k"]


def test_what_has_no_key_goes_to_who_waits() -> None:
    world = World()
    queue = world.queue(duplicate_detection=True, max_messages=1)
    world.wait(queue)
    world.do(Send(queue, [a_message("a")], keys=[""]))
    assert bodies(world.deliveries) == ["a"]
