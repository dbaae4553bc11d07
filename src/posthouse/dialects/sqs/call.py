"""One request to SQS, of which it is known who asks; and what all requests share."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from posthouse.broker.access import Guard, Principal, vouched
from posthouse.broker.engine import Engine
from posthouse.broker.view import Entity, View
from posthouse.core.commands import Answer, Command, CreateQueue
from posthouse.core.errors import AlreadyExists, NotFound, Unauthorized
from posthouse.core.model import Right, entity_of
from posthouse.dialects.dialect import Host
from posthouse.dialects.http import Request, charge_messages
from posthouse.dialects.sqs import attributes
from posthouse.dialects.sqs.accounts import RIGHTS, account_of, namespace_of
from posthouse.dialects.sqs.attempts import Attempts
from posthouse.dialects.sqs.attributes import FIFO, Place
from posthouse.dialects.sqs.errors import DENIED, Failed, no_queue
from posthouse.dialects.sqs.handles import Handles
from posthouse.dialects.sqs.settings import SqsSettings
from posthouse.dialects.sqs.signature import SigningKeys

NOTES_MAX = 10_000  # moments that are remembered
URL_CHARS_MAX = 2_048
_HANDLE_KEY = b"sqs-handles"

Need = Right | None  # None: any right on the queue


class Notes:
    """Moments at which something was done to queues; the oldest are forgotten."""

    def __init__(self) -> None:
        self._moments: OrderedDict[tuple[str, str], float] = OrderedDict()

    def put(self, namespace: str, queue: str, moment: float) -> None:
        self._moments.pop((namespace, queue), None)
        self._moments[namespace, queue] = moment
        if len(self._moments) > NOTES_MAX:
            self._moments.popitem(last=False)

    def since(self, namespace: str, queue: str, now: float) -> float:
        """The seconds since the moment; endless where there is none."""
        return now - self._moments.get((namespace, queue), float("-inf"))


class Service:
    """The state that all requests share."""

    def __init__(self, host: Host, settings: SqsSettings) -> None:
        self._host = host
        self.settings = settings
        self.guard: Guard = host.guard
        self.handles = Handles(host.guard.derive(_HANDLE_KEY))
        self.keys = SigningKeys()
        self.purged, self.deleted = Notes(), Notes()
        self.attempts = Attempts()
        self.changing = asyncio.Lock()  # a queue's attributes are read, then written

    @property
    def engine(self) -> Engine:
        engine = self._host.engine
        assert engine is not None  # nobody asks before it is open
        return engine

    @property
    def default(self) -> str:
        return self._host.namespace

    @property
    def dev(self) -> bool:
        return self._host.dev

    @property
    def auto_create(self) -> bool:
        return self._host.auto_create

    def account(self, namespace: str) -> str:
        return account_of(namespace, self.default, self.settings.sqs_account)

    def namespace(self, account: str) -> str:
        """The namespace that an account is; empty where there is none such."""
        view = self.engine.view
        return namespace_of(account, view, self.default, self.settings.sqs_account)


class Caller(NamedTuple):
    """The client that asks, as the signature says."""

    principal: Principal
    name: str  # by which receivers are told of a sender
    namespace: str
    region: str


class Target(NamedTuple):
    """A queue that is asked for: where it is, and what it is called."""

    namespace: str
    queue: str


class Call:
    """One action that is asked for."""

    def __init__(self, service: Service, request: Request, caller: Caller, action: str) -> None:
        self.service = service
        self.engine = service.engine
        self.request = request
        self.caller = caller
        self.action = action
        self.namespace = caller.namespace
        self.undelivered: Undelivered | None = None  # what was received, until it is answered

    @property
    def view(self) -> View:
        return self.engine.view

    @property
    def now_ms(self) -> int:
        return self.engine.clock_ms(self.namespace)

    @property
    def place(self) -> Place:
        return Place(self.caller.region, self.service.account(self.namespace))

    def url(self, queue: str) -> str:
        """The address of a queue, at the host that the client has dialled."""
        host = self.request.headers.get(b"host", b"localhost").decode("latin-1")
        account = self.service.account(self.namespace)
        return f"{self.request.scheme}://{host}/{account}/{quote(queue, safe='')}"

    def ask(self, command: Command) -> Awaitable[Answer]:
        """Raises Refused or StoreError."""
        return self.engine.ask(self.caller.principal, self.namespace, command)

    def charge(self, messages: int) -> None:
        """Charges the client's address for messages; the request itself has cost one."""
        charge_messages(self.engine.throttle, self.request, messages)

    # Rights.

    def may(self, need: Need, queue: str) -> bool:
        """Whether who asks has a right on a queue, or any."""
        guard, accounts = self.service.guard, self.view.accounts
        for right in RIGHTS if need is None else (need,):
            try:
                guard.check_right(
                    accounts, self.caller.principal, right, self.namespace, entity_of(queue)
                )
            except Unauthorized:
                continue
            return True
        return False

    def check(self, need: Need, queue: str) -> None:
        """Raises Failed."""
        if not self.may(need, queue):
            raise self.denied(queue)

    def denied(self, queue: str = "*") -> Failed:
        return Failed(
            DENIED,
            f"User: {self.caller.principal.name} is not authorized to perform:"
            f" sqs:{self.action.lower()} on resource: {self.place.arn(queue)}",
        )

    # Queues.

    def target(self, url: str | None) -> Target:
        """The queue that a URL, a path or a name stands for. Raises Failed."""
        if not url or len(url) > URL_CHARS_MAX:
            raise no_queue()
        if "://" in url:
            try:
                url = urlsplit(url).path
            except ValueError:
                raise no_queue() from None
        if "/" not in url:
            return Target(self.namespace, unquote(url))
        parts = url.strip("/").split("/")
        account = ""
        match parts:
            case ["queue", name]:
                pass
            case ["queue", _, account, name] | [account, name]:
                pass
            case [name]:
                pass
            case _:
                raise no_queue()
        namespace = self.namespace
        if account and account != self.service.account(namespace):
            namespace = self.service.namespace(account)
            if not namespace:
                raise no_queue()
        return Target(namespace, unquote(name))

    async def queue(self, url: str | None, need: Need, *, make: bool = False) -> Entity:
        """The queue that is asked for, after a look at the right to it. Raises Failed or Refused.

        `make`: where queues come into being when they are used, it does so now.
        """
        self.namespace, name = self.target(url)
        self.check(need, name)
        found = self.view.entity(self.namespace, name)
        if found is None and make and self.service.auto_create and attributes.is_name(name):
            await self._make(name)
            found = self.view.entity(self.namespace, name)
        if found is None:
            raise no_queue()
        return found

    async def _make(self, name: str) -> None:
        """Creates a queue as CreateQueue does without attributes; its name tells its kind."""
        other = self.view.find(self.namespace, name)
        if other is not None:
            raise AlreadyExists("queue", other)
        properties = attributes.created({}, {}, fifo=name.endswith(FIFO))
        principal = vouched(self.caller.principal)
        command = CreateQueue(name, properties)
        try:
            await self.engine.ask(principal, self.namespace, command)
        except AlreadyExists:  # somebody else was faster
            return

    def entity(self, name: str) -> Entity:
        """Raises NotFound."""
        found = self.view.entity(self.namespace, name)
        if found is None:
            raise NotFound("queue", name)
        return found


class Undelivered(NamedTuple):
    """Messages that are locked for an answer which has not been written yet."""

    queue: str
    tokens: tuple[int, ...]
