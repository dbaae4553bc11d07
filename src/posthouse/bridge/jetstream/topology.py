"""Streams and consumers: what is there, what is to be there, and the steps between them.

A plan reads; applying it sends a request for each step that changes something, and none where
nothing differs, because even an update to the same settings has lost messages of clusters.
"""

import asyncio
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from posthouse.bridge.errors import NotPermitted, TopologyConflict
from posthouse.bridge.jetstream.connection import Connection
from posthouse.bridge.jetstream.overlap import conflict, covers, overlaps, told
from posthouse.bridge.jetstream.pushing import HEARTBEAT_SECONDS
from posthouse.bridge.jetstream.words import (
    CONSUMER_EXISTS,
    CONSUMER_NOT_FOUND,
    INVALID_SUBJECT,
    NAME_IN_USE,
    NANOSECONDS,
    NO_PEERS,
    NOT_CLUSTERED,
    OVERLAP,
    STREAM_NOT_FOUND,
    ApiError,
    api_answer,
)
from posthouse.bridge.names import check_subject, check_token, deliver_subject
from posthouse.bridge.transport import Plan, Source, Step, Topology

_log = logging.getLogger("posthouse.bridge")

CACHE_SECONDS = 60.0  # for which the streams of others are remembered
STREAMS_MAX = 100_000  # that are looked through
RETRY_SECONDS = (0.05, 0.2, 0.5)  # after another one was faster
PULL_PENDING_MAX = 10_000  # unsettled: those that wait for their retry are among them
PUSH_PENDING_MAX = 100
REPLICAS = 3  # where there are as many servers
API_SECONDS = 5.0

_Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Change:
    """The request that a step sends."""

    wanted: Topology
    config: _Config
    source: Source | None = None
    is_recommended: bool = False  # the number of replicas: a smaller one will do
    recreate: bool = False


class Topologies:
    """Plans and applies the streams and consumers of one account."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._others: tuple[float, dict[str, Sequence[str]]] | None = None

    async def _ask(self, suffix: str, form: Mapping[str, Any], what: str) -> dict[str, Any]:
        """Raises ApiError, Unanswered, NotPermitted."""
        reply = await self._connection.request(
            f"$JS.API.{suffix}", json.dumps(form).encode(), seconds=API_SECONDS
        )
        return api_answer(reply, what)

    async def stream_info(self, stream: str) -> dict[str, Any] | None:
        """Returns what the server says of a stream; None if there is none. Raises BridgeError."""
        return await self._info(f"STREAM.INFO.{stream}", f"look at the stream {stream}")

    async def consumer_info(self, stream: str, consumer: str) -> dict[str, Any] | None:
        """Returns what the server says of a consumer; None if there is none."""
        return await self._info(
            f"CONSUMER.INFO.{stream}.{consumer}", f"look at the consumer {consumer}"
        )

    async def _info(self, suffix: str, what: str) -> dict[str, Any] | None:
        try:
            return await self._ask(suffix, {}, what)
        except ApiError as error:
            if error.code in (STREAM_NOT_FOUND, CONSUMER_NOT_FOUND):
                return None
            raise

    async def subjects_of_all(self) -> dict[str, Sequence[str]]:
        """Returns the subjects of all streams, by name. Raises BridgeError."""
        now = time.monotonic()
        if self._others is not None and now - self._others[0] < CACHE_SECONDS:
            return self._others[1]
        found: dict[str, Sequence[str]] = {}
        seen = 0
        while seen < STREAMS_MAX:
            page = await self._ask("STREAM.LIST", {"offset": seen}, "list the streams")
            streams = page.get("streams") or []
            for stream in streams:
                config = stream.get("config", {})
                found[str(config.get("name"))] = tuple(config.get("subjects") or ())
            seen += len(streams)
            if not streams or seen >= int(page.get("total", 0)):
                break
        self._others = now, found
        return found

    # Planning.

    async def plan(self, wanted: Topology) -> Plan:
        """Compares what is there with what is wanted. Raises BridgeError."""
        check_token("The name of the stream", wanted.stream)
        for subject in wanted.subjects:
            check_subject(subject, wildcards=True)
        info = await self.stream_info(wanted.stream)
        steps = [await self._overlap(wanted) or self._stream_step(wanted, info)]
        for source in (*wanted.sources, *_keepers(wanted)):
            check_token("The name of the consumer", source.consumer)
            found = None
            if info is not None:
                found = await self.consumer_info(wanted.stream, source.consumer)
            steps.append(_consumer_step(wanted, source, found))
        return Plan(steps)

    async def _overlap(self, wanted: Topology) -> Step | None:
        try:
            others = await self.subjects_of_all()
        except NotPermitted as denied:
            _log.info("Streams of others cannot be looked at: %s", denied,
                      extra={"event": "bridge.no-overlap-guard"})  # fmt: skip
            return None
        taken = conflict(wanted.stream, wanted.subjects, others)
        return None if taken is None else Step("conflict", "stream", wanted.stream, told(*taken))

    def _replicas(self, wanted: Topology) -> int:
        """Returns how many replicas there should be: as many as is wished, or are recommended."""
        if wanted.replicas:
            return wanted.replicas
        info = self._connection.server_info
        servers = set(info.get("connect_urls") or ())
        return REPLICAS if info.get("cluster") and len(servers) >= REPLICAS else 1

    def _stream_step(self, wanted: Topology, info: dict[str, Any] | None) -> Step:
        replicas = self._replicas(wanted)
        name = wanted.stream
        if info is None:
            config = {
                "name": name, "subjects": list(wanted.subjects), "retention": wanted.retention,
                "storage": "file", "num_replicas": replicas, "discard": "new",
                "duplicate_window": _nanoseconds(wanted.duplicate_window), "allow_direct": True,
            }  # fmt: skip
            change = _Change(wanted, config, is_recommended=not wanted.replicas)
            return Step(
                "create", "stream", name,
                f"There is none; it gets {', '.join(wanted.subjects)} and {replicas} replicas.",
                change,
            )  # fmt: skip
        there = dict(info.get("config") or {})
        problem = _stream_conflict(wanted, there)
        if problem:
            return Step("conflict", "stream", name, problem)
        config, why = _stream_changes(wanted, there, replicas)
        kept = _kept(wanted, there)
        if not why:
            return Step("leave", "stream", name, " ".join(["Nothing differs.", *kept]))
        change = _Change(wanted, config, is_recommended=not wanted.replicas)
        return Step("update", "stream", name, " ".join([f"{'; '.join(why)}.", *kept]), change)

    # Applying.

    async def apply(self, plan: Plan, *, recreate: bool) -> None:
        """Takes the steps of a plan. Raises BridgeError; TopologyConflict before anything is sent.

        With `recreate`, consumers that cannot be changed are made anew, where they were.
        """
        for attempt in range(len(RETRY_SECONDS) + 1):
            hopeless = [
                step for step in plan.conflicts
                if not (recreate and isinstance(step.detail, _Change))
            ]  # fmt: skip
            if hopeless:
                raise TopologyConflict(" ".join(step.reason for step in hopeless))
            try:
                for step in plan.steps:
                    await self._take(step)
            except ApiError as error:
                self._others = None
                wanted = _wanted(plan)
                is_race = error.code in (OVERLAP, NAME_IN_USE, CONSUMER_EXISTS)
                if not is_race or attempt == len(RETRY_SECONDS) or wanted is None:
                    raise TopologyConflict(_in_words(error)) from error
            else:
                return
            await asyncio.sleep(RETRY_SECONDS[attempt])
            plan = await self.plan(wanted)

    async def _take(self, step: Step) -> None:
        change = step.detail
        if step.act == "leave" or not isinstance(change, _Change):
            return
        if step.kind == "stream":
            await self._take_stream(step.act == "create", change)
        elif change.recreate and step.act == "conflict":
            await self._recreate(change)
        else:
            action: Literal["create", "update"] = "create" if step.act == "create" else "update"
            await self._make_consumer(change.wanted.stream, change.config, action)
        _log.info(
            "NATS: %s of the %s %s is done. %s", step.act, step.kind, step.name, step.reason,
            extra={"event": "bridge.provisioned", "kind": step.kind, "named": step.name},
        )  # fmt: skip

    async def _take_stream(self, is_new: bool, change: _Change) -> None:
        name = change.wanted.stream
        verb, what = ("CREATE", "create") if is_new else ("UPDATE", "update")
        try:
            await self._ask(f"STREAM.{verb}.{name}", change.config, f"{what} the stream {name}")
        except ApiError as error:
            alone = error.code in (NO_PEERS, NOT_CLUSTERED) and change.is_recommended
            if not alone or change.config["num_replicas"] == 1:
                raise
            _log.warning(
                "NATS: the servers cannot keep %d replicas of the stream %s: %s",
                change.config["num_replicas"], name, error, extra={"event": "bridge.no-replicas"},
            )  # fmt: skip
            fewer = change.config | {"num_replicas": 1}
            await self._take_stream(is_new, replace(change, config=fewer))

    async def _make_consumer(
        self, stream: str, config: _Config, action: Literal["create", "update"]
    ) -> None:
        name = config["durable_name"]
        suffix = f"CONSUMER.CREATE.{stream}.{name}.{config['filter_subject']}"
        form = {"stream_name": stream, "config": config, "action": action}
        await self._ask(suffix, form, f"{action} the consumer {name}")

    async def _recreate(self, change: _Change) -> None:
        """Makes a consumer anew, from the first event that it has not acknowledged.

        A stream that keeps what somebody is interested in would drop what only this one has not
        seen; so a second consumer is interested meanwhile.
        """
        stream, name = change.wanted.stream, change.config["durable_name"]
        there = await self.consumer_info(stream, name)
        info = await self.stream_info(stream)
        if there is None or info is None:
            await self._make_consumer(stream, change.config, "create")
            return
        retention = info["config"].get("retention")
        config = change.config
        if retention != "workqueue":  # where what was acknowledged is gone
            first = int(there.get("ack_floor", {}).get("stream_seq", 0)) + 1
            config = config | {"deliver_policy": "by_start_sequence", "opt_start_seq": first}
        keeper = f"{name}-keep"
        if retention == "interest":
            pull = {key: value for key, value in config.items() if key not in _PUSH_FIELDS}
            kept = pull | {"durable_name": keeper, "name": keeper}
            await self._make_consumer(stream, kept, "create")
        await self._ask(f"CONSUMER.DELETE.{stream}.{name}", {}, f"delete the consumer {name}")
        await self._make_consumer(stream, config, "create")
        if retention == "interest":
            await self._ask(
                f"CONSUMER.DELETE.{stream}.{keeper}", {}, f"delete the consumer {keeper}"
            )


_PUSH_FIELDS = ("deliver_subject", "deliver_group", "flow_control", "idle_heartbeat")
# What a server refuses to change in place.
_FIXED = ("ack_policy", "replay_policy", "deliver_group", "flow_control", "idle_heartbeat")
_FIXED_DEFAULTS: _Config = {
    "ack_policy": "none", "replay_policy": "instant", "deliver_group": "", "flow_control": False,
    "idle_heartbeat": 0,
}  # fmt: skip


def _nanoseconds(seconds: float) -> int:
    return round(seconds * NANOSECONDS)


def _keepers(wanted: Topology) -> list[Source]:
    """Returns consumers that nobody asks: on a stream by interest they keep the dead letters."""
    if wanted.retention != "interest":
        return []
    return [
        Source(subject, subject.replace(".", "-"))
        for subject in wanted.subjects if subject.endswith(".dlq")
    ]  # fmt: skip


def _stream_conflict(wanted: Topology, there: _Config) -> str:
    """Says why a stream cannot be used; "" if it can."""
    name = wanted.stream
    if there.get("mirror"):
        return (
            f"The stream {name} mirrors another, so nothing can be published to it. Name another."
        )
    if there.get("sealed"):
        return f"The stream {name} is sealed. Name another."
    if wanted.retention == "interest" and there.get("retention") == "workqueue":
        return (
            f"The stream {name} is a work queue: each event would go to one service alone. Topics"
            " need a stream of their own; name another."
        )
    subjects = there.get("subjects") or ()
    for subject in wanted.subjects:
        if any(covers(taken, subject) for taken in subjects):
            continue
        for taken in subjects:
            if overlaps(subject, taken):
                return (
                    f"The stream {name} has {taken}, a part of {subject}. Take it out of the"
                    " stream, which then gets all of it."
                )
    return ""


def _stream_changes(wanted: Topology, there: _Config, replicas: int) -> tuple[_Config, list[str]]:
    """Returns the changed settings of a stream, and in words what is changed."""
    config, why = dict(there), []
    subjects = list(there.get("subjects") or ())
    missing = [
        subject for subject in wanted.subjects
        if not any(covers(taken, subject) for taken in subjects)
    ]  # fmt: skip
    if missing:
        config["subjects"] = subjects + missing
        why.append(f"it gets the subjects {', '.join(missing)}")
    present = int(there.get("num_replicas") or 1)
    if replicas != present and (wanted.replicas or replicas > present):
        config["num_replicas"] = replicas
        why.append(f"it gets {replicas} replicas instead of {present}")
    window = _nanoseconds(wanted.duplicate_window)
    if there.get("max_age"):
        window = min(window, int(there["max_age"]))
    if int(there.get("duplicate_window") or 0) < window:
        config["duplicate_window"] = window
        why.append(f"it remembers ids for {window / NANOSECONDS:g} s")
    if there.get("discard", "old") != "new":
        config["discard"] = "new"
        why.append("when it is full it refuses new events instead of dropping old ones")
    return config, why


def _kept(wanted: Topology, there: _Config) -> list[str]:
    """Says in words what differs and stays as it is."""
    kept = []
    retention = there.get("retention", "limits")
    if retention != wanted.retention:
        kept.append(f"Its retention {retention} is kept; a new one would be {wanted.retention}.")
    if there.get("storage") == "memory":
        kept.append("Its storage in memory is kept: events are lost with the server.")
    return kept


def _consumer_config(wanted: Topology, source: Source) -> _Config:
    config: _Config = {
        "durable_name": source.consumer, "name": source.consumer,
        "filter_subject": source.subject, "ack_policy": "explicit", "replay_policy": "instant",
        "deliver_policy": "all", "ack_wait": _nanoseconds(source.ack_wait),
        "max_deliver": wanted.max_deliver,
        "max_ack_pending": source.max_pending
        or (PUSH_PENDING_MAX if source.push else PULL_PENDING_MAX),
    }  # fmt: skip
    if source.push:
        config |= {
            "deliver_subject": deliver_subject(source), "deliver_group": source.consumer,
            "flow_control": True, "idle_heartbeat": _nanoseconds(HEARTBEAT_SECONDS),
        }  # fmt: skip
    return config


def _consumer_step(wanted: Topology, source: Source, info: dict[str, Any] | None) -> Step:
    name, config = source.consumer, _consumer_config(wanted, source)
    if info is None:
        how = f"pushes to {deliver_subject(source)}" if source.push else "is pulled from"
        reason = f"There is none; it {how} and has {source.subject}."
        return Step("create", "consumer", name, reason, _Change(wanted, config, source))
    there = dict(info.get("config") or {})
    fixed = _fixed_differences(config, there)
    if fixed:
        change = _Change(wanted, config, source, recreate=True)
        reason = (
            f"The consumer {name} has {', '.join(fixed)}, which a server does not change. Make it"
            " anew with --recreate; it goes on where it was."
        )
        return Step("conflict", "consumer", name, reason, change)
    changed, why = _consumer_changes(config, there)
    if not why:
        return Step("leave", "consumer", name, "Nothing differs.")
    change = _Change(wanted, changed, source)
    return Step("update", "consumer", name, f"It gets {', '.join(why)}.", change)


def _fixed_differences(config: _Config, there: _Config) -> list[str]:
    is_push, was_push = bool(config.get("deliver_subject")), bool(there.get("deliver_subject"))
    if is_push != was_push:
        return [f"{'push' if was_push else 'pull'} instead of {'push' if is_push else 'pull'}"]
    found = [
        f"{name} {there.get(name, default)!r} instead of {config.get(name, default)!r}"
        for name, default in _FIXED_DEFAULTS.items()
        if (there.get(name) or default) != config.get(name, default)
    ]
    policy = there.get("deliver_policy", "all")
    if policy not in ("all", "by_start_sequence"):  # the latter where it was made anew
        found.append(f"deliver_policy {policy!r} instead of 'all'")
    return found


def _consumer_changes(config: _Config, there: _Config) -> tuple[_Config, list[str]]:
    changed, why = dict(there), []
    for name in ("filter_subject", "ack_wait", "max_deliver", "max_ack_pending", "deliver_subject"):
        if name in config and there.get(name) != config[name]:
            changed[name] = config[name]
            why.append(f"{name} {config[name]} instead of {there.get(name, 'none')}")
    if there.get("filter_subjects"):
        del changed["filter_subjects"]
        why.append("one subject")
    # The delays are the bridge's own; beside them the server's would add up.
    if there.get("backoff"):
        del changed["backoff"]
        changed["ack_wait"] = config["ack_wait"]
        why.append("no backoff of the server's")
    return changed, why


def _wanted(plan: Plan) -> Topology | None:
    for step in plan.steps:
        if isinstance(step.detail, _Change):
            return step.detail.wanted
    return None


def _in_words(error: ApiError) -> str:
    if error.code == OVERLAP:
        return f"{error} Another stream has taken a subject just now; plan again to see which."
    if error.code == INVALID_SUBJECT:
        return f"{error} A stream's subject must not begin with a wildcard."
    return str(error)
