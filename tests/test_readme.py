"""What the README shows has to work."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from posthouse.cli.parser import make_parser
from tests.server.test_serve import a_free_port

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMAND = r"^    (\S(?:.*\\\n)*.*)$"
END = "---- that was one command"


def run(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def commands(section: str) -> list[list[str]]:
    """Of each indented block of a section, as they stand; what is explained beside them is not."""
    text = re.sub(r"```python\n.*?```", "", README, flags=re.DOTALL)
    [text] = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return [
        [re.split(r"(?<=\S) {3,}", each)[0] for each in re.findall(COMMAND, block, re.MULTILINE)]
        for block in re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
    ]


WITH_CLIENT, WITH_SDK, EXAMPLE = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_example_prints_what_it_says() -> None:
    example = EXAMPLE
    [said] = re.findall(r"print\(.*\) +# (.*)", example)
    assert run("-c", example).strip() == said


class Newcomer:
    """Somebody in a fresh clone whose `.venv` is there already, on a port of his own."""

    def __init__(self, home: Path) -> None:
        self.port = port = a_free_port()
        self.clone = home / "posthouse"
        (self.clone / ".venv").mkdir(parents=True)
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.clone)
        (self.clone / "tests").symlink_to(ROOT / "tests")
        (self.clone / ".venv" / "bin").symlink_to(Path(sys.prefix) / "bin")
        (self.clone / ".venv" / "ready").touch()
        (home / ".curlrc").write_text(f'connect-to = "localhost:5300:127.0.0.1:{port}"\n')
        not_his = ("POSTHOUSE_", "MAKE", "MFLAGS")  # of who runs the tests
        clean = {k: v for k, v in os.environ.items() if not k.startswith(not_his)}
        self.environment = {
            **clean, "HOME": str(home), "CURL_HOME": str(home), "POSTHOUSE_HOST": "127.0.0.1",
            "POSTHOUSE_PORT": str(port), "POSTHOUSE_URL": f"http://127.0.0.1:{port}",
        }  # fmt: skip

    @contextmanager
    def keeps_running(self, command: str) -> Iterator[None]:
        """In a terminal of its own, until Ctrl-C."""
        process = subprocess.Popen(
            ["bash", "-ec", command], cwd=self.clone, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        said = ""
        while "Ctrl-C stops it" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.communicate(timeout=60)

    def types(self, commands: list[str]) -> list[str]:
        """What each prints; none may fail."""
        script = "".join(f"{each}\necho; echo {END}\n" for each in commands)
        done = subprocess.run(
            ["bash", "-ec", script], cwd=self.clone, env=self.environment, capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout, done.stderr)
        return [each.strip() for each in done.stdout.split(END)[:-1]]


@pytest.fixture
def newcomer(tmp_path: Path) -> Newcomer:
    return Newcomer(tmp_path)


def test_the_first_minute_goes_as_it_is_told(newcomer: Newcomer) -> None:
    (serve, _), by_command, by_http = commands("Running in a minute")
    assert "data in ./posthouse-data" in README
    with newcomer.keeps_running(serve):
        _, sent, peeked, received, shown = newcomer.types(by_command)
        assert sent == "Sent to orders as 1."
        assert peeked.splitlines()[1].split()[:3] == ["1", "active", "b1"]
        assert peeked.endswith("a book")
        assert received == "a book"
        happened = ["sent to", "delivered to", "completed"]
        assert re.findall("|".join(happened), shown) == happened
        enqueued, got, feed = newcomer.types(by_http)
        assert json.loads(enqueued) == {"sequences": [2], "duplicates": 0}
        [message] = json.loads(got)["messages"]
        assert (message["id"], message["body"]) == ("p1", "a pen")
        rows = [json.loads(line) for line in feed.splitlines()]
        assert [row["body"] for row in rows if row["kind"] == "sent"] == ["a book", "a pen"]
        said = run("-c", WITH_CLIENT.replace("@localhost", f"@localhost:{newcomer.port}"))
        assert said.strip() == "b'a ruler'"
        said = run("-c", WITH_SDK.replace("sb://localhost", f"sb://localhost:{newcomer.port}"))
        assert said.strip() == "a pencil"
        [docs] = newcomer.types(["curl http://localhost:5300/docs"])
        assert "<html" in docs
    assert list((newcomer.clone / "posthouse-data").glob("*.journal"))


def test_every_make_target_is_there(newcomer: Newcomer) -> None:
    named = set(re.findall(r"(?:`|^    )(make \w+)", README, re.MULTILINE))
    assert {"make run", "make test", "make check"} <= named
    for command in named:
        newcomer.types([f"{command} --dry-run"])
    [is_run] = re.findall(r"`make run` is `(.*)`", README)
    assert newcomer.types(["make run --dry-run"])[0].endswith(is_run)


def test_every_command_is_understood() -> None:
    shown = [
        shlex.split(command)[1:]
        for section in ("Running in a minute", "In production", "Looking after a data folder")
        for block in commands(section)
        for command in block
        if command.startswith("posthouse ")
    ]
    assert len(shown) > 10
    for words in shown:
        words = ["1" if word == "P" else word for word in words]  # a position
        make_parser(words).parse_args(words)
