"""Workers: who has sent heartbeats, and who has stopped."""

from collections.abc import Iterator
from typing import NamedTuple

from posthouse.broker.shares import Remembered

DEAD_SECONDS = 30.0  # without a heartbeat
FORGET_SECONDS = 300.0
WORKERS_MAX = 10_000
ID_CHARS_MAX = 256


class Worker(NamedTuple):
    worker_id: str
    last_heartbeat: float  # Unix time
    status: str


class Workers:
    """The workers by id, the one with the oldest heartbeat first."""

    def __init__(self) -> None:
        self._heard: Remembered[str, float] = Remembered(WORKERS_MAX)

    def heard(self, worker: str, now: float, name: str, percent: int) -> None:
        """Notes a heartbeat of a worker. It counts against the share of the principal `name`."""
        self._heard.put(worker, now, name, percent)

    def is_alive(self, worker: str, now: float) -> bool:
        return now - (self._heard.get(worker) or 0.0) <= DEAD_SECONDS

    def forget(self, now: float) -> None:
        """Those that have been dead for long."""
        for worker, heard in list(self._heard.items()):
            if now - heard <= FORGET_SECONDS:
                break
            self._heard.pop(worker)

    def active(self, now: float) -> int:
        return sum(1 for each in self.all(now) if each.status == "active")

    def all(self, now: float) -> Iterator[Worker]:
        for worker, heard in self._heard.items():
            status = "active" if now - heard <= DEAD_SECONDS else "dead"
            yield Worker(worker, heard, status)
