"""Asking a running broker over `/api/v1`."""

import argparse
import json
import os
import signal
import socket
import ssl
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from posthouse.cli.codes import EMPTY, FAILED, NOT_ALLOWED, NOT_FOUND, USAGE

URL = "http://127.0.0.1:5300"
ROOT = "RootManageSharedAccessKey"
_CODES = {401: NOT_ALLOWED, 403: NOT_ALLOWED, 404: NOT_FOUND, 400: USAGE, 408: EMPTY}
SECONDS = 90.0  # longer than any long poll


class Failure(Exception):
    """A command failed; the text says why, `code` is the exit code."""

    def __init__(self, text: str, code: int = FAILED, status: int = 0) -> None:
        super().__init__(text)
        self.code = code
        self.status = status  # of HTTP; 0 where nothing was answered


class Client:
    """A client of a broker's HTTP API, for one namespace."""

    def __init__(
        self,
        url: str,
        key: str | None,
        namespace: str,
        ca: str | None,
        seconds: float = SECONDS,
    ) -> None:
        self.namespace = namespace
        self.url = url
        try:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise Failure(f"{url} is not an address like {URL}.", USAGE) from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Failure(f"{url} is not an address like {URL}.", USAGE)
        if parts.scheme == "https":
            try:
                context = ssl.create_default_context(cafile=ca)
            except FileNotFoundError as error:
                raise unreadable(str(ca), error) from None
            except (OSError, ValueError) as error:
                raise Failure(f"{ca} holds no certificates: {error}.", USAGE) from None
            self._connection: HTTPConnection = HTTPSConnection(
                parts.hostname, port, timeout=seconds, context=context
            )
        else:
            self._connection = HTTPConnection(parts.hostname, port, timeout=seconds)
        self._headers = {"content-type": "application/json"}
        if key is not None:
            encoded = b64encode(key.encode(errors="surrogateescape"))
            self._headers["authorization"] = "Basic " + encoded.decode()

    @classmethod
    def of(cls, options: argparse.Namespace) -> "Client":
        url, key, ca = cls.where(options)
        named = options.namespace or os.environ.get("POSTHOUSE_NAMESPACE", "default")
        return cls(url, key, named, ca)

    @staticmethod
    def where(options: argparse.Namespace) -> tuple[str, str | None, str | None]:
        """The broker's URL, the key, and the certificates to trust. Raises Failure."""
        environment = os.environ
        return (
            options.url or environment.get("POSTHOUSE_URL", URL),
            _key(options.key_file, environment.get("POSTHOUSE_KEY")),
            options.ca or environment.get("POSTHOUSE_CA"),
        )

    def queue(self, name: str, *more: str) -> str:
        """The path of a queue, or of something below it."""
        return self.space("queues", name, *more)

    def space(self, *parts: str) -> str:
        """A path below the namespace."""
        return path("namespaces", self.namespace, *parts)

    def ask(self, method: str, where: str, body: object = None, **query: object) -> Any:
        """The decoded answer. Raises Failure."""
        response = self._request(method, where, body, query)
        data = response.read()
        if response.status >= 300:
            raise _failure(response.status, data)
        try:
            return json.loads(data) if data else None
        except ValueError:
            raise Failure(f"What answers at {self.url} is not a broker of this kind.") from None

    def stop_waiting(self) -> None:
        """Tells the broker that nobody waits for more: it answers now, or closes the connection."""
        if self._connection.sock is not None:
            with suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_WR)

    def lines(self, where: str, **query: object) -> tuple[dict[str, str], Iterator[bytes]]:
        """The headers, and what is answered line by line."""
        response = self._request("GET", where, None, query)
        if response.status >= 300:
            raise _failure(response.status, response.read())
        headers = {name.lower(): value for name, value in response.getheaders()}
        return headers, _lines(response)

    def _request(
        self, method: str, where: str, body: object, query: dict[str, object]
    ) -> HTTPResponse:
        given = {name: value for name, value in query.items() if value is not None}
        if given:
            where += "?" + urlencode(given)
        data = None if body is None else json.dumps(body)
        try:
            self._connection.request(method, where, data, self._headers)
            return self._connection.getresponse()
        except ssl.SSLCertVerificationError as error:
            raise Failure(
                f"{self.url} has a certificate that is not trusted ({error.verify_message});"
                " `posthouse tls env` tells how to trust it, or name it with --ca."
            ) from None
        except (OSError, HTTPException) as error:
            raise Failure(
                f"There is no broker at {self.url}: {error}. Start one with `posthouse serve`, or"
                " name another with --url."
            ) from None


class HeldInterrupt:
    """While it is entered, Ctrl-C does not cut an answer off: it ends the wait for it.

    What is in the answer is locked for this process, and has to be given back. A second Ctrl-C is
    raised at once.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.came = False

    def __enter__(self) -> "HeldInterrupt":
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, *_: object) -> None:
        if self.came:
            raise KeyboardInterrupt
        self.came = True
        self._client.stop_waiting()


def path(*parts: str) -> str:
    """Raises Failure."""
    if not all(parts):
        raise Failure("A name must not be empty.", USAGE)
    encoded = (quote(part, safe="$", errors="surrogateescape") for part in parts)
    return "/api/v1/" + "/".join(encoded)


def _lines(response: HTTPResponse) -> Iterator[bytes]:
    yield from iter(response.readline, b"")
    response.close()  # it may not have noticed that this was all


def _key(file: str | None, given: str | None) -> str | None:
    """The key as `name:key`; a key alone is the root's."""
    if file is not None:
        try:
            given = Path(file).read_text().strip()
        except OSError as error:
            raise unreadable(file, error) from None
        except UnicodeDecodeError:
            raise Failure(f"{file} holds no key.") from None
    if not given:
        return None
    return given if ":" in given else f"{ROOT}:{given}"


def unreadable(file: str, error: OSError) -> Failure:
    """The sentence for a file that was named and cannot be read."""
    code = NOT_FOUND if isinstance(error, FileNotFoundError) else FAILED
    return Failure(f"{file} cannot be read: {error.strerror}.", code)


def _failure(status: int, data: bytes) -> Failure:
    try:
        problem = json.loads(data)
        text = problem.get("detail") or problem.get("title")
    except (ValueError, AttributeError):
        text = f"What answers is not a broker of this kind ({status})."
    code = _CODES.get(status, FAILED)
    if status == 401:
        text += " A key is given by POSTHOUSE_KEY=name:key, or by --key-file."
    return Failure(text, code, status)
