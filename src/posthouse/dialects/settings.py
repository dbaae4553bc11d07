"""Settings: fields of a frozen dataclass, each with its default, its reader and its help text.

The name of a field is the name of the setting: `pyqueue_lock` is `--pyqueue-lock` on the command
line, POSTHOUSE_PYQUEUE_LOCK in the environment and `pyqueue_lock` in a file. The server has such a
dataclass, and each dialect has one in its folder.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

_MANY = 1_000_000_000  # from where a limit is none that anybody reaches
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


@dataclass(frozen=True)
class Reader:
    """Reads a value of which it can be told what it may be. Calling it raises ValueError."""

    read: Callable[[object], Any]
    values: str  # that are possible
    show: Callable[[Any], str] = str  # a value as it would be written
    has_secrets: bool = False  # a value that is refused is not repeated

    def __call__(self, value: object) -> Any:
        return self.read(value)


class Setting(NamedTuple):
    """How one setting is read, and what it is for."""

    read: Callable[[object], Any]
    help: str
    metavar: str = ""  # what a flag takes, if anything; with ... it may be repeated
    secret: bool = False  # it has no flag, which others could see, and is not shown


class BadSetting(ValueError):
    """The value of a setting is not possible together with others; the text says why."""

    def __init__(self, text: str, name: str = "") -> None:
        super().__init__(text)
        self.name = name  # of the setting whose origin is to be told, if any


@dataclass(frozen=True)
class NoSettings:
    """The settings of a dialect that has none."""


def setting(
    default: Any, read: Callable[[object], Any], help: str, metavar: str = "", *,
    secret: bool = False,
) -> Any:  # fmt: skip
    """A field of a dataclass that is a setting."""
    return field(default=default, metadata={"setting": Setting(read, help, metavar, secret)})


def settings_of(kind: type[Any]) -> dict[str, Setting]:
    """The settings of a dataclass by their names, in their order."""
    return {
        each.name: each.metadata["setting"] for each in fields(kind) if "setting" in each.metadata
    }


# How a value is read, whether it comes as text or from YAML. Each raises ValueError.


def as_text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be text")
    return value


def as_path(value: object) -> Path:
    return Path(as_text(value)).expanduser()


def as_flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if not isinstance(value, str) or value.lower() not in words:
        raise ValueError("must be true or false")
    return words[value.lower()]


def count(least: int, most: int = 1 << 53) -> Callable[[object], int]:
    def read(value: object) -> int:
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return value

    return Reader(read, f"{least} to {most}" if most < _MANY else f"{least} or more")


def _scaled(units: Mapping[str, int], example: str, least: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        found = re.fullmatch(r"(\d{1,12})([a-z]?)", str(value).lower().strip())
        if isinstance(value, bool) or found is None or found[2] not in units:
            raise ValueError(f"must be a number with a unit, as in {example}")
        if (scaled := int(found[1]) * units[found[2]]) < least:
            raise ValueError(f"must be {least} or more")
        return scaled

    def show(value: int) -> str:
        unit = max(units, key=lambda unit: 0 if not value or value % units[unit] else units[unit])
        return f"{value // units[unit]}{unit.upper() if units is _UNITS else unit}"

    return Reader(read, f"as in {example}", show)


as_size = _scaled(_UNITS, "512M or 4G", 0)
some_size = _scaled(_UNITS, "512M or 4G", 4_096)
as_seconds = _scaled(_SECONDS, "30s, 12h or 7d", 0)
some_seconds = _scaled(_SECONDS, "30s, 12h or 7d", 1)


def secret(least: int, most: int) -> Callable[[object], str]:
    def read(value: object) -> str:
        if not isinstance(value, str) or not least <= len(value) <= most or value != value.strip():
            raise ValueError(f"must have {least} to {most} characters, and none around it is blank")
        return value

    return read


def one_of(*words: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return str(value)

    return Reader(read, ", ".join(words))


def several(read: Callable[[object], Any]) -> Callable[[object], tuple[Any, ...]]:
    def read_all(value: object) -> tuple[Any, ...]:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, list | tuple):
            items = [items]
        return tuple(read(item.strip() if isinstance(item, str) else item) for item in items)

    return Reader(
        read_all, getattr(read, "values", ""), lambda values: ", ".join(map(str, values)) or "none"
    )
