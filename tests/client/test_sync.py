"""The client for programs without a loop is the same client."""

import inspect
from typing import Any

import pytest

from posthouse import (
    Admin,
    Message,
    QueueClient,
    QueueNotFound,
    Receiver,
    SessionClient,
    SyncAdmin,
    SyncQueueClient,
    SyncReceiver,
    SyncSessionClient,
    SyncTransaction,
    Transaction,
    ValidationError,
    create_client,
    create_sync_client,
)

TWINS: list[tuple[type[Any], type[Any]]] = [
    (Admin, SyncAdmin),
    (QueueClient, SyncQueueClient),
    (SessionClient, SyncSessionClient),
    (Receiver, SyncReceiver),
    (Transaction, SyncTransaction),
]
URL = "memory://?auto_create=true&default_timeout=0"


def public(kind: type[Any]) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")}


def parameters(method: Any) -> list[tuple[str, Any, Any]]:
    return [(each.name, each.kind, each.default)
            for each in inspect.signature(method).parameters.values()]  # fmt: skip


@pytest.mark.parametrize(("kind", "twin"), TWINS)
def test_every_public_name_has_its_twin(kind: type[Any], twin: type[Any]) -> None:
    assert public(kind).keys() == public(twin).keys()


@pytest.mark.parametrize(
    ("kind", "twin", "name"),
    [(kind, twin, name) for kind, twin in TWINS for name in public(kind)],
)
def test_a_twin_takes_the_same(kind: type[Any], twin: type[Any], name: str) -> None:
    here, there = vars(kind)[name], vars(twin)[name]
    if isinstance(here, property):
        assert isinstance(there, property)
        return
    assert parameters(here) == parameters(there)
    assert not inspect.iscoroutinefunction(there)


def test_clients_are_made_alike() -> None:
    assert parameters(create_client) == parameters(create_sync_client)


def test_all_of_it_works_without_a_loop() -> None:
    with create_sync_client(URL) as client:
        client.send_messages("orders", [Message(b"a"), Message(b"b")])
        first = client.receive_message("orders")
        assert first is not None
        assert first.body == b"a"
        client.complete_message(first)
        with client.receiver("orders") as receiver:
            for message in receiver:
                assert message.body == b"b"
                client.complete_message(message)
                break
        assert client.receive_message("orders") is None
        client.send_message("sessions", Message(b"c").with_session_id("s"))
        session = client.accept_session("sessions")
        assert session is not None
        with session:
            assert session.session_id == "s"
            [received] = session.receive_messages(5)
            session.set_state(b"state")
            assert session.get_state() == b"state"
            session.complete_message(received)
        assert client.accept_session("sessions") is None
        assert client.figures.messages["acknowledged"] == 3


def test_a_transaction_happens_or_does_not() -> None:
    with create_sync_client(URL) as client:
        with client.transaction() as together:
            together.send_message("orders", Message(b"a"))
        with pytest.raises(ValidationError), client.transaction() as together:  # noqa: PT012
            together.send_message("orders", Message(b"b"))
            together.send_message("no//name", Message(b"c"))
        assert [each.body for each in client.receive_messages("orders", 9)] == [b"a"]


def test_errors_come_through_as_they_are() -> None:
    with create_sync_client("memory://") as client, pytest.raises(QueueNotFound):
        client.send_message("orders", Message(b"x"))


def test_administration_without_a_loop() -> None:
    with create_sync_client("memory://") as client:
        assert client.admin.ensure_queue("orders", max_delivery_count=2) is True
        assert client.admin.queues() == ["orders"]
        client.send_message("orders", Message(b"x"))
        assert client.admin.counts("orders").active == 1
        assert client.admin.purge("orders") == 1
        client.admin.delete_queue("orders")
        assert client.admin.queues() == []
