"""Sessions: one holder at a time, who may have several messages in flight."""

import pytest

from posthouse.core.commands import (
    GROUP_CHARS_MAX,
    SESSION_STATE_BYTES_MAX,
    Abandon,
    AcceptSession,
    Attach,
    Complete,
    Credit,
    Defer,
    Delivery,
    Detach,
    GetSessionState,
    Granted,
    ListSessions,
    Pause,
    Receive,
    Received,
    ReceiveDeferred,
    ReleaseSession,
    Renew,
    RenewSession,
    Resume,
    SetSessionState,
)
from posthouse.core.errors import (
    InvalidArgument,
    LockLost,
    MessageNotFound,
    NotAllowed,
    SessionLocked,
    SessionLockLost,
)
from posthouse.core.model import dead_letter_queue
from tests.core.world import World, a_message, bodies, given


def a_session_queue(world: World, *messages: str, **properties: object) -> str:
    """Messages are given as session:body."""
    queue = world.queue("orders", grouping="session", lock_ms=100, **properties)
    send(world, queue, *messages)
    return queue


def send(world: World, queue: str, *messages: str) -> None:
    for each in messages:
        session, body = each.split(":")
        world.send(queue, a_message(body, group=session))


def sessions(world: World, queue: str, **options: object) -> list[str]:
    answer = world.do(ListSessions(queue, **options)).answer  # type: ignore[arg-type]
    assert isinstance(answer, list)
    return [each for each in answer if isinstance(each, str)]


def test_every_message_needs_a_session() -> None:
    world = World()
    queue = a_session_queue(world)
    with pytest.raises(InvalidArgument):
        world.send(queue, "a")


def test_a_session_is_accepted_by_its_id() -> None:
    world = World()
    queue = a_session_queue(world, "x:1", "y:2", "x:3")
    held = world.hold(queue, "x")
    assert (held.session, held.until_ms) == ("x", 1_100)
    assert bodies(world.receive(queue, 5, session=held.token)) == ["1", "3"]


def test_a_session_without_messages_can_be_accepted_by_its_id() -> None:
    world = World()
    queue = a_session_queue(world)
    held = world.hold(queue, "x")
    assert world.receive(queue, session=held.token) == []
    assert sessions(world, queue) == []
    world.do(ReleaseSession(queue, held.token))
    world.hold(queue, "x")


def test_the_next_session_is_the_one_whose_first_message_is_oldest() -> None:
    world = World()
    queue = a_session_queue(world, "y:1", "x:2", "y:3")
    first, second, third = world.accept(queue), world.accept(queue), world.accept(queue)
    assert first is not None
    assert second is not None
    assert (first.session, second.session, third) == ("y", "x", None)


def test_a_session_has_one_holder() -> None:
    world = World()
    queue = a_session_queue(world, "x:1")
    world.hold(queue, "x")
    with pytest.raises(SessionLocked):
        world.hold(queue, "x")
    assert world.accept(queue) is None


def test_a_wait_for_a_session_ends_with_a_message() -> None:
    world = World()
    queue = a_session_queue(world)
    one, two = world.wait_for_session(queue), world.wait_for_session(queue)
    send(world, queue, "x:1")
    assert given(world.deliveries) == [(one, "x")]
    send(world, queue, "x:2")
    assert world.deliveries == []
    send(world, queue, "y:3")
    assert given(world.deliveries) == [(two, "y")]


def test_a_wait_for_a_session_ends_at_its_deadline() -> None:
    world = World()
    queue = a_session_queue(world)
    receiver = world.wait_for_session(queue, ms=50)
    assert given(world.advance(50)) == [(receiver, "timed-out")]
    send(world, queue, "x:1")
    assert world.deliveries == []


def test_a_wait_for_a_session_can_be_given_up() -> None:
    world = World()
    queue = a_session_queue(world)
    world.do(Detach(world.wait_for_session(queue)))
    send(world, queue, "x:1")
    assert world.deliveries == []


def test_one_message_ends_one_wait() -> None:
    world = World()
    queue = a_session_queue(world)
    one = world.wait_for_session(queue)
    world.wait_for_session(queue)
    message = a_message(group="x")
    world.send(queue, message, message)
    assert given(world.deliveries) == [(one, "x")]


def test_a_released_session_goes_to_one_that_waits() -> None:
    world = World()
    queue = a_session_queue(world, "x:1", "x:2")
    held = world.hold(queue, "x")
    world.receive(queue, session=held.token)
    receiver = world.wait_for_session(queue)
    world.do(ReleaseSession(queue, held.token))
    [granted] = world.deliveries
    assert isinstance(granted, Granted)
    assert (granted.receiver, granted.session) == (receiver, "x")
    assert bodies(world.receive(queue, 5, session=granted.token)) == ["1", "2"]


def test_a_released_session_without_messages_goes_to_nobody() -> None:
    world = World()
    queue = a_session_queue(world)
    held = world.hold(queue, "x")
    world.wait_for_session(queue)
    world.do(ReleaseSession(queue, held.token))
    assert world.deliveries == []


def test_priority_chooses_among_the_heads_of_sessions() -> None:
    world = World()
    queue = a_session_queue(world, order="priority")
    world.send(queue, a_message(group="x", priority=1), a_message(group="y", priority=5))
    world.send(queue, a_message(group="x", priority=9))
    granted = world.accept(queue)
    assert granted is not None
    assert granted.session == "y"


def test_priority_chooses_among_the_heads_of_sessions_that_are_freed_together() -> None:
    world = World()
    queue = a_session_queue(world, order="priority")
    world.send(queue, a_message(group="x", priority=0), a_message(group="y", priority=5))
    world.send(queue, a_message(group="x", priority=9))
    held = world.hold(queue, "x")
    world.hold(queue, "y")
    world.receive(queue, session=held.token)
    receiver = world.wait_for_session(queue)
    assert given(world.advance(100)) == [(receiver, "y")]


# Receiving.


def test_a_queue_with_sessions_is_read_through_them() -> None:
    world = World()
    queue = a_session_queue(world, "x:1")
    for command in (
        Receive(queue, 1),
        Attach(queue, 1, 5),
        ReceiveDeferred(queue, [1]),
    ):
        with pytest.raises(NotAllowed):
            world.do(command)


def test_a_session_of_another_queue_reads_nothing() -> None:
    world = World()
    queue = a_session_queue(world, "x:1")
    other = world.queue("other", grouping="session")
    held = world.hold(other, "x")
    with pytest.raises(SessionLockLost):
        world.receive(queue, session=held.token)


def test_the_holder_is_given_what_comes() -> None:
    world = World()
    queue = a_session_queue(world, "x:1")
    held = world.hold(queue, "x")
    receiver = world.attach(queue, 2, session=held.token)
    assert given(world.deliveries) == [(receiver, "1")]
    send(world, queue, "y:2")
    assert world.deliveries == []
    send(world, queue, "x:3", "x:4")
    assert world.deliveries == []
    world.do(Credit(receiver, 5))
    assert given(world.deliveries) == [(receiver, "4")]


def test_two_readers_share_what_comes_to_a_session() -> None:
    world = World()
    queue = a_session_queue(world)
    held = world.hold(queue, "x")
    one = world.attach(queue, 1, session=held.token)
    two = world.attach(queue, 5, session=held.token)
    world.attach(queue, 0, session=held.token)
    world.send(queue, *[a_message(body, group="x") for body in "abc"])
    assert given(world.deliveries) == [(one, "a"), (two, "b"), (two, "c")]


def test_a_waiting_receiver_reads_from_its_session() -> None:
    world = World()
    queue = a_session_queue(world)
    held = world.hold(queue, "x")
    receiver = world.wait(queue, ms=50, session=held.token)
    send(world, queue, "x:1")
    assert given(world.deliveries) == [(receiver, "1")]


def test_an_abandoned_message_goes_back_to_its_session() -> None:
    world = World()
    queue = a_session_queue(world, "x:1", "x:2")
    held = world.hold(queue, "x")
    [one] = world.receive(queue, session=held.token)
    world.do(Abandon(queue, [one.token], session=held.token))
    assert bodies(world.receive(queue, 5, session=held.token)) == ["1", "2"]


def test_a_delayed_message_wakes_in_its_session() -> None:
    world = World()
    queue = a_session_queue(world, "x:1")
    held = world.hold(queue, "x")
    [one] = world.receive(queue, session=held.token)
    world.do(Abandon(queue, [one.token], delay_ms=50))
    receiver = world.attach(queue, 1, session=held.token)
    assert given(world.advance(50)) == [(receiver, "1")]


def test_a_delayed_message_wakes_to_one_that_waits_for_a_session() -> None:
    world = World()
    queue = a_session_queue(world, "x:1")
    held = world.hold(queue, "x")
    [one] = world.receive(queue, session=held.token)
    world.do(Abandon(queue, [one.token], delay_ms=50))
    world.do(ReleaseSession(queue, held.token))
    receiver = world.wait_for_session(queue)
    assert given(world.advance(50)) == [(receiver, "x")]


def test_deferred_messages_are_received_through_their_session() -> None:
    world = World()
    queue = a_session_queue(world, "x:1", "y:2")
    x, y = world.hold(queue, "x"), world.hold(queue, "y")
    [one] = world.receive(queue, session=x.token)
    world.do(Defer(queue, [one.token]))
    with pytest.raises(MessageNotFound):
        world.do(ReceiveDeferred(queue, [1], session=y.token))
    answer = world.do(ReceiveDeferred(queue, [1], session=x.token)).answer
    assert isinstance(answer, Received)
    assert bodies(answer.deliveries) == ["1"]
    world.do(ReleaseSession(queue, x.token))
    assert world.peek(queue)[0] == (1, "deferred")


def test_a_session_can_be_received_and_deleted() -> None:
    world = World()
    queue = a_session_queue(world, "x:1")
    held = world.hold(queue, "x")
    world.receive(queue, session=held.token, delete=True)
    world.do(ReleaseSession(queue, held.token))
    assert sessions(world, queue) == []


# The lock.


def test_losing_the_session_lock_loses_its_message_locks() -> None:
    world = World()
    queue = a_session_queue(world, "x:1")
    held = world.hold(queue, "x")
    [one] = world.receive(queue, session=held.token)
    world.now_ms += 100
    with pytest.raises(LockLost):
        world.do(Complete(queue, [one.token]))
    with pytest.raises(SessionLockLost):
        world.receive(queue, session=held.token)
    world.tick()
    assert world.peek(queue) == [(1, "active")]
    again = world.hold(queue, "x")
    [second] = world.receive(queue, session=again.token)
    assert second.count == 2


def test_a_renewed_session_keeps_its_message_locks() -> None:
    world = World()
    queue = a_session_queue(world, "x:1")
    held = world.hold(queue, "x")
    [one] = world.receive(queue, session=held.token)
    world.advance(60)
    assert world.do(RenewSession(queue, held.token)).answer == 1_160
    world.advance(90)
    assert world.do(RenewSession(queue, held.token, lock_ms=7)).answer == 1_157
    world.do(Complete(queue, [one.token], session=held.token))
    world.advance(7)
    with pytest.raises(SessionLockLost):
        world.do(RenewSession(queue, held.token))


def test_a_message_in_a_session_is_not_renewed_by_itself() -> None:
    world = World()
    queue = a_session_queue(world, "x:1")
    held = world.hold(queue, "x")
    [one] = world.receive(queue, session=held.token)
    with pytest.raises(NotAllowed):
        world.do(Renew(queue, [one.token]))


def test_a_released_session_is_lost() -> None:
    world = World()
    queue = a_session_queue(world, "x:1")
    held = world.hold(queue, "x")
    [one] = world.receive(queue, session=held.token)
    world.do(ReleaseSession(queue, held.token))
    assert world.peek(queue) == [(1, "active")]
    for command in (
        ReleaseSession(queue, held.token),
        RenewSession(queue, held.token),
        GetSessionState(queue, held.token),
        SetSessionState(queue, held.token, b""),
        Complete(queue, [one.token], session=held.token),
    ):
        with pytest.raises(SessionLockLost):
            world.do(command)


def test_readers_are_told_that_their_session_was_lost() -> None:
    world = World()
    queue = a_session_queue(world)
    held = world.hold(queue, "x")
    reader = world.attach(queue, 5, session=held.token)
    assert given(world.advance(100)) == [(reader, "session-lost")]
    send(world, queue, "x:1")
    assert world.deliveries == []


def test_no_credit_is_given_to_a_reader_whose_session_has_expired() -> None:
    world = World()
    queue = a_session_queue(world)
    held = world.hold(queue, "x")
    reader = world.attach(queue, session=held.token)
    world.now_ms += 100
    with pytest.raises(SessionLockLost):
        world.do(Credit(reader, 1))


def test_a_receiver_is_told_once_that_it_is_over() -> None:
    world = World()
    queue = a_session_queue(world)
    held = world.hold(queue, "x")
    receiver = world.wait(queue, ms=100, session=held.token)
    assert [number for number, _ in given(world.advance(100))] == [receiver]


def test_a_released_session_ends_its_readers() -> None:
    world = World()
    queue = a_session_queue(world)
    held = world.hold(queue, "x")
    world.attach(queue, 5, session=held.token)
    world.do(ReleaseSession(queue, held.token))
    assert world.info(queue).receivers == 0


def test_a_bound_session_ends_with_its_reader() -> None:
    world = World()
    queue = a_session_queue(world, "x:1", "x:2")
    held = world.hold(queue, "x", bound=True)
    reader = world.attach(queue, 1, session=held.token, bound=True)
    waiting = world.wait_for_session(queue)
    world.do(Detach(reader))
    [granted] = world.deliveries
    assert isinstance(granted, Granted)
    assert granted.receiver == waiting
    assert bodies(world.receive(queue, 5, session=granted.token)) == ["1", "2"]


def test_a_session_lives_on_without_its_reader() -> None:
    world = World()
    queue = a_session_queue(world, "x:1")
    held = world.hold(queue, "x")
    reader = world.attach(queue, 1, session=held.token)
    [delivery] = world.deliveries
    assert isinstance(delivery, Delivery)
    world.do(Detach(reader))
    world.do(Complete(queue, [delivery.token]))
    world.do(RenewSession(queue, held.token))


def test_bound_locks_end_with_their_reader_though_the_session_lives_on() -> None:
    world = World()
    queue = a_session_queue(world, "x:1")
    held = world.hold(queue, "x")
    reader = world.attach(queue, 1, session=held.token, bound=True)
    other = world.attach(queue, 1, session=held.token)
    world.do(Detach(reader))
    assert given(world.deliveries) == [(other, "1")]


def test_what_is_worn_in_a_session_is_dead_lettered() -> None:
    world = World()
    queue = a_session_queue(world, "x:1", "x:2", max_delivery=1)
    held = world.hold(queue, "x")
    world.receive(queue, session=held.token)
    world.wait_for_session(queue)
    [granted] = world.advance(100)
    assert isinstance(granted, Granted)
    assert bodies(world.receive(queue, 5, session=granted.token)) == ["2"]


def test_an_expired_session_takes_the_count_back_where_only_abandons_count() -> None:
    world = World()
    queue = a_session_queue(world, "x:1", max_delivery=1, counting="abandon")
    for _ in range(3):
        held = world.hold(queue, "x")
        [delivery] = world.receive(queue, session=held.token)
        assert delivery.count == 1
        world.advance(100)


def test_an_accept_can_choose_how_long_it_locks() -> None:
    world = World()
    queue = a_session_queue(world, "x:1")
    assert world.hold(queue, "x", lock_ms=7).until_ms == 1_007


@pytest.mark.parametrize(
    "options",
    [
        {"session": "s" * (GROUP_CHARS_MAX + 1)},
        {"lock_ms": -1},
        {"deadline_ms": -1},
        {"receiver": 0},
    ],
)
def test_an_accept_that_makes_no_sense_is_refused(options: dict[str, object]) -> None:
    world = World()
    queue = a_session_queue(world)
    with pytest.raises(InvalidArgument):
        world.do(AcceptSession(**({"queue": queue, "receiver": 1} | options)))  # type: ignore[arg-type]


def test_other_queues_have_no_sessions() -> None:
    world = World()
    queue = world.queue()
    for command in (AcceptSession(queue, 1), ListSessions(queue)):
        with pytest.raises(NotAllowed):
            world.do(command)


def test_sessions_go_on_after_a_pause() -> None:
    world = World()
    queue = a_session_queue(world)
    held = world.hold(queue, "x", lock_ms=60_000)
    readers = [world.attach(queue, 1, session=held.token) for _ in range(3)]
    waiting = [world.wait_for_session(queue) for _ in range(2)]
    late = world.wait_for_session(queue, ms=1)
    world.do(Pause(queue, receiving=True))
    send(world, queue, "x:1", "x:2", "y:3")
    world.do(Resume(queue, receiving=True))
    world.now_ms += 1
    assert sorted(given(world.advance(0))) == sorted(
        [(readers[0], "1"), (readers[1], "2"), (waiting[0], "y"), (late, "timed-out")]
    )


def test_a_delayed_message_holds_the_rest_of_its_session_back() -> None:
    world = World()
    queue = a_session_queue(world, "x:1", "x:2")
    held = world.hold(queue, "x")
    [first] = world.receive(queue, session=held.token)
    world.do(Abandon(queue, [first.token], delay_ms=50))
    assert world.receive(queue, session=held.token) == []
    reader = world.attach(queue, 5, session=held.token)
    send(world, queue, "x:3")
    assert world.deliveries == []
    assert given(world.advance(50)) == [(reader, "1"), (reader, "2"), (reader, "3")]


def test_a_session_whose_first_message_is_delayed_is_not_the_next_available() -> None:
    world = World()
    queue = a_session_queue(world, "x:1", "x:2")
    held = world.hold(queue, "x")
    [first] = world.receive(queue, session=held.token)
    world.do(Abandon(queue, [first.token], delay_ms=50))
    waiting = world.wait_for_session(queue)
    world.do(ReleaseSession(queue, held.token))
    assert world.deliveries == []
    assert given(world.advance(50)) == [(waiting, "x")]


def test_a_session_settles_only_what_is_in_it() -> None:
    world = World()
    queue = a_session_queue(world, "x:1", "y:2")
    x, y = world.hold(queue, "x"), world.hold(queue, "y")
    [delivery] = world.receive(queue, session=x.token)
    with pytest.raises(LockLost):
        world.do(Complete(queue, [delivery.token], session=y.token))
    world.do(Complete(queue, [delivery.token], session=x.token))


def test_other_readers_are_told_when_a_session_is_given_up() -> None:
    world = World()
    queue = a_session_queue(world)
    held = world.hold(queue, "x")
    reader = world.attach(queue, session=held.token)
    world.do(ReleaseSession(queue, held.token))
    assert given(world.deliveries) == [(reader, "session-lost")]


def test_giving_up_a_wait_does_not_give_up_the_session() -> None:
    world = World()
    queue = a_session_queue(world)
    held = world.hold(queue, "x", bound=True)
    waiting = world.wait(queue, session=held.token)
    world.do(Detach(waiting))
    world.do(RenewSession(queue, held.token))


# State.


def test_a_session_keeps_its_state_across_locks() -> None:
    world = World()
    queue = a_session_queue(world)
    held = world.hold(queue, "x")
    assert world.do(GetSessionState(queue, held.token)).answer is None
    world.do(SetSessionState(queue, held.token, b"half way"))
    world.do(ReleaseSession(queue, held.token))
    held = world.hold(queue, "x")
    assert world.do(GetSessionState(queue, held.token)).answer == b"half way"
    world.do(SetSessionState(queue, held.token, None))
    assert world.do(GetSessionState(queue, held.token)).answer is None


def test_a_state_has_a_size() -> None:
    world = World()
    queue = a_session_queue(world)
    held = world.hold(queue, "x")
    world.do(SetSessionState(queue, held.token, b"x" * SESSION_STATE_BYTES_MAX))
    with pytest.raises(InvalidArgument):
        world.do(SetSessionState(queue, held.token, b"x" * (SESSION_STATE_BYTES_MAX + 1)))
    assert SESSION_STATE_BYTES_MAX == 1 << 20


def test_sessions_with_messages_or_state_are_listed() -> None:
    world = World()
    queue = a_session_queue(world, "a:1", "b:2")
    for name in ("c", "d"):
        held = world.hold(queue, name)
        if name == "c":
            world.do(SetSessionState(queue, held.token, b""))
    assert sessions(world, queue) == ["a", "b", "c"]
    assert sessions(world, queue, skip=1, limit=1) == ["b"]


def test_sessions_can_be_listed_by_when_their_state_was_set() -> None:
    world = World()
    queue = a_session_queue(world, "a:1")
    for name in ("b", "c"):
        world.now_ms += 10
        held = world.hold(queue, name)
        world.do(SetSessionState(queue, held.token, b"s"))
    assert sessions(world, queue, since_ms=1_005) == ["b", "c"]
    assert sessions(world, queue, since_ms=1_010) == ["c"]


@pytest.mark.parametrize("options", [{"limit": 0}, {"skip": -1}])
def test_a_list_of_sessions_has_a_size(options: dict[str, int]) -> None:
    world = World()
    queue = a_session_queue(world)
    with pytest.raises(InvalidArgument):
        world.do(ListSessions(queue, **options))


def test_a_session_accepted_for_a_connection_has_nothing_to_do_with_receiver_number_one() -> None:
    world = World()
    queue = a_session_queue(world)
    world.do(Attach(dead_letter_queue(queue), 1))
    waiting = world.wait_for_session(queue, bound=True)
    world.do(Detach(1))
    send(world, queue, "x:1")
    assert given(world.deliveries) == [(waiting, "x")]


def test_sessions_stay_available_however_often_they_were_accepted_by_name() -> None:
    world = World()
    queue = a_session_queue(world, *[f"{name}:1" for name in "abcde"])
    for _ in range(100):
        for name in "edcba":
            held = world.hold(queue, name)
            [delivery] = world.receive(queue, session=held.token)
            world.do(Complete(queue, [delivery.token]))
            send(world, queue, f"{name}:again")
            world.do(ReleaseSession(queue, held.token))
    accepted = [world.accept(queue) for _ in "abcde"]
    assert sorted(each.session for each in accepted if each is not None) == list("abcde")


def test_who_waits_for_a_session_is_served_after_a_pause() -> None:
    world = World()
    queue = a_session_queue(world)
    waiting = world.wait_for_session(queue)
    world.do(Pause(queue, receiving=True))
    send(world, queue, "x:1")
    world.do(Resume(queue, receiving=True))
    assert given(world.advance(0)) == [(waiting, "x")]


def test_a_session_that_has_expired_is_given_nothing_more() -> None:
    world = World()
    queue = a_session_queue(world)
    held = world.hold(queue, "x")
    reader = world.attach(queue, 5, session=held.token)
    world.now_ms += 100
    send(world, queue, "x:1")
    assert world.deliveries == []
    assert given(world.advance(0)) == [(reader, "session-lost")]


def test_who_has_waited_too_long_for_a_session_does_not_get_it() -> None:
    world = World()
    queue = a_session_queue(world, "x:1")
    world.hold(queue, "x", lock_ms=50)
    waiting = world.wait_for_session(queue, ms=50)
    assert given(world.advance(50)) == [(waiting, "timed-out")]
    assert world.accept(queue) is not None
