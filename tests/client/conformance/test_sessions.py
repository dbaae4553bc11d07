"""Sessions: in order, with one holder, who can lose them."""

import asyncio
import time

import pytest

from posthouse.client.client import QueueClient, SessionClient
from posthouse.client.errors import (
    MessageNotFound,
    SessionLocked,
    SessionLockLost,
    Unsupported,
    ValidationError,
)
from posthouse.client.messages import Message
from posthouse.client.provider import SessionSupport
from tests.client.conformance.rigs import Rig
from tests.client.conformance.table import SQS, can

pytestmark = pytest.mark.long


async def fill(rig: Rig, queue: str, session: str, count: int) -> None:
    most = min(rig.sessions.max_batch_size(), 100)
    messages = [Message(b"%d" % n).with_session_id(session) for n in range(count)]
    for first in range(0, count, most):
        await rig.sessions.send_messages(queue, messages[first : first + most])


async def accepted(client: QueueClient, queue: str, session: str | None = None) -> SessionClient:
    found = await client.accept_session(queue, session, 10.0)
    assert found is not None
    return found


async def drained(session: SessionClient, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    while len(bodies) < count:
        some = await session.receive_messages(100, 10.0)
        assert some, f"only {len(bodies)} of {count} have come"
        bodies += [each.body for each in some]
        await session.complete_messages(some)
    return bodies


async def test_a_session_is_in_order_and_others_run_beside_it(rig: Rig) -> None:
    queue = await rig.queue(sessions=True)
    await asyncio.gather(*(fill(rig, queue, name, 5) for name in ("a", "b", "c")))
    sessions = [await accepted(rig.sessions, queue) for _ in range(3)]
    assert {each.session_id for each in sessions} == {"a", "b", "c"}
    found = await asyncio.gather(*(drained(each, 5) for each in sessions))
    assert found == [[b"%d" % n for n in range(5)]] * 3
    await asyncio.gather(*(each.close_session() for each in sessions))


async def test_a_message_knows_its_session(rig: Rig) -> None:
    queue = await rig.queue(sessions=True)
    await rig.sessions.send_message(queue, Message(b"x").with_session_id("of mine"))
    async with await accepted(rig.sessions, queue, "of mine") as session:
        found = await session.receive_message(5.0)
        assert found is not None
        assert found.session_id == session.session_id == "of mine"
        await session.complete_message(found)


async def test_a_session_that_is_named_comes_before_others(rig: Rig) -> None:
    queue = await rig.queue(sessions=True)
    for name in ("a", "b"):
        await fill(rig, queue, name, 3)
    async with await accepted(rig.sessions, queue, "b") as second:
        assert await drained(second, 3) == [b"0", b"1", b"2"]
    async with await accepted(rig.sessions, queue, "a") as first:  # nothing of it was lost
        assert await drained(first, 3) == [b"0", b"1", b"2"]


async def test_an_empty_session_can_be_held_where_the_provider_has_them(rig: Rig) -> None:
    queue = await rig.queue(sessions=True)
    found = await rig.sessions.accept_session(queue, "empty", 0.5)
    assert (found is not None) == can(rig.type, "A session without messages, by its name")
    if found is not None:
        assert await found.receive_message(0.2) is None
        await found.close_session()


async def test_no_session_ends_at_the_time_out(rig: Rig) -> None:
    queue = await rig.queue(sessions=True)
    begun = time.monotonic()
    assert await rig.sessions.accept_session(queue, None, 1.0) is None
    assert 0.8 <= time.monotonic() - begun < 4


async def test_a_session_has_one_holder(rig: Rig) -> None:
    queue = await rig.queue(sessions=True)
    await fill(rig, queue, "s", 2)
    session = await accepted(rig.sessions, queue, "s")
    with pytest.raises(SessionLocked) as caught:
        await rig.sessions.accept_session(queue, "s", 0.5)
    assert caught.value.session_id == "s"
    other = rig.other()
    try:  # SQS does not say who has it: others wait for their time
        assert await other.accept_session(queue, "s", 0.5) is None
        assert rig.type is SQS
    except SessionLocked:
        assert rig.type is not SQS
    assert await other.accept_session(queue, None, 0.5) is None
    found = await session.receive_message(5.0)
    assert found is not None
    await session.close_session()
    async with await accepted(other, queue, "s") as next_one:
        assert await drained(next_one, 2) == [b"0", b"1"]


async def test_a_holder_that_idles_loses_it_to_another(rig: Rig) -> None:
    lock_s = max(2.0, rig.lock_s)
    queue = await rig.queue(sessions=True, lock_s=lock_s)
    count = 1 if rig.type is SQS else 3  # Moto forgets the order of several that expire together
    await fill(rig, queue, "s", count)
    first = await accepted(rig.sessions, queue, "s")
    taken = await first.receive_message(5.0)
    assert taken is not None
    await rig.pass_time(lock_s + 0.3)
    second = await accepted(rig.other(), queue, "s")
    for call in (
        lambda: first.receive_message(0.5),
        lambda: first.complete_message(taken),
        lambda: first.renew_session_lock(),
    ):
        with pytest.raises((SessionLockLost, MessageNotFound)) as caught:
            await call()
        if isinstance(caught.value, SessionLockLost):
            assert caught.value.session_id == "s"
    with pytest.raises(SessionLockLost):
        await first.receive_message(0.5)
    expected = [b"%d" % n for n in range(count)]  # nothing lost, nothing doubled
    assert await drained(second, count) == expected
    await second.close_session()
    await first.close_session()


async def test_a_holder_keeps_it_by_renewal(rig: Rig) -> None:
    lock_s = max(2.0, rig.lock_s)
    queue = await rig.queue(sessions=True, lock_s=lock_s)
    await fill(rig, queue, "s", 1)
    session = await accepted(rig.sessions, queue, "s")
    found = await session.receive_message(5.0)
    assert found is not None
    before = session.session_expires_at
    for _ in range(2):
        await rig.pass_time(lock_s * 0.6)
        assert await session.renew_session_lock() > before
    assert session.session_expires_at > before
    await session.complete_message(found)
    await session.close_session()


async def test_what_is_abandoned_comes_first_again(rig: Rig) -> None:
    queue = await rig.queue(sessions=True)
    await fill(rig, queue, "s", 2)
    async with await accepted(rig.sessions, queue, "s") as session:
        found = await session.receive_message(5.0)
        assert found is not None
        await session.abandon_message(found)
    async with await accepted(rig.sessions, queue, "s") as session:
        assert await drained(session, 2) == [b"0", b"1"]


async def test_a_dead_letter_of_a_session_makes_way(rig: Rig) -> None:
    queue = await rig.queue(sessions=True)
    await fill(rig, queue, "s", 2)
    async with await accepted(rig.sessions, queue, "s") as session:
        found = await session.receive_message(5.0)
        assert found is not None
        await session.dead_letter_message(found, "broken")
        assert await drained(session, 1) == [b"1"]
    dead = await rig.sessions.receive_message(queue, 5.0, dead_letter=True)
    assert dead is not None
    assert (dead.body, dead.session_id, dead.dead_letter_reason) == (b"0", "s", "broken")
    await rig.sessions.resubmit_messages(queue, [dead])
    async with await accepted(rig.sessions, queue, "s") as session:
        assert await drained(session, 1) == [b"0"]


async def test_a_long_session_is_handed_out_whole(rig: Rig) -> None:
    count = 100 if rig.type is SQS else 1_000  # Moto takes the square of the time
    queue = await rig.queue(sessions=True)
    await fill(rig, queue, "s", count)
    async with await accepted(rig.sessions, queue) as session:
        assert await drained(session, count) == [b"%d" % n for n in range(count)]
        assert await session.receive_message(0.2) is None


async def test_who_waits_for_a_session_can_be_cancelled(rig: Rig) -> None:
    queue = await rig.queue(sessions=True)
    waiting = asyncio.ensure_future(rig.sessions.accept_session(queue, None, 2.0))
    await asyncio.sleep(0.1)  # slept: no provider tells that somebody waits; earlier is as good
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await fill(rig, queue, "s", 1)
    async with await accepted(rig.other(), queue, "s") as session:
        assert await drained(session, 1) == [b"0"]


async def test_a_session_has_a_state(rig: Rig) -> None:
    queue = await rig.queue(sessions=True)
    await fill(rig, queue, "s", 1)
    async with await accepted(rig.sessions, queue, "s") as session:
        if not can(rig.type, "State of a session"):
            for call in (session.get_state, lambda: session.set_state(b"x")):
                with pytest.raises(Unsupported):
                    await call()
            return
        assert await session.get_state() is None
        await session.set_state(b"half way \0")
        assert await session.get_state() == b"half way \0"
        await session.set_state(None)
        assert await session.get_state() is None


async def test_what_a_session_is_called_is_checked(rig: Rig) -> None:
    with pytest.raises(ValidationError):
        await rig.sessions.accept_session(await rig.queue(sessions=True), "\u20ac", 0.1)
    assert rig.sessions.supports_sessions()
    emulated = rig.sessions.capabilities.sessions is SessionSupport.EMULATED
    assert emulated == (rig.type is SQS)


async def test_sessions_of_sqs_want_a_fifo_queue(rig: Rig) -> None:
    if rig.type is not SQS:
        return
    queue = await rig.queue()
    with pytest.raises(Unsupported):
        await rig.client.send_message(queue, Message(b"x").with_session_id("s"))
    with pytest.raises(Unsupported):
        await rig.client.accept_session(queue, None, 0.1)
