"""Configurations: where they come from, and what is refused."""

import asyncio
import copy
import dataclasses
import json
import logging
import pickle
from typing import Any

import pytest

from posthouse import (
    AwsSqsConfig,
    AzureServiceBusConfig,
    ConfigurationError,
    InMemoryConfig,
    PosthouseConfig,
    ProviderType,
    QueueClient,
    QueueConfig,
    Secret,
    Worker,
    create_client,
)
from posthouse.client.config import ProviderConfig

CANARY = "canary0123456789+/="


def test_the_defaults_are_those_that_are_documented() -> None:
    config = QueueConfig(InMemoryConfig())
    assert (config.default_timeout, config.max_retry_attempts, config.retry_base_delay) == (
        30,
        3,
        1,
    )
    assert config.enable_dead_letter
    memory = config.provider
    assert isinstance(memory, InMemoryConfig)
    assert (memory.max_queue_size, memory.max_delivery_count) == (10_000, 3)
    assert memory.session_lock_duration == 300


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        ("memory://", InMemoryConfig()),
        (
            "memory://?auto_create=yes&lock_duration=2.5",
            InMemoryConfig(lock_duration=2.5, auto_create=True),
        ),
        ("posthouse://", PosthouseConfig()),
        ("posthouse://host:99/shop", PosthouseConfig("host", 99, namespace="shop")),
        ("posthouses://host", PosthouseConfig("host", 5671, tls=True)),
        ("posthouses://[::1]:7", PosthouseConfig("::1", 7, tls=True)),
        (
            "posthouse://me:a%2Fb%40c@host?prefetch=7",
            PosthouseConfig("host", key_name="me", key="a/b@c", prefetch=7),
        ),
        ("sqs://eu-west-1", AwsSqsConfig("eu-west-1")),
        (
            "sqs://id:k%2F@eu-west-1?use_fifo_queues=true&endpoint_url=http://localhost:4566",
            AwsSqsConfig("eu-west-1", "id", "k/", "", "http://localhost:4566", True),
        ),
        (
            "sb://me:k%3D@shop.servicebus.windows.net?use_sessions=false",
            AzureServiceBusConfig(
                "Endpoint=sb://shop.servicebus.windows.net;SharedAccessKeyName=me;"
                "SharedAccessKey=k=",
                use_sessions=False,
            ),
        ),
        (
            "sb://me:k@localhost:5672",
            AzureServiceBusConfig(
                "Endpoint=sb://localhost:5672;SharedAccessKeyName=me;SharedAccessKey=k;"
                "UseDevelopmentEmulator=true"
            ),
        ),
        ("Endpoint=sb://x/;SharedAccessKey=k", AzureServiceBusConfig("Endpoint=sb://x/;SharedAccessKey=k")),
    ],
)  # fmt: skip
def test_a_url_says_all(url: str, provider: Any) -> None:
    assert QueueConfig.from_url(url).provider == provider


def test_a_url_has_settings_of_the_client_too() -> None:
    config = QueueConfig.from_url("posthouse://host?prefetch=7&max_retry_attempts=9")
    assert config == QueueConfig(PosthouseConfig("host", prefetch=7), max_retry_attempts=9)


def test_the_environment_says_all() -> None:
    config = QueueConfig.from_environment(
        {
            "POSTHOUSE_CLIENT_URL": "posthouse://host:99?prefetch=7",
            "POSTHOUSE_CLIENT_KEY": CANARY,
            "POSTHOUSE_CLIENT_PREFETCH": "8",
            "POSTHOUSE_CLIENT_BREAKER_SECONDS": "2.5",
            "POSTHOUSE_CLIENT_ENABLE_DEAD_LETTER": "no",
            "POSTHOUSE_CLIENT_CA_FILE": "",
            "POSTHOUSE_PORT": "1",
            "HOME": "/",
        }
    )
    assert config == QueueConfig(
        PosthouseConfig("host", 99, key=CANARY, prefetch=8),
        breaker_seconds=2.5, enable_dead_letter=False,
    )  # fmt: skip


@pytest.mark.parametrize("environment", [{}, {"POSTHOUSE_CLIENT_URL": ""}])
def test_without_a_url_the_error_names_the_variable_and_what_it_may_be(
    environment: dict[str, str],
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        create_client(environment=environment)
    for said in ("POSTHOUSE_CLIENT_URL", "posthouse://", "sb://", "sqs://", "memory://"):
        assert said in str(caught.value)


def test_a_worker_without_a_url_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTHOUSE_CLIENT_URL", raising=False)
    worker = Worker()
    worker.handler("orders")(lambda message: None)
    with pytest.raises(ConfigurationError, match="POSTHOUSE_CLIENT_URL"):
        asyncio.run(worker.run())


@pytest.mark.parametrize(
    ("field", "url"),
    [
        ("url", "http://host"),
        ("url", "host"),
        ("url", ""),
        ("url", "posthouse://host:x"),
        ("url", "posthouse://host:99999"),
        ("url", "posthouse://[host"),
        ("url", "sb://"),
        ("port", "memory://?port=1"),
        ("nonsense", "posthouse://host?nonsense=1"),
        ("prefetch", "posthouse://host?prefetch=many"),
        ("prefetch", "posthouse://host?prefetch=0"),
        ("auto_create", "memory://?auto_create=perhaps"),
        ("lock_duration", "memory://?lock_duration=nan"),
        ("default_timeout", "memory://?default_timeout=inf"),
        ("secret_access_key", "sqs://id@eu-west-1"),
        ("max_retry_attempts", "memory://?max_retry_attempts=101"),
    ],
)
def test_a_bad_url_names_what_is_wrong(field: str, url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        create_client(url)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (PosthouseConfig, "host", ""),
        (PosthouseConfig, "host", None),
        (PosthouseConfig, "port", 0),
        (PosthouseConfig, "port", 65_536),
        (PosthouseConfig, "port", "5672"),
        (PosthouseConfig, "port", True),
        (PosthouseConfig, "key", b"bytes"),
        (PosthouseConfig, "tls", "no"),
        (PosthouseConfig, "prefetch", 5_001),
        (AzureServiceBusConfig, "connection_string", ""),
        (AwsSqsConfig, "region", ""),
        (AwsSqsConfig, "secret_access_key", CANARY),
        (InMemoryConfig, "max_queue_size", 0),
        (InMemoryConfig, "max_delivery_count", 0),
        (InMemoryConfig, "lock_duration", 0),
        (InMemoryConfig, "session_lock_duration", -1.0),
        (QueueConfig, "provider", "memory://"),
        (QueueConfig, "default_timeout", -1),
        (QueueConfig, "default_timeout", "30"),
        (QueueConfig, "operation_timeout", 0),
        (QueueConfig, "max_retry_attempts", -1),
        (QueueConfig, "retry_base_delay", -1),
        (QueueConfig, "retry_max_delay", -1),
        (QueueConfig, "breaker_failures", -1),
        (QueueConfig, "breaker_seconds", 0),
        (QueueConfig, "enable_dead_letter", 1),
    ],
)
def test_a_bad_value_names_its_field_and_is_not_shown(
    kind: type[Any], field: str, value: object
) -> None:
    given: dict[str, object] = {"provider": InMemoryConfig()} if kind is QueueConfig else {}
    with pytest.raises(ConfigurationError) as caught:
        kind(**(given | {field: value}))
    assert caught.value.field == field
    assert CANARY not in str(caught.value)


def test_a_session_timeout_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="session_timeout"):
        AzureServiceBusConfig("Endpoint=x", session_timeout=0)


def test_a_variable_that_nobody_knows_is_named() -> None:
    with pytest.raises(ConfigurationError) as caught:
        QueueConfig.from_environment(
            {"POSTHOUSE_CLIENT_URL": "memory://", "POSTHOUSE_CLIENT_NONSENSE": "1"}
        )
    assert caught.value.field == "POSTHOUSE_CLIENT_NONSENSE"


@pytest.mark.parametrize(
    "url", [f"posthouse://me:{CANARY}@host", f"posthouse://me:12/{CANARY}@host", f"sb://a:b@{CANARY}@x:y"]
)  # fmt: skip
def test_a_key_that_is_not_escaped_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        QueueConfig.from_url(url)
    assert caught.value.field == "url"
    assert "canary" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


SECRETIVE: list[ProviderConfig] = [
    PosthouseConfig(key=CANARY),
    AzureServiceBusConfig(f"Endpoint=sb://x;SharedAccessKey={CANARY}"),
    AzureServiceBusConfig(namespace="x", credential=CANARY),
    AwsSqsConfig("r", "id", CANARY, CANARY),
    dataclasses.replace(PosthouseConfig(key=CANARY), port=1),
]


@pytest.mark.parametrize("provider", SECRETIVE)
def test_secrets_are_shown_nowhere(
    provider: ProviderConfig, caplog: pytest.LogCaptureFixture
) -> None:
    config = QueueConfig(provider)
    shown = [
        f"{config} {config!r} {provider} {provider!r}",
        f"{vars(config)} {vars(provider)}",
        f"{dataclasses.asdict(config)} {dataclasses.astuple(config)}",
        json.dumps(dataclasses.asdict(config), default=str),
        str([getattr(provider, each.name) for each in dataclasses.fields(provider)]),
        f"{copy.copy(config)} {copy.deepcopy(config)}",
    ]
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("test").info("%s %r %s", config, provider, [config])
    for text in [*shown, caplog.text]:
        assert CANARY not in text
        assert "***" in text
    for thing in (config, provider, dataclasses.asdict(config)):
        with pytest.raises(TypeError, match="secret"):
            pickle.dumps(thing)


def test_a_secret_is_what_it_was_made_of() -> None:
    config = PosthouseConfig(key=CANARY)
    assert isinstance(config.key, Secret)
    assert config.key.open() == CANARY
    assert config == PosthouseConfig(key=Secret(CANARY))
    assert config != PosthouseConfig(key="another")
    assert {config: 1}[PosthouseConfig(key=CANARY)] == 1
    assert copy.deepcopy(config) == config
    assert "***" not in repr(PosthouseConfig())
    assert pickle.loads(pickle.dumps(PosthouseConfig())) == PosthouseConfig()  # there is none


def test_a_configuration_does_not_change() -> None:
    config = QueueConfig(InMemoryConfig())
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.default_timeout = 1  # type: ignore[misc]


def test_a_client_is_made_of_any_of_them() -> None:
    def kind(client: QueueClient) -> ProviderType:
        return client.provider_type

    memory = ProviderType.IN_MEMORY
    assert kind(create_client(QueueConfig(InMemoryConfig()))) is memory
    assert kind(create_client("memory://")) is memory
    assert kind(create_client(environment={"POSTHOUSE_CLIENT_URL": "memory://"})) is memory
