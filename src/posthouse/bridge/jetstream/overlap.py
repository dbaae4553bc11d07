"""Which subjects of two streams are the same: the rules of a server, told before it is asked."""

from collections.abc import Iterable, Mapping, Sequence


def overlaps(one: str, other: str) -> bool:
    """Says whether some subject matches both; `*` is one token, `>` one or more."""
    ones, others = one.split("."), other.split(".")
    for mine, its in zip(ones, others, strict=False):
        if ">" in (mine, its):
            return True
        if mine != its and "*" not in (mine, its):
            return False
    return len(ones) == len(others)


def covers(wide: str, narrow: str) -> bool:
    """Says whether the first matches all that the second does."""
    wides, narrows = wide.split("."), narrow.split(".")
    for at, part in enumerate(wides):
        if part == ">":
            return len(narrows) > at
        if at >= len(narrows) or narrows[at] == ">":
            return False
        if part != "*" and part != narrows[at]:
            return False
    return len(wides) == len(narrows)


def conflict(
    stream: str, subjects: Iterable[str], there: Mapping[str, Sequence[str]]
) -> tuple[str, str, str] | None:
    """Returns the first subject that another stream takes, that stream, and its subject."""
    for subject in subjects:
        for name, taken in there.items():
            if name == stream:
                continue
            for other in taken:
                if overlaps(subject, other):
                    return subject, name, other
    return None


def told(subject: str, stream: str, taken: str) -> str:
    """Says in words what takes a subject, and what to do."""
    return (
        f"{subject} is taken by stream {stream} ({taken}). Take it out of that stream, name that"
        " stream as the bridge's own, or choose other names."
    )
