"""The metrics of a node of a cluster: read off the node and its store when somebody asks."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING

from posthouse.server.cluster_status import SILENT_MS, stream_of
from posthouse.store.log import Unanswered

if TYPE_CHECKING:
    from prometheus_client import Metric

    from posthouse.server.cluster import ClusterNode


async def cluster_metrics(node: "ClusterNode") -> "AsyncIterator[Metric]":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    def gauge(name: str, text: str, value: float) -> "Metric":
        return GaugeMetricFamily(f"posthouse_cluster_{name}", text, value)

    known = node.status()
    mine = known.nodes[0].hello
    there = [each for each in known.nodes if each.silent_seconds * 1_000 <= SILENT_MS]
    yield gauge("leader", "1 if this node leads, else 0", node.leads)
    yield gauge("epoch", "The highest epoch that this node has seen", known.epoch)
    yield gauge("position", "This node has all changes before it", known.position)
    yield gauge("behind_seconds", "For how long this node has not had all that the leader has",
                mine.behind_ms / 1_000)  # fmt: skip
    yield gauge("clock_offset_seconds", "How far this node's clock is ahead of the leader's",
                -(mine.offset_ms or 0) / 1_000)  # fmt: skip
    yield gauge("nodes", "Nodes that were heard just now, with this one", len(there))
    yield gauge("stalled_seconds", "For how long the leader has waited for the NATS servers",
                node.waits_seconds)  # fmt: skip
    yield CounterMetricFamily(
        "posthouse_cluster_void_frames", "Messages of the stream that did not count", known.void
    )
    yield CounterMetricFamily(
        "posthouse_cluster_fences", "Leaderships that this node has seen begin", node.figures.fences
    )
    with suppress(Unanswered):
        stream = stream_of(await node.stream_info(), "always")
        yield gauge("stream_replicas_current", "Replicas of the stream that are up to date",
                    stream.current)  # fmt: skip
        yield gauge("stream_bytes", "What the stream holds", stream.size_bytes)
        yield gauge("stream_max_bytes", "What the stream may hold", stream.max_bytes)
