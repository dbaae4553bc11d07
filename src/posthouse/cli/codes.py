"""Exit codes, and the two ways to say something."""

import sys

OK, FAILED, USAGE, NOT_FOUND, NOT_ALLOWED, EMPTY, LOST = 0, 1, 2, 3, 4, 5, 74


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def fail(text: str, code: int) -> int:
    sys.stderr.write(text + "\n")
    return code
