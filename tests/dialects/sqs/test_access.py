"""Credentials and rights without --dev: signatures are checked, and each action needs its right."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import botocore.auth
import botocore.compat
import pytest
from botocore import UNSIGNED
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.dialects.sqs.rig import Aws, path_of, refused
from tests.server.running import Reply, Running, running


class Locked(Aws):
    """A broker that asks for credentials, and the root's client."""

    def __init__(self, broker: Running, key: str) -> None:
        self.root = f"RootManageSharedAccessKey:{key}"
        super().__init__(broker)
        self.client = self.other("RootManageSharedAccessKey", key)

    def principal(self, *rights: str, entity: str = "*", namespace: str = "*") -> tuple[str, str]:
        """A new one's access key id and secret."""
        name = self.name("-who")
        grants = [{"rights": list(rights), "namespace": namespace, "entity": entity}]
        reply = self.broker.call(
            "POST", "/api/v1/principals", {"name": name, "grants": grants}, key=self.root
        )
        assert reply.status == 201, reply
        return name, reply.json["key"]


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    folder = tmp_path_factory.mktemp("posthouse") / "data"
    with running("--data", str(folder), "--insecure", "--auth-failures-max", "0") as broker:
        key = (folder / "root-key").read_text().strip()
        yield Locked(broker, key)


def test_a_principal_s_name_and_key_are_an_access_key(locked: Locked) -> None:
    queue = locked.queue()
    sqs = locked.other(*locked.principal("send", "listen"))
    sqs.send_message(QueueUrl=queue, MessageBody="signed")
    [found] = sqs.receive_message(QueueUrl=queue, AttributeNames=["SenderId"])["Messages"]
    assert found["Body"] == "signed"
    assert found["Attributes"]["SenderId"].endswith("-who")
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=found["ReceiptHandle"])


def test_who_shows_nothing_or_something_else_is_told_why(locked: Locked) -> None:
    queue, (id, key) = locked.queue(), locked.principal("send")
    cases = [
        (locked.other(id, key + "x"), "SignatureDoesNotMatch", "InvalidSignatureException", 403),
        (locked.other("nobody", key), "InvalidClientTokenId", "UnrecognizedClientException", 403),
        (locked.other(more={"signature_version": UNSIGNED}), "AccessDenied",
         "AccessDeniedException", 403),
    ]  # fmt: skip
    for sqs, code, _, status in cases:
        told = refused(sqs.send_message, QueueUrl=queue, MessageBody="x")
        assert (told.code, told.status) == (code, status)
    unsigned = locked.ask("SendMessage", {"QueueUrl": queue, "MessageBody": "x"})
    assert unsigned.json["__type"] == "com.amazon.coral.service#AccessDeniedException"
    assert "date" in {name.lower() for name in unsigned.headers}
    assert locked.counts(queue) == (0, 0, 0)


@pytest.mark.parametrize(
    ("minutes", "code"), [(-16, "SignatureDoesNotMatch"), (16, "SignatureDoesNotMatch"), (-14, "")]
)
def test_a_signature_is_good_for_a_quarter_of_an_hour(
    locked: Locked, minutes: int, code: str
) -> None:
    queue = locked.queue()

    class Clock(datetime):
        @classmethod
        def utcnow(cls) -> Any:
            return datetime.now(UTC).replace(tzinfo=None) + timedelta(minutes=minutes)

    def at_another_time(remove_tzinfo: bool = True) -> datetime:
        found: datetime = Clock.utcnow()
        return found if remove_tzinfo else found.replace(tzinfo=UTC)

    name = "get_current_datetime" if hasattr(botocore.auth, "get_current_datetime") else ""
    patched = (
        patch.object(botocore.auth, name, at_another_time)
        if name
        else patch.object(botocore.auth.datetime, "datetime", Clock)
    )
    with patched:
        if not code:
            locked.client.send_message(QueueUrl=queue, MessageBody="x")
            return
        told = refused(locked.client.send_message, QueueUrl=queue, MessageBody="x")
    assert (told.code, told.status) == (code, 403)
    assert told.text.startswith("Signature expired: " if minutes < 0 else "Signature not yet")


def test_who_has_no_right_is_told_so_whether_the_queue_is_there_or_not(locked: Locked) -> None:
    """In the words that kombu looks for; everything else it tries again for ever."""
    queue = locked.queue()
    for right in ("send", "listen", "manage"):
        sqs = locked.other(*locked.principal(right, entity="mine*"))
        for where in (queue, queue + "-none"):
            told = refused(sqs.send_message, QueueUrl=where, MessageBody="x")
            assert (told.code, told.status) == ("AccessDenied", 403)
            name = where.rpartition("/")[2]
            assert told.text.endswith(
                "is not authorized to perform: sqs:sendmessage on resource:"
                f" arn:aws:sqs:eu-central-1:000000000000:{name}"
            )
        assert "QueueUrls" not in sqs.list_queues()
        name = queue.rpartition("/")[2]
        assert refused(sqs.get_queue_url, QueueName=name).code == "AccessDenied"


def test_queues_are_listed_for_who_has_a_right_on_them(locked: Locked) -> None:
    queue = locked.queue()
    locked.queue()
    sqs = locked.other(*locked.principal("send", entity=queue.rpartition("/")[2]))
    assert sqs.list_queues()["QueueUrls"] == [queue]
    assert sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]


def test_a_signed_url_is_all_that_is_needed(locked: Locked) -> None:
    queue, (id, key) = locked.queue(), locked.principal("send", "listen")

    def signed(action: str, secret: str = key) -> Reply:
        url = f"{queue}?Action={action}&MessageBody=by%20URL"
        request = AWSRequest("GET", url)
        SigV4QueryAuth(Credentials(id, secret), "sqs", "eu-west-1").add_auth(request)
        return locked.broker.call("GET", path_of(request.prepare().url))

    assert signed("SendMessage", "x").status == 403
    assert signed("SendMessage").status == 200
    assert b"<Body>by URL</Body>" in signed("ReceiveMessage").body


def test_the_namespace_is_that_of_the_principal_and_of_the_address(locked: Locked) -> None:
    for name in ("shop", "1" * 12):
        reply = locked.broker.call("PUT", f"/api/v1/namespaces/{name}", key=locked.root)
        assert reply.status in (200, 201)
    sqs = locked.other(*locked.principal("send", "listen", "manage", namespace="shop"))
    queue = sqs.create_queue(QueueName="orders")["QueueUrl"]
    account = queue.split("/")[3]
    assert len(account) == 12
    assert account not in ("0" * 12, "1" * 12)
    assert refused(locked.client.get_queue_url, QueueName="orders").kind == "QueueDoesNotExist"
    locked.client.send_message(QueueUrl=queue, MessageBody="from elsewhere")  # by its address
    assert sqs.receive_message(QueueUrl=queue)["Messages"][0]["Body"] == "from elsewhere"
    other = f"{locked.broker.url}/{'1' * 12}/orders"
    assert refused(sqs.send_message, QueueUrl=other, MessageBody="x").code == "AccessDenied"
    told = refused(locked.client.send_message, QueueUrl=other, MessageBody="x")
    assert told.kind == "QueueDoesNotExist"


def test_a_key_that_was_rotated_away_or_revoked_is_out(locked: Locked) -> None:
    queue, (id, key) = locked.queue(), locked.principal("send")
    sqs = locked.other(id, key)
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    locked.broker.call("POST", f"/api/v1/principals/{id}/rotate", key=locked.root)
    sqs.send_message(QueueUrl=queue, MessageBody="x")  # it is good until the next
    reply = locked.broker.call("POST", f"/api/v1/principals/{id}/rotate", key=locked.root)
    told = refused(sqs.send_message, QueueUrl=queue, MessageBody="x")
    assert told.code == "SignatureDoesNotMatch"
    new = locked.other(id, reply.json["key"])
    new.send_message(QueueUrl=queue, MessageBody="x")
    locked.broker.call("DELETE", f"/api/v1/principals/{id}", key=locked.root)
    assert refused(new.send_message, QueueUrl=queue, MessageBody="x").code == "InvalidClientTokenId"


def test_a_key_of_one_queue_is_for_its_own_clients(locked: Locked) -> None:
    queue = locked.queue()
    name = queue.rpartition("/")[2]
    told = refused(
        locked.other(f"default/{name}@key", "x" * 40).send_message, QueueUrl=queue, MessageBody="x"
    )
    assert told.status in (400, 403)


def test_posthouse_access_add_prints_an_access_key(locked: Locked, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(locked.root)
    where = ("--url", locked.broker.url, "--key-file", str(key))
    words = ("access", "add", "by-cli", "--rights", "send", "--aws", *where)
    done = subprocess.run(
        [sys.executable, "-m", "posthouse.cli", *words], capture_output=True, text=True, check=True
    )
    lines = dict(
        line.strip().removeprefix("export ").split("=", 1)
        for line in done.stdout.splitlines()
        if "=" in line
    )
    assert lines["AWS_ACCESS_KEY_ID"] == "by-cli"
    assert lines["AWS_ENDPOINT_URL_SQS"] == locked.broker.url
    sqs = locked.other(lines["AWS_ACCESS_KEY_ID"], lines["AWS_SECRET_ACCESS_KEY"])
    sqs.send_message(QueueUrl=locked.queue(), MessageBody="x")
