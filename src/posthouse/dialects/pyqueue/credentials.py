"""Authentication of PyQueue clients: by a key, or by a token signed with a configured secret.

The algorithm of a token is the one that belongs to what is configured, whatever the token says.
"""

from typing import Any, NamedTuple

import msgspec

from posthouse.broker.access import Accounts, Guard, Principal
from posthouse.core.errors import Unauthenticated
from posthouse.dialects.pyqueue.refusals import Failed

TOKEN_CHARS_MAX = 8_192
FOR_EVER = float("inf")
_SCHEMES = {"apikey": "apikey", "bearer": "jwt"}


class Signing(NamedTuple):
    """The keys and claims that tokens are checked against. Without a key, no token is accepted."""

    secret: str | None = None  # HS256
    public_key: str | None = None  # RS256, in PEM
    audience: str | None = None  # that a token must be for; None: it must name none
    issuer: str | None = None  # that it must be of; None: of any


class Known(NamedTuple):
    principal: Principal
    until: float = FOR_EVER  # Unix time


class _AuthForm(msgspec.Struct):
    type: str
    value: str


def read(payload: bytes) -> tuple[str, str]:
    """The kind of credentials, and what they are. Raises Failed."""
    if not payload:
        raise Failed("AUTH command requires payload")
    if payload[:1] != b"{":
        return read_header(payload)
    try:
        form = msgspec.json.decode(payload, type=_AuthForm)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Failed("Invalid auth payload") from None
    if form.type not in ("apikey", "jwt"):
        raise Failed("Invalid auth type")
    return form.type, form.value


def read_header(given: bytes) -> tuple[str, str]:
    """`ApiKey KEY` or `Bearer TOKEN`. Raises Failed."""
    try:
        scheme, space, value = given.decode().strip().partition(" ")
    except UnicodeDecodeError:
        raise Failed("Invalid auth payload") from None
    kind = _SCHEMES.get(scheme.lower())
    if not space or kind is None:
        raise Failed("Invalid auth payload" if not space else "Invalid auth type")
    return kind, value.strip()


class Credentials:
    def __init__(self, guard: Guard, signing: Signing) -> None:
        self._guard = guard
        self._signing = signing

    def identify(self, accounts: Accounts, kind: str, value: str) -> Known:
        """Raises Unauthenticated."""
        if len(value) > TOKEN_CHARS_MAX:
            raise Unauthenticated
        if kind == "apikey":
            known = Known(self._guard.identify_by_key(accounts, value))
        else:
            known = self._by_token(accounts, value)
        if "@" in known.principal.name:  # a key of an entity, which only its own clients check
            raise Unauthenticated
        return known

    def _by_token(self, accounts: Accounts, token: str) -> Known:
        claims = self._claims(token)
        name = claims.get("principal")
        account = accounts.get(name) if isinstance(name, str) else None
        if account is None:
            raise Unauthenticated
        return Known(Principal(account.name, account.number), float(claims["exp"]))

    def _claims(self, token: str) -> dict[str, Any]:
        """Returns the claims of a token that is valid now. Raises Unauthenticated."""
        import jwt  # not needed by every client

        signing = self._signing
        for key, algorithm in ((signing.secret, "HS256"), (signing.public_key, "RS256")):
            if key is None:
                continue
            try:
                claims: dict[str, Any] = jwt.decode(
                    token, key, algorithms=[algorithm], audience=signing.audience,
                    issuer=signing.issuer, options={"require": ["exp", "principal"]},
                )  # fmt: skip
            except (jwt.InvalidTokenError, ValueError):
                continue
            return claims
        raise Unauthenticated
