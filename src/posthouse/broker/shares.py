"""Shares of limits: the principal that something limited counts for, and how much it may have.

The core counts what there is by who made it, and refuses more than a share. The engine says who
that is; nobody else can. It counts itself what waits to be decided.
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

import msgspec

from posthouse.broker.access import ANYBODY, BROKER, ROOT, Accounts, Principal
from posthouse.core.commands import (
    Attach,
    Begin,
    Command,
    CreateQueue,
    CreateSubscription,
    Send,
    SetSchedule,
    StartJob,
)
from posthouse.core.namespaces import CreateNamespace, SetAccount, SetReader, SpaceCommand
from posthouse.core.shares import NOBODY, Holder, share_of

# The commands that make something limited in number; a send only where it may have to wait.
MAKES = frozenset((
    Attach, Begin, CreateQueue, CreateSubscription, Send, SetSchedule, CreateNamespace, SetAccount,
    SetReader, StartJob,
))  # fmt: skip
_MAKERS_MAX = 10  # that are followed from a key of an entity to who made that entity's key

Given = TypeVar("Given", bound=Command | SpaceCommand)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Shares:
    """The shares of one engine's principals; it works on the accounts of that engine."""

    def __init__(self, percent: int, accounts: Accounts) -> None:
        self.percent = percent
        self._accounts = accounts
        self._commands: Counter[str] = Counter()  # that wait, by whose they are
        self._bytes: Counter[str] = Counter()

    def of(self, most: int) -> int:
        """The share of a limit that one principal may hold."""
        return share_of(most, self.percent)

    def name(self, principal: Principal) -> str:
        """The name of the principal that something counts for.

        It is empty for the root, for the broker itself, and where no credentials are asked for. A
        key of one entity can be made by whoever manages that, any number of them: what is done with
        such keys counts for their maker.
        """
        name = principal.name
        is_root = name == ROOT and principal.everything and not principal.account
        if is_root or principal in (BROKER, ANYBODY):
            return ""
        for _ in range(_MAKERS_MAX):
            account = self._accounts.get(name) if "@" in name else None
            if account is None or not account.by:
                break
            name = account.by
        return name

    def holder(self, principal: Principal) -> Holder:
        name = self.name(principal)
        return Holder(name, self.percent) if name else NOBODY

    def signed(self, principal: Principal, command: Given) -> Given:
        """A command of `MAKES` with who gives it, whatever it says itself."""
        return msgspec.structs.replace(command, by=self.holder(principal))

    # Commands that wait to be decided.

    def may_wait(self, name: str, size_bytes: int, commands: int, bytes_: int) -> bool:
        """Whether somebody's command may wait too, of so many and so much that may in all."""
        return not name or (
            self._commands[name] < self.of(commands)
            and self._bytes[name] + size_bytes <= self.of(bytes_)
        )

    def waits(self, name: str, size_bytes: int) -> None:
        if name:
            self._commands[name] += 1
            self._bytes[name] += size_bytes

    def waits_no_more(self, name: str, size_bytes: int) -> None:
        if name:
            self._commands[name] -= 1
            self._bytes[name] -= size_bytes
            if not self._commands[name]:
                del self._commands[name], self._bytes[name]


class Remembered(Generic[K, V]):
    """The latest of something, by their keys, so many in all.

    Where there are more the oldest is forgotten: of him whose share is used up, else of all.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._all: OrderedDict[K, tuple[str, V]] = OrderedDict()  # with whose it is
        self._by: dict[str, OrderedDict[K, None]] = {}

    def put(self, key: K, value: V, name: str, percent: int) -> None:
        """Puts an entry as the latest of a principal; forgets the oldest if there are too many."""
        self.pop(key)
        self._all[key] = (name, value)
        own = self._by.setdefault(name, OrderedDict())
        own[key] = None
        if name and len(own) > share_of(self._most, percent):
            self.pop(next(iter(own)))
        elif len(self._all) > self._most:
            self.pop(next(iter(self._all)))

    def get(self, key: K) -> V | None:
        found = self._all.get(key)
        return None if found is None else found[1]

    def pop(self, key: K) -> None:
        name, _ = self._all.pop(key, ("", None))
        own = self._by.get(name, OrderedDict())
        own.pop(key, None)
        if not own:
            self._by.pop(name, None)

    def items(self) -> Iterator[tuple[K, V]]:
        """The oldest first."""
        return ((key, value) for key, (_, value) in self._all.items())
