"""Commands on a running broker."""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

from posthouse.cli.client import Client, Failure, HeldInterrupt, path, unreadable
from posthouse.cli.codes import (
    EMPTY,
    FAILED,
    NOT_ALLOWED,
    NOT_FOUND,
    OK,
    USAGE,
    NotWritten,
    fail,
    flush,
    say,
)
from posthouse.cli.output import check_reader, until_taken
from posthouse.cli.show import Progress, ago, fitted_table, moment, printable, size, table

_BATCH = 500  # lines in one send
_BATCH_BYTES = 4 << 20
_DEAD = "/$dead"
SUB = "/$sub/"  # between the names of a topic and its subscription in that of a queue
_WAIT_MS = 60_000  # in one request
_RECEIVED_MAX = 1_000  # messages in one request
_FOLLOW_MS = 15_000  # in one request, after which is seen whether anybody reads the output
_HELD_SECONDS = 1.0  # that messages are held which were not printed yet

Command = Callable[[argparse.Namespace], int]


def remote(run: Callable[[Client, argparse.Namespace], int]) -> Command:
    """A command on a running broker: whatever it refuses is told."""

    @wraps(run)
    def guarded(options: argparse.Namespace) -> int:
        try:
            client = Client.of(options)
            if getattr(options, "queue", None) is not None and "of_subscription" in options:
                options.queue = _queue_named(client, options.queue, options.of_subscription)
            return run(client, options)
        except Failure as failure:
            return fail(str(failure), failure.code)

    return guarded


def _queue_named(client: Client, name: str, subscription: str | None) -> str:
    """The name of the queue that is meant: also by TOPIC/SUBSCRIPTION. Raises Failure."""
    if subscription is not None:
        return f"{name}{SUB}{subscription}"
    topic, _, subscription = name.rpartition("/")
    if not topic or not subscription or "/$" in name:
        return name
    if not _is_there(client, client.space("topics", topic)):
        return name
    is_subscription = _is_there(
        client, client.space("topics", topic, "subscriptions", subscription)
    )
    if _is_there(client, client.queue(name)):
        if is_subscription:
            sys.stderr.write(
                f"This is the queue {printable(name)}; the subscription of the topic is named by"
                f" {printable(topic)} -s {printable(subscription)}.\n"
            )
        return name
    if not is_subscription:
        raise Failure(
            f"The topic {topic} has no subscription {subscription}; `posthouse subscription ls"
            f" {topic}` lists them.", NOT_FOUND,
        )  # fmt: skip
    return f"{topic}{SUB}{subscription}"


def _is_there(client: Client, where: str) -> bool:
    """Whether it exists, and may be looked at. Raises Failure."""
    try:
        client.ask("GET", where)
    except Failure as failure:
        if failure.code in (NOT_FOUND, NOT_ALLOWED):
            return False
        raise
    return True


def existing(
    run: Callable[[Client, argparse.Namespace], int],
) -> Callable[[Client, argparse.Namespace], int]:
    """A command on a queue that exists: a broker with --auto-create does not make it for this."""

    @wraps(run)
    def guarded(client: Client, options: argparse.Namespace) -> int:
        if options.queue is not None:
            try:
                client.ask("GET", client.queue(options.queue))
            except Failure as failure:
                if failure.code != NOT_ALLOWED:  # who may not look may still be let do it
                    raise
        return run(client, options)

    return guarded


def confirm(options: argparse.Namespace, question: str) -> None:
    """Asks on a terminal, unless --yes was given. Raises Failure where the answer is not yes."""
    if options.yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    sys.stderr.write(f"{printable(question)} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Failure("Nothing was changed.")


def out(options: argparse.Namespace, found: object, text: str) -> int:
    say(json.dumps(found) if options.json else text)
    return OK


# Messages.


@remote
def send(client: Client, options: argparse.Namespace) -> int:
    if options.lines and options.transaction is not None:
        return fail("--lines and --transaction exclude each other.", USAGE)
    if sum((options.lines, options.file is not None, options.body not in (None, "-"))) > 1:
        return fail("Give a body, or --file, or --lines; not more than one of them.", USAGE)
    fields = _fields(options)
    where = client.queue(options.queue, "messages")
    if not options.lines:
        body = _body(options)
        form: dict[str, Any] = {"messages": [fields | body]}
        if options.transaction is not None:
            answer = client.ask("POST", where, form | {"transaction": options.transaction})
            return out(options, answer, f"It is sent to {options.queue} with the commit.")
        answer = client.ask("POST", where, form)
        sequence = answer["sequences"][0]
        if answer.get("dropped"):
            return fail(f"{options.queue} is full, and has dropped it.", FAILED)
        again = " It repeats one that was sent before." if answer["duplicates"] else ""
        return out(options, answer, f"Sent to {options.queue} as {sequence}.{again}")
    progress, sent = Progress("sent"), 0
    for batch in _batches(sys.stdin.buffer):
        client.ask("POST", where, {"messages": [fields | _text_or_bytes(line) for line in batch]})
        sent += len(batch)
        progress.show(sent)
    progress.end()
    return out(options, {"sent": sent}, f"Sent {sent} messages to {options.queue}.")


def _batches(lines: Any) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    bytes_ = 0
    for line in lines:
        batch.append(line.rstrip(b"\r\n"))
        bytes_ += len(line)
        if len(batch) >= _BATCH or bytes_ >= _BATCH_BYTES:
            yield batch
            batch, bytes_ = [], 0
    if batch:
        yield batch


def _fields(options: argparse.Namespace) -> dict[str, Any]:
    given = {
        "id": options.id,
        "subject": options.subject,
        "content_type": options.content_type,
        "correlation_id": options.correlation_id,
        "session_id": options.session,
        "priority": options.priority,
        "ttl_ms": options.ttl,
        "delay_ms": options.delay,
    }
    fields = {name: value for name, value in given.items() if value is not None}
    if options.property:
        fields["properties"] = dict(options.property)
    return fields


def _body(options: argparse.Namespace) -> dict[str, str]:
    if options.file is not None:
        try:
            return _text_or_bytes(Path(options.file).read_bytes())
        except OSError as error:
            raise unreadable(options.file, error) from None
    if options.body is None or options.body == "-":
        return _text_or_bytes(sys.stdin.buffer.read())
    return {"body": options.body}


def _text_or_bytes(data: bytes) -> dict[str, str]:
    from base64 import b64encode

    try:
        return {"body": data.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(data).decode()}


@remote
def receive(client: Client, options: argparse.Namespace) -> int:
    if options.follow and options.session is not None:
        return fail("--follow and --session exclude each other.", USAGE)
    queue = options.queue + (_DEAD if options.dead else "")
    if options.follow and _is_fan_out(client, queue):
        return _follow_fan_out(client, options, queue)
    if options.session is None:
        got = _receive_each(client, options, queue, None)
    else:
        wanted = {"session": options.session or None, "wait_ms": min(options.wait, _WAIT_MS)}
        accept = client.queue(queue, "sessions", "accept")
        session = client.ask("POST", accept, wanted)["token"]
        try:
            got = _receive_each(client, options, queue, session)
        finally:
            if not options.keep:
                release = client.queue(queue, "sessions", "release")
                Client.of(options).ask("POST", release, {"token": session})
    return OK if got else fail(f"There is nothing in {queue}.", EMPTY)


def _receive_each(
    client: Client, options: argparse.Namespace, queue: str, session: str | None
) -> int:
    """Prints and settles messages until there are enough of them; returns how many there were."""
    count = math.inf if options.follow and options.count is None else options.count or 1
    until = math.inf if options.follow else time.monotonic() + options.wait / 1000
    # What is deleted as it is received cannot be given back, so there is one at a time.
    batch = 1 if options.delete else _RECEIVED_MAX
    got = 0
    while got < count:
        wait_ms = 0
        if options.follow or not got:
            wait_ms = round(max(0, min(_FOLLOW_MS, (until - time.monotonic()) * 1000)))
        form = {
            "limit": int(min(batch, count - got)), "wait_ms": wait_ms, "delete": options.delete,
            "session": session,
        }  # fmt: skip
        messages, is_interrupted = _locked(client, queue, form)
        if is_interrupted:
            _give_back(options, queue, session, messages)
            raise KeyboardInterrupt
        if messages:
            got += _hand_over(client, options, queue, session, messages)
        elif time.monotonic() >= until or (got and not options.follow):
            break
        else:
            check_reader()
    return got


def _locked(
    client: Client, queue: str, form: dict[str, object]
) -> tuple[list[dict[str, Any]], bool]:
    """The messages that the broker has locked for us, and whether there was a Ctrl-C meanwhile."""
    with HeldInterrupt(client) as interrupt:
        try:
            messages = client.ask("POST", client.queue(queue, "receive"), form)["messages"]
        except Failure:
            if not interrupt.came:
                raise
            messages = []
    return messages, interrupt.came


def _give_back(
    options: argparse.Namespace, queue: str, session: str | None, messages: list[dict[str, Any]]
) -> None:
    """Of an answer that came with a Ctrl-C; what is deleted already is printed."""
    if options.delete:
        for message in messages:
            _print(options, message)
    else:
        _settle(Client.of(options), options, queue, session, messages, 0)


def _hand_over(
    client: Client,
    options: argparse.Namespace,
    queue: str,
    session: str | None,
    messages: list[dict[str, Any]],
) -> int:
    """Prints messages, completes those and gives the rest back; returns how many were printed.

    Where the reader is slow the rest goes back before its locks end. What the reader of a pipe has
    not taken is not printed: it may end without it.
    """
    printed, begun = 0, time.monotonic()
    try:
        for message in messages:
            _print(options, message)
            until_taken()
            printed += 1
            if time.monotonic() - begun > _HELD_SECONDS:
                break
        _settle(client, options, queue, session, messages, printed)
    except (KeyboardInterrupt, BrokenPipeError, NotWritten, Failure):
        with suppress(Failure):  # the broker is gone too: the locks end by themselves
            # On a connection of its own, as the other may be in the middle of a request.
            _settle(Client.of(options), options, queue, session, messages, printed)
        raise
    return printed


def _settle(
    client: Client,
    options: argparse.Namespace,
    queue: str,
    session: str | None,
    messages: list[dict[str, Any]],
    printed: int,
) -> None:
    """Completes the messages that were printed, and releases the others."""
    if options.delete:
        return
    done = [] if options.keep else messages[:printed]
    for action, settled in (("complete", done), ("release", messages[printed:])):
        if settled:
            locks = [message["token"] for message in settled]
            form = {"locks": locks, "session": session, "partial": True}
            lost = client.ask("POST", client.queue(queue, action), form).get("lost", ())
            if lost and action == "complete":
                sys.stderr.write(
                    f"{len(lost)} messages were taken after their locks had ended, and will be"
                    " received again.\n"
                )


def _is_fan_out(client: Client, queue: str) -> bool:
    """Whether only who is attached to the queue gets its messages."""
    try:
        info = client.ask("GET", client.queue(queue))
    except Failure as failure:
        if failure.code in (NOT_FOUND, NOT_ALLOWED):  # receiving tells why, or makes it
            return False
        raise
    return str(info["properties"]["delivery"]).startswith("fan-out")


def _follow_fan_out(client: Client, options: argparse.Namespace, queue: str) -> int:
    """Attached to the queue; what was not completed ends with the connection."""
    settling, got = Client.of(options), 0
    where = client.queue(queue, "deliveries")
    for line in client.lines(where, delete=int(options.delete))[1]:
        if not line.strip():  # it says that all is well
            check_reader()
            continue
        message = json.loads(line)
        _print(options, message)
        until_taken()
        if message.get("token") and not options.keep:
            form = {"locks": [message["token"]]}
            settling.ask("POST", client.queue(queue, "complete"), form)
        got += 1
        if got == options.count:
            break
    return OK


def _print(options: argparse.Namespace, message: dict[str, Any]) -> None:
    if options.json:
        say(json.dumps(message))
    elif "body" in message or "body_base64" not in message:
        say(printable_lines(message.get("body", "")))
    else:
        say(message["body_base64"])


def printable_lines(text: str) -> str:
    """The text unchanged for a pipe; for a terminal, without characters that could do harm."""
    if not sys.stdout.isatty():
        return text
    return "\n".join(printable(line) for line in text.split("\n"))


@remote
@existing
def peek(client: Client, options: argparse.Namespace) -> int:
    return _peek(client, options, options.queue + (_DEAD if options.dead else ""), options.state)


def _peek(client: Client, options: argparse.Namespace, queue: str, state: str | None) -> int:
    found: list[dict[str, Any]] = []
    first: int | None = options.first
    while first is not None and len(found) < options.count:
        limit = min(options.count - len(found), 1_000)
        page = client.ask(
            "GET", client.queue(queue, "messages"), first=first, limit=limit, state=state,
            session=getattr(options, "session", None),
        )  # fmt: skip
        found += page["messages"]
        first = page["next"]
    if options.json:
        say(json.dumps(found))
        return OK if found else EMPTY
    if not found:
        return fail(f"There is nothing in {queue}.", EMPTY)
    rows = [
        (
            each["sequence"], each.get("state"), each.get("id") or None,
            moment(each.get("due_ms") or each["enqueued_ms"]), each.get("deliveries", 0),
            each.get("reason") or each.get("session_id"), _glance(each),
        )
        for each in found
    ]  # fmt: skip
    say(table(rows, ("number", "state", "id", "time", "deliveries", "reason", "body")))
    return OK


def _glance(message: dict[str, Any]) -> str:
    text = str(message.get("body") or message.get("body_base64", ""))
    return text[:47] + "..." if len(text) > 50 else text


@remote
@existing
def message_show(client: Client, options: argparse.Namespace) -> int:
    """The life line of a message: by its id, or by queue and number."""
    if options.queue is not None:
        if not options.id.isdigit():
            return fail("With --queue a message is named by its number.", USAGE)
        where = client.queue(options.queue, "messages", options.id, "life")
    else:
        where = client.space("messages", options.id, "life")
    lives = client.ask("GET", where)["lives"]
    lines = []
    for each in lives:
        lines.append(f"{client.namespace}/{each['queue']}, message {each['sequence']}:")
        lines += [
            f"  {event['position']:>10}  {moment(event['time_ms'])}  {printable(event['text'])}"
            for event in each["events"]
        ]
    return out(options, lives, "\n".join(lines))


# Queues.


def _queues(client: Client) -> list[dict[str, Any]]:
    return list(pages(client, client.space("queues"), "queues"))


def pages(client: Client, where: str, what: str) -> Iterator[dict[str, Any]]:
    """Yields all items of a listing that comes page by page."""
    after: str | None = ""
    while after is not None:
        page = client.ask("GET", where, after=after, limit=1_000)
        yield from page[what]
        after = page["next"]


def _all_queues(client: Client) -> list[dict[str, Any]]:
    """All queues, with subscriptions, which are queues too."""
    found = _queues(client)
    for topic in pages(client, client.space("topics"), "topics"):
        where = client.space("topics", topic["name"], "subscriptions")
        found += pages(client, where, "subscriptions")
    return found


_OF_SOME = ("subscriptions", "rules", "transfer")
COUNTS = ("active", "locked", "scheduled", "delayed", "deferred", "dead")


@remote
def queue_ls(client: Client, options: argparse.Namespace) -> int:
    found = _queues(client)
    rows = [
        (each["name"], each["properties"]["status"], *(each["counts"][name] for name in COUNTS),
         size(each["size_bytes"]))
        for each in found
    ]  # fmt: skip
    return out(options, found, table(rows, ("queue", "status", *COUNTS, "size")))


@remote
def queue_show(client: Client, options: argparse.Namespace) -> int:
    return show(client, options, client.ask("GET", client.queue(options.queue)))


def show(client: Client, options: argparse.Namespace, info: dict[str, Any]) -> int:
    counts = ", ".join(f"{info['counts'][name]} {name}" for name in COUNTS)
    oldest = info["oldest_ms"]
    lines = [
        f"{client.namespace}/{info['name']}: {counts}",
        f"  size        {size(info['size_bytes'])}",
        f"  receivers   {info['receivers']}",
        f"  created     {moment(info['created_ms'])}",
        f"  oldest      {moment(oldest)}",
        *(f"  {name:<11} {info[name]}" for name in _OF_SOME if info[name]),
        *(f"  {name:<20} {value}" for name, value in info["properties"].items()),
    ]
    return out(options, info, "\n".join(lines))


@remote
def queue_create(client: Client, options: argparse.Namespace) -> int:
    info = client.ask("PUT", client.queue(options.queue), dict(options.set or ()))
    return out(options, info, f"Queue {options.queue} is there.")


@remote
@existing
def queue_update(client: Client, options: argparse.Namespace) -> int:
    if not options.set:
        return fail("Say what to change: --set NAME=VALUE.", USAGE)
    info = client.ask("PATCH", client.queue(options.queue), dict(options.set))
    return show(client, options, info)


@remote
@existing
def queue_delete(client: Client, options: argparse.Namespace) -> int:
    confirm(options, f"Delete the queue {options.queue} with all its messages?")
    client.ask("DELETE", client.queue(options.queue))
    return out(options, {"deleted": options.queue}, f"Queue {options.queue} is gone.")


@remote
@existing
def queue_purge(client: Client, options: argparse.Namespace) -> int:
    return _purge(client, options, options.queue, options.state or ["active"])


def _purge(client: Client, options: argparse.Namespace, queue: str, states: list[str]) -> int:
    confirm(options, f"Remove the {' and '.join(states)} messages of {queue}?")
    form = {"states": states}
    done = _in_steps(client, client.queue(queue, "purge"), form, "removed")
    return out(options, {"removed": done}, f"Removed {done} messages from {queue}.")


def _in_steps(client: Client, where: str, form: dict[str, Any], what: str) -> int:
    """Goes on until it is done, however much there is."""
    progress, done = Progress(what), 0
    first: int | None = 0
    while first is not None:
        answer = client.ask("POST", where, form | {"first": first})
        done += answer["done"]
        first = answer["next"]
        progress.show(done)
    progress.end()
    return done


@remote
@existing
def queue_pause(client: Client, options: argparse.Namespace) -> int:
    return _sides(client, options, "pause", "paused")


@remote
@existing
def queue_resume(client: Client, options: argparse.Namespace) -> int:
    return _sides(client, options, "resume", "running")


def _sides(client: Client, options: argparse.Namespace, action: str, word: str) -> int:
    both = not options.sending and not options.receiving
    form = {"sending": both or options.sending, "receiving": both or options.receiving}
    client.ask("POST", client.queue(options.queue, action), form)
    sides = " and ".join(name for name, wanted in form.items() if wanted)
    return out(options, form, f"Queue {options.queue}: {sides} {word}.")


# Dead letters.


@remote
@existing
def dlq_ls(client: Client, options: argparse.Namespace) -> int:
    if options.queue is not None:
        return _peek(client, options, options.queue + _DEAD, None)
    found = [each for each in _all_queues(client) if each["counts"]["dead"]]
    rows = [(e["name"], e["counts"]["dead"], size(e["dead_size_bytes"])) for e in found]
    return out(options, found, table(rows, ("queue", "dead", "size")))


@remote
@existing
def dlq_show(client: Client, options: argparse.Namespace) -> int:
    page = client.ask(
        "GET", client.queue(options.queue + _DEAD, "messages"), first=options.number, limit=1
    )
    found = [each for each in page["messages"] if each["sequence"] == options.number]
    if not found:
        raise Failure(f"There is no dead letter {options.number} of {options.queue}.", NOT_FOUND)
    lines = [f"{name:<18} {printable(str(value))}" for name, value in found[0].items()]
    return out(options, found[0], "\n".join(lines))


@remote
@existing
def dlq_resubmit(client: Client, options: argparse.Namespace) -> int:
    where = client.queue(options.queue + _DEAD, "resubmit")
    form = {"target": options.to, "keep_reason": options.keep_reason}
    if options.numbers:
        done = client.ask("POST", where, form | {"sequences": options.numbers})["done"]
    else:
        done = _in_steps(client, where, form, "sent again")
    return out(options, {"resubmitted": done}, f"Sent {done} dead letters again.")


@remote
@existing
def dlq_purge(client: Client, options: argparse.Namespace) -> int:
    return _purge(client, options, options.queue + _DEAD, ["active", "deferred"])


# Jobs.


@remote
@existing
def job_start(client: Client, options: argparse.Namespace) -> int:
    queue = options.queue if options.here else options.queue + _DEAD
    form = {"target": options.to, "rate": options.rate, "keep_reason": options.keep_reason}
    job = client.ask("POST", client.queue(queue, "jobs"), form)
    text = f"Job {job['job']} sends {job['total']} messages again; see `posthouse job ls`."
    return out(options, job, text)


@remote
def job_ls(client: Client, options: argparse.Namespace) -> int:
    found = client.ask("GET", f"{client.space('jobs')}?limit={options.count}")["jobs"]
    rows = [
        (job["job"], job["queue"], job["target"] or "its source", job["status"],
         f"{job['moved']} of {job['total']}", job["rate"] or "", moment(job["started_ms"]),
         job["problem"])
        for job in found
    ]  # fmt: skip
    head = ("job", "queue", "to", "status", "moved", "rate", "started", "problem")
    return out(options, found, table(rows, head))


@remote
@existing
def job_cancel(client: Client, options: argparse.Namespace) -> int:
    job = client.ask("DELETE", client.queue(options.queue, "jobs", str(options.job)))
    return out(options, job, f"Job {job['job']} is cancelled; it has moved {job['moved']}.")


# Schedules.


@remote
def schedule_ls(client: Client, options: argparse.Namespace) -> int:
    found = list(pages(client, client.space("schedules"), "schedules"))
    rows = [
        (each["name"], each["queue"], each["when"], each["zone"],
         "paused" if each["paused"] else moment(each["next_ms"]), each["fired"], each["problem"])
        for each in found
    ]  # fmt: skip
    head = ("schedule", "queue", "when", "zone", "next", "sent", "problem")
    return out(options, found, table(rows, head))


@remote
def schedule_create(client: Client, options: argparse.Namespace) -> int:
    message: dict[str, Any] = {"body": options.body}
    if options.subject is not None:
        message["subject"] = options.subject
    if options.session is not None:
        message["session_id"] = options.session
    if options.property:
        message["properties"] = dict(options.property)
    form = {"when": options.when, "zone": options.zone, "queue": options.queue, "message": message}
    method = "PATCH" if options.replace else "PUT"
    client.ask(method, client.space("schedules", options.schedule), form)
    return out(options, {"schedule": options.schedule}, f"Schedule {options.schedule} is there.")


def _of_schedule(client: Client, options: argparse.Namespace, method: str, *more: str) -> int:
    client.ask(method, client.space("schedules", options.schedule, *more))
    word = {"pause": "paused", "resume": "running"}.get("".join(more), "gone")
    return out(options, {options.schedule: word}, f"Schedule {options.schedule} is {word}.")


@remote
def schedule_pause(client: Client, options: argparse.Namespace) -> int:
    return _of_schedule(client, options, "POST", "pause")


@remote
def schedule_resume(client: Client, options: argparse.Namespace) -> int:
    return _of_schedule(client, options, "POST", "resume")


@remote
def schedule_cancel(client: Client, options: argparse.Namespace) -> int:
    return _of_schedule(client, options, "DELETE")


# Transactions.


@remote
def transaction_begin(client: Client, options: argparse.Namespace) -> int:
    made = client.ask("POST", client.space("transactions"), {"timeout_ms": options.timeout})
    return out(options, made, made["transaction"])


@remote
def transaction_commit(client: Client, options: argparse.Namespace) -> int:
    where = client.space("transactions", options.transaction, "commit")
    done = client.ask("POST", where)
    return out(options, done, f"Committed: {len(done['sent'])} sends, {done['settled']} settled.")


@remote
def transaction_rollback(client: Client, options: argparse.Namespace) -> int:
    client.ask("POST", client.space("transactions", options.transaction, "rollback"))
    return out(options, {"rolled_back": options.transaction}, "Rolled back.")


# Sessions, schedules.


@remote
@existing
def session_ls(client: Client, options: argparse.Namespace) -> int:
    names: list[str] = []
    while True:
        some = client.ask(
            "GET", client.queue(options.queue, "sessions"), skip=len(names), limit=1_000
        )["names"]
        names += some
        if len(some) < 1_000:
            return out(options, names, table([(name,) for name in names], ("session",)))


@remote
@existing
def scheduled_ls(client: Client, options: argparse.Namespace) -> int:
    return _peek(client, options, options.queue, "scheduled")


@remote
@existing
def scheduled_cancel(client: Client, options: argparse.Namespace) -> int:
    form = {"sequences": options.numbers}
    client.ask("POST", client.queue(options.queue, "cancel"), form)
    return out(options, {"cancelled": options.numbers}, "They will not be sent.")


# The broker.


@remote
def top(client: Client, options: argparse.Namespace) -> int:
    """Queues as they change; once where there is no terminal."""
    before: dict[str, int] = {}
    then = time.monotonic()
    while True:
        found, now = _all_queues(client), time.monotonic()
        rows = [_top_row(each, before, now - then) for each in found]
        rows.sort(key=lambda row: -row[1])
        before = {each["name"]: _all(each) for each in found}
        then = now
        if options.json:
            say(json.dumps(found))
        else:
            heads = ("queue", "active", "locked", "scheduled", "dead", "receivers", "size",
                     "oldest", "change/s")  # fmt: skip
            clear = "\033[H\033[2J" if sys.stdout.isatty() and not options.once else ""
            say(clear + _fitted(rows, heads, options.rows))
        flush()
        if options.once or (not sys.stdout.isatty() and not options.json):
            return OK
        time.sleep(max(0.1, options.interval))


def _fitted(rows: list[tuple[Any, ...]], heads: tuple[str, ...], rows_max: int) -> str:
    """The table of `top`: on a terminal no wider and no higher than that."""
    if not sys.stdout.isatty():
        return table(rows[:rows_max], heads)
    columns, lines = os.get_terminal_size(sys.stdout.fileno())
    # A line for the heads, one where the cursor is, and one that tells of the rest.
    shown = max(1, min(rows_max, lines - 2 if len(rows) <= lines - 2 else lines - 3))
    text = fitted_table(rows[:shown], heads, columns or 80)
    rest = len(rows) - shown
    return text + f"\nand {rest} more"[:columns] if rest > 0 and lines > 3 else text


def _all(info: dict[str, Any]) -> int:
    return sum(info["counts"][name] for name in ("active", "locked", "scheduled"))


def _top_row(info: dict[str, Any], before: dict[str, int], seconds: float) -> tuple[Any, ...]:
    counts, oldest = info["counts"], info["oldest_ms"]
    change = 0.0
    if info["name"] in before and seconds > 0:
        change = round((_all(info) - before[info["name"]]) / seconds, 1)
    age = None if oldest is None else int(time.time() * 1000) - oldest
    return (
        info["name"], counts["active"], counts["locked"], counts["scheduled"], counts["dead"],
        info["receivers"], size(info["size_bytes"]), ago(age), change,
    )  # fmt: skip


@remote
def feed_tail(client: Client, options: argparse.Namespace) -> int:
    after: int | str = "last" if options.after is None else options.after
    namespace = client.namespace if options.entity else options.namespace
    left = options.count
    if options.namespace is not None:
        _check_namespace(client)
    while True:
        headers, lines = client.lines(
            "/feed", after=after, wait_ms=min(options.wait, _WAIT_MS),
            limit=min(left or 10_000, 10_000), namespace=namespace, entity=options.entity,
            kinds=options.kinds,
        )  # fmt: skip
        got = 0
        for line in lines:
            got += 1
            say(line.decode().rstrip() if options.json else _event(json.loads(line)))
        flush()
        moved = got > 0 or (after != "last" and int(headers["posthouse-next"]) > int(after))
        after = int(headers["posthouse-next"])
        if left is not None:
            left -= got
            if left <= 0:
                return OK
        if not moved and not options.follow:
            return OK if got or options.count is None else EMPTY


def _check_namespace(client: Client) -> None:
    """Raises Failure where there is no such namespace."""
    try:
        client.ask("GET", client.space("queues"), limit=1)
    except Failure as failure:
        if failure.code == NOT_FOUND:
            raise


def _event(row: dict[str, Any]) -> str:
    where = "/".join(str(row[name]) for name in ("namespace", "entity") if row.get(name))
    what = " ".join(
        f"{name}={row[name]}"
        for name in ("sequence_number", "message_id", "session_id", "reason", "target")
        if row.get(name) is not None
    )
    return printable(
        f"{row['position']:>10}  {moment(row['time'])}  {row['kind']:<18} {where} {what}"
    )


@remote
def clock(client: Client, options: argparse.Namespace) -> int:
    form: dict[str, Any] = {}
    if options.advance is not None:
        form["advance_ms"] = options.advance
    if options.set is not None:
        form["set_ms"] = options.set
    for name, word in (("freeze", True), ("resume", False)):
        if getattr(options, name):
            form["frozen"] = word
    if options.auto is not None:
        form["auto"] = "locks" if options.auto == "locks" else options.auto == "on"
    if options.next:
        form["to"] = "next"
    if options.until is not None:
        form["until"] = {
            "kind": options.until, "queue": options.queue or "", "count": options.count or 1
        }  # fmt: skip
    elif options.queue or options.count or options.at_most is not None:
        raise Failure("--queue, --count and --at-most go with --until.", USAGE)
    for name in ("at_most", "quiet", "timeout"):
        if getattr(options, name) is not None:
            form[f"{name}_ms"] = getattr(options, name)
    where = client.space("clock")
    found = client.ask("POST", where, form) if form else client.ask("GET", where)
    words = [moment(found["now_ms"])]
    words += [word for word, on in (("frozen", found["frozen"]), ("auto", found["auto"])) if on]
    lines = [", ".join(words)]
    lines += [f"  {each['count']} {each['kind']} {each['queue']}" for each in found["fired"]]
    return out(options, found, "\n".join(lines))


@remote
def quiet(client: Client, options: argparse.Namespace) -> int:
    locks = "ignore" if options.ignore_locks else "wait"
    found = client.ask(
        "GET", client.space("quiet"), timeout_ms=options.timeout, quiet_ms=options.quiet,
        locks=locks,
    )  # fmt: skip
    return out(options, found, f"All is done at {moment(found['now_ms'])}.")


# Principals.


@remote
def access_ls(client: Client, options: argparse.Namespace) -> int:
    found: list[dict[str, Any]] = []
    while True:
        after = found[-1]["name"] if found else ""
        some = client.ask("GET", path("principals"), after=after, limit=1_000)["principals"]
        found += some
        if len(some) < 1_000:
            break
    rows = [
        (each["name"], grant["namespace"], grant["entity"], ", ".join(grant["rights"]))
        for each in found
        for grant in each["grants"]
    ]
    return out(options, found, table(rows, ("principal", "namespace", "entity", "rights")))


@remote
def access_add(client: Client, options: argparse.Namespace) -> int:
    grant = {
        "namespace": options.in_namespace,
        "entity": options.entity,
        "rights": options.rights.split(","),
    }
    made = client.ask("POST", path("principals"), {"name": options.name, "grants": [grant]})
    return _aws_key(client, options, made) if options.aws else _key(options, made)


@remote
def access_rotate(client: Client, options: argparse.Namespace) -> int:
    return _key(options, client.ask("POST", path("principals", options.name, "rotate")))


def _key(options: argparse.Namespace, made: dict[str, str]) -> int:
    text = (
        f"The key of {made['name']} is shown this once:\n\n"
        f"    export POSTHOUSE_KEY={made['name']}:{made['key']}\n"
    )
    return out(options, made, text)


def _aws_key(client: Client, options: argparse.Namespace, made: dict[str, str]) -> int:
    """A name is an access key id, and the key its secret."""
    told = {
        "AWS_ACCESS_KEY_ID": made["name"], "AWS_SECRET_ACCESS_KEY": made["key"],
        "AWS_ENDPOINT_URL_SQS": client.url, "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    lines = "".join(f"    export {name}={value}\n" for name, value in told.items())
    return out(options, told, f"The key of {made['name']} is shown this once:\n\n{lines}")


@remote
def access_revoke(client: Client, options: argparse.Namespace) -> int:
    confirm(options, f"Remove the principal {options.name}? Its key stops working at once.")
    client.ask("DELETE", path("principals", options.name))
    return out(options, {"revoked": options.name}, f"{options.name} is out.")
