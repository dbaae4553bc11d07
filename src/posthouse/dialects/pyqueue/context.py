"""The context that all PyQueue connections share: the broker, the credentials and the counters."""

import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from posthouse.broker.access import ANYBODY, BROKER, Guard, Principal, vouched
from posthouse.broker.engine import Engine
from posthouse.broker.figures import Histogram
from posthouse.broker.throttle import Buckets, Login, cost_of
from posthouse.broker.view import View
from posthouse.core.checks import check_name
from posthouse.core.commands import Answer, Command, CreateQueue
from posthouse.core.errors import AlreadyExists, NotFound, Refused, Unauthorized
from posthouse.core.model import QueueProperties, Right, entity_of
from posthouse.core.records import Completed, DeadLettered, Expired, Sent
from posthouse.dialects.connections import PeerRegistry
from posthouse.dialects.dialect import Broker
from posthouse.dialects.pyqueue.credentials import Credentials, Known, Signing
from posthouse.dialects.pyqueue.ledger import Ledger
from posthouse.dialects.pyqueue.tasks import DEFAULT_QUEUE
from posthouse.dialects.pyqueue.workers import Workers

CHECK_SECONDS = 2.0
DUPLICATE_MS = 3_600_000
# Bounds of the histogram of processing times, as Prometheus's Python client has them.
PROCESSING_SECONDS = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
RATE_SECONDS = 60.0  # over which the rate of completed tasks is told
HELD_BYTES_MAX = 256 << 20  # of frames that have come in part, of all connections together


class Settings(NamedTuple):
    namespace: str = "default"
    is_open: bool = False  # who comes without TLS needs no credentials
    signing: Signing = Signing()
    lock_ms: int = 10_000
    retries: int = 3
    depth: int = 10_000
    ttl_ms: int | None = None
    deduplicate: bool = False
    rate: int = 0  # pushed tasks a second, of one address; 0: any number
    burst: int = 20
    connections: int = 1_000  # of clients that have shown who they are
    zone: str = "UTC"


class Guest(Protocol):
    """A connection, as the context sees it."""

    def check(self, now: float) -> None:
        """Now and then: whether it may go on."""

    def check_rights(self, names: Collection[str]) -> None:
        """The accounts of these names have changed."""


class Totals(NamedTuple):
    """Since the start."""

    pushed: int
    completed: int
    failed: int
    expired: int


class PyQueueContext:
    def __init__(self, broker: Broker, guard: Guard, settings: Settings) -> None:
        self._broker = broker
        self.guard = guard
        self.settings = settings
        self.namespace = settings.namespace
        self.credentials = Credentials(guard, settings.signing)
        self.workers, self.ledger = Workers(), Ledger()
        self.rate = Buckets(settings.rate, burst=settings.burst)
        self.started = time.monotonic()
        self.processing = Histogram(PROCESSING_SECONDS)  # from pull to acknowledgement
        self.held_bytes = 0
        self._registry: PeerRegistry[Guest] = PeerRegistry(CHECK_SECONDS, self._check)
        self._clients: set[Guest] = set()  # those that have shown who they are
        self._samples: deque[tuple[float, int]] = deque([(self.started, 0)])

    @property
    def is_ready(self) -> bool:
        return self._broker.engine is not None

    @property
    def engine(self) -> Engine:
        engine = self._broker.engine
        assert engine is not None  # nobody asks before it is open
        return engine

    @property
    def view(self) -> View:
        """Raises NotFound where the namespace is gone."""
        view = self.engine.view
        if not view.has_namespace(self.namespace):
            raise NotFound("namespace", self.namespace)
        return view

    @property
    def now_ms(self) -> int:
        return self.engine.clock_ms(self.settings.namespace)

    # Connections.

    def add(self, guest: Guest) -> None:
        self._registry.add(guest)
        self.engine.access_watchers.add(self._look_again)

    def admit(self, guest: Guest) -> bool:
        """It has shown who it is; whether there is room for one more of those."""
        if guest not in self._clients and len(self._clients) >= self.settings.connections:
            return False
        self._clients.add(guest)
        return True

    def remove(self, guest: Guest) -> None:
        self._registry.remove(guest)
        self._clients.discard(guest)

    def _look_again(self, names: Collection[str]) -> None:
        """Has all peers check the rights of the principals with these names, which have changed."""
        for each in list(self._registry.peers):
            each.check_rights(names)

    def _check(self) -> None:
        now = time.time()
        for each in list(self._registry.peers):
            each.check(now)
        self.workers.forget(now)
        if self.is_ready:
            self._sample()

    # Who somebody is, and what he may do.

    def login(self, address: str) -> Login:
        """Begins the login of one connection."""
        return self.engine.throttle.failures.login(address)

    def identify(self, kind: str, value: str, login: Login) -> Known:
        """Raises Unauthenticated."""
        with login:
            return self.credentials.identify(self.engine.view.accounts, kind, value)

    def stranger(self, *, is_tls: bool) -> Principal | None:
        """Returns the principal of a client without credentials; None if it must have some."""
        return ANYBODY if self.settings.is_open and not is_tls else None

    def check(self, principal: Principal, right: Right, entity: str) -> None:
        """Checks a right, for commands not submitted as the principal. Raises Unauthorized."""
        accounts, namespace = self.engine.view.accounts, self.settings.namespace
        self.guard.check_right(accounts, principal, right, namespace, entity_of(entity))

    def may(self, principal: Principal, right: Right, entity: str) -> bool:
        try:
            self.check(principal, right, entity)
        except Unauthorized:
            return False
        return True

    def knows_still(self, principal: Principal) -> bool:
        """Whether he is somebody, with the key he came with."""
        return self.guard.knows(self.engine.view.accounts, principal)

    def knows(self, principal: Principal, queue: str) -> bool:
        """Whether he may do anything with a queue."""
        rights: tuple[Right, ...] = ("listen", "send", "manage")
        return any(self.may(principal, right, queue) for right in rights)

    def charge(self, address: str, tasks: int) -> None:
        """Charges tasks to the push rate of an address. Raises Throttled."""
        self.rate.check(address)
        self.rate.take(address, tasks)

    # Asking.

    async def ask(self, principal: Principal, command: Command) -> Answer:
        """Raises Refused or StoreError."""
        return await self.engine.ask(principal, self.settings.namespace, command)

    def charge_for(self, address: str, command: Command) -> None:
        """Charges a command to the broker's limit for an address. Raises Throttled."""
        throttle = self.engine.throttle
        if throttle.is_on:
            throttle.check_address(address, cost_of(command))

    def properties_of(self, name: str) -> QueueProperties | None:
        """Returns the properties of a queue; None if there is no queue of that name."""
        found = self.view.entity(self.namespace, name)
        return None if found is None or found.kind != "queue" else found.properties

    def properties(self) -> QueueProperties:
        """Returns the properties of a queue that is created by its first use."""
        settings = self.settings
        return QueueProperties(
            lock_ms=settings.lock_ms, max_delivery=settings.retries, ttl_ms=settings.ttl_ms,
            max_messages=settings.depth, limit_counts="waiting", duplicate_detection=True,
            duplicate_window_ms=DUPLICATE_MS, order="priority", grouping="group",
            counting="abandon",
        )  # fmt: skip

    def make_queue(self, principal: Principal, right: Right, name: str) -> None:
        """Creates a queue if there is none: PyQueue creates queues on first use.

        A failure shows in the answer to the next command on the queue. Raises Refused.
        """
        view = self.view
        if not view.exists(self.namespace, name):
            self.check(principal, right, name)
            check_name("queue", name)
            other = view.find(self.namespace, name)
            if other is not None:
                raise AlreadyExists("queue", other)
            command = CreateQueue(name, self.properties())
            self.engine.submit(vouched(principal), self.settings.namespace, command, _ignore)

    def welcome(self) -> None:
        """There is always a queue for who names none."""
        if self.is_ready:
            try:
                self.make_queue(BROKER, "send", DEFAULT_QUEUE)
            except Refused:
                return

    # Figures.

    def totals(self) -> Totals:
        """Returns the totals of the whole broker, whichever dialect sent and received."""
        records = self.engine.figures.records
        return Totals(records[Sent], records[Completed], records[DeadLettered], records[Expired])

    def acknowledged(self, since_ms: Sequence[int]) -> None:
        """Tasks that were pulled at these moments."""
        now_ms = self.now_ms
        for pulled_ms in since_ms:
            self.processing.add(max(0, now_ms - pulled_ms) / 1_000)

    @property
    def processed(self) -> int:
        """Returns how many tasks were acknowledged since the start."""
        return sum(self.processing.counts)

    def _sample(self) -> None:
        now = time.monotonic()
        self._samples.append((now, self.totals().completed))
        while len(self._samples) > 2 and self._samples[1][0] < now - RATE_SECONDS:
            self._samples.popleft()

    def per_second(self) -> float:
        """Completed tasks, lately."""
        then, before = self._samples[0]
        passed = time.monotonic() - then
        return (self.totals().completed - before) / passed if passed > 0 else 0.0

    def uptime(self) -> float:
        return time.monotonic() - self.started


def _ignore(_: object) -> None:
    """Ignores an answer whose effect shows elsewhere."""
