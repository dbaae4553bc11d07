"""The audit log: who changed an entity or an account, and who was refused."""

import logging

from posthouse.broker.access import Principal
from posthouse.core.commands import Command
from posthouse.core.errors import Unauthorized
from posthouse.core.namespaces import SpaceCommand

_audit = logging.getLogger("posthouse.audit")


def note_change(principal: Principal, namespace: str, command: Command | SpaceCommand) -> None:
    """Logs a command that changed something other than messages."""
    _audit.info(
        "%s: %s %s/%s", principal.name, type(command).__name__, namespace, _subject(command),
        extra=_fields(principal.name, namespace, command, "access.changed"),
    )  # fmt: skip


def note_refusal(refused: Unauthorized, command: Command | SpaceCommand) -> None:
    _audit.warning(
        "%s was refused: %s %s/%s", refused.principal, type(command).__name__, refused.namespace,
        _subject(command),
        extra=_fields(refused.principal, refused.namespace, command, "access.refused"),
    )  # fmt: skip


def _fields(
    principal: str, namespace: str, command: Command | SpaceCommand, event: str
) -> dict[str, str]:
    return {
        "event": event,
        "principal": principal,
        "namespace": namespace,
        "command": type(command).__name__,
        "subject": _subject(command),
    }


def _subject(command: Command | SpaceCommand) -> str:
    return str(getattr(command, "queue", None) or getattr(command, "name", ""))
