"""VibeMQ: its three wire generations over TCP, and its API over HTTP."""
