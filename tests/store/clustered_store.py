"""The replicated store on real NATS servers, so that the suite of all stores can be run on it.

It joins and leads when it is first written to. Two things differ from other stores on purpose, and
are evened out here: no closing frame is written, because a clean stop is a hand-over; and a frame
in the folder says what that disk had, not what the log had.
"""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from posthouse.store.file import FileStore
from posthouse.store.frames import CLOSING, Frame
from posthouse.store.log import Unanswered
from posthouse.store.nats import Nats, NatsLog, Servers
from posthouse.store.replicated import ReplicatedStore
from tests.server.clustered import SERVER, a_free_port

LOG_BYTES = 64 << 20


class NatsServers:
    """One server, or three that replicate to each other."""

    def __init__(self, folder: Path, count: int) -> None:
        self.count = count
        self.ports = [a_free_port() for _ in range(count)]
        routes = [a_free_port() for _ in range(count)]
        self._processes = []
        for at, (port, route) in enumerate(zip(self.ports, routes, strict=True)):
            mine = folder / f"n{at}"
            mine.mkdir(parents=True)
            kept = json.dumps(str(mine / "js"))
            text = f"server_name: n{at}\nlisten: 127.0.0.1:{port}\n" + (
                f"jetstream {{ store_dir: {kept}, sync_interval: always }}\n"
            )
            if count > 1:
                others = ", ".join(f'"nats://127.0.0.1:{each}"' for each in routes)
                text += f"cluster {{ name: test, listen: 127.0.0.1:{route}, routes: [{others}] }}\n"
            (mine / "nats.conf").write_text(text)
            assert SERVER is not None
            self._processes.append(subprocess.Popen(
                [SERVER, "-c", str(mine / "nats.conf")], stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ))  # fmt: skip

    @property
    def servers(self) -> Servers:
        return Servers(tuple(f"nats://127.0.0.1:{port}" for port in self.ports), name="test")

    async def log(self, stream: str) -> tuple[Nats, NatsLog]:
        while True:
            with suppress(Unanswered):
                nats = await Nats.connect(self.servers)
                try:
                    return nats, await nats.log(stream, f"s.{stream}", self.count, LOG_BYTES)
                except Unanswered:
                    await nats.close()
            await asyncio.sleep(0.05)  # slept: until they have started, and found each other

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@contextmanager
def nats_servers(folder: Path, count: int) -> Iterator[NatsServers]:
    made = NatsServers(folder, count)
    try:
        yield made
    finally:
        made.stop()


class ClusteredStore:
    """`told`: what each frame said of durability when it was appended, by number."""

    def __init__(
        self, servers: NatsServers, stream: str, folder: Path, size: int, told: dict[int, int]
    ) -> None:
        self._servers, self._stream, self._told = servers, stream, told
        self._local = FileStore(folder, segment_bytes=size, durability="interval")
        self._store: ReplicatedStore | None = None
        self._nats: Nats | None = None
        self._pending: list[Frame] = []
        self._joining = asyncio.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store or self._local, name)

    @property
    def last(self) -> Frame | None:
        last = self._local.last
        return None if last is None else self._as_told(last)

    def _as_told(self, frame: Frame) -> Frame:
        assert frame.durable <= self._told[frame.number]
        return replace(frame, durable=self._told[frame.number])

    def append(self, frame: Frame) -> None:
        assert frame.kind != CLOSING
        self._told[frame.number] = frame.durable
        self._pending.append(frame)

    def sync_at_once(self) -> bool:
        return False

    async def sync(self) -> None:
        async with self._joining:
            if self._store is None:
                self._nats, log = await self._servers.log(self._stream)
                self._store = ReplicatedStore(self._local, log)
                await self._store.lead(self._pending[0].epoch, lambda _: None)
            for frame in self._pending:
                self._store.append(frame)
            self._pending = []
        await self._store.sync()

    async def read(self, first: int, end: int) -> AsyncIterator[Frame]:
        async for frame in (self._store or self._local).read(first, end):
            yield self._as_told(frame)

    async def get(self, positions: Sequence[int]) -> list[Frame]:
        return [self._as_told(frame) for frame in await self._local.get(positions)]

    async def close(self) -> None:
        await (self._store or self._local).close()
        if self._nats is not None:
            await self._nats.close()
