"""The bridge of a program that has one, for those who do not want to pass it around.

posthouse.bridge.configure("nats://localhost:4222", app="api", destination="worker")
await posthouse.bridge.publish("order.created", {"id": 7})
"""

from collections.abc import Callable
from typing import Any, TypeVar

from posthouse.bridge.bridge import Bridge
from posthouse.bridge.errors import ConfigurationError

F = TypeVar("F", bound=Callable[..., Any])
_bridge: Bridge | None = None


def configure(*args: Any, **settings: Any) -> Bridge:
    """Makes the default bridge, with the parameters of `Bridge`, and returns it.

    Example:
        configure("nats://localhost:4222", app="api", destination="worker", preset="production")
    """
    global _bridge
    _bridge = Bridge(*args, **settings)
    return _bridge


def default_bridge() -> Bridge:
    """Returns the default bridge. Raises ConfigurationError before `configure`.

    Example:
        asyncio.run(default_bridge().run())
    """
    if _bridge is None:
        raise ConfigurationError(
            "There is no default bridge; call posthouse.bridge.configure(...) first."
        )
    return _bridge


def publish(type: str, payload: Any, **how: Any) -> Any:
    """Publishes an event by the default bridge, as `Bridge.publish` does.

    Example:
        publish("order.created", {"id": 7}, session=session)
    """
    return default_bridge().publish(type, payload, **how)


def consumer(source: str = "", **how: Any) -> Callable[[F], F]:
    """Decorates a handler of the default bridge, as `Bridge.consumer` does.

    Example:
        @consumer(concurrency=8)
        async def on_event(event: Event) -> None: ...
    """
    return default_bridge().consumer(source, **how)
