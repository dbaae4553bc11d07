"""One message and the function that handles it: what it is given, and what comes of it."""

import asyncio
import contextvars
import inspect
import re
import time
import typing
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from posthouse.client.client import QueueClient
from posthouse.client.cross_loop import CrossLoopSession
from posthouse.client.errors import ConfigurationError, QueueError, SerializationError
from posthouse.client.messages import ReceivedMessage
from posthouse.client.names import QueueName
from posthouse.client.retry import ExponentialRetry, RetryPolicy
from posthouse.client.telemetry import processing

if TYPE_CHECKING:
    from posthouse.client.sync import SyncQueueClient
    from posthouse.client.worker import Worker

REASON_CHARS_MAX = 128
DESCRIPTION_CHARS_MAX = 1_024
CONCURRENCY_MAX = 1_000
PREFETCH_MAX = 5_000
HOLD_SECONDS_MAX = 300.0  # a retry that is due later is left to the broker

# What in the text of an error is nobody's business: `password=...`, `https://name:key@host`.
_NAMED = re.compile(
    r"""(?ix) ( (?: pass(?:word|wd|phrase)? | secret | token | signature | authorization
    | credential
    | (?: api | access | account | private | shared ) [-_\ ]? (?:access)? [-_\ ]? key ) s?
    ["']? \s* [=:] \s* ["']? (?: (?:bearer|basic|sharedaccesssignature) \s+ )? ) [^\s"',;&]+"""
)
_IN_URL = re.compile(r"(://)[^/@\s]+@")


class Reject(Exception):
    """Raised by a handler: the message is dead-lettered at once, for that reason."""

    def __init__(self, reason: str, description: str | None = None) -> None:
        super().__init__(reason if description is None else f"{reason}: {description}")
        self.reason, self.description = reason, description


class Requeue(Exception):
    """Raised by a handler: the message is abandoned, and delivered again, to whoever comes."""


class HandlingFailed(QueueError):
    """The error that a retry policy is given. The handler's own error is its `__cause__`."""

    is_transient = True


Ending = Literal["complete", "retry", "abandon", "dead-letter", "lost"]


class Outcome(NamedTuple):
    """The outcome of handling a message."""

    ending: Ending
    reason: str | None = None
    description: str | None = None
    delay: float = 0.0  # seconds until it is tried again
    error: BaseException | None = None
    seconds: float = 0.0  # that it took


class Context:
    """The context of a message, for handlers and middleware."""

    def __init__(
        self,
        app: "Worker",
        queue: str,
        message: ReceivedMessage,
        attempt: int,
        session: CrossLoopSession | None = None,
    ) -> None:
        self.app = app
        self.queue = queue
        self.message = message
        self.attempt = attempt  # 1 the first time
        self.session = session
        self.lost = False  # the message is another's by now: what is done for it is done twice
        self.stopped = False  # the worker has ended and could not wait any longer
        self._task: asyncio.Task[Any] | None = None

    @property
    def client(self) -> QueueClient:
        """The worker's own client, for `async` handlers."""
        return self.app.client

    @property
    def sync_client(self) -> "SyncQueueClient":
        """The same for plain functions."""
        return self.app.sync_client


CallNext: TypeAlias = Callable[[Context], Awaitable[Any]]
Middleware: TypeAlias = Callable[[Context, CallNext], Awaitable[Any]]
Taking: TypeAlias = Callable[[Context], Any]  # what one parameter is given


@dataclass(frozen=True)
class Options:
    """The options for handling a queue's messages."""

    queue: QueueName
    concurrency: int = 10
    prefetch: int = 0  # messages fetched, and held, beyond those that are being handled
    retry: RetryPolicy = ExponentialRetry(attempts=5, base=1.0)  # noqa: RUF009 (it is frozen)
    sessions: bool = False
    session_idle: float = 5.0  # seconds without a message until a session is given up
    dead_letter: bool = False  # the queue's dead letters are handled

    def __post_init__(self) -> None:
        what = "max_sessions" if self.sessions else "concurrency"
        if not 1 <= self.concurrency <= CONCURRENCY_MAX:
            raise ConfigurationError(what, f"must be from 1 to {CONCURRENCY_MAX}")
        if not 0 <= self.prefetch <= PREFETCH_MAX:
            raise ConfigurationError("prefetch", f"must be from 0 to {PREFETCH_MAX}")
        if self.session_idle <= 0:
            raise ConfigurationError("session_idle", "must be more than 0")
        if self.sessions and (self.prefetch or self.dead_letter):
            raise ConfigurationError("sessions", "go with neither prefetch nor dead_letter")


class Route:
    """The route from a queue to the function that handles its messages."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        self.function = function
        self.options = options
        self.is_async = inspect.iscoroutinefunction(function)
        self._takes: list[Taking] | None = None

    def check(self) -> None:
        """Resolves the function's parameters, once all names in its annotations are defined.

        Raises ConfigurationError.
        """
        self._takes = _taken(self.function)

    async def call(self, context: Context, pool: Executor) -> Any:
        if self._takes is None:
            self.check()
        takes = self._takes or []
        if self.is_async:
            return await self.function(*[each(context) for each in takes])
        here = contextvars.copy_context()  # what middleware has set is seen there too

        def work() -> Any:
            return self.function(*[each(context) for each in takes])

        return await asyncio.get_running_loop().run_in_executor(pool, partial(here.run, work))

    async def handle(
        self, context: Context, middleware: Sequence[Middleware], pool: Executor
    ) -> Outcome:
        """Never raises: whatever happens in it is an outcome."""
        task = context._task = asyncio.current_task()
        assert task is not None
        was_lost = context.lost  # while it waited for its turn
        if was_lost:
            return Outcome("lost")
        begun = time.monotonic()
        found = Outcome("complete")

        async def innermost(context: Context) -> Any:
            return await self.call(context, pool)

        chain: CallNext = innermost
        for each in reversed(middleware):
            chain = partial(_around, each, chain)
        try:
            with processing(context.message, context.queue):
                await chain(context)
        except Reject as rejected:
            found = _dead(rejected.reason, rejected.description, rejected)
        except Requeue as requeued:
            found = Outcome("abandon", error=requeued)
        except asyncio.CancelledError as cancelled:
            if task.cancelling():
                task.uncancel()
                found = Outcome("abandon", error=cancelled)
            else:  # something that it has waited for
                found = self.judge(cancelled, context.attempt)
        except Exception as error:  # noqa: BLE001 (it is the handler's own, and is told to who looks)
            found = self.judge(error, context.attempt)
        finally:
            context._task = None
        if context.lost:
            found = Outcome("lost", error=found.error)
        return found._replace(seconds=time.monotonic() - begun)

    def judge(self, error: BaseException, attempt: int) -> Outcome:
        """Returns the outcome of a message whose handler has failed: a retry, or a dead letter."""
        failed: QueueError = HandlingFailed(str(error))
        if isinstance(error, QueueError) and error.should_retry:
            failed = error  # it may say when
        failed.__cause__ = failed.__cause__ or (None if failed is error else error)
        delay = self.options.retry.delay(attempt, failed)
        if delay is None:
            return _dead(type(error).__name__, describe(error), error)
        return Outcome("retry", type(error).__name__, describe(error), delay, error)


def _dead(reason: str, description: str | None, error: BaseException) -> Outcome:
    told = None if description is None else description[:DESCRIPTION_CHARS_MAX]
    return Outcome("dead-letter", reason[:REASON_CHARS_MAX], told, error=error)


async def _around(layer: Middleware, inner: CallNext, context: Context) -> Any:
    return await layer(context, inner)


def describe(error: BaseException) -> str:
    """Its text, of bounded length, without what looks like a secret."""
    text = str(error)[: 4 * DESCRIPTION_CHARS_MAX]
    hidden = _IN_URL.sub(r"\1***@", _NAMED.sub(r"\1***", text))
    return hidden[:DESCRIPTION_CHARS_MAX]


def _taken(function: Callable[..., Any]) -> list[Taking]:
    """Returns, for each parameter, the way to its argument, by its annotation.

    Raises ConfigurationError.
    """
    name = getattr(function, "__qualname__", repr(function))
    try:
        kinds = typing.get_type_hints(function)
    except NameError as error:
        raise ConfigurationError(
            f"The handler {name}", f"has an annotation that cannot be read: {error}"
        ) from error
    takes: list[Taking] = []
    has_value = False
    for each in inspect.signature(function).parameters.values():
        kind = kinds.get(each.name)
        if kind is Context or (kind is None and each.name == "context"):
            takes.append(_context)
            continue
        if each.kind not in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
            if each.default is each.empty and each.kind is each.KEYWORD_ONLY:
                raise ConfigurationError(
                    f"The handler {name}", f"has a parameter {each.name} that nobody gives"
                )
            break  # what follows can do without
        if has_value:
            if each.default is not each.empty:
                break
            raise ConfigurationError(
                f"The handler {name}",
                f"takes {each.name} beside the message; a posthouse.Context has the rest",
            )
        has_value = True
        takes.append(_message if kind in (None, ReceivedMessage) else partial(_value, kind))
    return takes


def _context(context: Context) -> Context:
    return context


def _message(context: Context) -> ReceivedMessage:
    return context.message


def _value(kind: Any, context: Context) -> Any:
    try:
        return context.message.value(kind)
    except SerializationError as error:  # it will not read better the next time
        raise Reject(type(error).__name__, describe(error)) from error
