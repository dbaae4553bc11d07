"""Triage: dead letters grouped by cause, with what could be done about each."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posthouse.pipeline.causes import with_causes
from posthouse.pipeline.events import of_queues, sql_text
from posthouse.pipeline.lives import Lives
from posthouse.pipeline.pages import page
from posthouse.pipeline.tables import write_table
from posthouse.pipeline.work import Step, nothing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EXAMPLES, EXAMPLE_CHARS = 3, 500
GROUPS_MAX = 1_000  # that a page shows
COLUMNS = (  # of the events, that it looks at
    "position", "time", "namespace", "entity", "kind", "message_id", "sequence_number", "reason",
    "description", "body", "subject", "target", "target_sequence_number",
)  # fmt: skip
SHARES = (0.3, 1.0)  # of its time, that are behind it after each step
KEY = ("namespace", "reason", "error", "fingerprint", "shape")


def triage(events: "DataFrame", queues: Sequence[str] = (), *, step: Step = nothing) -> "DataFrame":
    """A row for each cause, with its queues, first and last seen, and examples; the most first.

    A cause that several queues have is one row. With `queues` only their dead letters count.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    order = Window.partitionBy(*KEY).orderBy("position")
    dead = Lives(events).dead()
    if queues:
        dead = dead.where(of_queues("queue", queues))
    dead = with_causes(dead).withColumn("rank", f.row_number().over(order))
    step()
    example = f.struct(
        "position", "entity", "message_id", "sequence_number", "description",
        f.expr(f"left(make_valid_utf8(cast(body as string)), {EXAMPLE_CHARS}) as body"),
    )  # fmt: skip
    first = f.when(f.col("rank") <= EXAMPLES, example)
    by_queue = dead.groupBy(*KEY, "entity").agg(
        f.count("*").alias("messages"), f.min("time").alias("first"), f.max("time").alias("last"),
        f.collect_list(first).alias("examples"),
    )  # fmt: skip
    queue = f.struct(f.col("messages"), f.col("entity"))
    return (
        by_queue.groupBy(*KEY).agg(
            f.sum("messages").alias("messages"), f.min("first").alias("first"),
            f.max("last").alias("last"),
            f.sort_array(f.collect_list(queue), asc=False).alias("queues"),
            f.array_sort(f.flatten(f.collect_list("examples"))).alias("examples"),
        )
        .orderBy(f.desc("messages"), "first")
    )  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """A proposal to deal with a cause, and the command that does it."""

    kind: str
    text: str
    command: str


# Words in the text of an error, and what they are a sign of. The first that fits is taken.
_SIGNS = (
    ("wait", r"time.?out|timed out|unavailable|connection|refused|reset by|throttl|too many"
             r"|\b(429|502|503|504)\b|deadlock|temporar|try again",
     "Somebody else did not answer. See that they are well again, then send these once more,"
     " slowly."),
    ("credentials", r"unauthori[sz]ed|forbidden|\b(401|403)\b|access denied|credential|token",
     "The consumer was not let in somewhere. Give it a key that is, then send these once more."),
    ("data", r"json|pars(e|ing)|decod|deseriali|schema|valid|keyerror|valueerror|typeerror|missing"
             r"|required|null|none",
     "What is in these is not what the consumer expects. Mend the consumer, or the messages as they"
     " are sent again: --set body=..."),
)  # fmt: skip
_BY_REASON = {
    "TTLExpiredException": Plan(
        "late", "They were not received in time. Have more consumers, or a longer time to live"
        " (ttl_ms); send them once more if they are still of use.", ""),
    "MaxDeliveryCountExceeded": Plan(
        "silent", "Consumers failed again and again, and did not say why: let them dead-letter with"
        " a reason. Send a few once more and look at the consumer's log.", ""),
}  # fmt: skip


def plan(group: dict[str, Any]) -> Plan:
    """Proposes how to deal with the cause in a row of `triage`."""
    said = f"{group['error'] or ''} {group['fingerprint'] or ''} {group['reason'] or ''}".lower()
    kind, text = "look", "There is no pattern known of this. Look at the examples first."
    if group["reason"] in _BY_REASON and not group["fingerprint"]:
        kind, text = _BY_REASON[group["reason"]].kind, _BY_REASON[group["reason"]].text
    else:
        for name, words, advice in _SIGNS:
            if re.search(words, said):
                kind, text = name, advice
                break
        else:
            if group["reason"] in _BY_REASON:
                kind, text = _BY_REASON[group["reason"]].kind, _BY_REASON[group["reason"]].text
    return Plan(kind, text, _command(group, slowly=kind == "wait"))


def _command(group: dict[str, Any], *, slowly: bool) -> str:
    queues = ", ".join(sql_text(each["entity"]) for each in group["queues"])
    conditions = [f"entity in ({queues})"]
    for name in ("namespace", "reason", "fingerprint", "shape"):
        value = group[name]
        conditions.append(f"{name} is null" if value is None else f"{name} = {sql_text(value)}")
    rate = " --rate 10" if slowly else ""
    return f"posthouse pipeline replay --where {shlex.quote(' and '.join(conditions))}{rate}"


def write(
    found: "DataFrame", folder: str, source: str, form: str = "parquet", *, step: Step = nothing
) -> tuple[str, Any]:
    """The page, and the table beside it; where the page is, and the groups with their plans."""
    into = Path(folder)
    into.mkdir(parents=True, exist_ok=True)
    table = found.limit(GROUPS_MAX).toArrow()
    step()
    groups = table.to_pylist()
    for group in groups:
        made = plan(group)
        group |= {"plan": made.kind, "advice": made.text, "command": made.command}
    if form == "csv":  # which has no lists
        names = [", ".join(each["entity"] for each in group["queues"]) for group in groups]
        table = table.drop_columns(["queues", "examples"]).append_column("queues", [names])
    for name in ("plan", "advice", "command"):
        table = table.append_column(name, [[group[name] for group in groups]])
    write_table(table, into / f"causes.{form}", form)
    shown = into / "triage.html"
    data = {"source": source, "made": datetime.now(UTC), "groups": groups}
    shown.write_text(page("triage", data))
    return str(shown), groups
