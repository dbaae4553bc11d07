"""Routing: which subscriptions of a topic get a message, and what their rules change of it.

Rules are compiled when they are first used, and what was made of each is remembered beside the
state for as long as the rule stays. A subscription with one rule and no action, as
most are, costs one call a message; one that wants a pattern or everything costs none of its own.
"""

from collections.abc import Callable
from typing import NamedTuple

from posthouse.core.filters.patterns import Trie, check_pattern
from posthouse.core.filters.problems import EvaluationProblem
from posthouse.core.filters.view import Action, Amendment, Predicate, View
from posthouse.core.model import Queue
from posthouse.core.rules import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    PatternFilter,
    Rule,
    SqlFilter,
    TrueFilter,
)

RULE_NAME = "RuleName"  # the property that tells which rule made a copy
_CHARS_OF_EFFORT = 64


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
    _predicate(rule.filter)
    if isinstance(rule.filter, PatternFilter):
        check_pattern(rule.filter.pattern, rule.filter.style)
    _action(rule)


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
        self.effort = 1  # what it takes to ask them, in about microseconds
        for subscription in topic.subscriptions.values():
            self._add(subscription)
        self.asks = bool(self._by_name or self._single or self._several)  # before they take it

    def _add(self, subscription: Queue) -> None:
        rules = list(subscription.rules.values())
        hit = Hit(subscription)
        if len(rules) != 1 or rules[0].action:
            self._several.append((subscription, _ready_rules(subscription)))
            self.effort += sum(map(_effort, rules))
            return
        wanted = rules[0].filter
        if isinstance(wanted, TrueFilter):
            self.all.append(hit)
        elif isinstance(wanted, PatternFilter):
            self._patterns.add(wanted.pattern, wanted.style, subscription.name)
            self._by_name[subscription.name] = hit
        elif not isinstance(wanted, FalseFilter):
            self._single.append((_ready_rules(subscription)[0].fits, hit))
            self.effort += _effort(rules[0])

    def match(self, view: View) -> list[Hit]:
        """What the subscriptions get of a message."""
        hits = self.all.copy()
        if self._by_name:
            try:
                found = self._patterns.match(view.envelope.subject)
                hits += map(self._by_name.__getitem__, found)
            except EvaluationProblem as problem:
                text = str(problem)
                hits += [Hit(hit.queue, None, text) for hit in self._by_name.values()]
        for fits, hit in self._single:
            try:
                if fits(view):
                    hits.append(hit)
            except EvaluationProblem as problem:
                hits.append(Hit(hit.queue, None, str(problem)))
        for queue, rules in self._several:
            hits += _hits(queue, rules, view)
        return hits


def _hits(queue: Queue, rules: list[_Ready], view: View) -> list[Hit]:
    """One copy for all rules without an action that fit, and one for each with an action."""
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


def _ready_rules(subscription: Queue) -> list[_Ready]:
    """Each compiled once, and remembered with the subscription."""
    before = subscription.router
    assert before is None or isinstance(before, list)
    known = {id(ready.rule): ready for ready in before or ()}
    found = [known.get(id(rule)) or _ready(rule) for rule in subscription.rules.values()]
    subscription.router = found
    return found


def _effort(rule: Rule) -> int:
    """What it takes to ask a rule; it grows with what it says."""
    wanted = rule.filter
    said = len(wanted.expression) if isinstance(wanted, SqlFilter) else 0
    return 1 + (said + len(rule.action)) // _CHARS_OF_EFFORT


def _ready(rule: Rule) -> _Ready:
    return _Ready(rule, _predicate(rule.filter), _action(rule))


# What compiles SQL is imported when there is some: not every start needs it.


def _action(rule: Rule) -> Action | None:
    """Raises SyntaxProblem."""
    if not rule.action:
        return None
    from posthouse.core.filters.sql import compile_action

    return compile_action(rule.action, rule.parameters)


def _predicate(wanted: Filter) -> Predicate:
    """Raises SyntaxProblem."""
    if isinstance(wanted, TrueFilter):
        return _always
    if isinstance(wanted, FalseFilter):
        return _never
    if isinstance(wanted, SqlFilter):
        from posthouse.core.filters.sql import compile_filter

        return compile_filter(wanted.expression, wanted.parameters)
    if isinstance(wanted, CorrelationFilter):
        from posthouse.core.filters.correlation import compile_correlation

        return compile_correlation(wanted.fields, wanted.properties)
    trie: Trie[bool] = Trie()
    trie.add(wanted.pattern, wanted.style, True)
    return _fits_pattern(trie)


def _fits_pattern(trie: Trie[bool]) -> Callable[[View], bool]:
    return lambda view: bool(trie.match(view.envelope.subject))


def _always(_: View) -> bool:
    return True


def _never(_: View) -> bool:
    return False
