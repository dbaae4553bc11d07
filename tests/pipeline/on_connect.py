"""What test_connect runs as a program of its own: a client of Spark Connect.

    python on_connect.py SOURCES SERVER URL FOLDER

Nothing of Posthouse is found by the server's Python; this one is told where it is.
"""

import json
import os
import sys
from pathlib import Path


def finds_posthouse(_: int) -> bool:
    from importlib.util import find_spec

    return find_spec("posthouse") is not None


def main(server: str, url: str, folder: str) -> None:
    from pyspark.sql.functions import udf

    from posthouse.pipeline import session

    spark = session(server, settings={"spark.sql.shuffle.partitions": "1"})
    of = {"url": url, "entity": "connect-in"}
    told: dict[str, object] = {"session": type(spark).__module__}
    found = spark.range(1).select(udf(finds_posthouse, "boolean")("id").alias("found"))
    told["found"] = [row.found for row in found.collect()]
    read = spark.read.format("posthouse").options(**of)
    messages = read.option("body", "text").load().select("body")
    told["messages"] = [row.body for row in messages.collect()]
    events = read.option("view", "events").load().select("kind")
    told["events"] = [row.kind for row in events.collect()]
    written = spark.createDataFrame([("one",), ("two",)], "body string")
    written.write.format("posthouse").options(url=url, entity="connect-out").mode("append").save()
    rows = spark.readStream.format("posthouse").options(**of).load()
    query = (
        rows.selectExpr("body", "cast(position as string) as message_id")
        .writeStream.format("posthouse")
        .options(url=url, entity="connect-streamed", checkpointLocation=f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    (Path(folder) / "told.json").write_text(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    sys.path[:0] = sys.argv[1].split(os.pathsep)
    main(*sys.argv[2:])
