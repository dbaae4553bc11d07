"""A mistake is told in one sentence that says what is expected."""

import json
from pathlib import Path

import pytest

from tests.cli.terminal import run
from tests.server.running import Running

DECODER = ("Expected `", "got `", "`$", "enum value", "unknown field", "JSON is malformed",
           "regex", "invalid int", "invalid float", "Expecting", "not as it should be")  # fmt: skip

SETTINGS = [
    ("lock=5", "There is no 'lock'; did you mean lock_ms? It must be a whole number of"
     " milliseconds, as in 60000."),
    ("lock_ms=5s", "lock_ms must be a whole number of milliseconds, as in 60000."),
    ("lock_ms=1.5", "lock_ms must be a whole number of milliseconds, as in 60000."),
    ("lock_ms=[", "lock_ms must be a whole number of milliseconds, as in 60000."),
    ('lock_ms={"a": 1}', "lock_ms must be a whole number of milliseconds, as in 60000."),
    ("ttl_ms=1h", "ttl_ms must be a whole number of milliseconds or null, as in 60000."),
    ("max_bytes=1GB", "max_bytes must be a whole number of bytes or null, as in 1048576."),
    ("order=odd", "order must be one of arrival, priority."),
    ("limit_counts=odd", "limit_counts must be one of all, waiting."),
    ("requires_session=maybe", "requires_session must be true or false."),
    ("forward_to=5", "forward_to must be text or null."),
    ("backoff_ms=5", "backoff_ms must be a list, each a whole number of milliseconds, as in"
     " [60000]."),
    ("backoff_ms=[1,true]", "backoff_ms[1] must be a whole number of milliseconds, as in 60000."),
    ("lock_ms=-1", "lock_ms must be a whole number from 0 to 3155760000000."),
]  # fmt: skip


@pytest.mark.parametrize(("given", "said"), SETTINGS, ids=[given for given, _ in SETTINGS])
def test_a_property_that_is_wrong_is_told_in_a_sentence(
    broker: Running, given: str, said: str
) -> None:
    done = run(broker, "queue", "create", "q", "--set", given)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said + "\n")


def test_no_command_tells_the_words_of_a_decoder(broker: Running, tmp_path: Path) -> None:
    broker.queue("PUT", "q", {})
    (tmp_path / "wrong.json").write_text('{"port": [5672')
    (tmp_path / "wrong.yaml").write_text("port: [5672\nkeep: :")
    mistakes = [
        ("queue", "create", "q", "--set", "colourless=1"),
        ("queue", "create", "q", "--set", "lock_ms"),
        ("queue", "update", "q", "--set", "status=odd"),
        ("topic", "create", "t", "--set", "ttl=1"),
        ("subscription", "create", "t", "s", "--set", "lock=1"),
        ("access", "add", "web", "--rights", "fly"),
        ("rule", "add", "t", "s", "r", "--field", "colour=red"),
        ("send", "q", "x", "--ttl", "99999999999d"),
        ("send", "q", "x", "--ttl", "soon"),
        ("send", "q", "x", "--priority", "high"),
        ("send", "q", "x", "--property", "red"),
        ("clock", "--advance", "1000000000000d"),
        ("peek", "q", "--first", "x"),
        ("top", "--interval", "x"),
        ("transaction", "commit", "odd"),
        ("feed", "tail", "--after", "x"),
        ("dlq", "show", "q", "x"),
        ("serve", "--keep", "soon"),
        ("serve", "--segment-size", "large"),
        ("serve", "--config", str(tmp_path / "wrong.json")),
        ("serve", "--config", str(tmp_path / "wrong.yaml")),
    ]
    for words in mistakes:
        done = run(broker, *words)
        assert done.returncode == 2, (words, done)
        assert not [said for said in DECODER if said in done.stderr], (words, done.stderr)
        assert done.stderr.splitlines()[-1].strip(), words


def test_the_api_tells_what_it_expects(broker: Running) -> None:
    def told(method: str, path: str, body: bytes) -> str:
        reply = broker.queue(method, path, raw=body, headers={"content-type": "application/json"})
        assert reply.status == 400
        detail: str = json.loads(reply.body)["detail"]
        return detail

    assert told("PUT", "q", b"{") == 'The body must be JSON, as in {"name": "value"}.'
    assert told("PUT", "q", b"[]") == 'The body must be an object, as in {"name": "value"}.'
    assert told("POST", "q/messages", b"{}").startswith(
        "There must be a messages; it must be a list"
    )
    assert told("POST", "q/messages", b'{"messages": []}').startswith(
        "messages must be a list of 1 to 10000, each an object"
    )
    assert told("POST", "q/messages", b'{"messages": [{"ttl_ms": "x"}]}').startswith(
        "messages[0].ttl_ms must be a whole number of milliseconds"
    )
    assert told("POST", "q/complete", b'{"locks": ["x"]}') == (
        "locks[0] must be 32 hexadecimal digits."
    )
