"""The log: one JSON line an event for programs, or text on a terminal.

An event has a name that stays (`event`) and fields; the text is for people and may change. Neither
bodies nor secrets are logged anywhere.
"""

import contextvars
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging.handlers import MemoryHandler
from typing import Any

correlation: contextvars.ContextVar[str] = contextvars.ContextVar("correlation", default="")

LINES_HELD_MAX = 1_000  # of the log, before they are written all the same
_KNOWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "event", "taskName"}
_COLOURS = {"WARNING": "\033[33m", "ERROR": "\033[31m", "CRITICAL": "\033[31m"}


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record, "T"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", record.name),
            "message": record.getMessage(),
        }
        if correlation.get():
            line["correlation_id"] = correlation.get()
        line |= {name: value for name, value in vars(record).items() if name not in _KNOWN}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class Lines(logging.Formatter):
    """Log lines for people. Text from outside cannot end a line, or move the cursor."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        text = _printable(record.getMessage())
        level = f"{record.levelname.lower():<7}"
        if self._colour and record.levelname in _COLOURS:
            level = f"{_COLOURS[record.levelname]}{level}\033[0m"
        line = f"{_time(record, ' ')} {level} {text}"
        if record.exc_info:  # its text may be somebody else's: none of its lines looks like another
            traceback = self.formatException(record.exc_info).split("\n")
            line += "".join(f"\n    | {_printable(each)}" for each in traceback)
        return line


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _time(record: logging.LogRecord, between: str) -> str:
    parts = time.strftime(f"%Y-%m-%d{between}%H:%M:%S", time.gmtime(record.created))
    return f"{parts}.{int(record.msecs):03d}Z"


@contextmanager
def held_back() -> Iterator[Callable[[], None]]:
    """Log lines wait until what is given is called, for an error, or for the end."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    waiting = MemoryHandler(LINES_HELD_MAX, logging.ERROR, handlers[0])

    def release() -> None:
        root.handlers[:] = handlers
        waiting.flush()

    root.handlers[:] = [waiting]
    try:
        yield release
    finally:
        release()


def set_up(form: str, level: str, *, colour: bool) -> None:
    """Sets up logging, all of it to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    plain = form == "text" or (form == "auto" and sys.stderr.isatty())
    handler.setFormatter(Lines(colour=colour and sys.stderr.isatty()) if plain else JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL if "uvicorn" in name else logging.WARNING)
