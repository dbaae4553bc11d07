"""The name of a worker or a bridge at the command line: MODULE:NAME."""

import importlib
import sys
from pathlib import Path
from typing import TypeVar

from posthouse.cli.codes import NOT_FOUND, USAGE

T = TypeVar("T")


class Missing(Exception):
    """The named object cannot be used; the text says why, `code` is the exit code."""

    def __init__(self, text: str, code: int = NOT_FOUND) -> None:
        super().__init__(text)
        self.code = code


def split(target: str, default: str = "app") -> tuple[str, str]:
    """Raises Missing."""
    module, colon, name = target.partition(":")
    words = [*module.split("."), name or default]
    if not all(map(str.isidentifier, words)) or (colon and not name):
        raise Missing(f"{target} must be MODULE:NAME, as in shop.orders:{default}.", USAGE)
    return module, name or default


def find(target: str, kind: type[T], title: str, default: str = "app") -> T:
    """Returns the object of a class that a target names; `title` is what users call the class.

    Raises Missing. What goes wrong inside of the module is its own, and is raised as it is.
    """
    module_name, name = split(target, default)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise Missing(
            f"There is no module {error.name}; it was looked for in {here} too."
        ) from error
    found = getattr(module, name, None)
    if isinstance(found, kind):
        return found
    there = [each for each, value in vars(module).items() if isinstance(value, kind)]
    advice = f" There is {module_name}:{there[0]}." if there else ""
    if found is None:
        raise Missing(f"There is no {name} in {module_name}.{advice}")
    raise Missing(f"{target} is no {title} but {type(found).__name__}.{advice}", USAGE)
