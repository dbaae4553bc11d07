"""Runs many seeds: python -m tests.simulate [--seeds N] [--first N] [--steps N]."""

import argparse
import sys
import time

from tests.simulate.simulator import Simulator


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--steps", type=int, default=300, help="client actions in each")
    parser.add_argument("--digest", action="store_true", help="print each seed's history digest")
    options = parser.parse_args()

    steps = simulated_ms = 0
    start = shown = time.monotonic()
    for seed in range(options.first, options.first + options.seeds):
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
