"""Plays scenarios at random: python -m tests.cluster --rounds N [--only NAME] [--seed S]"""

import argparse
import asyncio
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from random import Random

from tests.cluster.network import why_not
from tests.cluster.playing import Cluster, Gaps, table
from tests.cluster.scenarios import ALL

PER_CLUSTER = 12  # scenarios on one cluster, before the next one is begun


async def play(cluster: Cluster, names: list[str]) -> None:
    """Plays them in turn, and takes each from the list when it is begun."""
    await cluster.open()
    while names:
        name = names.pop(0)
        print(f"{name:<20} ", end="", flush=True)
        print(f"{await cluster.play(name):6.2f} s", flush=True)


def play_on_one(
    names: list[str], seed: int, gaps: Gaps, raised: dict[str, list[str]], evidence: Path | None
) -> bool:
    """Plays scenarios on a cluster of their own until one fails; returns whether none has."""
    with tempfile.TemporaryDirectory(prefix="posthouse-cluster-") as folder:
        try:
            cluster = Cluster(Path(folder), Random(seed), keep=evidence is not None)
        except Exception:
            traceback.print_exc()
            names[:1] = []  # so that a cluster which never starts ends the run some day
            return False
        try:
            asyncio.run(play(cluster, names))
        except Exception:
            traceback.print_exc()
            print(f"{cluster.tell()}\nThe seed of this cluster is {seed}.", file=sys.stderr)
            if evidence is not None:
                cluster.leave(evidence / str(seed))
            return False
        finally:
            cluster.close()
            for name, seconds in cluster.gaps.items():
                gaps.setdefault(name, []).extend(seconds)
                raised.setdefault(name, []).extend(cluster.raised[name])
            print(cluster.counts, flush=True)
        return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster")
    parser.add_argument("--rounds", type=int, default=1, help="how often each is played")
    parser.add_argument("--only", choices=ALL, action="append")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--evidence", type=Path, metavar="DIR",
        help="keep all journals, and copy them there when a scenario has failed",
    )  # fmt: skip
    options = parser.parse_args()
    reason = why_not()
    if reason:
        print(f"Scenarios of clusters are not played: {reason}.", file=sys.stderr)
        return 2
    names = [name for name in (options.only or ALL) for _ in range(options.rounds)]
    Random(options.seed).shuffle(names)
    gaps: Gaps = {}
    raised: dict[str, list[str]] = {}
    failures = clusters = 0
    while names:
        part, names = names[:PER_CLUSTER], names[PER_CLUSTER:]
        failures += not play_on_one(
            part, options.seed * 1_000 + clusters, gaps, raised, options.evidence
        )
        clusters += 1
        names = part + names  # what comes behind one that has failed is played on another cluster
    print(table(gaps, raised))
    for name, texts in raised.items():
        for text, count in Counter(texts).items():
            print(f"{name}: the Azure SDK raised {text} ({count} times)")
    print(f"{failures} scenarios have failed.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
