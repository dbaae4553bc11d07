"""Queues, topics, subscriptions and rules: made, changed, listed, deleted, and their names."""

from urllib.parse import quote
from xml.etree import ElementTree

import pytest

from tests.dialects.localzure.zure import (
    ATOM,
    CONNECT,
    XML,
    Entity,
    Zure,
    described,
    described_in,
    entry,
    fresh,
    local,
    moment,
    refused,
    sql,
    titles,
)
from tests.server.running import Running

PROPERTIES = {
    "MaxSizeInMegabytes": "2048", "DefaultMessageTimeToLive": "PT3600S", "LockDuration": "PT30S",
    "RequiresSession": "true", "RequiresDuplicateDetection": "true",
    "EnableDeadLetteringOnMessageExpiration": "true", "EnableBatchedOperations": "false",
    "MaxDeliveryCount": "3",
}  # fmt: skip
RULES_MAX = 100


# Queues.


def test_a_queue_is_made_with_the_defaults(zure: Zure) -> None:
    queue = zure.queue_at(fresh("queue"))
    headers = {"content-type": "application/atom+xml"}
    made = zure.broker.call("PUT", queue.path, raw=b"", headers=headers)
    assert made.status == 201
    assert made.headers["content-type"].startswith("application/xml")
    assert ElementTree.fromstring(made.body).tag == f"{{{CONNECT}}}QueueDescription"
    found = described_in(made)
    assert moment(found.pop("CreatedAt")) <= moment(found.pop("UpdatedAt"))
    assert list(found.items()) == [
        ("QueueName", queue.name), ("MaxSizeInMegabytes", "1024"),
        ("DefaultMessageTimeToLive", "PT1209600S"), ("LockDuration", "PT60S"),
        ("RequiresSession", "false"), ("RequiresDuplicateDetection", "false"),
        ("EnableDeadLetteringOnMessageExpiration", "false"), ("EnableBatchedOperations", "true"),
        ("MaxDeliveryCount", "10"), ("MessageCount", "0"), ("ActiveMessageCount", "0"),
        ("DeadLetterMessageCount", "0"), ("ScheduledMessageCount", "0"), ("SizeInBytes", "0"),
    ]  # fmt: skip
    assert list(described_in(made))[-2:] == ["CreatedAt", "UpdatedAt"]


@pytest.mark.parametrize("around", ["bare", "entry", "other namespace"])
def test_a_queue_is_made_as_described_whatever_is_around_it(zure: Zure, around: str) -> None:
    raw = described("QueueDescription", **PROPERTIES)
    if around == "entry":
        raw = entry(raw)
    elif around == "other namespace":
        raw = raw.replace(CONNECT.encode(), b"urn:x")
    queue = zure.queue_at(fresh("queue"))
    assert zure.broker.call("PUT", queue.path, raw=raw, headers=XML).status == 201
    found = described_in(queue.ask("GET"))
    assert {name: found[name] for name in PROPERTIES} == PROPERTIES


@pytest.mark.parametrize(
    ("text", "seconds"), [("P14D", 1_209_600), ("PT1H30M", 5_400), ("P1DT12H", 129_600)]
)
def test_a_duration_may_be_written_in_any_iso_form(zure: Zure, text: str, seconds: int) -> None:
    queue = zure.queue(DefaultMessageTimeToLive=text)
    assert described_in(queue.ask("GET"))["DefaultMessageTimeToLive"] == f"PT{seconds}S"


def test_a_queue_that_is_put_again_is_changed(zure: Zure) -> None:
    queue = zure.queue(LockDuration="PT30S")
    queue.send()
    same = zure.broker.call("PUT", queue.path)
    assert (same.status, described_in(same)["LockDuration"]) == (200, "PT30S")
    changed = queue.describe("QueueDescription", LockDuration="PT90S", MaxDeliveryCount=7)
    assert changed.status == 200
    found = described_in(queue.ask("GET"))
    assert (found["LockDuration"], found["MaxDeliveryCount"]) == ("PT90S", "7")
    assert found["MessageCount"] == "1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MaxSizeInMegabytes", "1023"), ("MaxSizeInMegabytes", "5121"), ("LockDuration", "PT4S"),
        ("LockDuration", "PT301S"), ("MaxDeliveryCount", "0"), ("MaxDeliveryCount", "2001"),
        ("MaxDeliveryCount", "many"), ("LockDuration", "soon"),
    ],
)  # fmt: skip
def test_a_property_out_of_its_range_is_refused(zure: Zure, name: str, value: str) -> None:
    queue = zure.queue_at(fresh("queue"))
    assert queue.describe("QueueDescription", **{name: value}).status == 400
    assert queue.ask("GET").status == 404


def test_a_property_that_cannot_change_is_refused(zure: Zure) -> None:
    queue = zure.queue()
    reply = queue.describe("QueueDescription", RequiresSession=True)
    assert refused(reply) == (400, "InvalidOperation")
    assert described_in(queue.ask("GET"))["RequiresSession"] == "false"


def test_what_is_not_xml_is_refused(zure: Zure) -> None:
    for entity in (zure.queue_at(fresh("queue")), zure.topic_at(fresh("topic"))):
        reply = zure.broker.call("PUT", entity.path, raw=b"<QueueDescription>", headers=XML)
        assert reply.status == 400
        assert entity.ask("GET").status == 404


def test_a_deleted_queue_takes_everything_with_it(zure: Zure) -> None:
    queue = zure.queue()
    for body in "abc":
        queue.send(body)
    dead, _ = queue.receive(2)
    queue.dead_letter(dead)
    reply = queue.ask("DELETE")
    assert (reply.status, reply.body) == (200, b"")
    assert refused(queue.ask("GET")) == (404, "EntityNotFound")
    assert refused(queue.ask("DELETE")) == (404, "EntityNotFound")
    assert zure.broker.call("PUT", queue.path).status == 201
    zure.advance(61)
    assert queue.receive(5) == queue.dead.receive(5) == []
    assert queue.send()["SequenceNumber"] == 1


def test_a_queue_knows_how_many_messages_it_has(zure: Zure) -> None:
    queue = zure.queue()
    for body in "abcd":
        queue.send(body)
    queue.send("e", scheduled_enqueue_time_utc="2199-01-01T00:00:00Z")
    dead, _ = queue.receive(2)
    queue.dead_letter(dead)
    found = described_in(queue.ask("GET"))
    assert found["MessageCount"] == "3"  # active and locked
    assert found["ActiveMessageCount"] == "2"
    assert found["DeadLetterMessageCount"] == "1"
    assert found["ScheduledMessageCount"] == "1"
    assert int(found["SizeInBytes"]) > 0


def test_queues_are_listed_by_name_a_page_at_a_time(broker: Running) -> None:
    space = fresh("space")
    assert broker.call("PUT", f"/api/v1/namespaces/{space}").status == 201
    for name in ("cherry", "apple", "banana"):
        assert broker.call("PUT", f"/servicebus/{space}/{name}").status == 201
    where = f"/servicebus/{space}/$Resources/Queues"
    assert titles(broker.call("GET", where)) == ["apple", "banana", "cherry"]
    assert titles(broker.call("GET", f"{where}?$skip=1&$top=1")) == ["banana"]
    assert titles(broker.call("GET", f"{where}?$skip=3")) == []
    for bad in ("$top=0", "$top=1001", "$skip=-1", "$top=x"):
        assert broker.call("GET", f"{where}?{bad}").status == 422


def test_the_list_of_queues_is_an_atom_feed(broker: Running) -> None:
    space = fresh("space")
    broker.call("PUT", f"/api/v1/namespaces/{space}")
    broker.call("PUT", f"/servicebus/{space}/only")
    reply = broker.call("GET", f"/servicebus/{space}/$Resources/Queues")
    assert reply.status == 200
    assert reply.body.count(b"<entry>") == 1  # the feed names the namespace
    feed = ElementTree.fromstring(reply.body)
    assert feed.tag == f"{{{ATOM}}}feed"
    assert [local(each.tag) for each in feed] == ["title", "id", "updated", "entry"]
    assert (feed[0].text, feed[0].get("type")) == ("Queues", "text")
    [found] = feed.findall(f"{{{ATOM}}}entry")
    assert {local(each.tag) for each in found} == {"id", "title", "published", "updated", "content"}
    content = found.find(f"{{{ATOM}}}content")
    assert content is not None
    assert content.get("type") == "application/xml"
    assert content[0].tag == f"{{{CONNECT}}}QueueDescription"
    assert described_in(reply)["QueueName"] == "only"


def test_queues_and_topics_are_listed_under_their_plain_paths(broker: Running) -> None:
    zure = Zure(broker, "plain")
    queue, topic = zure.queue(), zure.topic()
    queues = titles(broker.call("GET", "/servicebus/queues?$top=1000"))
    topics = titles(broker.call("GET", "/servicebus/topics?$top=1000"))
    assert queue.name in queues
    assert topic.name in topics
    assert not {queue.name, topic.name} & (set(queues) & set(topics))
    assert queues == sorted(queues)
    assert len(titles(broker.call("GET", "/servicebus/queues?$top=1"))) == 1


# Topics.


def test_a_topic_is_made_changed_and_deleted(zure: Zure) -> None:
    topic = zure.topic_at(fresh("topic"))
    made = zure.broker.call("PUT", topic.path, raw=b"", headers=XML)
    assert made.status == 201
    assert ElementTree.fromstring(made.body).tag == f"{{{ATOM}}}entry"
    assert titles_of_entry(made.body) == [topic.name]
    assert described_in(made)["MaxSizeInMegabytes"] == "1024"
    assert described_in(made)["SubscriptionCount"] == "0"
    raw = entry(described("TopicDescription", MaxSizeInMegabytes=2048))
    assert zure.broker.call("PUT", topic.path, raw=raw, headers=XML).status == 200
    zure.subscription(topic)
    found = described_in(topic.ask("GET"))
    assert (found["MaxSizeInMegabytes"], found["SubscriptionCount"]) == ("2048", "1")
    assert topic.ask("DELETE").status == 204
    assert refused(topic.ask("GET")) == (404, "EntityNotFound")
    assert refused(topic.ask("DELETE")) == (404, "EntityNotFound")


def titles_of_entry(body: bytes) -> list[str | None]:
    return [each.text for each in ElementTree.fromstring(body).iter(f"{{{ATOM}}}title")]


@pytest.mark.parametrize("ttl", ["P1D", "PT86400S", "86400"])
def test_a_topic_takes_durations_and_bare_seconds(zure: Zure, ttl: str) -> None:
    topic = zure.topic(DefaultMessageTimeToLive=ttl)
    subscription = zure.subscription(topic)
    subscription.send()
    zure.advance(86_390)
    assert len(subscription.peek()) == 1
    zure.advance(20)
    assert subscription.receive() == []


@pytest.mark.parametrize("size", ["0", "5121"])
def test_a_topic_out_of_its_range_is_refused(zure: Zure, size: str) -> None:
    topic = zure.topic_at(fresh("topic"))
    assert topic.describe("TopicDescription", MaxSizeInMegabytes=size).status == 400


def test_topics_are_listed(broker: Running) -> None:
    space = fresh("space")
    broker.call("PUT", f"/api/v1/namespaces/{space}")
    for name in ("beta", "alpha"):
        assert broker.call("PUT", f"/servicebus/{space}/topics/{name}").status == 201
    assert titles(broker.call("GET", f"/servicebus/{space}/topics")) == ["alpha", "beta"]
    assert titles(broker.call("GET", f"/servicebus/{space}/$Resources/Queues")) == []


def test_a_topic_is_not_a_queue(zure: Zure) -> None:
    topic = zure.topic()
    queue = zure.queue_at(topic.name)
    assert refused(queue.ask("GET")) == (404, "EntityNotFound")
    assert refused(zure.broker.call("PUT", queue.path)) == (409, "EntityAlreadyExists")
    assert topic.ask("GET").status == 200


# Subscriptions.


def test_a_subscription_is_made_changed_and_deleted(zure: Zure) -> None:
    topic = zure.topic()
    subscription = zure.subscription_at(topic, "mine")
    made = zure.broker.call("PUT", subscription.path)  # without a body, too
    assert made.status == 201
    assert titles_of_entry(made.body) == ["mine"]
    assert described_in(made)["LockDuration"] == "60"
    assert described_in(made)["MessageCount"] == "0"
    raw = entry(described("SubscriptionDescription", LockDuration="PT2M"))
    assert zure.broker.call("PUT", subscription.path, raw=raw, headers=XML).status == 200
    subscription.send()
    found = described_in(subscription.ask("GET"))
    assert (found["LockDuration"], found["MessageCount"]) == ("120", "1")
    assert subscription.ask("DELETE").status == 204
    assert refused(subscription.ask("GET")) == (404, "EntityNotFound")
    assert described_in(topic.ask("GET"))["SubscriptionCount"] == "0"


def test_subscriptions_are_listed(zure: Zure) -> None:
    topic = zure.topic()
    for name in ("zoe", "ann"):
        zure.broker.call("PUT", zure.subscription_at(topic, name).path)
    assert titles(topic.ask("GET", "/subscriptions")) == ["ann", "zoe"]
    assert titles(zure.topic().ask("GET", "/subscriptions")) == []


def test_a_subscription_needs_its_topic(zure: Zure) -> None:
    nowhere = zure.topic_at(fresh("topic"))
    lost = zure.subscription_at(nowhere, "mine")
    for reply in (
        zure.broker.call("PUT", lost.path),
        lost.ask("GET"),
        nowhere.ask("GET", "/subscriptions"),
        nowhere.try_send(),
    ):
        assert refused(reply) == (404, "EntityNotFound")
        assert reply.json["error"]["details"]["entity_type"] == "topic"
        assert reply.json["error"]["details"]["entity_name"] == nowhere.name


def test_a_deleted_topic_takes_its_subscriptions_with_it(zure: Zure) -> None:
    subscription = zure.subscription()
    subscription.send()
    topic = Entity(zure.broker, subscription.inlet)
    assert topic.ask("DELETE").status == 204
    assert zure.broker.call("PUT", topic.path).status == 201
    assert titles(topic.ask("GET", "/subscriptions")) == []


@pytest.mark.parametrize(("name", "value"), [("LockDuration", "PT4S"), ("MaxDeliveryCount", "0")])
def test_a_subscription_out_of_its_range_is_refused(zure: Zure, name: str, value: str) -> None:
    subscription = zure.subscription_at(zure.topic(), "mine")
    assert subscription.describe("SubscriptionDescription", **{name: value}).status == 400


def test_a_subscription_forwards_what_it_gets(zure: Zure) -> None:
    queue = zure.queue()
    subscription = zure.subscription(ForwardTo=queue.name)
    subscription.send("onwards")
    assert queue.take() == ["onwards"]


def test_an_idle_subscription_is_deleted(zure: Zure) -> None:
    subscription = zure.subscription(AutoDeleteOnIdle="PT5M")
    zure.advance(240)
    assert subscription.ask("GET").status == 200
    zure.advance(120)
    assert subscription.ask("GET").status == 404


# Rules.


def test_rules_are_made_listed_and_deleted(zure: Zure) -> None:
    subscription = zure.subscription()
    assert titles(subscription.ask("GET", "/rules")) == ["$Default"]
    assert b"TrueFilter" in subscription.ask("GET", "/rules/$Default").body
    made = subscription.rule("high", sql("priority = 'high'"))
    assert made.status == 201
    assert b"SqlFilter" in made.body
    assert b"priority = 'high'" in made.body.replace(b"&apos;", b"'")
    same = subscription.rule(
        "order", '<Filter i:type="CorrelationFilter"><Label>o</Label></Filter>'
    )
    assert same.status == 201
    assert b"CorrelationFilter" in same.body
    assert sorted(titles(subscription.ask("GET", "/rules"))) == ["$Default", "high", "order"]
    assert b"<Label>o</Label>" in subscription.ask("GET", "/rules/order").body
    assert subscription.ask("DELETE", "/rules/high").status == 200
    assert sorted(titles(subscription.ask("GET", "/rules"))) == ["$Default", "order"]


def test_a_rule_is_made_once(zure: Zure) -> None:
    subscription = zure.subscription()
    assert subscription.rule("r", sql("1=1")).status == 201
    again = subscription.rule("r", sql("1=2"))
    assert refused(again) == (409, "EntityAlreadyExists")
    assert again.json["error"]["details"]["entity_type"] == "rule"
    assert again.json["error"]["details"]["entity_name"] == "r"


def test_a_rule_that_is_not_there_is_not_found(zure: Zure) -> None:
    subscription = zure.subscription()
    for method in ("GET", "DELETE"):
        assert refused(subscription.ask(method, "/rules/none")) == (404, "EntityNotFound")
    lost = zure.subscription_at(zure.topic(), "none")
    assert refused(lost.ask("GET", "/rules")) == (404, "EntityNotFound")
    assert refused(lost.rule("r", sql("1=1"))) == (404, "EntityNotFound")


@pytest.mark.parametrize("expression", ["", "priority =", "a = 'x", "(a = 1", "a = " + "1" * 2_000])
def test_a_filter_that_cannot_be_read_is_refused(zure: Zure, expression: str) -> None:
    subscription = zure.subscription()
    assert refused(subscription.rule("r", sql(expression))) == (400, "InvalidOperation")
    assert titles(subscription.ask("GET", "/rules")) == ["$Default"]


def test_a_subscription_has_at_most_a_hundred_rules(broker: Running) -> None:
    subscription = Zure(broker, "plain").subscription()
    for number in range(RULES_MAX - 1):  # and the one it was made with
        assert subscription.rule(f"r{number}", sql("1=1")).status == 201
    assert refused(subscription.rule("more", sql("1=1"))) == (507, "QuotaExceeded")


# Names.


@pytest.mark.parametrize("name", ["ab", "Orders.New_1-x", "q" * 260])
def test_a_name_of_letters_digits_and_marks_is_good(zure: Zure, name: str) -> None:
    for entity in (zure.queue_at(name), zure.topic_at(f"t{name[1:]}")):
        assert zure.broker.call("PUT", entity.path).status == 201
        assert entity.ask("GET").status == 200
        assert entity.ask("DELETE").status in (200, 204)


BAD = [
    "-front", "back-", "_x", "x.", "a--b", "a__b", "a..b", "invalid@name!", "two words", "é",
    "a" * 261, "system", "null", "true", "false", "exec", "drop", "delete", "insert", "update",
    "create", "alter", "grant", "revoke",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD, ids=lambda name: name[:12])
def test_a_bad_name_is_refused(zure: Zure, name: str) -> None:
    for make, kind in ((zure.queue_at, "Queue"), (zure.topic_at, "Topic")):
        reply = zure.broker.call("PUT", make(quote(name)).path)
        assert refused(reply) == (400, f"Invalid{kind}Name")
        details = reply.json["error"]["details"]
        assert (details["entity_type"], details["entity_name"]) == (kind.lower(), name)
        assert details["reason"]
        assert details["reason"] != name


@pytest.mark.parametrize("name", ["a_b", "a.b", "a b", "s" * 51], ids=lambda name: name[:5])
def test_a_bad_name_of_a_subscription_is_refused(zure: Zure, name: str) -> None:
    topic = zure.topic()
    reply = zure.broker.call("PUT", zure.subscription_at(topic, quote(name)).path)
    assert refused(reply) == (400, "InvalidSubscriptionName")
    assert reply.json["error"]["details"]["entity_name"] == name
    assert zure.broker.call("PUT", zure.subscription_at(topic, "s" * 50).path).status == 201


# Namespaces.


def test_a_path_names_a_namespace_of_the_broker_or_the_default_one(broker: Running) -> None:
    space, name = fresh("space"), fresh("queue")
    broker.call("PUT", f"/api/v1/namespaces/{space}")
    assert broker.call("PUT", f"/servicebus/{space}/{name}").status == 201
    for other in ("any", "queues", "localnamespace", "default"):
        assert broker.call("GET", f"/servicebus/{other}/{name}").status == 404
    mine = Entity(broker, f"/servicebus/{space}/{name}")
    mine.send("here")
    there = f"/api/v1/namespaces/{space}/queues/{name}"
    assert broker.call("GET", there).json["counts"]["active"] == 1
    broker.call("PUT", f"/servicebus/{space}/topics/news")
    broker.call("PUT", f"/servicebus/{space}/topics/news/subscriptions/s")
    subscription = Entity(
        broker,
        f"/servicebus/{space}/topics/news/subscriptions/s",
        f"/servicebus/{space}/topics/news",
    )
    subscription.send("told")
    assert subscription.take() == ["told"]


def test_every_other_token_is_the_default_namespace(broker: Running) -> None:
    queue = Zure(broker, "plain").queue()
    queue.send("shared")
    for other in ("any", "myns", "test-namespace", "default"):
        where = Entity(broker, f"/servicebus/{other}/{queue.name}")
        assert [each["Body"] for each in where.peek()] == ["shared"]
    assert broker.queue("GET", queue.name).json["counts"]["active"] == 1


@pytest.mark.parametrize(
    ("path", "allowed"),
    [("/queues", "GET"), ("/transactions", "POST"), ("/queues/q", "GET, PUT, DELETE")],
)
def test_a_path_that_is_not_for_a_method_tells_for_which_it_is(
    broker: Running, path: str, allowed: str
) -> None:
    reply = broker.call("PATCH", f"/servicebus{path}")
    assert (reply.status, reply.headers["allow"]) == (405, allowed)
