"""How often others have their turn on the event loop while something is done."""

import asyncio
from typing import Self

from tests.waiting import turn


class Turns:
    """Counts the turns that another task has, from entering to leaving."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Self:
        self._task = asyncio.create_task(self._take())
        return self

    def __exit__(self, *_: object) -> None:
        self._task.cancel()

    async def _take(self) -> None:
        while True:
            self.count += 1
            await turn()
