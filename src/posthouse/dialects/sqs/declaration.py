"""Amazon SQS, as the server knows it."""

import re
from collections.abc import Awaitable
from functools import cached_property
from typing import TYPE_CHECKING

from posthouse.dialects.dialect import Dialect, Host, HttpPath, Precedence, Reached
from posthouse.dialects.sqs.settings import SqsSettings

if TYPE_CHECKING:
    from posthouse.dialects.http import Answer, Request
    from posthouse.dialects.sqs.web import Web

PORT = 4566
_ALGORITHM = b"AWS4-HMAC-SHA256"
_FORM = b"application/x-www-form-urlencoded"
_QUEUE_PATH = re.compile(rb"/?|/\d{12}/[^/]+/?|/queue/.*")


class Sqs:
    """The state that all requests share; it is made when it is first needed."""

    def __init__(self, host: Host, settings: SqsSettings) -> None:
        self._host = host
        self._settings = settings

    def answer(self, request: "Request") -> "Awaitable[Answer]":
        return self._web.answer(request)

    @cached_property
    def _web(self) -> "Web":
        from posthouse.dialects.sqs.call import Service
        from posthouse.dialects.sqs.web import Web

        return Web(Service(self._host, self._settings))


def is_sqs(request: "Request") -> bool:
    """AWS's headers, its parameters, or a form where no other dialect takes one."""
    headers, query = request.headers, request.query
    kind = headers.get(b"content-type", b"").lower()
    return (
        headers.get(b"x-amz-target", b"").startswith(b"AmazonSQS.")
        or headers.get(b"authorization", b"").startswith(_ALGORITHM)
        or "Action" in query
        or "X-Amz-Algorithm" in query
        or "X-Amz-Credential" in query
        or kind.startswith(b"application/x-amz-json-1.")
        or (
            request.method == "POST"
            and kind.startswith(_FORM)
            and _QUEUE_PATH.fullmatch(request.raw_path) is not None
        )
    )


def _welcome(reached: Reached) -> tuple[str, str]:
    url = f"http://{reached.host}:{reached.port(PORT)}"
    return "AWS", "\n".join((
        f"AWS_ENDPOINT_URL_SQS={url}",
        f'boto3.client("sqs", endpoint_url="{url}", region_name="us-east-1")',
        f"aws --endpoint-url {url} --region us-east-1 sqs list-queues",
    ))  # fmt: skip


declaration = Dialect(
    "sqs",
    SqsSettings,
    Sqs,
    paths=(HttpPath("SQS", is_sqs, Sqs.answer, Precedence.FIRST),),
    ports=(PORT,),
    welcome=_welcome,
    warm=("posthouse.dialects.sqs.web",),
)
