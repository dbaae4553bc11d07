"""The values of `option(...)`, checked. Every error says what would be right."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from posthouse.pipeline.wire import FeedClient, NotFound, PosthouseError

SUBSCRIPTION = "/$sub/"  # between topic and subscription in the feed's names
URL = "http://127.0.0.1:5300"

# The columns of a message: for each name here its type, and its name in the feed.
COLUMNS = {
    "position": ("bigint", "position"), "time": ("timestamp", "time"),
    "namespace": ("string", "namespace"), "entity": ("string", "entity"),
    "kind": ("string", "kind"), "message_id": ("string", "message_id"),
    "sequence_number": ("bigint", "sequence_number"),
    "delivery_count": ("int", "delivery_count"), "waited_ms": ("bigint", "waited_ms"),
    "settled_ms": ("bigint", "settled_ms"), "reason": ("string", "reason"),
    "description": ("string", "description"), "session_id": ("string", "session_id"),
    "body": ("binary", "body"), "properties": ("map<string,string>", "properties"),
    "content_type": ("string", "content_type"), "subject": ("string", "subject"),
    "correlation_id": ("string", "correlation_id"), "partition_key": ("string", "partition_key"),
    "to": ("string", "to"), "reply_to": ("string", "reply_to"),
    "reply_to_session_id": ("string", "reply_to_session_id"), "trace": ("string", "trace"),
    "priority": ("tinyint", "priority"), "time_to_live_ms": ("bigint", "ttl_ms"),
    "scheduled_time": ("timestamp", "due"), "expires_time": ("timestamp", "expires"),
    "until_time": ("timestamp", "until"), "receiver": ("bigint", "receiver"),
    "target": ("string", "target"),
    "target_sequence_number": ("bigint", "target_sequence_number"),
    "detail": ("string", "detail"),
}  # fmt: skip
TYPED = "typed_properties"  # the column that the option typedProperties adds
ANY = "*"  # in a pattern: any characters
_OF_EVENTS_ALONE = frozenset((
    "kind", "delivery_count", "waited_ms", "settled_ms", "reason", "description", "until_time",
    "receiver", "target", "target_sequence_number", "detail",
))  # fmt: skip
VIEWS = {
    "events": tuple(COLUMNS),
    "messages": tuple(name for name in COLUMNS if name not in _OF_EVENTS_ALONE),
}
_NEVER_NULL = {
    "events": ("position", "time", "kind"),
    "messages": ("position", "time", "namespace", "entity", "sequence_number"),
}
_BODIES = {"binary": "binary", "text": "string"}


def feed_column(name: str) -> str:
    """The column of the feed that a column is made of."""
    return "properties" if name == TYPED else COLUMNS[name][1]


@dataclass(frozen=True)
class Range:
    """Positions from the first on, and before the end; None: as far as it goes at that time."""

    first: int
    end: int | None


COMMON = ("url", "accessKeyName", "accessKey", "caFile", "map", "namespace", "entity", "queue")
WRITING = (
    *COMMON, "once", "atomic", "batch", "retrySeconds",
    "checkpointLocation", "queryName",  # these two are Spark's
)  # fmt: skip
READING = (
    *COMMON, "entities", "queues", "kinds", "from", "to", "view", "columns", "body", "bodySchema",
    "typedProperties", "maxRowsPerBatch", "partitions", "pushdown", "reader", "failOnDataLoss",
    "retrySeconds",
)  # fmt: skip


class Options:
    """The options that were given, checked. Every error says what would be right."""

    def __init__(self, given: Mapping[str, str], known: Sequence[str]) -> None:
        names = {name.lower(): name for name in known}
        self._given = {names[name.lower()]: v for name, v in given.items() if name.lower() in names}
        unknown = sorted(name for name in given if name.lower() not in names)
        if unknown:
            raise PosthouseError(
                f"There is no option {unknown[0]!r}; there are {', '.join(known)}."
            )

    def text(self, name: str) -> str | None:
        return self._given.get(name)

    def words(self, name: str) -> tuple[str, ...]:
        given = self._given.get(name, "")
        return tuple(word.strip() for word in given.split(",") if word.strip())

    def number(self, name: str, otherwise: int, least: int = 1) -> int:
        given = self._given.get(name)
        if given is None:
            return otherwise
        if not given.isascii() or not given.isdigit() or int(given) < least:
            raise PosthouseError(
                f"The option {name} is a whole number from {least}, not {given!r}."
            )
        return int(given)

    def one_of(self, name: str, known: Sequence[str]) -> str:
        """The first is what is meant where nothing is said."""
        given = self._given.get(name, known[0]).lower()
        if given not in known:
            raise PosthouseError(f"The option {name} is one of {', '.join(known)}, not {given!r}.")
        return given

    def broker(self) -> FeedClient:
        given = self._located() if "map" in self._given else self._given
        url = given.get("url", URL)
        where = urlsplit(url)
        if where.scheme not in ("http", "https") or not where.hostname:
            raise PosthouseError(f"The option url is like {URL}, not {url!r}.")
        name, key = given.get("accessKeyName"), given.get("accessKey")
        if (name is None) != (key is None):
            raise PosthouseError("The options accessKeyName and accessKey go together.")
        authority = None
        if "caFile" in given:
            try:
                with open(given["caFile"]) as file:  # noqa: PTH123 (it may be sent elsewhere)
                    authority = file.read()
            except OSError as error:
                raise PosthouseError(
                    f"The option caFile names what cannot be read: {error}."
                ) from None
        return FeedClient(
            url.rstrip("/"), name, key, authority, self.number("retrySeconds", 60, 0),
            given.get("caFile"),
        )  # fmt: skip

    def _located(self) -> dict[str, str]:
        """The options that the map gives for the namespace, which is a map of the client's."""
        own = ("url", "accessKeyName", "accessKey", "caFile")
        if both := [name for name in own if name in self._given]:
            raise PosthouseError(f"The options map and {both[0]} do not go together.")
        namespace = self.namespace()
        if namespace is None:
            raise PosthouseError("The option map goes with namespace, for which it has a broker.")
        try:
            from posthouse.client.errors import ConfigurationError
            from posthouse.client.namespace_map import broker_of
            from posthouse.client.secret import reveal
        except ImportError:
            raise PosthouseError(
                "The option map needs posthouse where Spark reads the options; install it there, or"
                " give url, accessKeyName and accessKey."
            ) from None
        try:
            broker = broker_of(self._given["map"], namespace)
        except ConfigurationError as error:
            raise PosthouseError(f"The option {error}") from None
        # Of a cluster's nodes the first: each of them hands requests to the one that leads.
        given = {"url": f"{'https' if broker.tls else 'http'}://{broker.addresses[0]}"}
        if broker.key:
            given |= {"accessKeyName": broker.key_name, "accessKey": reveal(broker.key)}
        if broker.ca_file:
            given["caFile"] = broker.ca_file
        return given

    def namespace(self) -> str | None:
        """The namespace; the default one where an entity is named without one."""
        named = self._given.get("namespace")
        return "default" if named is None and (self.named() or self.patterns()) else named

    def named(self) -> str | None:
        """The entity, as it was named."""
        given = [name for name in ("entity", "queue", "entities", "queues") if name in self._given]
        if len(given) > 1:
            raise PosthouseError(
                f"The options {given[0]} and {given[1]} mean the same; give one of them."
            )
        return self._given.get("entity", self._given.get("queue"))

    def patterns(self) -> tuple[str, ...]:
        """The names and patterns of several entities."""
        return self.words("entities") or self.words("queues")

    def entities(self, broker: FeedClient) -> tuple[str, ...]:
        """The names in the feed of what was named, and patterns. Raises PosthouseError."""
        one = self.entity(broker)
        if one is not None:
            return (one,)
        return tuple(each if ANY in each else self._found(broker, each) for each in self.patterns())

    def entity(self, broker: FeedClient) -> str | None:
        """The entity's name in the feed. Raises PosthouseError where there is no such entity."""
        named = self.named()
        return None if named is None else self._found(broker, named)

    def _found(self, broker: FeedClient, named: str) -> str:
        namespace = self.namespace()
        assert namespace is not None
        try:
            return str(broker.status(namespace=namespace, entity=named)["entity"])
        except NotFound:
            raise PosthouseError(
                f"There is no queue, topic or subscription {named!r} in the namespace"
                f" {namespace!r}; subscriptions are named TOPIC/SUBSCRIPTION."
            ) from None

    def ddl(self) -> str:
        """The columns, as SQL declares them."""
        names = self.words("columns") or VIEWS[self.view()]
        self.check_columns(names)
        if "typedProperties" in self._given and TYPED not in names:
            names = (*names, TYPED)
        never = set(_NEVER_NULL[self.view()])
        if self.named() or self.patterns():
            never |= {"namespace", "entity"}
        return ", ".join(
            f"`{name}` {self._type(name)}{' NOT NULL' if name in never else ''}" for name in names
        )

    def _type(self, name: str) -> str:
        if name == TYPED:
            return self._typed()
        if name != "body":
            return COLUMNS[name][0]
        kind = self.one_of("body", ("binary", "text", "json"))
        declared = self._given.get("bodySchema")
        if (kind == "json") != (declared is not None):
            raise PosthouseError("The options body=json and bodySchema go together; a schema is"
                                 " like 'id bigint, name string'.")  # fmt: skip
        return f"struct<{declared}>" if declared is not None else _BODIES[kind]

    def _typed(self) -> str:
        declared = self._given.get("typedProperties")
        if declared is None:
            raise PosthouseError(
                f"The column {TYPED} is there with the option typedProperties, which is variant, or"
                " a schema like 'amount double, urgent boolean'."
            )
        return "variant" if declared.lower() == "variant" else f"struct<{declared}>"

    def view(self) -> str:
        if self._given.get("view", "").lower() == "lives":
            raise PosthouseError(
                "Lives are made of the view events, with posthouse.pipeline.outcomes.lives(events)."
            )
        return self.one_of("view", ("messages", "events"))

    def kinds(self) -> tuple[str, ...]:
        kinds = self.words("kinds")
        if self.view() == "events":
            return kinds
        if kinds:
            raise PosthouseError("The option kinds is for the view events.")
        return ("sent",)

    def check_columns(self, names: Sequence[str]) -> None:
        view = self.view()
        unknown = [name for name in names if name not in (*VIEWS[view], TYPED)]
        if unknown:
            raise PosthouseError(
                f"The view {view} has no column {unknown[0]!r}; it has {', '.join(VIEWS[view])}."
            )

    def range(self, broker: FeedClient, **part: str) -> Range:
        """The range within a part of the feed. Raises PosthouseError."""
        status = broker.status(**part)
        first = self._position("from", broker, status, part)
        end = self._position("to", broker, status, part)
        if first is None:
            first = int(status["first"])
        return Range(first, end)

    def _position(
        self, name: str, broker: FeedClient, status: Any, part: Mapping[str, str]
    ) -> int | None:
        """A position, or the first one at or after a moment."""
        given = self._given.get(name)
        if given is None:
            return None
        if given.isascii() and given.isdigit():
            return int(given)
        if given == "earliest":
            return int(status["first"])
        if given == "latest":
            return int(status["last"]) + 1
        try:
            moment = datetime.fromisoformat(given)
        except ValueError:
            raise PosthouseError(
                f"The option {name} is a position, a moment like 2026-11-16T15:00:00Z, earliest or"
                f" latest, not {given!r}."
            ) from None
        return broker.first_at(moment, **part)
