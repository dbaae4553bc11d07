"""The deliveries of one source: which are handled when, kept from expiring, settled, drained.

All of it lives on the loop of the transport's thread, so that it goes on while a handler computes;
the handler itself runs elsewhere, behind `handle`. Events of one key are handled one behind the
other: a key is busy from the start of the first of them until it is settled.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from posthouse.bridge.errors import BridgeError, MalformedEvent
from posthouse.bridge.event import Event
from posthouse.bridge.handling import Handler, Outcome, settlement
from posthouse.bridge.transport import Delivery, Extend, Nak, Source, Transport

_log = logging.getLogger("posthouse.bridge")

EXTENDS_PER_WAIT = 3  # of the time until an unsettled event is delivered again
WINDOW_PER_SLOT = 2  # deliveries that are fetched for each that can be handled at a time
ORDERED_WINDOW_PER_SLOT = 8  # where some are held because an earlier one of their key is retried
ERROR_PAUSE_MIN, ERROR_PAUSE_MAX = 0.05, 1.0  # seconds between two tries to fetch


@dataclass(eq=False)
class Held:
    """A delivery that is not settled yet."""

    delivery: Delivery
    event: Event | None  # None: it could not be read
    problem: MalformedEvent | None = None  # why not
    tries: int = 0  # that it had here, beside those that the transport counts
    begun: float | None = None  # when its handler started
    alone: bool = False  # its batch has failed
    key: str = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.delivery.key or (self.event.key if self.event is not None else "")

    @property
    def attempt(self) -> int:
        return self.delivery.number + self.tries


# Handles the events of one transaction, and never raises. More than one outcome `retry` of a batch
# means that nothing of it was done.
Handle: TypeAlias = Callable[[Sequence[Held]], Awaitable[list[Outcome]]]
Note: TypeAlias = Callable[[Held, Outcome], None]


class Intake:
    """The intake of one source. Only for the loop of the transport."""

    def __init__(
        self,
        transport: Transport,
        source: Source,
        handler: Handler,
        *,
        read: Callable[[Delivery], Event | MalformedEvent],
        handle: Handle,
        note: Note,
        pace: Callable[[float], float],
    ) -> None:
        self.source = source
        self._transport = transport
        self._options = handler.options
        self._read = read
        self._handle = handle
        self._note = note
        self._pace = pace
        self._held: set[Held] = set()
        self._ready: deque[Held] = deque()
        self._behind: dict[str, deque[Held]] = {}  # by key; a key in it is busy
        self._running: set[asyncio.Task[None]] = set()
        self._waiting: dict[asyncio.TimerHandle, Held] = {}  # for a retry, in order
        self._fetching: asyncio.Task[None] | None = None
        self._extending: asyncio.Task[None] | None = None
        self._is_stopping = False

    @property
    def window(self) -> int:
        slots = self._options.concurrency * max(1, self._options.batch)
        return slots * (ORDERED_WINDOW_PER_SLOT if self._options.ordered else WINDOW_PER_SLOT)

    @property
    def unsettled(self) -> int:
        """The number of deliveries that are not settled yet."""
        return len(self._held)

    def start(self) -> None:
        self._fetching = asyncio.create_task(self._fetch())
        self._extending = asyncio.create_task(self._extend())

    async def drain(self, seconds: float) -> bool:
        """Fetches nothing more, gives back what was not begun, and waits for what was.

        Returns whether every handler came to its end within `seconds`.
        """
        self._is_stopping = True
        assert self._fetching is not None
        assert self._extending is not None
        self._fetching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._fetching
        for timer in self._waiting:
            timer.cancel()
        begun = {held for held in self._held if held.begun is not None}
        await asyncio.gather(*[self._give_back(held) for held in self._held - begun])
        ended = True
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=seconds)
            ended = not late
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        self._extending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._extending
        return ended

    # Fetching.

    async def _fetch(self) -> None:
        pause = ERROR_PAUSE_MIN
        while not self._is_stopping:
            try:
                async with contextlib.aclosing(
                    self._transport.deliveries(self.source, self.window)  # type: ignore[type-var]
                ) as deliveries:
                    async for delivery in deliveries:
                        pause = ERROR_PAUSE_MIN
                        self._take(delivery)
            except BridgeError as error:
                _log.error(
                    "Events of %s cannot be fetched, and are tried again in %.2f s: %s",
                    self.source.subject, pause, error, extra={"event": "bridge.waiting"},
                )  # fmt: skip
            await asyncio.sleep(pause)
            pause = min(ERROR_PAUSE_MAX, pause * 2)

    def _take(self, delivery: Delivery) -> None:
        read = self._read(delivery)
        held = Held(delivery, read) if isinstance(read, Event) else Held(delivery, None, read)
        self._held.add(held)
        self._queue(held)
        self._dispatch()

    def _queue(self, held: Held) -> None:
        if held.key and held.key in self._behind:
            self._behind[held.key].append(held)
        else:
            if held.key:
                self._behind[held.key] = deque()
            self._ready.append(held)

    # Handling.

    def _dispatch(self) -> None:
        while self._ready and len(self._running) < self._options.concurrency:
            if self._is_stopping:
                return
            work = self._next()
            now = time.monotonic()
            for held in work:
                held.begun = now
            task = asyncio.create_task(self._run(work))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def _fits(self, held: Held) -> bool:
        """Whether an event may be handled with others in one transaction."""
        is_poison = held.attempt > self._options.max_deliver
        return not (held.alone or held.event is None or is_poison)

    def _next(self) -> list[Held]:
        """Takes what is handled together: one event, or up to `batch` in their order."""
        first = self._ready.popleft()
        if not self._options.batch or not self._fits(first):
            return [first]
        found = [first]
        at = 0
        while len(found) < self._options.batch:
            behind = self._behind.get(found[at].key) if found[at].key else None
            while behind and len(found) < self._options.batch and self._fits(behind[0]):
                found.append(behind.popleft())
            # The next key. Those of it that wait behind follow in the next turn.
            at = len(found)
            if at < self._options.batch and self._ready and self._fits(self._ready[0]):
                found.append(self._ready.popleft())
            else:
                break
        return found

    async def _run(self, work: list[Held]) -> None:
        try:
            outcomes = await self._handle(work)
            if len(work) > 1 and any(outcome.ending not in _ENDS for outcome in outcomes):
                await self._run_alone(work)
            else:
                last = {held.key: held for held in work}
                for held, outcome in zip(work, outcomes, strict=True):
                    await self._end(held, outcome, frees=last[held.key] is held)
        except asyncio.CancelledError:
            await self._give_all_back(work)
            raise
        except Exception:  # noqa: BLE001 (a mistake of ours: the events are delivered again)
            _log.exception("Events could not be handled.", extra={"event": "bridge.unhandled"})
            await self._give_all_back(work)
            for key in {held.key for held in work}:
                self._free(key)
        finally:
            task = asyncio.current_task()
            assert task is not None
            self._running.discard(task)
            self._dispatch()

    async def _run_alone(self, work: list[Held]) -> None:
        """Handles the events of a failed batch one by one."""
        held_up: set[str] = set()
        for at, held in enumerate(work):
            held.alone = True
            if held.key in held_up:
                continue
            [outcome] = await self._handle([held])
            later = [other for other in work[at + 1 :] if held.key and other.key == held.key]
            if outcome.ending == "retry" and self._options.ordered and later:
                held_up.add(held.key)
                await self._put_back(later)
            await self._end(held, outcome, frees=not later)

    async def _put_back(self, later: list[Held]) -> None:
        """Puts events of a key behind one that is to be handled again before them."""
        for held in reversed(later):
            held.alone, held.begun = True, None
            if self._is_stopping:
                await self._give_back(held)
            else:
                self._behind[held.key].appendleft(held)

    async def _end(self, held: Held, outcome: Outcome, *, frees: bool) -> None:
        """Settles a delivery, or keeps it until its retry where its key is to stay in order."""
        self._note(held, outcome)
        stays = outcome.ending == "retry" and self._options.ordered and held.key
        if stays and not self._is_stopping:
            self._wait(held, outcome.delay)
            return
        how = settlement(outcome, held.delivery, held.event)
        try:
            await self._transport.settle(held.delivery, how)
        except BridgeError as error:
            _log.error(
                "%s of %s could not be settled (%s), and is delivered again: %s",
                _name(held), self.source.subject, outcome.ending, error,
                extra={"event": "bridge.unsettled"},
            )  # fmt: skip
        finally:
            self._held.discard(held)
            if frees:
                self._free(held.key)

    def _wait(self, held: Held, delay: float) -> None:
        held.begun = None

        def again() -> None:
            del self._waiting[timer]
            held.tries += 1
            self._ready.appendleft(held)
            self._dispatch()

        timer = asyncio.get_running_loop().call_later(self._pace(delay), again)
        self._waiting[timer] = held

    def _free(self, key: str) -> None:
        behind = self._behind.get(key)
        if behind is None:
            return
        if behind:
            self._ready.append(behind.popleft())
        else:
            del self._behind[key]

    # Keeping.

    async def _extend(self) -> None:
        """Tells progress of all that is held, up to the time-out of the handler."""
        while True:
            await asyncio.sleep(self.source.ack_wait / EXTENDS_PER_WAIT)
            now, timeout = time.monotonic(), self._options.timeout
            due = [
                held for held in self._held
                if timeout is None or held.begun is None or now - held.begun <= timeout
            ]  # fmt: skip
            await asyncio.gather(*[self._extend_one(held) for held in due])

    async def _extend_one(self, held: Held) -> None:
        try:
            await self._transport.settle(held.delivery, Extend())
        except BridgeError as error:
            _log.warning(
                "%s is being handled, and could not be kept from its next delivery: %s",
                _name(held), error, extra={"event": "bridge.unextended"},
            )  # fmt: skip

    async def _give_all_back(self, work: Sequence[Held]) -> None:
        for held in work:
            if held in self._held:
                await self._give_back(held)

    async def _give_back(self, held: Held) -> None:
        self._held.discard(held)
        try:
            await self._transport.settle(held.delivery, Nak(0.0))
        except BridgeError as error:
            _log.warning("%s could not be given back: %s", _name(held), error,
                         extra={"event": "bridge.unsettled"})  # fmt: skip


_ENDS = frozenset(("done", "seen"))  # of a batch that was committed


def _name(held: Held) -> str:
    return held.event.id if held.event is not None else (held.delivery.id or "An event")
