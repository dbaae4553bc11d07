"""The engine with synced answers, against this machine's limit in the same run.

python -m bench.engine
"""

import asyncio
import tempfile
from pathlib import Path

from bench.limit import BODY, CASES, limit_rates, rate
from posthouse.broker.access import BROKER
from posthouse.broker.clock import SystemClock
from posthouse.broker.engine import Engine
from posthouse.core.commands import CreateQueue, Send
from posthouse.core.message import Envelope, NewMessage, encode_envelope
from posthouse.core.namespaces import CreateNamespace
from posthouse.store.file import FileStore

NS = "bench"
GOAL = 0.4


async def engine_rates(folder: Path) -> list[float]:
    engine = await Engine.open(FileStore(folder / "journal"), SystemClock(), salt=1)
    await engine.ask(BROKER, "", CreateNamespace(NS, engine.epoch, 1))
    message = NewMessage(encode_envelope(Envelope(id="a" * 32)), BODY)
    rates = []
    for number, (messages, outstanding) in enumerate(CASES):
        await engine.ask(BROKER, NS, CreateQueue(f"q{number}"))
        command = Send(f"q{number}", [message] * messages)

        async def send(command: Send = command) -> None:
            await engine.ask(BROKER, NS, command)

        rates.append(await rate(send, messages, outstanding))
    await engine.close()
    return rates


def main() -> None:
    best = [[0.0, 0.0] for _ in CASES]
    for _ in range(3):
        with tempfile.TemporaryDirectory(dir=".") as folder:
            limits = asyncio.run(limit_rates(Path(folder)))
            engines = asyncio.run(engine_rates(Path(folder)))
        for at, pair in enumerate(zip(limits, engines, strict=True)):
            best[at] = [max(old, new) for old, new in zip(best[at], pair, strict=True)]
    for (messages, outstanding), (limit, engine) in zip(CASES, best, strict=True):
        part = engine / limit
        verdict = "reached" if part >= GOAL else "MISSED"
        print(
            f"{messages} in a send, {outstanding} outstanding: {engine:,.0f} against {limit:,.0f}"
            f" messages a second, {part:.0%}; goal {GOAL:.0%} {verdict}"
        )


if __name__ == "__main__":
    main()
