"""`decide`: what a command should do. It changes nothing, and refuses what cannot be done.

It is one table from the class of a command to the function that decides it, which costs the same
for each of them. Most commands turn into one record at once. Those that make messages available
while receivers wait, or end deliveries, are worked out on a `Plan`.
"""

from collections.abc import Callable
from typing import Any

from posthouse.core import (
    entities,
    receiving,
    schedules,
    sending,
    sessions,
    settling,
    subscriptions,
    tick,
    transactions,
    upkeep,
)
from posthouse.core.commands import (
    Abandon,
    AcceptSession,
    Attach,
    Begin,
    Cancel,
    CancelSchedule,
    Command,
    Commit,
    Complete,
    CreateQueue,
    CreateSubscription,
    Credit,
    DeadLetter,
    Defer,
    DeleteQueue,
    Detach,
    GetQueue,
    GetSessionState,
    ListQueues,
    ListRules,
    ListSchedules,
    ListSessions,
    ListSubscriptions,
    Look,
    Move,
    Pause,
    PauseSchedule,
    Peek,
    Purge,
    Receive,
    ReceiveDeferred,
    Release,
    ReleaseSession,
    RemoveRule,
    Renew,
    RenewSession,
    Resubmit,
    Resume,
    ResumeSchedule,
    RollBack,
    Send,
    SetClock,
    SetFanout,
    SetRule,
    SetSchedule,
    SetSessionState,
    Start,
    StepClock,
    Tick,
    TurnClockBack,
    UpdateQueue,
    Work,
)
from posthouse.core.model import State
from posthouse.core.plan import Outcome


def decide(state: State, command: Command, now_ms: int) -> Outcome:
    """Returns what a command should do; changes nothing. Raises Refused."""
    return _DECIDE[type(command)](state, command, now_ms)


_DECIDE: dict[type[Command], Callable[[State, Any, int], Outcome]] = {
    # Time.
    Start: tick.start,
    Tick: tick.tick,
    StepClock: tick.step_clock,
    SetClock: tick.set_clock,
    TurnClockBack: tick.turn_clock_back,
    SetFanout: tick.set_fanout,
    # Queues and topics.
    CreateQueue: entities.create_queue,
    UpdateQueue: entities.update_queue,
    Pause: entities.pause,
    Resume: entities.pause,
    DeleteQueue: entities.delete_queue,
    GetQueue: entities.get_queue,
    Look: entities.get_queue,
    ListQueues: entities.list_queues,
    # Subscriptions and their rules.
    CreateSubscription: subscriptions.create_subscription,
    ListSubscriptions: subscriptions.list_subscriptions,
    SetRule: subscriptions.set_rule,
    RemoveRule: subscriptions.remove_rule,
    ListRules: subscriptions.list_rules,
    # Messages come, are received, and are settled.
    Send: sending.send,
    Receive: receiving.receive,
    ReceiveDeferred: receiving.receive_deferred,
    Attach: receiving.attach,
    Credit: receiving.credit,
    Detach: receiving.detach,
    Complete: settling.complete,
    Abandon: settling.settle,
    Release: settling.settle,
    Defer: settling.settle,
    DeadLetter: settling.settle,
    Renew: settling.renew,
    # Messages where they stand.
    Peek: upkeep.peek,
    Cancel: upkeep.cancel,
    Purge: upkeep.purge,
    Resubmit: upkeep.resubmit,
    Move: upkeep.move,
    # Sessions.
    AcceptSession: sessions.accept_session,
    RenewSession: sessions.renew_session,
    ReleaseSession: sessions.release_session,
    GetSessionState: sessions.get_session_state,
    SetSessionState: sessions.set_session_state,
    ListSessions: sessions.list_sessions,
    # Schedules.
    SetSchedule: schedules.set_schedule,
    PauseSchedule: schedules.pause,
    ResumeSchedule: schedules.resume,
    CancelSchedule: schedules.cancel,
    ListSchedules: schedules.list_all,
    # Transactions.
    Begin: transactions.begin,
    Work: transactions.work,
    Commit: transactions.commit,
    RollBack: transactions.roll_back,
}
