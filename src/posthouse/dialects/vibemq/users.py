"""Authentication and permissions: users with passwords, and operations by patterns of names.

A user is a principal like any other. Its operations are kept with its account and looked up for
every frame, so that a change counts at once; what they come to in rights is granted to it as well,
for when it comes in another dialect. A principal that was not made here has the operations that its
rights come to, and its key is its password. Who may do everything everywhere is a superuser.
"""

import hmac
import secrets
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, get_args

import msgspec

from posthouse.broker.access import BROKER, ROOT, Guard, Principal, fits, key_is
from posthouse.broker.engine import Engine
from posthouse.broker.passwords import PASSWORD_CHARS_MAX, Passwords
from posthouse.core.errors import AlreadyExists, NotFound, Unauthenticated
from posthouse.core.model import Account, Grant, Right
from posthouse.core.namespaces import RevokeAccount, SetAccount
from posthouse.dialects.dialect import Broker
from posthouse.dialects.vibemq.answers import INVALID_PAYLOAD, USER_NOT_FOUND, Wrong

OPERATIONS = (
    "Publish", "Subscribe", "CreateQueue", "DeleteQueue", "PurgeQueue", "GetQueueInfo",
    "ListQueues",
)  # fmt: skip
PUBLISH, SUBSCRIBE, CREATE, DELETE, PURGE, INFO, LIST = OPERATIONS
PATTERN_CHARS_MAX = 256
PERMISSIONS_MAX = 100  # of one user
NAME_CHARS_MAX = 64
REMEMBERED_MAX = 1_000  # answers to whether somebody may do something, and known passwords
PERMISSIONS = "vibemq.permissions"  # where they are kept with an account
_EVERY_RIGHT = set(get_args(Right))
_BY_RIGHT: dict[str, tuple[str, ...]] = {
    "send": (PUBLISH, INFO, LIST),
    "listen": (SUBSCRIBE, INFO, LIST),
    "manage": (CREATE, DELETE, PURGE, INFO, LIST),
}
_FOLDED = {name.lower(): name for name in OPERATIONS}


class Permission(msgspec.Struct, rename="camel"):
    """Operations on the queues whose names fit: * stands for anything, whatever the case."""

    queue_pattern: str
    operations: list[str]


_read_permissions = msgspec.json.Decoder(list[Permission]).decode


class Rights:
    """The operations that a user may do. Immutable: a changed account gets new Rights."""

    def __init__(self, permissions: Sequence[Permission], *, superuser: bool = False) -> None:
        self.is_superuser = superuser
        self._permissions = [
            (each.queue_pattern.casefold(), frozenset(each.operations)) for each in permissions
        ]
        self._found: dict[tuple[str, str], bool] = {}

    def allows(self, operation: str, queue: str) -> bool:
        if self.is_superuser:
            return True
        asked = (operation, queue)
        found = self._found.get(asked)
        if found is None:
            folded = queue.casefold()
            found = any(
                operation in operations and fits(pattern, folded)
                for pattern, operations in self._permissions
            )
            if len(self._found) >= REMEMBERED_MAX:
                self._found.clear()
            self._found[asked] = found
        return found


NOTHING = Rights(())
EVERYTHING = Rights((), superuser=True)
# Who comes with the token that all share: everything but users.
EVERY_QUEUE = Rights([Permission("*", list(OPERATIONS))])
SHARER = Principal("$vibemq-token", everything=True)


class Settings(NamedTuple):
    namespace: str
    message_bytes: int = 16 << 20
    window: int = 100  # messages that a subscriber has and has not acknowledged
    keep_alive_seconds: float = 30  # how often a client is to be heard of; a few may be missed
    token: str = ""  # that all may share, as before 1.8
    connection_rate: int = 0  # new ones from an address in a minute; 0: any number
    message_rate: int = 0  # requests on a connection in a second
    dev: bool = False


class Users:
    """Everybody who comes, by whatever credentials."""

    def __init__(self, broker: Broker, guard: Guard, settings: Settings) -> None:
        self._broker = broker
        self._guard = guard
        self.settings = settings
        self.passwords = Passwords()
        self._rights: dict[str, tuple[Account, Rights]] = {}
        self._known: dict[bytes, Account] = {}  # passwords that were found to be good
        self._salt = secrets.token_bytes(16)

    @property
    def engine(self) -> Engine | None:
        return self._broker.engine

    @property
    def _accounts(self) -> Mapping[str, Account]:
        engine = self._broker.engine
        assert engine is not None  # nobody comes before it is open
        return engine.view.accounts

    # Who it is.

    def identify_sharer(self, token: str) -> Principal:
        """Authenticates a client by the shared token. Raises Unauthenticated."""
        wanted = self.settings.token
        if not wanted or not key_is(token)(wanted):
            raise Unauthenticated
        return SHARER

    async def identify(self, name: str, password: str) -> Principal:
        """Authenticates a user by a key, or else by a password.

        Raises Unauthenticated, after the same work whether or not the user exists, or Busy.
        """
        if len(password) > PASSWORD_CHARS_MAX or len(name) > 4 * NAME_CHARS_MAX + 4:
            raise Unauthenticated
        if "@" in name:  # a key of one entity, which is for Service Bus
            name = ""
        try:
            return self._guard.identify(self._accounts, name, password)
        except Unauthenticated:
            account = self._accounts.get(name)
        hash = self._guard.password_hash(account)
        given = f"{len(name)}:{name}{password}".encode(errors="surrogatepass")
        digest = hmac.digest(self._salt, given, sha256)
        known = self._known.get(digest)
        if account is None or known is not account:
            if not await self.passwords.fits(password, hash) or account is None:
                raise Unauthenticated
            if self._accounts.get(name) is not account:  # it was changed meanwhile
                raise Unauthenticated
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            self._known[digest] = account
        assert hash is not None  # it fits
        return Principal(name, account.number, proof=self._guard.proof(hash))

    # What it may do.

    def rights(self, principal: Principal) -> Rights | None:
        """Returns the current rights; None if the user is gone or has another key or password."""
        if principal.everything:
            return EVERY_QUEUE if principal is SHARER else EVERYTHING
        if not self._guard.knows(self._accounts, principal):
            return None
        account = self._accounts[principal.name]
        found = self._rights.get(account.name)
        if found is None or found[0] is not account:
            if len(self._rights) >= REMEMBERED_MAX:
                self._rights.clear()
            found = account, _rights_of(account, self.settings.namespace)
            self._rights[account.name] = found
        return found[1]

    # Administration.

    async def create(self, by: Principal, name: str, password: str, *, superuser: bool) -> None:
        """Raises Wrong or Refused."""
        check_user(name)
        _check_password(password)
        if name in self._accounts:
            raise AlreadyExists("principal", name)
        sealed = self._guard.seal(name, await self.passwords.hash(password))
        grants = [Grant("*", "*", ["manage", "send", "listen"])] if superuser else []
        extras = {} if superuser else {PERMISSIONS: "[]"}
        await self._set(by, SetAccount(name, grants, [], True, sealed, extras))

    async def delete(self, by: Principal, name: str) -> None:
        """Raises Wrong or Refused."""
        self._account(name)
        await self._ask(by, RevokeAccount(name))

    async def change_password(self, by: Principal, name: str, password: str) -> None:
        """Raises Wrong or Refused."""
        _check_password(password)
        self._account(name)
        sealed = self._guard.seal(name, await self.passwords.hash(password))
        account = self._account(name)
        await self._set(by, SetAccount(name, account.grants, account.keys, password=sealed))

    async def grant(self, by: Principal, name: str, pattern: str, operations: list[Any]) -> None:
        """Grants operations on a pattern, in place of earlier ones. Raises Wrong or Refused."""
        if not 1 <= len(pattern) <= PATTERN_CHARS_MAX:
            raise Wrong(INVALID_PAYLOAD, f"A pattern has 1 to {PATTERN_CHARS_MAX} characters.")
        wanted = [operation_of(each) for each in operations]
        if not wanted:
            raise Wrong(INVALID_PAYLOAD, f"Operations are some of {', '.join(OPERATIONS)}.")
        account = self._account(name)
        rest = [
            each
            for each in permissions_of(account, self.settings.namespace)
            if each.queue_pattern != pattern
        ]
        if len(rest) >= PERMISSIONS_MAX:
            raise Wrong(INVALID_PAYLOAD, f"A user has {PERMISSIONS_MAX} permissions at most.")
        given = [*rest, Permission(pattern, list(dict.fromkeys(wanted)))]
        await self._permit(by, account, pattern, given)

    async def revoke(self, by: Principal, name: str, pattern: str) -> None:
        """Raises Wrong or Refused."""
        account = self._account(name)
        given = permissions_of(account, self.settings.namespace)
        rest = [each for each in given if each.queue_pattern != pattern]
        await self._permit(by, account, pattern, rest)

    async def _permit(
        self, by: Principal, account: Account, pattern: str, given: list[Permission]
    ) -> None:
        """Sets an account's permissions on the queues of this namespace. Only `pattern` changes."""
        if is_superuser(account):
            raise Wrong(INVALID_PAYLOAD, "A superuser may do everything, and needs no permission.")
        elsewhere = [each for each in account.grants if each.namespace != self.settings.namespace]
        if any(fits(each.namespace, self.settings.namespace) and each.entity == pattern
               for each in elsewhere):  # fmt: skip
            raise Wrong(
                INVALID_PAYLOAD,
                f"{account.name!r} has rights on {pattern!r} in other namespaces by the same grant,"
                " which cannot be changed for one of them: revoke the principal, and add it again.",
            )
        of_several = {each.entity for each in elsewhere
                      if fits(each.namespace, self.settings.namespace)}  # fmt: skip
        here = [each for each in given if each.queue_pattern not in of_several]
        grants = [*elsewhere, *_grants_of(here, self.settings.namespace)]
        if not grants and not account.password:
            raise Wrong(INVALID_PAYLOAD, "One without a password needs some right.")
        extras = {**account.extras, PERMISSIONS: msgspec.json.encode(given).decode()}
        await self._set(by, SetAccount(account.name, grants, account.keys, extras=extras))

    def every(self) -> list[Account]:
        return [self._accounts[name] for name in sorted(self._accounts)]

    def permissions(self, name: str) -> list[Permission]:
        """Raises Wrong."""
        return permissions_of(self._account(name), self.settings.namespace)

    def _account(self, name: str) -> Account:
        account = self._accounts.get(name)
        if account is None:
            raise Wrong(USER_NOT_FOUND, f"There is no user {name!r}; check the name.")
        return account

    async def _set(self, by: Principal, command: SetAccount) -> None:
        try:
            await self._ask(by, command)
        except NotFound:
            raise Wrong(USER_NOT_FOUND, f"There is no user {command.name!r} any more.") from None

    async def _ask(self, by: Principal, command: SetAccount | RevokeAccount) -> None:
        engine = self._broker.engine
        assert engine is not None
        await engine.ask(by, "", command)

    async def make_first(self, name: str, password: str) -> None:
        """A superuser, unless there is somebody of that name. Raises Wrong or Refused."""
        if name not in self._accounts:
            await self.create(BROKER, name, password, superuser=True)


def check_user(name: str) -> None:
    """Raises Wrong."""
    if (
        not 1 <= len(name) <= NAME_CHARS_MAX or name == ROOT or name.startswith("$")
        or not name.isprintable() or any(each in name for each in ":/@*")
    ):  # fmt: skip
        raise Wrong(
            INVALID_PAYLOAD,
            f"A user's name has 1 to {NAME_CHARS_MAX} printable characters, none of : / @ *, and"
            f" no $ in front; {ROOT} is the broker's own.",
        )


def _check_password(password: str) -> None:
    if not 1 <= len(password) <= PASSWORD_CHARS_MAX:
        raise Wrong(INVALID_PAYLOAD, f"A password has 1 to {PASSWORD_CHARS_MAX} characters.")


def operation_of(given: Any) -> str:
    """Returns the operation of that name or number. Raises Wrong."""
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < len(OPERATIONS):
        return OPERATIONS[given]
    found = _FOLDED.get(given.lower()) if isinstance(given, str) else None
    if found is None:
        raise Wrong(INVALID_PAYLOAD, f"Operations are some of {', '.join(OPERATIONS)}.")
    return found


def is_superuser(account: Account) -> bool:
    return any(
        each.namespace == "*" and each.entity == "*" and set(each.rights) == _EVERY_RIGHT
        for each in account.grants
    )


def permissions_of(account: Account, namespace: str) -> list[Permission]:
    """Those that were given here; or what its rights come to."""
    kept = account.extras.get(PERMISSIONS)
    if kept is not None:
        return _read_permissions(kept)
    return [
        Permission(
            each.entity,
            [op for op in OPERATIONS if any(op in _BY_RIGHT[right] for right in each.rights)],
        )
        for each in account.grants
        if fits(each.namespace, namespace)
    ]


def _rights_of(account: Account, namespace: str) -> Rights:
    if is_superuser(account):
        return EVERYTHING
    return Rights(permissions_of(account, namespace))


def _grants_of(permissions: Sequence[Permission], namespace: str) -> list[Grant]:
    """Returns the grants for other dialects, which never allow more than the permissions.

    The right to manage needs the operations to create, delete, purge and get information.
    """
    grants = []
    for each in permissions:
        rights: list[Right] = []
        if PUBLISH in each.operations:
            rights.append("send")
        if SUBSCRIBE in each.operations:
            rights.append("listen")
        if {CREATE, DELETE, PURGE, INFO} <= set(each.operations):
            rights.append("manage")
        if rights:
            grants.append(Grant(namespace, each.queue_pattern, rights))
    return grants
