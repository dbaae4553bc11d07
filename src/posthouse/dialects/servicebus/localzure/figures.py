"""Metrics under the names that LocalZure's documents give them.

Totals and durations are of what passes through its API; how many messages, locks and entities there
are is of the whole broker.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING

from posthouse.broker.slices import sliced
from posthouse.broker.view import Entity, View
from posthouse.core.model import SUBSCRIPTION, entity_of

if TYPE_CHECKING:
    from prometheus_client import Metric

ENTITIES_MAX = 1_000  # that are told apart
BOUNDS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
DONE = ("sent", "received", "completed", "abandoned", "deadlettered")
TIMED = ("send", "receive", "complete")
_HISTOGRAM_STEPS = 12  # of a slice, for the buckets of one entity

Labels = tuple[str, ...]


class Histogram:
    """How long something took."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds


class _Entity:
    """The operations on one entity, and how long they took."""

    __slots__ = ("done", "filters", "took")

    def __init__(self) -> None:
        self.done = dict.fromkeys(DONE, 0)
        self.took = {name: Histogram() for name in TIMED}
        self.filters = Histogram()


class Figures:
    def __init__(self) -> None:
        self._entities: dict[Labels, _Entity] = {}  # by kind and name
        self._errors: Counter[Labels] = Counter()

    def _entity(self, labels: Labels) -> _Entity:
        """Beyond a limit all of them are one."""
        found = self._entities.get(labels)
        if found is None:
            if len(self._entities) >= ENTITIES_MAX:
                labels = (labels[0], "others")
            found = self._entities.setdefault(labels, _Entity())
        return found

    def did(self, labels: Labels, what: str, number: int, how: str, seconds: float) -> None:
        """So many were sent, received, and so on; and how long that took, where it is told."""
        entity = self._entity(labels)
        entity.done[what] += number
        if how:
            entity.took[how].add(seconds)

    def evaluated(self, topic: str, seconds: float) -> None:
        self._entity(("topic", topic)).filters.add(seconds)

    def failed(self, operation: str, code: str) -> None:
        self._errors[operation, code] += 1

    async def collect(self, view: View) -> "AsyncIterator[Metric]":
        """Yields the families of some entities after another."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        entity = ["entity_type", "entity_name"]
        entities = list(self._entities.items())
        for name in DONE:
            text = f"Messages {name} over this API"
            async for some in sliced(entities):
                family = CounterMetricFamily(f"servicebus_messages_{name}", text, labels=entity)
                for labels, each in some:
                    if each.done[name]:
                        family.add_metric(labels, each.done[name])
                yield family
        errors = CounterMetricFamily(
            "servicebus_errors", "Requests that failed", labels=["operation", "error_type"]
        )
        for labels, number in self._errors.items():
            errors.add_metric(labels, number)
        yield errors
        for name in TIMED:
            async for some in sliced(entities, lambda _: _HISTOGRAM_STEPS):
                took = {labels: each.took[name] for labels, each in some}
                yield _histogram(f"servicebus_{name}_duration_seconds", entity, took)
        async for some in sliced(entities, lambda _: _HISTOGRAM_STEPS):
            filters = {labels[1:]: each.filters for labels, each in some if labels[0] == "topic"}
            yield _histogram(
                "servicebus_filter_evaluation_duration_seconds", ["topic_name"], filters
            )
        found = await view.overview()
        kinds = {"queue": found.queues, "topic": found.topics, "subscription": found.subscriptions}
        for kind, count in kinds.items():
            name, text = f"servicebus_{kind}s_count", f"How many {kind}s there are"
            yield GaugeMetricFamily(name, text, count)
        async for there in sliced(view.entities(3 * ENTITIES_MAX), lambda _: 2):
            for gauge in _by_entity(GaugeMetricFamily, view, there, entity):
                yield gauge
        yield GaugeMetricFamily("servicebus_active_locks", "Messages that are locked", found.locks)


def _histogram(name: str, labels: list[str], found: dict[Labels, Histogram]) -> "Metric":
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(name, "How long it took", labels=labels)
    for each, histogram in found.items():
        total, buckets = 0, []
        for bound, number in zip(BOUNDS, histogram.counts, strict=False):
            total += number
            buckets.append((repr(bound), total))
        total += histogram.counts[-1]
        if total:
            family.add_metric(each, [*buckets, ("+Inf", total)], histogram.seconds)
    return family


def _by_entity(
    gauge: type, view: View, entities: Sequence[Entity], labels: list[str]
) -> "Iterable[Metric]":
    active = gauge("servicebus_active_messages", "Active messages", labels=labels)
    dead = gauge("servicebus_deadletter_messages", "Dead-lettered messages", labels=labels)
    scheduled = gauge("servicebus_scheduled_messages", "Scheduled messages", labels=labels)
    for each in entities:
        if each.kind == "dead-letter":
            owner, size = entity_of(each.name), view.size(each.namespace, each.name)
            kind = "subscription" if SUBSCRIPTION in owner else "queue"
            dead.add_metric([kind, _name(owner)], size.messages)
        elif each.kind != "transfer":
            values, counts = [each.kind, _name(each.name)], view.counts(each.namespace, each.name)
            active.add_metric(values, counts.active)
            scheduled.add_metric(values, counts.scheduled)
    return active, dead, scheduled


def _name(queue: str) -> str:
    return queue.replace(SUBSCRIPTION, "/")
