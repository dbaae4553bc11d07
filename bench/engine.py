"""The engine with synced answers, against this machine's limit in the same run.

python -m bench.engine
"""

import asyncio
import tempfile
from functools import partial
from pathlib import Path
from statistics import median

from bench.limit import BODY, CASES, limit_rate, rate
from posthouse.broker.access import BROKER
from posthouse.broker.clock import SystemClock
from posthouse.broker.engine import Engine
from posthouse.core.commands import CreateQueue, Send
from posthouse.core.message import Envelope, NewMessage, encode_envelope
from posthouse.core.namespaces import CreateNamespace
from posthouse.store.file import FileStore

NS = "bench"
GOALS = {(100, 8): 0.4, (1, 256): 0.55}  # by messages in a send, and sends outstanding
ROUNDS = 9


async def engine_rate(folder: Path, messages: int, outstanding: int) -> float:
    engine = await Engine.open(FileStore(folder / "journal"), SystemClock(), salt=1)
    await engine.ask(BROKER, "", CreateNamespace(NS, engine.epoch, 1))
    await engine.ask(BROKER, NS, CreateQueue("q"))
    message = NewMessage(encode_envelope(Envelope(id="a" * 32)), BODY)
    send = partial(engine.ask, BROKER, NS, Send("q", [message] * messages))
    found = await rate(send, messages, outstanding)
    await engine.close()
    return found


def main() -> None:
    for messages, outstanding in CASES:
        pairs = []
        for _ in range(ROUNDS):  # turn about: this machine is not always equally fast
            with tempfile.TemporaryDirectory(dir=".") as name:
                folder = Path(name)
                limit = asyncio.run(limit_rate(folder, messages, outstanding))
                pairs.append((asyncio.run(engine_rate(folder, messages, outstanding)), limit))
        part = median(engine / limit for engine, limit in pairs)
        goal = GOALS[messages, outstanding]
        verdict = "reached" if part >= goal else "MISSED"
        print(
            f"{messages} in a send, {outstanding} outstanding: {median(e for e, _ in pairs):,.0f}"
            f" against {median(limit for _, limit in pairs):,.0f} messages a second, {part:.0%}"
            f" in the middle of {ROUNDS} pairs; goal {goal:.0%} {verdict}"
        )


if __name__ == "__main__":
    main()
