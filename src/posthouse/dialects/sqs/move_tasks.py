"""Move tasks: dead letters go back, or to another queue. A task is a job of the broker's."""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from uuid import UUID

import msgspec

from posthouse.broker.view import Entity
from posthouse.core.commands import CancelJob, StartJob
from posthouse.core.errors import NotAllowed
from posthouse.core.model import Job
from posthouse.dialects.sqs.attributes import is_fifo, queue_in
from posthouse.dialects.sqs.call import Call, Need
from posthouse.dialects.sqs.errors import NO_QUEUE, NO_RESOURCE, VALUE, Failed, invalid, missing
from posthouse.dialects.sqs.queues import sources_of
from posthouse.dialects.sqs.shapes import (
    CancelMessageMoveTask,
    CancelMessageMoveTaskResult,
    ListMessageMoveTasks,
    ListMessageMoveTasksResult,
    ListMessageMoveTasksResultEntry,
    StartMessageMoveTask,
    StartMessageMoveTaskResult,
)

RATE_MAX = 500  # messages a second
RESULTS_MAX = 10
HANDLE_CHARS_MAX = 1_024
_JOB_BITS = 64
_NO_HANDLE = "Value for parameter TaskHandle is invalid."
_RUNNING = (
    "There is already a task running."
    " Only one active task is allowed for a source queue arn at a given time."
)


class _Handle(msgspec.Struct, rename="camel"):
    """The contents of a task handle: AWS's tools read it."""

    task_id: str
    source_arn: str


async def start(call: Call, form: StartMessageMoveTask) -> StartMessageMoveTaskResult:
    source = _queue(call, "SourceArn", form.source_arn, "manage")
    sources = sources_of(call, source.name)
    if not sources:
        raise Failed(VALUE, "Source queue must be configured as a Dead Letter Queue.")
    target: str | None = None
    if form.destination_arn:
        destination = _queue(call, "DestinationArn", form.destination_arn, "send")
        target = destination.name
        fifo = is_fifo(source.name, source.properties)
        if target == source.name or is_fifo(target, destination.properties) != fifo:
            raise invalid(
                form.destination_arn,
                "DestinationArn",
                "It must be another queue of the same kind as the source.",
            )
    else:
        for name in sources:
            call.check("send", name)
    rate = form.max_number_of_messages_per_second
    if rate is not None and not 1 <= rate <= RATE_MAX:
        raise invalid(
            rate, "MaxNumberOfMessagesPerSecond", f"Must be between 1 and {RATE_MAX}, if provided."
        )
    try:
        job = await call.ask(StartJob(source.name, target, rate or 0))
    except NotAllowed:
        raise Failed(VALUE, _RUNNING) from None
    assert isinstance(job, Job)
    return StartMessageMoveTaskResult(_handle(call, job))


async def list_all(call: Call, form: ListMessageMoveTasks) -> ListMessageMoveTasksResult:
    source = _queue(call, "SourceArn", form.source_arn, None)
    most = 1 if form.max_results is None else form.max_results
    if not 1 <= most <= RESULTS_MAX:
        raise invalid(most, "MaxResults", f"Must be between 1 and {RESULTS_MAX}, if provided.")
    jobs = call.view.jobs(call.namespace, source.name)[:most]
    return ListMessageMoveTasksResult([_entry(call, job) for job in jobs])


async def cancel(call: Call, form: CancelMessageMoveTask) -> CancelMessageMoveTaskResult:
    if not form.task_handle:
        raise missing("TaskHandle")
    arn, number = _read(form.task_handle)
    source = _queue(call, "SourceArn", arn, "manage")
    running = [job for job in call.view.jobs(call.namespace, source.name) if _is_running(job)]
    if number not in [_number(job) for job in running]:
        raise Failed(NO_RESOURCE, "Task does not exist.")
    job = await call.ask(CancelJob(source.name, running[0].number))
    assert isinstance(job, Job)
    return CancelMessageMoveTaskResult(job.moved)


def _queue(call: Call, parameter: str, arn: str | None, need: Need) -> Entity:
    """The queue that an ARN names. Raises Failed."""
    if not arn:
        raise missing(parameter)
    name = queue_in(arn)
    if not name:
        raise invalid(arn, parameter, "It is not the ARN of a queue.")
    account = arn.split(":")[4]
    if account != call.service.account(call.namespace):
        call.namespace = call.service.namespace(account) or call.namespace
    call.check(need, name)
    found = call.view.entity(call.namespace, name)
    if found is None or account != call.service.account(call.namespace):
        raise Failed(
            NO_RESOURCE,
            f"The resource that you specified for the {parameter} parameter doesn't exist.",
        )
    return found


def _is_running(job: Job) -> bool:
    return job.status == "running"


def _number(job: Job) -> int:
    """A number that no other job of the namespace has, nor one of a queue of the same name."""
    return job.queue_number << _JOB_BITS | job.number


def _handle(call: Call, job: Job) -> str:
    told = _Handle(str(UUID(int=_number(job))), call.place.arn(job.queue))
    return b64encode(msgspec.json.encode(told)).decode()


def _read(handle: str) -> tuple[str, int]:
    """The source and the number of a task. Raises Failed."""
    if len(handle) > HANDLE_CHARS_MAX:
        raise Failed(VALUE, _NO_HANDLE)
    try:
        told = msgspec.json.decode(b64decode(handle, validate=True), type=_Handle)
        return told.source_arn, UUID(told.task_id).int
    except (Base64Error, ValueError):
        raise Failed(VALUE, _NO_HANDLE) from None


def _entry(call: Call, job: Job) -> ListMessageMoveTasksResultEntry:
    gone = job.status == "failed"
    return ListMessageMoveTasksResultEntry(
        task_handle=_handle(call, job) if _is_running(job) else None,
        status=job.status.upper(),
        source_arn=call.place.arn(job.queue),
        destination_arn=None if job.target is None else call.place.arn(job.target),
        max_number_of_messages_per_second=job.rate or None,
        approximate_number_of_messages_moved=job.moved,
        approximate_number_of_messages_to_move=job.total,
        failure_reason=NO_QUEUE.code if gone else None,
        started_timestamp=job.started_ms,
    )
