"""The shape of the sources: how large classes are, and imports that go in a circle."""

import ast
from collections.abc import Iterator

from tests.house.tree import Module, classes, modules

ATTRIBUTES_MAX = 20


def large_classes(given: tuple[Module, ...] | None = None) -> dict[str, int]:
    """How many attributes each class has that has more than ATTRIBUTES_MAX, by `path:Class`."""
    counts = {
        f"{module.path}:{each.name}": len(attributes(each))
        for module in given or modules()
        for each in classes(module.tree)
    }
    return {name: count for name, count in sorted(counts.items()) if count > ATTRIBUTES_MAX}


def attributes(found: ast.ClassDef) -> set[str]:
    """What its methods assign to `self`, and its annotated fields."""
    names = {
        each.target.id
        for each in found.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        and "ClassVar" not in ast.dump(each.annotation)
    }  # fmt: skip
    for method in found.body:
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
            names |= set(_assigned(method))
    return names


def _assigned(method: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for node in ast.walk(method):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        ):
            yield node.attr


def imports(given: tuple[Module, ...] | None = None) -> dict[str, set[str]]:
    """Which modules of ours each imports, also in functions; not for type checkers alone."""
    known = given or modules()
    names = {each.name for each in known}
    found: dict[str, set[str]] = {}
    for module in known:
        found[module.name] = {
            name for name in _imported(module, names) if name in names and name != module.name
        }
    return found


def _imported(module: Module, names: set[str]) -> Iterator[str]:
    unread = {
        node
        for test in ast.walk(module.tree)
        if isinstance(test, ast.If) and "TYPE_CHECKING" in ast.dump(test.test)
        for statement in test.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(module.tree):
        if node in unread:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            base = _base(module, node)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner in names else base


def _base(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    words = module.name.split(".")
    words = words[: len(words) - node.level + module.is_package]
    return ".".join([*words, *([node.module] if node.module else [])])


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import each other, be it by way of others (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return sorted(found)
