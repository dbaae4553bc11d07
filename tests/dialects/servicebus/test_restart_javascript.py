"""A broker that goes and comes back while the official JavaScript client uses it."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.dialects.servicebus.javascript import (
    HANGS_SECONDS,
    PACKAGES,
    SCRIPTS,
    Json,
    connection_string,
    need_node,
)
from tests.server.running import Running, development, running


@contextmanager
def using(broker: Running) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [need_node(), str(SCRIPTS / "restart.js"), connection_string(broker.port)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "NODE_PATH": str(PACKAGES)},
    ) as client:  # fmt: skip
        try:
            yield client
        finally:
            client.kill()


def said(client: "subprocess.Popen[str]", count: int) -> list[Json]:
    assert client.stdout is not None
    return [json.loads(client.stdout.readline()) for _ in range(count)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_client_goes_on_with_a_broker_that_comes_back(
    tmp_path: Path, number: signal.Signals
) -> None:
    need_node()
    with development(tmp_path) as broker:
        port = broker.port
        with using(broker) as client:
            said(client, 20)
            broker.stop(number)
            with running(
                "--data", str(tmp_path), "--dev", "--auto-create", "--port", str(port)
            ) as again:
                assert port in again.events("broker.ready")[0]["ports"]
                while said(client, 1)[0] < 200:
                    pass
                assert client.stdin is not None
                client.stdin.close()
                assert client.stdout is not None
                last = json.loads(client.stdout.read().splitlines()[-1])
                client.wait(HANGS_SECONDS)
    assert (
        len(last["acknowledged"]) > 100
    )  # of more than 200; what failed meanwhile is not among them
    assert set(last["acknowledged"]) <= set(last["received"])
