"""Messages: send, receive, settle; sessions and transactions."""

import time
from collections.abc import Awaitable

import msgspec

from posthouse.broker.waiting import take, until_gone
from posthouse.core.commands import (
    Abandon,
    AcceptSession,
    Begin,
    Begun,
    Cancel,
    Commit,
    Committed,
    Complete,
    DeadLetter,
    Defer,
    Delivery,
    Enqueued,
    GetSessionState,
    Granted,
    Peek,
    Peeked,
    Receive,
    Received,
    ReceiveDeferred,
    ReleaseSession,
    Renew,
    RenewSession,
    RollBack,
    RolledBack,
    Send,
    SetSessionState,
    Settle,
    Settled,
    Work,
)
from posthouse.core.message import NewMessage, message_id
from posthouse.dialects.http import JSON, Answer, HttpError, charge_messages
from posthouse.dialects.servicebus.guids import guid, number_of
from posthouse.dialects.servicebus.localzure import forms
from posthouse.dialects.servicebus.localzure.call import Call
from posthouse.dialects.servicebus.localzure.errors import Failed, Unprocessable
from posthouse.dialects.servicebus.rest import as_header, check_headers, told
from posthouse.dialects.servicebus.times import moment
from posthouse.dialects.servicebus.web import wait_ms_of

PEEK_MAX, RECEIVE_MAX = 100, 1_000
STATE_BYTES_MAX = 256 << 10
WAIT_SECONDS_MAX = 60
LOCK_CHARS_TOLD = 36  # of what a client says is a lock: a GUID has as many
_MODES = {"peeklock": False, "receiveanddelete": True}


_encode = msgspec.json.Encoder().encode


def as_json(content: object, status: int = 200) -> Answer:
    return Answer(_encode(content), status, (JSON,))


# Sending.


async def send(call: Call) -> Answer:
    form = forms.read(forms.SendForm, await call.request.body())
    id, made = forms.new_message(form, call.most_bytes, call.place.name)
    [sequence] = await _send(call, [made])
    if call.is_topic:
        call.ask_filters(made)
        return Answer(b"", 201, ((b"brokerproperties", as_header({"MessageId": id})),))
    return as_json(forms.sent(form, made, call.now_ms, sequence, id, _ttl_ms(call)))


async def send_batch(call: Call) -> Answer:
    given = forms.read(forms.BatchForm, await call.request.body()).messages
    if not 0 < len(given) <= forms.BATCH_MAX:
        raise Unprocessable("messages", f"there must be from 1 to {forms.BATCH_MAX} messages")
    each = [forms.converted(forms.SendForm, one) for one in given]
    made = [forms.new_message(form, call.most_bytes, call.place.name) for form in each]
    numbers = await _send(call, [new for _, new in made])
    ttl_ms = _ttl_ms(call)
    return as_json([
        forms.sent(form, new, call.now_ms, number, id, ttl_ms)
        for form, (id, new), number in zip(each, made, numbers, strict=True)
    ])  # fmt: skip


def _ttl_ms(call: Call) -> int | None:
    """How long the queue lets a message live at most."""
    properties = call.properties
    return None if properties is None else properties.ttl_ms


async def _send(call: Call, messages: list[NewMessage]) -> list[int | None]:
    command = Send(call.queue, messages)
    charge_messages(call.engine.throttle, call.request, len(messages))
    transaction = transaction_in(call)
    if transaction is not None:
        await call.ask(Work(transaction, command))
        return [None] * len(messages)
    begun = time.perf_counter()
    answer = await call.ask(command)
    assert isinstance(answer, Enqueued)
    call.did("sent", len(messages), "send", begun)
    return list(answer.sequences)


# Receiving.


async def head(call: Call) -> Answer:
    """Peek, where it is said how many; else receive: one of a queue, a list of a subscription."""
    query = call.request.query
    if "maxMessages" in query:
        return await _peek(call, _whole(query["maxMessages"], "maxMessages", PEEK_MAX))
    mode = _MODES.get(query.get("mode", "PeekLock").lower())
    if mode is None:
        raise Unprocessable("mode", "mode must be PeekLock or ReceiveAndDelete")
    if "numofmessages" in query or call.place.kind == "subscription":
        count = _whole(query.get("numofmessages", "1"), "numofmessages", RECEIVE_MAX)
        found = await _receive(call, count, _timeout(query.get("timeout", "0")), delete=mode)
        return as_json(_all(call, found)) if found else Answer(b"", 204)
    found = await _receive(call, 1, _timeout(query.get("timeout", "0")), delete=mode)
    if not found:
        return as_json(None)
    answer = as_json(forms.delivered(found[0], dead=call.place.dead))
    said = [each for each in told(found[0]).headers if each[0] == b"brokerproperties"]
    more = answer._replace(headers=(*answer.headers, *said))
    try:
        check_headers(more, found[0], call.header_bytes)
    except HttpError:  # the body says it too
        return answer
    return more


async def take_head(call: Call) -> Answer:
    """Answers `messages/head` as Azure spells it."""
    wait_ms = wait_ms_of(call.request, _timeout(call.request.query.get("timeout", "0")))

    def compose(delivery: Delivery) -> Answer:
        answer = told(delivery)
        check_headers(answer, delivery, call.header_bytes)
        return answer

    deadline_ms = call.now_ms + wait_ms if wait_ms else 0
    command = Receive(call.queue, call.engine.new_receiver(), 1, deadline_ms)
    begun = time.perf_counter()
    answer = await take(
        call.engine, call.principal, call.namespace, command, wait_ms, call.request.gone, compose
    )
    call.did("received", int(answer is not None), "receive", begun)
    return answer or Answer(b"", 204)


async def receive(call: Call) -> Answer:
    form = forms.read(forms.ReceiveForm, await call.request.body(), optional=True)
    if not 0 < form.max_count <= RECEIVE_MAX:
        raise Unprocessable("max_count", f"max_count must be from 1 to {RECEIVE_MAX}")
    session = 0 if form.session_id is None else call.session(form.session_id)
    wait_ms = wait_ms_of(call.request, _timeout(form.timeout))
    delete = form.receive_mode == "ReceiveAndDelete"
    found = await _receive(call, form.max_count, wait_ms, delete=delete, session=session)
    return as_json(_all(call, found))


def _all(call: Call, deliveries: list[Delivery]) -> list[forms.Told]:
    return [forms.delivered(each, dead=call.place.dead) for each in deliveries]


async def _receive(
    call: Call, count: int, wait_ms: int, *, delete: bool, session: int = 0
) -> list[Delivery]:
    engine = call.engine
    deadline_ms = call.now_ms + wait_ms if wait_ms else 0
    command = Receive(
        call.queue, engine.new_receiver(), count, deadline_ms, delete, session=session
    )
    begun = time.perf_counter()
    if wait_ms:
        answer = await until_gone(
            engine, call.principal, call.namespace, command, wait_ms, call.request.gone
        )
    else:
        answer = await call.ask(command)
    assert isinstance(answer, Received)
    call.did("received", len(answer.deliveries), "receive", begun)
    return answer.deliveries


async def _peek(call: Call, count: int) -> Answer:
    answer = await call.ask(Peek(call.queue, 0, count))
    assert isinstance(answer, Peeked)
    found = [forms.seen(each, dead=call.place.dead) for each in answer.messages]
    return as_json({"messages": found})


async def deferred(call: Call) -> Answer:
    form = forms.read(forms.DeferredForm, await call.request.body())
    session = 0 if form.session_id is None else call.session(form.session_id)
    if not 0 < len(form.sequence_numbers) <= RECEIVE_MAX:
        raise Unprocessable("sequence_numbers", f"there must be from 1 to {RECEIVE_MAX} of them")
    answer = await call.ask(ReceiveDeferred(call.queue, form.sequence_numbers, session=session))
    assert isinstance(answer, Received)
    return as_json(_all(call, answer.deliveries))


async def cancel(call: Call) -> Answer:
    await call.ask(Cancel(call.queue, [_whole(call.place.rest[2], "sequence", (1 << 63) - 1)]))
    return Answer()


def _whole(text: str, name: str, most: int) -> int:
    if text.isascii() and text.isdigit() and len(text) < 20 and 0 < int(text) <= most:
        return int(text)
    raise Unprocessable(name, f"{name} must be a whole number from 1 to {most}")


def _timeout(seconds: float | str) -> int:
    """In milliseconds."""
    try:
        found = float(seconds)
    except ValueError:
        found = -1
    if not 0 <= found < 1e6:
        raise Unprocessable("timeout", "timeout must be a number of seconds")
    return round(min(found, WAIT_SECONDS_MAX) * 1000)


# Settling.


def settle_by_path(call: Call) -> Awaitable[Answer]:
    """/messages/ID/LOCK, perhaps with a verb behind it."""
    _, id, lock, *verb = call.place.rest
    how = verb[0].casefold() if verb else _BY_METHOD[call.request.method]
    query = call.request.query
    return _settle(call, how, lock, id, query.get("reason"), query.get("description"))


async def settle_by_token(call: Call) -> Answer:
    """/messages/VERB, with the lock in JSON."""
    form = forms.read(forms.SettleForm, await call.request.body())
    how = call.place.rest[1].casefold()
    return await _settle(call, how, form.lock_token, form.message_id, form.reason, form.description)


_BY_METHOD = {"DELETE": "complete", "PUT": "abandon", "POST": "renewlock"}
VERBS = ("complete", "abandon", "deadletter", "dead-letter", "defer", "renewlock", "renew")


async def _settle(
    call: Call, how: str, lock: str, id: str | None, reason: str | None, description: str | None
) -> Answer:
    token, session = _lock(call, lock, id)
    queue, locks = call.queue, [token]
    command: Settle
    match how:
        case "complete":
            command = Complete(queue, locks, False, session)
        case "abandon":
            command = Abandon(queue, locks, False, session)
        case "defer":
            command = Defer(queue, locks, False, session)
        case "renew" | "renewlock":
            command = Renew(queue, locks, False, session)
        case _:
            reason = reason or "ProcessingError"
            command = DeadLetter(queue, locks, False, session, reason, description)
    transaction, begun = transaction_in(call), time.perf_counter()
    answer = await call.ask(
        command if transaction is None else Work(transaction, command)  # type: ignore[arg-type]
    )
    if isinstance(command, Renew):
        assert isinstance(answer, Settled)
        return as_json({"LockedUntilUtc": moment(answer.until_ms[0])})
    counted = _COUNTED.get(type(command))
    if counted is not None:
        call.did(counted, 1, "complete" if type(command) is Complete else "", begun)
    return Answer()


_COUNTED = {Complete: "completed", Abandon: "abandoned", DeadLetter: "deadlettered"}


def _lock(call: Call, lock: str, id: str | None) -> tuple[int, int]:
    """The tokens of a lock and of its session. Raises Failed or Refused."""
    call.check_there()
    token = number_of(lock)
    held = call.view.messages.lock(call.namespace, token)
    if held is None or held.queue != call.queue:
        raise Failed(
            410, "MessageLockLost",
            f"The lock {lock[:LOCK_CHARS_TOLD]} has expired, was settled already, or never was.",
            entity_type=call.place.kind, entity_name=call.place.name, message_id=id,
            reason="LockLost",
        )  # fmt: skip
    if id is not None and id not in (message_id(held.message.envelope), str(held.message.sequence)):
        raise Failed(
            404, "MessageNotFound", f"The lock is not on a message {id!r}.",
            entity_type=call.place.kind, entity_name=call.place.name, message_id=id,
        )  # fmt: skip
    return token, held.session


# Sessions.


async def accept(call: Call) -> Answer:
    form = forms.read(forms.AcceptForm, await call.request.body(), optional=True)
    wait_ms, engine = wait_ms_of(call.request, _timeout(form.timeout)), call.engine
    deadline_ms = call.now_ms + wait_ms if wait_ms else 0
    command = AcceptSession(call.queue, engine.new_receiver(), form.session_id, deadline_ms)
    if wait_ms:
        granted = await until_gone(
            engine, call.principal, call.namespace, command, wait_ms, call.request.gone
        )
    else:
        granted = await call.ask(command)
    if not isinstance(granted, Granted):
        raise Failed(
            404, "SessionNotFound", "There is no session that is free and has messages.",
            entity_type=call.place.kind, entity_name=call.place.name, session_id=form.session_id,
            timeout_seconds=wait_ms // 1000,
        )  # fmt: skip
    call.hold(granted.session, granted.token)
    return as_json({
        "SessionId": granted.session, "SessionLockToken": guid(granted.token),
        "LockedUntilUtc": moment(granted.until_ms),
    })  # fmt: skip


async def renew_session(call: Call) -> Answer:
    until_ms = await call.ask(RenewSession(call.queue, call.session(call.place.rest[1])))
    assert isinstance(until_ms, int)
    return as_json({"LockedUntilUtc": moment(until_ms)})


async def release_session(call: Call) -> Answer:
    name = call.place.rest[1]
    await call.ask(ReleaseSession(call.queue, call.session(name)))
    call.let_go(name)
    return Answer()


async def get_state(call: Call) -> Answer:
    state = await call.ask(GetSessionState(call.queue, call.session(call.place.rest[1])))
    body = state if isinstance(state, bytes) else b""
    return Answer(body, 200, ((b"content-type", b"application/octet-stream"),))


async def set_state(call: Call) -> Answer:
    token, state = call.session(call.place.rest[1]), await call.request.body()
    if len(state) > STATE_BYTES_MAX:
        raise Failed(
            413, "MessageSizeExceeded", f"A state has at most {STATE_BYTES_MAX} bytes.",
            actual_size=len(state), max_size=STATE_BYTES_MAX, session_id=call.place.rest[1],
        )  # fmt: skip
    await call.ask(SetSessionState(call.queue, token, state or None))
    return Answer()


# Transactions.


def transaction_in(call: Call) -> int | None:
    given = call.request.query.get("transactionId")
    return None if given is None else _transaction(call, given)


def _transaction(call: Call, text: str) -> int:
    """Its number; where it is another's, one that there is not. Raises Failed."""
    number = number_of(text)
    if not number:
        raise Failed(404, "TransactionNotFound", "There is no such transaction.")
    return call.engine.owned(call.principal, number)


async def begin(call: Call) -> Answer:
    form = forms.read(forms.BeginForm, await call.request.body(), optional=True)
    if not 0 < form.timeout_seconds < 1e9:
        raise Unprocessable("timeout_seconds", "timeout_seconds must be above 0")
    begun = await call.ask(Begin(round(form.timeout_seconds * 1000)))
    assert isinstance(begun, Begun)
    return as_json({"TransactionId": guid(begun.transaction),
                    "ExpiresAtUtc": moment(begun.until_ms)}, 201)  # fmt: skip


async def commit(call: Call) -> Answer:
    answer = await call.ask(Commit(_transaction(call, call.place.rest[1])))
    if isinstance(answer, RolledBack):
        raise Failed(409, "InvalidOperation", f"It was rolled back: {answer.reason}",
                     reason=answer.reason)  # fmt: skip
    assert isinstance(answer, Committed)
    sent = sum(len(each.sequences) for each in answer.sent)
    return as_json({"Sent": sent, "Settled": answer.settled})


async def roll_back(call: Call) -> Answer:
    await call.ask(RollBack(_transaction(call, call.place.rest[1])))
    return as_json({"RolledBack": True})
