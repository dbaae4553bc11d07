"""Credentials of clients, over AMQP and HTTP, and the namespaces that they speak of."""

from collections.abc import Callable
from typing import NamedTuple

from posthouse.broker.access import ANYBODY, ROOT, Guard, Principal
from posthouse.broker.engine import Engine
from posthouse.core.errors import Unauthenticated
from posthouse.core.model import Account, Right
from posthouse.core.namespaces import entity_key
from posthouse.dialects.dialect import Broker
from posthouse.dialects.servicebus import sas
from posthouse.dialects.servicebus.tiers import BOTH, Tier

KNOWN_MAX = 1_000  # tokens that are remembered as good


class Settings(NamedTuple):
    namespace: str  # where a connection says nothing of it
    message_bytes: int = 1 << 20  # of a Service Bus client, where its queue says nothing else
    own_message_bytes: int = 1 << 20  # likewise of our own client, which knows no tiers
    strict: bool = False  # answer as the cloud does where we would do otherwise
    namespace_from: str = "default"  # or "host", its first label, or "key", the key's name
    auto_create: bool = False
    header_bytes: int = 16 << 10  # of all headers of an answer that tells of a message
    dev: bool = False  # where namespaces go by key, any name may come with the root key
    exact: bool = False  # a link to what is not there is unauthorized, as in the cloud
    tier: Tier = BOTH  # whose limits apply
    leader: str = ""  # the address of the cluster's leader, which clients are told


class Credentials:
    """The credentials of all clients."""

    def __init__(self, broker: Broker, guard: Guard, settings: Settings) -> None:
        self._broker = broker
        self.guard = guard
        self.settings = settings
        # Tokens that were found to be good, by keys of the namespace; None: by the root's.
        self._known: dict[sas.Token, tuple[Account | None, Principal]] = {}

    @property
    def engine(self) -> Engine:
        engine = self._broker.engine
        assert engine is not None  # nobody asks before it is open
        return engine

    @property
    def is_open(self) -> bool:
        return self._broker.engine is not None

    def identify(self, name: str, fits: Callable[[str], bool]) -> Principal:
        """Returns the principal one of whose keys fits. Raises Unauthenticated."""
        accounts, settings = self.engine.view.accounts, self.settings
        if settings.dev and settings.namespace_from == "key" and name not in accounts:
            self.guard.identify_by(accounts, ROOT, fits)
            return Principal(name, everything=True)
        return self.guard.identify_by(accounts, name, fits)

    def identify_by_token(self, token: sas.Token, host: str, path: tuple[str, ...]) -> Principal:
        """Returns the principal of a token: by a key of the namespace, or of an entity on the path.

        It is always asked for both; a token that was found to be good is remembered until its
        account changes. Raises Unauthenticated.
        """
        accounts = self.engine.view.accounts
        known = self._known.get(token)
        if known is not None and known[0] is accounts.get(token.key_name):
            return known[1]
        namespace = self.namespace(host, Principal(token.key_name))
        by_entity = self._entity_key(namespace, token.key_name, path)
        found: list[Principal] = []
        for name in (token.key_name, by_entity):
            try:
                found.append(self.identify(name, token.fits))
            except Unauthenticated:
                continue
        if not found:
            raise Unauthenticated
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        if found[0].name == token.key_name and "@" not in token.key_name:
            # Keys of entities are looked at each time.
            self._known[token] = accounts.get(token.key_name), found[0]
        return found[0]

    def _entity_key(self, namespace: str, key_name: str, path: tuple[str, ...]) -> str:
        """Returns the key of the entity nearest to the path's end: a/b has its own, not a's."""
        names = [
            entity_key(namespace, "/".join(path[:size]), key_name)
            for size in range(len(path), 0, -1)
        ]
        accounts = self.engine.view.accounts
        return next((name for name in names if name in accounts), "".join(names[:1]))

    def check(self, principal: Principal, right: Right, namespace: str, entity: str) -> None:
        """Raises Unauthorized."""
        accounts = self.engine.view.accounts
        self.guard.check_right(accounts, principal, right, namespace, entity)

    def namespace(self, host: str, principal: Principal) -> str:
        """The namespace that is spoken of; it may have to be made yet."""
        settings = self.settings
        name = settings.namespace
        if settings.namespace_from == "host":
            name = first_label(host) or name
        elif settings.namespace_from == "key" and principal.name != ROOT:
            name = principal.name
        return self.engine.view.find_namespace(name) or name

    def namespace_at(self, host: str, principal: Principal, named: str) -> str:
        """Returns the namespace that a path names, or the default one where there is none such.

        Where the host or the key says which namespace is spoken of, no other can be named. Raises
        Unauthenticated.
        """
        settings, view = self.settings, self.engine.view
        is_bound = settings.namespace_from == "host" or (
            settings.namespace_from == "key" and principal.name != ROOT
        )
        if not is_bound or principal is ANYBODY:
            return named if view.has_namespace(named) else settings.namespace
        mine = self.namespace(host, principal)
        if view.has_namespace(named) and named != mine:
            raise Unauthenticated
        return mine

    def is_for(self, token: sas.Token, host: str) -> bool:
        """Whether a token is for the namespace that the host names."""
        if self.settings.namespace_from != "host":
            return True
        return first_label(token.host).casefold() == first_label(host).casefold()


def first_label(host: str) -> str:
    """Returns the first label of a host name that has several; nothing for others and addresses."""
    name = host.partition(":")[0]
    label, dot, _ = name.partition(".")
    return label if dot and not name.replace(".", "").isdigit() else ""
