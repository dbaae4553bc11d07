"""Where Spark looks by itself for `format("posthouse")`, if this is installed beside it.

If this raised, Spark would find no such package at all.
"""

from contextlib import suppress

with suppress(Exception):
    from posthouse.pipeline.format import PosthouseSource as DefaultSource  # noqa: F401
