"""How a node gets what the log no longer holds: it copies the folder of another node.

It happens before the engine opens. A node that notices while it follows starts anew, and gets here.
While it copies it says hello, so that the log keeps what comes behind the copy. The files come to
`arriving` and take the place of the old ones when all are there and were checked
(`store/folder_copy.py`); an attempt that ends early is gone on with by the next.
"""

import asyncio
import contextlib
import logging
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import msgspec

from posthouse.broker.standby import ALIVE_SECONDS, Beat, Hello
from posthouse.server.folder_client import Peer, PeerFolder
from posthouse.store.disk import Disk
from posthouse.store.errors import Behind, InUse, StoreError
from posthouse.store.file import LOCK
from posthouse.store.folder_copy import ARRIVING, Interrupted, copy_files, replace_journal
from posthouse.store.nats import Nats
from posthouse.store.place_note import is_noted

_log = logging.getLogger(__name__)

HELLO_SECONDS = 1.0
GATHER_SECONDS = 1.5  # in which all nodes that are there have said hello
AGAIN_SECONDS = 1.0  # before the next attempt
TELL_SECONDS = 10.0  # between lines about how far it is


@dataclass(frozen=True)
class Newcomer:
    """The node that copies: who it is, and how it reaches others."""

    node: str
    url: str
    hello_subject: str
    beat_subject: str
    ask_subject: str
    folder: Path
    key: str | None  # the root's name and key, for peers
    context: ssl.SSLContext | None  # None: without TLS, on one machine


class Arrival:
    """`say`: how far it is, for people."""

    def __init__(self, newcomer: Newcomer, nats: Nats, say: Callable[[str], None]) -> None:
        self._newcomer = newcomer
        self._nats = nats
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._hellos: dict[str, tuple[float, Hello]] = {}
        self._leader = ""
        self._covered = 0  # the last frame of what is being copied
        self._told = 0.0

    async def run(self, behind: Behind) -> None:
        """Returns when this node's folder is a copy of another. Raises StoreError or OSError."""
        self._check_replaceable()
        newcomer = self._newcomer
        await self._nats.hear(newcomer.hello_subject, self._hear_hello)
        await self._nats.hear(newcomer.beat_subject, self._hear_beat)
        saying = asyncio.create_task(self._say_hello())
        try:
            await self._copy_of_some_peer(behind)
        finally:
            saying.cancel()

    def _check_replaceable(self) -> None:
        """Raises OSError where the folder holds a journal that may be the only one."""
        folder = self._newcomer.folder
        if not is_noted(folder) and any(path.suffix == ".journal" for path in folder.iterdir()):
            raise OSError(
                f"{folder} holds a journal that is not known to be of this cluster. To begin the"
                " cluster with it, start with --found and a log that is empty; else move the folder"
                " away, and start again."
            )

    def _hear_hello(self, _: str, data: bytes) -> None:
        with contextlib.suppress(msgspec.MsgspecError):
            hello = msgspec.json.decode(data, type=Hello)
            if hello.node != self._newcomer.node:
                self._hellos[hello.node] = self._loop.time(), hello

    def _hear_beat(self, _: str, data: bytes) -> None:
        with contextlib.suppress(msgspec.MsgspecError):
            beat = msgspec.json.decode(data, type=Beat)
            if beat.role == "leader":
                self._leader = beat.node

    async def _say_hello(self) -> None:
        newcomer = self._newcomer
        while True:
            hello = Hello(newcomer.node, newcomer.url, 0, self._covered, version("posthouse"), 0)
            await self._nats.say(newcomer.hello_subject, msgspec.json.encode(hello))
            await asyncio.sleep(HELLO_SECONDS)

    async def _copy_of_some_peer(self, behind: Behind) -> None:
        failed: set[str] = set()
        is_told = False
        while True:
            await self._nats.say(self._newcomer.ask_subject, self._newcomer.node.encode())
            await asyncio.sleep(GATHER_SECONDS)
            peers = [each for each in self._peers(behind.first - 1) if each.node not in failed]
            if not peers:
                failed.clear()
                self._say("waiting for a node whose folder can be copied")
                if not is_told:
                    is_told = True
                    _log.warning(
                        "This folder ends at frame %d, and the log begins at frame %d. No other"
                        " node is there whose folder could be copied; start one.",
                        behind.number, behind.first, extra={"event": "cluster.arrival_waits"},
                    )  # fmt: skip
                continue
            try:
                await self._copy(peers[0])
            except (StoreError, OSError) as error:
                if isinstance(error, InUse | Interrupted):
                    raise
                failed.add(peers[0].node)
                _log.warning("The folder of %s was not copied, and another is tried: %s",
                             peers[0].node, error,
                             extra={"event": "cluster.arrival_failed"})  # fmt: skip
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return

    def _peers(self, number: int) -> list[Hello]:
        """The nodes that have frames up to a number: followers first, then who has most."""
        now = self._loop.time()
        there = [hello for at, hello in self._hellos.values() if now - at < ALIVE_SECONDS]
        fit = [hello for hello in there if hello.number >= number and not hello.full]
        return sorted(fit, key=lambda hello: (hello.node == self._leader, -hello.number))

    async def _copy(self, hello: Hello) -> None:
        host, _, port = hello.url.rpartition(":")
        if not port.isdigit():
            raise OSError(f"{hello.url} is not an address; give --advertise HOST:PORT there")
        newcomer = self._newcomer
        peer = Peer(host.strip("[]"), int(port), newcomer.key, newcomer.context)
        _log.info("The folder of %s is copied.", hello.node,
                  extra={"event": "cluster.arrival", "peer": hello.node})  # fmt: skip
        over = threading.Event()
        try:
            await asyncio.to_thread(self._copy_in_thread, hello.node, peer, over)
        except asyncio.CancelledError:
            over.set()
            raise
        _log.info("This node has a copy of the folder of %s, up to frame %d.", hello.node,
                  self._covered, extra={"event": "cluster.arrived", "number": self._covered},
        )  # fmt: skip

    def _copy_in_thread(self, node: str, peer: Peer, over: threading.Event) -> None:
        disk, folder = Disk(), self._newcomer.folder
        lock = disk.lock(folder / LOCK)
        try:
            self._say(f"asking {node} for its folder")
            source = PeerFolder(peer)
            self._covered = source.listing.number

            def progress(done: int, whole: int) -> None:
                self._say(f"copying the folder of {node}: {done} of {whole} bytes")
                self._tell(node, done, whole)

            try:
                copy_files(
                    source, source.listing, folder / ARRIVING, progress, known=folder,
                    is_over=over.is_set,
                )  # fmt: skip
            finally:
                source.release()
            replace_journal(disk, folder)
        finally:
            disk.close(lock)

    def _tell(self, node: str, done: int, whole: int) -> None:
        now = self._loop.time()
        if now >= self._told + TELL_SECONDS:
            self._told = now
            _log.info("%d of %d bytes of the folder of %s are copied.", done, whole, node,
                      extra={"event": "cluster.arriving", "bytes": done,
                             "whole_bytes": whole})  # fmt: skip
