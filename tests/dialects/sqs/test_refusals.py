"""Errors that only a broker in trouble tells, and rules that --sqs-strict adds."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from posthouse.core import errors
from posthouse.dialects.sqs import codec_json, codec_query
from posthouse.dialects.sqs.errors import KINDS, Failed, failed_by
from tests.dialects.sqs.rig import Aws, refused
from tests.server.running import running


@contextmanager
def opened(*flags: str) -> Iterator[Aws]:
    with running("--memory", "--dev", *flags) as broker:
        yield Aws(broker)


def test_with_strictness_a_queue_is_purged_and_created_again_after_a_minute() -> None:
    with opened("--sqs-strict") as aws:
        queue = aws.queue()
        name = queue.rpartition("/")[2]
        aws.client.purge_queue(QueueUrl=queue)
        told = refused(aws.client.purge_queue, QueueUrl=queue)
        assert (told.kind, told.code, told.status) == (
            "PurgeQueueInProgress", "AWS.SimpleQueueService.PurgeQueueInProgress", 403
        )  # fmt: skip
        assert told.text == f"Only one PurgeQueue operation on {name} is allowed every 60 seconds."
        aws.client.delete_queue(QueueUrl=queue)
        told = refused(aws.client.create_queue, QueueName=name)
        assert (told.kind, told.code, told.status) == (
            "QueueDeletedRecently", "AWS.SimpleQueueService.QueueDeletedRecently", 400
        )  # fmt: skip


def test_accounts_regions_and_namespaces_are_as_they_are_set() -> None:
    with opened(
        "--sqs-account", "123456789012", "--sqs-region", "cn-north-1", "--auto-create"
    ) as aws:
        queue = aws.queue()
        assert "/123456789012/" in queue
        found = aws.ask("GetQueueAttributes", {"QueueUrl": queue, "AttributeNames": ["All"]}).json
        name = queue.rpartition("/")[2]
        assert found["Attributes"]["QueueArn"] == f"arn:aws-cn:sqs:cn-north-1:123456789012:{name}"
        suite = aws.other("suite-7")  # a key that names a namespace, which is made by that
        own = suite.create_queue(QueueName=name)["QueueUrl"]
        suite.send_message(QueueUrl=own, MessageBody="mine")
        assert aws.bodies(queue) == []
        assert aws.bodies(own) == ["mine"]
        for made_up in ("dummy", "foo", "210987654321", "AKIAIOSFODNN7EXAMPLE"):
            found = aws.other(made_up).get_queue_url(QueueName=name)["QueueUrl"]
            assert found == queue
        absent = queue + "-absent"
        aws.send(absent, "made by its first use")
        assert aws.bodies(absent) == ["made by its first use"]
        aws.send(absent + ".fifo", "x", MessageGroupId="g", MessageDeduplicationId="d")
        assert aws.attribute(absent + ".fifo", "FifoQueue") == {"FifoQueue": "true"}
        assert refused(aws.client.get_queue_url, QueueName="none").kind == "QueueDoesNotExist"


def test_too_many_requests_are_throttled_with_a_code_that_clients_wait_for() -> None:
    with opened("--rate-address", "5") as aws:
        queue = aws.queue()
        told = None
        for _ in range(50):
            reply = aws.ask("SendMessage", {"QueueUrl": queue, "MessageBody": "x"})
            if reply.status != 200:
                told = reply
                break
        assert told is not None
        assert (told.status, told.json["__type"]) == (403, "com.amazonaws.sqs#RequestThrottled")
        assert int(told.headers["retry-after"]) >= 1


def test_a_full_queue_is_over_its_limit(aws: Aws) -> None:
    name = aws.name()
    assert aws.broker.queue("PUT", name, {"max_messages": 1}).status == 201
    url = f"{aws.broker.url}/000000000000/{name}"
    aws.send(url, "a")
    told = refused(aws.client.send_message, QueueUrl=url, MessageBody="b")
    assert (told.kind, told.code, told.status) == ("OverLimit", "OverLimit", 403)


def test_too_many_in_flight_are_over_the_limit_of_who_does_not_wait(aws: Aws) -> None:
    name = aws.name()
    form = {"max_locked": 1, "lock_ms": 30_000}
    assert aws.broker.queue("PUT", name, form).status == 201
    url = f"{aws.broker.url}/000000000000/{name}"
    aws.send(url, "a", "b")
    assert aws.bodies(url, 1) == ["a"]
    told = refused(aws.client.receive_message, QueueUrl=url)
    assert (told.code, told.status) == ("OverLimit", 403)
    assert aws.bodies(url, 1, WaitTimeSeconds=1) == []


def test_what_is_not_an_action_is_told_in_both_protocols(aws: Aws) -> None:
    for target in ("", "AmazonSQS.Nothing", "AmazonSNS.Publish"):
        reply = aws.raw("/", b"{}", **({"x-amz-target": target} if target else {}))
        assert reply.status == 400
        assert reply.json["__type"] == "com.amazon.coral.service#UnknownOperationException"
        assert reply.headers["x-amzn-query-error"] == "InvalidAction;Sender"
    reply = aws.form("/", Action="Nothing")
    assert b"<Type>Sender</Type><Code>InvalidAction</Code>" in reply.body
    scope = "Credential=x/20300101/us-east-1/sns/aws4_request"
    reply = aws.broker.call(
        "POST", "/", raw=b"Action=Publish",
        headers={"authorization": f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=0",
                 "content-type": "application/x-www-form-urlencoded"},
    )  # fmt: skip
    assert b"<Code>InvalidAction</Code>" in reply.body


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"{", b'{"QueueUrl": 5}', b'{"MaxNumberOfMessages": "x"}',
             b'{"MaxNumberOfMessages": 1e400}', b'"\\ud800"', b"\xff", b"[" * 100_000],
)  # fmt: skip
def test_what_is_not_json_is_malformed(aws: Aws, body: bytes) -> None:
    reply = aws.raw("/", body, action="ReceiveMessage")
    if body:
        assert reply.json["__type"] == "com.amazon.coral.service#SerializationException"
        assert reply.headers["x-amzn-query-error"] == "MalformedInput;Sender"
    else:
        assert reply.json["__type"] == "com.amazonaws.sqs#QueueDoesNotExist"


def test_a_request_that_is_too_large_or_has_too_many_parts_is_refused(aws: Aws) -> None:
    reply = aws.raw("/", b" " * ((7 << 20) + 1), action="SendMessage")
    assert reply.status == 413
    assert "7340032" in reply.json["message"]
    many = {f"AttributeName.{number}": "All" for number in range(1, 1_001)}
    reply = aws.form("/", Action="ReceiveMessage", **many)
    assert b"<Code>MalformedInput</Code>" in reply.body
    deep = {"A" + ".1" * 20: "x"}
    assert aws.form("/", Action="ReceiveMessage", **deep).status == 400


def test_every_error_is_told_in_both_protocols() -> None:
    for kind in KINDS:
        failed = Failed(kind, 'a "text" <&\0>')
        told = codec_json.error(failed, ())
        assert told.status == codec_query.error(failed, "id", ()).status == kind.status
        assert kind.code.encode() in codec_query.error(failed, "id", ()).body
        assert b"\0" not in codec_query.error(failed, "id", ()).body
        assert kind.name.encode() in told.body


def test_a_broker_that_follows_or_is_busy_is_away_and_is_asked_again() -> None:
    for refusal in (errors.Busy("full"), errors.NotLeader("b.example:5672")):
        failed = failed_by(refusal)
        assert (failed.kind.status, failed.retry_seconds) == (503, 1)
        assert str(refusal) in failed.text
    throttled = failed_by(errors.Throttled(1_500))
    assert (throttled.kind.status, throttled.retry_seconds) == (403, 2)
