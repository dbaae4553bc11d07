"""Asking another node of a cluster, over its own API: HTTPS, with the root key that all share."""

import asyncio
import ssl
from base64 import b64encode
from collections.abc import Awaitable, Callable
from http.client import HTTPException, HTTPSConnection
from typing import NamedTuple
from urllib.parse import urlsplit

from posthouse.broker.access import ROOT

ANSWER_BYTES_MAX = 4 << 20
SECONDS = 10.0
# Says that a node asks, so that the one that is asked does not ask yet another.
ASKED_BY = b"posthouse-node"


class NodeSilent(Exception):
    """The node does not answer, or is not one of this cluster. The text says why."""


class NodeAnswer(NamedTuple):
    status: int
    content_type: bytes
    body: bytes


class NodeClient:
    """`trust` makes the context that knows the certificates of the cluster's nodes."""

    def __init__(self, node: str, key: str, trust: Callable[[], Awaitable[ssl.SSLContext]]) -> None:
        self._trust = trust
        secret = b64encode(f"{ROOT}:{key}".encode()).decode()
        self._headers = {
            "authorization": f"Basic {secret}",
            "content-type": "application/json",
            ASKED_BY.decode(): node,
        }

    async def ask(self, address: str, method: str, path: str, body: bytes = b"") -> NodeAnswer:
        """Raises NodeSilent."""
        try:
            context = await self._trust()
            return await asyncio.to_thread(self._ask, address, method, path, body, context)
        except (OSError, HTTPException, ValueError) as error:
            raise NodeSilent(f"the node at {address} does not answer: {error}") from error

    def _ask(
        self, address: str, method: str, path: str, body: bytes, context: ssl.SSLContext
    ) -> NodeAnswer:
        where = urlsplit(f"//{address}")
        connection = HTTPSConnection(
            where.hostname or "", where.port, timeout=SECONDS, context=context
        )
        try:
            connection.request(method, path, body or None, self._headers)
            response = connection.getresponse()
            data = response.read(ANSWER_BYTES_MAX + 1)
            if len(data) > ANSWER_BYTES_MAX:
                raise ValueError(f"it says more than {ANSWER_BYTES_MAX} bytes")
            kind = response.getheader("content-type") or "application/json"
            return NodeAnswer(response.status, kind.encode("latin-1", "replace"), data)
        finally:
            connection.close()
