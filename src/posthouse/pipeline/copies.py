"""The messages of a subscription, joined from those sent to its topic and the copies made.

The feed has a message's content once, where it was sent; a copy says of which message it is, and
what an action has changed of it. Mostly both are close together.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from posthouse.pipeline.wire import FeedClient

REMEMBERED = 100_000  # messages of a topic, of which copies may still come
LOOK_BACK = 50_000  # positions that are read at once where one is not remembered; then more
_OF_THE_COPY = ("position", "time", "namespace")
_OWN = {"entity": "target", "sequence_number": "target_sequence_number"}


@dataclass
class Copies:
    """The copies of one subscription, while a range is read."""

    broker: FeedClient
    namespace: str
    topic: str
    queue: str  # as the feed calls the subscription
    columns: list[str]  # of the feed, that are wanted
    _sent: pa.Table | None = field(default=None, repr=False)

    def read(self, first: int, end: int) -> Iterator[pa.RecordBatch]:
        """The messages that it got at these positions. Raises PosthouseError."""
        for batch in self._rows(first, end, "sent,copied"):
            kinds = batch.column("kind")
            self._remember(pa.Table.from_batches([batch.filter(pc.equal(kinds, "sent"))]))
            mine = pc.and_(pc.equal(kinds, "copied"), pc.equal(batch.column("target"), self.queue))
            copies = pa.Table.from_batches([batch.filter(mine)])
            if copies.num_rows:
                yield from self._whole(copies).to_batches()
            if self._sent is not None:
                self._sent = self._sent.slice(max(0, self._sent.num_rows - REMEMBERED))

    def _rows(self, first: int, end: int, kinds: str) -> Iterator[pa.RecordBatch]:
        columns = [*self.columns, "kind", "sequence_number", "target", "target_sequence_number"]
        return self.broker.rows(
            first, end, [*columns, "properties", "detail", "expires"], kinds=kinds,
            namespace=self.namespace, entity=self.topic,
        )  # fmt: skip

    def _remember(self, sent: pa.Table) -> None:
        self._sent = sent if self._sent is None else pa.concat_tables([self._sent, sent])

    def _whole(self, copies: pa.Table) -> pa.Table:
        """The copies with the contents of the messages they are copies of."""
        found = self._find(copies)
        assert self._sent is not None
        made = self._sent.take(found)
        for name in (*_OF_THE_COPY, *_OWN):
            if name in made.column_names:
                at = made.column_names.index(name)
                made = made.set_column(at, name, copies.column(_OWN.get(name, name)))
        at = made.column_names.index("expires")
        made = made.set_column(at, "expires", copies.column("expires"))
        return self._changed(made, copies)

    def _find(self, copies: pa.Table) -> pa.Array:
        """Finds the messages that these are copies of, further back in the feed if need be.

        Null where one was sent so long ago that the feed does not have it any more.
        """
        assert self._sent is not None
        wanted = copies.column("sequence_number").combine_chunks()
        first, look, begin = pc.min(copies.column("position")).as_py(), LOOK_BACK, None
        while True:
            known = self._sent.column("sequence_number").combine_chunks()
            found = pc.index_in(wanted, value_set=known)
            if not found.null_count:
                return found
            if begin is None:
                status = self.broker.status(namespace=self.namespace, entity=self.topic)
                begin = int(status["first"])
            if first <= begin:
                return found
            back = max(begin, first - look)
            before = pa.Table.from_batches(self._rows(back, first, "sent"), self._sent.schema)
            self._sent = pa.concat_tables([before, self._sent])
            first, look = back, 4 * look

    def _changed(self, made: pa.Table, copies: pa.Table) -> pa.Table:
        """Merges the changes that actions have made into the properties."""
        added, detail = copies.column("properties"), copies.column("detail")
        if added.null_count == len(added) and detail.null_count == len(detail):
            return made
        at = made.column_names.index("properties")
        rows = zip(made.column(at).to_pylist(), added.to_pylist(), detail.to_pylist(), strict=True)
        values = [_merged(*each) for each in rows]
        return made.set_column(at, "properties", pa.array(values, pa.string()))


def _merged(own: str | None, added: str | None, detail: str | None) -> str | None:
    properties: dict[str, Any] = json.loads(own) if own else {}
    said: dict[str, Any] = json.loads(detail) if detail else {}
    for name in said.get("removed") or ():
        properties.pop(name, None)
    properties |= json.loads(added) if added else {}
    return json.dumps(properties) if properties else None
