"""Results as files that anybody reads."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

FORMS = ("parquet", "csv", "json")


def write_table(table: pa.Table, path: Path, form: str) -> None:
    if form == "parquet":
        pq.write_table(table, path)
    elif form == "csv":
        csv.write_csv(_without_formulas(table), path)
    else:
        rows = [json.dumps(row, default=str, ensure_ascii=False) for row in table.to_pylist()]
        path.write_text("".join(f"{row}\n" for row in rows))


# A spreadsheet takes a cell that begins so for a formula, and messages are written by anybody.
_FORMULA = r"^([=+\-@\t\r])"


def _without_formulas(table: pa.Table) -> pa.Table:
    """Texts that would be formulas have an apostrophe before them, which makes them texts."""
    for at, field in enumerate(table.schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            column = pc.replace_substring_regex(table.column(at), _FORMULA, r"'\1")
            table = table.set_column(at, field, column)
    return table
