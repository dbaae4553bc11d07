"""A Spark Connect server that has nothing of Posthouse installed. It takes most of a minute, so it
runs with TORTURE=1 alone."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import posthouse
from posthouse.pipeline.lake import Lake
from tests.pipeline import on_connect
from tests.pipeline.asking import bodies
from tests.pipeline.conftest import need_java
from tests.pipeline.elsewhere import SPARK, bare_environment, free_port, running
from tests.server.running import Running


@contextmanager
def server(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """How it is named."""
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false", "spark.sql.warehouse.dir": str(folder / "tables"),
    }  # fmt: skip
    command = [
        str(SPARK / "bin" / "spark-submit"), "--master", "local[2]",
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal",
    ]  # fmt: skip
    with running([command], port, folder, environment):
        yield f"sc://127.0.0.1:{port}"


@pytest.mark.skipif(os.environ.get("TORTURE") != "1", reason="takes long; set TORTURE=1")
def test_nothing_is_installed_where_spark_connect_leads(broker: Running, tmp_path: Path) -> None:
    need_java()
    broker.queue("PUT", "connect-in", {})
    for name in ("connect-out", "connect-streamed"):
        broker.queue("PUT", name, {"duplicate_detection": True})
    sent = [str(number) for number in range(5)]
    broker.send("connect-in", *sent)
    environment = bare_environment(tmp_path)
    connect = os.environ.get("PYTHONPATH", "")  # what make torture has put aside
    sources = f"{Path(posthouse.__file__).parent.parent}{os.pathsep}{connect}"

    def run(*command: str, **more: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, *command], env=environment | more, capture_output=True, text=True,
            timeout=180, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done

    def job(name: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["-m", "posthouse.cli", "pipeline", name, "--lake", str(tmp_path / "lake")]
        return run(*command, "--master", where, "--json", *words, PYTHONPATH=sources)

    with server(tmp_path, environment) as where:
        run(on_connect.__file__, sources, where, broker.url, str(tmp_path))
        archived = json.loads(job("archive", "--url", broker.url).stdout)
        verified = job("verify")
    told = json.loads((tmp_path / "told.json").read_text())
    assert told == {
        "session": "pyspark.sql.connect.session", "found": [False], "messages": sent,
        "events": ["queue-created"] + ["sent"] * 5,
    }  # fmt: skip
    assert sorted(bodies(broker, "connect-out")) == ["one", "two"]
    assert sorted(bodies(broker, "connect-streamed")) == sent
    assert Lake(archived["lake"]).end() == archived["rows"] + 1
    assert json.loads(verified.stdout)["is_well"]
    read = json.loads(verified.stderr.splitlines()[-1])  # it tells of bytes and tasks alone
    assert (read["doing"], read["rows"]) == ("Verifying", None)
