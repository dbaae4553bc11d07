"""What clients saw, and whether what is found afterwards agrees with it.

It knows names of messages and what was said of them; nothing of how the broker works. Each later
protocol feeds it the same words.
"""

from collections import Counter
from collections.abc import Iterable

_WORDS = ("sending", "sent", "completing", "completed", "burying", "buried")


class History:
    """Everything that was said since the beginning, over any number of crashes."""

    def __init__(self) -> None:
        self.said: dict[str, set[str]] = {word: set() for word in _WORDS}

    def hear(self, line: str) -> None:
        word, _, name = line.partition(" ")
        if word in self.said:
            self.said[word].add(name)

    def check(self, live: Iterable[str], dead: Iterable[str]) -> None:
        """Compares with the names of messages found in queues and in dead-letter queues."""
        said = self.said
        found = Counter(live) + Counter(dead)
        twice = [name for name, count in found.items() if count > 1]
        assert not twice, f"found twice: {twice[:5]}"
        back = said["completed"] & set(found)
        assert not back, f"completed, and back: {sorted(back)[:5]}"
        lost = said["sent"] - said["completing"] - set(found)
        assert not lost, f"acknowledged, and lost: {sorted(lost)[:5]}"
        unknown = set(found) - said["sending"]
        assert not unknown, f"never sent: {sorted(unknown)[:5]}"
        gone = said["buried"] - set(dead)
        assert not gone, f"dead-lettered, and not there: {sorted(gone)[:5]}"
