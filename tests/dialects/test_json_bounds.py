"""Values of a JSON text are counted before it is decoded; what is in its strings is no value."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.dialects import json_bounds
from posthouse.dialects.json_bounds import SMALL_BYTES, VALUES_MAX, bounded

MANY = VALUES_MAX + 1


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b"1," * MANY + b"1]",
        b"[" + b"[]," * MANY + b"1]",
        b'{"a":[' + b'{"text": "a\\"b\\\\"},' * MANY + b"1]}",
    ],
)
def test_more_values_than_may_be_are_refused(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError, match="send it in parts"):
        bounded(text)


@pytest.mark.parametrize(
    "text", ["a,b[c{d" * MANY, '",' * MANY, "\\" * MANY + '",["{' * MANY, "\\\\,\\" * MANY]
)
def test_commas_in_a_string_are_not_counted(text: str) -> None:
    data = json.dumps([text, {"more": text[::-1]}]).encode()
    assert bounded(data) is data


values = st.recursive(
    st.none() | st.integers() | st.text('a\\",[{', max_size=20),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('a\\",[{', max_size=5), inner),
)


@given(values, st.integers(1, 50))
def test_the_count_is_that_of_the_text_without_its_strings(value: object, slice_bytes: int) -> None:
    data = json.dumps(value, separators=(",", ":")).encode()
    plain = json.dumps(_without_texts(value), separators=(",", ":")).encode()
    before = json_bounds._SLICE_BYTES, json_bounds.VALUES_MAX
    json_bounds._SLICE_BYTES = slice_bytes
    json_bounds.VALUES_MAX = most = json_bounds._count(plain)
    try:
        assert not json_bounds._has_too_many(data)
        if most:
            json_bounds.VALUES_MAX = most - 1
            assert json_bounds._has_too_many(data)
    finally:
        json_bounds._SLICE_BYTES, json_bounds.VALUES_MAX = before


def _without_texts(value: object) -> object:
    if isinstance(value, str):
        return 1
    if isinstance(value, list):
        return [_without_texts(each) for each in value]
    if isinstance(value, dict):
        return {str(at): _without_texts(each) for at, each in enumerate(value.values())}
    return value


def test_a_small_text_is_not_looked_at() -> None:
    data = b"[" + b"1," * (SMALL_BYTES // 2 - 2) + b"1]"
    assert len(data) <= SMALL_BYTES
    assert bounded(data) is data
