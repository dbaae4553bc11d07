"""The transport over NATS JetStream."""

import asyncio
import contextlib
import json
import logging
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from posthouse.bridge.dead_letters import REPLAYED, headers_of
from posthouse.bridge.envelope import KEY_HEADER, key_text
from posthouse.bridge.errors import (
    BridgeError,
    ConfigurationError,
    NotPermitted,
    PublishFailed,
    TooLarge,
)
from posthouse.bridge.jetstream import letters
from posthouse.bridge.jetstream.connection import ANSWER_SECONDS, Connection, Login, read_urls
from posthouse.bridge.jetstream.incoming import Native, nak
from posthouse.bridge.jetstream.permissions import WAKES
from posthouse.bridge.jetstream.pulling import Puller
from posthouse.bridge.jetstream.pushing import Pushed
from posthouse.bridge.jetstream.topology import Topologies
from posthouse.bridge.jetstream.words import (
    DELIVER_AT,
    EXPECTED_STREAM,
    MESSAGE_ID,
    NANOSECONDS,
    Reply,
    Unanswered,
    headers_bytes,
    publish_failure,
)
from posthouse.bridge.names import check_subject, check_token
from posthouse.bridge.transport import (
    Ack,
    Bury,
    DeadLetter,
    Delivery,
    Extend,
    Failure,
    Nak,
    Outgoing,
    Plan,
    Settlement,
    Source,
    Stored,
    Topology,
    TransportHealth,
)

_log = logging.getLogger("posthouse.bridge")

IN_FLIGHT_MAX = 256  # events that were published and not answered yet
DEAD_BYTES = 4_096  # that the headers of a dead letter take, kept free in each event
BURY_PAUSE_SECONDS = 5.0  # until an event is delivered again that could not be buried
MONITOR_SECONDS = 2.0
MONITOR_BYTES_MAX = 1 << 20


class JetStreamTransport:
    """Events in one stream. Publishing is pipelined, and every acknowledgment is confirmed."""

    name = "nats"
    wakes = True

    def __init__(
        self,
        urls: Sequence[str],
        *,
        stream: str,
        dead_letters: str,
        user: str = "",
        password: str = "",
        credentials: str | Path = "",
        ca_file: str | Path = "",
        cert_file: str | Path = "",
        key_file: str | Path = "",
        client_name: str = "posthouse-bridge",
        inbox: str = "_INBOX",
        restricted: bool = False,
        monitor: str = "",
    ) -> None:
        """Raises ConfigurationError.

        `credentials` is a .creds file or one with the seed of an nkey; `ca_file`, `cert_file` and
        `key_file` are for TLS. With `restricted`, nothing of the API is asked but for events.
        `monitor` is the URL of the server's monitoring port, which tells how it syncs.
        """
        check_token("The name of the stream", stream)
        check_subject(dead_letters)
        check_subject(inbox)
        if monitor and not monitor.startswith(("http://", "https://")):
            raise ConfigurationError("monitor must be a URL, as in http://127.0.0.1:8222.")
        login = Login(
            user, password, "", str(credentials), str(ca_file), str(cert_file), str(key_file)
        )
        self._connection = Connection(read_urls(urls, login), name=client_name, inbox=inbox)
        self._topologies = Topologies(self._connection)
        self._stream = stream
        self._dead_letters = dead_letters
        self._restricted = restricted
        self._monitor = monitor
        self._room = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._pullers: dict[tuple[str, str], Puller] = {}

    @property
    def body_bytes_max(self) -> int:
        """The most bytes of an event with its headers, so that it can be buried, too."""
        return max(1, self._connection.body_bytes_max - DEAD_BYTES)

    async def open(self) -> None:
        """Raises BridgeError."""
        await self._connection.open()

    async def close(self) -> None:
        await self._connection.close()

    # Publishing.

    async def publish(self, events: Sequence[Outgoing]) -> list[Stored | Failure]:
        answers: list[Stored | Failure | None] = [None] * len(events)
        if self._connection.state != "connected":
            await self._connection.connected(ANSWER_SECONDS)
        flying: dict[int, tuple[str, asyncio.Future[Reply]]] = {}
        try:
            for place, event in enumerate(events):
                headers = self._headers(event)
                failure = self._unfit(event, headers)
                if failure is None:
                    failure = await self._launch(place, event, headers, flying)
                answers[place] = failure
            if flying:
                replies = [reply for _, reply in flying.values()]
                await asyncio.wait(replies, timeout=ANSWER_SECONDS)
            for place, (_, reply) in flying.items():
                answers[place] = self._answer(events[place], reply)
        finally:
            for token, _ in flying.values():
                self._connection.give_up(token)
        return [answer for answer in answers if answer is not None]

    async def _launch(
        self, place: int, event: Outgoing, headers: dict[str, str],
        flying: dict[int, tuple[str, "asyncio.Future[Reply]"]],
    ) -> PublishFailed | None:  # fmt: skip
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._room.acquire()
        except TimeoutError:
            return Unanswered(f"NATS has not answered {IN_FLIGHT_MAX} events before this one.")
        try:
            token, reply = await self._connection.begin_request(event.subject, event.body, headers)
        except PublishFailed as failure:
            self._room.release()
            return failure
        reply.add_done_callback(lambda _: self._room.release())
        flying[place] = token, reply
        return None

    def _answer(self, event: Outgoing, reply: "asyncio.Future[Reply]") -> Stored | Failure:
        if not reply.done():
            reply.cancel()
            return Unanswered(
                f"{event.subject!r} was not answered within {ANSWER_SECONDS:g} s; with the same id"
                " it may be published again."
            )
        error = reply.exception()
        if error is not None:
            if isinstance(error, PublishFailed):
                return error
            raise error
        answer = reply.result()
        failure = publish_failure(answer, event.subject, self._stream)
        if failure is not None:
            return failure
        form = answer.form()
        return Stored(int(form.get("seq", 0)), duplicate=form.get("duplicate") is True)

    def _headers(self, event: Outgoing) -> dict[str, str]:
        headers = dict(event.headers)
        if event.key:
            headers.setdefault(KEY_HEADER, key_text(event.key))
        if event.id:
            headers[MESSAGE_ID] = event.id
        if event.delay > 0:
            headers[DELIVER_AT] = str(round((time.time() + event.delay) * 1_000))
        headers[EXPECTED_STREAM] = self._stream
        return headers

    def _unfit(self, event: Outgoing, headers: dict[str, str]) -> PublishFailed | None:
        """Says why an event cannot be sent at all; None if it can."""
        size = len(event.body) + headers_bytes(headers)
        if size > self.body_bytes_max:
            return TooLarge(
                f"The event {event.id} has {size:,} bytes with its headers; this NATS server takes"
                f" {self.body_bytes_max:,}. Send a reference to what is large, or raise its"
                " max_payload."
            )
        for name, text in headers.items():
            if not (name + text).isascii() or not (name + text).isprintable() or ":" in name:
                return PublishFailed(
                    f"The event {event.id} has the header {name!r}, which must be printable ASCII;"
                    " encode it.", transient=False,
                )  # fmt: skip
        try:
            check_subject(event.subject)
        except ConfigurationError as error:
            return PublishFailed(str(error), transient=False)
        return None

    # Consuming.

    def deliveries(self, source: Source, window: int) -> AsyncIterator[Delivery]:
        """They raise NotPermitted, at once, where the user may not do it."""
        if source.push:
            return Pushed(self._connection, source, window).deliveries()
        puller = Puller(self._connection, self._stream, source, window)
        self._pullers[source.subject, source.consumer] = puller
        return puller.deliveries()

    async def settle(self, delivery: Delivery, how: Settlement) -> None:
        """Raises BridgeError where the server has not confirmed it: it is delivered again then."""
        native = delivery.native
        assert isinstance(native, Native)
        if isinstance(how, Extend):
            native.window.extend(native.key)
            await self._confirm(delivery, native, b"+WPI")
            return
        try:
            match how:
                case Ack():
                    await self._confirm(delivery, native, b"+ACK")
                case Nak(delay):
                    await self._confirm(delivery, native, nak(delay))
                case Bury():
                    await self._bury(delivery, native, how)
        finally:
            native.window.leave(native.key)

    async def _confirm(self, delivery: Delivery, native: Native, how: bytes) -> None:
        reply = await self._connection.request(native.reply, how)
        if reply.status:
            raise Unanswered(
                f"Nobody confirms what becomes of the event {delivery.id} of {delivery.subject}:"
                f" the consumer {delivery.consumer} is not there, or has no leader."
            )

    async def _bury(self, delivery: Delivery, native: Native, how: Bury) -> None:
        """Publishes the dead letter, with an id of its own, then acknowledges the event.

        With the event's own id the stream would take it for a duplicate of the event and drop it.
        """
        context = dict(how.context)
        context.setdefault("original_subject", delivery.subject)
        context.setdefault("stream", delivery.stream)
        context.setdefault("sequence", delivery.sequence)
        context.setdefault("consumer", delivery.consumer)
        id = str(context.get("event_id") or delivery.id or f"{delivery.stream}:{delivery.sequence}")
        context.setdefault("event_id", id)
        marks = headers_of(Bury(how.reason, context), delivery.number)
        marks[MESSAGE_ID] = f"{delivery.consumer}:{_header_text(id)}:dead"
        marks[EXPECTED_STREAM] = self._stream
        own = {
            name: _header_text(text)
            for name, text in delivery.headers.items() if not name.lower().startswith("nats-")
        }  # fmt: skip
        if len(delivery.body) + headers_bytes(own | marks) > self._connection.body_bytes_max:
            own = {}  # another's event, as large as can be: rather its body than its headers
        try:
            reply = await self._connection.request(self._dead_letters, delivery.body, own | marks)
            failure = publish_failure(reply, self._dead_letters, self._stream)
            if failure is not None:
                raise failure
        except BridgeError:
            with contextlib.suppress(BridgeError):  # its ack_wait ends
                await self._confirm(delivery, native, nak(BURY_PAUSE_SECONDS))
            raise
        await self._confirm(delivery, native, b"+ACK")

    # Topology.

    async def plan(self, wanted: Topology) -> Plan:
        return await self._topologies.plan(wanted)

    async def apply(self, plan: Plan, *, recreate: bool = False) -> None:
        await self._topologies.apply(plan, recreate=recreate)

    # Waking.

    async def wake(self, channel: str) -> None:
        with contextlib.suppress(BridgeError):  # a hint: who polls finds it, too
            await self._connection.send(f"{WAKES}.{channel}")

    async def woken(self, channel: str) -> AsyncIterator[None]:
        bell = asyncio.Event()

        def ring(subject: str, reply_to: str, reply: Reply) -> None:
            bell.set()

        listener = await self._connection.listen(f"{WAKES}.{channel}", ring)
        try:
            with self._connection.watching(bell):
                while self._connection.state != "disconnected":
                    await bell.wait()
                    bell.clear()
                    yield  # also after an outage, in which hints are lost
        finally:
            await self._connection.unlisten(listener)

    # Dead letters.

    async def dead_letters(self, wanted: Topology) -> AsyncIterator[DeadLetter]:
        found = letters.dead_letters(self._connection, wanted.stream, wanted.dead_letters)
        async for letter in found:
            yield letter

    async def replay(self, letter: DeadLetter, id: str) -> None:
        if not letter.subject:
            raise BridgeError(
                f"The dead letter {letter.place} does not say where it came from; publish its body"
                " to where it belongs, and drop it."
            )
        headers = dict(letter.headers) | {REPLAYED: datetime.now(UTC).isoformat()}
        again = Outgoing(letter.subject, letter.body, id, headers)
        [answer] = await self.publish([again])
        if isinstance(answer, PublishFailed):
            raise answer
        await letters.remove(self._connection, letter)

    async def drop(self, letter: DeadLetter) -> None:
        await letters.remove(self._connection, letter)

    # Health.

    async def health(self, wanted: Topology) -> TransportHealth:
        """Asks the server; it does not raise."""
        connection = self._connection
        facts: dict[str, object] = {"stream": None, "consumers": {}, "sync_interval": "unknown"}
        problem, state = connection.problem, connection.state
        if state == "connected":
            try:
                facts["rtt_ms"] = round(await connection.round_trip() * 1_000, 3)
                if not self._restricted:
                    problem = await self._look(wanted, facts) or problem
            except NotPermitted as denied:
                facts["not_permitted"] = str(denied)
            except BridgeError as error:
                problem = str(error)
        for (_, consumer), puller in self._pullers.items():
            if puller.problem:
                problem = f"{consumer}: {puller.problem}"
        facts["sync_interval"] = await self._sync_interval()
        info = connection.server_info
        facts["version"] = info.get("version", "")
        facts["server_name"] = info.get("server_name", "")
        return TransportHealth(
            state == "connected", state, connection.server, connection.since, problem, facts
        )

    async def _look(self, wanted: Topology, facts: dict[str, object]) -> str:
        """Adds what the API says of stream and consumers. Returns a problem, or ""."""
        info = await self._topologies.stream_info(wanted.stream)
        if info is None:
            facts["stream"] = {"name": wanted.stream, "exists": False}
            return (
                f"The stream {wanted.stream} is not there; `posthouse bridge provision` makes it."
            )
        config, state = info["config"], info["state"]
        cluster = info.get("cluster") or {}
        facts["stream"] = {
            "name": wanted.stream, "exists": True, "subjects": config.get("subjects"),
            "messages": state.get("messages"), "bytes": state.get("bytes"),
            "replicas": config.get("num_replicas"), "retention": config.get("retention"),
            "storage": config.get("storage"), "leader": cluster.get("leader"),
            "replicas_current": 1 + sum(
                1 for each in cluster.get("replicas") or () if each.get("current")
            ),
        }  # fmt: skip
        consumers: dict[str, object] = {}
        missing = ""
        for source in wanted.sources:
            found = await self._topologies.consumer_info(wanted.stream, source.consumer)
            if found is None:
                missing = f"The consumer {source.consumer} is not there."
                consumers[source.consumer] = None
                continue
            consumers[source.consumer] = {
                "pending": found.get("num_pending"), "unacked": found.get("num_ack_pending"),
                "redelivered": found.get("num_redelivered"), "waiting": found.get("num_waiting"),
                "last_active": (found.get("ack_floor") or {}).get("last_active"),
            }  # fmt: skip
        facts["consumers"] = consumers
        return missing

    async def _sync_interval(self) -> str:
        """Returns "always", an interval in seconds, or "unknown", from the monitoring port."""
        if not self._monitor:
            return "unknown"
        try:
            text = await asyncio.to_thread(_fetch, f"{self._monitor.rstrip('/')}/varz")
            config = json.loads(text)["jetstream"]["config"]
            if config.get("sync_always"):
                return "always"
            return f"{int(config['sync_interval']) / NANOSECONDS:g} s"
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.debug("The monitoring port does not tell: %s", error)
            return "unknown"


def _fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=MONITOR_SECONDS) as answer:  # noqa: S310
        found: Any = answer.read(MONITOR_BYTES_MAX)
    return bytes(found)


def _header_text(text: str) -> str:
    """Returns another's text as a header may have it."""
    return "".join(sign if sign.isascii() and sign.isprintable() else "?" for sign in text)
