"""HTTP as the dialects see it: a request that the server has read, and the answer to it.

And what is the same in each of them, and in the server's own API: credentials in a header, what a
request takes of its address's rate, ids of requests, when to try again.
"""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from posthouse.broker.access import Principal
from posthouse.broker.throttle import Login, Throttle, note_unknown
from posthouse.core.errors import Busy, NotLeader, Refused, Throttled, Unauthenticated

Header = tuple[bytes, bytes]
JSON = (b"content-type", b"application/json")
HTML = (b"content-type", b"text/html; charset=utf-8")
SCRIPT = (b"content-type", b"text/javascript; charset=utf-8")
CORRELATION = b"x-correlation-id"
CORRELATION_CHARS_MAX = 128


class Request(Protocol):
    """One request."""

    method: str
    parts: list[bytes]  # of the path, still encoded, without the slash it begins with
    headers: dict[bytes, bytes]  # by their names in small letters
    query: dict[str, str]  # decoded

    @property
    def raw_path(self) -> bytes:
        """The path as it came, for who signs it."""

    @property
    def raw_query(self) -> bytes:
        """The query string as it came, without the question mark."""

    @property
    def spelled(self) -> list[Header]:
        """The headers in their order, with their names as they were written."""

    @property
    def address(self) -> str:
        """The address of the client."""

    @property
    def scheme(self) -> str: ...

    @property
    def login(self) -> Login:
        """The login of the connection, within which all credentials are checked."""

    def identified(self, principal: Principal) -> None:
        """Whoever asks has shown who he is. Raises Busy where he has too many connections."""

    async def body(self) -> bytes:
        """All of it, as it came."""

    async def gone(self) -> None:
        """Returns when the client has gone, or has been answered."""


class Answer(NamedTuple):
    """A whole answer: nothing of it is sent as it comes."""

    body: bytes = b""
    status: int = 200
    headers: tuple[Header, ...] = ()
    # Called where the client has gone before all of the answer was written.
    unsent: Callable[[], None] | None = None


class HttpError(Exception):
    """A request that is not understood, or is not for what there is; the dialect words it."""

    def __init__(self, status: int, detail: str, headers: tuple[Header, ...] = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers


def allow(methods: Iterable[str]) -> Header:
    """The header of an answer 405: what the path takes instead."""
    return b"allow", ", ".join(methods).encode()


def retry_after(refused: Refused) -> tuple[Header, ...]:
    """When to ask again, where a refusal passes by itself."""
    if isinstance(refused, Throttled):
        return ((b"retry-after", b"%d" % seconds_to_wait(refused)),)
    return ((b"retry-after", b"1"),) if isinstance(refused, Busy | NotLeader) else ()


def seconds_to_wait(refused: Throttled) -> int:
    """Whole ones."""
    return -(-refused.wait_ms // 1_000)


def name_and_secret(given: bytes, *, bearer: bool = False) -> tuple[str, str]:
    """Parses `Basic ...` and, with `bearer`, `Bearer NAME:SECRET`. Raises Unauthenticated."""
    scheme, _, rest = given.partition(b" ")
    try:
        if scheme.lower() == b"basic":
            rest = b64decode(rest.strip(), validate=True)
        elif not bearer or scheme.lower() != b"bearer":
            raise Unauthenticated
        name, colon, secret = rest.decode().partition(":")
    except (Base64Error, ValueError):
        raise Unauthenticated from None
    if not colon:
        raise Unauthenticated
    return name, secret


def unknown(request: Request) -> Unauthenticated:
    """The refusal for who came without credentials that are valid; it is noted in the log."""
    note_unknown(request.address)
    return Unauthenticated()


def charge(throttle: Throttle, request: Request) -> None:
    """Takes one of its address's rate, for the request. Raises Throttled."""
    if throttle.is_on:
        throttle.check_address(request.address)


def charge_messages(throttle: Throttle, request: Request, messages: int) -> None:
    """The same for the messages in a request that was let through: one was taken for it."""
    if throttle.is_on:
        throttle.charge_address(request.address, messages - 1)


def correlation_id(headers: Mapping[bytes, bytes], *names: bytes) -> str:
    """The first of these headers that says anything printable; nothing where none does."""
    for name in names:
        given = headers.get(name)
        if given is not None:
            text = given.decode("latin-1")
            said = "".join(c for c in text if c.isprintable() and c.isascii())
            if said:
                return said[:CORRELATION_CHARS_MAX]
    return ""
