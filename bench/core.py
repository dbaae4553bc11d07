"""What the core costs, each figure as a ratio to something run beside it or to its goal.

python -m bench.core            everything
python -m bench.core speed      one part of it: speed, backlog, memory
python -m bench.core --json     for programs
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from posthouse.core import State, decide, evolve
from posthouse.core.commands import (
    AcceptSession,
    Command,
    Complete,
    CreateQueue,
    Receive,
    ReleaseSession,
    Send,
    Start,
    Tick,
)
from posthouse.core.message import Envelope, Message, NewMessage, Properties, encode_envelope
from posthouse.core.model import Order, QueueProperties
from posthouse.core.records import Completed, Locked, Sent, encode, is_kept, span

MILLION = 1_000_000


class Result(NamedTuple):
    """A figure, what it is compared with, and the most that the ratio of the two may be."""

    what: str
    value: float
    beside: float
    unit: str
    goal: float

    def __str__(self) -> str:
        ratio = self.value / self.beside
        verdict = "reached" if ratio <= self.goal else "MISSED"
        return (
            f"{self.what}:\n    {self.value:.2f} against {self.beside:.2f} {self.unit},"
            f" ratio {ratio:.2f}; goal {self.goal:g} {verdict}"
        )


class Core:
    """Runs commands as the engine will: decide, evolve, encode what is kept."""

    def __init__(self, properties: QueueProperties | None = None) -> None:
        self.state = State("bench")
        self.position = 1
        self.run(Start(1, 1), 0)
        self.run(CreateQueue("q", properties or QueueProperties()), 0)

    def run(self, command: Command, now_ms: int) -> Any:
        outcome = decide(self.state, command, now_ms)
        for record in outcome.records:
            evolve(self.state, record, self.position)
            if is_kept(record):
                self.position += span(record)
                encode(record)
        return outcome.answer


def a_message(number: int = 0) -> NewMessage:
    """1 KiB, an id of 32 characters and two properties."""
    properties: Properties = {"tenant": "acme", "region": "eu-west"}
    envelope = encode_envelope(Envelope(id=f"{number:032x}", properties=properties))
    return NewMessage(envelope, bytes(bytearray(1024)))


def a_small_message(group: str | None = None, priority: int = 4, due_ms: int = 0) -> NewMessage:
    return NewMessage(b"\x80", b"", group=group, priority=priority, due_ms=due_ms)


def best_us(runs: int, *works: tuple[Callable[[], None], int]) -> list[float]:
    """Microseconds per message of each work, the best of `runs`, run in turn."""
    best = [float("inf")] * len(works)
    for _ in range(runs):
        for at, (work, messages) in enumerate(works):
            start = time.perf_counter()
            work()
            best[at] = min(best[at], (time.perf_counter() - start) / messages * 1e6)
    return best


# The cost of a message.


def bare_loop(batch: int, rounds: int) -> None:
    """The same deque, dict and msgspec work as send, receive and complete, with no logic at all."""
    ready: deque[int] = deque()
    messages: dict[int, Message] = {}
    locks: dict[int, Message] = {}
    sequence = token = 1
    message = a_message()
    for now_ms in range(rounds):
        sent = [message] * batch
        first = sequence
        for new in sent:
            messages[sequence] = Message(
                sequence, sequence, new.envelope, None, new.body, 4, None, now_ms, 0, 0, 0, 0
            )
            ready.append(sequence)
            sequence += 1
        encode(Sent("q", now_ms, first, 0, sent))
        first, sequences, tokens = token, [], []
        for _ in range(batch):
            taken = ready.popleft()
            locks[token] = messages[taken]
            sequences.append(taken)
            tokens.append(token)
            token += 1
        encode(Locked("q", now_ms, sequences, first, now_ms))
        completed = []
        for each in tokens:
            done = locks.pop(each)
            del messages[done.sequence]
            completed.append(done.sequence)
        encode(Completed("q", completed))


def core_loop(batch: int, rounds: int) -> None:
    core = Core()
    message = a_message()
    for now_ms in range(rounds):
        core.run(Send("q", [message] * batch), now_ms)
        received = core.run(Receive("q", 1, batch), now_ms)
        core.run(Complete("q", [d.token for d in received.deliveries]), now_ms)


def speed() -> list[Result]:
    results = []
    for name, batch, rounds, goal in (
        ("in batches of 100", 100, 30, 8.0),
        ("one by one", 1, 1_500, 10.0),
    ):
        bare, core = best_us(
            60,
            (partial(bare_loop, batch, rounds), batch * rounds),
            (partial(core_loop, batch, rounds), batch * rounds),
        )
        what = f"send + receive + complete of 1 KiB {name}, against a bare loop"
        results.append(Result(what, core, bare, "us a message", goal))
    return results


# The cost of an operation when there is much of something. Each of these prepares a world with n of
# it, and returns one step of steady work there.


def standing_messages(n: int, order: Order = "arrival") -> Callable[[], None]:
    core = Core(QueueProperties(order=order))
    for _ in range(0, n, 1_000):
        core.run(Send("q", [a_small_message(priority=at % 10) for at in range(1_000)]), 0)

    def step() -> None:
        core.run(Send("q", [a_small_message(priority=5)]), 0)
        received = core.run(Receive("q", 1), 0)
        core.run(Complete("q", [received.deliveries[0].token]), 0)

    return step


def standing_sessions(n: int) -> Callable[[], None]:
    core = Core(QueueProperties(grouping="session"))
    for at in range(n):
        core.run(Send("q", [a_small_message(group=f"session {at}")]), 0)

    def step() -> None:
        granted = core.run(AcceptSession("q", 1), 0)
        received = core.run(Receive("q", 2, session=granted.token), 0)
        core.run(Send("q", [a_small_message(group=granted.session)]), 0)
        core.run(Complete("q", [received.deliveries[0].token]), 0)
        core.run(ReleaseSession("q", granted.token), 0)

    return step


def standing_runs(n: int) -> Callable[[], None]:
    """Ten messages a group; a step receives ten, settles them, and sends as many again."""
    core = Core(QueueProperties(grouping="run"))
    groups = n // 10
    for first in range(0, n, 1_000):
        new = [a_small_message(f"group {at % groups}") for at in range(first, first + 1_000)]
        core.run(Send("q", new), 0)

    def step() -> None:
        received = core.run(Receive("q", 1, 10), 0)
        core.run(Complete("q", [each.token for each in received.deliveries]), 0)
        core.run(
            Send("q", [a_small_message(each.message.group) for each in received.deliveries]), 0
        )

    return step


def standing_locks(n: int) -> Callable[[], None]:
    core = Core()
    now_ms = 0
    held: deque[int] = deque()

    def receive() -> None:
        nonlocal now_ms
        now_ms += 1
        core.run(Send("q", [a_small_message()]), now_ms)
        held.append(core.run(Receive("q", 1, lock_ms=1_000_000), now_ms).deliveries[0].token)

    for _ in range(n):
        receive()

    def step() -> None:
        receive()
        core.run(Complete("q", [held.popleft()]), now_ms)

    return step


def standing_schedule(n: int) -> Callable[[], None]:
    core = Core()
    now_ms = 0
    for at in range(n):
        core.run(Send("q", [a_small_message(due_ms=at + 1)]), now_ms)

    def step() -> None:
        nonlocal now_ms
        now_ms += 1
        core.run(Tick(), now_ms)
        core.run(Send("q", [a_small_message(due_ms=now_ms + n)]), now_ms)
        received = core.run(Receive("q", 1), now_ms)
        core.run(Complete("q", [received.deliveries[0].token]), now_ms)

    return step


def repeat(step: Callable[[], None], times: int) -> None:
    for _ in range(times):
        step()


def backlog() -> list[Result]:
    results = []
    cases: list[tuple[str, Callable[[int], Callable[[], None]], int]] = [
        ("messages queued", standing_messages, MILLION),
        ("messages queued by priority", partial(standing_messages, order="priority"), MILLION),
        ("messages queued in groups that give runs", standing_runs, MILLION),
        ("sessions", standing_sessions, 100_000),
        ("outstanding locks", standing_locks, 100_000),
        ("scheduled messages", standing_schedule, 100_000),
    ]
    steps = 2_000
    for name, prepare, many in cases:
        works = [(partial(repeat, prepare(n), steps), steps) for n in (1_000, many)]
        few, much = best_us(9, *works)
        what = f"a step of steady work at {many:,} {name}, against 1,000"
        results.append(Result(what, much, few, "us a step", 1.5))
    return results


# Memory, and what the garbage collector makes of it.


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


class Stopwatch:
    """Times every garbage collection."""

    def __init__(self) -> None:
        self.pauses_ms: list[float] = []
        self.start = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self.start = time.perf_counter()
        else:
            self.pauses_ms.append((time.perf_counter() - self.start) * 1e3)


def hold(what: str) -> None:
    """In a process of its own: a million bodies, alone or queued; prints what they took."""
    core = Core()
    watch = Stopwatch()
    before = resident_bytes()
    if what == "bodies":
        held = [bytes(bytearray(1024)) for _ in range(MILLION)]
        after = resident_bytes() - sys.getsizeof(held)
    else:
        gc.callbacks.append(watch)
        for first in range(0, MILLION, 100):
            core.run(Send("q", [a_message(at) for at in range(first, first + 100)]), first)
        after = resident_bytes()
        for now_ms in range(MILLION, MILLION + 20_000):  # so that collections happen as they would
            core.run(Send("q", [a_message(now_ms)]), now_ms)
            received = core.run(Receive("q", 1), now_ms)
            core.run(Complete("q", [received.deliveries[0].token]), now_ms)
        for _ in range(5):
            gc.collect()
    print(
        json.dumps(
            {"bytes": (after - before) / MILLION, "pause_ms": max(watch.pauses_ms, default=0)}
        )
    )


def memory() -> list[Result]:
    taken = {}
    for what in ("bodies", "queue"):
        command = [sys.executable, "-m", "bench.core", "--hold", what]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        taken[what] = json.loads(done.stdout)
    beyond = taken["queue"]["bytes"] - taken["bodies"]["bytes"]
    pause_ms = taken["queue"]["pause_ms"]
    return [
        Result("a queued 1 KiB message with two properties beyond its body", beyond, 350, "B", 1),
        Result("the longest garbage collection at a million messages", pause_ms, 30, "ms", 1),
    ]


PARTS = {"speed": speed, "backlog": backlog, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.core", description="What the core costs.")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all when none is named")
    parser.add_argument("--json", action="store_true", help="one line of JSON a figure")
    parser.add_argument("--hold", choices=("bodies", "queue"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hold:
        hold(options.hold)
        return
    for part in options.parts or PARTS:
        for result in PARTS[part]():
            print(json.dumps(result._asdict()) if options.json else result, flush=True)


if __name__ == "__main__":
    main()
