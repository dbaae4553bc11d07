"""AddPermission and RemovePermission: statements in a queue's policy, which nothing obeys."""

import re
from typing import Any

import msgspec

from posthouse.dialects.sqs import attributes
from posthouse.dialects.sqs.call import Call
from posthouse.dialects.sqs.errors import OVER_LIMIT, Failed, invalid, missing
from posthouse.dialects.sqs.queues import update
from posthouse.dialects.sqs.shapes import AddPermission, RemovePermission

ACTIONS_MAX = 7
# What others than the owner of a queue may be let do.
SHARED = frozenset((
    "*", "ChangeMessageVisibility", "DeleteMessage", "GetQueueAttributes", "GetQueueUrl",
    "ListDeadLetterSourceQueues", "PurgeQueue", "ReceiveMessage", "SendMessage",
))  # fmt: skip
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)
_ACCOUNT = re.compile(r"\d{12}", re.ASCII)

Policy = dict[str, Any]  # JSON, as its owner wrote it


async def add(call: Call, form: AddPermission) -> None:
    queue = await call.queue(form.queue_url, "manage")
    label, accounts, actions = form.label or "", form.aws_account_ids, form.actions
    if not _LABEL.fullmatch(label):
        raise invalid(
            label,
            "Label",
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length",
        )
    if not actions:
        raise missing("Actions")
    if not accounts or not all(map(_ACCOUNT.fullmatch, accounts)):
        raise invalid(accounts or "", "PrincipalId", "Unable to verify.")
    if len(actions) > ACTIONS_MAX:
        raise Failed(
            OVER_LIMIT, f"{len(actions)} Actions were found, maximum allowed is {ACTIONS_MAX}."
        )
    for action in actions:
        if action not in SHARED:
            raise invalid(
                f"SQS:{action}",
                "ActionName",
                "Only the queue owner is allowed to invoke this action.",
            )
    arn = call.place.arn(queue.name)
    statement = {
        "Sid": label,
        "Effect": "Allow",
        "Principal": {"AWS": _one([f"arn:aws:iam::{each}:root" for each in accounts])},
        "Action": _one([f"SQS:{each}" for each in actions]),
        "Resource": arn,
    }
    async with call.service.changing:
        policy = _policy(call, queue.name)
        policy.setdefault("Version", "2008-10-17")
        policy.setdefault("Id", f"{arn}/SQSDefaultPolicy")
        statements = _statements(policy)
        if any(each.get("Sid") == label for each in statements):
            raise invalid(label, "Label", "Already exists.")
        await _put(call, queue.name, {**policy, "Statement": [*statements, statement]})


async def remove(call: Call, form: RemovePermission) -> None:
    queue = await call.queue(form.queue_url, "manage")
    label = form.label or ""
    async with call.service.changing:
        policy = _policy(call, queue.name)
        statements = _statements(policy)
        rest = [each for each in statements if each.get("Sid") != label]
        if len(rest) == len(statements):
            raise invalid(label, "Label", "can't find label.")
        await _put(call, queue.name, {**policy, "Statement": rest} if rest else {})


def _one(items: list[str]) -> str | list[str]:
    return items[0] if len(items) == 1 else items


def _policy(call: Call, queue: str) -> Policy:
    text = attributes.value_of("Policy", call.entity(queue).properties)
    found = msgspec.json.decode(text) if text else {}
    return found if isinstance(found, dict) else {}


def _statements(policy: Policy) -> list[Policy]:
    found = policy.get("Statement", [])
    return (
        [each for each in found if isinstance(each, dict)] if isinstance(found, list) else [found]
    )


async def _put(call: Call, queue: str, policy: Policy) -> None:
    text = msgspec.json.encode(policy).decode() if policy else ""
    properties = call.entity(queue).properties
    values = attributes.read({"Policy": text}, fifo=False, new=False)
    await update(call, queue, attributes.changed(properties, values))
