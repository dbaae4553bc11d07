"""Every command and its options. Light: what a command needs is imported when it runs."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

EXAMPLES = """\
examples:
  posthouse serve --dev --auto-create      a broker for development, in ./posthouse-data
  posthouse send orders 'a book'           send a message
  posthouse receive orders                 receive it, and be done with it
  posthouse top                            queues, as they change

exit codes:
  0 it went well   1 it did not   2 the command line is wrong   3 what was named is not there
  4 not allowed    5 there was nothing, or it took too long     74 the journal cannot be written
  130 Ctrl-C
"""

# The values of arguments in examples that are made up.
_SAMPLES = {
    "queue": "orders", "numbers": "7", "number": "7", "name": "web", "id": "order-4711",
    "shell": "bash", "data": "posthouse-data", "namespace": "default", "first": "1", "last": "9",
    "into": "orders", "words": "queue", "node": "b",
}  # fmt: skip


class _Parser(argparse.ArgumentParser):
    """A parser that shows an example for every command: its own, or one of its arguments."""

    def format_help(self) -> str:
        is_room = any(isinstance(each, argparse._SubParsersAction) for each in self._actions)
        if self.epilog is None and not is_room:
            words = [
                " ".join((*each.option_strings[:1], _SAMPLES.get(each.dest, each.dest)))
                for each in self._actions
                if each.required
            ]
            self.epilog = f"example:\n  {' '.join((self.prog, *words))}"
        return super().format_help()


def make_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Makes the parser for a command line's words; only some commands need the settings."""
    parser: argparse.ArgumentParser = _Parser(
        prog="posthouse",
        description="One message broker that every queue client knows.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version")
    rooms = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    settings = bool({"serve", "config", "complete"} & set(words))
    _add_serve(rooms, settings=settings)
    _add_messages(rooms)
    _add_queues(rooms)
    _add_topics(rooms)
    _add_schedules(rooms)
    _add_dead_letters(rooms)
    _add_jobs(rooms)
    _add_looks(rooms)
    _add_access(rooms)
    _add_store(rooms)
    _add_cluster(rooms)
    _add_pipeline(rooms)
    _add_worker(rooms)
    _add_bridge(rooms)
    _add_tools(rooms, settings=settings)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        sys.stdout.write(f"posthouse {version('posthouse')}\n")
        parser.exit(0)


Rooms: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _room(rooms: Rooms, name: str, help: str) -> Rooms:
    made = rooms.add_parser(name, help=help, description=_sentence(help))
    return made.add_subparsers(title="actions", required=True, metavar="ACTION")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _action(
    rooms: Rooms, name: str, run: str, help: str, example: str = ""
) -> argparse.ArgumentParser:
    made = rooms.add_parser(
        name, help=help, description=_sentence(help),
        epilog=f"example:\n  {example}" if example else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.set_defaults(run=run)
    return made


def _remote(
    rooms: Rooms, name: str, run: str, help: str, example: str = ""
) -> argparse.ArgumentParser:
    """A command on a running broker."""
    made = _action(rooms, name, run if ":" in run else f"remote:{run}", help, example)
    where = _add_broker(made)
    where.add_argument("--namespace", metavar="NAME", help="(POSTHOUSE_NAMESPACE; default)")
    made.add_argument("--json", action="store_true", help="for programs")
    return made


def _add_broker(made: argparse.ArgumentParser) -> "argparse._ArgumentGroup":
    where = made.add_argument_group("which broker")
    where.add_argument("--url", help="its address (POSTHOUSE_URL; http://127.0.0.1:5300)")
    where.add_argument(
        "--key-file", metavar="FILE", help="holds name:key, or the root's key (POSTHOUSE_KEY)"
    )
    where.add_argument("--ca", metavar="FILE", help="whom to trust for https (POSTHOUSE_CA)")
    return where


# How values are read.


def _ms(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?", text)
    if found is None:
        raise argparse.ArgumentTypeError("must be a time like 500ms, 30s, 5m, 2h or 1d")
    units = {"ms": 1, "s": 1_000, None: 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    return round(float(found[1]) * units[found[2]])


def _moment(text: str) -> int:
    from datetime import UTC, datetime

    if text.isdigit():
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            "must be a moment like 2026-03-01T12:00:00Z, or milliseconds since 1970"
        ) from None
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def _pair(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError("must be NAME=VALUE, as in colour=red")
    return name, value


def _setting(text: str) -> tuple[str, object]:
    """A value as JSON has it, or else a word."""
    import json

    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError("must be NAME=VALUE, as in lock_ms=30000")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _whole(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        raise argparse.ArgumentTypeError("must be a whole number, as in 7")
    return int(text)


def _number(text: str) -> float:
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII):
        raise argparse.ArgumentTypeError("must be a number, as in 2 or 0.5")
    return float(text)


def _function(name: str) -> str:
    return {"import": "import_"}.get(name, name.replace("-", "_"))


def _store_url(text: str) -> object:
    from posthouse.store.opening import parse_url

    try:
        return parse_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError("must be a whole number above 0")
    return int(text)


# The commands.


def _add_serve(rooms: Rooms, *, settings: bool) -> None:
    made = _action(
        rooms, "serve", "serve:serve", "run the broker", "posthouse serve --data /var/lib/posthouse"
    )
    if settings:
        _add_settings(made)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """A flag for every setting. Each may also be in the environment, or in a file."""
    from posthouse.server.config import SETTINGS, Config

    defaults = Config()
    for name, (read, help, metavar, secret) in SETTINGS.items():
        if secret:
            continue
        flag = "--" + name.replace("_", "-")
        help = f"{help} ({_possible(read, help, defaults.value(name))})".replace("%", "%%")
        if not metavar:
            parser.add_argument(flag, dest=name, action="store_const", const="true", help=help)
        elif metavar.endswith("..."):
            metavar = metavar.removesuffix("...")
            parser.add_argument(
                flag, dest=name, action="append", metavar=metavar, help=f"{help}; may be repeated"
            )
        else:
            parser.add_argument(flag, dest=name, metavar=metavar, help=help)


def _possible(read: object, help: str, default: object) -> str:
    """The values that a setting can have, and its default."""
    values = getattr(read, "values", "")
    if default is None:
        told = "" if "default:" in help else "default: none"
    elif isinstance(default, bool):
        told = f"default: {'on' if default else 'off'}"
    else:
        told = f"default: {getattr(read, 'show', str)(default)}"
    return "; ".join(part for part in (values, told) if part)


def _add_messages(rooms: Rooms) -> None:
    made = _remote(
        rooms, "send", "send", "send a message, or one for each line of the input",
        "posthouse send orders 'a book' --property colour=red --delay 5m",
    )  # fmt: skip
    made.add_argument("queue")
    made.add_argument("body", nargs="?", help="the input, if not given or -")
    made.set_defaults(late="body")
    made.add_argument("--file", metavar="FILE", help="the body is in a file")
    made.add_argument("--lines", action="store_true", help="each line of the input is a message")
    made.add_argument("--id")
    made.add_argument("--subject")
    made.add_argument("--content-type", metavar="TYPE")
    made.add_argument("--correlation-id", metavar="ID")
    made.add_argument("--session", metavar="ID")
    made.add_argument("--priority", type=_whole, choices=range(10), metavar="0-9")
    made.add_argument("--ttl", type=_ms, metavar="TIME", help="it expires after that")
    made.add_argument("--delay", type=_ms, metavar="TIME", help="it can be received only then")
    made.add_argument(
        "--property", type=_pair, action="append", metavar="NAME=VALUE", help="may be repeated"
    )
    made.add_argument("--transaction", metavar="ID", help="it is sent when that is committed")
    made = _remote(
        rooms, "receive", "receive", "receive messages, print them, and be done with them",
        "posthouse receive orders --count 10 --wait 30s",
    )  # fmt: skip
    made.add_argument("queue", help="or TOPIC/SUBSCRIPTION")
    made.add_argument(
        "-n", "--count", type=_positive, metavar="N",
        help="at most; 1 if not given, with --follow any number",
    )  # fmt: skip
    made.add_argument("--wait", type=_ms, default=0, metavar="TIME", help="for the first one")
    made.add_argument("--session", metavar="ID", nargs="?", const="", help="of one, or the next")
    made.add_argument("--dead", action="store_true", help="from the dead-letter queue")
    made.add_argument(
        "--follow",
        action="store_true",
        help="and those that come, until there are N, or ^C; not of sessions",
    )
    _of_subscription(made)
    ends = made.add_mutually_exclusive_group()
    ends.add_argument("--keep", action="store_true", help="leave them locked; --json has tokens")
    ends.add_argument("--delete", action="store_true", help="delete them before they are printed")
    made = _remote(
        rooms, "peek", "peek", "look at messages; nothing changes", "posthouse peek orders -n 20"
    )
    made.add_argument("queue")
    _paged(made)
    made.add_argument("--dead", action="store_true", help="in the dead-letter queue")
    _of_subscription(made)
    made.add_argument("--session", metavar="ID")
    made.add_argument("--state", choices=("active", "locked", "scheduled", "delayed", "deferred"))
    messages = _room(rooms, "message", "look at one message")
    made = _remote(
        messages, "show", "message_show", "everything that happened to a message, as it happened",
        "posthouse message show order-4711",
    )  # fmt: skip
    made.add_argument("id", help="its id, or with --queue its number there")
    made.add_argument("--queue")
    scheduled = _room(rooms, "scheduled", "messages that wait for their time")
    made = _remote(scheduled, "ls", "scheduled_ls", "list them")
    made.add_argument("queue")
    _paged(made)
    made = _remote(scheduled, "cancel", "scheduled_cancel", "they will not be sent")
    made.add_argument("queue")
    made.add_argument("numbers", type=_whole, nargs="+", metavar="NUMBER")


def _add_schedules(rooms: Rooms) -> None:
    schedules = _room(rooms, "schedule", "send messages again and again")
    _remote(schedules, "ls", "schedule_ls", "list schedules with their next times")
    made = _remote(
        schedules, "create", "schedule_create", "send a message again and again",
        "posthouse schedule create report orders 'make the report' --when 'at 14:30'"
        " --zone Europe/Berlin",
    )  # fmt: skip
    made.add_argument("schedule")
    made.add_argument("queue", help="or a topic")
    made.add_argument("body")
    made.add_argument("--when", required=True, metavar="WORDS",
                      help="'every 30 seconds', 'at 14:30', or five fields of cron")  # fmt: skip
    made.add_argument("--zone", default="UTC", help="a time zone (UTC)")
    made.add_argument("--subject")
    made.add_argument("--session", metavar="ID")
    made.add_argument(
        "--property", type=_pair, action="append", metavar="NAME=VALUE", help="may be repeated"
    )
    made.add_argument("--replace", action="store_true", help="it is there already")
    for name, help in (
        ("pause", "nothing is sent until it is resumed"),
        ("resume", "go on with the next time"),
        ("cancel", "remove it"),
    ):
        made = _remote(schedules, name, f"schedule_{name}", help)
        made.add_argument("schedule")


def _add_jobs(rooms: Rooms) -> None:
    jobs = _room(rooms, "job", "send all messages of a queue again, bit by bit")
    made = _remote(
        jobs, "start", "job_start", "send dead letters again, also over a restart of the broker",
        "posthouse job start orders --rate 100",
    )  # fmt: skip
    made.add_argument("queue", help="its dead letters, or with --here its own messages")
    made.add_argument("--here", action="store_true",
                      help="the queue holds dead letters that were forwarded to it")  # fmt: skip
    made.add_argument("--to", metavar="QUEUE", help="(the queue each came from)")
    made.add_argument("--rate", type=_whole, default=0, metavar="N",
                      help="messages a second, at most (no limit)")  # fmt: skip
    made.add_argument("--keep-reason", action="store_true", help="the reason stays with them")
    made = _remote(jobs, "ls", "job_ls", "list jobs, the newest first")
    made.add_argument("-n", "--count", type=_positive, default=20, metavar="N", help="at most")
    made = _remote(jobs, "cancel", "job_cancel", "end a job; what it has moved stays moved")
    made.add_argument("queue", help="as `job ls` shows it")
    made.add_argument("job", type=_positive, help="its number")


def _paged(made: argparse.ArgumentParser) -> None:
    made.add_argument("-n", "--count", type=_positive, default=20, metavar="N", help="at most")
    made.add_argument("--first", type=_whole, default=0, metavar="NUMBER", help="from there on")


def _add_queues(rooms: Rooms) -> None:
    queues = _room(rooms, "queue", "make, look at and change queues")
    _remote(queues, "ls", "queue_ls", "list queues with their counts")
    made = _remote(
        queues, "create", "queue_create", "make a queue",
        "posthouse queue create orders --set lock_ms=30000 --set requires_session=true",
    )  # fmt: skip
    made.add_argument("queue")
    _settable(made)
    made = _remote(queues, "show", "queue_show", "its properties and counts")
    made.add_argument("queue")
    made = _remote(queues, "update", "queue_update", "change some of its properties")
    made.add_argument("queue")
    _settable(made)
    made = _remote(queues, "delete", "queue_delete", "remove it with all its messages")
    made.add_argument("queue")
    _asks(made)
    made = _remote(queues, "purge", "queue_purge", "remove its messages")
    made.add_argument("queue")
    _asks(made)
    made.add_argument(
        "--state", action="append", choices=("active", "scheduled", "delayed", "deferred"),
        help="only these; active if not given; may be repeated",
    )  # fmt: skip
    for name, help in (
        ("pause", "refuse sends, hold deliveries back, or both"),
        ("resume", "take sends and make deliveries again"),
    ):
        made = _remote(queues, name, f"queue_{name}", help)
        made.add_argument("queue")
        made.add_argument("--sending", action="store_true", help="only that side")
        made.add_argument("--receiving", action="store_true", help="only that side")
    transactions = _room(rooms, "transaction", "several things together, or none of them")
    made = _remote(
        transactions, "begin", "transaction_begin", "begin one; prints its id",
        "posthouse transaction begin --timeout 30s",
    )  # fmt: skip
    made.add_argument("--timeout", type=_ms, default=120_000, metavar="TIME", help="(2m)")
    for name, help in (("commit", "make it all happen"), ("rollback", "nothing of it happens")):
        made = _remote(transactions, name, f"transaction_{name}", help)
        made.add_argument("transaction")
    sessions = _room(rooms, "session", "look at sessions")
    made = _remote(sessions, "ls", "session_ls", "list a queue's sessions")
    made.add_argument("queue")
    _of_subscription(made)


def _add_topics(rooms: Rooms) -> None:
    topics = _room(rooms, "topic", "make, look at and change topics")
    _remote(topics, "ls", "topics:topic_ls", "list topics")
    for name, help in (
        ("create", "make a topic: what is sent to it goes to its subscriptions"),
        ("show", "its properties and counts"),
        ("update", "change some of its properties"),
        ("delete", "remove it with all its subscriptions"),
    ):
        made = _remote(topics, name, f"topics:topic_{name}", help)
        made.add_argument("topic")
        if name in ("create", "update"):
            _settable(made)
        elif name == "delete":
            _asks(made)
    of = _room(rooms, "subscription", "make, look at and change subscriptions of topics")
    made = _remote(of, "ls", "topics:subscription_ls", "list those of a topic with their counts")
    made.add_argument("topic")
    for name, help, example in (
        ("create", "make one; it gets every message, unless --sql says which",
         "posthouse subscription create news mine --sql \"colour = 'red'\""),
        ("show", "its properties and counts", ""),
        ("update", "change some of its properties", ""),
        ("delete", "remove it with all its messages", ""),
    ):  # fmt: skip
        made = _remote(of, name, f"topics:subscription_{name}", help, example)
        made.add_argument("topic")
        made.add_argument("subscription")
        if name in ("create", "update"):
            _settable(made)
        elif name == "delete":
            _asks(made)
        if name == "create":
            made.add_argument("--sql", metavar="EXPRESSION", help="only messages that fit")
    _add_rules(rooms)


def _add_rules(rooms: Rooms) -> None:
    rules = _room(rooms, "rule", "say which messages a subscription gets")
    made = _remote(rules, "ls", "topics:rule_ls", "list the rules of a subscription")
    made.add_argument("topic")
    made.add_argument("subscription")
    made = _remote(
        rules, "add", "topics:rule_add", "add a rule, or put another in its place",
        "posthouse rule add news mine red --sql \"colour = 'red'\" --action 'SET seen = TRUE'",
    )  # fmt: skip
    for name in ("topic", "subscription", "rule"):
        made.add_argument(name)
    made.add_argument("--sql", metavar="EXPRESSION", help="messages that fit")
    made.add_argument("--pattern", help="of the subject, such as 'events.#'")
    made.add_argument("--style", choices=("amqp", "nats"), default="amqp",
                      help="of the pattern: * and #, or * and >")  # fmt: skip
    made.add_argument("--equal", type=_setting, action="append", metavar="NAME=VALUE",
                      help="a property that has to be so; may be repeated")  # fmt: skip
    made.add_argument("--field", type=_pair, action="append", metavar="NAME=VALUE",
                      help="subject, id, correlation_id, ...; may be repeated")  # fmt: skip
    made.add_argument("--action", metavar="STATEMENTS", help="what is changed of them, in SQL")
    made.add_argument("--replace", action="store_true", help="it is there already")
    made = _remote(rules, "remove", "topics:rule_remove", "remove a rule")
    for name in ("topic", "subscription", "rule"):
        made.add_argument(name)


def _of_subscription(made: argparse.ArgumentParser) -> None:
    made.add_argument("-s", "--subscription", dest="of_subscription", metavar="NAME",
                      help="where the name is a topic's: of this subscription")  # fmt: skip


def _asks(made: argparse.ArgumentParser) -> None:
    made.add_argument("--yes", action="store_true", help="do it without asking on a terminal")


def _settable(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--set", type=_setting, action="append", metavar="NAME=VALUE",
        help="a property, as `queue show` lists them; may be repeated",
    )  # fmt: skip


def _add_dead_letters(rooms: Rooms) -> None:
    dead = _room(rooms, "dlq", "look after dead letters")
    made = _remote(dead, "ls", "dlq_ls", "which queues have some, or those of one queue")
    made.add_argument("queue", nargs="?")
    _of_subscription(made)
    _paged(made)
    made = _remote(dead, "show", "dlq_show", "one dead letter, with all there is to know")
    made.add_argument("queue")
    made.add_argument("number", type=_whole)
    _of_subscription(made)
    made = _remote(
        dead, "resubmit", "dlq_resubmit", "send some again, or all", "posthouse dlq resubmit orders"
    )
    made.add_argument("queue")
    made.add_argument(
        "numbers", type=_whole, nargs="*", metavar="NUMBER", help="all if none is given"
    )
    made.add_argument("--to", metavar="QUEUE", help="where they came from, if not given")
    made.add_argument("--keep-reason", action="store_true", help="the reason stays with them")
    _of_subscription(made)
    made.set_defaults(late="numbers")
    made = _remote(dead, "purge", "dlq_purge", "remove them")
    made.add_argument("queue")
    _asks(made)
    _of_subscription(made)


def _add_looks(rooms: Rooms) -> None:
    made = _remote(rooms, "top", "top", "queues, as they change")
    made.add_argument("--interval", type=_number, default=1.0, metavar="SECONDS")
    made.add_argument("--rows", type=_positive, default=40, metavar="N", help="the fullest ones")
    made.add_argument("--once", action="store_true", help="show it once")
    feed = _room(rooms, "feed", "read what happens")
    made = _remote(
        feed, "tail", "feed_tail", "everything that happens, as it happens",
        "posthouse feed tail --follow --kinds sent,dead-lettered",
    )  # fmt: skip
    made.add_argument("--after", type=_whole, metavar="POSITION", help="the last one if not given")
    made.add_argument("--entity", metavar="QUEUE")
    made.add_argument("--kinds", metavar="WORDS", help="with commas between")
    made.add_argument("-n", "--count", type=_positive, metavar="N", help="end after so many")
    made.add_argument("--wait", type=_ms, default=5_000, metavar="TIME", help="for something new")
    made.add_argument("--follow", action="store_true", help="never end")
    made = _remote(
        rooms, "clock", "clock", "look at a namespace's clock, or move it (with --dev)",
        "posthouse clock --advance 1h",
    )  # fmt: skip
    made.add_argument("--advance", type=_ms, metavar="TIME")
    made.add_argument("--set", type=_moment, metavar="MOMENT")
    made.add_argument("--next", action="store_true", help="to what is due next")
    made.add_argument(
        "--until", metavar="KIND", help="until this has happened, as in the feed: dead-lettered"
    )
    made.add_argument("--queue", metavar="QUEUE", help="with --until: only there")
    made.add_argument("--count", type=_positive, metavar="N", help="with --until: so often (1)")
    made.add_argument("--at-most", type=_ms, metavar="TIME", help="with --until: not beyond (30d)")
    made.add_argument(
        "--quiet", type=_ms, metavar="TIME",
        help="after each step, wait until nothing has come from clients for that long",
    )  # fmt: skip
    made.add_argument("--timeout", type=_ms, metavar="TIME", help="of real time for that (5s)")
    runs = made.add_mutually_exclusive_group()
    runs.add_argument("--freeze", action="store_true")
    runs.add_argument("--resume", action="store_true")
    made.add_argument(
        "--auto", choices=("on", "off", "locks"),
        help="moves by itself when nobody has work; locks: and lets locks run out",
    )  # fmt: skip
    made = _remote(
        rooms, "quiet", "quiet", "wait until nobody has anything left to do (with --dev)",
        "posthouse quiet --timeout 10s",
    )  # fmt: skip
    made.add_argument("--timeout", type=_ms, default=5_000, metavar="TIME", help="(5s)")
    made.add_argument(
        "--quiet",
        type=_ms,
        default=20,
        metavar="TIME",
        help="nothing has come for that long (20ms)",
    )
    made.add_argument(
        "--ignore-locks", action="store_true", help="locks that are held do not matter"
    )


def _add_access(rooms: Rooms) -> None:
    access = _room(rooms, "access", "who may do what")
    _remote(access, "ls", "access_ls", "list principals and what they may do")
    made = _remote(
        access, "add", "access_add", "add a principal; its key is shown once",
        "posthouse access add web --rights send --entity 'orders*'",
    )  # fmt: skip
    made.add_argument("name")
    made.add_argument("--rights", required=True, metavar="WORDS", help="of manage,send,listen")
    made.add_argument("--in-namespace", default="*", metavar="PATTERN", help="all if not given")
    made.add_argument("--entity", default="*", metavar="PATTERN", help="all if not given")
    made.add_argument(
        "--aws", action="store_true", help="show the key as clients of Amazon SQS take it"
    )
    made = _remote(access, "rotate", "access_rotate", "a new key; the old one works until the next")
    made.add_argument("name")
    made = _remote(access, "revoke", "access_revoke", "remove a principal; it is out at once")
    made.add_argument("name")
    _asks(made)


def _add_store(rooms: Rooms) -> None:
    store = _room(rooms, "store", "look after a broker's journal")

    def action(name: str, help: str) -> argparse.ArgumentParser:
        made = _action(store, name, f"store:{_function(name)}", help)
        where = made.add_mutually_exclusive_group(required=True)
        where.add_argument("--data", type=Path, metavar="DIR", help="the data folder")
        where.add_argument(
            "--store", type=_store_url, metavar="URL", help="as given to `posthouse serve --store`"
        )
        made.add_argument("--json", action="store_true", help="for programs")
        return made

    action("verify", "check every frame and snapshot; changes nothing")
    action("repair", "keep what can be read of a damaged journal, and say what is lost")
    action("stats", "what is in it; also while a broker runs on it")
    action("snapshot", "write a snapshot, so that the next start is quick; beside a broker too")
    made = action("state", "the queues as they were at a position; changes nothing")
    made.add_argument("--at", type=_whole, metavar="POSITION", help="the last one if not given")
    made = action("trace", "everything that happened to a message; changes nothing")
    made.add_argument("--namespace", required=True)
    made.add_argument("--id", metavar="MESSAGE-ID")
    made.add_argument("--queue")
    made.add_argument("--sequence", type=_whole, metavar="NUMBER", help="in that queue")
    made = action("export", "write a journal into a file of JSON lines, with its snapshots")
    made.add_argument("file", type=Path, metavar="FILE")
    made = action("import", "read such a file into a store that is empty")
    made.add_argument("file", type=Path, metavar="FILE")
    made = _action(
        store, "copy", "store:copy", "copy a journal into a store that is empty, or one namespace",
        "posthouse store copy file:/var/lib/posthouse sqlite:/var/lib/journal.db\n"
        "  posthouse store copy --namespace shop --move file:/srv/a file:/srv/b",
    )  # fmt: skip
    made.add_argument("source", type=_store_url, metavar="FROM", help="a store, as file:DIR")
    made.add_argument("target", type=_store_url, metavar="TO", help="as sqlite:FILE")
    made.add_argument(
        "--namespace", metavar="NAME",
        help="only this namespace, as it is now, into a store that may hold others",
    )  # fmt: skip
    made.add_argument("--move", action="store_true",
                      help="with --namespace: delete it in FROM once TO has it")  # fmt: skip
    made.add_argument("--json", action="store_true", help="for programs")
    made = _action(
        store, "backup", "store_backup:backup",
        "copy the data folder of a broker, also while it runs, and check the copy",
        "posthouse store backup --data /var/lib/posthouse /backup/monday",
    )  # fmt: skip
    made.add_argument("to", type=Path, metavar="TO", help="a folder that is not there, or empty")
    made.add_argument(
        "--data", type=Path, metavar="DIR", help="the data folder; else --url names the broker"
    )
    made.add_argument("--json", action="store_true", help="for programs")
    _add_broker(made)
    made = _action(
        store, "restore", "store_backup:restore", "make a data folder of a backup, and check it",
        "posthouse store restore /backup/monday --data /var/lib/posthouse",
    )  # fmt: skip
    made.add_argument("source", type=Path, metavar="FROM", help="a backup")
    made.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="the data folder, without a journal"
    )
    made.add_argument("--json", action="store_true", help="for programs")
    made = action("set-clock", "bring a broker's time back that is ahead of this machine's clock")
    made.add_argument(
        "--scheduled", action="store_true",
        help="scheduled messages are due earlier, too: their moments were given by that clock",
    )  # fmt: skip
    made = action("resend", "send what was sent at some positions once more")
    made.add_argument("--namespace", required=True)
    made.add_argument("--first", type=_whole, required=True, metavar="POSITION")
    made.add_argument("--last", type=_whole, required=True, metavar="POSITION")
    made.add_argument("--from", dest="source", metavar="QUEUE", help="only what was sent to it")
    made.add_argument("--into", required=True, metavar="QUEUE")


def _add_cluster(rooms: Rooms) -> None:
    cluster = _room(rooms, "cluster", "several nodes on one replicated journal")
    made = _action(
        cluster, "init", "cluster:init",
        "write cluster.yaml and a secret, and say what to run on which machine",
        "posthouse cluster init a=host1 b=host2 c=host3 --name shop",
    )  # fmt: skip
    made.add_argument("machines", nargs="+", metavar="NODE=HOST[:PORT]", help="1, 3 or 5 of them")
    made.add_argument("--name", default="posthouse", help="of the cluster (posthouse)")
    made.add_argument("--to", type=Path, default=Path(), metavar="DIR",
                      help="where the files are written (here)")  # fmt: skip
    made.add_argument("--json", action="store_true", help="for programs")
    made = _action(
        cluster, "up", "cluster_up:up", "run this machine's NATS server and its broker",
        "posthouse cluster up --config cluster.yaml --node a --data /var/lib/posthouse",
    )  # fmt: skip
    made.add_argument("--config", type=Path, metavar="FILE",
                      help="as `cluster init` writes it (cluster.yaml; or POSTHOUSE_PEERS and"
                      " POSTHOUSE_CLUSTER_SECRET_FILE)")  # fmt: skip
    made.add_argument("--node", metavar="NAME", help="which of them this is (POSTHOUSE_NODE)")
    made.add_argument("--data", type=Path, metavar="DIR",
                      help="the data folder (POSTHOUSE_DATA; posthouse-data)")  # fmt: skip
    made.add_argument("--only", choices=("nats", "broker"),
                      help="become that one program, for a supervisor such as systemd")  # fmt: skip
    made.add_argument("--json", action="store_true", help="for programs")
    made = _action(
        cluster, "try", "cluster_try:try_", "three nodes on this machine, to watch one die",
        "posthouse cluster try",
    )  # fmt: skip
    made.add_argument("--data", type=Path, metavar="DIR",
                      help="where they keep their data (removed at the end)")  # fmt: skip
    made.add_argument("--json", action="store_true", help="for programs")
    made = _action(
        cluster, "permissions", "cluster:permissions",
        "the least permissions that a node's user needs in NATS",
        "posthouse cluster permissions --name shop --node a",
    )  # fmt: skip
    made.add_argument("--name", default="posthouse", help="of the cluster (posthouse)")
    made.add_argument("--node", default="a", metavar="NAME", help="(a)")
    made.add_argument("--json", action="store_true", help="for programs")
    _remote(
        cluster, "status", "cluster:status",
        "who leads, how far the others are, and what is to be done",
    )  # fmt: skip
    made = _remote(
        cluster, "step-down", "cluster:step_down", "have another node lead",
        "posthouse cluster step-down --to b",
    )  # fmt: skip
    made.add_argument("--to", metavar="NODE", help="the one that is furthest, if not given")
    made = _remote(
        cluster, "forget", "cluster:forget", "a node that is gone does not hold the stream any more"
    )
    made.add_argument("node", metavar="NODE")
    made = _remote(
        cluster, "hold", "cluster:hold", "stop writing on purpose, to work on the NATS servers",
        "posthouse cluster hold --for 10m",
    )  # fmt: skip
    ends = made.add_mutually_exclusive_group()
    ends.add_argument("--for", dest="lasts", type=_ms, default=600_000, metavar="TIME",
                      help="at most (10m)")  # fmt: skip
    ends.add_argument("--release", action="store_true", help="go on")
    _remote(cluster, "verify", "cluster:verify", "compare the folders of all nodes, frame by frame")
    _add_founding(cluster)


def _add_founding(cluster: Rooms) -> None:
    made = _action(
        cluster, "secret", "founding:secret",
        "make the secret of a cluster that is to begin with a broker's data folder",
        "posthouse cluster secret --data /var/lib/posthouse cluster.secret",
    )  # fmt: skip
    made.add_argument("--data", type=Path, required=True, metavar="DIR", help="the data folder")
    made.add_argument("file", type=Path, metavar="FILE", help="where the secret is written")
    made.add_argument("--json", action="store_true", help="for programs")
    made = _action(
        cluster, "found", "founding:found",
        "begin the log of a cluster with a data folder; all nodes must be stopped",
        "posthouse cluster found --store nats://h1,h2,h3 --cluster shop --data /var/lib/posthouse",
    )  # fmt: skip
    made.add_argument("--store", type=_store_url, required=True, metavar="URL",
                      help="as given to `posthouse serve`")  # fmt: skip
    made.add_argument("--cluster", required=True, metavar="NAME", help="its name")
    made.add_argument("--data", type=Path, required=True, metavar="DIR",
                      help="the folder that has most of the journal")  # fmt: skip
    made.add_argument("--replicas", type=_whole, default=3, metavar="N",
                      help="servers of NATS that hold the log each (3)")  # fmt: skip
    made.add_argument("--log-window", metavar="SIZE", default="2G",
                      help="what the log may hold before it is purged (2G)")  # fmt: skip
    made.add_argument("--nats-creds", type=Path, metavar="FILE", help="credentials for NATS")
    made.add_argument("--nats-ca", type=Path, metavar="FILE",
                      help="who has signed NATS' certificates")  # fmt: skip
    made.add_argument("--replace-log", action="store_true",
                      help="remove the log that is there, if it holds no more than the"
                      " folder")  # fmt: skip
    made.add_argument("--json", action="store_true", help="for programs")


def _add_pipeline(rooms: Rooms) -> None:
    pipeline = _room(rooms, "pipeline", "messages as data, on Spark")

    def action(name: str, help: str, *needs: str, example: str = "") -> argparse.ArgumentParser:
        made = _action(pipeline, name, f"pipeline:{name}", help, example)
        made.add_argument("--json", action="store_true", help="for programs")
        default = None if "events" in needs else "posthouse-lake"
        otherwise = "the broker itself" if "events" in needs else default
        if "lakeless" not in needs:
            made.add_argument(
                "--lake", default=default, metavar="WHERE",
                help=f"a folder, or an address that Spark can reach ({otherwise})",
            )  # fmt: skip
        if "events" in needs:
            for name, dest in (("--from", "since"), ("--to", "until")):
                made.add_argument(
                    name, dest=dest, metavar="WHEN",
                    help="a position, or a moment like 2026-11-16T15:00:00Z",
                )  # fmt: skip
        if "queues" in needs:
            made.add_argument(
                "--queue", action="append", default=[], metavar="NAME",
                help="only this queue, topic or TOPIC/SUBSCRIPTION; may be given several times",
            )  # fmt: skip
        if "broker" in needs:
            _add_broker(made)
        if "spark" in needs:
            made.add_argument(
                "--master", default="local[*]",
                help="where Spark runs: local[*], spark://..., yarn, k8s://..., sc://...",
            )  # fmt: skip
        if "rows" in needs:
            made.add_argument(
                "--rows", type=_positive, default=500_000, metavar="N", help="of a range, at most"
            )
        return made

    made = action(
        "archive", "bring everything that happened into the lake, once", "broker", "spark", "rows",
        example="posthouse pipeline archive --lake lake --follow",
    )  # fmt: skip
    made.add_argument("--follow", action="store_true", help="go on until it is stopped")
    made.add_argument("--reader", default="archive", metavar="NAME",
                      help="under which the broker keeps what was not archived")  # fmt: skip
    made = action(
        "backfill", "bring what is missing in the lake, and still in the broker", "broker", "spark",
        "rows",
    )  # fmt: skip
    made.add_argument("--first", type=_whole, metavar="POSITION", help="the broker's first")
    made.add_argument("--last", type=_whole, metavar="POSITION", help="the lake's last")
    action("verify", "read the whole lake, and say whether every position is there once", "spark")
    action("compact", "put small ranges of the lake together", "spark", "rows")
    action("status", "what is in the lake, and how far behind it is", "broker")
    made = action(
        "publish", "have the lake as a table of Iceberg or Delta, for other engines",
        example="posthouse pipeline publish --lake lake --catalog https://catalog.example",
    )  # fmt: skip
    made.add_argument("--format", choices=("iceberg", "delta"), default="iceberg",
                      help="of the table (iceberg)")  # fmt: skip
    made.add_argument("--catalog", metavar="CATALOG",
                      help="of Iceberg: sqlite:///PATH, the URL of a REST catalog, or the name of"
                      " one in .pyiceberg.yaml (an SQLite database in the lake)")  # fmt: skip
    made.add_argument("--table", metavar="NAMESPACE.TABLE",
                      help="its name in the catalog (posthouse.events)")  # fmt: skip
    made = action(
        "report", "what went through the queues, as a page and as tables", "broker", "spark",
        "events", "queues", example="posthouse pipeline report --lake lake --queue orders",
    )  # fmt: skip
    made.add_argument("--window", type=_positive, metavar="SECONDS",
                      help="that charts go by; as long as gives a good picture")  # fmt: skip
    _add_out(made, "report")
    made = action(
        "reconcile", "hold what was sent, what came and what was processed against each other",
        "broker", "spark", "events", "queues",
        example="posthouse pipeline reconcile --lake lake --outbox sqlite:///shop.db::outbox",
    )  # fmt: skip
    _add_reconcile(made)
    made = action(
        "triage", "dead letters by cause, with what could be done about each", "broker", "spark",
        "events", "queues", example="posthouse pipeline triage --out triage",
    )  # fmt: skip
    _add_out(made, "triage")
    made = action(
        "replay", "send dead letters, or what was once sent, again: each message once", "broker",
        "spark", "events",
        example="posthouse pipeline replay --where 'reason = \"Timeout\"' --rate 10",
    )  # fmt: skip
    _add_replay(made)
    made = action(
        "run", "a pipeline of your own, declared in YAML", "broker", "spark", "lakeless",
        example="posthouse pipeline run revenue.yaml --once",
    )  # fmt: skip
    made.add_argument("file", metavar="FILE")
    made.add_argument("--once", action="store_true", help="what there is, and no more")
    made.add_argument("--explain", action="store_true", help="how Spark would do it, and no more")


def _add_reconcile(made: argparse.ArgumentParser) -> None:
    where = "a file of Parquet, CSV or JSON, or DATABASE-URL::TABLE, or DATABASE-URL::QUERY"
    for name, what in (("outbox", "producers say they sent"), ("inbox", "consumers processed")):
        made.add_argument(f"--{name}", metavar="WHERE", help=f"what {what}: {where}")
        made.add_argument(
            f"--{name}-columns", nargs="+", default=[], metavar="NAME=COLUMN",
            help="what message_id, entity and body are called there",
        )  # fmt: skip
    made.add_argument(
        "--allow", nargs="+", default=[], metavar="FAULT",
        help="what is all right, such as open and dead",
    )  # fmt: skip
    made.add_argument("--staging", metavar="DIR",
                      help="where rows of a database are put, if not on this machine")  # fmt: skip
    _add_out(made, "reconcile")


def _add_replay(made: argparse.ArgumentParser) -> None:
    made.add_argument("--plan", default="posthouse-replay", metavar="DIR",
                      help="where what is to be done is written (posthouse-replay)")  # fmt: skip
    made.add_argument("--source", choices=("dead", "sent"), default="dead",
                      help="dead letters, or whatever was sent")  # fmt: skip
    made.add_argument("--where", metavar="SQL", help="a condition, in Spark's SQL; all of them")
    made.add_argument("--into", metavar="QUEUE", help="where they go; where they were")
    made.add_argument("--set", nargs="+", default=[], metavar="FIELD=SQL",
                      help="a field, by an expression in Spark's SQL")  # fmt: skip
    made.add_argument(
        "--rate", type=_number, metavar="N", help="messages a second; as many as it can"
    )
    made.add_argument("--yes", action="store_true", help="do it: without, it is only planned")


def _add_out(made: argparse.ArgumentParser, folder: str) -> None:
    made.add_argument("--out", default=f"posthouse-{folder}", metavar="DIR",
                      help=f"where the page and the tables go (posthouse-{folder})")  # fmt: skip
    made.add_argument("--format", choices=("parquet", "csv", "json"), default="parquet",
                      help="of the tables")  # fmt: skip


def _add_worker(rooms: Rooms) -> None:
    made = _action(
        rooms, "worker", "worker:worker", "run a worker: functions that handle messages",
        "posthouse worker shop.orders:app --url posthouse://localhost",
    )  # fmt: skip
    made.add_argument("app", metavar="MODULE:APP", help="where a posthouse.Worker is")
    made.add_argument("--url", help="which broker, before what the worker says itself"
                      " (POSTHOUSE_CLIENT_URL)")  # fmt: skip
    made.add_argument("--concurrency", type=_positive, metavar="N",
                      help="messages, or sessions, that each handler has at a time")  # fmt: skip
    made.add_argument("--reload", action="store_true", help="start again when its code changes")
    made.add_argument("--json", action="store_true", help="for programs")


def _add_bridge(rooms: Rooms) -> None:
    bridge = _room(rooms, "bridge", "events between services, with an outbox and an inbox")
    for name, help in (
        ("run", "run the relay and the consumers of a bridge"),
        ("relay", "run the relay alone: send what the outbox holds"),
        ("consume", "run the consumers alone"),
    ):
        made = _action(
            bridge, name, f"bridge:{name}", help, f"posthouse bridge {name} shop.events:bridge"
        )
        made.add_argument("target", metavar="MODULE:NAME", nargs="?",
                          help="where a posthouse.bridge.Bridge is")  # fmt: skip
        made.add_argument("--json", action="store_true", help="for programs")
        _add_bridge_settings(made)
    for name, help in (
        ("plan", "what would be created and changed for the bridge, and conflicts"),
        ("provision", "create and change what the bridge needs"),
    ):
        made = _of_bridge(
            bridge, name, name, help,
            f"posthouse bridge {name} --url nats://admin:key@n1 --app api --destination worker"
            " --both-sides",
        )  # fmt: skip
        made.add_argument("--both-sides", action="store_true",
                          help="also what the other services need")  # fmt: skip
        if name == "provision":
            made.add_argument("--dry-run", action="store_true", help="only say what would be done")
            made.add_argument("--recreate", action="store_true",
                              help="make consumers anew, at their position, that cannot be changed"
                              " in place")  # fmt: skip
    made = _of_bridge(
        bridge, "permissions", "permissions", "what a user of NATS must be allowed",
        "posthouse bridge permissions --app api --destination worker",
    )  # fmt: skip
    made.add_argument("--push", action="store_true", help="events are pushed")
    made.add_argument("--provision", action="store_true", help="also to provision")
    made.add_argument("--operate", action="store_true",
                      help="also to look at dead letters and replay them")  # fmt: skip
    made = _action(
        bridge, "schema", "bridge:schema", "the statements that create the tables",
        "posthouse bridge schema --dialect postgresql",
    )  # fmt: skip
    made.add_argument("--dialect", choices=("postgresql", "mysql", "mariadb", "sqlite"),
                      default="postgresql", help="of the database (postgresql)")  # fmt: skip
    made.add_argument("--prefix", default="posthouse_", help="of the tables' names (posthouse_)")
    made.add_argument("--schema", default="", metavar="NAME", help="in which they are")
    made.add_argument("--keep-payload", action="store_true", help="the inbox keeps envelopes")
    made.add_argument("--json", action="store_true", help="for programs")
    _of_bridge(
        bridge, "health", "health", "how a bridge, its transport and its tables are",
        "posthouse bridge health --bridge shop.events:bridge",
    )  # fmt: skip
    _add_bridge_tables(bridge)
    _add_bridge_letters(bridge)
    made = _action(
        bridge, "bench", "bridge:bench", "how fast events go from a commit to a handler",
        "posthouse bridge bench --url nats://localhost --events 5000",
    )  # fmt: skip
    made.add_argument("--url", help="of the transport (memory://)")
    made.add_argument("--database", metavar="URL",
                      help="as SQLAlchemy has it; tables with the prefix posthouse_bench_ are made"
                      " and removed (an SQLite file)")  # fmt: skip
    made.add_argument("--events", type=_positive, default=2_000, metavar="N", help="(2000)")
    made.add_argument("--size", type=_positive, default=512, metavar="BYTES",
                      help="of a payload (512)")  # fmt: skip
    made.add_argument("--concurrency", type=_positive, default=8, metavar="N",
                      help="handlers at a time (8)")  # fmt: skip
    made.add_argument("--batch", type=_whole, default=0, metavar="N",
                      help="events in one transaction; each has its own if not given")  # fmt: skip
    made.add_argument("--json", action="store_true", help="for programs")


def _of_bridge(
    rooms: Rooms, name: str, run: str, help: str, example: str = ""
) -> argparse.ArgumentParser:
    """A command on a bridge: that of a module, or one that options describe."""
    made = _action(rooms, name, f"bridge:{run}", help, example)
    made.add_argument("--bridge", metavar="MODULE:NAME", help="the bridge of a module")
    _add_bridge_settings(made)
    made.add_argument("--json", action="store_true", help="for programs")
    return made


def _add_bridge_settings(made: argparse.ArgumentParser) -> None:
    which = made.add_argument_group("which bridge, if no module says so")
    which.add_argument("--url", help="of the transport (POSTHOUSE_BRIDGE_URL)")
    which.add_argument("--app", metavar="NAME", help="of this service (POSTHOUSE_BRIDGE_APP)")
    which.add_argument(
        "--destination", action="append", metavar="NAME",
        help="a service it exchanges events with; may be repeated (POSTHOUSE_BRIDGE_DESTINATION)",
    )  # fmt: skip
    which.add_argument("--stream", metavar="NAME", help="(POSTHOUSE_BRIDGE_STREAM)")
    which.add_argument("--database", metavar="URL",
                       help="as SQLAlchemy has it (POSTHOUSE_BRIDGE_DATABASE)")  # fmt: skip
    which.add_argument(
        "--set", type=_setting, action="append", metavar="NAME=VALUE",
        help="another setting of a bridge; may be repeated",
    )  # fmt: skip


def _add_bridge_tables(bridge: Rooms) -> None:
    outbox = _room(bridge, "outbox", "events that wait to be sent")
    made = _of_bridge(outbox, "ls", "outbox_ls", "list the rows of the outbox")
    made.add_argument("-n", "--count", type=_positive, default=20, metavar="N", help="at most")
    made.add_argument("--status", choices=("pending", "sent", "failed"), help="only these")
    for name, help in (
        ("retry", "send events again that the transport has refused"),
        ("drop", "remove events that the transport has refused"),
    ):
        made = _of_bridge(outbox, name, f"outbox_{name}", help)
        made.add_argument("ids", nargs="*", metavar="EVENT", help="all that were refused, if none")
        made.add_argument("--yes", action="store_true", help="do it: without, all are only counted")
    inbox = _room(bridge, "inbox", "events that were handled")
    made = _of_bridge(inbox, "ls", "inbox_ls", "list the rows of the inbox, the latest first")
    made.add_argument("-n", "--count", type=_positive, default=20, metavar="N", help="at most")
    made.add_argument("--status", choices=("processing", "processed", "failed"), help="only these")
    made.add_argument("--consumer", metavar="NAME", help="only of this consumer")


def _add_bridge_letters(bridge: Rooms) -> None:
    letters = _room(bridge, "dlq", "events that could not be handled")

    def chosen(made: argparse.ArgumentParser) -> None:
        made.add_argument("--reason", help="only of this reason, such as unrecoverable")
        made.add_argument("--type", help="only of this type of event")
        made.add_argument("--error", metavar="CLASS", help="only after an error of this class")

    made = _of_bridge(letters, "ls", "dlq_ls", "list dead letters")
    made.add_argument("-n", "--count", type=_positive, default=20, metavar="N", help="at most")
    chosen(made)
    made = _of_bridge(letters, "show", "dlq_show", "show a dead letter with its event")
    made.add_argument("id", metavar="EVENT", help="the id of the event")
    for name, help in (
        ("replay", "publish events again to the subject they came from"),
        ("drop", "remove dead letters for good"),
    ):
        made = _of_bridge(
            letters, name, f"dlq_{name}", help,
            f"posthouse bridge dlq {name} --bridge shop.events:bridge --reason unrecoverable --yes",
        )  # fmt: skip
        made.add_argument("ids", nargs="*", metavar="EVENT", help="all that are chosen, if none")
        chosen(made)
        made.add_argument("--yes", action="store_true", help="do it: without, it is only said")


def _add_tools(rooms: Rooms, *, settings: bool) -> None:
    config = _room(rooms, "config", "look at the configuration")
    made = _action(
        config, "show", "serve:config_show", "what `serve` would run with, and where it comes from"
    )
    made.add_argument("--json", action="store_true", help="for programs")
    if settings:
        _add_settings(made)
    tls = _room(rooms, "tls", "certificates")
    made = _action(
        tls, "env", "serve:tls_env", "lines for a shell that make clients trust this broker",
        'eval "$(posthouse tls env)"',
    )  # fmt: skip
    made.add_argument(
        "--data", type=Path, default=Path(os.environ.get("POSTHOUSE_DATA", "posthouse-data")),
        metavar="DIR", help="the data folder (POSTHOUSE_DATA; posthouse-data)",
    )  # fmt: skip
    made.add_argument("--json", action="store_true", help="for programs")
    made = _action(
        rooms, "completion", "completion:script", "a script by which your shell completes commands",
        'eval "$(posthouse completion bash)"',
    )  # fmt: skip
    made.add_argument("shell", choices=("bash", "zsh", "fish"))
    made = _action(rooms, "complete", "completion:complete", "what could come next, for the shell")
    made.add_argument("words", nargs=argparse.REMAINDER)
