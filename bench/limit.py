"""This machine's limit: messages appended to a file and synced in groups before they are answered.

Length-prefixed, with a dedicated thread for writing and syncing, and no broker logic at all. What
the engine does is measured against it, in the same run:

    python -m bench.limit            the limit alone
    python -m bench.engine           the engine beside it
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

BODY = bytes(1024)
FILE_BYTES = 512 << 20


class Limit:
    """Appends and syncs. One batch gathers while the other is being synced."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
        os.posix_fallocate(self._file, 0, FILE_BYTES)
        self._offset = 0
        self._pending: list[tuple[list[bytes], asyncio.Future[None]]] = []
        self._thread = ThreadPoolExecutor(1)
        self._work: asyncio.Task[None] | None = None

    async def send(self, messages: list[bytes]) -> None:
        loop = asyncio.get_running_loop()
        answered = loop.create_future()
        self._pending.append((messages, answered))
        if self._work is None:
            self._work = loop.create_task(self._run())
        await answered

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._pending:
            batch, self._pending = self._pending, []
            parts = []
            for messages, _ in batch:
                for message in messages:
                    parts += [len(message).to_bytes(4, "big"), message]
            await loop.run_in_executor(self._thread, self._write, b"".join(parts))
            for _, answered in batch:
                answered.set_result(None)
        self._work = None

    def _write(self, data: bytes) -> None:
        if self._offset + len(data) > FILE_BYTES:
            self._offset = 0
        os.pwrite(self._file, data, self._offset)
        os.fdatasync(self._file)
        self._offset += len(data)

    def close(self) -> None:
        self._thread.shutdown()
        os.close(self._file)


async def rate(send: Callable[[], Awaitable[None]], messages: int, outstanding: int) -> float:
    """Messages a second, with so many sends of so many messages outstanding, for about a second."""
    end = time.perf_counter() + 1
    done = 0

    async def sender() -> None:
        nonlocal done
        while time.perf_counter() < end:
            await send()
            done += messages

    start = time.perf_counter()
    await asyncio.gather(*(sender() for _ in range(outstanding)))
    return done / (time.perf_counter() - start)


CASES = ((100, 8), (1, 256))  # messages in a send, sends outstanding


async def limit_rates(folder: Path) -> list[float]:
    limit = Limit(folder / "limit")
    rates = []
    for messages, outstanding in CASES:
        work = [BODY] * messages
        rates.append(await rate(partial(limit.send, work), messages, outstanding))
    limit.close()
    return rates


def main() -> None:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for (messages, outstanding), found in zip(
            CASES, asyncio.run(limit_rates(Path(folder))), strict=True
        ):
            print(
                f"{messages} in a send, {outstanding} outstanding: {found:,.0f} messages a second"
            )


if __name__ == "__main__":
    main()
