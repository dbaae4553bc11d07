"""`make demo`, with two seconds of a shop's traffic instead of a minute."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples import demo
from posthouse.pipeline.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_demo_keeps_its_lake_and_says_where(
    spark: "SparkSession",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "shown"
    old = out / "lake" / "manifests" / "000000000001-000000000009.json"
    old.parent.mkdir(parents=True)
    old.write_text("of an earlier run")
    monkeypatch.setattr(demo, "SECONDS", 2)
    monkeypatch.setattr(sys, "argv", ["demo", str(out)])
    demo.main()
    told = capsys.readouterr().out
    assert f"The lake is {out / 'lake'}." in told
    assert not old.exists()
    assert (out / "report.html").exists()
    kinds = {row.kind for row in Lake(str(out / "lake")).read(spark).select("kind").collect()}
    assert {"sent", "copied", "delivered", "completed"} <= kinds
