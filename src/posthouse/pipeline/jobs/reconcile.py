"""Reconciliation: that nothing was lost and nothing doubled, or what was.

What producers say they sent, what the journal saw, and what consumers say they processed are held
against each other, message by message.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from posthouse.pipeline.events import DEAD, of_queues, sql_text, told_name
from posthouse.pipeline.lives import ROOT, Lives
from posthouse.pipeline.tables import write_table
from posthouse.pipeline.work import Step, nothing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = (  # of the events, that it looks at
    "position", "time", "namespace", "entity", "kind", "message_id", "sequence_number", "body",
    "target", "target_sequence_number",
)  # fmt: skip
SHARES = (0.1, 0.85, 0.9, 1.0)  # of its time, that are behind it after each step
# The faults that a message can have.
FAULTS = {
    "missing": "a producer has sent it, and it never came",
    "unclaimed": "it came, and no producer has sent it",
    "duplicated": "it came more often than it was sent",
    "altered": "its body is not the one that was sent, or that was processed",
    "unprocessed": "it was completed, and no consumer has processed it",
    "doubled": "it was processed more often than it came",
    "invented": "a consumer has processed it, and it never came",
    "open": "it is still in a queue",
    "dead": "it lies in a dead-letter queue",
    "gone": "it was expired, purged, cancelled, dropped, or deleted with its queue",
}

# The rules by which faults are found, each with its condition and its detail in SQL: in the journal
# alone (INSIDE), and in the journal joined with claims, where either side may be null.
INSIDE = {
    "open": ("open > 0", "concat(open, ' not settled')"),
    "dead": ("dead > 0", "concat(dead, ' of ', came)"),
    "gone": ("gone > 0", "concat(gone, ' of ', came)"),
}
OFTEN = ("came > 1", "concat(came, ' times')")
_ALTERED = "said is not null and (said <> hash or said_2 <> hash or hash <> hash_2)"
OUTBOX = {
    "missing": ("came is null", "'no message of that id came'"),
    "unclaimed": ("claimed is null", "'in no outbox'"),
    "duplicated": ("came > claimed", "concat('sent ', claimed, ' times, came ', came)"),
    "altered": (_ALTERED, "'the outbox has another body'"),
}
INBOX = {
    "invented": ("came is null", "'no message of that id came'"),
    "unprocessed": ("done > 0 and claimed is null", "'in no inbox'"),
    "doubled": ("claimed > copies and claimed > 1",
                "concat('processed ', claimed, ' times, ', copies, ' to process')"),
    "altered": (_ALTERED, "'the inbox has another body'"),
}  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """The number of messages, and the faults that were found."""

    messages: int
    nameless: int  # which have no id by which they could be found
    faults: "DataFrame"  # fault, namespace, entity, message_id, detail, life; as FAULTS are listed
    counts: dict[str, int]

    def is_well(self, allowed: tuple[str, ...] = ()) -> bool:
        return not any(count for name, count in self.counts.items() if name not in allowed)


def reconcile(
    events: "DataFrame",
    outbox: "DataFrame | None" = None,
    inbox: "DataFrame | None" = None,
    *,
    queues: Sequence[str] = (),
    step: Step = nothing,
) -> Verdict:
    """Compares the journal with claims, as `posthouse.pipeline.claims.read` gives them.

    With `queues` only what was sent to these queues and topics is compared.
    """
    from pyspark.sql import functions as f

    lives = Lives(events)
    seen = _seen(lives).persist()
    if queues:
        mine = of_queues("entity", queues)
        others = seen.where(f"not ({mine})").select("message_id")
        seen = seen.where(mine).persist()
        others = others.join(seen, "message_id", "left_anti").distinct()
        outbox, inbox = (
            None if claims is None else _claims_of(claims, queues, others)
            for claims in (outbox, inbox)
        )
    step()
    inside = INSIDE if outbox is not None else INSIDE | {"duplicated": OFTEN}
    found = _listed(seen, inside)
    if outbox is not None:
        found = found.unionByName(_against_outbox(seen, outbox))
    if inbox is not None:
        found = found.unionByName(_against_inbox(seen, inbox))
    found = found.persist()
    counted = {row["fault"]: int(row["count"]) for row in found.groupBy("fault").count().collect()}
    step()
    faults = _with_lives(found, lives) if counted else found.withColumn("life", f.lit(None))
    order = f.array_position(f.array(*map(f.lit, FAULTS)), f.col("fault"))
    shown = faults.select(
        "fault", "namespace", f.expr(f"{told_name('entity')} as entity"), "message_id", "detail",
        "life",
    ).orderBy(order, "entity", "message_id").persist()  # fmt: skip
    nameless = events.where("kind = 'sent' and message_id is null").count()
    verdict = Verdict(seen.count(), nameless, shown, {n: counted.get(n, 0) for n in FAULTS})
    step()
    return verdict


def _claims_of(claims: "DataFrame", queues: Sequence[str], others: "DataFrame") -> "DataFrame":
    """The claims about messages to some queues. Those of consumers may name a subscription.

    Claims that name no queue are about these, unless the message was sent to another.
    """
    if "entity" not in claims.columns:
        return claims.join(others, "message_id", "left_anti")
    below = " or ".join(f"startswith(entity, {sql_text(f'{queue}/')})" for queue in queues)
    return claims.where(f"{of_queues('entity', queues)} or {below}")


def _with_lives(found: "DataFrame", lives: Lives) -> "DataFrame":
    """Adds the lives of all messages that have the id of a fault."""
    from pyspark.sql import functions as f

    key = ["namespace", "entity", "message_id"]
    each = found.where("roots is not null").dropDuplicates(key).select(*key, f.inline("roots"))
    told = each.join(lives.lines(each), ["namespace", *ROOT]).groupBy(*key)
    life = told.agg(f.array_sort(f.flatten(f.collect_list("life"))).alias("life"))
    return found.join(life, key, "left")


def _seen(lives: Lives) -> "DataFrame":
    """The journal's account: a row for each id in each queue that messages were sent to."""
    from pyspark.sql import functions as f

    keys = ["namespace", *ROOT]
    sent = lives.sent.where("message_id is not null").select(
        *keys, "message_id", f.sha2("body", 256).alias("hash")
    )
    is_last = "not goes_on"
    ends = lives.stays.groupBy(*keys).agg(
        f.count_if(f.expr(f"{is_last} and how in ('completed', 'taken')")).alias("done"),
        f.count_if(f.expr(f"{is_last} and how is null and not endswith(entity, '{DEAD}')"))
        .alias("open"),
        f.count_if(f.expr(f"{is_last} and how is null and endswith(entity, '{DEAD}')"))
        .alias("dead"),
        f.count_if(f.expr(f"{is_last} and how not in ('completed', 'taken', 'routed')"))
        .alias("gone"),
    )  # fmt: skip
    whole = sent.join(ends, keys)
    return (
        whole.groupBy("namespace", f.col("root_entity").alias("entity"), "message_id").agg(
            f.count("*").alias("came"), f.min("hash").alias("hash"), f.max("hash").alias("hash_2"),
            *(f.sum(name).alias(name) for name in ("done", "open", "dead", "gone")),
            f.collect_list(f.struct(*ROOT)).alias("roots"),
        )
    )  # fmt: skip


def _listed(rows: "DataFrame", faults: dict[str, tuple[str, str]]) -> "DataFrame":
    """A row for each fault that a message has: by a condition, and what there is to say of it."""
    from pyspark.sql import functions as f

    each = ", ".join(
        f"if({when}, struct('{fault}' as fault, {detail} as detail), null)"
        for fault, (when, detail) in faults.items()
    )
    had = f.inline(f.expr(f"array_compact(array({each}))"))
    return rows.select("namespace", "entity", "message_id", "roots", had)


def _claimed(claims: "DataFrame") -> "tuple[DataFrame, list[str]]":
    """A row a message, and by what it is found."""
    from pyspark.sql import functions as f

    keys = ["message_id", *(["entity"] if "entity" in claims.columns else [])]
    sums = [f.count("*").alias("claimed")]
    if "hash" in claims.columns:
        sums += [f.min("hash").alias("said"), f.max("hash").alias("said_2")]
    counted = claims.where("message_id is not null").groupBy(*keys).agg(*sums)
    if "hash" not in claims.columns:
        nothing = f.lit(None).cast("string")
        counted = counted.withColumn("said", nothing).withColumn("said_2", nothing)
    return counted, keys


def _against_outbox(seen: "DataFrame", outbox: "DataFrame") -> "DataFrame":
    claimed, keys = _claimed(outbox)
    return _listed(_together(seen, keys).join(claimed, keys, "full"), OUTBOX)


def _against_inbox(seen: "DataFrame", inbox: "DataFrame") -> "DataFrame":
    """The faults against an inbox, where copies of several subscriptions count together."""
    from pyspark.sql import functions as f

    claimed, keys = _claimed(inbox.drop("entity"))
    of = _together(seen, keys).withColumn("copies", f.expr("done + open + dead"))
    return _listed(of.join(claimed, keys, "full"), INBOX)


def _together(seen: "DataFrame", keys: list[str]) -> "DataFrame":
    """A row for what claims can tell apart; of its place and its life, those of the first."""
    from pyspark.sql import functions as f

    seen = seen.withColumn("entity", f.expr(told_name("entity")))
    first = [name for name in ("namespace", "entity") if name not in keys]
    made = seen.groupBy(*keys).agg(
        *(f.sum(name).alias(name) for name in ("came", "done", "open", "dead", "gone")),
        f.min("hash").alias("hash"), f.max("hash_2").alias("hash_2"),
        f.min(f.struct(*first)).alias("first"), f.flatten(f.collect_list("roots")).alias("roots"),
    )  # fmt: skip
    return made.select("*", "first.*").drop("first")


def write(found: Verdict, folder: str, form: str = "parquet", *, step: Step = nothing) -> str:
    """Writes all faults as a table; returns its path."""
    into = Path(folder)
    into.mkdir(parents=True, exist_ok=True)
    path = into / f"faults.{form}"
    table = found.faults
    if form == "csv":  # which has no lists
        table = table.withColumn("life", table["life"].cast("string"))
    write_table(table.toArrow(), path, form)
    step()
    return str(path)
