"""HTTP as the dialects see it: a request that the server has read, and the answer to it."""

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from posthouse.broker.access import Principal
    from posthouse.broker.throttle import Login

Header = tuple[bytes, bytes]


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
        """What is behind the question mark, as it came."""

    @property
    def spelled(self) -> list[Header]:
        """The headers in their order, with their names as they were written."""

    @property
    def address(self) -> str:
        """Where it comes from."""

    @property
    def scheme(self) -> str: ...

    @property
    def login(self) -> "Login":
        """What its connection has come with so far; credentials are looked at within it."""

    def identified(self, principal: "Principal") -> None:
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
