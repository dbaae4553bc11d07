"""Admission: whether there is room for what a command makes, in memory and on the disk.

Where room is short publishers are slowed down, then refused; topics hand on less; and in the end
everything is refused that makes the state larger. Receiving and settling go on: they make room.
"""

from posthouse.broker.figures import Figures
from posthouse.broker.memory import OVERFLOW, REFUSE, Memory
from posthouse.core.commands import (
    Abandon,
    AcceptSession,
    Attach,
    Begin,
    Command,
    CreateQueue,
    CreateSubscription,
    DeadLetter,
    Defer,
    Receive,
    Resubmit,
    Send,
    SetRule,
    SetSchedule,
    SetSessionState,
    StartJob,
    UpdateQueue,
)
from posthouse.core.errors import Busy, QuotaExceeded
from posthouse.core.model import Fanout, QueueProperties
from posthouse.core.namespaces import (
    CreateNamespace,
    Namespaces,
    SetAccount,
    SetReader,
    SpaceCommand,
)
from posthouse.core.shares import RECEIVERS, check_share, share_of
from posthouse.store import Store

_PRESSED_SLOW_MS = 200  # delay of answers to senders while the disk is short of room
# The commands that make the state larger, and are refused where there is no room: see
# `_needs_room`. A test has the list of those that do not.
ROOMY = frozenset((
    Send, Resubmit, CreateQueue, UpdateQueue, CreateSubscription, SetRule, SetSchedule,
    SetSessionState, AcceptSession, Attach, Receive, Abandon, Defer, DeadLetter, Begin,
    CreateNamespace, SetAccount, SetReader, StartJob,
))  # fmt: skip


class Admission:
    def __init__(self, store: Store, memory: Memory, world: Namespaces, figures: Figures) -> None:
        self._store = store
        self._memory = memory
        self._world = world
        self._figures = figures

    def check(self, namespace: str, command: Command | SpaceCommand) -> None:
        """Raises QuotaExceeded or Busy."""
        if type(command) not in ROOMY:
            return
        if isinstance(command, Send | Resubmit | StartJob) and self._store.full:
            self._figures.crowded += 1
            self._figures.no_space += 1
            raise QuotaExceeded(command.queue, "disk space", 0, 0)
        level = self._memory.level
        if level < (REFUSE if type(command) is Send else OVERFLOW):
            return
        if self._needs_room(namespace, command):
            self._figures.crowded += 1
            raise Busy("its memory is used up; receive messages, or delete what is not needed")

    def check_receivers(self, command: Attach) -> None:
        """Checks that one more receiver may be attached: receivers stay, and use memory.

        Who asks once is not refused: that is bounded by connections. Raises Busy or QuotaExceeded.
        """
        most, there = self._memory.receivers_max, self._memory.receivers
        if there >= most:
            self._figures.crowded += 1
            raise Busy("there are too many receivers; end some, or raise memory_limit")
        if command.by.name and there >= share_of(most, command.by.percent):
            key = RECEIVERS, "", command.by.name
            mine = sum(state.held.get(key, 0) for state in self._world.states.values())
            check_share({key: mine}, command.by, RECEIVERS, "", most)

    def _needs_room(self, namespace: str, command: Command | SpaceCommand) -> bool:
        """Whether a command makes something new; others pass, so that receiving makes room."""
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

    def fanout(self) -> Fanout:
        """The fanout that is allowed now: one send to a topic may become millions of copies."""
        if self._store.full:
            return "stopped"
        return "open" if self._memory.level < REFUSE else "limited"

    def slow_seconds(self) -> float:
        """The seconds for which a publisher's answer is held back, so that it sends less."""
        slow_ms = _PRESSED_SLOW_MS if self._store.pressed else 0
        return max(slow_ms, self._memory.slow_ms) / 1000


def _chars(properties: QueueProperties) -> int:
    """The number of characters of metadata and extras that a queue has."""
    extras = properties.extras.items()
    return len(properties.metadata) + sum(len(name) + len(text) for name, text in extras)
