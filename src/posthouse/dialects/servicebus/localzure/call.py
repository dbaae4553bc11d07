"""One request to LocalZure's API: who asks, where, and what is counted of it."""

import contextlib
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, NamedTuple

from posthouse.broker.access import Principal
from posthouse.broker.engine import Engine
from posthouse.broker.view import View
from posthouse.core.commands import HAND_ON_MAX, Answer, Command
from posthouse.core.errors import NotFound
from posthouse.core.filters.problems import TooManyLooks
from posthouse.core.message import NewMessage
from posthouse.core.model import DEAD, QueueProperties, Right, entity_of, subscription_queue
from posthouse.dialects.http import Request
from posthouse.dialects.servicebus.localzure.errors import Failed
from posthouse.dialects.servicebus.localzure.figures import Figures
from posthouse.dialects.servicebus.localzure.places import Place

if TYPE_CHECKING:
    from posthouse.dialects.servicebus.localzure.service import Service


class Limits(NamedTuple):
    """Limits of what this API keeps."""

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
        self._properties: QueueProperties | None = None

    def _exact(self, place: Place) -> str:
        if not place.queue:
            return place.queue
        if place.kind == "subscription":
            topic = self._find(place.topic) or place.topic
            mine = subscription_queue(topic, place.name) + (DEAD if place.dead else "")
            return self._find(mine) or mine
        return self._find(place.queue) or place.queue

    def _find(self, name: str) -> str | None:
        return self.engine.view.find(self.namespace, name)

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
    def view(self) -> View:
        """Raises NotFound where there is no such namespace."""
        view = self.engine.view
        if not view.has_namespace(self.namespace):
            raise NotFound("namespace", self.namespace)
        return view

    @property
    def properties(self) -> QueueProperties | None:
        """The queue's or topic's, as they were when they were first found; None: it is not there.

        Raises NotFound where there is no such namespace.
        """
        if self._properties is None:
            self._properties = self.view.properties(self.namespace, self.queue)
        return self._properties

    @property
    def is_topic(self) -> bool:
        properties = self.properties
        return properties is not None and properties.delivery == "topic"

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
        """Checks that the entity is there, for a client that may listen to it.

        Raises Unauthorized or NotFound.
        """
        self.check("listen")
        if not self.view.exists(self.namespace, self.queue):
            raise NotFound("queue", self.queue, self.namespace)

    def missing(self) -> tuple[str, str]:
        """Returns the kind and the name of the part of the place that is missing."""
        place = self.place
        if place.kind == "subscription" and self._find(place.topic) is None:
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
        held = self.view.messages.session_token(self.namespace, self.queue, session)
        if not token or held != token:
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
        view = self.view
        if view.match_effort(self.namespace, self.queue) > HAND_ON_MAX:
            return
        begun = time.perf_counter()
        with contextlib.suppress(TooManyLooks):
            view.matches(self.namespace, self.queue, message.envelope)
        self.figures.evaluated(self.place.name, time.perf_counter() - begun)

    def _labels(self) -> tuple[str, str]:
        place = self.place
        if place.kind == "subscription":
            return place.kind, f"{place.topic}/{place.name}"
        return "topic" if self.is_topic else "queue", place.name
