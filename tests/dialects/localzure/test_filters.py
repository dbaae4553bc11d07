"""Rules: the fifteen operators of SQL filters, system properties, correlation filters."""

import pytest

from tests.dialects.localzure.zure import Entity, Zure, sql
from tests.server.running import Json

# What each message is, by its body. Properties are texts, as LocalZure's clients send them.
MESSAGES: dict[str, dict[str, Json]] = {
    "a": {"label": "order", "user_properties": {"colour": "red", "size": "5", "rush": "true"}},
    "b": {"label": "order", "user_properties": {"colour": "blue", "size": "10"}},
    "c": {"label": "alert", "user_properties": {"colour": "dark red", "size": "-1.5"}},
    "d": {"label": "alert", "user_properties": {"size": "50"}},
}


def wanted(zure: Zure, filter: str) -> str:
    """The bodies of those messages that a subscription with this one rule gets."""
    subscription = zure.subscription()
    subscription.only(filter)
    for body, fields in MESSAGES.items():
        subscription.send(body, **fields)
    return "".join(subscription.take())


@pytest.mark.parametrize(
    ("expression", "bodies"),
    [
        ("colour = 'red'", "a"),
        ("colour != 'red'", "bc"),
        ("colour <> 'red'", "bc"),
        ("size < 10", "ac"),
        ("size > 5", "bd"),
        ("size <= 5", "ac"),
        ("size >= 10", "bd"),
        ("colour = 'red' AND size = 5", "a"),
        ("colour = 'red' OR size = 50", "ad"),
        ("NOT colour = 'red'", "bc"),
        ("colour IN ('red', 'blue')", "ab"),
        ("colour NOT IN ('red', 'blue')", "c"),
        ("colour LIKE '%red'", "ac"),
        ("colour NOT LIKE '%red'", "b"),
        ("colour IS NULL", "d"),
        ("colour IS NOT NULL", "abc"),
    ],
)
def test_every_operator_chooses(zure: Zure, expression: str, bodies: str) -> None:
    assert wanted(zure, sql(expression)) == bodies


@pytest.mark.parametrize(
    ("expression", "bodies"),
    [
        ("1=1", "abcd"),
        ("1=2", ""),
        ("(colour = 'red' OR colour = 'blue') AND size > 5", "b"),
        ("colour = 'red' OR colour = 'blue' AND size > 5", "ab"),
        ("NOT (colour = 'red' OR colour = 'blue')", "c"),
        ("colour is not null and not (size > 5 or colour like 'dark%')", "a"),
        ("colour = 'salt AND pepper' OR colour = 'red'", "a"),
        ("colour = 'it''s' OR colour = 'red'", "a"),
        ("((((colour = 'red'))))", "a"),
        ("size = 1 OR size = 2 OR size = 3 OR size = 4 OR size = 6 OR size = 7 OR size = 5", "a"),
        ("missing = 'x'", ""),
        ("missing != 'x'", ""),
        ("updated IS NULL AND created IS NULL AND colour = 'red'", "a"),
    ],
)
def test_expressions_are_read_as_sql(zure: Zure, expression: str, bodies: str) -> None:
    assert wanted(zure, sql(expression)) == bodies


@pytest.mark.parametrize(
    ("expression", "bodies"),
    [
        ("size = 5", "a"),
        ("size = '5'", "a"),
        ("size = 5.0", "a"),
        ("size = -1.5", "c"),
        ("size IN (5, 50)", "ad"),
        ("size != 5", "bcd"),
        ("rush = true", "a"),
        ("rush = 'true'", "a"),
        ("colour > 5", ""),
    ],
)
def test_texts_and_numbers_are_compared_by_what_they_say(
    zure: Zure, expression: str, bodies: str
) -> None:
    assert wanted(zure, sql(expression)) == bodies


@pytest.mark.parametrize(
    "expression",
    [
        "sys.MessageId = 'm1'", "sys.Label = 'l'", "sys.ContentType = 'text/plain'",
        "sys.CorrelationId = 'c'", "sys.SessionId = 's'", "sys.ReplyTo = 'r'", "sys.To = 't'",
        "sys.DeliveryCount = 0", "sys.EnqueuedTimeUtc IS NOT NULL", "sys.SequenceNumber > 0",
        "sys.label = 'l'", "sys.MessageId LIKE 'm%'",
    ],
)  # fmt: skip
def test_system_properties_can_be_asked_for(zure: Zure, expression: str) -> None:
    subscription = zure.subscription()
    subscription.only(sql(expression))
    fields = {
        "message_id": "m1", "label": "l", "content_type": "text/plain", "correlation_id": "c",
        "session_id": "s", "reply_to": "r", "to": "t",
    }  # fmt: skip
    subscription.send("x", **fields)
    assert subscription.take() == ["x"]


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("CorrelationId", "correlation_id"), ("ContentType", "content_type"), ("Label", "label"),
        ("MessageId", "message_id"), ("ReplyTo", "reply_to"), ("SessionId", "session_id"),
        ("To", "to"),
    ],
)  # fmt: skip
def test_a_correlation_filter_wants_a_field_to_be_equal(zure: Zure, name: str, field: str) -> None:
    subscription = zure.subscription()
    subscription.only(f'<Filter i:type="CorrelationFilter"><{name}>v</{name}></Filter>')
    subscription.send("same", **{field: "v"})
    subscription.send("other", **{field: "V"})
    subscription.send("none")
    assert subscription.take() == ["same"]


PLAIN = "<Properties><colour>red</colour><size>5</size></Properties>"
PAIRS = (
    "<Properties>"
    "<KeyValueOfstringanyType><Key>colour</Key>"
    '<Value i:type="d:string" xmlns:d="http://www.w3.org/2001/XMLSchema">red</Value>'
    "</KeyValueOfstringanyType>"
    "<KeyValueOfstringanyType><Key>size</Key>"
    '<Value i:type="d:string" xmlns:d="http://www.w3.org/2001/XMLSchema">5</Value>'
    "</KeyValueOfstringanyType>"
    "</Properties>"
)


@pytest.mark.parametrize("properties", [PLAIN, PAIRS], ids=["as documented", "as Azure has it"])
def test_a_correlation_filter_wants_everything_to_be_equal(zure: Zure, properties: str) -> None:
    filter = f'<Filter i:type="CorrelationFilter"><Label>order</Label>{properties}</Filter>'
    assert wanted(zure, filter) == "a"


@pytest.mark.parametrize(
    ("filter", "bodies"),
    [
        ("<Filter><SqlExpression>size = 5</SqlExpression></Filter>", "a"),
        ("<Filter><Label>alert</Label></Filter>", "cd"),
        (f"<Filter><Label>order</Label>{PLAIN}</Filter>", "a"),
        ('<Filter i:type="TrueFilter"/>', "abcd"),
        ('<Filter i:type="FalseFilter"/>', ""),
        ('<Filter i:type="TrueFilter"><SqlExpression>1=1</SqlExpression></Filter>', "abcd"),
        ('<Filter i:type="FalseFilter"><SqlExpression>1=0</SqlExpression></Filter>', ""),
    ],
)
def test_a_filter_may_be_written_without_its_type_and_may_want_all_or_nothing(
    zure: Zure, filter: str, bodies: str
) -> None:
    assert wanted(zure, filter) == bodies


def test_a_message_that_fits_several_rules_comes_once(zure: Zure) -> None:
    subscription = zure.subscription()
    subscription.rule("red", sql("colour = 'red'"))
    subscription.rule("small", sql("size < 9"))
    subscription.send("x", user_properties={"colour": "red", "size": "1"})
    assert subscription.take() == ["x"]


def test_a_message_that_nobody_wants_is_accepted_and_dropped(zure: Zure) -> None:
    subscription = zure.subscription()
    subscription.only(sql("colour = 'red'"))
    topic = Entity(zure.broker, subscription.inlet)
    assert topic.try_send("x", user_properties={"colour": "blue"}).status == 201
    assert subscription.peek() == subscription.dead.peek() == []


def test_a_rule_is_for_what_is_sent_after_it(zure: Zure) -> None:
    subscription = zure.subscription()
    subscription.send("before")
    subscription.only('<Filter i:type="FalseFilter"/>')
    subscription.send("after")
    assert subscription.take() == ["before"]


def test_every_subscription_has_rules_of_its_own(zure: Zure) -> None:
    topic = zure.topic()
    places = {}
    for name, expression in (
        ("us-high", "region = 'us' AND priority = 'high'"),
        ("high", "priority = 'high'"),
        ("orders", "message_type = 'order'"),
    ):
        places[name] = zure.subscription(topic)
        places[name].only(sql(expression))
    for body in ("us high order", "us low order", "eu high order", "us high alert"):
        region, priority, message_type = body.split()
        properties = {"region": region, "priority": priority, "message_type": message_type}
        topic.send(body, user_properties=properties)
    assert {name: place.take() for name, place in places.items()} == {
        "us-high": ["us high order", "us high alert"],
        "high": ["us high order", "eu high order", "us high alert"],
        "orders": ["us high order", "us low order", "eu high order"],
    }


@pytest.mark.parametrize(
    ("nested", "bodies"),
    [
        ("<SqlFilter><SqlExpression>colour = 'red'</SqlExpression></SqlFilter>", "a"),
        ("<TrueFilter/>", "abcd"),
        ("<FalseFilter/>", ""),
        ("<CorrelationFilter><Label>order</Label></CorrelationFilter>", "ab"),
    ],
)
def test_the_type_of_a_filter_may_be_an_element(zure: Zure, nested: str, bodies: str) -> None:
    assert wanted(zure, f"<Filter>{nested}</Filter>") == bodies


@pytest.mark.parametrize("action", [
    "<Action><SqlRuleAction><SqlExpression>SET sys.Label = 'changed'</SqlExpression>"
    "</SqlRuleAction></Action>",
    '<Action i:type="SqlRuleAction"><SqlExpression>SET sys.Label = \'changed\'</SqlExpression>'
    "</Action>",
])  # fmt: skip
def test_the_type_of_an_action_may_be_an_element(zure: Zure, action: str) -> None:
    subscription = zure.subscription()
    subscription.only(f"<Filter><TrueFilter/></Filter>{action}")
    subscription.send("x", label="sent")
    [message] = subscription.receive()
    assert message["Label"] == "changed"


@pytest.mark.parametrize("rule", [
    "<Filter><OtherFilter/></Filter>",
    "<Filter><TrueFilter/></Filter><Action><OtherRuleAction/></Action>",
])  # fmt: skip
def test_an_unknown_type_of_filter_or_action_is_named_in_the_refusal(zure: Zure, rule: str) -> None:
    reply = zure.subscription().rule("r", rule)
    assert reply.status == 400
    assert "'Other" in reply.json["error"]["message"]
