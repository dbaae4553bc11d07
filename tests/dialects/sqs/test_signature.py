"""Signatures, as AWS's own signer makes them."""

import hmac
from base64 import b64encode
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import format_datetime
from hashlib import sha256
from typing import Any
from urllib.parse import quote

import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from posthouse.dialects.sqs import signature
from posthouse.dialects.sqs.codec_query import parameters
from posthouse.dialects.sqs.errors import BAD_SIGNATURE, INCOMPLETE, Failed
from posthouse.dialects.sqs.signature import Asked, SigningKeys

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
HOST = "127.0.0.1:4566"


def signed(
    path: str = "/",
    query: str = "",
    body: bytes = b"",
    method: str = "POST",
    headers: dict[str, str] | None = None,
    *,
    in_query: bool = False,
    key: str = SECRET,
    token: str | None = None,
) -> Asked:
    """A request as botocore signs and sends it."""
    url = f"http://{HOST}{path}" + (f"?{query}" if query else "")
    request = AWSRequest(method, url, headers or {}, body)
    credentials = Credentials("AKIDEXAMPLE", key, token)
    signer = SigV4QueryAuth if in_query else SigV4Auth
    signer(credentials, "sqs", "eu-west-1").add_auth(request)
    sent = request.prepare()
    where, _, rest = sent.url.removeprefix(f"http://{HOST}").partition("?")
    given = [(name.encode(), _bytes(value)) for name, value in sent.headers.items()]
    return Asked(
        method, where.encode(), rest.encode(), [(b"Host", HOST.encode()), *given], body, False
    )


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def fits(asked: Asked, secret: str = SECRET) -> bool:
    headers = {name.lower(): value for name, value in asked.headers}
    query = parameters(asked.query)
    claim = signature.read(headers, query)
    signature.check_time(claim, claim.unix_time)
    signature.check_coverage(claim, headers)
    payload = signature.payload_hash(claim, asked, headers)
    return SigningKeys().fits(secret, claim, signature.string_to_sign(claim, asked, payload))


def why(asked: Asked) -> Failed:
    with pytest.raises(Failed) as raised:
        fits(asked)
    return raised.value


PATHS = [
    "/", "", "/000000000000/orders", "/000000000000/orders%2F$dead", "/a//b/./c/../d/", "/..",
    "/%7Euser/%C3%BC", "/a%20b/c+d", "/a;b=c,d", "/'()*!", "//x", "/a/..", "/%2e%2e/x", "/a:b@c",
]  # fmt: skip
QUERIES = [
    "", "Action=ListQueues", "b=2&a=1&b=1", "a", "a=", "=x", "a=b=c", "a=%20+%2B", "a=%2f%C3%BC",
    "A=1&a=1", "a=~-._", "x=%E2%82%AC&x=%00", "a=1&&b=2", "Action=SendMessage&MessageBody=%26%3D",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_a_path_is_signed_as_it_is_sent(path: str) -> None:
    asked = signed(path)
    assert fits(asked)
    assert not fits(asked._replace(path=asked.path + b"x"))


@pytest.mark.parametrize("query", [q for q in QUERIES if q not in ("a=%2f%C3%BC", "a=1&&b=2")])
def test_a_query_is_signed_in_its_order(query: str) -> None:
    asked = signed("/", query, method="GET")
    assert fits(asked)
    assert not fits(asked._replace(query=asked.query + b"&x=1"))


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Amz-Target": "AmazonSQS.SendMessage", "Content-Type": "application/x-amz-json-1.0"},
        {"X-Amz-Meta": "  a   b  c ", "x-amz-empty": ""},
        {"X-Amz-Content-SHA256": sha256(b"").hexdigest()},
    ],
)
def test_headers_are_signed_without_needless_spaces(headers: dict[str, str]) -> None:
    asked = signed(headers=headers)
    assert fits(asked)
    first = next(iter(headers)).encode()
    changed = [(n, v if n.lower() != first.lower() else b"y" + v) for n, v in asked.headers]
    if first != b"X-Amz-Content-SHA256":
        assert not fits(asked._replace(headers=changed))


@given(st.binary(max_size=200), st.text(max_size=40), st.booleans())
def test_every_body_and_every_value_is_signed(body: bytes, value: str, in_query: bool) -> None:
    query = f"Action=SendMessage&MessageBody={quote(value, safe='', errors='replace')}"
    given = b"" if in_query else body  # botocore makes parameters of it there
    asked = signed("/000000000000/q", query, given, in_query=in_query)
    assert fits(asked)
    assert not fits(asked._replace(body=given + b"x"))
    assert not fits(asked, SECRET + "x")


def test_a_url_that_is_signed_is_good_for_a_quarter_of_an_hour() -> None:
    asked = signed("/000000000000/q", "Action=ReceiveMessage", method="GET", in_query=True)
    assert fits(asked)
    claim = signature.read({}, parameters(asked.query))
    assert claim.expires == 3_600
    for late, good in ((899, True), (901, False), (-899, True), (-901, False)):
        if good:
            signature.check_time(claim, claim.unix_time + late)
        else:
            with pytest.raises(Failed) as raised:
                signature.check_time(claim, claim.unix_time + late)
            assert raised.value.kind is BAD_SIGNATURE


def test_a_session_token_is_signed_and_not_looked_at() -> None:
    assert fits(signed(token=b64encode(b"x" * 300).decode()))
    assert fits(signed(token="t/+=", in_query=True))


def test_a_date_will_do_where_aws_own_is_missing() -> None:
    asked = signed()
    date = dict(asked.headers)[b"X-Amz-Date"].decode()
    moment = datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    headers = [each for each in asked.headers if each[0] not in (b"X-Amz-Date", b"Authorization")]
    headers.append((b"Date", format_datetime(moment, usegmt=True).encode()))
    text = dict(asked.headers)[b"Authorization"].replace(b"host;x-amz-date", b"date;host")
    plain = asked._replace(headers=[*headers, (b"Authorization", text)])
    found = {name.lower(): value for name, value in plain.headers}
    claim = signature.read(found, {})
    assert claim.time == date
    payload = signature.payload_hash(claim, plain, found)
    made = signature.string_to_sign(claim, plain, payload)
    right = hmac.digest(SigningKeys().get(SECRET, claim.day, claim.region), made, "sha256").hex()
    assert SigningKeys().fits(SECRET, claim._replace(signature=right), made)


def changed(asked: Asked, old: bytes, new: bytes) -> Asked:
    headers = [(n, v.replace(old, new) if n == b"Authorization" else v) for n, v in asked.headers]
    return asked._replace(headers=headers)


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (b"AWS4-HMAC-SHA256 ", b"AWS4-ECDSA-P256-SHA256 ", INCOMPLETE),
        (b"Credential=", b"Credentials=", INCOMPLETE),
        (b"SignedHeaders=", b"Signed=", INCOMPLETE),
        (b", Signature=", b", Credential=a/b/c/d/e, Signature=", INCOMPLETE),
        (b", Signature=", b", X=", INCOMPLETE),
        (b"/eu-west-1/", b"/", INCOMPLETE),
        (b"AKIDEXAMPLE", b"", INCOMPLETE),
        (b"/sqs/", b"/s3/", BAD_SIGNATURE),
        (b"aws4_request", b"aws5_request", BAD_SIGNATURE),
        (b"host;", b"", BAD_SIGNATURE),
        (b";x-amz-date", b"", BAD_SIGNATURE),
    ],
)
def test_what_cannot_be_read_and_what_is_not_signed_are_told_apart(
    old: bytes, new: bytes, kind: Any
) -> None:
    assert why(changed(signed(), old, new)).kind is kind


@pytest.mark.parametrize("time", ["", "x", "20300101T250000Z", "2030-01-01T00:00:00Z", "٢٠٣٠"])
def test_a_time_that_is_none_is_incomplete(time: str) -> None:
    asked = signed()
    headers = [(n, time.encode() if n == b"X-Amz-Date" else v) for n, v in asked.headers]
    assert why(asked._replace(headers=headers)).kind is INCOMPLETE


def test_a_day_must_be_that_of_the_time() -> None:
    asked = signed()
    day = dict(asked.headers)[b"X-Amz-Date"][:8]
    assert why(changed(asked, day, b"20010101")).kind is BAD_SIGNATURE


def test_a_body_must_be_the_one_that_is_named() -> None:
    asked = signed(headers={"X-Amz-Content-SHA256": "0" * 64})
    assert why(asked).kind is BAD_SIGNATURE
    open_body = signed(headers={"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"})
    assert why(open_body).kind is BAD_SIGNATURE
    assert fits(open_body._replace(is_tls=True, body=b"whatever"))


def test_a_request_is_signed_once() -> None:
    both = signed("/", "X-Amz-Algorithm=AWS4-HMAC-SHA256")
    assert why(both).kind is INCOMPLETE


@given(st.binary(max_size=300))
def test_whatever_comes_as_a_signature_is_read_or_refused(data: bytes) -> None:
    headers = {b"authorization": b"AWS4-HMAC-SHA256 " + data, b"x-amz-date": b"20300101T000000Z"}
    with suppress(Failed):
        signature.read(headers, {})
