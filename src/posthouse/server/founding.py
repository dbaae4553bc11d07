"""Beginning a cluster's log with a journal that is there already: of a single broker, or a backup.

The log's first message is then a fence behind the journal's last frame, so that nodes with empty
folders copy what comes before it. The file `founded` says which log was begun, by which claim, and
whether it is known to have been: a start that was interrupted goes on with it.
"""

import asyncio
import logging
import secrets
from pathlib import Path
from typing import NamedTuple

import msgspec

from posthouse.broker.standby import Beat
from posthouse.server.files import keep_secret
from posthouse.store.alone import forget_alone
from posthouse.store.disk import Disk
from posthouse.store.errors import Behind, Spoilt, StoreError
from posthouse.store.file import FileStore
from posthouse.store.folder_copy import finish_arrival
from posthouse.store.lane import Reading
from posthouse.store.log import Log, Unanswered
from posthouse.store.nats import Nats, NatsLog, Servers, Unfit
from posthouse.store.replicated import ReplicatedStore

_log = logging.getLogger(__name__)

FOUNDED = "founded"
AGAIN_SECONDS = 0.2
LISTEN_SECONDS = 2.0  # for a leader, before its log is replaced


class NotFounded(StoreError):
    """The log cannot begin with this folder."""


class _Founded(msgspec.Struct, frozen=True):
    log: str
    claim: int
    is_done: bool


async def found(store: ReplicatedStore, log: Log, folder: Path) -> bool:
    """Begins the log behind the folder's frames; False where this folder has begun it before.

    Raises NotFounded where the log is not empty and was begun by another.
    """
    noted = _read(folder / FOUNDED)
    if noted is not None and noted.log == log.identity and noted.is_done:
        return False
    if noted is None or noted.log != log.identity:
        if log.end:
            raise NotFounded(
                f"the log is not empty: it has {log.end} messages, and was not begun with {folder}."
                " Join it with an empty folder and without --found; or stop all nodes, and replace"
                " it: posthouse cluster found --replace-log"
            )
        noted = _Founded(log.identity, secrets.randbits(64), is_done=False)
        keep_secret(folder / FOUNDED, msgspec.json.encode(noted))
    if not await _begin(store, noted.claim):
        (folder / FOUNDED).unlink()
        raise NotFounded("another node has begun the log at the same time; stop all nodes, and"
                         " replace it: posthouse cluster found --replace-log")  # fmt: skip
    keep_secret(
        folder / FOUNDED, msgspec.json.encode(_Founded(noted.log, noted.claim, is_done=True))
    )
    forget_alone(folder)
    return True


async def _begin(store: ReplicatedStore, claim: int) -> bool:
    """Whether the log begins with this claim; waits until that is known."""
    while True:
        try:
            return await store.found(claim)
        except Unanswered:
            await asyncio.sleep(AGAIN_SECONDS)


def _read(path: Path) -> _Founded | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Founded)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


class Anew(NamedTuple):
    """A log that was begun anew."""

    number: int  # of the last frame of the folder
    replaced: int | None  # the last frame of the log that was there; None where there was none


class Where(NamedTuple):
    """The log of a cluster."""

    servers: Servers
    cluster: str
    replicas: int
    max_bytes: int

    @property
    def stream(self) -> str:
        return f"PHJ_{self.cluster}_0"

    @property
    def subject(self) -> str:
        return f"phj.{self.cluster}.0"


async def found_anew(folder: Path, where: Where, *, replace: bool) -> Anew:
    """Begins a cluster's log with a folder, for `posthouse cluster found`. All nodes are stopped.

    `replace`: a log that is there is removed, if it holds no more than the folder. Raises
    StoreError, OSError or Unanswered.
    """
    disk = Disk()
    finish_arrival(disk, folder)
    local = await asyncio.to_thread(FileStore, folder, durability="interval")
    try:
        nats = await Nats.connect(where.servers)
        try:
            return await _found_anew(local, nats, where, replace=replace)
        finally:
            await nats.close()
    except Unfit as error:
        raise OSError(f"{error}.") from None
    finally:
        await local.close()


async def _found_anew(local: FileStore, nats: Nats, where: Where, *, replace: bool) -> Anew:
    number = 0 if local.last is None else local.last.number
    log = await nats.log(where.stream, where.subject, where.replicas, where.max_bytes)
    replaced: int | None = None
    if log.end:
        there = await _last_number(log)
        if not replace:
            raise NotFounded(
                f"the log of {where.cluster} is not empty: it ends at"
                f" {'a message that cannot be read' if there is None else f'frame {there}'}, and"
                f" {local.folder} at frame {number}. To remove it and begin anew, give"
                " --replace-log."
            )
        if there is not None and there > number:
            raise NotFounded(
                f"the log of {where.cluster} ends at frame {there}, and {local.folder} at frame"
                f" {number}: what is missing would be lost. Use the folder that has most, or start"
                " its node, so that it reads the rest of the log."
            )
        await _check_nobody_leads(nats, where.cluster)
        await nats.remove(where.stream)
        log = await nats.log(where.stream, where.subject, where.replicas, where.max_bytes)
        replaced = 0 if there is None else there
    store = ReplicatedStore(local, log)
    await found(store, log, local.folder)
    _log.info("The log of %s begins behind frame %d.", where.cluster, number,
              extra={"event": "cluster.founded", "number": number})  # fmt: skip
    return Anew(number, replaced)


async def _last_number(log: NatsLog) -> int | None:
    """The number of the last frame in a log; None where it cannot be read. Raises Unanswered."""
    reading = Reading()
    try:
        while reading.sequence < log.end:
            messages = await log.read(reading.sequence)
            for sequence, data in messages:
                reading.take(sequence, data)
            if not messages:
                return None
    except (Spoilt, Behind):
        return None
    return reading.number


async def _check_nobody_leads(nats: Nats, cluster: str) -> None:
    """Raises NotFounded."""
    heard: list[Beat] = []

    def hear(_: str, data: bytes) -> None:
        try:
            heard.append(msgspec.json.decode(data, type=Beat))
        except msgspec.MsgspecError:
            return

    await nats.hear(f"ph.{cluster}.beat", hear)
    await asyncio.sleep(LISTEN_SECONDS)
    if heard:
        raise NotFounded(f"{heard[-1].node} is running ({heard[-1].url}); stop all nodes first.")
