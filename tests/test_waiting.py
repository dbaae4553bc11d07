"""Tests wait for what they mean; a sleep that is left has its reason beside it."""

import ast
import asyncio
import io
import tokenize
from collections import Counter
from pathlib import Path

import pytest

from tests.waiting import SkippingLoop, idle, turn, until, until_async

TESTS = Path(__file__).parent
MARK = "# slept: "
# How many there may be in a file without a reason. Lower it, never raise it.
CEILINGS = {"fuzz/playing.py": 2, "security/test_connections.py": 1}
SLEEPS = frozenset((("asyncio", "sleep"), ("time", "sleep")))


def dotted(node: ast.expr) -> tuple[str, ...]:
    """The words of `a.b.c`."""
    if isinstance(node, ast.Attribute):
        return (*dotted(node.value), node.attr)
    return (node.id,) if isinstance(node, ast.Name) else ("",)


def is_sleep(call: ast.Call, names: frozenset[str]) -> bool:
    """Also where it is called by its bare name, or is an event that nobody else knows."""
    function = call.func
    if dotted(function) in SLEEPS or (isinstance(function, ast.Name) and function.id in names):
        return True
    return (
        isinstance(function, ast.Attribute)
        and function.attr == "wait"
        and isinstance(function.value, ast.Call)
        and dotted(function.value.func) == ("threading", "Event")
    )


def bare_sleeps(text: str) -> list[int]:
    """The lines of the calls that say nowhere why they sleep."""
    if "sleep" not in text and "Event" not in text:  # most files, and parsing takes long
        return []
    tree = ast.parse(text)
    names = frozenset(
        alias.asname or alias.name
        for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
        for alias in node.names if (node.module, alias.name) in SLEEPS
    )  # fmt: skip
    reasoned = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and len(token.string) > len(MARK) + 5
        and token.string.startswith(MARK)
    }  # fmt: skip
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and is_sleep(node, names)
        and not reasoned & set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    ]  # fmt: skip


def test_no_test_sleeps_without_a_reason() -> None:
    found = {
        str(path.relative_to(TESTS)): lines
        for path in sorted(TESTS.rglob("*.py"))
        if len(lines := bare_sleeps(path.read_text()))
        > CEILINGS.get(str(path.relative_to(TESTS)), 0)
    }
    assert not found, "wait for what is meant (tests/waiting.py), or say why: `# slept: ...`"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("import time\ntime.sleep(1)\n", [2]),
        ("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n", [3]),
        ("from time import sleep as rest\nrest(1)\n", [2]),
        ("import threading\nthreading.Event().wait(1)\n", [2]),
        ("import time\ntime.sleep(1)  # slept: the pace of a slow reader\n", []),
        ("import time\ntime.sleep(\n    1\n)  # slept: the pace of a slow reader\n", []),
        ("import time\ntime.sleep(1)  # slept:\n", [2]),
        ("import time\ntime.sleep(1)  # it waits\n", [2]),
        ("text = 'time.sleep(1)'\n", []),
    ],
)
def test_a_sleep_without_a_reason_is_found(text: str, lines: list[int]) -> None:
    assert bare_sleeps(text) == lines


def test_idle_runs_whatever_can_run_and_waits_for_nobody() -> None:
    async def main() -> None:
        seen: list[int] = []
        gate = asyncio.Event()

        async def work(number: int) -> None:
            for _ in range(number):
                await turn()
            seen.append(number)
            await gate.wait()
            seen.append(-number)

        tasks = [asyncio.create_task(work(number)) for number in (100, 3, 50)]
        await idle()
        assert seen == [3, 50, 100]
        gate.set()
        await idle()
        assert all(each.done() for each in tasks)

    asyncio.run(main())


def test_a_loop_that_never_rests_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.waiting.TURNS_MAX", 50)

    async def spin() -> None:
        while True:
            await turn()

    async def main() -> None:
        spinning = asyncio.create_task(spin())
        with pytest.raises(AssertionError, match="still busy after 50 turns"):
            await idle()
        spinning.cancel()

    asyncio.run(main())


def test_until_gives_what_was_found_and_tells_what_did_not_come() -> None:
    asked: Counter[str] = Counter()

    def third() -> int:
        asked["it"] += 1
        return asked["it"] if asked["it"] >= 3 else 0

    async def fifth() -> int:
        asked["it"] += 1
        return asked["it"] if asked["it"] >= 5 else 0

    assert until(third, "it is asked thrice") == 3
    assert asyncio.run(until_async(fifth, "it is asked five times")) == 5
    with pytest.raises(AssertionError, match="that pigs fly"):
        until(lambda: False, "pigs fly", 0.02)
    with pytest.raises(AssertionError, match="that pigs fly"):
        asyncio.run(until_async(lambda: False, "pigs fly", 0.02))


def test_a_skipping_loop_s_timers_are_due_when_its_time_has_come() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SkippingLoop)
        due: list[str] = []
        loop.call_later(3_600, due.append, "an hour")
        await idle()
        assert not due
        loop.skip(3_601)
        await idle()
        assert due == ["an hour"]

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(main())
