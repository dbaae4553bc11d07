"""Writes a data folder as this version does, to be opened by all that come.

    python -m tests.golden.make NAME

Run it for a new version of the format or for records that older folders lack, never to make a
failing test pass.
"""

import asyncio
import sys
from pathlib import Path

import msgspec

from posthouse.broker.access import BROKER
from posthouse.broker.clock import VirtualClock
from posthouse.broker.engine import Engine
from posthouse.broker.fold import fold
from posthouse.core.commands import (
    Abandon,
    AcceptSession,
    Answer,
    Begin,
    Begun,
    Cancel,
    CancelSchedule,
    Command,
    Commit,
    Complete,
    CreateQueue,
    CreateSubscription,
    DeadLetter,
    Defer,
    Delivery,
    Granted,
    PauseSchedule,
    Purge,
    Receive,
    Received,
    RemoveRule,
    Renew,
    Resubmit,
    ResumeSchedule,
    Send,
    SetRule,
    SetSchedule,
    SetSessionState,
    StepClock,
    UpdateQueue,
    Work,
)
from posthouse.core.dump import dump
from posthouse.core.message import DEFERRED, Envelope, NewMessage, encode_envelope, timestamp, uuid
from posthouse.core.model import QueueProperties, dead_letter_queue, subscription_queue
from posthouse.core.namespaces import CreateNamespace, Namespaces
from posthouse.core.rules import CorrelationFilter, FalseFilter, PatternFilter, Rule, SqlFilter
from posthouse.store.file import FileStore

SEGMENT_BYTES = 16 << 10
NS = "golden"
EXPECTED = "expected.json"


def described(world: Namespaces) -> bytes:
    """The states, without what every start changes."""
    states = {}
    for name, state in world.states.items():
        states[name] = {k: v for k, v in dump(state).items() if k not in ("era", "started_ms")}
    return msgspec.json.format(msgspec.json.encode(states, order="sorted"), indent=1)


class Story:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def do(self, command: Command) -> Answer:
        return await self.engine.ask(BROKER, NS, command)

    async def send(self, queue: str, *bodies: str, **fields: object) -> None:
        envelope = Envelope(
            id=f"{queue}-{bodies[0]}",
            subject="golden",
            properties={"n": 1, "at": timestamp(5), "uid": uuid(bytes(16)), "x": 0.5, "b": b"\0"},
        )
        data = encode_envelope(envelope)
        new = [NewMessage(data, body.encode(), b"native", **fields) for body in bodies]  # type: ignore[arg-type]
        await self.do(Send(queue, new))

    async def receive(self, queue: str, limit: int, **options: object) -> list[Delivery]:
        command = Receive(queue, self.engine.new_receiver(), limit, **options)  # type: ignore[arg-type]
        answer = await self.do(command)
        assert isinstance(answer, Received)
        return answer.deliveries

    async def first(self) -> None:
        """Something of every kind of record and state."""
        await self.engine.ask(BROKER, "", CreateNamespace(NS, self.engine.epoch, 7))
        await self.do(CreateQueue("plain", QueueProperties(lock_ms=30_000, max_delivery=3)))
        await self.do(CreateQueue("urgent", QueueProperties(order="priority")))
        await self.do(CreateQueue("sessions", QueueProperties(grouping="session")))
        await self.do(CreateQueue("once", QueueProperties(duplicate_detection=True)))
        for number in range(60):
            await self.send("plain", f"p{number} " + "x" * 400)
        await self.send("urgent", "low", priority=1)
        await self.send("urgent", "high", priority=9)
        await self.send("sessions", "a", "b", group="s1")
        await self.send("sessions", "c", group="s2")
        await self.send("once", "1")
        await self.send("plain", "later", due_ms=90_000)
        await self.send("plain", "never", due_ms=95_000)
        await self.do(Cancel("plain", [62]))
        await self.send("plain", "brief", ttl_ms=1_000)
        one, two, three, four = await self.receive("plain", 4, by_id=True)
        await self.do(Complete("plain", [one.token]))
        await self.do(Abandon("plain", [two.token], delay_ms=5_000, properties={"tries": 1}))
        await self.do(Defer("plain", [three.token]))
        await self.do(DeadLetter("plain", [four.token], reason="bad", description="no colour"))
        await self.receive("plain", 1, delete=True)
        granted = await self.do(AcceptSession("sessions", self.engine.new_receiver(), "s1"))
        assert isinstance(granted, Granted)
        await self.receive("sessions", 1, session=granted.token)
        await self.do(SetSessionState("sessions", granted.token, b"half way"))
        (held,) = await self.receive("urgent", 1)
        await self.do(Renew("urgent", [held.token]))
        await self.engine.advance(10_000)
        await self.do(StepClock(6_000))

        await self.whole_model()

    async def whole_model(self) -> None:
        """Topics, forwarding, overflow, transactions and schedules."""
        await self.do(CreateQueue("news", QueueProperties(delivery="topic")))
        await self.do(CreateQueue("far", QueueProperties(max_messages=2, overflow="drop-oldest")))
        await self.do(CreateQueue("off", QueueProperties(status="send-disabled")))
        rule = Rule("n", SqlFilter("n = @n", {"n": 1}), "SET n = 2; REMOVE x")
        for name, rules, target in (
            ("all", [Rule("$Default")], None), ("changed", [rule], None),
            ("on", [Rule("subject", PatternFilter("gold*.#"))], "far"),
            ("stuck", [Rule("same", CorrelationFilter({"subject": "golden"}))], "off"),
        ):  # fmt: skip
            queue = subscription_queue("news", name)
            await self.do(CreateSubscription(queue, QueueProperties(forward_to=target), rules))
        await self.send("news", "first", "second", "third")
        await self.send("news", "later", due_ms=100_000)
        await self.do(SetRule("news/$sub/all", Rule("none", FalseFilter())))
        await self.do(RemoveRule("news/$sub/all", "none"))
        begun = await self.do(Begin())
        assert isinstance(begun, Begun)
        (held,) = await self.receive("news/$sub/all", 1)
        envelope = encode_envelope(Envelope(id="together"))
        for work in (
            Complete("news/$sub/all", [held.token]), Send("plain", [NewMessage(envelope, b"t")]),
        ):  # fmt: skip
            await self.do(Work(begun.transaction, work))
        await self.do(Commit(begun.transaction))
        message = NewMessage(envelope, b"beat")
        await self.do(SetSchedule("far", "often", "every 4 seconds", message))
        await self.do(SetSchedule("plain", "daily", "at 14:30", message, "Europe/Berlin"))
        await self.do(PauseSchedule("daily"))
        await self.engine.advance(9_000)

    async def second(self) -> None:
        """Behind the snapshot."""
        await self.do(ResumeSchedule("daily"))
        await self.do(CancelSchedule("often"))
        await self.do(UpdateQueue("urgent", QueueProperties(order="priority", lock_ms=5_000)))
        await self.send("plain", "new")
        await self.do(Resubmit(dead_letter_queue("plain")))
        await self.do(Purge("plain", frozenset({DEFERRED})))
        await self.receive("plain", 2)
        await self.engine.set_time(NS, 120_000)


async def write(folder: Path, part: int) -> bytes:
    store = FileStore(folder, segment_bytes=SEGMENT_BYTES)
    engine = await Engine.open(store, VirtualClock(1_000), 3, snapshots=store.snapshots)
    story = Story(engine)
    await (story.first() if part == 1 else story.second())
    state = described(engine.world)
    await engine.close()
    return state


def main(folder: Path) -> None:
    asyncio.run(write(folder, 1))
    fold(folder)
    asyncio.run(write(folder, 2))
    found = asyncio.run(_look(folder))
    (folder / EXPECTED).write_bytes(found)
    for name in ("lock", "fold-lock", "next", "reserve"):
        (folder / name).unlink()


async def _look(folder: Path) -> bytes:
    """With all bodies, read from the journal alone."""
    from posthouse.broker.replay import recover

    store = FileStore(folder, read_only=True)
    world = await recover(store, None)
    await store.close()
    return described(world)


if __name__ == "__main__":
    main(Path(__file__).parent / sys.argv[1])
