"""A broker, and AWS's own client for it: the one that is installed, or the one on PYTHONPATH."""

import http.client
import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any
from urllib.parse import urlencode

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from packaging.version import Version

from tests.server.running import Reply, Running

Json = Any
_numbers = count(1)
_clients: list[Any] = []
# A client of before April 2024 speaks the Query protocol, in which errors have one name alone.
SPEAKS_JSON = Version(boto3.__version__) >= Version("1.34.90")


def close_clients() -> None:
    """Closes the connections of all clients that were made."""
    while _clients:
        _clients.pop().close()


class Aws:
    """A broker, as users of AWS's SDK see it."""

    def __init__(self, broker: Running, **known: Any) -> None:
        self.broker = broker
        self.client = self.other(**known)

    def other(self, id: str = "test", key: str = "test", **known: Any) -> Any:
        """Another client, with other credentials or another configuration."""
        given = Config(
            retries={"max_attempts": 0},
            connect_timeout=30,
            read_timeout=60,
            **known.pop("more", {}),
        )
        known.setdefault("endpoint_url", self.broker.url)
        made = boto3.client(
            "sqs", region_name=known.pop("region", "eu-central-1"), aws_access_key_id=id,
            aws_secret_access_key=key, config=given, **known,
        )  # fmt: skip
        _clients.append(made)
        return made

    def name(self, end: str = "") -> str:
        """One that no other queue has."""
        return f"q{next(_numbers)}{end}"

    def queue(self, *, fifo: Any = False, tags: Any = None, **given: Any) -> str:
        """A new queue's URL."""
        attributes = {**({"FifoQueue": "true"} if fifo else {}), **given}
        found: str = self.client.create_queue(
            QueueName=self.name(".fifo" if fifo else ""), Attributes=attributes, tags=tags or {}
        )["QueueUrl"]
        return found

    def arn(self, url: str) -> str:
        return f"arn:aws:sqs:eu-central-1:000000000000:{url.rpartition('/')[2]}"

    def send(self, url: str, *bodies: str, **more: Any) -> list[str]:
        return [
            self.client.send_message(QueueUrl=url, MessageBody=body, **more)["MessageId"]
            for body in bodies
        ]

    def receive(self, url: str, most: int = 10, **more: Any) -> list[Json]:
        found = self.client.receive_message(
            QueueUrl=url, MaxNumberOfMessages=most, AttributeNames=["All"],
            MessageAttributeNames=["All"], **more,
        )  # fmt: skip
        return list(found.get("Messages", []))

    def bodies(self, url: str, most: int = 10, **more: Any) -> list[str]:
        return [each["Body"] for each in self.receive(url, most, **more)]

    def attribute(self, url: str, *names: str) -> dict[str, str]:
        found: dict[str, str] = self.client.get_queue_attributes(
            QueueUrl=url, AttributeNames=list(names) or ["All"]
        ).get("Attributes", {})
        return found

    def counts(self, url: str) -> tuple[int, int, int]:
        """Visible, in flight, delayed."""
        found = self.attribute(url)
        ends = ("", "NotVisible", "Delayed")
        visible, hidden, delayed = (int(found[f"ApproximateNumberOfMessages{end}"]) for end in ends)
        return visible, hidden, delayed

    def pass_time(self, seconds: float) -> None:
        reply = self.broker.call(
            "POST", "/api/v1/namespaces/default/clock", {"advance_ms": round(seconds * 1_000)}
        )
        assert reply.status == 200, reply

    # By hand.

    def ask(self, action: str, body: Json, **headers: str) -> Reply:
        """The JSON protocol, unsigned."""
        return self.raw("/", json.dumps(body).encode(), action=action, **headers)

    def raw(self, path: str, body: bytes, action: str = "", **headers: str) -> Reply:
        given = {"content-type": "application/x-amz-json-1.0", **headers}
        if action:
            given["x-amz-target"] = f"AmazonSQS.{action}"
        return self.broker.call("POST", path, raw=body, headers=given)

    def form(self, path: str, **parameters: str) -> Reply:
        """The Query protocol, unsigned, in a form."""
        kind = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
        return self.broker.call("POST", path, raw=urlencode(parameters).encode(), headers=kind)


def path_of(url: str) -> str:
    return "/" + url.split("/", 3)[3]


class Told:
    """The error that a call was answered with."""

    def __init__(self, error: ClientError) -> None:
        self.kind = type(error).__name__
        about = error.response["Error"]
        self.code, self.text = about["Code"], about["Message"]
        self.status = error.response["ResponseMetadata"]["HTTPStatusCode"]


def refused(call: Callable[..., Any], **given: Any) -> Told:
    with pytest.raises(ClientError) as raised:
        call(**given)
    return Told(raised.value)


def abandoned(aws: Aws, action: str, body: Json) -> http.client.HTTPConnection:
    """Asks for something and does not wait for the answer."""
    made = http.client.HTTPConnection("127.0.0.1", aws.broker.port, timeout=60)
    made.request("POST", "/", json.dumps(body).encode(), {
        "content-type": "application/x-amz-json-1.0", "x-amz-target": f"AmazonSQS.{action}",
    })  # fmt: skip
    return made


def opened(broker: Running) -> Iterator[Aws]:
    yield Aws(broker)
