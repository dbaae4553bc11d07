"""A broker that tells which of its files were run: `posthouse`, with a socket to ask it.

To each line that comes it answers with a line of JSON: what was called since the last one, by
thread. Each is a pair: the callback that the call was made from, and the file, in the order of the
first call.
"""

import json
import os
import socket
import sys
import threading
from types import FrameType

from tests.house.tree import SOURCES

SOCKET = "HOUSE_SOCKET"  # the variable with the path of the socket
LOOP = "loop"  # the thread with the event loop; all others are called by their names

_PREFIX = f"{SOURCES}{os.sep}"
_called: dict[str, dict[tuple[str, str], None]] = {}
_main = threading.main_thread()


def note(frame: FrameType, event: str, _: object) -> None:
    if event == "call":
        path = frame.f_code.co_filename
        if path.startswith(_PREFIX):
            thread = threading.current_thread()
            name = LOOP if thread is _main else thread.name
            pair = (callback(frame), path.removeprefix(_PREFIX))
            _called.setdefault(name, {}).setdefault(pair)


def callback(frame: FrameType) -> str:
    """The outermost call of ours: what the loop called, or the thread."""
    while frame.f_back is not None and frame.f_back.f_code.co_filename.startswith(_PREFIX):
        frame = frame.f_back
    code = frame.f_code
    return f"{code.co_filename.removeprefix(_PREFIX)}:{code.co_qualname}"


def listen(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(1)
        made, _ = server.accept()
        with made, made.makefile("rw") as lines:
            for _ in lines:
                told = {name: [*pairs] for name, pairs in list(_called.items())}
                _called.clear()
                lines.write(json.dumps(told) + "\n")
                lines.flush()


def main() -> None:
    from posthouse.cli import main as posthouse

    threading.Thread(target=listen, args=(os.environ.pop(SOCKET),), daemon=True).start()
    threading.setprofile(note)  # before its threads are made
    sys.setprofile(note)
    sys.exit(posthouse())


if __name__ == "__main__":
    main()
