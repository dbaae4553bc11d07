"""Who may do what. The engine asks once for every command; the right it needs is on its class."""

from typing import Protocol

import msgspec

from posthouse.core.commands import Command
from posthouse.core.namespaces import SpaceCommand


class Principal(msgspec.Struct, frozen=True, gc=False):
    """Somebody whose credentials were checked."""

    name: str


BROKER = Principal("$broker")  # Posthouse itself, on its owner's behalf


class Access(Protocol):
    def check(self, principal: Principal, namespace: str, command: Command | SpaceCommand) -> None:
        """Raises Unauthorized."""


class Open:
    """Everybody may do everything: for a broker inside a test, or behind another's gate."""

    def check(self, principal: Principal, namespace: str, command: Command | SpaceCommand) -> None:
        pass
