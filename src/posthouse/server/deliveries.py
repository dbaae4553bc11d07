"""Messages as they come, one JSON line each, to whoever stays connected.

    GET /api/v1/namespaces/N/queues/Q/deliveries?credit=100&delete=0

Whoever asks is attached to the queue as long as the connection lasts: to a fan-out queue with a
subscription of his own. What he has and has not settled when it ends goes back. So many messages as
he has credit for are on their way at a time. An empty line now and then says that all is well. The
lines end when he may not receive any more, or has a key that was taken back; who comes again is
told so.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

import msgspec

from posthouse.broker.access import BROKER
from posthouse.broker.engine import Engine
from posthouse.core.commands import Attach, Credit, Delivery, Detach, Notice
from posthouse.core.plan import Delivered
from posthouse.server.http import Answer, Request
from posthouse.server.problems import HttpProblem
from posthouse.server.shapes import delivered

CREDIT, CREDIT_MAX = 100, 1_000
LOOK_SECONDS = 1.0  # how often it is seen whether the broker goes on
BEAT_SECONDS = 15.0
END_SECONDS = 2.0  # for a client to read the rest, when it may not receive any more
_LINES = (b"content-type", b"application/x-ndjson")
_encode = msgspec.json.Encoder().encode


async def deliveries(engine: Engine, request: Request, namespace: str, queue: str) -> Answer:
    """Raises Refused or HttpProblem."""
    said = request.query.get("credit", str(CREDIT))
    if not said.isascii() or not said.isdigit() or not 0 < int(said[:9]) <= CREDIT_MAX:
        raise HttpProblem(400, "invalid-argument", f"credit must be from 1 to {CREDIT_MAX}.")
    delete = request.query.get("delete", "0") not in ("", "0", "false")
    line = _Line(engine, request, namespace, int(said))
    client = f"{request.principal.name}#{line.number} (HTTP)"
    command = Attach(queue, line.number, line.credit, delete, bound=True, client=client)
    await engine.ask(request.principal, namespace, command)
    return Answer(line.read(command), 200, (_LINES,))


class _Line:
    """A client that is attached, and the deliveries on their way to it."""

    def __init__(self, engine: Engine, request: Request, namespace: str, credit: int) -> None:
        self._engine = engine
        self._request = request
        self._namespace = namespace
        self.credit = credit
        self.number = engine.new_receiver(self._deliver)
        self._come: deque[Delivered] = deque()
        self._some = asyncio.Event()
        self._is_over = False

    def _deliver(self, what: Sequence[Delivered]) -> None:
        self._come += what
        self._some.set()

    async def read(self, command: Attach) -> AsyncIterator[bytes]:
        engine, principal = self._engine, self._request.principal

        def check() -> None:
            engine.check(principal, self._namespace, command)

        gone = asyncio.ensure_future(self._request.gone())
        given, beat = 0, asyncio.get_running_loop().time()
        try:
            with engine.access_watchers.refusal(principal, check) as refused:
                refused.add_done_callback(self._end)
                while not gone.done() and not engine.is_over:
                    some = asyncio.ensure_future(self._some.wait())
                    await asyncio.wait(
                        (some, gone, refused), timeout=LOOK_SECONDS,
                        return_when=asyncio.FIRST_COMPLETED,
                    )  # fmt: skip
                    some.cancel()
                    if refused.done():
                        return
                    self._some.clear()
                    come, self._come = self._come, deque()
                    lines = [_encode(delivered(e)) for e in come if isinstance(e, Delivery)]
                    now = asyncio.get_running_loop().time()
                    if lines or now - beat > BEAT_SECONDS:
                        beat = now
                        yield b"\n".join((*lines, b""))  # taken before there is credit for more
                    if lines:
                        given += len(lines)
                        self._submit(Credit(self.number, self.credit, given=given))
                    if any(isinstance(each, Notice) for each in come):  # it is deleted, or paused
                        return
        finally:
            gone.cancel()
            self._is_over = True
            self._submit(Detach(self.number))

    def _end(self, refused: "asyncio.Future[None]") -> None:
        """Detaches a client that may not receive any more; cuts it off if it does not read."""
        if not refused.cancelled():
            self._submit(Detach(self.number))
            asyncio.get_running_loop().call_later(END_SECONDS, self._cut_off)

    def _cut_off(self) -> None:
        if not self._is_over:
            self._request.peer.cut_off()

    def _submit(self, command: Credit | Detach) -> None:
        self._engine.submit(BROKER, self._namespace, command, lambda _: None)
