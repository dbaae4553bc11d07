"""Shares: how much of what is limited in number one principal may hold.

A limit that all share could be used up by one of them. So what is made is counted by who made it,
and nobody may hold more than a share of a limit. The state has the counts; who asks, and what his
share is, comes with the command. What nobody in particular made counts for nobody.
"""

from typing import TypeAlias

import msgspec

from posthouse.core.errors import QuotaExceeded

# What is held, where that is (a queue, or nothing: all of the namespace or broker), and by whom.
Held: TypeAlias = dict[tuple[str, str, str], int]

SUBSCRIPTIONS = "the number of subscriptions"
SCHEDULES = "the number of schedules"
JOBS = "the number of running jobs"
TRANSACTIONS = "the number of open transactions"
TRANSACTION_BYTES = "bytes in open transactions"
BLOCKED = "the number of sends that wait for room"
BLOCKED_BYTES = "bytes in sends that wait for room"
NAMESPACES = "the number of namespaces"
ACCOUNTS = "the number of principals"
READERS = "the number of readers"
QUEUES = "the number of queues"
TOPICS = "the number of topics"
RECEIVERS = "the number of receivers"


class Holder(msgspec.Struct, frozen=True, gc=False):
    """A principal that asks for something, and the percentage of a limit it may hold."""

    name: str = ""  # nobody in particular: only the limit itself counts
    percent: int = 100


NOBODY = Holder()


def share_of(most: int, percent: int) -> int:
    """The share of a limit, which is one at least."""
    return max(1, most * percent // 100)


def count(held: Held, what: str, where: str, by: str, change: int) -> None:
    """Counts what is made or has ended; nothing is left of what is not held any more."""
    if by and change:
        key = what, where, by
        left = held.get(key, 0) + change
        if left:
            held[key] = left
        else:
            del held[key]


def check_share(
    held: Held, holder: Holder, what: str, where: str, most: int, more: int = 1
) -> None:
    """Raises QuotaExceeded where the holder would have more than his share of a limit."""
    if holder.name:
        share = share_of(most, holder.percent)
        current = held.get((what, where, holder.name), 0)
        if current + more > share:
            raise QuotaExceeded(where, what, share, current, holder.name)
