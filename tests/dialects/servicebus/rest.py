"""Azure's HTTP side by hand: requests that carry a signature, with TLS or without."""

import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.dialects.servicebus.sas import token as signed

ATOM = "application/atom+xml;type=entry;charset=utf-8"
CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]  # as they were written
    body: bytes

    def header(self, name: str) -> str | None:
        found = [value for each, value in self.headers if each.lower() == name.lower()]
        assert len(found) < 2, found
        return found[0] if found else None

    @property
    def broker(self) -> dict[str, Any]:
        """Its BrokerProperties."""
        found: dict[str, Any] = json.loads(self.header("BrokerProperties") or "{}")
        return found

    @property
    def location(self) -> str:
        found = self.header("Location")
        assert found is not None
        return found


class Rest:
    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self._port = port
        self._context = context
        self.url = f"{'http' if context is None else 'https'}://localhost:{port}"

    def _connection(self) -> http.client.HTTPConnection:
        if self._context is None:
            return http.client.HTTPConnection("localhost", self._port, timeout=90)
        return http.client.HTTPSConnection(
            "localhost", self._port, timeout=90, context=self._context
        )

    def __call__(
        self,
        method: str,
        where: str,
        body: bytes | str = b"",
        *,
        token: str | None = "",
        headers: Mapping[str, str] | None = None,
        broker: Any = None,
    ) -> Answer:
        """`where` is a path, or the whole of a Location. Signed with the root key, if not told."""
        if where.startswith("http"):
            assert where.startswith(self.url), where
            parts = urlsplit(where)
            where = parts.path + (f"?{parts.query}" if parts.query else "")
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = token or signed(f"{self.url}/")
        if broker is not None:
            sent["BrokerProperties"] = json.dumps(broker)
        connection = self._connection()
        try:
            connection.request(
                method, where, body.encode() if isinstance(body, str) else body, sent
            )
            response = connection.getresponse()
            return Answer(response.status, response.getheaders(), response.read())
        finally:
            connection.close()


def entry(kind: str, inside: str = "") -> str:
    """What describes an entity, as .NET writes it."""
    return (
        '<?xml version="1.0" encoding="utf-8"?><entry xmlns="http://www.w3.org/2005/Atom">'
        f'<content type="application/xml"><{kind} xmlns:i="{INSTANCE}" xmlns="{CONNECT}">'
        f"{inside}</{kind}></content></entry>"
    )
