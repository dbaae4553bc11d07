"""Backpressure: how much of a connection is read and looked at before others have their turn."""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import cast

TURN_SECONDS = 0.005  # for which the bytes of one client are looked at before others have a turn,
STRANGER_TURN_SECONDS = 0.001  # and those of one that has not shown who it is
# uvloop reads a connection up to 32 times, 250 KB each, before it looks at another. What follows a
# turn within this time is part of it.
SAME_TURN_SECONDS = 0.0001


class Turn:
    """How long the bytes of one connection may hold the event loop.

    A peer calls `begin` when it looks at bytes, asks `is_over` between two frames, and calls `end`
    when it stops. Where frames are left it does not read, and calls `wait`: `go_on` is called
    behind everything else that is due. A turn has room for one frame at least.
    """

    __slots__ = ("_ended", "_go_on", "_left", "_until", "is_waiting", "seconds")

    def __init__(self, go_on: Callable[[], None], seconds: float = STRANGER_TURN_SECONDS) -> None:
        self.seconds = seconds
        self.is_waiting = False
        self._go_on = go_on
        self._ended = self._until = self._left = 0.0

    def begin(self) -> None:
        now = perf_counter()
        if now - self._ended > SAME_TURN_SECONDS:
            self._left = self.seconds
        self._until = now + self._left

    def is_over(self) -> bool:
        return perf_counter() >= self._until

    def end(self) -> None:
        self._ended = perf_counter()
        self._left = self._until - self._ended

    def wait(self) -> None:
        if not self.is_waiting:
            self.is_waiting = True
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        self.is_waiting = False
        self._ended = 0.0
        self._go_on()


class Backpressure:
    """When one connection is read from: nothing is read that could not be dealt with.

    It is not read from while its client does not take what it is told, while too much of what it
    has asked is not answered, while frames are left for its next turn, and while its peer holds it.

    A peer counts what it asks, if it has limits for that, calls `pause` and `resume` as its
    transport does, and tells at the end of each turn whether frames are left. It sets `transport`
    before it does any of that.
    """

    __slots__ = (
        "_bytes_max", "_commands_max", "is_behind", "is_held", "is_paused", "is_reading",
        "transport", "turn", "unanswered_bytes", "under_way",
    )  # fmt: skip

    def __init__(
        self, go_on: Callable[[], None], *, commands_max: int = 1, bytes_max: int = 1
    ) -> None:
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)  # once it is made
        self.turn = Turn(go_on)
        self._commands_max, self._bytes_max = commands_max, bytes_max
        self.under_way = self.unanswered_bytes = 0  # commands, and bytes of what was sent
        self.is_reading = True
        self.is_paused = False  # the client does not read
        self.is_behind = False  # frames are left for the next turn
        self.is_held = False  # the peer wants nothing more for now

    @property
    def has_room(self) -> bool:
        """Whether more can be asked."""
        return not (
            self.is_paused or self.is_held or self.under_way >= self._commands_max
            or self.unanswered_bytes >= self._bytes_max
        )  # fmt: skip

    def adjust(self) -> None:
        """Reads, or stops reading, as it should be now."""
        wanted = not (  # as `has_room`; this is asked at the end of every turn
            self.is_behind or self.is_paused or self.is_held
            or self.under_way >= self._commands_max or self.unanswered_bytes >= self._bytes_max
        )  # fmt: skip
        transport = self.transport
        if wanted == self.is_reading or transport.is_closing():
            return
        self.is_reading = wanted
        if wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()

    # What was asked and is not answered.

    def command_begun(self) -> None:
        self.under_way += 1
        if self.under_way >= self._commands_max:
            self.adjust()

    def command_done(self) -> None:
        self.under_way -= 1
        if not self.is_reading:
            self.adjust()

    def count_unanswered(self, change: int) -> None:
        """Bytes of messages that were sent and are not answered yet."""
        self.unanswered_bytes += change
        if not self.is_reading or self.unanswered_bytes >= self._bytes_max:
            self.adjust()

    # Who does not read, and who is to wait.

    def pause(self) -> None:
        """The client does not take what it was told: it is not read from, nor looked at."""
        self.is_paused = True
        self.adjust()

    def resume(self) -> None:
        """Reads from the client again. Bytes that came meanwhile are decoded in a later turn."""
        self.is_paused = False
        self.turn.wait()
        self.adjust()

    def hold(self) -> None:
        self.is_held = True
        self.adjust()

    def release(self) -> None:
        self.is_held = False
        self.adjust()

    # Turns.

    @property
    def may_look(self) -> bool:
        """Whether bytes may be decoded as they come; else they wait for a later turn."""
        return not (self.turn.is_waiting or self.is_paused)

    def end_turn(self, *, is_behind: bool) -> None:
        """Ends a turn whose answers are written. `is_behind`: frames are left for the next turn."""
        self.is_behind = is_behind
        if is_behind and not self.is_paused:
            self.turn.wait()
        self.adjust()
