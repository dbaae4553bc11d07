"""`GET /cluster/folder`: the files of this broker's journal, for new nodes and backups.

    GET /cluster/folder                  lines of JSON: a head, each file when its checksum is
                                         known, and the count of files
    GET /cluster/folder/<name>?hold=...  the bytes of a file of that list
    DELETE /cluster/folder?hold=...      they are not wanted any more

The list makes a hold: the files stay as they are until they are not wanted, nobody has asked for
one of them for a minute, or the disk is short of room. Then the list is to be asked for again.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator

import msgspec

from posthouse.core.errors import Busy, NotAllowed
from posthouse.server.host import BrokerHost
from posthouse.server.http import Answer, Piece, Request
from posthouse.server.http_peer import FileRange
from posthouse.server.problems import HttpProblem
from posthouse.store import Segments
from posthouse.store.disk import Disk
from posthouse.store.folder_copy import FolderFile, Hold, ListEnd, ListHead, hold_files

HOLD_SECONDS = 60.0  # since a file was asked for, or a part of it taken
HOLDS_MAX = 4
SWEEP_SECONDS = 5.0
SLICE_BYTES = 1 << 20
_LINES = (b"content-type", b"application/x-ndjson")
_BYTES = (b"content-type", b"application/octet-stream")


class _Held:
    """A hold, and until when."""

    def __init__(self, hold: Hold, until: float) -> None:
        self.hold = hold
        self.until = until
        self.files = {file.name.encode(): file for file in hold.listing.files}


class FolderApi:
    """Answers such requests, and lets go of what nobody copies any more."""

    def __init__(self, broker: BrokerHost) -> None:
        self._broker = broker
        self._held: dict[str, _Held] = {}
        self._sweeping: asyncio.TimerHandle | None = None

    async def answer(self, request: Request) -> Answer:
        """Raises Refused or HttpProblem."""
        self._broker.check(request.principal, "manage", "*", "*")
        hold = request.query.get("hold", "")
        folder, *rest = request.parts[1:] or (b"",)
        if folder != b"folder":
            raise HttpProblem(404, "not-found", "There is /cluster/folder.")
        match request.method, rest:
            case "GET", []:
                return await self._list()
            case "GET", [name]:
                return self._file(hold, name)
            case "DELETE", []:
                if hold in self._held:
                    self._held[hold].until = 0.0
                    self._sweep()
                return Answer(b"", 204, ())
            case _, ([] | [_]):
                raise HttpProblem(405, "method-not-allowed", "The folder is read with GET.")
            case _:
                raise HttpProblem(404, "not-found", "A folder has files, and no folders.")

    async def _list(self) -> Answer:
        segments = self._segments()
        if len(self._held) >= HOLDS_MAX:
            raise Busy("too many copies of the folder are being made")
        word = secrets.token_hex(8)
        hold = await asyncio.to_thread(hold_files, Disk(), segments.folder, word)
        self._held[word] = _Held(hold, self._later())
        self._sweep()
        return Answer(self._lines(word), 200, (_LINES,))

    def _segments(self) -> Segments:
        """Raises NotAllowed."""
        store = self._broker.store
        if store is None or store.segments is None:
            raise NotAllowed(
                "the store", "it is not a folder of segments; use posthouse store copy"
            )
        return store.segments

    async def _lines(self, word: str) -> AsyncIterator[Piece]:
        held = self._held[word]
        listing = held.hold.listing
        size = sum(file.size for file in listing.files)
        head = ListHead(hold=word, number=listing.number, end=listing.end, size=size)
        yield msgspec.json.encode(head) + b"\n"
        for file in listing.files:
            checked = await asyncio.to_thread(held.hold.checked, file)
            held.until = self._later()
            yield msgspec.json.encode(checked) + b"\n"
        yield msgspec.json.encode(ListEnd(len(listing.files))) + b"\n"

    def _file(self, word: str, name: bytes) -> Answer:
        held = self._held.get(word)
        if held is None:
            raise HttpProblem(410, "gone", "The files of this list are not held any more; ask for"
                              " /cluster/folder again.")  # fmt: skip
        file = held.files.get(name)
        if file is None:
            raise HttpProblem(404, "not-found", "There is no such file in this list.")
        return Answer(self._slices(held, file), 200, (_BYTES,))

    async def _slices(self, held: _Held, file: FolderFile) -> AsyncIterator[Piece]:
        path = str(held.hold.folder / file.name)
        for at in range(0, file.size, SLICE_BYTES):
            held.until = self._later()
            yield FileRange(path, at, min(SLICE_BYTES, file.size - at))

    def _later(self) -> float:
        return asyncio.get_running_loop().time() + HOLD_SECONDS

    def _sweep(self) -> None:
        """Lets go of holds that have ended, and looks again while there are others."""
        loop = asyncio.get_running_loop()
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        segments = self._broker.store.segments if self._broker.store is not None else None
        is_short = segments is None or segments.is_short
        for word, held in list(self._held.items()):
            if is_short or held.until < loop.time():
                del self._held[word]
                loop.run_in_executor(None, held.hold.release)
        if self._held:
            self._sweeping = loop.call_later(SWEEP_SECONDS, self._sweep)
