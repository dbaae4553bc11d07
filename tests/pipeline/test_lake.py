"""The lake: manifests are the truth."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from posthouse.pipeline.events import span
from posthouse.pipeline.jobs.archive import missing, runs
from posthouse.pipeline.lake import Lake, LakeError, Manifest, Span, range_name


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def put(
    lake: Lake, first: int, end: int, name: str = "part.parquet", rows: int | None = None
) -> Path:
    folder = Path(lake.data) / "date=2026-01-01" / f"range={range_name(first, end)}"
    folder.mkdir(parents=True, exist_ok=True)
    positions = range(first, end if rows is None else first + rows)
    pq.write_table(pa.table({"position": list(positions)}), folder / name)
    return folder / name


def names(lake: Lake) -> list[str]:
    return [each.name for each in lake.manifests()]


def test_what_was_added_is_there_in_order(lake: Lake) -> None:
    assert lake.end() is None
    for first, end in ((10, 20), (1, 10)):
        put(lake, first, end)
        lake.add(first, end)
    assert names(lake) == [range_name(1, 10), range_name(10, 20)]
    assert lake.end() == 20
    assert sum(each.rows for each in lake.manifests()) == 19


def test_a_range_that_is_not_whole_is_not_taken(lake: Lake) -> None:
    put(lake, 1, 10, rows=5)
    with pytest.raises(LakeError, match="has 5 rows"):
        lake.add(1, 10)
    assert lake.manifests() == []


def test_what_no_manifest_names_is_swept_away(lake: Lake) -> None:
    kept = put(lake, 1, 10)
    lake.add(1, 10)
    left = put(lake, 10, 20)
    (Path(lake.where) / "manifests" / "000-new").write_text("{")
    assert lake.unnamed() == [str(left.relative_to(lake.where))]
    assert lake.sweep() == 2
    assert kept.exists()
    assert not left.parent.exists()
    assert lake.sweep() == 0


def test_a_range_that_lies_within_another_was_replaced_by_it(lake: Lake) -> None:
    for first, end in ((1, 10), (10, 20), (1, 20)):
        put(lake, first, end)
        lake.add(first, end)
    assert names(lake) == [range_name(1, 20)]
    lake.sweep()
    assert len(list(Path(lake.where).rglob("*.parquet"))) == 1
    assert len(list(Path(lake.where).rglob("*.json"))) == 1


def test_ranges_that_overlap_are_told(lake: Lake) -> None:
    for first, end in ((1, 10), (5, 20)):
        put(lake, first, end)
        lake.add(first, end)
    with pytest.raises(LakeError, match="overlap"):
        lake.manifests()


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (lambda file: file.unlink(), "cannot be read"),
        (lambda file: file.write_bytes(file.read_bytes()[:-10]), "cannot be read"),
        (lambda file: pq.write_table(pa.table({"position": [1]}), file), "has 1 rows"),
    ],
)
def test_harm_to_a_file_is_found(lake: Lake, harm: Callable[[Path], object], told: str) -> None:
    file = put(lake, 1, 10)
    manifest = lake.add(1, 10)
    assert lake.check(manifest) == []
    harm(file)
    [wrong] = lake.check(manifest)
    assert told in wrong


def test_gaps_are_found_and_what_fills_them(lake: Lake) -> None:
    for first, end in ((5, 10), (15, 20), (20, 25)):
        put(lake, first, end)
        lake.add(first, end)
    assert lake.gaps() == [(10, 15)]
    there = lake.manifests()
    assert list(missing(there, 1, 30)) == [(1, 5), (10, 15), (25, 30)]
    assert list(missing(there, 6, 9)) == []
    assert list(missing(there, 12, 40)) == [(12, 15), (25, 40)]
    assert list(missing([], 1, 5)) == [(1, 5)]


def test_small_ranges_that_follow_each_other_are_put_together() -> None:
    def of(first: int, end: int) -> Manifest:
        return Manifest(first, end, (), first_time="2026-01-01", last_time="2026-01-01")

    a, b, c, large, d, e = (
        of(1, 10), of(10, 20), of(25, 30), of(30, 300_030), of(300_030, 300_040),
        of(300_040, 300_050),
    )  # fmt: skip
    assert list(runs([a, b, c, large, d, e], 500_000)) == [[a, b], [d, e]]
    assert list(runs([a, b], 15)) == []
    assert list(runs([], 15)) == []


def test_ranges_of_an_earlier_version_are_rewritten_whatever_their_size() -> None:
    small, large = Manifest(1, 10, ()), Manifest(10, 300_030, ())
    new = Manifest(300_030, 300_040, (), first_time="2026-01-01", last_time="2026-01-01")
    assert list(runs([small, large, new], 500_000)) == [[small], [large]]


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def put_hours(lake: Lake, first: int, hours: int, days: int = 1) -> None:
    """A range with a row an hour from the hour `first` after noon on, a folder for each day."""
    name = range_name(first, first + hours)
    for day in range(days):
        moments = [NOON + timedelta(hours=at) for at in range(first, first + hours)]
        wanted = NOON.date() + timedelta(days=(NOON + timedelta(hours=first)).day - 1 + day)
        mine = [(at, each) for at, each in enumerate(moments, first) if each.date() == wanted]
        folder = Path(lake.data) / f"date={wanted}" / f"range={name}"
        folder.mkdir(parents=True)
        time = pa.array([each for _, each in mine], pa.timestamp("us", "UTC"))
        table = pa.table({"position": [at for at, _ in mine], "time": time})
        pq.write_table(table, folder / "part.parquet")
    lake.add(first, first + hours)


def test_only_files_that_can_have_rows_of_a_span_are_read(lake: Lake) -> None:
    put_hours(lake, 1, 5)  # 13 to 17 o'clock
    put_hours(lake, 6, 4)  # 18 to 21
    put_hours(lake, 10, 6, days=2)  # 22 to 3 the next day

    def files(since: str | None = None, until: str | None = None) -> list[str]:
        found = [each.path.split("/") for each in lake.files(span(since, until))]
        return [f"{day[-2:]}, {int(name[6:18])}" for _, day, name, _ in found]

    everything = ["01, 1", "01, 6", "01, 10", "02, 10"]
    assert files() == everything
    assert files("6") == everything[1:]
    assert files("6", "10") == ["01, 6"]
    assert files("2026-01-01T18:00:00") == everything[1:]
    assert files("2026-01-01T21:30:00Z", "2026-01-01T22:00:00Z") == []
    assert files("2026-01-01T21:00:00Z", "2026-01-01T22:00:01Z") == everything[1:3]
    assert files("2026-01-02T02:00:00+02:00") == ["02, 10"]
    assert files(None, "2026-01-02") == everything[:3]
    assert files("2020-01-01") == everything
    assert files(None, "2020-01-01") == []


def test_of_a_range_without_times_the_folders_tell_the_days(lake: Lake) -> None:
    put(lake, 1, 10)
    assert lake.add(1, 10).is_old
    day = datetime(2026, 1, 1, tzinfo=UTC)
    assert len(lake.files(Span(since=day + timedelta(hours=23)))) == 1
    assert lake.files(Span(since=day + timedelta(days=1))) == []
    assert lake.files(Span(until=day)) == []


def test_files_that_are_new_replace_those_of_a_range(lake: Lake) -> None:
    old = put(lake, 1, 10)
    lake.add(1, 10)
    new = put(lake, 1, 10, "anew.parquet")
    assert [Path(each.path).name for each in lake.add(1, 10).files] == ["anew.parquet"]
    assert lake.sweep() == 1
    assert (old.exists(), new.exists()) == (False, True)


def test_a_manifest_that_is_none_is_told(lake: Lake) -> None:
    put(lake, 1, 10)
    lake.add(1, 10)
    [path] = Path(lake.where).rglob("*.json")
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(LakeError, match="newer version"):
        lake.manifests()
    path.write_text("[]")
    with pytest.raises(LakeError, match="not a manifest"):
        lake.manifests()
