"""A connection (2.4): bytes in, events out, and bytes to be sent.

It does no input or output and has no clock. Whoever drives it hands in what was received, acts on
the events that come back, and sends what `take` gives:

    for event in connection.receive(data): ...
    transport.write(connection.take())

Events come one by one while the bytes are read, so what is said to one goes out before what is said
to the next. `look` gives nothing (None) for a frame of which there is nothing to tell, so whoever
drives it can stop after any frame, do other things, and go on later.

Both roles are here. A server is given `authenticate`, which is asked with what SASL brought; a
client is given the mechanism and what to say in it.
"""

from collections.abc import Callable, Iterator
from struct import Struct
from typing import NamedTuple

from posthouse.amqp.events import Begun, Closed, Ended, Event, Opened, Run
from posthouse.amqp.performatives import (
    TRANSFER_HEAD,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    Problem,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
    error,
    problem_in,
    read,
    read_whole,
    write,
)
from posthouse.amqp.runs import Shape, shape_of
from posthouse.amqp.session import WINDOW, Session
from posthouse.amqp.types import Described, Malformed, Value

AMQP, SASL = b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00"
_AMQP_FRAME, _SASL_FRAME = 0, 1
_TRANSFER = TRANSFER_HEAD[:3]
_EMPTY = b"\x00\x00\x00\x08\x02\x00\x00\x00"  # 2.4.5: a frame that says nothing, to be heard
FRAME_BYTES_MIN = 512  # 2.7.1: what every peer must take
SASL_BYTES_MAX = 8 << 10
_NOT_NOW = (
    "The broker cannot take credentials now: it starts, or this principal has too many connections."
)
_SASL_AUTH, _SASL_TEMPORARY = 1, 4  # 5.3.3.6: not known; no way to tell at the moment
_HEAD = Struct(">IBBH").unpack_from
_head = Struct(">IBBH").pack

# Asked with a mechanism and what the client said in it; True where that is enough, None where it
# cannot be told at the moment.
Authenticate = Callable[[str, bytes], bool | None]


class Limits(NamedTuple):
    """The limits of one connection. Those named `first_` hold until `trust` is called."""

    frame_bytes: int = 1 << 20
    channels: int = 4_096
    handles: int = 1_024  # of one session
    links: int = 5_000  # of all sessions
    unfinished: int = 64  # deliveries of which a part has come
    performative_bytes: int = 64 << 10  # of a frame that is not a transfer
    pending_bytes: int = 64 << 20  # that wait for the other side's window
    first_frame_bytes: int = 64 << 10  # before it is trusted
    first_performative_bytes: int = 8 << 10
    first_pending_bytes: int = 64 << 10
    first_channels: int = 16
    first_links: int = 16
    first_unfinished: int = 1
    first_frames: int = 200  # in all; clients need about ten until they have shown who they are
    first_bytes: int = 256 << 10  # in all


class Connection:
    """One end of a connection."""

    def __init__(
        self,
        container: str,
        *,
        limits: Limits = Limits(),  # noqa: B008 (it cannot change)
        idle_ms: int | None = None,
        authenticate: Authenticate | None = None,
        mechanisms: tuple[str, ...] = ("ANONYMOUS",),
        hostname: str | None = None,
        sasl: tuple[str, bytes] | None = None,
        properties: dict[Value, Value] | None = None,
    ) -> None:
        """A server if it has somebody to ask who a client is; else a client, which speaks first."""
        self.is_server = authenticate is not None
        self.limits = limits
        self.open: Open | None = None  # the other side's
        self.remote_frame_max = FRAME_BYTES_MIN
        self.hostname = hostname
        self.closed = False  # nothing more is to be read
        self._container = container
        self._idle_ms = idle_ms
        self._authenticate = authenticate
        self._mechanisms = mechanisms
        self._sasl = sasl
        self._properties = properties
        self._trusted = False
        self._is_stranger = self.is_server  # its frames are counted
        self._first_frames = self._first_bytes = 0
        self._events: list[Event] = []
        self._out: list[bytes] = []
        self._kept: list[bytes] = []  # of a frame that is not complete
        self._kept_bytes = self._needed = 0
        self._shape: Shape | None = None  # of the last whole delivery, where its link takes runs
        self._frame_max = SASL_BYTES_MAX
        self._performative_max = limits.first_performative_bytes
        if not self.is_server:
            self._performative_max = limits.frame_bytes
        self._pending_bytes = 0
        self._awaits_header = True
        self._in_sasl = False
        self._sasl_done = False
        self._opened = False  # we have said so
        self._closing = False  # we have said so
        self._links = self._unfinished = 0
        self._sessions: dict[int, Session] = {}  # by our channel
        self._incoming: dict[int, Session] = {}  # by theirs
        if not self.is_server:
            self._begin_as_client()

    # For who drives it.

    def receive(self, data: bytes) -> Iterator[Event]:
        """Yields the events in the data that has come; act on each before asking for the next.

        After an error of the other side there is a `Closed` among them.
        """
        return (event for event in self.look(data) if event is not None)

    def look(self, data: bytes) -> Iterator[Event | None]:
        """Yields events like `receive`, and None for each frame that is no event."""
        if self.closed:
            return
        pos = 0
        try:
            while self._kept:  # a frame that was begun is completed first; the rest is not copied
                missing = self._needed - self._kept_bytes
                self._kept.append(data[pos : pos + missing])
                if len(data) - pos < missing:
                    self._kept_bytes += len(data) - pos
                    return
                pos += missing
                begun, self._kept = b"".join(self._kept), []
                yield from self._read(begun, 0)
            yield from self._read(data, pos)
        except Malformed as problem:
            self._fail(problem)
        yield from self._told()

    def _told(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def take(self) -> bytes:
        """Returns the bytes that are to be sent, and forgets them."""
        out, self._out = self._out, []
        return out[0] if len(out) == 1 else b"".join(out)

    @property
    def has_output(self) -> bool:
        return bool(self._out)

    def trust(self) -> None:
        """Applies the wider limits from now on: the other side has authenticated."""
        self._trusted = True
        self._is_stranger = False
        self._performative_max = self.limits.performative_bytes
        if self._opened:
            self._frame_max = self.limits.frame_bytes

    def begin(self) -> Session:
        """A session; it can be used at once."""
        channel = next(at for at in range(len(self._sessions) + 1) if at not in self._sessions)
        session = self._sessions[channel] = Session(self, channel)
        session.remote_window = WINDOW
        self.write(self._begin_of(session, None), channel)
        return session

    def close(self, error: bytes | None = None) -> None:
        """Says goodbye. What is under way is lost; the other side is to say it too."""
        if not self._closing:
            self._closing = True
            if self._opened:
                self.write(Close(error))

    def keep_alive(self) -> None:
        self._out.append(_EMPTY)

    @property
    def idle_seconds(self) -> float | None:
        """The seconds after which we must send something: half of what the other side asks for."""
        if self.open is None or not self.open.idle_time_out:
            return None
        return self.open.idle_time_out / 2000

    # For sessions and links.

    def write(self, performative: Performative, channel: int = 0) -> None:
        content = write(performative)
        if isinstance(performative, Attach) and len(content) + 8 > self.remote_frame_max:
            content = write(_shortened(performative))
        self._out.append(_head(8 + len(content), 2, _AMQP_FRAME, channel) + content)

    def put(self, *parts: bytes) -> None:
        self._out += parts

    def tell(self, event: Event) -> None:
        self._events.append(event)

    def count_link(self, change: int) -> None:
        self._links += change
        most = self.limits.links if self._trusted else self.limits.first_links
        if change > 0 and self.is_server and self._links > most:
            raise Malformed(f"a connection has at most {most} links",
                            "amqp:resource-limit-exceeded")  # fmt: skip

    def count_pending(self, change: int) -> None:
        self._pending_bytes += change
        limits = self.limits
        most = limits.pending_bytes if self._trusted else limits.first_pending_bytes
        if change > 0 and self.is_server and self._pending_bytes > most:
            problem = Problem("amqp:resource-limit-exceeded", "Too much waits for a window.", {})
            self.close(error(problem.condition, problem.text))
            self._over(problem)

    def count_unfinished(self, change: int) -> None:
        self._unfinished += change
        most = self.limits.unfinished if self._trusted else self.limits.first_unfinished
        if change > 0 and self.is_server and self._unfinished > most:
            raise Malformed(f"at most {most} deliveries may be under way at a time",
                            "amqp:resource-limit-exceeded")  # fmt: skip

    def _count_first(self, size: int) -> None:
        """A frame of who has not shown yet who it is."""
        limits = self.limits
        self._first_frames += 1
        self._first_bytes += size
        if self._first_frames > limits.first_frames or self._first_bytes > limits.first_bytes:
            raise Malformed(
                f"a client has to show who it is within {limits.first_frames} frames and"
                f" {limits.first_bytes} bytes", "amqp:resource-limit-exceeded"
            )  # fmt: skip

    # Frames.

    def _read(self, data: bytes, pos: int) -> Iterator[Event | None]:
        end = len(data)
        while pos < end and not self.closed:
            if self._events:
                yield from self._told()
                continue  # it may have been closed meanwhile
            if self._awaits_header:
                if end - pos < 8:
                    self._needed = 8
                    break
                self._header(data[pos : pos + 8])
                pos += 8
                continue
            if self._shape is not None:
                run, pos = self._read_run(self._shape, data, pos)
                if run is not None:
                    yield run
                    continue
            if end - pos < 8:
                self._needed = 8
                break
            size, offset, kind, channel = _HEAD(data, pos)
            if size < 8 or size > self._frame_max:
                raise Malformed(f"a frame of {size} bytes", "amqp:connection:framing-error")
            if end - pos < size:
                self._needed = size
                break
            if self._is_stranger:
                self._count_first(size)
            begin = pos + 4 * offset  # 2.3.1: in words of four bytes
            pos += size
            if offset < 2 or begin > pos or kind != (_SASL_FRAME if self._in_sasl else _AMQP_FRAME):
                raise Malformed("a frame's header", "amqp:connection:framing-error")
            if pos - begin > 16 and data[begin : begin + 4] == TRANSFER_HEAD:
                session = self._incoming.get(channel)
                whole = None if session is None else read_whole(data, begin + 3, pos)
                if whole is not None and session is not None and not session.ended:
                    handle, number, tag, rest, at = whole
                    event = session.on_whole(handle, number, tag, rest, data[at:pos])
                    if event is not None:
                        if event.link.takes_runs and not rest.format:
                            frame = data[pos - size : at]
                            self._shape = shape_of(event.link, frame, settled=rest.settled)
                        yield event
                    elif not self._events:
                        yield None
                    continue
            if begin < pos:
                if size > self._performative_max and data[begin : begin + 3] != _TRANSFER:
                    raise Malformed(f"a frame of {size} bytes", "amqp:connection:framing-error")
                performative, at = read(data, begin, pos)
                _ON.get(type(performative), _unwanted)(self, channel, performative, data, at, pos)
            if not self._events:
                yield None
        if pos < end and not self.closed:
            self._kept, self._kept_bytes = [data[pos:]], end - pos

    def _read_run(self, shape: Shape, data: bytes, pos: int) -> tuple[Run | None, int]:
        """Reads the deliveries that are encoded like the one before; None where the next is not."""
        link = shape.link
        if shape.is_over or link.is_within:
            self._shape = None
            return None, pos
        ids, tags, payloads, stop = shape.read(data, pos, self._frame_max)
        if not ids:
            return None, pos
        link.session.on_run(link, len(ids))
        return Run(link, ids, tags, payloads, shape.settled), stop

    def _fail(self, problem: Malformed) -> None:
        """Says why the connection fails, and ignores all that comes then (2.4.3)."""
        if self._opened:
            self.close(error(problem.condition, f"{problem}."))
        self._over(Problem(problem.condition, str(problem), {}))

    def _over(self, problem: Problem | None) -> None:
        self.closed = True
        self._kept = []
        for session in list(self._sessions.values()):
            session.lose()
        self._sessions, self._incoming = {}, {}
        self._events.append(Closed(problem))

    def lose(self) -> list[Event]:
        """The connection has broken; returns what comes of that."""
        if not self.closed:
            self._over(None)
        return self._told()

    # Protocol headers and SASL (2.2, 5.3).

    def _begin_as_client(self) -> None:
        if self._sasl is None:
            self._sasl_done = True
            self._out.append(AMQP)
            self._say_open()
        else:
            self._out.append(SASL)

    def _header(self, header: bytes) -> None:
        if header == SASL and not self._sasl_done:
            self._in_sasl, self._awaits_header = True, False
            self._frame_max = SASL_BYTES_MAX
            if self.is_server:
                self._out.append(SASL)
                self._write_sasl(SaslMechanisms(list(self._mechanisms)))
        elif header == AMQP:
            if self.is_server and not self._sasl_done:
                self._sasl_done = True
                assert self._authenticate is not None
                if not self._authenticate("ANONYMOUS", b""):  # without SASL it is anonymous
                    self._turn_away()
                    return
            self._awaits_header = False
            self._frame_max = self.limits.first_frame_bytes
            if self._trusted or not self.is_server:
                self._frame_max = self.limits.frame_bytes
            if self.is_server:
                self._out.append(AMQP)
        else:
            self._turn_away()

    def _turn_away(self) -> None:
        """Answers a wrong protocol header with the one we speak, and closes (2.2)."""
        self._out.append(SASL if not self._sasl_done else AMQP)
        self._over(Problem("amqp:connection:framing-error", "another protocol", {}))

    def _write_sasl(self, performative: Performative) -> None:
        content = write(performative)
        self._out.append(_head(8 + len(content), 2, _SASL_FRAME, 0) + content)

    def _on_sasl_init(self, _: int, init: SaslInit, *rest: object) -> None:
        if not self.is_server or not self._in_sasl:
            raise Malformed("SASL out of turn", "amqp:connection:framing-error")
        assert self._authenticate is not None
        passed: bool | None = False
        if init.mechanism in self._mechanisms:
            passed = self._authenticate(init.mechanism, init.initial_response or b"")
        if passed:
            self._write_sasl(SaslOutcome(0))
            self._in_sasl, self._sasl_done, self._awaits_header = False, True, True
        else:
            self._write_sasl(SaslOutcome(_SASL_AUTH if passed is False else _SASL_TEMPORARY))
            self._over(Problem("amqp:unauthorized-access", "SASL was not passed", {}))

    def _on_sasl_mechanisms(self, _: int, offered: SaslMechanisms, *rest: object) -> None:
        if self.is_server or self._sasl is None or not self._in_sasl:
            raise Malformed("SASL out of turn", "amqp:connection:framing-error")
        mechanism, response = self._sasl
        names = offered.mechanisms
        if mechanism not in ([names] if isinstance(names, str) else names):
            raise Malformed(f"{mechanism} is not offered", "amqp:unauthorized-access")
        self._write_sasl(SaslInit(mechanism, response, self.hostname))

    def _on_sasl_outcome(self, _: int, outcome: SaslOutcome, *rest: object) -> None:
        if self.is_server or not self._in_sasl:
            raise Malformed("SASL out of turn", "amqp:connection:framing-error")
        if outcome.outcome == _SASL_TEMPORARY:
            raise Malformed(_NOT_NOW, "amqp:connection:forced")
        if outcome.outcome:
            raise Malformed("the credentials were not taken", "amqp:unauthorized-access")
        self._in_sasl, self._sasl_done, self._awaits_header = False, True, True
        self._out.append(AMQP)
        self._say_open()

    # Performatives.

    def _say_open(self) -> None:
        self._opened = True
        limits = self.limits
        self.write(
            Open(
                self._container, None if self.is_server else self.hostname, limits.frame_bytes,
                limits.channels - 1, self._idle_ms, properties=self._properties,
            )
        )  # fmt: skip

    def _on_open(self, _: int, open: Open, *rest: object) -> None:
        if self.open is not None or self._in_sasl:
            raise Malformed("a second open", "amqp:connection:framing-error")
        self.open = open
        most = open.max_frame_size
        self.remote_frame_max = max(
            FRAME_BYTES_MIN, 1 << 20 if most is None else min(most, 1 << 20)
        )
        for session in self._sessions.values():
            session.frame_max = self.remote_frame_max
        if self.is_server:
            self.hostname = open.hostname
            self._say_open()
            if self._trusted:
                self._frame_max = self.limits.frame_bytes
        self._events.append(Opened(open))

    def _begin_of(self, session: Session, remote: int | None) -> Begin:
        return Begin(remote, session.next_outgoing_id, WINDOW, WINDOW, self.limits.handles - 1)

    def _on_begin(self, channel: int, begin: Begin, *rest: object) -> None:
        self._check_open()
        if channel in self._incoming:
            raise Malformed("a channel is in use", "amqp:connection:framing-error")
        if not self.is_server and begin.remote_channel is not None:
            mine = self._sessions.get(begin.remote_channel)
            if mine is None:
                raise Malformed("an answer to no begin", "amqp:connection:framing-error")
            self._incoming[channel] = mine
            mine.on_begin(begin, channel)
            self._events.append(Begun(mine))
            return
        most = self.limits.channels if self._trusted else self.limits.first_channels
        if channel >= self.limits.channels or len(self._incoming) >= most:
            raise Malformed(f"a connection has at most {most} channels",
                            "amqp:resource-limit-exceeded")  # fmt: skip
        session = self._sessions[channel] = self._incoming[channel] = Session(self, channel)
        session.on_begin(begin, channel)
        self.write(self._begin_of(session, channel), channel)
        self._events.append(Begun(session))

    def _check_open(self) -> None:
        if self.open is None:
            raise Malformed("there was no open", "amqp:connection:framing-error")

    def _session(self, channel: int) -> Session:
        session = self._incoming.get(channel)
        if session is None:
            raise Malformed("there is no session on the channel", "amqp:connection:framing-error")
        return session

    def _on_attach(self, channel: int, attach: Attach, *rest: object) -> None:
        session = self._session(channel)
        if not session.ended:
            session.on_attach(attach, self.limits.handles - 1)

    def _on_flow(self, channel: int, flow: Flow, *rest: object) -> None:
        session = self._session(channel)
        if not session.ended:
            session.on_flow(flow)

    def _on_transfer(
        self, channel: int, transfer: Transfer, data: bytes, at: int, end: int
    ) -> None:
        session = self._session(channel)
        if not session.ended:
            session.on_transfer(transfer, data[at:end])

    def _on_disposition(self, channel: int, disposition: Disposition, *rest: object) -> None:
        session = self._session(channel)
        if not session.ended:
            session.on_disposition(disposition)

    def _on_detach(self, channel: int, detach: Detach, *rest: object) -> None:
        session = self._session(channel)
        if not session.ended:
            session.on_detach(detach)

    def _on_end(self, channel: int, end: End, *rest: object) -> None:
        session = self._session(channel)
        session.on_end()
        del self._incoming[channel]
        self._sessions.pop(session.channel, None)
        self._events.append(Ended(session, problem_in(end.error)))

    def _on_close(self, _: int, close: Close, *rest: object) -> None:
        self._check_open()
        self.close()
        self._over(problem_in(close.error))


def _shortened(attach: Attach) -> Attach:
    """The attach without what the other side knows already, as it takes small frames only."""
    properties = attach.properties
    source, target = (
        Described(each.descriptor, each.value[:1]) if isinstance(each, Described) else each
        for each in (attach.source, attach.target)
    )
    return Attach(
        attach.name, attach.handle, attach.role, attach.snd_settle_mode, attach.rcv_settle_mode,
        source, target, None, False, attach.initial_delivery_count, attach.max_message_size,
        properties=properties,
    )  # fmt: skip


def _unwanted(*_: object) -> None:
    raise Malformed("a frame that is not expected", "amqp:not-implemented")


_ON: dict[type[Performative], Callable[..., None]] = {
    Open: Connection._on_open,
    Begin: Connection._on_begin,
    Attach: Connection._on_attach,
    Flow: Connection._on_flow,
    Transfer: Connection._on_transfer,
    Disposition: Connection._on_disposition,
    Detach: Connection._on_detach,
    End: Connection._on_end,
    Close: Connection._on_close,
    SaslInit: Connection._on_sasl_init,
    SaslMechanisms: Connection._on_sasl_mechanisms,
    SaslOutcome: Connection._on_sasl_outcome,
}
