"""The rules of the house hold, and each of them finds what it is for."""

import ast

import pytest

from tests.house import rooms, shape, tables, way
from tests.house.tree import Module


def test_the_state_is_read_in_broker_and_core_alone() -> None:
    assert rooms.live_reads() == []


def test_nobody_asks_which_kind_of_store_it_has() -> None:
    assert rooms.store_kinds() == []


def test_the_server_names_no_dialect() -> None:
    assert rooms.named_dialects() == []


def test_a_large_class_has_a_reason() -> None:
    found = shape.large_classes()
    assert sorted(found) == sorted(tables.LARGE_CLASSES), "a new one is to be split, or explained"


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    assert shape.cycles(shape.imports()) == []


def test_the_way_of_a_message_is_as_the_documentation_has_it() -> None:
    assert way.told(way.ways()) == way.written(), "run: python -m tests.house --write"


def a_module(text: str, path: str = "server/some.py") -> tuple[Module, ...]:
    name = "posthouse." + path.removesuffix(".py").replace("/", ".")
    return (Module(name, path, ast.parse(text), is_package=False),)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("from posthouse.core.model import Queue, QueueProperties", 1),
        ("from posthouse.core.namespaces import Namespaces, CreateNamespace", 1),
        ("state = self._broker.engine.namespaces.states['x']", 1),
        ("accounts = call.engine.namespaces.accounts", 1),
        ("for state in world.states.values(): pass", 1),
        ("engine._world.accounts", 1),
        ("form.states", 0),
        ("declared.namespaces", 0),
        ("from posthouse.core.model import QueueProperties", 0),
    ],
)
def test_reads_of_live_state_are_found(text: str, count: int) -> None:
    assert len(rooms.live_reads(a_module(text))) == count
    assert not rooms.live_reads(a_module(text, "broker/some.py"))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("isinstance(store, FileStore)", 1),
        ("isinstance(store, FileStore | MemoryStore)", 1),
        ("type(store) is FileStore", 1),
        ("match store:\n    case FileStore():\n        pass", 1),
        ("isinstance(answer, Refused | StoreError)", 0),
        ("def make():\n    store = FileStore()\n    isinstance(store, FileStore)", 0),
    ],
)
def test_questions_for_the_kind_of_a_store_are_found(text: str, count: int) -> None:
    assert len(rooms.store_kinds(a_module(text))) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("from posthouse.dialects.pyqueue.peer import Peer", 1),
        ("make_vibemq_peers()", 1),
        ("config.pyqueue_port", 1),
        ("title = 'Azure Service Bus'", 1),
        ("def f():\n    '''As Service Bus does it.'''\n", 0),
        ("x = 1  # as pyqueue", 0),
        ("from posthouse.dialects import line", 0),
    ],
)
def test_names_of_dialects_are_found(text: str, count: int) -> None:
    assert len(rooms.named_dialects(a_module(text))) == count
    assert not rooms.named_dialects(a_module(text, "cli/some.py"))


def test_attributes_are_those_that_methods_assign_and_annotated_fields() -> None:
    text = """
class Some:
    a: int
    kinds: ClassVar[int] = 3
    plain = 4
    def __init__(self):
        self.b, (self.c, other.d) = 1, (2, 3)
        self.b += 1
        self.e: int = 1
    async def later(self):
        with x as self.f:
            self.g.h = 1
"""
    [found] = ast.parse(text).body
    assert isinstance(found, ast.ClassDef)
    assert shape.attributes(found) == {"a", "b", "c", "e", "f"}
    many = "class Many:\n" + "".join(f"    a{n}: int\n" for n in range(21))
    assert shape.large_classes(a_module(many)) == {"server/some.py:Many": 21}
    assert not shape.large_classes(a_module(many.replace("    a20: int\n", "")))


def test_a_cycle_is_found_also_where_an_import_is_in_a_function() -> None:
    given = (
        *a_module("from posthouse.server import b", "server/a.py"),
        *a_module("def f():\n    from posthouse.server.c import x", "server/b.py"),
        *a_module("import posthouse.server.a", "server/c.py"),
        *a_module("from posthouse.server import a", "server/d.py"),
        *a_module("if TYPE_CHECKING:\n    import posthouse.server.f", "server/e.py"),
        *a_module("import posthouse.server.e", "server/f.py"),
    )
    found = shape.cycles(shape.imports(given))
    assert found == [["posthouse.server.a", "posthouse.server.b", "posthouse.server.c"]]
