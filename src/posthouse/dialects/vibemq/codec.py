"""Bytes to frames and back, in the three generations of the protocol. It does no input or output.

    1.4 to 1.8    u32 length | u8 flag (0 plain, 1 gzip, 2 brotli) | body, of that length
    1.0 to 1.3    u32 length | body
    before 1.0    u32 length | JSON

All integers are big-endian. The first frame is a Connect that is not compressed, so byte 4 tells
them apart: 0 is the flag, 1 the version in a body, and { begins JSON. A body in binary:

    u8 version (1) | u8 type | str16 id | str16 queue | u32 length, payload (JSON; nothing: none)
    | u16 count, and for each header str16 name, str16 value
    | only in an error: str16 code, str16 text

A str16 is a u16 length and UTF-8; of length 0 it is nothing. JSON has the same by name: id, type (a
name), queue, payload, headers, schemaVersion, errorCode, errorMessage.
"""

from collections.abc import Mapping
from contextlib import suppress
from enum import IntEnum
from struct import Struct, error
from typing import Any, Literal, NamedTuple

import msgspec

from posthouse.dialects.vibemq.malformed import Malformed
from posthouse.dialects.vibemq.squeezing import (
    AT_ONCE_BYTES_MAX,
    BY_FLAG,
    SQUEEZE_BYTES_MIN,
    Method,
    Squeezed,
)

FRAME_BYTES_MIN, FRAME_BYTES_MAX = 2, 1 << 20  # as it is sent
NEW_FRAME_BYTES_MAX = 64 << 10  # of somebody who has not shown yet who he is
HEADERS_MAX = 1_000  # that are looked at; what is valid is another matter
HEADERS_BYTES_MAX = 512 << 10  # of all of them, in JSON
VERSION = 1
SCHEMA = "1.0"

Generation = Literal["flagged", "plain", "json"]
_BY_BYTE: dict[int, Generation] = {0: "flagged", 1: "plain", 0x7B: "json"}


class Type(IntEnum):
    CONNECT = 0
    CONNECT_ACK = 1
    DISCONNECT = 2
    PING = 10
    PONG = 11
    PUBLISH = 20
    PUBLISH_ACK = 21
    SUBSCRIBE = 22
    SUBSCRIBE_ACK = 23
    UNSUBSCRIBE = 24
    UNSUBSCRIBE_ACK = 25
    DELIVER = 26
    ACK = 30
    CREATE_QUEUE = 40
    DELETE_QUEUE = 41
    QUEUE_INFO = 42
    LIST_QUEUES = 43
    ADMIN_CREATE_USER = 50
    ADMIN_DELETE_USER = 51
    ADMIN_CHANGE_PASSWORD = 52
    ADMIN_GRANT_PERMISSION = 53
    ADMIN_REVOKE_PERMISSION = 54
    ADMIN_LIST_USERS = 55
    ADMIN_GET_USER_PERMISSIONS = 56
    ERROR = 99


_PASCAL = {each.value: each.name.title().replace("_", "") for each in Type}
_CAMEL = {number: name[0].lower() + name[1:] for number, name in _PASCAL.items()}
_BY_NAME = {name.lower(): number for number, name in _PASCAL.items()}
NO_HEADERS: Mapping[str, str] = {}


class Frame(msgspec.Struct):
    """A frame from either side. The payload is JSON, as it was written."""

    type: int
    id: str = ""
    queue: str = ""
    payload: bytes = b""
    headers: Mapping[str, str] = NO_HEADERS
    code: str = ""  # of an error,
    text: str = ""  # and what it says


class _JsonFrame(msgspec.Struct):
    type: str | int
    id: str | None = None
    queue: str | None = None
    payload: msgspec.Raw = msgspec.Raw(b"")
    headers: msgspec.Raw = msgspec.Raw(b"")  # decoded when its size is known
    errorCode: str | None = None
    errorMessage: str | None = None


_read_json = msgspec.json.Decoder(_JsonFrame).decode
_read_headers = msgspec.json.Decoder(dict[str, Any]).decode
_write_json = msgspec.json.Encoder().encode
_U16, _U32 = Struct(">H"), Struct(">I")
_u16, _u32 = _U16.unpack_from, _U32.unpack_from
_pack16, _pack32 = _U16.pack, _U32.pack
UNKNOWN = -1  # a type whose name is not known


class Decoder:
    """Cuts a client's bytes into frames. The first frame tells the protocol's generation."""

    def __init__(self, unsqueezed_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.generation: Generation | None = None
        self.is_camel = False  # how the client writes the names of types
        self.frame_bytes_max = NEW_FRAME_BYTES_MAX
        self.unsqueezed_bytes_max = unsqueezed_bytes_max  # of a body that is compressed
        self.squeezed = False  # whether it may be compressed
        self._data: bytes | bytearray = b""
        self._at = 0  # where the next frame begins

    @property
    def held_bytes(self) -> int:
        """The number of bytes that have been fed and not taken."""
        return len(self._data) - self._at

    def feed(self, data: bytes) -> None:
        if self._at == len(self._data):
            self._data = data
        else:
            if not isinstance(self._data, bytearray):
                self._data = bytearray(self._data)
            del self._data[: self._at]
            self._data += data
        self._at = 0

    def take(self) -> Frame | Squeezed | None:
        """The next frame, or one that is to be unpacked apart; None until it is whole.

        Raises Malformed.
        """
        come, at = self._data, self._at
        if len(come) - at < 5:
            return None
        length = _u32(come, at)[0]
        if not FRAME_BYTES_MIN <= length <= self.frame_bytes_max:
            raise Malformed(f"a frame cannot have {length} bytes")
        if self.generation is None:
            self.generation = _BY_BYTE.get(come[at + 4])
            if self.generation is None:
                raise Malformed("this is no generation of the protocol that is known")
        begin = at + 5 if self.generation == "flagged" else at + 4
        if len(come) - begin < length:
            return None
        flag = come[at + 4] if self.generation == "flagged" else 0
        self._at = begin + length
        body = bytes(come[begin : self._at])
        if flag:
            method = BY_FLAG.get(flag)
            if method is None or not self.squeezed:
                raise Malformed("this compression was not agreed on")
            squeezed = Squeezed(method, body, self.unsqueezed_bytes_max)
            unsqueezed = squeezed.open_at_once()
            if unsqueezed is None:
                return squeezed
            body = unsqueezed
        return self._json(body) if self.generation == "json" else decode(body)

    def _json(self, body: bytes) -> Frame:
        try:
            body.decode()
            found = _read_json(body)
            payload = bytes(found.payload)
            headers = _headers(bytes(found.headers))
        except (msgspec.DecodeError, ValueError, RecursionError):
            raise Malformed("a frame's JSON cannot be read") from None
        if isinstance(found.type, int):
            kind = found.type
        else:
            kind = _BY_NAME.get(found.type.replace("_", "").lower(), UNKNOWN)
            self.is_camel = found.type[:1].islower()
        return Frame(
            kind, found.id or "", found.queue or "", b"" if payload == b"null" else payload,
            headers, found.errorCode or "", found.errorMessage or "",
        )  # fmt: skip


def _headers(data: bytes) -> Mapping[str, str]:
    """A number or a truth is as JSON writes it. Raises ValueError or msgspec.DecodeError."""
    if len(data) <= 2 or data == b"null":  # nothing, or {}
        return NO_HEADERS
    if len(data) > HEADERS_BYTES_MAX:
        raise ValueError("the headers are too long")
    found: dict[str, str] = {}
    for name, value in _read_headers(data).items():
        if isinstance(value, str):
            found[name] = value
        elif isinstance(value, bool | int | float):
            found[name] = _write_json(value).decode()
        elif value is not None:
            raise ValueError(name)
    return found


def decode(body: bytes) -> Frame:
    """A body in binary. Raises Malformed."""
    try:
        if body[0] != VERSION:
            raise Malformed(f"version {body[0]} is not known")
        kind = body[1]
        size = _u16(body, 2)[0]
        at = 4 + size
        id = body[4:at].decode()
        size = _u16(body, at)[0]
        queue = body[at + 2 : at + 2 + size].decode()
        at += 2 + size
        size = _u32(body, at)[0]
        payload = body[at + 4 : at + 4 + size]
        at += 4 + size
        count = _u16(body, at)[0]
        at += 2
        headers = NO_HEADERS
        if count:
            if count > HEADERS_MAX:
                raise Malformed(f"a frame cannot have {count} headers")
            found: dict[str, str] = {}
            for _ in range(count):
                size = _u16(body, at)[0]
                name = body[at + 2 : at + 2 + size].decode()
                at += 2 + size
                size = _u16(body, at)[0]
                if size:
                    found[name] = body[at + 2 : at + 2 + size].decode()
                at += 2 + size
            headers = found
        code = text = ""
        if kind == Type.ERROR:
            size = _u16(body, at)[0]
            code = body[at + 2 : at + 2 + size].decode()
            at += 2 + size
            size = _u16(body, at)[0]
            text = body[at + 2 : at + 2 + size].decode()
            at += 2 + size
    except (error, IndexError, UnicodeDecodeError):
        raise Malformed("a frame is not as long as it says, or its text is not UTF-8") from None
    if at != len(body):
        raise Malformed("a frame is not as long as it says")
    return Frame(kind, id, queue, payload, headers, code, text)


class Unsqueezed(NamedTuple):
    """A frame that takes long to compress: `write` is to be called in a thread."""

    method: Method
    body: bytes

    def write(self) -> bytes | None:
        """None where it is larger than a frame may be."""
        return _flagged(self.body, self.method)


class Encoder:
    """How a client is spoken to."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.method: Method | None = None  # that was agreed on

    def frame(self, frame: Frame) -> bytes | Unsqueezed | None:
        """None where it is larger than a frame may be."""
        generation = self._decoder.generation
        if generation == "json":
            body = _as_json(frame, camel=self._decoder.is_camel)
        else:
            found = encode(frame)
            if found is None:
                return None
            body = found
        if generation != "flagged":
            return _pack32(len(body)) + body if len(body) <= FRAME_BYTES_MAX else None
        if self.method is not None and len(body) > AT_ONCE_BYTES_MAX:
            return Unsqueezed(self.method, body)
        return _flagged(body, self.method)


def _flagged(body: bytes, method: Method | None) -> bytes | None:
    flag = 0
    if method is not None and len(body) >= SQUEEZE_BYTES_MIN:
        squeezed = method.squeeze(body)
        if len(squeezed) < len(body):
            flag, body = method.flag, squeezed
    if len(body) > FRAME_BYTES_MAX:
        return None
    return b"%b%c%b" % (_pack32(len(body)), flag, body)


def refuse(data: bytes, code: str, text: str) -> bytes:
    """An error for who has begun with this; nothing where it does not tell how he is spoken to."""
    decoder = Decoder()
    id = ""
    with suppress(Malformed):
        decoder.feed(data)
        first = decoder.take()
        id = first.id if isinstance(first, Frame) else ""
    if decoder.generation is None:
        return b""
    said = Encoder(decoder).frame(Frame(Type.ERROR, id, "", b"", NO_HEADERS, code, text))
    return said if isinstance(said, bytes) else b""


def encode(frame: Frame) -> bytes | None:
    """A body in binary; None where something in it is too long to be said."""
    id, queue, headers = frame.id.encode(), frame.queue.encode(), frame.headers
    try:
        body = b"\x01%c%b%b%b%b%b%b%b" % (
            frame.type, _pack16(len(id)), id, _pack16(len(queue)), queue,
            _pack32(len(frame.payload)), frame.payload, _pack16(len(headers)),
        )  # fmt: skip
        if headers:
            told = (_str16(each) for header in headers.items() for each in header)
            body = b"".join((body, *told))
        if frame.type == Type.ERROR:
            body += _str16(frame.code) + _str16(frame.text)
    except error:
        return None
    return body


def _str16(text: str) -> bytes:
    data = text.encode()
    return _pack16(len(data)) + data


def _as_json(frame: Frame, *, camel: bool) -> bytes:
    """Encodes a frame as JSON, as the design document has it: empty fields are left out."""
    names = _CAMEL if camel else _PASCAL
    found: dict[str, Any] = {"id": frame.id, "type": names[frame.type]}
    if frame.queue:
        found["queue"] = frame.queue
    if frame.payload:
        found["payload"] = msgspec.Raw(frame.payload)
    if frame.headers:
        found["headers"] = dict(frame.headers)
    found["schemaVersion"] = SCHEMA
    if frame.type == Type.ERROR:
        found |= {"errorCode": frame.code, "errorMessage": frame.text}
    return _write_json(found)
