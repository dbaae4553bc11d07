"""A dialect is one declaration: `declaration` in its folder, named in the list of `known.py`.

The server reads from the declarations everything that it has to know of a dialect, and names none.
A declaration is imported at every start, also by `posthouse serve --help`: what is heavy is
imported when it is first used.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from posthouse.broker.access import Guard
from posthouse.broker.declared import PrincipalDeclared, QueueDeclared, TopicDeclared

if TYPE_CHECKING:
    from posthouse.broker.engine import Engine
    from posthouse.dialects.connections import ConnectionInfo, Peer, WrappedPeer
    from posthouse.dialects.http import Answer, Request

TLS_TEXT = "TLS is required; connect with it."

S = TypeVar("S")  # the dataclass with a dialect's settings
C = TypeVar("C")  # what all connections and requests of a dialect share


class Broker(Protocol):
    """The broker, which has no engine until it is open."""

    engine: "Engine | None"


class Host(Broker, Protocol):
    """The server, as a dialect knows it."""

    guard: Guard

    @property
    def namespace(self) -> str:
        """The default namespace, for clients that name none."""

    @property
    def advertised(self) -> str:
        """The address of the cluster's leader, for its clients; empty where there is no cluster."""

    @property
    def dev(self) -> bool:
        """It runs for development: only peers on this machine are let in."""

    @property
    def auto_create(self) -> bool:
        """Queues come into being when they are first used."""


class WebSocket(NamedTuple, Generic[C]):
    """The path at which a protocol can be spoken over WebSocket, and the name it has there."""

    path: str  # folded, without a slash behind
    subprotocol: str
    make: "Callable[[C, ConnectionInfo], WrappedPeer]"


class Wire(NamedTuple, Generic[C]):
    """The protocol that a dialect's clients speak on a connection."""

    name: str  # in metrics
    # From the first bytes, at most 64: True, False, or None where more are needed to tell.
    recognise: Callable[[bytes], bool | None]
    make: "Callable[[C, ConnectionInfo], Peer]"
    # The bytes that tell a client who has begun with these that TLS is required.
    demand_tls: Callable[[bytes], bytes]
    websocket: WebSocket[C] | None = None


class Precedence(IntEnum):
    """When a path over HTTP is asked whether a request is its own; the lowest is asked first."""

    FIRST = 0  # its marks cannot be another's, whatever else the request has
    MARKED = 1  # it has marks of its own, or its own first part of the path
    REST = 2  # it takes what nobody else takes, and is not at a path of the server's


class HttpPath(NamedTuple, Generic[C]):
    """Requests over HTTP that a dialect answers on every port."""

    name: str  # for people, and in metrics
    recognise: "Callable[[Request], bool]"  # by its head alone
    answer: "Callable[[C, Request], Awaitable[Answer]]"
    precedence: Precedence = Precedence.MARKED


class HttpProfile(NamedTuple, Generic[C]):
    """An API over HTTP whose paths collide with others: it has ports that are declared for it."""

    word: str  # by which a port is declared for it: --port 8080=WORD
    port: int  # the one in the help text
    name: str  # for people, and in metrics
    answer: "Callable[[C, Request], Awaitable[Answer]]"  # everything that comes there


def after_word(data: bytes) -> bytes | None:
    """The byte behind a word and a space; empty where there is no word; None: not there yet."""
    word, space, rest = data.partition(b" ")
    if not word.translate(None, b"-_").isalpha():
        return b""
    return rest[:1] if space and rest else None


class CannotStart(Exception):
    """A start without something is not to succeed; the text says what it is, and why."""


class Reached(NamedTuple):
    """How clients on this machine reach the broker."""

    host: str
    ports: tuple[int, ...]
    key: str  # the root's, or where to find it

    def port(self, preferred: int) -> int:
        """The one that clients dial, if there is such a port."""
        return preferred if preferred in self.ports else self.ports[0]


class FromFile(NamedTuple):
    """The entities that a dialect has read from a configuration file in its own format."""

    content: Mapping[str, object] = {}  # what is left of the file, in our words
    queues: tuple[QueueDeclared, ...] = ()
    topics: tuple[TopicDeclared, ...] = ()
    principals: tuple[PrincipalDeclared, ...] = ()


class Named(NamedTuple):
    """A setting of ours that somebody's own name in the environment stands for."""

    origin: str
    name: str
    value: str


@dataclass(frozen=True, eq=False)
class Dialect(Generic[S, C]):
    """Everything that the server has to know of a dialect."""

    name: str
    settings: type[S]  # a frozen dataclass, as `settings.py` has it
    # Makes what its connections and requests share, before the engine is open. Raises OSError.
    open: Callable[[Host, S], C]
    wire: Wire[C] | None = None
    paths: tuple[HttpPath[C], ...] = ()
    profile: HttpProfile[C] | None = None
    ports: tuple[int, ...] = ()  # that its clients dial where they are told of none
    # Its line in the welcome text: whose clients they are, and what to tell them.
    welcome: Callable[[Reached], tuple[str, str]] | None = None
    # Called when the engine is open, before the broker says that it is ready. Raises CannotStart.
    start: Callable[[C], Awaitable[None]] | None = None
    # Modules that are imported a moment later, so that the first client need not wait for them.
    warm: tuple[str, ...] = ()
    # Whether the settings are possible together, also with --dev. Raises BadSetting.
    check: Callable[[S, bool], None] | None = None
    # The settings that names of its own in the environment stand for; ours go before them.
    read_environment: Callable[[Mapping[str, str]], Iterable[Named]] | None = None
    # A configuration file and the default namespace: what the dialect understands of the file, and
    # the rest of it. Raises ValueError.
    read_file: Callable[[Mapping[str, object], str], FromFile] | None = None
    # The principals that its settings make, in the default namespace, given those that are
    # declared: they take the place of declared ones with the same name. Raises BadSetting.
    principals: (
        Callable[[S, Sequence[PrincipalDeclared], str], Sequence[PrincipalDeclared]] | None
    ) = None
