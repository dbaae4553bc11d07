"""Receipt handles: a delivery named by queue, message and number, with a keyed hash.

     1 byte   version
     8 bytes  the queue's number, which no other queue ever has
     8 bytes  the message's sequence number
     4 bytes  the number of the delivery: how often the message had been delivered by then
     6 bytes  when it was delivered, in milliseconds since 1970
     8 bytes  a keyed hash of all that, and of the namespace

as base64 for URLs: 47 characters. Nothing has to be remembered of a handle, and one that was made
up, or is of another queue or another broker, does not fit.
"""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

_VERSION = 1
_FORM = Struct(">BQQI6s")
_HASH_BYTES = 8
_BYTES = _FORM.size + _HASH_BYTES
CHARS = -(-_BYTES * 4 // 3)  # of a handle
_PADDING = "=" * (-CHARS % 4)


class Handle(NamedTuple):
    queue: int  # its number
    sequence: int
    number: int  # of the delivery
    received_ms: int


class Handles:
    """Makes and reads the handles of one broker."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def make(self, namespace: str, handle: Handle) -> str:
        queue, sequence, number, received_ms = handle
        data = _FORM.pack(_VERSION, queue, sequence, number, received_ms.to_bytes(6, "big"))
        raw = data + self._hash(namespace, data)
        return urlsafe_b64encode(raw).decode().rstrip("=")

    def read(self, namespace: str, text: str) -> Handle | None:
        """None for what this broker has not made for this namespace."""
        if len(text) != CHARS or not text.isascii():
            return None
        try:
            raw = urlsafe_b64decode(text + _PADDING)
        except (Base64Error, ValueError):
            return None
        data, given = raw[: _FORM.size], raw[_FORM.size :]
        if len(raw) != _BYTES or not hmac.compare_digest(given, self._hash(namespace, data)):
            return None
        version, queue, sequence, number, received = _FORM.unpack(data)
        if version != _VERSION:
            return None
        return Handle(queue, sequence, number, int.from_bytes(received, "big"))

    def _hash(self, namespace: str, data: bytes) -> bytes:
        hashed = blake2b(data, digest_size=_HASH_BYTES, key=self._key)
        hashed.update(namespace.encode())
        return hashed.digest()
