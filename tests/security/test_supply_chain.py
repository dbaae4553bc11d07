"""Nothing that comes in is run as code, and the broker fetches nothing that a client names."""

import ast
import asyncio
from collections.abc import Iterator

import pytest

from posthouse.broker.access import BROKER
from posthouse.core.commands import CreateQueue, CreateSubscription, GetQueue, UpdateQueue
from posthouse.core.errors import InvalidArgument, NotFound, Refused
from posthouse.core.model import QueueProperties
from posthouse.store.memory import MemoryStore
from tests.broker.desk import NS, Desk
from tests.house import tree as sources

RUNS_CODE = {
    "pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "jsonpickle",
    "code", "codeop",
}  # fmt: skip
CALLS = {"eval", "exec", "compile", "__import__"}
YAML = {"load", "load_all", "full_load", "unsafe_load", "full_load_all", "unsafe_load_all"}
# What is excepted, with the reason.
EXCEPTED = {
    ("server/serve.py", "__import__"): "of our own modules, by the names that dialects declare",
    ("pipeline/session.py", "cloudpickle"): (
        "tells Spark to send our own modules to its workers; nothing is read with it"
    ),
}

FETCHES = {
    "urllib.request", "http.client", "aiohttp", "httpx", "requests", "urllib3", "ftplib", "smtplib",
    "telnetlib", "xmlrpc.client", "websockets",
}  # fmt: skip
CONNECTS = {"create_connection", "open_connection", "create_unix_connection", "urlopen"}
SERVES = ("core", "store", "amqp", "broker", "dialects", "server")  # what runs in a broker


def modules(*rooms: str) -> Iterator[tuple[str, ast.Module]]:
    for module in sources.modules():
        if not rooms or module.room in rooms:
            yield module.path, module.tree


def imported(tree: ast.Module) -> Iterator[str]:
    """Full names, also of what is imported from a package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def runs_code(tree: ast.Module) -> set[str]:
    found = {part for name in imported(tree) for part in name.split(".") if part in RUNS_CODE}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found |= {node.func.id} & CALLS
        if isinstance(node, ast.Attribute) and node.attr in YAML and "yaml" in ast.dump(node.value):
            found.add(f"yaml.{node.attr}")
    return found


def fetches(tree: ast.Module) -> set[str]:
    found = set(imported(tree)) & FETCHES
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found |= {node.attr} & CONNECTS
        if isinstance(node, ast.Name):
            found |= {node.id} & CONNECTS
    return found


def test_nothing_that_is_read_is_run() -> None:
    found = {(name, what) for name, tree in modules() for what in runs_code(tree)}
    assert found == set(EXCEPTED)


def test_the_broker_fetches_nothing_but_what_its_operator_names() -> None:
    asked = {
        "server/monitors.py": {"urllib.request", "urlopen"},  # NATS' monitoring, at a start
        # The other nodes of the cluster: their folders, their state, clients for the leader.
        "server/folder_client.py": {"http.client"},
        "server/node_client.py": {"http.client"},
        "server/relay.py": {"create_connection"},
    }
    assert {name: found for name, tree in modules(*SERVES) if (found := fetches(tree))} == asked


@pytest.mark.parametrize("source", [
    "import pickle", "from pickle import loads", "from pyspark import cloudpickle", "eval(text)",
    "import yaml\nyaml.load(text)", "import marshal", "exec(text)",
])  # fmt: skip
def test_what_runs_code_would_be_noticed(source: str) -> None:
    assert runs_code(ast.parse(source))
    assert not runs_code(ast.parse("import yaml\nyaml.safe_load(x)\nre.compile(y)\nx.eval(1)"))


@pytest.mark.parametrize("source", [
    "import urllib.request", "from urllib import request", "from http.client import HTTPConnection",
    "socket.create_connection(x)", "import httpx", "asyncio.open_connection(x)",
])  # fmt: skip
def test_what_fetches_would_be_noticed(source: str) -> None:
    assert fetches(ast.parse(source))
    assert not fetches(ast.parse("from urllib.parse import urlsplit\nimport socket"))


@pytest.mark.parametrize("target", [
    "http://169.254.169.254/latest/meta-data", "https://example.com/", "//example.com/q",
    "sb://other.servicebus.windows.net/q", "amqps://10.0.0.1/q", "file:///etc/passwd",
    "localhost:80",
])  # fmt: skip
@pytest.mark.parametrize("field", ["forward_to", "forward_dead_to"])
def test_a_forward_target_is_the_name_of_an_entity_and_nothing_else(
    field: str, target: str
) -> None:
    async def main() -> None:
        desk = await Desk.open(MemoryStore())
        await desk.do(CreateQueue("news", QueueProperties(delivery="topic")))
        properties = QueueProperties(**{field: target})  # type: ignore[arg-type]
        for command in (
            CreateQueue("new", properties), UpdateQueue("q", properties),
            CreateSubscription("news/$sub/s", properties),
        ):  # fmt: skip
            with pytest.raises((NotFound, InvalidArgument)):
                await desk.engine.ask(BROKER, NS, command)
        with pytest.raises(Refused):
            await desk.do(GetQueue("new"))
        await desk.engine.close()

    asyncio.run(main())
