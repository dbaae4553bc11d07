"""Administration of the broker in this process."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from posthouse.client.admin import (
    Counts,
    Kind,
    Rule,
    Settings,
    broker_fields,
    broker_properties,
    rule_fields,
)
from posthouse.client.attributes import check_attributes
from posthouse.client.errors import ProviderError, QueueNotFound
from posthouse.client.memory import NAMESPACE, attribute_of, property_of
from posthouse.client.names import SUBSCRIPTION, QueueName
from posthouse.client.provider import ProviderType, Source
from posthouse.core import commands as core
from posthouse.core import rules as filters
from posthouse.core.message import ACTIVE
from posthouse.core.model import QueueProperties, dead_letter_queue

if TYPE_CHECKING:
    from posthouse.client.memory import InMemoryProvider

_EXISTS = "AlreadyExists"


class MemoryAdmin:
    def __init__(self, provider: "InMemoryProvider") -> None:
        self._provider = provider

    async def close(self) -> None:
        """Nothing: the broker is the provider's."""

    async def _ask(self, command: core.Command) -> Any:
        """Raises QueueError. Nothing is created on the way."""
        return await self._provider._ask(command, create=False)

    async def create(
        self, kind: Kind, name: QueueName, settings: Settings, rules: Sequence[Rule] | None
    ) -> bool:
        given = broker_properties(settings)
        if kind == "topic":
            properties = QueueProperties(delivery="topic", **given)
        else:
            single: dict[str, Any] = {"duplicate_detection": False} if kind != "queue" else {}
            sessions = bool(settings.get("sessions"))
            properties = self._provider._properties(sessions, single | given)
        command: core.Command = core.CreateQueue(str(name), properties)
        if kind == "subscription":
            command = core.CreateSubscription(str(name), properties)
            if rules is not None:
                made = [_core_rule(each) for each in rules]
                command = core.CreateSubscription(str(name), properties, made)
        try:
            await self._ask(command)
        except ProviderError as refused:
            if refused.code != _EXISTS:
                raise
            await self._info(kind, name)
            return False
        return True

    async def _info(self, kind: Kind, name: QueueName) -> core.QueueInfo:
        """Raises QueueNotFound, also for an entity of another kind."""
        found: core.QueueInfo = await self._ask(core.GetQueue(str(name)))
        if (found.properties.delivery == "topic") != (kind == "topic"):
            raise QueueNotFound(name, NAMESPACE)
        return found

    async def update(self, kind: Kind, name: QueueName, settings: Settings) -> None:
        old = (await self._info(kind, name)).properties
        new = msgspec.structs.replace(old, **broker_properties(settings))
        await self._ask(core.UpdateQueue(str(name), new))

    async def delete(self, kind: Kind, name: QueueName) -> None:
        await self._info(kind, name)
        await self._ask(core.DeleteQueue(str(name)))

    async def names(self, kind: Kind, topic: str = "") -> list[str]:
        names: list[str] = []
        after = ""
        while True:
            command: core.Command
            if kind == "subscription":
                command = core.ListSubscriptions(topic, after, core.PAGE_MAX)
            else:
                command = core.ListQueues(after, core.PAGE_MAX, kind)
            page: list[core.QueueInfo] = await self._ask(command)
            names += [each.name.rpartition(SUBSCRIPTION)[2] for each in page]
            if len(page) < core.PAGE_MAX:
                return names
            after = page[-1].name

    async def counts(self, name: QueueName) -> Counts:
        info: core.QueueInfo = await self._ask(core.GetQueue(str(name)))
        counts = info.counts
        return Counts(
            counts.active, counts.dead, counts.scheduled + counts.delayed, counts.deferred,
            counts.locked,
        )  # fmt: skip

    async def purge(self, source: Source) -> int:
        queue = str(source.queue)
        if source.dead_letter:
            queue = dead_letter_queue(queue)
        done = 0
        following: int | None = 0
        while following is not None:
            answer = await self._ask(core.Purge(queue, frozenset((ACTIVE,)), following))
            done, following = done + answer.done, answer.next
        return done

    async def rules(self, name: QueueName) -> list[Rule]:
        found: list[filters.Rule] = await self._ask(core.ListRules(str(name), limit=core.RULES_MAX))
        return [_rule(each) for each in found]

    async def set_rule(self, name: QueueName, rule: Rule) -> None:
        made = _core_rule(rule)
        try:
            await self._ask(core.SetRule(str(name), made))
        except ProviderError as refused:
            if refused.code != _EXISTS:
                raise
            await self._ask(core.SetRule(str(name), made, new=False))

    async def delete_rule(self, name: QueueName, rule: str) -> None:
        await self._ask(core.RemoveRule(str(name), rule))


def _core_rule(rule: Rule) -> filters.Rule:
    """Raises Unsupported, ValidationError."""
    wanted: filters.Filter = filters.TrueFilter()
    if rule.sql is not None:
        wanted = filters.SqlFilter(rule.sql)
    elif rule.pattern is not None:
        wanted = filters.PatternFilter(rule.pattern)
    elif rule.fields or rule.attributes:
        check_attributes(rule.attributes, ProviderType.IN_MEMORY)
        properties = {name: property_of(value) for name, value in rule.attributes.items()}
        wanted = filters.CorrelationFilter(broker_fields(rule), properties)
    return filters.Rule(rule.name, wanted, rule.action or "")


def _rule(found: filters.Rule) -> Rule:
    action = found.action or None
    match found.filter:
        case filters.SqlFilter(expression):
            return Rule(found.name, expression, action=action)
        case filters.FalseFilter():
            return Rule(found.name, "1=0", action=action)
        case filters.PatternFilter(pattern):
            return Rule(found.name, pattern=pattern, action=action)
        case filters.CorrelationFilter(fields, properties):
            attributes = {name: attribute_of(value) for name, value in properties.items()}
            return Rule(found.name, None, rule_fields(fields), attributes, action)
        case filters.TrueFilter():
            return Rule(found.name, action=action)
