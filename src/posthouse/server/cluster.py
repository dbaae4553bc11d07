"""A node of a cluster: it follows whoever leads, takes over when nobody does, and hands over.

The replicated log decides who leads (`store/lane.py`); what nodes say to each other on plain
subjects only tells when to try (`broker/standby.py`). A node that was deposed is started anew: its
state is void, large, and referred to from everywhere.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import msgspec

from posthouse.broker.engine import Engine
from posthouse.broker.standby import Beat, Hello, Role, Standby
from posthouse.server.config import Config
from posthouse.server.leadership import LeaderChanged, Leadership
from posthouse.store.errors import Deposed, StoreError
from posthouse.store.file import FileStore
from posthouse.store.log import Unanswered
from posthouse.store.nats import Nats, NatsLog, Servers, Unfit
from posthouse.store.replicated import ReplicatedStore

_log = logging.getLogger(__name__)

BEAT_SECONDS = 0.2
COMMIT_BEAT_SECONDS = 0.02  # after something was confirmed
HELLO_SECONDS = 1.0
READ_SECONDS = 0.1  # between two reads of the log where no beat tells of more
MARK_SECONDS = 5.0
PURGE_SECONDS = 30.0
JOIN_SECONDS = 0.5  # between two attempts to join
MONITOR_SECONDS = 2.0
MONITOR_BYTES_MAX = 16 << 20


@dataclass(frozen=True)
class Membership:
    """Which cluster, and who in it."""

    cluster: str
    node: str
    url: str  # where clients and other nodes reach it
    failover_seconds: float = 1.0
    prefer: int = 0

    def subject(self, word: str) -> str:
        return f"ph.{self.cluster}.{word}"


async def join(config: Config) -> "Joined":
    """Opens the log of a cluster and this node's folder, when the servers answer.

    Raises OSError where the servers are not fit for it, and StoreError.
    """
    assert config.cluster is not None
    assert config.node is not None
    assert config.store is not None
    hosts = config.store.rest.removeprefix("//").split(",")
    servers = Servers(
        tuple(f"nats://{host}" for host in hosts), config.nats_creds, config.nats_ca,
        f"{config.cluster}-{config.node}",
    )  # fmt: skip
    nats, log = await _reach(config, servers)
    local = await asyncio.to_thread(
        FileStore, config.data, segment_bytes=config.segment_size, durability="interval",
        interval_ms=config.interval_ms,
    )  # fmt: skip
    url = config.advertise or f"{config.host[0]}:{config.port[0].number}"
    membership = Membership(config.cluster, config.node, url, config.failover_after, config.prefer)
    return Joined(membership, ReplicatedStore(local, log), nats)


async def _reach(config: Config, servers: Servers) -> tuple[Nats, NatsLog]:
    """Waits until the servers answer. Raises OSError where they are not fit for it."""
    is_told = False
    while True:
        try:
            await _check_synced(config)
            nats = await Nats.connect(servers)
            return nats, await nats.log(
                f"PHJ_{config.cluster}_0", f"phj.{config.cluster}.0", config.replicas,
                config.log_window,
            )  # fmt: skip
        except Unanswered as error:
            if not is_told:
                is_told = True
                _log.warning("The cluster cannot be joined yet: %s.", error,
                             extra={"event": "cluster.unanswered"})  # fmt: skip
            await asyncio.sleep(JOIN_SECONDS)
        except Unfit as error:
            raise OSError(f"{error}.") from None


async def _check_synced(config: Config) -> None:
    """Raises Unanswered, and Unfit where an acknowledgement would not mean synced."""
    if config.durability != "fsync":
        return
    for url in config.nats_monitor:
        try:
            answer = await asyncio.to_thread(_monitored, f"{url.rstrip('/')}/jsz")
        except (OSError, ValueError) as error:
            raise Unanswered(f"{url} does not answer: {error}") from error
        if answer.get("config", {}).get("sync_always") is not True:
            raise Unfit(
                f"the NATS server at {url} does not sync every message; set sync_interval: always"
                " in its jetstream section, or give durability interval"
            )


def _monitored(url: str) -> dict[str, Any]:
    from urllib.request import urlopen  # not needed but here

    with urlopen(url, timeout=MONITOR_SECONDS) as answer:  # noqa: S310 (an operator's own address)
        found: dict[str, Any] = json.loads(answer.read(MONITOR_BYTES_MAX))
    return found


@dataclass(frozen=True)
class Joined:
    """What a node has when it has joined its cluster."""

    membership: Membership
    store: ReplicatedStore
    nats: Nats

    def node(self, engine: Engine, led: Callable[[], Awaitable[None]]) -> "ClusterNode":
        return ClusterNode(self.membership, engine, self.store, self.nats, led)

    async def close(self) -> None:
        await self.store.close()
        await self.nats.close()


class NodeStatus(msgspec.Struct, frozen=True):
    """What is known of one node of a cluster."""

    hello: Hello  # the last one
    silent_seconds: float  # since then


class ClusterStatus(msgspec.Struct, frozen=True):
    """What a node knows of its cluster."""

    cluster: str
    node: str  # that tells it
    leader: Beat | None  # None while nobody is known to lead
    epoch: int  # the highest that was seen
    number: int  # of the last frame that this node has
    position: int
    void: int  # messages of the log that did not count
    is_stalled: bool  # it leads, and the log does not answer
    trouble: str  # the last error that the NATS servers have told
    nodes: list[NodeStatus]  # that were ever heard of since this one's start; this one first


class ClusterNode:
    """`led` is awaited when this node has begun to lead."""

    def __init__(
        self,
        membership: Membership,
        engine: Engine,
        store: ReplicatedStore,
        nats: Nats,
        led: Callable[[], Awaitable[None]],
    ) -> None:
        self._membership = membership
        self._engine = engine
        self._store = store
        self._nats = nats
        self._led = led
        self._loop = asyncio.get_running_loop()
        self.standby = Standby(
            membership.node, self._loop.time(), membership.failover_seconds, membership.prefer
        )
        self._news = asyncio.Event()  # another node has said something that matters
        self._tried = 0  # the epoch of the last attempt
        self._leadership = Leadership(membership.failover_seconds)
        self._leadership.on_change(self._note_leader)
        self.leads = False
        self._ends = False

    @property
    def leader(self) -> Beat | None:
        """The last beat of who leads, which may be this node; None while nobody is known to."""
        return self._leadership.leader

    def on_leader(self, told: LeaderChanged) -> None:
        """Calls `told` when another node or epoch leads; with None when the leader is silent."""
        self._leadership.on_change(told)

    def status(self) -> ClusterStatus:
        now = self._loop.time()
        return ClusterStatus(
            self._membership.cluster, self._membership.node, self.leader,
            max(self._store.epoch, self.standby.epoch), self._store.number, self._store.durable,
            self._store.void, self.leads and self._store.is_stalled, self._nats.trouble,
            [NodeStatus(self._hello(), 0.0),
             *(NodeStatus(hello, now - at) for at, hello in self.standby.heard())],
        )  # fmt: skip

    async def run(self) -> None:
        """Follows until this node leads, and leads until it is cancelled, or the engine fails."""
        try:
            await self._run()
        except StoreError as error:
            self._engine.stop_for(error)

    async def _run(self) -> None:
        subject = self._membership.subject
        await self._nats.hear(subject("beat"), self._hear_beat)
        await self._nats.hear(subject("hello"), self._hear_hello)
        await self._nats.hear(subject("ask"), self._hear_ask)
        saying = asyncio.create_task(self._say_hello())
        try:
            while not (self.leads or self._ends):
                await self._follow()
            await self._lead()
        finally:
            saying.cancel()
            self._leadership.close()

    def end(self) -> None:
        """Has `run` end soon.

        To cancel it is not enough: where it waits in nats-py, or in `wait_for` of Python 3.11, and
        the answer comes in the same moment, it is given the answer, and the cancellation is lost.
        """
        self._ends = True

    async def leave(self) -> None:
        """Names the node that is to take over; everything is confirmed, and nothing more comes."""
        if self.leads:
            there = self.standby.nodes(self._loop.time())
            best = max(there, key=lambda hello: (hello.number, -hello.prefer), default=None)
            await self._beat("leaving", to="" if best is None else best.node)
        await self._nats.close()

    # What is heard.

    def _hear_beat(self, _: str, data: bytes) -> None:
        try:
            beat = msgspec.json.decode(data, type=Beat)
        except msgspec.MsgspecError:
            return
        if beat.node == self._membership.node:
            return
        self.standby.hear_beat(beat, self._loop.time())
        if beat is self.standby.leader and not self.leads:
            self._leadership.hear(beat)
        self._news.set()

    def _note_leader(self, leader: Beat | None) -> None:
        """Has a follower name the leader to its clients."""
        if not self._engine.follows:
            return
        self._engine.note_leader("" if leader is None else leader.url)
        if leader is None:
            _log.info("No leader is heard.", extra={"event": "cluster.silent"})
        else:
            _log.info("%s leads, with epoch %d.", leader.node, leader.epoch,
                      extra={"event": "cluster.leader", "leader": leader.node})  # fmt: skip

    def _hear_hello(self, _: str, data: bytes) -> None:
        with contextlib.suppress(msgspec.MsgspecError):
            hello = msgspec.json.decode(data, type=Hello)
            self.standby.hear_hello(hello, self._loop.time())

    def _hear_ask(self, _: str, data: bytes) -> None:
        if data.decode(errors="replace") != self._membership.node:
            self._loop.create_task(self._say(self._membership.subject("hello"), self._hello()))

    # What is said.

    async def _say(self, subject: str, what: Beat | Hello) -> None:
        await self._nats.say(subject, msgspec.json.encode(what))

    async def _beat(self, role: Role, epoch: int | None = None, to: str = "") -> None:
        beat = Beat(
            self._membership.node, self._membership.url, role,
            self._engine.epoch if epoch is None else epoch, self._store.number,
            self._store.durable, self._engine.time_ms(), to,
        )  # fmt: skip
        if role == "leader":
            self._leadership.lead(beat)
        await self._say(self._membership.subject("beat"), beat)

    def _hello(self) -> Hello:
        heard_ms = 0 if self.leads else self.standby.heard_ms(self._loop.time())
        return Hello(
            self._membership.node, self._membership.url, self._store.number, self._store.synced,
            version("posthouse"), self._engine.time_ms(), self._membership.prefer, heard_ms,
        )  # fmt: skip

    async def _say_hello(self) -> None:
        while True:
            await self._say(self._membership.subject("hello"), self._hello())
            await asyncio.sleep(HELLO_SECONDS)

    # Following.

    async def _follow(self) -> None:
        self._news.clear()
        try:
            frames = await self._store.read_on()
        except Unanswered:
            frames = []
        for frame in frames:
            self._engine.apply(frame)
        if frames:
            return
        match self.standby.step(self._store.number, self._loop.time()):
            case "ask":
                await self._nats.say(
                    self._membership.subject("ask"), self._membership.node.encode()
                )
            case "lead":
                await self._try_to_lead()
                return
            case "wait":
                pass
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), READ_SECONDS)

    async def _try_to_lead(self) -> None:
        epoch = self._tried = max(self._store.epoch, self.standby.epoch, self._tried) + 1
        before = self.standby.leader
        _log.info("%s tries to lead, with epoch %d.", self._membership.node, epoch,
                  extra={"event": "cluster.candidate", "epoch": epoch})  # fmt: skip

        def nobody_else_leads() -> bool:
            """A node that was cut off is not to depose the leader that it hears again."""
            if self._ends:
                return False
            heard = self.standby.leader
            return heard is before or (heard is not None and heard.role == "leaving")

        beating = asyncio.create_task(self._beat_as_candidate(epoch))
        try:
            await self._store.lead(epoch, self._engine.apply, nobody_else_leads)
        except Deposed:
            _log.info("Another node leads.", extra={"event": "cluster.overtaken"})
            self.standby.wait_again(self._loop.time())
            return
        finally:
            beating.cancel()
        await self._engine.promote(epoch)
        self.leads = True
        _log.info("%s leads, with epoch %d.", self._membership.node, epoch,
                  extra={"event": "cluster.leads", "epoch": epoch})  # fmt: skip
        await self._led()

    async def _beat_as_candidate(self, epoch: int) -> None:
        while True:
            await self._beat("candidate", epoch)
            await asyncio.sleep(BEAT_SECONDS)

    # Leading.

    async def _lead(self) -> None:
        """Beats, tells the engine whether the log answers, and keeps the log small."""
        told, beaten = -1, 0.0
        marked = purged = self._loop.time()
        while not (self._engine.failed.is_set() or self._ends):
            now = self._loop.time()
            if self._store.number != told or now - beaten >= BEAT_SECONDS:
                told, beaten = self._store.number, now
                await self._beat("leader")
            self._engine.note_stalled(is_stalled=self._store.is_stalled)
            if now - marked >= MARK_SECONDS:
                marked = now
                self._store.mark()
            if now - purged >= PURGE_SECONDS:
                purged = now
                await self._purge(now)
            await asyncio.sleep(COMMIT_BEAT_SECONDS)

    async def _purge(self, now: float) -> None:
        """Purges what this node and every other that is there have on their disks."""
        others = [hello.synced for hello in self.standby.nodes(now)]
        if others:
            try:
                await self._store.purge(min(self._store.synced, *others))
            except Unanswered as error:
                _log.warning("The log was not purged: %s", error, extra={"event": "cluster.purge"})
