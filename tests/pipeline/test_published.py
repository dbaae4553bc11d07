"""A lake as tables of Iceberg and Delta, read back as other engines do."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyiceberg.utils.config import Config

from posthouse.cli import main
from posthouse.pipeline import iceberg, published
from posthouse.pipeline.jobs import archive as jobs
from posthouse.pipeline.lake import Lake, LakeError, Manifest, range_name
from tests.pipeline.rest_catalog import rest_catalog

DAY = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = {
    "position": pa.int64(), "time": pa.timestamp("us", "UTC"), "entity": pa.string(),
    "body": pa.binary(), "properties": pa.map_(pa.string(), pa.string()), "priority": pa.int8(),
}  # fmt: skip


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def add(lake: Lake, first: int, end: int, days: tuple[int, ...] = (0,), **more: Any) -> Manifest:
    """A range as Spark writes it, cut into days of equal size."""
    cuts = [first + (end - first) * at // len(days) for at in range(len(days) + 1)]
    for day, low, high in zip(days, cuts[:-1], cuts[1:], strict=True):
        moment = DAY + timedelta(days=day)
        count = high - low
        columns = {
            "position": range(low, high), "entity": ["orders"] * count, "body": [b"x"] * count,
            "time": [moment + timedelta(seconds=at) for at in range(low, high)],
            "properties": [[("colour", "red")]] * count, "priority": [4] * count,
        }  # fmt: skip
        # Releases differ in what they declare as never null.
        fields = [pa.field(name, kind, nullable=first > 1) for name, kind in COLUMNS.items()]
        made = pa.table(columns, pa.schema(fields))
        for name, value in more.items():
            made = made.append_column(name, [[value] * count])
        folder = Path(lake.data) / f"date={moment.date()}" / f"range={range_name(first, end)}"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(made, folder / f"part-{len(list(folder.iterdir()))}.parquet")
    return lake.add(first, end)


def publish(lake: Lake) -> None:
    published.publish(lake, "iceberg", iceberg.settings(lake, None, None))
    published.publish(lake, "delta", {})


def opened(lake: Lake) -> Table:
    """The table, by its catalog alone: as somebody finds it who knows nothing of Posthouse."""
    where = f"sqlite:///{lake.where}/iceberg/catalog.db"
    catalog = load_catalog("posthouse", type="sql", uri=where)
    return catalog.load_table("posthouse.events")


def positions(lake: Lake) -> list[int]:
    """The positions of the rows, which PyIceberg, DuckDB and delta-rs must agree on."""
    found = opened(lake).scan().to_arrow()
    files = [task.file.file_path for task in opened(lake).scan().plan_files()]
    there: Any = pa.table(DeltaTable(lake.where).to_pyarrow_table())
    by_iceberg = sorted(found.column("position").to_pylist())
    assert sorted(there.column("position").to_pylist()) == by_iceberg
    with duckdb.connect() as duck:
        rows = duck.execute("select position from read_parquet($1)", [files]).fetchall()
    assert sorted(position for (position,) in rows) == by_iceberg
    return by_iceberg


def test_a_lake_is_found_as_a_table_and_stays_in_line(lake: Lake) -> None:
    add(lake, 1, 10)
    publish(lake)
    assert positions(lake) == list(range(1, 10))
    published.Tables(lake).add(add(lake, 10, 20, days=(0, 1)))
    assert positions(lake) == list(range(1, 20))
    table = opened(lake)
    assert [(each.field_id, each.name) for each in table.schema().fields][:2] == [
        (1, "position"), (2, "time"),
    ]  # fmt: skip
    assert str(table.schema().find_type("time")) == "timestamptz"
    later = table.scan(row_filter="time >= '2026-01-02T00:00:00+00:00'")
    assert len(list(later.plan_files())) == 1  # of three, by its day
    assert later.to_arrow().column("properties")[0].as_py() == [("colour", "red")]
    assert lake.sweep() == 0
    assert list(published.Tables(lake).check(lake.manifests())) == []


def test_what_a_killed_job_left_out_is_added_and_nothing_twice(lake: Lake) -> None:
    publish(lake)  # an empty one: the tables come with the first range
    published.Tables(lake).add(add(lake, 1, 10))
    add(lake, 10, 20)  # it was killed behind the manifest
    tables = published.Tables(lake)
    assert [text.partition(" of ")[0] for text in tables.check(lake.manifests())] == [
        "posthouse.events lacks 1", f"{lake.where} lacks 1",
    ]  # fmt: skip
    for _ in range(2):
        published.Tables(lake).sync()
        assert positions(lake) == list(range(1, 20))
    assert len(opened(lake).snapshots()) == 2


def test_ranges_that_were_put_together_are_replaced_at_once(lake: Lake) -> None:
    publish(lake)
    tables = published.Tables(lake)
    for first, end in ((1, 10), (10, 20), (20, 30)):
        tables.add(add(lake, first, end))
    before = opened(lake).current_snapshot()
    add(lake, 1, 20)
    # It is killed here: the tables have the old files, which are not swept away before they do.
    assert positions(lake) == list(range(1, 30))
    jobs._tidied(lake)
    assert positions(lake) == list(range(1, 30))
    assert before is not None
    assert opened(lake).snapshot_by_id(before.snapshot_id) is None  # its files are gone
    assert len(list(Path(lake.data).rglob("*.parquet"))) == 2
    rewritten = add(lake, 20, 30)  # as of an earlier version
    tables = published.Tables(lake)
    tables.sync()
    lake.sweep()
    assert positions(lake) == list(range(1, 30))
    assert [each.files for each in lake.manifests()][-1] == rewritten.files


def test_columns_that_are_new_are_columns_of_the_table(lake: Lake) -> None:
    publish(lake)
    tables = published.Tables(lake)
    tables.add(add(lake, 1, 10))
    tables.add(add(lake, 10, 20, colour="red"))
    found = opened(lake).scan(selected_fields=("position", "colour")).to_arrow().to_pylist()
    assert {row["position"]: row["colour"] for row in found}[15] == "red"
    assert {row["position"]: row["colour"] for row in found}[5] is None
    there: Any = pa.table(DeltaTable(lake.where).to_pyarrow_table())
    assert set(there.column("colour").to_pylist()) == {None, "red"}


def test_metadata_does_not_grow_for_ever(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg, "SNAPSHOTS_KEPT", 2)
    publish(lake)
    tables = published.Tables(lake)
    for first in range(1, 9):
        tables.add(add(lake, first, first + 1))
    assert positions(lake) == list(range(1, 9))
    assert 2 <= len(opened(lake).snapshots()) <= 4
    lists = list(Path(f"{lake.where}/iceberg").rglob("snap-*.avro"))
    assert len(lists) == len(opened(lake).snapshots())


def test_the_command_publishes_and_says_where(
    lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(lake, 1, 10)

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["pipeline", "publish", "--lake", lake.where, *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    code, out, _ = run("--json")
    assert (code, json.loads(out)["table"], json.loads(out)["files"]) == (0, "posthouse.events", 1)
    assert run("--format", "delta")[0] == 0
    assert positions(lake) == list(range(1, 10))
    code, _, err = run("--format", "delta", "--table", "a.b")
    assert (code, "has no --catalog and no --table" in err) == (2, True)
    code, _, err = run("--table", "events")
    assert (code, "NAMESPACE.TABLE" in err) == (1, True)
    code, _, err = run("--catalog", "https://me:secret@catalog.example")
    assert (code, "PYICEBERG_CATALOG__POSTHOUSE__TOKEN" in err) == (1, True)
    code, _, err = run("--catalog", "http://127.0.0.1:1")
    assert (code, err.startswith("The catalog http://127.0.0.1:1 says: ")) == (1, True)
    code, _, err = run("--catalog", "nowhere")
    assert (code, err.startswith("The catalog nowhere says: ")) == (1, True)
    other = Lake(str(tmp_path / "other"))
    add(other, 1, 5)
    shared = f"sqlite:///{lake.where}/iceberg/catalog.db"
    code = main(["pipeline", "publish", "--lake", other.where, "--catalog", shared])
    assert (code, "Give this lake another table" in capsys.readouterr().err) == (1, True)
    assert other.setting("iceberg") is None
    code = main(["pipeline", "publish", "--lake", str(tmp_path / "none")])
    assert (code, "There is no lake" in capsys.readouterr().err) == (3, True)


def test_a_catalog_can_be_a_rest_server_whose_secret_is_not_in_the_lake(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rest_catalog(tmp_path, "open sesame") as url:
        said = iceberg.settings(lake, url, "shop.events")
        with pytest.raises(LakeError, match=f"The catalog {url} says: .*No token"):
            published.publish(lake, "iceberg", said)
        monkeypatch.setenv("PYICEBERG_CATALOG__POSTHOUSE__TOKEN", "open sesame")
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # as a new process has it
        published.publish(lake, "iceberg", said)
        tables = published.Tables(lake)
        tables.add(add(lake, 1, 10))
        tables.add(add(lake, 10, 20))
        add(lake, 1, 20)
        jobs._tidied(lake)
        table = load_catalog("posthouse", type="rest", uri=url).load_table("shop.events")
        found = table.scan().to_arrow().column("position").to_pylist()
        assert sorted(found) == list(range(1, 20))
        assert len(table.inspect.files()) == 1
    written = [path.read_text() for path in (Path(lake.where) / "tables").iterdir()]
    assert "sesame" not in "".join(written)


def test_a_lake_of_an_earlier_version_is_to_be_rewritten_first(lake: Lake) -> None:
    folder = Path(lake.data) / "date=2026-01-01" / f"range={range_name(1, 3)}"
    folder.mkdir(parents=True)
    moments = pa.array([DAY, DAY], pa.timestamp("ns"))
    old = pa.table({"position": [1, 2], "time": moments})
    pq.write_table(old, folder / "part.parquet", use_deprecated_int96_timestamps=True)
    assert lake.add(1, 3).is_old
    with pytest.raises(LakeError, match="Rewrite them: posthouse pipeline compact"):
        published.publish(lake, "iceberg", iceberg.settings(lake, None, None))
    assert lake.setting("iceberg") is None


def test_a_catalog_that_is_damaged_is_told(lake: Lake) -> None:
    add(lake, 1, 3)
    publish(lake)
    (Path(lake.where) / "iceberg" / "catalog.db").write_text("no database at all" * 100)
    with pytest.raises(LakeError, match=r"The catalog sqlite:.* says: "):
        published.Tables(lake)
    (Path(lake.where) / "tables" / "iceberg.json").write_text("[]")
    with pytest.raises(LakeError, match="is not a setting"):
        published.Tables(lake)
