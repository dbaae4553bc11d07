"""What topics, transactions and patterns cost, each beside the same work without them.

    python -m bench.model

Everything runs in the core alone, as the engine would run it: decide, evolve, encode what is kept.
"""

import gc
import time
from collections.abc import Callable
from statistics import median

from bench.core import Core, Result
from posthouse.core.commands import (
    Begin,
    Begun,
    Command,
    Commit,
    Complete,
    CreateQueue,
    CreateSubscription,
    Purge,
    Receive,
    Received,
    Send,
    Work,
)
from posthouse.core.filters.patterns import Trie
from posthouse.core.filters.sql import compile_filter
from posthouse.core.filters.view import View
from posthouse.core.message import Envelope, NewMessage, encode_envelope
from posthouse.core.model import QueueProperties, subscription_queue
from posthouse.core.records import encode, is_kept
from posthouse.core.rules import Rule, SqlFilter

ROUNDS = 9
SUBSCRIPTIONS, MATCHING = 1_000, 10
PATTERNS = 100_000
OPERATIONS = 100
BODY = bytes(1_024)


def timed(work: Callable[[], object], count: int) -> float:
    """Microseconds for one, in the middle of several rounds."""
    found = []
    for _ in range(ROUNDS):
        gc.collect()
        begun = time.perf_counter()
        for _ in range(count):
            work()
        found.append((time.perf_counter() - begun) / count * 1e6)
    return median(found)


def a_message(number: int = 7) -> NewMessage:
    envelope = Envelope(id=f"{number:032x}", properties={"tenant": number, "region": "eu-west"})
    return NewMessage(encode_envelope(envelope), BODY)


def topic(core: Core, name: str, subscriptions: int, rule: Callable[[int], Rule]) -> list[str]:
    core.run(CreateQueue(name, QueueProperties(delivery="topic")), 0)
    queues = [subscription_queue(name, f"s{number}") for number in range(subscriptions)]
    for number, queue in enumerate(queues):
        core.run(CreateSubscription(queue, QueueProperties(), [rule(number)]), 0)
    return queues


def filters() -> Result:
    """Publishing to many subscriptions of which few match, beside asking their filters alone."""
    texts = [
        f"tenant = {number % (SUBSCRIPTIONS // MATCHING)} AND region LIKE 'eu-%'"
        for number in range(SUBSCRIPTIONS)
    ]
    core = Core()
    queues = topic(core, "t", SUBSCRIPTIONS, lambda n: Rule("r", SqlFilter(texts[n])))
    message = a_message()
    send = Send("t", [message])
    core.run(send, 0)
    assert sum(core.state.queues[queue].counts[0] for queue in queues) == MATCHING
    predicates = [compile_filter(text, {}) for text in texts]

    def alone() -> int:
        view = View(message.envelope, new_id=lambda: b"")
        return sum(fits(view) is True for fits in predicates)

    assert alone() == MATCHING
    value = timed(lambda: core.run(send, 0), 30)
    beside = timed(alone, 30)
    return Result(
        f"publish to {SUBSCRIPTIONS:,} subscriptions with SQL filters, of which {MATCHING} match,"
        " beside their filters alone", value, beside, "us", 1.5,
    )  # fmt: skip


def fan_out() -> list[Result]:
    core, send_one = Core(), Send("q", [a_message()])
    topic(core, "t", 10, lambda _: Rule("r"))
    send_ten = Send("t", [a_message()])
    written = {command.queue: _written(core, command) for command in (send_one, send_ten)}
    value, beside = (
        timed(lambda: core.run(send_ten, 0), 1_000),
        timed(lambda: core.run(send_one, 0), 1_000),
    )
    return [
        Result("publish to 10 subscriptions, beside a send to a queue", value, beside, "us", 4),
        Result(
            "bytes in the journal for it, with a body of 1 KiB", written["t"], written["q"],
            "bytes", 2,
        ),
    ]  # fmt: skip


def _written(core: Core, command: Command) -> int:
    from posthouse.core import decide

    records = decide(core.state, command, 0).records
    return sum(len(encode(record)) for record in records if is_kept(record))


def transactions() -> list[Result]:
    """Half of the operations send, half complete; beside the same commands on their own."""
    half = OPERATIONS // 2
    core = Core()

    def prepared() -> list[Command]:
        core.run(Purge("q", frozenset(range(5)), limit=10_000), 0)
        core.run(Send("q", [a_message()] * half), 0)
        answer = core.run(Receive("q", 1, half), 0)
        assert isinstance(answer, Received)
        tokens = [each.token for each in answer.deliveries]
        work: list[Command] = [Send("q", [a_message()]) for _ in range(half)]
        return work + [Complete("q", [token]) for token in tokens]

    def one_by_one(work: list[Command]) -> None:
        for command in work:
            core.run(command, 0)

    def together(work: list[Command]) -> None:
        begun = core.run(Begin(), 0)
        assert isinstance(begun, Begun)
        for command in work:
            core.run(Work(begun.transaction, command), 0)  # type: ignore[arg-type]
        core.run(Commit(begun.transaction), 0)

    def in_two(work: list[Command]) -> None:
        sends = [each.messages[0] for each in work if isinstance(each, Send)]
        core.run(Send("q", sends), 0)
        locks = [each.locks[0] for each in work if isinstance(each, Complete)]
        core.run(Complete("q", locks), 0)

    found = {}
    for name, run in (("alone", one_by_one), ("together", together), ("in two", in_two)):
        rounds = []
        for _ in range(20 * ROUNDS):
            work = prepared()
            begun = time.perf_counter()
            run(work)
            rounds.append((time.perf_counter() - begun) * 1e6)
        found[name] = median(rounds)
    return [
        Result(
            f"a transaction of {OPERATIONS} operations, beside the same commands in one frame",
            found["together"], found["alone"], "us", 1.3,
        ),
        Result(
            "the same beside one send of all and one completion of all", found["together"],
            found["in two"], "us", 1.3,
        ),
    ]  # fmt: skip


def patterns() -> Result:
    """Matching among many patterns, beside matching among few."""

    def a_trie(count: int) -> Trie[int]:
        trie: Trie[int] = Trie()
        for number in range(count):
            trie.add(f"shop{number}.*.orders.#", "amqp", number)
        return trie

    few, many = a_trie(100), a_trie(PATTERNS)
    subject = "shop7.eu.orders.new.large"
    assert few.match(subject) == many.match(subject) == [7]
    return Result(
        f"matching a subject with {PATTERNS:,} patterns, beside 100",
        timed(lambda: many.match(subject), 5_000), timed(lambda: few.match(subject), 5_000),
        "us", 2,
    )  # fmt: skip


def main() -> None:
    for result in (filters(), *fan_out(), *transactions(), patterns()):
        print(result, flush=True)


if __name__ == "__main__":
    main()
