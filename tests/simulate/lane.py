"""A lane under several writers, on a log that compares before it appends, over a bad network.

Messages and answers are lost, late and out of order; reads are stale, and the log is purged while
they go on, also by who does not lead any more; the log does not answer for a while. Nodes stop for
a while, crash and come back, with the end of their folders lost or with none at all, and try to
lead at any time. What a writer took for confirmed must be in the lane for whoever reads it,
unaltered and once, and nobody who reads may ever have to take anything back. When a writer believes
that nobody else led at a time, nobody did.
"""

import heapq
from collections.abc import Callable
from random import Random

from posthouse.store.frames import HEADER_BYTES, Frame
from posthouse.store.lane import FENCE, RUN_MESSAGES_MAX, Look, Publish, Reading, Writing, decode

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
        self.claim = 0  # of the last fence
        self.fenced_at = 0.0  # when that was taken

    @property
    def last(self) -> int:
        return self.first + len(self.messages) - 1

    def publish(self, expected: int, data: bytes, now: float) -> int | None:
        if expected != self.last:
            return None
        self.messages.append(data)
        entry = decode(data)
        assert entry is not None
        if entry.kind == FENCE:
            self.claim, self.fenced_at = entry.claim, now
        return self.last

    def read(self, after: int, up_to: int) -> list[tuple[int, bytes]]:
        begin = max(after + 1, self.first)
        return [(at, self.messages[at - self.first]) for at in range(begin, up_to + 1)]

    def purge(self, before: int) -> None:
        self.messages = self.messages[max(0, before - self.first) :]
        self.first = max(self.first, before)


class Node:
    """A broker: what its disk has of its folder survives a crash, the rest does not."""

    def __init__(self, name: int) -> None:
        self.name = name
        self.folder: list[Frame] = []
        self.synced = 0  # so many of them are on its disk
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
        self.confirmed = self.newcomers = self.purges = 0
        self._purged = 0  # the number of the last frame that may go
        self._led: set[int] = set()  # the claims that were won
        self._bad = self.random.choice((0.02, 0.15, 0.4))  # how bad the network is
        self._stalled_until = 0.0  # the log answers nobody
        self._run_messages = self.random.choice((3, 20, RUN_MESSAGES_MAX))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now += TICK
            if self.random.random() < 0.001:
                self._stalled_until = self.now + self.random.random() * 3
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
        delay = random.expovariate(1 / 0.01)
        if random.random() < self._bad:
            delay = random.random() * random.choice((0.4, 3))
        self._count += 1

        def arrive() -> None:
            if node.life == life:
                do()

        heapq.heappush(self._events, (self.now + delay, self._count, arrive))

    def _to_log(self, do: Callable[[], None]) -> None:
        """A message to the log arrives also where its sender is dead by then."""

        def arrive() -> None:
            if self.now >= self._stalled_until:
                do()

        nobody = Node(-1)
        self._later(nobody, arrive)

    # What nodes do.

    def _act(self, node: Node) -> None:
        random = self.random
        chance = random.random()
        if random.random() < 0.1:
            node.synced = node.last
        if chance < 0.002:
            self._crash(node)
            self._lose_power(node)
        elif chance < 0.004:
            node.asleep_until = self.now + random.random() * 4
        elif node.writing is None:
            if chance < 0.008:
                self._try_to_lead(node)
            elif chance < 0.2:
                self._follow(node)
        elif node.writing.is_won:
            if chance < 0.15 and len(node.written) < 12:
                self._write_some(node, node.writing)
            elif chance < 0.2:
                self._purge(node)
        if node.writing is not None:
            self._poll(node, node.writing)

    def _crash(self, node: Node) -> None:
        node.life += 1
        node.writing = None
        node.written = []
        node.reading = Reading()

    def _lose_power(self, node: Node) -> None:
        """It has what its disk has; or it is another machine, which has nothing."""
        del node.folder[node.synced :]
        others = [each.synced for each in self.nodes if each is not node]
        if self.random.random() < 0.2 and min(others) >= self._purged:
            node.folder.clear()
            node.synced = 0
            self.newcomers += 1

    def _try_to_lead(self, node: Node) -> None:
        epoch = node.reading.epoch + 1
        claim = self._claim(self.random, node.name)
        node.writing = Writing(node.reading, epoch, claim, PART_BYTES, self._run_messages)
        node.written = []

    def _write_some(self, node: Node, writing: Writing) -> None:
        """Frames, perhaps with marks between them, while another node perhaps tries to lead."""
        random = self.random
        for _ in range(random.choice((1, 1, 3, 6))):
            self._write(node, writing)
            if random.random() < 0.2:
                writing.mark()
        other = random.choice(self.nodes)
        if other.writing is None and random.random() < 0.2:
            self._try_to_lead(other)

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
        """As the store does it: up to a mark of its own, and only what all nodes have for good."""
        least = min(each.synced for each in self.nodes)
        before = number = 0
        while node.reading.marks and node.reading.marks[0][1] <= least:
            before, number = node.reading.marks.popleft()
        if before:
            self.purges += 1
            self._purged = max(self._purged, number)
            self._to_log(lambda: self.log.purge(before))

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
            sequence = self.log.publish(action.expected, action.data, self.now)
            if node.life == life:
                self._later(node, lambda: answer(sequence))

        self._to_log(arrive)

    def _look(
        self, node: Node, action: Look, then: Callable[[list[tuple[int, bytes]]], None]
    ) -> None:
        """Reads in two steps; between them the log may be purged."""
        if self.now < self._stalled_until:
            return
        random = self.random
        stale = random.randrange(4) if random.random() < self._bad else 0
        up_to = self.log.last - stale
        found = self.log.read(action.after, min(up_to, action.after + random.choice((3, 1_000))))

        def rest() -> None:
            after = found[-1][0] if found else action.after
            then(found + self.log.read(after, up_to))

        self._later(node, rest)

    def _looked(self, node: Node, writing: Writing, found: list[tuple[int, bytes]]) -> None:
        if node.writing is not writing:
            return
        frames = writing.looked(found)
        self._note_confirmed(node, writing)  # its own come before those of another
        for frame in frames:
            self._take(node, frame)
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
        if node.last + 1 < frame.number:
            other = max(self.nodes, key=lambda each: each.synced)
            if other.synced < frame.number - 1:
                raise Broken(f"frame {frame.number} comes, and nobody has the one before")
            node.folder += other.folder[node.last : frame.number - 1]
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
            if self.log.claim != writing.claim and self.log.fenced_at < writing.led_at:
                raise Broken(f"node {node.name} believes that it led when another did")

    @property
    def leaderships(self) -> int:
        return len(self._led)

    def _check(self) -> None:
        """What is in the lane, or was purged, is what was confirmed, and perhaps more."""
        reading = Reading()
        if max(node.synced for node in self.nodes) < self._purged:
            raise Broken(f"frame {self._purged} was purged, and nobody has it")
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
