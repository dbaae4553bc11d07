"""Topics: what is published under a name goes into every queue that is bound to it.

A binding is a subscription of one topic that all of them share: its rule is the pattern, and it
forwards to the queue, so that what others publish there gets into the queues too. What a PyQueue
client publishes is sent into the queues directly, in one commit, because each copy is a task with
an id of its own: one worker's acknowledgement must not be taken for another's.

A binding has tasks sent into its queue: whoever makes or ends one needs send or manage there, and
listen on the pattern. It gives nobody a right: what is published is sent in the publisher's name,
into those of the queues that the publisher may send to.
"""

import logging
import secrets
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from posthouse.core.commands import CreateQueue, CreateSubscription, DeleteQueue, Send
from posthouse.core.errors import AlreadyExists, InvalidArgument
from posthouse.core.filters.patterns import check_pattern
from posthouse.core.filters.problems import SyntaxProblem, TooManyLooks
from posthouse.core.message import Envelope, encode_envelope
from posthouse.core.model import QueueProperties, Right, subscription_queue
from posthouse.core.rules import PatternFilter, Rule
from posthouse.dialects.pyqueue.context import PyQueueContext
from posthouse.dialects.pyqueue.orders import Call, Order, send_together, told
from posthouse.dialects.pyqueue.refusals import Failed, Missing
from posthouse.dialects.pyqueue.tasks import PushForm, new_task

_audit = logging.getLogger("posthouse.audit")

TOPIC = "pyqueue-topics"  # the one that all bindings are subscriptions of
TOPIC_CHARS_MAX = 200  # so that a queue can be called after it


class Binding(NamedTuple):
    pattern: str
    queue: str
    subscription: str  # the name of its queue


def bindings(context: PyQueueContext) -> list[Binding]:
    view, namespace = context.view, context.namespace
    return [
        Binding(rule.filter.pattern, to, subscription)
        for subscription in view.subscriptions(namespace, TOPIC)
        if (to := _target(context, subscription)) is not None
        for rule in view.rules(namespace, subscription)
        if isinstance(rule.filter, PatternFilter)
    ]


def _target(context: PyQueueContext, subscription: str) -> str | None:
    """The queue that a binding has tasks sent into."""
    properties = context.view.properties(context.namespace, subscription)
    return None if properties is None else properties.forward_to


def bound_to(context: PyQueueContext, topic: str) -> list[str]:
    """The queues that get what is published under a name. Raises InvalidArgument."""
    view, namespace = context.view, context.namespace
    try:
        found = view.matches(namespace, TOPIC, encode_envelope(Envelope(subject=topic)))
    except TooManyLooks:
        reason = "has too many levels for the patterns there are"
        raise InvalidArgument("topic", reason) from None
    names = [_target(context, subscription) for subscription in found]
    return list(dict.fromkeys(name for name in names if name and view.exists(namespace, name)))


class _PublishForm(msgspec.Struct):
    topic: str = ""
    message: Any = ""
    priority: str | int | None = None
    idempotency_key: str | None = None
    ttl: int | float | None = None
    partition_key: str | None = None

    def as_push(self) -> PushForm:
        return PushForm(
            self.message, self.priority, None, self.idempotency_key, None, self.ttl,
            self.partition_key,
        )  # fmt: skip


async def publish(call: Call) -> bytes:
    form: _PublishForm = call.form(_PublishForm)
    context, topic = call.context, form.topic
    if not topic:
        raise Failed("Topic name required")
    call.check("send", topic)
    context.charge(call.address, 1)
    queues = _sendable(call, bound_to(context, topic))
    if not queues:
        raise Failed(f"No subscribers for topic '{topic}'")
    tasks = [new_task(form.as_push(), topic=topic) for _ in queues]
    sends = [
        Send(queue, [task.message], [task.key]) for queue, task in zip(queues, tasks, strict=True)
    ]
    answers = await send_together(call, sends)
    pairs = zip(tasks, answers, strict=True)
    ids = [task.id for task, enqueued in pairs if not enqueued.duplicates]
    return told({"topic": topic, "published": len(ids), "task_ids": ids})


def _sendable(call: Call, queues: list[str]) -> list[str]:
    """The queues that the publisher may send to. Raises Unauthorized where that is none of them.

    The others are left out: one binding of a queue must not refuse the topic to its publishers.
    """
    name = call.principal.name
    allowed = [queue for queue in queues if call.context.may(call.principal, "send", queue)]
    if queues and not allowed:
        call.check("send", queues[0])
    if len(allowed) < len(queues):
        left = len(queues) - len(allowed)
        _audit.warning(
            "%s may not send to %d of the queues that are bound to what it publishes.", name, left,
            extra={"event": "access.refused", "principal": name, "subject": call.on},
        )  # fmt: skip
    return allowed


class _BindForm(msgspec.Struct):
    topic: str = ""
    queue: str | None = None


def _bind_form(call: Call) -> _BindForm:
    form: _BindForm = call.form(_BindForm)
    if not form.topic:
        raise Failed("Topic name required")
    return form


def check_topic(pattern: str) -> None:
    """Raises Failed."""
    levels = pattern.split(".")
    if len(pattern) > TOPIC_CHARS_MAX:
        raise Failed(f"Invalid topic pattern: it has more than {TOPIC_CHARS_MAX} characters")
    if any(len(each) > 1 and ("*" in each or "#" in each) for each in levels):
        raise Failed(f"Invalid topic pattern: {pattern} (a wildcard is a whole level)")
    try:
        check_pattern(pattern, "amqp")
    except SyntaxProblem as problem:
        raise Failed(f"Invalid topic pattern: {problem}") from None


async def subscribe(call: Call) -> bytes:
    form = _bind_form(call)
    context, pattern = call.context, form.topic
    check_topic(pattern)
    queue = form.queue or f"sub_{pattern}_{secrets.token_hex(4)}"
    context.make_queue(call.principal, _check_bind(call, pattern, queue), queue)
    if not context.view.exists(context.namespace, TOPIC):
        await _make(call, CreateQueue(TOPIC, QueueProperties(delivery="topic")))
    digest = sha256(f"{pattern}\0{queue}".encode()).hexdigest()[:32]
    rules = [Rule("pattern", PatternFilter(pattern, "amqp"))]
    properties = QueueProperties(forward_to=queue)
    await _make(call, CreateSubscription(subscription_queue(TOPIC, digest), properties, rules))
    return told({"topic": pattern, "queue": queue})


def _check_bind(call: Call, pattern: str, queue: str) -> Right:
    """Checks that a binding may be made or removed. Returns the right on the queue that allows it.

    Raises Unauthorized.
    """
    call.check("listen", pattern)
    call.on = queue
    if call.context.may(call.principal, "manage", queue):
        return "manage"
    call.check("send", queue)
    return "send"


async def _make(call: Call, command: CreateQueue | CreateSubscription) -> None:
    """It may be there already."""
    try:
        await call.ask_vouched(command)
    except AlreadyExists:
        return


async def unsubscribe(call: Call) -> bytes:
    form = _bind_form(call)
    topic, queue = form.topic, form.queue
    bound = [each for each in bindings(call.context) if each.pattern == topic]
    if not bound:
        raise Missing(f"Topic '{topic}' not found")
    if queue is not None:
        bound = [each for each in bound if each.queue == queue]
        if not bound:
            raise Failed(f"Queue '{queue}' not subscribed to topic '{topic}'")
    for each in bound:
        _check_bind(call, each.pattern, each.queue)
    for each in bound:
        await call.ask_vouched(DeleteQueue(each.subscription))
    return told({"unsubscribed": queue if queue is not None else len(bound), "topic": topic})


async def unbind_all(call: Call, queue: str) -> None:
    """Removes all bindings of a queue that has been deleted."""
    for each in bindings(call.context):
        if each.queue == queue:
            await call.ask_vouched(DeleteQueue(each.subscription))


ORDERS: dict[str, Order] = {
    "PUBLISH": publish,
    "SUBSCRIBE": subscribe,
    "UNSUBSCRIBE": unsubscribe,
}
