"""Waiting for the journal to grow."""

import asyncio


class Tail:
    """The waits for something durable behind a position."""

    def __init__(self) -> None:
        self._waits: list[tuple[int, asyncio.Future[None]]] = []

    def __bool__(self) -> bool:
        return bool(self._waits)

    async def beyond(self, position: int) -> None:
        """Returns when `tell` has named an end beyond the position, or at `release`."""
        grown = asyncio.get_running_loop().create_future()
        self._waits.append((position, grown))
        try:
            await grown
        finally:
            self._waits = [wait for wait in self._waits if wait[1] is not grown]

    def tell(self, end: int) -> None:
        """Wakes the waits that this fulfils: everything below `end` is durable."""
        for position, grown in self._waits:
            if end > position + 1 and not grown.done():
                grown.set_result(None)

    def release(self) -> None:
        """Ends all waits."""
        for _, grown in self._waits:
            if not grown.done():
                grown.set_result(None)
