"""What is told of a cluster, and what is wrong with it."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from posthouse.broker.standby import Beat, Hello
from posthouse.server.cluster import ClusterStatus, NodeStatus
from posthouse.server.cluster_api import cluster_form
from posthouse.server.cluster_status import ClusterForm, StreamForm, stream_of

STREAM = StreamForm("PHJ_shop_0", "b", 3, 3, [], 10, 100, "always")
BEAT = Beat("b", "h2:5672", "leader", 4, 9, 120, 0, leads_ms=7_000)


def hello(node: str, **more: Any) -> Hello:
    given: dict[str, Any] = {"position": 120, "behind_ms": 0, "free_percent": 50, **more}
    return Hello(node, f"{node}:5672", 9, 9, given.pop("version", "1"), 0, **given)


@dataclass(frozen=True)
class Known:
    leader: Beat | None = BEAT
    hellos: tuple[tuple[Hello, float], ...] = (
        (hello("a"), 0.0), (hello("b"), 0.4), (hello("c", position=100, behind_ms=12), 0.7)
    )  # fmt: skip
    is_stalled: bool = False
    held_seconds: float = 0.0
    stream: StreamForm | None = STREAM

    def form(self) -> ClusterForm:
        nodes = [NodeStatus(each, seconds) for each, seconds in self.hellos]
        known = ClusterStatus(
            "shop", "a", self.leader, 4, 9, 120, 0, self.is_stalled, self.held_seconds, 1, "", nodes
        )
        return cluster_form(known, self.stream)


def test_a_cluster_that_is_well_has_a_leader_and_no_trouble() -> None:
    form = Known().form()
    assert (form.level, form.leader, form.leader_url, form.leads_ms) == (
        "well", "b", "h2:5672", 7_000
    )  # fmt: skip
    assert [(node.node, node.role, node.behind, node.behind_ms) for node in form.nodes] == [
        ("a", "standby", 0, 0), ("b", "leader", 0, None), ("c", "standby", 20, 12)
    ]  # fmt: skip
    assert form.troubles == []


def with_c(more: Hello, seconds: float = 0.0) -> Known:
    return Known(hellos=(*Known().hellos[:2], (more, seconds)))


@pytest.mark.parametrize(
    ("known", "what"),
    [
        (Known(leader=None), "no node leads"),
        (Known(is_stalled=True), "the leader cannot write: the NATS servers do not answer"),
        (Known(is_stalled=True, held_seconds=9), "writing is held for another 9 s"),
        (with_c(hello("c", offset_ms=-1_500)), "the clock of the node c is off by +1.5 s"),
        (with_c(hello("c", trouble="its disk is full")), "c is not to lead: its disk is full"),
        (Known(stream=None), "the leader cannot write: the stream does not answer"),
        (with_c(hello("c"), 12.0), "the node c has been silent for 12 s"),
        (with_c(hello("c", position=20, behind_ms=31_000)), "c is 100 positions and 31 s behind"),
        (with_c(hello("c", free_percent=9)), "the disk of the node c has 9 % free"),
        (with_c(hello("c", version="2")), "different versions: 1, 2"),
        (Known(stream=StreamForm("s", "", 3, 2, [], 1, 9, "always")), "no NATS server leads"),
        (Known(stream=StreamForm("s", "b", 3, 2, ["c"], 1, 9, "always")), "2 of 3 replicas"),
        (Known(stream=StreamForm("s", "b", 3, 3, [], 80, 100, "always")), "80 % full"),
    ],
)
def test_what_is_wrong_is_told_with_what_to_do(known: Known, what: str) -> None:
    form = known.form()
    assert form.level == ("no leader" if known.leader is None else "degraded")
    [trouble] = form.troubles
    assert what in trouble.what
    assert trouble.do


def test_a_node_that_is_silent_is_not_said_to_lag_or_to_be_old() -> None:
    gone = hello("c", position=1, behind_ms=99_000, free_percent=1, version="0")
    assert len(with_c(gone, 60.0).form().troubles) == 1


def test_a_silent_leader_is_silent() -> None:
    known = replace(Known(), hellos=((hello("a"), 0.0), (hello("b"), 9.0)))
    assert [node.role for node in known.form().nodes] == ["standby", "silent"]


def test_what_nats_tells_of_a_stream_is_read() -> None:
    replicas = [{"name": "a", "current": True}, {"name": "c", "current": False}]
    told = {
        "config": {"name": "PHJ_shop_0", "num_replicas": 3, "max_bytes": 100},
        "state": {"bytes": 10},
        "cluster": {"leader": "b", "replicas": replicas},
    }
    assert stream_of(told, "always") == StreamForm(
        "PHJ_shop_0", "b", 3, 2, ["c"], 10, 100, "always"
    )
    told["cluster"] = {"replicas": [*replicas, {"name": "b", "current": True, "offline": True}]}
    assert stream_of(told, "always").current == 1
    alone = stream_of({"config": {"num_replicas": 1}}, "interval")
    assert (alone.current, alone.replicas) == (1, 1)
