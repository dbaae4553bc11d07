"""Waiting on behalf of somebody who may go away meanwhile, as the client of a long poll may."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from posthouse.broker.access import BROKER, Principal
from posthouse.broker.engine import Engine
from posthouse.core.commands import (
    AcceptSession,
    Answer,
    Complete,
    Delivery,
    Detach,
    Granted,
    Receive,
    Received,
    Release,
    ReleaseSession,
    Send,
)
from posthouse.core.errors import Refused
from posthouse.store.errors import StoreError

Composed = TypeVar("Composed")


async def until_gone(
    engine: Engine,
    principal: Principal,
    namespace: str,
    command: Receive | AcceptSession | Send,
    wait_ms: int,
    gone: Callable[[], Coroutine[Any, Any, None]],
) -> Answer:
    """Asks a command that may wait, and gives up when the time is over or the client has gone.

    The wait is in real time: a namespace's clock may stand still. `gone` returns when the client
    has gone away; its messages go back then. Raises Refused, StoreError, or ConnectionResetError.
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


async def take(
    engine: Engine,
    principal: Principal,
    namespace: str,
    command: Receive,
    wait_ms: int,
    gone: Callable[[], Coroutine[Any, Any, None]],
    compose: Callable[[Delivery], Composed],
) -> Composed | None:
    """Receives a message and removes it, with what `compose` makes of it; None where none comes.

    The message is locked first, and completed when its answer is composed: in the same frame, where
    it was durable already. Where `compose` raises something, or the client has gone away, it goes
    back and is not counted. Raises that, Refused, StoreError, or ConnectionResetError.
    """
    assert not command.delete
    taken: asyncio.Future[Composed | None] = asyncio.get_running_loop().create_future()
    leaving = asyncio.ensure_future(gone()) if wait_ms else None

    def received(answer: Answer | Refused | StoreError) -> None:
        if isinstance(answer, Refused | StoreError):
            _tell(taken, answer)
            return
        assert isinstance(answer, Received)
        if not answer.deliveries:
            _tell(taken, None)
            return
        [delivery] = answer.deliveries
        try:
            if taken.done() or (leaving is not None and leaving.done()):
                raise ConnectionResetError  # noqa: TRY301 (it goes back, whatever the reason)
            composed = compose(msgspec.structs.replace(delivery, token=0, until_ms=0))
        except Exception as error:  # noqa: BLE001 (for who waits for it)
            back = Release(command.queue, [delivery.token])
            engine.submit(BROKER, namespace, back, lambda _: None)
            _tell(taken, error)
            return
        complete = Complete(command.queue, [delivery.token])

        def completed(settled: Answer | Refused | StoreError) -> None:
            failed = isinstance(settled, Refused | StoreError)
            _tell(taken, settled if failed else composed)

        engine.submit(BROKER, namespace, complete, completed)

    engine.submit(principal, namespace, command, received)
    try:
        if leaving is not None:
            await asyncio.wait(
                (taken, leaving), timeout=wait_ms / 1000 + 1, return_when=asyncio.FIRST_COMPLETED
            )
            engine.give_up(command.receiver)
        return await taken
    except asyncio.CancelledError:
        engine.submit(BROKER, namespace, Detach(command.receiver), lambda _: None)
        raise
    finally:
        if leaving is not None:
            leaving.cancel()


def _tell(waits: "asyncio.Future[Any]", what: object) -> None:
    """Sets the result or the exception, unless the waiter was cancelled."""
    if waits.done():
        return
    if isinstance(what, Exception):
        waits.set_exception(what)
    else:
        waits.set_result(what)
