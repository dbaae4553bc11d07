"""Filters and actions of the Service Bus SQL language, compiled once into closures.

A filter is evaluated for each message and each subscription, so the shapes that most filters have,
a property compared with a constant and such conditions joined, have closures of their own. All
others go by the general rules in values.py; the result is the same.

Unknown is None, and so is null: only EXISTS tells a null property from one that is not there.
AND, OR and IN go from left to right and stop when they know, so what comes later is not evaluated,
and raises nothing.
"""

from math import isnan
from typing import cast

import msgspec

from posthouse.core.commands import HAND_ON_BYTES_MAX, PROPERTIES_BYTES_MAX, RULE_PATTERNS_MAX
from posthouse.core.filters.actions import Step, remove_property, set_property, set_system
from posthouse.core.filters.grammar import parse_action, parse_filter
from posthouse.core.filters.like import PATTERN_CHARS_MAX, Test, checked_text, compile_like
from posthouse.core.filters.problems import EvaluationProblem, SyntaxProblem, TooManyLooks
from posthouse.core.filters.texts import INTEGER_MAX
from posthouse.core.filters.tree import (
    And,
    Chain,
    Comparison,
    Constant,
    Exists,
    Group,
    In,
    IsNull,
    Like,
    Lookup,
    NewId,
    Node,
    Not,
    Or,
    Parameter,
    Property,
    Remove,
    Set,
    Sign,
    Statement,
)
from posthouse.core.filters.values import (
    MIRRORED,
    NUMBER,
    TESTS,
    TEXT,
    compare,
    compare_loosely,
    is_comparable,
    kind_of,
    plain,
    reckon,
    signed,
)
from posthouse.core.filters.view import (
    SYSTEM,
    Action,
    Amendment,
    Draft,
    Evaluate,
    MessageView,
    Predicate,
    failing,
)
from posthouse.core.message import Properties, Value, uuid


def compile_filter(
    text: str, parameters: Properties, *, loose: bool = False, new: bool = False
) -> Predicate:
    """Whether a message fits. Raises SyntaxProblem; evaluating raises EvaluationProblem.

    With `loose` texts are compared with numbers and truths by what they say. A `new` one is held to
    limits that older journals do not know.
    """
    kind = _LooseCompiler if loose else _Compiler
    return kind(text, parameters, new=new).condition(parse_filter(text))


def compile_action(text: str, parameters: Properties, *, new: bool = False) -> Action:
    """Compiles an action. Raises SyntaxProblem; applying the action raises EvaluationProblem."""
    compiler = _Compiler(text, parameters, new=new)
    steps = [compiler.step(statement) for statement in parse_action(text)]

    def apply(view: MessageView) -> Amendment:
        if view.amended_bytes >= HAND_ON_BYTES_MAX:
            raise EvaluationProblem("The actions for this message write too much of it.")
        draft = Draft(view)
        try:
            for step in steps:
                step(draft)
        finally:
            view.looks = draft.looks
        amendment = draft.amendment()
        size = len(msgspec.msgpack.encode(amendment.properties))
        view.looks += size // _BYTES_OF_LOOK
        if size > PROPERTIES_BYTES_MAX:
            reason = (
                f"An action sets properties of at most {PROPERTIES_BYTES_MAX} bytes, not {size}."
            )
            raise EvaluationProblem(reason)
        view.amended_bytes += size + len(msgspec.msgpack.encode(amendment.fields))
        return amendment

    return apply


class _Compiler:
    def __init__(self, text: str, parameters: Properties, *, new: bool) -> None:
        self._text = text
        self._patterns_left = RULE_PATTERNS_MAX if new else None  # characters of them
        self._parameters = {
            name.lstrip("@").casefold(): value for name, value in parameters.items()
        }

    def condition(self, node: Node) -> Predicate:
        match node:
            case Or(conditions=conditions):
                return _or([self.condition(each) for each in conditions])
            case And(conditions=conditions):
                return _and([self.condition(each) for each in conditions])
            case Not(condition=inner):
                return _not(self.condition(inner))
            case Comparison():
                return self._comparison(node)
            case In(value=value, items=items):
                return self._in(value, items)
            case Like():
                return self._like(node)
            case IsNull(value=value):
                get = self.value(value)
                return lambda view: get(view) is None
            case Exists(property=Property(scope=scope, name=name)):
                if scope == "user":
                    return lambda view: view.spelled(name) is not None
                system = _system(name)
                return lambda view: system(view) is not None
            case Group(inner=inner):
                return self.condition(inner)
            case Constant() | Parameter():
                truth = self._fixed(node)
                if truth is not None and type(truth) is not bool:
                    raise SyntaxProblem("Expected a condition", self._text, node.at)
                return _always(truth)
            case Property() | Lookup():
                return _truth(self.value(node))
            case _:  # Chain, Sign, NewId
                raise SyntaxProblem("Expected a condition", self._text, node.at)

    def value(self, node: Node) -> Evaluate:
        match node:
            case Constant() | Parameter():
                fixed = self._fixed(node)
                return lambda view: fixed
            case Property(scope=scope, name=name):
                return _user(name) if scope == "user" else _system(name)
            case Group(inner=inner):
                return self.value(inner)
            case Chain(first=first, rest=rest):
                operands = [(symbol, self.value(operand)) for symbol, operand in rest]
                return _chain(self.value(first), operands)
            case Sign(symbol=symbol, value=inner):
                operand = self.value(inner)
                return lambda view: signed(symbol, operand(view))
            case NewId():
                return lambda view: uuid(view.new_id())
            case Lookup(name=inner):
                return _lookup(self.value(inner))
            case _:  # a condition
                return self.condition(node)

    def step(self, statement: Statement) -> Step:
        match statement:
            case Set(property=Property(scope="user", name=name), value=node):
                return set_property(name, self.value(node))
            case Set(property=Property(name=name), value=node):
                return set_system(name, self.value(node))
            case Remove(property=Property(scope="user", name=name)):
                return remove_property(name)
            case _:
                return failing(f"sys.{statement.property.name} cannot be removed.")

    def _fixed(self, node: Constant | Parameter) -> Value:
        if isinstance(node, Parameter):
            name = node.name[1:].casefold()
            if name not in self._parameters:
                raise SyntaxProblem("Expected a parameter that has a value", self._text, node.at)
            return self._parameters[name]
        if type(node.value) is int and node.value > INTEGER_MAX:  # only -9223372036854775808 is one
            raise SyntaxProblem("Expected a whole number of 64 bits", self._text, node.at)
        return node.value

    def _comparison(self, node: Comparison) -> Predicate:
        symbol, left, right = node.symbol, node.left, node.right
        if isinstance(left, Constant | Parameter):
            if isinstance(right, Constant | Parameter):
                return _always(compare(symbol, self._fixed(left), self._fixed(right)))
            left, right, symbol = right, left, MIRRORED.get(symbol, symbol)
        if isinstance(right, Constant | Parameter):
            return _compared(self.value(left), symbol, self._fixed(right))
        first, second = self.value(left), self.value(right)

        def is_so(view: MessageView) -> bool | None:
            value = first(view)
            _look_at_long(view, value)
            return compare(symbol, value, second(view))

        return is_so

    def _in(self, value: Node, items: tuple[Node, ...]) -> Predicate:
        get = self.value(value)
        fixed = [self._fixed(item) for item in items if isinstance(item, Constant | Parameter)]
        if len(fixed) == len(items):
            return _in_set(get, fixed)
        return _in_list(get, [self.value(item) for item in items])

    def _like(self, node: Like) -> Predicate:
        get, pattern, escape = self.value(node.value), node.pattern, node.escape
        wanted = (pattern,) if escape is None else (pattern, escape)
        fixed = [self._fixed(each) for each in wanted if isinstance(each, Constant | Parameter)]
        texts = [text for text in fixed if type(text) is str]
        if len(texts) < len(wanted):
            mark = None if escape is None else self.value(escape)
            return _like_any(get, self.value(pattern), mark)
        if self._patterns_left is not None:
            self._patterns_left -= len(texts[0])
            if self._patterns_left < 0:
                reason = f"Expected patterns of at most {RULE_PATTERNS_MAX} characters in all"
                raise SyntaxProblem(reason, self._text, pattern.at)
        try:
            return _like(get, compile_like(texts[0], texts[1] if escape else None))
        except EvaluationProblem as problem:
            raise SyntaxProblem(str(problem).rstrip("."), self._text, pattern.at) from None


class _LooseCompiler(_Compiler):
    def _comparison(self, node: Comparison) -> Predicate:
        symbol, left, right = node.symbol, self.value(node.left), self.value(node.right)

        def is_so(view: MessageView) -> bool | None:
            value = left(view)
            _look_at_long(view, value)
            return compare_loosely(symbol, value, right(view))

        return is_so

    def _in(self, value: Node, items: tuple[Node, ...]) -> Predicate:
        get, wanted = self.value(value), [self.value(item) for item in items]

        def is_in(view: MessageView) -> bool | None:
            found = get(view)
            if found is None:
                return None
            _look_at_items(view, found, len(wanted))
            return any(compare_loosely("=", found, item(view)) for item in wanted)

        return is_in


def _always(truth: bool | None) -> Predicate:
    return lambda view: truth


def _truth(get: Evaluate) -> Predicate:
    def truth(view: MessageView) -> bool | None:
        value = get(view)
        return value if type(value) is bool else None

    return truth


def _or(conditions: list[Predicate]) -> Predicate:
    def either(view: MessageView) -> bool | None:
        result: bool | None = False
        for condition in conditions:
            truth = condition(view)
            if truth:
                return True
            if truth is None:
                result = None
        return result

    return either


def _and(conditions: list[Predicate]) -> Predicate:
    def both(view: MessageView) -> bool | None:
        result: bool | None = True
        for condition in conditions:
            truth = condition(view)
            if truth is None:
                result = None
            elif not truth:
                return False
        return result

    return both


def _not(condition: Predicate) -> Predicate:
    def negated(view: MessageView) -> bool | None:
        truth = condition(view)
        return None if truth is None else not truth

    return negated


def _look_at_long(view: MessageView, value: Value) -> None:
    """Before a value is compared with another, which takes as long as they are equal."""
    if type(value) in (str, bytes) and len(value) > _LONG:  # type: ignore[arg-type]
        view.look(len(value) // _BYTES_OF_LOOK)  # type: ignore[arg-type]


def _look_at_items(view: MessageView, value: Value, items: int) -> None:
    """Before a value is compared with so many others that are to be worked out."""
    view.look(_LOOKS_OF_ITEM * items)
    if type(value) in (str, bytes) and len(value) > _LONG:  # type: ignore[arg-type]
        view.look(items * (len(value) // _BYTES_OF_LOOK))  # type: ignore[arg-type]


_LONG = 256  # bytes, from which on to compare takes time of its own
_BYTES_OF_LOOK = 16  # that are copied or compared
_LOOKS_OF_ITEM = 100


def _compared(get: Evaluate, symbol: str, fixed: Value) -> Predicate:
    if type(fixed) in (str, bytes) and len(fixed) > _LONG:  # type: ignore[arg-type]
        return _compared_long(get, symbol, fixed)
    kind = kind_of(fixed)
    if kind is None or not is_comparable(kind, symbol):

        def unknown(view: MessageView) -> bool | None:
            get(view)  # it may be a problem nevertheless
            return None

        return unknown
    test = TESTS[symbol]
    if kind == TEXT and symbol == "=":

        def is_text(view: MessageView) -> bool | None:
            value = get(view)
            return value == fixed if type(value) is str else None

        return is_text
    if kind in (TEXT, NUMBER):
        types = frozenset((str,) if kind == TEXT else (int, float))

        def is_so(view: MessageView) -> bool | None:
            value = get(view)
            return test(value, fixed) if type(value) in types else None

        return is_so
    other = plain(fixed)

    def is_so_plain(view: MessageView) -> bool | None:
        value = get(view)
        return test(plain(value), other) if kind_of(value) == kind else None

    return is_so_plain


def _compared_long(get: Evaluate, symbol: str, fixed: Value) -> Predicate:
    """Compares a value with a constant that is itself long."""

    def is_so(view: MessageView) -> bool | None:
        value = get(view)
        _look_at_long(view, value)
        return compare(symbol, value, fixed)

    return is_so


def _in_set(get: Evaluate, fixed: list[Value]) -> Predicate:
    sets: dict[str | None, set[Value]] = {}
    for each in fixed:
        if not (type(each) is float and isnan(each)):  # a set would find it, but it equals nothing
            sets.setdefault(kind_of(each), set()).add(plain(each))
    sets.pop(None, None)
    texts = sets.get(TEXT, _NOTHING)

    def is_in(view: MessageView) -> bool | None:
        value = get(view)
        if type(value) is str:
            _look_at_long(view, value)
            return value in texts
        if value is None:
            return None
        kind = kind_of(value)
        return kind in sets and plain(value) in sets[kind]

    return is_in


_NOTHING: set[Value] = set()


def _in_list(get: Evaluate, items: list[Evaluate]) -> Predicate:
    def is_in(view: MessageView) -> bool | None:
        value = get(view)
        if value is None:
            return None
        _look_at_items(view, value, len(items))
        return any(compare("=", value, item(view)) for item in items)

    return is_in


def _like(get: Evaluate, test: Test) -> Predicate:
    fits, base, per_char = test

    def is_like(view: MessageView) -> bool | None:
        value = get(view)
        if type(value) is not str:
            return None
        view.looks += base + per_char * len(checked_text(value))
        if view.looks > view.looks_end:
            raise TooManyLooks
        return fits(value)

    return is_like


def _like_any(get: Evaluate, pattern: Evaluate, escape: Evaluate | None) -> Predicate:
    def is_like(view: MessageView) -> bool | None:
        value, wanted = get(view), pattern(view)
        mark = None if escape is None else escape(view)
        if type(value) is not str or type(wanted) is not str:
            return None
        if escape is not None and type(mark) is not str:
            return None
        view.look(_LOOKS_TO_COMPILE + _LOOKS_OF_PATTERN * min(len(wanted), PATTERN_CHARS_MAX))
        fits, base, per_char = compile_like(wanted, cast("str | None", mark))
        view.look(base + per_char * len(checked_text(value)))
        return fits(value)

    return is_like


_LOOKS_TO_COMPILE, _LOOKS_OF_PATTERN = 2_500, 250  # and for each character of a pattern


def _user(name: str) -> Evaluate:
    folded = name.casefold()
    return lambda view: view.user(name, folded)


def _system(name: str) -> Evaluate:
    get = SYSTEM.get(name.lower())
    if get is None:
        return failing(f"There is no system property sys.{name}.")
    return get


_CHARS_BUILT = 8  # by a look


def _chain(first: Evaluate, rest: list[tuple[str, Evaluate]]) -> Evaluate:
    def reckoned(view: MessageView) -> Value:
        value = first(view)
        for symbol, operand in rest:
            value = reckon(symbol, value, operand(view))
            if type(value) is str:
                view.look(len(value) // _CHARS_BUILT)
        return value

    return reckoned


def _lookup(name: Evaluate) -> Evaluate:
    def look(view: MessageView) -> Value:
        found = name(view)
        if found is None:
            return None
        if type(found) is not str:
            raise EvaluationProblem("The name of a property must be text.")
        view.look(len(found))
        return view.user(found, found.casefold())

    return look
