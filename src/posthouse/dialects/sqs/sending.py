"""Sending: SendMessage and SendMessageBatch."""

from collections.abc import Sequence
from typing import NamedTuple

from posthouse.broker.view import Entity
from posthouse.core.commands import Enqueued, Send
from posthouse.core.message import NewMessage
from posthouse.dialects.sqs import attributes, messages
from posthouse.dialects.sqs.attributes import DELAY_SECONDS_MAX, SIZE_MAX, is_fifo
from posthouse.dialects.sqs.batches import checked, failure
from posthouse.dialects.sqs.call import Call
from posthouse.dialects.sqs.errors import TOO_LONG, VALUE, Failed, invalid, missing
from posthouse.dialects.sqs.messages import Native, attributes_digest, check_id
from posthouse.dialects.sqs.shapes import (
    SendMessage,
    SendMessageBatch,
    SendMessageBatchRequestEntry,
    SendMessageBatchResult,
    SendMessageBatchResultEntry,
    SendMessageResult,
)
from posthouse.uuids import new_uuid

Given = SendMessage | SendMessageBatchRequestEntry
_NOT_HERE = "The request include parameter that is not valid for this queue type."


class Draft(NamedTuple):
    """A message that was checked, and is ready to be sent."""

    id: str
    message: NewMessage
    key: str | None  # by which a duplicate is known; None: by nothing
    body_md5: str
    attributes_md5: str | None
    system_md5: str | None


class Rules:
    """The demands of a queue on messages that are sent to it now."""

    def __init__(self, call: Call, queue: Entity) -> None:
        properties = queue.properties
        self.fifo = is_fifo(queue.name, properties)
        self.now_ms = call.now_ms
        self.size_max = attributes.size_max(properties)
        self.delay_ms = attributes.delay_ms(properties)
        self.by_content = attributes.value_of("ContentBasedDeduplication", properties) == "true"
        self.by_group = properties.extras.get(attributes.SCOPE) == "messageGroup"
        self.has_sessions = properties.grouping == "session"
        self.sender = call.caller.name
        trace = call.request.headers.get(b"x-amzn-trace-id", b"").decode("latin-1")
        self.trace = trace if trace and trace.isprintable() and trace.isascii() else None

    def draft(self, given: Given) -> Draft:
        """Raises Failed."""
        body = messages.check_body(given.message_body)
        named = given.message_attributes or {}
        size = len(body) + messages.check_attributes(named)
        trace = messages.trace_in(given.message_system_attributes)
        if size > self.size_max:
            raise Failed(
                VALUE,
                "One or more parameters are invalid. Reason: Message must be shorter"
                f" than {self.size_max} bytes.",
            )
        due_ms = self._due_ms(given.delay_seconds)
        duplicate_id = self._check_ids(given, body)
        group = given.message_group_id
        body_md5 = messages.body_digest(body)
        attributes_md5 = attributes_digest(named) if named else None
        system = given.message_system_attributes
        native = Native(
            self.now_ms, self.sender, body_md5, attributes_md5, messages.kept(named),
            trace or self.trace, duplicate_id,
        )  # fmt: skip
        id = new_uuid()
        made = messages.new_message(
            id, body, native, named, group, due_ms, session=self.has_sessions
        )
        return Draft(
            id, made, self._key(group, duplicate_id), body_md5.hex(),
            None if attributes_md5 is None else attributes_md5.hex(),
            attributes_digest(system).hex() if system else None,
        )  # fmt: skip

    def _due_ms(self, delay_seconds: int | None) -> int:
        delay_ms = self.delay_ms
        if delay_seconds is not None:
            if not 0 <= delay_seconds <= DELAY_SECONDS_MAX:
                raise invalid(
                    delay_seconds,
                    "DelaySeconds",
                    f"DelaySeconds must be >= 0 and <= {DELAY_SECONDS_MAX}.",
                )
            if not self.fifo:
                delay_ms = delay_seconds * 1_000
            elif delay_seconds:
                raise invalid(delay_seconds, "DelaySeconds", _NOT_HERE)
        return self.now_ms + delay_ms if delay_ms else 0

    def _check_ids(self, given: Given, body: bytes) -> str | None:
        """The id by which a duplicate is known. Raises Failed."""
        group, id = given.message_group_id, given.message_deduplication_id
        if group is not None:
            check_id("MessageGroupId", group)
        if not self.fifo:
            if id is not None:
                raise invalid(id, "MessageDeduplicationId", _NOT_HERE)
            return None
        if group is None:
            raise missing("MessageGroupId")
        if id is not None:
            return check_id("MessageDeduplicationId", id)
        if not self.by_content:
            raise Failed(
                VALUE,
                "The queue should either have ContentBasedDeduplication enabled or"
                " MessageDeduplicationId provided explicitly",
            )
        return messages.content_id(body)

    def _key(self, group: str | None, id: str | None) -> str | None:
        """A key in the queue; where each group has its own, the group's hash stands before it."""
        if id is None or not self.by_group:
            return id
        return f"{messages.group_digest(group or '')}:{id}"


async def _send(call: Call, queue: Entity, drafts: Sequence[Draft]) -> Enqueued:
    call.charge(len(drafts))
    fifo = any(draft.key is not None for draft in drafts)
    keys = [draft.key for draft in drafts] if fifo else None
    answer = await call.ask(Send(queue.name, [draft.message for draft in drafts], keys))
    assert isinstance(answer, Enqueued)
    return answer


async def send(call: Call, form: SendMessage) -> SendMessageResult:
    queue = await call.queue(form.queue_url, "send", make=True)
    rules = Rules(call, queue)
    draft = rules.draft(form)
    done = await _send(call, queue, [draft])
    return SendMessageResult(
        id_of(done, 0, draft), draft.body_md5, draft.attributes_md5, draft.system_md5,
        messages.sequence_number(done.sequences[0]) if rules.fifo else None,
    )  # fmt: skip


def id_of(done: Enqueued, at: int, draft: Draft) -> str:
    """The id of a message; a duplicate has that of the message it repeats."""
    return done.first_ids.get(at) or draft.id


async def send_batch(call: Call, form: SendMessageBatch) -> SendMessageBatchResult:
    queue = await call.queue(form.queue_url, "send", make=True)
    entries = checked(form.entries, "SendMessageBatchRequestEntry")
    rules = Rules(call, queue)
    _check_whole(entries, rules)
    told = SendMessageBatchResult([], [])
    drafts: list[Draft] = []
    ids: list[str] = []
    for entry in entries:
        id = entry.id or ""
        try:
            drafts.append(rules.draft(entry))
        except Failed as failed:
            told.failed.append(failure(id, _of_entry(failed)))
        else:
            ids.append(id)
    if not drafts:
        return told
    done = await _send(call, queue, drafts)
    for at, (id, draft) in enumerate(zip(ids, drafts, strict=True)):
        number = messages.sequence_number(done.sequences[at]) if rules.fifo else None
        told.successful.append(
            SendMessageBatchResultEntry(
                id, id_of(done, at, draft), draft.body_md5, draft.attributes_md5,
                draft.system_md5, number,
            )
        )  # fmt: skip
    return told


def _of_entry(failed: Failed) -> Failed:
    text = failed.text.replace(
        "One or more parameters are invalid.", "One or more parameters cannot be validated.", 1
    )
    return Failed(failed.kind, text)


def _check_whole(entries: Sequence[SendMessageBatchRequestEntry], rules: Rules) -> None:
    """Raises Failed where one entry makes the whole batch fail."""
    if rules.fifo:
        for entry in entries:
            if entry.message_group_id is None:
                raise Failed(VALUE, "The request must contain the parameter MessageGroupId.")
            if entry.message_deduplication_id is None and not rules.by_content:
                raise Failed(
                    VALUE,
                    "The queue should either have ContentBasedDeduplication enabled"
                    " or MessageDeduplicationId provided explicitly",
                )
    size = sum(map(_size, entries))
    if size > SIZE_MAX:
        raise Failed(
            TOO_LONG,
            f"Batch requests cannot be longer than {SIZE_MAX} bytes. You have sent {size} bytes.",
        )


def _size(entry: SendMessageBatchRequestEntry) -> int:
    """The bytes that an entry counts for, whether it is valid or not."""
    size = len((entry.message_body or "").encode(errors="replace"))
    for name, each in (entry.message_attributes or {}).items():
        texts = (name, each.data_type or "", each.string_value or "")
        size += sum(len(text.encode(errors="replace")) for text in texts)
        size += len(each.binary_value or b"")
    return size
