"""The errors of a journal. None of them is an answer to a client."""

from pathlib import Path


class StoreError(Exception):
    """The journal cannot be used as it is. `for_clients`: no more than they may know of it."""

    for_clients = "The journal has failed; it is not known whether this was done."


class Lost(StoreError):
    """A write or sync failed: nobody knows what is durable. Stop, and recover from the journal."""


class Deposed(StoreError):
    """Another writer has taken over. The state here is void; what was not synced may be, too."""

    for_clients = (
        "Another broker has taken over; it is not known whether this was done. Connect again."
    )

    def __init__(self, epoch: int) -> None:
        super().__init__(f"another broker has taken over this journal, with epoch {epoch}")
        self.epoch = epoch


class Spoilt(StoreError):
    """A replicated journal holds what no broker can have written, or lacks what one has."""


class Behind(StoreError):
    """The replicated log no longer holds the frames that come next here."""

    def __init__(self, number: int, first: int) -> None:
        super().__init__(
            f"this folder ends at frame {number}, and the log begins at frame {first}; the node"
            " starts anew, and copies the folder of another one"
        )
        self.number = number
        self.first = first


class OutOfTurn(StoreError):
    """A frame was handed in that is not the next one."""


class NotThere(StoreError):
    """A position was asked for that the journal does not hold, or does not hold any more."""


class InUse(StoreError):
    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder} is in use by another process; stop that, or use another.")


class TooNew(StoreError):
    def __init__(self, path: Path | str, version: int, known: int) -> None:
        super().__init__(
            f"{path} was written by a newer version (format {version}; this one knows up to"
            f" {known}); use that version."
        )


class Unknown(StoreError):
    """A record or file is whole, but in a format that this version does not know."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(
            f"{where} holds something that this version does not know ({why}); use the version that"
            " wrote it, or a newer one."
        )


class Unfinished(StoreError):
    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"A repair of {folder} was interrupted; finish it: posthouse store repair --data"
            f" {folder}"
        )


class HalfArrived(StoreError):
    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"A copy was being put in the place of {folder}, and that was interrupted; start the"
            " node again, or run the restore again, which goes on with it."
        )


class Damaged(StoreError):
    """Bytes that were durable have changed. Nothing was skipped or deleted.

    A segment is damaged at a byte of its file. Other stores name a line, frame or snapshot, or
    nothing where `unit` is empty.
    """

    def __init__(self, path: Path | str, offset: int, what: str, *, unit: str = "byte") -> None:
        mend = "Restore it from a copy."
        if isinstance(path, Path):
            mend = (
                "Restore the folder from a copy, or keep what can be read: posthouse store repair"
                f" --data {path.parent}"
            )
        place = f" at {unit} {offset}" if unit else ""
        super().__init__(f"{path} is damaged{place}: {what}. {mend}")
        self.path = Path(path)
        self.offset = offset
