"""Namespaces: isolated worlds in one broker; and what belongs to no single one of them.

Each is a `State` of its own; no command sees more than one, and their lock tokens differ. This
module is to namespaces what `decide` and `evolve` are to one of them. Beside them are accounts
(what principals may do; their keys come sealed) and the feed's readers.

Some accounts are keys of one queue or topic, and go when that goes, however it goes: who deletes it
writes their revocation into the same frame.
"""

from bisect import insort
from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeAlias, get_args

import msgspec

from posthouse.core.checks import check_count, check_name, check_start, check_text
from posthouse.core.commands import NAME_CHARS_MAX, PAGE_MAX, RECEIVER_MAX, Notice, Reach
from posthouse.core.errors import AlreadyExists, InvalidArgument, NotFound, QuotaExceeded
from posthouse.core.evolve import evolve as evolve_state
from posthouse.core.model import Account, Grant, Reader, Right, State, page
from posthouse.core.plan import Delivered
from posthouse.core.records import (
    AccountRevoked,
    AccountSet,
    NamespaceCreated,
    NamespaceDeleted,
    OfNamespaces,
    ReaderRemoved,
    ReaderSet,
    Started,
)
from posthouse.core.shares import (
    ACCOUNTS,
    NAMESPACES,
    NOBODY,
    READERS,
    Held,
    Holder,
    check_share,
    count,
)

ACCOUNTS_MAX = 10_000
GRANTS_MAX = 100  # of one principal
KEYS_MAX = 2
SEALED_BYTES_MAX = 1_024
EXTRAS_CHARS_MAX = 65_536  # of one principal
READERS_MAX = 1_000
NAMESPACES_MAX = 10_000


class Namespaces(msgspec.Struct):
    """All the worlds of one broker, and what is beside them."""

    states: dict[str, State] = {}
    names: list[str] = []  # sorted
    accounts: dict[str, Account] = {}
    # Those that are keys of one entity: by its namespace and its name, folded.
    entity_accounts: dict[tuple[str, str], dict[str, None]] = {}
    accounts_bytes: int = 0  # that they take in memory
    readers: dict[str, Reader] = {}
    held: Held = {}  # what principals have made of all these


class _Command(msgspec.Struct, frozen=True, gc=False):
    right: ClassVar[Right]
    reach: ClassVar[Reach] = "broker"


class CreateNamespace(_Command, frozen=True):
    """`epoch`, `salt` and `key` are those of the running start; an engine fills them in."""

    right = "manage"
    reach = "namespace"
    name: str
    epoch: int = 1
    salt: int = 0
    key: bytes = b""
    by: Holder = NOBODY


class DeleteNamespace(_Command, frozen=True):
    right = "manage"
    reach = "namespace"
    name: str


class ListNamespaces(_Command, frozen=True):
    """The answer is a page of names; go on after its last."""

    right = "manage"
    after: str = ""
    limit: int = 100


class SetAccount(_Command, frozen=True):
    """Give a principal rights and keys, in place of those it had. `new`: it must not be there.

    Its password and extras stay as they were where they are None. One with a password may have
    neither rights nor keys.
    """

    right = "manage"
    name: str
    grants: Sequence[Grant]
    keys: Sequence[bytes]
    new: bool = False
    password: bytes | None = None
    extras: Mapping[str, str] | None = None
    by: Holder = NOBODY


class RevokeAccount(_Command, frozen=True):
    right = "manage"
    name: str


class ListAccounts(_Command, frozen=True):
    """The answer is a page of `Account`, by name; go on after the last name of a page."""

    right = "manage"
    after: str = ""
    limit: int = 100


class SetReader(_Command, frozen=True):
    """A reader of the feed has all up to this position; what comes behind it is kept for it."""

    right = "listen"
    name: str
    position: int
    by: Holder = NOBODY


class RemoveReader(_Command, frozen=True):
    right = "listen"
    name: str


class ListReaders(_Command, frozen=True):
    """The answer is every `Reader`, by name."""

    right = "listen"


SpaceCommand: TypeAlias = (
    CreateNamespace
    | DeleteNamespace
    | ListNamespaces
    | SetAccount
    | RevokeAccount
    | ListAccounts
    | SetReader
    | RemoveReader
    | ListReaders
)


class SpaceOutcome(msgspec.Struct, frozen=True):
    """The outcome of a command on namespaces: records, the answer, and what receivers get."""

    records: list[OfNamespaces]
    answer: list[str] | list[Account] | list[Reader] | None = None
    deliveries: Sequence[Delivered] = ()


def decide(spaces: Namespaces, command: SpaceCommand, now_ms: int) -> SpaceOutcome:
    """Returns what a command should do; changes nothing. Raises Refused."""
    match command:
        case CreateNamespace():
            return _create(spaces, command, now_ms)
        case DeleteNamespace(name):
            if name not in spaces.states:
                raise NotFound("namespace", name)
            receivers = spaces.states[name].receivers
            notices = [Notice(number, "deleted") for number in receivers]
            revoked = [
                AccountRevoked(account, now_ms)
                for (namespace, _), accounts in spaces.entity_accounts.items()
                if namespace == name
                for account in accounts
            ]
            return SpaceOutcome([NamespaceDeleted(name), *revoked], None, notices)
        case ListNamespaces(after, limit):
            check_count("limit", limit, 1, PAGE_MAX)
            return SpaceOutcome([], page(spaces.names, after, limit))
        case SetAccount():
            return _set_account(spaces, command, now_ms)
        case RevokeAccount(name):
            if name not in spaces.accounts:
                raise NotFound("principal", name)
            return SpaceOutcome([AccountRevoked(name, now_ms)])
        case ListAccounts(after, limit):
            check_count("limit", limit, 1, PAGE_MAX)
            names = page(sorted(spaces.accounts), after, limit)
            return SpaceOutcome([], [spaces.accounts[name] for name in names])
        case SetReader():
            return _set_reader(spaces, command, now_ms)
        case RemoveReader(name):
            if name not in spaces.readers:
                raise NotFound("reader", name)
            return SpaceOutcome([ReaderRemoved(name, now_ms)])
        case _:  # ListReaders
            return SpaceOutcome([], [spaces.readers[name] for name in sorted(spaces.readers)])


def _create(spaces: Namespaces, command: CreateNamespace, now_ms: int) -> SpaceOutcome:
    check_name("namespace", command.name)
    check_start(command.epoch, command.salt, command.key)
    for other in spaces.names:
        if other.casefold() == command.name.casefold():
            raise AlreadyExists("namespace", other)
    _check_few(spaces, command.by, NAMESPACES, len(spaces.states), NAMESPACES_MAX)
    made = NamespaceCreated(
        command.name, now_ms, command.epoch, command.salt, command.key, command.by.name
    )
    return SpaceOutcome([made])


def _set_account(spaces: Namespaces, command: SetAccount, now_ms: int) -> SpaceOutcome:
    check_name("principal", command.name)
    old = spaces.accounts.get(command.name)
    if old is not None and command.new:
        raise AlreadyExists("principal", command.name)
    if old is None:
        _check_few(spaces, command.by, ACCOUNTS, len(spaces.accounts), ACCOUNTS_MAX)
        if not command.new:
            raise NotFound("principal", command.name)
    password, extras = command.password, command.extras
    if password is None:
        password = b"" if old is None else old.password
    if extras is None:
        extras = {} if old is None else old.extras
    least = 0 if password else 1
    check_count("the number of grants", len(command.grants), least, GRANTS_MAX)
    check_count("the number of keys", len(command.keys), least, KEYS_MAX)
    for grant in command.grants:
        check_text("namespace", grant.namespace, NAME_CHARS_MAX)
        check_text("entity", grant.entity, NAME_CHARS_MAX)
        if not grant.rights or not set(grant.rights) <= set(get_args(Right)):
            raise InvalidArgument("rights", "must be some of manage, send and listen")
    if any(len(key) > SEALED_BYTES_MAX for key in (*command.keys, password)):
        raise InvalidArgument("a key", f"must be at most {SEALED_BYTES_MAX} bytes, sealed")
    of = entity_of_account(command.name, command.grants)
    if of is not None and not _is_there(spaces, *of):
        raise NotFound("queue", of[1])
    for text in (*extras, *extras.values()):
        check_text("extras", text, EXTRAS_CHARS_MAX)
    if sum(map(len, (*extras, *extras.values()))) > EXTRAS_CHARS_MAX:
        raise InvalidArgument("extras", f"must be at most {EXTRAS_CHARS_MAX} characters in all")
    grants, keys = list(command.grants), list(command.keys)
    by = command.by.name if old is None else ""
    record = AccountSet(command.name, now_ms, grants, keys, password, dict(extras), by)
    return SpaceOutcome([record])


def _set_reader(spaces: Namespaces, command: SetReader, now_ms: int) -> SpaceOutcome:
    check_name("reader", command.name)
    check_count("position", command.position, 0, RECEIVER_MAX)
    reader = spaces.readers.get(command.name)
    if reader is None:
        _check_few(spaces, command.by, READERS, len(spaces.readers), READERS_MAX)
    elif command.position < reader.position:
        raise InvalidArgument("position", f"must not go back: {reader.position} is acknowledged")
    by = command.by.name if reader is None else ""
    return SpaceOutcome([ReaderSet(command.name, now_ms, command.position, by)])


def _check_few(spaces: Namespaces, by: Holder, what: str, current: int, most: int) -> None:
    if current >= most:
        raise QuotaExceeded("the broker", what, most, current)
    check_share(spaces.held, by, what, "", most)


def evolve(spaces: Namespaces, record: OfNamespaces, position: int) -> None:
    """Makes it so; cannot fail."""
    match record:
        case NamespaceCreated():
            state = spaces.states[record.name] = State(record.name, position, by=record.by)
            count(spaces.held, NAMESPACES, "", record.by, 1)
            insort(spaces.names, record.name)
            started = Started(record.epoch, record.salt, record.time_ms, record.key)
            evolve_state(state, started, position)
        case NamespaceDeleted(name):
            count(spaces.held, NAMESPACES, "", spaces.states.pop(name).by, -1)
            spaces.names.remove(name)
        case AccountSet(name, time_ms, grants, keys, password, extras, by):
            old = spaces.accounts.get(name)
            number, made_ms = position, time_ms
            if old is None:
                count(spaces.held, ACCOUNTS, "", by, 1)
            else:
                number, made_ms, by = old.number, old.created_ms, old.by
            forget_account(spaces, name)
            add_account(
                spaces, Account(name, number, made_ms, time_ms, grants, keys, password, extras, by)
            )
        case AccountRevoked(name):
            revoked = forget_account(spaces, name)
            if revoked is not None:
                count(spaces.held, ACCOUNTS, "", revoked.by, -1)
        case ReaderSet(name, time_ms, place, by):
            reader = spaces.readers.get(name)
            if reader is None:
                count(spaces.held, READERS, "", by, 1)
            else:
                by = reader.by
            spaces.readers[name] = Reader(name, place, time_ms, by)
        case ReaderRemoved(name):
            removed = spaces.readers.pop(name, None)
            if removed is not None:
                count(spaces.held, READERS, "", removed.by, -1)
        case _:  # Missing: it changes nothing
            pass


def count_all(spaces: Namespaces) -> None:
    """Counts what each principal has made, after a snapshot has been loaded."""
    for state in spaces.states.values():
        count(spaces.held, NAMESPACES, "", state.by, 1)
    for account in spaces.accounts.values():
        count(spaces.held, ACCOUNTS, "", account.by, 1)
    for reader in spaces.readers.values():
        count(spaces.held, READERS, "", reader.by, 1)


# Keys of entities.


def entity_key(namespace: str, entity: str, name: str) -> str:
    """The name of the account of a key of one entity."""
    return f"{name}@{namespace}/{entity.casefold()}"


def entity_of_account(name: str, grants: Sequence[Grant]) -> tuple[str, str] | None:
    """The namespace and the folded name of the entity it is a key of; None: of none."""
    if not grants:
        return None
    namespace, entity = grants[0].namespace, grants[0].entity
    if not name.endswith(entity_key(namespace, entity, "")):
        return None
    return namespace, entity.casefold()


def add_account(spaces: Namespaces, account: Account) -> None:
    spaces.accounts[account.name] = account
    spaces.accounts_bytes += _bytes_of(account)
    of = entity_of_account(account.name, account.grants)
    if of is not None:
        spaces.entity_accounts.setdefault(of, {})[account.name] = None


def forget_account(spaces: Namespaces, name: str) -> Account | None:
    account = spaces.accounts.pop(name, None)
    spaces.accounts_bytes -= 0 if account is None else _bytes_of(account)
    of = None if account is None else entity_of_account(name, account.grants)
    if of is not None:
        del spaces.entity_accounts[of][name]
        if not spaces.entity_accounts[of]:
            del spaces.entity_accounts[of]
    return account


def keys_of(spaces: Namespaces, namespace: str, entity: str) -> list[str]:
    """The accounts that are keys of a queue or topic."""
    return list(spaces.entity_accounts.get((namespace, entity.casefold()), ()))


def void_accounts(spaces: Namespaces) -> list[str]:
    """Keys of entities that are no more, also where there is another of that name.

    There are some in journals of brokers that left keys behind.
    """
    return [
        name
        for of, names in spaces.entity_accounts.items()
        for name in names
        if not _is_there(spaces, *of, before=spaces.accounts[name].number)
    ]


def _is_there(spaces: Namespaces, namespace: str, folded: str, before: int | None = None) -> bool:
    """Whether there is such an entity; `before`: that came into being before that position."""
    state = spaces.states.get(namespace)
    exact = None if state is None else state.folded.get(folded)
    if state is None or exact is None:
        return False
    # Queues are numbered by twice the position at which they came into being.
    return before is None or state.queues[exact].number // 2 < before


def _bytes_of(account: Account) -> int:
    """The memory it takes, about."""
    return _ACCOUNT_BYTES + _SAID_BYTES * len(msgspec.msgpack.encode(account))


_ACCOUNT_BYTES, _SAID_BYTES = 2_000, 3  # one, and for each byte of all it says
