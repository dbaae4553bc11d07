"""Copies that wait for room, in histories that chance writes."""

import random
from itertools import pairwise

import pytest

from posthouse.core.commands import SetFanout
from posthouse.core.model import Fanout
from tests.core.sound import sound
from tests.core.test_fanout_limited import settle_down, take
from tests.core.world import World

pytestmark = pytest.mark.untraced


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_everything_arrives_once_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    world = World()
    topics = [world.topic(f"t{n}") for n in range(4)]
    ends: list[str] = []
    ways = dict.fromkeys(topics, 0) | {topics[0]: 1}  # on which a message comes somewhere
    for at, topic in enumerate(topics):
        for n in range(chance.randint(1, 5)):
            later = topics[at + 1 :]
            if later and chance.random() < 0.6:
                to = chance.choice(later)
                world.subscribe(topic, f"s{n}", forward_to=to)
                ways[to] += ways[topic]
            else:
                ends.append(world.subscribe(topic, f"s{n}"))
                ways[ends[-1]] = ways[topic]
    got: dict[str, list[str]] = {end: [] for end in ends}
    sent = 0
    for _ in range(150):
        what = chance.random()
        if what < 0.3:
            count = chance.randint(1, 30)
            world.send(topics[0], *(str(sent + n) for n in range(count)))
            sent += count
        elif what < 0.5:
            world.do(SetFanout(chance.choice(("open", "limited", "stopped"))))
        elif what < 0.8 and ends:
            end = chance.choice(ends)
            got[end] += take(world, end, chance.randint(1, 40))
        elif what < 0.85:
            sound(world)
            world = world.restarted(epoch=world.state.era // (1 << 96) + 1)
        else:
            world.tick()
    fanout: Fanout = chance.choice(("open", "limited"))
    world.do(SetFanout(fanout))
    settle_down(world)
    more = True
    while more:
        more = False
        for end in ends:
            taken = take(world, end, 1_000)
            got[end] += taken
            more = more or bool(taken)
    for end in ends:
        assert sorted(map(int, got[end])) == [n for n in range(sent) for _ in range(ways[end])]
        if ways[end] == 1:
            assert all(int(a) < int(b) for a, b in pairwise(got[end]))
    assert not world.state.dispatch_pending
    sound(world)
