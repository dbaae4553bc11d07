"""Programs go by classes, codes and fields; the text of an error is for people.

No code decides anything by the words of an error. Where a foreign library offers nothing else, the
function that reads its text is named here, with the reason.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import posthouse

SOURCES = Path(posthouse.__file__).parent

READERS = {
    "bridge/jetstream/connection.py: _dial": "nats-py tells in its text alone who is not let in",
    "client/azure_words.py: _wait_told": "Azure's exception has no field for how long to wait",
    "pipeline/failures.py: sentence_in": "Spark gives an exception of a task as a traceback",
    "pipeline/failures.py: sentence_of": "Spark has its sentence among codes, plans and traces",
    "server/expected.py: sentence": "msgspec tells in its text alone which field is meant",
}

_ERRORS = ("Error", "Exception", "Refused", "Refusal", "Failure", "Failed", "Problem", "Wrong")
_TEXTS = frozenset(("args", "text", "detail", "description", "message", "strerror", "__notes__"))
_LOOKS = frozenset((
    "startswith", "endswith", "find", "rfind", "index", "rindex", "count", "isdigit", "isdecimal",
))  # fmt: skip
_SEARCHES = frozenset(("search", "match", "fullmatch", "findall", "finditer"))
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def _is_error_type(note: ast.expr | None) -> bool:
    """Whether an annotation names a class of errors."""
    if note is None:
        return False
    names = [each.id for each in ast.walk(note) if isinstance(each, ast.Name)]
    return any(name.endswith(_ERRORS) for name in names)


def _bindings(node: ast.AST) -> list[tuple[ast.expr, ast.expr | None]]:
    """What a node binds, and to what, or to the parts of what."""
    match node:
        case ast.Assign(targets=targets, value=value):
            return [(each, value) for each in targets]
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            return [(target, value)]
        case ast.NamedExpr(target=target, value=value) | ast.AnnAssign(target=target, value=value):
            return [(target, value)]
        case _:
            return []


class _Texts:
    """Which expressions of one function are errors, and which are texts of errors."""

    def __init__(self, function: ast.AST) -> None:
        self._nodes = list(ast.walk(function))
        self._errors = set(self._bound_errors())
        self._texts: set[str] = set()
        while len(self._texts) < len(found := set(self._bound_texts())):  # a text of a text is one
            self._texts = found

    def _bound_errors(self) -> Iterator[str]:
        for node in self._nodes:
            if isinstance(node, ast.ExceptHandler) and node.name is not None:
                yield node.name
            elif isinstance(node, ast.arg) and _is_error_type(node.annotation):
                yield node.arg

    def _bound_texts(self) -> Iterator[str]:
        yield from self._texts
        for node in self._nodes:
            for bound, value in _bindings(node):
                if self.is_text(value):
                    yield from (each.id for each in ast.walk(bound) if isinstance(each, ast.Name))

    def _is_error(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id in self._errors

    def is_text(self, node: ast.AST | None) -> bool:
        match node:
            case ast.Name(id=name):
                return name in self._texts
            case ast.Attribute(value=value, attr=attribute):
                return attribute in _TEXTS and self._is_error(value)
            case ast.Call(func=ast.Name(id="str" | "repr"), args=[given, *_]):
                return self._is_error(given) or self.is_text(given)
            case ast.Call(func=ast.Attribute(value=value)):  # a part of it, or in another form
                return self.is_text(value)
            case ast.Call(func=ast.Name(id="reversed" | "sorted" | "list"), args=[given]):
                return self.is_text(given)
            case ast.Subscript(value=value):
                return self.is_text(value)
            case ast.JoinedStr(values=values):
                shown = [each.value for each in values if isinstance(each, ast.FormattedValue)]
                return any(self._is_error(each) or self.is_text(each) for each in shown)
            case _:
                return False

    def are_looked_into(self) -> bool:
        return any(self._looks(node) for node in self._nodes)

    def _looks(self, node: ast.AST) -> bool:
        match node:
            case ast.Compare(left=left, ops=ops, comparators=others):
                decides = any(isinstance(op, ast.In | ast.NotIn | ast.Eq | ast.NotEq) for op in ops)
                return decides and any(self.is_text(each) for each in (left, *others))
            case ast.Call(func=ast.Attribute(value=value, attr=method), args=args):
                searched = method in _SEARCHES and any(self.is_text(each) for each in args)
                return searched or (method in _LOOKS and self.is_text(value))
            case ast.Match(subject=subject):
                return self.is_text(subject)
            case _:
                return False


def readers_in(source: str) -> set[str]:
    """The functions that decide something by the words of an error."""
    tree = ast.parse(source)
    functions = [each for each in ast.walk(tree) if isinstance(each, _Function)]
    found = [each for each in functions if _Texts(each).are_looked_into()]
    return {getattr(each, "name", "a lambda") for each in found}


def test_no_code_decides_by_the_words_of_an_error() -> None:
    found = {
        f"{path.relative_to(SOURCES)}: {name}"
        for path in SOURCES.rglob("*.py")
        for name in readers_in(path.read_text())
    }
    assert found == set(READERS)


@pytest.mark.parametrize(
    "body",
    [
        "    return 'not found' in str(error)",
        "    return str(error).endswith(' not found')",
        "    return str(error).lower().startswith('no')",
        "    return f'{error}' == 'gone'",
        "    return error.args[0] == 'gone'",
        "    return PATTERN.search(str(error))",
        "    return re.match('gone', error.text)",
        "    text = str(error)\n    words = text.split()\n    return 'gone' in words",
        "    return [line for line in str(error).splitlines() if 'gone' in line]",
        "    text = error.text\n    return [int(each) for each in text.split() if each.isdigit()]",
        "    match str(error):\n        case 'gone':\n            return 1",
    ],
)
def test_a_look_into_the_text_of_an_error_is_found(body: str) -> None:
    assert readers_in(f"def told(error: BaseException) -> None:\n{body}\n") == {"told"}
    indented = body.replace("\n    ", "\n        ").replace("    ", "        ", 1)
    handler = f"def told():\n    try:\n        ask()\n    except OSError as error:\n{indented}\n"
    assert readers_in(handler) == {"told"}


@pytest.mark.parametrize(
    "body",
    [
        "    return str(error)",
        "    return str(error).splitlines()[0].rstrip('.')",
        "    return error.code == 'not-found'",
        "    return isinstance(error, KeyError) and 'x' in names",
        "    return error.errno in (1, 2)",
    ],
)
def test_telling_a_text_and_going_by_fields_is_no_such_look(body: str) -> None:
    assert readers_in(f"def told(error: OSError) -> None:\n{body}\n") == set()
