"""The OpenAPI document against the server: what fits it, or does not, is never an error of ours.

schemathesis makes requests from the document, good and bad ones, and looks at the answers.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.server.running import Running, development

pytestmark = pytest.mark.long

EXAMPLES = os.environ.get("OPENAPI_EXAMPLES", "20")  # for each operation
# Names that lead somewhere, most of the time: random ones would all be unknown.
NAMES = {
    "namespace": ["default", "default", "shop", "no such"],
    "queue": ["orders", "orders", "trips", "orders/$dead", "a/b", "$x"],
    "principal": ["web", "nobody"],
    "reader": ["spark", "r/2"],
    "id": ["m1", "m2"],
    "topic": ["news", "news", "no-such", "a b"],
    "subscription": ["mine", "mine", "other"],
}


def with_names(document: dict[str, Any]) -> dict[str, Any]:
    for operations in document["paths"].values():
        for method, operation in operations.items():
            for parameter in operation.get("parameters", ()):
                name = parameter["name"]
                if parameter["in"] == "path" and name in NAMES:
                    last = NAMES[name][-2:]  # what is most used is not deleted
                    parameter["schema"] = {"enum": last if method == "delete" else NAMES[name]}
    return document


def run(folder: Path, document: dict[str, Any], *flags: str) -> None:
    """Raises AssertionError with what it found."""
    (folder / "openapi.json").write_text(json.dumps(document))
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", "openapi.json",
        "--seed", "7", "--workers", "1", "--no-color",
        "--request-timeout", "70", "--suppress-health-check", "all",
        "--phases", "examples,coverage,fuzzing", *flags,
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-2_000:]


def check_that_much_was_done(broker: Running) -> None:
    """And, when it has stopped, that nothing failed."""
    assert broker.call("GET", "/health/ready").status == 200
    text = broker.call("GET", "/metrics").body.decode()
    counts = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    asked = float(counts["posthouse_http_requests_total"])
    refused = sum(float(n) for name, n in counts.items() if "http_refusals" in name)
    assert asked - refused > asked / 10  # much of it was understood, and done
    assert broker.stop() == 0
    assert not broker.events("http.failed")


def test_no_request_that_can_be_made_from_it_is_a_server_error(tmp_path: Path) -> None:
    with development(tmp_path / "data") as broker:
        broker.call("PUT", "/api/v1/namespaces/shop")
        broker.queue("PUT", "trips", {"grouping": "session"})
        broker.send("orders", *"abc", id="m1")
        [dead] = broker.receive("orders")
        broker.queue("POST", "orders/dead-letter", {"locks": [dead["token"]]})
        document = with_names(broker.call("GET", "/docs/openapi.json").json)
        run(
            tmp_path, document, "--url", broker.url,
            "--auth", "RootManageSharedAccessKey:SAS_KEY_VALUE",
            "--checks", "not_a_server_error,response_schema_conformance,status_code_conformance",
            "--exclude-path-regex", "(snapshot|deliveries|folder)$", "--max-examples", EXAMPLES,
        )  # fmt: skip
        check_that_much_was_done(broker)


def test_nor_one_of_localzures(tmp_path: Path) -> None:
    with development(tmp_path / "data") as broker:
        for path in ("queues/orders", "topics/news", "topics/news/subscriptions/mine"):
            assert broker.call("PUT", f"/servicebus/{path}").status == 201
        assert broker.call("PUT", "/servicebus/queues/trips", raw=SESSIONS).status == 201
        document = with_names(broker.call("GET", "/servicebus/docs/openapi.json").json)
        flags = ("--checks", "not_a_server_error", "--max-examples", "5")
        run(tmp_path, document, "--url", broker.url, *flags)
        check_that_much_was_done(broker)


SESSIONS = b"<QueueDescription><RequiresSession>true</RequiresSession></QueueDescription>"
