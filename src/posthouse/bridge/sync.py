"""The same bridge for programs without an event loop: each method waits for that of its twin.

Nothing is written twice: a call runs on a loop in a thread of its own. Async handlers run there,
too, and do not hold up the connection, whose loop is another.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from posthouse.bridge.bridge import Bridge
from posthouse.bridge.publishing import NewEvent, Published
from posthouse.client.loop_thread import LoopThread

if TYPE_CHECKING:
    pass

P = ParamSpec("P")
T = TypeVar("T")


def _waits(
    method: Callable[Concatenate[Bridge, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["SyncBridge", P], T]:
    def wait(self: "SyncBridge", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop_thread.run(method(self._twin, *args, **kwargs))

    update_wrapper(wait, method)
    if method.__doc__ is not None:  # its example is for this one, too
        wait.__doc__ = method.__doc__.replace("await ", "")
    return wait


class SyncBridge:
    """`Bridge` for programs without an event loop: each method waits until it is done.

    Example:
        bridge.sync.publish("order.created", {"id": 7})
    """

    def __init__(self, twin: Bridge) -> None:
        self._twin = twin

    @property
    def _loop_thread(self) -> LoopThread:
        return self._twin.connection.hands

    plan = _waits(Bridge.plan)
    provision = _waits(Bridge.provision)
    create_tables = _waits(Bridge.create_tables)
    check = _waits(Bridge.check)
    health = _waits(Bridge.health)
    close = _waits(Bridge.close)

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
        return self._loop_thread.run(self._twin.publish_all(events))

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
        self, make: Callable[[], AbstractAsyncContextManager[Bridge]]
    ) -> Iterator["SyncBridge"]:
        hold = self._loop_thread.run(_made(make))
        self._loop_thread.run(hold.__aenter__())
        try:
            yield self
        finally:
            self._loop_thread.run(hold.__aexit__(None, None, None))


async def _made(make: Callable[[], T]) -> T:
    return make()
