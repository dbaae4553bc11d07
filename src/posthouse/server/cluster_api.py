"""`/cluster`: what a node knows of its cluster, and what it can be told to do.

Every node answers it itself. What the leader alone, or another node, can answer is asked of that
one, over the same paths.
"""

import asyncio
from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from posthouse.core.errors import Busy, NotFound, NotLeader
from posthouse.server.checksums import ChecksumsForm, Position, checksums
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
from posthouse.server.hold import HOLD_SECONDS
from posthouse.server.host import BrokerHost, cluster_root_key
from posthouse.server.http import Answer, Request, decoded
from posthouse.server.node_client import ASKED_BY, NodeClient, NodeSilent
from posthouse.server.problems import HttpProblem
from posthouse.server.router import Router
from posthouse.server.tls import LinkTrust
from posthouse.store.errors import NotThere
from posthouse.store.log import Unanswered

_encode = msgspec.json.Encoder().encode

NodeName = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{0,32}$")]


class StepDownForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    to: NodeName | None = None  # the one that has most, if none is named


class SteppedDownForm(msgspec.Struct, frozen=True, rename={"by": "from"}):
    by: str  # the node that has led
    to: str


class ForgetForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,32}$")]


class HoldForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    seconds: float = HOLD_SECONDS


class HeldForm(msgspec.Struct, frozen=True):
    seconds: float
    confirmed: bool  # all that was decided before


class Call:
    """One request to a node of a cluster."""

    def __init__(
        self, request: Request, broker: BrokerHost, node: ClusterNode, others: NodeClient
    ) -> None:
        self.request = request
        self.broker = broker
        self.node = node
        self._others = others
        self._body: bytes | None = None  # it can be read once

    async def body(self) -> bytes:
        """Raises HttpProblem."""
        if self._body is None:
            self._body = await self.request.body()
        return self._body

    async def form(self, kind: type[Any]) -> Any:
        return decoded(kind, await self.body())

    async def hand_to_leader(self) -> Answer:
        """Has the leader answer. Raises NotLeader where none is known, or this one was asked so."""
        leader = self.node.leader
        if leader is None or self.node.leads or ASKED_BY in self.request.headers:
            raise NotLeader("" if leader is None else leader.url)
        return await self.hand_to(leader.url)

    async def hand_to(self, address: str) -> Answer:
        """Has another node answer. Raises HttpProblem."""
        request = self.request
        path = request.raw_path + (b"?" + request.raw_query if request.raw_query else b"")
        try:
            status, kind, body = await self._others.ask(
                address, request.method, path.decode("latin-1"), await self.body()
            )
        except NodeSilent as error:
            raise HttpProblem(503, "node-silent", f"{error}.") from None
        return Answer(body, status, ((b"content-type", kind),))


class ClusterApi:
    """Answers `/cluster`; who asks must be allowed to manage all."""

    def __init__(self, broker: BrokerHost, trust: LinkTrust, folder: FolderApi) -> None:
        """Raises OSError."""
        self._broker = broker
        self._folder = folder
        config = broker.config
        self._others = NodeClient(config.node or "", cluster_root_key(config), trust.context)

    async def answer(self, request: Request) -> Answer:
        if request.parts[1:2] == [b"folder"]:
            return await self._folder.answer(request)
        self._broker.check(request.principal, "manage", "*", "*")
        node = self._broker.node
        if node is None:
            raise Busy("this node has not joined its cluster yet")
        call = Call(request, self._broker, node, self._others)
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
    held = f"for another {known.held_seconds:.0f} s" if known.held_seconds > 0 else None
    troubles = troubles_of(name, nodes, stream, None if held else stalled, held)
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
        None if role == "leader" else hello.behind_ms,
        None if role == "leader" or hello.offset_ms is None else -hello.offset_ms,
        hello.free_percent, heard_ms, hello.trouble,
    )  # fmt: skip


_checking = asyncio.Semaphore(1)


@_route("GET", "/cluster/checksums", gives=ChecksumsForm)
async def get_checksums(
    call: Call, first: Position = 0, end: Position = 0, each: bool = False, node: NodeName = ""
) -> Answer:
    """Get checksums of a node's frames, from one position to another."""
    known = call.node.status()
    if node and node != known.node:
        if ASKED_BY in call.request.headers:
            raise NotFound("node", node)
        for heard in known.nodes:
            if heard.hello.node == node:
                return await call.hand_to(heard.hello.url)
        raise NotFound("node", node)
    if _checking.locked():
        raise Busy("another comparison is under way")
    store = call.broker.store
    assert store is not None
    async with _checking:
        try:
            found = await checksums(known.node, store, first, end, each=each)
        except NotThere as error:
            raise HttpProblem(409, "trimmed", f"{error}; begin again.") from None
    return Answer(_encode(found))


@_route("POST", "/cluster/step-down", StepDownForm, SteppedDownForm)
async def step_down(call: Call) -> Answer:
    """Have another node lead."""
    form = await call.form(StepDownForm)
    if not call.node.leads:
        return await call.hand_to_leader()
    to = await call.node.step_down(form.to or None)
    return Answer(_encode(SteppedDownForm(call.node.status().node, to)))


@_route("POST", "/cluster/forget", ForgetForm, status=204)
async def forget(call: Call) -> Answer:
    """Have a node that is gone hold nothing any more: every node that is there forgets it."""
    form = await call.form(ForgetForm)
    known = call.node.status()
    others = [
        each.hello.url
        for each in known.nodes[1:]
        if each.hello.node != form.node and each.silent_seconds * 1_000 <= SILENT_MS
    ]
    is_known = True
    try:
        call.node.forget(form.node)
    except NotFound:
        is_known = False
    if ASKED_BY not in call.request.headers:
        for url in others:
            with suppress(HttpProblem):  # one that has just gone
                is_known |= (await call.hand_to(url)).status < 300
    if not is_known:
        raise NotFound("node", form.node)
    return _DONE


@_route("POST", "/cluster/hold", HoldForm, HeldForm)
async def hold(call: Call) -> Answer:
    """Have the cluster write nothing for a while."""
    form = await call.form(HoldForm)
    if not call.node.leads:
        return await call.hand_to_leader()
    confirmed = await call.node.hold(form.seconds)
    return Answer(_encode(HeldForm(form.seconds, confirmed)))


@_route("DELETE", "/cluster/hold", status=204)
async def release(call: Call) -> Answer:
    """Have the cluster go on."""
    await call.node.release()
    if not call.node.leads and call.node.leader is not None:
        return await call.hand_to_leader()
    return _DONE


_DONE = Answer(b"", 204, ())
OPERATIONS = tuple(_router.operations)  # for the OpenAPI document
