"""XML, as little of it as Atom needs: elements, attributes, text. No DTD, no entities, bounded."""

import re
from collections.abc import Iterator
from typing import TypeAlias
from xml.parsers import expat

BYTES_MAX = 256 << 10
_DEPTH_MAX = 24
_ELEMENTS_MAX = 4_000
_CHARS_MAX = 100  # of what is shown of a name
_IN_TEXT = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_IN_VALUE = {
    **_IN_TEXT,
    **str.maketrans({'"': "&quot;", "\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}),
}


class Node:
    """An element by its local name; namespaces are told apart by nobody who writes to us."""

    __slots__ = ("attributes", "children", "name", "text")

    def __init__(self, name: str, attributes: dict[str, str]) -> None:
        self.name = name
        self.attributes = attributes
        self.children: list[Node] = []
        self.text = ""

    def child(self, name: str) -> "Node | None":
        return next((each for each in self.children if each.name == name), None)

    def find(self, name: str) -> "Node | None":
        """Itself, or one below it, whichever is first."""
        if self.name == name:
            return self
        found = (each.find(name) for each in self.children)
        return next((each for each in found if each is not None), None)

    def text_of(self, name: str) -> str | None:
        """Returns the text of a child; None where there is none, or it is nil."""
        found = self.child(name)
        if found is None or found.attributes.get("nil") == "true":
            return None
        return found.text.strip()


def read(data: bytes) -> Node:
    """Raises ValueError, which says what is wrong."""
    if len(data) > BYTES_MAX:
        raise ValueError(f"a document has at most {BYTES_MAX} bytes")
    builder = _Builder()
    parser = expat.ParserCreate("UTF-8", " ")  # whatever it says of itself
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = builder.refuse
    parser.EntityDeclHandler = builder.refuse
    parser.ProcessingInstructionHandler = builder.refuse
    parser.buffer_text = True
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise ValueError(f"the document is not XML: {error}") from None
    root = builder.root
    assert root is not None  # a document without one is not XML
    return root


class _Builder:
    def __init__(self) -> None:
        self.root: Node | None = None
        self._open: list[tuple[Node, list[str]]] = []  # with the pieces of their texts
        self._elements = 0

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._elements += 1
        if len(self._open) >= _DEPTH_MAX or self._elements > _ELEMENTS_MAX:
            raise ValueError("the document has too many elements, or too many within each other")
        local = {key.rpartition(" ")[2]: value for key, value in attributes.items()}
        node = Node(name.rpartition(" ")[2], local)
        if self._open:
            self._open[-1][0].children.append(node)
        else:
            self.root = node
        self._open.append((node, []))

    def end(self, _: str) -> None:
        node, pieces = self._open.pop()
        node.text = "".join(pieces)

    def data(self, text: str) -> None:
        self._open[-1][1].append(text)

    def refuse(self, *_: object) -> None:
        raise ValueError("the document must have no DTD, entities or processing instructions")


# Writing. What is written is text already escaped.

Content: TypeAlias = str | Iterator[str] | list[str] | None


def element(name: str, content: Content = None, **attributes: str) -> str:
    """`type_` is written as `type`, `i_type` as `i:type`, `xmlns_i` as `xmlns:i`."""
    said = "".join(
        f' {_called(key)}="{_sayable(value).translate(_IN_VALUE)}"'
        for key, value in attributes.items()
    )
    inner = content if isinstance(content, str) else "".join(content or ())
    return f"<{name}{said}>{inner}</{name}>" if inner else f"<{name}{said}/>"


def _called(key: str) -> str:
    return key.rstrip("_").replace("_", ":")


def text(name: str, value: object, **attributes: str) -> str:
    """An element that says something."""
    said = str(value).lower() if isinstance(value, bool) else str(value)
    return element(name, _sayable(said).translate(_IN_TEXT), **attributes)


def _sayable(said: str) -> str:
    """Without what XML has no way to say (2.2)."""
    return _UNSAYABLE.sub("", said)


_UNSAYABLE = re.compile(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
