"""Requests and their replies on $cbs and $management: messages on a pair of links.

A reply goes out on the connection that the request came in on, on the link that the request names
in its reply-to, by target address or by name; else on the last that was attached to the node.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from posthouse.amqp.decode import Reader, sections
from posthouse.amqp.encode import described, encode, encode_list
from posthouse.amqp.events import Arrived, Disposed
from posthouse.amqp.performatives import ACCEPTED, code_of, rejected
from posthouse.amqp.session import Link
from posthouse.amqp.types import Described, Malformed, Value
from posthouse.dialects.connections import guarded
from posthouse.dialects.servicebus import conditions
from posthouse.dialects.servicebus.address import Address
from posthouse.dialects.servicebus.message import APPLICATION, PROPERTIES, VALUE
from posthouse.dialects.servicebus.target import Target
from posthouse.dialects.servicebus.transactions import transaction_in, within

REQUEST_CREDIT = 10
REQUESTS_MAX = 50  # that wait for the one before them; some clients send before they have credit
REPLIES_BYTES_MAX = 64 << 20  # that wait for a client to take them
FIRST_REPLIES_BYTES_MAX = 64 << 10  # where it has not shown who it is
ID_BYTES_MAX = 1_024  # of a request, which its reply repeats


class Request(NamedTuple):
    id: Value  # with its type, because the reply has to have the same
    reply_to: str
    properties: dict[Value, Value]
    body: Value
    link: Link
    transaction: bytes | None = None  # that it is asked in

    def text(self, name: str) -> str:
        found = self.properties.get(name)
        return str(found) if isinstance(found, str) else ""


# Who answers requests calls back once, with the reply's properties and its body.
Reply = Callable[[dict[Value, Value], Value], None]
Answerer = Callable[[Request, Reply], None]


def read_request(payload: bytes, link: Link) -> Request:
    """Raises Malformed."""
    id = reply_to = body = None
    properties: dict[Value, Value] = {}
    seen: set[int] = set()
    for code, _, at, end in sections(payload):
        if code not in (PROPERTIES, APPLICATION, VALUE):
            continue
        if code in seen:  # each would be decoded
            raise Malformed("a request has a section twice")
        seen.add(code)
        value = Reader(payload, at, end).value()
        if code == PROPERTIES and isinstance(value, list):
            id, _, _, _, reply_to = (*value, None, None, None, None, None)[:5]
        elif code == APPLICATION and isinstance(value, dict):
            properties = value
        elif code == VALUE:
            body = value
    if len(encode(id)) > ID_BYTES_MAX:
        raise Malformed(f"its id has more than {ID_BYTES_MAX} bytes")
    return Request(id, reply_to if isinstance(reply_to, str) else "", properties, body, link)


class RequestsOwner(Protocol):
    """A connection, as its requests and replies see it."""

    is_trusted: bool  # its client has shown who it is

    @property
    def is_paused(self) -> bool:
        """The client does not read, and is given nothing more."""

    def add(self, context: "RequestLink | ReplyLink") -> None:
        """A link that is attached."""

    def turn_away(self, context: "RequestLink | ReplyLink", condition: str, text: str) -> None:
        """Detaches a link from this side, of which nothing more is told."""

    def flush_soon(self) -> None: ...

    def abort(self) -> None: ...


class RequestLink:
    """Requests come in through it."""

    def __init__(
        self,
        peer: RequestsOwner,
        requests: "Requests",
        link: Link,
        address: Address,
        target: Target | None,
        answerer: Answerer,
    ) -> None:
        self.target = target  # None: of $cbs, which is open to everybody
        self.is_idle, self.idle_since = False, 0.0
        self._peer = peer
        self._requests = requests
        self.link = link
        self.address = address
        self._answerer = answerer
        self._waiting: deque[Request] = deque()

    def start(self) -> None:
        self.link.grant(REQUEST_CREDIT)

    def on_arrived(self, event: Arrived) -> None:
        link = self.link
        if event.payload is None:  # who asked looks at nothing but the end of the link
            self._peer.turn_away(self, conditions.TOO_LARGE, "The request is too large.")
            return
        try:
            request = read_request(event.payload, link)
            transaction = transaction_in(event.state)
            if transaction is not None:
                request = request._replace(transaction=transaction[0])
        except Malformed as malformed:
            if not event.settled:
                text = f"The request cannot be read: {malformed}."
                link.settle([event.delivery_id], rejected("amqp:decode-error", text))
            self._next()
            return
        if not event.settled:
            taken = ACCEPTED
            if request.transaction is not None:
                taken = within(request.transaction, ACCEPTED)
            link.settle([event.delivery_id], taken)
        self._waiting.append(request)
        if len(self._waiting) > REQUESTS_MAX:
            self._peer.turn_away(
                self, "amqp:resource-limit-exceeded", "Too many requests at a time."
            )
            return
        self._next()

    def _next(self) -> None:
        """One after the other, as the replies are taken: a reply may be large."""
        self.is_idle = False
        if self._waiting and self._requests.begin():
            self._requests.answer(self._waiting.popleft(), self._answerer)
        link = self.link
        if link.is_open and link.credit < REQUEST_CREDIT // 2 and len(self._waiting) < 2:
            link.grant(REQUEST_CREDIT)

    def on_disposed(self, event: Disposed) -> None:
        pass

    def on_flowed(self) -> None:
        self._next()

    def on_detached(self) -> None:
        self._waiting.clear()
        self._requests.forget_requests(self.link)


class ReplyLink:
    """Replies go out through it, as far as the client gives credit."""

    def __init__(
        self,
        peer: RequestsOwner,
        requests: "Requests",
        link: Link,
        address: Address,
        target: Target | None,
    ) -> None:
        self.target = target
        self.is_idle, self.idle_since = False, 0.0
        self._peer = peer
        self._requests = requests
        self.link = link
        self.address = address
        self._waiting: deque[bytes] = deque()
        self._count = 0
        attach = link.attach
        named = None if attach is None else address_in(attach.target)
        # What a request may call it.
        self.names = (link.name,) if named is None else (named, link.name)

    def reply(self, request: Request, properties: dict[Value, Value], body: Value) -> None:
        null = b"\x40"
        payload = b"".join((
            described(PROPERTIES, encode_list((null, null, null, null, null, encode(request.id)))),
            described(APPLICATION, encode(properties)),
            described(VALUE, encode(body)),
        ))  # fmt: skip
        self.is_idle = False
        most = REPLIES_BYTES_MAX if self._peer.is_trusted else FIRST_REPLIES_BYTES_MAX
        if self._requests.reply_bytes + len(payload) > most:
            self._peer.turn_away(
                self, "amqp:resource-limit-exceeded", "Too many replies wait to be taken."
            )
            return
        self._requests.reply_bytes += len(payload)
        self._waiting.append(payload)
        self.on_flowed()

    def on_flowed(self) -> None:
        link = self.link
        while self._waiting and link.credit > 0 and link.is_open:
            self._count += 1
            payload = self._waiting.popleft()
            self._requests.reply_bytes -= len(payload)
            link.send(payload, self._count.to_bytes(8, "big"), settled=True)
        if link.drain and link.is_open:
            link.drained()
        self._peer.flush_soon()

    def on_arrived(self, event: Arrived) -> None:
        raise AssertionError("requests do not come in where replies go out")

    def on_disposed(self, event: Disposed) -> None:
        pass

    def on_detached(self) -> None:
        self._requests.reply_bytes -= sum(map(len, self._waiting))
        self._waiting.clear()
        self._requests.forget(self)


class Requests:
    """The links of one connection for requests, and those for replies."""

    def __init__(self, peer: RequestsOwner) -> None:
        self._peer = peer
        self._requests: dict[Link, RequestLink] = {}
        self._replies: dict[Address, list[ReplyLink]] = {}
        self._working = False  # on somebody's request
        self.reply_bytes = 0  # of replies that wait to be taken

    def attach(
        self,
        link: Link,
        address: Address,
        target: Target | None,
        answerer: Answerer,
        most_bytes: int,
    ) -> None:
        attach = link.attach
        assert attach is not None
        context: RequestLink | ReplyLink
        if link.sends:
            context = ReplyLink(self._peer, self, link, address, target)
            self._replies.setdefault(address, []).append(context)
        else:
            context = RequestLink(self._peer, self, link, address, target, answerer)
            self._requests[link] = context
        self._peer.add(context)
        link.accept(source=attach.source, target=attach.target, max_message_size=most_bytes)
        if isinstance(context, RequestLink):
            context.start()

    def _reply_link(self, request: Request) -> ReplyLink | None:
        asked = self._requests.get(request.link)
        if asked is None:
            return None
        links = self._replies.get(asked.address, [])
        named = [each for each in links if request.reply_to in each.names]
        return (named or links)[-1] if links else None

    def forget(self, link: ReplyLink) -> None:
        links = self._replies.get(link.address, [])
        if link in links:
            links.remove(link)
        if not links:
            self._replies.pop(link.address, None)

    def forget_requests(self, link: Link) -> None:
        self._requests.pop(link, None)

    def begin(self) -> bool:
        """One at a time on a connection, as the replies are taken: a reply may be large."""
        if self._working or self._peer.is_paused:
            return False
        self._working = True
        return True

    def _go_on(self, _: None) -> None:
        """Takes up the requests that have come meanwhile."""
        for each in list(self._requests.values()):
            each.on_flowed()
        self._peer.flush_soon()

    def answer(self, request: Request, answerer: Answerer) -> None:
        def reply(properties: dict[Value, Value], body: Value) -> None:
            link = self._reply_link(request)
            if link is not None:
                link.reply(request, properties, body)
            self._working = False
            go_on = guarded(self._go_on, self._peer.abort)
            asyncio.get_running_loop().call_soon(go_on, None)

        answerer(request, reply)


def address_in(terminus: Described | None) -> str | None:
    """The address in a source or target; None where there is none, or it is no text."""
    if terminus is None or not isinstance(terminus.value, list) or not terminus.value:
        return None
    found = terminus.value[0]
    return str(found) if isinstance(found, str) else None


def is_coordinator(terminus: Described | None) -> bool:
    return terminus is not None and code_of(terminus) == 0x30
