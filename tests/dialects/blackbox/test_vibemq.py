"""VibeMQ's protocol from outside, in all three ways to write its frames."""

import gzip
import json
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest

from tests.dialects.blackbox.vibemq import (
    GENERATIONS,
    NOTHING,
    Client,
    Frame,
    Generation,
    Json,
    Refused,
    Type,
)
from tests.dialects.servicebus.bus import eventually
from tests.server.running import Running, development, running
from tests.server.wire import trusting_all

BODY_MAX = 1_048_576
ROUND_ROBIN, FAN_OUT_WITH_ACK, FAN_OUT_WITHOUT_ACK, PRIORITY_BASED = range(4)
DROP_OLDEST, DROP_NEWEST, BLOCK_PUBLISHER, REDIRECT_TO_DLQ = range(4)
MANY = {f"{at}": "v" for at in range(51)}  # headers
_numbers = count(1)
each_generation = pytest.mark.parametrize("generation", GENERATIONS)


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
    with running("--dev", "--memory") as made:
        clock(made, frozen=True)  # a machine that is busy does not end what a test holds
        yield made


@pytest.fixture
def client(broker: Running) -> Iterator[Client]:
    with Client(broker) as made:
        yield made


@pytest.fixture
def queue() -> str:
    return f"letters-{next(_numbers)}"


def clock(broker: Running, **form: Json) -> None:
    reply = broker.call("POST", "/api/v1/namespaces/default/clock", form)
    assert reply.status == 200, reply


def advance(broker: Running, seconds: float) -> None:
    clock(broker, advance_ms=int(seconds * 1000))


def compression(names: str) -> dict[str, str]:
    return {"supported-compression": names}


def login(name: str, password: str) -> dict[str, str]:
    return {"authUsername": name, "authPassword": password}


def left(client: Client, queue: str) -> int:
    found: int = client.info(queue)["messageCount"]
    return found


# Frames.


def test_a_ping_and_its_pong_to_the_byte(broker: Running) -> None:
    with Client(broker, connect=False) as client:  # it is allowed before Connect
        client.socket.sendall(bytes.fromhex("0000000E 00 01 0A 0002 6331 0000 00000000 0000"))
        pong = bytes.fromhex("0000000E 00 01 0B 0002 6331 0000 00000000 0000")
        come = b""
        while len(come) < len(pong):
            come += client.socket.recv(100)
        assert come == pong


@each_generation
def test_a_message_is_published_delivered_and_acknowledged(
    broker: Running, queue: str, generation: Generation
) -> None:
    with Client(broker, generation) as sender, Client(broker, generation) as subscriber:
        subscriber.subscribe(queue)
        headers = {"priority": "high", "correlationId": "c7", "x": "ü"}
        payload = {"to": "Zürich", "list": [1, 2.5, None, True], "deep": {"a": {"b": []}}}
        sent = sender.publish(queue, payload, **headers)
        frame = subscriber.deliver()
        assert frame == Frame(Type.Deliver, sent, queue, payload, headers)
        assert left(sender, queue) == 1
        subscriber.ack(frame)
        eventually(lambda: left(sender, queue) == 0)


@each_generation
@pytest.mark.parametrize("payload", ["text", "", 0, 17, -2.5, True, False, [], {}, [1, "a"]])
def test_any_json_is_a_payload(
    broker: Running, queue: str, generation: Generation, payload: Json
) -> None:
    with Client(broker, generation) as client:
        client.publish(queue, payload)
        client.subscribe(queue)
        frame = client.deliver()
        assert frame.payload == payload
        assert type(frame.payload) is type(payload)


@each_generation
def test_it_is_the_same_over_tls_on_the_same_port(
    broker: Running, client: Client, queue: str, generation: Generation
) -> None:
    tls = trusting_all()
    with pytest.raises(Refused) as refused:
        Client(broker, generation, tls=tls)
    assert refused.value.code == "AUTH_REQUIRED"
    root = {"authUsername": "RootManageSharedAccessKey", "authPassword": "SAS_KEY_VALUE"}
    with Client(broker, generation, tls=tls, headers=root) as hidden:
        hidden.subscribe(queue)
        client.publish(queue, "in the open")
        assert hidden.take(1) == ["in the open"]
        eventually(lambda: left(client, queue) == 0)
        hidden.publish(f"{queue}-back", "x" * 100_000)
        client.subscribe(f"{queue}-back")
        assert client.take(1) == ["x" * 100_000]


def test_generations_reach_each_other(broker: Running, queue: str) -> None:
    for sending in GENERATIONS:
        for receiving in GENERATIONS:
            with Client(broker, sending) as sender, Client(broker, receiving) as receiver:
                sent = sender.publish(queue, {"by": sending}, note="n")
                receiver.subscribe(queue)
                frame = receiver.deliver()
                assert (frame.id, frame.payload) == (sent, {"by": sending})
                assert frame.headers == {"note": "n"}
                receiver.ack(frame)
                receiver.unsubscribe(queue)


@pytest.mark.parametrize("word", ["publish", "Publish", "PUBLISH"])
def test_json_types_are_read_in_any_case(broker: Running, queue: str, word: str) -> None:
    with Client(broker, "json") as client:
        form = {"id": "m1", "type": word, "queue": queue, "payload": 1, "schemaVersion": "1.0"}
        body = json.dumps(form).encode()
        client.socket.sendall(struct.pack(">I", len(body)) + body)
        assert client.answer("m1").type is Type.PublishAck


@each_generation
def test_frames_may_be_cut_anywhere(broker: Running, queue: str, generation: Generation) -> None:
    frames = [Frame(Type.Connect, "c"), Frame(Type.Publish, "p", queue, {"a": 1}, {"k": "v"})]
    with Client(broker, generation, connect=False) as client:
        whole = b"".join(map(client.bytes_of, frames))
    for at in range(1, len(whole)):
        with Client(broker, generation, connect=False) as client:
            client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.socket.sendall(whole[:at])
            client.socket.sendall(whole[at:])
            assert client.read().type is Type.ConnectAck
            assert client.answer("p").type is Type.PublishAck
    with Client(broker, generation, connect=False) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(whole)):
            client.socket.sendall(whole[at : at + 1])
        assert client.read().type is Type.ConnectAck
        assert client.answer("p").type is Type.PublishAck
        assert left(client, queue) == len(whole)


def test_answers_come_in_order_however_many_requests_there_are(client: Client, queue: str) -> None:
    ids = [uuid4().hex for _ in range(300)]
    client.write(*(Frame(Type.Publish, each, queue, at) for at, each in enumerate(ids)))
    assert [client.read().id for _ in ids] == ids
    client.subscribe(queue)
    assert client.take(300) == list(range(300))


@pytest.mark.parametrize(
    "lie",
    [
        struct.pack(">IB", 0, 0), struct.pack(">IB", 1, 0) + b"\1",
        struct.pack(">IB", BODY_MAX + 1, 0), b"\xff\xff\xff\xff\0",
        struct.pack(">IB", 2, 3) + b"\1\x0a",  # no such flag
        struct.pack(">IB", 4, 0) + b"\1\x0a\xff\xff",  # an id that is not there
        struct.pack(">IB", 12, 0) + b"\1\x14\0\0\0\0\xff\xff\xff\xff\0\0",  # nor this payload
        struct.pack(">IB", 12, 0) + b"\1\x0a\0\0\0\0\0\0\0\0\xff\xff",  # nor these headers
        struct.pack(">IB", 3, 1) + b"xyz",  # not gzip
    ],
)  # fmt: skip
def test_a_frame_that_cannot_be_ends_its_connection(
    broker: Running, client: Client, lie: bytes
) -> None:
    with Client(broker, headers=compression("gzip")) as liar:
        liar.socket.sendall(lie)
        assert liar.is_ended()
    assert client.ask(Type.Ping).type is Type.Pong  # nobody else's


# Connecting.


@each_generation
def test_before_connect_there_is_ping_and_nothing_else(
    broker: Running, generation: Generation
) -> None:
    with Client(broker, generation, connect=False) as client:
        assert client.ask(Type.Ping).type is Type.Pong
        with pytest.raises(Refused) as refused:
            client.ask(Type.Publish, "q", 1)
        assert refused.value.code == "NOT_AUTHENTICATED"


@each_generation
def test_ping_is_answered_with_its_id_and_disconnect_ends(
    broker: Running, generation: Generation
) -> None:
    with Client(broker, generation) as client:
        assert client.ask(Type.Ping).type is Type.Pong
        client.write(Frame(Type.Disconnect, "bye"))
        assert client.is_ended()


def test_gzip_is_negotiated_and_used_for_large_frames(broker: Running, queue: str) -> None:
    large = {"text": "x" * 5_000}
    with Client(broker, headers=compression("gzip")) as client:
        assert client.connected.headers == {"negotiated-compression": "gzip"}
        client.compress = True
        client.publish(queue, "small")
        client.publish(queue, large)
        client.subscribe(queue)
        assert set(client.flags) == {0}
        assert client.deliver().payload == "small"
        assert client.flags[-1] == 0
        assert client.deliver().payload == large
        assert client.flags[-1] == 1
    with Client(broker) as plain:
        assert plain.connected.headers == {}
        plain.subscribe(queue)
        assert [plain.deliver().payload for _ in range(2)] == ["small", large]
        assert set(plain.flags) == {0}
    with Client(broker, headers=compression("lz4,gzip")) as other:
        assert other.connected.headers == {"negotiated-compression": "gzip"}
    with Client(broker, headers=compression("lz4")) as other:
        assert other.connected.headers == {}


def test_what_unpacks_to_more_than_64_megabytes_is_not_unpacked(
    broker: Running, client: Client
) -> None:
    bomb = gzip.compress(bytes(65 * 1024 * 1024), 9)
    assert len(bomb) < BODY_MAX
    with Client(broker, headers=compression("gzip")) as liar:
        liar.socket.sendall(struct.pack(">IB", len(bomb), 1) + bomb)
        assert liar.is_ended()
    assert client.ask(Type.Ping).type is Type.Pong


def test_a_broker_that_stops_says_so() -> None:
    with running("--dev", "--memory") as broker, Client(broker) as client:
        stopping = threading.Thread(target=broker.stop, args=(signal.SIGTERM,))
        stopping.start()
        frame = client.read()
        stopping.join()
        assert frame.type is Type.Disconnect
        assert frame.headers == {"reason": "server_shutdown"}
        assert client.is_ended()


# Queues.


@each_generation
def test_a_queue_is_made_looked_at_and_deleted(
    broker: Running, queue: str, generation: Generation
) -> None:
    options = {
        "mode": PRIORITY_BASED, "maxQueueSize": 7, "messageTtl": "1.02:03:04.5",
        "enableDeadLetterQueue": True, "deadLetterQueueName": f"{queue}.dead",
        "overflowStrategy": DROP_NEWEST, "maxRetryAttempts": 5,
    }  # fmt: skip
    with Client(broker, generation) as client:
        assert client.info(queue) is None  # there is none
        client.create(queue, **options)
        info = client.info(queue)
        created = info.pop("createdAt")
        assert created.endswith("Z")
        ttl = info.pop("messageTtl")
        assert ttl.startswith("1.02:03:04.5")
        assert info == {
            "name": queue, "messageCount": 0, "subscriberCount": 0,
            "deliveryMode": PRIORITY_BASED, "maxSize": 7, "enableDeadLetterQueue": True,
            "deadLetterQueueName": f"{queue}.dead", "overflowStrategy": DROP_NEWEST,
            "maxRetryAttempts": 5,
        }  # fmt: skip
        client.create(queue)  # it is there
        client.create(queue, **options)
        assert refused(client, Type.CreateQueue, queue, {"mode": ROUND_ROBIN}) == "QUEUE_EXISTS"
        assert client.info(queue)["deliveryMode"] == PRIORITY_BASED
        assert queue in client.ask(Type.ListQueues).payload
        frame = client.ask(Type.DeleteQueue, queue)
        assert (frame.type, frame.queue) == (Type.DeleteQueue, queue)
        assert client.info(queue) is None
        assert queue not in client.ask(Type.ListQueues).payload


def test_a_queue_is_made_by_publishing_and_by_subscribing(client: Client, queue: str) -> None:
    client.publish(f"{queue}-p", 1)
    client.subscribe(f"{queue}-s")
    info = client.info(f"{queue}-p")
    assert (info["messageCount"], info["subscriberCount"]) == (1, 0)
    assert (info["deliveryMode"], info["maxSize"]) == (ROUND_ROBIN, 10_000)
    assert (info["overflowStrategy"], info["maxRetryAttempts"]) == (DROP_OLDEST, 3)
    info = client.info(f"{queue}-s")
    assert (info["messageCount"], info["subscriberCount"]) == (0, 1)
    client.unsubscribe(f"{queue}-s")
    eventually(lambda: client.info(f"{queue}-s")["subscriberCount"] == 0)
    client.publish(f"{queue}-s", 1)
    assert client.gets_nothing()


def test_subscribers_take_turns(broker: Running, client: Client, queue: str) -> None:
    with Client(broker) as one, Client(broker) as other:
        one.subscribe(queue)
        other.subscribe(queue)
        for at in range(6):
            client.publish(queue, at)
        got = [one.take(3), other.take(3)]
        assert sorted(got) == [[0, 2, 4], [1, 3, 5]]
        assert one.gets_nothing()
        assert other.gets_nothing()
    eventually(lambda: left(client, queue) == 0)


def test_in_a_fan_out_everybody_has_to_acknowledge(
    broker: Running, client: Client, queue: str
) -> None:
    client.create(queue, mode=FAN_OUT_WITH_ACK)
    with Client(broker) as one, Client(broker) as other:
        one.subscribe(queue)
        other.subscribe(queue)
        sent = client.publish(queue, "news")
        first, second = one.deliver(), other.deliver()
        assert (first.id, first.payload) == (second.id, second.payload) == (sent, "news")
        one.ack(first)
        assert one.gets_nothing()
        advance(broker, 31)  # who has not acknowledged gets it again, who has does not
        advance(broker, 10)
        again = other.deliver()
        assert (again.id, again.payload) == (sent, "news")
        assert one.gets_nothing()
        other.ack(again)
        advance(broker, 31)
        assert other.gets_nothing()


def test_a_fan_out_without_acknowledgement_forgets(
    broker: Running, client: Client, queue: str
) -> None:
    client.create(queue, mode=FAN_OUT_WITHOUT_ACK)
    with Client(broker) as one, Client(broker) as other:
        one.subscribe(queue)
        other.subscribe(queue)
        for at in range(3):
            client.publish(queue, at)
        for each in (one, other):
            assert [each.deliver().payload for _ in range(3)] == [0, 1, 2]
        advance(broker, 100)
        assert one.gets_nothing()
        assert other.gets_nothing()
    eventually(lambda: left(client, queue) == 0)


def test_priorities_go_first(client: Client, queue: str) -> None:
    client.create(queue, mode=PRIORITY_BASED)
    for at, priority in enumerate(["low", "Normal", "HIGH", "critical"] * 2):
        client.publish(queue, at, priority=priority)
    client.publish(queue, 8)  # as normal
    client.subscribe(queue)
    assert client.take(9) == [3, 7, 2, 6, 1, 5, 8, 0, 4]


def test_who_comes_late_gets_what_is_there_at_once(client: Client, queue: str) -> None:
    for at in range(5):
        client.publish(queue, at)
    client.subscribe(queue)
    assert client.take(5) == [0, 1, 2, 3, 4]


def test_what_a_client_leaves_behind_returns_to_its_place(
    broker: Running, client: Client, queue: str
) -> None:
    for at in range(4):
        client.publish(queue, at)
    with Client(broker) as leaving:
        leaving.subscribe(queue)
        frames = [leaving.deliver() for _ in range(4)]
        leaving.ack(frames[1])
        eventually(lambda: left(client, queue) == 3)
        client.publish(queue, 4)
    eventually(lambda: client.info(queue)["subscriberCount"] == 0)
    client.subscribe(queue)
    assert client.take(4) == [0, 2, 3, 4]  # at once, in their order


def test_a_header_may_say_what_is_acknowledged(client: Client, queue: str) -> None:
    client.subscribe(queue)
    sent = client.publish(queue, 1)
    client.deliver()
    client.write(Frame(Type.Ack, uuid4().hex, headers={"messageId": sent}))
    eventually(lambda: left(client, queue) == 0)


def test_messages_of_one_id_are_acknowledged_one_by_one(client: Client, queue: str) -> None:
    for at in range(2):
        client.write(Frame(Type.Publish, "same", queue, at))
        assert client.answer("same").type is Type.PublishAck
    client.subscribe(queue)
    frames = [client.deliver() for _ in range(2)]
    assert [each.payload for each in frames] == [0, 1]
    client.ack(frames[0])
    eventually(lambda: left(client, queue) == 1)
    client.ack(frames[1])
    eventually(lambda: left(client, queue) == 0)


def test_a_subscription_outlives_its_queue(client: Client, queue: str) -> None:
    client.create(queue)
    client.subscribe(queue)
    client.publish(queue, "held")
    held = client.deliver()
    client.ask(Type.DeleteQueue, queue)
    client.ack(held)  # of what is gone, it says nothing
    assert client.info(queue) is None
    client.create(queue, mode=PRIORITY_BASED)
    client.publish(queue, "anew")
    assert client.take(1) == ["anew"]
    assert client.info(queue)["subscriberCount"] == 1
    client.ask(Type.DeleteQueue, queue)
    client.unsubscribe(queue)
    client.publish(queue, "for nobody")
    assert client.info(queue)["subscriberCount"] == 0
    assert client.gets_nothing()


def test_who_has_unsubscribed_is_not_counted(tmp_path: Path) -> None:
    with running("--dev", "--data", str(tmp_path)) as broker, Client(broker) as client:
        for _ in range(5):
            client.subscribe("letters")
            assert client.info("letters")["subscriberCount"] == 1
            busy = [Frame(Type.Publish, uuid4().hex, "others", "x") for _ in range(20)]
            gone = Frame(Type.Unsubscribe, uuid4().hex, "letters")
            client.write(*busy, gone)  # the broker writes to its disk meanwhile
            while client.read().id != gone.id:
                pass
            asked = Frame(Type.QueueInfo, uuid4().hex, "letters")
            client.write(asked)
            while (said := client.read()).id != asked.id:
                pass
            assert said.payload["subscriberCount"] == 0


def test_who_subscribes_twice_gets_everything_once(client: Client, queue: str) -> None:
    client.subscribe(queue)
    client.subscribe(queue)
    assert client.info(queue)["subscriberCount"] == 1
    client.publish(queue, 1)
    assert client.take(1) == [1]
    assert client.gets_nothing()


# Full queues.


def test_a_full_queue_drops_the_oldest(client: Client, queue: str) -> None:
    client.create(queue, maxQueueSize=2, overflowStrategy=DROP_OLDEST)
    for at in range(4):
        client.publish(queue, at)
    assert left(client, queue) == 2
    client.subscribe(queue)
    assert client.take(2) == [2, 3]


def test_a_full_queue_drops_the_newest_and_does_not_lie_about_it(
    client: Client, queue: str
) -> None:
    client.create(queue, maxQueueSize=2, overflowStrategy=DROP_NEWEST)
    client.publish(queue, 0)
    client.publish(queue, 1)
    with pytest.raises(Refused):
        client.publish(queue, 2)
    client.subscribe(queue)
    assert client.take(2) == [0, 1]
    assert client.gets_nothing()


def test_a_full_queue_blocks_its_publisher(broker: Running, client: Client, queue: str) -> None:
    client.create(queue, maxQueueSize=1, overflowStrategy=BLOCK_PUBLISHER)
    client.publish(queue, 0)
    with Client(broker) as publisher, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(publisher.publish, queue, 1)
        with pytest.raises(TimeoutError):
            waiting.result(NOTHING)
        client.subscribe(queue)
        assert client.take(1) == [0]
        assert waiting.result(20)
        assert client.take(1) == [1]


def test_a_full_queue_redirects_to_its_dead_letters(client: Client, queue: str) -> None:
    dead = f"{queue}.dead"
    client.create(
        queue, maxQueueSize=1, overflowStrategy=REDIRECT_TO_DLQ, enableDeadLetterQueue=True,
        deadLetterQueueName=dead,
    )  # fmt: skip
    client.publish(queue, 0)
    client.publish(queue, 1)
    assert left(client, queue) == 1
    eventually(lambda: left(client, dead) == 1)
    client.subscribe(dead)
    assert client.take(1) == [1]


# Retries.


def test_what_is_not_acknowledged_is_sent_three_times_and_dead_lettered(
    broker: Running, client: Client, queue: str
) -> None:
    dead = f"{queue}.dead"
    client.create(queue, enableDeadLetterQueue=True, deadLetterQueueName=dead)
    client.subscribe(queue)
    sent = client.publish(queue, "sour")
    assert client.deliver().id == sent
    for wait in (0, 4):
        advance(broker, 29 + wait)  # of the 30 s within which it is to be acknowledged
        assert client.gets_nothing()
        advance(broker, 1)
        assert client.deliver().id == sent
    advance(broker, 29)
    assert left(client, queue) == 1
    advance(broker, 1)
    eventually(lambda: left(client, queue) == 0)
    assert client.gets_nothing()
    client.subscribe(dead)
    frame = client.deliver()
    assert (frame.id, frame.payload) == (sent, "sour")
    assert frame.headers["deadLetterReason"] == "MaxRetriesExceeded"
    client.ack(frame)


def test_what_is_too_old_is_not_delivered(broker: Running, client: Client, queue: str) -> None:
    dead = f"{queue}.dead"
    client.create(
        queue, messageTtl="00:00:05", enableDeadLetterQueue=True, deadLetterQueueName=dead
    )
    client.publish(queue, "old")
    advance(broker, 6)
    client.publish(queue, "new")
    client.subscribe(queue)
    assert client.take(1) == ["new"]
    client.subscribe(dead)
    assert client.take(1) == ["old"]


# Refusals: `ask` holds them to the request's id.


@each_generation
@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (Frame(Type.Publish, queue="a b", payload=1), "INVALID_QUEUE"),
        (Frame(Type.Publish, queue="q" * 257, payload=1), "INVALID_QUEUE"),
        (Frame(Type.Publish, payload=1), "INVALID_QUEUE"),
        (Frame(Type.Subscribe), "INVALID_QUEUE"),
        (Frame(Type.Unsubscribe), "INVALID_QUEUE"),
        (Frame(Type.CreateQueue, queue="a/b"), "INVALID_QUEUE"),
        (Frame(Type.CreateQueue, queue="ab", payload={"mode": 4}), "INVALID_PAYLOAD"),
        (Frame(Type.CreateQueue, queue="ab", payload={"messageTtl": "x"}), "INVALID_PAYLOAD"),
        (Frame(Type.Deliver, queue="ab"), "UNKNOWN_COMMAND"),
        (Frame(Type.AdminCreateUser, payload={"username": "u"}), "INVALID_PAYLOAD"),
        (Frame(Type.AdminDeleteUser, payload={"username": "nobody"}), "USER_NOT_FOUND"),
        (Frame(Type.AdminGetUserPermissions, payload={"username": "nobody"}), "USER_NOT_FOUND"),
        (Frame(Type.Publish, queue="ab", headers=MANY), "INVALID_MESSAGE"),
        (Frame(Type.Publish, queue="ab", headers={"h": "v" * 4_097}), "INVALID_MESSAGE"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.type.name,
)  # fmt: skip
def test_a_refusal_has_its_code_and_the_requests_id(
    broker: Running, generation: Generation, frame: Frame, code: str
) -> None:
    with Client(broker, generation) as client:
        with pytest.raises(Refused) as refused:
            client.ask(frame.type, frame.queue, frame.payload, **frame.headers)
        assert refused.value.code == code
        assert client.ask(Type.Ping).type is Type.Pong


# Users.


def allow(client: Client, name: str, pattern: str, *operations: str) -> None:
    form = {"username": name, "queuePattern": pattern, "operations": list(operations)}
    frame = client.ask(Type.AdminGrantPermission, None, form)
    assert frame.type is Type.AdminGrantPermission


def refused(client: Client, kind: Type, queue: str | None = None, payload: Json = None) -> str:
    with pytest.raises(Refused) as found:
        client.ask(kind, queue, payload)
    assert found.value.code is not None
    return found.value.code


@each_generation
def test_users_may_do_what_they_were_granted(
    broker: Running, client: Client, queue: str, generation: Generation
) -> None:
    name = f"anna-{queue}"
    form = {"username": name, "password": "a first password"}
    made = client.ask(Type.AdminCreateUser, None, form)
    assert (made.type, made.payload) == (Type.AdminCreateUser, {"username": name})
    assert refused(client, Type.AdminCreateUser, None, form) == "USER_EXISTS"
    [user] = [each for each in client.ask(Type.AdminListUsers).payload if each["username"] == name]
    assert set(user) == {"username", "isSuperuser", "createdAt"}
    assert user["isSuperuser"] is False
    assert isinstance(user["createdAt"], int)

    allow(client, name, f"{queue}.*", "Publish", "Subscribe", "GetQueueInfo")
    allow(client, name, f"{queue}.own", "CreateQueue", "ListQueues")
    allow(client, name, "gone", "Publish")
    gone = {"username": name, "queuePattern": "gone"}
    assert client.ask(Type.AdminRevokePermission, None, gone).payload == gone
    granted = client.ask(Type.AdminGetUserPermissions, None, {"username": name}).payload
    assert {each["queuePattern"]: set(each["operations"]) for each in granted} == {
        f"{queue}.*": {"Publish", "Subscribe", "GetQueueInfo"},
        f"{queue}.own": {"CreateQueue", "ListQueues"},
    }

    client.create(f"{queue}.a.b")
    client.create(f"{queue}.own")
    client.create(f"{queue}-other")
    first, second = login(name, "a first password"), login(name, "another password")
    with Client(broker, generation, headers=first) as anna:
        anna.publish(f"{queue}.a.b", 1)  # a star crosses dots
        anna.publish(f"{queue}.A.B".replace(queue, queue.upper()), 1)  # and case does not count
        anna.subscribe(f"{queue}.a.b")
        assert anna.take(1) == [1]
        assert anna.info(f"{queue}.a.b")["name"] == f"{queue}.a.b"
        assert refused(anna, Type.DeleteQueue, f"{queue}.a.b") == "NOT_AUTHORIZED"
        assert refused(anna, Type.Publish, f"{queue}-other", 1) == "NOT_AUTHORIZED"
        assert refused(anna, Type.Publish, "gone", 1) == "NOT_AUTHORIZED"
        assert refused(anna, Type.Subscribe, f"{queue}-other") == "NOT_AUTHORIZED"
        assert refused(anna, Type.QueueInfo, f"{queue}-other") == "NOT_AUTHORIZED"
        assert anna.ask(Type.ListQueues).payload == [f"{queue}.own"]
        assert refused(anna, Type.AdminListUsers) in {"FORBIDDEN", "NOT_AUTHORIZED"}

    change = {"username": name, "newPassword": "another password"}
    assert client.ask(Type.AdminChangePassword, None, change).payload == {"username": name}
    assert turned_away(broker, generation, first) == "AUTH_FAILED"
    with Client(broker, generation, headers=second):
        pass
    frame = client.ask(Type.AdminDeleteUser, None, {"username": name})
    assert frame.payload == {"username": name}
    assert turned_away(broker, generation, second) == "AUTH_FAILED"


def turned_away(broker: Running, generation: Generation, headers: dict[str, str]) -> str | None:
    """The code. The connection is closed with it."""
    with Client(broker, generation, connect=False) as client:
        with pytest.raises(Refused) as failed:
            client.connect(headers)
        assert client.is_ended()
        return failed.value.code


def test_without_dev_everybody_says_who_he_is(tmp_path: Path) -> None:
    root = {
        "POSTHOUSE_VIBEMQ_SUPERUSER": "vibemq",
        "POSTHOUSE_VIBEMQ_SUPERUSER_PASSWORD": "the first password",
    }
    with running("--data", str(tmp_path / "data"), environment=root) as broker:
        for wrong in (login("vibemq", "wrong"), login("nobody", "the first password")):
            assert turned_away(broker, "flagged", wrong) == "AUTH_FAILED"
        for generation in GENERATIONS:
            assert turned_away(broker, generation, {}) == "AUTH_REQUIRED"
            known = login("vibemq", "the first password")
            with Client(broker, generation, headers=known) as client:
                client.publish("letters", 1)
                [user] = client.ask(Type.AdminListUsers).payload
                assert (user["username"], user["isSuperuser"]) == ("vibemq", True)


def test_its_health_and_queues_are_on_a_port_of_their_own() -> None:
    with running("--dev", "--memory", "--port", "0=vibemq-http") as broker:
        ports = broker.events("broker.ready")[0]["ports"]
        for port in ports:
            broker.port = port
            health = broker.call("GET", "/health/").json
            if "is_healthy" in health:
                break
        else:
            raise AssertionError("it is on none")
        assert health["is_healthy"] is True
        assert set(health) >= {
            "is_healthy", "status", "active_connections", "queue_count", "in_flight_messages",
            "total_messages_published", "total_messages_delivered", "memory_usage_mb", "timestamp",
        }  # fmt: skip
        with Client(broker) as client:
            sent = client.publish("letters", {"a": 1})
            client.publish("letters", 2)
            client.subscribe("letters")
            client.take(1)
            eventually(lambda: left(client, "letters") == 1)
            metrics = broker.call("GET", "/metrics/").json
            assert set(metrics) >= {
                "total_messages_published", "total_messages_delivered",
                "total_messages_acknowledged", "total_retries", "total_dead_lettered",
                "total_errors", "total_connections_accepted", "total_connections_rejected",
                "active_connections", "active_queues", "in_flight_messages", "memory_usage_bytes",
                "average_delivery_latency_ms", "timestamp", "uptime",
            }  # fmt: skip
            assert metrics["total_messages_published"] == 2
            assert metrics["total_messages_acknowledged"] == 1
            assert metrics["active_connections"] == 1
        assert broker.call("GET", f"/api/queues/letters/messages/{sent}").status == 404
        assert broker.call("DELETE", "/api/queues/letters/messages").status == 204
        assert broker.call("DELETE", "/api/queues/letters").status == 204
        assert broker.call("GET", "/api/queues/letters").status == 404
        assert set(broker.call("GET", "/api/version").json) >= {"server_version", "webui_version"}
        assert broker.call("GET", "/api/health").json["status"] == "ok"


# Restarting.


def test_what_was_answered_is_there_after_a_kill(tmp_path: Path) -> None:
    with development(tmp_path / "data") as broker, Client(broker) as client:
        client.create("letters", mode=PRIORITY_BASED, maxQueueSize=9)
        for at, priority in enumerate(["low", "critical", "high"]):
            client.publish("letters", at, priority=priority)
        with Client(broker) as subscriber:
            subscriber.subscribe("letters")
            subscriber.take(1)
            subscriber.deliver()  # is given back
        eventually(lambda: broker.queue("GET", "letters").json["counts"]["active"] == 2)
        client.ask(Type.AdminCreateUser, None, {"username": "anna", "password": "her password"})
        for at in range(3):
            client.publish("held", at)
        client.subscribe("held")
        assert [client.deliver().payload for _ in range(3)] == [0, 1, 2]
        broker.kill()
    with development(tmp_path / "data") as broker, Client(broker) as client:
        assert client.info("letters")["maxSize"] == 9
        client.subscribe("letters")
        frame = client.deliver()
        assert (frame.payload, frame.headers) == (2, {"priority": "high"})
        client.ack(frame)  # by priority one is delivered at a time
        assert client.take(1) == [0]
        Client(broker, headers=login("anna", "her password")).close()
        client.subscribe("held")
        assert client.take(3) == [0, 1, 2]  # nobody holds them any more
