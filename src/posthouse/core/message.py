"""Messages: as they are sent, as they stand in a queue, and what is noted about them on the way.

A message's content never changes after it was accepted: the envelope (neutral fields and typed
properties, encoded), the native form where the dialect had one, and the body. What happens to it
later is kept beside it: hot fields in `Message`, the rare rest in a `Note`. So dead-lettering,
resubmitting and, later, forwarding move a message by reference to the position of its content in
the journal.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.msgpack import Ext

# A typed property. Times, UUIDs and durations, which MessagePack lacks, travel as Ext (see
# `timestamp`, `uuid`, `span`). msgspec cannot tell text from bytes in a declared union, though
# MessagePack can, hence Any to it.
if TYPE_CHECKING:
    Value = None | bool | int | float | str | bytes | Ext
else:
    Value = Any
Properties = dict[str, Value]

TIMESTAMP, UUID, SPAN = 1, 2, 3  # the Ext codes
TIMESTAMP_BYTES, ZONELESS_BYTES = 8, 9


def timestamp(unix_ms: int, *, zoneless: bool = False) -> Ext:
    """A moment as a property value. The same number has one byte more where no zone was given."""
    size = ZONELESS_BYTES if zoneless else TIMESTAMP_BYTES
    return Ext(TIMESTAMP, unix_ms.to_bytes(size, "big", signed=True))


def uuid(value: bytes) -> Ext:
    """A UUID, 16 bytes in network order, as a property value."""
    return Ext(UUID, value)


def span(ticks: int) -> Ext:
    """A duration, in ten-millionths of a second, as a property value."""
    return Ext(SPAN, ticks.to_bytes(8, "big", signed=True))


# Written as a map without what is empty, so a field can be added at any time.
class Envelope(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The fields all dialects share, as the sender gave them."""

    id: str = ""
    content_type: str = msgspec.field(name="type", default="")
    subject: str = ""
    correlation_id: str = msgspec.field(name="corr", default="")
    session_id: str | None = msgspec.field(name="session", default=None)
    partition_key: str | None = msgspec.field(name="part", default=None)
    to: str = ""
    reply_to: str = msgspec.field(name="reply", default="")
    reply_to_session_id: str = msgspec.field(name="replys", default="")
    trace: str = ""
    properties: Properties = msgspec.field(name="props", default_factory=dict)
    form: str = ""  # of a body that only its own dialect can read: that dialect's name for it


_encoder = msgspec.msgpack.Encoder()
_envelope_decoder = msgspec.msgpack.Decoder(Envelope)


def encode_envelope(envelope: Envelope) -> bytes:
    return _encoder.encode(envelope)


def decode_envelope(data: bytes) -> Envelope:
    return _envelope_decoder.decode(data)


class _OnlyId(msgspec.Struct, frozen=True, gc=False):
    id: str = ""


_id_decoder = msgspec.msgpack.Decoder(_OnlyId)


def bare_id(envelope: bytes) -> str:
    """The id in an encoded envelope, as `message_id`; what else is in it is not looked at."""
    try:
        return _id_decoder.decode(envelope).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def message_id(envelope: bytes) -> str:
    """The id in an encoded envelope; empty where there is none, or no envelope."""
    try:
        return _envelope_decoder.decode(envelope).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One delivery of a message: the message's sequence number, and its delivery count then.

    Where a queue does not count every delivery, one that was not counted has the number of the
    next.
    """

    sequence: int
    count: int


class NewMessage(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A message as it is sent, and as the journal holds it.

    `native` holds the bytes of the dialect's own form. `group` is the session id or partition key
    by which the queue may group. `ttl_ms` is the sender's, `due_ms` schedules it; `expires_ms` is
    what comes of both in the queue, 0 for never, and not for senders to give. Fields are only ever
    added at the end.
    """

    envelope: bytes
    body: bytes
    native: bytes | None = None
    group: str | None = None
    priority: int = 4
    ttl_ms: int | None = None
    due_ms: int = 0
    expires_ms: int = 0


def has_session(message: NewMessage) -> bool:
    """Whether its group is a session's, not a partition key's."""
    if message.group is None:
        return False
    try:
        return _envelope_decoder.decode(message.envelope).session_id is not None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


# The states of a message in a queue.
ACTIVE, LOCKED, SCHEDULED, DELAYED, DEFERRED = range(5)
STATES = ("active", "locked", "scheduled", "delayed", "deferred")


class Message(msgspec.Struct, array_like=True, gc=False):
    """A message in a queue: 12 fields, 112 bytes, unseen by the garbage collector.

    A snapshot holds it as this array, so fields are only ever added at the end.
    """

    sequence: int
    position: int  # of its content in the journal; 0 in a delivery made by the send itself
    envelope: bytes
    native: bytes | None
    body: bytes | int  # an int is the length of a body that was evicted
    priority: int
    group: str | None
    enqueued_ms: int  # while scheduled: when it is due
    expires_ms: int  # 0: never
    count: int  # deliveries so far
    state: int
    # The token of its lock, or 0; while delayed: when it wakes. While it is active: the number of
    # the last subscription that has a copy, where its topic has handed it on in part.
    lock: int


NO_FIELDS: dict[str, str | None] = {}


class Note(msgspec.Struct, frozen=True, gc=False):
    """Changes and reasons that were added to a message after it was sent."""

    properties: Properties = {}  # changed by those who settled it
    reason: str | None = None  # why it was dead-lettered, and by whom from where
    description: str | None = None
    source: str | None = None
    source_sequence: int = 0
    dead_ms: int = 0
    ttl_ms: int | None = None  # the sender's, for when it is sent again
    removed: list[str] = []  # properties that are not there any more
    fields: dict[str, str | None] = {}  # of the envelope, that are different now
    hops: int = 0  # how often it was forwarded, where it may be forwarded once more

    def amended(
        self,
        properties: Properties,
        removed: Sequence[str] = (),
        fields: dict[str, str | None] = NO_FIELDS,
    ) -> "Note":
        """Adds these changes to those that were made before."""
        both = self.properties | properties if self.properties else properties
        if removed:
            both = {name: value for name, value in both.items() if name not in removed}
        gone = self.removed
        if removed or gone:
            gone = [name for name in dict.fromkeys((*gone, *removed)) if name not in both]
        return msgspec.structs.replace(
            self, properties=both, removed=gone, fields=self.fields | fields
        )

    def resubmitted(self, *, keep_reason: bool) -> "Note":
        if keep_reason:
            return msgspec.structs.replace(self, hops=0)
        return Note(self.properties, removed=self.removed, fields=self.fields)

    def apply_to(self, envelope: Envelope) -> Envelope:
        """The envelope as it is now."""
        if not (self.properties or self.removed or self.fields):
            return envelope
        properties = envelope.properties | self.properties
        for name in self.removed:
            properties.pop(name, None)
        return msgspec.structs.replace(envelope, properties=properties, **self.fields)


NO_NOTE = Note()


def noted_bytes(note: Note) -> int:
    """The memory a note takes, about."""
    size = 0
    for texts in (note.properties, note.fields):
        for name, value in texts.items():
            size += 100 + len(name)
            if isinstance(value, str):
                size += len(value) if value.isascii() else 4 * len(value)
            elif isinstance(value, bytes):
                size += len(value)
    return size + len(note.description or "")


class Notes(dict[int, Note]):
    """Notes by sequence number, and the memory they take. They are put and popped only."""

    __slots__ = ("size_bytes",)

    def __init__(self) -> None:
        super().__init__()
        self.size_bytes = 0

    def __setitem__(self, sequence: int, note: Note) -> None:
        self.drop(sequence)
        super().__setitem__(sequence, note)
        self.size_bytes += noted_bytes(note)

    def drop(self, sequence: int) -> None:
        note = self.pop(sequence, None)
        if note is not None:
            self.size_bytes -= noted_bytes(note)


NO_PROPERTIES: Properties = {}


def group_of(message: Message, note: Note | None) -> str | None:
    """The group it belongs to, which a rule may have changed."""
    if note is None or not note.fields:
        return message.group
    group = note.fields.get("session_id", message.group)
    return note.fields.get("partition_key") if group is None else group


def size_bytes(message: Message | NewMessage) -> int:
    """The size of a message, as it counts in its queue's."""
    body = message.body
    size = len(message.envelope) + (len(body) if isinstance(body, bytes) else body)
    return size if message.native is None else size + len(message.native)
