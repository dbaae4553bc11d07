"""The whole of a state as plain values, in one fixed form: equal states give equal dumps."""

from typing import Any

import msgspec
from msgspec.msgpack import Ext

from posthouse.core.message import Message
from posthouse.core.model import Group, Lock, Queue, State, message_key
from posthouse.core.picking import free_heads

Dump = dict[str, Any]  # plain values only; for comparing and for reading, not for passing around


def dump(state: State, *, passing: bool = False, bodies: bool = True) -> Dump:
    """Dumps what the journal keeps of a namespace; with `passing`, also what only this start knows.

    Without `bodies` there is their length, as for those that were evicted.
    """
    live = list(state.queues.values())
    plain: Dump = {
        "name": state.name,
        "number": state.number,
        "era": f"{state.era >> 64:016x}{state.tokens.key.hex()}",
        "started_ms": state.started_ms,
        "clock": [state.clock_ms, state.broker_ms, state.turned_back],
        "next_lock": state.next_lock,
        "by": state.by,
        "names": list(state.names),
        "folded": dict(state.folded),
        "queues": {queue.name: _queue(queue, bodies=bodies) for queue in live},
        "locks": {f"{t:032x}": _lock(lock) for t, lock in _locks(state)},
        "ids": {
            name: tokens
            for name, all_tokens in state.ids.items()
            if (tokens := [f"{t:032x}" for t in all_tokens if _is_live(state, t)])
        },
        "sessions": {
            f"{token:032x}": [queue.name, group.key]
            for token, (queue, group) in state.sessions.items()
            if state.queues.get(queue.name) is queue
        },
        "schedules": [
            msgspec.to_builtins(each, builtin_types=(bytes,)) for each in state.schedules.values()
        ],
        "timers": _timers(state),
    }
    if passing:
        plain["passing"] = {
            "receivers": [msgspec.to_builtins(r) for r in state.receivers.values()],
            "waits": state.wait_timers.items(),
            "idle": state.idle_timers.items(),
            "transactions": [
                [number, each.until_ms, len(each.work), each.messages, list(each.locks)]
                for number, each in state.transactions.items()
            ],
            "blocked": [
                [each.sender, each.queue, each.size_bytes, each.deadline_ms]
                for each in state.blocked.values()
            ],
            "held": sorted([*key, count] for key, count in state.held.items()),
            "dispatch_pending": list(state.dispatch_pending),
            "dispatch_blocked": sorted(state.dispatch_blocked),
            "fanout": state.fanout,
            "orphans": [[number, list(held)] for number, held in state.orphans.items()],
            "doomed": [[q.name, sum(q.counts)] for q in state.doomed],
            "queues": {
                queue.name: [
                    queue.touched_ms,
                    queue.idle_due_ms,
                    list(queue.attached),
                    list(queue.waiting),
                    list(queue.accepting),
                    [[group.key, list(group.readers)] for group in queue.groups.values()],
                    queue.heads,
                ]
                for queue in live
            },
        }
    return plain


def _is_live(state: State, token: int) -> bool:
    lock = state.locks[token]
    return state.queues.get(lock.queue.name) is lock.queue


def _locks(state: State) -> list[tuple[int, Lock]]:
    return [(token, lock) for token, lock in state.locks.items() if _is_live(state, token)]


def _lock(lock: Lock) -> list[Any]:
    session = None if lock.session is None else lock.session.key
    return [
        lock.queue.name,
        lock.message.sequence,
        lock.until_ms,
        lock.since_ms,
        lock.bound,
        lock.deferred,
        session,
        lock.id,
    ]


def _timers(state: State) -> Dump:
    """Dumps the timers, without those of deleted queues, which only wait to be swept."""
    numbers = {queue.number for queue in state.queues.values()}
    messages = {
        message_key(queue, message.sequence)
        for queue in state.queues.values()
        for message in queue.messages.walk(0)
    }
    return {
        "locks": [[d, f"{t:032x}"] for d, t in state.lock_timers.items() if _is_live(state, t)],
        "sessions": [
            [due, f"{token:032x}"]
            for due, token in state.session_timers.items()
            if state.sessions[token][0].number in numbers
        ],
        "expiry": [[d, str(k)] for d, k in state.expiry_timers.items() if k in messages],
        "due": [[d, str(k)] for d, k in state.due_timers.items() if k in messages],
        "forget": state.forget_timers.items(),
        "schedules": state.schedule_timers.items(),
    }


def _queue(queue: Queue, *, bodies: bool) -> Dump:
    return {
        "number": queue.number,
        "origin": queue.origin,
        "topic": queue.topic,
        "temporary": queue.temporary,
        "by": queue.by,
        "subscriptions": list(queue.subscriptions),
        "rules": [
            msgspec.to_builtins(rule, builtin_types=(bytes,), enc_hook=_ext)
            for rule in queue.rules.values()
        ],
        "transfer": None if queue.transfer is None else queue.transfer.name,
        "relays": queue.relays,
        "properties": msgspec.to_builtins(queue.properties),
        "times": [queue.created_ms, queue.updated_ms, queue.accessed_ms],
        "next_sequence": queue.next_sequence,
        "counts": list(queue.counts),
        "size_bytes": queue.size_bytes,
        "body_bytes": queue.body_bytes,
        "messages": [_message(message, bodies=bodies) for message in queue.messages.walk(0)],
        "lives": sorted(queue.lives.items()),
        "firsts": sorted(queue.firsts.items()),
        "notes": [
            [at, msgspec.to_builtins(note, builtin_types=(bytes,), enc_hook=_ext)]
            for at, note in sorted(queue.notes.items())
        ],
        # Called so in dumps of old journals, with which today's are compared.
        "lanes": [list(ready.walk()) for ready in queue.ready_lists],
        "groups": [_group(queue, group) for group in queue.groups.values()],
        "heads": [
            (level, queue.groups[key].ready.first(), key) for level, _, key in free_heads(queue)
        ],
        "turns": queue.turns,
        "seen": [
            [key, *queue.seen[key]]
            for key, until_ms in queue.seen_order
            if queue.seen.get(key, (0, 0))[0] == until_ms
        ],
        "seen_ids": sorted(queue.seen_ids.items()),
    }


def _message(message: Message, *, bodies: bool) -> Dump:
    plain = msgspec.structs.asdict(message)
    plain["lock"] = f"{message.lock:032x}"
    if not bodies and isinstance(message.body, bytes):
        plain["body"] = len(message.body)
    return plain


def _ext(value: object) -> list[Any]:
    assert isinstance(value, Ext)
    return [value.code, value.data]


def _group(queue: Queue, group: Group) -> list[Any]:
    turn = [group.since, group.turn] if queue.gives_runs else []
    return [
        group.key,
        list(group.ready.walk()),
        group.messages,
        group.delayed,
        [f"{token:032x}" for token in group.locks],
        f"{group.token:032x}",
        group.until_ms,
        group.bound,
        group.state,
        group.state_ms,
        *turn,
    ]
