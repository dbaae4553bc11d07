"""Protocols over WebSocket: the bytes of a connection in binary frames (RFC 6455).

The frames are the `websockets` library's, without its input and output; what is in them goes
straight to the peer of the protocol, frame by frame: where messages end has no meaning here, so
none is ever gathered. Nothing is compressed. What comes is read in slices, until a turn is over or
the peer wants no more; the rest waits.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from posthouse.dialects.backpressure import TURN_SECONDS, Backpressure
from posthouse.dialects.connections import WrappedPeer
from posthouse.server.listener import Connection

FIRST_FRAGMENT_BYTES_MAX = 64 << 10  # before the peer trusts its client
FRAGMENT_BYTES_MAX = 4 << 20
SLICE_BYTES = 2 << 10  # that are read between two looks at the clock: some hundred frames,
LARGE_SLICE_BYTES = 64 << 10  # or as much of one frame
STRANGER_FRAMES_MAX = 1_000  # in all, before the peer trusts its client
FRAMES_SPARE = 1_000  # that may be shorter than they should in so many seconds
COUNT_SECONDS = 60
FRAME_BYTES_MIN = 8
CLOSE_SECONDS = 2.0
_NORMAL, _UNSUPPORTED, _POLICY = 1000, 1003, 1008

_library_log = logging.getLogger(f"{__name__}.frames")
_library_log.setLevel(logging.WARNING)  # that connections come and go is counted elsewhere


class WebSocketRoute(NamedTuple):
    """A path at which a protocol can be spoken, and the name it has there."""

    path: str  # folded, without a slash behind
    subprotocol: str
    make: Callable[[Connection], WrappedPeer]
    admits: Callable[[dict[bytes, bytes]], bool]  # whether it takes a request with these headers


class WebSocketPeer(asyncio.Protocol):
    """One connection, from its upgrade on. To the peer inside it is the transport."""

    def __init__(self, route: WebSocketRoute, connection: Connection) -> None:
        from websockets.server import ServerProtocol  # not needed by every start

        self._connection = connection
        self._inner: WrappedPeer | None = None
        self._route = route
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # once it is made
        self._frames = ServerProtocol(
            subprotocols=[route.subprotocol],  # type: ignore[list-item]  # a name, to the type checker
            max_size=(None, FIRST_FRAGMENT_BYTES_MAX),
            logger=_library_log,
        )
        self._closing = False
        self._come: deque[bytes] = deque()  # and was not read yet,
        self._at = 0  # from here on in the first
        self._is_quiet = False  # the last slice was within a frame
        self._backpressure = Backpressure(self._go_on)
        self._count = 0  # frames
        self._counted_from, self._spare = 0.0, float(FRAMES_SPARE)

    def begin(self, transport: asyncio.Transport, head: bytes) -> None:
        """Answers the upgrade."""
        from websockets.http11 import Request

        self._transport = self._backpressure.transport = transport
        self._frames.receive_data(head)
        requests = [each for each in self._frames.events_received() if isinstance(each, Request)]
        if not requests:
            transport.close()
            return
        response = self._frames.accept(requests[0])
        self._frames.send_response(response)
        self._put()
        if response.status_code != 101:
            self._end()
            return
        self._inner = self._route.make(self._connection)
        self._inner.connection_made(self)

    # The protocol, for asyncio.

    def data_received(self, data: bytes) -> None:
        self._come.append(data)
        if self._backpressure.may_look:
            self._go_on()

    def _go_on(self) -> None:
        """Reads what has come, slice by slice, until the turn is over."""
        pressure, turn = self._backpressure, self._backpressure.turn
        turn.begin()
        while self._come and self._inner is not None and not pressure.is_paused:
            if self.is_closing():
                self._come.clear()
                break
            self._read(self._next_slice(), self._inner)
            if turn.is_over():
                break
        turn.end()
        pressure.end_turn(is_behind=bool(self._come))

    def _next_slice(self) -> bytes:
        data, at = self._come[0], self._at
        # Within a large frame nothing is to be looked at before its end.
        size = LARGE_SLICE_BYTES if self._is_quiet else SLICE_BYTES
        piece = data[at : at + size]
        self._at += len(piece)
        if self._at >= len(data):
            self._come.popleft()
            self._at = 0
        return piece

    def _read(self, piece: bytes, inner: WrappedPeer) -> None:
        from websockets.frames import Frame, Opcode

        frames = self._frames
        if inner.is_trusted:
            frames.max_fragment_size = FRAGMENT_BYTES_MAX
            self._backpressure.turn.seconds = TURN_SECONDS
        frames.receive_data(piece)
        events = frames.events_received()
        self._is_quiet = not events
        for event in events:
            assert isinstance(event, Frame)
            if event.opcode in (Opcode.BINARY, Opcode.CONT):
                if event.data and not self._closing:
                    inner.data_received(bytes(event.data))
            elif event.opcode is Opcode.TEXT:
                frames.fail(_UNSUPPORTED, "binary frames only")
                break
        if self._says_little(len(events), len(piece)):
            frames.fail(_POLICY, "too many frames with too little in them")
        elif not inner.is_trusted and self._count > STRANGER_FRAMES_MAX:
            frames.fail(_POLICY, "too many frames before it is known from whom")
        self._put()  # a pong, or the answer to a close
        if frames.close_expected():
            self._end()

    def _says_little(self, frames: int, size: int) -> bool:
        """Whether it sends so many small frames that the broker does little else than read them."""
        now = asyncio.get_running_loop().time()
        if now > self._counted_from + COUNT_SECONDS:
            self._counted_from, self._spare = now, FRAMES_SPARE
        self._count += frames
        self._spare += size / FRAME_BYTES_MIN - frames
        self._spare = min(self._spare, FRAMES_SPARE)
        return self._spare < 0

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._inner is not None:
            self._inner.connection_lost(exc)
        else:
            self._connection.gone()

    def shutdown(self) -> None:
        if self._inner is not None:
            self._inner.shutdown()
        else:
            self._end()

    # The transport, for the peer inside.

    def write(self, data: bytes) -> None:
        if not self.is_closing():
            self._frames.send_binary(data)
            self._put()

    def is_closing(self) -> bool:
        """Whether it is closing, or the client has said goodbye, perhaps behind a request."""
        said = self._frames.close_rcvd is not None or self._frames.close_sent is not None
        return said or self._closing or self._transport.is_closing()

    def close(self) -> None:
        if not self.is_closing():
            self._frames.send_close(_NORMAL)
            self._put()
        self._end()

    def abort(self) -> None:
        self._transport.abort()

    def pause_reading(self) -> None:
        """The peer inside wants nothing more for now."""
        self._backpressure.pause()

    def resume_reading(self) -> None:
        self._backpressure.resume()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def _put(self) -> None:
        data = b"".join(self._frames.data_to_send())
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def _end(self) -> None:
        self._closing = True
        self._transport.close()
        asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._transport.abort)
