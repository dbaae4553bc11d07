"""Warnings in the log for the operator of a broker that goes on all the same."""

import asyncio
import logging
import time

from posthouse.broker.clock import STEP_MS
from posthouse.broker.engine import Engine
from posthouse.store import Segments

_log = logging.getLogger(__name__)

FULL_TELL_SECONDS = 60  # between lines about a full disk
AHEAD_LOOK_SECONDS = 60  # how often the clock is looked at
AHEAD_TELL_SECONDS = 3_600  # between lines about a clock that is ahead


async def watch_room(engine: Engine, segments: Segments) -> None:
    """Says in the log that the disk is full, and when it is not any more. Until it is cancelled."""
    while True:
        await segments.filled.wait()
        before = engine.figures.no_space
        waited = 0
        while engine.store.full:
            if waited % FULL_TELL_SECONDS == 0:
                await _tell_full(engine, segments)
            waited += 1
            await asyncio.sleep(1)
        refused = engine.figures.no_space - before
        _log.warning(
            "The disk of %s has room again; %d commands were refused while it was full.",
            segments.folder, refused, extra={"event": "store.has_room", "refused": refused},
        )  # fmt: skip
        await asyncio.sleep(1)  # a disk that is on the brink does not fill the log


async def _tell_full(engine: Engine, segments: Segments) -> None:
    room = await asyncio.to_thread(segments.room)
    refused = engine.figures.no_space
    _log.error(
        "The disk of %s is full, so sends are refused; receiving and settling go on. %d bytes are"
        " free, of %d that the next segment needs; the journal has %d, Arrow segments have %d."
        " Free space on this disk, receive messages that wait, or give the broker a larger disk;"
        " on a small one, set a smaller segment_size.",
        segments.folder, room.free, segments.segment_bytes, room.journal, room.arrow,
        extra={"event": "store.full", "free_bytes": room.free, "journal_bytes": room.journal,
               "arrow_bytes": room.arrow, "refused": refused},
    )  # fmt: skip


async def watch_store(engine: Engine, name: str) -> None:
    """Says in the log that a store without segments is full, until it is cancelled."""
    is_told = False
    while True:
        waited = 0
        while engine.store.full:
            if waited % FULL_TELL_SECONDS == 0:
                is_told = True
                _log.error(
                    "%s has little room left, so sends are refused; receiving and settling go on."
                    " %d bytes are free. Give it more room, or receive messages that wait.", name,
                    engine.store.spare_bytes,
                    extra={"event": "store.full", "free_bytes": engine.store.spare_bytes,
                           "refused": engine.figures.no_space},
                )  # fmt: skip
            waited += 1
            await asyncio.sleep(1)
        if is_told:
            is_told = False
            _log.warning("%s has room again.", name, extra={"event": "store.has_room"})
        await asyncio.sleep(1)


async def watch_clock(engine: Engine, mend: str) -> None:
    """Says in the log that the broker's time is ahead of the machine's. Until it is cancelled.

    `mend`: what to do about it.
    """
    due = 0.0
    while True:
        ahead_ms = ahead_of(engine)
        if ahead_ms and time.monotonic() >= due:
            due = time.monotonic() + AHEAD_TELL_SECONDS
            _log.warning(
                "The broker's time is %d seconds ahead of the machine's clock, which was wrong once"
                " and was set back: it never goes back by itself. Messages, locks and schedules go"
                " by the broker's time. %s", ahead_ms // 1_000, mend,
                extra={"event": "clock.ahead", "ahead_seconds": ahead_ms // 1_000},
            )  # fmt: skip
        await asyncio.sleep(AHEAD_LOOK_SECONDS)


def ahead_of(engine: Engine) -> int:
    """The milliseconds that the broker's clock is ahead, where they are worth a warning; else 0."""
    ahead_ms = engine.ahead_ms()
    return ahead_ms if ahead_ms > STEP_MS else 0
