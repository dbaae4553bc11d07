"""Memory use: how much messages take, what can be evicted, and when it is too much.

Bodies are a cache: they are in the journal, and a message knows where. Above a budget the bodies of
new messages are evicted as soon as they are durable, if enough others stand before them; when a
message is delivered whose body was evicted, it is read back, and with it what comes next.

What cannot be dropped is held against a limit with three marks. Above the first publishers are
slowed down; above the second they are refused, and the fanout is limited; above the third
everything is refused that makes the state larger.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from posthouse.broker import payload
from posthouse.broker.replay import evict
from posthouse.core.message import LOCKED
from posthouse.core.model import Queue, State
from posthouse.core.namespaces import Namespaces
from posthouse.core.records import Routed, Sent
from posthouse.store import Store
from posthouse.store.errors import NotThere

MESSAGE_BYTES = 350  # of a message beside its content: bench/core.py measures it
GROUP_BYTES = 1_100
QUEUE_BYTES = 4_000  # its dead-letter queue as much again
NOTE_BYTES = 1_000  # guessed: beside the properties that were noted
KEY_BYTES = 500
RECEIVER_BYTES = 700
LOCK_BYTES = 300
LIFE_BYTES = 100  # the time to live that a sender gave
ID_BYTES = 180  # the id of a message that was sent under another duplicate-detection key
FIRST_BYTES = 140  # when a message that has come back was first delivered
SCHEDULE_BYTES = 1_500  # beside its message
NAMESPACE_BYTES = 10_000
READER_BYTES = 500
TRANSACTION_BYTES = 1_000  # beside the messages in it
BLOCKED_BYTES = 1_000  # a send that waits for room, beside its messages
RECEIVERS_PART = 1 / 8  # of the limit: who receives makes room, unless there are very many of them
STALE_PART = 1 / 4  # of the limit, in guesses, after which it is counted again
MARKS = (0.80, 0.90, 0.95)
FINE, SLOW, REFUSE, OVERFLOW = range(4)  # the level: how many marks are passed
SLOW_MS_MAX = 100  # how long an answer to a publisher is held back just below the second mark
AHEAD_BYTES_MAX = 4 << 20  # read back beyond what was asked for
_WINDOW_BYTES = (16 << 10, 1 << 20)  # of a queue's bodies that stay in memory, the least and most


def machine_bytes() -> int:
    """The memory of this machine, or of the container that is this process's machine."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


@dataclass(frozen=True)
class Limits:
    """The limits of an engine. Each has an answer for being reached."""

    bodies_bytes: int = field(default_factory=lambda: machine_bytes() // 4)  # then evicted
    memory_bytes: int = field(default_factory=lambda: machine_bytes() // 2)  # then see MARKS
    pending_commands: int = 10_000  # then Busy
    pending_bytes: int = 64 << 20  # then Busy
    principal_share: int = 50  # per cent of a limit that one principal may hold; 100: all of it


class _Run(NamedTuple):
    """Messages that were sent together."""

    state: State
    queue: str
    first: int
    messages: int
    end: int  # the position after their contents


class Memory:
    """Counts exactly now and then, and in between guesses high by what has come since."""

    def __init__(self, store: Store, world: Namespaces, limits: Limits) -> None:
        self._store = store
        self._world = world
        self._limits = limits
        self._bodies = self._fixed = 0  # at the last count
        self._new_bodies = self._new_fixed = 0  # since, at most
        self._passing = self.receivers = 0  # state that ends with connections, and is in no record
        self._passing_of: dict[str, tuple[int, int]] = {}  # by namespace: receivers, other bytes
        self._window = _WINDOW_BYTES[1]
        self._recent: deque[_Run] = deque()  # messages whose bodies can be evicted once durable
        self.has_evicted = False  # whether any body is evicted
        self.tight = False  # whether what is sent has to be remembered
        self.level = FINE
        self._count()

    @property
    def held_bytes(self) -> int:
        """The bytes that cannot be freed by evicting bodies, at most."""
        return self._fixed + self._new_fixed + self._passing

    @property
    def has_many_receivers(self) -> bool:
        """Whether so many receivers are attached that no more may be while memory is short."""
        return self.receivers > self.receivers_max

    @property
    def receivers_max(self) -> int:
        """The receivers that may be attached at a time, all together."""
        return max(1, int(RECEIVERS_PART * self._limits.memory_bytes) // RECEIVER_BYTES)

    @property
    def bodies_bytes(self) -> int:
        """Bodies in memory, at most."""
        return self._bodies + self._new_bodies

    @property
    def slow_ms(self) -> float:
        """The milliseconds for which the answer to a publisher is held back."""
        if self.level == FINE:
            return 0
        part = self.held_bytes / self._limits.memory_bytes
        return min(1.0, (part - MARKS[0]) / (MARKS[1] - MARKS[0])) * SLOW_MS_MAX

    def remember(self, state: State, record: Sent | Routed, position: int) -> None:
        """Remembers, while memory is tight, messages whose bodies can be evicted once durable."""
        if isinstance(record, Sent):
            count = len(record.messages)
            new = _Run(state, record.queue, record.first_sequence, count, position + count)
            self._recent.append(new)
            return
        for each in record.every():
            count = len(each.sequences)
            self._recent.append(_Run(state, each.queue, each.first_sequence, count, position + 1))

    def relieve(
        self, messages: int, size_bytes: int, weight: int, changed: Iterable[str] = ()
    ) -> None:
        """Counts what a commit has added, and evicts bodies that are too many, once durable.

        `changed`: the namespaces in which something was done.
        """
        self._new_bodies += size_bytes
        self._new_fixed += messages * (MESSAGE_BYTES + KEY_BYTES) + weight
        limits = self._limits
        self._count_passing(changed)
        crowded = self.level > FINE or self.held_bytes >= MARKS[0] * limits.memory_bytes
        stale = self._new_fixed > STALE_PART * limits.memory_bytes
        if crowded or stale or self.bodies_bytes > limits.bodies_bytes:
            self._count()
        self.tight = 2 * self.bodies_bytes > limits.bodies_bytes
        durable = self._store.durable
        while self._recent and self._recent[0].end <= durable:
            run = self._recent.popleft()
            queue = run.state.queues.get(run.queue)
            if queue is None or self.bodies_bytes <= limits.bodies_bytes:
                continue
            if queue.body_bytes - queue.evicted_bytes > self._window:
                self._bodies -= evict(queue, range(run.first, run.first + run.messages))
                self.has_evicted = True

    def _count(self) -> None:
        self._bodies = self._fixed = self._new_bodies = self._new_fixed = 0
        queues = 0
        self.has_evicted = False
        for queue in _queues(self._world):
            queues += 1
            self._bodies += queue.body_bytes - queue.evicted_bytes
            self._fixed += queue.size_bytes - queue.body_bytes + queue.state_bytes + QUEUE_BYTES
            self._fixed += sum(queue.counts) * MESSAGE_BYTES + len(queue.groups) * GROUP_BYTES
            self._fixed += len(queue.notes) * NOTE_BYTES + queue.notes.size_bytes
            self._fixed += len(queue.seen_order) * KEY_BYTES + len(queue.lives) * LIFE_BYTES
            self._fixed += len(queue.firsts) * FIRST_BYTES + len(queue.seen_ids) * ID_BYTES
            self._fixed += queue.rule_bytes + queue.counts[LOCKED] * LOCK_BYTES
            properties = queue.properties
            if properties.metadata or properties.extras:
                self._fixed += 4 * len(properties.metadata)
                self._fixed += sum(map(len, chain(*properties.extras.items()))) * 4
            self.has_evicted = self.has_evicted or queue.evicted_bytes > 0
        self._count_beside()
        self._count_passing({*self._world.states, *self._passing_of})
        least, most = _WINDOW_BYTES
        share = self._limits.bodies_bytes // (4 * max(1, queues))
        self._window = max(least, min(most, share))
        part = self.held_bytes / self._limits.memory_bytes
        self.level = sum(part >= mark for mark in MARKS)

    def _count_beside(self) -> None:
        """Counts everything that is kept and belongs to no queue."""
        world = self._world
        self._fixed += world.accounts_bytes + len(world.readers) * READER_BYTES
        for state in world.states.values():
            self._fixed += NAMESPACE_BYTES
            self._fixed += state.schedule_bytes + len(state.schedules) * SCHEDULE_BYTES

    def _count_passing(self, changed: Iterable[str]) -> None:
        """Counts the receivers, transactions and blocked sends of some namespaces anew."""
        for name in changed:
            receivers, waiting = self._passing_of.pop(name, (0, 0))
            self.receivers -= receivers
            self._passing -= receivers * RECEIVER_BYTES + waiting
            state = self._world.states.get(name)
            if state is not None and (state.receivers or state.transactions or state.blocked):
                receivers, waiting = len(state.receivers), _waiting_bytes(state)
                self._passing_of[name] = receivers, waiting
                self.receivers += receivers
                self._passing += receivers * RECEIVER_BYTES + waiting

    # Reading back.

    async def fetch(self, positions: set[int]) -> Mapping[int, bytes]:
        """The bodies at these positions, and into the queues they are of what comes next.

        Raises NotThere or Damaged.
        """
        frames = {frame.number: frame for frame in await self._store.get(sorted(positions))}
        decoded = [list(payload.entries(frame)) for frame in frames.values()]
        found: dict[int, bytes] = {}
        hot: set[tuple[str, str]] = set()  # the queues that messages are taken from
        for each in payload.contents(chain.from_iterable(decoded)):
            if each.position in positions:
                found[each.position] = each.message.body
                hot.add((each.namespace, each.queue))
        if len(found) < len(positions):
            raise NotThere(f"there is no content at position {min(positions - set(found))}")
        if self.bodies_bytes > self._limits.bodies_bytes:
            self._count()
        for entries in decoded:
            self._take_back(entries, hot)
        await self._read_ahead(max(frame.end for frame in frames.values()), hot)
        return found

    @property
    def _ahead_bytes(self) -> int:
        return min(AHEAD_BYTES_MAX, self._limits.bodies_bytes // 8)

    async def _read_ahead(self, first: int, hot: set[tuple[str, str]]) -> None:
        left = self._ahead_bytes
        try:
            async for frame in self._store.read(first, self._store.durable):
                left -= frame.size_bytes
                if left < 0:
                    break
                self._take_back(payload.entries(frame), hot)
        except NotThere:
            pass  # trimmed meanwhile, and not needed

    def _has_room(self, queue: Queue) -> bool:
        """Whether a body may be read back; each queue may have a few even at the limit."""
        mine = queue.body_bytes - queue.evicted_bytes
        return self.bodies_bytes < self._limits.bodies_bytes or mine < self._ahead_bytes

    def _take_back(self, entries: Iterable[payload.Located], hot: set[tuple[str, str]]) -> None:
        """Puts the bodies in these records back into the queues they were sent to."""
        for first, namespace, record in entries:
            if not isinstance(record, Sent) or (namespace, record.queue) not in hot:
                continue
            state = self._world.states.get(namespace)
            queue = None if state is None else state.queues.get(record.queue)
            if queue is None or not self._has_room(queue):
                continue
            taken, messages = 0, queue.messages
            for at, content in enumerate(record.messages):
                message = messages.get(record.first_sequence + at)
                if (
                    message is not None
                    and message.position == first + at
                    and isinstance(message.body, int)
                    and message.state != LOCKED
                ):
                    taken += message.body
                    message.body = content.body
            queue.evicted_bytes -= taken
            self._new_bodies += taken


def _queues(world: Namespaces) -> Iterator[Queue]:
    for state in world.states.values():
        yield from state.queues.values()
        yield from state.doomed


def _waiting_bytes(state: State) -> int:
    """The bytes of open transactions, and of sends that wait for room."""
    works, blocked = state.transactions.values(), state.blocked.values()
    messages = sum(work.messages for work in works)
    messages += sum(len(each.command.messages) for each in blocked)
    sizes = state.transaction_bytes + state.blocked_bytes + messages * MESSAGE_BYTES
    return sizes + len(works) * TRANSACTION_BYTES + len(blocked) * BLOCKED_BYTES
