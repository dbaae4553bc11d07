"""Commands for a bridge: running it, its topology, its tables and its dead letters."""

import argparse
import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Any

from posthouse.cli.app_name import Missing, find
from posthouse.cli.codes import FAILED, NOT_ALLOWED, NOT_FOUND, OK, USAGE, fail, say
from posthouse.cli.show import Progress, printable, table

if TYPE_CHECKING:
    from posthouse.bridge.bridge import Bridge
    from posthouse.bridge.transport import DeadLetter, Plan

NOBODY = "bridge"  # the app of commands that need none
BODY_SHOWN_CHARS = 2_000
Run = Callable[[argparse.Namespace], Awaitable[int]]


def _command(run: Run) -> Callable[[argparse.Namespace], int]:
    """Wraps a command so that its expected errors are printed as one sentence."""

    @wraps(run)
    def guarded(options: argparse.Namespace) -> int:
        try:
            from posthouse.bridge import errors
        except ImportError as error:  # pragma: no cover
            return fail(str(error), FAILED)
        try:
            return asyncio.run(_awaited(run, options))
        except Missing as error:
            return fail(str(error), error.code)
        except errors.NotPermitted as error:
            return fail(str(error), NOT_ALLOWED)
        except errors.ConfigurationError as error:
            return fail(str(error), USAGE)
        except (errors.BridgeError, OSError) as error:
            return fail(str(error), FAILED)
        except ModuleNotFoundError as error:
            if error.name not in ("sqlalchemy", "nats"):
                raise
            return fail("A package is missing: pip install 'posthouse[bridge]'.", FAILED)
        except Exception as error:
            from posthouse.client.handling import describe

            if type(error).__module__.partition(".")[0] != "sqlalchemy":
                raise
            text = describe(error).partition("\n")[0]
            return fail(f"The database cannot be asked: {text}", FAILED)

    return guarded


async def _awaited(run: Run, options: argparse.Namespace) -> int:
    return await run(options)


def _bridge(options: argparse.Namespace, **more: Any) -> "Bridge":
    """The bridge of a module, or one by options and POSTHOUSE_BRIDGE_*. Raises Missing."""
    from posthouse.bridge.bridge import Bridge

    target = getattr(options, "target", None) or getattr(options, "bridge", None)
    given = {
        name: getattr(options, name)
        for name in ("url", "app", "database", "stream", "preset")
        if getattr(options, name, None)
    }
    if getattr(options, "destination", None):
        given["destination"] = options.destination
    if getattr(options, "push", False):
        given["mode"] = "push"
    given |= dict(getattr(options, "set", None) or ())
    if target:
        if given:
            raise Missing(f"{target} has its own settings; leave --{next(iter(given))} out.", USAGE)
        return find(target, Bridge, "posthouse.bridge.Bridge", "bridge")
    return Bridge.from_env(os.environ, **{**more, **given})


@asynccontextmanager
async def _used(options: argparse.Namespace, **more: Any) -> "AsyncIterator[Bridge]":
    bridge = _bridge(options, **more)
    bridge.connection.leave_topology()
    try:
        yield bridge
    finally:
        await bridge.close()


def _out(options: argparse.Namespace, found: object, text: str) -> int:
    say(json.dumps(found, default=_plain) if options.json else text)
    return OK


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else str(value)


# Running.


def run(options: argparse.Namespace) -> int:
    return _run(options, relay=True, consume=True)


def relay(options: argparse.Namespace) -> int:
    return _run(options, relay=True, consume=False)


def consume(options: argparse.Namespace) -> int:
    return _run(options, relay=False, consume=True)


def _run(options: argparse.Namespace, *, relay: bool, consume: bool) -> int:
    from posthouse.server.log import set_up

    set_up("json" if options.json else "auto", "info", colour="NO_COLOR" not in os.environ)
    logging.getLogger("posthouse.audit").setLevel(logging.WARNING)  # of a broker in memory

    @_command
    async def work(options: argparse.Namespace) -> int:
        bridge = _bridge(options)
        if relay and not consume and not bridge.has_storage:
            raise Missing("The bridge has no database, so there is nothing to relay.", USAGE)
        if consume and not relay and not bridge.handlers:
            raise Missing("The bridge has no handler, so there is nothing to consume.", USAGE)
        is_drained = await bridge.run(relay=relay, consume=consume)
        await bridge.close()
        if options.json:
            outcomes = bridge.figures.by_label("bridge_events_total")
            say(json.dumps({"drained": is_drained, "outcomes": outcomes,
                            "relayed": bridge.figures.value("bridge_relayed_total")}))  # fmt: skip
        if is_drained:
            return OK
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(FAILED)  # without waiting for threads in which handlers still are

    return work(options)


# Topology.


@_command
async def plan(options: argparse.Namespace) -> int:
    async with _used(options) as bridge:
        found = await bridge.plan(both_sides=options.both_sides)
    _show_plan(options, found, done=False)
    return FAILED if found.conflicts else OK


@_command
async def provision(options: argparse.Namespace) -> int:
    async with _used(options) as bridge:
        if options.dry_run:
            found = await bridge.plan(both_sides=options.both_sides)
            _show_plan(options, found, done=False)
            return FAILED if found.conflicts and not options.recreate else OK
        found = await bridge.provision(both_sides=options.both_sides, recreate=options.recreate)
    _show_plan(options, found, done=True)
    return OK


def _show_plan(options: argparse.Namespace, found: "Plan", *, done: bool) -> None:
    steps = [
        {"act": step.act, "kind": step.kind, "name": step.name, "reason": step.reason}
        for step in found.steps
    ]
    rows = [(step["act"], step["kind"], step["name"], step["reason"]) for step in steps]
    end = "Nothing differs." if not found.changes else f"{len(found.changes)} changes"
    if found.changes:
        end += " were made." if done else " would be made."
    if found.conflicts:
        end += f" {len(found.conflicts)} cannot be had as it is."
    text = f"{table(rows, ('act', 'kind', 'name', 'reason'))}\n\n{end}"
    _out(options, {"steps": steps, "done": done}, text)


@_command
async def permissions(options: argparse.Namespace) -> int:
    from posthouse.bridge.jetstream.permissions import permissions as needed

    bridge = _bridge(options)
    found = needed(
        bridge.names, bridge.settings.stream_name, push=bridge.settings.mode == "push",
        provision=options.provision, operate=options.operate, inbox=bridge.settings.inbox_prefix,
    )  # fmt: skip
    told = {"publish": list(found.publish), "subscribe": list(found.subscribe)}
    return _out(options, told, found.text(bridge.settings.app).rstrip())


@_command
async def schema(options: argparse.Namespace) -> int:
    from sqlalchemy import MetaData

    from posthouse.bridge.tables import Tables

    made = Tables.make(
        MetaData(), prefix=options.prefix, schema=options.schema or None,
        keep_payload=options.keep_payload,
    )  # fmt: skip
    text = made.ddl(options.dialect)
    return _out(options, {"dialect": options.dialect, "ddl": text}, text.rstrip())


@_command
async def health(options: argparse.Namespace) -> int:
    async with _used(options, connect_attempts=1) as bridge:
        found = await bridge.health(fresh=True)
    lines = ["Healthy." if found.healthy else "NOT healthy."]
    lines += [f"  {problem}" for problem in found.problems]
    for title, part in (("connection", found.connection), ("stream", found.stream),
                        ("consumer", found.consumer), ("outbox", found.outbox),
                        ("inbox", found.inbox), ("dead letters", found.dead_letters)):  # fmt: skip
        if part:
            lines += ["", title, *(f"  {name:<20} {value}" for name, value in part.items())]
    _out(options, found.as_dict(), "\n".join(map(printable, lines)))
    return OK if found.healthy else FAILED


# Tables.


@_command
async def outbox_ls(options: argparse.Namespace) -> int:
    from posthouse.bridge.views import outbox_lines

    async with _used(options, app=NOBODY, destination="nobody") as bridge:
        storage = bridge.storage
        found = await storage.database.run(
            lambda connection: outbox_lines(
                connection, storage.tables, status=options.status or "", limit=options.count
            )
        )
    rows = [
        (row.id, row.event_id, row.status, row.event_type, row.key, row.attempts,
         f"{row.enqueued_at:%Y-%m-%d %H:%M:%S}", row.last_error)
        for row in found
    ]  # fmt: skip
    heads = ("id", "event", "status", "type", "key", "attempts", "written", "error")
    return _out(options, [asdict(row) for row in found], table(rows, heads))


@_command
async def outbox_retry(options: argparse.Namespace) -> int:
    from posthouse.bridge.views import retry

    return await _change_outbox(options, retry, "sent again", "retry")


@_command
async def outbox_drop(options: argparse.Namespace) -> int:
    from posthouse.bridge.views import drop

    return await _change_outbox(options, drop, "removed", "drop")


async def _change_outbox(
    options: argparse.Namespace, change: Callable[..., int], done: str, name: str
) -> int:
    from posthouse.bridge.views import count_refused

    ids: Sequence[str] | None = options.ids or None
    async with _used(options, app=NOBODY, destination="nobody") as bridge:
        storage = bridge.storage
        if ids is None and not options.yes:
            count = await storage.database.run(lambda c: count_refused(c, storage.tables))
            text = f"{count} refused events would be {done}."
            if count:
                text += f" To do it: posthouse bridge outbox {name} --yes"
            return _out(options, {"events": count, "done": False}, text)
        count = await storage.database.run(lambda c: change(c, storage.tables, ids))
    if ids is not None and not count:
        raise Missing("There is no refused event of that id in the outbox.")
    return _out(options, {"events": count, "done": True}, f"{count} events were {done}.")


@_command
async def inbox_ls(options: argparse.Namespace) -> int:
    from posthouse.bridge.views import inbox_lines

    async with _used(options, app=NOBODY, destination="nobody") as bridge:
        storage = bridge.storage
        found = await storage.database.run(
            lambda connection: inbox_lines(
                connection, storage.tables, consumer=options.consumer or "",
                status=options.status or "", limit=options.count,
            )
        )  # fmt: skip
    rows = [
        (row.consumer, row.event_id, row.status, row.event_type, row.deliveries,
         f"{row.received_at:%Y-%m-%d %H:%M:%S}", row.error)
        for row in found
    ]  # fmt: skip
    heads = ("consumer", "event", "status", "type", "deliveries", "received", "error")
    return _out(options, [asdict(row) for row in found], table(rows, heads))


# Dead letters.


async def _letters(
    bridge: "Bridge", options: argparse.Namespace, limit: int | None = None
) -> "list[DeadLetter]":
    """Finds the dead letters that the options choose."""
    wanted = bridge.topology()
    progress = Progress("Dead letters")
    try:
        return await bridge.dead_letters(
            wanted, lambda letter: _chosen(letter, options), limit, progress.show
        )
    finally:
        progress.end()


def _chosen(letter: "DeadLetter", options: argparse.Namespace) -> bool:
    context = letter.context
    return (
        getattr(options, "reason", None) in (None, letter.reason)
        and getattr(options, "type", None) in (None, context.get("event_type"))
        and getattr(options, "error", None) in (None, context.get("error_class"))
        and (not getattr(options, "ids", None) or _id(letter) in options.ids)
    )


def _id(letter: "DeadLetter") -> str:
    return str(letter.context.get("event_id") or letter.place)


def _letter(letter: "DeadLetter") -> dict[str, Any]:
    return {
        "event_id": _id(letter), "place": letter.place, "reason": letter.reason,
        "deliveries": letter.deliveries, "subject": letter.subject, "context": dict(letter.context),
        "headers": dict(letter.headers), "body": letter.body.decode(errors="backslashreplace"),
    }  # fmt: skip


@_command
async def dlq_ls(options: argparse.Namespace) -> int:
    async with _used(options) as bridge:
        found = await _letters(bridge, options, options.count)
    rows = [
        (_id(letter), letter.reason, letter.context.get("event_type"), letter.deliveries,
         letter.subject, letter.context.get("error_class"))
        for letter in found
    ]  # fmt: skip
    heads = ("event", "reason", "type", "deliveries", "subject", "error")
    return _out(options, [_letter(letter) for letter in found], table(rows, heads))


@_command
async def dlq_show(options: argparse.Namespace) -> int:
    options.ids = [options.id]
    async with _used(options) as bridge:
        found = await _letters(bridge, options, 1)
    if not found:
        raise Missing(f"There is no dead letter of the event {options.id}.", NOT_FOUND)
    told = _letter(found[0])
    lines = [
        f"{name:<18} {printable(str(value))[:BODY_SHOWN_CHARS]}"
        for name, value in (told | told.pop("context")).items()
    ]
    return _out(options, _letter(found[0]), "\n".join(lines))


@_command
async def dlq_replay(options: argparse.Namespace) -> int:
    return await _change_letters(options, "replayed", "replay")


@_command
async def dlq_drop(options: argparse.Namespace) -> int:
    return await _change_letters(options, "removed", "drop")


async def _change_letters(options: argparse.Namespace, done: str, name: str) -> int:
    async with _used(options) as bridge:
        found = await _letters(bridge, options)
        if not options.yes:
            text = f"{len(found)} dead letters would be {done}."
            if found:
                text += f" To do it: posthouse bridge dlq {name} ... --yes"
            ids = [_id(letter) for letter in found]
            return _out(options, {"events": len(found), "ids": ids, "done": False}, text)
        if options.ids and not found:
            raise Missing(f"There is no dead letter of the event {options.ids[0]}.", NOT_FOUND)
        progress = Progress(f"Dead letters {done}")
        for at, letter in enumerate(found):
            if name == "replay":
                await bridge.replay(letter)
            else:
                await bridge.drop(letter)
            progress.show(at + 1, len(found))
        progress.end()
    text = f"{len(found)} dead letters were {done}."
    return _out(options, {"events": len(found), "done": True}, text)


# Measuring.


@_command
async def bench(options: argparse.Namespace) -> int:
    from posthouse.bridge.measuring import measure

    progress = Progress("Events")
    try:
        found = await measure(
            options.url or "memory://", options.database, events=options.events,
            size=options.size, concurrency=options.concurrency, batch=options.batch,
            told=progress.show,
        )  # fmt: skip
    finally:
        progress.end()
    lines = [
        f"{found.events:,} events of {found.size:,} bytes over {found.transport}",
        f"  written to the outbox   {found.written_rate:>10,.0f} a second",
        f"  relayed                 {found.relayed_rate:>10,.0f} a second",
        f"  handled, with an inbox  {found.handled_rate:>10,.0f} a second",
        f"  commit to handled, one at a time: p50 {found.p50_ms:.1f} ms, p99 {found.p99_ms:.1f} ms",
    ]
    told = {**asdict(found), "time": datetime.now(UTC).isoformat()}
    return _out(options, told, "\n".join(lines))
