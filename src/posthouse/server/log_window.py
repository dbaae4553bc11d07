"""Keeping a cluster's log small: purging what the nodes have on their own disks.

The log is a window of the journal: frames that are on enough disks need not be in it any more. It
is purged up to a mark or a fence, from which reading can begin, and which lies before what every
known node has synced. A node that comes back behind that copies the folder of another.

    the log is used to       who keeps it from being purged
    less than 80 %           every node that was heard of in the last day
    80 % and more            every node that is there
    90 % and more            this node and one other; sends are refused until it has helped

So what is purged is always on two disks, where the cluster has had two nodes; one that is alone
purges when its log is 80 % full.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from posthouse.broker.standby import ALIVE_SECONDS, Standby
from posthouse.store.log import Unanswered
from posthouse.store.replicated import FULL_SHARE, PRESSED_SHARE

_log = logging.getLogger(__name__)

FORGOTTEN_SECONDS = 24 * 3_600.0  # of silence, after which a node holds nothing
PURGE_SECONDS = 30.0  # between two purges while there is room
MEASURE_SECONDS = 5.0
LOOK_SECONDS = 0.25  # between two looks at how full it is
FULL_TELL_SECONDS = 60.0  # between lines about a full log


class WindowedStore(Protocol):
    """A store on a log of which only a window is kept."""

    @property
    def log_share(self) -> float: ...

    @property
    def number(self) -> int: ...

    @property
    def synced(self) -> int: ...

    async def purge(self, number: int) -> None: ...

    async def measure_log(self) -> None: ...


class Holder(NamedTuple):
    """Another node, as far as it matters to a purge."""

    node: str
    silent_seconds: float  # since its last hello
    synced: int  # the number of the last frame that its disk has


def purge_limit(own: int, others: Sequence[Holder], share: float) -> int:
    """The number of the last frame that the log need not hold, where `own` is synced here."""
    if not others:
        return own if share >= PRESSED_SHARE else 0
    patience = FORGOTTEN_SECONDS if share < PRESSED_SHARE else ALIVE_SECONDS
    second = max(other.synced for other in others)
    held = [other.synced for other in others if other.silent_seconds < patience]
    if share >= FULL_SHARE:
        held = []
    return min(own, second, *held)


class LogWindow:
    """`leads`: whether this node does. One that tries to may purge, too, where it finds no room."""

    def __init__(self, store: WindowedStore, standby: Standby, leads: Callable[[], bool]) -> None:
        self._store = store
        self._standby = standby
        self._leads = leads
        self._is_told = False  # that it is full

    async def run(self) -> None:
        """Purges in time, until it is cancelled."""
        loop = asyncio.get_running_loop()
        purged = measured = told = loop.time()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now, share = loop.time(), self._store.log_share
            if not self._leads() and share < 1:
                continue
            seconds = PURGE_SECONDS if share < PRESSED_SHARE else 4 * LOOK_SECONDS
            try:
                if now - measured >= MEASURE_SECONDS:
                    measured = now
                    await self._store.measure_log()
                if now - purged >= seconds:
                    purged = now
                    await self._purge(now)
            except Unanswered as error:
                _log.warning("The log was not purged: %s", error, extra={"event": "cluster.purge"})
            if self._store.log_share < FULL_SHARE:
                self._tell_room()
            elif not self._is_told or now - told >= FULL_TELL_SECONDS:
                told = now
                self._tell_full(now)

    async def _purge(self, now: float) -> None:
        """Raises Unanswered."""
        limit = purge_limit(self._store.synced, self._holders(now), self._store.log_share)
        if limit:
            await self._store.purge(limit)

    def _holders(self, now: float) -> list[Holder]:
        return [Holder(hello.node, now - at, hello.synced) for at, hello in self._standby.heard()]

    def _tell_full(self, now: float) -> None:
        self._is_told = True
        own = self._store.number
        behind = [
            f"{holder.node} ({own - holder.synced} frames behind, silent for"
            f" {holder.silent_seconds:.0f} s)"
            for holder in self._holders(now)
            if holder.synced < own
        ]
        _log.error(
            "The log of the cluster is used to %.0f %%, so sends are refused; receiving and"
            " settling go on. It is purged as soon as another node has what it holds: %s. Start"
            " that node, forget it with posthouse cluster forget, or give the log more room with"
            " --log-window and nats stream edit.", 100 * self._store.log_share,
            ", ".join(behind) or "all have", extra={"event": "cluster.log_full"},
        )  # fmt: skip

    def _tell_room(self) -> None:
        if self._is_told:
            self._is_told = False
            _log.warning("The log of the cluster has room again.",
                         extra={"event": "cluster.log_has_room"})  # fmt: skip
