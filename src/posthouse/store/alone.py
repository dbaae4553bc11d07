"""A node's folder that is written by itself: the file `alone` says so, for ever.

From then on it has frames that the cluster's log does not have, and cannot follow that log again.
"""

from pathlib import Path

from posthouse.store.disk import Disk
from posthouse.store.errors import StoreError
from posthouse.store.place_note import forget_place, is_noted

ALONE = "alone"


class WasAlone(StoreError):
    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"{folder} was served by itself, and has gone its own way since. To go on from it,"
            " begin a new log with it: posthouse cluster found --replace-log; to go on with the"
            " cluster, start with an empty folder."
        )


class OfNode(StoreError):
    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"{folder} is the folder of a node of a cluster. What is written to it alone is not in"
            " the cluster's log, and the node could not follow that any more. Name another folder;"
            " or, if the cluster is given up, serve this one by itself first: posthouse serve"
            f" --data {folder}"
        )


def check_of_no_node(folder: Path) -> None:
    """Raises OfNode where a folder is a node's, and was never served by itself."""
    if is_noted(folder):
        raise OfNode(folder)


def check_not_alone(folder: Path) -> None:
    """Raises WasAlone where a folder is no longer a part of what the cluster's log holds."""
    if (folder / ALONE).exists():
        raise WasAlone(folder)


def note_alone(folder: Path) -> None:
    """Notes, durably, that a node's folder is written by itself from now on. Raises OSError."""
    if is_noted(folder):
        disk = Disk()
        file = disk.create(folder / ALONE)
        try:
            disk.write(file, 0, [b"This folder was a node's, and was served by itself.\n"])
            disk.sync(file)
        finally:
            disk.close(file)
        disk.sync_folder(folder)
        forget_place(disk, folder)


def forget_alone(folder: Path) -> None:
    """A log begins with the folder. Raises OSError."""
    (folder / ALONE).unlink(missing_ok=True)
