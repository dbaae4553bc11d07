"""Commands of one connection, each on behalf of the principal whose link it came through."""

import secrets
from collections.abc import Callable

from posthouse.broker.access import BROKER, Principal
from posthouse.broker.engine import Engine
from posthouse.broker.throttle import cost_of
from posthouse.core.commands import Answer, Command, Detach, Release, ReleaseSession, Send
from posthouse.core.errors import Refused, Throttled
from posthouse.core.message import NewMessage
from posthouse.core.model import QueueProperties
from posthouse.core.room import Used
from posthouse.dialects.backpressure import Backpressure
from posthouse.dialects.connections import guarded
from posthouse.dialects.servicebus.credentials import Credentials
from posthouse.dialects.servicebus.target import Target
from posthouse.store.errors import StoreError

BLOCK_MS = 50_000  # that a sender waits for room, where a queue has it so; clients wait a minute

Reply = Callable[[Answer | Refused | StoreError], None]


class Commands:
    """The broker, as the links of one connection see it."""

    def __init__(
        self,
        credentials: Credentials,
        acting: Callable[[Principal], Principal],
        address: str,
        backpressure: Backpressure,
        abort: Callable[[], None],
        message_bytes_max: Callable[[], int],
    ) -> None:
        self._credentials = credentials
        self.settings = credentials.settings
        self.acting = acting  # a principal, with the key that it has shown last
        self._address = address
        self._backpressure = backpressure
        self.count_unanswered = backpressure.count_unanswered
        self.abort = abort  # ends the connection: what its client had goes back
        self._message_bytes_max = message_bytes_max  # of this client, where a queue says nothing
        self.transactions: dict[bytes, int] = {}  # open ones of this connection, by their ids
        self._id_prefix, self._ids = secrets.token_hex(12), 0

    @property
    def engine(self) -> Engine:
        return self._credentials.engine  # there is no link before it is open

    def new_id(self) -> str:
        """Returns an id for a message that has none."""
        self._ids += 1
        return f"{self._id_prefix}{self._ids:08x}"

    def submit(self, target: Target, command: Command, reply: Reply) -> bool:
        """Submits a command; while too many are under way, nothing is read from the client.

        Returns whether it is certain to be done, as the engine does.
        """

        def answered(answer: Answer | Refused | StoreError) -> None:
            self._backpressure.command_done()
            reply(answer)

        reply = guarded(reply, self.abort)
        engine = self.engine
        if engine.throttle.is_on:
            try:
                engine.throttle.check_address(self._address, cost_of(command))
            except Throttled as throttled:
                reply(throttled)
                return False
        self._backpressure.command_begun()
        return engine.submit(self.acting(target.principal), target.namespace, command, answered)

    def check_right(self, target: Target, command: Command) -> None:
        """Before something is looked at that is not asked of the engine. Raises Unauthorized."""
        self.engine.check(self.acting(target.principal), target.namespace, command)

    def send(self, target: Target, messages: list[NewMessage]) -> Send:
        """Returns the command that sends; in a full queue that blocks it waits for room."""
        properties = self.properties(target)
        if properties is None or properties.overflow != "block":
            return Send(target.queue, messages)
        engine = self.engine
        deadline_ms = engine.clock_ms(target.namespace) + BLOCK_MS
        return Send(target.queue, messages, deadline_ms=deadline_ms, sender=engine.new_receiver())

    def leave(self, target: Target, command: Detach | Release | ReleaseSession) -> None:
        """Gives back what a client had; that needs no right, which it may have lost meanwhile."""
        self.engine.submit(BROKER, target.namespace, command, _ignore)

    def properties(self, target: Target) -> QueueProperties | None:
        """The properties of the queue; None where there is none."""
        return self.engine.view.properties(target.namespace, target.queue)

    def queue_size(self, target: Target) -> Used:
        """How many messages there are in a queue, and their bytes."""
        return self.engine.view.size(target.namespace, target.queue)

    def message_bytes(self, target: Target) -> int:
        """The size that a message may have."""
        properties = self.properties(target)
        most = None if properties is None else properties.max_message_bytes
        return self._message_bytes_max() if most is None else most


def _ignore(_: object) -> None:
    """Nobody waits for this answer."""
