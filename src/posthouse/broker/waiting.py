"""Waiting on behalf of somebody who may go away meanwhile, as the client of a long poll may."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from posthouse.broker.access import BROKER, Principal
from posthouse.broker.engine import Engine
from posthouse.core.commands import (
    AcceptSession,
    Answer,
    Granted,
    Receive,
    Received,
    Release,
    ReleaseSession,
    Send,
)


async def until_gone(
    engine: Engine,
    principal: Principal,
    namespace: str,
    command: Receive | AcceptSession | Send,
    wait_ms: int,
    gone: Callable[[], Coroutine[Any, Any, None]],
) -> Answer:
    """What was asked for, or nothing, in real time: a namespace's clock may stand still.

    `gone` returns when the client has gone away; what was for it goes back then. Raises Refused,
    StoreError, or ConnectionResetError.
    """
    asked = asyncio.ensure_future(engine.ask(principal, namespace, command))
    leaving = asyncio.ensure_future(gone())
    try:
        await asyncio.wait(
            (asked, leaving), timeout=wait_ms / 1000 + 1, return_when=asyncio.FIRST_COMPLETED
        )
        engine.give_up(command.sender if isinstance(command, Send) else command.receiver)
        answer = await asked
    finally:
        leaving.cancel()
    if leaving.done() and not leaving.cancelled():
        _give_back(engine, namespace, command, answer)
        raise ConnectionResetError
    return answer


def _give_back(
    engine: Engine, namespace: str, command: Receive | AcceptSession | Send, answer: Answer
) -> None:
    back: Release | ReleaseSession | None = None
    if isinstance(answer, Granted):
        back = ReleaseSession(command.queue, answer.token)
    elif isinstance(answer, Received) and answer.deliveries and answer.deliveries[0].token:
        session = command.session if isinstance(command, Receive) else 0
        tokens = [each.token for each in answer.deliveries]
        back = Release(command.queue, tokens, partial=True, session=session)
    if back is not None:
        engine.submit(BROKER, namespace, back, lambda _: None)  # giving back needs no right
