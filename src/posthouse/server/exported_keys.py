"""A cluster secret that carries the keys of a broker which was there before the cluster.

The keys of a cluster are derived from its secret. A folder that has keys already must keep them:
clients know its root key, and the keys of principals are sealed with its seal key. So its secret is
a text that names both, and ends in what cannot be guessed, for everything else that is derived:

    posthouse-cluster-secret-1 root=<key> seal=<64 digits> more=<64 digits>
"""

import re
import secrets
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from posthouse.store.errors import StoreError

_FORM = re.compile(
    rb"posthouse-cluster-secret-1 root=(\S{1,3000}) seal=([0-9a-f]{64}) more=([0-9a-f]{64})"
)
_MORE_BYTES = 32


class Keys(NamedTuple):
    root: str
    seal: bytes


def keys_in(secret: bytes) -> Keys | None:
    """The keys that a secret carries; None for one that they are derived from."""
    found = _FORM.fullmatch(secret.strip())
    if found is None:
        return None
    return Keys(unquote(found[1].decode("ascii", "replace")), bytes.fromhex(found[2].decode()))


def export_secret(folder: Path, root_key: str, seal_key: str) -> bytes:
    """The secret for a cluster that begins with this folder. Raises StoreError or OSError.

    `root_key`, `seal_key`: the names of the files.
    """
    try:
        root = (folder / root_key).read_text("utf-8").strip()
        seal = (folder / seal_key).read_bytes()
    except FileNotFoundError as error:
        raise StoreError(
            f"{error.filename} is not there: {folder} has no keys of its own to export"
        ) from None
    more = secrets.token_hex(_MORE_BYTES)
    words = f"posthouse-cluster-secret-1 root={quote(root, safe='')} seal={seal.hex()} more={more}"
    secret = words.encode()
    if keys_in(secret) != Keys(root, seal):
        raise StoreError(f"the keys of {folder} are not such as a broker makes")
    return secret + b"\n"
