"""Attributes of queues: one table of their names, values and defaults, and where each is kept.

What the core knows is a property of the queue; the rest is in `extras`, under names that begin with
`sqs.`, and only where it is not the default.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from posthouse.core.model import QueueProperties
from posthouse.dialects.sqs.errors import (
    ATTRIBUTE_NAME,
    Failed,
    attribute_value,
    invalid,
    unknown_attribute,
)

FIFO = ".fifo"
ALL = "All"
NAME_CHARS_MAX = 80
LOCK_SECONDS_MAX, DELAY_SECONDS_MAX, WAIT_SECONDS_MAX = 43_200, 900, 20
SIZE_MIN, SIZE_MAX = 1_024, 1_048_576  # of a message, as the service counts it
OVERHEAD_BYTES = 64 << 10  # of a message as we keep it, beside that
DUPLICATES_MS = 300_000
NEVER = 1 << 53  # deliveries, where there is no policy
RECEIVES_MAX = 1_000  # that a policy may say
POLICY_BYTES_MAX = 8_192
SOURCES_MAX = 10  # queues that a policy allows
KEY_CHARS_MAX = 2_048  # the name of a key of KMS
IN_FLIGHT_MAX = 120_000
FIFO_GROUPINGS = ("run", "group")
_EXTRA = "sqs."
SCOPE = _EXTRA + "scope"  # the scope of duplicates that the queue was created with

_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)
_FIFO_NAME = re.compile(r"[A-Za-z0-9_-]{1,75}\.fifo", re.ASCII)
_ARN = re.compile(
    r"arn:(?:aws|aws-cn|aws-us-gov):sqs:[a-z0-9-]{1,40}:\d{12}:([^:\s]{1,260})", re.ASCII
)


class Place(NamedTuple):
    """The labels in the name by which a queue is known: they find nothing."""

    region: str
    account: str

    def arn(self, queue: str) -> str:
        partition = "aws"
        if self.region.startswith("cn-"):
            partition = "aws-cn"
        elif self.region.startswith("us-gov-"):
            partition = "aws-us-gov"
        return f"arn:{partition}:sqs:{self.region}:{self.account}:{queue}"


def queue_in(arn: str) -> str:
    """The queue that a name names; empty where it is none."""
    found = _ARN.fullmatch(arn)
    return found[1] if found else ""


def is_name(name: str) -> bool:
    """Whether a queue of ours may be called so."""
    return bool(_NAME.fullmatch(name) or _FIFO_NAME.fullmatch(name))


def is_fifo(name: str, properties: QueueProperties) -> bool:
    return name.endswith(FIFO) and properties.grouping in FIFO_GROUPINGS


# How values are read: each returns the one way to write the value, or raises ValueError or Failed.


def _whole(least: int, most: int) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not (text.isascii() and text.isdigit() and len(text) <= 20):
            raise ValueError
        value = int(text)
        if not least <= value <= most:
            raise ValueError
        return str(value)

    return read


def _flag(text: str) -> str:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower()


def _word(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError
        return text

    return read


def _key(text: str) -> str:
    if len(text) > KEY_CHARS_MAX:
        raise ValueError
    return text


def _object(name: str, text: str) -> dict[str, Any]:
    """A JSON object. Raises Failed."""
    found: object = None
    if len(text) <= POLICY_BYTES_MAX and len(text.encode(errors="replace")) <= POLICY_BYTES_MAX:
        with suppress(msgspec.DecodeError, UnicodeError, RecursionError):
            found = msgspec.json.decode(text)
    if not isinstance(found, dict):
        raise attribute_value(
            name, f"It must be a JSON object of at most {POLICY_BYTES_MAX} bytes."
        )
    return found


def _policy(text: str) -> str:
    if text:
        _object("Policy", text)
    return text


class Redrive(NamedTuple):
    """The policy of a queue whose messages become dead letters."""

    target: str  # a queue's name
    receives: int


def redrive_of(text: str) -> Redrive:
    """Raises Failed."""
    found = _object("RedrivePolicy", text)
    arn, count = found.get("deadLetterTargetArn"), found.get("maxReceiveCount")
    if not isinstance(arn, str) or count is None:
        raise _redrive(
            text,
            "Redrive policy does not contain mandatory attribute:"
            f" {'maxReceiveCount' if isinstance(arn, str) else 'deadLetterTargetArn'}.",
        )
    if isinstance(count, str) and count.isascii() and count.isdigit() and len(count) < 5:
        count = int(count)
    if type(count) is not int or not 1 <= count <= RECEIVES_MAX:
        raise _redrive(
            text,
            f"Invalid value for maxReceiveCount: {count}, valid values are from 1"
            f" to {RECEIVES_MAX} both inclusive.",
        )
    target = queue_in(arn)
    if not target:
        raise _redrive(text, "Invalid value for deadLetterTargetArn.")
    return Redrive(target, count)


def _redrive(text: str, reason: str) -> Failed:
    return invalid(text, "RedrivePolicy", reason)


def _redrive_policy(text: str) -> str:
    if text:
        redrive_of(text)
    return text


class Allowed(NamedTuple):
    """The queues that may name this one as the target of their dead letters."""

    permission: str = "allowAll"
    sources: tuple[str, ...] = ()  # names of queues

    def allows(self, queue: str) -> bool:
        return self.permission == "allowAll" or queue in self.sources


def allowed_of(text: str) -> Allowed:
    """Raises Failed."""
    found = _object("RedriveAllowPolicy", text)
    permission, arns = found.get("redrivePermission"), found.get("sourceQueueArns")
    if permission not in ("allowAll", "denyAll", "byQueue"):
        raise invalid(
            text,
            "RedriveAllowPolicy",
            "redrivePermission must be allowAll, denyAll or byQueue.",
        )
    if (permission == "byQueue") != (arns is not None):
        raise invalid(
            text,
            "RedriveAllowPolicy",
            "sourceQueueArns belongs to the permission byQueue, and to that alone.",
        )
    if arns is None:
        return Allowed(permission)
    queues = [queue_in(arn) if isinstance(arn, str) else "" for arn in _listed(arns)]
    if not 1 <= len(queues) <= SOURCES_MAX or not all(queues):
        raise invalid(
            text,
            "RedriveAllowPolicy",
            f"sourceQueueArns must hold the ARNs of 1 to {SOURCES_MAX} queues.",
        )
    return Allowed(permission, tuple(queues))


def _listed(found: object) -> list[object]:
    return found if isinstance(found, list) else []


def _allow_policy(text: str) -> str:
    if text:
        allowed_of(text)
    return text


class Attribute(NamedTuple):
    """An attribute that may be set."""

    read: Callable[[str], str]
    default: str = ""  # empty: it is not shown unless it is set
    fifo: bool = False  # of a FIFO queue alone


SETTABLE: dict[str, Attribute] = {
    "VisibilityTimeout": Attribute(_whole(0, LOCK_SECONDS_MAX), "30"),
    "DelaySeconds": Attribute(_whole(0, DELAY_SECONDS_MAX), "0"),
    "MaximumMessageSize": Attribute(_whole(SIZE_MIN, SIZE_MAX), str(SIZE_MAX)),
    "MessageRetentionPeriod": Attribute(_whole(60, 1_209_600), "345600"),
    "ReceiveMessageWaitTimeSeconds": Attribute(_whole(0, WAIT_SECONDS_MAX), "0"),
    "RedrivePolicy": Attribute(_redrive_policy),
    "RedriveAllowPolicy": Attribute(_allow_policy),
    "Policy": Attribute(_policy),
    "KmsMasterKeyId": Attribute(_key),
    "KmsDataKeyReusePeriodSeconds": Attribute(_whole(60, 86_400)),
    "SqsManagedSseEnabled": Attribute(_flag, "true"),
    "FifoQueue": Attribute(_flag, fifo=True),
    "ContentBasedDeduplication": Attribute(_flag, "false", fifo=True),
    "DeduplicationScope": Attribute(_word("queue", "messageGroup"), "queue", fifo=True),
    "FifoThroughputLimit": Attribute(_word("perQueue", "perMessageGroupId"), "perQueue", fifo=True),
}
SHOWN = (
    "ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed", "CreatedTimestamp", "LastModifiedTimestamp", "QueueArn",
)  # fmt: skip
NAMES = frozenset((*SETTABLE, *SHOWN, ALL))
_REUSE_DEFAULT = "300"
# Those that are properties of the core's; all others are extras.
_PROPERTIES = frozenset((
    "VisibilityTimeout", "MessageRetentionPeriod", "RedrivePolicy", "FifoQueue",
))  # fmt: skip


# What was given.


def check_name(name: str | None, given: Mapping[str, str]) -> None:
    """Checks the name of a queue that is to be created, and that its kind fits. Raises Failed."""
    name = name or ""
    wants_fifo = given.get("FifoQueue", "").lower() == "true"
    if wants_fifo or name.endswith(FIFO):
        if not _FIFO_NAME.fullmatch(name) or not wants_fifo:
            raise invalid(
                name,
                "QueueName",
                "The name of a FIFO queue can only include alphanumeric"
                " characters, hyphens, or underscores, must end with .fifo suffix and be"
                f" 1 to {NAME_CHARS_MAX} in length",
            )
    elif not _NAME.fullmatch(name):
        raise invalid(
            name,
            "QueueName",
            "Can only include alphanumeric characters, hyphens, or"
            f" underscores. 1 to {NAME_CHARS_MAX} in length",
        )


def read(given: Mapping[str, str], *, fifo: bool, new: bool) -> dict[str, str]:
    """The attributes with each value in its one way of writing. Raises Failed."""
    found = {name: _read_one(name, text, fifo=fifo, new=new) for name, text in given.items()}
    if found.get("KmsMasterKeyId") and found.get("SqsManagedSseEnabled") == "true":
        raise Failed(
            ATTRIBUTE_NAME,
            "You can use one type of server-side encryption (SSE) at one"
            " time. You can either enable KMS SSE or SQS SSE.",
        )
    return found


def _read_one(name: str, text: str, *, fifo: bool, new: bool) -> str:
    attribute = SETTABLE.get(name)
    if attribute is None:
        raise unknown_attribute(name)
    if attribute.fifo and not fifo:
        if name in ("DeduplicationScope", "FifoThroughputLimit"):
            raise Failed(
                ATTRIBUTE_NAME, f"You can specify the {name} only when FifoQueue is set to true."
            )
        raise unknown_attribute(name)
    try:
        value = attribute.read(text)
    except ValueError:
        raise attribute_value(name) from None
    if name == "FifoQueue" and not new and value != "true":
        raise attribute_value(name, "Modifying queue type is not supported.")
    return value


def check_throughput(values: Mapping[str, str]) -> None:
    """Raises Failed."""
    limit, scope = values.get("FifoThroughputLimit"), values.get("DeduplicationScope")
    if limit == "perMessageGroupId" and scope != "messageGroup":
        raise attribute_value(
            "FifoThroughputLimit",
            "perMessageGroupId is for queues whose DeduplicationScope is messageGroup.",
        )


# What a queue has.


def value_of(name: str, properties: QueueProperties) -> str:
    """The value of an extra attribute, or its default."""
    return properties.extras.get(_EXTRA + name) or SETTABLE[name].default


def size_max(properties: QueueProperties) -> int:
    """The most bytes of a message, as the service counts them."""
    kept = properties.extras.get(_EXTRA + "MaximumMessageSize")
    if kept is not None:
        return int(kept)
    return min(SIZE_MAX, properties.max_message_bytes or SIZE_MAX)


def delay_ms(properties: QueueProperties) -> int:
    kept = properties.extras.get(_EXTRA + "DelaySeconds")
    return int(kept) * 1_000 if kept else 0


def allowed_in(properties: QueueProperties) -> Allowed:
    kept = properties.extras.get(_EXTRA + "RedriveAllowPolicy")
    return allowed_of(kept) if kept else Allowed()


def shown(name: str, properties: QueueProperties, place: Place) -> dict[str, str]:
    """The attributes that were or could have been set, and have a value."""
    fifo = is_fifo(name, properties)
    found: dict[str, str] = {}
    for each, attribute in SETTABLE.items():
        if attribute.fifo and not fifo:
            continue
        value = _shown(each, properties, place)
        if value:
            found[each] = value
    return found


def _shown(name: str, properties: QueueProperties, place: Place) -> str:
    match name:
        case "VisibilityTimeout":
            return str(min(LOCK_SECONDS_MAX, properties.lock_ms // 1_000))
        case "MessageRetentionPeriod":
            kept_ms = properties.ttl_ms
            return "1209600" if kept_ms is None else str(kept_ms // 1_000)
        case "MaximumMessageSize":
            return str(size_max(properties))
        case "FifoQueue":
            return "true"
        case "RedrivePolicy":
            if properties.forward_dead_to is None:
                return ""
            policy = {
                "deadLetterTargetArn": place.arn(properties.forward_dead_to),
                "maxReceiveCount": properties.max_delivery,
            }
            return msgspec.json.encode(policy).decode()
        case "KmsDataKeyReusePeriodSeconds":
            value = value_of(name, properties)
            return "" if value == _REUSE_DEFAULT else value
        case _:
            return value_of(name, properties)


def first_difference(
    given: Mapping[str, str], name: str, properties: QueueProperties, place: Place
) -> str:
    """The first given attribute that a queue has with another value; empty: there is none."""
    has = shown(name, properties, place)
    for each, value in given.items():
        if each == "RedrivePolicy" and value and each in has:
            same = redrive_of(value) == redrive_of(has[each])
        elif each == "KmsDataKeyReusePeriodSeconds":
            same = value == has.get(each, _REUSE_DEFAULT)
        elif each in ("Policy", "RedriveAllowPolicy") and value and each in has:
            same = msgspec.json.decode(value) == msgspec.json.decode(has[each])
        else:
            same = value == has.get(each, "")
        if not same:
            return each
    return ""


# What becomes of it.


def created(given: Mapping[str, str], tags: Mapping[str, str], *, fifo: bool) -> QueueProperties:
    """The properties of a new queue."""
    properties = QueueProperties(
        lock_ms=30_000,
        max_delivery=NEVER,
        ttl_ms=345_600_000,
        max_message_bytes=SIZE_MAX + OVERHEAD_BYTES,
        late_settling=not fifo,
        max_locked=IN_FLIGHT_MAX,
    )
    if fifo:
        extras = {}
        if given.get("DeduplicationScope", "queue") != "queue":
            extras[SCOPE] = given["DeduplicationScope"]
        properties = msgspec.structs.replace(
            properties, grouping="run", requires_session=True, duplicate_detection=True,
            duplicate_window_ms=DUPLICATES_MS, extras=extras,
        )  # fmt: skip
    return with_tags(changed(properties, given), tags)


def changed(properties: QueueProperties, given: Mapping[str, str]) -> QueueProperties:
    """The properties of a queue with these attributes, which have been read."""
    extras = dict(properties.extras)
    changes: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _PROPERTIES:
            _put(extras, name, value)
    if "VisibilityTimeout" in given:
        changes["lock_ms"] = int(given["VisibilityTimeout"]) * 1_000
    if "MessageRetentionPeriod" in given:
        changes["ttl_ms"] = int(given["MessageRetentionPeriod"]) * 1_000
    if "MaximumMessageSize" in given:
        extras[_EXTRA + "MaximumMessageSize"] = given["MaximumMessageSize"]
        changes["max_message_bytes"] = int(given["MaximumMessageSize"]) + OVERHEAD_BYTES
    if "RedrivePolicy" in given:
        policy = redrive_of(given["RedrivePolicy"]) if given["RedrivePolicy"] else None
        changes["forward_dead_to"] = None if policy is None else policy.target
        changes["max_delivery"] = NEVER if policy is None else policy.receives
        changes["forward_dead_unchanged"] = policy is not None
    if given.get("KmsMasterKeyId"):
        extras[_EXTRA + "SqsManagedSseEnabled"] = "false"
    elif given.get("SqsManagedSseEnabled") == "true":
        extras.pop(_EXTRA + "KmsMasterKeyId", None)
    return msgspec.structs.replace(properties, extras=extras, **changes)


def _put(extras: dict[str, str], name: str, value: str) -> None:
    """Keeps a value where it is not the default."""
    if value and value != SETTABLE[name].default:
        extras[_EXTRA + name] = value
    else:
        extras.pop(_EXTRA + name, None)


# Tags.

_TAGS = _EXTRA + "tags"


def tags_of(properties: QueueProperties) -> dict[str, str]:
    kept = properties.extras.get(_TAGS)
    return msgspec.json.decode(kept, type=dict[str, str]) if kept else {}


def with_tags(properties: QueueProperties, tags: Mapping[str, str]) -> QueueProperties:
    extras = {name: text for name, text in properties.extras.items() if name != _TAGS}
    if tags:
        extras[_TAGS] = msgspec.json.encode(dict(sorted(tags.items()))).decode()
    return msgspec.structs.replace(properties, extras=extras)


def asked_for(names: Sequence[str]) -> frozenset[str]:
    """The names of attributes that are asked for; empty: none. Raises Failed."""
    for name in names:
        if name not in NAMES:
            raise unknown_attribute(name)
    return NAMES if ALL in names else frozenset(names)
