"""`/cluster`: what a node knows of its cluster, and what it can be told to do.

Every node answers it itself. What the leader alone, or another node, can answer is asked of that
one, over the same paths.
"""

import asyncio
from contextlib import suppress
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from posthouse.core.errors import Busy
from posthouse.server.checksums import Position, checksums
from posthouse.server.cluster import ClusterNode, ClusterStatus, NodeStatus
from posthouse.server.cluster_status import (
    SILENT_MS,
    ClusterForm,
    NodeForm,
    Role,
    StreamForm,
    level_of,
    stream_of,
    troubles_of,
)
from posthouse.server.folder_api import FolderApi
from posthouse.server.host import BrokerHost
from posthouse.server.http import Answer, Request
from posthouse.server.router import Router
from posthouse.store.log import Unanswered

_encode = msgspec.json.Encoder().encode

NodeName = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{0,32}$")]


class Call:
    """One request to a node of a cluster."""

    def __init__(self, request: Request, broker: BrokerHost, node: ClusterNode) -> None:
        self.request = request
        self.broker = broker
        self.node = node


class ClusterApi:
    """Answers `/cluster`; who asks must be allowed to manage all."""

    def __init__(self, broker: BrokerHost, folder: FolderApi) -> None:
        self._broker = broker
        self._folder = folder

    async def answer(self, request: Request) -> Answer:
        if request.parts[1:2] == [b"folder"]:
            return await self._folder.answer(request)
        self._broker.check(request.principal, "manage", "*", "*")
        node = self._broker.node
        if node is None:
            raise Busy("this node has not joined its cluster yet")
        call = Call(request, self._broker, node)
        return await _router.call(call, request.method, request.parts, request.query)


_router: Router[Call] = Router()
_route = _router.route


@_route("GET", "/cluster", gives=ClusterForm)
async def get_cluster(call: Call) -> Answer:
    """Get who leads, how far each node is, and what is wrong."""
    return Answer(_encode(await status_of(call.broker, call.node)))


async def status_of(broker: BrokerHost, node: ClusterNode) -> ClusterForm:
    known = node.status()
    synced: Literal["always", "interval"] = "interval"
    if broker.config.durability == "fsync":  # it was looked at when this node joined
        synced = "always"
    stream: StreamForm | None = None
    with suppress(Unanswered):
        stream = stream_of(await node.stream_info(), synced)
    return cluster_form(known, stream)


def cluster_form(known: ClusterStatus, stream: StreamForm | None) -> ClusterForm:
    """The form of what a node knows."""
    leader = known.leader
    name = None if leader is None else leader.node
    nodes = sorted((_node_form(known, each) for each in known.nodes), key=lambda form: form.node)
    stalled = None
    if known.is_stalled:
        stalled = known.trouble or "the NATS servers do not answer"
    elif stream is None and name is not None:
        stalled = "the stream does not answer"
    troubles = troubles_of(name, nodes, stream, stalled)
    position = max(known.position, 0 if leader is None else leader.position)
    return ClusterForm(
        known.cluster, known.node, level_of(name, troubles), known.epoch, name,
        None if leader is None else leader.url, None if leader is None else leader.leads_ms,
        position, nodes, stream, troubles,
    )  # fmt: skip


def _node_form(known: ClusterStatus, heard: NodeStatus) -> NodeForm:
    hello, leader = heard.hello, known.leader
    heard_ms = round(heard.silent_seconds * 1_000)
    role: Role = "standby"
    if heard_ms > SILENT_MS:
        role = "silent"
    elif leader is not None and leader.node == hello.node:
        role = "leader"
    end = hello.position if leader is None else leader.position
    return NodeForm(
        hello.node, role, hello.url, hello.version, hello.position,
        0 if role == "leader" else max(0, end - hello.position),
        None if role == "leader" else hello.behind_ms, None, hello.free_percent, heard_ms,
    )  # fmt: skip


_checking = asyncio.Semaphore(1)


@_route("GET", "/cluster/checksums")
async def get_checksums(
    call: Call, first: Position = 0, end: Position = 0, each: bool = False, node: NodeName = ""
) -> Answer:
    """Get checksums of a node's frames, from one position to another."""
    if _checking.locked():
        raise Busy("another comparison is under way")
    store = call.broker.store
    assert store is not None
    async with _checking:
        found = await checksums(call.node.status().node, store, first, end, each=each)
    return Answer(_encode(found))
