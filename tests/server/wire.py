"""Connections to a broker, as the kernel sees them."""

import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

from tests.server.running import Running

FOREVER_SECONDS = 15


def connect(broker: Running) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", broker.port), timeout=20)
    made.settimeout(20)
    return made


def connect_narrowly(broker: Running) -> socket.socket:
    """Takes no more than it reads."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    made.settimeout(20)
    made.connect(("127.0.0.1", broker.port))
    return made


def trusting_all() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def on_the_way(broker: Running, made: socket.socket) -> int:
    """Bytes that the kernel has, in both directions."""
    return sum(size for size, _ in _ends(broker, made))


def is_let_go(broker: Running, made: socket.socket) -> bool:
    """The broker has closed its end, be it that the kernel still has something to send.

    It must have answered before: what is not accepted yet looks the same.
    """
    deadline = time.monotonic() + FOREVER_SECONDS
    while time.monotonic() < deadline:
        if sum(number > 0 for _, number in _ends(broker, made)) < 2:
            return True
        time.sleep(0.02)  # slept: between two looks
    return False


def _ends(broker: Running, made: socket.socket) -> Iterator[tuple[int, int]]:
    """Of both: the bytes in it, and its number, 0 where no process has it."""
    ports = {made.getsockname()[1], broker.port}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if {int(each.partition(":")[2], 16) for each in fields[1:3]} == ports:
            yield sum(int(each, 16) for each in fields[4].split(":")), int(fields[9])
