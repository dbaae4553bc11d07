"""Administration of queues, topics, subscriptions and rules, the same for every provider.

A provider creates, changes and deletes; `Admin` makes of that what is to be there, whether it was
there before or not.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, TypedDict, TypeVar

from posthouse.client.errors import Unsupported, ValidationError
from posthouse.client.names import QueueName, target_name
from posthouse.client.provider import ProviderType, Source

if TYPE_CHECKING:
    from typing import Unpack

    from posthouse.client.attributes import AttributeValue
    from posthouse.client.client import Calls
    from posthouse.client.provider import Provider

T = TypeVar("T")
Kind: TypeAlias = Literal["queue", "topic", "subscription"]
# Fields of messages that a rule can compare, as `Message` calls them.
RULE_FIELDS = (
    "message_id", "correlation_id", "to", "reply_to", "subject", "session_id", "content_type",
)  # fmt: skip


class QueueSettings(TypedDict, total=False):
    """The settings of a queue, topic or subscription. Durations are `timedelta`s or seconds."""

    sessions: bool
    lock_duration: timedelta | float
    max_delivery_count: int
    time_to_live: timedelta | float
    duplicate_detection: bool
    duplicate_window: timedelta | float
    dead_letter_expired: bool
    forward_to: str
    forward_dead_letters_to: str
    delete_when_idle: timedelta | float


Settings: TypeAlias = Mapping[str, Any]  # those that were given, with durations as timedeltas

_KINDS: dict[str, tuple[type, ...]] = {
    "sessions": (bool,), "lock_duration": (timedelta,), "max_delivery_count": (int,),
    "time_to_live": (timedelta,), "duplicate_detection": (bool,), "duplicate_window": (timedelta,),
    "dead_letter_expired": (bool,), "forward_to": (str,), "forward_dead_letters_to": (str,),
    "delete_when_idle": (timedelta,),
}  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """A rule of a subscription: which messages it takes, and what it changes in them.

    Give `sql`, a condition; or `fields` and `attributes`, which must all be equal; or `pattern`,
    which the subject must match. A rule with none of them matches every message.
    """

    name: str
    sql: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict[str, str])
    attributes: "Mapping[str, AttributeValue]" = field(default_factory=dict[str, Any])
    action: str | None = None  # in SQL: what is changed in the messages that match
    pattern: str | None = None  # levels between dots; * is one level, # any number of them

    def __post_init__(self) -> None:
        if not self.name:
            raise ValidationError("rule", "must have a name")
        equal = bool(self.fields or self.attributes)
        if (self.sql is not None) + (self.pattern is not None) + equal > 1:
            raise ValidationError(
                "rule", f"{self.name!r} has more than one of sql, pattern, and fields or attributes"
            )
        for each in self.fields:
            if each not in RULE_FIELDS:
                raise ValidationError(
                    "rule", f"{self.name!r} cannot compare {each!r}, only {', '.join(RULE_FIELDS)}"
                )


class Counts(NamedTuple):
    """The number of messages of a queue or subscription, by state."""

    active: int
    dead_letter: int
    scheduled: int | None = None  # None where the provider does not tell
    deferred: int | None = None
    locked: int | None = None


class AdminProvider(Protocol):
    """The administration of one provider. It raises Unsupported where it lacks something."""

    async def create(
        self, kind: Kind, name: QueueName, settings: Settings, rules: Sequence[Rule] | None
    ) -> bool:
        """Creates an entity; False if it exists. Without rules, a subscription gets everything."""
        ...

    async def update(self, kind: Kind, name: QueueName, settings: Settings) -> None: ...

    async def delete(self, kind: Kind, name: QueueName) -> None: ...

    async def names(self, kind: Kind, topic: str = "") -> list[str]:
        """Returns the names of all queues or topics, or of the subscriptions of a topic."""
        ...

    async def purge(self, source: Source) -> int: ...

    async def counts(self, name: QueueName) -> Counts: ...

    async def rules(self, name: QueueName) -> list[Rule]: ...

    async def set_rule(self, name: QueueName, rule: Rule) -> None:
        """Adds a rule, or replaces the one of that name."""
        ...

    async def delete_rule(self, name: QueueName, rule: str) -> None: ...

    async def close(self) -> None: ...


class Admin:
    """Creates, changes and deletes queues, topics, subscriptions and rules."""

    def __init__(self, provider: "Provider", calls: "Calls") -> None:
        self._provider = provider
        self._calls = calls

    def _make(
        self, operation: str, where: str, work: Callable[[AdminProvider], Awaitable[T]]
    ) -> Awaitable[T]:
        async def attempt() -> T:
            return await work(self._provider.admin())

        return self._calls.make(operation, where, attempt)

    # Queues and topics.

    async def ensure_queue(self, queue: str, **settings: "Unpack[QueueSettings]") -> bool:
        return await self._ensure("queue", target_name(queue), settings, None)

    async def update_queue(self, queue: str, **settings: "Unpack[QueueSettings]") -> None:
        await self._update("queue", target_name(queue), settings)

    async def delete_queue(self, queue: str) -> None:
        await self._delete("queue", target_name(queue))

    async def ensure_topic(self, topic: str, **settings: "Unpack[QueueSettings]") -> bool:
        return await self._ensure("topic", target_name(topic), settings, None)

    async def update_topic(self, topic: str, **settings: "Unpack[QueueSettings]") -> None:
        await self._update("topic", target_name(topic), settings)

    async def delete_topic(self, topic: str) -> None:
        await self._delete("topic", target_name(topic))

    async def queues(self) -> list[str]:
        return await self._make("list", "", lambda admin: admin.names("queue"))

    async def topics(self) -> list[str]:
        return await self._make("list", "", lambda admin: admin.names("topic"))

    # Subscriptions and their rules.

    async def ensure_subscription(
        self,
        subscription: str,
        *,
        rules: Sequence[Rule] | None = None,
        **settings: "Unpack[QueueSettings]",
    ) -> bool:
        name = _subscription(subscription)
        created = await self._ensure("subscription", name, settings, rules)
        if rules is not None and not created:
            await self._replace_rules(name, rules)
        return created

    async def _replace_rules(self, name: QueueName, rules: Sequence[Rule]) -> None:
        """First those that are new or different, then those that are too many go."""
        there = {each.name: each for each in await self.rules(name)}
        for rule in rules:
            if there.pop(rule.name, None) != rule:
                await self.ensure_rule(name, rule)
        for left in there:
            await self.delete_rule(name, left)

    async def update_subscription(
        self, subscription: str, **settings: "Unpack[QueueSettings]"
    ) -> None:
        await self._update("subscription", _subscription(subscription), settings)

    async def delete_subscription(self, subscription: str) -> None:
        await self._delete("subscription", _subscription(subscription))

    async def subscriptions(self, topic: str) -> list[str]:
        name = target_name(topic)
        return await self._make("list", name, lambda admin: admin.names("subscription", str(name)))

    async def ensure_rule(self, subscription: str, rule: Rule) -> None:
        name = _subscription(subscription)
        await self._make("ensure", name, lambda admin: admin.set_rule(name, rule))

    async def delete_rule(self, subscription: str, rule: str) -> None:
        name = _subscription(subscription)
        await self._make("delete", name, lambda admin: admin.delete_rule(name, rule))

    async def rules(self, subscription: str) -> list[Rule]:
        name = _subscription(subscription)
        return await self._make("list", name, lambda admin: admin.rules(name))

    # Messages.

    async def purge(self, queue: str, *, dead_letter: bool = False) -> int:
        source = Source(QueueName(queue), dead_letter)
        return await self._make("purge", source.queue, lambda admin: admin.purge(source))

    async def counts(self, queue: str) -> Counts:
        name = QueueName(queue)
        return await self._make("counts", name, lambda admin: admin.counts(name))

    # What these have in common.

    async def _ensure(
        self, kind: Kind, name: QueueName, settings: object, rules: Sequence[Rule] | None
    ) -> bool:
        given = _checked(settings)
        created = await self._make(
            "ensure", name, lambda admin: admin.create(kind, name, given, rules)
        )
        if not created and given:
            await self._make("ensure", name, lambda admin: admin.update(kind, name, given))
        return created

    async def _update(self, kind: Kind, name: QueueName, settings: object) -> None:
        given = _checked(settings)
        if not given:
            raise ValidationError("update", "must say what to change")
        await self._make("update", name, lambda admin: admin.update(kind, name, given))

    async def _delete(self, kind: Kind, name: QueueName) -> None:
        await self._make("delete", name, lambda admin: admin.delete(kind, name))


def _subscription(name: str) -> QueueName:
    """Raises ValidationError."""
    found = QueueName(name)
    if found.topic is None:
        raise ValidationError(
            "subscription", f"{name!r} must be TOPIC/$sub/NAME, or a SubscriptionName"
        )
    return found


def _checked(settings: Any) -> Settings:
    """Returns the settings with durations as timedeltas. Raises ValidationError."""
    given: dict[str, Any] = {}
    for name, value in settings.items():
        kinds = _KINDS.get(name)
        if kinds is None:
            raise ValidationError("setting", f"{name!r} is none of {', '.join(_KINDS)}")
        if kinds == (timedelta,) and type(value) in (int, float) and value < 1e12:
            value = timedelta(seconds=value)
        if type(value) not in kinds:
            raise ValidationError("setting", f"{name} cannot be {value!r}")
        if isinstance(value, timedelta) and value <= timedelta(0):
            raise ValidationError("setting", f"{name} must be more than nothing")
        given[name] = value
    return given


def check_settings(kind: ProviderType, settings: Settings, known: Mapping[str, Any]) -> None:
    """Raises Unsupported for a setting that the provider does not have."""
    for name in settings:
        if name not in known:
            raise Unsupported(kind.value, f"set {name} here")


# As a Posthouse broker calls them.
_BROKER = {
    "lock_duration": "lock_ms", "max_delivery_count": "max_delivery", "time_to_live": "ttl_ms",
    "duplicate_detection": "duplicate_detection", "duplicate_window": "duplicate_window_ms",
    "dead_letter_expired": "dead_letter_expired", "forward_to": "forward_to",
    "forward_dead_letters_to": "forward_dead_to", "delete_when_idle": "idle_delete_ms",
}  # fmt: skip


def broker_properties(settings: Settings) -> dict[str, Any]:
    """Returns settings as the properties that a Posthouse broker has."""
    properties: dict[str, Any] = {}
    for name, value in settings.items():
        if name == "sessions":
            properties["grouping"] = "session" if value else "none"
            properties["requires_session"] = value
        elif isinstance(value, timedelta):
            properties[_BROKER[name]] = max(1, round(value.total_seconds() * 1_000))
        else:
            properties[_BROKER[name]] = value
    return properties


def broker_fields(rule: Rule) -> dict[str, str]:
    """Returns the fields that a rule compares, as a Posthouse broker calls them."""
    return {"id" if name == "message_id" else name: text for name, text in rule.fields.items()}


def rule_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """The reverse."""
    return {"message_id" if name == "id" else name: text for name, text in fields.items()}
