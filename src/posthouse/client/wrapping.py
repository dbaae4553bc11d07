"""Wrapping of bodies: compressed, then encrypted, when sent; the reverse when received.

Both are marked in attributes, so that whoever receives it needs no setting but the key.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from posthouse.client.marks import COMPRESSED, ENCRYPTED
from posthouse.client.messages import Message, ReceivedMessage

if TYPE_CHECKING:
    from posthouse.client.compression import Compression
    from posthouse.client.encryption import Encryption


@dataclass(frozen=True)
class Wrapping:
    compression: "Compression | None" = None
    encryption: "Encryption | None" = None

    def wrap(self, message: Message) -> Message:
        """Raises EncryptionError."""
        if self.compression is not None:
            message = self.compression.wrap(message)
        if self.encryption is not None:
            message = self.encryption.wrap(message)
        return message

    def concerns(self, received: Iterable[ReceivedMessage]) -> bool:
        """Whether there is something to undo in one of them, or to look for."""
        if self.encryption is not None:
            return True
        marked = [each.attributes for each in received if each.attributes]
        return any(COMPRESSED in marks or ENCRYPTED in marks for marks in marked)

    def unwrap(self, received: ReceivedMessage) -> ReceivedMessage:
        """Raises SerializationError, EncryptionError, ConfigurationError."""
        if self.encryption is not None:
            received = self.encryption.unwrap(received)
        elif ENCRYPTED in received.attributes:
            from posthouse.client.encryption import KeyNotFound

            raise KeyNotFound(str(received.attributes[ENCRYPTED]))
        if COMPRESSED in received.attributes:
            from posthouse.client.compression import UNPACKED_BYTES_MAX, unwrap

            own = self.compression
            received = unwrap(
                received, UNPACKED_BYTES_MAX if own is None else own.unpacked_bytes_max
            )
        return received


PLAIN = Wrapping()
