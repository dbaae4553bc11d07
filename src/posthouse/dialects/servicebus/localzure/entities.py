"""Entities: queues, topics, subscriptions and rules, described in XML."""

from collections.abc import Callable
from typing import Any

import msgspec

from posthouse.core.commands import (
    CreateQueue,
    CreateSubscription,
    DeleteQueue,
    GetQueue,
    ListQueues,
    ListRules,
    ListSubscriptions,
    QueueInfo,
    RemoveRule,
    SetRule,
    UpdateQueue,
)
from posthouse.core.errors import InvalidArgument, NotFound
from posthouse.core.model import SUBSCRIPTION as BETWEEN
from posthouse.core.model import QueueProperties
from posthouse.core.rules import Rule, SqlFilter
from posthouse.core.shares import QUEUES, SUBSCRIPTIONS, TOPICS
from posthouse.dialects.http import Answer
from posthouse.dialects.servicebus import descriptions
from posthouse.dialects.servicebus.descriptions import (
    ATOM,
    CONNECT,
    INSTANCE,
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
)
from posthouse.dialects.servicebus.localzure.call import Call
from posthouse.dialects.servicebus.localzure.errors import Failed, Unprocessable
from posthouse.dialects.servicebus.localzure.places import check_name
from posthouse.dialects.servicebus.times import duration, moment
from posthouse.dialects.servicebus.web import XML
from posthouse.dialects.servicebus.xml import Node, element, read, text

LIVE_MS = 14 * 86_400_000  # of messages, where nothing else is said
PAGE, PAGE_MAX = 100, 1_000
_KINDS = {"queue": QUEUE, "topic": TOPIC, "subscription": SUBSCRIPTION}
_MEGABYTES = {"queue": (1_024, 5_120), "topic": (1, 5_120), "subscription": (1, 5_120)}


async def get(call: Call) -> Answer:
    return _answer(call, await _info(call))


async def _info(call: Call) -> QueueInfo:
    """Raises NotFound."""
    info = await call.ask(GetQueue(call.queue))
    assert isinstance(info, QueueInfo)
    is_topic = info.properties.delivery == "topic"
    if (call.place.kind == "topic") != is_topic:
        raise NotFound(call.place.kind, call.place.name, call.namespace)
    return info


async def put(call: Call) -> Answer:
    """Creates it, or changes what is there."""
    call.check("manage")
    node = _described(call, await call.request.body())
    try:
        old = await _info(call)
    except NotFound:
        await _create(call, node)
        return _answer(call, await _info(call), 201)
    if node is not None:
        await call.ask(UpdateQueue(call.queue, _properties(call, node, old.properties)))
    return _answer(call, await _info(call))


async def _create(call: Call, node: Node | None) -> None:
    place = call.place
    check_name(place)
    _check_few(call)
    is_topic = place.kind == "topic"
    plain = QueueProperties(ttl_ms=LIVE_MS, delivery="topic" if is_topic else "competing")
    properties = plain if node is None else _properties(call, node, plain, is_new=True)
    if place.kind == "subscription":
        await call.ask(CreateSubscription(call.queue, properties))
    else:
        await call.ask(CreateQueue(call.queue, properties))


def _check_few(call: Call) -> None:
    """Raises Failed or QuotaExceeded."""
    place, limits, view, namespace = call.place, call.limits, call.view, call.namespace
    if place.kind == "subscription":
        topic = call.queue.partition(BETWEEN)[0]
        count, most = len(view.subscriptions(namespace, topic)), limits.subscriptions
        what, where = SUBSCRIPTIONS, topic if view.exists(namespace, topic) else ""
    else:
        is_topic = place.kind == "topic"
        count = view.count(namespace, "topic" if is_topic else "queue")
        most = limits.entities
        what, where = TOPICS if is_topic else QUEUES, ""
    if count >= most:
        raise _too_many(call, f"{place.kind}s", count, most)
    view.check_share(namespace, call.engine.shares.holder(call.principal), what, where, most)


def _too_many(call: Call, what: str, count: int, most: int) -> Failed:
    return Failed(
        507, "QuotaExceeded", f"There may be {most} {what}; delete one first.", quota_type=what,
        current_value=count, max_value=most, entity_type=call.place.kind,
        entity_name=call.place.name,
    )  # fmt: skip


def _described(call: Call, body: bytes) -> Node | None:
    """None where nothing is said. Raises Failed."""
    if not body.strip():
        return None
    try:
        root = read(body)
    except ValueError as error:
        why = f"The description cannot be read: {error}."
        raise Failed(400, "InvalidOperation", why, reason=why) from None
    return root.find(_KINDS[call.place.kind]) or root


def _properties(
    call: Call, node: Node, old: QueueProperties, *, is_new: bool = False
) -> QueueProperties:
    """Raises InvalidArgument."""
    kind = call.place.kind
    least, most = _MEGABYTES[kind]
    size = node.text_of("MaxSizeInMegabytes")
    is_number = size is not None and size.isascii() and size.isdigit() and len(size) < 6
    if size and not (is_number and least <= int(size) <= most):
        raise InvalidArgument("MaxSizeInMegabytes", f"must be from {least} to {most}")
    for name in ("DefaultMessageTimeToLive", "LockDuration", "AutoDeleteOnIdle"):
        child = node.child(name)
        if child is not None and child.text.strip().isdigit():  # seconds
            child.text = f"PT{child.text.strip()}S"
    kept = _WithDefaults(node, old) if not is_new else node
    made = descriptions.read_properties(kept, old, _KINDS[kind])
    if made.ttl_ms is not None and made.ttl_ms <= 0:
        raise InvalidArgument("DefaultMessageTimeToLive", "must be above 0")
    return made


class _WithDefaults(Node):
    """A description in which properties that the request does not mention stay as they are."""

    def __init__(self, node: Node, old: QueueProperties) -> None:
        super().__init__(node.name, node.attributes)
        self.children = list(node.children)
        said = {"ForwardTo": old.forward_to, "ForwardDeadLetteredMessagesTo": old.forward_dead_to,
                "UserMetadata": old.metadata}  # fmt: skip
        for name, value in said.items():
            if value and self.child(name) is None:
                child = Node(name, {})
                child.text = value
                self.children.append(child)


async def delete(call: Call) -> Answer:
    await _info(call)
    await call.ask(DeleteQueue(call.queue))
    return Answer(b"", 200 if call.place.kind == "queue" else 204)


# Lists.


def window(call: Call) -> tuple[int, int]:
    """Raises Unprocessable."""
    found = []
    for name, default, least, most in (("$skip", 0, 0, 1 << 31), ("$top", PAGE, 1, PAGE_MAX)):
        said = call.request.query.get(name, str(default))
        is_short = said.isascii() and said.isdigit() and len(said) <= 12
        if not is_short or not least <= int(said) <= most:
            raise Unprocessable(name, f"{name} must be a whole number from {least} to {most}")
        found.append(int(said))
    return found[0], found[1]


async def list_all(call: Call, kind: str) -> Answer:
    """Queues, topics, or the subscriptions of a topic."""
    skip, top = window(call)
    found: list[QueueInfo] = []
    after = ""
    while len(found) < skip + top:
        limit = min(PAGE_MAX, skip + top - len(found))
        if kind == "subscription":
            page: Any = await call.ask(ListSubscriptions(call.queue, after, limit))
        else:
            page = await call.ask(ListQueues(after, limit, kind))  # type: ignore[arg-type]
        found += page
        if len(page) < limit:
            break
        after = page[-1].name
    title = {"queue": "Queues", "topic": "Topics", "subscription": "Subscriptions"}[kind]
    entries = [_entry(call, info, kind) for info in found[skip:]]
    return _feed(call, title, entries)


async def list_rules(call: Call) -> Answer:
    entries = [_rule_entry(call, rule) for rule in await _rules(call)]
    return _feed(call, "Rules", entries)


async def _rules(call: Call) -> list[Rule]:
    await _info(call)  # which takes the right to manage it

    return await call.ask(ListRules(call.queue, "", PAGE_MAX))  # type: ignore[return-value]


# Rules.


async def get_rule(call: Call) -> Answer:
    return Answer(_alone(_rule_entry(call, await _rule(call))).encode(), 200, (XML,))


async def _rule(call: Call) -> Rule:
    """Raises Failed."""
    name = call.place.rest[1]
    for rule in await _rules(call):
        if rule.name == name:
            return rule
    raise Failed(404, "EntityNotFound", f"There is no rule {name!r}.", entity_type="rule",
                 entity_name=name)  # fmt: skip


async def put_rule(call: Call) -> Answer:
    call.check("manage")
    name = call.place.rest[1]
    body = await call.request.body()
    try:
        root = read(body)
    except ValueError as error:
        why = f"The description cannot be read: {error}."
        raise Failed(400, "InvalidOperation", why, reason=why) from None
    rules = await _rules(call)
    if name in (rule.name for rule in rules):
        raise Failed(409, "EntityAlreadyExists", f"There is a rule {name!r} already.",
                     entity_type="rule", entity_name=name)  # fmt: skip
    if len(rules) >= call.limits.rules:
        raise _too_many(call, "rules", len(rules), call.limits.rules)
    rule = descriptions.read_rule(root.find(descriptions.RULE) or root, name)
    if isinstance(rule.filter, SqlFilter):
        if not rule.filter.expression:
            raise InvalidArgument("SqlExpression", "must say something")
        loose = msgspec.structs.replace(rule.filter, loose=True)  # its properties are texts
        rule = msgspec.structs.replace(rule, filter=loose)
    await call.ask(SetRule(call.queue, rule))
    return Answer(_alone(_rule_entry(call, await _rule(call))).encode(), 201, (XML,))


async def delete_rule(call: Call) -> Answer:
    rule = await _rule(call)
    await call.ask(RemoveRule(call.queue, rule.name))
    return Answer()


# Out.


def _answer(call: Call, info: QueueInfo, status: int = 200) -> Answer:
    if call.place.kind == "queue":
        return Answer(_queue(info).encode(), status, (XML,))
    return Answer(_alone(_entry(call, info, call.place.kind)).encode(), status, (XML,))


def _seconds(ms: int | None) -> str:
    if ms is None:
        return duration(None)
    return f"PT{ms / 1000:g}S" if ms % 1000 else f"PT{ms // 1000}S"


def _queue(info: QueueInfo) -> str:
    properties, counts = info.properties, info.counts
    batched = properties.extras.get("EnableBatchedOperations", "true")
    megabytes = descriptions.DEFAULT_MEGABYTES
    if properties.max_bytes is not None:
        megabytes = properties.max_bytes >> 20
    waiting = counts.active + counts.delayed
    said = {
        "QueueName": info.name, "MaxSizeInMegabytes": megabytes,
        "DefaultMessageTimeToLive": _seconds(properties.ttl_ms),
        "LockDuration": _seconds(properties.lock_ms),
        "RequiresSession": properties.requires_session,
        "RequiresDuplicateDetection": properties.duplicate_detection,
        "EnableDeadLetteringOnMessageExpiration": properties.dead_letter_expired,
        "EnableBatchedOperations": batched, "MaxDeliveryCount": properties.max_delivery,
        "MessageCount": waiting + counts.locked + counts.deferred, "ActiveMessageCount": waiting,
        "DeadLetterMessageCount": counts.dead, "ScheduledMessageCount": counts.scheduled,
        "SizeInBytes": info.size_bytes, "CreatedAt": moment(info.created_ms),
        "UpdatedAt": moment(info.updated_ms),
    }  # fmt: skip
    return _description(QUEUE, said)


def _topic(info: QueueInfo) -> str:
    size = info.properties.max_bytes
    megabytes = descriptions.DEFAULT_MEGABYTES if size is None else size >> 20
    return _description(
        TOPIC, {"MaxSizeInMegabytes": megabytes, "SubscriptionCount": info.subscriptions}
    )


def _subscription(info: QueueInfo) -> str:
    counts = info.counts
    held = counts.active + counts.delayed + counts.locked + counts.deferred
    seconds = info.properties.lock_ms / 1000
    return _description(SUBSCRIPTION, {"LockDuration": f"{seconds:g}", "MessageCount": held})


def _description(kind: str, said: dict[str, Any]) -> str:
    children = [text(name, value) for name, value in said.items()]
    return element(kind, children, xmlns=CONNECT, xmlns_i=INSTANCE)


_WRITERS: dict[str, Callable[[QueueInfo], str]] = {
    "queue": _queue, "topic": _topic, "subscription": _subscription,
}  # fmt: skip


def _entry(call: Call, info: QueueInfo, kind: str) -> str:
    name = info.name.rpartition(BETWEEN)[2] if kind == "subscription" else info.name
    content = _WRITERS[kind](info)
    return _wrapped(name, moment(info.created_ms), moment(info.updated_ms), content)


def _wrapped(name: str, created: str, updated: str, content: str) -> str:
    """Writes an entry as it stands in a feed, which declares the XML namespace."""
    return element("entry", [
        text("id", name), text("title", name, type_="text"), text("published", created),
        text("updated", updated), element("content", content, type_="application/xml"),
    ])  # fmt: skip


def _alone(entry: str) -> str:
    """An entry that is a document."""
    return entry.replace("<entry>", f'<entry xmlns="{ATOM}">', 1)


def _rule_entry(call: Call, rule: Rule) -> str:
    created = moment(rule.created_ms)
    return _wrapped(rule.name, created, created, descriptions.write_rule(rule))


def _feed(call: Call, title: str, entries: list[str]) -> Answer:
    feed = element("feed", [
        text("title", title, type_="text"), text("id", title), text("updated", moment(call.now_ms)),
        *entries,
    ], xmlns=ATOM)  # fmt: skip
    return Answer(feed.encode(), 200, (XML,))
