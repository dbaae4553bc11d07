"""Jobs: work on a queue that is too much for one command, and goes on over restarts.

A job sends the messages of a queue again that are there when it begins, oldest first. Ticks do it
bit by bit: each moves some messages and notes where it goes on in the same frame, so each message
is moved once whatever happens in between. A job whose target takes nothing waits, longer each time.
"""

from copy import copy
from itertools import islice

from posthouse.core.checks import check_count
from posthouse.core.commands import (
    JOB_RATE_MAX,
    JOBS_MAX,
    PAGE_MAX,
    STEPS_MAX,
    CancelJob,
    ListJobs,
    StartJob,
)
from posthouse.core.errors import (
    Busy,
    Disabled,
    InvalidArgument,
    NotAllowed,
    NotFound,
    QuotaExceeded,
    Refused,
)
from posthouse.core.lookup import own_queue, queue_of
from posthouse.core.message import ACTIVE, NO_NOTE, Message, size_bytes
from posthouse.core.model import Job, Queue, State
from posthouse.core.picking import can_send, is_expired
from posthouse.core.plan import Outcome, Plan
from posthouse.core.records import JobAdvanced, JobEnded, JobStarted
from posthouse.core.room import Used, check_room, is_limited
from posthouse.core.sending import misfit
from posthouse.core.shares import JOBS, check_share
from posthouse.core.upkeep import send_again

_SLICES = 10  # a second, in which a job with a rate moves that many messages
_WAIT_MS = 1_000  # for a target that takes nothing, twice as long each time, up to
_WAIT_MS_MAX = 60_000


def start(state: State, command: StartJob, now_ms: int) -> Outcome:
    queue = queue_of(state, command.queue)
    check_count("rate", command.rate, 0, JOB_RATE_MAX)
    if command.target is not None and own_queue(state, command.target) is queue:
        raise InvalidArgument("target", "must be another queue")
    running = [job for job in state.jobs.values() if job.status == "running"]
    if any(job.queue_number == queue.number for job in running):
        raise NotAllowed(queue.name, "a job is at work there; wait until it ends, or cancel it")
    if len(running) >= JOBS_MAX:
        raise QuotaExceeded("the namespace", JOBS, JOBS_MAX, len(running))
    check_share(state.held, command.by, JOBS, "", JOBS_MAX)
    last, total = queue.next_sequence - 1, queue.counts[ACTIVE]
    by = command.by.name
    started = JobStarted(
        queue.name, now_ms, state.next_job, command.target, command.rate, command.keep_reason,
        last, total, by,
    )  # fmt: skip
    answer = Job(
        state.next_job, queue.name, queue.number, command.target, command.rate,
        command.keep_reason, last, total, now_ms, by, next_ms=now_ms,
    )  # fmt: skip
    return Outcome([started], answer)


def cancel(state: State, command: CancelJob, now_ms: int) -> Outcome:
    job = state.jobs.get(command.job)
    if job is None or job.queue != command.queue:
        raise NotFound("job", str(command.job))
    if job.status != "running":
        raise NotAllowed(command.queue, f"job {job.number} has ended; it is {job.status}")
    answer = copy(job)
    answer.status, answer.ended_ms, answer.next_ms = "cancelled", now_ms, 0
    return Outcome([JobEnded(job.queue, now_ms, job.number, "cancelled")], answer)


def list_all(state: State, command: ListJobs, _: int) -> Outcome:
    check_count("limit", command.limit, 1, PAGE_MAX)
    newest_first = (
        job
        for job in reversed(state.jobs.values())
        if command.queue is None or job.queue == command.queue
    )
    return Outcome([], [copy(job) for job in islice(newest_first, command.limit)])


def advance(plan: Plan, left: int) -> int:
    """Goes on with the jobs that are due. Returns how many messages it looked at."""
    done = 0
    for number in plan.state.job_timers.due(plan.now_ms, left):
        if done >= left:
            break
        done += _go_on(plan, plan.state.jobs[number], left - done)
    return done


def _go_on(plan: Plan, job: Job, left: int) -> int:
    """Moves the next messages of a job, as many as it may now and as its targets take."""
    queue = plan.state.queues.get(job.queue)
    if queue is None or queue.number != job.queue_number:
        return _fail(plan, job, NotFound("queue", job.queue))
    most = min(left, max(1, job.rate // _SLICES)) if job.rate else left
    step = _Step(plan, job, queue)
    refused: Refused | None = None
    looked, sequence = 1, job.sequence
    for message in islice(queue.messages.walk(sequence), min(left, STEPS_MAX)):
        if message.sequence > job.last_sequence or step.moved == most:
            break
        try:
            step.look_at(message)
        except Refused as why:
            refused = why
            break
        looked, sequence = looked + 1, message.sequence + 1
    step.move()
    if isinstance(refused, NotFound):  # a target is gone
        _note(plan, job, step, sequence, None)
        return looked + _fail(plan, job, refused)
    following = next(queue.messages.walk(sequence), None)
    _note(plan, job, step, sequence, refused)
    if following is None or following.sequence > job.last_sequence:
        plan.records.append(JobEnded(job.queue, plan.now_ms, job.number, "completed"))
    return looked


class _Step:
    """The messages that a job moves in one tick, by the queues they go to."""

    def __init__(self, plan: Plan, job: Job, queue: Queue) -> None:
        self._plan = plan
        self._job = job
        self._queue = queue
        self._removed = plan.overlay(queue).removed
        self._chosen: dict[str, tuple[Queue, Used, list[Message]]] = {}
        self.moved = self.left = 0

    def look_at(self, message: Message) -> None:
        """Chooses a message, or leaves it where it is. Raises Refused where it has to wait."""
        plan, queue = self._plan, self._queue
        if (
            message.state != ACTIVE
            or message.sequence in self._removed
            or is_expired(message, plan.now_ms)
        ):
            self.left += 1
            return
        name = self._job.target or queue.origin
        name = name or queue.notes.get(message.sequence, NO_NOTE).source
        if name is None:
            self.left += 1  # it was not a dead letter
            return
        target, before, chosen = self._of(name)
        if misfit(target, size_bytes(message), message.group):
            self.left += 1
            return
        size = sum(map(size_bytes, chosen)) + size_bytes(message) if is_limited(target) else 0
        check_room(target, before, len(chosen) + 1, size)
        chosen.append(message)
        self.moved += 1

    def _of(self, name: str) -> tuple[Queue, Used, list[Message]]:
        found = self._chosen.get(name)
        if found is None:
            target = own_queue(self._plan.state, name)
            if not can_send(target.properties):
                raise Disabled(target.name, target.properties.status)
            if self._plan.state.fanout != "open":  # as senders are refused then
                raise Busy("it has no room for more messages")
            found = self._chosen[name] = (target, self._plan.occupied(target), [])
        return found

    def move(self) -> None:
        for target, _, chosen in self._chosen.values():
            if chosen:
                self._plan.overlay(self._queue).remove(chosen)
                send_again(
                    self._plan, self._queue, target, chosen, keep_reason=self._job.keep_reason
                )


def _note(plan: Plan, job: Job, step: _Step, sequence: int, refused: Refused | None) -> None:
    """Notes how far a job has come and when it goes on."""
    pause_ms, wait_ms = 0, 0
    if refused is not None:
        wait_ms = _WAIT_MS if step.moved else min(max(_WAIT_MS, 2 * job.wait_ms), _WAIT_MS_MAX)
    elif job.rate:
        pause_ms = -(-1_000 * step.moved // job.rate)
    code, problem = ("", "") if refused is None else (refused.code, str(refused))
    plan.records.append(
        JobAdvanced(
            job.queue, plan.now_ms, job.number, sequence, plan.now_ms + max(pause_ms, wait_ms),
            step.moved, step.left, wait_ms, code, problem,
        )
    )  # fmt: skip


def _fail(plan: Plan, job: Job, why: NotFound) -> int:
    plan.records.append(JobEnded(job.queue, plan.now_ms, job.number, "failed", why.code, str(why)))
    return 1
