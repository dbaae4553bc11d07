"""Queues that come into being when they are first used."""

from posthouse.core.commands import (
    AcceptSession,
    Attach,
    Command,
    CreateQueue,
    CreateSubscription,
    Peek,
    Receive,
    Send,
)
from posthouse.core.message import has_session
from posthouse.core.model import QueueProperties, State, entity_of, topic_of
from posthouse.core.namespaces import SpaceCommand

_MAKES = (Send, Receive, Attach, AcceptSession, Peek)  # commands that may make their queue


def creating(state: State, command: Command | SpaceCommand) -> list[Command]:
    """The commands that make what a command needs; none where it makes nothing.

    A queue has sessions if it is first used with one. A subscription gets its topic, too.
    """
    if not isinstance(command, _MAKES):
        return []
    sessions = isinstance(command, AcceptSession) or (
        isinstance(command, Send) and any(map(has_session, command.messages))
    )
    properties = QueueProperties(grouping="session" if sessions else "none")
    name = entity_of(command.queue)
    topic = topic_of(name)
    if topic == name:
        return [CreateQueue(name, properties)]
    subscription = CreateSubscription(name, properties)
    if topic in state.queues:
        return [subscription]
    return [CreateQueue(topic, QueueProperties(delivery="topic")), subscription]
