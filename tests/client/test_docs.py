"""What docs/client.md, worker.md and testing.md show has to work; all settings have to be told."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from posthouse import (
    AwsSqsConfig,
    AzureServiceBusConfig,
    InMemoryConfig,
    PosthouseConfig,
    QueueConfig,
)
from posthouse.client import codecs

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "client.md").read_text()
SHOWN = "".join((DOCS / name).read_text() for name in ("client.md", "worker.md", "testing.md"))
PROGRAMS = re.findall(r"```python\n(.*?)```", SHOWN, re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_every_program_runs(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "_codecs", {})
    exec(program, {"__name__": "example"})


@pytest.mark.parametrize(
    "kind", [QueueConfig, PosthouseConfig, AzureServiceBusConfig, AwsSqsConfig, InMemoryConfig]
)
def test_every_setting_is_told(kind: type[QueueConfig]) -> None:
    missing = {each.name for each in fields(kind) if f"`{each.name}`" not in TEXT}
    assert missing <= {"provider"}
