"""The test kit: real outbox, relay, consumers and inbox, which a test waits for, and crashes.

    async with bridge.testing() as t:
        await t.deliver("order.created", {"id": 7})
        await t.settle()
        assert t.published(type="shipment.planned")

A crash is simulated where a process could die: nothing that runs after that place is done, and the
event is delivered again. Retries come at once.
"""

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Sized
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from posthouse.bridge import envelope
from posthouse.bridge.effects import Effects, Snapshot, without_chance
from posthouse.bridge.errors import ConfigurationError, MalformedEvent, PublishFailed
from posthouse.bridge.event import Event
from posthouse.bridge.hooks import Hooks, SimulatedCrash
from posthouse.bridge.transport import (
    Ack,
    Bury,
    DeadLetter,
    Delivery,
    Failure,
    Nak,
    Outgoing,
    Plan,
    Settlement,
    Source,
    Stored,
    Topology,
    Transport,
    TransportHealth,
)

if TYPE_CHECKING:
    from posthouse.bridge.bridge import Bridge

Where = Literal["mark", "commit", "ack"]
SETTLE_SECONDS = 30.0  # that `settle` waits
QUIET_ROUNDS = 2  # looks at the outbox that find nothing, until all is settled


@dataclass(frozen=True)
class Dead:
    """An event that went to the dead letters.

    `event` is the event, if it can be read; `reason` and `context` are told with it.

    Example:
        assert t.dead[0].reason == "unrecoverable"
    """

    event: Event | None
    reason: str
    context: Mapping[str, str | int]


@dataclass(frozen=True)
class Finding:
    """An effect that happened more or less often than it should.

    `scenario` is what was done to the handler, `effect` what it has changed, `times` how often it
    happened and `expected` how often it should have.

    Example:
        for finding in await t.prove(on_event, event):
            print(finding)
    """

    scenario: str
    effect: str
    times: int
    expected: int

    def __str__(self) -> str:
        return f"{self.scenario}: {self.effect} happened {self.times} times, not {self.expected}"


class Testing:
    """The test kit of one or several `bridges`.

    Example:
        async with bridge.testing() as t:
            await t.settle()
    """

    __test__ = False  # pytest collects classes by their names

    def __init__(self, bridges: Sequence["Bridge"]) -> None:
        self._bridges = bridges
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._sources: list[Source] = []
        self._seen: set[tuple[str, str]] = set()  # subject and id of all that was stored
        self._waiting: Counter[tuple[str, str]] = Counter()  # consumer and id
        self._published: list[Event] = []
        self._bodies: dict[str, Outgoing] = {}  # by the event's id, to be delivered again
        self._crashes: list[Where] = []
        self._near: Transport | None = None
        self.dead: list[Dead] = []
        self.delays: list[float] = []  # of the retries, which came at once

    # What a test does.

    async def deliver(
        self, type: str, payload: Any, *, source: str = "", key: str = "", event_id: str = "",
        headers: Mapping[str, str] | None = None, bridge: "Bridge | None" = None,
    ) -> Event:  # fmt: skip
        """Has an event arrive, as if another service had published it. Returns the event.

        `type` and `payload` say what happened; `source` is the service, the first destination
        unless given; `key`, `event_id` and `headers` are those of `publish`. `bridge` is the one
        that gets it, where several are tested.

        Example:
            event = await t.deliver("order.created", {"id": 7})
        """
        to = bridge or self._bridges[0]
        service = source or to.names.destinations[0]
        pattern = to.names.subject_from(service)
        subject = pattern.removesuffix(">") + type if pattern.endswith(">") else pattern
        resource_id = envelope.resource_id_of(payload) if isinstance(payload, dict) else ""
        event = Event(
            event_id or envelope.new_event_id(), type, payload, service,
            envelope.resource_type_of(type), resource_id, datetime.now(UTC),
            envelope.new_trace_id(), key=key, headers=headers or {},
        )  # fmt: skip
        await self._inject(to, envelope.outgoing(event, subject))
        return event

    async def deliver_bytes(self, body: bytes, *, bridge: "Bridge | None" = None) -> None:
        """Has bytes arrive that need not be an event. `body` is what arrives at `bridge`.

        Example:
            await t.deliver_bytes(b"no JSON")
        """
        to = bridge or self._bridges[0]
        subject = to.names.subject_from(to.names.destinations[0])
        await self._inject(to, Outgoing(subject, body, f"bytes-{uuid.uuid4()}"))

    async def redeliver(self, event: Event) -> None:
        """Has an `event` delivered once more, as after a lost acknowledgement.

        Example:
            await t.redeliver(event)
        """
        known = self._bodies.get(event.id)
        if known is None:
            raise ConfigurationError(f"The event {event.id} was neither published nor delivered.")
        again = replace(known, id=f"{event.id}-{uuid.uuid4()}")
        await self._inject(self._bridges[0], again)

    def crash_before(self, where: Where) -> None:
        """Has the process die once, before the next `mark`, `commit` or `ack`.

        `where` is `mark`: the transport has stored an event, and the relay's row says nothing of
        it; `commit`: a handler is done, and its transaction is rolled back; `ack`: the transaction
        is committed, and the transport does not know.

        Example:
            t.crash_before("ack")
        """
        if where not in ("mark", "commit", "ack"):
            raise ConfigurationError(f"There is no crash before {where!r}: mark, commit or ack.")
        self._crashes.append(where)

    async def settle(self, within: float = SETTLE_SECONDS) -> None:
        """Waits until the relay and the handlers have nothing left to do.

        `within` is in seconds. Raises TimeoutError, which says what is left.

        Example:
            await t.settle()
        """
        try:
            async with asyncio.timeout(within):
                await self._settle()
        except TimeoutError:
            left = ", ".join(f"{id} at {consumer}" for consumer, id in list(self._waiting)[:5])
            raise TimeoutError(
                f"After {within:g} s there is still something to do:"
                f" {left or 'rows of the outbox'}."
            ) from None

    async def _settle(self) -> None:
        quiet = 0
        while quiet < QUIET_ROUNDS:
            self._changed.clear()
            before = len(self._seen)
            for bridge in self._bridges:
                if bridge.has_storage:
                    await bridge.storage.settle()
            if self._waiting:
                quiet = 0
                await self._changed.wait()
            else:
                quiet = quiet + 1 if len(self._seen) == before else 0

    def published(
        self, type: str | None = None, payload: Any = None, *, key: str | None = None
    ) -> list[Event]:
        """Returns the events that the bridges have published, in their order, each once.

        `type` and `key` choose by equality; of a `payload` that is a dict, the fields that it has
        must be equal.

        Example:
            assert len(t.published(type="order.created", payload={"id": 7})) == 1
        """
        return [
            event for event in self._published
            if type in (None, event.type) and key in (None, event.key)
            and (payload is None or _matches(payload, event.payload))
        ]  # fmt: skip

    async def prove(
        self,
        handler: Callable[..., Any],
        event: Event | None = None,
        *,
        type: str = "test.event",
        payload: Any = None,
        watch: Callable[[], Any] | None = None,
    ) -> list[Finding]:
        """Proves that the effects of a handler happen once, whatever happens to the process.

        The `handler` gets the `event`, or one of `type` and `payload`: once, twice, with a crash
        before the commit and one before the acknowledgement. Effects are the rows in the service's
        database (SQLite), the events it publishes, and what `watch` returns: a number, or a list
        that grows. Returns what happened more or less often than when all goes well.

        Example:
            assert not await t.prove(on_event, payload={"id": 7}, watch=lambda: mails)
        """
        found = [
            (bridge, source)
            for bridge in self._bridges
            for source, known in bridge.handlers.items()
            if known.function is handler
        ]
        if not found:
            raise ConfigurationError("prove: the function is no handler of these bridges.")
        bridge, source = found[0]
        if event is None:
            event = await self._made(
                bridge, source, type, {"id": 1} if payload is None else payload
            )
        await self.settle()
        prover = _Prover(self, bridge, source, event, watch)
        return await prover.run()

    async def _made(self, bridge: "Bridge", source: str, type: str, payload: Any) -> Event:
        resource_id = envelope.resource_id_of(payload) if isinstance(payload, dict) else ""
        return Event(
            envelope.new_event_id(), type, payload, source, envelope.resource_type_of(type),
            resource_id, datetime.now(UTC), envelope.new_trace_id(),
        )  # fmt: skip

    async def _inject(self, bridge: "Bridge", outgoing: Outgoing) -> None:
        with contextlib.suppress(MalformedEvent):
            self._bodies.setdefault(envelope.decode(outgoing.body).id, outgoing)

        async def there(transport: Transport) -> list[Stored | Failure]:
            assert isinstance(transport, KitTransport)
            return await transport.inject([outgoing])

        [answer] = await bridge.connection.call(there)
        if isinstance(answer, Failure):
            raise answer

    # What the transports tell, on their own loop.

    def _note_stored(self, event: Outgoing, *, is_own: bool) -> None:
        if (event.subject, event.id) in self._seen:
            return
        self._seen.add((event.subject, event.id))
        for source in self._sources:
            if subject_matches(source.subject, event.subject):
                self._waiting[source.consumer, event.id] += 1
        if is_own:
            made = envelope.decode(event.body, event.headers)
            self._published.append(made)
            self._bodies.setdefault(made.id, event)
        self._tell()

    def _note_settled(self, delivery: Delivery, how: Settlement) -> None:
        if isinstance(how, Ack | Bury):
            self._waiting.pop((delivery.consumer, delivery.id), None)
        elif isinstance(how, Nak):
            self.delays.append(how.delay)
        if isinstance(how, Bury):
            event: Event | None = None
            with contextlib.suppress(MalformedEvent):
                event = envelope.decode(delivery.body, delivery.headers)
            self.dead.append(Dead(event, how.reason, how.context))
        self._tell()

    def _tell(self) -> None:
        self._loop.call_soon_threadsafe(self._changed.set)

    def _takes_crash(self, where: Where) -> bool:
        if where in self._crashes:
            self._crashes.remove(where)
            return True
        return False

    def _crash_point(self, where: str) -> None:
        if where == "commit" and self._takes_crash("commit"):
            raise SimulatedCrash

    @staticmethod
    def _at_once(delay: float) -> float:
        return 0.0

    @asynccontextmanager
    async def _running(self) -> AsyncIterator["Testing"]:
        shared = f"memory://{uuid.uuid4()}"
        async with contextlib.AsyncExitStack() as stack:
            for bridge in self._bridges:
                hooks = Hooks(
                    lambda near: KitTransport(near, self), self._crash_point, self._at_once, shared
                )
                stack.enter_context(bridge.under_test(hooks))
                if bridge.has_storage:
                    await bridge.create_tables()
                self._sources += bridge.sources()
            for bridge in self._bridges:
                await stack.enter_async_context(bridge.running())
            yield self


def testing(*bridges: "Bridge") -> contextlib.AbstractAsyncContextManager[Testing]:
    """Makes and runs the test kit of bridges.

    Example:
        async with testing(api, worker) as t:
            await t.settle()
    """

    @asynccontextmanager
    async def run() -> AsyncIterator[Testing]:
        async with Testing(bridges)._running() as kit:
            yield kit

    return run()


class KitTransport:
    """A transport that tells the test kit what goes through it, and dies where it says."""

    def __init__(self, near: Transport, kit: Testing) -> None:
        self._near = near
        self._kit = kit
        self.name = near.name
        self.body_bytes_max = near.body_bytes_max
        self.wakes = near.wakes

    async def open(self) -> None:
        await self._near.open()
        self.body_bytes_max = self._near.body_bytes_max

    async def close(self) -> None:
        await self._near.close()

    async def publish(self, events: Sequence[Outgoing]) -> list[Stored | Failure]:
        return await self._publish(events, is_own=True)

    async def inject(self, events: Sequence[Outgoing]) -> list[Stored | Failure]:
        """Publishes what a service outside of the test would have."""
        return await self._publish(events, is_own=False)

    async def _publish(self, events: Sequence[Outgoing], *, is_own: bool) -> list[Stored | Failure]:
        answers = await self._near.publish(events)
        for event, answer in zip(events, answers, strict=True):
            if isinstance(answer, Stored):
                self._kit._note_stored(event, is_own=is_own)
        if is_own and self._kit._takes_crash("mark"):
            crash = PublishFailed("the process has died before the mark", transient=True)
            return [crash] * len(events)
        return answers

    def deliveries(self, source: Source, window: int) -> AsyncIterator[Delivery]:
        return self._near.deliveries(source, window)

    async def settle(self, delivery: Delivery, how: Settlement) -> None:
        if isinstance(how, Ack) and self._kit._takes_crash("ack"):
            await self._near.settle(delivery, Nak(0.0))
            return
        await self._near.settle(delivery, Nak(0.0) if isinstance(how, Nak) else how)
        self._kit._note_settled(delivery, how)

    async def plan(self, wanted: Topology) -> Plan:
        return await self._near.plan(wanted)

    async def apply(self, plan: Plan, *, recreate: bool = False) -> None:
        await self._near.apply(plan, recreate=recreate)

    async def wake(self, channel: str) -> None:
        await self._near.wake(channel)

    def woken(self, channel: str) -> AsyncIterator[None]:
        return self._near.woken(channel)

    def dead_letters(self, wanted: Topology) -> AsyncIterator[DeadLetter]:
        return self._near.dead_letters(wanted)

    async def replay(self, letter: DeadLetter, id: str) -> None:
        await self._near.replay(letter, id)

    async def drop(self, letter: DeadLetter) -> None:
        await self._near.drop(letter)

    async def health(self, wanted: Topology) -> TransportHealth:
        return await self._near.health(wanted)


_SCENARIOS: tuple[tuple[str, int, Where | None], ...] = (
    ("delivered twice", 2, None),
    ("a crash before the commit", 1, "commit"),
    ("a crash before the acknowledgement", 1, "ack"),
)


class _Prover:
    """Runs one handler in several scenarios, each from the same state of the database."""

    def __init__(
        self,
        kit: Testing,
        bridge: "Bridge",
        source: str,
        event: Event,
        watch: Callable[[], Any] | None,
    ) -> None:
        self._kit = kit
        self._bridge = bridge
        pattern = bridge.names.subject_from(source)
        subject = pattern.removesuffix(">") + event.type if pattern.endswith(">") else pattern
        self._outgoing = envelope.outgoing(event, subject)
        self._watch = watch
        self._database = Snapshot.of(bridge)

    async def run(self) -> list[Finding]:
        begin = self._database.take()
        first = await self._scenario(begin, deliveries=1)
        second = await self._scenario(begin, deliveries=1)
        steady = without_chance(first, second)
        expected = steady(first)
        findings: list[Finding] = []
        for scenario, deliveries, crash in _SCENARIOS:
            effects = steady(await self._scenario(begin, deliveries, crash))
            findings += [
                Finding(scenario, effect, effects[effect], expected[effect])
                for effect in sorted({*effects, *expected})
                if effects[effect] != expected[effect]
            ]
        self._database.restore(begin)
        return findings

    async def _scenario(
        self, begin: bytes | None, deliveries: int, crash: Where | None = None
    ) -> Effects:
        kit = self._kit
        self._database.restore(begin)
        already, watched = len(kit._published), _size(self._watch)
        if crash is not None:
            kit.crash_before(crash)
        for _ in range(deliveries):
            await kit._inject(
                self._bridge, replace(self._outgoing, id=f"{self._outgoing.id}-{uuid.uuid4()}")
            )
            await kit.settle()
        if crash in kit._crashes:  # the handler never came so far
            kit._crashes.remove(crash)
        ids = {(event.type, event.id) for event in kit._published[already:]}
        events = Counter(f"the event {type}" for type, _ in ids)
        outside = _size(self._watch) - watched
        if outside:
            events["what is watched"] = outside
        return Effects(events, self._database.rows())


def _size(watch: Callable[[], Any] | None) -> int:
    if watch is None:
        return 0
    found = watch()
    return len(found) if isinstance(found, Sized) else int(found)


def subject_matches(pattern: str, subject: str) -> bool:
    """Whether a subject is one of a pattern: `*` is one token, `>` one or more at the end."""
    parts, wanted = subject.split("."), pattern.split(".")
    for place, part in enumerate(wanted):
        if part == ">":
            return len(parts) > place
        if place >= len(parts) or part not in ("*", parts[place]):
            return False
    return len(parts) == len(wanted)


def _matches(wanted: Any, there: Any) -> bool:
    if isinstance(wanted, Mapping) and isinstance(there, Mapping):
        return all(name in there and _matches(each, there[name]) for name, each in wanted.items())
    return bool(wanted == there)
