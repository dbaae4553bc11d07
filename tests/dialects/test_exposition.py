"""What is written in slices is what Prometheus' own library writes at once."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator

import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from posthouse.dialects.exposition import SLICE_SAMPLES, Exposition
from tests.turns import Turns

OPEN = "application/openmetrics-text; version=1.0.0"
NAMES = ["plain", "# HELP x", 'a "quoted" \\ name', "two\nlines", "re\r# turn", "ünï"]


def families(count: int) -> list[Metric]:
    by_queue = GaugeMetricFamily("by_queue", "One\nhelp \\ text", labels=["queue"])
    for number in range(count):
        by_queue.add_metric([f"{NAMES[number % len(NAMES)]} {number}"], number / 7)
    counter = CounterMetricFamily("counter", "Counted", labels=["kind"])
    counter.add_metric(["one"], 1e9)
    none = GaugeMetricFamily("none", "Of which there are no samples", labels=["queue"])
    took = HistogramMetricFamily("took", "Time", [("0.1", 1), ("+Inf", 3)], 7.5)
    return [counter, by_queue, none, took]


def at_once(given: Iterable[Metric], accept: str) -> tuple[bytes, bytes]:
    class All(Collector):
        def collect(self) -> Iterator[Metric]:
            yield from given

    registry = CollectorRegistry(auto_describe=False)
    registry.register(All())
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type.encode()


async def one_by_one(given: Iterable[Metric]) -> AsyncIterator[Metric]:
    for family in given:
        yield family


@pytest.mark.parametrize("accept", ["", "text/plain", OPEN])
@pytest.mark.parametrize("count", [0, 1, SLICE_SAMPLES, SLICE_SAMPLES + 1, 10 * SLICE_SAMPLES])
def test_the_text_is_the_same_as_if_it_was_written_at_once(accept: str, count: int) -> None:
    found = asyncio.run(Exposition().write(one_by_one(families(count)), accept))
    assert found == at_once(families(count), accept)


def test_families_of_one_name_are_written_as_one() -> None:
    first, other, second = (
        GaugeMetricFamily(name, "Text", labels=["queue"]) for name in ("a", "b", "a")
    )
    first.add_metric(["one"], 1)
    other.add_metric(["one"], 2)
    second.add_metric(["two"], 3)
    text, _ = asyncio.run(Exposition().write(one_by_one([first, other, second])))
    found = list(text_string_to_metric_families(text.decode()))
    assert [(each.name, len(each.samples)) for each in found] == [("a", 2), ("b", 1)]


@pytest.mark.parametrize("accept", ["text/plain; version=x", f"{OPEN}.a.b; version="])
def test_a_version_that_is_none_gets_the_usual_form(accept: str) -> None:
    text, _ = asyncio.run(Exposition().write(one_by_one(families(1)), accept))
    assert text.startswith(b"# HELP counter")


def test_others_have_their_turns_while_many_samples_are_written() -> None:
    async def main() -> None:
        with Turns() as few:
            await Exposition().write(one_by_one(families(1)))
        with Turns() as many:
            await Exposition().write(one_by_one(families(20 * SLICE_SAMPLES)))
        assert many.count - few.count >= 19

    asyncio.run(main())


def test_many_who_ask_at_once_are_answered_one_after_another() -> None:
    """Two turns of the loop would otherwise be as long as all their slices together."""
    under_way = most = 0

    async def watched() -> AsyncIterator[Metric]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for family in families(5 * SLICE_SAMPLES):
            yield family
        under_way -= 1

    async def main() -> None:
        exposition = Exposition()
        await asyncio.gather(*(exposition.write(watched()) for _ in range(5)))

    asyncio.run(main())
    assert most == 1
