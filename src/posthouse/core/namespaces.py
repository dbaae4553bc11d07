"""Namespaces: isolated worlds in one broker.

Each is a `State` of its own; no command sees more than one, and their lock tokens differ. This
module is to namespaces what `decide` and `evolve` are to one of them.
"""

from bisect import insort
from collections.abc import Sequence
from typing import ClassVar, TypeAlias

import msgspec

from posthouse.core.checks import check_count, check_name, check_start
from posthouse.core.commands import PAGE_MAX, Notice, Right
from posthouse.core.errors import AlreadyExists, NotFound
from posthouse.core.evolve import evolve as evolve_state
from posthouse.core.model import State, page
from posthouse.core.plan import Delivered
from posthouse.core.records import NamespaceCreated, NamespaceDeleted, OfNamespaces, Started


class Namespaces(msgspec.Struct):
    """All the worlds of one broker."""

    states: dict[str, State] = {}
    names: list[str] = []  # sorted


class CreateNamespace(msgspec.Struct, frozen=True, gc=False):
    """`epoch` and `salt` are those of the running start, as in `Start`; an engine fills them in."""

    right: ClassVar[Right] = "manage"
    name: str
    epoch: int = 1
    salt: int = 0


class DeleteNamespace(msgspec.Struct, frozen=True, gc=False):
    right: ClassVar[Right] = "manage"
    name: str


class ListNamespaces(msgspec.Struct, frozen=True, gc=False):
    """The answer is a page of names; go on after its last."""

    right: ClassVar[Right] = "manage"
    after: str = ""
    limit: int = 100


SpaceCommand: TypeAlias = CreateNamespace | DeleteNamespace | ListNamespaces


class SpaceOutcome(msgspec.Struct, frozen=True):
    """As `Outcome`, for namespaces."""

    records: list[OfNamespaces]
    answer: list[str] | None = None
    deliveries: Sequence[Delivered] = ()


def decide(spaces: Namespaces, command: SpaceCommand, now_ms: int) -> SpaceOutcome:
    """What should happen; changes nothing. Raises Refused."""
    if isinstance(command, CreateNamespace):
        check_name("namespace", command.name)
        check_start(command.epoch, command.salt)
        for other in spaces.names:
            if other.casefold() == command.name.casefold():
                raise AlreadyExists("namespace", other)
        record = NamespaceCreated(command.name, now_ms, command.epoch, command.salt)
        return SpaceOutcome([record])
    if isinstance(command, DeleteNamespace):
        if command.name not in spaces.states:
            raise NotFound("namespace", command.name)
        receivers = spaces.states[command.name].receivers
        notices = [Notice(number, "deleted") for number in receivers]
        return SpaceOutcome([NamespaceDeleted(command.name)], None, notices)
    check_count("limit", command.limit, 1, PAGE_MAX)
    return SpaceOutcome([], page(spaces.names, command.after, command.limit))


def evolve(spaces: Namespaces, record: OfNamespaces, position: int) -> None:
    """Makes it so; cannot fail."""
    if isinstance(record, NamespaceCreated):
        state = spaces.states[record.name] = State(record.name, position)
        insort(spaces.names, record.name)
        evolve_state(state, Started(record.epoch, record.salt, record.time_ms), position)
    elif isinstance(record, NamespaceDeleted):
        del spaces.states[record.name]
        spaces.names.remove(record.name)
