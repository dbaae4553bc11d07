"""Requests that mean no good."""

import json
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.dialects.localzure.zure import Zure, fresh, refused
from tests.dialects.servicebus.sas import token
from tests.server.running import Json, Reply, Running, running


@pytest.mark.parametrize("value", [1 << 64, -(1 << 63) - 1, 10**30])
def test_a_property_is_no_larger_than_what_can_be_kept(zure: Zure, value: int) -> None:
    queue = zure.queue()
    assert refused(queue.try_send(userProperties={"n": value})) == (400, "InvalidOperation")
    assert queue.count() == 0


@pytest.mark.parametrize("name", ["$skip", "$top"])
@pytest.mark.parametrize("text", ["0" * 11 + "1" + "9" * 9, "0" * 12 + "9" * 5_000, "²", "-1", ""])
def test_a_window_that_cannot_be_is_refused(zure: Zure, name: str, text: str) -> None:
    reply = zure.queue().broker.call("GET", f"/servicebus/queues?{urlencode({name: text})}")
    assert reply.status == 422


@pytest.mark.parametrize("size", ["²", "²³", "٣٣٣٣", "9" * 5_000])
def test_a_size_that_is_no_number_is_refused(zure: Zure, size: str) -> None:
    queue = zure.queue()
    reply = queue.describe("QueueDescription", MaxSizeInMegabytes=size)
    assert refused(reply) == (400, "InvalidOperation")


@pytest.mark.parametrize(
    "body",
    [
        '{"body": "x", "' + "aA" * 4_000_000 + '": 1}',
        json.dumps({"body": "x", **{f"aBcD{n}": 1 for n in range(400_000)}}),
    ],
    ids=["long", "many"],
)
def test_fields_that_there_are_not_are_refused_at_once(zure: Zure, body: str) -> None:
    """One of 40 MB held everybody up for 20 s."""
    queue = zure.queue()
    before = queue.broker.cpu_seconds
    reply = queue.broker.call("POST", f"{queue.path}/messages", raw=body.encode())
    assert reply.status == 422
    assert queue.broker.cpu_seconds - before < 1.5  # looked at one by one they take four


class Somebody:
    """A principal of his own, who signs."""

    def __init__(self, broker: Running, *grants: Json) -> None:
        self._broker = broker
        self._name = fresh("somebody")
        form = {"name": self._name, "grants": list(grants)}
        self._key: str = broker.call("POST", "/api/v1/principals", form).json["key"]

    def __call__(self, method: str, path: str, body: Json = None) -> Reply:
        signed = token("http://localhost/", self._name, self._key)
        return self._broker.call(method, path, body, headers={"Authorization": signed})


def on(entity: str, *rights: str) -> Json:
    return {"namespace": "default", "entity": entity, "rights": list(rights)}


def test_metrics_name_every_entity_so_they_are_for_who_manages_all(broker: Running) -> None:
    one = Somebody(broker, on("only-this", "listen", "send", "manage"))
    assert refused(one("GET", "/servicebus/metrics")) == (403, "Forbidden")
    everything = {"namespace": "*", "entity": "*", "rights": ["manage"]}
    assert Somebody(broker, everything)("GET", "/servicebus/metrics").status == 200


def test_a_session_is_his_who_accepted_it(zure: Zure, kind: str, broker: Running) -> None:
    place = zure.place(kind, RequiresSession=True)
    place.send("a", session_id="s")
    ours, other = (Somebody(broker, on("*", "listen")) for _ in range(2))
    assert ours("POST", f"{place.path}/sessions/accept", {"sessionId": "s"}).status == 200
    form = {"sessionId": "s"}
    lost = (410, "SessionLockLost")
    assert refused(other("POST", f"{place.path}/messages/receive", form)) == lost
    assert refused(other("DELETE", f"{place.path}/sessions/s")) == lost
    assert len(ours("POST", f"{place.path}/messages/receive", form).json) == 1


def test_a_transaction_is_his_who_began_it(zure: Zure, broker: Running) -> None:
    """Their numbers follow one another."""
    mine, others = zure.queue(), zure.queue()
    ours, other = Somebody(broker, on(mine.name, "send")), Somebody(broker, on(others.name, "send"))
    at = "/servicebus/transactions"
    number = ours("POST", at).json["TransactionId"]

    def send(who: Somebody, path: str) -> Reply:
        return who("POST", f"{path}/messages?transactionId={number}", {"body": "x"})

    assert send(ours, mine.path).status == 200
    lost = (404, "TransactionNotFound")
    assert refused(send(other, others.path)) == lost
    assert refused(other("POST", f"{at}/{number}/commit")) == lost
    assert refused(other("POST", f"{at}/{number}/rollback")) == lost
    assert ours("POST", f"{at}/{number}/commit").json["Sent"] == 1


def test_messages_of_a_batch_count_each_by_their_address(tmp_path: Path) -> None:
    """Over this API, and over Azure's own."""
    kind = {"content-type": "application/vnd.microsoft.servicebus.json"}
    for at, path in enumerate(("/servicebus/queues/q/messages/batch", "/q/messages")):
        flags = ("--data", str(tmp_path / str(at)), "--dev", "--rate-address", "10")
        with running(*flags) as broker:
            assert broker.call("PUT", "/servicebus/queues/q").status == 201
            headers = {"authorization": token("http://localhost/"), **kind}
            body: Json = {"messages": [{"body": "x"}] * 40}
            if path == "/q/messages":
                body = [{"Body": "x"}] * 40
            statuses = [broker.call("POST", path, body, headers=headers).status for _ in range(2)]
            assert statuses[1] == 429, statuses
