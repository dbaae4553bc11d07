"""The programs in the docs pass the type checkers that their readers run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNTYPED = ("pipeline.md", "sqs.md")  # parts of Spark programs; boto3 comes without types
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    if "```python\n" in page.read_text() and page.name not in UNTYPED
)
PYRIGHT = ROOT / ".venv" / "pyright-npm" / "node_modules" / ".bin" / "pyright"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each program as a file named after its page."""
    folder = tmp_path_factory.mktemp("examples")
    for page in PAGES:
        found = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
        assert found, page
        for number, program in enumerate(found):
            (folder / f"{Path(page).stem.lower()}_{number}.py").write_text(program)
    return folder


def test_mypy_is_content_with_every_program(programs: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file", "",
         "--follow-imports", "silent", "--python-executable", sys.executable,
         "--cache-dir", str(ROOT / ".mypy_cache" / "examples"),
         *map(str, sorted(programs.glob("*.py")))],
        capture_output=True, text=True, cwd=programs, check=False,
        env={"MYPYPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.stdout + done.stderr == ""


@pytest.mark.skipif(not PYRIGHT.exists(), reason="pyright is not installed")
def test_pyright_is_content_with_every_program(programs: Path) -> None:
    settings = (
        '{"typeCheckingMode": "strict", "pythonVersion": "3.11",'
        f' "extraPaths": ["{ROOT / "src"}"], "reportMissingModuleSource": false}}'
    )
    (programs / "pyrightconfig.json").write_text(settings)
    done = subprocess.run(
        [PYRIGHT, "--pythonpath", sys.executable, "--project", programs],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
