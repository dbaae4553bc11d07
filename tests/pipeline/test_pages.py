"""The page of a report as a browser lays it out, worked out with node: no browser is needed."""

import json
import re
import shutil
import subprocess
from typing import Any

import pytest

from posthouse.pipeline.pages import page

PIXELS = 1440
NAME = "a-queue-with-a-rather-long-name-that-nobody-would-type"
COUNTS = ("sent", "arrived", "delivered", "completed", "retries", "dead_lettered", "expired",
          "open", "dead_now")  # fmt: skip
TIMES = tuple(f"{what}_{p}_s" for what in ("waited", "settled") for p in ("p50", "p95", "p99"))
WIDEST: dict[str, Any] = dict.fromkeys(COUNTS, 999_999) | dict.fromkeys(TIMES, 3_599.0)
DATA = {
    "window_seconds": 60,
    "queues": [{"namespace": "default", "entity": NAME, **WIDEST}],
    "overall": [{**WIDEST, "oldest": "2026-11-18T10:00:00"}],
    "windows": [],
    "overall_windows": [
        {"start": f"2026-11-18T10:{minute:02}:00", **WIDEST} for minute in range(30)
    ],
    "reasons": [], "consumers": [], "hours": [{"weekday": 2, "hour": 10, "sent": 5}],
    "first": "2026-11-18T10:00:00", "last": "2026-11-18T11:00:00", "source": "a lake",
    "made": "2026-11-18T11:00:00",
}  # fmt: skip

# A document with as much in it as a page needs, and what the page has put there.
BROWSER = """
class Node {
  constructor(tag) {
    Object.assign(this, { tag, attributes: {}, children: [], style: {}, textContent: "" });
  }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  addEventListener() {}
  append(...added) { this.children.push(...added); }
  replaceChildren(...added) { this.children = added; }
  get clientWidth() { return WIDTH; }
}
const WIDTH = 1354;  // of 1440, without the margins of the page and of a section
const byId = {};
const document = {
  getElementById: (id) => (byId[id] ??= new Node(id)),
  createElement: (tag) => new Node(tag), createElementNS: (_, tag) => new Node(tag),
  createTextNode: (text) => String(text),
};
const addEventListener = () => {};
byId.data = new Node("script");
byId.data.textContent = DATA_HERE;
{SCRIPT}
console.log(JSON.stringify({ ...byId, data: null }));
"""


@pytest.fixture(scope="module")
def drawn() -> Any:
    """The elements of the page by their ids."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    text = page("report", DATA)
    [data] = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text)
    script = text.rpartition("<script>")[2].partition("</script>")[0]
    program = BROWSER.replace("DATA_HERE", json.dumps(data)).replace("{SCRIPT}", script)
    done = subprocess.run([node, "-"], input=program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def found(element: Any, tag: str) -> list[Any]:
    """The elements of that name in an element."""
    if not isinstance(element, dict):
        return []
    inner = [each for child in element["children"] for each in found(child, tag)]
    return [element, *inner] if element["tag"] == tag else inner


def said(element: Any) -> str:
    if not isinstance(element, dict):
        return str(element)
    return str(element["textContent"]) + "".join(map(said, element["children"]))


def wide(text: str) -> float:
    """About how many pixels a text takes at 15 pixels, in the usual fonts without serifs."""
    return sum(8.4 if each.isdigit() else 3.6 if each in " ,.:" else 7.5 for each in text)


def test_the_table_of_queues_fits_the_page(drawn: Any) -> None:
    head, row = found(drawn["queues"], "tr")
    needed = 0.0
    for title, cell in zip(found(head, "th"), found(row, "td"), strict=True):
        # A heading is wrapped between words; a name is wrapped anywhere, a figure nowhere.
        words = max(map(wide, re.split(r"[ -]", said(title))), default=0.0)
        is_name = "text" in cell["attributes"]["class"]
        bars = [60.0 for _ in found(cell, "span") if not said(cell)]
        needed += max(words, 190 if is_name else wide(said(cell)), *bars) + 14
    assert 1_000 < needed <= PIXELS - 2 * (24 + 18 + 1)


def test_labels_of_charts_are_as_large_as_the_text(drawn: Any) -> None:
    charts = [each for name in ("traffic", "waited", "settled", "heat")
              for each in found(drawn[name], "svg")]  # fmt: skip
    assert len(charts) == 4
    for chart in charts:
        attributes = chart["attributes"]
        # A unit of a chart is a pixel of the page: nothing in it is made smaller.
        assert attributes["viewBox"] == f"0 0 {attributes['width']} {attributes['height']}"
        assert attributes["width"] == "1354"
        labels = found(chart, "text")
        assert len(labels) > 3
        assert not any({"font-size", "style", "class"} & set(each["attributes"]) for each in labels)
    style = page("report", DATA).partition("<style>")[2].partition("</style>")[0]
    rules = re.findall(r"(svg[^{]*){([^}]*)}", style)
    assert rules
    assert not [body for _, body in rules if "font" in body or "width" in body]
