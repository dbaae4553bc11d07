"""`posthouse serve` with limits that a test can wait for.

python -m tests.server.hurried FLAGS
"""

import os
import sys

from posthouse.cli.parser import make_parser
from posthouse.server.config import SETTINGS, load
from posthouse.server.listener import Limits
from posthouse.server.log import set_up
from posthouse.server.serve import run, say_on_terminal

LIMITS = Limits(
    keep_alive_seconds=1,
    body_seconds=1,
    stalled_seconds=1,
    end_seconds=0.5,
    look_seconds=0.5,
    answers_bytes=40 << 20,
)


def main(limits: Limits = LIMITS) -> int:
    words = ["serve", *sys.argv[1:]]
    options = make_parser(words).parse_args(words)
    config = load({name: getattr(options, name, None) for name in SETTINGS}, os.environ)
    set_up(config.log, config.log_level, colour=False)
    return run(config, say_on_terminal, limits)


if __name__ == "__main__":
    sys.exit(main())
