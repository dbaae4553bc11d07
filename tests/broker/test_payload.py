"""What is in a frame, compressed or not."""

import asyncio
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.broker import payload
from posthouse.broker.access import BROKER
from posthouse.broker.clock import VirtualClock
from posthouse.broker.engine import Engine
from posthouse.broker.payload import CODECS, GZIP, ZSTD, Compression
from posthouse.core.commands import CreateQueue, Peek, Peeked, Send
from posthouse.core.message import NewMessage
from posthouse.core.namespaces import CreateNamespace
from posthouse.core.records import Sent
from posthouse.store.errors import Unknown
from posthouse.store.file import FileStore
from posthouse.store.frames import Frame

each_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())


def a_frame(data: bytes) -> Frame:
    return Frame(1, 1, 1, 1, 1, 0, data)


def sent(body: bytes) -> list[payload.Entry]:
    return [("n", Sent("q", 5, 1, len(body), [NewMessage(b"", body)]))]


@each_codec
def test_what_is_compressed_reads_the_same(codec: int) -> None:
    entries = sent(b"again and " * 500)
    plain, small = payload.encode(entries), payload.encode(entries, Compression(codec))
    assert len(small) < len(plain) // 5
    assert small[0] == 0xC1
    both = [list(payload.entries(a_frame(data))) for data in (plain, small)]
    assert both[0] == both[1] == [(1, *entries[0])]


@each_codec
def test_what_is_small_or_would_not_shrink_is_left_as_it_is(codec: int) -> None:
    small = sent(b"x" * 100)
    assert payload.encode(small, Compression(codec)) == payload.encode(small)
    assert payload.encode(small, Compression(codec, 10)) != payload.encode(small)
    noise = sent(Random(3).randbytes(4_000))
    assert payload.encode(noise, Compression(codec)) == payload.encode(noise)


@given(st.sampled_from((GZIP, ZSTD)), st.data())
def test_damage_is_an_error_and_nothing_else(codec: int, data: st.DataObject) -> None:
    whole = bytearray(payload.encode(sent(b"again and " * 300), Compression(codec)))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(1, len(whole)))])
    try:
        found = list(payload.entries(a_frame(cut)))
    except Unknown:
        return
    assert len(found) <= 1


@each_codec
def test_a_length_that_lies_is_an_error(codec: int) -> None:
    whole = bytearray(payload.encode(sent(bytes(1 << 20)), Compression(codec)))
    for length in (10, (1 << 32) - 1, 200 << 20):
        whole[2:6] = length.to_bytes(4, "big")
        with pytest.raises(Unknown):
            list(payload.entries(a_frame(bytes(whole))))


def test_a_journal_that_was_written_in_every_way_is_read_whatever_is_set(tmp_path: Path) -> None:
    bodies = [f"{number} and ".encode() * 500 for number in range(4)]
    hows = [None, Compression(GZIP), Compression(ZSTD), None]

    async def write(body: bytes, how: Compression | None) -> None:
        store = FileStore(tmp_path / "data")
        engine = await Engine.open(store, VirtualClock(1), 1, compression=how)
        if not engine.view.has_namespace("n"):
            await engine.ask(BROKER, "", CreateNamespace("n"))
            await engine.ask(BROKER, "n", CreateQueue("q"))
        await engine.ask(BROKER, "n", Send("q", [NewMessage(b"\x80", body)]))
        await engine.close()

    async def read() -> list[bytes | int]:
        engine = await Engine.open(FileStore(tmp_path / "data"), VirtualClock(1), 1)
        answer = await engine.ask(BROKER, "n", Peek("q", limit=10))
        assert isinstance(answer, Peeked)
        await engine.close()
        return [each.message.body for each in answer.messages]

    for body, how in zip(bodies, hows, strict=True):
        asyncio.run(write(body, how))
    assert asyncio.run(read()) == bodies
