"""Subscriptions of topics, and their rules."""

from collections.abc import Iterable

import msgspec

from posthouse.core.checks import (
    check_count,
    check_forwarding,
    check_name,
    check_queue_properties,
    check_rule,
)
from posthouse.core.commands import (
    PAGE_MAX,
    RULE_SQL_LEAST,
    RULES_EFFORT_MAX,
    RULES_MAX,
    RULES_SQL_MAX,
    SUBSCRIPTIONS_MAX,
    CreateSubscription,
    ListRules,
    ListSubscriptions,
    RemoveRule,
    SetRule,
)
from posthouse.core.entities import info
from posthouse.core.errors import AlreadyExists, InvalidArgument, NotFound, QuotaExceeded
from posthouse.core.model import SUBSCRIPTION, Queue, State, page
from posthouse.core.plan import Outcome
from posthouse.core.records import RuleRemoved, RuleSet, SubscriptionCreated
from posthouse.core.routing import effort_of
from posthouse.core.rules import Rule, sql_chars
from posthouse.core.shares import SUBSCRIPTIONS, check_share


def create_subscription(state: State, command: CreateSubscription, now_ms: int) -> Outcome:
    topic_name, _, name = command.queue.partition(SUBSCRIPTION)
    topic = state.queues.get(topic_name)
    if topic is None or topic.properties.delivery != "topic":
        raise NotFound("topic", topic_name)
    check_name("subscription", name)
    if "/" in name:
        raise InvalidArgument("subscription", "must not have a / in its name")
    taken = state.folded.get(command.queue.casefold())
    if taken is not None:
        raise AlreadyExists("subscription", taken.partition(SUBSCRIPTION)[2])
    if len(topic.subscriptions) >= SUBSCRIPTIONS_MAX:
        most = len(topic.subscriptions)
        raise QuotaExceeded(topic.name, SUBSCRIPTIONS, most, most)
    check_share(state.held, command.by, SUBSCRIPTIONS, topic.name, SUBSCRIPTIONS_MAX)
    properties = check_queue_properties(command.properties)
    if properties.delivery != "competing" or properties.duplicate_detection:
        raise InvalidArgument("properties", "of a subscription cannot be those of a topic")
    check_forwarding(state, properties)
    check_count("the number of rules", len(command.rules), 0, RULES_MAX)
    sql = sum(RULE_SQL_LEAST + chars for chars in map(sql_chars, command.rules) if chars)
    if sql > RULES_SQL_MAX:
        raise InvalidArgument("rules", "have too much SQL for one command; add them one by one")
    rules = [_checked_rule(rule, now_ms) for rule in command.rules]
    _check_effort(command.queue, rules)
    if len({rule.name.casefold() for rule in rules}) < len(rules):
        raise InvalidArgument("rules", "must have names that differ")
    by = command.by.name
    return Outcome([SubscriptionCreated(command.queue, now_ms, properties, rules, by=by)])


def list_subscriptions(state: State, command: ListSubscriptions, _: int) -> Outcome:
    topic = state.queues.get(command.queue)
    if topic is None or topic.properties.delivery == "competing":
        raise NotFound("topic", command.queue)
    check_count("limit", command.limit, 1, PAGE_MAX)
    names = page(sorted(topic.subscriptions), command.after, command.limit)
    return Outcome([], [info(topic.subscriptions[name]) for name in names])


def _subscription(state: State, name: str) -> Queue:
    queue = state.queues.get(name)
    if queue is None or queue.topic is None:
        raise NotFound("subscription", name)
    return queue


def set_rule(state: State, command: SetRule, now_ms: int) -> Outcome:
    queue = _subscription(state, command.queue)
    rule = _checked_rule(command.rule, now_ms)
    there = _named_rule(queue, rule.name)
    if command.new:
        if there is not None:
            raise AlreadyExists("rule", there)
        if len(queue.rules) >= RULES_MAX:
            raise QuotaExceeded(queue.name, "the number of rules", RULES_MAX, len(queue.rules))
    elif there is None:
        raise NotFound("rule", rule.name)
    else:
        made_ms = queue.rules[there].created_ms
        rule = msgspec.structs.replace(rule, name=there, created_ms=made_ms)
    _check_effort(queue.name, {**queue.rules, rule.name: rule}.values())
    return Outcome([RuleSet(queue.name, now_ms, rule)])


def remove_rule(state: State, command: RemoveRule, now_ms: int) -> Outcome:
    queue = _subscription(state, command.queue)
    there = _named_rule(queue, command.rule)
    if there is None:
        raise NotFound("rule", command.rule)
    return Outcome([RuleRemoved(queue.name, now_ms, there)])


def list_rules(state: State, command: ListRules, _: int) -> Outcome:
    queue = _subscription(state, command.queue)
    check_count("limit", command.limit, 1, PAGE_MAX)
    names = page(sorted(queue.rules), command.after, command.limit)
    return Outcome([], [queue.rules[name] for name in names])


def _named_rule(queue: Queue, name: str) -> str | None:
    """The rule's exact name, if there is one of that name but for case."""
    if name in queue.rules:
        return name
    folded = name.casefold()
    return next((each for each in queue.rules if each.casefold() == folded), None)


def _checked_rule(rule: Rule, now_ms: int) -> Rule:
    check_rule(rule)
    return msgspec.structs.replace(rule, created_ms=now_ms)


def _check_effort(queue: str, rules: Iterable[Rule]) -> None:
    """All that are asked of each message have to be asked in one command."""
    effort = effort_of(rules)
    if effort > RULES_EFFORT_MAX:
        raise QuotaExceeded(queue, "the length of its rules", RULES_EFFORT_MAX, effort)
