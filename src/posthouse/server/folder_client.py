"""Reading the folder of a running broker: the other side of `folder_api.py`. It blocks.

What a peer says is checked before it is used: names are those of a journal's files, and every
length and count is bounded.
"""

import ssl
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TypeVar

import msgspec

from posthouse.store.errors import StoreError
from posthouse.store.folder_copy import (
    FILES_MAX,
    PIECE_BYTES,
    FolderFile,
    ListEnd,
    ListHead,
    Listing,
    check_listing,
)

ANSWER_SECONDS = 10.0  # that a peer may be silent
LINE_BYTES_MAX = 4096
_T = TypeVar("_T")


class PeerFailed(StoreError):
    """A peer did not hand out its folder as it should."""


@dataclass(frozen=True)
class Peer:
    """How to reach a broker."""

    host: str
    port: int
    key: str | None = None  # name:key
    context: ssl.SSLContext | None = None  # None: without TLS

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"


class PeerFolder:
    """A source of files: the folder of a peer, of which a list was asked for."""

    def __init__(self, peer: Peer) -> None:
        """Asks for the list, which makes a hold. Raises PeerFailed."""
        self._peer = peer
        self._hold = ""
        self.listing = self._list()

    def _list(self) -> Listing:
        with _Asked(self._peer, "/cluster/folder") as answer:
            head = self._line(answer, ListHead)
            if (head.posthouse, head.version) != ("folder", 1) or not head.hold.isalnum():
                raise PeerFailed(f"{self._peer.name} answers with a list of another version")
            self._hold = head.hold
            files: list[FolderFile] = []
            while True:
                line = answer.readline(LINE_BYTES_MAX)
                if line.startswith(b'{"files":'):
                    break
                files.append(self._decoded(line, FolderFile))
                if len(files) > FILES_MAX:
                    raise PeerFailed(f"{self._peer.name} has too many files")
            if self._decoded(line, ListEnd).files != len(files):
                raise PeerFailed(f"the list of {self._peer.name} is not complete")
        listing = Listing(head.number, head.end, files)
        check_listing(listing)
        return listing

    def read(self, file: FolderFile) -> Iterator[bytes]:
        with _Asked(self._peer, f"/cluster/folder/{file.name}?hold={self._hold}") as answer:
            while piece := answer.read(PIECE_BYTES):
                yield piece

    def release(self) -> None:
        """Says that nothing more is wanted, so that the peer need not wait to find out."""
        with (
            suppress(PeerFailed),
            _Asked(self._peer, f"/cluster/folder?hold={self._hold}", "DELETE"),
        ):
            pass

    def _line(self, answer: HTTPResponse, kind: type[_T]) -> _T:
        return self._decoded(answer.readline(LINE_BYTES_MAX), kind)

    def _decoded(self, line: bytes, kind: type[_T]) -> _T:
        try:
            return msgspec.json.decode(line, type=kind)
        except msgspec.MsgspecError:
            raise PeerFailed(f"{self._peer.name} answers with a list that cannot be read") from None


class _Asked:
    """One request, and its answer."""

    def __init__(self, peer: Peer, path: str, method: str = "GET") -> None:
        self._peer, self._path, self._method = peer, path, method
        if peer.context is None:
            self._connection = HTTPConnection(peer.host, peer.port, timeout=ANSWER_SECONDS)
        else:
            self._connection = HTTPSConnection(
                peer.host, peer.port, timeout=ANSWER_SECONDS, context=peer.context
            )

    def __enter__(self) -> HTTPResponse:
        peer, headers = self._peer, {}
        if peer.key is not None:
            encoded = b64encode(peer.key.encode(errors="surrogateescape"))
            headers["Authorization"] = f"Basic {encoded.decode()}"
        try:
            self._connection.request(self._method, self._path, headers=headers)
            answer = self._connection.getresponse()
        except (OSError, HTTPException) as error:
            self._connection.close()
            raise PeerFailed(f"{peer.name} cannot be asked for its folder: {error}") from error
        if answer.status >= 300:
            said = answer.read(LINE_BYTES_MAX).decode("utf-8", "replace")
            self._connection.close()
            raise PeerFailed(f"{peer.name} answers with {answer.status}: {said!r}")
        return answer

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._connection.close()
        if isinstance(error, OSError | HTTPException):
            raise PeerFailed(f"{self._peer.name} has stopped sending: {error}") from error
