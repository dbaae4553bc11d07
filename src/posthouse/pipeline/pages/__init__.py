"""Pages for people: one file each, with everything in it."""

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent


def page(name: str, data: dict[str, Any]) -> str:
    """A page that shows this. It asks nobody for anything, and what is in the data stays text."""
    content = json.dumps(data, default=_told, ensure_ascii=False, separators=(",", ":"))
    made = (_HERE / f"{name}.html").read_text()
    for mark, file in (("/*STYLE*/", "page.css"), ("/*DRAWING*/", "drawing.js")):
        made = made.replace(mark, (_HERE / file).read_text())
    # Nothing in a text can end the script that it stands in.
    return made.replace("/*DATA*/", content.replace("<", "\\u003c"))


def _told(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value)
