"""Hostile texts: SAS tokens and XML. Whatever they are, they are read or refused by ValueError."""

import random
import sys
import time
from collections.abc import Callable

from posthouse.dialects.servicebus import sas, xml
from tests.dialects.servicebus.rig import sas as signed
from tests.fuzz.changes import LARGE, changed

TEXT_SECONDS = 0.1  # of CPU that one may take

_TOKENS = (signed("sb://localhost/q"), signed("http%3a%2f%2fx%2ftopic%2fSubscriptions%2fs"))
_IN_TOKENS = (
    b"%", b"%2", b"%00", b"%ff", b"%2e%2e%2f", b"&", b"=", b"sr=", b"se=", b"sig=", b"skn=", b"://",
    b"/" * 500, b"9" * 400, "\u0130\uff0f\u200f".encode(), *LARGE,
)  # fmt: skip
_DOCUMENTS = (
    b'<?xml version="1.0" encoding="utf-8"?><entry xmlns="http://www.w3.org/2005/Atom"><content'
    b' type="application/xml"><QueueDescription xmlns:i="http://www.w3.org/2001/XMLSchema-instance"'
    b' xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"><LockDuration>'
    b"PT1M</LockDuration><MaxDeliveryCount>10</MaxDeliveryCount><ForwardTo i:nil='true'/>"
    b"</QueueDescription></content></entry>",
    b"<a b='c'>text<d/>&lt;&amp;&#65;<![CDATA[x]]></a>",
)
_IN_DOCUMENTS = (
    b"<!DOCTYPE a [<!ENTITY b 'x'>]>", b"<!ENTITY a SYSTEM 'file:///etc/passwd'>", b"&b;", b"&#0;",
    b"&#x110000;", b"<a>" * 300, b"</a>", b"<a " + b"b='c' " * 100, b"<?php ?>", b"<![CDATA[",
    b"]]>", b"encoding='utf-16'", b"\xff\xfe", b"\xef\xbb\xbf", b"<!--", b"-->", b"x" * 5_000,
    *LARGE,
)  # fmt: skip


def run_tokens(seed: int, cases: int, seconds: float) -> int:
    """How many were read. Raises what should not be, with the text."""

    def play(text: bytes) -> None:
        token = sas.parse(text.decode("utf-8", "surrogateescape"))
        assert not token.fits("wrong")
        assert token.expires < 10**12

    originals = tuple(each.encode() for each in _TOKENS)
    return _run("SAS", play, originals, _IN_TOKENS, seed, cases, seconds)


def run_xml(seed: int, cases: int, seconds: float) -> int:
    def play(text: bytes) -> None:
        xml.read(text).text_of("x")

    return _run("XML", play, _DOCUMENTS, _IN_DOCUMENTS, seed, cases, seconds)


def _run(
    name: str,
    play: Callable[[bytes], None],
    originals: tuple[bytes, ...],
    words: tuple[bytes, ...],
    seed: int,
    cases: int,
    seconds: float,
) -> int:
    end, number = time.monotonic() + seconds, 0
    while number < cases and time.monotonic() < end:
        number += 1
        chance = random.Random(f"{name}-{seed}-{number}")
        text = changed(chance.choice(originals), chance, words)
        begun = time.thread_time()
        try:
            play(text)
        except ValueError:
            pass
        except BaseException:
            sys.stderr.write(f"{name}: case {number} of seed {seed}: {text[:2_000]!r}\n")
            raise
        took = time.thread_time() - begun
        assert took < TEXT_SECONDS, f"{name}: case {number} of seed {seed} took {took:.3f} s"
    return number
