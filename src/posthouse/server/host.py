"""The engine with what a server needs around it: its store, its keys, and what is to exist.

It opens while the listener is up already, so that whoever asks can be told how far it is.
"""

import asyncio
import gc
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from posthouse.broker.access import BROKER, KEY_CHARS_MAX, Guard, Principal, key_is, new_key
from posthouse.broker.clock import Clock, SystemClock
from posthouse.broker.cluster_clock import ClusterClock
from posthouse.broker.declared import KEY_CHARS_MIN, PrincipalDeclared, QueueDeclared
from posthouse.broker.engine import Engine, Options
from posthouse.broker.memory import Limits, machine_bytes
from posthouse.broker.payload import CODECS, Compression
from posthouse.broker.retention import Retention, retain, retain_extents, run_fold, run_store_fold
from posthouse.broker.throttle import Throttle
from posthouse.broker.watch import watch_clock, watch_room, watch_store
from posthouse.core.commands import CreateQueue, CreateSubscription, SetSchedule
from posthouse.core.errors import Busy, NotAllowed, Unauthenticated, Unauthorized
from posthouse.core.model import Account, Right, subscription_queue, topic_of
from posthouse.core.namespaces import CreateNamespace, SetAccount
from posthouse.server.cluster_secret import derive, read_cluster_secret
from posthouse.server.config import DEFAULT_NAMESPACE, Config
from posthouse.server.declared import Declared
from posthouse.server.exported_keys import Keys, keys_in
from posthouse.server.files import keep_secret, read_secret
from posthouse.server.shapes import new_message
from posthouse.store import Store
from posthouse.store.folder_copy import drop_holds
from posthouse.store.memory import MemoryStore
from posthouse.store.opening import Opening, StoreUrl, open_store
from posthouse.store.place_note import is_noted

if TYPE_CHECKING:
    from posthouse.broker.standby import Beat
    from posthouse.server.cluster import ClusterNode

_log = logging.getLogger(__name__)
_audit = logging.getLogger("posthouse.audit")

DEV_KEY = "SAS_KEY_VALUE"  # the key of emulators for Azure
ROOT_KEY, NEW_ROOT_KEY, SEAL_KEY = "root-key", "root-key-new", "seal-key"  # in the data folder
MEMORY_FEED_BYTES = 64 << 20  # of the journal, where nothing is on disk
TIDY_SECONDS = 5  # for the fold process to end when the broker stops
_SEAL_BYTES = 32


class BrokerHost:
    """The store and the engine of a broker. Until `open` has returned there is no engine."""

    def __init__(self, config: Config, clock: Clock | None = None) -> None:
        self.config = config
        self._clock = clock or SystemClock()
        self.engine: Engine | None = None
        self.store: Store | None = None
        self.new_root_key: str | None = None  # to be shown, this once
        self.phase = "opening the journal"
        self.position = 0  # that recovery has come to
        self._folding = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []  # that tidy up and watch, until the stop
        self.node: ClusterNode | None = None  # its part in a cluster
        self._when_leading: list[Callable[[], Awaitable[None]]] = []
        self._on_leader: list[Callable[[Beat | None], None]] = []
        self._address = config.advertise or ""
        self._root_key, seal_key = self._keys()
        self.guard = Guard(self._root_key, seal_key)

    # The interface for dialects.

    @property
    def namespace(self) -> str:
        return DEFAULT_NAMESPACE

    @property
    def dev(self) -> bool:
        return self.config.dev

    @property
    def auto_create(self) -> bool:
        return self.config.auto_create

    @property
    def advertised(self) -> str:
        """The address of a node of a cluster; empty for a broker of its own."""
        return self._address if self.config.cluster is not None else ""

    # Its keys.

    def _keys(self) -> tuple[str, bytes]:
        """Raises OSError."""
        config = self.config
        if config.memory:
            root = DEV_KEY if config.dev else new_key()
            self.new_root_key = None if config.dev else root
            return root, secrets.token_bytes(_SEAL_BYTES)
        make_folder(config.data)
        if config.cluster is not None or config.cluster_secret is not None:
            root, seal = _cluster_keys(config)
            if not config.dev:  # where commands look for it
                keep_secret(config.data / ROOT_KEY, root.encode() + b"\n")
            return root, seal
        if is_noted(config.data) and not (config.data / SEAL_KEY).exists() and not config.dev:
            raise OSError(
                f"{config.data} is the folder of a node of a cluster. To serve it by itself, give"
                " --cluster-secret; its keys are derived from that."
            )
        seal = read_secret(config.data / SEAL_KEY, secrets.token_bytes(_SEAL_BYTES))
        if len(seal) != _SEAL_BYTES:
            raise OSError(f"{config.data / SEAL_KEY} does not hold a key of {_SEAL_BYTES} bytes.")
        if config.dev:
            return DEV_KEY, seal
        path = config.data / ROOT_KEY
        if path.exists():
            return _root_key(path), seal
        # Under another name until it was shown: a start that fails before that shows nothing.
        key = _root_key(config.data / NEW_ROOT_KEY, new_key().encode() + b"\n")
        self.new_root_key = key
        return key, seal

    def root_key_was_shown(self) -> None:
        if self.new_root_key is not None and not self.config.memory:
            (self.config.data / NEW_ROOT_KEY).rename(self.config.data / ROOT_KEY)

    async def open(self, address: str = "") -> Engine:
        """Recovers, and makes what is to exist. Raises StoreError, Refused or OSError.

        `address` is the one that it listens at, which others are told unless another is advertised.
        """
        config = self.config
        self._address = self._address or address
        machine = machine_bytes()
        limits = Limits(
            bodies_bytes=machine if config.memory else config.bodies_limit or machine // 4,
            memory_bytes=config.memory_limit or machine // 2,
            principal_share=config.principal_share,
        )
        if config.cluster is not None:
            return await self._join(limits)
        if config.memory:
            store: Store = MemoryStore(keep_bytes=MEMORY_FEED_BYTES)
        else:
            store = await asyncio.to_thread(open_store, config.journal, Opening(
                config.segment_size, config.durability,  # type: ignore[arg-type]  # one of its words
                config.interval_ms, alone=True,
            ))  # fmt: skip
        self.store = store
        self.phase = "reading the journal"
        try:
            engine = await Engine.open(
                store, self._clock, secrets.randbits(32), self.guard,
                **self._options(store, limits),
            )  # fmt: skip
        except BaseException:
            await store.close()
            raise
        gc.collect()
        gc.freeze()  # recovered objects stay; the collector need not visit them again
        await self._declare(engine)
        self.engine, self.phase = engine, "ready"
        self._keep_small(engine, store)
        return engine

    def _options(self, store: Store, limits: Limits) -> Options:
        config = self.config
        return {
            "snapshots": store.snapshots,
            "limits": limits,
            "auto_create": config.auto_create,
            "progress": self._come_to,
            "throttle": Throttle(
                config.rate_principal,
                config.rate_address,
                config.rate_entity,
                failures=config.auth_failures_max,
            ),
            "compression": _compression(config),
            "lock_sync_ms": config.lock_sync_ms,
        }

    async def _join(self, limits: Limits) -> Engine:
        """Becomes a node of a cluster, which follows until it is its turn to lead."""
        from posthouse.server.cluster import ClusterNode, Joined, join  # needs NATS

        self.phase = "waiting for the cluster's servers"
        joined: Joined = await join(self.config, self._address, self._root_key, self._note_phase)
        store, self.phase = joined.store, "reading the journal"
        self.store = store
        clock = ClusterClock(self._clock)
        try:
            engine = await Engine.follow(
                store, clock, secrets.randbits(32), self.guard,
                **self._options(store, limits),
            )  # fmt: skip
        except BaseException:
            await joined.close()
            raise
        gc.collect()
        gc.freeze()

        async def led() -> None:
            await self._declare(engine)
            for each in self._when_leading:
                await each()

        self.engine, self.phase = engine, "following"
        self.node = ClusterNode(joined, engine, clock, led)
        for told in self._on_leader:
            self.node.on_leader(told)
        self._begin(self.node.run())
        self._keep_small(engine, store)
        return engine

    def on_leader(self, told: "Callable[[Beat | None], None]") -> None:
        """Calls `told` when another node of the cluster leads. It is asked for before `open`."""
        self._on_leader.append(told)

    async def when_leading(self, do: Callable[[], Awaitable[None]]) -> None:
        """Does it as soon as this broker leads: now, or when a node takes over."""
        assert self.engine is not None
        if self.engine.follows:
            self._when_leading.append(do)
        else:
            await do()

    def _keep_small(self, engine: Engine, store: Store) -> None:
        """Begins to fold and trim the journal, and to watch the disk and the clock."""
        config = self.config
        retention = Retention(
            config.keep * 1_000, config.keep_size, config.fold_size, config.reader_hold,
            config.keep_share,
        )  # fmt: skip
        if store.segments is not None:
            drop_holds(store.segments.folder)  # of a process that was killed
            self._begin(retain(engine, store.segments, retention, self._folding, self._trim_limit))
            self._begin(watch_room(engine, store.segments))
        elif self.url is not None:
            fold = partial(run_store_fold, self.url)
            self._begin(retain_extents(engine, fold, retention, config.segment_size, self._folding))
            self._begin(watch_store(engine, str(self.url)))
        self._begin(watch_clock(engine, self._mend_clock()))

    def _trim_limit(self) -> int:
        """The position before which this node may trim while it follows."""
        return 0 if self.node is None else self.node.trim_limit

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    def _mend_clock(self) -> str:
        if self.config.memory:
            return "Start the broker again."
        named = f"--data {self.config.data}"
        if self.config.store is not None:
            named = f"--store {self.config.store}"
        return f"Stop the broker, and run: posthouse store set-clock {named}"

    @property
    def url(self) -> StoreUrl | None:
        """The store, for other processes that read it; None where it is in memory only."""
        return None if self.config.memory else self.config.journal

    def _note_phase(self, phase: str) -> None:
        self.phase = phase

    def _come_to(self, position: int) -> None:
        self.position = position

    async def close(self) -> None:
        """Raises StoreError where what was not acknowledged is open."""
        if self.node is not None:
            self.node.end()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=TIDY_SECONDS)
        if self.engine is not None:
            await self.engine.close()
        if self.node is not None:
            await self.node.close()

    def identify(self, name: str, key: str) -> Principal:
        """Raises Unauthenticated."""
        if self.engine is None:
            raise Unauthenticated
        return self.guard.identify(self.engine.view.accounts, name, key)

    def check(self, principal: Principal, right: Right, namespace: str, entity: str) -> None:
        """Checks a right for a request that is not a command. Raises Unauthorized."""
        if self.engine is None:
            raise Unauthorized(principal.name, right, namespace)
        accounts = self.engine.view.accounts
        try:
            self.guard.check_right(accounts, principal, right, namespace, entity)
        except Unauthorized:
            _audit.warning(
                "%s was refused: %s on %s/%s", principal.name, right, namespace, entity,
                extra={"event": "access.refused", "principal": principal.name, "right": right,
                       "namespace": namespace, "subject": entity},
            )  # fmt: skip
            raise

    async def fold(self) -> int:
        """Folds now what is sealed; up to where the newest snapshot goes, 0 where there is none.

        Raises NotAllowed or Busy.
        """
        store = self.store
        if store is None or self.url is None:
            raise NotAllowed("the store", "a broker in memory has no snapshots")
        async with self._folding:
            if store.segments is not None:
                kept = await run_fold(store.segments)
            else:
                kept = await run_store_fold(self.url)
                await asyncio.to_thread(store.snapshots.whole)  # from now on it knows of it
        if kept is None:
            raise Busy("the journal could not be folded; the log says why")
        return max(kept, default=0)

    # Declared entities.

    async def _declare(self, engine: Engine) -> None:
        """Creates the declared entities that do not exist, and sets principals as declared."""
        view, declared = engine.view, self.config.declared
        named = [each.namespace for each in declared.queues]
        named += [each.namespace for each in declared.topics]
        named += [each.namespace for each in declared.schedules]
        there = {name.casefold(): name for name in view.namespaces()}
        for name in dict.fromkeys((DEFAULT_NAMESPACE, *declared.namespaces, *named)):
            if name.casefold() not in there:
                await engine.ask(BROKER, "", CreateNamespace(name))
                there[name.casefold()] = name
        for namespace, command in _entities(declared):
            space = there[namespace.casefold()]
            if view.find(space, command.queue) is None:
                await engine.ask(BROKER, space, command)
        for schedule in declared.schedules:
            space = there[schedule.namespace.casefold()]
            if view.schedule(space, schedule.name) is None:
                message = new_message(schedule.message, engine.clock_ms(space))
                await engine.ask(BROKER, space, SetSchedule(
                    schedule.queue, schedule.name, schedule.when, message, schedule.zone
                ))  # fmt: skip
        for principal in declared.principals:
            account = view.accounts.get(principal.name)
            if not self._is_as_declared(principal, account):
                if principal.key is None and account is not None:
                    keys = account.keys
                else:
                    keys = [self.guard.seal(principal.name, principal.key or new_key())]
                command_ = SetAccount(principal.name, principal.grants, keys, account is None)
                await engine.ask(BROKER, "", command_)

    def _is_as_declared(self, declared: PrincipalDeclared, account: Account | None) -> bool:
        if account is None or account.grants != list(declared.grants):
            return False
        if declared.key is None:
            return True
        keys = self.guard.keys({account.name: account}, account.name)
        return bool(keys) and key_is(declared.key)(keys[0])


def _root_key(path: Path, make: bytes = b"") -> str:
    """Raises OSError: what is left of a key, or is none, could be guessed."""
    key = read_secret(path, make).decode("utf-8", "replace").strip()
    if not KEY_CHARS_MIN <= len(key) <= KEY_CHARS_MAX or not key.isprintable():
        raise OSError(
            f"{path} does not hold a key of {KEY_CHARS_MIN} to {KEY_CHARS_MAX} characters; put the"
            " key back, or remove the file to make a new one."
        )
    return key


def _cluster_keys(config: Config) -> tuple[str, bytes]:
    """The root key and the key of seals, which are the same on every node. Raises OSError."""
    kept = _kept_keys(config)
    seal = config.data / SEAL_KEY
    if not config.dev and seal.exists() and seal.read_bytes() != kept.seal:
        raise OSError(
            f"{config.data} has keys of its own, and they are not those of"
            f" {config.cluster_secret}. Make the secret of a cluster that begins with this folder:"
            f" posthouse cluster secret --data {config.data}"
        )
    return DEV_KEY if config.dev else kept.root, kept.seal


def cluster_root_key(config: Config) -> str:
    """The root key of all nodes of a cluster. Raises OSError."""
    return DEV_KEY if config.dev else _kept_keys(config).root


def _kept_keys(config: Config) -> Keys:
    """The keys that the secret carries, or that are derived from it. Raises OSError."""
    secret = read_cluster_secret(config)
    return keys_in(secret) or Keys(derive(secret, "root key").hex(), derive(secret, "seal key"))


def _compression(config: Config) -> Compression | None:
    codec = CODECS.get(config.compress)
    return None if codec is None else Compression(codec, config.compress_from)


def _entities(declared: Declared) -> list[tuple[str, CreateQueue | CreateSubscription]]:
    """Commands that make them, in such an order that what is forwarded to is there before."""
    every: list[QueueDeclared] = [*declared.topics, *declared.queues]
    wanted: list[tuple[str, CreateQueue | CreateSubscription]] = [
        (each.namespace, CreateQueue(each.name, each.properties)) for each in every
    ]
    for topic in declared.topics:
        for sub in topic.subscriptions:
            queue = subscription_queue(topic.name, sub.name)
            wanted.append((topic.namespace, CreateSubscription(queue, sub.properties, sub.rules)))
    made: set[tuple[str, str]] = set()
    ordered: list[tuple[str, CreateQueue | CreateSubscription]] = []
    names = {(namespace, command.queue) for namespace, command in wanted}
    while wanted:  # in a circle none can be first; the core says so
        ready = [
            (namespace, command)
            for namespace, command in wanted
            if {(namespace, to) for to in _targets(command)} & names <= made
        ] or wanted[:1]
        ordered += ready
        made |= {(namespace, command.queue) for namespace, command in ready}
        wanted = [each for each in wanted if each not in ready]
    return ordered


def _targets(command: CreateQueue | CreateSubscription) -> set[str]:
    properties = command.properties
    found = {properties.forward_to, properties.forward_dead_to}
    if isinstance(command, CreateSubscription):
        found.add(topic_of(command.queue))
    return {name for name in found if name is not None}


def make_folder(folder: Path) -> None:
    """Makes a folder for its owner alone. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be written to.")
