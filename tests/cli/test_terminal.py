"""What people see on a terminal: a screen that fits, a welcome, and a quiet end by ^C."""

import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from posthouse.cli.show import cells
from tests.cli.terminal import INTERRUPTIBLE, run, terminal
from tests.server.running import Running, running
from tests.waiting import until

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (40, 10), (20, 5), (200, 60), (9, 3)])
def test_top_fits_the_terminal(broker: Running, columns: int, lines: int) -> None:
    for number in range(40):
        broker.send(f"a-queue-with-a-rather-long-name-that-nobody-would-type-{number}", "x")
    broker.send("%E6%B3%A8%E6%96%87" * 20, "x", "y", "z")
    with terminal(broker, "top", "--interval", "0.1", columns=columns, lines=lines) as screen:
        until(lambda: screen.said.count("\033[2J") >= 3, "it was drawn several times")
        screen.interrupt()
        assert screen.end() == 130
        drawn = screen.said.split("\033[H\033[2J")[2]
    shown = CONTROL.sub("", drawn).removesuffix("\n").split("\n")
    assert max(map(cells, shown)) <= columns
    assert 2 <= len(shown) < lines  # the cursor stands on a line of its own
    assert shown[0].startswith("QUEUE"[:columns])
    if columns >= 40:
        assert "ACTIVE" in shown[0]
        names = [line.split()[0] for line in shown[1:] if "name" in line or ".." in line]
        assert len(set(names)) == len(names) > 3, "names that begin alike can be told apart"
        assert shown[-1].startswith("and ") or lines > 50


def test_the_welcome_comes_first_and_has_the_url_of_the_client(tmp_path: Path) -> None:
    for flags in (("--dev",), ()):
        words = ("serve", "--data", str(tmp_path / f"data{len(flags)}"), "--port", "0", *flags)
        with terminal(None, *words, columns=200) as screen:
            screen.wait_for("is ready on")  # in the log
            said = screen.said
            assert said.startswith("Posthouse is ready.\n")
            assert said.index("Ctrl-C stops it") < said.index("CreateNamespace")
            [url] = re.findall(r"^  Python +(posthouse://\S+)$", said, re.MULTILINE)
            body = "import sys, asyncio, posthouse\n" + (
                "async def main():\n"
                "    async with posthouse.create_client(sys.argv[1]) as client:\n"
                "        print(type(client).__name__)\n"
                "asyncio.run(main())\n"
            )
            subprocess.run([sys.executable, "-c", body, url], check=True, timeout=60)
            parts = urlsplit(url)
            assert unquote(parts.password or "") in said
            screen.interrupt()
            assert screen.end() == 130
            assert "Traceback" not in screen.said


def test_the_welcome_sends_nobody_to_a_port_that_another_program_has() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        ports = ("--port", str(taken), "--port", "0")
        with terminal(None, "serve", "--memory", "--dev", *ports, columns=200) as screen:
            screen.wait_for("is ready on")
            urls = re.findall(r"localhost:(\d+)", screen.said)
            screen.interrupt()
            assert screen.end() == 130
    assert len(urls) > 3
    assert str(taken) not in urls


def test_a_start_that_fails_shows_its_log(tmp_path: Path) -> None:
    with terminal(None, "serve", "--memory", "--host", "192.0.2.1", "--port", "1") as screen:
        assert screen.end() == 1
        assert "no port to listen on" in screen.said


def test_serve_lists_the_values_and_the_default_of_every_option() -> None:
    from posthouse.server.config import SETTINGS

    said = " ".join(run(None, "serve", "--help").stdout.split()).partition("options:")[2]
    for name, setting in SETTINGS.items():
        if setting.secret:
            continue
        _, _, text = said.partition(f" --{name.replace('_', '-')} ")
        help = text.partition(" --")[0] if "--dev" not in setting.help else text[:400]
        assert "default:" in help, (name, help)
    for words in ("fsync, interval, memory; default: fsync", "none, gzip, zstd; default: none",
                  "debug, info, warning, error; default: info", "default: 64M)", "default: 7d)",
                  "1 to 600; default: 10", "default: 127.0.0.1, ::1"):  # fmt: skip
        assert words in said, words


def test_ctrl_c_ends_with_one_line(broker: Running, tmp_path: Path) -> None:
    commands = (
        ("feed", "tail", "--follow"),
        ("receive", "nothing", "--follow"),
        ("receive", "nothing", "--wait", "1h"),
    )
    for words in commands:
        with terminal(broker, *words) as screen:
            process = screen.process.pid
            until(partial(is_waiting, process), f"{words} waits")
            screen.interrupt()
            assert screen.end() == 130, screen.said
            said = CONTROL.sub("", screen.said).replace("^C", "")
            assert said.strip() == "Interrupted.", screen.said


def test_ctrl_c_at_the_very_start_ends_with_one_line() -> None:
    """While the command line is being imported, which takes a while on a slow machine."""
    program = (
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'posthouse.cli.parser':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from posthouse.cli import main\n"
        "sys.exit(main(['top']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "Interrupted.\n")


def is_waiting(process: int) -> bool:
    """It has a connection: what it asks for there does not come."""
    for file in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # it may be closed by now
            if str(file.readlink()).startswith("socket:"):
                return True
    return False


def test_ctrl_c_ends_a_verification_with_one_line(tmp_path: Path) -> None:
    """Of a journal that takes long: reading waits until it was interrupted."""
    program = (
        "import sys, time\n"
        "from posthouse.store import look\n"
        "from posthouse.cli import main\n"
        "def slow(*_):\n"
        "    sys.stderr.write('reading\\n')\n"
        "    time.sleep(60)\n"
        "look.look = slow\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    data = tmp_path / "data"
    with running("--data", str(data), "--dev"):
        pass
    command = [sys.executable, "-c", program, "store", "verify", "--data", str(data)]
    with subprocess.Popen([*INTERRUPTIBLE, *command], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "reading\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "Interrupted.\n"
    assert process.returncode == 130
