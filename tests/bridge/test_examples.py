"""The two services of examples/bridge, and the programs of docs/bridge.md."""

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from posthouse.bridge import Settings
from posthouse.bridge.figures import HELP
from posthouse.bridge.settings import PRESETS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "bridge.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.long
def test_the_example_ships_every_order_once_and_ends_by_itself() -> None:
    pytest.importorskip("nats", reason="nats-py is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "examples.bridge"], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "40 orders were taken."
    assert lines[-2:] == [
        "39 orders were shipped, with 39 shipments.",
        "1 went to the dead letters: There are no dragons.",
    ]


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_every_program_of_the_documentation_runs(program: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_every_setting_preset_and_figure_is_told() -> None:
    names = {field.name for field in fields(Settings)} | set(PRESETS) | set(HELP)
    missing = {name for name in names if f"`{name}`" not in TEXT}
    assert not missing
