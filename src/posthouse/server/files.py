"""Small files that hold secrets: 0600 from their first moment, and there whole or not at all."""

import os
import secrets
from pathlib import Path


def keep_secret(path: Path, content: bytes) -> None:
    """Writes a file that only its owner may read, durably."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(file, "wb") as writing:
            writing.write(content)
            writing.flush()
            os.fsync(writing.fileno())
        unfinished.rename(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_secret(path: Path, make: bytes) -> tuple[bytes, bool]:
    """What the file holds, or `make`, which it holds from now on; whether it was made.

    Raises OSError. An empty one is not taken for a secret.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        keep_secret(path, make)
        return make, True
    if not content.strip():
        raise OSError(f"{path} is empty; put the key back, or remove the file to make a new one.")
    return content, False
