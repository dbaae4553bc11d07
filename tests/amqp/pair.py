"""A client and a server, joined without a network."""

from collections.abc import Callable

from posthouse.amqp.connection import Connection, Limits
from posthouse.amqp.events import Attached, Event
from posthouse.amqp.session import Link, Session
from posthouse.amqp.types import Described, ULong


def source(address: str) -> Described:
    return Described(ULong(0x28), [address])


def target(address: str) -> Described:
    return Described(ULong(0x29), [address])


class Pair:
    def __init__(
        self,
        limits: Limits = Limits(),  # noqa: B008 (it cannot change)
        client_limits: Limits = Limits(),  # noqa: B008
        authenticate: Callable[[str, bytes], bool] = lambda mechanism, response: True,
        sasl: tuple[str, bytes] | None = ("ANONYMOUS", b""),
        trusted: bool = True,
    ) -> None:
        self.server = Connection(
            "server", limits=limits, authenticate=authenticate, idle_ms=120_000,
            mechanisms=("ANONYMOUS", "PLAIN"),
        )  # fmt: skip
        self.client = Connection("client", limits=client_limits, hostname="host", sasl=sasl)
        self.at_server: list[Event] = []
        self.at_client: list[Event] = []
        self.sent = b""  # by the client
        self.pump()
        if trusted:
            self.server.trust()

    def pump(self) -> None:
        """Until neither has more to say."""
        while True:
            out, back = self.client.take(), self.server.take()
            if not out and not back:
                return
            self.sent += out
            if out:
                self.at_server += self.server.receive(out)
            if back:
                self.at_client += self.client.receive(back)

    def take(self) -> tuple[list[Event], list[Event]]:
        """What has been told since, at the server and at the client."""
        self.pump()
        told = self.at_server, self.at_client
        self.at_server, self.at_client = [], []
        return told

    def attach(
        self,
        *,
        sends: bool,
        session: Session | None = None,
        name: str = "link",
        most_bytes: int = 0,
    ) -> tuple[Link, Link]:
        """A link that the client wants; its two ends, the client's first."""
        session = session or self.client.begin()
        mine = session.attach(name, sends=sends, source=source("q"), target=target("q"))
        self.pump()
        theirs = next(
            each.link for each in self.at_server
            if isinstance(each, Attached) and each.link.attach is not None
            and each.link.name == name and not each.link.is_open
        )  # fmt: skip
        attach = theirs.attach
        assert attach is not None
        theirs.accept(source=attach.source, target=attach.target, max_message_size=most_bytes)
        self.take()
        return mine, theirs
