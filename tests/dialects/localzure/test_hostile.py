"""Requests that mean no good."""

import json
import time
from urllib.parse import urlencode

import pytest

from tests.dialects.localzure.zure import Zure, refused


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
        '{"body": "x", "' + "aA" * 1_000_000 + '": 1}',
        json.dumps({"body": "x", **{f"aBcD{n}": 1 for n in range(100_000)}}),
    ],
    ids=["long", "many"],
)
def test_fields_that_there_are_not_are_refused_at_once(zure: Zure, body: str) -> None:
    """One of 40 MB held everybody up for 20 s."""
    queue = zure.queue()
    begun = time.monotonic()
    reply = queue.broker.call("POST", f"{queue.path}/messages", raw=body.encode())
    assert reply.status == 422
    assert time.monotonic() - begun < 0.35
