"""Entities through the official JavaScript administration client, over HTTPS."""

from collections.abc import Callable, Iterator

import pytest

from tests.dialects.servicebus.javascript import Json, connection_string, need_node, run_script
from tests.dialects.servicebus.trust import trusting
from tests.server.running import running

Told = Callable[[str], Json]
FOREVER = "P10675199DT2H48M5.4775807S"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    need_node()
    with running("--data", str(tmp_path_factory.mktemp("data")), "--dev") as broker:
        text = connection_string(broker.port, plain=False)
        found = run_script("admin", text, environment=trusting(broker))

        def scenario(name: str) -> Json:
            one = found[name]
            assert not (isinstance(one, dict) and "error" in one), one["stack"]
            return one

        yield scenario


def test_the_namespace_tells_of_itself(told: Told) -> None:
    found = told("namespace")
    assert found["name"]
    assert found["messagingSku"] in ("Standard", "Premium")
    assert 0 < found["createdAt"] <= found["modifiedAt"]


def test_a_queue_has_the_usual_properties_when_none_are_given(told: Told) -> None:
    found = told("queueDefaults")
    usual = {
        "name": "defaults", "lockDuration": "PT1M", "maxSizeInMegabytes": 1024,
        "requiresDuplicateDetection": False, "requiresSession": False,
        "defaultMessageTimeToLive": FOREVER, "deadLetteringOnMessageExpiration": False,
        "duplicateDetectionHistoryTimeWindow": "PT10M", "maxDeliveryCount": 10,
        "enableBatchedOperations": True, "status": "Active", "autoDeleteOnIdle": FOREVER,
        "enablePartitioning": False, "enableExpress": False, "availabilityStatus": "Available",
    }  # fmt: skip
    assert {name: found.get(name) for name in usual} == usual
    assert not {"forwardTo", "forwardDeadLetteredMessagesTo", "userMetadata"} & found.keys()


def test_a_queue_is_made_changed_and_deleted(told: Told) -> None:
    queue = told("queue")
    assert queue["name"] == "txt/.-_123"
    assert queue["made"] == queue["found"] == queue["given"]
    assert queue["updated"] == [5, None, "PT13S"]
    assert queue["exists"] == [True, False]


def test_authorization_rules_come_back_as_they_were(told: Told) -> None:
    rights = told("rights")
    assert rights["found"] == rights["given"]


def test_forwarding_is_set_up(told: Told) -> None:
    forwarding = told("forwarding")
    assert [each.rsplit("/", 1)[-1] for each in forwarding["targets"]] == ["end"] * 3
    assert forwarding["count"] == 2
    assert forwarding["missing"]["code"] in ("ServiceError", "MessageEntityNotFoundError")


def test_messages_are_counted_in_every_state(told: Told) -> None:
    counts = told("counts")
    found = counts["found"]
    assert found.pop("sizeInBytes") > 0
    assert found == {
        "name": "counted", "totalMessageCount": 5, "activeMessageCount": 2,
        "deadLetterMessageCount": 1, "scheduledMessageCount": 2, "transferMessageCount": 0,
        "transferDeadLetterMessageCount": 0, "createdAt": 0, "modifiedAt": 0, "accessedAt": 0,
    }  # fmt: skip
    assert counts["times"] == [True, True, True]
    assert counts["listed"] == 5
    assert counts["after"] == [4, 0]


def test_a_topic_and_a_subscription_are_made_changed_and_deleted(told: Told) -> None:
    found = told("topicAndSubscription")
    assert found["name"] == "deep/Topic"
    assert found["topic"] == found["given"]
    assert found["subscription"] == found["options"]
    assert found["names"] == [["deep/Topic", "Some.Name"]]
    assert found["count"] == 1
    assert found["exists"] == [[True, True], [True, False], [False, False]]


def test_messages_of_a_subscription_are_counted(told: Told) -> None:
    assert told("subscriptionCounts") == [[2, 1, 1, 0, 0]] * 2


def test_rules_are_made_changed_and_deleted(told: Told) -> None:
    rules = told("rules")
    assert rules["initial"] == ["$Default", "1=1", None]
    assert rules["sql"] == ["sql", "exact"]
    given, exact = rules["exact"]
    assert exact == given
    assert rules["one"] == {"only": 1}
    assert rules["received"] == [
        ["sql", {"n": 5, "seen": True, "RuleName": "sql"}],
        ["one", {"only": 1}],
    ]
    assert rules["updated"] == ["n = 7", None]
    assert rules["exists"] == [True, False]
    assert sorted(rules["names"]) == ["exact", "one"]


def test_parameters_of_every_type_come_back_as_they_were(told: Told) -> None:
    found = told("sqlParameters")
    assert found["filter"] == ["n = @n", found["given"]]
    assert found["action"] == ["SET seen = @yes", {"@yes": True}]
    assert found["isDate"] is True


def test_a_subscription_is_made_with_a_rule_of_its_own(told: Told) -> None:
    assert told("defaultRule") == [["first", "mine"]]


def test_entities_are_listed_past_a_hundred(told: Told) -> None:
    assert told("paging") == {
        "missing": [], "twice": 0, "full": True, "all": True, "subscriptions": 103, "rules": 104,
        "topics": True,
    }  # fmt: skip


def test_refusals_have_their_codes(told: Told) -> None:
    errors = told("errors")
    assert errors.pop("absent") is False
    exists, missing = "MessageEntityAlreadyExistsError", "MessageEntityNotFoundError"
    assert {name: each.get("code") for name, each in errors.items()} == {
        "exists": exists, "existsAsTopic": exists, "existsSubscription": exists,
        "existsRule": exists, "missing": missing, "missingTopic": missing,
        "missingSubscription": missing, "missingRule": missing, "missingDelete": missing,
        "missingUpdate": missing, "badLock": "ServiceError", "badText": "ServiceError",
        "badRule": "ServiceError", "fixed": "ServiceError",
        "unauthorized": "UnauthorizedRequestError",
        "unauthorizedCreate": "UnauthorizedRequestError",
    }  # fmt: skip
