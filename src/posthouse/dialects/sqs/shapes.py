"""Actions of Amazon SQS with what goes in and comes out: the one table that both protocols read.

Every class is a structure of the service's model and has its name; its fields are the members, by
their names in small letters. The JSON protocol is these structures as they are. In the Query
protocol lists and maps are numbered, under the names in `ELEMENTS`; a list of structures has the
name of its class.

A member that is not there is None, or empty; so it is left out of an answer, which tells nothing
that is empty.
"""

from typing import NamedTuple

import msgspec

_NAMES = {
    "actions": "Actions", "aws_account_ids": "AWSAccountIds", "md5_of_body": "MD5OfBody",
    "md5_of_message_attributes": "MD5OfMessageAttributes",
    "md5_of_message_body": "MD5OfMessageBody",
    "md5_of_message_system_attributes": "MD5OfMessageSystemAttributes",
    "queue_owner_aws_account_id": "QueueOwnerAWSAccountId",
}  # fmt: skip


def _member(field: str) -> str:
    return _NAMES.get(field) or "".join(part.capitalize() for part in field.split("_"))


class Element(NamedTuple):
    """The name of a list's or a map's items in the Query protocol."""

    name: str
    key: str = ""  # of a map: the name of an item's key,
    value: str = ""  # and of its value


ELEMENTS = {
    "Attributes": Element("Attribute", "Name", "Value"),
    "tags": Element("Tag", "Key", "Value"),
    "Tags": Element("Tag", "Key", "Value"),
    "AttributeNames": Element("AttributeName"),
    "MessageSystemAttributeNames": Element("MessageSystemAttributeName"),
    "MessageAttributeNames": Element("MessageAttributeName"),
    "MessageAttributes": Element("MessageAttribute", "Name", "Value"),
    "MessageSystemAttributes": Element("MessageSystemAttribute", "Name", "Value"),
    "TagKeys": Element("TagKey"),
    "AWSAccountIds": Element("AWSAccountId"),
    "Actions": Element("ActionName"),
    "StringListValues": Element("StringListValue"),
    "BinaryListValues": Element("BinaryListValue"),
    "QueueUrls": Element("QueueUrl"),
    "queueUrls": Element("QueueUrl"),
}


class Shape(msgspec.Struct, rename=_member, omit_defaults=True):
    """A structure."""


class OfQueue(Shape):
    """An action on a queue."""

    queue_url: str | None = None


# Parts.


class MessageAttributeValue(Shape):
    data_type: str | None = None
    string_value: str | None = None
    binary_value: bytes | None = None
    string_list_values: list[str] | None = None
    binary_list_values: list[bytes] | None = None


class SendMessageBatchRequestEntry(Shape):
    id: str | None = None
    message_body: str | None = None
    delay_seconds: int | None = None
    message_attributes: dict[str, MessageAttributeValue] | None = None
    message_system_attributes: dict[str, MessageAttributeValue] | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class DeleteMessageBatchRequestEntry(Shape):
    id: str | None = None
    receipt_handle: str | None = None


class ChangeMessageVisibilityBatchRequestEntry(Shape):
    id: str | None = None
    receipt_handle: str | None = None
    visibility_timeout: int | None = None


class BatchResultErrorEntry(Shape):
    id: str
    sender_fault: bool
    code: str
    message: str | None = None


class SendMessageBatchResultEntry(Shape):
    id: str
    message_id: str
    md5_of_message_body: str
    md5_of_message_attributes: str | None = None
    md5_of_message_system_attributes: str | None = None
    sequence_number: str | None = None


class DeleteMessageBatchResultEntry(Shape):
    id: str


class ChangeMessageVisibilityBatchResultEntry(Shape):
    id: str


class Message(Shape):
    message_id: str
    receipt_handle: str
    md5_of_body: str
    body: str
    attributes: dict[str, str] = {}
    md5_of_message_attributes: str | None = None
    message_attributes: dict[str, MessageAttributeValue] = {}


class ListMessageMoveTasksResultEntry(Shape):
    task_handle: str | None = None
    status: str = ""
    source_arn: str = ""
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None
    approximate_number_of_messages_moved: int | None = None
    approximate_number_of_messages_to_move: int | None = None
    failure_reason: str | None = None
    started_timestamp: int | None = None  # in milliseconds


# What goes in.


class CreateQueue(Shape):
    queue_name: str | None = None
    attributes: dict[str, str] | None = None
    tags: dict[str, str] | None = msgspec.field(default=None, name="tags")


class GetQueueUrl(Shape):
    queue_name: str | None = None
    queue_owner_aws_account_id: str | None = None


class ListQueues(Shape):
    queue_name_prefix: str | None = None
    max_results: int | None = None
    next_token: str | None = None


class GetQueueAttributes(OfQueue):
    attribute_names: list[str] | None = None


class SetQueueAttributes(OfQueue):
    attributes: dict[str, str] | None = None


class ListDeadLetterSourceQueues(OfQueue):
    max_results: int | None = None
    next_token: str | None = None


class TagQueue(OfQueue):
    tags: dict[str, str] | None = None


class UntagQueue(OfQueue):
    tag_keys: list[str] | None = None


class AddPermission(OfQueue):
    label: str | None = None
    aws_account_ids: list[str] | None = None
    actions: list[str] | None = None


class RemovePermission(OfQueue):
    label: str | None = None


class SendMessage(OfQueue):
    message_body: str | None = None
    delay_seconds: int | None = None
    message_attributes: dict[str, MessageAttributeValue] | None = None
    message_system_attributes: dict[str, MessageAttributeValue] | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessageBatch(OfQueue):
    entries: list[SendMessageBatchRequestEntry] | None = None


class ReceiveMessage(OfQueue):
    attribute_names: list[str] | None = None
    message_system_attribute_names: list[str] | None = None
    message_attribute_names: list[str] | None = None
    max_number_of_messages: int | None = None
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str | None = None


class DeleteMessage(OfQueue):
    receipt_handle: str | None = None


class DeleteMessageBatch(OfQueue):
    entries: list[DeleteMessageBatchRequestEntry] | None = None


class ChangeMessageVisibility(OfQueue):
    receipt_handle: str | None = None
    visibility_timeout: int | None = None


class ChangeMessageVisibilityBatch(OfQueue):
    entries: list[ChangeMessageVisibilityBatchRequestEntry] | None = None


class StartMessageMoveTask(Shape):
    source_arn: str | None = None
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None


class ListMessageMoveTasks(Shape):
    source_arn: str | None = None
    max_results: int | None = None


class CancelMessageMoveTask(Shape):
    task_handle: str | None = None


# What comes out.


class QueueUrlResult(Shape):
    queue_url: str


class ListQueuesResult(Shape):
    queue_urls: list[str] = []
    next_token: str | None = None


class ListDeadLetterSourceQueuesResult(Shape):
    queue_urls: list[str] = msgspec.field(default_factory=list, name="queueUrls")
    next_token: str | None = None


class GetQueueAttributesResult(Shape):
    attributes: dict[str, str] = {}


class ListQueueTagsResult(Shape):
    tags: dict[str, str] = {}


class SendMessageResult(Shape):
    message_id: str
    md5_of_message_body: str
    md5_of_message_attributes: str | None = None
    md5_of_message_system_attributes: str | None = None
    sequence_number: str | None = None


class SendMessageBatchResult(Shape):
    successful: list[SendMessageBatchResultEntry] = []
    failed: list[BatchResultErrorEntry] = []


class ReceiveMessageResult(Shape):
    messages: list[Message] = []


class DeleteMessageBatchResult(Shape):
    successful: list[DeleteMessageBatchResultEntry] = []
    failed: list[BatchResultErrorEntry] = []


class ChangeMessageVisibilityBatchResult(Shape):
    successful: list[ChangeMessageVisibilityBatchResultEntry] = []
    failed: list[BatchResultErrorEntry] = []


class StartMessageMoveTaskResult(Shape):
    task_handle: str


class ListMessageMoveTasksResult(Shape):
    results: list[ListMessageMoveTasksResultEntry] = []


class CancelMessageMoveTaskResult(Shape):
    approximate_number_of_messages_moved: int


class Action(NamedTuple):
    """The shapes that an action takes and gives; None: it gives nothing."""

    takes: type[Shape]
    gives: type[Shape] | None = None


ACTIONS: dict[str, Action] = {
    "AddPermission": Action(AddPermission),
    "CancelMessageMoveTask": Action(CancelMessageMoveTask, CancelMessageMoveTaskResult),
    "ChangeMessageVisibility": Action(ChangeMessageVisibility),
    "ChangeMessageVisibilityBatch": Action(
        ChangeMessageVisibilityBatch, ChangeMessageVisibilityBatchResult
    ),
    "CreateQueue": Action(CreateQueue, QueueUrlResult),
    "DeleteMessage": Action(DeleteMessage),
    "DeleteMessageBatch": Action(DeleteMessageBatch, DeleteMessageBatchResult),
    "DeleteQueue": Action(OfQueue),
    "GetQueueAttributes": Action(GetQueueAttributes, GetQueueAttributesResult),
    "GetQueueUrl": Action(GetQueueUrl, QueueUrlResult),
    "ListDeadLetterSourceQueues": Action(
        ListDeadLetterSourceQueues, ListDeadLetterSourceQueuesResult
    ),
    "ListMessageMoveTasks": Action(ListMessageMoveTasks, ListMessageMoveTasksResult),
    "ListQueueTags": Action(OfQueue, ListQueueTagsResult),
    "ListQueues": Action(ListQueues, ListQueuesResult),
    "PurgeQueue": Action(OfQueue),
    "ReceiveMessage": Action(ReceiveMessage, ReceiveMessageResult),
    "RemovePermission": Action(RemovePermission),
    "SendMessage": Action(SendMessage, SendMessageResult),
    "SendMessageBatch": Action(SendMessageBatch, SendMessageBatchResult),
    "SetQueueAttributes": Action(SetQueueAttributes),
    "StartMessageMoveTask": Action(StartMessageMoveTask, StartMessageMoveTaskResult),
    "TagQueue": Action(TagQueue),
    "UntagQueue": Action(UntagQueue),
}
