"""Wildcard patterns over names of levels separated by dots, and a trie that finds those that match.

    amqp   *  exactly one level     #  any number of levels, none included
    nats   *  exactly one level     >  one level or more, only at the end

A wildcard is a whole level; inside of one these characters mean themselves.
"""

from collections.abc import Callable, Hashable
from typing import Generic, Literal, TypeVar

from posthouse.core.filters.problems import EvaluationProblem, SyntaxProblem

PATTERN_CHARS_MAX = 260
LEVELS_MAX = 64
SUBJECT_LEVELS_MAX = 256  # that are looked at
_LOOKS_OF_NODE = 60

Style = Literal["amqp", "nats"]
T = TypeVar("T", bound=Hashable)


def check_pattern(pattern: str, style: Style) -> None:
    """Raises SyntaxProblem."""
    if len(pattern) > PATTERN_CHARS_MAX:
        reason = f"A pattern has at most {PATTERN_CHARS_MAX} characters, not {len(pattern)}"
        raise SyntaxProblem(reason, pattern, PATTERN_CHARS_MAX)
    levels = pattern.split(".")
    at = 0
    for number, level in enumerate(levels, 1):
        if number > LEVELS_MAX:
            reason = f"A pattern has at most {LEVELS_MAX} levels, not {len(levels)}"
            raise SyntaxProblem(reason, pattern, at)
        if not level:
            raise SyntaxProblem("Expected a name or a wildcard between dots", pattern, at)
        if style == "nats" and level == ">" and number < len(levels):
            raise SyntaxProblem("Expected > at the end only", pattern, at)
        at += len(level) + 1


class _Node(Generic[T]):
    __slots__ = ("any", "below", "here", "named", "stays")

    def __init__(self, *, stays: bool = False) -> None:
        self.named: dict[str, _Node[T]] = {}
        self.any: _Node[T] | None = None  # after one level, whatever it is
        self.below: _Node[T] | None = None  # after any number of levels
        self.stays = stays  # it is such a node, and takes any further level
        self.here: list[T] = []  # whose pattern ends here

    def after_any(self) -> "_Node[T]":
        if self.any is None:
            self.any = _Node()
        return self.any

    def after_all(self) -> "_Node[T]":
        if self.stays:  # a second one in a row adds nothing
            return self
        if self.below is None:
            self.below = _Node(stays=True)
        return self.below


def _unseen(_: int) -> None:
    """Counts nothing: nobody asks what it takes."""


class Trie(Generic[T]):
    """Values by pattern."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, pattern: str, style: Style, value: T) -> None:
        """Raises SyntaxProblem."""
        check_pattern(pattern, style)
        node = self._root
        for level in pattern.split("."):
            if level == "*":
                node = node.after_any()
            elif level == ">" and style == "nats":
                node = node.after_any().after_all()
            elif level == "#" and style == "amqp":
                node = node.after_all()
            else:
                node = node.named.setdefault(level, _Node())
        node.here.append(value)

    def match(self, subject: str, look: Callable[[int], None] = _unseen) -> list[T]:
        """The values of all patterns that match, each once. `look` is told what it takes.

        All patterns are followed level by level at the same time, and each place in the trie is
        looked at once for a level, however many ways lead there. Raises EvaluationProblem.
        """
        if subject.count(".") >= SUBJECT_LEVELS_MAX:
            raise EvaluationProblem(f"A subject has more than {SUBJECT_LEVELS_MAX} levels.")
        active = _with_below([self._root])
        for level in subject.split(".") if subject else ():
            following: list[_Node[T]] = []
            look(_LOOKS_OF_NODE * len(active))
            for node in active:
                named = node.named.get(level)
                if named is not None:
                    following.append(named)
                if node.any is not None:
                    following.append(node.any)
                if node.stays:
                    following.append(node)
            active = _with_below(following)
            if not active:
                break
        return list(dict.fromkeys(value for node in active for value in node.here))


def _with_below(nodes: list[_Node[T]]) -> list[_Node[T]]:
    """Each once, with those that a # reaches without taking a level."""
    found = dict.fromkeys(nodes)
    for node in nodes:
        if node.below is not None:
            found[node.below] = None
    return list(found)
