"""A worker that is started again when its code changes.

This process only watches. The worker is a child in a process group of its own, so that what is
typed at the terminal reaches it once, through here.
"""

import argparse
import importlib.util
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from posthouse.cli.app_name import Missing, split

_log = logging.getLogger("posthouse.worker")

LOOK_SECONDS = 1.0
FILES_MAX = 5_000
_SKIPPED = {"__pycache__", "node_modules", "site-packages"}


def watch(options: argparse.Namespace) -> int:
    """Runs the worker, and again when its files change; returns its last exit code."""
    folder = _folder(split(options.app)[0])
    command = [sys.executable, "-m", "posthouse.cli", "worker", options.app]
    command += [] if options.url is None else ["--url", options.url]
    command += [] if options.concurrency is None else ["--concurrency", str(options.concurrency)]
    command += ["--json"] if options.json else []
    told = _Told()
    _log.info("Watching the Python files of %s.", folder, extra={"event": "worker.watching"})
    while True:
        seen = _times(folder)
        child = subprocess.Popen(command, process_group=0)  # noqa: S603 (it is this program)
        told.child = child
        changed = None
        while not told.stop.is_set() and changed is None:
            told.stop.wait(LOOK_SECONDS)
            changed = _changed(seen, _times(folder))
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGTERM)
        code = child.wait()
        if told.stop.is_set():
            return code if code >= 0 else 128 - code
        _log.info("%s has changed: the worker is started again.", changed,
                  extra={"event": "worker.reload", "file": changed, "code": code})  # fmt: skip


class _Told:
    """The signals: the first stops the worker, a second ends it at once."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.child: subprocess.Popen[bytes] | None = None
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._tell)

    def _tell(self, number: int, _: object) -> None:
        if self.stop.is_set() and self.child is not None and self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL)
        self.stop.set()


def _folder(module: str) -> Path:
    """The folder of a module's code, found without importing it. Raises Missing."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    top = module.partition(".")[0]
    spec = importlib.util.find_spec(top)
    if spec is None:
        raise Missing(f"There is no module {top}; it was looked for in {here} too.")
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin or here).parent


def _times(folder: Path) -> dict[str, int]:
    """The time at which each file was written."""
    found: dict[str, int] = {}
    for path in _files(folder):
        try:
            found[path] = os.stat(path).st_mtime_ns  # noqa: PTH116 (thousands of them, each second)
        except FileNotFoundError:
            continue  # it has gone since
        if len(found) >= FILES_MAX:
            break
    return found


def _files(folder: Path) -> Iterator[str]:
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(
            each for each in folders
            if each[0] != "." and each not in _SKIPPED
            and not os.path.exists(os.path.join(where, each, "pyvenv.cfg"))  # noqa: PTH110, PTH118 (as above)
        )  # fmt: skip
        for name in names:
            if name.endswith(".py"):
                yield os.path.join(where, name)  # noqa: PTH118 (as above)


def _changed(before: dict[str, int], now: dict[str, int]) -> str | None:
    """The first file that is new, gone or written again."""
    if before == now:
        return None
    return min(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))
