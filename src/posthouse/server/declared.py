"""What a configuration file declares to exist at start: ours, and Microsoft's emulator's.

Ours:

    namespaces: [shop]
    queues:
      - name: orders
        namespace: shop            # or the default one
        lock_ms: 30000             # any property of a queue
    topics:
      - name: news
        subscriptions:
          - name: red
            max_delivery: 5        # any property of a queue
            rules:                 # without any it gets everything
              - {name: red, filter: {kind: sql, expression: "colour = 'red'"}}
    schedules:
      - {name: report, queue: orders, when: "at 14:30", zone: Europe/Berlin, message: {body: go}}
    principals:
      - name: web
        key: a secret of at least 16 characters
        grants: [{namespace: shop, entity: orders*, rights: [send, listen]}]
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from posthouse.broker.access import KEY_CHARS_MAX, ROOT
from posthouse.broker.declared import (
    KEY_CHARS_MIN,
    PrincipalDeclared,
    QueueDeclared,
    SubscriptionDeclared,
    TopicDeclared,
    checked,
    declare_queue,
    declare_topic,
    every_right,
)
from posthouse.core.checks import check_name
from posthouse.core.errors import InvalidArgument
from posthouse.core.model import Grant, QueueProperties, Right
from posthouse.core.recurrence import parse
from posthouse.core.rules import DEFAULT_RULE, CorrelationFilter, Rule, SqlFilter
from posthouse.dialects.servicebus.times import duration_ms
from posthouse.server.shapes import NamedRuleForm, ScheduleForm, new_message, rule_in

T = TypeVar("T")


class ScheduleDeclared(ScheduleForm, kw_only=True):
    name: str
    namespace: str = ""


@dataclass(frozen=True)
class Declared:
    """What is to exist at start. What is there already is left as it is."""

    namespaces: tuple[str, ...] = ()
    queues: tuple[QueueDeclared, ...] = ()
    topics: tuple[TopicDeclared, ...] = ()
    schedules: tuple[ScheduleDeclared, ...] = ()
    principals: tuple[PrincipalDeclared, ...] = ()
    permissions: bool = False  # who may do what was said in PyQueue's way

    def with_key(self, name: str, key: str, namespace: str) -> "Declared":
        """With a principal of that key, who may do everything where nothing is said of anybody.

        Raises ValueError.
        """
        mine = [each for each in self.principals if each.name == name]
        if not mine and self.permissions:
            raise ValueError(f"security.permissions must say what {name} may do")
        grants = mine[0].grants if mine else every_right(namespace, ["*"])
        others = tuple(each for each in self.principals if each.name != name)
        return replace(self, principals=(*others, PrincipalDeclared(name, key, grants)))


def read_permissions(declared: Declared, permissions: object, namespace: str) -> Declared:
    """PyQueue's: names of queues, or their beginnings and *, by principal. Raises ValueError."""
    found = _convert("permissions", {"permissions": permissions or {}}, dict[str, list[str]])
    named = {each.name for each in declared.principals}
    for name, patterns in found.items():
        if name in named or name == ROOT or ":" in name or not patterns:
            raise ValueError(f"security.permissions of {name!r}: it must list queues, and have a"
                             " name without a colon that is not declared elsewhere")  # fmt: skip
    made = [PrincipalDeclared(n, None, every_right(namespace, p)) for n, p in found.items()]
    principals = (*declared.principals, *made)
    return replace(declared, principals=principals, permissions=bool(found))


class _GrantForm(msgspec.Struct, forbid_unknown_fields=True):
    rights: list[Right]
    namespace: str = "*"
    entity: str = "*"


class _PrincipalForm(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    key: str
    grants: list[_GrantForm]


def read_declared(content: Mapping[str, object], namespace: str) -> Declared:
    """Raises ValueError."""
    queues = [_queue(each, namespace) for each in _convert("queues", content, list[dict[str, Any]])]
    topics = [_topic(each, namespace) for each in _convert("topics", content, list[dict[str, Any]])]
    principals = []
    for form in _convert("principals", content, list[_PrincipalForm]):
        short, long = len(form.key) < KEY_CHARS_MIN, len(form.key) > KEY_CHARS_MAX
        if short or long or form.key != form.key.strip():
            raise ValueError(
                f"the key of {form.name} must have {KEY_CHARS_MIN} to {KEY_CHARS_MAX} characters,"
                " and none of them around it may be blank"
            )
        if form.name == ROOT or ":" in form.name or not form.grants:
            raise ValueError(f"principal {form.name}: it must have grants, a name without a colon,"
                             f" and not that of the root")  # fmt: skip
        grants = tuple(Grant(each.namespace, each.entity, each.rights) for each in form.grants)
        principals.append(PrincipalDeclared(form.name, form.key, grants))
    names = _convert("namespaces", content, list[str])
    for name in names:
        checked(f"namespace {name!r}", check_name, "name", name)
    schedules = []
    for each in _convert("schedules", content, list[ScheduleDeclared]):
        each.namespace = each.namespace or namespace
        what = f"schedule {each.name!r}"
        checked(what, check_name, "name", each.name)
        checked(what, parse, each.when, each.zone)
        checked(what, new_message, each.message, 0)
        schedules.append(each)
    return Declared(tuple(names), tuple(queues), tuple(topics), tuple(schedules), tuple(principals))


def _convert(name: str, content: Mapping[str, object], kind: type[T]) -> T:
    try:
        return msgspec.convert(content.get(name, []), kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{name}: {error}") from None


def _queue(form: dict[str, Any], namespace: str) -> QueueDeclared:
    form = dict(form)
    name, space = form.pop("name", None), form.pop("namespace", namespace)
    if not isinstance(name, str) or not isinstance(space, str):
        raise ValueError("queues: each needs a name, and its namespace is one")  # noqa: TRY004
    return declare_queue(name, space, _properties(f"queue {name}", form))


def _properties(what: str, form: dict[str, Any]) -> QueueProperties:
    unknown = set(form) - set(QueueProperties.__struct_fields__)
    if unknown:
        raise ValueError(f"{what}: there is no property {min(unknown)!r}")
    try:
        return msgspec.convert(form, QueueProperties)
    except msgspec.ValidationError as error:
        raise ValueError(f"{what}: {error}") from None


def _topic(form: dict[str, Any], namespace: str) -> TopicDeclared:
    form = dict(form)
    name, space = form.pop("name", None), form.pop("namespace", namespace)
    below = form.pop("subscriptions", [])
    if not isinstance(name, str) or not isinstance(space, str) or not isinstance(below, list):
        raise ValueError("topics: each needs a name, and its subscriptions are a list")  # noqa: TRY004
    properties = _properties(f"topic {name}", {**form, "delivery": "topic"})
    subscriptions = tuple(_subscription(name, each) for each in below)
    return declare_topic(name, space, properties, subscriptions)


def _subscription(topic: str, form: Any) -> SubscriptionDeclared:
    form = dict(form) if isinstance(form, dict) else {}
    name, rules = form.pop("name", None), form.pop("rules", None)
    if not isinstance(name, str):
        raise ValueError(f"topic {topic}: each of its subscriptions needs a name")  # noqa: TRY004
    what = f"subscription {name} of {topic}"
    properties = _properties(what, form)
    if rules is None:
        return SubscriptionDeclared(name, properties)
    try:
        given = msgspec.convert(rules, list[NamedRuleForm])
        made = tuple(rule_in(each.name, each) for each in given)
    except (msgspec.ValidationError, InvalidArgument) as error:
        raise ValueError(f"{what}: {error}") from None
    return SubscriptionDeclared(name, properties, made)


# Microsoft's emulator. Its file has one namespace, whose entities go to ours.


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


def read_emulator(content: Mapping[str, object], namespace: str) -> Declared:
    """The emulator's `Config.json`. Raises ValueError."""
    try:
        found = msgspec.convert(content["UserConfig"], _UserConfig)
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
    return Declared(queues=tuple(queues), topics=tuple(topics))


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
