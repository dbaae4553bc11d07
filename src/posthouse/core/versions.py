"""The version of the records: one number for all that a journal's payloads may hold.

Nodes of a cluster may be of several releases for a while. A node that reads a kind it does not know
cannot go on; one that skips a field it does not know goes on with another state than the leader's.
So a leader writes neither before every node knows it. The rule for whoever adds a kind or a field:
raise VERSION by one, and note here what needs it. docs/records.md says the same to users.

Due work writes only what the state calls for, and a state that calls for a newer kind was made by a
newer record: it is enough to refuse the commands that would write those.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from posthouse.core.model import QueueProperties
from posthouse.core.records import Completed, Copies, MessagesRestored, QueueRestored, Relocked

VERSION = 2  # the newest that this release reads and writes

# The kinds of records that came after version 1, each with its version.
KINDS: dict[type, int] = {Relocked: 2}
# The fields that came after version 1, of records and of what they hold, each with its version. A
# field that has its default says what its absence did, so it needs nothing.
FIELDS: dict[type, dict[str, int]] = {
    QueueProperties: {"late_settling": 2, "forward_dead_unchanged": 2, "max_locked": 2},
    Copies: {"same": 2},
    Completed: {"late": 2},
    QueueRestored: {"ids": 2, "turns": 2},
    MessagesRestored: {"firsts": 2},
}
# The words that came after version 1, of fields that were there before.
WORDS: dict[type, dict[str, dict[str, int]]] = {QueueProperties: {"grouping": {"run": 2}}}


def version_needed(records: Iterable[object]) -> int:
    """The least version that a node has to know to read all of these."""
    return max((_needed(each) for record in records for each in _structs(record)), default=1)


def _needed(found: msgspec.Struct) -> int:
    version = KINDS.get(type(found), 1)
    for name, since in FIELDS.get(type(found), {}).items():
        if since > version and getattr(found, name) != _default(type(found), name):
            version = since
    for name, words in WORDS.get(type(found), {}).items():
        version = max(version, words.get(getattr(found, name), 1))
    return version


def _default(kind: type[msgspec.Struct], name: str) -> Any:
    field = next(each for each in msgspec.structs.fields(kind) if each.name == name)
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _structs(found: object) -> Iterator[msgspec.Struct]:
    """It and all that it holds, as far as it is made of structs."""
    if isinstance(found, msgspec.Struct):
        yield found
        for name in found.__struct_fields__:
            yield from _structs(getattr(found, name))
    elif isinstance(found, list | tuple):
        for part in found:
            yield from _structs(part)
    elif isinstance(found, dict):
        for part in found.values():
            yield from _structs(part)
