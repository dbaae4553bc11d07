"""Which paths there are, and who answers them."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from posthouse.server import hot
from posthouse.server.broker import Broker
from posthouse.server.feed import Feed
from posthouse.server.health import health
from posthouse.server.http import Answer, App, HttpDialect, Request, Shared, WholeAnswer
from posthouse.server.metrics import Metrics
from posthouse.server.problems import HttpProblem

if TYPE_CHECKING:
    from posthouse.dialects.pyqueue.web import Web as PyQueueWeb
    from posthouse.dialects.servicebus.localzure.service import Service
    from posthouse.dialects.servicebus.web import Web
    from posthouse.dialects.vibemq.web import Web as VibemqWeb

_HTML = (b"content-type", b"text/html; charset=utf-8")
_SCRIPT = (b"content-type", b"text/javascript; charset=utf-8")
_STYLE = (b"content-type", b"text/css; charset=utf-8")
_POLICY = (
    b"content-security-policy",
    b"default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline';"
    b" frame-ancestors 'none'",
)


def http_dialects(
    service_bus: Callable[[], "Web"], localzure: Callable[[], "Service"]
) -> tuple[HttpDialect, ...]:
    """Recognised in this order, before the paths that are ours."""

    def to_localzure(request: Request) -> Awaitable[WholeAnswer]:
        return localzure().answer(request)

    def to_service_bus(request: Request) -> Awaitable[WholeAnswer]:
        return service_bus().answer(request)

    return (
        HttpDialect("SQS", _is_sqs, None),
        HttpDialect("Azure Service Bus over HTTP", _is_service_bus, to_service_bus),
        HttpDialect("LocalZure's own API", _is_localzure, to_localzure),
        HttpDialect("Azure Service Bus over HTTP", _is_nobody_elses, to_service_bus),
    )


def doors(
    pyqueue: Callable[[], "PyQueueWeb"], vibemq: Callable[[], "VibemqWeb"]
) -> dict[str, HttpDialect]:
    """Who answers on a port that was declared for it."""

    def to_pyqueue(request: Request) -> Awaitable[WholeAnswer]:
        return pyqueue().answer(request)

    def to_vibemq(request: Request) -> Awaitable[WholeAnswer]:
        return vibemq().answer(request)

    return {
        "pyqueue-http": HttpDialect("PyQueue's API over HTTP", _always, to_pyqueue),
        "vibemq-http": HttpDialect("VibeMQ's API over HTTP", _always, to_vibemq),
    }


def _always(request: Request, is_ours: bool) -> bool:
    return True


def _is_sqs(request: Request, _: bool) -> bool:
    headers = request.headers
    return (
        headers.get(b"authorization", b"").startswith(b"AWS4-HMAC-SHA256")
        or headers.get(b"x-amz-target", b"").startswith(b"AmazonSQS")
        or "Action" in request.query
    )


def _is_service_bus(request: Request, _: bool) -> bool:
    headers = request.headers
    return request.parts[0] != b"servicebus" and (
        headers.get(b"authorization", b"").startswith(b"SharedAccessSignature")
        or b"brokerproperties" in headers
        or "api-version" in request.query
    )


def _is_localzure(request: Request, _: bool) -> bool:
    return bool(request.parts[0] == b"servicebus")


def _is_nobody_elses(request: Request, is_ours: bool) -> bool:
    """What is left, but for the page that people come to first."""
    return not is_ours and request.parts[0] not in (b"", b"favicon.ico", b"robots.txt")


def add_routes(app: App, broker: Broker, feed: Feed, metrics: Metrics) -> None:
    async def api(request: Request) -> Answer:
        assert broker.engine is not None
        throttle = broker.engine.throttle
        if throttle.is_on:
            throttle.check_address(request.address)
        found = hot.find(request)
        if found is not None:
            route, target = found
            return await route(broker.engine, request, target)
        from posthouse.server import api as administration  # a start need not wait for it

        return await administration.run(request, broker, feed)

    async def docs(request: Request) -> Answer:
        """Of what is in them nothing is secret, so they are open."""
        from posthouse.server import api as documents

        match request.parts[1:]:
            case [] | [b""]:
                return Answer(documents.PAGE.encode(), 200, (_HTML, _POLICY))
            case [b"openapi.json"]:
                return Answer(Shared(documents.document()))
            case [b"start.js"]:
                return Answer(documents.START.encode(), 200, (_SCRIPT,))
            case [name] if name.decode("latin-1") in documents.ASSETS:
                kind = _SCRIPT if name.endswith(b".js") else _STYLE
                return Answer(Shared(documents.asset(name.decode())), 200, (kind,))
            case _:
                raise HttpProblem(404, "not-found", "There are /docs and /docs/openapi.json.")

    app.serve(b"health", health(broker), open=True)
    app.serve(b"docs", docs, open=True)
    app.serve(b"api", api)
    app.serve(b"feed", feed.answer)
    app.serve(b"metrics", metrics.answer)
