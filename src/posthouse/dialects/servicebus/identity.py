"""Identities of clients: by SASL PLAIN, or by the tokens that they put on $cbs."""

import logging
import time
from collections.abc import Collection, Iterable
from typing import NamedTuple, Protocol, cast

from posthouse.amqp.types import Int
from posthouse.broker.access import Principal, key_is
from posthouse.broker.throttle import Login
from posthouse.core.errors import Unauthenticated, Unauthorized
from posthouse.core.model import Right
from posthouse.dialects.servicebus import conditions, sas
from posthouse.dialects.servicebus.address import ADDRESS_CHARS_MAX, at
from posthouse.dialects.servicebus.credentials import Credentials
from posthouse.dialects.servicebus.requests import Reply, Request
from posthouse.dialects.servicebus.target import Target

_audit = logging.getLogger("posthouse.audit")

CLAIMS_MAX = 1_000  # tokens of one connection


class Claim(NamedTuple):
    """The rights that a token gives."""

    principal: Principal
    scope: tuple[str, ...]
    expires: float  # unix seconds


class IdentityOwner(Protocol):
    """A connection whose client shows who it is."""

    @property
    def address(self) -> str: ...

    @property
    def host(self) -> str:
        """The host that the client thinks it has connected to."""

    @property
    def namespace(self) -> str:
        """The one that a client has asked for; nothing where it has not."""

    def trust(self, principal: Principal) -> bool:
        """Trusts the client as this principal; False where it has too many connections."""

    def is_refused_once_more(self) -> bool:
        """Whether that is worth a line in the log."""


class Identity:
    """The identity of one connection's client."""

    def __init__(self, peer: IdentityOwner, credentials: Credentials) -> None:
        self._peer = peer
        self._credentials = credentials
        self.plain: Principal | None = None  # who it is by SASL
        self._claims: dict[tuple[str, ...], Claim] = {}  # by audience
        # Whose newest token was signed with another key than the one before: with that one.
        self._renewed: dict[Principal, Principal] = {}
        self._login: Login | None = None

    @property
    def _tries(self) -> Login:
        if self._login is None:
            failures = self._credentials.engine.throttle.failures
            self._login = failures.login(self._peer.address)
        return self._login

    @property
    def is_anybody(self) -> bool:
        """Whether any of what it has shown is still good, as of the last look."""
        return self.plain is not None or bool(self._claims)

    def scopes(self, now: float) -> dict[Principal, set[tuple[str, ...]]]:
        """Returns the scopes of valid tokens, by principal."""
        self._claims = {path: each for path, each in self._claims.items() if each.expires > now}
        scopes: dict[Principal, set[tuple[str, ...]]] = {}
        for claim in self._claims.values():
            scopes.setdefault(claim.principal, set()).add(claim.scope)
        return scopes

    def authenticate(self, mechanism: str, response: bytes) -> bool | None:
        """None where it is to try again later: the broker starts, or there are too many of it."""
        if mechanism != "PLAIN":
            return True
        if not self._credentials.is_open:
            return None
        _, name, key = (*response.split(b"\0"), b"", b"")[:3]
        if response.count(b"\0") != 2:
            return False
        try:
            with self._tries:
                self.plain = self._identify(name, key)
        except Unauthenticated:
            self._note_refusal(name.decode(errors="replace"))
            return False
        if not self._peer.trust(self.plain):
            self.plain = None
            return None
        return True

    def _identify(self, name: bytes, key: bytes) -> Principal:
        """Raises Unauthenticated."""
        try:
            return self._credentials.identify(name.decode(), key_is(key.decode()))
        except UnicodeDecodeError:
            raise Unauthenticated from None

    def identify_again(self) -> None:
        """Keys that were taken back are good for nothing any more."""
        knows, accounts = self._credentials.guard.knows, self._credentials.engine.view.accounts
        if self.plain is not None and not knows(accounts, self.plain):
            self.plain = None
        self._claims = {
            path: each for path, each in self._claims.items() if knows(accounts, each.principal)
        }
        if self._renewed:
            left = {each.principal: each.principal for each in self._claims.values()}
            self._renewed = {who: left[who] for who in self._renewed if who in left}

    def acting(self, principal: Principal) -> Principal:
        """A principal of a link, with the key of the newest token that was put for it."""
        return self._renewed.get(principal, principal) if self._renewed else principal

    def namespace(self, principal: Principal) -> str:
        """The namespace that the connection speaks of; it may have to be made yet."""
        if self._peer.namespace and principal == self.plain:  # a token may be for its host alone
            return self._peer.namespace
        return self._credentials.namespace(self._peer.host, principal)

    def _note_refusal(self, name: str) -> None:
        if not self._peer.is_refused_once_more() or self._tries.is_locked:
            return
        _audit.warning(
            "A client came with credentials that are not valid: %.100r", name,
            extra={"event": "access.unauthenticated"},
        )  # fmt: skip

    def put_token(self, request: Request, reply: Reply) -> None:
        """On $cbs."""
        status, text = self._put(request)
        reply({"status-code": Int(status), "status-description": text}, None)

    def _put(self, request: Request) -> tuple[int, str]:
        audience, text = request.text("name"), request.body
        if request.text("operation") != "put-token" or not isinstance(text, str):
            return 400, "The request is not a put-token with a token."
        if not self._credentials.is_open:
            return 503, "The broker is starting."
        if not text.strip().startswith(sas.PREFIX):
            return 401, "The token is not a shared access signature; others are not taken."
        try:
            token = sas.parse(text)
        except ValueError as problem:
            return 400, f"The token cannot be read: {problem}."
        _, path = sas.resource_of(audience)
        try:
            with self._tries:
                principal = self._credentials.identify_by_token(token, self._peer.host, path)
        except Unauthenticated:
            self._note_refusal(token.key_name)
            return 401, "The token's key name or signature is not valid."
        if token.expires <= time.time():
            return 401, "The token has expired."
        if len(audience) > ADDRESS_CHARS_MAX:
            return 400, "The token's name is too long."
        if not sas.covers(token.scope, path) or not self._credentials.is_for(
            token, self._peer.host
        ):
            return 401, f"The token is not for {audience!r}."
        if len(self._claims) >= CLAIMS_MAX and path not in self._claims:
            return 403, f"A connection has at most {CLAIMS_MAX} tokens."
        if self._credentials.settings.strict and not self._is_there(principal, path):
            return 404, conditions.missing("/".join(path))
        if not self._peer.trust(principal):
            return 503, "This principal has too many connections; close some, and try again."
        if any(
            each.principal == principal and each.principal.proof != principal.proof
            for each in self._claims.values()
        ):
            self._renewed[principal] = principal
        self._claims[path] = Claim(principal, token.scope, token.expires)
        return 202, "Accepted"

    def _is_there(self, principal: Principal, path: tuple[str, ...]) -> bool:
        namespace = self.namespace(principal)
        if not path:
            return True
        try:
            entity = at("/".join(path)).entity
        except ValueError:
            return False
        return self._credentials.engine.view.find(namespace, entity) is not None

    def principals(self, path: tuple[str, ...], now: float) -> Iterable[Principal]:
        """On whose behalf an entity may be used, those first whose tokens are made out to it."""
        if self.plain is not None:
            yield self.plain
        fit = [e for e in self._claims.values() if e.expires > now and sas.covers(e.scope, path)]
        for claim in sorted(fit, key=lambda each: -len(each.scope)):
            yield claim.principal

    def everybody(self, now: float) -> Iterable[Principal]:
        """Whoever it has shown to be."""
        if self.plain is not None:
            yield self.plain
        yield from (each.principal for each in self._claims.values() if each.expires > now)

    def may(self, target: Target, scopes: Collection[tuple[str, ...]]) -> bool:
        """Whether a link may stay, where its principal's tokens are for these."""
        path = target.path
        known = target.principal == self.plain or any(
            path[:size] in scopes for size in range(len(path) + 1)
        )
        return known and self.has_right(target.principal, target)

    def has_right(self, principal: Principal, target: Target) -> bool:
        accounts = self._credentials.engine.view.accounts
        principal = self.acting(principal)
        rights: tuple[Right, ...] = ("send", "listen", "manage")
        if target.right != "any":
            rights = (cast(Right, target.right),)
        for right in rights:
            try:
                self._credentials.guard.check_right(
                    accounts, principal, right, target.namespace, target.entity
                )
            except Unauthorized:
                continue
            return True
        return False
