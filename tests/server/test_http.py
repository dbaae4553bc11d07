"""The HTTP API of a real process: everything that can be done with queues."""

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.security.figures import open_connections
from tests.server.running import Running, development
from tests.server.wire import connect
from tests.waiting import until

QUEUES = "/api/v1/namespaces/default/queues"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with development(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker
    assert not [each for each in broker.log if each["level"] in ("error", "critical")]


def test_a_message_comes_back_as_it_was_sent(broker: Running) -> None:
    message = {
        "body": "größe", "id": "m1", "content_type": "text/plain", "subject": "s",
        "correlation_id": "c", "partition_key": "p", "to": "t", "reply_to": "r",
        "reply_to_session_id": "rs", "trace": "00-1", "priority": 7,
        "properties": {
            "text": "x", "number": 5, "fraction": 0.5, "yes": True, "nothing": None,
            "bytes": {"bytes": "AP8="}, "time": {"timestamp_ms": 1_700_000_000_000},
            "span": {"ticks": -5}, "uuid": {"uuid": "12345678-1234-5678-1234-567812345678"},
        },
    }  # fmt: skip
    reply = broker.queue("POST", "whole/messages", {"messages": [message]})
    assert (reply.status, reply.json) == (201, {"sequences": [1], "duplicates": 0})
    [got] = broker.receive("whole")
    assert {name: got[name] for name in message} == message
    assert got["sequence"] == 1
    assert got["deliveries"] == 1
    assert len(got["token"]) == 32
    assert broker.complete("whole", got).status == 200
    assert broker.receive("whole") == []


def test_bytes_and_bodies_of_other_types_are_kept(broker: Running) -> None:
    broker.queue("POST", "raw/messages", {"messages": [{"body_base64": "AP8="}]})
    broker.queue("POST", "raw/messages", raw=b"\x00\xff", headers={"content-type": "image/png"})
    broker.queue("POST", "raw/messages", raw=b"plain", headers={"content-type": "text/plain"})
    first, second, third = broker.receive("raw", 3, delete=True)
    assert first["body_base64"] == second["body_base64"] == "AP8="
    assert second["content_type"] == "image/png"
    assert third["body"] == "plain"
    assert "token" not in third
    form = {"content-type": "application/x-www-form-urlencoded"}
    reply = broker.queue("POST", "raw/messages", raw=b"a=1", headers=form)
    assert (reply.status, reply.json["type"]) == (415, "urn:posthouse:problem:unknown-content")


def test_every_way_to_settle(broker: Running) -> None:
    broker.send("settle", *"abcdef")
    a, b, c, d, e, f = broker.receive("settle", 6)

    def settle(how: str, message: dict[str, object], **more: object) -> dict[str, object]:
        reply = broker.queue("POST", f"settle/{how}", {"locks": [message["token"]], **more})
        assert reply.status == 200, reply
        answer: dict[str, object] = reply.json
        return answer

    assert settle("complete", a) == {}
    settle("abandon", b, properties={"tries": 1})
    settle("release", c)
    settle("defer", d)
    settle("dead-letter", e, reason="bad", description="no colour")
    assert settle("renew", f, lock_ms=120_000)["until_ms"] > [f["until_ms"]]  # type: ignore[operator]
    again = {each["body"]: each for each in broker.receive("settle", 9)}
    assert (again["b"]["deliveries"], again["b"]["properties"]) == (2, {"tries": 1})
    assert again["c"]["deliveries"] == 1
    assert set(again) == {"b", "c"}
    deferred = broker.queue("POST", "settle/receive-deferred", {"sequences": [d["sequence"]]})
    assert [each["body"] for each in deferred.json["messages"]] == ["d"]
    dead = broker.queue("GET", "settle%2F$dead/messages").json["messages"]
    assert [(each["body"], each["reason"], each["source"]) for each in dead] == [
        ("e", "bad", "settle")
    ]
    lost = broker.queue("POST", "settle/complete", {"locks": [a["token"]]})
    assert (lost.status, lost.json["type"]) == (410, "urn:posthouse:problem:lock-lost")
    partial = {"locks": [a["token"], f["token"]], "partial": True}
    assert broker.queue("POST", "settle/complete", partial).json == {"lost": [a["token"]]}


def receivers(broker: Running, queue: str) -> int:
    found: int = broker.queue("GET", queue).json["receivers"]
    return found


def test_a_long_poll_gets_what_is_sent_meanwhile(broker: Running) -> None:
    broker.queue("PUT", "poll", {})
    got: list[dict[str, object]] = []
    waiter = threading.Thread(target=lambda: got.extend(broker.receive("poll", wait_ms=30_000)))
    waiter.start()
    until(lambda: receivers(broker, "poll"), "somebody waits")
    broker.send("poll", "here")
    waiter.join(20)
    assert [each["body"] for each in got] == ["here"]
    assert broker.receive("poll", wait_ms=50) == []


def test_a_client_that_goes_away_leaves_no_receiver_behind(broker: Running) -> None:
    import socket

    broker.queue("PUT", "gone", {})
    with socket.create_connection(("127.0.0.1", broker.port)) as waiting:
        body = b'{"wait_ms": 60000}'
        waiting.sendall(
            b"POST /api/v1/namespaces/default/queues/gone/receive HTTP/1.1\r\nhost: localhost\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )
        until(lambda: receivers(broker, "gone") == 1, "somebody waits")
    until(lambda: receivers(broker, "gone") == 0, "nobody waits any more")
    broker.send("gone", "x")
    [got] = broker.receive("gone")
    assert got["deliveries"] == 1


def test_what_was_for_a_client_that_goes_away_goes_back_and_is_not_counted(broker: Running) -> None:
    broker.queue("PUT", "late", {"lock_ms": 300_000})
    for _ in range(50):  # which of the two is seen first is chance
        leave_at_the_last_moment(broker, "late", "receive", "{}")
        [got] = broker.receive("late", wait_ms=5_000)
        assert got["deliveries"] == 1
        [life] = broker.queue("GET", f"late/messages/{got['sequence']}/life").json["lives"]
        if [each["kind"] for each in life["events"]] == ["Sent", "Locked", "Returned", "Locked"]:
            return
    raise AssertionError("nothing was ever on its way")


def test_a_session_for_a_client_that_goes_away_is_free_again(broker: Running) -> None:
    broker.queue("PUT", "later", {"lock_ms": 300_000, "grouping": "session"})
    leave_at_the_last_moment(broker, "later", "sessions/accept", '{"session_id": "ann"}')
    held = broker.queue("POST", "later/sessions/accept", {"wait_ms": 5_000}).json
    assert held["session"] == "ann"


def leave_at_the_last_moment(broker: Running, queue: str, path: str, message: str) -> None:
    """The process stands still while a message is sent, and the client it is for goes."""
    with connect(broker) as sending:
        sending.sendall(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert sending.recv(1_000).startswith(b"HTTP/1.1 200")
        with connect(broker) as waiting:
            waiting.sendall(post(f"{queue}/{path}", '{"wait_ms": 60000}'))
            until(lambda: receivers(broker, queue) == 1, "somebody waits")
            broker.process.send_signal(signal.SIGSTOP)
            sending.sendall(post(f"{queue}/messages", f'{{"messages": [{message}]}}'))
        broker.process.send_signal(signal.SIGCONT)
        assert sending.recv(1_000).startswith(b"HTTP/1.1 201")


def post(path: str, body: str) -> bytes:
    head = f"POST {QUEUES}/{path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    return f"{head}\r\n{body}".encode()


def test_queues_are_made_changed_listed_and_deleted(broker: Running) -> None:
    made = broker.queue("PUT", "a%2Fb%20c", {"lock_ms": 5_000, "max_delivery": 3})
    assert made.status == 201
    assert made.json["name"] == "a/b c"
    assert made.json["properties"]["lock_ms"] == 5_000
    assert broker.queue("PUT", "A%2FB%20C", {}).status == 409
    changed = broker.queue("PATCH", "a%2Fb%20c", {"lock_ms": 7_000})
    properties = changed.json["properties"]
    assert (properties["lock_ms"], properties["max_delivery"]) == (7_000, 3)
    names = [each["name"] for each in broker.call("GET", QUEUES).json["queues"]]
    assert "a/b c" in names
    page = broker.call("GET", f"{QUEUES}?limit=1").json
    assert page["next"] == page["queues"][0]["name"]
    assert broker.queue("DELETE", "a%2Fb%20c").status == 204
    assert broker.queue("GET", "a%2Fb%20c").status == 404
    broker.queue("PUT", "fixed", {})
    fixed = broker.queue("PATCH", "fixed", {"order": "priority"})
    assert (fixed.status, fixed.json["type"]) == (400, "urn:posthouse:problem:invalid-argument")
    assert "cannot be changed" in fixed.json["detail"]


def test_namespaces_are_apart(broker: Running) -> None:
    assert broker.call("PUT", "/api/v1/namespaces/shop").status == 201
    assert broker.call("PUT", "/api/v1/namespaces/SHOP").status == 409
    where = "/api/v1/namespaces/shop/queues/whole"
    assert broker.call("POST", f"{where}/messages", {"messages": [{"body": "x"}]}).status == 201
    assert broker.call("GET", where).json["counts"]["active"] == 1
    assert broker.receive("whole") == []
    assert "shop" in broker.call("GET", "/api/v1/namespaces").json["names"]
    assert broker.call("DELETE", "/api/v1/namespaces/shop").status == 204
    assert broker.call("GET", where).status == 404


def test_pausing_and_purging(broker: Running) -> None:
    broker.send("purge", *(str(n) for n in range(2_500)))
    assert broker.queue("POST", "purge/pause", {"receiving": False}).status == 204
    refused = broker.queue("POST", "purge/messages", {"messages": [{"body": "x"}]})
    assert refused.json["type"] == "urn:posthouse:problem:disabled"
    assert broker.queue("POST", "purge/resume", {}).status == 204
    done = 0
    first: int | None = 0
    while first is not None:
        step = broker.queue("POST", "purge/purge", {"first": first}).json
        done, first = done + step["done"], step["next"]
    assert done == 2_500


def test_dead_letters_are_sent_again(broker: Running) -> None:
    broker.send("again", "x", "y")
    for message in broker.receive("again", 2):
        broker.queue("POST", "again/dead-letter", {"locks": [message["token"]], "reason": "r"})
    step = broker.queue("POST", "again%2F$dead/resubmit", {"sequences": [1]}).json
    assert step == {"done": 1, "next": None}
    assert broker.queue("POST", "again%2F$dead/resubmit", {"target": "elsewhere"}).status == 404
    broker.queue("PUT", "elsewhere", {})
    broker.queue("POST", "again%2F$dead/resubmit", {"target": "elsewhere", "keep_reason": True})
    [moved] = broker.receive("elsewhere")
    assert (moved["body"], moved["reason"]) == ("y", "r")


def test_sessions(broker: Running) -> None:
    broker.queue("PUT", "trips", {"grouping": "session"})
    broker.send("trips", "1", "2", session_id="ann")
    broker.send("trips", "3", session_id="bob")
    assert sorted(broker.queue("GET", "trips/sessions").json["names"]) == ["ann", "bob"]
    held = broker.queue("POST", "trips/sessions/accept", {"session": "ann"}).json
    busy = broker.queue("POST", "trips/sessions/accept", {"session": "ann"})
    assert busy.json["type"] == "urn:posthouse:problem:session-locked"
    got = broker.receive("trips", 5, session=held["token"])
    assert [each["body"] for each in got] == ["1", "2"]
    state = f"trips/sessions/held/{held['token']}/state"
    assert broker.queue("GET", state).json == {"state_base64": None}
    assert broker.queue("PUT", state, {"state_base64": "aGFsZg=="}).status == 204
    assert broker.queue("GET", state).json == {"state_base64": "aGFsZg=="}
    renewed = broker.queue("POST", "trips/sessions/renew", {"token": held["token"]}).json
    assert renewed["until_ms"] >= held["until_ms"]
    released = broker.queue("POST", "trips/sessions/release", {"token": held["token"]})
    assert released.status == 204
    assert broker.queue("GET", state).json["type"] == "urn:posthouse:problem:session-lock-lost"
    assert broker.queue("POST", "trips/sessions/accept", {}).json["session"] in ("ann", "bob")
    broker.queue("PUT", "idle", {"grouping": "session"})
    none = broker.queue("POST", "idle/sessions/accept", {"wait_ms": 10})
    assert (none.status, none.json["type"]) == (408, "urn:posthouse:problem:timed-out")


def test_a_run_of_a_group_is_received_at_once(broker: Running) -> None:
    assert broker.queue("PUT", "payments", {"grouping": "run"}).status == 201
    assert broker.queue("GET", "payments").json["properties"]["grouping"] == "run"
    broker.send("payments", "1", "2", partition_key="ann")
    broker.send("payments", "3", partition_key="ann", delay_ms=3_600_000)
    broker.send("payments", "4", partition_key="ann")
    assert [each["body"] for each in broker.receive("payments", 5)] == ["1", "2"]
    [late] = broker.queue("GET", "payments/messages?state=delayed").json["messages"]
    assert late["body"] == "3"
    assert late["enqueued_ms"] < late["due_ms"] <= late["enqueued_ms"] + 3_600_000
    assert broker.queue("POST", "payments/cancel", {"sequences": [late["sequence"]]}).status == 204


def test_scheduled_messages_and_the_clock(broker: Running) -> None:
    broker.call("PUT", "/api/v1/namespaces/timely")
    where = "/api/v1/namespaces/timely"
    later = {"messages": [{"body": "later", "delay_ms": 3_600_000}, {"body": "x", "delay_ms": 9}]}
    assert broker.call("POST", f"{where}/clock", {"frozen": True}).json["frozen"]
    sent = broker.call("POST", f"{where}/queues/q/messages", later).json["sequences"]
    page = broker.call("GET", f"{where}/queues/q/messages?state=scheduled").json["messages"]
    assert [each["body"] for each in page] == ["later", "x"]
    cancel = {"sequences": [sent[1]]}
    assert broker.call("POST", f"{where}/queues/q/cancel", cancel).status == 204
    assert broker.call("POST", f"{where}/queues/q/cancel", cancel).status == 404
    moved = broker.call("POST", f"{where}/clock", {"advance_ms": 3_600_000}).json
    assert moved["fired"] == [{"kind": "activated", "queue": "q", "count": 1}]
    got = broker.call("POST", f"{where}/queues/q/receive", {}).json["messages"]
    assert [each["body"] for each in got] == ["later"]
    back = broker.call("POST", f"{where}/clock", {"set_ms": 5})
    assert back.json["type"] == "urn:posthouse:problem:invalid-argument"
    assert broker.call("GET", "/api/v1/namespaces/nowhere/clock").status == 404


def test_the_life_line_and_replay(broker: Running) -> None:
    broker.send("life", "x", id="the one")
    [got] = broker.receive("life")
    broker.complete("life", got)
    [life] = broker.call("GET", "/api/v1/namespaces/default/messages/the%20one/life").json["lives"]
    kinds = [each["kind"] for each in life["events"]]
    assert kinds == ["Sent", "Locked", "Completed"]
    by_number = broker.queue("GET", f"life/messages/{got['sequence']}/life").json["lives"]
    assert by_number == [life]
    missing = broker.call("GET", "/api/v1/namespaces/default/messages/nobody/life")
    assert missing.status == 404
    position = life["events"][0]["position"]
    form = {"first": position, "last": position, "into": "replayed", "source": "life"}
    assert broker.call("POST", "/api/v1/namespaces/default/replay", form).json == {"sent": 1}
    assert [each["body"] for each in broker.receive("replayed")] == ["x"]


def test_refusals_say_what_to_do_and_echo_who_asked(broker: Running) -> None:
    reply = broker.queue("GET", "nowhere", headers={"x-correlation-id": "abc-1"})
    assert reply.status == 404
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.headers["x-correlation-id"] == "abc-1"
    assert reply.json == {
        "type": "urn:posthouse:problem:not-found",
        "title": "Not found",
        "status": 404,
        "detail": "There is no queue 'nowhere' in the namespace 'default'; check the name, or"
        " create it first.",
        "correlation_id": "abc-1",
        "code": "not-found",
        "facts": {"kind": "queue", "name": "nowhere", "namespace": "default"},
    }
    for method, path, body in [
        ("POST", "q/messages", {"messages": []}),
        ("POST", "q/messages", {"messages": [{"body": "x", "colour": 1}]}),
        ("POST", "q/messages", {"messages": [{"body": "x", "body_base64": "eA=="}]}),
        ("POST", "q/messages", {"messages": [{"body_base64": "?"}]}),
        ("POST", "q/messages", {"messages": [{"properties": {"a": [1]}}]}),
        ("POST", "q/messages", {"messages": [{"properties": {"a": {"uuid": "x"}}}]}),
        ("POST", "q/receive", {"limit": 0}),
        ("POST", "q/complete", {"locks": ["zz"]}),
        ("PUT", "q", {"lock_ms": "long"}),
        ("GET", "q/messages?limit=0", None),
        ("GET", "q/messages?state=odd", None),
    ]:
        broker.queue("PUT", "q", {})
        reply = broker.queue(method, path, body)
        assert reply.status == 400, (method, path, body, reply)
        assert reply.json["detail"]
    assert broker.call("GET", "/").status == 404
    assert broker.call("DELETE", QUEUES).status == 405


def test_the_documents_are_there_without_anything_from_elsewhere(broker: Running) -> None:
    page = broker.call("GET", "/docs")
    assert page.status == 200
    assert b"http" not in page.body
    for asset in ("swagger-ui.css", "swagger-ui-bundle.js", "start.js"):
        assert broker.call("GET", f"/docs/{asset}").status == 200
    document = broker.call("GET", "/docs/openapi.json").json
    path = "/api/v1/namespaces/{namespace}/queues/{queue}/messages"
    assert set(document["paths"][path]) == {"get", "post"}
    assert broker.call("GET", "/docs/../../etc/passwd").status == 404


def test_health_and_metrics(broker: Running) -> None:
    for name in ("live", "ready", "startup"):
        assert broker.call("GET", f"/health/{name}").status == 200
    assert broker.call("GET", "/health/other").status == 404
    broker.send("measured", "x", "y")
    [got] = broker.receive("measured")
    broker.complete("measured", got)
    text = broker.call("GET", "/metrics").body.decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values["posthouse_messages_sent_total"]) >= 2
    assert float(values["posthouse_messages_settled_total"]) >= 1
    assert float(values["posthouse_sync_seconds_count"]) >= 3
    assert float(values['posthouse_connections{dialect="http"}']) >= 1
    assert float(values['posthouse_refusals_total{kind="NotFound"}']) >= 1
    assert "posthouse_queue_messages" not in text
    by_queue = broker.call("GET", "/metrics?entities=1").body.decode()
    line = 'posthouse_queue_messages{namespace="default",queue="measured",state="active"} 1.0'
    assert line in by_queue


def test_an_answer_is_durable(tmp_path: Path) -> None:
    with development(tmp_path / "data") as first:
        first.send("q", "acknowledged")
        first.kill()
    with development(tmp_path / "data") as second:
        assert [each["body"] for each in second.receive("q")] == ["acknowledged"]


def test_a_transaction_happens_as_a_whole(broker: Running) -> None:
    space = "/api/v1/namespaces/default"
    broker.send("source", "a", "b")
    a, b = broker.receive("source", 2)
    begun = broker.call("POST", f"{space}/transactions", {"timeout_ms": 60_000})
    assert begun.status == 201
    number = begun.json["transaction"]
    form = {"messages": [{"body": "result"}], "transaction": number}
    sent = broker.queue("POST", "target/messages", form)
    assert (sent.status, sent.json) == (201, {"sequences": [], "duplicates": 0})
    form = {"locks": [a["token"]], "transaction": number}
    assert broker.queue("POST", "source/complete", form).json == {}
    assert broker.queue("POST", "source/complete", {"locks": [a["token"]]}).status == 410
    assert broker.receive("target") == []
    done = broker.call("POST", f"{space}/transactions/{number}/commit")
    assert done.json == {"sent": [{"sequences": [1], "duplicates": 0}], "settled": 1}
    assert [each["body"] for each in broker.receive("target")] == ["result"]
    assert broker.call("POST", f"{space}/transactions/{number}/commit").status == 410
    number = broker.call("POST", f"{space}/transactions", {}).json["transaction"]
    form = {"locks": [b["token"]], "transaction": number}
    broker.queue("POST", "source/dead-letter", form)
    assert broker.call("POST", f"{space}/transactions/{number}/rollback").status == 204
    assert broker.complete("source", b).status == 200


def test_a_transaction_that_cannot_be_committed_is_rolled_back(broker: Running) -> None:
    space = "/api/v1/namespaces/default"
    broker.queue("PUT", "narrow", {"max_messages": 1})
    number = broker.call("POST", f"{space}/transactions", {}).json["transaction"]
    for body in "ab":
        form = {"messages": [{"body": body}], "transaction": number}
        broker.queue("POST", "narrow/messages", form)
    done = broker.call("POST", f"{space}/transactions/{number}/commit")
    assert (done.status, done.json["type"]) == (409, "urn:posthouse:problem:rolled-back")
    assert "narrow" in done.json["detail"]
    assert broker.receive("narrow") == []


def test_a_send_waits_for_room_where_the_queue_blocks(broker: Running) -> None:
    broker.queue("PUT", "blocks", {"max_messages": 1, "overflow": "block"})
    broker.send("blocks", "a")
    form = {"messages": [{"body": "b"}], "wait_ms": 30_000}
    before = open_connections(broker)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(broker.queue, "POST", "blocks/messages", form)
        until(lambda: open_connections(broker) > before, "the sender is connected")
        broker.until_idle()
        assert not sending.done()
        assert [each["body"] for each in broker.receive("blocks", delete=True)] == ["a"]
        assert sending.result().json == {"sequences": [2], "duplicates": 0}
    late = broker.queue("POST", "blocks/messages", {"messages": [{"body": "c"}], "wait_ms": 50})
    assert (late.status, late.json["type"]) == (429, "urn:posthouse:problem:quota-exceeded")
    assert [each["body"] for each in broker.receive("blocks", 5, delete=True)] == ["b"]


def test_a_limit_may_count_only_the_messages_that_wait(broker: Running) -> None:
    broker.queue("PUT", "waits", {"max_messages": 1, "limit_counts": "waiting"})
    broker.send("waits", "a")
    full = broker.queue("POST", "waits/messages", {"messages": [{"body": "b"}]})
    assert full.json["type"] == "urn:posthouse:problem:quota-exceeded"
    broker.receive("waits")
    broker.send("waits", "b")
    told = broker.queue("GET", "waits").json
    assert told["properties"]["limit_counts"] == "waiting"
    assert (told["counts"]["active"], told["counts"]["locked"]) == (1, 1)
    wrong = broker.queue("PATCH", "waits", {"limit_counts": "locked"})
    assert wrong.status == 400
    assert "limit_counts" in wrong.json["detail"]


def test_who_asks_too_much_is_told_how_long_to_wait(tmp_path: Path) -> None:
    with development(tmp_path / "data", "--rate-entity", "4") as broker:
        broker.queue("PUT", "orders", {})
        broker.send("orders", "a", "b", "c")
        refused = broker.queue("POST", "orders/messages", {"messages": [{"body": "d"}]})
        assert (refused.status, refused.json["type"]) == (429, "urn:posthouse:problem:throttled")
        assert 1 <= int(refused.headers["retry-after"]) <= 2
        broker.send("others", "x")
    with development(tmp_path / "more", "--rate-address", "3") as broker:
        statuses = [broker.call("GET", "/api/v1/namespaces").status for _ in range(20)]
        assert (statuses[0], 429 in statuses) == (200, True)
        assert broker.call("GET", "/health/live").status == 200
    with development(tmp_path / "most", "--rate-address", "10") as broker:
        broker.send("orders", *"abcdefghij")  # ten are ten, in one request too
        assert broker.call("GET", "/api/v1/namespaces").status == 429


def test_a_topic_comes_into_being_with_its_first_receiver(broker: Running) -> None:
    where = "/api/v1/namespaces/default/topics/fresh"
    assert broker.call("POST", f"{where}/subscriptions/s/receive", {}).json == {"messages": []}
    broker.call("POST", f"{where}/messages", {"messages": [{"body": "x"}]})
    [got] = broker.call("POST", f"{where}/subscriptions/s/receive", {}).json["messages"]
    assert got["body"] == "x"
    done = broker.call("POST", f"{where}/subscriptions/s/complete", {"locks": [got["token"]]})
    assert done.status == 200
    assert broker.call("GET", where).json["subscriptions"] == 1
    assert broker.call("PATCH", f"{where}/subscriptions/s", {"lock_ms": 5_000}).status == 200
    assert broker.call("DELETE", f"{where}/subscriptions/s").status == 204
    assert broker.call("DELETE", where).status == 204
    assert broker.call("GET", where).status == 404


def test_one_rule_is_shown(broker: Running) -> None:
    where = "/api/v1/namespaces/default/topics/ruled/subscriptions/s"
    broker.call("PUT", "/api/v1/namespaces/default/topics/ruled", {})
    rule = {"name": "red", "filter": {"kind": "sql", "expression": "a = 1"}, "action": "SET b = 2"}
    broker.call("PUT", where, {"rules": [rule]})
    found = broker.call("GET", f"{where}/rules/Red")
    assert found.status == 200
    assert (found.json["name"], found.json["action"]) == ("red", "SET b = 2")
    wanted = {"kind": "sql", "expression": "a = 1", "parameters": {}, "loose": False}
    assert found.json["filter"] == wanted
    assert broker.call("GET", f"{where}/rules/blue").status == 404


def test_a_request_does_not_bring_too_much_to_compile(broker: Running) -> None:
    where = "/api/v1/namespaces/default/topics/many/subscriptions/s"
    broker.call("PUT", "/api/v1/namespaces/default/topics/many", {})
    forms = [
        {"name": f"r{n}", "filter": {"kind": "sql", "expression": "a+" * 500 + f"{n}=1"}}
        for n in range(100)
    ]
    refused = broker.call("PUT", where, {"rules": forms})
    assert (refused.status, refused.json["type"]) == (400, "urn:posthouse:problem:invalid-argument")
    assert "one by one" in refused.json["detail"]
    assert broker.call("PUT", where, {"rules": forms[:7]}).status == 201


def test_what_a_full_queue_drops_is_told_and_counted(broker: Running) -> None:
    broker.queue("PUT", "small", {"max_messages": 1, "overflow": "drop-newest"})
    form = {"messages": [{"body": "a"}, {"body": "b"}]}
    reply = broker.queue("POST", "small/messages", form)
    assert reply.json == {"sequences": [1, 0], "duplicates": 0, "dropped": 1}
    text = broker.call("GET", "/metrics").body.decode()
    assert "posthouse_messages_dropped_total 1.0" in text
