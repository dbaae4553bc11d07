"""Targets of the links of a connection."""

from typing import NamedTuple

from posthouse.broker.access import Principal
from posthouse.core.errors import NotFound


class Target(NamedTuple):
    """The entity that a link leads to, and on whose behalf it was attached."""

    principal: Principal
    namespace: str
    entity: str
    queue: str  # as the core calls it
    path: tuple[str, ...]  # as tokens call it
    right: str  # that the link needs, or "any"

    @property
    def missing(self) -> NotFound:
        """The refusal where its entity is gone."""
        return NotFound("queue", self.entity, self.namespace)
