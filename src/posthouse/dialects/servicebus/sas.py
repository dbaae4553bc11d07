"""Shared access signatures: who signed a token, for what, and until when.

    SharedAccessSignature sr=<resource>&sig=<signature>&se=<unix seconds>&skn=<key name>

The signature is over the resource as it stands in the token, still encoded: clients encode it in
different ways.
"""

import hmac
import re
from base64 import b64decode
from binascii import Error as Base64Error
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import unquote, unquote_plus

from posthouse.dialects.servicebus.address import folded

PREFIX = "SharedAccessSignature "
TOKEN_CHARS_MAX = 8 << 10


class Token(NamedTuple):
    key_name: str
    host: str  # of the resource, where it names one
    scope: tuple[str, ...]  # the path it is for, folded; it covers what is below as well
    expires: int  # unix seconds
    signed: bytes
    signature: bytes

    def fits(self, key: str) -> bool:
        """Whether it was signed with this key."""
        made = hmac.new(key.encode(errors="surrogatepass"), self.signed, sha256).digest()
        return hmac.compare_digest(made, self.signature)


@lru_cache(1_000)
def parse(text: str) -> Token:
    """Raises ValueError."""
    text = text.strip()
    if len(text) > TOKEN_CHARS_MAX or not text.startswith(PREFIX):
        raise ValueError("this is not a shared access signature")
    given: dict[str, str] = {}
    for pair in text[len(PREFIX) :].strip().split("&"):
        name, _, value = pair.partition("=")
        if name in given:
            raise ValueError("a part of the token is there twice")
        given[name] = value
    try:
        resource, expires = given["sr"], given["se"]
        signature = b64decode(unquote_plus(given["sig"]), validate=True)
        name = unquote_plus(given["skn"])
    except KeyError as missing:
        raise ValueError(f"the token has no {missing}") from None
    except (Base64Error, ValueError):
        raise ValueError("the token's signature is not base64") from None
    if not expires.isascii() or not expires.isdigit() or len(expires) > 12:
        raise ValueError("the token's end is not a time")
    signed = f"{resource}\n{expires}".encode()
    host, scope = resource_of(unquote_plus(resource))
    return Token(name, host, scope, int(expires), signed, signature)


def resource_of(text: str) -> tuple[str, tuple[str, ...]]:
    """Host and path of a resource, folded; no path stands for all of a namespace.

    A resource is an address, whose path may be percent-encoded, as the path of a request may.
    """
    text = text.partition("?")[0]
    _, separator, rest = text.partition("://")
    if separator:
        host, _, path = rest.partition("/")
    else:
        host, _, path = text.partition("/")
        if not _HOST.fullmatch(host):  # a path by itself, of which no part may be left out
            host, path = "", text
    return host, folded(unquote(path))


# What is a host where no scheme says so: with a port, the cloud's, or this machine's.
_HOST = re.compile(r"[\w.-]+:\d+|[\w-]+\.servicebus\.windows\.net|localhost", re.IGNORECASE)


def covers(scope: tuple[str, ...], path: tuple[str, ...]) -> bool:
    """Part by part: what is for q1 is not for q10."""
    return path[: len(scope)] == scope
