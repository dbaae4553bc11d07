"""All that `posthouse.bridge` offers says what it does, what it takes, and how it is used."""

import ast
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from posthouse import bridge
from posthouse.bridge import testing
from posthouse.bridge.health import Health
from posthouse.bridge.sync import SyncBridge
from tests.client.test_docstrings import examples, parameters

KINDS = [getattr(bridge, name) for name in bridge.__all__ if name != "middleware"]
KINDS += [testing.Testing, testing.Dead, testing.Finding, Health, SyncBridge]
LAYERS = [getattr(bridge.middleware, name) for name in
          ("logging", "metrics", "tracing", "timeout", "map_errors")]  # fmt: skip
# Their fields are comments in the source, or told by docs/bridge.md.
FIELDS_ELSEWHERE = {"Settings", "Event", "Delivery", "RetrySchedule"}


def members() -> Iterator[tuple[str, Any]]:
    for kind in [*KINDS, *LAYERS]:
        yield kind.__name__, kind
        if not inspect.isclass(kind) or kind.__name__ in FIELDS_ELSEWHERE:
            continue
        for name, value in vars(kind).items():
            value = getattr(value, "__func__", value)
            if name[0] != "_" and (inspect.isfunction(value) or isinstance(value, property)):
                yield f"{kind.__name__}.{name}", value


MEMBERS = dict(members())


@pytest.mark.parametrize("name", MEMBERS)
def test_it_says_what_it_does_and_takes(name: str) -> None:
    text = MEMBERS[name].__doc__
    assert text
    if name in FIELDS_ELSEWHERE or name.partition(".")[0] == "SyncBridge":
        return
    given = parameters(MEMBERS[name])
    if name in ("Bridge.publish", "publish", "consumer", "configure"):
        given = set()  # those of NewEvent, or of the method of the same name
    if inspect.isclass(MEMBERS[name]) and "__init__" in vars(MEMBERS[name]):
        text += MEMBERS[name].__init__.__doc__ or ""
    missing = {each for each in given if f"`{each}`" not in text}
    assert not missing


@pytest.mark.parametrize(
    "name",
    [
        name for name, found in MEMBERS.items()
        if not isinstance(found, property) and name not in FIELDS_ELSEWHERE
        and not (inspect.isclass(found) and issubclass(found, Exception)
                 and found.__module__.endswith("errors"))
    ],
)  # fmt: skip
def test_it_has_an_example_that_is_python(name: str) -> None:
    found = examples(MEMBERS[name].__doc__ or "")
    assert found
    for example in found:
        compile(example, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
