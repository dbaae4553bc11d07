"""Qpid Proton, an AMQP library in C that knows nothing of Service Bus."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.server.running import Running, development, running
from tests.server.test_tls import certificate

if find_spec("proton") is None and not os.environ.get("CI"):
    pytest.skip("python-qpid-proton is missing: make .venv/proton", allow_module_level=True)

from proton import (
    UNDESCRIBED,
    Array,
    ConnectionException,
    Data,
    Delivery,
    Described,
    LinkException,
    Message,
    SSLDomain,
    Transport,
    byte,
    char,
    decimal32,
    decimal64,
    decimal128,
    float32,
    int32,
    short,
    symbol,
    timestamp,
    ubyte,
    uint,
    ulong,
    ushort,
)
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import AtMostOnce, Container
from proton.utils import BlockingConnection, BlockingReceiver, LinkDetached, SendException

NAME, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"
HANGS_SECONDS = 30  # who has said nothing by then never will
ID = UUID("00112233-4455-6677-8899-aabbccddeeff")

SIMPLE: dict[str, Any] = {
    "nothing": None,
    "yes": True,
    "no": False,
    "ubyte": ubyte(255),
    "ushort": ushort(65_535),
    "uint": uint(4_294_967_295),
    "small uint": uint(7),
    "zero uint": uint(0),
    "ulong": ulong(18_446_744_073_709_551_615),
    "small ulong": ulong(7),
    "byte": byte(-128),
    "short": short(-32_768),
    "int": int32(-2_147_483_648),
    "small int": int32(-1),
    "long": -9_223_372_036_854_775_808,
    "small long": -1,
    "float": float32(1.5),
    "double": 0.1,
    "infinity": float("inf"),
    "decimal32": decimal32(123_456),
    "decimal64": decimal64(123_456_789),
    "decimal128": decimal128(bytes(range(16))),
    "char": char("ü"),
    "timestamp": timestamp(1_700_000_000_123),
    "old timestamp": timestamp(-1),
    "uuid": ID,
    "binary": b"\x00\xff" * 200,
    "text": "Grüße, 世界 🎉",
    "long text": "x" * 1_000,
    "empty text": "",
    "symbol": symbol("a:symbol"),
}
COMPOUND: dict[str, Any] = {
    "list": [1, "two", [symbol("three"), None], {"four": 4.0}],
    "empty list": [],
    "map": {"text": 1, symbol("symbol"): 2, ulong(3): [3], ID: None},
    "empty map": {},
    "array": Array(UNDESCRIBED, Data.INT, int32(1), int32(-2)),
    "array of text": Array(UNDESCRIBED, Data.STRING, "a", "b" * 300),
    "described": Described(symbol("my:type"), ["a", 1]),
    "described by number": Described(ulong(0x1234_5678_9ABC), "x"),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(
        "--data", str(tmp_path_factory.mktemp("data")), "--dev", "--servicebus-tier", "premium"
    ) as broker:
        yield broker
    assert not broker.events("amqp.failed")


_numbers = count()


@pytest.fixture
def queue(broker: Running) -> str:
    """One that nobody else uses."""
    name = f"queue-{next(_numbers)}"
    assert broker.queue("PUT", name, {}).status == 201
    return name


@contextmanager
def connected(
    broker: Running,
    *,
    scheme: str = "amqp",
    password: str = KEY,
    mechanism: str = "PLAIN",
    **more: Any,
) -> Iterator[BlockingConnection]:
    connection = BlockingConnection(
        f"{scheme}://localhost:{broker.port}", timeout=HANGS_SECONDS, user=NAME, password=password,
        allowed_mechs=mechanism, allow_insecure_mechs=True, **more,
    )  # fmt: skip
    try:
        yield connection
    finally:
        connection.close()


def traced(connection: BlockingConnection) -> list[str]:
    """The frames that come and go from now on."""
    lines: list[str] = []
    transport = connection.conn.transport
    transport.tracer = lambda _, line: lines.append(line)
    transport.trace(Transport.TRACE_FRM)
    return lines


def counts(broker: Running, queue: str) -> dict[str, int]:
    found: dict[str, int] = broker.queue("GET", queue).json["counts"]
    return {state: number for state, number in found.items() if number}


def round_trip(broker: Running, queue: str, *messages: Message) -> list[Message]:
    with connected(broker) as connection:
        sender = connection.create_sender(queue)
        for each in messages:
            sender.send(each)
        receiver = connection.create_receiver(queue, credit=len(messages))
        found = []
        for _ in messages:
            found.append(receiver.receive())
            receiver.accept()
        return found


def shape(value: Any) -> Any:
    """A value with the types of everything in it: proton's numbers are equal to any others."""
    if isinstance(value, Described):
        return "described", shape(value.descriptor), shape(value.value)
    if isinstance(value, Array):
        return "array", value.type, [shape(each) for each in value.elements]
    if isinstance(value, dict):
        return [(shape(key), shape(each)) for key, each in value.items()]
    if isinstance(value, list):
        return [shape(each) for each in value]
    if isinstance(value, memoryview):
        value = bytes(value)
    return type(value).__name__, value


# Who it is.


def test_a_name_and_a_key_open_everything(broker: Running, queue: str) -> None:
    (found,) = round_trip(broker, queue, Message("hello", id="m-1"))
    assert (found.id, found.body, found.delivery_count) == ("m-1", "hello", 0)
    assert counts(broker, queue) == {}


def test_a_wrong_key_opens_no_connection(broker: Running) -> None:
    with (
        pytest.raises(ConnectionException, match="Authentication failed"),
        connected(broker, password="no"),
    ):
        pass


def test_a_client_that_trusts_the_broker_uses_tls(tmp_path: Path) -> None:
    with development(tmp_path) as broker:
        certificate(tmp_path)
        trust = SSLDomain(SSLDomain.MODE_CLIENT)
        trust.set_trusted_ca_db(str(tmp_path / "tls" / "ca.pem"))
        trust.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
        with connected(broker, scheme="amqps", ssl_domain=trust) as connection:
            connection.create_sender("made-by-use").send(Message("x" * 100_000))
            receiver = connection.create_receiver("made-by-use")
            assert len(receiver.receive().body) == 100_000
            receiver.accept()


def test_who_says_nothing_of_himself_may_do_nothing(broker: Running, queue: str) -> None:
    with connected(broker, mechanism="ANONYMOUS") as connection:
        with pytest.raises(LinkDetached, match="unauthorized-access"):
            connection.create_sender(queue)
        with pytest.raises(LinkDetached, match="unauthorized-access"):
            connection.create_receiver(queue)


def test_a_queue_that_is_not_there_is_not_found(broker: Running, queue: str) -> None:
    with connected(broker) as connection:
        with pytest.raises(LinkDetached, match="not-found"):
            connection.create_sender("nowhere")
        with pytest.raises(LinkException, match="not-found"):
            connection.create_receiver("nowhere")
        connection.create_sender(queue).send(Message("the connection goes on"))


# Outcomes.


def settled(
    connection: BlockingConnection, receiver: BlockingReceiver, state: Any
) -> tuple[Message, Any]:
    """Receives a message and says what came of it; the message, and what the broker answers."""
    message = receiver.receive()
    delivery = receiver.fetcher.unsettled.popleft()
    delivery.update(state)
    connection.wait(lambda: delivery.settled)
    answer = delivery.remote_state
    delivery.settle()
    return message, answer


def test_an_accepted_message_is_gone(broker: Running, queue: str) -> None:
    with connected(broker) as connection:
        connection.create_sender(queue).send(Message("x"))
        receiver = connection.create_receiver(queue)
        _, answer = settled(connection, receiver, Delivery.ACCEPTED)
        assert answer == Delivery.ACCEPTED
        assert counts(broker, queue) == {}


def test_a_released_message_comes_back_as_if_nothing_had_been(broker: Running, queue: str) -> None:
    with connected(broker) as connection:
        connection.create_sender(queue).send(Message("x"))
        receiver = connection.create_receiver(queue)
        first, answer = settled(connection, receiver, Delivery.RELEASED)
        assert answer == Delivery.RELEASED
        again = receiver.receive()
        assert (first.body, again.body, again.delivery_count) == ("x", "x", 0)
        receiver.accept()


def test_a_modified_message_comes_back_and_is_counted(broker: Running, queue: str) -> None:
    with connected(broker) as connection:
        connection.create_sender(queue).send(Message("x"))
        receiver = connection.create_receiver(queue)
        _, answer = settled(connection, receiver, Delivery.MODIFIED)
        assert answer == Delivery.MODIFIED
        assert receiver.receive().delivery_count == 1
        receiver.accept()


def test_a_rejected_message_is_dead_lettered(broker: Running, queue: str) -> None:
    with connected(broker) as connection:
        connection.create_sender(queue).send(Message("x", id="m-1"))
        receiver = connection.create_receiver(queue)
        _, answer = settled(connection, receiver, Delivery.REJECTED)
        assert answer == Delivery.REJECTED
        assert counts(broker, queue) == {"dead": 1}
        dead = connection.create_receiver(f"{queue}/$DeadLetterQueue")
        assert dead.receive().id == "m-1"
        dead.accept()


def test_many_messages_are_settled_in_one_go(broker: Running, queue: str) -> None:
    with connected(broker) as connection:
        sender = connection.create_sender(queue)
        for number in range(30):
            sender.send(Message(number))
        receiver = connection.create_receiver(queue, credit=30)
        assert [receiver.receive().body for _ in range(30)] == list(range(30))
        assert counts(broker, queue) == {"locked": 30}
        deliveries = list(receiver.fetcher.unsettled)
        receiver.fetcher.unsettled.clear()
        for delivery in deliveries:
            delivery.update(Delivery.ACCEPTED)
        connection.wait(lambda: all(each.settled for each in deliveries))
        for delivery in deliveries:
            delivery.settle()
        assert counts(broker, queue) == {}


def test_a_message_that_is_too_large_is_rejected_and_the_sender_goes_on(
    broker: Running, queue: str
) -> None:
    with connected(broker) as connection:
        sender = connection.create_sender(queue)
        assert sender.link.remote_max_message_size == 1 << 20
        with pytest.raises(SendException):
            sender.send(Message(b"x" * (2 << 20)))
        sender.send(Message("goes on"))
        assert counts(broker, queue) == {"active": 1}


# What is sent comes back.


class Shared:
    """One queue and its links, for messages that come back at once."""

    def __init__(self, connection: BlockingConnection, queue: str) -> None:
        self._sender = connection.create_sender(queue)
        self._receiver = connection.create_receiver(queue)

    def round_trip(self, message: Message) -> Message:
        self._sender.send(message)
        found = self._receiver.receive()
        self._receiver.accept()
        return found


@pytest.fixture(scope="module")
def shared(broker: Running) -> Iterator[Shared]:
    assert broker.queue("PUT", "shared", {}).status == 201
    with connected(broker) as connection:
        yield Shared(connection, "shared")


@pytest.mark.parametrize("kind", [*SIMPLE, *COMPOUND])
def test_a_body_comes_back_as_it_was(shared: Shared, kind: str) -> None:
    value = (SIMPLE | COMPOUND)[kind]
    found = shared.round_trip(Message(value))
    assert shape(found.body) == shape(value)


@pytest.mark.parametrize("body", [b"", b"bytes", b"x" * 1_000, [], [1, "two"]])
def test_a_data_or_sequence_section_comes_back_as_it_was(shared: Shared, body: Any) -> None:
    found = shared.round_trip(Message(body, inferred=True))
    assert found.inferred
    assert shape(found.body) == shape(body)


def test_application_properties_of_every_type_come_back_as_they_were(shared: Shared) -> None:
    found = shared.round_trip(Message("x", properties=SIMPLE))
    assert shape(found.properties) == shape(SIMPLE)


@pytest.mark.parametrize("value", [ulong(0), ulong(7), ulong(1 << 63), ID, b"bytes", "text"])
def test_ids_keep_their_types(shared: Shared, value: Any) -> None:
    sent = Message("x", id=value, correlation_id=value)
    twin = Message()
    twin.decode(sent.encode())  # proton gives out other types than it takes
    found = shared.round_trip(sent)
    assert shape(found.id) == shape(twin.id)
    assert shape(found.correlation_id) == shape(twin.correlation_id)


def test_the_fields_of_a_message_come_back_as_they_were(shared: Shared) -> None:
    fields: dict[str, Any] = {
        "durable": True,
        "priority": 7,
        "id": "m-1",
        "user_id": b"me",
        "address": "to",
        "subject": "subject",
        "reply_to": "reply",
        "correlation_id": "c-1",
        "content_type": symbol("text/plain"),
        "content_encoding": symbol("gzip"),
        "creation_time": 1_700_000_000.125,
        "expiry_time": 4_000_000_000.25,
        "group_id": "group",
        "group_sequence": 4_294_967_295,
        "reply_to_group_id": "reply group",
    }
    found = shared.round_trip(Message("x", **fields))
    assert {name: getattr(found, name) for name in fields} == fields


def test_annotations_are_kept_and_those_of_a_broker_are_its_own(shared: Shared) -> None:
    given = {symbol("x-mine"): [1, "a"], symbol("x-opt-sequence-number"): 12_345}
    found = shared.round_trip(Message("x", annotations=given, instructions={symbol("x-do"): 1}))
    assert found.annotations[symbol("x-mine")] == [1, "a"]
    assert found.annotations[symbol("x-opt-sequence-number")] != 12_345
    assert type(found.annotations[symbol("x-opt-enqueued-time")]) is timestamp
    assert type(found.annotations[symbol("x-opt-locked-until")]) is timestamp
    assert found.instructions is not None
    assert found.instructions[symbol("x-do")] == 1
    assert type(found.instructions[symbol("x-opt-lock-token")]) is UUID


# Frames and links.


def test_every_message_has_a_format(broker: Running, queue: str) -> None:
    with connected(broker) as connection:
        connection.create_sender(queue).send(Message("x"))
        lines = traced(connection)
        connection.create_receiver(queue).receive()
        (transfer,) = [each for each in lines if "<- @transfer" in each]
        assert "message-format=0x0" in transfer, transfer


def test_large_messages_go_in_frames_of_the_size_that_is_asked_for(
    broker: Running, queue: str
) -> None:
    body = bytes(at * 31 % 251 for at in range(900_000))
    with connected(broker, max_frame_size=512) as connection:
        sender = connection.create_sender(queue)
        sender.send(Message(body, inferred=True))
        sender.send(Message("between"))
        receiver = connection.create_receiver(queue, credit=2)
        before = connection.conn.transport.frames_input
        assert receiver.receive().body == body
        assert connection.conn.transport.frames_input - before > 1_700
        assert receiver.receive().body == "between"
        receiver.settle(Delivery.ACCEPTED)


def test_a_message_that_is_longer_than_a_frame_is_taken(broker: Running) -> None:
    properties = {"max_message_bytes": 8 << 20}
    assert broker.queue("PUT", "large", properties).status == 201
    body = bytes(range(256)) * (3 << 12)
    with connected(broker) as connection:
        sender = connection.create_sender("large")
        assert connection.conn.transport.remote_max_frame_size < len(body)
        for _ in range(3):
            sender.send(Message(body, inferred=True))
        receiver = connection.create_receiver("large", credit=3)
        for _ in range(3):
            assert receiver.receive().body == body
        receiver.settle(Delivery.ACCEPTED)


def test_a_connection_with_heartbeats_is_kept_alive(broker: Running, queue: str) -> None:
    with connected(broker, heartbeat=1) as connection:
        sender = connection.create_sender(queue)
        transport = connection.conn.transport
        before = transport.frames_input
        connection.wait(lambda: transport.frames_input - before >= 10)  # nobody says anything else
        sender.send(Message("still here"))
        assert counts(broker, queue) == {"active": 1}


def test_settled_messages_are_sent_and_received_without_answers(
    broker: Running, queue: str
) -> None:
    with connected(broker) as connection:
        sender = connection.create_sender(queue, options=AtMostOnce())
        for number in range(20):
            sender.send(Message(number))
        receiver = connection.create_receiver(queue, credit=20, options=AtMostOnce())
        assert [receiver.receive().body for _ in range(20)] == list(range(20))
        assert counts(broker, queue) == {}


def test_two_receivers_get_messages_in_turn(broker: Running, queue: str) -> None:
    with connected(broker) as connection:
        receivers = [
            connection.create_receiver(queue, credit=10, name=name) for name in ("one", "two")
        ]
        sender = connection.create_sender(queue)
        for number in range(10):
            sender.send(Message(number))
        found = [[each.receive().body for _ in range(5)] for each in receivers]
        assert found == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
        for each in receivers:
            each.settle(Delivery.ACCEPTED)


def test_what_was_not_settled_comes_to_another_after_its_lock(broker: Running, queue: str) -> None:
    with connected(broker) as connection:
        connection.create_sender(queue).send(Message("x"))
        connection.create_receiver(queue).receive()
    assert counts(broker, queue) == {"locked": 1}
    moved = broker.call("POST", "/api/v1/namespaces/default/clock", {"advance_ms": 60_000})
    assert moved.status == 200
    with connected(broker) as connection:
        receiver = connection.create_receiver(queue)
        assert receiver.receive().delivery_count == 1
        receiver.accept()


def test_many_connections_are_open_at_a_time(broker: Running, queue: str) -> None:
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(broker)) for _ in range(30)]
        for number, each in enumerate(connections):
            each.create_sender(queue).send(Message(number))
        receivers = [each.create_receiver(queue) for each in connections]
        assert sorted(each.receive().body for each in receivers) == list(range(30))
        for receiver in receivers:
            receiver.accept()


# Transactions.


class Mover(MessagingHandler, TransactionHandler):  # type: ignore[misc]
    """Moves messages from one queue to another in one transaction, or does not."""

    def __init__(self, broker: Running, source: str, target: str, *, commits: bool) -> None:
        super().__init__(prefetch=0, auto_accept=False)
        self._url = f"amqp://localhost:{broker.port}"
        self._source, self._target, self._commits = source, target, commits
        self._left = 3
        self.outcome = ""

    def on_start(self, event: Any) -> None:
        self.container = event.container
        connection = event.container.connect(
            self._url, user=NAME, password=KEY, allowed_mechs="PLAIN", allow_insecure_mechs=True
        )
        self.connection = connection
        self.sender = event.container.create_sender(connection, self._target)
        self.receiver = event.container.create_receiver(connection, self._source)
        event.container.declare_transaction(connection, handler=self)

    def on_transaction_declared(self, event: Any) -> None:
        self.transaction = event.transaction
        self.receiver.flow(self._left)

    def on_message(self, event: Any) -> None:
        self.transaction.send(self.sender, Message(body=event.message.body))
        self.transaction.accept(event.delivery)
        self._left -= 1
        if not self._left:
            (self.transaction.commit if self._commits else self.transaction.abort)()

    def on_transaction_committed(self, event: Any) -> None:
        self._end("committed")

    def on_transaction_aborted(self, event: Any) -> None:
        self._end("aborted")

    def on_transaction_commit_failed(self, event: Any) -> None:
        self._end("failed")

    def on_transaction_declare_failed(self, event: Any) -> None:
        self._end("not declared")

    def _end(self, outcome: str) -> None:
        self.outcome = outcome
        self.connection.close()


@pytest.mark.parametrize("commits", [True, False])
def test_messages_are_moved_in_a_transaction(broker: Running, queue: str, commits: bool) -> None:
    target = f"{queue}-target"
    broker.queue("PUT", target, {})
    broker.send(queue, "1", "2", "3")
    mover = Mover(broker, queue, target, commits=commits)
    Container(mover).run()
    assert mover.outcome == ("committed" if commits else "aborted")
    if commits:
        assert (counts(broker, queue), counts(broker, target)) == ({}, {"active": 3})
    else:
        assert counts(broker, target) == {}
        assert sum(counts(broker, queue).values()) == 3


def test_a_transaction_that_cannot_be_committed_is_told(broker: Running, queue: str) -> None:
    target = f"{queue}-target"
    broker.queue("PUT", target, {"max_messages": 2})
    broker.send(queue, "1", "2", "3")
    mover = Mover(broker, queue, target, commits=True)
    Container(mover).run()
    assert mover.outcome == "failed"
    assert (sum(counts(broker, queue).values()), counts(broker, target)) == (3, {})
