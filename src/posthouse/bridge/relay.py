"""The relay: sends what the outbox holds, and marks what was stored.

Relays divide the lanes of the outbox, and of each lane one relay at a time sends the events.
Rows are found by their state, not behind the last one seen: ids are given before the commit, and
the row of a late transaction would never be found. Of a key, an event is sent when the one before
it was stored.
"""

import asyncio
import contextlib
import logging
import os
import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.engine import Connection

from posthouse.bridge.database import TROUBLE, Database, first_line
from posthouse.bridge.envelope import SEQUENCE_HEADER
from posthouse.bridge.errors import BridgeError, PublishFailed
from posthouse.bridge.lanes import Leases
from posthouse.bridge.outbox_rows import OutboxRows
from posthouse.bridge.pruning import Pruner
from posthouse.bridge.sending import Pending, SendQueue
from posthouse.bridge.tables import LANES, Tables
from posthouse.bridge.transport import Outgoing, Stored, Transport

_log = logging.getLogger("posthouse.bridge")

CHUNK_ROWS = 64  # that are published with one call of the transport
QUEUE_BATCHES = 2  # batches of rows that are in memory at a time
READ_GAP_SECONDS = 0.004  # between the starts of two reads that were asked for
WOKEN_SECONDS = 0.005  # until the next look after one that a commit asked for
RENEW_AGAIN_SECONDS = 0.5  # after a renewal that failed
MARK_AGAIN_SECONDS = 0.25
SETTLE_SECONDS = 0.005
PUBLISH_SECONDS = 30.0  # after which a call of the transport is given up
STOP_SECONDS = 10.0  # that rows in flight have to be stored and marked
RETRIES_MAX = 20  # beyond which the delay does not grow
PRUNING_LANE = 0  # who holds it prunes


@dataclass(frozen=True)
class RelaySettings:
    """The settings of a relay. Times are in seconds."""

    lanes: int = LANES  # of the outbox; its writers are told the same number
    lease_seconds: float = 10.0  # for which lanes are taken
    renew_seconds: float = 3.0
    margin_seconds: float = 2.0  # before the end of its lease the relay stops sending
    batch_rows: int = 500  # that are read at a time
    in_flight: int = 256  # rows that are sent and not acknowledged
    poll_seconds: float = 0.05  # between two looks while rows come
    poll_seconds_max: float = 1.0  # when none come
    retry_seconds: float = 0.05  # before the first retry while the transport is away
    retry_seconds_max: float = 5.0
    attempts_max: int = 10  # of a row that the transport refuses, after which it is failed
    strict_order: bool = False  # a refused row holds up the later rows of its key
    delete_sent: bool = False  # sent rows are deleted instead of marked
    keep_sent_seconds: float = 3 * 86_400.0  # after which sent rows are pruned
    keep_seen_seconds: float = 7 * 86_400.0  # after which rows of the inbox are pruned
    prune_seconds: float = 60.0  # between two rounds of pruning
    prune_rows: int = 5_000  # that one statement deletes at most


@dataclass
class RelayFigures:
    """Counts of a relay since it started."""

    relayed: int = 0  # rows that were stored and marked
    duplicates: int = 0  # of these the transport had stored before
    refused: int = 0  # refusals of single rows
    failed: int = 0  # rows that were refused for the last time
    retried: int = 0  # rows that are sent again because the transport was away
    reads: int = 0  # looks at the outbox
    pruned: int = 0  # rows
    lanes: tuple[int, ...] = ()  # that the relay has now
    transport_down_since: float | None = None  # seconds since 1970
    database_down_since: float | None = None
    last_error: str = field(default="", repr=False)


class Relay:
    """Sends the rows of one outbox over a transport, beside other relays."""

    def __init__(
        self,
        database: Database,
        tables: Tables,
        transport: Transport,
        settings: RelaySettings | None = None,
        *,
        name: str = "",
        observe: Callable[[float], None] | None = None,
    ) -> None:
        """`observe` is told the seconds from each row's insert to its acknowledgement."""
        self.name = name or f"{socket.gethostname()[:100]}:{os.getpid()}:{os.urandom(4).hex()}"
        self.figures = RelayFigures()
        self._settings = settings = settings if settings is not None else RelaySettings()
        self._database = database
        self._transport = transport
        self._observe = observe
        self._leases = Leases(
            database, tables, self.name, lanes=settings.lanes, seconds=settings.lease_seconds,
            margin=settings.margin_seconds,
        )  # fmt: skip
        self._rows = OutboxRows(tables, database.dialect, self.name)
        self._pruner = Pruner(
            database, tables, keep_sent=settings.keep_sent_seconds,
            keep_seen=settings.keep_seen_seconds, rows=settings.prune_rows,
        )  # fmt: skip
        self._queue = SendQueue()
        self._run: _Run | None = None
        self._is_over = False

    async def run(self) -> None:
        """Relays until it is cancelled, or `stop` is called; outages are waited for.

        One that has failed may run again; one that was stopped returns at once.
        """
        if self._is_over:
            return
        run, self._queue = _Run(), SendQueue()
        self._run = run
        loops = [self._renew, self._read, self._mark, self._prune]
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(loop(run)) for loop in loops]
        tasks.append(asyncio.create_task(run.stopping.wait()))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a loop ends only with an error
            await self._end(run)
        except asyncio.CancelledError:
            self._is_over = True
            raise
        finally:
            self._run = None
            for task in (*tasks, *run.flights):
                task.cancel()
            await asyncio.gather(*tasks, *run.flights, return_exceptions=True)
            run.ended.set()
            self.figures.lanes = ()

    async def stop(self) -> None:
        """Waits for what is in flight, marks it, and gives the lanes back."""
        run, self._is_over = self._run, True
        if run is not None:
            run.stopping.set()
            run.woken.set()
            await run.ended.wait()

    def wake(self) -> None:
        """Lets the relay look at once. May be called from any thread."""
        run = self._run
        if run is not None and not run.woken.is_set():
            with contextlib.suppress(RuntimeError):  # its loop is closed
                run.loop.call_soon_threadsafe(run.woken.set)

    async def settle(self) -> None:
        """Returns when nothing is left to be sent now. For tests."""
        while not self._is_over:
            self.wake()
            if not len(self._queue) and not await self._database.run(self._rows.count_due):
                return
            await asyncio.sleep(SETTLE_SECONDS)

    # Lanes.

    async def _renew(self, run: "_Run") -> None:
        while True:
            try:
                await self._leases.renew(self._queue.lanes_in_flight)
                self._queue.forget_lanes(self._leases.tokens)
                run.marked.set()
                self._database_answers()
            except TROUBLE as error:
                self._database_fails(error)
                await asyncio.sleep(RENEW_AGAIN_SECONDS)
                continue
            lanes = tuple(self._leases.usable)
            if lanes != self.figures.lanes:
                self.figures.lanes = lanes
                run.woken.set()
            self._pump(run)
            await asyncio.sleep(self._leases.next_renewal(self._settings.renew_seconds))

    # Reading.

    async def _read(self, run: "_Run") -> None:
        settings, pause = self._settings, 0.0
        while True:
            await run.has_room(self._queue, QUEUE_BATCHES * settings.batch_rows)
            run.woken.clear()
            began, held = time.monotonic(), self._queue.begin_read()
            try:
                rows = await self._read_rows()
            except TROUBLE as error:
                self._database_fails(error)
                await asyncio.sleep(settings.poll_seconds_max)
                continue
            self._queue.add(rows)
            self._queue.end_read(held)
            if rows:
                self._pump(run)
                pause = settings.poll_seconds
            if len(rows) == settings.batch_rows:
                continue
            try:
                async with asyncio.timeout(pause):
                    await run.woken.wait()
                pause = WOKEN_SECONDS
                await asyncio.sleep(began + READ_GAP_SECONDS - time.monotonic())
            except TimeoutError:
                pause = min(max(pause, WOKEN_SECONDS) * 2, settings.poll_seconds_max)

    async def _read_rows(self) -> list[Pending]:
        run, lanes = self._run, self._leases.usable
        if not lanes or run is None or run.stopping.is_set():
            return []
        tokens, known = dict(self._leases.tokens), sorted(self._queue.known)
        strict, limit = self._settings.strict_order, self._settings.batch_rows

        def read(connection: Connection) -> list[Pending]:
            held = self._rows.held_keys(connection, lanes) if strict else []
            return self._rows.read(connection, tokens, lanes, known, held, limit)

        rows = await self._database.run(read)
        self.figures.reads += 1
        self._database_answers()
        return [row for row in rows if self._leases.may_send(row.lane, row.token)]

    # Sending.

    def _pump(self, run: "_Run") -> None:
        """Sends ready rows, as many as may be in flight."""
        settings, loop = self._settings, run.loop
        if run.retry_at > loop.time():
            return
        while self._queue.is_ready and self._queue.in_flight < settings.in_flight:
            rows = self._queue.take(min(CHUNK_ROWS, settings.in_flight - self._queue.in_flight))
            if not all(self._leases.may_send(row.lane, row.token) for row in rows):
                self._queue.send_again(rows)  # the renewal goes on, or forgets them
                return
            flight = loop.create_task(self._send(run, rows))
            run.flights.add(flight)
            flight.add_done_callback(run.flights.discard)

    async def _send(self, run: "_Run", rows: list[Pending]) -> None:
        try:
            async with asyncio.timeout(PUBLISH_SECONDS):
                answers = await self._transport.publish([_outgoing(row) for row in rows])
        except (BridgeError, OSError) as error:
            lost = PublishFailed(first_line(error), transient=True)
            answers = [lost] * len(rows)
        again: list[Pending] = []
        for row, answer in zip(rows, answers, strict=True):
            if isinstance(answer, Stored):
                self._was_stored(row, answer)
            elif answer.transient:
                again.append(row)
                self.figures.last_error = str(answer)
            else:
                self._was_refused(row, answer)
        if again:
            self._queue.send_again(again)
            self._back_off(run, len(again), is_down=len(again) == len(rows))
        else:
            run.retries, self.figures.transport_down_since = 0, None
        run.to_mark.set()
        self._pump(run)

    def _was_stored(self, row: Pending, answer: Stored) -> None:
        self._queue.was_stored(row, answer.sequence)
        self.figures.duplicates += answer.duplicate
        if self._observe is not None:
            self._observe(max(0.0, time.monotonic() - row.enqueued))

    def _was_refused(self, row: Pending, failure: PublishFailed) -> None:
        self._queue.was_refused(row, failure, holds_key=self._settings.strict_order)
        self.figures.refused += 1
        self.figures.last_error = str(failure)
        if row.attempts + 1 >= self._settings.attempts_max:
            self.figures.failed += 1
            _log.error(
                "The event %s of the outbox is refused for good, after %d attempts: %s",
                row.event_id, row.attempts + 1, failure, extra={"event": "bridge.outbox_failed"},
            )  # fmt: skip

    def _back_off(self, run: "_Run", count: int, *, is_down: bool) -> None:
        """Lets all rows wait: the transport is down, or overloaded."""
        settings = self._settings
        self.figures.retried += count
        if is_down and self.figures.transport_down_since is None:
            self.figures.transport_down_since = time.time()
            _log.warning(
                "Events of the outbox wait for the transport: %s", self.figures.last_error,
                extra={"event": "bridge.relay_waits"},
            )  # fmt: skip
        if run.retry_at > run.loop.time():
            return  # another flight has failed with this one
        seconds = min(settings.retry_seconds * 2**run.retries, settings.retry_seconds_max)
        run.retries = min(run.retries + 1, RETRIES_MAX)
        run.retry_at = run.loop.time() + seconds * random.uniform(0.8, 1.2)  # noqa: S311 (jitter)
        run.loop.call_at(run.retry_at, self._pump_if_running, run)

    def _pump_if_running(self, run: "_Run") -> None:
        if self._run is run:
            run.retry_at = 0.0
            self._pump(run)

    # Marking.

    async def _mark(self, run: "_Run") -> None:
        while True:
            await run.to_mark.wait()
            run.to_mark.clear()
            try:
                await self._mark_rows()
            except TROUBLE as error:
                self._database_fails(error)
                run.to_mark.set()
                await asyncio.sleep(MARK_AGAIN_SECONDS)
            run.marked.set()

    async def _mark_rows(self) -> None:
        queue, settings = self._queue, self._settings
        stored, refused = list(queue.stored), list(queue.refused)
        if not stored and not refused:
            return

        def mark(connection: Connection) -> None:
            if stored:
                self._rows.mark(connection, stored, delete=settings.delete_sent)
            if refused:
                self._rows.refuse(connection, refused, settings.attempts_max)

        await self._database.run(mark)
        del queue.stored[: len(stored)], queue.refused[: len(refused)]
        queue.forget(row for row, _ in stored)
        queue.forget(row for row, _ in refused)
        self.figures.relayed += len(stored)
        self._database_answers()

    # Pruning.

    async def _prune(self, run: "_Run") -> None:
        def is_mine() -> bool:
            return PRUNING_LANE in self._leases.usable and not run.stopping.is_set()

        while True:
            if is_mine():
                try:
                    self.figures.pruned += await self._pruner.prune(is_mine)
                except TROUBLE as error:
                    self._database_fails(error)
            await asyncio.sleep(self._settings.prune_seconds)

    # The end.

    async def _end(self, run: "_Run") -> None:
        with contextlib.suppress(TimeoutError, *TROUBLE):
            async with asyncio.timeout(STOP_SECONDS):
                if run.flights:
                    await asyncio.wait(run.flights)
                await self._mark_rows()
                await self._leases.release()

    # The database.

    def _database_fails(self, error: Exception) -> None:
        self.figures.last_error = first_line(error)
        if self.figures.database_down_since is None:
            self.figures.database_down_since = time.time()
            _log.warning("The relay waits for its database: %s", self.figures.last_error,
                         extra={"event": "bridge.relay_waits"})  # fmt: skip

    def _database_answers(self) -> None:
        if self.figures.database_down_since is not None:
            self.figures.database_down_since = None
            _log.info("The database of the relay answers again.",
                      extra={"event": "bridge.relay_goes_on"})  # fmt: skip


class _Run:
    """One run of a relay, on its loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.stopping, self.ended = asyncio.Event(), asyncio.Event()
        self.woken, self.to_mark, self.marked = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.flights: set[asyncio.Task[None]] = set()
        self.retries = 0  # since the transport has answered
        self.retry_at = 0.0  # of the loop's time; nothing is sent before

    async def has_room(self, queue: SendQueue, rows_max: int) -> None:
        """Waits until more may be read."""
        while len(queue) >= rows_max:
            self.marked.clear()
            await self.marked.wait()


def _outgoing(row: Pending) -> Outgoing:
    headers = {**row.headers, SEQUENCE_HEADER: str(row.id)}
    return Outgoing(row.subject, row.payload, row.event_id, headers, row.key)
