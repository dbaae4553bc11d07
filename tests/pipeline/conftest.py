"""One Spark session and one broker for all of it: to start them takes longer than most tests."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from posthouse.pipeline import NoSpark, session
from posthouse.pipeline.session import java_home
from tests.server.running import Running, development

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.sql.shuffle.partitions": "1", "spark.log.level": "OFF",
    # For a few rows it takes longer to write and compile code than to do without.
    "spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.python.daemon.module": "tests.pipeline.daemon",
}  # fmt: skip

# It runs for a few minutes, beside other tests. To compile less takes less; what was compiled has
# room to stay; and what is new has room enough not to be copied about.
JAVA = (
    "-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=256m", "-XX:+UseSerialGC",
    "-XX:NewRatio=1",
)  # fmt: skip


def need_java() -> None:
    """Skips where there is none; in CI that is a failure."""
    try:
        java_home()
    except NoSpark as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    need_java()
    os.environ.setdefault("JDK_JAVA_OPTIONS", " ".join(JAVA))
    tables = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("tables"))}
    spark = session("local[2]", settings=SETTINGS | tables)
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with development(tmp_path_factory.mktemp("pipeline") / "data") as broker:
        yield broker


@pytest.fixture
def watched_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    """How far a job is, is told often enough for a short one."""
    monkeypatch.setattr("posthouse.cli.pipeline.WATCH_SECONDS", 0.2)
