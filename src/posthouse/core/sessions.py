"""Sessions: accepted, renewed and released by their holders; their states."""

from itertools import islice

from posthouse.core.checks import check_count, check_duration, check_moment, check_text
from posthouse.core.commands import (
    GROUP_CHARS_MAX,
    PAGE_MAX,
    SESSION_STATE_BYTES_MAX,
    AcceptSession,
    GetSessionState,
    ListSessions,
    ReleaseSession,
    RenewSession,
    SetSessionState,
    Waiting,
)
from posthouse.core.dispatch import dispatch, grant
from posthouse.core.endings import release
from posthouse.core.errors import InvalidArgument, NotAllowed, SessionLocked
from posthouse.core.lookup import queue_of, receivable, session_of
from posthouse.core.model import Receiver, State
from posthouse.core.picking import free_sessions
from posthouse.core.plan import Outcome, Plan
from posthouse.core.receiving import check_receiver, dispatch_later
from posthouse.core.records import ReceiverAttached, SessionRenewed, SessionStateSet, Touched


def accept_session(state: State, command: AcceptSession, now_ms: int) -> Outcome:
    queue = receivable(state, command.queue)
    check_receiver(state, command.receiver)
    check_duration("lock_ms", command.lock_ms)
    check_moment("deadline_ms", command.deadline_ms)
    if queue.properties.grouping != "session":
        raise NotAllowed(queue.name, "it has no sessions")
    session = command.session
    if session is not None:
        check_text("session", session, GROUP_CHARS_MAX)
        group = queue.groups.get(session)
        if group is not None and group.token:
            raise SessionLocked(queue.name, session)
    else:
        session = next(free_sessions(queue, now_ms), None)
    receiver = Receiver(
        command.receiver, queue.name, 0, lock_ms=command.lock_ms or None,
        bound_session=command.bound, once=True, deadline_ms=command.deadline_ms,
    )  # fmt: skip
    if session is not None:
        plan = Plan(state, now_ms)
        granted = grant(plan, queue, session, receiver)
        return Outcome(plan.records, granted)
    if command.deadline_ms > now_ms:
        plan = Plan(state, now_ms)
        plan.records.append(ReceiverAttached(receiver, accepting=True))
        dispatch_later(plan, queue)
        return dispatch(plan, Waiting(receiver.receiver))
    return Outcome([Touched(queue.name, now_ms)], None)


def renew_session(state: State, command: RenewSession, now_ms: int) -> Outcome:
    queue = queue_of(state, command.queue)
    group = session_of(state, queue, command.session, now_ms)
    check_duration("lock_ms", command.lock_ms)
    until_ms = now_ms + (command.lock_ms or queue.properties.hold_ms)
    plan = Plan(state, now_ms)
    plan.records.append(SessionRenewed(queue.name, group.key, until_ms))
    plan.touch(queue)
    return dispatch(plan, until_ms)


def release_session(state: State, command: ReleaseSession, now_ms: int) -> Outcome:
    queue = queue_of(state, command.queue)
    group = session_of(state, queue, command.session, now_ms)
    plan = Plan(state, now_ms)
    release(plan, queue, group)
    return dispatch(plan)


def get_session_state(state: State, command: GetSessionState, now_ms: int) -> Outcome:
    queue = queue_of(state, command.queue)
    return Outcome([], session_of(state, queue, command.session, now_ms).state)


def set_session_state(state: State, command: SetSessionState, now_ms: int) -> Outcome:
    queue = queue_of(state, command.queue)
    group = session_of(state, queue, command.session, now_ms)
    blob = command.state
    if blob is not None and (type(blob) is not bytes or len(blob) > SESSION_STATE_BYTES_MAX):
        raise InvalidArgument("state", f"must be at most {SESSION_STATE_BYTES_MAX} bytes")
    return Outcome([SessionStateSet(queue.name, group.key, now_ms, command.state)])


def list_sessions(state: State, command: ListSessions, _: int) -> Outcome:
    queue = queue_of(state, command.queue)
    if queue.properties.grouping != "session":
        raise NotAllowed(queue.name, "it has no sessions")
    check_count("limit", command.limit, 1, PAGE_MAX)
    check_count("skip", command.skip, 0, 1 << 31)
    since_ms = command.since_ms
    keys = (
        group.key
        for group in queue.groups.values()
        if (group.messages or group.state is not None)
        and (since_ms is None or (group.state is not None and group.state_ms > since_ms))
    )
    return Outcome([], list(islice(keys, command.skip, command.skip + command.limit)))
