"""Metrics as Prometheus reads them, written in slices: others have their turn meanwhile.

The library that knows the formats is imported when somebody first asks.
"""

import asyncio
import importlib
import re
from collections.abc import AsyncIterator, Iterator
from copy import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import Metric

SLICE_SAMPLES = 100
_HEAD = re.compile(rb"^# .*\n", re.MULTILINE)  # the lines that say what a family is
_END = b"# EOF\n"  # of OpenMetrics


class Exposition:
    """Writes one text at a time, so that many who ask are no longer turn of the loop than one."""

    def __init__(self) -> None:
        self._free = asyncio.Lock()
        self._is_imported = False

    async def write(
        self, families: "AsyncIterator[Metric]", accept: str = ""
    ) -> tuple[bytes, bytes]:
        """The text of the families in the form that is accepted, and its content type.

        Families of one name are written as one, wherever they come.
        """
        if not self._is_imported:  # which takes long
            await asyncio.to_thread(importlib.import_module, "prometheus_client")
            self._is_imported = True
        from prometheus_client.exposition import choose_encoder
        from prometheus_client.registry import Collector

        class One(Collector):
            def __init__(self, family: "Metric") -> None:
                self._family = family

            def collect(self) -> "Iterator[Metric]":
                yield self._family

        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version that is none
            encode, content_type = choose_encoder("")
        written: dict[str, list[bytes]] = {}  # by family
        end, samples = b"", 0
        async with self._free:
            async for family in families:
                for piece in _pieces(family):
                    samples += len(piece.samples)
                    if samples > SLICE_SAMPLES:
                        await asyncio.sleep(0)
                        samples = len(piece.samples)
                    text = encode(One(piece))
                    if text.endswith(_END):
                        text, end = text.removesuffix(_END), _END
                    before = written.setdefault(piece.name, [])
                    before.append(_HEAD.sub(b"", text) if before else text)
        texts = [text for pieces in written.values() for text in pieces]
        return b"".join([*texts, end]), content_type.encode()


def _pieces(family: "Metric") -> "Iterator[Metric]":
    """The family, in parts that are not larger than a slice."""
    samples = family.samples
    for at in range(0, max(1, len(samples)), SLICE_SAMPLES):
        piece = copy(family)
        piece.samples = samples[at : at + SLICE_SAMPLES]
        yield piece
