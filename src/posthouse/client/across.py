"""A client as it is used from another loop: whatever is asked of it is done where it lives."""

import inspect
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, cast

from posthouse.client.client import QueueClient, SessionClient, Transaction
from posthouse.client.home import Home
from posthouse.client.names import SessionId


def across(client: QueueClient, home: Home) -> QueueClient:
    """For a worker's handlers and hooks. It is the worker that opens and closes it."""
    return cast(QueueClient, _Across(client, home))


class _Across:
    def __init__(self, twin: Any, home: Home) -> None:
        self._twin = twin
        self._home = home

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._twin, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            done = found(*args, **kwargs)
            return self._there(done) if inspect.iscoroutine(done) else self._near(done)

        return call

    async def _there(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._near(await self._home.call(work))

    def _near(self, done: Any) -> Any:
        """What lives there, too: receivers, sessions, transactions."""
        if isinstance(done, AbstractAsyncContextManager | Transaction):
            return _EnteredAcross(done, self._home)
        return done

    async def close(self) -> None:
        raise TypeError("The worker closes its client.")


class _EnteredAcross(_Across):
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


class SessionAcross:
    """The session of which a message is handled. It is the worker that receives from it."""

    def __init__(self, twin: SessionClient, home: Home) -> None:
        self._twin = twin
        self._home = home

    @property
    def session_id(self) -> SessionId:
        return self._twin.session_id

    @property
    def session_expires_at(self) -> datetime:
        return self._twin.session_expires_at

    async def get_state(self) -> bytes | None:
        return await self._home.call(self._twin.get_state())

    async def set_state(self, state: bytes | None) -> None:
        await self._home.call(self._twin.set_state(state))
