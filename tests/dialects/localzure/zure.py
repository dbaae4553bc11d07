"""LocalZure's API as its clients call it: two spellings of each path, descriptions in XML, messages
in JSON."""

import re
from datetime import UTC, datetime
from itertools import count
from typing import Literal
from urllib.parse import quote, urlencode
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.server.running import Json, Reply, Running

Spelling = Literal["named", "plain"]
CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
ATOM = "http://www.w3.org/2005/Atom"
XML = {"content-type": "application/xml"}
DEAD = "/$DeadLetterQueue"
_QUEUES = {"named": "/servicebus/any", "plain": "/servicebus/queues"}
_TOPICS = {"named": "/servicebus/any/topics", "plain": "/servicebus/topics"}
_numbers = count(1)


def fresh(kind: str) -> str:
    """A name that no other test has."""
    return f"{kind}-{next(_numbers)}"


# Descriptions.


def described(kind: str, inside: str = "", **properties: Json) -> bytes:
    for name, value in properties.items():
        text = str(value).lower() if isinstance(value, bool) else escape(str(value))
        inside += f"<{name}>{text}</{name}>"
    return f'<{kind} xmlns="{CONNECT}" xmlns:i="{INSTANCE}">{inside}</{kind}>'.encode()


def entry(description: bytes) -> bytes:
    inside = description.decode()
    return (
        f'<entry xmlns="{ATOM}"><content type="application/xml">{inside}</content></entry>'.encode()
    )


def described_in(reply: Reply) -> dict[str, str]:
    """What the first description in it says, in its order."""
    for element in ElementTree.fromstring(reply.body).iter():
        if element.tag.endswith("Description"):
            return {local(each.tag): each.text or "" for each in element}
    raise AssertionError(f"there is no description in {reply}")


def local(tag: str) -> str:
    return tag.rpartition("}")[2]


def titles(reply: Reply) -> list[str]:
    """As the desktop app reads a feed: every title behind the first, which is the feed's own."""
    assert reply.status == 200, reply
    return re.findall(r'<title type="text">(.+?)</title>', reply.body.decode())[1:]


# Answers.


def moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    assert found.tzinfo is not None, text
    return found


def refused(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.json.get("error", {}).get("code", "")


def bodies(messages: list[Json]) -> list[str]:
    return [each["Body"] for each in messages]


class Entity:
    """A queue, a topic or a subscription at one of its paths. What is sent goes in at `inlet`."""

    def __init__(self, broker: Running, path: str, inlet: str = "") -> None:
        self.broker = broker
        self.path = path
        self.inlet = inlet or path

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def dead(self) -> "Entity":
        return Entity(self.broker, self.path + DEAD)

    def ask(self, method: str, path: str = "", body: Json = None, **query: Json) -> Reply:
        asked = f"?{urlencode(query)}" if query else ""
        return self.broker.call(method, f"{self.path}{path}{asked}", body)

    def describe(self, kind: str, **properties: Json) -> Reply:
        """PUT: what makes it, or changes it."""
        raw = described(kind, **properties)
        return self.broker.call("PUT", self.path, raw=raw, headers=XML)

    def count(self, name: str = "MessageCount") -> int:
        return int(described_in(self.ask("GET"))[name])

    # Sending.

    def try_send(self, body: str = "x", transaction: str = "", **fields: Json) -> Reply:
        query = f"?transactionId={transaction}" if transaction else ""
        return self.broker.call("POST", f"{self.inlet}/messages{query}", {"body": body, **fields})

    def send(self, body: str = "x", **fields: Json) -> Json:
        """The message as a queue answers it; a topic answers none."""
        reply = self.try_send(body, **fields)
        assert reply.status in (200, 201), reply
        return reply.json if reply.body else None

    # Receiving.

    def receive(self, count: int = 1, **form: Json) -> list[Json]:
        reply = self.ask("POST", "/messages/receive", {"max_count": count, **form})
        assert reply.status == 200, reply
        found: list[Json] = reply.json
        return found

    def take(self, count: int = 10, **form: Json) -> list[str]:
        """The bodies of what is received and deleted."""
        return bodies(self.receive(count, receive_mode="ReceiveAndDelete", **form))

    def one(self, **form: Json) -> Json:
        [found] = self.receive(**form)
        return found

    def peek(self, count: int = 32) -> list[Json]:
        reply = self.ask("POST", "/messages/head", maxMessages=count)
        assert reply.status == 200, reply
        found: list[Json] = reply.json["messages"]
        return found

    # Settling.

    def _settle(self, method: str, message: Json, how: str = "", **query: Json) -> Reply:
        name = quote(message["MessageId"], safe="")
        return self.ask(method, f"/messages/{name}/{message['LockToken']}{how}", **query)

    def complete(self, message: Json, **query: Json) -> Reply:
        return self._settle("DELETE", message, **query)

    def abandon(self, message: Json, **query: Json) -> Reply:
        return self._settle("PUT", message, "/abandon", **query)

    def dead_letter(self, message: Json, **query: Json) -> Reply:
        return self._settle("PUT", message, "/deadletter", **query)

    def defer(self, message: Json) -> Reply:
        return self._settle("PUT", message, "/defer")

    def renew(self, message: Json) -> Reply:
        return self._settle("POST", message, "/renewlock")

    def unlock(self, message: Json) -> Reply:
        """As Azure spells it."""
        return self._settle("PUT", message)

    # Sessions.

    def accept(self, session: str | None = None, timeout: float = 0) -> Reply:
        return self.ask("POST", "/sessions/accept", {"session_id": session, "timeout": timeout})

    # Rules.

    def rule(self, name: str, filter: str, action: str = "") -> Reply:
        raw = entry(described("RuleDescription", filter + action))
        return self.broker.call("PUT", f"{self.path}/rules/{name}", raw=raw, headers=XML)

    def only(self, filter: str) -> None:
        """This rule, and no other."""
        assert self.rule("wanted", filter).status == 201
        assert self.ask("DELETE", "/rules/$Default").status == 200


def sql(expression: str) -> str:
    inside = f"<SqlExpression>{escape(expression)}</SqlExpression>"
    return f'<Filter i:type="SqlFilter">{inside}</Filter>'


class Zure:
    """A broker under one spelling of the paths."""

    def __init__(self, broker: Running, spelling: Spelling) -> None:
        self.broker = broker
        self.spelling = spelling

    def queue_at(self, name: str) -> Entity:
        return Entity(self.broker, f"{_QUEUES[self.spelling]}/{name}")

    def topic_at(self, name: str) -> Entity:
        return Entity(self.broker, f"{_TOPICS[self.spelling]}/{name}")

    def queue(self, **properties: Json) -> Entity:
        made = self.queue_at(fresh("queue"))
        reply = made.describe("QueueDescription", **properties)
        assert reply.status == 201, reply
        return made

    def topic(self, **properties: Json) -> Entity:
        made = self.topic_at(fresh("topic"))
        reply = made.describe("TopicDescription", **properties)
        assert reply.status == 201, reply
        return made

    def subscription_at(self, topic: Entity, name: str) -> Entity:
        return Entity(self.broker, f"{topic.path}/subscriptions/{name}", topic.path)

    def subscription(self, topic: Entity | None = None, **properties: Json) -> Entity:
        made = self.subscription_at(topic or self.topic(), fresh("sub"))
        reply = made.describe("SubscriptionDescription", **properties)
        assert reply.status == 201, reply
        return made

    def place(self, kind: str, **properties: Json) -> Entity:
        """Somewhere to receive from."""
        if kind == "queue":
            return self.queue(**properties)
        return self.subscription(**properties)

    # The clock of the default namespace.

    def advance(self, seconds: float) -> None:
        form = {"advance_ms": int(seconds * 1_000)}
        reply = self.broker.call("POST", "/api/v1/namespaces/default/clock", form)
        assert reply.status == 200, reply

    def now(self) -> datetime:
        found = self.broker.call("GET", "/api/v1/namespaces/default/clock").json["now_ms"]
        return datetime.fromtimestamp(found / 1_000, UTC)

    # Transactions.

    def transactions(self, path: str = "", body: Json = None) -> Reply:
        before = "/any" if self.spelling == "named" else ""
        return self.broker.call("POST", f"/servicebus{before}/transactions{path}", body)

    def begin(self) -> str:
        reply = self.transactions()
        assert reply.status == 201, reply
        found: str = reply.json["TransactionId"]
        return found
