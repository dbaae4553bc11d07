"""Administration: Atom entries and feeds, as the official administration clients want them.

    GET                   /$namespaceinfo
    GET                   /$Resources/queues, /$Resources/topics        a page: $skip, $top
    GET PUT DELETE        /ENTITY                                       a queue or a topic
    GET                   /TOPIC/Subscriptions, .../Subscriptions/S/Rules
    GET PUT DELETE        /TOPIC/Subscriptions/S, .../Subscriptions/S/Rules/R

A PUT creates, or with If-Match changes what is there.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from urllib.parse import quote, urlencode

from msgspec.structs import replace

from posthouse.broker.access import vouched
from posthouse.core.checks import check_name
from posthouse.core.commands import (
    PAGE_MAX,
    RULES_MAX,
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
from posthouse.core.errors import AlreadyExists, InvalidArgument, NotFound
from posthouse.core.model import SUBSCRIPTION as BETWEEN
from posthouse.core.model import Grant, QueueProperties, subscription_queue
from posthouse.core.namespaces import RevokeAccount, SetAccount, entity_key
from posthouse.core.rules import DEFAULT_RULE, CorrelationFilter, Rule
from posthouse.dialects.http import Answer, HttpError
from posthouse.dialects.servicebus import descriptions
from posthouse.dialects.servicebus.descriptions import ATOM, QUEUE, SUBSCRIPTION, TOPIC, Key, Told
from posthouse.dialects.servicebus.times import moment
from posthouse.dialects.servicebus.web import Call, Route, by_method
from posthouse.dialects.servicebus.xml import BYTES_MAX, Node, element, read, text

T = TypeVar("T")

PAGE = 100  # entries, at most
SUBSCRIPTION_CHARS_MAX = 50  # likewise of a rule
KEYS_MAX = 12  # authorization rules of one entity
KEY_BYTES_MAX = 256
_ENTRY = (b"content-type", b"application/atom+xml;type=entry;charset=utf-8")
_FEED = (b"content-type", b"application/atom+xml;type=feed;charset=utf-8")
_WRITERS: dict[str, Callable[[Told], str]] = {
    QUEUE: descriptions.write_queue, TOPIC: descriptions.write_topic,
    SUBSCRIPTION: descriptions.write_subscription,
}  # fmt: skip


def find(call: Call) -> Route:
    """Returns the route of a path. Raises HttpError."""
    kind = _kind_of([part.casefold() for part in call.path])
    if kind is None:
        raise HttpError(404, "SubCode=40400. There is nothing at this path.")
    return by_method(ROUTES[kind], call.request.method)


def _kind_of(words: list[str]) -> str | None:
    match words:
        case ["$namespaceinfo"]:
            return "namespace"
        case ["$resources", "queues" | "topics"]:
            return "entities"
        case [_, *_, "subscriptions"]:
            return "subscriptions"
        case [_, *_, "subscriptions", _, "rules"]:
            return "rules"
        case [_, *_, "subscriptions", _, "rules", _]:
            return "rule"
        case [first, *_] if not first.startswith("$"):
            return "entity"
        case _:
            return None


def entity_in(path: Sequence[str]) -> str:
    """The core's name for a queue, a topic or a subscription."""
    if len(path) > 2 and path[-2].casefold() == "subscriptions":
        return subscription_queue("/".join(path[:-2]), path[-1])
    return "/".join(path)


# Entities.


async def _get(call: Call) -> Answer:
    info = await _info(call, entity_in(call.path))
    return _entry(call, info)


async def _info(call: Call, entity: str) -> QueueInfo:
    info = await call.ask(GetQueue(call.exact(entity)))
    assert isinstance(info, QueueInfo)
    return info


async def _put(call: Call) -> Answer:
    wanted, entity = call.request.headers.get(b"if-match"), entity_in(call.path)
    node = _document(await call.request.body())
    await call.make_namespace("manage", entity)
    if wanted is not None:
        return await _update(call, call.exact(entity), node, wanted)
    return await _create(call, entity, node)


async def _create(call: Call, entity: str, node: Node) -> Answer:
    topic, between, name = entity.partition(BETWEEN)
    keys = descriptions.read_keys(node)
    _check_keys(call, entity, keys)
    if between:
        check_short("The name of a subscription", name)
        properties = _read(call, node, None, SUBSCRIPTION)
        first = descriptions.default_rule(node)
        rules = [Rule(DEFAULT_RULE) if first is None else first]
        queue = subscription_queue(call.exact(topic), name)
        await call.ask(CreateSubscription(queue, properties, rules))
    else:
        check_entity(entity)
        kind = TOPIC if node.name == TOPIC else QUEUE
        queue = entity
        await call.ask(CreateQueue(queue, _read(call, node, None, kind)))
    await _set_keys(call, queue, keys)
    return _entry(call, await _info(call, queue), 201)


async def _update(call: Call, queue: str, node: Node, wanted: bytes) -> Answer:
    old = await _info(call, queue)
    if wanted.strip() not in (b"*", _etag(old)):
        raise HttpError(412, "SubCode=41200. The entity has changed since; get it again.")
    if node.name != _kind(old):
        raise NotFound("queue", queue, call.namespace)
    keys = descriptions.read_keys(node)
    _check_keys(call, queue, keys)
    properties = _read(call, node, old.properties, _kind(old))
    await call.ask(UpdateQueue(queue, properties))
    await _set_keys(call, queue, keys)
    return _entry(call, await _info(call, queue))


async def _delete(call: Call) -> Answer:
    queue = call.exact(entity_in(call.path))
    await call.ask(DeleteQueue(queue))
    return Answer()


def _read(call: Call, node: Node, old: QueueProperties | None, kind: str) -> QueueProperties:
    """Reads a description. The entities that it forwards to must be there."""
    if node.name != kind:
        raise InvalidArgument("The document", f"must hold a {kind}")
    tier = call.credentials.settings.tier
    before = old or QueueProperties()
    descriptions.check_tier(node, before, tier)
    properties = descriptions.read_properties(node, old, kind)
    if not tier.has_large_messages:  # what it says of the size of messages is what is so
        properties = replace(properties, max_message_bytes=before.max_message_bytes)
    for target in (properties.forward_to, properties.forward_dead_to):
        exists = call.engine.view.exists
        if target is not None and not exists(call.namespace, call.exact(target)):
            raise InvalidArgument("The target of forwarding", f"is not there: {target!r}")
    return properties


def _document(body: bytes) -> Node:
    """The description in an entry. Raises HttpError."""
    if not body.strip():
        raise HttpError(400, "SubCode=40000. The request has no document.")
    try:
        root = read(body)
    except ValueError as error:
        status = 413 if len(body) > BYTES_MAX else 400
        raise HttpError(status, f"SubCode=40000. The document cannot be read: {error}.") from None
    content = root.find("content")
    node = content.children[0] if content is not None and content.children else None
    if root.name.endswith("Description"):
        node = root
    if node is None:
        raise HttpError(400, "SubCode=40000. The document is not an entry with a description.")
    return node


def check_entity(name: str) -> None:
    check_name("The name of an entity", name)
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            "The name of an entity", "must be of letters, digits, and . - _ ~ / between them"
        )


_NAME = re.compile(r"[^\W_]([\w.~/-]*[^\W_])?")
_SHORT = re.compile(r"[^\W_]([\w.-]*[^\W_])?")


def check_short(what: str, name: str) -> None:
    """The name of a subscription or a rule."""
    if len(name) > SUBSCRIPTION_CHARS_MAX:
        raise InvalidArgument(what, f"must be at most {SUBSCRIPTION_CHARS_MAX} characters")
    if name != DEFAULT_RULE and not _SHORT.fullmatch(name):
        raise InvalidArgument(what, "must be of letters, digits, and . - _ between them")


# Authorization rules: principals whose names say which entity they are of.


def _check_keys(call: Call, queue: str, keys: list[Key] | None) -> None:
    """Before anything is done: an entity is made with its keys, or not at all."""
    if not keys:
        return
    if BETWEEN in queue:
        raise InvalidArgument("AuthorizationRules", "are for queues and topics")
    if len(keys) > KEYS_MAX:
        raise InvalidArgument("AuthorizationRules", f"must be at most {KEYS_MAX}")
    accounts = call.engine.view.accounts
    mine = call.engine.view.entity_keys(call.namespace, queue)
    for key in keys:
        name = entity_key(call.namespace, queue, key.name)
        check_name("KeyName", name)
        if ":" in name:
            raise InvalidArgument("KeyName", "must have no colon")
        if any(len(each.encode()) > KEY_BYTES_MAX for each in (key.primary, key.secondary)):
            raise InvalidArgument("A key", f"must be at most {KEY_BYTES_MAX} bytes")
        if name in accounts and name not in mine:
            raise AlreadyExists("principal", name)


async def _set_keys(call: Call, queue: str, keys: list[Key] | None) -> None:
    """In the place of those it had. Whoever comes here may manage the entity."""
    wanted = {entity_key(call.namespace, queue, key.name): key for key in keys or ()}
    guard, accounts = call.credentials.guard, call.engine.view.accounts
    for name in call.engine.view.entity_keys(call.namespace, queue):
        if name not in wanted:
            await call.engine.ask(vouched(call.principal), "", RevokeAccount(name))
    for name, key in wanted.items():
        sealed = [guard.seal(name, each) for each in (key.primary, key.secondary)]
        grants = [Grant(call.namespace, queue, list(key.rights))]
        command = SetAccount(name, grants, sealed, name not in accounts)
        await call.engine.ask(vouched(call.principal), "", command)


def _keys(call: Call, queue: str, names: list[str]) -> list[Key]:
    """Returns the keys of an entity whose principals have these names."""
    found, accounts = [], call.engine.view.accounts
    for name in names:
        short = name.removesuffix(entity_key(call.namespace, queue, ""))
        account = accounts[name]
        primary, secondary = (*call.credentials.guard.keys(accounts, name), "", "")[:2]
        rights = tuple(account.grants[0].rights)
        found.append(Key(short, rights, primary, secondary, account.created_ms, account.updated_ms))
    return found


# Lists.


async def _list_entities(call: Call) -> Answer:
    kind = "topic" if call.path[1].casefold() == "topics" else "queue"

    async def page(after: str, limit: int) -> list[QueueInfo]:
        return await call.ask(ListQueues(after, limit, kind))  # type: ignore[arg-type,return-value]

    skip, top = _window(call)
    found = await _some(page, skip, top + 1, lambda info: info.name)
    title = "Topics" if kind == "topic" else "Queues"
    return _feed(call, title, skip, top, _entries(call, found))


async def _list_subscriptions(call: Call) -> Answer:
    topic = call.exact("/".join(call.path[:-1]))

    async def page(after: str, limit: int) -> list[QueueInfo]:
        return await call.ask(ListSubscriptions(topic, after, limit))  # type: ignore[return-value]

    skip, top = _window(call)
    found = await _some(page, skip, top + 1, lambda info: info.name)
    return _feed(call, "Subscriptions", skip, top, _entries(call, found))


async def _list_rules(call: Call) -> Answer:
    queue = call.exact(entity_in(call.path[:-1]))
    await _info(call, queue)  # which takes the right to manage it, as everything here

    async def page(after: str, limit: int) -> list[Rule]:
        return await call.ask(ListRules(queue, after, limit))  # type: ignore[return-value]

    skip, top = _window(call)
    found = await _some(page, skip, top + 1, lambda rule: rule.name)
    return _feed(call, "Rules", skip, top, [_rule_entry(call, queue, rule) for rule in found])


async def _some(
    page: Callable[[str, int], Awaitable[list[T]]], skip: int, count: int, name: Callable[[T], str]
) -> list[T]:
    """Reads pages, in the order of names, up to the entries that are asked for."""
    found: list[T] = []
    after = ""
    while len(found) < skip + count:
        some = await page(after, min(PAGE_MAX, skip + count - len(found)))
        found += some
        if not some:
            break
        after = name(some[-1])
    return found[skip:]


def _window(call: Call) -> tuple[int, int]:
    """How many to leave out, and how many to show. Raises HttpError."""
    found = []
    for name, default in (("$skip", 0), ("$top", PAGE)):
        said = call.request.query.get(name, str(default))
        if not said.isascii() or not said.isdigit() or len(said) > 9:
            raise HttpError(400, f"SubCode=40000. {name} must be a whole number.")
        found.append(int(said))
    return found[0], max(1, min(PAGE, found[1]))


# Rules.


async def _rules(call: Call, queue: str) -> list[Rule]:
    await _info(call, queue)  # which takes the right to manage it

    async def page(after: str, limit: int) -> list[Rule]:
        return await call.ask(ListRules(queue, after, limit))  # type: ignore[return-value]

    return await _some(page, 0, RULES_MAX + 1, lambda rule: rule.name)


async def _get_rule(call: Call) -> Answer:
    queue, name = call.exact(entity_in(call.path[:-2])), call.path[-1]
    rule = await _rule(call, queue, name)
    return Answer(_rule_entry(call, queue, rule).encode(), 200, (_ENTRY,))


async def _rule(call: Call, queue: str, name: str) -> Rule:
    """Raises NotFound."""
    for rule in await _rules(call, queue):
        if rule.name.casefold() == name.casefold():
            return rule
    raise NotFound("rule", name, call.namespace)


async def _put_rule(call: Call) -> Answer:
    queue, name = call.exact(entity_in(call.path[:-2])), call.path[-1]
    new = b"if-match" not in call.request.headers
    node = _document(await call.request.body())
    check_short("The name of a rule", name)
    there = [each.name for each in await _rules(call, queue)]
    same = next((each for each in there if each.casefold() == name.casefold()), None)
    if new and same is not None:
        raise AlreadyExists("rule", name)
    exact = name if same is None else same
    await call.ask(SetRule(queue, descriptions.read_rule(node, exact), new=new))
    rule = await _rule(call, queue, exact)
    entry = _rule_entry(call, queue, rule).encode()
    return Answer(entry, 201 if new else 200, (_ENTRY,))


async def _delete_rule(call: Call) -> Answer:
    queue = call.exact(entity_in(call.path[:-2]))
    rule = await _rule(call, queue, call.path[-1])
    await call.ask(RemoveRule(queue, rule.name))
    return Answer()


# Out.


async def _namespace(call: Call) -> Answer:
    """Answers with the namespace's properties, for who may manage it."""
    await call.ask(ListQueues(limit=1))
    found, now_ms = await call.engine.view.overview(call.namespace), call.engine.clock_ms("")
    created = moment(now_ms if found.created_ms is None else found.created_ms)
    updated = moment(now_ms if found.updated_ms is None else found.updated_ms)
    tier = call.credentials.settings.tier
    info = element("NamespaceInfo", [
        text("CreatedTime", created), text("MessagingSKU", tier.sku),
        "" if tier.units is None else text("MessagingUnits", tier.units),
        text("ModifiedTime", updated), text("Name", call.namespace),
        text("NamespaceType", "Messaging"),
    ], xmlns=descriptions.CONNECT, xmlns_i=descriptions.INSTANCE)  # fmt: skip
    entry = _wrapped(f"{call.url}/$namespaceinfo", call.namespace, created, updated, info)
    return Answer(entry.encode(), 200, (_ENTRY,))


def _spelled(name: str) -> str:
    """In an address. Clients take names from there, and some do not decode them."""
    return quote(name, safe="/$~")


def _entry(call: Call, info: QueueInfo, status: int = 200) -> Answer:
    headers = (_ENTRY, (b"etag", _etag(info)))
    [entry] = _entries(call, [info])
    return Answer(entry.encode(), status, headers)


def _etag(info: QueueInfo) -> bytes:
    return b'"%d"' % info.updated_ms


def _kind(info: QueueInfo) -> str:
    if BETWEEN in info.name:
        return SUBSCRIPTION
    return TOPIC if info.properties.delivery == "topic" else QUEUE


def _entries(call: Call, infos: list[QueueInfo]) -> list[str]:
    keys = call.engine.view.entity_keys
    return [_entry_of(call, info, keys(call.namespace, info.name)) for info in infos]


def _entry_of(call: Call, info: QueueInfo, keys: list[str]) -> str:
    kind, version = _kind(info), call.request.query.get("api-version", "")
    topic, between, name = info.name.partition(BETWEEN)
    told = Told(info, call.url, (), version, tier=call.credentials.settings.tier)
    if not between:
        told = told._replace(keys=_keys(call, info.name, keys))
    if kind == TOPIC and version >= "2024-05":
        sql, correlation = _filters(call, info.name)
        told = told._replace(sql_filters=sql, correlation_filters=correlation)
    address = f"{call.url}/{_spelled(topic)}"
    if between:
        address += f"/Subscriptions/{_spelled(name)}"
    created, updated = moment(info.created_ms), moment(info.updated_ms)
    return _wrapped(address, name or topic, created, updated, _WRITERS[kind](told))


def _filters(call: Call, topic: str) -> tuple[int, int]:
    """How many filters the subscriptions of a topic have, in SQL and by correlation.

    Filters that take everything, or nothing, are SQL filters: 1=1 and 1=0.
    """
    view, namespace = call.engine.view, call.namespace
    subscriptions = view.subscriptions(namespace, topic)
    kinds = [type(rule.filter) for each in subscriptions for rule in view.rules(namespace, each)]
    correlation = kinds.count(CorrelationFilter)
    return len(kinds) - correlation, correlation


def _rule_entry(call: Call, queue: str, rule: Rule) -> str:
    topic, _, name = queue.partition(BETWEEN)
    address = (
        f"{call.url}/{_spelled(topic)}/Subscriptions/{_spelled(name)}/Rules/{_spelled(rule.name)}"
    )
    created = moment(rule.created_ms)
    return _wrapped(address, rule.name, created, created, descriptions.write_rule(rule))


def _wrapped(address: str, title: str, created: str, updated: str, description: str) -> str:
    return element("entry", [
        text("id", address), text("title", title, type_="text"), text("published", created),
        text("updated", updated), element("author", [text("name", "posthouse")]),
        element("link", rel="self", href=address),
        element("content", description, type_="application/xml"),
    ], xmlns=ATOM)  # fmt: skip


def _feed(call: Call, title: str, skip: int, top: int, entries: list[str]) -> Answer:
    """One entry more than is shown says that there is a next page."""
    address = f"{call.url}/{'/'.join(map(_spelled, call.path))}"
    links = [element("link", rel="self", href=address)]
    if len(entries) > top:
        version = call.request.query.get("api-version")
        query = {"$skip": str(skip + top), "$top": str(top)}
        query |= {} if version is None else {"api-version": version}
        links.append(element("link", rel="next", href=f"{address}?{urlencode(query, safe='$')}"))
    now = moment(call.engine.clock_ms(call.namespace))
    feed = element("feed", [
        text("title", title, type_="text"), text("id", address), text("updated", now),
        *links, *entries[:top],
    ], xmlns=ATOM)  # fmt: skip
    return Answer(feed.encode(), 200, (_FEED,))


ROUTES: dict[str, dict[str, Route]] = {
    "namespace": {"GET": _namespace},
    "entities": {"GET": _list_entities},
    "entity": {"GET": _get, "PUT": _put, "DELETE": _delete},
    "subscriptions": {"GET": _list_subscriptions},
    "rules": {"GET": _list_rules},
    "rule": {"GET": _get_rule, "PUT": _put_rule, "DELETE": _delete_rule},
}
