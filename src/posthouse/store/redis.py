"""The journal in a stream of Redis: `redis://HOST`. It is as durable as that Redis is.

    {NAME}:frames      a stream: an entry a frame, its id <number>-0, its field f the encoded frame
    {NAME}:extents     a list: number, first, begun_ms, before_bytes of the frame that begins each
    {NAME}:head        a hash: number, epoch, claim and end_bytes of the last frame
    {NAME}:snapshots   a hash: position, header (see parts.py)
    {NAME}:parts:POS   a hash: number of the part, content

NAME is `posthouse`, or what `?journal=` says. All frames of a sync are added by one script, which
Redis runs as a whole or not at all. It adds them only where they follow the last frame and no other
writer has come in between: each writer has a claim, drawn at random, that it leaves with its
frames. A writer that finds another's is deposed. So a script that was sent again, because its
answer was lost, is known by its claim, too, and done once.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from posthouse.store.backend import Extents, Mark
from posthouse.store.errors import Damaged, Deposed, StoreError
from posthouse.store.file import INTERVAL_MS, SEGMENT_BYTES, Durability
from posthouse.store.frames import HEADER_BYTES, Frame, decode, encode
from posthouse.store.parts import PartSnapshots

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as missing:  # pragma: no cover (it is installed with the tests)
    raise StoreError("Redis needs a package: pip install 'posthouse[redis]'") from missing

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
AWAY_SECONDS = 20.0  # for which a server that cannot be reached is tried again
PAUSE_SECONDS = 0.1
WRITE_BYTES = 32 << 20  # of frames in one script
REMOVE_FRAMES = 1_000
ROOM_SECONDS = 1.0  # between looks at the memory that is left
EVERYSEC_MS = 2_000  # that may be lost where Redis syncs once a second
_T = TypeVar("_T")

# KEYS: frames, extents, head. ARGV: claim, the last number this writer knows, whether that frame is
# its own, epoch, last new number, end_bytes, count of extents, extents, then number and frame.
# Answers: 0 done; 1 deposed, by epoch; 2 frames are gone, last number.
_ADD = """
local head = redis.call('hmget', KEYS[3], 'number', 'epoch', 'claim')
local number, epoch = tonumber(head[1] or 0), tonumber(head[2] or 0)
local known, last = tonumber(ARGV[2]), tonumber(ARGV[5])
local mine = head[3] == ARGV[1]
if mine and number == last then return {0, 0} end
if number < known then return {2, number} end
if (ARGV[3] == '1' and not mine) or epoch > tonumber(ARGV[4]) then return {1, epoch} end
if last > known and number ~= known then return {1, epoch} end
if last == known then return {0, 0} end
local at = 8
for _ = 1, tonumber(ARGV[7]) do redis.call('rpush', KEYS[2], ARGV[at]) at = at + 1 end
while at < #ARGV do
  redis.call('xadd', KEYS[1], ARGV[at] .. '-0', 'f', ARGV[at + 1])
  at = at + 2
end
redis.call('hset', KEYS[3], 'number', ARGV[5], 'epoch', ARGV[4], 'claim', ARGV[1],
           'end_bytes', ARGV[6])
return {0, 0}
"""
# KEYS: frames. ARGV: number. Answers the head of a frame.
_HEAD_OF = f"""
local found = redis.call('xrange', KEYS[1], ARGV[1] .. '-0', ARGV[1] .. '-0')
if #found == 0 then return false end
return string.sub(found[1][2][2], 1, {HEADER_BYTES})
"""


class CannotKeep(StoreError):
    """The durability that was asked for is not what this server keeps."""


class RedisBackend:
    """Connects to a server. Raises CannotKeep, Damaged or OSError.

    `url` may hold a password; `name` does not, and is what people are told.
    """

    is_shared = True

    def __init__(
        self,
        url: str,
        name: str,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        durability: Durability = "fsync",
        interval_ms: int = INTERVAL_MS,
        read_only: bool = False,
    ) -> None:
        self.name = name
        self._segment_bytes = segment_bytes
        address, journal = _without_journal(url)
        self._claim = secrets.token_hex(16)
        self._is_own = False  # whether the last frame that it knows was written by it
        self._is_deposed = False
        self._looked, self._room_bytes = 0.0, 0
        try:
            self._redis = redis.Redis.from_url(
                address, socket_timeout=ANSWER_SECONDS, socket_connect_timeout=CONNECT_SECONDS,
                retry=Retry(NoBackoff(), 0), health_check_interval=0,
            )  # fmt: skip
        except ValueError:  # its text may hold the address
            raise OSError(f"{name} is not an address of Redis.") from None
        self._frames, self._extents, self._head = (
            f"{{{journal}}}:{part}" for part in ("frames", "extents", "head")
        )
        self._add = self._redis.register_script(_ADD)
        self._head_of = self._redis.register_script(_HEAD_OF)
        try:
            if not read_only:
                self._check_promise(durability, interval_ms)
            self.extents = self.find()
            parts = _Parts(self, f"{{{journal}}}")
            self.snapshots = PartSnapshots(name, parts)
        except BaseException:
            self.close()
            raise

    def call(self, ask: Callable[["redis.Redis"], _T]) -> _T:
        """Asks the server, again and again while it cannot be reached. Raises OSError.

        What is asked must be the same when it is done twice.
        """
        deadline = time.monotonic() + AWAY_SECONDS
        while True:
            try:
                return ask(self._redis)
            except (redis.ConnectionError, redis.TimeoutError) as error:
                is_refused = isinstance(error, redis.AuthenticationError)
                if is_refused or time.monotonic() > deadline:
                    raise OSError(f"{self.name} cannot be reached: {error}") from None
            except redis.RedisError as error:
                raise OSError(f"{self.name} has refused: {error}") from None
            time.sleep(PAUSE_SECONDS)

    # What the server promises.

    def _check_promise(self, durability: Durability, interval_ms: int) -> None:
        """Raises CannotKeep."""
        try:
            names = "appendonly", "appendfsync", "maxmemory-policy"
            found = self.call(lambda server: server.config_get(*names))
            settings = {_text(key): _text(value) for key, value in found.items()}
        except OSError as error:
            if durability == "memory":
                return
            raise CannotKeep(
                f"Nobody knows what {self.name} keeps: {error}. Allow CONFIG GET, or start with"
                " --durability memory."
            ) from None
        policy = settings.get("maxmemory-policy", "")
        if policy.startswith("allkeys"):
            raise CannotKeep(
                f"{self.name} removes keys when its memory is full (maxmemory-policy {policy}):"
                " set it to noeviction."
            )
        syncs = settings.get("appendfsync") if settings.get("appendonly") == "yes" else "nothing"
        if syncs == "always" or durability == "memory":
            return
        if durability == "interval" and syncs == "everysec" and interval_ms >= EVERYSEC_MS:
            return
        weaker = f"--durability interval --interval-ms {EVERYSEC_MS}, or " * (syncs == "everysec")
        raise CannotKeep(
            f"{self.name} does not keep what --durability {durability} promises: it syncs {syncs}"
            " (appendonly, appendfsync). Set appendonly yes and appendfsync always there, or start"
            f" with {weaker}--durability memory."
        )

    # Writing.

    def find(self) -> Extents:
        def ask(server: "redis.Redis") -> Any:
            asking = server.pipeline(transaction=True)
            asking.lrange(self._extents, 0, -1)
            asking.xrevrange(self._frames, count=1)
            asking.hget(self._head, "end_bytes")
            return asking.execute()

        rows, newest, size = self.call(ask)
        if not newest:
            return Extents(self._segment_bytes)
        [(id, fields)] = newest
        last = self._frame(id, fields)
        try:
            marks = [Mark(*map(int, row.split())) for row in rows]
            end_bytes = int(size)
        except (ValueError, TypeError):
            marks, end_bytes = [], 0
        if not marks:
            raise Damaged(self.name, last.number, "no extent begins before it", unit="frame")
        return Extents(self._segment_bytes, marks, last.without_payload(), end_bytes)

    def write(self, frames: Sequence[Frame]) -> None:
        begin = size = 0
        for at, frame in enumerate(frames):
            if size and size + frame.size_bytes > WRITE_BYTES:
                self._write(frames[begin:at])
                begin, size = at, 0
            size += frame.size_bytes
        self._write(frames[begin:])

    def _write(self, frames: Sequence[Frame]) -> None:
        extents = self.extents
        sizes = [frame.size_bytes for frame in frames]
        marks = extents.begun_by(frames, sizes)
        known = 0 if extents.last is None else extents.last.number
        words: list[Any] = [
            self._claim, known, int(self._is_own),
            frames[-1].epoch if frames else 0 if extents.last is None else extents.last.epoch,
            frames[-1].number if frames else known, extents.end_bytes + sum(sizes), len(marks),
            *(" ".join(map(str, mark)) for mark in marks),
        ]  # fmt: skip
        for frame in frames:
            words += (frame.number, encode(frame))
        keys = [self._frames, self._extents, self._head]
        answer, value = self.call(lambda _: self._add(keys=keys, args=words))
        if answer == 1 and (frames or self._is_own):
            self._is_deposed = True
            raise Deposed(int(value))
        if answer == 2:
            raise OSError(
                f"{self.name} has lost frames: it ended with {known}, and ends with {value} now"
            )
        if frames:
            self._is_own = True
        extents.grow(marks, frames, sum(sizes))

    def sync(self) -> None:
        """Redis syncs before it answers, or as it was set up to."""

    def remove(self, before: int) -> bool:
        def ask(server: "redis.Redis") -> bool:
            for row in server.lrange(self._extents, 0, -1):
                if int(row.split()[0]) < before:
                    server.lrem(self._extents, 1, row)
            oldest = server.xrange(self._frames, count=1)
            if not oldest:
                return False
            number = min(before, _number(oldest[0][0]) + REMOVE_FRAMES)
            server.xtrim(self._frames, minid=f"{number}-0", approximate=False)
            return number < before

        return self.call(ask)

    def free_bytes(self) -> int:
        """Of the memory that it may use; what it has, where there is no limit."""
        if time.monotonic() - self._looked >= ROOM_SECONDS:
            memory = self.call(lambda server: server.info("memory"))
            most = int(memory.get("maxmemory", 0)) or int(memory.get("total_system_memory", 0))
            used = int(memory.get("used_memory", 0))
            self._room_bytes = max(0, most - used) if most else 1 << 62
            self._looked = time.monotonic()
        return self._room_bytes

    # Reading.

    def first_of(self, number: int) -> int | None:
        head = self.call(lambda _: self._head_of(keys=[self._frames], args=[number]))
        return None if head is None else int.from_bytes(head[32:40], "big")

    def frames(self, number: int, size_bytes: int) -> list[Frame]:
        """At most to the end of an extent, which bounds what comes at a time."""
        leads = self._is_own and not self._is_deposed
        extents = self.extents if leads else self.find()
        marks, last = extents.marks, extents.last
        if last is None:
            return []
        end = next((mark.number for mark in marks if mark.number > number), last.number + 1)
        mean = (extents.end_bytes - marks[0].before_bytes) // (last.number + 1 - marks[0].number)
        count = max(1, min(end - number, size_bytes // max(1, mean)))
        found = self.call(
            lambda server: server.xrange(self._frames, f"{number}-0", f"{end - 1}-0", count)
        )
        return [self._frame(id, fields) for id, fields in found]

    def _frame(self, id: bytes, fields: dict[bytes, bytes]) -> Frame:
        """Raises Damaged."""
        frame = decode(fields.get(b"f", b""))
        if frame is None or frame.number != _number(id):
            raise Damaged(self.name, _number(id), "it is not what was written", unit="frame")
        return frame

    def check(self) -> None:
        """There is nothing beside the frames, which are checked when they are read."""

    def close(self) -> None:
        self._redis.close()


class _Parts:
    """Snapshots in hashes."""

    def __init__(self, backend: RedisBackend, prefix: str) -> None:
        self._call = backend.call
        self._headers, self._prefix = f"{prefix}:snapshots", f"{prefix}:parts:"

    def headers(self) -> dict[int, bytes]:
        found = self._call(lambda server: server.hgetall(self._headers))
        return {int(end): header for end, header in found.items()}

    def put_header(self, end: int, header: bytes) -> None:
        self._call(lambda server: server.hset(self._headers, str(end), header))

    def part(self, end: int, number: int) -> bytes | None:
        found: bytes | None = self._call(
            lambda server: server.hget(f"{self._prefix}{end}", str(number))
        )
        return found

    def put_part(self, end: int, number: int, part: bytes) -> None:
        self._call(lambda server: server.hset(f"{self._prefix}{end}", str(number), part))

    def remove(self, keep: set[int]) -> None:
        def ask(server: "redis.Redis") -> None:
            for end in server.hkeys(self._headers):
                if int(end) not in keep:
                    server.hdel(self._headers, end)
            for key in server.scan_iter(f"{_escaped(self._prefix)}*"):
                if int(key.rpartition(b":")[2]) not in keep:
                    server.unlink(key)

        self._call(ask)


def _without_journal(url: str) -> tuple[str, str]:
    """The address for the client, and the name of the journal. Raises OSError."""
    from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    journal = query.pop("journal", "posthouse")
    if not journal.isprintable() or not 0 < len(journal) <= 200 or set(journal) & set("{}"):
        raise OSError("the name of a journal in Redis has 1 to 200 characters, and no braces")
    return urlunsplit(parts._replace(query=urlencode(query))), journal


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


def _number(id: bytes) -> int:
    return int(id.partition(b"-")[0])


def _escaped(text: str) -> str:
    """The text as a pattern of Redis that fits nothing else."""
    return "".join(f"\\{letter}" if letter in "*?[]\\" else letter for letter in text)
