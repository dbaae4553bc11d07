"""Nobody asks what kind of store there is: what a store can do is in its interface."""

import ast
from collections.abc import Iterator
from pathlib import Path

import posthouse

SOURCE = Path(posthouse.__file__).parent
# Where a store is made; there alone it is known which one it is.
MAKERS = {
    "server/host.py", "server/cluster.py", "server/founding.py", "broker/repair.py",
    "client/memory.py",
}  # fmt: skip
ASKING = {"isinstance", "issubclass", "hasattr", "getattr", "type"}


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith("store/"):
            yield name, ast.parse(path.read_text())


def _names_store(node: ast.AST) -> bool:
    """Whether an expression or a pattern names a kind of store, or a store."""
    for each in ast.walk(node):
        name = each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "")
        if name.endswith("Store") or name in ("store", "_store"):
            return True
    return False


def _asks(tree: ast.Module) -> Iterator[int]:
    """The lines that ask which kind of store there is, or whether it has something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ASKING and any(map(_names_store, node.args)):
                yield node.lineno
        elif isinstance(node, ast.MatchClass) and _names_store(node.cls):
            yield node.lineno


def _kinds_imported(tree: ast.Module) -> set[str]:
    return {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("posthouse.store.")
        for alias in node.names
        if alias.name.endswith("Store")
    }


def test_no_module_asks_what_kind_of_store_it_has() -> None:
    assert [f"{name}:{line}" for name, tree in _modules() for line in _asks(tree)] == []


def test_kinds_of_stores_are_named_only_where_one_is_made() -> None:
    assert {name for name, tree in _modules() if _kinds_imported(tree)} == MAKERS


def test_the_check_finds_what_it_looks_for() -> None:
    questions = [
        "isinstance(store, FileStore)", "isinstance(self.store, file.FileStore | None)",
        "hasattr(broker.store, 'folder')", "type(store) is MemoryStore",
        "match x:\n case FileStore(): pass",
    ]  # fmt: skip
    assert all(list(_asks(ast.parse(question))) for question in questions)
    assert not list(_asks(ast.parse("isinstance(answer, StoreError) and store.segments is None")))
