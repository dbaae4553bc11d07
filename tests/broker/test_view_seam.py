"""The seam between the broker and the rooms above: they look through the view, and hold values.

A live part of the state that somebody above holds could be changed there, or change under him. So
no module outside core and broker knows the classes of live parts, or a way to them.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import posthouse

ROOT = Path(posthouse.__file__).parent
INSIDE = ("core", "broker")
WIRED = ("bridge",)  # import-linter keeps it from the state: its own words may be alike
MODEL, NAMESPACES = "posthouse.core.model", "posthouse.core.namespaces"

# `Schedule` is not among them: those that a command or the view answers with are copies. Nor are
# values, which are replaced and never changed: QueueProperties, Account, Grant, Reader.
LIVE = {
    MODEL: {"State", "Queue", "Group", "Receiver", "Blocked", "Lock", "Transaction"},
    NAMESPACES: {"Namespaces"},
}
# Ways to them, whoever has them.
WAYS = {"world", "_world", "states", "_states"}
ENGINES = {"engine", "_engine"}
FORMS = {"form"}  # what a client sends has states of messages


def breaches(source: str) -> Iterator[str]:
    """What a module of the rooms above must not say."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names):
                yield from (f"import {n.name}" for n in names if n.name in LIVE)
            case ast.ImportFrom("posthouse.core", names):
                whole = {name.rpartition(".")[2] for name in LIVE}
                yield from (f"from core import {n.name}" for n in names if n.name in whole)
            case ast.ImportFrom(str(module), names) if module in LIVE:
                live = LIVE[module] | {"*"}
                yield from (f"from {module} import {n.name}" for n in names if n.name in live)
            case ast.Attribute(of, name) if name in WAYS and _last(of) not in FORMS:
                yield f".{name}"
            case ast.Attribute(of, "namespaces") if _last(of) in ENGINES:
                yield "engine.namespaces"
            case ast.Constant(name) if name in WAYS - {"states"}:  # as for getattr
                yield repr(name)
            case _:
                pass


def _last(node: ast.expr) -> str:
    """The last word of a name with dots."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def above() -> list[Path]:
    paths = sorted(ROOT.rglob("*.py"))
    return [path for path in paths if path.relative_to(ROOT).parts[0] not in INSIDE + WIRED]


@pytest.mark.parametrize("path", above(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_above_the_broker_reaches_into_the_state(path: Path) -> None:
    assert list(breaches(path.read_text())) == []


@pytest.mark.parametrize("source", [
    "from posthouse.core.model import Queue",
    "from posthouse.core.model import QueueProperties, State as World",
    "from posthouse.core.model import *",
    "from posthouse.core.namespaces import CreateNamespace, Namespaces",
    "from posthouse.core import model",
    "import posthouse.core.model",
    "import posthouse.core.namespaces as spaces",
    "if TYPE_CHECKING:\n    from posthouse.core.model import Lock",
    "def look(call):\n    from posthouse.core.model import Group",
    "queue = engine.namespaces.states[namespace].queues['q']",
    "accounts = self._broker.engine.namespaces.accounts",
    "found = self.engine.world",
    "found = engine._world",
    "found = call.engine.view._states",
    "for state in spaces.states.values(): pass",
    "found = getattr(engine, '_world')",
])  # fmt: skip
def test_a_way_into_the_state_is_noticed(source: str) -> None:
    assert list(breaches(source))


@pytest.mark.parametrize("source", [
    "from posthouse.core.model import Account, QueueProperties, Schedule, entity_of",
    "from posthouse.core.namespaces import CreateNamespace",
    "from posthouse.core import errors",
    "names = engine.view.namespaces()",
    "for space in declared.namespaces: pass",
    "states = form.states",
])  # fmt: skip
def test_values_and_the_view_are_for_everybody(source: str) -> None:
    assert not list(breaches(source))


def test_every_room_above_is_looked_at() -> None:
    rooms = {path.relative_to(ROOT).parts[0] for path in above()}
    assert {"cli", "client", "dialects", "pipeline", "server"} <= rooms
