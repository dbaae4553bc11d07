"""What can go wrong, and what a caller is told about it."""

import inspect
import pickle
from datetime import UTC, datetime

import pytest

import posthouse
from posthouse import (
    AuthenticationFailed,
    BatchTooLarge,
    CircuitOpen,
    ConfigurationError,
    ConnectionFailed,
    InvalidEnvelope,
    KeyNotFound,
    MessageExpired,
    MessageNotFound,
    MessageTooLarge,
    NonceReused,
    NotAuthentic,
    PartialFailure,
    PermissionDenied,
    PlaintextRefused,
    ProviderError,
    QueueError,
    QueueNotFound,
    SerializationError,
    SessionLocked,
    SessionLockLost,
    SessionNotFound,
    Throttled,
    Timeout,
    Unsupported,
    UnsupportedVersion,
    ValidationError,
)

WHEN = datetime(2026, 1, 1, tzinfo=UTC)

# Each with whether the same call may succeed later, and after how long.
ERRORS: list[tuple[QueueError, bool, float | None]] = [
    (QueueNotFound("orders"), False, None),
    (MessageNotFound("r-1"), False, None),
    (SessionLocked("s-1", WHEN), True, 5.0),
    (SessionNotFound("s-1"), False, None),
    (SessionLockLost("s-1"), False, None),
    (Timeout(1.5), True, 1.0),
    (ConnectionFailed("gone"), True, 5.0),
    (AuthenticationFailed("no"), False, None),
    (PermissionDenied("send"), False, None),
    (MessageTooLarge(2, 1), False, None),
    (BatchTooLarge(11, 10), False, None),
    (PartialFailure({0: ConnectionFailed("gone")}, {1: "m-1"}), True, None),
    (PartialFailure({0: MessageTooLarge(2, 1)}, {}), False, None),
    (ProviderError("AWS", "500", "broken"), True, None),
    (ProviderError("AWS", "400", "wrong", is_transient=False), False, None),
    (Throttled("AWS", "429", "slower"), True, 60.0),
    (Throttled("AWS", "429", "slower", 7.0), True, 7.0),
    (CircuitOpen(3.0), True, 3.0),
    (SerializationError("no"), False, None),
    (ConfigurationError("port", "is bad"), False, None),
    (ValidationError("queue name", "is bad"), False, None),
    (Unsupported("AWS", "peek"), False, None),
    (NotAuthentic("m-1"), False, None),
    (MessageExpired(WHEN, 300), False, None),
    (KeyNotFound("k-1"), False, None),
    (NonceReused("m-1"), False, None),
    (UnsupportedVersion(2), False, None),
    (InvalidEnvelope("is none"), False, None),
    (PlaintextRefused("m-1"), False, None),
]


def test_every_error_is_in_the_list() -> None:
    listed = {type(error) for error, _, _ in ERRORS} | {QueueError, posthouse.EncryptionError}
    there = {getattr(posthouse, name) for name in posthouse.__all__}
    assert {each for each in there if inspect.isclass(each) and issubclass(each, QueueError)} == (
        listed
    )


@pytest.mark.parametrize(("error", "transient", "after"), ERRORS, ids=lambda each: repr(each)[:24])
def test_an_error_says_whether_to_try_again(
    error: QueueError, transient: bool, after: float | None
) -> None:
    assert error.is_transient is error.should_retry is transient
    assert error.retry_after == after


@pytest.mark.parametrize(
    "error", [error for error, _, _ in ERRORS], ids=lambda each: repr(each)[:24]
)
def test_an_error_survives_the_way_to_another_process(error: QueueError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.retry_after == error.retry_after
    assert vars(again).keys() == vars(error).keys()


def test_an_error_carries_what_it_is_about() -> None:
    assert QueueNotFound("orders").queue_name == "orders"
    assert MessageNotFound("r-1").receipt == "r-1"
    locked = SessionLocked("s-1", WHEN)
    assert (locked.session_id, locked.locked_until) == ("s-1", WHEN)
    large = MessageTooLarge(2, 1)
    assert (large.size, large.max_size) == (2, 1)
    assert PermissionDenied("send").operation == "send"
    assert "send" in str(PermissionDenied("send"))
    assert ProviderError("AWS", "500", "broken").code == "500"
    assert ConfigurationError("port", "is bad").field == "port"
    assert KeyNotFound("k-1").key_id == "k-1"


def test_errors_are_also_what_python_calls_them() -> None:
    assert isinstance(Timeout(1), TimeoutError)
    assert isinstance(ConnectionFailed("x"), ConnectionError)
    assert isinstance(ValidationError("a", "b"), ValueError)
    assert isinstance(SessionLockLost("s"), SessionNotFound)
    assert isinstance(Throttled("a", "b", "c"), ProviderError)
