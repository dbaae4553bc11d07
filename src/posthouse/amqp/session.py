"""Sessions and links (2.5, 2.6): windows, credit, deliveries in pieces, settlement."""

from collections import deque
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from posthouse.amqp.events import Arrived, Attached, Detached, Disposed, Flowed
from posthouse.amqp.performatives import (
    RECEIVER,
    SENDER,
    TAG_BYTES_MAX,
    TRANSFER_HEAD,
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Flow,
    Transfer,
    Whole,
    code_of,
    problem_in,
    write,
)
from posthouse.amqp.types import Malformed, Value

if TYPE_CHECKING:
    from posthouse.amqp.connection import Connection

MASK = 0xFFFFFFFF  # delivery ids and the like are 32 bits, and go round (2.8.10)
WINDOW = 65_535  # transfers that we take before we say so again
FIRST_DELIVERY = 1 << 30  # some clients mix up ids of the two directions where those are equal
MISSES_MAX = 1_000_000  # see `Session._spoken_of`
_RECEIVED = 0x23
EMPTY_MAX = 1_000  # frames of a delivery that carry nothing of it

# Frame header; descriptor and list8; handle, delivery id, tag.
_TRANSFER = Struct(">IBBH4sBBBIBIBB").pack
_FIXED = Struct(">BBH4sBBBIB").pack  # of it, what the deliveries of one link have in common
# Frame header; descriptor and list8 of six fields; role, first, last, settled; the state follows,
# and that it is not batchable, without which older SDKs for Service Bus do not read it.
_DISPOSITION = Struct(">IBBH3sBBBBBIBIB").pack
_DISPOSITION_BYTES = 8 + 3 + 3 + 1 + 5 + 5 + 1  # of it
_STATE_BYTES_MAX = 200  # that such a list has room for
_struct = lru_cache(64)(Struct)
_FIXED_BYTES = 8 + 3 + 3 + 5 + 5 + 2 + 8  # of a first frame with message format 0, without its tag


# Message format 0, settled or not, no more to come, and what nobody says.
_REST_SETTLED = b"\x43\x41\x42\x40\x40\x42\x42\x42"
_REST_UNSETTLED = b"\x43\x42\x42\x40\x40\x42\x42\x42"


def after(first: int, second: int) -> int:
    """The distance of the first number behind the second, negative if before it (RFC 1982)."""
    return (first - second + 0x80000000 & MASK) - 0x80000000


class Tags(NamedTuple):
    """Delivery tags of a run: a common head, then a number of 8 bytes or bytes of one length."""

    head: bytes
    rest: Sequence[int | bytes]

    @property
    def rest_bytes(self) -> int:
        last = self.rest[-1]
        return 8 if isinstance(last, int) else len(last)

    @property
    def layout(self) -> str:
        """The format of the rest, as `struct` writes it."""
        return "Q" if isinstance(self.rest[-1], int) else f"{self.rest_bytes}s"

    def whole(self, rest: int | bytes) -> bytes:
        return self.head + (rest.to_bytes(8, "big") if isinstance(rest, int) else rest)


class Link:
    """One end of a link. `sends`: messages go from here to the other side."""

    __slots__ = (
        "_attached",
        "_detached",
        "_empty",
        "_first",
        "_gone",
        "_over",
        "_parts",
        "_size",
        "attach",
        "credit",
        "delivery_count",
        "drain",
        "handle",
        "max_message_size",
        "name",
        "remote_handle",
        "sends",
        "session",
        "takes_runs",
        "unsent",
        "unsettled",
    )  # fmt: skip

    def __init__(self, session: "Session", name: str, handle: int, *, sends: bool) -> None:
        self.session = session
        self.name = name
        self.handle = handle
        self.remote_handle = -1
        self.sends = sends
        self.attach: Attach | None = None  # the other side's
        self.credit = 0
        self.delivery_count = 0
        self.drain = False
        self.max_message_size = 0  # that we take; 0: any
        self.takes_runs = False  # several deliveries may come as one Run event
        self._attached = False  # we have said so
        self._detached = False  # we have said so
        self._gone = False  # both have
        self._parts = bytearray()  # of a delivery that is under way
        self._size = self._empty = 0
        self._over = False  # it is larger than it may be
        self._first: Transfer | None = None
        self.unsettled: dict[int, int] = {}  # deliveries that we sent, and what is kept with each
        self.unsent: set[int] = set()  # kept with deliveries that did not leave before the end

    @property
    def is_held_up(self) -> bool:
        """Whether transfers wait for the session's window."""
        return bool(self.session.pending)

    @property
    def is_open(self) -> bool:
        return self._attached and not self._detached and not self._gone

    @property
    def is_gone(self) -> bool:
        return self._detached or self._gone

    @property
    def is_within(self) -> bool:
        """A part of a delivery has come."""
        return self._first is not None

    # Beginning and end.

    def accept(
        self,
        *,
        source: Value = None,
        target: Value = None,
        max_message_size: int = 0,
        properties: dict[Value, Value] | None = None,
    ) -> None:
        """Answers an attach. Settlement modes are as the other side wants them."""
        wanted = self.attach
        assert wanted is not None
        self._attached = True
        self.max_message_size = max_message_size
        modes = wanted.snd_settle_mode, wanted.rcv_settle_mode
        # The other side's attach may be large, and is answered now: only this much is kept.
        self.attach = Attach(wanted.name, wanted.handle, wanted.role, *modes)
        self.session.write(
            Attach(
                self.name, self.handle, SENDER if self.sends else RECEIVER, *modes, source, target,
                None, False, 0 if self.sends else None, max_message_size, properties=properties,
            )
        )  # fmt: skip

    def refuse(self, error: bytes) -> None:
        """Refuses a link: an attach without a terminus, and a detach right after it (2.6.3)."""
        self.accept()
        self.detach(error)

    def detach(self, error: bytes | None = None, *, closed: bool = True) -> None:
        """Ends it from this side; nothing of it is told any more but that it is over."""
        if self._detached or self._gone:
            return
        self._detached = True
        self._forget()
        self.session.write(Detach(self.handle, closed, error))

    def _forget(self) -> None:
        if self._first is not None:
            self.session.unfinished(-1)
        self._parts, self._first = bytearray(), None
        self.session.drop_pending(self)
        for each in self.unsettled:
            self.session.unsettled.pop(each, None)
        self.unsettled = {}

    # Sending.

    def send(
        self,
        payload: bytes,
        tag: bytes,
        *,
        settled: bool = False,
        format: int = 0,
        state: bytes | None = None,
        keep: int = 0,
    ) -> int:
        """Sends one delivery; returns its id. It waits where the session's window is used up.

        `keep` comes back with the other side's dispositions of it.
        """
        session = self.session
        number = session.next_delivery_id
        session.next_delivery_id = number + 1 & MASK
        self.credit -= 1
        self.delivery_count = self.delivery_count + 1 & MASK
        if not settled:
            session.unsettled[number] = self
            self.unsettled[number] = keep
        length = len(tag)
        size = _FIXED_BYTES + length + len(payload)
        if size <= session.frame_max and not format and state is None:
            frame = b"".join((
                _TRANSFER(
                    size, 2, 0, session.channel, TRANSFER_HEAD, 21 + length, 11, 0x70, self.handle,
                    0x70, number, 0xA0, length,
                ),
                tag, _REST_SETTLED if settled else _REST_UNSETTLED, payload,
            ))  # fmt: skip
            session.send(self, number, frame)
        else:
            self._send_in_parts(payload, tag, number, format, state, settled=settled)
        return number

    def send_run(
        self,
        payloads: Sequence[bytes],
        tags: Tags,
        keep: Sequence[int] | None,
        bodies: Sequence[bytes] | None = None,
    ) -> None:
        """Sends several deliveries; without anything to keep they are settled.

        Where there are bodies, each payload goes on with its own, so that none is copied to be
        joined.
        """
        session, count = self.session, len(payloads)
        first = session.next_delivery_id
        length = len(tags.head) + tags.rest_bytes
        size = _FIXED_BYTES + length
        sizes = [size + len(each) for each in payloads]
        if bodies is not None:
            sizes = [each + len(body) for each, body in zip(sizes, bodies, strict=True)]
        if first + count > MASK or max(sizes) > session.frame_max or not session.has_room(count):
            kept = [0] * count if keep is None else keep
            more = [b""] * count if bodies is None else bodies
            for payload, body, tag, with_it in zip(payloads, more, tags.rest, kept, strict=True):
                self.send(payload + body, tags.whole(tag), settled=keep is None, keep=with_it)
            return
        numbers = range(first, first + count)
        self.credit -= count
        self.delivery_count = self.delivery_count + count & MASK
        rest = _REST_SETTLED
        if keep is not None:
            session.unsettled.update(dict.fromkeys(numbers, self))
            self.unsettled.update(zip(numbers, keep, strict=True))
            rest = _REST_UNSETTLED
        fixed = _FIXED(
            2, 0, session.channel, TRANSFER_HEAD, 21 + length, 11, 0x70, self.handle, 0x70
        )
        tag_head = b"\xa0%c%b" % (length, tags.head)
        pack = _struct(f">I{len(fixed)}sI{len(tag_head)}s{tags.layout}{len(rest)}s").pack
        heads = [
            pack(size, fixed, number, tag_head, tag, rest)
            for size, number, tag in zip(sizes, numbers, tags.rest, strict=True)
        ]
        columns = (heads, payloads) if bodies is None else (heads, payloads, bodies)
        session.send_run(list(chain.from_iterable(zip(*columns, strict=True))), count)

    def _send_in_parts(
        self,
        payload: bytes,
        tag: bytes,
        number: int,
        format: int,
        state: bytes | None,
        *,
        settled: bool,
    ) -> None:
        session = self.session
        first = Transfer(
            self.handle, number, tag, format, settled, True, None, state,  # type: ignore[arg-type]
            False, False, False,
        )  # fmt: skip
        following = Transfer(
            self.handle, number, None, None, settled, True, None, None, False, False, False
        )
        at = 0
        while True:
            performative = following if at else first
            head = write(performative)
            room = max(1, session.frame_max - 8 - len(head))
            part = payload[at : at + room]
            at += len(part)
            if at >= len(payload):
                performative.more = False
                head = write(performative)
            session.send(self, number, session.framed(head + part))
            if at >= len(payload):
                return

    def drained(self) -> None:
        """Says that all messages were sent, and uses up the rest of the credit (2.6.7)."""
        if self.session.pending:
            self.session.pending.append((self, 0, b""))  # behind what waits
        else:
            self.say_drained()

    def say_drained(self) -> None:
        self.delivery_count = self.delivery_count + max(0, self.credit) & MASK
        self.credit = 0
        self.tell(drain=True)
        self.drain = False

    # Receiving.

    def grant(self, credit: int, *, drain: bool = False) -> None:
        """Grants this much credit from now on."""
        self.credit = credit
        self.drain = drain
        self.tell(drain=drain)

    def settle(self, delivery_ids: Sequence[int], state: bytes, *, settled: bool = True) -> None:
        """Says what has become of deliveries, of which side they may be."""
        session, role = self.session, SENDER if self.sends else RECEIVER
        for first, last in _runs(delivery_ids):
            session.dispose(role, first, last, state, settled=settled)
        if self.sends and settled:
            for each in delivery_ids:
                if each in self.unsettled:
                    self.forget_delivery(each)

    def forget_delivery(self, number: int) -> None:
        """Forgets a delivery: later dispositions of it are ignored."""
        self.session.unsettled.pop(number, None)
        self.unsettled.pop(number, None)

    def tell(self, *, drain: bool = False, echo: bool = False) -> None:
        """Sends a flow of the link, with the session's windows (2.7.4)."""
        self.session.flow(
            self.handle, self.delivery_count, max(0, self.credit), drain=drain, echo=echo
        )

    # Frames of the other side.

    def on_flow(self, flow: Flow) -> None:
        if self.sends:
            # 2.6.7: credit is counted from where the receiver was when it said so.
            said = flow.delivery_count if flow.delivery_count is not None else 0
            self.credit = after(said, self.delivery_count) + (flow.link_credit or 0)
            self.drain = bool(flow.drain)
        elif flow.delivery_count is not None:
            used = after(flow.delivery_count, self.delivery_count)
            if used > 0:  # what was not used of the credit before a drain
                self.delivery_count = flow.delivery_count
                self.credit = max(0, self.credit - used)
            self.drain = False
        if flow.echo and self.is_open:
            self.tell()
        self.session.tell(Flowed(self))

    def on_whole(self, number: int, tag: bytes, rest: Whole, payload: bytes) -> Arrived | None:
        if self._first is not None:  # the last of several, of which each says its id
            transfer = Transfer(self.remote_handle, number, tag, rest.format, rest.settled)
            self.on_transfer(transfer, payload)
            return None
        self.credit -= 1
        self.delivery_count = self.delivery_count + 1 & MASK
        most = self.max_message_size
        fits = not most or len(payload) <= most
        return Arrived(
            self, number, tag, rest.format, rest.settled, None, payload if fits else None
        )

    def on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        first = self._first
        if first is None:
            if transfer.delivery_id is None or transfer.delivery_tag is None:
                raise Malformed("a delivery begins without its id or tag", "amqp:invalid-field")
            if len(transfer.delivery_tag) > TAG_BYTES_MAX:
                raise Malformed("a delivery tag is longer than 32 bytes", "amqp:invalid-field")
            self.credit -= 1
            self.delivery_count = self.delivery_count + 1 & MASK
            if not transfer.more and not transfer.aborted:
                if self.max_message_size and len(payload) > self.max_message_size:
                    self._arrived(transfer, None, bool(transfer.settled))
                else:
                    self._arrived(transfer, payload, bool(transfer.settled))
                return
            first = self._first = transfer
            self._parts, self._size, self._empty, self._over = bytearray(), 0, 0, False
            self.session.unfinished(1)
        elif transfer.delivery_id is not None and transfer.delivery_id != first.delivery_id:
            raise Malformed("a delivery begins within another", "amqp:invalid-field")
        if transfer.aborted:  # 2.6.14: as if it had never been
            self._first, self._parts = None, bytearray()
            self.session.unfinished(-1)
            self.session.tell(Flowed(self))  # it has used credit all the same
            return
        self._add(payload)
        if not transfer.more:
            whole = None if self._over else bytes(self._parts)
            settled = bool(first.settled or transfer.settled)
            first.state = transfer.state or first.state
            self._first, self._parts = None, bytearray()
            self.session.unfinished(-1)
            self._arrived(first, whole, settled)

    def _add(self, payload: bytes) -> None:
        self._size += len(payload)
        if not payload:
            self._empty += 1
            if self._empty > EMPTY_MAX:
                raise Malformed("a delivery has too many empty parts", "amqp:framing-error")
        elif self.max_message_size and self._size > self.max_message_size:
            self._over, self._parts = True, bytearray()
        else:
            self._parts += payload

    def _arrived(self, first: Transfer, payload: bytes | None, settled: bool) -> None:
        self.session.tell(
            Arrived(
                self, first.delivery_id or 0, first.delivery_tag or b"", first.message_format or 0,
                settled, first.state, payload,
            )
        )  # fmt: skip

    def on_attach(self, attach: Attach) -> None:
        self.attach = attach
        self.remote_handle = attach.handle
        if not self.sends:
            self.delivery_count = attach.initial_delivery_count or 0
        self.session.tell(Attached(self))

    def on_detach(self, detach: Detach) -> None:
        told = self._detached
        if not self._attached:  # not answered yet: what it waits for is an attach, and the end
            self.accept()
        if not told:
            self.session.write(Detach(self.handle, detach.closed, None))
        self._forget()
        self._gone = True
        self.session.forget(self)
        if not told:
            self.session.tell(Detached(self, problem_in(detach.error), bool(detach.closed)))

    def lose(self) -> None:
        """Ends the link, because its session or connection is over."""
        if not self._gone:
            self._gone = True
            self._forget()
            if not self._detached:
                self.session.tell(Detached(self, None, True))


def _following(first: int, count: int) -> Iterable[int]:
    """So many numbers from the first on, which wrap around at 32 bits."""
    if first + count <= MASK:
        return range(first, first + count)
    return (first + at & MASK for at in range(count))


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Numbers that follow each other, as their first and last."""
    if len(numbers) == 1:
        return [(numbers[0], numbers[0])]
    if numbers and list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
        return [(numbers[0], numbers[-1])]  # as is most common
    found: list[tuple[int, int]] = []
    first = last = -1
    for each in numbers:
        if first < 0:
            first = last = each
        elif each == last + 1 & MASK:
            last = each
        else:
            found.append((first, last))
            first = last = each
    if first >= 0:
        found.append((first, last))
    return found


class Session:
    """One end of a session (2.5). `channel` is the number under which we write."""

    __slots__ = (
        "_incoming",
        "_links",
        "_misses",
        "_window",
        "channel",
        "connection",
        "ended",
        "frame_max",
        "next_delivery_id",
        "next_incoming_id",
        "next_outgoing_id",
        "pending",
        "remote_channel",
        "remote_handle_max",
        "remote_window",
        "unsettled",
    )  # fmt: skip

    def __init__(self, connection: "Connection", channel: int) -> None:
        self.connection = connection
        self.channel = channel
        self.remote_channel = -1
        self.remote_window = 0
        self.remote_handle_max = MASK
        self.next_incoming_id: int | None = None
        self.next_outgoing_id = 0
        self.next_delivery_id = FIRST_DELIVERY
        self.frame_max = connection.remote_frame_max
        self.unsettled: dict[int, Link] = {}  # deliveries that we sent
        self.ended = False  # we have said so
        self._window = WINDOW
        self._links: dict[int, Link] = {}  # by our handle
        self._incoming: dict[int, Link] = {}  # by theirs
        # Transfers that wait for the window, with the deliveries they are of; an empty one stands
        # for the end of a drain.
        self.pending: deque[tuple[Link, int, bytes]] = deque()
        self._misses = 0  # deliveries that were spoken of and are not there, less those that are

    # Frames of ours.

    def attach(
        self,
        name: str,
        *,
        sends: bool,
        source: Value = None,
        target: Value = None,
        settled: bool | None = None,
        max_message_size: int = 0,
        properties: dict[Value, Value] | None = None,
    ) -> Link:
        """A new link. `settled`: deliveries are never, or (None) as each says, settled at once."""
        handle = next(each for each in range(len(self._links) + 1) if each not in self._links)
        link = self._links[handle] = Link(self, name, handle, sends=sends)
        self.connection.count_link(1)
        link._attached = True
        link.max_message_size = max_message_size
        mode = 2 if settled is None else int(settled)
        self.write(
            Attach(
                name, handle, SENDER if sends else RECEIVER, mode, 0, source, target, None, False,
                0 if sends else None, max_message_size, properties=properties,
            )
        )  # fmt: skip
        return link

    def end(self, error: bytes | None = None) -> None:
        if not self.ended:
            self.ended = True
            self.write(End(error))
            self._lose_links()

    def write(self, performative: Value) -> None:
        self.connection.write(performative, self.channel)

    def dispose(self, role: bool, first: int, last: int, state: bytes, *, settled: bool) -> None:
        """Writes a disposition (2.7.6); one follows every delivery, and most are alike."""
        if len(state) > _STATE_BYTES_MAX:
            self.write(Disposition(role, first, last, settled, state, False))
            return
        size = _DISPOSITION_BYTES + len(state) + 1
        head = _DISPOSITION(
            size, 2, 0, self.channel, b"\x00\x53\x15", 0xC0, size - 13, 6, 0x41 if role else 0x42,
            0x70, first, 0x70, last, 0x41 if settled else 0x42,
        )  # fmt: skip
        self.connection.put(head + state + b"\x42")

    def flow(
        self,
        handle: int | None = None,
        delivery_count: int | None = None,
        credit: int | None = None,
        *,
        drain: bool = False,
        echo: bool = False,
    ) -> None:
        self.write(
            Flow(
                self.next_incoming_id, self._window, self.next_outgoing_id, WINDOW, handle,
                delivery_count, credit, 0 if handle is not None else None, drain, echo,
            )
        )  # fmt: skip

    def framed(self, content: bytes) -> bytes:
        return (
            (8 + len(content)).to_bytes(4, "big")
            + b"\x02\x00"
            + self.channel.to_bytes(2, "big")
            + content
        )

    def send(self, link: Link, number: int, frame: bytes) -> None:
        """A transfer, as soon as the other side has a place for it."""
        if self.ended:
            return
        if self.pending or self.remote_window <= 0:
            if not self.pending:  # some say how they stand only when they are asked
                self.flow(echo=True)
            self.pending.append((link, number, frame))
            self.connection.count_pending(len(frame))
            return
        self.remote_window -= 1
        self.next_outgoing_id = self.next_outgoing_id + 1 & MASK
        self.connection.put(frame)

    def has_room(self, count: int) -> bool:
        """Whether so many transfers can be sent at once."""
        return not self.ended and not self.pending and self.remote_window >= count

    def send_run(self, parts: list[bytes], count: int) -> None:
        """The frames of so many deliveries, for which there is room."""
        self.next_delivery_id = self.next_delivery_id + count & MASK
        self.next_outgoing_id = self.next_outgoing_id + count & MASK
        self.remote_window -= count
        self.connection.put(*parts)

    # Frames of the other side.

    def on_begin(self, begin: Begin, channel: int) -> None:
        self.remote_channel = channel
        self.next_incoming_id = begin.next_outgoing_id
        self.remote_window = begin.incoming_window
        if begin.handle_max is not None:
            self.remote_handle_max = begin.handle_max

    def on_attach(self, attach: Attach, handle_max: int) -> None:
        if attach.handle > handle_max:
            raise Malformed(
                f"there are no handles above {handle_max}", "amqp:connection:framing-error"
            )
        if attach.snd_settle_mode not in (None, 0, 1, 2) or attach.rcv_settle_mode not in (
            None,
            0,
            1,
        ):
            raise Malformed("there is no such settlement mode", "amqp:invalid-field")  # 2.8.2
        if attach.handle in self._incoming:
            raise Malformed("a handle is in use", "amqp:session:handle-in-use")
        sends = attach.role == RECEIVER
        link = None
        if not self.connection.is_server:
            mine = (each for each in self._links.values() if each.attach is None)
            link = next((e for e in mine if e.name == attach.name and e.sends == sends), None)
        if link is None:
            handle = attach.handle
            if not self.connection.is_server:
                handle = next(h for h in range(len(self._links) + 1) if h not in self._links)
            link = self._links[handle] = Link(self, attach.name, handle, sends=sends)
            self.connection.count_link(1)
        self._incoming[attach.handle] = link
        link.on_attach(attach)

    def on_flow(self, flow: Flow) -> None:
        seen = flow.next_incoming_id if flow.next_incoming_id is not None else 0
        self.remote_window = max(0, after(seen, self.next_outgoing_id) + flow.incoming_window)
        waited = bool(self.pending)
        while self.pending and self.remote_window > 0:
            waiting, _, frame = self.pending.popleft()
            self.connection.count_pending(-len(frame))
            if not frame:
                waiting.say_drained()
                continue
            self.remote_window -= 1
            self.next_outgoing_id = self.next_outgoing_id + 1 & MASK
            self.connection.put(frame)
        if waited and not self.pending:
            for each in self._links.values():
                if each.sends and each.remote_handle != flow.handle:
                    self.tell(Flowed(each))
        if flow.handle is not None:
            link = self._incoming.get(flow.handle)
            if link is None:
                raise Malformed("a flow is for no link", "amqp:session:unattached-handle")
            if not link.is_gone:
                link.on_flow(flow)
        elif flow.echo:
            self.flow()

    def on_whole(
        self, handle: int, number: int, tag: bytes, rest: Whole, payload: bytes
    ) -> Arrived | None:
        """A transfer that is a delivery by itself. There is one for each message."""
        self._count_transfers(1)
        link = self._incoming.get(handle)
        if link is None or link.sends:
            raise Malformed("a transfer is for no link", "amqp:session:unattached-handle")
        return None if link.is_gone else link.on_whole(number, tag, rest, payload)

    def on_run(self, link: Link, count: int) -> None:
        """Transfers that were told all at once."""
        self._count_transfers(count)
        link.credit -= count
        link.delivery_count = link.delivery_count + count & MASK

    def _count_transfers(self, count: int) -> None:
        assert self.next_incoming_id is not None
        self.next_incoming_id = self.next_incoming_id + count & MASK
        self._window -= count
        if self._window < WINDOW // 2:
            self._window = WINDOW
            self.flow()

    def on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        self._count_transfers(1)
        link = self._incoming.get(transfer.handle)
        if link is None or link.sends:
            raise Malformed("a transfer is for no link", "amqp:session:unattached-handle")
        if not link.is_gone:
            link.on_transfer(transfer, payload)

    def on_disposition(self, disposition: Disposition) -> None:
        """Acts on a disposition; the other end's role tells whose deliveries it names (2.7.6)."""
        if disposition.role == SENDER:  # of what it sent; what we said of those was final
            self._told_by_sender(disposition)
            return
        settled, state = bool(disposition.settled), disposition.state
        assert not isinstance(state, bytes)
        decided = state is not None and code_of(state) != _RECEIVED
        if not settled and not decided:
            return
        ids = self._spoken_of(disposition)
        links = list(map(self.unsettled.pop, ids))
        if len(set(links)) == 1:  # as is most common
            by_link = {links[0]: ids}
        else:
            by_link = {}
            for link, id in zip(links, ids, strict=True):
                by_link.setdefault(link, []).append(id)
        for link, mine in by_link.items():
            self.tell(Disposed(link, mine, list(map(link.unsettled.pop, mine)), state, settled))

    def _spoken_of(self, disposition: Disposition) -> list[int]:
        """The deliveries of ours that a disposition names; its range is cut to those there are."""
        unsettled, first = self.unsettled, disposition.first
        if disposition.last is None or disposition.last == first:
            return [first] if first in unsettled else []
        if not unsettled:
            return []
        oldest, newest = next(iter(unsettled)), next(reversed(unsettled))
        begin = first if after(first, oldest) > 0 else oldest
        end = disposition.last if after(disposition.last, newest) < 0 else newest
        count = after(end, begin) + 1
        if count <= len(unsettled):
            ids = [each for each in _following(begin, count) if each in unsettled]
        else:
            ids = [each for each in unsettled if 0 <= after(each, begin) < count]
        looked = min(max(0, count), len(unsettled))
        self._misses = max(0, self._misses + looked - 2 * len(ids))
        if self._misses > MISSES_MAX:
            raise Malformed("too much is said of deliveries that are not there",
                            "amqp:session:errant-link")  # fmt: skip
        return ids

    def _told_by_sender(self, disposition: Disposition) -> None:
        state = disposition.state
        assert not isinstance(state, bytes)
        if self.connection.is_server:
            return
        last = disposition.first if disposition.last is None else disposition.last
        count = after(last, disposition.first) + 1
        ids = [disposition.first + at & MASK for at in range(max(0, min(count, WINDOW)))]
        for link in list(self._links.values()):
            if not link.sends:
                self.tell(Disposed(link, ids, [], state, bool(disposition.settled)))

    def on_detach(self, detach: Detach) -> None:
        link = self._incoming.pop(detach.handle, None)
        if link is None:
            raise Malformed("a detach is for no link", "amqp:session:unattached-handle")
        link.on_detach(detach)

    def on_end(self) -> None:
        if not self.ended:
            self._lose_links()
            self.ended = True
            self.write(End())

    def lose(self) -> None:
        """The connection is over."""
        self.ended = True
        self._lose_links()

    def forget(self, link: Link) -> None:
        if self._links.pop(link.handle, None) is not None:
            self.connection.count_link(-1)

    def drop_pending(self, of: Link | None) -> None:
        """Drops the frames of a link, or of all links, that wait for the window."""
        if self.pending:
            dropped = [each for each in self.pending if of is None or each[0] is of]
            self.pending = deque(
                each for each in self.pending if of is not None and each[0] is not of
            )
            self.connection.count_pending(-sum(len(frame) for _, _, frame in dropped))
            for link, number, frame in dropped:
                if frame and number in link.unsettled:
                    link.unsent.add(link.unsettled[number])

    def unfinished(self, change: int) -> None:
        self.connection.count_unfinished(change)

    def tell(self, event: Value) -> None:
        self.connection.tell(event)

    def _lose_links(self) -> None:
        self.drop_pending(None)
        for link in list(self._links.values()):
            link.lose()
            self.forget(link)
