"""A Celery application whose broker is Amazon SQS: tasks that write down what they do."""

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

LOG = Path(os.environ["TASKS_LOG"])
app = Celery("tasks", broker=os.environ["TASKS_BROKER"])
app.conf.update(
    broker_transport_options={
        "region": "us-east-1", "wait_time_seconds": 1, "polling_interval": 0.05,
        "visibility_timeout": 600, "is_secure": False,
    },
    worker_enable_remote_control=False, broker_connection_retry_on_startup=True,
    task_default_queue="celery-tasks", task_acks_late=True,
)  # fmt: skip


def note(text: str) -> None:
    with LOG.open("a") as log:
        log.write(text + "\n")


@app.task
def add(first: int, second: int) -> None:
    note(f"add {first + second}")


@app.task(bind=True, max_retries=2, default_retry_delay=0)
def fail_twice(self: Any) -> None:
    note(f"try {self.request.retries}")
    if self.request.retries < 2:
        raise self.retry()


@app.task
def late(due: float) -> None:
    note(f"late {time.time() >= due}")
