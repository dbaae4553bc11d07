"""How hard hypothesis tries, and which tests go together (the markers are in pyproject.toml)."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# 50 examples at the desk, 150 in CI, 10,000 at night.
_ALWAYS = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("desk", max_examples=50, **_ALWAYS)  # type: ignore[arg-type]
settings.register_profile("ci", max_examples=150, **_ALWAYS)  # type: ignore[arg-type]
settings.register_profile("night", max_examples=10_000, **_ALWAYS)  # type: ignore[arg-type]
settings.load_profile(os.environ.get("EFFORT") or ("ci" if os.environ.get("CI") else "desk"))

_TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        room = item.path.relative_to(_TESTS).parts[0]
        if room == "pipeline":
            item.add_marker("spark")
        elif room in ("core", "store") and item.get_closest_marker("untraced") is None:
            item.add_marker("traced")
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
