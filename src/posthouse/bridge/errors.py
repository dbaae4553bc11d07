"""The errors of the bridge. Each says what happened, to what, and what to do."""


class BridgeError(Exception):
    """An error of the bridge; the others are kinds of it."""


class ConfigurationError(BridgeError):
    """A setting of the bridge cannot be used."""


class PublishFailed(BridgeError):
    """An event was not stored, for a `reason`. `transient`: the same event may succeed later."""

    def __init__(self, reason: str, *, transient: bool) -> None:
        super().__init__(reason)
        self.transient = transient


class TooLarge(PublishFailed):
    """An event is larger than the transport takes; the `reason` says by how much."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, transient=False)


class NotPermitted(PublishFailed):
    """The transport's server refuses this user an operation, which the `reason` names."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, transient=False)


class TopologyConflict(BridgeError):
    """A stream or queue contradicts what the bridge needs, and changing it would do harm."""


class MalformedEvent(BridgeError):
    """The bytes of an event cannot be read; the text says where they are wrong."""


class PartialFailure(BridgeError):
    """Some events of many were published, and some were not.

    `failures` has the errors by index, `ids` the ids of the events that were published.
    """

    def __init__(self, failures: dict[int, PublishFailed], ids: dict[int, str]) -> None:
        self.failures, self.ids = failures, ids
        self.transient = all(failure.transient for failure in failures.values())
        first = next(iter(failures.values()))
        super().__init__(
            f"{len(failures)} of {len(failures) + len(ids)} events were not published; the first:"
            f" {first}"
        )
