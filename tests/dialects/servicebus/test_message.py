"""Messages of Service Bus clients as ours, and back."""

from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.amqp.decode import Reader, decode, sections
from posthouse.amqp.encode import described, encode
from posthouse.amqp.runs import Alike
from posthouse.amqp.types import Described, Int, Malformed, Symbol, Timestamp, UByte, UInt, Value
from posthouse.core.commands import Delivery, Seen
from posthouse.core.message import (
    Envelope,
    Message,
    NewMessage,
    Note,
    decode_envelope,
    encode_envelope,
    span,
    timestamp,
    uuid,
)
from posthouse.dialects.servicebus.message import (
    ANNOTATIONS,
    APPLICATION,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    Messages,
    Unfit,
    read_message,
    split_batch,
    write_deferred,
    write_deliveries,
    write_seen,
)
from tests.amqp.test_codec import SIMPLE


def section(code: int, value: Value) -> bytes:
    return described(code, encode(value))


def new_id() -> str:
    return "made-up"


def read(payload: bytes) -> NewMessage:
    return read_message(payload, new_id)


def standing(new: NewMessage, **fields: Value) -> Message:
    """As it stands in a queue."""
    values = {"sequence": 7, "enqueued_ms": 1_000, "expires_ms": 0} | fields
    return Message(
        values["sequence"], 1, new.envelope, new.native, new.body, new.priority, new.group,
        values["enqueued_ms"], values["expires_ms"], 0, 0, 0,
    )  # fmt: skip


def write_delivery(delivery: Delivery) -> bytes:
    [head], [body] = write_deliveries([delivery])
    return head + body


def delivered(payload: bytes, note: Note | None = None, **fields: Value) -> dict[int, list[Value]]:
    """What is delivered of a message that was sent, by section."""
    message = standing(read(payload), **fields)
    return opened(write_delivery(Delivery(1, 5, 9_000, 3, message, note)))


def opened(payload: bytes) -> dict[int, list[Value]]:
    found: dict[int, list[Value]] = {}
    for code, _, at, end in sections(payload):
        found.setdefault(code, []).append(Reader(payload, at, end).value())
    return found


PLAIN = section(PROPERTIES, ["an id"]) + section(DATA, b"a body")


def test_a_plain_message_is_read() -> None:
    new = read(PLAIN)
    assert new.body == b"a body"
    assert decode_envelope(new.envelope) == Envelope(id="an id")
    assert (new.group, new.priority, new.ttl_ms, new.due_ms) == (None, 4, None, 0)


def test_all_fields_that_dialects_share_are_read() -> None:
    properties = [
        "id", b"user", "to", "subject", "reply", "corr", Symbol("text/plain"), Symbol("gzip"),
        Timestamp(1), Timestamp(2), "session", UInt(3), "replies",
    ]  # fmt: skip
    user = {
        "int": Int(5), "when": Timestamp(6), "who": UUID(int=7), "symbol": Symbol("s"), "no": None,
        "traceparent": "00-trace",
    }  # fmt: skip
    new = read(
        section(HEADER, [True, UByte(7), UInt(60_000)])
        + section(ANNOTATIONS, {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(5_000),
                                Symbol("x-opt-partition-key"): "session"})
        + section(PROPERTIES, properties) + section(APPLICATION, user) + section(DATA, b"")
    )  # fmt: skip
    assert decode_envelope(new.envelope) == Envelope(
        "id", "text/plain", "subject", "corr", "session", "session", "to", "reply", "replies",
        "00-trace", {"int": 5, "when": timestamp(6), "who": uuid(UUID(int=7).bytes), "symbol": "s",
                     "no": None, "traceparent": "00-trace"},
    )  # fmt: skip
    assert (new.group, new.priority, new.ttl_ms, new.due_ms) == ("session", 7, 60_000, 5_000)


def test_types_of_dotnet_are_read() -> None:
    user = {
        "span": Described(Symbol("com.microsoft:timespan"), -7),
        "when": Described(Symbol("com.microsoft:datetime-offset"), 621_355_968_000_050_000),
        "where": Described(Symbol("com.microsoft:uri"), "http://x"),
    }
    payload = section(APPLICATION, user) + section(DATA, b"")
    read_as = {"span": span(-7), "when": timestamp(5), "where": "http://x"}
    assert decode_envelope(read(payload).envelope).properties == read_as
    assert delivered(payload)[APPLICATION] == [user]
    odd = {"span": Described(Symbol("com.microsoft:timespan"), "x")}
    with pytest.raises(Unfit):
        read(section(APPLICATION, odd) + section(DATA, b""))


@pytest.mark.parametrize("id", [UUID(int=5), b"\x01\x02", UInt(7), "text"])
def test_ids_keep_their_types(id: Value) -> None:
    if isinstance(id, UInt):
        payload = described(PROPERTIES, b"\xc0\x03\x01\x53\x07") + section(DATA, b"")
        assert decode_envelope(read(payload).envelope).id == "7"
        assert delivered(payload)[PROPERTIES][0][0] == 7
        return
    payload = section(PROPERTIES, [id]) + section(DATA, b"")
    assert delivered(payload)[PROPERTIES] == [[id]]


@pytest.mark.parametrize(
    "properties", [b"", section(PROPERTIES, []), section(PROPERTIES, [None]),
                                        section(PROPERTIES, [None, None, "to"]),
                                        section(PROPERTIES, ["", None, "to"]),
                                        described(PROPERTIES, b"\x45"),
                                        described(PROPERTIES, b"\xd0\0\0\0\x05\0\0\0\x01\x40")],
)  # fmt: skip
def test_a_message_without_an_id_gets_one(properties: bytes) -> None:
    payload = properties + section(DATA, b"x")
    assert decode_envelope(read(payload).envelope).id == "made-up"
    (found,) = delivered(payload)[PROPERTIES]
    assert found[0] == "made-up"
    assert len(found) < 3 or found[2] == "to"


BODIES = {
    "data": section(DATA, b"x" * 300),
    "nothing": section(DATA, b""),
    "several data": section(DATA, b"a") + section(DATA, b"b"),
    "text": section(VALUE, "é" * 200),
    "bytes as a value": section(VALUE, b"x"),
    "a number": section(VALUE, Int(5)),
    "a map": section(VALUE, {"a": [1, {"b": None}]}),
    "null": section(VALUE, None),
    "sequences": section(SEQUENCE, [1, "a"]) + section(SEQUENCE, []),
    "data with a footer": section(DATA, b"x") + section(FOOTER, {Symbol("f"): 1}),
    "a long form of something short": described(DATA, b"\xb0\0\0\0\x01x"),
    "a long form of short text": described(VALUE, b"\xb1\0\0\0\x01x"),
    "no body": b"",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_bodies_are_kept_byte_for_byte(body: bytes) -> None:
    application = section(APPLICATION, {"a": Int(1)})
    payload = section(PROPERTIES, ["id"]) + application + body
    out = write_delivery(Delivery(1, 5, 9_000, 1, standing(read(payload))))
    assert out.endswith(payload)


def test_bodies_that_others_can_read_are_plain() -> None:
    assert read(section(VALUE, "text")).body == b"text"
    assert read(section(VALUE, b"data")).body == b"data"
    assert decode_envelope(read(section(VALUE, Int(5))).envelope).form == "amqp"
    assert decode_envelope(read(section(DATA, b"x")).envelope).form == ""


def test_annotations_are_kept_but_for_those_that_a_broker_sets() -> None:
    given = {
        Symbol("x-opt-sequence-number"): 99, Symbol("x-opt-locked-until"): Timestamp(99),
        Symbol("mine"): Described(Symbol("a"), Int(3)), Symbol("x-opt-via-partition-key"): "v",
    }  # fmt: skip
    (found,) = delivered(section(ANNOTATIONS, given) + PLAIN)[ANNOTATIONS]
    assert found == {
        "mine": Described(Symbol("a"), Int(3)), "x-opt-via-partition-key": "v",
        "x-opt-enqueued-time": 1_000, "x-opt-sequence-number": 7, "x-opt-locked-until": 9_000,
    }  # fmt: skip
    assert [type(found[Symbol(each)]) for each in ("x-opt-enqueued-time", "x-opt-sequence-number")
            ] == [Timestamp, int]  # fmt: skip


def test_delivery_annotations_are_kept_and_have_the_locks_token() -> None:
    given = {Symbol("x-opt-lock-token"): "theirs", Symbol("mine"): Int(3)}
    token = UUID(int=5)
    note = Note({"changed": 5})
    payload = section(DELIVERY_ANNOTATIONS, given) + PLAIN
    for noted in (None, note):
        found = delivered(payload, noted)
        assert found[DELIVERY_ANNOTATIONS] == [{"mine": 3, "x-opt-lock-token": token}]
        assert found[PROPERTIES][0][0] == "an id"
        assert found[DATA] == [b"a body"]
    assert delivered(PLAIN)[DELIVERY_ANNOTATIONS] == [{"x-opt-lock-token": token}]
    taken = opened(write_delivery(Delivery(1, 0, 0, 1, standing(read(PLAIN)))))
    assert taken[DELIVERY_ANNOTATIONS] == [{}]


@pytest.mark.parametrize("given", [b"\x45", b"\xa1\x01x", section(DATA, b"x")[3:]])
def test_delivery_annotations_that_are_no_map_are_malformed(given: bytes) -> None:
    with pytest.raises(Malformed):
        read(b"\x00\x53\x71" + given + PLAIN)


def test_the_header_says_how_often_and_how_long() -> None:
    (header,) = delivered(section(HEADER, [True, UByte(3)]) + PLAIN, expires_ms=6_000)[HEADER]
    assert header == [True, 3, 5_000, None, 2]


def test_dead_letters_say_why() -> None:
    note = Note({"changed": 5}, "bad", "very bad", "orders", 3)
    found = delivered(section(APPLICATION, {"a": Int(1), "changed": "x"}) + PLAIN, note)
    assert found[APPLICATION] == [
        {"a": 1, "changed": 5, "DeadLetterReason": "bad", "DeadLetterErrorDescription": "very bad"}
    ]
    (annotations,) = found[ANNOTATIONS]
    assert annotations[Symbol("x-opt-deadletter-source")] == "orders"
    assert annotations[Symbol("x-opt-enqueue-sequence-number")] == 3
    assert found[DATA] == [b"a body"]


def test_peeked_and_deferred_messages_say_so() -> None:
    message = standing(read(PLAIN))
    seen = opened(write_seen(Seen(message, "scheduled", False, None)))
    assert seen[ANNOTATIONS][0][Symbol("x-opt-message-state")] == 2
    assert "x-opt-locked-until" not in seen[ANNOTATIONS][0]
    token = bytes(range(16))
    deferred = opened(write_deferred(Delivery(1, 5, 9_000, 1, message), token=token))
    assert deferred[ANNOTATIONS][0][Symbol("x-opt-message-state")] == 1
    assert deferred[0x71] == [{"x-opt-lock-token": UUID(bytes=token)}]


def test_what_other_dialects_sent_is_delivered() -> None:
    envelope = Envelope(
        "id", "text/plain", "subject", "corr", None, "key", "to", "reply",
        properties={"n": 1, "big": 1 << 63, "when": timestamp(5), "who": uuid(bytes(16))},
    )  # fmt: skip
    message = standing(NewMessage(encode_envelope(envelope), b"body", priority=6))
    found = opened(write_delivery(Delivery(1, 0, 0, 1, message)))
    assert found[HEADER][0][1] == 6
    assert found[PROPERTIES][0][:7] == ["id", None, "to", "subject", "reply", "corr", "text/plain"]
    assert found[APPLICATION] == [{"n": 1, "big": 1 << 63, "when": 5, "who": UUID(int=0)}]
    assert found[ANNOTATIONS][0][Symbol("x-opt-partition-key")] == "key"
    assert found[DATA] == [b"body"]
    bare = opened(write_delivery(Delivery(1, 0, 0, 1, standing(NewMessage(b"", b"x")))))
    assert bare[PROPERTIES][0][0] == "7"


def test_a_batch_is_split() -> None:
    payload = section(PROPERTIES, ["x"]) + section(DATA, PLAIN) + section(DATA, PLAIN)
    assert split_batch(payload, 2) == [PLAIN, PLAIN]
    with pytest.raises(Unfit):
        split_batch(payload, 1)
    assert split_batch(b"", 1) == []


@pytest.mark.parametrize(
    "payload",
    [
        section(ANNOTATIONS, {Symbol("x-opt-partition-key"): "a"})
        + section(PROPERTIES, ["id", *[None] * 9, "b"]),
        section(PROPERTIES, ["x" * 129]),
        section(PROPERTIES, ["id", *[None] * 9, "s" * 129]),
        section(ANNOTATIONS, {Symbol("x-opt-partition-key"): "k" * 129}),
        section(APPLICATION, {"x" * 261: 1}),
        section(APPLICATION, {"x": [1]}),
        section(FOOTER, {}),
    ],
)
def test_what_cannot_be_is_unfit(payload: bytes) -> None:
    with pytest.raises(Unfit):
        read(payload)


@pytest.mark.parametrize(
    "payload",
    [
        b"junk", section(0x79, None), section(PROPERTIES, 5), section(PROPERTIES, [None] * 14),
        section(PROPERTIES, ["id", None, 5]), section(PROPERTIES, [[]]), section(HEADER, [5]),
        section(HEADER, [None, "x"]), section(ANNOTATIONS, [1]), section(APPLICATION, [1]),
        section(APPLICATION, {5: 5}), section(DATA, "text"),
        section(DATA, b"") + section(VALUE, None), section(VALUE, 1) + section(VALUE, 2),
        section(ANNOTATIONS, {}).replace(b"\xc1\x01\x00", b"\xc1\x05\x02\xc0\x01\x00\x40"),
        section(HEADER, [None] * 6), described(ANNOTATIONS, b"\xc1\x03\x03\x40\x40"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_malformed(payload: bytes) -> None:
    with pytest.raises(Malformed):
        read(payload)


WHOLE = st.builds(
    lambda header, annotations, id, rest, user, body: (
        header + annotations + section(PROPERTIES, [id, *rest]) + user + section(DATA, body)
    ),
    st.sampled_from([b"", section(HEADER, [True]), section(HEADER, [None, UByte(2)])]),
    st.sampled_from([b"", section(ANNOTATIONS, {Symbol("a"): 1})]),
    st.text(max_size=40) | st.uuids().map(str) | st.sampled_from(["a", "b", None]),
    st.sampled_from([[], [None, None, "to"], [None, None, None, None, None, "a"]]),
    st.sampled_from([b"", section(APPLICATION, {"a": "a"})]),
    st.sampled_from([b"", b"x", b"x" * 255, b"x" * 256, b"x" * 300]),
)
MESSAGES = WHOLE | st.just(b"")


@given(st.lists(MESSAGES, min_size=2, max_size=8), st.data())
def test_messages_of_one_sender_are_read_as_each_by_itself(
    payloads: list[bytes], draw: st.DataObject
) -> None:
    reads = Messages(new_id)
    for payload in payloads:
        data = bytearray(payload)
        if data and draw.draw(st.booleans()):
            data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
        try:
            alone = read(bytes(data))
        except (Malformed, Unfit) as problem:
            with pytest.raises(type(problem)):
                reads.read(bytes(data))
            continue
        assert reads.read(bytes(data)) == alone


def as_they_come(payloads: list[bytes]) -> Sequence[bytes]:
    """In one piece where they are of one size."""
    if len(set(map(len, payloads))) > 1:
        return payloads
    return Alike(memoryview(b"".join(b"head" + each for each in payloads)), 4, 4 + len(payloads[0]))


ALIKE = st.builds(
    lambda ids, body: [section(PROPERTIES, [id]) + section(DATA, body) for id in ids],
    st.lists(st.integers(0, 99).map(lambda n: f"id-{n:02}"), min_size=8, max_size=20),
    st.sampled_from([b"x", b"y" * 300]),
)


@given(st.lists(WHOLE, min_size=2, max_size=8) | st.builds(
    lambda some, odd, at: [*some[:at], *odd, *some[at:]],
    ALIKE, st.lists(WHOLE | st.just(section(PROPERTIES, ["id-\u00e4"]) + section(DATA, b"x")),
                    max_size=1), st.integers(0, 20),
))  # fmt: skip
def test_messages_are_read_alike_as_far_as_they_are(given: list[bytes]) -> None:
    reads, payloads = Messages(new_id), as_they_come(given)
    at = 0
    while at < len(payloads):
        alike = reads.read_alike(payloads, at)
        assert alike == [read(each) for each in payloads[at : at + len(alike)]]
        at += len(alike)
        if at < len(payloads):
            assert reads.read(payloads[at]) == read(payloads[at])
            at += 1


@given(
    st.lists(
        st.tuples(
            MESSAGES, st.sampled_from([0, 5]), st.sampled_from([1, 3]),
            st.sampled_from([None, Note({"a": 1})]), st.sampled_from([0, 60_000]),
        ),
        max_size=8,
    )
)  # fmt: skip
def test_messages_are_written_together_as_each_by_itself(
    given: list[tuple[bytes, int, int, Note | None, int]],
) -> None:
    deliveries = [
        Delivery(1, token, 9_000, count, standing(read(payload), expires_ms=expires_ms), note)
        for payload, token, count, note, expires_ms in given
    ]
    written = zip(*write_deliveries(deliveries), strict=True)
    assert list(map(b"".join, written)) == [write_delivery(each) for each in deliveries]


@given(st.dictionaries(st.text(max_size=10), SIMPLE, max_size=6))
def test_properties_of_every_type_come_back_as_they_went(user: dict[str, Value]) -> None:
    payload = section(APPLICATION, user) + section(DATA, b"x")
    assert delivered(payload)[APPLICATION] == [user]
    amended = delivered(payload, Note({"new": 1}))[APPLICATION]
    assert decode(encode(amended[0])) == {**user, "new": 1}
