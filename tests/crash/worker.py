"""A process to be killed: an engine that is asked over its standard input and output.

In both directions go frames: a length (4 bytes, big-endian), then MessagePack. A request has an id
and gets one answer with the same id; many may be under way. What is pushed to a receiver comes in
answers with the id of its `attach`, before or after the answer to that. It is a protocol for these
tests alone, so it has only what they need.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import msgspec

from posthouse.broker.access import BROKER
from posthouse.broker.batch import Reply
from posthouse.broker.clock import SystemClock
from posthouse.broker.engine import Engine
from posthouse.broker.memory import Limits
from posthouse.broker.retention import Retention, retain, retain_extents, run_store_fold
from posthouse.core import commands as c
from posthouse.core.errors import AlreadyExists, Refused
from posthouse.core.message import NewMessage, message_id
from posthouse.core.model import QueueProperties, dead_letter_queue, subscription_queue
from posthouse.core.namespaces import CreateNamespace
from posthouse.core.plan import Delivered
from posthouse.core.rules import FalseFilter, Rule
from posthouse.store.errors import StoreError
from posthouse.store.file import Durability
from posthouse.store.opening import Opening, open_store, parse_url
from tests.inside import state_of
from tests.invariants import check

NS = "crash"
SEGMENT_BYTES = 256 << 10
# As little as possible is kept in memory and of the journal, so that the kills fall into folding,
# trimming and reading back too.
LIMITS = Limits(bodies_bytes=16 << 10)
RETENTION = Retention(keep_ms=0, keep_bytes=0, fold_bytes=SEGMENT_BYTES)
PLAIN, SESSIONS = "plain", "sessions"
TOPIC = "news"  # what is sent to it comes out in the plain queue, by a subscription that forwards
QUEUES = {
    PLAIN: QueueProperties(lock_ms=200, max_delivery=8),
    SESSIONS: QueueProperties(lock_ms=600, max_delivery=8, grouping="session"),
}


class MonotonicClock(SystemClock):
    """The machine's clock that nobody sets: worker and test read the same time from it."""

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


Op = Literal[
    "look", "send", "receive", "attach", "credit", "detach", "complete", "abandon", "bury", "renew",
    "accept", "renew-session", "release", "move",
]  # fmt: skip


class Request(msgspec.Struct, omit_defaults=True):
    op: Op
    queue: str = ""
    token: str = ""  # of a message's lock, or of a session's
    messages: list[NewMessage] = []
    limit: int = 0  # or credit
    lock_ms: int = 0
    ms: int = 0  # to wait, or of delay
    session: str = ""
    bound: bool = False
    receiver: int = 0  # the id of its `attach`
    id: int = 0


class Given(msgspec.Struct):
    name: str  # the message's id
    body: bytes
    token: str
    until_ms: int


class Answer(msgspec.Struct, omit_defaults=True):
    id: int
    refused: str = ""
    pushed: bool = False
    given: list[Given] = []
    session: str = ""
    token: str = ""  # of the session; empty where none was free
    until_ms: int = 0
    live: list[str] = []  # names of all messages
    dead: list[str] = []


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """Raises IncompleteReadError at the end."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)


def frame(message: Request | Answer) -> bytes:
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(4, "big") + data


class Server:
    def __init__(
        self, engine: Engine, clock: MonotonicClock, say: Callable[[Answer], None]
    ) -> None:
        self._engine, self._clock, self._say = engine, clock, say
        self._receivers: dict[int, int] = {}  # by the ids of their attaches

    def serve(self, request: Request) -> None:
        if request.op == "look":
            self._say(self._look(request.id))
        elif request.op == "move":
            self._move(request)
        else:
            self._engine.submit(BROKER, NS, self._command(request), self._reply(request.id))

    def _move(self, request: Request) -> None:
        """Completes a message and sends others in its place, in one transaction."""
        engine, reply = self._engine, self._reply(request.id)
        work = (
            c.Complete(request.queue, [_number(request.token)]),
            c.Send(TOPIC, request.messages),
        )

        def begun(answer: c.Answer | Refused | StoreError) -> None:
            if not isinstance(answer, c.Begun):
                reply(answer)
                return
            number, refusals = answer.transaction, []

            def worked(answer: c.Answer | Refused | StoreError) -> None:
                if isinstance(answer, Refused | StoreError):
                    refusals.append(answer)

            def committed(answer: c.Answer | Refused | StoreError) -> None:
                reply(refusals[0] if refusals else answer)

            for each in work:
                engine.submit(BROKER, NS, c.Work(number, each), worked)
            # Each is decided as it is submitted, so it is known whether one was refused.
            enlisted = state_of(engine, NS).transactions[number].messages
            whole = enlisted == 1 + len(request.messages)
            end: c.Command = c.Commit(number) if whole else c.RollBack(number)
            engine.submit(BROKER, NS, end, committed)

        engine.submit(BROKER, NS, c.Begin(), begun)

    def _command(self, request: Request) -> c.Command:
        queue, locks = request.queue, [_number(request.token)]
        deadline_ms = self._clock.now_ms() + request.ms
        receiver = self._receivers.get(request.receiver, 0)
        match request.op:
            case "send":
                return c.Send(queue, request.messages)
            case "receive":
                return c.Receive(
                    queue, self._engine.new_receiver(), request.limit, deadline_ms,
                    lock_ms=request.lock_ms, session=locks[0],
                )  # fmt: skip
            case "attach":
                receiver = self._engine.new_receiver(self._push(request.id))
                self._receivers[request.id] = receiver
                return c.Attach(
                    queue, receiver, request.limit, lock_ms=request.lock_ms, bound=request.bound,
                    session=locks[0],
                )  # fmt: skip
            case "credit":
                return c.Credit(receiver, request.limit)
            case "detach":
                return c.Detach(receiver)
            case "complete":
                return c.Complete(queue, locks)
            case "abandon":
                return c.Abandon(queue, locks, delay_ms=request.ms)
            case "bury":
                return c.DeadLetter(queue, locks, reason="why")
            case "renew":
                return c.Renew(queue, locks, lock_ms=request.lock_ms)
            case "accept":
                number = self._engine.new_receiver()
                return c.AcceptSession(queue, number, request.session or None, deadline_ms)
            case "renew-session":
                return c.RenewSession(queue, locks[0])
            case "release":
                return c.ReleaseSession(queue, locks[0])
            case _:
                raise ValueError(request.op)

    def _reply(self, id: int) -> Reply:
        def reply(answer: c.Answer | Refused | StoreError) -> None:
            match answer:
                case StoreError():
                    sys.exit(f"the engine has stopped: {answer}")  # not the end the test waits for
                case Refused():
                    self._say(Answer(id, refused=type(answer).__name__))
                case c.Received(deliveries):
                    self._say(Answer(id, given=list(map(_given, deliveries))))
                case c.Granted(_, session, token, until_ms):
                    self._say(Answer(id, session=session, token=_token(token), until_ms=until_ms))
                case c.RolledBack():
                    self._say(Answer(id, refused="RolledBack"))
                case c.Settled(_, [until_ms]) | int(until_ms):
                    self._say(Answer(id, until_ms=until_ms))
                case _:
                    self._say(Answer(id))

        return reply

    def _push(self, id: int) -> Callable[[Sequence[Delivered]], None]:
        def push(delivered: Sequence[Delivered]) -> None:
            given = [_given(each) for each in delivered if isinstance(each, c.Delivery)]
            self._say(Answer(id, pushed=True, given=given))

        return push

    def _look(self, id: int) -> Answer:
        state = state_of(self._engine, NS)
        check(state, self._clock.now_ms())
        live, dead = (
            [
                message_id(m.envelope)
                for queue in queues
                for m in state.queues[queue].messages.walk(0)
            ]
            for queues in (QUEUES, map(dead_letter_queue, QUEUES))
        )
        return Answer(id, live=live, dead=dead)


def _given(delivery: c.Delivery) -> Given:
    message = delivery.message
    assert isinstance(message.body, bytes)
    name = message_id(message.envelope)
    return Given(name, message.body, _token(delivery.token), delivery.until_ms)


# MessagePack has no numbers of 128 bits.


def _token(number: int) -> str:
    return f"{number:032x}"


def _number(token: str) -> int:
    return int(token, 16) if token else 0


async def create(engine: Engine, salt: int) -> None:
    """What an earlier start, killed at any moment, has not created."""
    wanted: list[tuple[str, c.Command | CreateNamespace]] = [
        ("", CreateNamespace(NS, engine.epoch, salt))
    ]
    wanted += [(NS, c.CreateQueue(name, properties)) for name, properties in QUEUES.items()]
    wanted.append((NS, c.CreateQueue(TOPIC, QueueProperties(delivery="topic"))))
    for name, rule in (("on", Rule("all")), ("off", Rule("none", FalseFilter()))):
        properties = QueueProperties(forward_to=PLAIN)
        queue = subscription_queue(TOPIC, name)
        wanted.append((NS, c.CreateSubscription(queue, properties, [rule])))
    for namespace, command in wanted:
        with contextlib.suppress(AlreadyExists):
            await engine.ask(BROKER, namespace, command)


async def main(word: str, salt: int, durability: Durability) -> None:
    loop, clock = asyncio.get_running_loop(), MonotonicClock()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, sys.stdout.buffer)
    url = parse_url(word)
    store = open_store(url, Opening(SEGMENT_BYTES, durability))
    engine = await Engine.open(store, clock, salt, snapshots=store.snapshots, limits=LIMITS)
    if store.segments is not None:
        tidying = retain(engine, store.segments, RETENTION)
    else:
        tidying = retain_extents(engine, partial(run_store_fold, url), RETENTION, SEGMENT_BYTES)
    retaining = asyncio.create_task(tidying)
    await create(engine, salt)
    server = Server(engine, clock, lambda answer: writer.write(frame(answer)))
    decoder = msgspec.msgpack.Decoder(Request)
    while not retaining.done():  # until it is killed, or its test is
        server.serve(decoder.decode(await read_frame(reader)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))  # type: ignore[arg-type]
