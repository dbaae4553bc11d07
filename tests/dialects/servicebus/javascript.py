"""Scripts in js/, run with node. `make .venv/js` has put the packages they need in place."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

Json = Any
ROOT = Path(__file__).parents[3]
SCRIPTS = Path(__file__).parent / "js"
PACKAGES = ROOT / ".venv" / "js-servicebus" / "node_modules"
HANGS_SECONDS = 120  # who has said nothing by then never will


def connection_string(port: int, *, plain: bool = True, key: str = "SAS_KEY_VALUE") -> str:
    emulator = "UseDevelopmentEmulator=true;" if plain else ""
    return (
        f"Endpoint=sb://localhost:{port};SharedAccessKeyName=RootManageSharedAccessKey;"
        f"SharedAccessKey={key};{emulator}"
    )


def need_node() -> str:
    """Where node is. Skips where it or the packages are missing; in CI that is a failure."""
    node = shutil.which("node")
    if node is not None and PACKAGES.exists():
        return node
    what = "node is not installed" if node is None else f"{PACKAGES} is missing: make .venv/js"
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


def run_script(theme: str, *words: str, environment: Mapping[str, str] | None = None) -> Json:
    """What each scenario of a theme has told."""
    script = SCRIPTS / f"{theme}.js"
    done = subprocess.run(
        [need_node(), str(script), *words], capture_output=True, text=True, check=False,
        timeout=HANGS_SECONDS,
        env={**os.environ, "NODE_PATH": str(PACKAGES), **(environment or {})},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Scripts:
    """Runs each theme once against one broker; tests look at what its scenarios told."""

    def __init__(self, *words: str) -> None:
        self._words = words
        self._told: dict[str, Json] = {}

    def __call__(self, theme: str, scenario: str) -> Json:
        if theme not in self._told:
            self._told[theme] = run_script(theme, *self._words)
        told = self._told[theme][scenario]
        assert not (isinstance(told, dict) and "error" in told), told["stack"]
        return told
