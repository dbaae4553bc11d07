"""The feed's rows: what happened, one row a position.

A row has what its record carries; what a record does not carry is null, and is found by namespace,
entity and sequence number in the row that does. Times are milliseconds since 1970.
"""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.msgpack import Ext
from msgspec.structs import astuple

from posthouse.broker.payload import Located, Record
from posthouse.core.message import (
    SPAN,
    TIMESTAMP,
    Envelope,
    NewMessage,
    Properties,
    decode_envelope,
)
from posthouse.core.model import dead_letter_queue
from posthouse.core.records import (
    AccountRevoked,
    AccountSet,
    Activated,
    Cancelled,
    ClockSet,
    ClockStepped,
    ClockTurnedBack,
    Completed,
    DeadLettered,
    Deferred,
    Dropped,
    Expired,
    Forgotten,
    Locked,
    MessagesRestored,
    Missing,
    Moved,
    NamespaceCreated,
    NamespaceDeleted,
    Purged,
    QueueCreated,
    QueueDeleted,
    QueueRestored,
    QueueUpdated,
    ReaderRemoved,
    ReaderSet,
    Relocked,
    Renewed,
    Resubmitted,
    Returned,
    Routed,
    RuleRemoved,
    RuleSet,
    ScheduleCancelled,
    ScheduleFired,
    SchedulePaused,
    ScheduleResumed,
    ScheduleSet,
    Sent,
    SessionAccepted,
    SessionReleased,
    SessionRenewed,
    SessionStateSet,
    Started,
    SubscriptionCreated,
    Taken,
    Woken,
)
from posthouse.core.recurrence import said
from posthouse.core.rules import Rule

KINDS: dict[type, str] = {
    Started: "started",
    QueueCreated: "queue-created",
    QueueUpdated: "queue-updated",
    QueueDeleted: "queue-deleted",
    Sent: "sent",
    Activated: "activated",
    Woken: "woken",
    Cancelled: "cancelled",
    Locked: "delivered",
    Taken: "taken",
    Completed: "completed",
    Returned: "abandoned",  # or released
    Deferred: "deferred",
    DeadLettered: "dead-lettered",
    Expired: "expired",
    Renewed: "renewed",
    Relocked: "relocked",
    SessionAccepted: "session-accepted",
    SessionRenewed: "session-renewed",
    SessionReleased: "session-released",
    SessionStateSet: "session-state-set",
    Resubmitted: "resubmitted",
    Purged: "purged",
    Forgotten: "forgotten",
    NamespaceCreated: "namespace-created",
    NamespaceDeleted: "namespace-deleted",
    Moved: "moved",
    ClockStepped: "clock-stepped",
    ClockSet: "clock-set",
    Missing: "missing",
    AccountSet: "principal-set",
    AccountRevoked: "principal-revoked",
    ReaderSet: "reader-set",
    ReaderRemoved: "reader-removed",
    Routed: "routed",
    SubscriptionCreated: "subscription-created",
    RuleSet: "rule-set",
    RuleRemoved: "rule-removed",
    Dropped: "dropped",
    ScheduleSet: "schedule-set",
    ScheduleFired: "schedule-fired",
    SchedulePaused: "schedule-paused",
    ScheduleResumed: "schedule-resumed",
    ScheduleCancelled: "schedule-cancelled",
    ClockTurnedBack: "clock-turned-back",
    QueueRestored: "queue-restored",
    MessagesRestored: "restored",
}
_OF_MESSAGES = (
    Activated, Woken, Cancelled, Locked, Taken, Completed, Returned, Deferred, DeadLettered,
    Expired, Renewed, Relocked, Resubmitted, Purged, Moved, Dropped, MessagesRestored,
)  # fmt: skip
SOME = 512  # messages of one record that are looked at together
RELEASED = "released"
COPIED = "copied"  # a copy of what is routed
WORDS = frozenset((*KINDS.values(), RELEASED, COPIED))


def kind_of(record: Record) -> str:
    """The word of a record's rows."""
    return RELEASED if isinstance(record, Returned) and record.uncounted else KINDS[type(record)]


class Row(Struct, gc=False):
    """The columns, in their order. `properties` and `detail` are JSON."""

    position: int
    time: int
    namespace: str | None
    entity: str | None
    kind: str
    message_id: str | None = None
    sequence_number: int | None = None
    delivery_count: int | None = None
    reason: str | None = None
    description: str | None = None
    session_id: str | None = None
    body: bytes | None = None
    properties: str | None = None
    content_type: str | None = None
    subject: str | None = None
    correlation_id: str | None = None
    partition_key: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    trace: str | None = None
    priority: int | None = None
    ttl_ms: int | None = None
    due: int | None = None  # when it is scheduled for
    expires: int | None = None
    until: int | None = None  # of a lock, or a delay
    receiver: int | None = None
    target: str | None = None  # the entity it goes to
    target_sequence_number: int | None = None  # and its number there
    native: bytes | None = None
    detail: str | None = None  # other fields of the record, as JSON
    waited_ms: int | None = None  # in its queue, until this delivery
    settled_ms: int | None = None  # after its delivery


COLUMNS: tuple[str, ...] = Row.__struct_fields__


def rows(located: Iterable[Located], time_ms: int) -> Iterator[Row]:
    """Yields the feed's rows of the records of one frame."""
    for position, namespace, record in located:
        kind = kind_of(record)
        queue = getattr(record, "queue", None)
        match record:
            case Sent():
                number = record.first_sequence
                for at, message in enumerate(record.messages):
                    row = Row(position + at, time_ms, namespace, queue, kind)
                    row.sequence_number = number + at
                    _fill(row, message)
                    yield row
            case Routed():
                yield from _routed(position, time_ms, namespace, record)
            case Missing() | Forgotten():
                for at in range(record.count):
                    yield Row(position + at, time_ms, namespace or None, queue, kind)
            case _ if isinstance(record, _OF_MESSAGES):
                for at, sequence in enumerate(record.sequences):
                    row = Row(position + at, time_ms, namespace, queue, kind)
                    row.sequence_number = sequence
                    _tell(row, record, at)
                    yield row
            case _:
                yield _other(Row(position, time_ms, namespace or None, queue, kind), record)


def runs(located: Iterable[Located]) -> Iterator[tuple[Row, int]]:
    """Yields runs of rows of one namespace, entity, kind and target: the first row, and how many.

    A row has the columns by which rows are chosen, so that they can be counted without being made.
    """
    for position, namespace, record in located:
        kind = KINDS[type(record)]
        queue = getattr(record, "queue", None)
        match record:
            case Sent():
                yield Row(position, 0, namespace, queue, kind), len(record.messages)
            case Routed():
                for copies in record.every():
                    row = Row(position, 0, namespace, queue, COPIED, target=copies.queue)
                    yield row, len(copies.sequences)
                    position += len(copies.sequences)
                yield Row(position, 0, namespace, queue, kind), len(record.sequences)
            case Missing() | Forgotten():
                yield Row(position, 0, namespace or None, queue, kind), record.count
            case _ if isinstance(record, _OF_MESSAGES):
                if record.sequences:
                    row = Row(position, 0, namespace, queue, kind)
                    _tell(row, record, 0)
                    yield row, len(record.sequences)
            case _:
                yield _other(Row(position, 0, namespace or None, queue, kind), record), 1


def _routed(position: int, time_ms: int, namespace: str, record: Routed) -> Iterator[Row]:
    """Yields the rows of the copies, each with the queue that got it; then of what has left."""
    for copies in record.every():
        for at, sequence in enumerate(copies.sequences):
            row = Row(position, time_ms, namespace, record.queue, COPIED)
            row.sequence_number = sequence
            row.target, row.target_sequence_number = copies.queue, copies.first_sequence + at
            row.expires = (copies.expires_ms[at] or None) if copies.expires_ms else None
            note = copies.notes[at] if copies.notes else None
            if note is not None:
                row.reason, row.description = note.reason, note.description
                row.properties = _json(note.properties)
                if note.removed or note.fields:
                    row.detail = _text({"removed": note.removed, "fields": note.fields})
            yield row
            position += 1
    for at, sequence in enumerate(record.sequences):
        row = Row(position + at, time_ms, namespace, record.queue, KINDS[Routed])
        row.sequence_number = sequence
        yield row


def columns(
    position: int, time_ms: int, namespace: str, record: Sent | Locked | Completed, first: int
) -> dict[str, Sequence[Any]]:
    """The same rows as `rows` makes of a part of a record, but as columns, which is faster.

    They are those of its messages from `first` on, SOME at most.
    """
    numbers: Sequence[int]
    if isinstance(record, Sent):
        numbers = range(record.first_sequence, record.first_sequence + len(record.messages))
    else:
        numbers = record.sequences
    numbers = numbers[first : first + SOME]
    count = len(numbers)
    found: dict[str, Sequence[Any]] = {
        "position": range(position + first, position + first + count),
        "time": [time_ms] * count, "namespace": [namespace] * count,
        "entity": [record.queue] * count, "kind": [KINDS[type(record)]] * count,
        "sequence_number": numbers,
    }  # fmt: skip
    if isinstance(record, Sent):
        return found | _sent_columns(record.messages[first : first + SOME])
    if record.counts is not None:
        found["delivery_count"] = record.counts[first : first + SOME] or [1] * count
    told: dict[str, Sequence[Any] | None]
    if isinstance(record, Completed):
        told = {"settled_ms": record.settled_ms}
    else:
        told = {"waited_ms": record.waited_ms, "message_id": record.ids}
        found["until"] = [record.until_ms] * count
        found["receiver"] = [record.receiver or None] * count
    return found | {name: each[first : first + SOME] for name, each in told.items() if each}


def _sent_columns(messages: Sequence[NewMessage]) -> dict[str, Sequence[Any]]:
    """The columns of sent messages, without those that have no value, as most have none."""
    given = dict(_by_field(NewMessage, messages))
    envelopes = dict(_by_field(Envelope, _envelopes(given["envelope"])))
    found: dict[str, Sequence[Any]] = {
        name: given[name] for name in ("body", "native", "priority", "ttl_ms")
    }
    found |= {name: envelopes[name] for name in ("session_id", "partition_key")}
    texts = {"message_id": envelopes["id"]} | {name: envelopes[name] for name in _TEXTS}
    for name, values in {**texts, "due": given["due_ms"], "expires": given["expires_ms"]}.items():
        if any(values):
            found[name] = [value or None for value in values]
    if any(envelopes["properties"]):
        found["properties"] = list(map(_json, envelopes["properties"]))
    return found


# The text fields of an envelope; an empty one was not given.
_TEXTS = (
    "content_type", "subject", "correlation_id", "to", "reply_to", "reply_to_session_id", "trace",
)  # fmt: skip


def _by_field(kind: type[Struct], some: Sequence[Struct]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    return zip(kind.__struct_fields__, zip(*map(astuple, some), strict=True), strict=True)


def _envelopes(encoded: Sequence[bytes]) -> list[Envelope]:
    try:
        return list(map(decode_envelope, encoded))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return list(map(_envelope, encoded))


def _envelope(encoded: bytes) -> Envelope:
    try:
        return decode_envelope(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Envelope()


def _fill(row: Row, message: NewMessage) -> None:
    """Sets the columns of the content that the sender gave."""
    envelope = _envelope(message.envelope)
    row.message_id = envelope.id or None
    row.session_id = envelope.session_id
    row.partition_key = envelope.partition_key
    row.body = message.body
    row.native = message.native
    row.priority = message.priority
    row.ttl_ms = message.ttl_ms
    row.due = message.due_ms or None
    row.expires = message.expires_ms or None
    row.content_type = envelope.content_type or None
    row.subject = envelope.subject or None
    row.correlation_id = envelope.correlation_id or None
    row.to = envelope.to or None
    row.reply_to = envelope.reply_to or None
    row.reply_to_session_id = envelope.reply_to_session_id or None
    row.trace = envelope.trace or None
    row.properties = _json(envelope.properties)


_TIMED = (Locked, Taken, Completed, Returned, Deferred, DeadLettered)


def _tell(row: Row, record: Any, at: int) -> None:
    """Sets the columns of the other fields that a record has of one of its messages."""
    if isinstance(record, _TIMED):
        _tell_times(row, record, at)
    match record:
        case Locked():
            row.until, row.receiver = record.until_ms, record.receiver or None
            row.message_id = record.ids[at] if record.ids else None
        case Taken():
            row.receiver = record.receiver or None
        case Renewed() | Relocked():
            row.until = record.until_ms
        case Returned():
            row.until = record.until_ms or None
            row.properties = _json(record.properties)
        case Deferred():
            row.properties = _json(record.properties)
        case Activated():
            row.target, row.target_sequence_number = row.entity, record.first_sequence + at
        case DeadLettered():
            row.reason, row.description = record.reason, record.description
            row.properties = _json(record.properties)
            row.target = dead_letter_queue(record.queue)
            row.target_sequence_number = record.first_sequence + at
        case Resubmitted():
            row.target, row.target_sequence_number = record.target, record.first_sequence + at
            row.expires = record.expires_ms[at] or None
        case MessagesRestored():
            _fill(row, record.messages[at])
            row.delivery_count = record.counts[at]
        case Moved():
            row.body, row.native = record.messages[at].body, record.messages[at].native
        case _:
            pass


def _tell_times(row: Row, record: Any, at: int) -> None:
    if record.counts is not None:
        row.delivery_count = record.counts[at] if record.counts else 1
    if isinstance(record, Locked | Taken):
        row.waited_ms = record.waited_ms[at] if record.waited_ms else None
    else:
        row.settled_ms = record.settled_ms[at] if record.settled_ms else None


def _other(row: Row, record: Record) -> Row:
    """Fills the row of a record that concerns no message."""
    match record:
        case SessionAccepted() | SessionRenewed() | SessionReleased() | SessionStateSet():
            row.session_id = record.session
            row.until = getattr(record, "until_ms", None)
            if isinstance(record, SessionStateSet):
                row.body = record.state
        case NamespaceCreated() | NamespaceDeleted():
            row.namespace = record.name
        case AccountSet():  # never its keys
            row.entity = record.name
            row.detail = _text({"grants": record.grants, "keys": len(record.keys)})
        case AccountRevoked() | ReaderRemoved():
            row.entity = record.name
        case ReaderSet():
            row.entity, row.detail = record.name, _text({"position": record.position})
        case QueueCreated() | QueueUpdated():
            row.detail = _text(record.properties)
        case SubscriptionCreated():
            rules = [_plain_rule(rule) for rule in record.rules]
            row.detail = _text({"properties": record.properties, "rules": rules})
        case ScheduleSet():
            _fill(row, record.message)
            when = {"when": said(record.when), "zone": getattr(record.when, "zone", None)}
            row.detail = _text({"name": record.name, "next_ms": record.next_ms, **when})
        case ScheduleFired():
            row.due, row.description = record.due_ms, record.problem or None
            row.detail = _text({"name": record.name, "next_ms": record.next_ms})
        case SchedulePaused() | ScheduleResumed() | ScheduleCancelled():
            row.detail = _text({"name": record.name})
        case RuleSet():
            row.detail = _text(_plain_rule(record.rule))
        case RuleRemoved():
            row.detail = _text({"name": record.rule})
        case QueueDeleted():
            row.detail = _text({"idle": record.idle})
        case QueueRestored():
            row.detail = _text({"groups": len(record.groups), "keys": len(record.keys)})
        case ClockSet() | ClockStepped() | ClockTurnedBack():
            row.detail = _text({name: getattr(record, name) for name in record.__struct_fields__})
        case Started():
            row.detail = _text({"epoch": record.epoch})
        case _:
            pass
    return row


def _plain_rule(rule: Rule) -> dict[str, Any]:
    wanted = rule.filter
    filter_: dict[str, Any] = {"kind": type(wanted).__name__.removesuffix("Filter").lower()}
    for name in wanted.__struct_fields__:
        value = getattr(wanted, name)
        filter_[name] = plain_properties(value) if name in ("parameters", "properties") else value
    parameters = plain_properties(rule.parameters)
    return {"name": rule.name, "filter": filter_, "action": rule.action, "parameters": parameters}


def _text(what: object) -> str:
    return msgspec.json.encode(what).decode()


def _json(properties: Properties) -> str | None:
    return _text(plain_properties(properties)) if properties else None


def plain_properties(properties: Properties) -> dict[str, Any]:
    """The properties as JSON values; a type that JSON lacks becomes an object with one member."""
    return {name: _plain(value) for name, value in properties.items()} if properties else {}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": b64encode(value).decode()}
    if isinstance(value, Ext):
        data = bytes(value.data)
        if value.code == TIMESTAMP:
            return {"timestamp_ms": int.from_bytes(data, "big", signed=True)}
        if value.code == SPAN:
            return {"ticks": int.from_bytes(data, "big", signed=True)}
        return {"uuid": str(UUID(bytes=data))}
    return value
