"""The feed: everything that happened, by position, for whoever reads along or looks back.

    GET /feed?after=P&limit=N&namespace=&entity=&entities=a,b*&target=&kinds=a,b&columns=a,b
             &reader=NAME&wait_ms=M
    GET /feed/count?after=P&limit=N&rows=M&namespace=&entity=&entities=a,b*&target=&kinds=a,b
    GET /feed/status?namespace=&entity=&entities=a,b*&time=MS

`limit` is how many positions are looked at, so that an answer always covers a known range: up to
the position in the header `posthouse-next` (`next` of a count), from which to go on. The reading is
done by feed workers, processes of their own; what is here only hands their bytes on.
"""

import asyncio
import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractContextManager, aclosing
from typing import Any

import msgspec

from posthouse.broker.arrow_index import END_OF_STREAM, arrow_of, checked_index
from posthouse.broker.rows import COLUMNS, WORDS
from posthouse.core.commands import TIME_MS_MAX
from posthouse.core.errors import Busy, InvalidArgument, NotFound
from posthouse.core.model import Reader, entity_of, subscription_queue
from posthouse.server.feed_worker import FAILED, Ask, Failure, Lives, Wanted
from posthouse.server.host import BrokerHost
from posthouse.server.http import Answer, Piece, Request
from posthouse.server.http_peer import FileRange
from posthouse.server.problems import HttpProblem
from posthouse.server.shapes import WAIT_MS_MAX, EventForm, LifeForm, ReaderInfoForm
from posthouse.store.frames import Frame, encode_header

_log = logging.getLogger(__name__)

ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"
LIMIT, LIMIT_MAX = 10_000, 100_000_000
WORKERS_MAX = 4  # at work at a time; who comes then waits for one
WAIT_FOR_WORKER_SECONDS = 30
IDLE_SECONDS = 60  # after which a feed worker without work goes
_PIPE_BYTES = 1 << 20
BEHIND_SECONDS = 0.02
ROWS_MAX = 1 << 40  # that are counted
ENTITIES_MAX = 1_000  # names and patterns of one request
_CHOOSING = ("namespace", "entity", "entities", "target", "kinds")
_PARAMETERS = frozenset((*_CHOOSING, "after", "limit", "columns", "reader", "wait_ms"))
_OF_COUNT = frozenset((*_CHOOSING, "after", "limit", "rows"))
_OF_STATUS = frozenset(("namespace", "entity", "entities", "time"))
_EventRow = tuple[int, int, str, str, int, str]


class FeedWorker:
    """One process that reads the journal, as the serving process sees it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.idle: asyncio.TimerHandle | None = None

    @classmethod
    async def start(cls) -> "FeedWorker":
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", "posthouse.server.feed_worker")
        made = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, limit=2 * _PIPE_BYTES, start_new_session=True
        )
        return cls(made)

    @property
    def lives(self) -> bool:
        return self._process.returncode is None

    async def ask(self, ask: Ask) -> AsyncIterator[bytes]:
        """Yields the bytes that the worker writes.

        Raises HttpProblem, or ConnectionError if the worker has died.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        reader = self._process.stdout
        self._process.stdin.write(msgspec.json.encode(ask) + b"\n")
        await self._process.stdin.drain()
        try:
            while size := int.from_bytes(await reader.readexactly(4), "big"):
                if size == FAILED:
                    size = int.from_bytes(await reader.readexactly(4), "big")
                    raise _told(msgspec.json.decode(await reader.readexactly(size), type=Failure))
                yield await reader.readexactly(size)
        except asyncio.IncompleteReadError:
            raise ConnectionError("a feed worker has ended unasked") from None

    def end(self) -> None:
        if self.idle is not None:
            self.idle.cancel()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()


class Feed:
    """The feed of one broker."""

    def __init__(self, broker: BrokerHost) -> None:
        self._broker = broker
        self._free: list[FeedWorker] = []
        self._all: set[FeedWorker] = set()
        self._room = asyncio.Semaphore(WORKERS_MAX)

    def close(self) -> None:
        for worker in self._all:
            worker.end()

    # Routes.

    async def answer(self, request: Request) -> Answer:
        if request.method != "GET":
            raise HttpProblem(405, "method-not-allowed", "The feed is read with GET.")
        match request.parts[1:]:
            case [] | [b""]:
                return await self._read(request)
            case [b"status"]:
                return Answer(msgspec.json.encode(await self._told_status(request)))
            case [b"count"]:
                return Answer(await self._count(request))
            case _:
                text = "There are /feed, /feed/count and /feed/status."
                raise HttpProblem(404, "not-found", text)

    async def _told_status(self, request: Request) -> dict[str, object]:
        """The status of the feed or a part of it: the positions, the entity, a time's position."""
        query = request.query
        _check_known(query, _OF_STATUS)
        namespace, entity = query.get("namespace"), query.get("entity")
        found = None if namespace is None or entity is None else self._found(namespace, entity)
        self._check(request, namespace, found or entity)
        if entity is not None and found is None:
            raise NotFound("queue, topic or subscription", entity, namespace or "")
        first, last = self.range()
        status: dict[str, object] = {"first": first, "last": last}
        if namespace is None:
            status = self.status()
        if found is not None:
            status["entity"] = found
        if "time" in query:
            time_ms = _number(query, "time", 0, 0, TIME_MS_MAX)
            status["at"] = await self._first_at(time_ms, first, last + 1)
        return status

    def _found(self, namespace: str, entity: str) -> str | None:
        """The entity's name as its rows have it; subscriptions may be TOPIC/SUBSCRIPTION."""
        assert self._broker.engine is not None
        exists = self._broker.engine.view.exists
        topic, _, name = entity.rpartition("/")
        names = (entity, subscription_queue(topic, name))
        return next((each for each in names if exists(namespace, each)), None)

    async def _first_at(self, time_ms: int, first: int, end: int) -> int:
        """The first position of that time or later.

        Time goes back along the feed only where a clock that was ahead was turned back. What came
        before that is not later, whatever its rows say.
        """
        assert self._broker.engine is not None
        turned = self._broker.engine.view.turned_back()
        if first < turned < end:
            if await self._time_at(turned) < time_ms:
                first = turned
            else:
                end = turned
        while first < end:
            middle = (first + end) // 2
            if await self._time_at(middle) < time_ms:
                first = middle + 1
            else:
                end = middle
        return first

    async def _time_at(self, position: int) -> int:
        wanted = Wanted(position, position + 1, columns=("time",))
        asked = self._asked(Ask(feed=wanted), position, position + 1)
        line = b"".join([chunk async for chunk in asked])
        found: int = msgspec.json.decode(line)["time"]
        return found

    async def _read(self, request: Request) -> Answer:
        query = request.query
        _check_known(query, _PARAMETERS)
        namespace, entity = query.get("namespace"), query.get("entity")
        self._check(request, namespace, entity)
        first, last = self.range()
        after = self._after(query, first, last)
        limit = _number(query, "limit", LIMIT, 1, LIMIT_MAX)
        wait_ms = _number(query, "wait_ms", 0, 0, WAIT_MS_MAX)
        if wait_ms and after >= last:
            with self._refusal(request, namespace, entity) as refused:
                await self._wait(request, after, wait_ms, refused)
            self._check(request, namespace, entity)  # it may have changed meanwhile
            first, last = self.range()
        end = min(after + limit, last) + 1
        arrow = _wants_arrow(request)
        wanted = Wanted(
            after + 1, end, arrow, columns=_words(query, "columns", COLUMNS), **_chosen(query)
        )
        headers = (
            (b"content-type", (ARROW if arrow else NDJSON).encode()),
            (b"posthouse-next", b"%d" % max(end - 1, after)),
            (b"cache-control", b"no-store"),
        )
        if end <= wanted.first and not arrow:
            return Answer(b"", 200, headers)
        chunks = self._feed(wanted)
        try:
            head = await anext(chunks)  # a failure is told as such while it still can be
        except StopAsyncIteration:
            return Answer(b"", 200, headers)
        return Answer(self._while_allowed(request, head, chunks), 200, headers)

    async def _count(self, request: Request) -> bytes:
        """Counts the rows of a range, and says at which position the wanted number is reached."""
        query = request.query
        _check_known(query, _OF_COUNT)
        self._check(request, query.get("namespace"), query.get("entity"))
        after = self._after(query, *self.range())
        limit = _number(query, "limit", LIMIT, 1, LIMIT_MAX)
        most = _number(query, "rows", ROWS_MAX, 1, ROWS_MAX)
        end = min(after + limit, self.range()[1]) + 1
        wanted = Wanted(after + 1, end, columns=("position",), **_chosen(query))
        if end <= wanted.first:
            return msgspec.json.encode({"rows": 0, "next": after})
        asked = self._asked(Ask(count=wanted, most=most), wanted.first, end)
        return b"".join([chunk async for chunk in asked])

    async def _while_allowed(
        self, request: Request, head: Piece, chunks: AsyncIterator[Piece]
    ) -> AsyncIterator[Piece]:
        """An answer is cut off when who reads it may not any more: its end would say it is all."""
        query = request.query

        def cut_off(refused: "asyncio.Future[None]") -> None:
            if not refused.cancelled():
                request.peer.cut_off()

        with self._refusal(request, query.get("namespace"), query.get("entity")) as refused:
            refused.add_done_callback(cut_off)
            async with aclosing(chunks):  # type: ignore[type-var]  # it is a generator
                yield head
                async for chunk in chunks:
                    yield chunk

    def _refusal(
        self, request: Request, namespace: str | None, entity: str | None
    ) -> AbstractContextManager["asyncio.Future[None]"]:
        engine = self._broker.engine
        assert engine is not None

        def check() -> None:
            self._check(request, namespace, entity)

        return engine.access_watchers.refusal(request.principal, check)

    def _check(self, request: Request, namespace: str | None, entity: str | None) -> None:
        """Raises Unauthorized."""
        if namespace is None or "reader" in request.query:
            self._broker.check(request.principal, "listen", "*", "*")
            return
        names = _entities(request.query) if entity is None else (entity,)
        for each in names or ("*",):
            self._broker.check(request.principal, "listen", namespace, entity_of(each))

    def _after(self, query: dict[str, str], first: int, last: int) -> int:
        """The position behind which to begin. Raises HttpProblem where that is trimmed."""
        name = query.get("reader")
        if name is not None:
            assert self._broker.engine is not None
            reader = self._broker.engine.view.reader(name)
            if reader is None:
                raise NotFound("reader", name)
            self.check_reader(reader, reader.position)
            after = _number(query, "after", reader.position, 0, 1 << 62)
        else:
            last_one = query.get("after") == "last"
            after = last if last_one else _number(query, "after", first - 1, 0, 1 << 62)
        if after < first - 1:
            raise _trimmed(after, first)
        engine = self._broker.engine
        assert engine is not None
        # A follower may not have yet what its leader told of; what is before that is known.
        return after if engine.follows else min(after, last)

    async def _wait(
        self, request: Request, after: int, wait_ms: int, refused: "asyncio.Future[None]"
    ) -> None:
        waiting = asyncio.ensure_future(self._until_beyond(after))
        gone = asyncio.ensure_future(request.gone())
        await asyncio.wait(
            (waiting, gone, refused), timeout=wait_ms / 1000, return_when=asyncio.FIRST_COMPLETED
        )
        left = gone.done()
        for each in (waiting, gone):
            each.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await each
        if left:
            raise ConnectionResetError

    async def _until_beyond(self, after: int) -> None:
        """Waits until a position behind `after` can be read.

        Where acknowledgements do not wait for the disk, that is later than the engine has it.
        """
        engine = self._broker.engine
        assert engine is not None
        while self.range()[1] <= after and not engine.is_over:
            await engine.beyond(after)
            await asyncio.sleep(0 if self.range()[1] > after else BEHIND_SECONDS)

    # The range of the feed, and its readers.

    def range(self) -> tuple[int, int]:
        """The first and the last position that can be read; the last may be before the first."""
        store = self._broker.store
        assert store is not None
        extents = store.extents()
        return (extents[0].first if extents else 1), store.readable - 1

    def status(self) -> dict[str, object]:
        store = self._broker.store
        assert store is not None
        first, last = self.range()
        extents = [] if self._broker.url is None else store.extents()
        parts = [
            {
                "first": each.first,
                "last": min(each.end - 1, last),
                "rows": min(each.end - 1, last) - each.first + 1,
                "size_bytes": each.size_bytes,
                "sealed": at < len(extents) - 1,
            }
            for at, each in enumerate(extents)
        ]
        return {"first": first, "last": last, "parts": parts}

    def readers(self) -> list[ReaderInfoForm]:
        assert self._broker.engine is not None
        first, last = self.range()
        return [
            ReaderInfoForm(
                each.name, each.position, each.updated_ms, max(0, last - each.position),
                each.position < first - 1,
            )
            for each in self._broker.engine.view.readers()
        ]  # fmt: skip

    def check_reader(self, reader: Reader | None, position: int) -> None:
        """Raises HttpProblem where what it has not read yet is gone, or where it is too far on."""
        first, last = self.range()
        if position > last:
            raise InvalidArgument("position", f"must not be beyond the last, {last}")
        if reader is not None and position < first - 1:
            raise _trimmed(position, first)

    # Asking feed workers.

    async def lives(self, namespace: str, id: str) -> list[LifeForm]:
        """The lives of the messages with an id. Raises HttpProblem where there is none."""
        await self._flush()
        _, last = self.range()
        found = await self._lives(Lives(namespace, last + 1, id))
        if not found:
            raise HttpProblem(
                404, "message-not-found",
                f"No message with id {id!r} was sent in the namespace {namespace!r}, or it was"
                " trimmed.",
            )  # fmt: skip
        return found

    async def life(self, namespace: str, queue: str, sequence: int) -> list[LifeForm]:
        await self._flush()
        _, last = self.range()
        return await self._lives(Lives(namespace, last + 1, None, queue, sequence))

    async def _flush(self) -> None:
        """Writes what was told already: a lock may still wait for what follows it."""
        engine = self._broker.engine
        if engine is not None and not engine.follows:
            await engine.flush()

    async def _lives(self, wanted: Lives) -> list[LifeForm]:
        try:
            asked = self._asked(Ask(lives=wanted), 1, wanted.end)
            data = b"".join([chunk async for chunk in asked])
        except HttpProblem as problem:  # it was never there, or is trimmed
            if problem.status != 410:
                raise
            raise HttpProblem(404, "message-not-found", problem.detail) from None
        lives = msgspec.json.decode(data, type=list[tuple[str, int, list[_EventRow]]])
        return [
            LifeForm(queue, sequence, [EventForm(*event) for event in events])
            for queue, sequence, events in lives
        ]

    async def _feed(self, wanted: Wanted) -> AsyncIterator[Piece]:
        if wanted.arrow and wanted.is_whole and not wanted.columns:
            async for piece in self._mostly_arrow(wanted):
                yield piece
            return
        async for chunk in self._asked(Ask(feed=wanted), wanted.first, wanted.end):
            yield chunk

    async def _mostly_arrow(self, wanted: Wanted) -> AsyncIterator[Piece]:
        """Yields whole batches as they lie in Arrow segments; a feed worker makes those between."""
        ranges = await asyncio.to_thread(self._in_arrow, wanted)
        if not ranges:
            async for chunk in self._asked(Ask(feed=wanted), wanted.first, wanted.end):
                yield chunk
            return
        first = wanted.first
        schema = ranges[0][2]
        yield FileRange(schema.path, 0, schema.length)
        for begin, end, piece in [*ranges[1:], (wanted.end, wanted.end, None)]:
            if begin > first:
                between = msgspec.structs.replace(wanted, first=first, end=begin, bare=True)
                async for chunk in self._asked(Ask(feed=between), first, begin, patient=True):
                    yield chunk
            if piece is not None:
                yield piece
                first = end
        yield END_OF_STREAM

    def _in_arrow(self, wanted: Wanted) -> list[tuple[int, int, FileRange]]:
        """Runs of positions that are whole batches, and where they lie; the schema goes first."""
        store = self._broker.store
        assert store is not None
        found: list[tuple[int, int, FileRange]] = []
        for segment in () if store.segments is None else store.segments.sealed():
            if segment.end <= wanted.first or segment.first >= wanted.end:
                continue
            arrow_segment = arrow_of(segment.path)
            index = checked_index(arrow_segment)
            if index is None and arrow_segment.exists():
                _log.warning("%s is not what was written, and is made anew.", arrow_segment,
                             extra={"event": "feed.bad_arrow_segment"})  # fmt: skip
                arrow_segment.unlink(missing_ok=True)
            whole = [
                each
                for each in (index.batches if index is not None else ())
                if wanted.first <= each.first and each.end <= wanted.end
            ]
            if index is None or not whole:
                continue
            if not found:
                found.append((0, 0, FileRange(str(arrow_segment), 0, index.schema_bytes)))
            length = whole[-1].offset + whole[-1].length - whole[0].offset
            place = FileRange(str(arrow_segment), whole[0].offset, length)
            found.append((whole[0].first, whole[-1].end, place))
        return found

    async def _asked(
        self, ask: Ask, first: int, end: int, *, patient: bool = False
    ) -> AsyncIterator[bytes]:
        """A feed worker's answer. `patient`: it was begun, and cannot be refused any more."""
        try:
            async with asyncio.timeout(None if patient else WAIT_FOR_WORKER_SECONDS):
                await self._room.acquire()
        except TimeoutError:
            raise Busy("too many read the feed at a time") from None
        worker = None
        whole = False
        try:
            ask = await self._with_journal(ask, first, end)
            worker = await self._worker()
            async for chunk in worker.ask(ask):
                yield chunk
            whole = True
        finally:
            self._room.release()
            if worker is not None:
                self._give_back(worker, whole)
            if ask.spool is not None:
                os.unlink(ask.spool)  # noqa: PTH108 (of a moment, as is its making)

    async def _with_journal(self, ask: Ask, first: int, end: int) -> Ask:
        store = self._broker.store
        assert store is not None
        if store.segments is not None:
            return msgspec.structs.replace(ask, folder=str(store.segments.folder))
        if self._broker.url is not None:
            return msgspec.structs.replace(ask, store=self._broker.url.full)
        frames = [frame async for frame in store.read(first, end)]
        name = await asyncio.to_thread(_spool, frames)
        return msgspec.structs.replace(ask, spool=name)

    async def _worker(self) -> FeedWorker:
        while self._free:
            worker = self._free.pop()
            if worker.idle is not None:
                worker.idle.cancel()
                worker.idle = None
            if worker.lives:
                return worker
            self._all.discard(worker)
        worker = await FeedWorker.start()
        self._all.add(worker)
        return worker

    def _give_back(self, worker: FeedWorker, whole: bool) -> None:
        """Returns a worker to the free ones, or ends it if it has not written its whole answer."""
        if not whole or not worker.lives:
            worker.end()
            self._all.discard(worker)
            return
        self._free.append(worker)

        def go() -> None:
            if worker in self._free:
                self._free.remove(worker)
                self._all.discard(worker)
                worker.end()

        worker.idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, go)


def _spool(frames: Sequence[Frame]) -> str:
    """Writes frames to a file for a feed worker; its name."""
    file, name = tempfile.mkstemp(prefix="posthouse-")
    with os.fdopen(file, "wb") as writing:
        writing.writelines(encode_header(frame, 0) + frame.payload for frame in frames)
    return name


def _told(failure: Failure) -> HttpProblem:
    if failure.gone:
        return HttpProblem(410, "not-there", f"It cannot be read any more: {failure.text}.")
    _log.error("The journal cannot be read: %s", failure.text, extra={"event": "feed.failed"})
    return HttpProblem(500, "feed-failed", "The journal cannot be read; the log says why.")


def _check_known(query: dict[str, str], known: Collection[str]) -> None:
    unknown = set(query) - set(known)
    if unknown:
        raise InvalidArgument(min(unknown), f"is not one of {', '.join(sorted(known))}")


def _number(query: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 19 or not least <= int(text) <= most:
        raise InvalidArgument(name, f"must be a whole number from {least} to {most}")
    return int(text)


def _chosen(query: dict[str, str]) -> dict[str, Any]:
    """The filters of a request, as `Wanted` has them."""
    exact = {name: query.get(name) for name in ("namespace", "entity", "target")}
    return exact | {"entities": _entities(query), "kinds": _words(query, "kinds", WORDS)}


def _entities(query: dict[str, str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(filter(None, query.get("entities", "").split(","))))
    if len(names) > ENTITIES_MAX:
        raise InvalidArgument("entities", f"must be at most {ENTITIES_MAX} names and patterns")
    return names


def _words(query: dict[str, str], name: str, known: Collection[str]) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word for word in query.get(name, "").split(",") if word))
    for word in words:
        if word not in known:
            raise InvalidArgument(name, f"has no {word!r}; there are {', '.join(sorted(known))}")
    return words


def _wants_arrow(request: Request) -> bool:
    """Raises HttpProblem where nothing that is accepted is known."""
    accepted = request.headers.get(b"accept", b"*/*").decode("latin-1").lower()
    for each in accepted.split(","):
        kind = each.partition(";")[0].strip()
        if kind == ARROW:
            return True
        if kind in (NDJSON, "application/*", "*/*", "application/json", "text/*"):
            return False
    raise HttpProblem(406, "not-acceptable", f"There are {NDJSON} and {ARROW}.")


def _trimmed(after: int, first: int) -> HttpProblem:
    return HttpProblem(
        410, "trimmed", f"What came behind position {after} is not kept any more: the journal"
        f" begins at {first}. Go on from after={first - 1}, and take note of the gap.",
    )  # fmt: skip
