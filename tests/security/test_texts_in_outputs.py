"""Texts that others wrote, in logs and tables: they are shown, and do nothing."""

import json
import logging
from pathlib import Path

import pytest

from posthouse.server.log import JsonLines, Lines
from tests.server.running import development

HOSTILE = ["x\r\n2026-01-01 00:00:00.000Z info forged", "\x1b[2Jgone", "a\0b", "\u2028next", "\x85"]


def a_record(text: str, *, failed: bool) -> logging.LogRecord:
    info = None
    if failed:
        try:
            raise ValueError(text)  # noqa: TRY301
        except ValueError as error:
            info = (type(error), error, error.__traceback__)
    return logging.LogRecord("name", logging.ERROR, "p", 1, "It says %s", (text,), info)


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_begins_a_line_of_the_log(text: str, failed: bool) -> None:
    shown = Lines(colour=False).format(a_record(text, failed=failed))
    first, *rest = shown.split("\n")
    assert all(line.startswith("    | ") for line in rest)
    assert bool(rest) == failed
    assert all(each.isprintable() for each in (first, *rest))
    line = JsonLines().format(a_record(text, failed=failed))
    assert len(line.splitlines()) == 1
    assert text in json.loads(line)["message"]


def test_names_and_ids_from_outside_stay_in_their_lines(tmp_path: Path) -> None:
    """A broker that writes text: names of queues, principals and correlation ids."""
    with development(tmp_path) as broker:
        for text in HOSTILE[:1]:
            broker.call("PUT", "/api/v1/principals/" + "x%0d%0aforged", {"grants": []})
            headers = {"x-correlation-id": text.replace("\r\n", "\\r\\n")}
            broker.queue("PUT", "x%0d%0aforged", {}, headers=headers)
        assert all(each["event"] != "not JSON" for each in broker.log)


def test_a_cell_of_a_table_is_no_formula(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from posthouse.pipeline.tables import write_table

    cells = ["=cmd|'/c calc'!A0", "+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "plain", "a=b", None]
    table = pa.table({"reason": cells, "count": list(range(-4, 5))})
    write_table(table, tmp_path / "t.csv", "csv")
    text = (tmp_path / "t.csv").read_bytes().decode()
    for cell in cells[:6]:
        assert f'"\'{cell}"' in text
    assert '"plain",2' in text
    assert '"a=b",3' in text
    assert "-4" in text  # a number is one
