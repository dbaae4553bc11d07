"""Keys as configurations hold them: whoever shows, copies or logs one sees that there is a key."""

from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class Secret(Generic[T]):
    """A key that is not shown: printing and logging show ***, and it cannot be pickled.

    `value` is the key.

    Example:
        config = PosthouseConfig(key=Secret("key"))
    """

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def open(self) -> T:
        """Returns the key.

        Example:
            assert Secret("key").open() == "key"
        """
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return "Secret('***')" if self else "Secret('')"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and bool(self._value == other._value)

    def __hash__(self) -> int:
        return hash(self._value)

    def __deepcopy__(self, memo: object) -> "Secret[T]":
        return self  # as `asdict` wants it

    def __reduce__(self) -> Any:
        if not self:
            return Secret, (self._value,)
        raise TypeError("A secret cannot be pickled; make the configuration where it is used.")


def reveal(value: "T | Secret[T]") -> T:
    return cast(T, value.open() if isinstance(value, Secret) else value)
