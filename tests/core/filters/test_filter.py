"""SQL filters: what each part of the language means, and what is no part of it."""

import math
from typing import Any

import pytest

from posthouse.core.filters.problems import EvaluationProblem, SyntaxProblem, TooManyLooks
from posthouse.core.filters.sql import compile_filter
from posthouse.core.filters.view import MessageView
from posthouse.core.message import Envelope, Value, encode_envelope, span, timestamp, uuid
from tests.core.filters.views import a_view, numbered_ids, truth, with_parameters

ID = uuid(bytes(range(16)))
OTHER_ID = uuid(bytes(16))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1", True), ("a <> 1", False), ("a != 1", False), ("a < 2", True), ("a <= 1", True),
        ("a > 0", True), ("a >= 2", False), ("2 > a", True), ("0 < a", True), ("1 >= a", True),
        ("1 <= a", True), ("1 = a", True), ("2 <> a", True), ("b = 'x'", True), ("b < 'y'", True),
        ("'w' < b", True), ("b <> 'y'", True), ("b = 'X'", False), ("a = 1.0", True),
        ("a < 1.5", True), ("c = TRUE", True), ("c <> false", True), ("TRUE = c", True),
        ("a = a", True), ("b > a", None), ("1 = 1", True), ("1=0", False), ("a = a + 0", True),
    ],
)  # fmt: skip
def test_values_of_one_kind_compare(text: str, expected: bool | None) -> None:
    assert truth(text, a=1, b="x", c=True) is expected


@pytest.mark.parametrize(
    "text",
    ["a = 'x'", "a <> 'x'", "b = 1", "b < 1", "c = 1", "c <> 0", "a = TRUE", "1 = TRUE",
     "a = d", "b = e", "d = e", "f = b"],
)  # fmt: skip
def test_values_of_unlike_kinds_are_neither_equal_nor_not(text: str) -> None:
    assert truth(text, a=1, b="x", c=True, d=timestamp(1), e=ID, f=b"x") is None


@pytest.mark.parametrize("symbol", ["<", "<=", ">", ">="])
def test_truths_ids_and_bytes_have_no_order(symbol: str) -> None:
    assert truth(f"a {symbol} a", a=True) is None
    assert truth(f"a {symbol} TRUE", a=True) is None
    assert truth(f"a {symbol} b", a=ID, b=OTHER_ID) is None
    assert truth(f"a {symbol} a", a=b"x") is None


def test_times_ids_and_bytes_compare_with_their_like() -> None:
    assert truth("a < b", a=timestamp(-5), b=timestamp(5)) is True
    assert truth("a = b", a=ID, b=OTHER_ID) is False
    assert truth("a = b", a=ID, b=ID) is True
    assert truth("a = b", a=b"x", b=b"x") is True
    assert with_parameters("a >= @t", {"t": timestamp(5)}, a=timestamp(7)) is True
    assert with_parameters("a >= @t", {"t": span(-5)}, a=span(7)) is True
    assert with_parameters("a >= @t", {"t": span(5)}, a=timestamp(7)) is None
    assert with_parameters("a = @t", {"t": ID}, a=OTHER_ID) is False
    assert with_parameters("a = @t", {"t": ID}, a=timestamp(1)) is None


def test_a_whole_number_compares_with_a_fraction_by_value() -> None:
    assert truth("a = 9007199254740992.0", a=(1 << 53) + 1) is False
    assert truth("a = 9007199254740992.0", a=1 << 53) is True


def test_what_is_not_a_number_equals_nothing() -> None:
    assert truth("a = a", a=math.nan) is False
    assert with_parameters("a IN (@n, 1)", {"n": math.nan}, a=math.nan) is False


@pytest.mark.parametrize(
    "text",
    ["x = 1", "x <> 1", "x < 'a'", "x = x", "x + 1 = 1", "1 - x = 1", "-x = 1", "x LIKE 'a'",
     "a LIKE x", "a NOT LIKE x", "a LIKE 'a' ESCAPE x", "x IN (1)", "x NOT IN (1)", "NOT x = 1",
     "x", "NOT x", "p(x) = 1", "n = 1", "n = n", "n = NULL", "NULL = NULL", "NULL", "a = NULL",
     "a <> NULL"],
)  # fmt: skip
def test_what_is_missing_or_null_makes_it_unknown(text: str) -> None:
    assert truth(text, a="a", n=None) is None


@pytest.mark.parametrize(
    ("left", "right", "both", "either"),
    [
        ("TRUE", "TRUE", True, True), ("TRUE", "FALSE", False, True), ("TRUE", "x", None, True),
        ("FALSE", "FALSE", False, False), ("FALSE", "x", False, None), ("x", "x", None, None),
    ],
)  # fmt: skip
def test_and_and_or_have_three_values(
    left: str, right: str, both: bool | None, either: bool | None
) -> None:
    for one, other in ((left, right), (right, left)):
        assert truth(f"{one} AND {other}") is both
        assert truth(f"{one} OR {other}") is either


def test_not_binds_less_than_comparisons_and_more_than_and() -> None:
    assert truth("NOT a = 2 AND a = 1", a=1) is True
    assert truth("NOT (a = 1 AND a = 2)", a=1) is True
    assert truth("NOT NOT a = 1", a=1) is True


def test_and_binds_more_than_or() -> None:
    assert truth("1=1 OR 1=1 AND 1=0") is True
    assert truth("(1=1 OR 1=1) AND 1=0") is False


def test_what_was_decided_is_not_evaluated_further() -> None:
    assert truth("1=0 AND 1/0 = 1") is False
    assert truth("1=1 OR sys.Nothing = 1") is True
    assert truth("1 IN (a, 1/0)", a=1) is True
    with pytest.raises(EvaluationProblem):
        truth("x AND 1/0 = 1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3 = 7", True), ("(1 + 2) * 3 = 9", True), ("10 - 2 - 3 = 5", True),
        ("7 / 2 = 3", True), ("-7 / 2 = -3", True), ("7 / -2 = -3", True), ("-7 / -2 = 3", True),
        ("7 / 2.0 = 3.5", True), ("7 % 3 = 1", True), ("-7 % 3 = -1", True), ("7 % -3 = 1", True),
        ("7.5 % 2 = 1.5", True), ("12 / 2 / 3 = 2", True), ("2 * 1.5 = 3", True),
        ("- -a = 5", True), ("+a = 5", True), ("-a = -5", True), ("--5 = 5", True),
        ("- 0.5 = -.5", True), ("1e2 = 100", True), ("1.5E-1 = 0.15", True), ("2. = 2", True),
        ("a + 1 = 6", True), ("a-1=4", True), ("1 - a * 2 = -9", True),
    ],
)  # fmt: skip
def test_numbers_are_reckoned_with(text: str, expected: bool) -> None:
    assert truth(text, a=5) is expected


def test_the_remainder_of_infinity_is_no_number() -> None:
    assert truth("a % 2 = a % 2", a=math.inf) is False
    assert truth("5 % a = 5", a=math.inf) is True


@pytest.mark.parametrize(
    "text",
    ["1 / 0 = 1", "1.0 / 0 = 1", "1 % 0 = 1", "1 % 0.0 = 1", "most + 1 = 1", "-least = 1",
     "least - 1 = 1", "most * 2 = 1", "least / -1 = 1", "huge % huge + huge = 1", "t + 1 = 1",
     "t - t = 1", "t * 2 = 1", "t / 2 = 1", "t % 2 = 1", "-t = 1", "-s = 1", "s * 2 = 1",
     "s - 1 = 1", "s + data = 1", "data + s = 1", "sys.Nothing = 1", "NOT sys.Nothing IS NULL",
     "EXISTS(sys.Nothing)", "p(1) = 1", "s LIKE s ESCAPE 'ab'", "s LIKE 'a' + s ESCAPE s",
     "s LIKE long", "s + long = long"],
)  # fmt: skip
def test_what_has_no_answer_is_a_problem(text: str) -> None:
    view = a_view(
        most=(1 << 63) - 1, least=-(1 << 63), huge=(1 << 64) - 1, t=True, s="x", data=b"x",
        long="x" * 65_536,
    )  # fmt: skip
    predicate = compile_filter(text, {})
    with pytest.raises(EvaluationProblem):
        predicate(view)


def test_a_problem_says_which_kinds_do_not_go_together() -> None:
    with pytest.raises(EvaluationProblem, match="divided: truth and number"):
        truth("a / 1 = 1", a=True)


def test_texts_are_joined_by_plus() -> None:
    assert truth("a + 'b' = 'ab'", a="a") is True
    assert truth("a + '-' + b = 'a-5'", a="a", b=5) is True
    assert truth("1.5 + a = '1.5a'", a="a") is True
    assert truth("a + TRUE = 'aTrue'", a="a") is True
    assert truth("a + '' = '00010203-0405-0607-0809-0a0b0c0d0e0f'", a=ID) is True
    assert truth("a + '' = '1970-01-01T00:00:00.005Z'", a=timestamp(5)) is True
    assert truth("a + '' = '1.02:03:04.0000005'", a=span(937_840_000_005)) is True
    assert truth("a + '' = '-00:00:05'", a=span(-50_000_000)) is True
    assert truth("a + x = 'a'", a="a") is None


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("a LIKE 'abc'", "abc", True), ("a LIKE 'abc'", "abcd", False),
        ("a LIKE 'ab%'", "ab", True), ("a LIKE 'ab%'", "xab", False),
        ("a LIKE '%ab'", "xxab", True), ("a LIKE '%b%'", "abc", True),
        ("a LIKE 'A%'", "abc", False), ("a LIKE 'a_c'", "abc", True), ("a LIKE 'a_c'", "ac", False),
        ("a NOT LIKE 'a%'", "b", True), ("a NOT LIKE 'a%'", "a", False),
        ("a LIKE 'ABC\\%' ESCAPE '\\'", "ABC%", True),
        ("a LIKE 'ABC\\%' ESCAPE '\\'", "ABCD", False),
        ("a LIKE '!_!!%' ESCAPE '!'", "_!x", True), ("a LIKE 'a' + '%'", "ab", True),
        ("a LIKE b", "xyz", True), ("a LIKE b ESCAPE '%'", "xyz", False),
        ("a LIKE b ESCAPE 'x'", "%z", True), ("a LIKE ''", "", True), ("a LIKE '%'", "", True),
        ("a LIKE 'a\n%'", "a\nb", True), ("a LIKE 1", "1", None), ("1 LIKE '1'", "1", None),
        ("a LIKE '%' ESCAPE 1", "1", None), ("a LIKE '%' ESCAPE n", "1", None),
    ],
)  # fmt: skip
def test_like_knows_any_run_and_any_character(text: str, value: str, expected: bool | None) -> None:
    assert truth(text, a=value, b="x%z") is expected


def test_like_of_a_number_is_unknown() -> None:
    assert truth("a LIKE '%'", a=1) is None
    assert truth("a LIKE b", a="1", b=1) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a IN (1, 2)", True), ("a IN (2, 3)", False), ("a NOT IN (2)", True), ("a IN (1.0)", True),
        ("a IN ('1')", False), ("a IN (TRUE)", False), ("b IN ('x', 1)", True),
        ("b NOT IN ('X')", True), ("b IN (1)", False), ("c IN (1)", False), ("c IN (true)", True),
        ("a IN (x, 1)", True), ("a IN (x, 2)", False), ("a IN (NULL, 2)", False),
        ("a IN (b, c)", False), ("a IN (a)", True), ("x IN (x)", None), ("a + 1 IN (2)", True),
        ("NULL IN (NULL)", None), ("d IN ('x')", False), ("d IN (d, 1)", True),
    ],
)  # fmt: skip
def test_in_finds_equal_values(text: str, expected: bool | None) -> None:
    assert truth(text, a=1, b="x", c=True, d=timestamp(5)) is expected


def test_in_finds_parameters_of_all_kinds() -> None:
    kinds: dict[str, Value] = {"i": 1, "f": 1.5, "s": "x", "b": True, "d": b"x", "t": timestamp(1)}
    text = "v IN (@i, @f, @s, @b, @d, @t, @n)"
    for value in kinds.values():
        assert with_parameters(text, {**kinds, "n": None}, v=value) is True
    assert with_parameters(text, {**kinds, "n": None}, v=timestamp(2)) is False


def test_is_null_takes_missing_and_null_for_one() -> None:
    assert truth("x IS NULL") is True
    assert truth("n IS NULL", n=None) is True
    assert truth("a IS NOT NULL", a=0) is True
    assert truth("a IS NULL", a="") is False
    assert truth("x + 1 IS NULL") is True


def test_exists_tells_null_from_missing() -> None:
    assert truth("EXISTS(a)", A=None) is True
    assert truth("EXISTS (user.a)", a=1) is True
    assert truth("EXISTS(x)", a=1) is False
    assert truth("NOT EXISTS([x y])") is True


def test_names_of_properties_compare_without_case_but_the_exact_one_goes_first() -> None:
    assert truth("COLOR = 'red'", Color="red") is True
    assert truth("color = 1", Color=0, color=1, COLOR=2) is True
    assert truth("cOLOR = 0", Color=0, color=1, COLOR=2) is True
    assert truth("[STRASSE] = 1", Straße=1) is True


def test_names_are_quoted_in_two_ways() -> None:
    assert truth("[a b] = 1", **{"a b": 1}) is True
    assert truth('"a b" = 1', **{"a b": 1}) is True
    assert truth("[a]]b] = 1", **{"a]b": 1}) is True
    assert truth('"a""b" = 1', **{'a"b': 1}) is True
    assert truth("user.[and] = 1", **{"and": 1}) is True
    assert truth("[sys.Label] = 1", **{"sys.Label": 1}) is True


def test_names_are_of_letters_digits_and_underscores() -> None:
    assert truth("_größe2 = 1", _größe2=1) is True
    assert truth("android = 1 AND notes = 2 AND inner = 3", android=1, notes=2, inner=3) is True
    assert truth("newid = 1 AND p = 2 AND set = 3", newid=1, p=2, set=3) is True


def test_texts_hold_doubled_quotes_and_any_character() -> None:
    assert truth("a = 'it''s'", a="it's") is True
    assert truth("a = ''''", a="'") is True
    assert truth("a = '\U0001f600 -- \n'", a="\U0001f600 -- \n") is True


def test_keywords_have_any_case_and_space_is_free() -> None:
    assert truth("Not(a=1)oR(b\tlike\n'x%')AnD b Is nOt nUlL", a=1, b="xy") is True


def test_a_bare_truth_is_a_condition() -> None:
    assert truth("a", a=True) is True
    assert truth("a AND NOT b", a=True, b=False) is True
    assert truth("a", a=1) is None
    assert truth("TRUE") is True
    assert truth("p('a')", a=True) is True
    assert with_parameters("@t", {"t": True}) is True
    assert truth("(a = 1) = TRUE", a=1) is True
    assert truth("EXISTS(a) = (b LIKE 'x')", a=1, b="x") is True
    assert truth("(a = 1 OR b) = (NOT b AND a = 1)", a=1, b=False) is True
    assert truth("(a IN (1)) = (b IS NULL)", a=1) is True


@pytest.mark.parametrize("text", ["5", "'x'", "a + 1", "-a", "newid()", "a = 1 AND 5", "NOT 'x'",
                                  "(5)", "@t"])  # fmt: skip
def test_what_can_be_no_truth_is_no_condition(text: str) -> None:
    with pytest.raises(SyntaxProblem, match="Expected a condition"):
        compile_filter(text, {"t": 5})


def test_parameters_are_named_with_or_without_their_sign_and_in_any_case() -> None:
    assert with_parameters("a = @Name", {"@name": "x"}, a="x") is True
    assert with_parameters("a = @name", {"NAME": "x"}, a="x") is True
    assert with_parameters("@a < @b", {"a": 1, "b": 2}) is True
    assert with_parameters("a LIKE @p ESCAPE @e", {"p": "!%%", "e": "!"}, a="%x") is True
    assert with_parameters("a + @n = 3 AND -@n = -2", {"n": 2}, a=1) is True
    assert with_parameters("a = @n", {"n": None}, a=1) is None


def test_newid_is_another_one_each_time() -> None:
    assert truth("newid() = newid()") is False
    assert truth("NEWID() IS NOT NULL") is True


def test_a_property_is_found_by_a_reckoned_name() -> None:
    assert truth("property('a' + 'B') = 1", ab=1) is True
    assert truth("P(n) = 1", n="AB", ab=1) is True


A_MESSAGE = Envelope(
    id="i", correlation_id="c", session_id="s", reply_to_session_id="rs", subject="l", to="t",
    reply_to="r", content_type="ct", partition_key="pk",
)  # fmt: skip
FULL = MessageView(
    encode_envelope(A_MESSAGE), new_id=numbered_ids(), sequence=7, enqueued_sequence=6,
    enqueued_ms=5_000, expires_ms=9_000, due_ms=4_000, ttl_ms=4_000, size=123, count=2, state=1,
    source="q",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MessageId", "i"), ("CorrelationId", "c"), ("SessionId", "s"), ("ReplyToSessionId", "rs"),
        ("Label", "l"), ("Subject", "l"), ("To", "t"), ("ReplyTo", "r"), ("ContentType", "ct"),
        ("PartitionKey", "pk"), ("TimeToLive", 4_000), ("EnqueuedTimeUtc", timestamp(5_000)),
        ("ScheduledEnqueueTimeUtc", timestamp(4_000)), ("ExpiresAtUtc", timestamp(9_000)),
        ("SequenceNumber", 7), ("EnqueuedSequenceNumber", 6), ("DeliveryCount", 2),
        ("DeadLetterSource", "q"), ("State", 1), ("Size", 123),
    ],
)  # fmt: skip
def test_a_system_property_is_known_by_its_name(name: str, value: Value) -> None:
    for spelled in (name, name.lower(), name.upper()):
        assert compile_filter(f"sys.{spelled} = @v", {"v": value})(FULL) is True
        assert compile_filter(f"EXISTS(SYS.[{spelled}])", {})(FULL) is True


@pytest.mark.parametrize(
    "name",
    ["MessageId", "CorrelationId", "SessionId", "ReplyToSessionId", "Label", "Subject", "To",
     "ReplyTo", "ContentType", "PartitionKey", "ViaPartitionKey", "TimeToLive", "EnqueuedTimeUtc",
     "ScheduledEnqueueTimeUtc", "ExpiresAtUtc", "DeadLetterSource"],
)  # fmt: skip
def test_a_system_property_that_is_not_set_is_null(name: str) -> None:
    assert truth(f"sys.{name} IS NULL") is True
    assert truth(f"sys.{name} = 'x'") is None
    assert truth(f"EXISTS(sys.{name})") is False


def test_a_user_property_does_not_hide_a_system_property() -> None:
    view = a_view(Envelope(subject="l", properties={"Label": "mine"}))
    assert truth("sys.Label = 'l' AND Label = 'mine' AND user.Label = 'mine'", view) is True


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("", 1, "a value, a property or NOT"),
        ("a = ", 5, "a value or a property"),
        ("a = 1 AND", 10, "a value, a property or NOT"),
        ("a = 1 b", 7, "an operator, AND, OR or the end"),
        ("a = = 1", 5, "a value"),
        ("a = 1 = 1", 7, "AND, OR or the end"),
        ("(a = 1", 7, "Expected )"),
        ("a = 1)", 6, "the end"),
        ("a IS 1", 6, "NOT or NULL"),
        ("a NOT 1", 7, "IN or LIKE"),
        ("a IN 1", 6, "("),
        ("a IN ()", 7, "a value"),
        ("a IN (1", 8, ") or a comma"),
        ("a = 'x", 5, "a ' that closes"),
        ("a = 'x''", 5, "a ' that closes"),
        ('"a = 1', 1, 'a " that closes'),
        ("1 = [a", 5, "a ] that closes"),
        ("a ? 1", 3, "a value, a property or an operator"),
        ("a\n=\n?", 5, "a value, a property or an operator"),
        ("a.b = 1", 1, "sys. or user."),
        ("a.b.c = 1", 4, "a comparison"),
        ("[] = 1", 1, "a name"),
        (f"[{'x' * 261}] = 1", 1, "a name of at most 260"),
        ("and = 1", 1, "a value"),
        ("EXISTS(1)", 8, "a property"),
        ("EXISTS a", 8, "("),
        ("now() = 1", 1, "newid(), property(name) or p(name)"),
        ("newid(1) = 1", 1, "newid(), property(name) or p(name)"),
        ("p() = 1", 1, "newid(), property(name) or p(name)"),
        ("a = 9223372036854775808", 5, "64 bits"),
        ("a = - -9223372036854775808", 5, "64 bits"),
        ("a = 99999999999999999999", 5, "64 bits"),
        ("a = 1e999", 5, "double"),
        ("a = @b", 5, "a parameter that has a value"),
        ("a LIKE 'x!' ESCAPE '!'", 8, "escape character"),
        ("a LIKE 'x' ESCAPE 'ab'", 8, "one character"),
        ("a = '\ud800'", 6, "UTF-8"),
    ],
)  # fmt: skip
def test_a_mistake_is_said_with_its_place(text: str, column: int, reason: str) -> None:
    with pytest.raises(SyntaxProblem) as raised:
        compile_filter(text, {})
    assert raised.value.column == column
    assert reason in str(raised.value)


def test_a_mistake_shows_what_stands_there() -> None:
    with pytest.raises(SyntaxProblem) as raised:
        compile_filter("color = 'red' blue", {})
    expected = "Expected an operator, AND, OR or the end, in column 15, before 'blue'."
    assert str(raised.value) == expected


def test_the_smallest_and_the_largest_whole_number_can_be_written() -> None:
    assert truth("a = -9223372036854775808", a=-(1 << 63)) is True
    assert truth("a = 9223372036854775807", a=(1 << 63) - 1) is True


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10_000 + "a" + ")" * 10_000, "NOT " * 10_000 + "a", "-" * 10_000 + "1 = 1",
        "a IN (" + "1," * 10_000 + "1)", "(" * 10_000, "(" * 1_000, "(" * 500 + "a" + ")" * 500,
        "(" * 100 + "a" + ")" * 100, "NOT " * 250 + "a", "- " * 500 + "a = 1", "NOT(" * 200,
        "p(" * 300 + "a" + ")" * 300, "'" * 1_023, "[" * 1_024, "@" * 1_024, "a." * 500,
        "a = 1 OR (" * 101 + "b" + ")" * 101, "1=" * 500, " OR ".join(["a"] * 10_000),
    ],
)  # fmt: skip
def test_hostile_nesting_is_refused(text: str) -> None:
    with pytest.raises(SyntaxProblem):
        compile_filter(text, {})


def test_an_expression_has_a_longest_length() -> None:
    text = "a = 1" + " " * 1_019
    assert truth(text, a=1) is True
    with pytest.raises(SyntaxProblem, match="at most 1024 characters, not 1025"):
        compile_filter(text + " ", {})


def test_what_is_nested_as_deep_as_may_be_is_evaluated() -> None:
    assert truth("(" * 31 + "a" + ")" * 31, a=True) is True
    assert truth("NOT " * 30 + "a = 1", a=1) is True
    assert truth("-" * 28 + "(a) + 0 = 5", a=5) is True
    with pytest.raises(SyntaxProblem, match="32 deep"):
        compile_filter("(" * 32 + "a" + ")" * 32, {})


def test_an_expression_has_a_greatest_number_of_parts() -> None:
    terms = ["-" * 28 + "a"] * 30
    assert truth("+".join([*terms, "1"]) + " = 151", a=5) is True
    with pytest.raises(SyntaxProblem, match="900 parts"):
        compile_filter("+".join([*terms, "-" * 28 + "a"]) + "=1", {})


def test_a_text_that_is_too_long_to_look_at_is_a_problem() -> None:
    for text in ("a LIKE '%x%y'", "a LIKE b"):
        with pytest.raises(EvaluationProblem, match="16384"):
            truth(text, a="x" * 16_385, b="%x")


def test_long_chains_are_not_deep() -> None:
    assert truth("+".join(["1"] * 500) + " = 500") is True
    assert truth("OR ".join(["a "] * 200), a=False) is False
    assert truth("a IN (" + ",".join(["0"] * 500) + ")", a=0) is True


def test_a_message_without_a_readable_envelope_has_no_properties() -> None:
    for data in (b"", b"\xc1", b"\x81\xa2id\xa1\xff"):
        view = MessageView(data, new_id=numbered_ids())
        assert truth("a IS NULL AND NOT EXISTS(a) AND sys.MessageId IS NULL", view) is True


def test_a_value_that_no_filter_knows_is_not_compared() -> None:
    odd: Value = [1]  # type: ignore[assignment]
    assert truth("a = 1", a=odd) is None
    assert truth("a IN (1, 'x')", a=odd) is False
    assert truth("a IN (b, 1)", a=odd, b=odd) is False
    with pytest.raises(EvaluationProblem, match="list"):
        truth("a + 1 = 1", a=odd)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("size = 5", True), ("size = 5.0", True), ("size > 4", True), ("size < 4", False),
        ("size = '5'", True), ("5 = size", True), ("size IN (1, 5)", True), ("rush = true", True),
        ("size IN (1, 2)", False), ("rush <> false", True), ("colour > 5", None),
        ("colour = true", None), ("missing = 5", None), ("missing IN (5)", None),
        ("long = 5", None), ("huge = 5", None), ("@t = 5", True), ("size + 1 = 51", True),
        ("price = 1.5", True), ("n LIKE '%a_b%'", None),
    ],
)  # fmt: skip
def test_texts_can_be_compared_by_what_they_say(text: str, expected: bool | None) -> None:
    properties: dict[str, Any] = {
        "size": "5", "rush": "TRUE", "colour": "red", "long": "5" * 41, "huge": "9" * 30,
        "price": "1.5", "n": 5,
    }  # fmt: skip
    view = MessageView(encode_envelope(Envelope(properties=properties)), new_id=lambda: b"")
    try:
        found = compile_filter(text, {"t": "5"}, loose=True)(view)
    except EvaluationProblem:
        found = None
    assert found is expected


LONG = "x" * 10_000


@pytest.mark.parametrize(
    "text",
    ["a = b", "a IN (b, c)", "a = @long", "a IN (@long, 'y')", "a + a = 'x'", "a LIKE d",
     "property(a) = 1", "a LIKE '%y%'", "zz = 1"],
)  # fmt: skip
def test_what_takes_long_is_counted(text: str) -> None:
    long = a_view(a=LONG, b=LONG, c="c", d="%c%")
    short = a_view(a="x", b="y", c="c", d="%c%")
    for view in (long, short):
        view.properties  # noqa: B018 (what it takes to decode it is not counted here)
        view.looks = 0
        compile_filter(text, {"long": LONG})(view)
    if text != "zz = 1":
        assert long.looks > short.looks + 400
    assert long.looks < 100_000


def test_what_takes_too_long_is_a_problem() -> None:
    view = a_view(a=LONG)
    view.looks_end = 1_000
    for text in ("a LIKE '%y%'", "property(a) = 1"):
        with pytest.raises(TooManyLooks):
            truth(text, view)
    view.begin()
    assert truth("a LIKE '%y%'", view) is False


@pytest.mark.parametrize("text", ["a = b", "a IN (b, 1)", "a = true"])
def test_long_texts_are_compared_loosely(text: str) -> None:
    view = a_view(a=LONG, b=LONG)
    assert compile_filter(text, {}, loose=True)(view) is (None if "true" in text else True)
    assert view.looks > 600
