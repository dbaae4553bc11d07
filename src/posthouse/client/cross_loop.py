"""A proxy for a client that is used from another loop: its calls run on the client's own loop."""

import inspect
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, cast

from posthouse.client.admin import Admin
from posthouse.client.client import QueueClient, SessionClient, Transaction
from posthouse.client.loop_thread import LoopThread
from posthouse.client.names import SessionId


def cross_loop(client: QueueClient, loop_thread: LoopThread) -> QueueClient:
    """Wraps a client for a worker's handlers and hooks. The worker opens and closes it."""
    return cast(QueueClient, _CrossLoop(client, loop_thread))


class _CrossLoop:
    def __init__(self, twin: Any, loop_thread: LoopThread) -> None:
        self._twin = twin
        self._loop_thread = loop_thread

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._twin, name)
        if isinstance(found, Admin):
            return _CrossLoop(found, self._loop_thread)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            done = found(*args, **kwargs)
            return self._there(done) if inspect.iscoroutine(done) else self._near(done)

        return call

    async def _there(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._near(await self._loop_thread.call(work))

    def _near(self, done: Any) -> Any:
        """Wraps a receiver, session or transaction, which lives on the other loop, too."""
        if isinstance(done, AbstractAsyncContextManager | Transaction):
            return _EnteredCrossLoop(done, self._loop_thread)
        return done

    async def close(self) -> None:
        raise TypeError("The worker closes its client.")


class _EnteredCrossLoop(_CrossLoop):
    async def __aenter__(self) -> Any:
        return await self._there(self._twin.__aenter__())

    async def __aexit__(self, *error: Any) -> Any:
        return await self._there(self._twin.__aexit__(*error))

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        return await self._there(self._twin.__anext__())

    async def close(self) -> None:
        await self._there(self._twin.close())


class CrossLoopSession:
    """The session of which a message is handled. It is the worker that receives from it."""

    def __init__(self, twin: SessionClient, loop_thread: LoopThread) -> None:
        self._twin = twin
        self._loop_thread = loop_thread

    @property
    def session_id(self) -> SessionId:
        return self._twin.session_id

    @property
    def session_expires_at(self) -> datetime:
        return self._twin.session_expires_at

    async def get_state(self) -> bytes | None:
        return await self._loop_thread.call(self._twin.get_state())

    async def set_state(self, state: bytes | None) -> None:
        await self._loop_thread.call(self._twin.set_state(state))
