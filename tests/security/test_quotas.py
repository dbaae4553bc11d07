"""One key cannot take all of what is limited in number; and every limit says whether it is shared.

A new limit in the core must be listed here, and in the table of docs/server.md.
"""

import http.client
import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from posthouse.core import commands, namespaces
from posthouse.dialects.pyqueue.workers import WORKERS_MAX
from tests.dialects.pyqueue.client import Client
from tests.server.running import Running

DOCUMENT = Path(__file__).parents[2] / "docs" / "server.md"

SHARED = {
    "SUBSCRIPTIONS_MAX", "SCHEDULES_MAX", "BLOCKED_MAX", "BLOCKED_BYTES_MAX", "TRANSACTIONS_MAX",
    "TRANSACTIONS_BYTES_MAX", "NAMESPACES_MAX", "ACCOUNTS_MAX", "READERS_MAX",
}  # fmt: skip

ONE_COMMAND = "what one command asks for, writes or is answered with; the next may do it again"
ONE_THING = "of one thing, which only those fill who have the right to change it"
NOT_SHARED = {
    **dict.fromkeys((
        "BATCH_MAX", "SEND_BYTES_MAX", "ANSWER_BYTES_MAX", "PAGE_MAX", "STEPS_MAX", "LOOK_MAX",
        "CLIENT_CHARS_MAX", "NAME_CHARS_MAX", "GROUP_CHARS_MAX", "KEY_CHARS_MAX", "TEXT_CHARS_MAX",
        "QUEUE_EXTRAS_BYTES_MAX",
        "PROPERTY_CHARS_MAX", "PROPERTIES_BYTES_MAX", "TIME_MS_MAX", "DURATION_MS_MAX",
        "RECEIVER_MAX",
        "RULE_CHARS_MAX", "HAND_ON_MAX", "HAND_ON_BYTES_MAX", "FIRE_BYTES_MAX",
        "TRANSACTION_MS_MAX", "SCHEDULED_BYTES_MAX", "RULES_SQL_MAX",
        "RULE_PATTERNS_MAX",
    ), ONE_COMMAND),
    **dict.fromkeys((
        "CREDIT_MAX", "SESSION_STATE_BYTES_MAX", "RULES_MAX", "RULES_EFFORT_MAX",
        "BACKOFF_MAX", "HOPS_MAX",
        "GRANTS_MAX", "KEYS_MAX", "SEALED_BYTES_MAX", "EXTRAS_CHARS_MAX",
    ), ONE_THING),
    "FANOUT_LIMITED_MAX": "what a queue may have and still get copies while memory is short",
}  # fmt: skip


def limits() -> set[str]:
    found = {*vars(commands), *vars(namespaces)}
    return {name for name in found if name.endswith("_MAX") and not name.startswith("_")}


def test_every_limit_of_the_core_is_shared_or_says_why_not() -> None:
    assert SHARED | set(NOT_SHARED) == limits()
    assert not SHARED & set(NOT_SHARED)


def test_the_document_lists_every_limit_of_the_core() -> None:
    text = DOCUMENT.read_text()
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    told = {name.strip(" `"): row for row in rows for name in row[1].split(",")}
    assert limits() <= told.keys()
    for name in limits():
        assert told[name][4].strip().startswith("yes" if name in SHARED else "no"), name


# From outside.

PERCENT = 1
EVE, ANN = "eve", "ann"
NS = "/api/v1/namespaces/default"
MADE = (200, 201, 204)
GRANTS = [{"namespace": "*", "entity": "*", "rights": ["manage", "send", "listen"]}]


class Doors:
    """A broker with little shares, and three who come with their keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker = self.start()
        self.root = f"RootManageSharedAccessKey:{(folder / 'root-key').read_text().strip()}"
        self.eve, self.ann = self._add(EVE), self._add(ANN)
        self.ask(self.root, "PUT", f"{NS}/queues/q", {})
        self.ask(self.root, "PUT", f"{NS}/topics/news", {})

    def start(self) -> Running:
        share = ("--principal-share", str(PERCENT))
        return Running("--data", str(self.folder), "--durability", "memory", *share)

    def _add(self, name: str) -> str:
        reply = self.ask(self.root, "POST", "/api/v1/principals", {"name": name, "grants": GRANTS})
        return f"{name}:{json.loads(reply[1])['key']}"

    def ask(self, key: str, *requests: object) -> tuple[int, bytes]:
        method, path, body = requests
        return self.ask_all(key, [(str(method), str(path), body)])[0]

    def ask_all(self, key: str, requests: list[tuple[str, str, object]]) -> list[tuple[int, bytes]]:
        """One after the other, on one connection."""
        headers = {
            "authorization": "Basic " + b64encode(key.encode()).decode(),
            "content-type": "application/json",
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.broker.port, timeout=60)
        answers = []
        with closing(connection):
            for method, path, body in requests:
                data = None if body is None else json.dumps(body)
                connection.request(method, path, data, headers)
                response = connection.getresponse()
                answers.append((response.status, response.read()))
        return answers


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    found = Doors(tmp_path_factory.mktemp("quotas") / "data")
    yield found
    found.broker.stop()


Request = tuple[str, str, object]


def a_transaction(_: str) -> Request:
    return "POST", f"{NS}/transactions", {"timeout_ms": 600_000}


def a_schedule(name: str) -> Request:
    message = {"body": "x"}
    form = {"when": "every 1 hour", "queue": "q", "message": message}
    return "PUT", f"{NS}/schedules/{name}", form


def a_namespace(name: str) -> Request:
    return "PUT", f"/api/v1/namespaces/{name}", None


def a_principal(name: str) -> Request:
    return "POST", "/api/v1/principals", {"name": name, "grants": GRANTS}


def a_reader(name: str) -> Request:
    return "PUT", f"/api/v1/readers/{name}", {"position": 0}


def a_subscription(name: str) -> Request:
    return "PUT", f"{NS}/topics/news/subscriptions/{name}", {}


KINDS: list[tuple[Callable[[str], Request], int, str]] = [
    (a_transaction, commands.TRANSACTIONS_MAX, "open transactions"),
    (a_schedule, commands.SCHEDULES_MAX, "schedules"),
    (a_namespace, namespaces.NAMESPACES_MAX, "namespaces"),
    (a_principal, namespaces.ACCOUNTS_MAX, "principals"),
    (a_reader, namespaces.READERS_MAX, "readers"),
    (a_subscription, commands.SUBSCRIPTIONS_MAX, "subscriptions"),
]


@pytest.mark.parametrize(("make", "most", "what"), KINDS, ids=[each[2] for each in KINDS])
def test_one_key_takes_its_share_and_the_others_do_their_work(
    doors: Doors, make: Callable[[str], Request], most: int, what: str
) -> None:
    share = most * PERCENT // 100
    answers = doors.ask_all(doors.eve, [make(f"eve-{n}") for n in range(share + 1)])
    assert {status for status, _ in answers[:-1]} <= set(MADE), answers[0]
    status, told = answers[-1]
    assert status == 429, told
    problem = json.loads(told)
    assert problem["type"].endswith("quota-exceeded")
    assert f"'eve' has used up its share of the number of {what}" in problem["detail"]
    assert doors.ask(doors.ann, *make("ann-1"))[0] in MADE
    assert doors.ask(doors.root, *make("root-1"))[0] in MADE


def take_all(doors: Doors, make: Callable[[str], Request], most: int) -> None:
    """As much as there is for one, if that was not taken before."""
    share = most * PERCENT // 100
    doors.ask_all(doors.eve, [make(f"eve-{n}") for n in range(share)])


def test_what_is_kept_counts_after_a_restart_too(doors: Doors) -> None:
    take_all(doors, a_schedule, commands.SCHEDULES_MAX)
    take_all(doors, a_reader, namespaces.READERS_MAX)
    doors.broker.stop()
    doors.broker = doors.start()
    assert doors.ask(doors.eve, *a_schedule("eve-more"))[0] == 429
    assert doors.ask(doors.eve, *a_reader("eve-more"))[0] == 429
    assert doors.ask(doors.eve, *a_transaction(""))[0] in MADE  # those are over
    assert doors.ask(doors.eve, "DELETE", f"{NS}/schedules/eve-0", None)[0] in MADE
    assert doors.ask(doors.eve, *a_schedule("eve-more"))[0] in MADE


def test_what_a_revoked_key_made_counts_for_its_name(doors: Doors) -> None:
    """Else one could take all of it by coming under the same name again."""
    take_all(doors, a_schedule, commands.SCHEDULES_MAX)
    assert doors.ask(doors.root, "DELETE", f"/api/v1/principals/{EVE}", None)[0] in MADE
    doors.eve = doors._add(EVE)
    assert doors.ask(doors.eve, *a_schedule("eve-once-more"))[0] == 429


def test_the_sends_of_one_that_wait_for_room_leave_room_for_others(doors: Doors) -> None:
    form = {"max_messages": 1, "overflow": "block"}
    assert doors.ask(doors.root, "PUT", f"{NS}/queues/narrow", form)[0] in MADE
    send = {"messages": [{"body": "x"}]}
    assert doors.ask(doors.root, "POST", f"{NS}/queues/narrow/messages", send)[0] in MADE
    wait = {**send, "wait_ms": 3_000}
    share = commands.BLOCKED_MAX * PERCENT // 100
    with ThreadPoolExecutor(share + 3) as pool:
        path = f"{NS}/queues/narrow/messages"
        mine = [pool.submit(doors.ask, doors.eve, "POST", path, wait) for _ in range(share + 2)]
        done, waiting = futures.wait(mine, return_when=futures.FIRST_COMPLETED)
        refused = [each.result() for each in done]
        assert all(b"has used up its share" in body for _, body in refused), refused
        ann = pool.submit(doors.ask, doors.ann, "POST", path, wait)
        assert b"share" not in ann.result()[1]  # it waited, and there was no room
        assert len(waiting) >= share


def test_workers_of_one_key_do_not_displace_those_of_another(doors: Doors) -> None:
    share = WORKERS_MAX * PERCENT // 100
    with Client(doors.broker.port) as eve, Client(doors.broker.port) as ann:
        for client, key in ((eve, doors.eve), (ann, doors.ann)):
            client.ok("AUTH", {"type": "apikey", "value": key.partition(":")[2]})
        ann.ok("HEARTBEAT", {"worker_id": "ann-worker"})
        for number in range(share + 20):
            eve.ok("HEARTBEAT", {"worker_id": f"eve-{number}"})
        names = {each["worker_id"] for each in ann.ok("ADMIN_LIST_WORKERS")["workers"]}
        assert "ann-worker" in names
        assert len(names) == share + 1
