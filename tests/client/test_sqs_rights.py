"""Keys and rights of SQS: Moto's IAM decides about them, the gate has keys that end."""

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiobotocore.session import get_session

from posthouse.client.config import AwsSqsConfig
from posthouse.client.errors import AuthenticationFailed, PermissionDenied
from posthouse.client.messages import Message
from posthouse.client.retry import FixedRetry
from tests.client.conformance.rigs import SqsRig, opened, unused
from tests.client.conformance.table import SQS
from tests.client.gate import Gate, Refusal

SENDER = ["sqs:GetQueueUrl", "sqs:GetQueueAttributes", "sqs:SendMessage"]
AGAIN = FixedRetry(attempts=3, wait=0.0)  # if it were worth it
Gated = tuple[Any, asyncio.Runner, Gate]


@pytest.fixture(scope="module")
def gated() -> Iterator[Gated]:
    with opened(SQS) as (rig, runner):
        assert isinstance(rig, SqsRig)
        with Gate(rig.port).open() as gate:
            yield rig, runner, gate


@contextmanager
def guarded(port: int) -> Iterator[None]:
    """Otherwise Moto does not look at keys."""

    def look_after(requests: str) -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/moto-api/reset-auth", requests.encode(),
            {"content-type": "text/plain"}, method="POST",
        )  # fmt: skip
        urllib.request.urlopen(request, timeout=10).close()

    look_after("0")
    try:
        yield
    finally:
        look_after("inf")


async def key_of_sender(rig: SqsRig) -> tuple[str, str]:
    """Who may send, and nothing else."""
    iam = get_session().create_client(
        "iam", region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key="secret",
        endpoint_url=f"http://127.0.0.1:{rig.port}",
    )  # fmt: skip
    rights = {"Effect": "Allow", "Action": SENDER, "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [rights]})
    name = unused()
    async with iam as client:
        await client.create_user(UserName=name)
        await client.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=policy)
        key = (await client.create_access_key(UserName=name))["AccessKey"]
    return key["AccessKeyId"], key["SecretAccessKey"]


def config(gate: Gate, id: str = "", secret: str = "") -> AwsSqsConfig:
    return AwsSqsConfig("us-east-1", id, secret, endpoint_url=f"http://127.0.0.1:{gate.port}")


def test_only_what_is_not_allowed_is_refused(gated: Gated) -> None:
    rig, runner, gate = gated

    async def work() -> None:
        queue, (id, secret) = await rig.queue(), await key_of_sender(rig)
        client = rig.made(config(gate, id, secret), AGAIN)
        with guarded(rig.port):
            await client.send_message(queue, Message(b"x"))
            before = len(gate.asked)
            with pytest.raises(PermissionDenied) as caught:
                await client.receive_message(queue, 1.0)
            assert caught.value.operation == "receive"
            assert len(gate.asked) == before + 1  # it is not tried again
            await client.send_message(queue, Message(b"y"))
        await client.close()

    runner.run(work())


def test_a_wrong_key_is_told(gated: Gated) -> None:
    rig, runner, gate = gated

    async def work() -> None:
        queue, (id, _) = await rig.queue(), await key_of_sender(rig)
        for wrong in ((id, "canary"), ("AKIANOBODY", "canary")):
            client = rig.made(config(gate, *wrong), AGAIN)
            before = len(gate.asked)
            with guarded(rig.port), pytest.raises(AuthenticationFailed) as caught:
                await client.send_message(queue, Message(b"x"))
            assert len(gate.asked) == before + 1
            assert "canary" not in f"{caught.value!r} {caught.value.__cause__!r}"
            await client.close()

    runner.run(work())


def test_a_key_whose_time_is_over_is_told(gated: Gated) -> None:
    rig, runner, gate = gated

    def refuse(operation: str, form: Any) -> Refusal:
        return 403, "ExpiredTokenException", "The security token included in the request is expired"

    async def work() -> None:
        gate.refuse = refuse
        client = rig.made(config(gate, "id", "secret"), AGAIN)
        with pytest.raises(AuthenticationFailed, match="expired"):
            await client.send_message("orders", Message(b"x"))
        gate.refuse = lambda operation, form: None
        await client.close()

    runner.run(work())


def test_keys_of_the_machine_are_made_anew_before_they_end(
    gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, runner, gate = gated
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setenv(
        "AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{gate.port}/credentials"
    )

    async def work() -> None:
        queue = await rig.queue()
        gate.keys = [("FIRST", 60), ("SECOND", 3_600)]
        gate.asked.clear()
        client = rig.made(config(gate))
        for _ in range(3):
            await client.send_message(queue, Message(b"x"))
        assert not gate.keys
        used = [id for operation, id in gate.asked if operation == "SendMessage"]
        assert used == ["SECOND"] * 3  # the first was about to end
        await client.close()

    runner.run(work())
