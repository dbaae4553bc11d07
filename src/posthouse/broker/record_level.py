"""The version of records that a cluster writes, as one node notes it in its folder.

It rises when every node that is there knows the next, and never falls: then the journal may hold
such records, and a release that does not know them cannot read it any more.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from posthouse.core import versions
from posthouse.core.errors import Busy
from posthouse.store.errors import TooNew

FILE = "record-version"
_BYTES_MAX = 20


class RecordLimit(NamedTuple):
    """Records newer than `version` are not to be written, because of a node."""

    version: int
    node: str

    def check(self, records: Sequence[object]) -> None:
        """Raises Busy."""
        if versions.version_needed(records) > self.version:
            raise Busy(
                f"the cluster is being upgraded: node {self.node} is at version {self.version};"
                " upgrade it"
            )


class RecordLevel:
    """Raises TooNew where the folder was used by a release that is newer than this one."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.version = self._noted()
        if self.version > versions.VERSION:
            raise TooNew(folder, self.version, versions.VERSION)

    def _noted(self) -> int:
        try:
            text = self._path.read_bytes()[:_BYTES_MAX].strip()
        except FileNotFoundError:
            return 1
        return int(text) if text.isdigit() else 1

    def rise(self, version: int) -> None:
        """Notes that records up to this version may be in the journal; it is on disk then."""
        version = min(version, versions.VERSION)
        if version <= self.version:
            return
        partial = self._path.with_suffix(".new")
        with partial.open("wb") as file:
            file.write(b"%d\n" % version)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(self._path)
        self.version = version
