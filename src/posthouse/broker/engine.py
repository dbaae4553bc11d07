"""The engine: the single writer, or a follower of one.

Callers hand commands in with a plain call, and each is decided and evolved there and then. While
one batch is being synced the next gathers in this way; it is appended as one frame, synced once,
and answered. No answer leaves before the sync has returned. Only a delivery may, where its message
is durable: to lose its lock means no more than to deliver it again. So a batch that holds nothing
but such locks is not written at once: it goes into one frame with what is asked next, most often
the completion of the same message, or is written by itself a few milliseconds later.

If a sync fails nobody knows what is durable: the engine stops, and what was not answered is
answered with the failure. Recovery reads the journal. It stops as well when another broker has
taken over the journal.

An engine that follows applies the frames that another one has written, through the same `evolve`,
and refuses commands. When it is promoted it begins an epoch of its own; a start is both at once.
"""

import asyncio
import gc
import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, TypedDict, Unpack

import msgspec

from posthouse.broker import payload
from posthouse.broker.access import BROKER, Access, Open, Principal, Watchers
from posthouse.broker.admission import Admission
from posthouse.broker.audit import note_change, note_refusal
from posthouse.broker.backlog import Backlog
from posthouse.broker.batch import (
    BATCH_BYTES,
    BATCH_COMMANDS,
    Bare,
    Batch,
    Reply,
    bare_messages,
    fill_in,
    ignore,
    tell,
)
from posthouse.broker.clock import STEP_MS, Clock
from posthouse.broker.clocks import Clocks, NamespaceClock
from posthouse.broker.creating import creating
from posthouse.broker.due import DueWork
from posthouse.broker.figures import Figures
from posthouse.broker.idleness import Unfinished
from posthouse.broker.journal import Journal
from posthouse.broker.memory import Limits, Memory
from posthouse.broker.moving import ClockMover, Moved, Pace
from posthouse.broker.receivers import CanWait, Deliver, Receivers, Wait, may_leave, nothing_for
from posthouse.broker.record_level import RecordLimit
from posthouse.broker.replay import Progress, Replay, body_bytes, evict_sent, recover
from posthouse.broker.rights import Rights
from posthouse.broker.shares import MAKES, Shares
from posthouse.broker.throttle import Throttle
from posthouse.broker.view import View
from posthouse.broker.weight import is_too_much, weight, weight_of_sent
from posthouse.core import decide, evolve
from posthouse.core import namespaces as spaces
from posthouse.core.commands import (
    LAST_MS,
    AcceptSession,
    Answer,
    Attach,
    Begin,
    Begun,
    Command,
    Credit,
    Detach,
    Granted,
    Receive,
    Received,
    Send,
    Start,
    StepClock,
    TurnClockBack,
    Waiting,
    Work,
)
from posthouse.core.errors import (
    ABOVE_NAMESPACES,
    Busy,
    InvalidArgument,
    NotFound,
    NotLeader,
    Refused,
    Unauthorized,
)
from posthouse.core.model import State
from posthouse.core.namespaces import CreateNamespace, ListNamespaces, Namespaces, SpaceCommand
from posthouse.core.plan import Delivered, Outcome
from posthouse.core.records import (
    AccountRevoked,
    AccountSet,
    ClockSet,
    MessagesRestored,
    NamespaceDeleted,
    QueueDeleted,
    Routed,
    Sent,
    Touched,
    is_kept,
    span,
)
from posthouse.core.routing import compile_some
from posthouse.core.tokens import KEY_BYTES
from posthouse.store import Snapshots, Store
from posthouse.store.errors import Deposed, Lost, StoreError, Unknown
from posthouse.store.frames import Frame

_log = logging.getLogger(__name__)

PROOF_SECONDS = 1.0
LOCK_SYNC_MS = 5
_FULL_RETRY_SECONDS = 0.5
_COMPILE_SECONDS = 1.0  # for which a start compiles rules
_STOPPING = "it is being stopped"

_SPACE: frozenset[type] = frozenset(SpaceCommand.__args__)
_NEEDS_TRACKING = frozenset((Receive, AcceptSession, Detach, Begin))  # see `_track`
_CAN_WAIT: frozenset[type] = frozenset(CanWait.__args__)


class Now(NamedTuple):
    """The engine's state at this moment, for metrics."""

    position: int  # of the next record
    durable: int
    pending_commands: int
    pending_bytes: int
    bodies_bytes: int  # of bodies in memory
    held_bytes: int  # of what cannot be dropped
    level: int  # how many of the marks that is above


class Options(TypedDict, total=False):
    """The options of an engine. `progress` is called with the position recovery has reached."""

    snapshots: Snapshots | None
    limits: Limits | None
    auto_create: bool  # queues come into being when they are first used
    throttle: Throttle | None
    progress: Progress | None
    compression: payload.Compression | None
    lock_sync_ms: int  # for which a lock waits to be written with what comes next


class Engine:
    """The engine of all namespaces of one journal. `open` or `follow` returns it complete."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        salt: int,
        access: Access,
        limits: Limits,
        world: Namespaces,
        last: Frame,
        *,
        auto_create: bool = False,
        throttle: Throttle | None = None,
        compression: payload.Compression | None = None,
        lock_sync_ms: int = LOCK_SYNC_MS,
    ) -> None:
        self._world = world
        self.view = View(world)  # all that others look at without a command
        self._replay = Replay(world)
        # The tokens of locks are of the epoch in which it leads.
        self._start = Start(0, salt, secrets.token_bytes(KEY_BYTES))
        self._auto_create = auto_create
        self.figures = Figures()
        self._journal = Journal(store, last, self.figures, compression)
        self._clocks = Clocks(clock, last.time_ms, world.states.values(), self._step_clocks)
        self._own_clocks = self._clocks.own
        self._rights = Rights(access, world)
        self.throttle = throttle or Throttle()
        self.shares = Shares(limits.principal_share, world.accounts)
        self._memory = Memory(store, world, limits)
        self._admission = Admission(store, self._memory, world, self.figures)
        self._due = DueWork(world, self._clocks, self._admission, self._do)
        self._clock_mover = ClockMover(self._clocks, self._due, world, self.ask, self.flush)
        self._backlog = Backlog(limits, self.shares)  # did not fit into the batch any more
        self._batch = Batch()  # gathers
        self._writing = Batch()  # is being synced
        self._receivers = Receivers(self._note_granted)
        self._work: asyncio.Handle | asyncio.Task[None] | None = None  # a turn, or what it began
        self._turn_is_due = False  # nothing of this batch is written yet
        self._timer: asyncio.TimerHandle | None = None
        self._lock_sync_seconds = lock_sync_ms / 1_000
        self._lock_timer: asyncio.TimerHandle | None = None  # then a batch of locks is written
        # The answer to every command; None while commands are taken. NotLeader: it follows. A
        # StoreError: it has failed.
        self._gate: Refused | StoreError | None = NotLeader("")
        self._block: Busy | None = None  # the gate of an engine that leads and may not write
        self._record_limit: RecordLimit | None = None
        self._closing = False
        self.failed = asyncio.Event()

    @classmethod
    async def open(
        cls,
        store: Store,
        clock: Clock,
        salt: int,
        access: Access | None = None,
        **options: Unpack[Options],
    ) -> "Engine":
        """Recovers from the last snapshot and the journal, and starts a new epoch.

        What fell due meanwhile is not waited for: there may be no end of it.
        """
        engine = await cls.follow(store, clock, salt, access, **options)
        await engine.promote()
        return engine

    @classmethod
    async def follow(
        cls,
        store: Store,
        clock: Clock,
        salt: int,
        access: Access | None = None,
        *,
        snapshots: Snapshots | None = None,
        limits: Limits | None = None,
        auto_create: bool = False,
        throttle: Throttle | None = None,
        progress: Progress | None = None,
        compression: payload.Compression | None = None,
        lock_sync_ms: int = LOCK_SYNC_MS,
    ) -> "Engine":
        """Recovers as `open` does, up to the store's `last`, and writes nothing until `promote`."""
        limits = limits or Limits()
        last = store.last or Frame(0, 0, 1, 0, 1, 0, b"")
        collecting = gc.isenabled()
        gc.disable()  # everything that is made here stays
        try:
            world = await recover(store, snapshots, last.end, limits.bodies_bytes, progress)
        finally:
            if collecting:
                gc.enable()
        return cls(
            store, clock, salt, access or Open(), limits, world, last,
            auto_create=auto_create, throttle=throttle, compression=compression,
            lock_sync_ms=lock_sync_ms,
        )  # fmt: skip

    # Following.

    @property
    def follows(self) -> bool:
        """Whether it applies what another broker writes, and takes no commands."""
        return isinstance(self._gate, NotLeader)

    @property
    def last(self) -> Frame:
        """The last frame it has written or applied, without its payload."""
        return self._journal.last

    def note_leader(self, leader: str) -> None:
        """Sets the leader that a follower names to its clients."""
        assert self.follows
        self._gate = NotLeader(leader)

    def block(self, busy: Busy | None) -> None:
        """Refuses every command with this while it leads, and does nothing that is due.

        What was decided before is still written. None: it takes commands again.
        """
        before, self._block = self._block, busy
        if not self.follows and self._gate is before:
            self._gate = busy
            if busy is None:
                self._wake()

    def limit_records(self, limit: RecordLimit | None) -> None:
        """Refuses from now on what would write newer records than another node can read."""
        self._record_limit = limit

    def apply(self, frame: Frame) -> None:
        """Makes the next frame of the leader so; the store holds it already.

        Raises OutOfTurn where it is not the next one, and Unknown where this version cannot read
        it. Then nothing has changed.
        """
        assert self.follows
        self._journal.check_next(frame)
        figures = Batch()  # nothing of it is written
        with self._stopping_at_failure():
            for position, namespace, record in self._replay.evolved(frame):
                self._note_applied(figures, position, namespace, record)
        self._clocks.follow(frame.time_ms)
        self._journal.follow(frame)
        self._memory.relieve(figures.messages, figures.bytes, figures.weight)

    def _note_applied(
        self, figures: Batch, position: int, namespace: str, record: payload.Record
    ) -> None:
        """Keeps beside the state what the engine keeps there of a record, whoever wrote it."""
        if isinstance(record, Sent | Routed):
            state = self._world.states[namespace]
            if isinstance(record, Sent):
                figures.bytes += record.size_bytes
                figures.messages += len(record.messages)
            else:
                figures.messages += span(record) - 2 * len(record.sequences)
            if self._memory.tight:
                self._memory.remember(state, record, position)
        elif isinstance(record, MessagesRestored):
            figures.bytes += body_bytes(record)
            figures.messages += len(record.messages)
            if self._memory.tight:
                evict_sent(self._world, namespace, record)
        elif isinstance(record, AccountSet | AccountRevoked):
            self._note_account(record.name)
        elif isinstance(record, NamespaceDeleted):
            self._own_clocks.pop(record.name, None)
        elif isinstance(record, ClockSet):
            self._clocks.restore(self._world.states[namespace])
        figures.weight += weight(record)

    async def promote(self, epoch: int | None = None) -> None:
        """Begins a new epoch, and leads from then on; `epoch`: the one that was won for it.

        Raises StoreError: then it has failed.
        """
        assert self.follows
        self._gate = Busy("it is taking over", "starting")
        self._journal.begin(self.epoch + 1 if epoch is None else epoch)
        self._start = msgspec.structs.replace(self._start, epoch=self.epoch)
        self._clocks.begin(self._world.states.values())
        self._due.look_at_all()
        with self._stopping_at_failure():
            await self._begin_epoch()
        self._gate = Busy(_STOPPING, "stopping") if self._closing else self._block
        self._arm()  # due work is done beside commands from now on

    async def _begin_epoch(self) -> None:
        for name in spaces.void_accounts(self._world):
            self._revoke(name)
        for name in self._world.names:
            state = self._world.states[name]
            self._evolve(state, decide(state, self._start, self._clocks.now_ms(name)))
        _compile_rules(self._world)
        await self._finish(self._close_batch())

    @property
    def epoch(self) -> int:
        return self._journal.epoch

    @property
    def world(self) -> Namespaces:
        """The states, for the broker's own modules to read; everybody else reads through `view`."""
        return self._world

    @property
    def is_closing(self) -> bool:
        return self._closing

    @property
    def is_over(self) -> bool:
        """Whether the engine is stopping or has failed, so that nobody may wait for anything."""
        return self._receivers.are_dismissed or self._has_failed

    @property
    def failure(self) -> StoreError | None:
        """The error that has stopped it: the journal is lost, or another broker has taken over."""
        return self._gate if isinstance(self._gate, StoreError) else None

    @property
    def _has_failed(self) -> bool:
        return isinstance(self._gate, StoreError)

    @property
    def store(self) -> Store:
        """The store, to read, not to write."""
        return self._journal.store

    @property
    def access_watchers(self) -> Watchers:
        """The callbacks that check again, when an account has changed, whether they may go on."""
        return self._rights.watchers

    def now(self) -> Now:
        journal, memory = self._journal, self._memory
        return Now(
            journal.position, journal.store.durable, len(self._backlog), self._backlog.size_bytes,
            memory.bodies_bytes, memory.held_bytes, memory.level,
        )  # fmt: skip

    # For callers.

    def submit(
        self,
        principal: Principal,
        namespace: str,
        command: Command | SpaceCommand,
        reply: Reply,
    ) -> bool:
        """The only way in. The reply is called once, when what it says is durable.

        Returns whether it is certain to be done, if the disk does its part: then the reply is no
        refusal, and need not be waited for before more is asked that is to be done behind it.
        """
        if self._gate is not None:
            reply(self._gate)
            return False
        batch = self._batch
        certain = False
        if self._backlog or batch.weight > BATCH_BYTES or len(batch.answers) >= BATCH_COMMANDS:
            self._put_off(principal, namespace, command, reply)
        else:
            certain = self._decide(principal, namespace, command, reply)
        if self._work is None:
            self._begin_work()
        elif self._turn_is_due and batch.is_large:
            self._begin_early()
        return certain

    def _begin_work(self) -> None:
        """Writes the batch, or where nobody waits for it sees to it that it is written soon."""
        batch = self._batch
        if not self._lock_sync_seconds and batch:
            batch.is_awaited = True
        if batch.is_awaited or self._backlog:
            self._work = asyncio.get_running_loop().call_soon(self._turn)
            self._turn_is_due = True
        elif self._lock_timer is None and batch:
            self._lock_timer = asyncio.get_running_loop().call_later(
                self._lock_sync_seconds, self._write_locks
            )

    def _begin_early(self) -> None:
        """Begins to write a large batch before its turn: more is decided while the disk works."""
        if self._memory.has_evicted or self._journal.store.full:
            return
        assert self._work is not None
        self._work.cancel()
        self._turn_is_due = False
        if self._close_batch().is_written:
            self._journal.begin_sync()
        self._work = asyncio.get_running_loop().create_task(self._run())

    def _write_locks(self) -> None:
        """Writes the locks that nothing came behind; they may be younger than the timer is."""
        self._lock_timer = None
        if self._batch and self._gate is None:
            self._batch.is_awaited = True
            if self._work is None:
                self._begin_work()

    async def ask(
        self, principal: Principal, namespace: str, command: Command | SpaceCommand
    ) -> Answer:
        """Submits a command and waits for its answer. Raises Refused or StoreError."""
        asked = asyncio.get_running_loop().create_future()
        self.submit(principal, namespace, command, asked.set_result)
        try:
            answer: Answer | Refused | StoreError = await asked
        except asyncio.CancelledError:
            if isinstance(command, Receive | AcceptSession):
                self.submit(BROKER, namespace, Detach(command.receiver), ignore)
            raise
        if isinstance(answer, Refused | StoreError):
            raise answer.with_traceback(None)  # others may be told the same one
        return answer

    def new_receiver(self, deliver: Deliver | None = None) -> int:
        """An id for a receiver; `deliver` is called with what is pushed to it.

        Also when it was detached meanwhile: what was under way to it is to be given back.
        """
        return self._receivers.new(deliver)

    def check(self, principal: Principal, namespace: str, command: Command | SpaceCommand) -> None:
        """Checks the right to go on with what a command has begun. Raises Unauthorized."""
        self._rights.check(principal, namespace, command)

    def owned(self, principal: Principal, transaction: int) -> int:
        """The transaction's number, which is easily guessed; or 0 where another began it."""
        return self._rights.owned(principal, transaction)

    def dismiss(self) -> None:
        """Ends all waits, now and later, with the answer they would have at their deadlines."""
        self._receivers.are_dismissed = True
        self._journal.tail.release()
        for wait in self._receivers.waits:
            self._send_away(wait, nothing_for(wait.command))

    def give_up(self, receiver: int, refused: Refused | None = None) -> None:
        """Ends the wait of a command; a delivery that is under way to it still comes.

        Its answer is the refusal where there is one, else the one it would have at its deadline.
        """
        wait = self._receivers.wait(receiver)
        if wait is not None:
            self._send_away(wait, nothing_for(wait.command) if refused is None else refused)

    def _send_away(self, wait: Wait, answer: Answer | Refused) -> None:
        number = wait.number
        if not self._receivers.end_wait(number):
            return
        state = self._world.states.get(wait.namespace)
        if state is not None and (number in state.receivers or number in state.blocked):
            self._evolve(state, decide(state, Detach(number), self._clocks.now_ms(state.name)))
        tell(wait.reply, answer)

    async def close(self) -> None:
        """A clean stop: what was submitted is done, then the journal is closed.

        What comes from now on is refused, and who waits gets what he would at his deadline. One
        that follows writes nothing.
        """
        if self._closing:
            return
        self._closing = True
        writes = not self.follows
        self._gate = self.failure or Busy(_STOPPING, "stopping")
        self._cancel_timer()
        if self._lock_timer is not None:
            self._lock_timer.cancel()
        await self._work_to_end()
        for wait in self._receivers.end_all_waits():
            tell(wait.reply, nothing_for(wait.command))
        try:
            if writes and not self._has_failed:
                if self._batch.is_written:
                    await self._finish(self._close_batch())
                await self._journal.end(self._clocks.time_ms())
        finally:
            await self._journal.store.close()

    async def drain(self) -> None:
        """Waits until all that was decided is durable and answered; the engine is blocked.

        Locks that wait to be written with what comes next are written, too.
        """
        await self._work_to_end()
        if self._batch and not self._has_failed:
            self._batch.is_awaited = True
            self._begin_work()
            await self._work_to_end()

    async def _work_to_end(self) -> None:
        while self._work is not None:
            if isinstance(self._work, asyncio.Task):
                await asyncio.wait([self._work])  # a bug in it was told by `failed`
            else:
                await asyncio.sleep(0)

    # Deciding.

    def _put_off(
        self, principal: Principal, namespace: str, command: Command | SpaceCommand, reply: Reply
    ) -> None:
        try:
            self._backlog.add(principal, namespace, command, reply)
        except Busy as busy:
            self.figures.crowded += 1
            reply(busy.with_traceback(None))

    def _decide(
        self, principal: Principal, namespace: str, command: Command | SpaceCommand, reply: Reply
    ) -> bool:
        """Makes a command part of the batch: what it does is done, but not durable yet.

        Returns whether it was; and not where it has to wait, or is slowed down.
        """
        batch, kind = self._batch, type(command)
        whole, wait_seconds = False, None
        try:
            asked = command.command if isinstance(command, Work) else command
            if asked.right == "broker" and principal is not BROKER:
                raise Unauthorized(principal.name, "do what only the broker does", namespace)
            self._rights.check(principal, namespace, command)
            if self.throttle.is_on:
                self.throttle.check(principal, namespace, command)
            if self._memory.level or self._journal.store.full:
                self._admission.check(namespace, asked)
            if kind in MAKES and (kind is not Send or command.sender):  # type: ignore[union-attr]
                command = self.shares.signed(principal, command)
                if isinstance(command, Attach):
                    self._admission.check_receivers(command)
            if self._own_clocks and kind in _CAN_WAIT:
                command, wait_seconds = self._wait_in_real_time(namespace, command)  # type: ignore[arg-type]  # by its kind
            written = len(batch.entries)
            try:
                answer, deliveries = self._apply(namespace, command)
            except NotFound as missing:
                if missing.kind != "queue" or not self._create_for(principal, namespace, asked):
                    raise
                answer, deliveries = self._apply(namespace, command)
            if command.right == "manage" and len(batch.entries) > written:
                note_change(principal, namespace, command)
            whole = True
        except Refused as refused:
            self.figures.refused[type(refused).__name__] += 1
            if isinstance(refused, Unauthorized):
                note_refusal(refused, command)
            elif isinstance(refused, NotFound) and refused.kind not in ABOVE_NAMESPACES:
                refused.namespace = namespace
            # Its traceback knows this frame, which knows the batch, which would know it: a cycle
            # for each refusal, and a garbage collection of a tenth of a second for many.
            refused.__traceback__ = refused.__context__ = None
            batch.answers.append((reply, refused))
            batch.is_awaited = whole = True
            if isinstance(command, Attach | Detach):
                self._forget_if_gone(command.receiver)
            return False
        finally:
            if not whole:
                batch.answers.append((reply, None))
                self._stop_for_a_bug()
        certain = type(answer) is not Waiting
        if kind in _NEEDS_TRACKING or not certain:
            reply = self._track(principal, namespace, command, answer, reply)
            if wait_seconds is not None and isinstance(answer, Waiting):
                asyncio.get_running_loop().call_later(wait_seconds, self.give_up, answer.receiver)
        elif kind is Send and (self._memory.level or self._journal.store.pressed):
            reply, certain = self._held_back(reply), False
        # The answer to credit says nothing: who gives it waits for messages.
        if kind is Credit or (
            type(answer) is Received and may_leave(answer.deliveries, self._journal.leaves_below)
        ):
            asyncio.get_running_loop().call_soon(tell, reply, answer)
        else:
            batch.answers.append((reply, answer))
            batch.is_awaited = True
        if type(answer) is Received and self._own_clocks:
            self._note_given(namespace, answer.deliveries, principal)
        if deliveries:
            self._deliver(namespace, deliveries)
        return certain

    def _create_for(
        self, principal: Principal, namespace: str, command: Command | SpaceCommand
    ) -> bool:
        """Makes the queue that a command needs, if that is wanted of this engine.

        Raises Refused.
        """
        if not self._auto_create:
            return False
        wanted = creating(self._world.states[namespace], command)
        for create in wanted:
            self._admission.check(namespace, create)
            self._apply(namespace, self.shares.signed(principal, create))
            note_change(principal, namespace, create)
        return bool(wanted)

    def _forget_if_gone(self, receiver: int) -> None:
        """Forgets a receiver whose attach or detach was refused, unless it is still attached."""
        if not any(receiver in state.receivers for state in self._world.states.values()):
            self._receivers.forget(receiver)

    def _track(
        self,
        principal: Principal,
        namespace: str,
        command: Command | SpaceCommand,
        answer: Answer,
        reply: Reply,
    ) -> Reply:
        """Registers a wait, or the owner of what was begun; returns who is to get the answer."""
        if isinstance(answer, Waiting):
            assert isinstance(command, Receive | AcceptSession | Send)
            wait = Wait(reply, command, principal, namespace)
            self._receivers.begin_wait(answer.receiver, wait)
            if self._receivers.are_dismissed:
                self._send_away(wait, nothing_for(command))
            return ignore
        elif isinstance(answer, Begun):
            self._rights.note_transaction(principal, answer.transaction)
        elif isinstance(answer, Granted) and isinstance(command, AcceptSession):
            self._note_session(principal, namespace, command, answer.token)
        elif isinstance(command, Detach):
            self._receivers.detach(command.receiver)
        return reply

    def _held_back(self, reply: Reply) -> Reply:
        """Slows a publisher down: it is told late that its messages are there."""
        seconds = self._admission.slow_seconds()

        def late(answer: Answer | Refused | StoreError) -> None:
            asyncio.get_running_loop().call_later(seconds, reply, answer)

        self.figures.slowed += 1
        return late

    def _apply(
        self, namespace: str, command: Command | SpaceCommand
    ) -> tuple[Answer, Sequence[Delivered]]:
        """Decides and evolves. Raises Refused."""
        if type(command) in _SPACE:
            return self._apply_to_spaces(command)  # type: ignore[arg-type]  # by its kind
        state = self._world.states.get(namespace)
        if state is None:
            raise NotFound("namespace", namespace)
        outcome = decide(state, command, self._clocks.now_ms(namespace))  # type: ignore[arg-type]
        if is_too_much(outcome.records):
            raise InvalidArgument("the command", "writes too much at once; do it in parts")
        if self._record_limit is not None:
            self._record_limit.check(outcome.records)
        self._evolve(state, outcome)
        if self._own_clocks and outcome.records and namespace in self._own_clocks:
            activity = self._own_clocks[namespace].activity
            activity.note(outcome)
            is_vain = all(type(record) is Touched for record in outcome.records)
            if not is_vain and type(outcome.answer) is not Waiting:
                activity.note_command()  # it has not only looked, nor found nothing
        return outcome.answer, outcome.deliveries

    def _apply_to_spaces(self, command: SpaceCommand) -> tuple[Answer, Sequence[Delivered]]:
        if isinstance(command, CreateNamespace):  # its tokens are of this start, whoever asks
            start = self._start
            command = CreateNamespace(command.name, start.epoch, start.salt, start.key, command.by)
        outcome = spaces.decide(self._world, command, self._clocks.time_ms())
        if self._record_limit is not None:
            self._record_limit.check(outcome.records)
        for record in outcome.records:
            spaces.evolve(self._world, record, self._journal.position)
            self._batch.entries.append(("", record))
            self._batch.weight += weight(record)
            self._journal.position += span(record)
            if isinstance(record, NamespaceDeleted):
                self._own_clocks.pop(record.name, None)
                self._batch.changed.add(record.name)
            elif isinstance(record, AccountSet | AccountRevoked):
                self._note_account(record.name)
        return outcome.answer, outcome.deliveries

    def _evolve(self, state: State, outcome: Outcome) -> None:
        batch, journal = self._batch, self._journal
        batch.changed.add(state.name)
        self._due.changed.add(state.name)
        gone: list[str] = []  # accounts that were keys of a queue or topic, and go with it
        for record in outcome.records:
            evolve(state, record, journal.position)
            if isinstance(record, Sent):
                count = len(record.messages)
                batch.entries.append((state.name, record))
                batch.weight += weight_of_sent(record)
                batch.bytes += record.size_bytes
                batch.messages += count
                if self._memory.tight:
                    self._memory.remember(state, record, journal.position)
                journal.position += count
            elif is_kept(record):
                batch.entries.append((state.name, record))
                batch.weight += weight(record)
                if type(record) is Routed:
                    batch.messages += span(record) - 2 * len(record.sequences)
                    if self._memory.tight:
                        self._memory.remember(state, record, journal.position)
                elif type(record) is QueueDeleted:
                    gone += spaces.keys_of(self._world, state.name, record.queue)
                journal.position += span(record)
        for name in gone:
            self._revoke(name)

    def _do(self, state: State, command: Command) -> Outcome:
        """Does a command on the broker's own behalf, as part of the batch."""
        outcome = decide(state, command, self._clocks.now_ms(state.name))
        self._evolve(state, outcome)
        self._batch.is_awaited = True
        if self._own_clocks and state.name in self._own_clocks:
            self._own_clocks[state.name].activity.note(outcome)
        self._deliver(state.name, outcome.deliveries)
        return outcome

    def _deliver(self, namespace: str, deliveries: Sequence[Delivered]) -> None:
        """Pushes what may leave now; the rest leaves when the batch is durable."""
        if self._own_clocks and deliveries:
            self._note_given(namespace, deliveries)
        rest = self._receivers.push_early(deliveries, self._journal.leaves_below)
        if rest:
            self._batch.deliveries.append(rest)
            self._batch.is_awaited = True

    # Namespaces with a clock of their own.

    def _note_given(
        self, namespace: str, deliveries: Sequence[Delivered], principal: Principal | None = None
    ) -> None:
        """Notes which clients hold locks; `principal` asked for them, unless they were pushed."""
        clock = self._own_clocks.get(namespace)
        if clock is not None:
            state = self._world.states[namespace]
            for given in deliveries:
                wait = self._receivers.wait(given.receiver)
                asking = principal if wait is None else wait.principal
                clock.activity.note_given(state, given, None if asking is None else asking.name)

    def _wait_in_real_time(self, namespace: str, command: CanWait) -> tuple[CanWait, float | None]:
        """Returns the command to decide, and after how many seconds to give up its wait.

        A clock that is moved, or stands still, would end a wait too early, or never.
        """
        left_ms = command.deadline_ms - self._clocks.now_ms(namespace)
        if namespace not in self._own_clocks or left_ms <= 0:
            return command, None
        return msgspec.structs.replace(command, deadline_ms=LAST_MS), left_ms / 1_000

    def _begin_own_clock(self, namespace: str) -> NamespaceClock:
        """Gives a namespace a clock; who waits there already goes on in real time."""
        clock, state = self._clocks.of(namespace), self._world.states[namespace]
        for wait in self._receivers.waits:
            if wait.namespace == namespace and self._receivers.end_wait(wait.number):
                self._evolve(state, decide(state, Detach(wait.number), clock.now_ms()))
                self._decide(wait.principal, namespace, wait.command, wait.reply)
        return clock

    # The end of a principal's rights.

    def _revoke(self, name: str) -> None:
        """Revokes the account that was a key of an entity, in the frame in which that goes."""
        record = AccountRevoked(name, self._clocks.time_ms())
        spaces.evolve(self._world, record, self._journal.position)
        self._batch.entries.append(("", record))
        self._journal.position += span(record)
        self._note_account(name)

    def _note_account(self, name: str) -> None:
        """An account has changed: what its principal may not go on with ends."""
        for state, command in self._rights.note_account(name):
            self._do(state, command)
        for wait in self._receivers.waits:
            if wait.principal.name == name:
                try:
                    self.check(wait.principal, wait.namespace, wait.command)
                except Unauthorized as refused:
                    self._send_away(wait, refused)

    def _note_granted(self, wait: Wait, token: int) -> None:
        assert isinstance(wait.command, AcceptSession)
        self._note_session(wait.principal, wait.namespace, wait.command, token)

    def _note_session(
        self, principal: Principal, namespace: str, command: AcceptSession, token: int
    ) -> None:
        for state, end in self._rights.note_session(principal, namespace, command, token):
            self._do(state, end)

    # Writing.

    def _turn(self) -> None:
        """Commits the batch in this turn where the store syncs at once; else a task does."""
        self._turn_is_due = whole = is_done = False
        try:
            self._due.do_some()
            is_done = self._commit_at_once()
            whole = True
        except StoreError as error:
            self._fail(error)
            whole = True
        finally:
            self._work = None
            if not whole:
                self._stop_for_a_bug()
        if is_done:
            self._arm()
        elif not self._has_failed:
            self._work = asyncio.get_running_loop().create_task(self._run())

    def _commit_at_once(self) -> bool:
        """Returns whether it did; else the frame may be appended, and is to be synced."""
        if self._memory.has_evicted or self._journal.store.full:
            return False
        batch = self._close_batch()
        if batch.is_written and not self._journal.sync_at_once():
            return False
        self._answer(batch)
        return True

    async def _run(self, *, idle: bool = False) -> None:
        whole = False
        try:
            if self._writing:  # a turn has closed it
                await self._finish(self._writing)
            if self._journal.store.full:  # perhaps there is room again
                await self._journal.store.sync()
            if idle:
                self._due.move_clocks_on()
            self._due.do_some()
            while (self._batch.is_awaited or self._backlog) and not self._has_failed:
                await self._finish(self._close_batch())
                # A stop does not wait for what is due: there may be no end of it.
                if self._gate is None and self._due.do_some():
                    await asyncio.sleep(0)  # a sync need not wait, and others have their turn
            whole = True
        except StoreError as error:
            self._fail(error)
            whole = True
        finally:
            self._work = None
            if not whole:
                self._stop_for_a_bug()
        self._arm()

    def _close_batch(self) -> Batch:
        """Appends the batch as one frame; what is decided from now on comes behind it."""
        now_ms = self._clocks.time_ms()  # may add to what was gathered
        batch = self._writing = self._batch
        self._batch = Batch()
        is_told = bool(batch.answers or batch.deliveries)
        if is_told and not batch.is_written and not self._journal.store.is_fresh:
            batch.probe = True  # what is read here is true only if nobody else leads
        if batch.is_written:
            self._journal.append(batch.entries, now_ms)
        return batch

    async def _finish(self, batch: Batch) -> None:
        """Syncs once, and then answers."""
        if self._memory.has_evicted and (bare := bare_messages(batch)):
            await self._sync_and_fill_in(batch, bare)
        elif batch.is_written:
            await self._journal.sync()
        if not self._has_failed:  # by a bug, meanwhile; then everybody has been told
            self._answer(batch)

    def _answer(self, batch: Batch) -> None:
        """Tells everybody what is durable now, and goes on with commands that had to wait."""
        self._writing = Batch()
        self._rights.watchers.tell()
        for reply, answer in batch.answers:
            tell(reply, answer)
        if batch.deliveries:
            owed = [delivery for deliveries in batch.deliveries for delivery in deliveries]
            self._receivers.hand_over(owed)
        self._memory.relieve(batch.messages, batch.bytes, batch.weight, batch.changed)
        while self._backlog and not self._batch.is_full:
            submitted = self._backlog.take()
            self._decide(
                submitted.principal, submitted.namespace, submitted.command, submitted.reply
            )

    async def _sync_and_fill_in(self, batch: Batch, bare: list[Bare]) -> None:
        """Bodies are read while the sync runs, where they are durable already."""
        is_readable = all(each.position < self._journal.safe for each in bare)
        syncing = [self._journal.sync()] if batch.is_written else []
        if is_readable:
            await asyncio.gather(*syncing, fill_in(bare, self._memory))
            return
        for sync in syncing:
            await sync
        await fill_in(bare, self._memory)

    @contextmanager
    def _stopping_at_failure(self) -> Iterator[None]:
        """The engine stops where what is done here fails, and the failure rises."""
        whole = False
        try:
            yield
            whole = True
        except Unknown:  # a frame is decoded before anything is made so
            whole = True
            raise
        except StoreError as error:
            self._fail(error)
            whole = True
            raise
        finally:
            if not whole:
                self._stop_for_a_bug()

    def stop_for(self, error: StoreError) -> None:
        """Stops the engine of a node that cannot follow any more, and tells everybody."""
        if not self._has_failed:
            self._fail(error)

    def _stop_for_a_bug(self) -> None:
        """Stops the engine after a bug, which rises to the log: the state may be half changed."""
        self._fail(Lost("the engine has stopped; the log says why"))

    def _fail(self, error: StoreError) -> None:
        """Answers every command that has no answer yet with this error."""
        is_first = not self._has_failed
        if is_first:
            self._gate = error
        replies = [reply for reply, _ in (*self._writing.answers, *self._batch.answers)]
        while self._backlog:
            replies.append(self._backlog.take().reply)
        replies += [wait.reply for wait in self._receivers.end_all_waits()]
        self._writing, self._batch = Batch(), Batch()
        for reply in replies:
            tell(reply, error)
        self._journal.tail.release()
        if is_first and isinstance(error, Deposed):
            _log.error("This broker writes no more: %s.", error,
                       extra={"event": "journal.deposed", "epoch": error.epoch})  # fmt: skip
        self.failed.set()

    async def flush(self) -> None:
        """Waits until all that was decided or is due is durable, and answered."""
        await self.ask(BROKER, "", ListNamespaces(limit=1))

    async def prove(self) -> None:
        """Proves that the journal can be written, by syncing an empty frame if need be.

        A sync within the last second is proof enough. Raises StoreError, Busy or NotLeader.
        """
        if self._gate is not None:
            raise self._gate.with_traceback(None)
        if time.perf_counter() - self._journal.synced > PROOF_SECONDS:
            self._batch.probe = True
            await self.flush()

    async def beyond(self, position: int) -> None:
        """Waits until there is a durable record behind a position."""
        if self._journal.safe <= position + 1 and not self.is_over:
            await self._journal.tail.beyond(position)

    # Time.

    def time_ms(self) -> int:
        """The time of the broker: not before what the journal has seen, wherever the clock is."""
        return self._clocks.time_ms()

    def clock_ms(self, namespace: str) -> int:
        """The current time in a namespace; where there is no such namespace, the broker's."""
        return self._clocks.now_ms(namespace)

    def ahead_ms(self) -> int:
        """The milliseconds by which the broker's time is ahead of the machine's clock."""
        return self._clocks.ahead_ms()

    def own_clock(self, namespace: str) -> NamespaceClock | None:
        """The clock of a namespace that has one of its own."""
        return self._own_clocks.get(namespace)

    def clock(self, namespace: str) -> NamespaceClock:
        """A clock of the namespace's own, to freeze, resume, or let move on by itself.

        From the first time this is asked; until it is moved it goes as the broker's does. Raises
        NotFound or NotLeader.
        """
        self._check_leads()
        if namespace not in self._world.states:
            raise NotFound("namespace", namespace)
        # The engine looks for due work once the caller has moved the clock.
        asyncio.get_running_loop().call_soon(self._wake)
        return self._own_clocks.get(namespace) or self._begin_own_clock(namespace)

    async def quiet(
        self, namespace: str, timeout_ms: int, quiet_ms: int, *, locks: bool = True
    ) -> list[Unfinished]:
        """Waits until nobody in a namespace has work, and nothing has come for `quiet_ms`.

        Returns what is unfinished after the timeout, else nothing. With `locks` those that live
        receivers hold are work. Raises NotFound or NotLeader.
        """
        self.clock(namespace)
        return await self._clock_mover.quiet(
            namespace, timeout_ms / 1_000, quiet_ms / 1_000, locks=locks
        )

    async def set_time(self, namespace: str, moment_ms: int, pace: Pace | None = None) -> Moved:
        """Moves a namespace's own clock to a moment; see `advance`."""
        self.clock(namespace)
        return await self._clock_mover.move(namespace, lambda _: moment_ms, pace)

    async def advance(
        self, ms: int, namespace: str | None = None, pace: Pace | None = None
    ) -> Moved:
        """Moves the namespace's own clock, or the broker's where that is a virtual one.

        Returns when everything that falls due meanwhile has been done, with what that was. Raises
        Refused.
        """
        self._check_leads()
        if namespace is not None:
            self.clock(namespace)
        return await self._clock_mover.move(namespace, lambda now_ms: now_ms + ms, pace)

    async def step(self, namespace: str, pace: Pace | None = None) -> Moved:
        """Moves a namespace's own clock to what is due next, if anything is; see `advance`."""
        self.clock(namespace)
        return await self._clock_mover.step(namespace, pace)

    async def turn_back(self, *, scheduled: bool = False) -> int:
        """Brings the broker's time back to the machine's; by how many milliseconds.

        Before anybody else asks for anything. With `scheduled` messages that are scheduled are due
        that much earlier, too. Raises InvalidArgument where it is not ahead, or NotLeader.
        """
        self._check_leads()
        step_ms = self.ahead_ms()
        if step_ms <= STEP_MS:
            raise InvalidArgument("the clock", "is not ahead of the machine's, so it stays")
        now_ms = self._clocks.turn_back()
        for state in self._world.states.values():
            self._evolve(state, decide(state, TurnClockBack(step_ms, scheduled), now_ms))
        await self.flush()
        return step_ms

    def _step_clocks(self, step_ms: int, now_ms: int) -> None:
        """The machine's clock has jumped, and by that nobody loses a lock."""
        if self.follows:  # by the leader's clock alone
            return
        for name, state in self._world.states.items():
            if self._clocks.jumps_with_the_broker(name):
                self._evolve(state, decide(state, StepClock(step_ms), now_ms))

    def _check_leads(self) -> None:
        """Raises NotLeader."""
        if isinstance(self._gate, NotLeader):
            raise self._gate.with_traceback(None)

    def _wake(self, *, idle: bool = False) -> None:
        self._timer = None
        if self._work is None and self._gate is None:
            self._work = asyncio.get_running_loop().create_task(self._run(idle=idle))

    def _arm(self) -> None:
        """Wakes when the core says that something is due; earlier where a timer is set already.

        Most often that was a lock's, which is settled by now: the next is looked for then.
        """
        if self._gate is not None:
            self._cancel_timer()
            return
        if self._batch:
            self._begin_work()
        seconds = self._due.seconds_until_next()
        if self._journal.store.full:
            seconds = _FULL_RETRY_SECONDS if seconds is None else min(seconds, _FULL_RETRY_SECONDS)
        if seconds is None:
            return
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            # A clock that moves by itself does so if nothing has happened since the timer was set.
            if self._timer.when() <= loop.time() + seconds and not self._clocks.own:
                return
            self._timer.cancel()
        self._timer = loop.call_later(seconds, partial(self._wake, idle=True))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _compile_rules(world: Namespaces) -> None:
    """Compiles rules before the first send. If there are very many, the rest is compiled later."""
    begun = time.perf_counter()
    for state in world.states.values():
        for queue in state.queues.values():
            if queue.topic is not None:
                compile_some(queue)
                if time.perf_counter() - begun > _COMPILE_SECONDS:
                    return
