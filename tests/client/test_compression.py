"""Bodies made smaller on their way, and back."""

import asyncio
import gzip
import os
import sys
import zlib

import msgspec
import pytest
import zstandard

from posthouse import Compression, ConfigurationError, Message, QueueClient, SerializationError
from posthouse.client.compression import Algorithm, unwrap
from posthouse.client.create import create_client
from posthouse.client.marks import COMPRESSED
from posthouse.client.wrapping import Wrapping
from tests.client.messages import delivered

LONG = b"the same again and again; " * 1_000


@pytest.mark.parametrize("algorithm", ["gzip", "zstd"])
def test_a_long_body_is_smaller_on_its_way_and_comes_back(algorithm: Algorithm) -> None:
    sent = Message(LONG, {"kind": "text"})
    packed = Compression(algorithm).wrap(sent)
    assert len(packed.body) < len(LONG) / 10
    assert packed.attributes == {"kind": "text", COMPRESSED: algorithm}
    back = unwrap(delivered(packed))
    assert back.body == LONG
    assert back.attributes == {"kind": "text"}


@pytest.mark.parametrize("algorithm", ["gzip", "zstd"])
def test_what_would_not_be_smaller_is_left_as_it_is(algorithm: Algorithm) -> None:
    for body in (b"", LONG[:1_024], os.urandom(5_000)):
        message = Message(body)
        assert Compression(algorithm).wrap(message) is message
    assert Compression(algorithm, threshold=0).wrap(Message(LONG[:1_024])).body != LONG[:1_024]


def test_a_higher_level_compresses_more() -> None:
    fast, best = (Compression(level=each).wrap(Message(LONG)).body for each in (1, 9))
    assert len(best) < len(fast)


def test_what_the_sender_has_marked_is_not_packed_twice() -> None:
    packed = Message(gzip.compress(LONG) + bytes(2_000), {COMPRESSED: "gzip"})
    assert Compression().wrap(packed) is packed


def test_what_is_not_marked_is_not_touched() -> None:
    received = delivered(Message(gzip.compress(LONG)))
    assert unwrap(received) is received


@pytest.mark.parametrize("algorithm", ["gzip", "zstd"])
def test_a_bomb_is_refused_before_it_is_unpacked(algorithm: Algorithm) -> None:
    packed = Compression(algorithm).wrap(Message(bytes(2_000_000)))
    assert len(packed.body) < 5_000
    with pytest.raises(SerializationError, match="more than 1999999 bytes"):
        unwrap(delivered(packed), 1_999_999)
    assert len(unwrap(delivered(packed), 2_000_000).body) == 2_000_000


def test_a_bomb_that_does_not_tell_its_size_is_refused_too() -> None:
    packing = zstandard.ZstdCompressor().compressobj()
    body = packing.compress(bytes(20_000_000)) + packing.flush()
    received = delivered(Message(body, {COMPRESSED: "zstd"}))
    with pytest.raises(SerializationError):
        unwrap(received, 1_000_000)
    assert len(unwrap(received).body) == 20_000_000


@pytest.mark.parametrize("algorithm", ["gzip", "zstd"])
def test_what_was_damaged_is_an_error(algorithm: Algorithm) -> None:
    packed = Compression(algorithm).wrap(Message(LONG))
    body = packed.body
    for bad in (b"", b"no", body[:-1], body[:20], body + b"x", body[:-1] + bytes([body[-1] ^ 1])):
        with pytest.raises(SerializationError):
            unwrap(delivered(msgspec.structs.replace(packed, body=bad)))


def test_an_algorithm_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(SerializationError, match="'lzma'"):
        unwrap(delivered(Message(b"x", {COMPRESSED: "lzma"})))


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("algorithm", {"algorithm": "lzma"}),
        ("level", {"level": 10}),
        ("level", {"algorithm": "zstd", "level": 0}),
        ("threshold", {"threshold": -1}),
        ("unpacked_bytes_max", {"unpacked_bytes_max": 0}),
    ],
)
def test_a_bad_setting_is_named(field: str, settings: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Compression(**settings)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_zstd_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ConfigurationError, match=r"posthouse\[zstd\]"):
        Compression("zstd")
    assert Compression("gzip").wrap(Message(LONG)).body != LONG


def test_every_client_unpacks_whatever_its_settings() -> None:
    async def main() -> None:
        client = create_client("memory://?auto_create=true", compression=Compression())
        async with client:
            await client.send_message("orders", Message(LONG))
            [peeked] = await client.peek_messages("orders")
            plain = QueueClient(client._provider, client._calls.config)
            received = await plain.receive_message("orders")
            assert received is not None
            assert received.body == peeked.body == LONG
            assert not received.attributes

    asyncio.run(main())


def test_the_limit_of_a_client_is_its_own() -> None:
    packed = delivered(Message(zlib.compress(LONG, 6, 31), {COMPRESSED: "gzip"}))
    with pytest.raises(SerializationError):
        Wrapping(Compression(unpacked_bytes_max=100)).unwrap(packed)
    assert Wrapping().unwrap(packed).body == LONG
