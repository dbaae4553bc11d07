"""AMQP's types in Python (1.6).

What Python has is itself: None, bool, float (double), str, bytes, list, dict, UUID, and int, which
is a long. The rest has classes of its own, so that what was read can be written as it was.
"""

from typing import Any, NamedTuple, TypeAlias


class Symbol(str):
    __slots__ = ()


class Char(str):
    __slots__ = ()


class UByte(int):
    __slots__ = ()


class UShort(int):
    __slots__ = ()


class UInt(int):
    __slots__ = ()


class ULong(int):
    __slots__ = ()


class Byte(int):
    __slots__ = ()


class Short(int):
    __slots__ = ()


class Int(int):
    __slots__ = ()


class Long(int):
    """A long in a performative's fields, where a plain int stands for an unsigned number."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since 1970."""

    __slots__ = ()


class Float(float):
    """A number of single precision."""

    __slots__ = ()


class Decimal(NamedTuple):
    """A decimal number, which is only passed on: its constructor and its bytes."""

    code: int
    data: bytes


class Described(NamedTuple):
    descriptor: Any
    value: Any


class Array(list[Any]):
    """Values of one type, which is the constructor's code."""

    __slots__ = ("code",)

    def __init__(self, code: int, values: Any = ()) -> None:
        super().__init__(values)
        self.code = code


Value: TypeAlias = Any  # one of the above


class Malformed(Exception):
    """The other side has broken the protocol. `condition` says how, in AMQP's words."""

    def __init__(self, text: str, condition: str = "amqp:decode-error") -> None:
        super().__init__(text)
        self.condition = condition
