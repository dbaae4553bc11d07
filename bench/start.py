"""How long a start takes, and what an idle broker holds.

    python -m bench.start

From the command to the first acknowledged message on an empty store, `posthouse --help`, and the
memory of an idle broker; each beside a bare interpreter's start in the same run. Then what the
first administration request takes more than the second, over each API: as soon as the broker is
ready, and when it has been idle. Of several runs the middle one counts.
"""

import contextlib
import hmac
import http.client
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote_plus

RUNS = 9
FIRST_GOAL_MS = 20
IDLE_SECONDS = 3.0
POSTHOUSE = str(Path(sys.executable).with_name("posthouse"))
SEND = "/api/v1/namespaces/default/queues/q/messages"
BODY = b'{"messages": [{"body": "x"}]}'
ENTRY = (
    b'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription'
    b' xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/></content>'
    b"</entry>"
)
# By API: the path that makes a queue, what is said there, and the kind of it.
ADMINISTRATION = {
    "our API": ("/api/v1/namespaces/default/queues/", b"{}", "application/json"),
    "Service Bus": ("/", ENTRY, "application/atom+xml"),
    "LocalZure's API": ("/servicebus/queues/", b"", "application/xml"),
}


def a_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def signature() -> str:
    """A shared access signature with the key of --dev, for a server that is called localhost."""
    scope, expires = quote_plus("http://localhost/"), str(int(time.time()) + 36_000)
    signed = hmac.new(b"SAS_KEY_VALUE", f"{scope}\n{expires}".encode(), sha256).digest()
    return (f"SharedAccessSignature sr={scope}&sig={quote_plus(b64encode(signed))}&se={expires}"
            "&skn=RootManageSharedAccessKey")  # fmt: skip


# Bytecode is written by the first start, as it is wherever that is not forbidden.
FORBIDS = "PYTHONDONTWRITEBYTECODE"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != FORBIDS}


def timed(*command: str) -> float:
    begun = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT, check=True)
    return time.perf_counter() - begun


@contextlib.contextmanager
def started() -> Iterator[tuple[int, int]]:
    """The port and the process of a broker that has acknowledged a message."""
    folder, port = tempfile.mkdtemp(), a_free_port()
    command = [POSTHOUSE, "serve", "--data", f"{folder}/data", "--dev", "--auto-create",
               "--port", str(port), "--log-level", "error"]  # fmt: skip
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
        try:
            yield port, process.pid
        finally:
            process.terminate()
    shutil.rmtree(folder)


def first_message() -> tuple[float, int]:
    """Seconds to the first acknowledged message, and the bytes that are resident a while later."""
    begun = time.perf_counter()
    with started() as (_, process):
        seconds = time.perf_counter() - begun
        time.sleep(2.5)  # until its certificate is made, too
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return seconds, pages * os.sysconf("SC_PAGE_SIZE")


def first_administration(api: str, idle_seconds: float) -> float:
    """Seconds by which the first request takes longer than the second."""
    path, body, kind = ADMINISTRATION[api]
    with started() as (port, _):
        time.sleep(idle_seconds)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        headers = {"content-type": kind, "host": "localhost"}
        if api == "Service Bus":
            headers["authorization"] = signature()
        times = []
        for name in ("first", "second"):
            begun = time.perf_counter()
            connection.request("PUT", path + name, body, headers)
            answer = connection.getresponse()
            told = answer.read()
            times.append(time.perf_counter() - begun)
            assert answer.status in (200, 201), told
        connection.close()
    return times[0] - times[1]


def administration() -> None:
    for api in ADMINISTRATION:
        for when, idle_seconds in (("at once", 0.0), ("after idle time", IDLE_SECONDS)):
            found = [first_administration(api, idle_seconds) * 1e3 for _ in range(RUNS)]
            more = statistics.median(found)
            verdict = "reached" if more <= FIRST_GOAL_MS else "MISSED"
            print(f"first administration request over {api}, {when}: {more:.0f} ms more than the"
                  f" second; goal {FIRST_GOAL_MS} ms {verdict}", flush=True)  # fmt: skip


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
    administration()


if __name__ == "__main__":
    main()
