"""A dialect is one declaration in its own folder: the server reads it, and names no dialect."""

import ast
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import posthouse.server
from posthouse.dialects.known import DIALECTS
from posthouse.dialects.settings import settings_of
from posthouse.server.config import HTTP_PROFILES, PORTS, SETTINGS, Config
from tests.security.figures import metric
from tests.server.running import Running, running

MODULE = ("tests.dialects.toy", "serve")
LIMIT_SECONDS = 10


def a_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# A dialect that is added through the list alone.


class Toyshop:
    """A broker that knows toys, with a port that is declared for them."""

    def __init__(self, broker: Running, http_port: int) -> None:
        self.broker = broker
        self.http_port = http_port

    def say(self, *pieces: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.broker.port), LIMIT_SECONDS) as made:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in pieces:
                made.sendall(piece)
            return made.makefile("rb").readline()


@pytest.fixture(scope="module")
def toyshop() -> Iterator[Toyshop]:
    http_port = a_free_port()
    flags = ("--memory", "--dev", "--toy-greeting", "welcome", "--port", f"{http_port}=toy-http")
    with running(*flags, module=MODULE) as broker:
        [ports] = [each["ports"] for each in broker.events("broker.ready")]
        broker.port = next(port for port in ports if port != http_port)
        yield Toyshop(broker, http_port)


def test_a_toy_is_recognised_by_its_first_bytes_and_answered(toyshop: Toyshop) -> None:
    assert toyshop.say(b"TOY bear\n").startswith(b"welcome bear ")
    assert toyshop.say(b"T", b"O", b"Y", b" ", b"doll\n").startswith(b"welcome doll ")
    assert toyshop.say(b"TOP / HTTP/1.1\r\nhost: localhost\r\n\r\n").startswith(b"HTTP/1.1")


def test_a_toy_s_connection_is_counted_under_its_name(toyshop: Toyshop) -> None:
    with socket.create_connection(("127.0.0.1", toyshop.broker.port), LIMIT_SECONDS) as made:
        made.sendall(b"TOY bear\n")
        assert made.recv(100)
        assert metric(toyshop.broker, "posthouse_connections")['dialect="toy"'] == 1


def test_a_toy_s_path_is_its_own_and_others_go_on(toyshop: Toyshop) -> None:
    assert toyshop.broker.call("GET", "/toy/bear").body == b"welcome at default"
    assert toyshop.broker.call("GET", "/servicebus/health/live").body == b"Alive"
    assert toyshop.broker.call("GET", "/health/live").status == 200
    assert b"<ListQueuesResult" in toyshop.broker.call("GET", "/?Action=ListQueues").body


def test_a_port_can_be_declared_for_toys_which_get_requests_as_they_came(toyshop: Toyshop) -> None:
    port, toyshop.broker.port = toyshop.broker.port, toyshop.http_port
    try:
        headers = {"X-Two": "2", "X-One": " 1", "X-two": "b"}
        path = "/health/%6Cive?b=%2f&a=+&a"
        said = toyshop.broker.call("POST", path, raw=b"\xff\r\n", headers=headers).body
    finally:
        toyshop.broker.port = port
    lines = [b"/health/%6Cive", b"b=%2f&a=+&a", b"\xff\r\n", b"X-Two=2", b"X-One=1", b"X-two=b"]
    assert said == b"\n".join(lines)


def test_a_toy_s_setting_is_in_the_help_the_environment_and_the_file(tmp_path: Path) -> None:
    def run(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", MODULE[0], *words]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    said = " ".join(run("serve", "--help", COLUMNS="200").stdout.split())
    assert "--toy-greeting WORD what toys are told" in said
    assert "8711=toy-http" in said
    file = tmp_path / "c.yaml"
    file.write_text("toy_greeting: file\n")
    found = re.search(r"toy_greeting +(\S+) +(\S+)", run("config", "show").stdout)
    assert found is not None
    assert found.groups() == ("hello", "default")
    by_file = run("config", "show", "--config", str(file)).stdout
    assert re.search(rf"toy_greeting +file +{re.escape(str(file))}", by_file)
    by_name = run("config", "show", POSTHOUSE_TOY_GREETING="there").stdout
    assert re.search(r"toy_greeting +there +POSTHOUSE_TOY_GREETING", by_name)
    wrong = run("config", "show", "--config", str(file), "--port", "1=plane-http")
    assert "toy-http" in wrong.stderr


def test_a_toy_s_line_is_in_the_welcome_text() -> None:
    port = a_free_port()
    command = [sys.executable, "-m", *MODULE, "--memory", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while "Ctrl-C stops it." not in "".join(lines[-1:]):
            line = process.stdout.readline().decode()
            assert line, lines
            lines.append(line)
        process.terminate()
    assert f"  Toys          toy://localhost:{port}\n" in lines


# What is true of every declaration.


def test_every_folder_of_a_dialect_is_in_the_list() -> None:
    folder = Path(posthouse.server.__file__).parents[1] / "dialects"
    folders = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert {each.name for each in DIALECTS} == folders


def test_no_two_dialects_have_a_name_in_common() -> None:
    settings = [name for each in DIALECTS for name in settings_of(each.settings)]
    settings += settings_of(Config)
    assert len(settings) == len(set(settings)) == len(SETTINGS)
    wires = [each.wire.name for each in DIALECTS if each.wire is not None]
    assert len(wires) == len(set(wires))
    assert len(HTTP_PROFILES) == sum(each.profile is not None for each in DIALECTS)
    assert len(PORTS) == sum(len(each.ports) for each in DIALECTS)


def test_declarations_import_no_more_than_settings() -> None:
    """They are imported at every start."""
    code = "import posthouse.dialects.known, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    modules = set(done.stdout.split())
    mine = {each.removeprefix("posthouse.dialects.") for each in modules if "dialects." in each}
    common = {"dialect", "known", "settings"}
    for name in (each.name for each in DIALECTS):
        common |= {name, f"{name}.declaration", f"{name}.settings"}
    assert mine <= common
    assert not modules & {"jwt", "pyexpat", "uvicorn", "websockets", "posthouse.broker.engine"}


# What the server's code says.

_NAMES = ("servicebus", "localzure", "pyqueue", "vibemq", "sqs", "amqp")
# Where a word of these means something else.
_ALLOWED = {
    "shapes.py: amqp": "a style of patterns, in which # stands for any number of levels",
}


def _words(tree: ast.AST) -> Iterator[str]:
    """Every identifier and every piece of text."""
    for node in ast.walk(tree):
        for _, value in ast.iter_fields(node):
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, str | bytes):
                    yield each.decode("latin-1") if isinstance(each, bytes) else each


def test_no_module_of_the_server_names_a_dialect() -> None:
    folder = Path(posthouse.server.__file__).parent
    found = set()
    for path in sorted(folder.rglob("*.py")):
        for word in _words(ast.parse(path.read_text())):
            plain = re.sub(r"[^a-z0-9]", "", word.lower())
            found |= {f"{path.name}: {name}" for name in _NAMES if name in plain}
    assert found - set(_ALLOWED) == set(), "this belongs into the declaration of the dialect"
    assert set(_ALLOWED) - found == set(), "these are not there any more"
