"""The settings of the dialect."""

import re
from dataclasses import dataclass

from posthouse.dialects.settings import as_flag, setting

ACCOUNT = "000000000000"
REGION = "us-east-1"


def _account(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):  # as YAML reads it
        value = f"{value:012}"
    if not isinstance(value, str) or not re.fullmatch(r"\d{12}", value, re.ASCII):
        raise ValueError("must be 12 digits")
    return value


def _region(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[a-z0-9-]{1,40}", value, re.ASCII):
        raise ValueError("must be a region such as eu-central-1")
    return value


@dataclass(frozen=True)
class SqsSettings:
    sqs_account: str = setting(
        ACCOUNT, _account, "the account that SQS clients are told for the default namespace", "N"
    )
    sqs_region: str = setting(
        REGION, _region, "the region in the ARNs that unsigned SQS clients are told", "NAME"
    )
    sqs_strict: bool = setting(
        False, as_flag, "make SQS clients wait as the cloud does: 60 s before a queue is purged"
        " again, or created again after it was deleted",
    )  # fmt: skip
    sqs_keep_undelivered: bool = setting(
        False, as_flag, "leave messages hidden, and counted as received, when an SQS client went"
        " away before it was answered, as the cloud does; else they go back at once",
    )  # fmt: skip
