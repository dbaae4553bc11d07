"""The thread that writes the journal."""

import asyncio
import gc
import threading
import time

import pytest

from posthouse.store.writer_thread import WriterThread


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_it_does_one_thing_after_another_and_tells_what_came_of_it() -> None:
    done: list[int] = []

    def fail() -> None:
        raise OSError("no")

    async def main() -> None:
        writer = WriterThread("writer")
        first, second = writer.do(time.sleep, 0.01), writer.do(done.append, 1)
        failing, last = writer.do(fail), writer.do(len, done)
        assert await last == 1
        assert first.done()
        assert second.done()
        with pytest.raises(OSError, match="no"):
            await failing
        writer.close()

    asyncio.run(main())
    assert "writer" not in names()


def test_what_nobody_waits_for_any_more_is_done_all_the_same() -> None:
    done: list[int] = []

    async def main() -> None:
        writer = WriterThread("writer")
        writer.do(time.sleep, 0.01)
        writer.do(done.append, 1).cancel()
        await writer.do(done.append, 2)
        writer.close()

    asyncio.run(main())
    assert done == [1, 2]


def test_it_goes_on_when_the_loop_is_closed() -> None:
    may = threading.Event()
    done: list[int] = []

    async def main() -> WriterThread:
        writer = WriterThread("writer")
        writer.do(may.wait)
        writer.do(done.append, 1)
        return writer

    writer = asyncio.run(main())
    may.set()
    writer.close()
    assert done == [1]


def test_one_that_is_let_go_of_ends() -> None:
    async def main() -> None:
        await WriterThread("left alone").do(int)

    asyncio.run(main())
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "left alone":
            thread.join(20)
    assert "left alone" not in names()
