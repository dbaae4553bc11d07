"""How hard hypothesis tries: 50 examples at the desk, 150 in CI, 10,000 at night."""

import os

from hypothesis import HealthCheck, settings

_ALWAYS = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("desk", max_examples=50, **_ALWAYS)  # type: ignore[arg-type]
settings.register_profile("ci", max_examples=150, **_ALWAYS)  # type: ignore[arg-type]
settings.register_profile("night", max_examples=10_000, **_ALWAYS)  # type: ignore[arg-type]
settings.load_profile(os.environ.get("EFFORT") or ("ci" if os.environ.get("CI") else "desk"))
