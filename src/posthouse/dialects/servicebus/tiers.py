"""The tiers of Azure Service Bus: what a namespace allows."""

from typing import NamedTuple


class Tier(NamedTuple):
    sku: str  # as the properties of a namespace name it
    message_bytes: int  # of one message, or of one batch, where its queue says nothing else
    kilobytes: tuple[int, int]  # what a queue may say of it
    units: int | None  # messaging units
    has_variants: bool  # express and partitioned entities

    @property
    def has_large_messages(self) -> bool:
        """Whether a queue may say how large its messages are."""
        least, most = self.kilobytes
        return most > least


STANDARD = Tier("Standard", 256 << 10, (256, 256), None, True)
PREMIUM = Tier("Premium", 1 << 20, (1_024, 102_400), 1, False)
BOTH = PREMIUM._replace(has_variants=True)  # where no tier is asked for: all that either has
TIERS = {None: BOTH, "standard": STANDARD, "premium": PREMIUM}
