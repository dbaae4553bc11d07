"""The messages that have been received and not settled, by their receipts.

A receipt is valid in the client that received it. The client knows when a receipt is used up or
too old, even where the provider itself would still accept it.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Generic, TypeVar

from posthouse.client.errors import MessageNotFound, ProviderError
from posthouse.client.messages import utc_now
from posthouse.client.provider import ProviderType

HELD_MAX = 10_000  # messages of one client

T = TypeVar("T")


class Held(Generic[T]):
    def __init__(self, provider: ProviderType, now: Callable[[], datetime] = utc_now) -> None:
        self._provider = provider
        self._now = now
        self._all: dict[str, tuple[T, datetime]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def room(self, most: int) -> int:
        """Returns how many more may be received, up to `most`. Raises ProviderError if none may."""
        if len(self._all) + most > HELD_MAX:
            now = self._now()
            for handle in [each for each, (_, until) in self._all.items() if until <= now]:
                del self._all[handle]
            if len(self._all) >= HELD_MAX:
                told = f"{HELD_MAX} messages are received and not settled; settle some first."
                raise ProviderError(self._provider.value, "held", told)
        return min(most, HELD_MAX - len(self._all))

    def put(self, handle: str, what: T, until: datetime) -> None:
        self._all[handle] = what, until

    def get(self, handle: str) -> T:
        """Raises MessageNotFound where it is settled, or its time is up."""
        found = self._all.get(handle)
        if found is None:
            raise MessageNotFound(handle)
        if found[1] <= self._now():
            del self._all[handle]
            raise MessageNotFound(handle)
        return found[0]

    def take(self, handle: str) -> tuple[T, datetime]:
        """Takes a message out to settle it, so that nobody else can. Raises MessageNotFound."""
        what = self.get(handle)
        return what, self._all.pop(handle)[1]

    def knows(self, handle: str) -> bool:
        found = self._all.get(handle)
        return found is not None and found[1] > self._now()

    def extend(self, handle: str, until: datetime) -> None:
        found = self._all.get(handle)
        if found is not None:
            self._all[handle] = found[0], until

    def drop(self, handle: str) -> None:
        self._all.pop(handle, None)
