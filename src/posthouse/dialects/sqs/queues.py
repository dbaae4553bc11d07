"""Actions on queues: create, find, list, look, change, purge, delete; tags."""

import re
import time
from base64 import b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping, Sequence

from posthouse.broker.view import Entity
from posthouse.core.commands import CreateQueue as Create
from posthouse.core.commands import DeleteQueue as Delete
from posthouse.core.commands import Progress, Purge, UpdateQueue
from posthouse.core.errors import AlreadyExists, InvalidArgument, NotAllowed
from posthouse.core.message import ACTIVE, DELAYED, LOCKED, SCHEDULED
from posthouse.core.model import QueueProperties
from posthouse.dialects.sqs import attributes
from posthouse.dialects.sqs.attributes import FIFO, is_fifo
from posthouse.dialects.sqs.call import Call
from posthouse.dialects.sqs.errors import (
    ATTRIBUTE_NAME,
    EXISTS,
    PURGING,
    RECENTLY,
    VALUE,
    Failed,
    invalid,
    missing,
    no_queue,
)
from posthouse.dialects.sqs.shapes import (
    CreateQueue,
    GetQueueAttributes,
    GetQueueAttributesResult,
    GetQueueUrl,
    ListDeadLetterSourceQueues,
    ListDeadLetterSourceQueuesResult,
    ListQueues,
    ListQueuesResult,
    ListQueueTagsResult,
    OfQueue,
    QueueUrlResult,
    SetQueueAttributes,
    TagQueue,
    UntagQueue,
)

PAGE_MAX = 1_000
PURGE_SECONDS = DELETE_SECONDS = 60.0  # between two, with --sqs-strict
TAGS_MAX, TAG_KEY_CHARS_MAX, TAG_CHARS_MAX = 50, 128, 256
_TAG = re.compile(r"[\w\s.:/=+@-]*")
_ALL_STATES = frozenset((ACTIVE, LOCKED, SCHEDULED, DELAYED))


async def create(call: Call, form: CreateQueue) -> QueueUrlResult:
    given = form.attributes or {}
    attributes.check_name(form.queue_name, given)
    name = form.queue_name or ""
    fifo = name.endswith(FIFO)
    values = attributes.read(given, fifo=fifo, new=True)
    if fifo:
        attributes.check_throughput(values)
    tags = form.tags or {}
    _check_tags(tags)
    call.check("manage", name)
    found = call.view.entity(call.namespace, name)
    if found is None:
        await _create(call, name, values, attributes.created(values, tags, fifo=fifo))
    else:
        _check_same(call, found, values)
    return QueueUrlResult(call.url(name))


async def _create(
    call: Call, name: str, values: Mapping[str, str], properties: QueueProperties
) -> None:
    deleted = call.service.deleted.since(call.namespace, name, time.monotonic())
    if call.service.settings.sqs_strict and deleted < DELETE_SECONDS:
        raise Failed(
            RECENTLY,
            "You must wait 60 seconds after deleting a queue before you can"
            " create another with the same name.",
        )
    if values.get("RedrivePolicy"):
        _check_redrive(call, name, values["RedrivePolicy"], properties)
    try:
        await call.ask(Create(name, properties))
    except AlreadyExists:
        found = call.view.entity(call.namespace, name)
        if found is None:  # one whose name differs in case alone
            raise
        _check_same(call, found, values)
    except (InvalidArgument, NotAllowed) as refused:
        raise Failed(VALUE, str(refused)) from None


def _check_same(call: Call, found: Entity, values: Mapping[str, str]) -> None:
    """Raises Failed."""
    if found.kind != "queue":
        raise Failed(EXISTS, f"A {found.kind} with the name {found.name} exists already.")
    name = attributes.first_difference(values, found.name, found.properties, call.place)
    if name:
        raise Failed(
            EXISTS,
            f"A queue already exists with the same name and a different value for attribute {name}",
        )


def _check_redrive(call: Call, name: str, policy: str, properties: QueueProperties) -> None:
    """Checks that the target of dead letters is there, of the same kind, and lets them in.

    Raises Failed.
    """
    target = attributes.redrive_of(policy).target
    if target == name:
        raise invalid(
            policy, "RedrivePolicy", "A queue cannot be the dead-letter queue of itself here."
        )
    found = call.view.entity(call.namespace, target)
    if found is None:
        raise invalid(policy, "RedrivePolicy", "Dead letter target does not exist.")
    if is_fifo(target, found.properties) != is_fifo(name, properties):
        raise invalid(
            policy, "RedrivePolicy", "Dead-letter queue must be same type of queue as the source."
        )
    if not attributes.allowed_in(found.properties).allows(name):
        raise invalid(
            policy,
            "RedrivePolicy",
            "The dead-letter queue does not allow this source: see its RedriveAllowPolicy.",
        )


async def delete(call: Call, form: OfQueue) -> None:
    queue = await call.queue(form.queue_url, "manage")
    await call.ask(Delete(queue.name))
    call.service.deleted.put(call.namespace, queue.name, time.monotonic())


async def get_url(call: Call, form: GetQueueUrl) -> QueueUrlResult:
    name = form.queue_name
    if not name:
        raise invalid("", "QueueName", "The name of a queue is missing.")
    account = form.queue_owner_aws_account_id
    if account:
        call.namespace = call.service.namespace(account)
        if not call.namespace:
            raise no_queue()
    call.check(None, name)
    if not call.view.exists(call.namespace, name):
        raise no_queue()
    return QueueUrlResult(call.url(name))


async def list_all(call: Call, form: ListQueues) -> ListQueuesResult:
    prefix = form.queue_name_prefix or ""
    names = [
        name
        for name in call.view.names(call.namespace, "queue")
        if name.startswith(prefix) and attributes.is_name(name)
    ]
    if not call.caller.principal.everything:
        names = [name for name in names if call.may(None, name)]
    some, token = _page(names, form.max_results, form.next_token)
    return ListQueuesResult([call.url(name) for name in some], token)


async def list_sources(
    call: Call, form: ListDeadLetterSourceQueues
) -> ListDeadLetterSourceQueuesResult:
    queue = await call.queue(form.queue_url, None)
    names = [name for name in sources_of(call, queue.name) if call.may(None, name)]
    some, token = _page(names, form.max_results, form.next_token)
    return ListDeadLetterSourceQueuesResult([call.url(name) for name in some], token)


def sources_of(call: Call, target: str) -> list[str]:
    """The queues whose dead letters come to this one, by name."""
    view, namespace = call.view, call.namespace
    found = []
    for name in view.names(namespace, "queue"):
        properties = view.properties(namespace, name)
        if properties is not None and properties.forward_dead_to == target:
            found.append(name)
    return found


def _page(
    names: Sequence[str], most: int | None, token: str | None
) -> tuple[Sequence[str], str | None]:
    """At most so many names behind the one in the token, and the token to go on with."""
    if most is not None and not 1 <= most <= PAGE_MAX:
        raise invalid(most, "MaxResults", f"Must be between 1 and {PAGE_MAX}, if provided.")
    if token:
        after = _name_in(token)
        names = [name for name in names if name > after]
    some = names[: most or PAGE_MAX]
    if most is None or len(names) <= len(some):
        return some, None
    return some, urlsafe_b64encode(some[-1].encode()).decode()


def _name_in(token: str) -> str:
    """Raises Failed."""
    try:
        return b64decode(token, altchars=b"-_", validate=True).decode()
    except (Base64Error, ValueError):
        raise invalid(token, "NextToken", "It is not one that was given.") from None


# Attributes.


async def get_attributes(call: Call, form: GetQueueAttributes) -> GetQueueAttributesResult:
    queue = await call.queue(form.queue_url, None)
    wanted = attributes.asked_for(form.attribute_names or ())
    if not wanted:
        return GetQueueAttributesResult()
    found = attributes.shown(queue.name, queue.properties, call.place) | _figures(call, queue)
    return GetQueueAttributesResult({n: value for n, value in found.items() if n in wanted})


def _figures(call: Call, queue: Entity) -> dict[str, str]:
    counts = call.view.counts(call.namespace, queue.name)
    return {
        "ApproximateNumberOfMessages": str(counts.active),
        "ApproximateNumberOfMessagesNotVisible": str(counts.locked),
        "ApproximateNumberOfMessagesDelayed": str(counts.scheduled + counts.delayed),
        "CreatedTimestamp": str(queue.created_ms // 1_000),
        "LastModifiedTimestamp": str(queue.updated_ms // 1_000),
        "QueueArn": call.place.arn(queue.name),
    }


async def set_attributes(call: Call, form: SetQueueAttributes) -> None:
    queue = await call.queue(form.queue_url, "manage")
    if form.attributes is None:
        raise missing("Attributes")
    fifo = is_fifo(queue.name, queue.properties)
    if not fifo and "FifoQueue" in form.attributes:
        raise Failed(ATTRIBUTE_NAME, "Unknown Attribute FifoQueue.")
    values = attributes.read(form.attributes, fifo=fifo, new=False)
    async with call.service.changing:
        properties = call.entity(queue.name).properties
        if fifo:
            has = attributes.shown(queue.name, properties, call.place)
            attributes.check_throughput(has | values)
        if values.get("RedrivePolicy"):
            _check_redrive(call, queue.name, values["RedrivePolicy"], properties)
        await update(call, queue.name, attributes.changed(properties, values))


async def update(call: Call, name: str, properties: QueueProperties) -> None:
    """Raises Failed where the properties are not possible."""
    try:
        await call.ask(UpdateQueue(name, properties))
    except (InvalidArgument, NotAllowed) as refused:
        raise Failed(VALUE, str(refused)) from None


async def purge(call: Call, form: OfQueue) -> None:
    queue = await call.queue(form.queue_url, "manage")
    notes, now = call.service.purged, time.monotonic()
    if (
        call.service.settings.sqs_strict
        and notes.since(call.namespace, queue.name, now) < PURGE_SECONDS
    ):
        raise Failed(
            PURGING, f"Only one PurgeQueue operation on {queue.name} is allowed every 60 seconds."
        )
    notes.put(call.namespace, queue.name, now)
    first: int | None = 0
    while first is not None:
        done = await call.ask(Purge(queue.name, _ALL_STATES, first, keys=True))
        assert isinstance(done, Progress)
        first = done.next


# Tags.


async def list_tags(call: Call, form: OfQueue) -> ListQueueTagsResult:
    queue = await call.queue(form.queue_url, None)
    return ListQueueTagsResult(attributes.tags_of(queue.properties))


async def tag(call: Call, form: TagQueue) -> None:
    queue = await call.queue(form.queue_url, "manage")
    if not form.tags:
        raise missing("Tags")
    _check_tags(form.tags)
    async with call.service.changing:
        properties = call.entity(queue.name).properties
        tags = attributes.tags_of(properties) | form.tags
        _check_few(tags)
        await update(call, queue.name, attributes.with_tags(properties, tags))


async def untag(call: Call, form: UntagQueue) -> None:
    queue = await call.queue(form.queue_url, "manage")
    if not form.tag_keys:
        raise Failed(VALUE, "Tag keys must be between 1 and 128 characters in length.")
    gone = set(form.tag_keys)
    async with call.service.changing:
        properties = call.entity(queue.name).properties
        tags = {k: text for k, text in attributes.tags_of(properties).items() if k not in gone}
        await update(call, queue.name, attributes.with_tags(properties, tags))


def _check_few(tags: Mapping[str, str]) -> None:
    if len(tags) > TAGS_MAX:
        raise Failed(VALUE, f"Too many tags added for queue: {TAGS_MAX} are allowed.")


def _check_tags(tags: Mapping[str, str]) -> None:
    """Raises Failed."""
    _check_few(tags)
    for key, text in tags.items():
        if not 1 <= len(key) <= TAG_KEY_CHARS_MAX or not _TAG.fullmatch(key):
            raise invalid(
                key,
                "TagKey",
                f"Tag keys must be between 1 and {TAG_KEY_CHARS_MAX}"
                " characters in length, of letters, digits, spaces and _.:/=+-@.",
            )
        if key.lower().startswith("aws:"):
            raise invalid(key, "TagKey", "Tag keys that begin with aws: are reserved.")
        if len(text) > TAG_CHARS_MAX or not _TAG.fullmatch(text):
            raise invalid(
                text,
                "TagValue",
                f"Tag values must be at most {TAG_CHARS_MAX} characters"
                " in length, of letters, digits, spaces and _.:/=+-@.",
            )
