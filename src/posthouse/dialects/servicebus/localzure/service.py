"""Routes of LocalZure's API."""

from collections.abc import Awaitable, Callable
from functools import lru_cache

import msgspec

from posthouse.broker.access import ANYBODY, Principal
from posthouse.broker.engine import Engine
from posthouse.broker.shares import Remembered
from posthouse.core.errors import NotFound, Refused
from posthouse.core.model import Right
from posthouse.dialects.exposition import Exposition
from posthouse.dialects.http import (
    CORRELATION,
    JSON,
    Answer,
    HttpError,
    Request,
    allow,
    charge,
    correlation_id,
)
from posthouse.dialects.servicebus.credentials import Credentials
from posthouse.dialects.servicebus.localzure import documents, entities, messages
from posthouse.dialects.servicebus.localzure.call import Call, Limits
from posthouse.dialects.servicebus.localzure.errors import (
    Failed,
    Unprocessable,
    failed_by,
    told,
    told_unprocessable,
)
from posthouse.dialects.servicebus.localzure.figures import Figures
from posthouse.dialects.servicebus.localzure.places import Place, place_of
from posthouse.dialects.servicebus.web import Path, host_of, path_of, principal_of
from posthouse.uuids import new_uuid

SESSIONS_MAX = 100_000  # that are remembered as held
_OPEN = ("health", "docs", "metrics")  # what is told of the service itself
_TEXT = (b"content-type", b"text/plain; charset=utf-8")

Key = tuple[str, str, str, Principal]  # namespace, queue, session, who holds it
Route = Callable[[Call], Awaitable[Answer]]


class Service:
    """LocalZure's API."""

    def __init__(self, credentials: Credentials, limits: Limits) -> None:
        self._credentials = credentials
        self.limits = limits
        self.figures = Figures()
        self._exposition = Exposition()
        self._sessions: Remembered[Key, int] = Remembered(SESSIONS_MAX)

    @property
    def engine(self) -> Engine:
        return self._credentials.engine

    @property
    def header_bytes(self) -> int:
        return self._credentials.settings.header_bytes

    def check(self, principal: Principal, right: Right, namespace: str, entity: str) -> None:
        """Raises Unauthorized."""
        self._credentials.check(principal, right, namespace, entity)

    # Sessions: the API names them by their ids alone.

    def hold(self, key: Key, token: int) -> None:
        shares = self.engine.shares
        self._sessions.put(key, token, shares.name(key[3]), shares.percent)

    def let_go(self, key: Key) -> None:
        self._sessions.pop(key)

    def held(self, key: Key) -> int:
        return self._sessions.get(key) or 0

    async def answer(self, request: Request) -> Answer:
        correlation = _correlation(request)
        parts: tuple[str, ...] = ()
        try:
            path = path_of(request)
            parts = path.parts[1:]
            answer = await self._answer(request, path, parts)
        except Unprocessable as wrong:
            answer = told_unprocessable(wrong)
            self.figures.failed(_operation(request.method, parts), "ValidationError")
        except Failed as failed:
            operation = _operation(request.method, parts)
            failed.details.setdefault("operation", operation)
            self.figures.failed(operation, failed.code)
            answer = told(failed, correlation)
        except HttpError as wrong:
            self.figures.failed("request", "InvalidOperation")
            answer = told(Failed(wrong.status, "InvalidOperation", wrong.detail), correlation)
        body, status, headers, _ = answer
        return Answer(body, status, (*headers, (CORRELATION, correlation.encode())))

    async def _answer(self, request: Request, path: Path, parts: tuple[str, ...]) -> Answer:
        """Raises Failed, Unprocessable or HttpError."""
        if request.method == "GET" and parts and parts[0] in _OPEN:
            return await self._tell(request, path, parts)
        principal = self._principal(request, path)
        try:
            charge(self.engine.throttle, request)
        except Refused as refused:
            raise failed_by(refused) from None
        place, routes = _found(parts)
        try:
            namespace = self._credentials.namespace_at(host_of(request), principal, place.namespace)
        except Refused as refused:
            raise failed_by(refused) from None
        call = Call(self, request, principal, namespace, place)
        try:
            return await _route(routes, request.method)(call)
        except NotFound as missing:
            kind, name = call.missing()
            raise failed_by(missing, entity_type=kind, entity_name=name) from None
        except Refused as refused:
            known = {"entity_type": place.kind, "entity_name": place.name or namespace}
            raise failed_by(refused, **known) from None

    async def _tell(self, request: Request, path: Path, parts: tuple[str, ...]) -> Answer:
        """Answers requests about the service itself. Raises Failed."""
        match parts:
            case ["health", "live"]:
                return Answer(b"Alive", 200, (_TEXT,))
            case ["health", "ready"]:
                return await self._ready()
            case ["health"]:
                return await self._health(request, path)
            case ["docs", *rest]:
                return documents.answer(rest)
            case ["metrics"]:
                return await self._metrics(self._principal(request, path))
            case _:
                raise _nothing_here()

    def _principal(self, request: Request, path: Path) -> Principal:
        """LocalZure asks for no credentials; that is as good as --dev. Raises Failed."""
        given = request.headers.get(b"authorization")
        if self._credentials.settings.dev and request.scheme == "http" and given is None:
            request.identified(ANYBODY)
            return ANYBODY
        try:
            return principal_of(self._credentials, request, path)
        except Refused as refused:
            raise failed_by(refused) from None

    # How it is.

    async def _ready(self) -> Answer:
        try:
            await self.engine.prove()
        except Refused as refused:
            raise failed_by(refused) from None
        return Answer(b"Ready", 200, (_TEXT,))

    async def _health(self, request: Request, path: Path) -> Answer:
        """How much there is of everything is told to who manages all of it."""
        await self._ready()
        brief = Answer(b'{"status":"healthy","service":"servicebus"}', 200, (JSON,))
        if b"authorization" not in request.headers and not self._credentials.settings.dev:
            return brief
        principal = self._principal(request, path)
        try:
            self.check(principal, "manage", "*", "*")
        except Refused:
            return brief
        found = await self.engine.view.overview()
        said = {
            "status": "healthy", "service": "servicebus", "queues": found.queues,
            "topics": found.topics, "subscriptions": found.subscriptions,
            "active_messages": found.counts.active,
            "scheduled_messages": found.counts.scheduled, "active_locks": found.locks,
        }  # fmt: skip
        return Answer(msgspec.json.encode(said), 200, (JSON,))

    async def _metrics(self, principal: Principal) -> Answer:
        """Answers with the metrics, for a principal that may manage everything. Raises Failed."""
        try:
            accounts = self.engine.view.accounts
            self._credentials.guard.check_right(accounts, principal, "manage", "*", "*")
        except Refused as refused:
            raise failed_by(refused) from None
        families = self.figures.collect(self.engine.view)
        text, content_type = await self._exposition.write(families)
        return Answer(text, 200, ((b"content-type", content_type),))


def _correlation(request: Request) -> str:
    given = correlation_id(request.headers, CORRELATION, b"correlation-id")
    return given or new_uuid()


def _operation(method: str, parts: tuple[str, ...]) -> str:
    """Names the operation of a request, as one of a bounded number of words."""
    if "messages" in parts[:-1]:
        last = parts[parts.index("messages") + 1].casefold()
        verbs = ("head", "receive", "batch", "deferred", *messages.VERBS)
        return last if last in verbs else "settle"
    if parts[-1:] == ("messages",):
        return "send"
    known = next(
        (word for word in ("rules", "sessions", "transactions") if word in parts), "entity"
    )
    return f"{method.lower()}_{known}" if method in ("GET", "PUT", "POST", "DELETE") else known


def _nothing_here() -> Failed:
    return Failed(404, "EntityNotFound", "There is nothing at this path; see /servicebus/docs.")


async def _list_queues(call: Call) -> Answer:
    return await entities.list_all(call, "queue")


async def _list_topics(call: Call) -> Answer:
    return await entities.list_all(call, "topic")


async def _list_subscriptions(call: Call) -> Answer:
    return await entities.list_all(call, "subscription")


_ENTITY: dict[str, Route] = {
    "GET": entities.get, "PUT": entities.put, "DELETE": entities.delete,
}  # fmt: skip
_RULE: dict[str, Route] = {
    "GET": entities.get_rule, "PUT": entities.put_rule, "DELETE": entities.delete_rule,
}  # fmt: skip
_STATE: dict[str, Route] = {"GET": messages.get_state, "PUT": messages.set_state}
_SEND: dict[str, Route] = {"POST": messages.send}
_RECEIVE: dict[str, Route] = {"POST": messages.receive}
_SETTLE: dict[str, Route] = dict.fromkeys(("DELETE", "PUT", "POST"), messages.settle_by_path)


@lru_cache(1_000)
def _found(parts: tuple[str, ...]) -> tuple[Place, dict[str, Route]]:
    """Returns the place that a path leads to, and the routes there."""
    place = place_of(parts)
    return place, _of_namespace(place.rest) if place.kind == "namespace" else _of_entity(place)


def _of_namespace(rest: tuple[str, ...]) -> dict[str, Route]:
    match rest:
        case ["queues"]:
            return {"GET": _list_queues}
        case ["topics"]:
            return {"GET": _list_topics}
        case ["$Resources" | "$resources", kind] if kind.casefold() == "queues":
            return {"GET": _list_queues}
        case ["$Resources" | "$resources", kind] if kind.casefold() == "topics":
            return {"GET": _list_topics}
        case ["transactions"]:
            return {"POST": messages.begin}
        case ["transactions", _, "commit"]:
            return {"POST": messages.commit}
        case ["transactions", _, "rollback"]:
            return {"POST": messages.roll_back}
        case _:
            return {}


def _of_entity(place: Place) -> dict[str, Route]:
    rest = [*map(str.casefold, place.rest[:2]), *place.rest[2:]]
    match rest:
        case ["messages", id, _] if id != "scheduled" and place.kind != "topic":
            return _SETTLE  # first: there is another such path for every message
        case [] if not place.dead:
            return _ENTITY
        case ["messages"] if not place.dead and place.kind != "subscription":
            return _SEND
        case ["messages", "batch"] if not place.dead and place.kind != "subscription":
            return {"POST": messages.send_batch}
    if place.kind == "topic":
        return {"GET": _list_subscriptions} if rest == ["subscriptions"] else {}
    match rest:
        case ["messages", "head"]:
            return {"POST": messages.head, "DELETE": messages.take_head}
        case ["messages", "receive"]:
            return _RECEIVE
        case ["messages", "deferred"]:
            return {"POST": messages.deferred}
        case ["messages", verb] if verb in messages.VERBS:
            return {"POST": messages.settle_by_token}
        case ["messages", "scheduled", _]:
            return {"DELETE": messages.cancel}
        case ["messages", _, _, verb] if verb.casefold() in messages.VERBS:
            return dict.fromkeys(("PUT", "POST"), messages.settle_by_path)
        case ["sessions", "accept"]:
            return {"POST": messages.accept}
        case ["sessions", _]:
            return {"DELETE": messages.release_session}
        case ["sessions", _, "renewlock"]:
            return {"POST": messages.renew_session}
        case ["sessions", _, "state"]:
            return _STATE
        case ["rules"] if place.kind == "subscription":
            return {"GET": entities.list_rules}
        case ["rules", _] if place.kind == "subscription":
            return _RULE
    return {}


def _route(routes: dict[str, Route], method: str) -> Route:
    """Raises Failed."""
    if not routes:
        raise _nothing_here()
    route = routes.get(method)
    if route is None:
        raise Failed(405, "InvalidOperation", "This path is not for that.", (allow(routes),))
    return route
