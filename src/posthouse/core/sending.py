"""Sending: what a queue takes, and what becomes of it."""

import msgspec

from posthouse.core.checks import check_count, check_moment, check_text
from posthouse.core.commands import (
    BATCH_MAX,
    BLOCKED_BYTES_MAX,
    BLOCKED_MAX,
    GROUP_CHARS_MAX,
    KEY_CHARS_MAX,
    LAST_MS,
    RECEIVER_MAX,
    SEND_BYTES_MAX,
    Enqueued,
    Send,
    Waiting,
)
from posthouse.core.delivering import deliver
from posthouse.core.dispatch import dispatch
from posthouse.core.endings import bury, drop
from posthouse.core.errors import (
    Busy,
    Disabled,
    Duplicate,
    InvalidArgument,
    MessageTooLarge,
    NotAllowed,
    Refused,
)
from posthouse.core.lookup import own_queue
from posthouse.core.message import (
    ACTIVE,
    DELAYED,
    SCHEDULED,
    Message,
    NewMessage,
    bare_id,
    message_id,
    size_bytes,
)
from posthouse.core.model import PRIORITIES, Blocked, Queue, Receiver, State
from posthouse.core.picking import can_receive, can_send, is_expired
from posthouse.core.plan import Outcome, Plan, QueueOverlay
from posthouse.core.publishing import publish_plainly
from posthouse.core.records import Dropped, SendBlocked, Sent
from posthouse.core.room import Fit, Used, has_room, is_limited, used
from posthouse.core.shares import BLOCKED, BLOCKED_BYTES, check_share


def send(state: State, command: Send, now_ms: int) -> Outcome:
    queue, messages, total = checked_send(state, command, now_ms)
    properties = queue.properties
    if command.sender and properties.overflow == "block":
        blocked = _blocked(state, queue, command, len(messages), total, now_ms)
        if blocked is not None:
            return Outcome([SendBlocked(blocked)], Waiting(command.sender))
    is_special = properties.duplicate_detection or is_limited(queue)
    if is_special and not _is_plain(queue, command, len(messages), total):
        plan = Plan(state, now_ms)
        plan.may_refuse = True
        return dispatch(plan, send_on(plan, queue, messages, command))
    if not messages:
        return Outcome([], Enqueued(()))
    first = queue.next_sequence
    record = Sent(queue.name, now_ms, first, total, messages)
    answer = Enqueued(range(first, first + len(messages)))
    if queue.waiting or queue.accepting or queue.relays:
        return _sent(state, queue, record, answer)
    return Outcome([record], answer)


def _is_plain(queue: Queue, command: Send, messages: int, size: int) -> bool:
    """Whether a send need not be planned, though its queue looks for duplicates or has limits.

    Nothing in it has a key, there is room for all of it, and it is not handed on.
    """
    if queue.relays:
        return False
    if queue.properties.duplicate_detection:
        keys = command.keys
        if keys is None or keys.count("") < len(keys):
            return False
    return not is_limited(queue) or has_room(queue, used(queue), messages, size)


def _blocked(
    state: State, queue: Queue, command: Send, messages: int, size: int, now_ms: int
) -> Blocked | None:
    """Returns a send that has to wait for room, behind others; None where there is some."""
    sender, deadline_ms = command.sender, command.deadline_ms
    check_moment("deadline_ms", deadline_ms)
    in_use = sender in state.receivers or sender in state.blocked
    if in_use or not 0 < sender <= RECEIVER_MAX:
        raise InvalidArgument("sender", "must be a positive number of 63 bits, not in use")
    nothing = Used(0, 0)
    if not queue.blocked and has_room(queue, used(queue), messages, size):
        return None
    if deadline_ms <= now_ms or not has_room(queue, nothing, messages, size):
        return None  # it is refused, now as later
    crowd = len(queue.blocked) >= BLOCKED_MAX
    if crowd or state.blocked_bytes + size > BLOCKED_BYTES_MAX:
        raise Busy("too many wait to send")
    check_share(state.held, command.by, BLOCKED, queue.name, BLOCKED_MAX)
    check_share(state.held, command.by, BLOCKED_BYTES, "", BLOCKED_BYTES_MAX, size)
    return Blocked(sender, queue.name, command, size, deadline_ms)


def checked_send(state: State, command: Send, now_ms: int) -> tuple[Queue, list[NewMessage], int]:
    """Returns the queue, the messages as they will be there, and their size. Raises Refused."""
    queue = state.queues.get(command.queue)
    if queue is None or queue.origin is not None or queue.topic is not None:
        topic = own_queue(state, command.queue).topic
        raise NotAllowed(command.queue, f"it is fed by rules; send to the topic {topic!r}")
    properties = queue.properties
    if properties.status != "active" and not can_send(queue.properties):
        raise Disabled(queue.name, properties.status)
    messages = list(command.messages)
    if len(messages) > BATCH_MAX:
        raise InvalidArgument("messages", f"must be at most {BATCH_MAX} at a time")
    plain = properties.ttl_ms is None and not properties.requires_session
    most_bytes = properties.max_message_bytes
    total = 0
    for at, message in enumerate(messages):
        envelope, body, native = message.envelope, message.body, message.native
        if type(envelope) is not bytes or type(body) is not bytes:
            raise InvalidArgument("messages", "must have envelopes and bodies of bytes")
        size = len(envelope) + len(body)
        if native is not None:
            if type(native) is not bytes:
                raise InvalidArgument("messages", "must have native forms of bytes")
            size += len(native)
        if most_bytes is not None and size > most_bytes:
            raise MessageTooLarge(queue.name, size, most_bytes)
        total += size
        if (
            not plain
            or message.group is not None
            or message.ttl_ms is not None
            or message.due_ms
            or message.expires_ms
        ):
            messages[at] = _as_sent(queue, message, size, now_ms)
        priority = message.priority
        if type(priority) is not int or not 0 <= priority < PRIORITIES:
            raise InvalidArgument("priority", f"must be from 0 to {PRIORITIES - 1}")
    if total > SEND_BYTES_MAX:
        raise InvalidArgument("messages", f"must be at most {SEND_BYTES_MAX} bytes at a time")
    if command.keys is not None and len(command.keys) != len(messages):
        raise InvalidArgument("keys", "must be one for each message")
    return queue, messages, total


def send_on(plan: Plan, queue: Queue, messages: list[NewMessage], command: Send) -> Enqueued:
    """Sends as part of a plan, behind what it sends there already. Raises Refused."""
    overlay = plan.overlay(queue)
    first = overlay.next_sequence
    until_ms, keys = 0, None
    answer = Enqueued(range(first, first + len(messages)))
    if queue.properties.duplicate_detection:
        messages, keys, answer = _unseen(overlay, command, messages, plan.now_ms)
        until_ms = plan.now_ms + queue.properties.duplicate_window_ms
    if not messages:
        return answer
    sizes = list(map(size_bytes, messages))
    fit = Fit(len(messages))
    if is_limited(queue):
        fit = plan.make_room(queue, sizes)
    taken = fit.taken
    if fit.dropped:
        drop(plan, queue, fit.dropped)
    if fit.arrived:  # what the same command has sent there before
        overlay.give_up(fit.arrived)
        plan.records.append(Dropped(queue.name, list(fit.arrived)))
    late_are_dropped = taken < len(messages) and queue.properties.overflow == "drop-newest"
    if late_are_dropped:
        sequences = [each if each < first + taken else 0 for each in answer.sequences]
        answer = msgspec.structs.replace(answer, sequences=sequences, dropped=len(messages) - taken)
        if keys is not None:  # what was not taken may be sent again
            keys = keys[:taken] + [None] * (len(messages) - taken)
    overlay.numbers(len(messages))
    overlay.used = True
    record = Sent(queue.name, plan.now_ms, first, sum(sizes), messages, keys, until_ms)
    plan.records.append(record)
    new = _as_messages(queue, record)
    if is_limited(queue):
        overlay.added += len(messages)
        overlay.added_bytes += sum(sizes)
        overlay.arrived |= {
            message.sequence: size
            for message, size in zip(new[:taken], sizes, strict=False)
            if message.state == ACTIVE
        }
    for sequence, key in enumerate(keys or (), first):
        if key is not None:
            overlay.keys[key] = sequence
    _add(overlay, new[:taken])
    late = new[taken:]
    if late_are_dropped:
        drop(plan, queue, late)
    elif late:
        bury(plan, queue, late, "QueueFull", "There was no room in the queue.", {})
        answer = msgspec.structs.replace(answer, buried=len(late))
    return answer


def _as_sent(queue: Queue, message: NewMessage, size: int, now_ms: int) -> NewMessage:
    """Gives a message the life it will have in this queue, and no schedule that has passed."""
    check_fit(queue, size, message.group)
    if message.group is not None:
        check_text("group", message.group, GROUP_CHARS_MAX)
    check_moment("ttl_ms", message.ttl_ms or 0)
    check_count("due_ms", message.due_ms, 0, LAST_MS)
    due_ms = message.due_ms if message.due_ms > now_ms else 0
    expires_ms = expiry_ms(queue, due_ms or now_ms, message.ttl_ms)
    if due_ms == message.due_ms and expires_ms == message.expires_ms:
        return message
    return msgspec.structs.replace(message, due_ms=due_ms, expires_ms=expires_ms)


def expiry_ms(queue: Queue, from_ms: int, ttl_ms: int | None) -> int:
    """When a message expires: the smaller of its own and its queue's time to live wins."""
    lives = [each for each in (ttl_ms, queue.properties.ttl_ms) if each is not None]
    return max(1, min(from_ms + min(lives), LAST_MS)) if lives else 0


def check_fit(queue: Queue, size: int, group: str | None) -> None:
    why = misfit(queue, size, group)
    if why is not None:
        raise why


def misfit(queue: Queue, size: int, group: str | None) -> Refused | None:
    """Why a queue would not take such a message, however empty it is."""
    most = queue.properties.max_message_bytes
    if most is not None and size > most:
        return MessageTooLarge(queue.name, size, most)
    if group is None and queue.properties.requires_session:
        return InvalidArgument("group", f"is needed: {queue.name!r} takes messages in sessions")
    return None


def _unseen(
    overlay: QueueOverlay, command: Send, messages: list[NewMessage], now_ms: int
) -> tuple[list[NewMessage], list[str | None], Enqueued]:
    """Leaves duplicates out, or refuses the whole. Returns messages, keys and the answer."""
    queue = overlay.queue
    given = command.keys if command.keys is not None else [None] * len(messages)
    sequence = overlay.next_sequence
    keys: list[str | None] = []
    kept: list[NewMessage] = []
    sequences: list[int] = []
    fresh: dict[str, int] = {}
    fresh_ids: dict[str, str] = {}
    first_ids: dict[int, str] = {}
    for key, message in zip(given, messages, strict=True):
        name = key if key is not None else message_id(message.envelope)
        if name:
            check_text("key", name, KEY_CHARS_MAX)
            until_ms, before = queue.seen.get(name, (0, 0))
            before = before if until_ms > now_ms else 0
            before = fresh.get(name, 0) or overlay.keys.get(name, before)
            if before:
                if command.refuse_duplicates:
                    raise Duplicate(queue.name, name, before)
                for ids in (fresh_ids, overlay.key_ids, queue.seen_ids):
                    if name in ids:
                        first_ids[len(sequences)] = ids[name]
                        break
                else:
                    first_ids[len(sequences)] = name
                sequences.append(before)
                continue
            fresh[name] = sequence
            fresh_ids[name] = name if key is None else bare_id(message.envelope)
        sequences.append(sequence)
        keys.append(name or None)
        kept.append(message)
        sequence += 1
    overlay.key_ids |= fresh_ids
    return kept, keys, Enqueued(sequences, len(messages) - len(kept), first_ids=first_ids)


def _sent(state: State, queue: Queue, record: Sent, answer: Enqueued) -> Outcome:
    """Gives what was sent to receivers that wait, or hands it on."""
    waited = queue.waiting or queue.accepting or queue.relays
    if not waited or queue.name in state.dispatch_pending:
        return Outcome([record], answer)
    if queue.properties.delivery == "topic" and state.fanout == "open":
        routed = publish_plainly(state, queue, record)
        if routed is not None:
            return Outcome([record, *routed], answer)
    time_ms = record.time_ms
    new = _as_messages(queue, record)
    messages = [message for message in new if message.state == ACTIVE]
    receiver = None if queue.relays else _sole_taker(queue, messages, time_ms)
    if receiver is not None:
        hand = messages[: receiver.credit]
        locked, deliveries = deliver(state, queue, receiver, hand, None, state.next_lock, time_ms)
        return Outcome([record, locked], answer, deliveries)
    plan = Plan(state, time_ms)
    plan.may_refuse = True
    plan.records.append(record)
    overlay = plan.overlay(queue)
    overlay.numbers(len(record.messages))
    _add(overlay, new)
    return dispatch(plan, answer)


def _add(overlay: QueueOverlay, messages: list[Message]) -> None:
    """Notes which new messages are ready, and which hold others back."""
    overlay.ready += [message for message in messages if message.state == ACTIVE]
    if overlay.queue.gives_runs:
        for message in messages:
            if message.state == DELAYED:
                overlay.hold(message)


def _as_messages(queue: Queue, record: Sent) -> list[Message]:
    """The messages of a record as they will stand in the queue."""
    later = DELAYED if queue.gives_runs else SCHEDULED
    return [
        Message(
            sequence, 0, new.envelope, new.native, new.body, new.priority, new.group,
            new.due_ms or record.time_ms, new.expires_ms, 0, later if new.due_ms else ACTIVE, 0,
        )
        for sequence, new in enumerate(record.messages, record.first_sequence)
    ]  # fmt: skip


def _sole_taker(queue: Queue, messages: list[Message], now_ms: int) -> Receiver | None:
    """Fast path: the receiver of new messages, where there is no choice and no order to keep."""
    if not messages or not queue.waiting or (len(messages) > 1 and len(queue.waiting) > 1):
        return None
    if (
        len(queue.ready_lists) > 1
        or queue.properties.grouping != "none"
        or queue.properties.max_locked is not None
        or not can_receive(queue.properties)
    ):
        return None
    if any(is_expired(message, now_ms) for message in messages):
        return None
    return next(iter(queue.waiting.values()))
