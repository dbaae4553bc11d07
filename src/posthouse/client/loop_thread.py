"""The loop that a client runs on, whichever thread or loop it is called from."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """A loop that is there, or one in a thread of its own, begun when it is first needed."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._lock = threading.Lock()
        self._loop = loop

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = _new_loop()
                thread = threading.Thread(
                    target=self._loop.run_forever, name="posthouse-client", daemon=True
                )
                thread.start()
            return self._loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs the work on the loop and waits for it, from a thread without this loop."""
        running: Future[T] = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()  # who is interrupted does not leave it running
            raise

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs the work on the loop, called from any loop."""
        if asyncio.get_running_loop() is self.loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))


def _new_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop's where that is installed: an operation takes less of the CPU."""
    try:
        import uvloop
    except ImportError:  # it is not made for every system
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


SHARED = LoopThread()  # of all clients of the process that have no loop of their own
