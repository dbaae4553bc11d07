"""Bodies that only those who have the key can read, or make: AES-256-GCM.

The body becomes an envelope, whose numbers are big-endian:

     0       4    "QRE1"
     4       1    version, 1
     5       1    length of the key id, n
     6       n    key id, ASCII
     6+n     12   nonce, by chance
    18+n     8    moment of encryption, in milliseconds since 1970 (UTC)
    26+n     ..   ciphertext, as long as the body
    the end  16   tag

What is bound, that is to say cannot be changed on the way without being noticed: the envelope up to
the ciphertext, then message id, session id, correlation id, content type and how the body is
compressed, each as four bytes of length and UTF-8, with nothing for what is not there. All of them
stay readable for whoever routes the message. Other attributes are not bound.
"""

import logging
import os
import re
import struct
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal, TypeAlias

import msgspec

from posthouse.client.errors import AuthenticationFailed, ConfigurationError, QueueError
from posthouse.client.marks import COMPRESSED, ENCRYPTED
from posthouse.client.messages import Message, ReceivedMessage
from posthouse.client.names import MessageId

_log = logging.getLogger("posthouse.client")

MAGIC, VERSION = b"QRE1", 1
KEY_BYTES, NONCE_BYTES, TAG_BYTES = 32, 12, 16
KEY_ID_CHARS_MAX = 64
FRESH_SECONDS = 300.0
NONCE_SECONDS = 600.0
NONCES_MAX = 100_000  # remembered at a time
_KEY_ID = re.compile(rf"[\x21-\x7e]{{1,{KEY_ID_CHARS_MAX}}}")
_MOMENT = struct.Struct(">Q")

PlaintextPolicy: TypeAlias = Literal["allow", "alert", "reject"]
_POLICIES = ("allow", "alert", "reject")


class EncryptionError(QueueError):
    """A body could not be encrypted, or what came is not what it should be."""


class NotAuthentic(EncryptionError, AuthenticationFailed):
    """The ciphertext, its tag, or something that is bound to it was changed, or the key differs."""

    def __init__(self, message_id: str) -> None:
        super().__init__(f"The body of the message {message_id!r}, or what is bound to it, is not"
                         " what was encrypted.")  # fmt: skip


class MessageExpired(EncryptionError):
    """Encrypted too long ago, or in the future."""

    def __init__(self, encrypted_at: datetime, seconds: float) -> None:
        self.encrypted_at = encrypted_at
        super().__init__(f"The message was encrypted at {encrypted_at.isoformat()}, which is not"
                         f" within {seconds:g} s of now.")  # fmt: skip


class KeyNotFound(EncryptionError):
    def __init__(self, key_id: str) -> None:
        self.key_id = key_id
        super().__init__(f"There is no key {key_id[:KEY_ID_CHARS_MAX]!r}.")


class NonceReused(EncryptionError):
    """The same envelope came before, in another message."""

    def __init__(self, message_id: str) -> None:
        super().__init__(f"The message {message_id!r} has come before: it was sent again by"
                         " somebody who did not encrypt it.")  # fmt: skip


class UnsupportedVersion(EncryptionError):
    def __init__(self, version: int) -> None:
        self.version = version
        super().__init__(f"The envelope has version {version}; {VERSION} is known.")


class InvalidEnvelope(EncryptionError):
    def __init__(self, rule: str) -> None:
        super().__init__(f"The envelope {rule}.")


class PlaintextRefused(EncryptionError):
    def __init__(self, message_id: str) -> None:
        super().__init__(f"The message {message_id!r} is not encrypted.")


class _Key:
    """A key and its cipher; what is in it is not shown, and can be wiped."""

    __slots__ = ("_bytes", "cipher")

    def __init__(self, key: bytes | bytearray) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._bytes = bytearray(key)
        self.cipher = AESGCM(self._bytes)

    def wipe(self) -> None:
        self._bytes[:] = bytes(len(self._bytes))
        del self.cipher  # OpenSSL wipes its own copy

    def __repr__(self) -> str:
        return "<key>"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("A key is not written down.")


class Encryption:
    """Encrypts what is sent and decrypts what comes. Several clients may share it."""

    def __init__(
        self,
        keys: Mapping[str, bytes | bytearray],
        *,
        encrypt_with: str | None = None,
        fresh_seconds: float | None = FRESH_SECONDS,
        track_nonces: bool = False,
        plaintext: PlaintextPolicy = "reject",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Keys of 32 bytes by their ids; `encrypt_with` names the one for what is sent, unless
        there is only one. `fresh_seconds=None`: a message may be of any age.

        Raises ConfigurationError.
        """
        for key_id, key in keys.items():
            if _KEY_ID.fullmatch(key_id) is None:
                raise ConfigurationError(
                    "keys", f"have ids of 1 to {KEY_ID_CHARS_MAX} visible ASCII characters"
                )
            if not _is_key(key):
                raise ConfigurationError("keys", f"have {KEY_BYTES} bytes; {key_id!r} has not")
        if encrypt_with is None and len(keys) == 1:
            [encrypt_with] = keys
        if encrypt_with is None or encrypt_with not in keys:
            raise ConfigurationError("encrypt_with", "must name one of the keys")
        if fresh_seconds is not None and not fresh_seconds > 0:
            raise ConfigurationError("fresh_seconds", "must be more than 0, or None")
        if plaintext not in _POLICIES:
            raise ConfigurationError("plaintext", f"must be one of {', '.join(_POLICIES)}")
        self._keys = {key_id: _Key(key) for key_id, key in keys.items()}
        self._encrypt_with = encrypt_with
        self._fresh_seconds = fresh_seconds
        self._nonces = _Nonces(clock) if track_nonces else None
        self._plaintext = plaintext
        self._clock = clock
        self.plaintext_count = 0  # messages that came without encryption

    def __repr__(self) -> str:
        return f"Encryption(keys={list(self._keys)}, encrypt_with={self._encrypt_with!r})"

    def close(self) -> None:
        """Wipes the keys; from now on there are none."""
        keys, self._keys = self._keys, {}
        for key in keys.values():
            key.wipe()

    def wrap(self, message: Message) -> Message:
        """Raises KeyNotFound, once it is closed."""
        key_id = self._encrypt_with
        message_id = message.message_id or MessageId()  # bound, so it is needed now
        nonce, moment = os.urandom(NONCE_BYTES), round(self._clock() * 1_000)
        head = b"".join(
            (MAGIC, bytes((VERSION, len(key_id))), key_id.encode(), nonce, _MOMENT.pack(moment))
        )
        bound = _bound(head, message_id, message)
        body = head + self._key(key_id).cipher.encrypt(nonce, message.body, bound)
        marked = {**message.attributes, ENCRYPTED: key_id}
        return msgspec.structs.replace(message, body=body, attributes=marked, message_id=message_id)

    def unwrap(self, received: ReceivedMessage) -> ReceivedMessage:
        """Raises EncryptionError; AuthenticationFailed too, where something was changed."""
        body, mark = received.body, received.attributes.get(ENCRYPTED)
        if mark is None and not body.startswith(MAGIC):
            return self._plain(received)
        key_id, nonce, moment, start = _read(body)
        if mark is not None and mark != key_id:
            raise InvalidEnvelope("is of another key than the message's attribute says")
        bound = _bound(body[:start], received.message_id, received)
        plain = self._decrypted(received, key_id, nonce, start, bound)
        if self._fresh_seconds is not None:
            age = self._clock() - moment / 1_000
            if abs(age) > self._fresh_seconds:
                raise MessageExpired(_at(moment), self._fresh_seconds)
        if self._nonces is not None and received.receipt_handle.handle:  # not where it is peeked
            self._nonces.check(nonce, received)
        kept = {name: value for name, value in received.attributes.items() if name != ENCRYPTED}
        return msgspec.structs.replace(received, body=plain, attributes=kept)

    def _decrypted(
        self, received: ReceivedMessage, key_id: str, nonce: bytes, start: int, bound: bytes
    ) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            return self._key(key_id).cipher.decrypt(nonce, received.body[start:], bound)
        except InvalidTag:
            raise NotAuthentic(received.message_id) from None

    def _key(self, key_id: str) -> _Key:
        key = self._keys.get(key_id)
        if key is None:
            raise KeyNotFound(key_id)
        return key

    def _plain(self, received: ReceivedMessage) -> ReceivedMessage:
        self.plaintext_count += 1
        if self._plaintext == "reject":
            raise PlaintextRefused(received.message_id)
        if self._plaintext == "alert":
            _log.warning(
                "A message is not encrypted.",
                extra={"operation": "decrypt", "message_id": received.message_id},
            )
        return received


class _Nonces:
    """Nonces of the last ten minutes, with the messages that had them.

    A delivery that is repeated has the nonce of the first; it is the same message with the same
    sequence number, or, where there are none, with a higher delivery count.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[bytes, tuple[float, int, int]] = {}  # oldest first

    def check(self, nonce: bytes, received: ReceivedMessage) -> None:
        """Raises NonceReused."""
        now = self._clock()
        self._forget(now)
        number, count = received.sequence_number, received.delivery_count
        before = self._seen.pop(nonce, None)
        if before is not None:
            again = number == before[1] if number else count > before[2]
            if not again:
                self._seen[nonce] = now, before[1], before[2]
                raise NonceReused(received.message_id)
        self._seen[nonce] = now, number, count

    def _forget(self, now: float) -> None:
        while self._seen:
            oldest = next(iter(self._seen))
            if self._seen[oldest][0] > now - NONCE_SECONDS and len(self._seen) < NONCES_MAX:
                return
            del self._seen[oldest]


def _read(body: bytes) -> tuple[str, bytes, int, int]:
    """Key id, nonce, moment, and where the ciphertext begins."""
    if not body.startswith(MAGIC):
        raise InvalidEnvelope(f"does not begin with {MAGIC.decode()}")
    if len(body) < 6:
        raise InvalidEnvelope("ends too soon")
    if body[4] != VERSION:
        raise UnsupportedVersion(body[4])
    at = 6 + body[5]
    start = at + NONCE_BYTES + _MOMENT.size
    if len(body) < start + TAG_BYTES:
        raise InvalidEnvelope("ends too soon")
    try:
        key_id = body[6:at].decode("ascii")
    except UnicodeDecodeError:
        raise InvalidEnvelope("has a key id that is not ASCII") from None
    if _KEY_ID.fullmatch(key_id) is None:
        raise InvalidEnvelope("has a key id that is none")
    [moment] = _MOMENT.unpack_from(body, at + NONCE_BYTES)
    return key_id, body[at : at + NONCE_BYTES], moment, start


def _is_key(key: object) -> bool:
    return isinstance(key, bytes | bytearray) and len(key) == KEY_BYTES


def _bound(head: bytes, message_id: str, message: Message | ReceivedMessage) -> bytes:
    parts = [head]
    for field in (
        message_id, message.session_id, message.correlation_id, message.content_type,
        message.attributes.get(COMPRESSED),
    ):  # fmt: skip
        encoded = str(field or "").encode("utf-8", "surrogatepass")
        parts += (len(encoded).to_bytes(4, "big"), encoded)
    return b"".join(parts)


def _at(moment: int) -> datetime:
    """Returns the time in an authentic envelope, whose sender's clock may be far off."""
    try:
        return datetime.fromtimestamp(moment / 1_000, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.max.replace(tzinfo=UTC)
