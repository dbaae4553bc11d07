"""The sources as syntax trees."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "posthouse"


class Module(NamedTuple):
    name: str  # posthouse.core.model
    path: str  # core/model.py
    tree: ast.Module
    is_package: bool

    @property
    def room(self) -> str:
        return self.path.partition("/")[0]


class Place(NamedTuple):
    """A line that a check found."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.what}"


@cache
def modules() -> tuple[Module, ...]:
    return tuple(_parsed(path) for path in sorted(SOURCES.rglob("*.py")))


def _parsed(path: Path) -> Module:
    inside = path.relative_to(SOURCES)
    words = ["posthouse", *inside.with_suffix("").parts]
    is_package = words[-1] == "__init__"
    name = ".".join(words[:-1] if is_package else words)
    return Module(name, str(inside), ast.parse(path.read_text()), is_package)


def dotted(node: ast.expr) -> list[str]:
    """The words of `a.b().c`; what is no name is an empty word."""
    if isinstance(node, ast.Attribute):
        return [*dotted(node.value), node.attr]
    if isinstance(node, ast.Call):
        return dotted(node.func)
    return [node.id if isinstance(node, ast.Name) else ""]


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def classes(tree: ast.AST) -> Iterator[ast.ClassDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node
