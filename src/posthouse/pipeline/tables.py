"""Results as files that anybody reads."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

FORMS = ("parquet", "csv", "json")


def write_table(table: pa.Table, path: Path, form: str) -> None:
    if form == "parquet":
        pq.write_table(table, path)
    elif form == "csv":
        csv.write_csv(table, path)
    else:
        rows = [json.dumps(row, default=str, ensure_ascii=False) for row in table.to_pylist()]
        path.write_text("".join(f"{row}\n" for row in rows))
