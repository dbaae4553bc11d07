"""The official SDK over TLS and over WebSockets."""

import ssl
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusError

from tests.dialects.servicebus.bus import KEY, ROOT, Bus, eventually, take, texts


@pytest.fixture(scope="module")
def tier() -> str:
    return "premium"  # for large messages


def authority(bus: Bus) -> str:
    """Whom a client has to trust, as soon as there is one."""
    flags = bus.broker.process.args
    assert isinstance(flags, list)
    folder = Path(str(flags[flags.index("--data") + 1])) / "tls"
    eventually((folder / "server.pem").exists)
    return str(folder / "ca.pem")


def client(bus: Bus, *, emulator: bool, **options: Any) -> ServiceBusClient:
    text = f"Endpoint=sb://localhost/;SharedAccessKeyName={ROOT};SharedAccessKey={KEY};"
    flag = "UseDevelopmentEmulator=true;" if emulator else ""
    return ServiceBusClient.from_connection_string(
        text + flag, custom_endpoint_address=f"sb://localhost:{bus.broker.port}", **options
    )


@pytest.mark.parametrize("emulator", [True, False], ids=["plain", "tls"])
@pytest.mark.parametrize("transport", list(TransportType), ids=["tcp", "websocket"])
def test_messages_travel_over_every_transport(
    bus: Bus, transport: TransportType, *, emulator: bool
) -> None:
    if emulator and transport == TransportType.Amqp:
        made = bus.client()
    else:
        made = client(
            bus, emulator=emulator, transport_type=transport, connection_verify=authority(bus)
        )
    queue = bus.queue()
    names = [f"{n}" for n in range(50)]
    body = b"x" * 900_000
    with made.get_queue_sender(queue) as sender, made.get_queue_receiver(queue) as receiver:
        sender.send_messages([ServiceBusMessage(each) for each in names])
        assert texts(take(receiver, 50)) == names
        sender.send_messages(ServiceBusMessage(body))
        [large] = take(receiver, 1)
        assert b"".join(large.body) == body
    assert bus.counts(queue)["active"] == 0


def test_a_certificate_that_is_not_trusted_ends_it(bus: Bus) -> None:
    assert ssl.create_default_context(cafile=authority(bus))
    with (
        pytest.raises(ServiceBusError),
        client(bus, emulator=False, retry_total=0).get_queue_sender(bus.queue()),
    ):
        pass
