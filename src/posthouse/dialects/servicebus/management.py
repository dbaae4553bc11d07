"""Requests to a queue's $management node.

Each operation reads its request and says which command that is, and how its answer is told. The
status is 200 where something was done and 204 where nothing was found: clients look at it.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar
from uuid import UUID

from posthouse.amqp.types import Array, Int, Malformed, Symbol, Timestamp, Value
from posthouse.core.commands import (
    BATCH_MAX,
    PAGE_MAX,
    RULES_MAX,
    STEPS_MAX,
    TEXT_CHARS_MAX,
    TIME_MS_MAX,
    Abandon,
    Answer,
    Cancel,
    Command,
    Complete,
    DeadLetter,
    Defer,
    Enqueued,
    GetSessionState,
    ListRules,
    ListSessions,
    Peek,
    Peeked,
    Progress,
    Purge,
    Receive,
    Received,
    ReceiveDeferred,
    RemoveRule,
    Renew,
    RenewSession,
    Send,
    SetRule,
    SetSessionState,
    Settle,
    Settled,
    Work,
)
from posthouse.core.errors import MessageTooLarge, Refused, SessionLockLost
from posthouse.core.message import ACTIVE
from posthouse.core.rules import Rule
from posthouse.core.settling import Ending
from posthouse.dialects.servicebus import conditions
from posthouse.dialects.servicebus.commands import Commands
from posthouse.dialects.servicebus.links import changes
from posthouse.dialects.servicebus.message import Unfit, read_message, write_deferred, write_seen
from posthouse.dialects.servicebus.requests import Reply, Request
from posthouse.dialects.servicebus.rules import read_rule, write_rule
from posthouse.dialects.servicebus.target import Target
from posthouse.store.errors import StoreError

OK, NOTHING = 200, 204
SESSIONS_WITH_MESSAGES_MS = 253_402_300_800_000  # what clients say for "never mind the time"
DELETE_MAX = 4_000
_PREFIX = "com.microsoft:"

Kind = TypeVar("Kind")


class Told(NamedTuple):
    status: int
    body: dict[Value, Value]
    condition: str = ""
    text: str = ""
    facts: Mapping[str, str | int] = {}


Tell = Callable[[Told], None]


class Ask(NamedTuple):
    """A command, and what its answer means."""

    command: Command
    tell: Callable[[Answer], Told]


class ManagementNode:
    """Answers the requests of one node, on behalf of whoever attached to it."""

    def __init__(
        self, commands: Commands, target: Target, session_token: Callable[[Target, str], int]
    ) -> None:
        self._commands = commands
        self._target = target
        self._session_token = session_token  # of a session that the connection holds; or 0

    def answer(self, request: Request, reply: Reply) -> None:
        """Raises nothing: every request has an answer."""

        def tell(told: Told) -> None:
            reply(_properties(told), told.body)

        name = request.text("operation")
        operation = _OPERATIONS.get(name.removeprefix(_PREFIX))
        if operation is None:
            tell(Told(501, {}, conditions.NOT_IMPLEMENTED, f"There is no operation {name!r}."))
            return
        try:
            if not isinstance(request.body, dict):
                raise Unfit("The request is not a map.")  # noqa: TRY301 (told below with the rest)
            asked = operation(self, request)
        except Unfit as unfit:
            tell(Told(400, {}, unfit.condition, str(unfit)))
        except Malformed as malformed:
            tell(Told(400, {}, conditions.ARGUMENT, f"A message cannot be read: {malformed}."))
        except Refused as refused:
            tell(_refused(refused))
        else:
            if request.transaction is not None:
                self._enlist(request.transaction, asked, tell)
            elif isinstance(asked, Ask):
                self._submit(asked, tell)
            else:
                asked(tell)

    def _enlist(self, id: bytes, asked: Ask | Callable[[Tell], None], tell: Tell) -> None:
        """Settles locks in a transaction, the one request that a transaction may have here."""
        transaction = self._commands.transactions.get(id)
        if transaction is None:
            text = "There is no such transaction on this connection."
            tell(Told(400, {}, conditions.UNKNOWN_TRANSACTION, text))
        elif not isinstance(asked, Ask) or not isinstance(asked.command, Ending):
            text = "This cannot be part of a transaction."
            tell(Told(400, {}, conditions.NOT_ALLOWED, text))
        else:
            self._submit(Ask(Work(transaction, asked.command), asked.tell), tell)

    def _submit(self, asked: Ask, tell: Tell) -> None:
        def reply(answer: Answer | Refused | StoreError) -> None:
            if isinstance(answer, Refused):
                tell(_refused(answer))
            elif isinstance(answer, StoreError):
                tell(Told(500, {}, conditions.INTERNAL, answer.for_clients))
            else:
                tell(asked.tell(answer))

        self._commands.submit(self._target, asked.command, reply)

    # Looking.

    def peek(self, request: Request) -> Ask:
        first = max(0, _number(request, "from-sequence-number"))
        count = _number(request, "message-count", 1)
        session = _get(request, "session-id", str, None)
        if count < 1:
            raise Unfit("message-count must be at least 1.", "com.microsoft:argument-out-of-range")

        def tell(answer: Answer) -> Told:
            assert isinstance(answer, Peeked)
            found = [{"message": write_seen(each)} for each in answer.messages]
            return Told(OK if found else NOTHING, {"messages": found} if found else {})

        return Ask(Peek(self._target.queue, first, min(count, PAGE_MAX), session), tell)

    # Scheduled messages.

    def schedule(self, request: Request) -> Ask:
        given = _get(request, "messages", list)
        if len(given) > BATCH_MAX:
            raise Unfit(f"At most {BATCH_MAX} messages are scheduled at a time.")
        messages = []
        for each in given:
            data = each.get("message") if isinstance(each, dict) else None
            if not isinstance(data, bytes):
                raise Unfit("A message to be scheduled is not there.")
            if len(data) > (most := self._commands.message_bytes(self._target)):
                raise MessageTooLarge(self._target.entity, len(data), most)
            messages.append(read_message(data, self._commands.new_id))

        def tell(answer: Answer) -> Told:
            assert isinstance(answer, Enqueued)
            return Told(OK, {"sequence-numbers": Array(0x81, answer.sequences)})

        return Ask(Send(self._target.queue, messages), tell)

    def cancel(self, request: Request) -> Ask:
        return Ask(Cancel(self._target.queue, _numbers(request)), _done)

    # Deferred messages, and locks.

    def receive_deferred(self, request: Request) -> Ask:
        delete = _number(request, "receiver-settle-mode", 1) == 0
        session = self._session(request)

        def tell(answer: Answer) -> Told:
            assert isinstance(answer, Received)
            found: list[Value] = []
            for each in answer.deliveries:
                token = None if delete else each.token.to_bytes(16, "big")
                entry: dict[Value, Value] = {"message": write_deferred(each, token=token)}
                entry["lock-token"] = UUID(int=each.token)
                found.append(entry)
            return Told(OK, {"messages": found})

        command = ReceiveDeferred(self._target.queue, _numbers(request), delete, session=session)
        return Ask(command, tell)

    def settle(self, request: Request) -> Ask:
        queue, tokens = self._target.queue, _tokens(request)
        session = self._session(request)
        properties = changes(request.body.get("properties-to-modify"))
        status = _get(request, "disposition-status", str)
        command: Settle
        if status == "completed":
            command = Complete(queue, tokens, session=session)
        elif status == "abandoned":
            command = Abandon(queue, tokens, session=session, properties=properties)
        elif status in ("defered", "deferred"):
            command = Defer(queue, tokens, session=session, properties=properties)
        elif status == "suspended":
            reason = _get(request, "deadletter-reason", str, None)
            text = _get(request, "deadletter-description", str, None)
            command = DeadLetter(
                queue, tokens, False, session, None if reason is None else reason[:TEXT_CHARS_MAX],
                None if text is None else text[:TEXT_CHARS_MAX], properties,
            )  # fmt: skip
        else:
            raise Unfit(f"There is no disposition-status {status!r}.")
        return Ask(command, _done)

    def renew(self, request: Request) -> Ask:
        def tell(answer: Answer) -> Told:
            assert isinstance(answer, Settled)
            return Told(OK, {"expirations": Array(0x83, answer.until_ms)})

        return Ask(Renew(self._target.queue, _tokens(request)), tell)

    # Sessions.

    def renew_session(self, request: Request) -> Ask:
        def tell(answer: Answer) -> Told:
            assert isinstance(answer, int)
            return Told(OK, {"expiration": Timestamp(answer)})

        return Ask(RenewSession(self._target.queue, self._held(request)), tell)

    def get_session_state(self, request: Request) -> Ask:
        def tell(answer: Answer) -> Told:
            assert answer is None or isinstance(answer, bytes)
            return Told(OK, {"session-state": answer})

        return Ask(GetSessionState(self._target.queue, self._held(request)), tell)

    def set_session_state(self, request: Request) -> Ask:
        state = _get(request, "session-state", bytes, None)
        return Ask(SetSessionState(self._target.queue, self._held(request), state), _done)

    def list_sessions(self, request: Request) -> Ask:
        since_ms: int | None = _number(request, "last-updated-time", SESSIONS_WITH_MESSAGES_MS)
        assert since_ms is not None
        if since_ms >= SESSIONS_WITH_MESSAGES_MS:
            since_ms = None
        skip, top = _number(request, "skip", 0), _number(request, "top", 100)
        if skip < 0 or top < 1 or (since_ms is not None and since_ms < 0):
            raise Unfit("skip, top and last-updated-time must not be negative.")

        def tell(answer: Answer) -> Told:
            assert isinstance(answer, list)
            if not answer:
                return Told(NOTHING, {}, _PREFIX + "session-not-found", "There are no sessions.")
            return Told(OK, {"skip": Int(skip + len(answer)), "sessions-ids": Array(0xB1, answer)})

        return Ask(ListSessions(self._target.queue, since_ms, skip, min(top, PAGE_MAX)), tell)

    # Deleting.

    def delete(self, request: Request) -> Ask | Callable[[Tell], None]:
        count = _number(request, "message-count")
        before_ms = min(_number(request, "enqueued-time-utc", TIME_MS_MAX), TIME_MS_MAX)
        if not 1 <= count <= DELETE_MAX:
            raise Unfit(f"message-count must be from 1 to {DELETE_MAX}.",
                        "com.microsoft:argument-out-of-range")  # fmt: skip
        if request.body.get("session-id") is not None:
            number = self._commands.engine.new_receiver()
            command = Receive(
                self._target.queue, number, count, delete=True, session=self._held(request)
            )
            return Ask(command, _deleted)

        def begin(tell: Tell) -> None:
            self._delete_some(tell, 0, count, before_ms, 0)

        return begin

    def _delete_some(self, tell: Tell, first: int, left: int, before_ms: int, done: int) -> None:
        """Bit by bit: no command does unbounded work."""
        command = Purge(
            self._target.queue, frozenset((ACTIVE,)), first, before_ms, min(left, STEPS_MAX)
        )

        def reply(answer: Answer | Refused | StoreError) -> None:
            if isinstance(answer, Refused):
                tell(_refused(answer))
            elif isinstance(answer, Progress):
                rest, total = left - answer.done, done + answer.done
                if answer.next is None or not rest:
                    tell(_count(total))
                else:
                    self._delete_some(tell, answer.next, rest, before_ms, total)
            else:
                assert isinstance(answer, StoreError)
                tell(Told(500, {}, conditions.INTERNAL, answer.for_clients))

        self._commands.submit(self._target, command, reply)

    # Rules.

    def add_rule(self, request: Request) -> Ask:
        rule = read_rule(_get(request, "rule-name", str), request.body.get("rule-description"))
        return Ask(SetRule(self._target.queue, rule), _done)

    def remove_rule(self, request: Request) -> Ask:
        return Ask(RemoveRule(self._target.queue, _get(request, "rule-name", str)), _done)

    def list_rules(self, request: Request) -> Ask:
        skip, top = _number(request, "skip", 0), _number(request, "top", 100)
        if skip < 0 or top < 1:
            raise Unfit("skip must not be negative, and top at least 1.")

        def tell(answer: Answer) -> Told:
            assert isinstance(answer, list)
            found = [
                {"rule-description": write_rule(each)}
                for each in answer[skip : skip + top]
                if isinstance(each, Rule)
            ]
            return Told(OK if found else NOTHING, {"rules": found} if found else {})

        return Ask(ListRules(self._target.queue, limit=RULES_MAX), tell)

    # Which session.

    def _session(self, request: Request) -> int:
        """The token of the session that a request names, 0 where it names none."""
        return 0 if request.body.get("session-id") is None else self._held(request)

    def _held(self, request: Request) -> int:
        """Raises SessionLockLost where this connection does not hold it; or Unauthorized."""
        session = _get(request, "session-id", str)
        self._commands.check_right(self._target, RenewSession(self._target.queue, 0))
        token = self._session_token(self._target, session)
        if not token:
            raise SessionLockLost(self._target.entity, 0)
        return token


_OPERATIONS: dict[str, Callable[[ManagementNode, Request], Ask | Callable[[Tell], None]]] = {
    "peek-message": ManagementNode.peek,
    "schedule-message": ManagementNode.schedule,
    "cancel-scheduled-message": ManagementNode.cancel,
    "receive-by-sequence-number": ManagementNode.receive_deferred,
    "update-disposition": ManagementNode.settle,
    "renew-lock": ManagementNode.renew,
    "renew-session-lock": ManagementNode.renew_session,
    "get-session-state": ManagementNode.get_session_state,
    "set-session-state": ManagementNode.set_session_state,
    "get-message-sessions": ManagementNode.list_sessions,
    "batch-delete-messages": ManagementNode.delete,
    "add-rule": ManagementNode.add_rule,
    "remove-rule": ManagementNode.remove_rule,
    "enumerate-rules": ManagementNode.list_rules,
}


def _properties(told: Told) -> dict[Value, Value]:
    found: dict[Value, Value] = {
        "statusCode": Int(told.status),
        "statusDescription": told.text or ("OK" if told.status == OK else "No content"),
    }
    if told.condition:
        found["errorCondition"] = Symbol(told.condition)
    return {**found, **told.facts}


def _done(_: Answer) -> Told:
    return Told(OK, {})


def _deleted(answer: Answer) -> Told:
    assert isinstance(answer, Received)
    return _count(len(answer.deliveries))


def _count(count: int) -> Told:
    return Told(OK if count else NOTHING, {"message-count": Int(count)})


def _refused(refused: Refused) -> Told:
    condition, text, status = conditions.told(refused)
    return Told(status, {}, condition, text, conditions.facts_of(refused))


_NEEDED: Value = object()


def _get(request: Request, name: str, kind: type[Kind], default: Value = _NEEDED) -> Value:
    """Raises Unfit."""
    found = request.body.get(name)
    if found is None:
        if default is _NEEDED:
            raise Unfit(f"{name} is missing.")
        return default
    if not isinstance(found, kind):
        raise Unfit(f"{name} has the wrong type.")
    return str(found) if kind is str else found  # a symbol is text too


def _number(request: Request, name: str, default: int | None = None) -> int:
    found = _get(request, name, int, _NEEDED if default is None else default)
    return int(found)


def _several(request: Request, name: str, kind: type[Kind]) -> list[Kind]:
    found = _get(request, name, list)
    if not found or len(found) > BATCH_MAX or not all(isinstance(each, kind) for each in found):
        raise Unfit(f"{name} must be from 1 to {BATCH_MAX} of them.")
    return list(found)


def _numbers(request: Request) -> list[int]:
    return [int(each) for each in _several(request, "sequence-numbers", int)]


def _tokens(request: Request) -> list[int]:
    return [each.int for each in _several(request, "lock-tokens", UUID)]
