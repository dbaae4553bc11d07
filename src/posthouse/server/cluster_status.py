"""The state of a cluster as it is told: `GET /cluster`, `posthouse cluster status`, and alerts.

What is wrong is worked out here, once, with what to do about it; whoever shows it need not know.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

SILENT_MS = 3_000  # since its last hello, after which a node is not there
BEHIND_MS = 30_000  # that a node may be behind
CLOCK_MS = 1_000  # that a clock may be off
FREE_PERCENT = 10  # of a disk, below which it is soon full
STREAM_PERCENT = 80  # of what the stream may hold

Role = Literal["leader", "standby", "silent"]
Level = Literal["well", "degraded", "no leader"]


class NodeForm(msgspec.Struct, frozen=True):
    """A node, as others have heard it last."""

    node: str
    role: Role
    url: str
    version: str
    position: int  # it has all changes before this one
    behind: int  # positions that it lacks
    behind_ms: int | None  # for how long it has not had all; None of the leader
    clock_ms: int | None  # how far its clock is ahead of the leader's; None of the leader
    free_percent: int | None  # of the disk of its folder
    heard_ms: int  # since it was heard
    trouble: str = ""  # why it cannot follow, or is not to lead


class StreamForm(msgspec.Struct, frozen=True):
    """The stream that holds the newest frames, as its servers tell."""

    name: str
    leader: str  # the server that leads it; "" while none does
    replicas: int
    current: int  # of the replicas
    lagging: list[str]  # servers whose replicas are not current
    size_bytes: int
    max_bytes: int
    synced: Literal["always", "interval"]


class TroubleForm(msgspec.Struct, frozen=True):
    """Something that is wrong, and what to do about it."""

    what: str
    do: str


class ClusterForm(msgspec.Struct, frozen=True):
    """`GET /cluster`."""

    cluster: str
    node: str  # that has answered
    level: Level
    epoch: int
    leader: str | None
    leader_url: str | None
    leads_ms: int | None  # since when the leader leads
    position: int
    nodes: list[NodeForm]
    stream: StreamForm | None  # None while its servers do not answer
    troubles: list[TroubleForm]


def level_of(leader: str | None, troubles: Sequence[TroubleForm]) -> Level:
    if leader is None:
        return "no leader"
    return "degraded" if troubles else "well"


def stream_of(info: dict[str, Any], synced: Literal["always", "interval"]) -> StreamForm:
    """The form of what NATS tells of a stream."""
    config, state = info.get("config", {}), info.get("state", {})
    members = info.get("cluster") or {}
    leader = str(members.get("leader", ""))
    replicas = members.get("replicas") or []
    lagging = [
        str(each.get("name", "?"))
        for each in replicas
        if not each.get("current") or each.get("offline")
    ]
    wanted = int(config.get("num_replicas", 1))
    there = len(replicas) - len(lagging) + bool(leader or wanted == 1)
    return StreamForm(
        str(config.get("name", "")), leader, wanted, there, lagging, int(state.get("bytes", 0)),
        int(config.get("max_bytes", 0)), synced,
    )  # fmt: skip


def troubles_of(
    leader: str | None,
    nodes: Sequence[NodeForm],
    stream: StreamForm | None,
    stalled: str | None = None,
    held: str | None = None,
) -> list[TroubleForm]:
    """The troubles. `stalled` and `held`: why the leader writes nothing, if that is so."""
    found: list[tuple[str, str]] = []
    if leader is None:
        found.append((
            "no node leads",
            "start the nodes that are down; most NATS servers must run and reach each other",
        ))  # fmt: skip
    if held is not None:
        found.append((f"writing is held {held}", "posthouse cluster hold --release"))
    if stalled is not None:
        found.append((
            f"the leader cannot write: {stalled}",
            "start the NATS servers that are down; it goes on by itself",
        ))  # fmt: skip
    for node in nodes:
        found += _of_node(node)
    versions = sorted({node.version for node in nodes if node.role != "silent"})
    if len(versions) > 1:
        found.append((
            f"nodes run different versions: {', '.join(versions)}",
            "upgrade the others, the leader last",
        ))  # fmt: skip
    if stream is not None:
        found += _of_stream(stream)
    return [TroubleForm(what, do) for what, do in found]


def _of_node(node: NodeForm) -> list[tuple[str, str]]:
    name = node.node
    if node.role == "silent":
        return [(
            f"the node {name} has been silent for {node.heard_ms // 1_000} s",
            f"start it; if it is gone for good, posthouse cluster forget {name}",
        )]  # fmt: skip
    found = []
    if node.trouble:
        found.append((
            f"the node {name} is not to lead: {node.trouble}",
            "look at its log, and mend that there",
        ))  # fmt: skip
    if node.behind_ms is not None and node.behind_ms > BEHIND_MS:
        found.append((
            f"the node {name} is {node.behind:,} positions and {node.behind_ms // 1_000} s behind",
            "look at its log, its disk and its network",
        ))  # fmt: skip
    if node.clock_ms is not None and abs(node.clock_ms) > CLOCK_MS:
        found.append((
            f"the clock of the node {name} is off by {node.clock_ms / 1_000:+.1f} s",
            "set the clocks of all machines by NTP",
        ))  # fmt: skip
    if node.free_percent is not None and node.free_percent < FREE_PERCENT:
        found.append((
            f"the disk of the node {name} has {node.free_percent} % free",
            "free space there, or keep less with --keep-size",
        ))  # fmt: skip
    return found


def _of_stream(stream: StreamForm) -> list[tuple[str, str]]:
    found = []
    if not stream.leader and stream.replicas > 1:
        found.append((
            "no NATS server leads the stream", "wait for NATS's election; it takes up to 10 s"
        ))  # fmt: skip
    elif stream.current < stream.replicas:
        named = f" ({', '.join(stream.lagging)} lacks it)" if stream.lagging else ""
        found.append((
            f"{stream.current} of {stream.replicas} replicas of the stream are current{named}",
            "start the NATS servers that are down, and wait until they have caught up",
        ))  # fmt: skip
    if stream.max_bytes > 0 and stream.size_bytes * 100 >= stream.max_bytes * STREAM_PERCENT:
        percent = stream.size_bytes * 100 // stream.max_bytes
        found.append((
            f"the stream is {percent} % full",
            "bring back or forget nodes that are silent or behind: they hold it",
        ))  # fmt: skip
    return found
