"""Headers of dead letters, as JetStream Bridge has them, and what they say."""

import json
from collections.abc import Mapping

from posthouse.bridge.transport import Bury

DEAD, REASON, DELIVERIES, CONTEXT = "x-dead-letter", "x-dlq-reason", "x-deliveries", "x-dlq-context"
REPLAYED = "x-replayed"  # the time at which a dead letter was sent again
CONTEXT_CHARS_MAX = 1_024
_HEADERS = frozenset((DEAD, REASON, DELIVERIES, CONTEXT))
_OLD_REASONS = {  # of the gem's document and of its code
    "unrecoverable_error": "unrecoverable",
    "max_deliveries_exceeded": "max_deliver_exceeded",
}
_CUT = "..."


def context_text(context: Mapping[str, str | int]) -> str:
    """Returns a context as JSON of at most CONTEXT_CHARS_MAX characters of ASCII.

    The longest texts are cut until it fits: it can be read, whatever an error had to say.
    """
    left = dict(context)
    while True:
        text = json.dumps(left, separators=(",", ":"))
        if len(text) <= CONTEXT_CHARS_MAX or not left:
            return text
        longest = max(left, key=lambda name: len(json.dumps(left[name])))
        value = str(left[longest]).removesuffix(_CUT)
        over = len(text) - CONTEXT_CHARS_MAX
        if len(value) < 8:
            del left[longest]
        else:
            left[longest] = value[: max(4, min(len(value) * 3 // 4, len(value) - over))] + _CUT


def headers_of(bury: Bury, deliveries: int) -> dict[str, str]:
    """Returns the headers that make a dead letter of an event."""
    reason = "".join(sign if sign.isascii() and sign.isprintable() else "?" for sign in bury.reason)
    return {
        DEAD: "true", REASON: reason[:CONTEXT_CHARS_MAX].strip() or "unknown",
        DELIVERIES: str(deliveries), CONTEXT: context_text(bury.context),
    }  # fmt: skip


def reason_in(headers: Mapping[str, str]) -> str:
    """Returns the reason in lower-case headers; the older words are told by the newer."""
    reason = headers.get(REASON, "")
    return _OLD_REASONS.get(reason, reason)


def context_in(text: str) -> dict[str, str | int]:
    """Returns a context that came as JSON; nothing of what cannot be read."""
    try:
        form = json.loads(text) if len(text) <= 64 * CONTEXT_CHARS_MAX else None
    except (ValueError, RecursionError):
        return {}
    if not isinstance(form, dict):
        return {}
    return {
        str(name): value if isinstance(value, int) else str(value)
        for name, value in form.items()
        if isinstance(value, str | int | float) and not isinstance(value, bool)
    }


def number_in(text: str) -> int:
    """Returns a number that came as text; 0 for what is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def without_marks(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers that the event had before it was a dead letter."""
    return {name: text for name, text in headers.items() if name.lower() not in _HEADERS}
