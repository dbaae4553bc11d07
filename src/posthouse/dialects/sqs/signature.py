"""Signatures of AWS, version 4, in the header `Authorization` or in the query string.

    Authorization: AWS4-HMAC-SHA256 Credential=KEY/20300102/eu-west-1/sqs/aws4_request,
                   SignedHeaders=host;x-amz-date, Signature=64 hexadecimal digits

A request is written in one canonical way, which is hashed; the hash is signed with a key made of
the secret, the day, the region and the service.
"""

import hmac
import re
from calendar import timegm
from collections.abc import Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from hashlib import sha256
from time import strptime
from typing import NamedTuple
from urllib.parse import quote_from_bytes

from posthouse.dialects.http import Header
from posthouse.dialects.sqs.errors import BAD_SIGNATURE, INCOMPLETE, Failed

ALGORITHM = "AWS4-HMAC-SHA256"
SERVICE = "sqs"
SKEW_SECONDS = 900  # between the signer's clock and ours; also how long a signed URL is good
EXPIRES_SECONDS_MAX = 604_800  # that a signed URL may say
SIGNED_HEADERS_MAX = 100
KEYS_MAX = 1_000  # signing keys that are remembered
UNSIGNED = "UNSIGNED-PAYLOAD"

_CREDENTIAL = re.compile(rb"Credential=([^,\s]*)")
_REGION = re.compile(r"[a-z0-9-]{1,40}", re.ASCII)
_TIME = re.compile(r"\d{8}T\d{6}Z", re.ASCII)
_DAY = re.compile(r"\d{8}", re.ASCII)
_SPACES = re.compile(rb" +")
_ENCODED = re.compile(rb"%[0-9a-fA-F]{2}")
_IN_QUERY = "X-Amz-Algorithm"


class Asked(NamedTuple):
    """The parts of a request that are signed."""

    method: str
    path: bytes  # as it came
    query: bytes  # as it came
    headers: Sequence[Header]  # in their order
    body: bytes
    is_tls: bool


class Claim(NamedTuple):
    """The parts of a request's signature."""

    key_id: str
    day: str
    region: str
    service: str
    headers: tuple[str, ...]  # that are signed
    signature: str
    time: str
    unix_time: int
    expires: int | None = None  # seconds, of a signed URL

    @property
    def scope(self) -> str:
        return f"{self.day}/{self.region}/{self.service}/aws4_request"


class Named(NamedTuple):
    """The credentials that a request claims, true or not."""

    key_id: str = ""
    region: str = ""
    service: str = ""


def named_in(authorization: bytes, query: Mapping[str, str]) -> Named:
    """Reads the credential of a request without a look at the signature."""
    found = _CREDENTIAL.search(authorization)
    text = found[1].decode("latin-1") if found else query.get("X-Amz-Credential", "")
    parts = text.rsplit("/", 4)
    if len(parts) != 5 or not _REGION.fullmatch(parts[2]):
        return Named()
    return Named(parts[0], parts[2], parts[3])


def is_signed(authorization: bytes | None, query: Mapping[str, str]) -> bool:
    return authorization is not None or _IN_QUERY in query or "X-Amz-Signature" in query


# What is claimed.


def read(headers: Mapping[bytes, bytes], query: Mapping[str, str]) -> Claim:
    """Reads a signature. Raises Failed where it cannot be read."""
    given = headers.get(b"authorization")
    if given is None:
        return _read_query(query)
    if _IN_QUERY in query or "X-Amz-Signature" in query:
        raise _incomplete("A request is signed in its header or in its query string, not in both.")
    return _read_header(given.decode("latin-1"), headers)


def _read_header(given: str, headers: Mapping[bytes, bytes]) -> Claim:
    algorithm, _, rest = given.partition(" ")
    if algorithm != ALGORITHM:
        raise _incomplete(f"The algorithm must be {ALGORITHM}.")
    parts: dict[str, str] = {}
    for part in rest.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name in parts:
            raise _incomplete("Authorization must have each of its parts once, as NAME=VALUE.")
        parts[name] = value.strip()
    for name in ("Credential", "SignedHeaders", "Signature"):
        if not parts.get(name):
            raise _incomplete(f"Authorization header requires '{name}' parameter.")
    time = headers.get(b"x-amz-date", b"").decode("latin-1")
    if not time:
        time = _by_date(headers.get(b"date", b"").decode("latin-1"))
    return _claim(parts["Credential"], parts["SignedHeaders"], parts["Signature"], time, None)


def _by_date(given: str) -> str:
    """The time of a header `Date`, as `X-Amz-Date` has it. Raises Failed."""
    try:
        return f"{parsedate_to_datetime(given):%Y%m%dT%H%M%SZ}"
    except (ValueError, TypeError, IndexError):
        raise _incomplete(
            "Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header."
        ) from None


def _read_query(query: Mapping[str, str]) -> Claim:
    if query.get(_IN_QUERY) != ALGORITHM:
        raise _incomplete(f"X-Amz-Algorithm must be {ALGORITHM}.")
    given = []
    for name in ("Credential", "SignedHeaders", "Signature", "Date", "Expires"):
        value = query.get(f"X-Amz-{name}")
        if not value:
            raise _incomplete(f"A signed URL needs the parameter X-Amz-{name}.")
        given.append(value)
    credential, headers, signature, time, expires = given
    is_number = expires.isascii() and expires.isdigit() and len(expires) <= 9
    if not is_number or not 1 <= int(expires) <= EXPIRES_SECONDS_MAX:
        raise _incomplete(f"X-Amz-Expires must be from 1 to {EXPIRES_SECONDS_MAX}.")
    return _claim(credential, headers, signature, time, int(expires))


def _claim(credential: str, headers: str, signature: str, time: str, expires: int | None) -> Claim:
    parts = credential.rsplit("/", 4)
    if len(parts) != 5 or not all(parts):
        raise _incomplete("Credential must be KEY-ID/YYYYMMDD/REGION/SERVICE/aws4_request.")
    key_id, day, region, service, last = parts
    names = tuple(headers.split(";"))
    if len(names) > SIGNED_HEADERS_MAX:
        raise _incomplete(f"There are at most {SIGNED_HEADERS_MAX} signed headers.")
    if not _TIME.fullmatch(time) or not _DAY.fullmatch(day):
        raise _incomplete("The time must be of the form YYYYMMDDTHHMMSSZ, and the day YYYYMMDD.")
    try:
        unix_time = timegm(strptime(time, "%Y%m%dT%H%M%SZ"))
    except ValueError:
        raise _incomplete(f"There is no such time as {time}.") from None
    if last != "aws4_request" or service != SERVICE:
        raise _bad(f"Credential should be scoped to correct service: '{SERVICE}'.")
    if day != time[:8]:
        raise _bad("Date in Credential scope does not match the date of the request.")
    return Claim(key_id, day, region, service, names, signature, time, unix_time, expires)


def check_time(claim: Claim, now: float) -> None:
    """Raises Failed."""
    lasts = SKEW_SECONDS
    if claim.expires is not None:  # a shorter one is obeyed
        lasts = min(lasts, claim.expires)
    if claim.unix_time + lasts < now:
        raise _bad(
            f"Signature expired: {claim.time} is now earlier than {_time(now - lasts)}"
            f" ({_time(now)} - {lasts // 60} min.)"
        )
    if claim.unix_time - SKEW_SECONDS > now:
        raise _bad(
            f"Signature not yet current: {claim.time} is still later than"
            f" {_time(now + SKEW_SECONDS)} ({_time(now)} + {SKEW_SECONDS // 60} min.)"
        )


def _time(unix_time: float) -> str:
    from datetime import UTC, datetime  # of refusals alone

    return f"{datetime.fromtimestamp(int(unix_time), UTC):%Y%m%dT%H%M%SZ}"


def _incomplete(text: str) -> Failed:
    return Failed(INCOMPLETE, text)


def _bad(text: str) -> Failed:
    return Failed(BAD_SIGNATURE, text)


# What is signed.


def check_coverage(claim: Claim, headers: Mapping[bytes, bytes]) -> None:
    """The host and every header of AWS's own must be signed. Raises Failed."""
    signed = set(claim.headers)
    needed = {each.decode("latin-1") for each in headers if each.startswith(b"x-amz-")}
    unsigned = sorted(({"host"} | needed) - signed - {"x-amz-query-mode"})
    if unsigned:
        raise _bad(
            f"There were headers present in the request which were not signed: {unsigned[0]}."
        )


def payload_hash(claim: Claim, asked: Asked, headers: Mapping[bytes, bytes]) -> str:
    """The hash of the body as it is signed. Raises Failed."""
    said = headers.get(b"x-amz-content-sha256", b"").decode("latin-1")
    if said == UNSIGNED and asked.is_tls:
        return said
    found = sha256(asked.body).hexdigest()
    if said and not hmac.compare_digest(said.encode(), found.encode()):
        raise _bad("The value of x-amz-content-sha256 does not match the body of the request.")
    return found


def string_to_sign(claim: Claim, asked: Asked, payload: str) -> bytes:
    """The text that is signed, with the hash of the canonical request."""
    hashed = sha256(canonical_request(claim, asked, payload)).hexdigest()
    return f"{ALGORITHM}\n{claim.time}\n{claim.scope}\n{hashed}".encode()


def canonical_request(claim: Claim, asked: Asked, payload: str) -> bytes:
    query = canonical_query(asked.query)
    headers = b"".join(_canonical_headers(claim.headers, asked.headers))
    names = ";".join(claim.headers).encode("latin-1", "replace")
    return b"\n".join((
        asked.method.encode(), canonical_path(asked.path), query, headers, names, payload.encode(),
    ))  # fmt: skip


def canonical_path(path: bytes) -> bytes:
    """Dot segments and double slashes are resolved, and what was encoded is encoded once more."""
    if path in (b"", b"/"):
        return b"/"
    kept: list[bytes] = []
    for part in path.split(b"/"):
        if part == b"..":
            del kept[-1:]
        elif part not in (b"", b"."):
            kept.append(part)
    last = b"/" if path.endswith(b"/") and kept else b""
    return quote_from_bytes(b"/" + b"/".join(kept) + last, safe="/~").encode()


def canonical_query(query: bytes) -> bytes:
    """The pairs as they were sent, in order; what is encoded is so in capital letters."""
    if not query:
        return b""
    pairs = []
    for pair in query.split(b"&"):
        name, _, value = pair.partition(b"=")
        if pair and name != b"X-Amz-Signature":
            pairs.append((_capital(name), _capital(value)))
    return b"&".join(name + b"=" + value for name, value in sorted(pairs))


def _capital(text: bytes) -> bytes:
    return _ENCODED.sub(lambda found: found[0].upper(), text) if b"%" in text else text


def _canonical_headers(names: Iterable[str], headers: Sequence[Header]) -> Iterable[bytes]:
    values: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        values.setdefault(name.lower(), []).append(_SPACES.sub(b" ", value.strip()))
    for each in names:
        key = each.encode("latin-1", "replace")
        yield key + b":" + b",".join(values.get(key, ())) + b"\n"


class SigningKeys:
    """Makes signing keys, and remembers those of the secrets, days and regions that come again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], bytes] = {}

    def get(self, secret: str, day: str, region: str) -> bytes:
        named = secret, day, region
        found = self._known.get(named)
        if found is None:
            made = ("AWS4" + secret).encode(errors="surrogatepass")
            for part in (day, region, SERVICE, "aws4_request"):
                made = hmac.digest(made, part.encode(errors="surrogatepass"), "sha256")
            found = made
            if len(self._known) >= KEYS_MAX:
                self._known.clear()
            self._known[named] = found
        return found

    def fits(self, secret: str, claim: Claim, signed: bytes) -> bool:
        """Whether a signature was made with this secret, in a time that tells nothing."""
        key = self.get(secret, claim.day, claim.region)
        made = hmac.digest(key, signed, "sha256").hex().encode()
        return hmac.compare_digest(made, claim.signature.encode(errors="replace"))
