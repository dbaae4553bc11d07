"""Hostile texts for filters and actions: ones that are right, changed a little.

Whatever is written, it is compiled or a SyntaxProblem. Whatever message it then looks at, the
answer is true, false, unknown or an EvaluationProblem; an action gives an amendment or one.
"""

import math
import random
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from posthouse.core.checks import check_properties
from posthouse.core.filters.problems import EvaluationProblem, SyntaxProblem
from posthouse.core.filters.sql import compile_action, compile_filter
from posthouse.core.filters.view import MessageView
from posthouse.core.message import (
    Envelope,
    Properties,
    decode_envelope,
    encode_envelope,
    timestamp,
    uuid,
)

TEXT_SECONDS = 0.1  # of CPU that one may take, with three messages that it looks at
FILTERS = (
    "color = 'red' AND quantity > 10 OR NOT EXISTS(user.[odd name])",
    "sys.Label LIKE '%bus\\_%_x' ESCAPE '\\' AND sys.To NOT IN ('a', 'b''c', @text)",
    "(price * 2.5e1 - -quantity) / 3 % 7 <> 0.5 OR price IS NOT NULL",
    "property('col' + 'or') <= p(\"color\") OR newid() = @id OR 1=1",
    "sys.EnqueuedTimeUtc >= @time AND ((flag) = TRUE) AND data <> NULL",
    "a+b+c+1-2*3/4%5 in(1,2,3.5,'x',NULL,@id,-9223372036854775808)",
    "color like color escape color OR huge + 1 = huge * huge",
)
ACTIONS = (
    "SET color = 'dark ' + color; SET sys.Label = newid(); REMOVE quantity",
    "SET sys.TimeToLive = '00:10:00', SET price = '5', SET [odd name] = @text + 9 REMOVE color;",
    "SET sys.ScheduledEnqueueTimeUtc = '2030-01-01T00:00:00Z' SET n = 1 SET n = n * 2.5 - data",
)
PARAMETERS: Properties = {"text": "t%", "@id": uuid(bytes(16)), "time": timestamp(5), "n": None}
SCRAPS = (
    "'", "''", '"', "[", "]", "(", ")", "%", "_", "-", "+", "*", "/", "@", ".", ",", ";", "=", "<>",
    "\\", " ", "\n", "\0", "\ud800", "é", "0", "9" * 19, "1e308", "NOT ", "NULL", " IN (", " AND ",
    "LIKE", "ESCAPE 'a'", "sys.", "user.", "SET ", "REMOVE ", "EXISTS(", "((((((", "- - - -", "p(",
)  # fmt: skip


def _views() -> list[MessageView]:
    message: Properties = {
        "Color": "red", "quantity": 12, "price": 1.5, "flag": True, "odd name": None,
        "data": b"\0", "huge": (1 << 64) - 1, "a": -(1 << 63), "b": math.inf, "c": math.nan,
        "long": "a" * 50_000, "n": uuid(bytes(16)), "p": timestamp(-1), "sys": "%a%a%a%b",
    }  # fmt: skip
    full = Envelope(id="i", subject="bus_ x", to="t", session_id="s", properties=message)
    return [
        MessageView(data, new_id=lambda: bytes(16), enqueued_ms=7, ttl_ms=5)
        for data in (encode_envelope(full), encode_envelope(Envelope()), b"\xc1")
    ]


def changed(text: str, chance: random.Random) -> str:
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at, what = chance.randrange(len(text) + 1), chance.randrange(6)
        if what == 0:
            text = text[:at] + text[at + 1 :]
        elif what == 1:
            text = text[:at] + chr(chance.randrange(32, 127)) + text[at + 1 :]
        elif what == 2:
            text = text[:at] + chance.choice(SCRAPS) + text[at:]
        elif what == 3:
            text = text[:at] + chance.choice(SCRAPS) * chance.choice((2, 50, 1_000)) + text[at:]
        elif what == 4:
            text = text[:at] + chr(chance.choice((0x0, 0x85, 0x2028, 0x1F600, 0xDFFF))) + text[at:]
        else:
            other = chance.choice(FILTERS + ACTIONS)
            text = text[:at] + other[chance.randrange(len(other)) :]
    return text


def check_column(column: int, text: str) -> None:
    assert 1 <= column <= len(text) + 1, column


def play(text: str, views: list[MessageView], *, is_action: bool) -> None:
    try:
        check = _action(text) if is_action else _filter(text)
    except SyntaxProblem as problem:
        check_column(problem.column, text)
        return
    for view in views:
        with suppress(EvaluationProblem):
            check(view)


def _filter(text: str) -> Callable[[MessageView], None]:
    predicate = compile_filter(text, PARAMETERS)

    def check(view: MessageView) -> None:
        truth = predicate(view)
        assert truth is True or truth is False or truth is None, truth

    return check


def _action(text: str) -> Callable[[MessageView], None]:
    action = compile_action(text, PARAMETERS)

    def check(view: MessageView) -> None:
        amendment = action(view)
        check_properties(amendment.properties)
        fields = {k: v for k, v in amendment.fields.items() if k not in ("ttl_ms", "due_ms")}
        decode_envelope(encode_envelope(msgspec.structs.replace(view.envelope, **fields)))

    return check


def run(seed: int, cases: int, seconds: float) -> int:
    """How many cases were played. Raises what should not be, with the case's text."""
    views = _views()
    end = time.monotonic() + seconds
    number = 0
    while number < cases and time.monotonic() < end:
        number += 1
        chance = random.Random(f"filters-{seed}-{number}")
        is_action = chance.random() < 0.3
        text = changed(chance.choice(ACTIONS if is_action else FILTERS), chance)
        begun = time.thread_time()
        try:
            play(text, views, is_action=is_action)
            took = time.thread_time() - begun
            assert took < TEXT_SECONDS, f"it took {took:.3f} s"
        except BaseException:
            sys.stderr.write(f"filters: case {number} of seed {seed}: {text!r}\n")
            raise
    return number
