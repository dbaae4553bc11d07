import asyncio
from collections.abc import Callable, Sequence

from posthouse.broker.slices import SLICE_STEPS, sliced
from tests.turns import Turns


async def slices(items: Sequence[int], steps: Callable[[int], int] = lambda _: 1) -> list[int]:
    """The lengths of the slices, of which the items are seen to be in their order."""
    found = [list(some) async for some in sliced(items, steps)]
    assert [item for some in found for item in some] == list(items)
    return [len(some) for some in found]


def test_items_come_in_slices_of_a_bounded_number_of_steps() -> None:
    half = SLICE_STEPS // 2
    assert asyncio.run(slices(range(2 * SLICE_STEPS + 1))) == [SLICE_STEPS, SLICE_STEPS, 1]
    assert asyncio.run(slices(range(5), lambda _: half)) == [2, 2, 1]
    assert asyncio.run(slices(range(3), lambda n: SLICE_STEPS + n)) == [1, 1, 1]


def test_an_empty_sequence_is_one_empty_slice() -> None:
    assert asyncio.run(slices([])) == [0]


def test_others_have_a_turn_between_two_slices() -> None:
    async def main() -> None:
        with Turns() as turns:
            await slices(range(10 * SLICE_STEPS))
        assert turns.count >= 9

    asyncio.run(main())
