"""Values as bodies, and back."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

import msgspec
import pydantic
import pytest

from posthouse import Message, SerializationError, create_test_client
from posthouse.client import codecs
from posthouse.client.codecs import decode, encode, register_codec


@dataclass
class Order:
    number: int
    items: list[str]


class Struct(msgspec.Struct):
    number: int
    at: datetime


class Model(pydantic.BaseModel):
    number: int
    secret: str = ""


class Colour(StrEnum):
    RED = "red"


class Point:
    def __init__(self, x: int, y: int) -> None:
        self.x, self.y = x, y


class Place(Point):
    pass


@pytest.mark.parametrize(
    ("value", "kind", "body", "content_type"),
    [
        (b"\x00\xff", bytes, b"\x00\xff", None),
        (bytearray(b"ab"), bytearray, b"ab", None),
        ("ä", str, b"\xc3\xa4", "text/plain; charset=utf-8"),
        ({"a": [1, None]}, dict, b'{"a":[1,null]}', "application/json"),
        ([1, 2], list[int], b"[1,2]", "application/json"),
        (1.5, float, b"1.5", "application/json"),
        (2**63, int, b"9223372036854775808", "application/json"),
        (True, bool, b"true", "application/json"),
        (None, type(None), b"null", "application/json"),
        (Decimal("1.10"), Decimal, b'"1.10"', "application/json"),
        (Colour.RED, Colour, b'"red"', "application/json"),
        (Order(1, ["a"]), Order, b'{"number":1,"items":["a"]}', "application/json"),
        (
            Struct(1, datetime(2026, 1, 1, tzinfo=UTC)),
            Struct,
            b'{"number":1,"at":"2026-01-01T00:00:00Z"}',
            "application/json",
        ),
        (Model(number=1), Model, b'{"number":1,"secret":""}', "application/json"),
    ],
)  # fmt: skip
def test_a_value_comes_back_as_it_was(
    value: object, kind: type[Any], body: bytes, content_type: str | None
) -> None:
    assert encode(value) == (body, content_type)
    assert decode(body, kind, content_type) == value


async def _through_a_queue(value: object, kind: type[Any]) -> Any:
    async with create_test_client() as client:
        await client.send_message("orders", Message.of(value))
        received = await client.receive_message("orders")
        assert received is not None
        return received.value(kind)


@pytest.mark.parametrize("value", [Order(7, ["pen"]), Model(number=3), "text", b"bytes"])
def test_a_message_carries_values(value: object) -> None:
    assert asyncio.run(_through_a_queue(value, type(value))) == value


def test_text_is_read_in_the_charset_that_is_said() -> None:
    assert decode(b"\xe4", str, 'text/plain; charset="ISO-8859-1"') == "ä"
    assert decode("ä".encode("utf-16"), str, "text/plain;charset=utf-16") == "ä"
    assert decode(b"a", str, "text/plain") == "a"


def test_a_charset_that_is_code_is_refused() -> None:
    for name in ("unicode_escape", "punycode", "zlib_codec", "nonsense"):
        with pytest.raises(SerializationError):
            decode(b"a", str, f"text/plain; charset={name}")


@pytest.mark.parametrize(
    ("body", "kind", "cause"),
    [
        (b"{", dict, msgspec.DecodeError),
        (b'{"number":"x","items":[]}', Order, msgspec.ValidationError),
        (b'{"number":"x"}', Model, pydantic.ValidationError),
        (b"\xff", str, UnicodeDecodeError),
        (b"[" * 200_000, list, RecursionError),
        (b"", dict, msgspec.DecodeError),
    ],
)
def test_what_cannot_be_read_is_an_error_with_its_cause(
    body: bytes, kind: type[Any], cause: type[BaseException]
) -> None:
    with pytest.raises(SerializationError) as caught:
        decode(body, kind)
    assert isinstance(caught.value.__cause__, cause)
    assert not caught.value.should_retry


def test_what_cannot_be_written_is_an_error_with_its_cause() -> None:
    holds_itself: list[Any] = []
    holds_itself.append(holds_itself)
    for value, cause in (
        (object(), TypeError),
        ("\ud800", UnicodeEncodeError),
        (holds_itself, RecursionError),
    ):
        with pytest.raises(SerializationError) as caught:
            Message.of(value)
        assert isinstance(caught.value.__cause__, cause)


def test_an_error_does_not_show_what_was_in_the_body() -> None:
    with pytest.raises(SerializationError) as caught:
        decode(b'{"number":"canary","secret":1}', Model)
    assert "canary" in str(caught.value.__cause__)
    assert "canary" not in str(caught.value)


def test_a_type_can_have_a_codec_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "_codecs", {})
    with pytest.raises(SerializationError):
        encode(Point(1, 2))

    def read(body: bytes) -> Point:
        x, y = body.split(b",")
        return Point(int(x), int(y))

    register_codec(Point, lambda point: b"%d,%d" % (point.x, point.y), read, "application/x-point")
    assert encode(Point(1, 2)) == (b"1,2", "application/x-point")
    assert encode(Place(3, 4)) == (b"3,4", "application/x-point")
    assert decode(b"5,6", Point).y == 6
    with pytest.raises(SerializationError):
        decode(b"5", Point)


def test_a_codec_goes_before_what_is_built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "_codecs", {})
    register_codec(str, lambda text: text[::-1].encode(), lambda body: body.decode()[::-1])
    assert encode("abc") == (b"cba", None)
    assert decode(b"cba", str) == "abc"
