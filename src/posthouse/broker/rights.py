"""Transactions and sessions end when the principal that has begun them loses its rights.

Waits, streams and connections look again by themselves (`Watchers`) when an account has changed. A
transaction or a session has no connection that would: its owner is known here.
"""

from collections.abc import Iterator
from typing import NamedTuple

from posthouse.broker.access import Access, Principal, Watchers
from posthouse.core.commands import (
    TRANSACTIONS_MAX,
    AcceptSession,
    Command,
    Commit,
    ReleaseSession,
    RollBack,
)
from posthouse.core.errors import Unauthorized
from posthouse.core.model import State
from posthouse.core.namespaces import Namespaces, SpaceCommand

SESSIONS_NOTED = 100_000  # whose holders are known; others end when their locks do

Ending = tuple[State, Command]  # a command that ends something, and the namespace it is for


class _Held(NamedTuple):
    """A session, and who was given it."""

    principal: Principal
    namespace: str
    command: AcceptSession


class Rights:
    """Asks `access`, and knows whose the transactions and sessions of a broker are.

    Some that have ended are known as well. A session that ends with a connection is not.
    """

    def __init__(self, access: Access, world: Namespaces) -> None:
        self._access = access
        self._world = world
        self._owners: dict[int, Principal] = {}  # of transactions
        self._sessions: dict[int, _Held] = {}
        self.watchers = Watchers()  # callbacks for changes of accounts
        for account in world.accounts.values():
            access.note(account.name, account)

    def check(self, principal: Principal, namespace: str, command: Command | SpaceCommand) -> None:
        """Raises Unauthorized."""
        self._access.check(self._world.accounts, principal, namespace, command)

    def may(self, principal: Principal, namespace: str, command: Command | SpaceCommand) -> bool:
        try:
            self.check(principal, namespace, command)
        except Unauthorized:
            return False
        return True

    def owned(self, principal: Principal, transaction: int) -> int:
        """The transaction's number; or 0, which none has, where another began it."""
        is_owner = self._owners.get(transaction) == principal or principal.everything
        return transaction if is_owner else 0

    def note_transaction(self, principal: Principal, transaction: int) -> None:
        states = self._world.states.values()
        if len(self._owners) >= 2 * TRANSACTIONS_MAX * len(states):
            is_open = {number for state in states for number in state.transactions}
            self._owners = {n: owner for n, owner in self._owners.items() if n in is_open}
        self._owners[transaction] = principal

    def note_session(
        self, principal: Principal, namespace: str, command: AcceptSession, token: int
    ) -> Iterator[Ending]:
        """Gives what ends it, where its holder lost the right while it was under way."""
        if command.bound or principal.everything:
            return
        if len(self._sessions) > 2 * SESSIONS_NOTED:
            is_held = {token for state in self._world.states.values() for token in state.sessions}
            kept = [(t, held) for t, held in self._sessions.items() if t in is_held]
            self._sessions = dict(kept[-SESSIONS_NOTED:])
        held = self._sessions[token] = _Held(principal, namespace, command)
        yield from self._ended_session(token, held)

    def note_account(self, name: str) -> Iterator[Ending]:
        """An account has changed. Gives what ends that its principal may not go on with."""
        self._access.note(name, self._world.accounts.get(name))
        for state in self._world.states.values():
            for number in list(state.transactions):
                owner = self._owners.get(number)
                if owner is not None and owner.name == name:
                    yield from self._ended_transaction(state, number, owner)
        for token, held in list(self._sessions.items()):
            if held.principal.name == name:
                yield from self._ended_session(token, held)
        self.watchers.note(name)

    def _ended_transaction(self, state: State, number: int, owner: Principal) -> Iterator[Ending]:
        """Yields what ends a transaction, unless its owner may still do all that it contains."""
        commands = (Commit(number), *state.transactions[number].work)
        if not all(self.may(owner, state.name, command) for command in commands):
            yield state, RollBack(number)

    def _ended_session(self, token: int, held: _Held) -> Iterator[Ending]:
        """Yields what ends a session, unless its holder may still receive from it."""
        state = self._world.states.get(held.namespace)
        if state is None or token not in state.sessions:
            del self._sessions[token]
        elif not self.may(held.principal, held.namespace, held.command):
            del self._sessions[token]
            yield state, ReleaseSession(held.command.queue, token)
