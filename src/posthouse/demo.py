"""A short tour of the core: `make run`. What it prints was just done, under a clock of its own.

There is no server yet; this runs the broker's logic in memory, as tests and, later, the engine do.
"""

from posthouse.core import State, decide, evolve, next_deadline_ms
from posthouse.core.commands import (
    Abandon,
    AcceptSession,
    Answer,
    Attach,
    Command,
    Complete,
    CreateQueue,
    Delivery,
    GetQueue,
    Granted,
    QueueInfo,
    Receive,
    Received,
    Resubmit,
    Send,
    Start,
    Tick,
)
from posthouse.core.dump import dump
from posthouse.core.message import Envelope, NewMessage, encode_envelope
from posthouse.core.model import QueueProperties, dead_letter_queue
from posthouse.core.records import Kept, encode, is_kept, span


class Tour:
    """One namespace, its clock, and the journal that a restart would read."""

    def __init__(self) -> None:
        self.state = State("demo")
        self.now_ms = 0
        self.position = 1
        self.journal: list[tuple[int, Kept]] = []
        self.pushed: list[Delivery] = []

    def do(self, command: Command) -> Answer:
        outcome = decide(self.state, command, self.now_ms)
        for record in outcome.records:
            evolve(self.state, record, self.position)
            if is_kept(record):
                self.journal.append((self.position, record))
                self.position += span(record)
        self.pushed += [d for d in outcome.deliveries if isinstance(d, Delivery)]
        return outcome.answer

    def replayed(self) -> State:
        """What a restart would begin with."""
        state = State("demo")
        for position, record in self.journal:
            evolve(state, record, position)
        return state

    def wait(self, ms: int) -> None:
        """Nothing sleeps: the clock is moved, and what is due happens on the way."""
        end_ms = self.now_ms + ms
        while (due_ms := next_deadline_ms(self.state)) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.do(Tick())
        self.now_ms = end_ms

    def say(self, text: str) -> None:
        print(f"{self.now_ms / 1000:7.1f} s  {text}")

    def receive(self, queue: str, receiver: int, limit: int = 1) -> list[Delivery]:
        answer = self.do(Receive(queue, receiver, limit))
        assert isinstance(answer, Received)
        for delivery in answer.deliveries:
            self.say(f"received {_body(delivery)} from {queue}, delivery {delivery.count}")
        if not answer.deliveries:
            self.say(f"nothing to receive from {queue}")
        return answer.deliveries

    def counts(self, queue: str) -> None:
        answer = self.do(GetQueue(queue))
        assert isinstance(answer, QueueInfo)
        counts = answer.counts
        self.say(
            f"{queue} has {counts.active} active, {counts.locked} locked, "
            f"{counts.scheduled} scheduled, {counts.dead} dead-lettered"
        )


def _body(delivery: Delivery) -> str:
    body = delivery.message.body
    return repr(body.decode()) if isinstance(body, bytes) else f"{body} bytes"


def _message(text: str, session: str | None = None, due_ms: int = 0) -> NewMessage:
    envelope = encode_envelope(Envelope(id=text, session_id=session))
    return NewMessage(envelope, text.encode(), group=session, due_ms=due_ms)


def main() -> None:
    tour = Tour()
    tour.do(Start(epoch=1, salt=1))

    print("A queue whose locks last 5 s, with at most 2 deliveries of a message:\n")
    tour.do(CreateQueue("orders", QueueProperties(lock_ms=5_000, max_delivery=2)))
    tour.do(Send("orders", [_message("book"), _message("pen"), _message("ink", due_ms=30_000)]))
    tour.say("sent 'book', 'pen', and 'ink' scheduled for 30 s")
    [book] = tour.receive("orders", 1)
    tour.do(Complete("orders", [book.token]))
    tour.say("completed 'book'")
    [pen] = tour.receive("orders", 2)
    tour.do(Abandon("orders", [pen.token]))
    tour.say("abandoned 'pen'")
    tour.receive("orders", 3)
    tour.say("... and forgot about it")
    tour.wait(5_000)
    tour.counts("orders")
    graveyard = dead_letter_queue("orders")
    [dead] = tour.receive(graveyard, 4)
    assert dead.note is not None
    tour.say(f"it is there because: {dead.note.reason}")
    tour.do(Abandon(graveyard, [dead.token]))
    tour.do(Resubmit(graveyard))
    tour.say("resubmitted the dead letters")
    tour.do(Attach("orders", receiver=5, credit=10))
    tour.say("a receiver with credit has come: " + ", ".join(map(_body, tour.pushed)))
    tour.pushed.clear()
    tour.wait(25_000)
    tour.say("what was pushed to it meanwhile: " + ", ".join(map(_body, tour.pushed)))

    print("\nA queue with sessions, one holder each:\n")
    tour.do(CreateQueue("trips", QueueProperties(grouping="session")))
    tour.do(Send("trips", [_message(f"{who} {n}", who) for n in (1, 2) for who in ("ann", "bob")]))
    for receiver in (6, 7):
        granted = tour.do(AcceptSession("trips", receiver))
        assert isinstance(granted, Granted)
        answer = tour.do(Receive("trips", receiver + 10, 10, session=granted.token))
        assert isinstance(answer, Received)
        got = ", ".join(map(_body, answer.deliveries))
        tour.say(f"accepted session {granted.session!r} and received {got}")

    size = sum(len(encode(record)) for _, record in tour.journal)
    print(f"\nThe journal of all this: {len(tour.journal)} records, {size} bytes.")
    same = dump(tour.replayed()) == dump(tour.state)
    print(f"Replaying it gives {'the same state' if same else 'ANOTHER STATE, which is a bug'}.")


if __name__ == "__main__":
    main()
