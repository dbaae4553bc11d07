"""Pushing: a consumer sends its events to a subject, to one member of a queue group each."""

import asyncio
import logging
from collections.abc import AsyncGenerator

from posthouse.bridge.errors import NotPermitted
from posthouse.bridge.jetstream.connection import Connection, Listener
from posthouse.bridge.jetstream.incoming import Incoming
from posthouse.bridge.jetstream.words import STALLED, Reply, Unanswered
from posthouse.bridge.names import deliver_subject
from posthouse.bridge.transport import Delivery, Source

_log = logging.getLogger("posthouse.bridge")

HEARTBEAT_SECONDS = 5.0
SILENCE_SECONDS = 30.0  # one of a few members hears of a heartbeat now and then
_CONTROL = 100


class Pushed:
    """The deliveries of one push consumer that this member of its group gets."""

    def __init__(self, connection: Connection, source: Source, size: int) -> None:
        self._connection = connection
        self._subject = deliver_subject(source)
        self._group = source.consumer
        self._incoming = Incoming(connection, source, size)
        self._heard = 0.0
        self._denied: NotPermitted | None = None
        self._answers: set[asyncio.Task[None]] = set()

    async def deliveries(self) -> AsyncGenerator[Delivery, None]:
        """Ends with the connection. Raises NotPermitted where the user may not subscribe."""
        incoming = self._incoming
        self._heard = asyncio.get_running_loop().time()
        self._connection.when_denied(self._subject, self._note_denied)
        listener = await self._connection.listen(self._subject, self._take, self._group)
        try:
            with self._connection.watching(incoming.changed):
                while self._connection.state != "disconnected":
                    incoming.changed.clear()
                    if self._denied is not None:
                        raise self._denied
                    delivery = incoming.next()
                    if delivery is not None:
                        yield delivery
                    else:
                        await self._wait(listener)
        finally:
            self._connection.forget_denied(self._subject)
            await self._connection.unlisten(listener)
            incoming.end()  # now it goes to others

    async def _wait(self, listener: Listener) -> None:
        """Waits until something comes or leaves; after a long silence it subscribes again."""
        try:
            async with asyncio.timeout_at(self._heard + SILENCE_SECONDS):
                await self._incoming.changed.wait()
        except TimeoutError:
            self._heard = asyncio.get_running_loop().time()
            if self._connection.state == "connected":
                _log.info(
                    "NATS: nothing came on %s for %.0f s; it is subscribed to again.",
                    self._subject, SILENCE_SECONDS, extra={"event": "bridge.push-silent"},
                )  # fmt: skip
                await self._connection.listen_again(listener)

    def _note_denied(self, denied: NotPermitted) -> None:
        self._denied = denied
        self._incoming.changed.set()

    def _take(self, subject: str, reply_to: str, reply: Reply) -> None:
        self._heard = asyncio.get_running_loop().time()
        if reply.status != _CONTROL:
            self._incoming.take(subject, reply_to, reply)
            return
        # Flow control: the server goes on once it is told that what it has sent was taken.
        answer_to = reply_to or reply.headers.get(STALLED.lower(), "")
        if answer_to.startswith("$JS.FC."):
            task = asyncio.ensure_future(self._answer(answer_to))
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)

    async def _answer(self, subject: str) -> None:
        try:
            await self._connection.send(subject)
        except Unanswered as error:
            _log.debug("Flow control was not answered: %s", error)
