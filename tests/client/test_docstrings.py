"""Everything that `posthouse` offers says what it does, what it takes, and how it is used."""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import posthouse

TAKES_ANYTHING = {"self", "cls", "args", "kwargs"}


def members() -> Iterator[tuple[str, Any]]:
    """Every name of the package, and every public method and property of its classes."""
    for name in posthouse.__all__:
        found = getattr(posthouse, name)
        yield name, found
        if not inspect.isclass(found):
            continue
        for attribute, value in vars(found).items():
            if attribute.startswith("_") or not _is_ours(found, attribute):
                continue
            if isinstance(value, classmethod | staticmethod):
                value = value.__func__
            if inspect.isfunction(value) or isinstance(value, property):
                yield f"{name}.{attribute}", value


def _is_ours(kind: type[Any], name: str) -> bool:
    """A named tuple and a struct have methods that their makers wrote."""
    return not (issubclass(kind, tuple) and hasattr(tuple, name)) and name not in (
        "count", "index", "delay" if kind is posthouse.RetryPolicy else "",
    )  # fmt: skip


MEMBERS = dict(members())


def parameters(found: Any) -> set[str]:
    """The names that a caller may give; of an error, those that a handler of it reads."""
    if isinstance(found, property):
        return set()
    if inspect.isclass(found):
        if dataclasses.is_dataclass(found):
            return {each.name for each in dataclasses.fields(found)}
        if issubclass(found, msgspec.Struct):
            return {each for each in found.__struct_fields__ if each[0] != "_"}
        if hasattr(found, "_fields"):
            return set(found._fields)
        if issubclass(found, dict) or getattr(found, "__total__", None) is not None:
            return set(found.__annotations__)
        if found.__init__ is object.__init__ or issubclass(found, str):
            return set()
        if "__init__" not in vars(found):
            return set()
        found = found.__init__
    if not callable(found):
        return set()
    names = inspect.signature(found).parameters
    return {each for each in names if each not in TAKES_ANYTHING and not each.startswith("_")}


def examples(text: str) -> list[str]:
    """The programs below `Example:` in a docstring."""
    found = re.findall(r"^Example:\n((?: +.*\n?|\n(?= ))+)", inspect.cleandoc(text), re.M)
    return [textwrap.dedent(each) for each in found]


@pytest.mark.parametrize("name", [each for each in MEMBERS if each != "CallNext"])
def test_it_says_what_it_does(name: str) -> None:
    text = MEMBERS[name].__doc__
    assert text
    missing = {each for each in parameters(MEMBERS[name]) if f"`{each}`" not in text}
    assert not missing


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, found in MEMBERS.items()
        if name != "CallNext" and not isinstance(found, property)
    ],
)
def test_it_has_an_example_that_is_python(name: str) -> None:
    text = MEMBERS[name].__doc__
    assert text
    found = examples(text)
    assert found
    for example in found:
        compile(example, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
