"""The view that filters have of a message, and the draft that actions change.

Many filters look at one message, most of them at few of its properties. So a view costs little
until it is looked at, and decodes the envelope once.
"""

from collections.abc import Callable
from typing import NamedTuple, cast

import msgspec

from posthouse.core.filters.problems import EvaluationProblem, TooManyLooks
from posthouse.core.message import Envelope, Properties, Value, decode_envelope, timestamp


class Amendment(NamedTuple):
    """Changes to a message: names are removed first, then properties and fields are set.

    `fields` are those of `Envelope`, with values of their types, and `ttl_ms`.
    """

    properties: Properties
    removed: list[str]
    fields: dict[str, Value]


# What filters and actions do with a message is counted in looks. A look takes about 4 ns: as much
# as it takes to read a character of a text in which another is searched for.
LOOKS_MAX = 1 << 22  # for the rules of one subscription, on one message
_LOOKS_OF_BYTE = 3  # of an envelope that is decoded
_LOOKS_OF_NAME = 18  # that is folded
_LOOKS_OF_ITEM = 2  # that is copied
_EMPTY = Envelope()
_TTL = "ttl_ms"  # a field that is beside the envelope


class MessageView:
    """A message as filters see it. Unset system properties are null."""

    __slots__ = (
        "_amendment", "_data", "_envelope", "_properties", "_spelling", "amended_bytes",
        "count", "due_ms", "enqueued_ms", "enqueued_sequence", "expires_ms", "looks", "looks_end",
        "new_id", "sequence", "size", "source", "state", "ttl_ms",
    )  # fmt: skip

    def __init__(
        self,
        envelope: bytes,
        *,
        new_id: Callable[[], bytes],
        amendment: Amendment | None = None,
        sequence: int = 0,
        enqueued_sequence: int = 0,
        enqueued_ms: int = 0,
        expires_ms: int = 0,
        due_ms: int = 0,
        ttl_ms: int | None = None,
        size: int = 0,
        count: int = 0,
        state: int = 0,
        source: str | None = None,
    ) -> None:
        self._data = envelope
        self._envelope: Envelope | None = None
        self._properties: Properties | None = None
        self._spelling: dict[str, str] | None = None
        self._amendment = amendment
        self.new_id = new_id  # 16 bytes, another each time
        self.sequence = sequence
        self.enqueued_sequence = enqueued_sequence
        self.enqueued_ms = enqueued_ms
        self.expires_ms = expires_ms
        self.due_ms = due_ms
        self.ttl_ms = ttl_ms
        self.size = size
        self.count = count
        self.state = state
        self.source = source
        self.amended_bytes = 0  # by all actions that had a look at it
        self.looks = 0  # so far
        self.looks_end = LOOKS_MAX
        if amendment is not None:
            self.ttl_ms = cast("int | None", amendment.fields.get(_TTL, ttl_ms))

    def look(self, looks: int) -> None:
        """Before something that takes so many. Raises TooManyLooks."""
        self.looks += looks
        if self.looks > self.looks_end:
            raise TooManyLooks

    def begin(self) -> None:
        """The rules of the next subscription begin to look at it."""
        self.looks_end = self.looks + LOOKS_MAX

    @property
    def envelope(self) -> Envelope:
        """The envelope with its amendment, but for the properties."""
        return self._envelope or self._open()

    @property
    def properties(self) -> Properties:
        """All properties, as amended. Not to be changed."""
        if self._properties is None:
            self._open()
        assert self._properties is not None
        return self._properties

    def user(self, name: str, folded: str) -> Value:
        """A property, by its name or else by its folded name; None where there is none."""
        properties = self._properties
        if properties is None:
            properties = self.properties
        if name in properties:
            return properties[name]
        if not properties:
            return None
        spelling = self._spelling
        if spelling is None:
            spelling = self._fold()
        other = spelling.get(folded)
        return None if other is None else properties[other]

    def spelled(self, name: str) -> str | None:
        """How the message spells a property's name; None where it has none of that name."""
        if name in self.properties:
            return name
        return (self._spelling or self._fold()).get(name.casefold())

    def _open(self) -> Envelope:
        self.looks += _LOOKS_OF_BYTE * len(self._data)
        self.looks_end += _LOOKS_OF_BYTE * len(self._data)  # once, whoever is the first to look
        try:
            envelope = decode_envelope(self._data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            envelope = _EMPTY  # as everywhere: a message without an envelope has no properties
        properties = envelope.properties
        amendment = self._amendment
        if amendment is not None:
            removed = set(amendment.removed)
            kept = {name: value for name, value in properties.items() if name not in removed}
            properties = kept | amendment.properties
            fields = {name: value for name, value in amendment.fields.items() if name != _TTL}
            envelope = msgspec.structs.replace(envelope, **fields)
        self._properties = properties
        self._envelope = envelope
        return envelope

    def _fold(self) -> dict[str, str]:
        spelling: dict[str, str] = {}
        self.look(_LOOKS_OF_NAME * len(self.properties))
        for name in self.properties:
            spelling.setdefault(name.casefold(), name)
        self._spelling = spelling
        return spelling


class Draft(MessageView):
    """A view that an action writes on; the one it was made of stays as it is."""

    __slots__ = ("_changes",)

    def __init__(self, view: MessageView) -> None:
        self._envelope = view.envelope
        self._properties = dict(view.properties)
        self._spelling = None
        for name in _FACTS:
            setattr(self, name, getattr(view, name))
        self._changes = Amendment({}, [], {})
        self.look(_LOOKS_OF_ITEM * len(self._properties))

    def put(self, name: str, value: Value) -> None:
        self.properties[name] = value
        self._spelling = None
        self._changes.properties[name] = value

    def remove(self, name: str) -> None:
        """Takes a property away that is there under this very name."""
        del self.properties[name]
        self._spelling = None
        self._changes.properties.pop(name, None)
        if name not in self._changes.removed:
            self._changes.removed.append(name)

    def put_field(self, field: str, value: Value) -> None:
        if field == _TTL:
            self.ttl_ms = cast("int | None", value)
        else:
            self._envelope = msgspec.structs.replace(self.envelope, **{field: value})
        self._changes.fields[field] = value

    def amendment(self) -> Amendment:
        """Returns the changes of the draft. A property that is set again was not removed."""
        properties, removed, fields = self._changes
        return Amendment(properties, [name for name in removed if name not in properties], fields)


# Whether a message fits; None is unknown.
Predicate = Callable[[MessageView], bool | None]
Action = Callable[[MessageView], Amendment]
Evaluate = Callable[[MessageView], Value]

_FACTS = tuple(name for name in MessageView.__slots__ if not name.startswith("_"))


def failing(reason: str) -> Callable[[MessageView], None]:
    """Makes a function that fails when it is called, for errors known at compile time."""

    def fail(view: MessageView) -> None:
        raise EvaluationProblem(reason)

    return fail


def _moment(unix_ms: int) -> Value:
    return timestamp(unix_ms) if unix_ms else None


# By lower-cased name. An empty text of an envelope is one that was not set.
SYSTEM: dict[str, Callable[[MessageView], Value]] = {
    "messageid": lambda view: view.envelope.id or None,
    "correlationid": lambda view: view.envelope.correlation_id or None,
    "sessionid": lambda view: view.envelope.session_id,
    "replytosessionid": lambda view: view.envelope.reply_to_session_id or None,
    "label": lambda view: view.envelope.subject or None,
    "subject": lambda view: view.envelope.subject or None,
    "to": lambda view: view.envelope.to or None,
    "replyto": lambda view: view.envelope.reply_to or None,
    "contenttype": lambda view: view.envelope.content_type or None,
    "partitionkey": lambda view: view.envelope.partition_key,
    "viapartitionkey": lambda view: None,
    "timetolive": lambda view: view.ttl_ms,
    "enqueuedtimeutc": lambda view: _moment(view.enqueued_ms),
    "scheduledenqueuetimeutc": lambda view: _moment(view.due_ms),
    "expiresatutc": lambda view: _moment(view.expires_ms),
    "sequencenumber": lambda view: view.sequence,
    "enqueuedsequencenumber": lambda view: view.enqueued_sequence,
    "deliverycount": lambda view: view.count,
    "deadlettersource": lambda view: view.source,
    "state": lambda view: view.state,
    "size": lambda view: view.size,
}

# What an action may set, and the field it is.
SETTABLE = {
    "messageid": "id",
    "correlationid": "correlation_id",
    "sessionid": "session_id",
    "replytosessionid": "reply_to_session_id",
    "label": "subject",
    "subject": "subject",
    "to": "to",
    "replyto": "reply_to",
    "contenttype": "content_type",
    "partitionkey": "partition_key",
    "timetolive": "ttl_ms",
}
