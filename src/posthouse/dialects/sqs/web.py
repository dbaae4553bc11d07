"""SQS over HTTP: from a request to its action, and to the answer.

Which of the two protocols it speaks is told by the content type, else by where its action stands.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from email.utils import formatdate
from functools import partial
from typing import Any, NamedTuple

from posthouse.broker.access import ANYBODY, Principal, vouched
from posthouse.core.errors import AlreadyExists, Refused, Unauthenticated, Unauthorized
from posthouse.core.namespaces import CreateNamespace
from posthouse.dialects.http import Answer, Header, Request, charge, unknown
from posthouse.dialects.sqs import (
    accounts,
    codec_json,
    codec_query,
    move_tasks,
    permissions,
    queues,
    receiving,
    sending,
    settling,
    signature,
)
from posthouse.dialects.sqs.call import Call, Caller, Service
from posthouse.dialects.sqs.errors import (
    BAD_SIGNATURE,
    DENIED,
    NO_ACTION,
    TOO_LARGE,
    UNKNOWN_KEY,
    Failed,
    failed_by,
)
from posthouse.dialects.sqs.shapes import ACTIONS, Shape
from posthouse.uuids import new_uuid

# A body of 1 MiB may be 6 MiB of JSON, where everything beside ASCII is escaped.
REQUEST_BYTES_MAX = 7 << 20
READ_BYTES_MAX = 2 * REQUEST_BYTES_MAX  # one that is larger is not even read
ID_HEADER = b"x-amzn-requestid"
_NEVER_AT_A_QUEUE = frozenset(("CreateQueue", "ListQueues"))

Handler = Callable[[Call, Any], Awaitable[Shape | None]]

HANDLERS: dict[str, Handler] = {
    "AddPermission": permissions.add,
    "CancelMessageMoveTask": move_tasks.cancel,
    "ChangeMessageVisibility": settling.change,
    "ChangeMessageVisibilityBatch": settling.change_batch,
    "CreateQueue": queues.create,
    "DeleteMessage": settling.delete,
    "DeleteMessageBatch": settling.delete_batch,
    "DeleteQueue": queues.delete,
    "GetQueueAttributes": queues.get_attributes,
    "GetQueueUrl": queues.get_url,
    "ListDeadLetterSourceQueues": queues.list_sources,
    "ListMessageMoveTasks": move_tasks.list_all,
    "ListQueueTags": queues.list_tags,
    "ListQueues": queues.list_all,
    "PurgeQueue": queues.purge,
    "ReceiveMessage": receiving.receive,
    "RemovePermission": permissions.remove,
    "SendMessage": sending.send,
    "SendMessageBatch": sending.send_batch,
    "SetQueueAttributes": queues.set_attributes,
    "StartMessageMoveTask": move_tasks.start,
    "TagQueue": queues.tag,
    "UntagQueue": queues.untag,
}


class Asked(NamedTuple):
    """A request as it came, in one of the two protocols."""

    request: Request
    body: bytes
    query: dict[str, str]  # the parameters of the address
    parameters: dict[str, str]  # those, and a form's; empty in JSON
    is_json: bool


class Web:
    """Answers what is for SQS."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def answer(self, request: Request) -> Answer:
        id = new_uuid()
        headers: tuple[Header, ...] = ((ID_HEADER, id.encode()),)
        is_json = _is_json(request)
        action = ""
        call: Call | None = None
        try:
            asked = await _read(request, is_json=is_json)
            caller = await self._caller(asked)
            action = _action(asked)
            call = Call(self._service, request, caller, action)
            told = await self._act(call, asked)
        except Failed as failed:
            return _error(failed, id, headers, is_json=is_json)
        except Unauthorized:
            assert call is not None  # before that nobody's rights are asked for
            return _error(call.denied(), id, headers, is_json=is_json)
        except Refused as refused:
            return _error(failed_by(refused), id, headers, is_json=is_json)
        if is_json:
            answer = codec_json.answer(told, headers)
        else:
            answer = codec_query.answer(action, told, id, headers)
        if call.undelivered is not None and not self._service.settings.sqs_keep_undelivered:
            answer = answer._replace(unsent=partial(receiving.give_back, call))
        return answer

    async def _act(self, call: Call, asked: Asked) -> Shape | None:
        charge(self._service.engine.throttle, call.request)
        kind = ACTIONS[call.action].takes
        if asked.is_json:
            form = codec_json.decode(asked.body, kind)
        else:
            form = codec_query.decode(_with_queue(call, asked), kind)
        return await HANDLERS[call.action](call, form)

    # Who asks.

    async def _caller(self, asked: Asked) -> Caller:
        """Raises Failed, or Busy where he has too many connections."""
        request, service = asked.request, self._service
        headers, query = request.headers, asked.query
        given = headers.get(b"authorization")
        named = signature.named_in(given or b"", query)
        region = named.region or service.settings.sqs_region
        if named.service not in ("", signature.SERVICE):
            raise Failed(NO_ACTION, f"The service {named.service} is not served here: sqs is.")
        if service.dev and request.scheme == "http":
            request.identified(ANYBODY)
            namespace = await self._namespace_for(named.key_id)
            return Caller(ANYBODY, named.key_id or "anonymous", namespace, region)
        if not signature.is_signed(given, query):
            unknown(request)
            raise Failed(
                DENIED, f"Access to the resource {request.scheme}://{_host(request)}/ is denied."
            )
        principal = self._identify(asked)
        request.identified(principal)
        account = service.engine.view.accounts.get(principal.name)
        namespace = accounts.home_of(account, service.default)
        return Caller(principal, principal.name, namespace, region)

    def _identify(self, asked: Asked) -> Principal:
        """The principal who has signed the request. Raises Failed."""
        request, service = asked.request, self._service
        claim = signature.read(request.headers, asked.query)
        signature.check_time(claim, time.time())
        signature.check_coverage(claim, request.headers)
        signed = signature.Asked(
            request.method, request.raw_path, request.raw_query, request.spelled, asked.body,
            request.scheme == "https",
        )  # fmt: skip
        payload = signature.payload_hash(claim, signed, request.headers)
        text = signature.string_to_sign(claim, signed, payload)
        known = service.engine.view.accounts
        try:
            with request.login:
                principal = service.guard.identify_by(
                    known, claim.key_id, lambda key: service.keys.fits(key, claim, text)
                )
                _check_is_of_all(principal)
        except Unauthenticated:
            if claim.key_id not in known:
                raise Failed(
                    UNKNOWN_KEY, "The security token included in the request is invalid."
                ) from None
            raise Failed(
                BAD_SIGNATURE,
                "The request signature we calculated does not match the signature you provided."
                " Check your AWS Secret Access Key and signing method. Consult the service"
                " documentation for details.",
            ) from None
        return principal

    async def _namespace_for(self, key_id: str) -> str:
        """The namespace that a key id names which is not checked; else the default one."""
        service, view = self._service, self._service.engine.view
        if accounts.is_made_up(key_id):
            return service.default
        account = view.accounts.get(key_id)
        if account is not None:
            return accounts.home_of(account, service.default)
        found = view.find_namespace(key_id)
        if found is not None or not service.auto_create:
            return found or service.default
        try:
            await service.engine.ask(vouched(ANYBODY), "", CreateNamespace(key_id))
        except AlreadyExists:
            return view.find_namespace(key_id) or service.default
        return key_id


def _check_is_of_all(principal: Principal) -> None:
    """A key of one entity is for its own clients alone. Raises Unauthenticated."""
    if "@" in principal.name:
        raise Unauthenticated


# The request.


def _host(request: Request) -> str:
    return request.headers.get(b"host", b"").decode("latin-1")


def _is_json(request: Request) -> bool:
    kind = request.headers.get(b"content-type", b"").lower()
    if kind.startswith(b"application/x-amz-json"):
        return True
    return b"x-amz-target" in request.headers and "Action" not in request.query


async def _read(request: Request, *, is_json: bool) -> Asked:
    """Raises Failed."""
    length = request.headers.get(b"content-length", b"0")
    if len(length) > 15 or (length.isdigit() and int(length) > READ_BYTES_MAX):
        raise _too_large(close=True)
    body = await request.body() if request.method != "GET" else b""
    if len(body) > REQUEST_BYTES_MAX:
        raise _too_large(close=False)
    query = codec_query.parameters(request.raw_query) if request.raw_query else {}
    if is_json:
        return Asked(request, body, query, {}, True)
    return Asked(request, body, query, query | codec_query.parameters(body), False)


def _too_large(*, close: bool) -> Failed:
    text = f"A request has at most {REQUEST_BYTES_MAX} bytes; send in parts."
    return Failed(TOO_LARGE, text, close=close)


def _action(asked: Asked) -> str:
    """The name of the action. Raises Failed."""
    if asked.is_json:
        target = asked.request.headers.get(b"x-amz-target", b"").decode("latin-1")
        service, _, action = target.rpartition(".")
        if service != codec_json.TARGET.rstrip(".") or action not in ACTIONS:
            raise Failed(NO_ACTION, f"The operation {target!r} is not one of Amazon SQS.")
        return action
    action = asked.parameters.get("Action", "")
    if action not in ACTIONS:
        raise Failed(NO_ACTION, f"The action {action} is not valid for this endpoint.")
    if action in _NEVER_AT_A_QUEUE and _is_at_queue(asked.request):
        raise Failed(NO_ACTION, f"The action {action} is not valid for this endpoint.")
    return action


def _is_at_queue(request: Request) -> bool:
    return request.raw_path not in (b"", b"/")


def _with_queue(call: Call, asked: Asked) -> Mapping[str, str]:
    """The parameters, with the queue that the address is of where they name none."""
    if "QueueUrl" not in asked.parameters and _is_at_queue(call.request):
        return {**asked.parameters, "QueueUrl": call.request.raw_path.decode("latin-1")}
    return asked.parameters


# The answer.


def _error(failed: Failed, id: str, headers: tuple[Header, ...], *, is_json: bool) -> Answer:
    """SDKs set their clocks by the date, where a signature is too old."""
    more: list[Header] = [*headers, (b"date", formatdate(usegmt=True).encode())]
    if failed.retry_seconds:
        more.append((b"retry-after", b"%d" % failed.retry_seconds))
    if failed.close:
        more.append((b"connection", b"close"))
    if is_json:
        return codec_json.error(failed, tuple(more))
    return codec_query.error(failed, id, tuple(more))
