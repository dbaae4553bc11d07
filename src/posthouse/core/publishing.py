"""Publishing: the subscriptions of a topic get their copies, as far as their rules say.

Where the rules are too much for one command, subscriptions are asked one by one, and the message
remembers how far it has come.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import TypeAlias, cast

from posthouse.core.commands import FANOUT_LIMITED_MAX, HAND_ON_BYTES_MAX, HAND_ON_MAX
from posthouse.core.copies import FIRST_EFFORT, Relay, counted, filled
from posthouse.core.errors import QuotaExceeded
from posthouse.core.filters.problems import TooManyLooks
from posthouse.core.filters.view import Amendment, MessageView
from posthouse.core.message import NO_NOTE, Message, NewMessage, Note, group_of, size_bytes
from posthouse.core.model import Queue, State
from posthouse.core.picking import can_send
from posthouse.core.plan import Plan, QueueOverlay
from posthouse.core.records import Copies, DispatchPending, Record, Routed, Sent
from posthouse.core.routing import Hit, Router, router_of

# Effort is counted in about microseconds.
_LOOKS_OF_EFFORT = 256
_Part: TypeAlias = tuple[Queue, list[Hit] | None]


def publish(handed: Relay, message: Message) -> bool:
    """Gives the subscriptions of a topic their copies; False: part of them, as many as it may."""
    plan, source = handed.plan, handed.source
    hits = hits_of(plan, source, message)
    if hits is None:
        return _publish_in_parts(handed, message, _ask_each(plan, source, message))
    note = source.note(message.sequence)
    is_much = len(hits) > HAND_ON_MAX // FIRST_EFFORT
    if message.lock or is_much or note is not None or any(hit.amendment for hit in hits):
        return _publish_in_parts(handed, message, _in_order(hits, message.lock))
    for hit in sorted(hits, key=_number_of):
        _give_copy(handed, message, hit, None)
    return True


def _number_of(hit: Hit) -> int:
    return hit.queue.number


def _publish_in_parts(handed: Relay, message: Message, parts: Iterable[_Part]) -> bool:
    """Gives copies subscription by subscription, until this command has done what one may."""
    plan, number = handed.plan, message.lock
    note, restricted = handed.source.note(message.sequence), plan.state.fanout != "open"
    for queue, hits in parts:
        if hits is None:
            break
        if restricted and hits and filled(plan, queue) >= FANOUT_LIMITED_MAX:
            if number == message.lock:  # nothing was done for it
                plan.dispatch_blocked.append(handed.source.queue.name)
            break
        for hit in hits:
            _give_copy(handed, message, hit, note)
        number = queue.number
        if plan.is_spent:
            break
    else:
        return True
    if number != message.lock:
        handed.partly[message.sequence] = number
    return False


def _in_order(hits: list[Hit], after: int) -> Iterator[_Part]:
    """Hits by subscription, of those with a number higher than `after`."""
    by_number: dict[int, list[Hit]] = {}
    for hit in hits:
        if hit.queue.number > after:
            by_number.setdefault(hit.queue.number, []).append(hit)
    for number in sorted(by_number):
        yield by_number[number][0].queue, by_number[number]


def _ask_each(plan: Plan, source: QueueOverlay, message: Message) -> Iterator[_Part]:
    """Asks the rules of one subscription after the other."""
    view = _view(plan, source.queue, message, source.note(message.sequence))
    for queue, effort, hits in router_of(source.queue).match_each(view, message.lock):
        plan.effort += effort + view.looks // _LOOKS_OF_EFFORT
        view.looks = 0
        yield queue, hits and [hit for hit in hits if _can_have(plan, hit)]


def hits_of(plan: Plan, source: QueueOverlay, message: Message) -> list[Hit] | None:
    """The copies that subscriptions of a topic are to get; None: they have to be asked in parts."""
    router = router_of(source.queue)
    hits = router.all
    if router.asks:
        if router.effort > HAND_ON_MAX:
            return None
        plan.effort += router.effort
        view = _view(plan, source.queue, message, source.note(message.sequence))
        try:
            hits = router.match(view)
        except TooManyLooks:
            return None
        finally:
            plan.effort += view.looks // _LOOKS_OF_EFFORT
    else:
        plan.effort += router.effort
    return [hit for hit in hits if _can_have(plan, hit)]


def _can_have(plan: Plan, hit: Hit) -> bool:
    return can_send(hit.queue.properties) and hit.queue.name not in plan.ending


def _give_copy(handed: Relay, message: Message, hit: Hit, note: Note | None) -> None:
    queue, ttl_ms = hit.queue, None
    if hit.problem:
        if queue.properties.dead_letter_filter_errors:
            handed.bury(message, queue, note, "FilterException", hit.problem)
        return
    if hit.amendment is not None:
        properties, removed, changed = hit.amendment
        fields = {name: cast("str | None", changed[name]) for name in changed if name != "ttl_ms"}
        ttl_ms = cast("int | None", changed.get("ttl_ms"))
        note = (note or NO_NOTE).amended(properties, removed, fields)
    if note is not None and handed.plan.noted_bytes >= HAND_ON_BYTES_MAX:
        text = "The actions of its topic's rules write too much of one message."
        rest = Note(hops=note.hops) if note.hops else None
        handed.bury(message, queue, rest, "FilterException", text)
        return
    most = queue.properties.max_message_bytes
    if most is not None and size_bytes(message) > most:
        text = f"The subscription takes messages of at most {most} bytes."
        handed.bury(message, queue, note, "MessageTooLarge", text)
        return
    if queue.properties.requires_session and group_of(message, note) is None:
        handed.bury(message, queue, note, "Session id is null.", "The subscription has sessions.")
        return
    try:
        handed.copy(message, queue, note and counted(note, note.hops, queue), ttl_ms)
    except QuotaExceeded as full:
        if handed.plan.may_refuse:
            raise
        handed.bury(message, queue, note, "QuotaExceeded", str(full))


def _view(plan: Plan, topic: Queue, message: Message, note: Note | None) -> MessageView:
    amendment = None
    if note is not None:
        amendment = Amendment(note.properties, note.removed, dict(note.fields))
    return MessageView(
        message.envelope, new_id=_NewIds(plan.state.era, topic.number, message.sequence),
        amendment=amendment, sequence=message.sequence, enqueued_sequence=message.sequence,
        enqueued_ms=plan.now_ms, expires_ms=message.expires_ms, size=size_bytes(message),
        ttl_ms=message.expires_ms - plan.now_ms if message.expires_ms else None,
    )  # fmt: skip


class _NewIds:
    """Ids that no other message gets, without chance: they come of where it stands."""

    __slots__ = ("_count", "_seed")

    def __init__(self, *seed: int) -> None:
        self._seed = seed
        self._count = 0

    def __call__(self) -> bytes:
        self._count += 1
        return blake2b(repr((*self._seed, self._count)).encode(), digest_size=16).digest()


_NONE: dict[str, list[int]] = {}


def publish_plainly(state: State, topic: Queue, record: Sent) -> list[Record] | None:
    """Publishes to subscriptions that take messages as they are, where nobody waits.

    Fast path of `publish`. None: it has to be planned.
    """
    messages, first, count = record.messages, record.first_sequence, len(record.messages)
    for new in messages:
        if new.due_ms or new.expires_ms:
            return None
    router, some = router_of(topic), _NONE
    hits = router.all
    if len(hits) > HAND_ON_MAX or router.effort > HAND_ON_MAX:
        return None
    if router.asks:
        try:
            hits, some, count = _matched(state, topic, router, record)
        except TooManyLooks:
            return None
    elif count * len(hits) > HAND_ON_MAX:
        count = -(-HAND_ON_MAX // len(hits))
    alike = {}
    for queue, amendment, problem in hits:
        if (
            amendment is not None
            or problem
            or not queue.is_plain
            or queue.waiting
            or queue.accepting
        ):
            return None
        alike[queue.name] = queue.next_sequence
    copies = [Copies(name, alike.pop(name), each) for name, each in some.items()]
    leaving = list(range(first, first + count))
    routed = Routed(topic.name, record.time_ms, leaving, copies, alike)
    if count < len(messages):
        return [routed, DispatchPending(topic.name, more=True)]
    return [routed]


def _matched(
    state: State, topic: Queue, router: Router, record: Sent
) -> tuple[list[Hit], dict[str, list[int]], int]:
    """Returns who gets copies, and of which messages, where it is not all that were looked at.

    The third is how many messages were looked at. Raises TooManyLooks.
    """
    hits: list[Hit] = []
    some: dict[str, list[int]] = {}
    count = len(record.messages)
    effort = looked = 0
    for sequence, new in enumerate(record.messages, record.first_sequence):
        if effort >= HAND_ON_MAX:
            break
        view = _view_of(state, topic, new, sequence, record.time_ms)
        found = router.match(view)
        effort += router.effort + len(found) + view.looks // _LOOKS_OF_EFFORT
        looked += 1
        hits += found
        if count > 1:
            for hit in found:
                some.setdefault(hit.queue.name, []).append(sequence)
    return hits, {name: each for name, each in some.items() if len(each) < looked}, looked


def _view_of(
    state: State, topic: Queue, new: NewMessage, sequence: int, now_ms: int
) -> MessageView:
    """The view of a message that does not expire."""
    return MessageView(
        new.envelope, new_id=_NewIds(state.era, topic.number, sequence), sequence=sequence,
        enqueued_sequence=sequence, enqueued_ms=now_ms, size=size_bytes(new),
    )  # fmt: skip
