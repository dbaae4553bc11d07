"""Service Bus over HTTP: who asks, where to, and how refusals are told.

A request is for administration (`admin.py`) or for messages (`rest.py`), by its path. Whoever sends
it is known by the shared access signature in its head, which must be for the path.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property, lru_cache
from http import HTTPStatus
from urllib.parse import unquote_to_bytes

from posthouse.broker.access import Principal, vouched
from posthouse.core.commands import Answer as CoreAnswer
from posthouse.core.commands import Command
from posthouse.core.errors import Refused, Throttled, Unauthenticated, Unauthorized
from posthouse.core.model import Right, entity_of
from posthouse.core.namespaces import CreateNamespace
from posthouse.dialects.http import (
    Answer,
    HttpError,
    Request,
    allow,
    charge_messages,
    retry_after,
    unknown,
)
from posthouse.dialects.servicebus import conditions, sas
from posthouse.dialects.servicebus.credentials import Credentials
from posthouse.dialects.servicebus.xml import element, text

XML = (b"content-type", b"application/xml; charset=utf-8")
PATH_CHARS_MAX = 2_048
SHORT_CHARS = 64  # few paths are as short, and most requests are for those


class Call:
    """One request, of which it is known who asks and in which namespace."""

    def __init__(
        self, credentials: Credentials, request: Request, path: "Path", principal: Principal
    ) -> None:
        self.credentials = credentials
        self.engine = credentials.engine
        self.request = request
        self.parts = path.parts
        self.path = path.names
        self.principal = principal
        self.namespace = credentials.namespace(host_of(request), principal)

    @property
    def url(self) -> str:
        """The URL of the namespace, without a slash at its end."""
        return f"{self.request.scheme}://{host_of(self.request) or 'localhost'}"

    def ask(self, command: Command) -> Awaitable[CoreAnswer]:
        """Raises Refused or StoreError."""
        return self.engine.ask(self.principal, self.namespace, command)

    def check(self, right: Right, queue: str) -> None:
        """Before something is looked at that is not asked of the engine. Raises Unauthorized."""
        self.credentials.check(self.principal, right, self.namespace, entity_of(queue))

    def charge(self, messages: int) -> None:
        """Charges the client's address for messages; the request itself has cost one."""
        charge_messages(self.engine.throttle, self.request, messages)

    def exact(self, queue: str) -> str:
        """The name as it is written where there is one; else as it is asked for."""
        return self.engine.view.find(self.namespace, queue) or queue

    async def make_namespace(self, right: Right, queue: str) -> None:
        """Creates the namespace, where using it does so and the client has a right there.

        Raises Refused.
        """
        view = self.engine.view
        if not view.has_namespace(self.namespace) and self.credentials.settings.auto_create:
            self.credentials.guard.check_right(
                view.accounts, self.principal, right, self.namespace, entity_of(queue)
            )
            await self.engine.ask(vouched(self.principal), "", CreateNamespace(self.namespace))


Route = Callable[[Call], Awaitable[Answer]]


def by_method(routes: dict[str, Route], method: str) -> Route:
    """Raises HttpError."""
    route = routes.get(method)
    if route is None:
        raise HttpError(405, f"SubCode=40500. {method} is not for this path.", (allow(routes),))
    return route


class Path:
    """The decoded path of a request."""

    def __init__(self, parts: tuple[str, ...], names: tuple[str, ...]) -> None:
        self.parts = parts  # as they were separated: a part may have slashes in it
        self.names = names  # so that a/b and a%2Fb are the same

    @cached_property
    def folded(self) -> tuple[str, ...]:
        """The names, for comparing with what a token is for."""
        return tuple(map(str.casefold, self.names))


def path_of(request: Request) -> Path:
    """Raises HttpError."""
    raw = b"/".join(request.parts)
    if len(raw) > PATH_CHARS_MAX:
        raise HttpError(400, f"A path has at most {PATH_CHARS_MAX} characters.")
    return _decoded(raw) if len(raw) > SHORT_CHARS else _known(raw)


def _decoded(raw: bytes) -> Path:
    """Raises HttpError."""
    try:
        if b"%" not in raw:
            parts = tuple([part for part in raw.decode().split("/") if part])
            return Path(parts, parts)
        parts = tuple(unquote_to_bytes(part).decode() for part in raw.split(b"/") if part)
    except UnicodeDecodeError:
        raise HttpError(400, "The path must be UTF-8.") from None
    return Path(parts, names_in(parts))


_known = lru_cache(1_000)(_decoded)


def names_in(parts: Sequence[str]) -> tuple[str, ...]:
    return tuple(part for part in "/".join(parts).split("/") if part)


def host_of(request: Request) -> str:
    return request.headers.get(b"host", b"").decode("latin-1")


def principal_of(credentials: Credentials, request: Request, path: Path) -> Principal:
    """Whoever has signed the token. Whatever is wrong with it, the answer is the same.

    Raises Unauthenticated or Busy.
    """
    token, host, where = _token_of(request), host_of(request), path.folded
    if b"authorization" not in request.headers:
        raise unknown(request)
    with request.login:
        principal = credentials.identify_by_token(token, host, where)
    for_here = sas.covers(token.scope, where)
    if token.expires <= time.time() or not for_here or not credentials.is_for(token, host):
        raise unknown(request)
    request.identified(principal)
    return principal


def _token_of(request: Request) -> sas.Token:
    """Nobody's where there is none that can be read."""
    given = request.headers.get(b"authorization", b"").decode("latin-1")
    try:
        return sas.parse(given.removeprefix("Bearer "))  # one of the clients says so
    except ValueError:
        return _NOBODYS


_NOBODYS = sas.Token("", "", (), 0, b"", b"")


def wait_ms_of(request: Request, wanted_ms: int) -> int:
    """How long a request may wait: not longer than its token is good."""
    expires = _token_of(request).expires
    return min(wanted_ms, max(1, int((expires - time.time()) * 1000))) if expires else wanted_ms


_UNKNOWN = (
    "SubCode=40103. The token is missing, or it is not valid: its signature, its time or its"
    " audience does not fit this request."
)
_CLAIMS = {"manage": "Manage", "send": "Send", "listen": "Listen"}
_SUBCODES = {400: 40000, 401: 40103, 403: 40300, 404: 40400, 409: 40900, 410: 41000, 429: 50009}


def told(refused: Refused) -> HttpError:
    """Returns a refusal as Service Bus tells it."""
    if isinstance(refused, Unauthenticated):
        return HttpError(401, _UNKNOWN)
    if isinstance(refused, Unauthorized):
        claim = _CLAIMS.get(refused.right, "Manage")
        return HttpError(
            401, f"SubCode=40100. Authorization failed: the {claim} claim is required."
        )
    if isinstance(refused, Throttled):
        return HttpError(429, f"SubCode=50009. {refused}", retry_after(refused))
    _, words, status = conditions.told(refused)
    if status == 503:
        return HttpError(503, f"SubCode=50002. {words}", retry_after(refused))
    return HttpError(status, f"SubCode={_SUBCODES.get(status, status * 100)}. {words}")


def error(wrong: HttpError) -> Answer:
    status = wrong.status
    headers = (XML, *wrong.headers)
    if status == 401:
        headers = (*headers, (b"www-authenticate", b'SharedAccessSignature realm="Posthouse"'))
    body = element("Error", [text("Code", status), text("Detail", wrong.detail)])
    assert HTTPStatus(status)
    return Answer(body.encode(), status, headers)
