"""Lock tokens: nobody guesses one, and each is one lock's alone."""

import pytest

from posthouse.core.commands import Complete, Start
from posthouse.core.errors import InvalidArgument, LockLost
from posthouse.core.tokens import KEY_BYTES, Tokens
from tests.core.world import KEY, World, a_message

LOW = (1 << 64) - 1


def test_a_token_does_not_depend_on_how_many_are_made_at_once() -> None:
    one_by_one = [Tokens(0, KEY, 3).one(number) for number in range(1, 60)]
    again = Tokens(0, KEY, 3)
    assert [again.one(number) for number in range(1, 60)] == one_by_one
    for first in range(1, 20):
        for count in (1, 2, 7, 8, 9, 30):
            several = list(Tokens(0, KEY, 3).several(first, count))
            assert several == one_by_one[first - 1 : first - 1 + count]


def test_the_lower_half_is_the_lock_number_and_the_upper_half_is_new_each_time() -> None:
    tokens = Tokens(0, KEY, 3).several(1, 1_000)
    assert [token & LOW for token in tokens] == list(range(1, 1_001))
    assert len({token >> 64 for token in tokens}) == 1_000


def test_tokens_of_another_start_or_namespace_are_others() -> None:
    mine = {token >> 64 for token in Tokens(0, KEY, 3).several(1, 100)}
    assert mine.isdisjoint(token >> 64 for token in Tokens(0, KEY[::-1], 3).several(1, 100))
    assert mine.isdisjoint(token >> 64 for token in Tokens(0, KEY, 4).several(1, 100))


def test_without_a_key_tokens_count_up_as_in_old_journals() -> None:
    assert list(Tokens(5 << 64, b"", 3).several(1, 3)) == [(5 << 64) + n for n in (1, 2, 3)]


def test_what_follows_a_token_that_was_seen_settles_nothing() -> None:
    """Who has one lock knows the number of the next, which another has, and no more."""
    world = World()
    world.queue("orders")
    world.send("orders", a_message("mine"), a_message("another's"))
    mine, others = world.receive("orders", 2)
    guesses = [mine.token + 1, others.token & LOW, world.state.era + 2, mine.token ^ 3]
    for guess in guesses:
        with pytest.raises(LockLost):
            world.do(Complete("orders", [guess]))
    world.do(Complete("orders", [others.token]))


def test_a_key_is_no_longer_than_it_may_be() -> None:
    world = World()
    with pytest.raises(InvalidArgument):
        world.do(Start(9, 0, bytes(KEY_BYTES + 1)))
