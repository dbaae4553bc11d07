"""Queues: their names, attributes, tags and permissions, and how they are found."""

import json

import pytest

from tests.dialects.sqs.rig import Aws, path_of, refused

DEFAULTS = {
    "VisibilityTimeout": "30", "DelaySeconds": "0", "MaximumMessageSize": "1048576",
    "MessageRetentionPeriod": "345600", "ReceiveMessageWaitTimeSeconds": "0",
    "SqsManagedSseEnabled": "true", "ApproximateNumberOfMessages": "0",
    "ApproximateNumberOfMessagesNotVisible": "0", "ApproximateNumberOfMessagesDelayed": "0",
}  # fmt: skip
FIFO_DEFAULTS = {
    "FifoQueue": "true", "ContentBasedDeduplication": "false", "DeduplicationScope": "queue",
    "FifoThroughputLimit": "perQueue",
}  # fmt: skip
TIMES = {"CreatedTimestamp", "LastModifiedTimestamp"}


def test_a_new_queue_has_the_defaults_and_nothing_else(aws: Aws) -> None:
    queue = aws.queue()
    found = aws.attribute(queue)
    assert found.keys() >= TIMES
    rest = {name: value for name, value in found.items() if name not in TIMES}
    assert rest == {**DEFAULTS, "QueueArn": aws.arn(queue)}
    fifo = aws.queue(fifo=True)
    more = {name: value for name, value in aws.attribute(fifo).items() if name not in TIMES}
    assert more == {**DEFAULTS, **FIFO_DEFAULTS, "QueueArn": aws.arn(fifo)}


def test_an_address_has_the_host_that_was_dialled(aws: Aws) -> None:
    queue = aws.queue()
    assert queue.startswith(f"{aws.broker.url}/000000000000/")
    name = queue.rpartition("/")[2]
    elsewhere = aws.other(endpoint_url=f"http://localhost:{aws.broker.port}")
    found = elsewhere.get_queue_url(QueueName=name)["QueueUrl"]
    assert found == f"http://localhost:{aws.broker.port}/000000000000/{name}"


@pytest.mark.parametrize(
    "form", ["{name}", "/000000000000/{name}", "http://elsewhere:1/queue/us-east-1/000000000000/{name}",
             "https://sqs.eu-west-1.amazonaws.com/queue/{name}"],
)  # fmt: skip
def test_a_queue_is_found_by_the_path_of_its_address_alone(aws: Aws, form: str) -> None:
    queue = aws.queue()
    name = queue.rpartition("/")[2]
    reply = aws.ask("SendMessage", {"QueueUrl": form.format(name=name), "MessageBody": "x"})
    assert reply.status == 200
    assert aws.bodies(queue) == ["x"]


@pytest.mark.parametrize(
    "url", [None, "", "/999999999999/q1", "http://[", "/a/b/c/d/e", "/000000000000/", "x" * 3_000]
)
def test_an_address_of_no_queue_is_of_a_queue_that_does_not_exist(aws: Aws, url: object) -> None:
    reply = aws.ask("SendMessage", {"QueueUrl": url, "MessageBody": "x"})
    assert reply.json["__type"] == "com.amazonaws.sqs#QueueDoesNotExist"


def test_creating_again_gives_the_address_where_what_is_given_is_so_now(aws: Aws) -> None:
    queue = aws.queue(VisibilityTimeout="40")
    name = queue.rpartition("/")[2]
    create = aws.client.create_queue
    assert create(QueueName=name)["QueueUrl"] == queue
    assert create(QueueName=name, Attributes={"VisibilityTimeout": "040"})["QueueUrl"] == queue
    told = refused(create, QueueName=name, Attributes={"VisibilityTimeout": "41"})
    assert (told.kind, told.code, told.status) == ("QueueNameExists", "QueueAlreadyExists", 400)
    assert told.text.endswith("a different value for attribute VisibilityTimeout")
    aws.client.set_queue_attributes(QueueUrl=queue, Attributes={"VisibilityTimeout": "41"})
    assert create(QueueName=name, Attributes={"VisibilityTimeout": "41"})["QueueUrl"] == queue
    target = aws.arn(aws.queue())
    policy = {"RedrivePolicy": json.dumps({"maxReceiveCount": "3", "deadLetterTargetArn": target})}
    aws.client.set_queue_attributes(QueueUrl=queue, Attributes=policy)
    assert create(QueueName=name, Attributes=policy)["QueueUrl"] == queue
    changed = {"RedrivePolicy": json.dumps({"maxReceiveCount": 4, "deadLetterTargetArn": target})}
    assert "RedrivePolicy" in refused(create, QueueName=name, Attributes=changed).text


VALUES = {
    "VisibilityTimeout": (["0", "43200"], ["-1", "43201", "x", "1.5", "", "٣"]),
    "DelaySeconds": (["0", "900"], ["901", "-1"]),
    "MaximumMessageSize": (["1024", "1048576"], ["1023", "1048577"]),
    "MessageRetentionPeriod": (["60", "1209600"], ["59", "1209601"]),
    "ReceiveMessageWaitTimeSeconds": (["0", "20"], ["21"]),
    "KmsDataKeyReusePeriodSeconds": (["60", "86400"], ["59", "86401"]),
    "SqsManagedSseEnabled": (["false", "True"], ["yes"]),
    "Policy": (['{"Version":"2012-10-17","Statement":[]}', ""], ["[]", "{", "x" * 8_193]),
}


@pytest.mark.parametrize("name", VALUES)
def test_an_attribute_takes_the_values_of_its_range_and_tells_them_again(
    aws: Aws, name: str
) -> None:
    queue, (good, bad) = aws.queue(), VALUES[name]
    for value in good:
        aws.client.set_queue_attributes(QueueUrl=queue, Attributes={name: value})
        assert aws.attribute(queue, name) == ({name: value.lower() if name[0] == "S" else value}
                                              if value else {})  # fmt: skip
    for value in bad:
        told = refused(aws.client.set_queue_attributes, QueueUrl=queue, Attributes={name: value})
        assert (told.code, told.status) == ("InvalidAttributeValue", 400)
        assert f"Invalid value for the parameter {name}." in told.text


def test_attributes_are_changed_all_or_none(aws: Aws) -> None:
    queue = aws.queue()
    change = {"VisibilityTimeout": "50", "DelaySeconds": "901"}
    refused(aws.client.set_queue_attributes, QueueUrl=queue, Attributes=change)
    assert aws.attribute(queue, "VisibilityTimeout") == {"VisibilityTimeout": "30"}


@pytest.mark.parametrize("name", ["Nothing", "QueueArn", "ApproximateNumberOfMessages", "All"])
def test_an_attribute_that_cannot_be_set_is_named(aws: Aws, name: str) -> None:
    queue = aws.queue()
    told = refused(aws.client.set_queue_attributes, QueueUrl=queue, Attributes={name: "1"})
    assert (told.kind, told.code, told.text) == (
        "InvalidAttributeName", "InvalidAttributeName", f"Unknown Attribute {name}."
    )  # fmt: skip
    told = refused(aws.client.create_queue, QueueName=aws.name(), Attributes={name: "1"})
    assert told.kind == "InvalidAttributeName"


def test_attributes_are_told_where_they_are_asked_for(aws: Aws) -> None:
    queue = aws.queue()
    assert "Attributes" not in aws.client.get_queue_attributes(QueueUrl=queue)
    assert aws.attribute(queue, "DelaySeconds", "Policy") == {"DelaySeconds": "0"}
    told = refused(aws.client.get_queue_attributes, QueueUrl=queue, AttributeNames=["Nothing"])
    assert told.code == "InvalidAttributeName"


@pytest.mark.parametrize(
    ("name", "attributes", "kind"),
    [
        ("a.b", {}, "value"), ("", {}, "value"), ("x" * 81, {}, "value"), ("ä", {}, "value"),
        ("a.fifo", {}, "value"), ("a", {"FifoQueue": "true"}, "value"),
        ("a.fifo", {"FifoQueue": "false"}, "value"), (".fifo", {"FifoQueue": "true"}, "value"),
        ("x" * 76 + ".fifo", {"FifoQueue": "true"}, "value"),
        ("a", {"FifoQueue": "false"}, "name"), ("a", {"ContentBasedDeduplication": "true"}, "name"),
        ("a", {"DeduplicationScope": "queue"}, "name"),
        ("a", {"FifoThroughputLimit": "perQueue"}, "name"),
        ("a", {"KmsMasterKeyId": "k", "SqsManagedSseEnabled": "true"}, "name"),
    ],
)  # fmt: skip
def test_a_queue_that_cannot_be_is_refused(
    aws: Aws, name: str, attributes: dict[str, str], kind: str
) -> None:
    told = refused(aws.client.create_queue, QueueName=name, Attributes=attributes)
    codes = {"value": "InvalidParameterValue", "name": "InvalidAttributeName"}
    assert (told.code, told.status) == (codes[kind], 400)


def test_names_have_up_to_80_characters_and_case_does_not_tell_them_apart(aws: Aws) -> None:
    long = aws.name() + "x" * 100
    assert aws.client.create_queue(QueueName=long[:80])["QueueUrl"].endswith(long[:80])
    fifo = long[:70] + "_5678.fifo"
    aws.client.create_queue(QueueName=fifo, Attributes={"FifoQueue": "true"})
    told = refused(aws.client.create_queue, QueueName=long[:80].upper())
    assert told.code == "QueueAlreadyExists"


def test_the_kind_of_a_queue_cannot_be_changed(aws: Aws) -> None:
    def set_to(queue: str, value: str) -> str:
        given = {"QueueUrl": queue, "Attributes": {"FifoQueue": value}}
        return str(refused(aws.client.set_queue_attributes, **given).code)

    fifo, plain = aws.queue(fifo=True), aws.queue()
    aws.client.set_queue_attributes(QueueUrl=fifo, Attributes={"FifoQueue": "true"})
    assert set_to(fifo, "false") == "InvalidAttributeValue"
    assert set_to(plain, "true") == set_to(plain, "false") == "InvalidAttributeName"


def test_a_key_of_kms_ends_the_other_encryption(aws: Aws) -> None:
    queue = aws.queue(KmsMasterKeyId="alias/mine")
    names = "KmsMasterKeyId", "SqsManagedSseEnabled"
    assert aws.attribute(queue, *names) == dict(zip(names, ("alias/mine", "false"), strict=True))
    aws.client.set_queue_attributes(QueueUrl=queue, Attributes={"KmsMasterKeyId": ""})
    assert aws.attribute(queue, *names) == {"SqsManagedSseEnabled": "false"}


def test_high_throughput_is_for_duplicates_by_group(aws: Aws) -> None:
    limit = {"FifoThroughputLimit": "perMessageGroupId"}
    queue = aws.queue(fifo=True)
    told = refused(aws.client.set_queue_attributes, QueueUrl=queue, Attributes=limit)
    assert told.code == "InvalidAttributeValue"
    both = {**limit, "DeduplicationScope": "messageGroup"}
    aws.client.set_queue_attributes(QueueUrl=queue, Attributes=both)
    assert aws.attribute(queue, *both) == both


# Finding.


def test_queues_are_listed_by_the_beginning_of_their_names_and_by_pages(aws: Aws) -> None:
    prefix = aws.name("-list-")
    names = [f"{prefix}{number}" for number in range(5)]
    urls = [aws.client.create_queue(QueueName=name)["QueueUrl"] for name in names]
    found = aws.client.list_queues(QueueNamePrefix=prefix)
    assert (found["QueueUrls"], found.get("NextToken")) == (urls, None)
    pages: list[int] = []
    token: dict[str, str] = {}
    while True:
        page = aws.client.list_queues(QueueNamePrefix=prefix, MaxResults=2, **token)
        pages.append(len(page["QueueUrls"]))
        if "NextToken" not in page:
            break
        token = {"NextToken": page["NextToken"]}
    assert pages == [2, 2, 1]
    assert "QueueUrls" not in aws.client.list_queues(QueueNamePrefix="nothing-is-called-so")
    for given in ({"MaxResults": 0}, {"MaxResults": 1_001}, {"NextToken": "!"}):
        assert refused(aws.client.list_queues, **given).code == "InvalidParameterValue"


def test_the_address_of_a_queue_is_found_by_its_name(aws: Aws) -> None:
    queue = aws.queue()
    name = queue.rpartition("/")[2]
    get = aws.client.get_queue_url
    assert get(QueueName=name)["QueueUrl"] == queue
    assert get(QueueName=name, QueueOwnerAWSAccountId="000000000000")["QueueUrl"] == queue
    for given in ({"QueueName": "none"}, {"QueueName": name, "QueueOwnerAWSAccountId": "1" * 12}):
        told = refused(get, **given)
        assert (told.kind, told.code, told.status) == (
            "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", 400
        )  # fmt: skip
        assert told.text.startswith("The specified queue does not exist")
    assert aws.ask("GetQueueUrl", {}).json["__type"].endswith("InvalidParameterValueException")


def test_a_deleted_queue_is_gone_with_its_messages_and_can_be_created_again(aws: Aws) -> None:
    queue = aws.queue()
    name = queue.rpartition("/")[2]
    aws.send(queue, "gone")
    aws.client.delete_queue(QueueUrl=queue)
    assert refused(aws.client.delete_queue, QueueUrl=queue).kind == "QueueDoesNotExist"
    assert refused(aws.client.receive_message, QueueUrl=queue).kind == "QueueDoesNotExist"
    aws.client.create_queue(QueueName=name)
    assert aws.bodies(queue) == []


def test_purging_removes_what_is_visible_in_flight_and_delayed(aws: Aws) -> None:
    queue = aws.queue()
    aws.send(queue, "a", "b")
    aws.send(queue, "later", DelaySeconds=900)
    aws.receive(queue, 1)
    assert aws.counts(queue) == (1, 1, 1)
    aws.client.purge_queue(QueueUrl=queue)
    assert aws.counts(queue) == (0, 0, 0)
    aws.client.purge_queue(QueueUrl=queue)  # without waiting


# Tags.


def test_tags_are_kept_and_told_again(aws: Aws) -> None:
    queue = aws.queue(tags={"team": "shop", "empty": ""})

    def tags() -> dict[str, str]:
        found: dict[str, str] = aws.client.list_queue_tags(QueueUrl=queue).get("Tags", {})
        return found

    assert tags() == {"team": "shop", "empty": ""}
    aws.client.tag_queue(QueueUrl=queue, Tags={"team": "desk", "Größe": "1 + 1"})
    assert tags() == {"team": "desk", "empty": "", "Größe": "1 + 1"}
    aws.client.untag_queue(QueueUrl=queue, TagKeys=["team", "empty", "Größe", "unknown"])
    assert "Tags" not in aws.client.list_queue_tags(QueueUrl=queue)
    many = {str(number): "x" for number in range(51)}
    for given in (many, {"aws:x": "y"}, {"a": "x" * 257}, {"x" * 129: "y"}, {"a?": "b"}):
        told = refused(aws.client.tag_queue, QueueUrl=queue, Tags=given)
        assert told.code == "InvalidParameterValue", given
    assert refused(aws.client.tag_queue, QueueUrl=queue, Tags={}).code == "MissingParameter"
    told = refused(aws.client.untag_queue, QueueUrl=queue, TagKeys=[])
    assert told.code == "InvalidParameterValue"


# Permissions.


def test_a_permission_is_a_statement_in_the_policy(aws: Aws) -> None:
    queue = aws.queue()
    arn = aws.arn(queue)
    add, remove = aws.client.add_permission, aws.client.remove_permission
    add(QueueUrl=queue, Label="one", AWSAccountIds=["1" * 12], Actions=["SendMessage"])
    add(QueueUrl=queue, Label="two", AWSAccountIds=["1" * 12, "2" * 12], Actions=["*"])
    policy = json.loads(aws.attribute(queue, "Policy")["Policy"])
    assert policy == {
        "Version": "2008-10-17", "Id": f"{arn}/SQSDefaultPolicy",
        "Statement": [
            {"Sid": "one", "Effect": "Allow", "Resource": arn, "Action": "SQS:SendMessage",
             "Principal": {"AWS": "arn:aws:iam::111111111111:root"}},
            {"Sid": "two", "Effect": "Allow", "Resource": arn, "Action": "SQS:*",
             "Principal": {"AWS": ["arn:aws:iam::111111111111:root",
                                   "arn:aws:iam::222222222222:root"]}},
        ],
    }  # fmt: skip
    given = {"QueueUrl": queue, "Label": "x", "AWSAccountIds": ["1" * 12], "Actions": ["*"]}
    for change, code, status in (
        ({"Label": "one"}, "InvalidParameterValue", 400),
        ({"Label": "a b"}, "InvalidParameterValue", 400),
        ({"AWSAccountIds": ["x"]}, "InvalidParameterValue", 400),
        ({"Actions": []}, "MissingParameter", 400),
        ({"Actions": ["DeleteQueue"]}, "InvalidParameterValue", 400),
        ({"Actions": ["*"] * 8}, "OverLimit", 403),
    ):
        told = refused(add, **{**given, **change})
        assert (told.code, told.status) == (code, status), change
    remove(QueueUrl=queue, Label="one")
    assert refused(remove, QueueUrl=queue, Label="one").code == "InvalidParameterValue"
    remove(QueueUrl=queue, Label="two")
    assert aws.attribute(queue, "Policy") == {}


def test_actions_on_all_queues_are_not_for_the_address_of_one(aws: Aws) -> None:
    queue = aws.queue()
    for action in ("CreateQueue", "ListQueues"):
        reply = aws.form(path_of(queue), Action=action, QueueName="x")
        assert reply.status == 400
        assert f"The action {action} is not valid for this endpoint." in reply.body.decode()
