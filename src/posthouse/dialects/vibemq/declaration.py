"""VibeMQ, as the server knows it."""

from collections.abc import Awaitable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from posthouse.core.errors import Refused
from posthouse.dialects.dialect import (
    TLS_TEXT,
    CannotStart,
    Dialect,
    Host,
    HttpProfile,
    Reached,
    Wire,
)
from posthouse.dialects.settings import BadSetting, as_text, count, setting, some_size
from posthouse.store.errors import StoreError

if TYPE_CHECKING:
    from posthouse.dialects.connections import ConnectionInfo
    from posthouse.dialects.http import Answer, Request
    from posthouse.dialects.vibemq.peer import Peer, Peers
    from posthouse.dialects.vibemq.users import Users
    from posthouse.dialects.vibemq.web import Web

PORT = 2925


@dataclass(frozen=True)
class VibemqSettings:
    vibemq_message_size: int = setting(
        16 << 20,
        some_size,
        "of one payload that a VibeMQ client publishes, not compressed",
        "SIZE",
    )
    vibemq_window: int = setting(
        100, count(1, 10_000), "messages that a VibeMQ subscriber is given before it acknowledges",
        "N",
    )  # fmt: skip
    vibemq_keep_alive: int = setting(
        30, count(1, 86_400), "how often a VibeMQ client is to be heard of; after three times as"
        " long it is closed", "SECONDS",
    )  # fmt: skip
    vibemq_connection_rate: int = setting(
        0, count(0, 1_000_000), "VibeMQ connections from one address in a minute; 0: any number",
        "N",
    )  # fmt: skip
    vibemq_message_rate: int = setting(
        0, count(0, 1_000_000), "requests on one VibeMQ connection in a second; 0: any number", "N"
    )
    vibemq_token: str | None = setting(
        None, as_text, "what VibeMQ clients before 1.8 may all come with", secret=True
    )
    vibemq_superuser: str | None = setting(
        None, as_text, "a VibeMQ user that is made at the start where there is none of that name",
        "NAME",
    )  # fmt: skip
    vibemq_superuser_password: str | None = setting(None, as_text, "its password", secret=True)


def _check(settings: VibemqSettings, _: bool) -> None:
    """Raises BadSetting."""
    if (settings.vibemq_superuser is None) != (settings.vibemq_superuser_password is None):
        raise BadSetting("vibemq_superuser and vibemq_superuser_password belong together.")


class Vibemq:
    """The state that all connections and requests share. Each part is made on first use."""

    def __init__(self, host: Host, settings: VibemqSettings) -> None:
        self._host = host
        self._settings = settings

    @cached_property
    def _users(self) -> "Users":
        from posthouse.dialects.vibemq.users import Settings, Users

        host, given = self._host, self._settings
        settings = Settings(
            host.namespace, given.vibemq_message_size, given.vibemq_window,
            given.vibemq_keep_alive, given.vibemq_token or "", given.vibemq_connection_rate,
            given.vibemq_message_rate, host.dev,
        )  # fmt: skip
        return Users(host, host.guard, settings)

    def make_peer(self, info: "ConnectionInfo") -> "Peer":
        return self._peers.make(info)

    @cached_property
    def _peers(self) -> "Peers":
        from posthouse.dialects.vibemq.peer import Peers

        return Peers(self._users)

    def answer(self, request: "Request") -> "Awaitable[Answer]":
        return self._web.answer(request)

    @cached_property
    def _web(self) -> "Web":
        from posthouse.dialects.vibemq.web import Web

        return Web(self._peers)

    async def start(self) -> None:
        """Makes the superuser, where one is set. Raises CannotStart."""
        name, password = (
            self._settings.vibemq_superuser, self._settings.vibemq_superuser_password
        )  # fmt: skip
        if name is not None and password is not None:
            try:
                await self._users.make_first(name, password)
            except (Refused, StoreError, ValueError) as error:
                raise CannotStart(f"There is no VibeMQ superuser: {error}") from None


def is_vibemq(data: bytes) -> bool | None:
    """Its frames begin with their length, which is below 16 MiB."""
    return data[:1] == b"\0"


def _demand_tls(data: bytes) -> bytes:
    from posthouse.dialects.vibemq.answers import AUTH_REQUIRED
    from posthouse.dialects.vibemq.codec import refuse

    return refuse(data, AUTH_REQUIRED, TLS_TEXT)


def _welcome(reached: Reached) -> tuple[str, str]:
    return "VibeMQ", f"{reached.host}:{reached.port(PORT)}"


declaration = Dialect(
    "vibemq",
    VibemqSettings,
    Vibemq,
    Wire("vibemq", is_vibemq, Vibemq.make_peer, _demand_tls),
    profile=HttpProfile("vibemq-http", 12925, "VibeMQ's API over HTTP", Vibemq.answer),
    ports=(PORT,),
    welcome=_welcome,
    warm=("posthouse.dialects.vibemq.peer",),
    start=Vibemq.start,
    check=_check,
)
