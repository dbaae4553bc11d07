"""When a node of a cluster is to try to lead: what it heard of the others, and for how long not.

Beats are a hint, never a proof. Who leads is decided by the replicated log alone; a node that tries
without need deposes a healthy leader, which costs a second and nothing else. So a node waits its
turn, and asks the others first whether they hear the leader.

Nothing here sends or sleeps: what was heard and the time go in, and what to do comes out.
"""

from typing import Literal

import msgspec

ALIVE_SECONDS = 3.0  # since its last hello, for which a node counts as being there
RANK_SECONDS = 0.15  # between the turns of two nodes
ASK_SECONDS = 0.1  # that the others have to answer
HEARD_SECONDS = 0.6  # within which a leader that another has heard is taken to be alive
PATIENCE_SECONDS = 3.0  # after which it is tried, whatever others have heard
# That others wait for a candidate. It is longer than the servers of the log take to elect a leader
# of their own, so one that takes longer is heard and cannot write.
CANDIDATE_SECONDS = 12.0
BEHIND_FRAMES_MAX = 256  # that a node may lack to take over from a leader that leaves
OFFSET_MS_MAX = 60_000  # by which the clock of a candidate may be off, if there is another one

Role = Literal["leader", "candidate", "leaving"]


class Beat(msgspec.Struct, frozen=True):
    """Said by who leads, several times a second, and by who is trying to."""

    node: str
    url: str  # where clients reach it
    role: Role
    epoch: int
    number: int  # of the last confirmed frame
    position: int
    time_ms: int
    to: str = ""  # of one that is leaving: the node that is to take over
    held_ms: int = 0  # for which nobody is to lead but this one: an operator holds the cluster
    records: int = 1  # the version of the records that it may write
    leads_ms: int = 0  # how long it has led
    trim: int = 0  # the position before which no content is that anybody still needs


class Hello(msgspec.Struct, frozen=True):
    """Said by every node each second, and when it is asked."""

    node: str
    url: str
    number: int  # of the last frame that it has applied
    synced: int  # the number of the last frame that its own disk has
    version: str
    time_ms: int
    prefer: int = 0  # lower ones are to lead rather than higher ones
    heard_ms: int | None = None  # how long ago it has heard the leader
    offset_ms: int | None = None  # by which the leader's time is ahead of its clock
    free_bytes: int = 0  # of its disk
    records: int = 1  # the newest version of records that it can read
    trouble: str = ""  # the reason for which it cannot follow, or is not to lead
    position: int = 0  # it has applied all changes before this one
    behind_ms: int = 0  # for how long it has not had all that the leader has confirmed
    free_percent: int | None = None  # of the disk of its folder
    full: bool = False  # its disk has no room, so it does not follow

    @property
    def is_candidate(self) -> bool:
        return not self.trouble


class Standby:
    """One node's view of its cluster, while it follows."""

    def __init__(self, node: str, now: float, failover_seconds: float = 1.0, prefer: int = 0):
        self.node = node
        self._failover_seconds = failover_seconds
        self._prefer = prefer
        self._beat: Beat | None = None
        self._heard = now  # when somebody led, or tried to
        self._asked: float | None = None  # when the others were asked about the leader
        # Of each node that tries to lead since somebody led: when it began, and was last heard.
        self._candidates: dict[str, tuple[float, float]] = {}
        self._is_named = False  # the leader leaves, and this node is to take over
        self._held_until = 0.0  # by an operator: nobody else is to lead before
        self._hellos: dict[str, tuple[float, Hello]] = {}

    @property
    def leader(self) -> Beat | None:
        """The last beat of a leader; None before the first."""
        return self._beat

    @property
    def epoch(self) -> int:
        """The highest epoch that was heard of."""
        return 0 if self._beat is None else self._beat.epoch

    def nodes(self, now: float) -> list[Hello]:
        """The other nodes that are there, by name."""
        there = [each for at, each in self._hellos.values() if now - at < ALIVE_SECONDS]
        return sorted(there, key=lambda hello: hello.node)

    def heard(self) -> list[tuple[float, Hello]]:
        """The last hello of each other node, by name, and when it came."""
        return [self._hellos[name] for name in sorted(self._hellos)]

    def heard_ms(self, now: float) -> int | None:
        """How long ago the leader was heard; None where it never was."""
        return None if self._beat is None else round((now - self._heard) * 1_000)

    def hear_beat(self, beat: Beat, now: float) -> None:
        if beat.node == self.node or beat.epoch < self.epoch:
            return
        if beat.role != "candidate":
            self._candidates.clear()
        elif not self._is_waited_for(beat.node, now):
            return
        self._heard = now
        self._asked = None
        self._is_named = beat.role == "leaving" and beat.to == self.node
        self._held_until = now + beat.held_ms / 1_000
        if beat.role != "candidate":
            self._beat = beat

    def _is_waited_for(self, candidate: str, now: float) -> bool:
        """Notes that a node tries to lead; returns whether it may still be about to."""
        began, heard = self._candidates.get(candidate, (now, now))
        if now - heard >= ALIVE_SECONDS:  # this is another attempt
            began = now
        self._candidates[candidate] = began, now
        return now - began < CANDIDATE_SECONDS

    def hear_hello(self, hello: Hello, now: float) -> None:
        if hello.node != self.node:
            self._hellos[hello.node] = now, hello

    def wait_again(self, now: float) -> None:
        """An attempt has failed, because another node leads or tries to."""
        self._heard = now
        self._asked = None
        self._is_named = False

    def forget(self, node: str) -> bool:
        """Forgets a node until it speaks again; returns whether it was known."""
        return self._hellos.pop(node, None) is not None

    def release(self) -> None:
        """The operator does not hold the cluster any more."""
        self._held_until = 0.0

    def held_seconds(self, now: float) -> float:
        """For how long the leader is held by an operator, as far as is known; 0 where it is not."""
        return max(0.0, self._held_until - now)

    # Handing over.

    def unfit(self, node: str, number: int, now: float) -> str:
        """The reason why a node cannot take over from this one, which leads; "" where it can."""
        hello = next((each for each in self.nodes(now) if each.node == node), None)
        if hello is None:
            return f"node {node} is not there"
        if not hello.is_candidate:
            return f"node {node} cannot lead: {hello.trouble}"
        if number - hello.number > BEHIND_FRAMES_MAX:
            return f"node {node} is {number - hello.number} frames behind"
        return ""

    def successor(self, number: int, now: float, room_bytes: int = 0) -> str:
        """The node that is to take over from this one, which leads; "" where none can.

        Least lag first, then by preference and name; of those whose disks have that much room.
        """
        fit = [
            each for each in self.nodes(now)
            if each.free_bytes >= room_bytes and not self.unfit(each.node, number, now)
        ]  # fmt: skip
        best = min(fit, key=lambda each: (-each.number, each.prefer, each.node), default=None)
        return "" if best is None else best.node

    # Following.

    def step(
        self, number: int, now: float, *, is_candidate: bool = True
    ) -> Literal["wait", "ask", "lead"]:
        """What this node is to do, which has applied frames up to this number.

        "ask": the others are to say hello, and it is to be asked again a little later. One that is
        no candidate leads only if no other node that is there is one.
        """
        if self._is_named:
            return "lead"
        if now < self._held_until:
            return "wait"
        if not is_candidate and any(each.is_candidate for each in self.nodes(now)):
            return "wait"
        silent = now - self._heard - self._failover_seconds - self._rank(number, now) * RANK_SECONDS
        if silent < 0:
            self._asked = None
            return "wait"
        if self._asked is None:
            self._asked = now
            return "ask"
        if now - self._asked < ASK_SECONDS:
            return "wait"
        if silent < PATIENCE_SECONDS and self._others_hear_the_leader(now):
            return "wait"
        return "lead"

    def _rank(self, number: int, now: float) -> int:
        """How many are to try before this one: those who have more, then by preference and name."""
        mine = (-number, self._prefer, self.node)
        others = (
            (-each.number, each.prefer, each.node) for each in self.nodes(now) if each.is_candidate
        )
        return sum(other < mine for other in others)

    def _others_hear_the_leader(self, now: float) -> bool:
        asked = self._asked or now
        return any(
            at >= asked and hello.heard_ms is not None and hello.heard_ms < HEARD_SECONDS * 1_000
            for at, hello in self._hellos.values()
        )
