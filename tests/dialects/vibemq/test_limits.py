"""Limits: silence, rates, memory, what is under way; and the end of the broker."""

import asyncio
import json
import signal
from pathlib import Path

import pytest

from posthouse.broker import memory
from posthouse.broker.access import BROKER, Principal
from posthouse.core.errors import REFUSALS
from posthouse.dialects.vibemq import peer as peers
from posthouse.dialects.vibemq import publishing, requests, squeezing
from posthouse.dialects.vibemq.answers import CODES
from posthouse.dialects.vibemq.codec import Type
from posthouse.dialects.vibemq.malformed import Malformed
from tests.dialects.vibemq.broker import started
from tests.dialects.vibemq.client import (
    ACK,
    CONNECT,
    CONNECT_ACK,
    CREATE,
    DELIVER,
    DISCONNECT,
    ERROR,
    GENERATIONS,
    LIST,
    NAMES,
    PING,
    PONG,
    PUBLISH,
    PUBLISH_ACK,
    SUBSCRIBE,
    Said,
)
from tests.dialects.vibemq.rig import Rig, Wire, kinds
from tests.waiting import SkippingLoop, turn, until_async


def is_read_from(wire: Wire) -> bool:
    return wire.transport.reading


def test_every_refusal_has_its_code() -> None:
    assert set(CODES) == set(REFUSALS)


def test_types_have_the_numbers_that_clients_know() -> None:
    assert {each.value: each.name.replace("_", "").lower() for each in Type} == {
        number: name.lower() for number, name in NAMES.items()
    }


def test_gzip_is_always_there() -> None:
    assert squeezing.METHODS["gzip"].flag == 1
    for method in squeezing.METHODS.values():
        packed = method.squeeze(b"x" * 5_000)
        assert squeezing.Squeezed(method, packed, 5_000).open_at_once() == b"x" * 5_000


@pytest.mark.parametrize("name", ["gzip", "brotli"])
def test_what_cannot_be_unpacked_within_bounds_is_malformed(name: str) -> None:
    method = squeezing.METHODS[name]
    whole = method.squeeze(bytes(10_000))
    assert squeezing.Squeezed(method, whole, 10_000).open_at_once() == bytes(10_000)
    for wrong in (method.squeeze(bytes(10_001)), whole[:-1], whole + b"x", b"", b"nonsense"):
        with pytest.raises(Malformed):
            squeezing.Squeezed(method, wrong, 10_000).open_at_once()


@pytest.mark.parametrize("name", ["gzip", "brotli"])
def test_what_is_large_is_not_unpacked_at_once_but_wholly(name: str) -> None:
    method = squeezing.METHODS[name]
    text = b"".join(b"%09d" % n for n in range(100_000))
    squeezed = squeezing.Squeezed(method, method.squeeze(text), len(text))
    assert squeezed.open_at_once() is None
    assert squeezed.open() == text


@pytest.mark.parametrize("name", ["gzip", "brotli"])
def test_what_grows_too_much_is_malformed_whatever_its_size(name: str) -> None:
    method = squeezing.METHODS[name]
    squeezed = squeezing.Squeezed(method, method.squeeze(bytes(8 << 20)), 16 << 20)
    with pytest.raises(Malformed, match="100 times"):
        squeezed.open_at_once() or squeezed.open()


def test_it_is_the_client_who_prefers() -> None:
    for offered in ("brotli,gzip", " GZIP , brotli", "zstd,gzip"):
        there = [each for each in offered.lower().replace(" ", "").split(",")
                 if each in squeezing.METHODS]  # fmt: skip
        agreed = squeezing.agree(offered)
        assert agreed is not None
        assert agreed.name == there[0]
    assert squeezing.agree("") is squeezing.agree("zstd") is None


def test_whoever_has_no_permission_is_refused_everything() -> None:
    """Every command there is. One that asks for nothing has to be named here."""
    needs_nothing = {CONNECT, DISCONNECT, PING, LIST, Type.UNSUBSCRIBE}  # what is listed: nothing
    form = {"username": "ann", "password": "x", "newPassword": "x", "queuePattern": "*",
            "operations": ["Publish"]}  # fmt: skip

    async def main() -> None:
        rig = await Rig.open()
        await rig.peers.users.create(BROKER, "ann", "pw", superuser=False)
        assert rig.engine is not None
        wire = await rig.connect()
        await wire.say(Said(PUBLISH, "m", "q", b"1"))
        ann = Principal("ann", rig.engine.view.accounts["ann"].number)
        wire.peer.trust(ann)
        for kind in requests.ROUTES.keys() - needs_nothing:
            payload = json.dumps(form).encode() if kind >= 50 else b""
            said = await wire.say(Said(kind, f"k{kind}", "q", payload))
            assert [(e.id, e.code) for e in said] == [
                (f"k{kind}", "FORBIDDEN" if kind >= 50 else "NOT_AUTHORIZED")
            ]
        [listed] = await wire.say(Said(LIST, "l"))
        assert listed.json == []
        wire.lose()
        await rig.close()

    asyncio.run(main())


def test_who_is_silent_for_a_few_intervals_is_closed() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SkippingLoop)
        rig = await Rig.open(keep_alive_seconds=50)
        silent, alive = await rig.connect(), await rig.connect()
        loop.skip(100)
        await alive.say(Said(PING, "p"))
        loop.skip(100)
        for each in (silent, alive):
            each.peer.check()
        [said] = await silent.hear()
        assert (said.type, said.headers) == (DISCONNECT, {"reason": "keep_alive_timeout"})
        assert silent.transport.closed
        assert not alive.transport.closed
        for each in (silent, alive):
            each.lose()
        await rig.close()

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(main())


def test_who_does_not_say_who_it_is_in_time_is_closed() -> None:
    async def main() -> None:
        rig = await Rig.open()
        wire = Wire(rig, "flagged")
        await wire.say(Said(PING, "p"))
        wire.peer._too_late()
        assert [each.code for each in await wire.hear()] == ["AUTH_REQUIRED"]
        assert wire.transport.closed
        wire.lose()
        await rig.close()

    asyncio.run(main())


def test_connections_from_an_address_are_limited() -> None:
    async def main() -> None:
        rig = await Rig.open(connection_rate=3)
        for at in range(5):
            wire = Wire(rig, "flagged")
            [said] = await wire.say(Said(CONNECT, "c"))
            if at < 3:
                assert said.type == CONNECT_ACK
            else:
                assert (said.id, said.code) == ("c", "CONNECTION_LIMIT")
            assert wire.transport.closed == (at >= 3)
            wire.lose()
        await rig.close()

    asyncio.run(main())


def test_requests_on_a_connection_are_limited_but_not_what_ends_something() -> None:
    async def main() -> None:
        rig = await Rig.open(message_rate=5)
        wire = await rig.connect()
        said = await wire.say(*(Said(PUBLISH, f"m{n}", "q", b"1") for n in range(9)))
        assert sorted(kinds(said)) == [PUBLISH_ACK] * 5 + [ERROR] * 4
        assert {each.code for each in said if each.type == ERROR} == {"RATE_LIMITED"}
        assert {each.id for each in said} == {f"m{n}" for n in range(9)}
        assert kinds(await wire.say(Said(PING, "p"), Said(ACK, "m1"))) == [PONG]
        wire.lose()
        await rig.close()

    asyncio.run(main())


def test_a_subscriber_has_a_window_and_gets_more_as_it_acknowledges() -> None:
    async def main() -> None:
        rig = await Rig.open(window=10)
        wire = await rig.connect()
        await wire.say(*(Said(PUBLISH, f"m{n}", "q", b"1") for n in range(30)))
        got = [each for each in await wire.say(Said(SUBSCRIBE, "s", "q")) if each.type == DELIVER]
        assert [each.id for each in got] == [f"m{n}" for n in range(10)]
        more = await wire.say(*(Said(ACK, f"m{n}") for n in range(6)))
        assert [each.id for each in more] == [f"m{n}" for n in range(10, 16)]
        wire.lose()
        await rig.close()

    asyncio.run(main())


def test_a_window_is_small_where_messages_are_large() -> None:
    async def main() -> None:
        rig = await Rig.open()
        wire = await rig.connect()
        large = b'"' + b"x" * 900_000 + b'"'
        for number in range(12):
            assert kinds(await wire.say(Said(PUBLISH, f"m{number}", "q", large)))
        got = [e for e in await wire.say(Said(SUBSCRIBE, "s", "q")) if e.type == DELIVER]
        assert len(got) == 4
        more = await wire.say(*(Said(ACK, each.id) for each in got))
        assert [each.id for each in more] == ["m4", "m5", "m6", "m7"]
        wire.lose()
        await rig.close()

    asyncio.run(main())


def test_who_does_not_read_is_given_nothing_and_not_read_from() -> None:
    async def main() -> None:
        rig = await Rig.open(window=10)
        wire, other = await rig.connect(), await rig.connect()
        await wire.say(Said(SUBSCRIBE, "s", "q"))
        wire.peer.pause_writing()
        assert not is_read_from(wire)
        await other.say(*(Said(PUBLISH, f"m{n}", "q", b"1") for n in range(30)))
        first = await wire.hear()
        assert len(first) <= 10
        wire.peer.data_received(b"")
        assert not await wire.hear()
        wire.peer.resume_writing()
        assert is_read_from(wire)
        wire.lose()
        other.lose()
        await rig.close()

    asyncio.run(main())


def test_too_much_under_way_is_not_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "COMMANDS_MAX", 5)

    async def main() -> None:
        rig = await Rig.open()
        wire = await rig.connect()
        await wire.say(Said(PUBLISH, "first", "q", b"1"))
        data = [Said(PUBLISH, f"m{n}", "q", b"1") for n in range(9)]
        said = wire.say(*data)
        task = asyncio.ensure_future(said)
        await turn()
        assert not is_read_from(wire)
        assert kinds(await task) == [PUBLISH_ACK] * 9
        assert is_read_from(wire)
        wire.lose()
        await rig.close()

    asyncio.run(main())


async def answered(wire: Wire) -> list[Said]:
    return await until_async(wire.hear, "it is answered")


async def filled(overflow: int, level: int) -> tuple[Rig, Wire]:
    """A queue with that overflow rule, so full that memory is above so many marks."""
    rig = await Rig.open(memory_bytes=80_000)
    assert rig.engine is not None
    wire = await rig.connect()
    options = json.dumps({"overflowStrategy": overflow}).encode()
    await wire.say(Said(CREATE, "c", "q", options))
    sent = 0
    while rig.engine.now().level < level:
        sent += 1
        assert sent < 200
        size = 4_000 if level == 3 and rig.engine.now().level == 1 else 300
        headers = {"h": "x" * size, "i": "x" * size, "j": "x" * size}
        said = await wire.say(Said(PUBLISH, f"m{sent}", "q", b"1", headers))
        if not said:  # it is slowed down
            said = await answered(wire)
        assert kinds(said) == [PUBLISH_ACK]
    assert rig.engine.figures.slowed
    return rig, wire


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SLOW_MS_MAX", 2)
    monkeypatch.setattr(publishing, "RETRY_SECONDS", 0.002)


@pytest.mark.usefixtures("hurried")
def test_above_the_second_mark_publishers_are_blocked_until_there_is_room() -> None:
    async def main() -> None:
        rig, wire = await filled(0, 2)
        assert not await wire.say(Said(PUBLISH, "blocked", "q", b"1"))
        other = await rig.connect()
        got = await other.say(Said(SUBSCRIBE, "s", "q"))
        await other.say(*(Said(ACK, each.id) for each in got if each.type == DELIVER))
        said = await answered(wire)
        assert [(each.type, each.id) for each in said] == [(PUBLISH_ACK, "blocked")]
        for each in (wire, other):
            each.lose()
        await rig.close()

    asyncio.run(main())


@pytest.mark.usefixtures("hurried")
def test_who_is_blocked_for_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "BLOCK_MS", 20)

    async def main() -> None:
        rig, wire = await filled(1, 2)
        said = await wire.say(Said(PUBLISH, "blocked", "q", b"1"))
        if not said:
            said = await answered(wire)
        assert [(each.id, each.code) for each in said] == [("blocked", "SERVER_BUSY")]
        wire.lose()
        await rig.close()

    asyncio.run(main())


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("overflow", range(4))
def test_above_the_third_mark_the_overflow_rule_counts(overflow: int) -> None:
    async def main() -> None:
        rig, wire = await filled(overflow, 3)
        said = await wire.say(Said(PUBLISH, "more", "q", b"1"))
        if overflow in (1, 3):
            assert [each.code for each in said] == ["SERVER_BUSY"]
        elif overflow == 2:
            assert not said
        else:  # the oldest give way
            said = said or await answered(wire)
            assert kinds(said) == [PUBLISH_ACK]
            got = [e for e in await wire.say(Said(SUBSCRIBE, "s", "q")) if e.type == DELIVER]
            assert "m1" not in {each.id for each in got}
            assert "more" in {each.id for each in got}
        wire.lose()
        await rig.close()

    asyncio.run(main())


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_stop_is_told_and_what_is_held_may_be_acknowledged(
    tmp_path: Path, generation: str
) -> None:
    flags = ("--data", str(tmp_path / "data"), "--dev")
    with started(*flags) as vibe, vibe.client(generation) as client:
        client.publish("q", 1, "one")
        client.publish("q", 2, "two")
        client.subscribe("q")
        got = [client.delivery() for _ in range(2)]
        vibe.broker.process.send_signal(signal.SIGTERM)
        said = client.next()
        assert (said.type, said.headers) == (DISCONNECT, {"reason": "server_shutdown"})
        client.ack(got[0])
        assert client.publish("q", 3).code == "SERVER_BUSY"
        client.ack(got[1])
        assert client.is_closed()
        assert vibe.broker.process.wait(20) == 0
    with started(*flags) as vibe, vibe.client(generation) as client:
        client.subscribe("q")
        assert client.has_nothing()


def test_what_was_held_at_a_stop_is_there_at_once_after_it(tmp_path: Path) -> None:
    flags = ("--data", str(tmp_path / "data"), "--dev")
    with started(*flags) as vibe, vibe.client() as client:
        client.publish("q", 1, "one")
        client.subscribe("q")
        client.delivery()
        client.close()
        assert vibe.broker.stop() == 0
    with started(*flags) as vibe, vibe.client() as client:
        client.subscribe("q")
        assert client.take() == 1
