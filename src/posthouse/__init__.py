"""Posthouse: one message broker that every queue client already knows how to talk to.

The client is here: `posthouse.create_client(...)`. A name is imported when it is first asked for,
so that `import posthouse` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posthouse.client.admin import Admin, Counts, QueueSettings, Rule
    from posthouse.client.client import QueueClient, Receiver, SessionClient, Transaction
    from posthouse.client.codecs import register_codec
    from posthouse.client.compression import Compression
    from posthouse.client.config import (
        AwsSqsConfig,
        AzureServiceBusConfig,
        InMemoryConfig,
        PosthouseConfig,
        QueueConfig,
    )
    from posthouse.client.create import create_client, create_test_client
    from posthouse.client.encryption import (
        Encryption,
        EncryptionError,
        InvalidEnvelope,
        KeyNotFound,
        MessageExpired,
        NonceReused,
        NotAuthentic,
        PlaintextRefused,
        UnsupportedVersion,
    )
    from posthouse.client.errors import (
        AuthenticationFailed,
        BatchTooLarge,
        CircuitOpen,
        ConfigurationError,
        ConnectionFailed,
        MessageNotFound,
        MessageTooLarge,
        PartialFailure,
        PermissionDenied,
        ProviderError,
        QueueError,
        QueueNotFound,
        SerializationError,
        SessionLocked,
        SessionLockLost,
        SessionNotFound,
        Throttled,
        Timeout,
        Unsupported,
        ValidationError,
    )
    from posthouse.client.handling import CallNext, Context, Outcome, Reject, Requeue
    from posthouse.client.messages import Message, ReceiptHandle, ReceivedMessage
    from posthouse.client.names import MessageId, QueueName, SessionId, SubscriptionName
    from posthouse.client.provider import Capabilities, ProviderType, SessionSupport
    from posthouse.client.retry import (
        CircuitBreaker,
        ExponentialRetry,
        FixedRetry,
        LinearRetry,
        NoRetry,
        RetryByError,
        RetryPolicy,
    )
    from posthouse.client.secret import Secret
    from posthouse.client.sync import (
        SyncAdmin,
        SyncQueueClient,
        SyncReceiver,
        SyncSessionClient,
        SyncTransaction,
        create_sync_client,
    )
    from posthouse.client.telemetry import processing
    from posthouse.client.worker import Worker

_NAMES = {
    "admin": ("Admin", "Counts", "QueueSettings", "Rule"),
    "client": ("QueueClient", "Receiver", "SessionClient", "Transaction"),
    "codecs": ("register_codec",),
    "compression": ("Compression",),
    "config": (
        "AwsSqsConfig", "AzureServiceBusConfig", "InMemoryConfig", "PosthouseConfig", "QueueConfig",
    ),
    "create": ("create_client", "create_test_client"),
    "encryption": (
        "Encryption", "EncryptionError", "InvalidEnvelope", "KeyNotFound", "MessageExpired",
        "NonceReused", "NotAuthentic", "PlaintextRefused", "UnsupportedVersion",
    ),
    "errors": (
        "AuthenticationFailed", "BatchTooLarge", "CircuitOpen", "ConfigurationError",
        "ConnectionFailed", "MessageNotFound", "MessageTooLarge", "PartialFailure",
        "PermissionDenied", "ProviderError", "QueueError", "QueueNotFound", "SerializationError",
        "SessionLocked", "SessionLockLost", "SessionNotFound", "Throttled", "Timeout",
        "Unsupported", "ValidationError",
    ),
    "handling": ("CallNext", "Context", "Outcome", "Reject", "Requeue"),
    "messages": ("Message", "ReceiptHandle", "ReceivedMessage"),
    "names": ("MessageId", "QueueName", "SessionId", "SubscriptionName"),
    "provider": ("Capabilities", "ProviderType", "SessionSupport"),
    "retry": (
        "CircuitBreaker", "ExponentialRetry", "FixedRetry", "LinearRetry", "NoRetry",
        "RetryByError", "RetryPolicy",
    ),
    "secret": ("Secret",),
    "sync": (
        "SyncAdmin", "SyncQueueClient", "SyncReceiver", "SyncSessionClient", "SyncTransaction",
        "create_sync_client",
    ),
    "telemetry": ("processing",),
    "worker": ("Worker",),
}  # fmt: skip
_WHERE = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "Admin", "AuthenticationFailed", "AwsSqsConfig", "AzureServiceBusConfig", "BatchTooLarge",
    "CallNext", "Capabilities", "CircuitBreaker", "CircuitOpen", "Compression",
    "ConfigurationError", "ConnectionFailed", "Context", "Counts", "Encryption", "EncryptionError",
    "ExponentialRetry", "FixedRetry", "InMemoryConfig", "InvalidEnvelope", "KeyNotFound",
    "LinearRetry", "Message", "MessageExpired", "MessageId", "MessageNotFound", "MessageTooLarge",
    "NoRetry", "NonceReused", "NotAuthentic", "Outcome", "PartialFailure", "PermissionDenied",
    "PlaintextRefused", "PosthouseConfig", "ProviderError", "ProviderType", "QueueClient",
    "QueueConfig", "QueueError", "QueueName", "QueueNotFound", "QueueSettings", "ReceiptHandle",
    "ReceivedMessage", "Receiver", "Reject", "Requeue", "RetryByError", "RetryPolicy", "Rule",
    "Secret", "SerializationError", "SessionClient", "SessionId", "SessionLockLost",
    "SessionLocked", "SessionNotFound", "SessionSupport", "SubscriptionName", "SyncAdmin",
    "SyncQueueClient", "SyncReceiver", "SyncSessionClient", "SyncTransaction", "Throttled",
    "Timeout", "Transaction", "Unsupported", "UnsupportedVersion", "ValidationError", "Worker",
    "create_client", "create_sync_client", "create_test_client", "processing", "register_codec",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module 'posthouse' has no attribute {name!r}")
    found = getattr(import_module(f"posthouse.client.{module}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
