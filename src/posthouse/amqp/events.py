"""The events that a connection reports to the code that drives it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from posthouse.amqp.performatives import Open, Problem
from posthouse.amqp.types import Described

if TYPE_CHECKING:
    from posthouse.amqp.session import Link, Session


class Opened(msgspec.Struct):
    """The other side has said who it is."""

    open: Open


class Begun(msgspec.Struct):
    session: "Session"


class Attached(msgspec.Struct):
    """The other side wants a link, to be accepted or refused; or has accepted ours."""

    link: "Link"


class Flowed(msgspec.Struct, gc=False):
    """The other side has said how many messages it will take, or has sent all it had."""

    link: "Link"


class Arrived(msgspec.Struct, gc=False):
    """A delivery is complete. Without a payload it was larger than the link takes."""

    link: "Link"
    delivery_id: int
    tag: bytes
    format: int
    settled: bool
    state: Described | None
    payload: bytes | None


class Run(msgspec.Struct, gc=False):
    """Several deliveries, complete and of the common format, where the link takes such."""

    link: "Link"
    delivery_ids: Sequence[int]
    tags: Sequence[bytes]
    payloads: Sequence[bytes]
    settled: bool


class Disposed(msgspec.Struct, gc=False):
    """The other side has set the state of deliveries that we sent, or again of those it sent."""

    link: "Link"
    delivery_ids: list[int]
    kept: list[int]  # with each of ours
    state: Described | None
    settled: bool


class Detached(msgspec.Struct):
    """The link is over."""

    link: "Link"
    problem: Problem | None
    closed: bool


class Ended(msgspec.Struct):
    """The session is over, and all its links with it; of those it is told before."""

    session: "Session"
    problem: Problem | None


class Closed(msgspec.Struct):
    """The connection is closed. Only bytes that are to be taken still can be sent."""

    problem: Problem | None


Event: TypeAlias = (
    Opened | Begun | Attached | Flowed | Arrived | Run | Disposed | Detached | Ended | Closed
)
