"""Rules of the house: what the sources may not do, counted, and the way that a message takes.

`python -m tests.house` prints it; `--write` puts the way of a message into docs/architecture.md.
"""
