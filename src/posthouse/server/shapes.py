"""The JSON forms of `/api/v1`, and their conversion to messages and back.

A body that is text is in `body`, any other in `body_base64`. Property values that JSON lacks are
objects with one member: {"bytes": base64}, {"timestamp_ms": number}, {"uuid": text}, and durations
{"ticks": number} in ten-millionths of a second. Tokens are 32 hexadecimal digits.
"""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from typing import Annotated, Any, Literal, get_type_hints
from uuid import UUID as Uuid

import msgspec
from msgspec import Meta

from posthouse.broker.clocks import Auto
from posthouse.broker.rows import plain_properties
from posthouse.core.checks import check_properties
from posthouse.core.commands import (
    BATCH_MAX,
    DURATION_MS_MAX,
    LAST_MS,
    TIME_MS_MAX,
    TRANSACTION_MS,
    TRANSACTION_MS_MAX,
    Counts,
    Delivery,
    Enqueued,
    QueueInfo,
    Seen,
)
from posthouse.core.errors import InvalidArgument
from posthouse.core.message import (
    Envelope,
    Message,
    NewMessage,
    Note,
    Properties,
    decode_envelope,
    encode_envelope,
    span,
    timestamp,
    uuid,
)
from posthouse.core.model import QueueProperties, Right, Schedule
from posthouse.core.recurrence import said
from posthouse.core.rules import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    PatternFilter,
    Rule,
    SqlFilter,
    Style,
    TrueFilter,
)

WAIT_MS_MAX = 60_000
EXPRESSIONS_CHARS_MAX = 8_192  # that differ, of all rules of one request

Ms = Annotated[int, Meta(ge=0, le=TIME_MS_MAX)]
Duration = Annotated[int, Meta(ge=0, le=DURATION_MS_MAX)]
Token = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Sequence = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    pass


# Messages.


class _Content(msgspec.Struct):
    """The content of a message. Text is in `body`, other bytes are in `body_base64`."""

    body: str | None = None
    body_base64: str | None = None
    id: str = ""
    content_type: str = ""
    subject: str = ""
    correlation_id: str = ""
    session_id: str | None = None
    partition_key: str | None = None
    to: str = ""
    reply_to: str = ""
    reply_to_session_id: str = ""
    trace: str = ""
    properties: dict[str, Any] = {}


class NewMessageForm(_Content, forbid_unknown_fields=True):
    """A message to be sent."""

    priority: Annotated[int, Meta(ge=0, le=9)] = 4
    ttl_ms: Annotated[int, Meta(ge=1, le=TIME_MS_MAX)] | None = None
    due_ms: Annotated[int, Meta(ge=0, le=LAST_MS)] = 0  # it can be received from this moment on
    delay_ms: Duration = 0  # or so much later
    key: str | None = None  # for duplicate detection, in place of the id


class SendForm(_Request):
    messages: Annotated[list[NewMessageForm], Meta(min_length=1, max_length=BATCH_MAX)]
    refuse_duplicates: bool = False
    transaction: Token | None = None  # then it happens when that is committed
    # How long to wait for room, where the queue is full and blocks.
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = 0


class EnqueuedForm(msgspec.Struct, omit_defaults=True):
    sequences: list[int]  # none yet, in a transaction
    duplicates: int
    dropped: int = 0  # for want of room, where the queue has it so; their number is 0


class MessageForm(_Content, omit_defaults=True, kw_only=True):
    """A message as it is received or peeked. Fields that it does not have are left out."""

    sequence: int
    enqueued_ms: int
    form: str = ""  # of a body that only its own protocol can read, such as amqp
    priority: int = 4
    expires_ms: int = 0
    deliveries: int = 0
    state: str = ""  # where it was peeked
    deferred: bool = False  # and locked now
    due_ms: int = 0  # while scheduled or delayed
    token: str = ""  # of the lock, where it is locked for you
    until_ms: int = 0
    reason: str | None = None  # why it was dead-lettered, and whence
    description: str | None = None
    source: str | None = None
    source_sequence: int = 0
    dead_ms: int = 0


class ReceiveForm(_Request):
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = 0
    lock_ms: Duration = 0
    delete: bool = False
    session: Token | None = None


class MessagesForm(msgspec.Struct):
    messages: list[MessageForm]


class PageForm(msgspec.Struct):
    messages: list[MessageForm]
    next: int | None  # the sequence number to go on from


class SettleForm(_Request):
    locks: Annotated[list[Token], Meta(min_length=1, max_length=BATCH_MAX)]
    partial: bool = False
    session: Token | None = None
    transaction: Token | None = None  # then it happens when that is committed


class ReturnForm(SettleForm):
    properties: dict[str, Any] = {}


class AbandonForm(ReturnForm):
    delay_ms: Duration = 0


class DeadLetterForm(ReturnForm):
    reason: str | None = None
    description: str | None = None


class RenewForm(SettleForm):
    lock_ms: Duration = 0


class SettledForm(msgspec.Struct, omit_defaults=True):
    lost: list[str] = []
    until_ms: list[int] = []


# Administration.


class NameForm(_Request):
    name: str


class NamesForm(msgspec.Struct):
    names: list[str]


# A queue's properties; what is left out has its default, or stays as it is.
QueueForm = msgspec.defstruct(
    "QueueForm",
    [
        (name, kind | msgspec.UnsetType, msgspec.UNSET)
        for name, kind in get_type_hints(QueueProperties).items()
    ],
    forbid_unknown_fields=True,
)


# Rules. A filter's kind says what else is in it.


class _FilterForm(msgspec.Struct, tag_field="kind", forbid_unknown_fields=True):
    pass


class TrueForm(_FilterForm, tag="true"):
    """Matches every message."""


class FalseForm(_FilterForm, tag="false"):
    """Matches no message."""


class SqlForm(_FilterForm, tag="sql"):
    expression: str
    parameters: dict[str, Any] = {}
    loose: bool = False


class CorrelationForm(_FilterForm, tag="correlation"):
    """Matches messages whose fields equal all that are given."""

    id: str | None = None
    correlation_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    subject: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: dict[str, Any] = {}


class PatternForm(_FilterForm, tag="pattern"):
    """Matches the subject: * is one level; # (amqp) or > (nats) is any number of them."""

    pattern: str
    style: Style = "amqp"


class RuleForm(_Request):
    """A filter, and an action in SQL that changes the messages it matches."""

    filter: TrueForm | FalseForm | SqlForm | CorrelationForm | PatternForm = msgspec.field(
        default_factory=TrueForm
    )
    action: str = ""
    parameters: dict[str, Any] = {}  # of the action


class NamedRuleForm(RuleForm, kw_only=True):
    name: str


class RuleInfoForm(NamedRuleForm, kw_only=True):
    created_ms: int


class RulesForm(msgspec.Struct):
    rules: list[RuleInfoForm]
    next: str | None  # the name to go on after


# A subscription's properties, as a queue's, and its rules.
SubscriptionForm = msgspec.defstruct(
    "SubscriptionForm",
    [
        ("rules", list[NamedRuleForm] | msgspec.UnsetType, msgspec.UNSET),
        *(
            (name, kind | msgspec.UnsetType, msgspec.UNSET)
            for name, kind in get_type_hints(QueueProperties).items()
        ),
    ],
    forbid_unknown_fields=True,
)


def rule_in(name: str, form: RuleForm) -> Rule:
    """Raises InvalidArgument."""
    given: Filter
    match form.filter:
        case TrueForm():
            given = TrueFilter()
        case FalseForm():
            given = FalseFilter()
        case SqlForm(expression, parameters, loose):
            given = SqlFilter(expression, properties_in(parameters), loose)
        case PatternForm(pattern, style):
            given = PatternFilter(pattern, style)
        case CorrelationForm():
            fields = {
                name: value
                for name, value in msgspec.structs.asdict(form.filter).items()
                if name != "properties" and value is not None
            }
            given = CorrelationFilter(fields, properties_in(form.filter.properties))
    return Rule(name, given, form.action, properties_in(form.parameters))


def rules_in(forms: list[NamedRuleForm]) -> list[Rule]:
    """Raises InvalidArgument; also where to compile them would hold everybody else up."""
    rules = [rule_in(each.name, each) for each in forms]
    filters = {rule.filter.expression for rule in rules if isinstance(rule.filter, SqlFilter)}
    chars = sum(map(len, filters | {rule.action for rule in rules}))
    if chars > EXPRESSIONS_CHARS_MAX:
        raise InvalidArgument(
            "rules", f"must have expressions of at most {EXPRESSIONS_CHARS_MAX} characters in one"
            " request; add the others one by one",
        )  # fmt: skip
    return rules


def rule_out(rule: Rule) -> RuleInfoForm:
    wanted = rule.filter
    form: TrueForm | FalseForm | SqlForm | CorrelationForm | PatternForm
    match wanted:
        case TrueFilter():
            form = TrueForm()
        case FalseFilter():
            form = FalseForm()
        case SqlFilter():
            form = SqlForm(wanted.expression, plain_properties(wanted.parameters), wanted.loose)
        case PatternFilter():
            form = PatternForm(wanted.pattern, wanted.style)
        case CorrelationFilter():
            properties = plain_properties(wanted.properties)
            form = CorrelationForm(**wanted.fields, properties=properties)
    parameters = plain_properties(rule.parameters)
    return RuleInfoForm(
        form, rule.action, parameters, name=rule.name, created_ms=rule.created_ms
    )  # fmt: skip


def properties_over(form: msgspec.Struct, old: QueueProperties) -> QueueProperties:
    """The properties with what a `QueueForm` says in the place of the old."""
    given = {name: value for name, value in msgspec.structs.asdict(form).items()
             if value is not msgspec.UNSET and name != "rules"}  # fmt: skip
    return msgspec.structs.replace(old, **given)


class QueueInfoForm(msgspec.Struct):
    name: str
    properties: QueueProperties
    counts: Counts
    size_bytes: int
    dead_size_bytes: int
    created_ms: int
    updated_ms: int
    accessed_ms: int
    receivers: int
    oldest_ms: int | None  # when the oldest of its messages was enqueued
    subscriptions: int = 0  # of a topic
    rules: int = 0  # of a subscription
    transfer: int = 0  # messages that could not be forwarded: they are in NAME/$transfer
    waiting: int = 0  # receivers that wait for a message, or for a session


class QueuesForm(msgspec.Struct):
    queues: list[QueueInfoForm]
    next: str | None  # the name to go on after


class TopicsForm(msgspec.Struct):
    topics: list[QueueInfoForm]
    next: str | None


class SubscriptionsForm(msgspec.Struct):
    """A page of subscriptions. Their names are TOPIC/$sub/NAME: each can be used as a queue."""

    subscriptions: list[QueueInfoForm]
    next: str | None


class SidesForm(_Request):
    sending: bool = True
    receiving: bool = True


State = Literal["active", "scheduled", "delayed", "deferred"]


class PurgeForm(_Request):
    """The messages to purge: those from `first` on, or those with these numbers."""

    states: tuple[State, ...] = ("active",)
    sequences: Annotated[list[Sequence], Meta(min_length=1, max_length=1_000)] | None = None
    first: Sequence = 0
    before_ms: Ms = TIME_MS_MAX
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1_000


class ProgressForm(msgspec.Struct):
    done: int
    next: int | None


class ResubmitForm(_Request):
    sequences: Annotated[list[Sequence], Meta(min_length=1, max_length=1_000)] | None = None
    first: Sequence = 0
    target: str | None = None
    keep_reason: bool = False


class SequencesForm(_Request):
    sequences: Annotated[list[Sequence], Meta(min_length=1, max_length=BATCH_MAX)]


class DeferredForm(SequencesForm):
    delete: bool = False
    lock_ms: Duration = 0
    session: Token | None = None


class AcceptForm(_Request):
    """The session with this id, or the next that has messages."""

    session: str | None = None
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = 0
    lock_ms: Duration = 0


class SessionForm(msgspec.Struct):
    session: str
    token: str
    until_ms: int


class HeldForm(_Request):
    token: Token
    lock_ms: Duration = 0


class UntilForm(msgspec.Struct):
    until_ms: int


class StateForm(_Request):
    """A session's state. Null clears it."""

    state_base64: str | None


class ScheduleForm(_Request):
    """`when`: every 30 seconds, at 14:30, or five fields of cron."""

    when: str
    queue: str
    message: NewMessageForm
    zone: str = "UTC"


class ScheduleInfoForm(msgspec.Struct):
    name: str
    queue: str
    when: str
    zone: str
    paused: bool
    next_ms: int | None
    last_ms: int | None
    fired: int
    problem: str  # why nothing was sent the last time
    created_ms: int


class SchedulesForm(msgspec.Struct):
    schedules: list[ScheduleInfoForm]
    next: str | None


def schedule_out(schedule: Schedule) -> ScheduleInfoForm:
    when = schedule.when
    return ScheduleInfoForm(
        schedule.name, schedule.queue, said(when), getattr(when, "zone", "UTC"), schedule.paused,
        schedule.next_ms or None, schedule.last_ms or None, schedule.fired, schedule.problem,
        schedule.created_ms,
    )  # fmt: skip


class BeginForm(_Request):
    """A transaction's time limit. Unless it is committed in time it is rolled back."""

    timeout_ms: Annotated[int, Meta(ge=1, le=TRANSACTION_MS_MAX)] = TRANSACTION_MS


class TransactionForm(msgspec.Struct):
    transaction: str
    until_ms: int


class CommittedForm(msgspec.Struct):
    sent: list[EnqueuedForm]  # for each send, in their order
    settled: int  # messages


class EventForm(msgspec.Struct):
    position: int
    time_ms: int
    kind: str
    queue: str
    sequence: int
    text: str


class LifeForm(msgspec.Struct):
    queue: str  # where it was sent to
    sequence: int
    events: list[EventForm]


class LivesForm(msgspec.Struct):
    lives: list[LifeForm]


class ReplayForm(_Request):
    """The messages to replay, sent at positions from `first` to `last`, and the target queue."""

    first: Sequence
    last: Sequence
    into: str
    source: str | None = None


class AwaitedForm(_Request):
    """An event to move a clock to, by its word in the feed, counted from now on."""

    kind: str
    queue: str = ""
    count: Annotated[int, Meta(ge=1, le=1_000_000)] = 1


class ClockForm(_Request):
    """A change of a namespace's own clock; a field that is left out stays as it is."""

    advance_ms: Duration | None = None
    set_ms: Ms | None = None
    frozen: bool | None = None
    auto: Auto | None = None
    to: Literal["next"] | None = None
    until: AwaitedForm | None = None
    at_most_ms: Duration = 30 * 86_400_000
    quiet_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] | None = None
    timeout_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = 5_000


class FiredForm(msgspec.Struct):
    kind: str
    queue: str
    count: int


class ClockNowForm(msgspec.Struct):
    now_ms: int
    frozen: bool
    auto: Auto
    fired: list[FiredForm] = []


class QuietForm(msgspec.Struct):
    """Nobody has anything left to do."""

    now_ms: int


class GrantForm(_Request):
    rights: Annotated[list[Right], Meta(min_length=1)]
    namespace: str = "*"
    entity: str = "*"


class PrincipalForm(_Request):
    name: str
    grants: Annotated[list[GrantForm], Meta(min_length=1, max_length=100)]


class PrincipalInfoForm(msgspec.Struct):
    name: str
    grants: list[GrantForm]
    created_ms: int
    updated_ms: int
    keys: int


class PrincipalsForm(msgspec.Struct):
    principals: list[PrincipalInfoForm]


class KeyForm(msgspec.Struct):
    """A principal's key. It is shown this once."""

    name: str
    key: str


class ReaderForm(_Request):
    position: Sequence


class ReaderInfoForm(msgspec.Struct):
    name: str
    position: int
    updated_ms: int
    behind: int
    lost: bool  # positions that it has not read yet were trimmed


class ReadersForm(msgspec.Struct):
    readers: list[ReaderInfoForm]


class SentForm(msgspec.Struct):
    sent: int


class StoreForm(msgspec.Struct):
    """The state of the journal."""

    first: int
    end: int
    durable: int
    segments: int
    size_bytes: int
    snapshots: list[int]
    folder: str | None


class SnapshotForm(msgspec.Struct):
    """The position up to which a snapshot was made."""

    position: int


class Problem(msgspec.Struct, omit_defaults=True):
    """RFC 9457. Programs go by `code`, and by `facts`: what it is about, by name."""

    type: str
    title: str
    status: int
    detail: str = ""
    correlation_id: str = ""
    code: str = ""
    facts: dict[str, str | int] = {}


# From and to messages.


def new_message(form: NewMessageForm, now_ms: int) -> NewMessage:
    """Raises InvalidArgument."""
    due_ms = now_ms + form.delay_ms if form.delay_ms else form.due_ms
    if form.body is not None and form.body_base64 is not None:
        raise InvalidArgument("body", "and body_base64 exclude each other")
    body = (form.body or "").encode() if form.body_base64 is None else bytes_in(form.body_base64)
    envelope = Envelope(
        form.id, form.content_type, form.subject, form.correlation_id, form.session_id,
        form.partition_key, form.to, form.reply_to, form.reply_to_session_id, form.trace,
        properties_in(form.properties),
    )  # fmt: skip
    group = form.session_id if form.session_id is not None else form.partition_key
    return NewMessage(
        encode_envelope(envelope), body, None, group, form.priority, form.ttl_ms, due_ms
    )


def bytes_in(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise InvalidArgument("base64", "must be just that") from None


def properties_in(given: dict[str, Any]) -> Properties:
    """Raises InvalidArgument."""
    if not given:
        return {}
    properties = {name: _value_in(name, value) for name, value in given.items()}
    check_properties(properties)
    return properties


def _value_in(name: str, value: Any) -> Any:
    if not isinstance(value, dict):
        if isinstance(value, list):
            raise InvalidArgument(f"property {name!r}", "must be a single value")
        return value
    match list(value.items()):
        case [("bytes", str(text))]:
            return bytes_in(text)
        case [("timestamp_ms", int(moment))] if abs(moment) < 1 << 63:
            return timestamp(moment)
        case [("ticks", int(ticks))] if abs(ticks) < 1 << 63:
            return span(ticks)
        case [("uuid", str(text))]:
            try:
                return uuid(Uuid(text).bytes)
            except ValueError:
                pass
        case _:
            pass
    raise InvalidArgument(
        f"property {name!r}", 'must be a value, {"bytes": ...}, {"timestamp_ms": ...},'
        ' {"ticks": ...} or {"uuid": ...}',
    )  # fmt: skip


def delivered(delivery: Delivery) -> MessageForm:
    form = _message(delivery.message, delivery.note)
    form.deliveries = delivery.count
    if delivery.token:
        form.token, form.until_ms = f"{delivery.token:032x}", delivery.until_ms
    return form


def seen(peeked: Seen) -> MessageForm:
    form = _message(peeked.message, peeked.note)
    form.deliveries = peeked.message.count
    form.state, form.deferred = peeked.state, peeked.deferred and peeked.state != "deferred"
    if peeked.state == "scheduled":
        form.due_ms = peeked.message.enqueued_ms
    elif peeked.state == "delayed":
        form.due_ms = peeked.message.lock
    return form


def _message(message: Message, note: Note | None) -> MessageForm:
    try:
        envelope = decode_envelope(message.envelope)
    except (msgspec.DecodeError, UnicodeDecodeError):  # not one of ours
        envelope = Envelope()
    if note is not None:
        envelope = note.apply_to(envelope)
    form = MessageForm(
        None, None, envelope.id, envelope.content_type, envelope.subject, envelope.correlation_id,
        envelope.session_id, envelope.partition_key, envelope.to, envelope.reply_to,
        envelope.reply_to_session_id, envelope.trace, plain_properties(envelope.properties),
        sequence=message.sequence, enqueued_ms=message.enqueued_ms, form=envelope.form,
        priority=message.priority, expires_ms=message.expires_ms,
    )  # fmt: skip
    body = message.body
    assert isinstance(body, bytes)  # the engine has read it back
    try:
        form.body = body.decode()
    except UnicodeDecodeError:
        form.body_base64 = b64encode(body).decode()
    if note is not None:
        form.reason, form.description, form.source = note.reason, note.description, note.source
        form.source_sequence, form.dead_ms = note.source_sequence, note.dead_ms
    return form


def queue_info(info: QueueInfo, oldest_ms: int | None) -> QueueInfoForm:
    return QueueInfoForm(
        info.name, info.properties, info.counts, info.size_bytes, info.dead_size_bytes,
        info.created_ms, info.updated_ms, info.accessed_ms, info.receivers, oldest_ms,
        info.subscriptions, info.rules, info.transfer, info.waiting,
    )  # fmt: skip


def enqueued(answer: Enqueued) -> EnqueuedForm:
    return EnqueuedForm(list(answer.sequences), answer.duplicates, answer.dropped)


def token_in(token: str | None) -> int:
    return 0 if token is None else int(token, 16)
