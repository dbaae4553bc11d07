"""Reply batches: requests on one queue that came together are asked of the engine as one.

Only the cost differs: such requests cannot be refused one by one, and what comes behind them is
asked behind them. A batch holds the replies to all of them, as a PendingReply holds one, and is
written when all of them are known.
"""

from functools import partial

from posthouse.core.commands import Complete, Delivery, LockName, Received, Send, Settled
from posthouse.core.errors import QuotaExceeded, Refused
from posthouse.core.message import NewMessage, size_bytes
from posthouse.dialects.pyqueue.codec import Decoder, Pattern, encode
from posthouse.dialects.pyqueue.refusals import NOT_FOUND
from posthouse.dialects.pyqueue.replies import Asker, Result, refusal
from posthouse.dialects.pyqueue.tasks import ID_BYTES, JOB_BYTES_MAX, job_of
from posthouse.store.errors import StoreError

_ACKNOWLEDGED = [encode(b"OK", b"Task acknowledged", binary=way) for way in (False, True)]
GATHERED_MAX = 500  # acknowledgements, or tasks, in one batch
GATHERED_BYTES_MAX = 1 << 20  # of tasks that are pushed as one
_CUT_BYTES = 8 << 20  # of tasks that were pulled: then there may be more than came
# With an id as we give them, and nothing else: not JSON.
_ACK, _BRACE = b"ACK %d " % ID_BYTES, ord("{")
_BARE_ACKS = Pattern(_ACK, ID_BYTES, _BRACE, b"", 0)


class PushReplyBatch:
    """Tasks that are pushed, none of which has a key or needs to be looked at by itself."""

    def __init__(self, peer: Asker, queue: str, max_messages: int | None) -> None:
        self.peer = peer
        self.queue = queue
        self.frames: list[bytes] = []  # the answers
        self.messages: list[NewMessage] = []
        self.size = 0  # of requests
        self.left = 1  # answers that are still to come from the engine
        self._room = GATHERED_MAX
        if max_messages is not None:
            there = peer.context.view.counted(peer.context.namespace, queue)
            self._room = max(1, min(GATHERED_MAX, max_messages - there))

    @property
    def is_full(self) -> bool:
        return len(self.frames) >= self._room or self.size >= GATHERED_BYTES_MAX

    def add(self, id: str, message: NewMessage, size: int) -> None:
        self.frames.append(b"OK %d %b" % (len(id), id.encode()))
        self.messages.append(message)
        self.size += size

    def ask(self) -> None:
        keys = [""] * len(self.messages)
        self.peer.ask(Send(self.queue, self.messages, keys), self._pushed)

    def _pushed(self, answer: Result) -> None:
        if isinstance(answer, QuotaExceeded) and len(self.messages) > 1:  # some of them may fit
            self.left = len(self.messages)
            for at, message in enumerate(self.messages):
                send = Send(self.queue, [message], [""])
                self.peer.ask(send, partial(self._pushed_one, at))
            return
        if isinstance(answer, Refused | StoreError):
            text = refusal(self.peer, "PUSH", self.queue, answer)
            self.frames = [encode(b"ERROR", text)] * len(self.frames)
        self.left = 0
        self.peer.answered(self)

    def _pushed_one(self, at: int, answer: Result) -> None:
        if isinstance(answer, Refused | StoreError):
            text = refusal(self.peer, "PUSH", self.queue, answer)
            self.frames[at] = encode(b"ERROR", text)
        self.left -= 1
        if not self.left:
            self.peer.answered(self)


class WorkerReplyBatch:
    """The acknowledgements and pulls of a worker, in turn.

    Acknowledgements are submitted before the pulls that came between them. A task that one of
    these pulls returns cannot be among the acknowledged ones.
    """

    def __init__(self, peer: Asker, queue: str, lock_ms: int, *, binary: bool) -> None:
        self.peer = peer
        self.queue = queue
        self.lock_ms = lock_ms  # of the queue
        self.binary = binary  # how its requests came, and its replies are written
        self.frames: list[bytes] = []  # the answers; empty where one is still to come
        self.asked: list[int] = []  # 0: an acknowledgement; or how many tasks, negative: in a batch
        self.tokens: dict[int, int] = {}  # of what is acknowledged: until when it is locked
        self.size = self.limit = 0  # of requests, in bytes; of tasks that are pulled
        self._pattern = _BARE_ACKS  # what may follow: acknowledgements, and the last pull again,
        self._pattern_limit, self._pattern_bytes = 1, 0  # its tasks, and the size of its payload
        self.left = 0  # answers that are still to come from the engine
        self._lost: set[LockName] = set()
        self._refused = b""  # what is told of those
        self._received: Received | Refused | StoreError = Received([])

    @property
    def is_full(self) -> bool:
        return self.limit >= GATHERED_MAX or len(self.tokens) >= GATHERED_MAX

    def acknowledge(self, token: int, until_ms: int, size: int) -> None:
        """Adds the acknowledgement of a task whose lock lasts until `until_ms`."""
        self.asked.append(0)
        self.tokens[token] = until_ms
        self.size += size

    def pull(self, limit: int, payload: bytes, *, batch: bool) -> None:
        asked = -limit if batch else limit
        same = encode(b"PULL_BATCH" if batch else b"PULL", payload)
        self._pattern = Pattern(_ACK, ID_BYTES, _BRACE, same, asked)
        self._pattern_limit, self._pattern_bytes = limit, len(payload)
        self.asked.append(asked)
        self.limit += limit
        self.size += len(payload)

    def follow(self, decoder: Decoder, most: int) -> int:
        """Takes requests that are as those before: bare acknowledgements, and the same pull.

        At most so many; returns how many. The next frame is looked at by itself.
        """
        if self.binary:
            return 0
        context = self.peer.context
        acks = GATHERED_MAX - len(self.tokens)
        pulls = -(-(GATHERED_MAX - self.limit) // self._pattern_limit)
        marks, payloads, end = decoder.repeats(self._pattern, most, acks, pulls)
        ids = [payload.decode(errors="surrogateescape") for payload in payloads]
        found = context.view.messages.sole_locks(context.namespace, self.queue, ids)
        if not self.tokens.keys().isdisjoint(found):
            return 0
        if len(found) < len(ids):  # some of them are not held here, or not alone
            marks, _, end = decoder.repeats(self._pattern, most, len(found), pulls)
        decoder.skip_to(end)
        self.tokens.update(found)
        self.asked += marks
        pulled = len(marks) - len(found)
        self.limit += pulled * self._pattern_limit
        self.size += len(found) * ID_BYTES + pulled * self._pattern_bytes
        return len(marks)

    def ask(self) -> None:
        """Both before either is answered, which may be at once."""
        self.left = (len(self.tokens) > 0) + (self.limit > 0)
        if self.tokens:
            complete = Complete(self.queue, list(self.tokens), partial=True)
            self.peer.ask(complete, self._completed)
        if self.limit:
            self.peer.ask(self.peer.receive_of(self.queue, self.limit), self._pulled)

    def _completed(self, answer: Result) -> None:
        if isinstance(answer, Refused | StoreError):
            text = refusal(self.peer, "ACK", self.queue, answer)
            self._refused = self._encode(b"ERROR", text)
            self._lost = set(self.tokens)
        else:
            assert isinstance(answer, Settled)
            self._lost = set(answer.lost)
            if self._lost:
                self._refused = self._encode(b"ERROR", NOT_FOUND.encode())
            lost, lock_ms = self._lost, self.lock_ms
            ends = self.tokens.items()
            done = [until_ms - lock_ms for token, until_ms in ends if token not in lost]
            self.peer.context.acknowledged(done)
        self._count()

    def _pulled(self, answer: Result) -> None:
        assert isinstance(answer, Received | Refused | StoreError)
        self._received = answer
        self._count()

    def _count(self) -> None:
        if self.left == 1:
            self._fill()
        self._count_one()

    def _count_one(self) -> None:
        self.left -= 1
        if not self.left:
            self.peer.answered(self)

    def _fill(self) -> None:
        received, frames, lost = self._received, self.frames, self._lost
        given = received.deliveries if isinstance(received, Received) else ()
        is_cut = len(given) < self.limit and sum(map(_body_bytes, given)) > _CUT_BYTES
        tokens, at = iter(self.tokens), 0
        pulled, queue = self.peer.pulled, self.queue
        context = self.peer.context
        view, namespace = context.engine.view.messages, context.namespace
        plain = 0 if self.peer.is_gone or self.binary else len(given)
        acknowledged = _ACKNOWLEDGED[self.binary]
        for limit in self.asked:
            if not limit:
                is_lost = lost and next(tokens) in lost
                frames.append(self._refused if is_lost else acknowledged)
                continue
            if limit == 1 and at < plain:
                job = job_of(given[at], queue, view, namespace)
                if len(job) <= JOB_BYTES_MAX:
                    frames.append(b"JOB %d %b" % (len(job), job))
                    at += 1
                    continue
            mine, at = given[at : at + abs(limit)], at + abs(limit)
            if is_cut and not mine and not self.peer.is_gone:
                self._pull_again(limit)
            elif given:
                frames.append(self._encode(*pulled(queue, mine, batch=limit < 0)))
            else:
                frames.append(self._told(limit, received))

    def _told(self, limit: int, answer: Result) -> bytes:
        if isinstance(answer, Received):
            given = answer.deliveries
            return self._encode(*self.peer.pulled(self.queue, given, batch=limit < 0))
        assert isinstance(answer, Refused | StoreError)
        word = "PULL_BATCH" if limit < 0 else "PULL"
        return self._encode(b"ERROR", refusal(self.peer, word, self.queue, answer))

    def _encode(self, word: bytes, payload: bytes) -> bytes:
        return encode(word, payload, binary=self.binary)

    def _pull_again(self, limit: int) -> None:
        """Repeats a pull that got nothing: its tasks may have been too much for one answer."""
        self.left += 1
        command = self.peer.receive_of(self.queue, abs(limit))
        reply = partial(self._pulled_again, len(self.frames), limit)
        self.frames.append(b"")
        self.peer.ask(command, reply)

    def _pulled_again(self, at: int, limit: int, answer: Result) -> None:
        self.frames[at] = self._told(limit, answer)
        self._count_one()


def _body_bytes(delivery: Delivery) -> int:
    return size_bytes(delivery.message)
