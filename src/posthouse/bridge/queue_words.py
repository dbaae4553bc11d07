"""Events as messages of queues, and back: names, settings, sessions, errors."""

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

from posthouse.bridge.dead_letters import context_in
from posthouse.bridge.envelope import CONTENT_TYPE, KEY_HEADER, key_text
from posthouse.bridge.errors import NotPermitted, PublishFailed, TooLarge
from posthouse.bridge.names import EVENTS
from posthouse.bridge.transport import DeadLetter, Outgoing, Source
from posthouse.client.client import QueueClient
from posthouse.client.errors import (
    AuthenticationFailed,
    CircuitOpen,
    MessageTooLarge,
    PermissionDenied,
    QueueError,
    QueueNotFound,
)
from posthouse.client.messages import Message, ReceivedMessage
from posthouse.client.names import MESSAGE_CHARS_MAX, SESSION_CHARS_MAX, SubscriptionName
from posthouse.client.provider import ProviderType, SessionSupport

SPREAD = 64  # sessions for events that have no key
LOCK_SECONDS_MAX = 300.0  # Azure Service Bus has no longer ones
DELIVERIES_MAX = 1_000  # before a queue gives up by itself; the bridge does so long before
ID_HEADER = "x-event-id"  # of one that the provider cannot take as a message id
EARLIER_HEADER = "x-earlier-deliveries"  # of one that was sent again, for later


@dataclass(frozen=True, slots=True)
class Entity:
    """A queue; or a topic, and the subscription of one service."""

    send: str
    receive: str
    is_topic: bool


class Words:
    """How one provider is told of events: its names and its sessions."""

    def __init__(self, client: QueueClient, sessions: bool | None) -> None:
        is_native = client.capabilities.sessions is SessionSupport.NATIVE
        self.kind = client.provider_type
        self.keyed = is_native if sessions is None else sessions
        self.by_session = self.keyed and is_native

    def entity(self, subject: str, consumer: str = "") -> Entity:
        """Returns where the events of a subject are, for a consumer of them."""
        parts = subject.split(".")
        if len(parts) > 2 and parts[1] == EVENTS:
            topic = self._native(f"{parts[0]}.{EVENTS}")
            receive = SubscriptionName(topic, consumer) if consumer else topic
            return Entity(topic, receive, is_topic=True)
        name = self._native(subject)
        return Entity(name, name, is_topic=False)

    def _native(self, name: str) -> str:
        return name.replace(".", "-") if self.kind is ProviderType.AWS_SQS else name

    def _session(self, key: str, id: str) -> str | None:
        if not self.keyed:
            return None
        if not key:
            return f"~{zlib.crc32(id.encode()) % SPREAD}"
        if key.isascii() and key.isprintable() and len(key) <= SESSION_CHARS_MAX:
            return key
        return _hash(key)

    def message(self, event: Outgoing) -> Message:
        """Returns an event as a message. Raises QueueError."""
        headers: dict[str, Any] = dict(event.headers)
        if event.key:
            headers.setdefault(KEY_HEADER, key_text(event.key))
        id = event.id
        if len(id) > MESSAGE_CHARS_MAX:
            headers[ID_HEADER] = id
            id = _hash(id)
        parts = event.subject.split(".", 2)
        is_topic = len(parts) == 3 and parts[1] == EVENTS
        return Message(
            event.body, headers, self._session(event.key, event.id), message_id=id,
            content_type=headers.pop(CONTENT_TYPE, None), subject=parts[2] if is_topic else None,
            delay=timedelta(seconds=event.delay) if event.delay > 0 else None,
        )  # fmt: skip

    def settings(self, source: Source | None, duplicate_window: float) -> dict[str, Any]:
        """Returns the settings of the queue of a source, as the administration takes them.

        Without the source, how long events are locked is left to who has it.
        """
        settings: dict[str, Any] = {"max_delivery_count": DELIVERIES_MAX}
        if source is not None:
            settings["lock_duration"] = min(max(source.ack_wait, 0.001), LOCK_SECONDS_MAX)
        if self.kind is ProviderType.AWS_SQS:
            return settings | {"sessions": self.keyed, "duplicate_detection": self.keyed}
        return settings | {
            "sessions": self.keyed, "duplicate_detection": True,
            "duplicate_window": duplicate_window,
        }  # fmt: skip


def for_later(message: ReceivedMessage, id: str, number: int, delay: float) -> Message:
    """Returns a message as it is sent again, for later, with the count of its deliveries.

    It has another message id, else duplicate detection would take it for the one that it replaces.
    """
    attributes = dict(message.attributes)
    attributes[ID_HEADER], attributes[EARLIER_HEADER] = id, str(number)
    return Message(
        message.body, attributes, message.session_id,
        message_id=_hash(f"{message.message_id}:{number}:later"),
        content_type=message.content_type, subject=message.subject, delay=delay,
    )  # fmt: skip


def headers_of(message: ReceivedMessage) -> dict[str, str]:
    headers = {name: str(value) for name, value in message.attributes.items()}
    if message.content_type is not None:
        headers.setdefault(CONTENT_TYPE, message.content_type)
    return headers


def key_of(headers: Mapping[str, str]) -> str:
    return unquote(headers.get(KEY_HEADER, ""))


def subject_of(source: Source, message: ReceivedMessage) -> str:
    """Returns the subject to which a message was published, as a source has it."""
    if source.subject.endswith(".>"):
        return f"{source.subject[:-1]}{message.subject or 'unknown'}"
    return source.subject


def place_of(queue: str, message: ReceivedMessage) -> str:
    """Returns the name of a message among the dead letters of a queue."""
    return f"{queue}#{message.sequence_number or message.message_id}"


def letter_of(source: Source, queue: str, message: ReceivedMessage) -> DeadLetter:
    text = message.dead_letter_description or ""
    context = context_in(text)
    if not context and text:
        context = {"error_message": text}
    headers = headers_of(message)
    headers.pop(EARLIER_HEADER, None)
    context.setdefault("event_id", headers.pop(ID_HEADER, str(message.message_id)))
    deliveries = context.get("deliveries", message.delivery_count)
    return DeadLetter(
        place=place_of(queue, message), body=message.body, headers=headers,
        reason=message.dead_letter_reason or "unknown", context=context,
        subject=subject_of(source, message),
        deliveries=deliveries if isinstance(deliveries, int) else message.delivery_count,
    )  # fmt: skip


def failure(error: QueueError) -> PublishFailed:
    """Returns an error of a queue in the words of the bridge."""
    if isinstance(error, MessageTooLarge):
        return TooLarge(str(error))
    if isinstance(error, PermissionDenied):
        return NotPermitted(str(error))
    if isinstance(error, QueueNotFound):
        return PublishFailed(f"{error} `posthouse bridge provision` does.", transient=False)
    # Wrong credentials are not the event's fault: it stays until they are right.
    is_transient = error.is_transient or isinstance(error, AuthenticationFailed | CircuitOpen)
    return PublishFailed(str(error), transient=is_transient)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
