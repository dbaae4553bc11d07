"""Memory that is held for others: so much for all of them, and an equal share for each.

Who holds less than his share always has room, however much the others hold. So nobody can use up
what is there for others, and one alone can have all of it.
"""

from collections import Counter
from typing import TypeAlias

from posthouse.server.listener import Connection

Holder: TypeAlias = tuple[str, str]  # the principal, and its address


class Allowance:
    """Bytes of one kind."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = 0
        self._by_holder: Counter[Holder] = Counter()

    def has_room(self, holder: Holder, size: int) -> bool:
        if self._used + size <= self._most or not self._used:
            return True
        held = self._by_holder.get(holder, 0)
        holders = len(self._by_holder) + (not held)
        return held + size <= self._most // holders

    def change(self, holder: Holder, size: int) -> None:
        """Adds to the bytes that a holder has, or subtracts from them."""
        self._used += size
        self._by_holder[holder] += size
        if not self._by_holder[holder]:
            del self._by_holder[holder]


class Allowances:
    """Strangers have one of their own: what they hold takes nothing from clients."""

    def __init__(self, clients: int, strangers: int) -> None:
        self._clients = Allowance(clients)
        self._strangers = Allowance(strangers)

    def of(self, connection: Connection) -> tuple[Allowance, Holder]:
        """The allowance that a connection counts for now; its bytes are given back to the same."""
        if connection.principal is None:
            return self._strangers, ("", connection.source)
        return self._clients, (connection.principal, connection.source)
