"""Clocks and quiet on the command line."""

import json
from typing import Any

from tests.cli.terminal import run
from tests.server.running import Running

NAMESPACE = ("--namespace", "clocks")


def ask(broker: Running, *words: str) -> Any:
    done = run(broker, *words, *NAMESPACE, "--json")
    assert done.returncode == 0, done
    return json.loads(done.stdout)


def test_a_clock_goes_to_what_is_due_and_until_something_has_happened(broker: Running) -> None:
    where = "/api/v1/namespaces/clocks"
    broker.call("PUT", where)
    ask(broker, "clock", "--freeze")
    ask(broker, "queue", "create", "q")
    for delay in ("1h", "2h", "3h"):
        ask(broker, "send", "q", "x", "--delay", delay)
    begun_ms = ask(broker, "clock")["now_ms"]
    due = [{"kind": "activated", "queue": "q", "count": 1}]
    assert ask(broker, "clock", "--next")["fired"] == due
    moved = ask(broker, "clock", "--until", "activated", "--queue", "q", "--at-most", "1d")
    assert moved["fired"] == due
    moved = ask(broker, "clock", "--advance", "2h", "--quiet", "20ms", "--timeout", "30s")
    assert moved["fired"] == due
    assert moved["now_ms"] == begun_ms + 4 * 3_600_000
    vain = run(broker, "clock", "--until", "completed", "--timeout", "50ms", *NAMESPACE)
    assert vain.returncode == 5, vain
    assert "completed in any queue has happened 0 times of 1" in vain.stderr
    lone = run(broker, "clock", "--queue", "q", *NAMESPACE)
    assert (lone.returncode, lone.stderr) == (
        2,
        "--queue, --count and --at-most go with --until.\n",
    )


def test_quiet_says_who_is_busy(broker: Running) -> None:
    where = "/api/v1/namespaces/busy"
    broker.call("PUT", where)
    broker.call("PUT", f"{where}/queues/q", {})
    broker.call("POST", f"{where}/clock", {})
    broker.call("POST", f"{where}/queues/q/messages", {"messages": [{"body": "x"}]})
    broker.call("POST", f"{where}/queues/q/receive", {"limit": 1})
    busy = run(broker, "quiet", "--timeout", "100ms", "--namespace", "busy")
    assert busy.returncode == 5
    assert "q 1: locked by " in busy.stderr
    calm = run(broker, "quiet", "--ignore-locks", "--namespace", "busy")
    assert calm.returncode == 0
    assert calm.stdout.startswith("All is done at ")
