"""Placement of the stream's leader: on another machine than the leader of the brokers.

NATS elects a new leader of a stream in 4 to 10 seconds. If both leaders were on one machine, its
loss would take both; apart, the loss of a machine costs a takeover or an election, and an election
only of who did not lead the brokers. A stream that is led elsewhere costs a round trip more a sync.

The leader of the brokers looks at it when it begins to lead, and every ten seconds. It moves the
stream's leader only while three replicas are current, once a look; where that fails it waits longer
each time.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from posthouse.store.log import Unanswered

_log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
LOOK_SECONDS_MAX = 320.0  # after moves that have failed
REPLICAS_MIN = 3


class PlacedLog(Protocol):
    """A log whose leader can be moved."""

    async def info(self) -> dict[str, Any]:
        """As the server describes the stream. Raises Unanswered."""

    async def place(self, server: str) -> None:
        """Has the leader move to a server. Raises Unanswered."""


def better_server(info: dict[str, Any], own: str) -> str | None:
    """The server that is to lead the stream; None where it is well as it is, or cannot be better.

    `own` is the server on this machine.
    """
    cluster = info.get("cluster") or {}
    replicas = cluster.get("replicas") or []
    current = [each for each in replicas if each.get("current") and not each.get("offline")]
    if cluster.get("leader") != own or 1 + len(current) < REPLICAS_MIN:
        return None
    best: dict[str, Any] = min(current, key=lambda each: (each.get("lag", 0), each["name"]))
    return str(best["name"])


class Placement:
    """`own_server`: the name of this machine's NATS server; "" while that is not known."""

    def __init__(self, log: PlacedLog, own_server: Callable[[], str]) -> None:
        self._log = log
        self._own_server = own_server

    async def run(self) -> None:
        """Looks at once, and again and again, until it is cancelled."""
        seconds = LOOK_SECONDS
        while True:
            has_failed = not await self.look()
            seconds = min(2 * seconds, LOOK_SECONDS_MAX) if has_failed else LOOK_SECONDS
            await asyncio.sleep(seconds)

    async def look(self) -> bool:
        """Moves the stream's leader if need be; returns whether all is well as far as is known."""
        own = self._own_server()
        if not own:
            return True
        try:
            to = better_server(await self._log.info(), own)
            if to is None:
                return True
            await self._log.place(to)
            is_moved = better_server(await self._log.info(), own) is None
        except Unanswered as error:
            _log.warning("The stream's leader was not moved off this machine: %s", error,
                         extra={"event": "cluster.not_placed"})  # fmt: skip
            return False
        if is_moved:
            _log.info("The stream is led by %s now, on another machine than this node.", to,
                      extra={"event": "cluster.placed", "server": to})  # fmt: skip
        return is_moved
