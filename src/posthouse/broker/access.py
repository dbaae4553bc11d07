"""Who may do what. The engine asks once for every command; the right it needs is on its class.

A principal is somebody whose credentials were checked. What it may do is looked up in its account
each time, so a revoked one is out at once, on connections that are open too. Keys can be read back,
because some protocols sign with them; they are kept sealed, with a key that is not in the journal.
"""

import hmac
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Protocol

import msgspec

from posthouse.core.commands import (
    Command,
    CreateQueue,
    CreateSubscription,
    Resubmit,
    UpdateQueue,
    Work,
)
from posthouse.core.errors import InvalidArgument, Unauthenticated, Unauthorized
from posthouse.core.model import Account, Grant, Right, entity_of, topic_of
from posthouse.core.namespaces import CreateNamespace, DeleteNamespace, SpaceCommand

_log = logging.getLogger(__name__)

Accounts = Mapping[str, Account]

ROOT = "RootManageSharedAccessKey"  # what Azure's clients call it
KEY_CHARS_MAX = 256
_NONCE_BYTES = 12
_ALL = "*"


class Principal(msgspec.Struct, frozen=True, gc=False):
    """Somebody whose credentials were checked."""

    name: str
    account: int = 0  # its number: another that has the name later is somebody else
    everything: bool = False  # needs no account


BROKER = Principal("$broker", everything=True)  # Posthouse itself, on its owner's behalf
ANYBODY = Principal("$anybody", everything=True)  # where no credentials are asked for


class Access(Protocol):
    def check(
        self,
        accounts: Accounts,
        principal: Principal,
        namespace: str,
        command: Command | SpaceCommand,
    ) -> None:
        """Raises Unauthorized."""


class Open:
    """Everybody may do everything: for a broker inside a test, or behind another's gate."""

    def check(
        self,
        accounts: Accounts,
        principal: Principal,
        namespace: str,
        command: Command | SpaceCommand,
    ) -> None:
        pass


class Guard:
    """Knows principals by their keys, and lets them do what their accounts say.

    The root principal has no account and may do everything.
    """

    def __init__(self, root_key: str, seal_key: bytes) -> None:
        self._root_key = root_key
        self._seal_key = seal_key
        self._keys: dict[bytes, str] = {}  # sealed: not sealed
        # For names that are not there: the same work as for one that is.
        nobody = [secrets.token_bytes(64), secrets.token_bytes(64)]
        self._keys |= {each: secrets.token_urlsafe(32) for each in nobody}
        self._nobody = Account("", 0, 0, 0, [], nobody)

    # Credentials.

    def identify(self, accounts: Accounts, name: str, key: str) -> Principal:
        """Raises Unauthenticated."""
        return self.identify_by(accounts, name, key_is(key))

    def identify_by(self, accounts: Accounts, name: str, fits: Callable[[str], bool]) -> Principal:
        """By what was made with a key of the principal, such as a signature.

        Raises Unauthenticated: after the same work whether name or key is wrong.
        """
        known = name == ROOT or name in accounts
        keys = self.keys(accounts, name) if known else self._unsealed_all(self._nobody)
        found = [fits(each) for each in keys]  # of all of them, always
        if not known or not any(found):
            raise Unauthenticated
        if name == ROOT:
            return Principal(ROOT, everything=True)
        return Principal(name, accounts[name].number)

    def identify_by_key(self, accounts: Accounts, key: str) -> Principal:
        """By the key alone, where a protocol knows no names. Raises Unauthenticated.

        It is held against every key there is, whichever fits.
        """
        fits, found = key_is(key), []
        for name in (ROOT, *accounts):
            found += [name for each in self.keys(accounts, name) if fits(each)]
        if not found:
            raise Unauthenticated
        name = found[0]
        if name == ROOT:
            return Principal(ROOT, everything=True)
        return Principal(name, accounts[name].number)

    def keys(self, accounts: Accounts, name: str) -> list[str]:
        """Those that a principal may sign or come with, always two; none if there is no such."""
        if name == ROOT:
            return [self._root_key, self._root_key]
        account = accounts.get(name)
        return [] if account is None else self._unsealed_all(account)

    def _unsealed_all(self, account: Account) -> list[str]:
        found = [self._unsealed(account.name, each) for each in account.keys]
        keys = [key for key in found if key is not None]
        return keys if len(keys) != 1 else keys * 2

    def password_hash(self, account: Account) -> str | None:
        """None where it has no password, or one that cannot be opened."""
        return self._unsealed(account.name, account.password) if account.password else None

    def seal(self, name: str, key: str) -> bytes:
        """Only for the principal of that name. Raises InvalidArgument."""
        if name == ROOT or ":" in name:
            raise InvalidArgument(
                "principal", f"must not be {ROOT!r}, nor have a colon in its name"
            )
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # not needed by every start

        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + AESGCM(self._seal_key).encrypt(nonce, key.encode(), name.encode())

    def _unsealed(self, name: str, sealed: bytes) -> str | None:
        if sealed in self._keys:
            return self._keys[sealed]
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            key = AESGCM(self._seal_key).decrypt(nonce, rest, name.encode()).decode()
        except (InvalidTag, ValueError):
            _log.error(
                "The key of %s cannot be opened: it was sealed with another seal-key. Put that file"
                " back, or rotate the key.", name, extra={"event": "access.sealed", "name_": name},
            )  # fmt: skip
            return None
        self._keys[sealed] = key
        return key

    # Rights.

    def check(
        self,
        accounts: Accounts,
        principal: Principal,
        namespace: str,
        command: Command | SpaceCommand,
    ) -> None:
        if principal.everything:
            return
        if isinstance(command, Work):
            self.check(accounts, principal, namespace, command.command)
        right = command.right
        assert right != "broker"  # the engine has seen to it
        for space, entity in _reached(namespace, command):
            if right == "any":
                self._check_any(accounts, principal, space, entity)
            else:
                self.check_right(accounts, principal, right, space, entity)

    def _check_any(
        self, accounts: Accounts, principal: Principal, namespace: str, entity: str
    ) -> None:
        account = accounts.get(principal.name)
        mine = account is not None and account.number == principal.account
        rights: tuple[Right, ...] = ("send", "listen", "manage")
        if (
            account is None
            or not mine
            or not any(is_granted(account.grants, right, namespace, entity) for right in rights)
        ):
            raise Unauthorized(principal.name, "do anything", namespace)

    def check_right(
        self, accounts: Accounts, principal: Principal, right: Right, namespace: str, entity: str
    ) -> None:
        """On an entity; * stands for all there could be, nothing for any. Raises Unauthorized."""
        if principal.everything:
            return
        account = accounts.get(principal.name)
        mine = account is not None and account.number == principal.account
        if account is None or not mine or not is_granted(account.grants, right, namespace, entity):
            raise Unauthorized(principal.name, right, namespace)


def is_granted(grants: Sequence[Grant], right: Right, namespace: str, entity: str) -> bool:
    return any(
        right in grant.rights
        and fits(grant.namespace, namespace)
        and (not entity or fits(grant.entity, entity) or fits(grant.entity, topic_of(entity)))
        for grant in grants
    )


def key_is(key: str) -> Callable[[str], bool]:
    """Whether another is the same, in a time that tells nothing."""
    given = _digest(key)
    return lambda each: hmac.compare_digest(given, _digest(each))


def vouched(principal: Principal) -> Principal:
    """The same principal, for a command whose caller has asked for another right before.

    It is counted, limited and written down by its name, as all that the principal does.
    """
    if principal.everything:
        return principal
    return msgspec.structs.replace(principal, everything=True)


def new_key() -> str:
    return secrets.token_urlsafe(32)


def fits(pattern: str, name: str) -> bool:
    """Whether a name is such; * in a pattern stands for anything, also for nothing."""
    first, star, rest = pattern.partition(_ALL)
    if not star:
        return name == pattern
    if not name.startswith(first):
        return False
    if not rest:
        return True
    *inner, last = rest.split(_ALL)
    at = len(first)
    for part in inner:  # each as far to the left as it goes: what follows has the most room then
        at = name.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return len(name) - at >= len(last) and name.endswith(last)


def _reached(namespace: str, command: Command | SpaceCommand) -> list[tuple[str, str]]:
    """The entities a command needs its right on. A dead-letter queue is its owner's."""
    match command.reach:
        case "queue":
            queue = getattr(command, "queue", None)
            reached = [(namespace, _ALL if queue is None else entity_of(queue))]
            if isinstance(command, Resubmit) and command.target is not None:
                reached.append((namespace, entity_of(command.target)))
            if isinstance(command, CreateQueue | UpdateQueue | CreateSubscription):
                given = command.properties
                targets = (given.forward_to, given.forward_dead_to)
                reached += [(namespace, entity_of(each)) for each in targets if each is not None]
            return reached
        case "namespace":
            made = isinstance(command, CreateNamespace | DeleteNamespace)
            return [(command.name if made else namespace, _ALL)]  # type: ignore[union-attr]
        case "broker":
            return [(_ALL, _ALL)]
        case "receiver":
            return [(namespace, "")]


def _digest(text: str) -> bytes:
    return sha256(text.encode(errors="surrogatepass")).digest()
