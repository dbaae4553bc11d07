"""The paths of the HTTP server, and the handlers that answer them."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from posthouse.dialects.dialect import Dialect, HttpPath, Precedence
from posthouse.dialects.http import HTML, SCRIPT, charge
from posthouse.server import hot
from posthouse.server.feed import Feed
from posthouse.server.folder_api import FolderApi
from posthouse.server.health import Certificate, health
from posthouse.server.host import BrokerHost
from posthouse.server.http import Answer, App, HttpDialect, HttpDialects, Request, Shared
from posthouse.server.metrics import Metrics
from posthouse.server.problems import HttpProblem
from posthouse.server.relay import Relay

_STYLE = (b"content-type", b"text/css; charset=utf-8")
_POLICY = (
    b"content-security-policy",
    b"default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline';"
    b" frame-ancestors 'none'",
)


def http_dialects(dialects: Sequence[tuple[Dialect[Any, Any], Any]]) -> HttpDialects:
    """The HTTP handlers of dialects, each bound to the state that its requests share."""
    found = sorted(
        ((path, shared) for dialect, shared in dialects for path in dialect.paths),
        key=lambda each: each[0].precedence,
    )
    http_profiles = {
        profile.word: HttpDialect(profile.name, _always, partial(profile.answer, shared))
        for dialect, shared in dialects
        if (profile := dialect.profile) is not None
    }
    return HttpDialects(
        [_bound(path, shared) for path, shared in found if path.precedence != Precedence.REST],
        [_bound(path, shared) for path, shared in found if path.precedence == Precedence.REST],
        http_profiles,
    )


def _bound(path: HttpPath[Any], shared: Any) -> HttpDialect:
    return HttpDialect(path.name, path.recognise, partial(path.answer, shared))


def _always(_: Request) -> bool:
    return True


def add_routes(
    app: App,
    broker: BrokerHost,
    feed: Feed,
    metrics: Metrics,
    certificate: Certificate,
    relay: Relay | None = None,
) -> None:
    async def api(request: Request) -> Answer:
        assert broker.engine is not None
        charge(broker.engine.throttle, request)
        found = hot.find(request)
        if found is not None:
            route, target = found
            return await route(broker.engine, request, target)
        from posthouse.server import api as administration  # a start need not wait for it

        return await administration.run(request, broker, feed)

    async def docs(request: Request) -> Answer:
        """Serves the documents. Nothing in them is secret, so they need no credentials."""
        from posthouse.server import api as documents

        match request.parts[1:]:
            case [] | [b""]:
                return Answer(documents.PAGE.encode(), 200, (HTML, _POLICY))
            case [b"openapi.json"]:
                return Answer(Shared(documents.document(relay is not None)))
            case [b"start.js"]:
                return Answer(documents.START.encode(), 200, (SCRIPT,))
            case [name] if name.decode("latin-1") in documents.ASSETS:
                kind = SCRIPT if name.endswith(b".js") else _STYLE
                return Answer(Shared(documents.asset(name.decode())), 200, (kind,))
            case _:
                raise HttpProblem(404, "not-found", "There are /docs and /docs/openapi.json.")

    folder = FolderApi(broker)

    app.serve(b"health", health(broker, certificate, relay), open=True)
    app.serve(b"docs", docs, open=True)
    app.serve(b"api", api)
    app.serve(b"feed", feed.answer)
    app.serve(b"metrics", metrics.answer)
    if relay is None:
        app.serve(b"cluster", folder.answer)
    else:
        from posthouse.server.cluster_api import ClusterApi  # needs NATS

        app.serve(b"cluster", ClusterApi(broker, relay.trust, folder).answer)
