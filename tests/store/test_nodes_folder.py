"""A node's folder and its log, in the cases that a cluster seldom meets."""

import asyncio
from pathlib import Path

import pytest

from posthouse.store.alone import OfNode, WasAlone, check_not_alone, forget_alone, note_alone
from posthouse.store.disk import Disk
from posthouse.store.lane import Place
from posthouse.store.opening import Opening, StoreUrl, open_store
from posthouse.store.place_note import forget_place, is_noted, write_place


def noted(folder: Path) -> Path:
    """A folder that has followed a log."""
    write_place(Disk(), folder, "a log", Place(7, 1, 2, 3, 0, 0))
    assert is_noted(folder)
    return folder


def test_a_folder_that_is_served_by_itself_follows_its_log_no_more(tmp_path: Path) -> None:
    folder = noted(tmp_path)
    check_not_alone(folder)
    note_alone(folder)
    assert not is_noted(folder)
    with pytest.raises(WasAlone, match="has gone its own way"):
        check_not_alone(folder)
    forget_alone(folder)  # a new log begins with it
    check_not_alone(folder)


def test_a_single_broker_s_folder_is_not_noted_as_alone(tmp_path: Path) -> None:
    note_alone(tmp_path)
    check_not_alone(tmp_path)


def test_a_nodes_folder_is_opened_for_writing_by_who_goes_on_without_its_cluster(
    tmp_path: Path,
) -> None:
    url = StoreUrl("file", str(noted(tmp_path)))

    async def main() -> None:
        with pytest.raises(OfNode, match="posthouse serve"):
            open_store(url)
        assert is_noted(tmp_path)
        await open_store(url, Opening(alone=True)).close()
        assert not is_noted(tmp_path)
        await open_store(url).close()

    asyncio.run(main())


def test_a_note_that_is_not_there_can_be_forgotten(tmp_path: Path) -> None:
    forget_place(Disk(), tmp_path)
    forget_place(Disk(), noted(tmp_path))
    assert not is_noted(tmp_path)
