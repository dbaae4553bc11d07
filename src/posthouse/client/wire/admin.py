"""Administration of a Posthouse broker, over its HTTP API on the port that speaks AMQP too.

It is asked for seldom: each request has a connection of its own, in a thread.
"""

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ssl import SSLCertVerificationError
from typing import Any
from urllib.parse import quote, urlencode
from uuid import UUID

from posthouse.amqp.performatives import Problem
from posthouse.client.addresses import Address, Turns
from posthouse.client.admin import (
    Counts,
    Kind,
    Rule,
    Settings,
    broker_fields,
    broker_properties,
    rule_fields,
)
from posthouse.client.attributes import AttributeValue, check_attributes
from posthouse.client.config import PosthouseConfig
from posthouse.client.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    ProviderError,
    QueueError,
    QueueNotFound,
)
from posthouse.client.names import SUBSCRIPTION, QueueName
from posthouse.client.provider import ProviderType, Source
from posthouse.client.secret import reveal
from posthouse.client.wire.connection import (
    NODE_CONNECT_SECONDS,
    missing_key,
    tls_context,
    untrusted,
)
from posthouse.client.wire.problems import error_of

SECONDS = 30.0  # that one request may take
ANSWER_BYTES_MAX = 32 << 20
PAGE = 1_000
_DEAD = "/$dead"
_FIRST = datetime(1970, 1, 1, tzinfo=UTC)


class _Refused(Exception):
    """The broker has refused a request."""

    def __init__(self, code: str, error: QueueError) -> None:
        super().__init__(code)
        self.code = code
        self.error = error


class _NotReached(Exception):
    """No request was made, as there was no connection."""

    def __init__(self, error: ConnectionFailed) -> None:
        super().__init__(str(error))
        self.error = error


class PosthouseAdmin:
    def __init__(self, config: PosthouseConfig, turns: Turns) -> None:
        self._config = config
        self._turns = turns
        self._headers = {"content-type": "application/json"}
        if config.key:
            credentials = f"{config.key_name}:{reveal(config.key)}".encode()
            self._headers["authorization"] = "Basic " + b64encode(credentials).decode()

    async def close(self) -> None:
        """Nothing: there is no connection between requests."""

    # Entities.

    async def create(
        self, kind: Kind, name: QueueName, settings: Settings, rules: Sequence[Rule] | None
    ) -> bool:
        form: dict[str, Any] = broker_properties(settings)
        if rules is not None:
            form["rules"] = [{"name": each.name, **_rule_form(each)} for each in rules]
        try:
            await self._request("PUT", _path(kind, name), form, what=name.topic or name)
        except _Refused as refused:
            if refused.code == "already-exists":
                await self._check(kind, name)
                return False
            raise refused.error from None
        return True

    async def _check(self, kind: Kind, name: QueueName) -> None:
        """Raises QueueNotFound for an entity that is missing or of another kind."""
        found = await self._ask("GET", _path(kind, name), what=name)
        is_topic = found["properties"]["delivery"] == "topic"
        if is_topic != (kind == "topic"):
            raise QueueNotFound(name, self._namespace)

    async def update(self, kind: Kind, name: QueueName, settings: Settings) -> None:
        await self._check(kind, name)
        await self._ask("PATCH", _path(kind, name), broker_properties(settings), what=name)

    async def delete(self, kind: Kind, name: QueueName) -> None:
        await self._check(kind, name)
        await self._ask("DELETE", _path(kind, name), what=name)

    async def names(self, kind: Kind, topic: str = "") -> list[str]:
        if kind == "subscription":
            found = await self._pages(f"/topics/{_quoted(topic)}/subscriptions", topic)
            return [each["name"].partition(SUBSCRIPTION)[2] for each in found]
        return [each["name"] for each in await self._pages(f"/{kind}s", "")]

    # Messages.

    async def counts(self, name: QueueName) -> Counts:
        counts = (await self._ask("GET", _queue(name), what=name))["counts"]
        return Counts(
            counts["active"], counts["dead"], counts["scheduled"] + counts["delayed"],
            counts["deferred"], counts["locked"],
        )  # fmt: skip

    async def purge(self, source: Source) -> int:
        queue = source.queue + _DEAD if source.dead_letter else source.queue
        done = 0
        following: int | None = 0
        while following is not None:
            form = {"first": following}
            answer = await self._ask("POST", f"{_queue(queue)}/purge", form, what=source.queue)
            done, following = done + answer["done"], answer["next"]
        return done

    async def resubmit(self, queue: QueueName, sequences: Sequence[int]) -> None:
        """Sends dead letters of a subscription to it again, which cannot be done over AMQP."""
        form = {"sequences": list(sequences)}
        await self._ask("POST", f"{_queue(queue + _DEAD)}/resubmit", form, what=queue)

    # Rules.

    async def rules(self, name: QueueName) -> list[Rule]:
        found = await self._pages(f"{_path('subscription', name)}/rules", name)
        return [_rule(each) for each in found]

    async def set_rule(self, name: QueueName, rule: Rule) -> None:
        path = f"{_path('subscription', name)}/rules/{_quoted(rule.name)}"
        try:
            await self._request("PUT", path, _rule_form(rule), what=name)
        except _Refused as refused:
            if refused.code != "already-exists":
                raise refused.error from None
            await self._ask("PATCH", path, _rule_form(rule), what=name)

    async def delete_rule(self, name: QueueName, rule: str) -> None:
        await self._ask("DELETE", f"{_path('subscription', name)}/rules/{_quoted(rule)}", what=name)

    # Asking.

    @property
    def _namespace(self) -> str:
        return self._config.namespace or "default"

    async def _pages(self, path: str, what: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        after, key = "", path.rpartition("/")[2]
        while True:
            asked = f"{path}?{urlencode({'limit': PAGE, 'after': after})}"
            answer = await self._ask("GET", asked, what=what)
            found += answer[key]
            after = answer["next"]
            if after is None:
                return found

    async def _ask(self, method: str, path: str, form: object = None, *, what: str) -> Any:
        """Raises QueueError."""
        try:
            return await self._request(method, path, form, what=what)
        except _Refused as refused:
            raise refused.error from None

    async def _request(self, method: str, path: str, form: object, *, what: str) -> Any:
        """Raises QueueError, and `_Refused` for what the broker refuses."""
        path = f"/api/v1/namespaces/{_quoted(self._namespace)}{path}"
        body = None if form is None else json.dumps(form)
        address, status, data = await self._to_first_that_answers(method, path, body)
        try:
            answer: Any = json.loads(data) if data else None
            if status < 300:
                return answer
            code, text = str(answer["code"]), str(answer.get("detail") or answer["title"])
            facts = answer.get("facts") or {}
        except (ValueError, LookupError, TypeError, AttributeError):
            raise ProviderError(
                "posthouse", str(status), "What answers is not a broker's HTTP API.",
                is_transient=status >= 500,
            ) from None  # fmt: skip
        if status == 401:
            raise AuthenticationFailed(text if self._config.key else missing_key(address))
        info = {f"posthouse:{name}": each for name, each in {**facts, "code": code}.items()}
        raise _Refused(code, error_of(Problem(code, text, info), what))

    async def _to_first_that_answers(
        self, method: str, path: str, body: str | None
    ) -> tuple[Address, int, bytes]:
        """Makes a request. The next node is asked where nothing was said to this one.

        Raises ConnectionFailed.
        """
        failure: _NotReached | None = None
        for address in self._turns:
            try:
                status, data = await asyncio.to_thread(self._exchange, address, method, path, body)
            except _NotReached as error:
                failure = error
                self._turns.lose(address)
            else:
                return address, status, data
        assert failure is not None
        raise failure.error from failure

    def _reach(self, address: Address) -> HTTPConnection:
        """Raises _NotReached."""
        config = self._config
        seconds = SECONDS if len(self._turns) == 1 else NODE_CONNECT_SECONDS
        try:
            made: HTTPConnection = (
                HTTPSConnection(*address, timeout=seconds, context=tls_context(config))
                if config.tls
                else HTTPConnection(*address, timeout=seconds)
            )
            made.connect()
        except SSLCertVerificationError as error:
            raise _NotReached(untrusted(error)) from error
        except OSError as error:
            raise _NotReached(_no_broker(address, error)) from error
        made.sock.settimeout(SECONDS)
        return made

    def _exchange(
        self, address: Address, method: str, path: str, body: str | None
    ) -> tuple[int, bytes]:
        """Makes one request, in a thread. Raises ConnectionFailed, or _NotReached before it."""
        connection = self._reach(address)
        try:
            connection.request(method, path, body, self._headers)
            response = connection.getresponse()
            data = response.read(ANSWER_BYTES_MAX + 1)
        except (OSError, HTTPException) as error:
            raise _no_broker(address, error) from error
        finally:
            connection.close()
        if len(data) > ANSWER_BYTES_MAX:
            raise ProviderError(
                "posthouse", str(response.status), f"It has more than {ANSWER_BYTES_MAX} bytes.",
                is_transient=False,
            )  # fmt: skip
        return response.status, data


def _no_broker(address: Address, error: Exception) -> ConnectionFailed:
    return ConnectionFailed(f"There is no broker at {address}: {error}.")


def _quoted(name: str) -> str:
    return quote(name, safe="$")


def _queue(name: str) -> str:
    return f"/queues/{_quoted(name)}"


def _path(kind: Kind, name: QueueName) -> str:
    if kind == "subscription":
        topic, subscription = name.topic or "", name.subscription or ""
        return f"/topics/{_quoted(topic)}/subscriptions/{_quoted(subscription)}"
    return f"/{kind}s/{_quoted(name)}"


def _rule_form(rule: Rule) -> dict[str, Any]:
    """Raises Unsupported, ValidationError."""
    form: dict[str, Any] = {"kind": "true"}
    if rule.sql is not None:
        form = {"kind": "sql", "expression": rule.sql}
    elif rule.fields or rule.attributes:
        check_attributes(rule.attributes, ProviderType.POSTHOUSE)
        values = {name: _value_form(value) for name, value in rule.attributes.items()}
        form = {"kind": "correlation", **broker_fields(rule), "properties": values}
    elif rule.pattern is not None:
        form = {"kind": "pattern", "pattern": rule.pattern}
    return {"filter": form, "action": rule.action or ""}


def _rule(form: dict[str, Any]) -> Rule:
    wanted: dict[str, Any] = form["filter"]
    sql, pattern = None, None
    fields, attributes = dict[str, str](), dict[str, AttributeValue]()
    match wanted.pop("kind"):
        case "sql":
            sql = wanted["expression"]
        case "false":
            sql = "1=0"
        case "pattern":
            pattern = wanted["pattern"]
        case "correlation":
            attributes = {n: _value_in(v) for n, v in wanted.pop("properties", {}).items()}
            fields = rule_fields({n: v for n, v in wanted.items() if v is not None})
        case _:
            pass
    return Rule(form["name"], sql, fields, attributes, form["action"] or None, pattern)


def _value_form(value: AttributeValue) -> object:
    """A value as the HTTP API has it."""
    match value:
        case bytes():
            return {"bytes": b64encode(value).decode()}
        case datetime():
            return {"timestamp_ms": round(value.timestamp() * 1_000)}
        case UUID():
            return {"uuid": str(value)}
        case _:
            return value


def _value_in(form: Any) -> AttributeValue:
    match form:
        case {"bytes": text}:
            return b64decode(text)
        case {"timestamp_ms": number}:
            return _FIRST + timedelta(milliseconds=number)
        case {"uuid": text}:
            return UUID(text)
        case dict():
            return json.dumps(form)
        case _:
            plain: AttributeValue = "" if form is None else form
            return plain
