"""A broker on each kind of store, as its users start and look at it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.server.running import Reply, Running, running
from tests.store.redis_server import RedisServer, a_server
from tests.waiting import until

SMALL = ("--dev", "--auto-create", "--segment-size", "16K", "--fold-size", "16K", "--keep", "0s",
         "--keep-size", "0")  # fmt: skip


class Place(NamedTuple):
    folder: Path
    url: str

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--data", str(self.folder / "data"), "--store", self.url)


@pytest.fixture(params=["file", "sqlite", "jsonl", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "redis":
        with a_server(tmp_path) as server:
            yield Place(tmp_path, server.url)
    else:
        yield Place(tmp_path, f"{request.param}:{tmp_path / 'journal'}")


def store(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "posthouse.cli", "store", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def rows(broker: Running, after: int) -> list[dict[str, object]]:
    reply = broker.call("GET", f"/feed?after={after}&limit=100000")
    assert reply.status == 200, reply
    return [json.loads(line) for line in reply.body.splitlines()]


def test_a_broker_folds_trims_and_feeds_on_every_store(place: Place) -> None:
    with running(*place.flags, *SMALL) as broker:
        broker.send("stays", "one", "two")
        for _ in range(12):
            broker.send("orders", *["a book" * 100] * 20)
            broker.complete("orders", *broker.receive("orders", 20))

        def has_trimmed() -> bool:
            broker.send("orders", "more" * 1000)
            broker.complete("orders", *broker.receive("orders", 1))
            return bool(broker.call("GET", "/feed/status").json["first"] > 1)

        until(has_trimmed, "the journal is trimmed")
        for accept in ("application/x-ndjson", "application/vnd.apache.arrow.stream"):

            def read(accept: str = accept) -> tuple[int, Reply] | None:
                """All that is kept, unless more was trimmed since that was asked."""
                first = broker.call("GET", "/feed/status").json["first"]
                headers = {"accept": accept}
                reply = broker.call("GET", f"/feed?after={first - 1}", headers=headers)
                return None if reply.status == 410 else (first, reply)

            found = until(read, "all that is kept is read")
            assert found is not None
            first, reply = found
            assert reply.status == 200
            if accept == "application/x-ndjson":
                positions = [json.loads(line)["position"] for line in reply.body.splitlines()]
                assert positions == [*range(first, first + len(positions))]
        assert broker.call("GET", "/api/v1/store").json["snapshots"]
        assert broker.call("POST", "/api/v1/store/snapshot").status == 200
        assert b"posthouse_snapshot_position" in broker.call("GET", "/metrics").body
        broker.kill()
    with running(*place.flags, *SMALL) as broker:
        assert [each["body"] for each in broker.receive("stays", 5)] == ["one", "two"]
        assert (place.folder / "data" / "seal-key").exists()


def test_a_store_is_verified_shown_copied_exported_and_imported(place: Place) -> None:
    with running(*place.flags, "--dev", "--auto-create") as broker:
        broker.send("orders", "a book", "another", id="m")
    for command in (["verify"], ["stats"], ["state"], ["snapshot"],
                    ["trace", "--namespace", "default", "--id", "m"]):  # fmt: skip
        done = store(*command, "--store", place.url, "--json")
        assert done.returncode == 0, done
        json.loads(done.stdout)
    first, second = place.folder / "first.jsonl", place.folder / "second.jsonl"
    copies = [f"sqlite:{place.folder / 'copy.db'}", f"jsonl:{place.folder / 'lines'}"]
    copies.append(f"file:{place.folder / 'files'}")
    source = place.url
    for target in copies:
        done = store("copy", source, target, "--json")
        assert done.returncode == 0, done
        assert json.loads(done.stdout)["frames"] > 1
        again = store("copy", source, target)
        assert again.returncode == 1
        assert "holds a journal already" in again.stderr
        source = target
    exported = store("export", "--store", place.url, first, "--json")
    assert exported.returncode == 0, exported
    done = store("import", "--store", f"sqlite:{place.folder / 'again.db'}", first, "--json")
    assert done.returncode == 0, done
    assert json.loads(done.stdout) == json.loads(exported.stdout)
    assert store("export", "--store", f"sqlite:{place.folder / 'again.db'}", second).returncode == 0
    assert first.read_bytes() == second.read_bytes()
    assert oct(first.stat().st_mode)[-3:] == "600"
    with running("--data", str(place.folder / "files"), "--dev") as broker:
        assert [each["body"] for each in broker.receive("orders", 5)] == ["a book", "another"]
    with running("--data", str(place.folder / "data"), "--store", copies[0], "--dev") as broker:
        assert len(broker.receive("orders", 5)) == 2


def test_an_export_that_was_changed_is_named_with_its_line(tmp_path: Path) -> None:
    with running("--data", str(tmp_path / "data"), "--dev", "--auto-create") as broker:
        broker.send("orders", "a book")
    file = tmp_path / "lines"
    assert store("export", "--data", tmp_path / "data", file).returncode == 0
    lines = file.read_bytes().splitlines(keepends=True)
    for number, (at, changed) in enumerate([
        (1, lines[1].replace(b'"count":1', b'"count":2')), (2, b""), (len(lines) - 1, b""),
        (0, b"{}\n"), (0, lines[0].replace(b"1", b"2")),
    ]):  # fmt: skip
        file.write_bytes(b"".join([*lines[:at], changed, *lines[at + 1 :]]))
        done = store("import", "--store", f"sqlite:{tmp_path / str(number)}", file)
        assert done.returncode == 1, (at, done)
        assert "is damaged at line" in done.stderr, (at, done)


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    there = f"sqlite:{tmp_path / 'none.db'}"
    assert store("verify", "--store", there).returncode == 3
    assert store("copy", there, f"jsonl:{tmp_path}").returncode == 3
    assert store("import", "--store", there, tmp_path / "none").returncode == 3
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "x.db").touch()
    assert (
        store("copy", f"sqlite:{tmp_path / 'x.db'}", f"sqlite:{tmp_path / 'x.db'}").returncode == 2
    )
    wrong = store("verify", "--store", "mongodb://u:geheim@host")
    assert wrong.returncode == 2
    assert "sqlite:FILE" in wrong.stderr


def refused(*flags: str) -> str:
    command = [sys.executable, "-m", "posthouse.cli", "serve", "--port", "0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode in (1, 2), done
    return done.stdout + done.stderr


def test_a_durability_that_redis_does_not_keep_refuses_the_start(tmp_path: Path) -> None:
    with a_server(tmp_path, "--appendfsync", "everysec", "--requirepass", "geheim") as server:
        url = f"redis://:geheim@127.0.0.1:{server.port}"
        flags = ("--data", str(tmp_path / "data"), "--dev", "--store", url)
        said = refused(*flags)
        assert "appendfsync always" in said
        assert "geheim" not in said
        with running(*flags, "--durability", "memory", "--auto-create") as broker:
            broker.send("orders", "a book")
            assert len(rows(broker, 0)) > 1
            assert "geheim" not in broker.call("GET", "/api/v1/store").body.decode()
        assert "geheim" not in json.dumps(broker.log)
        words = [sys.executable, "-m", "posthouse.cli", "config", "show", "--store", url]
        shown = subprocess.run(words, capture_output=True, text=True, timeout=60).stdout
        assert f"redis://127.0.0.1:{server.port}" in shown
        assert "geheim" not in shown


def test_a_second_broker_on_one_redis_deposes_the_first(tmp_path: Path) -> None:
    def flags(server: RedisServer, name: str) -> tuple[str, ...]:
        return ("--data", str(tmp_path / name), "--store", server.url, "--dev", "--auto-create")

    with a_server(tmp_path) as server, running(*flags(server, "a")) as first:
        first.send("orders", "a book")
        with running(*flags(server, "b")) as second:
            reply = first.queue("POST", "orders/messages", {"messages": [{"body": "void"}]})
            assert reply.status == 503, reply
            assert first.process.wait(30) == 74
            assert first.events("journal.deposed")
            assert [each["body"] for each in second.receive("orders", 5)] == ["a book"]


def test_a_store_that_makes_no_sense_is_told_without_its_secrets(tmp_path: Path) -> None:
    assert "file:DIR, sqlite:FILE" in refused("--store", "mongodb:there")
    said = refused("--store", "redis://u:geheim@:x")
    assert "redis://" in said
    assert "geheim" not in said
    assert "exclude each other" in refused("--memory", "--store", f"sqlite:{tmp_path}/x")
