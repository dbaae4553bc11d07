"""SQL actions: what SET and REMOVE do to a message."""

import math

import pytest

from posthouse.core.commands import HAND_ON_BYTES_MAX
from posthouse.core.filters.problems import EvaluationProblem, SyntaxProblem
from posthouse.core.filters.sql import compile_action
from posthouse.core.filters.view import Amendment, MessageView
from posthouse.core.message import Envelope, Value, encode_envelope, span, timestamp, uuid
from tests.core.filters.views import a_view, amended, numbered_ids, truth

ID = uuid(bytes(range(16)))
ID_TEXT = "00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_set_creates_a_property() -> None:
    assert amended("SET a = 'x'") == Amendment({"a": "x"}, [], {})
    assert amended("set user.[a b] = 1 + 2;") == Amendment({"a b": 3}, [], {})


def test_set_changes_a_property_under_the_name_it_has() -> None:
    assert amended("SET COLOR = 'red'", color="blue") == Amendment({"color": "red"}, [], {})


def test_remove_takes_a_property_under_the_name_it_has() -> None:
    assert amended("REMOVE COLOR", color="blue") == Amendment({}, ["color"], {})
    assert amended("REMOVE nowhere", color="blue") == Amendment({}, [], {})


def test_statements_are_separated_by_semicolon_comma_or_nothing() -> None:
    text = "SET a = 1; SET b = 2, SET c = 3 SET d = 4 REMOVE e; REMOVE f,"
    expected = Amendment({"a": 1, "b": 2, "c": 3, "d": 4}, ["e", "f"], {})
    assert amended(text, e=1, f=1) == expected


def test_later_statements_see_what_earlier_ones_did() -> None:
    text = "SET a = 1; SET b = a + 1; SET sys.Label = 'l'; SET c = sys.Label; REMOVE a; SET d = a"
    assert amended(text).properties == {"b": 2, "c": "l", "d": None}


def test_what_is_removed_and_set_again_is_set_in_its_new_type() -> None:
    assert amended("REMOVE a; SET a = 'x'", a=1) == Amendment({"a": "x"}, [], {})
    assert amended("SET a = 'x'; REMOVE a; REMOVE A", a=1) == Amendment({}, ["a"], {})
    text = "REMOVE a; SET a = 1; REMOVE a"
    assert amended(text, a=1) == Amendment({}, ["a"], {})


def test_names_that_differ_in_case_only_are_one_also_when_they_are_new() -> None:
    assert amended("SET New = 1; SET NEW = 2").properties == {"New": 2}


def test_a_view_is_not_changed_by_an_action() -> None:
    view = a_view(Envelope(subject="l", properties={"a": 1}))
    amended("SET a = 2; SET sys.Label = 'x'; SET sys.TimeToLive = 5; SET b = 1", view)
    assert truth("a = 1 AND sys.Label = 'l' AND sys.TimeToLive IS NULL AND b IS NULL", view) is True


def test_an_action_sees_an_amended_message() -> None:
    data = encode_envelope(Envelope(properties={"a": 1}))
    view = MessageView(data, new_id=numbered_ids(), amendment=Amendment({"b": 2}, [], {}), ttl_ms=5)
    assert amended("SET c = a + b + sys.TimeToLive", view).properties == {"c": 8}


def test_what_is_unknown_is_set_to_null() -> None:
    assert amended("SET a = x; SET b = NULL; SET c = x + 1", b=5).properties == {
        "a": None, "b": None, "c": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "text", "expected"),
    [
        ("x", "5", "5"), ("x", "1.5", "1.5"), ("x", "TRUE", "True"), (5, "'6'", 6), (5, "'-6'", -6),
        (5, "6.0", 6), (5, "6.5", 6.5), (5, "'x'", "x"), (5, "'9223372036854775808'",
        "9223372036854775808"), (5, "1e300", 1e300), (5, "inf", math.inf), (1.5, "2", 2.0),
        (1.5, "'2.5'", 2.5), (1.5, "'x'", "x"), (True, "'FALSE'", False), (True, "'true'", True),
        (True, "'x'", "x"), (True, "1", 1), (ID, f"'{ID_TEXT}'", ID), (ID, "'x'", "x"),
        (ID, "1", 1),
        (timestamp(0), "'1970-01-01T00:00:05Z'", timestamp(5_000)), (timestamp(0), "'x'", "x"),
        (span(0), "'1.00:00:01.5'", span(864_015_000_000)), (span(0), "'x'", "x"),
        (b"x", "'x'", "x"), ("x", "data", b"x"), ("x", "id", ID_TEXT), (None, "5", 5),
    ],
)  # fmt: skip
def test_set_converts_to_the_old_type_where_it_can(old: Value, text: str, expected: Value) -> None:
    view = a_view(a=old, inf=math.inf, data=b"x", id=ID)
    found = amended(f"SET a = {text}", view).properties["a"]
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("MessageId", "id"), ("CorrelationId", "correlation_id"), ("SessionId", "session_id"),
        ("ReplyToSessionId", "reply_to_session_id"), ("Label", "subject"), ("SUBJECT", "subject"),
        ("To", "to"), ("ReplyTo", "reply_to"), ("ContentType", "content_type"),
        ("partitionkey", "partition_key"),
    ],
)  # fmt: skip
def test_set_changes_a_system_property(name: str, field: str) -> None:
    assert amended(f"SET sys.{name} = 'x'") == Amendment({}, [], {field: "x"})
    assert amended(f"SET sys.{name} = 5").fields == {field: "5"}
    unset = None if field in ("session_id", "partition_key") else ""
    assert amended(f"SET sys.{name} = NULL").fields == {field: unset}


@pytest.mark.parametrize(
    ("text", "ms"),
    [("5000", 5_000), ("'00:01:00'", 60_000), ("'1.02:03:04.5'", 93_784_500), ("NULL", None)],
)
def test_a_time_to_live_is_milliseconds_or_a_span_of_time(text: str, ms: int | None) -> None:
    assert amended(f"SET sys.TimeToLive = {text}").fields == {"ttl_ms": ms}


@pytest.mark.parametrize(
    "text",
    ["SET sys.SequenceNumber = 1", "SET sys.Nothing = 1", "REMOVE sys.Label", "SET a = 1 / 0",
     "SET a = sys.Nothing", "SET sys.Label = data", "SET sys.TimeToLive = 'soon'",
     "SET sys.TimeToLive = 0", "SET sys.TimeToLive = 1.5", "SET sys.TimeToLive = TRUE",
     "SET sys.ScheduledEnqueueTimeUtc = '2030-01-01'", "SET sys.SessionId = long",
     "SET sys.Label = long + long", "SET a = long; SET b = long"],
)  # fmt: skip
def test_what_cannot_be_done_is_a_problem(text: str) -> None:
    action = compile_action(text, {})
    with pytest.raises(EvaluationProblem):
        action(a_view(data=b"x", long="x" * 32_768))


def test_newid_gives_a_property_an_id() -> None:
    assert amended("SET a = newid()").properties == {"a": uuid((1).to_bytes(16, "big"))}


def test_parameters_have_values_in_actions() -> None:
    assert compile_action("SET a = @b", {"@b": 5})(a_view()).properties == {"a": 5}


def test_a_condition_can_be_set_in_parentheses() -> None:
    assert amended("SET a = (b > 1)", b=2).properties == {"a": True}


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("", 1, "SET or REMOVE"), ("SET", 4, "a property"), ("SET a", 6, "="),
        ("SET a 1", 7, "="), ("SET a =", 8, "a value"), ("a = 1", 1, "SET or REMOVE"),
        ("SET a = 1;;", 11, "SET, REMOVE or the end"), ("SET a = b = 1", 11, "a comma"),
        ("REMOVE 'a'", 8, "a property"), ("SET a = @b", 9, "a parameter"),
        ("SET a = 1 REMOVE", 17, "a property"), ("SET a < 1", 7, "="),
    ],
)  # fmt: skip
def test_a_mistake_is_said_with_its_place(text: str, column: int, reason: str) -> None:
    with pytest.raises(SyntaxProblem) as raised:
        compile_action(text, {})
    assert raised.value.column == column
    assert reason in str(raised.value)


def test_an_action_has_at_most_so_many_statements() -> None:
    assert len(amended(" ".join(f"SET a{n}={n}" for n in range(32))).properties) == 32
    with pytest.raises(SyntaxProblem, match="at most 32 statements, in column 257"):
        compile_action("SET a=1;" * 33, {})


def test_an_action_is_bounded_as_a_whole() -> None:
    with pytest.raises(SyntaxProblem, match="1024 characters"):
        compile_action("SET a = 1" + " " * 1_024, {})
    with pytest.raises(SyntaxProblem, match="32 deep"):
        compile_action("SET a = " + "(" * 100 + "1" + ")" * 100, {})
    with pytest.raises(SyntaxProblem, match="UTF-8"):
        compile_action("SET [\udfff] = 1", {})


def test_what_actions_write_of_one_message_is_bounded() -> None:
    view = a_view(a="x")
    action = compile_action("SET b = a", {})
    action(view)
    assert view.amended_bytes > 0
    view.amended_bytes = HAND_ON_BYTES_MAX
    with pytest.raises(EvaluationProblem, match="too much"):
        action(view)
