"""One request to LocalZure's API: who asks, where, and what is counted of it."""

import contextlib
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, NamedTuple

from posthouse.broker.access import Principal
from posthouse.broker.engine import Engine
from posthouse.core.commands import HAND_ON_MAX, Answer, Command
from posthouse.core.errors import NotFound
from posthouse.core.filters.problems import TooManyLooks
from posthouse.core.filters.view import View
from posthouse.core.message import NewMessage
from posthouse.core.model import DEAD, Right, State, entity_of, find, subscription_queue
from posthouse.core.routing import router_of
from posthouse.dialects.servicebus.localzure.errors import Failed
from posthouse.dialects.servicebus.localzure.figures import Figures
from posthouse.dialects.servicebus.localzure.places import Place
from posthouse.dialects.servicebus.web import Request

if TYPE_CHECKING:
    from posthouse.dialects.servicebus.localzure.service import Service


class Limits(NamedTuple):
    """What may be kept by this API."""

    message_bytes: int = 256 << 10
    entities: int = 1_000  # queues, and topics, of a namespace
    subscriptions: int = 2_000  # of a topic
    rules: int = 100  # of a subscription


class Call:
    def __init__(
        self, service: "Service", request: Request, principal: Principal, namespace: str,
        place: Place,
    ) -> None:  # fmt: skip
        self._service = service
        self.engine: Engine = service.engine
        self.request = request
        self.principal = principal
        self.namespace = namespace
        self.place = place
        self.queue = self._exact(place)

    def _exact(self, place: Place) -> str:
        state = self.engine.namespaces.states.get(self.namespace)
        if state is None or not place.queue:
            return place.queue
        if place.kind == "subscription":
            topic = find(state, place.topic) or place.topic
            mine = subscription_queue(topic, place.name) + (DEAD if place.dead else "")
            return find(state, mine) or mine
        return find(state, place.queue) or place.queue

    @property
    def limits(self) -> Limits:
        return self._service.limits

    @property
    def figures(self) -> Figures:
        return self._service.figures

    @property
    def most_bytes(self) -> int:
        return self.limits.message_bytes

    @property
    def header_bytes(self) -> int:
        return self._service.header_bytes

    @property
    def state(self) -> State:
        """Raises NotFound."""
        state = self.engine.namespaces.states.get(self.namespace)
        if state is None:
            raise NotFound("namespace", self.namespace)
        return state

    @property
    def is_topic(self) -> bool:
        found = self.state.queues.get(self.queue)
        return found is not None and found.properties.delivery == "topic"

    @property
    def now_ms(self) -> int:
        return self.engine.clock_ms(self.namespace)

    def ask(self, command: Command) -> Awaitable[Answer]:
        """Raises Refused or StoreError."""
        return self.engine.ask(self.principal, self.namespace, command)

    def check(self, right: Right) -> None:
        """Before something is looked at that is not asked of the engine. Raises Unauthorized."""
        self._service.check(self.principal, right, self.namespace, entity_of(self.queue))

    def check_there(self) -> None:
        """For who may receive from it. Raises Unauthorized or NotFound."""
        self.check("listen")
        if self.queue not in self.state.queues:
            raise NotFound("queue", self.queue)

    def missing(self) -> tuple[str, str]:
        """What is not there of the place: its kind and its name."""
        place, state = self.place, self.engine.namespaces.states.get(self.namespace)
        if place.kind == "subscription" and (state is None or find(state, place.topic) is None):
            return "topic", place.topic
        return place.kind, place.name or self.namespace

    # Sessions that were accepted over this API, which names them by their ids alone.

    def hold(self, session: str, token: int) -> None:
        self._service.hold((self.namespace, self.queue, session, self.principal), token)

    def let_go(self, session: str) -> None:
        self._service.let_go((self.namespace, self.queue, session, self.principal))

    def session(self, session: str) -> int:
        """The token under which it is held. Raises Failed or NotFound."""
        self.check_there()
        token = self._service.held((self.namespace, self.queue, session, self.principal))
        group = self.state.queues[self.queue].groups.get(session)
        if not token or group is None or group.token != token:
            raise Failed(
                410, "SessionLockLost", "The session is not held; accept it first.",
                session_id=session, entity_type=self.place.kind, entity_name=self.place.name,
            )  # fmt: skip
        return token

    # Figures.

    def did(self, what: str, number: int, how: str = "", begun: float = 0) -> None:
        """So many were sent, received, completed; and how long that took, where it is told."""
        self.figures.did(self._labels(), what, number, how, time.perf_counter() - begun)

    def ask_filters(self, message: NewMessage) -> None:
        """Once more than the core does, to see how long it takes; not where that is long."""
        router = router_of(self.state.queues[self.queue])
        if router.effort > HAND_ON_MAX:
            return
        begun = time.perf_counter()
        with contextlib.suppress(TooManyLooks):
            router.match(View(message.envelope, new_id=lambda: b""))
        self.figures.evaluated(self.place.name, time.perf_counter() - begun)

    def _labels(self) -> tuple[str, str]:
        place = self.place
        if place.kind == "subscription":
            return place.kind, f"{place.topic}/{place.name}"
        return "topic" if self.is_topic else "queue", place.name
