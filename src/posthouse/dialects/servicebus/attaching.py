"""Attaching links: what a client asks for, whether it may have it, and what is made of it."""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from functools import partial
from typing import Protocol

from posthouse.amqp.performatives import error
from posthouse.amqp.session import Link
from posthouse.amqp.types import Described, Symbol, ULong, Value
from posthouse.broker.access import Principal, vouched
from posthouse.core.commands import LAST_MS, AcceptSession, Answer, Detach, Granted, ReleaseSession
from posthouse.core.errors import NotFound, Refused, TimedOut
from posthouse.core.model import SUBSCRIPTION
from posthouse.core.namespaces import CreateNamespace
from posthouse.dialects.connections import guarded
from posthouse.dialects.servicebus import conditions
from posthouse.dialects.servicebus.address import Address, parse, path_of, queue_of, told_name
from posthouse.dialects.servicebus.commands import Commands
from posthouse.dialects.servicebus.identity import Identity
from posthouse.dialects.servicebus.links import IncomingLink, LinkOwner, OutgoingLink
from posthouse.dialects.servicebus.management import ManagementNode
from posthouse.dialects.servicebus.requests import Requests, address_in, is_coordinator
from posthouse.dialects.servicebus.target import Target
from posthouse.dialects.servicebus.transactions import COORDINATOR_BYTES_MAX, Coordinator
from posthouse.store.errors import StoreError

_audit = logging.getLogger("posthouse.audit")

WAIT_MS = 65_000  # for a session to become free, where the client does not say: as the cloud
WAIT_MS_MAX = 3_600_000
_REQUEST_BYTES_MIN = 4 << 20  # that $management takes, unless messages may be larger
_TOKEN_BYTES_MAX = 64 << 10  # that $cbs takes

_SESSION_FILTER = "com.microsoft:session-filter"
_TIMEOUT = "com.microsoft:timeout"
_LOCKED_UNTIL = "com.microsoft:locked-until-utc"
_BATCH_SIZE = Symbol("com.microsoft:max-message-batch-size")
_TICKS_1970 = 621_355_968_000_000_000  # of 100 ns, since the year 1


class AttachingOwner(LinkOwner, Protocol):
    """A connection, as it is seen by who attaches its links."""

    is_closing: bool

    def add(self, context: IncomingLink | OutgoingLink | Coordinator) -> None:
        """A link that is attached."""

    def session_token(self, target: Target, session: str) -> int:
        """Returns the token of a session that this connection holds; 0 where it does not."""

    def is_refused_once_more(self) -> bool:
        """Whether that is worth a line in the log."""

    def is_shown(self, principal: Principal, now: float) -> bool: ...

    def turn_away(
        self, context: IncomingLink | OutgoingLink | Coordinator, condition: str, text: str
    ) -> None: ...


class Attaching:
    """Attaches the links of one connection."""

    def __init__(
        self, peer: AttachingOwner, commands: Commands, identity: Identity, requests: Requests
    ) -> None:
        self._peer = peer
        self._commands = commands
        self._identity = identity
        self._requests = requests
        self._accepting: dict[Link, tuple[Target, int]] = {}  # who waits for a session

    def give_up(self, link: Link) -> None:
        """Ends the wait of a link that is gone and may have waited for a session."""
        waiting = self._accepting.pop(link, None)
        if waiting is not None:
            target, number = waiting
            self._commands.leave(target, Detach(number))

    def check(self, scopes: Mapping[Principal, Collection[tuple[str, ...]]]) -> None:
        """Refuses links that wait for a session and may not have it any more."""
        for link, (target, _) in list(self._accepting.items()):
            if not self._identity.may(target, scopes.get(target.principal, ())):
                self.give_up(link)
                link.refuse(error(conditions.UNAUTHORIZED, conditions.LAPSED))

    def attach(self, link: Link) -> None:
        """Attaches a link as its client asks for it."""
        attach = link.attach
        assert attach is not None
        if is_coordinator(attach.target):
            self._attach_coordinator(link)
            return
        requests = self._requests
        text = address_in(attach.source if link.sends else attach.target)
        try:
            address = parse(text or "")
        except ValueError as problem:
            link.refuse(error(conditions.NOT_FOUND, f"There is no such address: {problem}."))
            return
        if address.kind == "cbs":
            requests.attach(link, address, None, self._identity.put_token, _TOKEN_BYTES_MAX)
            return
        target = self._target(link, address, path_of(text or ""))
        if target is None:
            return
        if address.kind == "management":
            node = ManagementNode(self._commands, target, self._peer.session_token)
            most = max(_REQUEST_BYTES_MIN, 2 * self._commands.message_bytes(target))
            requests.attach(link, address, target, node.answer, most)
        elif link.sends:
            self._attach_outgoing(link, address, target)
        else:
            self._attach_incoming(link, address, target)

    def _attach_coordinator(self, link: Link) -> None:
        attach, identity = link.attach, self._identity
        assert attach is not None
        principal = next(iter(identity.everybody(time.time())), None)
        if principal is None:
            text = "A token or a name and key are needed before transactions."
            link.refuse(error(conditions.UNAUTHORIZED, text))
            return
        namespace = identity.namespace(principal)
        coordinator = Coordinator(self._peer, self._commands, link, principal, namespace)
        self._peer.add(coordinator)
        link.accept(
            source=attach.source, target=attach.target, max_message_size=COORDINATOR_BYTES_MAX
        )
        coordinator.start()

    def _target(self, link: Link, address: Address, text: str) -> Target | None:
        """Returns the target of a link, if its client may have it; else refuses the link."""
        right = "any" if address.kind == "management" else "listen" if link.sends else "send"
        entity, exact = None, address.entity
        for principal in self._identity.principals(address.path, time.time()):
            namespace = self._identity.namespace(principal)
            view = self._commands.engine.view
            entity = view.find(namespace, address.entity)
            exact = address.entity if entity is None else entity
            target = Target(
                principal, namespace, exact, queue_of(exact, address), address.path, right
            )
            if self._identity.has_right(principal, target):
                if self._commands.settings.auto_create and not view.has_namespace(namespace):
                    command = CreateNamespace(namespace)
                    self._commands.engine.submit(vouched(principal), "", command, _ignore)
                break
        else:
            if self._peer.is_refused_once_more():
                _audit.warning(
                    "A client was refused: %s on %s", right, exact,
                    extra={"event": "access.refused", "right": right, "subject": exact},
                )  # fmt: skip
            link.refuse(_unauthorized(right, address))
            return None
        is_there = entity is not None or self._commands.settings.auto_create
        if not is_there or (address.transfer and self._commands.properties(target) is None):
            is_exact = self._commands.settings.exact
            missing = self._peer.error_of(NotFound("queue", text, target.namespace))
            link.refuse(_unauthorized(right, address) if is_exact else missing)
            return None
        return target

    def _attach_incoming(self, link: Link, address: Address, target: Target) -> None:
        attach = link.attach
        assert attach is not None
        if address.dead:
            link.refuse(error(conditions.NOT_ALLOWED, "A dead-letter queue cannot be sent to."))
            return
        if SUBSCRIPTION in target.entity:
            text = "A subscription cannot be sent to. Send to its topic."
            link.refuse(error(conditions.NOT_ALLOWED, text))
            return
        most = self._commands.message_bytes(target)
        properties = self._commands.properties(target)
        if properties is not None and properties.status in ("disabled", "send-disabled"):
            link.refuse(
                error(
                    conditions.DISABLED,
                    f"The messaging entity '{told_name(target.entity)}' is disabled for sending.",
                )
            )
            return
        incoming = IncomingLink(self._peer, self._commands, link, target, most)
        self._peer.add(incoming)
        link.accept(
            source=attach.source, target=attach.target, max_message_size=most,
            properties={_BATCH_SIZE: ULong(most)},
        )  # fmt: skip
        incoming.start()

    def _attach_outgoing(self, link: Link, address: Address, target: Target) -> None:
        attach = link.attach
        assert attach is not None
        delete = attach.snd_settle_mode == 1
        wanted, session = _session_filter(attach.source)
        if not wanted:
            self._start_outgoing(link, target, None, delete=delete)
        elif session is not None and type(session) is not str:
            link.refuse(error(conditions.ARGUMENT, "A session id must be text."))
        elif address.dead:
            link.refuse(error(conditions.NOT_ALLOWED, "A dead-letter queue has no sessions."))
        else:
            self._accept_session(link, target, session, delete=delete)

    def _start_outgoing(
        self, link: Link, target: Target, session: Granted | None, *, delete: bool
    ) -> None:
        outgoing = OutgoingLink(
            self._peer, self._commands, link, target, delete=delete, session=session
        )
        outgoing.start(partial(self._outgoing_attached, link, outgoing))

    def _outgoing_attached(self, link: Link, outgoing: OutgoingLink, answer: object) -> None:
        attach = link.attach
        assert attach is not None
        if link.is_gone or self._peer.is_closing:
            outgoing.on_detached()
        elif isinstance(answer, Refused | StoreError):
            link.refuse(self._peer.error_of(answer))
            if outgoing.session is not None:
                self._commands.leave(
                    outgoing.target, ReleaseSession(outgoing.target.queue, outgoing.session.token)
                )
        else:
            self._peer.add(outgoing)
            source, properties = attach.source, {}
            if outgoing.session is not None:
                source = _with_session(attach.source, outgoing.session.session)
                ticks = min(outgoing.session.until_ms, LAST_MS) * 10_000 + _TICKS_1970
                properties = {Symbol(_LOCKED_UNTIL): ticks}
            link.accept(
                source=source, target=attach.target,
                max_message_size=self._commands.message_bytes(outgoing.target),
                properties=properties,
            )  # fmt: skip
            outgoing.on_flowed()  # credit may have come before
        self._peer.flush_soon()

    def _accept_session(
        self, link: Link, target: Target, session: str | None, *, delete: bool
    ) -> None:
        attach = link.attach
        assert attach is not None
        number = self._commands.engine.new_receiver()
        given = (attach.properties or {}).get(Symbol(_TIMEOUT))
        wait_ms = WAIT_MS
        if isinstance(given, int | float) and given >= 0:  # of any type, and it may be infinite
            wait_ms = int(min(given, WAIT_MS_MAX))
        if session is not None:
            wait_ms = 0
        deadline_ms = self._commands.engine.clock_ms(target.namespace) + wait_ms if wait_ms else 0
        command = AcceptSession(target.queue, number, session, deadline_ms=deadline_ms, bound=True)
        # A namespace's clock may stand still; the client does not wait for ever.
        timer = asyncio.get_running_loop().call_later(
            wait_ms / 1000 + 1, self._commands.engine.give_up, number
        )
        self._accepting[link] = (target, number)

        def reply(answer: Answer | Refused | StoreError) -> None:
            timer.cancel()
            waited = self._accepting.pop(link, None)
            if isinstance(answer, Granted):
                if waited is None or link.is_gone or self._peer.is_closing:
                    self._commands.leave(target, ReleaseSession(target.queue, answer.token))
                    return
                try:
                    self._start_outgoing(link, target, answer, delete=delete)
                except BaseException:
                    self._commands.leave(target, ReleaseSession(target.queue, answer.token))
                    raise
                return
            if waited is None or link.is_gone or self._peer.is_closing:
                return
            if isinstance(answer, Refused | StoreError):
                link.refuse(self._peer.error_of(answer))
            else:
                text = "No session became free in time."
                link.refuse(self._peer.error_of(TimedOut(target.queue), text))
            self._peer.flush_soon()

        # It may wait for long, so it does not count among what is under way.
        told = guarded(reply, self._commands.abort)
        self._commands.engine.submit(target.principal, target.namespace, command, told)


def _unauthorized(right: str, address: Address) -> bytes:
    claim = "Send" if right == "send" else "Listen"
    return error(
        conditions.UNAUTHORIZED,
        f"Unauthorized access. '{claim}' claim(s) are required to perform this operation on"
        f" '{told_name(address.entity)}'.",
    )


def _session_filter(source: Described | None) -> tuple[bool, Value]:
    """Whether a session is wanted, and which; None stands for the next that is free."""
    fields = source.value if source is not None and isinstance(source.value, list) else []
    filters = fields[7] if len(fields) > 7 else None
    if not isinstance(filters, dict) or _SESSION_FILTER not in filters:
        return False, None
    found = filters[Symbol(_SESSION_FILTER)]
    return True, found.value if isinstance(found, Described) else found


def _with_session(source: Described | None, session: str) -> Described:
    """The source as it was asked for, with the session that was given."""
    assert source is not None
    fields = list(source.value)
    fields[7] = {**fields[7], Symbol(_SESSION_FILTER): session}
    return Described(source.descriptor, fields)


def _ignore(_: object) -> None:
    """Nobody waits for this answer."""
