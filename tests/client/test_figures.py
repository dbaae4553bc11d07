"""What a client has counted, and how it shows it."""

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from posthouse import Message, QueueNotFound, create_test_client
from posthouse.client.figures import BOUNDS, Figures


def test_operations_are_counted_by_outcome_and_duration() -> None:
    figures = Figures()
    for seconds in (0.0, 0.0005, 0.0006, 100.0):
        figures.note("send", "ok", seconds)
    figures.note("send", "Timeout", 1.0)
    timeout, ok = sorted(figures.all(), key=lambda each: each.outcome)
    assert (timeout.outcome, timeout.count, timeout.seconds) == ("Timeout", 1, 1.0)
    assert ok.count == 4
    assert ok.seconds == pytest.approx(100.0011)
    assert ok.classes == (2, 1, *[0] * (len(BOUNDS) - 2), 1)


def test_what_is_noted_can_be_recorded_elsewhere_too() -> None:
    seen: list[tuple[str, str, float]] = []
    Figures(lambda *told: seen.append(told)).note("send", "ok", 0.5)
    assert seen == [("send", "ok", 0.5)]


def test_prometheus_reads_what_is_shown() -> None:
    figures = Figures()
    assert figures.prometheus() == ""
    figures.note("accept-session", "ok", 0.002)
    figures.note("send", "ok", 0.002)
    figures.note("send", "ok", 20.0)
    figures.note("send", "Timeout", 0.1)
    figures.count("sent", 3)
    figures.count("sent", 2)
    families = {each.name: each for each in text_string_to_metric_families(figures.prometheus())}
    assert families.keys() == {
        "queue_messages_sent",
        "queue_send_duration_seconds",
        "queue_accept_session_duration_seconds",
    }
    [sent] = families["queue_messages_sent"].samples
    assert (sent.name, sent.value) == ("queue_messages_sent_total", 5)
    found = {
        (each.name, *each.labels.values()): each.value
        for each in families["queue_send_duration_seconds"].samples
    }
    name = "queue_send_duration_seconds"
    assert families[name].type == "histogram"
    assert found[f"{name}_bucket", "ok", "0.001"] == 0
    assert found[f"{name}_bucket", "ok", "0.0025"] == 1
    assert found[f"{name}_bucket", "ok", "10.0"] == 1
    assert found[f"{name}_bucket", "ok", "+Inf"] == 2
    assert found[f"{name}_count", "ok"] == 2
    assert found[f"{name}_sum", "ok"] == pytest.approx(20.002)
    assert found[f"{name}_count", "Timeout"] == 1


def test_a_client_counts_messages_by_what_became_of_them() -> None:
    async def main() -> None:
        async with create_test_client() as client:
            await client.send_messages("orders", [Message(b"x")] * 5)
            received = await client.receive_messages("orders", 5)
            await client.complete_messages(received[:2])
            await client.abandon_message(received[2])
            await client.dead_letter_message(received[3], "bad")
            async with client.transaction() as together:
                await together.complete_message(received[4])
                await together.send_message("orders", Message(b"y"))
                assert client.figures.messages["sent"] == 5
            with pytest.raises(QueueNotFound):  # noqa: PT012
                async with client.transaction() as together:
                    await together.send_message("orders", Message(b"z"))
                    await client.receive_deferred_messages("nowhere", [1])
            assert client.figures.messages == {
                "sent": 6, "received": 5, "acknowledged": 3, "rejected": 1, "dead_lettered": 1,
            }  # fmt: skip
            outcomes = {(each.operation, each.outcome) for each in client.figures.all()}
            assert ("receive", "QueueNotFound") in outcomes

    asyncio.run(main())
