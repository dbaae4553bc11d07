"""Names of services, subjects and consumers.

Between two services, `api` and `worker`, events go by the subjects of JetStream Bridge:
`api.sync.worker`, back by `worker.sync.api`, and to `api.sync.dlq` where `api` cannot handle them.
With topics a service publishes to `api.events.TYPE`, for all who want to know.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from posthouse.bridge.errors import ConfigurationError
from posthouse.bridge.transport import Source, Topology

SUBJECT_CHARS_MAX = 255
SYNC, EVENTS, DEAD = "sync", "events", "dlq"
_NOT_IN_A_TOKEN = frozenset(".*>/\\")  # a slash would be a folder, where a server keeps consumers


def check_token(what: str, name: str) -> str:
    """Returns the name of a service, stream or consumer. Raises ConfigurationError."""
    if not name:
        raise ConfigurationError(f"{what} must be a text of one character or more, not {name!r}.")
    for at, sign in enumerate(name):
        if sign in _NOT_IN_A_TOKEN or sign.isspace() or not sign.isprintable():
            raise ConfigurationError(
                f"{what} {name!r} has {sign!r} at character {at + 1}; it must have no dots,"
                " asterisks, >, slashes, blanks or control characters."
            )
    if len(name) > SUBJECT_CHARS_MAX:
        raise ConfigurationError(
            f"{what} has {len(name)} characters; {SUBJECT_CHARS_MAX} are the most."
        )
    return name


def check_subject(subject: str, *, wildcards: bool = False) -> str:
    """Returns a subject: tokens between dots. Raises ConfigurationError.

    With `wildcards` a token may be `*`, and the last one `>`; the first must be neither.
    """
    if not subject:
        raise ConfigurationError("A subject must be a text of one character or more.")
    if len(subject) > SUBJECT_CHARS_MAX:
        raise ConfigurationError(
            f"The subject {subject[:40]!r}... has {len(subject)} characters;"
            f" {SUBJECT_CHARS_MAX} are the most."
        )
    if subject.startswith("$"):
        raise ConfigurationError(f"The subject {subject!r} begins with $, as only the server's do.")
    tokens = subject.split(".")
    for place, part in enumerate(tokens):
        if not part:
            raise ConfigurationError(f"The subject {subject!r} has nothing between two dots.")
        is_wild = part == "*" or (part == ">" and place == len(tokens) - 1)
        if is_wild and wildcards and place:
            continue
        if is_wild and wildcards:
            raise ConfigurationError(
                f"The subject {subject!r} begins with a wildcard; a stream would take what is"
                " everybody's. Begin it with a name."
            )
        check_token(f"The subject {subject!r}: the part", part)
    return subject


def deliver_subject(source: Source) -> str:
    """Returns the subject to which a push consumer delivers, as `worker.sync.api.worker`."""
    if source.subject.endswith(".>"):  # below it would be the stream's own subjects
        return f"{source.subject.partition('.')[0]}.{SYNC}.{source.consumer}.worker"
    return f"{source.subject}.worker"


@dataclass(frozen=True)
class Names:
    """The names of one service, and of those with which it exchanges events.

    Raises ConfigurationError, which tells the character that a name must not have.
    """

    app: str
    destinations: tuple[str, ...] = ()
    topics: bool = False

    def __post_init__(self) -> None:
        check_token("The name of the app", self.app)
        for destination in self.destinations:
            check_token("The name of the destination", destination)
            if destination == DEAD and not self.topics:
                raise ConfigurationError(
                    f"A destination cannot be called {DEAD}: {self.dead_letters} is the subject of"
                    " dead letters."
                )
            if destination == self.app and not self.topics:
                raise ConfigurationError(
                    f"The app {self.app!r} cannot be its own destination: what it publishes would"
                    " come back to it."
                )
            check_subject(deliver_subject(self.source(destination)))
            check_subject(self.subject_from(destination), wildcards=True)
        if len(set(self.destinations)) < len(self.destinations):
            raise ConfigurationError("A destination is named twice.")
        check_subject(self.dead_letters)

    @property
    def dead_letters(self) -> str:
        """The subject of events that this service could not handle."""
        return f"{self.app}.{SYNC}.{DEAD}"

    @property
    def group(self) -> str:
        """The queue group of push consumers, and the consumer of a pair of services."""
        return f"{self.app}-workers"

    def subject_to(self, destination: str, event_type: str = "") -> str:
        """The subject to which this service publishes. Raises ConfigurationError."""
        if self.topics:
            return check_subject(f"{self.app}.{EVENTS}.{event_type}")
        return f"{self.app}.{SYNC}.{destination}"

    def subject_from(self, destination: str) -> str:
        """The subject from which this service consumes what another publishes."""
        if self.topics:
            return f"{destination}.{EVENTS}.>"
        return f"{destination}.{SYNC}.{self.app}"

    def consumer(self, destination: str) -> str:
        """The durable name under which this service consumes what another publishes."""
        if len(self.destinations) <= 1:
            return self.group
        return f"{self.app}-{destination}-workers"

    def source(
        self, destination: str, *, push: bool = False, ack_wait: float = 30.0, max_pending: int = 0
    ) -> Source:
        """The source of another service's events."""
        return Source(
            self.subject_from(destination), self.consumer(destination), push, ack_wait, max_pending
        )

    def of(self, destination: str) -> "Names":
        """The names of the other service of a pair."""
        return Names(destination, (self.app,), self.topics)

    def topology(
        self,
        stream: str,
        *,
        push: bool = False,
        ack_wait: float = 30.0,
        max_pending: int = 0,
        both_sides: bool = False,
        replicas: int = 0,
        duplicate_window: float = 600.0,
    ) -> Topology:
        """The topology that a transport needs. Raises ConfigurationError.

        With `both_sides`, also what the other services need: consumers of their own.
        """
        check_token("The name of the stream", stream)
        if self.topics:
            services = (self.app, *(each for each in self.destinations if each != self.app))
            subjects = [f"{service}.{EVENTS}.>" for service in services]
        else:
            subjects = [
                subject
                for destination in self.destinations
                for subject in (self.subject_to(destination), self.subject_from(destination))
            ]
        others = [self.of(each) for each in self.destinations if each != self.app]
        subjects += [self.dead_letters, *(other.dead_letters for other in others)]

        def sources(names: "Names") -> Sequence[Source]:
            return [
                names.source(each, push=push, ack_wait=ack_wait, max_pending=max_pending)
                for each in names.destinations
            ]

        wanted = list(sources(self))
        if both_sides:
            wanted += [source for other in others for source in sources(other)]
        return Topology(
            stream, subjects, wanted, self.dead_letters, replicas, duplicate_window,
            retention="interest" if self.topics else "workqueue",
        )  # fmt: skip
