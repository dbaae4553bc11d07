"""One connection of a PyQueue client.

Requests may come one behind the other without waiting; they are answered in their order. Pushing,
pulling and settling are plain calls into the engine; each has a pending reply, and replies that are
known are written together. What takes several steps is a task of its own, and nothing behind it is
looked at before it is done, so a connection sees the effects of its own requests in order.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar, cast

import msgspec

from posthouse.broker.access import BROKER, Principal
from posthouse.broker.throttle import Login
from posthouse.broker.view_messages import LockView
from posthouse.core.commands import (
    Abandon,
    Attach,
    Command,
    Complete,
    DeadLetter,
    Delivery,
    Detach,
    Receive,
    Release,
    Send,
    Work,
)
from posthouse.core.errors import Refused, Throttled, Unauthenticated
from posthouse.core.message import Properties
from posthouse.core.model import QueueProperties
from posthouse.core.plan import Delivered
from posthouse.dialects.backpressure import STRANGER_TURN_SECONDS, TURN_SECONDS, Backpressure, Turn
from posthouse.dialects.connections import ConnectionInfo, guarded, hang_up
from posthouse.dialects.pyqueue import admin, credentials, orders, refusals, topics
from posthouse.dialects.pyqueue.codec import FRAME_BYTES_MAX, Decoder, Frame, Malformed, encode
from posthouse.dialects.pyqueue.context import HELD_BYTES_MAX, PyQueueContext
from posthouse.dialects.pyqueue.ledger import number_of
from posthouse.dialects.pyqueue.orders import Call
from posthouse.dialects.pyqueue.refusals import Failed
from posthouse.dialects.pyqueue.replies import PendingPushBatch, PendingReply, Replies, Result
from posthouse.dialects.pyqueue.reply_batches import PushReplyBatch, WorkerReplyBatch
from posthouse.dialects.pyqueue.tasks import (
    DEFAULT_QUEUE,
    ID_BYTES,
    JOB_BYTES_MAX,
    JOBS_BYTES_MAX,
    LOCK,
    BatchForm,
    NewTask,
    PushForm,
    job_of,
    new_task,
    queue_in,
    read,
    read_push,
    token_in,
)
from posthouse.dialects.pyqueue.workers import ID_CHARS_MAX
from posthouse.store.errors import StoreError

_log = logging.getLogger(__name__)

STRANGER_BYTES_MAX = 64 << 10  # of a frame of who has not shown who he is
PULL_MAX = 10  # tasks in one batch
PULL_BYTES_MAX = 4_096  # of what a pull says
TASKS_AT_ONCE = 500  # that a batch may have before it is taken apart, for others to have a turn
LOOKS = 8  # requests that are gathered between two looks at the clock
COMMANDS_MAX = 1_000  # under way, before nothing more is read
UNANSWERED_BYTES_MAX = 8 << 20  # of requests, likewise
REQUEST_SECONDS = 30.0  # for a frame that has begun
IDLE_SECONDS = 3_600.0  # without any
AUTH_TRIES_MAX = 5
BOUND_MAX = 100  # queues from which a worker's tasks end with its connection
ERROR_CHARS_MAX = 1_024  # that are kept of what a worker says went wrong
_TOO_LARGE = b"The task is too large to be pulled, and was moved to DLQ"


_R = TypeVar("_R", PushReplyBatch, WorkerReplyBatch)


class _PullForm(msgspec.Struct):
    queue: str | None = None
    count: int = 1


class _SettleForm(msgspec.Struct):
    task_id: str
    transaction_id: str | None = None
    error: Any = None


class _BeatForm(msgspec.Struct):
    worker_id: str


_decode_pull = msgspec.json.Decoder(_PullForm).decode


@lru_cache(1_000)
def _short_pull_form(payload: bytes) -> tuple[str, int]:
    """Most are the same again and again."""
    form = _decode_pull(payload) if payload else _PullForm()
    return form.queue or DEFAULT_QUEUE, min(form.count, PULL_MAX)


def _pull_form(payload: bytes) -> tuple[str, int]:
    """The queue, and how many. Raises Failed."""
    if len(payload) > PULL_BYTES_MAX:
        raise Failed(refusals.BAD_JSON)
    try:
        return _short_pull_form(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Failed(refusals.BAD_JSON) from None


class Peer:
    """One connection, as asyncio wants it."""

    def __init__(self, context: PyQueueContext, info: ConnectionInfo) -> None:
        self.context = context
        self._info = info
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)  # once it is made
        self._decoder = Decoder()
        self._replies: deque[Replies] = deque()  # in the order of the requests
        self._principal: Principal | None = None
        self._login: Login | None = None  # what it has come with so far
        self._until = credentials.FOR_EVER  # when its credentials end
        self._tries = 0
        self._busy: asyncio.Task[None] | None = None  # what nothing may overtake
        # Requests on one queue are gathered while there is more to look at.
        self._gathered: PushReplyBatch | WorkerReplyBatch | None = None
        self._worker = ""
        self._bound: dict[str, int] = {}  # by queue: the receiver with which locks end
        self._held_bytes = 0
        self._made = self._heard = self._loop.time()
        self._begun = 0.0  # when what came of a frame began to come
        self._is_going = self.is_gone = False
        self._is_over = self._is_ending = False  # the client says no more; nothing more is taken
        self._backpressure = Backpressure(
            self._go_on, commands_max=COMMANDS_MAX, bytes_max=UNANSWERED_BYTES_MAX
        )

    # As asyncio sees it.

    def connection_made(self, transport: Any) -> None:
        self._transport = self._backpressure.transport = transport
        try:
            if not self.context.is_ready:
                raise Failed("The broker is starting; try again shortly")  # noqa: TRY301
            self.context.add(self)
            self._trust(self.context.stranger(is_tls=self._info.is_tls))
        except Failed as failed:
            self._transport.write(encode(b"ERROR", str(failed).encode()))
            self.end()
            self._flush()

    def _trust(self, principal: Principal | None) -> None:
        """Raises Failed where there are too many connections."""
        if principal is not None and not (
            self.context.admit(self) and self._info.identified(principal.name)
        ):
            self.end()
            raise Failed(refusals.TOO_MANY)
        self._principal = principal
        self._decoder.frame_bytes_max = STRANGER_BYTES_MAX
        self._backpressure.turn.seconds = STRANGER_TURN_SECONDS
        if principal is not None:
            self._backpressure.turn.seconds = TURN_SECONDS
            self._decoder.frame_bytes_max = FRAME_BYTES_MAX
            self.context.welcome()

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        self._decoder.feed(data)
        if not self._backpressure.is_behind:
            self._go_on()

    def eof_received(self) -> bool:
        """Keeps a connection without TLS half open, so that the client still gets its answers."""
        self._is_over = True
        self._go_on()
        return not self._info.is_tls and not self._transport.is_closing()

    def pause_writing(self) -> None:
        self._backpressure.pause()

    def resume_writing(self) -> None:
        self._backpressure.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_gone = True
        self.end()  # frames that are left for the next turn are not looked at any more
        self._let_go()
        self._count_held(0, is_new=True)
        self.context.remove(self)
        self._info.gone()

    def shutdown(self) -> None:
        """The broker is going: what was asked is answered first."""
        self.end()
        self._flush()

    def end(self) -> None:
        """Nothing more is taken; it is closed when what was asked is answered."""
        self._is_ending = True
        self._backpressure.hold()

    # The work.

    def _go_on(self) -> None:
        """Handles the requests that have come, while there is room and the turn lasts."""
        self._is_going = True  # what is answered at once is written below
        turn = self._backpressure.turn
        turn.begin()
        try:
            self._write()
            is_behind = self._work(turn)
        except Exception:  # noqa: BLE001 (here a connection's bytes come in)
            _log.exception("A connection has failed.", extra={"event": "pyqueue.failed"})
            self._transport.abort()
            return
        turn.end()
        self._flush()
        self._backpressure.end_turn(is_behind=is_behind)
        self._is_going = turn.is_waiting

    def _work(self, turn: Turn) -> bool:
        """Whether others are to have their turn before it goes on."""
        decoder, pressure = self._decoder, self._backpressure
        count = gathered = 0
        is_over = False
        while not is_over and pressure.has_room and count < COMMANDS_MAX:
            try:
                frame = decoder.take()
            except Malformed:
                self._say_last(refusals.MALFORMED)
                break
            if frame is None:
                if self._is_over:
                    self.end()
                break
            count += 1
            pressure.under_way += 1
            word, payload, binary = frame
            gather = _GATHERED.get(word)
            if gather is None or not gather(self, payload, binary):
                self._do(frame)
                is_over = turn.is_over()
            else:
                pressure.unanswered_bytes += len(payload)
                count += self._follow(COMMANDS_MAX - count)
                gathered += 1
                is_over = gathered % LOOKS == 0 and turn.is_over()
        self._ask_gathered()
        self._count_held(decoder.held_bytes, is_new=count > 0)
        return is_over or count >= COMMANDS_MAX

    def _follow(self, most: int) -> int:
        """Adds the requests that follow in the same form to the batch. Returns how many."""
        gathered = self._gathered
        if type(gathered) is not WorkerReplyBatch or not self._decoder.held_bytes:
            return 0
        pressure, size = self._backpressure, gathered.size
        count = gathered.follow(self._decoder, min(most, COMMANDS_MAX - pressure.under_way))
        pressure.unanswered_bytes += gathered.size - size
        pressure.under_way += count
        return count

    def _say_last(self, text: str) -> None:
        """Answers with a last error, after all pending replies, and ends the connection."""
        self._ask_gathered()
        self.end()
        reply = PendingReply(self, Frame(b"", b""))
        self._replies.append(reply)
        self._backpressure.under_way += 1
        reply.fail(text)

    def _ask_gathered(self) -> None:
        """Submits the gathered batch, before anything else is submitted."""
        gathered, self._gathered = self._gathered, None
        if gathered is not None:
            gathered.ask()

    def _do(self, frame: Frame) -> None:
        """Handles a request that is not gathered into a batch."""
        self._ask_gathered()
        word = frame.word
        reply = _PENDING.get(word, PendingReply)(self, frame)
        self._replies.append(reply)
        self._backpressure.unanswered_bytes += reply.size
        try:
            if self._principal is None and word != b"AUTH":
                self.end()
                reply.fail(refusals.NEEDS_AUTH)
            elif (hot := _HOT.get(word)) is not None:
                hot(self, reply, frame.payload)
            else:
                self._do_slowly(reply, frame)
        except Failed as failed:
            reply.fail(_FAILING.get(word, "") + str(failed))
        except Refused as refused:
            reply.refuse(refused)

    def _do_slowly(self, reply: PendingReply, frame: Frame) -> None:
        assert self._principal is not None
        word = frame.word.decode()
        slow = _SLOW.get(word)
        if slow is None:
            raise Failed(_unknown(word))
        call = Call(
            self.context, self._principal, self._info.address, word, frame.payload,
            lambda: self.is_gone,
        )  # fmt: skip
        self._begin_steps(reply, slow, call)

    def _begin_steps(self, reply: PendingReply, slow: orders.Order, call: Call) -> None:
        """Nothing that came behind it is looked at before it is done."""
        self._backpressure.hold()
        self._busy = self._loop.create_task(self._take_steps(reply, slow, call))

    async def _take_steps(self, reply: PendingReply, slow: orders.Order, call: Call) -> None:
        try:
            payload = await slow(call)
            if len(payload) > FRAME_BYTES_MAX - 64:
                raise Failed("The answer would be too large; ask for less")  # noqa: TRY301
            reply.says(payload, b"STATS" if reply.word == b"STATS" else b"OK")
        except Failed as failed:
            reply.says(str(failed).encode(errors="replace"), b"ERROR")
        except Refused as refused:
            reply.on = reply.on or call.on
            reply.refuse(refused)
        except StoreError as lost:
            reply.refuse(lost)
        except ConnectionResetError:  # nobody is there to be told
            reply.says(b"The client has gone", b"ERROR")
        except Exception:  # noqa: BLE001 (here a connection's bytes come in)
            _log.exception("A command has failed.", extra={"event": "pyqueue.failed"})
            reply.says(b"Something went wrong; the log of the broker says what", b"ERROR")
            self.end()
        finally:
            self._busy = None
            self._backpressure.is_held = self._is_ending
            if reply.left:
                reply.is_filled()
            self._go_on_soon()

    def ask(self, command: Command, reply: Callable[[Result], None]) -> None:
        """The reply is called once, also where it is not asked for."""
        assert self._principal is not None
        context, reply = self.context, guarded(reply, self._transport.abort)
        try:
            context.charge_for(self._info.address, command)
        except Throttled as throttled:
            reply(throttled)
            return
        context.engine.submit(self._principal, context.settings.namespace, command, reply)

    # Answering.

    def answered(self, replies: Replies) -> None:
        self._backpressure.unanswered_bytes -= replies.size
        replies.size = 0
        if self._replies and replies is self._replies[0]:
            if len(self._replies) == 1 and self._is_at_rest:
                self._write()
            else:
                self._go_on_soon()

    @property
    def _is_at_rest(self) -> bool:
        """Whether nothing is to be done but to write: the client has sent no more, and may."""
        return (
            self._backpressure.is_reading and not self._decoder.held_bytes
            and not (self._is_going or self.is_gone or self._is_over)
        )  # fmt: skip

    def _go_on_soon(self) -> None:
        """After what is going on now: what is answered in one go is written in one go."""
        if not self._is_going and not self.is_gone:
            self._is_going = True
            self._backpressure.turn.wait()

    def _write(self) -> None:
        replies = self._replies
        if not replies or replies[0].left:
            return
        frames: list[bytes] = []
        while replies and not replies[0].left:
            frames += replies.popleft().frames
        self._backpressure.under_way -= len(frames)
        if not self._transport.is_closing():
            self._transport.write(b"".join(frames))

    def _flush(self) -> None:
        self._write()
        is_over = self._is_ending and not self._replies and self._busy is None
        if is_over and not self._transport.is_closing():
            hang_up(self._transport)

    def _count_held(self, held_bytes: int, *, is_new: bool) -> None:
        """Counts the bytes of incomplete frames.

        When all connections together hold too many, the one that adds more is closed.
        """
        if not held_bytes:
            self._begun = 0.0
        elif is_new or not self._begun:
            self._begun = self._loop.time()
        self.context.held_bytes += held_bytes - self._held_bytes
        more = held_bytes > self._held_bytes
        self._held_bytes = held_bytes
        if more and held_bytes > STRANGER_BYTES_MAX and self.context.held_bytes > HELD_BYTES_MAX:
            self._fail_all("Too much is being sent at a time; try again shortly")

    def _fail_all(self, text: str) -> None:
        """The connection is of no use any more."""
        self.end()
        if not self._transport.is_closing():
            self._write()
            if not self._replies:
                self._transport.write(encode(b"ERROR", text.encode()))
            hang_up(self._transport)

    def check(self, now: float) -> None:
        """Now and then: whether it may go on."""
        loop_now = self._loop.time()
        is_slow = self._begun and loop_now - self._begun > REQUEST_SECONDS
        if self._principal is None and loop_now - self._made > self._info.handshake_seconds:
            self._fail_all(refusals.NEEDS_AUTH)
        elif is_slow and self._backpressure.is_reading:
            self._fail_all(refusals.TOO_SLOW)
        elif loop_now - self._heard > IDLE_SECONDS and not self._replies:
            self.end()
            self._flush()
        if now >= self._until:
            self._turn_away()
        if self._bound and not self.context.workers.is_alive(self._worker, now):
            self._let_go()

    # Who it is.

    def check_rights(self, names: Collection[str]) -> None:
        """The accounts of these names have changed. Who is still known keeps what he may have."""
        principal = self._principal
        if principal is None or principal.name not in names:
            return
        if not self.context.knows_still(principal):
            self._turn_away()
            return
        for queue in list(self._bound):
            if not self.context.may(principal, "listen", queue):
                self._settle(Detach(self._bound.pop(queue)))

    def _turn_away(self) -> None:
        """Its credentials are not good any more."""
        self._until = credentials.FOR_EVER
        self._let_go()
        self._trust(None)
        self._fail_all(refusals.NEEDS_AUTH)

    def _auth(self, reply: PendingReply, payload: bytes) -> None:
        kind, value = credentials.read(payload)
        try:
            if self._login is None:
                self._login = self.context.login(self._info.address)
            known = self.context.identify(kind, value, self._login)
        except Unauthenticated:
            self._tries += 1
            if self._tries >= AUTH_TRIES_MAX:
                self.end()
            raise
        self._until = known.until
        self._trust(known.principal)
        reply.fill(msgspec.json.encode({"authenticated": True, "principal": known.principal.name}))

    # Pushing.

    def _gather_push(self, payload: bytes, binary: bool) -> bool:
        """Whether it was gathered: if it is plain, and none is refused for another."""
        context = self.context
        settings = context.settings
        if binary or settings.rate or settings.deduplicate or context.engine.throttle.is_on:
            return False
        try:
            form = read_push(payload)
            if (
                form.idempotency_key or form.transaction_id is not None
                or form.partition_key or form.ttl is not None
            ):  # fmt: skip
                return False
            task = new_task(form)
        except Failed:
            return False
        gathered, name = self._gathered, form.queue or DEFAULT_QUEUE
        if type(gathered) is not PushReplyBatch or gathered.queue != name or gathered.is_full:
            like = context.view.properties(context.namespace, name)
            if self._principal is None or like is None or not _is_simple(like):
                return False
            gathered = self._begin(PushReplyBatch(self, name, like.max_messages))
        gathered.add(task.id, task.message, len(payload))
        return True

    def _begin(self, gathered: _R) -> _R:
        self._ask_gathered()
        self._gathered = gathered
        self._replies.append(gathered)
        return gathered

    def _push(self, reply: PendingReply, payload: bytes) -> None:
        context, form = self.context, read_push(payload)
        reply.on = queue = form.queue or DEFAULT_QUEUE
        if context.settings.rate:
            context.charge(self._info.address, 1)
        task = new_task(form, deduplicate=context.settings.deduplicate)
        assert self._principal is not None
        context.make_queue(self._principal, "send", queue)
        reply.says(task.id.encode())
        transaction = form.transaction_id
        if transaction is None:
            self.ask(Send(queue, [task.message], [task.key], refuse_duplicates=True), reply)
        else:
            orders.check_is_new(context, queue, task.key)
            send = Send(queue, [task.message], [task.key])
            self.ask(self._in(reply, transaction, send), reply)

    def _in(
        self, reply: PendingReply, transaction: str, command: Send | Complete | Abandon
    ) -> Work:
        assert self._principal is not None
        reply.transaction = transaction
        number = self.context.engine.owned(self._principal, number_of(transaction))
        return Work(number, command)

    def _push_batch(self, reply: PendingReply, payload: bytes) -> None:
        form: BatchForm = read(BatchForm, payload)
        if self.context.settings.rate:
            self.context.charge(self._info.address, len(form.tasks))
        queues = list(dict.fromkeys(map(queue_in, form.tasks)))
        if len(queues) > 1 or len(form.tasks) > TASKS_AT_ONCE:
            self._push_slowly(reply, form, queues, payload)
            return
        tasks = self._tasks_in(form.tasks)
        self._make_queues(reply, queues)
        if tasks:
            assert isinstance(reply, PendingPushBatch)
            reply.ids = [task.id for task in tasks]
            messages, keys = [task.message for task in tasks], [task.key for task in tasks]
            self.ask(Send(queues[0], messages, keys), reply)
        else:
            reply.fill(orders.batch_told([]))

    def _push_slowly(
        self, reply: PendingReply, form: BatchForm, queues: list[str], payload: bytes
    ) -> None:
        """Many tasks, or into several queues. Others have their turns between the steps."""
        assert self._principal is not None
        call = Call(self.context, self._principal, self._info.address, "PUSH_BATCH", payload)

        async def push(call: Call) -> bytes:
            tasks: list[NewTask] = []
            for at in range(0, len(form.tasks), TASKS_AT_ONCE):
                try:
                    tasks += self._tasks_in(form.tasks[at : at + TASKS_AT_ONCE])
                except Failed as failed:
                    raise Failed(f"{_FAILING[b'PUSH_BATCH']}{failed}") from None
                await asyncio.sleep(0)
            self._make_queues(reply, queues)
            into = list(zip(map(queue_in, form.tasks), tasks, strict=True))
            return orders.batch_told(await orders.push_together(call, into))

        self._begin_steps(reply, push, call)

    def _tasks_in(self, forms: list[PushForm]) -> list[NewTask]:
        """Raises Failed."""
        return [new_task(each, deduplicate=self.context.settings.deduplicate) for each in forms]

    def _make_queues(self, reply: PendingReply, queues: list[str]) -> None:
        """Raises Refused."""
        assert self._principal is not None
        for queue in queues:
            reply.on = queue
            self.context.make_queue(self._principal, "send", queue)

    # Pulling.

    def _worker_batch(self, queue: str, *, binary: bool) -> WorkerReplyBatch | None:
        """Returns the batch for a worker's next request; None if there is no such queue."""
        gathered = self._gathered
        if (
            type(gathered) is WorkerReplyBatch and gathered.queue == queue
            and gathered.binary == binary and not gathered.is_full
        ):  # fmt: skip
            return gathered
        like = self.context.view.properties(self.context.namespace, queue)
        if like is None or self._principal is None:
            return None
        return self._begin(WorkerReplyBatch(self, queue, like.lock_ms, binary=binary))

    def _gather_pull(self, payload: bytes, binary: bool) -> bool:
        return self._gather_tasks(payload, binary=binary, batch=False)

    def _gather_pull_batch(self, payload: bytes, binary: bool) -> bool:
        return self._gather_tasks(payload, binary=binary, batch=True)

    def _gather_tasks(self, payload: bytes, *, binary: bool, batch: bool) -> bool:
        try:
            name, limit = _pull_form(payload)
        except Failed:
            return False
        if batch and limit < 1:
            return False
        gathered = self._worker_batch(name, binary=binary)
        if gathered is None:
            return False
        gathered.pull(limit if batch else 1, payload, batch=batch)
        return True

    def _pull_nothing(self, reply: PendingReply, payload: bytes) -> None:
        """Answers a pull from a missing queue, or of no tasks. Raises Failed or Refused."""
        assert self._principal is not None
        reply.on, _ = _pull_form(payload)
        self.context.check(self._principal, "listen", reply.on)
        reply.fill(b"", b"NO_JOB")

    def receive_of(self, queue: str, limit: int) -> Receive:
        bound = self._receiver(queue) if self._worker else 0
        return Receive(queue, self.context.engine.new_receiver(), limit, bound=bound, by_id=True)

    def pulled(
        self, queue: str, deliveries: Sequence[Delivery], *, batch: bool
    ) -> tuple[bytes, bytes]:
        """The word and the payload of the answer."""
        if self.is_gone:  # nobody is there to work on them
            self._give_back(queue, deliveries)
        if not deliveries or self.is_gone:
            return b"NO_JOB", b""
        view, namespace = self.context.view.messages, self.context.namespace
        if not batch:
            job = job_of(deliveries[0], queue, view, namespace)
            if len(job) <= JOB_BYTES_MAX:
                return b"JOB", job
            self._bury(queue, deliveries[0])
            return b"ERROR", _TOO_LARGE
        jobs, size = [], 0
        for at, delivery in enumerate(deliveries):
            job = job_of(delivery, queue, view, namespace)
            if len(job) > JOB_BYTES_MAX:
                self._bury(queue, delivery)
                continue
            size += len(job) + 1
            if size > JOBS_BYTES_MAX:
                self._give_back(queue, deliveries[at:])
                break
            jobs.append(job)
        if not jobs:
            return b"ERROR", _TOO_LARGE
        return b"JOB_BATCH", b'{"jobs":[%b],"count":%d}' % (b",".join(jobs), len(jobs))

    def _give_back(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        if deliveries:
            self._settle(Release(queue, [each.token for each in deliveries], partial=True))

    def _bury(self, queue: str, delivery: Delivery) -> None:
        text = f"A PyQueue client cannot be given more than {FRAME_BYTES_MAX} bytes."
        self._settle(DeadLetter(queue, [delivery.token], True, 0, "TaskTooLarge", text))

    def _settle(self, command: Command) -> None:
        """Submits a command on the broker's own behalf."""
        self.context.engine.submit(BROKER, self.context.settings.namespace, command, _ignore)

    # Settling.

    def _held(self, task: str) -> tuple[int, LockView | None]:
        """The token and the lock under which a task is worked on.

        Where there is none it is refused like any other, when what went before is durable.
        """
        namespace, messages = self.context.namespace, self.context.view.messages
        if task.startswith(LOCK):
            token = token_in(task)
            return token, messages.lock(namespace, token)
        tokens = messages.tokens(namespace, task)
        if len(tokens) == 1:
            return tokens[0], messages.lock(namespace, tokens[0])
        now_ms = self.context.now_ms
        for token in tokens:
            lock = messages.lock(namespace, token)
            if lock is not None and lock.until_ms > now_ms and not lock.enlisted:
                return token, lock
        return 0, None

    def _lock_of(self, task: str) -> tuple[int, str, int] | None:
        """The token, the queue and the end of the lock under which a task is worked on."""
        found = self.context.view.messages.sole_lock(self.context.namespace, task)
        if found is not None:
            return found
        token, lock = self._held(task)
        return None if lock is None else (token, lock.queue, lock.until_ms)

    def _gather_ack(self, payload: bytes, binary: bool) -> bool:
        """Whether it was gathered: if it is of a task that is held, and of no transaction."""
        try:
            form = None if _is_bare(payload) else _settled(payload)
        except Failed:
            return False
        if form is not None and form.transaction_id is not None:
            return False
        task = payload.decode() if form is None else form.task_id
        lock = self._lock_of(task)
        if lock is None and self._gathered is not None:
            self._ask_gathered()  # it may be pulled there
            lock = self._lock_of(task)
        if lock is None:
            return False
        token, queue, until_ms = lock
        if type(self._gathered) is WorkerReplyBatch and token in self._gathered.tokens:
            self._ask_gathered()  # twice the same; the second is lost
        gathered = self._worker_batch(queue, binary=binary)
        if gathered is None:
            return False
        gathered.acknowledge(token, until_ms, len(payload))
        return True

    def _like(self, queue: str) -> QueueProperties:
        """Returns the properties of a queue; the default ones while it is being deleted."""
        found = self.context.view.properties(self.context.namespace, queue)
        return self.context.properties() if found is None else found

    def _ack(self, reply: PendingReply, payload: bytes) -> None:
        """Acknowledges a task in a transaction; refuses one that is not held."""
        form = _settled(payload)
        token, lock = self._held(form.task_id)
        reply.on = "" if lock is None else lock.queue
        self._end(reply, form, Complete(reply.on, [token]), b"Task acknowledged")

    def _nack(self, reply: PendingReply, payload: bytes) -> None:
        form = _settled(payload)
        token, lock = self._held(form.task_id)
        reply.on = queue = "" if lock is None else lock.queue
        said = b"Task retry scheduled"
        if lock is not None and lock.count >= self._like(lock.queue).max_delivery:
            said = b"Task moved to DLQ"
        properties: Properties = {}
        if form.error:
            properties = {"error": str(form.error)[:ERROR_CHARS_MAX]}
        self._end(reply, form, Abandon(queue, [token], properties=properties), said)

    def _end(
        self, reply: PendingReply, form: _SettleForm, command: Complete | Abandon, said: bytes
    ) -> None:
        if form.transaction_id is None:
            reply.says(said)
            self.ask(command, reply)
        else:
            reply.says(b"Task added to transaction")
            self.ask(self._in(reply, form.transaction_id, command), reply)

    # Workers.

    def _heartbeat(self, reply: PendingReply, payload: bytes) -> None:
        form: _BeatForm = read(_BeatForm, payload)
        if not form.worker_id or len(form.worker_id) > ID_CHARS_MAX:
            raise Failed(f"worker_id must have 1 to {ID_CHARS_MAX} characters")
        if form.worker_id != self._worker:
            self._let_go()
        self._worker = form.worker_id
        assert self._principal is not None
        shares = self.context.engine.shares
        name = shares.name(self._principal)
        self.context.workers.heard(form.worker_id, time.time(), name, shares.percent)
        reply.fill(b"Heartbeat received")

    def _receiver(self, queue: str) -> int:
        """Returns the receiver to which this connection's locks are bound; 0 if they are not.

        Locks without it last until they expire, even when the connection ends.
        """
        number = self._bound.get(queue, 0)
        if number or len(self._bound) >= BOUND_MAX:
            return number
        context = self.context
        namespace, principal = context.settings.namespace, self._principal
        assert principal is not None
        number = context.engine.new_receiver(partial(self._noticed, queue))
        context.engine.submit(principal, namespace, Attach(queue, number, bound=True), _ignore)
        # Where there is none it was refused, or has to wait.
        if not context.view.messages.has_receiver(namespace, number):
            self._settle(Detach(number))
            return 0
        self._bound[queue] = number
        return number

    def _noticed(self, queue: str, _: Sequence[Delivered]) -> None:
        """It has no credit, so this is about its end."""
        context, number = self.context, self._bound.get(queue, 0)
        if not context.view.messages.has_receiver(context.namespace, number):
            self._bound.pop(queue, None)

    def _let_go(self) -> None:
        """Detaches the receivers, which gives back the tasks pulled here and not settled."""
        for number in self._bound.values():
            self._settle(Detach(number))
        self._bound.clear()

    def _ping(self, reply: PendingReply, payload: bytes) -> None:
        reply.fill(b"PONG")


def _is_simple(like: QueueProperties) -> bool:
    """Whether tasks for a queue are all taken, where there is room, or none."""
    return (
        like.status == "active" and like.max_message_bytes is None and not like.requires_session
    )  # fmt: skip


def _is_bare(payload: bytes) -> bool:
    """Whether it is an id as we give them, and nothing else."""
    return len(payload) == ID_BYTES and payload.isascii() and payload[:1] != b"{"


def _settled(payload: bytes) -> _SettleForm:
    """A task's id, or more in JSON. Raises Failed."""
    if payload[:1] == b"{":
        form: _SettleForm = read(_SettleForm, payload)
        return form
    try:
        return _SettleForm(payload.decode())
    except UnicodeDecodeError:
        raise Failed(refusals.NOT_FOUND) from None


def _unknown(word: str) -> str:
    if word.startswith("ADMIN_"):
        return f"Unknown admin command: {word}"
    if word.startswith("RAFT_"):
        return refusals.NO_CLUSTER
    return refusals.INVALID


def _ignore(_: object) -> None:
    """Nobody waits for this answer."""


_FAILING = {b"PUSH": "Failed to add task: ", b"PUSH_BATCH": "Failed to add batch: "}
_PENDING: dict[bytes, type[PendingReply]] = {
    b"PUSH_BATCH": PendingPushBatch,
}
_GATHERED: dict[bytes, Callable[[Peer, bytes, bool], bool]] = {
    b"PUSH": Peer._gather_push,
    b"PULL": Peer._gather_pull,
    b"PULL_BATCH": Peer._gather_pull_batch,
    b"ACK": Peer._gather_ack,
}
_HOT: dict[bytes, Callable[[Peer, Any, bytes], None]] = {
    b"AUTH": Peer._auth,
    b"PUSH": Peer._push,
    b"PUSH_BATCH": Peer._push_batch,
    b"PULL": Peer._pull_nothing,
    b"PULL_BATCH": Peer._pull_nothing,
    b"ACK": Peer._ack,
    b"NACK": Peer._nack,
    b"HEARTBEAT": Peer._heartbeat,
    b"PING": Peer._ping,
}
_SLOW: dict[str, orders.Order] = {**orders.ORDERS, **topics.ORDERS, **admin.ORDERS}
