"""How long a start takes, and what an idle broker holds.

    python -m bench.start

From the command to the first acknowledged message on an empty store, `posthouse --help`, and the
memory of an idle broker; each beside a bare interpreter's start in the same run. Of several runs
the middle one counts.
"""

import contextlib
import http.client
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 9
POSTHOUSE = str(Path(sys.executable).with_name("posthouse"))
SEND = "/api/v1/namespaces/default/queues/q/messages"
BODY = b'{"messages": [{"body": "x"}]}'


def a_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# Bytecode is written by the first start, as it is wherever that is not forbidden.
FORBIDS = "PYTHONDONTWRITEBYTECODE"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != FORBIDS}


def timed(*command: str) -> float:
    begun = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT, check=True)
    return time.perf_counter() - begun


def first_message() -> tuple[float, int]:
    """Seconds to the first acknowledged message, and the bytes that are resident a while later."""
    folder, port = tempfile.mkdtemp(), a_free_port()
    command = [POSTHOUSE, "serve", "--data", f"{folder}/data", "--dev", "--auto-create",
               "--port", str(port), "--log-level", "error"]  # fmt: skip
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT) as process:
        while True:
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                headers = {"content-type": "application/json"}
                connection.request("POST", SEND, BODY, headers)
                status = connection.getresponse().status
                connection.close()
                if status == 201:
                    break
            time.sleep(0.002)
        seconds = time.perf_counter() - begun
        time.sleep(2.5)  # until its certificate is made, too
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
        process.terminate()
    shutil.rmtree(folder)
    return seconds, pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    bare, help_, first, resident = [], [], [], []
    first_message()
    for _ in range(RUNS):
        bare.append(timed(sys.executable, "-c", "pass"))
        help_.append(timed(POSTHOUSE, "--help"))
        seconds, size = first_message()
        first.append(seconds)
        resident.append(size)
    middle = statistics.median
    base = middle(bare)
    print(f"a bare interpreter:           {base * 1000:6.0f} ms")
    for what, found, goal in (
        ("posthouse --help", middle(help_), 150),
        ("start to first acknowledged", middle(first), 400),
    ):
        print(f"{what + ':':<29} {found * 1000:6.0f} ms, {found / base:.1f} times that; goal: below"
              f" {goal} ms")  # fmt: skip
    print(f"memory of an idle broker:     {middle(resident) / 1e6:6.0f} MB; goal: below 70 MB")


if __name__ == "__main__":
    main()
