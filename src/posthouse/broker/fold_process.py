"""The folding process, from its first line on: it gives way to all others.

    python -m posthouse.broker.fold_process DIR | - [arrow] [soon | now]

With `-` the first line of its input names a store that is not a folder of segments.

A snapshot is made `soon`, at the lowest of the usual priorities: the disk is to be kept small.
Where the disk is short of room it is made `now`, at the broker's own priority: else on a busy
machine sends would be refused before it is done.
Arrow segments can wait until nobody else has a use for the processor: Linux runs them then, and
takes a processor on which only this runs for one that is free. On a machine that is never idle they
would be put off for ever, so after a while they are made `soon`, too.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path


def give_way(*, soon: bool) -> None:
    os.setpriority(os.PRIO_PROCESS, 0, 19)  # whatever the broker's own is
    if not soon and hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):  # some containers do not allow it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def main(words: list[str]) -> int:
    if "now" not in words:
        give_way(soon="soon" in words)
    from posthouse.broker.fold import work, work_on_store  # to import all of it is work already

    if words[0] == "-":
        return work_on_store(sys.stdin.readline().strip())
    return work(Path(words[0]), only_arrow_segments="arrow" in words[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
