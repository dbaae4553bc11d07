"""Replies, errors and acknowledgment subjects of NATS, in the words of the bridge.

Replies are of a server, but what is in a header or a body may be of anybody.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posthouse.bridge.errors import BridgeError, NotPermitted, PublishFailed, TooLarge

MESSAGE_ID = "Nats-Msg-Id"  # exactly so: the server does not know it in another case
EXPECTED_STREAM = "Nats-Expected-Stream"
DELIVER_AT = "x-deliver-at"  # milliseconds since 1970: an event of the bridge that was delayed
STATUS, DESCRIPTION = "Status", "Description"  # as nats-py calls the first line of the headers
STALLED = "Nats-Consumer-Stalled"
NANOSECONDS = 1_000_000_000
HEADER_LINE_BYTES = len(b"NATS/1.0\r\n\r\n")

NO_RESPONDERS = 503
NOT_FOUND = 404
STREAM_NOT_FOUND = 10_059
CONSUMER_NOT_FOUND = 10_014
MESSAGE_NOT_FOUND = 10_037
OVERLAP = 10_065
INVALID_SUBJECT = 10_052
NAME_IN_USE = 10_058
CONSUMER_EXISTS = 10_148
NO_PEERS = 10_005
NOT_CLUSTERED = 10_074
_TOO_LARGE = frozenset((10_054, 10_097))
_OTHER_STREAM = 10_060
_FULL = frozenset((10_077, 10_076, 10_047, 10_023, 10_028, 10_002))


class ApiError(BridgeError):
    """The server has refused a request. `code` is its own, as 10065."""

    def __init__(self, code: int, text: str, *, status: int = 0) -> None:
        self.code, self.status = code, status
        super().__init__(text)


class Unanswered(PublishFailed):
    """Nobody has answered, so that nobody knows whether it was done."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, transient=True)


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to a request: data, and headers by lower-case names."""

    data: bytes
    headers: Mapping[str, str]

    @property
    def status(self) -> int:
        """The status of the first line; 0 for an ordinary message."""
        text = self.headers.get("status", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else 0

    def form(self) -> dict[str, Any]:
        """Returns the JSON object. Raises Unanswered for what is none."""
        try:
            form = json.loads(self.data)
        except (ValueError, RecursionError):
            form = None
        if not isinstance(form, dict):
            raise Unanswered("The NATS server has answered what cannot be read.")
        return form


def headers_of(given: Any) -> dict[str, str]:
    """Returns headers as nats-py has them, which may be none, by lower-case names."""
    if not given:
        return {}
    return {
        str(name).lower(): value if isinstance(value, str) else str(value)
        for name, value in dict(given).items()
    }


def headers_bytes(headers: Mapping[str, str]) -> int:
    """Returns the size of headers on the wire, which counts for the server's limit."""
    return HEADER_LINE_BYTES + sum(len(name) + len(text) + 4 for name, text in headers.items())


def api_answer(reply: Reply, what: str) -> dict[str, Any]:
    """Returns the answer to a request of the API. Raises ApiError, Unanswered."""
    if reply.status == NO_RESPONDERS:
        raise Unanswered(
            f"No JetStream answers ({what}): it is off on these servers or for this account, or no"
            " server leads. Start it, or look at the account."
        )
    form = reply.form()
    error = form.get("error")
    if isinstance(error, dict):
        text = str(error.get("description", "no reason was given"))
        raise ApiError(
            _number(error.get("err_code")), f"NATS refuses to {what}: {text}.",
            status=_number(error.get("code")),
        )  # fmt: skip
    return form


def publish_failure(reply: Reply, subject: str, stream: str) -> PublishFailed | None:
    """Returns why an event was not stored; None: it was."""
    if reply.status == NO_RESPONDERS:
        return PublishFailed(
            f"No stream answers for {subject!r}: it is not there yet, or no server leads it."
            " `posthouse bridge provision` makes it.", transient=True,
        )  # fmt: skip
    try:
        form = reply.form()
    except Unanswered as failure:
        return failure
    error = form.get("error")
    if not isinstance(error, dict):
        return None
    code, status = _number(error.get("err_code")), _number(error.get("code"))
    text = str(error.get("description", "no reason was given"))
    if code in _TOO_LARGE:
        return TooLarge(f"The stream {stream!r} takes no event of this size: {text}.")
    if code == _OTHER_STREAM:
        return PublishFailed(
            f"{subject!r} is taken by another stream than {stream!r}: {text}. Name that stream, or"
            " take the subject out of it.", transient=False,
        )  # fmt: skip
    if code in _FULL:
        return PublishFailed(
            f"The stream {stream!r} takes no more for now: {text}. Consume, or raise its limits.",
            transient=True,
        )
    return PublishFailed(
        f"The stream {stream!r} has refused the event: {text} ({code}).", transient=status >= 500
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def not_permitted(operation: str, subject: str) -> NotPermitted:
    return NotPermitted(
        f"This NATS user may not {operation} {subject!r}. Allow it; `posthouse bridge permissions`"
        " prints all that is needed."
    )


@dataclass(frozen=True, slots=True)
class AckSubject:
    """The facts in the reply subject of a delivery."""

    stream: str
    consumer: str
    delivered: int
    sequence: int
    consumer_sequence: int


def read_ack_subject(reply: str) -> AckSubject | None:
    """Reads `$JS.ACK.STREAM.CONSUMER.DELIVERED.SEQUENCE.CONSUMER_SEQUENCE.TIME.PENDING`.

    Newer servers put a domain and a hash of the account behind `$JS.ACK`, and something random at
    the end.
    """
    parts = reply.split(".")
    if len(parts) < 9 or parts[:2] != ["$JS", "ACK"]:
        return None
    at = 2 if len(parts) == 9 else 4
    if len(parts) < at + 7:
        return None
    numbers = parts[at + 2 : at + 5]
    if not all(each.isascii() and each.isdigit() and len(each) < 20 for each in numbers):
        return None
    return AckSubject(parts[at], parts[at + 1], *map(int, numbers))


def read_denied(text: str) -> tuple[str, str]:
    """Returns the operation and the subject of a permission violation; "" and "" of other texts.

    It comes in lower case: `permissions violation for publish to "a.b"`.
    """
    _, found, rest = text.lower().partition("permissions violation for ")
    if not found:
        return "", ""
    operation = "subscribe to" if rest.startswith("subscription") else "publish to"
    _, quote, rest = rest.partition('"')
    return (operation, rest.partition('"')[0]) if quote else ("", "")
