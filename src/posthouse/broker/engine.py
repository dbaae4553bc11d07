"""The engine: the single writer.

Callers hand commands in with a plain call, and each is decided and evolved there and then. While
one batch is being synced the next gathers in this way; it is appended as one frame, synced once,
and answered. No answer leaves before the sync has returned. Only a delivery may, where its message
is durable: to lose its lock means no more than to deliver it again.

If a sync fails nobody knows what is durable: the engine stops, and what was not answered is
answered with the failure. Recovery reads the journal.
"""

import asyncio
import gc
import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from copy import copy
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import msgspec

from posthouse.broker import payload
from posthouse.broker.access import BROKER, Access, Open, Principal, Watchers
from posthouse.broker.clock import STEP_MS, Clock, VirtualClock
from posthouse.broker.figures import Figures
from posthouse.broker.memory import OVERFLOW, REFUSE, Limits, Memory
from posthouse.broker.replay import Progress, recover
from posthouse.broker.shares import MAKES, Shares
from posthouse.broker.throttle import Throttle
from posthouse.broker.weight import is_too_much, load, weight, weight_of_sent
from posthouse.core import decide, evolve, next_deadline_ms
from posthouse.core import namespaces as spaces
from posthouse.core.commands import (
    DURATION_MS_MAX,
    LAST_MS,
    TRANSACTIONS_MAX,
    Abandon,
    AcceptSession,
    Admitted,
    Answer,
    Attach,
    Begin,
    Begun,
    Command,
    Commit,
    CreateQueue,
    CreateSubscription,
    DeadLetter,
    Defer,
    Delivery,
    Detach,
    Granted,
    Notice,
    Peek,
    Peeked,
    Receive,
    Received,
    Release,
    ReleaseSession,
    Resubmit,
    RollBack,
    Seen,
    Send,
    SetClock,
    SetCopying,
    SetRule,
    SetSchedule,
    SetSessionState,
    Start,
    StepClock,
    Tick,
    TurnClockBack,
    UpdateQueue,
    Waiting,
    Work,
)
from posthouse.core.errors import (
    Busy,
    InvalidArgument,
    NotFound,
    QuotaExceeded,
    Refused,
    SessionLockLost,
    Unauthorized,
)
from posthouse.core.message import has_session
from posthouse.core.model import Copying, QueueProperties, State, entity_of, topic_of
from posthouse.core.namespaces import (
    CreateNamespace,
    ListNamespaces,
    Namespaces,
    SetAccount,
    SetReader,
    SpaceCommand,
)
from posthouse.core.plan import Delivered, Outcome
from posthouse.core.records import (
    AccountRevoked,
    AccountSet,
    NamespaceDeleted,
    QueueDeleted,
    Routed,
    Sent,
    is_kept,
    span,
)
from posthouse.core.routing import compile_some
from posthouse.core.tokens import KEY_BYTES
from posthouse.store import Snapshots, Store
from posthouse.store.errors import Lost, StoreError
from posthouse.store.frames import CLOSING, Frame

_log = logging.getLogger(__name__)
_audit = logging.getLogger("posthouse.audit")

Reply = Callable[[Answer | Refused | StoreError], None]
Deliver = Callable[[Sequence[Delivered]], None]
_Items: TypeAlias = MutableSequence[Any]  # deliveries, or what was peeked

BATCH_BYTES = 8 << 20  # a batch ends when it holds this much; one send more may be in it
BATCH_COMMANDS = 10_000
PROOF_SECONDS = 1.0
SESSIONS_NOTED = 100_000  # whose holders are known; others end when their locks do
_FULL_RETRY_SECONDS = 0.5
# After this long no other namespace's tick begins before others have had their turn.
_SLICE_SECONDS = 0.01
_PRESSED_SLOW_MS = 200  # by which an answer to a sender comes later while the disk is short of room
_COMPILE_SECONDS = 1.0  # for which a start compiles rules

_SPACE: frozenset[type] = frozenset(SpaceCommand.__args__)
_MAKES = (Send, Receive, Attach, AcceptSession, Peek)  # what a queue may be made for
_ODD = frozenset((Receive, AcceptSession, Detach, Begin))  # see _note_odd
_FREES = frozenset((Detach, Release, ReleaseSession))
_WAITS = (Receive, AcceptSession, Send)  # what may have to wait
_HOLDS = frozenset((Delivery, Seen))  # what has a message in it
# What makes the state larger, and is refused where there is no room; see `_needs_room`. A test has
# the list of those that do not.
ROOMY = frozenset((
    Send, Resubmit, CreateQueue, UpdateQueue, CreateSubscription, SetRule, SetSchedule,
    SetSessionState, AcceptSession, Attach, Receive, Abandon, Defer, DeadLetter, Begin,
    CreateNamespace, SetAccount, SetReader,
))  # fmt: skip


class Fired(msgspec.Struct, frozen=True):
    """Something that was due when a clock was moved, and how often."""

    kind: str  # the name of the record
    queue: str
    count: int


class Now(NamedTuple):
    """How the engine is at this moment, for metrics."""

    position: int  # of the next record
    durable: int
    pending_commands: int
    pending_bytes: int
    bodies_bytes: int  # of bodies in memory
    held_bytes: int  # of what cannot be dropped
    level: int  # how many of the marks that is above


class _Submitted(NamedTuple):
    principal: Principal
    namespace: str
    command: Command | SpaceCommand
    reply: Reply
    size_bytes: int
    counts_for: str


class _Wait(NamedTuple):
    """Somebody who asked once, and waits."""

    reply: Reply
    command: Receive | AcceptSession | Send
    principal: Principal
    namespace: str

    @property
    def number(self) -> int:
        return self.command.sender if isinstance(self.command, Send) else self.command.receiver


class _Held(NamedTuple):
    """A session, and who was given it."""

    principal: Principal
    namespace: str
    command: AcceptSession


class _Batch:
    """What has been decided since the last frame."""

    __slots__ = ("answers", "bytes", "deliveries", "entries", "messages", "probe", "weight")

    def __init__(self) -> None:
        self.entries: list[payload.Entry] = []
        self.answers: list[tuple[Reply, Answer | Refused]] = []
        self.deliveries: list[list[Delivered]] = []
        self.messages = 0  # that were sent
        self.bytes = 0  # of them
        self.weight = 0  # of all records, in bytes, at most
        self.probe = False  # a frame is to be written, even an empty one

    def __bool__(self) -> bool:
        return bool(self.entries or self.answers or self.deliveries or self.probe)

    @property
    def is_full(self) -> bool:
        return self.weight > BATCH_BYTES or len(self.answers) >= BATCH_COMMANDS


class Engine:
    """All namespaces of one journal. `open` it; it is complete then."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        salt: int,
        access: Access,
        limits: Limits,
        world: Namespaces,
        last: Frame,
        auto_create: bool,
    ) -> None:
        self._store = store
        self._clock = clock
        self._salt = salt
        self._token_key = secrets.token_bytes(KEY_BYTES)
        self._clocks: dict[str, VirtualClock] = {}  # of namespaces that have their own
        self._access = access
        self._limits = limits
        self._auto_create = auto_create
        self._world = world
        self._memory = Memory(store, world, limits)
        self.shares = Shares(limits.principal_share, world.accounts)
        self._last = last  # the last frame, without its payload
        self._safe = last.end  # everything below is as durable as was asked for
        self._position = last.end  # the position of the next record
        self._batch = _Batch()  # gathers
        self._writing = _Batch()  # is being synced
        self._pending: deque[_Submitted] = deque()  # did not fit into the batch any more
        self._pending_bytes = 0
        self._receivers: dict[int, Deliver] = {}
        self._waits: dict[int, _Wait] = {}  # who asked once
        self._next_receiver = 1
        self._work: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failure: StoreError | None = None
        self._fired: Counter[tuple[str, str]] | None = None  # what falls due, while that is asked
        self._seen_ms = clock.now_ms()
        self._last_ticked = ""  # the namespace with which the last slice of due work ended
        self.figures = Figures()
        self._synced = 0.0  # when the last sync had returned
        self._watchers: list[tuple[int, asyncio.Future[None]]] = []  # who waits for a position
        self._owed: Counter[int] = Counter()  # deliveries under way, by receiver
        self.access_watchers = Watchers()  # who looks again when an account has changed
        self._leaving: set[int] = set()  # receivers that are detached, and owed something
        # Whose transactions and sessions there are, also of some that have ended. A session that
        # ends with a connection is not here.
        self._owners: dict[int, Principal] = {}
        self._sessions: dict[int, _Held] = {}
        self._pushing = False
        self._moving = asyncio.Lock()  # held by who moves a clock
        self._closing = self._dismissed = False
        self.throttle = Throttle()
        self._compression: payload.Compression | None = None
        self.failed = asyncio.Event()

    @classmethod
    async def open(
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
    ) -> "Engine":
        """Recovers from the last snapshot and the journal, and starts a new epoch.

        What fell due meanwhile is not waited for: there may be no end of it. With `auto_create`
        queues come into being when they are first used. `progress` is told the
        position that recovery has come to, now and then.
        """
        limits = limits or Limits()
        collecting = gc.isenabled()
        gc.disable()  # everything that is made here stays
        try:
            world = await recover(
                store, snapshots, keep_bytes=limits.bodies_bytes, progress=progress
            )
        finally:
            if collecting:
                gc.enable()
        old = store.last or Frame(0, 0, 1, 0, 1, 0, b"")
        last = Frame(old.epoch + 1, old.number, old.end, 0, old.end, old.time_ms, b"")
        engine = cls(store, clock, salt, access or Open(), limits, world, last, auto_create)
        engine.throttle = throttle or Throttle()
        engine._compression = compression
        for name, state in world.states.items():
            if state.clock_ms:  # it was moved, and does not go back behind where it was since
                passed_ms = max(0, engine.time_ms() - state.broker_ms) if state.broker_ms else 0
                engine._clocks[name] = VirtualClock(state.clock_ms + passed_ms, clock)
        for account in world.accounts.values():
            engine._access.note(account.name, account)
        for name in spaces.void_accounts(world):
            engine._revoke(name)
        for name in world.names:
            engine._start(name, Start(last.epoch, salt, engine._token_key))
        _compile_rules(world)
        await engine._commit()
        engine._arm()  # what is due is done beside what is asked from now on
        return engine

    def _start(self, name: str, command: Start) -> None:
        state = self._world.states[name]
        outcome = decide(state, command, self._now_ms(name))
        self._evolve(state, outcome)

    @property
    def epoch(self) -> int:
        return self._last.epoch

    @property
    def namespaces(self) -> Namespaces:
        """To look at, not to touch."""
        return self._world

    @property
    def is_closing(self) -> bool:
        return self._closing

    @property
    def is_over(self) -> bool:
        """Nobody is to wait for anything any more."""
        return self._dismissed or self._failure is not None

    @property
    def store(self) -> Store:
        """To read, not to write."""
        return self._store

    def now(self) -> Now:
        memory = self._memory
        return Now(
            self._position, self._store.durable, len(self._pending), self._pending_bytes,
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
        if self._failure is not None:
            reply(self._failure)
            return False
        if self._closing:
            reply(Busy("it is being stopped"))
            return False
        batch = self._batch
        certain = False
        if self._pending or batch.weight > BATCH_BYTES or len(batch.answers) >= BATCH_COMMANDS:
            self._put_off(principal, namespace, command, reply)
        else:
            certain = self._decide(principal, namespace, command, reply)
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._run())
        return certain

    async def ask(
        self, principal: Principal, namespace: str, command: Command | SpaceCommand
    ) -> Answer:
        """As `submit`, for who can wait. Raises Refused or StoreError."""
        asked = asyncio.get_running_loop().create_future()
        self.submit(principal, namespace, command, asked.set_result)
        try:
            answer: Answer | Refused | StoreError = await asked
        except asyncio.CancelledError:
            if isinstance(command, Receive | AcceptSession):
                self.submit(BROKER, namespace, Detach(command.receiver), _ignore)
            raise
        if isinstance(answer, Refused | StoreError):
            raise answer
        return answer

    def new_receiver(self, deliver: Deliver | None = None) -> int:
        """An id for a receiver; `deliver` is called with what is pushed to it.

        Also when it was detached meanwhile: what was under way to it is to be given back.
        """
        number = self._next_receiver
        self._next_receiver += 1
        if deliver is not None:
            self._receivers[number] = deliver
        return number

    def check(self, principal: Principal, namespace: str, command: Command | SpaceCommand) -> None:
        """For who goes on with what a command has begun. Raises Unauthorized."""
        self._access.check(self._world.accounts, principal, namespace, command)

    def owned(self, principal: Principal, transaction: int) -> int:
        """Its number, which is easily guessed; or 0, which none has, where another began it."""
        mine = self._owners.get(transaction) == principal or principal.everything
        return transaction if mine else 0

    def dismiss(self) -> None:
        """Nobody waits any more: who does gets what he would at his deadline, now and later."""
        self._dismissed = True
        self._tell_watchers(all=True)
        for wait in list(self._waits.values()):
            self._send_away(wait, _nothing_for(wait.command))

    def give_up(self, receiver: int, refused: Refused | None = None) -> None:
        """One who asked once does not wait longer; what is under way to him still comes.

        He is told the refusal where there is one, else what he would be at his deadline.
        """
        wait = self._waits.get(receiver)
        if wait is not None:
            self._send_away(wait, _nothing_for(wait.command) if refused is None else refused)

    def _send_away(self, wait: _Wait, answer: Answer | Refused) -> None:
        """Ends a wait; what is under way to him already is his."""
        number = wait.number
        if number in self._owed:
            return
        self._waits.pop(number, None)
        state = self._world.states.get(wait.namespace)
        if state is not None and (number in state.receivers or number in state.blocked):
            self._evolve(state, decide(state, Detach(number), self._now_ms(state.name)))
        _call(wait.reply, answer)

    # What ends with somebody's rights.

    def _note_account(self, name: str) -> None:
        """An account has changed: what its principal may not go on with ends."""
        self._access.note(name, self._world.accounts.get(name))
        for wait in list(self._waits.values()):
            if wait.principal.name == name:
                try:
                    self.check(wait.principal, wait.namespace, wait.command)
                except Unauthorized as refused:
                    self._send_away(wait, refused)
        for state in self._world.states.values():
            for number in list(state.transactions):
                owner = self._owners.get(number)
                if owner is not None and owner.name == name:
                    self._end_transaction(state, number, owner)
        for token, held in list(self._sessions.items()):
            if held.principal.name == name:
                self._end_session(token, held)
        self.access_watchers.note(name)

    def _end_transaction(self, state: State, number: int, owner: Principal) -> None:
        """Unless its owner may still do all that was asked in it."""
        try:
            for command in (Commit(number), *state.transactions[number].work):
                self.check(owner, state.name, command)
        except Unauthorized:
            self._do(state, RollBack(number))

    def _end_session(self, token: int, held: _Held) -> None:
        """Unless its holder may still receive from it."""
        state = self._world.states.get(held.namespace)
        if state is None or token not in state.sessions:
            del self._sessions[token]
            return
        try:
            self.check(held.principal, held.namespace, held.command)
        except Unauthorized:
            del self._sessions[token]
            self._do(state, ReleaseSession(held.command.queue, token))

    def _do(self, state: State, command: Command) -> None:
        """On the broker's own behalf, as part of the batch."""
        outcome = decide(state, command, self._now_ms(state.name))
        self._evolve(state, outcome)
        self._batch.deliveries.append(self._push_early(outcome.deliveries))

    def _note_owner(self, principal: Principal, transaction: int) -> None:
        if len(self._owners) >= 2 * TRANSACTIONS_MAX * len(self._world.states):
            states = self._world.states.values()
            is_open = {number for state in states for number in state.transactions}
            self._owners = {n: owner for n, owner in self._owners.items() if n in is_open}
        self._owners[transaction] = principal

    def _note_session(
        self, principal: Principal, namespace: str, command: AcceptSession, token: int
    ) -> None:
        """Whose it is, unless it ends with a connection anyway."""
        if command.bound or principal.everything:
            return
        states = self._world.states.values()
        if len(self._sessions) > 2 * SESSIONS_NOTED:
            is_held = {token for state in states for token in state.sessions}
            kept = [(t, held) for t, held in self._sessions.items() if t in is_held]
            self._sessions = dict(kept[-SESSIONS_NOTED:])
        held = self._sessions[token] = _Held(principal, namespace, command)
        self._end_session(token, held)  # he may have lost his rights while this was under way

    async def close(self) -> None:
        """A clean stop: what was submitted is done, then the journal is closed.

        What comes from now on is refused, and who waits gets what he would at his deadline.
        """
        if self._closing:
            return
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        while self._work is not None:
            await asyncio.wait([self._work])  # a bug in it was told by `failed`
        for wait in self._waits.values():
            _call(wait.reply, _nothing_for(wait.command))
        self._waits.clear()
        try:
            if self._failure is None:
                last, end = self._last, self._last.end
                self._store.append(
                    Frame(last.epoch, last.number + 1, end, 0, end, self.time_ms(), b"", CLOSING)
                )
                await self._store.sync()
        finally:
            await self._store.close()

    # The work.

    def _put_off(
        self, principal: Principal, namespace: str, command: Command | SpaceCommand, reply: Reply
    ) -> None:
        """For the next batch, if not too much waits for it already.

        Where the broker itself gives back what somebody had who is gone, it is not turned down.
        """
        size = load(command)
        frees = principal is BROKER and type(command) in _FREES
        commands, bytes_ = self._limits.pending_commands, self._limits.pending_bytes
        full = len(self._pending) >= commands or self._pending_bytes + size > bytes_
        name = self.shares.name(principal)
        may_wait = self.shares.may_wait(name, size, commands, bytes_)
        if not frees and (full or not may_wait):
            self.figures.crowded += 1
            used_up = f"{name!r} has used up its share of what may wait to be written"
            reply(Busy("more is waiting than it can write" if full else used_up))
            return
        self._pending.append(_Submitted(principal, namespace, command, reply, size, name))
        self._pending_bytes += size
        self.shares.waits(name, size)

    def _decide(
        self, principal: Principal, namespace: str, command: Command | SpaceCommand, reply: Reply
    ) -> bool:
        """Makes a command part of the batch: what it does is done, but not durable yet.

        Returns whether it was; and not where it has to wait, or is slowed down.
        """
        batch, kind = self._batch, type(command)
        whole = False
        try:
            asked = command.command if isinstance(command, Work) else command
            if asked.right == "broker" and principal is not BROKER:
                raise Unauthorized(principal.name, "do what only the broker does", namespace)
            self._access.check(self._world.accounts, principal, namespace, command)
            if self.throttle.is_on:
                self.throttle.check(principal, namespace, command)
            if (self._memory.level or self._store.full) and type(asked) in ROOMY:
                self._check_room(namespace, asked)
            if kind in MAKES and (kind is not Send or command.sender):  # type: ignore[union-attr]
                command = self.shares.signed(principal, command)
            written = len(batch.entries)
            try:
                answer, deliveries = self._apply(namespace, command)
            except NotFound as missing:
                if missing.kind != "queue" or not self._create_for(principal, namespace, asked):
                    raise
                answer, deliveries = self._apply(namespace, command)
            if command.right == "manage" and len(batch.entries) > written:
                _note_change(principal, namespace, command)
            whole = True
        except Refused as refused:
            self.figures.refused[type(refused).__name__] += 1
            if isinstance(refused, Unauthorized):
                _note_refusal(refused, command)
            # Its traceback knows this frame, which knows the batch, which would know it: a cycle
            # for each refusal, and a garbage collection of a tenth of a second for many.
            refused.__traceback__ = refused.__context__ = None
            batch.answers.append((reply, refused))
            whole = True
            if isinstance(command, Attach | Detach):
                self._forget_if_gone(command.receiver)
            return False
        finally:
            if not whole:
                batch.answers.append((reply, None))
                self._stop_for_a_bug()
        certain = type(answer) is not Waiting
        if kind in _ODD or not certain:
            reply = self._note_odd(principal, namespace, command, answer, reply)
        elif kind is Send and (self._memory.level or self._store.pressed):
            reply, certain = self._held_back(reply), False
        if type(answer) is Received and _may_all_leave(answer.deliveries, self._safe):
            asyncio.get_running_loop().call_soon(_call, reply, answer)
        else:
            batch.answers.append((reply, answer))
        if deliveries:
            batch.deliveries.append(self._push_early(deliveries))
        return certain

    def _create_for(
        self, principal: Principal, namespace: str, command: Command | SpaceCommand
    ) -> bool:
        """Makes the queue that a command needs, if that is wanted of this engine.

        It has sessions if it is first used with one. Raises Refused.
        """
        if not self._auto_create or not isinstance(command, _MAKES):
            return False
        sessions = isinstance(command, AcceptSession) or (
            isinstance(command, Send) and any(map(has_session, command.messages))
        )
        properties = QueueProperties(grouping="session" if sessions else "none")
        name = entity_of(command.queue)
        topic = topic_of(name)
        wanted: list[Command] = [CreateQueue(name, properties)]
        if topic != name:
            wanted = [CreateSubscription(name, properties)]
            if topic not in self._world.states[namespace].queues:
                wanted.insert(0, CreateQueue(topic, QueueProperties(delivery="topic")))
        for each in wanted:
            self._check_room(namespace, each)
            self._apply(namespace, self.shares.signed(principal, each))
            _note_change(principal, namespace, each)
        return True

    def _forget_if_gone(self, receiver: int) -> None:
        """Of one whose attach or detach was refused, unless it is attached all the same."""
        if not any(receiver in state.receivers for state in self._world.states.values()):
            self._receivers.pop(receiver, None)

    def _note_odd(
        self,
        principal: Principal,
        namespace: str,
        command: Command | SpaceCommand,
        answer: Answer,
        reply: Reply,
    ) -> Reply:
        """What the engine has to know of some commands; returns who is to get the answer."""
        if isinstance(answer, Waiting):
            assert isinstance(command, _WAITS)
            wait = self._waits[answer.receiver] = _Wait(reply, command, principal, namespace)
            if self._dismissed:
                self._send_away(wait, _nothing_for(command))
            return _ignore
        elif isinstance(answer, Begun):
            self._note_owner(principal, answer.transaction)
        elif isinstance(answer, Granted) and isinstance(command, AcceptSession):
            self._note_session(principal, namespace, command, answer.token)
        elif isinstance(command, Detach):
            if command.receiver in self._owed:  # it gets what is under way, to give it back
                self._leaving.add(command.receiver)
            else:
                self._receivers.pop(command.receiver, None)
            self._waits.pop(command.receiver, None)
        return reply

    def _apply(
        self, namespace: str, command: Command | SpaceCommand
    ) -> tuple[Answer, Sequence[Delivered]]:
        """Decides and evolves. Raises Refused."""
        if type(command) in _SPACE:
            return self._apply_to_spaces(command)  # type: ignore[arg-type]  # by its kind
        state = self._world.states.get(namespace)
        if state is None:
            raise NotFound("namespace", namespace)
        now_ms = self._now_ms(namespace) if self._clocks else self.time_ms()
        outcome = decide(state, command, now_ms)  # type: ignore[arg-type]
        if is_too_much(outcome.records):
            raise InvalidArgument("the command", "writes too much at once; do it in parts")
        self._evolve(state, outcome)
        return outcome.answer, outcome.deliveries

    def _evolve(self, state: State, outcome: Outcome) -> None:
        batch = self._batch
        gone: list[str] = []  # queues and topics, whose keys go with them
        for record in outcome.records:
            evolve(state, record, self._position)
            if isinstance(record, Sent):
                count = len(record.messages)
                batch.entries.append((state.name, record))
                batch.weight += weight_of_sent(record)
                batch.bytes += record.size_bytes
                batch.messages += count
                if self._memory.tight:
                    self._memory.remember(state, record, self._position)
                self._position += count
            elif is_kept(record):
                batch.entries.append((state.name, record))
                batch.weight += weight(record)
                if type(record) is Routed:
                    batch.messages += span(record) - 2 * len(record.sequences)
                    if self._memory.tight:
                        self._memory.remember(state, record, self._position)
                elif type(record) is QueueDeleted:
                    gone += spaces.keys_of(self._world, state.name, record.queue)
                self._position += span(record)
        for name in gone:
            self._revoke(name)

    def _revoke(self, name: str) -> None:
        """With what it was a key of, and in the same frame."""
        record = AccountRevoked(name, self.time_ms())
        spaces.evolve(self._world, record, self._position)
        self._batch.entries.append(("", record))
        self._position += span(record)
        self._note_account(name)

    def _apply_to_spaces(self, command: SpaceCommand) -> tuple[Answer, Sequence[Delivered]]:
        if isinstance(command, CreateNamespace):  # its tokens are of this start, whoever asks
            name, by = command.name, command.by
            command = CreateNamespace(name, self.epoch, self._salt, self._token_key, by)
        outcome = spaces.decide(self._world, command, self.time_ms())
        for record in outcome.records:
            spaces.evolve(self._world, record, self._position)
            self._batch.entries.append(("", record))
            self._batch.weight += weight(record)
            self._position += span(record)
            if isinstance(record, NamespaceDeleted):
                self._clocks.pop(record.name, None)
            elif isinstance(record, AccountSet | AccountRevoked):
                self._note_account(record.name)
        return outcome.answer, outcome.deliveries

    def _check_room(self, namespace: str, command: Command | SpaceCommand) -> None:
        """Raises QuotaExceeded or Busy."""
        if isinstance(command, Send | Resubmit) and self._store.full:
            self.figures.crowded += 1
            self.figures.no_space += 1
            raise QuotaExceeded(command.queue, "disk space", 0, 0)
        level = self._memory.level
        if level < (REFUSE if type(command) is Send else OVERFLOW):
            return
        if self._needs_room(namespace, command):
            self.figures.crowded += 1
            raise Busy("its memory is used up; receive messages, or delete what is not needed")

    def _needs_room(self, namespace: str, command: Command | SpaceCommand) -> bool:
        """Not where it makes nothing new, so that messages can be received, and make room."""
        if isinstance(command, AcceptSession | UpdateQueue):
            state = self._world.states.get(namespace)
            queue = None if state is None else state.queues.get(command.queue)
            if queue is None:
                return False  # it is refused for that
            if isinstance(command, UpdateQueue):
                return _chars(command.properties) > _chars(queue.properties)
            return command.session is not None and command.session not in queue.groups
        if isinstance(command, Attach | Receive):
            return self._memory.has_many_receivers
        if isinstance(command, Abandon | Defer | DeadLetter):
            return bool(command.properties)
        if isinstance(command, SetSessionState):
            return command.state is not None
        return True

    def _copying(self) -> Copying:
        """How freely topics and queues that forward hand on: one send may become millions."""
        if self._store.full:
            return "none"
        return "free" if self._memory.level < REFUSE else "sparing"

    def _held_back(self, reply: Reply) -> Reply:
        """Slows a publisher down: it is told late that its messages are there."""
        slow_ms = _PRESSED_SLOW_MS if self._store.pressed else 0
        seconds = max(slow_ms, self._memory.slow_ms) / 1000

        def late(answer: Answer | Refused | StoreError) -> None:
            asyncio.get_running_loop().call_later(seconds, reply, answer)

        self.figures.slowed += 1
        return late

    def _do_what_is_due(self) -> bool:
        """A part of it, which does not take long. Returns whether there was something."""
        did, copying = False, self._copying()
        begun = time.perf_counter()
        states = self._world.states
        for name in [*states] if len(states) == 1 else self._in_turn():
            state = states[name]
            if state.copying != copying:
                self._evolve(state, decide(state, SetCopying(copying), self._now_ms(name)))
            due_ms = next_deadline_ms(state)
            if due_ms is not None and due_ms <= self._now_ms(name):
                outcome = decide(state, Tick(), self._now_ms(name))
                self._evolve(state, outcome)
                self._batch.deliveries.append(self._push_early(outcome.deliveries))
                self._note_fired(outcome)
                did = True
                if time.perf_counter() - begun > _SLICE_SECONDS:
                    self._last_ticked = name
                    break
        return did

    def _in_turn(self) -> list[str]:
        """The namespaces, beginning behind the one that used up the last slice."""
        names = [*self._world.states]
        if self._last_ticked not in self._world.states:
            return names
        at = names.index(self._last_ticked) + 1
        return names[at:] + names[:at]

    async def _run(self, *, idle: bool = False) -> None:
        whole = False
        try:
            if self._store.full:  # perhaps there is room again
                await self._store.sync()
            if idle:
                self._move_clocks_on()
            self._do_what_is_due()
            while self._batch and self._failure is None:
                await self._commit()
                # A stop does not wait for what is due: there may be no end of it.
                if not self._closing and self._do_what_is_due():
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

    async def _commit(self) -> None:
        """One frame, one sync, and then the answers."""
        now_ms = self.time_ms()  # may add to what was gathered
        batch = self._writing = self._batch
        self._batch = _Batch()
        bare = _bare(batch) if self._memory.aside else []
        readable = all(each.position < self._safe for each in bare)
        if batch.entries or batch.probe:
            self._append(batch, now_ms)
        if bare and readable:
            await asyncio.gather(self._sync(batch), self._fill_in(bare))
        else:
            await self._sync(batch)
            await self._fill_in(bare)
        if self._failure is not None:  # a bug, meanwhile; everybody has been told
            return
        self._writing = _Batch()
        for reply, answer in batch.answers:
            _call(reply, answer)
        if batch.deliveries:
            self._hand_over([each for some in batch.deliveries for each in some])
        if self._watchers:
            self._tell_watchers()
        self._memory.relieve(batch.messages, batch.bytes, batch.weight)
        while self._pending and not self._batch.is_full:
            principal, namespace, command, reply, size, name = self._pending.popleft()
            self._pending_bytes -= size
            self.shares.waits_no_more(name, size)
            self._decide(principal, namespace, command, reply)

    def _append(self, batch: _Batch, now_ms: int) -> None:
        """At once when the batch is closed: what comes now has positions behind it."""
        last = self._last
        frame = Frame(
            last.epoch, last.number + 1, last.end, self._position - last.end, self._store.durable,
            now_ms, payload.encode(batch.entries, self._compression),
        )  # fmt: skip
        self._store.append(frame)
        self._last = frame.without_payload()
        self.figures.frame_bytes.add(frame.size_bytes)
        counts = self.figures.records
        for _, record in batch.entries:
            counts[type(record)] += span(record)

    async def _sync(self, batch: _Batch) -> None:
        end = self._last.end
        if batch.entries or batch.probe:
            begun = time.perf_counter()
            await self._store.sync()
            self._synced = time.perf_counter()
            self.figures.sync_seconds.add(self._synced - begun)
            self._safe = end

    def _stop_for_a_bug(self) -> None:
        """It rises to the log. The state may be half changed, and nobody is to wait for ever."""
        self._fail(Lost("the engine has stopped; the log says why"))

    def _fail(self, error: StoreError) -> None:
        """Everybody who has no answer yet gets this one."""
        self._failure = error
        answers = [*self._writing.answers, *self._batch.answers]
        replies = [reply for reply, _ in answers]
        replies += [each.reply for each in self._pending]
        replies += [wait.reply for wait in self._waits.values()]
        self._writing, self._batch, self._waits = _Batch(), _Batch(), {}
        self._pending.clear()
        self._pending_bytes = 0
        for reply in replies:
            _call(reply, error)
        self._tell_watchers(all=True)
        self.failed.set()

    # Deliveries.

    async def _fill_in(self, bare: "list[_Bare]") -> None:
        """Reads back the bodies of messages that are delivered, and puts in copies with them."""
        if not bare:
            return
        bodies = await self._memory.fetch({each.position for each in bare})
        for items, at, position in bare:
            full = copy(items[at].message)
            full.body = bodies[position]
            items[at] = msgspec.structs.replace(items[at], message=full)

    def _push_early(self, deliveries: Sequence[Delivered]) -> list[Delivered]:
        """Pushes what may leave before the sync; returns the rest.

        Nothing overtakes: who is still owed something gets what is new behind that.
        """
        if self._is_all_for_one(deliveries):
            self._push(deliveries[0].receiver, deliveries)
            return []
        early: dict[int, list[Delivered]] = {}
        rest: list[Delivered] = []
        safe = 0 if self._pushing else self._safe
        receivers, owed = self._receivers, self._owed
        last, mine = -1, None  # the receiver of the one before, and what may leave to it
        for each in deliveries:
            if each.receiver != last:
                last = each.receiver
                is_free = last in receivers and last not in owed
                mine = early.setdefault(last, []) if is_free else None
            if mine is not None and _may_all_leave((each,), safe):
                mine.append(each)
            else:
                mine = None
                rest.append(each)
                owed[last] += 1
        for number, mine in early.items():
            if mine:
                self._push(number, mine)
        return rest

    def _is_all_for_one(self, deliveries: Sequence[Delivered]) -> bool:
        """As is most common, all of it goes to the same receiver, and may leave now."""
        receivers = {each.receiver for each in deliveries}
        if len(receivers) != 1 or self._pushing:
            return False
        [number] = receivers
        is_free = number in self._receivers and number not in self._owed
        return is_free and _may_all_leave(deliveries, self._safe)

    def _push(self, number: int, mine: Sequence[Delivered]) -> None:
        """What the callback asks for in turn is pushed later, not from within it."""
        deliver = self._receivers.get(number)
        if deliver is not None:  # else it was detached from within another's
            within, self._pushing = self._pushing, True
            _call(deliver, mine)
            self._pushing = within

    def _hand_over(self, deliveries: Sequence[Delivered]) -> None:
        """Of all that was decided together; who gets several gets them at once."""
        by_receiver: dict[int, list[Delivered]] = {}
        for each in deliveries:
            by_receiver.setdefault(each.receiver, []).append(each)
        for number, mine in by_receiver.items():
            self._owed[number] -= len(mine)
            if not self._owed[number]:
                del self._owed[number]
            if number in self._waits:
                wait = self._waits.pop(number)
                answer = _as_answer(mine, wait.command)
                _call(wait.reply, answer)
                if isinstance(answer, Granted):
                    assert isinstance(wait.command, AcceptSession)
                    self._note_session(wait.principal, wait.namespace, wait.command, answer.token)
                continue
            self._push(number, mine)
            if any(isinstance(n, Notice) and n.kind not in ("drained", "paused") for n in mine):
                self._receivers.pop(number, None)
            if number in self._leaving and number not in self._owed:
                self._leaving.remove(number)
                self._receivers.pop(number, None)

    # For who looks on.

    async def prove(self) -> None:
        """That something was synced within the last second; else an empty frame is.

        Raises StoreError or Busy.
        """
        if self._failure is not None:
            raise self._failure
        if time.perf_counter() - self._synced > PROOF_SECONDS:
            self._batch.probe = True
            await self.flush()

    async def beyond(self, position: int) -> None:
        """Until there is something behind a position, and it is durable."""
        if self._safe <= position + 1 and self._failure is None and not self._dismissed:
            waits = asyncio.get_running_loop().create_future()
            self._watchers.append((position, waits))
            try:
                await waits
            finally:
                self._watchers = [each for each in self._watchers if each[1] is not waits]

    def _tell_watchers(self, *, all: bool = False) -> None:
        for position, waits in self._watchers:
            if (all or self._safe > position + 1) and not waits.done():
                waits.set_result(None)

    # Time.

    def time_ms(self) -> int:
        """The time of the broker: not before what the journal has seen, wherever the clock is."""
        now_ms = self._clock.now_ms()
        if now_ms < self._last.time_ms:
            now_ms = self._last.time_ms
        if now_ms - self._seen_ms > STEP_MS:
            self._look_for_a_step(now_ms)
        self._seen_ms = now_ms
        return now_ms

    def ahead_ms(self) -> int:
        """How far the broker's time is before the machine's: that was set back, or was wrong once.

        Time never goes back by itself, so it stays so until the machine has caught up.
        """
        return max(0, self.time_ms() - self._clock.machine_ms())

    async def turn_back(self, *, scheduled: bool = False) -> int:
        """Brings the broker's time back to the machine's; by how many milliseconds.

        Before anybody else asks for anything. With `scheduled` messages that are scheduled are due
        that much earlier, too. Raises InvalidArgument where it is not ahead.
        """
        step_ms = self.ahead_ms()
        if step_ms <= STEP_MS:
            raise InvalidArgument("the clock", "is not ahead of the machine's, so it stays")
        now_ms = self._clock.machine_ms()
        for state in self._world.states.values():
            self._evolve(state, decide(state, TurnClockBack(step_ms, scheduled), now_ms))
        self._last = msgspec.structs.replace(self._last, time_ms=now_ms)
        self._seen_ms = now_ms
        await self.flush()
        return step_ms

    def _look_for_a_step(self, now_ms: int) -> None:
        """Much time has passed, or the clock has jumped; by a jump nobody loses a lock."""
        step_ms = self._clock.take_step_ms()
        for name, state in self._world.states.items():
            clock = self._clocks.get(name)
            if step_ms and (clock is None or clock.runs):
                self._evolve(state, decide(state, StepClock(step_ms), now_ms))

    def _now_ms(self, namespace: str) -> int:
        clock = self._clocks.get(namespace)
        return self.time_ms() if clock is None else clock.now_ms()

    def clock_ms(self, namespace: str) -> int:
        """What time it is in a namespace; where there is none, for the broker."""
        return self._now_ms(namespace)

    def own_clock(self, namespace: str) -> VirtualClock | None:
        """The clock of a namespace that has one of its own."""
        return self._clocks.get(namespace)

    def clock(self, namespace: str) -> VirtualClock:
        """A clock of the namespace's own, to freeze, resume, or let move on by itself.

        From the first time this is asked; until it is moved it goes as the broker's does. Raises
        NotFound.
        """
        if namespace not in self._world.states:
            raise NotFound("namespace", namespace)
        clock = self._clocks.get(namespace)
        if clock is None:
            clock = self._clocks[namespace] = VirtualClock(self.time_ms(), self._clock)
        # What is due by it is looked at when whoever asks has touched it.
        asyncio.get_running_loop().call_soon(self._wake)
        return clock

    async def set_time(self, namespace: str, moment_ms: int) -> list[Fired]:
        """Moves a namespace's own clock to a moment; see `advance`."""
        return await self._move_clock(namespace, lambda _: moment_ms)

    async def advance(self, ms: int, namespace: str | None = None) -> list[Fired]:
        """Moves the namespace's own clock, or the broker's where that is a virtual one.

        Returns when everything that falls due meanwhile has been done, with what that was. Raises
        Refused.
        """
        return await self._move_clock(namespace, lambda now_ms: now_ms + ms)

    async def _move_clock(self, namespace: str | None, end_of: Callable[[int], int]) -> list[Fired]:
        async with self._moving:
            clock = self._clock if namespace is None else self.clock(namespace)
            if not isinstance(clock, VirtualClock):
                raise InvalidArgument("namespace", "must be named: the broker's clock is real")
            now_ms = clock.now_ms()
            end_ms = end_of(now_ms)
            if not now_ms <= end_ms <= LAST_MS - DURATION_MS_MAX:
                most = LAST_MS - DURATION_MS_MAX
                raise InvalidArgument("time", f"must not go back, nor lead beyond {most}")
            fired = self._fired = Counter()
            try:
                while (due_ms := self._next_due_ms(namespace)) is not None and due_ms <= end_ms:
                    clock.move_to(due_ms)
                    await self.flush()
                    if namespace is not None and self._clocks.get(namespace) is not clock:
                        raise NotFound("namespace", namespace)  # it was deleted meanwhile
                clock.move_to(end_ms)
                await self._note_clock(namespace, clock)
                await self.flush()
            finally:
                self._fired = None
        return [Fired(kind, queue, count) for (kind, queue), count in sorted(fired.items())]

    async def flush(self) -> None:
        """Until what was decided, and what is due, is durable and everybody has been told."""
        await self.ask(BROKER, "", ListNamespaces(limit=1))

    async def _note_clock(self, namespace: str | None, clock: VirtualClock) -> None:
        """So that a start knows where a namespace's own clock was."""
        if namespace is not None:
            await self.ask(BROKER, namespace, SetClock(clock.now_ms(), self.time_ms()))

    def _note_fired(self, outcome: Outcome) -> None:
        if self._fired is not None:
            for record in outcome.records:
                if is_kept(record):
                    queue = getattr(record, "queue", "")
                    self._fired[type(record).__name__, queue] += span(record)

    def _next_due_ms(self, namespace: str | None = None) -> int | None:
        """In that namespace, or in those that go by the broker's clock."""
        due = [
            next_deadline_ms(state)
            for name, state in self._world.states.items()
            if (name == namespace if namespace is not None else name not in self._clocks)
        ]
        return min((each for each in due if each is not None), default=None)

    def _wake(self, *, idle: bool = False) -> None:
        self._timer = None
        if self._work is None and self._failure is None and not self._closing:
            self._work = asyncio.get_running_loop().create_task(self._run(idle=idle))

    def _move_clocks_on(self) -> None:
        """Nothing has happened since the timer was set, so clocks may move by themselves."""
        for name, clock in self._clocks.items():
            state = self._world.states.get(name)
            due_ms = None if state is None or not clock.auto else next_deadline_ms(state)
            if state is None or due_ms is None or due_ms > LAST_MS - DURATION_MS_MAX:
                continue
            if due_ms > clock.now_ms():
                clock.move_to(due_ms)
                command = SetClock(clock.now_ms(), self.time_ms())
                self._evolve(state, decide(state, command, clock.now_ms()))

    def _arm(self) -> None:
        """Wakes exactly when the core says that something is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._failure is not None or self._closing:
            return
        waits = [self._seconds_until_due(state) for state in self._world.states.values()]
        waits.append(_FULL_RETRY_SECONDS if self._store.full else None)
        seconds = min((each for each in waits if each is not None), default=None)
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, partial(self._wake, idle=True))

    def _seconds_until_due(self, state: State) -> float | None:
        due_ms = next_deadline_ms(state)
        clock = self._clocks.get(state.name, self._clock)
        return None if due_ms is None else clock.seconds_until(due_ms)


def _compile_rules(world: Namespaces) -> None:
    """Not with the first send. If there are very many, the rest is compiled as it is used."""
    begun = time.perf_counter()
    for state in world.states.values():
        for queue in state.queues.values():
            if queue.topic is not None:
                compile_some(queue)
                if time.perf_counter() - begun > _COMPILE_SECONDS:
                    return


class _Bare(NamedTuple):
    """A message that is delivered and has no body in memory."""

    items: _Items
    at: int
    position: int  # of its content when the batch was closed; it may be moved meanwhile


def _bare(batch: _Batch) -> list[_Bare]:
    return [
        _Bare(items, at, item.message.position)
        for items in _delivered(batch)
        for at, item in enumerate(items)
        if type(item) in _HOLDS and type(item.message.body) is int
    ]


def _delivered(batch: _Batch) -> Iterator[_Items]:
    """Everything in a batch that holds messages for somebody."""
    for _, answer in batch.answers:
        if isinstance(answer, Received):
            yield answer.deliveries
        elif isinstance(answer, Peeked):
            yield answer.messages
    yield from batch.deliveries


def _as_answer(
    deliveries: Sequence[Delivered], command: Receive | AcceptSession | Send
) -> Answer | Refused:
    """What one who asked once and waited is told."""
    first = deliveries[0]
    if isinstance(first, Admitted):
        return first.enqueued
    if isinstance(first, Granted):
        return first
    if isinstance(first, Notice):
        if first.kind == "deleted":
            return NotFound("queue", command.queue)
        if first.kind == "session-lost" and isinstance(command, Receive):
            return SessionLockLost(command.queue, command.session)
        return _nothing_for(command)
    return Received([each for each in deliveries if isinstance(each, Delivery)])


def _nothing_for(command: Receive | AcceptSession | Send) -> Answer | Refused:
    """What is answered where nothing has come."""
    if isinstance(command, Send):
        return QuotaExceeded(command.queue, "room", 0, 0)
    return Received([]) if isinstance(command, Receive) else None


def _note_change(principal: Principal, namespace: str, command: Command | SpaceCommand) -> None:
    """For the record: who has changed what is not a message."""
    _audit.info(
        "%s: %s %s/%s", principal.name, type(command).__name__, namespace, _subject(command),
        extra=_said(principal.name, namespace, command, "access.changed"),
    )  # fmt: skip


def _note_refusal(refused: Unauthorized, command: Command | SpaceCommand) -> None:
    _audit.warning(
        "%s was refused: %s %s/%s", refused.principal, type(command).__name__, refused.namespace,
        _subject(command),
        extra=_said(refused.principal, refused.namespace, command, "access.refused"),
    )  # fmt: skip


def _said(
    principal: str, namespace: str, command: Command | SpaceCommand, event: str
) -> dict[str, str]:
    return {
        "event": event,
        "principal": principal,
        "namespace": namespace,
        "command": type(command).__name__,
        "subject": _subject(command),
    }


def _chars(properties: QueueProperties) -> int:
    """How many characters of metadata and extras a queue has."""
    extras = properties.extras.items()
    return len(properties.metadata) + sum(len(name) + len(text) for name, text in extras)


def _subject(command: Command | SpaceCommand) -> str:
    return str(getattr(command, "queue", None) or getattr(command, "name", ""))


def _call(callback: Callable[[Any], None], what: object) -> None:
    """Tells somebody something. It is his own affair what comes of it."""
    try:
        callback(what)
    except asyncio.InvalidStateError:  # who asked does not wait any more
        pass
    except Exception:  # noqa: BLE001 (a connection's code must not stop the others' broker)
        _log.exception("somebody who was told an answer has failed")


def _may_all_leave(deliveries: Sequence[Delivered], safe: int) -> bool:
    """Before the sync: what is durable below that position, is locked, and has its body."""
    given = [each for each in deliveries if type(each) is Delivery and each.token]
    messages = [each.message for each in given]
    positions = [each.position for each in messages]
    return len(given) == len(deliveries) and (
        not given
        or (
            min(positions) > 0
            and max(positions) < safe
            and {type(each.body) for each in messages} == {bytes}
        )
    )


def _ignore(_: object) -> None:
    """Nobody waits for this answer."""
