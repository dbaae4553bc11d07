"""Settling deliveries by their numbers, which is how receipt handles name them."""

from collections.abc import Sequence

from posthouse.core.commands import Abandon, Complete, Renew, Settled, SettleResult
from posthouse.core.errors import LockLost, MessageNotFound
from posthouse.core.message import Attempt
from posthouse.dialects.sqs.call import Call


async def settle(
    call: Call, queue: str, attempts: Sequence[Attempt], seconds: int | None
) -> Sequence[SettleResult]:
    """Removes deliveries from a queue, or, given seconds, hides them for as long from now on."""
    command: Complete | Abandon | Renew
    if seconds is None:
        command = Complete(queue, attempts, partial=True)
    elif seconds:
        command = Renew(queue, attempts, partial=True, lock_ms=seconds * 1_000)
    else:
        command = Abandon(queue, attempts, partial=True)
    answer = await call.ask(command)
    assert isinstance(answer, Settled)
    return answer.results or ["settled"] * len(attempts)


async def renew_all(call: Call, queue: str, attempts: Sequence[Attempt], lock_ms: int) -> bool:
    """Whether all of them were held, and are for so long from now on."""
    try:
        await call.ask(Renew(queue, attempts, lock_ms=lock_ms))
    except (LockLost, MessageNotFound):
        return False
    return True
