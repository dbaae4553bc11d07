"""Settling by receipt handles: DeleteMessage, ChangeMessageVisibility, and their batches.

A handle names a delivery by the message's number and the delivery's. In a standard queue it stands
for its message as long as that is there, whoever holds it now; in a FIFO queue for its own lock.
"""

from collections.abc import Sequence
from typing import NamedTuple

from posthouse.broker.view import Entity
from posthouse.core.commands import SettleResult
from posthouse.core.message import Attempt
from posthouse.dialects.sqs.attributes import LOCK_SECONDS_MAX
from posthouse.dialects.sqs.batches import checked, failure
from posthouse.dialects.sqs.call import Call
from posthouse.dialects.sqs.deliveries import settle
from posthouse.dialects.sqs.errors import (
    EXPIRED,
    NOT_AVAILABLE,
    Failed,
    invalid,
    missing,
    no_handle,
)
from posthouse.dialects.sqs.handles import Handle
from posthouse.dialects.sqs.shapes import (
    ChangeMessageVisibility,
    ChangeMessageVisibilityBatch,
    ChangeMessageVisibilityBatchRequestEntry,
    ChangeMessageVisibilityBatchResult,
    ChangeMessageVisibilityBatchResultEntry,
    DeleteMessage,
    DeleteMessageBatch,
    DeleteMessageBatchRequestEntry,
    DeleteMessageBatchResult,
    DeleteMessageBatchResultEntry,
)


class Named(NamedTuple):
    """A delivery that is to be settled, and as what its handle was given."""

    handle: Handle
    text: str


def _named(call: Call, queue: Entity, text: str | None) -> Named:
    """Raises Failed."""
    if not text:
        raise missing("ReceiptHandle")
    handle = call.service.handles.read(call.namespace, text)
    if handle is None or handle.queue != queue.number:
        raise no_handle(text)
    return Named(handle, text)


async def _settle(
    call: Call, queue: Entity, named: Sequence[Named], seconds: int | None
) -> list[SettleResult]:
    """Settles what is named; a message that is named twice is settled once, and told so twice."""
    if not named:
        return []
    first = {each.handle.sequence: each.handle for each in named}
    attempts = [Attempt(sequence, handle.number) for sequence, handle in first.items()]
    results = await settle(call, queue.name, attempts, seconds)
    by_sequence = dict(zip(first, results, strict=True))
    return [by_sequence[each.handle.sequence] for each in named]


# Delete.


async def delete(call: Call, form: DeleteMessage) -> None:
    queue = await call.queue(form.queue_url, "listen")
    named = _named(call, queue, form.receipt_handle)
    [result] = await _settle(call, queue, [named], None)
    _check_deleted(named, result)


def _check_deleted(named: Named, result: SettleResult) -> None:
    """One that was deleted before is deleted. Raises Failed."""
    if result == "lost":
        raise invalid(named.text, "ReceiptHandle", EXPIRED)


async def delete_batch(call: Call, form: DeleteMessageBatch) -> DeleteMessageBatchResult:
    queue = await call.queue(form.queue_url, "listen")
    entries = checked(form.entries, "DeleteMessageBatchRequestEntry")
    told = DeleteMessageBatchResult([], [])
    named: list[tuple[DeleteMessageBatchRequestEntry, Named]] = []
    for entry in entries:
        try:
            named.append((entry, _named(call, queue, entry.receipt_handle)))
        except Failed as failed:
            told.failed.append(failure(entry.id or "", failed))
    results = await _settle(call, queue, [each for _, each in named], None)
    for (entry, each), result in zip(named, results, strict=True):
        try:
            _check_deleted(each, result)
        except Failed as failed:
            told.failed.append(failure(entry.id or "", failed))
        else:
            told.successful.append(DeleteMessageBatchResultEntry(entry.id or ""))
    return told


# Change.


async def change(call: Call, form: ChangeMessageVisibility) -> None:
    queue = await call.queue(form.queue_url, "listen")
    named = _named(call, queue, form.receipt_handle)
    seconds = _seconds(form.visibility_timeout)
    _check_total(call, named, seconds)
    [result] = await _settle(call, queue, [named], seconds)
    _check_changed(named, result)


def _seconds(given: int | None) -> int:
    """Raises Failed."""
    if given is None:
        raise missing("VisibilityTimeout")
    if not 0 <= given <= LOCK_SECONDS_MAX:
        raise invalid(
            given,
            "VisibilityTimeout",
            f"VisibilityTimeout must be an integer between 0 and {LOCK_SECONDS_MAX}.",
        )
    return given


def _check_total(call: Call, named: Named, seconds: int) -> None:
    """Raises Failed where a message would be hidden too long in all."""
    held = (call.now_ms - named.handle.received_ms) // 1_000
    if seconds and held + seconds > LOCK_SECONDS_MAX:
        raise invalid(
            seconds,
            "VisibilityTimeout",
            "Total VisibilityTimeout for the message is"
            f" beyond the limit [{LOCK_SECONDS_MAX} seconds]",
        )


def _check_changed(named: Named, result: SettleResult) -> None:
    if result == "removed":
        raise invalid(named.text, "ReceiptHandle", NOT_AVAILABLE)
    if result == "lost":
        raise invalid(named.text, "ReceiptHandle", EXPIRED)


async def change_batch(
    call: Call, form: ChangeMessageVisibilityBatch
) -> ChangeMessageVisibilityBatchResult:
    queue = await call.queue(form.queue_url, "listen")
    entries = checked(form.entries, "ChangeMessageVisibilityBatchRequestEntry")
    told = ChangeMessageVisibilityBatchResult([], [])
    by_seconds: dict[int, list[tuple[str, Named]]] = {}
    for entry in entries:
        try:
            named = _named(call, queue, entry.receipt_handle)
            seconds = _of_entry(entry, queue)
            _check_total(call, named, seconds)
        except Failed as failed:
            told.failed.append(failure(entry.id or "", failed))
        else:
            by_seconds.setdefault(seconds, []).append((entry.id or "", named))
    for seconds, some in by_seconds.items():
        results = await _settle(call, queue, [named for _, named in some], seconds)
        for (id, named), result in zip(some, results, strict=True):
            try:
                _check_changed(named, result)
            except Failed as failed:
                told.failed.append(failure(id, failed))
            else:
                told.successful.append(ChangeMessageVisibilityBatchResultEntry(id))
    return told


def _of_entry(entry: ChangeMessageVisibilityBatchRequestEntry, queue: Entity) -> int:
    """An entry may leave the time out: then it is the queue's. Raises Failed."""
    if entry.visibility_timeout is None:
        return min(LOCK_SECONDS_MAX, queue.properties.lock_ms // 1_000)
    return _seconds(entry.visibility_timeout)
