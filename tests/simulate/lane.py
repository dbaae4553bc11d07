"""A lane under several writers, on a log that compares before it appends, over a bad network.

Messages and answers are lost, late and out of order; reads are stale; nodes stop for a while, crash
and come back, and try to lead at any time. What a writer took for confirmed must be in the lane for
whoever reads it, unaltered and once, and nobody who reads may ever have to take anything back.
"""

import heapq
from collections.abc import Callable
from random import Random

from posthouse.store.frames import HEADER_BYTES, Frame
from posthouse.store.lane import Look, Publish, Reading, Writing

NODES = 3
TICK = 0.02
PART_BYTES = HEADER_BYTES + 64


class Broken(AssertionError):
    """A promise of the lane was not kept."""


class Log:
    """What the replicated log does: numbers, compares, appends, forgets its beginning."""

    def __init__(self) -> None:
        self.first = 1
        self.messages: list[bytes] = []

    @property
    def last(self) -> int:
        return self.first + len(self.messages) - 1

    def publish(self, expected: int, data: bytes) -> int | None:
        if expected != self.last:
            return None
        self.messages.append(data)
        return self.last

    def read(self, after: int, up_to: int) -> list[tuple[int, bytes]]:
        begin = max(after + 1, self.first)
        return [(at, self.messages[at - self.first]) for at in range(begin, up_to + 1)]

    def purge(self, before: int) -> None:
        self.messages = self.messages[max(0, before - self.first) :]
        self.first = max(self.first, before)


class Node:
    """A broker: its folder of confirmed frames survives a crash, the rest does not."""

    def __init__(self, name: int) -> None:
        self.name = name
        self.folder: list[Frame] = []
        self.reading = Reading()
        self.writing: Writing | None = None
        self.written: list[Frame] = []  # and not confirmed yet
        self.asleep_until = 0.0
        self.life = 0  # answers to a former one are not heard

    @property
    def last(self) -> int:
        return self.folder[-1].number if self.folder else 0


class Lanes:
    """One history."""

    def __init__(self, seed: int, claims: Callable[[Random, int], int] | None = None) -> None:
        self.random = Random(seed)
        self._claim = claims or (lambda random, _: random.getrandbits(64))
        self.log = Log()
        self.truth: list[Frame] = []  # what was confirmed to somebody, or read, by number
        self.nodes = [Node(name) for name in range(NODES)]
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.confirmed = 0
        self._led: set[int] = set()  # the claims that were won
        self._bad = self.random.choice((0.02, 0.15, 0.4))  # how bad the network is

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now += TICK
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            for node in self.nodes:
                if node.asleep_until <= self.now:
                    self._act(node)
        self._check()

    def _later(self, node: Node, do: Callable[[], None]) -> None:
        """Something arrives, at some time or never."""
        random, life = self.random, node.life
        if random.random() < self._bad:
            return
        delay = random.expovariate(1 / 0.01) if random.random() > self._bad else random.random() * 3
        self._count += 1

        def arrive() -> None:
            if node.life == life:
                do()

        heapq.heappush(self._events, (self.now + delay, self._count, arrive))

    def _to_log(self, do: Callable[[], None]) -> None:
        """A message to the log arrives also where its sender is dead by then."""
        nobody = Node(-1)
        self._later(nobody, do)

    # What nodes do.

    def _act(self, node: Node) -> None:
        random = self.random
        chance = random.random()
        if chance < 0.002:
            self._crash(node)
        elif chance < 0.004:
            node.asleep_until = self.now + random.random() * 4
        elif node.writing is None:
            if chance < 0.008:
                self._try_to_lead(node)
            elif chance < 0.2:
                self._follow(node)
        elif node.writing.is_won:
            if chance < 0.15 and len(node.written) < 12:
                for _ in range(random.choice((1, 1, 3, 6))):
                    self._write(node, node.writing)
            elif chance < 0.17:
                node.writing.mark()
            elif chance < 0.18:
                self._purge(node)
        if node.writing is not None:
            self._poll(node, node.writing)

    def _crash(self, node: Node) -> None:
        node.life += 1
        node.writing = None
        node.written = []
        node.reading = Reading()

    def _try_to_lead(self, node: Node) -> None:
        epoch = node.reading.epoch + 1
        claim = self._claim(self.random, node.name)
        node.writing = Writing(node.reading, epoch, claim, PART_BYTES)
        node.written = []

    def _write(self, node: Node, writing: Writing) -> None:
        if node.last + len(node.written) < writing.confirmed:
            return  # it has not caught up
        number = node.last + len(node.written) + 1
        large = self.random.random() < 0.1
        payload = b"%d of %d " % (number, self.random.getrandbits(60))
        payload += bytes(3 * PART_BYTES if large else 0)
        frame = Frame(writing.epoch, number, number, 1, number, 0, payload)
        node.written.append(frame)
        writing.append(frame)

    def _purge(self, node: Node) -> None:
        """Up to a mark or fence that counts, and only what all nodes have."""
        reading = Reading()
        safe, least = 0, min(each.last for each in self.nodes)
        for sequence, data in self.log.read(0, min(self.log.last, node.reading.sequence)):
            before = reading.void
            frame = reading.take(sequence, data)
            if frame is None and reading.void == before and data[8] and reading.number <= least:
                safe = sequence
        self.log.purge(safe)

    def _poll(self, node: Node, writing: Writing) -> None:
        for action in writing.poll(self.now):
            if isinstance(action, Publish):
                self._publish(node, writing, action)
            else:
                self._look(node, action, lambda found: self._looked(node, writing, found))
        self._note_confirmed(node, writing)

    def _publish(self, node: Node, writing: Writing, action: Publish) -> None:
        run, index, life = action.run, action.ordinal, node.life

        def answer(sequence: int | None) -> None:
            if node.writing is not writing:
                return
            if sequence is None:
                writing.refused(run, index)
            else:
                writing.acknowledged(run, index, sequence)
            self._note_confirmed(node, writing)

        def arrive() -> None:
            sequence = self.log.publish(action.expected, action.data)
            if node.life == life:
                self._later(node, lambda: answer(sequence))

        self._to_log(arrive)

    def _look(
        self, node: Node, action: Look, then: Callable[[list[tuple[int, bytes]]], None]
    ) -> None:
        stale = self.random.randrange(4) if self.random.random() < self._bad else 0
        found = self.log.read(action.after, self.log.last - stale)
        self._later(node, lambda: then(found))

    def _looked(self, node: Node, writing: Writing, found: list[tuple[int, bytes]]) -> None:
        if node.writing is not writing:
            return
        for frame in writing.looked(found):
            self._take(node, frame)
        self._note_confirmed(node, writing)
        if writing.is_over:
            node.writing = None
            node.written = []
            self._crash(node)  # a deposed broker is started anew

    def _follow(self, node: Node) -> None:
        reading = node.reading

        def then(found: list[tuple[int, bytes]]) -> None:
            if node.reading is not reading or node.writing is not None:
                return
            for sequence, data in found:
                frame = reading.take(sequence, data)
                if frame is not None:
                    self._take(node, frame)

        self._look(node, Look(reading.sequence), then)

    def _take(self, node: Node, frame: Frame) -> None:
        """A frame that counts goes into the folder; what was purged comes from another's."""
        while node.last + 1 < frame.number:
            if node.last == len(self.truth):
                raise Broken(f"frame {frame.number} comes, and nobody has the one before")
            node.folder.append(self.truth[node.last])
        if frame.number == node.last + 1:
            node.folder.append(frame)
            self._know(frame)

    def _know(self, frame: Frame) -> None:
        if frame.number <= len(self.truth):
            if self.truth[frame.number - 1] != frame:
                raise Broken(f"frame {frame.number} is another one for somebody")
            return
        if frame.number != len(self.truth) + 1:
            raise Broken(f"frame {frame.number} comes behind {len(self.truth)}")
        if self.truth and frame.epoch < self.truth[-1].epoch:
            raise Broken(f"frame {frame.number} is of an older epoch than the one before")
        self.truth.append(frame)

    def _note_confirmed(self, node: Node, writing: Writing) -> None:
        while node.written and node.written[0].number <= writing.confirmed:
            frame = node.written.pop(0)
            self._take(node, frame)
            self.confirmed += 1
        if writing.is_won:
            self._led.add(writing.claim)

    @property
    def leaderships(self) -> int:
        return len(self._led)

    def _check(self) -> None:
        """What is in the lane is what was confirmed, and perhaps more."""
        reading = Reading()
        for sequence, data in self.log.read(0, self.log.last):
            frame = reading.take(sequence, data)
            if frame is not None:
                self._know(frame)
        if self.truth and reading.number < self.truth[-1].number:
            raise Broken(f"frame {reading.number + 1} was confirmed, and is not in the lane")
        for node in self.nodes:
            if node.folder != self.truth[: node.last]:
                raise Broken(f"node {node.name} has other frames than were confirmed")


def simulate(
    seed: int, steps: int = 600, claims: Callable[[Random, int], int] | None = None
) -> Lanes:
    lanes = Lanes(seed, claims)
    lanes.run(steps)
    return lanes
