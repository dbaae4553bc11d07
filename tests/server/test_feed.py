"""The feed of a real process: every position once, as JSON lines and as Arrow."""

import http.client
import io
import json
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from select import select
from typing import Any

import pyarrow as pa
import pytest

from posthouse.broker.fold import LOCK, make_arrow_segments
from posthouse.broker.rows import COLUMNS, KINDS, WORDS
from posthouse.core.records import Kept, OfNamespaces
from posthouse.store.disk import Disk
from posthouse.store.errors import InUse
from tests.server.running import Running, development, running
from tests.waiting import until

pytestmark = pytest.mark.long

ARROW = {"accept": "application/vnd.apache.arrow.stream"}


def rows(broker: Running, query: str = "") -> list[dict[str, Any]]:
    reply = broker.call("GET", f"/feed{query}")
    assert reply.status == 200, reply
    assert reply.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in reply.body.splitlines()]


def table(broker: Running, query: str = "") -> pa.Table:
    reply = broker.call("GET", f"/feed{query}", headers=ARROW)
    assert reply.status == 200, reply
    return pa.ipc.open_stream(io.BytesIO(reply.body)).read_all()


def await_arrow_segments(folder: Path) -> list[Path]:
    """Until every segment has one but the last, and whoever made them has gone."""

    def complete() -> list[Path] | None:
        sealed = {each.stem for each in sorted(folder.glob("*.journal"))[:-1]}
        arrow_segments = sorted(folder.glob("*.arrow"))
        if sealed == {each.stem for each in arrow_segments}:
            with suppress(InUse):
                disk = Disk()
                disk.close(disk.lock(folder / LOCK))
                return arrow_segments
        return None

    return until(complete, "each sealed segment has its Arrow segment", look_seconds=0.05) or []


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """With something of every kind in its journal, and several segments."""
    folder = tmp_path_factory.mktemp("feed") / "data"
    with development(folder, "--segment-size", "64K") as broker:
        broker.queue("PUT", "orders", {"lock_ms": 60_000})
        broker.send("orders", "a", "b", "c", "d", "e", id="m", properties={"colour": "red"})
        a, b, c, d, e = broker.receive("orders", 5)
        broker.complete("orders", a)
        for how, message in (("abandon", b), ("release", c), ("defer", d), ("renew", e)):
            broker.queue("POST", f"orders/{how}", {"locks": [message["token"]]})
        broker.queue("POST", "orders/dead-letter", {"locks": [e["token"]], "reason": "bad"})
        broker.queue("POST", "orders%2F$dead/resubmit", {})
        broker.receive("orders", 1, delete=True)
        broker.queue("POST", "bytes/messages", {"messages": [{"body_base64": "AP8="}]})
        broker.call("POST", "/api/v1/principals", {"name": "ann", "grants": [{"rights": ["send"]}]})
        for number in range(400):
            broker.send("many", *(f"{number} {at}" * 20 for at in range(5)))
        yield broker


def test_there_is_one_row_for_each_position(broker: Running) -> None:
    status = broker.call("GET", "/feed/status").json
    every = rows(broker)
    assert [each["position"] for each in every] == list(range(1, status["last"] + 1))
    parts = status["parts"]
    assert len(parts) > 3
    assert sum(part["rows"] for part in parts) == status["last"]
    assert [part["sealed"] for part in parts] == [True] * (len(parts) - 1) + [False]


def test_a_part_has_a_status_of_its_own(broker: Running) -> None:
    whole = broker.call("GET", "/feed/status").json
    part = broker.call("GET", "/feed/status?namespace=default&entity=orders").json
    assert part == {"first": whole["first"], "last": whole["last"], "entity": "orders"}
    told = broker.call("GET", "/feed/status?namespace=default&entity=unheard-of")
    assert (told.status, told.json["type"]) == (404, "urn:posthouse:problem:not-found")
    assert broker.call("GET", "/feed/status?namespace=nowhere&entity=orders").status == 404
    assert broker.call("GET", "/feed/status?colour=red").status == 400


def test_a_position_is_found_by_its_time(broker: Running) -> None:
    every = rows(broker)
    for each in (every[0], every[len(every) // 2], every[-1]):
        at = broker.call("GET", f"/feed/status?time={each['time']}").json["at"]
        assert at == min(row["position"] for row in every if row["time"] >= each["time"])
    later = broker.call("GET", f"/feed/status?time={every[-1]['time'] + 1}").json
    assert later["at"] == later["last"] + 1
    assert broker.call("GET", "/feed/status?time=soon").status == 400


def test_rows_tell_what_happened(broker: Running) -> None:
    some = rows(broker, "?limit=40")
    kinds = [each["kind"] for each in some if each.get("entity", "").startswith("orders")]
    assert kinds == (
        ["queue-created"] + ["sent"] * 5 + ["delivered"] * 5 + ["completed", "abandoned",
         "released", "deferred", "renewed", "dead-lettered", "resubmitted", "taken"]
    )  # fmt: skip
    sent = next(each for each in some if each["kind"] == "sent")
    assert (sent["message_id"], sent["body"], sent["sequence_number"]) == ("m", "a", 1)
    assert sent["properties"] == {"colour": "red"}
    times = {each["kind"]: each for each in some if each.get("delivery_count")}
    assert times.keys() == set(kinds) - {"queue-created", "sent", "renewed", "resubmitted"}
    assert {each["delivery_count"] for each in times.values()} == {1, 2}
    waits = {kind for kind, each in times.items() if each.get("waited_ms", -1) >= 0}
    settles = {kind for kind, each in times.items() if each.get("settled_ms", -1) >= 0}
    assert waits == {"delivered", "taken"}
    assert settles == times.keys() - waits
    dead = next(each for each in some if each["kind"] == "dead-lettered")
    assert (dead["reason"], dead["target"], dead["sequence_number"]) == ("bad", "orders/$dead", 5)
    raw = next(each for each in some if each.get("entity") == "bytes" and each["kind"] == "sent")
    assert raw["body_base64"] == "AP8="
    [access] = [each for each in some if each["kind"] == "principal-set"]
    assert access["entity"] == "ann"
    assert access["detail"]["keys"] == 1
    assert set(access) <= {"position", "time", "entity", "kind", "detail"}


def test_rows_tell_who_got_what_was_published(broker: Running) -> None:
    space = "/api/v1/namespaces/default"
    broker.call("PUT", f"{space}/topics/news", {})
    broker.call("PUT", f"{space}/topics/news/subscriptions/all", {})
    rule = {"name": "r", "filter": {"kind": "sql", "expression": "n = 1"}, "action": "SET n = 2"}
    broker.call("PUT", f"{space}/topics/news/subscriptions/some", {"rules": [rule]})
    broker.call("PUT", f"{space}/topics/news/subscriptions/all/rules/more", {})
    broker.call("DELETE", f"{space}/topics/news/subscriptions/all/rules/more")
    broker.send("news", "x", properties={"n": 1})
    after = broker.call("GET", "/feed/status").json["last"] - 20
    some = rows(broker, f"?after={after}")
    some = [each for each in some if each.get("entity", "").startswith("news")]
    assert [each["kind"] for each in some] == [
        "queue-created", "subscription-created", "subscription-created", "rule-set",
        "rule-removed", "sent", "copied", "copied", "routed",
    ]  # fmt: skip
    assert some[2]["detail"]["rules"][0]["filter"]["expression"] == "n = 1"
    copied = [
        (each["target"], each["target_sequence_number"], each.get("properties"))
        for each in some[6:8]
    ]
    assert copied == [
        ("news/$sub/all", 1, None),
        ("news/$sub/some", 1, {"n": 2, "RuleName": "r"}),
    ]


def test_every_record_has_a_kind() -> None:
    from typing import get_args

    assert set(KINDS) == {*get_args(Kept), *get_args(OfNamespaces)}
    assert len(WORDS) == len(KINDS) + 2


def test_arrow_has_the_same_rows(broker: Running) -> None:
    every, found = rows(broker), table(broker)
    assert found.column_names == list(COLUMNS)
    assert found.num_rows == len(every)
    for line, row in zip(every, found.to_pylist(), strict=True):
        assert row["position"] == line["position"]
        assert row["kind"] == line["kind"]
        assert int(row["time"].timestamp() * 1000 + 0.5) == line["time"]
        assert row["message_id"] == line.get("message_id")
        body = row["body"]
        assert (body.decode() if body not in (None, b"\x00\xff") else None) == line.get("body")


def make_again(folder: Path, arrow_segments: list[Path]) -> None:
    """Makes those that are gone, unless the broker's own process does so at this moment."""

    def are_made() -> bool:
        with suppress(InUse):
            make_arrow_segments(folder)
        return all(each.exists() for each in arrow_segments)

    until(are_made, "they are made")


def test_arrow_segments_give_what_frames_give(broker: Running) -> None:
    """From any position to any other, whether a part has its Arrow segment or not."""
    folder = Path(broker.call("GET", "/api/v1/store").json["folder"])
    arrow_segments = await_arrow_segments(folder)
    assert len(arrow_segments) >= 3
    after = table(broker)
    for each in arrow_segments:
        each.unlink()
    before = table(broker)
    assert before.equals(after)
    make_again(folder, arrow_segments)
    for query in ("?after=0", "?after=7&limit=100", "?after=500&limit=1300", "?after=1999"):
        first, limit = 0, 10_000
        for pair in query[1:].split("&"):
            name, value = pair.split("=")
            first, limit = (int(value), limit) if name == "after" else (first, int(value))
        assert table(broker, query).equals(before.slice(first, limit)), query
    assert {each.stat().st_mode & 0o777 for each in arrow_segments} == {0o600}
    arrow_segments[1].unlink()
    assert table(broker).equals(before)
    damaged = bytearray(arrow_segments[0].read_bytes())
    damaged[len(damaged) // 2] ^= 1
    arrow_segments[0].write_bytes(damaged)
    assert table(broker).equals(before)
    assert broker.events("feed.bad_arrow_segment")
    assert not arrow_segments[0].exists()
    make_again(folder, arrow_segments)
    authority = folder / "tls" / "ca.pem"
    until(authority.exists, "the authority is made, when the broker has time for it")
    context = ssl.create_default_context(cafile=str(authority))
    dev = "RootManageSharedAccessKey:SAS_KEY_VALUE"
    secret = broker.call("GET", "/feed", headers=ARROW, tls=context, key=dev).body
    assert pa.ipc.open_stream(io.BytesIO(secret)).read_all().equals(before)
    (folder / "00000000000000009999.arrow").touch()
    make_arrow_segments(folder)
    assert not (folder / "00000000000000009999.arrow").exists()


def test_arrow_segments_and_snapshots_are_made_while_it_serves(tmp_path: Path) -> None:
    flags = ("--segment-size", "64K", "--fold-size", "128K")
    with development(tmp_path / "data", *flags) as broker:
        for number in range(60):
            broker.send("many", *(f"{number} {at}" * 50 for at in range(20)))
        assert await_arrow_segments(tmp_path / "data")
        until(lambda: broker.call("GET", "/api/v1/store").json["snapshots"], "a snapshot is made")
        assert table(broker).num_rows == len(rows(broker)) > 1_200


def test_an_arrow_segment_that_a_stop_came_before_is_made_after_the_next_start(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "data"
    with development(folder, "--segment-size", "64K") as broker:
        for number in range(60):
            broker.send("many", *(f"{number} {at}" * 50 for at in range(20)))
        arrow_segments = await_arrow_segments(folder)
    arrow_segments[0].unlink()
    with development(folder, "--segment-size", "64K"):
        assert await_arrow_segments(folder)


@pytest.mark.parametrize("arrow", [False, True])
def test_what_is_asked_for_is_given(broker: Running, arrow: bool) -> None:
    def get(query: str) -> list[dict[str, Any]]:
        found = table(broker, query).to_pylist() if arrow else rows(broker, query)
        return [{k: v for k, v in each.items() if v is not None} for each in found]

    assert [each["position"] for each in get("?after=5&limit=3")] == [6, 7, 8]
    assert {each["kind"] for each in get("?kinds=completed,deferred")} == {"completed", "deferred"}
    assert {each["entity"] for each in get("?entity=bytes&namespace=default")} == {"bytes"}
    assert get("?namespace=nowhere") == []
    assert set(get("?columns=position,kind&limit=1")[0]) == {"position", "kind"}
    assert get("?after=999999") == []


@pytest.mark.parametrize("arrow", [False, True])
def test_entities_are_several_names_and_patterns(broker: Running, arrow: bool) -> None:
    def entities(query: str) -> set[str]:
        asked = f"?namespace=default&limit=100000&{query}"
        found = table(broker, asked).to_pylist() if arrow else rows(broker, asked)
        return {each["entity"] for each in found}

    assert entities("entities=orders,bytes") == {"orders", "bytes"}
    assert entities("entities=o*,by*s") == {"orders", "bytes"}  # not the dead letters of orders
    assert entities("entities=o*/$*") == {"orders/$dead"}
    assert entities("entities=nowhere*") == set()
    assert entities("entities=*&target=orders/$dead&columns=entity") == {"orders"}


def test_rows_are_counted_up_to_a_number_and_a_position(broker: Running) -> None:
    def count(query: str) -> tuple[int, int]:
        said = broker.call("GET", f"/feed/count?limit=100000&{query}").json
        return said["rows"], said["next"]

    last = broker.call("GET", "/feed/status").json["last"]
    assert count("") == (last, last)
    assert count("after=5&rows=3") == (3, 8)
    for query in ("kinds=sent&namespace=default&entity=many", "kinds=completed,abandoned,released",
                  "entities=o*&namespace=default", "kinds=dead-lettered&target=orders/$dead",
                  "kinds=started,principal-set,queue-created"):  # fmt: skip
        found = [each["position"] for each in rows(broker, f"?limit=100000&{query}")]
        assert count(query) == (len(found), last), query
        for number in {1, (len(found) + 1) // 2, len(found)}:
            assert count(f"{query}&rows={number}") == (number, found[number - 1])
            after = found[number - 1]
            assert count(f"{query}&after={after}") == (len(found) - number, last)
    assert count(f"after={last}") == (0, last)
    for query in ("rows=0", "columns=body", "kinds=odd"):
        assert broker.call("GET", f"/feed/count?{query}").status == 400, query


def test_the_next_position_is_told_whatever_the_rows(broker: Running) -> None:
    reply = broker.call("GET", "/feed?after=5&limit=10&kinds=expired")
    assert (reply.body, reply.headers["posthouse-next"]) == (b"", "15")
    last = broker.call("GET", "/feed/status").json["last"]
    assert broker.call("GET", "/feed").headers["posthouse-next"] == str(last)


def test_nonsense_is_refused(broker: Running) -> None:
    for query in ("after=x", "limit=0", "kinds=odd", "columns=odd", "colour=red", "after=-1"):
        assert broker.call("GET", f"/feed?{query}").status == 400, query
    assert broker.call("GET", "/feed?reader=nobody").status == 404
    assert broker.call("GET", "/feed", headers={"accept": "image/png"}).status == 406
    assert broker.call("POST", "/feed").status == 405
    assert broker.call("GET", "/feed/odd").status == 404


def test_a_reader_that_waits_is_told_of_what_is_new(broker: Running) -> None:
    last = broker.call("GET", "/feed/status").json["last"]
    assert rows(broker, f"?after={last}&wait_ms=50") == []
    command = [sys.executable, "-m", "posthouse.cli", "feed", "tail", "--json", "-n", "1",
               "--url", broker.url, "--wait", "30s", "--follow"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        while not select([tail.stdout], [], [], 0.2)[0]:  # whenever it has begun to wait
            broker.send("orders", "new")
        row = json.loads(tail.stdout.readline())
    assert (row["kind"], row["body"]) == ("sent", "new")


def test_a_reader_who_leaves_in_the_middle_harms_nobody(broker: Running) -> None:
    for _ in range(8):
        with socket.create_connection(("127.0.0.1", broker.port)) as leaving:
            leaving.sendall(b"GET /feed HTTP/1.1\r\nhost: localhost\r\n\r\n")
            leaving.recv(100)
    assert len(rows(broker, "?limit=50")) == 50
    workers = Path(f"/proc/{broker.process.pid}/task/{broker.process.pid}/children").read_text()
    assert len(workers.split()) <= 4


def test_what_failed_for_one_reader_does_not_reach_the_next(tmp_path: Path) -> None:
    """A segment is taken away under a reader of everything; the next may read little."""
    with development(tmp_path / "data", "--segment-size", "64K") as broker:
        broker.call("PUT", "/api/v1/namespaces/open")
        for number in range(200):
            broker.send("secret", *(f"secret {number} {at}" * 20 for at in range(5)))
        arrow_segment = await_arrow_segments(tmp_path / "data")[1]
        arrow_segment.unlink()
        second = arrow_segment.with_suffix(".journal")
        data = second.read_bytes()
        second.write_bytes(data[:300] + bytes([data[300] ^ 1]) + data[301:])
        with pytest.raises((http.client.HTTPException, AssertionError)):
            rows(broker)
        assert broker.events("feed.failed")
        assert b"secret" not in broker.call("GET", "/feed?namespace=open").body


def test_a_reader_who_does_not_read_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    flags = ("--segment-size", "1M", "--stop-limit", "1")
    with development(tmp_path / "data", *flags) as broker:
        for _ in range(40):
            broker.send("large", *("x" * 50_000 for _ in range(10)))
        await_arrow_segments(tmp_path / "data")
        readers = []
        for _ in range(20):
            stalled = socket.create_connection(("127.0.0.1", broker.port))
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            accept = ARROW["accept"].encode()
            stalled.sendall(b"GET /feed HTTP/1.1\r\nhost: l\r\naccept: " + accept + b"\r\n\r\n")
            readers.append(stalled)
        for each in readers:  # its answer has begun
            assert each.recv(1, socket.MSG_PEEK)
        assert table(broker).num_rows > 400  # others are served all the same
        for each in readers[:5]:
            each.close()  # with much unread, so that it is reset
        cut_off = broker.events("http.cut_off")
        assert cut_off
        assert "traceback" not in cut_off[0]
        broker.process.send_signal(signal.SIGTERM)
        assert broker.process.wait(15) == 0
        for each in readers:
            each.close()
    assert not broker.events("asyncio")  # nor was anything left to the loop to tell of


@pytest.mark.parametrize("durability", ["interval", "memory"])
def test_the_feed_goes_as_far_as_acknowledgements_do(tmp_path: Path, durability: str) -> None:
    with development(tmp_path / "data", "--durability", durability) as broker:
        broker.send("q", "x")
        last = rows(broker, "?after=0&wait_ms=5000")[-1]
        while last["kind"] != "sent":
            [*_, last] = rows(broker, f"?after={last['position']}&wait_ms=5000")
        begun = time.monotonic()
        assert rows(broker, f"?after={last['position']}&wait_ms=300") == []
        assert time.monotonic() - begun >= 0.3


def test_readers_hold_positions_and_are_told_what_they_lost(tmp_path: Path) -> None:
    with development(tmp_path / "data") as broker:
        broker.send("q", "a", "b")
        assert broker.call("PUT", "/api/v1/readers/spark", {"position": 2}).status == 204
        assert rows(broker, "?reader=spark")[0]["position"] == 3
        assert broker.call("PUT", "/api/v1/readers/spark", {"position": 1}).status == 400
        assert broker.call("PUT", "/api/v1/readers/spark", {"position": 99}).status == 400
        [reader] = broker.call("GET", "/api/v1/readers").json["readers"]
        assert (reader["name"], reader["position"], reader["lost"]) == ("spark", 2, False)
        broker.stop()
    with development(tmp_path / "data") as broker:
        assert rows(broker, "?reader=spark")[0]["position"] == 3
        assert broker.call("DELETE", "/api/v1/readers/spark").status == 204
        assert broker.call("DELETE", "/api/v1/readers/spark").status == 404


def test_the_feed_of_a_broker_in_memory() -> None:
    with running("--memory", "--dev", "--auto-create") as broker:
        broker.send("q", "x", "y")
        assert [each["kind"] for each in rows(broker)][-2:] == ["sent", "sent"]
        assert table(broker).num_rows == len(rows(broker))
        [life] = broker.queue("GET", "q/messages/1/life").json["lives"]
        assert [each["kind"] for each in life["events"]] == ["Sent"]


def test_the_broker_loads_pyarrow_only_in_processes_of_its_own(tmp_path: Path) -> None:
    with development(tmp_path / "data") as broker:
        broker.send("q", "x")
        broker.complete("q", *broker.receive("q"))
        broker.call("GET", "/health/ready")
        table(broker)
        broker.queue("GET", "q")
        assert "pyarrow" not in Path(f"/proc/{broker.process.pid}/maps").read_text()
