"""The error for bytes that are no frame."""


class Malformed(Exception):
    """The other side has broken the framing; its connection is closed."""
