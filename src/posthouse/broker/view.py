"""The view: all that dialects, server and client may look at without a command.

Its methods return values: numbers, names, frozen structs. What was returned does not change when
the state does, and the state cannot be changed through it; who wants to know how it is now asks
again. Rights are not checked here: whoever asks has seen to them.

An entity that is not there has no properties (None) and holds nothing (0); nor is there anything in
a namespace that is not there.
"""

from collections.abc import Iterable, Mapping
from copy import copy
from itertools import chain, islice, repeat
from types import MappingProxyType
from typing import Literal

import msgspec

from posthouse.broker.figures import oldest_ms, steps_to_oldest
from posthouse.broker.slices import sliced
from posthouse.broker.view_messages import MessagesView
from posthouse.core.commands import Counts
from posthouse.core.filters.view import MessageView
from posthouse.core.model import (
    DEAD,
    Account,
    Job,
    Queue,
    QueueProperties,
    Reader,
    Schedule,
    State,
    find,
)
from posthouse.core.namespaces import Namespaces, keys_of
from posthouse.core.room import Used, check_room, is_limited, used
from posthouse.core.routing import router_of
from posthouse.core.rules import Rule
from posthouse.core.shares import Holder, check_share

Kind = Literal["queue", "topic", "subscription", "dead-letter", "transfer"]

_NOTHING = Counts(0, 0, 0, 0, 0, 0)
_NO_ROOM_USED = Used(0, 0)


class Entity(msgspec.Struct, frozen=True, gc=False):
    """A queue of any kind: what does not change with each message."""

    namespace: str
    name: str
    kind: Kind
    properties: QueueProperties
    created_ms: int
    updated_ms: int
    number: int = 0  # no other queue of the namespace has had it, or will


class Overview(msgspec.Struct, frozen=True, gc=False):
    """The totals of a namespace, or of all of them."""

    queues: int = 0
    topics: int = 0
    subscriptions: int = 0
    attached: int = 0  # dead-letter queues and transfer queues
    counts: Counts = _NOTHING  # messages by state; `dead`: of the attached queues, in any state
    dead_counts: Counts = _NOTHING  # of the attached queues, by state
    locks: int = 0
    created_ms: int | None = None  # of the oldest entity; None where there is none
    updated_ms: int | None = None  # of the one that was changed last

    @property
    def messages(self) -> int:
        return sum(msgspec.structs.astuple(self.counts))


class View:
    """The namespaces, entities, schedules, accounts and readers; messages are in `messages`."""

    def __init__(self, world: Namespaces) -> None:
        self._world = world
        self._states = world.states
        self.messages = MessagesView(world)
        # A window rather than a value, because rights are looked up in it again and again. Nobody
        # can write through it, and accounts do not change: another is put in their place.
        self.accounts: Mapping[str, Account] = MappingProxyType(world.accounts)

    # Namespaces.

    def namespaces(self) -> tuple[str, ...]:
        """The names of all, in order."""
        return tuple(self._world.names)

    def has_namespace(self, namespace: str) -> bool:
        return namespace in self._states

    def find_namespace(self, name: str) -> str | None:
        """The exact name of the namespace whose name is this but for the case of its letters."""
        if name in self._states:
            return name
        folded = name.casefold()
        return next((each for each in self._world.names if each.casefold() == folded), None)

    async def overview(self, namespace: str | None = None) -> Overview:
        """The totals of one namespace, or of all together. Others have their turn meanwhile."""
        states = self._some(namespace)
        tally = _Tally()
        every = list(chain.from_iterable(state.queues.values() for state in states))
        async for queues in sliced(every):
            for queue in queues:
                tally.add(queue)
        return tally.overview(sum(len(state.locks) for state in states))

    async def oldest_ms_by_namespace(self) -> dict[str, int]:
        """The times of `oldest_ms` of all queues of a namespace, where there is such a message.

        Others have their turn meanwhile.
        """
        named = (zip(repeat(s.name), s.queues.values()) for s in self._states.values())
        every = list(chain.from_iterable(named))
        found: dict[str, int] = {}
        async for some in sliced(every, lambda each: steps_to_oldest(each[1])):
            for name, queue in some:
                time_ms = oldest_ms(queue)
                if time_ms is not None:
                    found[name] = min(time_ms, found.get(name, time_ms))
        return found

    def oldest_ms(self, namespace: str, queue: str) -> int | None:
        """The time at which the oldest receivable message of a queue was enqueued.

        None where there is none near the head.
        """
        found = self._queue(namespace, queue)
        return None if found is None else oldest_ms(found)

    def turned_back(self) -> int:
        """The position at which the broker's clock was last turned back; 0: never."""
        return max((state.turned_back for state in self._states.values()), default=0)

    # Entities.

    def find(self, namespace: str, name: str) -> str | None:
        """The exact name of the queue whose name is this one but for the case of its letters."""
        state = self._states.get(namespace)
        return None if state is None else find(state, name)

    def exists(self, namespace: str, queue: str) -> bool:
        """Whether there is a queue of exactly this name, of any kind."""
        state = self._states.get(namespace)
        return state is not None and queue in state.queues

    def names(self, namespace: str, kind: Literal["queue", "topic"] | None = None) -> list[str]:
        """The names of queues and topics, in order."""
        state = self._states.get(namespace)
        if state is None:
            return []
        if kind is None:
            return list(state.names)
        return [name for name in state.names if _kind(state.queues[name]) == kind]

    def count(self, namespace: str, kind: Literal["queue", "topic"]) -> int:
        """The number of queues, or of topics."""
        state = self._states.get(namespace)
        if state is None:
            return 0
        return state.topics if kind == "topic" else len(state.names) - state.topics

    def entity(self, namespace: str, queue: str) -> Entity | None:
        found = self._queue(namespace, queue)
        return None if found is None else _entity(namespace, found)

    def entities(self, limit: int | None = None) -> list[Entity]:
        """The entities of all namespaces, with dead-letter and transfer queues; `limit` at most."""
        every = ((s.name, queue) for s in self._states.values() for queue in s.queues.values())
        return [_entity(namespace, queue) for namespace, queue in islice(every, limit)]

    def properties(self, namespace: str, queue: str) -> QueueProperties | None:
        state = self._states.get(namespace)
        found = None if state is None else state.queues.get(queue)
        return None if found is None else found.properties

    def counts(self, namespace: str, queue: str) -> Counts:
        """The counts of a queue's messages by state, and of those in its dead-letter queue."""
        found = self._queue(namespace, queue)
        if found is None:
            return _NOTHING
        return _counts(found.counts, 0 if found.dead is None else sum(found.dead.counts))

    def size(self, namespace: str, queue: str) -> Used:
        """The messages in the queue itself, in any state, and their bytes."""
        found = self._queue(namespace, queue)
        return _NO_ROOM_USED if found is None else Used(sum(found.counts), found.size_bytes)

    def used(self, namespace: str, queue: str) -> Used:
        """The size of a queue with the messages of its subscriptions, to which its limits apply."""
        found = self._queue(namespace, queue)
        return _NO_ROOM_USED if found is None else used(found, "all")

    def counted(self, namespace: str, queue: str) -> int:
        """Returns how many of a queue's messages its `max_messages` counts."""
        found = self._queue(namespace, queue)
        return 0 if found is None else used(found).messages

    def check_room(self, namespace: str, queue: str, messages: int) -> None:
        """Whether so many more would fit. Raises QuotaExceeded."""
        found = self._queue(namespace, queue)
        if found is not None and is_limited(found):
            check_room(found, used(found), messages, 0)

    def check_share(self, namespace: str, holder: Holder, what: str, where: str, most: int) -> None:
        """Whether somebody may make one more of what is limited. Raises QuotaExceeded."""
        state = self._states.get(namespace)
        if state is not None:
            check_share(state.held, holder, what, where, most)

    # Topics.

    def subscriptions(self, namespace: str, topic: str) -> list[str]:
        """The names of the queues that the subscriptions of a topic are."""
        found = self._queue(namespace, topic)
        return [] if found is None else [each.name for each in found.subscriptions.values()]

    def rules(self, namespace: str, subscription: str) -> tuple[Rule, ...]:
        found = self._queue(namespace, subscription)
        return () if found is None else tuple(found.rules.values())

    def matches(self, namespace: str, topic: str, envelope: bytes) -> list[str]:
        """The names of the subscriptions whose rules take a message. Raises TooManyLooks."""
        found = self._queue(namespace, topic)
        if found is None:
            return []
        hits = router_of(found).match(MessageView(envelope, new_id=lambda: b""))
        return [hit.queue.name for hit in hits if not hit.problem]

    def match_effort(self, namespace: str, topic: str) -> int:
        """The effort of `matches`, as the core counts it (`HAND_ON_MAX`)."""
        found = self._queue(namespace, topic)
        return 0 if found is None else router_of(found).effort

    # Schedules.

    def schedule(self, namespace: str, name: str) -> Schedule | None:
        """A copy, as `ListSchedules` is answered."""
        state = self._states.get(namespace)
        found = None if state is None else state.schedules.get(name)
        return None if found is None else msgspec.structs.replace(found)

    def schedules(self, namespace: str, queues: Iterable[str]) -> list[Schedule]:
        """Copies of those that send to some queues."""
        state, wanted = self._states.get(namespace), frozenset(queues)
        every = () if state is None else state.schedules.values()
        return [msgspec.structs.replace(each) for each in every if each.queue in wanted]

    # Jobs.

    def jobs(self, namespace: str, queue: str) -> list[Job]:
        """Copies of the jobs of a queue, the newest first."""
        state = self._states.get(namespace)
        every = () if state is None else reversed(state.jobs.values())
        return [copy(job) for job in every if job.queue == queue]

    # Beside the namespaces.

    def entity_keys(self, namespace: str, entity: str) -> list[str]:
        """The names of the accounts that are keys of a queue or topic."""
        return keys_of(self._world, namespace, entity)

    def reader(self, name: str) -> Reader | None:
        """A reader of the feed."""
        return self._world.readers.get(name)

    def readers(self) -> list[Reader]:
        """The readers of the feed, by name."""
        return [reader for _, reader in sorted(self._world.readers.items())]

    # Inside.

    def _some(self, namespace: str | None) -> list[State]:
        """One namespace, if it is there; or all of them."""
        if namespace is None:
            return list(self._states.values())
        state = self._states.get(namespace)
        return [] if state is None else [state]

    def _queue(self, namespace: str, name: str) -> Queue | None:
        state = self._states.get(namespace)
        return None if state is None else state.queues.get(name)


def _kind(queue: Queue) -> Kind:
    if queue.origin is not None:
        return "dead-letter" if queue.name.endswith(DEAD) else "transfer"
    if queue.topic is not None:
        return "subscription"
    return "topic" if queue.properties.delivery == "topic" else "queue"


def _entity(namespace: str, queue: Queue) -> Entity:
    return Entity(
        namespace, queue.name, _kind(queue), queue.properties, queue.created_ms, queue.updated_ms,
        queue.number,
    )  # fmt: skip


def _counts(by_state: list[int], dead: int) -> Counts:
    active, locked, scheduled, delayed, deferred = by_state
    return Counts(active, locked, scheduled, delayed, deferred, dead)


class _Tally:
    """The totals of the queues that were added."""

    def __init__(self) -> None:
        self._kinds: dict[Kind, int] = {}
        self._own, self._dead = [0] * 5, [0] * 5
        self._created_ms: int | None = None
        self._updated_ms: int | None = None

    def add(self, queue: Queue) -> None:
        kind = _kind(queue)
        self._kinds[kind] = self._kinds.get(kind, 0) + 1
        total = self._own if queue.origin is None else self._dead
        for at, count in enumerate(queue.counts):
            total[at] += count
        created_ms, updated_ms = self._created_ms, self._updated_ms
        if created_ms is None or queue.created_ms < created_ms:
            self._created_ms = queue.created_ms
        if updated_ms is None or queue.updated_ms > updated_ms:
            self._updated_ms = queue.updated_ms

    def overview(self, locks: int) -> Overview:
        kinds = self._kinds
        return Overview(
            kinds.get("queue", 0),
            kinds.get("topic", 0),
            kinds.get("subscription", 0),
            kinds.get("dead-letter", 0) + kinds.get("transfer", 0),
            _counts(self._own, sum(self._dead)),
            _counts(self._dead, 0),
            locks,
            self._created_ms,
            self._updated_ms,
        )
