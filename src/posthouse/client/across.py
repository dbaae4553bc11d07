"""A client as it is used from another loop: each method is done where the client lives.

Nothing is written twice, as in `sync`.
"""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import datetime
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from posthouse.client.client import QueueClient, SessionClient, Transaction
from posthouse.client.figures import Figures
from posthouse.client.home import Home
from posthouse.client.names import SessionId
from posthouse.client.provider import Capabilities, ProviderType

P = ParamSpec("P")
T = TypeVar("T")
Twin = TypeVar("Twin")


class _Across:
    def __init__(self, twin: Any, home: Home) -> None:
        self._twin = twin
        self._home = home


def _there(
    method: Callable[Concatenate[Twin, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        home: Home = self._home
        return await home.call(method(self._twin, *args, **kwargs))

    return call


class TransactionAcross(_Across):
    send_message = _there(Transaction.send_message)
    send_messages = _there(Transaction.send_messages)
    complete_message = _there(Transaction.complete_message)
    abandon_message = _there(Transaction.abandon_message)
    defer_message = _there(Transaction.defer_message)
    dead_letter_message = _there(Transaction.dead_letter_message)


class SessionAcross(_Across):
    """The session of which a message is handled. It is the worker that receives from it."""

    _twin: SessionClient

    get_state = _there(SessionClient.get_state)
    set_state = _there(SessionClient.set_state)

    @property
    def session_id(self) -> SessionId:
        return self._twin.session_id

    @property
    def session_expires_at(self) -> datetime:
        return self._twin.session_expires_at


class ClientAcross(_Across):
    """`QueueClient` for a worker's handlers and hooks."""

    _twin: QueueClient

    send_message = _there(QueueClient.send_message)
    send_messages = _there(QueueClient.send_messages)
    schedule_message = _there(QueueClient.schedule_message)
    schedule_messages = _there(QueueClient.schedule_messages)
    cancel_scheduled_message = _there(QueueClient.cancel_scheduled_message)
    receive_message = _there(QueueClient.receive_message)
    receive_messages = _there(QueueClient.receive_messages)
    receive_deferred_messages = _there(QueueClient.receive_deferred_messages)
    peek_messages = _there(QueueClient.peek_messages)
    complete_message = _there(QueueClient.complete_message)
    abandon_message = _there(QueueClient.abandon_message)
    defer_message = _there(QueueClient.defer_message)
    dead_letter_message = _there(QueueClient.dead_letter_message)
    resubmit_messages = _there(QueueClient.resubmit_messages)

    @property
    def provider_type(self) -> ProviderType:
        return self._twin.provider_type

    @property
    def capabilities(self) -> Capabilities:
        return self._twin.capabilities

    @property
    def figures(self) -> Figures:
        return self._twin.figures

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[TransactionAcross]:
        twin = self._twin.transaction()
        begun = await self._home.call(_enter(twin))
        try:
            yield TransactionAcross(begun, self._home)
        except BaseException as error:
            await self._home.call(_leave(twin, error))
            raise
        await self._home.call(_leave(twin, None))


async def _enter(twin: Any) -> Transaction:
    begun: Transaction = await twin.__aenter__()
    return begun


async def _leave(twin: Any, error: BaseException | None) -> None:
    trace = None if error is None else error.__traceback__
    await twin.__aexit__(None if error is None else type(error), error, trace)
