"""What clients said and heard, and whether it can be so.

It knows names of messages and sessions, tokens and moments; nothing of how a broker works, and each
later protocol feeds it the same words. A word in -ing is said before a request leaves, its other
form when the answer arrives, all of them in the order in which the clients saw them happen. With
one token only one request is under way at a time. Moments are milliseconds on the one clock by
which the broker gives its own. The rules:

- **Lost.** A message that was acknowledged, delivered or found is there at every later check,
  unless it was completed or a completion of it was neither acknowledged nor refused.
- **Back.** What was completed, or was not there at a check, is never delivered or found again.
- **Dead.** What was dead-lettered is among the dead letters at every later check, and never
  delivered. Nothing is found twice, or was never sent.
- **Early.** A scheduled message is not delivered before it is due.
- **Order.** Message A of a session comes before B where A was acknowledged before B was being sent,
  by whomever, or where both are of one send and A stands before B. B is not delivered for the first
  time before A is. Scheduled messages have no place in this order. It rests on a receiver not going
  on, after a crash, with a session it held before: what was under way to it then, it never heard.
- **Locks.** A lock on a message or a session is certainly held from the arrival of the delivery
  until the first of: the end it was given, less a margin; the moment at which its holder says that
  he settles, renews or leaves; the same for the session or the bound receiver that it is under.
  Once renewed it is certain again, until its new end. While it is certainly held, no other delivery
  of the message or grant of the session arrives, and nothing that its holder asks with it is
  refused as lost. One that is over on arrival says nothing, nor does one that arrives when its
  session or bound receiver was left: it may be another's by then.
- **A crash** ends what was bound to connections. Another lock outlives it if it was durable: it is
  a session's, or something that was asked after it had come was acknowledged before the crash. One
  for which neither holds may have been forgotten, since a message may leave before its lock is
  synced: it may be delivered again at once, and the old token may be refused.
- **Together.** Where a message is completed and others are sent in its place as one, both have
  happened or neither.
- **Tokens.** None is given twice. What was settled with one is not settled with it again, and none
  settles a message that was delivered under a newer one before, but for newer ones that a crash may
  have made forgotten. Which of two is newer is known from the order in which they arrive, unless
  the later one was over on arrival: a delivery may be overtaken by the one that follows it. That a
  token settles its own message and no other follows from Lost and Back.
"""

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

FOR_EVER_MS = 1 << 62


class Broken(AssertionError):
    """A promise was broken."""


class _Ask(NamedTuple):
    """Something that was asked of a lock, and is not answered yet."""

    number: int  # of the word that asked
    certain: bool  # what the lock was then
    outdated: bool  # there was a newer one then


@dataclass(eq=False, slots=True)
class _Hold:
    """A lock on a message or a session; or the attachment of a bound receiver."""

    of: str
    until_ms: int
    came: int  # the number of the word that told of it
    durable: bool
    message: "_Message | None" = None
    under: "_Hold | None" = None
    certain: bool = True  # as far as words go; time is another matter
    late: bool = False  # it was over on arrival, so that it need not be the newest
    settled: bool = False
    asks: list[_Ask] = field(default_factory=list)  # what is under way, in the order it was asked

    def heard(self) -> _Ask:
        """What was answered just now. Of several under way it may be any: the least is taken."""
        if not self.asks:
            return _Ask(0, certain=False, outdated=False)
        least = _Ask(
            min(each.number for each in self.asks),
            all(each.certain for each in self.asks),
            all(each.outdated for each in self.asks),
        )
        self.asks.pop()
        return least

    def held(self) -> bool:
        return self.certain and (self.under is None or self.under.certain)


@dataclass(eq=False, slots=True)
class _Message:
    session: str | None
    due_ms: int
    asked: int  # the number of the word that sent it
    place: int  # in its send
    answered: int = FOR_EVER_MS  # the number of the word that acknowledged it
    there: bool = False
    gone: bool = False
    dead: bool = False
    doubts: set[str] = field(default_factory=set)  # tokens of completions without an answer
    holds: list[_Hold] = field(default_factory=list)

    def precedes(self, other: "_Message") -> bool:
        if self.asked == other.asked:
            return self.place < other.place
        return self.answered < other.asked


class History:
    """Everything that was said since the beginning, over any number of crashes. Raises Broken."""

    def __init__(self, margin_ms: int = 5) -> None:
        self.said: defaultdict[str, set[str]] = defaultdict(set)  # by word: names of messages
        self.counts: Counter[str] = Counter()  # of words, and of what there was to check
        self._margin_ms = margin_ms
        self._number = 0  # of the last word
        self._vouched = 0  # what came before this word is durable
        self._messages: dict[str, _Message] = {}
        self._ahead: defaultdict[str, dict[str, _Message]] = defaultdict(dict)  # not yet delivered
        self._holds: dict[str, _Hold] = {}  # by token
        self._asking: set[_Hold] = set()  # of which something is asked
        self._sessions: defaultdict[str, list[_Hold]] = defaultdict(list)
        self._recent: list[_Hold] = []  # since the last crash
        # Without an answer, by name and token: what is to be there instead of a message.
        self._moves: defaultdict[str, dict[str, list[str]]] = defaultdict(dict)

    def hear(self, line: str) -> None:
        """A word about one message, without a lock: `sending NAME`. Other words are passed over."""
        word, _, name = line.partition(" ")
        if word == "sending":
            self.sending([name])
        elif word == "sent":
            self.sent([name])
        elif word in ("completing", "completed", "burying", "buried"):
            getattr(self, word)(name)

    # Sending.

    def sending(self, names: Sequence[str], session: str | None = None, due_ms: int = 0) -> None:
        """One send of one or several, all for one session and due at one time, if at all."""
        number = self._say("sending", *names)
        for place, name in enumerate(names):
            message = self._messages[name] = _Message(session, due_ms, number, place)
            if session is not None and not due_ms:
                self._ahead[session][name] = message

    def sent(self, names: Sequence[str]) -> None:
        number = self._say("sent", *names)
        for name in names:
            message = self._messages[name]
            message.answered, message.there = number, True
            self._vouch(message.asked)

    # Receiving.

    def delivered(
        self,
        name: str,
        token: str,
        until_ms: int,
        now_ms: int,
        *,
        under: str | None = None,
    ) -> None:
        """`under`: the token of its session, or its bound receiver."""
        number = self._say("delivered", name)
        message = self._messages.get(name)
        if message is None:
            raise Broken(f"never sent, and delivered: {name}")
        if now_ms < message.due_ms - self._margin_ms:
            raise Broken(f"delivered {message.due_ms - now_ms} ms before it was due: {name}")
        hold = _Hold(name, until_ms, number, durable=False, message=message)
        if under is not None:
            hold.under = self._holds[under]
            if message.session not in (None, hold.under.of):
                raise Broken(f"of {message.session}, and delivered in {hold.under.of}: {name}")
        self._keep(token, hold)
        hold.late = not hold.held() or not self._in_time(hold, now_ms)
        if not hold.late:
            if message.gone:
                raise Broken(f"gone, and delivered: {name}")
            if message.dead:
                raise Broken(f"dead-lettered, and delivered: {name}")
            self._check_sole(hold, message.holds, now_ms)
        self.counts["redelivered"] += bool(message.holds)
        message.there = True
        message.holds.append(hold)
        if message.session is not None:
            self._check_order(name, message, message.session)

    def held(self, session: str, token: str, until_ms: int, now_ms: int) -> None:
        """A session was granted, in an answer."""
        hold = _Hold(session, until_ms, self._say("held"), durable=True)
        self._keep(token, hold)
        others = [each for each in self._sessions[session] if self._in_time(each, now_ms)]
        if self._in_time(hold, now_ms):
            self._check_sole(hold, others, now_ms)
        self._sessions[session] = [*others, hold]

    def attached(self, receiver: str) -> None:
        """A receiver whose locks end with it, or with its connection. Say it before asking."""
        self._keep(receiver, _Hold(receiver, FOR_EVER_MS, self._say("attached"), durable=False))

    # Settling. A token may be left out; then the rules about locks are too.

    def completing(self, name: str, token: str = "") -> None:
        self._ask("completing", token, name)
        self._messages[name].doubts.add(token)

    def completed(self, name: str, token: str = "") -> None:
        self._settled("completed", token, name)
        self._messages[name].gone = True

    def moving(self, name: str, token: str, others: Sequence[str]) -> None:
        """It is completed, and others are sent in its place, all of it or nothing."""
        self.completing(name, token)
        self.sending(others)
        self._moves[name][token] = list(others)

    def moved(self, name: str, token: str, others: Sequence[str]) -> None:
        self.counts["moved"] += 1
        del self._moves[name][token]
        self.completed(name, token)
        self.sent(others)

    def not_moved(self, name: str, token: str, now_ms: int) -> None:
        del self._moves[name][token]
        self.refused(token, now_ms, name)

    def burying(self, name: str, token: str = "") -> None:
        self._ask("burying", token, name)

    def buried(self, name: str, token: str = "") -> None:
        self._settled("buried", token, name)
        message = self._messages[name]
        message.there = message.dead = True

    def abandoning(self, name: str, token: str = "") -> None:
        self._ask("abandoning", token, name)

    def abandoned(self, name: str, token: str = "") -> None:
        self._settled("abandoned", token, name)

    def renewing(self, token: str) -> None:
        """The lock of a message or of a session."""
        self._ask("renewing", token)

    def renewed(self, token: str, until_ms: int) -> None:
        asked = self._answer("renewed", token)
        hold = self._holds[token]
        hold.certain, hold.until_ms, hold.late = asked.certain, until_ms, False

    def leaving(self, token: str) -> None:
        """A session, or the bound receiver of this name."""
        self._ask("leaving", token)

    def left(self, token: str) -> None:
        self._settled("left", token)

    def refused(self, token: str, now_ms: int, name: str | None = None) -> None:
        """What was asked last with this token, of this message, is refused: the lock is lost."""
        self._say("refused")
        if name is not None:
            self._messages[name].doubts.discard(token)
        hold = self._holds[token]
        under_held = hold.under is None or hold.under.certain
        if hold.heard().certain and under_held and self._in_time(hold, now_ms):
            raise Broken(f"held for {hold.until_ms - now_ms} ms more, and lost: {hold.of}")

    # Crashes and checks.

    def killed(self, now_ms: int) -> None:
        """The broker is gone, and all that it said before has been heard."""
        self._say("killed")
        for hold in self._recent:
            forgotten = not hold.durable and hold.came >= self._vouched
            if forgotten and hold.message is not None:
                hold.message.holds.remove(hold)
            if forgotten or hold.until_ms == FOR_EVER_MS:
                hold.certain = False
        for hold in self._asking:
            hold.asks.clear()  # nobody answers that any more
        self._asking.clear()
        outlived = sum(hold.held() and self._in_time(hold, now_ms) for hold in self._recent)
        self.counts["outlived"] += outlived
        self._recent.clear()

    def check(self, live: Iterable[str], dead: Iterable[str]) -> None:
        """Compares with the names of messages found in queues and in dead-letter queues.

        Nothing may be under way: what was asked is answered, or asked of a broker that is gone. So
        a check ends every doubt: what was not found never will be.
        """
        self.counts["checked"] += 1
        dead = Counter(dead)
        found = Counter(live) + dead
        _none("found twice", (name for name, count in found.items() if count > 1))
        _none("never sent, and found", found.keys() - self._messages.keys())
        _none("gone, and found", (name for name in found if self._messages[name].gone))
        missing = [(name, m) for name, m in self._messages.items() if name not in found]
        _none(
            "acknowledged, and lost",
            (name for name, m in missing if m.there and not m.gone and not m.doubts),
        )
        for name, moves in self._moves.items():
            self._check_moved(name, moves, found)
        self._moves.clear()
        strayed = (name for name, m in self._messages.items() if m.dead and name not in dead)
        _none("dead-lettered, and not there", strayed)
        for name, message in self._messages.items():
            message.there, message.dead = name in found, name in dead
            message.gone = not message.there
            message.doubts.clear()
            if message.session is not None and (message.gone or message.dead):
                self._ahead[message.session].pop(name, None)

    def _check_moved(self, name: str, moves: dict[str, list[str]], found: Container[str]) -> None:
        """Where a lock expired meanwhile another may have asked to move or complete it too."""

        def came(other: str) -> bool:  # it may have been received meanwhile, and be gone again
            return other in found or self._messages[other].there

        done = [others for others in moves.values() if any(map(came, others))]
        whole = all(came(other) for others in done for other in others)
        if len(done) > 1 or not whole or (done and name in found):
            raise Broken(f"moved in part: {name}, {moves}")
        message = self._messages[name]
        by_others = message.gone or message.doubts - moves.keys()
        if moves and not done and name not in found and not by_others:
            raise Broken(f"moved in part: {name} is gone, and none of {moves} is there")

    # The rules.

    def _say(self, word: str, *names: str) -> int:
        self.said[word].update(names)
        self.counts[word] += len(names) or 1
        self._number += 1
        return self._number

    def _keep(self, token: str, hold: _Hold) -> None:
        other = self._holds.setdefault(token, hold)
        if other is not hold:
            raise Broken(f"a token given twice, for {other.of} and {hold.of}")
        self._recent.append(hold)

    def _in_time(self, hold: _Hold, now_ms: int) -> bool:
        return now_ms < hold.until_ms - self._margin_ms

    def _check_sole(self, new: _Hold, others: Iterable[_Hold], now_ms: int) -> None:
        for other in others:
            if other.held() and self._in_time(other, now_ms):
                left_ms = other.until_ms - now_ms
                raise Broken(f"held for {left_ms} ms more, and given to another: {new.of}")

    def _check_order(self, name: str, message: _Message, session: str) -> None:
        ahead = self._ahead[session]
        if ahead.pop(name, None) is None:  # delivered before, or scheduled
            return
        self.counts["in order"] += 1
        for earlier, other in ahead.items():
            if other.asked > message.asked:
                return
            if other.precedes(message):
                raise Broken(f"out of order in {session}: {name} before {earlier}")

    def _ask(self, word: str, token: str, *names: str) -> None:
        number = self._say(word, *names)
        hold = self._holds.get(token)
        if hold is not None:
            known = () if hold.message is None else hold.message.holds
            outdated = any(other.came > hold.came and not other.late for other in known)
            hold.asks.append(_Ask(number, hold.certain, outdated))
            hold.certain = False
            self._asking.add(hold)

    def _answer(self, word: str, token: str, *names: str) -> _Ask:
        self._say(word, *names)
        hold = self._holds.get(token)
        if hold is None:
            return _Ask(0, certain=False, outdated=False)
        asked = hold.heard()
        self._vouch(asked.number)
        if hold.settled:
            raise Broken(f"settled, and {word} with the same token: {hold.of}")
        if asked.outdated:
            raise Broken(f"given to another, and {word} with the old token: {hold.of}")
        return asked

    def _settled(self, word: str, token: str, *names: str) -> None:
        self._answer(word, token, *names)
        hold = self._holds.get(token)
        if hold is not None:
            hold.settled = True

    def _vouch(self, asked: int) -> None:
        """What came before this was asked is durable now: changes become so in their order."""
        self._vouched = max(self._vouched, asked)


def _none(what: str, names: Iterable[str]) -> None:
    some = sorted(names)
    if some:
        raise Broken(f"{what}: {some[:5]}")
