"""Receiving: ReceiveMessage, by short and by long polls.

A message is locked before it is told. Where the client has gone before the answer was written, it
is released: it comes again at once, and is not counted as received.
"""

from collections.abc import Sequence
from typing import NamedTuple

from posthouse.broker.access import BROKER
from posthouse.broker.view import Entity
from posthouse.broker.waiting import until_gone
from posthouse.core.commands import Delivery, Peek, Peeked, Receive, Received, Release
from posthouse.core.errors import QuotaExceeded
from posthouse.core.message import Attempt
from posthouse.dialects.sqs import attributes
from posthouse.dialects.sqs.attempts import Told
from posthouse.dialects.sqs.attributes import LOCK_SECONDS_MAX, WAIT_SECONDS_MAX, is_fifo
from posthouse.dialects.sqs.call import Call, Undelivered
from posthouse.dialects.sqs.deliveries import renew_all
from posthouse.dialects.sqs.errors import invalid
from posthouse.dialects.sqs.handles import Handle
from posthouse.dialects.sqs.messages import Found, Wanted, check_id, received
from posthouse.dialects.sqs.shapes import Message, ReceiveMessage, ReceiveMessageResult

MESSAGES_MAX = 10


class Asked(NamedTuple):
    """A receiver's request, checked."""

    limit: int
    lock_seconds: int | None  # None: as the queue says
    wait_ms: int
    wanted: Wanted
    attempt: str | None


def _asked(form: ReceiveMessage, queue: Entity) -> Asked:
    """Raises Failed."""
    limit = 1 if form.max_number_of_messages is None else form.max_number_of_messages
    if not 1 <= limit <= MESSAGES_MAX:
        raise invalid(
            limit, "MaxNumberOfMessages", f"Must be between 1 and {MESSAGES_MAX}, if provided."
        )
    wait = form.wait_time_seconds
    if wait is None:
        wait = int(attributes.value_of("ReceiveMessageWaitTimeSeconds", queue.properties))
    if not 0 <= wait <= WAIT_SECONDS_MAX:
        raise invalid(
            wait, "WaitTimeSeconds", f"Must be >= 0 and <= {WAIT_SECONDS_MAX}, if provided."
        )
    lock = form.visibility_timeout
    if lock is not None and not 0 <= lock <= LOCK_SECONDS_MAX:
        raise invalid(
            lock, "VisibilityTimeout", f"Must be between 0 and {LOCK_SECONDS_MAX}, if provided."
        )
    attempt = form.receive_request_attempt_id
    if attempt is not None:
        if not is_fifo(queue.name, queue.properties):
            raise invalid(
                attempt,
                "ReceiveRequestAttemptId",
                "The request include parameter that is not valid for this queue type.",
            )
        check_id("ReceiveRequestAttemptId", attempt)
    system = (*(form.attribute_names or ()), *(form.message_system_attribute_names or ()))
    wanted = Wanted(system, form.message_attribute_names or ())
    return Asked(limit, lock, wait * 1_000, wanted, attempt)


async def receive(call: Call, form: ReceiveMessage) -> ReceiveMessageResult:
    queue = await call.queue(form.queue_url, "listen", make=True)
    asked = _asked(form, queue)
    if asked.attempt is not None:
        again = await _again(call, queue, asked)
        if again is not None:
            return again
    try:
        deliveries = await _receive(call, queue, asked)
    except QuotaExceeded:  # too many are in flight
        if asked.wait_ms or is_fifo(queue.name, queue.properties):
            return ReceiveMessageResult()
        raise
    now_ms = call.now_ms
    if deliveries:
        tokens = tuple(each.token for each in deliveries if each.token)
        call.undelivered = Undelivered(queue.name, tokens)
    if asked.attempt is not None and deliveries:
        told = Told(now_ms, tuple(
            (Attempt(each.message.sequence, each.count), each.first_delivered_ms)
            for each in deliveries
        ))  # fmt: skip
        call.service.attempts.put(call.namespace, queue.number, asked.attempt, told)
    return ReceiveMessageResult(_told(call, queue, asked, deliveries, now_ms))


def _told(
    call: Call,
    queue: Entity,
    asked: Asked,
    deliveries: Sequence[Delivery],
    received_ms: int,
) -> list[Message]:
    place, handles, namespace = call.place, call.service.handles, call.namespace
    told = []
    for each in deliveries:
        handle = Handle(queue.number, each.message.sequence, each.count, received_ms)
        found = Found(each, queue.name, place.arn)
        told.append(received(found, handles.make(namespace, handle), asked.wanted))
    return told


async def _receive(call: Call, queue: Entity, asked: Asked) -> Sequence[Delivery]:
    """Raises Refused, or ConnectionResetError where the client has gone."""
    engine = call.engine
    lock_ms = None if asked.lock_seconds is None else asked.lock_seconds * 1_000
    deadline_ms = call.now_ms + asked.wait_ms if asked.wait_ms else 0
    command = Receive(queue.name, engine.new_receiver(), asked.limit, deadline_ms, lock_ms=lock_ms)
    if asked.wait_ms:
        answer = await until_gone(
            engine, call.caller.principal, call.namespace, command, asked.wait_ms,
            call.request.gone,
        )  # fmt: skip
    else:
        answer = await call.ask(command)
    assert isinstance(answer, Received)
    return answer.deliveries


def give_back(call: Call) -> None:
    """Releases what was received for an answer that nobody has got."""
    undelivered, call.undelivered = call.undelivered, None
    if undelivered is not None and undelivered.tokens:
        release = Release(undelivered.queue, undelivered.tokens, partial=True)
        call.engine.submit(BROKER, call.namespace, release, lambda _: None)


async def _again(call: Call, queue: Entity, asked: Asked) -> ReceiveMessageResult | None:
    """The deliveries of an earlier attempt, if all are still hidden; their time begins anew."""
    told = call.service.attempts.get(call.namespace, queue.number, asked.attempt or "")
    if told is None:
        return None
    seconds = asked.lock_seconds
    lock_ms = queue.properties.lock_ms if seconds is None else seconds * 1_000
    attempts = [attempt for attempt, _ in told.deliveries]
    if not lock_ms or not await renew_all(call, queue.name, attempts, lock_ms):
        return None
    deliveries = []
    for attempt, first_ms in told.deliveries:
        peeked = await call.ask(Peek(queue.name, attempt.sequence, 1))
        assert isinstance(peeked, Peeked)
        seen = next(iter(peeked.messages), None)
        if seen is None or seen.message.sequence != attempt.sequence:
            return None  # it was deleted meanwhile
        deliveries.append(
            Delivery(0, 0, 0, attempt.count, seen.message, seen.note, first_delivered_ms=first_ms)
        )
    return ReceiveMessageResult(_told(call, queue, asked, deliveries, told.received_ms))
