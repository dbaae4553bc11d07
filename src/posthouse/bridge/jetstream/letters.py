"""Dead letters on a subject of the stream: looked at by number, without a consumer."""

import base64
import binascii
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from posthouse.bridge.dead_letters import (
    CONTEXT,
    DELIVERIES,
    context_in,
    number_in,
    reason_in,
    without_marks,
)
from posthouse.bridge.errors import BridgeError
from posthouse.bridge.jetstream.connection import Connection
from posthouse.bridge.jetstream.words import (
    MESSAGE_NOT_FOUND,
    NOT_FOUND,
    ApiError,
    Unanswered,
    api_answer,
)
from posthouse.bridge.transport import DeadLetter

_OWN = "nats-"


async def dead_letters(
    connection: Connection, stream: str, subject: str
) -> AsyncIterator[DeadLetter]:
    """Yields the dead letters of a subject from the oldest on. Raises BridgeError."""
    following = 1
    while True:
        question = {"seq": following, "next_by_subj": subject}
        try:
            message = (await _ask(connection, stream, "GET", question, "look at"))["message"]
        except ApiError as error:
            if error.code == MESSAGE_NOT_FOUND or error.status == NOT_FOUND:
                return
            raise
        sequence = int(message["seq"])
        yield _letter(stream, sequence, message)
        following = sequence + 1


async def remove(connection: Connection, letter: DeadLetter) -> None:
    """Removes a dead letter from its stream. Raises BridgeError."""
    stream, _, number = letter.place.rpartition("#")
    question = {"seq": int(number), "no_erase": True}
    try:
        await _ask(connection, stream, "DELETE", question, "remove")
    except ApiError as error:
        raise BridgeError(
            f"The dead letter {letter.place} is not there any more; look again. ({error})"
        ) from error


async def _ask(
    connection: Connection, stream: str, verb: str, question: Mapping[str, Any], what: str
) -> dict[str, Any]:
    reply = await connection.request(
        f"$JS.API.STREAM.MSG.{verb}.{stream}", json.dumps(question).encode()
    )
    return api_answer(reply, f"{what} a message of the stream {stream}")


def _letter(stream: str, sequence: int, message: Mapping[str, Any]) -> DeadLetter:
    try:
        body = base64.b64decode(message.get("data") or "")
        lines = base64.b64decode(message.get("hdrs") or "")
    except (binascii.Error, ValueError):
        raise Unanswered("The NATS server has answered what cannot be read.") from None
    headers = read_headers(lines)
    lower = {name.lower(): text for name, text in headers.items()}
    context = context_in(lower.get(CONTEXT, ""))
    subject = context.get("original_subject", "")
    return DeadLetter(
        place=f"{stream}#{sequence}", body=body,
        headers={
            name: text
            for name, text in without_marks(headers).items() if not name.lower().startswith(_OWN)
        },
        reason=reason_in(lower) or "unknown", context=context, subject=str(subject),
        deliveries=number_in(lower.get(DELIVERIES, "")),
    )  # fmt: skip


def read_headers(lines: bytes) -> dict[str, str]:
    """Reads `NATS/1.0`, then `Name: value` in each line."""
    headers = {}
    for line in lines.decode("utf-8", "replace").split("\r\n")[1:]:
        name, colon, text = line.partition(":")
        if colon and name:
            headers[name] = text.strip()
    return headers
