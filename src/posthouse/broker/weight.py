"""The size of commands while they wait, and of their records in a frame, without encoding.

Frames must not become larger than can be read again, whatever is asked at once.
"""

from collections.abc import Sequence

import msgspec

from posthouse.core.commands import (
    GROUP_CHARS_MAX,
    KEY_CHARS_MAX,
    Abandon,
    Command,
    CreateQueue,
    CreateSubscription,
    DeadLetter,
    Defer,
    Send,
    SetRule,
    SetSchedule,
    SetSessionState,
    UpdateQueue,
    Work,
)
from posthouse.core.message import size_bytes
from posthouse.core.namespaces import SetAccount, SpaceCommand
from posthouse.core.records import (
    AccountSet,
    Cancelled,
    Completed,
    Dropped,
    Expired,
    Kept,
    Locked,
    NamespaceCreated,
    OfNamespaces,
    Purged,
    QueueCreated,
    QueueRestored,
    QueueUpdated,
    ReaderSet,
    Record,
    Relocked,
    Renewed,
    Routed,
    RuleSet,
    ScheduleSet,
    Sent,
    SessionAccepted,
    SubscriptionCreated,
    Taken,
    Woken,
    encode,
    is_kept,
)

# Records with nothing in them but numbers, at most three for a message.
_BARE = (Completed, Renewed, Relocked, Woken, Cancelled, Expired, Taken, Purged, Dropped)
_LARGE = (CreateQueue, UpdateQueue, CreateSubscription, SetRule, SetAccount)
COMMAND_BYTES = 32 << 20  # of the records of one command that has many
_FEW = 64  # records: each is bounded, so these need not be weighed


def load(command: Command | SpaceCommand) -> int:
    """The bytes that a command makes wait."""
    if isinstance(command, Work):
        return load(command.command)
    if isinstance(command, Send):
        return sum(map(size_bytes, command.messages))
    if isinstance(command, SetSessionState):
        return len(command.state or b"")
    if isinstance(command, Abandon | Defer | DeadLetter):
        return len(msgspec.msgpack.encode(command.properties))
    if isinstance(command, SetSchedule):
        return size_bytes(command.message)
    if isinstance(command, _LARGE):
        return len(msgspec.msgpack.encode(command))
    return 0


def is_too_much(records: Sequence[Record]) -> bool:
    """Whether one command would write more than it may."""
    if len(records) <= _FEW:
        return False
    return sum(weight(record) for record in records if is_kept(record)) > COMMAND_BYTES


def weight_of_sent(record: Sent) -> int:
    """The bytes of a record, at most."""
    count = len(record.messages)
    keys = 0 if record.keys is None else 4 * KEY_CHARS_MAX + 8
    return record.size_bytes + count * (64 + 4 * GROUP_CHARS_MAX + keys)


def weight(record: Kept | OfNamespaces) -> int:
    """The bytes of a record in a frame or in memory, at most; found cheaply where it is small."""
    if isinstance(record, _BARE):
        return 2_048 + 30 * len(record.sequences)
    if isinstance(record, Locked) and record.ids is None:
        return 2_048 + 30 * len(record.sequences)
    if isinstance(record, Routed) and all(each.notes is None for each in record.copies):
        size = 2_048 * (1 + len(record.alike)) + 10 * len(record.sequences)
        return size + sum(2_048 + 20 * len(each.sequences) for each in record.copies)
    size = len(encode(record))
    times, more = _IN_MEMORY.get(type(record), (1, 0))
    return times * size + more


# Records of which much more comes to be in memory than is in a frame: how many times as much, and
# how much more. So that memory is not counted too late.
_IN_MEMORY: dict[type, tuple[int, int]] = {
    QueueCreated: (4, 9_000),
    QueueUpdated: (4, 0),
    SubscriptionCreated: (45, 9_000),
    RuleSet: (45, 2_000),
    SessionAccepted: (1, 1_500),
    ScheduleSet: (1, 1_500),
    QueueRestored: (2, 0),
    NamespaceCreated: (1, 10_000),
    AccountSet: (3, 2_000),
    ReaderSet: (1, 500),
}
