"""Programs that are kept running: what happens when one ends, and when they are told to stop."""

import signal
import sys
import time
from pathlib import Path

from posthouse.cli.children import Child, Program, clean_environment
from tests.waiting import until

SLEEPER = "import time; print('here', flush=True); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER


def program(code: str, output: Path, stop_seconds: float = 10.0) -> Program:
    return Program("one", (sys.executable, "-c", code), clean_environment(), stop_seconds, output)


def started(child: Child) -> int:
    assert not child.look(time.monotonic())
    assert child.pid is not None
    return child.pid


def test_a_program_that_is_killed_is_started_again_after_a_while(tmp_path: Path) -> None:
    child = Child(program(SLEEPER, tmp_path / "log"), (5.0, 20.0))
    try:
        first = started(child)
        for pause in (5.0, 20.0, 20.0):
            now = time.monotonic()
            assert child._process is not None
            child._process.send_signal(signal.SIGKILL)
            until(lambda at=now: child.look(at), "its end is seen")  # type: ignore[misc]
            assert (child.pid, child.code) == (None, -9)
            assert not child.look(now + pause - 0.1)
            assert child.pid is None
            assert not child.look(now + pause)
            assert child.pid not in (None, first)
    finally:
        child.kill()


def test_one_that_has_run_well_is_started_again_soon(tmp_path: Path) -> None:
    child = Child(program("", tmp_path / "log"), (1.0, 30.0))
    begun = time.monotonic()
    for now in (begun, begun + 62, begun + 124):
        child.look(now)
        until(lambda at=now: child.look(at + 61), "it has ended by itself")  # type: ignore[misc]
        assert child.due == now + 62


def test_one_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    child = Child(program(STUBBORN, tmp_path / "log"))
    started(child)
    until(lambda: "here" in (tmp_path / "log").read_text(), "it runs")
    assert child.stop(0.2) == -signal.SIGKILL
    assert child.pid is None


def test_one_that_stops_tells_its_code(tmp_path: Path) -> None:
    child = Child(program(SLEEPER, tmp_path / "log"))
    assert child.stop() is None  # it was never started
    started(child)
    assert child.stop() == -signal.SIGTERM
