"""Which deliveries are handled when: order by key, retries in order, batches, progress, a stop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from posthouse.bridge import Delays, Event
from posthouse.bridge.consuming import Held, Intake
from posthouse.bridge.envelope import UNKNOWN_TIME
from posthouse.bridge.errors import BridgeError, MalformedEvent
from posthouse.bridge.handling import DONE, Handler, Options, Outcome
from posthouse.bridge.transport import Ack, Delivery, Extend, Nak, Settlement, Source

SOURCE = Source("api.sync.worker", "worker-workers", ack_wait=0.1)
RETRY = Outcome("retry", 0.0)


class Script:
    """A transport that delivers what a test says, and keeps how it was settled."""

    name, body_bytes_max, wakes = "script", 1_000_000, False

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Delivery] = asyncio.Queue()
        self.settled: list[tuple[str, Settlement]] = []
        self.changed = asyncio.Event()
        self.window = 0
        self.fails = 0  # settlements that are refused

    def deliver(self, *ids: str, key: str = "", number: int = 1) -> None:
        for id in ids:
            delivery = Delivery(
                SOURCE.subject, b"", {}, id, number, "s", 1, SOURCE.consumer, key or id[0], None
            )
            self.queue.put_nowait(delivery)

    async def deliveries(self, source: Source, window: int) -> AsyncIterator[Delivery]:
        self.window = window
        while True:
            self.changed.set()  # what was delivered before is taken
            yield await self.queue.get()

    async def settle(self, delivery: Delivery, how: Settlement) -> None:
        if self.fails:
            self.fails -= 1
            raise BridgeError("no connection")
        self.settled.append((delivery.id, how))
        self.changed.set()

    def ids(self, kind: type[Settlement] = Ack) -> list[str]:
        return [id for id, how in self.settled if isinstance(how, kind)]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


def read(delivery: Delivery) -> Event | MalformedEvent:
    return Event(delivery.id, "a.b", {}, "api", "a", "", UNKNOWN_TIME, "", key=delivery.key)


def an_intake(
    script: Script,
    handle: Callable[[Sequence[Held]], Coroutine[Any, Any, list[Outcome]]],
    **options: Any,
) -> Intake:
    handler = Handler(lambda event: None, Options("api", Delays(0), **options))
    made = Intake(
        script, SOURCE, handler, read=read, handle=handle, note=lambda held, outcome: None,  # type: ignore[arg-type]
        pace=lambda delay: delay,
    )  # fmt: skip
    made.start()
    return made


async def test_events_of_one_key_are_handled_one_behind_the_other() -> None:
    script, running, order = Script(), set[str](), list[str]()
    free = asyncio.Event()

    async def handle(work: Sequence[Held]) -> list[Outcome]:
        [held] = work
        assert held.key not in running
        running.add(held.key)
        order.append(held.delivery.id)
        script.changed.set()
        await free.wait()
        running.discard(held.key)
        return [DONE]

    intake = an_intake(script, handle, concurrency=3)
    script.deliver("a1", "a2", "b1", "a3", "b2", "c1", "d1")
    await script.until(lambda: len(order) == 3)
    assert order == ["a1", "b1", "c1"]
    free.set()
    await script.until(lambda: len(script.ids()) == 7)
    for key in "ab":
        assert [id for id in order if id[0] == key] == sorted(id for id in order if id[0] == key)
    assert script.window == 6
    assert await intake.drain(1)


async def test_later_events_of_a_key_overtake_a_retry_unless_they_are_ordered() -> None:
    for ordered in (False, True):
        script, order = Script(), list[str]()

        async def handle(work: Sequence[Held], order: list[str] = order) -> list[Outcome]:
            [held] = work
            order.append(held.delivery.id)
            return [RETRY if held.delivery.id == "a1" and held.attempt < 3 else DONE]

        intake = an_intake(script, handle, ordered=ordered)
        script.deliver("a1", "a2", "b1")
        if ordered:
            await script.until(lambda script=script: len(script.ids()) == 3)  # type: ignore[misc]
            assert [id for id in order if id[0] == "a"] == ["a1", "a1", "a1", "a2"]
            assert script.ids(Nak) == []
        else:
            await script.until(lambda script=script: len(script.ids()) == 2)  # type: ignore[misc]
            assert [id for id in order if id[0] == "a"] == ["a1", "a2"]
            assert script.ids(Nak) == ["a1"]
        assert await intake.drain(1)


async def test_a_batch_that_fails_is_handled_one_by_one_in_order() -> None:
    script, calls = Script(), list[list[str]]()
    begin = asyncio.Event()

    async def handle(work: Sequence[Held]) -> list[Outcome]:
        await begin.wait()
        ids = [held.delivery.id for held in work]
        calls.append(ids)
        if len(ids) > 1 and "a2" in ids:
            return [RETRY] * len(ids)
        return [RETRY if ids == ["a2"] and work[0].attempt == 1 else DONE]

    intake = an_intake(script, handle, batch=10, ordered=True)
    script.deliver("x1")  # holds the batch up until all have come
    script.deliver("a1", "a2", "b1", "a3")
    await asyncio.sleep(0.01)  # slept: all have come by then
    begin.set()
    await script.until(lambda: len(script.ids()) == 5)
    assert calls[:2] == [["x1"], ["a1", "a2", "a3", "b1"]]
    alone = [ids[0] for ids in calls[2:]]
    assert [id for id in alone if id[0] == "a"] == ["a1", "a2", "a2", "a3"]
    assert script.ids().count("b1") == 1
    assert await intake.drain(1)


async def test_progress_is_told_of_all_that_is_held_until_the_time_out() -> None:
    script, free = Script(), asyncio.Event()

    async def handle(work: Sequence[Held]) -> list[Outcome]:
        await free.wait()
        return [DONE]

    intake = an_intake(script, handle, timeout=0.2)
    script.deliver("a1", "a2")
    await script.until(lambda: script.ids(Extend).count("a2") > 20)
    assert 1 < script.ids(Extend).count("a1") < 20  # a stuck handler is delivered again elsewhere
    free.set()
    await script.until(lambda: len(script.ids()) == 2)
    assert await intake.drain(1)


async def test_a_stop_gives_back_what_was_not_begun_and_waits_for_what_was() -> None:
    script, begun, free = Script(), asyncio.Event(), asyncio.Event()

    async def handle(work: Sequence[Held]) -> list[Outcome]:
        begun.set()
        await free.wait()
        return [DONE]

    intake = an_intake(script, handle)
    script.deliver("a1", "a2", "b1")
    await begun.wait()
    await script.until(lambda: intake.unsettled == 3)
    draining = asyncio.create_task(intake.drain(30))
    await script.until(lambda: sorted(script.ids(Nak)) == ["a2", "b1"])
    free.set()
    assert await draining
    assert script.ids() == ["a1"]
    assert intake.unsettled == 0


async def test_a_handler_that_does_not_end_in_time_is_given_back() -> None:
    script, begun = Script(), asyncio.Event()

    async def handle(work: Sequence[Held]) -> list[Outcome]:
        begun.set()
        await asyncio.Event().wait()
        return [DONE]

    intake = an_intake(script, handle)
    script.deliver("a1")
    await begun.wait()
    assert not await intake.drain(0.01)
    assert script.ids(Nak) == ["a1"]


async def test_an_event_that_cannot_be_settled_does_not_hold_up_its_key() -> None:
    script = Script()

    async def handle(work: Sequence[Held]) -> list[Outcome]:
        return [DONE]

    intake = an_intake(script, handle)
    script.fails = 1
    script.deliver("a1", "a2")
    await script.until(lambda: script.ids() == ["a2"])
    assert await intake.drain(1)


async def test_an_event_is_delivered_again_when_nobody_can_handle_it() -> None:
    script, tries = Script(), list[str]()

    async def handle(work: Sequence[Held]) -> list[Outcome]:
        tries.append(work[0].delivery.id)
        if len(tries) == 1:
            raise RuntimeError("the loop of the handlers is closed")
        return [DONE]

    intake = an_intake(script, handle)
    script.deliver("a1", "a2")
    await script.until(lambda: script.ids() == ["a2"])
    assert script.ids(Nak) == ["a1"]
    assert await intake.drain(1)
