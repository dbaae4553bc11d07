"""Views to try filters and actions on."""

from collections.abc import Callable
from itertools import count

from posthouse.core.filters.sql import compile_action, compile_filter
from posthouse.core.filters.view import Amendment, MessageView
from posthouse.core.message import Envelope, Properties, Value, encode_envelope


def numbered_ids() -> Callable[[], bytes]:
    numbers = count(1)
    return lambda: next(numbers).to_bytes(16, "big")


def a_view(envelope: Envelope | None = None, /, **properties: Value) -> MessageView:
    """A message with these properties, or with this envelope."""
    envelope = envelope or Envelope(properties=properties)
    return MessageView(encode_envelope(envelope), new_id=numbered_ids())


def truth(text: str, view: MessageView | None = None, /, **properties: Value) -> bool | None:
    """What comes of a filter, for this view or for a message with these properties."""
    return compile_filter(text, {})(view or a_view(**properties))


def with_parameters(text: str, parameters: Properties, /, **properties: Value) -> bool | None:
    return compile_filter(text, parameters)(a_view(**properties))


def amended(text: str, view: MessageView | None = None, /, **properties: Value) -> Amendment:
    """What an action does, to this view or to a message with these properties."""
    return compile_action(text, {})(view or a_view(**properties))
