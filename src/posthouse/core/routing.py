"""Routing: which subscriptions of a topic get a message, and what their rules change of it.

Rules are compiled when they are first used, and what was made of each is remembered beside the
state for as long as the rule stays. A subscription with one rule and no action, as
most are, costs one call a message; one that wants a pattern or everything costs none of its own.

What it takes is counted, as effort of about a microsecond. Where all subscriptions of a topic take
too long for one command, they are asked one by one, as far as each command may.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple

from posthouse.core.commands import HAND_ON_MAX
from posthouse.core.filters.patterns import Trie, check_pattern
from posthouse.core.filters.problems import EvaluationProblem, TooManyLooks
from posthouse.core.filters.view import Action, Amendment, MessageView, Predicate
from posthouse.core.model import Queue
from posthouse.core.rules import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    PatternFilter,
    Rule,
    SqlFilter,
    TrueFilter,
    sql_chars,
)

RULE_NAME = "RuleName"  # the property that tells which rule made a copy
_CHARS_OF_EFFORT = 16
_ITEMS_OF_EFFORT = 4
_CHARS_TO_COMPILE = 7  # the effort for each, in SQL,
_LEAST_CHARS = 16  # and for as many more
_LEVEL_TO_COMPILE = 3  # of a pattern
EFFORT_MAX = HAND_ON_MAX
_ADD_MAX = 4 * EFFORT_MAX  # eighths of it, to add all rules of a topic to a router
_number = attrgetter("number")


class Hit(NamedTuple):
    """A copy for a subscription; or what is wrong with a rule of it."""

    queue: Queue
    amendment: Amendment | None = None
    problem: str = ""


class _Ready(NamedTuple):
    """A rule that can be used."""

    rule: Rule
    fits: Predicate
    action: Action | None

    @property
    def name(self) -> str:
        return self.rule.name


def compile_rule(rule: Rule) -> None:
    """Raises SyntaxProblem, which says what and where."""
    _predicate(rule.filter, new=True)
    if isinstance(rule.filter, PatternFilter):
        check_pattern(rule.filter.pattern, rule.filter.style)
    _action(rule, new=True)


def router_of(topic: Queue) -> "Router":
    """Made when it is first asked for after a rule has changed."""
    router = topic.router
    if router is None:
        router = topic.router = Router(topic)
    assert isinstance(router, Router)
    return router


class Router:
    """The rules of a topic's subscriptions, ready to be used."""

    def __init__(self, topic: Queue) -> None:
        self.all: list[Hit] = []  # to those who want everything
        self._single: list[tuple[Predicate, Hit]] = []  # one rule, no action
        self._several: list[tuple[Queue, list[_Ready]]] = []
        self._patterns: Trie[str] = Trie()  # names of subscriptions
        self._by_name: dict[str, Hit] = {}
        self.effort = 1  # what it takes to ask them all; EFFORT_MAX + 1: too much
        self._topic = topic
        self._ordered: list[Queue] | None = None
        fresh = sum(_effort_to_add(each) for each in topic.subscriptions.values())
        self._is_whole = fresh <= _ADD_MAX  # else they are compiled as they are asked
        if not self._is_whole:
            self.effort = EFFORT_MAX + 1
        for subscription in topic.subscriptions.values() if self._is_whole else ():
            self._add(subscription)
        # Before they take it.
        self.asks = bool(not self._is_whole or self._by_name or self._single or self._several)

    def _add(self, subscription: Queue) -> None:
        rules = list(subscription.rules.values())
        hit = Hit(subscription)
        if len(rules) != 1 or rules[0].action:
            self._several.append((subscription, _all_ready(subscription)))
            self.effort += _compiled(subscription).effort
            return
        wanted = rules[0].filter
        if isinstance(wanted, TrueFilter):
            self.all.append(hit)
        elif isinstance(wanted, PatternFilter):
            self._patterns.add(wanted.pattern, wanted.style, subscription.name)
            self._by_name[subscription.name] = hit
        elif not isinstance(wanted, FalseFilter):
            self._single.append((_all_ready(subscription)[0].fits, hit))
            self.effort += rule_effort(rules[0])

    def match(self, view: MessageView) -> list[Hit]:
        """Returns the copies subscriptions get. Raises TooManyLooks: ask them one by one."""
        hits = self.all.copy()
        if self._by_name:
            try:
                found = self._patterns.match(view.envelope.subject, view.look)
                hits += map(self._by_name.__getitem__, found)
            except TooManyLooks:
                raise
            except EvaluationProblem as problem:
                text = str(problem)
                hits += [Hit(hit.queue, None, text) for hit in self._by_name.values()]
        for fits, hit in self._single:
            try:
                if fits(view):
                    hits.append(hit)
            except TooManyLooks:
                raise
            except EvaluationProblem as problem:
                hits.append(Hit(hit.queue, None, str(problem)))
        for queue, rules in self._several:
            hits += _hits(queue, rules, view)
        return hits

    def match_each(
        self, view: MessageView, after: int
    ) -> Iterator[tuple[Queue, int, list[Hit] | None]]:
        """Yields each subscription numbered above `after`, in order, with the effort and its hits.

        The hits are None where the rules have to be compiled first, which later commands do. A
        subscription whose rules take too many looks is treated like one whose rules fail.
        """
        if self._ordered is None:
            self._ordered = sorted(self._topic.subscriptions.values(), key=_number)
        first = bisect_right(self._ordered, after, key=_number)
        for at in range(first, len(self._ordered)):
            subscription = self._ordered[at]
            effort = compile_some(subscription)
            hits = None
            if effort < EFFORT_MAX:
                effort += 1 + _compiled(subscription).effort
                hits = _hits_or_problem(subscription, view)
            yield subscription, effort, hits
        if not self._is_whole:
            self._topic.router = None  # those that are compiled now can be asked together


def _hits_or_problem(subscription: Queue, view: MessageView) -> list[Hit]:
    view.begin()
    try:
        return _hits(subscription, _all_ready(subscription), view)
    except TooManyLooks as problem:
        return [Hit(subscription, None, str(problem))]


def _hits(queue: Queue, rules: list[_Ready], view: MessageView) -> list[Hit]:
    """One copy for all rules without an action that fit, and one for each with an action.

    Raises TooManyLooks.
    """
    hits: list[Hit] = []
    problem = ""
    plain = False
    for rule in rules:
        try:
            if not rule.fits(view):
                continue
            if rule.action is None:
                plain = True
            else:
                hits.append(Hit(queue, _named(rule.action(view), rule.name)))
        except TooManyLooks:
            raise
        except EvaluationProblem as found:
            problem = problem or f"Rule {rule.name!r}: {found}"
    if plain:
        hits.append(Hit(queue))
    if problem:
        hits.append(Hit(queue, None, problem))
    return hits


def _named(amendment: Amendment, rule: str) -> Amendment:
    properties = {**amendment.properties, RULE_NAME: rule}
    return amendment._replace(properties=properties)


def _effort_to_add(subscription: Queue) -> int:
    """The effort to add it to a router, in eighths: patterns are many, and seldom change."""
    rules = subscription.rules
    if len(rules) == 1:
        [rule] = rules.values()
        if isinstance(rule.filter, PatternFilter) and not rule.action:
            return 1 + rule.filter.pattern.count(".")
        if not sql_chars(rule):
            return 0
    return 8 * _compiled(subscription).to_compile()


class _Compiled:
    """The rules of a subscription, ready to be used as far as they are compiled."""

    __slots__ = ("effort", "ready", "rules")

    def __init__(self, rules: dict[str, Rule], before: "_Compiled | None") -> None:
        self.rules = rules  # another dictionary after each change
        known = {id(ready.rule): ready for ready in before.ready if ready} if before else {}
        self.ready: list[_Ready | None] = [known.get(id(rule)) for rule in rules.values()]
        self.effort = effort_of(rules.values())

    def to_compile(self) -> int:
        """The effort of compiling what is not yet."""
        pairs = zip(self.rules.values(), self.ready, strict=True)
        return sum(_effort_to_compile(rule) for rule, ready in pairs if ready is None)


def _compiled(subscription: Queue) -> _Compiled:
    """Each rule is compiled once, and remembered with the subscription."""
    found = subscription.router
    assert found is None or isinstance(found, _Compiled)
    if found is None or found.rules is not subscription.rules:
        found = subscription.router = _Compiled(subscription.rules, found)
    return found


def compile_some(subscription: Queue) -> int:
    """Compiles rules that are not yet, as many as one command may. Returns the effort of that.

    If it is EFFORT_MAX or more, there may be more of them.
    """
    compiled, effort = _compiled(subscription), 0
    for at, rule in enumerate(compiled.rules.values()):
        if compiled.ready[at] is None:
            if effort >= EFFORT_MAX:
                break
            effort += _effort_to_compile(rule)
            compiled.ready[at] = _ready(rule)
    return effort


def _all_ready(subscription: Queue) -> list[_Ready]:
    """Returns all rules, of a subscription whose rules one command can compile."""
    compile_some(subscription)
    return [ready for ready in _compiled(subscription).ready if ready]


def _effort_to_compile(rule: Rule) -> int:
    chars = sql_chars(rule)
    if isinstance(rule.filter, PatternFilter):
        return _LEVEL_TO_COMPILE * (1 + rule.filter.pattern.count("."))
    return _CHARS_TO_COMPILE * (_LEAST_CHARS + chars) if chars else 1


def effort_of(rules: Iterable[Rule]) -> int:
    """The effort of asking these rules."""
    return sum(map(rule_effort, rules))


def rule_effort(rule: Rule) -> int:
    """The effort of asking a rule; it grows with its length."""
    wanted, items = rule.filter, 0
    if isinstance(wanted, CorrelationFilter):
        items = len(wanted.fields) + len(wanted.properties)
    return 1 + sql_chars(rule) // _CHARS_OF_EFFORT + items // _ITEMS_OF_EFFORT


def _ready(rule: Rule) -> _Ready:
    return _Ready(rule, _predicate(rule.filter), _action(rule))


# What compiles SQL is imported when there is some: not every start needs it.


def _action(rule: Rule, *, new: bool = False) -> Action | None:
    """Raises SyntaxProblem."""
    if not rule.action:
        return None
    from posthouse.core.filters.sql import compile_action

    return compile_action(rule.action, rule.parameters, new=new)


def _predicate(wanted: Filter, *, new: bool = False) -> Predicate:
    """Raises SyntaxProblem."""
    if isinstance(wanted, TrueFilter):
        return _always
    if isinstance(wanted, FalseFilter):
        return _never
    if isinstance(wanted, SqlFilter):
        from posthouse.core.filters.sql import compile_filter

        return compile_filter(wanted.expression, wanted.parameters, loose=wanted.loose, new=new)
    if isinstance(wanted, CorrelationFilter):
        from posthouse.core.filters.correlation import compile_correlation

        return compile_correlation(wanted.fields, wanted.properties)
    trie: Trie[bool] = Trie()
    trie.add(wanted.pattern, wanted.style, True)
    return _fits_pattern(trie)


def _fits_pattern(trie: Trie[bool]) -> Callable[[MessageView], bool]:
    return lambda view: bool(trie.match(view.envelope.subject, view.look))


def _always(_: MessageView) -> bool:
    return True


def _never(_: MessageView) -> bool:
    return False
