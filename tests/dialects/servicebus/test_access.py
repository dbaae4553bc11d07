"""Who may do what, as the official SDK is told."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)

from tests.dialects.servicebus.bus import KEY, ROOT, WAIT, Bus, eventually, take, texts, together
from tests.dialects.servicebus.sas import token
from tests.server.running import running

MESSAGE = ServiceBusMessage("x")


def with_token(bus: Bus, text: str) -> ServiceBusClient:
    """With a token that was made elsewhere, in the place of a key."""
    return ServiceBusClient.from_connection_string(
        f"Endpoint=sb://localhost:{bus.broker.port};SharedAccessSignature={text};"
        "UseDevelopmentEmulator=true;",
        retry_total=0,
    )


def with_credential(bus: Bus, credential: Any) -> ServiceBusClient:
    """What a connection string cannot carry. `use_tls` is what the emulator's flag sets."""
    return ServiceBusClient(
        f"localhost:{bus.broker.port}", credential, retry_total=0, use_tls=False
    )


def refused(error: type[ServiceBusError], *opening: Callable[[], Any]) -> list[str]:
    """That all of them are turned down so; what they say."""

    def open_one(each: Callable[[], Any]) -> str:
        with pytest.raises(error) as caught, each():
            pass
        return str(caught.value)

    return together(*(lambda each=each: open_one(each) for each in opening))


def test_a_key_that_is_not_right_is_refused(bus: Bus) -> None:
    queue = bus.queue()
    clients = [
        bus.client(key="WRONG_KEY", retry_total=0),
        bus.client(key="x", retry_total=0),
        bus.client(name="NobodyHere", retry_total=0),
        bus.client(name="NobodyHere", key="WRONG_KEY", retry_total=0),
    ]
    refused(
        ServiceBusAuthenticationError,
        *(lambda c=each: c.get_queue_sender(queue) for each in clients),
        *(lambda c=each: c.get_queue_receiver(queue) for each in clients),
    )


def test_who_may_only_send_cannot_receive(bus: Bus) -> None:
    queue = bus.queue()
    client = bus.client("sends", bus.principal("sends", "send"), retry_total=0)
    sender = bus.closing(client.get_queue_sender(queue)).__enter__()
    sender.send_messages(MESSAGE)
    [text] = refused(ServiceBusAuthorizationError, lambda: client.get_queue_receiver(queue))
    assert "Listen" in text
    assert bus.counts(queue)["active"] == 1


def test_who_may_only_listen_cannot_send(bus: Bus) -> None:
    queue = bus.queue()
    client = bus.client("listens", bus.principal("listens", "listen"), retry_total=0)
    [text] = refused(ServiceBusAuthorizationError, lambda: client.get_queue_sender(queue))
    assert "Send" in text
    receiver = bus.closing(client.get_queue_receiver(queue)).__enter__()
    bus.sender(queue).send_messages(MESSAGE)
    assert texts(receiver.peek_messages()) == ["x"]
    assert texts(take(receiver, 1)) == ["x"]


def test_rights_are_for_the_entities_that_they_name(bus: Bus) -> None:
    mine, other = bus.queue(), bus.queue()
    key = bus.principal("narrow", "send", "listen", entity=mine)
    client = bus.client("narrow", key, retry_total=0)
    refused(
        ServiceBusAuthorizationError,
        lambda: client.get_queue_sender(other),
        lambda: client.get_queue_receiver(other),
        lambda: client.get_queue_receiver(other, sub_queue="deadletter"),
        lambda: client.get_queue_sender("a-queue-that-is-not-there"),
    )
    sender = bus.closing(client.get_queue_sender(mine))
    dead = bus.closing(client.get_queue_receiver(mine, sub_queue="deadletter"))
    opening: list[Any] = [sender, dead]
    together(*(each.__enter__ for each in opening))
    sender.send_messages(MESSAGE)
    assert bus.counts(mine)["active"] == 1
    assert dead.peek_messages() == []


def test_a_token_for_one_queue_does_not_open_another(bus: Bus) -> None:
    for name in ("one", "one0", "on"):
        assert bus.broker.queue("PUT", name, {}).status == 201
    client = with_token(bus, token("sb://localhost/one"))
    sender = bus.closing(client.get_queue_sender("one")).__enter__()
    sender.send_messages(MESSAGE)
    refused(
        ServiceBusAuthenticationError,
        lambda: client.get_queue_sender("one0"),
        lambda: client.get_queue_receiver("on"),
        lambda: client.get_queue_receiver("one0", sub_queue="deadletter"),
    )


@pytest.mark.parametrize("scope", ["sb://localhost", "sb://localhost/", "amqps://LOCALHOST:1/"])
def test_a_token_for_the_namespace_opens_every_queue(bus: Bus, scope: str) -> None:
    queue = bus.queue()
    client = with_token(bus, token(scope))
    sender = bus.closing(client.get_queue_sender(queue)).__enter__()
    sender.send_messages(MESSAGE)
    assert bus.counts(queue)["active"] == 1


def test_tokens_that_cannot_be_are_refused(bus: Bus) -> None:
    queue = bus.queue()
    resource = f"sb://localhost/{queue}"
    good = token(resource)
    clients = [
        with_token(bus, each)
        for each in (
            token(resource, key="WRONG_KEY"),
            token(resource, name="NobodyHere"),
            token(resource, seconds=-10),
            good.replace("se=", "se=9"),  # later than what was signed
            good.replace("localhost", "elsewhere"),
            good.replace("sr=", "sr=x"),
        )
    ]
    refused(
        ServiceBusAuthenticationError,
        *(lambda c=each: c.get_queue_sender(queue) for each in clients),
    )


class Bearer:
    """A token as an identity provider gives it."""

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return AccessToken("eyJhbGciOiJub25lIn0.e30.", 4_000_000_000)


def test_credentials_of_other_kinds(bus: Bus) -> None:
    queue = bus.queue()
    refused(
        ServiceBusAuthenticationError,
        lambda: with_credential(bus, Bearer()).get_queue_sender(queue),
        lambda: with_credential(
            bus, AzureSasCredential(token("sb://localhost/elsewhere"))
        ).get_queue_sender(queue),
        lambda: with_credential(bus, AzureNamedKeyCredential(ROOT, "WRONG_KEY")).get_queue_sender(
            queue
        ),
    )
    credentials = [
        AzureSasCredential(token(f"sb://localhost/{queue}")), AzureNamedKeyCredential(ROOT, KEY),
    ]  # fmt: skip
    for each in credentials:
        sender = bus.closing(with_credential(bus, each).get_queue_sender(queue)).__enter__()
        sender.send_messages(MESSAGE)
    assert bus.counts(queue)["active"] == 2


def test_links_are_detached_when_their_token_has_expired(bus: Bus) -> None:
    """A token cannot be put forward on a namespace's clock: it says the time of the world."""
    queue = bus.queue()
    short = with_token(bus, token(f"sb://localhost/{queue}", seconds=3))
    receiver = bus.closing(short.get_queue_receiver(queue)).__enter__()
    assert bus.receivers(queue) == 1
    eventually(lambda: bus.receivers(queue) == 0)
    with pytest.raises((ServiceBusAuthenticationError, ServiceBusAuthorizationError)):
        receiver.receive_messages(max_wait_time=WAIT)


def test_a_revoked_principal_is_out(bus: Bus) -> None:
    queue = bus.queue()
    client = bus.client("leaving", bus.principal("leaving", "send", "listen"), retry_total=0)
    sender = bus.closing(client.get_queue_sender(queue))
    receiver = bus.closing(client.get_queue_receiver(queue))
    opening: list[Any] = [sender, receiver]
    together(*(each.__enter__ for each in opening))
    sender.send_messages(MESSAGE)
    assert texts(receiver.peek_messages()) == ["x"]
    assert bus.broker.call("DELETE", "/api/v1/principals/leaving").status == 204
    with pytest.raises(ServiceBusError):  # of which class depends on what it was just doing
        sender.send_messages(MESSAGE)
    with pytest.raises(ServiceBusAuthenticationError):
        sender.send_messages(MESSAGE)
    eventually(lambda: bus.receivers(queue) == 0)
    assert bus.counts(queue)["active"] == 1
    refused(ServiceBusAuthenticationError, lambda: client.get_queue_sender(queue))


def test_both_keys_of_a_principal_work(bus: Bus) -> None:
    queue = bus.queue()
    rotate = partial(bus.broker.call, "POST", "/api/v1/principals/rotates/rotate")
    keys = [bus.principal("rotates", "send"), rotate().json["key"], rotate().json["key"]]
    refused(
        ServiceBusAuthenticationError,
        lambda: bus.client("rotates", keys[0], retry_total=0).get_queue_sender(queue),
    )
    for key in keys[1:]:
        sender = bus.closing(bus.client("rotates", key).get_queue_sender(queue)).__enter__()
        sender.send_messages(MESSAGE)
    assert bus.counts(queue)["active"] == 2


def test_exactly_as_in_the_cloud_nobody_is_authorized_for_a_missing_entity(tmp_path: Path) -> None:
    with running("--data", str(tmp_path), "--dev", "--servicebus-exact") as broker:
        bus = Bus(broker)
        client = bus.client(retry_total=0)
        texts = refused(
            ServiceBusAuthorizationError,
            lambda: client.get_queue_sender("gone"),
            lambda: client.get_queue_receiver("gone"),
            lambda: client.get_subscription_receiver("gone", "s"),
        )
        assert ["Send" in text for text in texts] == [True, False, False]
        bus.close()
