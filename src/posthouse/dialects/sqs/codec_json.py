"""AWS JSON 1.0: structures are JSON objects; an error is named in the body and in a header."""

from functools import cache

import msgspec

from posthouse.dialects.http import Answer, Header
from posthouse.dialects.json_bounds import bounded
from posthouse.dialects.sqs.errors import MALFORMED, Failed
from posthouse.dialects.sqs.shapes import Shape

TARGET = "AmazonSQS."
CONTENT_TYPE = (b"content-type", b"application/x-amz-json-1.0")

_encode = msgspec.json.Encoder().encode


@cache
def _decoder(kind: type[Shape]) -> "msgspec.json.Decoder[Shape]":
    return msgspec.json.Decoder(kind)


def decode(body: bytes, kind: type[Shape]) -> Shape:
    """Raises Failed."""
    try:
        return _decoder(kind).decode(bounded(body or b"{}"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Failed(MALFORMED, f"The request is not the JSON of this action: {error}.") from None


def answer(told: Shape | None, headers: tuple[Header, ...]) -> Answer:
    """An action without output has an empty body."""
    body = b"" if told is None else _encode(told)
    return Answer(body, 200, (CONTENT_TYPE, *headers))


def error(failed: Failed, headers: tuple[Header, ...]) -> Answer:
    kind = failed.kind
    name = (b"x-amzn-query-error", f"{kind.code};{kind.fault}".encode())
    body = _encode({"__type": kind.type, "message": failed.text})
    return Answer(body, kind.status, (CONTENT_TYPE, name, *headers))
