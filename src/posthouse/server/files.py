"""Small files that hold secrets: 0600 from their first moment, and there whole or not at all."""

import contextlib
import os
import secrets
from pathlib import Path


def keep_secret(path: Path, content: bytes, *, replace: bool = True) -> None:
    """Writes a file that only its owner may read, durably. Raises FileExistsError, or OSError."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(file, "wb") as writing:
            writing.write(content)
            writing.flush()
            os.fsync(writing.fileno())
        if replace:
            unfinished.rename(path)
        else:
            os.link(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_secret(path: Path, make: bytes) -> bytes:
    """Reads a secret from a file; where there is none, writes `make` to it first.

    Processes that do so at the same time get the same secret. An empty file is not taken for a
    secret. Raises OSError.
    """
    if not path.exists():
        with contextlib.suppress(FileExistsError):
            keep_secret(path, make, replace=False)
    content = path.read_bytes()
    if not content.strip():
        raise OSError(f"{path} is empty; put the key back, or remove the file to make a new one.")
    return content
