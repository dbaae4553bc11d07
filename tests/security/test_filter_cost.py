"""Whatever rules and messages say, no command keeps everybody else waiting for long.

The processor time of each command is measured; the bound is far above what is usual, so that a busy
machine does not matter, and far below what such rules took when nothing counted it: seconds.
"""

from collections.abc import Callable
from typing import Any

import pytest

from posthouse.core import decide, evolve
from posthouse.core.commands import RULES_MAX, Command, Send, SetRule, Tick
from posthouse.core.errors import QuotaExceeded
from posthouse.core.message import NewMessage
from posthouse.core.rules import (
    CorrelationFilter,
    FalseFilter,
    PatternFilter,
    Rule,
    SqlFilter,
    TrueFilter,
)
from tests.core.world import World, a_message
from tests.security.cost import steps_of

pytestmark = pytest.mark.alone

STEPS_MAX = 5_000_000  # that one command may cost: some 150 ms; none here costs a third of it
LONG = "a" * 16_000
NUMBERS: dict[str, Any] = {f"k{n}": n for n in range(6_000)}


def _sql(text: str, **parameters: str) -> Callable[[int], Rule]:
    return lambda n: Rule(f"r{n}", SqlFilter(f"x{n} = 1 OR {text}", dict(parameters)))


def _action(text: str) -> Callable[[int], Rule]:
    return lambda n: Rule(f"r{n}", TrueFilter(), text)


HOSTILE: dict[str, tuple[Callable[[int], Rule], NewMessage]] = {
    "like": (_sql("a LIKE @p", p="%" + "a" * 50 + "b" + "a" * 48 + "%"), a_message("", a=LONG)),
    "like often": (_sql(" OR ".join(["a LIKE '%aab%'"] * 40)), a_message("", a=LONG)),
    "like with _": (_sql("a LIKE @p", p="%" + "_a" * 400 + "b%"), a_message("", a=LONG)),
    "like what it says": (_sql(" OR ".join(["a LIKE b"] * 70)), a_message("", a=LONG, b="%ab" * 9)),
    "in": (_sql("a IN (" + ",".join(["b"] * 400) + ")"), a_message("", a=1, b=2)),
    "compared": (_sql(" OR ".join(["a < b"] * 90)), a_message("", a=LONG * 6, b=LONG * 6)),
    "plus": (_sql("a" + "+c" * 400 + " = 'x'"), a_message("", a="a" * 65_000, c="a")),
    "exists": (_sql(" AND ".join(["NOT EXISTS(z)"] * 40)), a_message("", **NUMBERS)),
    "correlation": (lambda n: Rule(f"r{n}", CorrelationFilter({}, {**NUMBERS})),
                    a_message("", **NUMBERS)),
    "actions": (_action("; ".join(f"SET x{n} = a" for n in range(30))), a_message("", a=LONG)),
    "actions that build": (_action("SET x = a + a; SET y = x + x; SET z = y + a"),
                           a_message("", a=LONG)),
    "actions on many": (_action("; ".join(f"SET x{n} = 1" for n in range(30))),
                        a_message("", **NUMBERS)),
    "patterns": (lambda n: Rule(f"r{n}", PatternFilter(".".join((["#", "a"] * 20) + [f"x{n}"]))),
                 a_message("", subject=".".join("a" * 256))),
}  # fmt: skip


def cost(world: World, command: Command) -> float:
    """In steps. Raises Refused."""

    def do() -> None:
        outcome = decide(world.state, command, world.now_ms)
        for record in outcome.records:
            evolve(world.state, record, world.position)
            world.position += 1_000_000

    return steps_of(do)[0]


@pytest.mark.parametrize("spread", ["rules of one subscription", "subscriptions"])
@pytest.mark.parametrize("name", HOSTILE)
def test_no_command_takes_long_whatever_the_rules_of_a_topic_are(name: str, spread: str) -> None:
    rule_of, message = HOSTILE[name]
    world = World()
    topic = world.topic()
    other = world.subscribe(topic, "other")
    world.do(SetRule(world.subscribe(topic, "warm"), rule_of(RULES_MAX)))  # the parser is made
    spent = [0.0]
    if spread == "subscriptions":
        for n in range(60):
            world.subscribe(topic, f"s{n}", rule_of(n))
    else:
        queue = world.subscribe(topic, "s", Rule("none", FalseFilter()))
        for n in range(RULES_MAX // 10):
            try:
                spent.append(cost(world, SetRule(queue, rule_of(n))))
            except QuotaExceeded:  # it says that they are too many
                break
    spent.append(cost(world, Send(topic, [message])))
    while world.state.dispatch_pending:
        spent.append(cost(world, Tick()))
    assert max(spent) < STEPS_MAX
    assert world.counts(other).active == 1
    assert world.counts(topic).active == 0
