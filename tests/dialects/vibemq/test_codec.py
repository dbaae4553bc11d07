"""Frames do not depend on how the network cuts them; what is changed is a frame or Malformed."""

import os
import struct
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.dialects.vibemq.codec import (
    FRAME_BYTES_MAX,
    Decoder,
    Encoder,
    Frame,
    Type,
    Unsqueezed,
    decode,
    encode,
)
from posthouse.dialects.vibemq.malformed import Malformed
from posthouse.dialects.vibemq.squeezing import METHODS, Squeezed
from tests.dialects.vibemq.client import FLAGGED, GENERATIONS, JSON, Said, cut, written

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
JSONS = st.sampled_from([b"", b"1", b'{"a":[1,null]}', b'"\xc3\xbc"', b'"' + b"x" * 3_000 + b'"'])
FRAMES = st.builds(
    Frame, st.sampled_from(list(Type)).map(int), TEXTS, TEXTS, JSONS,
    st.dictionaries(TEXTS.filter(bool), TEXTS.filter(bool), max_size=4), TEXTS, TEXTS,
)  # fmt: skip


def taken(reader: Decoder, data: bytes) -> list[Frame]:
    """All frames that are whole now."""
    reader.feed(data)
    found: list[Frame] = []
    while (frame := reader.take()) is not None:
        found.append(decode(frame.open()) if isinstance(frame, Squeezed) else frame)
    return found


def decoder(generation: str = FLAGGED) -> Decoder:
    """That has read a Connect, and knows who it is."""
    made = Decoder()
    [first] = taken(made, written(Said(0, "c"), generation))
    assert first == Frame(0, "c")
    made.frame_bytes_max = FRAME_BYTES_MAX
    made.squeezed = True
    return made


def written_by(writer: Encoder, frame: Frame) -> bytes:
    data = writer.frame(without_errors(frame))
    assert isinstance(data, bytes)
    return data


def without_errors(frame: Frame) -> Frame:
    """Only an error says code and text."""
    if frame.type != Type.ERROR:
        frame.code = frame.text = ""
    return frame


@given(FRAMES, st.sampled_from(GENERATIONS), st.booleans())
def test_what_is_written_is_read_again(frame: Frame, generation: str, squeeze: bool) -> None:
    frame = without_errors(frame)
    reader = decoder(generation)
    writer = Encoder(reader)
    writer.method = METHODS["gzip"] if squeeze else None
    data = writer.frame(frame)
    assert isinstance(data, bytes)
    assert taken(reader, data) == [frame]


@given(FRAMES, st.sampled_from(GENERATIONS))
def test_another_reads_what_is_written(frame: Frame, generation: str) -> None:
    frame = without_errors(frame)
    data = Encoder(decoder(generation)).frame(frame)
    assert isinstance(data, bytes)
    [said], rest = cut(data, generation)
    assert rest == b""
    found = (said.type, said.id, said.queue, dict(said.headers), said.code, said.text)
    headers: Mapping[str, str] = frame.headers
    assert found == (
        frame.type, frame.id, frame.queue, dict(headers), frame.code, frame.text
    )  # fmt: skip
    assert generation == JSON or said.payload == frame.payload


@given(st.lists(FRAMES, max_size=4), st.sampled_from(GENERATIONS), st.data())
def test_frames_do_not_depend_on_how_they_are_cut(
    frames: list[Frame], generation: str, data: st.DataObject
) -> None:
    writer = Encoder(decoder(generation))
    whole = b"".join(written_by(writer, each) for each in frames)
    places = data.draw(st.lists(st.integers(0, len(whole)), max_size=8))
    reader, found, before = decoder(generation), [], 0
    for place in [*sorted(places), len(whole)]:
        found += taken(reader, whole[before:place])
        before = place
    assert found == frames


A_FRAME = Frame(99, "id", "queue", b'{"a":1}', {"k": "v", "l": "w"}, "CODE", "text")


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_frame_that_is_cut_is_no_frame_yet_and_one_with_a_byte_changed_one_or_malformed(
    generation: str,
) -> None:
    whole = Encoder(decoder(generation)).frame(A_FRAME)
    assert isinstance(whole, bytes)
    for place in range(len(whole)):
        assert not taken(decoder(generation), whole[:place])
        for value in (0, 1, 0x7F, 0x80, 0xFF, whole[place] ^ 1, whole[place] ^ 0x80):
            changed = whole[:place] + bytes([value]) + whole[place + 1 :]
            try:
                found = taken(decoder(generation), changed)
            except Malformed:
                continue
            assert all(isinstance(each, Frame) for each in found)
            if changed == whole:
                assert found == [A_FRAME]


@given(st.binary(max_size=200))
def test_whatever_is_in_a_body_it_is_a_frame_or_malformed(noise: bytes) -> None:
    body = b"\x01" + noise
    try:
        frame = decode(body)
    except Malformed:
        return
    assert frame.type == body[1]


@given(st.integers(0, 3), st.integers(0, 0xFFFFFFFF), st.binary(max_size=40))
def test_lengths_that_lie_are_found_out(which: int, length: int, rest: bytes) -> None:
    """Of the id, the queue, the payload, or the number of headers."""
    body = b"\x01\x14" + (b"\0\0" * which if which < 3 else b"\0\0" * 4)
    body += struct.pack(
        ">I" if which == 2 else ">H", length & (0xFFFFFFFF if which == 2 else 0xFFFF)
    )
    body += rest
    try:
        frame = decode(body)
    except Malformed:
        return
    assert encode(frame) is not None
    assert len(frame.id) + len(frame.queue) + len(frame.payload) <= len(body)


def test_what_is_too_large_is_not_written() -> None:
    writer = Encoder(decoder())
    assert writer.frame(Frame(26, "i", "q", b'"' + b"x" * FRAME_BYTES_MAX + b'"')) is None
    assert writer.frame(Frame(26, "i" * 65_536)) is None
    assert writer.frame(Frame(26, "i", "q", b"", {"h": "x" * 65_536})) is None
    writer.method = METHODS["gzip"]
    late = writer.frame(Frame(26, "i", "q", b'"' + b"x" * FRAME_BYTES_MAX + b'"'))
    assert isinstance(late, Unsqueezed)
    assert late.write() is not None
    noise = writer.frame(Frame(26, "i", "q", os.urandom(FRAME_BYTES_MAX)))
    assert isinstance(noise, Unsqueezed)
    assert noise.write() is None


def test_a_header_without_a_value_is_none() -> None:
    data = written(Said(20, "m", "q", b"1", {"a": "", "b": "c"}))
    [frame] = taken(decoder(), data)
    assert frame.headers == {"b": "c"}


def test_too_many_headers_are_not_looked_at() -> None:
    data = written(Said(20, "m", "q", b"1", {f"h{n}": "" for n in range(1_001)}))
    with pytest.raises(Malformed):
        taken(decoder(), data)
