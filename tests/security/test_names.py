"""Names of entities, over every protocol: what is none is refused, and none becomes a file name."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.dialects.pyqueue.client import Client as PyQueue
from tests.dialects.pyqueue.client import frame
from tests.dialects.servicebus.rest import Rest, entry
from tests.dialects.vibemq.client import CREATE, ERROR
from tests.dialects.vibemq.client import Client as Vibe
from tests.security.amqp import Amqp, plain
from tests.server.running import Running, development
from tests.waiting import until

NO_NAMES = [
    "..", ".", "../x", "a/../b", "a/./b", "a//b", "/a", "a/", "a\\b", "..\\..\\x", "a\0b", "a\nb",
    "\u202eab", "a\u2028b", "x" * 261, " a", "a ", "$cbs", "$management", "a/$dead/$dead", "q/$sub",
]  # fmt: skip
NAMES = ["con", "NUL", "aux.txt", "名前", "\uff41", "\u0440\u0430ypal", "\ufb01", "\u0130stanbul",
         "%2e%2e", "lock", "next", "root-key", "00000000000000000001.journal",
         "a" * 200, "-rf", "~", "*"]  # fmt: skip

# What may be in a data folder.
_FILES = re.compile(
    r"\d{20}\.(journal|arrow|arrow-new|snapshot)|next|reserve|large|closed|closing|lock|fold-lock"
    r"|folding|scrubbed|root-key|root-key-new|seal-key|tls(/(ca|server)\.(pem|key))?"
    r"|\.(root-key|seal-key|root-key-new)\.[0-9a-f]+"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("names")


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[Running]:
    with development(folder / "data") as broker:
        yield broker


def api(broker: Running, name: str) -> bool:
    return broker.queue("PUT", quote(name, safe=""), {}).status < 300


def atom(broker: Running, name: str) -> bool:
    path = f"/{quote(name, safe='')}?api-version=2021-05"
    return Rest(broker.port)("PUT", path, entry("QueueDescription")).status < 300


def rest(broker: Running, name: str) -> bool:
    path = f"/{quote(name, safe='')}/messages"
    return Rest(broker.port)("POST", path, b"x").status < 300


def localzure(broker: Running, name: str) -> bool:
    path = f"/servicebus/default/queues/{quote(name, safe='')}/messages"
    return broker.call("POST", path, {"body": "x"}).status < 300


def amqp(broker: Running, name: str) -> bool:
    with Amqp(broker.port, plain("RootManageSharedAccessKey", "SAS_KEY_VALUE")) as peer:
        return peer.why(peer.link(name, sends=False)) is None


def pyqueue(broker: Running, name: str) -> bool:
    with PyQueue(broker.port) as client:
        client.send(frame("PUSH", {"queue": name, "payload": "x"}))
        return client.read().word == "OK"


def vibemq(broker: Running, name: str) -> bool:
    with Vibe(broker.port) as client:
        client.connect()
        return client.ask(CREATE, name).type != ERROR


WAYS: list[Callable[[Running, str], bool]] = [api, atom, rest, localzure, amqp, pyqueue, vibemq]


def queues(broker: Running) -> set[str]:
    found = broker.call("GET", "/api/v1/namespaces/default/queues?limit=1000").json["queues"]
    return {each["name"] for each in found}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_is_no_name_makes_nothing(
    broker: Running, way: Callable[[Running, str], bool]
) -> None:
    """It may be read as another name, where a protocol trims or joins paths; never as itself."""
    assert way(broker, f"plain-{way.__name__}")
    for name in NO_NAMES:
        way(broker, name)
    found = queues(broker)
    assert f"plain-{way.__name__}" in found
    assert not found & set(NO_NAMES)
    assert not [name for name in found if ".." in name or "\\" in name or not name.isprintable()]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_no_name_becomes_a_file(
    broker: Running, folder: Path, way: Callable[[Running, str], bool]
) -> None:
    for name in (*NAMES, *NO_NAMES):
        way(broker, name)
    data = folder / "data"

    def strange() -> list[str]:
        files = {str(path.relative_to(data)) for path in data.rglob("*")}
        return [name for name in files if not _FILES.fullmatch(name)]

    # A key that is just being made has another name for a moment.
    until(lambda: not strange(), "all files have the broker's own names", look_seconds=0.1)
    assert [path.name for path in folder.iterdir()] == ["data"]


def test_names_that_look_alike_are_not_the_same_unless_their_case_alone_differs(
    broker: Running,
) -> None:
    assert api(broker, "Straße-Paypal")
    assert not api(broker, "straße-paypal")  # Service Bus finds names whatever their case
    assert api(broker, "Straße-P\u0430ypal")  # with a Cyrillic letter: another name
    assert {"Straße-Paypal", "Straße-P\u0430ypal"} <= queues(broker)
