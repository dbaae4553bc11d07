"""What topics, transactions and patterns cost, each beside the same work without them.

    python -m bench.model

A fan-out and a transaction are measured in the engine, as somebody pays for them who asks for them:
decided, written, synced, answered. They are printed for the core alone too: decide, evolve, encode.
"""

import asyncio
import gc
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench.core import Core, Result
from bench.limit import rate
from posthouse.broker.access import BROKER
from posthouse.broker.clock import SystemClock
from posthouse.broker.engine import Engine
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
from posthouse.core.filters.view import MessageView
from posthouse.core.message import Envelope, NewMessage, encode_envelope
from posthouse.core.model import QueueProperties, subscription_queue
from posthouse.core.namespaces import CreateNamespace
from posthouse.core.records import encode, is_kept
from posthouse.core.rules import Rule, SqlFilter
from posthouse.store.file import FileStore

NS = "bench"
OUTSTANDING = 256
ROUNDS = 15
SUBSCRIPTIONS, MATCHING = 1_000, 10
PATTERNS = 100_000
OPERATIONS = 100
BODY = bytes(1_024)


def timed(work: Callable[[], object], other: Callable[[], object], count: int) -> list[float]:
    """Microseconds for one of each, turn about, in the pair whose ratio is in the middle."""
    pairs = []
    for _ in range(ROUNDS):
        gc.collect()
        pair = []
        for each in (work, other):
            begun = time.perf_counter()
            for _ in range(count):
                each()
            pair.append((time.perf_counter() - begun) / count * 1e6)
        pairs.append(pair)
    return sorted(pairs, key=lambda pair: pair[0] / pair[1])[ROUNDS // 2]


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
        view = MessageView(message.envelope, new_id=lambda: b"")
        return sum(fits(view) is True for fits in predicates)

    assert alone() == MATCHING
    value, beside = timed(lambda: core.run(send, 0), alone, 30)
    return Result(
        f"publish to {SUBSCRIPTIONS:,} subscriptions with SQL filters, of which {MATCHING} match,"
        " beside their filters alone", value, beside, "us", 1.5,
    )  # fmt: skip


def fan_out() -> list[Result]:
    core, send_one = Core(), Send("q", [a_message()])
    topic(core, "t", 10, lambda _: Rule("r"))
    send_ten = Send("t", [a_message()])
    written = {command.queue: _written(core, command) for command in (send_one, send_ten)}
    value, beside = timed(lambda: core.run(send_ten, 0), lambda: core.run(send_one, 0), 1_000)
    return [
        Result("publish to 10 subscriptions, beside a send to a queue", value, beside, "us", 4),
        Result(
            "bytes in the journal for it, with a body of 1 KiB", written["t"], written["q"],
            "bytes", 2,
        ),
    ]  # fmt: skip


async def _published(folder: Path) -> float:
    """How many sends to a queue take as long as one to a topic with 10 subscriptions."""
    engine = await _engine(folder)
    await engine.ask(BROKER, NS, CreateQueue("t", QueueProperties(delivery="topic")))
    for number in range(10):
        queue = subscription_queue("t", f"s{number}")
        await engine.ask(BROKER, NS, CreateSubscription(queue, QueueProperties(), [Rule("r")]))
    to_queue, to_topic = (Send(name, [a_message()]) for name in ("q", "t"))
    rates = [
        await rate(partial(engine.ask, BROKER, NS, command), 1, OUTSTANDING)
        for command in (to_queue, to_topic)
    ]
    await engine.close()
    return rates[0] / rates[1]


async def _engine(folder: Path) -> Engine:
    engine = await Engine.open(FileStore(folder / "journal"), SystemClock(), salt=1)
    await engine.ask(BROKER, "", CreateNamespace(NS, engine.epoch, 1))
    await engine.ask(BROKER, NS, CreateQueue("q"))
    return engine


async def _transacted(folder: Path) -> float:
    """A transaction of many operations, beside the same ones handed in together."""
    engine, half = await _engine(folder), OPERATIONS // 2

    def ask(command: Command) -> Awaitable[Any]:
        asked = asyncio.get_running_loop().create_future()
        engine.submit(BROKER, NS, command, asked.set_result)
        return asked

    async def work() -> list[Command]:
        await ask(Send("q", [a_message()] * half))
        answer = await ask(Receive("q", engine.new_receiver(), half))
        sends: list[Command] = [Send("q", [a_message()]) for _ in range(half)]
        return sends + [Complete("q", [each.token]) for each in answer.deliveries]

    async def together(commands: list[Command]) -> None:
        begun = (await ask(Begin())).transaction
        asked = [ask(Work(begun, command)) for command in commands]  # type: ignore[arg-type]
        await asyncio.gather(*asked, ask(Commit(begun)))

    async def batch(commands: list[Command]) -> None:
        await asyncio.gather(*map(ask, commands))

    found: list[float] = []
    for _ in range(20 * ROUNDS):
        seconds = []
        for run in (together, batch):
            commands = await work()
            begun = time.perf_counter()
            await run(commands)
            seconds.append(time.perf_counter() - begun)
        found.append(seconds[0] / seconds[1])
    await engine.close()
    return median(found)


def in_the_engine() -> Iterator[str]:
    for name, measure, goal in (
        ("publish to 10 subscriptions, beside a send to a queue", _published, 4),
        (f"a transaction of {OPERATIONS} operations, beside the same handed in together",
         _transacted, 1.3),
    ):  # fmt: skip
        found = []
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory(dir=".") as folder:
                found.append(asyncio.run(measure(Path(folder))))
        verdict = "reached" if median(found) <= goal else "MISSED"
        yield (
            f"{name}:\n    {median(found):.2f} times, in the middle of {ROUNDS}"
            f" ({min(found):.2f} to {max(found):.2f}); goal {goal} {verdict}"
        )


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

    rounds: dict[str, list[float]] = {}
    for _ in range(20 * ROUNDS):
        for name, run in (("alone", one_by_one), ("together", together), ("in two", in_two)):
            work = prepared()
            begun = time.perf_counter()
            run(work)
            rounds.setdefault(name, []).append((time.perf_counter() - begun) * 1e6)
    found = {name: median(each) for name, each in rounds.items()}
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
    value, beside = timed(lambda: many.match(subject), lambda: few.match(subject), 5_000)
    name = f"matching a subject with {PATTERNS:,} patterns, beside 100"
    return Result(name, value, beside, "us", 2)


def main() -> None:
    for line in in_the_engine():
        print(line, flush=True)
    for result in (filters(), *fan_out(), *transactions(), patterns()):
        print(result, flush=True)


if __name__ == "__main__":
    main()
