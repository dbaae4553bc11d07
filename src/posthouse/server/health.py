"""Health: whether the process lives, is ready for work, and how far a start has come."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from posthouse.broker.watch import ahead_of
from posthouse.core.errors import Busy, NotLeader
from posthouse.dialects.http import JSON
from posthouse.dialects.known import DIALECTS
from posthouse.server.host import BrokerHost
from posthouse.server.http import Answer, Request, Route
from posthouse.server.problems import HttpProblem
from posthouse.store.errors import StoreError

READY_SECONDS = 2  # that a sync, or the certificate, may take before the broker is not ready
# Waits for the certificate that is made at the start. Raises OSError or ssl.SSLError.
Certificate: TypeAlias = Callable[[], Awaitable[ssl.SSLContext]]
Fact: TypeAlias = str | int | dict[str, str]
FULL = "the disk is full: sends are refused, receiving and settling go on; free space on the disk"


def health(broker: BrokerHost, certificate: Certificate) -> Route:
    """`/health/live`, `/health/ready`, `/health/ready/receive`, `/health/startup`."""

    async def answer(request: Request) -> Answer:
        if request.method not in ("GET", "HEAD"):
            raise HttpProblem(405, "method-not-allowed", "Health is asked for with GET.")
        match request.parts[1:]:
            case []:  # as emulators are asked
                return await _ready(broker, certificate, status="healthy", more=_services(broker))
            case [b"live"]:
                return _say(200, status="alive")
            case [b"ready"]:
                return await _ready(broker, certificate)
            case [b"ready", b"receive"]:
                return await _ready(broker, certificate, sends=False)
            case [b"startup"]:
                return _startup(broker)
            case _:
                raise HttpProblem(
                    404,
                    "not-found",
                    "There are /health/live, /health/ready,"
                    " /health/ready/receive and /health/startup.",
                )

    return answer


def _services(broker: BrokerHost) -> dict[str, Fact]:
    """The version and the protocols served; for development, as a stranger need not know it."""
    if not broker.dev:
        return {}
    from importlib.metadata import version

    services = {each.name: "running" for each in DIALECTS if each.is_served}
    return {"version": version("posthouse"), "services": services}


async def _ready(
    broker: BrokerHost,
    certificate: Certificate,
    *,
    sends: bool = True,
    status: str = "ready",
    more: Mapping[str, Fact] = MappingProxyType({}),
) -> Answer:
    """Tells whether recovery is done, something was synced just now, and TLS can be spoken.

    Where `sends` are to be served, the disk has room, too.
    """
    engine = broker.engine
    if engine is None:
        return _say(503, status=broker.phase)
    try:
        async with asyncio.timeout(READY_SECONDS):
            await engine.prove()
    except TimeoutError:
        return _say(503, status=f"a sync takes more than {READY_SECONDS} s")
    except (StoreError, Busy, NotLeader) as error:
        return _say(503, status=str(error))
    if sends and engine.store.full:
        return _say(503, status=FULL)
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


def _startup(broker: BrokerHost) -> Answer:
    store = broker.store
    end = 0 if store is None or store.last is None else store.last.end
    done = broker.engine is not None
    position = end if done else broker.position
    return _say(200 if done else 503, status=broker.phase, position=position, end=end)


def _say(code: int, **facts: Fact) -> Answer:
    return Answer(msgspec.json.encode(facts), code, (JSON, (b"cache-control", b"no-store")))
