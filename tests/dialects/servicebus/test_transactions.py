"""Transactions over AMQP, frame by frame."""

from uuid import UUID

import pytest

from posthouse.amqp.encode import described, encode, encode_list
from posthouse.amqp.events import Arrived, Attached, Disposed
from posthouse.amqp.performatives import ACCEPTED, code_of, problem_in
from posthouse.amqp.session import Link
from posthouse.amqp.types import Array, Described, ULong, Value
from posthouse.core.commands import GetQueue, QueueInfo
from tests.dialects.servicebus.rig import Client, Rig
from tests.dialects.servicebus.test_peer import MESSAGE, client_of, run, why
from tests.inside import state_of

COORDINATOR = Described(ULong(0x30), [None])


def coordinator(client: Client) -> Link:
    return client.amqp.begin().attach(
        "coordinator", sends=True, source=Described(ULong(0x28), [None]), target=COORDINATOR
    )


def value(body: Value) -> bytes:
    return described(0x77, encode(body))


def within(id: bytes, outcome: bytes = b"\x40") -> bytes:
    return described(0x34, encode_list((encode(id), outcome)))


async def told(client: Client, number: int) -> Described:
    """The state that a delivery of ours was settled with."""
    states = [
        each.state
        for each in await client.pump()
        if isinstance(each, Disposed) and number in each.delivery_ids
    ]
    (state,) = states
    assert state is not None
    return state


async def declare(client: Client, link: Link) -> bytes:
    state = await told(client, link.send(value(Described(ULong(0x31), [None])), b"d"))
    assert code_of(state) == 0x33
    (id,) = state.value
    assert isinstance(id, bytes)
    return id


async def discharge(client: Client, link: Link, id: bytes, *, fail: bool = False) -> Described:
    return await told(client, link.send(value(Described(ULong(0x32), [id, fail])), b"x"))


async def counts(rig: Rig, queue: str = "q") -> tuple[int, int]:
    from posthouse.broker.access import BROKER

    assert rig.engine is not None
    info = await rig.engine.ask(BROKER, "default", GetQueue(queue))
    assert isinstance(info, QueueInfo)
    return info.counts.active, info.counts.locked


async def ready(rig: Rig) -> tuple[Client, Link, Link]:
    """A client with its coordinator and a sender."""
    client = await client_of(rig)
    await client.put_token()
    control, sender = coordinator(client), client.link("q", sends=True)
    await client.pump()
    return client, control, sender


def test_what_is_sent_is_there_when_it_is_committed() -> None:
    async def work(rig: Rig) -> None:
        client, control, sender = await ready(rig)
        id = await declare(client, control)
        state = await told(client, sender.send(MESSAGE, b"m", state=within(id)))
        assert code_of(state) == 0x34
        assert state.value[0] == id
        assert code_of(state.value[1]) == 0x24
        assert await counts(rig) == (0, 0)
        assert code_of(await discharge(client, control, id)) == 0x24
        assert await counts(rig) == (1, 0)

    run(work)


def test_what_is_settled_is_gone_when_it_is_committed() -> None:
    async def work(rig: Rig) -> None:
        client, control, sender = await ready(rig)
        sender.send(MESSAGE, b"m")
        receiver = client.link("q", sends=False)
        receiver.grant(1)
        (arrived,) = [each for each in await client.pump() if isinstance(each, Arrived)]
        id = await declare(client, control)
        receiver.settle([arrived.delivery_id], within(id, ACCEPTED), settled=False)
        await client.pump()
        assert await counts(rig) == (0, 1)
        assert code_of(await discharge(client, control, id)) == 0x24
        assert await counts(rig) == (0, 0)

    run(work)


@pytest.mark.parametrize("how", ["asked", "detached", "lost"])
def test_it_is_rolled_back_when_that_is_asked_or_nobody_is_left(how: str) -> None:
    async def work(rig: Rig) -> None:
        client, control, sender = await ready(rig)
        id = await declare(client, control)
        sender.send(MESSAGE, b"m", state=within(id))
        await client.pump()
        if how == "asked":
            assert code_of(await discharge(client, control, id, fail=True)) == 0x24
        elif how == "detached":
            control.detach()
            await client.pump()
        else:
            client.peer.connection_lost(None)
            await rig.settle()
        assert rig.engine is not None
        assert not state_of(rig.engine, "default").transactions
        assert await counts(rig) == (0, 0)

    run(work)


def test_locks_are_settled_through_management_too() -> None:
    async def work(rig: Rig) -> None:
        client, control, sender = await ready(rig)
        sender.send(MESSAGE, b"m")
        receiver = client.link("q", sends=False)
        receiver.grant(1)
        (arrived,) = [each for each in await client.pump() if isinstance(each, Arrived)]
        id = await declare(client, control)
        token = UUID(bytes_le=arrived.tag)
        body = {"disposition-status": "completed", "lock-tokens": Array(0x98, [token])}
        asks = client.link("q/$management", sends=True)
        hears = client.link("q/$management", sends=False)
        hears.grant(5)
        await client.pump()

        def request(operation: str, body: Value) -> bytes:
            return (
                described(0x73, encode(["r", None, None, None, "q/$management"]))
                + described(0x74, encode({"operation": f"com.microsoft:{operation}"}))
                + value(body)
            )

        number = asks.send(request("update-disposition", body), b"1", state=within(id))
        events = await client.pump()
        (state,) = [e.state for e in events if isinstance(e, Disposed) and number in e.delivery_ids]
        assert state is not None
        assert code_of(state) == 0x34
        assert any(isinstance(each, Arrived) for each in events)
        assert await counts(rig) == (0, 1)
        asks.send(
            request("renew-lock", {"lock-tokens": body["lock-tokens"]}), b"2", state=within(id)
        )
        asks.send(request("update-disposition", body), b"3", state=within(b"unknown"))
        replies = [each for each in await client.pump() if isinstance(each, Arrived)]
        assert len(replies) == 2
        for each in replies:
            assert each.payload is not None
            assert b"transaction" in each.payload
        await discharge(client, control, id)
        assert await counts(rig) == (0, 0)

    run(work)


def test_a_transaction_that_is_not_there_is_refused() -> None:
    async def work(rig: Rig) -> None:
        client, control, sender = await ready(rig)
        refused = await discharge(client, control, b"nothing")
        problem = problem_in(refused.value[0])
        assert problem is not None
        assert problem.condition == "amqp:transaction:unknown-id"
        refused = await told(client, sender.send(MESSAGE, b"m", state=within(b"nothing")))
        problem = problem_in(refused.value[0])
        assert problem is not None
        assert problem.condition == "amqp:transaction:unknown-id"
        odd = await told(client, control.send(value("odd"), b"o"))
        assert code_of(odd) == 0x25
        odd = await told(client, control.send(value(Described(ULong(0x99), [])), b"p"))
        assert code_of(odd) == 0x25
        assert await counts(rig) == (0, 0)

    run(work)


def test_who_is_nobody_has_no_transactions() -> None:
    async def work(rig: Rig) -> None:
        client = await client_of(rig)
        coordinator(client)
        events = await client.pump()
        assert Attached in [type(each) for each in events]
        assert why(events).condition == "amqp:unauthorized-access"

    run(work)


def test_a_coordinator_ends_its_own_transactions_only() -> None:
    async def work(rig: Rig) -> None:
        client, control, sender = await ready(rig)
        session = client.amqp.begin()
        other = session.attach(
            "other", sends=True, source=Described(ULong(0x28), [None]), target=COORDINATOR
        )
        await client.pump()
        id = await declare(client, control)
        lost = await declare(client, other)
        sender.send(MESSAGE, b"m", state=within(id))
        other.detach()
        await client.pump()
        assert code_of(await discharge(client, control, id)) == 0x24
        assert await counts(rig) == (1, 0)
        assert code_of(await discharge(client, control, lost)) == 0x25

    run(work)
