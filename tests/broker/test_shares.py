"""For whom something counts, and that what waits is shared too."""

import asyncio

import pytest

from posthouse.broker.access import ANYBODY, BROKER, ROOT, Principal, vouched
from posthouse.broker.memory import RECEIVER_BYTES, Limits
from posthouse.broker.shares import MAKES, Remembered, Shares
from posthouse.core.commands import (
    Attach,
    Begin,
    Begun,
    Command,
    CreateQueue,
    Detach,
    GetQueue,
    Receive,
    Send,
)
from posthouse.core.errors import Busy, QuotaExceeded
from posthouse.core.message import NewMessage
from posthouse.core.model import Account
from posthouse.core.namespaces import SpaceCommand
from posthouse.core.shares import Holder
from posthouse.store.memory import MemoryStore
from tests.broker.desk import NS, Desk
from tests.broker.test_engine import GatedStore
from tests.inside import state_of
from tests.waiting import turn

EVE, ANN = Principal("eve", 1), Principal("ann", 2)


def test_every_command_that_counts_is_signed_by_the_engine() -> None:
    kinds = (*Command.__args__, *SpaceCommand.__args__)
    assert {each for each in kinds if "by" in each.__struct_fields__} == MAKES


@pytest.mark.parametrize("principal", [
    BROKER, ANYBODY, Principal(ROOT, everything=True), vouched(BROKER),
])  # fmt: skip
def test_the_root_and_the_broker_have_no_share(principal: Principal) -> None:
    assert Shares(50, {}).holder(principal) == Holder()


def test_an_account_cannot_pass_for_the_root_by_its_name() -> None:
    shares = Shares(50, {})
    for name in (ROOT, "$broker", "$anybody"):
        assert shares.name(Principal(name, 5)) == name
        assert shares.name(vouched(Principal(name, 5))) == name


def test_what_is_done_with_the_keys_of_an_entity_counts_for_who_made_them() -> None:
    def made(name: str, by: str) -> Account:
        return Account(name, 1, 0, 0, [], [], by=by)

    found = [made("k@default/q", "eve"), made("l@default/q", "k@default/q"), made("bob", "eve"),
             made("r@default/q", ""), made("a@b", "b@a"), made("b@a", "a@b")]  # fmt: skip
    shares = Shares(50, {each.name: each for each in found})
    names = {name: shares.name(Principal(name, 1)) for name in shares._accounts}
    assert names["k@default/q"] == names["l@default/q"] == "eve"
    assert names["r@default/q"] == "r@default/q"  # the root has made it
    assert names["bob"] == "bob"  # to make others takes the right to everything
    assert names["a@b"] in ("a@b", "b@a")  # names that were used again lead nowhere


def test_nobody_else_can_say_for_whom_something_counts() -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore(), limits=Limits(principal_share=1))
        engine = desk.engine
        forged = Begin(by=Holder("ann", 100))
        for _ in range(100):
            assert isinstance(await engine.ask(EVE, NS, forged), Begun)
        with pytest.raises(QuotaExceeded, match="'eve' has used up its share"):
            await engine.ask(EVE, NS, forged)
        await engine.ask(ANN, NS, Begin())
        await engine.ask(BROKER, NS, Begin(by=Holder("eve", 1)))
        await engine.ask(EVE, NS, CreateQueue("mine", by=Holder("ann", 100)))
        assert state_of(engine, NS).queues["mine"].by == "eve"
        await engine.close()

    asyncio.run(main())


def test_one_who_attaches_many_receivers_leaves_some_to_others() -> None:
    """They stay, and take memory as long as they do."""

    async def main() -> None:
        limits = Limits(memory_bytes=40 * 8 * RECEIVER_BYTES, principal_share=50)
        desk = await Desk.open(MemoryStore(), limits=limits)
        engine = desk.engine

        async def attach(principal: Principal) -> int:
            number = engine.new_receiver(lambda _: None)
            await engine.ask(principal, NS, Attach("q", number))
            return number

        mine = [await attach(EVE) for _ in range(20)]
        with pytest.raises(QuotaExceeded, match="'eve' has used up its share of the number of rec"):
            await attach(EVE)
        for _ in range(20):
            await attach(ANN)
        with pytest.raises(Busy, match="too many receivers"):
            await attach(BROKER)
        once = Receive("q", engine.new_receiver())
        await engine.ask(BROKER, NS, once)  # it makes room
        await engine.ask(EVE, NS, Detach(mine.pop()))
        await attach(EVE)
        await engine.close()

    asyncio.run(main())


def test_one_who_floods_makes_nobody_else_wait_in_vain() -> None:
    async def main() -> None:
        store = GatedStore()
        limits = Limits(pending_commands=50, pending_bytes=30 << 20)
        desk = await Desk.open(store, limits=limits)
        store.gate.clear()
        large = Send("q", [NewMessage(b"\x80", bytes(5 << 20))])
        mine: list[object] = []
        others: list[object] = []
        flood: list[Command] = [*[large] * 12, *[Receive("q", 99)] * 60]
        for command in flood:
            desk.engine.submit(EVE, NS, command, mine.append)
            await turn()
        assert any("'eve' has used up its share" in str(each) for each in mine)
        now = desk.engine.now()
        assert now.pending_commands == 25
        assert now.pending_bytes <= 15 << 20
        desk.engine.submit(ANN, NS, large, others.append)
        desk.engine.submit(ANN, NS, GetQueue("q"), others.append)
        assert not others  # they wait
        store.gate.set()
        await desk.engine.flush()
        assert len(others) == 2
        assert not any(isinstance(each, Busy) for each in others)
        before = len(mine)
        desk.engine.submit(EVE, NS, GetQueue("q"), mine.append)  # nothing of it waits any more
        await desk.engine.flush()
        assert not isinstance(mine[before], Busy)
        assert desk.engine.shares.may_wait("eve", 15 << 20, 50, 30 << 20)
        await desk.engine.close()

    asyncio.run(main())


def test_what_one_lets_remember_displaces_his_own() -> None:
    heard: Remembered[str, int] = Remembered(4)
    heard.put("a", 1, "ann", 50)
    for at, key in enumerate("vwxyz"):
        heard.put(key, at, "eve", 50)
    assert dict(heard.items()) == {"a": 1, "y": 3, "z": 4}
    assert (heard.get("a"), heard.get("x")) == (1, None)
    heard.put("z", 5, "eve", 50)  # again, as the latest
    for at, key in enumerate("rst"):
        heard.put(key, at, "", 50)  # nobody's in particular: the oldest of all go
    assert [key for key, _ in heard.items()] == ["z", "r", "s", "t"]
    heard.pop("z")
    heard.pop("z")
    assert len(list(heard.items())) == 3
