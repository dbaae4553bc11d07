"""Tasks: as clients push them, as messages, and as jobs that are pulled."""

import json
from base64 import b64encode
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from posthouse.broker.view_messages import MessagesView
from posthouse.core.commands import DURATION_MS_MAX, KEY_CHARS_MAX, Delivery
from posthouse.core.message import (
    Envelope,
    Message,
    NewMessage,
    Properties,
    decode_envelope,
    encode_envelope,
)
from posthouse.dialects.json_bounds import bounded
from posthouse.dialects.pyqueue.codec import FRAME_BYTES_MAX
from posthouse.dialects.pyqueue.refusals import BAD_JSON, Failed
from posthouse.uuids import new_uuid

DEFAULT_QUEUE = "default"
JOB_BYTES = 2_048  # what is around the payload in a frame, at most
JOBS_BYTES_MAX = FRAME_BYTES_MAX - 64  # of all in one answer
JOB_BYTES_MAX = JOBS_BYTES_MAX - JOB_BYTES  # of one
LOCK = "lock-"  # what stands before a token where a task's own id cannot name it
_ESCAPED = 6  # bytes that one byte of a payload may take in JSON
ID_BYTES = 36  # of a task's id
_BARE = encode_envelope(Envelope("-" * ID_BYTES))[:-ID_BYTES]  # before an id as we give them
_BARE_BYTES = len(_BARE)
_LEVELS: dict[str | int, int] = {"HIGH": 9, "NORMAL": 4, "LOW": 0, 0: 9, 1: 4, 2: 0}
_NAMES = ("HIGH", "NORMAL", "LOW")


def level_of(priority: str | int) -> int:
    """Converts PyQueue's priority to the core's. Raises Failed."""
    level = _LEVELS.get(priority.upper() if isinstance(priority, str) else priority)
    if level is None:
        raise Failed("priority must be HIGH, NORMAL or LOW")
    return level


def priority_of(level: int) -> int:
    """0 is high, 2 low. What others send has 4 where nothing is said of it."""
    return 0 if level > 6 else 1 if level > 3 else 2


def priority_name(level: int) -> str:
    return _NAMES[priority_of(level)]


# What is pushed.


class PushForm(msgspec.Struct, gc=False):
    payload: Any
    priority: str | int | None = None
    queue: str | None = None
    idempotency_key: str | None = None
    transaction_id: str | None = None
    ttl: int | float | None = None  # seconds
    partition_key: str | None = None


class BatchForm(msgspec.Struct):
    tasks: list[PushForm]


_decode_push = msgspec.json.Decoder(PushForm).decode


def read_push(payload: bytes) -> PushForm:
    """Raises Failed. What is not an object in JSON is the task itself."""
    if payload[:1] == b"{":
        try:
            bounded(payload)
        except msgspec.DecodeError as error:
            raise Failed(f"The task cannot be read: {error}") from None
        try:
            return _decode_push(payload)
        except msgspec.ValidationError as wrong:
            raise Failed(f"{wrong}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            _check_is_no_json(payload)
    try:
        return PushForm(payload.decode())
    except UnicodeDecodeError:
        raise Failed("payload must be UTF-8") from None


def _check_is_no_json(payload: bytes) -> None:
    """A text that is no JSON is a task. One that only we cannot read must not be taken for one."""
    try:
        json.loads(payload)
    except RecursionError:
        pass
    except ValueError:
        return
    raise Failed("payload must be JSON that is not too deep, and text that UTF-8 can carry")


def read(kind: type[Any], payload: bytes) -> Any:
    """Raises Failed."""
    try:
        return msgspec.json.decode(bounded(payload or b"{}"), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Failed(BAD_JSON) from None


def queue_in(form: PushForm) -> str:
    return form.queue or DEFAULT_QUEUE


class NewTask(NamedTuple):
    id: str
    message: NewMessage
    key: str  # by which a duplicate is known; empty: by nothing


def new_task(
    form: PushForm, *, deduplicate: bool = False, topic: str = "", id: str = ""
) -> NewTask:
    """Raises Failed."""
    given = form.payload
    text = given if type(given) is str else msgspec.json.encode(given).decode()
    body = text.encode()
    if len(body) * _ESCAPED > FRAME_BYTES_MAX - JOB_BYTES:
        _check_fits(text)
    id, key = id or new_uuid(), form.idempotency_key or ""
    properties: Properties = {"idempotency_key": key} if key else {}
    if len(key) > KEY_CHARS_MAX:
        key = "sha256:" + sha256(key.encode()).hexdigest()
    elif not key and deduplicate:
        key = "sha256:" + sha256(body).hexdigest()
    group = form.partition_key or None
    if properties or topic or group or len(id) != ID_BYTES:
        shared = Envelope(id=id, subject=topic, partition_key=group, properties=properties)
        envelope = encode_envelope(shared)
    else:
        envelope = _BARE + id.encode()
    priority = 4 if form.priority is None else level_of(form.priority)
    ttl_ms = None if form.ttl is None else ttl_in(form.ttl)
    message = NewMessage(envelope, body, None, group, priority, ttl_ms)
    return NewTask(id, message, key)


def ttl_in(seconds: float) -> int | None:
    """Converts a time to live to milliseconds; None if there is none. Raises Failed."""
    if not 0 <= seconds <= DURATION_MS_MAX / 1_000:
        raise Failed("ttl must be a number of seconds")
    return round(seconds * 1_000) or None


def _check_fits(text: str) -> None:
    """Refuses a task that is too large to be pulled. Raises Failed."""
    if len(msgspec.json.encode(text)) > FRAME_BYTES_MAX - JOB_BYTES:
        raise Failed(f"the task must have at most {FRAME_BYTES_MAX - JOB_BYTES} bytes in JSON")


# What is pulled.


class Job(msgspec.Struct, omit_defaults=True, gc=False):
    task_id: str
    payload: str
    queue: str
    priority: int
    encoding: str = ""  # base64, where a body is no text


def text_of(body: bytes, form: str = "") -> tuple[str, str]:
    """A body as text, and how it is written where it is none."""
    if not form:
        try:
            return body.decode(), ""
        except UnicodeDecodeError:
            pass
    return b64encode(body).decode(), "base64"


def envelope_of(message: Message) -> Envelope:
    try:
        return decode_envelope(message.envelope)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Envelope()


def token_in(task: str) -> int:
    """Returns the lock token in a task's name; 0 if the task is not named by its lock."""
    rest = task.removeprefix(LOCK)
    if rest is task or len(rest) != 32 or not rest.isalnum() or not rest.isascii():
        return 0
    try:
        return int(rest, 16)
    except ValueError:
        return 0


_encode_job = msgspec.json.Encoder().encode


def job_of(delivery: Delivery, queue: str, view: MessagesView, namespace: str) -> bytes:
    """Encodes a delivery in JSON. An id that several locks share is replaced by the lock's name."""
    message = delivery.message
    data, body = message.envelope, message.body
    assert isinstance(body, bytes)  # the engine has read it back
    own = data[_BARE_BYTES:]
    if len(own) == ID_BYTES and own.isascii() and data.startswith(_BARE):  # as most are
        id, form, fits = own.decode(), "", True
    else:
        envelope = envelope_of(message)
        id, form = envelope.id, envelope.form
        fits = 0 < len(id) <= KEY_CHARS_MAX
    if not fits or view.is_shared(namespace, id) or id.startswith(LOCK):
        id = f"{LOCK}{delivery.token:032x}"  # by which it is settled, where its id cannot serve
    payload, encoding = text_of(body, form)
    return _encode_job(Job(id, payload, queue, priority_of(message.priority), encoding))
