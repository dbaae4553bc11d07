"""What each fast path of the core saves, as a ratio of the work without it to the work with it.

A fast path is code that gives the same outcome as other code in a case that is common. Each is
taken out by editing the source of its function, so the two are measured in one process, turn about,
by processor time; the ratio is the middle of the pairs. One near 1.00 is not worth its lines.
`tests/core/test_fast_paths.py` holds each to its twin.

python -m bench.fastpaths              all of them
python -m bench.fastpaths complete     those whose name has this in it
"""

import argparse
import gc
import inspect
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

from bench.core import Core, a_message
from posthouse.core import (
    picking,
    publishing,
    receiving,
    routing,
    sending,
    settling,
    snapshot,
    transactions,
)
from posthouse.core.commands import (
    CREDIT_MAX,
    Attach,
    Begin,
    Commit,
    Complete,
    CreateSubscription,
    Credit,
    Purge,
    Receive,
    Send,
    Start,
    Work,
)
from posthouse.core.message import Envelope, NewMessage, encode_envelope
from posthouse.core.model import QueueProperties
from posthouse.core.namespaces import Namespaces
from posthouse.core.plan import QueueOverlay
from posthouse.core.ready_list import ReadyList
from posthouse.core.rules import Rule, SqlFilter
from posthouse.core.tokens import Tokens

PAIRS = 15
Step = Callable[[], None]
_evolve = sys.modules["posthouse.core.evolve"]
_decide = sys.modules["posthouse.core.decide"]
_TABLES: tuple[dict[Any, Any], ...] = (vars(_decide)["_DECIDE"], vars(_evolve)["_EVOLVE"])


class FastPath(NamedTuple):
    """`edits`: what is replaced in the source of the function, to take the path out."""

    name: str
    owner: Any  # a module of the core, or a class of it
    function: str
    edits: tuple[tuple[str, str], ...]
    prepare: Callable[[], Step]


@contextmanager
def without(path: FastPath) -> Iterator[None]:
    """The core without this fast path."""
    function: Any = getattr(path.owner, path.function)
    twin = _twin(function, path.edits)
    _swap(path, function, twin)
    try:
        yield
    finally:
        _swap(path, twin, function)


def _twin(function: Any, edits: tuple[tuple[str, str], ...]) -> Any:
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in edits:
        assert source.count(old) == 1, f"{function.__name__} has changed: {old!r}"
        source = source.replace(old, new)
    names: dict[str, Any] = {}
    exec(compile(source, function.__code__.co_filename, "exec"), function.__globals__, names)
    return names[function.__name__]


def _swap(path: FastPath, old: Any, new: Any) -> None:
    """Puts one function in the place of another, wherever it was imported."""
    if inspect.isclass(path.owner):
        setattr(path.owner, path.function, new)
        return
    for name, module in list(sys.modules.items()):
        if name.startswith("posthouse.core") and vars(module).get(path.function) is old:
            setattr(module, path.function, new)
    for table in _TABLES:
        for kind, function in table.items():
            if function is old:
                table[kind] = new


# Work. Each prepares a world, and returns one step of steady work there.


def _a_core(properties: QueueProperties | None = None) -> Core:
    core = Core(properties)
    core.run(Start(2, 2, bytes(range(16))), 0)
    return core


def _traffic(batch: int, properties: QueueProperties | None = None) -> Step:
    core, message = _a_core(properties), a_message()

    def step() -> None:
        core.run(Send("q", [message] * batch), 1)
        received = core.run(Receive("q", 1, batch), 1)
        core.run(Complete("q", [each.token for each in received.deliveries]), 1)

    return step


def one_by_one() -> Step:
    return _traffic(1)


def in_batches() -> Step:
    return _traffic(100)


def with_a_limit() -> Step:
    return _traffic(1, QueueProperties(max_messages=1_000))


def by_priority() -> Step:
    return _traffic(100, QueueProperties(order="priority"))


def taken_out() -> Step:
    """Received and deleted, a hundred at a time."""
    core, message = _a_core(), a_message()

    def step() -> None:
        core.run(Send("q", [message] * 100), 1)
        core.run(Receive("q", 1, 100, delete=True), 1)

    return step


def pushed() -> Step:
    """To a receiver that waits with credit."""
    core, message = _a_core(), a_message()
    core.run(Attach("q", 1, CREDIT_MAX), 1)

    def step() -> None:
        core.run(Send("q", [message]), 1)
        core.run(Complete("q", list(core.state.locks)), 1)
        if not core.state.queues["q"].waiting:
            core.run(Credit(1, CREDIT_MAX), 1)

    return step


def _published(rules: list[Rule], *, waiting: bool = False, batch: int = 1) -> Step:
    core = _a_core(QueueProperties(delivery="topic"))
    envelopes = [encode_envelope(Envelope(properties={"n": n % 2})) for n in range(batch)]
    messages = [NewMessage(envelope, bytes(1024)) for envelope in envelopes]
    names = [f"q/$sub/{number}" for number in range(len(rules))]
    for name, rule in zip(names, rules, strict=True):
        core.run(CreateSubscription(name, rules=[rule]), 1)
    if waiting:
        core.run(Attach(names[0], 1, CREDIT_MAX), 1)
    sent = 0

    def step() -> None:
        nonlocal sent
        core.run(Send("q", messages), 1)
        sent += 1
        if sent % 50 == 0:
            if waiting:
                core.run(Credit(1, CREDIT_MAX), 1)
            for name in names:
                core.run(Purge(name, frozenset(range(5)), limit=10_000), 1)

    return step


def published() -> Step:
    return _published([Rule("all")] * 5)


def published_by_rules() -> Step:
    return _published([Rule("some", SqlFilter(f"n = 0 OR n = {n}")) for n in range(5)])


def published_to_who_waits() -> Step:
    return _published([Rule("all")] * 5, waiting=True)


def published_in_batches() -> Step:
    return _published([Rule("all")] * 5, batch=20)


def published_in_batches_by_rules() -> Step:
    """Every other message of each batch, so that the record lists what is copied."""
    return _published([Rule("some", SqlFilter("n = 0"))] * 5, batch=20)


def in_a_transaction() -> Step:
    core, message = _a_core(), a_message()

    def step() -> None:
        core.run(Send("q", [message] * 20), 1)
        received = core.run(Receive("q", 1, 20), 1)
        number = core.run(Begin(1_000), 1).transaction
        for delivery in received.deliveries:
            core.run(Work(number, Complete("q", [delivery.token])), 1)
            core.run(Work(number, Send("q", [message])), 1)
        core.run(Commit(number), 1)
        core.run(Purge("q", frozenset(range(5)), limit=10_000), 1)

    return step


def overflowing() -> Step:
    """Four hundred sends of one command into a queue that keeps a hundred, and where one waits."""
    core = _a_core(QueueProperties(max_messages=100, overflow="drop-oldest"))
    message = NewMessage(b"\x80", b"")

    core.run(Attach("q", 1, 0), 1)

    def step() -> None:
        core.run(Credit(1, 1), 1)
        number = core.run(Begin(1_000), 1).transaction
        for _ in range(400):
            core.run(Work(number, Send("q", [message])), 1)
        core.run(Commit(number), 1)
        core.run(Purge("q", frozenset(range(5)), limit=10_000), 1)

    return step


def restored() -> Step:
    """Five thousand messages, out of a snapshot."""
    core, world = _a_core(), Namespaces()
    for _ in range(50):
        core.run(Send("q", [a_message()] * 100), 1)
    world.states[core.state.name] = core.state
    parts = list(snapshot.take(world))

    def step() -> None:
        snapshot.restore(parts)

    return step


def _edit(old: str, new: str) -> tuple[tuple[str, str], ...]:
    return ((old, new),)


PATHS = [
    FastPath("send without a plan", sending, "send", _edit(
        "if is_special and not _is_plain(queue, command, len(messages), total):", "if messages:",
    ), one_by_one),
    FastPath("send to a queue with limits without a plan", sending, "send", _edit(
        "if is_special and not _is_plain(queue, command, len(messages), total):", "if is_special:",
    ), with_a_limit),
    FastPath("send: what needs no looking at is not looked at", sending, "checked_send", _edit(
        "            not plain\n", "            True\n",
    ), in_batches),
    FastPath("send: to the only receiver that can have it", sending, "_sent", _edit(
        "receiver = None if queue.relays else _sole_taker(queue, messages, time_ms)",
        "receiver = None",
    ), pushed),
    FastPath("publish without a plan", sending, "_sent", _edit(
        'if queue.properties.delivery == "topic" and state.fanout == "open":', "if False:",
    ), published),
    FastPath("publish without a plan, by rules", sending, "_sent", _edit(
        'if queue.properties.delivery == "topic" and state.fanout == "open":', "if False:",
    ), published_by_rules),
    FastPath("publish: copies that are alike are said once", publishing, "publish_plainly", _edit(
        "routed = Routed(topic.name, record.time_ms, leaving, copies, alike)",
        "copies += [Copies(name, number, leaving) for name, number in alike.items()]\n"
        "    routed = Routed(topic.name, record.time_ms, leaving, copies)",
    ), published),
    FastPath("publish: all subscriptions at once in a plan", publishing, "publish", _edit(
        "if message.lock or is_much or note is not None or any(hit.amendment for hit in hits):",
        "if True:",
    ), published_to_who_waits),
    FastPath("publish: who has one rule is asked with one call", routing.Router, "_add", _edit(
        "if len(rules) != 1 or rules[0].action:", "if True:",
    ), published_by_rules),
    FastPath("receive: a small queue fits into an answer", receiving, "receive", _edit(
        "if queue.size_bytes > ANSWER_BYTES_MAX and len(messages) > 1:", "if True:",
    ), in_batches),
    FastPath("receive: durations that are not given are not checked", receiving, "receive", _edit(
        "if command.lock_ms or command.bound or command.deadline_ms:", "if True:",
    ), one_by_one),
    FastPath("receive: no notes, none looked up", receiving, "receive", _edit(
        "queue.notes.get if queue.notes else None", "queue.notes.get",
    ), in_batches),
    FastPath("pick: the heads of ready lists", picking, "pick_ready", _edit(
        "if not queue.groups:", "if False:",
    ), in_batches),
    FastPath("complete without a plan", settling, "complete", _edit(
        "        queue is not None\n", "        False\n        and queue is not None\n",
    ), one_by_one),
    FastPath("complete without a plan, in batches", settling, "complete", _edit(
        "        queue is not None\n", "        False\n        and queue is not None\n",
    ), in_batches),
    FastPath("commit: plain sends as one", transactions, "_send_all", _edit(
        "queue is not None and not queue.properties.duplicate_detection and not is_limited(queue)",
        "False",
    ), in_a_transaction),
    FastPath("commit: completed together", transactions, "_completed_together", _edit(
        "if isinstance(asked, Complete):", "if False:",
    ), in_a_transaction),
    FastPath("give up: the first copies", QueueOverlay, "give_up", _edit(
        "for message in self.ready:", "for message in ():",
    ), overflowing),
    FastPath("evolve sent: a run of numbers", _evolve, "_sent", _edit(
        "if scheduled or in_groups:", "if True:",
    ), in_batches),
    FastPath("evolve locked: one timer for all", _evolve, "_locked", (
        ("if grouped:\n            _lock_in_group", "if True:\n            _lock_in_group"),
        ("    if not grouped:", "    if False:"),
    ), in_batches),
    FastPath("evolve locked: from one ready list", _evolve, "_locked", _edit(
        "if grouped or from_deferred or len(queue.ready_lists) > 1:", "if True:",
    ), in_batches),
    FastPath("evolve completed in one loop", _evolve, "_completed", _edit(
        "if record.late or queue.groups or queue.notes or queue.lives:", "if True:",
    ), in_batches),
    FastPath("evolve routed: leave together", _evolve, "_leave", _edit(
        "if len(queue.ready_lists) > 1 or queue.groups or queue.notes or queue.lives:", "if True:",
    ), published_in_batches),
    FastPath("evolve copies: a run of numbers", _evolve, "_copy", _edit(
        "if grouped or len(target.ready_lists) > 1:", "if True:",
    ), published_in_batches_by_rules),
    FastPath("ready list: take a run", ReadyList, "take", _edit(
        "if len(sequences) > 1 and not self._returned and fresh[head:end].tolist() == sequences:",
        "if False:",
    ), in_batches),
    FastPath("ready list: the head of the array", ReadyList, "head", _edit(
        "if self._returned or self._gone:", "if True:",
    ), in_batches),
    FastPath("tokens: the last ones are kept", Tokens, "several", _edit(
        "if first == self._first and count == len(self._last):", "if False:",
    ), in_batches),
    FastPath("tokens: the last hash is kept", Tokens, "_make", _edit(
        "if block != self._block:", "if True:",
    ), one_by_one),
    FastPath("snapshot: plain messages are put in place", snapshot, "_put", _edit(
        "if message.state == ACTIVE and plain:", "if False:",
    ), restored),
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.fastpaths", description="What fast paths save.")
    parser.add_argument("names", nargs="*", help="parts of names; all when none is given")
    options = parser.parse_args()
    for path in PATHS:
        if options.names and not any(name in path.name for name in options.names):
            continue
        ratios = measured(path)
        print(
            f"{path.name}: {median(ratios):.2f} times without it"
            f" ({min(ratios):.2f} to {max(ratios):.2f}, {PAIRS} pairs, {path.prepare.__name__})",
            flush=True,
        )


def measured(path: FastPath) -> list[float]:
    """How many times as long it takes without the path, in each pair."""
    step, ratios = path.prepare(), []
    with without(path):
        twin = path.prepare()
    rounds = _rounds(step)
    gc.disable()
    for _ in range(PAIRS):
        with_it = _seconds(step, rounds)
        with without(path):
            ratios.append(_seconds(twin, rounds) / with_it)
    gc.enable()
    return ratios


def _rounds(step: Step) -> int:
    """So many that they take about 40 ms."""
    _seconds(step, 5)
    return max(1, int(5 * 0.04 / _seconds(step, 5)))


def _seconds(step: Step, rounds: int) -> float:
    start = time.process_time()
    for _ in range(rounds):
        step()
    return time.process_time() - start


if __name__ == "__main__":
    main()
