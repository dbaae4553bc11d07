"""Frames as lines of JSON, for people and for other programs.

    {"frame":7,"first":12,"time_ms":1790000000000,"epoch":2,"count":1,"kind":0,"durable":12,
     "checksum":305419896,"records":[...]}

(in one line). `records` is the payload, which is MessagePack, value by value; bytes in it are
{"$utf8": "text"} or {"$base64": "..."}. A payload that would not become the same bytes again, or is
compressed or large, is `payload` instead, in base64. The checksum is that of the frame as it would
be in a segment, begun from salt 0, so a line that was changed is noticed however it was changed.
"""

import base64
import binascii
import math
import re
import struct
from typing import Any

import msgspec

from posthouse.store.frames import PAYLOAD_BYTES_MAX, Frame, checksum_of

READABLE_BYTES_MAX = 1 << 20  # larger payloads are in base64
LINE_BYTES_MAX = PAYLOAD_BYTES_MAX * 4 // 3 + (1 << 16)
_HEAD = re.compile(rb'\{"frame":(\d{1,19}),"first":(\d{1,19}),"time_ms":(\d{1,19}),')
HEAD_BYTES_MAX = 100
_UTF8, _BASE64 = "$utf8", "$base64"


class Line(msgspec.Struct, omit_defaults=True):
    frame: int
    first: int
    time_ms: int
    epoch: int
    count: int
    kind: int
    durable: int
    checksum: int
    records: Any = msgspec.UNSET
    payload: bytes = b""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Line)
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


def encode_line(frame: Frame) -> bytes:
    """A frame as one line, with the newline at its end."""
    line = Line(
        frame.number, frame.first, frame.time_ms, frame.epoch, frame.count, frame.kind,
        frame.durable, checksum_of(frame),
    )  # fmt: skip
    shown = shown_value(frame.payload)
    if shown is None:
        line.payload = frame.payload
    else:
        line.records = shown
    return _encoder.encode(line) + b"\n"


def decode_line(data: bytes) -> Frame | None:
    """The frame that a line holds, or None where it is not a whole, unchanged one."""
    try:
        line = _decoder.decode(data)
        payload = line.payload
        if line.records is not msgspec.UNSET:
            payload = hidden_value(line.records)
        frame = Frame(
            line.epoch, line.frame, line.first, line.count, line.durable, line.time_ms, payload,
            line.kind,
        )  # fmt: skip
        is_sound = len(payload) <= PAYLOAD_BYTES_MAX and checksum_of(frame) == line.checksum
    except (ValueError, TypeError, struct.error, RecursionError):  # of which msgspec's are
        return None
    return frame if is_sound else None


def decode_head(data: bytes) -> tuple[int, int, int] | None:
    """Number, first position and time of the frame that a line holds, from its beginning."""
    found = _HEAD.match(data)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def shown_value(data: bytes) -> Any:
    """MessagePack as a value for JSON; None where it would not become the same bytes again."""
    if not data or len(data) > READABLE_BYTES_MAX:
        return None
    try:
        value = _unpack(data)
        return _shown(value) if value is not None and _pack(value) == data else None
    except (ValueError, TypeError, RecursionError):
        return None


def hidden_value(value: Any) -> bytes:
    """The MessagePack that a value was. Raises ValueError, TypeError or RecursionError."""
    return _pack(_hidden(value))


def _shown(value: Any) -> Any:
    match value:
        case bytes():
            try:
                return {_UTF8: value.decode()}
            except UnicodeDecodeError:
                return {_BASE64: base64.b64encode(value).decode()}
        case list():
            return [_shown(item) for item in value]
        case dict():
            if not all(isinstance(key, str) and not key.startswith("$") for key in value):
                raise ValueError("not a key of JSON")
            return {key: _shown(item) for key, item in value.items()}
        case float() if not math.isfinite(value):
            raise ValueError("not a number of JSON")
        case None | bool() | int() | float() | str():
            return value
        case _:
            raise TypeError("not a value of JSON")


def _hidden(value: Any) -> Any:
    match value:
        case {"$utf8": str(text), **rest} if not rest:
            return text.encode()
        case {"$base64": str(text), **rest} if not rest:
            try:
                return base64.b64decode(text, validate=True)
            except binascii.Error as error:
                raise ValueError(str(error)) from None
        case list():
            return [_hidden(item) for item in value]
        case dict():
            return {key: _hidden(item) for key, item in value.items()}
        case _:
            return value
