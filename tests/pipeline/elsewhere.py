"""Spark that runs elsewhere: in processes of its own, whose Python has nothing of Posthouse."""

import os
import signal
import socket
import subprocess
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyspark

from posthouse.pipeline.session import java_home
from tests.waiting import until

SPARK = Path(pyspark.__file__).parent


def bare_environment(folder: Path) -> dict[str, str]:
    """One in which nothing of ours is found."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return environment | {
        "JAVA_HOME": java_home(), "SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(_bare_python(folder / "bare")),
    }  # fmt: skip


def _bare_python(folder: Path) -> Path:
    """One that has PyArrow, and nothing of ours."""
    venv.create(folder, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    for each in Path(pa.__file__).parent.parent.glob("pyarrow*"):
        (packages / each.name).symlink_to(each)
    return folder / "bin" / "python"


@contextmanager
def running(
    commands: list[list[str]], port: int, folder: Path, environment: dict[str, str]
) -> Iterator[None]:
    """Each is begun when the first one listens. What they say is in the folder."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with (folder / f"log-{len(started)}").open("wb") as log:
                started.append(
                    subprocess.Popen(
                        command, stdout=log, stderr=log, env=environment, start_new_session=True
                    )
                )
            await_that(lambda: is_open(port), f"{commands[0]} listens")
        yield
    finally:
        for each in reversed(started):
            os.killpg(each.pid, signal.SIGTERM)  # a worker ends its executors
            each.wait(60)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def is_open(port: int) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


def await_that(holds: Callable[[], object], what: str) -> None:
    until(holds, what, 600, look_seconds=0.05)
