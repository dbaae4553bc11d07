"""A node of a cluster: it follows whoever leads, takes over when nobody does, and hands over.

The replicated log decides who leads (`store/lane.py`); what nodes say to each other on plain
subjects only tells when to try (`broker/standby.py`). A node that was deposed is started anew: its
state is void, large, and referred to from everywhere.
"""

import asyncio
import contextlib
import logging
import shutil
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from posthouse.broker.access import ROOT
from posthouse.broker.cluster_clock import ClusterClock, LeaderTime
from posthouse.broker.engine import Engine
from posthouse.broker.record_level import RecordLevel, RecordLimit
from posthouse.broker.standby import ALIVE_SECONDS, OFFSET_MS_MAX, Beat, Hello, Role, Standby
from posthouse.core import versions
from posthouse.core.errors import Busy, InvalidArgument, NotFound, NotLeader
from posthouse.server.arriving import Arrival, Newcomer
from posthouse.server.cluster_secret import derive, read_cluster_secret
from posthouse.server.config import Config
from posthouse.server.founding import found
from posthouse.server.hold import HOLD_SECONDS, HOLD_SECONDS_MAX, Hold
from posthouse.server.leadership import LeaderChanged, Leadership
from posthouse.server.log_window import LogWindow
from posthouse.server.monitors import check_later, check_synced
from posthouse.server.node_figures import NodeFigures
from posthouse.server.placement import Placement
from posthouse.server.tls import Authority, LinkTrust
from posthouse.store.alone import check_not_alone
from posthouse.store.disk import Disk
from posthouse.store.errors import Behind, Deposed, StoreError, Unknown
from posthouse.store.file import FileStore
from posthouse.store.folder_copy import ARRIVING, finish_arrival
from posthouse.store.log import Unanswered
from posthouse.store.nats import Nats, NatsLog, Servers, Unfit
from posthouse.store.replicated import LeaderEvents, ReplicatedStore

_log = logging.getLogger(__name__)

BEAT_SECONDS = 0.2
COMMIT_BEAT_SECONDS = 0.02  # after something was confirmed
HELLO_SECONDS = 1.0
READ_SECONDS = 0.1  # between two reads of the log where no beat tells of more
MARK_SECONDS = 5.0
JOIN_SECONDS = 0.5  # between two attempts to join
TELL_SECONDS = 60.0  # between two lines about what is waited for
ASK_SECONDS = 0.2  # that the others have to say what they have, before one of them is chosen
DRAIN_SECONDS = 5.0  # for what was decided to be confirmed when the cluster is held
FULL_SECONDS = 30.0  # after which a leader whose disk is full hands over
FULL_LOOK_SECONDS = 1.0
ROOM_SECONDS = 1.0  # between two looks at a disk that was full
ROOM_SEGMENTS = 4  # that have room on the disk of who takes over then

_STALLED = "most servers of the replicated log do not answer; it goes on by itself when they do"
_HELD = "it is held by an operator"


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


def stream_name(cluster: str) -> str:
    return f"PHJ_{cluster}_0"


def free_percent(folder: Path) -> int | None:
    """The free part of the disk under a folder, in percent; None where it cannot be told."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    return usage.free * 100 // max(1, usage.total)


async def join(config: Config, url: str, root_key: str, say: Callable[[str], None]) -> "Joined":
    """Opens the log of a cluster and this node's folder, when the servers answer.

    At `url` the others reach this node. Where the log does not hold what comes next in the folder,
    that of another node is copied first. `say`: what it is doing, for people.

    Raises OSError where the servers are not fit for it, and StoreError.
    """
    assert config.cluster is not None
    assert config.node is not None
    assert config.store is not None
    level = RecordLevel(config.data)
    hosts = config.store.rest.removeprefix("//").split(",")
    servers = Servers(
        tuple(f"nats://{host}" for host in hosts), config.nats_creds, config.nats_ca,
        f"{config.cluster}-{config.node}",
    )  # fmt: skip
    nats, log, silent = await _reach(config, servers, say)
    membership = Membership(config.cluster, config.node, url, config.failover_after, config.prefer)
    try:
        while True:
            say("opening the journal")
            store = ReplicatedStore(await asyncio.to_thread(_open_folder, config), log)
            try:
                await _begin(config, store, log)
            except Behind as behind:
                await store.close()
                newcomer = await _newcomer(config, membership, root_key)
                await Arrival(newcomer, nats, say).run(behind)
            except BaseException:
                await store.close()
                raise
            else:
                placement = Placement(log, lambda: nats.own_server)
                return Joined(membership, store, nats, level, placement, silent)
    except BaseException:
        await nats.close()
        raise


def _open_folder(config: Config) -> FileStore:
    """Raises StoreError or OSError."""
    finish_arrival(Disk(), config.data)  # a crash may have come between
    return FileStore(
        config.data, segment_bytes=config.segment_size, durability="interval",
        interval_ms=config.interval_ms,
    )  # fmt: skip


async def _begin(config: Config, store: ReplicatedStore, log: NatsLog) -> None:
    """Begins the log where it is to be founded, and checks that this node can follow it.

    Raises Behind, NotFounded or WasAlone.
    """
    if config.found:
        if await found(store, log, config.data):
            _log.info("The log of %s begins with this folder, behind frame %d.", config.cluster,
                      store.number, extra={"event": "cluster.founded"})  # fmt: skip
        else:
            _log.info("The log of %s was founded with this folder already; --found does nothing.",
                      config.cluster, extra={"event": "cluster.founded_before"})  # fmt: skip
    check_not_alone(config.data)
    while True:
        try:
            await store.check_reach()
        except Unanswered:
            await asyncio.sleep(JOIN_SECONDS)
        else:
            break
    # Of an attempt that was not needed any more.
    await asyncio.to_thread(shutil.rmtree, config.data / ARRIVING, ignore_errors=True)


async def _newcomer(config: Config, membership: Membership, root_key: str) -> Newcomer:
    subject = membership.subject
    return Newcomer(
        membership.node, membership.url, subject("hello"), subject("beat"), subject("ask"),
        config.data, None if config.dev else f"{ROOT}:{root_key}", await _peers_context(config),
    )  # fmt: skip


async def _peers_context(config: Config) -> ssl.SSLContext | None:
    """Trusts the authority of the cluster; None for development, on one machine without TLS."""
    if config.dev:
        return None
    assert config.cluster is not None
    authority = Authority(config.cluster, derive(read_cluster_secret(config), "authority"))
    has_own = config.tls_cert is not None
    return await LinkTrust(authority, config.cluster_ca, has_own=has_own).context()


async def _reach(
    config: Config, servers: Servers, waits: Callable[[str], None]
) -> tuple[Nats, NatsLog, list[str]]:
    """Waits until the servers answer, and returns which of the monitors do not.

    Raises OSError where they are not fit for it.
    """
    monitors = config.nats_monitor if config.durability == "fsync" else ()
    told_at: float | None = None
    while True:
        nats: Nats | None = None
        try:
            silent = await check_synced(monitors)
            nats = await Nats.connect(servers)
            log = await nats.log(
                stream_name(config.cluster or ""), f"phj.{config.cluster}.0", config.replicas,
                config.log_window,
            )  # fmt: skip
        except Unanswered as error:
            text = str(error)
            if nats is not None:
                text += f" ({nats.trouble})" if nats.trouble else ""
                await nats.close()
            waits(f"waiting for the cluster's servers: {text}")
            now = asyncio.get_running_loop().time()
            if told_at is None or now - told_at >= TELL_SECONDS:
                told_at = now
                _log.warning("The cluster cannot be joined yet: %s.", text,
                             extra={"event": "cluster.unanswered"})  # fmt: skip
            await asyncio.sleep(JOIN_SECONDS)
        except Unfit as error:
            raise OSError(f"{error}.") from None
        else:
            return nats, log, silent


@dataclass(frozen=True)
class Joined:
    """The parts of a node that has joined its cluster."""

    membership: Membership
    store: ReplicatedStore
    nats: Nats
    level: RecordLevel
    placement: Placement | None = None  # None: the log has no leader of its own
    silent: Sequence[str] = ()  # the monitors of NATS servers that are to be asked again
    figures: NodeFigures = field(default_factory=NodeFigures)

    async def close(self) -> None:
        await self.store.close()
        await self.nats.close()


class NodeStatus(msgspec.Struct, frozen=True):
    """One node of a cluster, as another knows it."""

    hello: Hello  # the last one
    silent_seconds: float  # since then


class ClusterStatus(msgspec.Struct, frozen=True):
    """A cluster, as one of its nodes knows it."""

    cluster: str
    node: str  # that tells it
    leader: Beat | None  # None while nobody is known to lead
    epoch: int  # the highest that was seen
    number: int  # of the last frame that this node has
    position: int
    void: int  # messages of the log that did not count
    is_stalled: bool  # it leads, and the log does not answer
    held_seconds: float  # for which an operator holds the cluster; 0 where none does
    records: int  # the version of records that may be in the journal
    trouble: str  # the last error that the NATS servers have told
    nodes: list[NodeStatus]  # that were ever heard of since this one's start; this one first


class ClusterNode:
    """`led` is awaited when this node has begun to lead; `clock` is the clock of the engine."""

    def __init__(
        self,
        joined: Joined,
        engine: Engine,
        clock: ClusterClock,
        led: Callable[[], Awaitable[None]],
    ) -> None:
        membership = joined.membership
        self._joined = joined
        self._membership = membership
        self._engine = engine
        self._store = joined.store
        self._nats = joined.nats
        self._led = led
        self._loop = asyncio.get_running_loop()
        self._begun = self._loop.time()
        self.standby = Standby(
            membership.node, self._begun, membership.failover_seconds, membership.prefer
        )
        self._news = asyncio.Event()  # another node has said something that matters
        self._confirmed = asyncio.Event()  # while it leads: there is something to beat about
        self._tried = 0  # the epoch of the last attempt
        self._trimmed = (0, 0)  # the position up to which the leader has, and the frame then
        self.is_out_of_room = False  # and does not follow
        self._room_looked = 0.0
        self._leadership = Leadership(membership.failover_seconds)
        self._leadership.on_change(self._note_leader)
        self._time = LeaderTime(clock)
        self._unreadable = ""  # the reason for which it cannot follow any more
        self._hold = Hold(self._note_block)
        self._to: str | None = None  # who is to take over, where somebody was named
        self._is_open = False  # it leads, and what is to exist does: clients are served
        self.leads = False
        self._ends = asyncio.Event()
        self.leaves = asyncio.Event()  # it hands over, and is to be started anew

    # For others.

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
            self._store.void, self.leads and self._store.is_stalled,
            self._hold.seconds or self.standby.held_seconds(now), self._joined.level.version,
            self._nats.trouble,
            [NodeStatus(self._hello(), 0.0),
             *(NodeStatus(hello, now - at) for at, hello in self.standby.heard())],
        )  # fmt: skip

    @property
    def figures(self) -> NodeFigures:
        return self._joined.figures

    @property
    def waits_seconds(self) -> float:
        """For how long this node has waited for the log; 0 where it does not."""
        return self._store.waits_seconds

    async def stream_info(self) -> dict[str, Any]:
        """The state of the stream, as the NATS servers tell it. Raises Unanswered."""
        return await self._nats.info(stream_name(self._membership.cluster))

    async def step_down(self, to: str | None = None) -> str:
        """Hands over to a node, or to the one that has most; returns its name.

        The process is started anew then, and follows. Raises NotLeader, and InvalidArgument where
        that node, or any, cannot take over.
        """
        self._check_leads()
        await self._ask()
        await asyncio.sleep(ASK_SECONDS)
        self._check_leads()
        number, now = self._store.number, self._loop.time()
        if to is not None and (reason := self.standby.unfit(to, number, now)):
            raise InvalidArgument("step-down", f"is not possible: {reason}")
        chosen = to or self.standby.successor(number, now)
        if not chosen:
            raise InvalidArgument("step-down", "is not possible: no other node can take over")
        _log.info("%s is to take over from this node.", chosen,
                  extra={"event": "cluster.step_down", "to": chosen})  # fmt: skip
        self._to = to
        self.leaves.set()
        return chosen

    def forget(self, node: str) -> None:
        """Waits for a node no more: neither before the log is purged, nor before it is led.

        If it speaks again it is known again. Raises NotFound, and InvalidArgument while it speaks.
        """
        if any(hello.node == node for hello in self.standby.nodes(self._loop.time())):
            raise InvalidArgument("node", f"{node} is there; stop it first")
        if not self.standby.forget(node):
            raise NotFound("node", node)

    async def hold(self, seconds: float = HOLD_SECONDS) -> bool:
        """Has the cluster write nothing for a while, or until `release`; connections stay.

        Returns whether all that was decided before is confirmed. Raises NotLeader or
        InvalidArgument.
        """
        self._check_leads()
        if not 1 <= seconds <= HOLD_SECONDS_MAX:
            raise InvalidArgument("seconds", f"is from 1 to {HOLD_SECONDS_MAX:.0f}")
        self._hold.begin(seconds)
        _log.warning("The cluster is held for %d seconds.", seconds,
                     extra={"event": "cluster.held", "seconds": seconds})  # fmt: skip
        await self._beat("leader")
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._engine.drain()
        except TimeoutError:
            return False
        return True

    async def release(self) -> None:
        """Ends a hold; of a leader that is gone, too."""
        self.standby.release()
        if self._hold.is_on:
            self._hold.end()
            await self._beat("leader")

    def _check_leads(self) -> None:
        if not self.leads or self.leaves.is_set():
            leader = self.leader
            raise NotLeader("" if leader is None or self.leads else leader.url)

    # Its life.

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
        window = LogWindow(self._store, self.standby, lambda: self.leads)
        works = (self._say_hello(), check_later(self._joined.silent), window.run())
        beside = [asyncio.create_task(work) for work in works]
        try:
            while not (self.leads or self._unreadable or self._ends.is_set()):
                await self._follow()
            if self.leads:
                await self._lead()
            elif not self._ends.is_set():
                await self._engine.failed.wait()
        finally:
            for task in beside:
                task.cancel()
            self._hold.close()
            self._leadership.close()

    def end(self) -> None:
        """Has `run` end soon.

        To cancel it is not enough: where it waits in nats-py, or in `wait_for` of Python 3.11, and
        the answer comes in the same moment, it is given the answer, and the cancellation is lost.
        """
        self._ends.set()

    async def begin_to_leave(self) -> None:
        """Tells that this node leads no longer; it still confirms what it has taken."""
        if self.leads:
            self.leaves.set()
            self._leadership.lose()
            await self._beat("leaving")

    async def hand_over(self) -> None:
        """Takes no more commands, confirms all, and names the node that is to take over."""
        if self.leads and self._engine.failure is None:
            self._engine.block(Busy("another node takes over", "stopping"))
            try:
                async with asyncio.timeout(DRAIN_SECONDS):
                    await self._engine.drain()
            except TimeoutError:
                self._store.give_up()
            self._store.watch(LeaderEvents())  # that another leads is what is wanted
            number, now = self._store.number, self._loop.time()
            to = self._to
            if to is None or self.standby.unfit(to, number, now):
                to = self.standby.successor(number, now)
            await self._beat("leaving", to=to)

    async def close(self) -> None:
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
        if beat is self.standby.leader and beat.trim > self._trimmed[0]:
            self._trimmed = beat.trim, beat.number
            self._store.segments.rolled.set()  # this folder may be trimmed further, too
        if self.leads:
            if beat.role == "leader" and beat.epoch > self._engine.epoch:
                self._store.mark()  # the log tells whether that is so
        elif beat is self.standby.leader:
            self._leadership.hear(beat)
            self._behind_ms()
            self._joined.level.rise(beat.records)
            if beat.role == "leader":
                self._time.hear(beat)
        self._news.set()

    def _note_leader(self, leader: Beat | None) -> None:
        """Has a follower name the leader to its clients."""
        if leader is not None:
            self.figures.fences += 1
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

    async def _ask(self) -> None:
        """Has the others say hello at once."""
        await self._nats.say(self._membership.subject("ask"), self._membership.node.encode())

    async def _beat(self, role: Role, epoch: int | None = None, to: str = "") -> None:
        if role == "leader" and self.leaves.is_set():
            return
        beat = Beat(
            self._membership.node, self._membership.url, role,
            self._engine.epoch if epoch is None else epoch, self._store.number,
            self._store.durable, self._engine.time_ms(), to, round(self._hold.seconds * 1_000),
            self._joined.level.version, self.figures.leads_ms(self._loop.time()),
            self._store.segments.first,
        )  # fmt: skip
        if role == "leader":
            self._leadership.lead(beat)
        await self._say(self._membership.subject("beat"), beat)

    def _hello(self) -> Hello:
        heard_ms = 0 if self.leads else self.standby.heard_ms(self._loop.time())
        return Hello(
            self._membership.node, self._membership.url, self._store.number, self._store.synced,
            version("posthouse"), self._engine.time_ms(), self._membership.prefer, heard_ms,
            0 if self.leads else self._time.offset_ms,
            shutil.disk_usage(self._store.segments.folder).free, versions.VERSION, self._trouble(),
            self._store.durable, self._behind_ms(), free_percent(self._store.segments.folder),
            self._store.segments.full,
        )  # fmt: skip

    def _trouble(self) -> str:
        """The reason for which this node cannot follow, or is not to lead; "" where there is none.

        An offset of the clock, and a full disk, keep it from leading only if another can.
        """
        if outdated := self._outdated():
            return outdated
        offset_ms = self._time.offset_ms
        if not self.leads and offset_ms is not None and abs(offset_ms) > OFFSET_MS_MAX:
            return f"its clock is {abs(offset_ms) // 1_000} seconds off"
        return "its disk is full" if self._store.full else ""

    def _outdated(self) -> str:
        """The reason for which this node is too old to lead; "" where it is not."""
        leader = self.standby.leader
        if not self._unreadable and leader is not None and leader.records > versions.VERSION:
            return (
                f"the cluster writes records of version {leader.records}, and this node knows up to"
                f" {versions.VERSION}; upgrade it"
            )
        return self._unreadable

    def _behind_ms(self) -> int:
        """For how long this node has lacked something that the leader has told of."""
        leader = self.leader
        lacks = not self.leads and leader is not None and self._store.number < leader.number
        return self.figures.behind_ms(self._loop.time(), lacks=lacks)

    async def _say_hello(self) -> None:
        while True:
            await self._say(self._membership.subject("hello"), self._hello())
            if self.leads:
                self._look_at_versions()
                if self._store.is_stalled:  # meanwhile NATS may have told why
                    self._note_block()
            await asyncio.sleep(HELLO_SECONDS)

    @property
    def trim_limit(self) -> int:
        """The position before which a follower may trim its folder.

        The leader has trimmed its own up to there, and this node has applied what was written again
        for that.
        """
        position, number = self._trimmed
        return position if self._engine.last.number >= number else 0

    # Following.

    async def _follow(self) -> None:
        self._news.clear()
        try:
            frames = [] if await self._waits_for_room() else await self._store.read_on()
        except Unanswered:
            frames = []
        try:
            for frame in frames:
                self._engine.apply(frame)
        except Unknown as error:
            self._stop_following(error)
            return
        if frames:
            return
        is_candidate = not self._trouble()
        step = self.standby.step(self._store.number, self._loop.time(), is_candidate=is_candidate)
        match "wait" if self._outdated() else step:
            case "ask":
                await self._ask()
            case "lead":
                await self._try_to_lead()
                return
            case "wait":
                pass
        with contextlib.suppress(TimeoutError):  # `wait_for` may lose a cancellation
            async with asyncio.timeout(READ_SECONDS):
                await self._news.wait()

    def _stop_following(self, error: Unknown) -> None:
        """A newer node has written what this one cannot read: it is not to lead any more."""
        leader = self.standby.leader
        newer = "a newer version" if leader is None else f"version {leader.records}"
        self._unreadable = (
            f"the journal holds records of {newer}, and this node knows up to"
            f" {versions.VERSION}; upgrade it"
        )
        _log.error("This node follows no longer: %s. %s", self._unreadable, error,
                   extra={"event": "cluster.outdated"})  # fmt: skip

    async def _waits_for_room(self) -> bool:
        """Whether this machine's disk is full: then it is tried again a little later.

        What a follower lacks is in the log, and can be read when there is room. To lead it would
        take what is left, so it tries only when nobody else does.
        """
        segments, now = self._store.segments, self._loop.time()
        if segments.full and now >= self._room_looked + ROOM_SECONDS:
            self._room_looked = now
            await segments.trim(0)  # claims space, where there is some
        if segments.full != self.is_out_of_room:
            self.is_out_of_room = segments.full
            if segments.full:
                _log.error(
                    "The disk of %s is full, so this node does not follow any more. It goes on by"
                    " itself when there is room; free some on this disk.", segments.folder,
                    extra={"event": "cluster.no_room"},
                )  # fmt: skip
            else:
                _log.warning("The disk has room again; this node follows.",
                             extra={"event": "cluster.has_room"})  # fmt: skip
        return segments.full

    async def _try_to_lead(self) -> None:
        epoch = self._tried = max(self._store.epoch, self.standby.epoch, self._tried) + 1
        before = self.standby.leader
        _log.info("%s tries to lead, with epoch %d.", self._membership.node, epoch,
                  extra={"event": "cluster.candidate", "epoch": epoch})  # fmt: skip

        def nobody_else_leads() -> bool:
            """A node that was cut off is not to depose the leader that it hears again."""
            if self._ends.is_set():
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
        except Unknown as error:
            self._stop_following(error)
            return
        finally:
            beating.cancel()
        self._store.watch(LeaderEvents(
            self._confirmed.set, self._note_stalled, self._note_failed,
            self.figures.log_seconds.add,
        ))  # fmt: skip
        self._look_at_versions()
        self._time.take_over()
        await self._engine.promote(epoch)
        self.figures.note_led(self._loop.time())
        self._time.settle()
        self.leads = True
        _log.info("%s leads, with epoch %d.", self._membership.node, epoch,
                  extra={"event": "cluster.leads", "epoch": epoch})  # fmt: skip
        await self._led()
        self._is_open = True
        self._note_block()

    async def _beat_as_candidate(self, epoch: int) -> None:
        while True:
            await self._beat("candidate", epoch)
            await asyncio.sleep(BEAT_SECONDS)

    # Leading.

    async def _lead(self) -> None:
        """Does what only a leader does, until the engine has failed."""
        jobs: list[Coroutine[Any, Any, Any]] = [
            self._engine.failed.wait(), self._ends.wait(), self._beat_as_leader(),
            self._mark_log(), self._leave_when_full(),
        ]  # fmt: skip
        if self._joined.placement is not None:
            jobs.append(self._joined.placement.run())
        tasks = [asyncio.create_task(job) for job in jobs]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()

    async def _beat_as_leader(self) -> None:
        """Beats several times a second, and soon after something was confirmed."""
        while not self._ends.is_set():
            self._confirmed.clear()
            await self._beat("leader")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_SECONDS):
                    await self._confirmed.wait()
                await asyncio.sleep(COMMIT_BEAT_SECONDS)  # a beat for all that comes meanwhile

    def _note_stalled(self, is_stalled: bool) -> None:
        if is_stalled:
            _log.error("The broker is stalled: %s.", self._stalled_text(),
                       extra={"event": "cluster.stalled"})  # fmt: skip
        else:
            _log.warning("The replicated log answers again.", extra={"event": "cluster.goes_on"})
        self._note_block()

    def _note_failed(self, error: StoreError) -> None:
        self._engine.stop_for(error)

    def _note_block(self) -> None:
        """Has the engine refuse commands for as long as it may not, or cannot, write."""
        if self.leaves.is_set() or not self._is_open:  # a takeover waits for the log, and goes on
            return
        if self._hold.is_on:
            self._engine.block(Busy(_HELD, "stalled"))
        elif self._store.is_stalled:
            self._engine.block(Busy(self._stalled_text(), "stalled"))
        else:
            self._engine.block(None)

    def _stalled_text(self) -> str:
        trouble = self._nats.trouble
        return f"{_STALLED} (NATS says: {trouble})" if trouble else _STALLED

    def _look_at_versions(self) -> None:
        """Has the engine write no record that a node which is there cannot read."""
        level, now = self._joined.level, self._loop.time()
        oldest = min(self.standby.nodes(now), key=lambda hello: hello.records, default=None)
        if now - self._begun >= ALIVE_SECONDS:  # by then all who are there have said hello
            level.rise(versions.VERSION if oldest is None else oldest.records)
        limit = None
        if level.version < versions.VERSION:
            node = self._membership.node if oldest is None else oldest.node
            limit = RecordLimit(level.version, node)
        self._engine.limit_records(limit)

    async def _mark_log(self) -> None:
        """Publishes marks, which also prove that nobody else leads."""
        while True:
            await asyncio.sleep(MARK_SECONDS)
            if not self._hold.is_on:
                self._store.mark()

    async def _leave_when_full(self) -> None:
        """Hands over when this disk has been full for a while, and another node has room."""
        full_since: float | None = None
        while True:
            await asyncio.sleep(FULL_LOOK_SECONDS)
            now = self._loop.time()
            full_since = (full_since or now) if self._store.full else None
            if full_since is not None and now - full_since >= FULL_SECONDS:
                room = ROOM_SEGMENTS * self._store.segments.segment_bytes
                chosen = self.standby.successor(self._store.number, now, room)
                if chosen and not self.leaves.is_set():
                    with contextlib.suppress(InvalidArgument, NotLeader):
                        await self.step_down(chosen)
