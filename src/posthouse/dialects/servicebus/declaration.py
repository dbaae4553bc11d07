"""Azure Service Bus, over AMQP and HTTP, and LocalZure's API, as the server knows them."""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from posthouse.broker.access import ROOT
from posthouse.dialects.dialect import (
    Dialect,
    FromFile,
    Host,
    HttpPath,
    Precedence,
    Reached,
    WebSocket,
    Wire,
)
from posthouse.dialects.servicebus import WEBSOCKET_NAME, WEBSOCKET_PATH
from posthouse.dialects.settings import as_flag, count, one_of, setting, some_size

if TYPE_CHECKING:
    from posthouse.dialects.connections import ConnectionInfo
    from posthouse.dialects.http import Answer, Request
    from posthouse.dialects.servicebus.answering import Web
    from posthouse.dialects.servicebus.credentials import Credentials
    from posthouse.dialects.servicebus.localzure.service import Service
    from posthouse.dialects.servicebus.peer import Peer, Peers

AMQP_PORT = 5672
NAME = "Azure Service Bus over HTTP"
LOCALZURE = b"servicebus"  # the first part of its paths
AMQP_TLS = b"AMQP\2\1\0\0"  # what is spoken here instead (part 5, section 5.2.1)


@dataclass(frozen=True)
class ServiceBusSettings:
    servicebus_tier: str | None = setting(
        None, one_of("standard", "premium"), "the tier of Azure Service Bus whose limits apply;"
        " default: standard with --dev, else all that either tier has", "WORD",
    )  # fmt: skip
    servicebus_message_size: int | None = setting(
        None, some_size, "of one message that a Service Bus client sends, unless the queue says"
        " otherwise; 256K in the standard tier, else 1M", "SIZE",
    )  # fmt: skip
    servicebus_header_size: int = setting(
        16 << 10, some_size, "of all headers of an HTTP answer that tells of a Service Bus message;"
        " one with more properties is received over AMQP", "SIZE",
    )  # fmt: skip
    servicebus_strict: bool = setting(
        False, as_flag, "answer Service Bus clients as the cloud does where we would do otherwise"
    )
    servicebus_exact: bool = setting(
        False, as_flag, "tell Service Bus clients of a missing entity as the cloud does: they are"
        " not authorized",
    )  # fmt: skip
    servicebus_namespace: str = setting(
        "default", one_of("default", "host", "key"), "what names the namespace of a Service Bus"
        " client: nothing, the first label of the host, or the key's name", "WORD",
    )  # fmt: skip
    localzure_message_size: int = setting(
        256 << 10, some_size, "of one message that is sent over LocalZure's API", "SIZE"
    )
    localzure_entities: int = setting(
        1_000, count(1, 1_000_000), "queues, and as many topics, that its API makes", "N"
    )


class ServiceBus:
    """The state that connections and requests share; each part is made when it is first needed."""

    def __init__(self, host: Host, settings: ServiceBusSettings) -> None:
        self._host = host
        self._settings = settings

    @cached_property
    def _credentials(self) -> "Credentials":
        from posthouse.dialects.servicebus.credentials import Credentials, Settings
        from posthouse.dialects.servicebus.tiers import BOTH, TIERS

        host, given = self._host, self._settings
        tier = TIERS[given.servicebus_tier or ("standard" if host.dev else None)]
        size = given.servicebus_message_size
        settings = Settings(
            host.namespace, size or tier.message_bytes, size or BOTH.message_bytes,
            given.servicebus_strict, given.servicebus_namespace, host.auto_create,
            given.servicebus_header_size, host.dev, given.servicebus_exact, tier, host.advertised,
        )  # fmt: skip
        return Credentials(host, host.guard, settings)

    def make_peer(self, info: "ConnectionInfo") -> "Peer":
        return self._peers.make(info)

    @cached_property
    def _peers(self) -> "Peers":
        """Makes the peers of AMQP connections."""
        from posthouse.dialects.servicebus.peer import Peers

        return Peers(self._credentials)

    def answer(self, request: "Request") -> "Awaitable[Answer]":
        return self._web.answer(request)

    @cached_property
    def _web(self) -> "Web":
        """Answers requests over HTTP."""
        from posthouse.dialects.servicebus.answering import Web

        return Web(self._credentials)

    def answer_localzure(self, request: "Request") -> "Awaitable[Answer]":
        return self._localzure.answer(request)

    @cached_property
    def _localzure(self) -> "Service":
        from posthouse.dialects.servicebus.localzure.call import Limits
        from posthouse.dialects.servicebus.localzure.service import Service

        given = self._settings
        limits = Limits(given.localzure_message_size, given.localzure_entities)
        return Service(self._credentials, limits)


def _read_file(content: Mapping[str, object], namespace: str) -> FromFile:
    """The file of Microsoft's emulator, in which nothing is ours. Raises ValueError."""
    if "UserConfig" not in content:
        return FromFile(content)
    from posthouse.dialects.servicebus.emulator import read_emulator

    return read_emulator(content["UserConfig"], namespace)


def is_amqp(data: bytes) -> bool | None:
    return True if data.startswith(b"AMQP") else (None if b"AMQP".startswith(data) else False)


def is_service_bus(request: "Request") -> bool:
    headers = request.headers
    return request.parts[0] != LOCALZURE and (
        headers.get(b"authorization", b"").startswith(b"SharedAccessSignature")
        or b"brokerproperties" in headers
        or "api-version" in request.query
    )


def is_localzure(request: "Request") -> bool:
    return request.parts[0] == LOCALZURE


def is_nobody_elses(request: "Request") -> bool:
    """Whether no other dialect takes a request, and it is not for the first page."""
    return request.parts[0] not in (b"", b"favicon.ico", b"robots.txt")


def _demand_tls(_: bytes) -> bytes:
    return AMQP_TLS


def _welcome(reached: Reached) -> tuple[str, str]:
    port = reached.port(AMQP_PORT)
    where = reached.host if port == AMQP_PORT else f"{reached.host}:{port}"
    return "Azure", (
        f"Endpoint=sb://{where};SharedAccessKeyName={ROOT};SharedAccessKey={reached.key};"
        "UseDevelopmentEmulator=true;"
    )


declaration = Dialect(
    "servicebus",
    ServiceBusSettings,
    ServiceBus,
    Wire(
        "amqp", is_amqp, ServiceBus.make_peer, _demand_tls,
        WebSocket(WEBSOCKET_PATH, WEBSOCKET_NAME, ServiceBus.make_peer),
    ),
    paths=(
        HttpPath(NAME, is_service_bus, ServiceBus.answer),
        HttpPath("LocalZure's own API", is_localzure, ServiceBus.answer_localzure),
        HttpPath(NAME, is_nobody_elses, ServiceBus.answer, Precedence.REST),
    ),
    ports=(AMQP_PORT, 5671, 5300, 7071),  # AMQP, with TLS, the emulator's administration, LocalZure
    welcome=_welcome,
    warm=(
        "posthouse.dialects.servicebus.peer",
        "posthouse.dialects.servicebus.answering",
        "posthouse.dialects.servicebus.localzure.service",
    ),
    read_file=_read_file,
)  # fmt: skip
