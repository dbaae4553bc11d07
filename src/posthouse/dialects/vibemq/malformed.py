"""What cannot be understood at all."""


class Malformed(Exception):
    """The other side has broken the framing; its connection is closed."""
