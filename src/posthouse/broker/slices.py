"""Slices of long work: between two of them others have their turn on the event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

SLICE_STEPS = 200

T = TypeVar("T")


async def sliced(
    items: Sequence[T], steps: Callable[[T], int] = lambda _: 1
) -> AsyncIterator[Sequence[T]]:
    """Yields the items in slices of at most `SLICE_STEPS`; `steps` tells how much one item costs.

    An item that alone costs more is a slice of its own. No items are one empty slice.
    """
    begin = used = 0
    for at, item in enumerate(items):
        cost = steps(item)
        if at > begin and used + cost > SLICE_STEPS:
            yield items[begin:at]
            await asyncio.sleep(0)
            begin, used = at, 0
        used += cost
    yield items[begin:]
