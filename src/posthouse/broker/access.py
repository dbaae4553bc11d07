"""Access control. The engine checks every command; the right it needs is on the command's class.

A principal is somebody whose credentials were checked. What it may do is looked up in its account
each time, so a revoked one is out at once, on connections that are open too. It carries a proof of
the key or password it came with, which is looked up as well: when the account has that key no more,
the principal may do nothing. Keys can be read back, because some protocols sign with them; they are
kept sealed, with a key that is not in the journal.

What lasts longer than a command (a connection, a stream, a long poll) is registered with `Watchers`
and looks again whether it may go on when an account has changed.
"""

import asyncio
import hmac
import logging
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b, sha256
from typing import Protocol

import msgspec

from posthouse.core.commands import (
    Command,
    CreateQueue,
    CreateSubscription,
    Resubmit,
    StartJob,
    UpdateQueue,
    Work,
)
from posthouse.core.errors import InvalidArgument, Unauthenticated, Unauthorized
from posthouse.core.model import Account, Grant, Right, entity_of, topic_of
from posthouse.core.namespaces import CreateNamespace, DeleteNamespace, SpaceCommand

_log = logging.getLogger(__name__)

Accounts = Mapping[str, Account]

ROOT = "RootManageSharedAccessKey"  # its name in Azure's clients
KEY_CHARS_MAX = 256
_NONCE_BYTES = 12
_PROOF_BYTES = 32
_ALL = "*"


class Principal(msgspec.Struct, frozen=True, gc=False):
    """Somebody whose credentials were checked; the same, whichever of its keys it came with."""

    name: str
    account: int = 0  # its number: another that has the name later is somebody else
    everything: bool = False  # needs no account
    # The proof of the key or password it came with, as `Guard` makes it. Empty: it came with
    # neither, and the code that let it in ends its access.
    proof: bytes = b""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Principal):
            return NotImplemented
        mine, others = (self.name, self.account), (other.name, other.account)
        return mine == others and self.everything == other.everything

    def __hash__(self) -> int:
        return hash((self.name, self.account))


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

    def note(self, name: str, account: Account | None) -> None:
        """The account of that name is new, or another than before, or gone (None)."""


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

    def note(self, name: str, account: Account | None) -> None:
        pass


LookAgain = Callable[[Collection[str]], None]


class Watchers:
    """The callbacks of everything that lasts longer than a command.

    Each is called with the names of the accounts that have changed, soon after the change, and
    checks whether it may go on. Nothing that is synced behind the change is delivered before that.
    """

    def __init__(self) -> None:
        self._watchers: dict[LookAgain, None] = {}
        self._changed: set[str] = set()

    def add(self, look_again: LookAgain) -> None:
        """Adds a callback; adding it again has no effect."""
        self._watchers[look_again] = None

    def remove(self, look_again: LookAgain) -> None:
        self._watchers.pop(look_again, None)

    def note(self, name: str) -> None:
        """An account has changed."""
        if not self._changed:
            asyncio.get_running_loop().call_soon(self.tell)
        self._changed.add(name)

    def tell(self) -> None:
        """Calls them now, if an account has changed since they were last called."""
        if not self._changed:
            return
        names, self._changed = self._changed, set()
        for look_again in list(self._watchers):
            try:
                look_again(names)
            except Exception:  # noqa: BLE001 (a connection's code must not keep others connected)
                _log.exception("somebody who was to look again at his rights has failed")

    @contextmanager
    def refusal(
        self, principal: Principal, check: Callable[[], None]
    ) -> Iterator["asyncio.Future[None]"]:
        """A future that is done when the check raises Unauthorized, for who waits or streams."""
        refused = asyncio.get_running_loop().create_future()

        def look_again(names: Collection[str]) -> None:
            if principal.name in names and not refused.done():
                try:
                    check()
                except Unauthorized:
                    refused.set_result(None)

        look_again((principal.name,))  # it may have changed since it was let in
        self.add(look_again)
        try:
            yield refused
        finally:
            self.remove(look_again)


class Guard:
    """Knows principals by their keys, and lets them do what their accounts say.

    The root principal has no account and may do everything.
    """

    def __init__(self, root_key: str, seal_key: bytes) -> None:
        self._root_key = root_key
        self._seal_key = seal_key
        self._keys: dict[bytes, str] = {}  # sealed: not sealed
        self._salt = secrets.token_bytes(_PROOF_BYTES)  # of proofs, which mean nothing elsewhere
        self._root_proof = self.proof(root_key)
        self._proofs: dict[str, tuple[Account, frozenset[bytes]]] = {}  # by name
        self._noted: dict[str, Account] = {}
        self._key_proofs: dict[str, list[bytes]] = {}  # of those
        self._names: dict[bytes, dict[str, None]] = {}  # principals by the proof of a key
        # For names that are not there: the same work as for one that is.
        nobody = [secrets.token_bytes(64), secrets.token_bytes(64)]
        password = secrets.token_bytes(64)
        self._keys |= {each: secrets.token_urlsafe(32) for each in (*nobody, password)}
        self._nobody = Account("", 0, 0, 0, [], nobody, password)
        self._nobodys_proofs = [self.proof(key) for key in self._unsealed_all(self._nobody)]

    def derive(self, purpose: bytes) -> bytes:
        """A key for something else that is to be recognised again, also after a restart."""
        return blake2b(purpose, key=self._seal_key, digest_size=_PROOF_BYTES).digest()

    # Credentials.

    def identify(self, accounts: Accounts, name: str, key: str) -> Principal:
        """Raises Unauthenticated."""
        return self.identify_by(accounts, name, key_is(key))

    def identify_by(self, accounts: Accounts, name: str, fits: Callable[[str], bool]) -> Principal:
        """Identifies a principal by something made with one of its keys, such as a signature.

        Raises Unauthenticated, after the same work whether the name or the key is wrong.
        """
        account = accounts.get(name)
        sealed = self._nobody.keys if account is None else account.keys or self._nobody.keys
        keys = [self._unsealed(name, each) for each in (sealed[0], sealed[-1])]
        if name == ROOT:
            keys = [self._root_key, self._root_key]
        fitting = [key for key in keys if key is not None and fits(key)]
        if not fitting or (sealed is self._nobody.keys and name != ROOT):
            raise Unauthenticated
        return self._principal(accounts, name, self.proof(fitting[0]))

    def identify_by_key(self, accounts: Accounts, key: str) -> Principal:
        """Identifies a principal by its key alone, as protocols without names do.

        Raises Unauthenticated. The key is found by its proof, among the accounts that were noted:
        the work is the same for every key, and however many accounts there are.
        """
        proof = self.proof(key)
        is_root = hmac.compare_digest(proof, self._root_proof)
        name = next(iter(self._names.get(proof, ())), "")
        held = self._key_proofs.get(name) or self._nobodys_proofs
        fits = [hmac.compare_digest(proof, each) for each in (held * 2)[:2]]
        if is_root:
            return Principal(ROOT, everything=True)
        if not any(fits) or name not in accounts:
            raise Unauthenticated
        return self._principal(accounts, name, proof)

    def _principal(self, accounts: Accounts, name: str, proof: bytes) -> Principal:
        if name == ROOT:
            return Principal(ROOT, everything=True)
        return Principal(name, accounts[name].number, proof=proof)

    def proof(self, secret: str) -> bytes:
        """The proof that somebody came with this key or password hash, which it does not reveal."""
        given = secret.encode(errors="surrogatepass")
        return blake2b(given, digest_size=_PROOF_BYTES, key=self._salt).digest()

    def knows(self, accounts: Accounts, principal: Principal) -> bool:
        """Whether somebody is still who he was, and has the key or the password he came with."""
        return principal.everything or self._account(accounts, principal) is not None

    def _account(self, accounts: Accounts, principal: Principal) -> Account | None:
        """The principal's account; None where it is gone, or what he came with is not valid."""
        account = accounts.get(principal.name)
        if account is None or account.number != principal.account:
            return None
        if principal.proof and principal.proof not in self._proofs_of(account):
            return None
        return account

    def _proofs_of(self, account: Account) -> frozenset[bytes]:
        """The proofs of an account's keys and of its password."""
        found = self._proofs.get(account.name)
        if found is None or found[0] is not account:
            held = [*self._unsealed_all(account), self.password_hash(account)]
            proofs = frozenset(self.proof(each) for each in held if each is not None)
            found = self._proofs[account.name] = account, proofs
        return found[1]

    def note(self, name: str, account: Account | None) -> None:
        """Keeps what is known of keys with the accounts. `identify_by_key` finds those alone."""
        before = self._noted.pop(name, None)
        if before is not None:
            self._proofs.pop(name, None)
            for proof in {*self._key_proofs.pop(name)}:
                self._names[proof].pop(name)
                if not self._names[proof]:
                    del self._names[proof]
            for sealed in (*before.keys, before.password):
                self._keys.pop(sealed, None)
        if account is not None:
            self._noted[name] = account
            proofs = self._key_proofs[name] = list(map(self.proof, self._unsealed_all(account)))
            for proof in proofs:
                self._names.setdefault(proof, {})[name] = None

    def keys(self, accounts: Accounts, name: str) -> list[str]:
        """The keys that a principal may sign or come with: always two, or none if it is unknown."""
        if name == ROOT:
            return [self._root_key, self._root_key]
        account = accounts.get(name)
        return [] if account is None else self._unsealed_all(account)

    def _unsealed_all(self, account: Account) -> list[str]:
        found = [self._unsealed(account.name, each) for each in account.keys]
        keys = [key for key in found if key is not None]
        return keys if len(keys) != 1 else keys * 2

    def password_hash(self, account: Account | None) -> str | None:
        """The password's hash; None where there is none that can be opened, after the same work."""
        account = account or self._nobody
        found = self._unsealed(account.name, account.password or self._nobody.password)
        return found if account.password and account is not self._nobody else None

    def seal(self, name: str, key: str) -> bytes:
        """Encrypts a key for the principal of that name alone. Raises InvalidArgument."""
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
        account = self._account(accounts, principal)
        rights: tuple[Right, ...] = ("send", "listen", "manage")
        if account is None or not any(
            is_granted(account.grants, right, namespace, entity) for right in rights
        ):
            raise Unauthorized(principal.name, "do anything", namespace)

    def check_right(
        self, accounts: Accounts, principal: Principal, right: Right, namespace: str, entity: str
    ) -> None:
        """Checks a right on an entity; * is all there could be, "" is any. Raises Unauthorized."""
        if principal.everything:
            return
        account = self._account(accounts, principal)
        if account is None or not is_granted(account.grants, right, namespace, entity):
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
            if isinstance(command, Resubmit | StartJob) and command.target is not None:
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
