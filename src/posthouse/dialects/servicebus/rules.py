"""Rules of subscriptions, as clients write them on $management and read them from there."""

from posthouse.amqp.types import Described, Int, Symbol, Timestamp, ULong, Value
from posthouse.core.message import Properties
from posthouse.core.rules import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    PatternFilter,
    Rule,
    SqlFilter,
    TrueFilter,
)
from posthouse.dialects.servicebus.message import Unfit, native_value, neutral_value

_RULE, _EMPTY_ACTION, _SQL_ACTION = 0x13700000004, 0x13700000005, 0x13700000006
_SQL, _TRUE, _FALSE, _CORRELATION = 0x1370000006, 0x1370000007, 0x1370000008, 0x1370000009
_COMPATIBILITY = Int(20)

# The fields of a correlation filter, in the order in which they are listed.
_FIELDS = {
    "correlation-id": "correlation_id", "message-id": "id", "to": "to", "reply-to": "reply_to",
    "label": "subject", "session-id": "session_id", "reply-to-session-id": "reply_to_session_id",
    "content-type": "content_type",
}  # fmt: skip
_PLAIN: dict[str, Filter] = {"1=1": TrueFilter(), "1=0": FalseFilter()}


def read_rule(name: str, description: Value) -> Rule:
    """Reads the description of a rule. Raises Unfit."""
    if not isinstance(description, dict):
        raise Unfit("rule-description must be a map.")
    action = description.get("sql-rule-action")
    expression, parameters = "", Properties()
    if action is not None:
        expression, parameters = _expression(action, "sql-rule-action")
    return Rule(name, _read_filter(description), expression, parameters)


def _read_filter(description: dict[Value, Value]) -> Filter:
    sql, correlation = description.get("sql-filter"), description.get("correlation-filter")
    if sql is not None:
        expression, parameters = _expression(sql, "sql-filter")
        plain = _PLAIN.get(expression.replace(" ", ""))
        return plain if plain is not None else SqlFilter(expression, parameters)
    if isinstance(correlation, dict):
        fields = {
            field: str(correlation[name])
            for name, field in _FIELDS.items()
            if correlation.get(name) is not None
        }
        return CorrelationFilter(fields, _neutral(correlation.get("properties")))
    raise Unfit("rule-description must have a sql-filter or a correlation-filter.")


def _expression(given: Value, what: str) -> tuple[str, Properties]:
    text = given.get("expression") if isinstance(given, dict) else None
    if not isinstance(text, str):
        raise Unfit(f"{what} must have an expression.")
    return str(text), _neutral(given.get("parameters"))


def _neutral(given: Value) -> Properties:
    if not isinstance(given, dict):
        return {}
    return {str(name).removeprefix("@"): neutral_value(value) for name, value in given.items()}


def write_rule(rule: Rule) -> Described:
    """Writes the description of a rule; some clients skip any that differs from this form."""
    action = Described(ULong(_EMPTY_ACTION), [])
    if rule.action:
        action = Described(ULong(_SQL_ACTION), [rule.action, _COMPATIBILITY])
    fields: list[Value] = [_write_filter(rule.filter), action, rule.name]
    return Described(ULong(_RULE), [*fields, Timestamp(rule.created_ms)])


def _write_filter(wanted: Filter) -> Described:
    match wanted:
        case TrueFilter():
            return Described(ULong(_TRUE), [])
        case FalseFilter():
            return Described(ULong(_FALSE), [])
        case SqlFilter():
            return Described(ULong(_SQL), [wanted.expression, _COMPATIBILITY])
        case PatternFilter():  # clients have no word for it
            return Described(ULong(_SQL), [f"sys.Label matches '{wanted.pattern}'", _COMPATIBILITY])
        case CorrelationFilter():
            fields: list[Value] = [wanted.fields.get(each) for each in _FIELDS.values()]
            found = {Symbol(n): native_value(v) for n, v in wanted.properties.items()}
            return Described(ULong(_CORRELATION), [*fields, found])
