"""A bound on JSON before it is decoded.

The decoder is one call, which no turn of the event loop can divide: three million empty lists take
it seconds. So values are counted first, as far as a few passes over the bytes can tell.
"""

import msgspec

VALUES_MAX = 150_000  # of one text; 10,000 messages with 15 fields each are within it
SMALL_BYTES = 256 << 10  # what is no larger takes no time worth speaking of
_SLICE_BYTES = 64 << 10
_BEGIN_VALUES = (b",", b"[", b"{")


def bounded(data: bytes) -> bytes:
    """The same bytes. Raises msgspec.DecodeError where they hold more than VALUES_MAX values."""
    if len(data) > SMALL_BYTES and _count(data) > VALUES_MAX and _has_too_many(data):
        raise msgspec.DecodeError(f"it holds more than {VALUES_MAX} values; send it in parts")
    return data


def _has_too_many(data: bytes) -> bool:
    """Counts outside of texts, in which commas begin no values; goes no further than it must."""
    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    count = in_text = 0
    for at in range(0, len(unescaped), _SLICE_BYTES):
        parts = unescaped[at : at + _SLICE_BYTES].split(b'"')
        count += _count(b"".join(parts[in_text::2]))
        in_text ^= 1 - len(parts) % 2
        if count > VALUES_MAX:
            return True
    return False


def _count(data: bytes) -> int:
    return sum(map(data.count, _BEGIN_VALUES))
