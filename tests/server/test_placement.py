"""Where the stream's leader is to be, as far as that needs no server."""

import asyncio
from typing import Any

import pytest

from posthouse.server.placement import Placement, better_server
from posthouse.store.log import Unanswered


def an_info(leader: str, *replicas: tuple[str, bool, int]) -> dict[str, Any]:
    found = [{"name": name, "current": current, "lag": lag} for name, current, lag in replicas]
    return {"cluster": {"leader": leader, "replicas": found}}


@pytest.mark.parametrize(
    ("info", "to"),
    [
        (an_info("n1", ("n3", True, 0), ("n2", True, 0)), "n2"),
        (an_info("n1", ("n2", True, 9), ("n3", True, 0)), "n3"),
        (an_info("n2", ("n1", True, 0), ("n3", True, 0)), None),  # well as it is
        (an_info("n1", ("n2", True, 0), ("n3", False, 0)), None),  # two of them are not enough
        (an_info("n1"), None),  # one replica
        ({}, None),
        ({"cluster": {"leader": "n1", "replicas": None}}, None),
    ],
)
def test_the_stream_is_led_elsewhere_if_three_replicas_are_current(
    info: dict[str, Any], to: str | None
) -> None:
    assert better_server(info, "n1") == to


class Stream:
    """Moves when it is told to, unless it is stuck."""

    def __init__(self, *, is_stuck: bool = False, is_down: bool = False) -> None:
        self.leader = "n1"
        self.moves: list[str] = []
        self._is_stuck, self._is_down = is_stuck, is_down

    async def info(self) -> dict[str, Any]:
        if self._is_down:
            raise Unanswered("no")
        others = [(name, True, 0) for name in ("n1", "n2", "n3") if name != self.leader]
        return an_info(self.leader, *others)

    async def place(self, server: str) -> None:
        self.moves.append(server)
        if not self._is_stuck:
            self.leader = server


@pytest.mark.parametrize(
    ("stream", "own", "well", "moves"),
    [
        (Stream(), "n1", True, ["n2"]),
        (Stream(), "n2", True, []),
        (Stream(), "", True, []),  # connected to a server of another machine
        (Stream(is_stuck=True), "n1", False, ["n2"]),  # one move a look
        (Stream(is_down=True), "n1", False, []),
    ],
)
def test_a_look_moves_it_once_and_tells_whether_all_is_well(
    stream: Stream, own: str, well: bool, moves: list[str]
) -> None:
    placement = Placement(stream, lambda: own)
    assert asyncio.run(placement.look()) is well
    assert stream.moves == moves
