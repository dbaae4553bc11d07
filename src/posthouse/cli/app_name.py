"""The name of a worker at the command line: MODULE:NAME."""

from posthouse.cli.codes import NOT_FOUND, USAGE


class Missing(Exception):
    """The named worker cannot be run; the text says why, `code` is the exit code."""

    def __init__(self, text: str, code: int = NOT_FOUND) -> None:
        super().__init__(text)
        self.code = code


def split(target: str) -> tuple[str, str]:
    """Raises Missing."""
    module, colon, name = target.partition(":")
    words = [*module.split("."), name or "app"]
    if not all(map(str.isidentifier, words)) or (colon and not name):
        raise Missing(f"{target} must be MODULE:NAME, as in shop.orders:app.", USAGE)
    return module, name or "app"
