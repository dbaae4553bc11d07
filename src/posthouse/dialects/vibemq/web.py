"""VibeMQ over HTTP: health, metrics, and the JSON API behind its web pages.

    GET    /health/  /metrics/
    GET    /api/version  /api/health  /api/metrics  /api/queues  /api/queues/Q
    GET    /api/queues/Q/messages?limit=50&offset=0  /api/queues/Q/messages/ID
    DELETE /api/queues/Q  /api/queues/Q/messages  /api/queues/Q/messages/ID

Health is open; the rest asks for a user and a password (Basic). The original writes keys as
snake_case, its documents as camelCase: health and metrics have both.
"""

import asyncio
import importlib.metadata
import os
import resource
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from posthouse.broker.access import ANYBODY, Principal, vouched
from posthouse.broker.engine import Engine
from posthouse.broker.memory import REFUSE
from posthouse.broker.view import Entity, View
from posthouse.core.commands import DeleteQueue, Peek, Peeked, Progress, Purge, Seen
from posthouse.core.errors import Busy, NotLeader, Refused, Unauthenticated
from posthouse.core.message import STATES, message_id
from posthouse.core.records import Completed, DeadLettered, Locked, Sent, Taken
from posthouse.dialects.http import (
    JSON,
    Answer,
    Header,
    HttpError,
    Request,
    allow,
    name_and_secret,
    unknown,
)
from posthouse.dialects.vibemq.answers import CODES, NOT_AUTHORIZED
from posthouse.dialects.vibemq.message import delivery
from posthouse.dialects.vibemq.peer import Peers
from posthouse.dialects.vibemq.queues import Info, info_of, iso_time, owner, resolve, told_name
from posthouse.dialects.vibemq.users import DELETE, INFO, LIST, PURGE, SUBSCRIBE, Rights
from posthouse.store.errors import StoreError

PAGE, PAGE_MAX = 50, 100  # messages in an answer
LOOK_MAX = 100_000  # messages that are passed over to find one, or a page
_STEP = 1_000  # that are looked at in one go
READY_SECONDS = 2  # what a sync may take before the broker is not healthy
_JSON: tuple[Header, ...] = (JSON, (b"cache-control", b"no-store"))
_EVERY_STATE = frozenset(range(len(STATES)))
_begun = time.monotonic()


class _MessageInfo(msgspec.Struct):
    id: str
    queue: str
    payload: msgspec.Raw
    headers: dict[str, str]
    priority: int
    timestamp: str
    delivery_attempts: int
    state: str


class _InfoInSnake(msgspec.Struct, omit_defaults=True):
    name: str
    message_count: int
    subscriber_count: int
    delivery_mode: int
    max_size: int
    created_at: str
    enable_dead_letter_queue: bool
    overflow_strategy: int
    max_retry_attempts: int
    message_ttl: str | None = None
    dead_letter_queue_name: str | None = None


class Web:
    """Everything that comes in at ports that are declared for it."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._users = peers.users
        self._namespace = peers.settings.namespace

    async def answer(self, request: Request) -> Answer:
        try:
            return await self._answer(request)
        except HttpError as error:
            return _problem(error.status, error.detail, error.headers)
        except Unauthenticated as refused:
            asks = (b"www-authenticate", b'Basic realm="VibeMQ", charset="UTF-8"')
            return _problem(401, str(refused), (asks,))
        except Refused as refused:
            _, status = CODES[type(refused)]
            return _problem(status, str(refused))

    async def _answer(self, request: Request) -> Answer:
        try:
            path = [unquote_to_bytes(each).decode() for each in request.parts]
        except UnicodeDecodeError:
            raise HttpError(400, "The path must be UTF-8.") from None
        while len(path) > 1 and not path[-1]:
            path.pop()
        if path == ["health"]:
            self._only("GET", request)
            return await self._health("healthy")
        principal = await self._identify(request)
        request.identified(principal)
        call = _Call(self, request, principal)
        match path:
            case ["metrics"]:
                self._only("GET", request)
                return _say(200, _both_styles(await self._figures()))
            case ["api", "version"]:
                self._only("GET", request)
                version = importlib.metadata.version("posthouse")
                return _say(200, {"server_version": version, "webui_version": version})
            case ["api", "health"]:
                self._only("GET", request)
                return await self._health("ok")
            case ["api", "metrics"]:
                self._only("GET", request)
                return _say(200, await self._figures())
            case ["api", "queues"]:
                return await _by_method(request, {"GET": call.queues})
            case ["api", "queues", queue]:
                call.name = queue
                return await _by_method(request, {"GET": call.queue, "DELETE": call.delete})
            case ["api", "queues", queue, "messages"]:
                call.name = queue
                return await _by_method(request, {"GET": call.messages, "DELETE": call.purge})
            case ["api", "queues", queue, "messages", id]:
                call.name, call.id = queue, id
                routes = {"GET": call.message, "DELETE": call.delete_message}
                return await _by_method(request, routes)
            case _:
                raise HttpError(404, "There is nothing here.")

    def _only(self, method: str, request: Request) -> None:
        if request.method not in (method, "HEAD"):
            raise HttpError(405, f"This takes {method}.", (allow([method]),))

    async def _identify(self, request: Request) -> Principal:
        """Raises Unauthenticated or Busy."""
        given = request.headers.get(b"authorization")
        if given is None:
            if self._peers.settings.dev and request.scheme == "http":
                return ANYBODY
            raise unknown(request)
        with request.login:
            return await self._users.identify(*name_and_secret(given))

    # How it goes.

    @property
    def engine(self) -> Engine:
        engine = self._peers.engine
        assert engine is not None  # the HTTP side has seen to it
        return engine

    @property
    def view(self) -> View:
        return self.engine.view

    async def _health(self, word: str) -> Answer:
        """Not healthy: what is sent cannot be made durable, or there is no memory for it."""
        engine, level = self.engine, self.engine.now().level
        why_not = "memory is used up by messages" if level >= REFUSE else ""
        try:
            async with asyncio.timeout(READY_SECONDS):
                await engine.prove()
        except TimeoutError:
            why_not = f"a sync takes more than {READY_SECONDS} s"
        except (StoreError, Busy, NotLeader) as error:
            why_not = str(error)
        figures, healthy = await self._figures(), not why_not
        found = {
            "is_healthy": healthy,
            "status": f"unhealthy: {why_not}" if why_not else word,
            "active_connections": figures["active_connections"],
            "queue_count": figures["active_queues"],
            "in_flight_messages": figures["in_flight_messages"],
            "total_messages_published": figures["total_messages_published"],
            "total_messages_delivered": figures["total_messages_delivered"],
            "memory_usage_mb": figures["memory_usage_bytes"] >> 20,
            "timestamp": figures["timestamp"],
        }
        return _say(200 if healthy else 503, _both_styles(found))

    async def _figures(self) -> dict[str, Any]:
        """Returns the metrics. Message totals are the whole broker's; connections are VibeMQ's."""
        engine, peers = self.engine, self._peers
        records, there = engine.figures.records, await self.view.overview(self._namespace)
        seconds = time.monotonic() - _begun
        return {
            "total_messages_published": records[Sent],
            "total_messages_delivered": records[Locked] + records[Taken],
            "total_messages_acknowledged": records[Completed] + records[Taken],
            "total_retries": peers.retries,
            "total_dead_lettered": records[DeadLettered],
            "total_errors": peers.errors,
            "total_connections_accepted": peers.accepted,
            "total_connections_rejected": peers.rejected,
            "active_connections": len(peers.peers),
            "active_queues": there.queues + there.topics,
            "in_flight_messages": there.counts.locked + there.dead_counts.locked,
            "memory_usage_bytes": _resident_bytes(),
            "average_delivery_latency_ms": round(peers.latency_ms / max(1, peers.delivered), 3),
            "timestamp": iso_time(time.time_ns() // 1_000_000),
            "uptime": _uptime(seconds),
        }

    def rights(self, principal: Principal) -> Rights | None:
        return self._users.rights(principal)

    @property
    def namespace(self) -> str:
        return self._namespace


class _Call:
    """One request, of which it is known who asks."""

    def __init__(self, web: Web, request: Request, principal: Principal) -> None:
        self._web = web
        self._request = request
        self._principal = principal
        self.name = self.id = ""

    def _check(self, operation: str, queue: str) -> None:
        rights = self._web.rights(self._principal)
        entity = owner(self._web.view, self._web.namespace, queue)
        if rights is None or not rights.allows(operation, entity):
            raise HttpError(403, f"{NOT_AUTHORIZED}: this takes {operation} on {queue!r}.")

    def _found(self, operation: str) -> Entity:
        """Raises HttpError."""
        self._check(operation, self.name)
        view, namespace = self._web.view, self._web.namespace
        found = view.entity(namespace, resolve(view, namespace, self.name))
        if found is None or "$" in self.name:  # such names are not for clients
            raise HttpError(404, f"There is no queue {self.name!r}.")
        return found

    async def _ask(self, command: DeleteQueue | Peek | Purge) -> Any:
        """Submits a command that has been allowed. Raises Refused or StoreError."""
        principal = vouched(self._principal)
        return await self._web.engine.ask(principal, self._web.namespace, command)

    async def queues(self) -> Answer:
        rights = self._web.rights(self._principal)
        view, namespace = self._web.view, self._web.namespace
        names = view.names(namespace)
        mine = [name for name in names if rights is not None and rights.allows(LIST, name)]
        found = [each for name in mine if (each := view.entity(namespace, name)) is not None]
        return _say(200, [_in_snake(info_of(each.name, view, each)) for each in found])

    async def queue(self) -> Answer:
        found = self._found(INFO)
        return _say(200, _in_snake(info_of(told_name(found.name), self._web.view, found)))

    async def delete(self) -> Answer:
        queue = self._found(DELETE).name
        await self._ask(DeleteQueue(queue))
        return Answer(b"", 204, _JSON)

    async def messages(self) -> Answer:
        queue = self._found(SUBSCRIBE).name
        limit = min(PAGE_MAX, max(1, self._number("limit", PAGE)))
        offset = self._number("offset", 0)
        if offset > LOOK_MAX:
            raise HttpError(400, f"offset is {LOOK_MAX} at most.")
        messages = self._web.view.messages
        there = messages.page(self._web.namespace, queue, 0, 1, skip=offset)
        if not there:
            return _say(200, [])
        peeked = await self._ask(Peek(queue, there[0].sequence, limit))
        assert isinstance(peeked, Peeked)
        return _say(200, [_as_info(each, told_name(queue)) for each in peeked.messages])

    def _number(self, name: str, default: int) -> int:
        text = self._request.query.get(name, str(default))
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise HttpError(400, f"{name} must be a number.")
        return int(text)

    async def message(self) -> Answer:
        queue = self._found(SUBSCRIBE).name
        peeked = await self._ask(Peek(queue, await self._sequence(queue)))
        assert isinstance(peeked, Peeked)
        if not peeked.messages:
            raise HttpError(404, f"There is no message {self.id!r}.")
        return _say(200, _as_info(peeked.messages[0], told_name(queue)))

    async def delete_message(self) -> Answer:
        queue = self._found(PURGE).name
        sequences = [await self._sequence(queue)]
        done = await self._ask(Purge(queue, _EVERY_STATE, sequences=sequences))
        assert isinstance(done, Progress)
        if not done.done:
            raise HttpError(404, f"There is no message {self.id!r}.")
        return Answer(b"", 204, _JSON)

    async def purge(self) -> Answer:
        queue = self._found(PURGE).name
        first: int | None = 0
        while first is not None:
            self._check(PURGE, self.name)  # it may take long, and the right be gone meanwhile
            done = await self._ask(Purge(queue, _EVERY_STATE, first=first))
            assert isinstance(done, Progress)
            first = done.next
        return Answer(b"", 204, _JSON)

    async def _sequence(self, queue: str) -> int:
        """Returns the sequence number of the oldest message of that id. Raises HttpError."""
        first = 0
        for _ in range(LOOK_MAX // _STEP):
            messages = self._web.view.messages.page(self._web.namespace, queue, first, _STEP)
            for each in messages:
                if message_id(each.envelope) == self.id:
                    return each.sequence
            if len(messages) < _STEP:
                break
            first = messages[-1].sequence + 1
            await asyncio.sleep(0)  # others have their turn
        raise HttpError(404, f"There is no message {self.id!r}.")


Route = Callable[[], Awaitable[Answer]]


async def _by_method(request: Request, routes: Mapping[str, Route]) -> Answer:
    route = routes.get("GET" if request.method == "HEAD" else request.method)
    if route is None:
        raise HttpError(405, f"{request.method} is not for this path.", (allow(routes),))
    return await route()


def _as_info(seen: Seen, queue: str) -> _MessageInfo:
    message = seen.message
    frame = delivery(message, seen.note, queue)
    return _MessageInfo(
        frame.id or str(message.sequence), queue, msgspec.Raw(frame.payload or b"null"),
        dict(frame.headers), message.priority, iso_time(message.enqueued_ms), message.count,
        seen.state,
    )  # fmt: skip


def _in_snake(info: Info) -> _InfoInSnake:
    return _InfoInSnake(**msgspec.structs.asdict(info))


def _both_styles(found: dict[str, Any]) -> dict[str, Any]:
    return found | {_camel(name): value for name, value in found.items()}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(each.title() for each in rest)


def _say(status: int, found: object) -> Answer:
    return Answer(msgspec.json.encode(found), status, _JSON)


def _problem(status: int, text: str, headers: tuple[Header, ...] = ()) -> Answer:
    return Answer(msgspec.json.encode({"error": text}), status, (*_JSON, *headers))


def _uptime(seconds: float) -> str:
    """Formats a duration as .NET does."""
    whole, days = int(seconds), int(seconds) // 86_400
    clock = f"{whole % 86_400 // 3_600:02}:{whole % 3_600 // 60:02}:{whole % 60:02}"
    ticks = f"{int((seconds - whole) * 10_000_000):07}"
    return f"{days}.{clock}.{ticks}" if days else f"{clock}.{ticks}"


def _resident_bytes() -> int:
    """Returns the resident memory of the process; its maximum where the current size is unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return pages * os.sysconf("SC_PAGE_SIZE")
