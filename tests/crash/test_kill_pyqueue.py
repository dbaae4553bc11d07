"""kill -9 of `posthouse serve` under load of PyQueue clients, at random moments.

As test_kill_http.py does it, with the same history.
"""

import os
from pathlib import Path
from random import Random

import pytest

from tests.crash.history import History
from tests.crash.killing import Lives
from tests.crash.pyqueue_load import Load, look

pytestmark = pytest.mark.alone

KILLS = int(os.environ.get("KILLS", "8")) // 2
LOCK_SECONDS = 1
LOAD = ("sent", "delivered", "completed", "buried", "abandoned", "moved")
FLAGS = ("--pyqueue-lock", f"{LOCK_SECONDS}s", "--compress", "gzip", "--compress-from", "64")


def test_what_pyqueue_clients_were_told_survives_kill_9(tmp_path: Path) -> None:
    random, history = Random(17), History()
    lives = Lives(tmp_path / "data", *FLAGS, random=random, history=history)
    lives.kill(
        KILLS, Load(random, history, LOCK_SECONDS), lambda broker: look(broker, history), 1.5
    )
    for word in LOAD:
        assert history.counts[word], (word, history.counts)
