"""The state of a broker, for tests of what cannot be seen from outside.

Tests about behaviour ask the engine or look through its view, as everybody does.
"""

from posthouse.broker.engine import Engine
from posthouse.core.model import State


def state_of(engine: Engine, namespace: str) -> State:
    return engine.world.states[namespace]
