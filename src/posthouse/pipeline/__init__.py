"""Messages as data: Spark reads them from a broker's feed, and sends what it makes of them."""

from posthouse.pipeline.session import NoSpark, register, session

__all__ = ["NoSpark", "register", "session"]
