"""`posthouse cluster secret` and `posthouse cluster found`: a cluster that begins with a folder."""

import argparse
import json
from pathlib import Path

from posthouse.cli.codes import FAILED, NOT_FOUND, OK, USAGE, fail, say
from posthouse.cli.store import told


@told
def secret(options: argparse.Namespace) -> int:
    from posthouse.server.exported_keys import export_secret
    from posthouse.server.files import keep_secret
    from posthouse.server.host import ROOT_KEY, SEAL_KEY

    folder: Path = options.data
    if not folder.is_dir():
        return fail(f"There is no folder {folder}; check the name.", NOT_FOUND)
    try:
        keep_secret(options.file, export_secret(folder, ROOT_KEY, SEAL_KEY), replace=False)
    except FileExistsError:
        return fail(f"{options.file} is there already; a cluster keeps its secret.", FAILED)
    if options.json:
        say(json.dumps({"secret": str(options.file)}))
        return OK
    say(f"{options.file} is the secret of a cluster that begins with {folder}, and keeps its keys."
        " Give it to every node as --cluster-secret, and keep it like a key.")  # fmt: skip
    return OK


@told
def found(options: argparse.Namespace) -> int:
    import asyncio

    from posthouse.dialects.settings import BadSetting, some_size
    from posthouse.server.founding import Where, found_anew
    from posthouse.store.log import Unanswered
    from posthouse.store.nats import Servers

    if options.store.kind != "nats":
        return fail("The log of a cluster is a store nats://HOST,...", USAGE)
    if not options.data.is_dir():
        return fail(f"There is no folder {options.data}; check the name.", NOT_FOUND)
    try:
        max_bytes = some_size(options.log_window)
    except BadSetting as error:
        return fail(f"--log-window {error}.", USAGE)
    hosts = options.store.rest.removeprefix("//").split(",")
    urls = tuple(f"nats://{host}" for host in hosts)
    servers = Servers(urls, options.nats_creds, options.nats_ca, f"{options.cluster}-found")
    where = Where(servers, options.cluster, options.replicas, max_bytes)
    try:
        done = asyncio.run(found_anew(options.data, where, replace=options.replace_log))
    except Unanswered as error:
        return fail(f"{error}.", FAILED)
    if options.json:
        say(json.dumps({"frame": done.number, "replaced": done.replaced}))
        return OK
    if done.replaced is not None:
        say(f"The log that ended at frame {done.replaced} was removed.")
    say(f"The log of {options.cluster} begins behind frame {done.number}. Start the node of"
        f" {options.data} first; the others copy what they lack.")  # fmt: skip
    return OK
