"""Workers: who has sent heartbeats, and who has stopped."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

DEAD_SECONDS = 30.0  # without a heartbeat
FORGET_SECONDS = 300.0
WORKERS_MAX = 10_000
ID_CHARS_MAX = 256


class Worker(NamedTuple):
    worker_id: str
    last_heartbeat: float  # Unix time
    status: str


class Workers:
    """By their ids, the one that was heard of longest ago first."""

    def __init__(self) -> None:
        self._heard: OrderedDict[str, float] = OrderedDict()

    def heard(self, worker: str, now: float) -> None:
        self._heard[worker] = now
        self._heard.move_to_end(worker)
        if len(self._heard) > WORKERS_MAX:
            self._heard.popitem(last=False)

    def is_alive(self, worker: str, now: float) -> bool:
        return now - self._heard.get(worker, 0.0) <= DEAD_SECONDS

    def forget(self, now: float) -> None:
        """Those that have been dead for long."""
        while self._heard and now - next(iter(self._heard.values())) > FORGET_SECONDS:
            self._heard.popitem(last=False)

    def active(self, now: float) -> int:
        return sum(1 for each in self.all(now) if each.status == "active")

    def all(self, now: float) -> Iterator[Worker]:
        for worker, heard in self._heard.items():
            status = "active" if now - heard <= DEAD_SECONDS else "dead"
            yield Worker(worker, heard, status)
