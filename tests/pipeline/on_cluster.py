"""What test_cluster runs as a program of its own: the driver of a cluster.

    python on_cluster.py SOURCES MASTER URL FOLDER FROM

Nothing of Posthouse is found by the cluster's Python; this one is told where it is.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path


def finds_posthouse(_: int) -> bool:
    from importlib.util import find_spec

    return find_spec("posthouse") is not None


def gate(folder: str) -> Callable[[bytes], bytes]:
    """Lets some rows through, says which executor it is in, and waits for a word."""
    rows = 0

    def through(body: bytes) -> bytes:
        import os
        import time
        from pathlib import Path

        nonlocal rows
        rows += 1
        if rows == 2_000:
            daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
            executor = daemon.rpartition(")")[2].split()[1]
            (Path(folder) / f"executor-{executor}").touch()
            while not (Path(folder) / "go").exists():
                time.sleep(0.05)  # slept: between two looks; tests/waiting.py is not there
        return bytes(body)

    return through


def main(master: str, url: str, folder: str, first: str) -> None:
    from pyspark.sql.functions import udf

    from posthouse.pipeline import session

    settings = {
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.ui.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "500", "spark.log.level": "OFF",
        "spark.sql.execution.pythonUDF.arrow.enabled": "false",  # the gate is for single rows
    }  # fmt: skip
    spark = session(master, settings=settings)
    of = {"url": url, "entity": "in", "from": first}  # so that both executors have as much of it
    told: dict[str, object] = {}
    found = spark.range(0, 4, 1, 2).select(udf(finds_posthouse, "boolean")("id").alias("found"))
    told["found"] = [row.found for row in found.collect()]
    frame = spark.read.format("posthouse").options(partitions="2", **of).load()
    told["rows"] = frame.count()
    chosen = frame.selectExpr("body", "cast(position as string) as message_id")
    slow = chosen.withColumn("body", udf(gate(folder), "binary")("body"))
    slow.write.format("posthouse").options(url=url, entity="out").mode("append").save()
    rows = spark.readStream.format("posthouse").options(maxRowsPerBatch="3000", **of).load()
    query = (
        rows.selectExpr("body", "cast(position as string) as message_id")
        .writeStream.format("posthouse")
        .options(url=url, entity="streamed", checkpointLocation=f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    told["batches"] = len(query.recentProgress)
    (Path(folder) / "told.json").write_text(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    main(*sys.argv[2:])
