"""The progress of Spark's stages, as Spark itself reports it."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTLED_MS = 500  # within which Spark has written down what it heard of
_ENDED = ("COMPLETE", "FAILED", "SKIPPED")
Step = Callable[[], None]  # told by a job whenever one is behind it


def nothing() -> None:
    """Does nothing, for callers that do not want to be told."""


class Way:
    """An estimate of how long a job still takes, from the time so far and its share.

    The shares of its steps were measured. Where a step takes longer than that, there is no
    estimate.
    """

    def __init__(
        self,
        shares: Sequence[float] = (),  # that are behind it after each step
        rows: int | None = None,  # that are read in the first
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shares, self._rows, self._clock = shares, rows, clock
        self._begun, self._steps = clock(), 0
        self._end: float | None = None

    @property
    def seconds(self) -> float:
        return self._clock() - self._begun

    def step(self) -> None:
        self._steps += 1
        self._end = self.seconds / self._shares[self._steps - 1]

    def seconds_left(self, rows: int | None) -> float | None:
        """The seconds left after so many rows were read; None where it is not known."""
        seconds, end = self.seconds, self._end
        if not self._steps and self._rows and rows:
            share = self._shares[0] if self._shares else 1.0
            end = seconds / (share * min(1.0, rows / self._rows))
        return None if end is None or end < seconds else end - seconds


@dataclass(frozen=True)
class Work:
    """The work that Spark has done since it was first looked at."""

    rows: int | None  # that were read, each time that they were; Spark Connect does not tell
    size_bytes: int  # of files that were read
    tasks: int  # of the steps that run now,
    done: int  # and how many of them have ended


@contextmanager
def watched(spark: "SparkSession") -> Iterator[Callable[[], Work]]:
    """Tells, whenever it is asked, what all that this session does has come to."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        told: Any = _Told()  # a handler is what can be called
        spark.registerProgressHandler(told)
        try:
            yield told.work
        finally:
            spark.removeProgressHandler(told)
    else:
        yield _Stages(spark).work


class _Stages:
    """The stages of a session in this process, from the store behind Spark's own pages."""

    def __init__(self, spark: "SparkSession") -> None:
        context: Any = spark.sparkContext
        self._bus = context._jsc.sc().listenerBus()
        self._store = context._jsc.sc().statusStore()
        self._nothing = context._gateway.new_array(context._jvm.double, 0)
        self._ended: dict[tuple[int, int], tuple[int, int]] = {}  # rows and bytes, by stage
        newest = self._newest_first()
        self._before = newest.apply(0).stageId() if newest.size() else -1

    def _newest_first(self) -> Any:
        return self._store.stageList(None, False, False, self._nothing, None)

    def work(self) -> Work:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        with suppress(Py4JJavaError):  # it takes too long: then what it knows by now
            self._bus.waitUntilEmpty(_SETTLED_MS)
        rows = size_bytes = tasks = done = 0
        stages = self._newest_first()
        for at in range(stages.size()):
            stage = stages.apply(at)
            name = (stage.stageId(), stage.attemptId())
            if name[0] <= self._before:
                break
            if name in self._ended:
                continue
            read = (stage.inputRecords(), stage.inputBytes())
            status = stage.status().toString()
            if status in _ENDED:
                self._ended[name] = read
                continue
            rows, size_bytes = rows + read[0], size_bytes + read[1]
            if status == "ACTIVE":
                tasks, done = tasks + stage.numTasks(), done + stage.numCompleteTasks()
        for of_one in self._ended.values():
            rows, size_bytes = rows + of_one[0], size_bytes + of_one[1]
        return Work(rows, size_bytes, tasks, done)


class _Told:
    """The stages of a remote session, which reports long ones every few seconds."""

    def __init__(self) -> None:
        self._stages: dict[int, Any] = {}

    def __call__(self, stages: Iterable[Any] | None, **_: object) -> None:
        self._stages |= {each.stage_id: each for each in stages or ()}

    def work(self) -> Work:
        known = list(self._stages.values())
        now = [each for each in known if not each.done]
        return Work(
            None, sum(each.num_bytes_read for each in known),
            sum(each.num_tasks for each in now), sum(each.num_completed_tasks for each in now),
        )  # fmt: skip
