"""Errors of Azure's and of Amazon's, each in the client's words; and packages that are missing."""

import inspect

import pytest
from azure.servicebus import exceptions as azure
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError

from posthouse.client import azure_words, packages, sqs_words
from posthouse.client.errors import (
    AuthenticationFailed,
    ConfigurationError,
    ConnectionFailed,
    MessageNotFound,
    MessageTooLarge,
    PermissionDenied,
    ProviderError,
    QueueError,
    QueueNotFound,
    SessionLocked,
    SessionLockLost,
    Throttled,
    Timeout,
    Unsupported,
    ValidationError,
)
from posthouse.client.messages import Message
from posthouse.client.packages import require

AZURE: dict[type[Exception], type[QueueError]] = {
    azure.ServiceBusError: ProviderError,
    azure.ServiceBusConnectionError: ConnectionFailed,
    azure.ServiceBusCommunicationError: ConnectionFailed,
    azure.ServiceBusAuthenticationError: AuthenticationFailed,
    azure.ServiceBusAuthorizationError: PermissionDenied,
    azure.OperationTimeoutError: Timeout,
    azure.MessageSizeExceededError: MessageTooLarge,
    azure.MessageAlreadySettled: MessageNotFound,
    azure.MessageLockLostError: MessageNotFound,
    azure.MessageNotFoundError: MessageNotFound,
    azure.SessionLockLostError: SessionLockLost,
    azure.SessionCannotBeLockedError: SessionLocked,
    azure.MessagingEntityNotFoundError: QueueNotFound,
    azure.MessagingEntityDisabledError: ProviderError,
    azure.MessagingEntityAlreadyExistsError: ProviderError,
    azure.ServiceBusQuotaExceededError: ProviderError,
    azure.ServiceBusServerBusyError: Throttled,
    azure.AutoLockRenewFailed: ProviderError,
    azure.AutoLockRenewTimeout: ProviderError,
}


def test_every_error_of_azure_has_a_name_here() -> None:
    theirs = {
        each
        for _, each in inspect.getmembers(azure, inspect.isclass)
        if each.__module__ == azure.__name__
    }
    assert theirs == set(AZURE)
    assert theirs <= set(azure_words.ERRORS)


@pytest.mark.parametrize("kind", AZURE, ids=lambda kind: kind.__name__)
def test_an_error_of_azure(kind: type[Exception]) -> None:
    plain = (azure.ServiceBusError, azure.AutoLockRenewFailed, azure.AutoLockRenewTimeout)
    error = kind("told") if kind in plain else kind()
    doing = azure_words.Doing("send", "orders", "receipt", "session", 2, 1)
    found = azure_words.error_of(error, doing)
    assert type(found) is AZURE[kind]
    if isinstance(found, ProviderError):
        assert found.code == kind.__name__


SQS = {
    "AWS.SimpleQueueService.NonExistentQueue": QueueNotFound,
    "QueueDoesNotExist": QueueNotFound,
    "ReceiptHandleIsInvalid": MessageNotFound,
    "ExpiredToken": AuthenticationFailed,
    "InvalidClientTokenId": AuthenticationFailed,
    "AccessDenied": PermissionDenied,
    "RequestThrottled": Throttled,
    "InvalidMessageContents": ValidationError,
    "InternalError": ProviderError,
}


@pytest.mark.parametrize("code", SQS)
def test_an_error_of_sqs(code: str) -> None:
    answer = {"Error": {"Code": code, "Message": "told"}, "ResponseMetadata": {}}
    doing = sqs_words.Doing("send", "orders")
    found = sqs_words.error_of(ClientError(answer, "SendMessage"), doing)
    assert type(found) is SQS[code]


def test_what_fails_before_sqs_answers() -> None:
    doing = sqs_words.Doing("send")
    lost = EndpointConnectionError(endpoint_url="http://x")
    assert type(sqs_words.error_of(lost, doing)) is ConnectionFailed
    assert type(sqs_words.error_of(NoCredentialsError(), doing)) is AuthenticationFailed


def test_what_sqs_cannot_keep_is_refused() -> None:
    with pytest.raises(Unsupported):
        sqs_words.entry_of(Message(b"x").with_ttl(5), fifo=False)
    with pytest.raises(MessageTooLarge):
        sqs_words.entry_of(Message(b"\0" * 200_000), fifo=False)  # which is more as base64


def test_a_group_of_sqs_is_always_the_same_for_a_session() -> None:
    entries = [
        sqs_words.entry_of(Message(b"x").with_session_id("with space"), fifo=True) for _ in "ab"
    ]
    assert len({each["MessageGroupId"] for each in entries}) == 1
    assert " " not in entries[0]["MessageGroupId"]
    assert len({each["MessageDeduplicationId"] for each in entries}) == 2


def test_a_package_that_is_missing_or_old_is_told_early() -> None:
    with pytest.raises(ConfigurationError, match=r"pip install 'posthouse\[azure\]'"):
        require("azure", "there-is-no-such-package", (1, 0))
    with pytest.raises(ConfigurationError, match=r"999\.0 or newer"):
        require("azure", "azure-servicebus", (999, 0))
    require("azure", "azure-servicebus", (7, 15))


def test_a_package_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    require("azure", "azure-servicebus", (7, 15))
    monkeypatch.setattr(packages, "version", lambda package: pytest.fail("again"))
    require("azure", "azure-servicebus", (7, 15))
