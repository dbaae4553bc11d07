"""One run of a bridge: its relay and its consumers, from their start until they are drained."""

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from posthouse.bridge.connection import Connection
from posthouse.bridge.consuming import Intake
from posthouse.bridge.figures import Figures
from posthouse.bridge.handling import Handler, Middleware
from posthouse.bridge.hooks import Hooks
from posthouse.bridge.processing import Guard, Processing
from posthouse.bridge.transport import Source, Transport

_log = logging.getLogger("posthouse.bridge")


@dataclass(frozen=True)
class Route:
    """A source, the handler of its events, and what guards its effects."""

    source: Source
    handler: Handler
    guard: Guard


class Consumers:
    """The intakes of all routes of a bridge, and the threads of its plain handlers."""

    def __init__(
        self,
        connection: Connection,
        transport: Transport,
        routes: Sequence[Route],
        middleware: Sequence[Middleware],
        figures: Figures,
        hooks: Hooks,
    ) -> None:
        self._connection = connection
        hands = asyncio.get_running_loop()
        plain = sum(
            route.handler.options.concurrency for route in routes if not route.handler.is_async
        )
        self._pool = ThreadPoolExecutor(max(1, plain), "posthouse-bridge-handler")
        self._intakes = []
        for route in routes:
            processing = Processing(
                route.handler,
                middleware,
                route.guard,
                figures,
                hands,
                self._pool,
                hooks.crash_point,
            )
            self._intakes.append(
                Intake(
                    transport, route.source, route.handler, read=processing.read,
                    handle=processing.handle, note=processing.note, pace=hooks.pace,
                )
            )  # fmt: skip
        self._is_drained = True

    @property
    def unsettled(self) -> int:
        return sum(intake.unsettled for intake in self._intakes)

    async def start(self) -> None:
        async def there() -> None:
            for intake in self._intakes:
                intake.start()

        await self._connection.loop_thread.call(there())
        subjects = [intake.source.subject for intake in self._intakes]
        _log.info("Handling events of %s.", ", ".join(subjects),
                  extra={"event": "bridge.consuming", "subjects": subjects})  # fmt: skip

    async def drain(self, seconds: float) -> bool:
        """Fetches nothing more, and waits for the handlers. Returns whether all came to an end."""

        async def there() -> bool:
            return all(await asyncio.gather(*[intake.drain(seconds) for intake in self._intakes]))

        ended = await self._connection.loop_thread.call(there())
        self._pool.shutdown(wait=ended, cancel_futures=True)
        _log.info("Every handler came to its end." if ended else
                  "Some handlers did not come to their end.",
                  extra={"event": "bridge.drained", "drained": ended})  # fmt: skip
        return ended
