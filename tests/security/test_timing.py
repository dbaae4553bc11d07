"""How long a refusal takes tells nothing of whether a key is wrong or its name unknown.

With SOAK=1 both are tried 10,000 times each, turn about, and Welch's t is printed: the difference
of the means, in standard errors. Machines are too noisy for that in a short run: there it is
counted which functions are called.
"""

import asyncio
import gc
import math
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import pytest

from posthouse.broker import passwords
from posthouse.broker.access import BROKER, Guard
from posthouse.broker.clock import VirtualClock
from posthouse.broker.engine import Engine
from posthouse.core.errors import Unauthenticated
from posthouse.core.model import Account, Grant
from posthouse.core.namespaces import CreateNamespace, SetAccount
from posthouse.dialects.pyqueue.credentials import Credentials as PyQueueCredentials
from posthouse.dialects.pyqueue.credentials import Signing
from posthouse.dialects.servicebus import sas
from posthouse.dialects.servicebus.credentials import Credentials, Settings
from posthouse.dialects.vibemq.users import Settings as VibeMqSettings
from posthouse.dialects.vibemq.users import Users
from posthouse.server.http import _credentials
from posthouse.store.memory import MemoryStore
from tests.dialects.servicebus.rig import sas as signed

SOAK = bool(os.environ.get("SOAK"))
TRIES = 10_000
T_MAX = 10.0  # far above what chance does, and below what a compare that stops early would do
DIFFERENCE_SECONDS = 200e-9  # of the medians: a network hides much more
SLOWEST_PART = 0.1  # of the tries are left out: others had the processor meanwhile
KEY = "the key of ann, of some length"
WRONG = "x" * len(KEY)


class Way(NamedTuple):
    """Two ways to be refused that must not be told apart."""

    wrong: Callable[[], object]
    unknown: Callable[[], object]


class World:
    """A broker's principals: ann has a key, bob has a password."""

    def __init__(self, engine: Engine, guard: Guard) -> None:
        self.engine: Engine | None = engine
        self.guard = guard
        self.bus = Credentials(self, guard, Settings("default"))
        self.vibemq = Users(self, guard, VibeMqSettings("default"))
        self.pyqueue = PyQueueCredentials(guard, Signing())

    @property
    def accounts(self) -> Mapping[str, Account]:
        assert self.engine is not None
        return self.engine.view.accounts

    def sas(self, name: str) -> Callable[[], object]:
        token = sas.parse(signed("sb://localhost/q", key=WRONG, name=name))
        return lambda: self.bus.identify_by_token(token, "localhost", ("q",))

    def by_key(self, key: str) -> Callable[[], object]:
        return lambda: self.pyqueue.identify(self.accounts, "apikey", key)

    def bearer(self, name: str) -> Callable[[], object]:
        given = f"Bearer {name}:{WRONG}".encode()
        return lambda: self.guard.identify(self.accounts, *_credentials(given))

    def password(self, name: str) -> Callable[[], object]:
        """The coroutine is driven by hand: a loop and its threads would be most of the time."""

        def identify() -> object:
            work = self.vibemq.identify(name, WRONG)
            try:
                work.send(None)
            except StopIteration as found:
                return found.value
            raise AssertionError("it waits")

        return identify

    def ways(self) -> dict[str, Way]:
        return {
            "SAS": Way(self.sas("ann"), self.sas("eve")),
            "PyQueue AUTH": Way(self.by_key(KEY[:-1] + "!"), self.by_key(WRONG)),
            "HTTP bearer": Way(self.bearer("ann"), self.bearer("eve")),
            "VibeMQ password": Way(self.password("bob"), self.password("eve")),
        }


@contextmanager
def cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What scrypt takes would hide all the rest. It is called here and now."""

    async def here(work: Callable[..., object], *given: object) -> object:
        return work(*given)

    nobody = passwords._NOBODY.replace(f"${passwords.N}$", "$2$")
    monkeypatch.setattr(passwords, "N", 2)
    monkeypatch.setattr(passwords, "_NOBODY", nobody)
    monkeypatch.setattr(asyncio, "to_thread", here)
    yield


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    async def open_it() -> World:
        guard = Guard("the root's", bytes(32))
        engine = await Engine.open(MemoryStore(), VirtualClock(0), 1, guard)
        await engine.ask(BROKER, "", CreateNamespace("default"))
        grants = [Grant("*", "*", ["send"])]
        sealed = guard.seal("bob", passwords.hashed("what bob alone knows"))
        for command in (
            SetAccount("ann", grants, [guard.seal("ann", KEY)], new=True),
            SetAccount("bob", grants, [], new=True, password=sealed),
        ):
            await engine.ask(BROKER, "", command)
        return World(engine, guard)

    with cheap_passwords(monkeypatch):
        loop = asyncio.new_event_loop()
        made = loop.run_until_complete(open_it())
        yield made
        assert made.engine is not None
        loop.run_until_complete(made.engine.close())
        loop.close()


WAYS = ("SAS", "PyQueue AUTH", "HTTP bearer", "VibeMQ password")


def called(refuse: Callable[[], object]) -> Counter[str]:
    """The functions that are called to refuse somebody, Python's own and those in C."""
    found: Counter[str] = Counter()

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            found[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            found[getattr(argument, "__qualname__", str(argument))] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        with suppress(Unauthenticated):
            refuse()
            raise AssertionError("somebody was let in")
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.parametrize("name", WAYS)
def test_a_wrong_key_calls_the_functions_that_an_unknown_one_does(name: str, world: World) -> None:
    wrong, unknown = world.ways()[name]
    called(wrong)  # what is made once is there
    called(unknown)
    assert called(wrong) == called(unknown)
    assert sum(called(wrong).values()) > 5


def seconds(refuse: Callable[[], object]) -> float:
    begun = time.perf_counter()
    with suppress(Unauthenticated):
        refuse()
    return time.perf_counter() - begun


def welch(one: list[float], two: list[float]) -> float:
    """The difference of two means, in standard errors."""
    error = math.sqrt(statistics.variance(one) / len(one) + statistics.variance(two) / len(two))
    return (statistics.fmean(one) - statistics.fmean(two)) / error


@pytest.mark.skipif(not SOAK, reason="SOAK=1 measures the time")
@pytest.mark.alone
@pytest.mark.parametrize("name", WAYS)
def test_a_wrong_key_takes_as_long_as_an_unknown_one(name: str, world: World) -> None:
    way, chance = world.ways()[name], random.Random(1)
    taken: tuple[list[float], list[float]] = ([], [])
    gc.collect()
    gc.disable()
    try:
        for _ in range(TRIES):
            for which in chance.sample((0, 1), 2):
                taken[which].append(seconds(way[which]))
    finally:
        gc.enable()
    slowest = sorted(taken[0] + taken[1])[int(2 * TRIES * (1 - SLOWEST_PART))]
    wrong, unknown = ([each for each in some if each < slowest] for some in taken)
    t, apart = welch(wrong, unknown), statistics.median(wrong) - statistics.median(unknown)
    sys.stderr.write(
        f"\n{name}: |t| = {abs(t):.1f} over {TRIES} tries each,"
        f" medians {statistics.median(wrong) * 1e6:.2f} us, {apart * 1e9:+.0f} ns apart\n"
    )
    assert abs(t) < T_MAX or abs(apart) < DIFFERENCE_SECONDS
