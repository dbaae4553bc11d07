"""Asks the NATS servers, by their monitoring ports, whether they sync every message.

Only then an acknowledgement means that a message is on disk. A node starts when most servers have
said so: one that is down must not keep the others from working. It is asked when it is back.
"""

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any

from posthouse.store.log import Unanswered
from posthouse.store.nats import Unfit

_log = logging.getLogger(__name__)

ANSWER_SECONDS = 2.0
BYTES_MAX = 16 << 20
AGAIN_SECONDS = 10.0


async def check_synced(urls: Sequence[str]) -> list[str]:
    """Returns the servers that do not answer, if most do.

    Raises Unanswered where most do not, and Unfit where an acknowledgement would not mean synced.
    """
    answers = await asyncio.gather(*map(_is_synced, urls))
    for url, is_synced in zip(urls, answers, strict=True):
        if is_synced is False:
            raise Unfit(_unsynced(url))
    silent = [url for url, is_synced in zip(urls, answers, strict=True) if is_synced is None]
    if silent and 2 * len(silent) >= len(urls):
        names = ", ".join(silent)
        raise Unanswered(f"{names} {'does' if len(silent) == 1 else 'do'} not answer")
    return silent


async def check_later(silent: Sequence[str]) -> None:
    """Asks those that did not answer until they have, and says in the log if one does not sync."""
    while silent:
        await asyncio.sleep(AGAIN_SECONDS)
        answers = await asyncio.gather(*map(_is_synced, silent))
        for url, is_synced in zip(silent, answers, strict=True):
            if is_synced is False:
                _log.error("What was acknowledged may be lost: %s.", _unsynced(url),
                           extra={"event": "cluster.unsynced"})  # fmt: skip
        silent = [url for url, is_synced in zip(silent, answers, strict=True) if is_synced is None]


async def _is_synced(url: str) -> bool | None:
    """None where it does not answer."""
    try:
        answer = await asyncio.to_thread(_monitored, f"{url.rstrip('/')}/jsz")
    except (OSError, ValueError):
        return None
    return answer.get("config", {}).get("sync_always") is True


def _unsynced(url: str) -> str:
    return (
        f"the NATS server at {url} does not sync every message; set sync_interval: always in its"
        " jetstream section, or give durability interval"
    )


def _monitored(url: str) -> dict[str, Any]:
    from urllib.request import urlopen  # not needed but here

    with urlopen(url, timeout=ANSWER_SECONDS) as answer:  # noqa: S310 (an operator's own address)
        found: dict[str, Any] = json.loads(answer.read(BYTES_MAX))
    return found
