"""Attempts at receiving that have an id: who asks again with it is told the same.

The answer may have been lost. What was told is remembered for five minutes, of the last attempts.
"""

import time
from collections import OrderedDict
from typing import NamedTuple

from posthouse.core.message import Attempt

ATTEMPTS_MAX = 10_000
SECONDS = 300.0


class Told(NamedTuple):
    """The deliveries that an attempt was told."""

    received_ms: int
    deliveries: tuple[tuple[Attempt, int], ...]  # and when each message was delivered first


class Attempts:
    """The attempts of the last minutes: by namespace, number of the queue, and id."""

    def __init__(self) -> None:
        self._told: OrderedDict[tuple[str, int, str], tuple[float, Told]] = OrderedDict()

    def put(self, namespace: str, queue: int, id: str, told: Told) -> None:
        key = namespace, queue, id
        self._told.pop(key, None)
        self._told[key] = time.monotonic() + SECONDS, told
        if len(self._told) > ATTEMPTS_MAX:
            self._told.popitem(last=False)

    def get(self, namespace: str, queue: int, id: str) -> Told | None:
        until, told = self._told.get((namespace, queue, id), (0.0, None))
        return told if time.monotonic() < until else None
