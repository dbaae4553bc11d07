"""The hot routes of `/api/v1`: send, receive, settle. Plain calls, JSON by msgspec, no framework.

POST /api/v1/namespaces/N/queues/Q/messages       send: JSON, or one body of another type
POST /api/v1/namespaces/N/queues/Q/receive
POST /api/v1/namespaces/N/queues/Q/complete, abandon, release, defer, dead-letter, renew
GET  /api/v1/namespaces/N/queues/Q/deliveries     as they come, while the connection lasts

and the same for /topics/T and for /topics/T/subscriptions/S in the place of /queues/Q.
"""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from posthouse.broker.engine import Engine
from posthouse.broker.waiting import until_gone
from posthouse.core.commands import (
    Abandon,
    Command,
    Complete,
    DeadLetter,
    Defer,
    Enqueued,
    Receive,
    Received,
    Release,
    Renew,
    Send,
    Settle,
    Settled,
    Work,
)
from posthouse.core.message import Envelope, NewMessage, encode_envelope
from posthouse.core.model import subscription_queue
from posthouse.dialects.http import charge_messages
from posthouse.server.deliveries import deliveries
from posthouse.server.http import Answer, Request, decoded, name_in
from posthouse.server.problems import HttpProblem
from posthouse.server.shapes import (
    AbandonForm,
    DeadLetterForm,
    EnqueuedForm,
    MessagesForm,
    ReceiveForm,
    RenewForm,
    ReturnForm,
    SendForm,
    SettledForm,
    SettleForm,
    delivered,
    enqueued,
    new_message,
    properties_in,
    token_in,
)

_encode = msgspec.json.Encoder().encode
_FORM = "application/x-www-form-urlencoded"


class Target(NamedTuple):
    namespace: str
    queue: str


Hot = Callable[[Engine, Request, Target], Awaitable[Answer]]


def find(request: Request) -> tuple[Hot, Target] | None:
    """The hot route that a request is for, if it is for one."""
    parts = request.parts
    if len(parts) not in (7, 9) or parts[1] != b"v1" or parts[2] != b"namespaces":
        return None
    hot = _ROUTES.get(parts[-1]) if request.method == "POST" else None
    if request.method == "GET" and parts[-1] == b"deliveries":
        hot = _deliveries
    if hot is None:
        return None
    space, name = name_in(parts[3]), name_in(parts[5])
    if len(parts) == 7 and parts[4] in (b"queues", b"topics"):
        return hot, Target(space, name)
    if len(parts) == 9 and (parts[4], parts[6]) == (b"topics", b"subscriptions"):
        return hot, Target(space, subscription_queue(name, name_in(parts[7])))
    return None


async def _send(engine: Engine, request: Request, target: Target) -> Answer:
    body = await request.body()
    kind = request.headers.get(b"content-type", b"").decode("latin-1")
    name = kind.partition(";")[0].strip().lower()
    if name == _FORM:  # curl's default type
        raise HttpProblem(
            415, "unknown-content", "Say what it is: application/json for messages in JSON, or"
            " another content type, such as text/plain, for the body of one message.",
        )  # fmt: skip
    transaction, wait_ms = None, 0
    if name not in ("", "application/json"):
        envelope = Envelope(content_type=kind[:256])
        command = Send(target.queue, [NewMessage(encode_envelope(envelope), body)])
    else:
        form: SendForm = decoded(SendForm, body)
        keys = [each.key for each in form.messages]
        now_ms = engine.clock_ms(target.namespace)
        wait_ms = form.wait_ms
        command = Send(
            target.queue, [new_message(each, now_ms) for each in form.messages],
            keys if any(key is not None for key in keys) else None, form.refuse_duplicates,
            now_ms + wait_ms if wait_ms else 0, engine.new_receiver() if wait_ms else 0,
        )  # fmt: skip
        transaction = form.transaction
    asked = _in(engine, request, transaction, command)
    charge_messages(engine.throttle, request, len(command.messages))
    if command.sender and asked is command:
        answer = await until_gone(
            engine, request.principal, target.namespace, command, wait_ms, request.gone
        )
    else:
        answer = await engine.ask(request.principal, target.namespace, asked)
    told = enqueued(answer) if isinstance(answer, Enqueued) else EnqueuedForm([], 0)
    return Answer(_encode(told), 201)


def _in(
    engine: Engine, request: Request, transaction: str | None, command: Send | Settle
) -> Command:
    """Makes the command part of a transaction, if one is named."""
    if transaction is None:
        return command
    number = engine.owned(request.principal, token_in(transaction))
    return Work(number, command)  # type: ignore[arg-type]  # the core looks at it


async def _receive(engine: Engine, request: Request, target: Target) -> Answer:
    form: ReceiveForm = decoded(ReceiveForm, await request.body())
    deadline_ms = engine.clock_ms(target.namespace) + form.wait_ms if form.wait_ms else 0
    command = Receive(
        target.queue, engine.new_receiver(), form.limit, deadline_ms, form.delete,
        form.lock_ms or None, session=token_in(form.session),
    )  # fmt: skip
    answer = await (
        until_gone(engine, request.principal, target.namespace, command, form.wait_ms, request.gone)
        if form.wait_ms
        else engine.ask(request.principal, target.namespace, command)
    )
    assert isinstance(answer, Received)
    return Answer(_encode(MessagesForm([delivered(each) for each in answer.deliveries])))


async def _deliveries(engine: Engine, request: Request, target: Target) -> Answer:
    return await deliveries(engine, request, target.namespace, target.queue)


def _settle(form_of: type[SettleForm], make: Callable[[str, Any, list[int]], Settle]) -> Hot:
    async def settle(engine: Engine, request: Request, target: Target) -> Answer:
        form = decoded(form_of, await request.body())
        command = make(target.queue, form, [int(token, 16) for token in form.locks])
        asked = _in(engine, request, form.transaction, command)
        answer = await engine.ask(request.principal, target.namespace, asked)
        assert isinstance(answer, Settled)
        lost = [f"{each:032x}" for each in answer.lost if isinstance(each, int)]
        return Answer(_encode(SettledForm(lost, list(answer.until_ms))))

    return settle


def _complete(queue: str, form: SettleForm, locks: list[int]) -> Settle:
    return Complete(queue, locks, form.partial, token_in(form.session))


def _release(queue: str, form: SettleForm, locks: list[int]) -> Settle:
    return Release(queue, locks, form.partial, token_in(form.session))


def _abandon(queue: str, form: AbandonForm, locks: list[int]) -> Settle:
    return Abandon(
        queue, locks, form.partial, token_in(form.session), properties_in(form.properties),
        form.delay_ms,
    )  # fmt: skip


def _defer(queue: str, form: ReturnForm, locks: list[int]) -> Settle:
    return Defer(queue, locks, form.partial, token_in(form.session), properties_in(form.properties))


def _dead_letter(queue: str, form: DeadLetterForm, locks: list[int]) -> Settle:
    return DeadLetter(
        queue, locks, form.partial, token_in(form.session), form.reason, form.description,
        properties_in(form.properties),
    )  # fmt: skip


def _renew(queue: str, form: RenewForm, locks: list[int]) -> Settle:
    return Renew(queue, locks, form.partial, token_in(form.session), form.lock_ms)


_ROUTES: dict[bytes, Hot] = {
    b"messages": _send,
    b"receive": _receive,
    b"complete": _settle(SettleForm, _complete),
    b"release": _settle(SettleForm, _release),
    b"abandon": _settle(AbandonForm, _abandon),
    b"defer": _settle(ReturnForm, _defer),
    b"dead-letter": _settle(DeadLetterForm, _dead_letter),
    b"renew": _settle(RenewForm, _renew),
}

# For the OpenAPI document: what each takes and gives, and what it is for.
DESCRIBED: dict[str, tuple[type, type, str]] = {
    "messages": (SendForm, EnqueuedForm, "Send messages, all of them or none"),
    "receive": (ReceiveForm, MessagesForm, "Receive messages, waiting for them if asked to"),
    "complete": (SettleForm, SettledForm, "Complete messages: they are done with"),
    "release": (SettleForm, SettledForm, "Release messages, as if they had never been delivered"),
    "abandon": (AbandonForm, SettledForm, "Abandon messages: they are delivered again"),
    "defer": (ReturnForm, SettledForm, "Defer messages: they wait to be asked for by number"),
    "dead-letter": (DeadLetterForm, SettledForm, "Move messages to the dead-letter queue"),
    "renew": (RenewForm, SettledForm, "Renew locks"),
}
assert {name.encode() for name in DESCRIBED} == set(_ROUTES)
