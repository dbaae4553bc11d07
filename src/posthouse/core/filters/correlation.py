"""Correlation filters: fields and properties that must all have these very values."""

from operator import attrgetter

from posthouse.core.filters.problems import SyntaxProblem
from posthouse.core.filters.values import kind_of, plain
from posthouse.core.filters.view import MessageView, Predicate
from posthouse.core.message import Properties, Value

FIELDS = frozenset(
    ("id", "correlation_id", "to", "reply_to", "subject", "session_id", "reply_to_session_id",
     "content_type")
)  # fmt: skip


def compile_correlation(fields: dict[str, str], properties: Properties) -> Predicate:
    """Names and texts are compared exactly, numbers by value. Raises SyntaxProblem."""
    for field in fields:
        if field not in FIELDS:
            known = ", ".join(sorted(FIELDS))
            raise SyntaxProblem(f"Expected one of the fields {known}", field, 0)
    if not fields and not properties:
        raise SyntaxProblem("Expected at least one field or property", "", 0)
    wanted = [(attrgetter(field), text) for field, text in fields.items()]
    named = [(name, type(value) is str, value) for name, value in properties.items()]

    def matches(view: MessageView) -> bool:
        envelope = view.envelope
        for get, text in wanted:
            if get(envelope) != text:
                return False
        if named:
            found = view.properties
            for name, is_text, value in named:
                if name not in found:
                    return False
                if found[name] != value if is_text else not _equal(found[name], value):
                    return False
        return True

    return matches


def _equal(left: Value, right: Value) -> bool:
    kind = kind_of(left)
    if kind is None:
        return left is None and right is None
    return kind == kind_of(right) and plain(left) == plain(right)
