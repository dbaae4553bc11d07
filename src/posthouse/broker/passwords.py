"""Passwords: hashed with scrypt, which takes memory as well as time, away from the event loop.

A hash is text: `scrypt$N$R$P$SALT$HASH`, so that what it costs can be raised later and old ones are
still understood. Only a few are made at a time, and only some wait for that.
"""

import asyncio
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import scrypt

from posthouse.core.errors import Busy

N, R, P = 1 << 15, 8, 1  # 32 MiB, and about 100 ms
SALT_BYTES, HASH_BYTES = 16, 32
PASSWORD_CHARS_MAX = 1_024
AT_A_TIME, WAITING_MAX = 2, 200
_MEMORY_MAX = 1 << 27


def hashed(password: str) -> str:
    salt = secrets.token_bytes(SALT_BYTES)
    made = _scrypt(password, salt, N, R, P)
    return f"scrypt${N}${R}${P}${b64encode(salt).decode()}${b64encode(made).decode()}"


def is_password(password: str, hash: str) -> bool:
    _, n, r, p, salt, made = hash.split("$")
    found = _scrypt(password, b64decode(salt), int(n), int(r), int(p))
    return hmac.compare_digest(found, b64decode(made))


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    given = password.encode(errors="surrogatepass")
    return scrypt(given, salt=salt, n=n, r=r, p=p, maxmem=_MEMORY_MAX, dklen=HASH_BYTES)


# For names that are not there: the same work as for one that is.
_NOBODY = "$".join((
    "scrypt", str(N), str(R), str(P), b64encode(bytes(SALT_BYTES)).decode(),
    b64encode(bytes(HASH_BYTES)).decode(),
))  # fmt: skip


class Passwords:
    """Makes hashes and looks at passwords, a few at a time."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(AT_A_TIME)
        self._waiting = 0

    async def hash(self, password: str) -> str:
        """Raises Busy."""
        async with self._turn():
            return await asyncio.to_thread(hashed, password)

    async def fits(self, password: str, hash: str | None) -> bool:
        """Whether it is the one; where there is none, after the same time. Raises Busy."""
        async with self._turn():
            found = await asyncio.to_thread(is_password, password, hash or _NOBODY)
        return found and hash is not None

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        if self._waiting >= WAITING_MAX:
            raise Busy("too many come with passwords at a time")
        self._waiting += 1
        try:
            async with self._slots:
                yield
        finally:
            self._waiting -= 1
