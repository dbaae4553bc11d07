"""The statements of an action, applied to a draft of a message."""

from collections.abc import Callable

from posthouse.core.commands import GROUP_CHARS_MAX, TEXT_CHARS_MAX, TIME_MS_MAX
from posthouse.core.filters.problems import EvaluationProblem
from posthouse.core.filters.texts import as_text, as_type_of, span_ms
from posthouse.core.filters.view import SETTABLE, Draft, Evaluate, failing
from posthouse.core.message import Value

Step = Callable[[Draft], None]


def set_property(name: str, get: Evaluate) -> Step:
    def put(draft: Draft) -> None:
        value = get(draft)
        spelled = draft.spelled(name)
        if spelled is None:
            draft.put(name, value)
        else:
            draft.put(spelled, as_type_of(draft.properties[spelled], value))

    return put


def remove_property(name: str) -> Step:
    def remove(draft: Draft) -> None:
        spelled = draft.spelled(name)
        if spelled is not None:
            draft.remove(spelled)

    return remove


def set_system(name: str, get: Evaluate) -> Step:
    field = SETTABLE.get(name.lower())
    if field is None:
        return failing(f"sys.{name} cannot be set.")
    convert = _CONVERT.get(field, as_text)
    unset = _UNSET.get(field, "")
    longest = GROUP_CHARS_MAX if field in ("session_id", "partition_key") else TEXT_CHARS_MAX

    def put(draft: Draft) -> None:
        value = get(draft)
        if value is None:
            draft.put_field(field, unset)
            return
        converted = convert(value)
        if converted is None or (type(converted) is str and len(converted) > longest):
            shown = value[:50] if isinstance(value, str | bytes) else value
            raise EvaluationProblem(f"sys.{name} cannot have such a value: {shown!r:.50}.")
        draft.put_field(field, converted)

    return put


def _as_ttl_ms(value: Value) -> int | None:
    """Milliseconds, or a text as span_ms reads it."""
    ms = span_ms(value) if type(value) is str else value
    return ms if type(ms) is int and 1 <= ms <= TIME_MS_MAX else None


_UNSET: dict[str, Value] = {"ttl_ms": None, "session_id": None, "partition_key": None}
_CONVERT: dict[str, Callable[[Value], Value]] = {"ttl_ms": _as_ttl_ms}
