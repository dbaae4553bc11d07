"""Frames: however they are cut, and whatever is changed in them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.dialects.pyqueue.codec import (
    FRAME_BYTES_MAX,
    WORD_BYTES_MAX,
    Decoder,
    Frame,
    Malformed,
    Pattern,
    encode,
)

words = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ_-", min_size=1, max_size=WORD_BYTES_MAX)
frames = st.builds(Frame, words.map(str.encode), st.binary(max_size=300), st.booleans())


def taken(pieces: list[bytes]) -> list[Frame]:
    decoder, found = Decoder(), []
    for each in pieces:
        decoder.feed(each)
        while (frame := decoder.take()) is not None:
            found.append(frame)
    return found


def written(some: list[Frame]) -> bytes:
    return b"".join(encode(each.word, each.payload, binary=each.binary) for each in some)


def test_a_frame_is_written_as_the_protocol_says() -> None:
    assert encode(b"PING") == b"PING 0 "
    assert encode(b"PUSH", b"hello") == b"PUSH 5 hello"
    assert encode(b"PUSH", b"hello", binary=True) == b"PUSH \0\0\0\5hello"


@given(st.lists(frames, max_size=5), st.lists(st.integers(0, 2_000), max_size=10))
def test_frames_do_not_depend_on_how_the_network_cuts_them(
    some: list[Frame], cuts: list[int]
) -> None:
    data = written(some)
    places = sorted({0, len(data), *(at for at in cuts if at < len(data))})
    pieces = [data[a:b] for a, b in pairwise(places)]
    assert taken(pieces) == some


def test_frames_cut_at_every_byte_are_the_same_frames() -> None:
    some = [Frame(b"PUSH", b"hello"), Frame(b"PING", b""), Frame(b"ACK", b"id " * 9, True)]
    data = written(some)
    for at in range(len(data) + 1):
        assert taken([data[:at], data[at:]]) == some
    assert taken([bytes([each]) for each in data]) == some


@given(st.lists(frames, min_size=1, max_size=4), st.data())
def test_one_byte_changed_gives_frames_or_an_error_and_nothing_else(
    some: list[Frame], data: st.DataObject
) -> None:
    whole = bytearray(written(some))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    try:
        found = taken([bytes(whole)])
    except Malformed:
        return
    assert sum(len(each.payload) for each in found) <= len(whole)


@given(st.binary(max_size=200))
def test_noise_is_frames_or_an_error(noise: bytes) -> None:
    try:
        taken([noise])
    except Malformed:
        return


@pytest.mark.parametrize("data", [
    b"PUSH 99999999 x", b"PUSH 10485760 ", b"PUSH 999999999", b"PUSH -1 x", b"PUSH +5 hello",
    b"PUSH 0x5 hello", b"PUSH 5_0 x", b"PUSH  5 hello", b"PUSH 5\thello", b" 5 hello",
    b"PU$H 5 hello", b"PUSH 1\xb2 x", b"A" * 33, b"PUSH \0\xff\xff\xff", b"P\0 5 hello",
    b"PUSH \0\xa0\0\0",
])  # fmt: skip
def test_a_length_or_word_that_cannot_be_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        taken([data])


def test_a_lying_length_is_waited_for_and_holds_no_more_than_what_came() -> None:
    decoder = Decoder()
    decoder.feed(b"PUSH 1000 abc")
    assert decoder.take() is None
    assert decoder.held_bytes == 13
    decoder.feed(b"d")
    assert decoder.take() is None
    assert decoder.held_bytes == 14


def test_the_largest_frame_is_taken_and_one_byte_more_is_not() -> None:
    head = b"PUSH 10485746 "
    body = bytes(FRAME_BYTES_MAX - len(head))
    assert taken([head, body[:7], body[7:]]) == [Frame(b"PUSH", body)]
    with pytest.raises(Malformed):
        taken([b"PUSH 10485747 "])


def test_who_is_not_trusted_may_send_less() -> None:
    decoder = Decoder(100)
    decoder.feed(b"PUSH 101 ")
    with pytest.raises(Malformed):
        decoder.take()


PATTERN = Pattern(b"ACK 3 ", 3, ord("{"), b"PULL 1 q", 7)


@given(
    st.lists(st.sampled_from([b"ACK 3 abc", b"PULL 1 q", b"ACK 3 {bc", b"PULL 1 r", b"ACK 2 ab"])),
    st.integers(0, 8), st.integers(0, 8), st.integers(0, 8), st.integers(0, 3),
)  # fmt: skip
def test_repeated_frames_are_those_that_would_be_taken_one_by_one(
    frames: list[bytes], most: int, sized_max: int, same_max: int, cut: int
) -> None:
    data = b"".join(frames)
    data = data[: len(data) - cut]
    decoder, other = Decoder(), Decoder()
    decoder.feed(data)
    other.feed(data)
    marks, payloads, end = decoder.repeats(PATTERN, most, sized_max, same_max)
    assert len(marks) <= most
    assert marks.count(0) == len(payloads) <= sized_max
    assert marks.count(7) <= same_max
    decoder.skip_to(end)
    left = iter(payloads)
    for mark in marks:
        word, payload = (b"PULL", b"q") if mark else (b"ACK", next(left))
        assert other.take() == Frame(word, payload)
    assert decoder.take() == other.take()


def test_no_frame_is_repeated_where_there_was_none_to_repeat() -> None:
    decoder = Decoder()
    decoder.feed(b"PULL 1 qACK 3 abc")
    assert decoder.repeats(PATTERN._replace(same=b"", mark=0), 9, 9, 9) == ([], [], 0)
