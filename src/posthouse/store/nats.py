"""The replicated log on NATS JetStream: the one module that imports nats-py.

A stream with one subject holds the messages of a log. NATS's own Raft replicates it, elects its
leader and repairs its copies. Reading is by direct get, which any replica answers that is up to
date as far as it knows. Beside the log, nodes say things to each other on plain subjects.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import api

from posthouse.store.lane import MESSAGE_BYTES_MAX
from posthouse.store.log import Message, Unanswered

_log = logging.getLogger(__name__)

VERSION = (2, 15)  # before it every message is synced by itself
# That a server has to take: what a lane publishes at once, and the headers of NATS.
PAYLOAD_BYTES = MESSAGE_BYTES_MAX + 1024
READ_MESSAGES = 256
READ_BYTES = 4 << 20
CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 0.5
MESSAGE_BYTES = 128  # that a message takes beside what it holds, about
READ_SECONDS = 0.2  # it may go to a server that hangs; the next goes elsewhere
API_SECONDS = 5.0
INFO_SECONDS = 1.0
TROUBLE_SECONDS = 10.0  # for which an error that was told may be why nothing is answered
_SILENT = (OSError, TimeoutError, nats.errors.Error)  # nobody knows then what was done
_WRONG_SEQUENCE = 10071
_FULL = 10077


class Unfit(Exception):
    """The servers cannot keep what is asked of them. The text says what to set."""


@dataclass(frozen=True)
class Servers:
    """How to reach them."""

    urls: tuple[str, ...]  # this machine's own first
    credentials: Path | None = None  # a user's .creds, or the seed of an nkey
    ca: Path | None = None
    name: str = "posthouse"


Heard = Callable[[str, bytes], None]  # a subject, and what was said


def _kind_of(credentials: Path) -> str:
    """The option of nats-py for a file of credentials. Raises Unfit."""
    try:
        with credentials.open("rb") as file:
            head = file.read(2)
    except OSError as error:
        raise Unfit(f"the credentials {credentials} cannot be read: {error.strerror}") from None
    return "nkeys_seed" if head == b"SU" else "user_credentials"


class Nats:
    """A connection to the servers, which comes back by itself."""

    def __init__(self, client: Client, first: str = "") -> None:
        self._client = client
        self._first = first  # the URL of this machine's own server
        self._trouble = ""
        self._trouble_at = -TROUBLE_SECONDS

    @property
    def trouble(self) -> str:
        """The last error that the servers have told, if that was a short while ago."""
        is_recent = asyncio.get_running_loop().time() - self._trouble_at < TROUBLE_SECONDS
        return self._trouble if is_recent else ""

    @property
    def own_server(self) -> str:
        """The name of this machine's own server; "" while it is connected to another."""
        url = self._client.connected_url
        if url is None or url.netloc != urlsplit(self._first).netloc:
            return ""
        return str(self._client._server_info.get("server_name", ""))  # there is no public way

    @classmethod
    async def connect(cls, servers: Servers) -> "Nats":
        """Raises Unanswered where none of them can be reached, and Unfit."""
        client = Client()
        made = cls(client, servers.urls[0])
        options: dict[str, Any] = {"reconnect_time_wait": 0.05}  # declared to be a whole number
        if servers.credentials is not None:
            options[_kind_of(servers.credentials)] = str(servers.credentials)
        if servers.ca is not None:
            import ssl  # not needed by every connection

            options["tls"] = ssl.create_default_context(cafile=servers.ca)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):  # it would try for ever
                await client.connect(
                    list(servers.urls), name=servers.name, dont_randomize=True,
                    allow_reconnect=True, max_reconnect_attempts=-1,
                    connect_timeout=1, ping_interval=1, max_outstanding_pings=2,
                    error_cb=made._note_error, inbox_prefix=f"_INBOX_{servers.name}", **options,
                )  # fmt: skip
        except _SILENT as error:
            await client.close()
            raise Unanswered(f"no NATS server answers at {', '.join(servers.urls)}") from error
        version = client.connected_server_version
        if (version.major, version.minor) < VERSION:
            await client.close()
            raise Unfit(
                f"the NATS server is {version.major}.{version.minor}; a journal needs"
                f" {VERSION[0]}.{VERSION[1]} or newer"
            )
        if client.max_payload < PAYLOAD_BYTES:
            await client.close()
            raise Unfit(
                f"the NATS server takes messages of up to {client.max_payload} bytes, and a journal"
                f" needs {PAYLOAD_BYTES}; set max_payload: 1MB in the configuration of each server"
            )
        return made

    async def _note_error(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        is_new, self._trouble = text != self._trouble, text
        self._trouble_at = asyncio.get_running_loop().time()
        if is_new:
            _log.warning("NATS says: %s", text, extra={"event": "nats.error"})

    async def log(self, stream: str, subject: str, replicas: int, max_bytes: int) -> "NatsLog":
        """The log that a stream holds, which is made if it is not there.

        Raises Unanswered, and Unfit where the stream is there and is another.
        """
        context = self._client.jetstream(timeout=API_SECONDS)
        wanted = api.StreamConfig(
            name=stream, subjects=[subject], storage=api.StorageType.FILE, num_replicas=replicas,
            retention=api.RetentionPolicy.LIMITS, discard=api.DiscardPolicy.NEW,
            max_bytes=max_bytes, deny_delete=True, allow_direct=True, duplicate_window=0.1,
        )  # fmt: skip
        try:
            try:
                info = await context.stream_info(stream)
            except nats.js.errors.NotFoundError:
                info = await context.add_stream(wanted)
        except _SILENT as error:
            raise Unanswered(f"the stream {stream} does not answer: {error}") from error
        found = info.config
        for name in ("subjects", "num_replicas", "storage", "discard", "allow_direct"):
            if getattr(found, name) != getattr(wanted, name):
                raise Unfit(
                    f"the stream {stream} has {name} {getattr(found, name)}, and a journal needs"
                    f" {getattr(wanted, name)}; change the stream, or name another cluster"
                )
        if 0 < (found.max_msg_size or 0) < PAYLOAD_BYTES:
            raise Unfit(
                f"the stream {stream} takes messages of up to {found.max_msg_size} bytes, and a"
                f" journal needs {PAYLOAD_BYTES}; edit the stream: max_msg_size -1"
            )
        return NatsLog(self._client, stream, subject, info)

    async def remove(self, stream: str) -> None:
        """Removes a stream with all that it holds. Raises Unanswered."""
        try:
            await self._client.jetstream(timeout=API_SECONDS).delete_stream(stream)
        except _SILENT as error:
            raise Unanswered(f"the stream {stream} was not removed: {error}") from error

    async def info(self, stream: str) -> dict[str, Any]:
        """The state of a stream, as the servers tell it. Raises Unanswered."""
        answer = await _ask(self._client, f"$JS.API.STREAM.INFO.{stream}", b"{}", INFO_SECONDS)
        if "error" in answer:
            raise Unanswered(str(answer["error"].get("description", answer["error"])))
        return answer

    async def say(self, subject: str, data: bytes) -> None:
        """Tells all who hear it now; nobody answers."""
        if self._client.is_connected:
            await self._client.publish(subject, data)

    async def hear(self, subject: str, heard: Heard) -> None:
        async def note(message: Msg) -> None:
            heard(message.subject, message.data)

        await self._client.subscribe(subject, cb=note)

    async def close(self) -> None:
        with suppress(*_SILENT):  # there may be nobody to say goodbye to
            await self._client.close()


class NatsLog:
    """The messages of one stream."""

    def __init__(self, client: Client, stream: str, subject: str, info: api.StreamInfo) -> None:
        self._client = client
        self._stream = stream
        self._subject = subject
        self.is_full = False  # the stream holds as much as it may
        self.identity = f"{stream} {info.created.isoformat() if info.created else ''}"
        self.end = info.state.last_seq
        self.size_bytes = info.state.bytes
        self.bytes_max = info.config.max_bytes or -1
        if self.bytes_max <= 0:  # as much as its servers have room for
            self.bytes_max = 1 << 62

    async def measure(self) -> None:
        self.size_bytes = int((await self.info())["state"]["bytes"])
        self.is_full = self.is_full and self.size_bytes > self.bytes_max // 2

    async def publish(self, expected: int, data: bytes) -> int | None:
        headers = {"Nats-Expected-Last-Sequence": str(expected)}
        answer = await self._ask(self._subject, data, ANSWER_SECONDS, headers)
        error = answer.get("error")
        if error is None:
            self.is_full = False
            self.size_bytes += len(data) + MESSAGE_BYTES
            return int(answer["seq"])
        if error.get("err_code") == _WRONG_SEQUENCE:
            return None
        self.is_full = error.get("err_code") == _FULL
        raise Unanswered(str(error.get("description", error)))

    async def read(self, after: int) -> list[Message]:
        inbox = self._client.new_inbox()
        try:
            subscription = await self._client.subscribe(inbox)
        except _SILENT as error:
            raise Unanswered(f"a read had no answer: {error}") from error
        asked = {"seq": after + 1, "batch": READ_MESSAGES, "max_bytes": READ_BYTES}
        messages: list[Message] = []
        try:
            await self._client.publish(
                f"$JS.API.DIRECT.GET.{self._stream}", json.dumps(asked).encode(), reply=inbox
            )
            while True:
                message = await subscription.next_msg(READ_SECONDS)
                headers = message.headers or {}
                if "Status" in headers:
                    if headers["Status"] in ("204", "404"):
                        return messages
                    raise Unanswered(f"a read was answered with {headers['Status']}")
                # Each tells which was sent before it: one may be lost where a connection was.
                before = messages[-1][0] if messages else 0
                if int(headers["Nats-Last-Sequence"]) != before:
                    raise TimeoutError("a message of it was lost")
                messages.append((int(headers["Nats-Sequence"]), message.data))
        except _SILENT as error:
            if messages:  # those are right, whatever comes behind them
                return messages
            raise Unanswered(f"a read had no answer: {error}") from error
        finally:
            with suppress(*_SILENT):
                await subscription.unsubscribe()

    async def purge(self, before: int) -> None:
        await self._api(f"STREAM.PURGE.{self._stream}", {"seq": before})

    async def place(self, server: str) -> None:
        """Has the stream's leader move to a server."""
        await self._api(
            f"STREAM.LEADER.STEPDOWN.{self._stream}", {"placement": {"preferred": server}}
        )

    async def info(self) -> dict[str, Any]:
        return await self._api(f"STREAM.INFO.{self._stream}", {})

    async def _api(self, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        answer = await self._ask(f"$JS.API.{path}", json.dumps(asked).encode(), API_SECONDS)
        if "error" in answer:
            raise Unanswered(str(answer["error"].get("description", answer["error"])))
        return answer

    async def _ask(
        self, subject: str, data: bytes, seconds: float, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        return await _ask(self._client, subject, data, seconds, headers)

    async def close(self) -> None:
        """The connection is closed by who has opened it."""


async def _ask(
    client: Client,
    subject: str,
    data: bytes,
    seconds: float,
    headers: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Raises Unanswered."""
    try:
        message = await client.request(subject, data, seconds, headers=headers)
        answer: dict[str, Any] = json.loads(message.data)
    except (*_SILENT, ValueError) as error:
        raise Unanswered(str(error) or type(error).__name__) from error
    return answer
