"""AMQP over WebSocket, as the listener sees it."""

import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from posthouse.amqp.connection import SASL
from tests.server.running import Running, development

PATH = "/$servicebus/websocket"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with development(tmp_path_factory.mktemp("websocket") / "data") as broker:
        yield broker


class Client:
    """The library's other side, on a socket."""

    def __init__(self, broker: Running, path: str = PATH, **headers: str) -> None:
        self.protocol = ClientProtocol(
            parse_uri(f"ws://localhost:{broker.port}{path}"),
            subprotocols=["AMQPWSB10"],  # type: ignore[list-item]
        )
        self.socket = socket.create_connection(("127.0.0.1", broker.port))
        self.socket.settimeout(10)
        request = self.protocol.connect()
        request.headers.update(headers)
        self.protocol.send_request(request)
        self.flush()

    def flush(self) -> None:
        self.socket.sendall(b"".join(self.protocol.data_to_send()))

    def events(self) -> list[object]:
        """Until there is at least one, or it is closed."""
        while True:
            data = self.socket.recv(65_536)
            if data:
                self.protocol.receive_data(data)
            else:
                self.protocol.receive_eof()
            if (found := self.protocol.events_received()) or not data:
                return list(found)

    def status(self) -> int:
        (response,) = self.events()
        return int(response.status_code)  # type: ignore[attr-defined]

    def bytes(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            events = self.events()
            assert events
            found += b"".join(bytes(e.data) for e in events if isinstance(e, Frame))
        return found


def test_amqp_is_spoken_in_binary_frames_however_they_are_cut(broker: Running) -> None:
    client = Client(broker)
    assert client.status() == 101
    assert client.protocol.subprotocol == "AMQPWSB10"
    client.protocol.send_binary(SASL[:2], fin=False)
    client.protocol.send_continuation(b"", fin=False)
    client.protocol.send_ping(b"hello?")
    client.protocol.send_continuation(SASL[2:5], fin=True)
    client.protocol.send_binary(SASL[5:])
    client.flush()
    found = client.bytes(14)
    assert found.startswith(b"hello?" + SASL)
    client.socket.close()


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/elsewhere", {}, 401), (PATH, {"Origin": "http://evil.example.com"}, 401),
        (PATH.upper() + "/", {}, 101),
    ],
)  # fmt: skip
def test_what_is_not_meant_for_it_is_not_upgraded(
    broker: Running, path: str, headers: dict[str, str], status: int
) -> None:
    client = Client(broker, path, **headers)
    assert client.status() == status
    client.socket.close()


@pytest.mark.parametrize("frame", [
    Frame(Opcode.CONT, b"", fin=False), Frame(Opcode.BINARY, b""), Frame(Opcode.PONG, b""),
    Frame(Opcode.TEXT, b"text"), Frame(Opcode.BINARY, bytes(100_000)),
])  # fmt: skip
def test_who_says_nothing_in_many_frames_or_too_much_in_one_is_closed(
    broker: Running, frame: Frame
) -> None:
    client = Client(broker)
    assert client.status() == 101
    if frame.opcode is Opcode.CONT:
        client.protocol.send_frame(Frame(Opcode.BINARY, b"", fin=False))
    client.flush()
    wire = frame.serialize(mask=True)
    with suppress(ConnectionError):  # that is an end as well
        for _ in range(20):
            client.socket.sendall(wire * 1_000)
        while client.events():
            pass
    client.socket.close()
    assert broker.call("GET", "/health/live").status == 200


def test_a_stop_says_goodbye(tmp_path_factory: pytest.TempPathFactory) -> None:
    with development(tmp_path_factory.mktemp("stop") / "data") as broker:
        client = Client(broker)
        assert client.status() == 101
        client.protocol.send_binary(SASL)
        client.flush()
        client.bytes(8)
        broker.process.terminate()
        while client.events():
            pass
        assert broker.process.wait(20) == 0
        client.socket.close()
