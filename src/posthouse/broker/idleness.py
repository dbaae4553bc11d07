"""Who in a namespace has work: for clocks that move by themselves, and for who waits for quiet.

A lock is work for as long as its receiver is there. One that stays attached is there until it
detaches. Of one who asked once, as over HTTP, nobody knows, so it is taken to be there.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from posthouse.core import next_deadline_ms
from posthouse.core.commands import Delivery
from posthouse.core.model import Lock, State
from posthouse.core.plan import Delivered

QUIET_SECONDS = 0.02  # how long no command must come before a clock moves by itself
_KEPT_MIN = 1_000  # locks that are noted before it is looked which of them are over

What = Literal["locked", "due", "blocked", "transaction", "clock"]


class Work(msgspec.Struct, frozen=True):
    """Something that somebody still has to do; what is not known is empty or 0."""

    what: What
    queue: str = ""
    sequence: int = 0
    for_ms: int = 0  # since when, by the namespace's clock

    def __str__(self) -> str:
        seconds = f"{self.for_ms / 1_000:.1f} s"
        match self.what:
            case "locked":
                return f"{self.queue} {self.sequence}: locked for {seconds}"
            case "due":
                return "something is due, and is being done"
            case "blocked":
                return f"{self.queue}: a send waits for room"
            case "transaction":
                return "a transaction is open"
            case "clock":
                return "the clock is about to move by itself"


class Holders:
    """Which locks are held by receivers that stay attached, where namespaces have own clocks."""

    def __init__(self) -> None:
        self._by_token: dict[int, int] = {}
        self._most = _KEPT_MIN

    def note(self, deliveries: Sequence[Delivered], stays: Callable[[int], bool]) -> None:
        for delivery in deliveries:
            if isinstance(delivery, Delivery) and delivery.token and stays(delivery.receiver):
                self._by_token[delivery.token] = delivery.receiver

    def forget_settled(self, states: Iterable[State]) -> None:
        """Where many are noted: those of locks that are over."""
        if len(self._by_token) > self._most:
            held = {token for state in states for token in state.locks}
            self._by_token = {t: each for t, each in self._by_token.items() if t in held}
            self._most = 2 * len(self._by_token) + _KEPT_MIN

    def is_there(self, state: State, token: int) -> bool:
        """Whether the receiver that holds a lock may still settle it."""
        receiver = self._by_token.get(token)
        return receiver is None or receiver in state.receivers


def work(state: State, holders: Holders, now_ms: int, *, locks: bool = True) -> Iterator[Work]:
    """Everything that keeps a namespace from being quiet. With `locks` those that are held, too."""
    due_ms = next_deadline_ms(state)
    if due_ms is not None and due_ms <= now_ms:
        yield Work("due")
    for blocked in state.blocked.values():
        yield Work("blocked", blocked.queue)
    for _ in state.transactions:
        yield Work("transaction")
    if locks:
        for token, lock in state.locks.items():
            if holders.is_there(state, token):
                since_ms = lock.since_ms or now_ms
                yield Work("locked", lock.queue.name, lock.message.sequence, now_ms - since_ms)


def next_timer_ms(state: State, now_ms: int) -> int | None:
    """When something is next due but for the waits of receivers and senders."""
    due_ms = next_deadline_ms(state)
    if due_ms is None or due_ms <= now_ms:
        return due_ms
    timers = (state.lock_timers, state.session_timers, state.forget_timers)
    firsts = (*(each.first for each in timers), state.transaction_timers.first)
    return _earliest((*firsts, *_of_messages(state)))


def next_skip_ms(state: State, holders: Holders, now_ms: int, *, locks: bool = False) -> int | None:
    """Where a clock may move to by itself; None while somebody has work, or nothing is to come.

    With `locks` those of receivers that are there run out, too, and so do sessions.
    """
    due_ms = next_deadline_ms(state)
    if due_ms is None or due_ms <= now_ms or state.transactions:
        return None
    if locks:
        ends = (state.lock_timers.first, state.session_timers.first)
        return _earliest((*ends, *_of_messages(state)))
    if any(holders.is_there(state, token) for token in state.locks):
        return None
    return _earliest((*map(_until_ms, state.locks.values()), *_of_messages(state)))


def _of_messages(state: State) -> Iterator[int | None]:
    """The timers of messages, schedules and idle queues: what a test waits for."""
    for timers in (state.due_timers, state.expiry_timers, state.schedule_timers, state.idle_timers):
        yield timers.first


def _until_ms(lock: Lock) -> int:
    return lock.until_ms if lock.session is None else lock.session.until_ms


def _earliest(moments: Iterable[int | None]) -> int | None:
    return min((moment for moment in moments if moment is not None), default=None)
