"""Health: whether the process lives, is ready for work, and how far a start has come."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec

from posthouse.broker.engine import Engine
from posthouse.broker.watch import ahead_of
from posthouse.core.errors import Busy, NotLeader
from posthouse.dialects.http import JSON
from posthouse.dialects.known import DIALECTS
from posthouse.server.host import BrokerHost
from posthouse.server.http import Answer, Request, Route
from posthouse.server.problems import HttpProblem
from posthouse.server.relay import Relay
from posthouse.store.errors import StoreError

READY_SECONDS = 2  # that a sync, or the certificate, may take before the broker is not ready
# Waits for the certificate that is made at the start. Raises OSError or ssl.SSLError.
Certificate: TypeAlias = Callable[[], Awaitable[ssl.SSLContext]]
Fact: TypeAlias = str | int | dict[str, str]
NO_ROOM = "not following: the disk is full; it goes on by itself when there is room"
FULL = "the disk is full: sends are refused, receiving and settling go on; free space on the disk"


def health(broker: BrokerHost, certificate: Certificate, relay: Relay | None = None) -> Route:
    """`/health/live`, `/health/ready`, `/health/ready/receive`, `/health/leader`,
    `/health/startup`.
    """
    ready = partial(_ready, broker, certificate, relay)

    async def answer(request: Request) -> Answer:
        if request.method not in ("GET", "HEAD"):
            raise HttpProblem(405, "method-not-allowed", "Health is asked for with GET.")
        match request.parts[1:]:
            case []:  # as emulators are asked
                return await ready(status="healthy", more=_services(broker))
            case [b"live"]:
                return _say(200, status="alive")
            case [b"ready"]:
                return await ready()
            case [b"ready", b"receive"]:
                return await ready(sends=False)
            case [b"leader"]:
                return await _leads(broker)
            case [b"startup"]:
                return _startup(broker)
            case _:
                raise HttpProblem(
                    404,
                    "not-found",
                    "There are /health/live, /health/ready,"
                    " /health/ready/receive, /health/leader and /health/startup.",
                )

    return answer


def _services(broker: BrokerHost) -> dict[str, Fact]:
    """The version and the protocols served; for development, as a stranger need not know it."""
    if not broker.dev:
        return {}
    from importlib.metadata import version

    services = {each.name: "running" for each in DIALECTS}
    return {"version": version("posthouse"), "services": services}


async def _ready(
    broker: BrokerHost,
    certificate: Certificate,
    relay: Relay | None,
    *,
    sends: bool = True,
    status: str = "ready",
    more: Mapping[str, Fact] = MappingProxyType({}),
) -> Answer:
    """Tells whether recovery is done, something was synced just now, and TLS can be spoken.

    Where `sends` are to be served, the disk has room, too. A node that hands its clients to the
    leader is ready where the leader is, which it asks over a link like theirs.
    """
    engine = broker.engine
    if engine is None:
        return _say(503, status=broker.phase)
    if relay is not None and not relay.leads:
        problem = await _leader_problem(relay, sends=sends)
    else:
        problem = await _problem(engine)
        if not problem and sends and engine.store.full:
            problem = FULL
    if problem:
        return _say(503, status=problem)
    try:
        async with asyncio.timeout(READY_SECONDS):
            await certificate()
    except TimeoutError:
        return _say(503, status="the certificate is being made")
    except (OSError, ssl.SSLError) as error:
        if not engine.store.full:  # else there is no room for it yet, and receiving goes on
            return _say(503, status=f"there is no TLS: {error}")
    facts: dict[str, Fact] = {"status": status, **more}
    ahead_ms = ahead_of(engine)
    if ahead_ms:
        facts["clock_ahead_seconds"] = ahead_ms // 1_000
    return _say(200, **facts)


async def _problem(engine: Engine) -> str:
    """Why nothing can be made durable now; empty where something was just now."""
    try:
        async with asyncio.timeout(READY_SECONDS):
            await engine.prove()
    except TimeoutError:
        return f"a sync takes more than {READY_SECONDS} s"
    except (StoreError, Busy, NotLeader) as error:
        return str(error)
    return ""


async def _leader_problem(relay: Relay, *, sends: bool) -> str:
    """Why clients cannot be handed to the leader, or it is not ready; empty where it is."""
    status, told = await relay.ask("/health/ready" if sends else "/health/ready/receive")
    if status == 200:
        return ""
    try:
        text: str = msgspec.json.decode(told, type=dict[str, Any])["status"]
    except (msgspec.MsgspecError, KeyError):
        text = told.decode(errors="replace")
    return f"clients cannot be handed to the leader: {text}"


async def _leads(broker: BrokerHost) -> Answer:
    """Tells whether this is the node that leads, or a broker of its own, and writes."""
    if broker.engine is None:
        return _say(503, status=broker.phase)
    problem = await _problem(broker.engine)
    return _say(503, status=problem) if problem else _say(200, status="leads")


def _startup(broker: BrokerHost) -> Answer:
    store = broker.store
    end = 0 if store is None or store.last is None else store.last.end
    done = broker.engine is not None
    position = end if done else broker.position
    status = broker.phase
    if broker.node is not None and broker.node.is_out_of_room:
        status = NO_ROOM
    return _say(200 if done else 503, status=status, position=position, end=end)


def _say(code: int, **facts: Fact) -> Answer:
    return Answer(msgspec.json.encode(facts), code, (JSON, (b"cache-control", b"no-store")))
