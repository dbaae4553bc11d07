"""Rate limits: how much a principal, an address or an entity may ask for in a second.

A bucket holds as many tokens as may be used in a second, or in a burst, and fills at its rate. What
is asked for takes one, a send one for each message; where there are none left it is refused, with
how long to wait. A send of many may leave a bucket in debt, and then it is the next that waits.
What ends something, such as settling, is never held up.
"""

import time
from collections.abc import Callable

from posthouse.broker.access import BROKER, Principal
from posthouse.core.commands import (
    AcceptSession,
    Attach,
    Begin,
    Cancel,
    Command,
    Peek,
    Receive,
    ReceiveDeferred,
    Send,
    Work,
)
from posthouse.core.errors import Throttled
from posthouse.core.model import entity_of
from posthouse.core.namespaces import SpaceCommand

BUCKETS_MAX = 10_000  # then those that are full are forgotten
_NEARLY = 1e-6  # seconds are not exact
_COSTS = frozenset((
    Send, Cancel, Receive, ReceiveDeferred, Peek, AcceptSession, Attach, Begin,
))  # fmt: skip


class Buckets:
    """One for each name."""

    def __init__(
        self, rate: int, now: Callable[[], float] = time.monotonic, burst: int = 0
    ) -> None:
        self._rate = rate  # tokens a second; 0: no limit
        self._burst = burst or rate  # what a full one holds
        self._now = now
        self._levels: dict[str, tuple[float, float]] = {}  # tokens, and when that was
        self._forget_after = 0.0

    def check(self, name: str) -> None:
        """Raises Throttled where there is none left."""
        if self._rate:
            level, _ = self._level(name)
            if level < 1 - _NEARLY:
                raise Throttled(int((1 - level) / self._rate * 1_000) + 1)

    def take(self, name: str, cost: int) -> None:
        if self._rate:
            level, now = self._level(name)
            many = len(self._levels) >= BUCKETS_MAX and name not in self._levels
            if many and now >= self._forget_after:
                self._forget(now)  # not again for each new one: it takes the longer, the more
                self._forget_after = now + len(self._levels) / BUCKETS_MAX
            self._levels[name] = (level - cost, now)

    def _level(self, name: str) -> tuple[float, float]:
        now = self._now()
        level, then = self._levels.get(name, (float(self._burst), now))
        return min(self._burst, level + (now - then) * self._rate), now

    def _forget(self, now: float) -> None:
        rate = self._rate
        self._levels = {
            name: (level, then)
            for name, (level, then) in self._levels.items()
            if level + (now - then) * rate < self._burst
        }


class Throttle:
    """The limits of one broker."""

    def __init__(
        self,
        principal: int = 0,
        address: int = 0,
        entity: int = 0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._principals = Buckets(principal, now)
        self._addresses = Buckets(address, now)
        self._entities = Buckets(entity, now)
        self.is_on = bool(principal or address or entity)

    def check(self, principal: Principal, namespace: str, command: Command | SpaceCommand) -> None:
        """Raises Throttled."""
        cost = cost_of(command)
        if not cost or principal is BROKER:
            return
        asked = command.command if isinstance(command, Work) else command
        queue = getattr(asked, "queue", None)
        entity = "" if queue is None else f"{namespace}/{entity_of(queue)}"
        if entity:
            self._entities.check(entity)
        self._principals.check(principal.name)
        self._principals.take(principal.name, cost)
        if entity:
            self._entities.take(entity, cost)

    def check_address(self, address: str, cost: int = 1) -> None:
        """Raises Throttled."""
        if cost:
            self._addresses.check(address)
            self._addresses.take(address, cost)

    def charge_address(self, address: str, cost: int) -> None:
        """For what turns out to be in a request that was let through."""
        self._addresses.take(address, cost)


def cost_of(command: Command | SpaceCommand) -> int:
    """How many tokens it takes; 0: it is not limited."""
    if isinstance(command, Work):
        command = command.command
    if isinstance(command, Send):
        return len(command.messages)
    return 1 if type(command) in _COSTS or command.right == "manage" else 0
