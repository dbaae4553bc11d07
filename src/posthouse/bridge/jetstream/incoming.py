"""Deliveries of a stream: read from what came, counted, and settled by their reply subject."""

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from posthouse.bridge.envelope import KEY_HEADER
from posthouse.bridge.jetstream.words import (
    DELIVER_AT,
    MESSAGE_ID,
    NANOSECONDS,
    Reply,
    read_ack_subject,
)
from posthouse.bridge.transport import Delivery, Source
from posthouse.bridge.window import Window

if TYPE_CHECKING:
    from posthouse.bridge.jetstream.connection import Connection

_log = logging.getLogger("posthouse.bridge")

EARLY_SECONDS = 0.02  # that clocks may differ, for an event that is delayed


@dataclass(frozen=True, slots=True)
class Native:
    """The subject that settles a delivery, and the counter that has it."""

    reply: str
    window: Window
    key: Hashable


class Incoming:
    """Deliveries for one consumer that were not handed out yet."""

    def __init__(self, connection: "Connection", source: Source, size: int) -> None:
        self.changed = asyncio.Event()
        self.window = Window(size, max(source.ack_wait, 0.1) * 2, self.changed)
        self.source = source
        self.size = size
        self._connection = connection
        self._ready: deque[Delivery] = deque()
        self._sending: set[asyncio.Task[None]] = set()
        self.is_over = False

    def take(self, subject: str, reply_to: str, reply: Reply) -> None:
        """Takes a message. What comes when it is over goes back to the stream at once."""
        ack = read_ack_subject(reply_to)
        if ack is None:
            _log.warning(
                "A message of %s is no delivery of JetStream, and is dropped.", subject,
                extra={"event": "bridge.no-delivery", "subject": subject},
            )  # fmt: skip
            return
        headers = dict(reply.headers)
        number, early = ack.delivered, 0.0
        deliver_at = headers.pop(DELIVER_AT, "")
        if deliver_at.isascii() and deliver_at.isdigit() and len(deliver_at) < 16:
            early = int(deliver_at) / 1_000 - time.time()
            number = max(1, number - 1)  # the delivery that came too early does not count
        if self.is_over or early > EARLY_SECONDS:
            self._give_back(reply_to, max(early, 0.0))
            return
        id = headers.get(MESSAGE_ID.lower(), "")
        headers = {name: text for name, text in headers.items() if not name.startswith("nats-")}
        key = (ack.stream, ack.sequence)
        self.window.enter(key)
        self._ready.append(Delivery(
            subject=subject, body=reply.data, headers=headers,
            id=id, number=number, stream=ack.stream,
            sequence=ack.sequence, consumer=ack.consumer,
            key=unquote(headers.get(KEY_HEADER, "")),
            native=Native(reply_to, self.window, key),
        ))  # fmt: skip
        self.changed.set()

    def next(self) -> Delivery | None:
        """Returns a delivery, unless so many were handed out that are not settled."""
        if self._ready and len(self.window) - len(self._ready) < self.size:
            return self._ready.popleft()
        return None

    def end(self) -> None:
        """Gives back what was not handed out."""
        self.is_over = True
        while self._ready:
            native = self._ready.popleft().native
            assert isinstance(native, Native)
            self.window.leave(native.key)
            self._give_back(native.reply, 0.0)

    def _give_back(self, reply_to: str, delay: float) -> None:
        async def send() -> None:
            try:
                await self._connection.send(reply_to, nak(delay))
            except Exception as error:  # noqa: BLE001 (then its ack_wait ends)
                _log.debug("A delivery was not given back: %s", error)

        task = asyncio.ensure_future(send())
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)


def nak(delay: float) -> bytes:
    """Returns what gives a delivery back, for after a delay."""
    if delay <= 0:
        return b"-NAK"
    return b"-NAK " + json.dumps({"delay": round(delay * NANOSECONDS)}).encode()
