"""The entities that a configuration file declares to exist at start.

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
from dataclasses import dataclass
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
)
from posthouse.core.checks import check_name
from posthouse.core.errors import InvalidArgument
from posthouse.core.model import Grant, QueueProperties, Right
from posthouse.core.recurrence import parse
from posthouse.server.shapes import NamedRuleForm, ScheduleForm, new_message, rule_in

T = TypeVar("T")


class ScheduleDeclared(ScheduleForm, kw_only=True):
    name: str
    namespace: str = ""


@dataclass(frozen=True)
class Declared:
    """The declared entities. Those that exist already are left as they are."""

    namespaces: tuple[str, ...] = ()
    queues: tuple[QueueDeclared, ...] = ()
    topics: tuple[TopicDeclared, ...] = ()
    schedules: tuple[ScheduleDeclared, ...] = ()
    principals: tuple[PrincipalDeclared, ...] = ()


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
