"""Received messages without a queue."""

from datetime import UTC, datetime

from posthouse import Message, MessageId, ProviderType, ReceiptHandle, ReceivedMessage

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def delivered(message: Message, *, number: int = 1, count: int = 1) -> ReceivedMessage:
    """What a provider would hand out of a message that was sent."""
    return ReceivedMessage(
        message.message_id or MessageId(), message.body,
        ReceiptHandle("r", NOW, ProviderType.IN_MEMORY), count, NOW, dict(message.attributes),
        message.session_id, message.correlation_id, message.content_type, sequence_number=number,
        time_to_live=message.time_to_live, subject=message.subject, to=message.to,
        reply_to=message.reply_to, priority=4 if message.priority is None else message.priority,
        partition_key=message.partition_key,
    )  # fmt: skip
