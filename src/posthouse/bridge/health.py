"""How a bridge is: its connection, its stream, its outbox, its inbox, and what is wrong."""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec

from posthouse.bridge.errors import BridgeError
from posthouse.bridge.settings import hide
from posthouse.bridge.transport import TransportHealth
from posthouse.client.handling import describe

if TYPE_CHECKING:
    from posthouse.bridge.bridge import Bridge

DEAD_LETTERS_MAX = 100  # that are counted
LOOK_SECONDS = 10.0  # that transport and database have to answer, each


@dataclass(frozen=True)
class Health:
    """How a bridge is. `problems` are sentences; it is `healthy` where there are none.

    The other fields are for people and programs: `connection`, `stream`, `consumer`, `outbox`,
    `inbox`, `dead_letters`, `handling`, `performance`, `config` without secrets, and the `version`.

    Example:
        health = await bridge.health()
        print(health.healthy, health.problems)
    """

    healthy: bool
    problems: list[str]
    connection: Mapping[str, Any]
    stream: Mapping[str, Any]
    consumer: Mapping[str, Any]
    outbox: Mapping[str, Any]
    inbox: Mapping[str, Any]
    dead_letters: Mapping[str, Any]
    handling: Mapping[str, Any]
    performance: Mapping[str, Any]
    config: Mapping[str, Any]
    version: str

    def as_dict(self) -> dict[str, Any]:
        """Returns all of it as what JSON can say.

        Example:
            print(json.dumps(health.as_dict()))
        """
        told: dict[str, Any] = json.loads(msgspec.json.encode(asdict(self)))
        return told


async def look(bridge: "Bridge") -> Health:
    """Looks at everything, each for a limited time. Never raises for what cannot be reached."""
    begun = time.monotonic()
    problems: list[str] = []
    transport = await _transport(bridge, problems)
    outbox, inbox = await _tables(bridge, problems)
    facts = dict(transport.facts) if transport is not None else {}
    stream, consumer = _part(facts, "stream"), _part(facts, "consumers")
    dead = await _dead_letters(bridge, transport)
    connection = {
        "connected": transport is not None and transport.connected,
        "state": transport.state if transport is not None else "disconnected",
        "server": transport.server if transport is not None else "",
        "connected_at": _moment(transport.since) if transport is not None else None,
    }
    figures = bridge.figures
    count, seconds = figures.observed("bridge_handler_seconds")
    handling = {
        "outcomes": {k: int(n) for k, n in figures.by_label("bridge_events_total").items()},
        "dead_letters": {
            reason: int(n) for reason, n in figures.by_label("bridge_dead_letters_total").items()
        },
    }
    performance = {
        "nats_rtt_ms": facts.pop("rtt_ms", None),
        "message_processing_time_ms": round(seconds / count * 1_000, 3) if count else None,
        "last_health_check_ms": round((time.monotonic() - begun) * 1_000, 3),
    }
    return Health(
        not problems, problems, {**connection, **facts},
        {"name": bridge.settings.stream_name, **stream},
        consumer, outbox, inbox, dead, handling, performance, _config(bridge), version("posthouse"),
    )  # fmt: skip


async def _transport(bridge: "Bridge", problems: list[str]) -> TransportHealth | None:
    wanted = bridge.topology()
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            found = await bridge.connection.call(lambda transport: transport.health(wanted))
    except TimeoutError:
        where = hide(bridge.settings.address)
        problems.append(f"There was no answer from {where} within {LOOK_SECONDS:g} s.")
    except BridgeError as error:
        problems.append(describe(error))
    else:
        if found.problem:
            problems.append(found.problem)
        elif not found.connected:
            problems.append(f"There is no connection to {found.server}: it is {found.state}.")
        return found
    return None


async def _dead_letters(bridge: "Bridge", transport: TransportHealth | None) -> Mapping[str, Any]:
    """Counts dead letters, up to a limit, where the bridge may look at them."""
    if transport is None or not transport.connected or not bridge.settings.auto_provision:
        return {}
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            count = len(await bridge.dead_letters(limit=DEAD_LETTERS_MAX))
    except (BridgeError, TimeoutError):  # it is one figure of many, and no problem of the bridge
        return {}
    return {"count": count, "more": count == DEAD_LETTERS_MAX}


async def _tables(
    bridge: "Bridge", problems: list[str]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    if not bridge.has_storage:
        return {}, {}
    from posthouse.bridge.storage import note_outbox

    try:
        async with asyncio.timeout(LOOK_SECONDS):
            outbox, inbox = await bridge.storage.state()
    except TimeoutError:
        problems.append(f"The database did not answer within {LOOK_SECONDS:g} s.")
        return {}, {}
    except bridge.storage.trouble as error:
        problems.append(f"The database cannot be asked: {describe(error)}")
        return {}, {}
    overdue = bridge.settings.relay_overdue
    oldest = outbox.oldest_seconds
    if oldest is not None and oldest > overdue and not outbox.relays:
        problems.append(
            f"Nobody relays: the oldest of {outbox.pending} rows waits for {oldest:.0f} s. Run"
            " `posthouse bridge relay`, or the bridge with its outbox."
        )
    if outbox.failed:
        problems.append(
            f"{outbox.failed} events of the outbox were refused for good. See them with"
            " `posthouse bridge outbox ls --status failed`."
        )
    note_outbox(outbox, bridge.figures)
    return asdict(outbox), asdict(inbox)


def _part(facts: dict[str, object], name: str) -> Mapping[str, Any]:
    found = facts.pop(name, None)
    return found if isinstance(found, Mapping) else {}


def _moment(since: float) -> str:
    return datetime.fromtimestamp(since, UTC).isoformat()


def _config(bridge: "Bridge") -> dict[str, Any]:
    settings = bridge.settings
    return {
        **settings.shown(), "stream_name": settings.stream_name, "app_name": settings.app,
        "destination_app": ", ".join(settings.destination),
        "use_outbox": bridge.has_storage and settings.outbox,
        "use_inbox": bridge.has_storage and settings.inbox != "off", "use_dlq": True,
    }  # fmt: skip
