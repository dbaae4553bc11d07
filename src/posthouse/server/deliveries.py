"""Messages as they come, one JSON line each, to whoever stays connected.

    GET /api/v1/namespaces/N/queues/Q/deliveries?credit=100&delete=0

Whoever asks is attached to the queue as long as the connection lasts: to a fan-out queue with a
subscription of his own. What he has and has not settled when it ends goes back. So many messages as
he has credit for are on their way at a time. An empty line now and then says that all is well.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

import msgspec

from posthouse.broker.access import BROKER
from posthouse.broker.engine import Engine
from posthouse.core.commands import Attach, Credit, Delivery, Detach, Notice
from posthouse.core.errors import Refused
from posthouse.core.plan import Delivered
from posthouse.server.http import Answer, Request
from posthouse.server.problems import HttpProblem
from posthouse.server.shapes import delivered

CREDIT, CREDIT_MAX = 100, 1_000
LOOK_SECONDS = 1.0  # how often it is seen whether the broker goes on
BEAT_SECONDS = 15.0
_LINES = (b"content-type", b"application/x-ndjson")
_encode = msgspec.json.Encoder().encode


async def deliveries(engine: Engine, request: Request, namespace: str, queue: str) -> Answer:
    """Raises Refused or HttpProblem."""
    said = request.query.get("credit", str(CREDIT))
    if not said.isascii() or not said.isdigit() or not 0 < int(said[:9]) <= CREDIT_MAX:
        raise HttpProblem(400, "invalid-argument", f"credit must be from 1 to {CREDIT_MAX}.")
    delete = request.query.get("delete", "0") not in ("", "0", "false")
    line = _Line(engine, request, namespace, int(said))
    command = Attach(queue, line.number, line.credit, delete, bound=True)
    await engine.ask(request.principal, namespace, command)
    return Answer(line.read(), 200, (_LINES,))


class _Line:
    """One who is attached, and what is on its way to him."""

    def __init__(self, engine: Engine, request: Request, namespace: str, credit: int) -> None:
        self._engine = engine
        self._request = request
        self._namespace = namespace
        self.credit = credit
        self.number = engine.new_receiver(self._deliver)
        self._come: deque[Delivered] = deque()
        self._some = asyncio.Event()
        self._refused = False

    def _deliver(self, what: Sequence[Delivered]) -> None:
        self._come += what
        self._some.set()

    async def read(self) -> AsyncIterator[bytes]:
        gone = asyncio.ensure_future(self._request.gone())
        given, beat = 0, asyncio.get_running_loop().time()
        try:
            while not gone.done() and not self._engine.is_over:
                some = asyncio.ensure_future(self._some.wait())
                await asyncio.wait(
                    (some, gone), timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                some.cancel()
                self._some.clear()
                come, self._come = self._come, deque()
                lines = [_encode(delivered(each)) for each in come if isinstance(each, Delivery)]
                now = asyncio.get_running_loop().time()
                if lines or now - beat > BEAT_SECONDS:
                    beat = now
                    yield b"\n".join((*lines, b""))  # taken before there is credit for more
                if lines:
                    given += len(lines)
                    command = Credit(self.number, self.credit, given=given)
                    self._engine.submit(
                        self._request.principal, self._namespace, command, self._answered
                    )
                if self._refused or any(isinstance(each, Notice) for each in come):
                    return  # its right was taken away; or the queue is deleted, or paused
        finally:
            gone.cancel()
            # Giving back needs no right, which may have been taken away meanwhile.
            self._engine.submit(BROKER, self._namespace, Detach(self.number), lambda _: None)

    def _answered(self, answer: object) -> None:
        if isinstance(answer, Refused):
            self._refused = True
            self._some.set()
