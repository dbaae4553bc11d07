"""Hostile inputs for everything that reads what others say.

    python -m tests.fuzz [--seconds N] [--cases N] [--seed S] [--surface NAME ...]

Peers of each protocol are fed with bytes in this process (playing.py), and a share of them is said
to a running broker too; filters and actions, SAS tokens and XML are texts that are read. How many
cases of each surface were played is told, and how many in a second; `make fuzz` plays a million of
each. A case that fails is told with its seed and number.
"""

import argparse
import sys
import time
from collections.abc import Callable

from tests.fuzz import filters, http, pyqueue, servicebus, texts, vibemq

# By name: what is played, and its part of the time.
SURFACES: dict[str, tuple[Callable[[int, int, float], int], float]] = {
    "servicebus": (servicebus.run, 0.35),
    "pyqueue": (pyqueue.run, 0.15),
    "vibemq": (vibemq.run, 0.15),
    "http": (http.run, 0.15),
    "filters": (filters.run, 0.1),
    "sas": (texts.run_tokens, 0.05),
    "xml": (texts.run_xml, 0.05),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--cases", type=int, default=1 << 62, help="of each surface, at most")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--surface", choices=SURFACES, action="append", help="these alone")
    given = parser.parse_args()
    chosen = given.surface or list(SURFACES)
    whole = sum(SURFACES[name][1] for name in chosen)
    for name in chosen:
        play, part = SURFACES[name]
        begun = time.monotonic()
        count = play(given.seed, given.cases, given.seconds * part / whole)
        took = time.monotonic() - begun
        sys.stdout.write(
            f"{name:12}{count:>10,} cases of seed {given.seed} in {took:,.0f} s,"
            f" {count / took:,.0f} a second\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
