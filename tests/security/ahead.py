"""The command line on a machine whose clock is ahead.

python -m tests.security.ahead SECONDS COMMAND
"""

import sys
import time


def main() -> int:
    step = int(sys.argv[1])
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + step
    time.time_ns = lambda: now_ns() + step * 1_000_000_000
    from posthouse.cli import main as command_line

    return command_line(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
