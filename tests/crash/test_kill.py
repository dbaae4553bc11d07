"""kill -9 of a real process under mixed load, at random moments: it keeps what it promised.

The load runs here and asks the worker over a pipe, so what is known of a worker that was killed is
what its clients saw. KILLS says how often; after every LIFE kills a new worker begins with nothing,
so that recovery does not take longer and longer.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from random import Random
from zlib import crc32

import msgspec
import pytest

from posthouse.core.message import Envelope, NewMessage, encode_envelope
from posthouse.store.file import Durability
from tests.crash.history import History
from tests.crash.worker import (
    PLAIN,
    SESSIONS,
    TOPIC,
    Answer,
    Given,
    MonotonicClock,
    Request,
    frame,
    read_frame,
)
from tests.store.redis_server import a_server

pytestmark = pytest.mark.alone

KILLS = int(os.environ.get("KILLS", "10"))
LIFE = 20
ROOT = Path(__file__).parents[2]
BACKLOG_MAX = 300  # messages in queues, above which senders wait: all are to keep moving
KEPT_MAX = 200
LONG_LOCK_MS = 1_500  # outlives a restart
LOAD = (
    "sent", "delivered", "redelivered", "in order", "completed", "buried", "abandoned", "renewed",
    "refused", "held", "left", "attached", "outlived", "moved",
)  # fmt: skip
LOST = ("LockLost", "SessionLockLost")

log = logging.getLogger(__name__)
now_ms = MonotonicClock().now_ms


def body_of(name: str) -> bytes:
    return name.encode() * (crc32(name.encode()) % 3 * 100)


def _messages(names: list[str], session: str | None = None, due_ms: int = 0) -> list[NewMessage]:
    return [
        NewMessage(encode_envelope(Envelope(id=name)), body_of(name), group=session, due_ms=due_ms)
        for name in names
    ]


class Killed(Exception):
    """The worker is gone, and all that it has said is heard."""


class Receiver:
    """What is pushed to it, in order; `token` is that of its session, if it reads one."""

    def __init__(self, id: int, queue: str, token: str, bound: str | None) -> None:
        self.id, self.queue, self.token, self.bound = id, queue, token, bound
        self.given: asyncio.Queue[Given] = asyncio.Queue()


class Client:
    """Asks the worker, and tells the history every word at the moment it is said or heard."""

    def __init__(self, process: Process, history: History) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._writer, self._reader = process.stdin, process.stdout
        self._history = history
        self._last = 0
        self._hear: dict[int, Callable[[Answer], None]] = {}
        self._receivers: dict[int, Receiver] = {}

    async def listen(self) -> None:
        """Raises Killed at the end."""
        decoder = msgspec.msgpack.Decoder(Answer)
        while True:
            try:
                answer = decoder.decode(await read_frame(self._reader))
            except asyncio.IncompleteReadError:
                raise Killed from None
            if answer.pushed:
                receiver = self._receivers[answer.id]
                self._hear_given(answer, receiver.bound or receiver.token)
                for given in answer.given:
                    receiver.given.put_nowait(given)
            else:
                self._hear.pop(answer.id)(answer)

    async def _ask(
        self,
        request: Request,
        heard: Callable[[Answer], None] | None = None,
        may_refuse: tuple[str, ...] = LOST,
    ) -> Answer:
        """`heard` is called at once, not when the asking task gets its turn."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def hear(answer: Answer) -> None:
            assert not answer.refused or answer.refused in may_refuse, (request, answer)
            if heard is not None:
                heard(answer)
            if not answered.done():
                answered.set_result(answer)

        if not request.id:
            request.id = self._new_id()
        self._hear[request.id] = hear
        if not self._writer.is_closing():  # else it was killed, and that is yet to be heard
            self._writer.write(frame(request))
        return await answered

    def _new_id(self) -> int:
        self._last += 1
        return self._last

    def _hear_given(self, answer: Answer, under: str) -> None:
        for each in answer.given:
            assert each.body == body_of(each.name)
            self._history.delivered(
                each.name, each.token, each.until_ms, now_ms(), under=under or None
            )

    async def look(self) -> Answer:
        """Nothing may be under way."""
        answer = await self._ask(Request("look"))
        self._history.check(answer.live, answer.dead)
        return answer

    # Messages.

    async def send(self, queue: str, names: list[str], session: str | None, due_ms: int) -> None:
        messages = _messages(names, session, due_ms)
        self._history.sending(names, session, due_ms)
        request = Request("send", queue, messages=messages)
        await self._ask(request, lambda _: self._history.sent(names), may_refuse=())

    async def receive(
        self, queue: str, limit: int, wait_ms: int, lock_ms: int = 0, token: str = ""
    ) -> list[Given]:
        request = Request("receive", queue, token, limit=limit, ms=wait_ms, lock_ms=lock_ms)
        answer = await self._ask(request, lambda answer: self._hear_given(answer, token))
        return answer.given

    async def attach(
        self, queue: str, credit: int, lock_ms: int = 0, token: str = "", *, bound: bool = False
    ) -> Receiver:
        request = Request(
            "attach", queue, token, limit=credit, lock_ms=lock_ms, bound=bound, id=self._new_id()
        )
        name = None
        if bound:
            name = f"receiver {self._history.counts['attached'] + 1}"
            self._history.attached(name)
        receiver = self._receivers[request.id] = Receiver(request.id, queue, token, name)
        await self._ask(request)
        return receiver

    async def credit(self, receiver: Receiver, credit: int) -> None:
        request = Request("credit", receiver=receiver.id, limit=credit)
        await self._ask(request, may_refuse=(*LOST, "NotFound"))

    async def detach(self, receiver: Receiver) -> None:
        bound = receiver.bound
        if bound is not None:
            self._history.leaving(bound)
        request = Request("detach", receiver=receiver.id)
        heard = None if bound is None else lambda _: self._history.left(bound)
        await self._ask(request, heard, may_refuse=() if bound else ("NotFound",))

    async def complete(self, queue: str, given: Given) -> bool:
        self._history.completing(given.name, given.token)
        return await self._settle(Request("complete", queue), given, self._history.completed)

    async def abandon(self, queue: str, given: Given, delay_ms: int) -> bool:
        self._history.abandoning(given.name, given.token)
        request = Request("abandon", queue, ms=delay_ms)
        return await self._settle(request, given, self._history.abandoned)

    async def move(self, given: Given, names: list[str]) -> bool:
        """Into a topic, by which it comes back as others."""

        def heard(answer: Answer) -> None:
            if answer.refused:
                self._history.not_moved(given.name, given.token, now_ms())
            else:
                self._history.moved(given.name, given.token, names)

        self._history.moving(given.name, given.token, names)
        request = Request("move", PLAIN, given.token, messages=_messages(names))
        return not (await self._ask(request, heard)).refused

    async def bury(self, queue: str, given: Given) -> bool:
        self._history.burying(given.name, given.token)
        return await self._settle(Request("bury", queue), given, self._history.buried)

    async def _settle(
        self, request: Request, given: Given, done: Callable[[str, str], None]
    ) -> bool:
        def heard(answer: Answer) -> None:
            if answer.refused:
                self._history.refused(given.token, now_ms(), given.name)
            else:
                done(given.name, given.token)

        request.token = given.token
        return not (await self._ask(request, heard)).refused

    async def renew(self, queue: str, token: str, lock_ms: int) -> None:
        await self._renew(Request("renew", queue, token, lock_ms=lock_ms))

    # Sessions.

    async def accept(self, session: str, wait_ms: int) -> str:
        """A session's token; empty where none was free."""

        def heard(answer: Answer) -> None:
            if answer.token:
                self._history.held(answer.session, answer.token, answer.until_ms, now_ms())

        request = Request("accept", SESSIONS, session=session, ms=wait_ms)
        return (await self._ask(request, heard, may_refuse=("SessionLocked",))).token

    async def renew_session(self, token: str) -> None:
        await self._renew(Request("renew-session", SESSIONS, token))

    async def _renew(self, request: Request) -> None:
        def heard(answer: Answer) -> None:
            if answer.refused:
                self._history.refused(request.token, now_ms())
            else:
                self._history.renewed(request.token, answer.until_ms)

        self._history.renewing(request.token)
        await self._ask(request, heard)

    async def release(self, token: str) -> None:
        def heard(answer: Answer) -> None:
            if answer.refused:
                self._history.refused(token, now_ms())
            else:
                self._history.left(token)

        self._history.leaving(token)
        await self._ask(Request("release", SESSIONS, token), heard)


class Load:
    """Senders and receivers of all kinds. What they keep of old tokens is for the next worker."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._sent = 0
        self._backlog = 0
        self._kept: list[tuple[str, Given]] = []

    def start(self, client: Client, backlog: int) -> list[Coroutine[None, None, None]]:
        self._backlog = backlog
        pause = self._random.choice([0, 0.01])  # with one, it is receivers who wait
        return [
            *(self._send(client, PLAIN, pause) for _ in range(3)),
            *(self._send(client, SESSIONS, pause) for _ in range(2)),
            *(self._pull(client) for _ in range(3)),
            *(self._push(client, bound=bound) for bound in (False, False, True)),
            *(self._pull_sessions(client) for _ in range(3)),
            *(self._push_sessions(client) for _ in range(2)),
            self._use_old_tokens(client),
        ]

    async def _send(self, client: Client, queue: str, pause: float) -> None:
        random = self._random
        while True:
            await asyncio.sleep(random.uniform(0, pause))  # slept: the pace of the load
            if self._backlog > BACKLOG_MAX:
                await asyncio.sleep(0.005)  # slept: others have to receive first
                continue
            count = random.choice([1, 1, 1, 5])
            names = [f"{queue}-{self._sent + number:07}" for number in range(count)]
            self._sent += count
            self._backlog += count
            session = f"s{random.randrange(12)}" if queue == SESSIONS else None
            if queue == PLAIN and random.random() < 0.3:
                await client.send(TOPIC, names, None, 0)
                continue
            later_ms = random.choice([20, 100, LONG_LOCK_MS])
            due_ms = now_ms() + later_ms if random.random() < 0.1 else 0
            await client.send(queue, names, session, due_ms)

    async def _pull(self, client: Client) -> None:
        while True:
            lock_ms = self._random.choice([0, 0, LONG_LOCK_MS])
            given = await client.receive(PLAIN, limit=4, wait_ms=100, lock_ms=lock_ms)
            await asyncio.gather(*(self._settle(client, PLAIN, each) for each in given))

    async def _push(self, client: Client, *, bound: bool) -> None:
        """Attaches again and again, leaving what it was given last to end with it or by itself."""
        credit = 10
        while True:
            lock_ms = self._random.choice([0, LONG_LOCK_MS])
            receiver = await client.attach(PLAIN, credit, lock_ms, bound=bound)
            for number in range(self._random.randrange(10, 60)):
                await self._settle(client, PLAIN, await receiver.given.get())
                if number % (credit // 2) == 0:
                    await client.credit(receiver, max(0, credit - receiver.given.qsize()))
            await client.detach(receiver)

    async def _pull_sessions(self, client: Client) -> None:
        while True:
            token = await self._accept(client)
            for _ in range(self._random.randrange(1, 5) if token else 0):
                given = await client.receive(SESSIONS, limit=4, wait_ms=20, token=token)
                await asyncio.gather(*(self._settle(client, SESSIONS, each) for each in given))
            await self._leave(client, token)

    async def _push_sessions(self, client: Client) -> None:
        while True:
            token = await self._accept(client)
            if token:
                receiver = await client.attach(SESSIONS, credit=10, token=token)
                await asyncio.sleep(0.03)  # slept: for as long as it holds the session
                while not receiver.given.empty():
                    await self._settle(client, SESSIONS, receiver.given.get_nowait())
                await client.detach(receiver)
            await self._leave(client, token)

    async def _accept(self, client: Client) -> str:
        session = f"s{self._random.randrange(12)}" if self._random.random() < 0.2 else ""
        return await client.accept(session, wait_ms=100)

    async def _leave(self, client: Client, token: str) -> None:
        """Now and then without a word, until its lock expires."""
        choice = self._random.random()
        if token and choice < 0.2:
            await client.renew_session(token)
        if token and choice < 0.9:
            await client.release(token)

    async def _settle(self, client: Client, queue: str, given: Given) -> None:
        random = self._random
        [what] = random.choices(["complete", "abandon", "bury", "forget"], [60, 25, 10, 5])
        try:
            if queue == PLAIN and random.random() < 0.2:  # in a session, the lock is the session's
                await client.renew(queue, given.token, LONG_LOCK_MS)
            if what == "complete" and queue == PLAIN and random.random() < 0.2:
                names = [f"moved-{self._sent + number:07}" for number in range(2)]
                self._sent += 2
                self._backlog += await client.move(given, names)
            elif what == "complete":
                self._backlog -= await client.complete(queue, given)
            elif what == "abandon":
                await client.abandon(queue, given, random.choice([0, 0, 30]))
            elif what == "bury":
                self._backlog -= await client.bury(queue, given)
        finally:  # also where it was killed before the answer
            if what == "forget" or random.random() < 0.1:
                self._kept.append((queue, given))

    async def _use_old_tokens(self, client: Client) -> None:
        """Settled, expired, or of a worker before: they settle their own message or nothing."""
        while True:
            await asyncio.sleep(0.01)  # slept: the pace of the load
            if self._kept:
                at = self._random.randrange(len(self._kept))
                queue, given = self._kept.pop(at)
                self._backlog -= await client.complete(queue, given)
            del self._kept[:-KEPT_MAX]


class Life:
    """Workers one after the other on one store, each of them killed."""

    def __init__(self, store: Path | str, seed: int, durability: Durability = "fsync") -> None:
        self.history = History()
        self._store = f"file:{store}" if isinstance(store, Path) else store
        self._durability = durability
        self._random = Random(seed)
        self._load = Load(self._random)
        self._starts = 0

    async def run(self, kills: int) -> None:
        for _ in range(kills):
            if self._random.random() < 0.1:
                await self._with_a_worker(self._kill_while_it_starts)
            else:
                await self._with_a_worker(self._kill_under_load)
        await self._with_a_worker(self._drain)

    async def _with_a_worker(self, work: Callable[[Process], Awaitable[None]]) -> None:
        self._starts += 1
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.crash.worker", self._store, str(self._starts),
            self._durability, stdin=PIPE, stdout=PIPE, cwd=ROOT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(60):
                await work(process)
        except* Killed:
            pass
        except* BaseException:
            process.kill()  # not otherwise: a second kill takes the return code from asyncio
            await process.wait()
            raise
        assert await process.wait() == -signal.SIGKILL, "it ended by itself"
        self.history.killed(now_ms())

    async def _kill_while_it_starts(self, process: Process) -> None:
        await asyncio.sleep(self._random.uniform(0.1, 0.4))  # slept: it is killed at some moment
        process.kill()

    async def _kill_under_load(self, process: Process) -> None:
        client = Client(process, self.history)
        async with asyncio.TaskGroup() as group:
            group.create_task(client.listen())
            found = await client.look()
            for each in self._load.start(client, len(found.live)):
                group.create_task(each)
            await asyncio.sleep(self._random.uniform(0.05, 0.8))  # slept: killed at some moment
            process.kill()

    async def _drain(self, process: Process) -> None:
        """All that is left can be received."""
        client = Client(process, self.history)
        async with asyncio.TaskGroup() as group:
            group.create_task(client.listen())
            while (await client.look()).live:
                for given in await client.receive(PLAIN, limit=100, wait_ms=20):
                    await client.complete(PLAIN, given)
                token = await client.accept("", wait_ms=20)
                if token:
                    for given in await client.receive(SESSIONS, limit=100, wait_ms=0, token=token):
                        await client.complete(SESSIONS, given)
                    await client.release(token)
            process.kill()


def test_a_killed_broker_keeps_its_promises(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    for first in range(0, KILLS, LIFE):
        life = Life(tmp_path / str(first), seed=first)
        asyncio.run(life.run(min(LIFE, KILLS - first)))
        counts += life.history.counts
    log.info("%s", dict(counts))
    for word in LOAD:
        assert counts[word] > KILLS / 2, f"there was hardly any load: {counts}"


@pytest.mark.parametrize("kind", ["sqlite", "jsonl", "redis"])
def test_a_killed_broker_keeps_its_promises_on_every_store(tmp_path: Path, kind: str) -> None:
    with contextlib.ExitStack() as stack:
        url = f"{kind}:{tmp_path / 'journal'}"
        if kind == "redis":
            url = stack.enter_context(a_server(tmp_path)).url
        life = Life(url, seed=2)
        asyncio.run(life.run(max(4, KILLS // 3)))
    for word in LOAD:
        assert life.history.counts[word], f"there was hardly any load: {life.history.counts}"


def test_what_the_kernel_has_survives_a_kill_too(tmp_path: Path) -> None:
    life = Life(tmp_path, seed=1, durability="interval")
    asyncio.run(life.run(max(2, KILLS // 5)))
    assert life.history.counts["sent"] > KILLS / 2
