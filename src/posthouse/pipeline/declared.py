"""A pipeline of one's own, declared in YAML: sources, steps in SQL, sinks.

It is checked as a whole before anything starts; every mistake is told with its line.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from posthouse.pipeline.wire import PosthouseError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
FORMATS = ("parquet", "json", "csv")
MODES = ("append", "update", "complete")
_WHOLE = ("name", "checkpoint", "trigger", "sources", "steps", "sinks")
_SOURCE = ("queue", "topic", "lake", "files")  # one of them
_OF_BROKER = ("view", "body", "schema", "kinds", "from", "columns", "rows", "reader", "namespace")
_SINK = ("queue", "topic", "lake", "files", "console")


class Wrong(PosthouseError):
    """An error in a file, and its place."""


@dataclass(frozen=True)
class Source:
    name: str
    kind: str
    where: str
    said: Mapping[str, str]  # other fields, by their names in the file
    watermark: tuple[str, str] | None
    line: int


@dataclass(frozen=True)
class Step:
    name: str
    sql: str
    line: int


@dataclass(frozen=True)
class Sink:
    name: str
    source: str  # the step, or the source, whose rows go there
    kind: str
    where: str
    said: Mapping[str, str]
    mode: str
    line: int


@dataclass(frozen=True)
class Declared:
    name: str
    checkpoint: str | None
    trigger: str  # how often, as Spark says it
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    sinks: tuple[Sink, ...] = field(default=())


def load(path: str) -> Declared:
    """Raises Wrong."""
    try:
        with open(path) as file:  # noqa: PTH123
            root = yaml.compose(file)
    except OSError as error:
        raise Wrong(f"{path} cannot be read: {error.strerror}.") from None
    except yaml.MarkedYAMLError as error:
        line = 0 if error.problem_mark is None else error.problem_mark.line + 1
        raise Wrong(f"{path}, line {line}: it is not YAML: {error.problem}.") from None
    if root is None:
        raise Wrong(f"{path} is empty.")
    return _File(path).whole(root)


class _File:
    """Reads what is in a file, with an eye on the lines."""

    def __init__(self, path: str) -> None:
        self._path = path

    def wrong(self, node: Any, text: str) -> Wrong:
        return Wrong(f"{self._path}, line {node.start_mark.line + 1}: {text}")

    def whole(self, root: Any) -> Declared:
        parts = self._map(root, "A pipeline", _WHOLE)
        for name in ("sources", "sinks"):
            if name not in parts:
                raise self.wrong(root, f"There are no {name}.")
        sources = tuple(self._source(*each) for each in self._named(parts["sources"], "sources"))
        steps: tuple[Step, ...] = ()
        if "steps" in parts:
            pairs = self._named(parts["steps"], "steps")
            steps = tuple(Step(n, self._text(v), self._line(v)) for n, v in pairs)
        known = [*(each.name for each in sources), *(each.name for each in steps)]
        twice = next((each for each in known if known.count(each) > 1), None)
        if twice is not None:
            raise self.wrong(parts["steps"], f"There are two of the name {twice!r}.")
        if not isinstance(parts["sinks"], yaml.SequenceNode) or not parts["sinks"].value:
            raise self.wrong(parts["sinks"], "The sinks are a list, each beginning with a dash.")
        sinks = tuple(
            self._sink(at, node, known) for at, node in enumerate(parts["sinks"].value, 1)
        )
        names = [each.name for each in sinks]
        for sink in sinks:
            if names.count(sink.name) > 1:
                raise Wrong(
                    f"{self._path}, line {sink.line}: There are two sinks {sink.name!r}; give"
                    " them names."
                )
        text = {n: self._text(parts[n]) for n in ("name", "checkpoint", "trigger") if n in parts}
        return Declared(
            text.get("name", "pipeline"), text.get("checkpoint"), text.get("trigger", "10 seconds"),
            sources, steps, sinks,
        )  # fmt: skip

    def _source(self, name: str, node: Any) -> Source:
        parts = self._map(
            node, f"The source {name}", (*_SOURCE, *_OF_BROKER, "watermark", "format")
        )
        kind, where = self._one(node, parts, f"The source {name}", _SOURCE)
        of: dict[str, Sequence[str]] = {"lake": ("view",), "files": ("format", "schema")}
        allowed = of.get(kind, _OF_BROKER)
        said = self._rest(parts, f"a source of {kind}", allowed, (kind, "watermark"))
        if "format" in said:
            self._among(parts["format"], FORMATS)
        if "view" in said:
            self._among(parts["view"], ("messages", "events"))
        watermark = None
        if "watermark" in parts:
            found = self._map(parts["watermark"], "A watermark", ("column", "delay"))
            if len(found) < 2:
                raise self.wrong(parts["watermark"], "A watermark has a column and a delay.")
            watermark = self._text(found["column"]), self._text(found["delay"])
        return Source(name, kind, where, said, watermark, self._line(node))

    def _sink(self, at: int, node: Any, known: Sequence[str]) -> Sink:
        names = ("from", "name", "mode", "once", "atomic", "namespace", "format", *_SINK)
        parts = self._map(node, "A sink", names)
        if "from" not in parts:
            raise self.wrong(node, "A sink says from which step or source its rows come: from.")
        source = self._among(parts["from"], known)
        kind, where = self._one(node, parts, "A sink", _SINK)
        of_queues = ("once", "atomic", "namespace")
        allowed = {"queue": of_queues, "topic": of_queues, "files": ("format",)}.get(kind, ())
        said = self._rest(parts, f"a sink of {kind}", allowed, (kind, "from", "name", "mode"))
        if "format" in said:
            self._among(parts["format"], FORMATS)
        mode = self._among(parts["mode"], MODES) if "mode" in parts else "append"
        name = self._text(parts["name"]) if "name" in parts else f"{source}-{kind}"
        return Sink(name, source, kind, where, said, mode, self._line(node))

    # Nodes.

    def _line(self, node: Any) -> int:
        return int(node.start_mark.line) + 1

    def _map(self, node: Any, what: str, known: Sequence[str]) -> dict[str, Any]:
        if not isinstance(node, yaml.MappingNode):
            raise self.wrong(node, f"{what} is made of names and values.")
        found: dict[str, Any] = {}
        for key, value in node.value:
            if key.value not in known:
                raise self.wrong(
                    key, f"{what} has no {key.value!r}; it has {', '.join(dict.fromkeys(known))}."
                )
            if key.value in found:
                raise self.wrong(key, f"{what} has {key.value!r} twice.")
            found[key.value] = value
        return found

    def _named(self, node: Any, what: str) -> list[tuple[str, Any]]:
        if not isinstance(node, yaml.MappingNode) or not node.value:
            raise self.wrong(node, f"The {what} are names, and what each is.")
        for key, _ in node.value:
            if not isinstance(key.value, str) or not _NAME.fullmatch(key.value):
                raise self.wrong(key, f"{key.value!r} cannot be a name in SQL.")
        return [(key.value, value) for key, value in node.value]

    def _one(
        self, node: Any, parts: dict[str, Any], what: str, kinds: Sequence[str]
    ) -> tuple[str, str]:
        given = [each for each in kinds if each in parts]
        if len(given) != 1:
            raise self.wrong(node, f"{what} is one of {', '.join(kinds)}.")
        return given[0], self._text(parts[given[0]])

    def _rest(
        self, parts: dict[str, Any], what: str, allowed: Sequence[str], done: Sequence[str]
    ) -> dict[str, str]:
        for name, node in parts.items():
            if name not in allowed and name not in done:
                raise self.wrong(node, f"There is no {name!r} of {what}.")
        return {name: self._text(parts[name]) for name in allowed if name in parts}

    def _among(self, node: Any, known: Sequence[str]) -> str:
        text = self._text(node)
        if text not in known:
            raise self.wrong(node, f"{text!r} is none of {', '.join(known)}.")
        return text

    def _text(self, node: Any) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self.wrong(node, "A single value belongs here.")

        def variable(found: re.Match[str]) -> str:
            value = os.environ.get(found[1])
            if value is None:
                raise self.wrong(node, f"The variable {found[1]} is not set.")
            return value

        return _VARIABLE.sub(variable, str(node.value))
