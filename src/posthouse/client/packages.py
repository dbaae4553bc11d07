"""Packages of others, which are wanted only by those who use them."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from posthouse.client.errors import ConfigurationError


@cache  # what is installed is looked for on the disk
def require(extra: str, package: str, oldest: tuple[int, int]) -> None:
    """Raises ConfigurationError where it is missing, or older than what is tested."""
    advice = f"pip install 'posthouse[{extra}]'"
    try:
        found = version(package)
    except PackageNotFoundError:
        raise ConfigurationError("provider", f"needs {package}: {advice}") from None
    parts = [int(part) if part.isdigit() else 0 for part in found.split(".")[:2]]
    if tuple(parts) < oldest:
        wanted = ".".join(map(str, oldest))
        raise ConfigurationError(
            "provider", f"needs {package} {wanted} or newer, and {found} is there: {advice}"
        )
