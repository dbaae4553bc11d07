"""Creation of clients. A provider's package is imported only where it is used."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from posthouse.client.client import QueueClient
from posthouse.client.config import (
    AwsSqsConfig,
    AzureServiceBusConfig,
    InMemoryConfig,
    PosthouseConfig,
    QueueConfig,
)
from posthouse.client.namespace_map import located
from posthouse.client.packages import require
from posthouse.client.provider import Provider
from posthouse.client.retry import RetryPolicy
from posthouse.client.wrapping import PLAIN, Wrapping

if TYPE_CHECKING:
    from posthouse.client.compression import Compression
    from posthouse.client.encryption import Encryption


def create_client(
    config: QueueConfig | str | None = None,
    *,
    retry: RetryPolicy | None = None,
    compression: "Compression | None" = None,
    encryption: "Encryption | None" = None,
    environment: Mapping[str, str] | None = None,
) -> QueueClient:
    """Creates a client.

    `config` is a configuration or a URL; without it, `POSTHOUSE_CLIENT_URL` of the `environment`
    (`os.environ`) is read. `retry` is the retry policy; `compression` and `encryption` are done to
    bodies. The client connects on its first call, or on `async with`. Raises ConfigurationError.

    Example:
        async with create_client("posthouse://web:key@localhost") as client:
            await client.send_message("orders", Message("a book"))
    """
    if config is None:
        config = QueueConfig.from_environment(os.environ if environment is None else environment)
    elif isinstance(config, str):
        config = QueueConfig.from_url(config)
    wrapping = PLAIN
    if compression is not None or encryption is not None:
        wrapping = Wrapping(compression, encryption)
    return QueueClient(_provider(config), config, retry=retry, wrapping=wrapping)


def create_test_client(*, virtual_clock: bool = False, auto_create: bool = True) -> QueueClient:
    """Creates a client whose queues are in memory, for tests.

    With `auto_create`, a queue is created when it is first used. With `virtual_clock`, time stands
    still until it is moved.

    Example:
        async with create_test_client() as client:
            await client.send_message("orders", Message("a book"))
    """
    config = InMemoryConfig(virtual_clock=virtual_clock, auto_create=auto_create)
    return create_client(QueueConfig(config, default_timeout=1.0))


def _provider(config: QueueConfig) -> Provider:
    match config.provider:
        case PosthouseConfig():
            from posthouse.client.wire.provider import PosthouseProvider

            located(config.provider)  # what is wrong with its map is told now
            return PosthouseProvider(config.provider)
        case AzureServiceBusConfig():
            require("azure", "azure-servicebus", (7, 15))
            from posthouse.client.azure import AzureProvider

            return AzureProvider(config.provider)
        case AwsSqsConfig():
            require("aws", "aiobotocore", (3, 0))
            from posthouse.client.sqs import SqsProvider

            return SqsProvider(config.provider)
        case InMemoryConfig():
            from posthouse.client.memory import InMemoryProvider

            return InMemoryProvider(config.provider)
