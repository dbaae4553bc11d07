"""Transactions: everything or nothing, and what is under way meanwhile."""

import sys

import pytest

from posthouse.core.commands import (
    BATCH_MAX,
    SETTLED,
    TRANSACTION_MS,
    Abandon,
    Begin,
    Begun,
    Commit,
    Committed,
    Complete,
    DeadLetter,
    Defer,
    DeleteQueue,
    Enqueued,
    Purge,
    Release,
    Renew,
    RollBack,
    RolledBack,
    Send,
    Settled,
    StepClock,
    Work,
)
from posthouse.core.dump import dump
from posthouse.core.errors import (
    Busy,
    Disabled,
    Duplicate,
    InvalidArgument,
    LockLost,
    MessageTooLarge,
    NotAllowed,
    NotFound,
    QuotaExceeded,
    TransactionLost,
)
from posthouse.core.message import LOCKED, NewMessage
from posthouse.core.model import dead_letter_queue
from posthouse.core.records import Renewed, SessionRenewed
from tests.core.world import World, a_message, bodies
from tests.invariants import check


def begin(world: World, timeout_ms: int = TRANSACTION_MS) -> int:
    answer = world.do(Begin(timeout_ms)).answer
    assert isinstance(answer, Begun)
    return answer.transaction


def sound(world: World) -> None:
    check(world.state, world.now_ms)
    assert dump(world.replayed()) == dump(world.state)


def test_what_is_sent_is_there_with_the_commit() -> None:
    world = World()
    one, two = world.queue("one"), world.queue("two")
    number = begin(world)
    assert world.do(Work(number, Send(one, [a_message("a"), a_message("b")]))).answer is None
    world.do(Work(number, Send(two, [a_message("c")])))
    world.do(Work(number, Send(one, [a_message("d")])))
    assert (world.peek(one), world.peek(two)) == ([], [])
    answer = world.do(Commit(number)).answer
    sent = [Enqueued(range(1, 3)), Enqueued(range(1, 2)), Enqueued(range(3, 4))]
    assert answer == Committed(sent, 0)
    assert bodies(world.receive(one, 5)) == ["a", "b", "d"]
    assert bodies(world.receive(two, 5)) == ["c"]
    sound(world)


def test_what_ends_and_what_is_sent_happen_together() -> None:
    world = World()
    source, target = world.queue("source"), world.queue("target")
    world.send(source, "a", "b", "c", "d", "e")
    tokens = [each.token for each in world.receive(source, 5)]
    number = begin(world)
    for asked in (
        Complete(source, [tokens[0]]),
        Abandon(source, [tokens[1]], properties={"n": 1}),
        Defer(source, [tokens[2]]),
        DeadLetter(source, [tokens[3]], reason="why"),
        Release(source, [tokens[4]]),
    ):
        assert world.do(Work(number, asked)).answer == SETTLED
    world.do(Work(number, Send(target, [a_message("result")])))
    assert world.counts(source).locked == 5
    receiver = world.attach(target, credit=1)
    answer = world.do(Commit(number)).answer
    assert answer == Committed([Enqueued(range(1, 2))], 5)
    assert [(each.receiver, *bodies([each])) for each in world.deliveries] == [(receiver, "result")]
    counts = world.counts(source)
    assert (counts.active, counts.deferred, counts.dead, counts.locked) == (2, 1, 1, 0)
    sound(world)


def test_a_topic_is_published_to_with_the_commit() -> None:
    world = World()
    topic = world.topic()
    queue = world.subscribe(topic, "a")
    number = begin(world)
    world.do(Work(number, Send(topic, [a_message("news")])))
    assert world.peek(queue) == []
    world.do(Commit(number))
    assert bodies(world.receive(queue)) == ["news"]
    sound(world)


def test_nothing_happens_when_it_is_rolled_back() -> None:
    world = World()
    queue = world.queue(duplicate_detection=True)
    world.send(queue, a_message("a", id="1"))
    [delivery] = world.receive(queue)
    number = begin(world)
    world.do(Work(number, Complete(queue, [delivery.token])))
    world.do(Work(number, Send(queue, [a_message("b", id="2")])))
    world.do(RollBack(number))
    assert world.counts(queue).locked == 1
    world.do(Complete(queue, [delivery.token]))  # it is its holder's again
    assert list(world.send(queue, a_message("b", id="2"))) == [2]  # the key was not burnt
    for command in (Commit(number), RollBack(number), Work(number, Send(queue, []))):
        with pytest.raises(TransactionLost):
            world.do(command)
    sound(world)


def test_a_crash_rolls_it_back() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    number = begin(world)
    world.do(Work(number, Complete(queue, [delivery.token])))
    again = world.restarted()
    with pytest.raises(TransactionLost):
        again.do(Commit(number))
    again.do(Complete(queue, [delivery.token]))
    check(again.state, again.now_ms)


def test_its_time_is_up_at_some_time() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    number = begin(world, timeout_ms=5_000)
    world.do(Work(number, Complete(queue, [delivery.token])))
    world.now_ms += 5_000
    with pytest.raises(TransactionLost):
        world.do(Commit(number))
    world.advance(1)
    assert not world.state.transactions
    assert not world.state.enlisted
    world.do(Complete(queue, [delivery.token]))


def test_a_step_of_the_clock_ends_none() -> None:
    world = World()
    queue = world.queue()
    number = begin(world, timeout_ms=5_000)
    world.do(Work(number, Send(queue, [a_message("a")])))
    world.do(StepClock(10_000))
    world.now_ms += 12_000
    assert isinstance(world.do(Commit(number)).answer, Committed)


def test_a_lock_does_not_expire_before_the_transaction_ends() -> None:
    world = World()
    queue = world.queue(lock_ms=1_000)
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    number = begin(world, timeout_ms=60_000)
    world.do(Work(number, Complete(queue, [delivery.token])))
    world.now_ms += 1_500  # nobody has looked yet
    with pytest.raises(LockLost):
        world.do(Complete(queue, [delivery.token]))
    world.advance(57_000)
    assert [type(each) for _, each in world.journal][-1] is Renewed
    assert world.do(Commit(number)).answer == Committed([], 1)
    sound(world)


def test_a_session_lasts_as_long_too() -> None:
    world = World()
    queue = world.queue(lock_ms=1_000, grouping="session")
    world.send(queue, a_message("a", group="s"), a_message("b", group="s"))
    held = world.hold(queue, "s")
    tokens = [each.token for each in world.receive(queue, 2, session=held.token)]
    number = begin(world, timeout_ms=60_000)
    world.do(Work(number, Complete(queue, tokens, session=held.token)))
    world.advance(59_000)
    assert [type(each) for _, each in world.journal][-1] is SessionRenewed
    assert world.do(Commit(number)).answer == Committed([], 2)
    sound(world)


def test_a_lock_ends_behind_the_transaction_that_would_have_settled_it() -> None:
    world = World()
    queue = world.queue(lock_ms=1_000)
    world.send(queue, "a")
    [delivery] = world.receive(queue)
    number = begin(world, timeout_ms=10_000)
    world.do(Work(number, Complete(queue, [delivery.token])))
    world.advance(9_999)
    assert world.counts(queue).locked == 1
    world.advance(2)
    assert (world.counts(queue).active, world.counts(queue).locked) == (1, 0)
    sound(world)


def test_what_a_transaction_settles_is_lost_to_others() -> None:
    world = World()
    queue = world.queue()
    world.send(queue, "a", "b")
    first, second = (each.token for each in world.receive(queue, 2))
    number, other = begin(world), begin(world)
    world.do(Work(number, Complete(queue, [first])))
    for command in (
        Complete(queue, [first]),
        Complete(queue, [second, first]),
        Renew(queue, [first]),
        Work(other, Complete(queue, [first])),
        Work(number, Abandon(queue, [first])),
    ):
        with pytest.raises(LockLost):
            world.do(command)
    answer = world.do(Work(number, Complete(queue, [first, second], partial=True))).answer
    assert answer == Settled([first])
    assert world.do(Work(number, Complete(queue, [5], partial=True))).answer == Settled([5])
    world.do(Commit(number))
    assert world.peek(queue) == []


def test_what_cannot_be_is_refused_at_once() -> None:
    world = World()
    queue = world.queue(max_message_bytes=100, duplicate_detection=True)
    closed = world.queue("closed", status="send-disabled")
    world.send(queue, a_message("a", id="1"))
    [delivery] = world.receive(queue)
    dead = dead_letter_queue(queue)
    world.do(DeadLetter(queue, [delivery.token]))
    [letter] = world.receive(dead)
    number = begin(world)
    for asked, why in (
        (Send("nothing", [a_message("a")]), NotFound),
        (Send(closed, [a_message("a")]), Disabled),
        (Send(queue, [a_message("a" * 200)]), MessageTooLarge),
        (Complete("nothing", [1]), NotFound),
        (Complete(queue, [1]), LockLost),
        (DeadLetter(dead, [letter.token]), NotAllowed),
        (Abandon(dead, [letter.token], properties={"x": object()}), InvalidArgument),  # type: ignore[dict-item]
        (Renew(dead, [letter.token]), InvalidArgument),
    ):
        with pytest.raises(why):
            world.do(Work(number, asked))  # type: ignore[arg-type]
    assert world.do(Commit(number)).answer == Committed([], 0)


def test_duplicates_are_found_within_it_and_before_it() -> None:
    world = World()
    queue = world.queue(duplicate_detection=True)
    world.send(queue, a_message("old", id="0"))
    number = begin(world)
    for id in ("0", "1", "1"):
        world.do(Work(number, Send(queue, [a_message(id, id=id)])))
    answer = world.do(Commit(number)).answer
    repeats = [Enqueued([1], 1, first_ids={0: "0"}), Enqueued([2], 1, first_ids={0: "1"})]
    assert answer == Committed([repeats[0], Enqueued([2]), repeats[1]], 0)
    number = begin(world)
    world.do(Work(number, Send(queue, [a_message("x", id="1")], refuse_duplicates=True)))
    assert isinstance(world.do(Commit(number)).answer, RolledBack)
    with pytest.raises(Duplicate):
        world.do(Send(queue, [a_message("x", id="1")], refuse_duplicates=True))
    sound(world)


@pytest.mark.parametrize("what", ["full", "deleted", "gone"])
def test_a_commit_that_cannot_be_rolls_back(what: str) -> None:
    world = World()
    source, target = world.queue("source"), world.queue("target", max_messages=1)
    world.send(source, "a")
    [delivery] = world.receive(source)
    number = begin(world)
    world.do(Work(number, Complete(source, [delivery.token])))
    world.do(Work(number, Send(target, [a_message("b")])))
    if what == "full":
        world.send(target, "c")
    elif what == "deleted":
        world.do(DeleteQueue(target))
    else:
        world.do(Purge(source, frozenset((LOCKED,))))
    answer = world.do(Commit(number)).answer
    assert isinstance(answer, RolledBack)
    assert answer.reason
    if what != "gone":
        world.do(Complete(source, [delivery.token]))
    assert not world.state.transactions
    sound(world)


@pytest.mark.parametrize("how", [Complete, DeadLetter])
def test_what_ends_makes_room_for_what_is_sent(how: type[Complete | DeadLetter]) -> None:
    world = World()
    queue = world.queue(max_messages=2)
    world.send(queue, "a", "b")
    tokens = [each.token for each in world.receive(queue, 2)]
    number = begin(world)
    world.do(Work(number, Send(queue, [a_message("c"), a_message("d")])))
    world.do(Work(number, how(queue, tokens)))
    assert isinstance(world.do(Commit(number)).answer, Committed)
    assert world.peek(queue) == [(3, "active"), (4, "active")]
    sound(world)


def test_room_is_counted_over_all_of_it() -> None:
    world = World()
    queue = world.queue(max_messages=3, overflow="drop-newest")
    number = begin(world)
    for each in "abcd":
        world.do(Work(number, Send(queue, [a_message(each)])))
    answer = world.do(Commit(number)).answer
    assert isinstance(answer, Committed)
    assert [list(each.sequences) for each in answer.sent] == [[1], [2], [3], [0]]
    assert bodies(world.receive(queue, 5)) == ["a", "b", "c"]
    sound(world)


@pytest.mark.parametrize(
    ("overflow", "left", "dead"),
    [("drop-oldest", ["c", "d"], []), ("to-dead-letter", ["a", "b"], ["c", "d"])],
)
def test_what_gives_way_is_counted_over_all_of_it(
    overflow: str, left: list[str], dead: list[str]
) -> None:
    world = World()
    queue = world.queue(max_messages=2, overflow=overflow)
    number = begin(world)
    for each in "abcd":
        world.do(Work(number, Send(queue, [a_message(each)])))
    world.do(Commit(number))
    assert bodies(world.receive(queue, 5)) == left
    assert bodies(world.receive(dead_letter_queue(queue), 5)) == dead
    sound(world)


def test_there_is_an_end_to_what_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    transactions = sys.modules["posthouse.core.transactions"]
    world = World()
    queue = world.queue()
    number = begin(world)
    many = [NewMessage(b"", b"")] * BATCH_MAX
    world.do(Work(number, Send(queue, many)))
    with pytest.raises(QuotaExceeded, match="messages"):
        world.do(Work(number, Send(queue, [a_message("one more")])))
    monkeypatch.setattr(transactions, "SEND_BYTES_MAX", 10)
    other = begin(world)
    with pytest.raises(QuotaExceeded, match="bytes"):
        world.do(Work(other, Send(queue, [a_message("x" * 11)])))
    monkeypatch.setattr(transactions, "TRANSACTIONS_BYTES_MAX", 5)
    with pytest.raises(Busy):
        world.do(Work(other, Send(queue, [a_message("x" * 6)])))
    monkeypatch.setattr(transactions, "TRANSACTIONS_MAX", 2)
    with pytest.raises(Busy):
        begin(world)
    with pytest.raises(InvalidArgument):
        begin(world, timeout_ms=0)
    assert "transactions" in dump(world.state, passing=True)["passing"]
