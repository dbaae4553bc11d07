"""The same bridge for programs without an event loop: each method waits for that of its twin.

Nothing is written twice: a call runs on a loop in a thread of its own. Async handlers run there,
too, and do not hold up the connection, whose loop is another.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from posthouse.bridge.publishing import NewEvent, Published
from posthouse.bridge.transport import Plan

if TYPE_CHECKING:
    from posthouse.bridge.bridge import Bridge
    from posthouse.bridge.health import Health

T = TypeVar("T")


class SyncBridge:
    """`Bridge` for programs without an event loop: each method waits until it is done.

    Example:
        bridge.sync.publish("order.created", {"id": 7})
    """

    def __init__(self, twin: "Bridge") -> None:
        self._twin = twin

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._twin.connection.hands.run(work)

    def plan(self, *, both_sides: bool = False) -> Plan:
        """Returns what `provision` would do, and conflicts.

        Example:
            print(bridge.sync.plan().changes)
        """
        return self._wait(self._twin.plan(both_sides=both_sides))

    def provision(self, *, both_sides: bool = False, recreate: bool = False) -> Plan:
        """Creates and updates what the bridge needs of its transport.

        Example:
            bridge.sync.provision(both_sides=True)
        """
        return self._wait(self._twin.provision(both_sides=both_sides, recreate=recreate))

    def create_tables(self) -> None:
        """Creates the tables of the bridge that are not there; for tests and first steps.

        Example:
            bridge.sync.create_tables()
        """
        self._wait(self._twin.create_tables())

    def check(self) -> list[str]:
        """Returns what is wrong with the tables and the times, as sentences.

        Example:
            print(bridge.sync.check())
        """
        return self._wait(self._twin.check())

    def health(self, *, fresh: bool = False) -> "Health":
        """Returns how the bridge, its transport and its tables are.

        Example:
            print(bridge.sync.health().healthy)
        """
        return self._wait(self._twin.health(fresh=fresh))

    def close(self) -> None:
        """Closes the connection; the next use opens it again.

        Example:
            bridge.sync.close()
        """
        self._wait(self._twin.close())

    def publish(
        self, type: str, payload: Any, *, key: str = "", resource_type: str = "",
        resource_id: str = "", event_id: str = "", destination: str = "", subject: str = "",
        headers: Mapping[str, str] | None = None, delay: float = 0.0,
    ) -> Published:  # fmt: skip
        """Publishes an event to the transport, and waits until it is stored.

        The parameters are those of `Bridge.publish`, which needs no waiting with a session. Raises
        PublishFailed, TooLarge, NotPermitted.

        Example:
            print(bridge.sync.publish("order.created", {"id": 7}).event_id)
        """
        new = NewEvent(
            type, payload, key, resource_type, resource_id, event_id, destination, subject,
            headers or {}, delay,
        )  # fmt: skip
        [published] = self.publish_many([new])
        return published

    def publish_many(self, events: Sequence[NewEvent]) -> list[Published]:
        """Publishes `events` to the transport, and waits until they are stored.

        Raises PartialFailure if only some could be published.

        Example:
            bridge.sync.publish_many([NewEvent("order.created", {"id": n}) for n in range(10)])
        """
        return self._wait(self._twin.publish_all(events))

    def running(self) -> AbstractContextManager["SyncBridge"]:
        """Runs the relay and the consumers in threads, for the length of a `with` block.

        Example:
            with bridge.sync.running():
                input("Return stops it.")
        """
        return self._enter(self._twin.running)

    def relaying(self) -> AbstractContextManager["SyncBridge"]:
        """Runs the relay alone in threads, for the length of a `with` block.

        Example:
            with bridge.sync.relaying():
                input("Return stops it.")
        """
        return self._enter(self._twin.relaying)

    def consuming(self) -> AbstractContextManager["SyncBridge"]:
        """Runs the consumers alone in threads, for the length of a `with` block.

        Example:
            with bridge.sync.consuming():
                input("Return stops it.")
        """
        return self._enter(self._twin.consuming)

    @contextmanager
    def _enter(
        self, make: "Callable[[], AbstractAsyncContextManager[Bridge]]"
    ) -> Iterator["SyncBridge"]:
        hold = self._wait(_made(make))
        self._wait(hold.__aenter__())
        try:
            yield self
        finally:
            self._wait(hold.__aexit__(None, None, None))


async def _made(make: Callable[[], T]) -> T:
    return make()
