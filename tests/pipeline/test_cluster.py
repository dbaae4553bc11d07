"""A cluster of two workers that has nothing of Posthouse installed. It takes over a minute, so it
runs with TORTURE=1 alone."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import posthouse
from tests.pipeline import on_cluster
from tests.pipeline.asking import bodies, events, last
from tests.pipeline.conftest import need_java
from tests.pipeline.elsewhere import SPARK, await_that, bare_environment, free_port, running
from tests.server.running import Running


@contextmanager
def cluster(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """A master and two workers of one core each; how it is named."""
    port = free_port()
    run = [str(SPARK / "bin" / "spark-class")]
    deploy = "org.apache.spark.deploy"
    host = ["--host", "127.0.0.1", "--webui-port", "0"]
    master = f"spark://127.0.0.1:{port}"
    work = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / "work"), master]
    commands = [
        [*run, f"{deploy}.master.Master", *host, "--port", str(port)],
        [*run, f"{deploy}.worker.Worker", *host, *work],
        [*run, f"{deploy}.worker.Worker", *host, *work],
    ]
    with running(commands, port, folder, environment):
        yield master


@pytest.mark.skipif(os.environ.get("TORTURE") != "1", reason="takes long; set TORTURE=1")
def test_nothing_is_installed_there_and_an_executor_may_die(
    broker: Running, tmp_path: Path
) -> None:
    need_java()
    for name in ("out", "streamed"):
        broker.queue("PUT", name, {"duplicate_detection": True})
    broker.queue("PUT", "in", {})
    sent = [f"{number} {'x' * 200}" for number in range(5_000)]
    for at in range(0, len(sent), 1_000):
        broker.send("in", *sent[at : at + 1_000])
    begins = str(last(broker) - len(sent) + 1)
    environment = bare_environment(tmp_path)
    with cluster(tmp_path, environment) as master, (tmp_path / "log-driver").open("wb") as log:
        sources = str(Path(posthouse.__file__).parent.parent)
        command = [sys.executable, on_cluster.__file__, sources, master, broker.url, str(tmp_path)]
        driver = subprocess.Popen([*command, begins], stdout=log, stderr=log, env=environment)
        try:
            await_that(
                lambda: (
                    driver.poll() is not None
                    or (
                        len(list(tmp_path.glob("executor-*"))) == 2
                        and events(broker, "namespace=default&entity=out&kinds=sent")
                    )
                ),
                "both executors are at it, and something was written",
            )
            assert driver.poll() is None, (tmp_path / "log-driver").read_text()
            [first, _] = tmp_path.glob("executor-*")
            os.kill(int(first.name.removeprefix("executor-")), signal.SIGKILL)
            (tmp_path / "go").touch()
            driver.wait(180)
        finally:
            driver.kill()
            driver.wait()
    assert driver.returncode == 0, (tmp_path / "log-driver").read_text()
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["found"] == [False] * 4
    assert told["rows"] == len(sent)
    assert told["batches"] >= 2
    for name in ("out", "streamed"):
        assert sorted(bodies(broker, name)) == sorted(sent)
