"""The engine: the single writer.

Callers hand commands in with a plain call, and each is decided and evolved there and then. While
one batch is being synced the next gathers in this way; it is appended as one frame, synced once,
and answered. No answer leaves before the sync has returned. A pushed delivery may leave before its
lock is durable, but never before its message is.

If a sync fails nobody knows what is durable: the engine stops, and what was not answered is
answered with the failure. Recovery reads the journal.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from posthouse.broker import payload
from posthouse.broker.access import BROKER, Access, Open, Principal
from posthouse.broker.clock import Clock, VirtualClock
from posthouse.core import decide, evolve, next_deadline_ms
from posthouse.core import namespaces as spaces
from posthouse.core.commands import (
    AcceptSession,
    Answer,
    Command,
    Delivery,
    Detach,
    Granted,
    Notice,
    Receive,
    Received,
    Resubmit,
    Send,
    Start,
    Tick,
    Waiting,
)
from posthouse.core.errors import NotFound, QuotaExceeded, Refused, SessionLockLost
from posthouse.core.namespaces import Namespaces, SpaceCommand
from posthouse.core.plan import Delivered, Outcome
from posthouse.core.records import Kept, OfNamespaces, Sent, is_kept, span
from posthouse.store import Store
from posthouse.store.errors import Lost, StoreError
from posthouse.store.frames import CLOSING, Frame

Reply = Callable[[Answer | Refused | StoreError], None]
Deliver = Callable[[Sequence[Delivered]], None]

_FULL_RETRY_SECONDS = 0.5
_FRAME_BYTES = 8 << 20  # a batch ends when it holds this much; one send more may be in it
_END = 1 << 63


class _Submitted(NamedTuple):
    principal: Principal
    namespace: str
    command: Command | SpaceCommand
    reply: Reply


class _Batch:
    """What has been decided since the last frame."""

    __slots__ = ("answers", "bytes", "deliveries", "entries", "replies")

    def __init__(self) -> None:
        self.entries: list[payload.Entry] = []
        self.answers: list[tuple[Reply, Answer | Refused]] = []
        self.deliveries: list[Sequence[Delivered]] = []
        self.replies: list[Reply] = []  # all of them, also of those who will wait
        self.bytes = 0  # of messages

    def __bool__(self) -> bool:
        return bool(self.entries or self.replies or self.deliveries)


class Engine:
    """All namespaces of one journal. `open` it; it is complete then."""

    def __init__(
        self, store: Store, clock: Clock, access: Access, world: Namespaces, last: Frame
    ) -> None:
        self._store = store
        self._clock = clock
        self._access = access
        self._world = world
        self._last = last  # the last frame, without its payload
        self._durable = last.end  # the position up to which everything is synced
        self._position = last.end  # the position of the next record
        self._batch = _Batch()  # gathers
        self._writing = _Batch()  # is being synced
        self._pending: deque[_Submitted] = deque()  # did not fit into the batch any more
        self._receivers: dict[int, Deliver] = {}
        self._waits: dict[int, tuple[Reply, Receive | AcceptSession]] = {}  # who asked once
        self._next_receiver = 1
        self._work: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failure: StoreError | None = None
        self.failed = asyncio.Event()

    @classmethod
    async def open(
        cls, store: Store, clock: Clock, salt: int, access: Access | None = None
    ) -> "Engine":
        """Recovers from the journal and starts a new epoch."""
        world = Namespaces()
        async for frame in store.read(0, _END):
            position = frame.first
            for namespace, record in payload.decode(frame.payload) if frame.payload else ():
                _evolve(world, namespace, record, position)
                position += span(record)
        old = store.last or Frame(0, 0, 1, 0, 1, 0, b"")
        last = Frame(old.epoch + 1, old.number, old.end, 0, old.end, old.time_ms, b"")
        engine = cls(store, clock, access or Open(), world, last)
        for name in world.names:
            engine._decide(_Submitted(BROKER, name, Start(last.epoch, salt), _ignore))
        await engine._commit()
        engine._arm()
        return engine

    @property
    def epoch(self) -> int:
        return self._last.epoch

    @property
    def namespaces(self) -> Namespaces:
        """To look at, not to touch."""
        return self._world

    # For callers.

    def submit(
        self,
        principal: Principal,
        namespace: str,
        command: Command | SpaceCommand,
        reply: Reply,
    ) -> None:
        """The only way in. The reply is called once, when what it says is durable."""
        if self._failure is not None:
            reply(self._failure)
            return
        submitted = _Submitted(principal, namespace, command, reply)
        if self._pending or self._batch.bytes > _FRAME_BYTES:
            self._pending.append(submitted)
        else:
            self._decide(submitted)
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._run())

    async def ask(
        self, principal: Principal, namespace: str, command: Command | SpaceCommand
    ) -> Answer:
        """As `submit`, for who can wait. Raises Refused or StoreError."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def reply(answer: Answer | Refused | StoreError) -> None:
            if answered.cancelled():
                return
            if isinstance(answer, Refused | StoreError):
                answered.set_exception(answer)
            else:
                answered.set_result(answer)

        self.submit(principal, namespace, command, reply)
        try:
            return await answered
        except asyncio.CancelledError:
            if isinstance(command, Receive | AcceptSession):
                self.submit(principal, namespace, Detach(command.receiver), _ignore)
            raise

    def new_receiver(self, deliver: Deliver | None = None) -> int:
        """An id for a receiver; `deliver` is called with what is pushed to it."""
        number = self._next_receiver
        self._next_receiver += 1
        if deliver is not None:
            self._receivers[number] = deliver
        return number

    async def advance(self, ms: int) -> None:
        """Moves a virtual clock; returns when everything that falls due meanwhile has been done."""
        assert isinstance(self._clock, VirtualClock)
        end_ms = self._clock.now_ms() + ms
        while True:
            while self._work is not None:
                await asyncio.shield(self._work)
            due_ms = self._next_due_ms()
            if due_ms is None or due_ms > end_ms:
                break
            self._clock.move_to(due_ms)
            self._wake()
        self._clock.move_to(end_ms)

    async def close(self) -> None:
        """A clean stop: what was submitted is done, then the journal is closed."""
        while self._work is not None:
            await asyncio.shield(self._work)
        if self._timer is not None:
            self._timer.cancel()
        if self._failure is None:
            last, end = self._last, self._last.end
            now_ms = self._clock.now_ms()
            self._store.append(
                Frame(last.epoch, last.number + 1, end, 0, end, now_ms, b"", CLOSING)
            )
            await self._store.sync()
        await self._store.close()

    # The work.

    def _decide(self, submitted: _Submitted) -> None:
        """Makes a command part of the batch: what it does is done, but not durable yet."""
        principal, namespace, command, reply = submitted
        batch = self._batch
        batch.replies.append(reply)
        whole = False
        try:
            self._access.check(principal, namespace, command)
            outcome = self._apply(namespace, command, batch)
            whole = True
        except Refused as refused:
            batch.answers.append((reply, refused))
            whole = True
            return
        finally:
            if not whole:
                self._stop_for_a_bug()
        if isinstance(command, Receive | AcceptSession) and isinstance(outcome.answer, Waiting):
            self._waits[command.receiver] = (reply, command)
        else:
            batch.answers.append((reply, outcome.answer))
        if isinstance(command, Detach):
            self._receivers.pop(command.receiver, None)
            self._waits.pop(command.receiver, None)
        if outcome.deliveries:
            batch.deliveries.append(self._push_early(outcome.deliveries))

    def _apply(
        self, namespace: str, command: Command | SpaceCommand, batch: _Batch
    ) -> Outcome | spaces.SpaceOutcome:
        """Decides and evolves. Raises Refused."""
        now_ms = self._now_ms()
        if isinstance(command, SpaceCommand):
            outcome = spaces.decide(self._world, command, now_ms)
            for change in outcome.records:
                spaces.evolve(self._world, change, self._position)
                batch.entries.append(("", change))
                self._position += span(change)
            return outcome
        state = self._world.states.get(namespace)
        if state is None:
            raise NotFound("namespace", namespace)
        if self._store.full and isinstance(command, Send | Resubmit):
            raise QuotaExceeded(command.queue, "disk space", 0, 0)
        result = decide(state, command, now_ms)
        for record in result.records:
            evolve(state, record, self._position)
            if is_kept(record):
                batch.entries.append((namespace, record))
                batch.bytes += record.size_bytes if isinstance(record, Sent) else 0
                self._position += span(record)
        return result

    def _do_what_is_due(self) -> None:
        now_ms = self._now_ms()
        for name, state in self._world.states.items():
            due_ms = next_deadline_ms(state)
            if due_ms is not None and due_ms <= now_ms:
                outcome = self._apply(name, Tick(), self._batch)
                self._batch.deliveries.append(self._push_early(outcome.deliveries))

    async def _run(self) -> None:
        whole = False
        try:
            if self._store.full:  # perhaps there is room again
                await self._store.sync()
            self._do_what_is_due()
            while self._batch:
                await self._commit()
                self._do_what_is_due()
            whole = True
        except StoreError as error:
            self._fail(error)
            whole = True
        finally:
            self._work = None
            if not whole:
                self._stop_for_a_bug()
        self._arm()

    async def _commit(self) -> None:
        """One frame, one sync, and then the answers."""
        batch = self._writing = self._batch
        self._batch = _Batch()
        if batch.entries:
            await self._write(batch)
        self._writing = _Batch()
        for reply, answer in batch.answers:
            reply(answer)
        for deliveries in batch.deliveries:
            self._hand_over(deliveries)
        while self._pending and self._batch.bytes <= _FRAME_BYTES:
            self._decide(self._pending.popleft())

    async def _write(self, batch: _Batch) -> None:
        last, now_ms = self._last, self._now_ms()
        frame = Frame(
            last.epoch, last.number + 1, last.end, self._position - last.end, self._durable, now_ms,
            payload.encode(batch.entries),
        )  # fmt: skip
        self._store.append(frame)
        self._last = frame.without_payload()
        await self._store.sync()
        self._durable = frame.end

    def _stop_for_a_bug(self) -> None:
        """It rises to the log. The state may be half changed, and nobody is to wait for ever."""
        self._fail(Lost("the engine has stopped; the log says why"))

    def _fail(self, error: StoreError) -> None:
        """Everybody who has no answer yet gets this one."""
        self._failure = error
        replies = [*self._writing.replies, *self._batch.replies]
        replies += [each.reply for each in self._pending]
        replies += [reply for reply, _ in self._waits.values()]
        self._writing, self._batch, self._waits = _Batch(), _Batch(), {}
        self._pending.clear()
        for reply in dict.fromkeys(replies):
            reply(error)
        self.failed.set()

    # Deliveries.

    def _push_early(self, deliveries: Sequence[Delivered]) -> list[Delivered]:
        """Pushes what may leave before the sync; returns the rest."""
        rest: list[Delivered] = []
        for each in deliveries:
            if (
                isinstance(each, Delivery)
                and each.token
                and 0 < each.message.position < self._durable
                and each.receiver in self._receivers
                and not any(other.receiver == each.receiver for other in rest)
            ):
                self._receivers[each.receiver]([each])
            else:
                rest.append(each)
        return rest

    def _hand_over(self, deliveries: Sequence[Delivered]) -> None:
        by_receiver: dict[int, list[Delivered]] = {}
        for each in deliveries:
            by_receiver.setdefault(each.receiver, []).append(each)
        for number, mine in by_receiver.items():
            if number in self._waits:
                reply, command = self._waits.pop(number)
                reply(_as_answer(mine, command))
                continue
            deliver = self._receivers.get(number)
            if deliver is not None:
                deliver(mine)
            if any(isinstance(n, Notice) and n.kind not in ("drained", "paused") for n in mine):
                self._receivers.pop(number, None)

    # Time.

    def _now_ms(self) -> int:
        """Not before what the journal has seen, though the clock was set back."""
        return max(self._clock.now_ms(), self._last.time_ms)

    def _next_due_ms(self) -> int | None:
        due = [next_deadline_ms(state) for state in self._world.states.values()]
        return min((each for each in due if each is not None), default=None)

    def _wake(self) -> None:
        self._timer = None
        if self._work is None and self._failure is None:
            self._work = asyncio.get_running_loop().create_task(self._run())

    def _arm(self) -> None:
        """Wakes exactly when the core says that something is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._failure is not None:
            return
        due_ms = self._next_due_ms()
        seconds = None if due_ms is None else self._clock.seconds_until(due_ms)
        if self._store.full:
            seconds = min(seconds or _FULL_RETRY_SECONDS, _FULL_RETRY_SECONDS)
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._wake)


def _evolve(
    world: Namespaces,
    namespace: str,
    record: Kept | OfNamespaces,
    position: int,
) -> None:
    if isinstance(record, OfNamespaces):
        spaces.evolve(world, record, position)
    else:
        evolve(world.states[namespace], record, position)


def _as_answer(
    deliveries: Sequence[Delivered], command: Receive | AcceptSession
) -> Answer | Refused:
    """What one who asked once and waited is told."""
    first = deliveries[0]
    if isinstance(first, Granted):
        return first
    if isinstance(first, Notice):
        if first.kind == "deleted":
            return NotFound("queue", command.queue)
        if first.kind == "session-lost" and isinstance(command, Receive):
            return SessionLockLost(command.queue, command.session)
        return Received([]) if isinstance(command, Receive) else None
    return Received([each for each in deliveries if isinstance(each, Delivery)])


def _ignore(_: object) -> None:
    """Nobody waits for this answer."""
