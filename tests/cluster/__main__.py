"""Plays scenarios at random: python -m tests.cluster --rounds N [--only NAME] [--seed S]"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from random import Random

from tests.cluster.network import why_not
from tests.cluster.playing import Cluster, table
from tests.cluster.scenarios import SCENARIOS

PER_CLUSTER = 12  # scenarios on one cluster, before the next one is begun


async def play(cluster: Cluster, names: list[str]) -> None:
    await cluster.open()
    for name in names:
        print(f"{name:<20} ", end="", flush=True)
        print(f"{await cluster.play(name):6.2f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster")
    parser.add_argument("--rounds", type=int, default=1, help="how often each is played")
    parser.add_argument("--only", choices=SCENARIOS, action="append")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    reason = why_not()
    if reason:
        print(f"Scenarios of clusters are not played: {reason}.", file=sys.stderr)
        return 2
    random = Random(options.seed)
    names = [name for name in (options.only or SCENARIOS) for _ in range(options.rounds)]
    random.shuffle(names)
    gaps: dict[str, list[float]] = {}
    for first in range(0, len(names), PER_CLUSTER):
        seed = options.seed * 1_000 + first
        with tempfile.TemporaryDirectory(prefix="posthouse-cluster-") as folder:
            cluster = Cluster(Path(folder), Random(seed))
            try:
                asyncio.run(play(cluster, names[first : first + PER_CLUSTER]))
            except BaseException:
                print(f"\n{cluster.tell()}\nseed {options.seed}, at {first}", file=sys.stderr)
                raise
            finally:
                cluster.close()
            for name, each in cluster.gaps.items():
                gaps.setdefault(name, []).extend(each)
            print(cluster.counts, flush=True)
    print(table(gaps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
