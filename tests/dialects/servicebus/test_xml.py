"""XML from strangers: what is read of it, and what is not."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.dialects.servicebus.times import duration, duration_ms, moment, moment_ms
from posthouse.dialects.servicebus.xml import BYTES_MAX, element, read, text


def test_elements_are_found_by_their_names_whatever_their_prefixes() -> None:
    root = read(
        b'<a:entry xmlns:a="urn:a"><content><Q xmlns="urn:q" xmlns:x="urn:i" x:type="p:int">'
        b"<One> 1 </One><Two/><Gone x:nil='true'>x</Gone></Q></content></a:entry>"
    )
    found = root.find("Q")
    assert found is not None
    assert (root.name, found.attributes) == ("entry", {"type": "p:int"})
    assert [found.text_of(each) for each in ("One", "Two", "Gone", "None")] == ["1", "", None, None]


BOMB = '<!DOCTYPE b [<!ENTITY a "aaaaaaaaaa">' + "".join(
    f'<!ENTITY a{n} "{"&a" + (str(n - 1) if n else "") + ";"}{"&a;" * 9}">' for n in range(1, 9)
)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"   ", b"<a>", b"</a>", b"<a></b>", b"text", b"<a/><b/>", b"\xff\xfe<\x00a\x00/\x00",
        b"<a>&unknown;</a>", b"<a>\x00</a>", b"<a b=1/>", b"<a xmlns:x=''><x:b/></a>",
        b"<!DOCTYPE a><a/>", b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>',
        b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
        b'<!DOCTYPE a [<!ENTITY % x SYSTEM "http://127.0.0.1:1/x">%x;]><a/>',
        (BOMB + "]><b>&a8;</b>").encode(), b"<?php echo 1 ?><a/>", b"<a><?x?></a>",
        b"<a>" * 25 + b"</a>" * 25, b"<r>" + b"<a/>" * 4_001 + b"</r>",
        b"<a>" + b"x" * BYTES_MAX + b"</a>",
    ],
    ids=lambda data: repr(data[:30]),
)  # fmt: skip
def test_what_is_not_plain_xml_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="document"):
        read(data)


@pytest.mark.parametrize("name", ["foo", "hex", "rot13", "utf-7", "utf-16", "a" * 5_000])
def test_what_a_document_says_of_its_encoding_is_not_asked_of_anybody(name: str) -> None:
    """Python's codecs would be, and fail in their own ways."""
    root = read(f'<?xml version="1.0" encoding="{name}"?><a>\u00e4</a>'.encode())
    assert (root.name, root.text) == ("a", "\u00e4")


@given(st.binary(max_size=200))
def test_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(ValueError):
        read(data)


@given(st.text(), st.text())
def test_whatever_is_said_can_be_read_back(said: str, other: str) -> None:
    """But for characters that XML cannot say, which are left out, and for kinds of line ends."""
    written = element("r", [text("a", said, i_type=other)], xmlns_i="urn:i")
    child = read(written.encode()).child("a")
    assert child is not None

    def sayable(given: str) -> str:
        kept = (c for c in given if c in "\t\n\r" or " " <= c <= "\ud7ff" or c >= "\ue000")
        return "".join(kept).replace("\ufffe", "").replace("\uffff", "")

    assert child.text == sayable(said).replace("\r\n", "\n").replace("\r", "\n")


@pytest.mark.parametrize(
    ("text", "ms"),
    [("PT1M", 60_000), ("P1D", 86_400_000), ("P1DT2H3M4.5S", 93_784_500), ("PT0S", 0),
     ("P10675199DT2H48M5.4775807S", None), ("PT0.001S", 1)],
)  # fmt: skip
def test_durations_there_and_back(text: str, ms: int | None) -> None:
    assert duration_ms(text) == ms
    assert duration(ms) == text


@given(st.integers(1, 10**14))
def test_every_duration_can_be_said(ms: int) -> None:
    assert duration_ms(duration(ms)) == ms


@pytest.mark.parametrize(
    "bad", ["", "P", "PT", "P1Y", "1", "PT1", "PT-1S", "P1.5D", "pt1s", "PT1H1H"]
)
def test_what_is_no_duration_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        duration_ms(bad)


@given(st.integers(1, 253_402_300_799_999))
def test_every_moment_can_be_said(unix_ms: int) -> None:
    assert moment_ms(moment(unix_ms)) == unix_ms


def test_moments_have_an_end() -> None:
    assert moment(0).startswith("0001-01-01")
    assert moment(1 << 62).startswith("9999-12-31")


def test_a_text_between_many_elements_is_put_together() -> None:
    pieces = 3_900
    root = read(("<a>\U0001f600" + "a" * 220_000 + "<b/>x" * pieces + "</a>").encode())
    assert root.text == "\U0001f600" + "a" * 220_000 + "x" * pieces


def test_what_xml_cannot_say_is_left_out() -> None:
    said = text("a", "x\0\x1b\ud800\ufffe\uffff\t\n<\U0001f600\ufffdy")
    assert read(said.encode()).text == "x\t\n<\U0001f600\ufffdy"
