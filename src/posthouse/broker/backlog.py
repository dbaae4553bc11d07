"""The backlog: commands that did not fit into the batch, in the order in which they came."""

from collections import deque
from typing import NamedTuple

from posthouse.broker.access import BROKER, Principal
from posthouse.broker.batch import Reply
from posthouse.broker.memory import Limits
from posthouse.broker.shares import Shares
from posthouse.broker.weight import load
from posthouse.core.commands import Command, Detach, Release, ReleaseSession
from posthouse.core.errors import Busy
from posthouse.core.namespaces import SpaceCommand

_FREES = frozenset((Detach, Release, ReleaseSession))


class Submitted(NamedTuple):
    principal: Principal
    namespace: str
    command: Command | SpaceCommand
    reply: Reply
    size_bytes: int
    counts_for: str


class Backlog:
    """The commands that wait for the next batch.

    Their number and bytes are bounded, and each principal has a share of both.
    """

    def __init__(self, limits: Limits, shares: Shares) -> None:
        self._commands_max = limits.pending_commands
        self._bytes_max = limits.pending_bytes
        self._shares = shares
        self._waiting: deque[Submitted] = deque()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(
        self, principal: Principal, namespace: str, command: Command | SpaceCommand, reply: Reply
    ) -> None:
        """Adds a command for the next batch. Raises Busy where too many commands wait already.

        A command by which the broker itself gives back what a client held that is gone is always
        taken.
        """
        size = load(command)
        frees = principal is BROKER and type(command) in _FREES
        full = len(self) >= self._commands_max or self.size_bytes + size > self._bytes_max
        name = self._shares.name(principal)
        may_wait = self._shares.may_wait(name, size, self._commands_max, self._bytes_max)
        if not frees and (full or not may_wait):
            used_up = f"{name!r} has used up its share of what may wait to be written"
            raise Busy("more is waiting than it can write" if full else used_up)
        self._waiting.append(Submitted(principal, namespace, command, reply, size, name))
        self.size_bytes += size
        self._shares.waits(name, size)

    def take(self) -> Submitted:
        """The command that has waited longest."""
        submitted = self._waiting.popleft()
        self.size_bytes -= submitted.size_bytes
        self._shares.waits_no_more(submitted.counts_for, submitted.size_bytes)
        return submitted
