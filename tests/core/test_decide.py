"""`decide` changes nothing, whatever it answers."""

import msgspec
import pytest

from posthouse.core import decide
from posthouse.core.commands import (
    Abandon,
    AcceptSession,
    Attach,
    Cancel,
    Command,
    Complete,
    CreateQueue,
    Credit,
    DeadLetter,
    Defer,
    DeleteQueue,
    Detach,
    GetQueue,
    GetSessionState,
    ListQueues,
    ListSessions,
    Pause,
    Peek,
    Purge,
    Receive,
    ReceiveDeferred,
    Release,
    ReleaseSession,
    Renew,
    RenewSession,
    Resubmit,
    Resume,
    Send,
    SetClock,
    SetFanout,
    SetSessionState,
    Settle,
    Start,
    Tick,
    UpdateQueue,
)
from posthouse.core.dump import dump
from posthouse.core.errors import InvalidArgument, Refused
from posthouse.core.message import NewMessage
from posthouse.core.model import QueueProperties
from tests.core.world import World, a_message

ALL = frozenset(range(5))


class Scene:
    """Queues with messages in every state, and receivers that wait for them."""

    def __init__(self) -> None:
        self.world = world = World()
        queue = world.queue("a", lock_ms=100, duplicate_detection=True, idle_delete_ms=200)
        world.send(queue, *[a_message(str(n), id=str(n)) for n in range(8)])
        world.send(queue, a_message(ttl_ms=90), a_message(due_ms=1_050))
        one, two, three, four, five = world.receive(queue, 5, by_id=True)
        world.do(Abandon(queue, [one.token], delay_ms=80))
        world.do(Defer(queue, [two.token]))
        world.do(DeadLetter(queue, [three.token]))
        self.tokens = [four.token, five.token]
        for group in ("session", "group"):
            world.queue(group, grouping=group, lock_ms=90)
            world.send(group, *[a_message(group=each) for each in "xyx"])
        self.session = world.hold("session", "x", bound=True).token
        world.receive("session", session=self.session)
        self.reader = world.attach("session", 9, session=self.session, bound=True)
        self.bound = world.attach("group", 1, bound=True)
        world.receive("group", 5)
        world.wait("group", ms=60)
        world.queue("empty", dead_letter_expired=True)
        self.waiting = world.attach("empty", 3)
        world.queue("paused")
        world.attach("paused", 5)
        world.do(Pause("paused", receiving=True))
        world.send("paused", "a", "b")
        world.do(Resume("paused", receiving=True))
        world.queue("gone")
        world.send("gone", "a")
        world.do(DeleteQueue("gone"))


def settles(locks: list[int]) -> list[Settle]:
    kinds = (Complete, Abandon, Release, Defer, DeadLetter, Renew)
    return [kind("a", locks) for kind in kinds]


def commands(scene: Scene) -> list[Command]:
    new = [a_message(id="new", group="x"), a_message(group="y", due_ms=9_000)]
    return [
        Start(2, 2),
        Tick(),
        CreateQueue("new"),
        UpdateQueue("empty", QueueProperties(lock_ms=5)),
        *[DeleteQueue(name) for name in ("a", "session", "group", "paused")],
        GetQueue("a"),
        ListQueues(),
        Pause("a", receiving=True),
        Resume("a", sending=True),
        *[Purge(name, ALL) for name in ("a", "session", "group")],
        Resubmit("a/$dead", target="empty"),
        *[Send(name, new) for name in ("a", "session", "group", "empty", "paused")],
        Cancel("a", [10]),
        Receive("a", 1, 5),
        Receive("a", 1, 5, delete=True),
        Receive("empty", 1, deadline_ms=9_000),
        Attach("a", 1, 5),
        Attach("group", 1, 5, delete=True),
        Credit(scene.waiting, 9, drain=True),
        *[Detach(number) for number in (scene.reader, scene.bound, scene.waiting)],
        ReceiveDeferred("a", [2]),
        Peek("a", limit=50),
        *settles(scene.tokens),
        AcceptSession("session", 1),
        AcceptSession("session", 1, "new"),
        RenewSession("session", scene.session),
        ReleaseSession("session", scene.session),
        GetSessionState("session", scene.session),
        SetSessionState("session", scene.session, b"s"),
        ListSessions("session"),
    ]


def refused(scene: Scene) -> list[Command]:
    held = scene.tokens
    return [
        Start(-1, 0),
        CreateQueue("A"),
        UpdateQueue("a", QueueProperties(grouping="group")),
        *[DeleteQueue(name) for name in ("none", "a/$dead")],
        Send("a", [a_message(), a_message(priority=11)]),
        Send("a", [a_message(id="new"), a_message(id="1")], refuse_duplicates=True),
        Cancel("a", [10, 1]),
        Resubmit("a/$dead", [1, 2]),
        Receive("session", 1),
        Attach("a", scene.waiting),
        Credit(scene.waiting, -1),
        Detach(1),
        ReceiveDeferred("a", [2, 1]),
        *settles([*held, 5]),
        AcceptSession("session", 1, "x"),
        RenewSession("session", 5),
        SetSessionState("session", scene.session, b"s" * 1_100_000),
    ]


def name(command: Command) -> str:
    return type(command).__name__


@pytest.mark.parametrize("at", range(len(commands(Scene()))))
@pytest.mark.parametrize("later_ms", [0, 85, 500])
def test_deciding_leaves_the_state_untouched(at: int, later_ms: int) -> None:
    scene = Scene()
    state, command = scene.world.state, commands(scene)[at]
    before = dump(state, passing=True)
    try:
        decide(state, command, scene.world.now_ms + later_ms)
    except Refused:
        assert later_ms, name(command)  # locks have expired since
    assert dump(state, passing=True) == before


def test_a_refused_command_leaves_the_state_untouched() -> None:
    scene = Scene()
    state = scene.world.state
    before = dump(state, passing=True)
    for command in refused(scene):
        with pytest.raises(Refused):
            decide(state, command, scene.world.now_ms)
        assert dump(state, passing=True) == before, name(command)


ODD: list[Command] = [
    Send("orders", [NewMessage(b"", "text")]),  # type: ignore[arg-type]
    Send("orders", [NewMessage("text", b"")]),  # type: ignore[arg-type]
    Send("orders", [NewMessage(b"", b"", "text")]),  # type: ignore[arg-type]
    Send("orders", [NewMessage(b"", bytearray(b"x"))]),  # type: ignore[arg-type]
    Send("orders", [NewMessage(b"", b"", priority=True)]),
    Send("orders", [NewMessage(b"", b"", ttl_ms=1.5)]),  # type: ignore[arg-type]
    Send("orders", [NewMessage(b"", b"", due_ms=99_999.5)]),  # type: ignore[arg-type]
    Send("orders", [NewMessage(b"", b"", group=5)]),  # type: ignore[arg-type]
    CreateQueue("x", QueueProperties(lock_ms=5.5)),  # type: ignore[arg-type]
    CreateQueue("x", QueueProperties(metadata=None)),  # type: ignore[arg-type]
    Abandon("orders", [1], delay_ms=1.5),  # type: ignore[arg-type]
    Abandon("orders", [1], properties={1: 2}),  # type: ignore[dict-item]
    DeadLetter("orders", [1], reason=5),  # type: ignore[arg-type]
    Renew("orders", [1], lock_ms=10.5),  # type: ignore[arg-type]
    SetClock(1.5),  # type: ignore[arg-type]
    SetFanout("often"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("command", ODD, ids=repr)
def test_what_could_not_be_read_from_the_journal_is_refused(command: Command) -> None:
    """A slip of a dialect must not be acknowledged and keep the broker from starting."""
    world = World()
    world.queue()
    world.send("orders", "x")
    (held,) = world.receive("orders")
    if isinstance(command, Abandon | DeadLetter | Renew):
        command = msgspec.structs.replace(command, locks=[held.token])
    with pytest.raises(InvalidArgument):
        world.do(command)


def test_a_session_s_state_is_bytes() -> None:
    world = World()
    world.queue(grouping="session")
    held = world.hold("orders", "s")
    with pytest.raises(InvalidArgument):
        world.do(SetSessionState("orders", held.token, "text"))  # type: ignore[arg-type]
