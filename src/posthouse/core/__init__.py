"""The broker's logic, pure and deterministic: no clock, no files, no sockets, no randomness.

`decide` says what a command does, `evolve` makes it so, `next_deadline_ms` says when to tick.
"""

from posthouse.core.decide import decide
from posthouse.core.evolve import evolve
from posthouse.core.model import State, next_deadline_ms
from posthouse.core.plan import Outcome

__all__ = ["Outcome", "State", "decide", "evolve", "next_deadline_ms"]
