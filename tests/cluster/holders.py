"""Whether two receivers hold a message at a time, told by what they hear of several leaders.

A lock is **vouched for** when something that was asked after it had come, over the same link, was
done: then the leader that gave it still led, and the lock is in the journal. It is held until the
end it was given, or until its holder says that it settles, whoever leads meanwhile. A lock that
nothing vouches for may be of a leader that was deposed: the journal may never have had it.

While a lock is held that is vouched for, the message is locked for nobody else. A deposed leader
may do so for half a second after its last confirmed write, which was before the new leader began.
So a lock that is given up to half a second after one that is held may be its.

Moments of locks are by the leaders' clocks, which are all of one machine here; those of a client
are of that machine, too.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass

from tests.crash.history import FOR_EVER_MS, Broken

DEPOSED_MS = 500  # for which a leader delivers that was deposed and does not know it
MARGIN_MS = 250  # by which clocks of leaders differ that follow each other


@dataclass(eq=False, slots=True)
class _Hold:
    message: str
    link: str
    locked_ms: int
    until_ms: int
    came: int  # the number of the word that told of it
    ends_ms: int = FOR_EVER_MS  # when its holder said that it settles
    is_vouched: bool = False

    def is_held_at(self, ms: int) -> bool:
        return ms < min(self.until_ms, self.ends_ms) - MARGIN_MS


class Holders:
    """What receivers hear of locks, in the order in which each link hears it. Raises Broken."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._number = 0
        self._by_token: dict[str, _Hold] = {}
        self._by_message: defaultdict[str, list[_Hold]] = defaultdict(list)
        self._waiting: defaultdict[str, list[_Hold]] = defaultdict(list)  # by link: not vouched for

    def delivered(self, message: str, token: str, link: str, locked_ms: int, until_ms: int) -> None:
        self._number += 1
        new = _Hold(message, link, locked_ms, until_ms, self._number)
        for held in self._by_message[message]:
            self._check(held, new)
        self._by_token[token] = new
        self._by_message[message].append(new)
        self._waiting[link].append(new)

    def settling(self, token: str, now_ms: int) -> int:
        """Returns the number by which its answer is told."""
        self._number += 1
        hold = self._by_token[token]
        hold.ends_ms = min(hold.ends_ms, now_ms)
        return self._number

    def done(self, asked: int, link: str) -> None:
        """Something was done that was asked over a link, and over that alone."""
        waiting = self._waiting[link]
        vouched = [hold for hold in waiting if hold.came < asked]
        waiting[:] = [hold for hold in waiting if hold.came >= asked]
        for hold in vouched:
            hold.is_vouched = True
            self.counts["lock vouched for"] += 1
            for other in self._by_message.get(hold.message, ()):
                self._check(hold, other)

    def refused(self, token: str) -> None:
        """The lock is lost, says the only answer there was to the settling of it."""
        hold = self._by_token[token]
        left_ms = hold.until_ms - hold.ends_ms
        if hold.is_vouched and left_ms > MARGIN_MS:
            raise Broken(f"held for {left_ms} ms more, and lost: {hold.message}")

    def gone(self, message: str) -> None:
        """It was completed: nothing more is to be heard of it."""
        self._by_message.pop(message, None)

    def _check(self, held: _Hold, other: _Hold) -> None:
        after_ms = other.locked_ms - held.locked_ms
        if not held.is_vouched or after_ms <= DEPOSED_MS + MARGIN_MS:
            return
        if held.is_held_at(other.locked_ms):
            raise Broken(
                f"held over {held.link} since {after_ms} ms, and given to another over"
                f" {other.link}: {held.message}"
            )
