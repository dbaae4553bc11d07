"""The SDK's renewers of locks.

They go by the time of the machine, so each has a broker whose clock has not been moved before.
"""

import asyncio

import pytest
from azure.servicebus import AutoLockRenewer, ServiceBusMessage, aio

from tests.dialects.servicebus.bus import WAIT, Bus, eventually, together
from tests.server.running import running

LOCK_MS = 4_000


def test_messages_and_sessions_stay_locked_while_they_are_renewed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with running("--data", str(tmp_path_factory.mktemp("young") / "data"), "--dev") as broker:
        bus = Bus(broker)
        queue, sessions = bus.queue(lock_ms=LOCK_MS), bus.sessions(lock_ms=LOCK_MS)
        together(
            lambda: bus.sender(queue).send_messages(ServiceBusMessage("x")),
            lambda: bus.sender(sessions).send_messages(ServiceBusMessage("x", session_id="s")),
        )
        bus.clock(frozen=True)
        with AutoLockRenewer() as renewer:
            plain, session = together(
                lambda: bus.receiver(queue, auto_lock_renewer=renewer),
                lambda: bus.receiver(sessions, session_id="s", auto_lock_renewer=renewer),
            )
            [one] = plain.receive_messages(max_wait_time=WAIT)
            [two] = session.receive_messages(max_wait_time=WAIT)
            until = one.locked_until_utc, session.session.locked_until_utc
            bus.advance(3)
            eventually(lambda: one.locked_until_utc != until[0])
            eventually(lambda: session.session.locked_until_utc != until[1])
            bus.advance(3)  # later than the locks would have held without
            assert one.auto_renew_error is None
            assert session.session.auto_renew_error is None
            plain.complete_message(one)
            session.complete_message(two)
        bus.close()
        assert set(bus.counts(queue).values()) == set(bus.counts(sessions).values()) == {0}


def test_a_renewer_tells_when_a_lock_is_lost(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running("--data", str(tmp_path_factory.mktemp("young") / "data"), "--dev") as broker:
        bus = Bus(broker)
        queue = bus.queue(lock_ms=LOCK_MS)
        sender, receiver = bus.pair(queue)
        sender.send_messages(ServiceBusMessage("x"))
        told: list[object] = []
        with AutoLockRenewer(on_lock_renew_failure=lambda *each: told.append(each)) as renewer:
            [message] = receiver.receive_messages(max_wait_time=WAIT)
            bus.advance(5)
            renewer.register(receiver, message)
            eventually(lambda: bool(told))
        bus.close()
        assert message.auto_renew_error is not None


def test_the_asynchronous_renewer_renews_as_well(tmp_path_factory: pytest.TempPathFactory) -> None:
    async def run(bus: Bus) -> None:
        text = bus.connection_string()
        async with (
            aio.ServiceBusClient.from_connection_string(text) as client,
            client.get_queue_sender(queue) as sender,
            aio.AutoLockRenewer() as renewer,
            client.get_queue_receiver(queue, auto_lock_renewer=renewer) as receiver,
        ):
            await sender.send_messages(ServiceBusMessage("x"))
            [message] = await receiver.receive_messages(max_wait_time=WAIT)
            bus.clock(frozen=True)
            until = message.locked_until_utc
            bus.advance(3)
            await asyncio.to_thread(eventually, lambda: message.locked_until_utc != until)
            bus.advance(3)
            await receiver.complete_message(message)

    with running("--data", str(tmp_path_factory.mktemp("young") / "data"), "--dev") as broker:
        bus = Bus(broker)
        queue = bus.queue(lock_ms=LOCK_MS)
        asyncio.run(run(bus))
        assert set(bus.counts(queue).values()) == {0}
