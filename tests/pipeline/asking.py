"""What the tests here ask of Spark and of a broker, in few words."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from posthouse.cli import main
from tests.server.running import Running

Json = Any


def read(spark: SparkSession, broker: Running, **options: str) -> DataFrame:
    return spark.read.format("posthouse").options(url=broker.url, **options).load()


def write(frame: DataFrame, broker: Running, entity: str, **options: str) -> None:
    writer = frame.write.format("posthouse").options(url=broker.url, entity=entity, **options)
    writer.mode("append").save()


def last(broker: Running) -> int:
    """The last position that there is."""
    return int(broker.call("GET", "/feed/status").json["last"])


def events(broker: Running, query: str = "") -> list[dict[str, Json]]:
    """As the feed itself tells them."""
    reply = broker.call("GET", f"/feed?limit=1000000&{query}")
    assert reply.status == 200, reply
    return [json.loads(line) for line in reply.body.splitlines()]


def bodies(broker: Running, queue: str) -> list[str]:
    """Of all that is in a queue, which is empty then."""
    taken: list[str] = []
    while messages := broker.receive(queue, 1000, delete=True):
        taken += [each["body"] for each in messages]
    return taken


def read_as_told(err: str) -> dict[str, Json]:
    """What a job that is over has read, by the last line of JSON that it told."""
    told: dict[str, Json] = json.loads(err.splitlines()[-1])
    assert told["rate"] == pytest.approx(told["rows"] / told["seconds"], rel=0.5)
    assert told["seconds_left"] == 0
    return told


def foretold(err: str) -> list[float]:
    """How long a job said that it would still take, while it ran."""
    told = [json.loads(line) for line in err.splitlines()[:-1]]
    left = [each.get("seconds_left") for each in told if "rows" in each]
    return [each for each in left if each is not None]


def on_a_terminal(*words: str) -> str:
    """What a command shows there of how far it is."""
    screen, terminal = os.openpty()
    with pytest.MonkeyPatch.context() as patched, os.fdopen(terminal, "w") as stderr:
        patched.setattr(sys, "stderr", stderr)
        assert main(["pipeline", *words]) == 0
    shown = b""
    with suppress(OSError), os.fdopen(screen, "rb", buffering=0) as said:  # so it ends
        while some := said.read(4_096):
            shown += some
    return shown.decode()


def forget(checkpoint: Path) -> int:
    """Makes Spark believe that the last batch was not finished; its number."""
    commits = checkpoint / "commits"
    number = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
    (commits / str(number)).unlink()
    (commits / f".{number}.crc").unlink(missing_ok=True)
    return number


class Batches:
    """What a stream gave, batch by batch. Each run goes on where the one before stopped."""

    def __init__(self, spark: SparkSession, url: str, checkpoint: Path, **options: str) -> None:
        self._spark = spark
        self.options = {"url": url, **options}
        self._checkpoint = checkpoint
        self.meanwhile: Callable[[], object] | None = None  # done in each batch
        self.seen: list[tuple[int, list[int]]] = []  # number, and positions

    def start(self, **trigger: Any) -> StreamingQuery:
        rows = self._spark.readStream.format("posthouse").options(**self.options).load()
        return (
            rows.writeStream.foreachBatch(self._see)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(**trigger)
            .start()
        )

    def run(self) -> list[tuple[int, list[int]]]:
        """All that there is now; what this run alone has seen. Raises what stopped it."""
        before = len(self.seen)
        self.start(availableNow=True).awaitTermination()
        return self.seen[before:]

    def forget(self) -> int:
        return forget(self._checkpoint)

    @property
    def positions(self) -> list[int]:
        return [position for _, positions in self.seen for position in positions]

    def _see(self, frame: DataFrame, number: int) -> None:
        rows = frame.select("position").collect()
        if self.meanwhile is not None:
            self.meanwhile()
        self.seen.append((number, sorted(row.position for row in rows)))
