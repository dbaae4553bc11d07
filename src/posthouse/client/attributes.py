"""Typed attributes: the values that an attribute may have, and which of them a provider carries."""

from collections.abc import Mapping
from datetime import datetime
from typing import TypeAlias
from uuid import UUID

from posthouse.client.errors import Unsupported, ValidationError
from posthouse.client.provider import ProviderType

AttributeValue: TypeAlias = str | int | float | bool | bytes | datetime | UUID
KINDS: tuple[type, ...] = (str, bool, int, float, bytes, datetime, UUID)


def check_attributes(
    attributes: Mapping[str, AttributeValue],
    provider: ProviderType,
    carried: tuple[type, ...] = KINDS,
) -> None:
    """Raises Unsupported for a value that the provider cannot carry as it is; ValidationError."""
    for name, value in attributes.items():
        if type(value) is str:
            continue
        if not isinstance(value, carried):
            raise Unsupported(
                provider.value,
                f"carry the attribute {name!r} of the type {type(value).__name__}; give it as text",
            )
        if isinstance(value, datetime) and value.tzinfo is None:
            raise ValidationError(f"attribute {name!r}", "must say its time zone")
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise ValidationError(f"attribute {name!r}", "must be a number of at most 64 bits")
