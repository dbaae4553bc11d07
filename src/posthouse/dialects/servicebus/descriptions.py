"""Descriptions of entities and rules: Atom's XML, and what the core calls it.

What is written has the elements in the order that Azure documents; what is read may have any order,
and any prefix. What a request does not mention stays as it is, or as it is by default.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from uuid import UUID as Uuid

import msgspec
from msgspec.msgpack import Ext

from posthouse.core.commands import QueueInfo
from posthouse.core.errors import InvalidArgument
from posthouse.core.message import (
    SPAN,
    TIMESTAMP,
    ZONELESS_BYTES,
    Properties,
    Value,
    span,
    timestamp,
)
from posthouse.core.model import QueueProperties, Right, Status
from posthouse.core.rules import (
    DEFAULT_RULE,
    CorrelationFilter,
    FalseFilter,
    Filter,
    PatternFilter,
    Rule,
    SqlFilter,
    TrueFilter,
)
from posthouse.dialects.servicebus.address import path_of
from posthouse.dialects.servicebus.tiers import BOTH, Tier
from posthouse.dialects.servicebus.times import (
    duration,
    duration_ms,
    duration_ticks,
    is_zoneless,
    moment,
    moment_ms,
    ticks_duration,
)
from posthouse.dialects.servicebus.xml import Node, element, text

ATOM = "http://www.w3.org/2005/Atom"
CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
SCHEMA = "http://www.w3.org/2001/XMLSchema"

QUEUE, TOPIC, SUBSCRIPTION = "QueueDescription", "TopicDescription", "SubscriptionDescription"
RULE = "RuleDescription"
DEFAULT_MEGABYTES, MEGABYTES_MAX = 1_024, 81_920
METADATA_CHARS_MAX = 1_024
DELIVERIES_MAX = 2_000
_SECOND, _MINUTE, _DAY = 1_000, 60_000, 86_400_000
LOCK_MS = (5 * _SECOND, 5 * _MINUTE)
WINDOW_MS = (5 * _SECOND, 7 * _DAY)
IDLE_MS_MIN = 5 * _MINUTE

_STATUS: dict[str, Status] = {
    "Active": "active", "Disabled": "disabled", "SendDisabled": "send-disabled",
    "ReceiveDisabled": "receive-disabled",
}  # fmt: skip
_STATUS_TOLD = {ours: theirs for theirs, ours in _STATUS.items()}

# Kept with an entity and told again; they change nothing here.
_FLAGS = {
    "EnableBatchedOperations": True, "IsAnonymousAccessible": False, "SupportOrdering": False,
    "EnablePartitioning": False, "EnableExpress": False, "EnableSubscriptionPartitioning": False,
    "FilteringMessagesBeforePublishing": False,
}  # fmt: skip
_FIXED_FLAGS = ("EnablePartitioning",)


class Key(NamedTuple):
    """An authorization rule of an entity."""

    name: str
    rights: tuple[Right, ...]
    primary: str
    secondary: str
    created_ms: int = 0
    updated_ms: int = 0


# In.


def _refuse(name: str, rule: str) -> InvalidArgument:
    return InvalidArgument(f"The value of {name}", rule)


def _boolean(name: str, said: str) -> bool:
    if said.lower() not in ("true", "false", "1", "0"):
        raise _refuse(name, "must be true or false")
    return said.lower() in ("true", "1")


def _number(name: str, said: str, least: int, most: int) -> int:
    try:
        number = float(said)  # JavaScript has no others
    except ValueError:
        number = math.nan
    if not least <= number <= most or number != int(number):
        raise _refuse(name, f"must be a whole number from {least} to {most}")
    return int(number)


def _duration_ms(name: str, said: str, least: int = _SECOND, most: int | None = None) -> int | None:
    """None: for ever."""
    try:
        found = duration_ms(said)
    except ValueError as error:
        raise _refuse(name, str(error)) from None
    if (found is None and most is not None) or (
        found is not None and not least <= found <= (most or found)
    ):
        longest = "" if most is None else f" and at most {duration(most)}"
        raise _refuse(name, f"must be at least {duration(least)}{longest}")
    return found


def read_properties(node: Node, old: QueueProperties | None, kind: str) -> QueueProperties:
    """Reads the properties of a description, on top of the old ones. Raises InvalidArgument."""
    was = old or QueueProperties(delivery="topic" if kind == TOPIC else "competing")
    found: dict[str, Any] = {}
    for name, (field, read) in _READ.items():
        said = node.text_of(name)
        if said is not None and said != "":
            found[field] = read(name, said)
    if found.pop("requires_session", False) and kind != TOPIC:
        found["requires_session"], found["grouping"] = True, "session"
    elif was.grouping == "session" and node.text_of("RequiresSession"):  # it is not to be changed
        found["requires_session"], found["grouping"] = False, "none"
    for name, field in (("ForwardTo", "forward_to"), ("ForwardDeadLetteredMessagesTo",
                        "forward_dead_to")):  # fmt: skip
        target = node.text_of(name)
        if target is not None:
            found[field] = path_of(target) or None
        elif old is not None:  # clients leave out what is not to be any more
            found[field] = None
    metadata = node.text_of("UserMetadata")
    if metadata is not None:
        if len(metadata) > METADATA_CHARS_MAX:
            raise _refuse("UserMetadata", f"must be at most {METADATA_CHARS_MAX} characters")
        found["metadata"] = metadata
    elif old is not None:
        found["metadata"] = ""
    found["extras"] = _read_flags(node, was.extras, is_new=old is None)
    return msgspec.structs.replace(was, **found)


def _read_flags(node: Node, old: dict[str, str], *, is_new: bool) -> dict[str, str]:
    extras = dict(old)
    for name, default in _FLAGS.items():
        said = node.text_of(name)
        if said:
            extras[name] = str(_boolean(name, said)).lower()
            before = old.get(name, str(default).lower())
            if name in _FIXED_FLAGS and not is_new and extras[name] != before:
                raise _refuse(name, "cannot be changed after the entity was created")
    return extras


def _status(name: str, said: str) -> Status:
    if said not in _STATUS:
        raise _refuse(name, f"must be one of {', '.join(_STATUS)}")
    return _STATUS[said]


_READ: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "LockDuration": ("lock_ms", lambda n, s: _duration_ms(n, s, *LOCK_MS)),
    "MaxSizeInMegabytes": ("max_bytes", lambda n, s: _number(n, s, 1, MEGABYTES_MAX) << 20),
    "RequiresDuplicateDetection": ("duplicate_detection", _boolean),
    "RequiresSession": ("requires_session", _boolean),
    "DefaultMessageTimeToLive": ("ttl_ms", _duration_ms),
    "DeadLetteringOnMessageExpiration": ("dead_letter_expired", _boolean),
    "EnableDeadLetteringOnMessageExpiration": ("dead_letter_expired", _boolean),
    "DeadLetteringOnFilterEvaluationExceptions": ("dead_letter_filter_errors", _boolean),
    "DuplicateDetectionHistoryTimeWindow": (
        "duplicate_window_ms", lambda n, s: _duration_ms(n, s, *WINDOW_MS)
    ),
    "MaxDeliveryCount": ("max_delivery", lambda n, s: _number(n, s, 1, DELIVERIES_MAX)),
    "Status": ("status", _status),
    "AutoDeleteOnIdle": ("idle_delete_ms", lambda n, s: _duration_ms(n, s, IDLE_MS_MIN)),
    "MaxMessageSizeInKilobytes": (
        "max_message_bytes", lambda n, s: _number(n, s, 1, BOTH.kilobytes[1]) << 10
    ),
}  # fmt: skip


def check_tier(node: Node, old: QueueProperties, tier: Tier) -> None:
    """Whether a description asks for what the tier has, or what is so already.

    Raises InvalidArgument.
    """
    name = "MaxMessageSizeInKilobytes"
    least, most = tier.kilobytes
    if (said := node.text_of(name)) and said.strip() != str(_kilobytes(old, tier)):
        if not tier.has_large_messages:
            raise InvalidArgument(
                name, f"is {most} in the {tier.sku} tier; start with --servicebus-tier premium"
            )
        _number(name, said, least, most)
    for name in () if tier.has_variants else ("EnableExpress", "EnablePartitioning"):
        said = node.text_of(name)
        if said and _boolean(name, said) and old.extras.get(name) != "true":
            raise InvalidArgument(
                name, f"is not in the {tier.sku} tier; start with --servicebus-tier standard"
            )


def _kilobytes(properties: QueueProperties, tier: Tier) -> int:
    most = properties.max_message_bytes
    return tier.kilobytes[0] if most is None else most >> 10


def read_keys(node: Node) -> list[Key] | None:
    """The authorization rules of an entity; None where nothing is said of them."""
    given = node.child("AuthorizationRules")
    if given is None or given.attributes.get("nil") == "true":
        return None
    keys = []
    for each in given.children:
        name, primary = each.text_of("KeyName"), each.text_of("PrimaryKey")
        rights = each.child("Rights")
        said = [right.text.strip().lower() for right in rights.children] if rights else []
        if not name or not primary or not said or not set(said) <= _RIGHTS:
            raise InvalidArgument(
                "An authorization rule", "must have KeyName, PrimaryKey, and Rights among Manage,"
                " Send and Listen",
            )  # fmt: skip
        if "manage" in said:  # which is said to include the others
            said = ["manage", "send", "listen"]
        secondary = each.text_of("SecondaryKey") or primary
        keys.append(Key(name, tuple(dict.fromkeys(said)), primary, secondary))  # type: ignore[arg-type]
    return keys


_RIGHTS = {"manage", "send", "listen"}

# Rules.

_FIELDS = {
    "CorrelationId": "correlation_id", "MessageId": "id", "To": "to", "ReplyTo": "reply_to",
    "Label": "subject", "SessionId": "session_id", "ReplyToSessionId": "reply_to_session_id",
    "ContentType": "content_type",
}  # fmt: skip


def read_rule(node: Node, name: str) -> Rule:
    """Raises InvalidArgument."""
    given, action = node.child("Filter"), node.child("Action")
    wanted = TrueFilter() if given is None else _read_filter(given)
    expression, parameters = ("", {}) if action is None else _read_action(action)
    return Rule(name, wanted, expression, parameters)


def _typed(given: Node, ending: str) -> tuple[str, Node]:
    """Returns the type that a filter or an action says it has, and the node with its parts."""
    kind = given.attributes.get("type", "").rpartition(":")[2]
    if not kind and len(given.children) == 1 and given.children[0].name.endswith(ending):
        given = given.children[0]  # as LocalZure's clients write it: the type is an element
        kind = given.name
    return kind, given


def _read_action(given: Node) -> tuple[str, Properties]:
    kind, given = _typed(given, "RuleAction")
    if kind == "EmptyRuleAction":
        return "", {}
    if kind not in ("", "SqlRuleAction"):
        raise InvalidArgument("An action's type", f"cannot be {kind!r}")
    return given.text_of("SqlExpression") or "", _values(given.child("Parameters"))


def _read_filter(given: Node) -> Filter:
    kind, given = _typed(given, "Filter")
    if not kind:
        kind = "SqlFilter" if given.child("SqlExpression") is not None else "CorrelationFilter"
    if kind == "TrueFilter":
        return TrueFilter()
    if kind == "FalseFilter":
        return FalseFilter()
    if kind == "SqlFilter":
        expression = given.text_of("SqlExpression") or ""
        return SqlFilter(expression, _values(given.child("Parameters")))
    if kind == "CorrelationFilter":
        fields = {field: given.text_of(name) for name, field in _FIELDS.items()}
        named = {field: said for field, said in fields.items() if said}
        if subject := given.text_of("Subject"):
            named["subject"] = subject
        return CorrelationFilter(named, _values(given.child("Properties")))
    raise InvalidArgument("A filter's type", f"cannot be {kind!r}")


def _values(node: Node | None) -> Properties:
    """Reads KeyValueOfstringanyType elements. A parameter's name may begin with @."""
    found: Properties = {}
    for each in [] if node is None else node.children:
        key, value = each.text_of("Key"), each.child("Value")
        if key is not None and value is not None:
            kind = value.attributes.get("type", "string").rpartition(":")[2]
            found[key.removeprefix("@")] = _value(kind, value.text)
        elif key is None and each.name not in ("Key", "Value"):
            found[each.name] = each.text.strip()  # <Properties><colour>red</colour></Properties>
    return found


def _value(kind: str, said: str) -> Value:
    try:
        if kind in ("int", "long", "short", "byte", "unsignedByte", "unsignedInt", "unsignedLong"):
            return int(said)
        if kind in ("double", "float", "decimal"):
            return float(said)
        if kind == "boolean":
            return _boolean("a property", said.strip())
        if kind == "dateTime":
            return timestamp(moment_ms(said), zoneless=is_zoneless(said))
        if kind == "duration":
            return span(duration_ticks(said))
    except ValueError:
        raise InvalidArgument("A property", f"of type {kind} cannot be {said!r}") from None
    return said


# Out.


class Told(NamedTuple):
    """Facts about an entity beside its properties."""

    info: QueueInfo
    namespace_url: str  # for the targets of forwarding
    keys: Iterable[Key] = ()
    version: str = ""  # of the protocol, as the client asks for it
    sql_filters: int = 0
    correlation_filters: int = 0
    tier: Tier = BOTH


def _flag(info: QueueInfo, name: str) -> str:
    return text(name, info.properties.extras.get(name, str(_FLAGS[name]).lower()))


def _counts(info: QueueInfo) -> str:
    counts = info.counts
    active = counts.active + counts.locked + counts.delayed + counts.deferred
    said = {
        "ActiveMessageCount": active, "DeadLetterMessageCount": counts.dead,
        "ScheduledMessageCount": counts.scheduled, "TransferMessageCount": 0,
        "TransferDeadLetterMessageCount": info.transfer,
    }  # fmt: skip
    children = [text(f"d2p1:{name}", value) for name, value in said.items()]
    return element("CountDetails", children, xmlns_d2p1=COUNTS)


def message_count(info: QueueInfo) -> int:
    counts = info.counts
    return (
        counts.active + counts.locked + counts.scheduled + counts.delayed + counts.deferred
        + counts.dead + info.transfer
    )  # fmt: skip


def _forward(told: Told, name: str, target: str | None) -> str:
    return "" if target is None else text(name, f"{told.namespace_url}/{target}")


def _keys(told: Told) -> str:
    return element("AuthorizationRules", [
        element("AuthorizationRule", [
            text("ClaimType", "SharedAccessKey"), text("ClaimValue", "None"),
            element("Rights", [text("AccessRights", right.capitalize()) for right in key.rights]),
            text("CreatedTime", moment(key.created_ms)),
            text("ModifiedTime", moment(key.updated_ms)),
            text("KeyName", key.name), text("PrimaryKey", key.primary),
            text("SecondaryKey", key.secondary),
        ], i_type="SharedAccessAuthorizationRule")
        for key in told.keys
    ])  # fmt: skip


def _times(info: QueueInfo) -> list[str]:
    return [
        text("CreatedAt", moment(info.created_ms)), text("UpdatedAt", moment(info.updated_ms)),
        text("AccessedAt", moment(info.accessed_ms)),
    ]  # fmt: skip


def _megabytes(properties: QueueProperties) -> int:
    return DEFAULT_MEGABYTES if properties.max_bytes is None else properties.max_bytes >> 20


def _metadata(properties: QueueProperties) -> str:
    return text("UserMetadata", properties.metadata) if properties.metadata else ""


def _message_size(told: Told) -> str:
    known = told.version >= "2021-05" or not told.version
    kilobytes = _kilobytes(told.info.properties, told.tier)
    return text("MaxMessageSizeInKilobytes", kilobytes) if known else ""


def write_queue(told: Told) -> str:
    info, properties = told.info, told.info.properties
    return _description(QUEUE, [
        text("LockDuration", duration(properties.lock_ms)),
        text("MaxSizeInMegabytes", _megabytes(properties)),
        text("RequiresDuplicateDetection", properties.duplicate_detection),
        text("RequiresSession", properties.requires_session),
        text("DefaultMessageTimeToLive", duration(properties.ttl_ms)),
        text("DeadLetteringOnMessageExpiration", properties.dead_letter_expired),
        text("DuplicateDetectionHistoryTimeWindow", duration(properties.duplicate_window_ms)),
        text("MaxDeliveryCount", properties.max_delivery),
        _flag(info, "EnableBatchedOperations"),
        text("SizeInBytes", info.size_bytes + info.dead_size_bytes),
        text("MessageCount", message_count(info)),
        _flag(info, "IsAnonymousAccessible"),
        _keys(told),
        text("Status", _STATUS_TOLD[properties.status]),
        _forward(told, "ForwardTo", properties.forward_to),
        _metadata(properties),
        *_times(info),
        _flag(info, "SupportOrdering"),
        _counts(info),
        text("AutoDeleteOnIdle", duration(properties.idle_delete_ms)),
        _flag(info, "EnablePartitioning"),
        text("EntityAvailabilityStatus", "Available"),
        _forward(told, "ForwardDeadLetteredMessagesTo", properties.forward_dead_to),
        _flag(info, "EnableExpress"),
        _message_size(told),
    ])  # fmt: skip


def write_topic(told: Told) -> str:
    info, properties = told.info, told.info.properties
    filters = []
    if told.version >= "2024-05":
        filters = [text("SqlFilterCount", told.sql_filters),
                   text("CorrelationFilterCount", told.correlation_filters)]  # fmt: skip
    return _description(TOPIC, [
        text("DefaultMessageTimeToLive", duration(properties.ttl_ms)),
        text("MaxSizeInMegabytes", _megabytes(properties)),
        text("RequiresDuplicateDetection", properties.duplicate_detection),
        text("DuplicateDetectionHistoryTimeWindow", duration(properties.duplicate_window_ms)),
        _flag(info, "EnableBatchedOperations"),
        text("SizeInBytes", info.size_bytes),
        _flag(info, "FilteringMessagesBeforePublishing"),
        _flag(info, "IsAnonymousAccessible"),
        _keys(told),
        text("Status", _STATUS_TOLD[properties.status]),
        _metadata(properties),
        *_times(info),
        _flag(info, "SupportOrdering"),
        _counts(info),
        text("SubscriptionCount", info.subscriptions),
        *filters,
        text("AutoDeleteOnIdle", duration(properties.idle_delete_ms)),
        _flag(info, "EnablePartitioning"),
        text("EntityAvailabilityStatus", "Available"),
        _flag(info, "EnableSubscriptionPartitioning"),
        _flag(info, "EnableExpress"),
        _message_size(told),
    ])  # fmt: skip


def write_subscription(told: Told) -> str:
    info, properties = told.info, told.info.properties
    return _description(SUBSCRIPTION, [
        text("LockDuration", duration(properties.lock_ms)),
        text("RequiresSession", properties.requires_session),
        text("DefaultMessageTimeToLive", duration(properties.ttl_ms)),
        text("DeadLetteringOnMessageExpiration", properties.dead_letter_expired),
        text("DeadLetteringOnFilterEvaluationExceptions", properties.dead_letter_filter_errors),
        text("MessageCount", message_count(info)),
        text("MaxDeliveryCount", properties.max_delivery),
        _flag(info, "EnableBatchedOperations"),
        text("Status", _STATUS_TOLD[properties.status]),
        _forward(told, "ForwardTo", properties.forward_to),
        *_times(info),
        _counts(info),
        _metadata(properties),
        _forward(told, "ForwardDeadLetteredMessagesTo", properties.forward_dead_to),
        text("AutoDeleteOnIdle", duration(properties.idle_delete_ms)),
        text("EntityAvailabilityStatus", "Available"),
    ])  # fmt: skip


def write_rule(rule: Rule) -> str:
    action = element("Action", i_type="EmptyRuleAction")
    if rule.action:
        action = element("Action", [
            text("SqlExpression", rule.action), text("CompatibilityLevel", 20),
            _write_values("Parameters", rule.parameters, "@"),
        ], i_type="SqlRuleAction")  # fmt: skip
    return _description(
        RULE, [_write_filter(rule.filter), action, text("CreatedAt", moment(rule.created_ms)),
               text("Name", rule.name)],
    )  # fmt: skip


def _write_filter(wanted: Filter) -> str:
    if isinstance(wanted, CorrelationFilter):
        said = [
            text(name, wanted.fields[field])
            for name, field in _FIELDS.items()
            if field in wanted.fields
        ]
        said.append(_write_values("Properties", wanted.properties))
        return element("Filter", said, i_type="CorrelationFilter")
    kind, expression, parameters = type(wanted).__name__, "1=1", Properties()
    if isinstance(wanted, SqlFilter):
        expression, parameters = wanted.expression, wanted.parameters
    elif isinstance(wanted, FalseFilter):
        expression = "1=0"
    elif isinstance(wanted, PatternFilter):  # clients have no word for it
        kind, expression = "SqlFilter", f"sys.Label matches '{wanted.pattern}'"
    said = [text("SqlExpression", expression), text("CompatibilityLevel", 20),
            _write_values("Parameters", parameters, "@")]  # fmt: skip
    return element("Filter", said, i_type=kind)


def _write_values(name: str, values: Properties, prefix: str = "") -> str:
    if not values:
        return ""
    return element(name, [
        element("KeyValueOfstringanyType", [text("Key", prefix + key), _write_value(value)])
        for key, value in values.items()
    ])  # fmt: skip


def _write_value(value: Value) -> str:
    kind, said = "string", str(value)
    match value:
        case bool():
            kind, said = "boolean", str(value).lower()
        case int():
            kind = "int" if -(1 << 31) <= value < 1 << 31 else "long"
        case float():
            kind, said = "double", repr(value)
        case bytes():
            said = value.decode("latin-1")
        case Ext(code=code, data=data):
            number = int.from_bytes(bytes(data), "big", signed=True)
            if code == TIMESTAMP:
                kind, said = "dateTime", moment(number)
                if len(bytes(data)) == ZONELESS_BYTES:
                    said = said.removesuffix("Z")
            elif code == SPAN:
                kind, said = "duration", ticks_duration(number)
            else:
                said = str(Uuid(bytes=bytes(data)))
        case None:
            return element("Value", i_nil="true")
        case _:
            pass
    return text("Value", said, i_type=f"d6p1:{kind}", xmlns_d6p1=SCHEMA)


def _description(kind: str, children: list[str]) -> str:
    return element(kind, children, xmlns=CONNECT, xmlns_i=INSTANCE)


def default_rule(node: Node) -> Rule | None:
    """Returns the first rule of a subscription; None: the one that takes everything."""
    given = node.child("DefaultRuleDescription")
    if given is None or given.attributes.get("nil") == "true":
        return None
    return read_rule(given, given.text_of("Name") or DEFAULT_RULE)
