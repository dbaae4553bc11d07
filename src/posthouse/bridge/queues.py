"""Events over queues: a Posthouse broker, Azure Service Bus, Amazon SQS, or the memory of a test.

A subject is a queue of its name, or with topics a topic and a subscription. Where the provider has
sessions, the events of one key are one, so that they keep their order among all processes; events
without a key are spread over a few. Dead letters are the queue's own.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from posthouse.bridge.dead_letters import REPLAYED, context_text
from posthouse.bridge.envelope import check_size
from posthouse.bridge.errors import BridgeError, PublishFailed, TooLarge, TopologyConflict
from posthouse.bridge.queue_sessions import HeldSession, Native
from posthouse.bridge.queue_words import (
    EARLIER_HEADER,
    ID_HEADER,
    Entity,
    Words,
    failure,
    for_later,
    headers_of,
    key_of,
    letter_of,
    place_of,
    subject_of,
)
from posthouse.bridge.transport import (
    Ack,
    Bury,
    DeadLetter,
    Delivery,
    Extend,
    Failure,
    Nak,
    Outgoing,
    Plan,
    Settlement,
    Source,
    State,
    Step,
    Stored,
    Topology,
    TransportHealth,
)
from posthouse.bridge.wakes import Wakes
from posthouse.bridge.window import Window
from posthouse.client.client import QueueClient
from posthouse.client.errors import AuthenticationFailed, PartialFailure, QueueError, QueueNotFound
from posthouse.client.messages import Message, ReceivedMessage
from posthouse.client.names import QueueName
from posthouse.client.renewing import GONE, Renewal
from posthouse.client.running import seconds_left

_log = logging.getLogger("posthouse.bridge")

T = TypeVar("T")
BATCH_MAX = 100  # events of one send
SESSIONS_MAX = 16  # held by one consumer
POLL_SECONDS = 10.0  # of one question for events
PUBLISH_SECONDS = 15.0  # of one send with all its tries; a relay goes on after it
PAUSE_SECONDS = (0.1, 5.0)  # between questions after errors, the first and the longest
HOLD_SECONDS_MAX = 300.0  # a locked event that is to wait longer is sent again, for later
HELD_MAX = 1_000  # locked events that wait
LOOK_SECONDS = 0.5  # for dead letters
STASH_MAX = 10_000  # dead letters that are locked while one is looked for
CLOSE_SECONDS = 5.0
DUPLICATE_SECONDS = 600.0  # of queues that come into being when they are used
ASK_SECONDS = 5.0  # of a question for the health


@dataclass(frozen=True, slots=True)
class _Declaration:
    """A queue, topic or subscription to be made, and its settings."""

    entity: Entity
    settings: dict[str, Any]
    sending: bool  # the topic, not the subscription


class QueueTransport:
    """A transport over any queue client. Closing it closes the client, unless it is borrowed."""

    wakes = False

    def __init__(
        self,
        client: QueueClient,
        *,
        sessions: bool | None = None,
        borrowed: bool = False,
        declares: bool = False,
        place: str = "",
    ) -> None:
        """`sessions` keeps keys in order; without it, where the provider itself has sessions.

        With `declares`, queues come into being when they are first used. `place` names what is
        shared by the transports of this process that wake each other.
        """
        self.name = client.provider_type.value
        self.body_bytes_max = client.max_message_size()
        self._client = client
        self._words = Words(client, sessions)
        self._borrowed = borrowed
        self._declares = declares
        self._wakes = Wakes(place or f"client {id(client)}")
        self._declared: set[str] = set()
        self._closed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()  # sessions, and events that wait
        self._held = 0
        self._stash: dict[str, ReceivedMessage] = {}  # dead letters that are locked, by place
        self._since = time.time()
        self._problem = ""

    # Opening.

    async def open(self) -> None:
        """Raises BridgeError."""
        try:
            async with asyncio.timeout(PUBLISH_SECONDS):
                await self._client.__aenter__()
        except TimeoutError:
            raise BridgeError(f"{self.name} did not answer within {PUBLISH_SECONDS:g} s.") from None
        except QueueError as error:
            raise BridgeError(str(error)) from error
        self._since = time.time()

    async def close(self) -> None:
        """Gives back what is held, and closes the client."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for letter in self._stash.values():
            with contextlib.suppress(QueueError):
                await self._client.release_message(letter)
        self._stash.clear()
        if not self._borrowed:
            await self._client.close()

    # Publishing.

    async def publish(self, events: Sequence[Outgoing]) -> list[Stored | Failure]:
        answers: list[Stored | Failure | None] = [None] * len(events)
        by_queue: dict[str, list[int]] = {}
        for place, event in enumerate(events):
            by_queue.setdefault(event.subject, []).append(place)
        for subject, places in by_queue.items():
            most = min(self._client.max_batch_size(), BATCH_MAX)
            for at in range(0, len(places), most):
                some = places[at : at + most]
                failures = await self._send(subject, [events[place] for place in some])
                for number, place in enumerate(some):
                    answers[place] = failures.get(number) or Stored(0, duplicate=False)
        return [answer for answer in answers if answer is not None]

    async def _send(self, subject: str, events: Sequence[Outgoing]) -> dict[int, Failure]:
        """Sends events to one queue. Returns the failures by place."""
        failures: dict[int, Failure] = {}
        ready: dict[int, Message] = {}
        for place, event in enumerate(events):
            size = len(event.body) + sum(len(n) + len(text) for n, text in event.headers.items())
            try:
                check_size(event.id, size, self.body_bytes_max, self.name)
                ready[place] = self._words.message(event)
            except TooLarge as failed:
                failures[place] = failed
            except QueueError as error:
                failures[place] = PublishFailed(str(error), transient=False)
        if not ready:
            return failures
        places = list(ready)
        try:
            async with asyncio.timeout(PUBLISH_SECONDS):
                queue = await self._ready_to_send(subject)
                await self._client.send_messages(queue, ready.values())
        except PartialFailure as partial:
            failures |= {places[at]: failure(each) for at, each in partial.failures.items()}
        except QueueError as error:
            if len(places) > 1 and not failure(error).transient:  # one of them is refused, or all
                return failures | await self._send_one_by_one(subject, events, places)
            failures |= dict.fromkeys(places, failure(error))
        except TimeoutError:
            late = PublishFailed(
                f"{self.name} did not answer within {PUBLISH_SECONDS:g} s.", transient=True
            )
            failures |= dict.fromkeys(places, late)
        problems = [each for each in failures.values() if each.transient]
        self._problem = str(problems[0]) if problems else ""
        return failures

    async def _send_one_by_one(
        self, subject: str, events: Sequence[Outgoing], places: Sequence[int]
    ) -> dict[int, Failure]:
        failures: dict[int, Failure] = {}
        for place in places:
            failed = await self._send(subject, [events[place]])
            if failed:
                failures[place] = failed[0]
        return failures

    async def _ready_to_send(self, subject: str) -> str:
        entity = self._words.entity(subject)
        if self._declares and entity.send not in self._declared:
            await self._declare(entity, self._words.settings(None, DUPLICATE_SECONDS), sending=True)
        return entity.send

    # Consuming.

    async def deliveries(self, source: Source, window: int) -> AsyncIterator[Delivery]:
        if self._words.by_session:
            consuming = self._deliveries_by_session(source, window)
        else:
            consuming = self._deliveries(source, window)
        async with contextlib.aclosing(consuming):
            async for delivery in consuming:
                yield delivery

    async def _deliveries(self, source: Source, size: int) -> AsyncGenerator[Delivery, None]:
        window = Window(size, max(source.ack_wait, 1.0) * 2)
        pause = PAUSE_SECONDS[0]
        while not self._closed.is_set():
            room = window.room
            if room <= 0:
                await self._unless_closed(window.changed())
                continue
            try:
                queue = await self._ready_to_receive(source)
                asking = self._client.receive_messages(queue, room, POLL_SECONDS)
                batch = await self._unless_closed(asking)
            except QueueError as error:
                pause = await self._wait_after(source, error, pause)
                continue
            pause = self._note_recovery(pause)
            waiting = list(batch or ())
            try:
                while waiting:
                    message = waiting.pop(0)
                    yield self._delivery(source, Native(message, queue, window=window))
            finally:
                for message in waiting:
                    with contextlib.suppress(QueueError):  # its lock ends by itself
                        await self._client.release_message(message)

    async def _deliveries_by_session(
        self, source: Source, size: int
    ) -> AsyncGenerator[Delivery, None]:
        ready: asyncio.Queue[Native] = asyncio.Queue()
        stop = asyncio.Event()
        for _ in range(max(1, min(size, SESSIONS_MAX))):
            task = asyncio.create_task(self._serve_sessions(source, ready, stop))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            while not self._closed.is_set():
                native = await self._unless_closed(ready.get())
                if native is not None:
                    yield self._delivery(source, native)
        finally:
            stop.set()  # what was handed out can still be settled
            while not ready.empty():
                ready.get_nowait().finish(None)

    async def _serve_sessions(
        self, source: Source, ready: asyncio.Queue[Native], stop: asyncio.Event
    ) -> None:
        """Takes one session after the other, and hands their events out one by one."""
        pause = PAUSE_SECONDS[0]
        while not (stop.is_set() or self._closed.is_set()):
            try:
                queue = await self._ready_to_receive(source)
                accepting = self._client.accept_session(queue, None, POLL_SECONDS)
                session = await self._unless_closed(accepting, stop)
                if session is not None:
                    await HeldSession(session, str(queue), ready, stop, self._closed).serve()
                pause = self._note_recovery(pause)
            except QueueError as error:
                pause = await self._wait_after(source, error, pause, stop)

    async def _ready_to_receive(self, source: Source) -> str:
        entity = self._words.entity(source.subject, source.consumer)
        if self._declares and entity.receive not in self._declared:
            await self._declare(
                entity, self._words.settings(source, DUPLICATE_SECONDS), sending=False
            )
        return entity.receive

    async def _wait_after(
        self, source: Source, error: QueueError, pause: float, stop: asyncio.Event | None = None
    ) -> float:
        """Waits after a failure to receive. Returns how long to wait after the next."""
        if pause == PAUSE_SECONDS[0]:
            self._since = time.time()
            _log.warning(
                "Events of %s cannot be received, which is tried again: %s", source.subject, error,
                extra={"event": "bridge.not-receiving", "subject": source.subject},
            )  # fmt: skip
        self._problem = str(error)
        await self._unless_closed(asyncio.sleep(pause), stop)
        return min(pause * 2, PAUSE_SECONDS[1])

    def _note_recovery(self, pause: float) -> float:
        if pause != PAUSE_SECONDS[0]:
            self._since, self._problem = time.time(), ""
            _log.info("Events are received again.", extra={"event": "bridge.receiving"})
        return PAUSE_SECONDS[0]

    async def _unless_closed(
        self, work: Awaitable[T], stop: asyncio.Event | None = None
    ) -> T | None:
        """Runs work and returns its result; None if the transport is closed, or `stop` set."""
        ends = [asyncio.ensure_future(self._closed.wait())]
        if stop is not None:
            ends.append(asyncio.ensure_future(stop.wait()))
        doing = asyncio.ensure_future(work)
        try:
            await asyncio.wait((doing, *ends), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
            if not doing.done():
                doing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            return await doing
        return None

    def _delivery(self, source: Source, native: "Native") -> Delivery:
        message = native.message
        headers = headers_of(message)
        earlier = headers.pop(EARLIER_HEADER, "0")
        return Delivery(
            subject=subject_of(source, message), body=message.body, headers=headers,
            id=headers.pop(ID_HEADER, str(message.message_id)),
            number=max(1, message.delivery_count) + (int(earlier) if earlier.isdecimal() else 0),
            stream=native.queue, sequence=message.sequence_number, consumer=source.consumer,
            key=key_of(headers), native=native,
        )  # fmt: skip

    # Settling.

    async def settle(self, delivery: Delivery, how: Settlement) -> None:
        """Raises BridgeError where it could not be done: the event is delivered again then."""
        native = delivery.native
        assert isinstance(native, Native)
        try:
            match how:
                case Ack():
                    await native.settler(self._client).complete_message(native.message)
                case Extend():
                    await native.renew(self._client)
                    return
                case Bury():
                    await self._bury(native, delivery, how)
                case Nak():
                    await self._retry(native, delivery, how.delay)
                    return
        except QueueError as error:
            native.finish(0.0)
            raise BridgeError(
                f"The event {delivery.id} of {delivery.subject} could not be settled, and is"
                f" delivered again: {error}"
            ) from error
        native.finish(None)

    async def _bury(self, native: "Native", delivery: Delivery, how: Bury) -> None:
        context = dict(how.context) | {"deliveries": delivery.number}
        try:
            await native.settler(self._client).dead_letter_message(
                native.message, how.reason, context_text(context)
            )
        except GONE:
            raise
        except QueueError:
            with contextlib.suppress(QueueError):
                await native.settler(self._client).abandon_message(native.message)
            raise

    async def _retry(self, native: "Native", delivery: Delivery, delay: float) -> None:
        is_long = delay > HOLD_SECONDS_MAX or (
            native.session is None and delay > 0 and self._held >= HELD_MAX
        )
        if is_long and not self._is_subscription(native):
            await self._send_for_later(native, delivery, delay)
            native.finish(None)
        elif native.session is not None:
            native.finish(min(delay, HOLD_SECONDS_MAX))  # the session waits with it
        elif delay <= 0 or is_long:
            await self._client.abandon_message(native.message)
            native.finish(None)
        else:
            self._held += 1
            task = asyncio.create_task(self._hold(native, delay))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            native.finish(None)

    async def _hold(self, native: "Native", delay: float) -> None:
        """Keeps an event locked until it is due, then lets it be delivered again."""
        message, is_lost = native.message, asyncio.Event()

        async def renew() -> float:
            return seconds_left(message, await self._client.renew_message_lock(message))

        renewal = Renewal(str(message.message_id), seconds_left(message), renew, is_lost.set)
        try:
            await self._unless_closed(asyncio.sleep(delay), is_lost)
        finally:
            renewal.stop()
            self._held -= 1
        if not is_lost.is_set():
            with contextlib.suppress(QueueError):  # its lock ends by itself
                await self._client.abandon_message(message)

    async def _send_for_later(self, native: "Native", delivery: Delivery, delay: float) -> None:
        """Sends an event again, for later, with its count; completes this one."""
        copy = for_later(native.message, delivery.id, delivery.number, delay)
        await self._client.send_message(native.queue, copy)
        await native.settler(self._client).complete_message(native.message)

    def _is_subscription(self, native: Native) -> bool:
        """Says whether an event came by a topic: sent again, it would come to all."""
        return QueueName(native.queue).topic is not None

    # Topology.

    async def plan(self, wanted: Topology) -> Plan:
        steps: list[Step] = []
        try:
            queues = set(await self._client.admin.queues())
            is_topics = any(self._words.entity(each).is_topic for each in wanted.subjects)
            topics = set(await self._client.admin.topics()) if is_topics else set()
            subscriptions: dict[str, set[str]] = {}
            for topic in topics:
                subscriptions[topic] = set(await self._client.admin.subscriptions(topic))
        except QueueError as error:
            raise failure(error) from error
        sources = {each.subject: each for each in wanted.sources}
        for subject in wanted.subjects:
            if subject.endswith(".dlq"):
                continue  # each queue has dead letters of its own
            entity = self._words.entity(subject)
            settings = self._words.settings(sources.get(subject), wanted.duplicate_window)
            there = entity.send in (topics if entity.is_topic else queues)
            steps.append(_step(entity.send, there, _Declaration(entity, settings, sending=True)))
        for source in wanted.sources:
            entity = self._words.entity(source.subject, source.consumer)
            if entity.is_topic:
                there = source.consumer in subscriptions.get(entity.send, ())
                settings = self._words.settings(source, wanted.duplicate_window)
                made = _Declaration(entity, settings, sending=False)
                steps.append(_step(entity.receive, there, made))
        return Plan(steps)

    async def apply(self, plan: Plan, *, recreate: bool = False) -> None:
        """Raises BridgeError. There is nothing that had to be recreated."""
        if plan.conflicts:
            raise TopologyConflict(plan.conflicts[0].reason)
        for step in plan.changes:
            assert isinstance(step.detail, _Declaration)
            detail = step.detail
            try:
                await self._declare(detail.entity, detail.settings, sending=detail.sending)
            except QueueError as error:
                raise failure(error) from error

    async def _declare(self, entity: Entity, settings: dict[str, Any], *, sending: bool) -> None:
        """Creates a queue, a topic, or a topic and its subscription. Raises QueueError."""
        admin = self._client.admin
        if not entity.is_topic:
            await admin.ensure_queue(entity.send, **settings)
        else:
            window = {
                name: value for name, value in settings.items() if name.startswith("duplicate")
            }
            if sending or entity.send not in self._declared:
                await admin.ensure_topic(entity.send, **window)
            if not sending:
                own = {name: value for name, value in settings.items() if name not in window}
                await admin.ensure_subscription(entity.receive, **own)
        self._declared |= {entity.send, entity.receive}

    # Waking.

    async def wake(self, channel: str) -> None:
        self._wakes.wake(channel)

    async def woken(self, channel: str) -> AsyncIterator[None]:
        with self._wakes.listening(channel) as bell:
            while not self._closed.is_set():
                if await self._unless_closed(bell.rung()) is not None:
                    yield

    # Dead letters.

    async def dead_letters(self, wanted: Topology) -> AsyncIterator[DeadLetter]:
        for source in wanted.sources:
            try:
                queue = await self._ready_to_receive(source)
                looking = self._peeked(queue) if self._can_peek else self._locked(queue)
                async for message in looking:
                    yield letter_of(source, queue, message)
            except QueueNotFound:
                continue
            except QueueError as error:
                raise failure(error) from error

    @property
    def _can_peek(self) -> bool:
        return self._client.capabilities.peeking

    async def _peeked(self, queue: str) -> AsyncIterator[ReceivedMessage]:
        first = 0
        while True:
            page = await self._client.peek_messages(queue, BATCH_MAX, first=first, dead_letter=True)
            for message in page:
                yield message
            if not page:
                return
            first = page[-1].sequence_number + 1

    async def _locked(self, queue: str) -> AsyncIterator[ReceivedMessage]:
        """Dead letters of a provider that shows none without locking them."""
        while len(self._stash) < STASH_MAX:
            page = await self._fetch_dead(queue)
            for message in page:
                yield message
            if not page:
                return

    async def _fetch_dead(self, queue: str) -> list[ReceivedMessage]:
        page = await self._client.receive_messages(queue, BATCH_MAX, LOOK_SECONDS, dead_letter=True)
        self._stash |= {place_of(queue, message): message for message in page}
        return page

    async def replay(self, letter: DeadLetter, id: str) -> None:
        message = await self._taken(letter)
        headers = dict(letter.headers) | {REPLAYED: datetime.now(UTC).isoformat()}
        again = Outgoing(letter.subject, letter.body, id, headers, key_of(letter.headers))
        [answer] = await self.publish([again])
        if isinstance(answer, PublishFailed):
            raise answer
        await self._settle_dead(letter, message)

    async def drop(self, letter: DeadLetter) -> None:
        await self._settle_dead(letter, await self._taken(letter))

    async def _settle_dead(self, letter: DeadLetter, message: ReceivedMessage) -> None:
        self._stash.pop(letter.place, None)
        try:
            await self._client.complete_message(message)
        except QueueError as error:
            raise failure(error) from error

    async def _taken(self, letter: DeadLetter) -> ReceivedMessage:
        """Locks dead letters until the wanted one is among them. Raises BridgeError."""
        queue, _, _ = letter.place.rpartition("#")
        self._stash = {
            place: message
            for place, message in self._stash.items()
            if not message.receipt_handle.is_expired()
        }
        try:
            while letter.place not in self._stash and len(self._stash) < STASH_MAX:
                if not await self._fetch_dead(queue):
                    break
        except QueueError as error:
            raise failure(error) from error
        message = self._stash.get(letter.place)
        if message is None:
            raise BridgeError(
                f"The dead letter {letter.place} is not there any more, or another holds it; look"
                " again."
            )
        return message

    # Health.

    async def health(self, wanted: Topology) -> TransportHealth:
        """Asks for the counts of the queues; it does not raise."""
        facts: dict[str, object] = {"provider": self.name}
        queues: dict[str, dict[str, int | None]] = {}
        facts["queues"] = queues
        begun, problem = time.monotonic(), self._problem
        state: State = "connected"
        try:
            async with asyncio.timeout(ASK_SECONDS):
                for source in wanted.sources:
                    name = self._words.entity(source.subject, source.consumer).receive
                    counts = await self._client.admin.counts(name)
                    queues[str(name)] = {
                        "pending": counts.active, "unacked": counts.locked,
                        "delayed": counts.scheduled, "dead": counts.dead_letter,
                    }  # fmt: skip
                    facts.setdefault("rtt_ms", round((time.monotonic() - begun) * 1_000, 3))
        except TimeoutError:
            state, problem = "reconnecting", f"There is no answer within {ASK_SECONDS:g} s."
        except QueueError as error:
            problem = str(error)
            if error.is_unavailable or isinstance(error, AuthenticationFailed):
                state = "reconnecting"
        if self._closed.is_set():
            state, problem = "disconnected", "It is closed."
        return TransportHealth(state == "connected", state, self.name, self._since, problem, facts)


def _step(name: str, there: bool, declaration: _Declaration) -> Step:
    what = "topic" if declaration.entity.is_topic else "queue"
    if not declaration.sending and declaration.entity.is_topic:
        what = "subscription"
    if there:
        return Step("leave", "queue", name, f"The {what} is there.")
    return Step("create", "queue", name, f"There is no {what} of this name.", declaration)
