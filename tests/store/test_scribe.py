"""The thread that writes the journal."""

import asyncio
import gc
import threading
import time

import pytest

from posthouse.store.scribe import Scribe


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_it_does_one_thing_after_another_and_tells_what_came_of_it() -> None:
    done: list[int] = []

    def fail() -> None:
        raise OSError("no")

    async def main() -> None:
        scribe = Scribe("scribe")
        first, second = scribe.do(time.sleep, 0.01), scribe.do(done.append, 1)
        failing, last = scribe.do(fail), scribe.do(len, done)
        assert await last == 1
        assert first.done()
        assert second.done()
        with pytest.raises(OSError, match="no"):
            await failing
        scribe.close()

    asyncio.run(main())
    assert "scribe" not in names()


def test_what_nobody_waits_for_any_more_is_done_all_the_same() -> None:
    done: list[int] = []

    async def main() -> None:
        scribe = Scribe("scribe")
        scribe.do(time.sleep, 0.01)
        scribe.do(done.append, 1).cancel()
        await scribe.do(done.append, 2)
        scribe.close()

    asyncio.run(main())
    assert done == [1, 2]


def test_it_goes_on_when_the_loop_is_closed() -> None:
    may = threading.Event()
    done: list[int] = []

    async def main() -> Scribe:
        scribe = Scribe("scribe")
        scribe.do(may.wait)
        scribe.do(done.append, 1)
        return scribe

    scribe = asyncio.run(main())
    may.set()
    scribe.close()
    assert done == [1]


def test_one_that_is_let_go_of_ends() -> None:
    async def main() -> None:
        await Scribe("left alone").do(int)

    asyncio.run(main())
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "left alone":
            thread.join(20)
    assert "left alone" not in names()
