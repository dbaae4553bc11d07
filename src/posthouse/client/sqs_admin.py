"""Administration of Amazon SQS. It has queues alone; a queue made here has one for dead letters."""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from posthouse.client.admin import Counts, Kind, Rule, Settings, check_settings
from posthouse.client.errors import QueueNotFound, Unsupported
from posthouse.client.names import QueueName
from posthouse.client.provider import Source
from posthouse.client.sqs_words import TYPE, Doing

if TYPE_CHECKING:
    from posthouse.client.sqs import SqsProvider

MAX_DELIVERY = 10  # of a queue, where none is given
_FIFO = ".fifo"
_SECONDS = {"lock_duration": "VisibilityTimeout", "time_to_live": "MessageRetentionPeriod"}
_KNOWN = {*_SECONDS, "sessions", "duplicate_detection", "max_delivery_count"}


class SqsAdmin:
    def __init__(self, provider: "SqsProvider", *, fifo: bool) -> None:
        self._provider = provider
        self._fifo = fifo
        self._end = _FIFO if fifo else ""

    async def close(self) -> None:
        """Nothing: the connection is the provider's."""

    def _ask(self, operation: str, doing: str, name: str, **form: Any) -> Any:
        return self._provider._ask(operation, Doing(doing, name), **form)

    async def create(
        self, kind: Kind, name: QueueName, settings: Settings, rules: Sequence[Rule] | None
    ) -> bool:
        _check_kind(kind)
        own = self._attributes(settings)
        try:
            await self._url(f"{name}{self._end}", name)
        except QueueNotFound:
            pass
        else:
            return False
        if self._fifo:
            own["FifoQueue"] = "true"
        most = settings.get("max_delivery_count", MAX_DELIVERY)
        own["RedrivePolicy"] = await self._policy(name, most)
        await self._ask(
            "create_queue", "create", name, QueueName=f"{name}{self._end}", Attributes=own
        )
        self._provider.forget_queues()
        return True

    def _attributes(self, settings: Settings) -> dict[str, str]:
        """Raises Unsupported."""
        check_settings(TYPE, settings, dict.fromkeys(_KNOWN))
        for name in ("sessions", "duplicate_detection"):
            if settings.get(name, self._fifo) != self._fifo:
                raise Unsupported(
                    TYPE.value, f"have {name}={settings[name]} where use_fifo_queues={self._fifo}"
                )
        durations: dict[str, timedelta] = {n: settings[n] for n in _SECONDS if n in settings}
        return {_SECONDS[n]: str(round(each.total_seconds())) for n, each in durations.items()}

    async def _policy(self, name: QueueName, max_delivery: int) -> str:
        """Returns a RedrivePolicy to the queue's own dead-letter queue, which is made for it."""
        kind = {"FifoQueue": "true"} if self._fifo else {}
        dead = await self._ask(
            "create_queue", "create", name, QueueName=self._dead(name), Attributes=kind
        )
        about = await self._ask(
            "get_queue_attributes", "create", name, QueueUrl=dead["QueueUrl"],
            AttributeNames=["QueueArn"],
        )  # fmt: skip
        arn = about["Attributes"]["QueueArn"]
        return json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": max_delivery})

    def _dead(self, name: QueueName) -> str:
        return f"{name}-dead{self._end}"

    async def _url(self, full: str, name: str) -> str:
        answer = await self._ask("get_queue_url", "find the queue", name, QueueName=full)
        return str(answer["QueueUrl"])

    async def update(self, kind: Kind, name: QueueName, settings: Settings) -> None:
        _check_kind(kind)
        changed = self._attributes(settings)
        url = await self._url(f"{name}{self._end}", name)
        if "max_delivery_count" in settings:
            most = settings["max_delivery_count"]
            policy = (await self._about(url, name)).get("RedrivePolicy")
            if policy is None:
                changed["RedrivePolicy"] = await self._policy(name, most)
            else:
                told = json.loads(policy) | {"maxReceiveCount": most}
                changed["RedrivePolicy"] = json.dumps(told)
        if changed:
            await self._ask(
                "set_queue_attributes", "update", name, QueueUrl=url, Attributes=changed
            )
        self._provider.forget_queues()

    async def _about(self, url: str, name: str) -> dict[str, str]:
        answer = await self._ask(
            "get_queue_attributes", "read", name, QueueUrl=url, AttributeNames=["All"]
        )
        found: dict[str, str] = answer.get("Attributes", {})
        return found

    async def delete(self, kind: Kind, name: QueueName) -> None:
        """Deletes the queue, and the dead-letter queue that was made with it."""
        _check_kind(kind)
        url = await self._url(f"{name}{self._end}", name)
        policy = json.loads((await self._about(url, name)).get("RedrivePolicy") or "{}")
        await self._ask("delete_queue", "delete", name, QueueUrl=url)
        self._provider.forget_queues()
        dead = str(policy.get("deadLetterTargetArn", "")).rpartition(":")[2]
        if dead == self._dead(name):
            url = await self._url(dead, name)
            await self._ask("delete_queue", "delete", name, QueueUrl=url)

    async def names(self, kind: Kind, topic: str = "") -> list[str]:
        _check_kind(kind)
        names: list[str] = []
        more: dict[str, Any] = {}
        while True:
            answer = await self._ask("list_queues", "list", "", MaxResults=1_000, **more)
            found = [url.rpartition("/")[2] for url in answer.get("QueueUrls", [])]
            names += [each.removesuffix(_FIFO) for each in found if self._is_mine(each)]
            if not answer.get("NextToken"):
                return sorted(names)
            more = {"NextToken": answer["NextToken"]}

    def _is_mine(self, name: str) -> bool:
        return name.endswith(_FIFO) == self._fifo

    async def purge(self, source: Source) -> int:
        """Returns how many there were about: SQS does not tell exactly."""
        queue = await self._provider._source(source)
        before = int((await self._about(queue.url, source.queue))["ApproximateNumberOfMessages"])
        await self._ask("purge_queue", "purge", source.queue, QueueUrl=queue.url)
        return before

    async def counts(self, name: QueueName) -> Counts:
        queue = await self._provider._queue(name)
        about = await self._about(queue.url, name)
        dead = 0
        if queue.dead is not None:
            other = await self._provider._dead(queue)
            dead = int((await self._about(other.url, name))["ApproximateNumberOfMessages"])
        return Counts(
            int(about["ApproximateNumberOfMessages"]), dead,
            scheduled=int(about["ApproximateNumberOfMessagesDelayed"]),
            locked=int(about["ApproximateNumberOfMessagesNotVisible"]),
        )  # fmt: skip

    async def rules(self, name: QueueName) -> list[Rule]:
        raise _no_topics()

    async def set_rule(self, name: QueueName, rule: Rule) -> None:
        raise _no_topics()

    async def delete_rule(self, name: QueueName, rule: str) -> None:
        raise _no_topics()


def _check_kind(kind: Kind) -> None:
    """Raises Unsupported."""
    if kind != "queue":
        raise _no_topics()


def _no_topics() -> Unsupported:
    return Unsupported(TYPE.value, "have topics and subscriptions")
