"""The status of transactions, for clients that ask about one that has ended."""

from uuid import UUID

from posthouse.core.commands import TRANSACTIONS_MAX

TIMEOUT_MS = 60_000
REMEMBERED_MAX = 2 * TRANSACTIONS_MAX
ACTIVE, COMMITTED, ROLLED_BACK, FAILED = "active", "committed", "rolled_back", "failed"


def id_of(number: int) -> str:
    """Returns the id that clients know a transaction by."""
    return str(UUID(int=number))


def number_of(id: str) -> int:
    """0, which none has, where it is no such id."""
    try:
        return UUID(id).int if len(id) == 36 else 0
    except ValueError:
        return 0


class Ledger:
    """The youngest transactions, by their numbers."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, int]] = {}  # status, and until when it may be open

    def begun(self, number: int, until_ms: int) -> None:
        if len(self._known) >= REMEMBERED_MAX:
            del self._known[next(iter(self._known))]
        self._known[number] = (ACTIVE, until_ms)

    def ended(self, number: int, status: str) -> None:
        if number in self._known:
            self._known[number] = (status, self._known[number][1])

    def why_not(self, id: str, now_ms: int) -> str:
        """Why nothing can be asked of it."""
        status, until_ms = self._known.get(number_of(id), ("", 0))
        if not status:
            return "Invalid transaction ID"
        if status == ACTIVE and now_ms >= until_ms:
            return f"Transaction {id} has expired"
        return f"Transaction {id} is not active (status: {status})"
