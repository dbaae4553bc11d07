"""Rate limits: how much a principal, an address or an entity may ask for in a second.

A bucket holds as many tokens as may be used in a second, or in a burst, and fills at its rate. What
is asked for takes one, a send one for each message; where there are none left it is refused, with
how long to wait. A send of many may leave a bucket in debt, and then it is the next that waits.
What ends something, such as settling, is never held up.

Credentials that are not valid are counted by the address they come from. Where there are too many
in a minute, none are looked at until it is over: they are answered as if they were not valid.
"""

import ipaddress
import logging
import time
from collections.abc import Callable
from functools import lru_cache
from types import TracebackType

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
from posthouse.core.errors import Throttled, Unauthenticated
from posthouse.core.model import entity_of
from posthouse.core.namespaces import SpaceCommand

_audit = logging.getLogger("posthouse.audit")

BUCKETS_MAX = 10_000  # then those that are full are forgotten
FAILURE_SECONDS = 60.0  # over which credentials that are not valid are counted
SOURCES_MAX = 10_000  # addresses that are counted; then the oldest is forgotten
_NEARLY = 1e-6  # seconds are not exact
_COSTS = frozenset((
    Send, Cancel, Receive, ReceiveDeferred, Peek, AcceptSession, Attach, Begin,
))  # fmt: skip


class Buckets:
    """Token buckets, one for each name."""

    def __init__(
        self, rate: int, now: Callable[[], float] = time.monotonic, burst: int = 0
    ) -> None:
        self._rate = rate  # tokens a second; 0: no limit
        self._burst = burst or rate  # tokens in a full bucket
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


class Failures:
    """Credentials that were not valid, by the addresses they came from."""

    def __init__(self, most: int = 0, now: Callable[[], float] = time.monotonic) -> None:
        self._most = most  # in a minute; 0: any number
        self._now = now
        self._counts: dict[str, tuple[int, float]] = {}  # and until when that is counted
        self.failed, self.lockouts, self.unseen = 0, 0, 0  # for metrics

    def login(self, address: str) -> "Login":
        """Begins the login of one connection, with all the credentials that it will try."""
        return Login(self, address)

    def is_locked(self, address: str) -> bool:
        if not self._most:
            return False
        count, until = self._counts.get(source_of(address), (0, 0.0))
        return count >= self._most and self._now() < until

    def add(self, address: str) -> None:
        """Counts credentials that were checked and are not valid."""
        self.failed += 1
        note_unknown(address)
        if not self._most:
            return
        source, now = source_of(address), self._now()
        count, until = self._counts.pop(source, (0, 0.0))
        if now >= until:
            count, until = 0, now + FAILURE_SECONDS
        if len(self._counts) >= SOURCES_MAX:
            del self._counts[next(iter(self._counts))]
        self._counts[source] = (count + 1, until)  # as the youngest
        if count + 1 == self._most:
            self.lockouts += 1
            _audit.warning(
                "%s came with credentials that are not valid %d times within a minute; what comes"
                " from there is not looked at for %d s.", source, self._most, int(until - now) + 1,
                extra={"event": "access.locked-out", "address": source},
            )  # fmt: skip


class Login:
    """The credentials of one connection; `with` it they are looked at. Raises Unauthenticated.

    Somebody who has come with valid ones, and no others, is not locked out for what others do who
    have the same address.
    """

    __slots__ = ("_address", "_failures", "_has_failed", "_is_known")

    def __init__(self, failures: Failures, address: str) -> None:
        self._failures = failures
        self._address = address
        self._is_known = self._has_failed = False

    @property
    def is_locked(self) -> bool:
        is_exempt = self._is_known and not self._has_failed
        return not is_exempt and self._failures.is_locked(self._address)

    def __enter__(self) -> None:
        if self.is_locked:
            self._failures.unseen += 1
            raise Unauthenticated

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if kind is None:
            self._is_known = True
        elif issubclass(kind, Unauthenticated):
            self._has_failed = True
            self._failures.add(self._address)


@lru_cache(1_000)
def source_of(address: str) -> str:
    """The source that an address counts for: itself, or in IPv6 its /64 network."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((found, 64), strict=False)) if found.is_global else address


def note_unknown(address: str) -> None:
    """Logs that somebody came without credentials, or with invalid ones."""
    _audit.warning(
        "Somebody at %s came without valid credentials.", address,
        extra={"event": "access.unknown", "address": address},
    )  # fmt: skip


class Throttle:
    """The limits of one broker."""

    def __init__(
        self,
        principal: int = 0,
        address: int = 0,
        entity: int = 0,
        now: Callable[[], float] = time.monotonic,
        failures: int = 0,
    ) -> None:
        self.failures = Failures(failures, now)
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
        """Charges an address for the content of a request that was let through."""
        self._addresses.take(address, cost)


def cost_of(command: Command | SpaceCommand) -> int:
    """The tokens that a command takes; 0: it is not limited."""
    if isinstance(command, Work):
        command = command.command
    if isinstance(command, Send):
        return len(command.messages)
    return 1 if type(command) in _COSTS or command.right == "manage" else 0
