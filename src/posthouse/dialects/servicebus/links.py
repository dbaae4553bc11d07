"""Links to queues: a client sends through an IncomingLink, and receives through an OutgoingLink."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from struct import Struct
from typing import Protocol

from posthouse.amqp.events import Arrived, Disposed, Run
from posthouse.amqp.performatives import (
    ACCEPTED,
    MODIFIED,
    REJECTED,
    RELEASED,
    Problem,
    code_of,
    problem_in,
    rejected,
)
from posthouse.amqp.runs import bytes_of
from posthouse.amqp.session import Link, Tags
from posthouse.amqp.types import Described, Malformed, Symbol, Value
from posthouse.core.commands import (
    BATCH_MAX,
    CREDIT_MAX,
    TEXT_CHARS_MAX,
    Abandon,
    Answer,
    Attach,
    Complete,
    Credit,
    DeadLetter,
    Defer,
    Delivery,
    Detach,
    Enqueued,
    Granted,
    Notice,
    Release,
    Send,
    Settled,
    Work,
)
from posthouse.core.errors import (
    Busy,
    InvalidArgument,
    LockLost,
    MessageTooLarge,
    NotAllowed,
    QuotaExceeded,
    Refused,
    SessionLockLost,
)
from posthouse.core.message import NewMessage, Properties
from posthouse.core.plan import Delivered
from posthouse.core.settling import Ending
from posthouse.dialects.connections import guarded
from posthouse.dialects.servicebus import conditions
from posthouse.dialects.servicebus.address import told_name
from posthouse.dialects.servicebus.commands import Commands
from posthouse.dialects.servicebus.message import (
    BATCH_FORMAT,
    Messages,
    Unfit,
    neutral_value,
    split_batch,
    write_deliveries,
)
from posthouse.dialects.servicebus.target import Target
from posthouse.dialects.servicebus.transactions import transaction_in, within
from posthouse.store.errors import StoreError

INCOMING_CREDIT = 1_000  # messages that a client may send before it hears of the first
INCOMING_GRACE = 10_000  # beyond its credit: some clients think that they have so much at first
READ_AT_ONCE = 100  # messages of a batch, between two looks at the clock
GATHER_MESSAGES = 500  # that are sent on in one command
GATHER_BYTES = 1 << 20
OUTGOING_MESSAGES = 1_000  # that are asked of the queue at a time, at most
AT_ONCE = 64  # messages that are sent without waiting for what else there is to say
UNSETTLED_MAX = 100_000  # deliveries of one link that a client may leave unsettled
SETTLE_MESSAGES = 1_000  # that are settled in one go

# Where one message of several may be the reason, and the others are to be sent all the same.
_OF_ONE = (QuotaExceeded, MessageTooLarge, InvalidArgument, NotAllowed)

Reply = Answer | Refused | StoreError


class LinkOwner(Protocol):
    """A connection, as its links to queues see it."""

    @property
    def is_paused(self) -> bool:
        """The client does not read, and is given nothing more."""

    @property
    def link_bytes(self) -> int:
        """The bytes of messages that may be asked for at a time for one link."""

    @property
    def product(self) -> str:
        """The client library, as ` (azure-servicebus 7.14.2)`; empty where it has not said."""

    def gathered(self, context: "IncomingLink | OutgoingLink") -> None:
        """Registers a link to be flushed when all frames that have come were read."""

    def take_steps(self, steps: Iterator[None]) -> None:
        """Takes the steps that one frame needs; no other frame is read before they are done."""

    def turn_away(self, context: "IncomingLink | OutgoingLink", condition: str, text: str) -> None:
        """Detaches a link from this side, of which nothing more is told."""

    def turn_away_for(
        self,
        context: "IncomingLink | OutgoingLink",
        refused: Refused | StoreError,
        text: str | None = None,
    ) -> None:
        """Does as `turn_away`, with the refusal's code and facts."""

    def error_of(self, refused: Refused | StoreError, text: str | None = None) -> bytes:
        """A refusal as this client is told it; `text` stands for the refusal's own."""

    def rejection_of(self, refused: Refused | StoreError, text: str | None = None) -> bytes:
        """The same as the outcome of a delivery."""

    def flush(self) -> None: ...

    def flush_soon(self) -> None: ...


class IncomingLink:
    """A client sends through it."""

    def __init__(
        self, peer: LinkOwner, commands: Commands, link: Link, target: Target, most_bytes: int
    ) -> None:
        self._peer = peer
        self._commands = commands
        self.link = link
        self.target = target
        self._most_bytes = most_bytes
        self._reads = Messages(commands.new_id)
        self._groups: deque[_Group] = deque()  # that wait for the one before them
        self._group: _Group | None = None  # the last of them
        self._new = self._new_bytes = 0  # messages that were not counted yet
        self._asking = 0  # commands of which it is not certain yet that they are done
        self._unanswered = 0
        self.is_idle, self.idle_since = False, 0.0

    def start(self) -> None:
        self.link.takes_runs = True
        self.link.grant(INCOMING_CREDIT)

    def on_run(self, event: Run) -> None:
        """Messages that follow each other. What is wrong with one is no affair of the others."""
        if self._is_beyond_its_credit():
            return
        reads, payloads, settled = self._reads, event.payloads, event.settled
        messages: list[NewMessage] = []
        good = [True] * len(payloads)
        at = 0
        while at < len(payloads):
            alike = reads.read_alike(payloads, at)
            messages += alike
            at += len(alike)
            if at < len(payloads):
                try:
                    messages.append(reads.read(payloads[at]))
                except (Unfit, Malformed):  # it is told there
                    number, tag, payload = event.delivery_ids[at], event.tags[at], payloads[at]
                    self.on_arrived(Arrived(self.link, number, tag, 0, settled, None, payload))
                    good[at] = False
                at += 1
        if messages:
            ids: list[int | None] = [None] * len(messages)
            if not settled:
                ids = list(compress(event.delivery_ids, good))
            self._add(messages, ids, bytes_of(payloads), whole=False)

    def _is_beyond_its_credit(self) -> bool:
        """2.6.7. It is turned away then."""
        self.is_idle = False
        if self.link.credit >= -INCOMING_GRACE:
            return False
        self._peer.turn_away(
            self, "amqp:link:transfer-limit-exceeded", "There is no credit for more."
        )
        return True

    def on_arrived(self, event: Arrived) -> None:
        payload, number = event.payload, None if event.settled else event.delivery_id
        if self._is_beyond_its_credit():
            return
        if payload is None or len(payload) > self._most_bytes:
            size = self._most_bytes + 1 if payload is None else len(payload)  # else not all came
            refused = MessageTooLarge(self.target.queue, size, self._most_bytes)
            text = f"The message is larger than the {self._most_bytes} bytes that are allowed."
            self._reject_for([number], refused, text)
            return
        try:
            parts = [payload]
            if event.format == BATCH_FORMAT:
                parts = split_batch(payload, BATCH_MAX)
        except (Unfit, Malformed) as wrong:
            self._reject_unread(number, wrong)
            return
        reading = self._read(parts, event)
        if len(parts) > READ_AT_ONCE:
            self._peer.take_steps(reading)
        else:
            for _ in reading:
                pass

    def _read(self, parts: list[bytes], event: Arrived) -> Iterator[None]:
        """The messages of a batch, step by step, which are sent on together."""
        number, messages = None if event.settled else event.delivery_id, []
        assert event.payload is not None
        size = len(event.payload)
        try:
            for at, part in enumerate(parts, 1):
                messages.append(self._reads.read(part))
                if at % READ_AT_ONCE == 0:
                    yield
        except (Unfit, Malformed) as wrong:
            self._reject_unread(number, wrong)
            return
        transaction = transaction_in(event.state)
        if transaction is not None:
            self._enlist(transaction[0], messages, number, size)
            return
        self._add(messages, [number], size, whole=event.format == BATCH_FORMAT)

    def _reject_unread(self, number: int | None, wrong: Unfit | Malformed) -> None:
        condition, text = "amqp:decode-error", f"The message cannot be read: {wrong}."
        if isinstance(wrong, Unfit):
            condition, text = wrong.condition, str(wrong)
        self._reject([number], condition, text)

    def _enlist(self, id: bytes, messages: list[NewMessage], number: int | None, size: int) -> None:
        """They are sent when the transaction is committed."""
        transaction = self._commands.transactions.get(id)
        if transaction is None:
            self._reject([number], conditions.UNKNOWN_TRANSACTION, _NO_TRANSACTION)
            return

        def reply(answer: Reply) -> None:
            self._unanswered -= 1
            self._commands.count_unanswered(-size)
            if isinstance(answer, Refused | StoreError):
                self._reject_for([number], answer)
            else:
                self._settle([number], within(id, ACCEPTED))
                self._top_up()

        self._unanswered += 1
        self._commands.count_unanswered(size)
        command = Work(transaction, Send(self.target.queue, messages))
        self._commands.submit(self.target, command, reply)

    def _add(
        self, messages: list[NewMessage], ids: list[int | None], size: int, *, whole: bool
    ) -> None:
        """To the last group, if it is not a batch, which is all or nothing, and has room."""
        group = self._group
        if whole or group is None or group.is_full:
            group = self._group = _Group([], [], 0, whole)
            self._groups.append(group)
            self._peer.gathered(self)
        group.messages += messages
        group.ids += ids
        group.size_bytes += size
        self._new += len(ids)
        self._new_bytes += size

    def flush(self) -> None:
        """Sends on what came together in one command; the next when that is certain to be done.

        So a group that is refused for one of its messages can be taken apart, and what came behind
        it stays behind it. What comes meanwhile makes up the next group.
        """
        self._unanswered += self._new
        self._commands.count_unanswered(self._new_bytes)
        self._new = self._new_bytes = 0
        while self._groups and not self._asking:
            group = self._groups.popleft()
            if group is self._group:
                self._group = None
            self._ask(group.messages, group)
        self._top_up()

    def _ask(self, messages: list[NewMessage], group: "_Group") -> None:
        certain = False

        def reply(answer: Reply) -> None:
            if not certain:
                self._asking -= 1
            if isinstance(answer, Enqueued):
                self._settle(group.ids, ACCEPTED)
            elif isinstance(answer, _OF_ONE) and len(group.ids) > 1:
                self._take_apart(group)
                return
            else:
                assert isinstance(answer, Refused | StoreError)
                self._reject_for(group.ids, answer)
            self._unanswered -= len(group.ids)
            self._commands.count_unanswered(-group.size_bytes)
            self.flush()

        self._asking += 1
        certain = self._commands.submit(
            self.target, self._commands.send(self.target, messages), reply
        )
        if certain:
            self._asking -= 1

    def _take_apart(self, group: "_Group") -> None:
        """One by one, all of them before what came behind them."""
        self._asking += 1
        sizes = [0] * (len(group.ids) - 1) + [group.size_bytes]
        for message, number, size in zip(group.messages, group.ids, sizes, strict=True):
            self._ask([message], _Group([message], [number], size, True))
        self._asking -= 1
        self.flush()

    def _top_up(self) -> None:
        """Grants as much credit as there is room for, now and then."""
        if not self.link.is_open:
            return
        room = INCOMING_CREDIT - self._unanswered
        if room - self.link.credit >= INCOMING_CREDIT // 2 or (room > 0 and self.link.credit <= 0):
            self.link.grant(room)
            self._peer.flush_soon()

    def _settle(self, ids: Sequence[int | None], state: bytes) -> None:
        told = [each for each in ids if each is not None]
        if told and self.link.is_open:
            self.link.settle(told, state)
            self._peer.flush_soon()

    def _reject(self, ids: Sequence[int | None], condition: str, text: str) -> None:
        self._settle(ids, rejected(condition, text))
        self._top_up()

    def _reject_for(
        self, ids: Sequence[int | None], refused: Refused | StoreError, text: str | None = None
    ) -> None:
        """Does as `_reject`, with the refusal's code and facts."""
        self._settle(ids, self._peer.rejection_of(refused, text))
        self._top_up()

    def on_disposed(self, event: Disposed) -> None:
        """A client that settles in its turn; we have done so already."""

    def on_flowed(self) -> None:
        self._top_up()

    def on_detached(self) -> None:
        self.flush()


@dataclass(slots=True)
class _Group:
    """Messages that are sent on together."""

    messages: list[NewMessage]
    ids: list[int | None]  # of their deliveries; None where nobody is to be told
    size_bytes: int
    is_whole: bool  # a batch: one delivery

    @property
    def is_full(self) -> bool:
        return self.is_whole or self.size_bytes >= GATHER_BYTES or len(self.ids) >= GATHER_MESSAGES


class OutgoingLink:
    """A client receives through it."""

    def __init__(
        self,
        peer: LinkOwner,
        commands: Commands,
        link: Link,
        target: Target,
        *,
        delete: bool,
        session: Granted | None,
    ) -> None:
        self._peer = peer
        self._commands = commands
        self.link = link
        self.target = target
        self._delete = delete
        self.session = session
        self._number = commands.engine.new_receiver(guarded(self._deliver, commands.abort))
        self._completing: list[int] = []  # tokens of what was accepted,
        self._answered: list[int] = []  # its deliveries, of which the client wants to hear,
        self._completing_quietly: list[int] = []  # and tokens of what it does not ask about
        self._given = 0  # messages that we were given
        self._asked = 0  # of the credit that the queue has from us
        self._window = 1
        self._draining = 0  # how much was asked for to drain it,
        self._drained = 0  # and has come since
        self._gone = False
        self.is_idle, self.idle_since = False, 0.0

    def start(self, attached: Callable[[Reply], None]) -> None:
        """Calls back with how it went."""
        client = f"{self.target.principal.name}#{self._number}{self._peer.product}"
        command = Attach(
            self.target.queue, self._number, delete=self._delete, session=self._session_token,
            client=client,
        )  # fmt: skip

        def reply(answer: Reply) -> None:
            if isinstance(answer, Refused | StoreError):
                self._gone = True
            attached(answer)

        self._commands.submit(self.target, command, reply)

    # Credit.

    def on_flowed(self) -> None:
        self._ask()

    def _ask(self) -> None:
        """Asks the queue for as much as the client wants, as far as there is room for it."""
        link = self.link
        if self._gone or not link.is_open or self._draining:
            return
        if not self._given:
            self._window = self._first_window()
        wanted = min(max(0, link.credit), self._window, CREDIT_MAX)
        if held_up := self._peer.is_paused or link.is_held_up:
            wanted = 0
        if link.drain and not held_up:
            self._draining, self._drained = max(1, wanted), 0
            command = Credit(self._number, wanted, drain=True, given=self._given)
        elif wanted == self._asked:
            return
        else:
            command = Credit(self._number, wanted, given=self._given)
        self._asked = wanted
        self._commands.submit(self.target, command, self._refused)

    def _first_window(self) -> int:
        """How many messages fit, as large as they are in the queue on the average."""
        count, size = self._commands.queue_size(self.target)
        fit = self._peer.link_bytes * count // size if size else OUTGOING_MESSAGES
        return max(1, min(OUTGOING_MESSAGES, fit))

    def _refused(self, answer: Reply) -> None:
        if isinstance(answer, Refused) and not self._gone:
            if isinstance(answer, Busy):
                self._draining = self._asked = 0
                asyncio.get_running_loop().call_later(0.5, self._ask)
                return
            self._peer.turn_away_for(self, answer)

    # Deliveries.

    def _deliver(self, what: Sequence[Delivered]) -> None:
        if self._gone or not self.link.is_open:
            self._release([e.token for e in what if isinstance(e, Delivery) and e.token])
            return
        self.is_idle = False
        given = [each for each in what if isinstance(each, Delivery)]
        if given:
            self._send(given)
        if len(given) < len(what):
            for each in what:
                if isinstance(each, Notice):
                    self._noticed(each)
        if len(given) >= AT_ONCE:  # the client has something to do while we go on
            self._peer.flush()
        if self._asked <= self._window // 2:
            self._ask()
        self._peer.flush_soon()

    def _send(self, given: list[Delivery]) -> None:
        link, before, count = self.link, self._given, len(given)
        heads, bodies = write_deliveries(given)
        self._given += count
        self._drained += count
        self._asked -= count
        if self._delete:
            tags = Tags(bytes(8), range(before + 1, self._given + 1))
            link.send_run(heads, tags, None, bodies)
        else:
            tokens = [each.token for each in given]
            link.send_run(heads, tags_of(tokens), tokens, bodies)
            if len(link.unsettled) > UNSETTLED_MAX:
                self._forget_oldest()
        fit = self._peer.link_bytes * count // sum(map(len, chain(heads, bodies)))
        self._window = max(1, min(OUTGOING_MESSAGES, fit))

    def _noticed(self, notice: Notice) -> None:
        if notice.kind == "drained":
            asked, self._draining, self._asked = self._draining, 0, 0
            if not self.link.drain:
                self._ask()
            elif self._drained < asked or self.link.credit <= 0:
                self.link.drained()
            else:  # it gave as much as is asked for at a time: there may be more
                self._ask()
        elif notice.kind == "session-lost":
            text = "The session lock has expired. Accept the session again."
            self._lose(SessionLockLost(self.target.queue, self._session_token), text)
        elif notice.kind == "deleted":
            self._lose(self.target.missing)
        elif notice.kind == "paused":
            self._peer.turn_away(
                self,
                conditions.DISABLED,
                f"The messaging entity '{told_name(self.target.entity)}' is disabled.",
            )

    def _lose(self, refused: Refused, text: str | None = None) -> None:
        """The queue has forgotten it already."""
        self._gone = True
        self._peer.turn_away_for(self, refused, text)

    def _forget_oldest(self) -> None:
        for each in list(self.link.unsettled)[: UNSETTLED_MAX // 10]:
            self.link.forget_delivery(each)

    def _release(self, tokens: list[int]) -> None:
        if tokens:
            command = Release(self.target.queue, tokens, partial=True, session=self._session_token)
            self._commands.leave(self.target, command)

    # Settlement.

    def on_disposed(self, event: Disposed) -> None:
        """One frame may speak of all that was ever delivered: then it is settled in steps."""
        if len(event.kept) > SETTLE_MESSAGES and transaction_in(event.state) is None:
            self._peer.take_steps(self._dispose_in_steps(event))
        else:
            self._dispose(event)

    def _dispose_in_steps(self, event: Disposed) -> Iterator[None]:
        for at in range(0, len(event.kept), SETTLE_MESSAGES):
            some = slice(at, at + SETTLE_MESSAGES)
            ids, tokens = event.delivery_ids[some], event.kept[some]
            self._dispose(Disposed(event.link, ids, tokens, event.state, event.settled))
            self.flush()
            yield

    def _dispose(self, event: Disposed) -> None:
        state = event.state
        self.is_idle = False
        kind = 0 if state is None else code_of(state)
        ids, tokens = event.delivery_ids, event.kept
        if kind == 0x24:
            if event.settled:
                self._completing_quietly += tokens
            else:
                self._completing += tokens
                self._answered += ids
            self._peer.gathered(self)
            return
        self.flush()  # of the same deliveries it may have said otherwise just before
        told = [] if event.settled else ids
        transaction = transaction_in(state)
        if transaction is not None:
            self._enlist(*transaction, tokens, told)
            return
        try:
            command, outcome = self._command(kind, state, tokens)
        except Unfit as unfit:
            self._answer(told, rejected(unfit.condition, str(unfit)))
            return
        self._submit(command, tokens, told, outcome)

    def _enlist(
        self, id: bytes, outcome: Described | None, tokens: list[int], told: list[int]
    ) -> None:
        """They are settled when the transaction is committed."""
        transaction = self._commands.transactions.get(id)
        if transaction is None or outcome is None:
            self._answer(told, rejected(conditions.UNKNOWN_TRANSACTION, _NO_TRANSACTION))
            return
        kind = code_of(outcome)
        try:
            command, answer = self._command(kind, outcome, tokens)
        except Unfit as unfit:
            self._answer(told, rejected(unfit.condition, str(unfit)))
            return
        self._submit(Work(transaction, command), tokens, told, within(id, answer))

    def flush(self) -> None:
        """Completes the accepted messages in one command."""
        tokens, told, quietly = self._completing, self._answered, self._completing_quietly
        if tokens or quietly:
            self._completing, self._answered, self._completing_quietly = [], [], []
            for at in range(0, len(tokens), BATCH_MAX):
                self._complete(tokens[at : at + BATCH_MAX], told[at : at + BATCH_MAX])
            for at in range(0, len(quietly), BATCH_MAX):
                self._complete(quietly[at : at + BATCH_MAX], [])

    def _complete(self, tokens: list[int], told: list[int]) -> None:
        command = Complete(self.target.queue, tokens, True, self._session_token)
        self._submit(command, tokens, told, ACCEPTED)

    @property
    def _session_token(self) -> int:
        return 0 if self.session is None else self.session.token

    def _command(
        self, kind: int, state: Described | None, tokens: list[int]
    ) -> tuple[Ending, bytes]:
        """Returns the command for an outcome (3.4), and the answer to it. Raises Unfit."""
        queue, session = self.target.queue, self._session_token
        fields = state.value if state is not None and isinstance(state.value, list) else []
        if kind == 0x27:  # modified: as Service Bus understands it
            _, elsewhere, changed = (*fields, None, None, None)[:3]
            properties = changes(changed)
            if elsewhere:
                return Defer(queue, tokens, True, session, properties), MODIFIED
            return Abandon(queue, tokens, True, session, properties), MODIFIED
        if kind == 0x25:
            told = problem_in(fields[0]) if fields else None
            reason, description, properties = dead_letter_words(told)
            command = DeadLetter(queue, tokens, True, session, reason, description, properties)
            return command, REJECTED
        if kind == 0x24:
            return Complete(queue, tokens, True, session), ACCEPTED
        return Release(queue, tokens, True, session), RELEASED

    def _submit(
        self, command: Ending | Work, tokens: list[int], told: list[int], outcome: bytes
    ) -> None:
        """`told`: the deliveries of the tokens, or none if the client does not want to hear."""

        def reply(answer: Reply) -> None:
            if isinstance(answer, Settled):
                if lost := set(answer.lost):
                    each = list(zip(tokens, told, strict=False))
                    self._answer([id for token, id in each if token not in lost], outcome)
                    self._answer([id for token, id in each if token in lost], _LOCK_LOST)
                else:
                    self._answer(told, outcome)
            elif isinstance(answer, Refused):
                self._answer(told, self._peer.rejection_of(answer))

        self._commands.submit(self.target, command, reply)

    def _answer(self, ids: list[int], outcome: bytes) -> None:
        if ids and self.link.is_open:
            self.link.settle(ids, outcome)
            self._peer.flush_soon()

    # The end.

    def on_arrived(self, event: Arrived) -> None:
        raise AssertionError("messages do not come in where they go out")

    def on_detached(self) -> None:
        self.flush()
        self._release(list(self.link.unsent))
        if not self._gone:
            self._gone = True
            self._commands.leave(self.target, Detach(self._number))  # with its session


_NO_TRANSACTION = "There is no such transaction on this connection."
_LOCK_LOST = conditions.rejection_of(  # it has no facts, and so fits into every frame
    LockLost(None, 0), conditions.INFO_FRAME_BYTES_MIN,
    "The lock has expired or was settled already. Receive the message again.",
)  # fmt: skip


def tags_of(tokens: list[int]) -> Tags:
    """Tokens of new locks as clients know them: GUIDs in .NET's order, all turned round at once."""
    plain = b"".join([token.to_bytes(16, "big") for token in tokens])
    tags = bytearray(plain)
    for at, turned in _TURNED:
        tags[at::16] = plain[turned::16]
    return Tags(b"", [tag for (tag,) in _TAG.iter_unpack(tags)])


_TAG = Struct("16s")
_TURNED = tuple(enumerate((3, 2, 1, 0, 5, 4, 7, 6)))


def changes(given: Value) -> Properties:
    """Returns the application properties that a client wants changed. Raises Unfit."""
    if not isinstance(given, dict):
        return {}
    return {str(key): neutral_value(value) for key, value in given.items()}


def dead_letter_words(told: Problem | None) -> tuple[str | None, str | None, Properties]:
    """Reason, description and changed properties of a rejection. Raises Unfit."""
    if told is None:
        return None, None, {}
    info = dict(told.info)
    reason = info.pop(Symbol("DeadLetterReason"), None)
    description = info.pop(Symbol("DeadLetterErrorDescription"), None)
    if told.condition not in ("", conditions.DEAD_LETTER):
        reason = told.condition if reason is None else reason
        description = told.text if description is None else description
    return _words(reason), _words(description), changes(info)


def _words(given: Value) -> str | None:
    return str(given)[:TEXT_CHARS_MAX] if isinstance(given, str) else None
