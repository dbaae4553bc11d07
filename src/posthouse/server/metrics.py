"""`/metrics`, for Prometheus: read off the running parts when somebody asks.

Aggregate; with `?entities=1` also by queue, up to a number of queues. However many queues there
are, it is worked out in slices, between which others have their turn.
"""

import asyncio
import importlib.metadata
import platform
import time
from collections.abc import AsyncIterator
from functools import cache
from typing import TYPE_CHECKING, Any

from posthouse.broker.engine import Engine
from posthouse.broker.figures import Histogram
from posthouse.broker.memory import MARKS
from posthouse.broker.rows import KINDS
from posthouse.broker.slices import sliced
from posthouse.broker.view import View
from posthouse.core.message import STATES
from posthouse.core.records import (
    Completed,
    DeadLettered,
    Deferred,
    Dropped,
    Expired,
    Locked,
    Purged,
    Returned,
    Sent,
    Taken,
)
from posthouse.dialects.exposition import Exposition
from posthouse.server.cluster_metrics import cluster_metrics
from posthouse.server.feed import Feed
from posthouse.server.host import BrokerHost
from posthouse.server.http import Answer, App, Request
from posthouse.server.listener import Listener
from posthouse.server.problems import HttpProblem
from posthouse.server.relay import Relay

if TYPE_CHECKING:
    from prometheus_client import Metric

ENTITIES_MAX = 1_000
_QUEUE_STEPS = 12  # of a slice, for the samples of one queue
LAG_SECONDS = 0.02  # how often the event loop's lag is measured,
IDLE_LAG_SECONDS = 0.5  # and while there are no connections

# Totals of events: for each its help text, and the records that are counted.
_TOTALS: dict[str, tuple[str, tuple[type, ...]]] = {
    "sent": ("Messages that were accepted", (Sent,)),
    "delivered": ("Deliveries that were made", (Locked, Taken)),
    "settled": ("Messages that were completed, or deleted as they were received",
                (Completed, Taken)),
    "returned": ("Deliveries that ended unsettled", (Returned, Deferred)),
    "dead_lettered": ("Messages that were moved to dead-letter queues", (DeadLettered,)),
    "expired": ("Messages that were dropped because their time had passed", (Expired,)),
    "purged": ("Messages that were removed by hand", (Purged,)),
    "dropped": ("Messages that were dropped from full queues", (Dropped,)),
}  # fmt: skip


class Lag:
    """The event loop's lag: how late it runs its timers.

    A timer that fires late was held up by a turn of the loop, or by other processes on the machine.
    `held` counts the first only: of the lateness, as much as the loop's thread has used of CPU.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.seconds = Histogram([0.001 * 4**n for n in range(8)])
        self.last = 0.0
        self.longest = self.held = 0.0  # since they were last told
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        is_idle = not sum(self._listener.by_dialect.values())
        due = loop.time() + (IDLE_LAG_SECONDS if is_idle else LAG_SECONDS)
        used = time.thread_time()

        def measure() -> None:
            self.last = max(0.0, loop.time() - due)
            self.seconds.add(self.last)
            self.longest = max(self.longest, self.last)
            self.held = max(self.held, min(self.last, time.thread_time() - used))
            self.start()

        self._timer = loop.call_at(due, measure)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def told(self) -> tuple[float, float]:
        """Returns `longest` and `held`, and sets them to zero."""
        found = self.longest, self.held
        self.longest = self.held = 0.0
        return found


class Metrics:
    """The metrics of the whole process."""

    def __init__(
        self,
        app: App,
        broker: BrokerHost,
        listener: Listener,
        feed: Feed,
        relay: Relay | None = None,
    ) -> None:
        self._app = app
        self._broker = broker
        self._listener = listener
        self._feed = feed
        self._relay = relay
        self.lag = Lag(listener)
        self._exposition = Exposition()

    async def answer(self, request: Request) -> Answer:
        """Answers with the totals to any principal; with those of queues to who manages all."""
        if request.method != "GET" or len(request.parts) > 1:
            raise HttpProblem(404, "not-found", "Metrics are at GET /metrics.")
        entities = request.query.get("entities", "0") not in ("", "0", "false")
        if entities:
            self._broker.check(request.principal, "manage", "*", "*")
        accept = request.headers.get(b"accept", b"").decode("latin-1")
        text, content_type = await self._exposition.write(self.collect(entities=entities), accept)
        return Answer(text, 200, ((b"content-type", content_type),))

    async def collect(self, *, entities: bool) -> "AsyncIterator[Metric]":
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
            InfoMetricFamily,
        )

        def gauge(name: str, text: str, value: float) -> "Metric":
            return GaugeMetricFamily(f"posthouse_{name}", text, value)

        def by(kind: Any, name: str, text: str, label: str, counts: "dict[str, float]") -> "Metric":
            family = kind(f"posthouse_{name}", text, labels=[label])
            for value, count in sorted(counts.items()):
                family.add_metric([value], count)
            return family  # type: ignore[no-any-return]

        def histogram(name: str, text: str, values: Histogram) -> "Metric":
            total, buckets = 0, []
            for bound, count in zip(values.bounds, values.counts, strict=False):
                total += count
                buckets.append((repr(float(bound)), total))
            buckets.append(("+Inf", total + values.counts[-1]))
            return HistogramMetricFamily(f"posthouse_{name}", text, buckets, values.sum)

        engine, store = self._broker.engine, self._broker.store
        assert engine is not None
        assert store is not None
        yield InfoMetricFamily(
            "posthouse_build", "What runs here",
            {"version": _version(), "python": platform.python_version()},
        )  # fmt: skip
        view, figures, now = engine.view, engine.figures, engine.now()
        there = await view.overview()
        counted = {
            word: float(getattr(there.counts, word) + getattr(there.dead_counts, word))
            for word in STATES
        }
        counted["dead"] = float(there.counts.dead)
        entities_there = there.queues + there.topics + there.subscriptions
        yield by(GaugeMetricFamily, "messages", "Messages by state; dead: in dead-letter queues",
                 "state", counted)  # fmt: skip
        yield gauge("queues", "Queues, without their dead-letter queues",
                    entities_there)  # fmt: skip
        yield gauge("namespaces", "Namespaces", len(view.namespaces()))
        yield gauge(
            "oldest_message_age_seconds", "Age of the oldest active message",
            await _oldest_age(engine),
        )  # fmt: skip
        for name, (text, kinds) in _TOTALS.items():
            count = sum(figures.records[kind] for kind in kinds)
            yield CounterMetricFamily(f"posthouse_messages_{name}", text, count)
        yield by(CounterMetricFamily, "positions", "Changes in the journal by kind", "kind",
                 {KINDS[kind]: count for kind, count in figures.records.items()})  # fmt: skip
        yield by(CounterMetricFamily, "refusals", "Commands that were refused, by kind", "kind",
                 dict(figures.refused))  # fmt: skip
        yield by(CounterMetricFamily, "http_refusals", "HTTP requests that were refused, by kind",
                 "kind", dict(self._app.refusals))  # fmt: skip
        yield CounterMetricFamily("posthouse_http_requests", "HTTP requests", self._app.requests)
        yield histogram(
            "sync_seconds", "What it took to make a frame durable", figures.sync_seconds
        )
        yield histogram("frame_bytes", "Sizes of frames", figures.frame_bytes)
        yield gauge("position", "The next position of the journal", now.position)
        yield gauge("durable_position", "All below is durable", now.durable)
        yield gauge("store_bytes", "Size of the journal",
                    sum(extent.size_bytes for extent in store.extents()))  # fmt: skip
        yield gauge("store_full", "Whether the disk is full", store.full)
        yield CounterMetricFamily(
            "posthouse_refused_for_space", "Commands refused because the disk is full",
            figures.no_space,
        )  # fmt: skip
        if store.segments is not None:
            room = store.segments.room()
            yield gauge("store_free_bytes", "What is free on the disk of the journal", room.free)
            yield gauge("store_arrow_bytes", "Size of the Arrow segments", room.arrow)
        elif self._broker.url is not None:
            yield gauge("store_free_bytes", "What is free where the journal is", store.spare_bytes)
        if self._broker.url is not None:
            yield gauge("snapshot_position", "Up to where the newest snapshot goes",
                        next(iter(store.snapshots.positions()), 0))  # fmt: skip
        yield gauge("clock_ahead_seconds", "How far the broker's time is ahead of the machine's",
                    engine.ahead_ms() / 1_000)  # fmt: skip
        yield by(GaugeMetricFamily, "connections", "Open connections by dialect", "dialect",
                 dict(self._listener.by_dialect))  # fmt: skip
        yield gauge("connections_strangers", "Those whose clients have not shown who they are",
                    self._listener.strangers)  # fmt: skip
        yield CounterMetricFamily(
            "posthouse_connections_accepted", "Connections that came", self._listener.accepted
        )
        yield by(CounterMetricFamily, "connections_refused", "Connections that were turned away",
                 "why", dict(self._listener.refused))  # fmt: skip
        if (node := self._broker.node) is not None:
            async for family in cluster_metrics(node):
                yield family
            yield histogram("cluster_log_seconds", "What it took the NATS servers to confirm a"
                            " batch of this node", node.figures.log_seconds)  # fmt: skip
        if (relay := self._relay) is not None:
            yield by(GaugeMetricFamily, "cluster_relayed_connections", "Connections of clients that"
                     " another node has taken; out: this one hands them on, in: it leads",
                     "direction", {"out": len(relay.relayed), "in": relay.links.open})  # fmt: skip
        yield gauge("event_loop_tasks", "Tasks of the event loop", len(asyncio.all_tasks()))
        failures = engine.throttle.failures
        yield CounterMetricFamily(
            "posthouse_auth_failures", "Credentials that were not valid", failures.failed
        )
        yield CounterMetricFamily(
            "posthouse_auth_lockouts", "Addresses that came with too many of them in a minute",
            failures.lockouts,
        )  # fmt: skip
        yield CounterMetricFamily(
            "posthouse_auth_unseen", "Credentials from there that were not looked at",
            failures.unseen,
        )  # fmt: skip
        yield gauge("event_loop_lag_seconds", "How late the event loop was last", self.lag.last)
        longest, held = self.lag.told()
        yield gauge("event_loop_lag_longest_seconds",
                    "How late the event loop was at worst since this was last asked",
                    longest)  # fmt: skip
        yield gauge("event_loop_held_seconds",
                    "As before, without what other processes took", held)  # fmt: skip
        yield histogram("event_loop_lag", "How late the event loop is, in seconds",
                        self.lag.seconds)  # fmt: skip
        yield gauge("memory_bodies_bytes", "Bodies in memory", now.bodies_bytes)
        yield gauge("memory_held_bytes", "What cannot be dropped from memory", now.held_bytes)
        yield gauge("memory_level", f"How many of the marks {MARKS} that is above", now.level)
        yield gauge("pending_commands", "Commands that wait for the next batch",
                    now.pending_commands)  # fmt: skip
        yield gauge("pending_bytes", "Their bytes", now.pending_bytes)
        yield CounterMetricFamily(
            "posthouse_refused_for_room", "Commands refused for want of room", figures.crowded
        )
        yield CounterMetricFamily(
            "posthouse_slowed", "Answers to senders that were held back", figures.slowed
        )
        readers = self._feed.readers()
        yield by(GaugeMetricFamily, "feed_reader_lag", "Positions a reader of the feed is behind",
                 "reader", {each.name: each.behind for each in readers})  # fmt: skip
        yield gauge("feed_readers_lost", "Readers for which the journal was not kept any more",
                    sum(each.lost for each in readers))  # fmt: skip
        if entities:
            async for family in _by_queue(GaugeMetricFamily, view, entities_there + there.attached):
                yield family


@cache
def _version() -> str:
    return importlib.metadata.version("posthouse")


async def _by_queue(gauges: Any, view: View, total: int) -> "AsyncIterator[Metric]":
    """Yields the families of a few queues after another; what is written has each of them once."""
    async for some in sliced(view.entities(ENTITIES_MAX), lambda _: _QUEUE_STEPS):
        counts = gauges("posthouse_queue_messages", "Messages by queue and state",
                        labels=["namespace", "queue", "state"])  # fmt: skip
        sizes = gauges("posthouse_queue_bytes", "Bytes by queue", labels=["namespace", "queue"])
        for each in some:
            there = view.counts(each.namespace, each.name)
            for word in STATES:
                counts.add_metric([each.namespace, each.name, word], getattr(there, word))
            size = view.size(each.namespace, each.name)
            sizes.add_metric([each.namespace, each.name], size.size_bytes)
        yield counts
        yield sizes
    left = gauges("posthouse_queues_left_out", "Queues that are too many to be shown")
    left.add_metric([], max(0, total - ENTITIES_MAX))
    yield left


async def _oldest_age(engine: Engine) -> float:
    """The age in seconds of the oldest message that could be received."""
    ages_ms = [0]
    async for some in sliced(list((await engine.view.oldest_ms_by_namespace()).items())):
        ages_ms += (engine.clock_ms(namespace) - oldest_ms for namespace, oldest_ms in some)
    return max(ages_ms) / 1000
