"""Azure's REST messaging by programs that people have: curl, and httpx."""

import json
import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import httpx
import pytest

from tests.dialects.servicebus.bus import Bus
from tests.dialects.servicebus.sas import token
from tests.dialects.servicebus.test_rest import BATCH
from tests.dialects.servicebus.trust import trusting


class Said(NamedTuple):
    status: int
    headers: dict[str, str]  # by their names in small letters
    body: str

    @property
    def broker(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.headers["brokerproperties"])
        return found


class Client(Protocol):
    def __call__(self, method: str, url: str, body: str = "", **headers: str) -> Said: ...


def by_httpx(client: httpx.Client) -> Client:
    def ask(method: str, url: str, body: str = "", **headers: str) -> Said:
        reply = client.request(method, url, content=body, headers=headers, timeout=30)
        return Said(reply.status_code, dict(reply.headers), reply.text)

    return ask


def by_curl(authority: str) -> Client:
    if shutil.which("curl") is None:
        assert not os.environ.get("CI"), "curl is missing"
        pytest.skip("curl is missing")

    def ask(method: str, url: str, body: str = "", **headers: str) -> Said:
        given = [flag for name, value in headers.items() for flag in ("-H", f"{name}: {value}")]
        command = ["curl", "-sS", "-i", "-m", "30", "--cacert", authority, "-X", method]
        done = subprocess.run(
            [*command, *given, "--data-binary", "@-", url],
            input=body, capture_output=True, text=True, check=True,
        )  # fmt: skip
        head, _, rest = done.stdout.replace("\r\n", "\n").partition("\n\n")
        first, *lines = head.split("\n")
        pairs = (line.partition(": ") for line in lines)
        return Said(int(first.split()[1]), {name.lower(): v for name, _, v in pairs}, rest)

    return ask


@pytest.fixture(params=["curl", "httpx"])
def ask(request: pytest.FixtureRequest, bus: Bus) -> Iterator[Client]:
    authority = trusting(bus.broker)["SSL_CERT_FILE"]
    if request.param == "curl":
        yield by_curl(authority)
    else:
        with httpx.Client(verify=ssl.create_default_context(cafile=authority)) as client:
            yield by_httpx(client)


@pytest.fixture(params=["http", "https"])
def queue(request: pytest.FixtureRequest, bus: Bus) -> str:
    """Its address."""
    return f"{request.param}://localhost:{bus.broker.port}/{bus.queue()}"


def test_a_message_is_sent_and_received_and_completed(ask: Client, queue: str) -> None:
    key = {"Authorization": token(queue)}
    told = json.dumps({"MessageId": "m1", "Label": "l"})
    sent = ask("POST", f"{queue}/messages", "a book", BrokerProperties=told, n="5", **key)
    assert sent.status == 201
    locked = ask("POST", f"{queue}/messages/head?timeout=5", **key)
    assert (locked.status, locked.body, locked.headers["n"]) == (201, "a book", "5")
    assert (locked.broker["MessageId"], locked.broker["Label"]) == ("m1", "l")
    place = locked.headers["location"]
    assert ask("POST", place, **key).status == 200  # its lock is renewed
    assert ask("PUT", place, **key).status == 200  # and given up
    again = ask("POST", f"{queue}/messages/head?timeout=5", **key)
    assert again.broker["DeliveryCount"] == 2
    assert ask("DELETE", again.headers["location"], **key).status == 200
    assert ask("DELETE", again.headers["location"], **key).status == 404
    assert ask("DELETE", f"{queue}/messages/head?timeout=0", **key).status == 204


def test_a_batch_is_sent_and_taken(ask: Client, queue: str) -> None:
    key = {"Authorization": token(queue)}
    batch = json.dumps([{"Body": "a", "UserProperties": {"n": 1}}, {"Body": "b"}])
    assert ask("POST", f"{queue}/messages", batch, **BATCH, **key).status == 201
    taken = [ask("DELETE", f"{queue}/messages/head?timeout=5", **key) for _ in "ab"]
    assert [(each.status, each.body) for each in taken] == [(200, "a"), (200, "b")]
    assert taken[0].headers["n"] == "1"


def test_who_has_no_key_for_it_is_refused(ask: Client, queue: str) -> None:
    for wrong in ("", token(queue, key="wrong"), token(queue, seconds=-1), token(f"{queue}0")):
        refused = ask("POST", f"{queue}/messages", "x", Authorization=wrong)
        assert (refused.status, "SubCode=40103" in refused.body) == (401, True)
