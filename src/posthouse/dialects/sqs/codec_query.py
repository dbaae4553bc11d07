"""The Query protocol: forms whose lists and maps are numbered, and answers in XML.

    SendMessageBatchRequestEntry.2.MessageAttribute.1.Value.StringValue=blue

is read as a tree whose branches are the parts of the name. A list of one may come without its
number, and numbers may have gaps.
"""

from base64 import b64encode
from collections.abc import Hashable, Iterable, Mapping
from functools import cache
from typing import Any, TypeAlias
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import inspect

from posthouse.dialects.http import Answer, Header
from posthouse.dialects.sqs.errors import MALFORMED, NO_QUEUE, VALUE, Failed, wsdl_text
from posthouse.dialects.sqs.shapes import ELEMENTS, Element, Shape

PARAMETERS_MAX = 1_000  # ten messages with ten attributes are 490
PARTS_MAX = 8  # of a parameter's name
NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
XML = (b"content-type", b"text/xml")
_BEGIN = '<?xml version="1.0"?>'

# A name's further parts; what it is itself is under "".
Tree: TypeAlias = dict[str, Any]


# Reading.


def parameters(form: bytes) -> dict[str, str]:
    """The parameters of a form, decoded. Raises Failed."""
    if form.count(b"&") >= PARAMETERS_MAX:
        raise Failed(MALFORMED, f"A request has at most {PARAMETERS_MAX} parameters.")
    found: dict[str, str] = {}
    try:
        for pair in form.split(b"&"):
            name, _, value = pair.partition(b"=")
            if name:
                found[_decoded(name)] = _decoded(value)
    except UnicodeDecodeError:
        raise Failed(MALFORMED, "The parameters must be UTF-8, percent-encoded.") from None
    return found


def _decoded(text: bytes) -> str:
    """Raises UnicodeDecodeError."""
    if b"+" in text:
        text = text.replace(b"+", b" ")
    return (unquote_to_bytes(text) if b"%" in text else text).decode()


def decode(given: Mapping[str, str], kind: type[Shape]) -> Shape:
    """Raises Failed."""
    tree: Tree = {}
    for name, value in given.items():
        parts = name.split(".", PARTS_MAX)
        if len(parts) > PARTS_MAX:
            raise Failed(MALFORMED, f"A parameter's name has at most {PARTS_MAX} parts.")
        if "" in parts:
            continue  # it is none that any action has
        branch = tree
        for part in parts:
            branch = branch.setdefault(part, {})
        branch[""] = value
    try:
        made: Shape = msgspec.convert(_structure(tree, kind), kind, strict=False)
    except msgspec.ValidationError as error:
        raise Failed(VALUE, f"A parameter is invalid: {error}.") from None
    return made


@cache
def _fields(kind: Hashable) -> tuple[tuple[str, Any], ...]:
    """The members of a structure, with their types."""
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return tuple((each.encode_name, _plain(each.type)) for each in found.fields)


def _plain(kind: Any) -> Any:
    """A type without its None."""
    if isinstance(kind, inspect.UnionType):
        [kind] = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
    return kind


def _structure(tree: Tree, kind: Hashable) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, member in _fields(kind):
        branch = tree.get(_element(name, member).name)
        if branch is not None:
            value = _value(name, member, branch)
            if value is not None:
                found[name] = value
    return found


def _element(name: str, member: Any) -> Element:
    """The name under which a member comes."""
    if isinstance(member, inspect.ListType) and isinstance(member.item_type, inspect.StructType):
        return Element(member.item_type.cls.__name__)
    if isinstance(member, inspect.ListType | inspect.DictType):
        return ELEMENTS[name]
    return Element(name)


def _value(name: str, member: Any, branch: Tree) -> Any:
    if isinstance(member, inspect.ListType):
        return [_one(member.item_type, each) for each in _items(branch)]
    if isinstance(member, inspect.DictType):
        element = ELEMENTS[name]
        return {
            each.get(element.key, {}).get("", ""): _one(
                member.value_type, each.get(element.value, {})
            )
            for each in _items(branch)
        }
    return _one(member, branch)


def _one(kind: Any, branch: Tree) -> Any:
    if isinstance(kind, inspect.StructType):
        return _structure(branch, kind.cls)
    return branch.get("")


def _items(branch: Tree) -> list[Tree]:
    """The numbered branches in their order; else the branch itself is the only item."""
    numbered = [(int(part), each) for part, each in branch.items() if _is_number(part)]
    if not numbered:
        return [branch]
    return [each for _, each in sorted(numbered, key=lambda each: each[0])]


def _is_number(part: str) -> bool:
    return part.isascii() and part.isdigit() and len(part) <= 9


# Writing.

_ESCAPES = str.maketrans({
    "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\r": "&#xD;",
})  # fmt: skip


def _text(value: object) -> str:
    if isinstance(value, str):
        return value.translate(_ESCAPES)
    if isinstance(value, bool):
        return "true" if value else "false"
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _written(name: str, value: object) -> Iterable[str]:
    if isinstance(value, Shape):
        yield f"<{name}>"
        yield from _members(value)
        yield f"</{name}>"
    else:
        yield f"<{name}>{_text(value)}</{name}>"


def _members(told: Shape) -> Iterable[str]:
    for name, _ in _fields(type(told)):
        value = getattr(told, _attributes(type(told))[name])
        if value is None:
            continue
        if isinstance(value, dict):
            element = ELEMENTS[name]
            for key, each in value.items():
                yield f"<{element.name}>"
                yield from _written(element.key, key)
                yield from _written(element.value, each)
                yield f"</{element.name}>"
        elif isinstance(value, list):
            for each in value:
                is_shape = isinstance(each, Shape)
                yield from _written(type(each).__name__ if is_shape else ELEMENTS[name].name, each)
        else:
            yield from _written(name, value)


@cache
def _attributes(kind: type[Shape]) -> dict[str, str]:
    """The attributes of a class by the names of the members."""
    return dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))


def answer(action: str, told: Shape | None, id: str, headers: tuple[Header, ...]) -> Answer:
    result = ""
    if told is not None:
        inner = "".join(_members(told))
        name = f"{action}Result"
        result = f"<{name}>{inner}</{name}>" if inner else f"<{name}/>"
    text = (
        f'{_BEGIN}<{action}Response xmlns="{NAMESPACE}">{result}'
        f"<ResponseMetadata><RequestId>{id}</RequestId></ResponseMetadata></{action}Response>"
    )
    return Answer(text.encode(), 200, (XML, *headers))


def error(failed: Failed, id: str, headers: tuple[Header, ...]) -> Answer:
    kind = failed.kind
    text = wsdl_text(failed.text) if kind is NO_QUEUE else failed.text
    body = (
        f'{_BEGIN}<ErrorResponse xmlns="{NAMESPACE}"><Error><Type>{kind.fault}</Type>'
        f"<Code>{kind.code}</Code><Message>{_safe(text)}</Message><Detail/></Error>"
        f"<RequestId>{id}</RequestId></ErrorResponse>"
    )
    return Answer(body.encode(), kind.status, (XML, *headers))


def _safe(text: str) -> str:
    """A text that may repeat what a client said: what XML cannot have becomes a question mark."""
    return "".join(each if each.isprintable() else "?" for each in text).translate(_ESCAPES)
