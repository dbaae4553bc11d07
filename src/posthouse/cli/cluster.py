"""`posthouse cluster`: to set one up, to look at it, and to tell its nodes what to do."""

import argparse
import json
import secrets
import shlex
from collections.abc import Callable
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from posthouse.cli.client import Client, Failure
from posthouse.cli.codes import FAILED, OK, USAGE, fail, say
from posthouse.cli.remote import out, remote
from posthouse.cli.show import Progress, ago, printable, size, table
from posthouse.server.cluster_plan import NAME, Plan, parse_machines, written
from posthouse.server.config import BadConfig
from posthouse.server.files import keep_secret
from posthouse.server.nats_files import permissions as nats_permissions

CONFIG, SECRET = "cluster.yaml", "cluster.secret"
DEGRADED, NO_LEADER = 1, 2  # exit codes of `status`
UNAVAILABLE = 503


# Setting one up.


def init(options: argparse.Namespace) -> int:
    folder: Path = options.to
    config, secret = folder / CONFIG, folder / SECRET
    if NAME.fullmatch(options.name) is None:
        return fail("--name must be 1 to 32 letters, digits, - or _.", USAGE)
    try:
        plan = Plan(options.name, parse_machines(options.machines), secret)
    except BadConfig as error:
        return fail(str(error), USAGE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if config.exists():
            return fail(f"{config} is there already; a cluster keeps its secret.", FAILED)
        keep_secret(secret, secrets.token_hex(32).encode() + b"\n", replace=False)
        config.write_text(written(plan, SECRET), encoding="utf-8")
    except FileExistsError:
        return fail(f"{secret} is there already; a cluster keeps its secret.", FAILED)
    except OSError as error:
        return fail(f"{error.filename} cannot be written: {error.strerror}.", FAILED)
    runs = {
        machine.node: f"posthouse cluster up --config {CONFIG} --node {machine.node}"
        for machine in plan.machines
    }
    if options.json:
        say(json.dumps({"config": str(config), "secret": str(secret), "run": runs}))
        return OK
    copied = " ".join(shlex.quote(str(each)) for each in (config, secret))
    lines = [
        f"{config} has the machines, {secret} the secret that they share: keep it like a key.",
        "",
        "Copy both files to every machine, and run there:",
        "",
        *(f"  {each.host:<20}  {runs[each.node]}" for each in plan.machines),
        "",
        f"As in: scp -p {copied} {plan.machines[-1].host}:",
        "",
        "Then, on any of them:",
        "",
        f"  export POSTHOUSE_URL=https://{plan.machines[0].url}"
        " POSTHOUSE_CA=posthouse-data/tls/ca.pem",
        "  posthouse cluster status --key-file posthouse-data/root-key",
    ]
    say("\n".join(lines))
    return OK


def permissions(options: argparse.Namespace) -> int:
    for text in (options.name, options.node):
        if NAME.fullmatch(text) is None:
            return fail("Names must be 1 to 32 letters, digits, - or _.", USAGE)
    found = nats_permissions(options.name, options.node)
    if options.json:
        say(json.dumps(found))
        return OK
    lines = [f"# For the user of the node {options.node} of the cluster {options.name}."]
    lines.append("permissions {")
    for verb, rules in found.items():
        lines.append(f"  {verb} {{")
        lines.append("    allow: [")
        lines += [f"      {json.dumps(subject)}" for subject in rules["allow"]]
        lines += ["    ]", "  }"]
    say("\n".join([*lines, "}"]))
    return OK


# Looking at one.


@remote
def status(client: Client, options: argparse.Namespace) -> int:
    try:
        found = client.ask("GET", "/cluster")
    except Failure as failure:
        if failure.status != UNAVAILABLE:
            raise
        return _tell_not_joined(options, failure)
    say(json.dumps(found) if options.json else shown(found))
    return {"well": OK, "degraded": DEGRADED, "no leader": NO_LEADER}[found["level"]]


def _tell_not_joined(options: argparse.Namespace, failure: Failure) -> int:
    """Tells of a node that waits for most NATS servers: nobody leads as far as it knows."""
    do = "start the NATS servers that are down; /health/startup says which do not answer"
    if options.json:
        troubles = [{"what": str(failure), "do": do}]
        say(json.dumps({"level": "no leader", "leader": None, "troubles": troubles}))
        return NO_LEADER
    return fail(f"{failure}\nto do: {do}", NO_LEADER)


def shown(found: dict[str, Any]) -> str:
    """The status for people."""
    leads = "no leader"
    if found["leader"] is not None:
        leads = f"leader {found['leader']}"
        if found["leads_ms"] is not None:
            leads += f" for {ago(found['leads_ms'])}"
    lines = [
        f"cluster {printable(found['cluster'])}, epoch {found['epoch']}, {printable(leads)},"
        f" position {found['position']:,}",
        table([_row(node) for node in found["nodes"]],
              ("node", "role", "position", "behind", "clock", "folder", "version", "address")),
    ]  # fmt: skip
    stream = found["stream"]
    if stream is None:
        lines.append("stream: the NATS servers do not answer")
    else:
        lines.append(
            f"stream: led by {printable(stream['leader']) or 'none'};"
            f" {stream['current']} of {stream['replicas']} replicas current;"
            f" {size(stream['size_bytes'])} of {size(stream['max_bytes'])};"
            f" synced: {stream['synced']}"
        )
    for trouble in found["troubles"]:
        lines += [f"! {printable(trouble['what'])}", f"  to do: {printable(trouble['do'])}"]
    return "\n".join(lines)


def _row(node: dict[str, Any]) -> tuple[object, ...]:
    leads, silent = node["role"] == "leader", node["role"] == "silent"
    clock, free = node["clock_ms"], node["free_percent"]
    behind = "-" if leads or node["behind_ms"] is None else f"{node['behind_ms']} ms"
    if silent:
        behind = f"silent {ago(node['heard_ms'])}"
    return (
        node["node"], node["role"], f"{node['position']:,}", behind,
        "-" if leads or clock is None else f"{clock:+d} ms",
        "-" if free is None else f"{free} % free", node["version"], node["url"],
    )  # fmt: skip


# Telling its nodes what to do.


@remote
def step_down(client: Client, options: argparse.Namespace) -> int:
    found = client.ask("POST", "/cluster/step-down", {"to": options.to})
    return out(options, found, f"{found['from']} hands over to {found['to'] or 'the others'}.")


@remote
def forget(client: Client, options: argparse.Namespace) -> int:
    client.ask("POST", "/cluster/forget", {"node": options.node})
    return out(
        options,
        {"forgotten": options.node},
        f"{options.node} is forgotten, until it says hello again.",
    )


@remote
def hold(client: Client, options: argparse.Namespace) -> int:
    if options.release:
        client.ask("DELETE", "/cluster/hold")
        return out(options, {"held": False}, "The cluster goes on.")
    found = client.ask("POST", "/cluster/hold", {"seconds": options.lasts / 1_000})
    return out(
        options, {"held": True, **(found or {})},
        f"Writing is held for {ago(options.lasts)}, or until `posthouse cluster hold --release`.",
    )  # fmt: skip


@remote
def verify(client: Client, options: argparse.Namespace) -> int:
    """Compares all nodes that are there, over the positions that all of them have."""
    there = [node["node"] for node in client.ask("GET", "/cluster")["nodes"]
             if node["role"] != "silent"]  # fmt: skip
    ask = partial(client.ask, "GET", "/cluster/checksums")
    ranges = {node: ask(node=node, first=0, end=0) for node in there}
    first = max(each["first"] for each in ranges.values())
    end = min(each["end"] for each in ranges.values())
    progress, at, frames = Progress("compared"), first, 0
    while at < end:
        found = {node: ask(node=node, first=at, end=end) for node in there}
        for node, answer in found.items():
            if answer["damage"]:
                return _differs(options, {"node": node, "damage": answer["damage"]},
                                f"The folder of {node} is damaged: {answer['damage']}")  # fmt: skip
        chunks = [answer["chunks"] for answer in found.values()]
        for same in zip_longest(*chunks):
            if any(chunk != same[0] for chunk in same):
                return _tell_first(options, ask, there, at, end)
            at, frames = (
                same[0]["end"],
                frames + same[0]["last_number"] - same[0]["first_number"] + 1,
            )
        if not chunks[0]:
            break
        progress.show(at - first, end - first)
    progress.end()
    told = {"nodes": there, "first": first, "end": at, "frames": frames, "agree": True}
    return out(options, told, f"{', '.join(there)} agree: {frames:,} frames,"
               f" positions {first:,} to {at - 1:,}.")  # fmt: skip


def _tell_first(
    options: argparse.Namespace, ask: Callable[..., Any], nodes: list[str], at: int, end: int
) -> int:
    """Tells of the first frame from a position on that is not the same everywhere."""
    while True:
        found = {node: ask(node=node, first=at, end=end, each=True) for node in nodes}
        for same in zip_longest(*(answer["chunks"] for answer in found.values())):
            if any(chunk != same[0] for chunk in same):
                has = {
                    node: None if chunk is None else chunk
                    for node, chunk in zip(found, same, strict=True)
                }
                number = min(chunk["first_number"] for chunk in same if chunk is not None)
                told = ", ".join(
                    f"{node} has {'nothing' if chunk is None else format(chunk['crc'], '08x')}"
                    for node, chunk in has.items()
                )
                return _differs(options, {"number": number, "position": at, "has": has},
                                f"Frame {number} at position {at:,} differs: {told}.")  # fmt: skip
            at = same[0]["end"]
        if at >= end or not any(answer["chunks"] for answer in found.values()):
            return _differs(options, {"position": at}, "The nodes differed, and do not any more.")


def _differs(options: argparse.Namespace, found: dict[str, Any], text: str) -> int:
    if options.json:
        say(json.dumps({"agree": False, **found}))
        return FAILED
    return fail(
        f"{text}\nKeep the folders as they are; stop the node that differs from the others, move"
        " its data folder away, and start it: it copies a folder from another node.", FAILED,
    )  # fmt: skip
