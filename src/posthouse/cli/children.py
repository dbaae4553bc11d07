"""Programs that are started, watched, started again when they end, and stopped in order.

Each has a process group of its own, so a Ctrl-C reaches only who started them. The end of one
leaves the others alone. Where Linux can, they are told to stop when their parent is killed.
"""

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

BACK_OFF_SECONDS = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)  # before each start, where ends follow quickly
WELL_SECONDS = 60.0  # after which a program that ends has run well
KILL_SECONDS = 10.0  # beside what it may take itself, before one that does not stop is killed
_PARENT_DIED = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Program:
    """A program to run, and how it is stopped."""

    name: str
    words: Sequence[str]
    environment: Mapping[str, str]
    stop_seconds: float = 10.0
    output: Path | None = None  # where both of its outputs go; with this process's errors, if None


class Child:
    """A program that is to run."""

    def __init__(self, program: Program, back_off: Sequence[float] = BACK_OFF_SECONDS) -> None:
        self.program = program
        self._back_off = back_off
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._due = 0.0  # when it is to be started
        self._ends = 0  # in a row, soon after a start
        self.code: int | None = None  # of its last end

    @property
    def pid(self) -> int | None:
        """The process's number; None while it does not run."""
        return None if self._process is None else self._process.pid

    @property
    def due(self) -> float | None:
        """When something is to be done with it; None while it runs."""
        return self._due if self._process is None else None

    def look(self, now: float) -> bool:
        """Starts it when it is time; whether it has just ended. Raises OSError."""
        process = self._process
        if process is None:
            if now >= self._due:
                self._start(now)
            return False
        code = process.poll()
        if code is None:
            return False
        self._process, self.code = None, code
        self._ends = 1 if now - self._started > WELL_SECONDS else self._ends + 1
        self._due = now + self._back_off[min(self._ends, len(self._back_off)) - 1]
        return True

    @property
    def seconds_to_start(self) -> float:
        """How long it waits before its next start."""
        return max(0.0, self._due - time.monotonic())

    def _start(self, now: float) -> None:
        program = self.program
        with ExitStack() as stack:
            output = sys.stderr.fileno()
            if program.output is not None:
                output = stack.enter_context(program.output.open("ab")).fileno()
            self._process = subprocess.Popen(  # noqa: S603 (a program of ours, without a shell)
                list(program.words), env=dict(program.environment), stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True, preexec_fn=_until_parent_dies,
            )  # fmt: skip
        self._started = now

    def stop(self, seconds: float | None = None) -> int | None:
        """Stops it with SIGTERM, or in the end by force; returns its code."""
        process = self._process
        if process is None:
            return self.code
        with suppress(ProcessLookupError):
            process.terminate()
        patience = self.program.stop_seconds + KILL_SECONDS if seconds is None else seconds
        try:
            self.code = process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            self.code = process.wait()
        self._process = None
        return self.code

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self.code = self._process.wait()
            self._process = None


def _prctl() -> "ctypes._NamedFuncPointer | None":
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return None


_prctl_of_c = _prctl()  # looked up here: between fork and exec nothing may be imported


def _until_parent_dies() -> None:
    if _prctl_of_c is not None:
        _prctl_of_c(_PARENT_DIED, signal.SIGTERM, 0, 0, 0)


class Signals:
    """SIGTERM and SIGINT as a flag, and a wait that they, and the end of a child, cut short."""

    def __init__(self) -> None:
        self.stopped_by: signal.Signals | None = None
        self._heard, self._wakes = socket.socketpair()

    def __enter__(self) -> "Signals":
        for end in (self._heard, self._wakes):
            end.setblocking(False)
        self._waker = signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        self._before = {
            number: signal.signal(number, self._note)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._waker)
        self._heard.close()
        self._wakes.close()

    def _note(self, number: int, _: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            if self.stopped_by is not None:  # the second time it is meant at once
                raise KeyboardInterrupt
            self.stopped_by = signal.Signals(number)

    def wait(self, seconds: float) -> None:
        """Waits so long, or until there is a signal."""
        if self.stopped_by is None:
            select.select([self._heard], [], [], max(0.0, seconds))
            with suppress(BlockingIOError):
                self._heard.recv(4_096)


def clean_environment(*but: str) -> dict[str, str]:
    """The environment, without what is meant for this process alone."""
    return {name: text for name, text in os.environ.items() if name not in but}
