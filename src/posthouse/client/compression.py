"""Bodies made smaller on their way.

What was compressed says so in an attribute, and every client undoes it, whatever its own settings.
How much may come out is bounded, since a few bytes can be written that unpack to gigabytes.
"""

import zlib
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from posthouse.client.errors import ConfigurationError, SerializationError
from posthouse.client.marks import COMPRESSED
from posthouse.client.messages import Message, ReceivedMessage

Algorithm: TypeAlias = Literal["gzip", "zstd"]
UNPACKED_BYTES_MAX = 64 << 20
_LEVELS = {"gzip": (0, 6, 9), "zstd": (1, 3, 22)}  # the least, the usual, the most
_GZIP = 31  # zlib's way to say gzip, with the largest window
_WINDOW = 8 << 20  # what zstd uses at most below its extreme levels, whatever the body


@dataclass(frozen=True)
class Compression:
    """Compression of bodies that are longer than a threshold, where it makes them smaller."""

    algorithm: Algorithm = "gzip"  # zstd needs `pip install 'posthouse[zstd]'`
    threshold: int = 1_024  # bytes
    level: int | None = None  # gzip 0 to 9, zstd 1 to 22; without, 6 and 3
    unpacked_bytes_max: int = UNPACKED_BYTES_MAX  # of a body that is received

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        if self.algorithm not in _LEVELS:
            raise ConfigurationError("algorithm", f"must be one of {', '.join(_LEVELS)}")
        least, _, most = _LEVELS[self.algorithm]
        if self.level is not None and not least <= self.level <= most:
            raise ConfigurationError("level", f"must be from {least} to {most}")
        if self.threshold < 0:
            raise ConfigurationError("threshold", "must not be negative")
        if self.unpacked_bytes_max < 1:
            raise ConfigurationError("unpacked_bytes_max", "must be more than 0")
        if self.algorithm == "zstd":
            _zstandard()

    def wrap(self, message: Message) -> Message:
        body = message.body
        if not self.threshold < len(body) <= self.unpacked_bytes_max:
            return message
        if COMPRESSED in message.attributes:  # by the sender
            return message
        packed = self._packed(body)
        if len(packed) >= len(body):
            return message
        marked = {**message.attributes, COMPRESSED: self.algorithm}
        return msgspec.structs.replace(message, body=packed, attributes=marked)

    def _packed(self, body: bytes) -> bytes:
        level = _LEVELS[self.algorithm][1] if self.level is None else self.level
        if self.algorithm == "gzip":
            return zlib.compress(body, level, _GZIP)
        compressor = _zstandard().ZstdCompressor(level, write_checksum=True)
        packed: bytes = compressor.compress(body)
        return packed


def unwrap(received: ReceivedMessage, most: int = UNPACKED_BYTES_MAX) -> ReceivedMessage:
    """Undoes what is marked. Raises SerializationError, ConfigurationError."""
    algorithm = received.attributes.get(COMPRESSED)
    match algorithm:
        case None:
            return received
        case "gzip":
            body = _unpacked_gzip(received.body, most)
        case "zstd":
            body = _unpacked_zstd(received.body, most)
        case _:
            raise SerializationError(
                f"The body is compressed by {str(algorithm)[:32]!r}, not by gzip or zstd."
            )
    kept = {name: value for name, value in received.attributes.items() if name != COMPRESSED}
    return msgspec.structs.replace(received, body=body, attributes=kept)


def _unpacked_gzip(body: bytes, most: int) -> bytes:
    unpacking = zlib.decompressobj(_GZIP)
    try:
        unpacked = unpacking.decompress(body, most + 1)
    except zlib.error as error:
        raise SerializationError("The body is not gzip as it says.") from error
    if len(unpacked) > most:
        raise _too_large(most)
    if not unpacking.eof or unpacking.unused_data:
        raise SerializationError("The body is not gzip as it says: it ends too soon or too late.")
    return unpacked


def _unpacked_zstd(body: bytes, most: int) -> bytes:
    zstandard = _zstandard()
    try:
        told: int = zstandard.frame_content_size(body)  # -1: it does not tell
        if told > most:
            raise _too_large(most)
        unpacking = zstandard.ZstdDecompressor(max_window_size=max(most, _WINDOW))
        unpacked: bytes = unpacking.decompress(body, max_output_size=most, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise SerializationError(
            f"The body is not zstd as it says, or has more than {most} bytes once unpacked."
        ) from error
    return unpacked


def _too_large(most: int) -> SerializationError:
    return SerializationError(f"The body has more than {most} bytes once unpacked.")


def _zstandard() -> Any:
    """Raises ConfigurationError."""
    try:
        import zstandard
    except ImportError:
        raise ConfigurationError(
            "algorithm", "zstd needs a package: pip install 'posthouse[zstd]'"
        ) from None
    return zstandard
