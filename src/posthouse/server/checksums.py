"""Checksums of a folder's frames, by which nodes of a cluster are compared.

All nodes have the same frames, each in a folder of its own: cut into other segments, trimmed at
other places, with other salts. So what is compared is the frames, some at a time. A chunk ends
where every node ends it: at a number, or behind a large frame.
"""

import asyncio
import zlib
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from posthouse.store import Store
from posthouse.store.errors import Damaged
from posthouse.store.frames import Frame, checksum_of

CHUNK_FRAMES = 256
LARGE_BYTES = 1 << 20  # of a frame, behind which a chunk ends
ANSWER_BYTES = 32 << 20  # of frames, after which an answer ends with the chunk
ANSWER_CHUNKS = 10_000
_THREAD_BYTES = 64 << 10  # of a frame, above which its checksum is not worked out in the loop

Position = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class ChunkForm(msgspec.Struct, frozen=True):
    """Some frames in a row."""

    first_number: int
    last_number: int
    end: int  # the position behind them
    crc: int


class ChecksumsForm(msgspec.Struct, frozen=True):
    """`GET /cluster/checksums`."""

    node: str
    first: int  # the first position that this node has
    end: int  # the position behind its last durable one
    chunks: list[ChunkForm]
    damage: str = ""  # where reading has failed


async def checksums(
    node: str, store: Store, first: int, end: int, *, each: bool = False
) -> ChecksumsForm:
    """The checksums of the frames from one position to another, as many as fit an answer.

    The first frame is the one that begins at `first`, or the next. With `each` every frame is a
    chunk. A chunk that `end` cuts off is in it as far as it goes.
    """
    extents = store.extents()
    begins = extents[0].first if extents else 1
    chunks: list[ChunkForm] = []
    crc = taken = began = 0
    last: Frame | None = None  # of a chunk that is not closed yet
    damage = ""
    try:
        async for frame in store.read(max(first, begins), min(end, store.readable)):
            if frame.first < first or frame.end > end:
                continue
            if last is None:
                crc, began = 0, frame.number
            plain = replace(frame, durable=0)  # how much was synced there, which differs
            if len(frame.payload) > _THREAD_BYTES:
                value = await asyncio.to_thread(checksum_of, plain)
            else:
                value = checksum_of(plain)
            crc = zlib.crc32(value.to_bytes(4, "big"), crc)
            taken += frame.size_bytes
            last = frame
            is_large = len(frame.payload) > LARGE_BYTES
            if each or is_large or frame.number % CHUNK_FRAMES == 0:
                chunks.append(ChunkForm(began, frame.number, frame.end, crc))
                last = None
                if taken >= ANSWER_BYTES or len(chunks) >= ANSWER_CHUNKS:
                    break
    except Damaged as error:
        damage, last = str(error), None
    if last is not None:
        chunks.append(ChunkForm(began, last.number, last.end, crc))
    return ChecksumsForm(node, begins, store.readable, chunks, damage)
