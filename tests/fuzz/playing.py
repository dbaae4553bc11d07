"""Cases are played to peers in this process, without sockets; a share of them to a real broker too.

A case is what one client says on one connection. Whatever it says, the peer goes on or closes that
connection, says nothing larger than it was told deserves, and holds the event loop for less than a
tenth of a second. When the connection is over, nothing of it is left: no receiver, no wait, no
transaction, no object. The engine goes on.
"""

import asyncio
import gc
import random
import resource
import socket
import sys
import time
import tracemalloc
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Generic, Protocol, TypeVar

from posthouse.broker.engine import Engine
from tests.dialects.rig import EngineRig
from tests.server.running import Running, running

SAY_BYTES = 16 << 20  # that a peer may say in one case
HELD_SECONDS = 0.1  # of CPU that one turn of the loop may take
PEAK_BYTES = 64 << 20  # of memory that one case may take
GROWN_BYTES = 64 << 20  # that the process may grow by, while brokers come and go
MEASURE_EVERY = 200  # cases: to measure memory takes several times as long as to play one
GONE_SECONDS = 30.0  # in which what was under way for a connection ends after it
REAL_EVERY = 200  # cases: played to a process too
REAL_SECONDS = 20  # that it has for an answer
CUT_FINELY = 0.05  # of the cases come in small pieces
TURNS = 12  # of the loop, in which what has come is dealt with unless there is more of it
TURNS_MAX = 2_000


class Surface(Protocol):
    """Peers of one protocol, on a broker in memory."""

    name: str
    anew_every: int  # cases: with a new broker
    keeps_transactions: bool  # when a connection is over, until their time is up

    async def open(self, number: int) -> None:
        """A new broker, for the cases from this one on."""

    async def close(self) -> None: ...

    @property
    def engine(self) -> Engine: ...

    @property
    def failures(self) -> list[Any]:
        """What was logged as an error."""

    def connect(self) -> tuple[Any, Any]:
        """A new peer, and its transport."""

    def data(self, chance: random.Random) -> bytes:
        """What a client says."""

    def kept(self) -> dict[str, int]:
        """What the dialect itself keeps of connections, by name; zeros where there are none."""


Rig = TypeVar("Rig", bound=EngineRig)


class Rigged(Generic[Rig]):
    """A surface whose peers are on the rig of their dialect; `open` makes it."""

    rig: Rig

    async def close(self) -> None:
        await self.rig.close()

    @property
    def engine(self) -> Engine:
        assert self.rig.engine is not None
        return self.rig.engine

    @property
    def failures(self) -> list[Any]:
        return self.rig.failures.found


class Turns:
    """Lets the loop turn, and looks how much of the CPU each turn takes."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._since = 0.0

    def begin(self) -> None:
        self.longest, self._since = 0.0, time.thread_time()

    def end(self) -> None:
        now = time.thread_time()
        self.longest = max(self.longest, now - self._since)
        self._since = now

    async def turn(self) -> None:
        """What was done since the last one is counted with it: that is little, here."""
        await asyncio.sleep(0)
        self.end()


class Player:
    def __init__(self, surface: Surface) -> None:
        self.surface = surface
        self.turns = Turns()
        self.peers: list[weakref.ref[Any]] = []

    async def play(self, data: bytes, chance: random.Random, *, is_timed: bool) -> None:
        """Raises AssertionError."""
        self.turns.begin()
        peer, transport = self.surface.connect()
        self.peers.append(weakref.ref(peer))
        sizes = (1, 7, 100, 1_000) if chance.random() < CUT_FINELY else (1_000, 100_000, 1 << 30)
        said = pos = 0
        while pos < len(data) and not transport.closed:
            size = chance.choice(sizes)
            peer.data_received(data[pos : pos + size])
            self.turns.end()
            pos += size
            said += await self._settle(transport)
        assert said < SAY_BYTES, f"a peer said {said} bytes"
        if not getattr(transport, "lost", False):
            peer.connection_lost(None)
        await self._settle(transport)
        await self._until_nothing_is_left()
        failures = self.surface.failures
        assert not failures, f"{failures[0].getMessage()} {failures[0].exc_info}"
        assert not self.surface.engine.failed.is_set()
        held = self.turns.longest
        assert not is_timed or held < HELD_SECONDS, f"the loop was held for {held:.3f} s"

    async def _settle(self, transport: Any) -> int:
        """Until nothing more is said; how many bytes were."""
        said = quiet = 0
        for _ in range(TURNS_MAX):
            await self.turns.turn()
            quiet += 1
            if transport.written:
                said += sum(map(len, transport.written))
                transport.written.clear()
                quiet = 0
            if quiet == TURNS:
                break
        return said

    async def _until_nothing_is_left(self) -> None:
        left: dict[str, int] = {}
        for _ in range(TURNS_MAX):
            left = self._left()
            if not left:
                return
            await self.turns.turn()
        raise AssertionError(f"of a connection that is over there are left: {left}")

    def _left(self) -> dict[str, int]:
        engine = self.surface.engine
        found = self.surface.kept()
        receivers = engine._receivers
        found["receivers"] = len(receivers._pushed) + len(receivers.waits) + len(receivers._leaving)
        for name, state in engine.world.states.items():
            found[f"receivers in {name}"] = len(state.receivers)
            found[f"blocked senders in {name}"] = len(state.blocked)
            if not self.surface.keeps_transactions:
                found[f"transactions in {name}"] = len(state.transactions)
        return {name: count for name, count in found.items() if count}

    async def check_peers(self) -> None:
        """That none is kept by anybody, when what was under way for it is done."""
        deadline = time.monotonic() + GONE_SECONDS
        while True:
            gc.collect()
            kept = sum(1 for each in self.peers if each() is not None)
            if not kept:
                break
            assert time.monotonic() < deadline, f"{kept} peers are left of {len(self.peers)}"
            await asyncio.sleep(0.05)
        self.peers.clear()


class Real:
    """A broker in a process of its own, to which the same is said."""

    def __init__(self, broker: Running) -> None:
        self._broker = broker
        self._played = 0
        self._since: list[bytes] = []  # what was said since it was last looked at

    def play(self, data: bytes) -> None:
        """Raises AssertionError, TimeoutError."""
        self._say(data)
        self._since.append(data)
        self._played += 1
        if self._played == 1:  # with the first of a dialect's clients its modules are loaded
            self._held_seconds()
        if self._played % 20 == 0:
            self.check()

    def _say(self, data: bytes) -> None:
        with socket.create_connection(("127.0.0.1", self._broker.port), REAL_SECONDS) as made:
            said = 0
            with suppress(ConnectionError):  # it may hang up before it has all,
                made.sendall(data)
                with suppress(OSError):  # and before it is told that this is all
                    made.shutdown(socket.SHUT_WR)
                while part := made.recv(1 << 16):
                    said += len(part)
                    assert said < SAY_BYTES, "a peer said too much"

    def check(self) -> None:
        """That it serves, and has neither failed nor been held up since this was last asked."""
        assert self._broker.call("GET", "/health/live").status == 200
        errors = [each for each in self._broker.log if each.get("level") in ("error", "critical")]
        assert not errors, errors[0]
        if self._held_seconds() >= HELD_SECONDS:
            # On a busy machine many turns may have come together: which of them was it?
            for data in self._since:
                self._say(data)
                held = self._held_seconds()
                text = f"the loop of the process was held for {held:.3f} s by {data[:2_000]!r}"
                assert held < HELD_SECONDS, text
        self._since.clear()

    def _held_seconds(self) -> float:
        """The longest turn of its loop since this was last asked."""
        text = self._broker.call("GET", "/metrics").body.decode()
        (held,) = (
            float(line.split()[-1])
            for line in text.splitlines() if line.startswith("posthouse_event_loop_held_seconds")
        )  # fmt: skip
        return held


def grown_bytes() -> int:
    """The most that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextmanager
def measured(wanted: bool) -> Iterator[None]:
    """Where wanted, what is done takes no more than a case may. Raises AssertionError."""
    if not wanted:
        yield
        return
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < PEAK_BYTES, f"it took {peak} bytes"


async def _run(surface: Surface, seed: int, cases: int, seconds: float, real: Real | None) -> int:
    end, number, first = time.monotonic() + seconds, 0, 0
    player = Player(surface)
    await surface.open(0)
    data = b""
    try:
        while number < cases and time.monotonic() < end:
            number += 1
            chance = random.Random(f"{surface.name}-{seed}-{number}")
            data = surface.data(chance)
            # Under tracemalloc everything takes longer: the time is not looked at then.
            is_measured = number % MEASURE_EVERY == 1
            with measured(is_measured):
                await player.play(data, chance, is_timed=not is_measured)
            if real is not None and number % REAL_EVERY == 0:
                real.play(data)
            if number % surface.anew_every == 0:
                await player.check_peers()
                await surface.close()
                await surface.open(number)
                first = first or (grown_bytes() if number >= 5_000 else 0)
                grown = grown_bytes() - first if first else 0
                assert grown < GROWN_BYTES, f"the process has grown by {grown} bytes"
        await player.check_peers()
        if real is not None:
            real.check()
    except BaseException:
        sys.stderr.write(f"{surface.name}: case {number} of seed {seed}: {data[:2_000]!r}\n")
        raise
    finally:
        await surface.close()
    return number


def run(surface: Surface, seed: int, cases: int, seconds: float) -> int:
    """How many cases were played. Raises AssertionError; the case and its seed are told."""
    import uvloop

    gc.collect()
    gc.freeze()  # what was imported is not looked at again while turns are timed
    with ExitStack() as stack:
        real = None
        if cases >= REAL_EVERY:
            real = Real(stack.enter_context(running("--memory", "--dev", "--auto-create")))
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        return runner.run(_run(surface, seed, cases, seconds, real))
