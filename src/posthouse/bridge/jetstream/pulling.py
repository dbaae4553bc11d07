"""Pulling: requests for the next events of a consumer, one after the other for as long as it runs.

A request lasts EXPIRES_SECONDS, and the server sends heartbeats meanwhile. A new one is made before
the last ends, when heartbeats are missed, and on each new connection: nothing that happens to a
server leaves a consumer that asks for nothing and waits for ever.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import math
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from posthouse.bridge.errors import NotPermitted
from posthouse.bridge.jetstream.connection import Connection
from posthouse.bridge.jetstream.incoming import Incoming
from posthouse.bridge.jetstream.words import DESCRIPTION, NANOSECONDS, Reply, Unanswered
from posthouse.bridge.transport import Delivery, Source

_log = logging.getLogger("posthouse.bridge")

EXPIRES_SECONDS = 30.0
HEARTBEAT_SECONDS = 5.0
RENEW_SECONDS = 1.0  # before a request ends
SILENCE_SECONDS = 2 * HEARTBEAT_SECONDS + 1.0  # after which a request is dead
PAUSE_SECONDS = (0.1, 5.0)  # after a request that was refused, the first and the longest
BATCH_MAX = 5_000
_HEARTBEAT, _ENDED = 100, (404, 408)


@dataclass(slots=True)
class _Request:
    """A request, and how many events it may still bring."""

    token: str
    left: int
    until: float
    heard: float
    generation: int
    is_renewed: bool = False


class Puller:
    """The deliveries of one pull consumer."""

    def __init__(self, connection: Connection, stream: str, source: Source, size: int) -> None:
        self.problem = ""
        self._connection = connection
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{source.consumer}"
        self._what = f"the consumer {source.consumer} of the stream {stream}"
        self._inbox = connection.new_inbox()
        self._numbers = itertools.count(1)
        self._incoming = Incoming(connection, source, min(size, BATCH_MAX))
        self._requests: dict[str, _Request] = {}
        self._pause = PAUSE_SECONDS[0]
        self._not_before = 0.0
        self._denied: NotPermitted | None = None

    async def deliveries(self) -> AsyncGenerator[Delivery, None]:
        """Ends with the connection. Raises NotPermitted where the user may not ask for events."""
        incoming, connection = self._incoming, self._connection
        loop = asyncio.get_running_loop()
        connection.when_denied(self._subject, self._note_denied)
        # Events come with the subjects that they were published to: by this subscription, and by
        # nothing else, it is known that they are answers.
        listener = await connection.listen(f"{self._inbox}.*", self._take)
        try:
            with connection.watching(incoming.changed):
                while connection.state != "disconnected":
                    incoming.changed.clear()
                    if self._denied is not None:
                        raise self._denied
                    delivery = incoming.next()
                    if delivery is not None:
                        yield delivery
                        continue
                    if connection.state == "connected":
                        await self._ask_if_wanted(loop.time())
                    await self._wait(loop.time())
        finally:
            connection.forget_denied(self._subject)
            # A server that nobody listens to forgets what it was asked: what is given back after
            # that goes to others.
            await connection.unlisten(listener)
            incoming.end()

    def _note_denied(self, denied: NotPermitted) -> None:
        self._denied = denied
        self._incoming.changed.set()

    async def _wait(self, now: float) -> None:
        """Waits until something comes or leaves, or a request must be looked at."""
        ends = [
            min(
                each.until - (0 if each.is_renewed else RENEW_SECONDS), each.heard + SILENCE_SECONDS
            )
            for each in self._requests.values()
        ]
        until = min(min(ends, default=math.inf), self._incoming.window.next_end)
        if self._not_before > now:
            until = min(until, self._not_before)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if until == math.inf else max(0.001, until - now)):
                await self._incoming.changed.wait()

    async def _ask_if_wanted(self, now: float) -> None:
        for request in list(self._requests.values()):
            is_silent = now - request.heard > SILENCE_SECONDS
            if request.generation != self._connection.generation or now > request.until + 1:
                del self._requests[request.token]
            elif is_silent:
                _log.warning(
                    "NATS: %s was silent for %.0f s; it is asked again.", self._what,
                    now - request.heard, extra={"event": "bridge.pull-silent"},
                )  # fmt: skip
                del self._requests[request.token]
            elif now >= request.until - RENEW_SECONDS:
                request.is_renewed = True
        if now < self._not_before:
            return
        coming = sum(each.left for each in self._requests.values() if not each.is_renewed)
        wanted = self._incoming.window.room - coming
        if wanted > 0 and (not coming or 2 * wanted >= self._incoming.size):
            await self._ask(wanted, now)

    async def _ask(self, wanted: int, now: float) -> None:
        token = str(next(self._numbers))
        self._requests[token] = _Request(
            token, wanted, now + EXPIRES_SECONDS, now, self._connection.generation
        )
        question = {
            "batch": wanted, "expires": round(EXPIRES_SECONDS * NANOSECONDS),
            "idle_heartbeat": round(HEARTBEAT_SECONDS * NANOSECONDS),
        }  # fmt: skip
        try:
            await self._connection.send(
                self._subject, json.dumps(question).encode(), None, f"{self._inbox}.{token}"
            )
        except Unanswered:  # the connection was lost just now
            self._requests.pop(token, None)

    def _take(self, subject: str, reply_to: str, reply: Reply) -> None:
        now = asyncio.get_running_loop().time()
        if not reply.status:
            self._note_event(now)
            self._incoming.take(subject, reply_to, reply)
            return
        request = self._requests.get(subject.rpartition(".")[2])
        if request is not None:
            self._note_status(request, reply, now)

    def _note_event(self, now: float) -> None:
        """An event has the subject it was published to, so it is the oldest request's."""
        self._pause, self.problem = PAUSE_SECONDS[0], ""
        for request in self._requests.values():
            request.heard = now
        for request in list(self._requests.values()):
            if request.left > 0:
                request.left -= 1
                if not request.left:
                    del self._requests[request.token]
                break

    def _note_status(self, request: _Request, reply: Reply, now: float) -> None:
        request.heard = now
        if reply.status == _HEARTBEAT:
            self._pause, self.problem = PAUSE_SECONDS[0], ""
            return
        del self._requests[request.token]
        if reply.status not in _ENDED and "batch completed" not in _text(reply).lower():
            self._note_refusal(reply, now)
        self._incoming.changed.set()

    def _note_refusal(self, reply: Reply, now: float) -> None:
        text = _text(reply)
        if reply.status == 503:
            text = "nobody answers: it is not there, or has no leader"
        if self.problem != text:
            self.problem = text
            _log.warning(
                "NATS: %s gives no events, which is tried again: %s. If it is missing, `posthouse"
                " bridge provision` makes it.", self._what, text,
                extra={"event": "bridge.pull-refused"},
            )  # fmt: skip
        self._not_before = now + self._pause
        self._pause = min(self._pause * 2, PAUSE_SECONDS[1])


def _text(reply: Reply) -> str:
    return reply.headers.get(DESCRIPTION.lower(), str(reply.status))
