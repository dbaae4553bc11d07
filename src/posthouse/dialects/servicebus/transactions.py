"""Transactions (part 4 of AMQP): a coordinator to declare and discharge them, and their states."""

from collections.abc import Callable
from typing import Protocol

from posthouse.amqp.decode import Reader, sections
from posthouse.amqp.encode import described, encode, encode_list
from posthouse.amqp.events import Arrived, Disposed
from posthouse.amqp.performatives import ACCEPTED, code_of, rejected
from posthouse.amqp.session import Link
from posthouse.amqp.types import Described, Malformed, Value
from posthouse.broker.access import BROKER, Principal
from posthouse.core.commands import Answer, Begin, Begun, Commit, RollBack, RolledBack
from posthouse.core.errors import Refused, Unauthorized
from posthouse.dialects.servicebus import conditions
from posthouse.dialects.servicebus.commands import Commands
from posthouse.dialects.servicebus.message import VALUE
from posthouse.store.errors import StoreError

COORDINATOR_CREDIT = 100
OPEN_MAX = 1_000  # transactions of one connection
COORDINATOR_BYTES_MAX = 4_096  # of what it is asked
TRANSACTIONAL = 0x34  # 4.5.8
_DECLARE, _DISCHARGE, _DECLARED = 0x31, 0x32, 0x33

Reply = Answer | Refused | StoreError


def transaction_in(state: Described | None) -> tuple[bytes, Described | None] | None:
    """The transaction that a delivery state speaks of, and the outcome in it; None: of none."""
    if state is None or code_of(state) != TRANSACTIONAL:
        return None
    fields = state.value if isinstance(state.value, list) else []
    id, outcome = (*fields, None, None)[:2]
    return (
        id if isinstance(id, bytes) else b"",
        outcome if isinstance(outcome, Described) else None,
    )


def within(id: bytes, outcome: bytes) -> bytes:
    """An outcome as part of a transaction."""
    return described(TRANSACTIONAL, encode_list((encode(id), outcome)))


class CoordinatorOwner(Protocol):
    """A connection, as its coordinators see it."""

    def is_shown(self, principal: Principal, now: float) -> bool:
        """Whether the client has shown to be this one, and what it has shown is still good."""

    def turn_away(self, context: "Coordinator", condition: str, text: str) -> None:
        """Detaches a link from this side, of which nothing more is told."""

    def rejection_of(self, refused: Refused | StoreError, text: str | None = None) -> bytes:
        """A refusal as the outcome of a delivery."""

    def flush_soon(self) -> None: ...


class Coordinator:
    """Transactions are declared and discharged through it, and end with it."""

    def __init__(
        self,
        peer: CoordinatorOwner,
        commands: Commands,
        link: Link,
        principal: Principal,
        namespace: str,
    ) -> None:
        self.target = None
        self.is_idle, self.idle_since = False, 0.0
        self._peer = peer
        self._commands = commands
        self.link = link
        self._principal = principal
        self._namespace = namespace
        self._mine: set[bytes] = set()  # declared through this link, and not discharged

    def start(self) -> None:
        self.link.grant(COORDINATOR_CREDIT)

    def may_stay(self, now: float) -> bool:
        """Whether a token of its principal is valid, and the principal has some right."""
        commands = self._commands
        if not self._peer.is_shown(self._principal, now):
            return False
        try:
            commands.engine.check(commands.acting(self._principal), self._namespace, Begin())
        except Unauthorized:
            return False
        return True

    def _submit(self, command: Begin | Commit | RollBack, reply: Callable[[Reply], None]) -> None:
        principal = self._commands.acting(self._principal)
        self._commands.engine.submit(principal, self._namespace, command, reply)

    def on_arrived(self, event: Arrived) -> None:
        self.is_idle = False
        if event.payload is None or event.settled:
            self._peer.turn_away(self, conditions.TOO_LARGE, "This is nothing to coordinate.")
            return
        try:
            code, fields = _asked(event.payload)
        except Malformed as malformed:
            self._tell(event.delivery_id, rejected("amqp:decode-error", f"{malformed}."))
            return
        if code == _DECLARE:
            self._declare(event.delivery_id)
        elif code == _DISCHARGE:
            id, fail = (*fields, None, None)[:2]
            self._discharge(event.delivery_id, id, fail=bool(fail))
        else:
            text = "A coordinator takes declare and discharge."
            self._tell(event.delivery_id, rejected(conditions.NOT_IMPLEMENTED, text))

    def _declare(self, delivery_id: int) -> None:
        if len(self._commands.transactions) >= OPEN_MAX:
            text = f"A connection has at most {OPEN_MAX} open transactions."
            self._tell(delivery_id, rejected("amqp:resource-limit-exceeded", text))
            return

        def reply(answer: Reply) -> None:
            if not isinstance(answer, Begun):
                assert isinstance(answer, Refused | StoreError)
                self._refuse(delivery_id, answer)
            elif not self.link.is_open:
                self._roll_back(answer.transaction)
            else:
                id = answer.transaction.to_bytes(16, "big")
                self._commands.transactions[id] = answer.transaction
                self._mine.add(id)
                self._tell(delivery_id, described(_DECLARED, encode_list((encode(id),))))

        self._submit(Begin(), reply)

    def _discharge(self, delivery_id: int, id: Value, *, fail: bool) -> None:
        number = self._commands.transactions.pop(id, None) if isinstance(id, bytes) else None
        if number is None:
            text = "There is no such transaction on this connection."
            self._tell(delivery_id, rejected(conditions.UNKNOWN_TRANSACTION, text))
            return
        self._mine.discard(id)

        def reply(answer: Reply) -> None:
            if isinstance(answer, RolledBack):
                self._tell(delivery_id, rejected(conditions.ROLLED_BACK, answer.reason))
            elif isinstance(answer, Refused | StoreError):
                self._refuse(delivery_id, answer)
                self._roll_back(number)  # nobody can name it any more
            else:
                self._tell(delivery_id, ACCEPTED)

        command = RollBack(number) if fail else Commit(number)
        self._submit(command, reply)

    def _refuse(self, delivery_id: int, answer: Refused | StoreError) -> None:
        self._tell(delivery_id, self._peer.rejection_of(answer))

    def _tell(self, delivery_id: int, state: bytes) -> None:
        link = self.link
        if link.is_open:
            link.settle([delivery_id], state)
            if link.credit < COORDINATOR_CREDIT // 2:
                link.grant(COORDINATOR_CREDIT)
            self._peer.flush_soon()

    def _roll_back(self, number: int) -> None:
        """Rolls back for the client, which may have lost its rights meanwhile."""
        self._commands.engine.submit(BROKER, self._namespace, RollBack(number), lambda _: None)

    def on_disposed(self, event: Disposed) -> None:
        pass

    def on_flowed(self) -> None:
        pass

    def on_detached(self) -> None:
        """Rolls back the transactions that were not discharged (4.3)."""
        for id in self._mine:
            number = self._commands.transactions.pop(id, None)
            if number is not None:  # else it was discharged
                self._roll_back(number)
        self._mine.clear()


def _asked(payload: bytes) -> tuple[int, list[Value]]:
    """Returns the code and the fields of a request to the coordinator. Raises Malformed."""
    for code, _, at, end in sections(payload):
        if code == VALUE:
            value = Reader(payload, at, end).value()
            if isinstance(value, Described):
                return code_of(value), value.value if isinstance(value.value, list) else []
    raise Malformed("the message is not a declare or discharge")
