"""The configuration file of Microsoft's emulator: its one namespace's entities go to ours."""

import msgspec

from posthouse.broker.declared import SubscriptionDeclared, declare_queue, declare_topic
from posthouse.core.model import QueueProperties
from posthouse.core.rules import DEFAULT_RULE, CorrelationFilter, Rule, SqlFilter
from posthouse.dialects.dialect import FromFile
from posthouse.dialects.servicebus.times import duration_ms


class _Emulated(msgspec.Struct, rename="pascal"):
    dead_lettering_on_message_expiration: bool = False
    default_message_time_to_live: str | None = None
    duplicate_detection_history_time_window: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    forward_to: str | None = None
    lock_duration: str | None = None
    max_delivery_count: int = 10
    requires_duplicate_detection: bool = False
    requires_session: bool = False


class _EmulatedQueue(msgspec.Struct, rename="pascal"):
    name: str
    properties: _Emulated = msgspec.field(default_factory=_Emulated)


class _EmulatedSql(msgspec.Struct, rename="pascal"):
    sql_expression: str = "1=1"


class _EmulatedCorrelation(msgspec.Struct, rename="pascal"):
    message_id: str | None = None
    correlation_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    subject: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: dict[str, str | int | float | bool | None] = {}


class _EmulatedRuleProperties(msgspec.Struct, rename="pascal"):
    filter_type: str = "Sql"
    sql_filter: _EmulatedSql | None = None
    correlation_filter: _EmulatedCorrelation | None = None
    action: _EmulatedSql | None = None


class _EmulatedRule(msgspec.Struct, rename="pascal"):
    name: str
    properties: _EmulatedRuleProperties = msgspec.field(default_factory=_EmulatedRuleProperties)


class _EmulatedSubscription(_EmulatedQueue, rename="pascal"):
    rules: list[_EmulatedRule] = []


class _EmulatedTopic(_EmulatedQueue, rename="pascal"):
    subscriptions: list[_EmulatedSubscription] = []


class _EmulatedNamespace(msgspec.Struct, rename="pascal"):
    name: str = ""
    queues: list[_EmulatedQueue] = []
    topics: list[_EmulatedTopic] = []


class _UserConfig(msgspec.Struct, rename="pascal"):
    namespaces: list[_EmulatedNamespace] = []


def read_emulator(user_config: object, namespace: str) -> FromFile:
    """The emulator's `Config.json`. Raises ValueError."""
    try:
        found = msgspec.convert(user_config, _UserConfig)
    except msgspec.ValidationError as error:
        raise ValueError(f"UserConfig: {error}") from None
    queues, topics = [], []
    for space in found.namespaces:
        queues += [declare_queue(each.name, namespace, _emulated(each)) for each in space.queues]
        for topic in space.topics:
            subscriptions = tuple(
                SubscriptionDeclared(each.name, _emulated(each), _emulated_rules(each.rules))
                for each in topic.subscriptions
            )
            properties = msgspec.structs.replace(
                _emulated(topic), delivery="topic", requires_session=False
            )
            topics.append(declare_topic(topic.name, namespace, properties, subscriptions))
    return FromFile(queues=tuple(queues), topics=tuple(topics))


def _emulated_rules(rules: list[_EmulatedRule]) -> tuple[Rule, ...]:
    if not rules:
        return (Rule(DEFAULT_RULE),)
    return tuple(_emulated_rule(each) for each in rules)


def _emulated_rule(rule: _EmulatedRule) -> Rule:
    given = rule.properties
    action = "" if given.action is None else given.action.sql_expression
    if given.filter_type.casefold() == "correlation" and given.correlation_filter is not None:
        fields = msgspec.structs.asdict(given.correlation_filter)
        properties = fields.pop("properties")
        named = {_EMULATED_FIELDS.get(name, name): value for name, value in fields.items() if value}
        return Rule(rule.name, CorrelationFilter(named, properties), action)
    expression = (given.sql_filter or _EmulatedSql()).sql_expression
    return Rule(rule.name, SqlFilter(expression), action)


_EMULATED_FIELDS = {"message_id": "id", "label": "subject"}


def _emulated(queue: _EmulatedQueue) -> QueueProperties:
    given = queue.properties
    defaults = QueueProperties()

    def ms(name: str, text: str | None) -> int | None:
        try:
            return None if text is None else duration_ms(text)
        except ValueError as error:
            raise ValueError(f"queue {queue.name}: {name} {error}") from None

    window_ms = ms("DuplicateDetectionHistoryTimeWindow",
                   given.duplicate_detection_history_time_window)  # fmt: skip
    return QueueProperties(
        lock_ms=ms("LockDuration", given.lock_duration) or defaults.lock_ms,
        max_delivery=given.max_delivery_count,
        ttl_ms=ms("DefaultMessageTimeToLive", given.default_message_time_to_live),
        requires_session=given.requires_session,
        duplicate_detection=given.requires_duplicate_detection,
        duplicate_window_ms=window_ms or defaults.duplicate_window_ms,
        dead_letter_expired=given.dead_lettering_on_message_expiration,
        forward_to=given.forward_to or None,
        forward_dead_to=given.forward_dead_lettered_messages_to or None,
    )
