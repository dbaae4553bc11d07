"""Administration: queues, tasks, workers and dead letters, to look at and to change."""

import time
from collections import Counter
from typing import Any

import msgspec

from posthouse.core.commands import (
    CancelSchedule,
    DeleteQueue,
    Progress,
    Purge,
    Resubmit,
    UpdateQueue,
)
from posthouse.core.errors import Busy, NotLeader
from posthouse.core.message import ACTIVE, DELAYED, SCHEDULED, STATES
from posthouse.core.model import QueueProperties, Right, Schedule, dead_letter_queue
from posthouse.core.recurrence import said
from posthouse.dialects.pyqueue import finding
from posthouse.dialects.pyqueue.context import PyQueueContext
from posthouse.dialects.pyqueue.finding import Place, Task, counts_of, depth_of, queues_of
from posthouse.dialects.pyqueue.orders import Call, Order, told
from posthouse.dialects.pyqueue.refusals import Failed, Missing
from posthouse.dialects.pyqueue.replay import replay
from posthouse.dialects.pyqueue.tasks import DEFAULT_QUEUE, priority_of, text_of, ttl_in
from posthouse.dialects.pyqueue.topics import unbind_all
from posthouse.store.errors import StoreError

INFO_TASKS_MAX = 10
TASKS_MAX = 100
DEAD_MAX = 1_000
SHORT_CHARS = 50  # of a payload in a list
ANSWER_BYTES_MAX = 8 << 20  # of payloads in one answer
_DEPTH_MAX = 1 << 53
_WAITS = frozenset((ACTIVE, DELAYED))

Facts = dict[str, Any]  # what is told in JSON


def _properties(call: Call, name: str) -> QueueProperties:
    """Returns the properties of a queue. Raises Failed if there is no such queue."""
    properties = call.context.properties_of(name)
    if properties is None:
        raise Missing(f"Queue '{name}' not found")
    return properties


def _visible(call: Call) -> list[str]:
    return [queue for queue in queues_of(call.context) if _knows(call, queue)]


def _knows(call: Call, queue: str) -> bool:
    return call.context.knows(call.principal, queue)


# Queues.


def counts(context: PyQueueContext, queues: list[str]) -> dict[str, Facts]:
    """Counts the tasks of each queue. A schedule counts as a scheduled task."""
    recurring = Counter(each.queue for each in context.view.schedules(context.namespace, queues))
    found: dict[str, Facts] = {}
    for queue in queues:
        there = counts_of(context, queue)
        found[queue] = {
            "depth": depth_of(there),
            "processing": there.locked,
            "scheduled": there.scheduled + recurring[queue],
        }
    return found


def list_queues(call: Call) -> Facts:
    return {"queues": counts(call.context, _visible(call))}


async def queue_info(call: Call, name: str) -> Facts:
    call.check("listen", name)
    _properties(call, name)
    facts = {"name": name, **counts(call.context, [name])[name]}
    tasks = []
    for place in await finding.places(call, name, "ready", INFO_TASKS_MAX):
        task = await finding.look(call, place)
        if task is not None:
            priority = priority_of(task.priority)
            tasks.append({"id": task.id, "payload": task.payload, "priority": priority})
    return {**facts, "tasks": tasks}


async def _purge_all(call: Call, queue: str, states: frozenset[int]) -> int:
    done, first = 0, 0
    while True:
        progress = await call.ask(Purge(queue, states, first))
        assert isinstance(progress, Progress)
        done += progress.done
        if progress.next is None:
            return done
        first = progress.next


async def purge_queue(call: Call) -> Facts:
    name = call.name()
    call.check("manage", name)
    _properties(call, name)
    return {"purged": await _purge_all(call, name, _WAITS), "queue": name}


async def delete_queue(call: Call) -> Facts:
    name = call.name()
    call.check("manage", name)
    if name == DEFAULT_QUEUE:
        raise Failed("Cannot delete default queue")
    _properties(call, name)
    view, namespace = call.context.view, call.context.namespace
    if view.size(namespace, name).messages + view.counts(namespace, name).dead:
        raise Failed(f"Queue '{name}' is not empty")
    await call.ask(DeleteQueue(name))
    await unbind_all(call, name)
    return {"deleted": name}


class _TtlForm(msgspec.Struct):
    queue: str = ""
    ttl: int | float | None = None


class _LimitForm(msgspec.Struct):
    queue: str = ""
    max_depth: int | None = None


async def set_ttl(call: Call) -> Facts:
    form: _TtlForm = call.form(_TtlForm)
    if not form.queue:
        raise Failed("Queue name required")
    ttl_ms = None if form.ttl is None else ttl_in(form.ttl)
    await _change(call, form.queue, ttl_ms=ttl_ms)
    return {"queue": form.queue, "ttl": form.ttl}


async def set_limit(call: Call) -> Facts:
    form: _LimitForm = call.form(_LimitForm)
    if not form.queue or form.max_depth is None:
        raise Failed("Queue name and max_depth required")
    if not 0 < form.max_depth <= _DEPTH_MAX:
        raise Failed(f"max_depth must be from 1 to {_DEPTH_MAX}")
    await _change(call, form.queue, max_messages=form.max_depth, limit_counts="waiting")
    return {"queue": form.queue, "max_depth": form.max_depth}


async def _change(call: Call, name: str, **properties: int | str | None) -> None:
    call.check("manage", name)
    call.context.make_queue(call.principal, "manage", name)
    changed = msgspec.structs.replace(_properties(call, name), **properties)
    await call.ask(UpdateQueue(name, changed))


def queue_metrics(call: Call) -> Facts:
    name = call.name()
    if not _knows(call, name):
        raise Missing(f"Queue '{name}' not found")
    properties, there = _properties(call, name), counts_of(call.context, name)
    most, ttl_ms = properties.max_messages, properties.ttl_ms
    counted = call.context.view.counted(call.context.namespace, name)
    return {
        "queue": name,
        "depth": depth_of(there),
        "processing": there.locked,
        "backpressure_level": min(1.0, counted / most) if most else 0.0,
        "ttl": None if ttl_ms is None else ttl_ms / 1_000,
        "max_depth": most,
    }


# Tasks.


async def get_task(call: Call) -> Facts:
    id = call.name()
    schedule = call.context.view.schedule(call.context.namespace, id)
    if schedule is not None:
        call.check("listen", schedule.queue)
        return _of_schedule(schedule)
    task = await _found(call, id)
    if task is None:
        raise Missing(f"Task '{id}' not found")
    return {
        "task_id": id,
        "payload": task.payload,
        "priority": priority_of(task.priority),
        "queue": task.queue,
        "retry_count": task.retries,
        "created_at": task.created_ms / 1_000,
        "scheduled_at": task.scheduled_ms / 1_000 or None,
    }


def _of_schedule(schedule: Schedule) -> Facts:
    payload, _ = text_of(schedule.message.body)
    return {
        "task_id": schedule.name,
        "payload": payload,
        "priority": priority_of(schedule.message.priority),
        "queue": schedule.queue,
        "retry_count": 0,
        "created_at": schedule.created_ms / 1_000,
        "scheduled_at": schedule.next_ms / 1_000 or None,
        "schedule": said(schedule.when),
    }


async def _found(call: Call, id: str) -> Task | None:
    place = await finding.find(call, id)
    if place is None:
        return None
    call.check("listen", place.queue)
    return await finding.look(call, place)


async def cancel_task(call: Call) -> Facts:
    id = call.name()
    schedule = call.context.view.schedule(call.context.namespace, id)
    if schedule is not None:
        call.check("manage", schedule.queue)
        await call.ask_vouched(CancelSchedule(id))
        return {"cancelled": id}
    place = await finding.find(call, id)
    if place is not None:
        call.check("manage", place.queue)
        if place.status in ("ready", "scheduled"):
            states = frozenset((ACTIVE, DELAYED, SCHEDULED))
            command = Purge(place.queue, states, sequences=[place.sequence])
            progress = await call.ask(command)
            if isinstance(progress, Progress) and progress.done:
                return {"cancelled": id}
    raise Failed(f"Task '{id}' not found or cannot be cancelled")


class _ListForm(msgspec.Struct):
    queue: str | None = None
    status: str | None = None


async def list_tasks(call: Call) -> Facts:
    form: _ListForm = call.form(_ListForm)
    status, context = finding.check_status(form.status), call.context
    if form.queue:
        call.check("listen", form.queue)
        _properties(call, form.queue)
        queues = [form.queue]
    else:
        queues = [
            each for each in queues_of(context) if context.may(call.principal, "listen", each)
        ]
    found: list[Place] = []
    for queue in queues:
        left = TASKS_MAX - len(found)
        if left > 0:
            found += await finding.places(call, queue, status, left)
    tasks = []
    for place in found:
        task = await finding.look(call, place)
        if task is not None:
            tasks.append(_in_list(task))
    if status in ("all", "scheduled"):
        made = context.view.schedules(context.namespace, queues)
        tasks += [_schedule_in_list(each) for each in made[: TASKS_MAX - len(tasks)]]
    return {"tasks": tasks, "count": len(tasks)}


def _in_list(task: Task) -> Facts:
    facts: Facts = {
        "task_id": task.id,
        "payload": task.payload[:SHORT_CHARS],
        "priority": priority_of(task.priority),
        "queue": task.queue,
        "status": task.status,
    }
    if task.status == "scheduled":
        facts["scheduled_at"] = task.scheduled_ms / 1_000
    if task.status == "dlq":
        facts["retry_count"] = task.retries
    return facts


def _schedule_in_list(schedule: Schedule) -> Facts:
    facts = {**_of_schedule(schedule), "status": "scheduled"}
    facts["payload"] = facts["payload"][:SHORT_CHARS]
    return {name: facts[name] for name in (
        "task_id", "payload", "priority", "queue", "status", "scheduled_at", "schedule",
    )}  # fmt: skip


# Dead letters.


class _DeadForm(msgspec.Struct):
    queue: str | None = None
    task_ids: list[str] | None = None


def _dead_queues(call: Call, form: _DeadForm, right: Right) -> list[str]:
    """The queues whose dead letters are spoken of."""
    if form.queue:
        call.check(right, form.queue)
        _properties(call, form.queue)
        return [form.queue]
    context = call.context
    return [queue for queue in queues_of(context) if context.may(call.principal, right, queue)]


async def get_dlq(call: Call) -> Facts:
    form: _DeadForm = call.form(_DeadForm)
    queues = _dead_queues(call, form, "listen")
    tasks: list[Facts] = []
    size = 0
    for queue in queues:
        for place in await finding.places(call, queue, "dlq", DEAD_MAX):
            if len(tasks) >= DEAD_MAX or size > ANSWER_BYTES_MAX:
                break
            task = await finding.look(call, place)
            if task is not None:
                size += 6 * len(task.payload)
                tasks.append(_dead(task))
    return {"tasks": tasks, "count": sum(counts_of(call.context, queue).dead for queue in queues)}


def _dead(task: Task) -> Facts:
    return {
        "task_id": task.id,
        "payload": task.payload,
        "queue": task.queue,
        "retry_count": task.retries,
        "created_at": task.created_ms / 1_000,
        "error": task.error,
    }


async def requeue_dlq(call: Call) -> Facts:
    """Those that are named, or all."""
    form: _DeadForm = call.form(_DeadForm)
    done = 0
    for queue in _dead_queues(call, form, "manage"):
        dead = dead_letter_queue(queue)
        sequences = await _named(call, dead, form.task_ids)
        if sequences is not None:
            for at in range(0, len(sequences), DEAD_MAX):
                progress = await call.ask(Resubmit(dead, sequences[at : at + DEAD_MAX]))
                done += progress.done if isinstance(progress, Progress) else 0
            continue
        first: int | None = 0
        while first is not None:
            progress = await call.ask(Resubmit(dead, first=first))
            assert isinstance(progress, Progress)
            done, first = done + progress.done, progress.next
    return {"requeued": done}


async def purge_dlq(call: Call) -> Facts:
    form: _DeadForm = call.form(_DeadForm)
    done, every = 0, frozenset(range(len(STATES)))
    for queue in _dead_queues(call, form, "manage"):
        dead = dead_letter_queue(queue)
        sequences = await _named(call, dead, form.task_ids)
        if sequences is None:
            done += await _purge_all(call, dead, every)
            continue
        for at in range(0, len(sequences), DEAD_MAX):
            command = Purge(dead, every, sequences=sequences[at : at + DEAD_MAX])
            progress = await call.ask(command)
            done += progress.done if isinstance(progress, Progress) else 0
    return {"purged": done}


async def _named(call: Call, dead: str, ids: list[str] | None) -> list[int] | None:
    """The numbers of the dead letters that are named; None where none are, and all are meant."""
    if ids is None:
        return None
    if len(ids) > DEAD_MAX:
        raise Failed(f"task_ids are {DEAD_MAX} at most; name them in parts")
    return await finding.numbers_of(call, dead, ids)


# The broker.


def list_workers(call: Call) -> Facts:
    now = time.time()
    workers = [each._asdict() for each in call.context.workers.all(now)]
    return {"workers": workers, "count": len(workers)}


async def health(call: Call) -> Facts:
    try:
        await call.context.engine.prove()
        status = "healthy"
    except (StoreError, Busy, NotLeader):
        status = "unhealthy"
    there = [counts_of(call.context, queue) for queue in _visible(call)]
    return {
        "status": status,
        "queues": len(there),
        "ready_tasks": sum(map(depth_of, there)),
        "processing_tasks": sum(each.locked for each in there),
        "active_workers": call.context.workers.active(time.time()),
        "uptime_seconds": call.context.uptime(),
    }


def stats(call: Call) -> Facts:
    context = call.context
    queues = {queue: counts_of(context, queue) for queue in _visible(call)}
    each = {q: {"depth": depth_of(n), "processing": n.locked} for q, n in queues.items()}
    ready = sum(map(depth_of, queues.values()))
    processing = sum(there.locked for there in queues.values())
    scheduled = sum(there.scheduled for there in queues.values())
    scheduled += len(context.view.schedules(context.namespace, queues))
    dead = sum(there.dead for there in queues.values())
    workers = context.workers.active(time.time())
    totals = context.totals()
    average = context.processing.sum / max(1, context.processed)
    return {
        "queues": each,
        "processing": processing,
        "scheduled": scheduled,
        "dlq": dead,
        "workers": workers,
        "uptime_seconds": context.uptime(),
        "tasks_pushed": totals.pushed,
        "tasks_completed": totals.completed,
        "tasks_expired": totals.expired,
        "tasks_failed": totals.failed,
        "ready_queue_depth": ready,
        "processing_queue_depth": processing,
        "avg_processing_time_seconds": average,
        "tasks_per_second": context.per_second(),
        "scheduled_tasks": scheduled,
        "dlq_count": dead,
        "active_workers": workers,
        "queue_count": len(queues),
    }


def _answer(look: Any) -> Order:
    """A command that is answered with what a function finds, at once or after some steps."""

    async def order(call: Call) -> bytes:
        found = look(call)
        return told(found if isinstance(found, dict) else await found)

    return order


def _queue_info(call: Call) -> Any:
    return queue_info(call, call.name())


ORDERS: dict[str, Order] = {
    name: _answer(look)
    for name, look in {
        "STATS": stats,
        "ADMIN_LIST_QUEUES": list_queues,
        "ADMIN_QUEUE_INFO": _queue_info,
        "ADMIN_PURGE_QUEUE": purge_queue,
        "ADMIN_DELETE_QUEUE": delete_queue,
        "ADMIN_GET_TASK": get_task,
        "ADMIN_CANCEL_TASK": cancel_task,
        "ADMIN_LIST_TASKS": list_tasks,
        "ADMIN_LIST_WORKERS": list_workers,
        "ADMIN_GET_DLQ": get_dlq,
        "ADMIN_REQUEUE_DLQ": requeue_dlq,
        "ADMIN_PURGE_DLQ": purge_dlq,
        "ADMIN_HEALTH": health,
        "ADMIN_SET_QUEUE_TTL": set_ttl,
        "ADMIN_SET_QUEUE_LIMIT": set_limit,
        "ADMIN_QUEUE_METRICS": queue_metrics,
        "ADMIN_REPLAY": replay,
    }.items()
}
