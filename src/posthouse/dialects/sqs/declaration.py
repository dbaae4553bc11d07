"""Amazon SQS, as the server knows it: recognised, so that its clients are told the truth."""

from typing import TYPE_CHECKING

from posthouse.dialects.dialect import Dialect, Host, HttpPath, Precedence, Reached
from posthouse.dialects.settings import NoSettings

if TYPE_CHECKING:
    from posthouse.dialects.http import Request

PORT = 4566


class Sqs:
    """Nothing yet."""

    def __init__(self, host: Host, settings: NoSettings) -> None:
        pass


def is_sqs(request: "Request") -> bool:
    """AWS's headers, or the name of an action."""
    headers = request.headers
    return (
        headers.get(b"authorization", b"").startswith(b"AWS4-HMAC-SHA256")
        or headers.get(b"x-amz-target", b"").startswith(b"AmazonSQS")
        or "Action" in request.query
    )


def _welcome(reached: Reached) -> tuple[str, str]:
    return "AWS", f"AWS_ENDPOINT_URL_SQS=http://{reached.host}:{reached.port(PORT)}"


declaration = Dialect(
    "sqs",
    NoSettings,
    Sqs,
    paths=(HttpPath("SQS", is_sqs, None, Precedence.FIRST),),
    ports=(PORT,),
    welcome=_welcome,
)
