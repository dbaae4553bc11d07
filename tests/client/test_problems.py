"""Refusals over the wire: the client goes by their codes and facts, and by no word of a text."""

import asyncio
from collections.abc import Iterator

import pytest

import posthouse
from posthouse import Message
from posthouse.amqp.decode import Reader
from posthouse.amqp.performatives import Problem, problem_in
from posthouse.client import errors
from posthouse.client.wire.problems import BUSY_S, error_of
from posthouse.core import errors as refusals
from posthouse.core.errors import REFUSALS, Refused
from posthouse.dialects.servicebus import conditions
from tests.core.test_errors import EVERY
from tests.server.running import Running, running

KEY = "RootManageSharedAccessKey:SAS_KEY_VALUE"

KINDS: dict[type[Refused], type[errors.QueueError]] = {
    refusals.NotFound: errors.QueueNotFound,
    refusals.AlreadyExists: errors.ProviderError,
    refusals.MessageNotFound: errors.MessageNotFound,
    refusals.LockLost: errors.MessageNotFound,
    refusals.SessionLocked: errors.SessionLocked,
    refusals.SessionLockLost: errors.SessionLockLost,
    refusals.QuotaExceeded: errors.ProviderError,
    refusals.MessageTooLarge: errors.MessageTooLarge,
    refusals.Duplicate: errors.ProviderError,
    refusals.Disabled: errors.ProviderError,
    refusals.InvalidArgument: errors.ValidationError,
    refusals.NotAllowed: errors.ProviderError,
    refusals.TimedOut: errors.Timeout,
    refusals.TransactionLost: errors.ProviderError,
    refusals.Unauthenticated: errors.AuthenticationFailed,
    refusals.Unauthorized: errors.PermissionDenied,
    refusals.Busy: errors.Throttled,
    refusals.NotLeader: errors.Throttled,
    refusals.Throttled: errors.Throttled,
}


def over_the_wire(refused: Refused, frame_bytes: int = 65_536) -> Problem:
    """As the broker writes it and the client reads it, in a language that nobody knows here."""
    told = conditions.error_of(refused, frame_bytes, "Hodiaŭ ne: 12 kaj 34, wait 9 seconds.")
    problem = problem_in(Reader(told).value())
    assert problem is not None
    return problem


def test_every_refusal_becomes_its_error_whatever_the_text_says() -> None:
    assert set(KINDS) == set(REFUSALS)
    for refused, _ in EVERY:
        assert type(error_of(over_the_wire(refused), "orders")) is KINDS[type(refused)]


def test_an_error_has_its_figures_from_the_facts() -> None:
    large = error_of(over_the_wire(refusals.MessageTooLarge("orders", 300, 256)))
    assert isinstance(large, errors.MessageTooLarge)
    assert (large.size, large.max_size) == (300, 256)
    throttled = error_of(over_the_wire(refusals.Throttled(250)))
    assert throttled.retry_after == 0.25
    assert error_of(over_the_wire(refusals.Busy("much"))).retry_after == BUSY_S
    invalid = error_of(over_the_wire(refusals.InvalidArgument("limit", "must be 1")))
    assert isinstance(invalid, errors.ValidationError)
    assert (invalid.what, invalid.rule) == ("limit", "must be 1")


def test_a_broker_that_serves_nobody_for_a_while_is_told_from_one_with_much_to_do() -> None:
    away: tuple[Refused, ...] = (
        refusals.NotLeader("b:5672"), refusals.NotLeader(""), refusals.Busy("it stops", "stopping"),
    )  # fmt: skip
    for refused in away:
        assert error_of(over_the_wire(refused)).is_unavailable
    starting = error_of(
        Problem("starting", "The broker is starting.", {"posthouse:code": "starting"})
    )
    assert starting.is_unavailable
    assert starting.is_transient
    for error in map(error_of, map(over_the_wire, (refusals.Busy("much"), refusals.Throttled(9)))):
        assert error.is_transient
        assert not error.is_unavailable


def test_what_is_missing_and_no_queue_is_not_told_as_one() -> None:
    rule = error_of(over_the_wire(refusals.NotFound("rule", "cheap", "shop")), "orders")
    assert isinstance(rule, errors.ProviderError)
    assert not rule.is_transient
    queue = error_of(over_the_wire(refusals.NotFound("queue", "orders", "shop")), "orders")
    assert isinstance(queue, errors.QueueNotFound)
    assert (queue.queue_name, queue.namespace) == ("orders", "shop")
    assert "'orders' in the namespace 'shop'" in str(queue)


@pytest.mark.parametrize("refused", [each for each, _ in EVERY], ids=lambda e: type(e).__name__)
def test_a_client_of_small_frames_is_told_the_condition_alone(refused: Refused) -> None:
    problem = over_the_wire(refused, frame_bytes=512)
    assert problem.info == {}
    assert len(conditions.error_of(refused, 512)) < 512
    kinds = {KINDS[type(refused)], errors.PermissionDenied}  # AMQP has one condition for two
    assert type(error_of(problem, "orders")) in kinds


def test_a_long_name_is_cut_in_the_facts() -> None:
    problem = over_the_wire(refusals.NotFound("queue", "x" * 10_000))
    assert len(problem.info["posthouse:name"]) == conditions.FACT_CHARS_MAX


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running("--data", str(tmp_path_factory.mktemp("problems") / "data"), "--dev") as found:
        found.queue("PUT", "orders", {})
        yield found


def test_a_broker_tells_what_was_looked_for_and_in_which_namespace(broker: Running) -> None:
    async def run() -> None:
        async with posthouse.create_client(f"posthouse://{KEY}@127.0.0.1:{broker.port}") as client:
            for call in (
                client.send_message("nowhere", Message(b"x")),
                client.receive_message("nowhere", 1),
                client.peek_messages("nowhere", 1),
            ):
                with pytest.raises(errors.QueueNotFound) as caught:
                    await call
                assert (caught.value.queue_name, caught.value.namespace) == ("nowhere", "default")
            with pytest.raises(errors.MessageTooLarge) as large:
                await client.send_message("orders", Message(bytes(2 << 20)))
            assert large.value.size > large.value.max_size > 0

    asyncio.run(run())
