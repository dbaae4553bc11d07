"""Work that a thread without a loop has done on the loop of another thread."""

import asyncio
import signal
import threading
from concurrent.futures import CancelledError
from contextvars import ContextVar

import pytest

from posthouse.client.loop_thread import LoopThread
from tests.waiting import PATIENCE_SECONDS

CALLER: ContextVar[str] = ContextVar("CALLER", default="nobody")


@pytest.fixture(scope="module")
def thread() -> LoopThread:
    return LoopThread()


def test_the_result_comes_back(thread: LoopThread) -> None:
    async def work() -> int:
        assert threading.current_thread().name == "posthouse-client"
        await asyncio.sleep(0)  # slept: a turn of the loop, no time
        return 7

    assert [thread.run(work()) for _ in range(3)] == [7, 7, 7]


def test_an_error_comes_back_as_it_is(thread: LoopThread) -> None:
    async def work() -> None:
        raise LookupError("missing")

    with pytest.raises(LookupError, match="missing"):
        thread.run(work())


def test_work_sees_the_context_of_its_caller(thread: LoopThread) -> None:
    async def work() -> str:
        return CALLER.get()

    token = CALLER.set("ann")
    try:
        assert thread.run(work()) == "ann"
    finally:
        CALLER.reset(token)


def test_work_that_is_cancelled_says_so(thread: LoopThread) -> None:
    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)  # slept: a turn of the loop, no time

    with pytest.raises(CancelledError):
        thread.run(work())


def test_who_is_interrupted_does_not_leave_the_work_running(thread: LoopThread) -> None:
    caller, ended = threading.get_ident(), threading.Event()

    async def work() -> None:
        try:
            while True:  # a signal that comes before the caller waits is not noticed by it
                signal.pthread_kill(caller, signal.SIGUSR1)
                await asyncio.sleep(0.01)  # slept: between two signals
        finally:
            ended.set()

    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(Interrupted):
            thread.run(work())
        assert ended.wait(PATIENCE_SECONDS)
    finally:
        signal.signal(signal.SIGUSR1, before)
