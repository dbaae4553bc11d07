"""Values of the broker in this process, in the client's words and back."""

from datetime import UTC, datetime
from uuid import UUID

from msgspec.msgpack import Ext

from posthouse.client.attributes import AttributeValue
from posthouse.core.message import TIMESTAMP, Value, timestamp, uuid
from posthouse.core.message import UUID as UUID_CODE

NAMESPACE = "default"


def moment_at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1_000, UTC)


def ms_of(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000)


def property_of(value: AttributeValue) -> Value:
    """An attribute as the core has it."""
    if isinstance(value, datetime):
        return timestamp(ms_of(value))
    if isinstance(value, UUID):
        return uuid(value.bytes)
    return str(value) if isinstance(value, str) else value


def attribute_of(value: Value) -> AttributeValue:
    """A property of the core as the client has it; of types that Python lacks, its text."""
    if isinstance(value, Ext):
        if value.code == UUID_CODE:
            return UUID(bytes=bytes(value.data))
        number = int.from_bytes(value.data, "big", signed=True)
        return moment_at(number) if value.code == TIMESTAMP else str(number)
    return "" if value is None else value
