"""Administration of Azure Service Bus, through its SDK's administration client."""

from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusReceiver
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    RuleProperties,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from posthouse.client.admin import Counts, Kind, Rule, Settings, check_settings
from posthouse.client.attributes import check_attributes
from posthouse.client.azure_words import BUSY_S, TYPE, Doing
from posthouse.client.config import AzureServiceBusConfig
from posthouse.client.errors import (
    AuthenticationFailed,
    ConfigurationError,
    ConnectionFailed,
    PermissionDenied,
    ProviderError,
    QueueError,
    QueueNotFound,
    Throttled,
    Timeout,
    Unsupported,
    ValidationError,
)
from posthouse.client.names import QueueName
from posthouse.client.provider import Source
from posthouse.client.secret import reveal

if TYPE_CHECKING:
    from posthouse.client.azure import AzureProvider

T = TypeVar("T")
PURGE_AT_ONCE = 100  # messages
PURGE_WAIT_S = 1.0  # without a message, after which nothing is left
_DEFAULT = "$Default"  # the rule of a new subscription

# Settings by kind, as Azure calls them.
_TOPIC = {
    "time_to_live": "default_message_time_to_live",
    "duplicate_detection": "requires_duplicate_detection",
    "duplicate_window": "duplicate_detection_history_time_window",
    "delete_when_idle": "auto_delete_on_idle",
}
_SUBSCRIPTION = {
    "sessions": "requires_session",
    "lock_duration": "lock_duration",
    "max_delivery_count": "max_delivery_count",
    "time_to_live": "default_message_time_to_live",
    "dead_letter_expired": "dead_lettering_on_message_expiration",
    "forward_to": "forward_to",
    "forward_dead_letters_to": "forward_dead_lettered_messages_to",
    "delete_when_idle": "auto_delete_on_idle",
}
_NAMES: dict[Kind, dict[str, str]] = {
    "queue": _TOPIC | _SUBSCRIPTION,
    "topic": _TOPIC,
    "subscription": _SUBSCRIPTION,
}
_FIELDS = {"subject": "label"}  # as its filters call a field, where that is another word


class AzureAdmin:
    def __init__(self, provider: "AzureProvider", config: AzureServiceBusConfig) -> None:
        """Raises ConfigurationError."""
        self._provider = provider
        trust: Any = {"connection_verify": config.ca_file} if config.ca_file else {}
        try:
            if config.connection_string:
                self._client = ServiceBusAdministrationClient.from_connection_string(
                    reveal(config.connection_string), retry_total=0, **trust
                )
            else:
                credential: Any = reveal(config.credential)
                self._client = ServiceBusAdministrationClient(
                    config.namespace, credential, retry_total=0, **trust
                )
        except ValueError as error:
            raise ConfigurationError("connection_string", f"is none: {error}") from None

    async def close(self) -> None:
        await self._client.close()

    async def _ask(self, work: Coroutine[Any, Any, T], operation: str, name: str) -> T:
        """Raises QueueError."""
        try:
            return await work
        except AzureError as error:
            raise _error(error, operation, name) from error

    async def create(
        self, kind: Kind, name: QueueName, settings: Settings, rules: Sequence[Rule] | None
    ) -> bool:
        given = _named(kind, settings)
        work: Coroutine[Any, Any, Any]
        if kind == "queue":
            work = self._client.create_queue(str(name), **given)
        elif kind == "topic":
            work = self._client.create_topic(str(name), **given)
        else:
            work = self._client.create_subscription(*_parts(name), **given)
        made = [_rule_out(each) for each in rules or ()]
        try:
            await work
        except ResourceExistsError:
            await self._get(kind, name)
            return False
        except AzureError as error:
            raise _error(error, "create", name.topic or name) from error
        for rule in made:
            await self._set_rule(name, rule)
        if rules is not None and all(each.name != _DEFAULT for each in rules):
            await self.delete_rule(name, _DEFAULT)
        return True

    async def _get(self, kind: Kind, name: QueueName) -> Any:
        """Raises QueueNotFound, also for an entity of another kind."""
        work: Coroutine[Any, Any, Any]
        if kind == "queue":
            work = self._client.get_queue(str(name))
        elif kind == "topic":
            work = self._client.get_topic(str(name))
        else:
            work = self._client.get_subscription(*_parts(name))
        try:
            return await self._ask(work, "read", name)
        except AttributeError:  # the SDK's, where the entity is of another kind
            raise QueueNotFound(name) from None

    async def update(self, kind: Kind, name: QueueName, settings: Settings) -> None:
        given = _named(kind, settings)
        found = await self._get(kind, name)
        if all(getattr(found, each) == value for each, value in given.items()):
            return
        for each, value in given.items():
            setattr(found, each, value)
        if kind == "queue":
            work = self._client.update_queue(found)
        elif kind == "topic":
            work = self._client.update_topic(found)
        else:
            work = self._client.update_subscription(_parts(name)[0], found)
        await self._ask(work, "update", name)

    async def delete(self, kind: Kind, name: QueueName) -> None:
        await self._get(kind, name)  # the service deletes what has the name, of whatever kind
        if kind == "queue":
            work = self._client.delete_queue(str(name))
        elif kind == "topic":
            work = self._client.delete_topic(str(name))
        else:
            work = self._client.delete_subscription(*_parts(name))
        await self._ask(work, "delete", name)

    async def names(self, kind: Kind, topic: str = "") -> list[str]:
        pages: Any
        if kind == "queue":
            pages = self._client.list_queues()
        elif kind == "topic":
            pages = self._client.list_topics()
        else:
            await self._get("topic", QueueName(topic))
            pages = self._client.list_subscriptions(topic)
        return [each.name async for each in _listed(pages, topic)]

    async def counts(self, name: QueueName) -> Counts:
        if name.topic is not None:
            work = self._client.get_subscription_runtime_properties(*_parts(name))
            found = await self._ask(work, "count", name)
            return Counts(found.active_message_count or 0, found.dead_letter_message_count or 0)
        try:
            queue = await self._client.get_queue_runtime_properties(str(name))
        except ResourceNotFoundError:
            topic = await self._ask(
                self._client.get_topic_runtime_properties(str(name)), "count", name
            )
            return Counts(0, 0, topic.scheduled_message_count)
        except AzureError as error:
            raise _error(error, "count", name) from error
        return Counts(
            queue.active_message_count or 0, queue.dead_letter_message_count or 0,
            queue.scheduled_message_count,
        )  # fmt: skip

    # Purging: everything is received and deleted, session by session where there are some.

    async def purge(self, source: Source) -> int:
        kind: Kind = "queue" if source.queue.topic is None else "subscription"
        has_sessions = (await self._get(kind, source.queue)).requires_session
        if source.dead_letter or not has_sessions:
            sub_queue = ServiceBusSubQueue.DEAD_LETTER if source.dead_letter else None
            return await self._drain(source, self._receiver(source, sub_queue=sub_queue))
        done = 0
        with suppress(Timeout):  # no session is left
            while True:
                done += await self._drain(
                    source,
                    self._receiver(
                        source, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=PURGE_WAIT_S
                    ),
                )
        return done

    def _receiver(self, source: Source, **options: Any) -> ServiceBusReceiver:
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        return self._provider._receiver(source.queue, receive_mode=mode, **options)

    async def _drain(self, source: Source, receiver: ServiceBusReceiver) -> int:
        async def work() -> int:
            done = 0
            async with receiver:
                while found := await receiver.receive_messages(
                    max_message_count=PURGE_AT_ONCE, max_wait_time=PURGE_WAIT_S
                ):
                    done += len(found)
            return done

        return await self._provider.whole(work(), Doing("purge", source.queue))

    # Rules.

    async def rules(self, name: QueueName) -> list[Rule]:
        await self._get("subscription", name)
        pages: Any = self._client.list_rules(*_parts(name))
        return [_rule_in(each) async for each in _listed(pages, name)]

    async def set_rule(self, name: QueueName, rule: Rule) -> None:
        await self._set_rule(name, _rule_out(rule))

    async def _set_rule(self, name: QueueName, rule: RuleProperties) -> None:
        topic, subscription = _parts(name)
        assert rule.filter is not None  # made so
        try:
            await self._client.create_rule(
                topic, subscription, str(rule.name), filter=rule.filter, action=rule.action
            )
        except ResourceExistsError:
            await self._ask(
                self._client.update_rule(topic, subscription, rule), "change a rule of", name
            )
        except AzureError as error:
            raise _error(error, "add a rule to", name) from error

    async def delete_rule(self, name: QueueName, rule: str) -> None:
        await self._ask(
            self._client.delete_rule(*_parts(name), rule), "delete a rule of", f"{name}: {rule}"
        )


async def _listed(pages: Any, name: str) -> AsyncIterator[Any]:
    try:
        async for each in pages:
            yield each
    except AzureError as error:
        raise _error(error, "list", name) from error


def _parts(name: QueueName) -> tuple[str, str]:
    assert name.topic is not None
    assert name.subscription is not None
    return name.topic, name.subscription


def _named(kind: Kind, settings: Settings) -> dict[str, Any]:
    """Raises Unsupported."""
    names = _NAMES[kind]
    check_settings(TYPE, settings, names)
    return {names[name]: value for name, value in settings.items()}


def _rule_out(rule: Rule) -> RuleProperties:
    """Raises Unsupported, ValidationError."""
    if rule.pattern is not None:
        raise Unsupported(TYPE.value, "match subjects by a pattern; use LIKE in SQL")
    wanted: Any = TrueRuleFilter()
    if rule.sql is not None:
        wanted = SqlRuleFilter(rule.sql)
    elif rule.fields or rule.attributes:
        check_attributes(rule.attributes, TYPE, (str, bool, int, float))
        fields = {_FIELDS.get(name, name): text for name, text in rule.fields.items()}
        attributes: dict[str, Any] = dict(rule.attributes)
        wanted = CorrelationRuleFilter(properties=attributes, **fields)
    action = None if rule.action is None else SqlRuleAction(rule.action)
    return RuleProperties(rule.name, filter=wanted, action=action, created_at_utc=None)


def _rule_in(found: RuleProperties) -> Rule:
    wanted, action = found.filter, getattr(found.action, "sql_expression", None) or None
    match wanted:
        case TrueRuleFilter():
            return Rule(found.name, action=action)
        case FalseRuleFilter():
            return Rule(found.name, "1=0", action=action)
        case SqlRuleFilter():
            return Rule(found.name, wanted.sql_expression, action=action)
        case CorrelationRuleFilter():
            fields = {
                name: getattr(wanted, _FIELDS.get(name, name))
                for name in (
                    "message_id", "correlation_id", "to", "reply_to", "subject", "session_id",
                    "content_type",
                )
            }  # fmt: skip
            given = {name: str(text) for name, text in fields.items() if text is not None}
            attributes: dict[str, Any] = dict(wanted.properties or {})
            return Rule(found.name, None, given, attributes, action)
        case _:
            return Rule(found.name, action=action)


def _error(error: AzureError, operation: str, name: str) -> QueueError:
    match error:
        case ResourceNotFoundError():
            return QueueNotFound(name)
        case ClientAuthenticationError():
            return AuthenticationFailed(str(error.message))
        case HttpResponseError(status_code=403):
            return PermissionDenied(operation, str(error.message))
        case HttpResponseError(status_code=400 | 409):
            about = f"to {operation} {name!r} is refused: {error.message}"
            return ValidationError("request", about)
        case HttpResponseError(status_code=429 | 503):
            return Throttled(TYPE.value, str(error.status_code), str(error.message), BUSY_S)
        case ServiceRequestError() | ServiceResponseError():
            return ConnectionFailed(str(error))
        case _:
            status = getattr(error, "status_code", None) or 0
            code = str(status or type(error).__name__)
            return ProviderError(TYPE.value, code, str(error), is_transient=status >= 500)
