"""Routes by templates of paths, and the OpenAPI document that is made of them.

    @router.route("GET", "/api/v1/namespaces/{namespace}/queues", gives=QueuesForm)
    async def list_queues(call: Call, namespace: Name, limit: Limit = 100) -> Answer:
        '''The docstring is what the document says of it.'''

A parameter that the template names is taken from the path, any other from the query. Types are
msgspec's: what they say is checked, and is what the document says.
"""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, get_type_hints

import msgspec

from posthouse.core.errors import InvalidArgument
from posthouse.server.expected import expectation
from posthouse.server.http import Answer, name_in
from posthouse.server.problems import HttpProblem
from posthouse.server.shapes import Problem

C = TypeVar("C")
Handler: TypeAlias = Callable[..., Awaitable[Answer]]
Json: TypeAlias = dict[str, Any]
_NOTHING = "There is nothing here; /docs tells what there is."
_SCHEMAS = "#/components/schemas/{name}"


class Parameter(NamedTuple):
    name: str
    kind: Any  # a type, with what it must be like
    in_path: bool
    default: Any = inspect.Parameter.empty

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty

    def read(self, text: str) -> Any:
        """Raises InvalidArgument."""
        try:
            return msgspec.convert(text, self.kind, strict=False)
        except msgspec.ValidationError:
            raise InvalidArgument(self.name, expectation(self.kind, self.name)) from None


class Operation(NamedTuple):
    """One method of one path, as the document has it."""

    path: str
    method: str
    name: str
    text: str
    parameters: tuple[Parameter, ...]
    takes: type | None = None
    gives: type | None = None
    status: int = 200
    media_type: str = "application/json"  # of the answer


class _Node:
    """A part of a path: what may follow it, and who answers a path that ends here."""

    __slots__ = ("methods", "named", "others")

    def __init__(self) -> None:
        self.named: dict[bytes, _Node] = {}
        self.others: _Node | None = None  # whatever the part is: it is a parameter
        self.methods: dict[str, tuple[Handler, tuple[Parameter, ...]]] = {}


class Router(Generic[C]):
    def __init__(self) -> None:
        self._root = _Node()
        self.operations: list[Operation] = []

    def route(
        self,
        method: str,
        path: str,
        takes: type | None = None,
        gives: type | None = None,
        status: int = 200,
    ) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            text = (inspect.getdoc(handler) or "").partition("\n")[0]
            parameters = _parameters(handler, path)
            self.operations.append(
                Operation(path, method, handler.__name__, text, parameters, takes, gives, status)
            )
            node = self._root
            for part in path.split("/")[1:]:
                if part.startswith("{"):
                    node.others = node.others or _Node()
                    node = node.others
                else:
                    node = node.named.setdefault(part.encode(), _Node())
            node.methods[method] = handler, parameters
            return handler

        return add

    def call(
        self, call: C, method: str, parts: Sequence[bytes], query: dict[str, str]
    ) -> Awaitable[Answer]:
        """Raises HttpProblem where there is no such route, or InvalidArgument."""
        node, taken = self._root, []
        for part in parts:
            following = node.named.get(part)
            if following is None:
                following = node.others if part else None
                taken.append(part)
            if following is None:
                raise HttpProblem(404, "not-found", _NOTHING)
            node = following
        if not node.methods:
            raise HttpProblem(404, "not-found", _NOTHING)
        if method not in node.methods:
            allowed = ", ".join(sorted(node.methods))
            raise HttpProblem(
                405, "method-not-allowed", f"This takes {allowed}; /docs tells what there is."
            )
        handler, parameters = node.methods[method]
        given: Json = {}
        for parameter in parameters:
            if parameter.in_path:
                given[parameter.name] = parameter.read(name_in(taken[len(given)]))
            elif parameter.name in query:
                given[parameter.name] = parameter.read(query[parameter.name])
        return handler(call, **given)

    # The document.

    def document(self, title: str, text: str, more: Sequence[Operation] = ()) -> Json:
        """The OpenAPI 3.1 document of these routes, and of others that are served elsewhere."""
        paths: dict[str, Json] = {}
        kinds: set[type] = {Problem}
        for each in (*self.operations, *more):
            paths.setdefault(each.path, {})[each.method.lower()] = _described(each)
            kinds |= {kind for kind in (each.takes, each.gives) if kind is not None}
        ordered = sorted(kinds, key=lambda kind: kind.__name__)
        _, schemas = msgspec.json.schema_components(ordered, ref_template=_SCHEMAS)
        return {
            "openapi": "3.1.0",
            "info": {"title": title, "version": "1", "description": text},
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
            },
            "security": [{"basic": []}],
        }


def _parameters(handler: Handler, path: str) -> tuple[Parameter, ...]:
    """The parameters but for the first, which is the call; those of the path first, in order."""
    kinds = get_type_hints(handler, include_extras=True)
    given = list(inspect.signature(handler).parameters.values())[1:]
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    found = [Parameter(p.name, kinds[p.name], p.name in names, p.default) for p in given]
    in_path = [each for each in found if each.in_path]
    assert [each.name for each in in_path] == names, handler
    return (*in_path, *(each for each in found if not each.in_path))


def _described(operation: Operation) -> Json:
    content = None if operation.gives is None else {"schema": _reference(operation.gives)}
    if operation.media_type != "application/json":
        content = {}
    told: Json = {
        "summary": operation.text,
        "operationId": operation.name,
        "parameters": [
            {
                "name": each.name,
                "in": "path" if each.in_path else "query",
                "required": each.is_required,
                "schema": msgspec.json.schema(each.kind),
            }
            for each in operation.parameters
        ],
        "responses": {
            str(operation.status): {"description": "Done"}
            if content is None
            else {"description": "As asked", "content": {operation.media_type: content}},
            "default": {
                "description": "It was refused",
                "content": {"application/problem+json": {"schema": _reference(Problem)}},
            },
        },
    }
    if operation.takes is not None:
        taken = {"application/json": {"schema": _reference(operation.takes)}}
        told["requestBody"] = {"required": True, "content": taken}
    return told


def _reference(form: type) -> Json:
    return {"$ref": _SCHEMAS.format(name=form.__name__)}
