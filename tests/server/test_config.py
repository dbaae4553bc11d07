"""Configuration: where values come from, and what is said of wrong ones."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from posthouse.broker.declared import PrincipalDeclared, QueueDeclared
from posthouse.core.model import Grant, QueueProperties
from posthouse.core.rules import CorrelationFilter, Rule, SqlFilter
from posthouse.dialects.servicebus.times import duration_ms
from posthouse.server.config import PORTS, SETTINGS, BadConfig, Port, load
from tests.server.running import running

EMULATOR: dict[str, Any] = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [
                    {
                        "Name": "queue.1",
                        "Properties": {
                            "DeadLetteringOnMessageExpiration": True,
                            "DefaultMessageTimeToLive": "PT1H",
                            "DuplicateDetectionHistoryTimeWindow": "PT20S",
                            "ForwardDeadLetteredMessagesTo": "",
                            "ForwardTo": "",
                            "LockDuration": "PT1M30S",
                            "MaxDeliveryCount": 3,
                            "RequiresDuplicateDetection": True,
                            "RequiresSession": True,
                        },
                    },
                    {"Name": "queue.2"},
                ],
                "Topics": [
                    {
                        "Name": "topic.1",
                        "Properties": {
                            "DefaultMessageTimeToLive": "PT1H",
                            "DuplicateDetectionHistoryTimeWindow": "PT20S",
                            "RequiresDuplicateDetection": False,
                        },
                        "Subscriptions": [
                            {"Name": "subscription.0", "Properties": {"ForwardTo": "queue.2"}},
                            {
                                "Name": "subscription.1",
                                "Properties": {"MaxDeliveryCount": 3, "LockDuration": "PT1M"},
                                "Rules": [
                                    {
                                        "Name": "app-prop-filter-1",
                                        "Properties": {
                                            "FilterType": "Correlation",
                                            "CorrelationFilter": {
                                                "ContentType": "application/json",
                                                "MessageId": "m",
                                                "Label": "s",
                                                "Properties": {"prop1": "value1"},
                                            },
                                        },
                                    },
                                    {
                                        "Name": "sql",
                                        "Properties": {
                                            "FilterType": "Sql",
                                            "SqlFilter": {"SqlExpression": "a = 1"},
                                            "Action": {"SqlExpression": "SET a = 2"},
                                        },
                                    },
                                ],
                            },
                        ],
                    }
                ],
            }
        ],
        "Logging": {"Type": "File"},
    }
}


def test_a_flag_goes_before_the_environment_that_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "posthouse.yaml"
    file.write_text("stop_limit: 1\nhandshake_limit: 2\nconnections_max: 3\nport: [1, 2]\n")
    environment = {"POSTHOUSE_HANDSHAKE_LIMIT": "20", "POSTHOUSE_CONNECTIONS_MAX": "30",
                   "POSTHOUSE_CONFIG": str(file), "POSTHOUSE_URL": "x", "POSTHOUSE_CLIENT_URL": "x",
                   "HOME": "/"}  # fmt: skip
    config = load({"connections_max": "300", "dev": None}, environment)
    assert (config.stop_limit, config.handshake_limit, config.connections_max) == (1, 20, 300)
    assert config.port == (Port(1), Port(2))
    assert config.durability == "fsync"
    assert config.origins == {
        "stop_limit": str(file),
        "handshake_limit": "POSTHOUSE_HANDSHAKE_LIMIT",
        "connections_max": "--connections-max",
        "port": str(file),
        "config": "POSTHOUSE_CONFIG",
    }


def test_values_are_read_with_their_units() -> None:
    environment = {
        "POSTHOUSE_MEMORY_LIMIT": "2G", "POSTHOUSE_KEEP": "3d", "POSTHOUSE_PORT": "5671, 5672",
        "POSTHOUSE_DEV": "yes", "POSTHOUSE_DEV_ALLOW": "172.17.0.1/16,10.0.0.1",
        "POSTHOUSE_DATA": "~/x",
    }  # fmt: skip
    config = load({}, environment)
    assert config.memory_limit == 2 << 30
    assert config.keep == 3 * 86_400
    assert config.port == (Port(5671), Port(5672))
    assert config.dev is True
    assert config.dev_allow == ("172.17.0.0/16", "10.0.0.1/32")
    assert config.data == Path.home() / "x"
    assert load({}, {}).port == tuple(map(Port, PORTS))


def test_a_port_can_be_declared_for_a_dialect_over_http() -> None:
    config = load({"port": ["5300", "8080=pyqueue-http"]}, {})
    assert config.port == (Port(5300), Port(8080, "pyqueue-http"))


@pytest.mark.parametrize(
    ("flags", "environment", "says"),
    [
        ({"port": ["x"]}, {}, "--port: port must be a whole number from 0 to 65535"),
        ({"port": ["70000"]}, {}, "--port: port must be"),
        ({"port": ["80=gopher"]}, {}, "--port: port must be a number, or a number and one of"),
        ({}, {"POSTHOUSE_COLOUR": "red"}, "POSTHOUSE_COLOUR: there is no setting 'colour'"),
        ({}, {"POSTHOUSE_DEV": "maybe"}, "POSTHOUSE_DEV: dev must be true or false"),
        ({"durability": "odd"}, {}, "must be one of fsync, interval, memory"),
        ({"keep": "long"}, {}, "must be a number with a unit"),
        ({"tls_cert": "x"}, {}, "belong together"),
        ({"dev_allow": ["10.0.0.0/8"]}, {}, "goes with dev"),
        ({"dev": "true", "dev_allow": ["everybody"]}, {}, "must be an address or a network"),
        ({"data": "x", "memory": "true"}, {}, "exclude each other"),
        ({"config": "/nowhere.yaml"}, {}, "/nowhere.yaml cannot be read"),
    ],
)
def test_what_makes_no_sense_is_named(
    flags: dict[str, object], environment: dict[str, str], says: str
) -> None:
    with pytest.raises(BadConfig) as raised:
        load(flags, environment)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("colour: red", "there is no setting 'colour'"),
        ("- a list", "must hold settings by name"),
        ("1: 2", "must hold settings by name"),
        ("a: [", "is not YAML"),
        ("data: !!python/object/apply:os.system ['true']", "is not YAML"),
        ("stop_limit: true", "stop_limit must be a whole number"),
        ("topics: [{subscriptions: []}]", "each needs a name"),
        (
            "schedules: [{name: s, queue: q, when: often, message: {}}]",
            "'s': when must be",
        ),
        ("schedules: [{name: s}]", "schedules: Object missing required field"),
        ("topics: [{name: t, subscriptions: [x]}]", "each of its subscriptions needs a name"),
        ("topics: [{name: t, colour: 5}]", "topic t: there is no property 'colour'"),
        (
            "topics: [{name: t, subscriptions: [{name: s, rules: [{name: r, filter:"
            " {kind: odd}}]}]}]",
            "subscription s of t: Invalid value 'odd'",
        ),
        (
            "topics: [{name: t, subscriptions: [{name: s, rules: [{name: r, filter: {kind: sql,"
            " expression: 'a ='}}]}]}]",
            "is not well-formed",
        ),
        ("queues: [{lock_ms: 5}]", "each needs a name"),
        ("queues: [{name: q, colour: red}]", "there is no property 'colour'"),
        ("queues: [{name: q, lock_ms: long}]", "queue q"),
        ("queues: nothing", "queues"),
        ("principals: [{name: a, key: short, grants: [{rights: [send]}]}]", "16 to 256 characters"),
        ("principals: [{name: a, key: %very-secret-key, grants: []}]", "in line 1"),
        ("principals: [{name: 'a:b', key: '1234567890123456', grants: [{rights: [send]}]}]", "a:b"),
        ("queues: [{name: q, lock_ms: -1}]", "queue 'q'"),
        ("queues: [{name: $q}]", "queue '$q'"),
        ("segment_size: 0", "must be 4096 or more"),
        ("{ not json", "is not JSON"),
        ("unsupported: [x]", "there is no setting 'unsupported'"),
        ("principals: [{name: a, key: 1234567890123456, grants: []}]", "principals"),
        ("principals: [{name: a, key: '1234567890123456', grants: [{rights: [fly]}]}]", "rights"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(BadConfig) as raised:
        load({"config": str(file)}, {})
    assert says in str(raised.value)
    assert str(file) in str(raised.value)
    assert "very-secret" not in str(raised.value)


def test_what_a_file_declares(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        """
namespaces: [shop]
queues:
  - {name: orders, namespace: shop, lock_ms: 5000, grouping: session}
  - name: plain
principals:
  - name: web
    key: 0123456789abcdef
    grants: [{namespace: shop, rights: [send]}]
"""
    )
    declared = load({"config": str(file)}, {}).declared
    assert declared.namespaces == ("shop",)
    assert declared.queues == (
        QueueDeclared("orders", "shop", QueueProperties(lock_ms=5_000, grouping="session")),
        QueueDeclared("plain", "default"),
    )
    [web] = declared.principals
    assert web == PrincipalDeclared("web", "0123456789abcdef", (Grant("shop", "*", ["send"]),))
    assert "0123456789abcdef" not in repr(declared)


def test_topics_and_schedules_are_declared(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        """
queues: [{name: orders, forward_dead_to: graves}, {name: graves}]
topics:
  - name: news
    ttl_ms: 60000
    subscriptions:
      - {name: all, forward_to: orders}
      - name: red
        max_delivery: 3
        rules: [{name: r, filter: {kind: sql, expression: "colour = 'red'"}, action: SET n = 1}]
schedules:
  - {name: beat, queue: news, when: every 10 seconds, message: {body: tick}}
"""
    )
    with running("--memory", "--dev", "--config", str(file)) as broker:
        space = "/api/v1/namespaces/default"
        where = f"{space}/topics/news/subscriptions/red"
        info = broker.call("GET", where).json
        assert (info["rules"], info["properties"]["max_delivery"]) == (1, 3)
        broker.call("POST", f"{space}/topics/news/messages", {
            "messages": [{"body": "x", "properties": {"colour": "red"}}],
        })  # fmt: skip
        [got] = broker.call("POST", f"{where}/receive", {}).json["messages"]
        assert got["properties"] == {"colour": "red", "n": 1, "RuleName": "r"}
        broker.call("POST", f"{space}/clock", {"advance_ms": 10_000})
        assert [each["body"] for each in broker.receive("orders", 5)] == ["x", "tick"]
        [schedule] = broker.call("GET", f"{space}/schedules").json["schedules"]
        assert (schedule["name"], schedule["fired"]) == ("beat", 1)


def test_the_emulator_s_file_is_read_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "Config.json"
    file.write_text(json.dumps(EMULATOR))
    declared = load({"config": str(file)}, {}).declared
    first, second = declared.queues
    assert (first.name, first.namespace) == ("queue.1", "default")
    assert first.properties == QueueProperties(
        lock_ms=90_000, max_delivery=3, ttl_ms=3_600_000, requires_session=True,
        duplicate_detection=True, duplicate_window_ms=20_000, dead_letter_expired=True,
    )  # fmt: skip
    assert second.properties == QueueProperties()
    [topic] = declared.topics
    assert (topic.name, topic.properties.delivery) == ("topic.1", "topic")
    assert topic.properties.ttl_ms == 3_600_000
    plain, ruled = topic.subscriptions
    assert (plain.properties.forward_to, plain.rules) == ("queue.2", (Rule("$Default"),))
    fields = {"content_type": "application/json", "id": "m", "subject": "s"}
    assert ruled.rules == (
        Rule("app-prop-filter-1", CorrelationFilter(fields, {"prop1": "value1"})),
        Rule("sql", SqlFilter("a = 1"), "SET a = 2"),
    )


@pytest.mark.parametrize(
    ("text", "ms"),
    [("PT1M", 60_000), ("P1DT2H3M4.5S", 93_784_500), ("PT0.1S", 100), ("P14D", 1_209_600_000),
     ("P10675199DT2H48M5.4775807S", None)],
)  # fmt: skip
def test_durations(text: str, ms: int | None) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "P", "PT", "1M", "PT1", "PTM", "PT-1M", "PT\u0661M"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        duration_ms(text)


def test_what_is_declared_is_there_at_start_and_stays_as_it_was(tmp_path: Path) -> None:
    file, data = tmp_path / "c.yaml", str(tmp_path / "data")
    text = """
queues: [{name: orders, namespace: shop, lock_ms: 5000}]
principals: [{name: web, key: %s, grants: [{rights: [manage]}]}]
"""
    file.write_text(text % "the-first-key-of-web")
    where = "/api/v1/namespaces/shop/queues/orders"
    with running("--data", data, "--config", str(file)) as broker:
        info = broker.call("GET", where, key="web:the-first-key-of-web").json
        assert info["properties"]["lock_ms"] == 5_000
        changed = {"lock_ms": 9_000}
        broker.call("PATCH", where, changed, key="web:the-first-key-of-web")
    file.write_text(text % "the-second-key-of-web")
    with running("--data", data, "--config", str(file)) as broker:
        assert broker.call("GET", where, key="web:the-first-key-of-web").status == 401
        info = broker.call("GET", where, key="web:the-second-key-of-web").json
        assert info["properties"]["lock_ms"] == 9_000
        assert "key-of-web" not in json.dumps(broker.log)
    emulator = tmp_path / "Config.json"
    emulator.write_text(json.dumps(EMULATOR))
    with running("--memory", "--dev", "--config", str(emulator)) as broker:
        names = [
            q["name"]
            for q in broker.call("GET", "/api/v1/namespaces/default/queues").json["queues"]
        ]
        assert names == ["queue.1", "queue.2"]
        where = "/api/v1/namespaces/default/topics"
        assert [each["name"] for each in broker.call("GET", where).json["topics"]] == ["topic.1"]


def test_show_prints_values_with_their_origins_and_no_secrets(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "keep: 3d\nprincipals: [{name: web, key: very-secret-key-x, grants: [{rights: [send]}]}]\n"
    )

    def show(*more: str) -> str:
        command = [sys.executable, "-m", "posthouse.cli", "config", "show", "--dev", *more]
        environment = {**os.environ, "POSTHOUSE_CONFIG": str(file)}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout

    found = json.loads(show("--json"))
    assert found["settings"]["dev"] == {"value": True, "origin": "--dev"}
    assert found["settings"]["keep"] == {"value": 259_200, "origin": str(file)}
    assert found["settings"]["durability"] == {"value": "fsync", "origin": "default"}
    assert found["declared"] == {"principals": ["web"]}
    assert set(found["settings"]) == set(SETTINGS)
    text = show()
    assert "very-secret" not in text + json.dumps(found)
    assert "POSTHOUSE_CONFIG" in text


def test_every_setting_is_a_flag_with_help() -> None:
    command = [sys.executable, "-m", "posthouse.cli", "serve", "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for name, setting in SETTINGS.items():  # but for secrets, which others could see there
        assert ("--" + name.replace("_", "-") in said) is not setting.secret


# PyQueue's own names.


def test_pyqueue_s_names_are_ours_and_ours_go_before_them() -> None:
    theirs = {
        "SECURITY_ENABLED": "true", "API_KEY": "k" * 20, "JWT_SECRET": "s" * 40,
        "QUEUE_MAX_DEPTH": "7", "QUEUE_TTL": "60", "VISIBILITY_TIMEOUT": "5", "MAX_RETRIES": "4",
        "BROKER_HOST": "0.0.0.0", "BROKER_PORT": "5999", "COMPRESSION_ENABLED": "true",
        "COMPRESSION_MIN_SIZE": "2048",
    }  # fmt: skip
    config = load({}, {**theirs, "POSTHOUSE_PYQUEUE_DEPTH": "9"})
    settings = config.dialects["pyqueue"]
    assert (settings.pyqueue_depth, settings.pyqueue_ttl, settings.pyqueue_lock) == (9, 60, 5)
    assert (settings.pyqueue_retries, config.host, config.port) == (4, ("0.0.0.0",), (Port(5999),))
    assert (settings.pyqueue_security, settings.jwt_secret) == (True, "s" * 40)
    assert (config.compress, config.compress_from) == ("gzip", 2_048)
    assert config.origins["pyqueue_lock"] == "VISIBILITY_TIMEOUT"
    [principal] = config.declared.principals
    assert (principal.name, principal.key) == ("api_key_user", "k" * 20)
    assert [grant.entity for grant in principal.grants] == ["*"]


def test_a_key_that_is_for_something_else_is_not_taken() -> None:
    config = load({}, {"API_KEY": "of another program", "JWT_SECRET": "short"})
    settings = config.dialects["pyqueue"]
    assert (settings.pyqueue_api_key, settings.jwt_secret) == (None, None)
    assert not config.declared.principals


def test_nobody_is_let_in_unasked_without_dev() -> None:
    with pytest.raises(BadConfig, match="SECURITY_ENABLED"):
        load({}, {"SECURITY_ENABLED": "false"})
    config = load({"dev": "true"}, {"SECURITY_ENABLED": "false"})
    assert config.dialects["pyqueue"].pyqueue_security is False


def test_a_secret_is_not_told_where_it_is_wrong() -> None:
    with pytest.raises(BadConfig) as wrong:
        load({}, {"SECURITY_ENABLED": "true", "API_KEY": "too short"})
    assert "too short" not in str(wrong.value)
    assert "16" in str(wrong.value)


def test_pyqueue_s_permissions_become_principals(tmp_path: Path) -> None:
    file = tmp_path / "pyqueue.yaml"
    file.write_text(
        "security:\n  enabled: true\n  api_key: a key of sixteen\n"
        "  permissions: {api_key_user: [orders*], alice: ['*']}\n"
    )
    config = load({"config": str(file)}, {})
    found = {each.name: each for each in config.declared.principals}
    assert [grant.entity for grant in found["api_key_user"].grants] == ["orders*"]
    assert (found["api_key_user"].key, found["alice"].key) == ("a key of sixteen", None)
    file.write_text("security:\n  api_key: a key of sixteen\n  permissions: {alice: ['*']}\n")
    with pytest.raises(BadConfig, match="api_key_user"):
        load({"config": str(file)}, {})
    twice = "principals: [{name: a, key: a key of sixteen, grants: [{rights: [send]}]}]\n"
    both = twice + "security: {permissions: {a: [q]}}"
    for wrong in ("security: 5", "security: {magic: 1}", "security: {permissions: {a: []}}",
                  "security: {permissions: 7}", both):  # fmt: skip
        file.write_text(wrong)
        with pytest.raises(BadConfig):
            load({"config": str(file)}, {})


def test_a_file_in_pyqueue_s_own_words_is_refused_with_what_to_write(tmp_path: Path) -> None:
    file = tmp_path / "pyqueue.yaml"
    for text, told in (
        ("visibility_timeout: 30", "visibility_timeout is PyQueue's .* write pyqueue_lock"),
        ("broker:\n  port: 5555\n", "broker is a section of PyQueue's .*VISIBILITY_TIMEOUT"),
        ("queues: {default: {max_depth: 5}}", "queues is a section"),
        ("journal_file: tasks.journal", "journal_file is PyQueue's .* leave it out: .*`data`"),
        ("TLS_ENABLED: true", "TLS_ENABLED is PyQueue's .* leave it out: .*tls_cert"),
    ):
        file.write_text(text)
        with pytest.raises(BadConfig, match=told):
            load({"config": str(file)}, {})
    file.write_text(f"jwt_secret: {'s' * 40}")  # the same name in both
    assert load({"config": str(file)}, {}).dialects["pyqueue"].jwt_secret == "s" * 40


def test_pyqueue_s_permissions_are_shown_as_principals(tmp_path: Path) -> None:
    file = tmp_path / "pyqueue.yaml"
    file.write_text("security:\n  permissions: {alice: ['*']}\n")
    command = [sys.executable, "-m", "posthouse.cli", "config", "show", "--json"]
    environment = {**os.environ, "POSTHOUSE_CONFIG": str(file)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["declared"] == {"principals": ["alice"]}
