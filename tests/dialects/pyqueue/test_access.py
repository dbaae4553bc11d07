"""Who may come, and what each may do: asked in every command."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from posthouse.broker.access import BROKER, ROOT
from posthouse.core.namespaces import RevokeAccount
from posthouse.dialects.pyqueue import peer as peers
from posthouse.dialects.pyqueue.credentials import Signing
from posthouse.dialects.pyqueue.peer import _HOT, _SLOW
from tests.dialects.pyqueue.client import frame
from tests.dialects.pyqueue.rig import ROOT_KEY, Client, Rig

SECRET = "a secret that is long enough to sign with, by any of the algorithms there are"
KEY = "the key of somebody else"
NEEDS = "Authentication required. Send AUTH command first."


def with_rig(work: Callable[[Rig], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with await Rig.open(**{"is_open": False, **settings}) as rig:
            await rig.add("web", KEY, ("orders*", ["send", "listen"]), ("news.*", ["send"]))
            await work(rig)

    asyncio.run(run())


async def known(rig: Rig, key: str) -> Client:
    client = rig.connect()
    await client.ok("AUTH", {"type": "apikey", "value": key})
    return client


def token(key: Any = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    return jwt.encode({"principal": "web", "exp": time.time() + 60, **claims}, key, algorithm)


def a_key() -> tuple[str, str]:
    made = rsa.generate_private_key(65537, 2048)
    private = made.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = made.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return private.decode(), public.decode()


# Coming in.


@pytest.mark.parametrize("word", sorted(set(_SLOW) | {each.decode() for each in _HOT} - {"AUTH"}))
def test_nothing_is_done_for_who_has_not_said_who_he_is(word: str) -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        answers = await client.say(frame(word, b"default") + frame("PING"))
        assert [each.payload.decode() for each in answers] == [NEEDS]
        assert client.transport.closed

    with_rig(work)


@pytest.mark.parametrize("payload", [
    {"type": "apikey", "value": KEY}, f"ApiKey {KEY}".encode(), f"apikey  {KEY} ".encode(),
])  # fmt: skip
def test_a_key_says_who_it_is(payload: Any) -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        told = await client.ok("AUTH", payload)
        assert told == {"authenticated": True, "principal": "web"}
        await client.push("x", queue="orders")

    with_rig(work)


def test_a_key_of_one_entity_is_for_the_clients_that_know_it() -> None:
    async def work(rig: Rig) -> None:
        root = await known(rig, ROOT_KEY)
        await root.push("x", queue="orders")
        await rig.add("rule@default/orders", "the key of an entity", ("orders", ["send"]))
        text = await rig.connect().error("AUTH", b"ApiKey the key of an entity")
        assert text == "Authentication failed"

    with_rig(work)


def test_the_root_may_do_everything() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        told = await client.ok("AUTH", {"type": "apikey", "value": ROOT_KEY})
        assert told["principal"] == ROOT
        await client.push("x", queue="anything")

    with_rig(work)


@pytest.mark.parametrize(("payload", "text"), [
    (b"", "AUTH command requires payload"), ({"type": "magic", "value": "x"}, "Invalid auth type"),
    (b"{nonsense", "Invalid auth payload"), ({"type": "apikey"}, "Invalid auth payload"),
    (b"Basic abc", "Invalid auth type"), (b"ApiKey", "Invalid auth payload"),
    (b"\xff\xff x", "Invalid auth payload"), (b"ApiKey wrong", "Authentication failed"),
    ({"type": "apikey", "value": ""}, "Authentication failed"),
    ({"type": "apikey", "value": "x" * 9_000}, "Authentication failed"),
    ({"type": "jwt", "value": "not.a.token"}, "Authentication failed"),
    (b"Bearer x", "Authentication failed"),
])  # fmt: skip
def test_credentials_that_do_not_fit_are_told_so(payload: Any, text: str) -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        assert await client.error("AUTH", payload) == text
        assert await client.error("PING") == NEEDS
        assert client.transport.closed

    with_rig(work, signing=Signing(SECRET))


def test_who_tries_too_often_is_cut_off() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        answers = await client.say(frame("AUTH", b"ApiKey wrong") * 9)
        assert len(answers) == peers.AUTH_TRIES_MAX
        assert client.transport.closed

    with_rig(work)


def test_who_never_says_who_he_is_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        client.peer.check(time.time())
        assert not client.transport.is_closing()
        client.info.handshake_seconds = -1.0
        client.peer.check(time.time())
        assert client.transport.is_closing()

    with_rig(work)


def test_a_stranger_may_send_only_small_frames() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        [told] = await client.say(b"AUTH 70000 ")
        assert told.payload == b"Invalid message or message too large"
        assert client.transport.closed

    with_rig(work)


def test_with_tls_everybody_is_asked() -> None:
    async def work(rig: Rig) -> None:
        assert await rig.connect().ok("PING") == "PONG"
        assert await rig.connect(is_tls=True).error("PING") == NEEDS

    with_rig(work, is_open=True)


# Tokens.


def test_a_token_says_who_it_is_by_either_algorithm() -> None:
    private, public = a_key()

    async def work(rig: Rig) -> None:
        for made in (token(), token(private, "RS256")):
            client = rig.connect()
            assert (await client.ok("AUTH", {"type": "jwt", "value": made}))["principal"] == "web"
            assert (await rig.connect().ok("AUTH", f"Bearer {made}".encode()))["authenticated"]

    with_rig(work, signing=Signing(SECRET, public))


def test_a_token_is_refused_where_anything_about_it_is_wrong() -> None:
    private, public = a_key()
    plain = jwt.encode({"principal": "web", "exp": time.time() + 60}, "", "none")
    unending = jwt.encode({"principal": "web"}, SECRET, "HS256")
    nameless = jwt.encode({"exp": time.time() + 60}, SECRET, "HS256")
    wrong = [
        token(SECRET + "x"), token(exp=time.time() - 1), token(principal="nobody"),
        token(principal=ROOT), token(principal=["web"]), token(algorithm="HS512"), plain, unending,
        nameless, token(nbf=time.time() + 60), token(private, "RS256"), token()[:-2] + "xx",
    ]  # fmt: skip

    async def work(rig: Rig) -> None:
        for each in wrong:
            text = await rig.connect().error("AUTH", {"type": "jwt", "value": each})
            assert text == "Authentication failed", each

    async def with_public_key(rig: Rig) -> None:
        # A token that was signed with the public key as if it were a secret.
        import hmac
        from base64 import urlsafe_b64encode
        from hashlib import sha256

        head, body, _ = token().split(".")
        signed = hmac.new(public.encode(), f"{head}.{body}".encode(), sha256).digest()
        forged = f"{head}.{body}.{urlsafe_b64encode(signed).decode().rstrip('=')}"
        for each in (forged, token()):
            text = await rig.connect().error("AUTH", {"type": "jwt", "value": each})
            assert text == "Authentication failed"

    with_rig(work, signing=Signing(SECRET))
    with_rig(with_public_key, signing=Signing(None, public))


def test_a_token_is_for_the_audience_and_of_the_issuer_that_are_configured() -> None:
    def expecting(good: dict[str, Any], *bad: dict[str, Any], **signing: str) -> None:
        async def work(rig: Rig) -> None:
            client = rig.connect()
            await client.ok("AUTH", {"type": "jwt", "value": token(**good)})
            for claims in bad:
                text = await rig.connect().error("AUTH", {"type": "jwt", "value": token(**claims)})
                assert text == "Authentication failed", claims

        with_rig(work, signing=Signing(SECRET, **signing))

    both = {"aud": "us", "iss": "them"}
    expecting({"iss": "anybody"}, both, {"aud": "us"})
    expecting({"aud": "us"}, {}, {"aud": "others"}, {"aud": []}, {"aud": ["usa"]}, audience="us")
    expecting({"aud": ["others", "us"]}, audience="us")
    expecting({"iss": "them"}, {}, {"iss": "us"}, {"iss": "them "}, issuer="them")
    expecting(both, {"aud": "us"}, {"iss": "them"}, {}, audience="us", issuer="them")


def test_a_connection_goes_on_with_a_newer_token() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        await client.ok("AUTH", {"type": "jwt", "value": token()})
        await client.ok("AUTH", {"type": "jwt", "value": token(exp=time.time() + 600)})
        client.peer.check(time.time() + 61)
        await client.push("x", queue="orders")

    with_rig(work, signing=Signing(SECRET))


def test_a_connection_ends_with_its_token_and_its_account() -> None:
    async def work(rig: Rig) -> None:
        client = rig.connect()
        await client.ok("AUTH", {"type": "jwt", "value": token()})
        client.peer.check(time.time() + 30)
        await client.push("x", queue="orders")
        client.peer.check(time.time() + 61)
        assert await client.error("PUSH", {"payload": "x", "queue": "orders"}) == NEEDS
        assert client.transport.closed
        by_key = await known(rig, KEY)
        assert rig.engine is not None
        await rig.engine.ask(BROKER, "", RevokeAccount("web"))
        text = await by_key.error("PUSH", {"payload": "x", "queue": "orders"})
        assert text == NEEDS
        assert by_key.transport.closed

    with_rig(work, signing=Signing(SECRET))


# Rights.

# Every command, with what only somebody with more rights may do, on what.
REFUSED: dict[str, tuple[Any, str]] = {
    "PUSH": ({"payload": "x", "queue": "other"}, "other"),
    "PUSH_BATCH": ({"tasks": [{"payload": "x", "queue": "other"}]}, "other"),
    "SCHEDULE": ({"payload": "x", "queue": "other", "schedule": "every 5 seconds"}, "other"),
    "PUBLISH": ({"topic": "other", "message": "x"}, "other"),
    "SUBSCRIBE": ({"topic": "news.*", "queue": "orders"}, "news.*"),
    "UNSUBSCRIBE": ({"topic": "t"}, "t"),
    "PULL": ({"queue": "other"}, "other"),
    "PULL_BATCH": ({"queue": "other"}, "other"),
    "ACK": ("held", "other"),
    "NACK": ("held", "other"),
    "ADMIN_QUEUE_INFO": (b"other", "other"),
    "ADMIN_PURGE_QUEUE": (b"orders", "orders"),
    "ADMIN_DELETE_QUEUE": (b"orders", "orders"),
    "ADMIN_GET_TASK": ("held", "other"),
    "ADMIN_CANCEL_TASK": ("held", "other"),
    "ADMIN_LIST_TASKS": ({"queue": "other"}, "other"),
    "ADMIN_GET_DLQ": ({"queue": "other"}, "other"),
    "ADMIN_REQUEUE_DLQ": ({"queue": "orders"}, "orders"),
    "ADMIN_PURGE_DLQ": ({"queue": "orders"}, "orders"),
    "ADMIN_SET_QUEUE_TTL": ({"queue": "orders", "ttl": 5}, "orders"),
    "ADMIN_SET_QUEUE_LIMIT": ({"queue": "new", "max_depth": 5}, "new"),
    "ADMIN_REPLAY": ({}, "*"),
}
# Those show what one has a right on, or concern nobody else's tasks.
FOR_ALL = {
    "PING", "HEARTBEAT", "STATS", "BEGIN_TX", "COMMIT_TX", "ROLLBACK_TX", "ADMIN_LIST_QUEUES",
    "ADMIN_LIST_WORKERS", "ADMIN_HEALTH", "ADMIN_QUEUE_METRICS", "AUTH",
}  # fmt: skip


def test_every_command_is_in_the_matrix() -> None:
    assert set(REFUSED) | FOR_ALL == set(_SLOW) | {each.decode() for each in _HOT}


@pytest.mark.parametrize("word", sorted(REFUSED))
def test_who_has_no_right_is_refused_and_nothing_changes(word: str) -> None:
    payload, on = REFUSED[word]

    async def work(rig: Rig) -> None:
        root, web = await known(rig, ROOT_KEY), await known(rig, KEY)
        held = await root.push("x", queue="other")
        await root.push("x", queue="orders")
        await root.pull("other")
        await root.ok("SUBSCRIBE", {"topic": "t", "queue": "other"})
        before = await root.ok("ADMIN_LIST_QUEUES")
        given = held if payload == "held" else payload
        text = await web.error(word, given)
        assert text == f"Unauthorized: web cannot {word} on {on}"
        assert await root.ok("ADMIN_LIST_QUEUES") == before

    with_rig(work)


def test_a_right_on_some_queues_is_enough_for_those() -> None:
    async def work(rig: Rig) -> None:
        root, web = await known(rig, ROOT_KEY), await known(rig, KEY)
        await root.push("x", queue="other")
        await web.push("x", queue="orders-1")
        job = await web.pull("orders-1")
        assert await web.ok("ACK", job["task_id"]) == "Task acknowledged"
        assert await web.error("ACK", job["task_id"]) == "Task not found"
        assert list((await web.ok("ADMIN_LIST_QUEUES"))["queues"]) == ["orders-1"]
        assert list((await web.ok("STATS"))["queues"]) == ["orders-1"]
        assert await web.error("ADMIN_QUEUE_METRICS", b"other") == "Queue 'other' not found"
        assert (await web.ok("ADMIN_LIST_TASKS"))["count"] == 0
        for queue in ("other", "orders-1"):
            await root.ok("SUBSCRIBE", {"topic": "news.#", "queue": queue})
        assert (await web.ok("PUBLISH", {"topic": "news.a", "message": "m"}))["published"] == 1

    with_rig(work)


def test_a_transaction_is_for_who_began_it() -> None:
    async def work(rig: Rig) -> None:
        await rig.add("eve", "the key of another one", ("orders*", ["send", "listen"]))
        web, eve = await known(rig, KEY), await known(rig, "the key of another one")
        id = (await web.ok("BEGIN_TX"))["transaction_id"]
        for word in ("COMMIT_TX", "ROLLBACK_TX"):
            assert "Transaction" in await eve.error(word, {"transaction_id": id})
        push = {"payload": "x", "queue": "orders", "transaction_id": id}
        assert "Transaction" in await eve.error("PUSH", push)
        await web.ok("PUSH", push)
        assert (await web.ok("COMMIT_TX", {"transaction_id": id}))["operations"] == 1

    with_rig(work)
