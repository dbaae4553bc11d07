"""AWS's SDK for JavaScript. `make .venv/js-sqs/ready` has put it in place."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.dialects.sqs.rig import Aws

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).parent / "js" / "sqs.js"
PACKAGES = ROOT / ".venv" / "js-sqs" / "node_modules"
HANGS_SECONDS = 120


@pytest.fixture(scope="module")
def told(aws: Aws) -> Any:
    node = shutil.which("node")
    if node is None or not PACKAGES.exists():
        what = (
            "node is missing" if node is None else f"{PACKAGES} is missing: make .venv/js-sqs/ready"
        )
        if os.environ.get("CI"):
            pytest.fail(what)
        pytest.skip(what)
    done = subprocess.run(
        [node, str(SCRIPT)], capture_output=True, text=True, check=False, timeout=HANGS_SECONDS,
        env={
            **os.environ, "NODE_PATH": str(PACKAGES), "AWS_ENDPOINT_URL_SQS": aws.broker.url,
            "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_message_comes_through_with_its_digests(aws: Aws, told: Any) -> None:
    assert told["roundTrip"] == {
        "url": f"{aws.broker.url}/000000000000/js", "body": 'grüße <&"\r\n>', "sameId": True,
        "colour": "blue", "blob": [0, 255], "count": "1", "sameDigest": True, "rest": 0,
    }  # fmt: skip


def test_a_batch_comes_through(told: Any) -> None:
    assert told["batch"] == {"sent": 3, "received": ["a", "b", "c"]}


def test_a_missing_queue_has_the_name_that_programs_look_for(told: Any) -> None:
    assert told["missing"]["name"] == "QueueDoesNotExist"
    assert told["missing"]["status"] == 400
