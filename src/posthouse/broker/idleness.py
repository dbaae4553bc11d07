"""Idleness: whether clients of a namespace have work, for `auto` clocks and for waits for quiet.

A lock is work for as long as its receiver is there. A receiver that stays attached is there until
it detaches. A client that asked once, as over HTTP, may still settle, so it is taken to be there.

Only namespaces with a clock of their own are watched in this way.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec

from posthouse.broker.rows import kind_of
from posthouse.core import next_deadline_ms
from posthouse.core.commands import Delivery
from posthouse.core.model import Lock, State
from posthouse.core.plan import Delivered, Outcome
from posthouse.core.records import is_kept, span

QUIET_SECONDS = 0.02  # how long nothing must come before a clock moves by itself
_KEPT_MIN = 1_000  # locks that are noted before it is looked which of them are over

Happened = Counter[tuple[str, str]]  # events, by their words in the feed and their queues
What = Literal["locked", "due", "blocked", "transaction", "clock", "command", "steps"]


class Unfinished(msgspec.Struct, frozen=True):
    """One thing that is still to be done. A field that does not apply is empty or 0."""

    what: What
    queue: str = ""
    sequence: int = 0
    client: str = ""  # that holds the lock, where it is known
    seconds: float = 0.0  # for which it has been locked

    def __str__(self) -> str:
        match self.what:
            case "locked":
                by = f" by {self.client}" if self.client else ""
                return f"{self.queue} {self.sequence}: locked{by} for {self.seconds:.1f} s"
            case "due":
                return "something is due, and is being done"
            case "blocked":
                return f"{self.queue}: a send waits for room"
            case "transaction":
                return "a transaction is open"
            case "clock":
                return "the clock is about to move by itself"
            case "command":
                return "commands still come"
            case "steps":
                return "more is due than could be done in time, so the clock was not moved as far"


class Holder(NamedTuple):
    """The client that was given a lock."""

    receiver: int
    client: str
    stays: bool  # it is pushed messages while it is attached; else it asked once
    since: float  # on the event loop's clock


class Activity:
    """What clients of one namespace did last, which locks they hold, and what has happened."""

    def __init__(self) -> None:
        self.last = 0.0  # when a command or a delivery last came, on the event loop's clock
        self._holders: dict[int, Holder] = {}  # by the tokens of locks
        self._most = _KEPT_MIN
        self._counters: list[Happened] = []

    def note(self, outcome: Outcome) -> None:
        """Counts what has happened, by kind and queue, for those who count."""
        for counter in self._counters:
            for record in outcome.records:
                if is_kept(record):
                    counter[kind_of(record), getattr(record, "queue", "")] += span(record)

    def note_command(self) -> None:
        self.last = asyncio.get_running_loop().time()

    def note_given(self, state: State, given: Delivered, asking: str | None) -> None:
        """Notes who holds a message; `asking` is the name of a client that asked once."""
        self.note_command()  # it may do something now, so there is no quiet
        if not isinstance(given, Delivery) or not given.token:
            return
        if len(self._holders) > self._most:  # those of locks that are over are forgotten
            self._holders = {t: each for t, each in self._holders.items() if t in state.locks}
            self._most = 2 * len(self._holders) + _KEPT_MIN
        number, receiver = given.receiver, state.receivers.get(given.receiver)
        client = "" if receiver is None else receiver.client
        if asking is not None:
            client = f"{asking}#{number}"
        self._holders[given.token] = Holder(number, client, asking is None, self.last)

    def holder(self, token: int) -> Holder | None:
        return self._holders.get(token)

    def is_held(self, state: State, token: int) -> bool:
        """Whether the receiver that was given a lock may still settle it."""
        holder = self._holders.get(token)
        return holder is None or not holder.stays or holder.receiver in state.receivers

    def count(self) -> Happened:
        """Counts what happens from now on, by kind and queue, until `stop_counting`."""
        counter: Happened = Counter()
        self._counters.append(counter)
        return counter

    def stop_counting(self, counter: Happened) -> None:
        self._counters = [each for each in self._counters if each is not counter]


def unfinished(
    state: State, activity: Activity, now_ms: int, *, locks: bool = True
) -> Iterator[Unfinished]:
    """Everything that keeps a namespace from being quiet; with `locks` those that are held, too."""
    due_ms = next_deadline_ms(state)
    if due_ms is not None and due_ms <= now_ms:
        yield Unfinished("due")
    for blocked in state.blocked.values():
        yield Unfinished("blocked", blocked.queue)
    for _ in state.transactions:
        yield Unfinished("transaction")
    if locks:
        for token, lock in state.locks.items():
            if activity.is_held(state, token):
                yield _held(lock, activity.holder(token), now_ms)


def _held(lock: Lock, holder: Holder | None, now_ms: int) -> Unfinished:
    if holder is None:
        client, seconds = "", (now_ms - (lock.since_ms or now_ms)) / 1_000
    else:
        client, seconds = holder.client, asyncio.get_running_loop().time() - holder.since
    return Unfinished("locked", lock.queue.name, lock.message.sequence, client, seconds)


def next_step_ms(state: State) -> int | None:
    """The next moment at which something happens to a message, a lock, a session or a schedule."""
    ends = (state.lock_timers.first, state.session_timers.first)
    return _earliest((*ends, *_message_deadlines(state)))


def next_skip_ms(
    state: State, activity: Activity, now_ms: int, *, locks: bool = False
) -> int | None:
    """The moment that a clock may move to; None while a client has work, or nothing is due.

    With `locks` those of receivers that are there run out, too, and so do sessions.
    """
    due_ms = next_deadline_ms(state)
    if due_ms is None or due_ms <= now_ms or state.transactions:
        return None
    if locks:
        return next_step_ms(state)
    if any(activity.is_held(state, token) for token in state.locks):
        return None
    return _earliest((*map(_until_ms, state.locks.values()), *_message_deadlines(state)))


def _message_deadlines(state: State) -> Iterator[int | None]:
    """The timers of messages, schedules, jobs and idle queues: what a test waits for."""
    timed = (state.due_timers, state.expiry_timers, state.schedule_timers, state.job_timers)
    for timers in timed:
        yield timers.first
    if state.idle_timers.first is not None:  # of one that is in use, the time begins again
        for moment_ms, number in state.idle_timers.items():
            if not any(part.is_in_use for part in state.numbered[number].parts()):
                yield moment_ms
                break


def _until_ms(lock: Lock) -> int:
    return lock.until_ms if lock.session is None else lock.session.until_ms


def _earliest(moments: Iterable[int | None]) -> int | None:
    return min((moment for moment in moments if moment is not None), default=None)
