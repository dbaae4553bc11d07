"""The replicated log on a real NATS server."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from socket import create_server

import pytest
from nats.aio.msg import Msg
from nats.js import api

from posthouse.store import nats as module
from posthouse.store.file import FileStore
from posthouse.store.frames import Frame
from posthouse.store.log import Message, Unanswered
from posthouse.store.nats import Nats, NatsLog, Servers, Unfit
from posthouse.store.replicated import ReplicatedStore
from tests.store.test_conformance import read_all
from tests.waiting import until_async

SERVER = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or "nats-server"
STREAM, SUBJECT = "PHJ_test_0", "phj.test.0"


class Server:
    def __init__(self, folder: Path, port: int = 0, more: str = "") -> None:
        """`more`: further lines of its configuration."""
        self.folder = folder
        folder.mkdir(exist_ok=True)
        if not port:
            with create_server(("127.0.0.1", 0)) as made:
                port = int(made.getsockname()[1])
        self.port = port
        config = folder / "nats.conf"
        config.write_text(
            f"listen: 127.0.0.1:{port}\n"
            f"jetstream {{ store_dir: {json.dumps(str(folder / 'js'))}, sync_interval: always }}\n"
            f"{more}"
        )
        self._process = subprocess.Popen(
            [SERVER, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    @property
    def servers(self) -> Servers:
        return Servers((f"nats://127.0.0.1:{self.port}",), name="test")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "nats")
    yield made
    made.stop()


async def connected(server: Server) -> Nats:
    while True:
        try:
            return await Nats.connect(server.servers)
        except Unanswered:
            await asyncio.sleep(0.05)  # slept: until the server has started


async def a_log(nats: Nats, max_bytes: int = 1 << 20) -> NatsLog:
    while True:
        try:
            return await nats.log(STREAM, SUBJECT, 1, max_bytes)
        except Unanswered:
            await asyncio.sleep(0.05)  # slept: until its streams can be made


def run(main: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(main())


def test_a_log_compares_numbers_and_is_read_in_order(server: Server) -> None:
    async def main() -> None:
        nats = await connected(server)
        log = await a_log(nats)
        assert await log.read(0) == []
        assert [await log.publish(at, b"%d" % at) for at in range(5)] == [1, 2, 3, 4, 5]
        assert await log.publish(3, b"late") is None
        assert await log.read(2) == [(3, b"2"), (4, b"3"), (5, b"4")]
        await log.purge(4)
        assert await log.read(0) == [(4, b"3"), (5, b"4")]
        again = await a_log(nats)
        assert (await again.info())["state"]["last_seq"] == 5
        assert (again.end, again.identity) == (5, log.identity)
        await log.close()
        await nats.close()

    run(main)


def test_a_store_on_it_holds_what_was_confirmed(server: Server, tmp_path: Path) -> None:
    def a_frame(number: int) -> Frame:
        return Frame(1, number, number, 1, number, 0, bytes(400_000 if number == 2 else 100))

    async def main() -> None:
        nats = await connected(server)
        store = ReplicatedStore(
            FileStore(tmp_path / "a", durability="interval"), await a_log(nats, 1 << 30)
        )
        await store.lead(1, lambda _: None)
        for number in (1, 2, 3):
            store.append(a_frame(number))
        await store.sync()
        other = ReplicatedStore(
            FileStore(tmp_path / "b", durability="interval"), await a_log(nats, 1 << 30)
        )
        while await other.read_on():
            pass
        assert [f.number for f in await read_all(other)] == [1, 2, 3]
        await store.close()
        await other.close()
        await nats.close()

    run(main)


def test_what_nodes_say_is_heard_by_those_who_listen(server: Server) -> None:
    async def main() -> None:
        first, second = await connected(server), await connected(server)
        heard: list[tuple[str, bytes]] = []
        await second.hear("ph.test.*", lambda subject, data: heard.append((subject, data)))
        await second.say("ph.test.other", b"")  # it listens by then
        await until_async(lambda: heard, "it hears")
        await first.say("ph.test.beat", b"here")
        await until_async(lambda: len(heard) == 2, "it is heard")
        assert heard[1] == ("ph.test.beat", b"here")
        await first.close()
        await first.say("ph.test.beat", b"nobody hears it")
        await second.close()

    run(main)


def test_what_has_no_answer_is_not_known_to_be_done(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "API_SECONDS", 0.2)
    monkeypatch.setattr(module, "CONNECT_SECONDS", 0.3)

    async def main() -> None:
        nats = await connected(server)
        log = await a_log(nats)
        server.stop()
        asked: list[Callable[[], Coroutine[object, object, object]]] = [
            lambda: log.publish(0, b"x"), lambda: log.read(0), lambda: log.purge(1),
            lambda: nats.log("s", "s", 1, 1),
        ]  # fmt: skip
        for each in asked:
            with pytest.raises(Unanswered):
                await each()
        with pytest.raises(Unanswered, match="no NATS server answers"):
            await Nats.connect(server.servers)
        await nats.close()

    run(main)


def test_refusals_are_told_apart(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        nats = await connected(server)
        log = await a_log(nats, max_bytes=2_000)
        with pytest.raises(Unanswered):
            await log.publish(0, bytes(3_000))
        was_full = log.is_full
        assert await log.publish(0, b"small") == 1
        assert (was_full, log.is_full) == (True, False)
        with pytest.raises(Unanswered):
            await log.place("nobody")  # there is one server alone
        with pytest.raises(Unfit, match="has num_replicas 1, and a journal needs 3"):
            await nats.log(STREAM, SUBJECT, 3, 2_000)
        monkeypatch.setattr(module, "VERSION", (99, 0))
        with pytest.raises(Unfit, match=r"needs 99\.0 or newer"):
            await Nats.connect(server.servers)
        await nats.close()

    run(main)


def test_a_server_or_stream_that_takes_too_little_at_a_time_is_refused(tmp_path: Path) -> None:
    """Else a leader would wait for ever for the first frame that is larger."""

    async def main() -> None:
        with pytest.raises(Unfit, match=r"up to 262144 bytes.* set max_payload: 1MB"):
            await connected(small)
        nats = await connected(just_enough)
        while True:
            try:
                await nats._client.jetstream().add_stream(
                    name=STREAM, subjects=[SUBJECT], discard=api.DiscardPolicy.NEW,
                    allow_direct=True, max_msg_size=1 << 18,
                )  # fmt: skip
                break
            except module._SILENT:
                await asyncio.sleep(0.05)  # slept: until its streams can be made
        with pytest.raises(Unfit, match=r"up to 262144 bytes.* max_msg_size -1"):
            await nats.log(STREAM, SUBJECT, 1, 1 << 20)
        await nats.remove(STREAM)
        log = await a_log(nats)
        store = ReplicatedStore(FileStore(tmp_path / "folder", durability="interval"), log)
        await store.lead(1, lambda _: None)
        store.append(Frame(1, 1, 1, 1, 1, 0, bytes(600_000)))
        await store.sync()  # its parts are as large as any
        await store.close()
        await nats.close()

    small = Server(tmp_path / "small", more="max_payload: 256KB\n")
    just_enough = Server(tmp_path / "just enough", more=f"max_payload: {module.PAYLOAD_BYTES}\n")
    try:
        run(main)
    finally:
        small.stop()
        just_enough.stop()


class Subscription:
    """Gives these messages, and then nothing more."""

    def __init__(self, *messages: Msg) -> None:
        self._messages = list(messages)

    async def next_msg(self, _: float) -> Msg:
        if not self._messages:
            raise TimeoutError
        return self._messages.pop(0)

    async def unsubscribe(self) -> None: ...


class Answering:
    """A client whose reads are answered with these messages."""

    def __init__(self, *messages: Msg) -> None:
        self._messages = messages

    def new_inbox(self) -> str:
        return "inbox"

    async def subscribe(self, _: str) -> Subscription:
        if self._messages and self._messages[0].headers is None:
            raise ConnectionResetError
        return Subscription(*self._messages)

    async def publish(self, *_: object, **__: object) -> None: ...


def a_message(headers: dict[str, str], data: bytes = b"") -> Msg:
    return Msg(_client=None, data=data, headers=headers)  # type: ignore[arg-type]


def read(*messages: Msg) -> list[Message]:
    info = api.StreamInfo(api.StreamConfig(), api.StreamState(0, 0, 1, 0, 0))
    log = NatsLog(Answering(*messages), STREAM, SUBJECT, info)  # type: ignore[arg-type]
    assert log.bytes_max > 1 << 50  # the stream has no limit of its own
    return asyncio.run(log.read(0))


def test_an_answer_that_ends_early_is_right_as_far_as_it_goes() -> None:
    first = a_message({"Nats-Sequence": "1", "Nats-Last-Sequence": "0"}, b"x")
    assert read(first) == [(1, b"x")]
    assert read(first, a_message({"Status": "204"})) == [(1, b"x")]
    with pytest.raises(Unanswered, match="had no answer"):
        read()
    with pytest.raises(Unanswered, match="answered with 503"):
        read(first, a_message({"Status": "503"}))
    with pytest.raises(Unanswered, match="had no answer"):
        read(Msg(_client=None))  # type: ignore[arg-type]  # it cannot be asked


def test_an_answer_of_which_a_message_is_lost_ends_before_it() -> None:
    first = a_message({"Nats-Sequence": "1", "Nats-Last-Sequence": "0"}, b"x")
    third = a_message({"Nats-Sequence": "3", "Nats-Last-Sequence": "2"}, b"z")
    purged = a_message({"Nats-Sequence": "7", "Nats-Last-Sequence": "1"}, b"z")
    assert read(first, third, a_message({"Status": "204"})) == [(1, b"x")]
    assert read(first, purged) == [(1, b"x"), (7, b"z")]
    with pytest.raises(Unanswered, match="a message of it was lost"):
        read(third, a_message({"Status": "204"}))


def test_a_certificate_that_is_not_there_is_told(server: Server, tmp_path: Path) -> None:
    async def main() -> None:
        await (await connected(server)).close()
        with pytest.raises(FileNotFoundError):
            await Nats.connect(Servers(server.servers.urls, ca=tmp_path / "none"))
        with pytest.raises(Unfit):
            await Nats.connect(Servers(server.servers.urls, credentials=tmp_path / "none"))

    run(main)


def test_errors_of_the_servers_are_noted_once(server: Server) -> None:
    async def main() -> None:
        nats = await connected(server)
        await nats._note_error(ValueError())
        assert nats.trouble == "ValueError"
        await nats._note_error(ValueError())
        await nats.close()

    run(main)


def test_a_log_tells_how_full_it_is_and_is_another_when_it_is_made_anew(server: Server) -> None:
    async def main() -> None:
        nats = await connected(server)
        log = await a_log(nats, 1 << 20)
        assert (log.size_bytes, log.bytes_max, log.end) == (0, 1 << 20, 0)
        for at in range(10):
            await log.publish(at, bytes(10_000))
        guessed = log.size_bytes
        await log.measure()
        assert 100_000 <= log.size_bytes <= guessed
        await nats._client.jetstream().delete_stream(STREAM)
        again = await a_log(nats)
        assert again.identity != log.identity
        assert again.end == 0
        await nats.close()

    run(main)


def test_a_full_stream_has_room_for_settling_and_is_purged_by_a_later_leader(
    server: Server, tmp_path: Path
) -> None:
    """Every frame says in its payload what it is: sends are refused, settles are still taken."""

    def a_frame(number: int, epoch: int, size: int) -> Frame:
        return Frame(epoch, number, number, 1, number, 0, bytes(size))

    async def main() -> None:
        nats = await connected(server)
        log = await a_log(nats, 400_000)
        store = ReplicatedStore(FileStore(tmp_path / "a", durability="interval"), log)
        await store.lead(1, lambda _: None)
        number = 0
        while not store.full:
            number += 1
            store.append(a_frame(number, 1, 20_000))
            await store.sync()
            if number % 4 == 0:
                store.mark()
        assert store.pressed
        assert 0.9 <= store.log_share < 1
        for _ in range(20):  # as settles are
            number += 1
            store.append(a_frame(number, 1, 100))
            await store.sync()
        await store.close()

        again = ReplicatedStore(
            FileStore(tmp_path / "a", durability="interval"), await a_log(nats, 400_000)
        )
        while await again.read_on():
            pass
        await again.lead(2, lambda _: None)
        was_full = again.full
        await again.purge(number)  # by marks that it has not written itself
        assert (was_full, again.full) == (True, False)
        assert again.log_share < 0.3
        number += 1
        again.append(a_frame(number, 2, 20_000))
        await again.sync()
        await again.close()
        await nats.close()

    run(main)


def test_a_stream_without_any_room_takes_more_when_it_is_purged(
    server: Server, tmp_path: Path
) -> None:
    async def main() -> None:
        nats = await connected(server)
        log = await a_log(nats, 100_000)
        store = ReplicatedStore(FileStore(tmp_path / "a", durability="interval"), log)
        await store.lead(1, lambda _: None)
        store.append(Frame(1, 1, 1, 1, 1, 0, bytes(90_000)))
        await store.sync()
        store.mark()
        store.append(Frame(1, 2, 2, 1, 2, 0, bytes(90_000)))
        syncing = asyncio.create_task(store.sync())
        await until_async(lambda: log.is_full, "the stream refuses it")
        assert store.log_share == 1.0
        await until_async(lambda: store.synced == 1, "the disk has the first")
        await store.purge(1)
        await syncing
        assert [frame.number for frame in await read_all(store)] == [1, 2]
        await store.close()
        await nats.close()

    run(main)


def test_a_stream_is_told_of_and_removed(server: Server) -> None:
    async def main() -> None:
        nats = await connected(server)
        await a_log(nats)
        assert nats.own_server
        assert (await nats.info(STREAM))["state"]["messages"] == 0
        await nats.remove(STREAM)
        with pytest.raises(Unanswered, match="not removed"):
            await nats.remove(STREAM)
        with pytest.raises(Unanswered):
            await nats.info(STREAM)
        away = Servers(("nats://127.0.0.1:1", *server.servers.urls), name="away")
        elsewhere = await Nats.connect(away)
        assert elsewhere.own_server == ""
        await elsewhere.close()
        await nats.close()

    run(main)


def test_a_file_of_credentials_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "seed").write_text("SUAB")
    (tmp_path / "creds").write_text("-----BEGIN")
    assert module._kind_of(tmp_path / "seed") == "nkeys_seed"
    assert module._kind_of(tmp_path / "creds") == "user_credentials"
