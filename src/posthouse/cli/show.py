"""Tables, sizes, progress and safe text for a terminal."""

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from unicodedata import category, combining, east_asian_width

_NAME_CELLS_MIN = 12  # of the first column, before others are left out


def table(rows: Sequence[Sequence[object]], heads: Sequence[str]) -> str:
    """Columns of text; what is a number stands to the right."""
    texts = [[_cell(each) for each in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *texts, strict=True)]
    numeric = [all(isinstance(row[at], int | float) for row in rows) for at in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        parts = [
            f"{cell:>{width}}" if right and rows else f"{cell:<{width}}"
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        ]
        return "  ".join(parts).rstrip()

    return "\n".join([bold(line([head.upper() for head in heads])), *map(line, texts)])


def fitted_table(rows: Sequence[Sequence[object]], heads: Sequence[str], columns: int) -> str:
    """A table in so many columns: first names are cut, then columns at the right are left out."""
    texts = [[_cell(each) for each in row] for row in rows]
    widths = [max(map(cells, column)) for column in zip(heads, *texts, strict=True)]
    shown, left = 1, columns - min(widths[0], _NAME_CELLS_MIN)
    while shown < len(heads) and (left := left - 2 - widths[shown]) >= 0:
        shown += 1
    room = columns - sum(width + 2 for width in widths[1:shown])
    cut = [(cut_to(row[0], min(room, widths[0])), *row[1:shown]) for row in texts]

    def line(row: Sequence[str]) -> str:
        first = row[0] + " " * (min(room, widths[0]) - cells(row[0]))
        rest = (f"{text:>{width}}" for text, width in zip(row[1:], widths[1:], strict=False))
        return "  ".join((first, *rest)).rstrip()

    head = [cut_to(heads[0].upper(), room), *(each.upper() for each in heads[1:shown])]
    return "\n".join([bold(line(head)), *map(line, cut)])


def cells(text: str) -> int:
    """How many columns of a terminal it takes: some characters take two, or none."""
    taking = (c for c in text if not combining(c) and category(c) not in ("Mn", "Me", "Cf"))
    return sum(2 if east_asian_width(c) in "WF" else 1 for c in taking)


def cut_to(text: str, columns: int) -> str:
    """The text in so many columns, with dots for what was left out of its middle.

    Long names of queues often begin alike, and differ at their ends.
    """
    if cells(text) <= columns:
        return text
    dots = ".." if columns > 4 else ""
    room = columns - len(dots)
    head, tail = text, text if dots else ""
    while cells(head) > (room // 2 if dots else room):
        head = head[:-1]
    while cells(head) + cells(tail) > room:
        tail = tail[1:]
    return head + dots + tail


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return printable(str(value))


def printable(text: str) -> str:
    """Escapes control characters, so that text cannot move the cursor or colour the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if is_rich() else text


def is_rich() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def moment(unix_ms: int | None) -> str:
    if not unix_ms:
        return "-"
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(" ", "milliseconds")[:-6] + "Z"


def ago(ms: int | None) -> str:
    if ms is None:
        return "-"
    seconds = max(0, ms) / 1000
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def size(count: int) -> str:
    value = float(count)
    for unit in ("B", "K", "M", "G"):
        if value < 1024:
            return f"{value:.0f}{unit}"
        value /= 1024
    return f"{value:.1f}T"


class Progress:
    """The progress of something long, shown on a terminal only."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = False

    def show(self, done: int, whole: int | None = None) -> None:
        if sys.stderr.isatty():
            part = f" of {whole:,} ({100 * done // max(1, whole)} %)" if whole else ""
            sys.stderr.write(f"\r\033[K{self._what}: {done:,}{part}")
            sys.stderr.flush()
            self._shown = True

    def end(self) -> None:
        if self._shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
