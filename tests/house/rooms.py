"""What a room may not know of another: live state, the kinds of stores, the names of dialects."""

import ast
import re
from collections.abc import Iterator

from tests.house.tree import SOURCES, Module, Place, classes, dotted, functions, modules

# Frozen in all but name: answers of `ListSchedules` and `ListJobs` have copies of them.
_ANSWERS = frozenset(("Job", "Schedule"))
_ENGINES = frozenset(("engine", "_engine"))
_WORLDS = frozenset(("namespaces", "world", "spaces"))


def live_classes() -> frozenset[str]:
    """The classes of the state that `evolve` changes: the structs that are not frozen."""
    return frozenset(
        each.name
        for module in modules() if module.path in ("core/model.py", "core/namespaces.py")
        for each in classes(module.tree)
        if not any(word.arg == "frozen" for word in each.keywords) and _is_struct(each)
    ) - _ANSWERS  # fmt: skip


def _is_struct(found: ast.ClassDef) -> bool:
    return any(dotted(base)[-1] == "Struct" for base in found.bases)


def live_reads(given: tuple[Module, ...] | None = None) -> list[Place]:
    """Lines outside broker and core that know the state itself, instead of asking the broker."""
    live = live_classes()
    return sorted({
        place
        for module in given or modules() if module.room not in ("broker", "core")
        for place in _live_reads(module, live)
    })  # fmt: skip


def _live_reads(module: Module, live: frozenset[str]) -> Iterator[Place]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("posthouse.core"):
            for alias in node.names:
                if alias.name in live:
                    yield Place(module.path, alias.lineno, f"imports {alias.name}")
        elif isinstance(node, ast.Attribute):
            base = dotted(node.value)[-1]
            if node.attr in ("namespaces", "_world") and base in _ENGINES:
                yield Place(module.path, node.lineno, "reads an engine's namespaces")
            elif node.attr == "states" and base in _WORLDS - {"namespaces"}:
                yield Place(module.path, node.lineno, "reads the states of namespaces")


def store_kinds(given: tuple[Module, ...] | None = None) -> list[Place]:
    """Lines that ask which kind of store one is, but for the functions that make it."""
    found = []
    for module in given or modules():
        if module.room == "store":
            continue
        making = {
            node
            for function in functions(module.tree) if _makes_a_store(function)
            for node in ast.walk(function)
        }  # fmt: skip
        found += [
            Place(module.path, node.lineno, "asks for the kind of a store")
            for node in ast.walk(module.tree)
            if node not in making and isinstance(node, ast.expr | ast.pattern)
            and _asks_for_a_kind(node)
        ]  # fmt: skip
    return sorted(found)


def _is_store(name: str) -> bool:
    return name.endswith("Store") and name != "Store"


def _makes_a_store(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    return any(_is_store(dotted(call.func)[-1]) for call in calls)


def _asks_for_a_kind(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and dotted(node.func) == ["isinstance"]:
        asked = [each for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)]
        return any(_is_store(each.id) for each in asked)
    if isinstance(node, ast.MatchClass):
        return _is_store(dotted(node.cls)[-1])
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.Eq):
        return _is_store(dotted(node.comparators[0])[-1])
    return False


def dialect_names() -> frozenset[str]:
    """Each has a folder; what stands beside the folders they share."""
    folders = (each for each in (SOURCES / "dialects").rglob("*") if each.is_dir())
    return frozenset(each.name for each in folders if not each.name.startswith("_"))


def named_dialects(given: tuple[Module, ...] | None = None) -> list[Place]:
    """Lines of the server's code and texts that name a dialect; comments and docstrings may."""
    words = [*dialect_names(), "service[ -]bus"]
    pattern = re.compile("|".join(sorted(words)), re.IGNORECASE)
    return sorted({
        Place(module.path, line, f"names {hit.group().lower()}")
        for module in given or modules() if module.room == "server"
        for line, text in _texts(module.tree)
        if (hit := pattern.search(text))
    })  # fmt: skip


def _texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """All names and strings, but for docstrings."""
    docstrings = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body and isinstance(node.body[0], ast.Expr)
    }  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg | ast.keyword):
            yield node.lineno, node.arg or ""
        elif isinstance(node, ast.alias):
            yield node.lineno, f"{node.name} {node.asname}"
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.Constant) and node not in docstrings:
            yield node.lineno, node.value if isinstance(node.value, str) else ""
