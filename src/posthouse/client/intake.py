"""Messages of one queue, from where they are fetched to where they are settled."""

import asyncio
import contextlib
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING

from posthouse.client.client import SessionClient
from posthouse.client.cross_loop import CrossLoopSession
from posthouse.client.errors import QueueError, SessionNotFound
from posthouse.client.handling import HOLD_SECONDS_MAX, Context, Outcome, Route
from posthouse.client.messages import ReceivedMessage
from posthouse.client.provider import RELEASE, Source
from posthouse.client.renewing import Renewal
from posthouse.client.running import POLL_SECONDS, Run, seconds_left

if TYPE_CHECKING:
    from posthouse.client.worker import Worker

CANCEL_SECONDS = 2.0  # for handlers that are cancelled to come to an end


class _Held:
    """A message that is this worker's until it is settled, or its lock is lost."""

    def __init__(self, intake: "Intake", message: ReceivedMessage, context: Context) -> None:
        self.message = message
        self.context = context
        self.is_settling = False
        self.was_tried = False
        self._intake = intake
        self.renewal = Renewal(
            str(message.message_id), seconds_left(message), self._renew, self._lose
        )

    async def _renew(self) -> float:
        return seconds_left(self.message, await self._intake.renew(self.message))

    def _lose(self) -> None:
        if not self.is_settling:
            self.context.lost = True
            self._intake.lose(self)


class Intake:
    """Fetches as many as there is room for, handles some at a time, retries what has failed.

    It asks for a number of messages, and never has more: what is fetched ahead by somebody else has
    a lock that nobody renews.
    """

    def __init__(self, app: "Worker", run: Run, route: Route) -> None:
        self._app = app
        self._run = run
        self._route = route
        self._options = route.options
        self._ready: deque[_Held] = deque()
        self._running: dict[asyncio.Task[None], _Held] = {}
        self._later: dict[_Held, asyncio.TimerHandle] = {}  # tried again, when they are due
        self._room = asyncio.Event()
        self._fetching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises QueueError where there is no hope."""
        name = self._options.queue
        first = await self._run.fetch_first(name, self._fetch)
        for each in first or ():
            self._take(each)
        self._fetching = asyncio.create_task(self._run.keep_fetching(name, self._round))

    async def _fetch(self, timeout: float) -> list[ReceivedMessage]:
        options = self._options
        most = options.concurrency + options.prefetch - len(self._running) - len(self._ready)
        source = Source(options.queue, options.dead_letter)
        return await self._run.client._fetch(source, most, timeout, patient=True)

    async def _round(self) -> None:
        options = self._options
        while len(self._running) + len(self._ready) >= options.concurrency + options.prefetch:
            self._room.clear()
            await self._run.unless_stopped(self._room.wait())
            if self._run.stop.is_set():
                return
        received = await self._run.unless_stopped(self._fetch(POLL_SECONDS))
        for each in received or ():
            self._take(each)

    def _take(self, message: ReceivedMessage) -> None:
        attempt = max(1, message.delivery_count)
        context = Context(self._app, self._options.queue, message, attempt)
        self._ready.append(_Held(self, message, context))
        self._begin()

    def _begin(self) -> None:
        while (
            self._ready
            and len(self._running) < self._options.concurrency
            and not self._run.stop.is_set()
        ):
            held = self._ready.popleft()
            self._running[asyncio.create_task(self._handle(held))] = held

    async def _handle(self, held: _Held) -> None:
        held.was_tried = True
        try:
            outcome = await self._run.handle(self._route, held.context)
            if outcome.ending == "retry" and self._can_hold(outcome):
                loop = asyncio.get_running_loop()
                held.context.attempt += 1
                self._later[held] = loop.call_later(outcome.delay, self._again, held)
                return
            await self._settle(held, outcome)
        finally:
            current = asyncio.current_task()
            assert current is not None
            del self._running[current]
            self._room.set()
            self._begin()

    def _can_hold(self, outcome: Outcome) -> bool:
        return (
            outcome.delay <= HOLD_SECONDS_MAX
            and len(self._later) < self._options.concurrency + self._options.prefetch
            and not self._run.stop.is_set()
        )

    def _again(self, held: _Held) -> None:
        del self._later[held]
        self._ready.appendleft(held)
        self._begin()

    async def _settle(self, held: _Held, outcome: Outcome) -> None:
        held.is_settling = True
        try:
            await self._run.settle(self._run.client, held.message, outcome)
        finally:
            held.renewal.stop()

    async def renew(self, message: ReceivedMessage) -> datetime:
        return await self._run.client.renew_message_lock(message)

    def lose(self, held: _Held) -> None:
        if held in self._later:
            self._later.pop(held).cancel()
        elif held in self._ready:
            self._ready.remove(held)
        else:
            self._run.cancel(self._route, held.context)

    async def drain(self, seconds: float) -> bool:
        """After the worker was stopped: whether every handler came to its end."""
        if self._fetching is not None:
            await self._fetching
        for held, timer in self._later.items():
            timer.cancel()
            self._ready.append(held)
        self._later.clear()
        await asyncio.gather(*map(self._give_back, self._ready))
        return await _drain(self._run, self._route, seconds, {
            task: held.context for task, held in self._running.items()
        })  # fmt: skip

    async def _give_back(self, held: _Held) -> None:
        held.is_settling = True
        held.renewal.stop()
        if held.was_tried:
            await self._run.settle(self._run.client, held.message, Outcome("abandon"))
        else:
            await self._run.release(held.message)


class SessionIntake:
    """Takes sessions, each from its first message to when no more come, in their order."""

    def __init__(self, app: "Worker", run: Run, route: Route) -> None:
        self._app = app
        self._run = run
        self._route = route
        self._options = route.options
        self._first: SessionClient | None = None
        self._serving: list[asyncio.Task[None]] = []
        self._running: dict[asyncio.Task[None], Context] = {}

    async def start(self) -> None:
        """Raises QueueError where there is no hope."""
        name = self._options.queue
        self._first = await self._run.fetch_first(name, self._accept)
        self._serving = [
            asyncio.create_task(self._run.keep_fetching(name, self._round))
            for _ in range(self._options.concurrency)
        ]

    async def _accept(self, timeout: float) -> SessionClient | None:
        return await self._run.client._accept(self._options.queue, None, timeout, patient=True)

    async def _round(self) -> None:
        session, self._first = self._first, None
        if session is None:
            session = await self._run.unless_stopped(self._accept(POLL_SECONDS))
        if session is not None:
            await _HeldSession(self._app, self._run, self._route, session, self._running).serve()

    async def drain(self, seconds: float) -> bool:
        """After the worker was stopped: whether every handler came to its end."""
        idle = [each for each in self._serving if each not in self._running]
        await asyncio.gather(*idle)
        if self._first is not None:
            await _close(self._first)
        return await _drain(self._run, self._route, seconds, dict(self._running))


class _HeldSession:
    """A session that is this worker's, until it is idle or its lock is lost."""

    def __init__(
        self,
        app: "Worker",
        run: Run,
        route: Route,
        session: SessionClient,
        running: dict[asyncio.Task[None], Context],
    ) -> None:
        self._app = app
        self._run = run
        self._route = route
        self._session = session
        self._running = running
        self._context: Context | None = None
        self._renewal: Renewal | None = None
        self._is_lost = False

    async def serve(self) -> None:
        """Raises QueueError where no more can be received."""
        idle = self._route.options.session_idle
        try:
            while not self._is_lost and not self._run.stop.is_set():
                received = await self._run.unless_stopped(self._session.receive_messages(1, idle))
                if not received:
                    break
                await self._one(received[0])
        except SessionNotFound:
            self._lose()
        finally:
            if self._renewal is not None:
                self._renewal.stop()
            if not self._is_lost and not self._run.is_over:
                await _close(self._session)

    async def _one(self, message: ReceivedMessage) -> None:
        if self._run.stop.is_set():
            await self._session._settle((message,), RELEASE)
            return
        if self._renewal is None:

            async def renew() -> float:
                return seconds_left(message, await self._session.renew_session_lock())

            name = f"the session {self._session.session_id}"
            self._renewal = Renewal(name, seconds_left(message), renew, self._lose)
        current = asyncio.current_task()
        assert current is not None
        context = self._context = self._running[current] = Context(
            self._app, self._route.options.queue, message, max(1, message.delivery_count),
            CrossLoopSession(self._session, self._run.loop_thread),
        )  # fmt: skip
        try:
            while True:
                outcome = await self._run.handle(self._route, context)
                if outcome.ending != "retry" or self._run.stop.is_set():
                    break
                # Those behind it wait, too: their order is what a session is for.
                await self._run.unless_stopped(asyncio.sleep(outcome.delay))
                if self._run.stop.is_set() or self._is_lost:
                    break
                context.attempt += 1
            if not self._is_lost:
                await self._run.settle(self._session, message, outcome)
        finally:
            self._context = None
            del self._running[current]

    def _lose(self) -> None:
        self._is_lost = True
        if self._context is not None:
            self._context.lost = True
            self._run.cancel(self._route, self._context)


async def _close(session: SessionClient) -> None:
    with contextlib.suppress(QueueError):  # it ends by itself
        await session.close_session()


async def _drain(
    run: Run, route: Route, seconds: float, running: dict[asyncio.Task[None], Context]
) -> bool:
    """Waits, and cancels what is left where that can be done: whether nothing was."""
    if not running:
        return True
    _, left = await asyncio.wait(running, timeout=seconds)
    for task in left:
        running[task].stopped = True
        run.cancel(route, running[task])
    if left and route.is_async:
        await asyncio.wait(left, timeout=CANCEL_SECONDS)
    return not left
