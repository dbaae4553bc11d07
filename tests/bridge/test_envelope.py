"""The envelope: written and read in both forms, bounded, and never a surprise."""

import json
import time
import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.bridge.envelope import (
    BODY_BYTES_MAX,
    DEPTH_MAX,
    TEXT_CHARS_MAX,
    UNKNOWN_TIME,
    Style,
    decode,
    encode,
    headers_of,
    new_event_id,
    new_trace_id,
    outgoing,
    trace_id_of,
    traceparent_of,
)
from posthouse.bridge.errors import MalformedEvent, PublishFailed, TooLarge
from posthouse.bridge.event import Event

# What the gem writes, as its publisher and the seed's document have it.
RUBY = (
    b'{"event_id":"3f1c9a52-2b7e-4f4e-9f0e-0d6a3c1f9b11","schema_version":1,'
    b'"event_type":"user.created","producer":"api","resource_id":"1",'
    b'"occurred_at":"2024-01-01T00:00:00Z","trace_id":"9f86d081884c7d65",'
    b'"resource_type":"user","payload":{"id":1,"email":"user@example.com"}}'
)
SEED = (
    b'{"event_id": "uuid", "event_type": "user.created", "resource_type": "user",'
    b'"resource_id": "1", "payload": {"id": 1, "email": "user@example.com"},'
    b'"produced_at": "2024-01-01T00:00:00Z", "producer": "api", "schema_version": "1.0",'
    b'"trace_id": "trace-uuid"}'
)
NEW_YEAR = datetime(2024, 1, 1, tzinfo=UTC)


def an_event(**changes: Any) -> Event:
    fields: dict[str, Any] = {
        "id": "e1", "type": "order.created", "payload": {"id": 7}, "producer": "api",
        "resource_type": "order", "resource_id": "7", "occurred_at": NEW_YEAR,
        "trace_id": "9f86d081884c7d65",
    }  # fmt: skip
    return Event(**fields | changes)


def envelope(**fields: Any) -> bytes:
    base = {"event_id": "e1", "event_type": "a.b", "occurred_at": "2024-01-01T00:00:00Z"}
    return json.dumps(base | fields).encode()


texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=TEXT_CHARS_MAX
)
payloads = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip
events = st.builds(
    Event, id=texts.filter(bool), type=texts.filter(bool), payload=payloads, producer=texts,
    resource_type=texts.filter(bool), resource_id=texts.filter(bool),
    occurred_at=st.datetimes(
        datetime(1980, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)  # noqa: DTZ001
    ),
    trace_id=st.binary(min_size=8, max_size=8).map(bytes.hex), schema_version=st.integers(1, 99),
    key=texts, sequence=st.integers(0, 2**63 - 1),
)  # fmt: skip


@pytest.mark.parametrize("style", ["bridge", "cloudevents"])
@given(event=events)
def test_an_event_reads_back_as_it_was_written(style: Style, event: Event) -> None:
    headers = headers_of(event, style)
    read = decode(encode(event, style), headers)
    assert read.headers == {k: v for k, v in headers.items() if k == "traceparent"}
    for name in Event.__slots__:
        assert name == "headers" or getattr(read, name) == getattr(event, name)


@given(st.binary())
def test_any_bytes_are_an_event_or_malformed(body: bytes) -> None:
    try:
        decode(body)
    except MalformedEvent as error:
        assert str(error)  # noqa: PT017


@given(
    st.dictionaries(
        st.sampled_from([
            "event_id", "event_type", "type", "specversion", "schema_version", "occurred_at",
            "produced_at", "time", "key", "sequence", "payload", "data", "trace_id", "id",
            "resource_id", "subject", "schemaversion", "eventsequence", "data_base64",
        ]),
        payloads | st.integers(10**30, 10**60) | st.sampled_from(["1.0", "a.b", "2024-01-01"]),
    ),
    st.dictionaries(
        st.sampled_from(["traceparent", "X-Event-Key", "x-event-sequence", "Nats-Msg-Id", "a"]),
        st.text(),
    ),
)  # fmt: skip
def test_any_fields_and_headers_are_an_event_or_malformed(
    fields: dict[str, Any], headers: dict[str, str]
) -> None:
    body = json.dumps(fields).encode()
    try:
        event = decode(body, headers)
    except MalformedEvent as error:
        assert str(error)  # noqa: PT017
    else:
        for text in (event.id, event.type, event.producer, event.resource_id, event.key):
            assert isinstance(text, str)
            assert len(text) <= TEXT_CHARS_MAX


@given(st.integers(0, len(RUBY) - 1), st.integers(0, 255))
def test_one_changed_byte_gives_an_event_or_malformed(at: int, byte: int) -> None:
    try:
        decode(RUBY[:at] + bytes((byte,)) + RUBY[at + 1 :])
    except MalformedEvent as error:
        assert str(error)  # noqa: PT017


def test_the_envelope_of_the_gem_is_read() -> None:
    assert decode(RUBY) == Event(
        "3f1c9a52-2b7e-4f4e-9f0e-0d6a3c1f9b11", "user.created",
        {"id": 1, "email": "user@example.com"}, "api", "user", "1", NEW_YEAR, "9f86d081884c7d65",
    )  # fmt: skip


def test_the_older_names_of_the_seed_are_read() -> None:
    event = decode(SEED)
    assert (event.id, event.occurred_at, event.schema_version) == ("uuid", NEW_YEAR, 1)
    assert decode(SEED.replace(b"event_type", b"type")).type == "user.created"


def test_the_gem_reads_what_is_written() -> None:
    event = decode(RUBY)
    assert json.loads(encode(event)) == json.loads(RUBY)


def test_a_cloud_event_of_another_is_read() -> None:
    event = decode(json.dumps({
        "specversion": "1.0", "id": "A234-1234", "source": "/shop", "type": "order.created",
        "time": "2024-01-01T01:00:00+01:00", "data": {"id": 7},
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    }).encode())  # fmt: skip
    assert (event.id, event.producer, event.resource_type) == ("A234-1234", "/shop", "order")
    assert event.occurred_at == NEW_YEAR
    assert event.trace_id == "a3ce929d0e0e4736"
    assert event.payload == {"id": 7}


def test_fields_that_are_left_out_have_the_values_of_the_seed() -> None:
    event = decode(b'{"event_type":"order.created","payload":{"id":7}}')
    assert (event.id, event.resource_type, event.resource_id) == ("", "order", "7")
    assert (event.occurred_at, event.schema_version, event.producer) == (UNKNOWN_TIME, 1, "")
    assert decode(b'{"type":"a","payload":{"resource_id":"x"}}').resource_id == "x"


def test_key_and_sequence_come_with_the_headers_where_the_body_has_none() -> None:
    event = an_event(key="Köln/7", sequence=9)
    headers = headers_of(event)
    assert all(text.isascii() for text in headers.values())
    read = decode(encode(an_event()), {name.title(): text for name, text in headers.items()})
    assert (read.key, read.sequence) == ("Köln/7", 9)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[]", "no JSON object"),
        (b"{}", "no event_type"),
        (envelope(event_id=["a"]), "event_id is no text"),
        (envelope(event_id=True), "event_id is no text"),
        (envelope(event_id=10**40), "event_id is no text"),
        (envelope(event_id="x" * 256), "event_id has 256 characters; 255 are the most"),
        (envelope(event_id="a\0b"), "event_id has a character of code 0"),
        (envelope(occurred_at="yesterday"), "occurred_at is no time"),
        (envelope(occurred_at="0001-01-01T00:00:00+23:00"), "occurred_at is no time"),
        (envelope(schema_version="one"), "schema_version is no number"),
        (envelope(schema_version=0), "schema_version is no number"),
        (envelope(schema_version=True), "schema_version is no number"),
        (envelope(sequence=-1), "sequence is no number"),
        (b"[" * 100_000 + b"]" * 100_000, "nested more than 64 deep"),
        (envelope(payload=eval("[" * 64 + "]" * 64)), "nested more than 64 deep"),
        (b" " * (BODY_BYTES_MAX + 1), "8,388,608 are the most"),
        (b'{"specversion":"0.3","type":"a"}', "another version of CloudEvents"),
        (b'{"specversion":"1.0","type":"a","data_base64":"AA=="}', "binary"),
    ],
)
def test_what_cannot_be_read_is_told_with_the_place(body: bytes, why: str) -> None:
    with pytest.raises(MalformedEvent, match=why):
        decode(body)


def test_an_envelope_as_deep_as_is_allowed_is_written_and_read() -> None:
    payload: Any = []
    for _ in range(DEPTH_MAX - 2):
        payload = [payload]
    event = an_event(payload=payload)
    assert decode(encode(event)).payload == payload
    with pytest.raises(PublishFailed, match="nested more than 63 deep"):
        encode(an_event(payload=[payload]))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"payload": object()}, "cannot be written as JSON"),
        ({"payload": "\ud800"}, "cannot be written as JSON"),
        ({"key": "k" * 256}, "its key must be a text of at most 255 characters"),
        ({"id": ""}, "an id and a type"),
        ({"occurred_at": datetime(2024, 1, 1)}, "time zone"),  # noqa: DTZ001
    ],
)
def test_an_event_that_cannot_be_written_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(PublishFailed, match=why) as refused:
        encode(an_event(**changes))
    assert not refused.value.transient


def test_an_event_that_is_too_large_is_refused_by_its_size() -> None:
    with pytest.raises(TooLarge, match="8,388,608"):
        encode(an_event(payload="x" * BODY_BYTES_MAX))


def test_a_nested_payload_that_refers_to_itself_is_refused() -> None:
    payload: list[Any] = []
    payload.append(payload)
    with pytest.raises(PublishFailed, match="cannot be written as JSON"):
        encode(an_event(payload=payload))


@pytest.mark.parametrize(
    "headers",
    [
        {"a b": "x"}, {"": "x"}, {"a:b": "x"}, {"a": "x\r\nNats-Msg-Id: y"}, {"a": "ö"},
        {"a": " x"}, {"Nats-Msg-Id": "x"}, {"nats-expected-stream": "x"}, {"a": "x" * 4_097},
        {f"h{at}": "x" for at in range(65)},
    ],
)  # fmt: skip
def test_headers_that_would_do_harm_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(PublishFailed):
        headers_of(an_event(headers=headers))


def test_a_users_headers_travel_and_may_replace_the_trace() -> None:
    mine = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    event = an_event(headers={"x-tenant": "shop", "Traceparent": mine})
    sent = outgoing(event, "api.sync.worker", delay=2.0)
    assert (sent.id, sent.subject, sent.delay) == ("e1", "api.sync.worker", 2.0)
    assert sent.headers["content-type"] == "application/json"
    read = decode(sent.body, sent.headers)
    assert read.headers == {"x-tenant": "shop", "traceparent": mine}


def test_a_time_is_written_in_utc() -> None:
    event = an_event(occurred_at=NEW_YEAR.astimezone(timezone(timedelta(hours=5))))
    assert json.loads(encode(event))["occurred_at"] == "2024-01-01T00:00:00Z"


def test_event_ids_are_uuids_of_version_7_that_sort_by_time() -> None:
    before = time.time_ns() // 1_000_000
    ids = [new_event_id() for _ in range(1_000)]
    assert len(set(ids)) == len(ids)
    for text in ids:
        found = uuid.UUID(text)
        assert (found.version, found.variant, str(found)) == (7, uuid.RFC_4122, text)
        assert before <= int(text.replace("-", "")[:12], 16) <= time.time_ns() // 1_000_000
    assert [text[:13] for text in ids] == sorted(text[:13] for text in ids)


def test_a_trace_goes_into_the_header_and_back() -> None:
    trace = new_trace_id()
    assert len(trace) == 16
    assert trace_id_of(traceparent_of(trace)) == trace
    assert traceparent_of("trace-uuid") == traceparent_of("0" * 16) == ""
    assert trace_id_of("00-xyz") == trace_id_of("00-" + "x" * 32 + "-a-01") == ""
