"""Commands that run on Spark: archiving the feed, and looking after the lake."""

import argparse
import io
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import asdict, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

from posthouse.cli.client import Client
from posthouse.cli.codes import FAILED, NOT_FOUND, OK, USAGE, fail, say
from posthouse.cli.show import printable, size, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from posthouse.pipeline.jobs.archive import Progress
    from posthouse.pipeline.lake import Lake, Manifest
    from posthouse.pipeline.wire import FeedClient
    from posthouse.pipeline.work import Way, Work

WATCH_SECONDS = 1.0
FAULTS_SHOWN = 20
AT_ONCE_SECONDS = 2.0  # within which a broker has to answer before something long is begun
# Commands that read the files they name; the others make them.
_READERS = ("verify", "compact", "publish", "report", "reconcile", "triage", "replay", "run")
Run = Callable[[argparse.Namespace], int]


def _on_spark(run: Run) -> Run:
    """Wraps a command so that its expected errors are printed as one sentence."""

    @wraps(run)
    def guarded(options: argparse.Namespace) -> int:
        from posthouse.pipeline.failures import sentence_in, sentence_of
        from posthouse.pipeline.lake import LakeError
        from posthouse.pipeline.session import NoSpark
        from posthouse.pipeline.wire import PosthouseError

        missing = _missing(options) if run.__name__ in _READERS else None
        if missing is not None:
            return fail(missing, NOT_FOUND)
        try:
            return run(options)
        except (LakeError, NoSpark, PosthouseError, OSError) as error:
            return fail(str(error), FAILED)
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
                raise
            said = sentence_in(error) or f"Spark failed: {sentence_of(error)}"
            return fail(said, FAILED)

    return guarded


def _missing(options: argparse.Namespace) -> str | None:
    """What to say of the first thing on this machine that is named, and is not there."""
    from posthouse.pipeline.claims import missing_file

    for name in ("lake", "outbox", "inbox", "file"):
        where = getattr(options, name, None)
        if where is not None and (database := missing_file(where)) is not None:
            return f"There is no database {database}; check the name."
        if where is None or "::" in where or "://" in where or set(where) & set("*?[{"):
            continue  # it is elsewhere, or a pattern
        if not Path(where).exists():
            advice = "run: posthouse pipeline archive" if name == "lake" else "check the name."
            return f"There is no {name} {where}; {advice}"
    return None


def _spark(options: argparse.Namespace) -> "SparkSession":
    from posthouse.pipeline.session import session

    _Telling(options).tell("Starting Spark", {"doing": "starting Spark"})
    # The gateway to Java logs the traceback of a Ctrl-C, by the root logger.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(lambda line: "while sending command" not in line.getMessage())
    before = _children()
    try:
        spark = session(options.master)
    except KeyboardInterrupt:
        # Java, still starting, would miss files of ours that are gone, and log that at length.
        for process in _children() - before:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        raise
    # PySpark logs a mistake in SQL with Java's trace, and raises it, too: we tell it in a sentence.
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    # Spark's own handler asks Java to cancel, in the middle of another call. Java ends with us.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return spark


def _children() -> set[int]:
    """The processes that this one has started; none where the system does not list them."""
    found: set[int] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # of a thread that has ended
            found |= {int(process) for process in file.read_text().split()}
    return found


def _broker(options: argparse.Namespace) -> "FeedClient":
    """The one that other commands would ask."""
    from posthouse.pipeline.options import COMMON, Options

    url, key, ca = Client.where(options)
    given = {"url": url}
    if key is not None:
        name, _, secret = key.partition(":")
        given |= {"accessKeyName": name, "accessKey": secret}
    if ca is not None:
        given["caFile"] = ca
    broker = Options(given, COMMON).broker()
    replace(broker, retry_seconds=AT_ONCE_SECONDS).status()  # it is told soon if not
    return broker


def _lake(options: argparse.Namespace) -> "Lake":
    from posthouse.pipeline.lake import Lake

    return Lake(options.lake)


def _filled_lake(options: argparse.Namespace) -> "tuple[Lake, list[Manifest]]":
    """Raises LakeError where there is none: of nothing one could say that all is well."""
    from posthouse.pipeline.lake import LakeError

    lake = _lake(options)
    there = lake.manifests()
    if not there:
        raise LakeError(f"There is no lake in {lake.where}; run: posthouse pipeline archive")
    return lake, there


class _Telling:
    """The display of progress: on a terminal one line, else lines of JSON."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._rich = sys.stderr.isatty() and not options.json

    def tell(self, text: str, fields: dict[str, object]) -> None:
        if self._rich:
            sys.stderr.write(f"\r\033[K{text}")
        else:
            sys.stderr.write(json.dumps(fields) + "\n")
        sys.stderr.flush()

    def progress(self, now: "Progress") -> None:
        left = now.seconds_left
        until = "" if left is None or not now.lag else f", {left:.0f} s left"
        self.tell(
            f"position {now.position - 1:,} of {now.last:,}: {now.rows:,} rows,"
            f" {now.rate:,.0f} a second, {now.lag:,} behind{until}",
            {
                "position": now.position - 1, "last": now.last, "rows": now.rows,
                "rate": round(now.rate), "lag": now.lag,
                "seconds_left": None if left is None else round(left, 1),
            },
        )  # fmt: skip

    def work(
        self, what: str, now: "Work", seconds: float, left: float | None, whole: int | None
    ) -> None:
        rate = None if now.rows is None else now.rows / seconds
        read = size(now.size_bytes)
        if now.rows is not None:
            of = "" if whole is None else f" of {whole:,}"
            read = f"{now.rows:,}{of} rows, {rate:,.0f} a second"
        part = f", {now.done} of {now.tasks} tasks of this step" if now.tasks else ""
        until = f", {left:.0f} s left" if left else ""
        self.tell(
            f"{what}: {seconds:.0f} s, {read}{part}{until}",
            {
                "doing": what, "seconds": round(seconds, 1), "rows": now.rows,
                "rate": None if rate is None else round(rate), "size_bytes": now.size_bytes,
                "tasks": now.tasks, "done": now.done,
                "seconds_left": None if left is None else round(left, 1),
            },
        )  # fmt: skip

    def end(self) -> None:
        if self._rich:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


@contextmanager
def _watching(
    options: argparse.Namespace,
    spark: "SparkSession",
    what: str,
    whole: int | None = None,
    way: "Way | None" = None,
) -> Iterator[None]:
    """Shows while Spark works what it has read, of `whole` rows if each is read once."""
    from posthouse.pipeline.work import Way, watched

    telling, over = _Telling(options), threading.Event()
    way = Way(rows=whole) if way is None else way

    def watch() -> None:
        with suppress(Exception):  # Spark is gone, which the job itself will say
            while not over.wait(WATCH_SECONDS):
                now = work()
                telling.work(what, now, way.seconds, way.seconds_left(now.rows), whole)

    with watched(spark) as work:
        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            telling.end()
        telling.work(what, work(), way.seconds, 0, whole)
        telling.end()


def _events(
    options: argparse.Namespace, spark: "SparkSession", columns: Sequence[str]
) -> "tuple[DataFrame, str]":
    """The events that a job works on, and the name of their source."""
    from posthouse.pipeline.events import events, span

    where = _broker(options) if options.lake is None else _lake(options)
    told = options.lake if options.lake is not None else Client.where(options)[0]
    if options.lake is not None and (options.since is not None or options.until is not None):
        lake = _lake(options)
        read, whole = len(lake.files(span(options.since, options.until))), len(lake.files())
        fields = {"doing": "reading", "files": read, "files_in_lake": whole}
        _Telling(options).tell(f"Reading {read} of the lake's {whole} files", fields)
    return events(spark, where, options.since, options.until, columns), str(told)


def _rows(options: argparse.Namespace) -> int | None:
    """The number of rows to be read; None where a time range of the broker's limits them."""
    from posthouse.pipeline.events import span

    if options.lake is not None:
        found = _lake(options).files(span(options.since, options.until))
        return sum(each.rows for each in found)
    if options.since is not None or options.until is not None:
        return None
    status = _broker(options).status()
    return int(status["last"]) + 1 - int(status["first"])


def _result(options: argparse.Namespace, text: str, fields: dict[str, object]) -> None:
    say(json.dumps(fields) if options.json else text)


@_on_spark
def archive(options: argparse.Namespace) -> int:
    from posthouse.pipeline.jobs.archive import archive as job

    telling, broker, lake = _Telling(options), _broker(options), _lake(options)
    rows = job(
        _spark(options), broker, lake, reader=options.reader, rows=options.rows,
        follow=options.follow, told=telling.progress,
    )  # fmt: skip
    telling.end()
    end = lake.end()
    last = None if end is None else end - 1
    _result(
        options, f"{rows:,} rows were archived; {lake.where} goes up to position {last}.",
        {"rows": rows, "last": last, "lake": lake.where},
    )  # fmt: skip
    return OK


@_on_spark
def backfill(options: argparse.Namespace) -> int:
    from posthouse.pipeline.jobs.archive import backfill as job

    telling, broker, lake = _Telling(options), _broker(options), _lake(options)
    status = broker.status()
    first = int(status["first"]) if options.first is None else options.first
    end = (lake.end() or int(status["last"]) + 1) if options.last is None else options.last + 1
    rows = job(_spark(options), broker, lake, first, end, rows=options.rows, told=telling.progress)
    telling.end()
    _result(options, f"{rows:,} rows were added.", {"rows": rows, "lake": lake.where})
    return OK


@_on_spark
def verify(options: argparse.Namespace) -> int:
    from posthouse.pipeline.jobs.archive import verify as job

    lake, there = _filled_lake(options)
    spark, whole = _spark(options), sum(each.rows for each in there)
    with _watching(options, spark, "Verifying", whole):
        found = job(spark, lake)
    lines = [f"{found.ranges} ranges with {found.rows:,} rows."]
    lines += [f"Positions {first} to {end - 1} are missing." for first, end in found.gaps]
    lines += [f"Wrong: {each}." for each in found.wrong]
    if found.unnamed:
        lines.append(f"{len(found.unnamed)} files are of no range; archive sweeps them away.")
    lines.append("All is well." if found.is_well else "NOT all is well.")
    _result(options, "\n".join(lines), {**asdict(found), "is_well": found.is_well})
    return OK if found.is_well else FAILED


@_on_spark
def compact(options: argparse.Namespace) -> int:
    from posthouse.pipeline.jobs.archive import compact as job
    from posthouse.pipeline.jobs.archive import runs

    lake, there = _filled_lake(options)
    before = len(there)
    whole = sum(each.rows for run in runs(there, options.rows) for each in run)
    spark = _spark(options)
    with _watching(options, spark, "Putting together", whole):
        replaced = job(spark, lake, rows=options.rows)
    after = len(lake.manifests())
    _result(
        options, f"{replaced} ranges were put together; there are {after}, there were {before}.",
        {"replaced": replaced, "ranges": after},
    )  # fmt: skip
    return OK


@_on_spark
def publish(options: argparse.Namespace) -> int:
    """Publishes the lake as a table, without Spark: its files stay as they are."""
    from posthouse.pipeline.iceberg import settings
    from posthouse.pipeline.published import publish as job

    lake, is_iceberg = _lake(options), options.format == "iceberg"
    if not is_iceberg and (options.catalog is not None or options.table is not None):
        return fail("A Delta table is in the lake itself: it has no --catalog and no --table.",
                    USAGE)  # fmt: skip
    said = settings(lake, options.catalog, options.table) if is_iceberg else {}
    table = job(lake, options.format, said)
    files = len(table.files())
    where = f" in the catalog {said.get('uri', said['catalog'])}" if is_iceberg else ""
    _result(
        options, f"{table.name}{where} has {files:,} files. archive, backfill and compact keep it"
        " in line with the lake.",
        {"table": table.name, "format": options.format, "files": files, "lake": lake.where, **said},
    )  # fmt: skip
    return OK


@_on_spark
def status(options: argparse.Namespace) -> int:
    """Shows the state of the lake, without Spark: it is all in the manifests."""
    from posthouse.pipeline.published import FORMATS

    lake, feed = _lake(options), _broker(options).status()
    there = lake.manifests()
    end = there[-1].end if there else int(feed["first"])
    fields: dict[str, object] = {
        "ranges": len(there), "rows": sum(each.rows for each in there),
        "size_bytes": sum(each.size_bytes for each in there),
        "first": there[0].first if there else None, "last": end - 1 if there else None,
        "gaps": lake.gaps(), "tables": [name for name in FORMATS if lake.setting(name) is not None],
        "lag": max(0, int(feed["last"]) + 1 - end),
    }  # fmt: skip
    held = size(sum(each.size_bytes for each in there))
    text = f"{lake.where} is empty, {fields['lag']:,} behind the broker."
    if there:
        text = (
            f"{fields['rows']:,} rows in {len(there)} ranges, {held}; positions {fields['first']}"
            f" to {fields['last']}, {fields['lag']:,} behind the broker."
        )
    for first, behind in lake.gaps():
        text += f"\nPositions {first} to {behind - 1} are missing; run: posthouse pipeline backfill"
    _result(options, text, fields)
    return OK


@_on_spark
def report(options: argparse.Namespace) -> int:
    from posthouse.pipeline.jobs import report as job
    from posthouse.pipeline.work import Way

    spark = _spark(options)
    way = Way(job.SHARES, _rows(options))
    with _watching(options, spark, "Counting", way=way):
        rows, source = _events(options, spark, job.COLUMNS)
        made = job.report(rows, options.window, options.queue, step=way.step)
        queues = made.queues.orderBy("arrived", ascending=False).toArrow().to_pylist()
        missing = _unknown(options.queue, queues)
        page, overall = "", []
        if missing is None:
            page = job.write(made, options.out, source, options.format, step=way.step)
            overall = made.overall.toArrow().to_pylist()
    if missing is not None:
        return fail(f"Nothing happened in {missing!r} in {source}; check the name.", NOT_FOUND)
    heads = ("sent", "arrived", "completed", "retries", "dead_lettered", "expired", "open")
    times = ("waited_p50_s", "waited_p99_s", "settled_p50_s", "settled_p99_s")
    shown = [
        [name, *(row[head] or 0 for head in heads), *(_seconds(row[time]) for time in times)]
        for name, row in (
            *((f"{each['namespace']}/{each['entity']}", each) for each in queues),
            *(("all", each) for each in overall if len(queues) > 1),
        )
    ]
    titles = ("queue", "sent", "arrived", "completed", "retries", "dead", "expired",
              "still there", "in queue p50", "p99", "to settle p50", "p99")  # fmt: skip
    text = f"{table(shown, titles)}\n\nThe page is {page}, with the tables beside it."
    said = json.loads(json.dumps({"queues": queues, "overall": overall}, default=str))
    _result(options, text, {"page": page, **said})
    return OK


def _unknown(names: Sequence[str], queues: "list[dict[str, object]]") -> str | None:
    """The first of these names that no queue of a report has."""
    known = {row["entity"] for row in queues}
    return next((name for name in names if name not in known), None)


@_on_spark
def reconcile(options: argparse.Namespace) -> int:
    from posthouse.pipeline import claims
    from posthouse.pipeline.jobs import reconcile as job
    from posthouse.pipeline.work import Way

    spark, said = _spark(options), (options.outbox, options.inbox)
    unknown = [each for each in options.allow if each not in job.FAULTS]
    if unknown:
        return fail(f"There is no fault {unknown[0]!r}; there are {', '.join(job.FAULTS)}.", FAILED)
    way = Way(job.SHARES)
    with _watching(options, spark, "Comparing", way=way):
        rows, _ = _events(options, spark, job.COLUMNS)
        names = [_pairs(options.outbox_columns), _pairs(options.inbox_columns)]
        outbox, inbox = (
            None if where is None else claims.read(spark, where, columns, options.staging)
            for where, columns in zip(said, names, strict=True)
        )
        found = job.reconcile(rows, outbox, inbox, queues=options.queue, step=way.step)
        path = job.write(found, options.out, options.format, step=way.step)
        shown = found.faults.limit(FAULTS_SHOWN).toArrow().to_pylist()
    if options.queue and not found.messages and not shown:
        named = ", ".join(map(repr, options.queue))
        return fail(f"Nothing was sent to {named}; name the queue or topic that messages are sent"
                    " to, not a subscription.", NOT_FOUND)  # fmt: skip
    is_well = found.is_well(tuple(options.allow))
    lines = [f"{found.messages:,} messages were compared."]
    if found.nameless:
        lines.append(f"{found.nameless:,} have no id, and were left out.")
    lines += [f"{n:>9,} {name}: {job.FAULTS[name]}" for name, n in found.counts.items() if n]
    for each in shown:
        where = "" if each["entity"] is None else f" in {each['entity']}"
        lines += ["", f"{each['fault']}, {each['message_id']}{where}: {each['detail']}"]
        lines += [f"    {step['time']:%Y-%m-%d %H:%M:%S.%f} {step['kind']:<14} {step['entity']}"
                  for step in each["life"] or ()]  # fmt: skip
    if sum(found.counts.values()):
        lines += ["", f"All of them are in {path}."]
    lines.append("All is well." if is_well else "NOT all is well.")
    fields: dict[str, object] = {
        "messages": found.messages, "nameless": found.nameless, "counts": found.counts,
        "faults": path, "is_well": is_well,
    }  # fmt: skip
    _result(options, "\n".join(map(printable, lines)), fields)
    return OK if is_well else FAILED


@_on_spark
def triage(options: argparse.Namespace) -> int:
    from posthouse.pipeline.jobs import triage as job
    from posthouse.pipeline.work import Way

    spark = _spark(options)
    way = Way(job.SHARES)
    with _watching(options, spark, "Grouping", way=way):
        rows, source = _events(options, spark, job.COLUMNS)
        found = job.triage(rows, options.queue, step=way.step)
        page, groups = job.write(found, options.out, source, options.format, step=way.step)
    lines = [f"{sum(each['messages'] for each in groups):,} dead letters, {len(groups)} causes."]
    for each in groups[:FAULTS_SHOWN]:
        what = each["fingerprint"] or each["reason"] or "no reason given"
        queues = ", ".join(queue["entity"] for queue in each["queues"])
        lines += [
            "", f"{each['messages']:,} in {queues}: {what}",
            f"    {each['advice']}", f"    {each['command']}",
        ]  # fmt: skip
    lines += ["", f"The page is {page}, with the table beside it."]
    said = json.loads(json.dumps(groups, default=str))
    _result(options, "\n".join(map(printable, lines)), {"page": page, "causes": said})
    return OK


@_on_spark
def replay(options: argparse.Namespace) -> int:
    from posthouse.pipeline.jobs import replay as job

    broker, plan = _broker(options), job.load(options.plan)
    chosen = options.where is not None or options.into is not None or options.set
    if plan is not None and chosen:
        return fail(
            f"There is a plan in {options.plan}: carry it out with --yes alone, or remove it.",
            FAILED,
        )
    if plan is None:
        spark = _spark(options)
        with _watching(options, spark, "Choosing"):
            rows, _ = _events(options, spark, job.COLUMNS)
            plan = job.make(
                rows, broker, options.plan, source=options.source, where=options.where or "true",
                into=options.into, changes=_pairs(options.set),
            )  # fmt: skip
    fields: dict[str, object] = {"plan": options.plan, **asdict(plan), "done": 0}
    if not options.yes:
        lines = [f"{count:>9,} messages to {queue}" for queue, count in plan.queues.items()]
        lines.append(f"Nothing was sent. To do it: posthouse pipeline replay --plan {options.plan}"
                     " --yes")  # fmt: skip
        _result(options, "\n".join(map(printable, lines)), fields)
        return OK
    telling = _Telling(options)

    def told(now: job.Progress) -> None:
        seconds = now.left / now.rate if now.rate else None
        until = "" if seconds is None else f", {seconds:.0f} s left"
        telling.tell(
            f"{now.done:,} of {now.messages:,} messages, {now.rate:,.0f} a second{until}",
            {
                "rows": now.done, "left": now.left, "rate": round(now.rate),
                "already": now.already, "vanished": now.vanished,
                "seconds_left": None if seconds is None else round(seconds, 1),
            },
        )  # fmt: skip

    found = job.run(broker, options.plan, rate=options.rate, told=told)
    telling.end()
    text = f"{found.done:,} messages were sent."
    if found.already:
        text += f" {found.already:,} had been sent before."
    if found.vanished:
        text += f" {found.vanished:,} dead letters were not there any more."
    _result(options, text, {**fields, **asdict(found)})
    return OK


@_on_spark
def run(options: argparse.Namespace) -> int:
    from posthouse.pipeline.declared import load
    from posthouse.pipeline.jobs import run as job

    declared, broker, telling = load(options.file), _broker(options), _Telling(options)
    spark = _spark(options)
    telling.end()
    if options.explain:
        plans = job.plan(spark, declared, broker, streams=False)
        told_plans = {name: _explained(frame) for name, frame in plans.items()}
        text = "\n".join(f"{name}:\n{plan}" for name, plan in told_plans.items())
        _result(options, text, {"plans": told_plans})
        return OK

    def told(now: job.Progress) -> None:
        at = "" if now.position is None else f", position {now.position - 1:,}"
        at += f", {now.lag:,} behind" if now.lag else ""
        left = now.seconds_left
        at += f", {left:.0f} s left" if left else ""
        telling.tell(
            f"{now.sink}: {now.rows:,} rows, {now.rate:,.0f} a second, batch {now.batch}{at}",
            {"sink": now.sink, "rows": now.rows, "rate": round(now.rate), "batch": now.batch,
             "position": None if now.position is None else now.position - 1, "lag": now.lag,
             "seconds_left": None if left is None else round(left, 1)},
        )  # fmt: skip

    rows = job.run(spark, declared, broker, once=options.once, told=told)
    telling.end()
    lines = [f"{count:>9,} rows came in for {name}" for name, count in rows.items()]
    _result(options, "\n".join(map(printable, lines)), {"rows": rows})
    return OK


def _explained(frame: "DataFrame") -> str:
    """How Spark would make it, which Spark only prints."""
    with redirect_stdout(io.StringIO()) as printed:
        frame.explain()
    return printed.getvalue().rstrip()


def _pairs(given: list[str]) -> dict[str, str]:
    """Parses NAME=COLUMN pairs."""
    return {name: column for name, _, column in (each.partition("=") for each in given)}


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
