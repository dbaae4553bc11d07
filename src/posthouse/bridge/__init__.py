"""The bridge: an outbox, an inbox, consumers and a topology for services that exchange events.

A name is imported when it is first asked for, so that a service without a database needs no
SQLAlchemy, and one without NATS none of its client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posthouse.bridge import middleware
    from posthouse.bridge.bridge import Bridge
    from posthouse.bridge.default import configure, consumer, default_bridge, publish
    from posthouse.bridge.errors import (
        BridgeError,
        ConfigurationError,
        MalformedEvent,
        NotPermitted,
        PartialFailure,
        PublishFailed,
        TooLarge,
        TopologyConflict,
    )
    from posthouse.bridge.event import Event
    from posthouse.bridge.processing import current_event
    from posthouse.bridge.publishing import NewEvent, Published
    from posthouse.bridge.retries import (
        DeadLetter,
        Delays,
        Drop,
        Exponential,
        Retry,
        RetrySchedule,
        Unrecoverable,
    )
    from posthouse.bridge.settings import Settings
    from posthouse.bridge.transport import Delivery

_NAMES = {
    "bridge": ("Bridge",),
    "default": ("configure", "consumer", "default_bridge", "publish"),
    "errors": (
        "BridgeError", "ConfigurationError", "MalformedEvent", "NotPermitted", "PartialFailure",
        "PublishFailed", "TooLarge", "TopologyConflict",
    ),
    "event": ("Event",),
    "processing": ("current_event",),
    "publishing": ("NewEvent", "Published"),
    "retries": (
        "DeadLetter", "Delays", "Drop", "Exponential", "Retry", "RetrySchedule", "Unrecoverable",
    ),
    "settings": ("Settings",),
    "transport": ("Delivery",),
}  # fmt: skip
_WHERE = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "Bridge", "BridgeError", "ConfigurationError", "DeadLetter", "Delays", "Delivery", "Drop",
    "Event", "Exponential", "MalformedEvent", "NewEvent", "NotPermitted", "PartialFailure",
    "PublishFailed", "Published", "Retry", "RetrySchedule", "Settings", "TooLarge",
    "TopologyConflict", "Unrecoverable", "configure", "consumer", "current_event", "default_bridge",
    "middleware", "publish",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "middleware":
        return import_module("posthouse.bridge.middleware")
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module 'posthouse.bridge' has no attribute {name!r}")
    found = getattr(import_module(f"posthouse.bridge.{module}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
