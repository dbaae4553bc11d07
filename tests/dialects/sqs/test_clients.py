"""Programs on top of AWS's SDK: its command line, and Celery. `make` has put them in place."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.dialects.sqs.rig import Aws
from tests.waiting import until

PLACE = Path(__file__).parents[3] / ".venv"
HANGS_SECONDS = 120


def need(name: str) -> dict[str, str]:
    """The environment in which the packages of a folder are found; else skips, but not in CI."""
    folder = PLACE / name
    if not folder.exists():
        what = f"{folder} is missing: make .venv/{name}"
        if os.environ.get("CI"):
            pytest.fail(what)
        pytest.skip(what)
    known = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return {
        **known, "PYTHONPATH": str(folder), "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
    }  # fmt: skip


def test_the_command_line_sends_receives_and_deletes(aws: Aws) -> None:
    environment = need("awscli")

    def run(*words: str) -> Any:
        command = [sys.executable, "-m", "awscli", "--endpoint-url", aws.broker.url, "sqs", *words]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False,
            timeout=HANGS_SECONDS,
        )  # fmt: skip
        return json.loads(done.stdout) if done.stdout else done.stderr

    url = run("create-queue", "--queue-name", "cli")["QueueUrl"]
    assert url == f"{aws.broker.url}/000000000000/cli"
    sent = run("send-message", "--queue-url", url, "--message-body", "grüße", "--no-sign-request")
    [found] = run("receive-message", "--queue-url", url, "--attribute-names", "All")["Messages"]
    assert (found["MessageId"], found["Body"]) == (sent["MessageId"], "grüße")
    handle = found["ReceiptHandle"]
    assert run("delete-message", "--queue-url", url, "--receipt-handle", handle) == ""
    assert aws.counts(url) == (0, 0, 0)
    assert "AWS.SimpleQueueService.NonExistentQueue" in run("get-queue-url", "--queue-name", "none")


def test_celery_runs_tasks_tries_them_again_and_waits_for_their_time(
    aws: Aws, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.touch()
    broker = f"sqs://test:test@127.0.0.1:{aws.broker.port}//"
    environment = {
        **need("celery-sqs"), "TASKS_LOG": str(log), "TASKS_BROKER": broker,
    }  # fmt: skip
    environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).parent)
    words = (
        "worker",
        "--pool",
        "solo",
        "--loglevel",
        "INFO",
        "--without-gossip",
        "--without-mingle",
    )
    with subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "celery_app", *words], env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path,
    ) as worker:  # fmt: skip
        try:
            code = (
                "import celery_app, time\n"
                "celery_app.add.delay(2, 3)\n"
                "celery_app.fail_twice.delay()\n"
                "due = time.time() + 1\n"
                "celery_app.late.apply_async((due,), countdown=1)\n"
            )
            subprocess.run(
                [sys.executable, "-c", code], env=environment, check=True, timeout=HANGS_SECONDS,
                cwd=tmp_path,
            )  # fmt: skip
            expected = ["add 5", "late True", "try 0", "try 1", "try 2"]

            def done() -> bool:
                return sorted(log.read_text().splitlines()) == expected

            until(done, "all tasks have run", seconds=60)
            url = aws.client.get_queue_url(QueueName="celery-tasks")["QueueUrl"]
            until(lambda: aws.counts(url) == (0, 0, 0), "all are acknowledged", seconds=30)
        finally:
            worker.terminate()
            worker.wait(HANGS_SECONDS)
