"""`posthouse serve`: from a configuration to a broker that is up, and to its clean stop."""

import asyncio
import contextlib
import ipaddress
import logging
import os
import resource
import signal
import ssl
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from urllib.parse import quote

from posthouse.broker.access import ROOT
from posthouse.broker.clock import Clock
from posthouse.core.errors import Refused
from posthouse.dialects.dialect import CannotStart, Reached
from posthouse.dialects.known import DIALECTS
from posthouse.server.cluster_secret import derive, read_cluster_secret
from posthouse.server.config import DEFAULT_NAMESPACE, HTTP_PORT, Config
from posthouse.server.feed import Feed
from posthouse.server.host import DEV_KEY, ROOT_KEY, BrokerHost
from posthouse.server.http import App, is_from_here, make_config
from posthouse.server.http_peer import HttpPeer
from posthouse.server.listener import (
    LOOPBACK,
    Connection,
    Limits,
    Listener,
    Listening,
    PortProtocol,
    is_http,
)
from posthouse.server.metrics import Metrics
from posthouse.server.node_link import is_link
from posthouse.server.relay import HTTP, new_relay, split_address
from posthouse.server.routes import add_routes, http_dialects
from posthouse.server.tls import Authority, Contexts, Files, LinkTrust
from posthouse.server.tls import check as check_tls
from posthouse.server.websocket import WebSocketRoute
from posthouse.store.errors import Behind, Deposed, Lost, StoreError

_log = logging.getLogger(__name__)

OK, FAILED, LOST, INTERRUPTED = 0, 1, 74, 130
DEPOSED = 75  # of a node of a cluster
HAND_OVER_SECONDS = 0.2  # that clients have to end, before another node takes over
CLIENT_PORT = 5672  # of posthouse:// where none is given
LIMITS = Limits()
_FILES_KEPT = 100  # for the journal and everything else that is not a connection
INSECURE_SECONDS = 3_600.0  # between two warnings that keys come in clear text
_WARM_SECONDS = 0.1  # after the start: what a start need not wait for is imported
_LATER_SECONDS = 1.0  # after the start: what is made when there is time for it


def run(config: Config, say: Callable[[str], None], limits: Limits = LIMITS) -> int:
    """Serves until it is told to stop; returns the exit code."""
    with ExitStack() as stack:
        if config.memory:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="posthouse-")))
        else:
            folder = config.data
        with new_runner() as runner:
            code = runner.run(Server(config, folder / "tls", say, limits).run())
    if code == DEPOSED:  # its state is void: it is started anew, and follows
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 (itself)
    return code


def new_runner() -> asyncio.Runner:
    """For the fastest event loop there is."""
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


class Server:
    """The server process: listener, HTTP, broker."""

    def __init__(
        self,
        config: Config,
        tls_folder: Path,
        say: Callable[[str], None],
        limits: Limits = LIMITS,
        clock: Clock | None = None,
    ) -> None:
        from uvicorn.server import ServerState

        self._config = config
        self._say = say
        self._tls_folder = tls_folder
        self._stop = asyncio.Event()
        self._code_of_a_clean_stop = OK
        self.ports: list[int] = []  # once it is ready
        self._broker = BrokerHost(config, clock)
        self._warning: asyncio.TimerHandle | None = None
        own = None
        if config.tls_cert is not None and config.tls_key is not None:
            own = Files(config.tls_cert, config.tls_key)
            check_tls(own)  # now: a start without it is not to succeed
        authority = _authority(config)
        names = config.tls_name
        if authority is not None:  # the other nodes reach this one by it
            advertised = config.advertise
            host = split_address(advertised)[0] if advertised is not None else config.host[0]
            names = (*names, host)
        self._contexts = Contexts(tls_folder, names, own, authority)
        # Each dialect, and what its connections and requests share.
        self._dialects = [
            (dialect, dialect.open(self._broker, config.dialects[dialect.name]))
            for dialect in DIALECTS
        ]
        app = App(self._broker, http_dialects(self._dialects), limits)
        uvicorn, state = make_config(app), ServerState()

        websockets = tuple(self._websockets())

        def http(connection: Connection) -> HttpPeer:
            return HttpPeer(uvicorn, state, connection, websockets)

        protocols = (*self._wires(), PortProtocol(HTTP, is_http, http))
        relay = None
        if authority is not None:
            trust = LinkTrust(authority, config.cluster_ca, has_own=own is not None)
            relay = new_relay(config, self._broker, trust)
            link = PortProtocol("node", is_link, relay.links.make)
            protocols = (link, *map(relay.wrap, protocols))
        networks = None
        if config.dev:
            networks = [*LOOPBACK, *map(ipaddress.ip_network, config.dev_allow)]
        files = _files_max()
        most = max(1, min(config.connections_max, files - max(_FILES_KEPT, files // 8)))
        if most < config.connections_max:
            _log.warning(
                "There can be %d connections, not %d: raise the limit on open files.", most,
                config.connections_max, extra={"event": "listener.files"},
            )  # fmt: skip
        limits = limits._replace(
            handshake_seconds=config.handshake_limit, connections=most, networks=networks,
            strangers=config.strangers_max, strangers_per_address=config.strangers_per_address,
            per_principal=config.connections_per_principal or max(1, most // 2),
            requires_tls=not (config.dev or config.insecure),
        )  # fmt: skip
        self._listener = Listener(protocols, limits, self._contexts.get)
        self._feed = Feed(self._broker)
        self._metrics = Metrics(app, self._broker, self._listener, self._feed, relay)
        add_routes(app, self._broker, self._feed, self._metrics, self._contexts.get, relay)

    def _wires(self) -> Iterator[PortProtocol]:
        for dialect, shared in self._dialects:
            if (wire := dialect.wire) is not None:
                make = partial(wire.make, shared)
                yield PortProtocol(wire.name, wire.recognise, make, wire.demand_tls)

    def _websockets(self) -> Iterator[WebSocketRoute]:
        for dialect, shared in self._dialects:
            if dialect.wire is not None and (offered := dialect.wire.websocket) is not None:
                make = partial(offered.make, shared)
                yield WebSocketRoute(offered.path, offered.subprotocol, make, self._admits)

    def _admits(self, headers: dict[bytes, bytes]) -> bool:
        """Whether a page may connect: with --dev, whose key everybody knows, only one from here."""
        return not self._config.dev or is_from_here(headers, self._config.tls_name)

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():  # only there are signals heard
            for each in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(each, self._signalled, each)
        try:
            listening = self._listener.open(self._config.host, self._config.port)
        except OSError as error:
            _log.error("There is no port to listen on: %s.", error.strerror,
                       extra={"event": "listener.none"})  # fmt: skip
            return FAILED
        opening = asyncio.create_task(self._broker.open(_address(listening[0])))
        stopping: asyncio.Task[object] = asyncio.create_task(self._stop.wait())
        await asyncio.wait((opening, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            opening.cancel()
            await asyncio.wait([opening])
            return self._code_of_a_clean_stop
        try:
            engine = opening.result()
        except (StoreError, Refused, OSError) as error:
            _log.error("The broker cannot start: %s", error, extra={"event": "broker.failed"})
            await self._listener.close(0)
            return LOST if isinstance(error, Lost | Deposed) else FAILED
        try:
            await self._broker.when_leading(self._start_dialects)
        except CannotStart as error:
            _log.error("%s", error, extra={"event": "broker.failed"})
            await self._listener.close(0)
            return FAILED
        self._metrics.lag.start()
        self.ports = sorted({at.port for at in listening})
        self._announce(listening)
        if self._config.insecure:
            self._warn_that_it_is_insecure()
        later = [
            loop.call_later(_WARM_SECONDS, self._import_the_rest),
            loop.call_later(_LATER_SECONDS, self._make_certificate),
        ]
        ends = [asyncio.create_task(engine.failed.wait()), stopping]
        node = self._broker.node
        if node is not None:
            ends.append(asyncio.create_task(node.leaves.wait()))
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        if node is not None and node.leaves.is_set() and not self._stop.is_set():
            self._code_of_a_clean_stop = DEPOSED
        for timer in later:  # where it stops as soon as it was started
            timer.cancel()
        try:
            return await self._end()
        finally:
            self._metrics.lag.stop()
            if self._warning is not None:
                self._warning.cancel()

    def _import_the_rest(self) -> None:
        """Imports, beside the event loop, what else the first request of a kind would wait for."""
        warm = (module for dialect, _ in self._dialects for module in dialect.warm)
        modules = ["posthouse.server.api", *warm]
        asyncio.get_running_loop().run_in_executor(None, _import_all, modules)

    async def _start_dialects(self) -> None:
        """Raises CannotStart."""
        for dialect, shared in self._dialects:
            if dialect.start is not None:
                await dialect.start(shared)

    async def _end(self) -> int:
        engine = self._broker.engine
        assert engine is not None
        if engine.failed.is_set():
            self._tell_why(engine.failure)
            await self._listener.close(1)
            starts_anew = isinstance(engine.failure, Deposed | Behind)
            return DEPOSED if starts_anew and self._broker.node is not None else LOST
        _log.info("Stopping.", extra={"event": "broker.stopping"})
        self._listener.stop_accepting()
        engine.dismiss()
        node, seconds = self._broker.node, float(self._config.stop_limit)
        if node is not None and node.leads:  # others wait to go on
            await node.begin_to_leave()
            seconds = min(seconds, HAND_OVER_SECONDS)
        if not await self._listener.close(seconds):
            _log.warning("Some peers did not end in time, and were cut off.",
                         extra={"event": "broker.cut"})  # fmt: skip
        self._feed.close()
        try:
            if node is not None:
                await node.hand_over()
            await self._broker.close()
        except StoreError as error:
            _log.critical("The stop was not clean: %s", error, extra={"event": "journal.lost"})
            return LOST
        _log.info("Stopped.", extra={"event": "broker.stopped"})
        return self._code_of_a_clean_stop

    def _tell_why(self, failure: StoreError | None) -> None:
        """The engine has stopped by itself."""
        if isinstance(failure, Deposed):
            _log.critical(
                "The broker stops: %s. What was not acknowledged may be done or not; clients go on"
                " with the other broker.", failure, extra={"event": "journal.deposed"},
            )  # fmt: skip
        elif isinstance(failure, Behind):
            _log.error("The log has gone on without this node: %s.", failure,
                       extra={"event": "cluster.behind"})  # fmt: skip
        else:
            _log.critical(
                "The broker stops: %s. What was not acknowledged is open; the next start recovers.",
                failure, extra={"event": "journal.lost"},
            )  # fmt: skip

    def stop(self) -> None:
        self._stop.set()

    def _signalled(self, number: signal.Signals) -> None:
        if self._stop.is_set():  # everything acknowledged is on disk
            os._exit(128 + number)
        self._code_of_a_clean_stop = INTERRUPTED if number == signal.SIGINT else OK
        self._stop.set()

    def _make_certificate(self) -> None:
        making = self._contexts.get()

        def done(made: "asyncio.Future[ssl.SSLContext]") -> None:
            if not made.cancelled() and (error := made.exception()) is not None:
                _log.error("There is no TLS: %s", error, extra={"event": "tls.failed"})

        making.add_done_callback(done)

    # Output for people.

    def _warn_that_it_is_insecure(self) -> None:
        """Warns at the start, and repeatedly."""
        _log.warning(
            "Keys are taken in clear text from other machines (--insecure). Give clients the"
            " certificate, connect them with TLS, and start without --insecure.",
            extra={"event": "listener.insecure"},
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        self._warning = loop.call_later(INSECURE_SECONDS, self._warn_that_it_is_insecure)

    def _announce(self, listening: list[Listening]) -> None:
        with contextlib.suppress(OSError):  # nobody reads it, and the broker serves all the same
            self._say(welcome(self._config, self._broker, listening, self._tls_folder))
            self._broker.root_key_was_shown()
        _log.info(
            "Posthouse is ready on %s.", ", ".join(f"{at.host}:{at.port}" for at in listening),
            extra={"event": "broker.ready", "ports": sorted({at.port for at in listening})},
        )  # fmt: skip


def _authority(config: Config) -> Authority | None:
    """The authority of the cluster that this broker is a node of. Raises OSError."""
    if config.cluster is None:
        return None
    return Authority(config.cluster, derive(read_cluster_secret(config), "authority"))


def _address(at: Listening) -> str:
    return f"[{at.host}]:{at.port}" if ":" in at.host else f"{at.host}:{at.port}"


def _import_all(modules: Iterable[str]) -> None:
    for module in modules:
        __import__(module)


def _files_max() -> int:
    """The number of files that may be open: as many as the machine's owner allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def welcome(
    config: Config, broker: BrokerHost, listening: list[Listening], tls_folder: Path
) -> str:
    """The text shown at start: the ports, and what to paste into which client."""
    hosts = list(dict.fromkeys(each.host for each in listening))
    here = [each for each in listening if each.host == hosts[0]]
    ports = [each.port for each in here if not each.http_profile] or [here[0].port]
    # A port that is another program's on one of the addresses is no port to send clients to.
    taken = {port for port in ports if sum(each.port == port for each in listening) < len(hosts)}
    ports = [port for port in ports if port not in taken] or ports
    shown = [str(port) + (f" ({profile})" if profile else "") for _, port, profile in here]
    name = "localhost" if hosts[0] in ("127.0.0.1", "::1") else hosts[0]

    kept = f"<the key in {config.data / ROOT_KEY}>"
    key = DEV_KEY if config.dev else broker.new_root_key or kept
    reached = Reached(name, tuple(ports), key)
    served = [_line(*each.welcome(reached)) for each in DIALECTS if each.welcome is not None]

    lines = [
        "Posthouse is ready.",
        "",
        f"  listens on    {', '.join(hosts)}, ports {', '.join(shown)};"
        f" each takes every protocol, {_encryption(config)}",
        f"  data          {'in memory only' if config.memory else config.data.absolute()}",
        *([f"  store         {config.store}"] if config.store is not None else []),
        f"  certificate   {tls_folder / 'ca.pem'}" if config.tls_cert is None
        else f"  certificate   {config.tls_cert}",
        f"  namespace     {DEFAULT_NAMESPACE}",
        "",
        f"  HTTP          http://{name}:{reached.port(HTTP_PORT)}/api/v1"
        "   (/docs, /health, /metrics, /feed)",
        _line("Python", _client_url(reached)),
        *served,
    ]  # fmt: skip
    if config.dev:
        lines += [
            "",
            "  --dev: only peers on this machine are let in, and plain HTTP needs no key.",
        ]
    if config.insecure:
        lines += ["", "  --insecure: keys are taken in clear text from other machines, too."]
    if not config.dev and broker.new_root_key is not None:
        lines += [
            "",
            "  The root key was made just now and is shown this once:",
            "",
            f"      export POSTHOUSE_KEY={ROOT}:{broker.new_root_key}",
            "",
            "  It is gone with this process." if config.memory
            else f"  It is kept in {config.data.absolute() / ROOT_KEY}.",
        ]  # fmt: skip
    lines += ["", "  Ctrl-C stops it.", ""]
    return "\n".join(lines)


def _client_url(reached: Reached) -> str:
    """What `posthouse.create_client` and `posthouse worker` take."""
    key = reached.key if reached.key.startswith("<") else quote(reached.key, safe="")
    host = f"[{reached.host}]" if ":" in reached.host else reached.host
    port = reached.port(CLIENT_PORT)
    return f"posthouse://{ROOT}:{key}@{host}" + ("" if port == CLIENT_PORT else f":{port}")


def _line(label: str, text: str) -> str:
    first, *more = text.splitlines()
    return "\n".join((f"  {label:<12}  {first}", *(f"{'':16}{each}" for each in more)))


def _encryption(config: Config) -> str:
    if config.dev or config.insecure:
        return "with or without TLS"
    return "from other machines with TLS only"


def say_on_terminal(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
