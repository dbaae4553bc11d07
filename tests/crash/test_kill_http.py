"""kill -9 of `posthouse serve` under HTTP load, at random moments: it keeps what it promised.

As test_kill.py does it over a pipe, with the same history; here everything goes through sockets,
the HTTP protocol and JSON, as its users have it.
"""

import os
from pathlib import Path
from random import Random

import pytest

from tests.crash.history import History
from tests.crash.http_load import PLAIN, SESSIONS, Load, look
from tests.crash.killing import Lives

pytestmark = pytest.mark.alone

KILLS = int(os.environ.get("KILLS", "10")) // 2
LOAD = ("sent", "delivered", "in order", "completed", "buried", "abandoned", "held", "left")


def test_what_http_has_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    random, history = Random(11), History()
    lives = Lives(tmp_path / "data", random=random, history=history)
    lives.broker.queue("PUT", PLAIN, {"lock_ms": 300, "max_delivery": 8})
    lives.broker.queue("PUT", SESSIONS, {"lock_ms": 600, "max_delivery": 8, "grouping": "session"})
    lives.kill(KILLS, Load(random, history), lambda broker: look(broker, history), 1.5)
    for word in LOAD:
        assert history.counts[word], (word, history.counts)
