"""Events, and the envelope in which they travel.

The envelope is a JSON object with the fields of JetStream Bridge: event_id, schema_version,
event_type, producer, resource_type, resource_id, occurred_at, trace_id, payload.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """An event as a service publishes it and as a handler gets it."""

    id: str
    type: str  # order.created
    payload: Any  # what JSON can say
    producer: str
    resource_type: str
    resource_id: str
    occurred_at: datetime
    trace_id: str
    schema_version: int = 1
    key: str = ""  # events of one key are sent and handled in order
    sequence: int = 0  # of its row in the outbox; 0: it was published without one
    headers: Mapping[str, str] = field(default_factory=dict)
