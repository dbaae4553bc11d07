"""Who may send is asked of who sends; and every place that acts with more rights is listed here.

`BROKER` may do everything, and `vouched` lets a principal do what it was allowed by another right.
A place that uses one of them is an opening: it must be in the list, with the reason why what it
does needs no right of the caller's, or which right was asked for before.
"""

import ast
import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import posthouse
from posthouse.broker.access import BROKER
from posthouse.core.namespaces import RevokeAccount
from tests.dialects.pyqueue.rig import ROOT_KEY, Client, Rig
from tests.dialects.pyqueue.test_access import known

SOURCES = Path(posthouse.__file__).parent

GIVES_BACK = "gives back what a client had, which needs no right: it may have lost it meanwhile"
OWN_AFFAIR = "the broker's own affair; nobody's request leads here"
OWNER = "run by the owner of the files, who has the root key"
IN_PROCESS = "a broker in the caller's own process, without accounts"
IDENTITY = "no command: who somebody is"

PLACES = {
    # What the broker does by itself.
    ("broker/engine.py", "Engine.ask"): GIVES_BACK,
    ("broker/backlog.py", "Backlog.add"): "asks whether the broker itself gives something back",
    ("broker/engine.py", "Engine._decide"): "asks whether it is the broker: commands of that right",
    ("broker/engine.py", "Engine.flush"): OWN_AFFAIR,
    ("broker/moving.py", "ClockMover._note"): "who moves a clock has manage, asked by its route",
    ("broker/shares.py", "Shares.name"): "asks whether it is the broker, which has no share",
    ("broker/throttle.py", "Throttle.check"): "asks whether it is the broker, which has no limit",
    ("broker/retention.py", "_ask_to_move"): OWN_AFFAIR,
    ("broker/waiting.py", "_give_back"): GIVES_BACK,
    ("broker/waiting.py", "take"): GIVES_BACK,
    ("broker/waiting.py", "take.received"): (
        "gives back, or completes, what the principal has received just now by its own right"
    ),
    ("server/host.py", "BrokerHost._declare"): "what the owner's file declares",
    ("server/deliveries.py", "_Line._submit"): (
        "gives back, or gives credit while the caller's right to receive lasts"
    ),
    ("cli/store.py", "resend.run"): OWNER,
    ("client/memory.py", "InMemoryProvider._open"): IN_PROCESS,
    ("client/memory.py", "InMemoryProvider._ask"): IN_PROCESS,
    ("client/memory.py", "_give_back"): IN_PROCESS,
    # Dialects.
    ("dialects/pyqueue/context.py", "PyQueueContext.make_queue"): (
        "a queue is there when it is used: by who has the right that the use needs"
    ),
    ("dialects/pyqueue/context.py", "PyQueueContext.welcome"): "the queue for who names none",
    ("dialects/pyqueue/orders.py", "Call.ask_vouched"): "see the places that ask so",
    ("dialects/pyqueue/peer.py", "Peer._settle"): (
        "gives back, or dead-letters as too large, what a client was to be given and was not"
    ),
    ("dialects/pyqueue/topics.py", "_make"): (
        "bindings: listen on the pattern, and send or manage on the queue, were asked for"
    ),
    ("dialects/pyqueue/topics.py", "unsubscribe"): "as for _make",
    ("dialects/sqs/call.py", "Call._make"): (
        "where queues are made by being used: by who has the right to use it"
    ),
    ("dialects/sqs/web.py", "Web._namespace_for"): (
        "with --dev, where namespaces are made by being used"
    ),
    ("dialects/sqs/receiving.py", "give_back"): (
        "gives back what a client was to be given and was not"
    ),
    ("dialects/pyqueue/topics.py", "unbind_all"): (
        "bindings of a queue that the caller has deleted, which takes manage on it"
    ),
    ("dialects/pyqueue/admin.py", "cancel_task"): (
        "manage on the schedule's queue was asked for; the command takes it on every queue"
    ),
    ("dialects/servicebus/web.py", "Call.make_namespace"): (
        "where namespaces are made by being used: by who has a right there"
    ),
    ("dialects/servicebus/attaching.py", "Attaching._target"): "as for make_namespace",
    ("dialects/servicebus/admin.py", "_set_keys"): (
        "keys of one entity, by who has made or changed it just now, which takes manage on it"
    ),
    ("dialects/servicebus/credentials.py", "Credentials.identify"): (
        "the dev profile: whoever has the root's key, by another name"
    ),
    ("dialects/servicebus/commands.py", "Commands.leave"): GIVES_BACK,
    ("dialects/servicebus/rest.py", "_peek_lock"): GIVES_BACK,
    ("dialects/servicebus/transactions.py", "Coordinator._roll_back"): GIVES_BACK,
    ("dialects/vibemq/peer.py", "Peer.__init__"): "before anybody has come; no command is given",
    ("dialects/vibemq/peer.py", "Peer.trust"): (
        "operations by patterns of names were looked up before, in the account, for every frame"
    ),
    ("dialects/vibemq/peer.py", "Peer.leave"): GIVES_BACK,
    ("dialects/vibemq/web.py", "_Call._ask"): "as for Peer.trust",
    ("dialects/vibemq/users.py", ""): "who comes with the token that all share",
    ("dialects/vibemq/users.py", "Users.make_first"): "the first user, whom the owner's file names",
    # Where principals are made.
    ("broker/access.py", ""): IDENTITY,
    ("broker/access.py", "Guard.identify_by_key"): IDENTITY,
    ("broker/access.py", "Guard._principal"): IDENTITY,
    ("broker/access.py", "vouched"): "see the places that use it",
}


def _places(tree: ast.Module) -> Counter[str]:
    """The functions in which something is done with more rights than a caller has."""
    found: Counter[str] = Counter()

    def look(node: ast.AST, scope: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = (*scope, child.name)
            if _is_more(child):
                found[".".join(scope)] += 1
            look(child, inner)

    look(tree, ())
    return found


def _is_more(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        is_false = isinstance(node.value, ast.Constant) and node.value.value is False
        return node.arg == "everything" and not is_false
    if isinstance(node, ast.Name):
        return node.id in ("BROKER", "vouched") and isinstance(node.ctx, ast.Load)
    return isinstance(node, ast.Attribute) and node.attr in ("BROKER", "vouched", "ask_vouched")


def test_every_place_that_acts_with_more_rights_is_listed_with_its_reason() -> None:
    found = {
        (str(path.relative_to(SOURCES)), scope)
        for path in sorted(SOURCES.rglob("*.py"))
        for scope in _places(ast.parse(path.read_text()))
    }
    assert found == set(PLACES)


def test_nothing_is_sent_with_more_rights() -> None:
    """A Send is given in the name of who sends, with his own rights."""
    for path in sorted((SOURCES / "dialects").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and any(map(_is_more, ast.walk(node))):
                names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                assert not names & {"Send", "Resubmit", "send_together"}, (path, node.lineno)


@pytest.mark.parametrize("source", [
    "def f(engine):\n    engine.submit(BROKER, '', x, y)", "def f(p):\n    return vouched(p)",
    "def f():\n    Principal('x', everything=True)", "def f(call):\n    call.ask_vouched(x)",
    "def f():\n    access.BROKER", "def f(p):\n    replace(p, everything=given)",
])  # fmt: skip
def test_a_new_place_would_be_noticed(source: str) -> None:
    assert _places(ast.parse(source)) == {"f": 1}


# PyQueue's topics.

EVE, EVES_KEY = "eve", "the key of who may only listen"
SUE, SUES_KEY = "sue", "the key of who may send here and there"


def with_rig(work: Callable[[Rig, Client], Awaitable[None]]) -> None:
    async def run() -> None:
        async with await Rig.open(is_open=False) as rig:
            root = await known(rig, ROOT_KEY)
            await root.push("first", queue="victim")
            await work(rig, root)

    asyncio.run(run())


async def depth(root: Client, queue: str) -> int:
    found: int = (await root.ok("ADMIN_QUEUE_INFO", queue.encode()))["depth"]
    return found


def test_who_may_only_listen_cannot_bind_a_queue_to_a_topic() -> None:
    async def work(rig: Rig, root: Client) -> None:
        await rig.add(EVE, EVES_KEY, ("*", ["listen"]), ("noise", ["send"]))
        eve = await known(rig, EVES_KEY)
        text = await eve.error("SUBSCRIBE", {"topic": "noise", "queue": "victim"})
        assert text == "Unauthorized: eve cannot SUBSCRIBE on victim"
        assert "No subscribers" in await eve.error("PUBLISH", {"topic": "noise", "message": "x"})
        assert await depth(root, "victim") == 1
        await eve.error("SUBSCRIBE", {"topic": "noise", "queue": "new"})
        assert "new" not in (await root.ok("ADMIN_LIST_QUEUES"))["queues"]

    with_rig(work)


@pytest.mark.parametrize("right", ["send", "manage"])
def test_who_may_send_to_a_queue_may_bind_it_to_what_he_listens_to(right: Any) -> None:
    async def work(rig: Rig, root: Client) -> None:
        await rig.add(SUE, SUES_KEY, ("news.*", ["listen"]), ("mine", [right]))
        sue = await known(rig, SUES_KEY)
        await sue.ok("SUBSCRIBE", {"topic": "news.*", "queue": "mine"})
        assert (await root.ok("PUBLISH", {"topic": "news.a", "message": "x"}))["published"] == 1
        text = await sue.error("SUBSCRIBE", {"topic": "#", "queue": "mine"})
        assert text == "Unauthorized: sue cannot SUBSCRIBE on #"

    with_rig(work)


def test_what_is_published_goes_only_into_queues_that_its_publisher_may_send_to() -> None:
    async def work(rig: Rig, root: Client) -> None:
        await rig.add(SUE, SUES_KEY, ("news", ["send"]), ("mine", ["send"]))
        sue = await known(rig, SUES_KEY)
        await root.ok("SUBSCRIBE", {"topic": "news", "queue": "victim"})
        text = await sue.error("PUBLISH", {"topic": "news", "message": "x"})
        assert text == "Unauthorized: sue cannot PUBLISH on victim"
        await root.ok("SUBSCRIBE", {"topic": "news", "queue": "mine"})
        told = await sue.ok("PUBLISH", {"topic": "news", "message": "x"})
        assert told["published"] == 1  # one binding refuses nothing to the others
        assert await depth(root, "victim") == 1
        assert await depth(root, "mine") == 1

    with_rig(work)


def test_who_may_only_listen_cannot_end_a_binding() -> None:
    async def work(rig: Rig, root: Client) -> None:
        await rig.add(EVE, EVES_KEY, ("*", ["listen"]))
        await root.ok("SUBSCRIBE", {"topic": "news", "queue": "victim"})
        text = await (await known(rig, EVES_KEY)).error("UNSUBSCRIBE", {"topic": "news"})
        assert text == "Unauthorized: eve cannot UNSUBSCRIBE on victim"
        assert (await root.ok("PUBLISH", {"topic": "news", "message": "x"}))["published"] == 1

    with_rig(work)


def test_who_manages_a_queue_and_may_not_send_to_it_cannot_replay_into_it() -> None:
    async def work(rig: Rig, root: Client) -> None:
        await rig.add(SUE, SUES_KEY, ("victim", ["manage", "listen"]))
        sue = await known(rig, SUES_KEY)
        job = await root.pull("victim")
        await root.ok("ACK", job["task_id"])
        text = await sue.error("ADMIN_REPLAY", {"queue_name": "victim"})
        assert text == "Unauthorized: sue cannot ADMIN_REPLAY on victim"
        assert await depth(root, "victim") == 0

    with_rig(work)


def test_a_publisher_whose_account_was_revoked_sends_nothing() -> None:
    async def work(rig: Rig, root: Client) -> None:
        await rig.add(SUE, SUES_KEY, ("*", ["send", "listen"]))
        sue = await known(rig, SUES_KEY)
        await sue.ok("SUBSCRIBE", {"topic": "news", "queue": "victim"})
        assert rig.engine is not None
        await rig.engine.ask(BROKER, "", RevokeAccount(SUE))
        text = await sue.error("PUBLISH", {"topic": "news", "message": "x"})
        assert text == "Authentication required. Send AUTH command first."

    with_rig(work)
