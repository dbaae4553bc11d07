"""Deliveries as the core has them, where SQS needs more of them than a lock's token."""

from collections.abc import Sequence
from typing import Literal

from posthouse.broker.view import Entity
from posthouse.core.commands import Abandon, Complete, Delivery, Renew, Settled
from posthouse.core.errors import LockLost
from posthouse.dialects.sqs.attempts import Attempt
from posthouse.dialects.sqs.call import Call

Result = Literal["settled", "removed", "lost"]


def first_ms(delivery: Delivery, now_ms: int) -> int:
    return now_ms


async def settle(
    call: Call, queue: Entity, attempts: Sequence[Attempt], seconds: int | None
) -> list[Result]:
    """Removes deliveries from a queue, or, given seconds, hides them for as long from now on."""
    messages = call.view.messages
    tokens = [messages.token(call.namespace, queue.name, *each) for each in attempts]
    locks = [token or -1 - at for at, token in enumerate(tokens)]
    command: Complete | Abandon | Renew
    if seconds is None:
        command = Complete(queue.name, locks, True)
    elif seconds:
        command = Renew(queue.name, locks, True, lock_ms=seconds * 1_000)
    else:
        command = Abandon(queue.name, locks, True)
    answer = await call.ask(command)
    assert isinstance(answer, Settled)
    lost = set(answer.lost)
    results: list[Result] = []
    for attempt, lock in zip(attempts, locks, strict=True):
        there = messages.get(call.namespace, queue.name, attempt.sequence) is not None
        results.append("settled" if lock not in lost else ("lost" if there else "removed"))
    return results


async def renew_all(call: Call, queue: Entity, attempts: Sequence[Attempt], lock_ms: int) -> bool:
    """Whether all of them were held, and are for so long from now on."""
    messages = call.view.messages
    tokens = [messages.token(call.namespace, queue.name, *each) for each in attempts]
    if not all(tokens):
        return False
    try:
        await call.ask(Renew(queue.name, tokens, lock_ms=lock_ms))
    except LockLost:
        return False
    return True
