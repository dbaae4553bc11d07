"""Wildcard patterns and the trie that finds them."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.core.filters.patterns import Style, Trie, check_pattern
from posthouse.core.filters.problems import SyntaxProblem


def matches(pattern: str, style: Style, subject: str) -> bool:
    trie: Trie[int] = Trie()
    trie.add(pattern, style, 1)
    return trie.match(subject) == [1]


def plainly_matches(pattern: Sequence[str], style: Style, levels: Sequence[str]) -> bool:
    if not pattern:
        return not levels
    head, rest = pattern[0], pattern[1:]
    if head == "#" and style == "amqp":
        return any(plainly_matches(rest, style, levels[at:]) for at in range(len(levels) + 1))
    if head == ">" and style == "nats":
        return len(levels) > 0
    return bool(levels) and head in ("*", levels[0]) and plainly_matches(rest, style, levels[1:])


LEVELS = st.lists(st.sampled_from("ab"), min_size=1, max_size=6)
AMQP = st.lists(st.sampled_from("ab*#>"), min_size=1, max_size=6)
NATS = st.builds(
    list.__add__, st.lists(st.sampled_from("ab*#"), max_size=5), st.sampled_from([["a"], [">"]])
)


@given(st.lists(AMQP, max_size=5), st.lists(NATS, max_size=5), LEVELS)
def test_a_trie_finds_what_matches(
    amqp: list[list[str]], nats: list[list[str]], levels: list[str]
) -> None:
    trie: Trie[tuple[Style, str]] = Trie()
    expected: set[tuple[Style, str]] = set()
    styles: list[tuple[Style, list[list[str]]]] = [("amqp", amqp), ("nats", nats)]
    for style, patterns in styles:
        for pattern in patterns:
            text = ".".join(pattern)
            trie.add(text, style, (style, text))
            if plainly_matches(pattern, style, levels):
                expected.add((style, text))
    found = trie.match(".".join(levels))
    assert len(found) == len(set(found))
    assert set(found) == expected


@pytest.mark.parametrize(
    ("pattern", "style", "subject", "expected"),
    [
        ("events.#", "amqp", "events", True), ("events.#", "amqp", "events.a.b", True),
        ("events.#", "amqp", "eventsfoo", False), ("events.*", "amqp", "events", False),
        ("events.*", "amqp", "events.a", True), ("events.*", "amqp", "events.a.b", False),
        ("#", "amqp", "", True), ("*", "amqp", "", False), ("#.b", "amqp", "a.a.b", True),
        ("#.#", "amqp", "a", True), ("a.#.b", "amqp", "a.b", True), ("a*", "amqp", "ab", False),
        ("a*", "amqp", "a*", True), (">", "amqp", "a", False), (">", "amqp", ">", True),
        ("*.b", "amqp", ".b", True), ("a", "amqp", "A", False),
        ("events.>", "nats", "events", False), ("events.>", "nats", "events.a", True),
        ("events.>", "nats", "events.a.b", True), (">", "nats", "", False),
        (">", "nats", "a", True),
        ("*.>", "nats", "a", False), ("*.>", "nats", "a.b", True), ("#", "nats", "a", False),
        ("#", "nats", "#", True), ("a.*.c", "nats", "a.b.c", True),
    ],
)  # fmt: skip
def test_levels_match_as_a_whole(pattern: str, style: Style, subject: str, expected: bool) -> None:
    assert matches(pattern, style, subject) is expected


def test_a_value_of_several_patterns_is_found_once() -> None:
    trie: Trie[str] = Trie()
    for pattern in ("a.*", "a.#", "#", "*.b", "a.b"):
        trie.add(pattern, "amqp", "one")
    trie.add("a.>", "nats", "one")
    trie.add("a.b", "nats", "two")
    assert sorted(trie.match("a.b")) == ["one", "two"]
    assert trie.match("x.y.z") == ["one"]


def test_patterns_share_their_beginnings() -> None:
    trie: Trie[str] = Trie()
    for pattern in ("a.#", "a.#.b", "a.*", "a.*.c", "a.b"):
        trie.add(pattern, "amqp", pattern)
    assert sorted(trie.match("a.x.b")) == ["a.#", "a.#.b"]
    assert sorted(trie.match("a.b")) == ["a.#", "a.#.b", "a.*", "a.b"]
    assert sorted(trie.match("a.x.c")) == ["a.#", "a.*.c"]


class Counted(str):
    """A text that counts how often it is looked up."""

    lookups = 0

    def __hash__(self) -> int:
        Counted.lookups += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)

    def split(self, *_: object) -> list[str]:
        return [Counted(level) for level in str(self).split(".")]


def lookups(trie: Trie[int], subject: str) -> int:
    Counted.lookups = 0
    trie.match(Counted(subject))
    return Counted.lookups


def test_many_patterns_cost_no_more_than_few() -> None:
    few: Trie[int] = Trie()
    many: Trie[int] = Trie()
    for number in range(1_000):
        many.add(f"a.b{number}.c.#", "amqp", number)
        many.add(f"x{number}.>", "nats", number)
    few.add("a.b7.c.#", "amqp", 7)
    assert many.match("a.b7.c.d") == [7]
    assert lookups(many, "a.b7.c.d") == lookups(few, "a.b7.c.d")


def test_many_wildcards_of_any_length_do_not_multiply() -> None:
    trie: Trie[int] = Trie()
    trie.add(".".join(["#", "a"] * 31 + ["b"]), "amqp", 1)
    subject = ".".join(["a"] * 130)
    assert trie.match(subject) == []
    assert trie.match(subject + ".b") == [1]
    assert 0 < lookups(trie, subject) <= 130 * 64


@pytest.mark.parametrize("style", ["amqp", "nats"])
@pytest.mark.parametrize(
    ("pattern", "column"),
    [("", 1), (".", 1), ("a.", 3), (".a", 1), ("a..b", 3), (".".join("a" * 65), 129),
     ("a" * 261, 261)],
)  # fmt: skip
def test_a_pattern_that_cannot_be_is_refused(style: Style, pattern: str, column: int) -> None:
    with pytest.raises(SyntaxProblem) as raised:
        check_pattern(pattern, style)
    assert raised.value.column == column
    with pytest.raises(SyntaxProblem):
        Trie[int]().add(pattern, style, 1)


def test_what_takes_the_rest_stands_at_the_end() -> None:
    with pytest.raises(SyntaxProblem, match="> at the end only, in column 3"):
        check_pattern("a.>.b", "nats")
    check_pattern("a.>.b", "amqp")
    check_pattern(".".join("a" * 64), "nats")
    check_pattern("a" * 260, "amqp")
