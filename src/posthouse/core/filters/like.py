"""LIKE in time linear in the text.

Between two `%` stands a run of characters, of which `_` is any. Each run but the first and the last
may be taken where it first fits, for nothing that follows could fit an earlier rest better. So the
text is read once from left to right, and nothing is tried again. A run without `_` is looked for by
`str.find`; one of middle length by the `re` module, which takes linear time for what has no special
characters, where `str.find` may take a hundred times as long. One with `_` is found by keeping,
in the bits of one number, how many of its characters fit the text up to here.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from posthouse.core.filters.problems import EvaluationProblem

PATTERN_CHARS_MAX = 1_024
TEXT_CHARS_MAX = 16_384  # that is looked at; so many patterns on a longer one would take too long

Fits = Callable[[str], bool]
_Run = list[str | None]  # None is any character
_BITS = 256  # of a number: with more of them reckoning takes longer
_SHORT, _LONG = 8, 100  # shorter and longer runs are looked for by `str.find`
_SLOW_LOOKS = 25  # for each character of a text, where a run is long or has a `_`
_RUN_LOOKS = 50  # for each run of a pattern,
_ANY_LOOKS = 25  # and for each character of one that has a `_`


class Test(NamedTuple):
    """A test of texts. It takes `base` looks, and `per_char` for each character of the text."""

    fits: Fits
    base: int
    per_char: int


def compile_like(pattern: str, escape: str | None) -> Test:
    """Raises EvaluationProblem for a pattern that means nothing."""
    runs = _runs(pattern, escape)
    base = sum(_RUN_LOOKS + (_ANY_LOOKS * len(run) if None in run else 0) for run in runs)
    return Test(_fits(runs), base, max(map(_looks, runs[1:-1]), default=0))


def _looks(run: _Run) -> int:
    """The looks that finding a run takes for each character of the text, at most."""
    if None in run:
        return _SLOW_LOOKS * (1 + len(run) // _BITS)
    return _SLOW_LOOKS if len(run) >= _LONG else 1


def _fits(runs: list[_Run]) -> Fits:
    if len(runs) == 1:
        return _whole(runs[0])
    first, *middle, last = runs
    texts = [_text(run) for run in runs]
    match texts:  # the shapes that most patterns have
        case [str(text), ""]:
            return lambda whole: whole.startswith(text)
        case ["", str(text)]:
            return lambda whole: whole.endswith(text)
        case ["", str(text), ""]:
            return _contains(text)
        case _:
            pass
    least = sum(map(len, runs))
    starts, ends = _at(first), _at(last)
    finds = [_finder(run) for run in middle if run]

    def fits(text: str) -> bool:
        end = len(text) - len(last)
        if len(text) < least or not starts(text, 0) or not ends(text, end):
            return False
        at = len(first)
        for find in finds:
            at = find(text, at, end)
            if at < 0:
                return False
        return True

    return fits


def _contains(text: str) -> Fits:
    if not _SHORT <= len(text) < _LONG:
        return lambda whole: text in whole
    search = re.compile(re.escape(text)).search
    # Quicker where it cannot take long.
    return lambda whole: text in whole if len(whole) < _LONG else search(whole) is not None


def checked_text(text: str) -> str:
    """Raises EvaluationProblem for one that is too long to look at."""
    if len(text) > TEXT_CHARS_MAX:
        raise EvaluationProblem(f"LIKE looks at texts of at most {TEXT_CHARS_MAX} characters.")
    return text


def _runs(pattern: str, escape: str | None) -> list[_Run]:
    if len(pattern) > PATTERN_CHARS_MAX:
        raise EvaluationProblem(f"A pattern has more than {PATTERN_CHARS_MAX} characters.")
    if escape is not None and len(escape) != 1:
        raise EvaluationProblem(f"ESCAPE takes one character, not {escape!r}.")
    runs: list[_Run] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            literal = next(characters, None)
            if literal is None:
                raise EvaluationProblem("A pattern ends with its escape character.")
            runs[-1].append(literal)
        elif character == "%":
            runs.append([])
        else:
            runs[-1].append(None if character == "_" else character)
    return runs


def _text(run: _Run) -> str | None:
    """The run as a text, if it has no `_`."""
    return None if None in run else "".join(filter(None, run))


def _whole(run: _Run) -> Fits:
    text = _text(run)
    if text is not None:
        return text.__eq__
    fits = _at(run)
    return lambda text: len(text) == len(run) and fits(text, 0)


def _at(run: _Run) -> Callable[[str, int], bool]:
    """Whether the run fits a text at a place, where the text is long enough."""
    text = _text(run)
    if text is not None:
        return lambda whole, at: whole.startswith(text, at)
    known = [(at, character) for at, character in enumerate(run) if character is not None]
    return lambda whole, at: all(whole[at + step] == character for step, character in known)


def _finder(run: _Run) -> Callable[[str, int, int], int]:
    """Makes a function that finds the run in a part of a text.

    The function returns the end of the first match, or -1 if there is none.
    """
    text = _text(run)
    if text is not None and _SHORT <= len(text) < _LONG:
        search = re.compile(re.escape(text)).search

        def find_linear(whole: str, begin: int, end: int) -> int:
            found = search(whole, begin, end)
            return -1 if found is None else found.end()

        return find_linear
    if text is not None:

        def find(whole: str, begin: int, end: int) -> int:
            at = whole.find(text, begin, end)
            return at if at < 0 else at + len(text)

        return find

    # A bit for each character of the run: in `masks` those that are this character or any; in
    # `state` those up to which the run fits what was read last.
    anything = sum(1 << at for at, character in enumerate(run) if character is None)
    masks: dict[str, int] = {}
    for at, character in enumerate(run):
        if character is not None:
            masks[character] = masks.get(character, anything) | 1 << at
    complete = 1 << len(run) - 1

    def scan(whole: str, begin: int, end: int) -> int:
        state = 0
        for at in range(begin, end):
            state = (state << 1 | 1) & masks.get(whole[at], anything)
            if state & complete:
                return at + 1
        return -1

    return scan
