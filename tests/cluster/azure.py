"""The Azure SDK among the clients of a cluster: it knows one name, which has three addresses."""

import json
import re
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence

from tests.cluster.machines import PORT, Machines
from tests.crash.history import Broken, History
from tests.crash.killing import messages_in
from tests.server.running import Running
from tests.waiting import until

QUEUE = "azure"
HOST = "broker"
# The SDK sends again what was not answered; so it is stored once.
PROPERTIES = {"lock_ms": 60_000, "duplicate_detection": True, "max_delivery": 100}
THREADS = 2
MORE = 5  # messages, from which it is seen to go on
SDK_SECONDS = 120.0  # for what it does by itself: it waits longer each time it tries again


class AzureClient:
    """What the process says is told to a history.

    When its connection is lost is not said, so nothing is known of how long its locks are certain:
    each is told as one that was over on arrival.
    """

    def __init__(self, machines: Machines) -> None:
        machines.network.name_all("z", HOST)
        self.history = History()
        self.acknowledged: list[float] = []
        self.raised: list[str] = []  # what the SDK has not dealt with by itself
        self._problem: BaseException | None = None
        self._paused = 0
        self._words: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
        self._process = subprocess.Popen(
            [*machines.network.within("z"), sys.executable, "-m", "tests.cluster.azure_client",
             HOST, str(PORT), QUEUE],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def check(self) -> None:
        if self._problem is not None:
            raise self._problem

    def go(self) -> None:
        self._tell("go")

    def pause(self) -> None:
        """Returns when nothing is under way any more."""
        self._tell("pause")
        until(
            lambda: self._paused == THREADS or self._problem is not None, "it pauses", SDK_SECONDS
        )
        self.check()

    def goes_on(self) -> None:
        """Waits until it has sent and completed some more."""
        for word in ("sent", "completed"):
            self._until_more(word)
        self.check()

    def _until_more(self, word: str) -> None:
        wanted = self.history.counts[word] + MORE

        def has_more() -> bool:
            return self.history.counts[word] >= wanted or self._problem is not None

        until(has_more, f"the SDK has {word} more", SDK_SECONDS)

    def look(self, broker: Running) -> None:
        live, dead = (
            [each["id"] for each in messages_in(broker, QUEUE + end)] for end in ("", "%2F$dead")
        )
        try:
            self.history.check(live, dead)
        except Broken as broken:
            words = {name: self._words[name] for name in re.findall(r"azure-\d+", str(broken))}
            raise Broken(f"{broken}; what was said of them: {words}") from None

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reading.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self._hear(json.loads(line))
            except (Broken, ValueError, KeyError) as problem:
                self._problem = problem
                return

    def _hear(self, said: Sequence[str]) -> None:
        word, name, *more = said
        history = self.history
        self._words[name].append((round(time.monotonic(), 3), word))
        match word:
            case "sending":
                history.sending([name])
            case "sent":
                history.sent([name])
                self.acknowledged.append(time.monotonic())
            case "delivered":
                if name in history.said["completed"]:
                    raise Broken(f"completed, and delivered: {name}")
                history.delivered(name, more[0], 0, 1)
            case "completing":
                history.completing(name, more[0])
            case "completed":
                history.completed(name, more[0])
                self.acknowledged.append(time.monotonic())
            case "lost":  # or the SDK has asked twice, and the first time it was completed
                history.counts["lock lost"] += 1
            case "raised":
                self.raised.append(name)
            case "paused":
                self._paused += 1
            case "goes":
                self._paused -= 1
            case _:
                raise ValueError(word)
