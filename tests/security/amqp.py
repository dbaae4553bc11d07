"""An AMQP client on a real socket, whose every event can be looked at."""

import hmac
import socket
import time
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from urllib.parse import quote_plus

from websockets.client import ClientProtocol
from websockets.frames import Frame
from websockets.uri import parse_uri

from posthouse.amqp.connection import Connection
from posthouse.amqp.decode import Reader, sections
from posthouse.amqp.encode import described, encode
from posthouse.amqp.events import (
    Arrived,
    Attached,
    Closed,
    Detached,
    Disposed,
    Event,
    Flowed,
    Opened,
)
from posthouse.amqp.session import Link
from posthouse.amqp.types import Described, Symbol, ULong, Value

MESSAGE = described(0x73, encode(["id"])) + described(0x75, encode(b"body"))
UNAUTHORIZED = "amqp:unauthorized-access"


def sas(
    resource: str, name: str, key: str, seconds: float = 3_600, *, signature: bytes | None = None
) -> str:
    encoded, end = quote_plus(resource), str(int(time.time() + seconds))
    digest = hmac.new(key.encode(), f"{encoded}\n{end}".encode(), sha256).digest()
    sig = quote_plus(b64encode(digest if signature is None else signature))
    return f"SharedAccessSignature sr={encoded}&sig={sig}&se={end}&skn={quote_plus(name)}"


def plain(name: str, key: str) -> tuple[str, bytes]:
    return "PLAIN", f"\0{name}\0{key}".encode()


class Amqp:
    """One connection."""

    def __init__(
        self, port: int, sasl: tuple[str, bytes] = ("ANONYMOUS", b""), host: str = "localhost"
    ) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=5)
        self.amqp = Connection("client", hostname=host, sasl=sasl)
        self._told: list[Event] = []
        self._count = 0
        opened = self.until(lambda event: isinstance(event, Opened | Closed))
        self.is_refused = isinstance(opened, Closed)  # by SASL

    def __enter__(self) -> "Amqp":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def flush(self) -> None:
        if self.amqp.has_output:
            self.write(self.amqp.take())

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self) -> bytes:
        """Nothing where the other side has closed."""
        return self.socket.recv(1 << 16)

    def until(self, wanted: Callable[[Event], bool], seconds: float = 5) -> Event:
        """The first such event; those before it are kept. Raises TimeoutError or EOFError."""
        end = time.monotonic() + seconds
        looked = 0
        while True:
            for event in self._told[looked:]:
                if wanted(event):
                    self._told.remove(event)
                    return event
            looked = len(self._told)
            self.flush()
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(self._told)
            self.socket.settimeout(left)
            data = self.read()
            if not data:
                raise EOFError(self._told)
            self._told += self.amqp.receive(data)

    def told(self, kind: type[Event]) -> list[Event]:
        """What was told and not waited for."""
        return [each for each in self._told if type(each) is kind]

    def link(
        self, address: str, *, sends: bool, session: str | None = None, any_session: bool = False
    ) -> Link:
        filters: Value = None
        if session is not None or any_session:
            filters = {Symbol("com.microsoft:session-filter"): session}
        source = Described(ULong(0x28), [address, None, None, None, None, None, None, filters])
        return self._attach(sends, source, Described(ULong(0x29), [address]))

    def coordinator(self) -> Link:
        source = Described(ULong(0x28), [None])
        return self._attach(True, source, Described(ULong(0x30), [None]))

    def _attach(self, sends: bool, source: Described, target: Described) -> Link:
        self._count += 1
        link = self.amqp.begin().attach(
            f"link-{self._count}", sends=sends, source=source, target=target, settled=False
        )
        self.flush()
        return link

    def opened(self, address: str, *, sends: bool, session: str | None = None) -> Link:
        """A link that the broker lets stay."""
        link = self.link(address, sends=sends, session=session)
        assert self.why(link) is None
        return link

    def why(self, link: Link) -> str | None:
        """The condition with which a link was refused; None where it was not."""

        def is_answer(event: Event) -> bool:
            if isinstance(event, Closed):
                return True
            mine = getattr(event, "link", None) is link
            return mine and isinstance(event, Attached | Flowed | Detached)

        event = self.until(is_answer)
        if isinstance(event, Attached):  # a refusal is an attach and a detach behind it
            event = self.until(is_answer, 5) if self._is_refused(link) else event
        return self._condition(event)

    def _is_refused(self, link: Link) -> bool:
        attach = link.attach
        return attach is not None and (attach.source is None or attach.target is None)

    def _condition(self, event: Event) -> str | None:
        if isinstance(event, Detached | Closed):
            return "closed" if event.problem is None else event.problem.condition
        return None

    def detached(self, link: Link, seconds: float = 5) -> str:
        """The condition with which a link was ended."""
        found = self.until(
            lambda event: (
                isinstance(event, Closed) or (isinstance(event, Detached) and event.link is link)
            ),
            seconds,
        )
        return self._condition(found) or ""

    def send(self, link: Link, message: bytes = MESSAGE) -> str:
        """`accepted`, or the condition with which a message was rejected, or the link ended."""
        self._count += 1
        link.send(message, b"%d" % self._count)
        found = self.until(
            lambda event: (
                isinstance(event, Disposed | Detached | Closed)
                and getattr(event, "link", link) is link
            )
        )
        if not isinstance(found, Disposed):
            return self._condition(found) or ""
        assert found.state is not None
        code = int(found.state.descriptor)
        return "accepted" if code in (0x24, 0x33) else "rejected"

    def ask(
        self, node: str, properties: dict[Value, Value], body: Value
    ) -> tuple[dict[Value, Value], Value]:
        """A request and its reply's properties and body."""
        asks, hears = self.opened(node, sends=True), self.opened(node, sends=False)
        hears.grant(10)
        self.request(asks, node, properties, body)
        return self.reply(hears)

    def request(self, asks: Link, node: str, properties: dict[Value, Value], body: Value) -> None:
        self._count += 1
        asks.send(
            described(0x73, encode([f"r{self._count}", None, None, None, node]))
            + described(0x74, encode(properties)) + described(0x77, encode(body)), b"r"
        )  # fmt: skip
        self.flush()

    def reply(self, hears: Link) -> tuple[dict[Value, Value], Value]:
        found = self.until(lambda event: isinstance(event, Arrived) and event.link is hears)
        assert isinstance(found, Arrived)
        assert found.payload is not None
        parts = {
            code: Reader(found.payload, at, end).value()
            for code, _, at, end in sections(found.payload)
        }
        return parts[0x74], parts.get(0x77)

    def put_token(self, audience: str, token: str) -> int:
        properties, _ = self.ask(
            "$cbs", {"operation": "put-token", "type": "jwt", "name": audience}, token
        )
        return int(properties["status-code"])


class AmqpOverWebSocket(Amqp):
    def __init__(self, port: int, host: str = "localhost") -> None:
        self._web = ClientProtocol(
            parse_uri(f"ws://{host}:{port}/$servicebus/websocket"),
            subprotocols=["AMQPWSB10"],  # type: ignore[list-item]
        )
        self._begun = False
        super().__init__(port, host=host)

    def write(self, data: bytes) -> None:
        if not self._begun:
            self._web.send_request(self._web.connect())
            self._pass_on()
            while not self._web.events_received():
                self._web.receive_data(self.socket.recv(1 << 16))
            self._begun = True
        self._web.send_binary(data)
        self._pass_on()

    def _pass_on(self) -> None:
        self.socket.sendall(b"".join(self._web.data_to_send()))

    def read(self) -> bytes:
        while True:
            frames = [each for each in self._web.events_received() if isinstance(each, Frame)]
            if frames:
                return b"".join(bytes(each.data) for each in frames)
            data = self.socket.recv(1 << 16)
            if not data:
                return b""
            self._web.receive_data(data)
