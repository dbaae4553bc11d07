"""Nodes of several releases: a leader writes nothing that another node cannot read."""

import asyncio
from pathlib import Path

import pytest

from posthouse.broker.record_level import RecordLevel, RecordLimit
from posthouse.core import versions
from posthouse.core.commands import CreateQueue, Defer, UpdateQueue
from posthouse.core.errors import Busy
from posthouse.core.model import QueueProperties
from posthouse.core.namespaces import CreateNamespace
from posthouse.core.records import Deferred, NamespaceCreated, QueueCreated, Sent
from posthouse.core.versions import version_needed
from posthouse.store.errors import TooNew
from posthouse.store.memory import MemoryStore
from tests.broker.desk import Desk

pytestmark = pytest.mark.traced  # it covers what the store and the core do for this


@pytest.fixture
def _newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release in which a kind of records and a property of queues have come."""
    monkeypatch.setattr(versions, "VERSION", 3)
    monkeypatch.setitem(versions.KINDS, Deferred, 2)
    monkeypatch.setitem(versions.KINDS, NamespaceCreated, 2)
    monkeypatch.setitem(versions.FIELDS, QueueProperties, {"max_delivery": 3})


@pytest.mark.usefixtures("_newer")
def test_the_version_that_records_need_is_that_of_the_newest_kind_and_property() -> None:
    plain = QueueCreated("q", 1, QueueProperties())
    assert version_needed([]) == 1
    assert version_needed([plain]) == 1
    assert version_needed([plain, Deferred("q", [1])]) == 2
    changed = QueueCreated("q", 1, QueueProperties(max_delivery=4))
    assert version_needed([changed, Deferred("q", [1])]) == 3


def test_every_kind_in_the_tables_is_one_that_this_release_knows() -> None:
    assert all(1 < each <= versions.VERSION for each in versions.KINDS.values())
    for kind, fields in versions.FIELDS.items():
        assert set(fields) <= set(kind.__struct_fields__)  # type: ignore[attr-defined]
        assert all(1 < each <= versions.VERSION for each in fields.values())
    assert version_needed([Sent("q", 1, 1, 0, [])]) == 1


@pytest.mark.usefixtures("_newer")
def test_what_an_older_node_cannot_read_is_refused_until_it_is_upgraded() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore())
        await desk.send("one", "two")
        (delivery,) = await desk.receive()
        desk.engine.limit_records(RecordLimit(1, "b"))
        text = "being upgraded: node b is at version 1; upgrade it"
        with pytest.raises(Busy, match=text):
            await desk.do(Defer("q", [delivery.token]))
        with pytest.raises(Busy, match=text):
            await desk.do(UpdateQueue("q", QueueProperties(max_delivery=4)))
        with pytest.raises(Busy, match=text):
            await desk.do(CreateNamespace("more"))  # type: ignore[arg-type]
        await desk.send("three")  # what it can read goes on
        await desk.do(CreateQueue("other"))
        desk.engine.limit_records(RecordLimit(2, "b"))
        await desk.do(Defer("q", [delivery.token]))
        with pytest.raises(Busy, match="node b is at version 2"):
            await desk.do(UpdateQueue("q", QueueProperties(max_delivery=4)))
        desk.engine.limit_records(None)
        await desk.do(UpdateQueue("q", QueueProperties(max_delivery=4)))

    asyncio.run(main())


@pytest.mark.usefixtures("_newer")
def test_the_version_of_a_folder_rises_and_never_falls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    level = RecordLevel(tmp_path)
    assert level.version == 1
    level.rise(2)
    level.rise(1)
    assert level.version == RecordLevel(tmp_path).version == 2
    level.rise(7)  # no more than this release knows
    assert RecordLevel(tmp_path).version == 3
    monkeypatch.setattr(versions, "VERSION", 2)
    with pytest.raises(TooNew, match="newer version"):
        RecordLevel(tmp_path)
