"""`/api/v1` but for its hot routes, the OpenAPI document of all of it, and `/docs`.

A route says by its types what it takes and gives; the document is made of them (router.py).

Names in paths are percent-encoded, `/` in them too. The dead-letter queue of `orders` is
`orders%2F$dead`. Everything that can be asked of a queue under `/queues/Q` can be asked of a topic
under `/topics/T`, and of a subscription under `/topics/T/subscriptions/S`.
"""

import functools
import logging
from base64 import b64encode
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import Meta

from posthouse.broker.access import Principal, new_key
from posthouse.broker.engine import Engine
from posthouse.broker.idleness import QUIET_SECONDS, Unfinished
from posthouse.broker.moving import Moved, Pace, Until
from posthouse.broker.past import Range, resend
from posthouse.broker.rows import WORDS
from posthouse.broker.waiting import until_gone
from posthouse.core.commands import (
    ANSWER_BYTES_MAX,
    RULES_MAX,
    AcceptSession,
    Answer,
    Begin,
    Begun,
    Cancel,
    CancelJob,
    CancelSchedule,
    Command,
    Commit,
    Committed,
    CreateQueue,
    CreateSubscription,
    DeleteQueue,
    GetQueue,
    GetSessionState,
    Granted,
    ListJobs,
    ListQueues,
    ListRules,
    ListSchedules,
    ListSessions,
    ListSubscriptions,
    Pause,
    PauseSchedule,
    Peek,
    Peeked,
    Progress,
    Purge,
    QueueInfo,
    Received,
    ReceiveDeferred,
    ReleaseSession,
    RemoveRule,
    RenewSession,
    Resubmit,
    Resume,
    ResumeSchedule,
    RollBack,
    RolledBack,
    Seen,
    SetRule,
    SetSchedule,
    SetSessionState,
    StartJob,
    UpdateQueue,
)
from posthouse.core.errors import InvalidArgument, NotAllowed, NotFound, TimedOut
from posthouse.core.message import STATES, size_bytes
from posthouse.core.model import (
    SUBSCRIPTION,
    Account,
    Grant,
    Job,
    QueueProperties,
    Schedule,
    entity_of,
    subscription_queue,
)
from posthouse.core.namespaces import (
    CreateNamespace,
    DeleteNamespace,
    ListAccounts,
    ListNamespaces,
    ListReaders,
    RemoveReader,
    RevokeAccount,
    SetAccount,
    SetReader,
    SpaceCommand,
)
from posthouse.core.rules import Rule
from posthouse.server import shapes
from posthouse.server.feed import Feed
from posthouse.server.host import BrokerHost
from posthouse.server.hot import DESCRIBED
from posthouse.server.http import Answer as Response
from posthouse.server.http import Request, decoded
from posthouse.server.problems import HttpProblem
from posthouse.server.router import Operation, Parameter, Router

_audit = logging.getLogger("posthouse.audit")
_encode = msgspec.json.Encoder().encode
_PAGES = 20  # that are looked at to fill one


Name = Annotated[str, Meta(min_length=1, max_length=800)]
Token = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Limit = Annotated[int, Meta(ge=1, le=1_000)]
Number = Annotated[int, Meta(ge=1)]
Wait = Annotated[int, Meta(ge=0, le=shapes.WAIT_MS_MAX)]
First = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class Call:
    """One request: who asks, and short ways to ask the engine."""

    def __init__(self, request: Request, broker: BrokerHost, feed: Feed) -> None:
        assert broker.engine is not None
        self.broker = broker
        self.engine: Engine = broker.engine
        self.request = request
        self.principal: Principal = request.principal
        self.feed = feed

    async def ask(self, namespace: str, command: Command | SpaceCommand) -> Answer:
        return await self.engine.ask(self.principal, namespace, command)

    async def form(self, kind: type[Any]) -> Any:
        return decoded(kind, await self.request.body())


def _json(form: object, status: int = 200) -> Response:
    return Response(_encode(form), status)


_DONE = Response(b"", 204, ())
_router: Router[Call] = Router()
_route = _router.route
V1 = "/api/v1"
NS = V1 + "/namespaces/{namespace}"
QUEUE = NS + "/queues/{queue}"
TOPIC = NS + "/topics/{topic}"
SUB = TOPIC + "/subscriptions/{subscription}"


# Namespaces.


@_route("GET", V1 + "/namespaces", gives=shapes.NamesForm)
async def list_namespaces(call: Call, after: str = "", limit: Limit = 100) -> Response:
    """List the names of the namespaces, page by page."""
    names = await call.ask("", ListNamespaces(after, limit))
    return _json({"names": names})


@_route("PUT", NS, gives=shapes.NameForm, status=201)
async def create_namespace(call: Call, namespace: Name) -> Response:
    """Make a namespace, an isolated set of queues and topics."""
    await call.ask("", CreateNamespace(namespace))
    return _json(shapes.NameForm(namespace), 201)


@_route("DELETE", NS, status=204)
async def delete_namespace(call: Call, namespace: Name) -> Response:
    """Delete a namespace with everything in it."""
    await call.ask("", DeleteNamespace(namespace))
    return _DONE


# Queues.


@_route("GET", NS + "/queues", gives=shapes.QueuesForm)
async def list_queues(call: Call, namespace: Name, after: str = "", limit: Limit = 100) -> Response:
    """List queues with their properties and counts, by name, page by page."""
    queues = _infos(call, namespace, await call.ask(namespace, ListQueues(after, limit, "queue")))
    following = queues[-1].name if len(queues) == limit else None
    return _json(shapes.QueuesForm(queues, following))


def _info(call: Call, namespace: str, info: QueueInfo) -> shapes.QueueInfoForm:
    return shapes.queue_info(info, call.engine.view.oldest_ms(namespace, info.name))


async def _queue(call: Call, namespace: str, queue: str) -> QueueInfo:
    info = await call.ask(namespace, GetQueue(queue))
    assert isinstance(info, QueueInfo)
    return info


@_route("GET", QUEUE, gives=shapes.QueueInfoForm)
async def get_queue(call: Call, namespace: Name, queue: Name) -> Response:
    """Get the properties and counts of a queue."""
    return _json(_info(call, namespace, await _queue(call, namespace, queue)))


@_route("PUT", QUEUE, shapes.QueueForm, shapes.QueueInfoForm, 201)
async def create_queue(call: Call, namespace: Name, queue: Name) -> Response:
    """Make a queue. A property that is left out has its default."""
    properties = shapes.properties_over(await call.form(shapes.QueueForm), QueueProperties())
    await call.ask(namespace, CreateQueue(queue, properties))
    return _json(_info(call, namespace, await _queue(call, namespace, queue)), 201)


@_route("PATCH", QUEUE, shapes.QueueForm, shapes.QueueInfoForm)
async def update_queue(call: Call, namespace: Name, queue: Name) -> Response:
    """Change some properties of a queue."""
    form = await call.form(shapes.QueueForm)
    # The change applies to the properties as they are at this moment.
    old = call.engine.view.properties(namespace, queue) or QueueProperties()
    await call.ask(namespace, UpdateQueue(queue, shapes.properties_over(form, old)))
    return _json(_info(call, namespace, await _queue(call, namespace, queue)))


@_route("DELETE", QUEUE, status=204)
async def delete_queue(call: Call, namespace: Name, queue: Name) -> Response:
    """Delete a queue with its messages and its dead-letter queue."""
    await call.ask(namespace, DeleteQueue(queue))
    return _DONE


# Topics, subscriptions and rules.


@_route("GET", NS + "/topics", gives=shapes.TopicsForm)
async def list_topics(call: Call, namespace: Name, after: str = "", limit: Limit = 100) -> Response:
    """List topics with their properties and counts, by name, page by page."""
    found = await call.ask(namespace, ListQueues(after, limit, "topic"))
    topics = _infos(call, namespace, found)
    return _json(shapes.TopicsForm(topics, topics[-1].name if len(topics) == limit else None))


def _infos(call: Call, namespace: str, found: Answer) -> list[shapes.QueueInfoForm]:
    assert isinstance(found, list)
    return [_info(call, namespace, each) for each in found if isinstance(each, QueueInfo)]


@_route("GET", TOPIC, gives=shapes.QueueInfoForm)
async def get_topic(call: Call, namespace: Name, topic: Name) -> Response:
    """Get the properties and counts of a topic."""
    try:
        info = await _queue(call, namespace, topic)
    except NotFound:
        raise NotFound("topic", topic, namespace) from None
    if info.properties.delivery != "topic":
        raise NotFound("topic", topic, namespace)
    return _json(_info(call, namespace, info))


@_route("PUT", TOPIC, shapes.QueueForm, shapes.QueueInfoForm, 201)
async def create_topic(call: Call, namespace: Name, topic: Name) -> Response:
    """Make a topic. Messages that are sent to it go to its subscriptions."""
    plain = QueueProperties(delivery="topic")
    properties = shapes.properties_over(await call.form(shapes.QueueForm), plain)
    await call.ask(namespace, CreateQueue(topic, properties))
    return _json(_info(call, namespace, await _queue(call, namespace, topic)), 201)


@_route("GET", TOPIC + "/subscriptions", gives=shapes.SubscriptionsForm)
async def list_subscriptions(
    call: Call, namespace: Name, topic: Name, after: str = "", limit: Limit = 100
) -> Response:
    """List the subscriptions of a topic with their properties and counts, by name, page by page."""
    after = after if not after or SUBSCRIPTION in after else subscription_queue(topic, after)
    found = _infos(
        call, namespace, await call.ask(namespace, ListSubscriptions(topic, after, limit))
    )
    following = found[-1].name if len(found) == limit else None
    return _json(shapes.SubscriptionsForm(found, following))


@_route("PUT", SUB, shapes.SubscriptionForm, shapes.QueueInfoForm, 201)
async def create_subscription(
    call: Call, namespace: Name, topic: Name, subscription: Name
) -> Response:
    """Make a subscription. It gets every message, unless rules are given."""
    form = await call.form(shapes.SubscriptionForm)
    queue = subscription_queue(topic, subscription)
    properties = shapes.properties_over(form, QueueProperties())
    command = CreateSubscription(queue, properties)
    if form.rules is not msgspec.UNSET:
        command = CreateSubscription(queue, properties, shapes.rules_in(form.rules))
    await call.ask(namespace, command)
    return _json(_info(call, namespace, await _queue(call, namespace, queue)), 201)


@_route("GET", SUB + "/rules", gives=shapes.RulesForm)
async def list_rules(
    call: Call,
    namespace: Name,
    topic: Name,
    subscription: Name,
    after: str = "",
    limit: Limit = 100,
) -> Response:
    """List the rules of a subscription, by name, page by page."""
    command = ListRules(subscription_queue(topic, subscription), after, limit)
    found = await call.ask(namespace, command)
    assert isinstance(found, list)
    rules = [shapes.rule_out(each) for each in found if isinstance(each, Rule)]
    return _json(shapes.RulesForm(rules, rules[-1].name if len(rules) == limit else None))


@_route("GET", SUB + "/rules/{rule}", gives=shapes.RuleInfoForm)
async def get_rule(
    call: Call, namespace: Name, topic: Name, subscription: Name, rule: Name
) -> Response:
    """Get a rule: its filter, and the changes it makes to messages."""
    command = ListRules(subscription_queue(topic, subscription), limit=RULES_MAX)
    found = await call.ask(namespace, command)
    assert isinstance(found, list)
    for each in found:
        if isinstance(each, Rule) and each.name.casefold() == rule.casefold():
            return _json(shapes.rule_out(each))
    raise NotFound("rule", rule, namespace)


@_route("PUT", SUB + "/rules/{rule}", shapes.RuleForm, status=204)
async def add_rule(
    call: Call, namespace: Name, topic: Name, subscription: Name, rule: Name
) -> Response:
    """Add a rule. It applies to messages that are sent from now on."""
    form = await call.form(shapes.RuleForm)
    command = SetRule(subscription_queue(topic, subscription), shapes.rule_in(rule, form))
    await call.ask(namespace, command)
    return _DONE


@_route("PATCH", SUB + "/rules/{rule}", shapes.RuleForm, status=204)
async def replace_rule(
    call: Call, namespace: Name, topic: Name, subscription: Name, rule: Name
) -> Response:
    """Replace a rule."""
    form = await call.form(shapes.RuleForm)
    queue = subscription_queue(topic, subscription)
    await call.ask(namespace, SetRule(queue, shapes.rule_in(rule, form), new=False))
    return _DONE


@_route("DELETE", SUB + "/rules/{rule}", status=204)
async def remove_rule(
    call: Call, namespace: Name, topic: Name, subscription: Name, rule: Name
) -> Response:
    """Remove a rule. A subscription without rules gets nothing."""
    await call.ask(namespace, RemoveRule(subscription_queue(topic, subscription), rule))
    return _DONE


# Queues of every kind.


@_route("POST", QUEUE + "/pause", shapes.SidesForm, status=204)
async def pause(call: Call, namespace: Name, queue: Name) -> Response:
    """Pause a queue: refuse sends, hold deliveries back, or both."""
    form: shapes.SidesForm = await call.form(shapes.SidesForm)
    await call.ask(namespace, Pause(queue, form.sending, form.receiving))
    return _DONE


@_route("POST", QUEUE + "/resume", shapes.SidesForm, status=204)
async def resume(call: Call, namespace: Name, queue: Name) -> Response:
    """Resume a paused queue: take sends, make deliveries, or both."""
    form: shapes.SidesForm = await call.form(shapes.SidesForm)
    await call.ask(namespace, Resume(queue, form.sending, form.receiving))
    return _DONE


@_route("POST", QUEUE + "/purge", shapes.PurgeForm, shapes.ProgressForm)
async def purge(call: Call, namespace: Name, queue: Name) -> Response:
    """Remove messages, at most 1,000 a call: go on from `next` until it is null."""
    form: shapes.PurgeForm = await call.form(shapes.PurgeForm)
    states = frozenset(STATES.index(each) for each in form.states)
    command = Purge(queue, states, form.first, form.before_ms, form.limit, form.sequences)
    return _progress(await call.ask(namespace, command))


@_route("POST", QUEUE + "/resubmit", shapes.ResubmitForm, shapes.ProgressForm)
async def resubmit(call: Call, namespace: Name, queue: Name) -> Response:
    """Send dead letters again: some by number, or all, at most 1,000 a call."""
    form: shapes.ResubmitForm = await call.form(shapes.ResubmitForm)
    command = Resubmit(queue, form.sequences, form.first, form.target, form.keep_reason)
    return _progress(await call.ask(namespace, command))


@_route("POST", QUEUE + "/jobs", shapes.StartJobForm, shapes.JobForm, status=201)
async def start_job(call: Call, namespace: Name, queue: Name) -> Response:
    """Start a job that sends all messages of a queue again. It goes on over restarts."""
    form: shapes.StartJobForm = await call.form(shapes.StartJobForm)
    job = await call.ask(namespace, StartJob(queue, form.target, form.rate, form.keep_reason))
    assert isinstance(job, Job)
    return _json(shapes.job_out(job), 201)


@_route("GET", QUEUE + "/jobs", gives=shapes.JobsForm)
async def list_jobs_of_queue(
    call: Call, namespace: Name, queue: Name, limit: Limit = 100
) -> Response:
    """List the jobs of a queue, the newest first."""
    return _jobs(await call.ask(namespace, ListJobs(queue, limit)))


@_route("GET", NS + "/jobs", gives=shapes.JobsForm)
async def list_jobs(call: Call, namespace: Name, limit: Limit = 100) -> Response:
    """List the jobs of all queues, the newest first."""
    return _jobs(await call.ask(namespace, ListJobs(None, limit)))


@_route("DELETE", QUEUE + "/jobs/{job}", gives=shapes.JobForm)
async def cancel_job(call: Call, namespace: Name, queue: Name, job: Number) -> Response:
    """Cancel a job. What it has moved stays moved."""
    found = await call.ask(namespace, CancelJob(queue, job))
    assert isinstance(found, Job)
    return _json(shapes.job_out(found))


def _jobs(found: Answer) -> Response:
    assert isinstance(found, list)
    return _json(shapes.JobsForm([shapes.job_out(job) for job in found if isinstance(job, Job)]))


def _progress(progress: Answer) -> Response:
    assert isinstance(progress, Progress)
    return _json(shapes.ProgressForm(progress.done, progress.next))


# Messages.


@_route("GET", QUEUE + "/messages", gives=shapes.PageForm)
async def peek(
    call: Call,
    namespace: Name,
    queue: Name,
    first: First = 0,
    limit: Limit = 100,
    state: str | None = None,
    session: str | None = None,
) -> Response:
    """Look at messages in any state, or in one, from a sequence number on. Nothing changes."""
    if state is not None and state not in STATES:
        raise InvalidArgument("state", f"must be one of {', '.join(STATES)}")
    found: list[Seen] = []
    following: int | None = first
    size = 0
    for _ in range(_PAGES if state else 1):
        page = await call.ask(namespace, Peek(queue, following or 0, limit, session))
        assert isinstance(page, Peeked)
        some = [each for each in page.messages if state is None or each.state == state]
        following = page.next
        if len(found) + len(some) > limit:
            following = some[limit - len(found)].message.sequence
        found += some[: limit - len(found)]
        size += sum(size_bytes(each.message) for each in some)
        if following is None or len(found) >= limit or size > ANSWER_BYTES_MAX // 2:
            break
    return _json(shapes.PageForm([shapes.seen(each) for each in found], following))


@_route("POST", QUEUE + "/cancel", shapes.SequencesForm, status=204)
async def cancel(call: Call, namespace: Name, queue: Name) -> Response:
    """Cancel scheduled messages, all of them or none."""
    form: shapes.SequencesForm = await call.form(shapes.SequencesForm)
    await call.ask(namespace, Cancel(queue, form.sequences))
    return _DONE


@_route("POST", QUEUE + "/receive-deferred", shapes.DeferredForm, shapes.MessagesForm)
async def receive_deferred(call: Call, namespace: Name, queue: Name) -> Response:
    """Receive deferred messages by number, all of them or none."""
    form: shapes.DeferredForm = await call.form(shapes.DeferredForm)
    command = ReceiveDeferred(
        queue, form.sequences, form.delete, form.lock_ms, session=shapes.token_in(form.session)
    )
    answer = await call.ask(namespace, command)
    assert isinstance(answer, Received)
    return _json(shapes.MessagesForm([shapes.delivered(each) for each in answer.deliveries]))


# Sessions.


@_route("GET", QUEUE + "/sessions", gives=shapes.NamesForm)
async def list_sessions(
    call: Call,
    namespace: Name,
    queue: Name,
    skip: First = 0,
    limit: Limit = 100,
    since_ms: First | None = None,
) -> Response:
    """List the sessions that have messages or state, or whose state was set since a moment."""
    names = await call.ask(namespace, ListSessions(queue, since_ms, skip, limit))
    return _json({"names": names})


@_route("POST", QUEUE + "/sessions/accept", shapes.AcceptForm, shapes.SessionForm)
async def accept_session(call: Call, namespace: Name, queue: Name) -> Response:
    """Hold a session: one by its id, or the next that has messages, waiting if asked to."""
    form: shapes.AcceptForm = await call.form(shapes.AcceptForm)
    wait_ms = form.wait_ms
    deadline_ms = call.engine.clock_ms(namespace) + wait_ms if wait_ms else 0
    command = AcceptSession(
        queue, call.engine.new_receiver(), form.session, deadline_ms, form.lock_ms
    )
    granted = await (
        until_gone(call.engine, call.principal, namespace, command, wait_ms, call.request.gone)
        if wait_ms
        else call.ask(namespace, command)
    )
    if not isinstance(granted, Granted):
        raise TimedOut(queue)
    return _json(shapes.SessionForm(granted.session, f"{granted.token:032x}", granted.until_ms))


@_route("POST", QUEUE + "/sessions/renew", shapes.HeldForm, shapes.UntilForm)
async def renew_session(call: Call, namespace: Name, queue: Name) -> Response:
    """Hold a session for longer."""
    form: shapes.HeldForm = await call.form(shapes.HeldForm)
    until_ms = await call.ask(
        namespace, RenewSession(queue, shapes.token_in(form.token), form.lock_ms)
    )
    return _json({"until_ms": until_ms})


@_route("POST", QUEUE + "/sessions/release", shapes.HeldForm, status=204)
async def release_session(call: Call, namespace: Name, queue: Name) -> Response:
    """Give a session up; its messages in flight go back."""
    form: shapes.HeldForm = await call.form(shapes.HeldForm)
    await call.ask(namespace, ReleaseSession(queue, shapes.token_in(form.token)))
    return _DONE


@_route("GET", QUEUE + "/sessions/held/{token}/state", gives=shapes.StateForm)
async def get_session_state(call: Call, namespace: Name, queue: Name, token: Token) -> Response:
    """Get the state of a session that you hold."""
    state = await call.ask(namespace, GetSessionState(queue, int(token, 16)))
    assert state is None or isinstance(state, bytes)
    return _json(shapes.StateForm(None if state is None else b64encode(state).decode()))


@_route("PUT", QUEUE + "/sessions/held/{token}/state", shapes.StateForm, status=204)
async def set_session_state(call: Call, namespace: Name, queue: Name, token: Token) -> Response:
    """Set the state of a session that you hold."""
    form: shapes.StateForm = await call.form(shapes.StateForm)
    state = None if form.state_base64 is None else shapes.bytes_in(form.state_base64)
    await call.ask(namespace, SetSessionState(queue, int(token, 16), state))
    return _DONE


# Schedules.


@_route("GET", NS + "/schedules", gives=shapes.SchedulesForm)
async def list_schedules(
    call: Call, namespace: Name, after: str = "", limit: Limit = 100
) -> Response:
    """List schedules by name, page by page."""
    found = await call.ask(namespace, ListSchedules(after, limit))
    assert isinstance(found, list)
    schedules = [shapes.schedule_out(each) for each in found if isinstance(each, Schedule)]
    following = schedules[-1].name if len(schedules) == limit else None
    return _json(shapes.SchedulesForm(schedules, following))


@_route("PUT", NS + "/schedules/{schedule}", shapes.ScheduleForm, status=204)
async def create_schedule(call: Call, namespace: Name, schedule: Name) -> Response:
    """Make a schedule, which sends a message to a queue or topic repeatedly."""
    return await _set_schedule(call, namespace, schedule, new=True)


@_route("PATCH", NS + "/schedules/{schedule}", shapes.ScheduleForm, status=204)
async def replace_schedule(call: Call, namespace: Name, schedule: Name) -> Response:
    """Replace a schedule."""
    return await _set_schedule(call, namespace, schedule, new=False)


async def _set_schedule(call: Call, namespace: str, name: str, *, new: bool) -> Response:
    form: shapes.ScheduleForm = await call.form(shapes.ScheduleForm)
    old = call.engine.view.schedule(namespace, name)
    if old is not None and not new:  # who takes one away from a queue may send there
        call.broker.check(call.principal, "send", namespace, entity_of(old.queue))
    message = shapes.new_message(form.message, call.engine.clock_ms(namespace))
    command = SetSchedule(form.queue, name, form.when, message, form.zone, new)
    await call.ask(namespace, command)
    return _DONE


@_route("DELETE", NS + "/schedules/{schedule}", status=204)
async def cancel_schedule(call: Call, namespace: Name, schedule: Name) -> Response:
    """Cancel a schedule. It sends nothing more."""
    await call.ask(namespace, CancelSchedule(schedule))
    return _DONE


@_route("POST", NS + "/schedules/{schedule}/pause", status=204)
async def pause_schedule(call: Call, namespace: Name, schedule: Name) -> Response:
    """Pause a schedule. It sends nothing until it is resumed."""
    await call.ask(namespace, PauseSchedule(schedule))
    return _DONE


@_route("POST", NS + "/schedules/{schedule}/resume", status=204)
async def resume_schedule(call: Call, namespace: Name, schedule: Name) -> Response:
    """Resume a schedule at its next time. Messages that were due meanwhile are not sent."""
    await call.ask(namespace, ResumeSchedule(schedule))
    return _DONE


# Transactions.


@_route("POST", NS + "/transactions", shapes.BeginForm, shapes.TransactionForm, 201)
async def begin(call: Call, namespace: Name) -> Response:
    """Begin a transaction. The sends and settlements that name it happen when it is committed."""
    form: shapes.BeginForm = await call.form(shapes.BeginForm)
    begun = await call.ask(namespace, Begin(form.timeout_ms))
    assert isinstance(begun, Begun)
    return _json(shapes.TransactionForm(f"{begun.transaction:032x}", begun.until_ms), 201)


@_route("POST", NS + "/transactions/{transaction}/commit", gives=shapes.CommittedForm)
async def commit(call: Call, namespace: Name, transaction: Token) -> Response:
    """Commit a transaction. If one of its operations fails, all of it is rolled back."""
    number = call.engine.owned(call.principal, int(transaction, 16))
    answer = await call.ask(namespace, Commit(number))
    if isinstance(answer, RolledBack):
        raise HttpProblem(409, "rolled-back", f"The transaction was rolled back: {answer.reason}")
    assert isinstance(answer, Committed)
    sent = [shapes.enqueued(each) for each in answer.sent]
    return _json(shapes.CommittedForm(sent, answer.settled))


@_route("POST", NS + "/transactions/{transaction}/rollback", status=204)
async def roll_back(call: Call, namespace: Name, transaction: Token) -> Response:
    """Roll a transaction back. Messages that were settled in it stay locked."""
    number = call.engine.owned(call.principal, int(transaction, 16))
    await call.ask(namespace, RollBack(number))
    return _DONE


# The past.


@_route("GET", NS + "/messages/{id}/life", gives=shapes.LivesForm)
async def life(call: Call, namespace: Name, id: Name) -> Response:
    """Get everything that happened to the messages with an id."""
    call.broker.check(call.principal, "manage", namespace, "*")
    return _json(shapes.LivesForm(await call.feed.lives(namespace, id)))


@_route("GET", QUEUE + "/messages/{sequence}/life", gives=shapes.LivesForm)
async def life_of(call: Call, namespace: Name, queue: Name, sequence: int) -> Response:
    """Get everything that happened to the message with this number."""
    call.broker.check(call.principal, "manage", namespace, entity_of(queue))
    return _json(shapes.LivesForm(await call.feed.life(namespace, queue, sequence)))


@_route("POST", NS + "/replay", shapes.ReplayForm, shapes.SentForm)
async def replay(call: Call, namespace: Name) -> Response:
    """Send the messages of a range of positions once more, into a queue."""
    form: shapes.ReplayForm = await call.form(shapes.ReplayForm)
    call.broker.check(call.principal, "listen", namespace, form.source or "*")
    what = Range(form.first, form.last + 1, form.source)
    sent = await resend(call.engine, call.principal, namespace, what, form.into)
    return _json(shapes.SentForm(sent))


# Clocks.


@_route("GET", NS + "/clock", gives=shapes.ClockNowForm)
async def get_clock(call: Call, namespace: Name) -> Response:
    """Get the time of a namespace's clock."""
    call.broker.check(call.principal, "manage", namespace, "*")
    if not call.engine.view.has_namespace(namespace):
        raise NotFound("namespace", namespace)
    return _json(_clock(call, namespace))


def _clock(call: Call, namespace: str) -> shapes.ClockNowForm:
    clock = call.engine.own_clock(namespace)
    now_ms = call.engine.clock_ms(namespace)
    if clock is None:
        return shapes.ClockNowForm(now_ms, frozen=False, auto=False)
    return shapes.ClockNowForm(now_ms, frozen=not clock.runs, auto=clock.auto)


@_route("POST", NS + "/clock", shapes.ClockForm, shapes.ClockNowForm)
async def set_clock(call: Call, namespace: Name) -> Response:
    """Freeze, set or advance a namespace's clock, only with `--dev`. Lists what fell due."""
    form: shapes.ClockForm = await call.form(shapes.ClockForm)
    call.broker.check(call.principal, "manage", namespace, "*")
    if not call.broker.config.dev:
        raise NotAllowed(namespace, "clocks can be moved only where the broker runs with --dev")
    _check_until(form)
    engine = call.engine
    clock = engine.clock(namespace)
    _audit.info(
        "%s moves the clock of %s.", call.principal.name, namespace,
        extra={"event": "access.changed", "principal": call.principal.name,
               "namespace": namespace, "command": "clock"},
    )  # fmt: skip
    if form.frozen is not None:
        (clock.freeze if form.frozen else clock.resume)()
    if form.auto is not None:
        clock.auto = form.auto
    fired: list[shapes.FiredForm] = []
    for move in _moves(engine, namespace, form):
        moved = await move
        fired += [shapes.FiredForm(each.kind, each.queue, each.count) for each in moved.fired]
        if moved.missing and form.until is not None:
            raise _not_happened(form.until, moved)
        if moved.busy:
            raise _not_quiet(moved.busy)
    answer = _clock(call, namespace)
    answer.fired = fired
    return _json(answer)


def _moves(
    engine: Engine, namespace: str, form: shapes.ClockForm
) -> Iterator[Coroutine[Any, Any, Moved]]:
    """Yields what a request asks of a clock, one after the other."""
    pace, seconds = None, form.timeout_ms / 1_000
    if form.quiet_ms is not None:
        pace = Pace(form.quiet_ms / 1_000, seconds)
    if form.set_ms is not None:
        yield engine.set_time(namespace, form.set_ms, pace)
    if form.advance_ms is not None:
        yield engine.advance(form.advance_ms, namespace, pace)
    if form.to is not None:
        yield engine.step(namespace, pace)
    if form.until is not None:
        until = Until(form.until.kind, form.until.queue, form.until.count)
        quiet_seconds = QUIET_SECONDS if pace is None else pace.quiet_seconds
        yield engine.advance(form.at_most_ms, namespace, Pace(quiet_seconds, seconds, until))


def _check_until(form: shapes.ClockForm) -> None:
    """Raises InvalidArgument."""
    if form.until is not None and form.until.kind not in WORDS:
        raise InvalidArgument("until.kind", f"must be one of {', '.join(sorted(WORDS))}")


def _not_happened(until: shapes.AwaitedForm, moved: Moved) -> HttpProblem:
    where, times = until.queue or "any queue", until.count - moved.missing
    why = "; ".join(map(str, moved.busy)) or "nothing more is due within at_most_ms"
    detail = f"{until.kind} in {where} has happened {times} times of {until.count}: {why}."
    return HttpProblem(408, "not-happened", detail)


def _not_quiet(busy: Iterable[Unfinished]) -> HttpProblem:
    return HttpProblem(408, "not-quiet", "; ".join(map(str, busy)) + ".")


@_route("GET", NS + "/quiet", gives=shapes.QuietForm)
async def quiet(
    call: Call,
    namespace: Name,
    timeout_ms: Wait = 5_000,
    quiet_ms: Wait = 20,
    locks: Literal["wait", "ignore"] = "wait",
) -> Response:
    """Wait until nobody has anything left to do: only with `--dev`. Else 408, with who is busy."""
    call.broker.check(call.principal, "manage", namespace, "*")
    if not call.broker.config.dev:
        raise NotAllowed(namespace, "quiet can be waited for only where the broker runs with --dev")
    busy = await call.engine.quiet(namespace, timeout_ms, quiet_ms, locks=locks == "wait")
    if busy:
        raise _not_quiet(busy)
    return _json(shapes.QuietForm(call.engine.clock_ms(namespace)))


# Principals.


@_route("GET", V1 + "/principals", gives=shapes.PrincipalsForm)
async def list_principals(call: Call, after: str = "", limit: Limit = 100) -> Response:
    """List principals with their grants. Keys are not shown."""
    found = await call.ask("", ListAccounts(after, limit))
    assert isinstance(found, list)
    accounts = [_account(each) for each in found if isinstance(each, Account)]
    return _json(shapes.PrincipalsForm(accounts))


def _account(account: Account) -> shapes.PrincipalInfoForm:
    grants = [shapes.GrantForm(g.rights, g.namespace, g.entity) for g in account.grants]
    return shapes.PrincipalInfoForm(
        account.name, grants, account.created_ms, account.updated_ms, len(account.keys)
    )


@_route("POST", V1 + "/principals", shapes.PrincipalForm, shapes.KeyForm, 201)
async def add_principal(call: Call) -> Response:
    """Add a principal. Its key is in the answer, and nowhere else."""
    form: shapes.PrincipalForm = await call.form(shapes.PrincipalForm)
    grants = [Grant(each.namespace, each.entity, each.rights) for each in form.grants]
    key = new_key()
    sealed = call.broker.guard.seal(form.name, key)
    await call.ask("", SetAccount(form.name, grants, [sealed], new=True))
    return _json(shapes.KeyForm(form.name, key), 201)


@_route("POST", V1 + "/principals/{principal}/rotate", gives=shapes.KeyForm)
async def rotate(call: Call, principal: Name) -> Response:
    """Give a principal a new key. The previous one works until the next rotation."""
    account = call.engine.view.accounts.get(principal)
    key = new_key()
    keys = [call.broker.guard.seal(principal, key), *(account.keys[:1] if account else ())]
    await call.ask("", SetAccount(principal, account.grants if account else [], keys))
    return _json(shapes.KeyForm(principal, key))


@_route("DELETE", V1 + "/principals/{principal}", status=204)
async def revoke(call: Call, principal: Name) -> Response:
    """Revoke a principal at once, on open connections too."""
    await call.ask("", RevokeAccount(principal))
    return _DONE


# Readers of the feed.


@_route("GET", V1 + "/readers", gives=shapes.ReadersForm)
async def list_readers(call: Call) -> Response:
    """List the readers of the feed, and how far each is behind."""
    await call.ask("", ListReaders())
    return _json(shapes.ReadersForm(call.feed.readers()))


@_route("PUT", V1 + "/readers/{reader}", shapes.ReaderForm, status=204)
async def set_reader(call: Call, reader: Name) -> Response:
    """Register a reader, or acknowledge everything up to a position for it."""
    form: shapes.ReaderForm = await call.form(shapes.ReaderForm)
    call.broker.check(call.principal, "listen", "*", "*")
    call.feed.check_reader(call.engine.view.reader(reader), form.position)
    await call.ask("", SetReader(reader, form.position))
    return _DONE


@_route("DELETE", V1 + "/readers/{reader}", status=204)
async def remove_reader(call: Call, reader: Name) -> Response:
    """Remove a reader. The journal is no longer kept for it."""
    await call.ask("", RemoveReader(reader))
    return _DONE


# The journal.


@_route("GET", V1 + "/store", gives=shapes.StoreForm)
async def get_store(call: Call) -> Response:
    """Get the state of the journal: its positions, its size, its snapshots and its folder."""
    call.broker.check(call.principal, "manage", "*", "*")
    store = call.broker.store
    assert store is not None
    extents = store.extents()
    now = call.engine.now()
    segments = store.segments
    return _json(shapes.StoreForm(
        extents[0].first if extents else 1, now.position, now.durable, len(extents),
        sum(each.size_bytes for each in extents), store.snapshots.positions(),
        None if segments is None else str(segments.folder),
    ))  # fmt: skip


@_route("POST", V1 + "/store/snapshot", gives=shapes.SnapshotForm)
async def make_snapshot(call: Call) -> Response:
    """Make a snapshot of the sealed segments now, beside the running broker."""
    call.broker.check(call.principal, "manage", "*", "*")
    return _json(shapes.SnapshotForm(await call.broker.fold()))


# Documents.


def openapi(more: Sequence[Operation] = ()) -> dict[str, Any]:
    """The OpenAPI document of all under `/api/v1`, the hot routes too, of `/cluster/folder`, and
    of more that is served elsewhere."""
    return _router.document(
        "Posthouse",
        "Names in paths are percent-encoded, / in them too: the dead-letter queue of orders is"
        " orders%2F$dead. What can be asked of a queue at /queues/Q can be asked of a topic at"
        " /topics/T and of a subscription at /topics/T/subscriptions/S. Errors are RFC 9457 problem"
        " documents.",
        [*_hot(), _DELIVERIES, *_FOLDER, *more],
    )


_OF_A_QUEUE = (Parameter("namespace", Name, True), Parameter("queue", Name, True))


def _hot() -> list[Operation]:
    return [
        Operation(
            f"{QUEUE}/{name}", "POST", f"hot_{name}", text, _OF_A_QUEUE, takes, gives,
            201 if name == "messages" else 200,
        )
        for name, (takes, gives, text) in DESCRIBED.items()
    ]  # fmt: skip


_DELIVERIES = Operation(
    QUEUE + "/deliveries", "GET", "hot_deliveries",
    "Messages as they come, one JSON line each, while the connection lasts",
    (*_OF_A_QUEUE, Parameter("credit", Limit, False, 100), Parameter("delete", str, False, "0")),
    media_type="application/x-ndjson",
)  # fmt: skip


_HOLD = Parameter("hold", str, False, "")
_FOLDER = (
    Operation(
        "/cluster/folder", "GET", "list_folder",
        "The files of the journal, one JSON line each; they are held for a copy", (),
        media_type="application/x-ndjson",
    ),
    Operation(
        "/cluster/folder/{name}", "GET", "get_folder_file", "The bytes of a file that is held",
        (Parameter("name", Name, True), _HOLD), media_type="application/octet-stream",
    ),
    Operation(
        "/cluster/folder", "DELETE", "release_folder", "Hold the files no longer", (_HOLD,),
        status=204,
    ),
)  # fmt: skip


def _as_of_a_queue(method: str, parts: Sequence[bytes]) -> Sequence[bytes]:
    """Rewrites the path of a topic or subscription to a queue's, where both are served alike."""
    if len(parts) < 6 or parts[4] != b"topics":
        return parts
    name, rest = parts[5], parts[6:]
    own = rest[:1] == [b"subscriptions"] or (not rest and method in ("GET", "PUT"))
    if rest[:1] == [b"subscriptions"] and len(rest) > 1:
        name, rest = name + _SUBSCRIPTION + rest[1], rest[2:]
        own = rest[:1] == [b"rules"] or (not rest and method == "PUT")
    return parts if own else [*parts[:4], b"queues", name, *rest]


_SUBSCRIPTION = quote(SUBSCRIPTION, safe="$").encode()


async def run(request: Request, broker: BrokerHost, feed: Feed) -> Response:
    """Answers a request. Raises Refused or HttpProblem."""
    parts = _as_of_a_queue(request.method, request.parts)
    return await _router.call(Call(request, broker, feed), request.method, parts, request.query)


# The pages of /docs.

ASSETS = ("swagger-ui.css", "swagger-ui-bundle.js")
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Posthouse</title>
<link rel="stylesheet" href="/docs/swagger-ui.css"></head>
<body><div id="docs"></div><script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script></body></html>
"""
START = 'SwaggerUIBundle({url: "/docs/openapi.json", dom_id: "#docs", validatorUrl: null});\n'


@functools.cache
def document(in_cluster: bool) -> bytes:
    """The OpenAPI document as it is sent; a node of a cluster has more paths."""
    more: Sequence[Operation] = ()
    if in_cluster:
        from posthouse.server import cluster_api  # needs NATS

        more = cluster_api.OPERATIONS
    return msgspec.json.encode(openapi(more))


@functools.cache
def asset(name: str) -> bytes:
    """One of ASSETS. It is read once, and kept."""
    import swagger_ui_bundle

    return (Path(swagger_ui_bundle.swagger_ui_path) / name).read_bytes()
