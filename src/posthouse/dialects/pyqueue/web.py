"""PyQueue's API over HTTP, on a port that is declared for it.

GET  /                    a page to look at
GET  /health              {status, broker_running}
GET  /api/queues          as ADMIN_LIST_QUEUES
GET  /api/queues/Q        as ADMIN_QUEUE_INFO
POST /api/tasks           {payload, priority, queue, idempotency_key}
POST /api/tasks/batch     {tasks}
GET  /api/metrics         as STATS
GET  /api/workers, /api/dlq
GET  /metrics             for Prometheus
GET  /docs                this list
"""

import time
from collections.abc import Awaitable, Callable
from html import escape
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from posthouse.broker.access import Principal
from posthouse.broker.slices import sliced
from posthouse.core.errors import (
    Busy,
    Duplicate,
    NotLeader,
    QuotaExceeded,
    Refused,
    Throttled,
    Unauthenticated,
    Unauthorized,
)
from posthouse.dialects.http import HTML, JSON, Answer, Header, HttpError, Request, unknown
from posthouse.dialects.json_bounds import bounded
from posthouse.dialects.pyqueue import admin, credentials, orders
from posthouse.dialects.pyqueue.context import PyQueueContext
from posthouse.dialects.pyqueue.finding import counts_of, depth_of, queues_of
from posthouse.dialects.pyqueue.orders import Call
from posthouse.dialects.pyqueue.refusals import Failed, Missing, told
from posthouse.dialects.pyqueue.tasks import BatchForm, PushForm, new_task, queue_in

TEXT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
POLICY = (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline';"
          b" frame-ancestors 'none'")  # fmt: skip
REFRESH_SECONDS = 5
PAGE_QUEUES_MAX = 200
_STATUS: dict[type[Refused], int] = {
    Unauthenticated: 401, Unauthorized: 403, Duplicate: 409, QuotaExceeded: 507, Throttled: 429,
    Busy: 503, NotLeader: 503,
}  # fmt: skip


class Web:
    def __init__(self, context: PyQueueContext) -> None:
        self._context = context

    async def answer(self, request: Request) -> Answer:
        call: Call | None = None
        try:
            if request.parts == [b"health"] and request.method == "GET":
                return _json({"status": "healthy", "broker_running": True})
            principal = self._principal(request)
            request.identified(principal)
            self._context.welcome()
            call = Call(self._context, principal, request.address, "", b"")
            return await self._answer(call, request)
        except HttpError as error:
            return _failed(error.status, error.detail)
        except Failed as failed:
            return _failed(404 if isinstance(failed, Missing) else 400, str(failed))
        except Refused as refused:
            op, on = ("", "") if call is None else (call.op, call.on)
            return _failed(_STATUS.get(type(refused), 400), told(refused, op, on))

    def _principal(self, request: Request) -> Principal:
        """Raises Unauthenticated or Failed."""
        given, key = request.headers.get(b"authorization"), request.headers.get(b"x-api-key")
        if given is None and key is None:
            stranger = self._context.stranger(is_tls=request.scheme == "https")
            if stranger is None:
                raise unknown(request)
            return stranger
        if given is not None:
            kind, value = credentials.read_header(given)
        else:
            kind, value = "apikey", (key or b"").decode("latin-1")
        return self._context.identify(kind, value, request.login).principal

    async def _answer(self, call: Call, request: Request) -> Answer:
        match (request.method, *request.parts):
            case ("GET", b""):
                return _page(call)
            case ("GET", b"docs"):
                return Answer(_docs(), 200, (HTML, POLICY))
            case ("GET", b"metrics"):
                return Answer((await metrics(call)).encode(), 200, (TEXT,))
            case ("POST", b"api", b"tasks"):
                call.op = "PUSH"
                id = await orders.push(call, await _form(request, PushForm))
                return _json({"task_id": id, "status": "created"})
            case ("POST", b"api", b"tasks", b"batch"):
                return await _batch(call, await _form(request, BatchForm))
            case ("GET", b"api", b"queues", _):
                return _json(await admin.queue_info(call, _name(request.parts[2])))
            case ("GET", b"api", _) if request.parts[1] in _LOOKS:
                found = _LOOKS[request.parts[1]](call)
                return _json(found if isinstance(found, dict) else await found)
            case _:
                raise HttpError(404, "Not Found")


_LOOKS: dict[bytes, Callable[[Call], dict[str, Any] | Awaitable[dict[str, Any]]]] = {
    b"queues": admin.list_queues,
    b"metrics": admin.stats,
    b"workers": admin.list_workers,
    b"dlq": admin.get_dlq,
}


async def _batch(call: Call, form: BatchForm) -> Answer:
    call.op, context = "PUSH_BATCH", call.context
    context.charge(call.address, len(form.tasks))
    tasks = [new_task(each, deduplicate=context.settings.deduplicate) for each in form.tasks]
    queues = list(map(queue_in, form.tasks))
    for call.on in dict.fromkeys(queues):
        context.make_queue(call.principal, "send", call.on)
    ids = await orders.push_together(call, list(zip(queues, tasks, strict=True)))
    return Answer(orders.batch_told(ids), 200, (JSON,))


async def _form(request: Request, kind: type[Any]) -> Any:
    """Raises HttpError, in the way of who wrote the clients."""
    try:
        return msgspec.json.decode(bounded(await request.body()), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(422, str(error)) from None


def _name(part: bytes) -> str:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise HttpError(404, "Queue not found") from None


def _json(content: object) -> Answer:
    return Answer(orders.told(content), 200, (JSON,))


def _failed(status: int, detail: str) -> Answer:
    headers: tuple[Header, ...] = (JSON,)
    if status == 401:
        headers = (JSON, (b"www-authenticate", b"ApiKey"))
    return Answer(orders.told({"detail": detail}), status, headers)


# Metrics.


async def metrics(call: Call) -> str:
    """Returns the metrics in the text format of Prometheus. Others have their turn meanwhile."""
    context = call.context
    depths: list[tuple[str, float]] = []
    processing = 0
    async for some in sliced(queues_of(context)):
        visible = [queue for queue in some if context.knows(call.principal, queue)]
        queues = {queue: counts_of(context, queue) for queue in visible}
        depths += ((f'{{queue_name="{_label(q)}"}}', depth_of(n)) for q, n in queues.items())
        processing += sum(each.locked for each in queues.values())
    totals, now = context.totals(), time.time()
    lines: list[str] = []

    def tell(name: str, kind: str, help: str, *samples: tuple[str, float]) -> None:
        lines.extend((f"# HELP pyqueue_{name} {help}", f"# TYPE pyqueue_{name} {kind}"))
        lines.extend(f"pyqueue_{name}{labels} {value:.10g}" for labels, value in samples)

    tell("tasks_pushed_total", "counter", "Tasks that were pushed.", ("", totals.pushed))
    tell("tasks_completed_total", "counter", "Tasks that were acknowledged.",
         ("", totals.completed))  # fmt: skip
    tell("tasks_failed_total", "counter", "Tasks that became dead letters.", ("", totals.failed))
    tell("tasks_expired_total", "counter", "Tasks whose time to live was over.",
         ("", totals.expired))  # fmt: skip
    tell("queue_depth", "gauge", "Tasks that can be pulled.", *depths)
    tell("processing_tasks", "gauge", "Tasks that are worked on.", ("", processing))
    active = context.workers.active(now)
    tell("active_workers", "gauge", "Workers that send heartbeats.", ("", active))
    taken, total = context.processing, 0
    buckets: list[tuple[str, float]] = []
    for bound, number in zip((*taken.bounds, "+Inf"), taken.counts, strict=True):
        total += number
        buckets.append((f'_bucket{{le="{bound}"}}', total))
    tell("processing_time_seconds", "histogram", "From pull to acknowledgement.",
         *buckets, ("_sum", taken.sum), ("_count", total))  # fmt: skip
    tell("throughput_tasks_per_second", "gauge", "Tasks that were acknowledged lately.",
         ("", context.per_second()))  # fmt: skip
    return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


# Pages.


def _page(call: Call) -> Answer:
    facts = admin.stats(call)
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{each['depth']}</td><td>{each['processing']}</td></tr>"
        for name, each in list(facts["queues"].items())[:PAGE_QUEUES_MAX]
    )
    told = "".join(
        f"<tr><td>{name.replace('_', ' ')}</td><td>{facts[name]:.6g}</td></tr>"
        for name in ("tasks_pushed", "tasks_completed", "tasks_failed", "tasks_expired",
                     "scheduled_tasks", "dlq_count", "active_workers", "tasks_per_second",
                     "uptime_seconds")
    )  # fmt: skip
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>PyQueue</title>'
        f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">'
        "<style>body{font:16px sans-serif;margin:2em}td,th{padding:.2em 1em;text-align:left}"
        "</style><h1>PyQueue</h1>"
        f"<table>{told}</table><h2>Queues</h2>"
        f"<table><tr><th>queue<th>ready<th>processing</tr>{rows}</table></html>"
    )
    return Answer(page.encode(), 200, (HTML, POLICY))


def _docs() -> bytes:
    return f"<!doctype html><title>PyQueue</title><pre>{escape(__doc__ or '')}</pre>".encode()
