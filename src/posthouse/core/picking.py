"""Picking: which messages of a queue are next, for a receiver or to be handed on.

It reads the state alone; what a command has planned before is left out by who asks.
"""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush, merge
from itertools import islice

from posthouse.core.commands import LOOK_MAX
from posthouse.core.heaps import walk
from posthouse.core.index import CHUNK
from posthouse.core.message import ACTIVE, Message
from posthouse.core.model import Group, Queue, QueueProperties, place_alone


def can_receive(properties: QueueProperties) -> bool:
    return properties.status in ("active", "send-disabled")


def can_send(properties: QueueProperties) -> bool:
    return properties.status in ("active", "receive-disabled")


def is_expired(message: Message, now_ms: int) -> bool:
    return message.expires_ms != 0 and message.expires_ms <= now_ms


def pick(queue: Queue, sequences: Iterable[int], limit: int, now_ms: int) -> list[Message]:
    """The first `limit` of these messages that are not expired; those wait for the next tick."""
    messages, picked = queue.messages, []
    for sequence in islice(sequences, LOOK_MAX):
        message = messages[sequence]
        if message.expires_ms == 0 or message.expires_ms > now_ms:
            picked.append(message)
            if len(picked) == limit:
                break
    return picked


def pick_ready(queue: Queue, limit: int, now_ms: int, *, delete: bool = False) -> list[Message]:
    """The next `limit` messages for a receiver of any kind."""
    if not queue.groups:
        chunks: dict[int, dict[int, Message]] = queue.messages.chunks
        picked: list[Message] = []
        for ready in queue.ready_lists:
            for sequence in ready.head(limit - len(picked)):
                message = chunks[sequence // CHUNK][sequence]
                if message.expires_ms and message.expires_ms <= now_ms:
                    every = (s for each in queue.ready_lists for s in each.walk())
                    return pick(queue, every, limit, now_ms)
                picked.append(message)
            if len(picked) == limit:
                break
        return picked
    if queue.gives_runs:
        return pick(queue, _runs(queue, now_ms), limit, now_ms)
    in_lists = ((level, s) for level, ready in enumerate(queue.ready_lists) for s in ready.walk())
    in_order = merge(in_lists, ((level, s) for level, s, _ in free_heads(queue)))
    if delete and queue.groups:
        return pick(queue, _whole_groups(queue, in_order, now_ms), limit, now_ms)
    return pick(queue, (sequence for _, sequence in in_order), limit, now_ms)


def pick_all(queue: Queue, limit: int, now_ms: int) -> list[Message]:
    """The next `limit` messages to be handed on, for which no group waits."""
    if not queue.groups:
        return pick_ready(queue, limit, now_ms)
    ready = (m for m in queue.messages.walk(0) if m.state == ACTIVE and not is_expired(m, now_ms))
    return list(islice(ready, limit))


def _whole_groups(queue: Queue, in_order: Iterator[tuple[int, int]], now_ms: int) -> Iterator[int]:
    """Numbers that can be taken out for good: behind a group's head comes the rest of it."""
    runs: list[tuple[int, int, Iterator[int]]] = []  # a heap: what follows in groups begun

    def follow(run: Iterator[int]) -> None:
        sequence = next(run, None)
        if sequence is not None and not is_expired(queue.messages[sequence], now_ms):
            heappush(runs, (queue.level(queue.messages[sequence]), sequence, run))

    head = next(in_order, None)
    while head is not None or runs:
        if head is not None and (not runs or head < runs[0][:2]):
            message = queue.messages[head[1]]
            head = next(in_order, None)
            group = queue.group(message)
            if group is None:
                yield message.sequence
            else:
                follow(group.ready.walk())
        else:
            _, sequence, run = heappop(runs)
            yield sequence
            follow(run)


def _runs(queue: Queue, now_ms: int) -> Iterator[int]:
    """Numbers that can be taken together: of each free group its run, then what comes next."""
    alone: Iterator[tuple[int, int, int | str]] = (
        (level, place_alone(sequence), sequence)
        for level, ready in enumerate(queue.ready_lists)
        for sequence in ready.walk()
    )
    groups: Iterator[tuple[int, int, int | str]] = free_heads(queue)
    for _, _, what in merge(alone, groups, key=_place):
        if isinstance(what, int):
            yield what
        else:
            yield from _run(queue, queue.groups[what], now_ms)


def _place(entry: tuple[int, int, object]) -> tuple[int, int]:
    return entry[:2]


def _run(queue: Queue, group: Group, now_ms: int) -> Iterator[int]:
    """Numbers from the first of a free group up to what holds back; no further than one expired."""
    end = group.held[0] if group.held else None
    for sequence in group.ready.walk():
        if end is not None and sequence > end:
            break
        yield sequence
        if is_expired(queue.messages[sequence], now_ms):
            break


def pick_in_session(queue: Queue, group: Group, limit: int, now_ms: int) -> list[Message]:
    """The next `limit` messages for who holds a session."""
    return [] if group.delayed else pick(queue, group.ready.walk(), limit, now_ms)


def free_heads(queue: Queue) -> Iterator[tuple[int, int, str]]:
    """The heads of groups that may be taken, in order."""
    last = None
    gives_runs = queue.gives_runs
    for head in walk(queue.heads):
        group = queue.groups.get(head[2])
        if head == last or group is None or queue.busy(group):
            continue
        first = group.ready.first()
        if first is not None and (group.head == head if gives_runs else first == head[1]):
            yield head
        last = head


def free_sessions(queue: Queue, now_ms: int) -> Iterator[str]:
    """The sessions that can be accepted, in order."""
    for _, sequence, key in free_heads(queue):
        if not is_expired(queue.messages[sequence], now_ms):
            yield key
