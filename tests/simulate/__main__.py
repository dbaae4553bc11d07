"""Runs many seeds: python -m tests.simulate [--seeds N] [--first N] [--steps N] [--cluster].

With --cluster only the nodes on a replicated log are run.
"""

import argparse
import logging
import sys
import time

from tests.simulate import nodes
from tests.simulate.cluster import Cluster, simulate
from tests.simulate.simulator import Simulator

CLUSTERS_PART = 4  # a cluster for so many seeds: it takes as much longer
CLUSTER_STEPS = 100
NODES_STEPS = 150
NODES_COUNTS = ("takeovers", "crashes", "copies", "steps", "answered", "acknowledged")


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--steps", type=int, default=300, help="client actions in each")
    parser.add_argument("--digest", action="store_true", help="print each seed's history digest")
    parser.add_argument("--cluster", action="store_true", help="run only nodes on a replicated log")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    if options.cluster:
        _run_nodes(seeds)
        return 0

    steps = simulated_ms = 0
    start = shown = time.monotonic()
    for seed in seeds:
        simulator = Simulator(seed)
        try:
            simulator.run(options.steps)
        except Exception:
            print(f"seed {seed} failed at command {simulator.steps}", file=sys.stderr)
            raise
        steps += simulator.steps
        simulated_ms += simulator.now_ms - simulator.started_ms
        if options.digest:
            print(seed, simulator.history.hexdigest())
        if time.monotonic() - shown > 5 and sys.stderr.isatty():
            shown = time.monotonic()
            print(f"{seed - options.first + 1} of {options.seeds} seeds", file=sys.stderr)
    seconds = time.monotonic() - start
    print(
        f"{options.seeds} seeds, {steps} steps, "
        f"{simulated_ms / 1000 / seconds:.0f} simulated seconds per second; no mismatch"
    )
    if not options.digest:
        part = range(options.first, options.first + options.seeds // CLUSTERS_PART)
        _run_clusters(part)
        _run_nodes(part)
    return 0


def _run_clusters(seeds: range) -> None:
    logging.disable(logging.ERROR)  # each broker that is deposed says so
    clusters: list[Cluster] = []
    for seed in seeds:
        try:
            clusters.append(simulate(seed, CLUSTER_STEPS))
        except Exception:
            print(f"the cluster of seed {seed} failed", file=sys.stderr)
            raise
    steps = sum(cluster.steps for cluster in clusters)
    takeovers = sum(cluster.takeovers for cluster in clusters)
    print(f"{len(clusters)} clusters, {steps} commands, {takeovers} takeovers; no mismatch")


def _run_nodes(seeds: range) -> None:
    begun = time.monotonic()
    totals = dict.fromkeys(NODES_COUNTS, 0)
    for seed in seeds:
        try:
            world = nodes.simulate(seed, NODES_STEPS)
        except BaseException:
            print(f"the nodes of seed {seed} failed", file=sys.stderr)
            raise
        for name in NODES_COUNTS:
            totals[name] += getattr(world, name)
    counts = ", ".join(f"{count} {name}" for name, count in totals.items())
    print(f"nodes of {len(seeds)} seeds in {time.monotonic() - begun:.0f} s: {counts}; no mismatch")


if __name__ == "__main__":
    sys.exit(main())
