"""When a connection is read from, whatever its dialect."""

import asyncio
from typing import Any, cast

import pytest

from posthouse.dialects.backpressure import Backpressure
from tests.dialects.rig import Transport
from tests.waiting import turn


def a_backpressure(turns: list[str] | None = None) -> Backpressure:
    """Of a connection with at most 3 commands under way, and 100 bytes unanswered."""
    made = Backpressure(
        lambda: None if turns is None else turns.append("turn"), commands_max=3, bytes_max=100
    )
    made.transport = cast(asyncio.Transport, cast(Any, Transport()))
    return made


def test_commands_under_way_stop_reading_at_their_limit() -> None:
    pressure = a_backpressure()
    for _ in range(2):
        pressure.command_begun()
        assert pressure.transport.is_reading()
    pressure.command_begun()
    assert not pressure.transport.is_reading()
    pressure.command_done()
    assert pressure.transport.is_reading()


def test_unanswered_bytes_stop_reading_at_their_limit() -> None:
    pressure = a_backpressure()
    pressure.count_unanswered(99)
    assert pressure.transport.is_reading()
    pressure.count_unanswered(1)
    assert not pressure.transport.is_reading()
    pressure.count_unanswered(-1)
    assert pressure.transport.is_reading()


@pytest.mark.parametrize("other", ["pause", "hold", "bytes", "turn"])
def test_it_is_not_read_from_before_the_last_reason_is_gone(other: str) -> None:
    async def work() -> None:
        pressure = a_backpressure()
        begin, end = {
            "pause": (pressure.pause, pressure.resume),
            "hold": (pressure.hold, pressure.release),
            "bytes": (
                lambda: pressure.count_unanswered(100),
                lambda: pressure.count_unanswered(-100),
            ),
            "turn": (
                lambda: pressure.end_turn(is_behind=True),
                lambda: pressure.end_turn(is_behind=False),
            ),
        }[other]
        for _ in range(3):
            pressure.command_begun()
        begin()
        for _ in range(3):
            pressure.command_done()
        assert not pressure.transport.is_reading()
        end()
        assert pressure.transport.is_reading()

    asyncio.run(work())


def test_what_has_come_from_who_does_not_read_is_looked_at_when_he_does() -> None:
    async def work() -> None:
        turns: list[str] = []
        pressure = a_backpressure(turns)
        pressure.pause()
        assert not pressure.may_look
        pressure.end_turn(is_behind=True)
        await turn()
        assert not turns  # who does not read has no turn
        pressure.resume()
        await turn()
        assert turns == ["turn"]
        assert not pressure.transport.is_reading()  # frames are left
        pressure.end_turn(is_behind=False)
        assert pressure.transport.is_reading()

    asyncio.run(work())


def test_a_transport_that_closes_is_left_alone() -> None:
    pressure = a_backpressure()
    pressure.transport.close()
    pressure.hold()
    assert pressure.transport.is_reading()
