"""Commands as people run them: against a broker, in a pipe or on a terminal of some size."""

import fcntl
import os
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.server.running import Running
from tests.waiting import until

COMMAND = (sys.executable, "-m", "posthouse.cli")
# Before a command that is interrupted: a shell ignores SIGINT in what it starts in the background,
# and so would the command if the tests were started there.
INTERRUPTIBLE = ("env", "--default-signal=INT")
SECONDS = 60


def surroundings(broker: Running | None = None, **more: str) -> dict[str, str]:
    """The environment of a command."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith("POSTHOUSE_")}
    url = {} if broker is None else {"POSTHOUSE_URL": broker.url}
    return {**clean, "TERM": "xterm", **url, **more}


def run(
    broker: Running | None, *words: str, given: str = "", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """A command without a terminal."""
    return subprocess.run(
        [*COMMAND, *words], env=surroundings(broker), capture_output=True, text=True, input=given,
        timeout=SECONDS, check=False, cwd=cwd,
    )  # fmt: skip


class Terminal:
    """A command that has a terminal of its own, on which ^C is a signal."""

    def __init__(
        self,
        *words: str,
        environment: Mapping[str, str],
        columns: int = 80,
        lines: int = 24,
        cwd: Path | None = None,
    ) -> None:
        self._main, other = os.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process = subprocess.Popen(
            [*INTERRUPTIBLE, "setsid", "--ctty", *COMMAND, *words], stdin=other, stdout=other,
            stderr=other, env=dict(environment), cwd=cwd,
        )  # fmt: skip
        os.close(other)
        self._said = bytearray()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        try:
            while chunk := os.read(self._main, 65_536):
                self._said += chunk
        except OSError:  # how Linux says that nobody has the other end
            return

    @property
    def said(self) -> str:
        """Everything on it so far, with line ends as in a file."""
        return self._said.decode(errors="replace").replace("\r\n", "\n")

    def wait_for(self, text: str) -> None:
        def is_there() -> bool:
            assert text in self.said or self.process.poll() is None, self.said
            return text in self.said

        until(is_there, f"{text!r} is on the terminal")

    def type(self, text: str) -> None:
        os.write(self._main, text.encode())

    def interrupt(self) -> None:
        self.type("\x03")

    def end(self) -> int:
        """The exit code, once it has ended by itself."""
        code = self.process.wait(SECONDS)
        self._reading.join(SECONDS)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reading.join(SECONDS)
        os.close(self._main)


@contextmanager
def terminal(
    broker: Running | None, *words: str, columns: int = 80, lines: int = 24, cwd: Path | None = None
) -> Iterator[Terminal]:
    opened = Terminal(
        *words, environment=surroundings(broker), columns=columns, lines=lines, cwd=cwd
    )
    try:
        yield opened
    finally:
        opened.close()
