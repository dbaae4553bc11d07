"""The requests of a client, one handler for each type of frame. An answer has its request's id."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from posthouse.broker.access import ANYBODY, Principal
from posthouse.core.commands import Answer, CreateQueue, DeleteQueue
from posthouse.core.errors import AlreadyExists, Refused, Throttled, Unauthenticated
from posthouse.core.model import QueueProperties
from posthouse.dialects.json_bounds import bounded
from posthouse.dialects.vibemq import answers
from posthouse.dialects.vibemq.answers import Wrong, told
from posthouse.dialects.vibemq.codec import NO_HEADERS, Frame, Type
from posthouse.dialects.vibemq.message import check_queue
from posthouse.dialects.vibemq.publishing import publish, queue_for
from posthouse.dialects.vibemq.queues import info_of, options_of, properties_of
from posthouse.dialects.vibemq.squeezing import agree
from posthouse.dialects.vibemq.subscription import Subscription
from posthouse.dialects.vibemq.users import (
    CREATE,
    DELETE,
    INFO,
    LIST,
    PUBLISH,
    SUBSCRIBE,
    is_superuser,
)
from posthouse.store.errors import StoreError

if TYPE_CHECKING:
    from posthouse.dialects.vibemq.peer import Peer

SUBSCRIPTIONS_MAX = 1_000  # of one client
_write = msgspec.json.Encoder().encode


# Who it is.


def _connect(peer: "Peer", frame: Frame) -> None:
    if peer.principal is not None:
        raise Wrong(answers.INVALID_MESSAGE, "The client is connected already.")
    if peer.peers.engine is None:
        peer.close(answers.SERVER_BUSY, "The broker is starting. Connect again shortly.", frame.id)
        return
    address = peer.info.address
    try:
        peer.peers.addresses.check(address)
    except Throttled:
        peer.peers.rejected += 1
        text = "Too many connections have come from this address. Wait a minute."
        peer.close(answers.CONNECTION_LIMIT, text, frame.id)
        return
    peer.peers.addresses.take(address, 1)
    given = {name.lower(): value for name, value in frame.headers.items()}
    name, token = given.get("authusername", ""), given.get("authtoken", "")
    if name:
        peer.wait()
        peer.spawn(_identify(peer, frame, name, given.get("authpassword", "")))
    elif token:
        try:
            with peer.login:
                principal = peer.users.identify_sharer(token)
        except Unauthenticated:
            _turn_away(peer, frame)
        else:
            _let_in(peer, frame, principal)
    elif peer.settings.dev and not peer.info.is_tls:
        _let_in(peer, frame, ANYBODY)
    else:
        peer.peers.rejected += 1
        text = "Credentials are needed: authUsername and authPassword."
        peer.close(answers.AUTH_REQUIRED, text, frame.id)


async def _identify(peer: "Peer", frame: Frame, name: str, password: str) -> None:
    try:
        with peer.login:
            principal = await peer.users.identify(name, password)
    except Unauthenticated:
        _turn_away(peer, frame)
    except Refused as refused:
        peer.peers.rejected += 1
        code, text = told(refused)
        peer.close(code, text, frame.id)
    else:
        if not peer.is_over:
            _let_in(peer, frame, principal)


def _turn_away(peer: "Peer", frame: Frame) -> None:
    peer.peers.rejected += 1
    peer.close(answers.AUTH_FAILED, str(Unauthenticated()), frame.id)


def _let_in(peer: "Peer", frame: Frame, principal: Principal) -> None:
    if not peer.info.identified(principal.name):
        peer.peers.rejected += 1
        text = "This user has too many connections. Close some, and try again."
        peer.close(answers.CONNECTION_LIMIT, text, frame.id)
        return
    peer.peers.accepted += 1
    headers = NO_HEADERS
    if peer.decoder.generation == "flagged":
        offered = {name.lower(): value for name, value in frame.headers.items()}
        method = agree(offered.get("supported-compression", ""))
        if method is not None:
            headers = {"negotiated-compression": method.name}
    else:
        method = None
    peer.answer(Frame(Type.CONNECT_ACK, frame.id, "", b"", headers))
    peer.encoder.method = method  # from the next frame on
    peer.decoder.squeezed = method is not None
    peer.trust(principal)


def _ping(peer: "Peer", frame: Frame) -> None:
    peer.answer(Frame(Type.PONG, frame.id))


def _disconnect(peer: "Peer", frame: Frame) -> None:
    peer.disconnect()


# Subscriptions.


def _subscribe(peer: "Peer", frame: Frame) -> None:
    check_queue(frame.queue)
    peer.check_right(SUBSCRIBE, frame.queue)
    queue = queue_for(peer, frame.queue)
    if queue in peer.subscriptions:
        peer.answer(Frame(Type.SUBSCRIBE_ACK, frame.id, frame.queue))
        return
    if len(peer.subscriptions) >= SUBSCRIPTIONS_MAX:
        text = f"A client has {SUBSCRIPTIONS_MAX} subscriptions at most."
        raise Wrong(answers.INVALID_QUEUE, text)
    subscription = peer.subscriptions[queue] = Subscription(peer, frame.id, frame.queue)

    def attached(answer: Answer | Refused | StoreError) -> None:
        mine = peer.subscriptions.get(queue) is subscription
        if isinstance(answer, Refused | StoreError):
            if mine:
                del peer.subscriptions[queue]
            if isinstance(answer, Refused):
                peer.refuse(frame.id, *told(answer))
        else:
            peer.answer(Frame(Type.SUBSCRIBE_ACK, frame.id, frame.queue))
            subscription.fill()

    subscription.start(queue, attached)


def _unsubscribe(peer: "Peer", frame: Frame) -> None:
    check_queue(frame.queue)
    said = Frame(Type.UNSUBSCRIBE_ACK, frame.id, frame.queue)
    peer.unsubscribe(peer.resolve(frame.queue), lambda _: peer.answer(said))


# Queues.


def _create_queue(peer: "Peer", frame: Frame) -> None:
    check_queue(frame.queue)
    peer.check_right(CREATE, frame.queue)
    given = options_of(frame)
    properties = properties_of(given)
    named = properties.forward_dead_to
    if named is not None:
        is_there = peer.view.exists(peer.namespace, peer.resolve(named))
        peer.check_right(PUBLISH if is_there else CREATE, named)
        plain = QueueProperties(
            lock_ms=properties.lock_ms, max_delivery=properties.max_delivery,
            backoff_ms=properties.backoff_ms,
        )  # fmt: skip
        properties = msgspec.structs.replace(
            properties, forward_dead_to=queue_for(peer, named, plain)
        )
    queue = peer.resolve(frame.queue)

    def reply(answer: Answer | Refused | StoreError) -> None:
        if isinstance(answer, AlreadyExists):
            there = peer.view.properties(peer.namespace, queue)
            if there is None or (given is not None and there != properties):
                text = f"There is a queue {frame.queue!r} with other options; QueueInfo tells them."
                peer.refuse(frame.id, answers.QUEUE_EXISTS, text)
                return
        elif isinstance(answer, Refused):
            peer.refuse(frame.id, *told(answer))
            return
        peer.answer(Frame(Type.CREATE_QUEUE, frame.id, frame.queue))

    peer.submit(CreateQueue(queue, properties), reply)


def _delete_queue(peer: "Peer", frame: Frame) -> None:
    check_queue(frame.queue)
    peer.check_right(DELETE, frame.queue)

    def reply(answer: Answer | Refused | StoreError) -> None:
        if isinstance(answer, Refused):
            peer.refuse(frame.id, *told(answer))
        else:
            peer.answer(Frame(Type.DELETE_QUEUE, frame.id, frame.queue))

    peer.submit(DeleteQueue(peer.resolve(frame.queue)), reply)


def _queue_info(peer: "Peer", frame: Frame) -> None:
    check_queue(frame.queue)
    peer.check_right(INFO, frame.queue)
    found = peer.view.entity(peer.namespace, peer.resolve(frame.queue))
    payload = b"" if found is None else _write(info_of(frame.queue, peer.view, found))
    peer.answer(Frame(Type.QUEUE_INFO, frame.id, frame.queue, payload))


def _list_queues(peer: "Peer", frame: Frame) -> None:
    rights = peer.rights
    names = [name for name in peer.view.names(peer.namespace) if rights.allows(LIST, name)]
    peer.answer(Frame(Type.LIST_QUEUES, frame.id, payload=_write(names)))


# Users.


class _User(msgspec.Struct):
    username: str
    password: str = ""


class _NewPassword(msgspec.Struct, rename="camel"):
    username: str
    new_password: str


class _Granted(msgspec.Struct, rename="camel"):
    username: str
    queue_pattern: str
    operations: list[Any]


class _Revoked(msgspec.Struct, rename="camel"):
    username: str
    queue_pattern: str


class _UserInfo(msgspec.Struct, rename="camel"):
    username: str
    is_superuser: bool
    created_at: int


def _create_user(peer: "Peer", frame: Frame) -> None:
    form = _form(frame, _User)
    work = peer.users.create(_by(peer), form.username, form.password, superuser=False)
    _administer(peer, frame, work, {"username": form.username})


def _delete_user(peer: "Peer", frame: Frame) -> None:
    form = _form(frame, _User)
    work = peer.users.delete(_by(peer), form.username)
    _administer(peer, frame, work, {"username": form.username})


def _change_password(peer: "Peer", frame: Frame) -> None:
    form = _form(frame, _NewPassword)
    work = peer.users.change_password(_by(peer), form.username, form.new_password)
    _administer(peer, frame, work, {"username": form.username})


def _grant(peer: "Peer", frame: Frame) -> None:
    form = _form(frame, _Granted)
    work = peer.users.grant(_by(peer), form.username, form.queue_pattern, form.operations)
    _administer(peer, frame, work, form)


def _revoke(peer: "Peer", frame: Frame) -> None:
    form = _form(frame, _Revoked)
    work = peer.users.revoke(_by(peer), form.username, form.queue_pattern)
    _administer(peer, frame, work, form)


def _list_users(peer: "Peer", frame: Frame) -> None:
    _by(peer)
    users = [
        _UserInfo(each.name, is_superuser(each), each.created_ms // 1_000)
        for each in peer.users.every()
    ]
    peer.answer(Frame(frame.type, frame.id, payload=_write(users)))


def _get_permissions(peer: "Peer", frame: Frame) -> None:
    _by(peer)
    found = peer.users.permissions(_form(frame, _User).username)
    peer.answer(Frame(frame.type, frame.id, payload=_write(found)))


def _by(peer: "Peer") -> Principal:
    """Returns the client's principal if it may manage users, as a superuser. Raises Wrong."""
    if not peer.rights.is_superuser or peer.principal is None:
        raise Wrong(answers.FORBIDDEN, "Only a superuser may do that.")
    return peer.principal


def _form(frame: Frame, kind: type[Any]) -> Any:
    """Raises Wrong."""
    try:
        return msgspec.json.decode(bounded(frame.payload or b"{}"), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = f"The payload is not as it should be: {error}."
        raise Wrong(answers.INVALID_PAYLOAD, text) from None


def _administer(peer: "Peer", frame: Frame, work: Awaitable[None], said: object) -> None:
    async def run() -> None:
        with contextlib.suppress(StoreError):  # the server sees to it
            try:
                await work
            except (Wrong, Refused) as wrong:
                peer.refuse(frame.id, *told(wrong))
            else:
                peer.answer(Frame(frame.type, frame.id, payload=_write(said)))

    peer.spawn(run())


Route = Callable[["Peer", Frame], None]
ROUTES: dict[int, Route] = {
    Type.CONNECT: _connect,
    Type.DISCONNECT: _disconnect,
    Type.PING: _ping,
    Type.PUBLISH: publish,
    Type.SUBSCRIBE: _subscribe,
    Type.UNSUBSCRIBE: _unsubscribe,
    Type.CREATE_QUEUE: _create_queue,
    Type.DELETE_QUEUE: _delete_queue,
    Type.QUEUE_INFO: _queue_info,
    Type.LIST_QUEUES: _list_queues,
    Type.ADMIN_CREATE_USER: _create_user,
    Type.ADMIN_DELETE_USER: _delete_user,
    Type.ADMIN_CHANGE_PASSWORD: _change_password,
    Type.ADMIN_GRANT_PERMISSION: _grant,
    Type.ADMIN_REVOKE_PERMISSION: _revoke,
    Type.ADMIN_LIST_USERS: _list_users,
    Type.ADMIN_GET_USER_PERMISSIONS: _get_permissions,
}
BEFORE = frozenset((Type.CONNECT, Type.PING, Type.DISCONNECT))  # it is known who asks
FREE = frozenset((Type.CONNECT, Type.PING, Type.DISCONNECT, Type.UNSUBSCRIBE))  # of any rate
