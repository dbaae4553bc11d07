"""Fast paths: the core does the same without each of them, only slower.

`bench/fastpaths.py` lists them, and measures what each saves. Here chance writes histories in which
what is common is common, and each is run with and without each path: refusals, answers, deliveries,
records and the state must be the same.
"""

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any, NamedTuple

import pytest
from msgspec import structs

from bench.fastpaths import PATHS, FastPath, without
from posthouse.core import State, decide, evolve
from posthouse.core import commands as c
from posthouse.core.dump import dump
from posthouse.core.errors import Refused
from posthouse.core.message import Envelope, NewMessage, encode_envelope
from posthouse.core.model import QueueProperties
from posthouse.core.namespaces import Namespaces
from posthouse.core.records import Kept, encode, is_kept, span
from posthouse.core.rules import PatternFilter, Rule, SqlFilter
from posthouse.core.snapshot import restore, take
from tests.invariants import check

pytestmark = pytest.mark.untraced
SEEDS = range(5)
STEPS = 300
# Some are measured at several kinds of work.
DISTINCT = list({(path.function, path.edits): path for path in PATHS}.values())
# Without these the same is said by other records.
OTHER_RECORDS = ("send ", "publish", "commit")
QUEUES = {
    "plain": QueueProperties(),
    "pushed": QueueProperties(),
    "urgent": QueueProperties(order="priority"),
    "small": QueueProperties(max_messages=20, overflow="drop-oldest"),
    "once": QueueProperties(duplicate_detection=True),
    "sessions": QueueProperties(grouping="session", requires_session=True),
    "brief": QueueProperties(ttl_ms=40),
}
RULES = {
    "all": [Rule("all")],
    "red": [Rule("red", SqlFilter("colour = 'red'"))],
    "both": [Rule("a", SqlFilter("colour = 'blue'")), Rule("b", SqlFilter("size > 5"))],
    "fit": [Rule("fit", PatternFilter("a.*"))],
}
SUBSCRIPTIONS = [f"news/$sub/{name}" for name in RULES]


class History(NamedTuple):
    seen: list[str]
    journal: list[Kept]
    state: dict[str, Any]
    restored: dict[str, Any]  # out of a snapshot of it


class Clients:
    """A few of them, in a world of queues of most kinds."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.state = State("test")
        self.position = self.now_ms = 1
        self.seen: list[str] = []
        self.journal: list[Kept] = []
        self._receiver = 0
        self.do(c.Start(1, 1, bytes(range(16))))
        for name, properties in QUEUES.items():
            self.do(c.CreateQueue(name, properties))
        self.do(c.CreateQueue("news", QueueProperties(delivery="topic")))
        for name, rules in RULES.items():
            self.do(c.CreateSubscription(f"news/$sub/{name}", rules=rules))

    def do(self, command: c.Command) -> Any:
        try:
            outcome = decide(self.state, command, self.now_ms)
        except Refused as refused:
            self.seen.append(f"{command} {refused!r}")
            return None
        for record in outcome.records:
            evolve(self.state, record, self.position)
            if is_kept(record):
                encode(record)
                self.journal.append(record)
                self.position += span(record)
        answer = outcome.answer
        if isinstance(answer, c.Enqueued):  # a range or a list
            answer = structs.replace(answer, sequences=list(answer.sequences))
        self.seen.append(repr((command, answer, list(outcome.deliveries))))
        return answer

    def run(self, steps: int) -> None:
        actions: list[tuple[Callable[[], None], int]] = [
            (self.send, 30), (self.publish, 30), (self.receive, 25), (self.settle, 40),
            (self.attach, 6), (self.credit, 8), (self.detach, 2), (self.transact, 5),
            (self.purge, 2), (self.in_session, 5), (self.wait, 15),
        ]  # fmt: skip
        chosen = self.random.choices([a for a, _ in actions], [w for _, w in actions], k=steps)
        for action in chosen:
            action()
            check(self.state, self.now_ms)

    def a_message(self, queue: str) -> NewMessage:
        random = self.random
        colour, size = random.choice(["red", "red", "blue"]), random.randrange(10)
        envelope = Envelope(
            id=f"{random.randrange(1_000)}", subject=random.choice(["a.b", "c"]),
            properties={"colour": colour, "size": size},
        )  # fmt: skip
        odd = random.random() < 0.1
        return NewMessage(
            encode_envelope(envelope), random.randbytes(random.randrange(20)),
            group=random.choice(["s", "t"]) if queue == "sessions" or odd else None,
            priority=random.choice([4, 4, 4, 9]) if queue == "urgent" else 4,
            ttl_ms=random.choice([5, 5_000]) if random.random() < 0.1 else None,
            due_ms=self.now_ms + 10 if random.random() < 0.05 else 0,
        )  # fmt: skip

    def send(self) -> None:
        queue = self.random.choice(list(QUEUES))
        messages = [self.a_message(queue) for _ in range(self.random.choice([1, 1, 2, 10]))]
        keys = [""] * len(messages) if queue == "once" and self.random.random() < 0.8 else None
        self.do(c.Send(queue, messages, keys))

    def publish(self) -> None:
        count = self.random.choice([1, 1, 1, 3, 6])
        self.do(c.Send("news", [self.a_message("news") for _ in range(count)]))

    def a_receiver(self) -> int:
        self._receiver += 1
        return self._receiver

    def a_queue(self) -> str:
        return self.random.choice([*QUEUES, *SUBSCRIPTIONS])

    def receive(self) -> None:
        limit, delete = self.random.choice([1, 1, 3, 20]), self.random.random() < 0.3
        self.do(c.Receive(self.a_queue(), self.a_receiver(), limit, delete=delete))

    def settle(self) -> None:
        random, locks = self.random, list(self.state.locks.items())
        if not locks:
            return
        _, lock = random.choice(locks)
        queue = lock.queue.name
        tokens = [token for token, each in locks if each.queue is lock.queue][
            : random.choice([1, 9])
        ]
        command = random.choice(
            [c.Complete, c.Complete, c.Complete, c.Complete, c.Abandon, c.Defer]
        )
        if random.random() < 0.05:
            self.do(c.DeadLetter(queue, tokens))
        elif command is c.Abandon and random.random() < 0.3:
            self.do(c.Abandon(queue, tokens, properties={"seen": True}))
        else:
            self.do(command(queue, tokens))

    def attach(self) -> None:
        queue = self.random.choice(["pushed", "pushed", SUBSCRIPTIONS[0], self.a_queue()])
        self.do(c.Attach(queue, self.a_receiver(), self.random.choice([1, 10])))

    def credit(self) -> None:
        if self.state.receivers:
            self.do(c.Credit(self.random.choice(list(self.state.receivers)), 3))

    def detach(self) -> None:
        if self.state.receivers:
            self.do(c.Detach(self.random.choice(list(self.state.receivers))))

    def transact(self) -> None:
        begun = self.do(c.Begin(1_000))
        free = [token for token in self.state.locks if token not in self.state.enlisted]
        for token in free[:3]:
            queue = self.state.locks[token].queue.name
            self.do(c.Work(begun.transaction, c.Complete(queue, [token])))
        # Sends that need no looking at come behind the others, those to one queue together.
        queues = ["small", "once", "plain", "news"]
        for queue in sorted(self.random.choices(queues, k=8), key=queues.index):
            messages = [self.a_message(queue) for _ in range(3)]
            self.do(c.Work(begun.transaction, c.Send(queue, messages)))
        self.do(c.Commit(begun.transaction))

    def purge(self) -> None:
        self.do(c.Purge(self.a_queue(), frozenset([0]), limit=5))

    def in_session(self) -> None:
        granted = self.do(c.AcceptSession("sessions", self.a_receiver()))
        if granted is not None:
            self.do(c.Receive("sessions", self.a_receiver(), 3, session=granted.token))
            self.do(c.ReleaseSession("sessions", granted.token))

    def wait(self) -> None:
        self.now_ms += self.random.choice([1, 5, 50])
        self.do(c.Tick())


def a_history(seed: int) -> History:
    clients = Clients(seed)
    clients.run(STEPS)
    world = Namespaces()
    world.states["test"] = clients.state
    restored = restore(take(world)).states["test"]
    state = dump(clients.state, passing=True)
    return History(clients.seen, clients.journal, state, dump(restored, bodies=False))


@cache
def with_all(seed: int) -> History:
    return a_history(seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("path", DISTINCT, ids=lambda path: path.name.replace(" ", "-"))
def test_a_history_is_the_same_without_a_fast_path(path: FastPath, seed: int) -> None:
    whole = with_all(seed)
    with without(path):
        slow = a_history(seed)
    assert slow.seen == whole.seen
    if not path.name.startswith(OTHER_RECORDS):
        assert slow.journal == whole.journal
    assert slow.state == whole.state
    assert slow.restored == whole.restored
