"""Batches: the shape that all of them must have, and the entries that fail alone."""

import re
from collections.abc import Sequence
from typing import Protocol, TypeVar

from posthouse.dialects.sqs.errors import BAD_ID, EMPTY, SAME_ID, TOO_MANY, Failed
from posthouse.dialects.sqs.shapes import BatchResultErrorEntry

ENTRIES_MAX = 10
_ID = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)


class Entry(Protocol):
    id: str | None


E = TypeVar("E", bound=Entry)


def checked(entries: Sequence[E] | None, name: str) -> Sequence[E]:
    """Raises Failed where the batch as a whole is not one."""
    if not entries:
        raise Failed(EMPTY, f"There should be at least one {name} in the request.")
    if len(entries) > ENTRIES_MAX:
        raise Failed(
            TOO_MANY,
            f"Maximum number of entries per request are {ENTRIES_MAX}. You have"
            f" sent {len(entries)}.",
        )
    seen: set[str] = set()
    for entry in entries:
        if not entry.id or not _ID.fullmatch(entry.id):
            raise Failed(
                BAD_ID,
                "A batch entry id can only contain alphanumeric characters, hyphens"
                " and underscores. It can be at most 80 letters long.",
            )
    for entry in entries:
        if entry.id in seen:
            raise Failed(SAME_ID, f"Id {entry.id} repeated.")
        seen.add(entry.id or "")
    return entries


def failure(id: str, failed: Failed) -> BatchResultErrorEntry:
    """An entry that failed alone."""
    kind = failed.kind
    return BatchResultErrorEntry(id, kind.fault == "Sender", kind.code, failed.text)
