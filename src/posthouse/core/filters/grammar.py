"""The parser of filters and actions, from text to syntax trees.

The grammar is one of values, among which conditions are the true, false or unknown ones: with one
token of foresight nobody can tell at `(a` whether a value or a condition was opened. What is no
condition where one is needed is found out afterwards, in sql.py.

The parser keeps a stack of its own and makes a node of each rule as it completes it, so it takes
linear time and does not recurse. What comes after it does; it goes by trees of a known depth.
"""

from functools import cache, lru_cache
from math import isinf
from typing import TYPE_CHECKING, Any, cast

from posthouse.core.commands import PROPERTY_CHARS_MAX
from posthouse.core.filters.problems import SyntaxProblem
from posthouse.core.filters.texts import INTEGER_MIN
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
    parts,
)

if TYPE_CHECKING:
    from lark import Lark, Token

EXPRESSION_CHARS_MAX = 1_024
DEPTH_MAX = 32
NODES_MAX = 900
STATEMENTS_MAX = 32
_REMEMBERED = 256  # texts: a rule is compiled when it is checked, and again when it is first used

_VALUES = r"""
?condition: conjunction
    | conjunction (_OR conjunction)+                  -> either
?conjunction: negation
    | negation (_AND negation)+                       -> both
?negation: predicate
    | NOT negation                                    -> negate
?predicate: sum
    | sum _comparison sum                             -> compare
    | sum _IS NULL                                    -> is_null
    | sum _IS NOT NULL                                -> is_not_null
    | sum _IN _list                                   -> is_in
    | sum NOT _IN _list                               -> is_not_in
    | sum _LIKE sum (_ESCAPE sum)?                    -> is_like
    | sum NOT _LIKE sum (_ESCAPE sum)?                -> is_not_like
_comparison: EQUAL | UNEQUAL
_list: "(" sum ("," sum)* ")"
?sum: product
    | product (SIGN product)+                         -> chain
?product: signed
    | signed (TIMES signed)+                          -> chain
?signed: value
    | SIGN signed                                     -> sign
?value: OPEN condition ")"                            -> group
    | STRING                                          -> text
    | INTEGER                                         -> integer
    | DECIMAL                                         -> decimal
    | TRUE                                            -> true
    | FALSE                                           -> false
    | NULL                                            -> null
    | PARAMETER                                       -> parameter
    | NAME OPEN [sum] ")"                             -> call
    | EXISTS OPEN property ")"                        -> exists
    | property
property: _name
    | _name "." _name                                 -> scoped
_name: NAME | BRACKETED | QUOTED

_OR.2: /OR\b/i
_AND.2: /AND\b/i
NOT.2: /NOT\b/i
_IS.2: /IS\b/i
NULL.2: /NULL\b/i
_IN.2: /IN\b/i
_LIKE.2: /LIKE\b/i
_ESCAPE.2: /ESCAPE\b/i
EXISTS.2: /EXISTS\b/i
TRUE.2: /TRUE\b/i
FALSE.2: /FALSE\b/i
NAME: /[^\W\d]\w*/
BRACKETED: /\[(?:[^\]]|\]\])*+\]/
QUOTED: /"(?:[^"]|"")*+"/
PARAMETER: /@\w+/
STRING: /'(?:[^']|'')*+'/
DECIMAL.1: /(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+/i
INTEGER: /[0-9]+/
OPEN: "("
EQUAL: "="
UNEQUAL: /<>|!=|<=|>=|<|>/
SIGN: /[+-]/
TIMES: /[*\/%]/
%ignore /\s+/
"""

_FILTER = "start: condition\n" + _VALUES

_ACTION = (
    r"""
start: statement (_separator? statement)* _separator?
statement: SET property EQUAL sum                     -> set
    | REMOVE property                                 -> remove
_separator: ";" | ","
SET.2: /SET\b/i
REMOVE.2: /REMOVE\b/i
"""
    + _VALUES
)

# How to name what was expected, in this order.
_WORDS = {
    "STRING": "a value",
    "NAME": "a property",
    "UNEQUAL": "a comparison",
    "EQUAL": "=",
    "NOT": "NOT",
    "NULL": "NULL",
    "_IS": "IS",
    "_IN": "IN",
    "_LIKE": "LIKE",
    "_ESCAPE": "ESCAPE",
    "TIMES": "an operator",
    "_AND": "AND",
    "_OR": "OR",
    "OPEN": "(",
    "LPAR": "(",
    "RPAR": ")",
    "COMMA": "a comma",
    "SEMICOLON": "a semicolon",
    "SET": "SET",
    "REMOVE": "REMOVE",
    "$END": "the end",
}


@lru_cache(_REMEMBERED)
def parse_filter(text: str) -> Node:
    """Raises SyntaxProblem."""
    tree = cast("Node", _parse(_filter_parser(), text))
    _check_size(text, [tree])
    return tree


@lru_cache(_REMEMBERED)
def parse_action(text: str) -> list[Statement]:
    """Raises SyntaxProblem."""
    statements = cast("list[Statement]", _parse(_action_parser(), text))
    if len(statements) > STATEMENTS_MAX:
        at = statements[STATEMENTS_MAX].at
        raise SyntaxProblem(f"An action has at most {STATEMENTS_MAX} statements", text, at)
    _check_size(text, [each.value for each in statements if isinstance(each, Set)])
    return statements


@cache
def _filter_parser() -> "Lark":
    return _parser(_FILTER)


@cache
def _action_parser() -> "Lark":
    return _parser(_ACTION)


def _parser(grammar: str) -> "Lark":
    from lark import Lark  # slow to import, and most brokers have no such filters

    return Lark(grammar, parser="lalr", lexer="basic", transformer=cast("Any", _Builder()))


def _parse(parser: "Lark", text: str) -> object:
    from lark.exceptions import UnexpectedCharacters, UnexpectedToken

    if len(text) > EXPRESSION_CHARS_MAX:
        reason = f"An expression has at most {EXPRESSION_CHARS_MAX} characters, not {len(text)}"
        raise SyntaxProblem(reason, text, EXPRESSION_CHARS_MAX)
    try:
        text.encode()  # what comes of it must be fit to be written
        return parser.parse(text)
    except UnicodeEncodeError as problem:
        raise SyntaxProblem("Expected text that UTF-8 can carry", text, problem.start) from None
    except UnexpectedCharacters as problem:
        at = cast("int", problem.pos_in_stream)
        closing = {"'": "'", '"': '"', "[": "]"}.get(text[at])
        reason = "Expected a value, a property or an operator"
        if closing is not None:
            reason = f"Expected a {closing} that closes what is opened"
        raise SyntaxProblem(reason, text, at) from None
    except UnexpectedToken as problem:
        at = len(text) if problem.token.type == "$END" else problem.token.start_pos or 0
        raise SyntaxProblem(_expectation(problem.accepts), text, at) from None
    except _Found as found:
        raise SyntaxProblem(found.reason, text, found.at) from None


def _expectation(terminals: set[str]) -> str:
    if "STRING" in terminals:  # of which these are some
        terminals = terminals - {"NULL", "OPEN"}
    words = list(dict.fromkeys(word for name, word in _WORDS.items() if name in terminals))
    return "Expected " + " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def _check_size(text: str, trees: list[Node]) -> None:
    count = 0
    waiting = [(tree, 1) for tree in trees]
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if depth > DEPTH_MAX:
            reason = f"Parts of an expression are nested at most {DEPTH_MAX} deep"
            raise SyntaxProblem(reason, text, node.at)
        if count > NODES_MAX:
            raise SyntaxProblem(f"An expression has at most {NODES_MAX} parts", text, node.at)
        waiting.extend((part, depth + 1) for part in parts(node))


class _Found(Exception):
    """A problem that only shows once a part is complete."""

    def __init__(self, reason: str, at: int) -> None:
        self.reason = reason
        self.at = at


def _at(token: "Token") -> int:
    assert token.start_pos is not None
    return token.start_pos


class _Builder:
    """A method for each rule of the grammar, from its parts to a node."""

    def start(self, found: list[Any]) -> object:
        return found if isinstance(found[0], Statement) else found[0]

    def either(self, conditions: list[Node]) -> Node:
        return Or(conditions[0].at, tuple(conditions))

    def both(self, conditions: list[Node]) -> Node:
        return And(conditions[0].at, tuple(conditions))

    def negate(self, found: "tuple[Token, Node]") -> Node:
        return Not(_at(found[0]), found[1])

    def compare(self, found: "tuple[Node, Token, Node]") -> Node:
        left, symbol, right = found
        return Comparison(left.at, str(symbol), left, right)

    def is_null(self, found: "tuple[Node, Token]") -> Node:
        return IsNull(found[0].at, found[0])

    def is_not_null(self, found: "tuple[Node, Token, Token]") -> Node:
        return Not(found[0].at, IsNull(found[0].at, found[0]))

    def is_in(self, found: list[Node]) -> Node:
        value, *items = found
        return In(value.at, value, tuple(items))

    def is_not_in(self, found: list[Any]) -> Node:
        value, _, *items = found
        return Not(value.at, In(value.at, value, tuple(items)))

    def is_like(self, found: list[Node]) -> Node:
        value, pattern, *escape = found
        return Like(value.at, value, pattern, escape[0] if escape else None)

    def is_not_like(self, found: list[Any]) -> Node:
        value, _, *rest = found
        return Not(value.at, self.is_like([value, *rest]))

    def chain(self, found: list[Any]) -> Node:
        first, *rest = found
        pairs = tuple(zip(map(str, rest[::2]), rest[1::2], strict=True))
        return Chain(first.at, first, pairs)

    def sign(self, found: "tuple[Token, Node]") -> Node:
        symbol, value = found
        at = _at(symbol)
        if isinstance(value, Constant) and type(value.value) in (int, float):
            number = cast("int | float", value.value)
            return Constant(at, -number if symbol == "-" else number)
        return Sign(at, str(symbol), value)

    def group(self, found: "tuple[Token, Node]") -> Node:
        return Group(_at(found[0]), found[1])

    def text(self, found: "list[Token]") -> Node:
        return Constant(_at(found[0]), found[0][1:-1].replace("''", "'"))

    def integer(self, found: "list[Token]") -> Node:
        number = int(found[0])
        if number > -INTEGER_MIN:
            raise _Found("Expected a whole number of 64 bits", _at(found[0]))
        return Constant(_at(found[0]), number)

    def decimal(self, found: "list[Token]") -> Node:
        number = float(found[0])
        if isinf(number):
            raise _Found("Expected a number that a double can hold", _at(found[0]))
        return Constant(_at(found[0]), number)

    def true(self, found: "list[Token]") -> Node:
        return Constant(_at(found[0]), True)

    def false(self, found: "list[Token]") -> Node:
        return Constant(_at(found[0]), False)

    def null(self, found: "list[Token]") -> Node:
        return Constant(_at(found[0]), None)

    def parameter(self, found: "list[Token]") -> Node:
        return Parameter(_at(found[0]), str(found[0]))

    def call(self, found: "tuple[Token, Token, Node | None]") -> Node:
        name, _, value = found
        function = name.lower()
        if function == "newid" and value is None:
            return NewId(_at(name))
        if function in ("property", "p") and value is not None:
            return Lookup(_at(name), value)
        raise _Found("Expected newid(), property(name) or p(name)", _at(name))

    def exists(self, found: "tuple[Token, Token, Property]") -> Node:
        return Exists(_at(found[0]), found[2])

    def property(self, found: "list[Token]") -> Property:
        return Property(_at(found[0]), "user", _name(found[0]))

    def scoped(self, found: "list[Token]") -> Property:
        scope, name = found
        at = _at(scope)
        if scope.lower() == "sys":
            return Property(at, "sys", _name(name))
        if scope.lower() == "user":
            return Property(at, "user", _name(name))
        raise _Found("Expected sys. or user.; another name with a dot stands in brackets", at)

    def set(self, found: "tuple[Token, Property, Token, Node]") -> Statement:
        return Set(_at(found[0]), found[1], found[3])

    def remove(self, found: "tuple[Token, Property]") -> Statement:
        return Remove(_at(found[0]), found[1])


def _name(token: "Token") -> str:
    name = str(token)
    if token.type != "NAME":
        close = name[-1]
        name = name[1:-1].replace(close * 2, close)
    if not 0 < len(name) <= PROPERTY_CHARS_MAX:
        raise _Found(f"Expected a name of at most {PROPERTY_CHARS_MAX} characters", _at(token))
    return name
