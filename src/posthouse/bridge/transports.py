"""Which transport a URL names. NATS's is imported only for a URL of its own."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from posthouse.bridge.errors import ConfigurationError
from posthouse.bridge.queue_words import DELIVERIES_MAX
from posthouse.bridge.queues import QueueTransport
from posthouse.bridge.transport import Transport
from posthouse.client.client import QueueClient
from posthouse.client.config import AwsSqsConfig, InMemoryConfig, QueueConfig
from posthouse.client.create import create_client
from posthouse.client.errors import ConfigurationError as ClientConfigurationError

NATS_SCHEMES = ("nats", "nats+tls", "tls")
QUEUE_SCHEMES = ("posthouse", "posthouses", "sb", "sqs", "memory")
MEMORY_MESSAGES_MAX = 1_000_000


def transport_of(
    url: str | Sequence[str] | QueueClient,
    *,
    stream: str,
    dead_letters: str,
    sessions: bool | None = None,
    **options: Any,
) -> Transport:
    """Returns the transport that a URL names, not yet open. Raises ConfigurationError.

    `url` is `nats://`, `nats+tls://` or `tls://`, also several with commas or as a list;
    `posthouse://`, `sb://`, `sqs://`, an Azure connection string, or a client that stays yours.
    `memory://NAME` is one broker for all on a loop that name it, `memory://` one of its own.
    `stream` and `dead_letters`, a subject, are what NATS needs; `sessions` is what queues take, to
    keep keys in order; `options` are those of `JetStreamTransport`.
    """
    if isinstance(url, QueueClient):
        _refuse(options)
        return QueueTransport(url, sessions=sessions, borrowed=True)
    urls = [url] if isinstance(url, str) else list(url)
    scheme = urls[0].partition("://")[0].strip().lower() if urls else ""
    if scheme in NATS_SCHEMES:
        if sessions is not None:
            raise ConfigurationError("sessions are of queues; a NATS stream has none.")
        return _jetstream(urls, stream, dead_letters, options)
    if len(urls) != 1 or (scheme not in QUEUE_SCHEMES and not urls[0].startswith("Endpoint=")):
        known = ", ".join(f"{each}://" for each in (*NATS_SCHEMES, *QUEUE_SCHEMES))
        raise ConfigurationError(f"The URL of a transport begins with one of {known}.")
    _refuse(options)
    try:
        config = QueueConfig.from_url(urls[0])
    except ClientConfigurationError as error:
        raise ConfigurationError(str(error)) from None
    provider = config.provider
    if isinstance(provider, InMemoryConfig):
        return _memory(urls[0], config, provider, sessions)
    if isinstance(provider, AwsSqsConfig) and sessions is None:
        sessions = provider.use_fifo_queues
    return QueueTransport(create_client(config), sessions=sessions, place=urls[0])


def _refuse(options: dict[str, Any]) -> None:
    if options:
        raise ConfigurationError(f"{', '.join(options)}: only a NATS transport has this.")


def _jetstream(
    urls: list[str], stream: str, dead_letters: str, options: dict[str, Any]
) -> Transport:
    try:
        from posthouse.bridge.jetstream.transport import JetStreamTransport
    except ModuleNotFoundError as missing:
        if missing.name != "nats":
            raise
        raise ConfigurationError(
            "NATS needs a package that is not installed: pip install 'posthouse[nats]'."
        ) from None
    return JetStreamTransport(urls, stream=stream, dead_letters=dead_letters, **options)


@dataclass
class _Shared:
    """A broker in memory, and how many have it open."""

    client: QueueClient
    users: int = 0


_shared: dict[tuple[str, int], _Shared] = {}


class _SharedMemory(QueueTransport):
    """A transport over the broker in memory that all of a name on one loop have."""

    def __init__(self, name: str, config: QueueConfig, sessions: bool | None) -> None:
        self._name, self._config = name, config
        self._where: tuple[str, int] | None = None
        super().__init__(
            create_client(config), sessions=sessions, borrowed=True, declares=True,
            place=f"memory://{name}",
        )  # fmt: skip

    async def open(self) -> None:
        if self._where is None:
            self._where = self._name, id(asyncio.get_running_loop())
            shared = _shared.setdefault(self._where, _Shared(self._client))
            shared.users += 1
            self._client = shared.client
        await super().open()

    async def close(self) -> None:
        where, self._where = self._where, None
        await super().close()
        if where is not None:
            shared = _shared[where]
            shared.users -= 1
            if not shared.users:
                del _shared[where]
                await shared.client.close()


def _memory(
    url: str, config: QueueConfig, provider: InMemoryConfig, sessions: bool | None
) -> Transport:
    own = replace(
        provider, max_delivery_count=DELIVERIES_MAX, duplicate_detection=True, auto_create=False,
        max_queue_size=max(provider.max_queue_size, MEMORY_MESSAGES_MAX),
    )  # fmt: skip
    config = replace(config, provider=own)
    name = urlsplit(url).netloc
    if name:
        return _SharedMemory(name, config, sessions)
    return QueueTransport(create_client(config), sessions=sessions, declares=True)
