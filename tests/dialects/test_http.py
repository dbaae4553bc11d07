"""What is the same over HTTP in every dialect, and in the server's own API."""

from base64 import b64encode

import pytest

from posthouse.broker.throttle import Throttle
from posthouse.core.errors import Busy, NotFound, NotLeader, Throttled, Unauthenticated
from posthouse.dialects.http import (
    CORRELATION_CHARS_MAX,
    allow,
    charge,
    charge_messages,
    correlation_id,
    name_and_secret,
    retry_after,
)


def basic(text: bytes) -> bytes:
    return b"Basic " + b64encode(text)


def test_a_name_and_a_secret_are_read_from_basic_credentials() -> None:
    assert name_and_secret(basic(b"ann:a:b ")) == ("ann", "a:b ")
    assert name_and_secret(basic(b"ann:").replace(b"Basic", b"bAsIc")) == ("ann", "")
    assert name_and_secret(basic("jörg:schlüssel".encode())) == ("jörg", "schlüssel")


def test_a_bearer_of_a_name_and_a_secret_is_known_only_where_that_is_taken() -> None:
    assert name_and_secret(b"Bearer ann:key", bearer=True) == ("ann", "key")
    with pytest.raises(Unauthenticated):
        name_and_secret(b"Bearer ann:key")


@pytest.mark.parametrize(
    "given",
    [b"", b"Basic", b"Basic !", b"Basic " + b64encode(b"ann"), basic(b"\xff:\xff"), b"Digest x:y"],
)
def test_credentials_that_cannot_be_read_are_nobody_s(given: bytes) -> None:
    with pytest.raises(Unauthenticated):
        name_and_secret(given, bearer=True)


def test_an_id_of_a_request_is_printable_and_bounded() -> None:
    headers = {b"a": b"\x00\xff", b"b": b"x\r\ny\x1b", b"c": b"z" * 500}
    assert correlation_id(headers, b"a", b"b", b"c") == "xy"
    assert correlation_id(headers, b"c") == "z" * CORRELATION_CHARS_MAX
    assert correlation_id(headers, b"a", b"d") == ""


def test_a_refusal_that_passes_says_when_to_ask_again() -> None:
    assert retry_after(Throttled(1_001)) == ((b"retry-after", b"2"),)
    assert retry_after(Busy("full")) == retry_after(NotLeader("b")) == ((b"retry-after", b"1"),)
    assert retry_after(NotFound("queue", "q")) == ()


def test_a_path_says_what_it_takes() -> None:
    assert allow({"GET": 1, "PUT": 2}) == (b"allow", b"GET, PUT")


class Asked:
    address = "192.0.2.1"


def test_a_request_takes_one_of_its_address_s_rate_and_its_messages_the_rest() -> None:
    throttle = Throttle(address=10)
    charge(throttle, Asked())  # type: ignore[arg-type]  # all that is looked at is its address
    charge_messages(throttle, Asked(), 1)  # type: ignore[arg-type]
    charge(throttle, Asked())  # type: ignore[arg-type]
    charge_messages(throttle, Asked(), 1_000)  # type: ignore[arg-type]
    with pytest.raises(Throttled):
        charge(throttle, Asked())  # type: ignore[arg-type]
    free = Throttle()
    charge_messages(free, Asked(), 1_000)  # type: ignore[arg-type]
    charge(free, Asked())  # type: ignore[arg-type]
