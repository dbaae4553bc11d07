"""What a value must be like, in a sentence: for who sent JSON that does not fit.

The decoder says where a value is and what type it is not. Its words are those of programmers, so
the sentence is made of the type that is expected there.
"""

import re
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import inspect

_AT = re.compile(r" - at `(?:key in )?\$(.*)`$", re.DOTALL)
_FIELD = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_UNITS = {"_ms": ("milliseconds", 60_000), "_bytes": ("bytes", 1_048_576)}
_TOKEN = "^[0-9a-f]{32}$"  # noqa: S105 (it is what one looks like)
_NAME_CHARS = 100  # of a name that somebody sent, which are told again


def sentence(error: msgspec.DecodeError | UnicodeDecodeError | RecursionError, kind: Any) -> str:
    """What is expected of a request whose JSON has the type `kind`."""
    if not isinstance(error, msgspec.ValidationError):
        return 'The body must be JSON, as in {"name": "value"}.'
    text = str(error)
    at = _AT.search(text)
    path = "" if at is None else at[1]
    info, name = _find(_type_info(kind), path)
    where = path.removeprefix(".")
    field = _FIELD.match(text if at is None else text[: at.start()])
    if field is None:
        return f"{where or 'The body'} {_must_be(info, name)}."
    fields = _fields(info)
    inside = f" in {where}" if where else ""
    if field[1] == "missing required":
        found = fields.get(field[2])
        more = "" if found is None else f"; it {_must_be(found.type, field[2], found.default)}"
        return f"There must be a {field[2]}{inside}{more}."
    return _unknown(field[2][:_NAME_CHARS], inside, fields)


@lru_cache(maxsize=256)
def _type_info(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def expectation(kind: Any, name: str) -> str:
    """`must be a whole number that is 0 or more, as in 1`: of a parameter."""
    return _must_be(_type_info(kind), name)


def _must_be(info: inspect.Type | None, name: str, default: object = None) -> str:
    """`must be a whole number of milliseconds, as in 60000`."""
    if info is None:
        return "has a value that is not possible here"
    said, example = _expected(info, name)
    if isinstance(default, int) and not isinstance(default, bool):
        example = str(default)
    return f"must be {said}" + (f", as in {example}" if example else "")


def _unknown(name: str, inside: str, fields: dict[str, inspect.Field]) -> str:
    near = get_close_matches(name, fields, 1, 0.5)
    if not near:
        return f"There is no {name!r}{inside}; there are {', '.join(sorted(fields))}."
    expected = _must_be(fields[near[0]].type, near[0], fields[near[0]].default)
    return f"There is no {name!r}{inside}; did you mean {near[0]}? It {expected}."


def _find(info: inspect.Type | None, path: str) -> tuple[inspect.Type | None, str]:
    """The type that is expected there, and the name of the field."""
    name = ""
    for step in _STEP.finditer(path):
        if step[1] is None:
            info = _item(info)
        elif step[1] in (fields := _fields(info)):
            info, name = fields[step[1]].type, step[1]
        else:
            return None, step[1]
    return info, name


def _members(info: inspect.Type | None) -> list[inspect.Type]:
    if isinstance(info, inspect.UnionType):
        return list(info.types)
    return [] if info is None else [info]


def _fields(info: inspect.Type | None) -> dict[str, inspect.Field]:
    """By name; of a union, those of all its members."""
    return {
        field.encode_name: field
        for member in _members(info)
        if isinstance(member, inspect.StructType)
        for field in member.fields
    }


def _item(info: inspect.Type | None) -> inspect.Type | None:
    for member in _members(info):
        if isinstance(member, inspect.ListType | inspect.VarTupleType):
            return member.item_type
        if isinstance(member, inspect.DictType):
            return member.value_type
    return None


def _expected(info: inspect.Type, name: str) -> tuple[str, str]:
    """What it must be, and an example."""
    match info:
        case inspect.IntType():
            unit, likely = next(
                (unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), ("", 1)
            )
            said = "a whole number" + (f" of {unit}" if unit else "")
            return said + _bounds(info), str(max(likely, info.ge or 0))
        case inspect.FloatType():
            return "a number", "1.5"
        case inspect.BoolType():
            return "true or false", ""
        case inspect.NoneType():
            return "null", ""
        case inspect.StrType(pattern=pattern):
            return ("32 hexadecimal digits" if pattern == _TOKEN else "text"), ""
        case inspect.LiteralType(values=values):
            return f"one of {', '.join(map(str, values))}", ""
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            said, example = _expected(item, name)
            return f"a list{_length(info)}, each {said}", f"[{example}]" if example else ""
        case inspect.UnionType(types=types):
            members = [_expected(member, name) for member in types]
            said = " or ".join(dict.fromkeys(said for said, _ in members))
            return said, next((example for _, example in members if example), "")
        case inspect.DictType() | inspect.StructType():
            return "an object", '{"name": "value"}'
        case _:
            return "a value", ""


def _length(info: inspect.ListType | inspect.VarTupleType) -> str:
    if info.min_length and info.max_length is not None:
        return f" of {info.min_length} to {info.max_length}"
    if info.min_length:
        return f" of {info.min_length} or more"
    return f" of {info.max_length} or fewer" if info.max_length is not None else ""


def _bounds(info: inspect.IntType) -> str:
    if info.ge is not None and info.le is not None:
        return f" from {info.ge} to {info.le}"
    if info.ge is not None:
        return f" that is {info.ge} or more"
    return f" that is {info.le} or less" if info.le is not None else ""
