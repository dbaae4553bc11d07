"""The Azure SDK among the clients of a cluster: it knows one name, which has three addresses.

It asks again by itself where it had no answer, over another connection. So a message that it has
completed may be gone though the last answer is that its lock is lost: the first request was done,
and its answer never came. Where the lock is lost by the only answer that there was to the only
request, nothing was done, and the message has to be there.
"""

import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.cluster.holders import Holders
from tests.cluster.machines import PORT, Machines
from tests.crash.history import Broken, History
from tests.crash.killing import messages_in
from tests.server.running import Running
from tests.waiting import until

QUEUE = "azure"
HOST = "broker"
# The SDK sends again what was not answered; so it is stored once.
PROPERTIES: dict[str, Any] = {"lock_ms": 60_000, "duplicate_detection": True, "max_delivery": 100}
THREADS = 3
MORE = 5  # messages, from which it is seen to go on
SDK_SECONDS = 120.0  # for what it does by itself: it waits longer each time it tries again


class Judge:
    """What the process has said, told to a history and to who knows the holders of messages.

    The history is not told how long locks are certain: each is one that was over on arrival.
    """

    def __init__(self) -> None:
        self.history = History()
        self.holders = Holders()
        self.raised: list[str] = []  # what the SDK has not dealt with by itself
        self.paused = 0  # threads
        self._asked: dict[str, int] = {}  # by token: the number of the request to complete
        self._words: defaultdict[str, list[tuple[float, Sequence[Any]]]] = defaultdict(list)

    @property
    def counts(self) -> Counter[str]:
        return self.history.counts + self.holders.counts

    def check(self, live: Sequence[str], dead: Sequence[str]) -> None:
        """Nothing may be under way. Raises Broken."""
        with self._explained():
            self.history.check(live, dead)

    def hear(self, said: Sequence[Any]) -> None:
        """Raises Broken."""
        with self._explained():
            self._hear(said)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Broken as broken:
            words = {name: self._words[name] for name in re.findall(r"azure-\d+", str(broken))}
            raise Broken(f"{broken}; what was said of them: {words}") from None

    def _hear(self, said: Sequence[Any]) -> None:
        word, name, *more = said
        history, holders = self.history, self.holders
        self._words[name].append((round(time.time(), 3), [word, *more]))
        match word:
            case "sending":
                history.sending([name])
            case "sent":
                history.sent([name])
            case "delivered":
                token, link, until_ms = more
                if name in history.said["completed"]:
                    raise Broken(f"completed, and delivered: {name}")
                history.delivered(name, token, 0, 1)
                holders.delivered(name, token, link, until_ms - PROPERTIES["lock_ms"], until_ms)
            case "completing":
                token, now_ms = more
                history.completing(name, token)
                self._asked[token] = holders.settling(token, now_ms)
            case "completed":
                token, link = more
                history.completed(name, token)
                holders.done(self._asked[token], link)
                holders.gone(name)
            case "lost":
                token, requests = more
                history.counts["lock lost"] += 1
                if requests > 1:  # the first may have been done, and its answer lost
                    history.counts["lock lost when asked again"] += 1
                else:
                    history.refused(token, 1, name)
                    holders.refused(token)
            case "raised":
                self.raised.append(name)
            case "paused":
                self.paused += 1
            case "goes":
                self.paused -= 1
            case _:
                raise ValueError(word)


class AzureClient:
    """The process, and what is judged of what it says."""

    def __init__(self, machines: Machines) -> None:
        machines.network.name_all("z", HOST)
        self.judge = Judge()
        self.lines: list[str] = []  # all that the process said, each with its moment
        self._problem: BaseException | None = None
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
            lambda: self.judge.paused == THREADS or self._problem is not None,
            "it pauses",
            SDK_SECONDS,
        )
        self.check()

    def goes_on(self) -> None:
        """Waits until it has sent and completed some more."""
        for word in ("sent", "completed"):
            self._until_more(word)
        self.check()

    def _until_more(self, word: str) -> None:
        counts = self.judge.history.counts
        wanted = counts[word] + MORE

        def has_more() -> bool:
            return counts[word] >= wanted or self._problem is not None

        until(has_more, f"the SDK has {word} more", SDK_SECONDS)

    def look(self, broker: Running) -> None:
        live, dead = (
            [each["id"] for each in messages_in(broker, QUEUE + end)] for end in ("", "%2F$dead")
        )
        self.judge.check(live, dead)

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
            self.lines.append(f"{time.time():.3f} {line}")
            try:
                self.judge.hear(json.loads(line))
            except (Broken, ValueError, KeyError) as problem:
                self._problem = problem
                return
