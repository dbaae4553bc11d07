"""Who keeps the queues in a test: each provider with what it needs, and a way to let time pass."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any

from moto.server import ThreadedMotoServer

from posthouse.client.client import QueueClient
from posthouse.client.config import (
    AwsSqsConfig,
    AzureServiceBusConfig,
    InMemoryConfig,
    PosthouseConfig,
    ProviderConfig,
    QueueConfig,
)
from posthouse.client.create import create_client
from posthouse.client.memory import InMemoryProvider
from posthouse.client.provider import ProviderType
from posthouse.client.retry import NoRetry, RetryPolicy
from posthouse.client.sqs import SqsProvider
from tests.client.proxy import Proxy
from tests.dialects.servicebus.trust import trusting
from tests.server.running import Running, running

NOBODY = 1  # a port
_numbers = count(1)


def unused() -> str:
    return f"q{next(_numbers)}"


class Rig:
    """Queues of one provider. `sessions` is the client for queues with sessions."""

    type: ProviderType
    lock_s = 30.0  # of a queue whose locks expire in a test
    secured = False  # there are keys, and rights
    remote = False  # there is a connection that can be lost

    def __init__(self) -> None:
        self._clients: list[QueueClient] = []
        self.client = self.made(self.config())
        self.sessions = self.client

    def config(self, **changes: Any) -> ProviderConfig:
        raise NotImplementedError

    def made(
        self, config: ProviderConfig, retry: RetryPolicy | None = None, **settings: Any
    ) -> QueueClient:
        """It tries once, unless told: what a provider does is seen as it is."""
        chosen = QueueConfig(config, default_timeout=5.0, **settings)
        client = create_client(chosen, retry=retry or NoRetry())
        self._clients.append(client)
        return client

    def other(self) -> QueueClient:
        """Another client for the same queues with sessions."""
        return self.made(self.config())

    async def queue(
        self,
        *,
        sessions: bool = False,
        lock_s: float = 30.0,
        max_delivery: int = 10,
        duplicates: bool = False,
        dead_letters: bool = True,
    ) -> str:
        raise NotImplementedError

    async def pass_time(self, seconds: float) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._clients))


class MemoryRig(Rig):
    type = ProviderType.IN_MEMORY

    def config(self, **changes: Any) -> ProviderConfig:
        return InMemoryConfig(virtual_clock=True)

    @property
    def provider(self) -> InMemoryProvider:
        found = self.client._provider
        assert isinstance(found, InMemoryProvider)
        return found

    def other(self) -> QueueClient:
        return self.client  # there is one broker in one client

    async def queue(
        self,
        *,
        sessions: bool = False,
        lock_s: float = 30.0,
        max_delivery: int = 10,
        duplicates: bool = False,
        dead_letters: bool = True,
    ) -> str:
        name = unused()
        await self.provider.create_queue(
            name, sessions=sessions, lock_ms=round(lock_s * 1_000), max_delivery=max_delivery,
            duplicate_detection=duplicates,
        )  # fmt: skip
        return name

    async def pass_time(self, seconds: float) -> None:
        await self.provider.advance(seconds)


KEY_NAME, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"


class ServedRig(Rig):
    """A Posthouse server, whatever the client that talks to it."""

    secured = remote = True

    def __init__(self, broker: Running) -> None:
        self.broker = broker
        super().__init__()

    def principal(self, name: str, queue: str, *rights: str) -> str:
        """Its key."""
        grants = [{"rights": list(rights), "namespace": "default", "entity": queue}]
        reply = self.broker.call("POST", "/api/v1/principals", {"name": name, "grants": grants})
        assert reply.status == 201, reply
        key: str = reply.json["key"]
        return key

    async def queue(
        self,
        *,
        sessions: bool = False,
        lock_s: float = 30.0,
        max_delivery: int = 10,
        duplicates: bool = False,
        dead_letters: bool = True,
        **limits: int,
    ) -> str:
        name = unused()
        form = {
            "lock_ms": round(lock_s * 1_000), "max_delivery": max_delivery,
            "duplicate_detection": duplicates, "requires_session": sessions,
            "grouping": "session" if sessions else "none", **limits,
        }  # fmt: skip
        reply = await asyncio.to_thread(self.broker.queue, "PUT", name, form)
        assert reply.status == 201, reply
        return name

    async def pass_time(self, seconds: float) -> None:
        form = {"advance_ms": round(seconds * 1_000)}
        path = "/api/v1/namespaces/default/clock"
        reply = await asyncio.to_thread(self.broker.call, "POST", path, form)
        assert reply.status == 200, reply


class AzureRig(ServedRig):
    """Through Azure's SDK, whose administration is over TLS always."""

    type = ProviderType.AZURE_SERVICE_BUS

    def __init__(self, broker: Running) -> None:
        self._ca_file = trusting(broker)["SSL_CERT_FILE"]
        super().__init__(broker)

    def config(self, **changes: Any) -> ProviderConfig:
        port = changes.get("port", self.broker.port)
        name, key = changes.get("key_name", KEY_NAME), changes.get("key", KEY)
        return AzureServiceBusConfig(
            f"Endpoint=sb://localhost:{port};SharedAccessKeyName={name};"
            f"SharedAccessKey={key};UseDevelopmentEmulator=true",
            ca_file=self._ca_file,
        )


class PosthouseRig(ServedRig):
    """Through the client's own provider."""

    type = ProviderType.POSTHOUSE

    def config(self, **changes: Any) -> ProviderConfig:
        return PosthouseConfig(
            "localhost", changes.get("port", self.broker.port), changes.get("key_name", KEY_NAME),
            changes.get("key", KEY),
        )  # fmt: skip


class SqsRig(Rig):
    """Moto. It has no rights, and no clock that could be moved."""

    type = ProviderType.AWS_SQS
    lock_s = 1.0
    remote = True

    def __init__(self, port: int) -> None:
        self.port = port
        super().__init__()
        self.sessions = self.other()

    def config(self, **changes: Any) -> ProviderConfig:
        port = changes.get("port", self.port)
        return AwsSqsConfig(
            access_key_id="key", secret_access_key="secret",
            endpoint_url=f"http://127.0.0.1:{port}", use_fifo_queues=changes.get("fifo", False),
        )  # fmt: skip

    def other(self) -> QueueClient:
        return self.made(self.config(fifo=True))

    async def queue(
        self,
        *,
        sessions: bool = False,
        lock_s: float = 30.0,
        max_delivery: int = 10,
        duplicates: bool = False,
        dead_letters: bool = True,
        **limits: int,
    ) -> str:
        name, end = unused(), ".fifo" if sessions or duplicates else ""
        kind = {"FifoQueue": "true"} if end else {}
        found = self.client._provider
        assert isinstance(found, SqsProvider)
        sqs = await found._open()
        own = {"VisibilityTimeout": str(round(lock_s)), **kind}
        own |= {limit: str(most) for limit, most in limits.items()}
        if dead_letters:
            dead = await sqs.create_queue(QueueName=f"{name}-dead{end}", Attributes=own)
            about = await sqs.get_queue_attributes(
                QueueUrl=dead["QueueUrl"], AttributeNames=["QueueArn"]
            )
            arn = about["Attributes"]["QueueArn"]
            policy = {"deadLetterTargetArn": arn, "maxReceiveCount": max_delivery}
            own["RedrivePolicy"] = json.dumps(policy)
        await sqs.create_queue(QueueName=f"{name}{end}", Attributes=own)
        return name

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # slept: its clock is the machine's


class ServedSqsRig(SqsRig):
    """The same provider, with a Posthouse server in place of Moto."""

    def __init__(self, broker: Running) -> None:
        super().__init__(broker.port)


@asynccontextmanager
async def proxied(rig: Rig) -> AsyncIterator[Proxy]:
    """Another way to the same queues, which can be cut."""
    assert isinstance(rig, ServedRig | SqsRig)
    port = rig.broker.port if isinstance(rig, ServedRig) else rig.port
    proxy = await Proxy.open(port)
    try:
        yield proxy
    finally:
        await proxy.close()


SERVED_SQS = "aws-sqs on posthouse"  # beside the providers: one of them, with another server


@contextmanager
def opened(kind: ProviderType | str, *flags: str) -> Iterator[tuple[Rig, asyncio.Runner]]:
    """With a loop of its own, so that one client serves all tests; flags are a broker's."""
    with asyncio.Runner() as runner:

        async def use(make: Any, *given: Any) -> Rig:
            made: Rig = make(*given)
            return made

        def held(rig: Rig) -> Iterator[tuple[Rig, asyncio.Runner]]:
            try:
                yield rig, runner
            finally:
                runner.run(rig.close())

        match kind:
            case ProviderType.IN_MEMORY:
                yield from held(runner.run(use(MemoryRig)))
            case ProviderType.POSTHOUSE:
                with running("--memory", "--dev", *flags) as broker:
                    yield from held(runner.run(use(PosthouseRig, broker)))
            case ProviderType.AZURE_SERVICE_BUS:
                with (
                    TemporaryDirectory() as folder,
                    running(
                        "--data", folder, "--dev", "--servicebus-tier", "premium", *flags
                    ) as broker,
                ):
                    yield from held(runner.run(use(AzureRig, broker)))
            case "aws-sqs on posthouse":
                with running("--memory", "--dev", *flags) as broker:
                    yield from held(runner.run(use(ServedSqsRig, broker)))
            case _:
                logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
                server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
                server.start()
                try:
                    yield from held(runner.run(use(SqsRig, server.get_host_and_port()[1])))
                finally:
                    server.stop()
