"""A hold: by an operator's wish a cluster writes nothing for a while.

The members of NATS are to be changed only while nothing is written. A hold ends by itself at a time
that is set when it begins, so that nobody forgets it.
"""

import asyncio
from collections.abc import Callable

HOLD_SECONDS = 600.0
HOLD_SECONDS_MAX = 86_400.0


class Hold:
    """`changed` is called when it begins, and when it ends."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._timer: asyncio.TimerHandle | None = None

    @property
    def seconds(self) -> float:
        """The seconds that are left; 0 where nothing is held."""
        if self._timer is None:
            return 0.0
        return max(0.0, self._timer.when() - asyncio.get_running_loop().time())

    @property
    def is_on(self) -> bool:
        return self._timer is not None

    def begin(self, seconds: float) -> None:
        """Begins, or sets another end."""
        self.close()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.end)
        self._changed()

    def end(self) -> None:
        if self._timer is not None:
            self.close()
            self._changed()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
