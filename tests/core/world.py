"""A namespace to try things in: runs commands as the engine will, and remembers the journal."""

from collections.abc import Sequence

from posthouse.core import Outcome, State, decide, evolve, next_deadline_ms
from posthouse.core.commands import (
    AcceptSession,
    Admitted,
    Attach,
    Command,
    Counts,
    CreateQueue,
    CreateSubscription,
    Delivery,
    Enqueued,
    GetQueue,
    Granted,
    Peek,
    Peeked,
    QueueInfo,
    Receive,
    Received,
    Send,
    Start,
    Tick,
    Ticked,
    Waiting,
)
from posthouse.core.message import Envelope, NewMessage, Properties, Value, encode_envelope
from posthouse.core.model import QueueProperties, subscription_queue
from posthouse.core.plan import Delivered
from posthouse.core.records import Kept, is_kept, span
from posthouse.core.rules import DEFAULT_RULE, Rule
from posthouse.core.tokens import KEY_BYTES

KEY = bytes(range(KEY_BYTES))  # of the tokens of a first start


def a_message(
    body: str = "hello",
    *,
    id: str = "",
    group: str | None = None,
    priority: int = 4,
    ttl_ms: int | None = None,
    due_ms: int = 0,
    native: bytes | None = None,
    subject: str = "",
    **properties: Value,
) -> NewMessage:
    envelope = Envelope(id=id, subject=subject, properties=properties)
    return NewMessage(
        encode_envelope(envelope), body.encode(), native, group, priority, ttl_ms, due_ms
    )


class World:
    """One namespace, its clock, and the kept records so far."""

    def __init__(self, *, epoch: int = 1, salt: int = 7, key: bytes = KEY) -> None:
        self.state = State("test")
        self.now_ms = 1_000
        self.position = 1
        self.journal: list[tuple[int, Kept]] = []
        self.deliveries: list[Delivered] = []  # of the last command
        self._receiver = 1_000
        self.do(Start(epoch, salt, key))

    def do(self, command: Command) -> Outcome:
        outcome = decide(self.state, command, self.now_ms)
        self.deliveries = list(outcome.deliveries)
        for record in outcome.records:
            evolve(self.state, record, self.position)
            if is_kept(record):
                self.journal.append((self.position, record))
                self.position += span(record)
        return outcome

    def replayed(self) -> State:
        """What a restart makes of the journal."""
        state = State("test")
        for position, record in self.journal:
            evolve(state, record, position)
        return state

    def restarted(self, *, epoch: int = 2, salt: int = 8, key: bytes = KEY[::-1]) -> "World":
        """The namespace as it is after a crash and the start that follows."""
        world = World.__new__(World)
        world.state, world.now_ms, world.position = self.replayed(), self.now_ms, self.position
        world.journal, world.deliveries, world._receiver = list(self.journal), [], self._receiver
        world.do(Start(epoch, salt, key))
        return world

    # Shorthands that also say what kind of answer is expected.

    def queue(self, name: str = "orders", **properties: object) -> str:
        self.do(CreateQueue(name, QueueProperties(**properties)))  # type: ignore[arg-type]
        return name

    def topic(self, name: str = "news", **properties: object) -> str:
        return self.queue(name, delivery="topic", **properties)

    def subscribe(
        self, topic: str, name: str, *rules: Rule, default: bool = True, **properties: object
    ) -> str:
        """With these rules, or the one that takes everything; returns its queue."""
        queue = subscription_queue(topic, name)
        given = rules if rules or not default else (Rule(DEFAULT_RULE),)
        self.do(CreateSubscription(queue, QueueProperties(**properties), given))  # type: ignore[arg-type]
        return queue

    def send(self, queue: str, *messages: NewMessage | str) -> Sequence[int]:
        new = [a_message(each) if isinstance(each, str) else each for each in messages]
        answer = self.do(Send(queue, new)).answer
        assert isinstance(answer, Enqueued)
        return answer.sequences

    def new_receiver(self) -> int:
        self._receiver += 1
        return self._receiver

    def receive(self, queue: str, limit: int = 1, **options: object) -> list[Delivery]:
        command = Receive(queue, self.new_receiver(), limit, **options)  # type: ignore[arg-type]
        answer = self.do(command).answer
        assert isinstance(answer, Received)
        return answer.deliveries

    def wait(self, queue: str, limit: int = 1, *, ms: int = 1_000, **options: object) -> int:
        """A receiver that asks once, and waits."""
        number, deadline_ms = self.new_receiver(), self.now_ms + ms
        command = Receive(queue, number, limit, deadline_ms, **options)  # type: ignore[arg-type]
        assert self.do(command).answer == Waiting(number)
        return number

    def attach(self, queue: str, credit: int = 0, **options: object) -> int:
        """A receiver that holds credit."""
        number = self.new_receiver()
        self.do(Attach(queue, number, credit, **options))  # type: ignore[arg-type]
        return number

    def wait_for_session(self, queue: str, *, ms: int = 1_000, **options: object) -> int:
        number, deadline_ms = self.new_receiver(), self.now_ms + ms
        command = AcceptSession(queue, number, None, deadline_ms, **options)  # type: ignore[arg-type]
        assert self.do(command).answer == Waiting(number)
        return number

    def hold(self, queue: str, session: str, **options: object) -> Granted:
        """A session accepted by its id."""
        granted = self.accept(queue, session, **options)
        assert granted is not None
        return granted

    def accept(self, queue: str, session: str | None = None, **options: object) -> Granted | None:
        command = AcceptSession(queue, self.new_receiver(), session, **options)  # type: ignore[arg-type]
        answer = self.do(command).answer
        assert answer is None or isinstance(answer, Granted)
        return answer

    def info(self, queue: str) -> QueueInfo:
        answer = self.do(GetQueue(queue)).answer
        assert isinstance(answer, QueueInfo)
        return answer

    def peek(self, queue: str, limit: int = 100) -> list[tuple[int, str]]:
        """(sequence, state) of the messages in a queue."""
        answer = self.do(Peek(queue, limit=limit)).answer
        assert isinstance(answer, Peeked)
        return [(seen.message.sequence, seen.state) for seen in answer.messages]

    def counts(self, queue: str) -> Counts:
        return self.info(queue).counts

    def tick(self) -> bool:
        """Whether there is more to do."""
        answer = self.do(Tick()).answer
        assert isinstance(answer, Ticked)
        return answer.more

    def advance(self, ms: int) -> list[Delivered]:
        """Time passes; what falls due happens when it is due. Returns what receivers got."""
        end_ms, got = self.now_ms + ms, []
        while (due_ms := next_deadline_ms(self.state)) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            answer = self.do(Tick()).answer
            assert isinstance(answer, Ticked)
            got += self.deliveries
        self.now_ms = end_ms
        self.deliveries = got
        return got


def bodies(deliveries: Sequence[Delivered]) -> list[str]:
    return [text(each) for each in deliveries if isinstance(each, Delivery)]


def given(deliveries: Sequence[Delivered]) -> list[tuple[int, str]]:
    """(receiver, what it got): a body, a session's id, or the kind of a notice."""
    return [(each.receiver, _what(each)) for each in deliveries]


def _what(each: Delivered) -> str:
    if isinstance(each, Delivery):
        return text(each)
    if isinstance(each, Admitted):
        return "admitted"
    return each.session if isinstance(each, Granted) else each.kind


def text(delivery: Delivery) -> str:
    body = delivery.message.body
    assert isinstance(body, bytes)
    return body.decode()


__all__ = ["Properties", "World", "a_message", "bodies", "given", "text"]
