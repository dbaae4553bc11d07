"""Encrypted bodies: what comes back, and what is refused."""

import asyncio
import copy
import logging
import pickle
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from posthouse import (
    AuthenticationFailed,
    Compression,
    ConfigurationError,
    Encryption,
    EncryptionError,
    InvalidEnvelope,
    KeyNotFound,
    Message,
    MessageExpired,
    NonceReused,
    NotAuthentic,
    PlaintextRefused,
    QueueError,
    ReceivedMessage,
    SessionId,
    UnsupportedVersion,
    create_client,
)
from posthouse.client import encryption as module
from posthouse.client.marks import COMPRESSED, ENCRYPTED
from posthouse.client.wrapping import Wrapping
from tests.client.messages import delivered

OLD, NEW = bytes(range(32)), bytes(range(100, 132))
CANARY = b"canary-" * 4 + b"1234"
URL = "memory://?auto_create=true"


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def encryption(clock: Callable[[], float] | None = None, **settings: Any) -> Encryption:
    return Encryption({"k1": OLD}, clock=clock or Clock(), **settings)


def a_message() -> Message:
    return Message(
        b"a secret", {"route": "north"}, SessionId("s"), "c-1", content_type="text/plain"
    )


def test_a_body_comes_back_and_is_not_to_be_seen_on_its_way() -> None:
    one = encryption()
    wrapped = one.wrap(a_message())
    assert b"secret" not in wrapped.body
    back = one.unwrap(delivered(wrapped))
    assert back.body == b"a secret"
    assert back.attributes == {"route": "north"}
    assert back.message_id == wrapped.message_id
    assert one.unwrap(delivered(one.wrap(Message(b"")))).body == b""


def test_what_routes_a_message_stays_readable() -> None:
    wrapped = encryption().wrap(a_message())
    assert wrapped.attributes == {"route": "north", ENCRYPTED: "k1"}
    assert (wrapped.session_id, wrapped.correlation_id) == ("s", "c-1")
    assert wrapped.content_type == "text/plain"


def test_the_envelope_is_as_it_is_drawn() -> None:
    clock = Clock()
    body = encryption(clock).wrap(a_message().with_message_id("m-1")).body
    assert body[:8] == b"QRE1\x01\x02k1"
    nonce, moment = body[8:20], body[20:28]
    assert struct.unpack(">Q", moment) == (1_800_000_000_000,)
    bound = body[:28]
    for field in (b"m-1", b"s", b"c-1", b"text/plain", b""):
        bound += struct.pack(">I", len(field)) + field
    assert AESGCM(OLD).decrypt(nonce, body[28:], bound) == b"a secret"
    assert len(body) == 28 + len(b"a secret") + 16


def test_no_nonce_is_used_twice() -> None:
    one = encryption()
    assert len({one.wrap(Message(b"x")).body[8:20] for _ in range(1_000)}) == 1_000


def test_any_byte_that_is_changed_is_noticed() -> None:
    one = encryption()
    received = delivered(one.wrap(a_message()))
    for at in range(len(received.body)):
        body = bytearray(received.body)
        body[at] ^= 1
        with pytest.raises(EncryptionError) as caught:
            one.unwrap(msgspec.structs.replace(received, body=bytes(body)))
        if at >= 8:
            assert isinstance(caught.value, NotAuthentic)
            assert isinstance(caught.value, AuthenticationFailed)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"message_id": "other"},
        {"session_id": SessionId("t")},
        {"session_id": None},
        {"correlation_id": "c-2"},
        {"correlation_id": None},
        {"content_type": "application/json"},
        {"correlation_id": "", "session_id": SessionId("sc-1")},
        {"attributes": {ENCRYPTED: "k1", COMPRESSED: "gzip"}},
    ],
)
def test_what_is_bound_cannot_be_changed(change: dict[str, Any]) -> None:
    one = encryption()
    received = delivered(one.wrap(a_message()))
    with pytest.raises(AuthenticationFailed):
        one.unwrap(msgspec.structs.replace(received, **change))


def test_another_key_of_the_same_name_is_noticed() -> None:
    received = delivered(encryption().wrap(a_message()))
    with pytest.raises(AuthenticationFailed):
        Encryption({"k1": NEW}, clock=Clock()).unwrap(received)


def test_a_message_is_to_be_fresh() -> None:
    clock = Clock()
    one = encryption(clock)
    received = delivered(one.wrap(a_message()))
    clock.now += 300
    one.unwrap(received)
    clock.now += 0.001
    with pytest.raises(MessageExpired) as caught:
        one.unwrap(received)
    assert caught.value.encrypted_at == datetime.fromtimestamp(1_800_000_000, UTC)
    clock.now -= 600.002
    with pytest.raises(MessageExpired):  # encrypted in the future
        one.unwrap(received)


def test_a_message_of_any_age_can_be_allowed() -> None:
    clock = Clock()
    one = encryption(clock, fresh_seconds=None)
    received = delivered(one.wrap(a_message()))
    clock.now += 10**9
    assert one.unwrap(received).body == b"a secret"


def test_old_keys_still_decrypt_after_a_rotation() -> None:
    before = delivered(encryption().wrap(a_message()))
    both = Encryption({"k1": OLD, "k2": NEW}, encrypt_with="k2", clock=Clock())
    after = delivered(both.wrap(a_message()))
    assert after.attributes[ENCRYPTED] == "k2"
    assert both.unwrap(before).body == both.unwrap(after).body == b"a secret"
    with pytest.raises(KeyNotFound) as caught:
        encryption().unwrap(after)
    assert caught.value.key_id == "k2"


def test_a_replay_is_refused_and_a_repeated_delivery_is_not() -> None:
    clock = Clock()
    one = encryption(clock, track_nonces=True, fresh_seconds=None)
    wrapped = one.wrap(a_message())
    one.unwrap(delivered(wrapped, number=5))
    one.unwrap(delivered(wrapped, number=5, count=2))
    one.unwrap(delivered(wrapped, number=5, count=2))  # released in between
    for _ in range(2):
        with pytest.raises(NonceReused):
            one.unwrap(delivered(wrapped, number=6))
    clock.now += module.NONCE_SECONDS
    one.unwrap(delivered(wrapped, number=7))


def test_without_sequence_numbers_the_delivery_count_tells_a_replay() -> None:
    one = encryption(track_nonces=True)
    wrapped = one.wrap(a_message())
    one.unwrap(delivered(wrapped, number=0, count=1))
    one.unwrap(delivered(wrapped, number=0, count=2))
    with pytest.raises(NonceReused):
        one.unwrap(delivered(wrapped, number=0, count=1))


def test_what_was_peeked_can_be_received() -> None:
    one = encryption(track_nonces=True)
    received = delivered(one.wrap(a_message()), number=0)
    handle = msgspec.structs.replace(received.receipt_handle, handle="")
    for _ in range(2):
        one.unwrap(msgspec.structs.replace(received, receipt_handle=handle))
    assert one.unwrap(received).body == b"a secret"


def test_nonces_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NONCES_MAX", 3)
    one = encryption(track_nonces=True)
    wrapped = [one.wrap(a_message()) for _ in range(4)]
    for number, each in enumerate(wrapped, 1):
        one.unwrap(delivered(each, number=number))
    assert one._nonces is not None
    assert len(one._nonces._seen) == 3
    with pytest.raises(NonceReused):
        one.unwrap(delivered(wrapped[3], number=9))
    one.unwrap(delivered(wrapped[0], number=9))  # forgotten


def test_a_version_to_come_is_refused() -> None:
    received = delivered(Message(b"QRE1\x02" + bytes(60), {ENCRYPTED: "k1"}))
    with pytest.raises(UnsupportedVersion) as caught:
        encryption().unwrap(received)
    assert caught.value.version == 2


@pytest.mark.parametrize(
    "body",
    [
        b"plain",
        b"QRE1",
        b"QRE1\x01",
        b"QRE1\x01\x02k1" + bytes(12 + 8 + 15),
        b"QRE1\x01\xffk1" + bytes(50),
        b"QRE1\x01\x00" + bytes(50),
        b"QRE1\x01\x02\xff\xff" + bytes(50),
    ],
)
def test_an_envelope_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidEnvelope):
        encryption().unwrap(delivered(Message(body, {ENCRYPTED: "k1"})))


def test_a_mark_that_was_taken_off_or_changed_helps_nobody() -> None:
    one = encryption(plaintext="allow")
    received = delivered(one.wrap(a_message()))
    assert one.unwrap(msgspec.structs.replace(received, attributes={})).body == b"a secret"
    with pytest.raises(InvalidEnvelope):
        one.unwrap(msgspec.structs.replace(received, attributes={ENCRYPTED: "k2"}))


def test_plaintext_is_refused_unless_it_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    plain = delivered(a_message())
    one = encryption()
    with pytest.raises(PlaintextRefused):
        one.unwrap(plain)
    assert one.plaintext_count == 1
    with caplog.at_level(logging.DEBUG):
        allows = encryption(plaintext="allow")
        assert allows.unwrap(plain) is plain
        assert allows.plaintext_count == 1
        assert not caplog.records
        alerts = encryption(plaintext="alert")
        assert alerts.unwrap(plain) is plain
        assert alerts.plaintext_count == 1
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert vars(record)["message_id"] == plain.message_id
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("keys", {"keys": {"k": OLD[:31]}}),
        ("keys", {"keys": {"k": "x" * 32}}),
        ("keys", {"keys": {"": OLD}}),
        ("keys", {"keys": {"k" * 65: OLD}}),
        ("keys", {"keys": {"a b": OLD}}),
        ("encrypt_with", {"keys": {}}),
        ("encrypt_with", {"keys": {"a": OLD, "b": NEW}}),
        ("encrypt_with", {"keys": {"a": OLD}, "encrypt_with": "b"}),
        ("fresh_seconds", {"keys": {"a": OLD}, "fresh_seconds": 0}),
        ("plaintext", {"keys": {"a": OLD}, "plaintext": "ignore"}),
    ],
)
def test_a_bad_setting_is_named_and_no_key_is_shown(field: str, arguments: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Encryption(**arguments)
    assert caught.value.field == field
    assert "xxx" not in str(caught.value)


def test_keys_are_shown_nowhere_and_not_written_down() -> None:
    one = Encryption({"k1": CANARY}, clock=Clock())
    shown = [repr(one), str(one), repr(vars(one)), f"{one._keys}"]
    try:
        one.unwrap(delivered(Encryption({"k1": OLD}, clock=Clock()).wrap(a_message())))
    except QueueError as error:
        told = traceback.TracebackException.from_exception(error, capture_locals=True)
        shown += ["".join(told.format())]
    assert len(shown) == 5
    assert not [text for text in shown if "canary" in text]
    for write in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            write(one)


def test_keys_can_be_wiped() -> None:
    mine = bytearray(OLD)
    one = Encryption({"k1": mine}, clock=Clock())
    wrapped = one.wrap(a_message())
    held = one._keys["k1"]._bytes
    assert held == OLD
    one.close()
    assert held == bytes(32)
    assert mine == OLD  # the caller's own
    for use in (lambda: one.wrap(a_message()), lambda: one.unwrap(delivered(wrapped))):
        with pytest.raises(KeyNotFound):
            use()


def test_a_client_without_keys_says_which_is_missing() -> None:
    with pytest.raises(KeyNotFound) as caught:
        Wrapping().unwrap(delivered(encryption().wrap(a_message())))
    assert caught.value.key_id == "k1"


def test_a_client_encrypts_and_compresses_what_it_sends() -> None:
    long = b"again and again " * 1_000

    async def main() -> tuple[ReceivedMessage | None, list[ReceivedMessage]]:
        keys = Encryption({"k1": OLD})
        client = create_client(URL, compression=Compression(), encryption=keys)
        async with client:
            sent = await client.send_message("orders", Message(long).with_correlation_id("c"))
            raw = await client._provider.peek(client.receiver("orders")._source, 1, 0)
            received = await client.receive_message("orders")
            assert received is not None
            assert received.message_id == sent
            return received, raw

    received, [raw] = asyncio.run(main())
    assert received is not None
    assert received.body == long
    assert not received.attributes
    assert raw.body.startswith(b"QRE1")
    assert len(raw.body) < 1_000


def test_one_that_cannot_be_read_does_not_hold_up_the_others() -> None:
    async def main() -> None:
        keys = Encryption({"k1": OLD})
        async with create_client(f"{URL}&max_delivery_count=1", encryption=keys) as client:
            client._wrapping = Wrapping()
            await client.send_message("orders", Message(b"plain"))
            client._wrapping = Wrapping(encryption=keys)
            await client.send_message("orders", Message(b"good"))
            [received] = await client.receive_messages("orders", 2)
            assert received.body == b"good"
            assert [each for each in client.figures.all() if each.outcome == "PlaintextRefused"]
            with pytest.raises(PlaintextRefused):  # abandoned, it became a dead letter
                await client.receive_message("orders", dead_letter=True)

    asyncio.run(main())


def test_without_encryption_nothing_of_it_is_imported() -> None:
    program = (
        "import asyncio, sys, posthouse\n"
        "async def main():\n"
        "    async with posthouse.create_test_client() as client:\n"
        "        await client.send_message('q', posthouse.Message(b'x'))\n"
        "        assert (await client.receive_message('q')).body == b'x'\n"
        "asyncio.run(main())\n"
        "print('cryptography' in sys.modules, 'posthouse.client.encryption' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.split() == [b"False", b"False"]
